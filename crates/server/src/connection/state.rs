//! The states of a connection, and what each event means in them.
//!
//! [`ConnectionState::step`] changes the state and returns what has to be done ([`Effects`]). It has no socket, loop,
//! clock or lock, and calls nothing back: bytes, times and limits are arguments, so tests can report events in any
//! order. Runs on the thread that owns the connection.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tailrace_http::body::{BodyDecoder, BodyStep};
use tailrace_http::encode;
use tailrace_http::framing::{BodyLength, RequestFacts, is_of_grip};
use tailrace_http::head::{HeadParser, HeadStep};
use tailrace_http::limits::{Exceeded, Refusal};
use tailrace_http::peer::{Fields, Peer};
use tailrace_http::request_start::waited;
use tailrace_observe::record::{Ending, Record};
use tailrace_observe::stats::Activity;
use tailrace_os::clock::{Millis, NEVER, Reading, millis};

use crate::config::{Config, ListenerProtocol};
use crate::connection::one_time_warnings::Untrusted;
use crate::connection::transaction::Transaction;
use crate::connection::transaction_pool::TransactionPool;
use crate::request::memory::{Charge, ClientMemory};
use crate::request::part::Part;
use crate::request::protocol::{NotAdmitted, Protocol};
use crate::request::spool::{self, Appended, NotWritten, Spool, Write, Written};
use crate::request::stream::{BodyStream, Incoming, Rest};
use crate::request::{Request, RequestBody};
use crate::response::client_pace::within_rate;
use crate::response::outbox::Flush;

/// After an error the remaining bytes of the client are read and dropped, until none come for this long (milliseconds).
const LINGER: Millis = 2_000;
/// They are read and dropped for at most this long in all (milliseconds).
const LINGER_IN_ALL: Millis = 30_000;
/// How long a draining server waits for the next request of a connection that has had one (milliseconds): longer than
/// the round trip to a distant client, which sends it before it can see that the connection closes. If the connection
/// closes first, the client sends the request again on another one (RFC 9112 section 9.3.1).
const NEXT_REQUEST: Millis = 1_000;
/// How long a draining server waits for the first request of a connection, counted from its acceptance (milliseconds):
/// TCP sends a lost segment again after 1 s, and then after 2 s. A client that sends nothing for longer, such as a
/// browser that has connected in advance, must not delay a stop any longer.
pub(crate) const FIRST_REQUEST: Millis = 5_000;

/// Least number of bytes that are received straight into the memory of a body.
const LEAST_ROOM: u64 = 64 * 1024;

/// A client is quick that has sent so many bytes of a body since the socket was last empty.
const QUICK: u64 = 64 * 1024;
/// While a quick client has much more to send, fewer bytes are no event: a server that reads faster than the client
/// sends would be woken for each packet. The kernel sets less where its receive buffers cannot hold as much.
const LOW_WATER: u32 = 512 * 1024;
/// Of a body whose rest is shorter every byte is an event: the last bytes would be read only after all have come.
const LONG_REST: u64 = 2 * LOW_WATER as u64;
/// After this time (milliseconds) the bytes of a client that was quick are read even if they are fewer.
const LOOK: Millis = 100;

const NO_MEMORY: Refusal =
    Refusal::beyond(503, "The server has no memory left for this request.", Exceeded::ClientMemory);
const NO_ROOM_ON_DISK: Refusal =
    Refusal::beyond(503, "The server has no room left for the request body.", Exceeded::BodyFiles);

/// What follows after the whole response has been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterResponse {
    /// The next request.
    Keep,
    /// The end of the connection, at once if the client has sent nothing more; else as `Linger`.
    Close,
    /// The end of the connection, after the client's remaining bytes have been read and dropped: unread bytes would
    /// make the close a reset, and the client could lose the response.
    Linger,
    /// The end of the connection by a reset: nothing else can show the client that the body is incomplete.
    Reset,
    /// Another process has the connection: it is closed here, and its client does not notice.
    Moved,
}

/// Bytes that were received after the current request (pipelining, RFC 9112 section 9.3.2).
#[derive(Default)]
pub(crate) struct Pipelined {
    bytes: Vec<u8>,
    /// The socket may contain more bytes, whose event has already been used up.
    unread: bool,
    /// Received bytes were dropped for want of memory, so what follows cannot be parsed.
    pub(crate) is_lost: bool,
    /// Charges the bytes; dropped with them.
    _charge: Charge,
}

impl Pipelined {
    /// A copy of these bytes; `is_lost` if there is no memory for it.
    fn of(bytes: &[u8], unread: bool, memory: &ClientMemory) -> Self {
        if bytes.is_empty() {
            return Self { unread, ..Self::default() };
        }
        let mut copy = Vec::new();
        if !memory.has_room_to_spare(bytes.len()) || copy.try_reserve_exact(bytes.len()).is_err() {
            return Self { is_lost: true, ..Self::unread() };
        }
        copy.extend_from_slice(bytes);
        Self::taken(copy, unread, memory)
    }

    /// These bytes, without a copy.
    fn taken(bytes: Vec<u8>, unread: bool, memory: &ClientMemory) -> Self {
        let mut charge = Charge::default();
        if bytes.capacity() > 0 {
            charge.set_in(&memory.requests, bytes.capacity());
        }
        Self { bytes, unread, is_lost: false, _charge: charge }
    }

