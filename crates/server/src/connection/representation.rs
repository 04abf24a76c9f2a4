//! A representation that is sent with the application's own fields: conditions and ranges (RFC 9110 sections 13 and
//! 14) by the validators that its head has.
//!
//! Called by whoever has the exchange. Nothing here blocks.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tailrace_http::conditional::{Precondition, Validators, evaluate, range, seconds};
use tailrace_http::encode::{ResponseHead, begin_error};
use tailrace_http::range::{Multipart, Ranges, content_range, ranges};

use crate::connection::exchange::{Exchange, Payload, Position, Sent};
use crate::response::payload::FileSource;

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

/// The bytes of a representation.
#[derive(Clone)]
pub(crate) enum Content {
    Memory(Arc<Vec<u8>>),
    /// Those of a file from this offset on.
    File(Arc<dyn FileSource>, u64),
}

/// Sends a file of the application's from `offset`, as [`Exchange::send_file`] with [`Position::Last`] does. If the
/// head has validators and the file is the representation, conditions and ranges of the request are applied.
pub fn send_file(exchange: &mut Exchange, file: OwnedFd, offset: u64, length: u64) -> Sent {
    let file: Arc<dyn FileSource> = Arc::new(file);
    match whole_length(exchange, length) {
        Some(length) => send(exchange, &Content::File(file, offset), length),
        None => exchange.send_source(file, offset, length, Position::Last),
    }
}

/// The same for bytes in memory.
pub fn send_memory(exchange: &mut Exchange, bytes: &Arc<Vec<u8>>) -> Sent {
    match whole_length(exchange, bytes.len() as u64) {
        Some(length) => send(exchange, &Content::Memory(bytes.clone()), length),
        None => share(exchange, bytes, 0, bytes.len(), Position::Last),
    }
}

