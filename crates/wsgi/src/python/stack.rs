//! The current position of a thread: its Python frames, outermost first, as in a traceback. Attached threads.

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The stack of a thread; `None` while it runs no Python code. The lines of the sources are read by [`shown`].
pub(crate) fn of_thread(py: Python<'_>, thread: u64) -> PyResult<Option<Bound<'_, PyAny>>> {
    let frame = py.import("sys")?.call_method0("_current_frames")?.call_method1("get", (thread,))?;
    if frame.is_none() {
        return Ok(None);
    }
    let traceback = py.import("traceback")?;
    let options = PyDict::new(py);
    options.set_item("lookup_lines", false)?;
    let frames = traceback.call_method1("walk_stack", (frame,))?;
    let summary = traceback.getattr("StackSummary")?.call_method("extract", (frames,), Some(&options))?;
    // From the outermost frame, as tracebacks are.
    summary.call_method0("reverse")?;
    Ok(Some(summary))
}

/// The text of a stack, without a line end.
pub(crate) fn shown(stack: PyResult<Option<Bound<'_, PyAny>>>) -> String {
    let format = |stack: Bound<'_, PyAny>| -> PyResult<String> {
        let lines: Vec<String> = stack.call_method0("format")?.extract()?;
        Ok(lines.concat().trim_end().to_owned())
    };
    let text = match stack {
        Ok(None) => return String::from("  (no Python code)"),
        Ok(Some(stack)) => format(stack),
        Err(error) => Err(error),
    };
    text.unwrap_or_else(|error| format!("  (unknown: {error})"))
}
