//! A fair yield: a greenlet that makes blocks lets the other greenlets of its thread run every 10 ms. Where its client
//! takes the blocks at once, it would never wait, and the others would never run.
//!
//! Belongs to the code that delivers one response. Threads need none of it: the operating system schedules them.

use std::time::{Duration, Instant};

use pyo3::prelude::*;

use tailrace_server::clock;

use crate::call::response::ResponseState;
use crate::python::waiting::{Greenlet, Waiting, ticket};

/// The clock is read once in so many blocks.
const BLOCKS: u32 = 256;
/// How long a greenlet runs before others do.
const SLICE: Duration = Duration::from_millis(10);

/// See the module.
pub(crate) struct FairYield<'py> {
    /// `None` on a thread.
    run: Option<Run<'py>>,
}

/// What a greenlet has done since others ran.
struct Run<'py> {
    greenlet: Greenlet<'py>,
    blocks: u32,
    since: Instant,
}

impl<'py> FairYield<'py> {
    /// For the delivery of this response.
    pub(crate) fn new(py: Python<'py>, state: &ResponseState) -> Self {
        Self::without_client(py, state.is_on_greenlet_thread(py))
    }

    /// For work after the response has ended.
    pub(crate) fn without_client(py: Python<'py>, is_in_greenlet: bool) -> Self {
        let run = match is_in_greenlet.then(|| Waiting::here(py)) {
            Some(Waiting::Greenlet(greenlet)) => Some(Run { greenlet, blocks: 0, since: clock::now() }),
            Some(Waiting::Thread) | None => None,
        };
        Self { run }
    }

    /// During such work: yields when it is time.
    ///
    /// # Errors
    /// As [`Self::before_block`].
    pub(crate) fn after_response(&mut self, py: Python<'py>) -> PyResult<()> {
        let _ = py;
        if let Some(run) = &mut self.run
            && clock::since(run.since) >= SLICE
        {
            // Nobody resumes this ticket; the timer of the pause does.
            run.greenlet.pause(ticket(), Some(0.0))?;
            run.since = clock::now();
        }
        Ok(())
    }

    /// Before a small block: yields when it is time.
    ///
    /// # Errors
    /// What was thrown into the greenlet while others ran.
    #[inline]
    pub(crate) fn before_block(&mut self, py: Python<'py>, state: &ResponseState) -> PyResult<()> {
        if let Some(run) = &mut self.run {
            run.blocks += 1;
            if run.blocks.is_multiple_of(BLOCKS) {
                return run.look(py, state);
            }
        }
        Ok(())
    }

    /// Before a large block: yields when it is time.
    ///
    /// # Errors
    /// As [`Self::before_block`].
    pub(crate) fn before_work(&mut self, py: Python<'py>, state: &ResponseState) -> PyResult<()> {
        self.run.as_mut().map_or(Ok(()), |run| run.look(py, state))
    }
}

impl<'py> Run<'py> {
    #[cold]
    fn look(&mut self, py: Python<'py>, state: &ResponseState) -> PyResult<()> {
        if clock::since(self.since) < SLICE {
            return Ok(());
        }
        // The ticket comes back through the wakeup descriptor. By then gevent's loop has gone round once, and whoever
        // was ready has run. `gevent.sleep(0)` may come back fifty times before the loop polls for others.
        let ticket = ticket();
        if state.resume_soon(py, ticket) {
            self.greenlet.pause(ticket, None)?;
        }
        self.since = clock::now();
        Ok(())
    }
}