/// The length of the representation if conditions and ranges are to be applied to the application's response, of whose
/// body there are so many bytes.
fn whole_length(exchange: &mut Exchange, available: u64) -> Option<u64> {
    if exchange.head_sent() || exchange.has_named_file() {
        return None;
    }
    let head = exchange.head();
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
pub(crate) fn send(exchange: &mut Exchange, content: &Content, length: u64) -> Sent {
    let head = std::mem::take(exchange.head());
    let asked = Asked::new(exchange, &head, length);
    *exchange.head() = head;
    asked.respond(exchange, content, length).unwrap_or(Sent::NoMemory)
}

/// What the request asks for.
enum Asked {
    Whole,
    NotModified,
    Failed,
    Ranges(Ranges),
}

impl Asked {
    fn new(exchange: &Exchange, head: &ResponseHead, length: u64) -> Self {
        if !is_read(exchange) {
            return Self::Whole;
        }
        let request = exchange.request();
        let (etag, modified) = (head.only(b"ETag"), head.only(b"Last-Modified").and_then(seconds));
        let validators = Validators { etag, modified };
        match evaluate(&request.head, &request.bytes, validators) {
            Precondition::Holds => {}
            Precondition::NotModified => return Self::NotModified,
            Precondition::Failed => return Self::Failed,
        }
        let has_ranges = head.only(b"Accept-Ranges").is_none_or(|value| value.eq_ignore_ascii_case(b"bytes"));
        if !has_ranges || (etag.is_none() && modified.is_none()) {
            return Self::Whole;
        }
        match range(&request.head, &request.bytes, validators).map(|asked| ranges(asked, length)) {
            None | Some(Ranges::Whole) => Self::Whole,
            Some(other) => Self::Ranges(other),
        }
    }

    /// `None`: there is no memory for the head.
    fn respond(self, exchange: &mut Exchange, content: &Content, length: u64) -> Option<Sent> {
        match self {
            Self::Whole => {
                rewrite(exchange, None, &["Content-Range"])?;
                accept_ranges(exchange)?;
                add(exchange, "Content-Length", &length.to_string())?;
                return Some(content.send(exchange, 0, length, Position::Last));
            }
            Self::NotModified => {
                let without =
                    ["Content-Type", "Content-Encoding", "Content-Language", "Content-Range", "Content-Disposition"];
                rewrite(exchange, Some("304 Not Modified"), &without)?;
            }
            Self::Failed => send_error(exchange, 412, "The file has changed.", &[]),
            Self::Ranges(Ranges::Parts(parts)) => {
                if let [part] = parts.as_slice() {
                    rewrite(exchange, Some("206 Partial Content"), &["Content-Range"])?;
                    accept_ranges(exchange)?;
                    add(exchange, "Content-Range", &content_range(*part, length))?;
                    add(exchange, "Content-Length", &part.length().to_string())?;
                    return Some(content.send(exchange, part.first, part.length(), Position::Last));
                }
                let media_type =
                    exchange.head().only(b"Content-Type").map(|value| value.iter().map(|&octet| char::from(octet)));
                let media_type: Option<String> = media_type.map(Iterator::collect);
                let multipart = Multipart::new(&parts, length, media_type.as_deref());
                rewrite(exchange, Some("206 Partial Content"), &["Content-Range", "Content-Type"])?;
                accept_ranges(exchange)?;
                add(exchange, "Content-Type", &multipart.media_type)?;
                add(exchange, "Content-Length", &multipart.length.to_string())?;
                for (header, part) in multipart.headers.into_iter().zip(parts) {
                    send_bytes(exchange, &Arc::new(header.into_bytes()), 0, usize::MAX, Position::More);
                    content.send(exchange, part.first, part.length(), Position::More);
                }
                send_bytes(exchange, &Arc::new(multipart.end.into_bytes()), 0, usize::MAX, Position::More);
            }
            Self::Ranges(_) => {
                let complete = format!("bytes */{length}");
                send_error(exchange, 416, "The file has no such part.", &[("Content-Range", &complete)]);
            }
        }
        Some(Sent::Enough)
    }
}

/// Sends an error page in place of a representation, with those of the application's fields that do not describe it.
/// `sentence` is HTML.
pub(crate) fn send_error(exchange: &mut Exchange, status: u16, sentence: &str, fields: &[(&str, &str)]) {
    let own = std::mem::take(exchange.head());
    let head = exchange.head();
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

impl Content {
    /// Sends a part of it, unless the request is HEAD.
    fn send(&self, exchange: &mut Exchange, offset: u64, length: u64, position: Position) -> Sent {
        match self {
            _ if length == 0 || is_head(exchange) => Sent::Enough,
            Self::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let end = usize::try_from(offset.saturating_add(length)).unwrap_or(usize::MAX);
                send_bytes(exchange, bytes, start, end, position)
            }
            Self::File(file, start) => exchange.send_source(file.clone(), start + offset, length, position),
        }
    }
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
    exchange.send(&[part], position, keep)
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
    exchange.head().rewrite(status.map(str::as_bytes), keeps).ok()
}

fn accept_ranges(exchange: &mut Exchange) -> Option<()> {
    let head = exchange.head();
    let is_identified = head.only(b"ETag").is_some() || head.only(b"Last-Modified").is_some();
    if is_identified && !head.has(b"Accept-Ranges") { add(exchange, "Accept-Ranges", "bytes") } else { Some(()) }
}

fn add(exchange: &mut Exchange, name: &str, value: &str) -> Option<()> {
    exchange.head().field(name.as_bytes(), value.as_bytes()).ok()
}

/// True for the methods to which conditions and ranges of a file apply.
fn is_read(exchange: &Exchange) -> bool {
    let request = exchange.request();
    matches!(request.head.method.of(&request.bytes), b"GET" | b"HEAD")
}

pub(crate) fn is_head(exchange: &Exchange) -> bool {
    let request = exchange.request();
    request.head.method.of(&request.bytes) == b"HEAD"
}
