//! Whether the application can still be had: an interpreter that somebody holds and does not give back answers nobody.
//!
//! While requests are there and none is taken up or ended, the I/O side asks the application now and then, which
//! answers from a thread of its own as soon as that holds the interpreter. A check that stays unanswered is shown on
//! the scoreboard; the master decides what follows. A request that computes or waits for long lets the other thread in,
//! so it is none of these. Threads: those of the I/O side ask, the application's answers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Without any request taken up or ended for so long (nanoseconds), the application is asked.
const ASK_AFTER: u64 = 1_000_000_000;

/// See the module. Moments are nanoseconds of the clock that all processes share.
#[derive(Default)]
pub(crate) struct ApplicationCheck {
    /// When it was asked, and one; 0: nothing is asked.
    asked: AtomicU64,
    /// What counted up last, and when that was seen.
    moves: AtomicU64,
    moved_at: AtomicU64,
}

impl ApplicationCheck {
    /// True when the application is to be asked now, which [`ApplicationCheck::ask`] notes. `moves` counts requests
    /// taken up and ended; `is_busy`: some are there.
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

    /// True when the application has not answered for at least so long.
    pub(crate) fn is_unanswered(&self, time: Duration, now: u64) -> bool {
        self.asked_at().is_some_and(|at| Duration::from_nanos(now.saturating_sub(at)) >= time)
    }

    /// Since when the application has not answered.
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
