//! Time: the clock of a server, and functions for readings that belong to no server.
//!
//! Every reading of the time in this crate goes through this file. A server has one `Clock`, so that a test can move it
//! ahead of real time and see what the server does at a deadline without waiting for it. The functions are for places
//! that the servers of a process, or several processes, share: no test moves their clock.
//!
//! Any thread. There is no lock: a reading is one number.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since a server's clock began. [`NEVER`] is no moment.
pub type Millis = u64;
/// No moment: a deadline that never comes.
pub const NEVER: Millis = u64::MAX;

/// Now, for code that belongs to no server.
#[inline]
pub fn now() -> Instant {
    Instant::now()
}

/// The time since a moment, by a new reading.
#[inline]
pub fn since(moment: Instant) -> Duration {
    moment.elapsed()
}

/// The date and time of day, which an operator or NTP may set back.
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// Now, in nanoseconds of the clock that all processes of a machine share (CLOCK_MONOTONIC).
pub fn monotonic_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Now, in milliseconds of the same clock.
pub fn monotonic_millis() -> u64 {
    monotonic_nanos() / 1_000_000
}

/// The time since a moment of the wall clock, in seconds and nanoseconds since 1970. `None`: the moment is in the
/// future.
pub fn since_wall(seconds: i64, nanoseconds: u32) -> Option<Duration> {
    let moment = SystemTime::UNIX_EPOCH.checked_add(Duration::new(u64::try_from(seconds).ok()?, nanoseconds))?;
    wall().duration_since(moment).ok()
}

/// Now, in whole seconds since 1970.
pub fn wall_seconds() -> u64 {
    wall().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Blocks the calling thread for this time.
pub fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// A duration as milliseconds, rounded up.
pub fn millis(time: Duration) -> Millis {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(NEVER / 2)
}

/// A duration as nanoseconds.
#[inline]
pub fn nanos(time: Duration) -> u64 {
    time.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(time.subsec_nanos()))
}

/// The clock of one server. Reading the time costs as much as parsing a field line, so related work shares one reading:
/// the loop takes one after each wait, and a response takes one when it ends.
pub struct Clock {
    began: Instant,
    /// `began` on the clock that all processes share.
    began_monotonic: u64,
    /// The latest reading, in nanoseconds since `began`.
    recent: AtomicU64,
    /// Nanoseconds that a test has added to the real time.
    added: AtomicU64,
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// A clock that begins now.
    pub fn new() -> Self {
        Self { began: now(), began_monotonic: monotonic_nanos(), recent: AtomicU64::new(0), added: AtomicU64::new(0) }
    }

    /// Takes a reading.
    pub fn read(&self) -> Instant {
        let now = self.peek();
        self.recent.store(nanos(now.saturating_duration_since(self.began)), Ordering::Release);
        now
    }

    /// Takes a reading, in milliseconds.
    pub fn now(&self) -> Millis {
        self.read();
        self.recent_millis()
    }

    /// A reading that is not shared: [`Clock::recent`] does not change.
    pub fn peek(&self) -> Instant {
        match self.added.load(Ordering::Relaxed) {
            0 => now(),
            added => now() + Duration::from_nanos(added),
        }
    }

    /// The latest reading as one number, from which both the moment and the milliseconds can be had.
    pub fn reading(&self) -> Reading {
        Reading { began: self.began, nanos: self.recent.load(Ordering::Acquire) }
    }

    /// The latest reading. It may be as old as the calling thread's current piece of work.
    pub fn recent(&self) -> Instant {
        self.began + Duration::from_nanos(self.recent.load(Ordering::Acquire))
    }

    /// The latest reading, in milliseconds.
    pub fn recent_millis(&self) -> Millis {
        self.recent.load(Ordering::Acquire) / 1_000_000
    }

    /// The time since a reading of this clock, by a new reading.
    pub fn since(&self, moment: Instant) -> Duration {
        self.read().saturating_duration_since(moment)
    }

