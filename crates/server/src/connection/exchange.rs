//! One request and the response to it, as the application's thread uses them.
//!
//! Thread: an exchange belongs to the thread that took it from the run queue, until it is finished or dropped.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tailrace_http::encode::ResponseHead;
use tailrace_http::framing::{RequestFacts, ResponseFormat, is_safe};

use crate::connection::backpressure::PATIENCE;
pub use crate::connection::backpressure::{WaitingCount, next_patience};
use crate::connection::driver::{AfterResponse, Connection, Ended, Task};
use crate::connection::runner::RunnerId;
use crate::connection::state::Next;
pub use crate::connection::transaction::Asked;
use crate::connection::transaction::Transaction;
use crate::observe::level::Level;
use crate::observe::probes;
use crate::observe::record::{Ending, Path, Record};
use crate::os::clock::{NEVER, millis};
use crate::os::sync::lock;
use crate::os::usage;
pub use crate::request::disk::TemporaryFile;
pub use crate::request::segments::Segments;
pub use crate::request::stream::{BodyFault, BodyStream};
pub use crate::request::{Request, RequestBody};
use crate::response::delivery::After;
pub use crate::response::delivery::Room;
use crate::response::payload::FileSource;
pub use crate::response::payload::Payload;
use crate::response::producer::{CompressionContext, HeadContext, SendContext};
pub use crate::response::producer::{Position, Sent};

/// Interim responses that the client has not accepted may have at most this many bytes.
const MOST_INTERIM: usize = 32 * 1024;

/// A body shorter than its `Content-Length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// Bytes promised and not sent.
    pub missing: u64,
}

/// The client of a response.
pub struct Client(Weak<Connection>);

impl Client {
    /// True when the client is known to have disconnected.
    pub fn is_gone(&self) -> bool {
        self.0.upgrade().is_none_or(|connection| connection.has_disconnected())
    }
}

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    /// The application has finished.
    Done,
    /// The I/O side continues with the connection, since the caller is no runner.
    ByIo,
    /// The server stops before the application has finished.
    Abort,
}

/// One request and the response to it. If it is dropped before `finish`, it answers 500, or breaks the connection
/// visibly when the response has begun.
pub struct Exchange {
    /// `Some` until `finish`, `fail`, `abort` or `drop`, each of which consumes the exchange.
    parts: Option<Parts>,
}

struct Parts {
    transaction: Box<Transaction>,
    connection: Arc<Connection>,
}

impl Exchange {
    pub(crate) fn new(transaction: Box<Transaction>, connection: Arc<Connection>) -> Self {
        if let Some(incoming) = &transaction.incoming {
            incoming.attach(connection.clone());
        }
        Self { parts: Some(Parts { transaction, connection }) }
    }

    fn parts(&self) -> &Parts {
        match &self.parts {
            Some(parts) => parts,
            None => unreachable!("an exchange is consumed when it ends"),
        }
    }

    fn parts_mut(&mut self) -> &mut Parts {
        match &mut self.parts {
            Some(parts) => parts,
            None => unreachable!("an exchange is consumed when it ends"),
        }
    }

    fn connection(&self) -> &Arc<Connection> {
        &self.parts().connection
    }

    /// A runner has taken the request.
    pub(crate) fn begin(&mut self, now: Instant, runner: Option<RunnerId>) {
        let Parts { transaction, connection } = self.parts_mut();
        probes::application_enter(connection.key());
        transaction.record.started = Some(now);
        transaction.record.mark = Some(usage::mark(now));
        transaction.runner = runner;
        if let Some(runner) = runner {
            connection.set_runner(runner);
        }
        let time = connection.shared().config.request_timeout;
        if !time.is_zero() {
            self.set_deadline_at(now, Some(time));
        }
    }

    /// Sets the deadline of the request to this time from now, in place of `request_timeout`. `None`: no deadline.
    pub fn set_deadline(&mut self, time: Option<Duration>) {
        let now = self.connection().shared().clock.read();
        self.set_deadline_at(now, time);
    }