    /// The bytes, no longer charged, and whether the socket may contain more.
    pub(crate) fn take(self) -> (Vec<u8>, bool) {
        (self.bytes, self.unread)
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// True when no bytes were received.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// No bytes, but the socket may contain some.
    fn unread() -> Self {
        Self { unread: true, ..Self::default() }
    }
}

/// A request head of which only a part has been received.
pub(crate) struct Heading {
    transaction: Box<Transaction>,
    parser: HeadParser,
    /// The client has sent more than what may stand in front of a request.
    has_started: bool,
    /// When its first bytes were received.
    since: Millis,
}

/// A request whose body is being received.
pub(crate) struct Upload {
    transaction: Box<Transaction>,
    decoder: BodyDecoder,
    spool: Spool,
    /// When the head was complete: its age among incomplete requests.
    began: Millis,
    /// The beginning, moved by the time that writes to the file take: for the rate. `received`: body bytes since.
    since: Millis,
    received: u64,
    /// `received` when the socket was last empty.
    received_before: u64,
    /// Fewer bytes are no event: 1, or [`LOW_WATER`] while more than that are still to come.
    low_water: u32,
    /// The time by which the client must send more of the body.
    late: Millis,
}

/// A request of which a part of the body is being written to its file.
pub(crate) struct Storing {
    upload: Box<Upload>,
    /// The bytes after the body, if this is its last write.
    ahead: Option<Pipelined>,
    since: Millis,
    /// `None` while the write is under way.
    result: Option<Result<Written, NotWritten>>,
}

/// A response that is complete but not entirely sent.
pub(crate) struct Flushing {
    then: AfterResponse,
    ahead: Pipelined,
    /// `Some` if the request body has not been read to its end: the decoder finds that end.
    unread_body: Option<BodyDecoder>,
    /// Bytes of that body that have been dropped while the client did not read the response, and since when.
    dropped: u64,
    dropping_since: Option<Millis>,
    /// To be accounted for. `None`: it already is.
    transaction: Option<Box<Transaction>>,
}

pub(crate) enum ConnectionState {
    /// Between two requests, or before the first.
    Idle,
    /// In the middle of a request head.
    Head(Box<Heading>),
    /// In the middle of a request body.
    Body(Box<Upload>),
    /// A write of the body owns the connection: nothing is read from the socket meanwhile, so the client waits.
    Storing(Box<Storing>),
    /// A request is queued or runs; its exchange owns the connection.
    Responding(Pipelined),
    /// The response is complete; some of it has not been sent.
    Flushing(Box<Flushing>),
    /// The rest of a request body that the application did not read is read and dropped, before the next request.
    Skipping(Box<BodyDecoder>),
    /// The response has been sent and the sending direction ended: the connection closes if the socket is empty.
    Closing,
    /// The response has been sent and the sending direction ended: what the client still sends is read and dropped,
    /// until this time at most.
    Lingering(Millis),
    /// The connection is closed.
    Closed,
}

/// What happens to a connection.
pub(crate) enum Event<'a> {
    /// Bytes have been received. `more`: the socket may contain more, whose event has already been used up.
    Received { bytes: &'a [u8], more: bool },
    /// So many bytes have been received into [`ConnectionState::body_room`]. `more`: as above.
    Filled { count: usize, more: bool },
    /// The socket is empty.
    ReadAll,
    /// The client has ended its sending direction.
    EndOfInput,
    /// A read has found the connection broken.
    Lost,
    /// The socket may contain bytes, but they are not read in this state.
    Readable,
    /// The deadline of the connection has passed.
    Expired,
    /// The connection is idle, and has to close so that a new client can be accepted. All that its client has sent has
    /// been read.
    EvictIdle,
    /// The memory of an incomplete request is needed: it is refused.
    Shed(Refusal),
    /// A write of the body is done: [`ConnectionState::set_write_result`] has its result.
    Written,
    /// The response is complete. `is_sent`: all of it has been sent.
    Responded { then: AfterResponse, transaction: Box<Transaction>, rest: Option<Rest>, is_sent: bool },
    /// The response was flushed, with this result.
    Flushed(Flush),
}

impl Event<'_> {
    /// True when the step may keep bytes of the client.
    pub(crate) fn takes_bytes(&self) -> bool {
        match self {
            Self::Received { .. } | Self::Filled { .. } | Self::Written | Self::Responded { .. } | Self::Flushed(_) => {
                true
            }
            Self::ReadAll | Self::EndOfInput | Self::Lost | Self::Readable => false,
            Self::Expired | Self::EvictIdle | Self::Shed(_) => false,
        }
    }
}

/// What the owner does next.
#[derive(Default)]
pub(crate) enum Next {
    /// Release the connection until the next event.
    #[default]
    Rest,
    /// Read from the socket; [`Event::Received`], [`Event::ReadAll`], [`Event::EndOfInput`] or [`Event::Lost`] follows.
    Read,
    /// Send what is queued; [`Event::Flushed`] follows.
    Flush,
    /// Queue the request, which owns the connection from now on.
    Run(Box<Transaction>),
    /// Write this to the body's file. The write owns the connection from now on.
    Store(Box<Write>),
    /// Continue after the events of other connections: there is more to do.
    Later,
    /// Close.
    Close,
}

/// Bytes that the server itself sends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// `100 Continue`, for a client that waits for it before it sends its body.
    Continue,
    /// An error page.
    Page(Refusal, RequestFacts),
}

/// How the sending direction of the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shutdown {
    /// The client reads end-of-file after the last byte.
    EndSending,
    /// The close will be a reset.
    Reset,
}

/// What has to be done, in this order: `rare` without its `send`, `account`, `deadline`, the `send` of `rare`, `next`.
#[derive(Default)]
pub(crate) struct Effects {
    /// Effects that few steps have. Boxed, so that the effects of other steps are small to return.
    pub(crate) rare: Option<Box<RareEffects>>,
    /// Account for this request: its response has been sent, or never will be.
    pub(crate) account: Option<Box<Transaction>>,
    /// Set this deadline; [`NEVER`]: remove it.
    pub(crate) deadline: Option<Millis>,
    pub(crate) next: Next,
}

/// Effects that few steps have, in the order in which they are applied; see [`Effects`] for `send`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RareEffects {
    /// A line for the error log.
    pub(crate) log: Option<String>,
    pub(crate) shutdown: Option<Shutdown>,
    /// The server itself has refused a request.
    pub(crate) is_refusal: bool,
    /// This peer has sent this, which is not believed.
    pub(crate) not_trusted: Option<(Untrusted, Option<SocketAddr>)>,
    /// Queue these bytes for the client. After a page, `next` is [`Next::Flush`], or [`Next::Later`] for a request that
    /// was shed.
    pub(crate) send: Option<Message>,
}

impl Effects {
    fn of(next: Next) -> Self {
        Self { next, ..Self::default() }
    }

