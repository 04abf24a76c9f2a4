//! What the server calls to process requests: the application, where it runs, and the log of I/O threads.
//!
//! I/O threads call most of this and must not wait for the interpreter. [`PythonHandler::run_requests`] runs attached
//! throughout one turn.

use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use pyo3::prelude::*;
use tailrace_observe::level::Level;
use tailrace_observe::record::Record;
use tailrace_server::{Application, Disconnected, Overdue, Request, Server, Slow, Turn};

use crate::call::application::{CallingRunner, WsgiApplication};
use crate::call::subscriptions::Subscriptions;
use crate::call::thread_cache::ThreadCaches;
use crate::ffi;
use crate::python::log::LogQueue;
use crate::python::memory;
use crate::runtime::deadlines::DeadlineThread;
use crate::runtime::deliveries::{self, Deliveries};
use crate::runtime::disconnects::DisconnectThread;
use crate::runtime::executor::PythonExecutor;
use crate::runtime::interpreter_probe::InterpreterProbe;
use crate::runtime::slow::SlowRequests;
use crate::runtime::threads::ThreadPool;

/// How long the end of the server waits for the lines of I/O threads to be logged.
const LAST_LINES: Duration = Duration::from_secs(1);

pub(crate) struct PythonHandler {
    application: WsgiApplication,
    executor: Arc<dyn PythonExecutor>,
    caches: ThreadCaches,
    threads: ThreadPool,
    log: Arc<LogQueue>,
    probe: InterpreterProbe,
    slow: SlowRequests,
    deadlines: DeadlineThread,
    disconnects: DisconnectThread,
    deliveries: Deliveries,
    /// Weak: the server owns the handler.
    server: OnceLock<Weak<Server>>,
}

impl Application for PythonHandler {
    fn enter(&self, turn: &mut Turn<'_>) {
        // While the interpreter is being finalized, no more requests run; they end with the process.
        let _ = Python::try_attach(|py| self.run_requests(py, turn, || true));
    }

    fn grow(&self) -> io::Result<()> {
        match Python::try_attach(|py| self.start_thread(py)) {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(io::Error::other(error.to_string())),
            None => Err(io::Error::other("the interpreter is being finalized")),
        }
    }

    fn interrupted(&self) -> bool {
        Python::try_attach(|py| self.executor.is_interrupted(py)).unwrap_or(true)
    }

    fn freed(&self, bytes: usize) {
        memory::freed(bytes);
    }

    fn ask(&self) -> bool {
        self.server.get().is_some_and(|server| self.probe.try_ask(server.clone(), &self.log))
    }

    fn log(&self, level: Level, message: &str) {
        self.log.send(level, message);
    }

    fn overdue(&self, overdue: Overdue) {
        if let Some(server) = self.server.get()
            && let Some(overdue) = self.executor.end_overdue(overdue, server)
        {
            self.deadlines.send(overdue, server.clone());
        }
    }

    fn disconnected(&self, disconnected: Disconnected) {
        if !disconnected.is_cancelled && self.application.subscriptions().is_empty() {
            return;
        }
        if let Some(server) = self.server.get()
            && let Some(disconnected) = self.executor.end_disconnected(disconnected, server)
        {
            self.disconnects.send(disconnected, server.clone());
        }
    }

    fn follows_deliveries(&self) -> bool {
        deliveries::are_followed()
    }

    fn delivered(&self, request: &Request, record: &Record, line: Option<String>) {
        self.deliveries.send(request, record, line);
    }

    fn slow(&self, slow: Slow) {
        if let Some(server) = self.server.get() {
            self.slow.report(slow, server, &self.executor);
        }
    }
}

impl PythonHandler {
    pub(crate) fn new(application: WsgiApplication, executor: Arc<dyn PythonExecutor>, log: Arc<LogQueue>) -> Self {
        Self {
            executor,
            caches: ThreadCaches::default(),
            threads: ThreadPool::default(),
            slow: SlowRequests::new(log.clone()),
            deadlines: DeadlineThread::new(log.clone()),
            disconnects: DisconnectThread::new(application.subscriptions().clone(), log.clone()),
            deliveries: Deliveries::default(),
            log,
            probe: InterpreterProbe::default(),
            server: OnceLock::new(),
            application,
        }
    }

    /// Sets the server that the requests belong to. Called once.
    pub(crate) fn serve(&self, server: &Arc<Server>) {
        let _ = self.server.set(Arc::downgrade(server));
        self.executor.serve(server);
    }

    /// What is to be called when the client of a running request leaves.
    pub(crate) fn subscriptions(&self) -> &Subscriptions {
        self.application.subscriptions()
    }

    pub(crate) fn executor(&self) -> &dyn PythonExecutor {
        &*self.executor
    }

    /// Waits until Python has the records of the last responses, and the lines of I/O threads have been logged, for a
    /// limited time. Must not be called attached.
    pub(crate) fn flush_log(&self) {
        self.deliveries.flush(LAST_LINES);
        self.log.flush(LAST_LINES);
    }

    /// Starts one more thread that runs requests, once [`PythonHandler::permit_serving`] has been called.
    pub(crate) fn start_thread(&self, py: Python<'_>) -> PyResult<()> {
        match self.server.get().and_then(Weak::upgrade) {
            Some(server) => self.threads.start_thread(py, server),
            None => Ok(()),
        }
    }

    /// The threads serve from now on.
    pub(crate) fn permit_serving(&self) {
        self.threads.permit_serving();
    }

    /// After the server has ended: waits for its threads to end, of which none is inside of the application. Those that
    /// report on requests end soon.
    pub(crate) fn end_threads(&self, py: Python<'_>) {
        self.threads.join(py);
        self.deadlines.end();
        self.disconnects.end();
        self.probe.end();
        self.slow.end();
        self.deliveries.end();
        self.log.end();
    }

    /// Runs requests until the turn is over, or until `goes_on` returns false after one. `Break`: the runner must
    /// end, because the application has raised an exception that concerns the runner, such as `GreenletExit`.
    pub(crate) fn run_requests(
        &self,
        py: Python<'_>,
        turn: &mut Turn<'_>,
        goes_on: impl Fn() -> bool,
    ) -> ControlFlow<()> {
        let mut cache = self.caches.take();
        let thread = ffi::thread::ident();
        turn.identify(thread);
        let mut flow = ControlFlow::Continue(());
        while let Some(exchange) = turn.next() {
            // Attaching drops the Python objects that threads of the server have released.
            Python::attach(|_| ());
            let runner = CallingRunner { policy: &*self.executor, turn, thread };
            flow = self.application.run(py, &mut cache, exchange, &runner);
            if turn.interruption().is_some() {
                ffi::thread::take_back(py, thread);
            }
            if flow.is_break() || !goes_on() {
                break;
            }
        }
        self.caches.put_back(cache);
        flow
    }
}