    /// A moment in milliseconds, rounded up.
    pub fn millis_of(&self, moment: Instant) -> Millis {
        millis(moment.saturating_duration_since(self.began))
    }

    /// A moment in nanoseconds of the clock that all processes share, see [`monotonic_nanos`].
    pub fn monotonic_of(&self, moment: Instant) -> u64 {
        self.began_monotonic.saturating_add(nanos(moment.saturating_duration_since(self.began)))
    }

    /// The moment of a number of nanoseconds of the clock that all processes share.
    pub fn moment_of(&self, monotonic: u64) -> Instant {
        self.began + Duration::from_nanos(monotonic.saturating_sub(self.began_monotonic))
    }

    /// From the next reading on, the clock is ahead of real time by this additional duration. Deadlines within that
    /// time pass at once, when the thread that polls reads the clock. For tests.
    pub fn advance(&self, time: Duration) {
        self.added.fetch_add(nanos(time), Ordering::Relaxed);
    }
}

/// A reading of a server's clock.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    began: Instant,
    /// Since the clock began.
    nanos: u64,
}

impl Reading {
    /// The moment.
    #[inline]
    pub fn moment(self) -> Instant {
        self.began + Duration::from_nanos(self.nanos)
    }

    /// Milliseconds since the clock began.
    #[inline]
    pub fn millis(self) -> Millis {
        self.nanos / 1_000_000
    }

    /// This moment by the wall clock, as time since 1970. That clock is read once a second, so a step of it takes
    /// effect within that time.
    pub fn since_1970(self) -> Duration {
        WALL.with(|wall| {
            let (at, since) = wall.get().unwrap_or((self.moment(), Duration::ZERO));
            match self.moment().checked_duration_since(at) {
                Some(after) if after < Duration::from_secs(1) && !since.is_zero() => since + after,
                _ => {
                    let since = self::wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                    wall.set(Some((self.moment(), since)));
                    since
                }
            }
        })
    }
}

thread_local! {
    /// A moment, and the wall clock then.
    static WALL: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
}

/// The processor time that all threads of this process had used at a moment.
///
/// It distinguishes an application that waits (for a database, a lock, the clock) from one that computes, which the
/// interpreter lock alone cannot: both occupy a thread. It is measured against real time, which no test moves.
pub struct Load {
    at: Instant,
    used: Duration,
}

impl Load {
    /// At this moment.
    pub fn now() -> Self {
        Self { at: now(), used: processor_time() }
    }

    /// True when this long ago, or longer.
    pub fn is_older_than(&self, time: Duration) -> bool {
        now().saturating_duration_since(self.at) >= time
    }

