//! The counters of a server, and how they are written to the scoreboard.

use crate::observe::scoreboard::{Counter, Section};

/// Counters of a server, for its owner to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// Responses of static files, of which the application knows nothing.
    pub static_responses: u64,
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
            (Counter::StaticResponses, self.static_responses),
        ] {
            section.set(counter, value);
        }
    }
}

/// Threads by what they do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadStates {
    /// They wait for events and handle them.
    pub(crate) leading: u64,
    /// They look whether the leading one comes back from the application.
    pub(crate) watching: u64,
    /// They wait to be needed.
    pub(crate) parked: u64,
    /// They wait for the interpreter in order to run a request.
    pub(crate) entering: u64,
    /// They run the application, and do not wait for a client.
    pub(crate) running: u64,
    /// They wait for a client that does not accept their response.
    pub(crate) sending: u64,
}

impl ThreadStates {
    /// Writes them to a section of the scoreboard.
    pub(crate) fn publish(&self, section: &Section) {
        section.set(Counter::Leading, self.leading);
        section.set(Counter::Watching, self.watching);
        section.set(Counter::Parked, self.parked);
        section.set(Counter::Entering, self.entering);
        section.set(Counter::Working, self.running);
        section.set(Counter::Sending, self.sending);
    }
}

/// What goes on on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Nothing: it is between two requests, or before the first.
    Idle,
    /// A request is received.
    Receiving,
    /// A request is queued or runs.
    Responding,
    /// The rest of a complete response is sent.
    Sending,
    /// It closes once the client has had time to read the response.
    Closing,
}

/// Connections by what goes on on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionStates([u64; 5]);

impl ConnectionStates {
    /// Counts one.
    pub(crate) fn add(&mut self, activity: Activity) {
        self.0[activity as usize] += 1;
    }

    /// Writes them to a section of the scoreboard.
    pub(crate) fn publish(&self, section: &Section) {
        let Self([idle, receiving, responding, sending, closing]) = *self;
        section.set(Counter::Idle, idle);
        section.set(Counter::Receiving, receiving);
        section.set(Counter::Responding, responding);
        section.set(Counter::Draining, sending);
        section.set(Counter::Closing, closing);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Activity, ConnectionStates, Stats, ThreadStates};
    use crate::observe::scoreboard::{Counter, Scoreboard};

    #[test]
    fn every_counter_and_state_of_the_scoreboard_is_published() {
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
            static_responses: 14,
            ..Stats::default()
        };
        stats.publish(&section);
        let named = |name: &str| section.get(Counter::ALL.iter().find(|(_, each)| *each == name).unwrap().0);
        let published =
            ["connections", "accepted", "requests", "refused", "running", "queued", "held", "heads"].map(named);
        assert_eq!(published, [1, 2, 3, 4, 5, 6, 7, 8]);
        let others = ["buffered", "bodies", "given_up", "stuck", "timed_out", "static"].map(named);
        assert_eq!(others, [9, 10, 11, 12, 13, 14]);
        let states = ThreadStates { leading: 1, watching: 2, parked: 3, entering: 4, running: 5, sending: 6 };
        states.publish(&section);
        assert_eq!(Counter::THREADS.map(|(counter, _)| section.get(counter)), [1, 2, 3, 4, 5, 6]);
        let mut states = ConnectionStates::default();
        let all = [Activity::Idle, Activity::Receiving, Activity::Responding, Activity::Sending, Activity::Closing];
        for (count, activity) in (1..).zip(all) {
            (0..count).for_each(|_| states.add(activity));
        }
        states.publish(&section);
        assert_eq!(Counter::CONNECTIONS.map(|(counter, _)| section.get(counter)), [1, 2, 3, 4, 5]);
        // These are not statistics.
        assert_eq!((named("pid"), named("heartbeat_ns")), (0, 0));
    }
}