    fn at(mut self, deadline: Millis) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Adds an effect that few steps have.
    fn with(mut self, add: impl FnOnce(&mut RareEffects)) -> Self {
        add(self.rare.get_or_insert_default());
        self
    }

    /// Adds that the client may send the body, unless the request is refused.
    fn with_continue(self) -> Self {
        self.with(|rare| {
            rare.send.get_or_insert(Message::Continue);
        })
    }

    /// Adds the account.
    fn accounting(mut self, account: Option<Box<Transaction>>) -> Self {
        self.account = account;
        self
    }
}

/// What a step depends on, besides the state and the event.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'a> {
    /// The format of the requests.
    pub(crate) protocol: &'a dyn Protocol,
    pub(crate) config: &'a Config,
    pub(crate) memory: &'a ClientMemory,
    /// There is memory for what a step keeps of a few bytes. The driver asks before a step that takes bytes, and makes
    /// room by refusing other incomplete requests. False: a step keeps only what is within the limit nevertheless.
    pub(crate) has_room: bool,
    /// Where new transactions come from.
    pub(crate) pool: &'a TransactionPool,
    /// The folder for the files of request bodies.
    pub(crate) folder: &'a Path,
    /// The peer of the connection, without what a request states.
    pub(crate) peer: &'a Peer,
    /// The server is stopping: connections end after their responses.
    pub(crate) is_stopping: bool,
    /// Until when a stopping server waits for the first request of the connection; 0: the connection has had one.
    pub(crate) first_request_by: Millis,
    pub(crate) time: Reading,
}

impl Rules<'_> {
    fn now(&self) -> Millis {
        self.time.millis()
    }

    fn after(&self, time: Millis) -> Millis {
        self.now().saturating_add(time)
    }

    fn has_room_for(&self, more: usize) -> bool {
        self.has_room || self.memory.has_room(more)
    }

    /// True if the sender may prove that it holds connections: a trusted proxy, where the operator has one that does so, or
    /// another process of this server.
    fn believes_grip(&self, sender: Option<SocketAddr>) -> bool {
        self.config.listener(self.peer.listener).protocol == ListenerProtocol::Internal
            || (self.config.is_behind_holder && self.config.trust.is_trusted(sender))
    }

    /// Charges a request that is kept while the thread serves other connections. False: there is no memory for it and
    /// `more` bytes.
    fn hold(&self, transaction: &mut Transaction, more: usize) -> bool {
        let missing = transaction.held().saturating_sub(transaction.charged()) + more;
        let has_room = missing == 0 || self.has_room_for(missing);
        if has_room {
            transaction.charge(self.memory);
        }
        has_room
    }

    /// `has_room`: there is memory for the body. Without it, bodies go to files.
    fn spool_limits(&self, has_room: bool) -> spool::SpoolLimits {
        spool::SpoolLimits { one: self.config.body_memory, all: if has_room { self.config.body_buffer } else { 0 } }
    }
}

/// In which way a connection is idle. When connections have to close, the first kind closes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Idleness {
    /// Between two requests, or before the first.
    Silent,
    /// In the middle of a request head.
    HalfHead,
}

/// An incomplete handshake or request. The order of these values is the order in which they are shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Unfinished {
    /// It is not a handshake.
    pub(crate) is_request: bool,
    /// Its body is in a file: shedding it frees little memory, and the client may have sent much of it.
    is_in_file: bool,
    pub(crate) since: Millis,
    /// The memory that it holds.
    pub(crate) memory: usize,
    /// The bytes of its body that are in a file.
    pub(crate) stored: u64,
}

impl Unfinished {
    /// A handshake that holds this many bytes.
    pub(crate) fn handshake(since: Millis, memory: usize) -> Self {
        Self { is_request: false, is_in_file: false, since, memory, stored: 0 }
    }
}

/// The request in progress when the server ends.
pub(crate) enum LeftOver {
    /// Nothing, or it is already accounted for.
    Nothing,
    /// The transaction. `is_complete`: its record has been started.
    Here { transaction: Box<Transaction>, is_complete: bool },
    /// A thread or a greenlet has the transaction, and may never return it.
    WithRunner,
}

impl ConnectionState {
    /// Takes the step that the event causes in this state.
    pub(crate) fn step(&mut self, event: Event<'_>, rules: &Rules<'_>) -> Effects {
        match event {
            Event::Received { bytes, more } => self.receive(bytes, more, rules),
            Event::Filled { count, more } => self.take_filled(count, more, rules),
            Event::ReadAll => self.read_all(rules),
            Event::EndOfInput | Event::Lost if matches!(self, Self::Flushing(_)) => {
                // A later read, when the response has been sent, finds this again.
                Effects::of(Next::Rest)
            }
            Event::EndOfInput => match self.take_unfinished() {
                Some((transaction, part)) => self.refuse(part.cut_short(), transaction, rules),
                None => Effects::of(Next::Close),
            },
            Event::Lost => Effects::of(Next::Close),
            Event::Readable => {
                // The bytes that are in the socket now make no second event.
                if let Self::Flushing(flushing) = self {
                    flushing.ahead.unread = true;
                }
                Effects::default()
            }
            Event::Expired => self.expire(rules),
            Event::EvictIdle => match self {
                Self::Idle | Self::Head(_) => Effects::of(Next::Close),
                _ => Effects::of(Next::Rest),
            },
            Event::Shed(refusal) => match self.take_unfinished() {
                None => Effects::of(Next::Rest),
                Some((transaction, _)) => {
                    let mut effects = self.refuse(refusal, transaction, rules);
                    if let Self::Flushing(flushing) = self {
                        effects.account = flushing.transaction.take();
                    }
                    // The thread that gives the request up may be in the middle of a read of another connection.
                    effects.next = Next::Later;
                    effects
                }
            },
            Event::Written => self.end_store(rules),
            Event::Responded { then, transaction, rest, is_sent } => {
                let flushing = self.drain(then, transaction, rest, rules);
                if is_sent {
                    return self.end_response(flushing, None, rules);
                }
                *self = Self::Flushing(Box::new(flushing));
                Effects::of(Next::Flush)
            }
            Event::Flushed(flush) => self.flushed(flush, rules),
        }
    }
}

