//! Limits of a request, and refusals as values: a status and one sentence that contains nothing of the input.

/// Number of header fields that a request may have: more than browsers and proxies send together.
pub const MAX_FIELDS: usize = 128;

/// Limits of one request, in bytes unless the name says otherwise.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The request line without its line end. Beyond it: 414.
    pub request_line: usize,
    /// All field lines together, their line ends included. Beyond it: 431.
    pub header_bytes: usize,
    /// Number of field lines, [`MAX_FIELDS`] outside tests. Beyond it: 431.
    pub header_count: usize,
    /// The decoded body. Beyond it: 413.
    pub body: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { request_line: 8190, header_bytes: 65_536, header_count: MAX_FIELDS, body: 1 << 30 }
    }
}

/// What a request has exceeded that the operator can raise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exceeded {
    /// [`Limits::request_line`].
    RequestLine,
    /// [`Limits::header_bytes`].
    HeaderBytes,
    /// [`Limits::body`].
    Body,
    /// The time for the head.
    HeaderTime,
    /// The time for the body.
    BodyTime,
    /// The memory for all clients.
    ClientMemory,
    /// The disk space for the bodies of all clients.
    BodyFiles,
}

/// Why a request is not served. It is sent as an ordinary error response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// The status code of the response.
    pub status: u16,
    /// One plain sentence with the rule or the remedy. Never contains input, so it needs no escaping.
    pub reason: &'static str,
    /// `None`: nothing that the operator can raise.
    pub exceeded: Option<Exceeded>,
}

impl Refusal {
    /// A refusal with this status and sentence.
    #[must_use]
    pub const fn new(status: u16, reason: &'static str) -> Self {
        Self { status, reason, exceeded: None }
    }

    /// A refusal of a request that has exceeded this.
    #[must_use]
    pub const fn beyond(status: u16, reason: &'static str, exceeded: Exceeded) -> Self {
        Self { status, reason, exceeded: Some(exceeded) }
    }
}

/// The reason phrase of a status code in the IANA registry; empty for a code that is not in it (RFC 9112 section 4
/// allows an empty phrase).
#[must_use]
pub fn reason_phrase(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        207 => "Multi-Status",
        208 => "Already Reported",
        226 => "IM Used",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        305 => "Use Proxy",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        423 => "Locked",
        424 => "Failed Dependency",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        506 => "Variant Also Negotiates",
        507 => "Insufficient Storage",
        508 => "Loop Detected",
        511 => "Network Authentication Required",
        _ => "",
    }
}
