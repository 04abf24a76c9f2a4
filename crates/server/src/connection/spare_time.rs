//! How much time a leader has to spare, measured continuously by how long it waits for events.
//!
//! No clock, lock or thread is here: the leader says what it has seen.

use std::time::{Duration, Instant};

/// How long is measured before each verdict.
const SPAN: Duration = Duration::from_millis(16);

/// It begins anew with each leader.
pub(crate) struct SpareTime {
    since: Instant,
    waited: Duration,
}

impl SpareTime {
    /// Measures from `now` on.
    pub(crate) fn new(now: Instant) -> Self {
        Self { since: now, waited: Duration::ZERO }
    }

    /// The leader has waited for events from `before` to `now`. After each [`SPAN`] the verdict: true when it has waited
    /// for less than an eighth of the time, so that it has little to spare.
    pub(crate) fn note(&mut self, before: Instant, now: Instant) -> Option<bool> {
        self.waited += now.saturating_duration_since(before);
        let all = now.saturating_duration_since(self.since);
        (all >= SPAN).then(|| {
            let has_little = self.waited * 8 < all;
            *self = Self::new(now);
            has_little
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{SPAN, SpareTime};

    const BIT: Duration = Duration::from_micros(100);

    /// The verdicts of a leader that always waits and works for these times, over this many spans.
    fn verdicts(waits: Duration, works: Duration, spans: u32) -> Vec<bool> {
        let mut now = Instant::now();
        let end = now + SPAN * spans;
        let mut spare = SpareTime::new(now);
        let mut verdicts = Vec::new();
        while now < end {
            let before = now;
            now += waits;
            verdicts.extend(spare.note(before, now));
            now += works;
        }
        verdicts
    }

    #[test]
    fn a_leader_that_hardly_waits_has_little_time_to_spare() {
        for verdicts in [verdicts(Duration::ZERO, BIT, 4), verdicts(BIT, BIT * 8, 4)] {
            assert!(verdicts.len() >= 3 && verdicts.iter().all(|has_little| *has_little), "{verdicts:?}");
        }
    }

    #[test]
    fn a_leader_that_waits_for_a_seventh_of_the_time_has_time_to_spare() {
        for verdicts in [verdicts(BIT, BIT * 6, 4), verdicts(SPAN * 5, BIT, 10)] {
            assert!(verdicts.len() >= 2 && !verdicts.iter().any(|has_little| *has_little), "{verdicts:?}");
        }
    }

    #[test]
    fn there_is_no_verdict_before_a_span_is_over_and_each_begins_anew() {
        let now = Instant::now();
        let mut spare = SpareTime::new(now);
        assert_eq!(spare.note(now, now + SPAN - BIT), None);
        assert_eq!(spare.note(now + SPAN - BIT, now + SPAN), Some(false));
        let later = now + SPAN * 2;
        assert_eq!(spare.note(later, later), Some(true));
    }
}
