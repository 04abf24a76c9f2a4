//! Who may run the application: the rule, as functions of plain values.
//!
//! - A thread that runs the application takes the next request without releasing the interpreter.
//! - At most one other thread waits for the interpreter in order to start a request.
//! - One more thread joins only when the head of the queue has not moved for a while and the process has been idle:
//!   then those that run wait for something, and the newcomer gets the interpreter at once. A newcomer that had to wait
//!   for the interpreter, or finds that requests have moved on, turns back, unless the head has not moved for
//!   [`FORCED_ENTRY`]: threads are added when the application waits, not when the interpreter is the bottleneck.
//! - An application that was seen to wait is believed to wait again: the rule is *eager* then, and the next thread
//!   joins at once. Each join that finds nothing to do, or the interpreter busy, lowers that belief.
//! - A request that finds too many others waiting is refused at once. One that has waited too long, or that no thread
//!   will take, is refused later.
//!
//! No lock, clock, atomic or thread is here; `run_queue` and `dispatcher` have those.

use std::time::{Duration, Instant};

/// A thread that got the interpreter within this time found it free.
const FREE: Duration = Duration::from_micros(500);
/// A head of the queue that does not move for this long gets a thread even if the interpreter is busy.
pub(crate) const FORCED_ENTRY: Duration = Duration::from_millis(50);
/// When all runners have waited for slow clients for this time, none is expected to be free soon.
pub(crate) const STALLED: Duration = Duration::from_secs(1);

/// What one good join adds to the eagerness, what one in vain takes, and the most there is. With one bit, "the last
/// join was useful", requests that sleep for 1 ms lose 22 % of their rate (16 connections); without any belief 65 %.
const GAIN: u32 = 16;
const LOSS: u32 = 8;
const MAX_EAGER: u32 = 64;

/// What there is to judge by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Situation {
    /// Requests that wait.
    pub(crate) waiting: usize,
    /// Runners that run the application.
    pub(crate) running: usize,
    /// Runners that may run it.
    pub(crate) limit: usize,
    /// When a request was last taken.
    pub(crate) moved_at: Instant,
    /// How much the application is believed to wait.
    pub(crate) eagerness: Eagerness,
}

/// What a thread that looks at the queue should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing waits.
    Idle,
    /// Requests wait and somebody runs: look again soon whether the head has moved.
    Watch,
    /// Run: nobody does, or those who do are blocked.
    Run,
}

/// What a thread that looks at the queue should do. `is_stuck`: requests have waited for a while, none was taken, and
/// the process was idle. `is_entering`: a thread waits for the interpreter already.
pub(crate) fn verdict(seen: Situation, is_stuck: bool, is_entering: bool, now: Instant) -> Verdict {
    if seen.waiting == 0 {
        return Verdict::Idle;
    }
    if seen.running >= seen.limit || is_entering {
        return Verdict::Watch;
    }
    let is_needed = seen.running == 0
        || is_stuck
        || seen.eagerness.is_any()
        || now.saturating_duration_since(seen.moved_at) >= FORCED_ENTRY;
    if is_needed { Verdict::Run } else { Verdict::Watch }
}

/// What a thread finds that has just got the interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    /// As many run as may.
    Full,
    /// Nobody else runs.
    First,
    /// Those who run wait for something: one more is of use.
    Useful,
    /// Those who run compute, but the head of the queue has not moved for so long that one more must run.
    Forced,
    /// There is nothing to do, or those who run get on with it.
    NotNeeded,
}

impl Join {
    /// True when the thread takes a request.
    pub(crate) fn runs(self) -> bool {
        matches!(self, Self::First | Self::Useful | Self::Forced)
    }
}

/// What a thread finds that waited so long for the interpreter. `has_moved`: requests were taken meanwhile.
pub(crate) fn judge(seen: Situation, waited: Duration, has_moved: bool, now: Instant) -> Join {
    if seen.running >= seen.limit {
        Join::Full
    } else if seen.waiting == 0 {
        Join::NotNeeded
    } else if seen.running == 0 {
        Join::First
    } else if waited < FREE && (seen.eagerness.is_any() || !has_moved) {
        Join::Useful
    } else if !has_moved && now.saturating_duration_since(seen.moved_at) >= FORCED_ENTRY {
        Join::Forced
    } else {
        Join::NotNeeded
    }
}

/// How much the application is believed to wait, learnt from what threads found that joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Eagerness(pub(crate) u32);

impl Eagerness {
    /// True when the next thread joins at once.
    pub(crate) fn is_any(self) -> bool {
        self.0 > 0
    }

