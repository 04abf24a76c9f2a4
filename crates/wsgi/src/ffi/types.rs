//! Checks of types that pyo3 does not have.

use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyIterator;

/// True for a generator.
#[inline]
pub(crate) fn is_generator(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: a check of a live object's type.
    unsafe { ffi::PyGen_CheckExact(object.as_ptr()) != 0 }
}

/// True for a function that is written in Python.
pub(crate) fn is_function(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: a check of a live object's type.
    unsafe { ffi::PyFunction_Check(object.as_ptr()) != 0 }
}

/// True for a function or a bound method that is written in C.
pub(crate) fn is_builtin_function(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: a check of a live object's type.
    unsafe { ffi::PyCFunction_CheckExact(object.as_ptr()) != 0 }
}

/// True for an iterator over a list or a tuple: no Python code runs between two of its items.
pub(crate) fn is_list_or_tuple_iterator(iterator: &Bound<'_, PyIterator>) -> bool {
    let kind = iterator.get_type_ptr();
    ptr::eq(kind, &raw const ffi::PyListIter_Type) || ptr::eq(kind, &raw const ffi::PyTupleIter_Type)
}

/// True when the object's type has a length, so that `len()` may be called.
pub(crate) fn has_length(object: &Bound<'_, PyAny>) -> bool {
    let kind = object.get_type_ptr();
    // SAFETY: a live object's type has these tables or null in their place; they live as long as the type.
    unsafe {
        let sequence = (*kind).tp_as_sequence;
        let mapping = (*kind).tp_as_mapping;
        (!sequence.is_null() && (*sequence).sq_length.is_some())
            || (!mapping.is_null() && (*mapping).mp_length.is_some())
    }
}
