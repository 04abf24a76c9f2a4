//! The state of the response of a connection: one enum, the send queue, the coalescing buffer, and who writes.
//!
//! Plain data behind the lock of [`crate::response::delivery`]: no socket, no clock, no thread. Each connection has
//! one; each of its responses begins in [`SendState::Idle`] and returns there, unless it breaks the connection.

use std::sync::Arc;

use tailrace_http::body_encoder::BodyEncoder;

use crate::observe::record::Compressed;
use crate::os::clock::{Millis, NEVER};
use crate::os::socket::Io;
use crate::request::memory::{Budget, ClientMemory};
use crate::response::coalescing::{Appended, Coalescing, Opening};
use crate::response::compressing::{Compressing, Made, Step};
use crate::response::payload::UnreadPart;
use crate::response::policy::Policy;
use crate::response::send_queue::{Batch, NoMemory, SendQueue};

/// Bytes that may be queued for one client when the memory for all of them is used up, and responses are moved to
/// files.
const LEAST_QUEUE: usize = 64 * 1024;
/// The same if they are not.
const LEAST_WITHOUT_FILES: usize = 4 * 1024;

/// The limits of what is queued for clients, and how it is delivered. The same for all connections of a server.
pub(crate) struct DeliveryLimits {
    pub(crate) policy: Policy,
    /// Bytes of one response that may be queued in memory before its producer has to wait.
    pub(crate) queue_limit: usize,
    /// The same when the memory for all responses together is used up.
    pub(crate) least_queue: usize,
    /// How long a client may accept no byte.
    pub(crate) write_timeout: Millis,
    /// Bytes per second that a client must accept on average; 0: no limit.
    pub(crate) min_rate: u64,
    pub(crate) memory: Arc<ClientMemory>,
}

impl DeliveryLimits {
    /// The value of `least_queue`. `has_files`: responses are moved to files when the memory is used up.
    pub(crate) fn least_queue(queue_limit: usize, has_files: bool) -> usize {
        queue_limit.min(if has_files { LEAST_QUEUE } else { LEAST_WITHOUT_FILES })
    }

    /// True while the responses of all connections keep within their memory.
    pub(crate) fn has_memory(&self) -> bool {
        self.memory.has_room_for_response(0)
    }

    /// Bytes that may be queued for one client before its producer has to wait.
    pub(crate) fn high_water(&self) -> usize {
        if self.has_memory() { self.queue_limit } else { self.least_queue }
    }

    /// A producer that waits continues when no more bytes than this are queued.
    pub(crate) fn low_water(&self) -> usize {
        self.high_water() / 2
    }

    fn budget(&self) -> &Arc<Budget> {
        &self.memory.responses
    }
}

/// How much of a response its producer has produced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Produced {
    pub(crate) status: u16,
    pub(crate) body_bytes: u64,
}

/// The progress of a producer, with what it sends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// What it has produced in all, including what it sends now.
    pub(crate) produced: Produced,
    /// The response is complete with it.
    pub(crate) is_complete: bool,
}

/// The state of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendState {
    /// No response has begun.
    Idle,
    /// Some of it has been sent or is queued, and more may come.
    Sending(Produced),
    /// All of it has been sent or is queued.
    Complete(Produced),
    /// The deadline of the request has passed, and the server has answered with a page of this status and size. What
    /// the application produces is discarded.
    TimedOut(Produced),
    /// The connection is broken: nothing is sent any more, of this response or a later one.
    Broken {
        /// What the producer, or the server in its place, had produced before.
        produced: Produced,
        /// Why it is broken.
        by: Cause,
    },
}

/// Why a connection is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The client disconnected, or the server gave the connection up.
    Other,
    /// The deadline of the request passed while its response was being sent.
    Deadline,
    /// As `Other`, after the server had answered in the application's place.
    AfterPage,
    /// A file had fewer bytes than were to be sent of it. More than [`u32::MAX`] missing bytes are noted as so many:
    /// every idle connection has this field.
    ShortFile { missing: u32 },
}

/// Whether a thread is writing to the socket, without the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    Nobody,
    /// A thread is writing.
    Busy {
        /// Another thread tried to write meanwhile and left that to this one.
        is_asked: bool,
        /// An event has reported room in the socket since this thread began: if it finds the socket full, it tries
        /// again.
        retries: bool,
    },
}

/// What became of a response whose deadline has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeOut {
    /// It had not begun: the page is queued and has to be flushed.
    Answered,
    /// It had begun and is broken off: the caller aborts the connection.
    BrokenOff,
    /// It was complete, timed out already, or its connection broken: nothing was done.
    Over,
}

/// The result of an attempt to coalesce a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CoalesceResult {
    /// The block will be sent at the next tick.
    Coalesced,
    /// The same, but the producer has to wait before the next one.
    Full,
    /// Not taken: the response is not listed with the I/O side. The caller sends the block directly.
    Unlisted,
    /// Discarded: the connection is broken, or the deadline of the request has passed.
    Gone,
    /// Not taken: the system has no memory for it.
    NoMemory,
}