/// Reading.
impl ConnectionState {
    fn receive(&mut self, bytes: &[u8], more: bool, rules: &Rules<'_>) -> Effects {
        match self {
            Self::Idle => self.begin_head(bytes, more, rules),
            Self::Head(_) => self.continue_head(bytes, more, rules),
            Self::Body(_) => self.take_body(bytes, 0, Appended::Some, more, rules),
            Self::Skipping(decoder) => match decoder.skip(bytes) {
                BodyStep::Done { consumed } => {
                    *self = Self::Idle;
                    let idle = rules.after(millis(rules.config.keepalive_timeout));
                    if consumed == bytes.len() {
                        return Effects::of(Next::Read).at(idle);
                    }
                    let effects = self.receive(&bytes[consumed..], more, rules);
                    Effects { deadline: effects.deadline.or(Some(idle)), ..effects }
                }
                // After a malformed body the beginning of the next request cannot be found.
                BodyStep::Refused(_) => Effects::of(Next::Close),
                BodyStep::NeedMore { .. } | BodyStep::Data { .. } => Effects::of(Next::Read),
            },
            Self::Closing => self.linger(rules),
            Self::Lingering(until) => {
                let left = until.saturating_sub(rules.now());
                Effects::of(Next::Read).at(rules.after(LINGER.min(left)))
            }
            Self::Flushing(flushing) => {
                flushing.skip_body(bytes, rules.memory);
                flushing.dropped += bytes.len() as u64;
                let since = *flushing.dropping_since.get_or_insert(rules.now());
                // The client is not idle: it may read the response only after it has sent its body.
                let (pause, rate) = (millis(rules.config.write_timeout), rules.config.min_rate);
                let next = if flushing.unread_body.is_some() { Next::Read } else { Next::Rest };
                Effects::of(next).at(within_rate(rules.now(), since, pause, flushing.dropped, rate))
            }
            Self::Storing(_) | Self::Responding(_) | Self::Closed => Effects::of(Next::Read),
        }
    }

    /// The first bytes of a request.
    fn begin_head(&mut self, bytes: &[u8], more: bool, rules: &Rules<'_>) -> Effects {
        let mut transaction = rules.pool.take();
        transaction.request.peer = *rules.peer;
        let mut parser = HeadParser::default();
        let head = &mut transaction.request.head;
        match rules.protocol.parse_head(&mut parser, bytes, &rules.config.limits, head) {
            HeadStep::NeedMore => {
                if !rules.hold(&mut transaction, bytes.len()) || !transaction.append(bytes) {
                    return self.refuse(NO_MEMORY, transaction, rules);
                }
                transaction.charge(rules.memory);
                let has_started = rules.protocol.has_started(&parser);
                *self = Self::Head(Box::new(Heading { transaction, parser, has_started, since: rules.now() }));
                Effects::of(Next::Read).at(rules.after(millis(rules.config.header_timeout)))
            }
            HeadStep::Complete => {
                let length = transaction.request.head.length;
                if !transaction.append(&bytes[..length]) {
                    return self.refuse(NO_MEMORY, transaction, rules);
                }
                self.begin_body(transaction, bytes, length, more, rules)
            }
            HeadStep::Refused(refusal) => {
                // The log shows these bytes, and they say whether the method is HEAD, whose response has no body.
                let _ = transaction.append(bytes);
                self.refuse(refusal, transaction, rules)
            }
        }
    }

    fn continue_head(&mut self, bytes: &[u8], more: bool, rules: &Rules<'_>) -> Effects {
        let Self::Head(mut heading) = std::mem::replace(self, Self::Idle) else { return Effects::of(Next::Read) };
        let Heading { transaction, parser, has_started, .. } = &mut *heading;
        let before = transaction.request.bytes.len();
        if !rules.hold(transaction, bytes.len()) || !transaction.append(bytes) {
            return self.refuse(NO_MEMORY, heading.transaction, rules);
        }
        transaction.charge(rules.memory);
        let Request { bytes: all, head, .. } = &mut transaction.request;
        match rules.protocol.parse_head(parser, all, &rules.config.limits, head) {
            HeadStep::NeedMore => {
                *has_started = rules.protocol.has_started(parser);
                *self = Self::Head(heading);
                Effects::of(Next::Read)
            }
            HeadStep::Complete => {
                let length = transaction.request.head.length;
                transaction.request.bytes.truncate(length);
                self.begin_body(heading.transaction, bytes, length - before, more, rules)
            }
            HeadStep::Refused(refusal) => self.refuse(refusal, heading.transaction, rules),
        }
    }

