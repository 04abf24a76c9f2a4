//! A fair yield: code that makes blocks lets other requests go on now and then. Where its client takes the blocks at
//! once, it would never wait; and then requests that share its thread would never run, nor, while the blocks come from
//! code that is written in C, those of any other thread.
//!
//! Belongs to the code that delivers one response.

use std::time::{Duration, Instant};

use pyo3::prelude::*;

use tailrace_server::clock;

use crate::call::response::ResponseState;
use crate::call::waiting::{self, Waits};

/// The clock is read once in so many blocks.
const BLOCKS: u32 = 256;

/// See the module: what was done since others ran.
pub(crate) struct FairYield {
    waits: &'static dyn Waits,
    slice: Duration,
    blocks: u32,
    since: Instant,
}

impl FairYield {
    /// The calling thread begins to make blocks.
    pub(crate) fn new() -> Self {
        let waits = waiting::here();
        Self { waits, slice: waits.slice(), blocks: 0, since: clock::now() }
    }

    /// During work after the response has ended: yields when it is time.
    ///
    /// # Errors
    /// As [`Self::before_block`].
    pub(crate) fn after_response(&mut self, py: Python<'_>) -> PyResult<()> {
        self.look(py, None)
    }

    /// Before a small block: yields when it is time.
    ///
    /// # Errors
    /// What was raised in this code while others ran.
    #[inline]
    pub(crate) fn before_block(&mut self, py: Python<'_>, state: &ResponseState) -> PyResult<()> {
        self.blocks += 1;
        if self.blocks.is_multiple_of(BLOCKS) {
            return self.look(py, Some(state));
        }
        Ok(())
    }

    /// Before a large block: yields when it is time.
    ///
    /// # Errors
    /// As [`Self::before_block`].
    pub(crate) fn before_work(&mut self, py: Python<'_>, state: &ResponseState) -> PyResult<()> {
        self.look(py, Some(state))
    }

    #[cold]
    fn look(&mut self, py: Python<'_>, response: Option<&ResponseState>) -> PyResult<()> {
        if clock::since(self.since) < self.slice {
            return Ok(());
        }
        match response {
            Some(state) => self.waits.let_others_run(py, Some(&|ticket| state.resume_soon(py, ticket))),
            None => self.waits.let_others_run(py, None),
        }?;
        self.since = clock::now();
        Ok(())
    }
}
