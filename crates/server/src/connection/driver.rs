//! One connection: reads, writes, and executes what the step of its [`ConnectionState`] decides.
//!
//! Threads: the state belongs to the owner, the thread that holds the [`Ownership`] word. While a request is queued or
//! runs, its [`Exchange`](crate::connection::exchange::Exchange) holds the word; while a part of its body is written to
//! a file, that write holds it. The shared half of the response ([`Delivery`]) has its own lock: the application's
//! thread appends and writes, and an I/O thread sends the bytes that the socket did not accept at once. The state is in
//! a mutex so that the compiler checks that no two threads use it at once; the owner never waits for that lock.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tailrace_http::encode::{OwnFields, ResponseHead, error_page_length};
use tailrace_http::framing::RequestFacts;
use tailrace_http::head::HeadParser;
use tailrace_http::limits::{Limits, Refusal};
use tailrace_http::request_head::Span;

use crate::clients::connections::Connected;
use crate::connection::backpressure::{PATIENCE, SlowClient, WaitingCount, next_patience};
use crate::connection::host::{self, Host};
use crate::connection::ownership::{self, Bits, Ownership};
use crate::connection::proxy_header::{AwaitedHeader, Taken};
use crate::connection::runner::{RunnerId, RunnerOfConnection};
use crate::connection::shared::Shared;
pub(crate) use crate::connection::state::AfterResponse;
use crate::connection::state::{
    ConnectionState, Effects, Event, FIRST_REQUEST, Headroom, Idleness, LeftOver, Message, Next, RareEffects, Rules,
    Shutdown, Unfinished,
};
use crate::connection::thread_state;
use crate::connection::timers::Deadline;
use crate::connection::transaction::{Outcome, Transaction};
use crate::connection::transaction_pool::with_pool;
use crate::observe::level::Level;
use crate::observe::metrics::Metric;
use crate::observe::probes;
use crate::observe::record::{Ending, Record};
use crate::observe::stats::Activity;
use crate::os::clock::{Millis, NEVER, millis, with_date};
use crate::os::socket::Io;
use crate::os::sync::lock;
use crate::request::Request;
use crate::request::peer::Peer;
use crate::request::protocol::Protocol;
use crate::request::spool::Written;
use crate::request::stream::{Rest, Source};
use crate::response::delivery::{After, ClientTime, Delivery, Room, Spilled, TURN};
use crate::response::sending::{DeliveryLimits, Flush, TimeOut};
use crate::transport::{HANDSHAKE, Transport};

/// Full reads of one connection before other connections are served; together of at most so many scratch buffers.
pub(crate) const READS: usize = 16;
/// Requests of one connection that responders respond to at once before other connections are served.
const RESPONSES: usize = 32;
/// Size in bytes of one read where request bodies are streamed.
const FIRST_OF_STREAM: usize = 16 * 1024;

/// The error page for a request whose deadline has passed.
const TOO_LATE: Refusal = Refusal::new(504, "The application took too long.");

/// Events after which a read returns bytes, the end of the input or an error.
const READABLE: Bits = ownership::READ | ownership::READ_END | ownership::GONE;

/// The server, as a connection sees it.
pub(crate) type ConnectionHost = dyn Host<Connection>;
/// A request with a deadline.
pub(crate) type Task = host::Task<Connection>;

/// A response that the application has finished.
pub(crate) struct Ended {
    pub(crate) then: AfterResponse,
    pub(crate) transaction: Box<Transaction>,
    /// What is left of a streamed request body.
    pub(crate) rest: Option<Rest>,
    /// All of the response has been sent.
    pub(crate) is_sent: bool,
    /// The I/O side continues with the connection, because many bytes are left to send or the calling thread must not
    /// send them.
    pub(crate) hand_over: bool,
    /// The response is held: all of it is queued, to be sent together with others.
    pub(crate) is_batched: bool,
}

/// What [`Connection::reclaim`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reclaimed {
    /// What is left of large blocks was copied, and the blocks are free.
    Copied,
    /// The response is in a file.
    Moved,
    /// Nothing is queued in memory, or it is being sent or written to a file at this moment.
    Nothing,
    /// The files have no room for it.
    NoRoom,
    /// The disk is full or broken.
    Failed,
}

/// One client connection.
pub(crate) struct Connection {
    ownership: Ownership,
    key: u64,
    shared: Arc<Shared>,
    host: Arc<ConnectionHost>,
    /// As the socket tells it, see [`Connection::peer`].
    peer: Peer,
    deadline: Deadline,
    state: Mutex<ConnectionState>,
    delivery: Delivery,
    /// See [`Rules::first_request_by`]. Only the owner uses it.
    first_request_by: AtomicU64,
    runner: RunnerOfConnection,
    /// The PROXY header in front of the first request; `None`: the listener expects none.
    header: Option<Box<AwaitedHeader>>,
    /// The handshake, if there is one, was complete when the deadline was set.
    has_greeted: AtomicBool,
    /// It is one of the connections of its client, whose number is limited.
    counted: OnceLock<Connected>,
    /// The client has ended its sending direction, and that means that it has left.
    has_half_closed: AtomicBool,
}

