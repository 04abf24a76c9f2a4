//! The producer's half of a response: its head, its framing, and how quickly its blocks follow each other.
//!
//! The thread that produces a block sends it at once, together with the head if it is the first; large blocks are
//! queued by reference. When small blocks follow each other quickly, they are coalesced instead, and the I/O side sends
//! them.
//!
//! Thread: a [`Response`] belongs to the thread that runs the request. What other threads use is in [`Delivery`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use tailrace_http::body_encoder::BodyEncoder;
use tailrace_http::coding::Coding;
use tailrace_http::compression::{Compression, CompressionRules};
use tailrace_http::encode::{OwnFields, ResponseHead};
use tailrace_http::framing::{RequestFacts, ResponseBody, ResponseFraming};

use crate::observe::record::{Ending, Path, Record};
use crate::os::clock::{Clock, with_date};
use crate::request::Request;
use crate::request::protocol::Responses;
use crate::response::compressing::Compressing;
use crate::response::content_encoder::ContentEncoder;
use crate::response::delivery::{Accepted, After, ClientTime, Delivery, FilePart, Keep, Output};
use crate::response::payload::FileSource;
use crate::response::policy::Coalesce;
use crate::response::sending::{CoalesceResult, DeliveryLimits, Produced, Progress};
use crate::response::write_plan::WritePlan;

/// Blocks of this size and larger are never coalesced.
const COALESCE_BELOW: usize = 16 * 1024;
/// A block is quick if it is ready within this time after the previous one was sent.
const QUICK: Duration = Duration::from_micros(150);
/// After this many quick blocks in a row the next ones are coalesced.
const QUICK_BLOCKS: u8 = 2;
/// A staging buffer of more than this many bytes is not kept for the next response.
const LARGE_PLAN: usize = 64 * 1024;
/// At most this many bytes are added to the blocks of one send: the end of the head, the framing of the body.
const FRAMING: usize = 512;

/// A complete response of more bytes than this is never held.
const HOLD_MOST: usize = 16 * 1024;

/// The result of a send, for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Taken: sent or queued. The next block may follow.
    Taken,
    /// Taken, but the queue is full: call [`crate::connection::exchange::Exchange::wait`] before the next block, with
    /// the interpreter released.
    Full,
    /// Taken, and the body is complete: all bytes that `Content-Length` promised have been produced, or the response
    /// has no body. Further blocks are discarded.
    Enough,
    /// Discarded: the client has disconnected, the connection is broken, or the deadline of the request has passed.
    Gone,
    /// Not taken: the system has no memory for it.
    NoMemory,
}

/// Whether blocks may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// More blocks may come; the response ends with [`crate::connection::exchange::Exchange::finish`].
    More,
    /// These blocks are all there is. If nothing was sent before, their total becomes the `Content-Length`.
    Last,
}

/// Where a response is sent, and what its head depends on.
pub(crate) struct SendContext<'a> {
    pub(crate) delivery: &'a Delivery,
    pub(crate) limits: &'a DeliveryLimits,
    pub(crate) clock: &'a Clock,
    pub(crate) time: &'a dyn ClientTime,
    /// The value of the `Server` field; empty: none.
    pub(crate) server_name: &'a str,
    /// Whether the head gets a `Server-Timing` field.
    pub(crate) server_timing: bool,
    /// The client is known to have disconnected.
    pub(crate) is_gone: bool,
    /// Whether a response may be held; called for one that is small and complete.
    pub(crate) may_hold: &'a dyn Fn() -> bool,
    /// Whether the opening of a response may be delayed: another thread is certain to send it within a tick.
    pub(crate) may_delay: &'a dyn Fn() -> bool,
    /// What a head depends on; called when one is written.
    pub(crate) format: &'a dyn Fn() -> HeadContext<'a>,
}

/// What the head of a response depends on, beside what the application says.
pub(crate) struct HeadContext<'a> {
    pub(crate) format: &'a dyn Responses,
    /// The facts of the request.
    pub(crate) facts: RequestFacts,
    /// The value of `Strict-Transport-Security`; empty: no such field.
    pub(crate) strict_transport: &'a [u8],
    /// Name and value of the field with the id of the request, if it has one.
    pub(crate) id: Option<(&'a [u8], &'a [u8])>,
    /// `None`: the response is not compressed.
    pub(crate) compression: Option<CompressionContext<'a>>,
}

