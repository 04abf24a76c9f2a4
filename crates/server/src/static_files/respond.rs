//! The response for a file: conditions, ranges, head and bytes (RFC 9110 sections 13 and 14).
//!
//! Called by the owner of a connection, or by a disk thread. Nothing here blocks.

use std::sync::Arc;

use tailrace_http::conditional::{Precondition, evaluate, range};
use tailrace_http::encode::begin_error;
use tailrace_http::range::{ByteRange, Multipart, Ranges, content_range, ranges};

use crate::connection::exchange::{Exchange, Position};
use crate::connection::representation::{is_head, send_bytes};
use crate::static_files::entry::{Body, Entry, Representation};
use crate::static_files::listing;

/// Responds with a file. `is_page`: a page of its own, to which neither conditions nor ranges apply.
pub(super) fn send_entry(exchange: &mut Exchange, entry: &Entry, is_page: bool) {
    let request = exchange.request();
    let Some(chosen) = entry.choose(&request.head, &request.bytes) else { return };
    if is_page {
        return send_whole(exchange, chosen);
    }
    match evaluate(&request.head, &request.bytes, chosen.validators()) {
        Precondition::Holds => {}
        Precondition::NotModified => {
            _ = exchange.head().copy_from(&chosen.unchanged);
            return;
        }
        Precondition::Failed => return send_error(exchange, 412, "The file has changed.", &[]),
    }
    let asked = if chosen.has_validators() { range(&request.head, &request.bytes, chosen.validators()) } else { None };
    match asked.map(|asked| ranges(asked, chosen.length)) {
        None | Some(Ranges::Whole) => send_whole(exchange, chosen),
        Some(Ranges::Unsatisfiable) => {
            let complete = format!("bytes */{}", chosen.length);
            send_error(exchange, 416, "The file has no such part.", &[("Content-Range", &complete)]);
        }
        Some(Ranges::Parts(parts)) => match parts.as_slice() {
            [part] => send_part(exchange, chosen, *part),
            parts => send_parts(exchange, chosen, parts),
        },
    }
}

/// An error page. `sentence` is HTML.
pub(super) fn send_error(exchange: &mut Exchange, status: u16, sentence: &str, fields: &[(&str, &str)]) {
    let head = exchange.head();
    let page = begin_error(head, status, sentence);
    for (name, value) in fields {
        // They are the server's own.
        let _ = head.field(name.as_bytes(), value.as_bytes());
    }
    let _ = head.field(b"Content-Length", page.len().to_string().as_bytes());
    _ = send_bytes(exchange, &Arc::new(page.into_bytes()), 0, usize::MAX, Position::Last);
}

/// Responds with the page of a folder, sorted as the request asks. path: that of the folder, decoded. has_parent: the
/// folder around it is served, too.
pub(super) fn send_listing(exchange: &mut Exchange, path: &str, has_parent: bool, rows: listing::Rows) {
    let request = exchange.request();
    let query = request.head.query.map_or(&b""[..], |query| query.of(&request.bytes));
    let page = listing::page(path, has_parent, rows, listing::Order::of(query));
    if !exchange.has_room_for_response(page.len()) {
        let sentence = "The server needs the memory for other responses.";
        return send_error(exchange, 503, sentence, &[("Retry-After", "1")]);
    }
    let head = exchange.head();
    // All are the server's own.
    let _ = head.status(b"200 OK");
    for (name, value) in [
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Length", &page.len().to_string()),
        ("Content-Security-Policy", listing::POLICY),
        ("X-Content-Type-Options", "nosniff"),
        ("Cache-Control", "no-cache"),
    ] {
        let _ = head.field(name.as_bytes(), value.as_bytes());
    }
    send_bytes(exchange, &Arc::new(page.into_bytes()), 0, usize::MAX, Position::Last);
}

/// Sends the client elsewhere.
pub(super) fn redirect(exchange: &mut Exchange, location: &str) {
    send_error(exchange, 301, "The folder's own path has a slash at its end.", &[("Location", location)]);
}

fn send_whole(exchange: &mut Exchange, chosen: &Representation) {
    if exchange.head().copy_from(&chosen.whole) {
        send_body(exchange, chosen, 0, chosen.length, Position::Last);
    }
}

fn send_part(exchange: &mut Exchange, chosen: &Representation, part: ByteRange) {
    begin_partial(exchange, chosen, part.length());
    let head = exchange.head();
    let _ = head.field(b"Content-Type", chosen.media_type.as_bytes());
    let _ = head.field(b"Content-Range", content_range(part, chosen.length).as_bytes());
    send_body(exchange, chosen, part.first, part.length(), Position::Last);
}

fn send_parts(exchange: &mut Exchange, chosen: &Representation, parts: &[ByteRange]) {
    let multipart = Multipart::new(parts, chosen.length, Some(&chosen.media_type));
    begin_partial(exchange, chosen, multipart.length);
    let _ = exchange.head().field(b"Content-Type", multipart.media_type.as_bytes());
    if is_head(exchange) {
        return;
    }
    for (header, part) in multipart.headers.into_iter().zip(parts) {
        send_bytes(exchange, &Arc::new(header.into_bytes()), 0, usize::MAX, Position::More);
        send_body(exchange, chosen, part.first, part.length(), Position::More);
    }
    send_bytes(exchange, &Arc::new(multipart.end.into_bytes()), 0, usize::MAX, Position::More);
}

/// The head of a 206 with so many bytes, but for its Content-Type.
fn begin_partial(exchange: &mut Exchange, chosen: &Representation, length: u64) {
    let head = exchange.head();
    if head.copy_from(&chosen.partial) {
        let _ = head.field(b"Content-Length", length.to_string().as_bytes());
    }
}

/// Sends a part of the body, unless the request is HEAD.
fn send_body(exchange: &mut Exchange, chosen: &Representation, offset: u64, length: u64, position: Position) {
    if length == 0 || is_head(exchange) {
        return;
    }
    match &chosen.body {
        Body::Memory(bytes) => {
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            let end = usize::try_from(offset + length).unwrap_or(usize::MAX);
            _ = send_bytes(exchange, bytes, start, end, position);
        }
        Body::Extent(extent, _) => {
            _ = exchange.send_source(extent.clone(), extent.offset() + offset, length, position);
        }
        Body::File(file) => _ = exchange.send_source(file.clone(), offset, length, position),
    }
}
