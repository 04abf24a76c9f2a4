//! `Holder`: the holder of a server, for the process or the thread that runs it.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tailrace_holder::{Limits, Log, Stop};
use tailrace_observe::level::Level;
use tailrace_os::clock;
use tailrace_os::descriptor;
use tailrace_os::sync::lock;

use crate::python::log;
use crate::runtime::server::seconds;

/// Holds connections without threads.
#[pyclass(frozen, name = "Holder", module = "tailrace._tailrace")]
pub(crate) struct PythonHolder {
    stop: Arc<Stop>,
    /// `None`: it runs, or has run.
    holder: Mutex<Option<tailrace_holder::Holder>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[pymethods]
impl PythonHolder {
    /// descriptor: of the UNIX socket, which listens, where it is passed connections; it is duplicated. application: the
    /// abstract address where requests of the application are made. write_timeout: seconds
    /// for which a client may accept nothing. client_connections: how many one client may have; 0: any number. has_bus: a
    /// further process sends publications to other servers. Raises OSError, ValueError.
    #[new]
    #[pyo3(signature = (descriptor, application, *, write_timeout, client_connections, has_bus))]
    fn new(
        descriptor: RawFd,
        application: Vec<u8>,
        write_timeout: f64,
        client_connections: usize,
        has_bus: bool,
    ) -> PyResult<Self> {
        let limits = Limits {
            write_timeout: seconds(write_timeout)?,
            connections_per_client: client_connections,
            has_bus,
            ..Limits::default()
        };
        let log: Log = Box::new(|level, message| Python::attach(|py| log::log(py, level, message, None)));
        let holder = tailrace_holder::Holder::new(descriptor::duplicate(descriptor)?, application, limits, log)?;
        Ok(Self { stop: holder.stop_handle(), holder: Mutex::new(Some(holder)), thread: Mutex::default() })
    }

    /// Takes over everything from the holder at this abstract address; how many connections that were. Raises OSError.
    #[pyo3(signature = (address, /))]
    fn take_over(&self, py: Python<'_>, address: &[u8]) -> PyResult<usize> {
        py.detach(|| match &mut *lock(&self.holder) {
            Some(holder) => Ok(holder.take_over(address)?),
            None => Err(PyRuntimeError::new_err("it runs")),
        })
    }

    /// Holds connections on the calling thread until it is stopped, or another holder has taken over. Raises OSError,
    /// RuntimeError.
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        let holder = self.take()?;
        Ok(py.detach(|| holder.run())?)
    }

    /// As `run`, on a thread of its own.
    fn start(&self) -> PyResult<()> {
        let holder = self.take()?;
        let run = move || {
            if let Err(fault) = holder.run() {
                let line = format!("held connections were closed: {fault}");
                Python::attach(|py| log::log(py, Level::Error, &line, None));
            }
        };
        let thread = std::thread::Builder::new().name(String::from("tailrace-holder")).spawn(run)?;
        *lock(&self.thread) = Some(thread);
        Ok(())
    }

    /// True when the thread of `start` has ended.
    fn has_ended(&self) -> bool {
        lock(&self.thread).as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Ends all responses, and then `run`, for which it waits if `start` was called, for at most this many seconds. Any thread.
    #[pyo3(signature = (timeout=0.0, /))]
    fn stop(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let until = clock::now() + seconds(timeout)?;
        self.stop.stop();
        let thread = lock(&self.thread).take();
        py.detach(|| {
            while thread.as_ref().is_some_and(|thread| !thread.is_finished()) && clock::now() < until {
                clock::sleep(Duration::from_millis(1));
            }
        });
        Ok(())
    }
}

impl PythonHolder {
    fn take(&self) -> PyResult<tailrace_holder::Holder> {
        lock(&self.holder).take().ok_or_else(|| PyRuntimeError::new_err("it runs"))
    }
}