/// What is known of a response when its producer has ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// `Some`: its deadline passed before it was complete. The inner value: the body bytes of the page that was sent in
    /// its place; `None`: it was broken off.
    pub(crate) timed_out: Option<Option<u64>>,
    /// Some of it was written to a file.
    pub(crate) has_spilled: bool,
    /// All of it has been sent.
    pub(crate) is_sent: bool,
    /// The connection is broken.
    pub(crate) is_broken: bool,
    /// The I/O side sends the rest.
    pub(crate) is_left: bool,
    /// All of it is queued, because it is held.
    pub(crate) is_batched: bool,
    /// See [`crate::response::delivery::After::compress`].
    pub(crate) compress: bool,
}

/// See the module.
pub(crate) struct Sending {
    state: SendState,
    pub(crate) queue: SendQueue,
    /// `Some` from the first coalesced block until the end of the response, so that an idle connection takes little
    /// memory.
    coalescing: Option<Box<Coalescing>>,
    /// `Some` from the head of a compressed response until it is accounted for.
    compressing: Option<Box<Compressing>>,
    writer: Writer,
    /// The socket was full at the last write. An event will report when it has room.
    is_blocked: bool,
    /// The I/O side has been asked to send the queue, because the socket is not known to be full, so that no event of
    /// it may follow.
    is_pushed: bool,
    /// Some of the response has been written to a file.
    has_spilled: bool,
    /// The response is complete and held.
    is_batched: bool,
    /// Since when queued bytes have waited for the client without a break; [`NEVER`]: none wait.
    waiting_since: Millis,
    /// A part of a file that has to be read from the disk before it is sent; until then the socket counts as full.
    unread: Option<Box<UnreadPart>>,
    /// The value of `sent` at that time.
    sent_then: u64,
    /// Bytes of the queue that the kernel has accepted, in all.
    sent: u64,
}

