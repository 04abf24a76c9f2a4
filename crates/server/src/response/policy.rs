//! How responses are delivered where the application runs in threads, in greenlets, or on the thread of the loop.
//!
//! Each executor states its policy as data, so that nothing in the delivery asks which executor there is.

use std::time::Duration;

/// When small blocks of a response are coalesced, for the I/O side to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coalesce {
    /// Each block is sent at once.
    Never,
    /// When blocks have come quickly one after the other.
    WhenQuick,
    /// From the second block on.
    Always,
}

/// How a runner waits for a slow client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// It blocks on a condition. The I/O side sends meanwhile.
    Block,
    /// It waits for the socket and sends by itself: there is no other thread. It looks for signals this often.
    Poll(Duration),
    /// Other runners of its thread run meanwhile, which it must not hold up. The I/O side wakes it by its ticket.
    Ticket,
}

impl Waiting {
    /// True where runners share a thread and wait under tickets.
    pub(crate) fn is_by_ticket(self) -> bool {
        self == Self::Ticket
    }

    /// How often a runner that waits looks for signals. `None`: another thread does.
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
    /// Bytes that a runner writes by itself in one send. `None`: all that the socket takes.
    pub(crate) most_by_runner: Option<usize>,
    /// Bytes that the I/O side writes before a producer can append again. `None`: all that the socket takes.
    pub(crate) most_by_io: Option<u64>,
    /// A finished response of which more bytes than this wait, or a file, is left to the I/O side.
    pub(crate) most_after_end: usize,
    /// Full reads of one connection by a runner before the rest is left to the I/O side.
    pub(crate) reads_by_runner: usize,
}
