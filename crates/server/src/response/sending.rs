//! How far the response of a connection is, as a value: one enum of states, and what waits for the client.
//!
//! Plain data behind the lock of [`crate::response::delivery`]: no socket, no clock, no thread. A connection has one;
//! each of its responses begins in [`State::Idle`] and goes back there, but for those that break the connection.

use std::sync::Arc;

use crate::os::clock::{Millis, NEVER};
use crate::os::socket::Io;
use crate::request::memory::{Budget, ClientMemory};
use crate::response::coalescing::{Appended, Coalescing};
use crate::response::policy::Policy;
use crate::response::send_queue::{Batch, NoMemory, SendQueue};

/// What may wait for one client when the memory for all of them is used up.
const LEAST_QUEUE: usize = 64 * 1024;

/// The limits of what is held for clients, and how it is delivered. The same for all connections of a server.
pub(crate) struct Terms {
    pub(crate) policy: Policy,
    /// Bytes of one response that may wait in memory before its producer waits, too.
    pub(crate) queue_limit: usize,
    /// The same for all responses together.
    pub(crate) buffer_limit: usize,
    /// How long a client may take nothing.
    pub(crate) write_timeout: Millis,
    /// Bytes a second that a client must take; 0: no such rule.
    pub(crate) min_rate: u64,
    pub(crate) memory: Arc<ClientMemory>,
}

impl Terms {
    /// True while the responses of all connections keep within their memory.
    pub(crate) fn has_memory(&self) -> bool {
        self.memory.responses.used() <= self.buffer_limit && self.memory.has_room(0)
    }

    /// What may wait for one client before its producer waits, too.
    pub(crate) fn high_water(&self) -> usize {
        if self.has_memory() { self.queue_limit } else { self.queue_limit.min(LEAST_QUEUE) }
    }

    /// A producer that waited goes on when no more than this waits for its client.
    pub(crate) fn low_water(&self) -> usize {
        self.high_water() / 2
    }

    fn budget(&self) -> &Arc<Budget> {
        &self.memory.responses
    }
}

/// How much of a response its producer has given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) status: u16,
    pub(crate) body_bytes: u64,
}

/// How far a producer is with what it gives now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// All that it has given, this included.
    pub(crate) given: Given,
    /// Nothing of the response follows.
    pub(crate) is_complete: bool,
}

/// How far the response is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// No response has begun.
    Idle,
    /// Some of it has been sent or is queued, and more may come.
    Sending(Given),
    /// All of it has been sent or is queued.
    Complete(Given),
    /// The server has answered in the application's place, with this page. What the application gives goes nowhere.
    Overruled(Given),
    /// The connection is broken, whoever broke it: nothing is sent any more, also of later responses.
    Broken {
        /// What the producer, or the server in its place, had given before.
        given: Given,
        /// Who broke it.
        by: Cause,
    },
}

/// Who broke a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The client, or the server for its own reasons.
    Other,
    /// The deadline of the request, which came while its response was being sent.
    Deadline,
    /// As `Other`, after the server had answered in the application's place.
    AfterPage,
}

/// Who writes to the socket at this moment, without the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    Nobody,
    /// A thread does.
    Busy {
        /// Another thread came to write meanwhile, and has left that to this one.
        is_asked: bool,
        /// The socket may take more again, although this thread finds it full.
        retries: bool,
    },
}

/// What became of a response whose deadline has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overruled {
    /// Nothing had been sent: the page is queued, to be flushed.
    Answered,
    /// It had begun, and is broken off: the connection is to be aborted.
    BrokenOff,
    /// It was complete, or its client had gone.
    Over,
}

/// What became of a block that was to be coalesced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It will be sent at the next tick.
    Coalesced,
    /// Likewise, and the producer must wait now.
    Full,
    /// Blocks are not coalesced now: it is to be sent directly.
    Unlisted,
    /// The connection is broken, or the response overruled.
    Gone,
    /// The system has no memory for it.
    NoMemory,
}

