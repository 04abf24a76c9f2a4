//! The response to a request: its head and framing, its send queue, and how it is written.

pub(crate) mod coalescing;
pub(crate) mod delivery;
pub(crate) mod payload;
pub(crate) mod policy;
pub(crate) mod producer;
pub(crate) mod segments;
pub(crate) mod send_queue;
pub(crate) mod sending;
pub(crate) mod spill;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod testing;
pub(crate) mod write_plan;
