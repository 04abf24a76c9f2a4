//! One connection: one enum of stages with the data inside the variants, and one step that changes it.
//!
//! Threads: the stage belongs to the thread that holds the [`Claim`]; while a request is queued or answered, its
//! [`Exchange`] holds it. The outbox is shared behind its lock: the application's thread appends and writes, an I/O
//! thread drains what the client did not take at once. The lock of the stage is never contended; it is there so that the
//! compiler, and not a comment, says that two threads cannot be in it.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use penstock_http::body::{BodyDecoder, BodyStep};
use penstock_http::encode;
use penstock_http::framing::{self, BodyLength, RequestFacts};
use penstock_http::head::{HeadParser, HeadStep};
use penstock_http::limits::Refusal;

use crate::claim::{self, Bits, Claim};
use crate::exchange::{Endpoints, Exchange, Guts};
use crate::gather::Gather;
use crate::handler::Level;
use crate::outbox::{Flush, Outbox};
use crate::reactor::Reactor;
use crate::record::Ending;
use crate::spool::Spool;
use crate::sys::Io;
use crate::timers::{Deadline, Millis, NEVER, millis};
use crate::wire::Wire;
use crate::{local, lock};

/// After an error the client's remaining bytes are read and dropped for this long without progress (milliseconds).
const LINGER: u64 = 2_000;
/// And so long in all (milliseconds).
const LINGER_IN_ALL: u64 = 30_000;

/// What follows when a response has been taken by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The next request.
    Keep,
    /// The end of the connection.
    Close,
    /// The end, and unread bytes of the client are awaited so that it can read the response.
    Linger,
    /// The end by a reset: the body had no other way to be seen as broken.
    Reset,
}

/// Bytes of the client that came after its request.
#[derive(Default)]
struct Ahead {
    bytes: Vec<u8>,
    /// There may be more in the socket that no event will tell of.
    unread: bool,
}

/// A request head that has come in part.
struct Heading {
    guts: Box<Guts>,
    parser: HeadParser,
}

/// A request whose body is on its way.
struct Upload {
    guts: Box<Guts>,
    decoder: BodyDecoder,
    spool: Spool,
}

/// A response that the client has not taken whole.
struct Leaving {
    then: Then,
    ahead: Ahead,
    /// The finished exchange, for the log. None after a refusal.
    guts: Option<Box<Guts>>,
}

enum Stage {
    Idle,
    Head(Box<Heading>),
    Body(Box<Upload>),
    /// Queued or answered by the application.
    Running(Ahead),
    Draining(Box<Leaving>),
    /// Until this time at most.
    Lingering(Millis),
    Closed,
}

/// What the owner does next.
enum Next {
    /// Queue the request; ownership goes with it.
    Run(Box<Guts>),
    /// Let go until the next event.
    Rest,
    /// Close.
    Close,
}

/// What some bytes came to.
enum Intake {
    /// All are taken in.
    More,
    /// A request is complete after so many of them.
    Complete(Box<Guts>, usize),
    /// They are refused.
    Refused(Refusal, RequestFacts),
}

/// One client connection.
pub(crate) struct Connection {
    claim: Claim,
    key: u64,
    wire: Wire,
    reactor: Arc<Reactor>,
    endpoints: Endpoints,
    deadline: Deadline,
    stage: Mutex<Stage>,
    out: Mutex<Outbox>,
    gather: Mutex<Gather>,
    room: Condvar,
}

impl Connection {
    /// A connection that the caller owns: call [`Connection::welcome`] once it is registered.
    pub(crate) fn new(reactor: Arc<Reactor>, wire: Wire, key: u64, endpoints: Endpoints) -> Self {
        Self {
            claim: Claim::owned(),
            key,
            wire,
            reactor,
            endpoints,
            deadline: Deadline::new(),
            stage: Mutex::new(Stage::Idle),
            out: Mutex::new(Outbox::default()),
            gather: Mutex::new(Gather::default()),
            room: Condvar::new(),
        }
    }

    pub(crate) fn reactor(&self) -> &Arc<Reactor> {
        &self.reactor
    }

    pub(crate) fn wire(&self) -> &Wire {
        &self.wire
    }

    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    pub(crate) fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    pub(crate) fn outbox(&self) -> &Mutex<Outbox> {
        &self.out
    }

