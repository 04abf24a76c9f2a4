//! The delivery record: what happened to one request, made as it happens and read by everything that explains the
//! server.
//!
//! Belongs to the exchange, so to the thread that carries the request.

use std::time::Instant;

/// How a response ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// Not yet.
    #[default]
    Open,
    /// All of it was given to the kernel.
    Complete,
    /// The client went away or took nothing for too long.
    ClientGone,
    /// The application failed after the head, or sent less than it promised.
    Broken,
}

/// The course of one request.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// The request was complete and went into the queue.
    pub queued: Instant,
    /// An application thread took it.
    pub started: Option<Instant>,
    /// The first non-empty block came from the application.
    pub first_block: Option<Instant>,
    /// The application was done with it.
    pub finished: Option<Instant>,
    /// The last byte was given to the kernel.
    pub drained: Option<Instant>,
    /// The status that was sent; 0 before.
    pub status: u16,
    /// Body bytes that were sent or queued, without chunk headers.
    pub body_bytes: u64,
    /// Non-empty blocks the application made.
    pub blocks: u64,
    /// Write system calls.
    pub writes: u32,
    /// How it ended.
    pub ending: Ending,
}

impl Record {
    /// The record of a request that is complete now.
    pub fn new(now: Instant) -> Self {
        Self {
            queued: now,
            started: None,
            first_block: None,
            finished: None,
            drained: None,
            status: 0,
            body_bytes: 0,
            blocks: 0,
            writes: 0,
            ending: Ending::Open,
        }
    }
}