/// What decides whether a response is compressed.
pub(crate) struct CompressionContext<'a> {
    pub(crate) rules: &'a CompressionRules,
    pub(crate) request: &'a Request,
}

impl CompressionContext<'_> {
    /// What is done with the response of this head, whose body has this length, if that is known.
    fn choose(&self, head: &ResponseHead, length: Option<u64>) -> Compression {
        self.rules.choose(head, length, self.request.head.accept_encoding(&self.request.bytes))
    }
}

/// Bytes of the body that the producer may still send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Left {
    /// Any number: no length is promised, or the head is not committed.
    #[default]
    Any,
    /// This many, at least one.
    Exactly(u64),
    /// None: the body has ended, `missing` bytes before its promised length.
    Ended { missing: u64 },
    /// They are discarded: the connection is broken, or the deadline of the request has passed.
    Nowhere,
}

impl Left {
    fn exactly(bytes: u64) -> Self {
        if bytes == 0 { Self::Ended { missing: 0 } } else { Self::Exactly(bytes) }
    }
}

/// How quickly the blocks of the response follow each other.
#[derive(Clone, Copy, Debug, Default)]
enum Pace {
    /// No block has been sent yet.
    #[default]
    Unknown,
    /// Each block is sent at once. The number of quick blocks in a row, and when the last block was sent.
    Direct(u8, Instant),
    /// Blocks are coalesced, and the I/O side sends them.
    Coalescing,
}

/// See the module. Later requests use it again, with the capacity of its buffers.
#[derive(Default)]
pub(crate) struct Response {
    pub(crate) head: ResponseHead,
    /// `None` until the head is committed; until then the head can be changed.
    framing: Option<ResponseFraming>,
    left: Left,
    /// Bytes of blocks beyond the Content-Length.
    surplus: u64,
    plan: WritePlan,
    pace: Pace,
    /// The coding by which the body is compressed, after it has left here.
    coding: Coding,
}

impl Response {
    /// Makes it as new, but keeps the capacity of buffers that are not large.
    pub(crate) fn clear(&mut self) {
        self.head.clear();
        self.framing = None;
        self.left = Left::Any;
        self.surplus = 0;
        self.pace = Pace::Unknown;
        self.coding = Coding::Identity;
        if self.plan.clear() > LARGE_PLAN {
            self.plan = WritePlan::default();
        }
    }

    /// The capacity of its buffers, in bytes.
    pub(crate) fn room(&self) -> usize {
        self.head.room() + self.plan.room()
    }

    /// True once the head has been sent or queued.
    pub(crate) fn is_committed(&self) -> bool {
        self.framing.is_some()
    }

    /// Bytes that the application produced beyond its Content-Length. Files are not counted: they may be longer.
    pub(crate) fn surplus(&self) -> u64 {
        self.surplus
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.left == Left::Nowhere
    }

    fn has_ended(&self) -> bool {
        matches!(self.left, Left::Ended { .. })
    }

    /// From now on everything is discarded.
    pub(crate) fn set_gone(&mut self) {
        self.left = Left::Nowhere;
    }

    /// Bytes that the head promised and the application has not produced; 0 when the response is discarded.
    pub(crate) fn missing(&self) -> u64 {
        match self.left {
            Left::Exactly(bytes) | Left::Ended { missing: bytes } => bytes,
            Left::Any | Left::Nowhere => 0,
        }
    }

    /// The ending of the record, if the application produces nothing more.
    pub(crate) fn ending(&self) -> Ending {
        match self.missing() {
            _ if self.is_gone() => Ending::ClientGone,
            0 => Ending::Complete,
            _ => Ending::Broken,
        }
    }

    /// True when the connection can serve another request after this response, provided that it is complete.
    pub(crate) fn keeps_alive(&self) -> bool {
        self.framing.is_some_and(|framing| framing.keep_alive)
    }

    /// True when only the end of the connection marks the end of the body.
    pub(crate) fn ends_with_connection(&self) -> bool {
        matches!(self.framing, Some(ResponseFraming { body: ResponseBody::UntilClose, .. }))
    }

