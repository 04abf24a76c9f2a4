//! The loop: it accepts what other processes of the server pass, publishes, and sends.
//!
//! Thread: all of it runs on the one that calls [`Holder::run`].

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::json;
use slab::Slab;
use tailrace_observe::level::Level;
use tailrace_observe::once_a_minute::OnceAMinute;
use tailrace_os::clock;
use tailrace_os::descriptor;
use tailrace_os::epoll::{Events, Poller, WAKEUP};
use tailrace_os::passing;
use tailrace_os::poll;
use tailrace_os::socket;

use crate::channels::{Channels, Entry, ReplayLimits};
use crate::control::{Control, Received};
use crate::held::{Counts, Gathered, Held, Outcome, Reason, State};
use crate::message::{self, Hold, Kind};
use crate::publication::{self, Publication};

/// The key of the listening socket.
const LISTENER: u64 = u64::MAX - 1;
/// The keys of connections to clients begin here; those below are of other processes.
const CLIENTS: u64 = 1 << 32;
/// Connections that are sent something before events are looked at again.
const AT_ONCE: usize = 500;
/// Connections that are accepted before other events are looked at.
const ACCEPTED: usize = 64;
/// How long another process may take for a message.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a client may take to receive the end of its response.
const LAST_BYTES: Duration = Duration::from_secs(5);
/// How often a connection that cannot be kept alive now is tried again.
const RETRY_TIMER: Duration = Duration::from_secs(1);
/// Channels that the figures name: those with the most connections.
const LARGEST: usize = 20;
/// How long the whole of a take-over may take.
const TAKE_OVER: Duration = Duration::from_secs(20);

/// How much is held.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Of what was published.
    pub replay: ReplayLimits,
    /// Connections of one client; 0: any number.
    pub connections_per_client: usize,
    /// How long a client may accept nothing.
    pub write_timeout: Duration,
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

/// A publication that is kept, for the next holder.
#[derive(Serialize, Deserialize)]
struct Kept {
    number: u64,
    age_millis: u64,
    dropped: u64,
    publication: Publication,
}

/// A held connection for the next holder.
#[derive(Serialize, Deserialize)]
struct Passed {
    state: State,
    since_millis: u64,
    last: u64,
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
    by_client: HashMap<String, usize>,
    /// Those that are to be sent something.
    listed: VecDeque<usize>,
    gathered: Gathered,
    /// When something is to be done for a connection: its key and its serial number, since keys are used again.
    timers: BTreeSet<(Instant, usize, u64)>,
    serial: u64,
    counts: Counts,
    published: u64,
    closed: HashMap<Reason, u64>,
    lines: [OnceAMinute; Reason::ALL.len()],
    began: Instant,
    /// When a stopping holder ends although clients have not received everything.
    ends_at: Option<Instant>,
    /// Everything has been passed on.
    is_over: bool,
}

