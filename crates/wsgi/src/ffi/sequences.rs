//! Lists and tuples: copies, and the pairs of a list of headers.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

/// `list(iterable)`.
pub(crate) fn list_of<'py>(iterable: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    // SAFETY: the argument is a live object; the result is a new list or null with an exception set.
    unsafe {
        let list = Bound::from_owned_ptr_or_err(iterable.py(), ffi::PySequence_List(iterable.as_ptr()))?;
        Ok(list.cast_into_unchecked())
    }
}

/// `tuple(list)`. pyo3's `to_tuple` panics where there is no memory for it.
pub(crate) fn tuple_of<'py>(list: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyTuple>> {
    // SAFETY: the argument is a live list; the result is a new tuple or null with an exception set.
    unsafe {
        let tuple = Bound::from_owned_ptr_or_err(list.py(), ffi::PyList_AsTuple(list.as_ptr()))?;
        Ok(tuple.cast_into_unchecked())
    }
}

/// The two items of a tuple; `None` when it has another number of them.
#[inline]
pub(crate) fn pair<'a, 'py>(
    tuple: &'a Bound<'py, PyTuple>,
) -> Option<(Borrowed<'a, 'py, PyAny>, Borrowed<'a, 'py, PyAny>)> {
    if tuple.len() != 2 {
        return None;
    }
    // SAFETY: the tuple has two items.
    Some(unsafe { (tuple.get_borrowed_item_unchecked(0), tuple.get_borrowed_item_unchecked(1)) })
}

/// True when a list or tuple of pairs has the very objects of the pairs in `known`, in this order. False for what is
/// neither, and in free-threaded builds, where another thread could change a list at any moment.
#[inline]
pub(crate) fn has_the_pairs(pairs: &Bound<'_, PyAny>, known: &[Py<PyTuple>]) -> bool {
    if cfg!(Py_GIL_DISABLED) {
        return false;
    }
    if let Ok(list) = pairs.cast::<PyList>() {
        // SAFETY: the index is below the length, and the list cannot change in here, where neither Python code nor
        // another thread runs; an item is a live object.
        list.len() == known.len()
            && known.iter().enumerate().all(|(index, known)| unsafe {
                is_same_pair(ffi::PyList_GET_ITEM(list.as_ptr(), index.cast_signed()), known.as_ptr())
            })
    } else if let Ok(tuple) = pairs.cast::<PyTuple>() {
        // SAFETY: the index is below the length; an item is a live object.
        tuple.len() == known.len()
            && known.iter().enumerate().all(|(index, known)| unsafe {
                is_same_pair(ffi::PyTuple_GET_ITEM(tuple.as_ptr(), index.cast_signed()), known.as_ptr())
            })
    } else {
        false
    }
}

/// True for the same object, and for two tuples of the same two objects.
///
/// # Safety
/// Both are live objects, `known` is a tuple.
#[inline]
unsafe fn is_same_pair(object: *mut ffi::PyObject, known: *mut ffi::PyObject) -> bool {
    if object == known {
        return true;
    }
    // SAFETY: promised by the caller; items are read only of tuples of two.
    unsafe {
        ffi::PyTuple_CheckExact(object) != 0
            && ffi::PyTuple_GET_SIZE(object) == 2
            && ffi::PyTuple_GET_SIZE(known) == 2
            && ffi::PyTuple_GET_ITEM(object, 0) == ffi::PyTuple_GET_ITEM(known, 0)
            && ffi::PyTuple_GET_ITEM(object, 1) == ffi::PyTuple_GET_ITEM(known, 1)
    }
}