impl Connection {
    /// A connection that the caller owns. Call [`Connection::begin`] when it can be found by its key.
    pub(crate) fn new(
        shared: Arc<Shared>,
        host: Arc<ConnectionHost>,
        socket: Box<dyn Transport>,
        key: u64,
        peer: Peer,
    ) -> Self {
        let first_request = FIRST_REQUEST.min(millis(shared.config.idle_timeout));
        let first_request_by = shared.clock.recent_millis().saturating_add(first_request);
        Self {
            header: AwaitedHeader::of(shared.config.listener(peer.listener).proxy),
            first_request_by: AtomicU64::new(first_request_by),
            ownership: Ownership::owned(),
            key,
            delivery: Delivery::new(socket, &shared.delivery_limits),
            host,
            peer,
            deadline: Deadline::new(),
            state: Mutex::new(ConnectionState::Idle),
            runner: RunnerOfConnection::default(),
            has_greeted: AtomicBool::new(!shared.config.listener(peer.listener).is_encrypted),
            counted: OnceLock::new(),
            has_half_closed: AtomicBool::new(false),
            shared,
        }
    }

    /// Notes that it counts as one of its client's, until it is dropped.
    pub(crate) fn set_counted(&self, counted: Option<Connected>) {
        if let Some(counted) = counted {
            let _ = self.counted.set(counted);
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) fn host(&self) -> &ConnectionHost {
        &*self.host
    }

    pub(crate) fn socket(&self) -> &dyn Transport {
        self.delivery.socket()
    }

    pub(crate) fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    pub(crate) fn runner(&self) -> &RunnerOfConnection {
        &self.runner
    }

    pub(crate) fn delivery_limits(&self) -> &DeliveryLimits {
        &self.shared.delivery_limits
    }

    /// The format of its bytes.
    #[inline]
    pub(crate) fn protocol(&self) -> &'static dyn Protocol {
        self.shared.protocol(self.peer.listener)
    }

    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    pub(crate) fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    /// Sets the deadline, from any thread.
    fn set_deadline(&self, due: Millis) {
        if self.shared.timers.set(&self.deadline, self.key, due) {
            self.host.wake_io();
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.ownership.is_gone() || self.is_forked_child()
    }

    /// True if the client has left: its connection is broken, or closed in a way that means this.
    pub(crate) fn has_disconnected(&self) -> bool {
        self.is_gone() || self.has_half_closed.load(Ordering::SeqCst)
    }

    /// True in a child that the application has forked: only the parent serves the client.
    pub(crate) fn is_forked_child(&self) -> bool {
        self.shared.is_forked_child()
    }
}

/// Methods for the owner.
impl Connection {
    /// Called once by the owner of a new connection: reads what the client has sent already, and takes the first steps.
    pub(crate) fn begin(self: &Arc<Self>) {
        // A draining server reported its event only to the connections that were open when it began.
        let stop = if self.shared.is_stopping() { ownership::STOP } else { 0 };
        self.ownership.raise(ownership::READ | stop);
        let next = self.advance(self.ownership.take());
        // Most clients have sent their request: such a connection has no entry in the table of deadlines.
        if matches!(next, Next::Rest) && self.deadline.due() == NEVER {
            let time = self.time_of(Idleness::Silent);
            self.set_deadline(self.shared.clock.recent_millis().saturating_add(time));
        }
        self.run_from(next);
    }

    /// Reports events. Called by the thread that polls.
    pub(crate) fn report(self: &Arc<Self>, bits: Bits) {
        let has_half_closed = bits & ownership::READ_END != 0 && self.shared.config.half_close_is_disconnect;
        if has_half_closed {
            self.has_half_closed.store(true, Ordering::SeqCst);
        }
        if self.ownership.raise(bits) {
            self.run_steps();
            return;
        }
        if has_half_closed || bits & ownership::GONE != 0 {
            self.host.report_disconnect(self.runner.get());
        }
        if bits & (ownership::WRITE | ownership::GONE | ownership::EXPIRED) != 0 {
            self.drain_for_the_owner(bits);
        }
        if bits & READABLE != 0 {
            self.notify_reader();
        }
    }

    /// The thread that polls continues with a connection that its former owner has handed over.
    pub(crate) fn take_over(self: &Arc<Self>) {
        self.run_steps();
    }

    /// The thread that polls dispatches a request, which owns the connection.
    pub(crate) fn dispatch(self: &Arc<Self>, transaction: Box<Transaction>) {
        self.run_from(Next::Run(transaction));
    }

    /// The owner's loop: takes steps until there is nothing to do, then releases the connection.
    fn run_steps(self: &Arc<Self>) {
        let next = self.advance(self.ownership.take());
        self.run_from(next);
    }