impl Sending {
    /// The state for a new connection.
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self {
            state: SendState::Idle,
            queue: SendQueue::new(budget),
            coalescing: None,
            compressing: None,
            writer: Writer::Nobody,
            is_blocked: false,
            is_pushed: false,
            has_spilled: false,
            is_batched: false,
            waiting_since: NEVER,
            unread: None,
            sent_then: 0,
            sent: 0,
        }
    }

    /// True when all of the response has been sent or queued, and the connection is not broken.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.state, SendState::Complete(_))
    }

    /// True when no more of the response comes: all of it has been sent or queued, and its producer may have ended it.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self.state, SendState::Complete(_) | SendState::Idle)
    }

    /// True when what the producer sends is discarded.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, SendState::TimedOut(_) | SendState::Broken { .. })
    }

    /// True when the server has answered in the application's place.
    pub(crate) fn is_timed_out(&self) -> bool {
        matches!(self.state, SendState::TimedOut(_))
    }

    /// True when the connection is broken.
    pub(crate) fn is_broken(&self) -> bool {
        matches!(self.state, SendState::Broken { .. })
    }

    /// Notes what the producer has produced so far.
    pub(crate) fn note_produced(&mut self, Progress { produced, is_complete }: Progress) {
        if is_complete && let Some(compressing) = &mut self.compressing {
            compressing.complete();
        }
        match &mut self.state {
            SendState::Idle | SendState::Sending(_) if is_complete => self.state = SendState::Complete(produced),
            SendState::Idle | SendState::Sending(_) => self.state = SendState::Sending(produced),
            SendState::TimedOut(_) | SendState::Broken { by: Cause::AfterPage, .. } => {}
            SendState::Complete(before) | SendState::Broken { produced: before, .. } => *before = produced,
        }
    }

    /// Notes that the producer has produced all of the response.
    pub(crate) fn complete(&mut self) {
        if let SendState::Idle | SendState::Sending(_) = self.state {
            self.state = SendState::Complete(self.produced());
            if let Some(compressing) = &mut self.compressing {
                compressing.complete();
            }
        }
    }

    fn produced(&self) -> Produced {
        match self.state {
            SendState::Idle => Produced::default(),
            SendState::Sending(produced)
            | SendState::Complete(produced)
            | SendState::TimedOut(produced)
            | SendState::Broken { produced, .. } => produced,
        }
    }

    /// Status and body bytes of the current response, and whether its deadline has passed. For the log, where the
    /// producer cannot be asked.
    pub(crate) fn produced_so_far(&self) -> (Produced, bool) {
        let is_late = match self.state {
            SendState::TimedOut(_) => true,
            SendState::Broken { by, .. } => matches!(by, Cause::Deadline | Cause::AfterPage),
            SendState::Idle | SendState::Sending(_) | SendState::Complete(_) => false,
        };
        (self.produced(), is_late)
    }

    /// The deadline of the request has passed. `page` makes the error page, which is sent if the response has not
    /// begun, and returns it with the length of its body.
    pub(crate) fn time_out(&mut self, page: impl FnOnce() -> (Vec<u8>, u64)) -> TimeOut {
        match self.state {
            SendState::Complete(_) | SendState::TimedOut(_) | SendState::Broken { .. } => TimeOut::Over,
            SendState::Idle => {
                let (page, page_bytes) = page();
                self.state = SendState::TimedOut(Produced { status: 504, body_bytes: page_bytes });
                if self.queue.push_copy(&page).is_err() {
                    self.break_off();
                }
                TimeOut::Answered
            }
            SendState::Sending(produced) => {
                self.break_off();
                self.state = SendState::Broken { produced, by: Cause::Deadline };
                TimeOut::BrokenOff
            }
        }
    }

    /// Breaks the connection: drops what is queued, and discards everything from now on.
    pub(crate) fn break_off(&mut self) {
        self.break_off_by(Cause::Other);
    }

    fn break_off_by(&mut self, cause: Cause) {
        let by = match self.state {
            SendState::Broken { by, .. } => by,
            SendState::TimedOut(_) => Cause::AfterPage,
            SendState::Idle | SendState::Sending(_) | SendState::Complete(_) => cause,
        };
        self.state = SendState::Broken { produced: self.produced(), by };
        self.queue.clear();
        if let Some(compressing) = &mut self.compressing {
            compressing.break_off();
        }
    }

    /// What a flush reports of a broken connection. Another thread than the one that found it broken may ask.
    pub(crate) fn broken(&self) -> Flush {
        match self.state {
            SendState::Broken { by: Cause::ShortFile { missing }, .. } => Flush::Short(u64::from(missing)),
            _ => Flush::Broken,
        }
    }

    /// Breaks the connection if there was no memory to queue something: a part of the response is missing.
    fn check(&mut self, pushed: Result<(), NoMemory>) {
        if pushed.is_err() {
            self.break_off();
        }
    }

    /// Holds the response, which the producer then queues. False, and nothing is done: the response is not complete, or
    /// some of it has been sent or queued.
    pub(crate) fn hold(&mut self, progress: Progress) -> bool {
        let holds = progress.is_complete && matches!(self.state, SendState::Idle) && self.takes_writes();
        if holds {
            self.note_produced(progress);
            self.is_batched = true;
        }
        holds
    }

    /// Appends to the queue, or to what is to be compressed, unless what the producer sends is discarded.
    pub(crate) fn push(&mut self, push: impl FnOnce(&mut SendQueue) -> Result<(), NoMemory>) {
        if !self.is_over() {
            let plain = self.compressing.as_mut().and_then(|compressing| compressing.queue());
            let pushed = push(plain.unwrap_or(&mut self.queue));
            self.check(pushed);
        }
    }

    /// Ends the response: what follows belongs to the next one. Called when the producer sends nothing more.
    pub(crate) fn end(&mut self, limits: &DeliveryLimits) -> End {
        let timed_out = match self.state {
            SendState::TimedOut(page) | SendState::Broken { produced: page, by: Cause::AfterPage } => {
                Some(Some(page.body_bytes))
            }
            SendState::Broken { by: Cause::Deadline, .. } => Some(None),
            _ => None,
        };
        let leaves_rest = self.leaves_rest(limits);
        // The coalesced blocks of an incomplete response may still be sent, but not its end.
        self.flush_coalesced(limits);
        if let Some(mut coalescing) = self.coalescing.take() {
            coalescing.reset(limits.budget());
        }
        if let Some(compressing) = &mut self.compressing {
            compressing.end();
        }
        let compress = self.schedule_compression();
        if !self.queue.is_empty() && !limits.has_memory() {
            self.queue.copy_tails();
        }
        let (has_spilled, is_sent, is_broken) = (self.has_spilled, self.is_sent(), self.is_broken());
        if !is_broken {
            self.state = SendState::Idle;
        }
        self.has_spilled = false;
        let is_batched = std::mem::take(&mut self.is_batched) && !is_sent && !is_broken;
        if is_sent {
            self.waiting_since = NEVER;
        }
        // A runner whose writes are limited leaves all the rest to the I/O side.
        let is_left = leaves_rest || (limits.policy.most_by_runner.is_some() && !is_sent && !is_broken);
        End { timed_out, has_spilled, is_sent, is_broken, is_left, is_batched, compress }
    }

    /// Notes that some of the response has been written to a file, unless its producer has ended it.
    pub(crate) fn set_spilled(&mut self) {
        self.has_spilled = self.state != SendState::Idle;
    }
}

/// Coalescing.
impl Sending {
    /// From now on the producer coalesces its blocks.
    pub(crate) fn list(&mut self, encoder: BodyEncoder) {
        self.coalescing.get_or_insert_default().list(encoder);
    }

