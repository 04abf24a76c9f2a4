//! `Server`: an application, its settings and its listening sockets, as Python starts and stops them.
//!
//! Any thread may call its methods; every one that may block releases the interpreter.

use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};
use tailrace_files::responders as file_responders;
use tailrace_http::identity::IdField;
use tailrace_observe::metrics::Metric;
use tailrace_observe::scoreboard::Scoreboard;
use tailrace_server::{Clients, Disk, ExecutorKind, Provided, Server};

use crate::call::application::WsgiApplication;
use crate::call::environ::{Constants, EnvironMaker};
use crate::call::error_stream::ErrorStream;
use crate::call::file_wrapper::FileWrapper;
use crate::call::logged_variables::LoggedVariables;
use crate::python::exceptions::os_error;
use crate::python::forks::used_in_child;
use crate::python::log::LogQueue;
use crate::python::memory;
use crate::runtime::executor::PythonExecutor;
use crate::runtime::greenlet_runner::GreenletRunner;
use crate::runtime::greenlets::GreenletPolicy;
use crate::runtime::handler::PythonHandler;
use crate::runtime::inline::InlinePolicy;
use crate::runtime::listeners::{ListeningSocket, describe, duplicate};
use crate::runtime::scoreboard::PythonScoreboard;
use crate::runtime::settings::Settings;
use crate::runtime::threads::{self, ThreadPolicy};

/// A server of one application on a set of listening sockets.
#[pyclass(frozen, weakref, name = "Server", module = "tailrace._tailrace")]
pub(crate) struct PythonServer {
    core: Arc<Server>,
    handler: Arc<PythonHandler>,
    threads: usize,
}

#[pymethods]
impl PythonServer {
    /// settings: as `ServerSettings.core` gives them (sizes in bytes, times in seconds). listeners: where to
    /// accept clients. scoreboard: and the slot of this worker in it. master: the reading end of the liveness pipe, how
    /// long requests in flight may take once the master has ended, and how much later the process then ends by force
    /// (seconds). Raises ValueError for unknown, missing or unfit settings, OSError when a resource is refused.
    #[new]
    #[pyo3(signature = (application, settings, listeners, scoreboard=None, master=None))]
    fn new(
        py: Python<'_>,
        application: Bound<'_, PyAny>,
        settings: Bound<'_, PyMapping>,
        listeners: Vec<Py<ListeningSocket>>,
        scoreboard: Option<(Bound<'_, PythonScoreboard>, usize)>,
        master: Option<(RawFd, f64, f64)>,
    ) -> PyResult<Self> {
        if !application.is_callable() {
            return Err(PyTypeError::new_err("the application must be callable"));
        }
        let mut settings = Settings::read(&settings)?;
        let sockets = duplicate(listeners.iter().map(|listener| listener.get().descriptor))?;
        settings.config.listeners = listeners.iter().map(|listener| listener.get().config).collect();
        let certificates = listeners.iter().find_map(|listener| listener.get().certificates.as_ref());
        settings.config.certificates = certificates.map(|certificates| certificates.get().served.clone());
        if sockets.is_empty() {
            return Err(PyValueError::new_err("a server needs at least one listening socket"));
        }
        let threads = settings.config.threads;
        let environs = environ_maker(py, &settings, &sockets)?;
        let names = settings.config.access_log.as_ref().map_or(&[][..], |log| log.format.variables());
        let logged = LoggedVariables::new(py, names);
        let is_gevent = settings.config.executor == ExecutorKind::Greenlets;
        let application = WsgiApplication::new(application.unbind(), environs, logged, settings.debug, is_gevent);
        let log = Arc::new(LogQueue::default());
        let executor: Arc<dyn PythonExecutor> = match settings.config.executor {
            ExecutorKind::Threads => Arc::new(ThreadPolicy),
            ExecutorKind::Greenlets => Arc::new(GreenletPolicy::default()),
            ExecutorKind::Inline => Arc::new(InlinePolicy::default()),
        };
        let handler = Arc::new(PythonHandler::new(application, executor, log));
        let owners = scoreboard.as_ref().map(|(board, _)| board.get().owners());
        let (worker_slot, clients) = match scoreboard {
            Some((board, number)) => (Some(board.get().slot(number)?), board.get().clients()),
            // Without a master, too: `in_flight` reads it.
            None => (Scoreboard::new(1, threads).map_err(os_error)?.worker_slot(0), Clients::new(1).map_err(os_error)?),
        };
        let disk = Arc::new(Disk::new());
        let responders = file_responders(&settings.static_files, &disk).map_err(os_error)?;
        let provided = Provided { worker_slot, clients: Some(clients), owners, disk, responders };
        let core = Server::new(settings.config, handler.clone(), sockets, provided).map_err(os_error)?;
        handler.serve(&core);
        if let Some((pipe, graceful, leaving)) = master {
            let (graceful, leaving) = (seconds(graceful)?, seconds(leaving)?);
            for pipe in duplicate([pipe])? {
                core.watch_master(pipe, graceful, leaving).map_err(os_error)?;
            }
        }
        Ok(Self { core, handler, threads })
    }

    /// Has requests run in greenlets of the calling thread, instead of `start`. pause: called in those as
    /// `pause(ticket, seconds)`, waits until `GreenletRunner.take` returns the ticket (True) or the seconds are over
    /// (False).
    /// Raises RuntimeError when the setting `executor` is not "greenlets", or at the second call.
    #[pyo3(signature = (pause, /))]
    fn greenlet_runner(&self, pause: Bound<'_, PyAny>) -> PyResult<GreenletRunner> {
        if !pause.is_callable() {
            return Err(PyTypeError::new_err("pause must be callable"));
        }
        GreenletRunner::new(pause, self.core.clone(), self.handler.clone())
    }

    /// Starts the pool threads ("tailrace-0", ...) and returns. started: called when they run and before they serve,
    /// since a request may hold the interpreter from then on. In a process that was forked since, this raises
    /// RuntimeError, and the other methods do nothing.
    #[pyo3(signature = (started=None))]
    fn start(&self, py: Python<'_>, started: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        self.check_no_greenlets()?;
        memory::start().map_err(os_error)?;
        let begun = self.start_threads(py).and_then(|()| started.map(|started| started.call0()).transpose());
        // After an error, too: a thread that waits could not be ended.
        self.handler.permit_serving();
        begun.map(drop)
    }

    /// Serves on the calling thread until stopped. Raises what a signal handler raises, KeyboardInterrupt for one.
    fn run_here(&self, py: Python<'_>) -> PyResult<()> {
        self.check_no_greenlets()?;
        self.handler.executor().prepare(py)?;
        memory::start().map_err(os_error)?;
        py.detach(|| {
            self.core.run();
            // Now, since the interpreter may be finalized next, which would end the logging thread in the middle of a
            // line.
            self.handler.flush_log();
        });
        self.handler.executor().take_interruption().map_or(Ok(()), Err)
    }

    /// Begins to stop and returns: accepts nothing more, closes idle connections, gives requests in flight
    /// `graceful_timeout` seconds. Called again with 0 it stops now. May be called from a signal handler.
    fn stop(&self, py: Python<'_>, graceful_timeout: f64) -> PyResult<()> {
        let graceful = seconds(graceful_timeout)?;
        py.detach(|| self.core.stop(graceful));
        Ok(())
    }

    /// Shuts down the sending direction of this socket (a descriptor, which is duplicated) when the server drains. The
    /// server then takes the requests of its sessions until the other end is closed, but no longer than requests in flight
    /// have. Raises ValueError and OSError for what is no descriptor.
    fn add_follower(&self, descriptor: RawFd) -> PyResult<()> {
        duplicate([descriptor])?.into_iter().for_each(|follower| self.core.add_follower(follower));
        Ok(())
    }

    /// Waits until the server has stopped, for at most `timeout` seconds; False: it has not.
    #[pyo3(signature = (timeout=None))]
    fn join(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        if self.core.is_forked_child() {
            // A forked child: none of the server's threads exists here.
            return Ok(true);
        }
        let timeout = timeout.map(seconds).transpose()?;
        if threads::is_of(&self.core) {
            // It would wait for the request that calls it.
            return Ok(false);
        }
        let ended = py.detach(|| {
            let ended = self.core.join(timeout);
            if ended {
                self.handler.flush_log();
            }
            ended
        });
        if ended && self.core.stats()[Metric::Running] == 0 {
            self.handler.end_threads(py);
        }
        Ok(ended)
    }

    /// The reason if the server ended without a request to stop; otherwise None.
    fn fault(&self) -> Option<String> {
        self.core.fault()
    }

    /// Counters and gauges: connections, requests, threads, running, queued and others.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = self.core.stats();
        let stats = PyDict::new(py);
        for metric in Metric::ALL {
            stats.set_item(metric.row().key, found[metric])?;
        }
        stats.set_item("threads", found.threads)?;
        stats.set_item("greenlets_made", found.greenlets_made)?;
        Ok(stats)
    }