    fn run_from(self: &Arc<Self>, mut next: Next) {
        let mut responses = 0;
        loop {
            match next {
                Next::Run(transaction) => {
                    self.first_request_by.store(0, Ordering::Relaxed);
                    if responses == RESPONSES {
                        // A client that pipelines its requests must not delay others.
                        return self.host.dispatch_later(transaction, self.clone());
                    }
                    responses += 1;
                    let Some(then) = self.host.dispatch(transaction, self.clone()) else { return };
                    next = then;
                    continue;
                }
                Next::Store(write) => return self.host.store(self.clone(), *write),
                // The connection stays owned: the leader continues with the connection after the events of others.
                Next::Later => return self.host.hand_over(self.clone()),
                Next::Close => return self.close(),
                // `step` makes the room itself.
                Next::Rest | Next::Read | Next::Flush | Next::MakeRoom(_) => {
                    if self.ownership.release() {
                        return;
                    }
                }
            }
            next = self.advance(self.ownership.take());
        }
    }

    /// Closes the connection.
    fn close(&self) {
        *lock(&self.state) = ConnectionState::Closed;
        self.delivery.break_off();
        self.host.remove(self);
    }

    /// Takes the steps that the events cause. Returns what the owner does next, which is never [`Next::Read`] or
    /// [`Next::Flush`]: both are done here.
    fn advance(self: &Arc<Self>, bits: Bits) -> Next {
        let mut state = lock(&self.state);
        let next = self.next_of_events(&mut state, bits);
        self.settle(&mut state, next, bits)
    }

    /// Reads and flushes until the next action is a different one. `bits` are the events that led to `next`.
    fn settle(self: &Arc<Self>, state: &mut ConnectionState, mut next: Next, bits: Bits) -> Next {
        let mut readable = bits;
        loop {
            next = match next {
                Next::Read => self.read(state, readable),
                Next::Flush => self.flush(state, bits),
                other => {
                    self.socket().set_low_water(state.low_water());
                    return other;
                }
            };
            // The next read may find bytes whose event was reported earlier.
            readable |= READABLE;
        }
    }

    fn next_of_events(self: &Arc<Self>, state: &mut ConnectionState, bits: Bits) -> Next {
        if bits & ownership::WRITE != 0 {
            self.socket().notify_writable();
        }
        let mut next = Next::Read;
        if state.is_storing() {
            next = self.step(state, Event::Written);
            if !matches!(next, Next::Read) {
                return next;
            }
        }
        if bits & ownership::EXPIRED != 0 && self.deadline.has_come(self.shared.clock.now()) {
            if state.idleness() == Some(Idleness::Silent) && self.has_just_greeted() {
                // Until now the time was that of the handshake.
                let idle = self.time_of(Idleness::Silent);
                self.set_deadline(self.shared.clock.recent_millis().saturating_add(idle));
                return Next::Rest;
            }
            return self.end_idle(state, Event::Expired);
        }
        if bits & ownership::EVICT_IDLE != 0 && state.idleness().is_some() {
            return self.end_idle(state, Event::EvictIdle);
        }
        if state.is_flushing() {
            if bits & READABLE != 0 {
                self.step(state, Event::Readable);
            }
            return Next::Flush;
        }
        if bits & ownership::WRITE != 0 {
            // In the other states only `100 Continue` can be queued.
            let (_, after) = self.delivery.flush(true, u64::MAX, self.delivery_limits(), None);
            self.follow_up(after);
        }
        if bits & (READABLE | ownership::STOP) == 0 { Next::Rest } else { next }
    }

    /// True, once, when the handshake is complete.
    fn has_just_greeted(&self) -> bool {
        !self.has_greeted.load(Ordering::Relaxed) && self.socket().facts().is_some() && {
            self.has_greeted.store(true, Ordering::Relaxed);
            true
        }
    }

    /// Takes one step of the state and applies its effects.
    fn step(self: &Arc<Self>, state: &mut ConnectionState, event: Event<'_>) -> Next {
        let effects = self.effects(state, event);
        match self.apply(effects) {
            Next::MakeRoom(bytes) => self.step_with_room(state, bytes),
            next => next,
        }
    }

    #[cold]
    fn step_with_room(self: &Arc<Self>, state: &mut ConnectionState, bytes: usize) -> Next {
        let effects = self.effects(state, Event::Room(self.make_room(bytes)));
        self.apply(effects)
    }

