//! One request and the response to it, while an application thread carries them.
//!
//! Thread: an exchange belongs to the thread that took it from the ready queue, until it is finished or dropped. It
//! shares only the connection's outbox, behind its lock, with the I/O side that drains it.

use std::fs::File;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_http::encode::{self, ResponseHead};
use penstock_http::framing::{RequestFacts, RequestFraming, ResponseBody, ResponseFraming};
use penstock_http::head::{RequestHead, Version};

use crate::connection::{Connection, Then};
use crate::gather::Appended;
use crate::local;
use crate::lock;
use crate::outbox::Outbox;
use crate::record::{Ending, Record};
use crate::sys::Io;

/// Blocks below this size are copied next to each other: cheaper than a slice of their own for the kernel.
const COPY_BELOW: usize = 2048;
/// What the socket did not take of a large block is copied below this size, held by reference from it on.
const KEEP_FROM: usize = 4096;
/// Slices of one write.
const SLICES: usize = 64;
/// Blocks of this size and larger are never copied into a gather.
const GATHER_BELOW: usize = 16 * 1024;
/// A block is quick that comes so soon after the one before was sent.
const QUICK: Duration = Duration::from_micros(150);
/// So many quick blocks in a row, and the next ones gather.
const QUICK_BLOCKS: u8 = 2;
/// A finished response of which more than this waits is left to the I/O side.
const HAND_OVER: usize = 32 * 1024;

/// Bytes that the application owns and that must outlive the call that sent them.
pub trait Payload: Send {
    /// The bytes; the same at each call.
    fn bytes(&self) -> &[u8];
}

/// A complete request: its head, where it came from, its body.
#[derive(Default)]
pub struct Request {
    /// The bytes of the head; the spans in `head` and `framing` refer to them.
    pub bytes: Vec<u8>,
    /// The parsed head.
    pub head: RequestHead,
    /// Body length and connection rules that the head states.
    pub framing: RequestFraming,
    /// The body, whole.
    pub body: RequestBody,
    /// Who sent it and to which of our addresses.
    pub endpoints: Endpoints,
}

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Endpoints {
    /// The client; `None` on a UNIX socket.
    pub peer: Option<SocketAddr>,
    /// Index of the listener in the list the server was given.
    pub listener: usize,
}

/// The body of a request, read whole before the application is called.
#[derive(Default)]
pub enum RequestBody {
    /// No body, or an empty one.
    #[default]
    Empty,
    /// In memory.
    Memory(Vec<u8>),
    /// In an unlinked temporary file, positioned at its start.
    File {
        /// The file.
        file: File,
        /// Its length in bytes.
        length: u64,
    },
}

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

/// A part of what one `send` writes.
struct Piece {
    /// `None`: in the staging buffer; else in the block of this index.
    block: Option<usize>,
    at: usize,
    end: usize,
}

/// The inside of an exchange: one allocation, reused with all its buffers by later requests of the thread.
pub(crate) struct Guts {
    pub(crate) request: Request,
    pub(crate) facts: RequestFacts,
    pub(crate) record: Record,
    connection: Option<Arc<Connection>>,
    head: ResponseHead,
    framing: Option<ResponseFraming>,
    /// Bytes that Content-Length still promises.
    left: u64,
    /// The last byte of the body has been given out.
    ended: bool,
    gone: bool,
    staging: Vec<u8>,
    pieces: Vec<Piece>,
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

impl Guts {
    pub(crate) fn new() -> Self {
        Self {
            request: Request::default(),
            facts: RequestFacts { version: Version::Http11, is_head: false, keep_alive: false },
            record: Record::new(Instant::now()),
            connection: None,
            head: ResponseHead::default(),
            framing: None,
            left: 0,
            ended: false,
            gone: false,
            staging: Vec::new(),
            pieces: Vec::new(),
            pace: Pace::Unknown,
        }
    }