    /// Delays the opening of a response, see [`Coalescing::open`]. Until it is queued, the response has not begun: the
    /// page of a deadline or of an error may take its place.
    pub(crate) fn open(
        &mut self,
        head: &[u8],
        status: u16,
        encoder: BodyEncoder,
        block: &[u8],
        limits: &DeliveryLimits,
    ) -> bool {
        // What is discarded needs no delay.
        matches!(self.state, SendState::Idle)
            && self.coalescing.get_or_insert_default().open(head, status, encoder, block, limits.budget())
    }

    /// The producer has produced all of the response. True: its opening has not been queued and will be sent, see
    /// [`Coalescing::close`].
    pub(crate) fn close<'h>(&mut self, head: impl FnOnce() -> Option<&'h [u8]>) -> bool {
        !self.is_over() && self.coalescing.as_mut().is_some_and(|coalescing| coalescing.close(head))
    }

    /// Drops the delayed opening of the response. False: there is none.
    pub(crate) fn drop_opening(&mut self, limits: &DeliveryLimits) -> bool {
        self.coalescing.as_mut().is_some_and(|coalescing| coalescing.drop_opening(limits.budget()))
    }

    /// The opening of the response is being queued.
    fn note_opened(&mut self, produced: Produced) {
        match &mut self.state {
            SendState::Idle => self.state = SendState::Sending(produced),
            // The producer has coalesced all of it.
            SendState::Complete(before) if before.status == 0 => *before = produced,
            _ => {}
        }
    }

    /// Appends a block to the coalescing buffer.
    pub(crate) fn coalesce(&mut self, block: &[u8], limits: &DeliveryLimits) -> CoalesceResult {
        if self.is_over() {
            return CoalesceResult::Gone;
        }
        let Some(coalescing) = &mut self.coalescing else { return CoalesceResult::Unlisted };
        match coalescing.append(block, limits.budget()) {
            Appended::Unlisted => CoalesceResult::Unlisted,
            Appended::NoMemory => CoalesceResult::NoMemory,
            Appended::Taken if self.is_flooded(limits) => CoalesceResult::Full,
            Appended::Taken => CoalesceResult::Coalesced,
        }
    }

    /// True when so many bytes are coalesced or queued that the producer has to wait.
    fn is_flooded(&self, limits: &DeliveryLimits) -> bool {
        let queued = self.queued();
        self.coalesced() > limits.queue_limit || (queued > limits.least_queue && queued > limits.high_water())
    }

    /// Moves what is coalesced to the end of the queue.
    pub(crate) fn flush_coalesced(&mut self, limits: &DeliveryLimits) {
        let coalesced = self.coalescing.as_mut().and_then(|coalescing| coalescing.take(limits.budget()));
        let Some(coalesced) = coalesced else { return };
        if let Some(Opening { status, length }) = coalesced.opening {
            self.note_opened(Produced { status, body_bytes: length as u64 });
        }
        let mut at = coalesced.at;
        for segment in coalesced.segments {
            let waits = !self.takes_writes();
            self.push(|queue| queue.push_buffer(segment, at, waits));
            at = 0;
        }
    }

    /// Number of coalesced bytes.
    pub(crate) fn coalesced(&self) -> usize {
        self.coalescing.as_ref().map_or(0, |coalescing| coalescing.len())
    }

    /// Called by the I/O side at a tick. `moved`: it found coalesced bytes. True: it is to look again at the next tick.
    pub(crate) fn stays_listed(&mut self, moved: bool) -> bool {
        self.coalescing.as_mut().is_some_and(|coalescing| coalescing.stays_listed(moved))
    }
}

/// Compression.
impl Sending {
    /// From now on what the producer sends is compressed. Queues the head of the response.
    pub(crate) fn compress(&mut self, head: &[u8], compressing: Compressing, status: u16) {
        if self.is_over() {
            return;
        }
        // No page may follow the head.
        self.note_produced(Progress { produced: Produced { status, body_bytes: 0 }, is_complete: false });
        self.push(|queue| queue.push_copy(head));
        self.compressing = Some(Box::new(compressing));
    }

    /// True from the head of a compressed response until its producer has ended it.
    pub(crate) fn is_compressing(&self) -> bool {
        self.compressing.as_ref().is_some_and(|compressing| compressing.is_open())
    }

    /// True when a disk thread has to be asked to compress, which counts as done.
    pub(crate) fn schedule_compression(&mut self) -> bool {
        self.compressing.as_mut().is_some_and(|compressing| compressing.schedule())
    }

    /// Called by the owner of the connection, which has sent everything. True: more comes of the compression, and the
    /// owner is notified.
    pub(crate) fn await_compression(&mut self) -> bool {
        self.compressing.as_mut().is_some_and(|compressing| compressing.await_end())
    }

    /// True, once, when the owner of the connection waits for the compression and nothing more comes.
    pub(crate) fn take_awaited(&mut self) -> bool {
        self.compressing.as_mut().is_some_and(|compressing| compressing.take_awaited())
    }

    /// What a disk thread compresses next, without the lock. `None`: nothing.
    pub(crate) fn begin_compressing(&mut self, limits: &DeliveryLimits) -> Option<Step> {
        // If the response is complete, this step may end the content.
        self.flush_coalesced(limits);
        self.compressing.as_mut()?.begin()
    }

