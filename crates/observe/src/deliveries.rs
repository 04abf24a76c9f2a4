//! Counts of finished responses, in a worker's slot of the scoreboard: by status, ending and way of sending, their
//! sizes, and histograms of their times and write calls.
//!
//! Each is one word. The thread that accounts for a response adds to it without a lock, so a reader may see a response
//! in one count and not yet in another. A worker that is killed leaves its counts to the master.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::record::{ENDINGS, PATHS, PHASES, Path, Record, SIZES, Times};

/// Times are counted in buckets, 32 for each power of two, from 2^-17 s (7.6 µs) to 2^7 s (128 s). So the upper bound
/// of a bucket exceeds the times in it by at most 3.2 %. The first bucket has all shorter times, the last one all
/// longer ones.
const STEPS: usize = 32;
/// The first bound is this power of two, in units of 2^-30 s.
const FIRST_POWER: u32 = 13;
/// The last bound, likewise.
const LAST_POWER: u32 = 37;
/// Buckets of a phase.
pub(crate) const TIMES: usize = (LAST_POWER - FIRST_POWER) as usize * STEPS + 2;
/// Units in a nanosecond, times 2^63, rounded up.
const UNITS: u128 = (1u128 << 93).div_ceil(1_000_000_000);
/// Upper bounds of the buckets for the write calls of a response, and the same as text. A last bucket has the rest.
const CALLS: [(u64, &str); 10] = [
    (0, "0.0"),
    (1, "1.0"),
    (2, "2.0"),
    (3, "3.0"),
    (4, "4.0"),
    (8, "8.0"),
    (16, "16.0"),
    (64, "64.0"),
    (256, "256.0"),
    (1024, "1024.0"),
];
/// The name of the last bucket.
const REST: &str = "+Inf";
/// Classes of status codes, by the first digit; 0: there was no response, as the client had gone.
const CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];
/// Its responses were held while further requests waited: the count behind the [`SIZES`].
const HELD: &str = "held";

// Where each group begins.
const CLASS: usize = 0;
const ENDING: usize = CLASS + CLASSES.len();
const PATH: usize = ENDING + ENDINGS.len();
const SIZE: usize = PATH + PATHS.len();
const CALL: usize = SIZE + SIZES.len() + 1;
const PHASE: usize = CALL + CALLS.len() + 1;
/// Words of a phase: its buckets, and the sum in nanoseconds.
const PHASE_WORDS: usize = TIMES + 1;
/// Words of all.
pub const WORDS: usize = PHASE + PHASES.len() * PHASE_WORDS;

/// The counts of one worker.
#[derive(Clone, Copy)]
pub struct DeliveryCounts {
    words: &'static [AtomicU64; WORDS],
}

impl DeliveryCounts {
    /// In these words; `None`: they are not as many as [`WORDS`].
    pub fn of(words: &'static [AtomicU64]) -> Option<Self> {
        Some(Self { words: words.try_into().ok()? })
    }

    /// Counts a response that is over. Returns its times; `None`: the application has not had the request.
    pub fn count(&self, record: &Record) -> Option<Times> {
        self.add(CLASS + usize::from(record.status / 100).min(CLASSES.len() - 1), 1);
        if let Some(ending) = ENDINGS.iter().position(|ending| *ending == record.ending) {
            self.add(ENDING + ending, 1);
        }
        self.add(PATH + record.path as usize, 1);
        let writes = u64::from(record.writes);
        let held = u64::from(!record.held.is_zero());
        for (place, size) in SIZES.iter().map(|size| (size.value)(record)).chain([held]).enumerate() {
            if size > 0 {
                self.add(SIZE + place, size);
            }
        }
        self.add(CALL + calls_bucket(writes), 1);
        record.started?;
        let times = Times::of(record);
        for (place, (phase, nanos)) in PHASES.iter().zip(times.all()).enumerate() {
            if nanos > 0 || !phase.is_rare {
                self.time(place, nanos);
            }
        }
        Some(times)
    }

    fn time(&self, phase: usize, nanos: u64) {
        let begin = PHASE + phase * PHASE_WORDS;
        self.add(begin + time_bucket(nanos), 1);
        if nanos > 0 {
            self.add(begin + PHASE_WORDS - 1, nanos);
        }
    }

