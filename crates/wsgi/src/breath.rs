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
    greenlet: Option<Greenlet<'py>>,
    blocks: u32,
    since: Instant,
}

impl<'py> Breath<'py> {
    pub(crate) fn new(py: Python<'py>) -> Self {
        let greenlet = match Waiting::here(py) {
            Waiting::Thread => None,
            Waiting::Greenlet(greenlet) => Some(greenlet),
        };
        Self { greenlet, blocks: 0, since: Instant::now() }
    }

    /// Before a small block of this response.
    ///
    /// # Errors
    /// What was thrown into the greenlet while others ran.
    #[inline]
    pub(crate) fn before_block(&mut self, py: Python<'py>, state: &StartResponse) -> PyResult<()> {
        if self.greenlet.is_some() {
            self.blocks += 1;
            if self.blocks.is_multiple_of(BLOCKS) {
                return self.look(py, state);
            }
        }
        Ok(())
    }

    /// Before more work for this response.
    ///
    /// # Errors
    /// As [`Self::before_block`].
    #[cold]
    pub(crate) fn look(&mut self, py: Python<'py>, state: &StartResponse) -> PyResult<()> {
        let Some(greenlet) = self.greenlet.as_ref().filter(|_| self.since.elapsed() >= BREATH) else { return Ok(()) };
        // Told over the bell: when it comes, the hub's loop has been round once, and whoever was ready has had its turn.
        // gevent's `sleep(0)` may come back fifty times before it looks for others.
        let ticket = pause::ticket();
        if state.come_back(py, ticket) {
            greenlet.pause(ticket, None)?;
        }
        self.since = Instant::now();
        Ok(())
    }
}