    pub(crate) fn send(
        &mut self,
        context: &SendContext<'_>,
        record: &mut Record,
        blocks: &[&[u8]],
        position: Position,
        keep: Keep<'_>,
    ) -> (Sent, After) {
        if !self.reserve(blocks) {
            return (Sent::NoMemory, After::default());
        }
        let asked = context.clock.peek();
        let total: usize = blocks.iter().map(|block| block.len()).sum();
        let Some(allowed) = self.open(context, record, total as u64, position, asked) else {
            return (if self.is_gone() { Sent::Gone } else { Sent::Taken }, After::default());
        };
        let allowed = usize::try_from(allowed).unwrap_or(total);
        if allowed < total && (self.has_known_length() || self.is_compressed()) {
            self.surplus += (total - allowed) as u64;
        }
        if let [block] = blocks
            && position == Position::More
            && self.delay(context, record, block)
        {
            return (Sent::Taken, After { list: true, ..After::default() });
        }
        if allowed > 0 {
            record.body_bytes += allowed as u64;
            self.plan.add_blocks(blocks, allowed, self.encoder());
        }
        if position == Position::Last {
            self.end();
        }
        record.blocks += blocks.iter().filter(|block| !block.is_empty()).count() as u64;
        let (sent, mut after) = self.transmit(context, record, blocks, keep, position == Position::Last);
        if !self.has_ended() && !self.is_gone() && total < COALESCE_BELOW {
            after.list |= self.learn_pace(context, record, asked);
        }
        (sent, after)
    }

    /// Sends `length` bytes of a file from `offset`.
    pub(crate) fn send_file(
        &mut self,
        context: &SendContext<'_>,
        record: &mut Record,
        file: Arc<dyn FileSource>,
        offset: u64,
        length: u64,
        position: Position,
    ) -> (Sent, After) {
        if !self.reserve(&[]) {
            return (Sent::NoMemory, After::default());
        }
        let Some(allowed) = self.open(context, record, length, position, context.clock.peek()) else {
            return (if self.is_gone() { Sent::Gone } else { Sent::Taken }, After::default());
        };
        let (encoder, data) = (self.encoder(), usize::try_from(allowed).unwrap_or(usize::MAX));
        encoder.begin(data, self.plan.staging());
        record.body_bytes += allowed;
        record.blocks += 1;
        if !self.is_compressed() {
            record.path = Path::Sendfile;
        }
        let before = std::mem::take(self.plan.staging());
        self.plan.staging().extend_from_slice(encoder.behind(data));
        if position == Position::Last {
            self.end();
        }
        let progress = self.progress(record);
        let behind = self.plan.staging();
        let part = FilePart { before: &before, file, offset, length: allowed, behind, progress };
        let (accepted, after) = context.delivery.transmit_file(part, context.limits, context.time);
        self.plan.clear();
        (self.sent(accepted), after)
    }

    /// Delays the opening of the response, its head and this first block. False: they are sent at once.
    fn delay(&mut self, context: &SendContext<'_>, record: &mut Record, block: &[u8]) -> bool {
        // The head is planned, so it is about to be sent.
        let is_first = record.blocks == 0 && record.body_bytes == 0 && !self.plan.staging().is_empty();
        let is_short = !block.is_empty() && block.len() < COALESCE_BELOW;
        if !is_first || !is_short || self.has_ended() || self.ends_with_connection() || !(context.may_delay)() {
            return false;
        }
        let encoder = self.encoder();
        if !context.delivery.open(self.plan.staging(), record.status, encoder, block, context.limits) {
            return false;
        }
        self.plan.clear();
        self.pace = Pace::Coalescing;
        record.path = Path::Coalesced;
        record.blocks = 1;
        record.body_bytes = block.len() as u64;
        true
    }

    /// Drops a response of which nothing has been sent, since its opening is delayed. Its head can be changed again.
    pub(crate) fn withdraw(&mut self, delivery: &Delivery, limits: &DeliveryLimits, record: &mut Record) {
        if matches!(self.pace, Pace::Coalescing) && delivery.drop_opening(limits) {
            (self.framing, self.pace) = (None, Pace::Unknown);
            if !self.is_gone() {
                self.left = Left::Any;
            }
            (record.blocks, record.body_bytes, record.path, record.first_block) = (0, 0, Path::None, None);
        }
    }

