//! Updates the server's slot of the scoreboard, which is memory shared with the master: counters, a heartbeat, and since
//! when the server has been unable to enter the application.
//!
//! The loop needs no timer for it: its wait ends when the next update is due. After an update that differs from the one
//! before, the next one follows soon; as long as nothing changes, each pause is twice as long, up to that of the
//! heartbeat. So the figures are of the last request of a burst, and a request that another thread runs is seen to end.
//!
//! Runs on the thread that leads the loop.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tailrace_observe::metrics::Metric;
use tailrace_observe::scoreboard::{Cell, WorkerSlot};
use tailrace_observe::stats::Stats;
use tailrace_os::clock::{Millis, NEVER};
use tailrace_os::process;
use tailrace_os::sync::lock;

use crate::executor::application_check::ApplicationCheck;

/// Least time between two updates (milliseconds).
const PAUSE: Millis = 20;
/// How often a worker without events updates its heartbeat.
const HEARTBEAT: Millis = 1_000;
/// With more connections than this they are counted by their states once for each heartbeat: it costs 0.1 µs for each.
const MANY_CONNECTIONS: usize = 256;

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

pub(super) struct Publishing {
    worker_slot: Option<WorkerSlot>,
    /// When the worker slot was last updated (milliseconds); `NEVER` before.
    published: AtomicU64,
    /// How long after that the loop may wait for events (milliseconds).
    pause: AtomicU64,
    /// When the connections were last counted by their states (milliseconds).
    counted: AtomicU64,
    /// What was published.
    last: Mutex<(Stats, u64)>,
    check: ApplicationCheck,
}

impl Publishing {
    /// `worker_slot`: that of this server; `None`: nothing is published.
    pub(super) fn new(worker_slot: Option<WorkerSlot>) -> Self {
        if let Some(worker_slot) = worker_slot {
            worker_slot.set_cell(Cell::Pid, u64::from(process::id()));
        }
        Self {
            worker_slot,
            published: AtomicU64::new(NEVER),
            pause: AtomicU64::new(PAUSE),
            counted: AtomicU64::new(0),
            last: Mutex::default(),
            check: ApplicationCheck::default(),
        }
    }

    /// How long the loop may wait for events: the next update is due then. `None`: no limit, as no master reads it.
    pub(super) fn longest_wait(&self, now: Millis) -> Option<Duration> {
        self.worker_slot.filter(|slot| !slot.is_alone())?;
        let due = match self.published.load(Ordering::Relaxed) {
            NEVER => PAUSE,
            published => published.saturating_add(self.pause.load(Ordering::Relaxed)).saturating_sub(now),
        };
        Some(Duration::from_millis(due))
    }

    /// True when the connections are to be counted by their states with this update.
    pub(super) fn are_connections_due(&self, now: Millis, connections: usize) -> bool {
        let is_due =
            connections <= MANY_CONNECTIONS || now.saturating_sub(self.counted.load(Ordering::Relaxed)) >= HEARTBEAT;
        if is_due {
            self.counted.store(now, Ordering::Relaxed);
        }
        is_due
    }

    /// The worker slot if an update is due; the next one is due [`PAUSE`] later.
    pub(super) fn is_due(&self, now: Millis) -> Option<WorkerSlot> {
        let worker_slot = self.worker_slot?;
        if now.wrapping_sub(self.published.load(Ordering::Relaxed)) < PAUSE {
            return None;
        }
        self.published.store(now, Ordering::Relaxed);
        Some(worker_slot)
    }

    /// Writes the update. `ask` starts a check whether the application can be entered; it returns false if that is not
    /// possible.
    pub(super) fn publish(&self, worker_slot: WorkerSlot, shown: &Shown, ask: impl FnOnce() -> bool) {
        let Shown { stats, moves, stuck_since, now } = shown;
        stats.publish(&worker_slot);
        let before = std::mem::replace(&mut *lock(&self.last), (*stats, *moves));
        let pause = match self.pause.load(Ordering::Relaxed) {
            pause if before == (*stats, *moves) => (2 * pause).min(HEARTBEAT),
            _ => PAUSE,
        };
        self.pause.store(pause, Ordering::Relaxed);
        worker_slot.set_cell(Cell::Heartbeat, *now);
        worker_slot.set_stuck_since(*stuck_since);
        if self.check.is_due(*now, *moves, stats[Metric::Running] > 0 || stats[Metric::Queued] > 0) {
            self.check.ask(*now);
            if !ask() {
                self.check.end();
            }
        }
        worker_slot.set_asked_at(self.check.asked_at());
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use tailrace_observe::metrics::Metric;
    use tailrace_observe::scoreboard::Scoreboard;
    use tailrace_observe::stats::Stats;

    use super::{HEARTBEAT, MANY_CONNECTIONS, PAUSE, Publishing, Shown};

    /// Publishes at `now`, when so many requests have been answered. Returns how long the loop may wait then.
    fn wait_after(publishing: &Publishing, now: u64, requests: u64) -> u64 {
        let worker_slot = publishing.is_due(now).unwrap();
        let mut stats = Stats::default();
        stats[Metric::Requests] = requests;
        publishing.publish(worker_slot, &Shown { stats, moves: requests, stuck_since: None, now }, || false);
        assert_eq!(worker_slot.get(Metric::Requests), requests);
        u64::try_from(publishing.longest_wait(now).unwrap().as_millis()).unwrap()
    }

    #[test]
    fn after_a_change_the_next_update_is_soon_and_without_one_each_pause_is_longer() {
        let publishing = Publishing::new(Scoreboard::new(2, 1).unwrap().worker_slot(0));
        assert_eq!(publishing.longest_wait(5), Some(Duration::from_millis(PAUSE)));
        let mut now = 1_000;
        for _ in 0..3 {
            assert_eq!(wait_after(&publishing, now, now), PAUSE);
            // What comes sooner is not published at once, and the loop waits no longer for that.
            assert!(publishing.is_due(now + PAUSE - 1).is_none());
            assert_eq!(publishing.longest_wait(now + PAUSE - 1), Some(Duration::from_millis(1)));
            assert_eq!(publishing.longest_wait(now + 5 * PAUSE), Some(Duration::ZERO));
            now += PAUSE;
        }
        let requests = now - PAUSE;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let pause = wait_after(&publishing, now, requests);
            now += pause;
            pauses.push(pause);
        }
        assert_eq!(pauses, [40, 80, 160, 320, 640, HEARTBEAT, HEARTBEAT, HEARTBEAT]);
        assert_eq!(wait_after(&publishing, now, requests + 1), PAUSE);
    }

    #[test]
    fn without_a_master_the_loop_waits_as_long_as_it_likes() {
        let publishing = Publishing::new(Scoreboard::new(1, 1).unwrap().worker_slot(0));
        assert_eq!((publishing.longest_wait(5), Publishing::new(None).longest_wait(5)), (None, None));
    }

    #[test]
    fn many_connections_are_counted_once_for_each_heartbeat() {
        let publishing = Publishing::new(None);
        let due = |now, connections| publishing.are_connections_due(now, connections);
        assert!(due(5_000, 1) && due(5_020, MANY_CONNECTIONS));
        assert!(!due(5_040, MANY_CONNECTIONS + 1) && !due(5_020 + HEARTBEAT - 1, MANY_CONNECTIONS + 1));
        assert!(due(5_020 + HEARTBEAT, MANY_CONNECTIONS + 1));
        assert!(!due(5_040 + HEARTBEAT, MANY_CONNECTIONS + 1));
    }
}
