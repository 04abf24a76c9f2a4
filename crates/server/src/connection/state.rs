//! The states of a connection, and what each event means in them.
//!
//! [`State::step`] changes the state and answers what is to be done ([`Effects`]). It knows no socket, no loop, no
//! clock and no lock: bytes, moments and limits are arguments, and tests give it any order of events. Runs on the
//! thread that owns the connection.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tailrace_http::body::{BodyDecoder, BodyStep};
use tailrace_http::encode::ResponseHead;
use tailrace_http::framing::{BodyLength, RequestFacts};
use tailrace_http::head::{HeadParser, HeadStep};
use tailrace_http::limits::Refusal;

use crate::config::Config;
use crate::connection::spares;
use crate::connection::transaction::Transaction;
use crate::observe::record::{Ending, Record};
use crate::os::clock::{Millis, NEVER, Reading, millis};
use crate::request::memory::{Charge, ClientMemory};
use crate::request::part::Part;
use crate::request::protocol::Protocol;
use crate::request::spool::{self, Appended, Spool, Write, Written};
use crate::request::stream::{BodyStream, Incoming, Rest};
use crate::request::{Endpoints, Request, RequestBody};
use crate::response::sending::{Flush, within_rate};

/// After an error the client's remaining bytes are read and dropped for this long without progress (milliseconds).
const LINGER: Millis = 2_000;
/// And so long in all (milliseconds).
const LINGER_IN_ALL: Millis = 30_000;
/// How long a draining server waits for the next request of a connection that has carried one (milliseconds). Its
/// client sends that again on another connection if this one closes (RFC 9112 section 9.3.1).
const NEXT_REQUEST: Millis = 250;
/// How long it waits for the first one, counted from when the connection was accepted (milliseconds): TCP sends a lost
/// segment again after 1 s, and then after 2 s. A client that has sent nothing for longer, such as a browser that has
/// connected in advance, does not mean to send at once, and is not to hold a stop up for more than that.
pub(crate) const FIRST_REQUEST: Millis = 5_000;

const NO_MEMORY: Refusal = Refusal::new(503, "The server has no memory left for this request.");

/// What follows when the client has received the whole response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterResponse {
    /// The next request.
    Keep,
    /// The end of the connection.
    Close,
    /// The end, and unread bytes of the client are awaited so that it can read the response.
    Linger,
    /// The end by a reset: the body had no other way to be seen as broken.
    Reset,
}

/// Bytes of the client that were received behind its request (pipelining, RFC 9112 section 9.3.2).
#[derive(Default)]
pub(crate) struct Pipelined {
    bytes: Vec<u8>,
    /// There may be more in the socket, of which no event will be reported.
    unread: bool,
    /// Bytes came for which there was no memory: nothing can be made of what follows.
    is_lost: bool,
    /// For the bytes; to be dropped with them.
    _charge: Charge,
}

impl Pipelined {
    /// A copy of these bytes, if there is memory for it.
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

    /// These bytes.
    fn taken(bytes: Vec<u8>, unread: bool, memory: &ClientMemory) -> Self {
        let mut charge = Charge::default();
        if bytes.capacity() > 0 {
            charge.set_in(&memory.requests, bytes.capacity());
        }
        Self { bytes, unread, is_lost: false, _charge: charge }
    }

    /// The bytes, which are not charged any more, and whether there may be more.
    fn take(self) -> (Vec<u8>, bool) {
        (self.bytes, self.unread)
    }

    /// No bytes, but some may be in the socket.
    fn unread() -> Self {
        Self { unread: true, ..Self::default() }
    }
}

/// A request head that has come in part.
pub(crate) struct Heading {
    transaction: Box<Transaction>,
    parser: HeadParser,
    /// When its first bytes came.
    since: Millis,
}

/// A request whose body is on its way.
pub(crate) struct Upload {
    transaction: Box<Transaction>,
    decoder: BodyDecoder,
    spool: Spool,
    /// When the head was complete, and the body bytes that have come since.
    since: Millis,
    received: u64,
}

/// A request of whose body a part is being written to its file.
pub(crate) struct Storing {
    upload: Box<Upload>,
    /// What follows the body, if this is its last write.
    ahead: Option<Pipelined>,
    since: Millis,
    /// `None` while the write is under way.
    result: Option<io::Result<Written>>,
}

