//! The logger `tailrace.error`: lines with tracebacks from attached threads, and lines from I/O threads.
//!
//! I/O threads must not wait for the interpreter in order to log. Their lines go through a bounded channel to a logging
//! thread, which is started with the first line. If the channel is full, lines are dropped.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use tailrace_observe::level::Level;
use tailrace_os::panics::{catch, write_stderr};

use crate::ffi;
use crate::python::exceptions::is_interruption;
use crate::python::late_thread::LateThread;
use crate::python::memory;

/// Lines that wait for the interpreter.
const WAITING_LINES: usize = 256;

static LOGGER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn logger(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    LOGGER
        .get_or_try_init(py, || Ok(py.import("logging")?.call_method1("getLogger", ("tailrace.error",))?.unbind()))
        .map(|logger| logger.bind(py))
}

/// Gets the logger now, so that no import is needed later.
pub(crate) fn prepare(py: Python<'_>) -> PyResult<()> {
    logger(py).map(drop)
}

/// Logs a line, and the traceback of `error`. Never fails: an exception that logging itself raises is shown as
/// unraisable, and a panic is reported on standard error.
pub(crate) fn log(py: Python<'_>, level: Level, message: &str, error: Option<&PyErr>) {
    let logged = || -> PyResult<()> {
        let method = match level {
            Level::Debug => "debug",
            Level::Warning => "warning",
            Level::Error => "error",
        };
        let details = PyDict::new(py);
        if let Some(error) = error {
            details.set_item("exc_info", (error.get_type(py), error.value(py), error.traceback(py)))?;
        }
        // Without arguments, logging does not format: percent signs of a request target stay. Error trackers group by
        // the message before formatting, which "%s" would be for every entry.
        logger(py)?.call_method(method, (message,), Some(&details)).map(drop)
    };
    match catch(logged) {
        Ok(Ok(())) => {}
        // Ctrl-C interrupted the logging itself: the signal is set again, and raises in the application's own code.
        Ok(Err(fault)) if is_interruption(py, &fault) => ffi::thread::interrupt_main(),
        Ok(Err(fault)) => fault.write_unraisable(py, None),
        // Without memory, pyo3 panics when CPython returns no object.
        Err(panic) => {
            ffi::thread::clear_exception(py);
            write_stderr(&format!("{message} (not logged because of a panic: {panic})"));
        }
    }
}

/// Lines from threads that are not attached to the interpreter.
#[derive(Default)]
pub(crate) struct LogQueue {
    thread: LateThread<SyncSender<(Level, String)>>,
    /// Lines that were sent and not logged yet.
    waiting: Arc<(Mutex<usize>, Condvar)>,
}

impl LogQueue {
    /// Hands a line to the logging thread; does not wait.
    pub(crate) fn send(&self, level: Level, message: &str) {
        let start = || {
            let (sender, receiver) = sync_channel::<(Level, String)>(WAITING_LINES);
            let waiting = Arc::clone(&self.waiting);
            thread::Builder::new().name(String::from("tailrace-log")).spawn(move || {
                while let Ok((level, message)) = receiver.recv() {
                    memory::await_attaching();
                    match catch(|| Python::try_attach(|py| log(py, level, &message, None))) {
                        Ok(Some(())) => {}
                        Ok(None) => return,
                        Err(panic) => write_stderr(&format!("a panic while this line was logged: {message}: {panic}")),
                    }
                    *count(&waiting) -= 1;
                    waiting.1.notify_all();
                }
            })?;
            Ok(sender)
        };
        let mut waiting = count(&self.waiting);
        let send = |sender: &SyncSender<_>| sender.try_send((level, message.to_owned())).is_ok();
        let without = "such lines of the log are written to standard error";
        match self.thread.send(start, send, without, write_stderr) {
            Some(is_sent) => *waiting += usize::from(is_sent),
            None => write_stderr(message),
        }
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.thread.end();
    }

    /// Waits until what was sent has been logged, for at most `time`. Not with the interpreter held.
    pub(crate) fn flush(&self, time: Duration) {
        let waiting = count(&self.waiting);
        // A thread that has held the interpreter for so long will hold it longer.
        drop(self.waiting.1.wait_timeout_while(waiting, time, |waiting| *waiting > 0));
    }
}

fn count(waiting: &(Mutex<usize>, Condvar)) -> MutexGuard<'_, usize> {
    waiting.0.lock().unwrap_or_else(PoisonError::into_inner)
}