    fn add(&self, word: usize, value: u64) {
        self.words[word].fetch_add(value, Ordering::Relaxed);
    }

    /// Calls `show` with the group, the name and the value of each count. Buckets are named by their upper bounds, those
    /// of times in seconds, and do not include the responses of lower buckets. The sum of a phase is in nanoseconds.
    /// Empty buckets of times are omitted.
    pub fn visit<E>(&self, mut show: impl FnMut(&'static str, &str, u64) -> Result<(), E>) -> Result<(), E> {
        let endings = ENDINGS.map(|ending| ending.name());
        let paths = PATHS.map(Path::name);
        let calls = CALLS.map(|(_, name)| name);
        let mut words = self.words.iter().map(|word| word.load(Ordering::Relaxed));
        let mut group = |group: &'static str, names: &[&'static str], last: &[&'static str]| {
            names.iter().chain(last).try_for_each(|name| show(group, name, words.next().unwrap_or(0)))
        };
        group("classes", &CLASSES, &[])?;
        group("endings", &endings, &[])?;
        group("paths", &paths, &[])?;
        group("sizes", &SIZES.map(|size| size.name), &[HELD])?;
        group("calls", &calls, &[REST])?;
        for phase in PHASES {
            for bucket in 0..TIMES {
                match words.next().unwrap_or(0) {
                    0 => {}
                    count => show(phase.name, &time_bound(bucket), count)?,
                }
            }
            show(phase.name, "sum_ns", words.next().unwrap_or(0))?;
        }
        Ok(())
    }
}

/// The first bucket whose bound is not below the value.
fn calls_bucket(value: u64) -> usize {
    CALLS.iter().position(|(bound, _)| value <= *bound).unwrap_or(CALLS.len())
}

/// The bucket of a time, without a branch for each bound: the power of two selects a group of buckets, and the bits
/// after the leading one select the bucket.
#[inline]
pub(crate) fn time_bucket(nanos: u64) -> usize {
    // A time that equals a bound belongs to the bucket below the bound.
    let units = (u128::from(nanos.saturating_sub(1)) * UNITS) >> 63;
    let units = u64::try_from(units).unwrap_or(u64::MAX);
    let power = units.checked_ilog2().unwrap_or(0);
    if power < FIRST_POWER {
        return 0;
    }
    let step = (units >> (power - STEPS.ilog2())) as usize % STEPS;
    (1 + (power - FIRST_POWER) as usize * STEPS + step).min(TIMES - 1)
}

