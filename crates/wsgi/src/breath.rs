//! A greenlet that makes blocks whose client takes them at once never waits: so that it does not keep its hub from all
//! others, it lets them run now and then.
//!
//! Belongs to the code that delivers one response; a thread has no need of it.

use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::pause::{self, Greenlet, Waiting};
use crate::response::StartResponse;

/// Blocks between two looks at the clock.
const BLOCKS: u32 = 256;
/// How long a greenlet makes blocks before others have their turn.
const BREATH: Duration = Duration::from_millis(10);

/// See the module.
pub(crate) struct Breath<'py> {
    /// `None` on a thread, where the operating system sees to it.
    run: Option<Run<'py>>,
}

/// What a greenlet has done since others had their turn.
struct Run<'py> {
    greenlet: Greenlet<'py>,
    blocks: u32,
    since: Instant,
}

impl<'py> Breath<'py> {
    /// For the delivery of this response.
    pub(crate) fn new(py: Python<'py>, state: &StartResponse) -> Self {
        let run = match state.is_on_its_hub(py).then(|| Waiting::here(py)) {
            Some(Waiting::Greenlet(greenlet)) => Some(Run { greenlet, blocks: 0, since: Instant::now() }),
            Some(Waiting::Thread) | None => None,
        };
        Self { run }
    }

    /// Before a small block.
    ///
    /// # Errors
    /// What was thrown into the greenlet while others ran.
    #[inline]
    pub(crate) fn before_block(&mut self, py: Python<'py>, state: &StartResponse) -> PyResult<()> {
        if let Some(run) = &mut self.run {
            run.blocks += 1;
            if run.blocks.is_multiple_of(BLOCKS) {
                return run.look(py, state);
            }
        }
        Ok(())
    }

    /// Before more work.
    ///
    /// # Errors
    /// As [`Self::before_block`].
    pub(crate) fn before_work(&mut self, py: Python<'py>, state: &StartResponse) -> PyResult<()> {
        self.run.as_mut().map_or(Ok(()), |run| run.look(py, state))
    }
}

impl<'py> Run<'py> {
    #[cold]
    fn look(&mut self, py: Python<'py>, state: &StartResponse) -> PyResult<()> {
        if self.since.elapsed() < BREATH {
            return Ok(());
        }
        // Told over the bell: when it comes, the hub's loop has been round once, and whoever was ready has had its turn.
        // gevent's `sleep(0)` may come back fifty times before it looks for others.
        let ticket = pause::ticket();
        if state.come_back(py, ticket) {
            self.greenlet.pause(ticket, None)?;
        }
        self.since = Instant::now();
        Ok(())
    }
}
