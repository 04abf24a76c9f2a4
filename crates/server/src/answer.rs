//! The answer to a request, in the making: head, framing, and how its blocks get to the client.
//!
//! This is the inside of an exchange. A block is sent at once by the thread that made it, together with the head if it
//! is the first; large blocks by reference. When blocks come quickly they gather instead, and the I/O side sends them.
//!
//! Thread: an answer belongs to the thread that carries the exchange; only the outbox and the gather of its connection
//! are shared, behind their locks.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use penstock_http::encode::{self, ResponseHead};
use penstock_http::framing::{RequestFacts, ResponseBody, ResponseFraming};
use penstock_http::head::Version;

pub use crate::backlog::{Client, Room};
use crate::connection::Connection;
use crate::gather::Appended;
use crate::inflow::Inflow;
use crate::layout::Layout;
use crate::local;
use crate::lock;
use crate::outbox::{Outbox, Payload};
use crate::posts::{Carrying, Task};
use crate::record::{Ending, Path, Record};
use crate::request::{Endpoints, Request, RequestBody};
use crate::stage::Then;
use crate::timers::{NEVER, millis};

/// Blocks of this size and larger are never copied into a gather.
const GATHER_BELOW: usize = 16 * 1024;
/// A block is quick that comes so soon after the one before was sent.
const QUICK: Duration = Duration::from_micros(150);
/// So many quick blocks in a row, and the next ones gather.
const QUICK_BLOCKS: u8 = 2;
/// Bytes that a hub's greenlet writes by itself at most: copying them takes less time than to let go of the interpreter
/// and get it back.
const INLINE: usize = 128 * 1024;
/// A finished response of which more than this waits is left to the I/O side.
const HAND_OVER: usize = 32 * 1024;

/// What became of a `send`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Taken: sent or queued. Go on.
    Taken,
    /// Taken, but the queue is full: call [`Exchange::wait`] before the next block, with the interpreter released.
    Full,
    /// All that `Content-Length` promised is there (or the response has no body): further blocks go nowhere.
    Enough,
    /// The client is gone or the response is broken: nothing will be sent any more.
    Gone,
}

/// Whether blocks may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// More blocks may come; the response ends with [`Exchange::finish`].
    More,
    /// These blocks are all there is. If nothing was sent before, their total becomes the `Content-Length`.
    Last,
}

/// A body shorter than its `Content-Length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// Bytes promised and not sent.
    pub missing: u64,
}

/// A request and the answer to it: one allocation, reused with all its buffers by later requests of the thread.
pub(crate) struct Answer {
    pub(crate) request: Request,
    pub(crate) facts: RequestFacts,
    pub(crate) record: Record,
    /// The post of the thread that carries the request, while it does.
    post: Option<Carrying>,
    is_turned_away: bool,
    /// Somebody wants to know the record when it is complete.
    pub(crate) follower: Option<Arc<Mutex<Record>>>,
    pub(crate) head: ResponseHead,
    connection: Option<Arc<Connection>>,
    /// The body that the application reads as it comes.
    pub(crate) inflow: Option<Arc<Inflow>>,
    framing: Option<ResponseFraming>,
    /// Bytes that Content-Length still promises.
    left: u64,
    /// The last byte of the body has been given out.
    ended: bool,
    gone: bool,
    layout: Layout,
    pace: Pace,
}

/// How the blocks of the response come.
#[derive(Clone, Copy, Debug, Default)]
enum Pace {
    /// None has been sent.
    #[default]
    Unknown,
    /// So many in a row came right after the one before was sent, the last at this time: each is sent at once.
    Direct(u8, Instant),
    /// Quickly: they gather, and the I/O side sends them.
    Gathering,
}

impl Answer {
    pub(crate) fn new() -> Self {
        Self {
            request: Request::default(),
            facts: RequestFacts { version: Version::Http11, is_head: false, keep_alive: false },
            record: Record::new(Instant::now()),
            post: None,
            is_turned_away: false,
            follower: None,
            connection: None,
            inflow: None,
            head: ResponseHead::default(),
            framing: None,
            left: 0,
            ended: false,
            gone: false,
            layout: Layout::default(),
            pace: Pace::Unknown,
        }
    }