/// The end of a response, for its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// Its deadline came before it was complete. `Some`: with a page of so many bytes in its place.
    pub(crate) timed_out: Option<Option<u64>>,
    /// Some of it was written to a file.
    pub(crate) has_spilled: bool,
    /// Nothing of it waits.
    pub(crate) is_sent: bool,
    /// The connection is broken.
    pub(crate) is_broken: bool,
    /// The I/O side sends the rest.
    pub(crate) is_left: bool,
}

/// See the module.
pub(crate) struct Sending {
    state: State,
    pub(crate) queue: SendQueue,
    /// From the first block that is coalesced until the response is over: an idle connection is to be small.
    coalescing: Option<Box<Coalescing>>,
    writer: Writer,
    /// The socket was full at the last write: it will tell when it takes more.
    is_blocked: bool,
    /// The I/O side was asked to send what waits, though the socket is not known to be full.
    is_pushed: bool,
    /// Some of the response has been written to a file.
    has_spilled: bool,
    /// Since when the client has been waited for without a pause; [`NEVER`]: it is not.
    waiting_since: Millis,
    /// What had been sent then.
    sent_then: u64,
    /// Bytes of the queue that the kernel has taken, in all.
    sent: u64,
}

impl Sending {
    /// A new connection.
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self {
            state: State::Idle,
            queue: SendQueue::new(budget),
            coalescing: None,
            writer: Writer::Nobody,
            is_blocked: false,
            is_pushed: false,
            has_spilled: false,
            waiting_since: NEVER,
            sent_then: 0,
            sent: 0,
        }
    }

    /// True when all of the response has been given, and may be sent.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.state, State::Complete(_))
    }

    /// True when what the producer gives goes nowhere.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, State::Overruled(_) | State::Broken { .. })
    }

    /// True when the server has answered in the application's place.
    pub(crate) fn is_overruled(&self) -> bool {
        matches!(self.state, State::Overruled(_))
    }

    /// True when nothing is sent any more.
    pub(crate) fn is_broken(&self) -> bool {
        matches!(self.state, State::Broken { .. })
    }

    /// The producer gives more of the response.
    pub(crate) fn give(&mut self, Progress { given, is_complete }: Progress) {
        match &mut self.state {
            State::Idle | State::Sending(_) if is_complete => self.state = State::Complete(given),
            State::Idle | State::Sending(_) => self.state = State::Sending(given),
            State::Overruled(_) | State::Broken { by: Cause::AfterPage, .. } => {}
            State::Complete(before) | State::Broken { given: before, .. } => *before = given,
        }
    }

    /// All of the response has been given.
    pub(crate) fn complete(&mut self) {
        if let State::Idle | State::Sending(_) = self.state {
            self.state = State::Complete(self.given());
        }
    }

    fn given(&self) -> Given {
        match self.state {
            State::Idle => Given::default(),
            State::Sending(given) | State::Complete(given) | State::Overruled(given) | State::Broken { given, .. } => {
                given
            }
        }
    }

    /// Status and body bytes of the response of now, and whether its deadline came, for a log that cannot ask its
    /// producer.
    pub(crate) fn given_so_far(&self) -> (Given, bool) {
        let is_late = match self.state {
            State::Overruled(_) => true,
            State::Broken { by, .. } => by != Cause::Other,
            State::Idle | State::Sending(_) | State::Complete(_) => false,
        };
        (self.given(), is_late)
    }

    /// The deadline of the request has come. `page` makes the error page that is sent when nothing has been yet, and
    /// tells the length of its body.
    pub(crate) fn overrule(&mut self, page: impl FnOnce() -> (Vec<u8>, u64)) -> Overruled {
        match self.state {
            State::Complete(_) | State::Overruled(_) | State::Broken { .. } => Overruled::Over,
            State::Idle => {
                let (page, page_bytes) = page();
                self.state = State::Overruled(Given { status: 504, body_bytes: page_bytes });
                if self.queue.push_copy(&page).is_err() {
                    self.break_off();
                }
                Overruled::Answered
            }
            State::Sending(given) => {
                self.break_off();
                self.state = State::Broken { given, by: Cause::Deadline };
                Overruled::BrokenOff
            }
        }
    }

    /// Gives up: forgets what waits and takes nothing more.
    pub(crate) fn break_off(&mut self) {
        let by = match self.state {
            State::Broken { by, .. } => by,
            State::Overruled(_) => Cause::AfterPage,
            State::Idle | State::Sending(_) | State::Complete(_) => Cause::Other,
        };
        self.state = State::Broken { given: self.given(), by };
        self.queue.clear();
    }

    /// There was no memory to queue something: the response cannot go on.
    fn check(&mut self, pushed: Result<(), NoMemory>) {
        if pushed.is_err() {
            self.break_off();
        }
    }

    /// Appends to the queue, unless the response is over.
    pub(crate) fn push(&mut self, push: impl FnOnce(&mut SendQueue) -> Result<(), NoMemory>) {
        if !self.is_over() {
            let pushed = push(&mut self.queue);
            self.check(pushed);
        }
    }

    /// The response is over; what follows belongs to the next one. Its producer has given all.
    pub(crate) fn end(&mut self, terms: &Terms) -> End {
        let timed_out = match self.state {
            State::Overruled(page) | State::Broken { given: page, by: Cause::AfterPage } => Some(Some(page.body_bytes)),
            State::Broken { by: Cause::Deadline, .. } => Some(None),
            _ => None,
        };
        let leaves_rest = self.leaves_rest(terms);
        // What is coalesced of a broken response may still be sent; its end may not.
        self.flush_coalesced(terms);
        if let Some(mut coalescing) = self.coalescing.take() {
            coalescing.reset(terms.budget());
        }
        let (has_spilled, is_sent, is_broken) = (self.has_spilled, self.is_sent(), self.is_broken());
        if !is_broken {
            self.state = State::Idle;
        }
        self.has_spilled = false;
        if is_sent {
            self.waiting_since = NEVER;
        }
        // A runner that must not write by itself leaves all that is left.
        let is_left = leaves_rest || (terms.policy.most_by_runner.is_some() && !is_sent && !is_broken);
        End { timed_out, has_spilled, is_sent, is_broken, is_left }
    }

    /// Some of what waited is in a file.
    pub(crate) fn set_spilled(&mut self) {
        self.has_spilled = true;
    }
}

