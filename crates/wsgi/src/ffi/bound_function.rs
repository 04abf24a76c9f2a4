//! C functions bound to an object of one of our classes: cheaper to call than a method, and one object for all
//! requests.
//!
//! A function is a type that implements [`NoArguments`], [`OneArgument`] or [`NamedArguments`]; `bind` makes the Python
//! object. Errors become exceptions, and so do panics, which must not cross into C. Any attached thread.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use pyo3::PyClass;
use pyo3::exceptions::PySystemError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::pyclass::boolean_struct::True;
use pyo3::types::PyTuple;

type Object = *mut ffi::PyObject;

/// What a bound function is: its name and its documentation, for CPython, and the object that it is bound to.
pub(crate) trait BoundFunction: 'static {
    type State: PyClass<Frozen = True> + Sync;
    const NAME: &'static CStr;
    const DOC: &'static CStr;
}

/// A function that takes nothing.
pub(crate) trait NoArguments: BoundFunction {
    fn call<'py>(py: Python<'py>, state: &Self::State) -> PyResult<Bound<'py, PyAny>>;
}

/// A function that takes one argument.
pub(crate) trait OneArgument: BoundFunction {
    fn call<'py>(state: &Self::State, argument: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>;
}

/// A function that takes positional and named arguments.
pub(crate) trait NamedArguments: BoundFunction {
    fn call<'py>(py: Python<'py>, state: &Self::State, arguments: &Arguments<'_, 'py>) -> PyResult<Bound<'py, PyAny>>;
}

/// The arguments of a call.
pub(crate) struct Arguments<'a, 'py> {
    py: Python<'py>,
    given: &'a [Object],
    positional: usize,
    names: Option<Bound<'py, PyTuple>>,
}

impl<'py> Arguments<'_, 'py> {
    /// How many positional arguments there are.
    pub(crate) fn positional(&self) -> usize {
        self.positional
    }

    /// The names of the named arguments, which follow the positional ones.
    pub(crate) fn names(&self) -> Option<&Bound<'py, PyTuple>> {
        self.names.as_ref()
    }

    /// An argument, counted from the first positional one.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<Bound<'py, PyAny>> {
        let argument = *self.given.get(index)?;
        // SAFETY: an argument lives until the call returns, and `self` no longer than that.
        Some(unsafe { Bound::from_borrowed_ptr(self.py, argument) })
    }
}

/// A definition as CPython reads it.
struct Definition(ffi::PyMethodDef);

// SAFETY: CPython reads a method definition and never writes it; the pointers in it are to constants.
unsafe impl Sync for Definition {}

struct OfNoArguments<F>(PhantomData<F>);

impl<F: NoArguments> OfNoArguments<F> {
    const DEFINITION: &'static Definition = &Definition(ffi::PyMethodDef {
        ml_name: F::NAME.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunction: no_arguments_entry::<F> },
        ml_flags: ffi::METH_NOARGS,
        ml_doc: F::DOC.as_ptr(),
    });
}

struct OfOneArgument<F>(PhantomData<F>);

impl<F: OneArgument> OfOneArgument<F> {
    const DEFINITION: &'static Definition = &Definition(ffi::PyMethodDef {
        ml_name: F::NAME.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunction: one_argument_entry::<F> },
        ml_flags: ffi::METH_O,
        ml_doc: F::DOC.as_ptr(),
    });
}

struct OfNamedArguments<F>(PhantomData<F>);

impl<F: NamedArguments> OfNamedArguments<F> {
    const DEFINITION: &'static Definition = &Definition(ffi::PyMethodDef {
        ml_name: F::NAME.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: named_arguments_entry::<F> },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: F::DOC.as_ptr(),
    });
}

/// Makes the Python object of a function that takes nothing.
pub(crate) fn bind_no_arguments<F: NoArguments>(state: &Bound<'_, F::State>) -> PyResult<Py<PyAny>> {
    // SAFETY: the definition is that of an entry which expects an `F::State`.
    unsafe { bind(OfNoArguments::<F>::DEFINITION, state.as_any()) }
}

