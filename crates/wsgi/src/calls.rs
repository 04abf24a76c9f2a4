//! Calls into the application's own code: the callable, its iterator, `close()`, a file's `read()`.
//!
//! Why not pyo3's: a daemon thread that runs Python code when the interpreter is finalized is ended by `pthread_exit`
//! the next time it wants the interpreter (CPython before 3.14). That unwinds its stack, and Rust frames which expect no
//! unwinding abort the process. Here the functions are declared as what they are, able to unwind, and a thread that is
//! ended this way waits for the end of the process instead, as CPython 3.14 does it.

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

/// Stands in a frame that only the end of the interpreter unwinds.
struct WaitForTheEnd;

impl Drop for WaitForTheEnd {
    fn drop(&mut self) {
        loop {
            thread::park();
        }
    }
}

/// Runs `call`; does not return if the thread is ended in there.
fn unended<T>(call: impl FnOnce() -> T) -> T {
    let guard = WaitForTheEnd;
    let answer = call();
    std::mem::forget(guard);
    answer
}

/// Calls an object with up to two positional arguments.
pub(crate) fn call<'py, const COUNT: usize>(
    callable: &Bound<'py, PyAny>,
    arguments: [&Bound<'py, PyAny>; COUNT],
) -> PyResult<Bound<'py, PyAny>> {
    // The place before the arguments is the callee's to use, as PY_VECTORCALL_ARGUMENTS_OFFSET says: a bound method
    // puts its object there.
    let mut places = [ptr::null_mut(); 3];
    const { assert!(COUNT < 3) };
    for (place, argument) in places[1..].iter_mut().zip(arguments) {
        *place = argument.as_ptr();
    }
    let vectorcall = black_box(raw::PyObject_VectorcallDict as Vectorcall);
    // SAFETY: the callable and its arguments are live objects, and the place before them may be written; the result is
    // a new reference or null with an exception set.
    unsafe {
        let answer = unended(|| {
            vectorcall(
                callable.as_ptr(),
                places.as_mut_ptr().add(1).cast_const(),
                COUNT | ffi::PY_VECTORCALL_ARGUMENTS_OFFSET,
                ptr::null_mut(),
            )
        });
        Bound::from_owned_ptr_or_err(callable.py(), answer)
    }
}

/// The next item of an iterator.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn arguments_arrive_also_at_bound_methods() {
        Python::attach(|py| {
            let text = py.eval(c"'a-b-c'", None, None).unwrap();
            let split = text.getattr("split").unwrap();
            let (dash, once) = (py.eval(c"'-'", None, None).unwrap(), py.eval(c"1", None, None).unwrap());
            assert_eq!(call(&split, [&dash, &once]).unwrap().to_string(), "['a', 'b-c']");
            assert_eq!(call(&split, [&dash]).unwrap().len().unwrap(), 3);
            assert_eq!(call(&text.getattr("upper").unwrap(), []).unwrap().to_string(), "A-B-C");
            assert!(call(&split, [&once]).is_err());
        });
    }

    #[test]
    fn an_iterator_gives_items_then_nothing_or_its_exception() {
        Python::attach(|py| {
            let items = py.eval(c"iter([7])", None, None).unwrap().cast_into::<PyIterator>().unwrap();
            assert_eq!(next(&items).unwrap().unwrap().extract::<u8>().unwrap(), 7);
            assert!(next(&items).unwrap().is_none());
            let fails = py.eval(c"(1 / 0 for _ in [1])", None, None).unwrap().cast_into::<PyIterator>().unwrap();
            assert!(next(&fails).is_err());
        });
    }
}
