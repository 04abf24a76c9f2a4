//! Requests run in greenlets of one thread, that of gevent's hub.

use std::sync::{OnceLock, Weak};

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use tailrace_server::{Disconnected, Overdue, Server, Slow};

use crate::call::exception_policy::ExceptionPolicy;
use crate::call::file_source;
use crate::call::response::ResponseState;
use crate::call::subscriptions;
use crate::python::log;
use crate::python::names::names;
use crate::runtime::executor::PythonExecutor;
use crate::runtime::interruption::KeptException;

#[derive(Default)]
pub(crate) struct GreenletPolicy {
    /// `greenlet.GreenletExit`.
    exit: OnceLock<Py<PyAny>>,
    /// The KeyboardInterrupt that the program on this thread is to raise.
    interruption: KeptException,
    /// Answers where the greenlet of a runner slot is.
    explain: OnceLock<Py<PyAny>>,
}

impl ExceptionPolicy for GreenletPolicy {
    /// `GreenletExit` ends its greenlet. Python raises KeyboardInterrupt in the greenlet of the main thread that
    /// happens to run: it ends that greenlet, and is kept to be raised in the program.
    fn ends_runner(&self, py: Python<'_>, error: &PyErr) -> bool {
        let Some(exit) = self.exit.get() else { return false };
        let is_ctrl_c = error.is_instance_of::<PyKeyboardInterrupt>(py);
        if is_ctrl_c {
            self.interruption.keep(error.clone_ref(py));
        }
        is_ctrl_c || error.is_instance(py, exit.bind(py))
    }
}

impl PythonExecutor for GreenletPolicy {
    /// Initializes everything now that is initialized once per process. If a greenlet did this, it could switch in the
    /// middle to another greenlet that needs the same value and would wait forever.
    fn prepare(&self, py: Python<'_>) -> PyResult<()> {
        let exit = py.import("greenlet")?.getattr("GreenletExit")?;
        let _ = self.exit.set(exit.unbind());
        names(py);
        log::prepare(py)?;
        file_source::prepare(py)?;
        subscriptions::prepare(py)?;
        py.get_type::<ResponseState>();
        Ok(())
    }

    fn take_interruption(&self) -> Option<PyErr> {
        self.interruption.take()
    }

    /// Wakes the thread of the greenlets: it raises the exception in the greenlet of the request.
    fn end_overdue(&self, request: Overdue, server: &Weak<Server>) -> Option<Overdue> {
        if let Some(greenlets) = server.upgrade().as_ref().and_then(|server| server.greenlets()) {
            greenlets.wakeup().report_overdue(request);
        }
        None
    }

    /// As [`PythonExecutor::end_overdue`].
    fn end_disconnected(&self, request: Disconnected, server: &Weak<Server>) -> Option<Disconnected> {
        if let Some(greenlets) = server.upgrade().as_ref().and_then(|server| server.greenlets()) {
            greenlets.wakeup().report_disconnected(request);
        }
        None
    }

    fn stack_of(&self, py: Python<'_>, request: &Slow) -> String {
        let Some(explain) = self.explain.get() else { return String::from("  (unknown)") };
        let text = explain.call1(py, (request.slot,)).and_then(|text| text.extract::<String>(py));
        text.unwrap_or_else(|error: PyErr| format!("  (unknown: {error})"))
    }

    fn explain_by(&self, explain: Py<PyAny>) {
        let _ = self.explain.set(explain);
    }
}