/// Coalescing.
impl Sending {
    /// The producer coalesces its next blocks.
    pub(crate) fn list(&mut self, chunked: bool) {
        self.coalescing.get_or_insert_default().list(chunked);
    }

    /// Appends a block to those that are coalesced.
    pub(crate) fn coalesce(&mut self, block: &[u8], terms: &Terms) -> Taken {
        if self.is_over() {
            return Taken::Gone;
        }
        let Some(coalescing) = &mut self.coalescing else { return Taken::Unlisted };
        match coalescing.append(block, terms.budget()) {
            Appended::Unlisted => Taken::Unlisted,
            Appended::NoMemory => Taken::NoMemory,
            Appended::Taken if self.is_flooded(terms) => Taken::Full,
            Appended::Taken => Taken::Coalesced,
        }
    }

    /// True when so much waits that a producer which coalesces must wait.
    fn is_flooded(&self, terms: &Terms) -> bool {
        self.coalesced() > terms.queue_limit
            || (self.queue.bytes() > LEAST_QUEUE.min(terms.queue_limit) && self.queue.bytes() > terms.high_water())
    }

    /// Moves what is coalesced behind what waits already.
    pub(crate) fn flush_coalesced(&mut self, terms: &Terms) {
        let coalesced = self.coalescing.as_mut().and_then(|coalescing| coalescing.take(terms.budget()));
        let Some(coalesced) = coalesced else { return };
        let mut at = coalesced.at;
        for segment in coalesced.segments {
            let waits = !self.takes_writes();
            self.push(|queue| queue.push_buffer(segment, at, waits));
            at = 0;
        }
    }

