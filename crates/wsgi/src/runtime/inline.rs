//! Requests run on the thread that called `run_here`, which does everything else as well (`--debug`).
//!
//! If that is the main thread, Ctrl-C raises KeyboardInterrupt in the application, which must also end the server.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use tailrace_observe::level::Level;
use tailrace_server::Server;

use crate::call::exception_policy::ExceptionPolicy;
use crate::python::exceptions::is_interruption;
use crate::python::log;
use crate::runtime::executor::PythonExecutor;
use crate::runtime::interruption::KeptException;

#[derive(Default)]
pub(crate) struct InlinePolicy {
    /// Weak: the server owns the application, which owns this.
    server: OnceLock<Weak<Server>>,
    interrupt: OnceLock<Interrupt>,
    /// The exception that `run_here` raises at its end.
    interruption: KeptException,
}

/// SIGINT.
struct Interrupt {
    /// Its handler when the server began; a debugger may replace it.
    handler: Py<PyAny>,
    /// `getsignal` of the C module: the one in `signal` looks up an enumeration member at each call.
    getsignal: Py<PyAny>,
    number: Py<PyAny>,
}

impl Interrupt {
    fn find(py: Python<'_>) -> PyResult<Self> {
        let number = py.import("signal")?.getattr("SIGINT")?;
        let getsignal = py.import("_signal")?.getattr("getsignal")?;
        let handler = getsignal.call1((&number,))?;
        Ok(Self { handler: handler.unbind(), getsignal: getsignal.unbind(), number: number.unbind() })
    }

    /// Installs the handler again if it has been replaced.
    fn restore(&self, py: Python<'_>) -> PyResult<()> {
        if !self.getsignal.call1(py, (&self.number,))?.is(&self.handler) {
            py.import("signal")?.call_method1("signal", (&self.number, &self.handler))?;
        }
        Ok(())
    }
}

impl InlinePolicy {
    fn server(&self) -> Option<Arc<Server>> {
        self.server.get().and_then(Weak::upgrade)
    }
}

impl ExceptionPolicy for InlinePolicy {
    fn ends_server(&self, py: Python<'_>, error: &PyErr) -> bool {
        // The application may raise SystemExit, too. The server's handler has stopped the server before it raises one.
        error.is_instance_of::<PyKeyboardInterrupt>(py)
            || (is_interruption(py, error) && self.server().is_none_or(|server| server.is_stopping()))
    }

    fn end_server(&self, py: Python<'_>, error: &PyErr) {
        self.interruption.keep(error.clone_ref(py));
        if let Some(server) = self.server() {
            server.stop(Duration::ZERO);
        }
    }

    /// Installs the server's SIGINT handler again: `pdb` replaces it with its own when it continues, and between
    /// requests Ctrl-C must end the server.
    fn request_ended(&self, py: Python<'_>) {
        let Some(interrupt) = self.interrupt.get() else { return };
        match interrupt.restore(py) {
            Ok(()) => {}
            Err(error) if is_interruption(py, &error) => self.interruption.keep(error),
            Err(error) => {
                let text = "cannot restore the Ctrl-C handler; SIGTERM still stops the server";
                log::log(py, Level::Warning, text, Some(&error));
            }
        }
    }
}

impl PythonExecutor for InlinePolicy {
    fn prepare(&self, py: Python<'_>) -> PyResult<()> {
        let _ = self.interrupt.set(Interrupt::find(py)?);
        Ok(())
    }

    fn serve(&self, server: &Arc<Server>) {
        let _ = self.server.set(Arc::downgrade(server));
    }

    fn is_interrupted(&self, py: Python<'_>) -> bool {
        if let Err(error) = py.check_signals() {
            self.interruption.keep(error);
        }
        self.interruption.is_some()
    }

    fn take_interruption(&self) -> Option<PyErr> {
        self.interruption.take()
    }
}
