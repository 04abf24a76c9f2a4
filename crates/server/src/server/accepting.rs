//! Accepts clients, as long as there is room for connections and the application can be entered.
//!
//! Listeners are level-triggered: clients that are left after a round cause another event. While no client can be
//! accepted, a listener is removed from the poller for a pause.
//!
//! Runs on the thread that leads the loop; listeners are also closed by the thread that watches the master.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread;
use std::time::Duration;

use tailrace_http::peer::Peer;
use tailrace_observe::level::Level;
use tailrace_observe::metrics::Metric;
use tailrace_observe::once_a_minute::OnceAMinute;
use tailrace_observe::scoreboard::WorkerSlot;
use tailrace_os::clock;
use tailrace_os::clock::Millis;
use tailrace_os::panics::may_panic;
use tailrace_os::passing;
use tailrace_os::socket;
use tailrace_os::socket::AcceptFault;
use tailrace_os::sync::{lock, read, write};

use crate::clients::connections::{Connected, TooMany};
use crate::config::ListenerProtocol;
use crate::connection::context::Context;
use crate::connection::driver::{Connection, ConnectionHost};
use crate::connection::one_time_warnings::Untrusted;
use crate::connection::opening::Opening;
use crate::connection::ownership::Owned;
use crate::connection::table::SPECIAL;
use crate::executor::application::Application;
use crate::server::adopting::{Adopting, Arrived, News};
use crate::server::eviction::{Eviction, Want};
use crate::server::guard::{Guard, LoopStage};
use crate::transport::listener::{AcceptOutcome, Encryption, Listener};
use crate::transport::plain::Plain;
use crate::transport::tls::TlsContext;

/// A server whose application could not be entered for this time accepts no clients.
pub(super) const BLOCKED: Duration = Duration::from_millis(250);
/// How long accepting pauses when no client can be accepted (milliseconds).
const PAUSE: Millis = 100;
/// Number of idle connections that are closed at once when the process has no descriptors or no memory left: the
/// application needs some of them, too.
const ROOM_AT_ONCE: usize = 16;
/// How long a worker that has more than its share of the connections leaves new clients to other workers
/// (milliseconds).
const SHARE_PAUSE: Millis = 2;
/// Most rounds of accepting before a draining server closes a listener: clients that keep coming must not delay its
/// end.
const LAST_ROUNDS: usize = 256;
/// How long the leader has to accept the clients that wait and to close the listeners, before the thread that watches
/// the master closes them.
const CLOSING: Duration = Duration::from_millis(200);

/// What a client is sent that has too many connections.
const TOO_MANY_CONNECTIONS: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain\r\nRetry-After: 1\r\n\
    Content-Length: 42\r\nConnection: close\r\n\r\nThis client has too many connections open.";

/// What the client of a connection that another worker has passed is sent if there is no room for it.
const NO_ROOM: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 1\r\n\
    Content-Length: 42\r\nConnection: close\r\n\r\nThis server has too many connections open.";

/// Clients that wait at a listener after a round of accepting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcceptBacklog {
    /// None that this server should accept now: there are none, they are left to other processes, or accepting failed.
    None,
    /// There may be some, which can be accepted at once.
    Some,
    /// There may be some, but there is no room for connections, or the application cannot be entered.
    ForRoom,
}

/// Whether the listeners of a draining server are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finished {
    /// All are closed.
    All,
    /// Not yet: clients may wait there that cannot be accepted now.
    NotYet,
}

pub(super) struct Accepting {
    context: Arc<Context>,
    application: Arc<dyn Application>,
    guard: Arc<Guard>,
    listeners: RwLock<Vec<Listener>>,
    eviction: Eviction,
    worker_slot: Option<WorkerSlot>,
    /// Nothing responds without the application.
    needs_application: bool,
    /// The last client was left to the other workers.
    left_to_others: AtomicBool,
    /// What other workers pass; `None`: nothing.
    adopting: Option<Arc<Adopting>>,
    logged_lost: OnceAMinute,
    /// The keys of connections that the poller does not know yet.
    unwatched: Mutex<Vec<u64>>,
}

