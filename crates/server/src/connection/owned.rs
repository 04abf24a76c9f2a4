//! What only the owner of a connection does: it takes steps, and then releases the connection or passes it on.
//!
//! The holder of an [`Owned`] connection is its owner. The next owner is the request that is to run, a write of its
//! body, the list of batched responses, or the thread that polls.

use tailrace_http::limits::Refusal;
use tailrace_observe::metrics::Metric;
use tailrace_observe::record::Ending;
use tailrace_os::clock::NEVER;
use tailrace_os::sync::lock;

use crate::connection::driver::Connection;
use crate::connection::ownership::{self, Owned, READABLE};
use crate::connection::state::{AfterResponse, ConnectionState, Event, Next};
use crate::connection::steps::Steps;
use crate::connection::transaction::Transaction;
use crate::request::spool::{NotWritten, Written};
use crate::request::stream::Rest;
use crate::response::outbox::Flush;

/// Maximum number of requests that responders answer for one connection before other connections are served.
const RESPONSES: usize = 32;

/// A response that the application has finished.
pub(crate) struct Ended {
    pub(crate) then: AfterResponse,
    pub(crate) transaction: Box<Transaction>,
    /// What is left of a streamed request body.
    pub(crate) rest: Option<Rest>,
    /// All of the response has been sent.
    pub(crate) is_sent: bool,
    /// The I/O side continues with the connection, because many bytes are left to send or the calling thread must not
    /// send them.
    pub(crate) hand_over: bool,
    /// The response is held: all of it is queued, to be sent together with others.
    pub(crate) is_batched: bool,
}

impl Owned<Connection> {
    /// Called once, when the connection can be found by its key: reads what the client has sent already, and takes the
    /// first steps.
    pub(crate) fn begin(self) {
        // A draining server reported its event only to the connections that were open when it began.
        let stop = if self.shared.is_stopping() { ownership::STOP } else { 0 };
        self.ownership.raise(ownership::READ | stop);
        let next = self.steps().advance();
        // Most clients have sent their request: such a connection has no entry in the table of deadlines.
        if matches!(next, Next::Rest) && self.deadline.due() == NEVER {
            self.set_idle_deadline();
        }
        self.run_from(next);
    }

    /// Takes steps until there is nothing to do, then releases the connection.
    pub(crate) fn run(self) {
        let next = self.steps().advance();
        self.run_from(next);
    }

    /// Dispatches a request, which owns the connection.
    pub(crate) fn dispatch(self, transaction: Box<Transaction>) {
        self.run_from(Next::Run(transaction));
    }

    fn run_from(mut self, mut next: Next) {
        let mut responses = 0;
        loop {
            match next {
                Next::Run(transaction) => {
                    self.opening.end();
                    let connection = self.clone();
                    if responses == RESPONSES {
                        // A client that pipelines its requests must not delay others.
                        return connection.host.dispatch_later(transaction, self);
                    }
                    responses += 1;
                    let Some((owned, then)) = connection.host.dispatch(transaction, self) else { return };
                    (self, next) = (owned, then);
                    continue;
                }
                Next::Store(write) => return self.clone().host.store(self, *write),
                // The leader continues with the connection after the events of others.
                Next::Later => return self.hand_over(),
                Next::Close => return self.close(),
                Next::Rest | Next::Read | Next::Flush => {
                    if self.ownership.release() {
                        return;
                    }
                }
            }
            next = self.steps().advance();
        }
    }

    /// The thread that polls continues with the connection.
    pub(crate) fn hand_over(self) {
        self.clone().host.hand_over(self);
    }

    fn close(self) {
        *lock(&self.state) = ConnectionState::Closed;
        self.delivery.outbox().break_off();
        self.host.remove(&self);
    }

