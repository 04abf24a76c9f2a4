//! How long a body is and whether the connection lives on. The only file that reads Content-Length,
//! Transfer-Encoding, Connection, Expect and Host.

use crate::head::{RequestHead, Span, Version};
use crate::limits::{Limits, Refusal};

/// How the end of a request body is known (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyLength {
    /// No body.
    #[default]
    None,
    /// By Content-Length, in bytes; may be 0.
    Known(u64),
    /// By the chunked transfer coding.
    Chunked,
}

/// What a request head says about its body and its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestFraming {
    /// How the body ends.
    pub body: BodyLength,
    /// The client wants, and may have, another request on this connection.
    pub keep_alive: bool,
    /// The client waits for `100 Continue` before it sends its body.
    pub expects_continue: bool,
    /// What the application must see as Host: the authority of an absolute-form target, else the Host field's value.
    pub host: Option<Span>,
}

/// What the response side must know of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFacts {
    /// Version of the request.
    pub version: Version,
    /// The method is HEAD: the response has no body.
    pub is_head: bool,
    /// Another request may follow.
    pub keep_alive: bool,
}

impl RequestFacts {
    /// The facts of a request that was accepted.
    #[must_use]
    pub fn of(bytes: &[u8], head: &RequestHead, framing: &RequestFraming) -> Self {
        Self {
            version: head.version,
            is_head: head.method.of(bytes) == b"HEAD",
            keep_alive: framing.keep_alive,
        }
    }

    /// The facts of a request that was refused: the connection ends after the response. `head` as far as it was parsed.
    #[must_use]
    pub fn of_refused(bytes: &[u8], head: &RequestHead) -> Self {
        Self {
            version: head.version,
            is_head: head.method.of(bytes) == b"HEAD",
            keep_alive: false,
        }
    }
}

/// How the end of a response body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseBody {
    /// No body, whatever the application gives.
    None,
    /// This many bytes, as Content-Length says.
    Known(u64),
    /// By the chunked transfer coding.
    Chunked,
    /// By the end of the connection.
    UntilClose,
}

/// What a finished response head promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseFraming {
    /// How the body ends.
    pub body: ResponseBody,
    /// The connection serves another request afterwards.
    pub keep_alive: bool,
}

/// Reads the framing fields of a request head.
///
/// # Errors
/// A [`Refusal`] for anything ambiguous or unknown; the connection must be closed after it.
pub fn request_framing(
    bytes: &[u8],
    head: &RequestHead,
    limits: &Limits,
) -> Result<RequestFraming, Refusal> {
    let _ = (bytes, head, limits);
    Ok(RequestFraming::default())
}
