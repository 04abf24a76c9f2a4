//! Response heads and error pages: with `body_encoder`, the only file that makes response bytes.
//!
//! Invariants: an application cannot break the framing: statuses and fields with control characters are refused, and
//! only this file writes Content-Length, Transfer-Encoding and Connection. All responses share one buffer. Thread:
//! whichever carries the request.

use std::fmt;

use crate::body_encoder::BodyEncoder;
use crate::framing::{RequestFacts, ResponseBody, ResponseFormat, ResponseFraming, decimal};
use crate::limits::reason_phrase;
use crate::octets::{token_end, trim, value_end};

/// The interim response that a client with `Expect: 100-continue` waits for.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

const EARLY_HINTS: &[u8] = b"HTTP/1.1 103 Early Hints\r\n";

/// The field of a chunked body, as it is in a head.
const CHUNKED_FIELD: &[u8] = b"Transfer-Encoding: chunked\r\n";
/// A head is at most this many bytes longer after [`ResponseHead::state_length`].
pub const LENGTH_ROOM: usize = "Content-Length: 18446744073709551615\r\n".len() - CHUNKED_FIELD.len();

/// Bytes reserved for what the server adds to a head: framing fields, `Date`, line ends, and a `Server` field unless it
/// is long.
const OWN_ROOM: usize = 256;

/// Names and values in an error message are cut to this many octets.
const SHOWN: usize = 80;

/// What the server adds to the head of every response.
#[derive(Clone, Copy, Debug)]
pub struct OwnFields<'a> {
    /// The value of `Date`, an IMF-fixdate of 29 bytes.
    pub date: &'a [u8],
    /// The value of `Server`; empty: no such field.
    pub server: &'a [u8],
    /// Name and value of the field with the id of the request, if it has one.
    pub id: Option<(&'a [u8], &'a [u8])>,
}

/// Builds one response head in one buffer that is reused.
#[derive(Clone, Debug, Default)]
pub struct ResponseHead {
    buffer: Vec<u8>,
    status: u16,
    declared_length: Option<u64>,
    has_date: bool,
    has_server: bool,
    closes: bool,
    dropped: Option<&'static str>,
    /// Where the Transfer-Encoding field begins, once [`ResponseHead::finish`] has written it.
    chunked_at: Option<usize>,
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
    /// The head is larger than the memory that the system has.
    NoMemory,
    /// A field name is not a token.
    FieldName {
        /// The name, escaped.
        name: String,
    },
    /// A field value has a control character.
    FieldValue {
        /// The name, escaped.
        name: String,
        /// The value, escaped.
        value: String,
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
        match self {
            Self::Status { status } => write!(
                f,
                "status \"{status}\" is not three digits from 200 to 999, a space and a phrase without control characters"
            ),
            Self::NoStatus => write!(f, "a header came before the status"),
            Self::NoMemory => write!(f, "not enough memory for the headers of the response"),
            Self::FieldName { name } => write!(f, "header name \"{name}\" is not a token (letters, digits, hyphens)"),
            Self::FieldValue { name, value } => {
                write!(f, "header \"{name}\" has a control character (CR, LF, NUL, ...) in its value \"{value}\"")
            }
            Self::Length { value } => write!(f, "header \"Content-Length\" is not a decimal number: \"{value}\""),
            Self::LengthConflict { first, second } => {
                write!(f, "header \"Content-Length\" is given twice, as {first} and as {second}")
            }
        }
    }
}

impl std::error::Error for HeadFault {}

fn shown(bytes: &[u8]) -> String {
    match bytes.get(..SHOWN) {
        Some(start) if bytes.len() > SHOWN => format!("{}...", start.escape_ascii()),
        _ => bytes.escape_ascii().to_string(),
    }
}

impl ResponseHead {
    /// Empties the head; the buffer keeps its capacity.
    pub fn clear(&mut self) {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        *self = Self { buffer, ..Self::default() };
    }

    /// Makes it a copy of another one that is not complete. The buffer keeps its capacity.
    ///
    /// # Errors
    /// [`HeadFault::NoMemory`]; the head is empty.
    pub fn copy_from(&mut self, other: &Self) -> Result<(), HeadFault> {
        self.clear();
        self.reserve(other.buffer.len())?;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.extend_from_slice(&other.buffer);
        *self = Self { buffer, ..*other };
        Ok(())
    }

