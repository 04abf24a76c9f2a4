//! Which endpoints make the process grow: measures its memory between requests.
//!
//! A window ends when the process has grown by more than the allocator can hide, or after a second. The allocator fills
//! existing gaps before it asks the kernel for memory. In short windows, the process would therefore grow with requests
//! that briefly need much memory, not with those that keep it. If possible, a window ends while no request runs, so
//! that all memory that requests have freed is free. The growth is divided among the endpoints of the requests that
//! ended in the window, see `attribution.rs`. A measurement takes some microseconds and happens at most every
//! `INTERVAL`. Any thread that runs requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tailrace_os::clock::Millis;
use tailrace_os::usage::private_memory;

use crate::endpoints::EndpointTable;

/// Least time between two measurements, in milliseconds.
const INTERVAL: Millis = 5;
/// Maximum wait for a moment without running requests, in milliseconds.
const LONGEST: Millis = 200;
/// Length of a window in which the process grows little, in milliseconds.
const WINDOW: Millis = 1_000;
/// Growth that ends a window, in bytes.
const MUCH: u64 = 4 << 20;

/// The growth of the memory of this process, and the endpoints to which it is attributed.
pub struct Growth {
    endpoints: Arc<EndpointTable>,
    /// When to look next.
    due: AtomicU64,
    window: Mutex<Window>,
}

#[derive(Default)]
struct Window {
    began: Millis,
    /// The memory at that time.
    before: Option<u64>,
    /// Time of the last measurement.
    measured: Millis,
}

impl Growth {
    /// The growth caused by these endpoints.
    pub fn new(endpoints: Arc<EndpointTable>) -> Self {
        Self { endpoints, due: AtomicU64::new(0), window: Mutex::default() }
    }

    /// A request has ended, and what it has allocated is free. `is_idle`: no request runs.
    #[inline]
    pub fn request_ended(&self, now: Millis, is_idle: impl FnOnce() -> bool) {
        if now >= self.due.load(Ordering::Relaxed) {
            self.look(now, is_idle());
        }
    }

    #[cold]
    fn look(&self, now: Millis, is_idle: bool) {
        // Another thread does the same.
        let Ok(mut window) = self.window.try_lock() else { return };
        if !is_idle && now.saturating_sub(window.measured) < LONGEST {
            self.due.store(now + 1, Ordering::Relaxed);
            return;
        }
        self.due.store(now + INTERVAL, Ordering::Relaxed);
        let Some(memory) = private_memory() else { return };
        window.measured = now;
        if let Some(before) = window.before {
            if now.saturating_sub(window.began) < WINDOW && memory.abs_diff(before) < MUCH {
                return;
            }
            self.endpoints.note_growth(memory as i64 - before as i64);
        }
        (window.began, window.before) = (now, Some(memory));
    }
}
