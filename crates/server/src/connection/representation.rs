//! Sending a representation: all of it, parts of it, or what stands for it, as conditions and ranges of the request
//! decide (RFC 9110 sections 13 and 14). Static files have heads of their own; a file of the application's is sent with
//! the fields of the application, by the validators among them.
//!
//! Called by whoever has the exchange. Nothing here blocks.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tailrace_http::conditional::{Validators, seconds, validator_time};
use tailrace_http::encode::{ResponseHead, begin_error};
use tailrace_http::range::{Multipart, content_range};
use tailrace_http::selection::{Selection, select};
use tailrace_os::clock::wall_seconds;

use crate::connection::exchange::Exchange;
use crate::response::payload::FileSource;
use crate::response::payload::Payload;
use crate::response::producer::{Position, Sent};

/// Fields that describe the representation, and so nothing else that is sent in its place.
const DESCRIBING: [&str; 15] = [
    "Content-Type",
    "Content-Encoding",
    "Content-Language",
    "Content-Location",
    "Content-Range",
    "Content-Disposition",
    "Content-MD5",
    "Content-Digest",
    "Repr-Digest",
    "Digest",
    "ETag",
    "Last-Modified",
    "Cache-Control",
    "Expires",
    "Accept-Ranges",
];

/// A representation: the heads of its responses, and its bytes.
pub trait Representation {
    /// Its length in bytes.
    fn length(&self) -> u64;

    /// Its media type, for the parts of a response with several. `None`: unknown.
    fn media_type(&self, exchange: &mut Exchange) -> Option<String>;

    /// Fills in the head of a response. `None`: there is no memory for it.
    fn begin(&self, exchange: &mut Exchange, content: Content) -> Option<()>;

    /// Its bytes.
    fn bytes(&self) -> &dyn Bytes;
}

/// What of a representation a response has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// All of it, with its Content-Length.
    Whole,
    /// A part; without Content-Length and Content-Range.
    Part,
    /// Several parts; without Content-Length and Content-Type.
    Parts,
    /// None: the client has it.
    NotModified,
}

/// Bytes that can be sent in part.
pub trait Bytes {
    /// Sends `length` bytes from `offset`.
    fn send(&self, exchange: &mut Exchange, offset: u64, length: u64, position: Position) -> Sent;
}

impl Bytes for Arc<Vec<u8>> {
    fn send(&self, exchange: &mut Exchange, offset: u64, length: u64, position: Position) -> Sent {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = usize::try_from(offset.saturating_add(length)).unwrap_or(usize::MAX);
        send_bytes(exchange, self, start, end, position)
    }
}

/// The bytes of a file from this offset on.
struct FromOffset(Arc<dyn FileSource>, u64);

impl Bytes for FromOffset {
    fn send(&self, exchange: &mut Exchange, offset: u64, length: u64, position: Position) -> Sent {
        exchange.response_mut().push_source(self.0.clone(), self.1 + offset, length, position)
    }
}

/// Responds with what was selected of a representation. `None`: there is no memory for the head.
pub fn respond(exchange: &mut Exchange, selection: Selection, representation: &impl Representation) -> Option<Sent> {
    let length = representation.length();
    let bytes = representation.bytes();
    match selection {
        Selection::Whole => {
            representation.begin(exchange, Content::Whole)?;
            return Some(send_range(exchange, bytes, 0, length, Position::Last));
        }
        Selection::NotModified => representation.begin(exchange, Content::NotModified)?,
        Selection::Failed => send_error(exchange, 412, "The file has changed.", &[]),
        Selection::Unsatisfiable => {
            let complete = format!("bytes */{length}");
            send_error(exchange, 416, "The file has no such part.", &[("Content-Range", &complete)]);
        }
        Selection::Parts(parts) => {
            if let [part] = parts.as_slice() {
                representation.begin(exchange, Content::Part)?;
                add(exchange, "Content-Range", &content_range(*part, length))?;
                add(exchange, "Content-Length", &part.length().to_string())?;
                return Some(send_range(exchange, bytes, part.first, part.length(), Position::Last));
            }
            let media_type = representation.media_type(exchange);
            let multipart = Multipart::new(&parts, length, media_type.as_deref());
            representation.begin(exchange, Content::Parts)?;
            add(exchange, "Content-Type", &multipart.media_type)?;
            add(exchange, "Content-Length", &multipart.length.to_string())?;
            for (header, part) in multipart.headers.into_iter().zip(parts) {
                send_bytes(exchange, &Arc::new(header.into_bytes()), 0, usize::MAX, Position::More);
                send_range(exchange, bytes, part.first, part.length(), Position::More);
            }
            send_bytes(exchange, &Arc::new(multipart.end.into_bytes()), 0, usize::MAX, Position::More);
        }
    }
    Some(Sent::BodyComplete)
}

