//! `Server`: an application, its settings and its listening sockets, as Python starts and stops them.
//!
//! Any thread may call its methods; every one that may block releases the interpreter.

use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use penstock_server::reactor::Reactor;
use penstock_server::scoreboard::Scoreboard as Board;
use penstock_server::stats::Stats;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};

use crate::app::PythonApplication;
use crate::environ::{Constants, EnvironMaker};
use crate::error_stream::ErrorStream;
use crate::file_wrapper::FileWrapper;
use crate::hub::Hub;
use crate::listeners::{describe, duplicate};
use crate::memory;
use crate::scoreboard::Scoreboard;
use crate::settings::Settings;

/// A server of one application on a set of listening sockets.
#[pyclass(frozen, name = "Server", module = "penstock._penstock")]
pub(crate) struct Server {
    reactor: Arc<Reactor>,
    application: Arc<PythonApplication>,
    threads: usize,
}

#[pymethods]
impl Server {
    /// settings: a value for each name in SETTINGS (sizes in bytes, times in seconds). listeners: descriptors of
    /// listening sockets, duplicated. scoreboard: where it tells what it does, and the place there. Raises ValueError for unknown, missing or unfit settings, OSError when a resource
    /// is refused.
    #[new]
    #[pyo3(signature = (application, settings, listeners, scoreboard=None))]
    fn new(
        py: Python<'_>,
        application: Bound<'_, PyAny>,
        settings: Bound<'_, PyMapping>,
        listeners: Vec<RawFd>,
        scoreboard: Option<(Bound<'_, Scoreboard>, usize)>,
    ) -> PyResult<Self> {
        if !application.is_callable() {
            return Err(PyTypeError::new_err("the application must be callable"));
        }
        let settings = Settings::read(&settings)?;
        let sockets = duplicate(&listeners)?;
        if sockets.is_empty() {
            return Err(PyValueError::new_err("a server needs at least one listening socket"));
        }
        let (threads, hub) = (settings.config.threads, settings.config.hub);
        let application = Arc::new(PythonApplication::new(
            application.unbind(),
            environ_maker(py, &settings, &sockets)?,
            settings.debug,
            settings.config.single_thread,
        ));
        let mut place = scoreboard.map(|(board, number)| board.get().place(number)).transpose()?;
        if hub && place.is_none() {
            // Its hub asks what is in flight also where no master does.
            place = Board::new(1, threads)?.place(0);
        }
        let reactor = Reactor::new(settings.config, application.clone(), sockets, place)?;
        application.pool().serve(&reactor);
        Ok(Self { reactor, application, threads })
    }

    /// The calling thread becomes the hub in whose greenlets requests run, in place of `start`. pause: called in those as
    /// `pause(ticket, seconds)`, waits until `Hub.take` tells the ticket (True) or the seconds are over (False). Raises
    /// RuntimeError when the setting `hub` is off, or at the second call.
    #[pyo3(signature = (pause, /))]
    fn hub(&self, pause: Bound<'_, PyAny>) -> PyResult<Hub> {
        if !pause.is_callable() {
            return Err(PyTypeError::new_err("pause must be callable"));
        }
        Hub::new(pause, self.reactor.clone(), self.application.clone())
    }

    /// Starts the pool threads ("penstock-0", ...) and returns.
    fn start(&self, py: Python<'_>) -> PyResult<()> {
        self.needs_no_hub()?;
        memory::start()?;
        // One leads, one runs the application, one watches; with a single application thread two are enough.
        for _ in 0..(self.threads + 1).min(3) {
            self.application.pool().start_thread(py)?;
        }
        Ok(())
    }

    /// Serves on the calling thread until stopped. Raises what a signal handler raises, KeyboardInterrupt for one.
    fn run_here(&self, py: Python<'_>) -> PyResult<()> {
        self.needs_no_hub()?;
        memory::start()?;
        let served = py.detach(|| self.reactor.run_here());
        match self.application.take_interruption() {
            Some(error) => Err(error),
            None => Ok(served?),
        }
    }

    /// Begins to stop and returns: accepts nothing more, closes idle connections, gives requests in flight
    /// `graceful_timeout` seconds. Called again with 0 it stops now. May be called from a signal handler.
    fn stop(&self, py: Python<'_>, graceful_timeout: f64) -> PyResult<()> {
        let graceful = seconds(graceful_timeout)?;
        py.detach(|| self.reactor.stop(graceful));
        Ok(())
    }

    /// Waits until the server has stopped, for at most `timeout` seconds; False when it has not.
    #[pyo3(signature = (timeout=None))]
    fn join(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let timeout = timeout.map(seconds).transpose()?;
        let ended = py.detach(|| self.reactor.join(timeout));
        if ended && self.reactor.stats().running == 0 {
            self.application.pool().join_threads(py);
        }
        Ok(ended)
    }

    /// Counters and gauges: connections, requests, threads, running, queued and others.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Stats {
            connections,
            accepted,
            requests,
            refused,
            threads,
            carriers_made,
            running,
            queued,
            buffered,
            bodies,
            stuck,
            timed_out,
        } = self.reactor.stats();
        let stats = PyDict::new(py);
        for (name, value) in [
            ("connections", connections),
            ("accepted", accepted),
            ("requests", requests),
            ("refused", refused),
            ("threads", threads),
            ("carriers_made", carriers_made),
            ("running", running),
            ("queued", queued),
            ("buffered", buffered),
            ("bodies", bodies),
            ("stuck", stuck),
            ("timed_out", timed_out),
        ] {
            stats.set_item(name, value)?;
        }
        Ok(stats)
    }

    /// Opens the access log again under its name, after a rotation.
    fn reopen_logs(&self, py: Python<'_>) {
        py.detach(|| self.reactor.reopen_logs());
    }
}

impl Server {
    fn needs_no_hub(&self) -> PyResult<()> {
        match self.reactor.hub() {
            None => Ok(()),
            Some(_) => Err(PyRuntimeError::new_err("the setting hub is on: requests run where hub() was called")),
        }
    }
}

fn environ_maker(py: Python<'_>, settings: &Settings, sockets: &[OwnedFd]) -> PyResult<EnvironMaker> {
    let mut listeners = Vec::with_capacity(sockets.len());
    for socket in sockets {
        listeners.push(describe(socket, &settings.url_scheme)?);
    }
    EnvironMaker::new(
        py,
        Constants {
            url_scheme: &settings.url_scheme,
            root_path: settings.root_path.clone(),
            underscores: settings.underscores,
            multithread: settings.multithread,
            multiprocess: settings.multiprocess,
            errors: Bound::new(py, ErrorStream)?.into_any(),
            file_wrapper: py.get_type::<FileWrapper>().into_any(),
            listeners,
        },
    )
}

fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| PyValueError::new_err("a timeout must be a number of seconds"))
}