    /// Queues what a disk thread has compressed.
    pub(crate) fn end_compressing(&mut self, made: Made) {
        let Some(compressing) = &mut self.compressing else { return };
        match compressing.end_step(made) {
            Ok((bytes, at)) if !self.is_over() => {
                let waits = !self.takes_writes();
                let pushed = self.queue.push_buffer(bytes, at, waits);
                self.check(pushed);
            }
            Ok(_) => {}
            Err(()) if self.is_over() => {}
            Err(()) => self.break_off(),
        }
    }

    /// What the compression of the response has taken and gained, once, when it is over.
    pub(crate) fn take_compressed(&mut self) -> Option<Compressed> {
        let result = self.compressing.as_ref()?.result()?;
        self.compressing = None;
        Some(result)
    }

    /// Bytes in memory that are queued or to be compressed.
    pub(crate) fn queued(&self) -> usize {
        self.queue.bytes() + self.compressing.as_ref().map_or(0, |compressing| compressing.bytes())
    }
}

/// Writing.
impl Sending {
    /// True when nothing is queued and the socket may have room: a producer may write directly.
    pub(crate) fn takes_writes(&self) -> bool {
        self.queue.is_empty() && !self.is_writing() && !self.is_over() && !self.is_blocked
    }

    fn is_writing(&self) -> bool {
        self.writer != Writer::Nobody
    }

    /// True when nothing is queued, compressed or being written.
    pub(crate) fn is_sent(&self) -> bool {
        let is_pending = self.compressing.as_ref().is_some_and(|compressing| compressing.is_pending());
        self.queue.is_empty() && !self.is_writing() && !is_pending
    }

    /// Makes the caller the writer. False: another thread is the writer, and its [`Sending::end_writing`] will return
    /// true.
    pub(crate) fn begin_writing(&mut self) -> bool {
        match &mut self.writer {
            Writer::Nobody => {
                self.writer = Writer::Busy { is_asked: false, retries: false };
                true
            }
            Writer::Busy { is_asked, .. } => {
                *is_asked = true;
                false
            }
        }
    }

    /// Ends the writing of the caller. True: another thread tried to write meanwhile and left that to the caller.
    pub(crate) fn end_writing(&mut self) -> bool {
        let writer = std::mem::replace(&mut self.writer, Writer::Nobody);
        matches!(writer, Writer::Busy { is_asked: true, .. })
    }

    /// Called by the writer when it has found the socket full. True: an event has reported room meanwhile, so it tries
    /// again.
    fn may_retry(&mut self) -> bool {
        match &mut self.writer {
            Writer::Nobody => false,
            Writer::Busy { retries, .. } => std::mem::take(retries),
        }
    }

    /// What the writer sends next. `None`: nothing is queued.
    pub(crate) fn next_batch(&mut self) -> Option<Batch> {
        self.queue.take()
    }

    /// Notes the result of the write of a batch. `None`: the writer continues.
    pub(crate) fn wrote(&mut self, batch: Batch, moved: Io) -> Option<Flush> {
        if self.is_broken() {
            self.queue.drop_batch(batch);
            return Some(self.broken());
        }
        match moved {
            Io::Moved(count) => {
                self.is_blocked = false;
                self.sent += count as u64;
                self.queue.put_back(batch, count);
                None
            }
            Io::WouldBlock => {
                self.queue.put_back(batch, 0);
                if self.may_retry() {
                    return None;
                }
                self.is_blocked = true;
                self.queue.shrink_front();
                Some(Flush::Blocked)
            }
            Io::End => {
                let missing = u32::try_from(batch.left_of_file()).unwrap_or(u32::MAX);
                self.queue.drop_batch(batch);
                self.break_off_by(Cause::ShortFile { missing });
                Some(self.broken())
            }
            Io::Broken => {
                self.queue.drop_batch(batch);
                self.break_off();
                Some(Flush::Broken)
            }
        }
    }

    /// Called by the writer, which has written nothing: a part of a file is not in memory.
    pub(crate) fn found_unread(&mut self, batch: Batch, part: UnreadPart) -> Flush {
        self.queue.put_back(batch, 0);
        self.unread = Some(Box::new(part));
        self.is_blocked = true;
        Flush::Blocked
    }

    /// True when a part of a file waits to be read by a disk thread.
    pub(crate) fn has_unread(&self) -> bool {
        self.unread.is_some()
    }

    /// The part of a file that a disk thread is to read.
    pub(crate) fn take_unread(&mut self) -> Option<Box<UnreadPart>> {
        self.unread.take()
    }

    /// Called by a producer whose direct write has found the socket full; it is still the writer. True: an event has
    /// reported room meanwhile, so it tries again.
    pub(crate) fn found_full(&mut self) -> bool {
        let retries = self.may_retry();
        self.is_blocked = !retries;
        retries
    }