    /// Bytes that are coalesced.
    pub(crate) fn coalesced(&self) -> usize {
        self.coalescing.as_ref().map_or(0, |coalescing| coalescing.len())
    }

    /// I/O side, at a tick: true while there is reason to look again.
    pub(crate) fn stays_listed(&mut self, moved: bool) -> bool {
        self.coalescing.as_mut().is_some_and(|coalescing| coalescing.stays_listed(moved))
    }
}

/// Writing.
impl Sending {
    /// True when nothing waits and the socket may take something: a write may go past the queue.
    pub(crate) fn takes_writes(&self) -> bool {
        self.queue.is_empty() && !self.is_writing() && !self.is_over() && !self.is_blocked
    }

    fn is_writing(&self) -> bool {
        self.writer != Writer::Nobody
    }

    /// True when nothing waits and nothing is being written.
    pub(crate) fn is_sent(&self) -> bool {
        self.queue.is_empty() && !self.is_writing()
    }

    /// The caller writes from now on. False: another thread does, and looks at the queue once more before it is done.
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

    /// The writer is done. True: another thread came to write meanwhile, and has left that to the caller.
    pub(crate) fn end_writing(&mut self) -> bool {
        let writer = std::mem::replace(&mut self.writer, Writer::Nobody);
        matches!(writer, Writer::Busy { is_asked: true, .. })
    }

    /// The writer found the socket full. True: it may take more again.
    fn may_retry(&mut self) -> bool {
        match &mut self.writer {
            Writer::Nobody => false,
            Writer::Busy { retries, .. } => std::mem::take(retries),
        }
    }

    /// What the writer is to send next. `None`: nothing waits.
    pub(crate) fn next_batch(&mut self) -> Option<Batch> {
        self.queue.take()
    }

    /// What came of a batch. `None`: the writer goes on.
    pub(crate) fn wrote(&mut self, batch: Batch, moved: Io) -> Option<Flush> {
        if self.is_broken() {
            self.queue.drop_batch(batch);
            return Some(Flush::Broken);
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
                let missing = batch.left_of_file();
                self.queue.drop_batch(batch);
                self.break_off();
                Some(Flush::Short(missing))
            }
            Io::Broken => {
                self.queue.drop_batch(batch);
                self.break_off();
                Some(Flush::Broken)
            }
        }
    }

    /// A write past the queue found the socket full. The caller still is the writer. True: it may take more again.
    pub(crate) fn found_full(&mut self) -> bool {
        let retries = self.may_retry();
        self.is_blocked = !retries;
        retries
    }

    /// True when the last write found the socket full and no event has come since.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// The socket has told that it takes more.
    pub(crate) fn unblock(&mut self) {
        self.is_blocked = false;
        if let Writer::Busy { retries, .. } = &mut self.writer {
            *retries = true;
        }
    }

    /// The I/O side is asked to send what waits, or (`false`) does it. True when that changes something.
    pub(crate) fn set_pushed(&mut self, pushed: bool) -> bool {
        std::mem::replace(&mut self.is_pushed, pushed) != pushed
    }

    /// Bytes of the queue that the kernel has taken.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Write calls since the last call.
    pub(crate) fn take_writes(&mut self) -> u32 {
        self.queue.take_writes()
    }
}

