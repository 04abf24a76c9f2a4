//! Processes that the application forks. A child that returns from the application exits, because its parent responds
//! to the request.
//!
//! A child has only the thread that forked, attached. If that thread runs greenlets, the child also has the other
//! greenlets, whose requests belong to the parent: they end without sending anything, and only the greenlet that forked
//! ends the process.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tailrace_os::process::{Process, end_process};

/// In a child: the greenlet that forked it. Only attached threads take the lock, and none releases the interpreter
/// while it holds the lock.
static FORKER: Mutex<Option<Py<PyAny>>> = Mutex::new(None);

/// In a child, before anything else runs there: records the greenlet that forked it.
pub(crate) fn forked_in(greenlet: Py<PyAny>) {
    let before = FORKER.lock().unwrap_or_else(PoisonError::into_inner).replace(greenlet);
    drop(before);
}

/// Called after the application's code: if that code has forked and this is the child, the process ends here.
#[inline]
pub(crate) fn end_child<T>(py: Python<'_>, began: Process, result: &PyResult<T>) {
    if !began.is_here() {
        end(py, result.as_ref().err());
    }
}

#[cold]
fn end(py: Python<'_>, error: Option<&PyErr>) {
    if is_another_greenlet(py) {
        return;
    }
    let left = (|| -> PyResult<()> {
        // The exception object with its traceback, which pyo3 keeps separately.
        let error = error.map(|error| error.clone_ref(py).into_value(py));
        py.import("tailrace.system.forks")?.call_method1("leave", (error,)).map(drop)
    })();
    if let Err(fault) = left {
        fault.write_unraisable(py, None);
    }
    end_process(1)
}

/// True in a greenlet that did not fork this child. False if no server runs greenlets: then the forker is not recorded.
fn is_another_greenlet(py: Python<'_>) -> bool {
    let forker = FORKER.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(forker) = forker.as_ref() else { return false };
    let here = py.import("greenlet").and_then(|module| module.call_method0("getcurrent"));
    // When the greenlet that forked has ended, the next one that returns ends the process.
    let has_ended = forker.bind(py).getattr("dead").and_then(|dead| dead.is_truthy()).unwrap_or(false);
    !has_ended && here.is_ok_and(|here| !here.is(forker))
}

/// The exception for a child that uses what belongs to the connection.
pub(crate) fn used_in_child(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!(
        "{what} was used in a process that the application has forked: its parent alone responds to the request"
    ))
}