    /// Lock order: the outbox before the gather.
    pub(crate) fn gather(&self) -> &Mutex<Gather> {
        &self.gather
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.claim.is_gone()
    }

    fn due_in(&self, time: u64) {
        let now = self.reactor.clock().now();
        self.reactor.timers().set(&self.deadline, self.key, now.saturating_add(time));
    }

    /// The owner of a new connection lets it go for the first time.
    pub(crate) fn welcome(self: &Arc<Self>) {
        self.due_in(millis(self.reactor.config().idle_timeout));
        self.carry();
    }

    /// An event, from the thread that polls.
    pub(crate) fn report(self: &Arc<Self>, bits: Bits) {
        if self.claim.raise(bits) {
            self.carry();
        } else if bits & (claim::WRITE | claim::GONE | claim::EXPIRED) != 0 {
            self.drain_for_the_owner(bits);
        }
    }

    /// The owner's loop: steps until there is nothing to do, then lets go.
    fn carry(self: &Arc<Self>) {
        loop {
            let bits = self.claim.take();
            match self.step(bits) {
                Next::Run(guts) => {
                    self.reactor.queue(Exchange::new(guts, self.clone()));
                    return;
                }
                Next::Rest => {
                    if self.claim.release() {
                        return;
                    }
                }
                Next::Close => {
                    *lock(&self.stage) = Stage::Closed;
                    lock(&self.out).break_off();
                    self.reactor.forget(self);
                    return;
                }
            }
        }
    }

    /// One step: what the events mean for the stage we are in.
    fn step(&self, bits: Bits) -> Next {
        let mut stage = lock(&self.stage);
        if bits & claim::EXPIRED != 0 && self.deadline.has_come(self.reactor.clock().now()) {
            return self.expire(&mut stage);
        }
        if let Stage::Draining(_) = *stage {
            let mut out = lock(&self.out);
            if bits & claim::WRITE != 0 {
                out.set_blocked(false);
            }
            let flushed = out.flush(&self.wire);
            drop(out);
            match flushed {
                Flush::Blocked => {
                    self.due_in(millis(self.reactor.config().write_timeout));
                    return Next::Rest;
                }
                Flush::Broken => return self.after_response(&mut stage, true, bits),
                Flush::Empty => return self.after_response(&mut stage, false, bits),
            }
        }
        self.read(&mut stage, bits)
    }

    /// Reads what the client sent, if an event says that there may be something.
    fn read(&self, stage: &mut Stage, bits: Bits) -> Next {
        const READABLE: Bits = claim::READ | claim::READ_END | claim::GONE;
        if bits & (READABLE | claim::STOP) == 0 {
            return Next::Rest;
        }
        local::with_scratch(|scratch| {
            loop {
                match self.wire.receive(scratch) {
                    Io::Moved(count) => {
                        // A short read has emptied the socket: the next byte makes a new edge. Only the client's end
                        // of sending, if it came with this event, is still to be read.
                        let unread = count == scratch.len() || bits & (claim::READ_END | claim::GONE) != 0;
                        if let Some(next) = self.feed(stage, &scratch[..count], unread) {
                            return next;
                        }
                        if !unread {
                            return self.rest(stage);
                        }
                    }
                    Io::WouldBlock => return self.rest(stage),
                    Io::End => return self.end_of_input(stage),
                    Io::Broken => return Next::Close,
                }
            }
        })
    }

    /// Nothing more to read now. A draining server does not wait for requests that have not begun.
    fn rest(&self, stage: &Stage) -> Next {
        if matches!(stage, Stage::Idle) && self.reactor.is_stopping() { Next::Close } else { Next::Rest }
    }

    /// Gives bytes to the stage. `None`: all are taken in, and more are wanted.
    fn feed(&self, stage: &mut Stage, bytes: &[u8], unread: bool) -> Option<Next> {
        match self.take_in(stage, bytes) {
            Intake::More => None,
            Intake::Complete(mut guts, consumed) => {
                guts.request.endpoints = self.endpoints;
                guts.record = crate::record::Record::new(Instant::now());
                *stage = Stage::Running(Ahead { bytes: bytes[consumed..].to_vec(), unread });
                self.reactor.timers().set(&self.deadline, self.key, NEVER);
                Some(Next::Run(guts))
            }
            Intake::Refused(refusal, facts) => Some(self.refuse(stage, refusal, facts)),
        }
    }

