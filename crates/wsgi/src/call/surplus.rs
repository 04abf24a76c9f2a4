//! Warnings about applications that return more than their response may have: bytes beyond `Content-Length`, fields
//! that belong to the server, a file that the server is not configured to send. The last is logged once, the others
//! once per path. Any attached thread.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use tailrace_files::config::NamedBy;
use tailrace_observe::level::Level;
use tailrace_server::Exchange;

use crate::call::rest::Dropped;
use crate::python::log;
use tailrace_http::percent::percent_decode;

/// Maximum number of warnings that are remembered. Beyond it, further ones are not logged.
const MAX_LOGGED: usize = 100;

/// The key of the warning about the length of a path's responses.
fn length_of(path: &str) -> String {
    format!("length {path}")
}

#[derive(Default)]
pub(crate) struct SurplusWarnings {
    logged: Mutex<HashSet<String>>,
    /// The warning about a file that is not sent has been logged.
    has_named_file: AtomicBool,
}

impl SurplusWarnings {
    /// True when this warning has not been logged yet.
    fn is_first(&self, key: String) -> bool {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        logged.len() < MAX_LOGGED && logged.insert(key)
    }

    /// Warns of an omitted part of a response: the end of a block, a field.
    #[cold]
    pub(crate) fn warn_of_response(&self, py: Python<'_>, exchange: &mut Exchange) {
        let (surplus, field) =
            (exchange.response().bytes_beyond_content_length(), exchange.response_mut().head().dropped());
        let declared = exchange.response_mut().head().declared_length();
        let request = exchange.request();
        // As `environ` has it: `warn_of_rest` may come to the same response.
        let path: String =
            percent_decode(request.head.path.of(&request.bytes)).iter().copied().map(char::from).collect();
        if let (1.., Some(declared)) = (surplus, declared)
            && self.is_first(length_of(&path))
        {
            let message = format!(
                "{}: the application gave more than its Content-Length of {declared}; {surplus} bytes were dropped. \
                 Correct the field, or omit it: the server adds it. This is logged once per path.",
                exchange.request_line()
            );
            log::log(py, Level::Warning, &message, None);
        }
        if let Some(field) = field
            && self.is_first(format!("{field} {path}"))
        {
            let remedy = match field {
                "Connection" => "the application may use only its option close",
                _ => "it describes the connection, which belongs to the server (PEP 3333), so omit it",
            };
            let message = format!(
                "{}: the application's field {field} was dropped: {remedy}. This is logged once per path.",
                exchange.request_line()
            );
            log::log(py, Level::Warning, &message, None);
        }
    }

    /// Warns of a response with status 200 and without a body that names a file for the server, which has no folder for
    /// such files. A response to HEAD has no body in any case.
    pub(crate) fn warn_of_unsent_file(&self, py: Python<'_>, exchange: &mut Exchange) {
        let field = NamedBy::Sendfile.field();
        if self.has_named_file.load(Ordering::Relaxed) || !exchange.response_mut().head().has(field.as_bytes()) {
            return;
        }
        let request = exchange.request();
        if request.head.method.of(&request.bytes) == b"HEAD" || self.has_named_file.swap(true, Ordering::Relaxed) {
            return;
        }
        let message = format!(
            "{}: the application names a file in {field}, which is sent to the client instead of the file, since no \
             folder is set for it. Start with --sendfile-root FOLDER, unless a proxy in front reads the field. This is \
             logged once.",
            exchange.request_line()
        );
        log::log(py, Level::Warning, &message, None);
    }

    /// Warns of what the iterable yielded after its response was complete, unless the request asked only for the head.
    pub(crate) fn warn_of_rest(&self, environ: &Bound<'_, PyDict>, dropped: Dropped) {
        if dropped.bytes == 0 && dropped.is_over {
            return;
        }
        let text = |name: &str| -> String {
            let value = environ.get_item(name).ok().flatten();
            value
                .and_then(|value| value.cast::<PyString>().ok().map(|text| text.to_string_lossy().into_owned()))
                .unwrap_or_default()
        };
        let method = text("REQUEST_METHOD");
        if method == "HEAD" {
            return;
        }
        let path = text("SCRIPT_NAME") + &text("PATH_INFO");
        if !self.is_first(length_of(&path)) {
            return;
        }
        let Dropped { bytes, is_over } = dropped;
        let end = if is_over { "" } else { "; it did not come to an end and was closed" };
        let message = format!(
            "{method} {path}: the application gave more than the response may contain; {bytes} bytes were dropped{end}. \
             Correct its Content-Length or its status. This is logged once per path."
        );
        log::log(environ.py(), Level::Warning, &message, None);
    }
}