impl Accepting {
    /// Accepts on these sockets from now on. `worker_slot`: tells whether this worker has more than its share of the
    /// connections. `needs_application`: nothing responds without it.
    ///
    /// # Errors
    /// A descriptor is not a socket, or the kernel has no memory.
    pub(super) fn new(
        context: Arc<Context>,
        application: Arc<dyn Application>,
        guard: Arc<Guard>,
        sockets: Vec<OwnedFd>,
        worker_slot: Option<WorkerSlot>,
        needs_application: bool,
    ) -> io::Result<Self> {
        let certificates = context.config.certificates.clone();
        let tls = certificates.map(|certificates| {
            let (memory, counts) = (context.memory.clone(), context.counts.clone());
            Arc::new(TlsContext { certificates, memory, counts })
        });
        let mut listeners = Vec::with_capacity(sockets.len());
        for (index, listening) in sockets.into_iter().enumerate() {
            socket::set_nonblocking(listening.as_fd())?;
            context.poller.watch_listener(Some(listening.as_fd()), key_of(index))?;
            let config = context.config.listener(index);
            let encryption = tls
                .clone()
                .filter(|_| config.is_encrypted)
                .map(|context| Encryption { context, is_after_header: config.proxy.is_some() });
            listeners.push(Listener::new(listening, encryption));
        }
        Ok(Self {
            eviction: Eviction::new(context.clone(), application.clone(), guard.clone()),
            context,
            application,
            guard,
            listeners: RwLock::new(listeners),
            worker_slot,
            needs_application,
            left_to_others: AtomicBool::new(false),
            adopting: None,
            logged_lost: OnceAMinute::default(),
            unwatched: Mutex::default(),
        })
    }

    /// Takes what other workers pass from now on.
    pub(super) fn adopt_from(&mut self, adopting: Option<Arc<Adopting>>) {
        self.adopting = adopting;
    }

    /// Accepts clients that wait at the listener of this key. `is_blocked`: the application cannot be entered.
    pub(super) fn accept(&self, key: u64, host: &Arc<ConnectionHost>, is_blocked: bool) -> AcceptBacklog {
        let accepted = self.guard.stage(LoopStage::Accept, || self.accept_some(key, host, is_blocked));
        // The client whose acceptance panicked may still wait.
        accepted.unwrap_or_else(|| {
            if let Some(listener) = read(&self.listeners).get(index_of(key)) {
                self.pause(listener, key, PAUSE);
            }
            AcceptBacklog::None
        })
    }

    fn accept_some(&self, key: u64, host: &Arc<ConnectionHost>, is_blocked: bool) -> AcceptBacklog {
        let listeners = read(&self.listeners);
        let Some(listener) = listeners.get(index_of(key)) else { return AcceptBacklog::None };
        // Clients that cannot be served now are accepted by another process that listens, or wait in the kernel's
        // queue.
        let free = self.context.config.max_connections.saturating_sub(self.context.table.len());
        let is_running = self.context.lifecycle.is_running();
        let has_room = free > 0 || self.eviction.close_longest_idle(1, Want::Connections) > 0;
        if (is_blocked && (self.needs_application || !is_running)) || !has_room {
            self.pause(listener, key, PAUSE);
            return AcceptBacklog::ForRoom;
        }
        let shares = self.context.config.shares_listeners && is_running;
        // Only once: if a client still waits after the pause, the other processes may be busy or stopped.
        let is_left = shares && (is_blocked || self.worker_slot.is_some_and(|slot| slot.has_more_than_its_share()));
        if is_left && !self.left_to_others.swap(true, Ordering::Relaxed) {
            self.pause(listener, key, SHARE_PAUSE);
            return AcceptBacklog::None;
        }
        self.left_to_others.store(false, Ordering::Relaxed);
        // If other processes share the listeners, only one: the next client is for them.
        let most = if shares { 1 } else { free.clamp(1, listener.at_once()) };
        let accepted = listener
            .accept(most, |socket, peer| self.open(listener, socket, Peer::of_socket(peer, index_of(key)), host));
        if shares && let Some(worker_slot) = &self.worker_slot {
            worker_slot.set(Metric::Connections, self.context.table.len() as u64);
        }
        match accepted {
            AcceptOutcome::All => AcceptBacklog::None,
            AcceptOutcome::Some => AcceptBacklog::Some,
            AcceptOutcome::Failed(AcceptFault::Exhausted(fault)) => {
                if self.eviction.close_longest_idle(ROOM_AT_ONCE, Want::Descriptors(&fault)) > 0 {
                    return AcceptBacklog::Some;
                }
                self.pause(listener, key, PAUSE);
                AcceptBacklog::ForRoom
            }
            AcceptOutcome::Failed(AcceptFault::Other(fault)) => {
                self.eviction.log_accept_failure(&fault);
                self.pause(listener, key, PAUSE);
                AcceptBacklog::None
            }
        }
    }

