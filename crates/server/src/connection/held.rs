//! Responses that are complete and held: while further requests wait for the application, a small complete response is
//! not sent at once, so that several leave one after the other.
//!
//! Each send wakes a client. On the server's core the client preempts the next call of the application; on another core
//! the wake-up is an interrupt. Sending after several calls spares both.
//!
//! PEP 3333, "Buffering and Streaming": servers "must either fully transmit the block to the client, or guarantee that
//! they will continue transmission even while the application is producing its next block". A complete response has no
//! next block, and a block of one that is not complete is never held. Even so the second half is kept: another thread,
//! the watcher, sends what has been held for `limit`, whatever the application does meanwhile.
//!
//! A process that dies loses what it holds. So only responses to safe methods are held (RFC 9110, section 9.2.1), whose
//! requests a client may send again.
//!
//! Threads: runners hold and send; the I/O side sends what is due. A connection on the list owns its claim.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::connection::driver::Connection;
use crate::observe::level::Level;
use crate::os::panics::catch;
use crate::os::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::os::sync::{Mutex, lock};

#[derive(Default)]
struct List {
    connections: Vec<Arc<Connection>>,
    /// When the first of them was added.
    since: Option<Instant>,
}

/// See the module.
pub(crate) struct Held {
    list: Mutex<List>,
    count: AtomicUsize,
    limit: Duration,
    watch: Watch,
}

impl Held {
    /// Nothing is held. `limit`: how long a response may be held; zero: none is.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { list: Mutex::default(), count: AtomicUsize::new(0), limit, watch: Watch::default() }
    }

    /// False: no response is ever held.
    pub(crate) fn is_on(&self) -> bool {
        !self.limit.is_zero()
    }

    /// Holds the complete response of a connection that the caller owns. True: the watcher sleeps for longer than the
    /// limit, and is to be called.
    pub(crate) fn hold(&self, connection: Arc<Connection>, now: Instant) -> bool {
        let mut list = lock(&self.list);
        list.since.get_or_insert(now);
        list.connections.push(connection);
        self.count.store(list.connections.len(), Ordering::SeqCst);
        drop(list);
        self.watch.note_hold()
    }

    /// True when nothing is held.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// How long what is held may still be. `None`: nothing is.
    pub(crate) fn time_left(&self, now: Instant) -> Option<Duration> {
        if self.is_empty() {
            return None;
        }
        let since = lock(&self.list).since?;
        Some(self.limit.saturating_sub(now.saturating_duration_since(since)))
    }

    /// Sends all that is held. A panic in there costs the connection.
    pub(crate) fn send(&self) {
        if self.is_empty() {
            return;
        }
        for connection in self.take() {
            if let Err(panic) = catch(|| connection.take_over()) {
                let message = format!("a connection ended in a panic of the server: {panic}");
                connection.host().log(Level::Error, &message);
                connection.cut();
            }
        }
    }

    /// Forgets all, when the server ends.
    pub(crate) fn clear(&self) {
        drop(self.take());
    }

    fn take(&self) -> Vec<Arc<Connection>> {
        let mut list = lock(&self.list);
        list.since = None;
        self.count.store(0, Ordering::SeqCst);
        std::mem::take(&mut list.connections)
    }

    /// The watcher: how long it may sleep so that nothing is held beyond the limit. `None`: as long as it likes; who
    /// holds next calls it.
    pub(crate) fn longest_sleep(&self, now: Instant) -> Option<Duration> {
        if !self.is_on() {
            return None;
        }
        let is_in_use = self.watch.is_in_use(|| !self.is_empty());
        is_in_use.then(|| self.time_left(now).unwrap_or(self.limit))
    }
}

/// Whether the watcher looks often enough for the limit: only while responses are held now and then.
#[derive(Default)]
struct Watch {
    /// Something was held since the watcher last looked.
    is_used: AtomicBool,
    /// The watcher wakes within the limit.
    is_awake: AtomicBool,
}

impl Watch {
    /// Something is held from now on. True: the watcher is to be called.
    fn note_hold(&self) -> bool {
        self.is_used.store(true, Ordering::SeqCst);
        // Both sides store first and look then, so that at least one of them sees the other.
        !self.is_awake.load(Ordering::SeqCst)
    }

    /// The watcher, before it sleeps: whether it is to wake within the limit.
    fn is_in_use(&self, holds: impl Fn() -> bool) -> bool {
        let is_in_use = self.is_used.swap(false, Ordering::SeqCst);
        self.is_awake.store(is_in_use, Ordering::SeqCst);
        if !is_in_use && (holds() || self.is_used.load(Ordering::SeqCst)) {
            self.is_awake.store(true, Ordering::SeqCst);
            return true;
        }
        is_in_use
    }
}

#[cfg(test)]
mod tests {
    use super::Watch;

    #[test]
    fn the_watcher_is_called_only_where_it_may_sleep_for_long() {
        let watch = Watch::default();
        assert!(watch.note_hold(), "it has not looked yet");
        assert!(watch.is_in_use(|| true));
        assert!(!watch.note_hold(), "it wakes within the limit");
        assert!(watch.is_in_use(|| false), "something was held meanwhile");
        assert!(!watch.is_in_use(|| false), "nothing was");
        assert!(watch.note_hold());
    }

    #[test]
    fn what_is_held_as_the_watcher_goes_to_sleep_keeps_it_awake() {
        let watch = Watch::default();
        assert!(watch.is_in_use(|| {
            watch.note_hold();
            true
        }));
        assert!(!watch.note_hold());
    }
}
