//! The loop: it accepts what other processes of the server pass, publishes, and sends.
//!
//! Thread: all of it runs on the one that calls [`Holder::run`].

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use slab::Slab;
use tailrace_observe::level::Level;
use tailrace_observe::once_a_minute::OnceAMinute;
use tailrace_os::clock;
use tailrace_os::descriptor;
use tailrace_os::epoll::{Events, Poller, SocketReadiness, WAKEUP};
use tailrace_os::panics::catch;
use tailrace_os::passing;
use tailrace_os::poll;
use tailrace_os::random;
use tailrace_os::socket;

use crate::bus::Bus;
use crate::call::{Answer, Farewell, Recipient};
use crate::calls::{self, Calls};
use crate::channels::{Channels, Entry, Member, ReplayLimits};
use crate::control::{Control, Received, Role};
use crate::events::Event;
use crate::held::{Counts, Gathered, Held, Left, Outcome, Reason};
use crate::message::{self, Hold, Kind, Opening};
use crate::publication::{self, Publication};
use crate::session::Action;
use crate::take_over::{Former, Kept, Next, Part, Passed};

/// The key of the listening socket.
const LISTENER: u64 = u64::MAX - 1;
/// The keys of connections to clients begin here; those below are of other processes.
const CLIENTS: u64 = 1 << 32;
/// Messages of one process that are read before other events are looked at.
const MESSAGES: usize = 64;
/// How often more content is asked for in a row, and how long after a failure.
const ATTEMPTS: u32 = 5;
/// Connections that are sent something before events are looked at again.
const AT_ONCE: usize = 500;
/// Connections that are accepted before other events are looked at.
const ACCEPTED: usize = 64;
/// How long a client may accept nothing of the end of its response.
const LAST_BYTES: Duration = Duration::from_secs(5);
/// How often a connection that cannot be kept alive now is tried again.
const RETRY_TIMER: Duration = Duration::from_secs(1);
/// Channels that the figures name: those with the most connections.
const LARGEST: usize = 20;
/// How long a holder that is replaced waits for messages that were begun.
const DRAIN: Duration = Duration::from_millis(200);
/// Bytes that clients have not accepted may occupy this much memory, besides what is kept for all.
const MAX_WAITING: usize = 128 << 20;

/// How much is held.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Of what was published.
    pub replay: ReplayLimits,
    /// Connections of one client; 0: any number.
    pub connections_per_client: usize,
    /// How long a client may accept nothing.
    pub write_timeout: Duration,
    /// Publications are sent to other servers as well.
    pub has_bus: bool,
}

/// Stops a holder from another thread.
pub struct Stop {
    poller: Poller,
    is_stopping: AtomicBool,
}

impl Stop {
    /// Ends the responses, and then the loop.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        self.poller.wake();
    }
}

/// What a warning is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Topic {
    Call,
    Bus,
    Stranger,
    Closed(Reason),
}

/// Writes a line to the error log.
pub type Log = Box<dyn Fn(Level, &str) + Send>;

/// The holder of a server.
pub struct Holder {
    shared: Arc<Stop>,
    listener: OwnedFd,
    limits: Limits,
    log: Log,
    channels: Channels,
    held: Slab<Held>,
    controls: Slab<Control>,
    /// The last of them that have sent no message yet.
    silent: Vec<usize>,
    /// What other servers get, if there are some.
    bus: Option<Bus>,
    by_client: HashMap<IpAddr, usize>,
    /// Those that are to be sent something.
    listed: VecDeque<usize>,
    gathered: Gathered,
    /// When something is to be done for a connection: its key and its serial number, since keys are used again.
    timers: BTreeSet<(Instant, usize, u64)>,
    serial: u64,
    counts: Counts,
    waiting_bytes: usize,
    /// How many publications had been dropped when clients were last accounted for that, and when that was.
    accounted: (u64, Instant),
    published: u64,
    closed: HashMap<Reason, u64>,
    /// Lines that are logged at most once a minute.
    lines: HashMap<Topic, OnceAMinute>,
    began: Instant,
    /// When a stopping holder ends although clients have not received everything.
    ends_at: Option<Instant>,
    calls: Calls,
    /// Events whose source has more than was read in one go.
    again: Vec<u64>,
    /// The next holder, and when it gets everything although requests are not answered.
    next: Option<(Control, Instant)>,
    /// Everything has been passed on.
    is_over: bool,
}

