//! Native strings of PEP 3333: `str` objects whose characters stand for bytes (latin-1), read and made without a
//! detour over UTF-8.

use std::os::raw::c_char;
use std::slice;

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// A `str` of exactly these bytes, each one character.
#[inline]
pub(crate) fn latin1<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyString>> {
    let length = ffi::Py_ssize_t::try_from(bytes.len()).map_err(|_| PyMemoryError::new_err("string too long"))?;
    // SAFETY: pointer and length are those of a live slice; the result is a new reference or null with an exception
    // set, and it is a `str`.
    unsafe {
        let text = ffi::PyUnicode_DecodeLatin1(bytes.as_ptr().cast::<c_char>(), length, std::ptr::null());
        Ok(Bound::from_owned_ptr_or_err(py, text)?.cast_into_unchecked())
    }
}

/// The bytes that a `str` represents, in place; `None` if it has a character beyond latin-1.
#[inline]
pub(crate) fn as_latin1<'a>(text: &'a Bound<'_, PyString>) -> Option<&'a [u8]> {
    let object = text.as_ptr();
    // SAFETY: `object` is a live `str` (or a subclass, which has the same layout). Once it is ready, a kind of 1 means
    // that its data are `length` bytes, one per character; a `str` is immutable, so they live and stay as long as
    // `text` is borrowed.
    unsafe {
        if ffi::PyUnicode_READY(object) != 0 {
            ffi::PyErr_Clear();
            return None;
        }
        if ffi::PyUnicode_KIND(object) != ffi::PyUnicode_1BYTE_KIND {
            return None;
        }
        let length = usize::try_from(ffi::PyUnicode_GET_LENGTH(object)).ok()?;
        Some(slice::from_raw_parts(ffi::PyUnicode_DATA(object).cast::<u8>(), length))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn every_byte_survives_both_ways() {
        Python::attach(|py| {
            let all: Vec<u8> = (0..=255).collect();
            let text = latin1(py, &all).unwrap();
            assert_eq!(as_latin1(&text).unwrap(), all.as_slice());
            assert_eq!(text.len().unwrap(), 256);
            let ascii = latin1(py, b"plain").unwrap();
            assert_eq!(as_latin1(&ascii).unwrap(), b"plain");
            assert_eq!(as_latin1(&latin1(py, b"").unwrap()).unwrap(), b"");
        });
    }

    #[test]
    fn beyond_latin1_is_refused() {
        Python::attach(|py| {
            assert!(as_latin1(&PyString::new(py, "\u{20ac}")).is_none());
            assert!(as_latin1(&PyString::new(py, "\u{1f600}")).is_none());
            assert_eq!(as_latin1(&PyString::new(py, "\u{e9}")).unwrap(), b"\xe9");
        });
    }
}
