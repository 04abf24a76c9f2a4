//! Dicts: calls that do without the reference counting and type checks of pyo3's methods.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

/// `dict[key] = value`.
#[inline]
pub(crate) fn set<T>(dict: &Bound<'_, PyDict>, key: &Py<PyString>, value: &Py<T>) -> PyResult<()> {
    // SAFETY: `dict` is a dict, key and value are live objects; the call takes its own references.
    if unsafe { ffi::PyDict_SetItem(dict.as_ptr(), key.as_ptr(), value.as_ptr()) } == 0 {
        Ok(())
    } else {
        Err(PyErr::fetch(dict.py()))
    }
}

/// `dict.setdefault(key, value)`: the value that the key has now.
#[inline]
pub(crate) fn set_default<'py>(
    dict: &Bound<'py, PyDict>,
    key: &Py<PyString>,
    value: &Py<PyString>,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: `dict` is a dict and the two others are live objects; the result is borrowed, null with an exception set
    // when it fails.
    unsafe {
        let found = ffi::PyDict_SetDefault(dict.as_ptr(), key.as_ptr(), value.as_ptr());
        Bound::from_borrowed_ptr_or_err(dict.py(), found)
    }
}
