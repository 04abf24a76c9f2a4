//! The response for a file or a folder: which representation, and the pages that the server makes itself.
//!
//! Called by the owner of a connection, or by a disk thread. Nothing here blocks.

use tailrace_http::selection::{Selection, select};
use tailrace_server::Exchange;
use tailrace_server::representation;
use tailrace_server::representation::{Bytes, Content, send_error};
use tailrace_server::{Position, Sent};

use crate::entry::{CodedFile, Entry, FileBody};

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

/// Sends the client elsewhere.
pub(super) fn redirect(exchange: &mut Exchange, location: &str) {
    send_error(exchange, 301, "The path of a folder ends with a slash.", &[("Location", location)]);
}

impl representation::Representation for CodedFile {
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
        let head = exchange.response_mut().head();
        head.copy_from(prepared).ok()?;
        if content == Content::Part { head.field(b"Content-Type", self.media_type.as_bytes()).ok() } else { Some(()) }
    }

    fn bytes(&self) -> &dyn Bytes {
        &self.body
    }
}

impl Bytes for FileBody {
    fn send(&self, exchange: &mut Exchange, offset: u64, length: u64, position: Position) -> Sent {
        match self {
            Self::Memory(bytes) => bytes.send(exchange, offset, length, position),
            Self::Extent(extent, _) => {
                exchange.response_mut().push_source(extent.clone(), extent.offset() + offset, length, position)
            }
            Self::File(file) => exchange.response_mut().push_source(file.clone(), offset, length, position),
        }
    }
}
