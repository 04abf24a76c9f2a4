//! How long a body is and whether the connection persists. The only file that reads Content-Length,
//! Transfer-Encoding, Connection, Expect and Host of a request.
//!
//! Invariant: a request that two recipients could frame differently is refused (RFC 9112 section 11.2). No state; any
//! thread.

use crate::body_encoder::BodyEncoder;
use crate::forwarded::{is_forwarded, may_be_forwarded};
use crate::limits::{Exceeded, Limits, Refusal};
use crate::octets::{is_token, trim};
use crate::request_head::{RequestHead, Span, TargetForm, Version};
use crate::target::is_authority;

const LENGTH: Refusal = Refusal::new(400, "Content-Length must be one decimal number.");
const LENGTH_REPEATED: Refusal = Refusal::new(400, "Content-Length must be given once.");
const LENGTH_AND_CODING: Refusal =
    Refusal::new(400, "Content-Length and Transfer-Encoding must not be given together.");
const TOO_LARGE: Refusal = Refusal::beyond(413, "The request body is larger than this server accepts.", Exceeded::Body);
const CODING: Refusal = Refusal::new(400, "Transfer-Encoding must end with chunked, given once and alone.");
const UNKNOWN_CODING: Refusal = Refusal::new(501, "The only transfer coding that this server supports is chunked.");
const CODING_IN_1_0: Refusal = Refusal::new(400, "HTTP/1.0 has no Transfer-Encoding: use Content-Length.");
const HOST_MISSING: Refusal = Refusal::new(400, "An HTTP/1.1 request must have a Host field.");
const HOST_REPEATED: Refusal = Refusal::new(400, "Host must be given once.");
const HOST: Refusal = Refusal::new(400, "Host must be a name or an address, optionally with a port.");
const EXPECTATION: Refusal = Refusal::new(417, "The only expectation that this server supports is 100-continue.");

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
    /// There is a field by which a proxy states something about its client ([`crate::forwarded`]).
    pub has_forwarded: bool,
    /// There is a field of GRIP, with which a proxy that holds connections proves that it is one.
    pub has_grip: bool,
    /// The last field that states when a proxy received the request ([`crate::request_start`]).
    pub start: Option<Span>,
    /// The client wants to continue with the WebSocket protocol (RFC 6455 section 4.1).
    pub web_socket: bool,
}

/// What a response is sent as. The status line and the fields have the form of HTTP/1.1 in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFormat {
    /// To a client of HTTP/1.0.
    Http10,
    /// To a client of HTTP/1.1, or a higher minor version.
    Http11,
    /// To a proxy that has sent the request as a uwsgi packet: the end of the connection is the end of the body, and
    /// fields that a proxy writes itself are left to it.
    Packet,
}

impl From<Version> for ResponseFormat {
    fn from(version: Version) -> Self {
        match version {
            Version::Http10 => Self::Http10,
            Version::Http11 => Self::Http11,
        }
    }
}

/// The facts of a request that its response depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFacts {
    /// What the response is sent as.
    pub format: ResponseFormat,
    /// The method is HEAD: the response has no body.
    pub is_head: bool,
    /// Another request may follow.
    pub keep_alive: bool,
}

impl RequestFacts {
    /// The facts of a request that was accepted.
    #[must_use]
    pub fn of(bytes: &[u8], head: &RequestHead, framing: &RequestFraming) -> Self {
        let is_head = head.method.of(bytes) == b"HEAD";
        Self { format: head.version.into(), is_head, keep_alive: framing.keep_alive }
    }

    /// The facts of a request that was refused: the connection ends after the response. `head` as far as it was parsed.
    #[must_use]
    pub fn of_refused(bytes: &[u8], head: &RequestHead) -> Self {
        Self { format: head.version.into(), is_head: head.method.of(bytes) == b"HEAD", keep_alive: false }
    }

    /// The facts of a request that arrived as a packet, refused or not.
    #[must_use]
    pub fn of_packet(bytes: &[u8], head: &RequestHead) -> Self {
        Self { format: ResponseFormat::Packet, ..Self::of_refused(bytes, head) }
    }
}

/// How the end of a response body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseBody {
    /// No body, whatever the application gives.
    None,
    /// This many bytes, as Content-Length says.
    Known(u64),
    /// By its framing; the length is not known before.
    Delimited,
    /// By the end of the connection.
    UntilClose,
}

/// How a response must be sent after its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseFraming {
    /// How the body ends.
    pub body: ResponseBody,
    /// What stands around the data of the body.
    pub encoder: BodyEncoder,
    /// The connection serves another request afterwards.
    pub keep_alive: bool,
}