    fn set_deadline_at(&mut self, now: Instant, time: Option<Duration>) {
        let Parts { transaction, connection } = self.parts();
        let Some(runner) = transaction.runner.filter(|_| !connection.is_forked_child()) else { return };
        let due = time.map_or(NEVER, |time| connection.shared().clock.millis_of(now).saturating_add(millis(time)));
        connection.host().set_request_deadline(runner, due, &mut || Task {
            since: transaction.record.started.unwrap_or(now),
            request: transaction.request.name(connection.shared().config.query_masking),
            id: transaction.request.id().to_vec(),
            facts: transaction.facts,
            connection: Some(connection.clone()),
        });
    }

    /// Answers 503 to a request that no runner will take. Called by the I/O side, which continues with the connection
    /// in its next round, because the caller may be in the middle of a read.
    pub(crate) fn refuse(mut self) {
        if let Some(parts) = self.take_parts() {
            parts.connection.shared().count_refusal();
            parts.fail(503, Some("The server has more requests than it can answer."), Finish::ByIo);
        }
    }

    /// True when a response of so many bytes may wait for its client: the budgets have room for it.
    pub(crate) fn has_room_for_response(&self, bytes: usize) -> bool {
        self.connection().shared().memory.has_room_for_response(bytes)
    }

    /// Has the I/O side ask the responders again, in its next round. Called by a thread to which one of them has left
    /// the request.
    pub(crate) fn dispatch_later(mut self) {
        if let Some(Parts { transaction, connection }) = self.take_parts() {
            connection.clone().host().dispatch_later(transaction, connection);
        }
    }

    /// So many responders, the first ones, have passed the request on: they are not asked again.
    pub(crate) fn set_passed_on(&mut self, responders: usize) {
        self.parts_mut().transaction.passed_on = responders;
    }

    /// How many responders have passed the request on.
    pub(crate) fn passed_on(&self) -> usize {
        self.parts().transaction.passed_on
    }

