//! Whether a server runs, drains or has ended.
//!
//! Any thread asks and asks it to stop; the thread that leads the loop drains and ends it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::timers::{Millis, NEVER};
use crate::{lock, wait_for};

const RUNNING: u8 = 0;
const DRAINING: u8 = 1;
const ENDED: u8 = 2;

/// See the module.
pub(crate) struct Phase {
    state: AtomicU8,
    stop_by: AtomicU64,
    swept: AtomicBool,
    over: Mutex<bool>,
    news: Condvar,
}

impl Phase {
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU8::new(RUNNING),
            stop_by: AtomicU64::new(NEVER),
            swept: AtomicBool::new(false),
            over: Mutex::new(false),
            news: Condvar::new(),
        }
    }

    /// Begins to drain, until `by` at most. May be called again with an earlier time.
    pub(crate) fn stop(&self, by: Millis) {
        self.stop_by.fetch_min(by, Ordering::AcqRel);
        // What has ended stays so.
        let _ = self.state.compare_exchange(RUNNING, DRAINING, Ordering::AcqRel, Ordering::Acquire);
    }

    /// True until [`Phase::stop`].
    pub(crate) fn is_running(&self) -> bool {
        self.state.load(Ordering::Acquire) == RUNNING
    }

    /// True after [`Phase::end`].
    pub(crate) fn has_ended(&self) -> bool {
        self.state.load(Ordering::Acquire) == ENDED
    }

    /// True when the time for draining is over.
    pub(crate) fn is_overdue(&self, now: Millis) -> bool {
        now >= self.stop_by.load(Ordering::Acquire)
    }

    /// How long may still be drained.
    pub(crate) fn left(&self, now: Millis) -> Duration {
        Duration::from_millis(self.stop_by.load(Ordering::Acquire).saturating_sub(now))
    }

    /// True for the first caller: it sweeps what is idle.
    pub(crate) fn begins_to_drain(&self) -> bool {
        !self.swept.swap(true, Ordering::AcqRel)
    }

    /// Ends. True for the first caller, who cleans up and calls [`Phase::is_over`].
    pub(crate) fn end(&self) -> bool {
        self.state.swap(ENDED, Ordering::AcqRel) != ENDED
    }

    /// All is cleaned up.
    pub(crate) fn is_over(&self) {
        *lock(&self.over) = true;
        self.news.notify_all();
    }

    /// Waits until all is cleaned up. False: the time ran out before.
    pub(crate) fn join(&self, timeout: Option<Duration>) -> bool {
        let mut over = lock(&self.over);
        let until = timeout.and_then(|time| Instant::now().checked_add(time));
        while !*over {
            let left = match until {
                None => Duration::from_secs(3600),
                Some(until) => until.saturating_duration_since(Instant::now()),
            };
            if left.is_zero() {
                return false;
            }
            over = wait_for(&self.news, over, left).0;
        }
        true
    }
}
