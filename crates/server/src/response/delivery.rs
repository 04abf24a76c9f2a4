//! The shared half of a response: the part that two threads use, behind one lock.
//!
//! The thread that runs the request appends and writes. An I/O thread sends what the socket did not accept at once,
//! coalesced blocks, and the page of a request whose deadline has passed. The lock is never held across a system call:
//! the thread that writes marks itself as the writer, takes a batch from the queue, writes it without the lock, and
//! puts back the bytes that were not accepted. A thread that finds another writer does not write; the writer reports
//! this when it is done ([`After::asked`]).
//!
//! This file does not know the loop: what else has to be done is returned to the caller as [`After`].

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use tailrace_http::body_encoder::BodyEncoder;

use crate::observe::record::Compressed;
use crate::os::clock::Millis;
use crate::os::socket::Io;
use crate::os::sync::{Condvar, Mutex, MutexGuard, lock, wait_for};
use crate::response::compressing::{Compressing, Made};
use crate::response::payload::{FileSource, Payload, UnreadPart};
use crate::response::send_queue::{Batch, Wrote};
use crate::response::sending::{CoalesceResult, DeliveryLimits, End, Flush, Produced, Progress, Sending, TimeOut};
use crate::response::spill::Spill;
use crate::response::write_plan::WritePlan;
use crate::transport::Transport;

/// Bytes sent to one connection before other connections are served: one fast client must not delay them.
pub(crate) const TURN: u64 = 4 << 20;

/// The clock and the deadline of a connection. Called with the lock held, so that of two threads the one that wrote
/// last also sets the deadline last. Must not block.
pub(crate) trait ClientTime {
    /// Now.
    fn now(&self) -> Millis;

    /// Sets the deadline of the connection; [`crate::os::clock::NEVER`]: none. True: the thread that polls has to be
    /// woken.
    fn set_deadline(&self, due: Millis) -> bool;
}

/// What the caller has to do after a call, without the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct After {
    /// Wake the thread that polls: the earliest deadline has changed.
    pub(crate) wake: bool,
    /// Have the I/O side send what is queued.
    pub(crate) push: bool,
    /// Wake the runner that waits for room.
    pub(crate) room: bool,
    /// List the response with the I/O side, which looks at it at each tick.
    pub(crate) list: bool,
    /// Have a disk thread read the part of a file that [`Delivery::take_unread`] returns, then flush again.
    pub(crate) read: bool,
    /// Have a disk thread call [`Delivery::compress`].
    pub(crate) compress: bool,
    /// Another thread tried to write meanwhile and left that to this one. If it was the owner, it has to flush again.
    pub(crate) asked: bool,
}

impl After {
    /// True when there is anything to do.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.wake | self.push | self.room | self.list | self.read | self.compress | self.asked
    }
}

/// The result of a send, for the producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// Sent or queued.
    Taken,
    /// All of the response is queued, and the caller holds it.
    Batched,
    /// Sent or queued, and the producer must wait before the next block.
    Full,
    /// Discarded: the connection is broken, or the request's deadline has passed.
    Gone,
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

/// The result of [`Delivery::write_for_room`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrittenForRoom {
    /// There is room.
    Room,
    /// There will never be room.
    Never,
    /// There is no room yet; the socket has accepted some bytes.
    Progress,
    /// There is no room yet, and the socket has accepted nothing.
    NoProgress,
}

/// The result of [`Delivery::spill`].
#[derive(Debug)]
pub(crate) enum Spilled {
    /// The queued bytes are in a file.
    Done,
    /// Nothing is queued in memory.
    Nothing,
    /// Responses are not moved to files, or the files have no room.
    NoRoom,
    /// The bytes are being sent or written to a file at this moment.
    Busy,
    /// The disk is full or broken.
    Failed(std::io::Error),
}

/// Returns an owner of the block with this index, so that the block can be sent later.
pub(crate) type Keep<'a> = &'a mut dyn FnMut(usize) -> Box<dyn Payload>;

/// Blocks that a producer sends, with the plan of their write.
pub(crate) struct Output<'a> {
    pub(crate) plan: &'a mut WritePlan,
    /// The blocks that the plan refers to.
    pub(crate) blocks: &'a [&'a [u8]],
    pub(crate) keep: Keep<'a>,
    pub(crate) progress: Progress,
    /// If this is the whole response, it may be held: queued, and not written now.
    pub(crate) may_hold: bool,
    /// The caller ends the sending direction next: the kernel may wait for it, to send both in one segment.
    pub(crate) is_end: bool,
}

