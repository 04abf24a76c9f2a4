//! The response to a request, as its producer uses it: head, blocks, files, end, and room for more.
//!
//! Thread: a stream belongs to the thread that runs the request, or that continues the response after it. What other
//! threads use is in [`Delivery`](crate::response::delivery::Delivery).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailrace_http::encode::ResponseHead;
use tailrace_http::framing::{RequestFacts, ResponseFormat, is_safe};
use tailrace_observe::probes;
use tailrace_observe::record::{Ending, Path, Record};
use tailrace_observe::scoreboard;
use tailrace_os::sync::lock;
use tailrace_os::usage;

use crate::connection::backpressure::{PATIENCE, SlowClient, WaitingCount, next_patience};
use crate::connection::driver::Connection;
use crate::connection::owned::Ended;
use crate::connection::ownership::Owned;
use crate::connection::shared::Shared;
use crate::connection::state::AfterResponse;
use crate::connection::transaction::Transaction;
use crate::response::delivery::After;
use crate::response::outbox::Room;
use crate::response::payload::{FileSource, Payload};
use crate::response::producer::{CompressionContext, Position, Response, SendContext, Sent};

/// Interim responses that the client has not accepted may have at most this many bytes.
const MAX_INTERIM: usize = 32 * 1024;

/// A body shorter than its `Content-Length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// Bytes promised and not sent.
    pub missing: u64,
}

/// How the producer of a response leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The application has finished.
    Done,
    /// The I/O side continues with the connection, since the caller is no runner.
    ByIo,
    /// The server stops before the application has finished.
    Abort,
}

/// The response to a request. It owns the connection.
pub struct ResponseStream {
    pub(crate) transaction: Box<Transaction>,
    pub(crate) connection: Owned<Connection>,
}

/// Sending.
impl ResponseStream {
    /// The response head, to be filled before the first `push`. `ResponseHead::clear` starts over.
    pub fn head(&mut self) -> &mut ResponseHead {
        &mut self.transaction.response.head
    }

    /// True once the head has been committed (sent or queued): it cannot be changed any more.
    pub fn head_sent(&self) -> bool {
        self.transaction.response.body.is_committed()
    }

    /// Sends an interim response, whose head is complete (RFC 9110 section 15.2), before the head of the response. False:
    /// nothing was sent, since the response has begun, the request does not use HTTP/1.1, or the client has left or is
    /// behind by `MAX_INTERIM` bytes. Never blocks.
    pub fn push_interim(&mut self, head: &[u8]) -> bool {
        let Self { transaction, connection } = self;
        let delivery = &connection.delivery;
        if transaction.facts.format != ResponseFormat::Http11
            || transaction.response.body.is_committed()
            || connection.is_gone()
        {
            return false;
        }
        let outbox = delivery.outbox();
        if outbox.state.is_late() || outbox.queue.held() + head.len() > MAX_INTERIM {
            return false;
        }
        drop(outbox);
        connection.follow_up(delivery.send(head, &connection.shared.delivery_limits));
        true
    }

    /// Sends blocks, preceded by the head if it has not been sent, in one `writev` if the socket accepts them. What the
    /// socket does not accept is queued: small rests are copied, and large blocks are kept by reference, for which
    /// `keep(index)` returns an owner of the block. Small blocks that follow each other quickly are coalesced, and the
    /// I/O side sends them. Never blocks. Empty blocks do not commit the head.
    pub fn push(
        &mut self,
        blocks: &[&[u8]],
        position: Position,
        keep: &mut dyn FnMut(usize) -> Box<dyn Payload>,
    ) -> Sent {
        if let (Position::More, [block]) = (position, blocks)
            && let Some(sent) = self.coalesce(block)
        {
            return sent;
        }
        probes::block(self.connection.key, || blocks.iter().map(|block| block.len() as u64).sum());
        if let Some(sent) = self.collect(blocks) {
            return sent;
        }
        if !self.head_sent()
            && let Some(sessions) = self.connection.shared.sessions.get()
            && let Some(first) = blocks.iter().find(|block| !block.is_empty())
        {
            // Before the client knows the key.
            let status = self.transaction.response.head.status_code();
            sessions.note_block(&self.transaction.request, status, first, scoreboard::now);
        }
        if self.transaction.delegation.is_some() {
            return Sent::BodyComplete;
        }
        let (response, context, record) = self.context(position == Position::Last);
        let (sent, after) = response.send(&context, record, blocks, position, keep);
        self.connection.follow_up(after);
        sent
    }

