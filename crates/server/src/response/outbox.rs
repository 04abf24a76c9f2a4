//! The state of the response of a connection: one enum, the send queue, the coalescing buffer, and who writes.
//!
//! Plain data behind the lock of [`crate::response::delivery`]: no socket, no clock, no thread. Each connection has
//! one; each of its responses begins in [`SendState::Idle`] and returns there, unless it breaks the connection.

use std::sync::Arc;

use tailrace_http::body_encoder::BodyEncoder;
use tailrace_http::coding::Coding;
use tailrace_os::clock::Millis;
use tailrace_os::socket::Io;

use crate::request::memory::{Budget, ClientMemory};
use crate::response::client_pace::ClientPace;
use crate::response::coalescing::{Appended, Coalescing, Delay, DelayedOpening, QueuedOpening};
use crate::response::compressing::{Compressing, Made, Step};
use crate::response::content_encoder::ContentEncoder;
use crate::response::payload::UnreadPart;
use crate::response::policy::Policy;
use crate::response::send_queue::{Batch, NoMemory, SendQueue};
use crate::response::send_state::{Cause, Produced, Progress, SendState};

/// Bytes that may be queued for one client when the memory for all of them is used up, and responses are moved to
/// files.
const MIN_QUEUE: usize = 64 * 1024;
/// The same if they are not.
const MIN_WITHOUT_FILES: usize = 4 * 1024;

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
        queue_limit.min(if has_files { MIN_QUEUE } else { MIN_WITHOUT_FILES })
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

/// Whether a thread is writing to the socket, without the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Writer {
    #[default]
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
pub enum TimeOut {
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

/// Whether a response is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// It is: the producer queues all of it.
    Held,
    /// Nothing was done: the response is not complete, or some of it has been sent or queued.
    Declined,
}

/// Whether the send queue has room, for a runner that waits under a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// There is room.
    Now,
    /// There will never be room.
    Never,
    /// Not yet: the runner is woken by its ticket and asks again.
    Later,
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

/// Who writes to the socket of a connection, and whether it is full.
#[derive(Default)]
pub(crate) struct SocketState {
    writer: Writer,
    /// The socket was full at the last write. An event will report when it has room.
    is_blocked: bool,
    /// The I/O side has been asked to send the queue, because the socket is not known to be full, so that no event of
    /// it may follow.
    is_pushed: bool,
    /// A part of a file that has to be read from the disk before it is sent; until then the socket counts as full.
    unread: Option<Box<UnreadPart>>,
}

/// Who is to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writing {
    /// The caller, until [`SocketState::end_writing`].
    Mine,
    /// Another thread is writing, and has been asked.
    Taken,
}

/// How a writing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WritingEnd {
    /// No other thread tried to write meanwhile.
    Alone,
    /// Another thread tried to write meanwhile and left that to the writer.
    Asked,
}

/// Whether a socket that was full still is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FullSocket {
    /// An event will report when it has room.
    Still,
    /// An event has reported room since the writer began: it tries again.
    NoLonger,
}

impl SocketState {
    pub(crate) fn is_writing(&self) -> bool {
        self.writer != Writer::Nobody
    }

    /// Makes the caller the writer, unless another thread is: it then learns from [`SocketState::end_writing`] that it
    /// was asked.
    pub(crate) fn begin_writing(&mut self) -> Writing {
        match &mut self.writer {
            Writer::Nobody => {
                self.writer = Writer::Busy { is_asked: false, retries: false };
                Writing::Mine
            }
            Writer::Busy { is_asked, .. } => {
                *is_asked = true;
                Writing::Taken
            }
        }
    }

    /// Ends the writing of the caller.
    pub(crate) fn end_writing(&mut self) -> WritingEnd {
        match std::mem::replace(&mut self.writer, Writer::Nobody) {
            Writer::Busy { is_asked: true, .. } => WritingEnd::Asked,
            Writer::Busy { is_asked: false, .. } | Writer::Nobody => WritingEnd::Alone,
        }
    }

    /// Called by the writer when it has found the socket full.
    pub(crate) fn found_full(&mut self) -> FullSocket {
        let retries = match &mut self.writer {
            Writer::Nobody => false,
            Writer::Busy { retries, .. } => std::mem::take(retries),
        };
        self.is_blocked = !retries;
        if retries { FullSocket::NoLonger } else { FullSocket::Still }
    }

