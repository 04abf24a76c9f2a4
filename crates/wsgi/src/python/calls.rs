//! Calls into the application's own code: the callable, its iterator, `close()`, a file's `read()`.
//!
//! A child process that the application forks in such a call does not return from it (see `forks.rs`). If the
//! interpreter ends a daemon thread in such a call, the thread waits for the end of the process (see `ffi/call.rs`).

use pyo3::prelude::*;
use pyo3::types::PyIterator;
use tailrace_os::process::Process;

use crate::ffi;
use crate::python::forks;

/// Calls an object with up to two positional arguments.
pub(crate) fn call<'py, const COUNT: usize>(
    callable: &Bound<'py, PyAny>,
    arguments: [&Bound<'py, PyAny>; COUNT],
) -> PyResult<Bound<'py, PyAny>> {
    let process = Process::here();
    let returned = ffi::call::call(callable, arguments);
    forks::end_child(callable.py(), process, &returned);
    returned
}

/// The next item of an iterator. Inlined: a response of small blocks spends 6 % of its time in the call otherwise.
#[inline(always)]
pub(crate) fn next<'py>(iterator: &Bound<'py, PyIterator>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let process = Process::here();
    let item = ffi::call::next(iterator);
    forks::end_child(iterator.py(), process, &item);
    item
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