    /// After one more thread has found this.
    pub(crate) fn after(self, join: Join) -> Self {
        Self(match join {
            Join::Full | Join::First => self.0,
            Join::Useful => (self.0 + GAIN).min(MAX_EAGER),
            Join::Forced | Join::NotNeeded => self.0.saturating_sub(LOSS),
        })
    }
}

/// Runners that may run the application: one more for each that is stuck, unless only one thread may ever run it.
/// `stuck`: runners that are past the deadlines of their requests.
pub(crate) fn most_runners(threads: usize, stuck: usize) -> usize {
    match threads {
        1 => 1,
        threads => threads.saturating_add(stuck),
    }
}

/// True when one more request may wait: for each thread without a request, one; beyond that, `max_queue`.
pub(crate) fn has_room(waiting: usize, running: usize, threads: usize, max_queue: usize) -> bool {
    waiting < max_queue.saturating_add(threads.saturating_sub(running))
}

/// Since when every runner has waited for slow clients while no request was taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stall(Option<(Instant, u64)>);

impl Stall {
    /// Notes that `absent` runners wait for slow clients or are past their deadlines, of `limit`; `moved` counts the
    /// requests that were taken. True when that has been so for [`STALLED`]: neither memory nor files have room for
    /// what those clients have not taken, so no runner will be there soon.
    pub(crate) fn is_stalled(&mut self, absent: usize, limit: usize, moved: u64, now: Instant) -> bool {
        if absent < limit {
            self.0 = None;
            return false;
        }
        match self.0 {
            Some((since, then)) if then == moved => now.saturating_duration_since(since) >= STALLED,
            _ => {
                self.0 = Some((now, moved));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{
        Eagerness, FORCED_ENTRY, FREE, Join, MAX_EAGER, STALLED, Situation, Stall, Verdict, has_room, judge,
        most_runners, verdict,
    };

    const NOTHING: Duration = Duration::ZERO;
    const JUST_BEFORE: Duration = Duration::from_nanos(1);

    /// `unmoved`: for how long no request has been taken at `now`.
    fn situation(waiting: usize, running: usize, eagerness: u32, unmoved: Duration, now: Instant) -> Situation {
        Situation { waiting, running, limit: 4, moved_at: now - unmoved, eagerness: Eagerness(eagerness) }
    }

    fn a_moment() -> Instant {
        Instant::now() + Duration::from_secs(3_600)
    }

    #[test]
    fn a_look_at_the_queue() {
        let now = a_moment();
        let almost = FORCED_ENTRY - JUST_BEFORE;
        // waiting, running, eagerness, unmoved, stuck, entering
        let cases = [
            ((0, 0, 0, NOTHING, false, false), Verdict::Idle, "nothing waits"),
            ((0, 2, 9, FORCED_ENTRY, true, false), Verdict::Idle, "nothing waits, whatever else is"),
            ((1, 0, 0, NOTHING, false, false), Verdict::Run, "nobody runs"),
            ((1, 0, 0, NOTHING, false, true), Verdict::Watch, "nobody runs, but one is about to"),
            ((1, 1, 0, NOTHING, false, false), Verdict::Watch, "one runs and may come for it"),
            ((1, 1, 0, NOTHING, true, false), Verdict::Run, "one runs and waits for something"),
            ((1, 1, 0, NOTHING, true, true), Verdict::Watch, "another is to see to that"),
            ((1, 1, 1, NOTHING, false, false), Verdict::Run, "the application is believed to wait"),
            ((1, 1, 0, almost, false, false), Verdict::Watch, "one computes"),
            ((1, 1, 0, FORCED_ENTRY, false, false), Verdict::Run, "one computes for too long"),
            ((9, 3, 0, FORCED_ENTRY, false, false), Verdict::Run, "one more may run"),
            ((9, 4, 9, FORCED_ENTRY, true, false), Verdict::Watch, "all run that may"),
            ((9, 5, 9, FORCED_ENTRY, true, false), Verdict::Watch, "more run than may"),
        ];
        for ((waiting, running, eagerness, unmoved, is_stuck, is_entering), expected, why) in cases {
            let seen = situation(waiting, running, eagerness, unmoved, now);
            assert_eq!(verdict(seen, is_stuck, is_entering, now), expected, "{why}");
        }
    }

    #[test]
    fn a_thread_that_has_got_the_interpreter() {
        let now = a_moment();
        let quick = FREE - JUST_BEFORE;
        // waiting, running, eagerness, unmoved, waited, moved
        let cases = [
            ((9, 4, 9, FORCED_ENTRY, NOTHING, false), Join::Full, "all run that may"),
            ((0, 4, 9, FORCED_ENTRY, NOTHING, false), Join::Full, "that comes first, so that nothing is learnt"),
            ((0, 0, 0, NOTHING, NOTHING, false), Join::NotNeeded, "nothing waits"),
            ((0, 1, 9, FORCED_ENTRY, NOTHING, false), Join::NotNeeded, "nothing waits any more"),
            ((1, 0, 0, NOTHING, FREE, true), Join::First, "nobody else runs"),
            ((1, 1, 0, NOTHING, quick, false), Join::Useful, "the interpreter was free, and the head has not moved"),
            ((1, 1, 0, NOTHING, quick, true), Join::NotNeeded, "it was free, but requests move"),
            ((1, 1, 1, NOTHING, quick, true), Join::Useful, "requests move, by threads that wait"),
            ((1, 1, 0, NOTHING, FREE, false), Join::NotNeeded, "the interpreter was busy"),
            ((1, 1, 9, NOTHING, FREE, false), Join::NotNeeded, "it was busy, though the application waited before"),
            ((1, 1, 0, FORCED_ENTRY, FREE, false), Join::Forced, "it was busy for too long"),
            ((1, 1, 0, FORCED_ENTRY, FREE, true), Join::NotNeeded, "it was, but requests move"),
            ((1, 1, 0, FORCED_ENTRY - JUST_BEFORE, FREE, false), Join::NotNeeded, "it was, but not that long"),
        ];
        for ((waiting, running, eagerness, unmoved, waited, has_moved), expected, why) in cases {
            let seen = situation(waiting, running, eagerness, unmoved, now);
            assert_eq!(judge(seen, waited, has_moved, now), expected, "{why}");
        }
        let runs = [Join::Full, Join::First, Join::Useful, Join::Forced, Join::NotNeeded].map(Join::runs);
        assert_eq!(runs, [false, true, true, true, false]);
    }

    #[test]
    fn an_application_that_waits_is_believed_to_until_joins_are_in_vain() {
        let mut eagerness = Eagerness::default();
        assert!(!eagerness.is_any());
        for join in [Join::First, Join::Full, Join::NotNeeded, Join::Forced] {
            assert_eq!(eagerness.after(join), eagerness, "{join:?}");
        }
        eagerness = eagerness.after(Join::Useful);
        assert!(eagerness.is_any());
        assert_eq!(eagerness.after(Join::First), eagerness);
        assert_eq!(eagerness.after(Join::Full), eagerness);
        assert!(eagerness.after(Join::NotNeeded).is_any());
        assert!(!eagerness.after(Join::NotNeeded).after(Join::Forced).is_any());
        for _ in 0..9 {
            eagerness = eagerness.after(Join::Useful);
        }
        assert_eq!(eagerness, Eagerness(MAX_EAGER));
    }

    #[test]
    fn runners_that_do_not_come_back_are_replaced_but_for_an_only_one() {
        assert_eq!(most_runners(8, 0), 8);
        assert_eq!(most_runners(8, 3), 11);
        assert_eq!(most_runners(1, 1), 1);
    }

    #[test]
    fn room_in_the_queue() {
        // waiting, running, threads, max_queue
        assert!(has_room(0, 0, 2, 0), "a thread is free");
        assert!(has_room(1, 0, 2, 0), "another one, too");
        assert!(!has_room(2, 0, 2, 0), "but not a third one");
        assert!(!has_room(0, 2, 2, 0), "none is free");
        assert!(!has_room(0, 3, 2, 0), "more run than there should be threads");
        assert!(has_room(0, 2, 2, 1), "one may wait");
        assert!(!has_room(1, 2, 2, 1), "one waits");
        assert!(has_room(usize::MAX - 1, 0, 2, usize::MAX), "no limit");
    }

    #[test]
    fn all_runners_are_stalled_when_that_lasts_and_nothing_moves() {
        let start = a_moment();
        let almost = start + STALLED - JUST_BEFORE;
        let mut stall = Stall::default();
        assert!(!stall.is_stalled(2, 2, 7, start));
        assert!(!stall.is_stalled(2, 2, 7, almost));
        assert!(stall.is_stalled(2, 2, 7, start + STALLED));
        assert!(stall.is_stalled(3, 2, 7, start + STALLED));
        // One has taken a request, so the time begins anew.
        assert!(!stall.is_stalled(2, 2, 8, start + STALLED));
        assert!(stall.is_stalled(2, 2, 8, start + 2 * STALLED));
        // One has come back.
        assert!(!stall.is_stalled(1, 2, 8, start + 2 * STALLED));
        assert!(!stall.is_stalled(2, 2, 8, start + 2 * STALLED));
    }
}