    /// Called by the writer when a part of a file is not in memory: until it is, the socket counts as full.
    fn await_file(&mut self, part: UnreadPart) {
        self.unread = Some(Box::new(part));
        self.is_blocked = true;
    }

    /// True when a part of a file waits to be read by a disk thread.
    pub(crate) fn has_unread(&self) -> bool {
        self.unread.is_some()
    }

    /// The part of a file that a disk thread is to read.
    pub(crate) fn take_unread(&mut self) -> Option<Box<UnreadPart>> {
        self.unread.take()
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

    /// True when the I/O side has to be asked to send the queue, which counts as done.
    pub(crate) fn must_push(&mut self) -> bool {
        !std::mem::replace(&mut self.is_pushed, true)
    }

    /// The I/O side sends the queue now.
    pub(crate) fn note_pulled(&mut self) {
        self.is_pushed = false;
    }
}

/// See the module.
pub(crate) struct Outbox {
    pub(crate) state: SendState,
    pub(crate) queue: SendQueue,
    pub(crate) coalescing: Coalescing,
    pub(crate) compressing: Compressing,
    pub(crate) socket: SocketState,
    pub(crate) client: ClientPace,
    /// Some of the response has been written to a file.
    has_spilled: bool,
    /// The response is complete and held.
    is_batched: bool,
}

impl Outbox {
    /// The state for a new connection.
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self {
            state: SendState::Idle,
            queue: SendQueue::new(budget),
            coalescing: Coalescing::default(),
            compressing: Compressing::default(),
            socket: SocketState::default(),
            client: ClientPace::default(),
            has_spilled: false,
            is_batched: false,
        }
    }

