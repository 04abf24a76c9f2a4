//! One connection: one enum of stages with the data inside the variants, and one step that changes it.
//!
//! Threads: the stage belongs to the thread that holds the [`Claim`]; while a request is queued or answered, its
//! [`Exchange`] holds it. The outbox is shared behind its lock: the application's thread appends and writes, an I/O
//! thread drains what the client did not take at once. The lock of the stage is never contended; it is there so that the
//! compiler, and not a comment, says that two threads cannot be in it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use penstock_http::encode;
use penstock_http::framing::RequestFacts;
use penstock_http::limits::Refusal;

use crate::answer::Answer;
use crate::claim::{self, Bits, Claim};
use crate::exchange::Exchange;
use crate::gather::Gather;
use crate::handler::Level;
use crate::inflow::Rest;
use crate::outbox::{Flush, Outbox};
use crate::reactor::Reactor;
use crate::record::{Ending, Record};
use crate::request::Endpoints;
use crate::stage::{Ahead, Intake, Leaving, Next, Stage, Then};
use crate::sys::Io;
use crate::timers::{Deadline, Millis, NEVER, millis};
use crate::wire::Wire;
use crate::{local, lock};

/// After an error the client's remaining bytes are read and dropped for this long without progress (milliseconds).
pub(crate) const LINGER: u64 = 2_000;
/// And so long in all (milliseconds).
const LINGER_IN_ALL: u64 = 30_000;

/// How long an idle connection of a draining server is kept for a request that is on its way (milliseconds).
const LAST_CALL: u64 = 250;
/// Full reads of one connection before it is the others' turn.
const READS: usize = 16;
/// Bytes read at once where bodies are streamed.
const FIRST_OF_STREAM: usize = 16 * 1024;

/// A deadline at `now` for something that has gone on since `since`: within `pause` of now, and as long as `moved` bytes
/// may take at `rate` bytes a second (0: any time) after a first `pause`.
pub(crate) fn within_rate(now: Millis, since: Millis, pause: Millis, moved: u64, rate: u64) -> Millis {
    let by_pause = now.saturating_add(pause);
    match moved.saturating_mul(1_000).checked_div(rate) {
        Some(time) => by_pause.min(since.saturating_add(pause).saturating_add(time)),
        None => by_pause,
    }
}

/// Events after which there is something to read, be it the end.
const READABLE: Bits = claim::READ | claim::READ_END | claim::GONE;

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
    /// The ticket of a greenlet that waits for room; 0: none does.
    writer: AtomicU64,
    /// The ticket of a greenlet that waits for bytes of a streamed body; 0: none does.
    reader: AtomicU64,
}