/// A part of a file, with the bytes before and after it.
pub(crate) struct FilePart<'a> {
    pub(crate) before: &'a [u8],
    pub(crate) file: Arc<dyn FileSource>,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) behind: &'a [u8],
    pub(crate) progress: Progress,
}

/// See the module.
pub(crate) struct Delivery {
    socket: Box<dyn Transport>,
    sending: Mutex<Sending>,
    room: Condvar,
}

type Guard<'a> = MutexGuard<'a, Sending>;

impl Delivery {
    /// A delivery for a new connection, which has no response yet.
    pub(crate) fn new(socket: Box<dyn Transport>, limits: &DeliveryLimits) -> Self {
        let sending = Mutex::new(Sending::new(limits.memory.responses.clone()));
        Self { socket, sending, room: Condvar::new() }
    }

    pub(crate) fn socket(&self) -> &dyn Transport {
        &*self.socket
    }

    /// Writes until the queue is empty, the socket full, or at least `most` bytes are sent. Releases the lock during
    /// each write. Returns the lock, the result, and whether another thread tried to write meanwhile.
    fn write<'a>(&'a self, mut sending: Guard<'a>, most: u64) -> (Guard<'a>, Flush, bool) {
        if sending.queue.is_empty() && sending.is_sent() {
            let flush = if sending.is_broken() { sending.broken() } else { Flush::Empty };
            return (sending, flush, false);
        }
        if !sending.begin_writing() {
            return (sending, Flush::Elsewhere, false);
        }
        let until = sending.sent().saturating_add(most);
        let flush = loop {
            if sending.is_broken() {
                break sending.broken();
            }
            if sending.sent() >= until && !sending.queue.is_empty() {
                break Flush::More;
            }
            let Some(batch) = sending.next_batch() else {
                break if sending.await_compression() { Flush::Elsewhere } else { Flush::Empty };
            };
            drop(sending);
            let write = |batch: &mut Batch| batch.write(self.socket());
            let (batch, wrote) = self.unlocked(batch, write, |sending, batch| sending.queue.drop_batch(batch));
            sending = lock(&self.sending);
            let moved = match wrote {
                Wrote::Io(moved) => moved,
                Wrote::Unread(part) => break sending.found_unread(batch, part),
            };
            if let Some(flush) = sending.wrote(batch, moved) {
                break flush;
            }
        };
        let asked = sending.end_writing();
        (sending, flush, asked)
    }

    /// Runs a write without the lock. If the transport panics, drops the bytes that were being written, breaks the
    /// connection and ends the writing before the panic continues.
    fn unlocked<B, T>(
        &self,
        mut bytes: B,
        write: impl FnOnce(&mut B) -> T,
        forget: impl FnOnce(&mut Sending, B),
    ) -> (B, T) {
        match catch_unwind(AssertUnwindSafe(|| write(&mut bytes))) {
            Ok(written) => (bytes, written),
            Err(panic) => {
                let mut sending = lock(&self.sending);
                forget(&mut sending, bytes);
                sending.break_off();
                sending.end_writing();
                drop(sending);
                resume_unwind(panic)
            }
        }
    }

    /// After a write: sets the deadline by which the client must accept more. True: the thread that polls has to be
    /// woken.
    fn set_deadline(sending: &mut Sending, progress: bool, limits: &DeliveryLimits, time: &dyn ClientTime) -> bool {
        sending.deadline(progress, limits, || time.now()).is_some_and(|due| time.set_deadline(due))
    }

    /// Nothing may follow a page that was sent in the application's place: ends the sending direction once it is sent.
    fn end_if_timed_out(&self, sending: Guard<'_>) {
        let is_over = sending.is_timed_out() && sending.is_sent();
        drop(sending);
        if is_over {
            self.socket.end_sending();
        }
    }
}