    /// True when the last write found the socket full and no event has come since.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Notes an event that reports room in the socket.
    pub(crate) fn unblock(&mut self) {
        self.is_blocked = false;
        if let Writer::Busy { retries, .. } = &mut self.writer {
            *retries = true;
        }
    }

    /// `true`: notes that the I/O side is asked to send the queue; `false`: that it does so now. Returns whether that
    /// is new.
    pub(crate) fn set_pushed(&mut self, pushed: bool) -> bool {
        std::mem::replace(&mut self.is_pushed, pushed) != pushed
    }

    /// Bytes of the queue that the kernel has accepted since the connection began.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Number of write calls since the last call of this method.
    pub(crate) fn take_writes(&mut self) -> u32 {
        self.queue.take_writes()
    }
}

/// The client's deadline, and when the producer has to wait.
impl Sending {
    /// After a write: the time by which the client must accept more; [`NEVER`]: no deadline. `None`: unchanged.
    /// `progress`: the socket has just accepted bytes. `now` is only called where it is needed.
    pub(crate) fn deadline(
        &mut self,
        progress: bool,
        limits: &DeliveryLimits,
        now: impl FnOnce() -> Millis,
    ) -> Option<Millis> {
        if self.is_writing() {
            // The other writer calls this when it is done.
            return None;
        }
        if self.queue.is_empty() {
            return (std::mem::replace(&mut self.waiting_since, NEVER) != NEVER).then_some(NEVER);
        }
        if !progress && (self.waiting_since != NEVER || !self.is_blocked) {
            return None;
        }
        let now = now();
        // Also set when the socket is not full and the I/O side sends the rest later, so that the deadline is removed
        // when the queue is empty.
        if self.waiting_since == NEVER {
            (self.waiting_since, self.sent_then) = (now, self.sent);
        }
        if !self.is_blocked {
            return Some(now.saturating_add(limits.write_timeout));
        }
        Some(within_rate(now, self.waiting_since, limits.write_timeout, self.sent - self.sent_then, limits.min_rate))
    }

    /// True when the producer has to wait. The producer of a complete response only waits if the memory for responses
    /// is used up; otherwise the I/O side sends the rest.
    pub(crate) fn is_full(&self, limits: &DeliveryLimits) -> bool {
        // A producer waits if the socket is full, or if another thread sends: the current writer, or the I/O side where
        // runners may only write little. That thread wakes the producer.
        let is_tried =
            self.is_blocked || self.is_writing() || limits.policy.most_by_runner.is_some() || self.is_compressing();
        is_tried && self.queued() > limits.high_water() && !(self.is_complete() && limits.has_memory())
    }

    /// True when a producer that waits may continue.
    pub(crate) fn has_room(&self, limits: &DeliveryLimits) -> bool {
        self.queued() + self.coalesced() <= limits.low_water()
    }

    /// True when the response is complete, much of it is left to send, and the socket has room: the I/O side sends the
    /// rest, without the interpreter.
    pub(crate) fn leaves_rest(&self, limits: &DeliveryLimits) -> bool {
        self.is_complete()
            && !self.is_blocked
            && (self.queue.has_file() || self.queue.bytes() > limits.policy.most_after_end)
    }
}

/// The result of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flush {
    /// Everything has been sent.
    Empty,
    /// The socket is full.
    Blocked,
    /// The socket has room, but other connections are served first.
    More,
    /// Another thread is writing, and sends the rest.
    Elsewhere,
    /// The connection is broken.
    Broken,
    /// A file ended this many bytes before its promised length: the body cannot be completed, and the connection is
    /// broken.
    Short(u64),
}

