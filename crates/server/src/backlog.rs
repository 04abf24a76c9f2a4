//! What a client has not taken yet: bounded, sent on when it takes more, waited for.
//!
//! The application's thread waits for room here; the I/O side drains, also for an owner that is inside the application.
//! Both hold the outbox's lock while they write.

use std::sync::{Arc, Weak};
use std::time::Duration;

use penstock_http::framing::RequestFacts;
use penstock_http::limits::Refusal;

use crate::claim::{self, Bits};
use crate::connection::{Connection, within_rate};
use crate::gather::Appended;
use crate::lock;
use crate::outbox::{Flush, Outbox};
use crate::posts::Outcome;
use crate::timers::{NEVER, SIGNAL_CHECK, millis};

/// What may wait for one client when the memory for all of them is used up.
const OVER_BUDGET: usize = 64 * 1024;

/// Bytes that the I/O side writes before a greenlet can have the outbox.
const HOLD: u64 = 1 << 20;

/// What a client reads whose request took too long.
const TOO_LATE: Refusal = Refusal::new(504, "The application took too long.");

/// The client of a response.
pub struct Client(pub(crate) Weak<Connection>);

impl Client {
    /// True when it is known to have gone.
    pub fn is_gone(&self) -> bool {
        self.0.upgrade().is_none_or(|connection| connection.is_gone())
    }
}

/// What a greenlet is answered that asks for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// There is some.
    Now,
    /// There never will be.
    Never,
    /// Its ticket will be told.
    Told,
}

impl Connection {
    /// The owner is an application thread that gathers blocks or waits for room: serve it from the I/O side.
    pub(crate) fn drain_for_the_owner(self: &Arc<Self>, bits: Bits) {
        let mut out = lock(self.outbox());
        if bits & claim::WRITE != 0 {
            out.set_blocked(false);
        }
        out.set_pushed(false);
        self.push_gathered(&mut out);
        if out.is_empty() {
            return;
        }
        if bits & claim::EXPIRED != 0 && out.is_blocked() && self.deadline().has_come(self.reactor().clock().now()) {
            out.break_off();
        } else if !out.is_blocked() {
            let before = out.sent();
            self.flush_for_the_owner(&mut out);
            let progress = out.sent() > before;
            self.await_client(&mut out, progress);
            self.end_if_sealed(&out);
        }
        let full = out.bytes() > self.high_water();
        lock(self.gather()).tell(full, out.is_broken());
        if out.bytes() <= self.low_water() || out.is_broken() {
            self.tell_room();
        }
    }

    /// Writes as much as the socket takes. A greenlet that comes with its next block meanwhile waits for the lock, and with it
    /// all of its hub: for that, the lock is let go now and then.
    fn flush_for_the_owner(self: &Arc<Self>, out: &mut Outbox) {
        if self.reactor().hub().is_none() {
            out.flush_all(self.wire());
        } else if out.flush_most(self.wire(), HOLD) == Flush::More {
            self.push(out);
        }
    }

    /// Owner: writes as much as the socket takes; a hub's greenlet has the I/O side do it.
    pub(crate) fn send_waiting(self: &Arc<Self>, out: &mut Outbox) {
        match self.reactor().hub() {
            None => out.flush_all(self.wire()),
            Some(_) => self.push(out),
        }
    }

    fn push(self: &Arc<Self>, out: &mut Outbox) {
        if out.set_pushed(true) {
            self.reactor().push(self.clone());
        }
    }

    /// I/O side: the deadline of the request has come, whose application still works on it. Answers in its place, or breaks
    /// off what has begun; what the application still writes goes nowhere. What is complete is left to its client. Who waits
    /// for room or bytes is still to be told.
    pub(crate) fn overrule(&self, facts: RequestFacts) -> Outcome {
        let mut out = lock(self.outbox());
        if out.is_broken() || out.is_complete() {
            return Outcome::Over;
        }
        let outcome = if out.has_begun() { Outcome::BrokenOff } else { Outcome::Answered };
        if outcome == Outcome::Answered {
            out.push_copy(&self.error_page(&TOO_LATE, RequestFacts { keep_alive: false, ..facts }));
            out.seal();
            out.flush_all(self.wire());
            self.end_if_sealed(&out);
        } else {
            out.seal();
            out.break_off();
            self.wire().abort();
        }
        lock(self.gather()).tell(false, true);
        outcome
    }

    /// True when the client was answered in the application's place, or its response broken off.
    pub(crate) fn is_overruled(&self) -> bool {
        lock(self.outbox()).is_sealed()
    }

    /// After a response that was given in the application's place nothing follows.
    fn end_if_sealed(&self, out: &Outbox) {
        if out.is_sealed() && out.is_empty() {
            self.wire().end_sending();
        }
    }

