//! The shared half of a response: what two threads may touch of it, behind one lock.
//!
//! The thread that carries the request appends and writes; an I/O thread sends what the client did not take at once,
//! what is coalesced, and pages in the application's place. The lock is never held across a system call: who writes
//! notes so, takes a batch, writes it without the lock, and puts back what is left. Another thread that comes to write
//! meanwhile leaves that to the one that does.
//!
//! Nothing here knows the loop: what is to be done besides is returned as [`After`].

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use crate::os::clock::Millis;
use crate::os::socket::Io;
use crate::os::sync::{Condvar, Mutex, MutexGuard, lock, wait_for};
use crate::response::payload::Payload;
use crate::response::send_queue::Batch;
use crate::response::sending::{End, Flush, Given, Overruled, Progress, Sending, Taken, Terms};
use crate::response::spill::Spill;
use crate::response::write_plan::WritePlan;
use crate::transport::Transport;

/// The time that the client of a connection has. Called with the lock held, so that of two threads the one that wrote
/// last also sets the deadline last; so it must not block.
pub(crate) trait ClientTime {
    /// Now.
    fn now(&self) -> Millis;

    /// The connection has this deadline; [`crate::os::clock::NEVER`]: none. True: the thread that polls is to be woken
    /// for it.
    fn set_deadline(&self, due: Millis) -> bool;
}

/// What the caller has to do after it has let the lock go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct After {
    /// The thread that polls is to look at the deadlines.
    pub(crate) wake: bool,
    /// The I/O side is to send what waits.
    pub(crate) push: bool,
    /// The runner that waits for room is to look again.
    pub(crate) room: bool,
    /// The I/O side is to look at the response at each tick.
    pub(crate) list: bool,
    /// Another thread came to write and has left: what it came for is to be looked at once more.
    pub(crate) asked: bool,
}

impl After {
    /// True when there is anything to do.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.wake | self.push | self.room | self.list | self.asked
    }
}

/// What became of bytes that a producer gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// Sent or queued.
    Taken,
    /// Sent or queued, and the producer must wait before the next block.
    Full,
    /// The connection is broken, or the response overruled.
    Gone,
}

/// Whether there is room in the send queue, asked by a runner that waits under a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// There is room.
    Now,
    /// There will never be room.
    Never,
    /// Not yet: the runner is woken by its ticket when it is worth asking again.
    Later,
}

/// What came of writing for room, see [`Delivery::write_for_room`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrittenForRoom {
    /// There is room.
    Room,
    /// There will never be room.
    Never,
    /// There is no room yet; the client has taken something.
    Progress,
    /// There is no room yet, and the client has taken nothing.
    NoProgress,
}

/// What became of what waits when it was to be written to a file.
#[derive(Debug)]
pub(crate) enum Spilled {
    /// It is in a file.
    Done,
    /// There is no room, or nothing that could be written.
    No,
    /// All of it is being sent at this moment.
    Busy,
    /// The disk is full or broken.
    Failed(std::io::Error),
}

/// Gives an owner of the block of this index, so that it can be sent later.
pub(crate) type Keep<'a> = &'a mut dyn FnMut(usize) -> Box<dyn Payload>;

/// Blocks that a producer gives, as they are planned to be written.
pub(crate) struct Output<'a> {
    pub(crate) plan: &'a mut WritePlan,
    /// The blocks that the plan refers to.
    pub(crate) blocks: &'a [&'a [u8]],
    pub(crate) keep: Keep<'a>,
    pub(crate) progress: Progress,
}