    /// The fast path of [`ResponseStream::push`] for a small block of a response whose blocks come quickly. `None`: it
    /// does not apply, and nothing was done.
    #[inline]
    pub fn coalesce(&mut self, block: &[u8]) -> Option<Sent> {
        let Self { transaction, connection } = self;
        if connection.is_forked_child() {
            return None;
        }
        let Transaction { response, record, .. } = &mut **transaction;
        let (sent, list) =
            response.coalesce(&connection.delivery, &connection.shared.delivery_limits, record, block)?;
        probes::block(connection.key, || block.len() as u64);
        if list {
            connection.host.add_coalescing(connection);
        }
        Some(sent)
    }

    /// Sends `length` bytes of a file from `offset` by `sendfile`. If nothing was sent before and `position` is `Last`,
    /// `length` becomes the `Content-Length`.
    pub fn push_file(&mut self, file: OwnedFd, offset: u64, length: u64, position: Position) -> Sent {
        self.push_source(Arc::new(file), offset, length, position)
    }

    /// As [`ResponseStream::push_file`], for a file that other responses also use.
    pub fn push_source(&mut self, file: Arc<dyn FileSource>, offset: u64, length: u64, position: Position) -> Sent {
        probes::block(self.connection.key, || length);
        if self.transaction.hold.is_some() {
            return self.collect_file(&*file, offset, length);
        }
        if self.transaction.delegation.is_some() {
            return Sent::BodyComplete;
        }
        let (response, context, record) = self.context(position == Position::Last);
        let (sent, after) = response.send_file(&context, record, file, offset, length, position);
        self.connection.follow_up(after);
        sent
    }

    /// The application has failed: drops its response, if nothing of it has been sent. [`ResponseStream::head_sent`] is
    /// false then, and an error page can be sent.
    pub fn withdraw(&mut self) {
        let Transaction { response, record, .. } = &mut *self.transaction;
        response.withdraw(&self.connection.delivery, record);
    }

    /// Bytes that the application produced beyond its Content-Length. Files are not counted: they may be longer.
    pub fn bytes_beyond_content_length(&self) -> u64 {
        self.transaction.response.body.bytes_beyond_content_length()
    }

    /// The response, where it is sent, and its record. `ends`: the producer ends the response with what it sends.
    fn context(&mut self, ends: bool) -> (&mut Response, SendContext<'_>, &mut Record) {
        let Transaction { request, response, record, facts, incoming, runner, .. } = &mut *self.transaction;
        let connection = &self.connection;
        let shared = &connection.shared;
        let request = &*request;
        record.has_left |= connection.has_disconnected();
        let may_hold = ends
            && runner.is_some()
            && is_safe(request.head.method.of(&request.bytes))
            && incoming.is_none()
            && record.started.is_some_and(|started| connection.host.may_hold(started));
        let is_first = !response.body.is_committed();
        // What a responder sends has rules of its own.
        let rules = shared.config.compression.as_ref().filter(|_| is_first && runner.is_some());
        let context = SendContext {
            delivery: &connection.delivery,
            limits: &shared.delivery_limits,
            clock: &shared.clock,
            time: &***connection,
            server_name: &shared.config.server_name,
            server_timing: shared.config.server_timing,
            is_gone: connection.is_gone(),
            may_hold,
            may_delay: is_first && !ends && connection.host.may_delay(),
            facts: RequestFacts { keep_alive: facts.keep_alive && !shared.is_stopping(), ..*facts },
            incoming: incoming.as_deref(),
            id: if is_first { shared.config.id_field(request.id()) } else { None },
            compression: rules.map(|rules| CompressionContext { rules, request }),
            sessions: if is_first { shared.sessions.get().map(|sessions| (sessions, request)) } else { None },
        };
        (response, context, record)
    }
}

/// Room for more, and the client.
impl ResponseStream {
    /// Waits until the queue has room again. If the client takes longer than [`ResponseStream::patience`], the queued
    /// bytes are moved to a file, which makes room. Blocks: release the interpreter first.
    pub fn wait(&mut self) -> Sent {
        let from = self.connection.shared.clock.peek();
        let has_room = self.wait_for_room();
        let Self { transaction, connection } = self;
        transaction.record.waited += connection.shared.clock.peek().saturating_duration_since(from);
        if has_room {
            return Sent::Taken;
        }
        transaction.response.body.set_gone();
        Sent::Gone
    }

