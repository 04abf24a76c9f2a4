//! The exceptions of `tailrace` that this crate raises, and those by which a signal interrupts Python code.

use std::io;

use pyo3::exceptions::{PyBaseException, PyKeyboardInterrupt, PyOSError, PySystemError, PySystemExit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

pyo3::create_exception!(
    tailrace,
    ClientDisconnected,
    PyBaseException,
    "The client has disconnected: nothing more can be read from it or sent to it. Like RequestTimeout it is not a \
     subclass of Exception, so that `except Exception` does not catch it where it cancels a request."
);

/// `ClientDisconnectedError`, a `ClientDisconnected` that is an `OSError`, too.
static CLIENT_DISCONNECTED_ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// The type of what `wsgi.input` and `write` raise, which frameworks expect to be an `OSError`.
///
/// # Errors
/// No memory.
pub(crate) fn client_disconnected_error(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    let made = CLIENT_DISCONNECTED_ERROR.get_or_try_init(py, || {
        let members = PyDict::new(py);
        members.set_item("__module__", "tailrace")?;
        members.set_item("__doc__", "Raised by `wsgi.input` and `write()`: the client has disconnected.")?;
        let bases = (py.get_type::<ClientDisconnected>(), py.get_type::<PyOSError>());
        let made = py.get_type::<PyType>().call1(("ClientDisconnectedError", bases, members))?;
        Ok::<_, PyErr>(made.cast_into::<PyType>()?.unbind())
    })?;
    Ok(made.bind(py))
}

/// A `ClientDisconnectedError`.
pub(crate) fn client_disconnected(py: Python<'_>, message: &'static str) -> PyErr {
    match client_disconnected_error(py) {
        Ok(made) => PyErr::from_type(made.clone(), message),
        Err(error) => error,
    }
}

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