/// Sends a part of these bytes, unless the request is HEAD.
fn send_range(exchange: &mut Exchange, bytes: &dyn Bytes, offset: u64, length: u64, position: Position) -> Sent {
    if length == 0 || is_head(exchange) { Sent::BodyComplete } else { bytes.send(exchange, offset, length, position) }
}

/// Sends a file of the application's from `offset`, as [`ResponseStream::push_file`](crate::ResponseStream::push_file) with [`Position::Last`] does. If the
/// head has validators and the file is the representation, conditions and ranges of the request are applied.
pub fn send_file(exchange: &mut Exchange, file: OwnedFd, offset: u64, length: u64) -> Sent {
    let file: Arc<dyn FileSource> = Arc::new(file);
    match whole_length(exchange, length) {
        Some(length) => send(exchange, &FromOffset(file, offset), length),
        None => exchange.response_mut().push_source(file, offset, length, Position::Last),
    }
}

/// Sends bytes in memory, or the parts of them that the client wants.
pub fn send_memory(exchange: &mut Exchange, bytes: &Arc<Vec<u8>>) -> Sent {
    match whole_length(exchange, bytes.len() as u64) {
        Some(length) => send(exchange, bytes, length),
        None => share(exchange, bytes, 0, bytes.len(), Position::Last),
    }
}

/// The length of the representation if conditions and ranges are to be applied to the application's response, of whose
/// body there are so many bytes.
fn whole_length(exchange: &mut Exchange, available: u64) -> Option<u64> {
    if exchange.response().head_sent() || exchange.is_delegated() {
        return None;
    }
    let head = exchange.response_mut().head();
    let is_identified = head.only(b"ETag").is_some() || head.only(b"Last-Modified").is_some();
    if head.status_code() != 200 || !is_identified {
        return None;
    }
    // The application has chosen a part itself, or a coding, which some do without another entity tag.
    let is_chosen = head.has(b"Content-Range") || head.has(b"Content-Encoding");
    let is_parts = head.only(b"Content-Type").is_some_and(|value| {
        let start = value.get(..b"multipart/byteranges".len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(b"multipart/byteranges"))
    });
    let length = head.declared_length().unwrap_or(available);
    // With less than was promised the connection is broken.
    (!is_chosen && !is_parts && length <= available && is_read(exchange)).then_some(length)
}

/// Sends a representation of `length` bytes, whose fields are in the head. The Content-Length is not. What follows is
/// discarded.
pub fn send(exchange: &mut Exchange, bytes: &dyn Bytes, length: u64) -> Sent {
    let head = std::mem::take(exchange.response_mut().head());
    let selection = selection(exchange, &head, length);
    *exchange.response_mut().head() = head;
    respond(exchange, selection, &OfApplication { bytes, length }).unwrap_or(Sent::NoMemory)
}

/// What is sent of a representation with these fields.
fn selection(exchange: &Exchange, head: &ResponseHead, length: u64) -> Selection {
    let request = exchange.request();
    let modified = head.only(b"Last-Modified").and_then(seconds);
    let modified = modified.and_then(|modified| validator_time(modified, wall_seconds()));
    let validators = Validators { etag: head.only(b"ETag"), modified };
    match select(&request.head, &request.bytes, validators, length) {
        Selection::Parts(_) | Selection::Unsatisfiable if refuses_ranges(head) => Selection::Whole,
        selection => selection,
    }
}

fn refuses_ranges(head: &ResponseHead) -> bool {
    head.only(b"Accept-Ranges").is_some_and(|value| !value.eq_ignore_ascii_case(b"bytes"))
}

/// A representation that the application has given, with its fields in the head of the exchange.
struct OfApplication<'a> {
    bytes: &'a dyn Bytes,
    length: u64,
}