    /// The names of the fields by which the application asks for a responder. Letters of either case are the same.
    #[inline]
    pub fn asking_fields(&self) -> &'static [&'static str] {
        self.connection().shared().asking_fields.get().copied().unwrap_or_default()
    }

    /// Has a responder complete the response, whose head the application has filled in: what is sent from now on is
    /// discarded, and [`Exchange::finish`] leaves the response to the I/O side. `None`: the body is sent after all.
    pub fn ask(&mut self, asked: Option<Asked>) {
        self.parts_mut().transaction.asked = asked;
    }

    /// True when a responder completes the response, in place of the application's body.
    pub fn has_asked(&self) -> bool {
        self.parts().transaction.asked.is_some()
    }

    /// Takes what the application asks for. The caller completes the response.
    pub(crate) fn take_asked(&mut self) -> Option<Asked> {
        self.parts_mut().transaction.asked.take()
    }

    /// Counts the response as one of static files.
    pub(crate) fn count_static(&self) {
        self.connection().shared().count_static();
    }

    /// Writes a line to the error log.
    pub(crate) fn log(&self, level: Level, message: &str) {
        self.connection().host().log(level, message);
    }

    /// The request.
    pub fn request(&self) -> &Request {
        &self.parts().transaction.request
    }

    /// Method and target of the request, for the log.
    pub fn request_line(&self) -> String {
        let Parts { transaction, connection } = self.parts();
        transaction.request.line(connection.shared().config.query_masking)
    }

    /// Takes the body out of the request, leaving `Empty`.
    pub fn take_body(&mut self) -> RequestBody {
        std::mem::take(&mut self.parts_mut().transaction.request.body)
    }

    /// The response head, to be filled before the first `send`. `ResponseHead::clear` starts over.
    pub fn head(&mut self) -> &mut ResponseHead {
        &mut self.parts_mut().transaction.response.head
    }

    /// True once the head has been committed (sent or queued): it cannot be changed any more.
    pub fn head_sent(&self) -> bool {
        self.parts().transaction.response.is_committed()
    }

    /// Sends an interim response, whose head is complete (RFC 9110 section 15.2), before the head of the response. False:
    /// nothing was sent, since the response has begun, the request is none of HTTP/1.1, or the client has left or is
    /// behind by `MOST_INTERIM` bytes. Never blocks.
    pub fn send_interim(&mut self, head: &[u8]) -> bool {
        let Parts { transaction, connection } = self.parts();
        let delivery = connection.delivery();
        if transaction.facts.format != ResponseFormat::Http11
            || transaction.response.is_committed()
            || connection.is_gone()
            || delivery.is_timed_out()
            || delivery.held() + head.len() > MOST_INTERIM
        {
            return false;
        }
        connection.follow_up(delivery.send(head, connection.delivery_limits()));
        true
    }

    /// Bytes that the application produced beyond its Content-Length. Files are not counted: they may be longer.
    pub fn surplus(&self) -> u64 {
        self.parts().transaction.response.surplus()
    }

    /// The application has failed: drops its response, if nothing of it has been sent. [`Exchange::head_sent`] is false
    /// then, and an error page can be sent.
    pub fn withdraw(&mut self) {
        self.parts_mut().withdraw();
    }

    /// The record so far.
    pub fn record(&self) -> Record {
        self.parts().transaction.record_so_far()
    }

    /// The client of the response, for other threads to ask whether it has disconnected.
    pub fn client(&self) -> Client {
        Client(Arc::downgrade(self.connection()))
    }

    /// The values that the access log shows of `environ`, in the order of
    /// [`Format::variables`](crate::Format::variables).
    pub fn set_variables(&mut self, values: Vec<Option<Vec<u8>>>) {
        self.parts_mut().transaction.variables = values;
    }

    /// Where the final record will be stored. The exchange may end before all of the response has been sent.
    pub fn follow(&mut self) -> Arc<Mutex<Record>> {
        let transaction = &mut self.parts_mut().transaction;
        let record = transaction.record;
        transaction.follower.get_or_insert_with(|| Arc::new(Mutex::new(record))).clone()
    }

    /// Sends blocks, preceded by the head if it has not been sent, in one `writev` if the socket accepts them. What the
    /// socket does not accept is queued: small rests are copied, and large blocks are kept by reference, for which
    /// `keep(index)` returns an owner of the block. Small blocks that follow each other quickly are coalesced, and the
    /// I/O side sends them. Never blocks. Empty blocks do not commit the head.
    pub fn send(
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
        probes::block(self.connection().key(), || blocks.iter().map(|block| block.len() as u64).sum());
        self.with_send_context(|response, context, record| response.send(context, record, blocks, position, keep))
    }

    /// The fast path of [`Exchange::send`] for a small block of a response whose blocks come quickly. `None`: it does
    /// not apply, and nothing was done.
    #[inline]
    pub fn coalesce(&mut self, block: &[u8]) -> Option<Sent> {
        let Parts { transaction, connection } = self.parts_mut();
        if connection.is_forked_child() {
            return None;
        }
        let Transaction { response, record, .. } = &mut **transaction;
        let (sent, list) = response.coalesce(connection.delivery(), connection.delivery_limits(), record, block)?;
        probes::block(connection.key(), || block.len() as u64);
        if list {
            connection.host().add_coalescing(connection);
        }
        Some(sent)
    }

    /// Sends `length` bytes of a file from `offset` by `sendfile`. If nothing was sent before and `position` is `Last`,
    /// `length` becomes the `Content-Length`.
    pub fn send_file(&mut self, file: OwnedFd, offset: u64, length: u64, position: Position) -> Sent {
        self.send_source(Arc::new(file), offset, length, position)
    }

    /// The same for a file that other responses use, too.
    pub(crate) fn send_source(
        &mut self,
        file: Arc<dyn FileSource>,
        offset: u64,
        length: u64,
        position: Position,
    ) -> Sent {
        probes::block(self.connection().key(), || length);
        self.with_send_context(|response, context, record| {
            response.send_file(context, record, file, offset, length, position)
        })
    }

    fn with_send_context(
        &mut self,
        send: impl FnOnce(&mut crate::response::producer::Response, &SendContext<'_>, &mut Record) -> (Sent, After),
    ) -> Sent {
        if self.has_asked() {
            return Sent::Enough;
        }
        self.parts_mut().with_send_context(send)
    }

    /// Waits until the queue has room again. Blocks: release the interpreter first.
    pub fn wait(&mut self) -> Sent {
        let Parts { transaction, connection } = self.parts_mut();
        let from = connection.shared().clock.peek();
        let has_room = connection.wait_for_room();
        transaction.record.waited += connection.shared().clock.peek().saturating_duration_since(from);
        if has_room {
            return Sent::Taken;
        }
        transaction.response.set_gone();
        Sent::Gone
    }

    /// True on the thread whose runners are greenlets of this server and wait under tickets.
    pub fn is_on_ticket_thread(&self) -> bool {
        self.connection().host().is_on_ticket_thread()
    }

    /// On that thread: has this ticket given out when the thread next looks for wake-ups. False: it will not be.
    pub fn come_back(&self, ticket: u64) -> bool {
        let host = self.connection().host();
        host.is_on_ticket_thread() && host.wake_runner(ticket)
    }

    /// Whether the send queue has room. [`Room::Later`]: this ticket is given out when the caller is to ask again.
    pub fn ask_for_room(&mut self, ticket: u64) -> Room {
        let Parts { transaction, connection } = self.parts_mut();
        let room = connection.ask_for_room(ticket);
        if room == Room::Never {
            transaction.response.set_gone();
        }
        room
    }

    /// For a runner that waits for room under a ticket: another thread tries to move the queued bytes to a file. The
    /// ticket of [`Exchange::ask_for_room`] is given out after the attempt.
    pub fn spill_elsewhere(&self) {
        if !self.connection().is_forked_child() {
            self.connection().spill_elsewhere();
        }
    }

    /// How long the runner waits for room before it calls [`Exchange::spill_elsewhere`].
    pub fn patience(&self) -> Duration {
        if self.is_forked_child() { PATIENCE } else { self.connection().patience() }
    }

    /// Counts the runner among those that wait for a client, until the result is dropped.
    pub fn count_waiting(&self) -> Option<WaitingCount> {
        let connection = self.connection();
        let shown = connection.host().show_sending(connection.runner().get());
        Some(WaitingCount::new(&connection.shared().waiting, shown))
    }

    /// Adds time during which the application has waited for its client outside [`Exchange::wait`].
    pub fn add_wait(&mut self, time: Duration) {
        self.parts_mut().transaction.record.waited += time;
    }

    /// True when the client is known to have disconnected (by a reset, or a close in both directions), or the response
    /// is broken.
    pub fn client_gone(&self) -> bool {
        self.parts().is_client_gone()
    }

    /// True when the client has left before a runner took the request, which is to be cancelled then.
    pub(crate) fn is_cancelled(&self) -> bool {
        let Parts { transaction, connection } = self.parts();
        let request = &transaction.request;
        connection.has_disconnected()
            && connection.shared().config.cancel.covers(request.head.method.of(&request.bytes))
    }

    /// The runner of the request, as [`crate::Disconnected`] names it: its slot, and the number of the request. `None`:
    /// no runner table knows it.
    pub fn runner(&self) -> Option<(usize, u64)> {
        self.parts().transaction.runner.map(|runner| (runner.slot, runner.serial))
    }

    /// Reports again that the client has left, if it has.
    pub fn report_disconnect(&self) {
        let Parts { transaction, connection } = self.parts();
        if let Some(runner) = transaction.runner.filter(|_| connection.has_disconnected()) {
            connection.host().report_disconnect(runner.packed());
        }
    }

    /// The application was interrupted because the client has left.
    pub fn note_cancelled(&mut self) {
        self.parts_mut().transaction.is_cancelled = true;
    }

    /// True after [`Exchange::note_cancelled`].
    pub fn is_noted_cancelled(&self) -> bool {
        self.parts().transaction.is_cancelled
    }

    /// Ends the response: sends an empty one if nothing was sent, and the end of its body. A body shorter
    /// than its `Content-Length` breaks the connection instead.
    ///
    /// # Errors
    /// [`Short`], with the missing byte count, when fewer bytes were sent than the head promised.
    pub fn finish(self) -> Result<(), Short> {
        if self.has_asked() {
            self.leave_to_responders();
            return Ok(());
        }
        self.finish_as(Finish::Done)
    }

    /// The application is done, and a responder completes the response: leaves it to the I/O side.
    fn leave_to_responders(mut self) {
        let Some(Parts { mut transaction, connection }) = self.take_parts() else { return };
        if let Some(incoming) = transaction.incoming.take() {
            transaction.facts.keep_alive &= incoming.answered();
            let (rest, waited) = incoming.end();
            transaction.record.waited += waited;
            transaction.rest = Some(rest);
        }
        if let Some(runner) = transaction.runner.take() {
            // Before another thread can own the connection.
            connection.host().release(runner);
        }
        connection.clone().host().dispatch_later(transaction, connection);
    }

    /// As [`Exchange::finish`], for a thread that is no runner: the I/O side continues with the connection.
    pub(crate) fn finish_by_io(self) {
        // What is missing is seen by the client, too.
        let _ = self.finish_as(Finish::ByIo);
    }

    /// As [`Exchange::finish`], for a responder that the owner of the connection has called. Returns what the owner
    /// does next.
    pub(crate) fn finish_here(mut self) -> Next {
        let Some(mut parts) = self.take_parts() else { return Next::Rest };
        let ending = if parts.complete() { parts.transaction.response.ending() } else { Ending::Broken };
        let (connection, ended) = parts.end(ending, Finish::Done);
        connection.end_response_here(ended)
    }

    fn finish_as(mut self, finish: Finish) -> Result<(), Short> {
        let Some(mut parts) = self.take_parts() else { return Ok(()) };
        if !parts.complete() {
            parts.fail(500, Some("The server has no memory for the response."), finish);
            return Ok(());
        }
        let response = &parts.transaction.response;
        let (missing, ending) = (response.missing(), response.ending());
        parts.close(ending, finish);
        if missing > 0 { Err(Short { missing }) } else { Ok(()) }
    }

    /// Sends a small error page (`status` 500, 502, ...) if the head was not sent, else breaks the connection visibly.
    /// `detail` is HTML for the page's body, already escaped; `None` gives the standard sentence.
    pub fn fail(mut self, status: u16, detail: Option<&str>) {
        if let Some(parts) = self.take_parts() {
            parts.fail(status, detail, Finish::Done);
        }
    }

    /// True in a child that the application has forked.
    pub fn is_forked_child(&self) -> bool {
        self.connection().is_forked_child()
    }

    /// As [`Exchange::fail`], because the server stops before the application has finished; the record says so
    /// ([`Ending::Cut`]).
    pub fn abort(mut self, status: u16, detail: Option<&str>) {
        if let Some(parts) = self.take_parts() {
            parts.fail(status, detail, Finish::Abort);
        }
    }

    /// The parts, which the caller ends. `None` in a forked child, where they are leaked: they belong to the parent.
    fn take_parts(&mut self) -> Option<Parts> {
        let parts = self.parts.take()?;
        if parts.connection.is_forked_child() {
            std::mem::forget(parts);
            return None;
        }
        Some(parts)
    }
}