    /// Takes one step of the state, and queues its error page. The caller applies the other effects.
    fn effects(&self, state: &mut ConnectionState, event: Event<'_>) -> Effects {
        let mut effects = with_pool(|pool| {
            let rules = Rules {
                protocol: self.protocol(),
                config: &self.shared.config,
                memory: &self.shared.memory,
                headroom: Headroom::Unasked,
                pool,
                folder: self.shared.disk.folder(),
                peer: self.peer(),
                is_stopping: self.shared.is_stopping(),
                first_request_by: self.first_request_by.load(Ordering::Relaxed),
                time: self.shared.clock.reading(),
            };
            state.step(event, &rules)
        });
        if effects.rare.is_some() {
            self.queue_page(state, &mut effects);
        }
        if let Next::Run(transaction) = &mut effects.next {
            transaction.request.tls = self.socket().facts();
            if transaction.request.tls.is_some() {
                self.has_greeted.store(true, Ordering::Relaxed);
            }
            probes::request_start(self.key, &transaction.request);
        }
        effects
    }

    #[cold]
    fn queue_page(&self, state: &mut ConnectionState, effects: &mut Effects) {
        let Effects { rare, account, .. } = effects;
        let Some(Message::Page(refusal, facts)) = rare.as_ref().and_then(|rare| rare.send.as_ref()) else { return };
        // A request that was given up is accounted for at once.
        let page = match state.refused().or(account.as_deref_mut()) {
            Some(Transaction { request, response, .. }) => {
                self.error_page(&mut response.head, refusal, *facts, request.id())
            }
            None => self.error_page(&mut ResponseHead::default(), refusal, *facts, b""),
        };
        self.delivery.queue(&page);
    }

    /// See [`Open::make_room`](host::Open::make_room).
    fn make_room(&self, more: usize) -> bool {
        self.shared.memory.has_room(more) || self.host.make_room(more)
    }

    fn apply(self: &Arc<Self>, effects: Effects) -> Next {
        let Effects { rare, account, deadline, next } = effects;
        let send = rare.and_then(|rare| self.apply_rare(*rare));
        if let Some(transaction) = account {
            self.account(transaction);
        }
        if let Some(due) = deadline {
            self.set_deadline(due);
        }
        match send {
            // `effects` has queued the page.
            None | Some(Message::Page(..)) => {}
            Some(Message::Continue) => Source::send_continue(&**self),
        }
        next
    }

    #[cold]
    fn apply_rare(&self, rare: RareEffects) -> Option<Message> {
        let RareEffects { log, shutdown, is_refusal, not_trusted, send } = rare;
        if let Some(message) = log {
            self.host.log(Level::Error, &message);
        }
        match shutdown {
            None => {}
            Some(Shutdown::EndSending) => self.socket().end_sending(),
            Some(Shutdown::Reset) => self.socket().reset_on_close(),
        }
        if is_refusal {
            self.shared.count_refusal();
        }
        if let Some((what, peer)) = not_trusted
            && let Some(message) = self.shared.one_time_warnings.not_trusted(what, peer)
        {
            self.host.log(Level::Warning, &message);
        }
        send
    }

    /// Reads what the client has sent and passes it to the state.
    fn read(self: &Arc<Self>, state: &mut ConnectionState, bits: Bits) -> Next {
        thread_state::with_scratch(|scratch| {
            // The part of a streamed body that arrives with the head stays in memory until a thread is free, so it is
            // kept small.
            let most = if self.shared.config.stream_body { FIRST_OF_STREAM.min(scratch.len()) } else { scratch.len() };
            let scratch = &mut scratch[..most];
            // A runner whose thread is shared with other requests reads less, and leaves the rest to the I/O side.
            let reads = if thread_state::is_leading() { READS } else { self.shared.policy.reads_by_runner };
            let mut left = reads * most;
            while left > 0 {
                let (room, is_body) = match state.body_room() {
                    Some(room) => (room, true),
                    None => (&mut *scratch, false),
                };
                let most = room.len();
                left = left.saturating_sub(most);
                let event = match self.socket().receive(room) {
                    Io::Moved(count) => {
                        // A short read has emptied the socket, and the next byte makes a new event. Only the end of the
                        // input, if it came with this event, still has to be read.
                        let mut more = count == most || bits & (ownership::READ_END | ownership::GONE) != 0;
                        let at = if is_body { Some(0) } else { self.skip_header(&scratch[..count], &mut more) };
                        let next = match at {
                            None => return Next::Close,
                            Some(_) if is_body => self.step(state, Event::Filled { count, more }),
                            // Nothing follows the header yet.
                            Some(at) if at == count => Next::Read,
                            Some(at) => {
                                self.note_tls(state, &scratch[at..count]);
                                self.step(state, Event::Received { bytes: &scratch[at..count], more })
                            }
                        };
                        if !matches!(next, Next::Read) {
                            return next;
                        }
                        if more {
                            continue;
                        }
                        Event::ReadAll
                    }
                    Io::WouldBlock => Event::ReadAll,
                    Io::End => Event::EndOfInput,
                    Io::Broken => Event::Lost,
                };
                return self.step(state, event);
            }
            // There may be more to read; other connections are served first.
            self.ownership.raise(ownership::READ | bits & ownership::READ_END);
            Next::Later
        })
    }