/// The upper bound of a bucket in seconds, as text.
pub(crate) fn time_bound(bucket: usize) -> String {
    let (power, step) = (bucket / STEPS, bucket % STEPS);
    if bucket == TIMES - 1 {
        return REST.to_owned();
    }
    let units = (STEPS + step) << (FIRST_POWER as usize - STEPS.ilog2() as usize + power);
    format!("{:?}", units as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;
    use std::convert::Infallible;
    use std::time::Duration;

    use tailrace_os::clock::now;
    use tailrace_os::shared_memory::shared_words;
    use tailrace_os::usage::Usage;

    use super::{CALLS, DeliveryCounts, TIMES, WORDS, calls_bucket, time_bound, time_bucket};
    use crate::record::{ENDINGS, Ending, PATHS, Path, Record};

    fn none() -> DeliveryCounts {
        DeliveryCounts::of(shared_words(WORDS).unwrap()).unwrap()
    }

    /// The counts that are not 0.
    fn shown(deliveries: &DeliveryCounts) -> BTreeMap<String, u64> {
        let mut found = BTreeMap::new();
        let Ok(()) = deliveries.visit(|group, name, value| {
            assert!(found.insert(format!("{group} {name}"), value).is_none(), "{group} {name}");
            Ok::<_, Infallible>(())
        });
        found.retain(|_, value| *value > 0);
        found
    }

    fn expected(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
        counts.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn a_bucket_has_what_is_at_most_its_bound_and_the_last_one_the_rest() {
        let bounds: Vec<f64> = (0..TIMES - 1).map(|bucket| time_bound(bucket).parse().unwrap()).collect();
        assert!(bounds.is_sorted_by(|one, other| one < other));
        assert_eq!((bounds[0], bounds[TIMES - 2]), (2f64.powi(-17), 128.0));
        for (place, bound) in bounds.iter().enumerate() {
            let nanos = (bound * 1e9).floor() as u64;
            assert_eq!((time_bucket(nanos), time_bucket(nanos + 2)), (place, place + 1), "{bound}");
        }
        assert_eq!((time_bucket(0), time_bucket(u64::MAX), time_bound(TIMES - 1).as_str()), (0, TIMES - 1, "+Inf"));
        for (place, (bound, text)) in CALLS.iter().enumerate() {
            assert_eq!((calls_bucket(*bound), text.parse::<f64>().unwrap()), (place, *bound as f64));
        }
        assert_eq!(calls_bucket(u64::MAX), CALLS.len());
        assert!(CALLS.is_sorted());
    }

    #[test]
    fn the_bound_of_a_time_is_at_most_5_percent_above_it_from_10_us_to_100_s() {
        let mut nanos = 10_000;
        while nanos <= 100_000_000_000 {
            let (bound, seconds) = (time_bound(time_bucket(nanos)).parse::<f64>().unwrap(), nanos as f64 / 1e9);
            // The bucket of a bound that is not a whole number of nanoseconds may include the next nanosecond.
            assert!((seconds - 1e-9..=seconds * 1.032).contains(&bound), "{seconds} s is in the bucket to {bound} s");
            nanos += nanos / 500;
        }
    }

    #[test]
    fn a_response_is_counted_by_all_that_its_record_says() {
        let deliveries = none();
        assert_eq!(shown(&deliveries), expected(&[]));
        let queued = now();
        let after = |millis| queued + Duration::from_millis(millis);
        let record = Record {
            started: Some(after(1)),
            first_block: Some(after(4)),
            finished: Some(after(44)),
            status: 404,
            body_bytes: 70,
            blocks: 3,
            drained: Some(after(144)),
            writes: 5,
            path: Path::Coalesced,
            waited: Duration::from_secs(190),
            usage: Some(Usage {
                cpu: Duration::from_millis(15),
                interpreter: Duration::ZERO,
                gc: Duration::from_millis(2),
            }),
            ending: Ending::ClientDisconnected,
            ..Record::new(queued)
        };
        deliveries.count(&record);
        assert_eq!(
            shown(&deliveries),
            expected(&[
                ("classes 4xx", 1),
                ("endings client-disconnected", 1),
                ("paths coalesced", 1),
                ("sizes body_bytes", 70),
                ("sizes blocks", 3),
                ("sizes writes", 5),
                ("calls 8.0", 1),
                ("queued 0.001007080078125", 1),
                ("queued sum_ns", 1_000_000),
                ("application 0.0030517578125", 1),
                ("application sum_ns", 3_000_000),
                ("iterating 0.0400390625", 1),
                ("iterating sum_ns", 40_000_000),
                ("blocked +Inf", 1),
                ("blocked sum_ns", 190_000_000_000),
                ("cpu 0.01513671875", 1),
                ("cpu sum_ns", 15_000_000),
                ("gc 0.00201416015625", 1),
                ("gc sum_ns", 2_000_000),
                ("total 0.14453125", 1),
                ("total sum_ns", 144_000_000),
            ])
        );
    }

    #[test]
    fn a_response_without_the_application_has_no_times() {
        let deliveries = none();
        let record =
            Record { status: 304, writes: 1, path: Path::OneWrite, ending: Ending::Complete, ..Record::new(now()) };
        for _ in 0..2 {
            deliveries.count(&record);
        }
        let counts = [
            ("classes 3xx", 2),
            ("endings complete", 2),
            ("paths one-write", 2),
            ("sizes writes", 2),
            ("calls 1.0", 2),
        ];
        assert_eq!(shown(&deliveries), expected(&counts));
    }

    #[test]
    fn every_status_ending_and_path_has_a_count() {
        for status in [0, 100, 200, 399, 500, 999] {
            for ending in ENDINGS {
                for path in PATHS {
                    let deliveries = none();
                    deliveries.count(&Record { status, ending, path, ..Record::new(now()) });
                    let class = super::CLASSES[usize::from(status / 100).min(5)];
                    let found = shown(&deliveries);
                    for name in [
                        format!("classes {class}"),
                        format!("endings {}", ending.name()),
                        format!("paths {}", path.name()),
                    ] {
                        assert_eq!(found.get(&name), Some(&1), "{name}");
                    }
                }
            }
        }
    }
}
