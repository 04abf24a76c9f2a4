//! What the request that runs on a thread uses: processor time, time that the server waited for the application's
//! interpreter, and pauses of its garbage collector.
//!
//! The kernel says how long a thread has run, but asking it takes 0.3 to 2 µs, as much as a short request. So a reading
//! stands for 250 µs, in which the thread is taken to run without a pause, and only a request that took longer asks at its
//! end. The error is at most that time.
//!
//! A thread whose requests run in greenlets says which of them it switches to. It waits only between them, so the time
//! from one switch to the next is processor time of the greenlet that had it.
//!
//! Each thread has its own figures.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// For how long a reading of the kernel's stands.
const VALID: Duration = Duration::from_micros(250);

/// Taking the interpreter takes less time than this if no other thread holds it.
const UNCONTENDED: Duration = Duration::from_micros(5);

/// Collections of garbage in this process.
static COLLECTIONS: AtomicU64 = AtomicU64::new(0);

/// What a request has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time of its thread, including that of `gc`.
    pub cpu: Duration,
    /// Time that the server waited for the interpreter, to begin the request or to go on with it.
    pub interpreter: Duration,
    /// Pauses of the garbage collector that began in its thread.
    pub gc: Duration,
}

impl fmt::Display for Usage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:.3} s of CPU time, ", self.cpu.as_secs_f64())?;
        for (time, of) in [(self.interpreter, "waiting for the GIL"), (self.gc, "collecting garbage")] {
            if time >= Duration::from_micros(500) {
                write!(formatter, "{:.3} s {of}, ", time.as_secs_f64())?;
            }
        }
        Ok(())
    }
}

/// What a thread had used when it took a request.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Of the thread, or of its greenlet.
    owner: usize,
    usage: Usage,
}

thread_local! {
    static METER: RefCell<Meter> = RefCell::new(Meter::default());
}

#[derive(Default)]
struct Meter {
    /// When the kernel was last asked.
    read: Option<Instant>,
    /// Since the thread began; `cpu` at `read`. With greenlets, of those that run no requests.
    usage: Usage,
    greenlets: Option<RequestGreenlets>,
}

/// The greenlets that run requests, by their addresses.
#[derive(Default)]
struct RequestGreenlets {
    /// The one that runs; 0: another.
    current: usize,
    since: Option<Instant>,
    usages: HashMap<usize, Usage>,
}

impl Meter {
    fn owner(&self) -> usize {
        let greenlet = self.greenlets.as_ref().map_or(0, |greenlets| greenlets.current);
        if greenlet == 0 { std::ptr::from_ref(self).addr() } else { greenlet }
    }

    /// The figures of what runs now.
    fn usage_mut(&mut self) -> &mut Usage {
        let Self { usage, greenlets, .. } = self;
        let found = greenlets.as_mut().and_then(|RequestGreenlets { current, usages, .. }| usages.get_mut(current));
        found.unwrap_or(usage)
    }

    /// The usage with the processor time until `now`. `is_exact`: the kernel is asked.
    fn usage_at(&mut self, now: Instant, is_exact: bool) -> Usage {
        if let Some(greenlets) = &self.greenlets {
            let since = greenlets.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
            let usage = *self.usage_mut();
            return Usage { cpu: usage.cpu + since, ..usage };
        }
        let since = self.read.map(|read| now.saturating_duration_since(read));
        if let Some(since) = since.filter(|since| *since <= VALID && !is_exact) {
            return Usage { cpu: self.usage.cpu + since, ..self.usage };
        }
        let time = clock_gettime(ClockId::ThreadCPUTime);
        self.usage.cpu = Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0));
        self.read = Some(now);
        self.usage
    }
}

/// The calling thread takes a request.
pub fn mark(now: Instant) -> Mark {
    METER.with_borrow_mut(|meter| Mark { owner: meter.owner(), usage: meter.usage_at(now, false) })
}

/// What the calling thread has used since it took a request at `began`. `None`: another thread or greenlet has taken it.
pub fn since(mark: &Mark, began: Instant, now: Instant) -> Option<Usage> {
    METER.with_borrow_mut(|meter| {
        if meter.owner() != mark.owner {
            return None;
        }
        let took = now.saturating_duration_since(began);
        let Usage { interpreter, gc, .. } = *meter.usage_mut();
        let cpu = meter.usage_at(now, took > VALID).cpu.saturating_sub(mark.usage.cpu).min(took);
        Some(Usage {
            cpu,
            interpreter: interpreter.saturating_sub(mark.usage.interpreter),
            gc: gc.saturating_sub(mark.usage.gc),
        })
    })
}

/// The server has waited for the interpreter on the calling thread.
pub fn add_interpreter(time: Duration) {
    if time < UNCONTENDED {
        return;
    }
    METER.with_borrow_mut(|meter| meter.usage_mut().interpreter += time);
}

/// The garbage collector has run on the calling thread.
pub fn add_gc(time: Duration) {
    COLLECTIONS.fetch_add(1, Ordering::Relaxed);
    // It also runs while a thread ends.
    let _ = METER.try_with(|meter| meter.borrow_mut().usage_mut().gc += time);
}

/// How often the garbage collector has run in this process.
pub fn collections() -> u64 {
    COLLECTIONS.load(Ordering::Relaxed)
}