    /// The response is complete. If its opening is still delayed, it is sent as a whole, with its length.
    fn close_opening(&mut self, context: &SendContext<'_>, record: &mut Record) {
        if !matches!(self.pace, Pace::Coalescing) || self.missing() > 0 {
            return;
        }
        let (is_delimited, length) = (self.is_delimited(), record.body_bytes);
        let head = &mut self.head;
        let is_whole = context
            .delivery
            .close(move || is_delimited.then(move || (context.format)().format.head_with_length(head, length)));
        if !is_whole {
            return;
        }
        record.path = Path::OneWrite;
        if is_delimited && let Some(framing) = &mut self.framing {
            (framing.body, framing.encoder) = (ResponseBody::Known(length), BodyEncoder::default());
            self.left = Left::Ended { missing: 0 };
        }
    }

    /// Appends a small block to those that the I/O side sends at its next tick, if blocks are coalesced. `None`: the
    /// caller sends the block directly. The flag: the caller lists the response with the I/O side.
    #[inline]
    pub(crate) fn coalesce(
        &mut self,
        delivery: &Delivery,
        limits: &DeliveryLimits,
        record: &mut Record,
        block: &[u8],
    ) -> Option<(Sent, bool)> {
        if !matches!(self.pace, Pace::Coalescing) || block.len() >= COALESCE_BELOW {
            return None;
        }
        let left = match self.left {
            Left::Any => Left::Any,
            Left::Exactly(bytes) => Left::exactly(bytes.checked_sub(block.len() as u64)?),
            Left::Ended { .. } | Left::Nowhere => return None,
        };
        let mut list = false;
        let mut taken = delivery.coalesce(block, limits);
        if taken == CoalesceResult::Unlisted && limits.policy.coalesce == Coalesce::Always {
            taken = delivery.coalesce_anew(block, self.encoder(), limits);
            record.path = record.path.max(Path::Coalesced);
            list = true;
        }
        let sent = match taken {
            CoalesceResult::Coalesced => Sent::Taken,
            CoalesceResult::Full => Sent::Full,
            CoalesceResult::Unlisted => {
                self.pace = Pace::Unknown;
                return None;
            }
            CoalesceResult::Gone => {
                self.left = Left::Nowhere;
                return Some((Sent::Gone, list));
            }
            CoalesceResult::NoMemory => return Some((Sent::NoMemory, list)),
        };
        record.blocks += u64::from(!block.is_empty());
        record.body_bytes += block.len() as u64;
        self.left = left;
        if self.has_ended() {
            delivery.complete();
            return Some((Sent::Enough, list));
        }
        Some((sent, list))
    }

    /// True when there is nothing to end: the body is complete and no block is coalesced, or everything is discarded.
    pub(crate) fn is_finished(&self) -> bool {
        self.is_gone() || (self.has_ended() && !matches!(self.pace, Pace::Coalescing))
    }

    /// Ends the response: sends an empty one if nothing was sent, and the end of its body. `None`: the
    /// system has no memory for that, and nothing was done.
    pub(crate) fn finish(&mut self, context: &SendContext<'_>, record: &mut Record, now: Instant) -> Option<After> {
        if self.is_finished() {
            return Some(After::default());
        }
        if !self.reserve(&[]) {
            return None;
        }
        if self.framing.is_none() {
            self.commit(context, record, Some(0), now);
        }
        self.close_opening(context, record);
        self.end();
        let (_, after) = self.transmit(context, record, &[], &mut |_| Box::new(()), true);
        Some(after)
    }

    /// Sends an error page in place of a response whose head is not committed.
    pub(crate) fn send_error(
        &mut self,
        context: &SendContext<'_>,
        record: &mut Record,
        status: u16,
        sentence: &str,
        now: Instant,
    ) -> After {
        let HeadContext { format, facts, strict_transport, id, .. } = (context.format)();
        record.status = status;
        record.body_bytes = with_date(now, |date| {
            let own = OwnFields { date, server: context.server_name.as_bytes(), strict_transport, id };
            format.error_page(&mut self.head, (status, sentence), facts, own, self.plan.staging())
        });
        let keep_alive = facts.keep_alive;
        self.framing = Some(ResponseFraming { body: ResponseBody::None, encoder: BodyEncoder::default(), keep_alive });
        self.left = Left::Ended { missing: 0 };
        self.transmit(context, record, &[], &mut |_| Box::new(()), false).1
    }

