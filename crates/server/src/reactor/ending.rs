//! How a server ends: it drains what is in flight, then cuts what is left.
//!
//! Any thread asks for it; the thread that leads the loop does it.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use super::Reactor;
use crate::claim;
use crate::timers::millis;
use crate::{read, write};

/// Rounds of accepting (see [`crate::accept`]) before a draining server closes a listener, so that a flood of clients
/// does not keep it from ending.
const LAST_ROUNDS: usize = 256;

/// A draining server that waits so long for an interpreter which a request past its deadline holds starts no more requests.
const BARRED: Duration = Duration::from_millis(500);

impl Reactor {
    /// The server is to stop: no new connections, idle ones close, the rest finishes until the deadline.
    pub(super) fn drain(self: &Arc<Self>) {
        if self.phase.begins_to_drain() {
            // Whoever has connected already is served: closing the listener would reset them.
            let listeners = read(&self.listeners).len();
            for index in 0..listeners {
                for _ in 0..LAST_ROUNDS {
                    if !self.accept(index) {
                        break;
                    }
                }
            }
            for listener in std::mem::take(&mut *write(&self.listeners)) {
                self.poller.forget(listener.socket.as_fd());
            }
            for connection in self.slots.all() {
                self.tell(&connection, claim::STOP);
            }
        }
        if self.posts.stuck() > 0 && self.is_barred(BARRED) {
            // Nobody will start these any more.
            for exchange in self.ready.clear() {
                exchange.turn_away();
            }
        }
        let quiet = self.slots.len() == 0 && self.ready.len() == 0 && self.ready.running() == 0;
        if quiet || self.phase.is_overdue(self.clock.now()) {
            self.end();
        }
    }

    /// Ends now: whatever is still open is cut.
    pub(super) fn end(self: &Arc<Self>) {
        if !self.phase.end() {
            return;
        }
        write(&self.listeners).clear();
        for exchange in self.ready.clear() {
            exchange.fail(503, Some("The server is stopping."));
        }
        // Connections and reactor refer to each other: this lets both go.
        for connection in self.slots.clear() {
            connection.cut();
            connection.account_cut();
        }
        self.streams.clear();
        self.poller.ring();
        self.crew.end();
        if let Some(log) = &self.access_log {
            log.close();
        }
        self.phase.is_over();
        if let Some(hub) = &self.hub {
            hub.tell_ended();
        }
    }

    /// After something was put where the thread that leads looks: that may be over.
    pub(super) fn wake_for_streams(&self) {
        if self.has_ended() {
            // Nobody looks any more, and connections and reactor refer to each other.
            self.streams.clear();
        } else {
            self.wake_leader();
        }
    }

    /// Begins a graceful stop: requests in flight are answered within `graceful`, then what is left is cut.
    /// May be called again with a shorter time.
    pub fn stop(&self, graceful: Duration) {
        self.phase.stop(self.clock.now().saturating_add(millis(graceful)));
        self.poller.ring();
    }

    /// Waits until the server has ended. False: the time ran out before.
    pub fn join(&self, timeout: Option<Duration>) -> bool {
        self.phase.join(timeout)
    }
}