/// A part of a file, with what goes before it and behind it.
pub(crate) struct FilePart<'a> {
    pub(crate) before: &'a [u8],
    pub(crate) file: OwnedFd,
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
    /// No response yet.
    pub(crate) fn new(socket: Box<dyn Transport>, terms: &Terms) -> Self {
        let sending = Mutex::new(Sending::new(terms.memory.responses.clone()));
        Self { socket, sending, room: Condvar::new() }
    }

    pub(crate) fn socket(&self) -> &dyn Transport {
        &*self.socket
    }

    /// Writes what waits, `most` bytes and little more; the lock is let go for each write. The lock comes back with
    /// what that came to, and whether another thread came to write meanwhile.
    fn write<'a>(&'a self, mut sending: Guard<'a>, most: u64) -> (Guard<'a>, Flush, bool) {
        if sending.queue.is_empty() && sending.is_sent() {
            let flush = if sending.is_broken() { Flush::Broken } else { Flush::Empty };
            return (sending, flush, false);
        }
        if !sending.begin_writing() {
            return (sending, Flush::Elsewhere, false);
        }
        let until = sending.sent().saturating_add(most);
        let flush = loop {
            if sending.is_broken() {
                break Flush::Broken;
            }
            if sending.sent() >= until && !sending.queue.is_empty() {
                break Flush::More;
            }
            let Some(batch) = sending.next_batch() else { break Flush::Empty };
            drop(sending);
            let write = |batch: &mut Batch| batch.write(self.socket());
            let (batch, moved) = self.unlocked(batch, write, |sending, batch| sending.queue.drop_batch(batch));
            sending = lock(&self.sending);
            if let Some(flush) = sending.wrote(batch, moved) {
                break flush;
            }
        };
        let asked = sending.end_writing();
        (sending, flush, asked)
    }

    /// The writer writes, without the lock. If the transport panics, the connection is broken and has no writer any
    /// more, and what was being written is forgotten, before the panic goes on.
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

    /// After a write: the client's deadline. True: the thread that polls is to look at the deadlines.
    fn set_deadline(sending: &mut Sending, progress: bool, terms: &Terms, time: &dyn ClientTime) -> bool {
        sending.deadline(progress, terms, || time.now()).is_some_and(|due| time.set_deadline(due))
    }

    /// After a page in the application's place nothing follows.
    fn end_if_overruled(&self, sending: Guard<'_>) {
        let is_over = sending.is_overruled() && sending.is_sent();
        drop(sending);
        if is_over {
            self.socket.end_sending();
        }
    }
}

/// The producer's side: the thread that carries the request.
impl Delivery {
    /// Sends what is planned: at once as far as the socket takes it and the policy lets a runner write, and queues the
    /// rest. Adds the write calls to `writes`.
    pub(crate) fn transmit(
        &self,
        output: Output<'_>,
        writes: &mut u32,
        terms: &Terms,
        time: &dyn ClientTime,
    ) -> (Accepted, After) {
        let Output { plan, blocks, keep, progress } = output;
        let most = terms.policy.most_by_runner;
        let mut sending = lock(&self.sending);
        sending.give(progress);
        sending.flush_coalesced(terms);
        if sending.takes_writes() && sending.begin_writing() {
            loop {
                drop(sending);
                let write = |plan: &mut &mut WritePlan| plan.write(self.socket(), blocks, most);
                let (_, (count, last)) = self.unlocked(&mut *plan, write, |_, _| {});
                *writes += count;
                sending = lock(&self.sending);
                match last {
                    // All that the socket takes has to be tried: only then is it known whether the producer is to wait.
                    Some(Io::WouldBlock) if sending.found_full() => {}
                    Some(Io::End | Io::Broken) => break sending.break_off(),
                    Some(Io::WouldBlock | Io::Moved(_)) | None => break,
                }
            }
            // What the other thread came for is done below, or is that there is nothing.
            let asked = sending.end_writing();
            plan.queue_rest(&mut sending, blocks, most, keep);
            let (accepted, mut after) = self.settle(sending, terms, time);
            after.asked |= asked;
            return (accepted, after);
        }
        plan.queue_rest(&mut sending, blocks, most, keep);
        self.settle(sending, terms, time)
    }

    /// Queues part of a file, and sends on.
    pub(crate) fn transmit_file(&self, part: FilePart<'_>, terms: &Terms, time: &dyn ClientTime) -> (Accepted, After) {
        let mut sending = lock(&self.sending);
        sending.give(part.progress);
        sending.flush_coalesced(terms);
        sending.push(|queue| {
            queue.push_copy(part.before)?;
            queue.push_file(part.file, part.offset, part.length);
            queue.push_copy(part.behind)
        });
        self.settle(sending, terms, time)
    }