    fn take_in(&self, stage: &mut Stage, bytes: &[u8]) -> Intake {
        match stage {
            Stage::Idle => {
                let mut guts = local::take_guts();
                let mut parser = HeadParser::default();
                let limits = &self.reactor.config().limits;
                match parser.parse(bytes, limits, &mut guts.request.head) {
                    HeadStep::NeedMore => {
                        guts.request.bytes.extend_from_slice(bytes);
                        *stage = Stage::Head(Box::new(Heading { guts, parser }));
                        self.due_in(millis(self.reactor.config().header_timeout));
                        Intake::More
                    }
                    HeadStep::Complete => {
                        let length = guts.request.head.length;
                        guts.request.bytes.extend_from_slice(&bytes[..length]);
                        self.begin_body(stage, guts, bytes, length)
                    }
                    HeadStep::Refused(refusal) => {
                        let facts = RequestFacts::of_refused(bytes, &guts.request.head);
                        local::give_guts(guts);
                        Intake::Refused(refusal, facts)
                    }
                }
            }
            Stage::Head(heading) => {
                let limits = &self.reactor.config().limits;
                let Heading { guts, parser } = &mut **heading;
                let before = guts.request.bytes.len();
                guts.request.bytes.extend_from_slice(bytes);
                match parser.parse(&guts.request.bytes, limits, &mut guts.request.head) {
                    HeadStep::NeedMore => Intake::More,
                    HeadStep::Complete => {
                        let length = guts.request.head.length;
                        guts.request.bytes.truncate(length);
                        let Stage::Head(heading) = std::mem::replace(stage, Stage::Idle) else { return Intake::More };
                        self.begin_body(stage, heading.guts, bytes, length - before)
                    }
                    HeadStep::Refused(refusal) => {
                        Intake::Refused(refusal, RequestFacts::of_refused(&guts.request.bytes, &guts.request.head))
                    }
                }
            }
            Stage::Body(_) => self.take_body(stage, bytes, 0),
            Stage::Lingering(until) => {
                let now = self.reactor.clock().now();
                self.reactor.timers().set(&self.deadline, self.key, (now + LINGER).min(*until));
                Intake::More
            }
            Stage::Running(_) | Stage::Draining(_) | Stage::Closed => Intake::More,
        }
    }

    /// The head is complete; `bytes[at..]` is what came after it.
    fn begin_body(&self, stage: &mut Stage, mut guts: Box<Guts>, bytes: &[u8], at: usize) -> Intake {
        let request = &mut guts.request;
        let limits = &self.reactor.config().limits;
        request.framing = match framing::request_framing(&request.bytes, &request.head, limits) {
            Ok(framing) => framing,
            Err(refusal) => {
                return Intake::Refused(refusal, RequestFacts::of_refused(&request.bytes, &request.head));
            }
        };
        guts.facts = RequestFacts::of(&request.bytes, &request.head, &request.framing);
        let expected = match request.framing.body {
            BodyLength::None | BodyLength::Known(0) => return Intake::Complete(guts, at),
            BodyLength::Known(length) => Some(length),
            BodyLength::Chunked => None,
        };
        if request.framing.expects_continue && at == bytes.len() {
            // An error shows at the next read.
            let _ = self.wire.transmit(&[std::io::IoSlice::new(encode::CONTINUE)], false);
        }
        let decoder = BodyDecoder::new(request.framing.body, limits.body);
        *stage = Stage::Body(Box::new(Upload { guts, decoder, spool: Spool::new(expected) }));
        self.take_body(stage, bytes, at)
    }