    /// The head is complete; `bytes[at..]` follows it.
    fn begin_body(
        &mut self,
        mut transaction: Box<Transaction>,
        bytes: &[u8],
        at: usize,
        more: bool,
        rules: &Rules<'_>,
    ) -> Effects {
        let limits = &rules.config.limits;
        let request = &mut transaction.request;
        // The packet of a proxy names its client, but the proxy has sent the fields.
        let sender = request.peer.client;
        let admitted = rules.protocol.admit(request, &rules.config.trust);
        if let Some(field) = &rules.config.request_id
            && request.identify(field, rules.config.trust.is_trusted(sender), rules.time.since_1970()).is_none()
        {
            return self.refuse(NO_MEMORY, transaction, rules);
        }
        if let Some(sampling) = rules.config.sampling
            && request.join_trace(sampling, rules.config.trust.is_trusted(sender)).is_none()
        {
            return self.refuse(NO_MEMORY, transaction, rules);
        }
        let framing = match admitted {
            Ok(()) => rules.protocol.framing(&request.bytes, &request.head, limits),
            Err(NotAdmitted::Malformed(refusal)) => Err(refusal),
            Err(NotAdmitted::NotTrusted(refusal)) => {
                let client = request.peer.client;
                let effects = self.refuse(refusal, transaction, rules);
                return effects.with(|rare| rare.not_trusted = Some((Untrusted::Packet, client)));
            }
        };
        request.framing = match framing {
            Ok(framing) => framing,
            Err(refusal) => return self.refuse(refusal, transaction, rules),
        };
        transaction.record.proxied = match request.framing.start {
            Some(start) if rules.config.trust.is_trusted(sender) => {
                waited(start.of(&request.bytes), rules.time.since_1970())
            }
            _ => None,
        };
        if request.framing.has_grip && !rules.believes_grip(sender) {
            let Request { bytes: all, head, .. } = request;
            head.fields.retain(|field| !is_of_grip(field.name.of(all)));
            request.framing.has_grip = false;
        }
        if request.framing.has_forwarded {
            let Request { bytes: all, head, peer, .. } = request;
            let client = peer.client;
            let what = match peer.take_fields(all, &mut head.fields, &rules.config.trust) {
                Ok(Fields::Believed) => return self.begin_admitted(transaction, bytes, at, more, rules),
                Ok(Fields::OthersRemoved(field)) => Untrusted::Field(field),
                Ok(Fields::Removed) if peer.is_named() => Untrusted::FieldsOfClient,
                Ok(Fields::Removed) => Untrusted::Fields,
                Err(refusal) => return self.refuse(refusal, transaction, rules),
            };
            let effects = self.begin_admitted(transaction, bytes, at, more, rules);
            return effects.with(|rare| rare.not_trusted = Some((what, client)));
        }
        self.begin_admitted(transaction, bytes, at, more, rules)
    }

    /// The head is valid, and the client is known.
    #[inline]
    fn begin_admitted(
        &mut self,
        mut transaction: Box<Transaction>,
        bytes: &[u8],
        at: usize,
        more: bool,
        rules: &Rules<'_>,
    ) -> Effects {
        let limits = &rules.config.limits;
        let request = &mut transaction.request;
        transaction.facts = rules.protocol.facts(&request.bytes, &request.head, &request.framing);
        let expected = match request.framing.body {
            BodyLength::None | BodyLength::Known(0) => return self.complete(transaction, &bytes[at..], more, rules),
            BodyLength::Known(length) => Some(length),
            BodyLength::Chunked => None,
        };
        let came = &bytes[at..];
        let continue_due = request.framing.expects_continue && came.is_empty();
        let has_come = expected.is_some_and(|length| length <= came.len() as u64);
        let publishes = rules.config.listener(rules.peer.listener).publishes;
        if rules.config.stream_body && !publishes && !has_come {
            if !came.is_empty() && !rules.has_room_for(came.len()) {
                return self.refuse(NO_MEMORY, transaction, rules);
            }
            let decoder = BodyDecoder::new(request.framing.body, limits.body);
            let incoming = Incoming::new(decoder, came, continue_due, rules.memory);
            let Some(incoming) = incoming.map(Arc::new) else { return self.refuse(NO_MEMORY, transaction, rules) };
            transaction.request.body = RequestBody::Stream(BodyStream(incoming.clone()));
            transaction.incoming = Some(incoming);
            return self.complete(transaction, &[], more, rules);
        }
        let decoder = BodyDecoder::new(request.framing.body, limits.body);
        let now = rules.now();
        *self = Self::Body(Box::new(Upload {
            transaction,
            decoder,
            spool: Spool::new(expected, rules.memory),
            began: now,
            since: now,
            received: 0,
            received_before: 0,
            low_water: 1,
            late: NEVER,
        }));
        let effects = self.take_body(bytes, at, Appended::Some, more, rules);
        if continue_due { effects.with_continue() } else { effects }
    }

    /// Fewer bytes need not be an event.
    pub(crate) fn low_water(&self) -> u32 {
        if let Self::Body(upload) = self { upload.low_water } else { 1 }
    }

    /// Room for bytes that are part of a large body whatever they are: they may be received into it, without a copy;
    /// [`Event::Filled`] follows.
    pub(crate) fn body_room(&mut self) -> Option<&mut [u8]> {
        let Self::Body(upload) = self else { return None };
        // A shorter rest, or chunk, is received together with what follows it.
        let most = upload.decoder.data_ahead();
        if most < LEAST_ROOM {
            return None;
        }
        let room = upload.spool.room()?;
        let most = usize::try_from(most).map_or(room.len(), |most| most.min(room.len()));
        room.get_mut(..most)
    }

    fn take_filled(&mut self, count: usize, more: bool, rules: &Rules<'_>) -> Effects {
        let Self::Body(upload) = self else { return Effects::of(Next::Read) };
        let filled = upload.spool.filled(count);
        upload.received += filled.len() as u64;
        // All of it is data, since the room is no longer than that.
        let _ = upload.decoder.decode(filled);
        let appended = upload.spool.appended(rules.spool_limits(rules.memory.has_room(0)));
        self.take_body(&[], 0, appended, more, rules)
    }

    /// Takes `bytes[at..]`. `appended`: what became of bytes that were received before them.
    fn take_body(&mut self, bytes: &[u8], mut at: usize, appended: Appended, more: bool, rules: &Rules<'_>) -> Effects {
        let mut is_much = appended == Appended::Much;
        let refusal = loop {
            let Self::Body(upload) = self else { return Effects::of(Next::Read) };
            match upload.decoder.decode(&bytes[at..]) {
                BodyStep::Data { consumed, data } => {
                    let data = &bytes[at..][data];
                    if upload.spool.is_small_with(data.len()) && !rules.has_room_for(data.len()) {
                        break NO_MEMORY;
                    }
                    match upload.spool.append(data, rules.spool_limits(rules.memory.has_room(data.len()))) {
                        Appended::Some => {}
                        Appended::Much => is_much = true,
                        Appended::NoMemory => break NO_MEMORY,
                    }
                    upload.received += data.len() as u64;
                    at += consumed;
                }
                BodyStep::NeedMore { .. } if is_much => return self.store(None, rules),
                BodyStep::NeedMore { .. } => {
                    if !rules.hold(&mut upload.transaction, 0) {
                        break NO_MEMORY;
                    }
                    upload.low_water = 1;
                    upload.late = upload.deadline(rules);
                    return Effects::of(Next::Read).at(upload.late);
                }
                BodyStep::Done { consumed } if upload.spool.is_in_file() => {
                    let ahead = Pipelined::of(&bytes[at + consumed..], more, rules.memory);
                    return self.store(Some(ahead), rules);
                }
                BodyStep::Done { consumed } => {
                    let Self::Body(upload) = std::mem::replace(self, Self::Idle) else {
                        return Effects::of(Next::Read);
                    };
                    let Upload { mut transaction, spool, .. } = *upload;
                    transaction.request.body = spool.finish();
                    return self.complete(transaction, &bytes[at + consumed..], more, rules);
                }
                BodyStep::Refused(refusal) => break refusal,
            }
        };
        match self.take_unfinished() {
            Some((transaction, _)) => self.refuse(refusal, transaction, rules),
            None => Effects::of(Next::Read),
        }
    }

