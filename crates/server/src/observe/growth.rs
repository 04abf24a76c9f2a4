//! Which endpoints make the process grow: measures its memory between requests.
//!
//! A window ends when no request runs, so that everything that a request has freed is free, or after a while. Its growth
//! is divided among the endpoints of the requests that have ended in it, see `attribution.rs`. Measuring takes
//! some microseconds, which is done at most every [`INTERVAL`]. Any thread that runs requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::observe::endpoints::EndpointTable;
use crate::os::clock::Millis;
use crate::os::usage::private_memory;

/// Least time between two measurements, in milliseconds.
const INTERVAL: Millis = 5;
/// How long to wait for a moment in which no request runs, in milliseconds. Later windows would be too few for a busy
/// worker; shorter ones end before the requests that have allocated.
const LONGEST: Millis = 200;

/// See the module.
pub(crate) struct Growth {
    endpoints: Arc<EndpointTable>,
    /// When to look next.
    due: AtomicU64,
    /// When the window began, and the memory at that time.
    window: Mutex<(Millis, Option<u64>)>,
}

impl Growth {
    pub(crate) fn new(endpoints: Arc<EndpointTable>) -> Self {
        Self { endpoints, due: AtomicU64::new(0), window: Mutex::new((0, None)) }
    }

    /// A request has ended, and what it has allocated is free. `is_idle`: no request runs.
    #[inline]
    pub(crate) fn request_ended(&self, now: Millis, is_idle: impl FnOnce() -> bool) {
        if now >= self.due.load(Ordering::Relaxed) {
            self.look(now, is_idle());
        }
    }

    #[cold]
    fn look(&self, now: Millis, is_idle: bool) {
        // Another thread does the same.
        let Ok(mut window) = self.window.try_lock() else { return };
        let (began, before) = *window;
        if !is_idle && now.saturating_sub(began) < LONGEST {
            self.due.store(now + 1, Ordering::Relaxed);
            return;
        }
        self.due.store(now + INTERVAL, Ordering::Relaxed);
        let Some(memory) = private_memory() else { return };
        *window = (now, Some(memory));
        if let Some(before) = before {
            self.endpoints.note_growth(memory as i64 - before as i64);
        }
    }
}
