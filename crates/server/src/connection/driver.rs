//! One client connection: what any thread may do with it.
//!
//! Threads: the state belongs to the owner, which holds an [`Owned`] connection and takes its steps (`steps.rs`). While a
//! request is queued or runs, its [`Exchange`](crate::connection::exchange::Exchange) is the owner; while a part of its
//! body is written to a file, that write is. The shared half of the response ([`Delivery`]) has its own lock: the
//! application's thread appends and writes, and an I/O thread sends the bytes that the socket did not accept at once.
//! The state is in a mutex so that the compiler checks that no two threads use it at once; the owner never waits for
//! that lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tailrace_http::peer::Peer;
use tailrace_observe::metrics::Metric;
use tailrace_observe::stats::Activity;
use tailrace_os::clock::Millis;
use tailrace_os::sync::lock;

use crate::connection::host::{self, Host};
use crate::connection::opening::Opening;
use crate::connection::ownership::{self, Bits, Owned, Ownership, READABLE};
use crate::connection::runner::RunnerOfConnection;
use crate::connection::shared::Shared;
use crate::connection::state::{ConnectionState, Idleness, LeftOver, Unfinished};
use crate::connection::timers::Deadline;
use crate::connection::transaction::Transaction;
use crate::response::delivery::Delivery;
use crate::transport::Transport;

/// The server, as a connection sees it.
pub(crate) type ConnectionHost = dyn Host<Connection>;
/// A request with a deadline.
pub(crate) type Task = host::Task<Connection>;

/// One client connection.
pub(crate) struct Connection {
    pub(crate) key: u64,
    pub(crate) shared: Arc<Shared>,
    pub(crate) host: Arc<ConnectionHost>,
    pub(crate) ownership: Ownership,
    /// For the owner. Other threads only try to lock it, except at the end of the server.
    pub(crate) state: Mutex<ConnectionState>,
    pub(crate) opening: Opening,
    pub(crate) deadline: Deadline,
    pub(crate) delivery: Delivery,
    pub(crate) runner: RunnerOfConnection,
    /// The client has closed its sending direction, or its connection is broken.
    has_left: AtomicBool,
    /// The application has taken over the connection.
    is_raw: AtomicBool,
}

impl Connection {
    /// A new connection. Call [`Owned::begin`] when it can be found by its key.
    pub(crate) fn accepted(
        shared: Arc<Shared>,
        host: Arc<ConnectionHost>,
        socket: Box<dyn Transport>,
        key: u64,
        peer: Peer,
    ) -> Owned<Self> {
        let opening = Opening::new(peer, &shared);
        Self::opened(shared, host, socket, key, opening)
    }

    /// As [`Connection::accepted`], with what precedes its first request.
    pub(crate) fn opened(
        shared: Arc<Shared>,
        host: Arc<ConnectionHost>,
        socket: Box<dyn Transport>,
        key: u64,
        opening: Opening,
    ) -> Owned<Self> {
        Owned(Arc::new(Self {
            key,
            opening,
            delivery: Delivery::new(socket, &shared.delivery_limits),
            host,
            ownership: Ownership::owned(),
            state: Mutex::new(ConnectionState::Idle),
            deadline: Deadline::new(),
            runner: RunnerOfConnection::default(),
            has_left: AtomicBool::new(false),
            is_raw: AtomicBool::new(false),
            shared,
        }))
    }

    pub(crate) fn socket(&self) -> &dyn Transport {
        self.delivery.socket()
    }

    pub(crate) fn set_deadline(&self, due: Millis) {
        if self.shared.timers.set(&self.deadline, self.key, due) {
            self.host.wake_io();
        }
    }

    /// Gives an idle client the time that its PROXY header, its handshake or its next request may take.
    pub(crate) fn set_idle_deadline(&self) {
        let time = self.opening.time_of(Idleness::Silent, &self.shared);
        self.set_deadline(self.shared.clock.recent_millis().saturating_add(time));
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.ownership.is_gone() || self.is_forked_child()
    }

    /// True if the client has left: its connection is broken, or it has closed its sending direction. A half-closed
    /// connection looks like a closed one, so the response is sent anyway.
    pub(crate) fn has_disconnected(&self) -> bool {
        self.is_gone() || self.has_left.load(Ordering::SeqCst)
    }

    /// A thread that has read or written has noticed that the client has left.
    pub(crate) fn note_left(&self) {
        self.has_left.store(true, Ordering::SeqCst);
    }

    /// The application has taken over the connection. In a stopping server, it immediately reads the end.
    pub(crate) fn set_raw(&self) {
        self.is_raw.store(true, Ordering::SeqCst);
        if self.shared.is_stopping() {
            self.end_raw_input();
        }
    }

    /// The server is stopping: an application that has taken over the connection reads its end.
    pub(crate) fn end_raw_input(&self) {
        if self.is_raw.load(Ordering::SeqCst) {
            self.socket().end_receiving();
        }
    }