    /// Makes the answer as new, but for the room of their buffers. False: not worth keeping.
    pub(crate) fn clear(&mut self) -> bool {
        const KEEP: usize = 64 * 1024;
        self.request.bytes.clear();
        self.request.head.clear();
        self.request.body = RequestBody::Empty;
        self.connection = None;
        self.inflow = None;
        self.post = None;
        self.is_turned_away = false;
        self.follower = None;
        self.head.clear();
        self.framing = None;
        self.left = 0;
        self.ended = false;
        self.gone = false;
        self.pace = Pace::Unknown;
        self.request.bytes.capacity() <= KEEP && self.layout.clear() <= KEEP
    }
}

impl Answer {
    /// The connection that the request came by, which the answer now owns.
    pub(crate) fn attach(&mut self, connection: Arc<Connection>) {
        if let Some(inflow) = &self.inflow {
            inflow.attach(connection.clone());
        }
        self.connection = Some(connection);
    }

    /// Whoever holds this post takes the request up.
    pub(crate) fn begin(&mut self, now: Instant, post: Option<usize>) {
        self.record.started = Some(now);
        let Some(connection) = &self.connection else { return };
        let reactor = connection.reactor();
        self.post = post.map(|post| reactor.posts().begin(post, &self.request, now));
        let time = reactor.config().request_timeout;
        if !time.is_zero() {
            self.set_deadline(now, Some(time));
        }
    }

    pub(crate) fn set_deadline(&mut self, now: Instant, time: Option<Duration>) {
        let (Some(connection), Some(post)) = (&self.connection, self.post) else { return };
        if connection.is_forgotten() {
            return;
        }
        let reactor = connection.reactor();
        let due = time.map_or(NEVER, |time| reactor.clock().millis_of(now).saturating_add(millis(time)));
        reactor.set_request_deadline(post, due, || Task {
            since: self.record.started.unwrap_or(now),
            request: self.request.line(),
            facts: self.facts,
            connection: Some(connection.clone()),
        });
    }

    /// Answers 503 in the application's place. The rest is left to the I/O side's next turn, since this one may be in the
    /// middle of reading.
    pub(crate) fn turn_away(mut self: Box<Self>) {
        self.is_turned_away = true;
        if let Some(connection) = &self.connection {
            connection.reactor().count_refusal();
        }
        self.fail(503, Some("The server has more requests than it can answer."));
    }

    /// The request was refused with this status before any application saw it: a record for the log.
    pub(crate) fn refuse(&mut self, status: u16, endpoints: Endpoints) {
        let now = Instant::now();
        self.request.endpoints = endpoints;
        self.record = Record { status, path: Path::OneWrite, ending: Ending::Complete, ..Record::new(now) };
    }

    pub(crate) fn is_committed(&self) -> bool {
        self.framing.is_some()
    }

    pub(crate) fn send(
        &mut self,
        blocks: &[&[u8]],
        position: Position,
        keep: &mut dyn FnMut(usize) -> Box<dyn Payload>,
    ) -> Sent {
        if let (Position::More, [block]) = (position, blocks)
            && let Some(sent) = self.gather(block)
        {
            return sent;
        }
        let asked = Instant::now();
        let total: usize = blocks.iter().map(|block| block.len()).sum();
        let Some(allowed) = self.open(total as u64, position, asked) else {
            return if self.gone { Sent::Gone } else { Sent::Taken };
        };
        let allowed = usize::try_from(allowed).unwrap_or(total);
        if allowed > 0 {
            self.record.body_bytes += allowed as u64;
            let chunked = self.is_chunked();
            self.layout.add_blocks(blocks, allowed, chunked);
        }
        self.end_if_last(position);
        self.record.blocks += blocks.iter().filter(|block| !block.is_empty()).count() as u64;
        let sent = self.transmit(blocks, keep);
        if !self.ended && total < GATHER_BELOW {
            self.learn_pace(asked);
        }
        sent
    }

