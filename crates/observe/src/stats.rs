//! The figures of a server: its counters as they are counted, all figures at one moment, and how they are written to the
//! scoreboard.

use std::fmt;
use std::ops::{Index, IndexMut};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::metrics::Metric;
use crate::scoreboard::{Cell, WorkerSlot};

/// The counters of a server. Any thread.
#[derive(Debug, Default)]
pub struct Counts([AtomicU64; Metric::ALL.len()]);

impl Counts {
    /// Counts events, so many.
    #[inline]
    pub fn add(&self, counter: Metric, number: u64) {
        self.0[counter as usize].fetch_add(number, Ordering::Relaxed);
    }

    /// What was counted; everything that is counted elsewhere is 0.
    pub fn stats(&self) -> Stats {
        Stats { figures: self.0.each_ref().map(|count| count.load(Ordering::Relaxed)), ..Stats::default() }
    }
}

/// Counters and gauges of a server, for its owner to read: `stats[Metric::Requests]`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    figures: [u64; Metric::ALL.len()],
    /// Threads that there are; with greenlets, those that run requests or wait to.
    pub threads: u64,
    /// Greenlets that were ever made.
    pub greenlets_made: u64,
}

impl fmt::Debug for Stats {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = Metric::ALL.map(|metric| (metric.row().key, self[metric]));
        to.debug_map().entries(figures).finish()
    }
}

impl Index<Metric> for Stats {
    type Output = u64;

    fn index(&self, metric: Metric) -> &u64 {
        &self.figures[metric as usize]
    }
}

impl IndexMut<Metric> for Stats {
    fn index_mut(&mut self, metric: Metric) -> &mut u64 {
        &mut self.figures[metric as usize]
    }
}

impl Stats {
    /// Writes the figures to a worker slot of the scoreboard.
    pub fn publish(&self, worker_slot: &WorkerSlot) {
        for metric in Metric::ALL {
            worker_slot.set(metric, self[metric]);
        }
    }
}

/// Threads by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadStates {
    /// They wait for events and handle them.
    pub leading: u64,
    /// They look whether the leading one comes back from the application.
    pub watching: u64,
    /// They wait to be needed.
    pub parked: u64,
    /// They wait for the interpreter in order to run a request.
    pub entering: u64,
    /// They run the application, and do not wait for a client.
    pub running: u64,
    /// They wait for a client that does not accept their response.
    pub sending: u64,
}

impl ThreadStates {
    /// Writes them to a worker slot of the scoreboard.
    pub fn publish(&self, worker_slot: &WorkerSlot) {
        worker_slot.set_cell(Cell::Leading, self.leading);
        worker_slot.set_cell(Cell::Watching, self.watching);
        worker_slot.set_cell(Cell::Parked, self.parked);
        worker_slot.set_cell(Cell::Entering, self.entering);
        worker_slot.set_cell(Cell::Working, self.running);
        worker_slot.set_cell(Cell::Sending, self.sending);
    }
}

/// Activity of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Nothing: it is between two requests, or before the first.
    Idle,
    /// A request is received.
    Receiving,
    /// A request is queued or runs.
    Responding,
    /// The rest of a complete response is sent.
    Flushing,
    /// It closes once the client has had time to read the response.
    Closing,
}

/// Connections by activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionStates([u64; 5]);

impl ConnectionStates {
    /// Counts one.
    pub fn add(&mut self, activity: Activity) {
        self.0[activity as usize] += 1;
    }

    /// Writes them to a worker slot of the scoreboard.
    pub fn publish(&self, worker_slot: &WorkerSlot) {
        let Self([idle, receiving, responding, flushing, closing]) = *self;
        worker_slot.set_cell(Cell::Idle, idle);
        worker_slot.set_cell(Cell::Receiving, receiving);
        worker_slot.set_cell(Cell::Responding, responding);
        worker_slot.set_cell(Cell::Flushing, flushing);
        worker_slot.set_cell(Cell::Closing, closing);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Activity, ConnectionStates, Counts, Stats, ThreadStates};
    use crate::metrics::Metric;
    use crate::scoreboard::{Cell, Scoreboard};

    #[test]
    fn every_figure_and_state_is_published_in_a_word_of_its_own() {
        let worker_slot = Scoreboard::new(1, 1).unwrap().worker_slot(0).unwrap();
        let mut stats = Stats::default();
        for (value, metric) in (1..).zip(Metric::ALL) {
            stats[metric] = value;
        }
        stats.publish(&worker_slot);
        let threads =
            ThreadStates { leading: 101, watching: 102, parked: 103, entering: 104, running: 105, sending: 106 };
        threads.publish(&worker_slot);
        let mut connections = ConnectionStates::default();
        let all = [Activity::Idle, Activity::Receiving, Activity::Responding, Activity::Flushing, Activity::Closing];
        for (count, activity) in (201..).zip(all) {
            (0..count).for_each(|_| connections.add(activity));
        }
        connections.publish(&worker_slot);
        for (value, metric) in (1..).zip(Metric::ALL) {
            assert_eq!(worker_slot.get(metric), value, "{metric:?}");
        }
        assert_eq!(Cell::THREADS.map(|(cell, _)| worker_slot.cell(cell)), [101, 102, 103, 104, 105, 106]);
        assert_eq!(Cell::CONNECTIONS.map(|(cell, _)| worker_slot.cell(cell)), [201, 202, 203, 204, 205]);
        // These are not statistics.
        assert_eq!((worker_slot.cell(Cell::Pid), worker_slot.cell(Cell::Heartbeat)), (0, 0));
    }

    #[test]
    fn a_counter_counts_for_itself() {
        let counts = Counts::default();
        counts.add(Metric::Refused, 1);
        counts.add(Metric::Refused, 2);
        counts.add(Metric::Requests, 5);
        let mut expected = Stats::default();
        (expected[Metric::Refused], expected[Metric::Requests]) = (3, 5);
        assert_eq!(counts.stats(), expected);
    }
}
