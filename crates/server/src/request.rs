//! A complete request: head, body, and the two ends of its connection.

use std::fs::File;
use std::net::SocketAddr;

use penstock_http::framing::RequestFraming;
use penstock_http::head::RequestHead;

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

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Endpoints {
    /// The client; `None` on a UNIX socket.
    pub peer: Option<SocketAddr>,
    /// Index of the listener in the list the server was given.
    pub listener: usize,
}

/// The body of a request, read whole before the application is called.
#[derive(Default)]
pub enum RequestBody {
    /// No body, or an empty one.
    #[default]
    Empty,
    /// In memory.
    Memory(Vec<u8>),
    /// In an unlinked temporary file, positioned at its start.
    File {
        /// The file.
        file: File,
        /// Its length in bytes.
        length: u64,
    },
}
