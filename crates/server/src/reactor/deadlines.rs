//! How long a request may wait for a thread, and take there.
//!
//! Application threads set deadlines; the thread that leads the loop ends what is late.

use super::Reactor;
use crate::handler::Level;
use crate::posts::{Carrying, Posts, Task};
use crate::slots::SPECIAL;
use crate::sys;
use crate::timers::Millis;

/// The key of the timer for requests that take too long.
pub(super) const KEY: u64 = SPECIAL | 1 << 32;
/// A thread that is past its deadline mostly comes back within this time (nanoseconds).
const COMING_BACK: u64 = 1_000_000_000;

impl Reactor {
    pub(crate) fn posts(&self) -> &Posts {
        &self.posts
    }

    /// True when the thread of a post still carries this request; see [`crate::handler::Overdue`].
    pub fn is_carrying(&self, post: usize, serial: u64) -> bool {
        self.posts.is_carrying(post, serial)
    }

    /// True when the application of a request may be interrupted: it is still at it, and not cleaning up.
    pub fn is_interruptible(&self, post: usize, serial: u64) -> bool {
        self.posts.is_interruptible(post, serial)
    }

    /// Sets the deadline of a request that a thread carries.
    pub(crate) fn set_request_deadline(&self, post: Carrying, due: Millis, task: impl FnOnce() -> Task) {
        if self.posts.arm(post, due, task) {
            self.timers.wake(KEY, due);
            self.wake_leader();
        }
    }

    /// True when one more request may wait for a thread.
    pub(crate) fn has_room(&self) -> bool {
        let idle = self.config.threads.saturating_sub(self.ready.running());
        self.ready.len() < self.config.max_queue.saturating_add(idle)
    }

    /// Answers 503 to requests that have waited too long for a thread.
    pub(super) fn turn_late_away(&self) {
        if self.ready.len() == 0 {
            return;
        }
        if self.has_no_thread_left() {
            for exchange in self.ready.clear() {
                exchange.turn_away();
            }
        }
        let limit = self.config.queue_timeout;
        if limit.is_zero() {
            return;
        }
        if let Some(since) = self.clock.recent().checked_sub(limit) {
            for exchange in self.ready.take_late(since) {
                exchange.turn_away();
            }
        }
    }

    /// True when every thread that there may be is stuck, and for longer than those need that come back.
    fn has_no_thread_left(&self) -> bool {
        let stuck = self.posts.stuck();
        stuck > 0
            && stuck >= self.most_runners().min(self.posts.len() - 1)
            && self.posts.stuck_since() + COMING_BACK < sys::monotonic_nanos()
    }

    /// Ends the requests whose deadline has come.
    pub(super) fn end_overdue(&self, now: Millis) {
        let look = || self.posts.look(now, |overdue| self.application.overdue(overdue));
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(look)) {
            Ok(Some(next)) => self.timers.wake(KEY, next),
            Ok(None) => {}
            Err(_) => self.log(Level::Error, "a deadline ended in a panic of the server"),
        }
    }
}