/// A response that the client has not taken whole.
pub(crate) struct Draining {
    then: AfterResponse,
    ahead: Pipelined,
    /// The body has not been read to its end, which this decoder will know.
    unread_body: Option<BodyDecoder>,
    /// So many bytes of it have been dropped while the client did not take the response, and since when.
    dropped: u64,
    dropping_since: Option<Millis>,
    /// For the log. `None`: it has been logged.
    transaction: Option<Box<Transaction>>,
}

/// See the module.
pub(crate) enum State {
    /// Between two requests, or before the first.
    Idle,
    /// In the middle of a request head.
    Head(Box<Heading>),
    /// In the middle of a request body.
    Body(Box<Upload>),
    /// A write of the body owns the connection: nothing is read from the socket meanwhile, so the client waits.
    Storing(Box<Storing>),
    /// A request is queued or with the application, whose exchange owns the connection.
    Responding(Pipelined),
    /// All of the response has been given; the client has yet to take it.
    Draining(Box<Draining>),
    /// Reads and drops the rest of a body that the application did not want, before the next request.
    Skipping(Box<BodyDecoder>),
    /// The response has left and our direction is ended: what the client still sends is dropped, until this time at
    /// most.
    Lingering(Millis),
    /// Nothing follows.
    Closed,
}

/// What happens to a connection.
pub(crate) enum Event<'a> {
    /// Bytes of the client have come. `more`: there may be more in the socket that no event will tell of.
    Received { bytes: &'a [u8], more: bool },
    /// There is nothing more to read now.
    ReadAll,
    /// The client has ended its direction.
    EndOfInput,
    /// Reading has found the connection broken.
    Lost,
    /// Something may be there to be read that is not read now.
    Readable,
    /// The deadline of the connection has come.
    Expired,
    /// The place of an idle connection is needed for a new client. All that its client has sent has been read.
    Unwanted,
    /// The memory of a request that is not complete is needed.
    GivenUp(Refusal),
    /// A write of the body is done: [`State::set_write_result`] has its result.
    Written,
    /// The application has given all of its response.
    /// `is_sent`: the client has taken all of it.
    Responded { then: AfterResponse, transaction: Box<Transaction>, rest: Option<Rest>, is_sent: bool },
    /// What sending the response came to.
    Flushed(Flush),
}

/// What the owner does next.
#[derive(Default)]
pub(crate) enum Next {
    /// Let go until the next event.
    #[default]
    Rest,
    /// Read what the client has sent; [`Event::Received`] and others follow.
    Read,
    /// Send what waits; [`Event::Flushed`] follows.
    Flush,
    /// Queue the request; ownership goes with it.
    Run(Box<Transaction>),
    /// Write this to the body's file; ownership goes with it.
    Store(Box<Write>),
    /// Go on after the events of other connections: there is more to do.
    Later,
    /// Close.
    Close,
}

/// Bytes of the server's own.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// `100 Continue`, for a client that waits for it before it sends its body.
    Continue,
    /// A page that tells an error.
    Page(Vec<u8>),
}

/// How our direction of the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shutdown {
    /// The client reads end-of-file after the last byte.
    EndSending,
    /// The close will be a reset.
    Reset,
}

/// What is to be done, in this order: `rare` but for its `send`, the account, the deadline, `send`, what is next.
#[derive(Default)]
pub(crate) struct Effects {
    /// Effects that few steps have, in a box, so that the others cost nothing to pass on.
    pub(crate) rare: Option<Box<Rare>>,
    /// The response to this request has left, or never will.
    pub(crate) account: Option<Box<Transaction>>,
    /// The connection has this deadline; [`NEVER`]: none.
    pub(crate) deadline: Option<Millis>,
    pub(crate) next: Next,
}

/// Effects that few steps have. They take place in this order, but for `send`, which follows the account and the
/// deadline.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Rare {
    /// This goes to the error log.
    pub(crate) log: Option<String>,
    pub(crate) shutdown: Option<Shutdown>,
    /// The server itself has refused a request.
    pub(crate) is_refusal: bool,
    /// These bytes are queued for the client. Of a page, [`Next::Flush`] follows.
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
    fn with(mut self, add: impl FnOnce(&mut Rare)) -> Self {
        add(self.rare.get_or_insert_default());
        self
    }

    /// Adds the account.
    fn accounting(mut self, account: Option<Box<Transaction>>) -> Self {
        self.account = account;
        self
    }
}