/// Reads the framing fields of a request head.
///
/// # Errors
/// A [`Refusal`] for anything ambiguous or unknown; the connection must be closed after it.
pub fn request_framing(bytes: &[u8], head: &RequestHead, limits: &Limits) -> Result<RequestFraming, Refusal> {
    let mut host = None;
    let mut length = None;
    let mut coding = None;
    let mut connection = ConnectionOptions::default();
    let mut expectation = Ok(false);
    let mut has_forwarded = false;
    let mut has_grip = false;
    let mut start = None;
    let mut asks_web_socket = false;
    for field in &head.fields {
        let name = field.name.of(bytes);
        let value = field.value.of(bytes);
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => set_once(&mut host, field.value, HOST_REPEATED)?,
            6 if name.eq_ignore_ascii_case(b"expect") => {
                expectation = expectation.and_then(|so_far| expects(so_far, value))
            }
            7 if name.eq_ignore_ascii_case(b"upgrade") => {
                asks_web_socket |=
                    value.split(|&byte| byte == b',').any(|name| trim(name).eq_ignore_ascii_case(b"websocket"));
            }
            10 if name.eq_ignore_ascii_case(b"connection") => connection.read(value),
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                set_once(&mut length, content_length(value)?, LENGTH_REPEATED)?;
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                coding = Some(TransferCodings::read(coding, value)?);
            }
            13 if is_request_start(name) => start = Some(field.value),
            15..=18 | 9 if may_be_forwarded(name) => {
                if is_forwarded(name) {
                    has_forwarded = true;
                } else if is_request_start(name) {
                    start = Some(field.value);
                }
            }
            _ if is_of_grip(name) => has_grip = true,
            _ => {}
        }
    }
    let body = match (coding, length) {
        (None, None) => BodyLength::None,
        (None, Some(length)) if length > limits.body => return Err(TOO_LARGE),
        (None, Some(length)) => BodyLength::Known(length),
        // RFC 9112 section 6.1: the framing of such a message is faulty even where a chunked body follows.
        (Some(_), _) if head.version == Version::Http10 => return Err(CODING_IN_1_0),
        (Some(_), Some(_)) => return Err(LENGTH_AND_CODING),
        (Some(coding), None) => coding.body()?,
    };
    let host = target_host(bytes, head, host)?;
    let waits = !matches!(body, BodyLength::None | BodyLength::Known(0));
    let (keep_alive, expects_continue) = match head.version {
        // RFC 9110 section 10.1.1: an expectation in HTTP/1.0 is ignored.
        Version::Http10 => (connection.keep_alive && !connection.close, false),
        Version::Http11 => (!connection.close, expectation? && waits),
    };
    let web_socket = asks_web_socket
        && connection.upgrade
        && head.version == Version::Http11
        && head.method.of(bytes) == b"GET"
        && body == BodyLength::None;
    Ok(RequestFraming { body, keep_alive, expects_continue, host, has_forwarded, has_grip, start, web_socket })
}

/// Reads the framing fields of a uwsgi packet whose fields have the names of HTTP. The proxy in front has applied the
/// rules of HTTP: it has decoded the body, has answered `Expect`, and `Connection` concerns its own client. Each packet
/// has a connection of its own.
///
/// # Errors
/// A [`Refusal`], as [`request_framing`]; a Host may be missing.
pub fn packet_framing(bytes: &[u8], head: &RequestHead, limits: &Limits) -> Result<RequestFraming, Refusal> {
    let mut host = None;
    let mut body = BodyLength::None;
    let mut has_forwarded = false;
    let mut has_grip = false;
    let mut start = None;
    for field in &head.fields {
        let name = field.name.of(bytes);
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => set_once(&mut host, field.value, HOST_REPEATED)?,
            14 if name.eq_ignore_ascii_case(b"content-length") => match content_length(field.value.of(bytes))? {
                length if length > limits.body => return Err(TOO_LARGE),
                length => body = BodyLength::Known(length),
            },
            13 if is_request_start(name) => start = Some(field.value),
            15..=18 | 9 if may_be_forwarded(name) => {
                if is_forwarded(name) {
                    has_forwarded = true;
                } else if is_request_start(name) {
                    start = Some(field.value);
                }
            }
            _ if is_of_grip(name) => has_grip = true,
            _ => {}
        }
    }
    let host = if host.is_some() { target_host(bytes, head, host)? } else { head.authority };
    let (keep_alive, expects_continue, web_socket) = (false, false, false);
    Ok(RequestFraming { body, keep_alive, expects_continue, host, has_forwarded, has_grip, start, web_socket })
}