/// The producer's side: the thread that runs the request.
impl Delivery {
    /// Sends what is planned: writes as much as the socket accepts and the policy lets a runner write, and queues the
    /// rest. Adds the number of write calls to `writes`.
    pub(crate) fn transmit(
        &self,
        output: Output<'_>,
        writes: &mut u32,
        limits: &DeliveryLimits,
        time: &dyn ClientTime,
    ) -> (Accepted, After) {
        let Output { plan, blocks, keep, progress, may_hold, is_end } = output;
        let most = limits.policy.most_by_runner;
        let mut sending = lock(&self.sending);
        if may_hold && sending.hold(progress) {
            plan.queue_rest(&mut sending, blocks, most, keep);
            let accepted = if sending.is_over() { Accepted::Gone } else { Accepted::Batched };
            return (accepted, After::default());
        }
        sending.note_produced(progress);
        sending.flush_coalesced(limits);
        if !sending.is_compressing() && sending.takes_writes() && sending.begin_writing() {
            loop {
                drop(sending);
                let write = |plan: &mut &mut WritePlan| plan.write(self.socket(), blocks, most, is_end);
                let (_, (count, last)) = self.unlocked(&mut *plan, write, |_, _| {});
                *writes += count;
                sending = lock(&self.sending);
                match last {
                    // The socket may have room again. Only a full socket decides whether the producer has to wait.
                    Some(Io::WouldBlock) if sending.found_full() => {}
                    Some(Io::End | Io::Broken) => break sending.break_off(),
                    Some(Io::WouldBlock | Io::Moved(_)) | None => break,
                }
            }
            // What the other thread would have written is written or queued below.
            let asked = sending.end_writing();
            plan.queue_rest(&mut sending, blocks, most, keep);
            let (accepted, mut after) = self.settle(sending, u64::MAX, limits, time);
            after.asked |= asked;
            return (accepted, after);
        }
        plan.queue_rest(&mut sending, blocks, most, keep);
        self.settle(sending, u64::MAX, limits, time)
    }

    /// Queues a part of a file, and sends what is queued.
    pub(crate) fn transmit_file(
        &self,
        part: FilePart<'_>,
        limits: &DeliveryLimits,
        time: &dyn ClientTime,
    ) -> (Accepted, After) {
        let mut sending = lock(&self.sending);
        sending.note_produced(part.progress);
        sending.flush_coalesced(limits);
        sending.push(|queue| {
            queue.push_copy(part.before)?;
            queue.push_file(part.file, part.offset, part.length);
            queue.push_copy(part.behind)
        });
        // A fast client would take all of a large file from memory, and the caller may be the thread that polls.
        self.settle(sending, TURN, limits, time)
    }