/// Makes an error page, and answers it and the length of its body. The head is where that of the page is made.
pub(crate) type MakePage<'a> = dyn Fn(&mut ResponseHead, &Refusal, RequestFacts) -> (Vec<u8>, u64) + 'a;

/// What a step depends on besides the state and the event.
pub(crate) struct Rules<'a> {
    /// What the bytes of the client mean.
    pub(crate) protocol: &'a dyn Protocol,
    pub(crate) config: &'a Config,
    pub(crate) memory: &'a ClientMemory,
    /// Makes sure that there is room for so many bytes, if need be at the expense of others. False: there is none.
    pub(crate) make_room: &'a dyn Fn(usize) -> bool,
    pub(crate) page: &'a MakePage<'a>,
    /// Where request bodies are stored.
    pub(crate) folder: &'a Path,
    pub(crate) endpoints: Endpoints,
    /// The server is to stop: responses end their connections.
    pub(crate) is_stopping: bool,
    /// Until when a server that is to stop waits for the first request of the connection; 0: it has carried one.
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

    /// Charges a request that is kept while the thread goes on to other connections, once there is room for it and so
    /// many bytes more. False: there is none.
    fn hold(&self, transaction: &mut Transaction, more: usize) -> bool {
        let missing = transaction.held().saturating_sub(transaction.charged()) + more;
        if missing > 0 && !(self.make_room)(missing) {
            return false;
        }
        transaction.charge(self.memory);
        true
    }

    /// `has_room`: there is memory beside that of other bodies.
    fn spool_limits(&self, has_room: bool) -> spool::Limits {
        spool::Limits { one: self.config.body_memory, all: if has_room { self.config.body_buffer } else { 0 } }
    }
}

/// How a connection is idle; the first is the first to be closed when there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Idleness {
    /// Between two requests, or before the first.
    Silent,
    /// In the middle of a request head.
    HalfHead,
}

/// A request that is not complete, in the order in which such are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Unfinished {
    /// Its body goes to a file: little of it is in memory, and much work may be in it.
    is_in_file: bool,
    since: Millis,
    /// The memory that it holds.
    pub(crate) memory: usize,
}

/// What is left of a request when the server ends.
pub(crate) enum LeftOver {
    /// Nothing, or it is in the log.
    Nothing,
    /// The transaction is there. `is_complete`: its record has begun.
    Here { transaction: Box<Transaction>, is_complete: bool },
    /// A thread or a greenlet has it, and may never come back.
    WithRunner,
}

impl State {
    /// What the event means in this state.
    pub(crate) fn step(&mut self, event: Event<'_>, rules: &Rules<'_>) -> Effects {
        match event {
            Event::Received { bytes, more } => self.receive(bytes, more, rules),
            Event::ReadAll => self.read_all(rules),
            Event::EndOfInput | Event::Lost if matches!(self, Self::Draining(_)) => {
                // It shows again when the response has left.
                Effects::of(Next::Rest)
            }
            Event::EndOfInput => match self.take_unfinished() {
                Some((transaction, part)) => self.refuse(part.cut_short(), transaction, rules),
                None => Effects::of(Next::Close),
            },
            Event::Lost => Effects::of(Next::Close),
            Event::Readable => {
                // What the client sends meanwhile makes no second event.
                if let Self::Draining(draining) = self {
                    draining.ahead.unread = true;
                }
                Effects::default()
            }
            Event::Expired => self.expire(rules),
            Event::Unwanted => match self {
                Self::Idle | Self::Head(_) => Effects::of(Next::Close),
                _ => Effects::of(Next::Rest),
            },
            Event::GivenUp(refusal) => match self.take_unfinished() {
                None => Effects::of(Next::Rest),
                Some((transaction, _)) => {
                    let mut effects = self.refuse(refusal, transaction, rules);
                    if let Self::Draining(draining) = self {
                        effects.account = draining.transaction.take();
                    }
                    // The thread that gives up may be in the middle of reading for another connection.
                    effects.next = Next::Later;
                    effects
                }
            },
            Event::Written => self.end_store(rules),
            Event::Responded { then, transaction, rest, is_sent } => {
                let draining = self.drain(then, transaction, rest, rules);
                if is_sent {
                    return self.end_response(draining, None, rules);
                }
                *self = Self::Draining(Box::new(draining));
                Effects::of(Next::Flush)
            }
            Event::Flushed(flush) => self.flushed(flush, rules),
        }
    }
}