    /// Reserves memory for the next write: the blocks, their framing, and the head if it is not committed. False: the
    /// system has no memory.
    fn reserve(&mut self, blocks: &[&[u8]]) -> bool {
        let head = if self.framing.is_some() { 0 } else { self.head.bytes().len() };
        self.plan.reserve(blocks, head + FRAMING)
    }

    /// Called before body bytes are sent: commits the head if it is not, and returns how many of `total` bytes may be
    /// sent. `None`: there is nothing to send.
    fn open(
        &mut self,
        context: &SendContext<'_>,
        record: &mut Record,
        total: u64,
        position: Position,
        now: Instant,
    ) -> Option<u64> {
        if context.is_gone {
            self.left = Left::Nowhere;
        }
        if self.is_gone() {
            return None;
        }
        if total > 0 {
            record.first_block.get_or_insert(now);
        }
        if self.framing.is_none() {
            if total == 0 && position == Position::More {
                return None;
            }
            let framing = self.commit(context, record, (position == Position::Last).then_some(total), now);
            // A first block as long as its Content-Length is sent in one write, too.
            record.path = match framing.body {
                _ if self.is_compressed() => Path::Compressed,
                ResponseBody::Known(length) if length == total => Path::OneWrite,
                _ if position == Position::Last => Path::OneWrite,
                _ => Path::Direct,
            };
        }
        Some(self.allow(total))
    }

    /// How many of `total` bytes the framing allows; they count as sent.
    fn allow(&mut self, total: u64) -> u64 {
        match self.left {
            Left::Any => total,
            Left::Exactly(bytes) => {
                let allowed = total.min(bytes);
                self.left = Left::exactly(bytes - allowed);
                allowed
            }
            Left::Ended { .. } | Left::Nowhere => 0,
        }
    }

    /// True when the framing of the body says where it ends, as its length was not known.
    pub(crate) fn is_delimited(&self) -> bool {
        matches!(self.framing, Some(ResponseFraming { body: ResponseBody::Delimited, .. }))
    }

    /// What frames the body; nothing before the head is committed.
    fn encoder(&self) -> BodyEncoder {
        self.framing.map_or_else(BodyEncoder::default, |framing| framing.encoder)
    }

    fn has_known_length(&self) -> bool {
        matches!(self.framing, Some(ResponseFraming { body: ResponseBody::Known(_), .. }))
    }

    /// Called after a block that was ready at `asked` was sent directly: decides whether the next ones are coalesced.
    /// True: the caller lists the response with the I/O side.
    fn learn_pace(&mut self, context: &SendContext<'_>, record: &mut Record, asked: Instant) -> bool {
        match context.limits.policy.coalesce {
            Coalesce::Never => return false,
            Coalesce::WhenQuick => {}
            Coalesce::Always => {
                self.pace = Pace::Coalescing;
                return false;
            }
        }
        let quick = match self.pace {
            Pace::Direct(quick, sent) if asked.saturating_duration_since(sent) < QUICK => quick + 1,
            _ => 0,
        };
        if quick < QUICK_BLOCKS {
            self.pace = Pace::Direct(quick, context.clock.peek());
            return false;
        }
        context.delivery.list(self.encoder());
        self.pace = Pace::Coalescing;
        record.path = record.path.max(Path::Coalesced);
        true
    }

    /// Completes the head and puts it in front of the next write.
    fn commit(
        &mut self,
        context: &SendContext<'_>,
        record: &mut Record,
        mut total: Option<u64>,
        now: Instant,
    ) -> ResponseFraming {
        let HeadContext { format, facts, strict_transport, id, compression } = (context.format)();
        if context.server_timing {
            // The server makes the value, which has no forbidden byte.
            let _ = self.head.field(b"Server-Timing", record.server_timing(now).as_bytes());
        }
        let length = self.head.declared_length();
        let encoder = compression.and_then(|compression| self.compress(context, &compression, facts, &mut total));
        let mut framing = with_date(now, |date| {
            let own = OwnFields { date, server: context.server_name.as_bytes(), strict_transport, id };
            format.head(&mut self.head, facts, total, own, self.plan.staging())
        });
        record.status = self.head.status_code();
        self.left = match framing.body {
            ResponseBody::Known(length) => Left::exactly(length),
            ResponseBody::None => Left::Ended { missing: 0 },
            ResponseBody::Delimited | ResponseBody::UntilClose => Left::Any,
        };
        if let Some(encoder) = encoder {
            // What the application promises counts, whatever becomes of it.
            self.left = length.map_or(Left::Any, Left::exactly);
            let budget = context.limits.memory.responses.clone();
            let encoding = std::mem::take(&mut framing.encoder);
            let compressing = Compressing::new(self.coding, encoder, encoding, budget);
            context.delivery.begin_compressing(self.plan.staging(), compressing, record.status);
            self.plan.clear();
        }
        self.framing = Some(framing);
        framing
    }

