//! When a complete response is held, and when what is held is sent: the rule, as functions of plain values.
//!
//! - A response is held only if further requests wait, so that their responses can be sent with it, or if others are
//!   held.
//! - It is held only under pressure ([`SpareTime`](crate::connection::spare_time::SpareTime)): clients that are answered
//!   together ask again together, and a server that has time to spare would wait for them.
//! - It is held only after a call of a certain length, [`MIN_CALL`] to [`HOLD_WRITES`]. Next to a shorter call, a wake-up
//!   of the client costs less than holding does; behind a longer one, the response would wait for too long.
//! - What is held is sent before a call that would delay it beyond the limit if that took as long as the last one. A call
//!   that overstays delays it to [`HoldRule::overdue`].
//!
//! No lock, clock, atomic or thread is here; `batched_responses` has those.

use std::time::Duration;

use crate::config::HOLD_WRITES;

/// Minimum length of a call whose response may be held. Calls of 8 µs gain nothing on the server's core and lose up
/// to 7 % with the client on another one; calls of 15 µs gain 2 to 9 %, and Flask's hello, of 40 µs, 25 %.
const MIN_CALL: Duration = Duration::from_micros(15);

/// A complete response, and what there is to judge by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    /// Requests that wait for the application.
    pub(crate) waiting: usize,
    /// Another response is held.
    pub(crate) has_batch: bool,
    /// How long the call of the application has taken.
    pub(crate) took: Duration,
}

/// The rule of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldRule {
    /// How long a response may be held. Zero: none is held.
    limit: Duration,
}

impl HoldRule {
    /// The rule with this limit; zero: no response is held.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit }
    }

    /// True when any response may be held.
    pub(crate) fn is_on(self) -> bool {
        !self.limit.is_zero()
    }

    /// After this time, what is held is sent though a call of the application has not returned.
    pub(crate) fn overdue(self) -> Duration {
        self.limit * 5 / 4
    }

    /// True when the response may be held, of a runner that is under pressure and takes the next request.
    pub(crate) fn may_hold(self, seen: Completion) -> bool {
        // The first one is held only if two requests wait. With one, it is sent, and its client can ask again while that
        // one runs: to hold it would cost two connections on another core 6 % of their rate. Behind others, it is sent
        // with them, though nothing follows.
        self.is_on() && (seen.has_batch || seen.waiting >= 2) && (MIN_CALL..HOLD_WRITES).contains(&seen.took)
    }

    /// Before the next call: true when what is held, the oldest for `held`, is to be sent first. `last`: how long the
    /// last call took.
    pub(crate) fn must_send(self, held: Duration, last: Duration) -> bool {
        self.limit.saturating_sub(held) <= last
    }
}

#[cfg(test)]
mod tests;
