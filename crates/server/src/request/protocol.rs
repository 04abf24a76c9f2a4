//! What the bytes of a connection mean, in both directions: the seam between connections and responses on one side, and
//! the format of their bytes on the other.
//!
//! A connection reads a head until it is complete, then a body by a decoder. A response is a head, then a body by an
//! encoder, which is a value: no block of a body takes a dynamic call. Which format a connection has is a property of
//! the listener that accepted it. Any thread; an implementation has no state of its own.

use tailrace_http::body::BodyDecoder;
use tailrace_http::encode::{self, OwnFields, ResponseHead};
use tailrace_http::framing::{self, BodyLength, RequestFacts, RequestFraming, ResponseFraming};
use tailrace_http::head::{HeadParser, HeadStep};
use tailrace_http::limits::{Limits, Refusal};
use tailrace_http::request_head::RequestHead;
use tailrace_http::trust::Trust;
use tailrace_http::uwsgi;

use crate::request::Request;
use crate::request::peer::Scheme;

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

/// A format of connections.
pub(crate) trait Protocol: Requests + Responses {}

impl<P: Requests + Responses> Protocol for P {}

/// A format of requests.
pub(crate) trait Requests: Send + Sync {
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

    /// A decoder for a body of this length, which may have `most` bytes.
    fn body(&self, length: BodyLength, most: u64) -> BodyDecoder;

    /// What the framing of the response depends on.
    fn facts(&self, bytes: &[u8], head: &RequestHead, framing: &RequestFraming) -> RequestFacts;

    /// The same for a request that is refused; `head` may be incomplete.
    fn facts_of_refused(&self, bytes: &[u8], head: &RequestHead) -> RequestFacts;
}

/// A format of responses. These methods are those of HTTP/1, whose heads are text.
pub(crate) trait Responses: Send + Sync {
    /// Completes a head, appends it to `out`, and returns how its body is sent. `total`: the length of the body, if that
    /// is known.
    fn head(
        &self,
        head: &mut ResponseHead,
        facts: RequestFacts,
        total: Option<u64>,
        own: OwnFields<'_>,
        out: &mut Vec<u8>,
    ) -> ResponseFraming {
        let framing = head.finish(facts, total, own);
        out.extend_from_slice(head.bytes());
        framing
    }

    /// The bytes of a complete head that has not been sent, now that the length of its body has become known. They are
    /// at most [`encode::LENGTH_ROOM`] longer than before, and the body is not framed.
    fn head_with_length<'h>(&self, head: &'h mut ResponseHead, length: u64) -> &'h [u8] {
        head.state_length(length);
        head.bytes()
    }

    /// Appends an error page with its head to `out`; returns the length of its body. `head` becomes that of the page.
    /// `page`: its status, and a sentence in HTML.
    fn error_page(
        &self,
        head: &mut ResponseHead,
        page: (u16, &str),
        facts: RequestFacts,
        own: OwnFields<'_>,
        out: &mut Vec<u8>,
    ) -> u64 {
        encode::error_response(head, page.0, page.1, facts, own, out)
    }

    /// The interim response that a client awaits before it sends its body.
    fn interim_continue(&self) -> &'static [u8] {
        encode::CONTINUE
    }
}

/// HTTP/1.0 and HTTP/1.1 (RFC 9112).
pub(crate) struct Http1;

impl Responses for Http1 {}

impl Requests for Http1 {
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

/// Heads as in HTTP/1.0, for the proxy to read; [`RequestFacts`] says what it adds itself.
impl Responses for Uwsgi {}

impl Requests for Uwsgi {
    fn parse_head(&self, _parser: &mut HeadParser, bytes: &[u8], limits: &Limits, head: &mut RequestHead) -> HeadStep {
        uwsgi::parse(bytes, limits, head)
    }

    fn has_started(&self, _parser: &HeadParser) -> bool {
        true
    }

    fn admit(&self, request: &mut Request, trust: &Trust) -> Result<(), NotAdmitted> {
        let Request { bytes, head, peer, .. } = request;
        // Its variables are believed, REMOTE_USER for one.
        if !trust.is_trusted(peer.client) {
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