    /// True when the process has used less than half a processor since.
    pub fn was_idle(&self) -> bool {
        processor_time().saturating_sub(self.used) * 2 < now().saturating_duration_since(self.at)
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The value of the `Date` field, formatted once a second.
struct DateCache {
    until: Option<Instant>,
    text: [u8; 29],
}

impl DateCache {
    /// An empty cache.
    const fn new() -> Self {
        Self { until: None, text: [b' '; 29] }
    }

    /// The IMF-fixdate of `now` (RFC 9110 section 5.6.7).
    fn at(&mut self, now: Instant) -> &[u8; 29] {
        if self.until.is_none_or(|until| now >= until) {
            let wall = wall();
            let since = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let text = httpdate::fmt_http_date(wall);
            if let Ok(bytes) = <[u8; 29]>::try_from(text.as_bytes()) {
                self.text = bytes;
            }
            let rest = Duration::from_secs(1).saturating_sub(Duration::from_nanos(since.subsec_nanos().into()));
            self.until = Some(now + rest);
        }
        &self.text
    }
}

thread_local! {
    static DATE: RefCell<DateCache> = const { RefCell::new(DateCache::new()) };
}

/// Runs `work` with the 29 bytes of the `Date` field of `now`.
pub fn with_date<T>(now: Instant, work: impl FnOnce(&[u8]) -> T) -> T {
    DATE.with_borrow_mut(|date| work(date.at(now)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Clock, DateCache, Load, NEVER, millis, monotonic_nanos, now, wall};
    use std::time::{Duration, SystemTime};

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_reading_is_remembered_until_the_next_one() {
        let clock = Clock::new();
        let read = clock.read();
        assert_eq!(clock.recent(), read);
        assert_eq!(clock.recent(), read);
        assert_eq!(clock.recent_millis(), u64::try_from((read - clock.began).as_millis()).unwrap());
        assert!(clock.read() >= read);
        assert!(clock.now() >= clock.millis_of(read) - 1);
    }

    #[test]
    fn an_advance_counts_from_the_next_reading_on_and_for_one_clock_alone() {
        let (clock, other) = (Clock::new(), Clock::new());
        let before = clock.read();
        clock.advance(HOUR);
        assert_eq!(clock.recent(), before);
        assert!(clock.since(before) >= HOUR);
        clock.advance(HOUR);
        assert!(clock.read() - before >= 2 * HOUR);
        assert!(clock.now() >= millis(2 * HOUR));
        assert!(other.now() < millis(HOUR));
        assert!(now() < clock.recent());
    }

    #[test]
    fn a_moment_goes_to_the_clock_of_all_processes_and_back() {
        let clock = Clock::new();
        let moment = clock.read();
        let shared = clock.monotonic_of(moment);
        assert_eq!(clock.moment_of(shared), moment);
        assert!(monotonic_nanos().abs_diff(shared) < 60_000_000_000);
        // Before the clock began.
        assert_eq!(clock.moment_of(0), clock.began);
    }

    #[test]
    fn milliseconds_are_rounded_up_and_never_too_many() {
        assert_eq!(millis(Duration::ZERO), 0);
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_millis(7)), 7);
        assert_eq!(millis(Duration::from_nanos(7_000_001)), 8);
        assert!(millis(Duration::MAX) < NEVER);
    }

    #[test]
    fn a_process_that_sleeps_is_idle() {
        // Other tests of this process compute at the same time.
        let alone = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "clock::tests::this_process_sleeps_and_is_idle"])
            .output()
            .unwrap();
        assert!(alone.status.success() && alone.stdout.windows(9).any(|said| said == b" 1 passed"), "{alone:?}");
    }

    #[test]
    #[ignore = "run alone by the one above"]
    fn this_process_sleeps_and_is_idle() {
        let idle = (0..50).any(|_| {
            let load = Load::now();
            std::thread::sleep(Duration::from_millis(20));
            load.was_idle()
        });
        assert!(idle);
    }

    #[test]
    fn a_process_that_computes_is_not() {
        // The processor may be taken away meanwhile; one busy look in five seconds is enough.
        let busy = (0..500).any(|_| {
            let load = Load::now();
            let until = now() + Duration::from_millis(10);
            while now() < until {}
            !load.was_idle()
        });
        assert!(busy);
    }

    #[test]
    fn the_date_is_kept_until_the_second_is_over() {
        let mut cache = DateCache::new();
        let now = now();
        let before = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds(wall()));
        let text = *cache.at(now);
        let date = httpdate::parse_http_date(std::str::from_utf8(&text).unwrap()).unwrap();
        assert!(before <= date && date <= wall(), "{date:?}");
        let until = cache.until.unwrap();
        assert!(until > now && until <= now + Duration::from_secs(1));
        // Within the second, the text is not formatted again.
        cache.text = [b'x'; 29];
        assert_eq!(cache.at(now), &[b'x'; 29]);
        assert_ne!(cache.at(until), &[b'x'; 29]);
    }

    fn seconds(time: SystemTime) -> u64 {
        time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
    }
}
