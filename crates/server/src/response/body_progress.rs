//! The body of a response: how it is framed, and how much of it its producer may still send.
//!
//! A plain value, part of the [`crate::response::producer::Response`] of each request.

use tailrace_http::body_encoder::BodyEncoder;
use tailrace_http::coding::Coding;
use tailrace_http::framing::{ResponseBody, ResponseFraming};
use tailrace_observe::record::Ending;

/// Bytes of the body that the producer may still send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Left {
    /// Any number: no length is promised, or the head is not committed.
    #[default]
    Any,
    /// This many, at least one.
    Exactly(u64),
    /// None: the body has ended, `missing` bytes before its promised length.
    Ended { missing: u64 },
    /// They are discarded: the connection is broken, or the deadline of the request has passed.
    Nowhere,
}

impl Left {
    fn exactly(bytes: u64) -> Self {
        if bytes == 0 { Self::Ended { missing: 0 } } else { Self::Exactly(bytes) }
    }
}

/// What is known of the body of one response.
#[derive(Default)]
pub(crate) struct BodyProgress {
    /// `None` until the head is committed; until then the head can be changed.
    framing: Option<ResponseFraming>,
    left: Left,
    /// Bytes of blocks beyond the Content-Length.
    beyond: u64,
    /// The coding by which the body is compressed, after it has left the producer.
    coding: Coding,
}

impl BodyProgress {
    /// The head is committed with this framing. `compression`: the coding by which the body is compressed, and the
    /// length that the application has declared.
    pub(crate) fn commit(&mut self, framing: ResponseFraming, compression: Option<(Coding, Option<u64>)>) {
        self.framing = Some(framing);
        self.left = match (compression, framing.body) {
            // What the application promises counts, whatever becomes of it.
            (Some((_, declared)), _) => declared.map_or(Left::Any, Left::exactly),
            (None, ResponseBody::Known(length)) => Left::exactly(length),
            (None, ResponseBody::None) => Left::Ended { missing: 0 },
            (None, ResponseBody::Delimited | ResponseBody::UntilClose) => Left::Any,
        };
        self.coding = compression.map_or(Coding::Identity, |(coding, _)| coding);
    }

    /// The connection has left HTTP: what follows is sent as it is, until the connection ends.
    pub(crate) fn become_raw(&mut self) {
        let encoder = BodyEncoder::default();
        self.framing = Some(ResponseFraming { body: ResponseBody::UntilClose, encoder, keep_alive: false });
    }

    /// The head, of which nothing has been sent, is no longer committed.
    pub(crate) fn withdraw(&mut self) {
        self.framing = None;
        if !self.is_gone() {
            self.left = Left::Any;
        }
    }

    /// The whole body is sent at once after a head that states its length.
    pub(crate) fn state_length(&mut self, length: u64) {
        if let Some(framing) = &mut self.framing {
            (framing.body, framing.encoder) = (ResponseBody::Known(length), BodyEncoder::default());
            self.left = Left::Ended { missing: 0 };
        }
    }

    /// How many of `total` bytes the framing allows; they count as sent.
    pub(crate) fn allow(&mut self, total: u64) -> u64 {
        match self.left {
            Left::Any => total,
            Left::Exactly(bytes) => {
                let allowed = total.min(bytes);
                self.left = Left::exactly(bytes - allowed);
                allowed
            }
            Left::Ended { .. } | Left::Nowhere => 0,
        }
    }

    /// Whether the framing allows all of a block of this size. It does not count as sent.
    pub(crate) fn has_room(&self, size: u64) -> bool {
        match self.left {
            Left::Any => true,
            Left::Exactly(bytes) => size <= bytes,
            Left::Ended { .. } | Left::Nowhere => false,
        }
    }

    /// The producer has given so many bytes that the framing did not allow.
    pub(crate) fn note_beyond(&mut self, bytes: u64) {
        if self.is_compressed() || matches!(self.framing, Some(ResponseFraming { body: ResponseBody::Known(_), .. })) {
            self.beyond += bytes;
        }
    }

    /// Bytes that the application produced beyond its Content-Length. Files are not counted: they may be longer.
    pub(crate) fn bytes_beyond_content_length(&self) -> u64 {
        self.beyond
    }

    /// Ends the body. Returns what ends its framing.
    pub(crate) fn end(&mut self) -> Option<BodyEncoder> {
        match self.left {
            Left::Any => {
                self.left = Left::Ended { missing: 0 };
                return Some(self.encoder());
            }
            Left::Exactly(missing) => self.left = Left::Ended { missing },
            Left::Ended { .. } | Left::Nowhere => {}
        }
        None
    }

    /// From now on everything is discarded.
    pub(crate) fn set_gone(&mut self) {
        self.left = Left::Nowhere;
    }

    /// True once the head has been sent or queued.
    pub(crate) fn is_committed(&self) -> bool {
        self.framing.is_some()
    }

    /// True once everything is discarded.
    pub(crate) fn is_gone(&self) -> bool {
        self.left == Left::Nowhere
    }

    /// True once the application has produced all of it.
    pub(crate) fn is_whole(&self) -> bool {
        self.left == Left::Ended { missing: 0 }
    }

    /// True once the producer may send nothing more of it.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.left, Left::Ended { .. })
    }

    /// Bytes that the head promised and the application has not produced; 0 when the response is discarded.
    pub(crate) fn missing(&self) -> u64 {
        match self.left {
            Left::Exactly(bytes) | Left::Ended { missing: bytes } => bytes,
            Left::Any | Left::Nowhere => 0,
        }
    }

    /// The ending of the record, if the application produces nothing more.
    pub(crate) fn ending(&self) -> Ending {
        match self.missing() {
            _ if self.is_gone() => Ending::ClientDisconnected,
            0 => Ending::Complete,
            _ => Ending::Broken,
        }
    }

    /// True when the connection can serve another request after this response, provided that it is complete.
    pub(crate) fn keeps_alive(&self) -> bool {
        self.framing.is_some_and(|framing| framing.keep_alive)
    }

    /// True when only the end of the connection marks the end of the body.
    pub(crate) fn ends_with_connection(&self) -> bool {
        matches!(self.framing, Some(ResponseFraming { body: ResponseBody::UntilClose, .. }))
    }

    /// True when the framing of the body says where it ends, as its length was not known.
    pub(crate) fn is_delimited(&self) -> bool {
        matches!(self.framing, Some(ResponseFraming { body: ResponseBody::Delimited, .. }))
    }

    /// True when what is sent from here is compressed.
    pub(crate) fn is_compressed(&self) -> bool {
        self.coding != Coding::Identity
    }

    /// What frames the body; nothing before the head is committed.
    pub(crate) fn encoder(&self) -> BodyEncoder {
        self.framing.map_or_else(BodyEncoder::default, |framing| framing.encoder)
    }
}
