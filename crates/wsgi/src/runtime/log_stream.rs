//! `LogStream`: standard error for `tailrace/log.py`, written without waiting for its reader.
//!
//! Any thread.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tailrace_server::LogStream as Lines;

/// Standard error, for a log.
#[pyclass(frozen, name = "LogStream", module = "tailrace._tailrace")]
pub(crate) struct LogStream(Lines);

#[pymethods]
impl LogStream {
    #[new]
    fn new() -> Self {
        Self(Lines::stderr())
    }

    /// Writes a line, which ends with a newline. What standard error does not accept at once waits in memory; if too
    /// much waits, lines are dropped and counted.
    #[pyo3(signature = (line, /))]
    fn write(&self, py: Python<'_>, line: &[u8]) {
        py.detach(|| self.0.write(line));
    }

    /// Writes the lines that wait, for at most this many seconds; True: all are written.
    #[pyo3(signature = (seconds, /))]
    fn flush(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let time = Duration::try_from_secs_f64(seconds)
            .map_err(|_| PyValueError::new_err("seconds must be a number that is not negative"))?;
        Ok(py.detach(|| self.0.flush(time)))
    }

    /// The descriptor that is writable when lines that wait can be written; None: no line waits.
    fn waits_for(&self) -> Option<i32> {
        self.0.waits_for()
    }

    /// From now on a thread writes the lines that wait. Only for a process that forks no workers, since a process with
    /// threads must not fork.
    fn allow_thread(&self) {
        self.0.allow_thread();
    }
}
