//! A copy of the `contextvars` context: changes to context variables made while it is entered do not outlast it.

use pyo3::ffi;
use pyo3::prelude::*;

/// An entered copy of the calling thread's context. [`EnteredContext::leave`] leaves it; so does the drop, when the
/// thread unwinds.
pub(crate) struct EnteredContext<'py>(Option<Bound<'py, PyAny>>);

impl<'py> EnteredContext<'py> {
    /// Copies the context of the calling thread and enters the copy.
    ///
    /// # Errors
    /// There is no memory for a copy.
    pub(crate) fn enter(py: Python<'py>) -> PyResult<Self> {
        // SAFETY: attached; the result is a new reference or null with an exception set.
        let context = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyContext_CopyCurrent())? };
        // SAFETY: `context` is a context object, as made above.
        if unsafe { ffi::PyContext_Enter(context.as_ptr()) } != 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(Self(Some(context)))
    }

    /// Leaves the context.
    ///
    /// # Errors
    /// The application has left it, or has entered another one and stayed there.
    pub(crate) fn leave(mut self) -> PyResult<()> {
        self.exit()
    }

    fn exit(&mut self) -> PyResult<()> {
        let Some(context) = self.0.take() else { return Ok(()) };
        // SAFETY: a live context object; one that this thread has not entered, or has left, is an error of the call.
        if unsafe { ffi::PyContext_Exit(context.as_ptr()) } == 0 { Ok(()) } else { Err(PyErr::fetch(context.py())) }
    }
}

impl Drop for EnteredContext<'_> {
    fn drop(&mut self) {
        drop(self.exit());
    }
}
