//! Bytes to a request head: spans into the caller's buffer. Nothing is copied, and only the list of fields is
//! allocated.
//!
//! Invariants: each octet is read once however the bytes arrive (except the eight of the version), so the time for a
//! head that comes octet by octet is linear in its length. The result does not depend on how the bytes were cut. A head
//! is refused at the first octet that no valid head can have. Thread: whichever owns the connection.

use crate::limits::{Exceeded, Limits, Refusal};
use crate::octets::{blank_end, is_blank, target_end, token_end, value_end};
use crate::request_head::{Field, RequestHead, Span, Version};
use crate::target;

/// A client may send this many empty lines before a request line (RFC 9112 section 2.2 asks for at least one).
const EMPTY_LINES: u8 = 4;
/// Octets of a method at most. No registered method has more than 17.
pub(crate) const LARGEST_METHOD: usize = 64;
/// Keeps every offset inside a [`Span`], whatever the limits say.
const LARGEST_LIMIT: usize = 1 << 30;

const EMPTY: Refusal = Refusal::new(400, "There are too many empty lines before the request line.");
const TLS: Refusal = Refusal::new(400, "This looks like TLS, but this port serves plain HTTP: use an http:// address.");
const UWSGI: Refusal = Refusal::new(
    400,
    "This looks like the uwsgi protocol, but this address speaks HTTP: proxy to http://, or bind uwsgi://.",
);
const METHOD: Refusal = Refusal::new(400, "The request line must start with a method and one space.");
pub(crate) const LONG_METHOD: Refusal = Refusal::new(501, "The method is too long.");
pub(crate) const TARGET: Refusal =
    Refusal::new(400, "The request target must not have control characters or a fragment.");
pub(crate) const NON_ASCII: Refusal =
    Refusal::new(400, "The request target must be ASCII: percent-encode other characters.");
const SPACES: Refusal = Refusal::new(400, "The request target must have exactly one space on each side.");
const SIMPLE: Refusal = Refusal::new(400, "The request line must end with the HTTP version.");
pub(crate) const LONG_LINE: Refusal = Refusal::beyond(414, "The request line is too long.", Exceeded::RequestLine);
const VERSION: Refusal = Refusal::new(400, "The request line must end with HTTP/1.0 or HTTP/1.1.");
const OTHER_VERSION: Refusal = Refusal::new(505, "This server supports HTTP/1.0 and HTTP/1.1.");
const BARE_CR: Refusal = Refusal::new(400, "A carriage return must be followed by a line feed.");
const BARE_LF: Refusal = Refusal::new(400, "A line must end with a carriage return and a line feed.");
const FOLDED: Refusal = Refusal::new(400, "A field line must not start with a space or a tab.");
const NAME: Refusal = Refusal::new(400, "A field name must be a token, immediately followed by a colon.");
pub(crate) const VALUE: Refusal = Refusal::new(400, "A field value must not have control characters.");
/// The header fields are longer than [`Limits::header_bytes`].
pub(crate) const LONG_FIELDS: Refusal = Refusal::beyond(431, "The header fields are too large.", Exceeded::HeaderBytes);
pub(crate) const MANY_FIELDS: Refusal = Refusal::new(431, "There are too many header fields.");

/// Parses one head from bytes that arrive in any pieces.
#[derive(Clone, Debug, Default)]
pub struct HeadParser {
    phase: HeadElement,
    /// Offset of the next octet to read.
    at: usize,
    /// Offset at which the element that is being read starts.
    mark: usize,
    /// Offset at which the request line starts; once that is complete, the offset of the first field line.
    section: usize,
    /// The name of the field line that is being read.
    name: Span,
    /// Empty lines before the request line.
    empty_lines: u8,
    /// Set once; each further call returns the same.
    refusal: Option<Refusal>,
}

/// The element that the next octet belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HeadElement {
    #[default]
    EmptyLine,
    EmptyLineFeed,
    Method,
    Target,
    Version,
    RequestLineEnd,
    RequestLineFeed,
    FieldLine,
    Name,
    Blank,
    Value,
    FieldLineFeed,
    LastFeed,
    Complete,
}

/// What [`HeadParser::parse`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadStep {
    /// All bytes so far are valid, and the head is not complete.
    NeedMore,
    /// The head is complete; `head.length` bytes belong to it.
    Complete,
    /// The head is invalid or beyond a limit. `head` holds what was read before the fault.
    Refused(Refusal),
}