    /// Sends what is queued, unless the socket is full or the I/O side is to send it. Returns what the producer has to
    /// do.
    fn settle<'a>(
        &'a self,
        mut sending: Guard<'a>,
        most: u64,
        limits: &DeliveryLimits,
        time: &dyn ClientTime,
    ) -> (Accepted, After) {
        let mut after = After { compress: sending.schedule_compression(), ..After::default() };
        // The head is sent with the first bytes that are compressed.
        let is_direct = !sending.is_compressing();
        if is_direct && !sending.queue.is_empty() && !sending.is_blocked() && !sending.leaves_rest(limits) {
            sending = self.send_on(sending, most, limits, &mut after);
        }
        if sending.is_over() {
            return (Accepted::Gone, after);
        }
        after.wake = Self::set_deadline(&mut sending, false, limits, time);
        if !sending.is_full(limits) {
            return (Accepted::Taken, after);
        }
        if is_direct && !sending.is_blocked() {
            // The I/O side wakes a waiting producer after it has sent something, so it is given a reason to send, even
            // if the response is complete.
            sending = self.send_on(sending, most, limits, &mut after);
        }
        drop(sending);
        (Accepted::Full, after)
    }

    /// Writes all that the socket accepts, or has the I/O side do it where a runner must not write that much.
    fn send_on<'a>(
        &'a self,
        mut sending: Guard<'a>,
        most: u64,
        limits: &DeliveryLimits,
        after: &mut After,
    ) -> Guard<'a> {
        if limits.policy.most_by_runner.is_some() {
            after.push |= sending.set_pushed(true);
            return sending;
        }
        let (mut sending, flush, asked) = self.write(sending, most);
        after.asked |= asked;
        after.push |= flush == Flush::More && sending.set_pushed(true);
        after.read |= sending.has_unread();
        sending
    }

    /// From now on what the producer sends is compressed, see [`Sending::compress`].
    pub(crate) fn begin_compressing(&self, head: &[u8], compressing: Compressing, status: u16) {
        lock(&self.sending).compress(head, compressing, status);
    }

    /// From now on blocks are coalesced, see [`Sending::list`].
    pub(crate) fn list(&self, encoder: BodyEncoder) {
        lock(&self.sending).list(encoder);
    }

    /// Appends a block to the coalescing buffer. [`CoalesceResult::Unlisted`]: nothing was done.
    #[inline]
    pub(crate) fn coalesce(&self, block: &[u8], limits: &DeliveryLimits) -> CoalesceResult {
        lock(&self.sending).coalesce(block, limits)
    }

    /// The same for a block of a response that is not listed, which the caller then lists with the I/O side. The I/O
    /// side sends the block, so that the runner need not make a send for each; it is sent together with the end of the
    /// response if that follows at once.
    pub(crate) fn coalesce_anew(&self, block: &[u8], encoder: BodyEncoder, limits: &DeliveryLimits) -> CoalesceResult {
        let mut sending = lock(&self.sending);
        sending.list(encoder);
        sending.coalesce(block, limits)
    }

    /// Delays the opening of a response, see [`Sending::open`]. The caller lists the response with the I/O side.
    pub(crate) fn open(
        &self,
        head: &[u8],
        status: u16,
        encoder: BodyEncoder,
        block: &[u8],
        limits: &DeliveryLimits,
    ) -> bool {
        lock(&self.sending).open(head, status, encoder, block, limits)
    }

    /// Called by the producer at the end of its response, see [`Sending::close`].
    pub(crate) fn close<'h>(&self, head: impl FnOnce() -> Option<&'h [u8]>) -> bool {
        lock(&self.sending).close(head)
    }

    /// See [`Sending::drop_opening`].
    pub(crate) fn drop_opening(&self, limits: &DeliveryLimits) -> bool {
        lock(&self.sending).drop_opening(limits)
    }

    /// Notes that the response is complete.
    pub(crate) fn complete(&self) {
        lock(&self.sending).complete();
    }

    /// Blocks until the queue has room. False: there never will be. `spill` moves the queued bytes to a file; it is
    /// called after `patience` without room, and returns the time until the next call.
    pub(crate) fn wait_for_room(
        &self,
        limits: &DeliveryLimits,
        mut patience: Duration,
        mut spill: impl FnMut() -> Duration,
    ) -> bool {
        let mut sending = lock(&self.sending);
        while !sending.is_over() && !sending.has_room(limits) {
            let (guard, timed_out) = wait_for(&self.room, sending, patience);
            sending = guard;
            if timed_out {
                drop(sending);
                patience = spill();
                sending = lock(&self.sending);
            }
        }
        !sending.is_over()
    }

    /// Whether the queue has room. If it has none yet, `waits` notes the waiting runner, under the lock: a thread that
    /// makes room takes the lock before it looks for that note.
    pub(crate) fn ask_for_room(&self, limits: &DeliveryLimits, waits: impl FnOnce()) -> Room {
        let sending = lock(&self.sending);
        if sending.is_over() {
            return Room::Never;
        }
        if sending.has_room(limits) {
            return Room::Now;
        }
        waits();
        Room::Later
    }

    /// Writes as much as the socket accepts now, where no other thread writes.
    pub(crate) fn write_for_room(&self, limits: &DeliveryLimits) -> WrittenForRoom {
        let mut sending = lock(&self.sending);
        sending.unblock();
        sending.flush_coalesced(limits);
        let before = sending.sent();
        let (sending, _, _) = self.write(sending, u64::MAX);
        if sending.is_over() {
            WrittenForRoom::Never
        } else if sending.queued() <= limits.low_water() {
            WrittenForRoom::Room
        } else if sending.sent() > before {
            WrittenForRoom::Progress
        } else {
            WrittenForRoom::NoProgress
        }
    }

    /// Ends the response, see [`Sending::end`].
    pub(crate) fn end(&self, limits: &DeliveryLimits) -> End {
        lock(&self.sending).end(limits)
    }

    /// True while bytes that were written to a file have not been sent.
    pub(crate) fn is_behind(&self) -> bool {
        lock(&self.sending).queue.is_behind()
    }
}

