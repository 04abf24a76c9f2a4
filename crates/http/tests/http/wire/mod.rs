//! Reads wire bytes as a connection does. Each case runs three ways: whole, octet by octet, and with the next request's
//! bytes behind it.
#![allow(dead_code, unreachable_pub)]

use tailrace_http::body::{BodyDecoder, BodyStep};
use tailrace_http::framing::{RequestFraming, request_framing};
use tailrace_http::head::{HeadParser, HeadStep};
use tailrace_http::limits::{Limits, Refusal};
use tailrace_http::request_head::{RequestHead, Span};

/// The next request of the third way.
pub const NEXT: &[u8] = b"GET /next HTTP/1.1\r\nHost: next\r\n\r\n";

/// One request, read to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub bytes: Vec<u8>,
    pub head: RequestHead,
    pub framing: RequestFraming,
    pub body: Vec<u8>,
}

impl Request {
    pub fn text(&self, span: Span) -> &str {
        std::str::from_utf8(span.of(&self.bytes)).expect("ASCII")
    }

    pub fn host(&self) -> Option<&str> {
        self.framing.host.map(|span| self.text(span))
    }

    pub fn field_lines(&self) -> Vec<(&[u8], &[u8])> {
        self.head.fields.iter().map(|field| (field.name.of(&self.bytes), field.value.of(&self.bytes))).collect()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Request(Request),
    Incomplete,
    Refused(Refusal),
}

impl Outcome {
    pub fn request(self) -> Request {
        match self {
            Self::Request(request) => request,
            other => panic!("not served: {other:?}"),
        }
    }

    /// The status of a refusal, 0 for a request, 1 for one that is not complete.
    pub fn code(&self) -> u16 {
        match self {
            Self::Request(_) => 0,
            Self::Incomplete => 1,
            Self::Refused(refusal) => refusal.status,
        }
    }
}

/// Reads the first request of `bytes`, which arrive cut at `cuts`. Returns the outcome, and how many bytes had arrived
/// when it was known.
pub fn read(bytes: &[u8], cuts: impl IntoIterator<Item = usize>, limits: &Limits) -> (Outcome, usize) {
    let mut parser = HeadParser::default();
    let mut head = RequestHead::default();
    let mut body = Vec::new();
    let mut decoding: Option<(RequestFraming, BodyDecoder, usize)> = None;
    for end in cuts.into_iter().chain([bytes.len()]) {
        let arrived = &bytes[..end];
        if decoding.is_none() {
            match parser.parse(arrived, limits, &mut head) {
                HeadStep::NeedMore => continue,
                HeadStep::Refused(refusal) => {
                    let again = parser.parse(arrived, limits, &mut head);
                    assert_eq!(again, HeadStep::Refused(refusal), "a refusal stays");
                    return (Outcome::Refused(refusal), end);
                }
                HeadStep::Complete => {
                    assert_eq!(parser.parse(arrived, limits, &mut head), HeadStep::Complete, "complete stays");
                }
            }
            match request_framing(arrived, &head, limits) {
                Err(refusal) => return (Outcome::Refused(refusal), end),
                Ok(framing) => decoding = Some((framing, BodyDecoder::new(framing.body, limits.body), head.length)),
            }
        }
        let (framing, decoder, at) = decoding.as_mut().expect("set above");
        loop {
            let input = &arrived[*at..];
            match decoder.decode(input) {
                BodyStep::Data { consumed, data } => {
                    assert!(!data.is_empty() && data.end == consumed && consumed <= input.len());
                    body.extend_from_slice(&input[data]);
                    *at += consumed;
                }
                BodyStep::NeedMore { consumed } => {
                    assert_eq!(consumed, input.len());
                    *at = end;
                    break;
                }
                BodyStep::Done { consumed } => {
                    let bytes = arrived[..*at + consumed].to_vec();
                    return (Outcome::Request(Request { bytes, head, framing: *framing, body }), end);
                }
                BodyStep::Refused(refusal) => return (Outcome::Refused(refusal), end),
            }
        }
    }
    (Outcome::Incomplete, bytes.len())
}

/// Reads `bytes` in three ways, which must agree. A request must consume all of `bytes` and nothing of the next one.
pub fn read_three_ways(bytes: &[u8], limits: &Limits) -> Outcome {
    let shown = bytes[..bytes.len().min(200)].escape_ascii();
    let (whole, _) = read(bytes, [], limits);
    let (cut, _) = read(bytes, 1..bytes.len(), limits);
    assert_eq!(whole, cut, "octet by octet: {shown}");
    if whole != Outcome::Incomplete {
        let followed = [bytes, NEXT].concat();
        let (outcome, _) = read(&followed, [], limits);
        assert_eq!(whole, outcome, "with a request behind: {shown}");
        if let Outcome::Request(request) = &whole {
            assert_eq!(request.bytes.len(), bytes.len(), "takes all its bytes: {shown}");
            let next = read(&followed[request.bytes.len()..], [], limits).0.request();
            assert_eq!(next.text(next.head.target), "/next");
        }
    }
    whole
}

/// Runs `(what, bytes, expected code)` with the default limits; see [`Outcome::code`].
pub fn check(cases: &[(&str, &[u8], u16)]) {
    for (what, bytes, code) in cases {
        let outcome = read_three_ways(bytes, &Limits::default());
        assert_eq!(outcome.code(), *code, "{what}: {outcome:?}");
    }
}

/// The code of a request that is served; see [`Outcome::code`].
pub const OK: u16 = 0;
/// The code of a request that is valid so far and not complete.
pub const MORE: u16 = 1;

/// The status of the refusal, and how many octets had to arrive before it.
pub fn refused_after(bytes: &[u8], limits: &Limits) -> (u16, usize) {
    let (outcome, arrived) = read(bytes, 1..bytes.len(), limits);
    (outcome.code(), arrived)
}
