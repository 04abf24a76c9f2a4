//! A hint, logged once, about a Django project whose static files nobody serves. Any attached thread.
//!
//! Successful responses pay a comparison of the status; other applications, one call of Python after their first 404.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use tailrace_observe::level::Level;
use tailrace_server::Exchange;

use crate::python::log;
use tailrace_http::percent::percent_decode;

/// The functions that know Django.
const MODULE: &str = "tailrace.worker.static_hint";

#[derive(Default)]
pub(crate) struct UnservedStatic {
    /// The path of the project's static files; `None` inside: there is no such project.
    path: OnceLock<Option<String>>,
    /// A path below it has been looked at.
    is_done: AtomicBool,
}

impl UnservedStatic {
    /// Looks at a response with status 404.
    #[cold]
    pub(crate) fn note_missing(&self, py: Python<'_>, exchange: &Exchange) {
        if self.is_done.load(Ordering::Relaxed) {
            return;
        }
        // Not `get_or_init`: another thread that waited there with the interpreter would never let this one end.
        let path = match self.path.get() {
            Some(path) => path,
            None => {
                // A project that cannot be asked gets no hint.
                let found = ask(py, "static_path", ()).unwrap_or_default();
                let _ = self.path.set(found);
                let Some(path) = self.path.get() else { return };
                path
            }
        };
        let Some(path) = path else {
            return self.is_done.store(true, Ordering::Relaxed);
        };
        let request = exchange.request();
        let target = percent_decode(request.head.path.of(&request.bytes));
        if !target.starts_with(path.as_bytes()) || self.is_done.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Ok(Some(hint)) = ask(py, "hint", (String::from_utf8_lossy(&target).as_ref(),)) {
            log::log(py, Level::Warning, &format!("{}: {hint}", exchange.request_line()), None);
        }
    }
}

fn ask<'py>(py: Python<'py>, function: &str, arguments: impl pyo3::call::PyCallArgs<'py>) -> PyResult<Option<String>> {
    py.import(MODULE)?.call_method1(function, arguments)?.extract()
}