impl Representation for OfApplication<'_> {
    fn length(&self) -> u64 {
        self.length
    }

    fn media_type(&self, exchange: &mut Exchange) -> Option<String> {
        let value = exchange.response_mut().head().only(b"Content-Type")?;
        Some(value.iter().map(|&octet| char::from(octet)).collect())
    }

    fn begin(&self, exchange: &mut Exchange, content: Content) -> Option<()> {
        let (status, without): (_, &[_]) = match content {
            Content::Whole => (None, &["Content-Range"]),
            Content::Part => (Some("206 Partial Content"), &["Content-Range"]),
            Content::Parts => (Some("206 Partial Content"), &["Content-Range", "Content-Type"]),
            Content::NotModified => (
                Some("304 Not Modified"),
                &["Content-Type", "Content-Encoding", "Content-Language", "Content-Range", "Content-Disposition"],
            ),
        };
        rewrite(exchange, status, without)?;
        match content {
            Content::NotModified => Some(()),
            Content::Part | Content::Parts => accept_ranges(exchange),
            Content::Whole => {
                accept_ranges(exchange)?;
                add(exchange, "Content-Length", &self.length.to_string())
            }
        }
    }

    fn bytes(&self) -> &dyn Bytes {
        self.bytes
    }
}

/// Sends an error page in place of a representation, with those of the application's fields that do not describe it.
/// `sentence` is HTML.
pub fn send_error(exchange: &mut Exchange, status: u16, sentence: &str, fields: &[(&str, &str)]) {
    let own = std::mem::take(exchange.response_mut().head());
    let head = exchange.response_mut().head();
    let page = begin_error(head, status, sentence);
    let is_describing = |name: &[u8]| DESCRIBING.iter().any(|one| name.eq_ignore_ascii_case(one.as_bytes()));
    let length = page.len().to_string();
    // They have been accepted before, or are the server's own.
    for (name, value) in own.fields().filter(|(name, _)| !is_describing(name)) {
        let _ = head.field(name, value);
    }
    for (name, value) in fields.iter().copied().chain([("Content-Length", length.as_str())]) {
        let _ = head.field(name.as_bytes(), value.as_bytes());
    }
    send_bytes(exchange, &Arc::new(page.into_bytes()), 0, usize::MAX, Position::Last);
}

/// Sends a part of these bytes, by reference, unless the request is HEAD.
pub(crate) fn send_bytes(
    exchange: &mut Exchange,
    bytes: &Arc<Vec<u8>>,
    start: usize,
    end: usize,
    position: Position,
) -> Sent {
    let end = end.min(bytes.len());
    if start >= end || is_head(exchange) { Sent::Taken } else { share(exchange, bytes, start, end, position) }
}

fn share(exchange: &mut Exchange, bytes: &Arc<Vec<u8>>, start: usize, end: usize, position: Position) -> Sent {
    let part = bytes.get(start..end).unwrap_or_default();
    // What the socket does not accept waits in the send queue, which a file in memory cannot fill.
    let keep = &mut |_: usize| -> Box<dyn Payload> { Box::new(Part { bytes: bytes.clone(), start, end }) };
    exchange.response_mut().push(&[part], position, keep)
}

/// A part of bytes that are shared.
struct Part {
    bytes: Arc<Vec<u8>>,
    start: usize,
    end: usize,
}

impl Payload for Part {
    fn bytes(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }
}

/// Gives the head another status, without these fields.
fn rewrite(exchange: &mut Exchange, status: Option<&str>, without: &[&str]) -> Option<()> {
    let keeps = |name: &[u8]| !without.iter().any(|one| name.eq_ignore_ascii_case(one.as_bytes()));
    exchange.response_mut().head().rewrite(status.map(str::as_bytes), keeps).ok()
}

fn accept_ranges(exchange: &mut Exchange) -> Option<()> {
    let head = exchange.response_mut().head();
    let is_identified = head.only(b"ETag").is_some() || head.only(b"Last-Modified").is_some();
    if is_identified && !head.has(b"Accept-Ranges") { add(exchange, "Accept-Ranges", "bytes") } else { Some(()) }
}

fn add(exchange: &mut Exchange, name: &str, value: &str) -> Option<()> {
    exchange.response_mut().head().field(name.as_bytes(), value.as_bytes()).ok()
}

/// True for the methods to which conditions and ranges of a file apply.
fn is_read(exchange: &Exchange) -> bool {
    let request = exchange.request();
    matches!(request.head.method.of(&request.bytes), b"GET" | b"HEAD")
}

fn is_head(exchange: &Exchange) -> bool {
    let request = exchange.request();
    request.head.method.of(&request.bytes) == b"HEAD"
}
