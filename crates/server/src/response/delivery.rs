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

use tailrace_os::clock::Millis;
use tailrace_os::socket::Io;
use tailrace_os::sync::{Condvar, Mutex, MutexGuard, lock, wait_for};

use crate::response::compressing::Made;
use crate::response::outbox::{DeliveryLimits, Flush, FullSocket, Hold, Outbox, Room, TimeOut, Writing, WritingEnd};
use crate::response::payload::{FileSource, Payload};
use crate::response::send_queue::{Batch, Wrote};
use crate::response::send_state::Progress;
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

    /// Sets the deadline of the connection; [`tailrace_os::clock::NEVER`]: none. True: the thread that polls has to be
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
    /// Have a disk thread read the part of a file that [`crate::response::outbox::SocketState::take_unread`] returns, then flush again.
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

/// The result of [`Delivery::write_for_room`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrittenForRoom {
    /// There is room.
    Room,
    /// There will never be room.
    Never,
    /// There is no room yet: the socket is full.
    Blocked,
    /// There is no room yet, although the socket is not full: another thread writes, or compresses and will send the
    /// result.
    Elsewhere,
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
    outbox: Mutex<Outbox>,
    room: Condvar,
}

impl Delivery {
    /// A delivery for a new connection, which has no response yet.
    pub(crate) fn new(socket: Box<dyn Transport>, limits: &DeliveryLimits) -> Self {
        let outbox = Mutex::new(Outbox::new(limits.memory.responses.clone()));
        Self { socket, outbox, room: Condvar::new() }
    }

    pub(crate) fn socket(&self) -> &dyn Transport {
        &*self.socket
    }

