//! The response to a request: its head and framing, its send queue, and how it is written.
//!
//! Terms: the **producer** is the runner that produces the response; the **I/O side** is the thread that polls, which
//! sends what the producer does not. Bytes are *queued* when the socket has not accepted them, *coalesced* when small
//! blocks are collected for the next tick, and *spilled* when they are moved from the queue to a file. A
//! response is *compressed* by a disk thread, which takes its *plain* bytes from a queue of their own. A complete
//! response is *held* while it is queued to be sent together with others. A response is *listed* while the I/O side
//! looks at it at every tick, *pushed* when the I/O side has been asked once to send it, and *timed out* when the
//! server has answered in the application's place, or has broken the response off, because the deadline of the request
//! has passed.

pub(crate) mod body_progress;
pub(crate) mod client_pace;
pub(crate) mod coalescing;
pub(crate) mod compressing;
pub(crate) mod content_encoder;
pub(crate) mod delivery;
pub(crate) mod outbox;
pub(crate) mod payload;
pub(crate) mod policy;
pub(crate) mod producer;
pub(crate) mod segments;
pub(crate) mod send_queue;
pub(crate) mod send_state;
pub(crate) mod spill;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod testing;
pub(crate) mod write_plan;