    /// Logs once that a client speaks TLS where it is not understood.
    #[inline]
    fn note_tls(&self, state: &ConnectionState, bytes: &[u8]) {
        if let [HANDSHAKE, 3, ..] = bytes
            && state.idleness() == Some(Idleness::Silent)
            && let Some(message) = self.shared.one_time_warnings.speaks_tls(self.peer.socket)
        {
            self.host.log(Level::Warning, &message);
        }
    }

    /// Takes what belongs to the PROXY header off these bytes: returns where the rest begins. `None`: they are no such
    /// header, or there is no memory for it. `more`: set if there is more to read now.
    #[inline]
    fn skip_header(&self, bytes: &[u8], more: &mut bool) -> Option<usize> {
        match &self.header {
            None => Some(0),
            Some(header) => self.take_header(header, bytes, more),
        }
    }

    #[cold]
    fn take_header(&self, header: &AwaitedHeader, bytes: &[u8], more: &mut bool) -> Option<usize> {
        let was_awaited = header.is_awaited();
        match header.take(bytes, &self.peer, &self.shared.memory, |more| self.make_room(more)) {
            Taken::All => Some(bytes.len()),
            Taken::Until(mut at) => {
                if was_awaited {
                    if self.socket().secure(&bytes[at..]) {
                        at = bytes.len();
                        *more = true;
                    }
                    match self.shared.count_client(self.peer().client) {
                        Ok(counted) => self.set_counted(counted),
                        Err(message) => {
                            if let Some(message) = message {
                                self.host.log(Level::Warning, &message);
                            }
                            return None;
                        }
                    }
                }
                if at == bytes.len() {
                    // Until now the time was that of the header.
                    let idle = millis(self.shared.config.idle_timeout);
                    self.set_deadline(self.shared.clock.recent_millis().saturating_add(idle));
                }
                Some(at)
            }
            Taken::Refused(fault) => {
                self.shared.count_refusal();
                if let Some(message) = self.shared.one_time_warnings.header_refused(fault, self.peer.socket) {
                    self.host.log(Level::Warning, &message);
                }
                None
            }
            Taken::NoMemory => {
                self.shared.count_refusal();
                None
            }
        }
    }

    /// The peer of the connection, without what a request states.
    #[inline]
    fn peer(&self) -> &Peer {
        self.header.as_ref().and_then(|header| header.peer()).unwrap_or(&self.peer)
    }

    /// Sends as much of the response as the socket accepts.
    fn flush(self: &Arc<Self>, state: &mut ConnectionState, bits: Bits) -> Next {
        let writable = bits & ownership::WRITE != 0;
        let (flush, after) = self.delivery.flush(writable, TURN, self.delivery_limits(), Some(&**self));
        self.follow_up(after);
        self.step(state, Event::Flushed(flush))
    }

    /// Takes a step with an event that ends an idle connection. Bytes that the client has already sent are read and
    /// served first, because their event may be reported only in a later round of the poller.
    fn end_idle(self: &Arc<Self>, state: &mut ConnectionState, event: Event<'_>) -> Next {
        let Some(before) = state.idleness() else { return self.step(state, event) };
        match self.read(state, READABLE) {
            Next::Rest if state.idleness() == Some(before) => self.step(state, event),
            other => other,
        }
    }

    /// Makes an error page, head included. `head`: where its head is built. `id`: of the request; empty: it has none.
    fn error_page(&self, head: &mut ResponseHead, refusal: &Refusal, facts: RequestFacts, id: &[u8]) -> Vec<u8> {
        let mut page = Vec::with_capacity(512);
        let server = self.shared.config.server_name.as_bytes();
        with_date(self.shared.clock.recent(), |date| {
            let strict_transport = self.shared.config.strict_transport(self.peer.listener);
            let own = OwnFields { date, server, strict_transport, id: self.shared.config.id_field(id) };
            self.protocol().error_page(head, (refusal.status, refusal.reason), facts, own, &mut page)
        });
        page
    }

    /// Accounts for a request whose response has been sent, or never will be.
    fn account(&self, mut transaction: Box<Transaction>) {
        if let Some(compressed) = self.delivery.take_compressed() {
            let counts = &self.shared.counts;
            counts.add(Metric::Compressed, 1);
            counts.add(Metric::CompressedFrom, compressed.plain_bytes);
            counts.add(Metric::CompressedTo, compressed.bytes);
            transaction.record.note_compressed(compressed);
        }
        self.host.account(self.key, transaction, self.delivery.take_writes());
    }

    /// Called by the thread that has written a part of the body, before it hands the connection over.
    pub(crate) fn end_write(self: &Arc<Self>, result: io::Result<Written>) {
        lock(&self.state).set_write_result(result);
        // The events of bytes, or of the end, that arrived during the write may be used up.
        self.ownership.raise(ownership::READ | ownership::READ_END);
    }

