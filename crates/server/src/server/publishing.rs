//! What a server shows of itself on the scoreboard, in memory that it shares with its master, and what it is told
//! there: to drain. Also the check whether the application can still be had, whose result the master sees there.
//!
//! Runs on the thread that leads the loop.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::executor::application_check::ApplicationCheck;
use crate::observe::scoreboard::{Counter, Section};
use crate::observe::stats::Stats;
use crate::os::clock::{Millis, NEVER};
use crate::os::process;

/// Between two updates (milliseconds).
const PAUSE: Millis = 20;
/// How often a worker that has nothing to do shows that it lives.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// What is shown.
pub(super) struct Shown {
    pub(super) stats: Stats,
    /// Counts requests that were taken up and that have ended.
    pub(super) moves: u64,
    /// Since when a runner has been past the deadline of its request.
    pub(super) stuck_since: Option<u64>,
    /// This moment on the clock that all processes share.
    pub(super) now: u64,
}

/// See the module.
pub(super) struct Publishing {
    place: Option<Section>,
    /// When it was last updated.
    published: AtomicU64,
    check: ApplicationCheck,
}

impl Publishing {
    /// `place`: where; `None`: nowhere.
    pub(super) fn new(place: Option<Section>) -> Self {
        if let Some(place) = place {
            place.set(Counter::Pid, u64::from(process::id()));
        }
        Self { place, published: AtomicU64::new(NEVER), check: ApplicationCheck::default() }
    }

    /// How long to wait for events at most: where there is a master, it expects an update of the scoreboard by then.
    pub(super) fn longest_wait(&self) -> Option<Duration> {
        self.place.filter(|place| !place.is_alone()).map(|_| HEARTBEAT)
    }

    /// Where something is to be shown now; it counts as shown.
    pub(super) fn is_due(&self, now: Millis) -> Option<Section> {
        let place = self.place?;
        if now.wrapping_sub(self.published.load(Ordering::Relaxed)) < PAUSE {
            return None;
        }
        self.published.store(now, Ordering::Relaxed);
        Some(place)
    }

    /// Shows it. `ask` has the application asked whether it can be had. False: it cannot be asked.
    pub(super) fn publish(&self, place: Section, shown: &Shown, ask: impl FnOnce() -> bool) {
        let Shown { stats, moves, stuck_since, now } = shown;
        stats.publish(&place);
        place.set(Counter::Heartbeat, *now);
        place.set_stuck_since(*stuck_since);
        if self.check.is_due(*now, *moves, stats.running > 0 || stats.queued > 0) {
            self.check.ask(*now);
            if !ask() {
                self.check.end();
            }
        }
        place.set_asked_at(self.check.asked_at());
    }

    /// The application has answered. Any thread.
    pub(super) fn application_answers(&self) {
        self.check.end();
    }

    /// True when the application has not answered for at least so long. Any thread.
    pub(super) fn is_application_lost(&self, time: Duration, now: u64) -> bool {
        self.check.is_unanswered(time, now)
    }
}
