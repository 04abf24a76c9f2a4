//! Requests run in threads: `threading.Thread` objects, so that debuggers, profilers and tracing tools see them.
//!
//! Each thread runs [`Server::run`] detached and attaches when it has requests to run (`handler.rs`). Threads
//! are daemons: an application that never returns must not keep the process from ending.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tailrace_server::Server;

use crate::call::exception_policy::ExceptionPolicy;
use crate::runtime::executor::PythonExecutor;

/// Maximum time for an idle thread to end, in seconds.
const THREAD_END: f64 = 1.0;

/// At this number of thread objects, those of threads that have ended are removed.
const MANY_THREADS: usize = 256;

pub(crate) struct ThreadPolicy;

impl ExceptionPolicy for ThreadPolicy {}

impl PythonExecutor for ThreadPolicy {}

/// Starts threads for one server.
#[derive(Default)]
pub(crate) struct ThreadPool {
    started: AtomicU64,
    /// The `threading.Thread` objects, for the end.
    threads: Mutex<Vec<Py<PyAny>>>,
    /// Set once the threads may serve.
    may_serve: Arc<OnceLock<()>>,
}

impl ThreadPool {
    /// Starts one more thread, "tailrace-N". It waits for [`ThreadPool::permit_serving`].
    pub(crate) fn start_thread(&self, py: Python<'_>, server: Arc<Server>) -> PyResult<()> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let body = Bound::new(py, ThreadBody { server, may_serve: self.may_serve.clone() })?.getattr("run")?;
        let options = PyDict::new(py);
        options.set_item("target", body)?;
        options.set_item("name", format!("tailrace-{number}"))?;
        options.set_item("daemon", true)?;
        let thread = py.import("threading")?.call_method("Thread", (), Some(&options))?;
        thread.call_method0("start")?;
        let mut threads = self.take_threads();
        if threads.len() > MANY_THREADS {
            threads.retain(|thread| {
                thread.bind(py).call_method0("is_alive").is_ok_and(|alive| alive.is_truthy().unwrap_or(true))
            });
        }
        threads.push(thread.unbind());
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).append(&mut threads);
        Ok(())
    }

    /// The threads serve from now on.
    pub(crate) fn permit_serving(&self) {
        let _ = self.may_serve.set(());
    }

    fn take_threads(&self) -> Vec<Py<PyAny>> {
        std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// After the server has ended: waits for its threads to end. None of them is inside of the application.
    pub(crate) fn join(&self, py: Python<'_>) {
        for thread in self.take_threads() {
            let _ = thread.bind(py).call_method1("join", (THREAD_END,));
        }
    }
}

thread_local! {
    /// The server whose requests the thread runs; null: it is none of these threads.
    static SERVED: Cell<*const Server> = const { Cell::new(ptr::null()) };
}

/// Whether the calling thread runs requests of this server.
pub(crate) fn is_of(server: &Server) -> bool {
    SERVED.get() == ptr::from_ref(server)
}

/// What a thread runs.
#[pyclass(frozen, name = "ThreadBody", module = "tailrace._tailrace")]
struct ThreadBody {
    server: Arc<Server>,
    may_serve: Arc<OnceLock<()>>,
}

#[pymethods]
impl ThreadBody {
    fn run(&self, py: Python<'_>) {
        let Self { server, may_serve } = self;
        SERVED.set(Arc::as_ptr(server));
        py.detach(|| {
            may_serve.wait();
            server.run();
        });
    }
}