    /// Changes the head as its compression requires, and `total`, the length of the body. Returns the encoder of the body;
    /// `None`: it is not compressed, or there is none.
    fn compress(
        &mut self,
        context: &SendContext<'_>,
        compression: &CompressionContext<'_>,
        facts: RequestFacts,
        total: &mut Option<u64>,
    ) -> Option<ContentEncoder> {
        // A body that a framework leaves out for HEAD has no length.
        let length = self.head.declared_length().or(total.filter(|&total| total > 0 || !facts.is_head));
        let chosen = compression.choose(&self.head, length);
        let encoder = match chosen {
            Compression::By(_) if facts.is_head && length.is_none() => {
                // Whether the response to GET is long enough is not known.
                let _ = Compression::Varies.mark(&mut self.head);
                return None;
            }
            Compression::By(coding) if !facts.is_head => {
                let encoder = ContentEncoder::new(coding, length, &context.limits.memory);
                if encoder.is_none() {
                    let _ = Compression::Varies.mark(&mut self.head);
                    return None;
                }
                encoder
            }
            _ => None,
        };
        // Without memory, the response is sent as it is.
        chosen.mark(&mut self.head).ok()?;
        if let Compression::By(coding) = chosen {
            *total = None;
            self.coding = if encoder.is_some() { coding } else { Coding::Identity };
        }
        encoder
    }

    /// True when what is sent from here is compressed.
    fn is_compressed(&self) -> bool {
        self.coding != Coding::Identity
    }

    /// Ends the body.
    fn end(&mut self) {
        match self.left {
            Left::Any => {
                self.left = Left::Ended { missing: 0 };
                self.plan.add_end(self.encoder());
            }
            Left::Exactly(missing) => self.left = Left::Ended { missing },
            Left::Ended { .. } | Left::Nowhere => {}
        }
    }

    fn progress(&self, record: &Record) -> Progress {
        let produced = Produced { status: record.status, body_bytes: record.body_bytes };
        // The content of a compressed body that is too short is not ended, so that its client notices.
        let is_complete = self.has_ended() && !(self.is_compressed() && self.missing() > 0);
        Progress { produced, is_complete }
    }

    /// Writes what is planned, and queues what the socket does not accept. `ends`: the producer ends the response at
    /// once, without running code of the application before, so that the response may be held, and the end of its
    /// connection may be sent with it.
    fn transmit(
        &mut self,
        context: &SendContext<'_>,
        record: &mut Record,
        blocks: &[&[u8]],
        keep: Keep<'_>,
        ends: bool,
    ) -> (Sent, After) {
        let progress = self.progress(record);
        let is_small = self.plan.len() <= HOLD_MOST;
        let is_all = ends && progress.is_complete && is_small;
        // What was delayed is not held as well.
        let may_hold = is_all && !matches!(self.pace, Pace::Coalescing) && (context.may_hold)();
        let is_end = is_all && !self.keeps_alive();
        let output = Output { plan: &mut self.plan, blocks, keep, progress, may_hold, is_end };
        let (accepted, after) = context.delivery.transmit(output, &mut record.writes, context.limits, context.time);
        (self.sent(accepted), after)
    }

    /// The result of a send, for the application.
    fn sent(&mut self, accepted: Accepted) -> Sent {
        match accepted {
            Accepted::Gone => {
                self.left = Left::Nowhere;
                Sent::Gone
            }
            Accepted::Full => Sent::Full,
            Accepted::Taken | Accepted::Batched if self.has_ended() => Sent::Enough,
            Accepted::Taken | Accepted::Batched => Sent::Taken,
        }
    }
}
