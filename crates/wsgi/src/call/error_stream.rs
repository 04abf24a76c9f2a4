//! `wsgi.errors`: a text stream that writes to whatever `sys.stderr` is at that moment, so that redirecting it works
//! in applications as it does elsewhere. One per server; any thread.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::python::type_name::type_name;

/// The text stream of `wsgi.errors`.
#[pyclass(frozen, name = "ErrorStream", module = "tailrace._tailrace")]
pub(crate) struct ErrorStream;

fn stderr(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    // A process without a standard error has None there.
    Ok(py.import("sys")?.getattr_opt("stderr")?.filter(|stream| !stream.is_none()))
}

#[pymethods]
impl ErrorStream {
    /// Writes text; the number of characters.
    #[pyo3(signature = (text, /))]
    fn write(&self, text: &Bound<'_, PyAny>) -> PyResult<usize> {
        let Ok(text) = text.cast::<PyString>() else {
            return Err(PyTypeError::new_err(format!("wsgi.errors takes str, not {}", type_name(text))));
        };
        if let Some(stream) = stderr(text.py())? {
            stream.call_method1("write", (text,))?;
        }
        text.len()
    }

    /// Writes each of some texts.
    #[pyo3(signature = (lines, /))]
    fn writelines(&self, lines: &Bound<'_, PyAny>) -> PyResult<()> {
        for line in lines.try_iter()? {
            self.write(&line?)?;
        }
        Ok(())
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        match stderr(py)? {
            Some(stream) => stream.call_method0("flush").map(drop),
            None => Ok(()),
        }
    }

    /// Leaves the stream open; it is the process's.
    fn close(&self) {}

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {}

    /// `encoding`, `isatty`, `fileno` and the rest are those of `sys.stderr`.
    fn __getattr__<'py>(&self, py: Python<'py>, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
        match stderr(py)? {
            Some(stream) => stream.getattr(name),
            None => Err(pyo3::exceptions::PyAttributeError::new_err(name.clone().unbind())),
        }
    }
}
