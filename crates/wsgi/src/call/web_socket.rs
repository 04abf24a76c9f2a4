//! `environ["werkzeug.socket"]`: the connection of a request for a WebSocket, as a socket of Python's.
//!
//! The application takes over the connection by using the socket, as simple-websocket does, which Flask-Sock and
//! Flask-SocketIO use. Until then it can answer the request as any other one; afterwards its response is discarded.

use std::ffi::CStr;
use std::os::fd::{IntoRawFd, OwnedFd};

use pyo3::exceptions::{PyConnectionError, PyStopIteration};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tailrace_server::Exchange;

use crate::call::response::ResponseState;
use crate::ffi::bound_function::{BoundFunction, NoArguments, bind_no_arguments};
use crate::python::forks::used_in_child;

/// The keys of `environ`: that of werkzeug's server, after which an application returns a response, and that of gunicorn,
/// after which it raises `StopIteration`.
const KEYS: [&str; 2] = ["werkzeug.socket", "gunicorn.socket"];

/// The module with the Python part.
const MODULE: &str = "tailrace.websocket";

/// A socket in `environ`.
pub(crate) struct OfferedSocket<'py>(Bound<'py, PyAny>);

impl<'py> OfferedSocket<'py> {
    /// Adds the socket of the request in `state` to its `environ`. is_gevent: a socket of gevent's.
    pub(crate) fn offer(
        environ: &Bound<'py, PyDict>,
        state: &Bound<'py, ResponseState>,
        descriptor: OwnedFd,
        is_gevent: bool,
    ) -> PyResult<Self> {
        let py = environ.py();
        let take = bind_no_arguments::<TakeOver>(state)?;
        let offer = py.import(MODULE)?.getattr("offer")?;
        // The callee owns the descriptor.
        let made = offer.call1((descriptor.into_raw_fd(), take, is_gevent))?;
        for key in KEYS {
            environ.set_item(key, &made)?;
        }
        Ok(Self(made))
    }

    /// The request is over: closes the socket if the application has not used it.
    pub(crate) fn withdraw(self) -> PyResult<()> {
        let py = self.0.py();
        py.import(MODULE)?.getattr("withdraw")?.call1((self.0,)).map(drop)
    }
}

/// The first use of the socket.
struct TakeOver;

impl BoundFunction for TakeOver {
    type State = ResponseState;
    const NAME: &'static CStr = c"take_over";
    const DOC: &'static CStr = c"take_over()\n--\n\nThe connection leaves HTTP. Raises ConnectionError.";
}

impl NoArguments for TakeOver {
    fn call<'py>(py: Python<'py>, state: &ResponseState) -> PyResult<Bound<'py, PyAny>> {
        if !state.is_here(py) {
            return Err(used_in_child("the socket of a request"));
        }
        if state.take_over(py)? {
            return Ok(py.None().into_bound(py));
        }
        Err(PyConnectionError::new_err("the connection cannot be taken over, because its response has begun"))
    }
}

/// True for an exception by which an application says that there is no response, or that its client has left:
/// `StopIteration` for gunicorn, and `ConnectionError`, which python-engineio raises for werkzeug.
pub(crate) fn is_expected(py: Python<'_>, error: &PyErr, exchange: &Exchange) -> bool {
    let is_of_connection = error.is_instance_of::<PyConnectionError>(py);
    let has_number = || error.value(py).getattr("errno").is_ok_and(|number| !number.is_none());
    error.is_instance_of::<PyStopIteration>(py) || (is_of_connection && (exchange.has_client_left() || !has_number()))
}
