//! One request and the answer to it, as the application's side carries them.
//!
//! Thread: an exchange belongs to the thread that took it from the ready queue, until it is finished or dropped.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use penstock_http::encode::ResponseHead;

use crate::answer::Answer;
pub use crate::answer::{Client, Position, Room, Sent, Short};
pub use crate::budget::Charge;
use crate::connection::Connection;
pub use crate::inflow::{BodyFault, BodyStream};
pub use crate::outbox::Payload;
use crate::record::Record;
pub use crate::request::{Endpoints, Request, RequestBody};

/// One request and the answer to it. Dropped before `finish`, it breaks the connection visibly.
pub struct Exchange {
    /// Some until `finish`, `fail` or `drop`, each of which consumes the exchange.
    answer: Option<Box<Answer>>,
}

impl Exchange {
    pub(crate) fn new(mut answer: Box<Answer>, connection: Arc<Connection>) -> Self {
        answer.attach(connection);
        Self { answer: Some(answer) }
    }

    /// Whoever holds this post has taken the request.
    pub(crate) fn begin(&mut self, now: Instant, post: Option<usize>) {
        self.answer_mut().begin(now, post);
    }

    /// Gives the application this long for the request, from now on, whatever `request_timeout` says. `None`: as long as it
    /// likes.
    pub fn set_deadline(&mut self, time: Option<Duration>) {
        self.answer_mut().set_deadline(Instant::now(), time);
    }

    /// Answers 503 from the I/O side: no application thread has time for the request.
    pub(crate) fn turn_away(mut self) {
        if let Some(answer) = self.answer.take() {
            answer.turn_away();
        }
    }

    fn answer(&self) -> &Answer {
        match &self.answer {
            Some(answer) => answer,
            None => unreachable!("an exchange is consumed when it ends"),
        }
    }

    fn answer_mut(&mut self) -> &mut Answer {
        match &mut self.answer {
            Some(answer) => answer,
            None => unreachable!("an exchange is consumed when it ends"),
        }
    }

    /// The request.
    pub fn request(&self) -> &Request {
        &self.answer().request
    }

    /// Takes the body out of the request, leaving `Empty`.
    pub fn take_body(&mut self) -> RequestBody {
        std::mem::take(&mut self.answer_mut().request.body)
    }

    /// The response head, to be filled before the first `send`. `ResponseHead::clear` starts over.
    pub fn head(&mut self) -> &mut ResponseHead {
        &mut self.answer_mut().head
    }

    /// True once the head has been committed (sent or queued): it cannot be changed any more.
    pub fn head_sent(&self) -> bool {
        self.answer().is_committed()
    }

    /// The record so far.
    pub fn record(&self) -> Record {
        let answer = self.answer();
        let waited = answer.inflow.as_ref().map_or(Duration::ZERO, |inflow| inflow.waited());
        Record { waited: answer.record.waited + waited, ..answer.record }
    }

    /// Who waits for the response, to be asked by other threads.
    pub fn client(&self) -> Client {
        self.answer().client()
    }

    /// Where the record will be in its last state: the response may go on leaving when the exchange has ended.
    pub fn follow(&mut self) -> Arc<Mutex<Record>> {
        let answer = self.answer_mut();
        let record = answer.record;
        answer.follower.get_or_insert_with(|| Arc::new(Mutex::new(record))).clone()
    }

    /// Sends blocks, the head before them if it has not gone yet: one `writev` for all where the socket takes it.
    /// What the socket does not take is queued: small rests are copied, of large blocks `keep(index)` is asked to give
    /// an owner. Small blocks that come quickly one after the other gather, and the I/O side sends them. Never blocks.
    /// Empty blocks do not commit the head.
    pub fn send(
        &mut self,
        blocks: &[&[u8]],
        position: Position,
        keep: &mut dyn FnMut(usize) -> Box<dyn Payload>,
    ) -> Sent {
        self.answer_mut().send(blocks, position, keep)
    }

    /// The short way of [`Exchange::send`] for a small block of a response whose blocks come quickly. `None`: it does
    /// not apply, nothing was done.
    #[inline]
    pub fn gather(&mut self, block: &[u8]) -> Option<Sent> {
        self.answer_mut().gather(block)
    }

    /// Sends `length` bytes of a file from `offset` by `sendfile`. If nothing was sent before and `position` is `Last`,
    /// `length` becomes the `Content-Length`.
    pub fn send_file(&mut self, file: OwnedFd, offset: u64, length: u64, position: Position) -> Sent {
        self.answer_mut().send_file(file, offset, length, position)
    }

    /// Waits until the queue has room again. Blocks: release the interpreter first.
    pub fn wait(&mut self) -> Sent {
        self.answer_mut().wait()
    }

    /// True on the thread of the hub whose greenlets carry such requests.
    pub fn is_on_its_hub(&self) -> bool {
        let hub = self.answer().connection().and_then(|connection| connection.reactor().hub());
        hub.is_some_and(|hub| hub.is_here())
    }

    /// On the hub's thread: has this ticket told when the hub next looks for news. False: it will not be.
    pub fn come_back(&self, ticket: u64) -> bool {
        let hub = self.answer().connection().and_then(|connection| connection.reactor().hub());
        hub.is_some_and(|hub| hub.is_here() && hub.wake(ticket))
    }

    /// For a hub's greenlet: whether the queue has room. [`Room::Told`]: [`crate::hub::Hub::take`] gives this ticket
    /// when it is worth asking again.
    pub fn ask_for_room(&mut self, ticket: u64) -> Room {
        self.answer_mut().ask_for_room(ticket)
    }

    /// The application has waited for its client for so long, other than in [`Exchange::wait`].
    pub fn add_wait(&mut self, time: Duration) {
        self.answer_mut().record.waited += time;
    }

    /// True when the peer is known to be gone (reset or closed both ways).
    pub fn client_gone(&self) -> bool {
        self.answer().client_gone()
    }

    /// Ends the response: an empty one if nothing was sent, the last chunk of a chunked one. A body shorter than its
    /// `Content-Length` breaks the connection instead.
    ///
    /// # Errors
    /// [`Short`], with the missing byte count, when fewer bytes were sent than the head promised.
    pub fn finish(mut self) -> Result<(), Short> {
        self.take_answer().map_or(Ok(()), Answer::finish)
    }

    /// Answers a small error page (`status` 500, 502, ...) if nothing was sent, else breaks the connection visibly.
    /// `detail` is HTML for the page's body, already escaped; `None` gives the standard sentence.
    pub fn fail(mut self, status: u16, detail: Option<&str>) {
        if let Some(answer) = self.take_answer() {
            answer.fail(status, detail);
        }
    }

    /// The answer, to be ended. In a forked child it is left as it is instead.
    fn take_answer(&mut self) -> Option<Box<Answer>> {
        let answer = self.answer.take()?;
        if answer.connection().is_some_and(|connection| connection.is_forgotten()) {
            std::mem::forget(answer);
            return None;
        }
        Some(answer)
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Some(answer) = self.take_answer() {
            answer.fail(500, None);
        }
    }
}