    /// The requests that the end of the server interrupted: method and target, and for how many seconds they had run.
    /// Each is returned once.
    fn cut_requests(&self) -> Vec<(String, f64)> {
        self.core.take_aborted().into_iter().map(|aborted| (aborted.request, aborted.seconds)).collect()
    }

    /// Opens the access log again under its name, after a rotation. Raises OSError; then it goes to the old file.
    fn reopen_logs(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.core.reopen_logs())?)
    }
}

impl PythonServer {
    fn start_threads(&self, py: Python<'_>) -> PyResult<()> {
        // One thread leads, one runs the application, one watches. With one application thread, two are enough.
        for _ in 0..(self.threads + 1).min(3) {
            self.handler.start_thread(py)?;
        }
        Ok(())
    }

    fn check_no_greenlets(&self) -> PyResult<()> {
        if self.core.is_forked_child() {
            return Err(used_in_child("the server"));
        }
        match self.core.greenlets() {
            None => Ok(()),
            Some(_) => Err(PyRuntimeError::new_err(
                "the executor is \"greenlets\": requests run where greenlet_runner() was called",
            )),
        }
    }
}

fn environ_maker(py: Python<'_>, settings: &Settings, sockets: &[OwnedFd]) -> PyResult<EnvironMaker> {
    let mut listeners = Vec::with_capacity(sockets.len());
    for (number, socket) in sockets.iter().enumerate() {
        let is_encrypted = settings.config.listener(number).is_encrypted;
        listeners.push(describe(socket, &settings.url_scheme, is_encrypted)?);
    }
    EnvironMaker::new(
        py,
        Constants {
            url_scheme: &settings.url_scheme,
            root_path: settings.root_path.clone(),
            underscores: settings.underscores,
            id_field: settings.config.request_id.as_ref().map(IdField::name),
            early_hints: settings.early_hints,
            holder_proof: settings.holder_proof.as_deref(),
            multithread: settings.multithread,
            multiprocess: settings.multiprocess,
            errors: Bound::new(py, ErrorStream)?.into_any(),
            file_wrapper: py.get_type::<FileWrapper>().into_any(),
            listeners,
        },
    )
}

pub(crate) fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| PyValueError::new_err("a timeout must be a number of seconds"))
}
