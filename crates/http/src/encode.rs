//! Response heads and chunk framing: the only file that makes response bytes.

use std::fmt;

use crate::framing::{RequestFacts, ResponseBody, ResponseFraming};

/// After the data of each chunk.
pub const CHUNK_END: &[u8] = b"\r\n";
/// The last chunk and an empty trailer section.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
/// The interim response that a client with `Expect: 100-continue` waits for.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Builds one response head in one buffer that is reused.
#[derive(Clone, Debug, Default)]
pub struct ResponseHead {
    buffer: Vec<u8>,
}

/// What is wrong with a status or a field that the application gave. `Display` gives one line, its input escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadFault {
    /// The status is not "three digits, a space, a phrase", or is not a final status.
    Status {
        /// The status, escaped.
        status: String,
    },
    /// A field came before the status.
    NoStatus,
    /// A field name is not a token.
    FieldName {
        /// The name, escaped.
        name: String,
    },
    /// A field value has a control character.
    FieldValue {
        /// The name, escaped.
        name: String,
    },
    /// A Content-Length is not a number.
    Length {
        /// The value, escaped.
        value: String,
    },
    /// Two Content-Length fields differ.
    LengthConflict {
        /// The first.
        first: u64,
        /// The second.
        second: u64,
    },
}

impl fmt::Display for HeadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for HeadFault {}

impl ResponseHead {
    /// Forgets everything but the buffer's room.
    pub fn clear(&mut self) {
        self.buffer.clear();
    }

    /// Sets the status line, for example `200 OK`, latin-1.
    ///
    /// # Errors
    /// [`HeadFault::Status`].
    pub fn status(&mut self, status_line: &[u8]) -> Result<(), HeadFault> {
        let _ = status_line;
        Ok(())
    }

    /// Adds a field, latin-1.
    ///
    /// # Errors
    /// A [`HeadFault`] that names the field. The head is as it was before.
    pub fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), HeadFault> {
        let _ = (name, value);
        Ok(())
    }

    /// The status code; 0 before a status is set.
    #[must_use]
    pub fn status_code(&self) -> u16 {
        0
    }

    /// True once a status is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.status_code() != 0
    }

    /// The Content-Length that the application gave.
    #[must_use]
    pub fn declared_length(&self) -> Option<u64> {
        None
    }

    /// The name of a hop-by-hop field that the application gave and that was dropped.
    #[must_use]
    pub fn dropped(&self) -> Option<&'static str> {
        None
    }

    /// Completes the head. `total` is the length of the body when all of it is known now, `date` an IMF-fixdate of
    /// 29 bytes, `server` the Server field (empty: none).
    pub fn finish(
        &mut self,
        facts: RequestFacts,
        total: Option<u64>,
        date: &[u8],
        server: &[u8],
    ) -> ResponseFraming {
        let _ = (total, date, server);
        ResponseFraming {
            body: ResponseBody::None,
            keep_alive: facts.keep_alive,
        }
    }

    /// The head's bytes, complete after [`ResponseHead::finish`].
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer
    }
}

/// Writes the line before a chunk of `length` bytes; answers the line's length. `length` must not be 0: that is the
/// last chunk.
pub fn chunk_header(length: usize, out: &mut [u8; 20]) -> usize {
    let _ = (length, out);
    0
}

/// Appends a small complete HTML error page to `out`. `sentence_html` is HTML, already escaped.
pub fn error_response(
    status: u16,
    sentence_html: &str,
    facts: RequestFacts,
    date: &[u8],
    server: &[u8],
    out: &mut Vec<u8>,
) {
    let _ = (status, sentence_html, facts, date, server, out);
}