/// The calling thread runs greenlets, and this one, at its address, from now on. Those that run requests are known by
/// [`begin_greenlet`].
pub fn switch_greenlet(to: usize, now: Instant) {
    METER.with_borrow_mut(|meter| {
        let Some(RequestGreenlets { current, since, usages }) = &mut meter.greenlets else { return };
        if let (Some(usage), Some(since)) = (usages.get_mut(current), *since) {
            usage.cpu += now.saturating_duration_since(since);
        }
        *current = if usages.contains_key(&to) { to } else { 0 };
        *since = Some(now);
    });
}

/// The greenlet that runs on the calling thread, at this address, runs requests from now on.
pub fn begin_greenlet(address: usize, now: Instant) {
    METER.with_borrow_mut(|meter| {
        let greenlets = meter.greenlets.get_or_insert_default();
        greenlets.usages.entry(address).or_default();
        if greenlets.current != address {
            (greenlets.current, greenlets.since) = (address, Some(now));
        }
    });
}

/// The greenlet at this address runs no more requests.
pub fn end_greenlet(address: usize) {
    METER.with_borrow_mut(|meter| {
        if let Some(greenlets) = &mut meter.greenlets {
            greenlets.usages.remove(&address);
        }
    });
}

/// Bytes of the process in memory, without those that it shares with others or with files. `None`: the kernel does not
/// say.
pub fn private_memory() -> Option<u64> {
    let mut buffer = [0; 128];
    // A whole text would take twice as many system calls.
    let length = File::open("/proc/self/statm").ok()?.read(&mut buffer).ok()?;
    let text = std::str::from_utf8(&buffer[..length]).ok()?;
    let mut pages = text.split(' ').skip(1).map(|field| field.parse::<u64>().ok());
    let (resident, shared) = (pages.next()??, pages.next()??);
    Some(resident.saturating_sub(shared) * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::{Duration, Instant};

    use super::{Mark, Usage, add_gc, add_interpreter, begin_greenlet, end_greenlet, mark, since, switch_greenlet};
    use crate::clock::now;

    const MS: Duration = Duration::from_millis(1);

    /// On a thread of its own, whose figures no other test has changed.
    fn on_a_thread(work: impl FnOnce() + Send + 'static) {
        std::thread::spawn(work).join().unwrap();
    }

    fn usage(mark: &Mark, began: Instant, now: Instant) -> Usage {
        since(mark, began, now).unwrap()
    }

    fn compute(time: Duration) {
        let begin = usage_of_thread();
        while usage_of_thread() - begin < time {}
    }

    fn usage_of_thread() -> Duration {
        let time = super::clock_gettime(super::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
    }

    #[test]
    fn computing_is_processor_time_and_waiting_is_not() {
        on_a_thread(|| {
            let began = now();
            let first = mark(began);
            compute(5 * MS);
            std::thread::sleep(30 * MS);
            let cpu = usage(&first, began, now()).cpu;
            // What the thread does besides takes far less than its pause.
            assert!(cpu >= 5 * MS && cpu < 30 * MS, "{cpu:?}");
            // The next request does not have the time of the one before.
            let began = now();
            let next = mark(began);
            std::thread::sleep(30 * MS);
            assert!(usage(&next, began, now()).cpu < 5 * MS);
        });
    }

    #[test]
    fn a_short_request_is_taken_to_compute_all_the_time_and_none_for_longer_than_it_takes() {
        on_a_thread(|| {
            let began = now();
            let mark = mark(began);
            let short = Duration::from_micros(20);
            assert_eq!(usage(&mark, began, began + short).cpu, short);
            compute(2 * MS);
            assert_eq!(usage(&mark, began, began + MS).cpu, MS);
        });
    }

    #[test]
    fn waits_and_collections_are_those_of_the_request_in_which_they_were() {
        on_a_thread(|| {
            add_gc(MS);
            let began = now();
            let mark = mark(began);
            add_interpreter(3 * MS);
            add_interpreter(Duration::from_nanos(900));
            add_gc(2 * MS);
            add_gc(5 * MS);
            let found = usage(&mark, began, began);
            assert_eq!((found.interpreter, found.gc), (3 * MS, 7 * MS));
        });
    }

    #[test]
    fn what_another_thread_has_used_is_not_known() {
        let began = now();
        let mark = mark(began);
        on_a_thread(move || assert_eq!(since(&mark, began, now()), None));
    }

    #[test]
    fn a_greenlet_uses_the_time_in_which_it_runs() {
        on_a_thread(|| {
            let began = now();
            let at = |millis: u32| began + millis * MS;
            begin_greenlet(1, at(0));
            let one = mark(at(0));
            // Another greenlet of the application, which runs no request.
            switch_greenlet(7, at(10));
            add_gc(MS);
            switch_greenlet(2, at(15));
            begin_greenlet(2, at(15));
            let two = mark(at(15));
            add_gc(2 * MS);
            assert_eq!(since(&one, began, at(16)), None, "the other one runs");
            switch_greenlet(1, at(20));
            assert_eq!(usage(&one, at(0), at(23)), Usage { cpu: 13 * MS, ..Usage::default() });
            switch_greenlet(2, at(30));
            assert_eq!(usage(&two, at(15), at(31)), Usage { cpu: 6 * MS, gc: 2 * MS, ..Usage::default() });
            end_greenlet(2);
            switch_greenlet(1, at(40));
            assert_eq!(usage(&one, at(0), at(40)).cpu, 20 * MS);
        });
    }
}
