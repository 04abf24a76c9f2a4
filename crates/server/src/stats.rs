//! The counters of a server, as its owner reads them and as the scoreboard shows them.

use crate::scoreboard::{Counter, Place};

/// Counters of a server, for its owner to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Open connections.
    pub connections: u64,
    /// Connections ever accepted.
    pub accepted: u64,
    /// Requests answered by the application.
    pub requests: u64,
    /// Requests and connections refused by the server itself.
    pub refused: u64,
    /// Threads that there are; with a hub, greenlets that carry requests or wait to.
    pub threads: u64,
    /// With a hub: such greenlets that were ever made.
    pub carriers_made: u64,
    /// Threads that run the application.
    pub running: u64,
    /// Complete requests that wait for a thread.
    pub queued: u64,
    /// Bytes of memory in responses that clients have not taken.
    pub buffered: u64,
    /// Bytes of memory in request bodies.
    pub bodies: u64,
    /// Threads that are still in a request whose deadline is over.
    pub stuck: u64,
    /// Requests whose deadline came.
    pub timed_out: u64,
}

impl Stats {
    /// Shows them on the scoreboard.
    pub(crate) fn tell(&self, place: &Place) {
        for (counter, value) in [
            (Counter::Connections, self.connections),
            (Counter::Accepted, self.accepted),
            (Counter::Requests, self.requests),
            (Counter::Refused, self.refused),
            (Counter::Queued, self.queued),
            (Counter::Running, self.running),
            (Counter::Buffered, self.buffered),
            (Counter::Bodies, self.bodies),
            (Counter::Stuck, self.stuck),
            (Counter::TimedOut, self.timed_out),
        ] {
            place.set(counter, value);
        }
    }
}