impl Holder {
    /// A holder that gets its messages from this listening socket.
    ///
    /// # Errors
    /// No descriptors or memory left.
    pub fn new(listener: OwnedFd, limits: Limits, log: Log) -> io::Result<Self> {
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
            by_client: HashMap::new(),
            listed: VecDeque::new(),
            gathered: Gathered::default(),
            timers: BTreeSet::new(),
            serial: 0,
            counts: Counts::default(),
            published: 0,
            closed: HashMap::new(),
            lines: Default::default(),
            began: clock::now(),
            ends_at: None,
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
            for (key, readiness) in events.iter().collect::<Vec<_>>() {
                match key {
                    WAKEUP => self.shared.poller.clear_wakeup(),
                    LISTENER => self.accept(now),
                    CLIENTS.. => self.client_event(key, readiness.read, readiness.write),
                    _ => self.control_event(key, now),
                }
            }
            self.flush();
            self.expire(now);
            if self.shared.is_stopping.load(Ordering::SeqCst) && self.end(now) {
                break;
            }
        }
        Ok(())
    }

    fn pause(&self) -> Option<Duration> {
        if !self.listed.is_empty() {
            return Some(Duration::ZERO);
        }
        let controls = self.controls.iter().map(|(_, control)| control.since + PATIENCE).min();
        let timer = self.timers.first().map(|(at, _, _)| *at);
        let at = [controls, timer, self.channels.expires_at(), self.ends_at].into_iter().flatten().min()?;
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
            let user = passing::peer_user(socket.as_fd());
            if !user.is_ok_and(|user| user == 0 || user == passing::own_user()) {
                continue;
            }
            let slot = self.controls.vacant_entry();
            let key = slot.key();
            if self.shared.poller.watch_connection(Some(socket.as_fd()), key as u64).is_ok() {
                slot.insert(Control::new(socket, now));
                self.control_event(key as u64, now);
            }
        }
    }

    fn control_event(&mut self, key: u64, now: Instant) {
        let Some(key) = usize::try_from(key).ok().filter(|key| self.controls.contains(*key)) else { return };
        loop {
            match self.controls[key].read() {
                Ok(Some(message)) => {
                    self.controls[key].since = now;
                    if message.kind == Kind::TakeOver {
                        let next = self.controls.remove(key);
                        return self.pass_on(&next, now);
                    }
                    if let Some(answer) = self.handle(message, now) {
                        self.controls[key].answer(answer.as_bytes());
                    }
                }
                Ok(None) => return,
                Err(fault) => {
                    if fault.kind() != ErrorKind::UnexpectedEof {
                        (self.log)(Level::Warning, &format!("a message to the holder was discarded: {fault}"));
                    }
                    self.controls.remove(key);
                    return;
                }
            }
        }
    }

    /// Does what a message says. Returns the answer, if it has one.
    fn handle(&mut self, message: Received, now: Instant) -> Option<String> {
        let Received { kind, content, descriptor } = message;
        match kind {
            Kind::Hold => {
                self.hold(&content, descriptor, now);
                None
            }
            Kind::Publish => Some(match publication::parse(&content) {
                Ok(publications) => {
                    for publication in publications {
                        self.publish(publication, now);
                    }
                    String::from("+")
                }
                Err(fault) => format!("-{fault}"),
            }),
            Kind::Figures => Some(self.figures().to_string()),
            // Only the next holder is sent these.
            Kind::TakeOver | Kind::Kept | Kind::Held | Kind::Complete | Kind::InFile => None,
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
            "waiting_bytes": self.held.iter().map(|(_, held)| held.waiting()).sum::<usize>(),
            "closed": closed,
            "largest": self.channels.largest(LARGEST),
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
                return (self.log)(Level::Error, &format!("a connection to be held was closed: {fault}"));
            }
        };
        let last_event_id = hold.last_event_id.clone();
        let request = hold.request.clone();
        let mut held = match Held::new(hold, socket, now) {
            Ok(held) => held,
            Err(fault) => return (self.log)(Level::Error, &format!("{request}: cannot be held: {fault}")),
        };
        let most = self.limits.connections_per_client;
        let count = self.by_client.get(&held.state.client).copied().unwrap_or(0);
        if descriptor::is_among_the_last(held.socket().as_fd()) {
            self.count_closed(Reason::NoDescriptor, &request);
            held.refuse();
        } else if most > 0 && count >= most && !held.state.client.is_empty() {
            self.count_closed(Reason::TooMany, &request);
            held.refuse();
        }
        self.register(held, last_event_id.as_deref(), now);
    }

    /// Watches a connection, and sends what it has to be sent. `last_event_id`: see [`Held::join`].
    fn register(&mut self, mut held: Held, last_event_id: Option<&str>, now: Instant) {
        let slot = self.held.vacant_entry();
        let key = slot.key();
        if self.shared.poller.watch_connection(Some(held.socket().as_fd()), CLIENTS + key as u64).is_err() {
            return self.count_closed(Reason::NoDescriptor, &held.state.request.clone());
        }
        socket::watch_peer(held.socket().as_fd(), self.limits.write_timeout);
        held.join(key, &mut self.channels, last_event_id);
        if !held.state.client.is_empty() {
            *self.by_client.entry(held.state.client.clone()).or_default() += 1;
        }
        self.serial += 1;
        held.serial = self.serial;
        slot.insert(held);
        self.set_timer(key, now);
        self.list(key);
    }

    fn set_timer(&mut self, key: usize, now: Instant) {
        let held = &self.held[key];
        let at = if held.is_ending() { Some(now + LAST_BYTES) } else { held.expires_at() };
        if let Some(at) = at {
            self.timers.insert((at, key, held.serial));
        }
    }

    fn client_event(&mut self, key: u64, read: bool, write: bool) {
        let Some(key) = usize::try_from(key - CLIENTS).ok().filter(|key| self.held.contains(*key)) else { return };
        let held = &mut self.held[key];
        if read && let Some(reason) = held.receive(&mut [0; 4096]) {
            if reason != Reason::Stopped {
                return self.close(key, reason);
            }
            // The process that encrypts is about to end.
            self.count_closed(Reason::Stopped, "");
            self.held[key].stop(key as u64 * 997);
            self.list(key);
        }
        if write {
            self.held[key].is_writable = true;
            self.list(key);
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
            match held.flush(&self.channels, &mut self.gathered, &mut self.counts) {
                Outcome::Idle => {}
                Outcome::Blocked if held.is_ending() => self.set_timer(key, clock::now()),
                Outcome::Blocked => {}
                Outcome::More => self.list(key),
                Outcome::Ended(reason) => self.close(key, reason),
            }
        }
    }

    fn close(&mut self, key: usize, reason: Reason) {
        let mut held = self.held.remove(key);
        for at in 0..held.state.subscriptions.len() {
            let (channel, place) = (held.state.subscriptions[at].channel, held.state.subscriptions[at].place);
            let Some(moved) = self.channels.leave(channel, place) else { continue };
            let other = if moved.key == key { Some(&mut held) } else { self.held.get_mut(moved.key) };
            if let Some(other) = other {
                other.state.subscriptions[moved.subscription].place = place;
            }
        }
        if let Some(count) = self.by_client.get_mut(&held.state.client) {
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(&held.state.client);
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
            Reason::Behind => "the client did not receive what was published before it was dropped",
            Reason::Sent => "the client kept sending although its response is held",
            Reason::TooMany => "its client has as many held connections as one may have",
            Reason::NoDescriptor => "the process that holds connections has no descriptor left",
        };
        let at = Reason::ALL.iter().position(|(known, _)| *known == reason).unwrap_or_default();
        let now = u64::try_from(clock::since(self.began).as_millis()).unwrap_or(u64::MAX);
        if self.lines[at].may_log(now) {
            (self.log)(Level::Warning, &format!("{request}: a held connection was closed: {why}"));
        }
    }

    fn expire(&mut self, now: Instant) {
        self.channels.expire(now);
        while let Some((at, key, serial)) = self.timers.first().copied().filter(|(at, _, _)| *at <= now) {
            self.timers.remove(&(at, key, serial));
            let Some(held) = self.held.get_mut(key).filter(|held| held.serial == serial) else { continue };
            if held.is_ending() {
                self.close(key, Reason::Left);
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
        let late: Vec<_> =
            self.controls.iter().filter(|(_, control)| control.since + PATIENCE <= now).map(|(key, _)| key).collect();
        for key in late {
            self.controls.remove(key);
        }
    }

    fn publish(&mut self, publication: Publication, now: Instant) {
        self.published += 1;
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

    // The end

    /// The holder is stopping: ends the responses. True: that is done.
    fn end(&mut self, now: Instant) -> bool {
        if self.ends_at.is_none() {
            self.ends_at = Some(now + LAST_BYTES);
            self.shared.poller.forget(Some(self.listener.as_fd()));
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
        self.held.is_empty() || self.ends_at.is_some_and(|at| at <= now)
    }

    /// Passes everything to the next holder. If that fails, nothing has changed.
    fn pass_on(&mut self, next: &Control, now: Instant) {
        self.shared.poller.forget(Some(self.listener.as_fd()));
        // What other processes have begun to say.
        let keys: Vec<_> = self.controls.iter().map(|(key, _)| key).collect();
        for key in keys {
            poll::wait_readable(self.controls[key].socket(), Duration::from_millis(100));
            self.control_event(key as u64, now);
        }
        match self.pass_all(next, now) {
            Ok(()) => self.is_over = true,
            Err(fault) => {
                let line =
                    format!("the next process could not take over {} held connections: {fault}", self.held.len());
                (self.log)(Level::Error, &line);
                let _ = self.shared.poller.watch_listener(Some(self.listener.as_fd()), LISTENER);
            }
        }
    }

    fn pass_all(&self, next: &Control, now: Instant) -> io::Result<()> {
        let until = now + TAKE_OVER;
        let send = |kind, content: &[u8], descriptor| loop {
            match message::send(next.socket(), kind, content, descriptor) {
                Err(fault) if fault.kind() == ErrorKind::WouldBlock && clock::now() < until => {
                    poll::wait_writable(next.socket(), Duration::from_millis(100));
                }
                other => return other,
            }
        };
        for entry in self.channels.entries() {
            let dropped = self.channels.dropped(&entry.publication.channel);
            let age_millis = u64::try_from(now.saturating_duration_since(entry.at).as_millis()).unwrap_or(u64::MAX);
            let publication = (*entry.publication).clone();
            let kept = Kept { number: entry.number, age_millis, dropped, publication };
            send(Kind::Kept, &message::content_of(&kept)?, None)?;
        }
        for (_, held) in &self.held {
            let since_millis = u64::try_from(now.saturating_duration_since(held.since).as_millis()).unwrap_or(u64::MAX);
            let passed = Passed { state: held.portable(&self.channels), since_millis, last: self.channels.last() };
            send(Kind::Held, &message::content_of(&passed)?, Some(held.socket().as_fd()))?;
        }
        send(Kind::Complete, &[], None)?;
        if !poll::wait_readable(next.socket(), until.saturating_duration_since(clock::now())) {
            return Err(ErrorKind::TimedOut.into());
        }
        let mut answer = [0; 1];
        match socket::receive(next.socket(), &mut answer) {
            socket::Io::Moved(_) => Ok(()),
            _ => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Takes over everything from the holder at this address, before [`Holder::run`]. Returns how many connections that
    /// were.
    ///
    /// # Errors
    /// The former holder cannot be reached, or ends meanwhile.
    pub fn take_over(&mut self, address: &[u8]) -> io::Result<usize> {
        let mut former = Control::new(passing::connect_to(address)?, clock::now());
        message::send(former.socket(), Kind::TakeOver, &[], None)?;
        let until = clock::now() + TAKE_OVER;
        loop {
            let Some(Received { kind, content, descriptor }) = former.read()? else {
                let left = until.saturating_duration_since(clock::now());
                if left.is_zero() || !poll::wait_readable(former.socket(), left) {
                    return Err(ErrorKind::TimedOut.into());
                }
                continue;
            };
            let now = clock::now();
            let earlier = |millis| now.checked_sub(Duration::from_millis(millis)).unwrap_or(now);
            match (kind, descriptor) {
                (Kind::Kept, _) => {
                    let kept: Kept = message::value_of(&content)?;
                    self.channels.restore(&kept.publication.channel, kept.dropped);
                    let publication = Arc::new(kept.publication);
                    self.channels.add(Entry { number: kept.number, at: earlier(kept.age_millis), publication });
                }
                (Kind::Held, Some(socket)) => {
                    let passed: Passed = message::value_of(&content)?;
                    self.channels.set_last(passed.last);
                    let mut held = Held::of(passed.state, socket, now);
                    held.since = earlier(passed.since_millis);
                    held.is_taken_over = true;
                    self.register(held, None, now);
                }
                (Kind::Complete, _) => {
                    former.answer(b"+");
                    return Ok(self.held.len());
                }
                _ => return Err(ErrorKind::InvalidData.into()),
            }
        }
    }
}