    /// Capacity of the buffer, in bytes.
    #[must_use]
    pub fn room(&self) -> usize {
        self.buffer.capacity()
    }

    /// Sets the status line, for example `200 OK`, latin-1, and removes the fields given before. The phrase may be
    /// missing.
    ///
    /// # Errors
    /// [`HeadFault::Status`], also for interim (1xx) statuses; the head is as it was before.
    pub fn status(&mut self, status_line: &[u8]) -> Result<(), HeadFault> {
        let code = match status_line {
            [a @ b'2'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] => [a, b, c],
            [a @ b'2'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', b' ', phrase @ ..]
                if value_end(phrase, 0) == phrase.len() =>
            {
                [a, b, c]
            }
            _ => {
                return Err(HeadFault::Status { status: shown(status_line) });
            }
        };
        self.clear();
        self.reserve(status_line.len())?;
        self.status = code.iter().fold(0, |code, digit| code * 10 + u16::from(**digit - b'0'));
        // The version is the server's, not that of the request (RFC 9110 section 2.5).
        self.buffer.extend_from_slice(b"HTTP/1.1 ");
        self.buffer.extend_from_slice(status_line);
        // RFC 9112 section 4: the space stays where the phrase is missing.
        self.buffer.extend_from_slice(if status_line.len() == 3 { b" \r\n" } else { b"\r\n" });
        Ok(())
    }

    /// Begins the head of an interim response 103 (RFC 8297), and removes the fields given before. Its fields follow, and
    /// [`ResponseHead::finish_interim`] ends it.
    ///
    /// # Errors
    /// [`HeadFault::NoMemory`].
    pub fn early_hints(&mut self) -> Result<(), HeadFault> {
        self.clear();
        self.reserve(EARLY_HINTS.len())?;
        self.status = 103;
        self.buffer.extend_from_slice(EARLY_HINTS);
        Ok(())
    }

    /// The whole head of an interim response, which has no body and so no Content-Length, and closes no connection. The
    /// head is empty afterwards.
    pub fn finish_interim(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(self).buffer;
        bytes.extend_from_slice(b"\r\n");
        bytes
    }

    /// Adds a field, latin-1. Of the hop-by-hop fields, which belong to the server (PEP 3333, "Other HTTP Features"),
    /// only `Connection: close` is honored; the others are dropped, see [`ResponseHead::dropped`].
    ///
    /// # Errors
    /// A [`HeadFault`] that names the field. The head is as it was before.
    pub fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), HeadFault> {
        if self.status == 0 {
            return Err(HeadFault::NoStatus);
        }
        if name.is_empty() || token_end(name, 0) != name.len() {
            return Err(HeadFault::FieldName { name: shown(name) });
        }
        if value_end(value, 0) != value.len() {
            return Err(HeadFault::FieldValue { name: shown(name), value: shown(value) });
        }
        match SpecialField::of(name) {
            None => {}
            Some(SpecialField::Date) => self.has_date = true,
            Some(SpecialField::Server) => self.has_server = true,
            Some(SpecialField::ContentLength) => return self.declare(value),
            Some(SpecialField::Connection) => {
                self.connection(value);
                return Ok(());
            }
            Some(SpecialField::HopByHop(name)) => {
                self.dropped = Some(name);
                return Ok(());
            }
        }
        self.reserve(name.len() + value.len())?;
        self.append(name, value);
        Ok(())
    }