    /// Notes what the producer has produced so far.
    pub(crate) fn note_produced(&mut self, progress: Progress) {
        if progress.is_complete {
            self.compressing.complete();
        }
        self.state.note_produced(progress);
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
            SendState::Sending(_) => {
                self.break_off_by(Cause::Deadline);
                TimeOut::BrokenOff
            }
        }
    }

    /// Breaks the connection: drops what is queued, and discards everything from now on.
    pub(crate) fn break_off(&mut self) {
        self.break_off_by(Cause::Other);
    }

    fn break_off_by(&mut self, cause: Cause) {
        self.state.break_off(cause);
        self.queue.clear();
        self.compressing.break_off();
    }

    /// What a flush reports of a broken connection. Another thread than the one that found it broken may ask.
    pub(crate) fn broken(&self) -> Flush {
        match self.state {
            SendState::Broken { by: Cause::ShortFile { missing }, .. } => Flush::Short(u64::from(missing)),
            _ => Flush::Broken,
        }
    }

    /// Holds the response if it is complete and nothing of it has been sent or queued.
    pub(crate) fn hold(&mut self, progress: Progress) -> Hold {
        if !progress.is_complete || self.state != SendState::Idle || !self.takes_writes() {
            return Hold::Declined;
        }
        self.note_produced(progress);
        self.is_batched = true;
        Hold::Held
    }

    /// Appends to the queue, or to what is to be compressed, unless what the producer sends is discarded.
    pub(crate) fn push(&mut self, push: impl FnOnce(&mut SendQueue) -> Result<(), NoMemory>) {
        if self.state.is_over() {
            return;
        }
        let pushed = push(self.compressing.queue().unwrap_or(&mut self.queue));
        if pushed.is_err() {
            // A part of the response is missing.
            self.break_off();
        }
    }

    /// Queues bytes of the server's own.
    pub(crate) fn queue_own(&mut self, bytes: &[u8]) {
        self.push(|queue| queue.push_copy(bytes));
    }

    /// Ends the response: what follows belongs to the next one. Called when the producer sends nothing more.
    pub(crate) fn end(&mut self, limits: &DeliveryLimits) -> End {
        let timed_out = self.state.timed_out();
        let leaves_rest = self.leaves_rest(limits);
        // The coalesced blocks of an incomplete response may still be sent, but not its end.
        self.flush_coalesced();
        self.coalescing = Coalescing::default();
        self.compressing.end();
        let compress = self.compressing.must_schedule();
        if !self.queue.is_empty() && !limits.has_memory() {
            self.queue.copy_tails();
        }
        let (has_spilled, is_sent, is_broken) = (self.has_spilled, self.is_sent(), self.state.is_broken());
        if !is_broken {
            self.state = SendState::Idle;
        }
        self.has_spilled = false;
        let is_batched = std::mem::take(&mut self.is_batched) && !is_sent && !is_broken;
        if is_sent {
            self.client.stop();
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
impl Outbox {
    /// Delays the opening of a response, see [`Coalescing::open`]. Until it is queued, the response has not begun: the
    /// page of a deadline or of an error may take its place.
    pub(crate) fn open(
        &mut self,
        head: &[u8],
        status: u16,
        encoder: BodyEncoder,
        block: &[u8],
        limits: &DeliveryLimits,
    ) -> Delay {
        // What is discarded needs no delay.
        if self.state != SendState::Idle {
            return Delay::Declined;
        }
        self.coalescing.open(head, status, encoder, block, limits.budget())
    }

    /// The producer has produced all of the response, see [`Coalescing::close`]. If its opening is still here, it will
    /// be sent.
    pub(crate) fn close<'h>(&mut self, head: impl FnOnce() -> Option<&'h [u8]>) -> DelayedOpening {
        if self.state.is_over() { DelayedOpening::Gone } else { self.coalescing.close(head) }
    }

    /// Appends a block to the coalescing buffer.
    pub(crate) fn coalesce(&mut self, block: &[u8], limits: &DeliveryLimits) -> CoalesceResult {
        if self.state.is_over() {
            return CoalesceResult::Gone;
        }
        match self.coalescing.append(block, limits.budget()) {
            Appended::Unlisted => return CoalesceResult::Unlisted,
            Appended::NoMemory => return CoalesceResult::NoMemory,
            Appended::Taken => {}
        }
        let queued = self.queued();
        // `least_queue` is read first: whether there is memory is asked of all connections.
        if self.coalescing.len() > limits.queue_limit || (queued > limits.least_queue && queued > limits.high_water()) {
            return CoalesceResult::Full;
        }
        CoalesceResult::Coalesced
    }

    /// Moves what is coalesced to the end of the queue.
    pub(crate) fn flush_coalesced(&mut self) {
        let Some(coalesced) = self.coalescing.take() else { return };
        if let Some(QueuedOpening { status, length }) = coalesced.opening {
            self.state.note_opened(Produced { status, body_bytes: length as u64 });
        }
        let mut at = coalesced.at;
        for segment in coalesced.segments {
            let waits = !self.takes_writes();
            self.push(|queue| queue.push_buffer(segment, at, waits));
            at = 0;
        }
    }
}

/// Compression.
impl Outbox {
    /// From now on what the producer sends is compressed. Queues the head of the response.
    pub(crate) fn compress(
        &mut self,
        head: &[u8],
        status: u16,
        (coding, encoder): (Coding, ContentEncoder),
        framing: BodyEncoder,
        limits: &DeliveryLimits,
    ) {
        if self.state.is_over() {
            return;
        }
        // No page may follow the head.
        self.note_produced(Progress { produced: Produced { status, body_bytes: 0 }, is_complete: false });
        self.push(|queue| queue.push_copy(head));
        self.compressing.begin(coding, encoder, framing, limits.budget().clone());
    }

    /// What a disk thread compresses next, without the lock. `None`: nothing.
    pub(crate) fn begin_compressing(&mut self) -> Option<Step> {
        // If the response is complete, this step may end the content.
        self.flush_coalesced();
        self.compressing.begin_step()
    }

    /// Queues what a disk thread has compressed.
    pub(crate) fn end_compressing(&mut self, made: Made) {
        match self.compressing.end_step(made) {
            _ if self.state.is_over() => {}
            Ok((bytes, at)) => {
                let waits = !self.takes_writes();
                if self.queue.push_buffer(bytes, at, waits).is_err() {
                    self.break_off();
                }
            }
            Err(()) => self.break_off(),
        }
    }

    /// Bytes in memory that are queued or to be compressed.
    pub(crate) fn queued(&self) -> usize {
        self.queue.bytes() + self.compressing.bytes()
    }
}

/// Writing.
impl Outbox {
    /// True when nothing is queued and the socket may have room: a producer may write directly.
    pub(crate) fn takes_writes(&self) -> bool {
        self.queue.is_empty() && !self.socket.is_writing() && !self.state.is_over() && !self.socket.is_blocked
    }

    /// True when nothing is queued, compressed or being written.
    pub(crate) fn is_sent(&self) -> bool {
        self.queue.is_empty() && !self.socket.is_writing() && !self.compressing.is_pending()
    }

    /// Notes the result of the write of a batch. `None`: the writer continues.
    pub(crate) fn wrote(&mut self, batch: Batch, moved: Io) -> Option<Flush> {
        if self.state.is_broken() {
            self.queue.drop_batch(batch);
            return Some(self.broken());
        }
        match moved {
            Io::Moved(count) => {
                self.socket.is_blocked = false;
                self.client.accept(count as u64);
                self.queue.put_back(batch, count);
                None
            }
            Io::WouldBlock => {
                self.queue.put_back(batch, 0);
                if self.socket.found_full() == FullSocket::NoLonger {
                    return None;
                }
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
        self.socket.await_file(part);
        Flush::Blocked
    }
}

/// The client's deadline, and when the producer has to wait.
impl Outbox {
    /// After a write: the time by which the client must accept more; `NEVER`: no deadline. `None`: unchanged.
    /// `progress`: the socket has just accepted bytes. `now` is only called where it is needed.
    pub(crate) fn deadline(
        &mut self,
        progress: bool,
        limits: &DeliveryLimits,
        now: impl FnOnce() -> Millis,
    ) -> Option<Millis> {
        // The other writer calls this when it is done.
        if self.socket.is_writing() {
            return None;
        }
        if self.queue.is_empty() {
            return self.client.stop();
        }
        self.client.deadline(progress, self.socket.is_blocked, limits.write_timeout, limits.min_rate, now)
    }

    /// True when the producer has to wait. The producer of a complete response only waits if the memory for responses
    /// is used up; otherwise the I/O side sends the rest.
    pub(crate) fn is_full(&self, limits: &DeliveryLimits) -> bool {
        // A producer waits if the socket is full, or if another thread sends: the current writer, or the I/O side where
        // runners may only write little. That thread wakes the producer.
        let is_tried = self.socket.is_blocked
            || self.socket.is_writing()
            || limits.policy.most_by_runner.is_some()
            || self.compressing.is_open();
        is_tried && self.queued() > limits.high_water() && !(self.state.is_complete() && limits.has_memory())
    }

    /// Whether there is room for more. If there is none yet, the caller notes that its runner waits, before it releases
    /// the lock: a thread that makes room takes the lock before it looks for that note.
    pub(crate) fn room(&self, limits: &DeliveryLimits) -> Room {
        if self.state.is_over() {
            Room::Never
        } else if self.queued() + self.coalescing.len() <= limits.low_water() {
            Room::Now
        } else {
            Room::Later
        }
    }

    /// True when the response is complete, much of it is left to send, and the socket has room: the I/O side sends the
    /// rest, without the interpreter.
    pub(crate) fn leaves_rest(&self, limits: &DeliveryLimits) -> bool {
        self.state.is_complete()
            && !self.socket.is_blocked
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

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use tailrace_http::body_encoder::BodyEncoder;
    use tailrace_os::socket::Io;

    use super::{Cause, CoalesceResult, DeliveryLimits, Flush, Outbox, Produced, Progress, Room, SendState, Writing};
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
    fn write(outbox: &mut Outbox, moved: Io) {
        assert_eq!(outbox.socket.begin_writing(), Writing::Mine);
        if let Some(batch) = outbox.queue.take() {
            outbox.wrote(batch, moved);
        }
        outbox.socket.end_writing();
    }

    #[test]
    fn every_operation_in_every_state() {
        type Operation = fn(&mut Outbox, &DeliveryLimits);
        let before = [IDLE, SENDING, COMPLETE, TIMED_OUT, BROKEN, LATE, BROKEN_PAGE];
        let same = before;
        let broken = [BROKEN_IDLE, BROKEN, BROKEN, BROKEN_PAGE, BROKEN, LATE, BROKEN_PAGE];
        let complete = [COMPLETE, COMPLETE, COMPLETE, TIMED_OUT, BROKEN, LATE, BROKEN_PAGE];
        let table: [(&str, Operation, [SendState; 7]); 11] = [
            (
                "gives a part",
                |outbox, _| outbox.note_produced(Progress { produced: PRODUCED, is_complete: false }),
                [SENDING, SENDING, COMPLETE, TIMED_OUT, BROKEN, LATE, BROKEN_PAGE],
            ),
            (
                "gives the rest",
                |outbox, _| outbox.note_produced(Progress { produced: PRODUCED, is_complete: true }),
                complete,
            ),
            (
                "has produced all",
                |outbox, _| {
                    let produced = outbox.state.produced();
                    outbox.note_produced(Progress { produced, is_complete: true });
                },
                [SendState::Complete(Produced::default()), COMPLETE, COMPLETE, TIMED_OUT, BROKEN, LATE, BROKEN_PAGE],
            ),
            (
                "times out",
                |outbox, _| {
                    outbox.time_out(|| (b"page".to_vec(), 4));
                },
                [TIMED_OUT, LATE, COMPLETE, TIMED_OUT, BROKEN, LATE, BROKEN_PAGE],
            ),
            ("is broken off", |outbox, _| outbox.break_off(), broken),
            (
                "has no memory",
                |outbox, _| without_memory(|| outbox.push(|queue| queue.push_copy(b"block"))),
                // What is sent after the page is discarded and needs no memory.
                [BROKEN_IDLE, BROKEN, BROKEN, TIMED_OUT, BROKEN, LATE, BROKEN_PAGE],
            ),
            ("sends", |outbox, _| write(outbox, Io::Moved(3)), same),
            ("finds the socket full", |outbox, _| write(outbox, Io::WouldBlock), same),
            (
                "finds a file short",
                |outbox, _| write(outbox, Io::End),
                [short(IDLE), short(SENDING), short(COMPLETE), BROKEN_PAGE, BROKEN, LATE, BROKEN_PAGE],
            ),
            ("finds the client gone", |outbox, _| write(outbox, Io::Broken), broken),
            (
                "ends",
                |outbox, limits| {
                    outbox.end(limits);
                },
                [IDLE, IDLE, IDLE, IDLE, BROKEN, LATE, BROKEN_PAGE],
            ),
        ];
        for (what, operation, after) in table {
            for (before, after) in before.into_iter().zip(after) {
                let limits = limits();
                let budget = limits.memory.responses.clone();
                let mut outbox = Outbox::new(budget.clone());
                if !matches!(before, SendState::Broken { .. }) {
                    assert!(what == "has no memory" || outbox.queue.push_copy(b"block").is_ok());
                }
                outbox.state = before;
                if outbox.state.is_broken() && what.starts_with("finds") {
                    // A write that was under way when the connection broke.
                    assert!(outbox.queue.push_copy(b"block").is_ok());
                }
                operation(&mut outbox, &limits);
                assert_eq!(outbox.state, after, "{before:?} {what}");
                if outbox.state.is_broken() {
                    assert!(outbox.queue.is_empty() && budget.used() == 0, "{before:?} {what}: nothing waits");
                }
            }
        }
    }

    /// A response with so many bytes in the queue.
    fn queued(limits: &DeliveryLimits, bytes: usize) -> Outbox {
        let mut outbox = Outbox::new(limits.memory.responses.clone());
        outbox.push(|queue| queue.push_copy(&vec![b'x'; bytes]));
        outbox
    }

    #[test]
    fn a_producer_waits_above_the_limit_and_continues_at_half_of_it() {
        let memory = Arc::new(ClientMemory::new(1 << 20, 1 << 20));
        let limits = DeliveryLimits { queue_limit: 8_000, least_queue: 2_000, memory, ..limits() };
        for (queue, coalesced, is_full) in
            [(0, 8_000, false), (0, 8_001, true), (2_001, 1, false), (8_000, 1, false), (8_001, 1, true)]
        {
            let mut outbox = queued(&limits, queue);
            let charged = limits.memory.responses.used();
            outbox.coalescing.list(BodyEncoder::default());
            let result = outbox.coalesce(&vec![b'x'; coalesced], &limits);
            assert_eq!(result == CoalesceResult::Full, is_full, "{queue} queued, {coalesced} coalesced: {result:?}");
            assert!(limits.memory.responses.used() >= charged + coalesced);
            outbox.flush_coalesced();
            outbox.break_off();
            assert_eq!(limits.memory.responses.used(), 0);
        }
        assert_eq!(queued(&limits, 4_000).room(&limits), Room::Now);
        assert_eq!(queued(&limits, 4_001).room(&limits), Room::Later);
    }

    #[test]
    fn much_of_a_complete_response_is_left_to_the_io_side() {
        let limits = limits();
        for (bytes, is_left) in [(5, false), (32 * 1024, false), (32 * 1024 + 1, true), (100_000, true)] {
            let mut outbox = queued(&limits, bytes);
            assert!(!outbox.leaves_rest(&limits), "it is not complete");
            outbox.note_produced(Progress { produced: PRODUCED, is_complete: true });
            assert_eq!((outbox.leaves_rest(&limits), outbox.end(&limits).is_left), (is_left, is_left), "{bytes}");
        }
        let limited = DeliveryLimits { policy: Policy { most_by_runner: Some(1), ..limits.policy }, ..self::limits() };
        let mut outbox = queued(&limited, 5);
        outbox.note_produced(Progress { produced: PRODUCED, is_complete: true });
        assert!(outbox.end(&limited).is_left, "runners write little");
        let mut outbox = queued(&limited, 5);
        outbox.break_off();
        assert!(!outbox.end(&limited).is_left, "nothing is left of a broken connection");
    }

    #[test]
    fn a_response_is_whole_before_it_begins_and_once_all_of_it_is_there() {
        let mut outbox = Outbox::new(Arc::default());
        for (state, is_whole) in [(IDLE, true), (SENDING, false), (COMPLETE, true), (TIMED_OUT, false), (BROKEN, false)]
        {
            outbox.state = state;
            assert_eq!(outbox.state.is_whole(), is_whole, "{state:?}");
        }
    }

    #[test]
    fn an_opening_that_is_queued_late_does_not_change_what_was_produced() {
        let mut outbox = Outbox::new(Arc::default());
        for (before, after) in [
            (IDLE, SendState::Sending(PAGE)),
            (SENDING, SENDING),
            (COMPLETE, COMPLETE),
            (SendState::Complete(Produced::default()), SendState::Complete(PAGE)),
            (BROKEN, BROKEN),
        ] {
            outbox.state = before;
            outbox.state.note_opened(PAGE);
            assert_eq!(outbox.state, after, "{before:?}");
        }
    }

    #[test]
    fn a_client_that_takes_bytes_is_given_time_for_the_bytes_since_it_was_first_full() {
        let limits = DeliveryLimits { min_rate: 1, ..limits() };
        let mut outbox = queued(&limits, 5);
        write(&mut outbox, Io::Moved(1));
        write(&mut outbox, Io::WouldBlock);
        assert_eq!(outbox.deadline(false, &limits, || 1_000), Some(31_000));
        assert_eq!(outbox.deadline(true, &limits, || 2_000), Some(31_000), "it has taken nothing since");
        write(&mut outbox, Io::Moved(1));
        write(&mut outbox, Io::WouldBlock);
        assert_eq!(outbox.deadline(true, &limits, || 3_000), Some(32_000), "a second more for a byte");
    }

    #[test]
    fn a_file_that_ends_early_is_missed_by_what_was_left_of_it() {
        let mut outbox = Outbox::new(Arc::default());
        let file = std::fs::File::open("/dev/null").unwrap();
        outbox.queue.push_file(Arc::new(std::os::fd::OwnedFd::from(file)), 0, 70);
        assert_eq!(outbox.socket.begin_writing(), Writing::Mine);
        let batch = outbox.queue.take().unwrap();
        assert_eq!(outbox.wrote(batch, Io::Moved(20)), None);
        let batch = outbox.queue.take().unwrap();
        assert_eq!(outbox.wrote(batch, Io::End), Some(Flush::Short(50)));
    }
}
