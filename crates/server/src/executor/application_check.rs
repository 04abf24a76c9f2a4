//! Whether a request can still enter the application: while one thread holds the interpreter and does not release it,
//! none can.
//!
//! While there are requests but none begins or ends, the I/O side asks the application now and then, which answers from
//! a separate thread as soon as that thread has the interpreter. The scoreboard shows how long a question has been
//! unanswered; the master decides what to do. A request that computes or waits for long releases the interpreter at
//! times, so questions are answered meanwhile. Threads: those of the I/O side ask, the application's own answers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time without a request that begins or ends after which the application is asked (nanoseconds).
const ASK_AFTER: u64 = 1_000_000_000;

/// Moments are nanoseconds of the clock that all processes share.
#[derive(Default)]
pub(crate) struct ApplicationCheck {
    /// Time of the question, plus one; 0: no question is unanswered.
    asked: AtomicU64,
    /// The latest count of requests that began or ended, and when it was seen to change.
    moves: AtomicU64,
    moved_at: AtomicU64,
}

impl ApplicationCheck {
    /// True if the application should be asked now, which [`ApplicationCheck::ask`] records. `moves` counts requests
    /// that began or ended; `is_busy`: there are some.
    pub(crate) fn is_due(&self, now: u64, moves: u64, is_busy: bool) -> bool {
        if !is_busy || self.moves.swap(moves, Ordering::Relaxed) != moves {
            self.moved_at.store(now, Ordering::Relaxed);
            return false;
        }
        self.asked_at().is_none() && now.saturating_sub(self.moved_at.load(Ordering::Relaxed)) >= ASK_AFTER
    }

    /// The application is asked now.
    pub(crate) fn ask(&self, now: u64) {
        self.moved_at.store(now, Ordering::Relaxed);
        self.asked.store(now.saturating_add(1), Ordering::Release);
    }

    /// The application has answered, or could not be asked.
    pub(crate) fn end(&self) {
        self.asked.store(0, Ordering::Release);
    }

    /// True if the application has not answered for at least this time.
    pub(crate) fn is_unanswered(&self, time: Duration, now: u64) -> bool {
        self.asked_at().is_some_and(|at| Duration::from_nanos(now.saturating_sub(at)) >= time)
    }

    /// Since when the question has been unanswered.
    pub(crate) fn asked_at(&self) -> Option<u64> {
        self.asked.load(Ordering::Acquire).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{ASK_AFTER, ApplicationCheck};

    #[test]
    fn nobody_is_asked_while_requests_move_or_none_are_there() {
        let check = ApplicationCheck::default();
        for moves in 1..5 {
            assert!(!check.is_due(moves * ASK_AFTER, moves, true));
        }
        assert!(!check.is_due(9 * ASK_AFTER, 4, false));
        assert!(!check.is_due(10 * ASK_AFTER - 1, 4, true));
        assert!(check.is_due(10 * ASK_AFTER, 4, true));
    }

    #[test]
    fn an_application_that_was_asked_is_asked_again_only_when_it_has_answered() {
        let check = ApplicationCheck::default();
        assert!(!check.is_due(ASK_AFTER, 1, true));
        check.ask(2 * ASK_AFTER);
        assert!(!check.is_due(9 * ASK_AFTER, 1, true));
        assert_eq!(check.asked_at(), Some(2 * ASK_AFTER));
        assert!(check.is_unanswered(Duration::from_secs(1), 3 * ASK_AFTER));
        assert!(!check.is_unanswered(Duration::from_secs(1), 3 * ASK_AFTER - 1));
        check.end();
        assert_eq!(check.asked_at(), None);
        assert!(!check.is_unanswered(Duration::ZERO, u64::MAX));
        assert!(check.is_due(9 * ASK_AFTER, 1, true));
    }
}
