//! The connections of a server: what they share, the table of the open ones, and the list of those for which the I/O
//! side sends.
//!
//! Any thread uses these.

use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::connection::batched_responses::BatchedResponses;
use crate::connection::driver::Connection;
use crate::connection::flush_list::FlushList;
use crate::connection::host::{Log, Waking};
use crate::connection::shared::Shared;
use crate::connection::table::Table;
use crate::connection::transaction::Transaction;
use crate::connection::watch::Watch;
use crate::observe::level::Level;
use crate::os::clock::{Millis, NEVER};
use crate::os::epoll::Poller;
use crate::os::panics::catch;
use crate::os::sync::lock;
use crate::request::spool::Write;
use crate::response::coalescing::TICK;
use crate::response::policy::Policy;

/// The time between two log lines about the same failure of a disk (milliseconds).
const REPEAT_PAUSE: Millis = 60_000;

/// See the module.
pub(crate) struct Context {
    pub(crate) shared: Arc<Shared>,
    pub(crate) poller: Poller,
    pub(crate) table: Table,
    pub(crate) flush_list: FlushList,
    pub(crate) batched: BatchedResponses,
    /// Whether the watcher looks after both.
    watch: Watch,
    /// Requests that wait to be dispatched, with the connections that they own.
    dispatches: Mutex<Vec<(Box<Transaction>, Arc<Connection>)>>,
    has_dispatches: AtomicBool,
    /// When incomplete requests may be looked for again.
    pub(crate) next_look: Mutex<Option<Instant>>,
    pub(crate) reclaim: Reclaim,
    /// When it was last logged that responses cannot be stored, in milliseconds.
    spill_failed: AtomicU64,
}

/// The state of moving responses to files.
pub(crate) struct Reclaim {
    /// Disk threads have been asked to move responses. No others are looked for meanwhile.
    pub(crate) is_under_way: AtomicBool,
    /// When responses may be looked for again, in milliseconds.
    pub(crate) next_look: AtomicU64,
    /// Responses moved since the last log line about them.
    pub(crate) moved: AtomicU64,
    /// When that line was logged, in milliseconds.
    pub(crate) logged: AtomicU64,
}

impl Default for Reclaim {
    fn default() -> Self {
        Self {
            is_under_way: AtomicBool::new(false),
            next_look: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            logged: AtomicU64::new(NEVER),
        }
    }
}

impl Deref for Context {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Context {
    /// A context without connections.
    ///
    /// # Errors
    /// No descriptors left.
    pub(crate) fn new(config: Config, policy: Policy) -> io::Result<Self> {
        Ok(Self {
            batched: BatchedResponses::new(if policy.holds { config.hold_writes } else { Duration::ZERO }),
            shared: Arc::new(Shared::new(config, policy)),
            poller: Poller::new()?,
            table: Table::default(),
            flush_list: FlushList::default(),
            watch: Watch::default(),
            dispatches: Mutex::default(),
            has_dispatches: AtomicBool::new(false),
            next_look: Mutex::default(),
            reclaim: Reclaim::default(),
            spill_failed: AtomicU64::new(NEVER),
        })
    }

    /// Leaves the request, which owns its connection, to the next round of the thread that polls.
    pub(crate) fn dispatch_later(&self, host: &dyn Waking, transaction: Box<Transaction>, connection: Arc<Connection>) {
        lock(&self.dispatches).push((transaction, connection));
        self.has_dispatches.store(true, Ordering::SeqCst);
        if self.has_ended() {
            // No thread dispatches them any more, and their connections keep the server alive.
            drop(self.take_dispatches());
        } else {
            host.wake_io();
        }
    }

    /// True when a request waits to be dispatched.
    pub(crate) fn has_dispatches(&self) -> bool {
        self.has_dispatches.load(Ordering::SeqCst)
    }

    /// The requests that wait to be dispatched.
    pub(crate) fn take_dispatches(&self) -> Vec<(Box<Transaction>, Arc<Connection>)> {
        if !self.has_dispatches() {
            return Vec::new();
        }
        let mut dispatches = lock(&self.dispatches);
        self.has_dispatches.store(false, Ordering::SeqCst);
        std::mem::take(&mut *dispatches)
    }

    /// Moves the ownership of a connection from the caller to the thread that polls, which continues with it.
    pub(crate) fn hand_over(&self, host: &dyn Waking, connection: Arc<Connection>) {
        self.flush_list.add_handed_over(connection);
        self.wake_for_flush_list(host);
    }

    /// Has the thread that polls send what is queued for the client. The response continues, and ownership does not
    /// move.
    pub(crate) fn push(&self, host: &dyn Waking, connection: Arc<Connection>) {
        self.flush_list.add_queued(connection);
        self.wake_for_flush_list(host);
    }

    /// Holds the complete response of a connection that the caller owns. True: the caller wakes the watcher.
    pub(crate) fn hold(&self, connection: Arc<Connection>) -> bool {
        self.batched.hold(connection, self.clock.peek());
        if self.has_ended() {
            // No thread sends batched responses any more, and their connections keep the server alive.
            self.batched.clear();
        }
        self.watch.note_use()
    }

    /// The response of the connection coalesces its blocks from now on. True: unless another thread polls, the caller
    /// wakes the watcher.
    pub(crate) fn coalesce(&self, connection: Arc<Connection>) -> bool {
        self.flush_list.add_coalescing(connection);
        self.watch.note_use()
    }

