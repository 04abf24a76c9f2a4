//! `bytes` objects: made without a panic where there is no memory, and their data, which other threads may read without
//! the interpreter.
//!
//! A `bytes` object never changes, and nor do its items change in a tuple: data and length stay as they are for as long
//! as somebody keeps the object. [`SharedBytes`] keeps it.

use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

/// Slices that are laid out on the stack.
const FEW: usize = 16;

/// A `bytes` object with these bytes. `PyBytes::new` panics where there is no memory for it.
pub(crate) fn copy_of<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let length = ffi::Py_ssize_t::try_from(bytes.len())?;
    // SAFETY: pointer and length are those of a live slice; the result is a new reference or null with an exception
    // set.
    unsafe {
        let copy = ffi::PyBytes_FromStringAndSize(bytes.as_ptr().cast(), length);
        Ok(Bound::from_owned_ptr_or_err(py, copy)?.cast_into_unchecked())
    }
}

/// A copy of what an object with the buffer protocol holds; `None` for an object without it.
pub(crate) fn of_buffer<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyBytes>>> {
    // SAFETY: a check of a live object's type.
    if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 0 {
        return Ok(None);
    }
    // SAFETY: the argument is a live object; the result is a new `bytes` object or null with an exception set.
    let copy = unsafe { Bound::from_owned_ptr_or_err(object.py(), ffi::PyBytes_FromObject(object.as_ptr()))? };
    Ok(Some(copy.cast_into::<PyBytes>()?))
}

/// Copies data to the beginning of a buffer.
///
/// # Errors
/// `ValueError` for a buffer that cannot be written to, is not contiguous, or is too short.
pub(crate) fn write_to(buffer: &PyBuffer<u8>, data: &Bound<'_, PyBytes>) -> PyResult<()> {
    let data = data.as_bytes();
    if buffer.readonly() || !buffer.is_c_contiguous() || buffer.len_bytes() < data.len() {
        return Err(PyValueError::new_err("the buffer must be writable, contiguous and long enough"));
    }
    // SAFETY: the buffer is writable, contiguous and at least as long as `data`; they may overlap.
    unsafe { std::ptr::copy(data.as_ptr(), buffer.buf_ptr().cast::<u8>(), data.len()) };
    Ok(())
}

/// The data of a `bytes` object, kept alive by a reference to it, or to a tuple that it is in. Any thread may read and
/// drop it.
#[derive(Clone)]
pub(crate) struct SharedBytes {
    owner: Arc<Py<PyAny>>,
    bytes: *const [u8],
}

// SAFETY: `bytes` lies in an immutable `bytes` object that `owner` keeps alive; reading it needs no interpreter.
unsafe impl Send for SharedBytes {}
// SAFETY: as above; nothing changes the bytes.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    /// The data of this object.
    pub(crate) fn of(block: &Bound<'_, PyBytes>) -> Self {
        Self { owner: Arc::new(block.clone().into_any().unbind()), bytes: block.as_bytes() }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the constructors take the data of an object that `owner` keeps alive, and `self` keeps `owner`.
        unsafe { &*self.bytes }
    }

    /// Drops it. True when no other one refers to the owner, so that the reference to the object was dropped, too.
    pub(crate) fn release(self) -> bool {
        Arc::into_inner(self.owner).is_some()
    }
}

/// The data of all `bytes` objects of a tuple.
pub(crate) struct Slices<'a> {
    tuple: &'a Bound<'a, PyTuple>,
    slices: &'a [&'a [u8]],
}

impl<'a> Slices<'a> {
    /// Lends the data of a tuple's items to `look`.
    ///
    /// # Errors
    /// `TypeError` when an item is not a `bytes` object, `MemoryError`, and what `look` fails with.
    #[inline]
    pub(crate) fn lend<R>(tuple: &Bound<'_, PyTuple>, look: impl FnOnce(&Slices<'_>) -> PyResult<R>) -> PyResult<R> {
        let mut few: [&[u8]; FEW] = [&[]; FEW];
        let mut many = Vec::new();
        let slices: &[&[u8]] = if tuple.len() <= FEW {
            for (slice, item) in few.iter_mut().zip(tuple.iter_borrowed()) {
                *slice = data_of(tuple, &item)?;
            }
            &few[..tuple.len()]
        } else {
            many.try_reserve_exact(tuple.len()).map_err(|_| {
                pyo3::exceptions::PyMemoryError::new_err("not enough memory for the blocks of the response")
            })?;
            for item in tuple.iter_borrowed() {
                many.push(data_of(tuple, &item)?);
            }
            &many
        };
        look(&Slices { tuple, slices })
    }

    #[inline]
    pub(crate) fn all(&self) -> &'a [&'a [u8]] {
        self.slices
    }

    /// A reference to the tuple, by which a thread that is not attached can share the slices.
    pub(crate) fn owner(&self) -> SliceOwner<'a> {
        SliceOwner { owner: Arc::new(self.tuple.clone().into_any().unbind()), slices: self.slices }
    }
}

/// See [`Slices::owner`].
pub(crate) struct SliceOwner<'a> {
    owner: Arc<Py<PyAny>>,
    slices: &'a [&'a [u8]],
}

impl SliceOwner<'_> {
    /// The slice at an index, kept alive by the tuple.
    pub(crate) fn share(&self, index: usize) -> SharedBytes {
        SharedBytes { owner: Arc::clone(&self.owner), bytes: self.slices[index] }
    }
}

/// The data of an item of a tuple.
#[inline]
fn data_of<'a>(tuple: &'a Bound<'_, PyTuple>, item: &Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    let _ = tuple;
    let bytes: *const [u8] = item.cast::<PyBytes>()?.as_bytes();
    // SAFETY: the tuple keeps its items, and a `bytes` object keeps its data, as long as the tuple is borrowed.
    Ok(unsafe { &*bytes })
}