    /// Sends on what waits, unless the socket is full or the I/O side does it, and says what the producer is to do.
    fn settle<'a>(&'a self, mut sending: Guard<'a>, terms: &Terms, time: &dyn ClientTime) -> (Accepted, After) {
        let mut after = After::default();
        if !sending.queue.is_empty() && !sending.is_blocked() && !sending.leaves_rest(terms) {
            sending = self.send_on(sending, terms, &mut after);
        }
        if sending.is_over() {
            return (Accepted::Gone, after);
        }
        after.wake = Self::set_deadline(&mut sending, false, terms, time);
        if !sending.is_full(terms) {
            return (Accepted::Taken, after);
        }
        if !sending.is_blocked() {
            // The producer is told of room by the I/O side, which has to know of the response, be it finished or not.
            sending = self.send_on(sending, terms, &mut after);
        }
        drop(sending);
        (Accepted::Full, after)
    }

    /// Writes all that the socket takes, or has the I/O side do it where a runner must not.
    fn send_on<'a>(&'a self, mut sending: Guard<'a>, terms: &Terms, after: &mut After) -> Guard<'a> {
        if terms.policy.most_by_runner.is_some() {
            after.push |= sending.set_pushed(true);
            return sending;
        }
        let (sending, _, asked) = self.write(sending, u64::MAX);
        after.asked |= asked;
        sending
    }

    /// The next blocks are coalesced, see [`Sending::list`].
    pub(crate) fn list(&self, chunked: bool) {
        lock(&self.sending).list(chunked);
    }

    /// Appends a block to those that are coalesced. `Unlisted`: nothing was done.
    #[inline]
    pub(crate) fn coalesce(&self, block: &[u8], terms: &Terms) -> Taken {
        lock(&self.sending).coalesce(block, terms)
    }

    /// The same for a block after some time without any: it is left to the I/O side, so that no runner is kept by a
    /// send for each, and leaves with the response's end if that comes right after it. The I/O side must learn of it.
    pub(crate) fn coalesce_anew(&self, block: &[u8], chunked: bool, terms: &Terms) -> Taken {
        let mut sending = lock(&self.sending);
        sending.list(chunked);
        sending.coalesce(block, terms)
    }

    /// All of the response has been given.
    pub(crate) fn complete(&self) {
        lock(&self.sending).complete();
    }

    /// Blocks until there is room. False: there never will be. `spill` writes what waits to a file when the client has
    /// had `patience` for it, and answers how long to wait until the next time.
    pub(crate) fn wait_for_room(&self, terms: &Terms, patience: Duration, mut spill: impl FnMut() -> Duration) -> bool {
        let mut sending = lock(&self.sending);
        let mut patience = if sending.queue.is_behind() { Duration::ZERO } else { patience };
        while !sending.is_over() && !sending.has_room(terms) {
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

    /// Whether there is room. If there is none yet, `waits` notes who is to be told of it, under the lock: whoever
    /// makes room looks afterwards.
    pub(crate) fn ask_for_room(&self, terms: &Terms, waits: impl FnOnce()) -> Room {
        let sending = lock(&self.sending);
        if sending.is_over() {
            return Room::Never;
        }
        if sending.has_room(terms) {
            return Room::Now;
        }
        waits();
        Room::Later
    }

    /// Writes as much as the socket takes now, where no other thread does.
    pub(crate) fn write_for_room(&self, terms: &Terms) -> WrittenForRoom {
        let mut sending = lock(&self.sending);
        sending.unblock();
        sending.flush_coalesced(terms);
        let before = sending.sent();
        let (sending, _, _) = self.write(sending, u64::MAX);
        if sending.is_over() {
            WrittenForRoom::Never
        } else if sending.queue.bytes() <= terms.low_water() {
            WrittenForRoom::Room
        } else if sending.sent() > before {
            WrittenForRoom::Progress
        } else {
            WrittenForRoom::NoProgress
        }
    }

    /// The response is over, see [`Sending::end`].
    pub(crate) fn end(&self, terms: &Terms) -> End {
        lock(&self.sending).end(terms)
    }

    /// True while the client has yet to take what was written to a file.
    pub(crate) fn is_behind(&self) -> bool {
        lock(&self.sending).queue.is_behind()
    }
}

/// The I/O side, and whoever owns the connection.
impl Delivery {
    /// Writes what waits, `most` bytes and little more. `writable`: an event has told that the socket takes more.
    /// Without `time` the client has no deadline for it.
    pub(crate) fn flush(
        &self,
        writable: bool,
        most: u64,
        terms: &Terms,
        time: Option<&dyn ClientTime>,
    ) -> (Flush, After) {
        let mut sending = lock(&self.sending);
        if writable {
            sending.unblock();
        }
        let before = sending.sent();
        let (mut sending, flush, asked) = self.write(sending, most);
        let progress = sending.sent() > before;
        let wake = time.is_some_and(|time| Self::set_deadline(&mut sending, progress, terms, time));
        // A producer that found this thread writing waits for what it has written.
        let room = asked && (sending.queue.bytes() <= terms.low_water() || sending.is_over());
        self.end_if_overruled(sending);
        (flush, After { wake, asked, room, ..After::default() })
    }

    /// Sends what a producer has given, while it is at work: what is coalesced, and what waits. `expired`: the deadline
    /// of the connection has come, which breaks it if it waits for the client.
    pub(crate) fn drain(&self, writable: bool, expired: bool, terms: &Terms, time: &dyn ClientTime) -> After {
        let mut sending = lock(&self.sending);
        if writable {
            sending.unblock();
        }
        sending.set_pushed(false);
        sending.flush_coalesced(terms);
        let mut after = After::default();
        if sending.queue.is_empty() {
            // There may have been no memory for what was coalesced.
            after.room = sending.is_over();
            return after;
        }
        if expired && sending.is_blocked() {
            sending.break_off();
        } else if !sending.is_blocked() {
            let before = sending.sent();
            let (guard, flush, asked) = self.write(sending, terms.policy.most_by_io.unwrap_or(u64::MAX));
            sending = guard;
            after.asked = asked;
            after.push = flush == Flush::More && sending.set_pushed(true);
            let progress = sending.sent() > before;
            after.wake = Self::set_deadline(&mut sending, progress, terms, time);
        }
        after.room = sending.queue.bytes() <= terms.low_water() || sending.is_over();
        self.end_if_overruled(sending);
        after
    }

    /// Sends what has been coalesced since the last tick. False: the response is over, or its blocks have become slow.
    pub(crate) fn tick(&self, terms: &Terms, time: &dyn ClientTime) -> (bool, After) {
        let moved = lock(&self.sending).coalesced() > 0;
        let after = if moved { self.drain(false, false, terms, time) } else { After::default() };
        (lock(&self.sending).stays_listed(moved), after)
    }

    /// Queues bytes of the server's own.
    pub(crate) fn queue(&self, bytes: &[u8]) {
        lock(&self.sending).push(|queue| queue.push_copy(bytes));
    }

    /// Queues bytes of the server's own and sends them as far as the socket takes them; no time of the client's runs
    /// for that.
    pub(crate) fn send(&self, bytes: &[u8], terms: &Terms) -> After {
        self.queue(bytes);
        self.flush(false, u64::MAX, terms, None).1
    }

    /// The deadline of the request has come, whose application still works on it. Answers in its place with `page`, or
    /// breaks off what has begun; what the application still gives goes nowhere. A complete response is left to its
    /// client. A runner that waits for room is still to be notified. The flag: another thread came to write meanwhile,
    /// as [`After::asked`].
    pub(crate) fn overrule(&self, page: impl FnOnce() -> (Vec<u8>, u64)) -> (Overruled, bool) {
        let mut sending = lock(&self.sending);
        let overruled = sending.overrule(page);
        match overruled {
            Overruled::Over => (overruled, false),
            Overruled::BrokenOff => {
                drop(sending);
                self.socket.abort();
                (overruled, false)
            }
            Overruled::Answered => {
                let (sending, _, asked) = self.write(sending, u64::MAX);
                self.end_if_overruled(sending);
                (overruled, asked)
            }
        }
    }

    /// True when the client was answered in the application's place, or its response broken off for its deadline.
    pub(crate) fn is_overruled(&self) -> bool {
        lock(&self.sending).given_so_far().1
    }

    /// Forgets what waits and takes nothing more. A runner that waits for room is still to be notified.
    pub(crate) fn break_off(&self) {
        lock(&self.sending).break_off();
    }

    /// Wakes a thread that waits for room.
    pub(crate) fn notify_room(&self) {
        self.room.notify_all();
    }

    /// Status and body bytes of the response of now, and whether its deadline came, for a log that cannot ask its
    /// producer.
    pub(crate) fn given_so_far(&self) -> (Given, bool) {
        lock(&self.sending).given_so_far()
    }

    /// Write calls since the last call.
    pub(crate) fn take_writes(&self) -> u32 {
        lock(&self.sending).take_writes()
    }

    /// Writes what waits in memory to a file, from which the I/O side sends it. Blocks on the disk; the client is
    /// served meanwhile.
    pub(crate) fn spill(&self, spill: &Spill, terms: &Terms) -> (Spilled, After) {
        if !spill.is_allowed() {
            return (Spilled::No, After::default());
        }
        let mut sending = lock(&self.sending);
        sending.flush_coalesced(terms);
        // It may be the I/O side that is late, and not the client: no event of the socket would tell it of what was
        // coalesced, and its next tick does not find that any more.
        let is_for_io = !sending.is_blocked() && !sending.queue.is_empty();
        let after = After { push: is_for_io && sending.set_pushed(true), ..After::default() };
        let is_whole = sending.is_complete();
        let backlog = if sending.is_over() { None } else { sending.queue.backlog() };
        let Some(backlog) = backlog else {
            return (if sending.is_sent() { Spilled::No } else { Spilled::Busy }, after);
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
                Spilled::No
            }
            Err(fault) => {
                sending.queue.keep();
                Spilled::Failed(fault)
            }
        };
        (spilled, after)
    }

    /// Waits until no other thread is between a look and a wait for room.
    pub(crate) fn sync(&self) {
        drop(lock(&self.sending));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