    /// The socket is empty. A draining server waits only briefly for requests that have not begun.
    fn read_all(&mut self, rules: &Rules<'_>) -> Effects {
        match self {
            Self::Body(upload) => {
                if upload.spool.must_write_now() {
                    return self.store(None, rules);
                }
                upload.wait_for_more(rules)
            }
            Self::Flushing(flushing) => {
                flushing.ahead.unread = false;
                Effects::of(Next::Rest)
            }
            Self::Closing => Effects::of(Next::Close),
            Self::Idle | Self::Skipping(_) if rules.is_stopping => {
                Effects::of(Next::Rest).at(rules.after(NEXT_REQUEST).max(rules.first_request_by))
            }
            _ => Effects::of(Next::Rest),
        }
    }

    /// The request is complete; `rest` follows it.
    fn complete(&mut self, transaction: Box<Transaction>, rest: &[u8], more: bool, rules: &Rules<'_>) -> Effects {
        self.run(transaction, Pipelined::of(rest, more, rules.memory), rules)
    }

    fn run(&mut self, mut transaction: Box<Transaction>, ahead: Pipelined, rules: &Rules<'_>) -> Effects {
        if transaction.is_large() && !rules.hold(&mut transaction, 0) {
            return self.refuse(NO_MEMORY, transaction, rules);
        }
        if ahead.is_lost {
            // The connection closes after this response, and the client sends the lost requests again on another one
            // (RFC 9112 section 9.3.2).
            transaction.facts.keep_alive = false;
        }
        transaction.record = Record { proxied: transaction.record.proxied, ..Record::new(rules.time.moment()) };
        *self = Self::Responding(ahead);
        Effects::of(Next::Run(transaction)).at(NEVER)
    }
}

impl Upload {
    fn unfinished(&self) -> Unfinished {
        Unfinished {
            is_request: true,
            is_in_file: self.spool.is_in_file(),
            since: self.began,
            memory: self.transaction.charged() + self.spool.charged(),
            stored: self.spool.stored(),
        }
    }

    /// The time by which the client must send more of the body.
    fn deadline(&self, rules: &Rules<'_>) -> Millis {
        let pause = millis(rules.config.body_timeout);
        within_rate(rules.now(), self.since, pause, self.received, rules.config.min_rate)
    }

    /// The socket is empty. The next event of a quick client is many bytes, or the time to look for fewer.
    fn wait_for_more(&mut self, rules: &Rules<'_>) -> Effects {
        let count = self.received - self.received_before;
        self.received_before = self.received;
        if count < QUICK || self.decoder.data_ahead() < LONG_REST {
            return Effects::of(Next::Rest);
        }
        self.low_water = LOW_WATER;
        Effects::of(Next::Rest).at(self.late.min(rules.after(LOOK)))
    }

    /// The deadline has passed. True: not that of the client; fewer bytes than were waited for are read now.
    fn looks_for_fewer(&mut self) -> bool {
        std::mem::replace(&mut self.low_water, 1) > 1
    }
}

/// Bodies in files.
impl ConnectionState {
    /// Has a part of the body written to its file. `ahead`: the bytes after the body, if this is its last part. The
    /// client has no deadline meanwhile.
    fn store(&mut self, ahead: Option<Pipelined>, rules: &Rules<'_>) -> Effects {
        let Self::Body(mut upload) = std::mem::replace(self, Self::Idle) else { return Effects::of(Next::Rest) };
        let write = upload.spool.take_write(ahead.is_some());
        *self = Self::Storing(Box::new(Storing { upload, ahead, since: rules.now(), result: None }));
        Effects::of(Next::Store(Box::new(write))).at(NEVER)
    }

    /// Notes the result of a write of the body. Called by the thread that has written; the owner then reports
    /// [`Event::Written`].
    pub(crate) fn set_write_result(&mut self, result: Result<Written, NotWritten>) {
        if let Self::Storing(storing) = self {
            storing.result = Some(result);
        }
    }

    /// The write that owned the connection is done: receives more of the body, or queues the request.
    fn end_store(&mut self, rules: &Rules<'_>) -> Effects {
        let Self::Storing(storing) = self else { return Effects::default() };
        let Some(result) = storing.result.take() else { return Effects::default() };
        let Self::Storing(storing) = std::mem::replace(self, Self::Idle) else { return Effects::default() };
        let Storing { mut upload, ahead, since, .. } = *storing;
        match result {
            Ok(written) => upload.spool.put_back(written),
            Err(NotWritten::NoRoom) => return self.refuse(NO_ROOM_ON_DISK, upload.transaction, rules),
            Err(NotWritten::Disk(fault)) => {
                let refusal = Refusal::new(507, "The server cannot store the request body.");
                let effects = self.refuse(refusal, upload.transaction, rules);
                let folder = rules.folder.display();
                let message = format!("cannot store a request body in {folder}: {fault}");
                return effects.with(|rare| rare.log = Some(message));
            }
        }
        if let Some(ahead) = ahead {
            let Upload { mut transaction, spool, .. } = *upload;
            transaction.request.body = spool.finish();
            // The event of bytes that came during the write may be used up.
            return self.run(transaction, Pipelined { unread: true, ..ahead }, rules);
        }
        upload.since += rules.now().saturating_sub(since);
        let late = upload.deadline(rules);
        upload.late = late;
        *self = Self::Body(upload);
        Effects::of(Next::Read).at(late)
    }
}

