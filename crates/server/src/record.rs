//! The delivery record: what happened to one request, made as it happens and read by everything that explains the
//! server.
//!
//! Belongs to the exchange, so to the thread that carries the request.

use std::time::{Duration, Instant};

/// How the body of a response travelled. Of several ways, the last in this order is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// Nothing was sent.
    #[default]
    None,
    /// Head and whole body in one go.
    OneWrite,
    /// Each block as it came, by the thread that made it.
    Direct,
    /// Blocks gathered, and the I/O side sent them.
    Gathered,
    /// `sendfile`.
    Sendfile,
}

impl Path {
    /// Its name in logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::OneWrite => "one-write",
            Self::Direct => "direct",
            Self::Gathered => "gathered",
            Self::Sendfile => "sendfile",
        }
    }
}

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
    /// Its deadline came: the client was answered 504, or what had begun was broken off.
    TimedOut,
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
    /// How the body travelled.
    pub path: Path,
    /// How long the application's thread waited for its client.
    pub waited: Duration,
    /// How it ended.
    pub ending: Ending,
}

impl Ending {
    /// Its name in logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Complete => "complete",
            Self::ClientGone => "client-gone",
            Self::Broken => "broken",
            Self::TimedOut => "timed-out",
        }
    }
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
            path: Path::None,
            waited: Duration::ZERO,
            ending: Ending::Open,
        }
    }

    /// The value of the `Server-Timing` field: what is known when the head leaves, now.
    pub(crate) fn server_timing(&self, now: Instant) -> String {
        let queue = millis_between(Some(self.queued), self.started).unwrap_or(0.0);
        let app = millis_between(self.started, self.first_block.or(Some(now))).unwrap_or(0.0);
        format!("queue;dur={queue:.3}, app;dur={app:.3};desc=\"until the first block\"")
    }
}

/// Milliseconds between two moments, if both have come.
#[must_use]
pub fn millis_between(from: Option<Instant>, to: Option<Instant>) -> Option<f64> {
    Some(to?.saturating_duration_since(from?).as_secs_f64() * 1e3)
}