    /// False: there never will be room.
    fn wait_for_room(&self) -> bool {
        let connection = &self.connection;
        let Shared { policy, config, delivery_limits: limits, .. } = &*connection.shared;
        let mut patience = self.patience();
        if let Some(signal_check) = policy.waiting.signal_check() {
            let _shown = connection.host.show_sending(connection.runner.get());
            let client = SlowClient { delivery: &connection.delivery, limits, signal_check, patience };
            let spill = || _ = connection.spill();
            return client.write_for_room(config.write_timeout, || connection.host.must_end(), spill);
        }
        let _waiting = self.count_waiting();
        connection.delivery.wait_for_room(limits, patience, || {
            connection.spill();
            patience = next_patience(patience);
            patience
        })
    }

    /// True on the thread whose runners are greenlets of this server and wait under tickets.
    pub fn is_on_ticket_thread(&self) -> bool {
        self.connection.host.is_on_ticket_thread()
    }

    /// On that thread: has this ticket given out when the thread next looks for wake-ups. False: it will not be.
    pub fn come_back(&self, ticket: u64) -> bool {
        let host = &self.connection.host;
        host.is_on_ticket_thread() && host.wake_runner(ticket)
    }

    /// Whether the send queue has room. [`Room::Later`]: this ticket is given out, once, when the caller is to ask again.
    pub fn ask_for_room(&mut self, ticket: u64) -> Room {
        let Self { transaction, connection } = self;
        let room = if connection.is_forked_child() {
            Room::Never
        } else {
            let outbox = connection.delivery.outbox();
            let room = outbox.room(&connection.shared.delivery_limits);
            if room == Room::Later {
                connection.runner.wait_for_room(ticket);
            }
            room
        };
        if room == Room::Never {
            transaction.response.body.set_gone();
        }
        room
    }

    /// For a runner that waits for room under a ticket, whose thread must not wait for a disk: another thread tries to
    /// move the queued bytes to a file. The ticket of [`ResponseStream::ask_for_room`] is given out after the attempt,
    /// whether or not that succeeded.
    pub fn spill_elsewhere(&self) {
        let connection = self.connection.clone();
        if !connection.is_forked_child() {
            self.connection.shared.spill.run(move || _ = connection.spill_for_another());
        }
    }

    /// How long the runner waits for its client before the queued bytes are moved to a file. It does not wait if some of
    /// them are in a file already, or if responses have used up their memory, since many runners would wait then.
    pub fn patience(&self) -> Duration {
        let connection = &self.connection;
        let is_urgent = !connection.is_forked_child()
            && (connection.delivery.outbox().queue.is_behind() || !connection.shared.delivery_limits.has_memory());
        if is_urgent { Duration::ZERO } else { PATIENCE }
    }

    /// Counts the runner among those that wait for a client, until the result is dropped.
    pub fn count_waiting(&self) -> WaitingCount {
        let connection = &self.connection;
        let shown = connection.host.show_sending(connection.runner.get());
        WaitingCount::new(&connection.shared.waiting, shown)
    }

    /// Adds time during which the application has waited for its client outside [`ResponseStream::wait`].
    pub fn add_wait(&mut self, time: Duration) {
        self.transaction.record.waited += time;
    }

    /// True when no client can receive the response: the connection is broken, or the response was abandoned. False if
    /// the client has closed only its sending direction, because it still gets its response.
    pub fn is_gone(&self) -> bool {
        self.transaction.response.body.is_gone() || self.connection.is_gone()
    }

    /// True when the client has disconnected before its response was complete.
    pub fn has_left(&self) -> bool {
        let Self { transaction, connection } = self;
        if connection.is_forked_child() {
            return false;
        }
        let is_dropped = transaction.response.body.is_gone() && !connection.delivery.outbox().state.is_late();
        is_dropped || (connection.has_disconnected() && !transaction.response.body.is_whole())
    }

    /// A send has shown that the client has left, unless the response was abandoned because of its deadline.
    pub fn note_left(&self) {
        if !self.connection.delivery.outbox().state.is_late() {
            self.connection.note_left();
        }
    }
}

/// The end.
impl ResponseStream {
    /// The application is done with the request, if it was called. Its response may go on.
    pub(crate) fn finished(&mut self, now: Instant) {
        let record = &mut self.transaction.record;
        if record.finished.is_some() {
            return;
        }
        record.finished = Some(now);
        if let Some(started) = record.started {
            record.usage = record.mark.as_ref().and_then(|mark| usage::since(mark, started, now));
            probes::application_leave(self.connection.key);
        }
    }

