//! Batched responses: while further requests wait for the application, a small complete response is not sent at once but
//! held, and several batched responses are sent one directly after the other.
//!
//! This happens only while the server has little time to spare: clients that are answered together ask again together,
//! and a server that could work meanwhile would wait for them.
//!
//! Each send wakes a client. On the server's core the client preempts the next call of the application; on another core
//! the wake-up costs an interrupt. Sends after several calls make fewer of both.
//!
//! PEP 3333, "Buffering and Streaming": servers "must either fully transmit the block to the client, or guarantee that
//! they will continue transmission even while the application is producing its next block". A complete response has no
//! next block, and a block of one that is not complete is never held here ([`crate::response::coalescing`] delays
//! some). The guarantee is given nevertheless: another thread, the watcher, sends what has been held for `limit`, even
//! while the application runs.
//!
//! A process that dies loses the responses that it holds. So only responses to safe methods are held (RFC 9110 section
//! 9.2.1): a client may send such a request again.
//!
//! Threads: runners hold and send responses; the I/O side sends them when they have been held for `limit`. The list
//! owns the connections that are on it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::connection::driver::Connection;
use crate::observe::level::Level;
use crate::os::panics::{catch, may_panic};
use crate::os::sync::atomic::{AtomicUsize, Ordering};
use crate::os::sync::{Mutex, lock};

#[derive(Default)]
struct List {
    connections: Vec<Arc<Connection>>,
    /// When the first connection was added.
    since: Option<Instant>,
}

/// See the module.
pub(crate) struct BatchedResponses {
    list: Mutex<List>,
    count: AtomicUsize,
    limit: Duration,
}

impl BatchedResponses {
    /// An empty list. `limit`: how long a response may be held; zero: no response is held.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { list: Mutex::default(), count: AtomicUsize::new(0), limit }
    }

    /// True when responses may be held at all.
    pub(crate) fn is_on(&self) -> bool {
        !self.limit.is_zero()
    }

    /// How long a response may be held. `None`: none is.
    pub(crate) fn limit(&self) -> Option<Duration> {
        self.is_on().then_some(self.limit)
    }

    /// Holds the complete response of a connection that the caller owns.
    pub(crate) fn hold(&self, connection: Arc<Connection>, now: Instant) {
        let mut list = lock(&self.list);
        list.since.get_or_insert(now);
        list.connections.push(connection);
        self.count.store(list.connections.len(), Ordering::SeqCst);
    }

    /// True when nothing is held.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// The time until the oldest batched response has to be sent. `None`: nothing is held. `now` is called only if
    /// something is.
    #[inline]
    pub(crate) fn time_left(&self, now: impl FnOnce() -> Instant) -> Option<Duration> {
        if self.is_empty() {
            return None;
        }
        let since = lock(&self.list).since?;
        Some(self.limit.saturating_sub(now().saturating_duration_since(since)))
    }

    /// True when something has been held for `limit`.
    pub(crate) fn is_due(&self, now: impl FnOnce() -> Instant) -> bool {
        self.time_left(now) == Some(Duration::ZERO)
    }

    /// Sends all batched responses. A panic in one breaks its connection only.
    pub(crate) fn send(&self) {
        if self.is_empty() {
            return;
        }
        for connection in self.take() {
            let send = || {
                may_panic("held");
                connection.end_hold();
            };
            if let Err(panic) = catch(send) {
                let message = format!("a connection ended in a panic of the server: {panic}");
                connection.host().log(Level::Error, &message);
                // Nobody owns the connection any more.
                let _ = catch(|| connection.abort());
                let _ = catch(|| connection.host().remove(&connection));
            }
        }
    }

    /// Empties the list, when the server ends.
    pub(crate) fn clear(&self) {
        drop(self.take());
    }

    fn take(&self) -> Vec<Arc<Connection>> {
        let mut list = lock(&self.list);
        list.since = None;
        self.count.store(0, Ordering::SeqCst);
        std::mem::take(&mut list.connections)
    }
}
