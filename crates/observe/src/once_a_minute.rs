//! Limits log lines of one kind to one a minute.
//!
//! Any thread.

use std::sync::atomic::{AtomicU64, Ordering};

use tailrace_os::clock::{Millis, NEVER};

/// Minimum interval between two lines (milliseconds).
pub const PAUSE: Millis = 60_000;

/// When a line of this kind was last logged.
pub struct OnceAMinute(AtomicU64);

impl Default for OnceAMinute {
    fn default() -> Self {
        Self(AtomicU64::new(NEVER))
    }
}

impl OnceAMinute {
    /// True: the line may be logged, and counts as logged now. Of several threads, one may.
    #[must_use]
    pub fn may_log(&self, now: Millis) -> bool {
        let before = self.0.load(Ordering::Relaxed);
        let is_due = before == NEVER || now.saturating_sub(before) >= PAUSE;
        is_due && self.0.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{OnceAMinute, PAUSE};

    #[test]
    fn a_line_may_be_logged_at_first_and_then_once_a_minute() {
        let line = OnceAMinute::default();
        assert!(line.may_log(5) && !line.may_log(5) && !line.may_log(4 + PAUSE));
        // The clock of another thread is behind.
        assert!(!line.may_log(0));
        assert!(line.may_log(5 + PAUSE) && !line.may_log(6 + PAUSE));
    }
}