/// The deadline, at time `now`, of a transfer that began at `since` and has moved `moved` bytes: at most `pause` from
/// now, and at most `since` + `pause` + the time that `moved` bytes take at `rate` bytes per second (0: no minimum
/// rate).
pub(crate) fn within_rate(now: Millis, since: Millis, pause: Millis, moved: u64, rate: u64) -> Millis {
    let by_pause = now.saturating_add(pause);
    match moved.saturating_mul(1_000).checked_div(rate) {
        Some(time) => by_pause.min(since.saturating_add(pause).saturating_add(time)),
        None => by_pause,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use tailrace_http::body_encoder::BodyEncoder;

    use super::{Cause, CoalesceResult, DeliveryLimits, Flush, Produced, Progress, SendState, Sending};
    use crate::os::socket::Io;
    use crate::request::memory::ClientMemory;
    use crate::response::policy::{Coalesce, Policy, Waiting};
    use crate::response::segments::tests::without_memory;

    const PRODUCED: Produced = Produced { status: 200, body_bytes: 5 };
    const PAGE: Produced = Produced { status: 504, body_bytes: 4 };

    const IDLE: SendState = SendState::Idle;
    const SENDING: SendState = SendState::Sending(PRODUCED);
    const COMPLETE: SendState = SendState::Complete(PRODUCED);
    const TIMED_OUT: SendState = SendState::TimedOut(PAGE);
    const BROKEN: SendState = SendState::Broken { produced: PRODUCED, by: Cause::Other };
    const LATE: SendState = SendState::Broken { produced: PRODUCED, by: Cause::Deadline };
    const BROKEN_PAGE: SendState = SendState::Broken { produced: PAGE, by: Cause::AfterPage };
    /// As [`BROKEN`], before the producer has sent anything.
    const BROKEN_IDLE: SendState =
        SendState::Broken { produced: Produced { status: 0, body_bytes: 0 }, by: Cause::Other };

    /// Broken in this state, since a file had fewer bytes than were to be sent.
    fn short(before: SendState) -> SendState {
        let produced = if let SendState::Sending(produced) | SendState::Complete(produced) = before {
            produced
        } else {
            Produced::default()
        };
        SendState::Broken { produced, by: Cause::ShortFile { missing: 0 } }
    }

    pub(crate) fn limits() -> DeliveryLimits {
        DeliveryLimits {
            policy: Policy {
                coalesce: Coalesce::WhenQuick,
                waiting: Waiting::Block,
                most_by_runner: None,
                most_by_io: None,
                most_after_end: 32 * 1024,
                holds: true,
                reads_by_runner: 1,
            },
            queue_limit: 10_000,
            least_queue: 10_000,
            write_timeout: 30_000,
            min_rate: 0,
            memory: Arc::new(ClientMemory::new(1 << 20, 10_000)),
        }
    }

    /// A write of the five queued bytes.
    fn write(sending: &mut Sending, moved: Io) {
        assert!(sending.begin_writing());
        if let Some(batch) = sending.next_batch() {
            sending.wrote(batch, moved);
        }
        sending.end_writing();
    }

    #[test]
    fn every_operation_in_every_state() {
        type Operation = fn(&mut Sending, &DeliveryLimits);
        let before = [IDLE, SENDING, COMPLETE, TIMED_OUT, BROKEN, LATE, BROKEN_PAGE];
        let same = before;
        let broken = [BROKEN_IDLE, BROKEN, BROKEN, BROKEN_PAGE, BROKEN, LATE, BROKEN_PAGE];
        let complete = [COMPLETE, COMPLETE, COMPLETE, TIMED_OUT, BROKEN, LATE, BROKEN_PAGE];
        let table: [(&str, Operation, [SendState; 7]); 11] = [
            (
                "gives a part",
                |sending, _| sending.note_produced(Progress { produced: PRODUCED, is_complete: false }),
                [SENDING, SENDING, COMPLETE, TIMED_OUT, BROKEN, LATE, BROKEN_PAGE],
            ),
            (
                "gives the rest",
                |sending, _| sending.note_produced(Progress { produced: PRODUCED, is_complete: true }),
                complete,
            ),
            (
                "has produced all",
                |sending, _| sending.complete(),
                [SendState::Complete(Produced::default()), COMPLETE, COMPLETE, TIMED_OUT, BROKEN, LATE, BROKEN_PAGE],
            ),
            (
                "times out",
                |sending, _| {
                    sending.time_out(|| (b"page".to_vec(), 4));
                },
                [TIMED_OUT, LATE, COMPLETE, TIMED_OUT, BROKEN, LATE, BROKEN_PAGE],
            ),
            ("is broken off", |sending, _| sending.break_off(), broken),
            (
                "has no memory",
                |sending, _| without_memory(|| sending.push(|queue| queue.push_copy(b"block"))),
                // What is sent after the page is discarded and needs no memory.
                [BROKEN_IDLE, BROKEN, BROKEN, TIMED_OUT, BROKEN, LATE, BROKEN_PAGE],
            ),
            ("sends", |sending, _| write(sending, Io::Moved(3)), same),
            ("finds the socket full", |sending, _| write(sending, Io::WouldBlock), same),
            (
                "finds a file short",
                |sending, _| write(sending, Io::End),
                [short(IDLE), short(SENDING), short(COMPLETE), BROKEN_PAGE, BROKEN, LATE, BROKEN_PAGE],
            ),
            ("finds the client gone", |sending, _| write(sending, Io::Broken), broken),
            (
                "ends",
                |sending, limits| {
                    sending.end(limits);
                },
                [IDLE, IDLE, IDLE, IDLE, BROKEN, LATE, BROKEN_PAGE],
            ),
        ];
        for (what, operation, after) in table {
            for (before, after) in before.into_iter().zip(after) {
                let limits = limits();
                let budget = limits.memory.responses.clone();
                let mut sending = Sending::new(budget.clone());
                if !matches!(before, SendState::Broken { .. }) {
                    assert!(what == "has no memory" || sending.queue.push_copy(b"block").is_ok());
                }
                sending.state = before;
                if sending.is_broken() && what.starts_with("finds") {
                    // A write that was under way when the connection broke.
                    assert!(sending.queue.push_copy(b"block").is_ok());
                }
                operation(&mut sending, &limits);
                assert_eq!(sending.state, after, "{before:?} {what}");
                if sending.is_broken() {
                    assert!(sending.queue.is_empty() && budget.used() == 0, "{before:?} {what}: nothing waits");
                }
            }
        }
    }

    /// A response with so many bytes in the queue.
    fn queued(limits: &DeliveryLimits, bytes: usize) -> Sending {
        let mut sending = Sending::new(limits.memory.responses.clone());
        sending.push(|queue| queue.push_copy(&vec![b'x'; bytes]));
        sending
    }

    #[test]
    fn a_producer_waits_above_the_limit_and_continues_at_half_of_it() {
        let memory = Arc::new(ClientMemory::new(1 << 20, 1 << 20));
        let limits = DeliveryLimits { queue_limit: 8_000, least_queue: 2_000, memory, ..limits() };
        for (queue, coalesced, is_full) in
            [(0, 8_000, false), (0, 8_001, true), (2_001, 1, false), (8_000, 1, false), (8_001, 1, true)]
        {
            let mut sending = queued(&limits, queue);
            let charged = limits.memory.responses.used();
            sending.list(BodyEncoder::default());
            let result = sending.coalesce(&vec![b'x'; coalesced], &limits);
            assert_eq!(result == CoalesceResult::Full, is_full, "{queue} queued, {coalesced} coalesced: {result:?}");
            assert!(limits.memory.responses.used() >= charged + coalesced);
            sending.flush_coalesced(&limits);
            sending.break_off();
            assert_eq!(limits.memory.responses.used(), 0);
        }
        assert!(queued(&limits, 4_000).has_room(&limits) && !queued(&limits, 4_001).has_room(&limits));
    }

    #[test]
    fn much_of_a_complete_response_is_left_to_the_io_side() {
        let limits = limits();
        for (bytes, is_left) in [(5, false), (32 * 1024, false), (32 * 1024 + 1, true), (100_000, true)] {
            let mut sending = queued(&limits, bytes);
            assert!(!sending.leaves_rest(&limits), "it is not complete");
            sending.complete();
            assert_eq!((sending.leaves_rest(&limits), sending.end(&limits).is_left), (is_left, is_left), "{bytes}");
        }
        let limited = DeliveryLimits { policy: Policy { most_by_runner: Some(1), ..limits.policy }, ..self::limits() };
        let mut sending = queued(&limited, 5);
        sending.complete();
        assert!(sending.end(&limited).is_left, "runners write little");
        let mut sending = queued(&limited, 5);
        sending.break_off();
        assert!(!sending.end(&limited).is_left, "nothing is left of a broken connection");
    }

    #[test]
    fn a_response_is_whole_before_it_begins_and_once_all_of_it_is_there() {
        let mut sending = Sending::new(Arc::default());
        for (state, is_whole) in [(IDLE, true), (SENDING, false), (COMPLETE, true), (TIMED_OUT, false), (BROKEN, false)]
        {
            sending.state = state;
            assert_eq!(sending.is_whole(), is_whole, "{state:?}");
        }
    }

    #[test]
    fn an_opening_that_is_queued_late_does_not_change_what_was_produced() {
        let mut sending = Sending::new(Arc::default());
        for (before, after) in [
            (IDLE, SendState::Sending(PAGE)),
            (SENDING, SENDING),
            (COMPLETE, COMPLETE),
            (SendState::Complete(Produced::default()), SendState::Complete(PAGE)),
            (BROKEN, BROKEN),
        ] {
            sending.state = before;
            sending.note_opened(PAGE);
            assert_eq!(sending.state, after, "{before:?}");
        }
    }

    #[test]
    fn a_client_that_takes_bytes_is_given_time_for_the_bytes_since_it_was_first_full() {
        let limits = DeliveryLimits { min_rate: 1, ..limits() };
        let mut sending = queued(&limits, 5);
        write(&mut sending, Io::Moved(1));
        write(&mut sending, Io::WouldBlock);
        assert_eq!(sending.deadline(false, &limits, || 1_000), Some(31_000));
        assert_eq!(sending.deadline(true, &limits, || 2_000), Some(31_000), "it has taken nothing since");
        write(&mut sending, Io::Moved(1));
        write(&mut sending, Io::WouldBlock);
        assert_eq!(sending.deadline(true, &limits, || 3_000), Some(32_000), "a second more for a byte");
    }

    #[test]
    fn a_file_that_ends_early_is_missed_by_what_was_left_of_it() {
        let mut sending = Sending::new(Arc::default());
        let file = std::fs::File::open("/dev/null").unwrap();
        sending.queue.push_file(Arc::new(std::os::fd::OwnedFd::from(file)), 0, 70);
        assert!(sending.begin_writing());
        let batch = sending.next_batch().unwrap();
        assert_eq!(sending.wrote(batch, Io::Moved(20)), None);
        let batch = sending.next_batch().unwrap();
        assert_eq!(sending.wrote(batch, Io::End), Some(Flush::Short(50)));
    }
}
