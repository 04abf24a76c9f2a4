//! References to an object: its reference count, its weak references, its attributes.

use pyo3::ffi;
use pyo3::prelude::*;

/// The reference count of an object. Free-threaded builds split the count between threads, so that this is only a part
/// of it.
#[inline]
pub(crate) fn count(object: &Bound<'_, PyAny>) -> isize {
    // SAFETY: reads the count of a live object.
    unsafe { ffi::Py_REFCNT(object.as_ptr()) }
}

/// True when there are no references to an object but `known` ones of the caller. False in free-threaded builds, where
/// the count does not tell.
#[inline]
pub(crate) fn are_only(object: &Bound<'_, PyAny>, known: isize) -> bool {
    !cfg!(Py_GIL_DISABLED) && count(object) == known
}

/// True when there are weak references to an object, and where its type does not say at which offset they are.
pub(crate) fn has_weak(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: a live object has a type, whose fields may be read. At an offset above 0 is a pointer inside of the
    // object, null or to the first weak reference.
    unsafe {
        let offset = (*ffi::Py_TYPE(object.as_ptr())).tp_weaklistoffset;
        offset <= 0 || !pointer_at(object, offset).is_null()
    }
}

/// True when an object has attributes of its own, and where its type does not say at which offset its `__dict__` is.
pub(crate) fn has_attributes(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: as above; the pointer is null or to a dict.
    unsafe {
        let offset = (*ffi::Py_TYPE(object.as_ptr())).tp_dictoffset;
        if offset <= 0 {
            return true;
        }
        let attributes = pointer_at(object, offset);
        !attributes.is_null() && ffi::PyDict_Size(attributes) != 0
    }
}

/// # Safety
/// The object's type says that a pointer is at this offset.
unsafe fn pointer_at(object: &Bound<'_, PyAny>, offset: isize) -> *mut ffi::PyObject {
    // SAFETY: promised by the caller.
    unsafe { *object.as_ptr().cast::<u8>().offset(offset).cast::<*mut ffi::PyObject>() }
}