    /// Makes a connection for a client, and reads what it has sent. A client that may not state whose connection it is
    /// is disconnected, and so is a client for which there is no memory. A panic closes the connection. The poller
    /// learns of the connection before anything waits for it: see [`Self::watch_accepted`].
    fn open(&self, listener: &Listener, socket: OwnedFd, peer: Peer, host: &Arc<ConnectionHost>) {
        let config = &self.context.config;
        if config.listener(peer.listener).protocol == ListenerProtocol::Internal
            && !passing::peer_user(socket.as_fd()).is_ok_and(|user| user == 0 || user == passing::own_user())
        {
            // Any process of the machine can connect to an abstract address.
            self.context.shared.count_refusal();
            return;
        }
        if config.listener(peer.listener).proxy.is_some() && !config.trust.is_trusted(peer.socket) {
            self.context.shared.count_refusal();
            if let Some(message) = self.context.one_time_warnings.not_trusted(Untrusted::Header, peer.socket) {
                self.application.log(Level::Warning, &message);
            }
            return;
        }
        let counted = if config.listener(peer.listener).proxy.is_none() {
            let Ok(counted) = self.count_or_refuse(&socket, peer.socket) else { return };
            counted
        } else {
            // The client is not known yet.
            None
        };
        let key = self.context.table.key_for(socket.as_raw_fd());
        let transport = listener.transport(socket, key);
        let owned = Connection::accepted(self.context.shared.clone(), host.clone(), transport, key, peer);
        owned.opening.set_counted(counted);
        self.begin(owned);
    }

    /// Counts a new connection of this client, or refuses it.
    fn count_or_refuse(&self, socket: &OwnedFd, client: Option<SocketAddr>) -> Result<Option<Connected>, TooMany> {
        self.context.shared.count_client(client).map_err(|message| {
            if let Some(message) = message {
                self.application.log(Level::Warning, &message);
            }
            socket::refuse(socket, TOO_MANY_CONNECTIONS);
            TooMany
        })
    }

    /// Adopts the connections that other workers have passed.
    pub(super) fn adopt(&self, host: &Arc<ConnectionHost>) {
        let Some(adopting) = &self.adopting else { return };
        let News { arrived, exhausted, lost, .. } = adopting.take();
        if let Some(fault) = exhausted {
            self.eviction.close_longest_idle(ROOM_AT_ONCE, Want::Descriptors(&fault));
        }
        if let Some(fault) = lost
            && self.logged_lost.may_log(self.context.clock.recent_millis())
        {
            let line = format!(
                "a connection that another worker has passed was closed, because it could not be taken: {fault}"
            );
            self.application.log(Level::Error, &line);
        }
        for each in arrived {
            self.adopt_one(each, host);
        }
    }

    fn adopt_one(&self, arrived: Arrived, host: &Arc<ConnectionHost>) {
        let Arrived { socket, passed, charge } = arrived;
        let context = &self.context;
        let listener = context.config.listener(passed.direct_peer.listener);
        if listener.is_encrypted || listener.proxy.is_some() != passed.header_peer.is_some() {
            context.shared.count_refusal();
            let line = "a connection that another worker has passed was closed: that worker had other listeners";
            return self.application.log(Level::Error, line);
        }
        if context.config.max_connections <= context.table.len()
            && self.eviction.close_longest_idle(1, Want::Connections) == 0
        {
            context.shared.count_refusal();
            return socket::refuse(&socket, NO_ROOM);
        }
        let opening = Opening::of_passed(passed, charge, &context.shared);
        let Ok(counted) = self.count_or_refuse(&socket, opening.peer().client) else { return };
        opening.set_counted(counted);
        let key = context.table.key_for(socket.as_raw_fd());
        let transport = Box::new(Plain::new(socket, key));
        self.begin(Connection::opened(context.shared.clone(), host.clone(), transport, key, opening));
    }

    /// Takes the first steps of a connection, unless there is no memory for it.
    fn begin(&self, owned: Owned<Connection>) {
        let connection = owned.clone();
        let has_memory = self.context.timers.reserve(self.context.table.len() + 1);
        if !has_memory || !self.context.table.insert(connection.clone()) {
            self.context.shared.count_refusal();
            return;
        }
        // Those of the holder are not of clients.
        let listener = self.context.config.listener(connection.opening.direct_peer.listener);
        if !connection.opening.is_passed() && listener.protocol != ListenerProtocol::Internal {
            self.context.counts.add(Metric::Accepted, 1);
        }
        lock(&self.unwatched).push(connection.key);
        self.guard.connection(&connection, || {
            may_panic("open");
            owned.begin();
        });
    }

