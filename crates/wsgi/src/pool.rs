//! The threads of a server: `threading.Thread` objects, so that debuggers, profilers and tracing tools see them.
//!
//! Each runs [`Reactor::run_thread`] detached; it attaches when it has requests to run (`app.rs`). They are daemons: an
//! application that never returns must not keep the process from ending.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use penstock_server::reactor::Reactor;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Starts threads for one reactor.
#[derive(Default)]
pub(crate) struct Pool {
    /// Weak: the reactor owns the application, which owns this.
    reactor: OnceLock<Weak<Reactor>>,
    started: AtomicU64,
}

impl Pool {
    /// Says which reactor the threads belong to. Once.
    pub(crate) fn serve(&self, reactor: &Arc<Reactor>) {
        let _ = self.reactor.set(Arc::downgrade(reactor));
    }

    /// Starts one more thread, "penstock-N".
    pub(crate) fn start_thread(&self, py: Python<'_>) -> PyResult<()> {
        let Some(reactor) = self.reactor.get().and_then(Weak::upgrade) else { return Ok(()) };
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let body = Bound::new(py, ThreadBody { reactor })?.getattr("run")?;
        let options = PyDict::new(py);
        options.set_item("target", body)?;
        options.set_item("name", format!("penstock-{number}"))?;
        options.set_item("daemon", true)?;
        py.import("threading")?.call_method("Thread", (), Some(&options))?.call_method0("start")?;
        Ok(())
    }

    /// Ends the reactor, from within a request.
    pub(crate) fn stop(&self, graceful: Duration) {
        if let Some(reactor) = self.reactor.get().and_then(Weak::upgrade) {
            reactor.stop(graceful);
        }
    }
}

/// What a pool thread runs.
#[pyclass(frozen, name = "ThreadBody", module = "penstock._penstock")]
struct ThreadBody {
    reactor: Arc<Reactor>,
}

#[pymethods]
impl ThreadBody {
    fn run(&self, py: Python<'_>) {
        let reactor = &self.reactor;
        py.detach(|| reactor.run_thread());
    }
}
