//! Updates the server's section of the scoreboard, which is memory shared with the master: counters, a heartbeat, and
//! since when the server has been unable to enter the application.
//!
//! Runs on the thread that leads the loop.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::executor::application_check::ApplicationCheck;
use crate::observe::scoreboard::{Counter, Section};
use crate::observe::stats::Stats;
use crate::os::clock::{Millis, NEVER};
use crate::os::process;

/// Least time between two updates (milliseconds).
const PAUSE: Millis = 20;
/// How often a worker without events updates its heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// What an update writes.
pub(super) struct Shown {
    pub(super) stats: Stats,
    /// Number of requests that were started, plus those that have ended. While requests wait or run and it does not
    /// change, the server checks whether the application can be entered.
    pub(super) moves: u64,
    /// Since when a runner has been past the deadline of its request, in nanoseconds of the monotonic clock.
    pub(super) stuck_since: Option<u64>,
    /// The current time, in nanoseconds of the monotonic clock.
    pub(super) now: u64,
}

/// See the module.
pub(super) struct Publishing {
    place: Option<Section>,
    /// When the section was last updated (milliseconds); `NEVER` before.
    published: AtomicU64,
    check: ApplicationCheck,
}

impl Publishing {
    /// `place`: the section of this server; `None`: nothing is published.
    pub(super) fn new(place: Option<Section>) -> Self {
        if let Some(place) = place {
            place.set(Counter::Pid, u64::from(process::id()));
        }
        Self { place, published: AtomicU64::new(NEVER), check: ApplicationCheck::default() }
    }

    /// How long the loop may wait for events: a master expects a heartbeat by then. `None`: no limit.
    pub(super) fn longest_wait(&self) -> Option<Duration> {
        self.place.filter(|place| !place.is_alone()).map(|_| HEARTBEAT)
    }

    /// The section if an update is due; the next one is due [`PAUSE`] later.
    pub(super) fn is_due(&self, now: Millis) -> Option<Section> {
        let place = self.place?;
        if now.wrapping_sub(self.published.load(Ordering::Relaxed)) < PAUSE {
            return None;
        }
        self.published.store(now, Ordering::Relaxed);
        Some(place)
    }

    /// Writes the update. `ask` starts a check whether the application can be entered; it returns false if that is not
    /// possible.
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

    /// The check has succeeded: a thread has entered the application. Any thread.
    pub(super) fn application_answers(&self) {
        self.check.end();
    }

    /// True when a check has waited for at least `time`. `now`: nanoseconds of the monotonic clock. Any thread.
    pub(super) fn is_application_lost(&self, time: Duration, now: u64) -> bool {
        self.check.is_unanswered(time, now)
    }
}