    /// The fields so far, but for those that only [`ResponseHead::finish`] writes.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        // Neither names nor values have a line end, and names have no colon.
        self.buffer.split(|&byte| byte == b'\n').skip(1).filter_map(|line| {
            let colon = line.iter().position(|&byte| byte == b':')?;
            Some((&line[..colon], trim(line[colon + 1..].strip_suffix(b"\r")?)))
        })
    }

    /// Status and phrase; empty: none is set.
    pub fn status_line(&self) -> &[u8] {
        let line = self.buffer.split(|&byte| byte == b'\n').next().unwrap_or_default();
        line.strip_prefix(b"HTTP/1.1 ").map_or(b"", |rest| rest.strip_suffix(b"\r").unwrap_or(rest))
    }

    /// The value of the only field of this name. `None`: there is none, or several.
    #[must_use]
    pub fn only(&self, name: &[u8]) -> Option<&[u8]> {
        let mut values = self.fields().filter(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value);
        let value = values.next()?;
        values.next().is_none().then_some(value)
    }

    /// True when there is a field of this name, or several.
    #[must_use]
    pub fn has(&self, name: &[u8]) -> bool {
        memchr::memchr_iter(b'\n', &self.buffer).any(|end| {
            let line = &self.buffer[end + 1..];
            line.get(name.len()) == Some(&b':') && line[..name.len()].eq_ignore_ascii_case(name)
        })
    }

    /// True if the Content-Type is that of a stream of server-sent events (HTML Living Standard, section 9.2).
    #[must_use]
    pub fn is_event_stream(&self) -> bool {
        let kind = b"text/event-stream";
        self.fields().any(|(name, value)| {
            name.eq_ignore_ascii_case(b"Content-Type")
                && value.get(..kind.len()).is_some_and(|start| start.eq_ignore_ascii_case(kind))
                && matches!(value.get(kind.len()), None | Some(b';' | b' '))
        })
    }

    /// Gives it another status (`None`: the same one) and keeps only those fields of whose names `keeps` is true. The
    /// Content-Length is not kept.
    ///
    /// # Errors
    /// As [`ResponseHead::status`] and [`ResponseHead::field`]; the head is as it was before.
    pub fn rewrite(&mut self, status: Option<&[u8]>, keeps: impl Fn(&[u8]) -> bool) -> Result<(), HeadFault> {
        let mut new = Self::default();
        let line = self.buffer.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let line = line.get(b"HTTP/1.1 ".len()..).unwrap_or_default().trim_ascii_end();
        new.status(status.unwrap_or(line))?;
        (new.closes, new.dropped) = (self.closes, self.dropped);
        for (name, value) in self.fields().filter(|(name, _)| keeps(name)) {
            new.field(name, value)?;
        }
        *self = new;
        Ok(())
    }

    /// Keeps only those fields of whose names `keeps` is true, and the Content-Length.
    ///
    /// # Errors
    /// [`HeadFault::NoMemory`]; the head is as it was before.
    pub(crate) fn retain(&mut self, keeps: impl Fn(&[u8]) -> bool) -> Result<(), HeadFault> {
        let length = self.declared_length;
        self.rewrite(None, keeps)?;
        self.declared_length = length;
        Ok(())
    }

    /// Reserves `more` bytes beside those for what the server adds.
    fn reserve(&mut self, more: usize) -> Result<(), HeadFault> {
        let needed = more.saturating_add(OWN_ROOM);
        let room = self.buffer.capacity() - self.buffer.len();
        if room >= needed || self.buffer.try_reserve(needed).is_ok() {
            return Ok(());
        }
        self.buffer.try_reserve_exact(needed).map_err(|_| HeadFault::NoMemory)
    }

    fn append(&mut self, name: &[u8], value: &[u8]) {
        self.buffer.extend_from_slice(name);
        self.buffer.extend_from_slice(b": ");
        self.buffer.extend_from_slice(value);
        self.buffer.extend_from_slice(b"\r\n");
    }

    /// Notes the Content-Length. `finish` writes it if this response may have one.
    fn declare(&mut self, value: &[u8]) -> Result<(), HeadFault> {
        let digits = trim(value);
        let all_digits = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        let Some(length) = decimal(digits).filter(|_| all_digits) else {
            return Err(HeadFault::Length { value: shown(value) });
        };
        match self.declared_length {
            Some(first) if first != length => Err(HeadFault::LengthConflict { first, second: length }),
            _ => {
                self.declared_length = Some(length);
                Ok(())
            }
        }
    }

    fn connection(&mut self, value: &[u8]) {
        for option in value.split(|&byte| byte == b',').map(trim).filter(|option| !option.is_empty()) {
            if option.eq_ignore_ascii_case(b"close") {
                self.closes = true;
            } else {
                self.dropped = Some("Connection");
            }
        }
    }

    /// The status code; 0 before a status is set.
    #[must_use]
    pub fn status_code(&self) -> u16 {
        self.status
    }

    /// True once a status is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.status != 0
    }

    /// The Content-Length that the application gave.
    #[must_use]
    pub fn declared_length(&self) -> Option<u64> {
        self.declared_length
    }

    /// The name of a hop-by-hop field that the application gave and that was dropped.
    #[must_use]
    pub fn dropped(&self) -> Option<&'static str> {
        self.dropped
    }

    /// Completes the head; to be called once. Returns how the body must be sent. `total` is the length of the body if
    /// that is known. Of `own`, fields that the application has set are not added. Without a status the response is a
    /// 500.
    pub fn finish(&mut self, facts: RequestFacts, total: Option<u64>, own: OwnFields<'_>) -> ResponseFraming {
        if self.status == 0 {
            self.status = 500;
            self.buffer.extend_from_slice(b"HTTP/1.1 500 Internal Server Error\r\n");
        }
        let (length, body) = self.length_and_body(facts, total);
        let keep_alive = facts.keep_alive && !self.closes && body != ResponseBody::UntilClose;
        let encoder = if body == ResponseBody::Delimited { BodyEncoder::CHUNKED } else { BodyEncoder::default() };
        // The proxy is the server that its client sees, and adds its own.
        let is_packet = facts.format == ResponseFormat::Packet;
        // While the application's fields alone are to be searched.
        if let Some((name, value)) = own.id
            && !self.has(name)
        {
            self.append(name, value);
        }
        if !self.has_date && !is_packet {
            self.append(b"Date", own.date);
        }
        if !self.has_server && !is_packet && !own.server.is_empty() {
            self.append(b"Server", own.server);
        }
        if let Some(length) = length {
            let mut digits = [0; 20];
            self.append(b"Content-Length", decimal_text(length, &mut digits));
        }
        if encoder == BodyEncoder::CHUNKED {
            self.chunked_at = Some(self.buffer.len());
            self.append(b"Transfer-Encoding", b"chunked");
        }
        match (keep_alive, facts.format) {
            // Apache would apply it to the connection of its own client.
            (_, ResponseFormat::Packet) => {}
            (false, _) => self.append(b"Connection", b"close"),
            // RFC 9112 section 9.3: without it a 1.0 client waits for the end of the connection.
            (true, ResponseFormat::Http10) => self.append(b"Connection", b"keep-alive"),
            (true, ResponseFormat::Http11) => {}
        }
        self.buffer.extend_from_slice(b"\r\n");
        ResponseFraming { body, encoder, keep_alive }
    }

    /// Changes a complete head that has not been sent: the length of a body that its framing delimits has become known,
    /// so that it is sent without framing. The head of another body is not changed.
    pub fn state_length(&mut self, length: u64) {
        if let Some(at) = self.chunked_at.take() {
            let mut digits = [0; 20];
            let field = [b"Content-Length: ", decimal_text(length, &mut digits), b"\r\n"];
            self.buffer.splice(at..at + CHUNKED_FIELD.len(), field.into_iter().flatten().copied());
        }
    }

    /// The Content-Length to state and how the body ends (RFC 9112 section 6.3, RFC 9110 section 8.6).
    fn length_and_body(&self, facts: RequestFacts, total: Option<u64>) -> (Option<u64>, ResponseBody) {
        let declared = self.declared_length;
        match self.status {
            // Neither content nor a length (RFC 9110 sections 8.6 and 15.3.5).
            204 => (None, ResponseBody::None),
            // No content, and a length of 0 says so (RFC 9110 section 15.3.6).
            205 => (Some(0), ResponseBody::None),
            // The length would be that of a 200 response: only the application knows it (RFC 9110 section 8.6).
            304 => (declared, ResponseBody::None),
            // Frameworks omit the body of a response to HEAD, so a total of 0 is not the length that GET would have.
            _ if facts.is_head => (declared.or(total.filter(|&total| total > 0)), ResponseBody::None),
            _ => match (declared.or(total), facts.format) {
                (Some(length), _) => (Some(length), ResponseBody::Known(length)),
                (None, ResponseFormat::Http11) => (None, ResponseBody::Delimited),
                (None, ResponseFormat::Http10 | ResponseFormat::Packet) => (None, ResponseBody::UntilClose),
            },
        }
    }

    /// The head's bytes, complete after [`ResponseHead::finish`].
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer
    }
}

