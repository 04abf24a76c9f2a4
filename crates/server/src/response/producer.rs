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
use tailrace_http::encode::{self, OwnFields, ResponseHead};
use tailrace_http::framing::{RequestFacts, ResponseBody, ResponseFraming};
use tailrace_observe::record::{Path, Record};
use tailrace_observe::scoreboard;
use tailrace_os::clock::{Clock, with_date};

use crate::request::Request;
use crate::request::stream::Incoming;
use crate::response::body_progress::BodyProgress;
use crate::response::coalescing::{Delay, DelayedOpening};
use crate::response::content_encoder::ContentEncoder;
use crate::response::delivery::{Accepted, After, ClientTime, Delivery, FilePart, Keep, Output};
use crate::response::outbox::{CoalesceResult, DeliveryLimits};
use crate::response::payload::FileSource;
use crate::response::policy::Coalesce;
use crate::response::send_queue::NoMemory;
use crate::response::send_state::{Produced, Progress};
use crate::response::write_plan::WritePlan;
use crate::sticky::Sessions;

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
const MAX_HELD: usize = 16 * 1024;

/// The result of a send, for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Taken: sent or queued. The next block may follow.
    Taken,
    /// Taken, but the queue is full: call [`crate::ResponseStream::wait`] before the next block, with
    /// the interpreter released.
    Full,
    /// Taken, and the body is complete: all bytes that `Content-Length` promised have been produced, or the response
    /// has no body. Further blocks are discarded.
    BodyComplete,
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
#[derive(Clone, Copy)]
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
    /// A small complete response may be held.
    pub(crate) may_hold: bool,
    /// The opening of a response may be delayed: another thread is certain to send it within a tick.
    pub(crate) may_delay: bool,
    /// The facts of the request, see [`SendContext::facts_for_head`].
    pub(crate) facts: RequestFacts,
    /// The body of the request, if it is read while it arrives.
    pub(crate) incoming: Option<&'a Incoming>,
    /// Name and value of the field with the id of the request, if it has one.
    pub(crate) id: Option<(&'a [u8], &'a [u8])>,
    /// `None`: the response is not compressed.
    pub(crate) compression: Option<CompressionContext<'a>>,
    /// The sessions that a head may begin, and the request. `None`: they do not belong to workers.
    pub(crate) sessions: Option<(&'a Sessions, &'a Request)>,
}

impl SendContext<'_> {
    /// What a head depends on. Called for each head: the client then knows whether its body is awaited.
    fn facts_for_head(&self) -> RequestFacts {
        let is_readable = self.incoming.is_none_or(|incoming| incoming.answered());
        RequestFacts { keep_alive: self.facts.keep_alive && is_readable, ..self.facts }
    }
}

/// What decides whether a response is compressed.
#[derive(Clone, Copy)]
pub(crate) struct CompressionContext<'a> {
    pub(crate) rules: &'a CompressionRules,
    pub(crate) request: &'a Request,
}

impl CompressionContext<'_> {
    /// What is done with the response of this head, whose body has this length, if that is known.
    fn choose(&self, head: &ResponseHead, length: Option<u64>) -> Compression {
        let Request { head: asked, bytes, .. } = self.request;
        self.rules.choose(head, length, asked.values(bytes, b"Accept-Encoding"), asked.values(bytes, b"If-None-Match"))
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
    pub(crate) body: BodyProgress,
    plan: WritePlan,
    pace: Pace,
}

impl Response {
    /// Makes it as new, but keeps the capacity of buffers that are not large.
    pub(crate) fn clear(&mut self) {
        self.head.clear();
        self.body = BodyProgress::default();
        self.pace = Pace::Unknown;
        if self.plan.clear() > LARGE_PLAN {
            self.plan = WritePlan::default();
        }
    }

    /// The capacity of its buffers, in bytes.
    pub(crate) fn room(&self) -> usize {
        self.head.room() + self.plan.room()
    }