    /// As [`Connection::end_response`], for the owner, which takes the next action itself.
    pub(crate) fn end_response_here(self: &Arc<Self>, ended: Ended) -> Next {
        let Ended { then, transaction, rest, is_sent, .. } = ended;
        self.count(&transaction);
        let mut state = lock(&self.state);
        let next = self.step(&mut state, Event::Responded { then, transaction, rest, is_sent });
        if is_sent {
            return self.settle(&mut state, next, READABLE);
        }
        // The events that arrived meanwhile, and the flush that follows them; nothing of a responder is held.
        drop(state);
        self.advance(self.ownership.take())
    }

    /// Counts a request that the application has answered.
    fn count(&self, transaction: &Transaction) {
        if transaction.record.started.is_some() {
            self.shared.counts.add(Metric::Requests, 1);
        }
    }

    /// The application is done with the response. Ownership of the connection moves from the exchange to the calling
    /// thread.
    pub(crate) fn end_response(self: &Arc<Self>, ended: Ended) {
        let Ended { then, transaction, rest, is_sent, hand_over, is_batched } = ended;
        self.count(&transaction);
        // Where runners share a thread, the I/O side reads what the client has sent meanwhile.
        let shares_thread = self.shared.policy.waiting.is_by_ticket();
        let is_sent = is_sent && !hand_over && !shares_thread;
        let (next, has_unread, has_more) = {
            let mut state = lock(&self.state);
            let next = self.step(&mut state, Event::Responded { then, transaction, rest, is_sent });
            if is_sent {
                (self.settle(&mut state, next, READABLE), false, false)
            } else {
                // A client that has sent further requests already would wait for each of them.
                (next, state.has_unread(), state.has_more_requests())
            }
        };
        if is_sent {
            self.run_from(next);
        } else if is_batched && !has_more {
            self.host.hold(self.clone());
        } else if hand_over || (shares_thread && has_unread) {
            self.host.hand_over(self.clone());
        } else {
            self.run_steps();
        }
    }
}

/// Methods for the thread that sends batched responses.
impl Connection {
    /// Sends the response, which was held until now, and goes on with the connection.
    pub(crate) fn end_hold(self: &Arc<Self>) {
        lock(&self.state).end_hold(self.shared.clock.peek());
        self.run_steps();
    }
}

/// Methods for any thread.
impl Connection {
    /// How and since when the connection is idle. `None`: it is not idle, or its owner is using the state.
    pub(crate) fn idle_since(&self) -> Option<(Idleness, Millis)> {
        let idleness = self.state.try_lock().ok()?.idleness()?;
        // The deadline was set when the connection became idle and has not been changed since.
        Some((idleness, self.deadline.due().saturating_sub(self.time_of(idleness))))
    }

    /// How long the connection may be idle in this way.
    fn time_of(&self, idleness: Idleness) -> Millis {
        let config = &self.shared.config;
        let is_header_awaited = || self.header.as_ref().is_some_and(|header| header.is_awaited());
        millis(match idleness {
            Idleness::Silent if !is_header_awaited() && self.has_greeted.load(Ordering::Relaxed) => config.idle_timeout,
            Idleness::Silent | Idleness::HalfHead => config.header_timeout,
        })
    }

    /// True when the head of the response has been sent or queued.
    pub(crate) fn has_begun_response(&self) -> bool {
        self.delivery.produced_so_far().0.status != 0
    }

    /// What goes on. While its owner uses the state, that is mostly a read.
    pub(crate) fn activity(&self) -> Activity {
        self.state.try_lock().map_or(Activity::Receiving, |state| state.activity())
    }

    /// The incomplete request. `None`: there is none, or its owner is using the state.
    pub(crate) fn unfinished(&self) -> Option<Unfinished> {
        self.state.try_lock().ok()?.unfinished()
    }

    /// Refuses the incomplete request, so that its memory is free at once. False: there is none any more, or another
    /// thread owns the connection.
    pub(crate) fn shed(self: &Arc<Self>, refusal: &Refusal) -> bool {
        if !self.ownership.raise(0) {
            return false;
        }
        let mut effects = self.effects(&mut lock(&self.state), Event::Shed(*refusal));
        let account = effects.account.take();
        let is_shed = matches!(self.apply(effects), Next::Later);
        if is_shed {
            let (flush, after) = self.delivery.flush(false, u64::MAX, self.delivery_limits(), Some(&**self));
            self.follow_up(after);
            // Accounted for after the flush, so that the record counts its writes, but without waiting for the client
            // to take the page, so that the memory of the request is free.
            if let Some(mut transaction) = account {
                if flush == Flush::Broken {
                    transaction.record.set_broken(Ending::ClientGone);
                }
                self.account(transaction);
            }
        }
        // The leader continues with the connection: the calling thread may be in the middle of a read of another one.
        self.host.hand_over(self.clone());
        is_shed
    }

