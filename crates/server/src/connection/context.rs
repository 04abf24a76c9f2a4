//! The connections of a server: what they share, the table of the open ones, and the list of those for which the I/O
//! side sends.
//!
//! Any thread uses these.

use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tailrace_observe::once_a_minute::OnceAMinute;
use tailrace_os::clock::Millis;
use tailrace_os::epoll::Poller;
use tailrace_os::panics::catch;
use tailrace_os::sync::lock;

use crate::config::Config;
use crate::connection::batched_responses::BatchedResponses;
use crate::connection::driver::Connection;
use crate::connection::flush_list::FlushList;
use crate::connection::hold_rule::HoldRule;
use crate::connection::ownership::Owned;
use crate::connection::shared::Shared;
use crate::connection::table::Table;
use crate::connection::transaction::Transaction;
use crate::connection::watch::{Watch, Watcher};
use crate::request::disk::Disk;
use crate::request::spool::Write;
use crate::response::coalescing::TICK;
use crate::response::policy::Policy;

pub(crate) struct Context {
    pub(crate) shared: Arc<Shared>,
    pub(crate) poller: Poller,
    pub(crate) table: Table,
    pub(crate) flush_list: FlushList,
    pub(crate) batched: BatchedResponses,
    /// Whether the watcher looks after the list.
    watch: Watch,
    /// Requests that wait to be dispatched, with the connections that they own.
    dispatches: Mutex<Vec<(Box<Transaction>, Owned<Connection>)>>,
    has_dispatches: AtomicBool,
    /// When incomplete requests may be looked for again.
    pub(crate) next_look: Mutex<Option<Instant>>,
    /// When bodies in files may be looked for again, and the age of the body that needed room.
    pub(crate) next_look_at_files: Mutex<Option<(Instant, Millis)>>,
    pub(crate) reclaim: Reclaim,
}

/// The state of moving responses to files.
#[derive(Default)]
pub(crate) struct Reclaim {
    /// Disk threads have been asked to move responses. No others are looked for meanwhile.
    pub(crate) is_under_way: AtomicBool,
    /// When responses may be looked for again, in milliseconds.
    pub(crate) next_look: AtomicU64,
    /// Responses moved since the last log line about them.
    pub(crate) moved: AtomicU64,
    pub(crate) logged: OnceAMinute,
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
    pub(crate) fn new(config: Config, policy: Policy, disk: Arc<Disk>) -> io::Result<Self> {
        let hold_limit = if policy.holds { config.hold_writes } else { Duration::ZERO };
        Ok(Self {
            batched: BatchedResponses::new(HoldRule::new(hold_limit))?,
            shared: Arc::new(Shared::new(config, policy, disk)),
            poller: Poller::new()?,
            table: Table::default(),
            flush_list: FlushList::default(),
            watch: Watch::default(),
            dispatches: Mutex::default(),
            has_dispatches: AtomicBool::new(false),
            next_look: Mutex::default(),
            next_look_at_files: Mutex::default(),
            reclaim: Reclaim::default(),
        })
    }

    /// Leaves the request, which owns its connection, to the next round of the thread that polls. `wake_io` wakes that
    /// thread.
    pub(crate) fn dispatch_later(
        &self,
        transaction: Box<Transaction>,
        connection: Owned<Connection>,
        wake_io: impl FnOnce(),
    ) {
        lock(&self.dispatches).push((transaction, connection));
        self.has_dispatches.store(true, Ordering::SeqCst);
        if self.has_ended() {
            // No thread dispatches them any more, and their connections keep the server alive.
            drop(self.take_dispatches());
        } else {
            wake_io();
        }
    }

    /// True when a request waits to be dispatched.
    pub(crate) fn has_dispatches(&self) -> bool {
        self.has_dispatches.load(Ordering::SeqCst)
    }

    /// The requests that wait to be dispatched.
    pub(crate) fn take_dispatches(&self) -> Vec<(Box<Transaction>, Owned<Connection>)> {
        if !self.has_dispatches() {
            return Vec::new();
        }
        let mut dispatches = lock(&self.dispatches);
        self.has_dispatches.store(false, Ordering::SeqCst);
        std::mem::take(&mut *dispatches)
    }

