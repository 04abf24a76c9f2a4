//! Calls of Python objects that survive the end of the interpreter.
//!
//! When the interpreter is finalized, a daemon thread that runs Python code is ended by `pthread_exit` as soon as it
//! tries to take the interpreter (CPython before 3.14). This unwinds its stack, and Rust frames that do not expect
//! unwinding abort the process. pyo3 declares these functions as unable to unwind. Here they are declared correctly,
//! and a thread that is ended this way waits for the end of the process instead, as in CPython 3.14.
//!
//! Any attached thread. For the application's own code use `python/calls.rs`, which also looks for forks.

use std::hint::black_box;
use std::ptr;
use std::thread;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyIterator;

// pyo3 declares the same functions as unable to unwind, and the compiler knows one declaration of a symbol: `black_box`
// keeps it from recognizing them.
mod raw {
    use pyo3::ffi::PyObject;

    unsafe extern "C-unwind" {
        // As PyObject_Vectorcall, which Python 3.10 has only as an inline function.
        pub(super) fn PyObject_VectorcallDict(
            callable: *mut PyObject,
            arguments: *const *mut PyObject,
            count: usize,
            names: *mut PyObject,
        ) -> *mut PyObject;
        pub(super) fn PyIter_Next(iterator: *mut PyObject) -> *mut PyObject;
    }
}

type Object = *mut ffi::PyObject;
type Vectorcall = unsafe extern "C-unwind" fn(Object, *const Object, usize, Object) -> Object;
type IterNext = unsafe extern "C-unwind" fn(Object) -> Object;

/// Its `drop` runs only if the end of the interpreter unwinds the frame that holds it.
struct WaitForTheEnd;

impl Drop for WaitForTheEnd {
    fn drop(&mut self) {
        loop {
            thread::park();
        }
    }
}

/// Runs `call`; does not return if the interpreter ends the thread inside it.
#[inline]
fn unended<T>(call: impl FnOnce() -> T) -> T {
    let guard = WaitForTheEnd;
    let returned = call();
    std::mem::forget(guard);
    returned
}

/// Calls an object with up to two positional arguments.
#[inline]
pub(crate) fn call<'py, const COUNT: usize>(
    callable: &Bound<'py, PyAny>,
    arguments: [&Bound<'py, PyAny>; COUNT],
) -> PyResult<Bound<'py, PyAny>> {
    // The callee may use the slot before the arguments, as PY_VECTORCALL_ARGUMENTS_OFFSET says: a bound method puts its
    // object there.
    let mut places = [ptr::null_mut(); 3];
    const { assert!(COUNT < 3) };
    for (place, argument) in places[1..].iter_mut().zip(arguments) {
        *place = argument.as_ptr();
    }
    let vectorcall = black_box(raw::PyObject_VectorcallDict as Vectorcall);
    // SAFETY: the callable and its arguments are live objects, and the place before them may be written; the result is
    // a new reference or null with an exception set.
    unsafe {
        let returned = unended(|| {
            vectorcall(
                callable.as_ptr(),
                places.as_mut_ptr().add(1).cast_const(),
                COUNT | ffi::PY_VECTORCALL_ARGUMENTS_OFFSET,
                ptr::null_mut(),
            )
        });
        Bound::from_owned_ptr_or_err(callable.py(), returned)
    }
}

/// The next item of an iterator. Inlined: a response of small blocks spends 6 % of its time in the call otherwise.
#[inline(always)]
pub(crate) fn next<'py>(iterator: &Bound<'py, PyIterator>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = iterator.py();
    let iter_next = black_box(raw::PyIter_Next as IterNext);
    // SAFETY: the argument is a live iterator; the result is a new reference, or null with or without an exception set.
    let item = unsafe {
        let item = unended(|| iter_next(iterator.as_ptr()));
        Bound::from_owned_ptr_or_opt(py, item)
    };
    match item {
        Some(item) => Ok(Some(item)),
        None => PyErr::take(py).map_or(Ok(None), Err),
    }
}