/// Makes the Python object of a function that takes one argument.
pub(crate) fn bind_one_argument<F: OneArgument>(state: &Bound<'_, F::State>) -> PyResult<Py<PyAny>> {
    // SAFETY: as above.
    unsafe { bind(OfOneArgument::<F>::DEFINITION, state.as_any()) }
}

/// Makes the Python object of a function that takes named arguments.
pub(crate) fn bind_named_arguments<F: NamedArguments>(state: &Bound<'_, F::State>) -> PyResult<Py<PyAny>> {
    // SAFETY: as above.
    unsafe { bind(OfNamedArguments::<F>::DEFINITION, state.as_any()) }
}

/// # Safety
/// The entry of the definition expects an object of the type of `state`.
unsafe fn bind(definition: &'static Definition, state: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    // SAFETY: the definition is never written; the function takes its own reference to `state`.
    unsafe {
        let function =
            ffi::PyCFunction_NewEx((&raw const definition.0).cast_mut(), state.as_ptr(), std::ptr::null_mut());
        Ok(Bound::from_owned_ptr_or_err(state.py(), function)?.unbind())
    }
}

/// Runs a call from CPython.
fn guarded<'py>(py: Python<'py>, call: impl FnOnce() -> PyResult<Bound<'py, PyAny>>) -> Object {
    let error = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(returned)) => return returned.into_ptr(),
        Ok(Err(error)) => error,
        Err(_panic) => {
            PySystemError::new_err("a panic in Tailrace while it wrote the response; please report it with the log")
        }
    };
    error.restore(py);
    std::ptr::null_mut()
}

unsafe extern "C" fn no_arguments_entry<F: NoArguments>(state: Object, _: Object) -> Object {
    // SAFETY: CPython calls this attached, with the object that `bind_no_arguments` bound, alive until the call
    // returns.
    let (py, state) = unsafe {
        let py = Python::assume_attached();
        (py, Bound::from_borrowed_ptr(py, state).cast_into_unchecked::<F::State>())
    };
    guarded(py, || F::call(py, state.get()))
}

unsafe extern "C" fn one_argument_entry<F: OneArgument>(state: Object, argument: Object) -> Object {
    // SAFETY: CPython calls this attached, with the object that `bind_one_argument` bound and one argument, both alive
    // until the call returns.
    let (py, state, argument) = unsafe {
        let py = Python::assume_attached();
        let state = Bound::from_borrowed_ptr(py, state).cast_into_unchecked::<F::State>();
        (py, state, Bound::from_borrowed_ptr(py, argument))
    };
    guarded(py, || F::call(state.get(), &argument))
}

unsafe extern "C" fn named_arguments_entry<F: NamedArguments>(
    state: Object,
    arguments: *const Object,
    count: ffi::Py_ssize_t,
    names: Object,
) -> Object {
    // SAFETY: CPython calls this attached, with the object that `bind_named_arguments` bound, `count` positional
    // arguments and after them one for each name in the tuple `names`; all of them live until the call returns.
    let (py, state, arguments) = unsafe {
        let py = Python::assume_attached();
        let state = Bound::from_borrowed_ptr(py, state).cast_into_unchecked::<F::State>();
        let names = if names.is_null() {
            None
        } else {
            Some(Bound::from_borrowed_ptr(py, names).cast_into_unchecked::<PyTuple>())
        };
        let positional = usize::try_from(count).unwrap_or(0);
        let total = positional + names.as_ref().map_or(0, |names| names.len());
        let given = if total == 0 { &[] } else { slice::from_raw_parts(arguments, total) };
        (py, state, Arguments { py, given, positional, names })
    };
    guarded(py, || F::call(py, state.get(), &arguments))
}
