//! What the bytes of a request mean: the seam between connections and the formats of requests.
//!
//! A connection reads a head until it is complete, then a body by a decoder. A response has the form of HTTP/1 in each
//! format, and [`RequestFacts`] says in which it is sent. Which format a connection has is a property of the listener that
//! accepted it. Any thread; an implementation has no state of its own.

use tailrace_http::framing::{self, RequestFacts, RequestFraming};
use tailrace_http::head::{HeadParser, HeadStep};
use tailrace_http::limits::{Limits, Refusal};
use tailrace_http::request_head::RequestHead;
use tailrace_http::trust::Trust;
use tailrace_http::uwsgi;

use crate::request::Request;
use tailrace_http::forwarded::Scheme;

const NOT_TRUSTED: Refusal =
    Refusal::new(403, "Only trusted proxies may send uwsgi requests here: name this one in --trusted-proxies.");

/// Why a complete head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotAdmitted {
    /// Only trusted peers may send requests in this format.
    NotTrusted(Refusal),
    /// What it says beside what HTTP has is malformed.
    Malformed(Refusal),
}

/// A format of requests.
pub(crate) trait Protocol: Send + Sync {
    /// Continues to parse a head. `bytes` is all of it that has arrived; `parser` holds how far it was parsed before.
    /// The result does not depend on the parts in which the head arrives.
    fn parse_head(&self, parser: &mut HeadParser, bytes: &[u8], limits: &Limits, head: &mut RequestHead) -> HeadStep;

    /// True once a parser has read more than what may stand in front of a request.
    fn has_started(&self, parser: &HeadParser) -> bool;

    /// Takes a complete head on: reads what it says beside what HTTP has, which replaces what the connection says, and
    /// gives its fields the names of HTTP. `request` has the bytes, the head and the peer of the connection.
    ///
    /// # Errors
    /// The client may not say that.
    fn admit(&self, request: &mut Request, trust: &Trust) -> Result<(), NotAdmitted>;

    /// How long the body behind a complete head is, and whether another request may follow it.
    ///
    /// # Errors
    /// The head is ambiguous or malformed, or asks for what this server refuses.
    fn framing(&self, bytes: &[u8], head: &RequestHead, limits: &Limits) -> Result<RequestFraming, Refusal>;

    /// What the framing of the response depends on.
    fn facts(&self, bytes: &[u8], head: &RequestHead, framing: &RequestFraming) -> RequestFacts;

    /// What the response to a refused request depends on; `head` may be incomplete.
    fn facts_of_refused(&self, bytes: &[u8], head: &RequestHead) -> RequestFacts;
}

/// HTTP/1.0 and HTTP/1.1 (RFC 9112).
pub(crate) struct Http1;

impl Protocol for Http1 {
    fn parse_head(&self, parser: &mut HeadParser, bytes: &[u8], limits: &Limits, head: &mut RequestHead) -> HeadStep {
        parser.parse(bytes, limits, head)
    }

    fn has_started(&self, parser: &HeadParser) -> bool {
        parser.started()
    }

    fn admit(&self, _request: &mut Request, _trust: &Trust) -> Result<(), NotAdmitted> {
        Ok(())
    }

    fn framing(&self, bytes: &[u8], head: &RequestHead, limits: &Limits) -> Result<RequestFraming, Refusal> {
        framing::request_framing(bytes, head, limits)
    }

    fn facts(&self, bytes: &[u8], head: &RequestHead, framing: &RequestFraming) -> RequestFacts {
        RequestFacts::of(bytes, head, framing)
    }

    fn facts_of_refused(&self, bytes: &[u8], head: &RequestHead) -> RequestFacts {
        RequestFacts::of_refused(bytes, head)
    }
}

/// uwsgi packets. One request, and its response, use a connection.
pub(crate) struct Uwsgi {
    /// Only processes of the server reach the address.
    pub(crate) is_internal: bool,
}

impl Protocol for Uwsgi {
    fn parse_head(&self, _parser: &mut HeadParser, bytes: &[u8], limits: &Limits, head: &mut RequestHead) -> HeadStep {
        uwsgi::parse(bytes, limits, head)
    }

    fn has_started(&self, _parser: &HeadParser) -> bool {
        true
    }

    fn admit(&self, request: &mut Request, trust: &Trust) -> Result<(), NotAdmitted> {
        let Request { bytes, head, peer, .. } = request;
        // Its variables are believed, REMOTE_USER for one.
        if !self.is_internal && !trust.is_trusted(peer.client) {
            return Err(NotAdmitted::NotTrusted(NOT_TRUSTED));
        }
        uwsgi::name_fields(bytes, head);
        if uwsgi::variable_of(bytes, head, b"REMOTE_ADDR").is_some() {
            peer.client = uwsgi::client(bytes, head).map_err(NotAdmitted::Malformed)?;
        }
        peer.scheme = uwsgi::is_https(bytes, head).map(|is| if is { Scheme::Https } else { Scheme::Http });
        Ok(())
    }

    fn framing(&self, bytes: &[u8], head: &RequestHead, limits: &Limits) -> Result<RequestFraming, Refusal> {
        framing::packet_framing(bytes, head, limits)
    }

    fn facts(&self, bytes: &[u8], head: &RequestHead, _framing: &RequestFraming) -> RequestFacts {
        RequestFacts::of_packet(bytes, head)
    }

    fn facts_of_refused(&self, bytes: &[u8], head: &RequestHead) -> RequestFacts {
        RequestFacts::of_packet(bytes, head)
    }
}
