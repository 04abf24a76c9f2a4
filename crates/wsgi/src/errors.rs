//! What goes wrong, told to people: lines of the logger `penstock.error`, and the page with a traceback in debug mode.
//!
//! The server's I/O threads must not wait for the interpreter in order to log, so their lines go through a bounded
//! channel to a thread of their own, started with the first line. When it is full, lines are dropped: a flood of them
//! says the same thing many times.

use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use penstock_server::handler::Level;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyString};

/// Lines that wait for the interpreter.
const WAITING_LINES: usize = 256;

static LOGGER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn logger(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    LOGGER
        .get_or_try_init(py, || Ok(py.import("logging")?.call_method1("getLogger", ("penstock.error",))?.unbind()))
        .map(|logger| logger.bind(py))
}

/// Finds the logger before it is needed.
pub(crate) fn prepare(py: Python<'_>) -> PyResult<()> {
    logger(py).map(drop)
}

/// Logs a line, and the traceback of `error`. Never fails: what logging itself raises is shown as unraisable.
pub(crate) fn log(py: Python<'_>, level: Level, message: &str, error: Option<&PyErr>) {
    let logged = || -> PyResult<()> {
        let method = match level {
            Level::Debug => "debug",
            Level::Warning => "warning",
            Level::Error => "error",
        };
        let details = PyDict::new(py);
        if let Some(error) = error {
            details.set_item("exc_info", (error.get_type(py), error.value(py), error.traceback(py)))?;
        }
        // "%s" keeps percent signs of a request target from being taken for formatting.
        logger(py)?.call_method(method, ("%s", message), Some(&details)).map(drop)
    };
    match logged() {
        Ok(()) => {}
        Err(fault) if fault.is_instance_of::<PyKeyboardInterrupt>(py) => interrupt_again(),
        Err(fault) => fault.write_unraisable(py, None),
    }
}

/// Ctrl-C reached the main thread in the middle of our own work: it is asked again for where it can be raised.
fn interrupt_again() {
    // SAFETY: sets flags and nothing else.
    unsafe { ffi::PyErr_SetInterrupt() };
}

/// Lines from threads that do not hold the interpreter.
#[derive(Default)]
pub(crate) struct Lines {
    sender: OnceLock<SyncSender<(Level, String)>>,
}

impl Lines {
    /// Hands a line to the logging thread; does not wait.
    pub(crate) fn send(&self, level: Level, message: &str) {
        let sender = self.sender.get_or_init(|| {
            let (sender, receiver) = sync_channel::<(Level, String)>(WAITING_LINES);
            // Without the thread the receiver is gone, and lines are dropped.
            let _ = thread::Builder::new().name(String::from("penstock-log")).spawn(move || {
                while let Ok((level, message)) = receiver.recv() {
                    if Python::try_attach(|py| log(py, level, &message, None)).is_none() {
                        return;
                    }
                }
            });
            sender
        });
        let _ = sender.try_send((level, message.to_owned()));
    }
}

/// The traceback as HTML for the browser, escaped.
pub(crate) fn traceback_page(py: Python<'_>, error: &PyErr) -> String {
    let formatted = || -> PyResult<String> {
        let lines = py
            .import("traceback")?
            .call_method1("format_exception", (error.get_type(py), error.value(py), error.traceback(py)))?;
        let mut text = String::new();
        for line in lines.cast::<PyList>()? {
            text.push_str(&line.cast::<PyString>()?.to_string_lossy());
        }
        Ok(text)
    };
    let text = formatted().unwrap_or_else(|fault| {
        if fault.is_instance_of::<PyKeyboardInterrupt>(py) {
            interrupt_again();
        }
        error.to_string()
    });
    format!("The application raised an exception.<pre>{}</pre>", escape(&text))
}

/// Escapes text for HTML.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + text.len() / 8);
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn markup_is_escaped() {
        assert_eq!(escape("<a href='x'>\"&\u{e9}"), "&lt;a href=&#39;x&#39;&gt;&quot;&amp;\u{e9}");
    }

    #[test]
    fn a_traceback_page_names_the_exception_and_escapes_it() {
        Python::attach(|py| {
            let error = py.run(c"raise ValueError('<script>')", None, None).unwrap_err();
            let page = traceback_page(py, &error);
            assert!(page.contains("ValueError: &lt;script&gt;"), "{page}");
            assert!(page.contains("Traceback"), "{page}");
            assert!(!page.contains("<script>"), "{page}");
        });
    }
}