    /// Makes the guts as new, but for the room of their buffers. False: not worth keeping.
    pub(crate) fn clear(&mut self) -> bool {
        const KEEP: usize = 64 * 1024;
        self.request.bytes.clear();
        self.request.head.clear();
        self.request.body = RequestBody::Empty;
        self.connection = None;
        self.head.clear();
        self.framing = None;
        self.left = 0;
        self.ended = false;
        self.gone = false;
        self.staging.clear();
        self.pieces.clear();
        self.pace = Pace::Unknown;
        self.request.bytes.capacity() <= KEEP && self.staging.capacity() <= KEEP
    }
}

/// One request and the response to it. Dropped before `finish`, it breaks the connection visibly.
pub struct Exchange {
    guts: Option<Box<Guts>>,
}

// `guts` is `Some` from `new` until `finish`, `fail` or `drop` take it, each of which consumes the exchange.
macro_rules! guts {
    ($self:ident) => {
        match $self.guts.as_mut() {
            Some(guts) => guts,
            None => unreachable!("an exchange is consumed when it ends"),
        }
    };
}

impl Exchange {
    pub(crate) fn new(mut guts: Box<Guts>, connection: Arc<Connection>) -> Self {
        guts.connection = Some(connection);
        Self { guts: Some(guts) }
    }

    /// An application thread has taken the request.
    pub(crate) fn begin(&mut self, now: Instant) {
        guts!(self).record.started = Some(now);
    }

    fn guts(&self) -> &Guts {
        match self.guts.as_ref() {
            Some(guts) => guts,
            None => unreachable!("an exchange is consumed when it ends"),
        }
    }

    /// The request.
    pub fn request(&self) -> &Request {
        &self.guts().request
    }

    /// Takes the body out of the request, leaving `Empty`.
    pub fn take_body(&mut self) -> RequestBody {
        std::mem::take(&mut guts!(self).request.body)
    }

    /// The response head, to be filled before the first `send`. `ResponseHead::clear` starts over.
    pub fn head(&mut self) -> &mut ResponseHead {
        &mut guts!(self).head
    }

    /// True once the head has been committed (sent or queued): it cannot be changed any more.
    pub fn head_sent(&self) -> bool {
        self.guts().framing.is_some()
    }

    /// The record so far.
    pub fn record(&self) -> &Record {
        &self.guts().record
    }

    /// Sends blocks, the head before them if it has not gone yet: one `writev` for all where the socket takes it.
    /// What the socket does not take is queued: small rests are copied, of large blocks `keep(index)` is asked to give
    /// an owner. Never blocks. Empty blocks do not commit the head.
    pub fn send(
        &mut self,
        blocks: &[&[u8]],
        position: Position,
        keep: &mut dyn FnMut(usize) -> Box<dyn Payload>,
    ) -> Sent {
        let guts = guts!(self);
        if let (Pace::Gathering, Position::More, [block]) = (guts.pace, position, blocks)
            && let Some(sent) = guts.gather(block)
        {
            return sent;
        }
        let asked = Instant::now();
        let total: usize = blocks.iter().map(|block| block.len()).sum();
        let Some(allowed) = guts.open(total as u64, position) else {
            return if guts.gone { Sent::Gone } else { Sent::Taken };
        };
        let allowed = usize::try_from(allowed).unwrap_or(total);
        if allowed > 0 {
            guts.stage(blocks, allowed);
        }
        guts.end_if_last(position);
        let sent = guts.transmit(blocks, keep);
        if !guts.ended && total < GATHER_BELOW {
            guts.learn_pace(asked);
        }
        sent
    }

