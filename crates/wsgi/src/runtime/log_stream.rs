//! `LogStream`: the destination of the server's own log, for `tailrace/logs/log.py`, written without waiting for it.
//!
//! Any thread.

use std::ffi::OsString;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tailrace_observe::access_log::Destination;
use tailrace_observe::server_log::ServerLog;

/// The destination of a log.
#[pyclass(frozen, name = "LogStream", module = "tailrace._tailrace")]
pub(crate) struct PythonLogStream(ServerLog);

#[pymethods]
impl PythonLogStream {
    /// destination: a value of `--log`. json: texts are JSON objects. Raises ValueError for an invalid destination, and
    /// OSError, whose text names it, if it cannot be opened.
    #[new]
    #[pyo3(signature = (destination, /, *, json=false))]
    fn new(py: Python<'_>, destination: OsString, json: bool) -> PyResult<Self> {
        let destination = Destination::parse(&destination).map_err(PyValueError::new_err)?;
        Ok(Self(py.detach(|| ServerLog::open(destination, json))?))
    }

    /// Writes a text, which may have several lines. severity: that of syslog, 0 to 7. fields: further ones for the
    /// journal. What is not accepted at once waits in memory; if too much waits, entries are dropped and counted.
    #[pyo3(signature = (severity, text, fields=Vec::new(), /))]
    fn write(&self, py: Python<'_>, severity: u8, text: &[u8], fields: Vec<(String, Vec<u8>)>) {
        py.detach(|| self.0.write(severity, text, &fields));
    }

    /// Opens a file again by its name. Raises OSError, whose text names it; then the log goes to the old one.
    fn reopen(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.0.reopen())?)
    }

    /// This log in a forked child, without queued entries; None: it cannot be opened there.
    fn in_child(&self) -> Option<Self> {
        self.0.in_child().map(Self)
    }

    /// Writes queued entries, for at most this many seconds; True: all are written.
    #[pyo3(signature = (seconds, /))]
    fn flush(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let time = Duration::try_from_secs_f64(seconds)
            .map_err(|_| PyValueError::new_err("seconds must be a number that is not negative"))?;
        Ok(py.detach(|| self.0.flush(time)))
    }

    /// The descriptor that is writable when what waits can be written; None: nothing waits.
    fn waits_for(&self) -> Option<i32> {
        self.0.waits_for()
    }

    /// From now on, a thread writes queued entries. Only for a process that forks no workers, because a process with
    /// threads must not fork.
    fn allow_thread(&self) {
        self.0.allow_thread();
    }
}