impl Holder {
    /// A holder that gets its messages from this listening socket. `application`: the abstract address where it makes
    /// requests.
    ///
    /// # Errors
    /// No descriptors or memory left.
    pub fn new(listener: OwnedFd, application: Vec<u8>, limits: Limits, log: Log) -> io::Result<Self> {
        socket::set_nonblocking(listener.as_fd())?;
        let shared = Arc::new(Stop { poller: Poller::new()?, is_stopping: AtomicBool::new(false) });
        Ok(Self {
            shared,
            listener,
            limits,
            log,
            channels: Channels::new(limits.replay),
            held: Slab::new(),
            controls: Slab::new(),
            silent: Vec::new(),
            bus: limits.has_bus.then(|| Bus::new(limits.replay)),
            by_client: HashMap::new(),
            listed: VecDeque::new(),
            gathered: Gathered::default(),
            timers: BTreeSet::new(),
            serial: 0,
            counts: Counts::default(),
            waiting_bytes: 0,
            accounted: (0, clock::now()),
            published: 0,
            closed: HashMap::new(),
            lines: HashMap::new(),
            began: clock::now(),
            ends_at: None,
            calls: Calls::new(application),
            again: Vec::new(),
            next: None,
            is_over: false,
        })
    }

    /// Stops it from another thread.
    #[must_use]
    pub fn stop_handle(&self) -> Arc<Stop> {
        self.shared.clone()
    }

    /// Holds connections until it is stopped, or the next holder has taken over.
    ///
    /// # Errors
    /// No memory or watches left at the start.
    pub fn run(mut self) -> io::Result<()> {
        self.shared.poller.watch_listener(Some(self.listener.as_fd()), LISTENER)?;
        let mut events = Events::new(256);
        while !self.is_over {
            self.shared.poller.wait(&mut events, self.pause())?;
            let now = clock::now();
            let rest = SocketReadiness { read: true, write: false, read_end: false, gone: false };
            let again = std::mem::take(&mut self.again).into_iter().map(|key| (key, rest));
            for (key, readiness) in events.iter().chain(again).collect::<Vec<_>>() {
                // A panic costs what has caused it, and not all connections.
                if let Err(panic) = catch(|| self.event(key, readiness, now)) {
                    self.log_panic(&panic);
                    self.drop_cause(key);
                }
            }
            for (recipient, fault) in self.calls.take_failed() {
                if let Err(panic) = catch(|| self.answered(recipient, Err(fault))) {
                    self.log_panic(&panic);
                }
            }
            self.flush();
            if let Err(panic) = catch(|| self.expire(now)) {
                self.log_panic(&panic);
            }
            self.pass_on_when_quiet(now);
            if self.shared.is_stopping.load(Ordering::SeqCst) && self.end(now) {
                break;
            }
        }
        Ok(())
    }

    fn event(&mut self, key: u64, readiness: SocketReadiness, now: Instant) {
        match key {
            WAKEUP => self.shared.poller.clear_wakeup(),
            LISTENER => self.accept(now),
            calls::FIRST_KEY.. => self.call_event(key),
            CLIENTS.. => self.client_event(key, readiness.read, readiness.write),
            _ => self.control_event(key, now),
        }
    }

    fn log_panic(&self, panic: &str) {
        (self.log)(Level::Error, &format!("internal error in the process that holds connections: {panic}"));
    }

    /// Ends the connection whose event has caused a panic. Its end comes as an event.
    fn drop_cause(&self, key: u64) {
        let client = key.checked_sub(CLIENTS).and_then(|key| self.held.get(usize::try_from(key).ok()?));
        if let Some(held) = client {
            socket::shut_down(held.socket().as_fd());
        } else if let Some(control) = usize::try_from(key).ok().and_then(|key| self.controls.get(key)) {
            socket::shut_down(control.socket());
        }
    }

    fn pause(&self) -> Option<Duration> {
        if !self.listed.is_empty() || self.calls.has_failed() || !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let controls = self.controls.iter().filter_map(|(_, control)| control.expires_at()).min();
        let timer = self.timers.first().map(|(at, _, _)| *at);
        let call = self.calls.expires_at();
        let passes = self.next.as_ref().map(|(_, at)| *at);
        let expiry = self.channels.expires_at();
        let bus = self.bus.as_ref().and_then(Bus::expires_at);
        let at = [controls, timer, expiry, bus, call, passes, self.ends_at].into_iter().flatten().min()?;
        // A millisecond more, so that it is past the time.
        Some(at.saturating_duration_since(clock::now()) + Duration::from_millis(1))
    }

