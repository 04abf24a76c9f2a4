//! The deadline table.
//!
//! A connection has one deadline, stored in the connection, where it can be changed without the table. The table has
//! few entries for a connection: one is added only when the deadline becomes earlier than the connection's entries. An
//! entry that is due before the deadline of its connection is replaced by one for that deadline, so a keep-alive
//! connection costs one heap operation per idle timeout and not one per request.
//!
//! Any thread may set a deadline; the leader takes entries that are due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tailrace_os::clock::{Millis, NEVER};
use tailrace_os::sync::lock;

/// How often a single-threaded server looks for signals.
pub(crate) const SIGNAL_CHECK: Duration = Duration::from_millis(100);

/// The deadline of one connection.
pub(crate) struct Deadline {
    due: AtomicU64,
    /// The earliest entry of the table for this connection.
    armed: AtomicU64,
}

impl Deadline {
    /// No deadline.
    pub(crate) const fn new() -> Self {
        Self { due: AtomicU64::new(NEVER), armed: AtomicU64::new(NEVER) }
    }

    /// The time of the deadline.
    pub(crate) fn due(&self) -> Millis {
        self.due.load(Ordering::Acquire)
    }

    /// True when the deadline has passed.
    pub(crate) fn has_come(&self, now: Millis) -> bool {
        self.due.load(Ordering::Acquire) <= now
    }
}

/// The table: at which time to look at which connection.
#[derive(Default)]
pub(crate) struct Timers {
    entries: Mutex<BinaryHeap<Reverse<(Millis, u64)>>>,
}

/// Whether the deadline of a connection has passed, of which an entry is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// The deadline has passed.
    Now,
    /// The deadline has been moved or removed.
    NotYet,
}

impl Timers {
    /// Sets the deadline of the connection `key`. True when the table got a new earliest entry: the thread that polls
    /// has to be woken, because it waits until the previous one.
    pub(crate) fn set(&self, deadline: &Deadline, key: u64, due: Millis) -> bool {
        deadline.due.store(due, Ordering::SeqCst);
        self.arm(deadline, key, due)
    }

    /// Makes sure that there is an entry at `due` or earlier. True when the table got a new earliest entry.
    fn arm(&self, deadline: &Deadline, key: u64, due: Millis) -> bool {
        if due < deadline.armed.load(Ordering::SeqCst) {
            deadline.armed.store(due, Ordering::Release);
            let mut entries = lock(&self.entries);
            let earliest = entries.peek().is_none_or(|Reverse((earliest, _))| due < *earliest);
            entries.push(Reverse((due, key)));
            return earliest;
        }
        false
    }

    /// Reserves memory for one more entry of each of this many connections. False: the system is out of memory.
    pub(crate) fn reserve(&self, connections: usize) -> bool {
        lock(&self.entries).try_reserve(connections).is_ok()
    }

    /// Adds an entry that is not for a connection.
    pub(crate) fn wake(&self, key: u64, due: Millis) {
        lock(&self.entries).push(Reverse((due, key)));
    }

    /// Removes one entry that is due at `now`.
    pub(crate) fn pop(&self, now: Millis) -> Option<(Millis, u64)> {
        let mut entries = lock(&self.entries);
        match entries.peek() {
            Some(Reverse((due, _))) if *due <= now => entries.pop().map(|Reverse(entry)| entry),
            _ => None,
        }
    }

    /// Returns whether the deadline has passed whose entry was taken by [`Timers::pop`]. Adds an entry if it has not.
    pub(crate) fn judge(&self, deadline: &Deadline, key: u64, entry: Millis, now: Millis) -> Due {
        let due = deadline.due.load(Ordering::SeqCst);
        let armed = deadline.armed.load(Ordering::SeqCst);
        if due <= now && armed != entry {
            return Due::Now;
        }
        if armed == entry {
            deadline.armed.store(NEVER, Ordering::SeqCst);
            // Another thread may call `set` at this moment; then the connection may get two entries, which does no
            // harm.
            let later = deadline.due.load(Ordering::SeqCst);
            if later != NEVER && later > now {
                self.arm(deadline, key, later);
            }
            if later <= now {
                return Due::Now;
            }
        }
        Due::NotYet
    }

    /// The time until the next entry; `None` when there is none.
    pub(crate) fn next(&self, now: Millis) -> Option<Duration> {
        lock(&self.entries).peek().map(|Reverse((due, _))| Duration::from_millis(due.saturating_sub(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::{Deadline, Due, NEVER, Timers};

    #[test]
    fn a_later_deadline_costs_no_entry_and_is_found_when_the_entry_comes_due() {
        let timers = Timers::default();
        let deadline = Deadline::new();
        timers.set(&deadline, 7, 100);
        timers.set(&deadline, 7, 250);
        assert_eq!(timers.pop(100), Some((100, 7)));
        assert_eq!(timers.judge(&deadline, 7, 100, 100), Due::NotYet);
        assert_eq!(timers.pop(249), None);
        assert_eq!(timers.pop(250), Some((250, 7)));
        assert_eq!(timers.judge(&deadline, 7, 250, 250), Due::Now);
        assert_eq!(timers.next(0), None);
    }

    #[test]
    fn an_earlier_deadline_has_its_own_entry() {
        let timers = Timers::default();
        let deadline = Deadline::new();
        timers.set(&deadline, 7, 1_000);
        timers.set(&deadline, 7, 10);
        assert_eq!(timers.pop(10), Some((10, 7)));
        assert_eq!(timers.judge(&deadline, 7, 10, 10), Due::Now);
    }

    #[test]
    fn a_removed_deadline_leaves_no_entry() {
        let timers = Timers::default();
        let deadline = Deadline::new();
        timers.set(&deadline, 7, 10);
        timers.set(&deadline, 7, NEVER);
        assert_eq!(timers.pop(10), Some((10, 7)));
        assert_eq!(timers.judge(&deadline, 7, 10, 10), Due::NotYet);
        assert_eq!(timers.next(0), None);
        timers.set(&deadline, 7, 40);
        assert_eq!(timers.pop(40), Some((40, 7)));
    }
}
