//! A fair yield: code that makes blocks lets the other requests of its thread go on now and then, where requests share
//! a thread. Where its client takes the blocks at once, it would never wait, and the others would never run.
//!
//! Belongs to the code that delivers one response.

use std::time::{Duration, Instant};

use pyo3::prelude::*;

use tailrace_server::clock;

use crate::call::response::ResponseState;
use crate::call::waiting::{self, Waits};

/// The clock is read once in so many blocks.
const BLOCKS: u32 = 256;

/// See the module.
pub(crate) struct FairYield {
    /// `None` where the operating system lets others run.
    run: Option<Run>,
}

/// What was done since others ran.
struct Run {
    waits: &'static dyn Waits,
    slice: Duration,
    blocks: u32,
    since: Instant,
}

impl FairYield {
    /// The calling thread begins to make blocks.
    pub(crate) fn new() -> Self {
        let waits = waiting::here();
        Self { run: waits.slice().map(|slice| Run { waits, slice, blocks: 0, since: clock::now() }) }
    }

    /// During work after the response has ended: yields when it is time.
    ///
    /// # Errors
    /// As [`Self::before_block`].
    pub(crate) fn after_response(&mut self, py: Python<'_>) -> PyResult<()> {
        self.run.as_mut().map_or(Ok(()), |run| run.look(py, None))
    }

    /// Before a small block: yields when it is time.
    ///
    /// # Errors
    /// What was raised in this code while others ran.
    #[inline]
    pub(crate) fn before_block(&mut self, py: Python<'_>, state: &ResponseState) -> PyResult<()> {
        if let Some(run) = &mut self.run {
            run.blocks += 1;
            if run.blocks.is_multiple_of(BLOCKS) {
                return run.look(py, Some(state));
            }
        }
        Ok(())
    }

    /// Before a large block: yields when it is time.
    ///
    /// # Errors
    /// As [`Self::before_block`].
    pub(crate) fn before_work(&mut self, py: Python<'_>, state: &ResponseState) -> PyResult<()> {
        self.run.as_mut().map_or(Ok(()), |run| run.look(py, Some(state)))
    }
}

impl Run {
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
