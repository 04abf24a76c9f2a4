//! A request and the response to it, as one allocation that travels with the request and is used again.
//!
//! Thread: it belongs to the runner of the request; before and after that, to the owner of the connection.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tailrace_http::framing::RequestFacts;
use tailrace_http::request_head::{Field, Version};

use crate::connection::runner::Runner;
use crate::observe::record::{Ending, Path, Record};
use crate::os::clock::now;
use crate::request::memory::{Charge, ClientMemory};
use crate::request::stream::Incoming;
use crate::request::{Endpoints, Request, RequestBody};
use crate::response::producer::Response;

/// A head that is not larger than this is not charged if it comes whole, and leaves its room to the next one.
const LARGE_HEAD: usize = 4 * 1024;
/// Fields of a head whose room is not kept.
const LARGE_FIELDS: usize = 256;

/// What becomes of the response to a request whose deadline has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The client was answered 504 in the application's place.
    Answered,
    /// The response had begun; the connection was broken.
    BrokenOff,
    /// The response was finished, or the client had disconnected.
    Over,
}

/// See the module.
pub(crate) struct Transaction {
    pub(crate) request: Request,
    pub(crate) facts: RequestFacts,
    pub(crate) response: Response,
    pub(crate) record: Record,
    /// The runner of the request, while one has it.
    pub(crate) runner: Option<Runner>,
    /// Where the record is copied when it is complete, if the application asked for it.
    pub(crate) follower: Option<Arc<Mutex<Record>>>,
    /// The body that the application reads as it comes.
    pub(crate) incoming: Option<Arc<Incoming>>,
    /// For the memory of all this, where it is charged.
    charge: Charge,
}

impl Transaction {
    pub(crate) fn new() -> Self {
        Self {
            request: Request::default(),
            facts: RequestFacts { version: Version::Http11, is_head: false, keep_alive: false },
            response: Response::default(),
            record: Record::new(now()),
            runner: None,
            follower: None,
            incoming: None,
            charge: Charge::default(),
        }
    }

    /// As new, but for the room of buffers that are not large.
    pub(crate) fn clear(&mut self) {
        self.request.bytes.clear();
        if self.is_large() {
            self.request.bytes = Vec::new();
        }
        self.request.head.clear();
        if self.request.head.fields.capacity() > LARGE_FIELDS {
            self.request.head.fields = Vec::new();
        }
        self.charge = Charge::default();
        self.request.body = RequestBody::Empty;
        self.incoming = None;
        self.runner = None;
        self.follower = None;
        self.response.clear();
    }

    /// Appends to the request's head. False: there is no memory for it.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> bool {
        let head = &mut self.request.bytes;
        if head.capacity() - head.len() < bytes.len() {
            // Twice as much each time, as long as that is not much.
            let more = bytes.len().max(head.len().min(LARGE_HEAD));
            if head.try_reserve_exact(more).is_err() {
                return false;
            }
        }
        head.extend_from_slice(bytes);
        true
    }

    /// True when the head takes more than what is not charged of a request that comes whole.
    pub(crate) fn is_large(&self) -> bool {
        self.request.bytes.capacity() > LARGE_HEAD
    }

    /// The memory of all this, but for the body.
    pub(crate) fn held(&self) -> usize {
        size_of::<Self>()
            + self.request.bytes.capacity()
            + self.request.head.fields.capacity() * size_of::<Field>()
            + self.response.room()
    }

    /// What of it is charged.
    pub(crate) fn charged(&self) -> usize {
        self.charge.bytes()
    }

    /// Charges it as it is now.
    pub(crate) fn charge(&mut self, memory: &ClientMemory) {
        let held = self.held();
        self.charge.set_in(&memory.requests, held);
    }

    /// The request was refused with this status, and a page of so many bytes, before any application saw it: a record
    /// for the log.
    pub(crate) fn record_refusal(&mut self, status: u16, body_bytes: u64, endpoints: Endpoints, now: Instant) {
        self.request.endpoints = endpoints;
        self.record = Record { status, body_bytes, path: Path::OneWrite, ending: Ending::Complete, ..Record::new(now) };
    }

    /// The record so far, with the time that readers of the body have waited.
    pub(crate) fn record_so_far(&self) -> Record {
        let waited = self.incoming.as_ref().map_or(Duration::ZERO, |incoming| incoming.waited());
        Record { waited: self.record.waited + waited, ..self.record }
    }
}