/// Fields that the server does not simply pass on.
enum SpecialField {
    ContentLength,
    Connection,
    Date,
    Server,
    HopByHop(&'static str),
}

impl SpecialField {
    fn of(name: &[u8]) -> Option<Self> {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        let dropped = |known: &'static str| is(known).then_some(Self::HopByHop(known));
        match name.len() {
            2 => dropped("TE"),
            4 if is("Date") => Some(Self::Date),
            6 if is("Server") => Some(Self::Server),
            7 => dropped("Trailer").or_else(|| dropped("Upgrade")),
            10 if is("Connection") => Some(Self::Connection),
            10 => dropped("Keep-Alive"),
            14 if is("Content-Length") => Some(Self::ContentLength),
            16 => dropped("Proxy-Connection"),
            17 => dropped("Transfer-Encoding"),
            18 => dropped("Proxy-Authenticate"),
            19 => dropped("Proxy-Authorization"),
            _ => None,
        }
    }
}

/// Whether the server itself writes the fields of this name, or drops them.
pub(crate) fn is_own_field(name: &[u8]) -> bool {
    SpecialField::of(name).is_some()
}

/// The decimal digits of `number`, at the end of `digits`.
pub fn decimal_text(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[start..];
        }
    }
}

/// `Retry-After` of a 503, in seconds (RFC 9110 section 10.2.3).
const RETRY_AFTER: &[u8] = b"1";