/// Reading.
impl State {
    fn receive(&mut self, bytes: &[u8], more: bool, rules: &Rules<'_>) -> Effects {
        match self {
            Self::Idle => self.begin_head(bytes, more, rules),
            Self::Head(_) => self.go_on_with_head(bytes, more, rules),
            Self::Body(_) => self.take_body(bytes, 0, more, rules),
            Self::Skipping(decoder) => match decoder.skip(bytes) {
                BodyStep::Done { consumed } => {
                    *self = Self::Idle;
                    let idle = rules.after(millis(rules.config.idle_timeout));
                    if consumed == bytes.len() {
                        return Effects::of(Next::Read).at(idle);
                    }
                    let effects = self.receive(&bytes[consumed..], more, rules);
                    Effects { deadline: effects.deadline.or(Some(idle)), ..effects }
                }
                // They leave no way to tell where the next request begins.
                BodyStep::Refused(_) => Effects::of(Next::Close),
                BodyStep::NeedMore { .. } | BodyStep::Data { .. } => Effects::of(Next::Read),
            },
            Self::Lingering(until) => {
                let left = until.saturating_sub(rules.now());
                Effects::of(Next::Read).at(rules.after(LINGER.min(left)))
            }
            Self::Draining(draining) => {
                draining.pass_over(bytes, rules.memory);
                draining.dropped += bytes.len() as u64;
                let since = *draining.dropping_since.get_or_insert(rules.now());
                // It is not idle: it will take the response when it has sent its body.
                let (pause, rate) = (millis(rules.config.write_timeout), rules.config.min_body_rate);
                let next = if draining.unread_body.is_some() { Next::Read } else { Next::Rest };
                Effects::of(next).at(within_rate(rules.now(), since, pause, draining.dropped, rate))
            }
            Self::Storing(_) | Self::Responding(_) | Self::Closed => Effects::of(Next::Read),
        }
    }

    /// The first bytes of a request.
    fn begin_head(&mut self, bytes: &[u8], more: bool, rules: &Rules<'_>) -> Effects {
        let mut transaction = spares::take();
        let mut parser = HeadParser::default();
        let head = &mut transaction.request.head;
        match rules.protocol.parse_head(&mut parser, bytes, &rules.config.limits, head) {
            HeadStep::NeedMore => {
                if !rules.hold(&mut transaction, bytes.len()) || !transaction.append(bytes) {
                    return self.refuse(NO_MEMORY, transaction, rules);
                }
                transaction.charge(rules.memory);
                *self = Self::Head(Box::new(Heading { transaction, parser, since: rules.now() }));
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
                // Only for the log, and for whether there is a body to leave out of the answer.
                let _ = transaction.append(bytes);
                self.refuse(refusal, transaction, rules)
            }
        }
    }

