//! How quickly a client accepts what is sent to it, and by when it must accept more.
//!
//! A plain value, part of the [`crate::response::outbox::Outbox`] of each connection. Time is an argument.

use tailrace_os::clock::{Millis, NEVER};

/// What a client has accepted of one response after the other, and since when it lags behind.
pub(crate) struct ClientPace {
    /// Bytes of the queue that the kernel has accepted, in all.
    sent: u64,
    /// Since when queued bytes have waited for the client without a break; [`NEVER`]: none wait.
    waiting_since: Millis,
    /// The value of `sent` at `waiting_since`.
    sent_then: u64,
}

impl Default for ClientPace {
    fn default() -> Self {
        Self { sent: 0, waiting_since: NEVER, sent_then: 0 }
    }
}

impl ClientPace {
    /// The kernel has accepted so many bytes of the queue.
    pub(crate) fn accept(&mut self, bytes: u64) {
        self.sent += bytes;
    }

    /// Bytes of the queue that the kernel has accepted since the connection began.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Nothing waits for the client. Returns the new deadline, [`NEVER`]; `None`: unchanged.
    pub(crate) fn stop(&mut self) -> Option<Millis> {
        (std::mem::replace(&mut self.waiting_since, NEVER) != NEVER).then_some(NEVER)
    }

    /// While bytes wait for the client: the time by which it must accept more. `None`: unchanged. `progress`: it has
    /// just accepted bytes; `is_blocked`: its socket is full. `now` is only called where it is needed.
    pub(crate) fn deadline(
        &mut self,
        progress: bool,
        is_blocked: bool,
        write_timeout: Millis,
        min_rate: u64,
        now: impl FnOnce() -> Millis,
    ) -> Option<Millis> {
        if !progress && (self.waiting_since != NEVER || !is_blocked) {
            return None;
        }
        let now = now();
        // Also set when the socket is not full and the I/O side sends the rest later, so that the deadline is removed
        // when the queue is empty.
        if self.waiting_since == NEVER {
            (self.waiting_since, self.sent_then) = (now, self.sent);
        }
        if !is_blocked {
            return Some(now.saturating_add(write_timeout));
        }
        Some(within_rate(now, self.waiting_since, write_timeout, self.sent - self.sent_then, min_rate))
    }
}

/// The deadline, at time `now`, of a transfer that began at `since` and has moved `moved` bytes: at most `pause` from
/// now, and at most `since` + `pause` + the time that `moved` bytes take at `rate` bytes per second (0: no minimum
/// rate).
pub(crate) fn within_rate(now: Millis, since: Millis, pause: Millis, moved: u64, rate: u64) -> Millis {
    let by_pause = now.saturating_add(pause);
    match moved.saturating_mul(1_000).checked_div(rate) {
        Some(time) => by_pause.min(since.saturating_add(pause).saturating_add(time)),
        None => by_pause,
    }
}