/// Whether this is the name of a field of GRIP. With an underscore, an application could not tell it from one.
#[inline]
#[must_use]
pub fn is_of_grip(name: &[u8]) -> bool {
    name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case(b"grip-") || start.eq_ignore_ascii_case(b"grip_"))
}

/// Whether this is the name of a field with the time at which a proxy received the request.
#[inline]
fn is_request_start(name: &[u8]) -> bool {
    match name.len() {
        13 => name.eq_ignore_ascii_case(b"x-queue-start"),
        15 => name.eq_ignore_ascii_case(b"x-request-start"),
        _ => false,
    }
}

fn set_once<T>(slot: &mut Option<T>, value: T, repeated: Refusal) -> Result<(), Refusal> {
    if slot.replace(value).is_some() { Err(repeated) } else { Ok(()) }
}

/// `1*DIGIT`. A number that does not fit in 64 bits is valid, and larger than any limit.
fn content_length(value: &[u8]) -> Result<u64, Refusal> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(LENGTH);
    }
    decimal(value).ok_or(TOO_LARGE)
}

/// The number that these digits mean; `None` when 64 bits do not hold it.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    digits
        .iter()
        .try_fold(0_u64, |number, digit| number.checked_mul(10)?.checked_add(u64::from(digit.wrapping_sub(b'0'))))
}

/// All Transfer-Encoding values so far, which together are one list (RFC 9110 section 5.3).
#[derive(Clone, Copy)]
struct TransferCodings {
    codings: u32,
    ends_chunked: bool,
    chunked: u32,
}

impl TransferCodings {
    /// Only tokens between commas: chunked has no parameters (RFC 9112 section 7.1), and recipients that parsed this
    /// field leniently have made request smuggling possible.
    fn read(before: Option<Self>, value: &[u8]) -> Result<Self, Refusal> {
        let mut all = before.unwrap_or(Self { codings: 0, ends_chunked: false, chunked: 0 });
        for coding in value.split(|&byte| byte == b',') {
            let coding = trim(coding);
            if coding.is_empty() || !coding.iter().all(|&byte| is_token(byte)) {
                return Err(CODING);
            }
            all.codings += 1;
            all.ends_chunked = coding.eq_ignore_ascii_case(b"chunked");
            all.chunked += u32::from(all.ends_chunked);
        }
        Ok(all)
    }

    fn body(self) -> Result<BodyLength, Refusal> {
        match self {
            Self { codings: 1, ends_chunked: true, .. } => Ok(BodyLength::Chunked),
            Self { chunked: 1, ends_chunked: true, .. } => Err(UNKNOWN_CODING),
            // RFC 9112 section 6.3, rule 4: without a final chunked the length is unknown; the response must be 400.
            Self { .. } => Err(CODING),
        }
    }
}

/// The connection options that matter (RFC 9110 section 7.6.1, RFC 9112 section 9.3).
#[derive(Clone, Copy, Default)]
struct ConnectionOptions {
    close: bool,
    keep_alive: bool,
    upgrade: bool,
}

impl ConnectionOptions {
    fn read(&mut self, value: &[u8]) {
        for option in value.split(|&byte| byte == b',') {
            let option = trim(option);
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
            self.upgrade |= option.eq_ignore_ascii_case(b"upgrade");
        }
    }
}

/// Whether the client waits for `100 Continue` (RFC 9110 section 10.1.1).
fn expects(so_far: bool, value: &[u8]) -> Result<bool, Refusal> {
    let mut members = value.split(|&byte| byte == b',').map(trim).filter(|member| !member.is_empty());
    members.try_fold(
        so_far,
        |_, member| {
            if member.eq_ignore_ascii_case(b"100-continue") { Ok(true) } else { Err(EXPECTATION) }
        },
    )
}

/// RFC 9112 section 3.2: HTTP/1.1 needs exactly one valid Host; the authority of an absolute-form target replaces it.
/// An empty Host is valid: the client's target has no authority.
fn target_host(bytes: &[u8], head: &RequestHead, host: Option<Span>) -> Result<Option<Span>, Refusal> {
    match host.map(|span| span.of(bytes)) {
        None if head.version == Version::Http11 => return Err(HOST_MISSING),
        None | Some([]) => {}
        Some(value) if is_authority(value) => {}
        Some(_) => return Err(HOST),
    }
    Ok(if head.form == TargetForm::Absolute { head.authority } else { host })
}

/// True for a safe method: a client may send such a request again without harm (RFC 9110 section 9.2.1).
#[must_use]
pub fn is_safe(method: &[u8]) -> bool {
    matches!(method, b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE")
}
