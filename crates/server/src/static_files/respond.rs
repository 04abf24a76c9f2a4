//! The response for a file or a folder: which representation, and the pages that the server makes itself.
//!
//! Called by the owner of a connection, or by a disk thread. Nothing here blocks.

use std::sync::Arc;

use tailrace_http::selection::{Selection, select};

use crate::connection::exchange::{Exchange, Position, Sent};
use crate::connection::representation::{self, Bytes, Content, send_bytes, send_error};
use crate::static_files::entry::{Body, Entry, Representation};
use crate::static_files::listing;

/// Responds with a file. `is_page`: a page of its own, to which neither conditions nor ranges apply.
pub(super) fn send_entry(exchange: &mut Exchange, entry: &Entry, is_page: bool) {
    let request = exchange.request();
    let Some(chosen) = entry.choose(&request.head, &request.bytes) else { return };
    let selection = if is_page {
        Selection::Whole
    } else {
        select(&request.head, &request.bytes, chosen.validators(), chosen.length)
    };
    _ = representation::respond(exchange, selection, chosen);
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
    send_error(exchange, 301, "The path of a folder ends with a slash.", &[("Location", location)]);
}

impl representation::Representation for Representation {
    fn length(&self) -> u64 {
        self.length
    }

    fn media_type(&self, _: &mut Exchange) -> Option<String> {
        Some(self.media_type.clone())
    }

    fn begin(&self, exchange: &mut Exchange, content: Content) -> Option<()> {
        let prepared = match content {
            Content::Whole => &self.whole,
            Content::Part | Content::Parts => &self.partial,
            Content::NotModified => &self.unchanged,
        };
        let head = exchange.head();
        if !head.copy_from(prepared) {
            return None;
        }
        if content == Content::Part { head.field(b"Content-Type", self.media_type.as_bytes()).ok() } else { Some(()) }
    }

    fn bytes(&self) -> &dyn Bytes {
        &self.body
    }
}

impl Bytes for Body {
    fn send(&self, exchange: &mut Exchange, offset: u64, length: u64, position: Position) -> Sent {
        match self {
            Self::Memory(bytes) => bytes.send(exchange, offset, length, position),
            Self::Extent(extent, _) => exchange.send_source(extent.clone(), extent.offset() + offset, length, position),
            Self::File(file) => exchange.send_source(file.clone(), offset, length, position),
        }
    }
}