    /// The block of a greenlet, after some time without any. It is left to the I/O side, so that the hub's thread is not
    /// kept by a send for each, and leaves with the response's end if that comes right after it.
    pub(crate) fn gather_anew(self: &Arc<Self>, block: &[u8], limit: usize, chunked: bool) -> Appended {
        let appended = {
            let mut gather = lock(self.gather());
            gather.list_lean(chunked);
            gather.append(block, limit)
        };
        self.reactor().stream(self.clone());
        appended
    }

    /// A greenlet's response is over and something is left of it: its thread has others to serve, also where the socket may
    /// take more again.
    pub(crate) fn is_for_others(&self, out: &Outbox) -> bool {
        self.reactor().hub().is_some() && !out.is_empty() && !out.is_broken()
    }

    /// Moves what has gathered behind what waits already.
    pub(crate) fn push_gathered(&self, out: &mut Outbox) {
        let gathered = lock(self.gather()).take();
        if let Some(gathered) = gathered {
            let mut at = gathered.at;
            for segment in gathered.segments {
                out.push_buffer(segment, at);
                at = 0;
            }
        }
    }

    /// I/O side: sends what a response has gathered since the last tick. False: the response is over, or its blocks
    /// have become slow.
    pub(crate) fn tick(self: &Arc<Self>) -> bool {
        let moved = lock(self.gather()).len() > 0;
        if moved {
            self.drain_for_the_owner(0);
        }
        lock(self.gather()).stays_listed(moved)
    }

    /// True while the responses of all connections keep within their memory.
    pub(crate) fn has_budget(&self) -> bool {
        self.reactor().budget().used() <= self.reactor().config().response_buffer
    }

    /// What may wait for this client before its producer waits, too.
    pub(crate) fn high_water(&self) -> usize {
        let limit = self.reactor().config().outbox_limit;
        if self.has_budget() { limit } else { limit.min(OVER_BUDGET) }
    }

    /// Owner: true when the producer is to wait. A finished response is left to the I/O side, unless there is no memory for it.
    pub(crate) fn is_full(self: &Arc<Self>, out: &mut Outbox, ended: bool) -> bool {
        // A hub's greenlet has not tried all that the socket would take.
        let is_tried = out.is_blocked() || self.reactor().hub().is_some();
        let is_full = is_tried && out.bytes() > self.high_water() && !(ended && self.has_budget());
        if is_full && !out.is_blocked() {
            // It is told of room by the I/O side, which has to know of the response, be it finished or not.
            self.send_waiting(out);
        }
        is_full
    }

    fn low_water(&self) -> usize {
        self.high_water() / 2
    }

    /// After a write: how long the client has for what it has not taken. `progress`: it has just taken something.
    pub(crate) fn await_client(&self, out: &mut Outbox, progress: bool) {
        if out.is_empty() {
            if out.end_wait() {
                self.reactor().set_deadline(self, NEVER);
            }
            return;
        }
        let config = self.reactor().config();
        if !out.is_blocked() {
            // It takes what it gets; the rest is sent at our next turn.
            if progress {
                self.due_in(millis(config.write_timeout));
            }
            return;
        }
        let now = self.reactor().clock().now();
        let (since, taken, begins) = out.wait_since(now);
        if begins || progress {
            let due = within_rate(now, since, millis(config.write_timeout), taken, config.min_response_rate);
            self.reactor().set_deadline(self, due);
        }
    }

    /// Whether the outbox has room; if it has none yet, the greenlet that takes this ticket is told when it has, or never
    /// will. Told once: it asks again then.
    pub(crate) fn ask_for_room(&self, ticket: u64) -> Room {
        if self.is_forgotten() {
            return Room::Never;
        }
        let out = lock(self.outbox());
        if out.is_broken() {
            return Room::Never;
        }
        if out.bytes() + lock(self.gather()).len() <= self.low_water() {
            return Room::Now;
        }
        // Whoever makes room does it under the outbox's lock.
        self.writer_waits(ticket);
        Room::Told
    }

    /// Blocks until the outbox has room. False: it never will.
    pub(crate) fn wait_for_room(&self) -> bool {
        if self.reactor().config().single_thread {
            return self.make_room();
        }
        let mut out = lock(self.outbox());
        while !out.is_broken() && out.bytes() + lock(self.gather()).len() > self.low_water() {
            out = crate::wait(self.room(), out);
        }
        !out.is_broken()
    }

    /// The same where no other thread drains: waits for the client and writes by itself.
    fn make_room(&self) -> bool {
        let mut idle = Duration::ZERO;
        loop {
            let mut out = lock(self.outbox());
            out.set_blocked(false);
            self.push_gathered(&mut out);
            let before = out.sent();
            out.flush_all(self.wire());
            if out.is_broken() || out.bytes() <= self.low_water() {
                return !out.is_broken();
            }
            idle = if out.sent() > before { Duration::ZERO } else { idle + SIGNAL_CHECK };
            if idle >= self.reactor().config().write_timeout || self.reactor().must_end() {
                out.break_off();
                return false;
            }
            drop(out);
            self.wire().wait_writable(SIGNAL_CHECK);
        }
    }
}