/// The I/O side, and the owner of the connection.
impl Delivery {
    /// Writes until the queue is empty, the socket full, or at least `most` bytes are sent. `writable`: an event has
    /// reported room in the socket. Without `time` no deadline is set.
    pub(crate) fn flush(
        &self,
        writable: bool,
        most: u64,
        limits: &DeliveryLimits,
        time: Option<&dyn ClientTime>,
    ) -> (Flush, After) {
        let mut sending = lock(&self.sending);
        if writable {
            sending.unblock();
        }
        let before = sending.sent();
        // The thread that compresses sends what is queued, the head, too, together with what it adds.
        let (mut sending, flush, asked) = match sending.await_compression() {
            true => (sending, Flush::Elsewhere, false),
            false => self.write(sending, most),
        };
        let progress = sending.sent() > before;
        let wake = time.is_some_and(|time| Self::set_deadline(&mut sending, progress, limits, time));
        // A producer that found this thread writing may wait for the room that the write has made.
        let room = asked && (sending.queued() <= limits.low_water() || sending.is_over());
        let read = sending.has_unread();
        self.end_if_timed_out(sending);
        (flush, After { wake, asked, room, read, ..After::default() })
    }

    /// Sends coalesced blocks and the queue while the producer still works. `expired`: the deadline of the connection
    /// has passed, which breaks the connection if its socket is full.
    pub(crate) fn drain(&self, writable: bool, expired: bool, limits: &DeliveryLimits, time: &dyn ClientTime) -> After {
        let mut sending = lock(&self.sending);
        if writable {
            sending.unblock();
        }
        sending.set_pushed(false);
        sending.flush_coalesced(limits);
        let mut after = After { compress: sending.schedule_compression(), ..After::default() };
        if sending.queue.is_empty() {
            // The queue may have had no memory for the coalesced blocks, which breaks the connection.
            after.room = sending.is_over();
            return after;
        }
        if expired && sending.is_blocked() {
            sending.break_off();
        } else if !sending.is_blocked() {
            let before = sending.sent();
            let (guard, flush, asked) = self.write(sending, limits.policy.most_by_io.unwrap_or(u64::MAX));
            sending = guard;
            after.asked = asked;
            after.read = sending.has_unread();
            after.push = flush == Flush::More && sending.set_pushed(true);
            let progress = sending.sent() > before;
            after.wake = Self::set_deadline(&mut sending, progress, limits, time);
        }
        after.room = sending.queued() <= limits.low_water() || sending.is_over();
        self.end_if_timed_out(sending);
        after
    }

    /// Compresses a part of what the producer has sent, and sends it. For a disk thread; the lock is not held meanwhile.
    pub(crate) fn compress(&self, limits: &DeliveryLimits, time: &dyn ClientTime) -> After {
        let Some(step) = lock(&self.sending).begin_compressing(limits) else { return After::default() };
        if let Ok(made) = catch_unwind(AssertUnwindSafe(|| step.run())) {
            self.end_compressing(made, limits, time)
        } else {
            lock(&self.sending).break_off();
            After { asked: true, room: true, ..After::default() }
        }
    }

    /// Sends what a step has compressed.
    fn end_compressing(&self, made: Made, limits: &DeliveryLimits, time: &dyn ClientTime) -> After {
        lock(&self.sending).end_compressing(made);
        let mut after = self.drain(false, false, limits, time);
        let mut sending = lock(&self.sending);
        after.compress |= sending.schedule_compression();
        after.asked |= sending.take_awaited();
        after
    }

    /// What the compression of the response has taken and gained, once, when it is over.
    pub(crate) fn take_compressed(&self) -> Option<Compressed> {
        lock(&self.sending).take_compressed()
    }

    /// Sends what has been coalesced since the last tick. False: the response is over, or its blocks no longer come
    /// quickly.
    pub(crate) fn tick(&self, limits: &DeliveryLimits, time: &dyn ClientTime) -> (bool, After) {
        let moved = lock(&self.sending).coalesced() > 0;
        let after = if moved { self.drain(false, false, limits, time) } else { After::default() };
        (lock(&self.sending).stays_listed(moved), after)
    }

    /// The part of a file that is to be read before it can be sent. Then report the socket as writable.
    pub(crate) fn take_unread(&self) -> Option<Box<UnreadPart>> {
        lock(&self.sending).take_unread()
    }

    /// Queues bytes of the server's own.
    pub(crate) fn queue(&self, bytes: &[u8]) {
        lock(&self.sending).push(|queue| queue.push_copy(bytes));
    }

