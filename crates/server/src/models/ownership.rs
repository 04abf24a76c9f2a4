//! The ownership word: one thread owns a connection at a time, and no event is lost.

use std::sync::Arc;

use loom::thread;
use tailrace_os::model::Exclusive;
use tailrace_os::sync::atomic::{AtomicU32, Ordering};

use super::explore;
use crate::connection::ownership::{Bits, GONE, Ownership, READ, WRITE};

/// A connection whose owners note the events that they have seen.
struct Connection {
    ownership: Ownership,
    /// The data of each event, by its bit: stored before the event is reported.
    news: [(Bits, AtomicU32); 3],
    /// The events that owners have seen. `Exclusive` checks that there is one owner at a time.
    seen: Exclusive<Bits>,
}

impl Connection {
    fn owned() -> Arc<Self> {
        let news = [READ, WRITE, GONE].map(|bit| (bit, AtomicU32::new(0)));
        Arc::new(Self { ownership: Ownership::owned(), news, seen: Exclusive::default() })
    }

    fn report(&self, bits: Bits) {
        for (bit, news) in &self.news {
            if bits & bit != 0 {
                news.store(1, Ordering::Relaxed);
            }
        }
        if self.ownership.raise(bits) {
            self.carry();
        }
    }

    /// The owner's loop, as in the driver.
    fn carry(&self) {
        loop {
            let bits = self.ownership.take();
            for (bit, news) in &self.news {
                if bits & bit != 0 {
                    assert_eq!(news.load(Ordering::Relaxed), 1, "an owner saw an event before its data");
                    self.seen.with(|seen| *seen |= bit);
                }
            }
            if self.ownership.release() {
                return;
            }
        }
    }

    fn seen(&self) -> Bits {
        self.seen.with(|seen| *seen)
    }
}

fn report(connection: &Arc<Connection>, bits: Bits) -> thread::JoinHandle<()> {
    let connection = connection.clone();
    thread::spawn(move || connection.report(bits))
}

#[test]
fn no_event_is_lost_while_the_first_owner_releases() {
    explore("ownership: a new connection", 3, || {
        let connection = Connection::owned();
        let others = [report(&connection, READ), report(&connection, WRITE)];
        connection.carry();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(connection.seen(), READ | WRITE);
        assert!(connection.ownership.raise(0), "the connection still has an owner");
    });
}

#[test]
fn no_event_is_lost_between_owners() {
    explore("ownership: three threads report", 3, || {
        let connection = Connection::owned();
        connection.carry();
        let others = [report(&connection, READ), report(&connection, WRITE | READ)];
        connection.report(GONE);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(connection.ownership.is_gone());
        assert!(connection.ownership.raise(0), "the connection still has an owner");
        // `GONE` does not prevent a release, so the last owner may not have seen it.
        let bits = connection.ownership.take();
        assert_eq!(connection.seen() | bits, READ | WRITE | GONE);
        assert_eq!(bits & !GONE, 0);
    });
}