    /// Does what a call of [`Delivery`] has left to its caller.
    #[inline]
    pub(crate) fn follow_up(self: &Arc<Self>, after: After) {
        if after.is_any() {
            self.follow_up_now(after);
        }
    }

    fn follow_up_now(self: &Arc<Self>, after: After) {
        let After { wake, push, room, list, read, compress, asked } = after;
        if wake {
            self.host.wake_io();
        }
        if list {
            self.host.add_coalescing(self);
        }
        if push {
            self.host.push(self.clone());
        }
        if room {
            self.notify_room();
        }
        if read && let Some(part) = self.delivery.take_unread() {
            let connection = self.clone();
            let share = part.file.share().cloned();
            let read = move || part.file.read(part.offset, part.length, Box::new(move || connection.look_again()));
            match share {
                Some(share) => share.run(read),
                None => self.shared.disk.run(read),
            }
        }
        if compress {
            let connection = self.clone();
            self.shared.compression.run(move || connection.compress());
        }
        if asked {
            // The thread that found this one writing may have been the owner, which may have released the connection
            // since. So another flush is made.
            self.look_again();
        }
    }

    /// Compresses what the response has produced. For a disk thread; other responses have their turn after each step.
    pub(crate) fn compress(self: &Arc<Self>) {
        let after = self.delivery.compress(self.delivery_limits(), &**self);
        self.follow_up(after);
    }

    pub(crate) fn look_again(&self) {
        if self.ownership.raise(ownership::WRITE)
            && let Some(connection) = self.host.find(self.key)
        {
            self.host.hand_over(connection);
        }
    }

    /// Breaks the connection. Threads that read or write notice it; the owner cleans up.
    pub(crate) fn abort(&self) {
        self.delivery.break_off();
        self.notify_room();
        self.socket().shut_down();
        self.notify_reader();
    }
}

/// Methods for the I/O side, while the application runs.
impl Connection {
    /// Sends what the application has produced: coalesced blocks and the send queue.
    pub(crate) fn drain_for_the_owner(self: &Arc<Self>, bits: Bits) {
        let expired = bits & ownership::EXPIRED != 0 && self.deadline.has_come(self.shared.clock.now());
        let after = self.delivery.drain(bits & ownership::WRITE != 0, expired, self.delivery_limits(), &**self);
        self.follow_up(after);
    }

    /// Sends what the response has coalesced since the last tick. False: the response is over, or its blocks no longer
    /// come quickly.
    pub(crate) fn tick(self: &Arc<Self>) -> bool {
        let (stays, after) = self.delivery.tick(self.delivery_limits(), &**self);
        self.follow_up(after);
        stays
    }