/// Appends a complete response with a small HTML error page to `out`; returns the length of its body. `head` is
/// overwritten with the head of that response. `sentence_html` is HTML, already escaped.
pub fn error_response(
    head: &mut ResponseHead,
    status: u16,
    sentence_html: &str,
    facts: RequestFacts,
    own: OwnFields<'_>,
    out: &mut Vec<u8>,
) -> u64 {
    let page = begin_error(head, status, sentence_html);
    if head.is_set() {
        // A constant name and value cannot be refused.
        if status == 503 {
            let _ = head.field(b"Retry-After", RETRY_AFTER);
        }
    }
    let framing = head.finish(facts, Some(page.len() as u64), own);
    out.extend_from_slice(head.bytes());
    if framing.body == ResponseBody::None {
        return 0;
    }
    out.extend_from_slice(page.as_bytes());
    page.len() as u64
}

/// The length of the body that [`error_response`] makes.
#[must_use]
pub fn error_page_length(status: u16, sentence_html: &str, facts: RequestFacts) -> u64 {
    if facts.is_head { 0 } else { error_page(status, sentence_html).len() as u64 }
}

/// Style of the pages that Tailrace itself makes: light or dark as the reader prefers, and a long traceback scrolls
/// inside its block. Short, since refusals are sent under attack. `tailrace/worker/broken.py` has a copy.
const PAGE_STYLE: &str = ":root{color-scheme:light dark}\
    body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;overflow-wrap:anywhere}\
    pre{font-size:13px;padding:1em;border:1px solid;border-radius:6px;overflow:auto}";

fn error_page(status: u16, sentence_html: &str) -> String {
    let title = format!("{status} {}", reason_phrase(status));
    let title = title.trim_end();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <style>{PAGE_STYLE}</style>\n<h1>{title}</h1>\n<div>{sentence_html}</div>\n</html>\n"
    )
}

/// Begins the head of an error page, to which fields may be added, and returns the page. `sentence_html` is HTML. With
/// an invalid status the head stays without one, and [`ResponseHead::finish`] makes the response a 500.
pub fn begin_error(head: &mut ResponseHead, status: u16, sentence_html: &str) -> String {
    let title = format!("{status} {}", reason_phrase(status));
    let title = title.trim_end();
    head.clear();
    if head.status(title.as_bytes()).is_ok() {
        // A constant name and value cannot be refused.
        let _ = head.field(b"Content-Type", b"text/html; charset=utf-8");
    }
    error_page(status, sentence_html)
}