    /// Registers the connections that were accepted since the last call and are still open. Called by the thread that
    /// is about to wait for events: a connection that closes after its first request is mostly closed by then.
    pub(super) fn watch_accepted(&self) {
        let keys = {
            let mut unwatched = lock(&self.unwatched);
            if unwatched.is_empty() {
                return;
            }
            std::mem::take(&mut *unwatched)
        };
        // The events of what has happened at a socket before it is registered are reported, too.
        for key in keys {
            let Some(connection) = self.context.table.get(key) else { continue };
            self.guard.connection(&connection, || {
                if let Err(fault) = self.context.poller.watch_connection(connection.socket().socket(), key) {
                    let text = format!("a connection was closed, since epoll did not accept it: {fault}");
                    self.application.log(Level::Error, &text);
                    self.guard.drop_connection(&connection);
                }
            });
        }
    }

    fn pause(&self, listener: &Listener, key: u64, pause: Millis) {
        // A draining server without room comes here in each round.
        if listener.try_pause() {
            self.context.poller.forget(listener.socket.here());
            self.context.timers.wake(key, self.context.clock.now() + pause);
        }
    }

    /// The pause of a listener is over.
    pub(super) fn go_on(&self, key: u64) {
        if let Some(listener) = read(&self.listeners).get(index_of(key)) {
            // Fails only if the kernel has no memory, or if the listener is polled already.
            let _ = self.context.poller.watch_listener(listener.socket.here(), key);
            // Afterwards: a pause that another thread begins meanwhile must not leave the listener polled.
            listener.resume();
        }
    }

    /// Closes the listeners of a draining server after all clients that have connected are accepted; the kernel resets
    /// the others. Call it again while it returns `NotYet`: there is no room for these clients, the application cannot be
    /// entered, or the server is followed. `is_overdue`: no time is left; closes the listeners without accepting.
    pub(super) fn finish(
        &self,
        host: &Arc<ConnectionHost>,
        is_overdue: bool,
        is_blocked: impl Fn() -> bool,
    ) -> Finished {
        // Those still have sessions, which may get requests.
        let mut is_over = is_overdue || !self.context.lifecycle.is_followed();
        if let Some(adopting) = &self.adopting {
            if is_over {
                adopting.close();
                // In this order: what has arrived before the end is taken.
                is_over = adopting.is_over() || is_overdue;
            }
            self.adopt(host);
        }
        let listeners = if is_overdue { 0 } else { read(&self.listeners).len() };
        for index in 0..listeners {
            for _ in 0..LAST_ROUNDS {
                match self.accept(key_of(index), host, is_blocked()) {
                    AcceptBacklog::None => break,
                    AcceptBacklog::Some => {}
                    AcceptBacklog::ForRoom => return Finished::NotYet,
                }
            }
        }
        for listener in std::mem::take(&mut *write(&self.listeners)) {
            self.context.poller.forget(listener.socket.here());
        }
        if is_over { Finished::All } else { Finished::NotYet }
    }

    /// Closes the listeners. The kernel resets clients that wait there.
    pub(super) fn close(&self) {
        if let Some(adopting) = &self.adopting {
            adopting.end();
        }
        write(&self.listeners).clear();
    }

    /// Closes the listeners, so that a new master can bind the addresses. Waits [`CLOSING`] for the leader to accept
    /// the clients that wait and to close them, since it may be held in the application.
    pub(super) fn close_for_the_leader(&self) {
        if let Some(adopting) = &self.adopting {
            adopting.close();
        }
        let until = clock::now() + CLOSING;
        loop {
            if let Ok(mut listeners) = self.listeners.try_write()
                && (listeners.is_empty() || clock::now() >= until)
            {
                for listener in listeners.drain(..) {
                    self.context.poller.forget(listener.socket.here());
                }
                return;
            }
            thread::sleep(CLOSING / 20);
        }
    }
}

/// The key of a listener in the poller and among the timers.
fn key_of(index: usize) -> u64 {
    SPECIAL | index as u64
}

fn index_of(key: u64) -> usize {
    (key & !SPECIAL) as usize
}
