//! A fair yield: code that produces blocks lets other requests run now and then. If its client accepts the blocks at
//! once, this code would never wait. Then other requests on its thread would never run, nor, if the blocks come from C
//! code, would any other thread.
//!
//! Small blocks take less time than reading the clock, so it is read once per stretch of blocks. The faster the
//! previous blocks were, the longer the next stretch: it takes a small part of the slice, whether a block takes 50 ns
//! or 5 ms.
//!
//! Belongs to the code that delivers one response.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tailrace_os::clock;

use crate::call::response::ResponseState;
use crate::call::waiting::{self, SLICE, Waits};

/// Blocks of a stretch, at most.
const BLOCKS: u32 = 256;
/// How long a stretch should take.
const STRETCH: Duration = Duration::from_millis(1);

/// See the module: the work done since other requests ran.
pub(crate) struct FairYield {
    waits: &'static dyn Waits,
    /// Blocks of the stretch, and the number that remain.
    stretch: u32,
    left: u32,
    /// When the stretch began.
    looked: Instant,
    /// When others last ran.
    since: Instant,
}

impl FairYield {
    /// The calling thread begins to produce blocks.
    pub(crate) fn new() -> Self {
        let now = clock::now();
        Self { waits: waiting::here(), stretch: 1, left: 1, looked: now, since: now }
    }

    /// During work after the response has ended: yields when it is time.
    ///
    /// # Errors
    /// As [`Self::before_block`].
    pub(crate) fn after_response(&mut self, py: Python<'_>) -> PyResult<()> {
        self.look(py, clock::now(), None)
    }

    /// Before a small block: yields when it is time.
    ///
    /// # Errors
    /// What was raised in this code while others ran.
    #[inline]
    pub(crate) fn before_block(&mut self, py: Python<'_>, state: &ResponseState) -> PyResult<()> {
        self.left -= 1;
        if self.left > 0 {
            return Ok(());
        }
        self.end_stretch(py, state)
    }

    /// Before a large block: yields when it is time.
    ///
    /// # Errors
    /// As [`Self::before_block`].
    pub(crate) fn before_work(&mut self, py: Python<'_>, state: &ResponseState) -> PyResult<()> {
        self.look(py, clock::now(), Some(state))
    }

    #[cold]
    fn end_stretch(&mut self, py: Python<'_>, state: &ResponseState) -> PyResult<()> {
        let now = clock::now();
        self.stretch = next_stretch(self.stretch, now.saturating_duration_since(self.looked));
        self.left = self.stretch;
        self.looked = now;
        self.look(py, now, Some(state))
    }

    fn look(&mut self, py: Python<'_>, now: Instant, response: Option<&ResponseState>) -> PyResult<()> {
        if now.saturating_duration_since(self.since) < SLICE {
            return Ok(());
        }
        match response {
            Some(state) => self.waits.let_others_run(py, Some(&|ticket| state.resume_soon(py, ticket))),
            None => self.waits.let_others_run(py, None),
        }?;
        self.since = clock::now();
        self.looked = self.since;
        Ok(())
    }
}

/// The number of blocks in the next stretch, after one with this number of blocks that took this long.
fn next_stretch(blocks: u32, took: Duration) -> u32 {
    if took < STRETCH / 2 {
        return (blocks * 2).min(BLOCKS);
    }
    let fitting = u128::from(blocks) * STRETCH.as_nanos() / took.as_nanos();
    u32::try_from(fitting).unwrap_or(BLOCKS).clamp(1, BLOCKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_of_quick_blocks_is_long_and_one_of_slow_blocks_a_small_part_of_the_slice() {
        // How long a block takes, in nanoseconds, and the blocks of the stretch that is found.
        for (block, wanted) in [(50, BLOCKS), (3_000, BLOCKS), (100_000, 10), (900_000, 1), (5_000_000, 1)] {
            let mut blocks = 1;
            for _ in 0..20 {
                let took = Duration::from_nanos(block) * blocks;
                assert!(took <= SLICE / 2, "{blocks} blocks of {block} ns");
                blocks = next_stretch(blocks, took);
            }
            assert_eq!(blocks, wanted, "blocks of {block} ns");
        }
        // Blocks that become slow in the middle of a long stretch.
        assert_eq!(next_stretch(BLOCKS, Duration::from_secs(1)), 1);
    }
}