/// The client's time.
impl Sending {
    /// After a write: by when the client must take more. `None`: as before. `progress`: it has just taken something.
    /// `now` is asked only where that is needed.
    pub(crate) fn deadline(&mut self, progress: bool, terms: &Terms, now: impl FnOnce() -> Millis) -> Option<Millis> {
        if self.is_writing() {
            // The other writer asks when it is done.
            return None;
        }
        if self.queue.is_empty() {
            return (std::mem::replace(&mut self.waiting_since, NEVER) != NEVER).then_some(NEVER);
        }
        if !progress && (self.waiting_since != NEVER || !self.is_blocked) {
            return None;
        }
        let now = now();
        // Noted also of a client that takes what it gets and has the rest at our next turn: its deadline is to go, too.
        if self.waiting_since == NEVER {
            (self.waiting_since, self.sent_then) = (now, self.sent);
        }
        if !self.is_blocked {
            return Some(now.saturating_add(terms.write_timeout));
        }
        Some(within_rate(now, self.waiting_since, terms.write_timeout, self.sent - self.sent_then, terms.min_rate))
    }

    /// True when the producer is to wait. A complete response is left to the I/O side, unless there is no memory for it.
    pub(crate) fn is_full(&self, terms: &Terms) -> bool {
        // A producer that may not write much by itself, or finds another thread writing, has not tried all that the
        // socket would take. Whoever writes instead tells of room.
        let is_tried = self.is_blocked || self.is_writing() || terms.policy.most_by_runner.is_some();
        is_tried && self.queue.bytes() > terms.high_water() && !(self.is_complete() && terms.has_memory())
    }

    /// True when a producer that waits may go on.
    pub(crate) fn has_room(&self, terms: &Terms) -> bool {
        self.queue.bytes() + self.coalesced() <= terms.low_water()
    }

    /// True when the response is complete and much of it is left to send: the I/O side does that, without the
    /// interpreter.
    pub(crate) fn leaves_rest(&self, terms: &Terms) -> bool {
        self.is_complete()
            && !self.is_blocked
            && (self.queue.has_file() || self.queue.bytes() > terms.policy.most_after_end)
    }
}

/// What a flush came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flush {
    /// Nothing is left.
    Empty,
    /// The socket takes no more for now.
    Blocked,
    /// The socket would take more, but it is the others' turn.
    More,
    /// Another thread writes, and goes on with what is left.
    Elsewhere,
    /// The connection is broken.
    Broken,
    /// A file ended so many bytes before its promised length: the body cannot be completed.
    Short(u64),
}