    fn take_body(&self, stage: &mut Stage, bytes: &[u8], mut at: usize) -> Intake {
        let Stage::Body(upload) = stage else { return Intake::More };
        let mut facts = upload.guts.facts;
        facts.keep_alive = false;
        loop {
            match upload.decoder.decode(&bytes[at..]) {
                BodyStep::Data { consumed, data } => {
                    let data = &bytes[at..][data];
                    if let Err(fault) = upload.spool.append(data, self.reactor.config().body_memory) {
                        return Intake::Refused(self.spool_fault(&fault), facts);
                    }
                    at += consumed;
                }
                BodyStep::NeedMore { .. } => {
                    self.due_in(millis(self.reactor.config().body_timeout));
                    return Intake::More;
                }
                BodyStep::Done { consumed } => {
                    let Stage::Body(upload) = std::mem::replace(stage, Stage::Idle) else { return Intake::More };
                    let Upload { mut guts, spool, .. } = *upload;
                    match spool.finish() {
                        Ok(body) => guts.request.body = body,
                        Err(fault) => return Intake::Refused(self.spool_fault(&fault), facts),
                    }
                    return Intake::Complete(guts, at + consumed);
                }
                BodyStep::Refused(refusal) => return Intake::Refused(refusal, facts),
            }
        }
    }

    fn spool_fault(&self, fault: &std::io::Error) -> Refusal {
        self.reactor.log(
            Level::Error,
            &format!("a request body could not be stored in {}: {fault}", std::env::temp_dir().display()),
        );
        Refusal::new(507, "The server cannot store the request body.")
    }

    /// The client has ended its direction.
    fn end_of_input(&self, stage: &mut Stage) -> Next {
        match stage {
            Stage::Head(heading) if heading.parser.started() => {
                let facts = RequestFacts::of_refused(&heading.guts.request.bytes, &heading.guts.request.head);
                self.refuse(stage, Refusal::new(400, "The request ended before its head was complete."), facts)
            }
            Stage::Body(upload) => {
                let facts = RequestFacts { keep_alive: false, ..upload.guts.facts };
                self.refuse(stage, Refusal::new(400, "The request ended before its body was complete."), facts)
            }
            _ => Next::Close,
        }
    }

    /// The deadline of the stage has come.
    fn expire(&self, stage: &mut Stage) -> Next {
        match stage {
            Stage::Head(heading) if heading.parser.started() => {
                let facts = RequestFacts::of_refused(&heading.guts.request.bytes, &heading.guts.request.head);
                self.refuse(stage, Refusal::new(408, "The request head did not arrive in time."), facts)
            }
            Stage::Body(upload) => {
                let facts = RequestFacts { keep_alive: false, ..upload.guts.facts };
                self.refuse(stage, Refusal::new(408, "The request body did not arrive in time."), facts)
            }
            Stage::Draining(leaving) => {
                if let Some(mut guts) = leaving.guts.take() {
                    guts.record.ending = Ending::ClientGone;
                    self.reactor.account(guts, self);
                }
                Next::Close
            }
            Stage::Running(_) => Next::Rest,
            Stage::Idle | Stage::Head(_) | Stage::Lingering(_) | Stage::Closed => Next::Close,
        }
    }

    /// Answers an error and ends the connection, leaving the client time to read it.
    fn refuse(&self, stage: &mut Stage, refusal: Refusal, facts: RequestFacts) -> Next {
        let mut page = Vec::with_capacity(512);
        let server = self.reactor.config().server_name.as_bytes();
        local::with_date(|date| {
            encode::error_response(refusal.status, refusal.reason, facts, date, server, &mut page);
        });
        self.reactor.count_refusal(refusal);
        *stage = Stage::Draining(Box::new(Leaving {
            then: Then::Linger,
            ahead: Ahead { bytes: Vec::new(), unread: true },
            guts: None,
        }));
        let mut out = lock(&self.out);
        out.push_copy(&page);
        let flushed = out.flush(&self.wire);
        drop(out);
        match flushed {
            Flush::Blocked => {
                self.due_in(millis(self.reactor.config().write_timeout));
                Next::Rest
            }
            Flush::Broken => Next::Close,
            Flush::Empty => {
                self.linger(stage);
                // What is in the socket already makes no further edge: look at it.
                self.claim.raise(claim::READ);
                Next::Rest
            }
        }
    }

    /// Ends our direction and drops what the client still sends, so that it can read the response.
    fn linger(&self, stage: &mut Stage) {
        self.wire.end_sending();
        *stage = Stage::Lingering(self.reactor.clock().now() + LINGER_IN_ALL);
        self.due_in(LINGER);
    }

