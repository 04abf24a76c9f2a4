//! Returns memory to the system soon: Python objects whose last reference was dropped by an unattached thread, and
//! freed blocks that the allocator keeps.
//!
//! pyo3 keeps such references until a thread attaches. A busy server attaches before each request, an idle one never
//! does. Likewise, glibc keeps freed blocks. Therefore one thread of the process waits until something is dropped,
//! waits [`GATHER`] for more, attaches, and trims the heap. Any thread reports to it.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tailrace_os::panics::{catch, write_stderr};
use tailrace_os::{allocator, clock};

use crate::ffi::thread;

/// Time between the first report and the attaching.
const GATHER: Duration = Duration::from_millis(50);
/// Minimum number of freed bytes for a trim. 4 s after 60 clients with 20 MiB of pending data each disconnected, 120
/// MiB are resident with trims and 500 MiB without; after 120 clients with 2 MB in small blocks each, 25 and 224 MiB.
const WORTH: usize = 32 << 20;
/// The minimum shortly after a trim: the last part of a large amount may be smaller than `WORTH`.
const WORTH_AFTER: usize = 4 << 20;
/// Shortest and longest pause between two trims.
const TRIM_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// The pause is this many times the duration of the last trim, which walks the whole heap.
const PAUSES: u32 = 20;

/// The thread runs.
static RUNS: Mutex<bool> = Mutex::new(false);
/// References wait until a thread attaches.
static WAITING: AtomicBool = AtomicBool::new(false);
/// Bytes freed since the last trim.
static FREED: AtomicUsize = AtomicUsize::new(0);
static LOCK: Mutex<()> = Mutex::new(());
static NEWS: Condvar = Condvar::new();

/// Starts the thread, if it does not run.
///
/// # Errors
/// No thread can be started.
pub(crate) fn start() -> io::Result<()> {
    let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    if !*runs {
        std::thread::Builder::new().name(String::from("tailrace-memory")).stack_size(256 * 1024).spawn(run)?;
        *runs = true;
    }
    Ok(())
}

/// Waits until there is memory for a native thread to attach. The thread calls it before it attaches.
pub(crate) fn await_attaching() {
    while !thread::has_memory_to_attach() {
        std::thread::sleep(GATHER);
    }
}

/// The last of our references to a Python object of `bytes` bytes was dropped by the calling thread.
pub(crate) fn dropped(bytes: usize) {
    if !thread::is_attached() && !WAITING.swap(true, Ordering::AcqRel) {
        notify();
    }
    freed(bytes);
}

/// Reports that this many bytes of memory were freed.
pub(crate) fn freed(bytes: usize) {
    let before = FREED.fetch_add(bytes, Ordering::AcqRel);
    if before < WORTH && before + bytes >= WORTH {
        notify();
    }
}

fn notify() {
    // With the lock held: the thread either has not checked the flags yet, or is already waiting.
    drop(LOCK.lock().unwrap_or_else(PoisonError::into_inner));
    NEWS.notify_one();
}

fn run() {
    // When the pause after the last trim ends; `None`: there was none lately.
    let mut pause: Option<Instant> = None;
    loop {
        await_news(pause);
        std::thread::sleep(GATHER);
        if WAITING.swap(false, Ordering::AcqRel) {
            await_attaching();
            // An interpreter that is being finalized frees everything by itself. `__del__` of the objects may run
            // here, and panic.
            if let Err(panic) = catch(|| Python::try_attach(|_| ())) {
                write_stderr(&format!("memory was not returned to the system because of a panic: {panic}"));
            }
        }
        let worth = if pause.is_some() { WORTH_AFTER } else { WORTH };
        let begun = clock::now();
        let is_due = pause.is_none_or(|end| begun >= end);
        if is_due && FREED.load(Ordering::Acquire) >= worth {
            FREED.store(0, Ordering::Release);
            allocator::trim();
            pause = Some(clock::now() + (clock::since(begun) * PAUSES).clamp(TRIM_PAUSE.0, TRIM_PAUSE.1));
        } else if is_due {
            pause = None;
        }
    }
}

/// Returns when references wait, when a trim is due, or at the end of the pause after the last one.
fn await_news(pause: Option<Instant>) {
    let mut guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    while !WAITING.load(Ordering::Acquire) {
        let Some(end) = pause else {
            if FREED.load(Ordering::Acquire) >= WORTH {
                return;
            }
            guard = NEWS.wait(guard).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let left = end.saturating_duration_since(clock::now());
        if left.is_zero() {
            return;
        }
        guard = NEWS.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}