    /// The deadline of the request has passed while the application runs. Sends 504 if the response has not begun, else
    /// breaks it off. The caller notifies a runner that waits for room or for bytes. `id`: of the request.
    pub(crate) fn time_out(&self, facts: RequestFacts, id: &[u8]) -> Outcome {
        let facts = RequestFacts { keep_alive: false, ..facts };
        let page = || {
            let length = error_page_length(TOO_LATE.status, TOO_LATE.reason, facts);
            (self.error_page(&mut ResponseHead::default(), &TOO_LATE, facts, id), length)
        };
        let (time_out, asked) = self.delivery.time_out(page);
        if asked {
            self.look_again();
        }
        match time_out {
            TimeOut::Answered => Outcome::Answered,
            TimeOut::BrokenOff => Outcome::BrokenOff,
            TimeOut::Over => Outcome::Over,
        }
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

/// Methods for the runner that waits for a slow client.
impl Connection {
    /// A runner has taken the request from the run queue. Called by the owner.
    pub(crate) fn set_runner(&self, runner: RunnerId) {
        self.runner.set(runner);
        if self.has_disconnected() {
            self.host.report_disconnect(runner.packed());
        }
    }

    /// How long a runner waits for its client before the queued bytes are moved to a file. It does not wait if some of
    /// them are in a file already, or if responses have used up their memory, since many runners would wait then.
    pub(crate) fn patience(&self) -> Duration {
        if self.delivery.is_behind() || !self.delivery_limits().has_memory() { Duration::ZERO } else { PATIENCE }
    }

    /// Blocks until the send queue has room. False: there never will be. If the client takes longer than
    /// [`Connection::patience`], the queued bytes are moved to a file, which makes room.
    pub(crate) fn wait_for_room(&self) -> bool {
        let shown = self.host.show_sending(self.runner.get());
        if let Some(signal_check) = self.shared.policy.waiting.signal_check() {
            let (limits, patience) = (self.delivery_limits(), self.patience());
            let client = SlowClient { delivery: &self.delivery, limits, signal_check, patience };
            let write_timeout = self.shared.config.write_timeout;
            return client.write_for_room(write_timeout, || self.host.must_end(), || _ = self.spill());
        }
        let _waiting = WaitingCount::new(&self.shared.waiting, shown);
        let mut patience = self.patience();
        self.delivery.wait_for_room(self.delivery_limits(), patience, || {
            self.spill();
            patience = next_patience(patience);
            patience
        })
    }

    /// Whether the send queue has room. On [`Room::Later`] the ticket is given out once, when there is room or never
    /// will be; the greenlet then asks again.
    pub(crate) fn ask_for_room(&self, ticket: u64) -> Room {
        if self.is_forked_child() {
            return Room::Never;
        }
        self.delivery.ask_for_room(self.delivery_limits(), || self.runner.wait_for_room(ticket))
    }

    /// Has a disk thread move the queued bytes to a file, for a greenlet, whose thread must not wait for a disk. The
    /// greenlet's ticket is given out after the attempt, whether or not that succeeded.
    pub(crate) fn spill_elsewhere(self: &Arc<Self>) {
        let connection = self.clone();
        self.shared.spill.run(move || _ = connection.spill_for_another());
    }

    /// Moves the queued bytes from memory to a file.
    fn spill(&self) -> Spilled {
        if self.is_forked_child() {
            return Spilled::NoRoom;
        }
        let (spilled, after) = self.delivery.spill(&self.shared.spill, self.delivery_limits());
        if (after.push || after.compress)
            && let Some(connection) = self.host.find(self.key)
        {
            connection.follow_up(after);
        }
        if let Spilled::Failed(fault) = &spilled {
            self.host.report_spill_failure(fault);
        }
        spilled
    }

    /// The same for a thread that does not run the request. A runner that waits for room checks again.
    fn spill_for_another(&self) -> Spilled {
        let spilled = self.spill();
        // A greenlet may have looked for room and not noted its ticket yet: wait until it has.
        self.delivery.sync();
        self.notify_room();
        spilled
    }
}

/// Methods for a disk thread, when responses have used up their memory.
impl Connection {
    /// Frees the memory that the response holds while its client does not take it: copies what little is left of large
    /// blocks, or moves all to a file.
    pub(crate) fn reclaim(&self) -> Reclaimed {
        if self.delivery.copy_tails() {
            return Reclaimed::Copied;
        }
        match self.spill_for_another() {
            Spilled::Done => Reclaimed::Moved,
            Spilled::Nothing | Spilled::Busy => Reclaimed::Nothing,
            Spilled::NoRoom => Reclaimed::NoRoom,
            Spilled::Failed(_) => Reclaimed::Failed,
        }
    }
}

/// Methods for the end of the server.
impl Connection {
    /// After [`Connection::abort`]: accounts, once, for a request that was in progress.
    pub(crate) fn account_aborted(&self) {
        let left = lock(&self.state).take_left_over();
        match left {
            LeftOver::Nothing => {}
            LeftOver::WithRunner => {
                let (request, record) = self.request_of_runner();
                self.host.account_abandoned(self.key, &request, &record);
            }
            LeftOver::Here { mut transaction, is_complete } => {
                if !is_complete {
                    transaction.record = Record::new(self.shared.clock.read());
                }
                transaction.record.ending = Ending::Cut;
                self.account(transaction);
            }
        }
    }

    /// The request that a runner runs, and its record, as far as the scoreboard and the shared half of the response
    /// show them.
    fn request_of_runner(&self) -> (Request, Record) {
        let now = self.shared.clock.read();
        let mut request = Request { peer: *self.peer(), ..Request::default() };
        let mut record = Record { finished: Some(now), drained: Some(now), ..Record::new(now) };
        if let Some(shown) = self.host.in_flight(self.runner.get()) {
            record.queued = self.shared.clock.moment_of(shown.since);
            record.started = Some(record.queued);
            request.bytes = [&shown.method, b" ".as_slice(), &shown.target, b" HTTP/1.1\r\n\r\n"].concat();
            // The head was parsed before. If the scoreboard has shortened it, for example a long method, it may not
            // parse again; the log then has no request line.
            let _ = HeadParser::default().parse(&request.bytes, &Limits::default(), &mut request.head);
            let start = request.bytes.len() as u32;
            request.bytes.extend_from_slice(&shown.id);
            request.id = Span { start, end: request.bytes.len() as u32 };
            request.traced = shown.traced;
        }
        let (produced, is_late) = self.delivery.produced_so_far();
        (record.status, record.body_bytes) = (produced.status, produced.body_bytes);
        record.ending = if is_late { Ending::TimedOut } else { Ending::Cut };
        (request, record)
    }
}

impl ClientTime for Connection {
    fn now(&self) -> Millis {
        self.shared.clock.now()
    }

    fn set_deadline(&self, due: Millis) -> bool {
        self.shared.timers.set(&self.deadline, self.key, due)
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
            let (connection, mut client) = connection(&server, 7);
            client.write_all(sent).unwrap();
            connection.begin();
            assert_eq!(connection.shared().timers.next(0).is_some(), has_entry, "{sent:?}");
        }
    }
}