    /// The application is done; the exchange gives the connection back to the thread it ends on.
    /// `hand_over`: much is left to send, which the I/O side does while the application's thread goes on.
    pub(crate) fn exchange_done(self: &Arc<Self>, then: Then, guts: Box<Guts>, hand_over: bool) {
        {
            lock(&self.gather).reset();
            let mut stage = lock(&self.stage);
            let ahead = match &mut *stage {
                Stage::Running(ahead) => std::mem::take(ahead),
                _ => Ahead::default(),
            };
            *stage = Stage::Draining(Box::new(Leaving { then, ahead, guts: Some(guts) }));
        }
        if hand_over {
            self.reactor.hand_over(self.clone());
        } else {
            self.carry();
        }
    }

    /// The response has left, or never will (`broken`).
    fn after_response(&self, stage: &mut Stage, broken: bool, bits: Bits) -> Next {
        let Stage::Draining(leaving) = std::mem::replace(stage, Stage::Idle) else { return Next::Rest };
        let Leaving { then, ahead, guts } = *leaving;
        if let Some(mut guts) = guts {
            if broken {
                guts.record.ending = Ending::ClientGone;
            }
            self.reactor.account(guts, self);
        }
        if broken {
            return Next::Close;
        }
        let unread = ahead.unread || bits & claim::READ != 0;
        match then {
            Then::Reset => {
                self.wire.reset_on_close();
                Next::Close
            }
            // With bytes of the client unread, closing would reset the connection under the response.
            Then::Linger | Then::Close if then == Then::Linger || unread || !ahead.bytes.is_empty() => {
                self.linger(stage);
                self.read(stage, claim::READ)
            }
            Then::Linger | Then::Close => Next::Close,
            Then::Keep => {
                self.due_in(millis(self.reactor.config().idle_timeout));
                if !ahead.bytes.is_empty()
                    && let Some(next) = self.feed(stage, &ahead.bytes, unread)
                {
                    return next;
                }
                if unread {
                    return self.read(stage, claim::READ | bits);
                }
                self.rest(stage)
            }
        }
    }

    /// The owner is an application thread that gathers blocks or waits for room: serve it from the I/O side.
    fn drain_for_the_owner(&self, bits: Bits) {
        let mut out = lock(&self.out);
        if bits & claim::WRITE != 0 {
            out.set_blocked(false);
        }
        self.push_gathered(&mut out);
        if out.is_empty() {
            return;
        }
        if bits & claim::EXPIRED != 0 && self.deadline.has_come(self.reactor.clock().now()) {
            out.break_off();
        } else if !out.is_blocked() && out.flush(&self.wire) == Flush::Blocked {
            self.await_client();
        }
        let full = out.bytes() > self.reactor.config().outbox_limit;
        lock(&self.gather).tell(full, out.is_broken());
        if !full || out.is_broken() {
            self.room.notify_all();
        }
    }

    /// Moves what has gathered behind what waits already.
    pub(crate) fn push_gathered(&self, out: &mut Outbox) {
        let gathered = lock(&self.gather).take();
        if let Some(gathered) = gathered {
            let mut at = gathered.at;
            for segment in gathered.segments {
                out.push_buffer(segment, at);
                at = 0;
            }
        }
    }

    /// I/O side: a finished response whose rest was left to us.
    pub(crate) fn take_over(self: &Arc<Self>) {
        self.carry();
    }

    /// I/O side: sends what a response has gathered since the last tick. False: the response is over, or its blocks
    /// have become slow.
    pub(crate) fn tick(&self) -> bool {
        let moved = lock(&self.gather).len() > 0;
        if moved {
            self.drain_for_the_owner(0);
        }
        lock(&self.gather).stays_listed(moved)
    }

    fn low_water(&self) -> usize {
        self.reactor.config().outbox_limit / 2
    }

    /// Something waits for the client to take it: give it `write_timeout` from now.
    pub(crate) fn await_client(&self) {
        self.due_in(millis(self.reactor.config().write_timeout));
    }

    /// Blocks until the outbox has room. False: it never will.
    pub(crate) fn wait_for_room(&self) -> bool {
        let mut out = lock(&self.out);
        while !out.is_broken() && out.bytes() + lock(&self.gather).len() > self.low_water() {
            out = crate::wait(&self.room, out);
        }
        !out.is_broken()
    }

    /// Breaks the connection from any thread: readers and writers see it, the owner cleans up.
    pub(crate) fn cut(&self) {
        lock(&self.out).break_off();
        self.room.notify_all();
        self.wire.cut();
    }
}