    /// Sends `length` bytes of a file from `offset` by `sendfile`. If nothing was sent before and `position` is `Last`,
    /// `length` becomes the `Content-Length`.
    pub fn send_file(&mut self, file: OwnedFd, offset: u64, length: u64, position: Position) -> Sent {
        let guts = guts!(self);
        let Some(allowed) = guts.open(length, position) else {
            return if guts.gone { Sent::Gone } else { Sent::Taken };
        };
        let chunked = guts.is_chunked();
        if allowed > 0 && chunked {
            guts.stage_chunk_header(usize::try_from(allowed).unwrap_or(usize::MAX));
        }
        guts.record.body_bytes += allowed;
        let Some(connection) = guts.connection.clone() else { return Sent::Gone };
        let mut out = lock(connection.outbox());
        connection.push_gathered(&mut out);
        out.push_copy(&guts.staging);
        guts.staging.clear();
        out.push_file(file, offset, allowed);
        if allowed > 0 && chunked {
            out.push_copy(encode::CHUNK_END);
        }
        guts.end_if_last(position);
        out.push_copy(&guts.staging);
        guts.staging.clear();
        out.flush(connection.wire());
        guts.settle(&mut out, &connection)
    }

    /// Waits until the queue has room again. Blocks: release the interpreter first.
    pub fn wait(&mut self) -> Sent {
        let guts = guts!(self);
        let Some(connection) = guts.connection.as_ref() else { return Sent::Gone };
        if connection.wait_for_room() {
            Sent::Taken
        } else {
            guts.gone = true;
            Sent::Gone
        }
    }

    /// True when the peer is known to be gone (reset or closed both ways).
    pub fn client_gone(&self) -> bool {
        let guts = self.guts();
        guts.gone || guts.connection.as_ref().is_none_or(|connection| connection.is_gone())
    }

    /// Ends the response: an empty one if nothing was sent, the last chunk of a chunked one. A body shorter than its
    /// `Content-Length` breaks the connection instead and answers `Err` with the missing byte count.
    ///
    /// # Errors
    /// [`Short`] when fewer bytes were sent than the head promised.
    pub fn finish(mut self) -> Result<(), Short> {
        let Some(mut guts) = self.guts.take() else { return Ok(()) };
        guts.record.finished = Some(Instant::now());
        if !guts.gone && (!guts.ended || matches!(guts.pace, Pace::Gathering)) {
            if guts.framing.is_none() {
                guts.commit(Some(0));
            }
            guts.end();
            guts.transmit(&[], &mut |_| Box::new(Nothing));
        }
        let missing = guts.left;
        if missing > 0 && !guts.gone {
            guts.close(Ending::Broken);
            return Err(Short { missing });
        }
        let ending = if guts.gone { Ending::ClientGone } else { Ending::Complete };
        guts.close(ending);
        Ok(())
    }

