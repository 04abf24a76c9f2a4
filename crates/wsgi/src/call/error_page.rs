//! The page with a traceback that a browser gets in debug mode.

use pyo3::prelude::*;
use pyo3::types::{PyList, PySlice, PyString};

use crate::ffi;
use crate::python::exceptions::is_interruption;

/// Characters of a line of a traceback that a page shows.
const LONGEST_LINE: usize = 64 * 1024;

/// The traceback as HTML for the browser, escaped.
pub(crate) fn traceback_page(py: Python<'_>, error: &PyErr) -> String {
    let formatted = || -> PyResult<String> {
        let lines = py
            .import("traceback")?
            .call_method1("format_exception", (error.get_type(py), error.value(py), error.traceback(py)))?;
        let mut text = String::new();
        for line in lines.cast::<PyList>()? {
            let line = line.cast::<PyString>()?;
            if line.len()? <= LONGEST_LINE {
                text.push_str(&line.to_string_lossy());
            } else {
                // The text of an exception may have any size.
                text.push_str(&line.get_item(PySlice::new(py, 0, LONGEST_LINE as isize, 1))?.str()?.to_string_lossy());
                text.push_str("...\n");
            }
        }
        Ok(text)
    };
    let text = formatted().unwrap_or_else(|fault| {
        if is_interruption(py, &fault) {
            ffi::thread::interrupt_main();
        }
        String::from("Its traceback is not available.")
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
