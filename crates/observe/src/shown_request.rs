//! What is shown of a request: borrowed from the request itself, without its body and its connection.

use tailrace_http::forwarded::Scheme;
use tailrace_http::identity::{Traced, trace_of};
use tailrace_http::peer::Peer;
use tailrace_http::request_head::RequestHead;

/// A request without its body and its connection.
#[derive(Clone, Copy)]
pub struct ShownRequest<'a> {
    /// The bytes of the head, to which its spans refer.
    pub bytes: &'a [u8],
    /// The parsed head.
    pub head: &'a RequestHead,
    /// Where it comes from.
    pub peer: &'a Peer,
    /// Its id; empty: it has none.
    pub id: &'a [u8],
    /// Its place in a trace. `None`: no spans are made of it.
    pub traced: Option<Traced>,
    /// The connection is encrypted.
    pub is_encrypted: bool,
}

impl<'a> ShownRequest<'a> {
    /// The method.
    pub fn method(&self) -> &'a [u8] {
        self.head.method.of(self.bytes)
    }

    /// The target as it was sent.
    pub fn target(&self) -> &'a [u8] {
        self.head.target.of(self.bytes)
    }

    /// The query of the target; empty: it has none.
    pub fn query(&self) -> &'a [u8] {
        self.head.query.map_or(&[], |query| query.of(self.bytes))
    }

    /// A field; empty: it has none of this name.
    pub fn field(&self, name: &[u8]) -> &'a [u8] {
        let found = self.head.fields.iter().find(|field| field.name.of(self.bytes).eq_ignore_ascii_case(name));
        found.map_or(&[], |field| field.value.of(self.bytes))
    }

    /// The trace to which it belongs, as its only `traceparent` states it.
    pub fn trace(&self) -> Option<&'a [u8]> {
        trace_of(self.bytes, &self.head.fields)
    }

    /// The scheme of the client's URL. `None`: neither a proxy nor an encrypted connection says.
    pub fn scheme(&self) -> Option<Scheme> {
        self.peer.scheme.or(self.is_encrypted.then_some(Scheme::Https))
    }
}

/// A request for tests, which owns what is shown of it.
#[cfg(test)]
pub(crate) mod testing {
    use tailrace_http::identity::Traced;
    use tailrace_http::peer::Peer;
    use tailrace_http::request_head::{RequestHead, Span};

    use super::ShownRequest;

    /// See [`ShownRequest`].
    #[derive(Default)]
    pub(crate) struct Request {
        pub(crate) bytes: Vec<u8>,
        pub(crate) head: RequestHead,
        pub(crate) peer: Peer,
        pub(crate) id: Span,
        pub(crate) traced: Option<Traced>,
    }

    impl Request {
        pub(crate) fn shown(&self) -> ShownRequest<'_> {
            let (bytes, head, peer) = (&self.bytes[..], &self.head, &self.peer);
            ShownRequest { bytes, head, peer, id: self.id.of(bytes), traced: self.traced, is_encrypted: false }
        }
    }
}
