//! Gives memory back soon: references to Python objects that threads without the interpreter have dropped, and what the
//! allocator keeps of large blocks.
//!
//! pyo3 keeps such references until a thread attaches. A busy server attaches before each request, an idle one never.
//! And glibc keeps blocks that were freed. So one thread of the process waits until something was dropped, waits a
//! moment for more, attaches and trims. Any thread reports to it.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tailrace_server::{allocator, catch, clock, write_stderr};

use crate::ffi::thread;

/// Between the first report and the attaching.
const GATHER: Duration = Duration::from_millis(50);
/// A trim is made for at least so many freed bytes. After 60 clients left that had 20 MiB each waiting, 120 MiB are
/// resident with it and 500 without; after 120 with 2 MB in small blocks, 25 and 224.
const WORTH: usize = 32 << 20;
/// As `WORTH`, when the last trim was just before: while much is freed, the rest of it is less than `WORTH`.
const WORTH_AFTER: usize = 4 << 20;
/// The time between two trims. Each walks the whole heap.
const TRIM_PAUSE: Duration = Duration::from_secs(2);

static STARTED: Once = Once::new();
/// References wait for somebody to attach.
static WAITING: AtomicBool = AtomicBool::new(false);
/// Bytes freed since the last trim.
static FREED: AtomicUsize = AtomicUsize::new(0);
static LOCK: Mutex<()> = Mutex::new(());
static NEWS: Condvar = Condvar::new();

/// Starts the thread, once in a process.
///
/// # Errors
/// No thread can be started.
pub(crate) fn start() -> io::Result<()> {
    let mut result = Ok(());
    STARTED.call_once(|| {
        let name = String::from("tailrace-memory");
        result = std::thread::Builder::new().name(name).stack_size(256 * 1024).spawn(run).map(drop);
    });
    result
}

/// The last of our references to a Python object of `bytes` bytes was dropped by the calling thread.
pub(crate) fn dropped(bytes: usize) {
    if !thread::is_attached() && !WAITING.swap(true, Ordering::AcqRel) {
        notify();
    }
    freed(bytes);
}

/// So many bytes of memory were freed.
pub(crate) fn freed(bytes: usize) {
    let before = FREED.fetch_add(bytes, Ordering::AcqRel);
    if before < WORTH && before + bytes >= WORTH {
        notify();
    }
}

fn notify() {
    // With the lock: the thread is either before its look at the flags, or waits already.
    drop(LOCK.lock().unwrap_or_else(PoisonError::into_inner));
    NEWS.notify_one();
}

fn run() {
    let mut trimmed: Option<Instant> = None;
    loop {
        await_news(trimmed);
        std::thread::sleep(GATHER);
        if WAITING.swap(false, Ordering::AcqRel) {
            // An interpreter that is going away frees everything by itself. `__del__` of the objects may run, and
            // panic, here.
            if let Err(panic) = catch(|| Python::try_attach(|_| ())) {
                write_stderr(&format!("memory was not given back: a panic: {panic}"));
            }
        }
        let worth = if trimmed.is_some() { WORTH_AFTER } else { WORTH };
        let is_due = trimmed.is_none_or(|trimmed| clock::since(trimmed) >= TRIM_PAUSE);
        if is_due && FREED.load(Ordering::Acquire) >= worth {
            FREED.store(0, Ordering::Release);
            allocator::trim();
            trimmed = Some(clock::now());
        } else if is_due {
            trimmed = None;
        }
    }
}

/// Returns when references wait, when a trim is due, or when the pause after the last one is over.
fn await_news(trimmed: Option<Instant>) {
    let mut guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    while !WAITING.load(Ordering::Acquire) {
        let Some(trimmed) = trimmed else {
            if FREED.load(Ordering::Acquire) >= WORTH {
                return;
            }
            guard = NEWS.wait(guard).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let pause = TRIM_PAUSE.saturating_sub(clock::since(trimmed));
        if pause.is_zero() {
            return;
        }
        guard = NEWS.wait_timeout(guard, pause).unwrap_or_else(PoisonError::into_inner).0;
    }
}