    /// Queues bytes of the server's own and sends what the socket accepts. Sets no deadline.
    pub(crate) fn send(&self, bytes: &[u8], limits: &DeliveryLimits) -> After {
        self.queue(bytes);
        self.flush(false, u64::MAX, limits, None).1
    }

    /// The deadline of the request has passed while the application runs. Sends `page` if the response has not begun,
    /// else breaks it off; a complete response is not touched. What the application produces from now on is discarded.
    /// The caller notifies a runner that waits for room. The flag is [`After::asked`].
    pub(crate) fn time_out(&self, page: impl FnOnce() -> (Vec<u8>, u64)) -> (TimeOut, bool) {
        let mut sending = lock(&self.sending);
        let time_out = sending.time_out(page);
        match time_out {
            TimeOut::Over => (time_out, false),
            TimeOut::BrokenOff => {
                drop(sending);
                self.socket.abort();
                (time_out, false)
            }
            TimeOut::Answered => {
                let (sending, _, asked) = self.write(sending, u64::MAX);
                self.end_if_timed_out(sending);
                (time_out, asked)
            }
        }
    }

    /// True when the server has answered in the application's place, or has broken the response off at its deadline.
    pub(crate) fn is_timed_out(&self) -> bool {
        lock(&self.sending).produced_so_far().1
    }

    /// Drops what is queued, and discards everything from now on. The caller notifies a runner that waits for room.
    pub(crate) fn break_off(&self) {
        lock(&self.sending).break_off();
    }

    /// Wakes a thread that waits for room.
    pub(crate) fn notify_room(&self) {
        self.room.notify_all();
    }

    /// Status and body bytes of the current response, and whether its deadline has passed. For the log, where the
    /// producer cannot be asked.
    pub(crate) fn produced_so_far(&self) -> (Produced, bool) {
        lock(&self.sending).produced_so_far()
    }

    /// Number of write calls since the last call of this method.
    pub(crate) fn take_writes(&self) -> u32 {
        lock(&self.sending).take_writes()
    }

    /// The memory that moving the response to a file would free, in bytes; see [`SendQueue::held`].
    ///
    /// [`SendQueue::held`]: crate::response::send_queue::SendQueue::held
    pub(crate) fn held(&self) -> usize {
        lock(&self.sending).queue.held()
    }

    /// Frees memory without a file, see [`SendQueue::copy_tails`]. False: there is none to free.
    ///
    /// [`SendQueue::copy_tails`]: crate::response::send_queue::SendQueue::copy_tails
    pub(crate) fn copy_tails(&self) -> bool {
        lock(&self.sending).queue.copy_tails()
    }

    /// Moves the queued bytes from memory to a file, from which the I/O side sends them. Blocks on the disk, without
    /// the lock: other threads may send meanwhile.
    pub(crate) fn spill(&self, spill: &Spill, limits: &DeliveryLimits) -> (Spilled, After) {
        if !spill.is_allowed() {
            return (Spilled::NoRoom, After::default());
        }
        let mut sending = lock(&self.sending);
        sending.flush_coalesced(limits);
        // If the socket is not full, the I/O side is late and not the client. Its next tick no longer finds the bytes
        // that were coalesced, and no event of the socket follows, so it is asked to send them.
        let is_for_io = !sending.is_blocked() && !sending.queue.is_empty();
        let push = is_for_io && sending.set_pushed(true);
        let after = After { push, compress: sending.schedule_compression(), ..After::default() };
        let is_whole = sending.is_whole();
        let backlog = if sending.is_over() { None } else { sending.queue.backlog() };
        let Some(backlog) = backlog else {
            return (if sending.is_sent() { Spilled::Nothing } else { Spilled::Busy }, after);
        };
        drop(sending);
        let written = spill.write(&backlog, is_whole, || !lock(&self.sending).is_broken());
        let mut sending = lock(&self.sending);
        let spilled = match written {
            Ok(Some((file, offset))) => {
                if sending.is_broken() {
                    sending.queue.keep();
                } else if sending.queue.spill(&backlog, file, offset) {
                    sending.set_spilled();
                }
                Spilled::Done
            }
            Ok(None) => {
                sending.queue.keep();
                Spilled::NoRoom
            }
            Err(fault) => {
                sending.queue.keep();
                Spilled::Failed(fault)
            }
        };
        (spilled, after)
    }

    /// Returns when no other thread is between its look for room and the note that it waits.
    pub(crate) fn sync(&self) {
        drop(lock(&self.sending));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
