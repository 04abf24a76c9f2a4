//! `bytes` objects: created without a panic if there is no memory, and their data, which other threads may read without
//! the interpreter.
//!
//! A `bytes` object never changes, and neither do the items of a tuple: data and length stay valid while a reference to
//! the object exists. [`SharedBytes`] holds one.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::{ptr, slice};

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

/// Memory that is filled from its start.
pub(crate) struct Unfilled<'a> {
    memory: &'a mut [MaybeUninit<u8>],
    filled: usize,
}

impl Unfilled<'_> {
    /// Bytes that are not filled yet.
    pub(crate) fn left(&self) -> usize {
        self.memory.len() - self.filled
    }

    /// Appends as many of the bytes as there is room for, and returns their number.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.left());
        let target = &mut self.memory[self.filled..self.filled + count];
        // SAFETY: both are `count` bytes long, and a slice that is borrowed exclusively overlaps no other.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_mut_ptr().cast(), count) };
        self.filled += count;
        count
    }
}

/// A `bytes` object of this length, which `fill` fills. `PyBytes::new_with` writes zeros first.
///
/// # Errors
/// `MemoryError`; `ValueError` if `fill` leaves some of it as it is.
pub(crate) fn filled_by<'py>(
    py: Python<'py>,
    length: usize,
    fill: impl FnOnce(&mut Unfilled<'_>),
) -> PyResult<Bound<'py, PyBytes>> {
    let size = ffi::Py_ssize_t::try_from(length)?;
    // SAFETY: without an address the bytes of the new object are left as they are; the result is a new reference or
    // null with an exception set.
    let object = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(ptr::null(), size))? };
    // SAFETY: nobody else has the object yet, whose data has this length.
    let memory = unsafe { slice::from_raw_parts_mut(ffi::PyBytes_AsString(object.as_ptr()).cast(), length) };
    let mut unfilled = Unfilled { memory, filled: 0 };
    fill(&mut unfilled);
    if unfilled.left() > 0 {
        return Err(PyValueError::new_err("there are fewer bytes than expected"));
    }
    // SAFETY: it was made as a `bytes` object.
    Ok(unsafe { object.cast_into_unchecked() })
}

/// A copy of the data of an object with the buffer protocol; `None` for an object without it.
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