    fn go_on_with_head(&mut self, bytes: &[u8], more: bool, rules: &Rules<'_>) -> Effects {
        let Self::Head(mut heading) = std::mem::replace(self, Self::Idle) else { return Effects::of(Next::Read) };
        let Heading { transaction, parser, .. } = &mut *heading;
        let before = transaction.request.bytes.len();
        if !rules.hold(transaction, bytes.len()) || !transaction.append(bytes) {
            return self.refuse(NO_MEMORY, heading.transaction, rules);
        }
        transaction.charge(rules.memory);
        let Request { bytes: all, head, .. } = &mut transaction.request;
        match rules.protocol.parse_head(parser, all, &rules.config.limits, head) {
            HeadStep::NeedMore => {
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

    /// The head is complete; `bytes[at..]` is what came after it.
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
        request.framing = match rules.protocol.framing(&request.bytes, &request.head, limits) {
            Ok(framing) => framing,
            Err(refusal) => return self.refuse(refusal, transaction, rules),
        };
        transaction.facts = rules.protocol.facts(&request.bytes, &request.head, &request.framing);
        let expected = match request.framing.body {
            BodyLength::None | BodyLength::Known(0) => return self.complete(transaction, &bytes[at..], more, rules),
            BodyLength::Known(length) => Some(length),
            BodyLength::Chunked => None,
        };
        let came = &bytes[at..];
        let continue_due = request.framing.expects_continue && came.is_empty();
        let has_come = expected.is_some_and(|length| length <= came.len() as u64);
        if rules.config.stream_body && !has_come {
            let decoder = rules.protocol.body(request.framing.body, limits.body);
            let has_room = came.is_empty() || (rules.make_room)(came.len());
            let incoming = Incoming::new(decoder, came, continue_due, rules.memory).filter(|_| has_room);
            let Some(incoming) = incoming.map(Arc::new) else { return self.refuse(NO_MEMORY, transaction, rules) };
            transaction.request.body = RequestBody::Stream(BodyStream(incoming.clone()));
            transaction.incoming = Some(incoming);
            return self.complete(transaction, &[], more, rules);
        }
        let decoder = rules.protocol.body(request.framing.body, limits.body);
        *self = Self::Body(Box::new(Upload {
            transaction,
            decoder,
            spool: Spool::new(expected, Charge::new(rules.memory.bodies.clone())),
            since: rules.now(),
            received: 0,
        }));
        let effects = self.take_body(bytes, at, more, rules);
        if !continue_due {
            return effects;
        }
        effects.with(|rare| {
            rare.send.get_or_insert(Message::Continue);
        })
    }

    fn take_body(&mut self, bytes: &[u8], mut at: usize, more: bool, rules: &Rules<'_>) -> Effects {
        let Self::Body(upload) = self else { return Effects::of(Next::Read) };
        let mut is_much = false;
        let refusal = loop {
            match upload.decoder.decode(&bytes[at..]) {
                BodyStep::Data { consumed, data } => {
                    let data = &bytes[at..][data];
                    if upload.spool.is_small_with(data.len()) && !(rules.make_room)(data.len()) {
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
                    let deadline = upload.deadline(rules);
                    return Effects::of(Next::Read).at(deadline);
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

    /// Nothing more to read now. A draining server does not wait long for requests that have not begun.
    fn read_all(&mut self, rules: &Rules<'_>) -> Effects {
        match self {
            Self::Body(upload) => {
                if upload.spool.pause() {
                    return self.store(None, rules);
                }
                Effects::of(Next::Rest)
            }
            Self::Draining(draining) => {
                draining.ahead.unread = false;
                Effects::of(Next::Rest)
            }
            Self::Idle | Self::Skipping(_) if rules.is_stopping => {
                Effects::of(Next::Rest).at(rules.after(NEXT_REQUEST).max(rules.first_request_by))
            }
            _ => Effects::of(Next::Rest),
        }
    }

    /// The request is complete; `rest` came after it.
    fn complete(&mut self, transaction: Box<Transaction>, rest: &[u8], more: bool, rules: &Rules<'_>) -> Effects {
        self.run(transaction, Pipelined::of(rest, more, rules.memory), rules)
    }

    fn run(&mut self, mut transaction: Box<Transaction>, ahead: Pipelined, rules: &Rules<'_>) -> Effects {
        if transaction.is_large() && !rules.hold(&mut transaction, 0) {
            return self.refuse(NO_MEMORY, transaction, rules);
        }
        if ahead.is_lost {
            // The client sends what was lost again on another connection (RFC 9112 section 9.3.2).
            transaction.facts.keep_alive = false;
        }
        transaction.request.endpoints = rules.endpoints;
        transaction.record = Record::new(rules.time.moment());
        *self = Self::Responding(ahead);
        Effects::of(Next::Run(transaction)).at(NEVER)
    }
}

impl Upload {
    /// By when the client must have sent more of the body.
    fn deadline(&self, rules: &Rules<'_>) -> Millis {
        let pause = millis(rules.config.body_timeout);
        within_rate(rules.now(), self.since, pause, self.received, rules.config.min_body_rate)
    }
}

/// Bodies in files.
impl State {
    /// Gives a part of the body to be written; `ahead` follows the body, if it is the last one. No time of the client's
    /// runs meanwhile.
    fn store(&mut self, ahead: Option<Pipelined>, rules: &Rules<'_>) -> Effects {
        let Self::Body(mut upload) = std::mem::replace(self, Self::Idle) else { return Effects::of(Next::Rest) };
        let write = upload.spool.take_write(ahead.is_some());
        *self = Self::Storing(Box::new(Storing { upload, ahead, since: rules.now(), result: None }));
        Effects::of(Next::Store(Box::new(write))).at(NEVER)
    }

    /// What a write of the body came to, from the thread that has written. [`Event::Written`] follows, from the owner.
    pub(crate) fn set_write_result(&mut self, result: io::Result<Written>) {
        if let Self::Storing(storing) = self {
            storing.result = Some(result);
        }
    }

    /// The write that owned the connection is done: the body goes on, or is complete.
    fn end_store(&mut self, rules: &Rules<'_>) -> Effects {
        let Self::Storing(storing) = self else { return Effects::default() };
        let Some(result) = storing.result.take() else { return Effects::default() };
        let Self::Storing(storing) = std::mem::replace(self, Self::Idle) else { return Effects::default() };
        let Storing { mut upload, ahead, since, .. } = *storing;
        match result {
            Ok(written) => upload.spool.put_back(written, rules.spool_limits(rules.memory.has_room(0))),
            Err(fault) => {
                let refusal = Refusal::new(507, "The server cannot store the request body.");
                let effects = self.refuse(refusal, upload.transaction, rules);
                let folder = rules.folder.display();
                let message = format!("a request body could not be stored in {folder}: {fault}");
                return effects.with(|rare| rare.log = Some(message));
            }
        }
        if let Some(ahead) = ahead {
            let Upload { mut transaction, spool, .. } = *upload;
            transaction.request.body = spool.finish();
            // The event of what came during the write is used up by now.
            return self.run(transaction, Pipelined { unread: true, ..ahead }, rules);
        }
        upload.since += rules.now().saturating_sub(since);
        let deadline = upload.deadline(rules);
        *self = Self::Body(upload);
        Effects::of(Next::Read).at(deadline)
    }
}

/// Refusing and expiring.
impl State {
    /// Answers an error and ends the connection, leaving the client time to read it.
    fn refuse(&mut self, refusal: Refusal, mut transaction: Box<Transaction>, rules: &Rules<'_>) -> Effects {
        let facts = rules.protocol.facts_of_refused(&transaction.request.bytes, &transaction.request.head);
        let (page, body_bytes) = (rules.page)(&mut transaction.response.head, &refusal, facts);
        transaction.record_refusal(refusal.status, body_bytes, rules.endpoints, rules.time.moment());
        *self = Self::Draining(Box::new(Draining {
            then: AfterResponse::Linger,
            ahead: Pipelined::unread(),
            unread_body: None,
            dropping_since: None,
            dropped: 0,
            transaction: Some(transaction),
        }));
        Effects::of(Next::Flush)
            .with(|rare| *rare = Rare { send: Some(Message::Page(page)), is_refusal: true, ..Rare::default() })
    }

    fn expire(&mut self, rules: &Rules<'_>) -> Effects {
        if let Some((transaction, part)) = self.take_unfinished() {
            return self.refuse(part.late(), transaction, rules);
        }
        match self {
            Self::Draining(draining) => {
                let account = draining.transaction.take().map(|mut transaction| {
                    transaction.record.set_broken(Ending::ClientGone);
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
impl State {
    /// The application has given all of its response. `rest`: of a body that it has read by itself.
    fn drain(
        &mut self,
        then: AfterResponse,
        transaction: Box<Transaction>,
        rest: Option<Rest>,
        rules: &Rules<'_>,
    ) -> Draining {
        let (ahead, is_logged) = match self {
            Self::Responding(ahead) => (std::mem::take(ahead), false),
            // The server has ended, and has logged it then.
            _ => (Pipelined::default(), true),
        };
        let (bytes, unread_body) = match rest {
            None => (None, None),
            Some(Rest::Complete(bytes)) => (Some(bytes), None),
            Some(Rest::Unread(decoder, bytes)) => (Some(bytes), Some(decoder)),
        };
        let ahead = bytes.map_or(ahead, |bytes| Pipelined::taken(bytes, true, rules.memory));
        Draining {
            then,
            ahead,
            unread_body,
            dropping_since: None,
            dropped: 0,
            transaction: (!is_logged).then_some(transaction),
        }
    }

    /// True while bytes of the client may be in the socket that no event will tell of.
    pub(crate) fn has_unread(&self) -> bool {
        matches!(self, Self::Draining(draining) if draining.ahead.unread)
    }

    fn flushed(&mut self, flush: Flush, rules: &Rules<'_>) -> Effects {
        let Self::Draining(draining) = self else { return Effects::of(Next::Read) };
        let broken = match flush {
            Flush::Blocked => {
                // The client may be long in taking the response.
                if let Some(transaction) = &mut draining.transaction {
                    transaction.charge(rules.memory);
                }
                return draining.drop_body(rules.memory);
            }
            Flush::More => return Effects::of(Next::Later),
            Flush::Elsewhere => return Effects::of(Next::Rest),
            Flush::Empty => None,
            Flush::Broken => Some(Ending::ClientGone),
            Flush::Short(_) => Some(Ending::Broken),
        };
        let Self::Draining(draining) = std::mem::replace(self, Self::Idle) else { return Effects::of(Next::Rest) };
        let effects = self.end_response(*draining, broken, rules);
        let Flush::Short(missing) = flush else { return effects };
        let message =
            format!("a file shrank while it was sent: {missing} bytes are missing; the connection was broken");
        effects.with(|rare| rare.log = Some(message))
    }

    /// The response has left, or never will (`broken` says why).
    fn end_response(&mut self, draining: Draining, broken: Option<Ending>, rules: &Rules<'_>) -> Effects {
        *self = Self::Idle;
        let Draining { then, ahead, unread_body, transaction, .. } = draining;
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
        let may_come = unread || unread_body.is_some();
        match then {
            AfterResponse::Reset => {
                Effects::of(Next::Close).accounting(account).with(|rare| rare.shutdown = Some(Shutdown::Reset))
            }
            // With bytes of the client unread, closing would reset the connection under the response.
            AfterResponse::Linger | AfterResponse::Close
                if then == AfterResponse::Linger || may_come || !came.is_empty() =>
            {
                *self = Self::Lingering(rules.after(LINGER_IN_ALL));
                let effects = Effects::of(Next::Read).at(rules.after(LINGER));
                effects.accounting(account).with(|rare| rare.shutdown = Some(Shutdown::EndSending))
            }
            AfterResponse::Linger | AfterResponse::Close => Effects::of(Next::Close).accounting(account),
            AfterResponse::Keep => {
                let time = if let Some(decoder) = unread_body {
                    *self = Self::Skipping(Box::new(decoder));
                    rules.config.body_timeout
                } else {
                    rules.config.idle_timeout
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

impl Draining {
    /// Bytes of the client that came before its response has left.
    fn pass_over(&mut self, bytes: &[u8], memory: &ClientMemory) {
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

    /// The client does not take the response. It may be one that first sends all of a body which the application did
    /// not want: reading over that lets it come to the response.
    fn drop_body(&mut self, memory: &ClientMemory) -> Effects {
        if self.unread_body.is_none() || !self.ahead.unread {
            return Effects::of(Next::Rest);
        }
        let came = std::mem::take(&mut self.ahead).bytes;
        self.ahead.unread = true;
        self.pass_over(&came, memory);
        Effects::of(if self.unread_body.is_some() { Next::Read } else { Next::Rest })
    }
}

/// Looking.
impl State {
    /// True while a write of the body owns the connection.
    pub(crate) fn is_storing(&self) -> bool {
        matches!(self, Self::Storing(_))
    }

    pub(crate) fn is_draining(&self) -> bool {
        matches!(self, Self::Draining(_))
    }

    /// How the connection is idle, if it is.
    pub(crate) fn idleness(&self) -> Option<Idleness> {
        match self {
            Self::Idle => Some(Idleness::Silent),
            Self::Head(_) => Some(Idleness::HalfHead),
            _ => None,
        }
    }

    /// The request that is not complete, if there is one.
    pub(crate) fn unfinished(&self) -> Option<Unfinished> {
        match self {
            Self::Head(heading) if heading.parser.started() => {
                Some(Unfinished { is_in_file: false, since: heading.since, memory: heading.transaction.charged() })
            }
            Self::Body(upload) => Some(Unfinished {
                is_in_file: upload.spool.is_in_file(),
                since: upload.since,
                memory: upload.transaction.charged() + upload.spool.charged(),
            }),
            _ => None,
        }
    }

    /// Takes out a request that has begun and is not complete.
    fn take_unfinished(&mut self) -> Option<(Box<Transaction>, Part)> {
        match std::mem::replace(self, Self::Idle) {
            Self::Head(heading) if heading.parser.started() => Some((heading.transaction, Part::Head)),
            Self::Body(upload) => Some((upload.transaction, Part::Body)),
            other => {
                *self = other;
                None
            }
        }
    }

    /// Takes out what the log has to be told of a connection that the server's end has cut.
    pub(crate) fn take_left_over(&mut self) -> LeftOver {
        match self {
            Self::Draining(draining) => match draining.transaction.take() {
                Some(transaction) => LeftOver::Here { transaction, is_complete: true },
                None => LeftOver::Nothing,
            },
            Self::Responding(_) => {
                // If its runner comes back, it finds this.
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