impl HeadParser {
    /// Continues where the last call stopped. `bytes` starts at the first byte of this head at each call, and holds all
    /// that has arrived since; `head` is the same at each call, and empty at the first.
    pub fn parse(&mut self, bytes: &[u8], limits: &Limits, head: &mut RequestHead) -> HeadStep {
        let step = self.refusal.map_or_else(|| self.advance(bytes, limits, head), Err);
        self.refusal = step.err();
        step.unwrap_or_else(HeadStep::Refused)
    }

    fn advance(&mut self, bytes: &[u8], limits: &Limits, head: &mut RequestHead) -> Result<HeadStep, Refusal> {
        match self.phase {
            HeadElement::Complete => Ok(HeadStep::Complete),
            HeadElement::FieldLine
            | HeadElement::Name
            | HeadElement::Blank
            | HeadElement::Value
            | HeadElement::FieldLineFeed
            | HeadElement::LastFeed => self.field_lines(bytes, limits, head),
            _ => match self.request_line(bytes, limits, head)? {
                HeadStep::Complete => self.field_lines(bytes, limits, head),
                step => Ok(step),
            },
        }
    }

    /// Prepares the parser for the next head.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// True once a byte of the request line was read (empty lines before it do not count).
    #[must_use]
    pub fn started(&self) -> bool {
        !matches!(self.phase, HeadElement::EmptyLine | HeadElement::EmptyLineFeed)
    }

    fn enter(&mut self, phase: HeadElement, at: usize) {
        self.phase = phase;
        self.at = at;
        self.mark = at;
    }

    /// Reads the request line. `Complete`: the request line is, not the whole head.
    fn request_line(&mut self, bytes: &[u8], limits: &Limits, head: &mut RequestHead) -> Result<HeadStep, Refusal> {
        let limit = limits.request_line.min(LARGEST_LIMIT);
        while let Some(&byte) = bytes.get(self.at) {
            match self.phase {
                HeadElement::EmptyLine if byte == b'\r' => self.enter(HeadElement::EmptyLineFeed, self.at + 1),
                HeadElement::EmptyLine => {
                    self.section = self.at;
                    self.enter(HeadElement::Method, self.at);
                }
                HeadElement::EmptyLineFeed => {
                    expect_line_feed(byte)?;
                    self.empty_lines += 1;
                    if self.empty_lines > EMPTY_LINES {
                        return Err(EMPTY);
                    }
                    self.enter(HeadElement::EmptyLine, self.at + 1);
                }
                HeadElement::Method => {
                    self.at = token_end(bytes, self.at);
                    if self.at - self.mark > LARGEST_METHOD {
                        return Err(LONG_METHOD);
                    }
                    match bytes.get(self.at) {
                        None => break,
                        Some(b' ') if self.at > self.mark => {
                            head.method = Span::new(self.mark, self.at);
                            self.enter(HeadElement::Target, self.at + 1);
                        }
                        // The first octet of every TLS connection (RFC 8446 section 5.1).
                        Some(0x16) if self.at == 0 => return Err(TLS),
                        // The first octet of every uwsgi packet of a WSGI request.
                        Some(0) if self.at == 0 => return Err(UWSGI),
                        Some(b'\n') => return Err(BARE_LF),
                        Some(_) => return Err(METHOD),
                    }
                }
                HeadElement::Target => {
                    // One octet more than the limit, to tell a line that is too long from one that ends at the limit.
                    let window = self.section + limit + 1;
                    self.at = target_end(&bytes[..bytes.len().min(window)], self.at);
                    if self.at >= window {
                        return Err(LONG_LINE);
                    }
                    match bytes.get(self.at) {
                        None => break,
                        Some(b' ') if self.at > self.mark => {
                            head.target = Span::new(self.mark, self.at);
                            self.enter(HeadElement::Version, self.at + 1);
                        }
                        Some(b' ') => return Err(SPACES),
                        Some(b'\r' | b'\n') => return Err(SIMPLE),
                        Some(0x80..) => return Err(NON_ASCII),
                        Some(_) => return Err(TARGET),
                    }
                }
                HeadElement::Version => {
                    let Some(version) = version(&bytes[self.at..])? else {
                        break;
                    };
                    head.version = version;
                    // After the version, so that "PRI * HTTP/2.0" is refused for its version and not for its target.
                    target::classify(bytes, head)?;
                    self.enter(HeadElement::RequestLineEnd, self.at + VERSION_LENGTH);
                    if self.at - self.section > limit {
                        return Err(LONG_LINE);
                    }
                }
                HeadElement::RequestLineEnd => match byte {
                    b'\r' => self.enter(HeadElement::RequestLineFeed, self.at + 1),
                    b'\n' => return Err(BARE_LF),
                    _ => return Err(VERSION),
                },
                HeadElement::RequestLineFeed => {
                    expect_line_feed(byte)?;
                    self.enter(HeadElement::FieldLine, self.at + 1);
                    self.section = self.at;
                    return Ok(HeadStep::Complete);
                }
                _ => return Ok(HeadStep::Complete),
            }
        }
        Ok(HeadStep::NeedMore)
    }

