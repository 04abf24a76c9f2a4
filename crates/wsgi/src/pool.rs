//! The threads of a server: `threading.Thread` objects, so that debuggers, profilers and tracing tools see them.
//!
//! Each runs [`Reactor::run_thread`] detached; it attaches when it has requests to run (`app.rs`). They are daemons: an
//! application that never returns must not keep the process from ending.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use penstock_server::reactor::Reactor;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Seconds a thread has to end that has nothing left to do.
const THREAD_END: f64 = 1.0;

/// Thread objects kept before those that have ended are sought out.
const MANY_THREADS: usize = 256;

/// Starts threads for one reactor.
#[derive(Default)]
pub(crate) struct Pool {
    /// Weak: the reactor owns the application, which owns this.
    reactor: OnceLock<Weak<Reactor>>,
    started: AtomicU64,
    /// The `threading.Thread` objects, for the end.
    threads: Mutex<Vec<Py<PyAny>>>,
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
        let thread = py.import("threading")?.call_method("Thread", (), Some(&options))?;
        thread.call_method0("start")?;
        let mut threads = self.take_threads();
        // Those that ended for want of work are forgotten now and then.
        if threads.len() > MANY_THREADS {
            threads.retain(|thread| {
                thread.bind(py).call_method0("is_alive").is_ok_and(|alive| alive.is_truthy().unwrap_or(true))
            });
        }
        threads.push(thread.unbind());
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).append(&mut threads);
        Ok(())
    }

    fn take_threads(&self) -> Vec<Py<PyAny>> {
        std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// After the reactor has ended: waits for its threads to be gone, of which none is inside the application.
    pub(crate) fn join_threads(&self, py: Python<'_>) {
        for thread in self.take_threads() {
            // A thread cannot join itself; then the server was joined from within a request, and there is no end to
            // wait for.
            let _ = thread.bind(py).call_method1("join", (THREAD_END,));
        }
    }

    /// The reactor that the threads belong to.
    pub(crate) fn reactor(&self) -> Option<Weak<Reactor>> {
        self.reactor.get().cloned()
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
