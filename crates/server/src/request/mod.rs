//! A complete request: head, body, and its peer.

pub(crate) mod disk;
pub(crate) mod identity;
pub(crate) mod memory;
pub(crate) mod part;
pub(crate) mod pool;
pub(crate) mod protocol;
pub(crate) mod segments;
pub(crate) mod share;
pub(crate) mod spool;
pub(crate) mod stream;

use std::net::SocketAddr;
use std::sync::Arc;

use tailrace_http::framing::RequestFraming;
use tailrace_http::identity::Traced;
use tailrace_http::peer::Peer;
use tailrace_http::query::QueryMasking;
use tailrace_http::request_head::{RequestHead, Span};
use tailrace_observe::shown_request::ShownRequest;
use tailrace_tls::facts::Facts;

use crate::request::disk::TemporaryFile;
use crate::request::segments::Segments;
use crate::request::stream::BodyStream;

/// A complete request: its head, where it came from, its body.
#[derive(Default)]
pub struct Request {
    /// The bytes of the head, to which the spans in `head` and `framing` refer.
    pub bytes: Vec<u8>,
    /// The parsed head.
    pub head: RequestHead,
    /// Body length and connection rules that the head states.
    pub framing: RequestFraming,
    /// The body, whole.
    pub body: RequestBody,
    /// Where it comes from.
    pub peer: Peer,
    /// Its id, within `bytes`; empty: it has none.
    pub id: Span,
    /// Its place in a trace. `None`: no spans are made of it.
    pub traced: Option<Traced>,
    /// What the handshake has shown. `None`: the connection is not encrypted.
    pub tls: Option<Arc<Facts>>,
}

impl Request {
    /// What is shown of it.
    #[inline]
    pub(crate) fn shown(&self) -> ShownRequest<'_> {
        ShownRequest {
            bytes: &self.bytes,
            head: &self.head,
            peer: &self.peer,
            id: self.id(),
            traced: self.traced,
            is_encrypted: self.tls.is_some(),
        }
    }

    /// Method and target, printable, without the values that `masking` hides.
    pub(crate) fn name(&self, masking: QueryMasking) -> String {
        let (method, target) = (self.head.method.of(&self.bytes), self.head.target.of(&self.bytes));
        format!("{} {}", method.escape_ascii(), masking.shown(target).escape_ascii())
    }
}

/// A client in words: address and port, or the address if the port is not known. Empty: it is on a UNIX socket.
#[must_use]
pub fn client_text(client: Option<SocketAddr>) -> String {
    match client {
        None => String::new(),
        Some(client) if client.port() == 0 => client.ip().to_string(),
        Some(client) => client.to_string(),
    }
}

/// The body of a request: read whole before the application is called, or read by it.
#[derive(Default)]
pub enum RequestBody {
    /// No body, or an empty one.
    #[default]
    Empty,
    /// In memory.
    Memory(Segments),
    /// In an unlinked temporary file, positioned at its start.
    File {
        /// The file.
        file: TemporaryFile,
        /// Its length in bytes.
        length: u64,
    },
    /// The application reads it while it arrives.
    Stream(BodyStream),
}

#[cfg(test)]
mod tests {
    use tailrace_http::query::QueryMasking;
    use tailrace_http::request_head::Span;

    use super::{Request, RequestBody};

    #[test]
    fn the_line_of_a_request_is_printable_whatever_the_client_sent() {
        let mut request = Request { bytes: b"GE\x1bT /\xff\n HTTP/1.1".to_vec(), ..Request::default() };
        request.head.method = Span { start: 0, end: 4 };
        request.head.target = Span { start: 5, end: 8 };
        assert_eq!(request.line(QueryMasking::Secrets), "GE\\x1bT /\\xff\\n");
    }

    #[test]
    fn a_new_request_has_no_body() {
        assert!(matches!(Request::default().body, RequestBody::Empty));
        assert_eq!(Request::default().line(QueryMasking::All), " ");
    }
}