/// A deadline at `now` for something that has gone on since `since`: within `pause` of now, and as long as `moved`
/// bytes may take at `rate` bytes a second (0: any time) after a first `pause`.
pub(crate) fn within_rate(now: Millis, since: Millis, pause: Millis, moved: u64, rate: u64) -> Millis {
    let by_pause = now.saturating_add(pause);
    match moved.saturating_mul(1_000).checked_div(rate) {
        Some(time) => by_pause.min(since.saturating_add(pause).saturating_add(time)),
        None => by_pause,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Cause, Given, Progress, Sending, State, Terms};
    use crate::os::socket::Io;
    use crate::request::memory::ClientMemory;
    use crate::response::policy::{Coalesce, Policy, Waiting};
    use crate::response::segments::tests::without_memory;

    const GIVEN: Given = Given { status: 200, body_bytes: 5 };
    const PAGE: Given = Given { status: 504, body_bytes: 4 };

    const IDLE: State = State::Idle;
    const SENDING: State = State::Sending(GIVEN);
    const COMPLETE: State = State::Complete(GIVEN);
    const OVERRULED: State = State::Overruled(PAGE);
    const BROKEN: State = State::Broken { given: GIVEN, by: Cause::Other };
    const LATE: State = State::Broken { given: GIVEN, by: Cause::Deadline };
    const BROKEN_PAGE: State = State::Broken { given: PAGE, by: Cause::AfterPage };
    /// As [`BROKEN`], before anything was given.
    const BROKEN_IDLE: State = State::Broken { given: Given { status: 0, body_bytes: 0 }, by: Cause::Other };

    fn terms() -> Terms {
        Terms {
            policy: Policy {
                coalesce: Coalesce::WhenQuick,
                waiting: Waiting::Block,
                most_by_runner: None,
                most_by_io: None,
                most_after_end: 32 * 1024,
                reads_by_runner: 1,
            },
            queue_limit: 10_000,
            buffer_limit: 10_000,
            write_timeout: 30_000,
            min_rate: 0,
            memory: Arc::new(ClientMemory::new(1 << 20)),
        }
    }

    /// A write of the five bytes that wait.
    fn write(sending: &mut Sending, moved: Io) {
        assert!(sending.begin_writing());
        if let Some(batch) = sending.next_batch() {
            sending.wrote(batch, moved);
        }
        sending.end_writing();
    }

    #[test]
    fn every_operation_in_every_state() {
        type Operation = fn(&mut Sending, &Terms);
        let before = [IDLE, SENDING, COMPLETE, OVERRULED, BROKEN, LATE, BROKEN_PAGE];
        let same = before;
        let broken = [BROKEN_IDLE, BROKEN, BROKEN, BROKEN_PAGE, BROKEN, LATE, BROKEN_PAGE];
        let complete = [COMPLETE, COMPLETE, COMPLETE, OVERRULED, BROKEN, LATE, BROKEN_PAGE];
        let table: [(&str, Operation, [State; 7]); 11] = [
            (
                "gives a part",
                |sending, _| sending.give(Progress { given: GIVEN, is_complete: false }),
                [SENDING, SENDING, COMPLETE, OVERRULED, BROKEN, LATE, BROKEN_PAGE],
            ),
            ("gives the rest", |sending, _| sending.give(Progress { given: GIVEN, is_complete: true }), complete),
            (
                "has given all",
                |sending, _| sending.complete(),
                [State::Complete(Given::default()), COMPLETE, COMPLETE, OVERRULED, BROKEN, LATE, BROKEN_PAGE],
            ),
            (
                "is overruled",
                |sending, _| {
                    sending.overrule(|| (b"page".to_vec(), 4));
                },
                [OVERRULED, LATE, COMPLETE, OVERRULED, BROKEN, LATE, BROKEN_PAGE],
            ),
            ("is broken off", |sending, _| sending.break_off(), broken),
            (
                "has no memory",
                |sending, _| without_memory(|| sending.push(|queue| queue.push_copy(b"block"))),
                // What is given after a page goes nowhere, and needs no memory.
                [BROKEN_IDLE, BROKEN, BROKEN, OVERRULED, BROKEN, LATE, BROKEN_PAGE],
            ),
            ("sends", |sending, _| write(sending, Io::Moved(3)), same),
            ("finds the socket full", |sending, _| write(sending, Io::WouldBlock), same),
            ("finds a file short", |sending, _| write(sending, Io::End), broken),
            ("finds the client gone", |sending, _| write(sending, Io::Broken), broken),
            (
                "ends",
                |sending, terms| {
                    sending.end(terms);
                },
                [IDLE, IDLE, IDLE, IDLE, BROKEN, LATE, BROKEN_PAGE],
            ),
        ];
        for (what, operation, after) in table {
            for (before, after) in before.into_iter().zip(after) {
                let terms = terms();
                let budget = terms.memory.responses.clone();
                let mut sending = Sending::new(budget.clone());
                if !matches!(before, State::Broken { .. }) {
                    assert!(what == "has no memory" || sending.queue.push_copy(b"block").is_ok());
                }
                sending.state = before;
                if sending.is_broken() && what.starts_with("finds") {
                    // A write that was under way when the connection broke.
                    assert!(sending.queue.push_copy(b"block").is_ok());
                }
                operation(&mut sending, &terms);
                assert_eq!(sending.state, after, "{before:?} {what}");
                if sending.is_broken() {
                    assert!(sending.queue.is_empty() && budget.used() == 0, "{before:?} {what}: nothing waits");
                }
            }
        }
    }
}