    // Other processes

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTED {
            let socket = match socket::accept(self.listener.as_fd()) {
                Ok(Some((socket, _))) => socket,
                Ok(None) => return,
                Err(_) => {
                    // It would be found again immediately.
                    clock::sleep(Duration::from_millis(10));
                    return;
                }
            };
            // Any process of the machine can connect to an abstract address.
            match passing::peer_user(socket.as_fd()) {
                Ok(user) if user == 0 || user == passing::own_user() => {}
                Ok(user) => {
                    let line = format!(
                        "the process that holds connections rejected a connection from user ID {user}; only root and \
                         user ID {} may connect",
                        passing::own_user()
                    );
                    self.warn(Topic::Stranger, &line);
                    continue;
                }
                Err(_) => continue,
            }
            // Whoever has connected before may have sent its message since, which comes first: a process that publishes one
            // event after the other connects for each.
            for earlier in std::mem::take(&mut self.silent) {
                self.hear(earlier, now);
            }
            let slot = self.controls.vacant_entry();
            let key = slot.key();
            if self.shared.poller.watch_connection(Some(socket.as_fd()), key as u64).is_ok() {
                slot.insert(Control::new(socket, now));
                self.hear(key, now);
            }
        }
    }

    /// Reads from a process that has sent no message yet.
    fn hear(&mut self, key: usize, now: Instant) {
        self.control_event(key as u64, now);
        if self.silent.len() < ACCEPTED && self.controls.get(key).is_some_and(|control| !control.has_spoken) {
            self.silent.push(key);
        }
    }

    fn control_event(&mut self, key: u64, now: Instant) {
        let Some(key) = usize::try_from(key).ok().filter(|key| self.controls.contains(*key)) else { return };
        for _ in 0..MESSAGES {
            match self.controls[key].read() {
                Ok(Some(message)) => {
                    self.controls[key].since = now;
                    if message.kind == Kind::TakeOver {
                        let mut next = self.controls.remove(key);
                        // One that has ended while it waited in the queue takes nothing over.
                        if matches!(next.read(), Ok(None)) {
                            self.begin_passing(next, now);
                        }
                        return;
                    }
                    match message.kind {
                        Kind::Listen => {
                            let control = &mut self.controls[key];
                            control.role = Role::Listener(String::from_utf8_lossy(&message.content).into_owned());
                            let _ = control.answer(b"+");
                        }
                        Kind::Bus => {
                            if !self.join_bus(key, &message.content) {
                                self.forget_control(key);
                                return;
                            }
                        }
                        _ => {
                            if let Some(answer) = self.handle(message, now) {
                                // One that does not read it has ended.
                                let _ = self.controls[key].answer(answer.as_bytes());
                            }
                        }
                    }
                }
                // The socket may accept more. That it is broken is an event of its own.
                Ok(None) => {
                    let control = &mut self.controls[key];
                    let _ = match &mut self.bus {
                        Some(bus) => control.feed(bus),
                        None => control.flush(),
                    };
                    return;
                }
                Err(fault) => {
                    if fault.kind() != ErrorKind::UnexpectedEof {
                        (self.log)(Level::Warning, &format!("the holder discarded an invalid message: {fault}"));
                    }
                    self.forget_control(key);
                    return;
                }
            }
        }
        self.again.push(key as u64);
    }

    /// Does what a message says. Returns the answer, if it has one.
    fn handle(&mut self, message: Received, now: Instant) -> Option<String> {
        let Received { kind, content, descriptor } = message;
        match kind {
            Kind::Hold => {
                self.hold(&content, descriptor, now);
                None
            }
            Kind::WebSocket => {
                self.open(&content, descriptor, now);
                None
            }
            Kind::Publish => Some(match publication::parse(&content) {
                Ok(publications) => {
                    self.publish_all(publications, now);
                    self.send_on(&content, now);
                    String::from("+")
                }
                Err(fault) => format!("-{fault}"),
            }),
            Kind::Figures => Some(self.figures().to_string()),
            Kind::Document => {
                self.publish_of_other(&content, now);
                None
            }
            Kind::BusFigures => {
                if let Some(bus) = &mut self.bus {
                    bus.report(Some(&content));
                }
                None
            }
            // These are handled before, or only the next holder is sent them.
            Kind::Listen | Kind::Bus | Kind::TakeOver | Kind::Kept | Kind::Held | Kind::Complete | Kind::InFile => None,
        }
    }

    fn figures(&self) -> serde_json::Value {
        let closed: serde_json::Map<_, _> = Reason::ALL
            .iter()
            .map(|(reason, name)| ((*name).to_owned(), json!(self.closed.get(reason).copied().unwrap_or(0))))
            .collect();
        json!({
            "connections": self.held.len(),
            "channels": self.channels.count(),
            "published": self.published,
            "delivered": self.counts.delivered,
            "sent_bytes": self.counts.bytes,
            "kept_bytes": self.channels.bytes(),
            "waiting_bytes": self.waiting_bytes,
            "closed": closed,
            "largest": self.channels.largest(LARGEST),
            "bus": self.bus.as_ref().map(Bus::figures),
        })
    }

    // Connections

    fn hold(&mut self, content: &[u8], descriptor: Option<OwnedFd>, now: Instant) {
        let Some(socket) = descriptor else {
            // The kernel has dropped it, since this process has no number left for it.
            return self.count_closed(Reason::NoDescriptor, "a client");
        };
        let hold: Hold = match message::value_of(content) {
            Ok(hold) => hold,
            Err(fault) => {
                return (self.log)(Level::Error, &format!("cannot hold a connection, so it was closed: {fault}"));
            }
        };
        let last_event_id = hold.last_event_id.clone();
        let request = hold.request.clone();
        let mut held = match Held::new(hold, socket, now) {
            Ok(held) => held,
            Err(fault) => return (self.log)(Level::Error, &format!("{request}: cannot be held: {fault}")),
        };
        self.limit(&mut held);
        self.register(held, last_event_id.as_deref(), now);
    }

    /// Watches a connection, and sends what it has to be sent. `last_event_id`: see [`Held::join`].
    fn register(&mut self, mut held: Held, last_event_id: Option<&str>, now: Instant) -> Option<usize> {
        let slot = self.held.vacant_entry();
        let key = slot.key();
        if self.shared.poller.watch_connection(Some(held.socket().as_fd()), CLIENTS + key as u64).is_err() {
            self.count_closed(Reason::NoDescriptor, &held.state.request);
            return None;
        }
        socket::watch_peer(held.socket().as_fd(), self.limits.write_timeout);
        held.join(key, &mut self.channels, last_event_id);
        if let Some(client) = client_of(&held) {
            *self.by_client.entry(client).or_default() += 1;
        }
        self.serial += 1;
        held.serial = self.serial;
        slot.insert(held);
        self.set_timer(key, now);
        self.list(key);
        Some(key)
    }

    /// Takes a connection of which a WebSocket is to be made, and asks the application.
    fn open(&mut self, content: &[u8], descriptor: Option<OwnedFd>, now: Instant) {
        let Some(socket) = descriptor else { return self.count_closed(Reason::NoDescriptor, "a client") };
        let mut opening: Opening = match message::value_of(content) {
            Ok(opening) => opening,
            Err(fault) => {
                return (self.log)(
                    Level::Error,
                    &format!("cannot open a WebSocket, so its connection was closed: {fault}"),
                );
            }
        };
        let early = std::mem::take(&mut opening.received);
        let mut held = Held::web_socket(opening, socket, format!("{:032x}", random::draw()), now);
        held.early = early;
        self.limit(&mut held);
        if let Some(key) = self.register(held, None, now) {
            self.call(key);
        }
    }

    /// Refuses a connection beyond the limits.
    fn limit(&mut self, held: &mut Held) {
        let most = self.limits.connections_per_client;
        let count = client_of(held).and_then(|client| self.by_client.get(&client)).copied().unwrap_or(0);
        let reason = if descriptor::is_near_the_limit(held.socket().as_fd()) {
            Reason::NoDescriptor
        } else if most > 0 && count >= most {
            Reason::TooMany
        } else {
            return;
        };
        self.count_closed(reason, &held.state.request);
        held.refuse();
    }

    // The application

    /// Tells the application what the client of a WebSocket has sent, unless it is still busy with what came before.
    fn call(&mut self, key: usize) {
        let Some(held) = self.held.get_mut(key) else { return };
        if !held.calls() || self.next.is_some() || self.ends_at.is_some() {
            return;
        }
        if self.calls.is_full() {
            return self.wait(key);
        }
        let client = held.state.client.clone();
        let Some(session) = &mut held.state.session else { return };
        let packet = session.request(&client);
        session.is_calling = true;
        let recipient = Recipient::Connection(key, held.serial);
        self.calls.make(&self.shared.poller, packet, recipient);
    }

    /// Asks the application for more content of a stream.
    fn fetch(&mut self, key: usize) {
        if self.next.is_some() || self.ends_at.is_some() {
            return;
        }
        if self.calls.is_full() {
            return self.wait(key);
        }
        let held = &mut self.held[key];
        if held.is_fetching {
            return;
        }
        let packet = held.fetch(self.channels.last());
        let recipient = Recipient::Connection(key, held.serial);
        self.calls.make(&self.shared.poller, packet, recipient);
    }

    /// Has a connection ask when fewer requests are made.
    fn wait(&mut self, key: usize) {
        let held = &mut self.held[key];
        if !std::mem::replace(&mut held.awaits_call, true) {
            self.calls.wait(key, held.serial);
        }
    }

    /// Has those that have waited for their turn ask, as far as there may be more requests.
    fn make_waiting_calls(&mut self) {
        while let Some((key, serial)) = self.calls.next_connection(&self.shared.poller) {
            let Some(held) = self.held.get_mut(key).filter(|held| held.serial == serial) else { continue };
            held.awaits_call = false;
            if held.state.session.is_some() { self.call(key) } else { self.list(key) }
        }
    }

    fn call_event(&mut self, key: u64) {
        if let Some((key, result)) = self.calls.event(key) {
            self.end_call(key, result);
        }
    }

    fn end_call(&mut self, key: usize, result: io::Result<Answer>) {
        let recipient = self.calls.end(&self.shared.poller, key, &result);
        self.answered(recipient, result);
        self.make_waiting_calls();
    }

    fn answered(&mut self, recipient: Recipient, result: io::Result<Answer>) {
        let Recipient::Connection(key, serial) = recipient else { return };
        let Some(held) = self.held.get_mut(key).filter(|held| held.serial == serial) else { return };
        if let Err(fault) = &result {
            let line = format!("{}: the request to the application failed: {fault}", held.state.request);
            self.warn(Topic::Call, &line);
        }
        let Some(held) = self.held.get_mut(key) else { return };
        if held.state.session.is_none() {
            return self.fetched(key, result.ok());
        }
        let failed = || Answer { status: String::from("503 Service Unavailable"), ..Answer::default() };
        let answer = result.unwrap_or_else(|_| failed());
        let Some(session) = &mut held.state.session else { return };
        session.is_calling = false;
        let actions = session.answered(answer);
        if let Some(Action::Fail(reason)) = actions.first() {
            let what =
                if session.is_open { "the WebSocket was closed" } else { "the application did not open the WebSocket" };
            let line = format!("{}: {what}: {reason}", held.state.request);
            self.warn(Topic::Call, &line);
        }
        self.held[key].resume();
        for action in actions {
            match self.held[key].act(key, action, &mut self.channels) {
                Left::Nothing => {}
                Left::Channel(at) => self.unsubscribe(key, at),
                Left::Over(reason) => return self.close(key, reason),
            }
        }
        // What was not read meanwhile.
        self.read(key);
        self.account(key);
    }

    /// Has a connection leave a channel for good.
    fn unsubscribe(&mut self, key: usize, at: usize) {
        self.leave(key, at);
        let subscriptions = &mut self.held[key].state.subscriptions;
        subscriptions.swap_remove(at);
        // The last one has its place now.
        if let Some(moved) = subscriptions.get(at) {
            self.channels.renumber(moved.channel, moved.place, Member { key, subscription: at });
        }
    }

    fn fetched(&mut self, key: usize, answer: Option<Answer>) {
        if answer.as_ref().is_some_and(|answer| answer.code() == 200) {
            for at in 0..self.held[key].state.subscriptions.len() {
                self.leave(key, at);
            }
            self.held[key].state.subscriptions.clear();
        }
        let held = &mut self.held[key];
        match held.fetched(key, answer, &mut self.channels) {
            Ok(()) => self.list(key),
            Err(()) if held.failures() < ATTEMPTS => {
                let serial = held.serial;
                held.is_fetching = true;
                self.timers.insert((clock::now() + RETRY_TIMER * held.failures(), key, serial));
            }
            Err(()) => {
                held.stop(key as u64 * 997);
                self.list(key);
            }
        }
    }

    /// Tells the application that the client of a WebSocket has left.
    fn say_farewell(&mut self, key: usize) {
        let held = &mut self.held[key];
        let Some(session) = &mut held.state.session else { return };
        // One that the application has not been asked about, or has refused, it does not know.
        let (is_open, is_calling) = (session.is_open, session.is_calling);
        if !is_open && !is_calling {
            return;
        }
        if !session.is_over {
            session.push(Event::of("DISCONNECT"));
        } else if !session.has_queued() {
            return;
        }
        let client = held.state.client.clone();
        let serial = held.serial;
        let Some(packet) = session.request(&client) else { return };
        let farewell = Farewell { packet, is_of_open: is_open };
        let left = if is_calling { self.calls.chain(key, serial, farewell) } else { Some(farewell) };
        if let Some(farewell) = left
            && !self.calls.bid_farewell(&self.shared.poller, farewell.packet)
        {
            let line = "the application is too slow to receive all DISCONNECT and CLOSE events; some were dropped";
            self.warn(Topic::Call, line);
        }
    }

    fn set_timer(&mut self, key: usize, now: Instant) {
        let held = &mut self.held[key];
        let at = if !held.is_ending() {
            held.expires_at()
        } else if std::mem::replace(&mut held.has_end_timer, true) {
            None
        } else {
            Some(now + LAST_BYTES)
        };
        if let Some(at) = at {
            self.timers.insert((at, key, held.serial));
        }
    }

    fn client_event(&mut self, key: u64, read: bool, write: bool) {
        let Some(key) = usize::try_from(key - CLIENTS).ok().filter(|key| self.held.contains(*key)) else { return };
        if write {
            self.held[key].is_writable = true;
            self.list(key);
        }
        if read {
            self.read(key);
        }
    }

    fn read(&mut self, key: usize) {
        if let Some(reason) = self.held[key].receive(&mut [0; 16 * 1024]) {
            if reason != Reason::Stopped {
                return self.close(key, reason);
            }
            // The process that encrypts is about to end.
            self.count_closed(Reason::Stopped, "");
            self.held[key].stop(key as u64 * 997);
        }
        if self.held[key].has_more {
            self.again.push(CLIENTS + key as u64);
        }
        self.list(key);
        self.call(key);
        self.account(key);
    }

    /// Accounts for the memory of a connection. If all together have too much, the one that has most of it is closed.
    fn account(&mut self, key: usize) {
        let Some(held) = self.held.get_mut(key) else { return };
        let waiting = held.waiting();
        self.waiting_bytes = (self.waiting_bytes + waiting).saturating_sub(held.accounted);
        held.accounted = waiting;
        if self.waiting_bytes > MAX_WAITING
            && let Some((largest, _)) = self.held.iter().max_by_key(|(_, held)| held.accounted)
        {
            self.close(largest, Reason::Behind);
        }
    }

    fn list(&mut self, key: usize) {
        let held = &mut self.held[key];
        if !held.is_listed && held.is_writable {
            held.is_listed = true;
            self.listed.push_back(key);
        }
    }

    /// Sends to those that are listed, but not to all before other events are looked at.
    fn flush(&mut self) {
        for _ in 0..AT_ONCE {
            let Some(key) = self.listed.pop_front() else { return };
            let Some(held) = self.held.get_mut(key) else { continue };
            held.is_listed = false;
            let flushed = catch(|| held.flush(&self.channels, &mut self.gathered, &mut self.counts));
            let outcome = flushed.unwrap_or_else(|panic| {
                self.log_panic(&panic);
                self.gathered = Gathered::default();
                Outcome::Ended(Reason::Stopped)
            });
            let Some(held) = self.held.get(key) else { continue };
            match outcome {
                Outcome::Idle => {}
                Outcome::Blocked if held.is_ending() => self.set_timer(key, clock::now()),
                Outcome::Blocked => {}
                Outcome::More => self.list(key),
                Outcome::Gap => self.fetch(key),
                Outcome::Ended(reason) => self.close(key, reason),
            }
            self.account(key);
        }
    }

    /// Has a connection leave the channel of its subscription with this number.
    fn leave(&mut self, key: usize, at: usize) {
        let (channel, place) = {
            let subscribed = &self.held[key].state.subscriptions[at];
            (subscribed.channel, subscribed.place)
        };
        if let Some(moved) = self.channels.leave(channel, place)
            && let Some(other) = self.held.get_mut(moved.key)
        {
            other.state.subscriptions[moved.subscription].place = place;
        }
    }

    fn close(&mut self, key: usize, reason: Reason) {
        for at in 0..self.held[key].state.subscriptions.len() {
            self.leave(key, at);
        }
        self.say_farewell(key);
        let held = self.held.remove(key);
        self.waiting_bytes = self.waiting_bytes.saturating_sub(held.accounted);
        if let Some(client) = client_of(&held)
            && let Some(count) = self.by_client.get_mut(&client)
        {
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(&client);
            }
        }
        self.shared.poller.forget(Some(held.socket().as_fd()));
        if reason == Reason::Complete {
            // Unread bytes would make the close a reset, and the client could lose the last of its response.
            let _ = held.drain();
            socket::end_sending(held.socket().as_fd());
        } else {
            // Not only the descriptor of this process: a child of the application may have one as well.
            socket::shut_down(held.socket().as_fd());
        }
        self.count_closed(reason, &held.state.request);
    }

    fn count_closed(&mut self, reason: Reason, request: &str) {
        *self.closed.entry(reason).or_default() += 1;
        let why = match reason {
            Reason::Complete | Reason::Left | Reason::Stopped => return,
            Reason::Behind => "the client was too slow, and events were dropped before it received them",
            Reason::Sent => "the client kept sending data while its response was held",
            Reason::TooMany => "the client has reached its limit of held connections",
            Reason::NoDescriptor => {
                "the process that holds connections has no file descriptor left; raise the limit of open files"
            }
        };
        self.warn(Topic::Closed(reason), &format!("{request}: a held connection was closed: {why}"));
    }

    /// Accounts again for what is no longer kept for all, but still for clients that have received a part of it.
    fn account_for_dropped(&mut self, now: Instant) {
        let dropped = self.channels.dropped_count();
        if dropped == self.accounted.0 || now < self.accounted.1 + RETRY_TIMER {
            return;
        }
        self.accounted = (dropped, now);
        let keys: Vec<_> = self.held.iter().filter(|(_, held)| held.has_rest()).map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.account(key));
    }

    fn expire(&mut self, now: Instant) {
        self.channels.expire(now);
        if let Some(bus) = &mut self.bus {
            bus.expire(now);
        }
        self.account_for_dropped(now);
        while let Some((at, key, serial)) = self.timers.first().copied().filter(|(at, _, _)| *at <= now) {
            self.timers.remove(&(at, key, serial));
            let Some(held) = self.held.get_mut(key).filter(|held| held.serial == serial) else { continue };
            if held.is_ending() {
                // The timer may be from before its end.
                let until = held.sent_at + LAST_BYTES;
                if until <= now {
                    self.close(key, Reason::Left);
                } else {
                    self.timers.insert((until, key, serial));
                }
                continue;
            }
            if held.is_fetching && held.failures() > 0 {
                held.is_fetching = false;
                self.fetch(key);
                continue;
            }
            let outcome = held.expire(now);
            // One that was sent something meanwhile comes later.
            let next = held.expires_at().filter(|next| *next > now).unwrap_or(now + RETRY_TIMER);
            self.timers.insert((next, key, serial));
            if outcome == Outcome::More {
                self.list(key);
            }
        }
        for key in self.calls.expired(now) {
            self.end_call(key, Err(ErrorKind::TimedOut.into()));
        }
        self.controls.retain(|_, control| control.expires_at().is_none_or(|at| at > now));
    }

    /// Another process has ended.
    fn forget_control(&mut self, key: usize) {
        let control = self.controls.remove(key);
        if let (Role::Bus(_), Some(bus)) = (control.role, &mut self.bus) {
            bus.report(None);
        }
    }

    /// Another process sends documents to other servers, and has those up to the number in this content. False: it does
    /// not read.
    fn join_bus(&mut self, key: usize, content: &[u8]) -> bool {
        let Some(bus) = &mut self.bus else { return true };
        let (after, greeting) = bus.greeting(content);
        let control = &mut self.controls[key];
        control.role = match control.role {
            // What it has asked for before is still on its way.
            Role::Bus(has) => Role::Bus(after.min(has)),
            _ => Role::Bus(after),
        };
        control.send(&greeting).and_then(|()| control.feed(bus)).is_ok()
    }

    /// Has other servers get a document of this one.
    fn send_on(&mut self, document: &[u8], now: Instant) {
        let Some(bus) = &mut self.bus else { return };
        bus.add(document, now);
        for (_, control) in &mut self.controls {
            // That it is broken is an event of its own.
            let _ = control.feed(bus);
        }
    }

    /// Publishes a document of another server.
    fn publish_of_other(&mut self, content: &[u8], now: Instant) {
        let Some(bus) = &mut self.bus else { return };
        let parsed = match bus.hear(content) {
            Ok(None) => return,
            Ok(Some(document)) => publication::parse(document),
            Err(fault) => Err(fault.to_string()),
        };
        match parsed {
            Ok(publications) => self.publish_all(publications, now),
            Err(fault) => {
                let line = format!("--publish-bus: an invalid publication was discarded: {fault}");
                self.warn(Topic::Bus, &line);
            }
        }
    }

    fn publish_all(&mut self, publications: Vec<Publication>, now: Instant) {
        for publication in publications {
            self.publish(publication, now);
        }
    }

    /// Logs a warning, unless there was one on this topic in the last minute.
    fn warn(&mut self, topic: Topic, line: &str) {
        let millis = u64::try_from(clock::since(self.began).as_millis()).unwrap_or(u64::MAX);
        if self.lines.entry(topic).or_default().may_log(millis) {
            (self.log)(Level::Warning, line);
        }
    }

    fn publish(&mut self, mut publication: Publication, now: Instant) {
        // What processes listen to is not for connections.
        self.published += u64::from(publication.has_form());
        if let Some(raw) = publication.raw.take() {
            self.send_raw(&publication.channel, &raw);
            if !publication.has_form() {
                return;
            }
        }
        let Some(at) = self.channels.publish(publication, now) else { return };
        let Some(channel) = self.channels.get(at) else { return };
        for member in &channel.members {
            let held = &mut self.held[member.key];
            if !held.is_listed && held.is_writable {
                held.is_listed = true;
                self.listed.push_back(member.key);
            }
        }
    }

    /// Sends what was published in raw form to those that listen. One that does not read is disconnected, and notices that.
    fn send_raw(&mut self, channel: &str, raw: &[u8]) {
        let log = &self.log;
        let message: Arc<[u8]> = message::encode(Kind::Listen, raw).into();
        self.controls.retain(|_, control| {
            if !matches!(&control.role, Role::Listener(name) if name == channel) {
                return true;
            }
            let sent = control.send(&message);
            if let Err(fault) = &sent {
                log(Level::Warning, &format!("a process that listens to {channel} has missed a publication: {fault}"));
            }
            sent.is_ok()
        });
    }

    // The end

    /// The holder is stopping: ends the responses. True: that is done.
    fn end(&mut self, now: Instant) -> bool {
        if self.ends_at.is_none() {
            // Connections that workers have passed just before they ended.
            self.accept(now);
            self.shared.poller.forget(Some(self.listener.as_fd()));
            self.end_responses(now);
        }
        self.held.is_empty() || self.ends_at.is_some_and(|at| at <= now)
    }

    fn end_responses(&mut self, now: Instant) {
        self.ends_at = Some(now + LAST_BYTES);
        let keys: Vec<_> = self.held.iter().map(|(key, _)| key).collect();
        for key in keys {
            let held = &mut self.held[key];
            if !held.is_ending() {
                held.stop(key as u64 * 997);
                self.list(key);
            }
        }
        self.flush();
    }

    /// The next holder wants everything: it gets that as soon as no request to the application is left.
    fn begin_passing(&mut self, next: Control, now: Instant) {
        self.shared.poller.forget(Some(self.listener.as_fd()));
        self.shared.poller.forget(Some(next.socket()));
        // What other processes have begun to say. Those that listen come back to the next holder.
        self.controls.retain(|_, control| control.role == Role::Speaker);
        let keys: Vec<_> = self.controls.iter().map(|(key, _)| key).collect();
        let until = now + DRAIN;
        for key in keys {
            let Some(control) = self.controls.get(key) else { continue };
            poll::wait_readable(control.socket(), until.saturating_duration_since(clock::now()));
            self.control_event(key as u64, now);
        }
        self.next = Some((next, now + LAST_BYTES));
    }

    fn pass_on_when_quiet(&mut self, now: Instant) {
        if !self.next.as_ref().is_some_and(|(_, until)| self.calls.is_quiet() || *until <= now) {
            return;
        }
        let Some((next, _)) = self.next.take() else { return };
        // Their messages may have reached the application, or not.
        let torn = self.held.iter().filter(|(_, held)| held.is_asking()).map(|(key, _)| key);
        let torn = torn.collect::<Vec<_>>();
        for key in torn {
            if self.held[key].state.session.is_some() {
                self.close(key, Reason::Stopped);
            } else {
                self.held[key].abandon_fetch();
            }
        }
        match self.pass_all(&next, now) {
            Ok(()) => self.is_over = true,
            Err(fault) => {
                let line = format!(
                    "the next process could not take over {} held connections, so they are closed: {fault}",
                    self.held.len()
                );
                (self.log)(Level::Error, &line);
                // The next one accepts at the same socket. If this one did as well, each would get some of the publications.
                self.shared.is_stopping.store(true, Ordering::SeqCst);
                self.end_responses(now);
            }
        }
    }

    fn pass_all(&self, next: &Control, now: Instant) -> io::Result<()> {
        let next = Next::new(next);
        let millis = |from| u64::try_from(now.saturating_duration_since(from).as_millis()).unwrap_or(u64::MAX);
        for Entry { number, at, publication } in self.channels.entries() {
            let dropped = self.channels.dropped(&publication.channel);
            let publication = (**publication).clone();
            let kept = Kept { number: *number, age_millis: millis(*at), dropped, publication };
            next.send(Kind::Kept, &message::content_of(&kept)?, None)?;
        }
        if let Some(bus) = &self.bus {
            for (kind, content) in bus.portable()? {
                next.send(kind, &content, None)?;
            }
        }
        for (_, held) in &self.held {
            let (state, last) = (held.portable(&self.channels), self.channels.last());
            let passed = Passed { state, since_millis: millis(held.since), last };
            next.send(Kind::Held, &message::content_of(&passed)?, Some(held.socket().as_fd()))?;
        }
        next.complete()
    }

    /// Takes over everything from the holder at this address, before [`Holder::run`]. Returns how many connections that
    /// were.
    ///
    /// # Errors
    /// The former holder cannot be reached, or ends meanwhile. It has everything then, and this one nothing.
    pub fn take_over(&mut self, address: &[u8]) -> io::Result<usize> {
        let taken = self.take_all(address);
        if taken.is_err() {
            // The former holder still has these sockets, and must be the only one that writes to them.
            for (_, held) in &self.held {
                self.shared.poller.forget(Some(held.socket().as_fd()));
            }
            self.held.clear();
            self.by_client.clear();
            self.listed.clear();
            self.timers.clear();
            self.waiting_bytes = 0;
            self.channels = Channels::new(self.limits.replay);
            self.bus = self.bus.is_some().then(|| Bus::new(self.limits.replay));
        }
        taken
    }

    fn take_all(&mut self, address: &[u8]) -> io::Result<usize> {
        let mut former = Former::ask(address)?;
        while let Some(part) = former.next()? {
            let now = clock::now();
            let earlier = |millis| now.checked_sub(Duration::from_millis(millis)).unwrap_or(now);
            match part {
                Part::Kept(kept) => {
                    self.channels.restore(&kept.publication.channel, kept.dropped);
                    let publication = Arc::new(kept.publication);
                    self.channels.add(Entry { number: kept.number, at: earlier(kept.age_millis), publication });
                }
                Part::Held(passed, socket) => {
                    self.channels.set_last(passed.last);
                    let mut held = Held::of(passed.state, socket, now);
                    held.since = earlier(passed.since_millis);
                    held.is_taken_over = true;
                    held.take_pending();
                    self.register(held, None, now);
                }
                Part::Bus(kind, content) => {
                    if let Some(bus) = &mut self.bus {
                        bus.restore(kind, &content, now)?;
                    }
                }
            }
        }
        former.confirm()?;
        let keys: Vec<_> = self.held.iter().map(|(key, _)| key).collect();
        for key in keys {
            // What it has not read yet is no event.
            match self.held.get(key) {
                Some(held) if held.has_unread() => self.read(key),
                _ => self.call(key),
            }
        }
        Ok(self.held.len())
    }
}

/// The client of a connection, as it is counted: an IPv4 address, or the /64 of an IPv6 address, as in the workers.
fn client_of(held: &Held) -> Option<IpAddr> {
    Some(match held.state.client.parse::<IpAddr>().ok()?.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from(u128::from(address) & (u128::MAX << 64))),
        address @ IpAddr::V4(_) => address,
    })
}

#[cfg(test)]
mod tests;