    /// True in a child that the application has forked: only the parent serves the client.
    pub(crate) fn is_forked_child(&self) -> bool {
        self.shared.is_forked_child()
    }

    /// Reports events. Called by the thread that polls.
    pub(crate) fn report(self: &Arc<Self>, bits: Bits) {
        let has_ended = bits & ownership::READ_END != 0;
        if has_ended {
            self.note_left();
        }
        if let Some(owned) = self.own(bits) {
            return owned.run();
        }
        if has_ended || bits & ownership::GONE != 0 {
            self.host.report_disconnect(self.runner.get());
        }
        if bits & (ownership::WRITE | ownership::GONE | ownership::EXPIRED) != 0 {
            self.drain_for_the_owner(bits);
        }
        if bits & READABLE != 0 {
            self.notify_reader();
        }
    }

    /// Raises events and takes ownership. `None`: another thread owns the connection, and will see the events.
    pub(crate) fn own(self: &Arc<Self>, bits: Bits) -> Option<Owned<Self>> {
        self.ownership.raise(bits).then(|| Owned(self.clone()))
    }

    /// True if there is memory for so many bytes, or if some was freed; see [`Host::make_room`].
    pub(crate) fn make_room(&self, more: usize) -> bool {
        self.shared.memory.has_room(more) || self.host.make_room(more)
    }

    /// How and since when the connection is idle. `None`: it is not idle, or its owner is using the state.
    pub(crate) fn idle_since(&self) -> Option<(Idleness, Millis)> {
        let idleness = self.state.try_lock().ok()?.idleness()?;
        // The deadline was set when the connection became idle and has not been changed since.
        Some((idleness, self.deadline.due().saturating_sub(self.opening.time_of(idleness, &self.shared))))
    }

    /// What the connection is doing. While its owner uses the state, it is usually reading.
    pub(crate) fn activity(&self) -> Activity {
        self.state.try_lock().map_or(Activity::Receiving, |state| state.activity())
    }

    /// The incomplete handshake or request. `None`: there is none, or its owner is using the state.
    pub(crate) fn unfinished(&self) -> Option<Unfinished> {
        let request = self.state.try_lock().ok()?.unfinished();
        request.or_else(|| {
            let (_, since) = self.idle_since()?;
            let memory = self.socket().held_of_handshake();
            (memory > 0).then(|| Unfinished::handshake(since, memory))
        })
    }

    /// Accounts for a request whose response has been sent, or never will be.
    pub(crate) fn account(&self, mut transaction: Box<Transaction>) {
        let mut outbox = self.delivery.outbox();
        let (compressed, writes) = (outbox.compressing.take_result(), outbox.queue.take_writes());
        drop(outbox);
        if let Some(compressed) = compressed {
            let counts = &self.shared.counts;
            counts.add(Metric::Compressed, 1);
            counts.add(Metric::CompressedFrom, compressed.plain_bytes);
            counts.add(Metric::CompressedTo, compressed.bytes);
            transaction.record.note_compressed(compressed);
        }
        self.host.account(self.key, transaction, writes);
    }

    /// Breaks the connection. Threads that read or write notice it; the owner cleans up.
    pub(crate) fn abort(&self) {
        self.delivery.outbox().break_off();
        self.notify_room();
        self.socket().shut_down();
        self.notify_reader();
    }

    /// At the end of the server, after [`Connection::abort`]: takes, once, what is left of a request in progress.
    pub(crate) fn take_left_over(&self) -> LeftOver {
        lock(&self.state).take_left_over()
    }

    /// Wakes the runner that waits for room in the send queue, because there is room or never will be.
    pub(crate) fn notify_room(&self) {
        self.delivery.notify_room();
        self.wake_runner(RunnerOfConnection::take_writer);
    }

    /// Wakes the runner that waits under a ticket for bytes of the request body, because there may be some or never
    /// will be.
    pub(crate) fn notify_reader(&self) {
        self.wake_runner(RunnerOfConnection::take_reader);
    }

    fn wake_runner(&self, take: impl FnOnce(&RunnerOfConnection) -> Option<u64>) {
        if self.shared.policy.waiting.is_by_ticket()
            && let Some(ticket) = take(&self.runner)
        {
            self.host.wake_runner(ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;

    use crate::connection::testing::{connection, server};

    #[test]
    fn a_connection_with_a_request_has_no_entry_in_the_table_of_deadlines() {
        let server = server();
        for (sent, has_entry) in [(b"".as_slice(), true), (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", false)] {
            let (owned, mut client) = connection(&server, 7);
            let connection = owned.clone();
            client.write_all(sent).unwrap();
            owned.begin();
            assert_eq!(connection.shared.timers.next(0).is_some(), has_entry, "{sent:?}");
        }
    }
}