    pub(crate) fn send(
        &mut self,
        context: &SendContext<'_>,
        record: &mut Record,
        blocks: &[&[u8]],
        position: Position,
        keep: Keep<'_>,
    ) -> (Sent, After) {
        if self.reserve(blocks).is_err() {
            return (Sent::NoMemory, After::default());
        }
        let asked = context.clock.peek();
        let total: usize = blocks.iter().map(|block| block.len()).sum();
        let Some(allowed) = self.open(context, record, total as u64, position, asked) else {
            return (if self.body.is_gone() { Sent::Gone } else { Sent::Taken }, After::default());
        };
        let allowed = usize::try_from(allowed).unwrap_or(total);
        if allowed < total {
            self.body.note_beyond((total - allowed) as u64);
        }
        if let [block] = blocks
            && position == Position::More
            && self.delay(context, record, block) == Delay::Delayed
        {
            return (Sent::Taken, After { list: true, ..After::default() });
        }
        if allowed > 0 {
            record.body_bytes += allowed as u64;
            self.plan.add_blocks(blocks, allowed, self.body.encoder());
        }
        if position == Position::Last {
            self.end();
        }
        record.blocks += blocks.iter().filter(|block| !block.is_empty()).count() as u64;
        let (sent, mut after) = self.transmit(context, record, blocks, keep, position == Position::Last);
        if !self.body.has_ended() && !self.body.is_gone() && total < COALESCE_BELOW {
            after.list |= self.must_list(context, record, asked);
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
        if self.reserve(&[]).is_err() {
            return (Sent::NoMemory, After::default());
        }
        let Some(allowed) = self.open(context, record, length, position, context.clock.peek()) else {
            return (if self.body.is_gone() { Sent::Gone } else { Sent::Taken }, After::default());
        };
        let (encoder, data) = (self.body.encoder(), usize::try_from(allowed).unwrap_or(usize::MAX));
        encoder.begin(data, self.plan.staging());
        record.body_bytes += allowed;
        record.blocks += 1;
        if !self.body.is_compressed() {
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

    /// Delays the opening of the response, its head and this first block, if it may.
    fn delay(&mut self, context: &SendContext<'_>, record: &mut Record, block: &[u8]) -> Delay {
        // The head is planned, so it is about to be sent.
        let is_first = record.blocks == 0 && record.body_bytes == 0 && !self.plan.staging().is_empty();
        let is_short = !block.is_empty() && block.len() < COALESCE_BELOW;
        if !is_first || !is_short || self.body.has_ended() || self.body.ends_with_connection() || !context.may_delay {
            return Delay::Declined;
        }
        let encoder = self.body.encoder();
        let delay = context.delivery.outbox().open(self.plan.staging(), record.status, encoder, block, context.limits);
        if delay == Delay::Declined {
            return delay;
        }
        self.plan.clear();
        self.pace = Pace::Coalescing;
        record.path = Path::Coalesced;
        record.blocks = 1;
        record.body_bytes = block.len() as u64;
        Delay::Delayed
    }

    /// Drops a response of which nothing has been sent, since its opening is delayed. Its head can be changed again.
    pub(crate) fn withdraw(&mut self, delivery: &Delivery, record: &mut Record) {
        if matches!(self.pace, Pace::Coalescing) && delivery.outbox().coalescing.drop_opening() == DelayedOpening::Here
        {
            self.body.withdraw();
            self.pace = Pace::Unknown;
            (record.blocks, record.body_bytes, record.path, record.first_block) = (0, 0, Path::None, None);
        }
    }

    /// The response is complete. If its opening is still delayed, it is sent as a whole, with its length.
    fn close_opening(&mut self, context: &SendContext<'_>, record: &mut Record) {
        if !matches!(self.pace, Pace::Coalescing) || self.body.missing() > 0 {
            return;
        }
        let (is_delimited, length) = (self.body.is_delimited(), record.body_bytes);
        let head = &mut self.head;
        let head_with_length = move || {
            is_delimited.then(move || {
                head.state_length(length);
                head.bytes()
            })
        };
        if context.delivery.outbox().close(head_with_length) == DelayedOpening::Gone {
            return;
        }
        record.path = Path::OneWrite;
        if is_delimited {
            self.body.state_length(length);
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
        if !self.body.has_room(block.len() as u64) {
            return None;
        }
        let mut list = false;
        let mut taken = delivery.outbox().coalesce(block, limits);
        if taken == CoalesceResult::Unlisted && limits.policy.coalesce == Coalesce::Always {
            let mut outbox = delivery.outbox();
            outbox.coalescing.list(self.body.encoder());
            taken = outbox.coalesce(block, limits);
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
                self.body.set_gone();
                return Some((Sent::Gone, list));
            }
            CoalesceResult::NoMemory => return Some((Sent::NoMemory, list)),
        };
        record.blocks += u64::from(!block.is_empty());
        record.body_bytes += block.len() as u64;
        self.body.allow(block.len() as u64);
        if self.body.has_ended() {
            let mut outbox = delivery.outbox();
            let produced = outbox.state.produced();
            outbox.note_produced(Progress { produced, is_complete: true });
            return Some((Sent::BodyComplete, list));
        }
        Some((sent, list))
    }

    /// True when there is nothing to end: the body is complete and no block is coalesced, or everything is discarded.
    pub(crate) fn is_finished(&self) -> bool {
        self.body.is_gone() || (self.body.has_ended() && !matches!(self.pace, Pace::Coalescing))
    }

    /// Ends the response: sends an empty one if nothing was sent, and the end of its body. `None`: the
    /// system has no memory for that, and nothing was done.
    pub(crate) fn finish(&mut self, context: &SendContext<'_>, record: &mut Record, now: Instant) -> Option<After> {
        if self.is_finished() {
            return Some(After::default());
        }
        self.reserve(&[]).ok()?;
        if !self.body.is_committed() {
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
        let (id, facts) = (context.id, context.facts_for_head());
        record.status = status;
        record.body_bytes = with_date(now, |date| {
            let own = OwnFields { date, server: context.server_name.as_bytes(), id };
            encode::error_response(&mut self.head, status, sentence, facts, own, self.plan.staging())
        });
        let keep_alive = facts.keep_alive;
        let framing = ResponseFraming { body: ResponseBody::None, encoder: BodyEncoder::default(), keep_alive };
        self.body.commit(framing, None);
        self.transmit(context, record, &[], &mut |_| Box::new(()), false).1
    }

    /// Reserves memory for the next write: the blocks, their framing, and the head if it is not committed.
    fn reserve(&mut self, blocks: &[&[u8]]) -> Result<(), NoMemory> {
        let head = if self.body.is_committed() { 0 } else { self.head.bytes().len() };
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
            self.body.set_gone();
        }
        if self.body.is_gone() {
            return None;
        }
        if total > 0 {
            record.first_block.get_or_insert(now);
        }
        if !self.body.is_committed() {
            if total == 0 && position == Position::More {
                return None;
            }
            let framing = self.commit(context, record, (position == Position::Last).then_some(total), now);
            // A first block as long as its Content-Length is sent in one write, too.
            record.path = match framing.body {
                _ if self.body.is_compressed() => Path::Compressed,
                ResponseBody::Known(length) if length == total => Path::OneWrite,
                _ if position == Position::Last => Path::OneWrite,
                _ => Path::Direct,
            };
        }
        Some(self.body.allow(total))
    }

    /// Called after a block that was ready at `asked` was sent directly: decides whether the next ones are coalesced.
    /// True: the caller lists the response with the I/O side.
    fn must_list(&mut self, context: &SendContext<'_>, record: &mut Record, asked: Instant) -> bool {
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
        context.delivery.outbox().coalescing.list(self.body.encoder());
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
        let (id, facts) = (context.id, context.facts_for_head());
        if context.server_timing {
            // The server makes the value, which has no forbidden byte.
            let _ = self.head.field(b"Server-Timing", record.server_timing(now).as_bytes());
        }
        if let Some((sessions, request)) = context.sessions {
            // Before the client knows the key.
            sessions.note_head(request, &self.head, scoreboard::now);
        }
        let length = self.head.declared_length();
        let encoder = self.compress(context, &mut total);
        let mut framing = with_date(now, |date| {
            let own = OwnFields { date, server: context.server_name.as_bytes(), id };
            let framing = self.head.finish(facts, total, own);
            self.plan.staging().extend_from_slice(self.head.bytes());
            framing
        });
        record.status = self.head.status_code();
        let compression = encoder.as_ref().map(|&(coding, _)| (coding, length));
        if let Some(content) = encoder {
            let encoding = std::mem::take(&mut framing.encoder);
            context.delivery.outbox().compress(self.plan.staging(), record.status, content, encoding, context.limits);
            self.plan.clear();
        }
        self.body.commit(framing, compression);
        framing
    }

    /// Changes the head as its compression requires, and `total`, the length of the body. Returns the encoder of the body
    /// with its coding; `None`: it is not compressed, or there is none.
    fn compress(&mut self, context: &SendContext<'_>, total: &mut Option<u64>) -> Option<(Coding, ContentEncoder)> {
        let compression = context.compression?;
        let is_head = context.facts.is_head;
        // A body that a framework leaves out for HEAD has no length.
        let length = self.head.declared_length().or(total.filter(|&total| total > 0 || !is_head));
        let chosen = compression.choose(&self.head, length);
        let encoder = match chosen {
            Compression::By(_) if is_head && length.is_none() => {
                // Whether the response to GET is long enough is not known.
                let _ = Compression::Varies.mark(&mut self.head);
                return None;
            }
            Compression::By(coding) if !is_head => {
                let encoder = ContentEncoder::new(coding, length, &context.limits.memory);
                if encoder.is_none() {
                    let _ = Compression::Varies.mark(&mut self.head);
                    return None;
                }
                encoder.map(|encoder| (coding, encoder))
            }
            _ => None,
        };
        // Without memory, the response is sent as it is.
        chosen.mark(&mut self.head).ok()?;
        if let Compression::By(_) = chosen {
            *total = None;
        }
        encoder
    }

    /// Ends the body.
    fn end(&mut self) {
        if let Some(encoder) = self.body.end() {
            self.plan.add_end(encoder);
        }
    }

    fn progress(&self, record: &Record) -> Progress {
        let produced = Produced { status: record.status, body_bytes: record.body_bytes };
        // The content of a compressed body that is too short is not ended, so that its client notices.
        let is_complete = self.body.has_ended() && !(self.body.is_compressed() && self.body.missing() > 0);
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
        let is_small = self.plan.len() <= MAX_HELD;
        let is_all = ends && progress.is_complete && is_small;
        // What was delayed is not held as well.
        let may_hold = is_all && !matches!(self.pace, Pace::Coalescing) && context.may_hold;
        let is_end = is_all && !self.body.keeps_alive();
        let output = Output { plan: &mut self.plan, blocks, keep, progress, may_hold, is_end };
        let (accepted, after) = context.delivery.transmit(output, &mut record.writes, context.limits, context.time);
        (self.sent(accepted), after)
    }

    /// The result of a send, for the application.
    fn sent(&mut self, accepted: Accepted) -> Sent {
        match accepted {
            Accepted::Gone => {
                self.body.set_gone();
                Sent::Gone
            }
            Accepted::Full => Sent::Full,
            Accepted::Taken | Accepted::Batched if self.body.has_ended() => Sent::BodyComplete,
            Accepted::Taken | Accepted::Batched => Sent::Taken,
        }
    }
}