    fn steps(&self) -> Steps<'_> {
        Steps { connection: self, state: lock(&self.state) }
    }

    /// As [`Owned::end_response`]. The caller takes the next action, which is returned.
    pub(crate) fn end_response_here(self, ended: Ended) -> (Self, Next) {
        let Ended { then, transaction, rest, is_sent, .. } = ended;
        self.count(&transaction);
        let mut steps = self.steps();
        let next = steps.step(Event::Responded { then, transaction, rest, is_sent });
        let next = if is_sent {
            steps.serve(next, READABLE)
        } else {
            // The events that arrived meanwhile, and the flush that follows them; nothing of a responder is held.
            steps.advance()
        };
        drop(steps);
        (self, next)
    }

    /// Counts a request that the application has answered.
    fn count(&self, transaction: &Transaction) {
        if transaction.record.started.is_some() && !transaction.record.has_left_http() {
            self.shared.counts.add(Metric::Requests, 1);
        }
    }

    /// The application is done with the response.
    pub(crate) fn end_response(self, ended: Ended) {
        let Ended { then, transaction, rest, is_sent, hand_over, is_batched } = ended;
        self.count(&transaction);
        // Where runners share a thread, the I/O side reads what the client has sent meanwhile.
        let shares_thread = self.shared.policy.waiting.is_by_ticket();
        let is_sent = is_sent && !hand_over && !shares_thread;
        let mut steps = self.steps();
        let next = steps.step(Event::Responded { then, transaction, rest, is_sent });
        if is_sent {
            let next = steps.serve(next, READABLE);
            drop(steps);
            return self.run_from(next);
        }
        // A client that has sent further requests already would wait for each of them.
        let (has_unread, has_more) = (steps.state.has_unread(), steps.state.has_more_requests());
        drop(steps);
        if is_batched && !has_more {
            self.clone().host.hold(self);
        } else if hand_over || (shares_thread && has_unread) {
            self.hand_over();
        } else {
            self.run();
        }
    }

    /// Sends the response that was held until now, and continues with the connection.
    pub(crate) fn end_hold(self) {
        lock(&self.state).note_held(self.shared.clock.peek());
        self.run();
    }

    /// A part of the body has been written. The caller then hands the connection over.
    pub(crate) fn end_write(&self, result: Result<Written, NotWritten>) {
        lock(&self.state).set_write_result(result);
        // The events of bytes, or of the end, that arrived during the write may be used up.
        self.ownership.raise(ownership::READ | ownership::READ_END);
    }

    /// The request is answered: whether all that the client has sent behind it is known.
    pub(crate) fn has_all_received(&self) -> bool {
        lock(&self.state).pipelined().is_some_and(|pipelined| !pipelined.is_lost)
    }

    /// The request is being answered: whether the client has sent more behind it.
    pub(crate) fn has_received_more(&self) -> bool {
        lock(&self.state).pipelined().is_some_and(|pipelined| !pipelined.is_empty())
    }

    /// The request is answered: takes what the client has sent behind it.
    pub(crate) fn take_received(&self) -> Vec<u8> {
        lock(&self.state).pipelined().map(std::mem::take).map_or_else(Vec::new, |pipelined| pipelined.take().0)
    }

    /// Rejects the incomplete request, which frees its memory immediately, and hands the connection over, because the
    /// calling thread may be in the middle of a read of another one. False: there is no incomplete request any more.
    pub(crate) fn shed(self, refusal: &Refusal) -> bool {
        let (next, account) = self.steps().step_unaccounted(Event::Shed(*refusal));
        let is_shed = matches!(next, Next::Later);
        if is_shed {
            let (flush, after) = self.delivery.flush(false, u64::MAX, &self.shared.delivery_limits, Some(&**self));
            self.follow_up(after);
            // Accounted for after the flush, so that the record counts its writes, but without waiting for the client
            // to take the page, so that the memory of the request is free.
            if let Some(mut transaction) = account {
                if flush == Flush::Broken {
                    transaction.record.set_broken(Ending::ClientDisconnected);
                }
                self.account(transaction);
            }
        }
        self.hand_over();
        is_shed
    }
}