/// Refusing and expiring.
impl ConnectionState {
    /// Sends an error page and ends the connection after the client has had time to read it.
    fn refuse(&mut self, refusal: Refusal, mut transaction: Box<Transaction>, rules: &Rules<'_>) -> Effects {
        let facts = rules.protocol.facts_of_refused(&transaction.request.bytes, &transaction.request.head);
        let body_bytes = encode::error_page_length(refusal.status, refusal.reason, facts);
        transaction.record_refusal(refusal.status, body_bytes, rules.time.moment());
        *self = Self::Flushing(Box::new(Flushing {
            then: AfterResponse::Linger,
            ahead: Pipelined::unread(),
            unread_body: None,
            dropping_since: None,
            dropped: 0,
            transaction: Some(transaction),
        }));
        Effects::of(Next::Flush).with(|rare| {
            *rare =
                RareEffects { send: Some(Message::Page(refusal, facts)), is_refusal: true, ..RareEffects::default() }
        })
    }

    fn expire(&mut self, rules: &Rules<'_>) -> Effects {
        if let Self::Body(upload) = self
            && upload.looks_for_fewer()
        {
            return Effects::of(Next::Read).at(upload.late);
        }
        if let Some((transaction, part)) = self.take_unfinished() {
            return self.refuse(part.late(), transaction, rules);
        }
        match self {
            Self::Flushing(flushing) => {
                let account = flushing.transaction.take().map(|mut transaction| {
                    transaction.record.set_broken(Ending::ClientDisconnected);
                    transaction
                });
                Effects::of(Next::Close).accounting(account)
            }
            Self::Responding(_) | Self::Storing(_) => Effects::of(Next::Rest),
            _ => Effects::of(Next::Close),
        }
    }
}

/// The response.
impl ConnectionState {
    /// The response is complete. `rest`: what is left of a streamed request body.
    fn drain(
        &mut self,
        then: AfterResponse,
        transaction: Box<Transaction>,
        rest: Option<Rest>,
        rules: &Rules<'_>,
    ) -> Flushing {
        let (ahead, is_logged) = match self {
            Self::Responding(ahead) => (std::mem::take(ahead), false),
            // The server has ended, and accounted for the request then.
            _ => (Pipelined::default(), true),
        };
        let (bytes, unread_body) = match rest {
            None => (None, None),
            Some(Rest::Complete(bytes)) => (Some(bytes), None),
            Some(Rest::Unread(decoder, bytes)) => (Some(bytes), Some(decoder)),
        };
        let ahead = bytes.map_or(ahead, |bytes| Pipelined::taken(bytes, true, rules.memory));
        Flushing {
            then,
            ahead,
            unread_body,
            dropping_since: None,
            dropped: 0,
            transaction: (!is_logged).then_some(transaction),
        }
    }

    /// True while the socket may contain bytes whose event has already been used up.
    pub(crate) fn has_unread(&self) -> bool {
        matches!(self, Self::Flushing(flushing) if flushing.ahead.unread)
    }

    /// True when the client has sent more than the request of the response that is being flushed.
    pub(crate) fn has_more_requests(&self) -> bool {
        matches!(self, Self::Flushing(flushing) if flushing.ahead.unread || !flushing.ahead.bytes.is_empty())
    }

    /// What the client has sent behind the request that is being answered.
    pub(crate) fn pipelined(&mut self) -> Option<&mut Pipelined> {
        if let Self::Responding(pipelined) = self { Some(pipelined) } else { None }
    }

    /// Notes in the record for how long the response that is being flushed was held.
    pub(crate) fn note_held(&mut self, now: Instant) {
        if let Self::Flushing(flushing) = self
            && let Some(Transaction { record, .. }) = flushing.transaction.as_deref_mut()
            && let Some(finished) = record.finished
        {
            record.held = now.saturating_duration_since(finished);
        }
    }

    fn flushed(&mut self, flush: Flush, rules: &Rules<'_>) -> Effects {
        let Self::Flushing(flushing) = self else { return Effects::of(Next::Read) };
        let broken = match flush {
            Flush::Blocked => {
                // The client may take long to read the response.
                if let Some(transaction) = &mut flushing.transaction {
                    transaction.charge(rules.memory);
                }
                return flushing.drop_body(rules.memory);
            }
            Flush::More => return Effects::of(Next::Later),
            Flush::Elsewhere => return Effects::of(Next::Rest),
            Flush::Empty => None,
            Flush::Broken => Some(Ending::ClientDisconnected),
            Flush::Short(_) => Some(Ending::Broken),
        };
        let Self::Flushing(flushing) = std::mem::replace(self, Self::Idle) else { return Effects::of(Next::Rest) };
        let effects = self.end_response(*flushing, broken, rules);
        let Flush::Short(missing) = flush else { return effects };
        let message = format!(
            "a file shrank or was changed while it was sent: {missing} bytes are missing; the connection was broken"
        );
        effects.with(|rare| rare.log = Some(message))
    }

