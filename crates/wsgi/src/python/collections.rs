//! Pauses of Python's garbage collector, as `gc.callbacks` reports them.

use std::cell::Cell;
use std::time::Instant;

use pyo3::prelude::*;
use tailrace_os::{clock, usage};

thread_local! {
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Notes the begin or the end of a collection on the calling thread. For `gc.callbacks`.
#[pyfunction]
#[pyo3(signature = (phase, _info, /))]
pub(crate) fn note_collection(phase: &str, _info: &Bound<'_, PyAny>) {
    if phase == "start" {
        BEGAN.set(Some(clock::now()));
    } else if let Some(began) = BEGAN.take() {
        usage::add_gc(clock::since(began));
    }
}