    pub(crate) fn send_file(&mut self, file: OwnedFd, offset: u64, length: u64, position: Position) -> Sent {
        let Some(allowed) = self.open(length, position, Instant::now()) else {
            return if self.gone { Sent::Gone } else { Sent::Taken };
        };
        let chunked = self.is_chunked();
        if allowed > 0 && chunked {
            self.layout.add_chunk_header(usize::try_from(allowed).unwrap_or(usize::MAX));
        }
        self.record.body_bytes += allowed;
        self.record.blocks += 1;
        self.record.path = Path::Sendfile;
        let Some(connection) = self.connection.clone() else { return Sent::Gone };
        let mut out = lock(connection.outbox());
        out.begin();
        connection.push_gathered(&mut out);
        out.push_copy(self.layout.staging());
        self.layout.clear();
        out.push_file(file, offset, allowed);
        if allowed > 0 && chunked {
            out.push_copy(encode::CHUNK_END);
        }
        self.end_if_last(position);
        if self.ended {
            out.complete();
        }
        out.push_copy(self.layout.staging());
        self.layout.clear();
        self.send_waiting(&mut out, &connection);
        self.settle(&mut out, &connection)
    }

    /// The connection that the request came by, until the answer ends.
    pub(crate) fn connection(&self) -> Option<&Arc<Connection>> {
        self.connection.as_ref()
    }

    /// As [`Connection::ask_for_room`].
    pub(crate) fn ask_for_room(&mut self, ticket: u64) -> Room {
        let room = self.connection.as_ref().map_or(Room::Never, |connection| connection.ask_for_room(ticket));
        self.gone |= room == Room::Never;
        room
    }