    /// Called by the watcher: how long it may sleep so that coalesced blocks and batched responses are sent in time.
    /// `None`: any time; the next of them has it woken.
    pub(crate) fn longest_watch(&self) -> Option<Duration> {
        if !self.watch.is_in_use(|| self.flush_list.are_any() || !self.batched.is_empty()) {
            return None;
        }
        let left = [self.flush_list.time_left(), self.batched.time_left(|| self.clock.peek())];
        // What comes meanwhile waits for no longer than its limit.
        left.into_iter().chain([self.batched.limit(), Some(TICK)]).flatten().min()
    }

    /// Called by the watcher when it ceases to watch, or sleeps until it is called: what is left to it next has it woken.
    pub(crate) fn leave_watch(&self) {
        self.watch.leave();
    }

    fn wake_for_flush_list(&self, host: &dyn Waking) {
        if self.has_ended() {
            // No thread takes connections from the list any more, and each of them keeps the server alive.
            self.flush_list.clear();
        } else {
            host.wake_io();
        }
    }

    /// Has a disk thread write a part of a request body to its file. The connection continues after that.
    pub(crate) fn store(self: &Arc<Self>, connection: Arc<Connection>, write: Write) {
        let context = self.clone();
        self.disk.run(move || {
            if context.has_ended() {
                return;
            }
            let result = catch(|| write.run(&context.disk))
                .unwrap_or_else(|panic| Err(io::Error::other(format!("the server panicked: {panic}"))));
            connection.end_write(result);
            context.flush_list.add_handed_over(connection);
            if context.has_ended() {
                context.flush_list.clear();
            } else {
                context.poller.wake();
            }
        });
    }

    /// Removes a connection that has closed.
    pub(crate) fn remove(&self, connection: &Connection) {
        if self.table.remove(connection.key()) && self.is_stopping() && self.table.len() == 0 {
            self.poller.wake();
        }
    }

    /// Logs that responses cannot be written to files, once a minute.
    pub(crate) fn log_spill_failure(&self, host: &dyn Log, fault: &io::Error) {
        let now = self.clock.now();
        let before = self.spill_failed.load(Ordering::Relaxed);
        if before != NEVER && now.saturating_sub(before) < REPEAT_PAUSE {
            return;
        }
        if self.spill_failed.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let folder = self.disk.folder().display();
            host.log(
                Level::Warning,
                &format!(
                    "cannot store responses to slow clients in {folder}: {fault}; application threads wait for these \
                     clients instead"
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::{Context, TICK};
    use crate::config::Config;
    use crate::connection::host::{Log, Waking};
    use crate::connection::testing::{connection, server};
    use crate::executor::application::Level;
    use crate::executor::threads::POLICY;
    use crate::os::sync::lock;

    /// Keeps the lines of the log.
    #[derive(Default)]
    struct Lines(Mutex<Vec<String>>);

    impl Log for Lines {
        fn log(&self, level: Level, message: &str) {
            lock(&self.0).push(format!("{level:?}: {message}"));
        }
    }

    #[test]
    fn that_responses_cannot_be_stored_is_logged_once_a_minute() {
        let log = Lines::default();
        let context = Context::new(Config::default(), POLICY).unwrap();
        let fault = io::Error::other("no room is left");
        let lines_after = |time| {
            context.clock.advance(time);
            context.log_spill_failure(&log, &fault);
            lock(&log.0).len()
        };
        assert_eq!(lines_after(Duration::ZERO), 1);
        assert_eq!(lines_after(Duration::ZERO), 1);
        assert_eq!(lines_after(Duration::from_secs(40)), 1);
        assert_eq!(lines_after(Duration::from_secs(20)), 2, "a minute after the first");
        assert_eq!(lines_after(Duration::from_secs(40)), 2);
        let first = lock(&log.0)[0].clone();
        assert!(first.starts_with("Warning: ") && first.contains("no room is left"), "{first}");
    }

    #[test]
    fn a_server_that_has_ended_keeps_no_connection_that_is_held_or_left_to_the_io_side() {
        type Give = fn(&Context, &dyn Waking, Arc<super::Connection>);
        let ways: [Give; 3] = [
            |context, _, connection| _ = context.hold(connection),
            |context, host, connection| context.hand_over(host, connection),
            |context, host, connection| context.push(host, connection),
        ];
        let server = server();
        let context = Context::new(Config::default(), POLICY).unwrap();
        let keeps = |give: Give| {
            let (connection, _client) = connection(&server, 1);
            let weak = Arc::downgrade(&connection);
            give(&context, &*server, connection);
            weak.upgrade().is_some()
        };
        assert_eq!(ways.map(keeps), [true; 3]);
        context.lifecycle.end();
        assert_eq!(ways.map(keeps), [false; 3]);
        assert!(context.batched.is_empty() && !context.flush_list.are_any());
    }

    #[test]
    fn the_watcher_comes_in_time_for_coalesced_blocks_and_batched_responses() {
        let server = server();
        let limit = Duration::from_millis(7);
        let context = Context::new(Config { hold_writes: limit, ..Config::default() }, POLICY).unwrap();
        let [first, second] = [1, 2].map(|key| connection(&server, key).0);
        assert_eq!(context.longest_watch(), None, "nothing is left to it");
        assert!(context.coalesce(first), "it is woken");
        let is_within_a_tick = || context.longest_watch().is_some_and(|most| most <= TICK);
        assert!(is_within_a_tick());
        // While another thread sends what is listed: it stays listed, maybe.
        context.flush_list.tick(|_, _| assert!(is_within_a_tick()));
        assert_eq!(context.longest_watch(), None);
        assert!(context.hold(second));
        assert!(is_within_a_tick());
        assert_eq!(context.batched.limit(), Some(limit));
        context.batched.clear();
        assert_eq!(context.longest_watch(), None);
    }
}
