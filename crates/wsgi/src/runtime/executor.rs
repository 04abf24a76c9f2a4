//! Where requests run: in threads, in greenlets of one thread, or on the thread that called `run_here`.

use std::sync::{Arc, Weak};

use pyo3::prelude::*;
use tailrace_server::{Disconnected, Overdue, Server, Slow};

use crate::call::exception_policy::ExceptionPolicy;
use crate::python::stack;

/// Where the application runs, as Python sees it: implemented in `threads.rs`, `greenlets.rs` and `inline.rs`.
pub(crate) trait PythonExecutor: ExceptionPolicy {
    /// The server that the requests belong to. Called once, first.
    fn serve(&self, server: &Arc<Server>) {
        let _ = server;
    }

    /// Called once before the first request, on the thread that will run all of them, if there is one.
    ///
    /// # Errors
    /// Python lacks what requests will need.
    fn prepare(&self, py: Python<'_>) -> PyResult<()> {
        let _ = py;
        Ok(())
    }

    /// True when a signal handler has raised an exception: the thread that does everything is to stop. Called between
    /// requests.
    fn is_interrupted(&self, py: Python<'_>) -> bool {
        let _ = py;
        false
    }

    /// The exception that has ended the server or a greenlet and concerns more than its request. Returned once.
    fn take_interruption(&self) -> Option<PyErr> {
        None
    }

    /// The deadline of a request has passed while the application runs it: has `RequestTimeout` raised there, or
    /// returns it if that is to be done in a thread of its own. Any thread, attached or not; does not wait.
    fn end_overdue(&self, request: Overdue, server: &Weak<Server>) -> Option<Overdue> {
        let _ = server;
        Some(request)
    }

    /// The client of a request has left while the application runs it: has its callbacks called and `ClientDisconnected`
    /// raised, or returns it if that is to be done in a thread of its own. Any thread, attached or not; does not wait.
    fn end_disconnected(&self, request: Disconnected, server: &Weak<Server>) -> Option<Disconnected> {
        let _ = server;
        Some(request)
    }

    /// The stack of a running request: lines of a traceback, without a final line end.
    fn stack_of(&self, py: Python<'_>, request: &Slow) -> String {
        stack::shown(stack::of_thread(py, request.thread))
    }

    /// Has `stack_of` ask `explain(slot)`.
    fn explain_by(&self, explain: Py<PyAny>) {
        drop(explain);
    }
}