    /// Moves the ownership of a connection from the caller to the thread that polls, which continues with it.
    pub(crate) fn hand_over(&self, connection: Owned<Connection>, wake_io: impl FnOnce()) {
        self.flush_list.add_handed_over(connection);
        self.wake_for_flush_list(wake_io);
    }

    /// Has the thread that polls send what is queued for the client. The response continues, and ownership does not
    /// move.
    pub(crate) fn push(&self, connection: Arc<Connection>, wake_io: impl FnOnce()) {
        self.flush_list.add_queued(connection);
        self.wake_for_flush_list(wake_io);
    }

    /// Holds the complete response of a connection that the caller owns.
    pub(crate) fn hold(self: &Arc<Self>, connection: Owned<Connection>) {
        self.batched.hold(connection, self.clock.peek(), || {
            let context = Arc::downgrade(self);
            move || {
                let Some(context) = context.upgrade().filter(|context| !context.has_ended()) else { return false };
                context.batched.send();
                true
            }
        });
        if self.has_ended() {
            // No thread sends batched responses any more, and their connections keep the server alive.
            self.batched.end();
        }
    }

    /// The response of the connection coalesces its blocks from now on. Unless another thread polls, the caller wakes a
    /// watcher that sleeps.
    pub(crate) fn coalesce(&self, connection: Arc<Connection>) -> Watcher {
        self.flush_list.add_coalescing(connection);
        self.watch.note_use()
    }

    /// Called by the watcher: how long it may sleep so that coalesced blocks are sent in time. `None`: any time; the
    /// next of them has it woken.
    pub(crate) fn longest_watch(&self) -> Option<Duration> {
        // What comes meanwhile waits for no longer than a tick.
        self.watch.is_in_use(|| self.flush_list.are_any()).then(|| self.flush_list.time_left().unwrap_or(TICK))
    }

    /// Called by the watcher when it ceases to watch, or sleeps until it is called: what is left to it next has it woken.
    pub(crate) fn leave_watch(&self) {
        self.watch.leave();
    }

    fn wake_for_flush_list(&self, wake_io: impl FnOnce()) {
        if self.has_ended() {
            // No thread takes connections from the list any more, and each of them keeps the server alive.
            self.flush_list.clear();
        } else {
            wake_io();
        }
    }