    /// The response has been sent, or, with `broken`, never will be.
    fn end_response(&mut self, flushing: Flushing, broken: Option<Ending>, rules: &Rules<'_>) -> Effects {
        *self = Self::Idle;
        let Flushing { then, ahead, unread_body, transaction, .. } = flushing;
        let account = transaction.map(|mut transaction| {
            if let Some(reason) = broken {
                transaction.record.set_broken(reason);
            }
            transaction
        });
        if broken.is_some() {
            return Effects::of(Next::Close).accounting(account);
        }
        let (came, unread) = ahead.take();
        match then {
            AfterResponse::Reset => {
                Effects::of(Next::Close).accounting(account).with(|rare| rare.shutdown = Some(Shutdown::Reset))
            }
            AfterResponse::Moved => Effects::of(Next::Close).accounting(account),
            AfterResponse::Linger | AfterResponse::Close => {
                let is_at_end = then == AfterResponse::Close && came.is_empty() && unread_body.is_none();
                let effects = if is_at_end {
                    *self = Self::Closing;
                    Effects::of(Next::Read)
                } else {
                    self.linger(rules)
                };
                effects.accounting(account).with(|rare| rare.shutdown = Some(Shutdown::EndSending))
            }
            AfterResponse::Keep => {
                let time = if let Some(decoder) = unread_body {
                    *self = Self::Skipping(Box::new(decoder));
                    rules.config.body_timeout
                } else {
                    rules.config.keepalive_timeout
                };
                let deadline = rules.after(millis(time));
                let mut effects = Effects::of(Next::Read);
                if !came.is_empty() {
                    effects = self.receive(&came, unread, rules);
                }
                if matches!(effects.next, Next::Read) && !unread {
                    let rest = self.read_all(rules);
                    effects = Effects { deadline: rest.deadline.or(effects.deadline), next: rest.next, ..effects };
                }
                Effects { account, deadline: effects.deadline.or(Some(deadline)), ..effects }
            }
        }
    }
}

impl ConnectionState {
    /// If bytes of the client stayed unread, the close would be a reset, and the client could lose the response.
    fn linger(&mut self, rules: &Rules<'_>) -> Effects {
        *self = Self::Lingering(rules.after(LINGER_IN_ALL));
        Effects::of(Next::Read).at(rules.after(LINGER))
    }
}

impl Flushing {
    /// Drops bytes that were received before the response has been sent, up to the end of the request body. Bytes after
    /// that are kept for the next request.
    fn skip_body(&mut self, bytes: &[u8], memory: &ClientMemory) {
        let Some(decoder) = &mut self.unread_body else { return };
        match decoder.skip(bytes) {
            BodyStep::Done { consumed } => {
                self.unread_body = None;
                self.ahead = Pipelined::of(&bytes[consumed..], self.ahead.unread, memory);
                if self.ahead.is_lost {
                    self.then = AfterResponse::Linger;
                }
            }
            BodyStep::Refused(_) => {
                self.unread_body = None;
                self.then = AfterResponse::Linger;
            }
            BodyStep::NeedMore { .. } | BodyStep::Data { .. } => {}
        }
    }

    /// The client does not read the response. It may first want to send all of the request body, which the application
    /// did not read: the body is read and dropped, so that the client comes to read the response.
    fn drop_body(&mut self, memory: &ClientMemory) -> Effects {
        if self.unread_body.is_none() || !self.ahead.unread {
            return Effects::of(Next::Rest);
        }
        let came = std::mem::take(&mut self.ahead).bytes;
        self.ahead.unread = true;
        self.skip_body(&came, memory);
        Effects::of(if self.unread_body.is_some() { Next::Read } else { Next::Rest })
    }
}

/// Queries.
impl ConnectionState {
    /// True while a write of the body owns the connection.
    pub(crate) fn is_storing(&self) -> bool {
        matches!(self, Self::Storing(_))
    }

    /// The refused request: the head of its error page is built in the transaction, for the access log.
    pub(crate) fn refused(&mut self) -> Option<&mut Transaction> {
        let Self::Flushing(flushing) = self else { return None };
        flushing.transaction.as_deref_mut()
    }

    pub(crate) fn is_flushing(&self) -> bool {
        matches!(self, Self::Flushing(_))
    }

    /// How the connection is idle, if it is.
    pub(crate) fn idleness(&self) -> Option<Idleness> {
        match self {
            Self::Idle => Some(Idleness::Silent),
            Self::Head(_) => Some(Idleness::HalfHead),
            _ => None,
        }
    }

    /// What goes on, for the statistics.
    pub(crate) fn activity(&self) -> Activity {
        match self {
            Self::Idle => Activity::Idle,
            Self::Head(_) | Self::Body(_) | Self::Storing(_) | Self::Skipping(_) => Activity::Receiving,
            Self::Responding(_) => Activity::Responding,
            Self::Flushing(_) => Activity::Flushing,
            Self::Closing | Self::Lingering(_) | Self::Closed => Activity::Closing,
        }
    }

    /// The incomplete request, if there is one.
    pub(crate) fn unfinished(&self) -> Option<Unfinished> {
        match self {
            Self::Head(heading) if heading.has_started => Some(Unfinished {
                is_request: true,
                is_in_file: false,
                since: heading.since,
                memory: heading.transaction.charged(),
                stored: 0,
            }),
            Self::Body(upload) => Some(upload.unfinished()),
            _ => None,
        }
    }

    /// When the body began that is being written to a file.
    pub(crate) fn storing_since(&self) -> Option<Millis> {
        if let Self::Storing(storing) = self { Some(storing.upload.began) } else { None }
    }

    /// Takes out the incomplete request, if there is one.
    fn take_unfinished(&mut self) -> Option<(Box<Transaction>, Part)> {
        match std::mem::replace(self, Self::Idle) {
            Self::Head(heading) if heading.has_started => Some((heading.transaction, Part::Head)),
            Self::Body(upload) => Some((upload.transaction, Part::Body)),
            other => {
                *self = other;
                None
            }
        }
    }

    /// Takes out the request that has to be accounted for, on a connection that is aborted because the server ends.
    pub(crate) fn take_left_over(&mut self) -> LeftOver {
        match self {
            Self::Flushing(flushing) => match flushing.transaction.take() {
                Some(transaction) => LeftOver::Here { transaction, is_complete: true },
                None => LeftOver::Nothing,
            },
            Self::Responding(_) => {
                // If the runner returns, it finds this state, and the request is not accounted for twice.
                *self = Self::Closed;
                LeftOver::WithRunner
            }
            Self::Body(_) => match self.take_unfinished() {
                Some((transaction, _)) => LeftOver::Here { transaction, is_complete: false },
                None => LeftOver::Nothing,
            },
            Self::Storing(_) => match std::mem::replace(self, Self::Closed) {
                Self::Storing(storing) => {
                    LeftOver::Here { transaction: storing.upload.transaction, is_complete: false }
                }
                _ => LeftOver::Nothing,
            },
            _ => LeftOver::Nothing,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
