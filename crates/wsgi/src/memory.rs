//! Gives memory back soon: references to Python objects that threads without the interpreter have dropped, and what the
//! allocator keeps of large blocks.
//!
//! pyo3 keeps such references until a thread attaches, which a busy server does before each request and an idle one
//! never. And glibc keeps large blocks that were freed, once it has seen some. So one thread of the process waits until
//! something was dropped, lets more come for a moment, attaches and trims. Any thread reports to it.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use pyo3::ffi;
use pyo3::prelude::*;

/// Between the first dropped reference and its end.
const GATHER: Duration = Duration::from_millis(50);
/// Freed bytes that make a trim worth its while.
const WORTH: usize = 32 << 20;
/// Between two trims, each of which looks at the whole heap.
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
        let name = String::from("penstock-memory");
        result = std::thread::Builder::new().name(name).stack_size(256 * 1024).spawn(run).map(drop);
    });
    result
}

/// The last of our references to a Python object of `bytes` bytes was dropped by the calling thread.
pub(crate) fn dropped(bytes: usize) {
    // SAFETY: may be called by any thread.
    let attached = unsafe { ffi::PyGILState_Check() } != 0;
    if !attached && !WAITING.swap(true, Ordering::AcqRel) {
        tell();
    }
    freed(bytes);
}

/// So many bytes of memory were freed.
pub(crate) fn freed(bytes: usize) {
    let before = FREED.fetch_add(bytes, Ordering::AcqRel);
    if before < WORTH && before + bytes >= WORTH {
        tell();
    }
}

fn tell() {
    // With the lock, so that the thread is either before its look at the flags or already waits.
    drop(LOCK.lock().unwrap_or_else(PoisonError::into_inner));
    NEWS.notify_one();
}

fn run() {
    let mut trimmed: Option<Instant> = None;
    loop {
        await_news(trimmed);
        std::thread::sleep(GATHER);
        if WAITING.swap(false, Ordering::AcqRel) {
            // An interpreter that is going away frees all by itself.
            let _ = Python::try_attach(|_| ());
        }
        if FREED.load(Ordering::Acquire) >= WORTH && trimmed.is_none_or(|trimmed| trimmed.elapsed() >= TRIM_PAUSE) {
            FREED.store(0, Ordering::Release);
            trim();
            trimmed = Some(Instant::now());
        }
    }
}

/// Returns when references wait, or when a trim is due.
fn await_news(trimmed: Option<Instant>) {
    let mut guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    while !WAITING.load(Ordering::Acquire) {
        if FREED.load(Ordering::Acquire) < WORTH {
            guard = NEWS.wait(guard).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let pause = trimmed.map_or(Duration::ZERO, |trimmed| TRIM_PAUSE.saturating_sub(trimmed.elapsed()));
        if pause.is_zero() {
            return;
        }
        guard = NEWS.wait_timeout(guard, pause).unwrap_or_else(PoisonError::into_inner).0;
    }
}

#[cfg(target_env = "gnu")]
fn trim() {
    unsafe extern "C" {
        fn malloc_trim(pad: usize) -> c_int;
    }
    // SAFETY: a function of glibc that any thread may call at any time.
    unsafe { malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn trim() {}
