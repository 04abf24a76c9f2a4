//! A reactor whose application runs in the greenlets of one thread: a thread of its own does the I/O, the hub's thread
//! takes the requests.
//!
//! [`Reactor::run_io`] is the I/O thread's, and never touches the application; the rest belongs to the hub's thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::Reactor;
use crate::connection::Connection;
use crate::handler::Level;
use crate::hub::Hub;
use crate::local;
use crate::scoreboard::InFlight;
use crate::sys::{self, Events};

/// Events taken at once: thousands of streams that get a block each are one round.
const BATCH: usize = 256;

impl Reactor {
    /// The hub whose greenlets run the application, if any.
    pub fn hub(&self) -> Option<&Hub> {
        self.hub.as_ref()
    }

    /// The body of the I/O thread. Returns when the server has ended.
    pub fn run_io(self: &Arc<Self>) {
        let Some(hub) = self.hub() else { return };
        let mut events = Events::new(BATCH);
        while !self.has_ended() {
            if let Err(fault) = self.poll(&mut events, self.next_timeout()) {
                self.log(Level::Error, &format!("the event loop failed: {fault}"));
                self.end();
                break;
            }
            let serve = AssertUnwindSafe(|| local::leading(|| self.serve(&events)));
            if catch_unwind(serve).is_err() {
                self.log(Level::Error, "the event loop panicked, and goes on");
            }
            // Once for all requests that this round has made complete.
            if self.ready.wants_runner(self.most_runners()) {
                hub.ring();
            }
        }
    }

    /// True when requests wait, one more may be carried, and the hub's other greenlets are not due yet. Those who are told
    /// no because of these are called again.
    pub fn wants_carrier(&self) -> bool {
        let Some(hub) = self.hub().filter(|hub| !hub.is_forgotten()) else { return false };
        if !self.ready.wants_runner(self.most_runners()) {
            return false;
        }
        let takes = hub.begins_slice();
        if !takes {
            hub.ring();
        }
        takes
    }

    /// A post for a new greenlet that carries requests; `None`: there is none left.
    pub fn take_post(&self) -> Option<usize> {
        let hub = self.hub().filter(|hub| !hub.is_forgotten())?;
        let post = self.posts.take(sys::thread_id())?;
        hub.count_carrier(true);
        Some(post)
    }

    /// The greenlet ends.
    pub fn give_post_back(&self, post: usize) {
        if let Some(hub) = self.hub().filter(|hub| !hub.is_forgotten()) {
            self.posts.give_back(post);
            hub.count_carrier(false);
        }
    }

    /// The requests that greenlets carry, each with the post of its greenlet.
    pub fn in_flight(&self) -> Vec<(usize, InFlight)> {
        self.place.map(|place| place.in_flight_by_slot().collect()).unwrap_or_default()
    }

    /// True when those who would run the application have been kept from it for at least so long.
    pub(super) fn is_barred(&self, time: Duration) -> bool {
        match &self.hub {
            Some(hub) => hub.unanswered() >= time,
            None => self.ready.is_barred(time),
        }
    }

    /// A response of a hub's greenlet, which goes on: whoever leads sends what waits of it.
    pub(crate) fn push(&self, connection: Arc<Connection>) {
        self.streams.push(connection);
        self.wake_leader();
    }

    /// True while requests are carried or wait.
    pub fn is_busy(&self) -> bool {
        self.ready.len() > 0 || self.ready.running() > 0
    }
}
