//! A request and the response to it, in one allocation that moves with the request and is used again for later ones.
//!
//! Thread: a transaction belongs to the runner of the request; before and after that, to the owner of the connection.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tailrace_holder::grip::Instructions;
use tailrace_http::framing::{RequestFacts, ResponseFormat};
use tailrace_http::request_head::{Field, Span};
use tailrace_observe::record::{Ending, Path, Record};
use tailrace_os::clock::now;

use crate::connection::runner::RunnerId;
use crate::request::memory::{Charge, ClientMemory};
use crate::request::stream::{Incoming, Rest};
use crate::request::{Request, RequestBody};
use crate::response::producer::Response;

/// A head of at most this many bytes is not charged if it arrives complete, and its buffer is kept for the next
/// request.
const LARGE_HEAD: usize = 4 * 1024;
/// A table of more header fields than this is not kept for the next request.
const LARGE_FIELDS: usize = 256;

/// A header field of the application that is meant for a responder and not sent to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegation {
    /// Its name, one of [`Exchange::delegation_fields`](crate::Exchange::delegation_fields).
    pub field: &'static str,
    /// Its value, in the characters that the application gave.
    pub value: String,
}

/// A response that is passed to the holder with its connection, once it is complete.
pub(crate) struct PendingHold {
    pub(crate) instructions: Instructions,
    pub(crate) body: Vec<u8>,
    /// It has more bytes than can be held.
    pub(crate) is_too_large: bool,
}

pub(crate) struct Transaction {
    pub(crate) request: Request,
    pub(crate) facts: RequestFacts,
    pub(crate) response: Response,
    pub(crate) record: Record,
    /// The runner of the request, once one has taken it.
    pub(crate) runner: Option<RunnerId>,
    /// The application was interrupted, or not called, because the client has left.
    pub(crate) is_cancelled: bool,
    /// Where the final record is copied, if the application has asked for that.
    pub(crate) follower: Option<Arc<Mutex<Record>>>,
    /// The body, if the application reads it while it arrives.
    pub(crate) incoming: Option<Arc<Incoming>>,
    /// What is left of a body that was read while it arrived, once the application is done.
    pub(crate) rest: Option<Rest>,
    /// What the application has delegated to a responder, instead of sending its own body.
    pub(crate) delegation: Option<Delegation>,
    /// The application has asked for its connection to be held.
    pub(crate) hold: Option<Box<PendingHold>>,
    /// How many responders have passed the request on.
    pub(crate) passed_on: usize,
    /// The values that the application has left in `environ` for the access log, in the order of
    /// [`Format::variables`](tailrace_observe::log_format::Format::variables).
    pub(crate) variables: Vec<Option<Vec<u8>>>,
    /// The charge for the memory of the transaction.
    charge: Charge,
}

impl Transaction {
    pub(crate) fn new() -> Self {
        Self {
            request: Request::default(),
            facts: RequestFacts { format: ResponseFormat::Http11, is_head: false, keep_alive: false },
            response: Response::default(),
            record: Record::new(now()),
            runner: None,
            is_cancelled: false,
            follower: None,
            incoming: None,
            rest: None,
            delegation: None,
            hold: None,
            passed_on: 0,
            variables: Vec::new(),
            charge: Charge::default(),
        }
    }

    /// Makes it as new, but keeps the capacity of buffers that are not large.
    pub(crate) fn clear(&mut self) {
        self.request.bytes.clear();
        if self.is_large() {
            self.request.bytes = Vec::new();
        }
        self.request.head.clear();
        let head = &mut self.request.head;
        for fields in [&mut head.fields, &mut head.variables] {
            if fields.capacity() > LARGE_FIELDS {
                *fields = Vec::new();
            }
        }
        self.charge = Charge::default();
        self.request.body = RequestBody::Empty;
        self.request.id = Span::default();
        self.request.traced = None;
        self.incoming = None;
        self.rest = None;
        self.delegation = None;
        self.hold = None;
        self.passed_on = 0;
        self.variables.clear();
        self.runner = None;
        self.is_cancelled = false;
        self.follower = None;
        self.response.clear();
    }

    /// Appends to the bytes of the request head. False: the system has no memory for them.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> bool {
        let head = &mut self.request.bytes;
        if head.capacity() - head.len() < bytes.len() {
            // Doubles the buffer while it is small.
            let more = bytes.len().max(head.len().min(LARGE_HEAD));
            if head.try_reserve_exact(more).is_err() {
                return false;
            }
        }
        head.extend_from_slice(bytes);
        true
    }

    /// True when the buffer of the head is larger than one that is kept and not charged.
    pub(crate) fn is_large(&self) -> bool {
        self.request.bytes.capacity() > LARGE_HEAD
    }

    /// The memory of the transaction without the body, in bytes.
    pub(crate) fn held(&self) -> usize {
        size_of::<Self>()
            + self.request.bytes.capacity()
            + (self.request.head.fields.capacity() + self.request.head.variables.capacity()) * size_of::<Field>()
            + self.response.room()
    }

    /// Bytes of it that are charged.
    pub(crate) fn charged(&self) -> usize {
        self.charge.bytes()
    }

    /// Charges the memory that it has now.
    pub(crate) fn charge(&mut self, memory: &ClientMemory) {
        let held = self.held();
        self.charge.set_in(&memory.requests, held);
    }

    /// Makes the record of a request that the server has refused, with this status and a page of this size, before the
    /// application saw it.
    pub(crate) fn record_refusal(&mut self, status: u16, body_bytes: u64, now: Instant) {
        self.record = Record { status, body_bytes, path: Path::OneWrite, ending: Ending::Complete, ..Record::new(now) };
    }

    /// The record so far, with the time for which the application has waited for the body.
    pub(crate) fn record_so_far(&self) -> Record {
        let waited = self.incoming.as_ref().map_or(Duration::ZERO, |incoming| incoming.waited());
        Record { waited: self.record.waited + waited, ..self.record }
    }
}
