//! What the bytes of a client mean: the seam between the states of a connection and the format of its requests.
//!
//! A connection reads a head until it is complete, then a body by a decoder. Which format a head has is a property of
//! the listener that accepted the connection. Any thread; an implementation has no state of its own.

use tailrace_http::body::BodyDecoder;
use tailrace_http::framing::{self, BodyLength, RequestFacts, RequestFraming};
use tailrace_http::head::{HeadParser, HeadStep};
use tailrace_http::limits::{Limits, Refusal};
use tailrace_http::request_head::RequestHead;
use tailrace_http::trust::Trust;
use tailrace_http::uwsgi;

use crate::request::Request;
use crate::request::origin::Scheme;

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
    /// gives its fields the names of HTTP. `request` has the bytes, the head and the endpoints of the connection.
    ///
    /// # Errors
    /// The client may not say that.
    fn admit(&self, request: &mut Request, trust: &Trust) -> Result<(), NotAdmitted>;

    /// How long the body behind a complete head is, and whether another request may follow it.
    ///
    /// # Errors
    /// The head is ambiguous or malformed, or asks for what this server refuses.
    fn framing(&self, bytes: &[u8], head: &RequestHead, limits: &Limits) -> Result<RequestFraming, Refusal>;

    /// A decoder for a body of this length, which may have `most` bytes.
    fn body(&self, length: BodyLength, most: u64) -> BodyDecoder;

    /// What the framing of the response depends on.
    fn facts(&self, bytes: &[u8], head: &RequestHead, framing: &RequestFraming) -> RequestFacts;

    /// The same for a request that is refused; `head` may be incomplete.
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

    fn body(&self, length: BodyLength, most: u64) -> BodyDecoder {
        BodyDecoder::new(length, most)
    }

    fn facts(&self, bytes: &[u8], head: &RequestHead, framing: &RequestFraming) -> RequestFacts {
        RequestFacts::of(bytes, head, framing)
    }

    fn facts_of_refused(&self, bytes: &[u8], head: &RequestHead) -> RequestFacts {
        RequestFacts::of_refused(bytes, head)
    }
}

/// uwsgi packets. One request, and its response, use a connection.
pub(crate) struct Uwsgi;

impl Protocol for Uwsgi {
    fn parse_head(&self, _parser: &mut HeadParser, bytes: &[u8], limits: &Limits, head: &mut RequestHead) -> HeadStep {
        uwsgi::parse(bytes, limits, head)
    }

    fn has_started(&self, _parser: &HeadParser) -> bool {
        true
    }

    fn admit(&self, request: &mut Request, trust: &Trust) -> Result<(), NotAdmitted> {
        let Request { bytes, head, endpoints, origin, .. } = request;
        // Its variables are believed, REMOTE_USER for one.
        if !trust.is_trusted(endpoints.peer) {
            return Err(NotAdmitted::NotTrusted(NOT_TRUSTED));
        }
        uwsgi::name_fields(bytes, head);
        if uwsgi::variable_of(bytes, head, b"REMOTE_ADDR").is_some() {
            endpoints.peer = uwsgi::client(bytes, head).map_err(NotAdmitted::Malformed)?;
        }
        origin.scheme = uwsgi::is_https(bytes, head).map(|is| if is { Scheme::Https } else { Scheme::Http });
        Ok(())
    }

    fn framing(&self, bytes: &[u8], head: &RequestHead, limits: &Limits) -> Result<RequestFraming, Refusal> {
        framing::packet_framing(bytes, head, limits)
    }

    fn body(&self, length: BodyLength, most: u64) -> BodyDecoder {
        BodyDecoder::new(length, most)
    }

    fn facts(&self, bytes: &[u8], head: &RequestHead, _framing: &RequestFraming) -> RequestFacts {
        RequestFacts::of_packet(bytes, head)
    }

    fn facts_of_refused(&self, bytes: &[u8], head: &RequestHead) -> RequestFacts {
        RequestFacts::of_packet(bytes, head)
    }
}