impl Connection {
    /// A connection that the caller owns: call [`Connection::welcome`] once it is registered.
    pub(crate) fn new(reactor: Arc<Reactor>, wire: Wire, key: u64, endpoints: Endpoints) -> Self {
        Self {
            claim: Claim::owned(),
            key,
            wire,
            out: Mutex::new(Outbox::new(reactor.budget().clone())),
            reactor,
            endpoints,
            deadline: Deadline::new(),
            stage: Mutex::new(Stage::Idle),
            gather: Mutex::new(Gather::default()),
            room: Condvar::new(),
            writer: AtomicU64::new(0),
            reader: AtomicU64::new(0),
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

    /// Told when the outbox has room again.
    pub(crate) fn room(&self) -> &Condvar {
        &self.room
    }

    /// The greenlet that takes this ticket waits for room: call it with the outbox locked.
    pub(crate) fn writer_waits(&self, ticket: u64) {
        self.writer.store(ticket, Ordering::SeqCst);
    }

    /// Where the ticket of a greenlet is that waits for bytes of the client; it looks for them once more before it does.
    pub(crate) fn reader(&self) -> &AtomicU64 {
        &self.reader
    }

    /// Tells who waits for room that there is some, or never will be.
    pub(crate) fn tell_room(&self) {
        self.room.notify_all();
        self.wake(&self.writer);
    }

    /// Tells a greenlet that waits for bytes of the client that there may be some, or never will be.
    pub(crate) fn tell_reader(&self) {
        self.wake(&self.reader);
    }

    fn wake(&self, waiting: &AtomicU64) {
        if let Some(hub) = self.reactor.hub() {
            let ticket = waiting.swap(0, Ordering::SeqCst);
            if ticket != 0 {
                hub.wake(ticket);
            }
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.claim.is_gone() || self.is_forgotten()
    }

    /// This is a child that the application has forked from a greenlet: the client is served by the parent alone. Locks must
    /// not be taken here, which the I/O thread may have held in the parent.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.reactor.hub().is_some_and(|hub| hub.is_forgotten())
    }

    pub(crate) fn due_in(&self, time: u64) {
        let now = self.reactor.clock().recent_millis();
        self.reactor.set_deadline(self, now.saturating_add(time));
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
            return;
        }
        if bits & (claim::WRITE | claim::GONE | claim::EXPIRED) != 0 {
            self.drain_for_the_owner(bits);
        }
        if bits & READABLE != 0 {
            self.tell_reader();
        }
    }

    /// The owner's loop: steps until there is nothing to do, then lets go.
    fn carry(self: &Arc<Self>) {
        loop {
            let bits = self.claim.take();
            match self.step(bits) {
                Next::Run(answer) => {
                    let exchange = Exchange::new(answer, self.clone());
                    if self.reactor.has_room() {
                        self.reactor.queue(exchange);
                    } else {
                        exchange.turn_away();
                    }
                    return;
                }
                Next::Rest => {
                    if self.claim.release() {
                        return;
                    }
                }
                Next::Later => {
                    // Still claimed: the leader carries on after a look at the others.
                    self.reactor.hand_over(self.clone());
                    return;
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
        if let Stage::Draining(leaving) = &mut *stage {
            // What the client sends meanwhile makes no second edge: remember to read it.
            leaving.ahead.unread |= bits & READABLE != 0;
            let mut out = lock(&self.out);
            if bits & claim::WRITE != 0 {
                out.set_blocked(false);
            }
            let before = out.sent();
            let flushed = out.flush(&self.wire);
            let progress = out.sent() > before;
            self.await_client(&mut out, progress);
            drop(out);
            match flushed {
                Flush::Blocked => return self.drop_body(leaving),
                Flush::More => return Next::Later,
                Flush::Broken => return self.after_response(&mut stage, Some(Ending::ClientGone)),
                Flush::Short(missing) => {
                    self.reactor.log(
                        Level::Error,
                        &format!(
                            "a file shrank while it was sent: {missing} bytes are missing; the connection was broken"
                        ),
                    );
                    return self.after_response(&mut stage, Some(Ending::Broken));
                }
                Flush::Empty => return self.after_response(&mut stage, None),
            }
        }
        if bits & claim::WRITE != 0 {
            // Only `100 Continue` can be waiting in the other stages.
            let mut out = lock(&self.out);
            if !out.is_empty() {
                out.flush_all(&self.wire);
            }
        }
        self.read(&mut stage, bits)
    }

    /// `100 Continue`, for a client that waits for it before it sends its body.
    pub(crate) fn say_continue(&self) {
        let mut out = lock(&self.out);
        out.push_copy(encode::CONTINUE);
        // An error shows at the next read.
        out.flush_all(&self.wire);
    }

    /// Reads what the client sent, if an event says that there may be something.
    fn read(&self, stage: &mut Stage, bits: Bits) -> Next {
        if bits & (READABLE | claim::STOP) == 0 {
            return Next::Rest;
        }
        local::with_scratch(|scratch| {
            // What comes of a streamed body with its head waits in memory for a thread: not much of it.
            let most = if self.reactor.config().stream_body { FIRST_OF_STREAM } else { scratch.len() };
            let scratch = &mut scratch[..most];
            for _ in 0..self.reads() {
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
            // There is more, but it is the others' turn.
            self.claim.raise(claim::READ | bits & claim::READ_END);
            Next::Later
        })
    }

    /// Full reads before it is the turn of others: those are, on the thread of a hub, all of its greenlets.
    fn reads(&self) -> usize {
        if self.reactor.hub().is_some() && !local::is_leading() { 1 } else { READS }
    }

    /// The client does not take the response. It may be one that first sends all of a body which the application did not
    /// want: reading over that lets it come to the response.
    fn drop_body(&self, leaving: &mut Leaving) -> Next {
        if leaving.unread_body.is_none() || !leaving.ahead.unread {
            return Next::Rest;
        }
        let came = std::mem::take(&mut leaving.ahead.bytes);
        leaving.pass_over(&came);
        let now = self.reactor.clock().now();
        let since = *leaving.dropping_since.get_or_insert(now);
        local::with_scratch(|scratch| {
            for _ in 0..self.reads() {
                if leaving.unread_body.is_none() {
                    return Next::Rest;
                }
                match self.wire.receive(scratch) {
                    Io::Moved(count) => {
                        leaving.pass_over(&scratch[..count]);
                        leaving.dropped += count as u64;
                        // It is not idle: it will take the response when it has sent its body.
                        let config = self.reactor.config();
                        let pause = millis(config.write_timeout);
                        let due = within_rate(now, since, pause, leaving.dropped, config.min_body_rate);
                        self.reactor.set_deadline(self, due);
                    }
                    Io::WouldBlock => {
                        leaving.ahead.unread = false;
                        return Next::Rest;
                    }
                    // It shows again when the response has left.
                    Io::End | Io::Broken => return Next::Rest,
                }
            }
            Next::Later
        })
    }

    /// Nothing more to read now. A draining server does not wait long for requests that have not begun: but one that is
    /// on its way already shall not be lost.
    fn rest(&self, stage: &Stage) -> Next {
        if matches!(stage, Stage::Idle | Stage::Dropping(_)) && self.reactor.is_stopping() {
            self.due_in(LAST_CALL);
        }
        Next::Rest
    }

    /// Gives bytes to the stage. `None`: all are taken in, and more are wanted.
    fn feed(&self, stage: &mut Stage, bytes: &[u8], unread: bool) -> Option<Next> {
        match self.take_in(stage, bytes) {
            Intake::More => None,
            Intake::Complete(mut answer, consumed) => {
                answer.request.endpoints = self.endpoints;
                answer.record = Record::new(self.reactor.clock().recent());
                *stage = Stage::Running(Ahead { bytes: bytes[consumed..].to_vec(), unread });
                self.reactor.set_deadline(self, NEVER);
                Some(Next::Run(answer))
            }
            Intake::Refused(refusal, answer) => Some(self.refuse(stage, refusal, answer)),
            Intake::Unusable => Some(Next::Close),
        }
    }

    /// The client has ended its direction.
    fn end_of_input(&self, stage: &mut Stage) -> Next {
        match stage.take_unfinished() {
            Some((answer, part)) => self.refuse(stage, part.cut_short(), answer),
            None => Next::Close,
        }
    }

    /// The deadline of the stage has come.
    fn expire(&self, stage: &mut Stage) -> Next {
        if let Some((answer, part)) = stage.take_unfinished() {
            return self.refuse(stage, part.late(), answer);
        }
        match stage {
            Stage::Draining(leaving) => {
                if let Some(mut answer) = leaving.answer.take() {
                    answer.record.ending = Ending::ClientGone;
                    self.reactor.account(answer, self);
                }
                Next::Close
            }
            Stage::Running(_) => Next::Rest,
            Stage::Idle
            | Stage::Head(_)
            | Stage::Body(_)
            | Stage::Dropping(_)
            | Stage::Lingering(_)
            | Stage::Closed => Next::Close,
        }
    }

    /// Answers an error and ends the connection, leaving the client time to read it.
    fn refuse(&self, stage: &mut Stage, refusal: Refusal, mut answer: Box<Answer>) -> Next {
        let page = self.error_page(&refusal, RequestFacts::of_refused(&answer.request.bytes, &answer.request.head));
        self.reactor.count_refusal();
        answer.refuse(refusal.status, self.endpoints);
        *stage = Stage::Draining(Box::new(Leaving {
            then: Then::Linger,
            ahead: Ahead { bytes: Vec::new(), unread: true },
            unread_body: None,
            dropping_since: None,
            dropped: 0,
            answer: Some(answer),
        }));
        let mut out = lock(&self.out);
        out.push_copy(&page);
        let flushed = out.flush(&self.wire);
        self.await_client(&mut out, true);
        drop(out);
        match flushed {
            Flush::Blocked | Flush::More => Next::Rest,
            Flush::Broken | Flush::Short(_) => self.after_response(stage, Some(Ending::ClientGone)),
            Flush::Empty => {
                // From the loop of the owner and not from here, which may be inside a read.
                self.claim.raise(claim::WRITE);
                Next::Rest
            }
        }
    }

    /// A small page that tells an error.
    pub(crate) fn error_page(&self, refusal: &Refusal, facts: RequestFacts) -> Vec<u8> {
        let mut page = Vec::with_capacity(512);
        let server = self.reactor.config().server_name.as_bytes();
        local::with_date(self.reactor.clock().recent(), |date| {
            encode::error_response(refusal.status, refusal.reason, facts, date, server, &mut page);
        });
        page
    }

    /// Ends our direction and drops what the client still sends, so that it can read the response.
    fn linger(&self, stage: &mut Stage) {
        self.wire.end_sending();
        *stage = Stage::Lingering(self.reactor.clock().now() + LINGER_IN_ALL);
        self.due_in(LINGER);
    }

    /// The application is done; the exchange gives the connection back to the thread it ends on.
    /// `hand_over`: much is left to send, which the I/O side does while the application's thread goes on.
    /// `rest`: of a body that the application has read by itself.
    pub(crate) fn exchange_done(
        self: &Arc<Self>,
        then: Then,
        answer: Box<Answer>,
        rest: Option<Rest>,
        hand_over: bool,
    ) {
        let hand_over = {
            lock(&self.gather).reset();
            let mut stage = lock(&self.stage);
            let ahead = match &mut *stage {
                Stage::Running(ahead) => std::mem::take(ahead),
                _ => Ahead::default(),
            };
            let (ahead, unread_body) = match rest {
                None => (ahead, None),
                Some(Rest::Complete(bytes)) => (Ahead { bytes, unread: true }, None),
                Some(Rest::Unread(decoder, bytes)) => (Ahead { bytes, unread: true }, Some(decoder)),
            };
            if answer.record.started.is_some() {
                self.reactor.count_request();
            }
            // What the client has sent meanwhile is read by the I/O side where a hub's greenlets share the thread.
            let hand_over = hand_over || (ahead.unread && self.reactor.hub().is_some());
            *stage = Stage::Draining(Box::new(Leaving {
                then,
                ahead,
                unread_body,
                dropping_since: None,
                dropped: 0,
                answer: Some(answer),
            }));
            hand_over
        };
        if hand_over {
            self.reactor.hand_over(self.clone());
        } else {
            self.carry();
        }
    }

    /// The response has left, or never will (`broken` says why).
    fn after_response(&self, stage: &mut Stage, broken: Option<Ending>) -> Next {
        let Stage::Draining(leaving) = std::mem::replace(stage, Stage::Idle) else { return Next::Rest };
        let Leaving { then, ahead, unread_body, answer, .. } = *leaving;
        if let Some(mut answer) = answer {
            answer.record.ending = broken.unwrap_or(answer.record.ending);
            self.reactor.account(answer, self);
        }
        if broken.is_some() {
            return Next::Close;
        }
        let unread = ahead.unread;
        let may_come = unread || unread_body.is_some();
        match then {
            Then::Reset => {
                self.wire.reset_on_close();
                Next::Close
            }
            // With bytes of the client unread, closing would reset the connection under the response.
            Then::Linger | Then::Close if then == Then::Linger || may_come || !ahead.bytes.is_empty() => {
                self.linger(stage);
                self.read(stage, READABLE)
            }
            Then::Linger | Then::Close => Next::Close,
            Then::Keep => {
                if let Some(decoder) = unread_body {
                    *stage = Stage::Dropping(Box::new(decoder));
                    self.due_in(millis(self.reactor.config().body_timeout));
                } else {
                    self.due_in(millis(self.reactor.config().idle_timeout));
                }
                if !ahead.bytes.is_empty()
                    && let Some(next) = self.feed(stage, &ahead.bytes, unread)
                {
                    return next;
                }
                if unread {
                    return self.read(stage, READABLE);
                }
                self.rest(stage)
            }
        }
    }

    /// I/O side: a finished response whose rest was left to us.
    pub(crate) fn take_over(self: &Arc<Self>) {
        self.carry();
    }

    /// After [`Connection::cut`], when the server ends: a response that was on its way is logged as such.
    pub(crate) fn account_cut(&self) {
        if let Stage::Draining(leaving) = &mut *lock(&self.stage)
            && let Some(mut answer) = leaving.answer.take()
        {
            answer.record.ending = Ending::Broken;
            self.reactor.account(answer, self);
        }
    }

    /// Breaks the connection from any thread: readers and writers see it, the owner cleans up.
    pub(crate) fn cut(&self) {
        lock(&self.out).break_off();
        self.tell_room();
        self.wire.cut();
        self.tell_reader();
    }
}
