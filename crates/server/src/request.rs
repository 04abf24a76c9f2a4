//! A complete request: head, body, and the two ends of its connection.

use std::fs::File;
use std::net::SocketAddr;

use penstock_http::framing::RequestFraming;
use penstock_http::head::RequestHead;
use penstock_http::limits::Refusal;

use crate::budget::Charge;
use crate::inflow::BodyStream;

/// A complete request: its head, where it came from, its body.
#[derive(Default)]
pub struct Request {
    /// The bytes of the head; the spans in `head` and `framing` refer to them.
    pub bytes: Vec<u8>,
    /// The parsed head.
    pub head: RequestHead,
    /// Body length and connection rules that the head states.
    pub framing: RequestFraming,
    /// The body, whole.
    pub body: RequestBody,
    /// Who sent it and to which of our addresses.
    pub endpoints: Endpoints,
}

impl Request {
    /// Method and target, printable.
    pub fn line(&self) -> String {
        let (method, target) = (self.head.method.of(&self.bytes), self.head.target.of(&self.bytes));
        format!("{} {}", method.escape_ascii(), target.escape_ascii())
    }
}

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Endpoints {
    /// The client; `None` on a UNIX socket.
    pub peer: Option<SocketAddr>,
    /// Index of the listener in the list the server was given.
    pub listener: usize,
}

/// The body of a request: read whole before the application is called, or read by it.
#[derive(Default)]
pub enum RequestBody {
    /// No body, or an empty one.
    #[default]
    Empty,
    /// In memory.
    Memory {
        /// The bytes.
        bytes: Vec<u8>,
        /// To be dropped with them.
        charge: Charge,
    },
    /// In an unlinked temporary file, positioned at its start.
    File {
        /// The file.
        file: File,
        /// Its length in bytes.
        length: u64,
    },
    /// It arrives while it is read.
    Stream(BodyStream),
}

/// The part of a request that is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Head,
    Body,
}

impl Part {
    /// Why a request is refused whose client ended in this part.
    pub(crate) fn cut_short(self) -> Refusal {
        match self {
            Self::Head => Refusal::new(400, "The request ended before its head was complete."),
            Self::Body => Refusal::new(400, "The request ended before its body was complete."),
        }
    }

    /// Why a request is refused of which this part was too slow.
    pub(crate) fn late(self) -> Refusal {
        match self {
            Self::Head => Refusal::new(408, "The request head did not arrive in time."),
            Self::Body => Refusal::new(408, "The request body did not arrive in time."),
        }
    }
}
