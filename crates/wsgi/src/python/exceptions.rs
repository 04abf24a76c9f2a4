//! The exceptions of `tailrace` that this crate raises, and those by which a signal interrupts Python code.

use std::io;

use pyo3::exceptions::{PyBaseException, PyKeyboardInterrupt, PyOSError, PySystemError, PySystemExit};
use pyo3::prelude::*;

pyo3::create_exception!(
    tailrace,
    ClientDisconnected,
    PyOSError,
    "The client has disconnected: nothing more can be read from it or sent to it."
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
    "The request has taken longer than its deadline, and the client was sent 504. Like SystemExit it is not a subclass \
     of Exception, so that `except Exception` does not catch it."
);

/// An error of the system with its number, the `errno` of the exception, which PyO3 omits. An error without a number
/// has a message of the core.
pub(crate) fn os_error(fault: io::Error) -> PyErr {
    let Some(number) = fault.raw_os_error() else { return fault.into() };
    let text = fault.to_string();
    // As Python shows it, with the number in front.
    let text = text.split_once(" (os error").map_or(&*text, |(text, _)| text);
    PyOSError::new_err((number, text.to_owned()))
}

/// True for what a handler of SIGINT raises: KeyboardInterrupt, or SystemExit with `--debug`, since a debugger catches
/// KeyboardInterrupt. If two signals come at once, Python's reading of a line calls the second handler with the first
/// one's exception set, and raises SystemError.
pub(crate) fn is_interruption(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyKeyboardInterrupt>(py)
        || error.is_instance_of::<PySystemExit>(py)
        || (error.is_instance_of::<PySystemError>(py)
            && error.cause(py).is_some_and(|cause| is_interruption(py, &cause)))
}