    /// Answers a small error page (`status` 500, 502, ...) if nothing was sent, else breaks the connection visibly.
    /// `detail` is HTML for the page's body, already escaped; `None` gives the standard sentence.
    pub fn fail(mut self, status: u16, detail: Option<&str>) {
        if let Some(guts) = self.guts.take() {
            guts.fail(status, detail);
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Some(guts) = self.guts.take() {
            guts.fail(500, None);
        }
    }
}

/// The owner of no bytes.
struct Nothing;

impl Payload for Nothing {
    fn bytes(&self) -> &[u8] {
        &[]
    }
}

impl Guts {
    /// Before body bytes: commits the head if need be, and says how many of `total` may be sent. `None`: nothing is to
    /// be done.
    fn open(&mut self, total: u64, position: Position) -> Option<u64> {
        if self.gone {
            return None;
        }
        if total > 0 {
            self.record.blocks += 1;
            if self.record.first_block.is_none() {
                self.record.first_block = Some(Instant::now());
            }
        }
        let Some(framing) = self.framing else {
            if total == 0 && position == Position::More {
                return None;
            }
            let framing = self.commit((position == Position::Last).then_some(total));
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
    fn gather(&mut self, block: &[u8]) -> Option<Sent> {
        if block.len() >= GATHER_BELOW || self.gone || self.ended {
            return None;
        }
        let known = matches!(self.framing, Some(ResponseFraming { body: ResponseBody::Known(_), .. }));
        if known && self.left < block.len() as u64 {
            return None;
        }
        let connection = self.connection.as_deref()?;
        let limit = connection.reactor().config().outbox_limit;
        let appended = lock(connection.gather()).append(block, limit);
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
    }

    /// Completes the head and puts it at the front of what is sent next.
    fn commit(&mut self, total: Option<u64>) -> ResponseFraming {
        let stopping = self.connection.as_ref().is_none_or(|connection| connection.reactor().is_stopping());
        let mut facts = self.facts;
        facts.keep_alive &= !stopping;
        let framing = local::with_date(|date| {
            let server = self.connection.as_ref().map_or("", |c| c.reactor().config().server_name.as_str());
            self.head.finish(facts, total, date, server.as_bytes())
        });
        self.record.status = self.head.status_code();
        self.staging.extend_from_slice(self.head.bytes());
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

    fn stage_chunk_header(&mut self, length: usize) {
        let mut line = [0; 20];
        let end = encode::chunk_header(length, &mut line);
        self.staging.extend_from_slice(&line[..end]);
    }

    /// Lays out the first `allowed` bytes of the blocks: small ones in the staging buffer, large ones by reference.
    fn stage(&mut self, blocks: &[&[u8]], mut allowed: usize) {
        self.record.body_bytes += allowed as u64;
        let chunked = self.is_chunked();
        if chunked {
            self.stage_chunk_header(allowed);
        }
        let mut from = 0;
        for (index, block) in blocks.iter().enumerate() {
            let length = block.len().min(allowed);
            allowed -= length;
            if length < COPY_BELOW {
                self.staging.extend_from_slice(&block[..length]);
            } else {
                self.stage_piece(&mut from);
                self.pieces.push(Piece { block: Some(index), at: 0, end: length });
            }
            if allowed == 0 {
                break;
            }
        }
        if chunked {
            self.staging.extend_from_slice(encode::CHUNK_END);
        }
        if !self.pieces.is_empty() {
            self.stage_piece(&mut from);
        }
    }

    /// What has been staged since `from` becomes a piece.
    fn stage_piece(&mut self, from: &mut usize) {
        if self.staging.len() > *from {
            self.pieces.push(Piece { block: None, at: *from, end: self.staging.len() });
            *from = self.staging.len();
        }
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
            let from = self.staging.len();
            self.staging.extend_from_slice(encode::LAST_CHUNK);
            if !self.pieces.is_empty() {
                self.pieces.push(Piece { block: None, at: from, end: self.staging.len() });
            }
        }
    }

    /// Writes what was laid out, queues what the socket does not take.
    fn transmit(&mut self, blocks: &[&[u8]], keep: &mut dyn FnMut(usize) -> Box<dyn Payload>) -> Sent {
        let Some(connection) = self.connection.clone() else { return Sent::Gone };
        let mut out = lock(connection.outbox());
        if matches!(self.pace, Pace::Gathering) {
            connection.push_gathered(&mut out);
        }
        if self.pieces.is_empty() {
            self.transmit_staging(&mut out, &connection);
        } else {
            self.transmit_pieces(blocks, keep, &mut out, &connection);
        }
        self.staging.clear();
        self.pieces.clear();
        if !out.is_empty() && !out.is_blocked() && !(self.ended && self.may_hand_over(&out, &connection)) {
            out.flush(connection.wire());
        }
        self.settle(&mut out, &connection)
    }

    /// True when much is left of a finished response, and another thread is there to send it.
    fn may_hand_over(&self, out: &Outbox, connection: &Connection) -> bool {
        matches!(self.pace, Pace::Gathering) && out.bytes() > HAND_OVER && connection.reactor().has_io_thread()
    }

    /// The short way: everything is in one buffer.
    fn transmit_staging(&mut self, out: &mut Outbox, connection: &Connection) {
        let mut sent = 0;
        while out.is_empty() && !out.is_broken() && sent < self.staging.len() {
            self.record.writes += 1;
            match connection.wire().transmit(&[IoSlice::new(&self.staging[sent..])], false) {
                Io::Moved(count) => sent += count,
                Io::WouldBlock => {
                    out.set_blocked(true);
                    break;
                }
                Io::End | Io::Broken => out.break_off(),
            }
        }
        out.push_copy(&self.staging[sent..]);
    }

    fn transmit_pieces(
        &mut self,
        blocks: &[&[u8]],
        keep: &mut dyn FnMut(usize) -> Box<dyn Payload>,
        out: &mut Outbox,
        connection: &Connection,
    ) {
        let staging = &self.staging;
        let bytes_of = |piece: &Piece| match piece.block {
            None => &staging[piece.at..piece.end],
            Some(index) => &blocks[index][piece.at..piece.end],
        };
        let mut first = 0;
        while out.is_empty() && !out.is_broken() && first < self.pieces.len() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut count = 0;
            for (slice, piece) in slices.iter_mut().zip(&self.pieces[first..]) {
                *slice = IoSlice::new(bytes_of(piece));
                count += 1;
            }
            self.record.writes += 1;
            match connection.wire().transmit(&slices[..count], false) {
                Io::Moved(mut moved) => {
                    while let Some(piece) = self.pieces.get_mut(first).filter(|_| moved > 0) {
                        let step = moved.min(piece.end - piece.at);
                        piece.at += step;
                        moved -= step;
                        if piece.at == piece.end {
                            first += 1;
                        }
                    }
                }
                Io::WouldBlock => {
                    out.set_blocked(true);
                    break;
                }
                Io::End | Io::Broken => out.break_off(),
            }
        }
        for piece in &self.pieces[first..] {
            match piece.block {
                Some(index) if piece.end - piece.at >= KEEP_FROM => out.push_kept(keep(index), piece.at, piece.end),
                _ => out.push_copy(bytes_of(piece)),
            }
        }
    }

    /// After a write: what the application is told.
    fn settle(&mut self, out: &mut Outbox, connection: &Connection) -> Sent {
        if out.is_broken() {
            self.gone = true;
            return Sent::Gone;
        }
        if !out.is_empty() {
            connection.await_client();
        }
        if self.ended {
            Sent::Enough
        } else if out.bytes() > connection.reactor().config().outbox_limit {
            Sent::Full
        } else {
            Sent::Taken
        }
    }

    fn fail(mut self: Box<Self>, status: u16, detail: Option<&str>) {
        self.record.finished = Some(Instant::now());
        if self.framing.is_some() || self.gone {
            let ending = if self.gone { Ending::ClientGone } else { Ending::Broken };
            self.close(ending);
            return;
        }
        let Some(connection) = self.connection.clone() else { return };
        let mut facts = self.facts;
        facts.keep_alive &= !connection.reactor().is_stopping();
        self.record.status = status;
        let sentence = detail.unwrap_or("The application failed; its log has the reason.");
        let server = connection.reactor().config().server_name.as_bytes();
        local::with_date(|date| encode::error_response(status, sentence, facts, date, server, &mut self.staging));
        self.framing = Some(ResponseFraming { body: ResponseBody::None, keep_alive: facts.keep_alive });
        self.ended = true;
        self.transmit(&[], &mut |_| Box::new(Nothing));
        let ending = if self.gone { Ending::ClientGone } else { Ending::Complete };
        self.close(ending);
    }

    /// Gives the connection back.
    fn close(mut self: Box<Self>, ending: Ending) {
        let Some(connection) = self.connection.take() else { return };
        self.record.ending = ending;
        let until_close = matches!(self.framing, Some(ResponseFraming { body: ResponseBody::UntilClose, .. }));
        let then = match ending {
            Ending::Complete if self.framing.is_some_and(|framing| framing.keep_alive) => Then::Keep,
            Ending::Complete => Then::Close,
            Ending::Broken if until_close => Then::Reset,
            Ending::Open | Ending::ClientGone | Ending::Broken => Then::Close,
        };
        // What has gathered of a broken response may still be sent; its end may not.
        let hand_over = {
            let mut out = lock(connection.outbox());
            connection.push_gathered(&mut out);
            !out.is_broken() && !out.is_blocked() && self.may_hand_over(&out, &connection)
        };
        connection.exchange_done(then, self, hand_over);
    }
}