    /// The outbox, locked. Not across a system call.
    #[inline]
    pub(crate) fn outbox(&self) -> MutexGuard<'_, Outbox> {
        lock(&self.outbox)
    }

    /// Writes until the queue is empty, the socket full, or at least `most` bytes are sent. Releases the lock during
    /// each write. Returns the lock, the result, and whether another thread tried to write meanwhile.
    fn write<'a>(&'a self, mut outbox: MutexGuard<'a, Outbox>, most: u64) -> (MutexGuard<'a, Outbox>, Flush, bool) {
        if outbox.queue.is_empty() && outbox.is_sent() {
            let flush = if outbox.state.is_broken() { outbox.broken() } else { Flush::Empty };
            return (outbox, flush, false);
        }
        if outbox.socket.begin_writing() == Writing::Taken {
            return (outbox, Flush::Elsewhere, false);
        }
        let until = outbox.client.sent().saturating_add(most);
        let flush = loop {
            if outbox.state.is_broken() {
                break outbox.broken();
            }
            if outbox.client.sent() >= until && !outbox.queue.is_empty() {
                break Flush::More;
            }
            let Some(batch) = outbox.queue.take() else {
                break if outbox.compressing.must_be_awaited() { Flush::Elsewhere } else { Flush::Empty };
            };
            drop(outbox);
            let write = |batch: &mut Batch| batch.write(self.socket());
            let (batch, wrote) = self.unlocked(batch, write, |outbox, batch| outbox.queue.drop_batch(batch));
            outbox = self.outbox();
            let moved = match wrote {
                Wrote::Io(moved) => moved,
                Wrote::Unread(part) => break outbox.found_unread(batch, part),
            };
            if let Some(flush) = outbox.wrote(batch, moved) {
                break flush;
            }
        };
        let asked = outbox.socket.end_writing() == WritingEnd::Asked;
        (outbox, flush, asked)
    }

    /// Runs a write without the lock. If the transport panics, drops the bytes that were being written, breaks the
    /// connection and ends the writing before the panic continues.
    fn unlocked<B, T>(
        &self,
        mut bytes: B,
        write: impl FnOnce(&mut B) -> T,
        forget: impl FnOnce(&mut Outbox, B),
    ) -> (B, T) {
        match catch_unwind(AssertUnwindSafe(|| write(&mut bytes))) {
            Ok(written) => (bytes, written),
            Err(panic) => {
                let mut outbox = self.outbox();
                forget(&mut outbox, bytes);
                outbox.break_off();
                outbox.socket.end_writing();
                drop(outbox);
                resume_unwind(panic)
            }
        }
    }

    /// After a write: sets the deadline by which the client must accept more. True: the thread that polls has to be
    /// woken.
    fn set_deadline(outbox: &mut Outbox, progress: bool, limits: &DeliveryLimits, time: &dyn ClientTime) -> bool {
        outbox.deadline(progress, limits, || time.now()).is_some_and(|due| time.set_deadline(due))
    }

    /// Nothing may follow a page that was sent in the application's place: ends the sending direction once it is sent.
    fn end_if_timed_out(&self, outbox: MutexGuard<'_, Outbox>) {
        let is_over = outbox.state.is_timed_out() && outbox.is_sent();
        drop(outbox);
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
        let mut outbox = self.outbox();
        if may_hold && outbox.hold(progress) == Hold::Held {
            plan.queue_rest(&mut outbox, blocks, most, keep);
            let accepted = if outbox.state.is_over() { Accepted::Gone } else { Accepted::Batched };
            return (accepted, After::default());
        }
        outbox.note_produced(progress);
        outbox.flush_coalesced();
        if !outbox.compressing.is_open() && outbox.takes_writes() && outbox.socket.begin_writing() == Writing::Mine {
            loop {
                drop(outbox);
                let write = |plan: &mut &mut WritePlan| plan.write(self.socket(), blocks, most, is_end);
                let (_, (count, last)) = self.unlocked(&mut *plan, write, |_, _| {});
                *writes += count;
                outbox = self.outbox();
                match last {
                    // The socket may have room again. Only a full socket decides whether the producer has to wait.
                    Some(Io::WouldBlock) if outbox.socket.found_full() == FullSocket::NoLonger => {}
                    Some(Io::End | Io::Broken) => break outbox.break_off(),
                    Some(Io::WouldBlock | Io::Moved(_)) | None => break,
                }
            }
            // What the other thread would have written is written or queued below.
            let asked = outbox.socket.end_writing() == WritingEnd::Asked;
            plan.queue_rest(&mut outbox, blocks, most, keep);
            let (accepted, mut after) = self.send_queued(outbox, u64::MAX, limits, time);
            after.asked |= asked;
            return (accepted, after);
        }
        plan.queue_rest(&mut outbox, blocks, most, keep);
        self.send_queued(outbox, u64::MAX, limits, time)
    }

    /// Queues a part of a file, and sends what is queued.
    pub(crate) fn transmit_file(
        &self,
        part: FilePart<'_>,
        limits: &DeliveryLimits,
        time: &dyn ClientTime,
    ) -> (Accepted, After) {
        let mut outbox = self.outbox();
        outbox.note_produced(part.progress);
        outbox.flush_coalesced();
        outbox.push(|queue| {
            queue.push_copy(part.before)?;
            queue.push_file(part.file, part.offset, part.length);
            queue.push_copy(part.behind)
        });
        // A fast client would take all of a large file from memory, and the caller may be the thread that polls.
        self.send_queued(outbox, TURN, limits, time)
    }

    /// Sends what is queued, unless the socket is full or the I/O side is to send it. Returns what the producer has to
    /// do.
    fn send_queued<'a>(
        &'a self,
        mut outbox: MutexGuard<'a, Outbox>,
        most: u64,
        limits: &DeliveryLimits,
        time: &dyn ClientTime,
    ) -> (Accepted, After) {
        let mut after = After { compress: outbox.compressing.must_schedule(), ..After::default() };
        // The head is sent with the first bytes that are compressed.
        let is_direct = !outbox.compressing.is_open();
        if is_direct && !outbox.queue.is_empty() && !outbox.socket.is_blocked() && !outbox.leaves_rest(limits) {
            outbox = self.send_on(outbox, most, limits, &mut after);
        }
        if outbox.state.is_over() {
            return (Accepted::Gone, after);
        }
        after.wake = Self::set_deadline(&mut outbox, false, limits, time);
        if !outbox.is_full(limits) {
            return (Accepted::Taken, after);
        }
        if is_direct && !outbox.socket.is_blocked() {
            // The I/O side wakes a waiting producer after it has sent something, so it is given a reason to send, even
            // if the response is complete.
            outbox = self.send_on(outbox, most, limits, &mut after);
        }
        drop(outbox);
        (Accepted::Full, after)
    }

    /// Writes all that the socket accepts, or has the I/O side do it where a runner must not write that much.
    fn send_on<'a>(
        &'a self,
        mut outbox: MutexGuard<'a, Outbox>,
        most: u64,
        limits: &DeliveryLimits,
        after: &mut After,
    ) -> MutexGuard<'a, Outbox> {
        if limits.policy.most_by_runner.is_some() {
            after.push |= outbox.socket.must_push();
            return outbox;
        }
        let (mut outbox, flush, asked) = self.write(outbox, most);
        after.asked |= asked;
        after.push |= flush == Flush::More && outbox.socket.must_push();
        after.read |= outbox.socket.has_unread();
        outbox
    }

    /// Blocks until the queue has room. False: there never will be. `spill` moves the queued bytes to a file; it is
    /// called after `patience` without room, and returns the time until the next call.
    pub(crate) fn wait_for_room(
        &self,
        limits: &DeliveryLimits,
        mut patience: Duration,
        mut spill: impl FnMut() -> Duration,
    ) -> bool {
        let mut outbox = self.outbox();
        while outbox.room(limits) == Room::Later {
            let (guard, timed_out) = wait_for(&self.room, outbox, patience);
            outbox = guard;
            if timed_out {
                drop(outbox);
                patience = spill();
                outbox = self.outbox();
            }
        }
        !outbox.state.is_over()
    }

    /// Writes as much as the socket accepts now, where no other thread writes.
    pub(crate) fn write_for_room(&self, limits: &DeliveryLimits) -> WrittenForRoom {
        let mut outbox = self.outbox();
        outbox.socket.unblock();
        outbox.flush_coalesced();
        let (outbox, _, _) = self.write(outbox, u64::MAX);
        if outbox.state.is_over() {
            WrittenForRoom::Never
        } else if outbox.queued() <= limits.low_water() {
            WrittenForRoom::Room
        } else if !outbox.socket.is_blocked() {
            WrittenForRoom::Elsewhere
        } else {
            WrittenForRoom::Blocked
        }
    }

    /// After [`WrittenForRoom::Elsewhere`]: waits up to this long until the other thread has made room.
    pub(crate) fn await_room_from_others(&self, limits: &DeliveryLimits, most: Duration) {
        let outbox = self.outbox();
        if !outbox.state.is_over() && !outbox.socket.is_blocked() && outbox.queued() > limits.low_water() {
            drop(wait_for(&self.room, outbox, most));
        }
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
        let mut outbox = self.outbox();
        if writable {
            outbox.socket.unblock();
        }
        let before = outbox.client.sent();
        // The thread that compresses sends what is queued, the head, too, together with what it adds.
        let (mut outbox, flush, asked) = match outbox.compressing.must_be_awaited() {
            true => (outbox, Flush::Elsewhere, false),
            false => self.write(outbox, most),
        };
        let progress = outbox.client.sent() > before;
        let wake = time.is_some_and(|time| Self::set_deadline(&mut outbox, progress, limits, time));
        // A producer that found this thread writing may wait for the room that the write has made.
        let room = asked && (outbox.queued() <= limits.low_water() || outbox.state.is_over());
        let read = outbox.socket.has_unread();
        self.end_if_timed_out(outbox);
        (flush, After { wake, asked, room, read, ..After::default() })
    }

    /// Sends coalesced blocks and the queue while the producer still works. `expired`: the deadline of the connection
    /// has passed, which breaks the connection if its socket is full.
    pub(crate) fn drain(&self, writable: bool, expired: bool, limits: &DeliveryLimits, time: &dyn ClientTime) -> After {
        let mut outbox = self.outbox();
        if writable {
            outbox.socket.unblock();
        }
        outbox.socket.note_pulled();
        outbox.flush_coalesced();
        let mut after = After { compress: outbox.compressing.must_schedule(), ..After::default() };
        if outbox.queue.is_empty() {
            // The queue may have had no memory for the coalesced blocks, which breaks the connection.
            after.room = outbox.state.is_over();
            return after;
        }
        if expired && outbox.socket.is_blocked() {
            outbox.break_off();
        } else if !outbox.socket.is_blocked() {
            let before = outbox.client.sent();
            let (guard, flush, asked) = self.write(outbox, limits.policy.most_by_io.unwrap_or(u64::MAX));
            outbox = guard;
            after.asked = asked;
            after.read = outbox.socket.has_unread();
            after.push = flush == Flush::More && outbox.socket.must_push();
            let progress = outbox.client.sent() > before;
            after.wake = Self::set_deadline(&mut outbox, progress, limits, time);
        }
        after.room = outbox.queued() <= limits.low_water() || outbox.state.is_over();
        self.end_if_timed_out(outbox);
        after
    }

    /// Compresses a part of what the producer has sent, and sends it. For a disk thread; the lock is not held meanwhile.
    pub(crate) fn compress(&self, limits: &DeliveryLimits, time: &dyn ClientTime) -> After {
        let Some(step) = self.outbox().begin_compressing() else { return After::default() };
        if let Ok(made) = catch_unwind(AssertUnwindSafe(|| step.run())) {
            self.end_compressing(made, limits, time)
        } else {
            self.outbox().break_off();
            After { asked: true, room: true, ..After::default() }
        }
    }

    /// Sends what a step has compressed.
    fn end_compressing(&self, made: Made, limits: &DeliveryLimits, time: &dyn ClientTime) -> After {
        self.outbox().end_compressing(made);
        let mut after = self.drain(false, false, limits, time);
        let mut outbox = self.outbox();
        after.compress |= outbox.compressing.must_schedule();
        after.asked |= outbox.compressing.must_notify_owner();
        after
    }

    /// Sends what has been coalesced since the last tick. False: the response is over, or its blocks no longer come
    /// quickly.
    pub(crate) fn tick(&self, limits: &DeliveryLimits, time: &dyn ClientTime) -> (bool, After) {
        let moved = self.outbox().coalescing.len() > 0;
        let after = if moved { self.drain(false, false, limits, time) } else { After::default() };
        (self.outbox().coalescing.must_stay_listed(moved), after)
    }

    /// Queues bytes of the server's own and sends what the socket accepts. Sets no deadline.
    pub(crate) fn send(&self, bytes: &[u8], limits: &DeliveryLimits) -> After {
        self.outbox().queue_own(bytes);
        self.flush(false, u64::MAX, limits, None).1
    }

    /// The deadline of the request has passed while the application runs. Sends `page` if the response has not begun,
    /// else breaks it off; a complete response is not touched. What the application produces from now on is discarded.
    /// The caller notifies a runner that waits for room. The flag is [`After::asked`].
    pub(crate) fn time_out(&self, page: impl FnOnce() -> (Vec<u8>, u64)) -> (TimeOut, bool) {
        let mut outbox = self.outbox();
        let time_out = outbox.time_out(page);
        match time_out {
            TimeOut::Over => (time_out, false),
            TimeOut::BrokenOff => {
                drop(outbox);
                self.socket.abort();
                (time_out, false)
            }
            TimeOut::Answered => {
                let (outbox, _, asked) = self.write(outbox, u64::MAX);
                self.end_if_timed_out(outbox);
                (time_out, asked)
            }
        }
    }

    /// Wakes a thread that waits for room.
    pub(crate) fn notify_room(&self) {
        self.room.notify_all();
    }

    /// Moves the queued bytes from memory to a file, from which the I/O side sends them. Blocks on the disk, without
    /// the lock: other threads may send meanwhile.
    pub(crate) fn spill(&self, spill: &Spill) -> (Spilled, After) {
        if !spill.is_allowed() {
            return (Spilled::NoRoom, After::default());
        }
        let mut outbox = self.outbox();
        outbox.flush_coalesced();
        // If the socket is not full, the I/O side is late and not the client. Its next tick no longer finds the bytes
        // that were coalesced, and no event of the socket follows, so it is asked to send them.
        let is_for_io = !outbox.socket.is_blocked() && !outbox.queue.is_empty();
        let push = is_for_io && outbox.socket.must_push();
        let after = After { push, compress: outbox.compressing.must_schedule(), ..After::default() };
        let is_whole = outbox.state.is_whole();
        let backlog = if outbox.state.is_over() { None } else { outbox.queue.backlog() };
        let Some(backlog) = backlog else {
            return (if outbox.is_sent() { Spilled::Nothing } else { Spilled::Busy }, after);
        };
        drop(outbox);
        let written = spill.write(&backlog, is_whole, || !self.outbox().state.is_broken());
        let mut outbox = self.outbox();
        let spilled = match written {
            Ok(Some((file, offset))) => {
                if outbox.state.is_broken() {
                    outbox.queue.keep();
                } else if outbox.queue.spill(&backlog, file, offset) {
                    outbox.set_spilled();
                }
                Spilled::Done
            }
            Ok(None) => {
                outbox.queue.keep();
                Spilled::NoRoom
            }
            Err(fault) => {
                outbox.queue.keep();
                Spilled::Failed(fault)
            }
        };
        (spilled, after)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