    /// Sends an error page if the head was not sent, else breaks the connection visibly. `detail` is HTML for the
    /// page's body, already escaped; `None` gives the standard sentence.
    pub(crate) fn fail(mut self, status: u16, detail: Option<&str>, finish: Finish) {
        let now = self.connection.shared.clock.read();
        self.finished(now);
        if self.is_gone() || self.transaction.is_cancelled {
            self.transaction.response.body.set_gone();
            return self.close(Ending::ClientDisconnected, finish);
        }
        self.withdraw();
        if self.head_sent() {
            return self.close(Ending::Broken, finish);
        }
        let sentence = detail.unwrap_or("The application failed; its log has the reason.");
        let (response, context, record) = self.context(false);
        let after = response.send_error(&context, record, status, sentence, now);
        self.connection.follow_up(after);
        let is_gone = self.transaction.response.body.is_gone();
        self.close(if is_gone { Ending::ClientDisconnected } else { Ending::Complete }, finish);
    }

    /// Completes the response. False: the system has no memory for that, and nothing was sent.
    pub(crate) fn complete(&mut self) -> bool {
        let now = self.connection.shared.clock.read();
        self.finished(now);
        if self.transaction.response.is_finished() {
            return true;
        }
        let (response, context, record) = self.context(true);
        let Some(after) = response.finish(&context, record, now) else { return false };
        self.connection.follow_up(after);
        true
    }

    /// Completes the response and gives the connection back.
    ///
    /// # Errors
    /// [`Short`]: the connection is broken instead, since fewer bytes were sent than the head promised.
    pub(crate) fn finish_as(mut self, finish: Finish) -> Result<(), Short> {
        if !self.complete() {
            self.fail(500, Some("The server has no memory for the response."), finish);
            return Ok(());
        }
        let body = &self.transaction.response.body;
        let (missing, ending) = (body.missing(), body.ending());
        self.close(ending, finish);
        if missing > 0 { Err(Short { missing }) } else { Ok(()) }
    }

    /// Ends the response and gives the connection back.
    pub(crate) fn close(self, ending: Ending, finish: Finish) {
        let (connection, ended) = self.end(ending, finish);
        connection.end_response(ended);
    }

    /// Ends the response. The caller gives the connection back.
    pub(crate) fn end(self, ending: Ending, finish: Finish) -> (Owned<Connection>, Ended) {
        let Self { mut transaction, connection } = self;
        let Transaction { response, record, incoming, rest, follower, runner, is_cancelled, .. } = &mut *transaction;
        // What the application made of the interruption is of no use to a client that has left.
        let ending = if *is_cancelled { Ending::Cancelled } else { ending };
        if let Some(incoming) = incoming.take() {
            let (unread, waited) = incoming.end();
            record.waited += waited;
            *rest = Some(unread);
        }
        let rest = rest.take();
        if let Some(follower) = follower {
            *lock(follower) = *record;
        }
        record.ending = ending;
        if let Some(runner) = *runner {
            // Before another thread can own the connection.
            connection.host.release(runner);
        }
        let then = match ending {
            Ending::Complete if response.body.keeps_alive() => AfterResponse::Keep,
            Ending::Broken if response.body.ends_with_connection() => AfterResponse::Reset,
            _ => AfterResponse::Close,
        };
        let end = connection.delivery.outbox().end(&connection.shared.delivery_limits);
        if !end.is_sent && !connection.shared.delivery_limits.has_memory() {
            // The I/O side moves responses that wait for clients to files.
            connection.host.wake_io();
        }
        if let Some(page) = end.timed_out {
            record.ending = Ending::TimedOut;
            if let Some(page_bytes) = page {
                record.status = 504;
                record.body_bytes = page_bytes;
                // The application's head, which was never sent.
                response.head.clear();
            }
        }
        if end.compress {
            connection.follow_up(After { compress: true, ..After::default() });
        }
        if end.has_spilled {
            record.path = Path::Spilled;
        }
        if finish == Finish::Abort {
            record.ending = Ending::Cut;
        }
        let ended = Ended {
            then,
            transaction,
            rest,
            // The flush reports that a connection is broken.
            is_sent: end.is_sent && !end.is_broken,
            hand_over: end.is_left || finish == Finish::ByIo,
            is_batched: end.is_batched,
        };
        (connection, ended)
    }
}