    fn field_lines(&mut self, bytes: &[u8], limits: &Limits, head: &mut RequestHead) -> Result<HeadStep, Refusal> {
        // The offset after the last octet that field lines may use.
        let window = self.section + limits.header_bytes.min(LARGEST_LIMIT);
        let seen = &bytes[..bytes.len().min(window)];
        let (mut phase, mut at, mut mark) = (self.phase, self.at, self.mark);
        while let Some(&byte) = bytes.get(at) {
            match phase {
                HeadElement::FieldLine => match byte {
                    b'\r' => (phase, at) = (HeadElement::LastFeed, at + 1),
                    b'\n' => return Err(BARE_LF),
                    b' ' | b'\t' => return Err(FOLDED),
                    _ if head.fields.len() >= limits.header_count => return Err(MANY_FIELDS),
                    _ => (phase, mark) = (HeadElement::Name, at),
                },
                HeadElement::Name => {
                    at = token_end(seen, at);
                    match seen.get(at) {
                        Some(b':') if at > mark => {
                            self.name = Span::new(mark, at);
                            (phase, at) = (HeadElement::Blank, at + 1);
                        }
                        Some(_) => return Err(NAME),
                        None => break,
                    }
                }
                HeadElement::Blank => {
                    at = blank_end(seen, at);
                    if at >= seen.len() {
                        break;
                    }
                    (phase, mark) = (HeadElement::Value, at);
                }
                HeadElement::Value => {
                    at = value_end(seen, at);
                    match seen.get(at) {
                        Some(b'\r') => {
                            let text = &bytes[mark..at];
                            let length = text.iter().rposition(|&byte| !is_blank(byte)).map_or(0, |last| last + 1);
                            let value = Span::new(mark, mark + length);
                            head.fields.push(Field { name: self.name, value });
                            (phase, at) = (HeadElement::FieldLineFeed, at + 1);
                        }
                        Some(b'\n') => return Err(BARE_LF),
                        Some(_) => return Err(VALUE),
                        None => break,
                    }
                }
                HeadElement::FieldLineFeed => {
                    expect_line_feed(byte)?;
                    if at >= window {
                        return Err(LONG_FIELDS);
                    }
                    (phase, at) = (HeadElement::FieldLine, at + 1);
                }
                HeadElement::LastFeed => {
                    expect_line_feed(byte)?;
                    self.enter(HeadElement::Complete, at + 1);
                    head.length = self.at;
                    return Ok(HeadStep::Complete);
                }
                _ => return Ok(HeadStep::Complete),
            }
        }
        // The line that is being read has reached the limit of all lines together.
        if at >= window && matches!(phase, HeadElement::Name | HeadElement::Blank | HeadElement::Value) {
            return Err(LONG_FIELDS);
        }
        (self.phase, self.at, self.mark) = (phase, at, mark);
        Ok(HeadStep::NeedMore)
    }
}

fn expect_line_feed(byte: u8) -> Result<(), Refusal> {
    if byte == b'\n' { Ok(()) } else { Err(BARE_CR) }
}

const VERSION_LENGTH: usize = 8;

/// Reads "HTTP/1.1"; `None` when `bytes` is the start of a valid version that is not complete.
fn version(bytes: &[u8]) -> Result<Option<Version>, Refusal> {
    match bytes {
        // First, since nearly all requests have it.
        _ if bytes.starts_with(b"HTTP/1.1") => Ok(Some(Version::Http11)),
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0', ..] => Ok(Some(Version::Http10)),
        // RFC 9110 section 2.5: a higher minor version is processed as the highest one known.
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9', ..] => Ok(Some(Version::Http11)),
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9', ..] => Err(OTHER_VERSION),
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.'] | [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9'] => Ok(None),
        [b' ', ..] => Err(SPACES),
        _ if b"HTTP/".starts_with(bytes) => Ok(None),
        _ => Err(VERSION),
    }
}
