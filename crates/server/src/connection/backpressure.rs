//! How a runner waits for room in the send queue when its client reads slowly: for how long, and how where no other
//! thread sends.
//!
//! Thread: the runner's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tailrace_observe::scoreboard::Sending;
use tailrace_os::clock;

use crate::response::delivery::{Delivery, WrittenForRoom};
use crate::response::outbox::DeliveryLimits;

/// How long a runner waits for room before the queued bytes are moved to a file. A client that reads 8 MB per second
/// makes enough room in half of that time.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);
/// Shortest and longest time until that is tried again. Some of the bytes may have been in a write at that moment; or
/// the disk is full.
const RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(10));

/// How long until the queued bytes are moved to a file again, after an attempt that came `patience` after the one
/// before and has not made room.
pub fn next_patience(patience: Duration) -> Duration {
    (2 * patience).clamp(RETRY.0, RETRY.1)
}

/// Counts a thread or greenlet as one that waits for its client, and shows that, until this is dropped.
pub struct WaitingCount {
    count: Arc<AtomicUsize>,
    _shown: Option<Sending>,
}

impl WaitingCount {
    pub(crate) fn new(count: &Arc<AtomicUsize>, shown: Option<Sending>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self { count: count.clone(), _shown: shown }
    }
}

impl Drop for WaitingCount {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A client that reads slowly, where no other thread sends.
pub(crate) struct SlowClient<'a> {
    pub(crate) delivery: &'a Delivery,
    pub(crate) limits: &'a DeliveryLimits,
    /// How often the thread looks for signals.
    pub(crate) signal_check: Duration,
    /// How long until the queued bytes are moved to a file.
    pub(crate) patience: Duration,
}

impl SlowClient<'_> {
    /// Sends until the queue has room. False: there never will be. Breaks the connection when the socket accepts
    /// nothing for `write_timeout`, or when `must_end` says that the server has to end. `spill` moves the queued bytes
    /// to a file; it is called after `patience`, and again after [`next_patience`].
    pub(crate) fn write_for_room(
        &self,
        write_timeout: Duration,
        must_end: impl Fn() -> bool,
        spill: impl Fn(),
    ) -> bool {
        let mut patience = self.patience;
        let mut now = clock::now();
        let (mut moved, mut due) = (now, now + patience);
        let mut sent = self.delivery.outbox().client.sent();
        loop {
            let written = self.delivery.write_for_room(self.limits);
            now = clock::now();
            match written {
                WrittenForRoom::Room => return true,
                WrittenForRoom::Never => return false,
                WrittenForRoom::Elsewhere | WrittenForRoom::Blocked => {}
            }
            // Another thread that sends may hang, such as in a read of a file.
            let before = std::mem::replace(&mut sent, self.delivery.outbox().client.sent());
            if sent > before {
                moved = now;
            }
            if now.saturating_duration_since(moved) >= write_timeout || must_end() {
                self.delivery.outbox().break_off();
                return false;
            }
            if now >= due {
                spill();
                patience = next_patience(patience);
                due = now + patience;
                // That has made room, in most cases.
                continue;
            }
            if written == WrittenForRoom::Elsewhere {
                self.delivery.await_room_from_others(self.limits, self.signal_check);
            } else {
                self.delivery.socket().wait_writable(self.signal_check);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::next_patience;

    #[test]
    fn attempts_become_rarer_and_are_never_given_up() {
        let mut patience = Duration::ZERO;
        let seconds: Vec<f64> = std::iter::repeat_with(|| {
            patience = next_patience(patience);
            patience.as_secs_f64()
        })
        .take(13)
        .collect();
        assert_eq!((seconds[0], seconds[1], seconds[5], seconds[12]), (0.01, 0.02, 0.32, 10.0));
    }
}
