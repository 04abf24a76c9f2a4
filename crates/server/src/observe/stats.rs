//! The counters of a server, and how they are written to the scoreboard.

use crate::observe::scoreboard::{Counter, Section};

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
    /// Threads that there are; with greenlets, those that run requests or wait to.
    pub threads: u64,
    /// Greenlets that were ever made.
    pub greenlets_made: u64,
    /// Threads that run the application.
    pub running: u64,
    /// Complete requests that wait for a thread.
    pub queued: u64,
    /// Bytes of memory that are held for clients.
    pub held: u64,
    /// Of these, bytes of request heads, and of later requests that arrived behind them.
    pub heads: u64,
    /// Bytes of memory in responses that clients have not accepted.
    pub buffered: u64,
    /// Bytes of memory in request bodies.
    pub bodies: u64,
    /// Unfinished requests that were given up to make room for others.
    pub given_up: u64,
    /// Threads that are still in a request whose deadline has passed.
    pub stuck: u64,
    /// Requests whose deadline passed.
    pub timed_out: u64,
}

impl Stats {
    /// Writes them to a section of the scoreboard.
    pub(crate) fn publish(&self, section: &Section) {
        for (counter, value) in [
            (Counter::Connections, self.connections),
            (Counter::Accepted, self.accepted),
            (Counter::Requests, self.requests),
            (Counter::Refused, self.refused),
            (Counter::Queued, self.queued),
            (Counter::Running, self.running),
            (Counter::Held, self.held),
            (Counter::Heads, self.heads),
            (Counter::Buffered, self.buffered),
            (Counter::Bodies, self.bodies),
            (Counter::GivenUp, self.given_up),
            (Counter::Stuck, self.stuck),
            (Counter::TimedOut, self.timed_out),
        ] {
            section.set(counter, value);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Stats;
    use crate::observe::scoreboard::{Counter, Scoreboard};

    #[test]
    fn every_counter_of_the_scoreboard_is_published() {
        let section = Scoreboard::new(1, 1).unwrap().place(0).unwrap();
        let stats = Stats {
            connections: 1,
            accepted: 2,
            requests: 3,
            refused: 4,
            running: 5,
            queued: 6,
            held: 7,
            heads: 8,
            buffered: 9,
            bodies: 10,
            given_up: 11,
            stuck: 12,
            timed_out: 13,
            ..Stats::default()
        };
        stats.publish(&section);
        let named = |name: &str| section.get(Counter::ALL.iter().find(|(_, each)| *each == name).unwrap().0);
        let published =
            ["connections", "accepted", "requests", "refused", "running", "queued", "held", "heads"].map(named);
        assert_eq!(published, [1, 2, 3, 4, 5, 6, 7, 8]);
        let others = ["buffered", "bodies", "given_up", "stuck", "timed_out"].map(named);
        assert_eq!(others, [9, 10, 11, 12, 13]);
        // These are not statistics.
        assert_eq!((named("pid"), named("heartbeat_ns")), (0, 0));
    }
}
