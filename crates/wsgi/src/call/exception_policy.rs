//! The consequences of an uncaught application exception beyond its request. They depend on where requests run:
//! `runtime` has an implementation for threads, for greenlets, and for the thread that called `run_here`.

use pyo3::prelude::*;

/// Called by the runner of the request, attached.
pub(crate) trait ExceptionPolicy: Send + Sync {
    /// True when the exception ends not only its request but also the runner that has run it.
    fn ends_runner(&self, py: Python<'_>, error: &PyErr) -> bool {
        let _ = (py, error);
        false
    }

    /// True when the exception ends the server: Ctrl-C on the thread that does everything. Then
    /// [`ExceptionPolicy::end_server`] follows, and the exception is not logged.
    fn ends_server(&self, py: Python<'_>, error: &PyErr) -> bool {
        let _ = (py, error);
        false
    }

    /// Stops the server and keeps the exception for the caller that started the server.
    fn end_server(&self, py: Python<'_>, error: &PyErr) {
        let _ = (py, error);
    }

    /// Called after each request.
    fn request_ended(&self, py: Python<'_>) {
        let _ = py;
    }
}
