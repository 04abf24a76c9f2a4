//! How responses are delivered where the application runs in threads, in greenlets, or on the thread of the loop.
//!
//! Each executor states its policy as data, so that the delivery does not depend on the executor.

use std::time::Duration;

/// When small blocks of a response are coalesced, for the I/O side to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coalesce {
    /// Each block is sent at once.
    Never,
    /// When blocks have followed each other quickly.
    WhenQuick,
    /// From the second block on.
    Always,
}

/// How a runner waits for a slow client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// It blocks on a condition variable. The I/O side sends meanwhile.
    Block,
    /// It waits for the socket and sends itself, because there is no other thread. It looks for signals at this
    /// interval.
    Poll(Duration),
    /// It lets other runners of its thread run, and the I/O side wakes it by its ticket.
    Ticket,
}

impl Waiting {
    /// True where runners share a thread and wait under tickets.
    pub(crate) fn is_by_ticket(self) -> bool {
        self == Self::Ticket
    }

    /// The interval at which a waiting runner looks for signals. `None`: another thread looks for them.
    pub(crate) fn signal_check(self) -> Option<Duration> {
        match self {
            Self::Poll(time) => Some(time),
            Self::Block | Self::Ticket => None,
        }
    }
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub(crate) coalesce: Coalesce,
    pub(crate) waiting: Waiting,
    /// At most this many bytes are written by a runner in one send. `None`: all that the socket accepts.
    pub(crate) most_by_runner: Option<usize>,
    /// At most this many bytes are written by the I/O side in one turn of a response that continues. `None`: all that
    /// the socket accepts.
    pub(crate) most_by_io: Option<u64>,
    /// The rest of a finished response is left to the I/O side if it is a file or more than this many bytes.
    pub(crate) most_after_end: usize,
    /// Whether a small complete response may be held while further requests wait.
    pub(crate) holds: bool,
    /// Full reads (of a whole buffer) of one connection by a runner before the rest is left to the I/O side.
    pub(crate) reads_by_runner: usize,
}