    pub(crate) fn wait(&mut self) -> Sent {
        let Some(connection) = self.connection.as_ref() else { return Sent::Gone };
        let from = Instant::now();
        let has_room = connection.wait_for_room();
        self.record.waited += from.elapsed();
        if has_room {
            Sent::Taken
        } else {
            self.gone = true;
            Sent::Gone
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client(self.connection.as_ref().map_or_else(Weak::new, Arc::downgrade))
    }

    pub(crate) fn client_gone(&self) -> bool {
        self.gone || self.connection.as_ref().is_none_or(|connection| connection.is_gone())
    }

    pub(crate) fn finish(mut self: Box<Self>) -> Result<(), Short> {
        let now = self.connection.as_ref().map_or_else(Instant::now, |connection| connection.reactor().clock().read());
        self.record.finished = Some(now);
        if !self.gone && (!self.ended || matches!(self.pace, Pace::Gathering)) {
            if self.framing.is_none() {
                self.commit(Some(0), now);
            }
            self.end();
            self.transmit(&[], &mut |_| Box::new(()));
        }
        let missing = if self.gone { 0 } else { self.left };
        let ending = match missing {
            _ if self.gone => Ending::ClientGone,
            0 => Ending::Complete,
            _ => Ending::Broken,
        };
        self.close(ending);
        if missing > 0 { Err(Short { missing }) } else { Ok(()) }
    }

    /// Before body bytes: commits the head if need be, and says how many of `total` may be sent. `None`: nothing is to
    /// be done.
    fn open(&mut self, total: u64, position: Position, now: Instant) -> Option<u64> {
        if self.gone {
            return None;
        }
        if self.connection.as_ref().is_none_or(|connection| connection.is_gone()) {
            self.gone = true;
            return None;
        }
        if total > 0 {
            self.record.first_block.get_or_insert(now);
        }
        let Some(framing) = self.framing else {
            if total == 0 && position == Position::More {
                return None;
            }
            let framing = self.commit((position == Position::Last).then_some(total), now);
            // One block that is all its Content-Length promised leaves in one go, too.
            let whole =
                position == Position::Last || matches!(framing.body, ResponseBody::Known(length) if length == total);
            self.record.path = if whole { Path::OneWrite } else { Path::Direct };
            return Some(self.allowed(framing, total));
        };
        Some(self.allowed(framing, total))
    }

    fn allowed(&mut self, framing: ResponseFraming, total: u64) -> u64 {
        match framing.body {
            _ if self.ended => 0,
            ResponseBody::None => 0,
            ResponseBody::Known(_) => {
                let allowed = total.min(self.left);
                self.left -= allowed;
                allowed
            }
            ResponseBody::Chunked | ResponseBody::UntilClose => total,
        }
    }

    fn is_chunked(&self) -> bool {
        matches!(self.framing, Some(ResponseFraming { body: ResponseBody::Chunked, .. }))
    }

    /// A block of a response whose blocks come quickly: appends it to what the I/O side sends next. `None`: this block
    /// is to be sent directly.
    #[inline]
    pub(crate) fn gather(&mut self, block: &[u8]) -> Option<Sent> {
        if !matches!(self.pace, Pace::Gathering) || block.len() >= GATHER_BELOW || self.gone || self.ended {
            return None;
        }
        let known = matches!(self.framing, Some(ResponseFraming { body: ResponseBody::Known(_), .. }));
        if known && self.left < block.len() as u64 {
            return None;
        }
        let connection = self.connection.as_ref().filter(|connection| !connection.is_forgotten())?;
        let limit = connection.reactor().config().outbox_limit;
        let mut appended = lock(connection.gather()).append(block, limit);
        if appended == Appended::Unlisted && connection.reactor().hub().is_some() {
            appended = connection.gather_anew(block, limit, self.is_chunked());
            self.record.path = self.record.path.max(Path::Gathered);
        }
        let sent = match appended {
            Appended::Taken => Sent::Taken,
            Appended::Full => Sent::Full,
            Appended::Unlisted => {
                self.pace = Pace::Unknown;
                return None;
            }
            Appended::Broken => {
                self.gone = true;
                return Some(Sent::Gone);
            }
        };
        self.record.blocks += u64::from(!block.is_empty());
        self.record.body_bytes += block.len() as u64;
        if known {
            self.left -= block.len() as u64;
            if self.left == 0 {
                self.ended = true;
                lock(connection.outbox()).complete();
                return Some(Sent::Enough);
            }
        }
        Some(sent)
    }

    /// After a block that was sent directly and that was ready at `asked`.
    fn learn_pace(&mut self, asked: Instant) {
        let Some(connection) = &self.connection else { return };
        if connection.reactor().config().single_thread {
            return;
        }
        if connection.reactor().hub().is_some() {
            self.pace = Pace::Gathering;
            return;
        }
        let quick = match self.pace {
            Pace::Direct(quick, sent) if asked.saturating_duration_since(sent) < QUICK => quick + 1,
            _ => 0,
        };
        if quick < QUICK_BLOCKS {
            self.pace = Pace::Direct(quick, Instant::now());
            return;
        }
        lock(connection.gather()).list(self.is_chunked());
        connection.reactor().stream(connection.clone());
        self.pace = Pace::Gathering;
        self.record.path = self.record.path.max(Path::Gathered);
    }

    /// Completes the head and puts it at the front of what is sent next.
    fn commit(&mut self, total: Option<u64>, now: Instant) -> ResponseFraming {
        let facts = self.facts_for_head();
        if self.connection.as_ref().is_some_and(|connection| connection.reactor().config().server_timing) {
            self.add_server_timing(now);
        }
        let framing = local::with_date(now, |date| {
            let server = self.connection.as_ref().map_or("", |c| c.reactor().config().server_name.as_str());
            self.head.finish(facts, total, date, server.as_bytes())
        });
        self.record.status = self.head.status_code();
        self.layout.staging().extend_from_slice(self.head.bytes());
        match framing.body {
            ResponseBody::Known(length) => {
                self.left = length;
                self.ended = length == 0;
            }
            ResponseBody::None => self.ended = true,
            ResponseBody::Chunked | ResponseBody::UntilClose => {}
        }
        self.framing = Some(framing);
        framing
    }

    /// What the head depends on, when it leaves.
    fn facts_for_head(&self) -> RequestFacts {
        let stopping = self.connection.as_ref().is_none_or(|connection| connection.reactor().is_stopping());
        let readable = self.inflow.as_ref().is_none_or(|inflow| inflow.answered());
        RequestFacts { keep_alive: self.facts.keep_alive && !stopping && readable, ..self.facts }
    }

    fn add_server_timing(&mut self, now: Instant) {
        // The value is ours and has no forbidden byte.
        let _ = self.head.field(b"Server-Timing", self.record.server_timing(now).as_bytes());
    }

    fn end_if_last(&mut self, position: Position) {
        if position == Position::Last {
            self.end();
        } else if matches!(self.framing, Some(ResponseFraming { body: ResponseBody::Known(_), .. })) && self.left == 0 {
            self.ended = true;
        }
    }

    /// The body is over: the last chunk, where there are chunks.
    fn end(&mut self) {
        if self.ended {
            return;
        }
        self.ended = true;
        if self.is_chunked() {
            self.layout.add_last_chunk();
        }
    }

    /// Writes what was laid out, queues what the socket does not take.
    fn transmit(&mut self, blocks: &[&[u8]], keep: &mut dyn FnMut(usize) -> Box<dyn Payload>) -> Sent {
        let Some(connection) = self.connection.clone() else { return Sent::Gone };
        let mut out = lock(connection.outbox());
        out.begin();
        if self.ended {
            out.complete();
        }
        if matches!(self.pace, Pace::Gathering) {
            connection.push_gathered(&mut out);
        }
        let most = connection.reactor().hub().map(|_| INLINE);
        self.record.writes += self.layout.transmit(connection.wire(), &mut out, blocks, most, keep);
        self.send_waiting(&mut out, &connection);
        self.settle(&mut out, &connection)
    }

    /// Sends on what waits, unless the socket is full or the I/O side does it.
    fn send_waiting(&self, out: &mut Outbox, connection: &Arc<Connection>) {
        if !out.is_empty() && !out.is_blocked() && !self.leaves_rest(out, connection) {
            connection.send_waiting(out);
        }
    }

    /// True when the response is finished and much of it is left to send: the I/O side does that, without the
    /// interpreter. For a hub's greenlets it sends whatever is left.
    fn leaves_rest(&self, out: &Outbox, connection: &Connection) -> bool {
        if !self.ended || out.is_broken() || out.is_blocked() {
            return false;
        }
        match connection.reactor().hub() {
            Some(_) => !out.is_empty(),
            None => out.has_file() || out.bytes() > HAND_OVER,
        }
    }

    /// After a write: what the application is told.
    fn settle(&mut self, out: &mut Outbox, connection: &Arc<Connection>) -> Sent {
        if out.is_broken() {
            self.gone = true;
            return Sent::Gone;
        }
        connection.await_client(out, false);
        if connection.is_full(out, self.ended) {
            Sent::Full
        } else if self.ended {
            Sent::Enough
        } else {
            Sent::Taken
        }
    }

    pub(crate) fn fail(mut self: Box<Self>, status: u16, detail: Option<&str>) {
        self.record.finished = Some(Instant::now());
        self.gone |= self.client_gone();
        if self.framing.is_some() || self.gone {
            let ending = if self.gone { Ending::ClientGone } else { Ending::Broken };
            return self.close(ending);
        }
        let facts = self.facts_for_head();
        self.record.status = status;
        let sentence = detail.unwrap_or("The application failed; its log has the reason.");
        let connection = self.connection.clone();
        let server = connection.as_ref().map_or("", |c| c.reactor().config().server_name.as_str()).as_bytes();
        let now = Instant::now();
        local::with_date(now, |date| {
            encode::error_response(status, sentence, facts, date, server, self.layout.staging())
        });
        self.framing = Some(ResponseFraming { body: ResponseBody::None, keep_alive: facts.keep_alive });
        self.ended = true;
        self.transmit(&[], &mut |_| Box::new(()));
        let ending = if self.gone { Ending::ClientGone } else { Ending::Complete };
        self.close(ending);
    }

    /// Gives the connection back.
    fn close(mut self: Box<Self>, ending: Ending) {
        let rest = self.inflow.take().map(|inflow| inflow.end());
        if let Some((_, waited)) = &rest {
            self.record.waited += *waited;
        }
        if let Some(follower) = &self.follower {
            *lock(follower) = self.record;
        }
        self.record.ending = ending;
        let Some(connection) = self.connection.take() else { return };
        if let Some(post) = self.post {
            // Before anybody else can have the connection.
            connection.reactor().posts().release(post);
        }
        let until_close = matches!(self.framing, Some(ResponseFraming { body: ResponseBody::UntilClose, .. }));
        let then = match ending {
            Ending::Complete if self.framing.is_some_and(|framing| framing.keep_alive) => Then::Keep,
            Ending::Complete => Then::Close,
            Ending::Broken if until_close => Then::Reset,
            Ending::Open | Ending::ClientGone | Ending::Broken | Ending::TimedOut => Then::Close,
        };
        // What has gathered of a broken response may still be sent; its end may not.
        let hand_over = {
            let mut out = lock(connection.outbox());
            connection.push_gathered(&mut out);
            if out.is_sealed() {
                self.record.ending = Ending::TimedOut;
                if !out.has_begun() {
                    self.record.status = 504;
                }
            }
            out.end_response();
            connection.is_for_others(&out) || self.leaves_rest(&out, &connection) || self.is_turned_away
        };
        connection.exchange_done(then, self, rest.map(|(rest, _)| rest), hand_over);
    }
}