/// The response of a call of the application that took less time than this is not held.
const HOLD_AFTER: Duration = Duration::from_micros(50);

impl Parts {
    fn is_client_gone(&self) -> bool {
        self.transaction.response.is_gone() || self.connection.is_gone()
    }

    fn with_send_context(
        &mut self,
        send: impl FnOnce(&mut crate::response::producer::Response, &SendContext<'_>, &mut Record) -> (Sent, After),
    ) -> Sent {
        let Transaction { request, response, record, facts, incoming, runner, .. } = &mut *self.transaction;
        let shared = self.connection.shared();
        // What a responder sends has rules of its own.
        let rules = shared.config.compression.as_ref().filter(|_| runner.is_some());
        let (facts, incoming, started) = (*facts, &*incoming, record.started);
        let context = SendContext {
            delivery: self.connection.delivery(),
            limits: &shared.delivery_limits,
            clock: &shared.clock,
            time: &*self.connection,
            server_name: &shared.config.server_name,
            server_timing: shared.config.server_timing,
            is_gone: self.connection.is_gone(),
            may_hold: &|| {
                let is_safe = is_safe(request.head.method.of(&request.bytes));
                // A wake-up of the client between two short calls costs less than holding does.
                let took = |started| shared.clock.peek().saturating_duration_since(started) >= HOLD_AFTER;
                is_safe && incoming.is_none() && self.connection.host().may_hold() && started.is_some_and(took)
            },
            may_delay: &|| self.connection.host().may_delay(),
            format: &|| {
                let is_readable = incoming.as_ref().is_none_or(|incoming| incoming.answered());
                let keep_alive = facts.keep_alive && !shared.is_stopping() && is_readable;
                HeadContext {
                    format: self.connection.protocol(),
                    facts: RequestFacts { keep_alive, ..facts },
                    strict_transport: shared.config.strict_transport(request.peer.listener),
                    id: shared.config.id_field(request.id()),
                    compression: rules.map(|rules| CompressionContext { rules, request }),
                }
            },
        };
        let (sent, after) = send(response, &context, record);
        self.connection.follow_up(after);
        sent
    }

    /// See [`Exchange::withdraw`].
    fn withdraw(&mut self) {
        let Transaction { response, record, .. } = &mut *self.transaction;
        response.withdraw(self.connection.delivery(), self.connection.delivery_limits(), record);
    }

    /// The application is done with the request, if it was called.
    fn finished(&mut self, now: Instant) {
        let record = &mut self.transaction.record;
        record.finished = Some(now);
        if let Some(started) = record.started {
            record.usage = record.mark.as_ref().and_then(|mark| usage::since(mark, started, now));
            probes::application_leave(self.connection.key());
        }
    }

    fn fail(mut self, status: u16, detail: Option<&str>, finish: Finish) {
        let now = self.connection.shared().clock.read();
        self.finished(now);
        if self.is_client_gone() || self.transaction.is_cancelled {
            self.transaction.response.set_gone();
            return self.close(Ending::ClientGone, finish);
        }
        self.withdraw();
        if self.transaction.response.is_committed() {
            return self.close(Ending::Broken, finish);
        }
        let sentence = detail.unwrap_or("The application failed; its log has the reason.");
        self.with_send_context(|response, context, record| {
            (Sent::Taken, response.send_error(context, record, status, sentence, now))
        });
        let is_gone = self.transaction.response.is_gone();
        self.close(if is_gone { Ending::ClientGone } else { Ending::Complete }, finish);
    }

    /// Completes the response. False: the system has no memory for that, and nothing was sent.
    fn complete(&mut self) -> bool {
        let now = self.connection.shared().clock.read();
        self.finished(now);
        let mut has_memory = true;
        if !self.transaction.response.is_finished() {
            self.with_send_context(|response, context, record| {
                let after = response.finish(context, record, now);
                has_memory = after.is_some();
                (Sent::Taken, after.unwrap_or_default())
            });
        }
        has_memory
    }

    /// Ends the response and gives the connection back.
    fn close(self, ending: Ending, finish: Finish) {
        let (connection, ended) = self.end(ending, finish);
        connection.end_response(ended);
    }

    /// Ends the response. The caller gives the connection back.
    fn end(self, ending: Ending, finish: Finish) -> (Arc<Connection>, Ended) {
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
            connection.host().release(runner);
        }
        let then = match ending {
            Ending::Complete if response.keeps_alive() => AfterResponse::Keep,
            Ending::Broken if response.ends_with_connection() => AfterResponse::Reset,
            _ => AfterResponse::Close,
        };
        let end = connection.delivery().end(connection.delivery_limits());
        if !end.is_sent && !connection.delivery_limits().has_memory() {
            // The I/O side moves responses that wait for clients to files.
            connection.host().wake_io();
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

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Some(parts) = self.take_parts() {
            parts.fail(500, None, Finish::Done);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::atomic::Ordering;
    use std::thread;
    use std::time::Duration;

    use super::{BodyFault, Exchange, PATIENCE, Payload, Position, RequestBody, Room, Sent};
    use crate::config::Config;
    use crate::executor::greenlets::testing::Served;
    use crate::observe::metrics::Metric;
    use crate::observe::record::{Ending, Path};
    use crate::os::sync::lock;

    /// In no head.
    const OCTET: u8 = 0xff;
    static BLOCK: [u8; 1 << 20] = [OCTET; 1 << 20];

    struct Here(&'static [u8]);

    impl Payload for Here {
        fn bytes(&self) -> &[u8] {
            self.0
        }
    }

    fn send(exchange: &mut Exchange, block: &'static [u8]) -> Sent {
        exchange.send(&[block], Position::More, &mut |_| Box::new(Here(block)))
    }

    fn all(client: &mut TcpStream) -> String {
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap();
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn the_head_goes_with_the_first_bytes_and_what_is_beyond_its_length_is_counted() {
        let served = Served::new(Config::default());
        let (mut client, mut exchange) = served.exchange();
        exchange.head().status(b"200 OK").unwrap();
        exchange.head().field(b"Content-Length", b"2").unwrap();
        assert_eq!((send(&mut exchange, b""), exchange.head_sent()), (Sent::Taken, false));
        assert_eq!((send(&mut exchange, b"abc"), exchange.head_sent()), (Sent::Enough, true));
        assert_eq!(exchange.surplus(), 1);
        exchange.finish().unwrap();
        assert!(all(&mut client).ends_with("\r\n\r\nab"));
        served.end();
    }

    #[test]
    fn a_client_has_gone_when_it_has_reset_its_connection_and_when_that_is_closed() {
        let served = Served::new(Config::default());
        let (client, mut exchange) = served.exchange();
        let (asked, record) = (exchange.client(), exchange.follow());
        assert!(!asked.is_gone() && !exchange.client_gone());
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        while !exchange.client_gone() {
            thread::yield_now();
        }
        assert!(asked.is_gone());
        // There is nobody to read the page.
        exchange.fail(500, None);
        assert!(asked.is_gone());
        served.end();
        let record = *lock(&record);
        assert_eq!((record.ending, record.status), (Ending::ClientGone, 0));
    }

    #[test]
    fn a_request_that_is_not_finished_ends_visibly_and_its_record_says_why() {
        type End = fn(Exchange);
        let cases: [(&str, bool, End, &str, Ending); 7] = [
            ("fails", false, |exchange| exchange.fail(502, Some("No luck.")), "502 Bad Gateway", Ending::Complete),
            ("is dropped", false, drop, "500 Internal Server Error", Ending::Complete),
            ("is refused", false, Exchange::refuse, "503 Service Unavailable", Ending::Complete),
            ("is aborted", false, |exchange| exchange.abort(503, None), "503 Service Unavailable", Ending::Cut),
            ("fails late", true, |exchange| exchange.fail(502, None), "200 OK", Ending::Broken),
            ("is dropped late", true, drop, "200 OK", Ending::Broken),
            ("is aborted late", true, |exchange| exchange.abort(503, None), "200 OK", Ending::Cut),
        ];
        for (what, has_begun, end, status, ending) in cases {
            let served = Served::new(Config::default());
            let (mut client, mut exchange) = served.exchange();
            let record = exchange.follow();
            exchange.head().status(b"200 OK").unwrap();
            if has_begun {
                send(&mut exchange, b"part");
            }
            end(exchange);
            let response = all(&mut client);
            assert!(response.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{what}: {response}");
            assert_eq!(response.ends_with("4\r\npart\r\n"), has_begun, "{what}, without the last chunk: {response}");
            assert_eq!(served.server.stats()[Metric::Refused], u64::from(what == "is refused"), "{what}");
            served.end();
            assert_eq!(lock(&record).ending, ending, "{what}");
        }
    }

    #[test]
    fn a_ticket_comes_back_to_the_thread_of_the_greenlets_alone() {
        let served = Served::new(Config::default());
        let (_client, exchange) = served.exchange();
        assert!(exchange.is_on_ticket_thread() && exchange.come_back(5));
        served.await_ticket(5);
        let elsewhere = thread::spawn(move || {
            assert!(!exchange.is_on_ticket_thread() && !exchange.come_back(6));
            exchange
        });
        elsewhere.join().unwrap().finish().unwrap();
        served.end();
    }

    #[test]
    fn a_runner_that_waits_for_its_client_is_counted_and_its_time_is_in_the_record() {
        let served = Served::new(Config::default());
        let (_client, mut exchange) = served.exchange();
        let count = exchange.connection().shared().waiting.clone();
        let waiting = exchange.count_waiting();
        assert_eq!(count.load(Ordering::SeqCst), 1);
        drop(waiting);
        assert_eq!(count.load(Ordering::SeqCst), 0);
        exchange.add_wait(Duration::from_secs(2));
        exchange.add_wait(Duration::from_secs(3));
        assert_eq!(exchange.record().waited, Duration::from_secs(5));
        exchange.finish().unwrap();
        served.end();
    }

    #[test]
    fn a_runner_does_not_wait_for_its_client_when_responses_have_used_up_their_memory() {
        let served = Served::new(Config { response_buffer: 1 << 20, ..Config::default() });
        let (_client, exchange) = served.exchange();
        let memory = exchange.connection().shared().memory.clone();
        assert_eq!(exchange.patience(), PATIENCE);
        memory.responses.charge(2 << 20);
        assert_eq!(exchange.patience(), Duration::ZERO);
        memory.responses.give_back(2 << 20);
        exchange.finish().unwrap();
        served.end();
    }

    #[test]
    fn what_a_slow_client_has_not_taken_goes_to_a_file_while_other_greenlets_run() {
        let served = Served::new(Config { response_queue: 64 * 1024, ..Config::default() });
        let (mut client, mut exchange) = served.exchange();
        let record = exchange.follow();
        exchange.head().status(b"200 OK").unwrap();
        let mut given = 0;
        let mut tickets = 1..;
        // The kernel takes the first blocks.
        while !exchange.connection().delivery().is_behind() {
            assert_ne!(send(&mut exchange, &BLOCK), Sent::Gone);
            given += BLOCK.len();
            for ticket in tickets.by_ref() {
                if exchange.ask_for_room(ticket) != Room::Later {
                    break;
                }
                exchange.spill_elsewhere();
                // Be it that there was room before, or that all of it was being sent at that moment.
                served.await_ticket(ticket);
            }
        }
        let reader = thread::spawn(move || {
            let mut all = Vec::new();
            client.read_to_end(&mut all).unwrap();
            all.into_iter().filter(|octet| *octet == OCTET).count()
        });
        exchange.finish().unwrap();
        assert_eq!(reader.join().unwrap(), given);
        served.end();
        assert_eq!(lock(&record).path, Path::Spilled);
    }

    #[test]
    fn no_room_comes_for_a_client_that_has_gone() {
        let served = Served::new(Config { response_queue: 64 * 1024, ..Config::default() });
        let (client, mut exchange) = served.exchange();
        exchange.head().status(b"200 OK").unwrap();
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        let mut client = Some(client);
        for ticket in 1.. {
            send(&mut exchange, &BLOCK);
            match exchange.ask_for_room(ticket) {
                Room::Now => {}
                Room::Never => break,
                Room::Later => {
                    client.take();
                    served.await_ticket(ticket);
                }
            }
        }
        assert!(exchange.client_gone());
        assert_eq!(send(&mut exchange, b"more"), Sent::Gone);
        exchange.finish().unwrap();
        served.end();
    }

    #[test]
    fn a_greenlet_reads_a_body_as_it_arrives_and_none_of_it_after_its_response() {
        let served = Served::new(Config { stream_body: true, ..Config::default() });
        let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n";
        let mut client = served.ask_with(head);
        let mut exchange = served.next();
        let RequestBody::Stream(mut body) = exchange.take_body() else { panic!("the body is not streamed") };
        assert!(matches!(exchange.take_body(), RequestBody::Empty), "it is given once");
        let mut target = [0; 16];
        assert_eq!(body.try_read(&mut target), Ok(None));
        let mut line = [0; 25];
        client.read_exact(&mut line).unwrap();
        assert_eq!(&line, b"HTTP/1.1 100 Continue\r\n\r\n");
        for (ticket, part) in [(1, b"abc"), (2, b"def")] {
            assert!(body.ask(ticket).is_some());
            assert_eq!(body.try_read(&mut target), Ok(None));
            client.write_all(part).unwrap();
            served.await_ticket(ticket);
            assert_eq!((body.try_read(&mut target), &target[..3]), (Ok(Some(3)), part.as_slice()));
        }
        assert!(body.come_back(3));
        served.await_ticket(3);
        exchange.finish().unwrap();
        assert_eq!(body.try_read(&mut target), Err(BodyFault::Over));
        assert!(!body.come_back(4));
        served.end();
    }
}
