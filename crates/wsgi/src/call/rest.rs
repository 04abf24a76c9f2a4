//! What an iterable still yields when its response is complete: `Content-Length` has been reached, or the response has
//! no body, as for HEAD.
//!
//! PEP 3333 says that a server "should stop iterating over the response when enough data has been sent". Then the code
//! behind the last `yield` of a generator never runs, although nothing is wrong with it: it yields as much as it
//! promised. So the iterable is run to its end, and what it gives is dropped; within bounds, since some iterables never
//! end. One that goes beyond them is closed, as PEP 3333 has it.
//!
//! Runs attached, on the thread that ran the request. The response is finished by then, and its connection goes on.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator};
use tailrace_os::clock;

use crate::call::fair_yield::FairYield;
use crate::python::calls;

/// Maximum number of bytes that are dropped, and maximum time.
const BYTES: u64 = 1 << 20;
const TIME: Duration = Duration::from_secs(1);

/// The rest of an iterable.
pub(crate) enum IterableRest<'py> {
    /// An iterator.
    Blocks(Bound<'py, PyIterator>),
    /// The `read()` of a file-like object, which takes a number of bytes.
    Calls(Bound<'py, PyAny>, usize),
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dropped {
    pub(crate) bytes: u64,
    /// It ended.
    pub(crate) is_over: bool,
}

impl<'py> IterableRest<'py> {
    /// Runs it to its end, or as far as the bounds allow.
    ///
    /// # Errors
    /// What the application's code raises.
    pub(crate) fn run(&self, py: Python<'py>) -> PyResult<Dropped> {
        let began = clock::now();
        let mut fair_yield = FairYield::new();
        let mut bytes = 0;
        loop {
            let Some(block) = self.next(py)? else { return Ok(Dropped { bytes, is_over: true }) };
            bytes += block.cast::<PyBytes>().map_or(0, |block| block.as_bytes().len() as u64);
            if bytes > BYTES || clock::since(began) >= TIME {
                return Ok(Dropped { bytes, is_over: false });
            }
            fair_yield.after_response(py)?;
        }
    }

    fn next(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self {
            Self::Blocks(blocks) => calls::next(blocks),
            Self::Calls(read, size) => {
                let block = calls::call(read, [&size.into_pyobject(py)?.into_any()])?;
                // A file ends with a false object: no bytes, or None.
                Ok(block.is_truthy()?.then_some(block))
            }
        }
    }
}
