//! The exceptions of `tailrace` that this crate raises, and those by which a signal interrupts.

use pyo3::exceptions::{PyBaseException, PyKeyboardInterrupt, PyOSError, PySystemError, PySystemExit};
use pyo3::prelude::*;

pyo3::create_exception!(
    tailrace,
    ClientDisconnected,
    PyOSError,
    "The client has gone: nothing more can be read from it or written to it."
);

pyo3::create_exception!(
    tailrace,
    RequestBodyError,
    PyOSError,
    "The request body is malformed, too large or too slow; `status` is the status of the response to it."
);

pyo3::create_exception!(
    tailrace,
    RequestTimeout,
    PyBaseException,
    "The request has taken longer than its deadline: its client was answered 504. Like SystemExit it is no Exception, so that \
     the request ends and is not tried again."
);

/// True for what a handler of SIGINT raises: KeyboardInterrupt, or SystemExit where a debugger would catch that. Where
/// two signals come at once, Python's reading of a line calls the second handler with the first one's exception set,
/// and makes a SystemError of it.
pub(crate) fn is_interruption(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyKeyboardInterrupt>(py)
        || error.is_instance_of::<PySystemExit>(py)
        || (error.is_instance_of::<PySystemError>(py)
            && error.cause(py).is_some_and(|cause| is_interruption(py, &cause)))
}