    /// Has a disk thread write a part of a request body to its file. The connection continues after that.
    pub(crate) fn store(self: &Arc<Self>, connection: Owned<Connection>, write: Write) {
        let context = self.clone();
        self.disk.run(move || {
            if context.has_ended() {
                return;
            }
            let make_room = |more| {
                // The state is not locked while room is made, which may wait for other disk threads.
                let since = lock(&connection.state).storing_since();
                if let Some(since) = since {
                    context.make_room_on_disk(since, more);
                }
            };
            let result = catch(|| write.run(&context.disk, &context.body_files, make_room))
                .unwrap_or_else(|panic| Err(io::Error::other(format!("the server panicked: {panic}")).into()));
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
        if self.table.remove(connection.key) && self.is_stopping() && self.table.len() == 0 {
            self.poller.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::{self, Write as _};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{Sender, channel};
    use std::sync::{Arc, OnceLock};
    use std::time::Duration;

    use tailrace_http::peer::Peer;
    use tailrace_observe::level::Level;

    use super::{Connection, Context, Owned, Shared, TICK, Watcher, Write, lock};
    use crate::config::Config;
    use crate::connection::ownership::READ;
    use crate::connection::state::Next;
    use crate::connection::steps::Steps;
    use crate::connection::testing::{connection, server};
    use crate::executor::application::Application;
    use crate::executor::threads::POLICY;
    use crate::executor::turn::Turn;
    use crate::request::disk::Quota;
    use crate::response::testing::socket;
    use crate::server::{Provided, Server};

    #[test]
    fn a_server_that_has_ended_keeps_no_connection_that_is_held_or_left_to_the_io_side() {
        type Give = fn(&Arc<Context>, Owned<Connection>);
        let ways: [Give; 3] = [
            |context, connection| context.hold(connection),
            |context, connection| context.hand_over(connection, || ()),
            |context, connection| context.push(connection.clone(), || ()),
        ];
        let server = server();
        let context = Arc::new(Context::new(Config::default(), POLICY, Arc::default()).unwrap());
        let keeps = |give: Give| {
            let (connection, _client) = connection(&server, 1);
            let weak = Arc::downgrade(&connection);
            give(&context, connection);
            weak.upgrade().is_some()
        };
        assert_eq!(ways.map(keeps), [true; 3]);
        context.lifecycle.end();
        assert_eq!(ways.map(keeps), [false; 3]);
        assert!(context.batched.is_empty() && !context.flush_list.are_any());
    }

    #[test]
    fn the_watcher_comes_in_time_for_coalesced_blocks() {
        let server = server();
        let context = Context::new(Config::default(), POLICY, Arc::default()).unwrap();
        let connection = connection(&server, 1).0;
        assert_eq!(context.longest_watch(), None, "nothing is left to it");
        assert_eq!(context.coalesce(connection.clone()), Watcher::Sleeps);
        let is_within_a_tick = || context.longest_watch().is_some_and(|most| most <= TICK);
        assert!(is_within_a_tick());
        // While another thread sends what is listed: it stays listed, maybe.
        context.flush_list.tick(|_, _| assert!(is_within_a_tick()));
        assert_eq!(context.longest_watch(), None);
    }

    #[test]
    fn what_nobody_sends_is_sent_by_the_timekeeper() {
        let server = server();
        let config = Config { hold_writes: Duration::from_millis(1), ..Config::default() };
        let context = Arc::new(Context::new(config, POLICY, Arc::default()).unwrap());
        for key in 1..3 {
            context.hold(connection(&server, key).0);
            while !context.batched.is_empty() {
                std::thread::yield_now();
            }
        }
    }

    /// Reports with each line of the log whether the state of the connection is unlocked.
    struct Reporting {
        connection: OnceLock<Arc<Connection>>,
        reports: Sender<bool>,
    }

    impl Application for Reporting {
        fn enter(&self, _: &mut Turn<'_>) {}

        fn grow(&self) -> io::Result<()> {
            Ok(())
        }

        fn log(&self, _: Level, _: &str) {
            let _ = self.reports.send(self.connection.get().unwrap().state.try_lock().is_ok());
        }
    }

    /// A connection with a part of an upload that is to be written to a file.
    fn uploading(server: &Arc<Server>, shared: &Arc<Shared>, key: u64) -> (Owned<Connection>, Write, UnixStream) {
        let (socket, mut client) = socket();
        let owned = Connection::accepted(shared.clone(), server.clone(), Box::new(socket), key, Peer::default());
        client.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n").unwrap();
        client.write_all(&[b'x'; 40_000]).unwrap();
        owned.ownership.raise(READ);
        let next = Steps { connection: &owned, state: lock(&owned.state) }.advance();
        let Next::Store(write) = next else { panic!("the upload stays in memory") };
        (owned, *write, client)
    }

    #[test]
    fn the_state_of_a_connection_is_not_locked_while_room_for_its_upload_is_made() {
        let (reports, reported) = channel();
        let application = Arc::new(Reporting { connection: OnceLock::new(), reports });
        let server = Server::new(Config::default(), application.clone(), Vec::new(), Provided::default()).unwrap();
        let shared = Arc::new(Shared::new(Config { body_buffer: 0, ..Config::default() }, POLICY, Arc::default()));
        let context =
            Arc::new(Context::new(Config { body_spill: 0, ..Config::default() }, POLICY, Arc::default()).unwrap());
        let (older, write, _older_client) = uploading(&server, &shared, 1);
        assert!(context.table.insert(older.clone()));
        older.end_write(write.run(&context.disk, &Quota::new(u64::MAX), |_| ()));
        older.run();
        let (owned, write, _client) = uploading(&server, &shared, 2);
        let _ = application.connection.set(owned.clone());
        context.store(owned, write);
        assert!(reported.recv().unwrap(), "the older upload was shed under the lock");
    }
}
