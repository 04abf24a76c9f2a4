//! uwsgi packets: the variables that a proxy sends in front of a request body, as a request head.
//!
//! A packet is four octets (a modifier, the size of the variables in 16 bits with the low octet first, a second
//! modifier) and the variables: two octets with the length of a name, the name, two with the length of its value, the
//! value. A body of as many bytes as `CONTENT_LENGTH` says follows. The head that results is like one of HTTP/1, so
//! nothing behind this file knows how a request has arrived: `HTTP_*`, `CONTENT_TYPE` and `CONTENT_LENGTH` are its
//! fields ([`name_fields`] gives them the names of HTTP), and the other variables are [`RequestHead::variables`].
//!
//! Invariants: nothing is read before the packet is complete, except its first four octets, and then each octet once;
//! the result does not depend on how the bytes were cut. No state; any thread.

use std::net::{IpAddr, SocketAddr};

use crate::head::{
    HeadStep, LARGEST_METHOD, LONG_FIELDS, LONG_LINE, LONG_METHOD, MANY_FIELDS, NON_ASCII, TARGET, VALUE,
};
use crate::limits::{Limits, Refusal};
use crate::octets::{blank_end, is_token, target_end, token_end, trim, value_end};
use crate::request_head::{Field, RequestHead, Span, Version};
use crate::target;

/// Octets before the variables.
const HEADER: usize = 4;

const HTTP: Refusal = Refusal::new(
    400,
    "This looks like HTTP, but this address speaks the uwsgi protocol: ask the proxy in front of it, or bind http://.",
);
const MODIFIER: Refusal =
    Refusal::new(400, "This is not the uwsgi packet of a WSGI request: both of its modifiers must be 0.");
const MALFORMED: Refusal =
    Refusal::new(400, "The variables of a uwsgi packet must fill the stated size of the packet.");
const NAME: Refusal = Refusal::new(
    400,
    "The name of a uwsgi variable must be visible ASCII characters other than \"=\", and that of an HTTP_ variable a token.",
);
const METHOD: Refusal = Refusal::new(400, "The uwsgi variable REQUEST_METHOD must be present and be a token.");
const URI: Refusal = Refusal::new(400, "The uwsgi variable REQUEST_URI must be present, as sent by the client.");
const ADDRESS: Refusal = Refusal::new(400, "The uwsgi variable REMOTE_ADDR must be an IP address, or empty.");
const NUL: Refusal = Refusal::new(400, "The value of a uwsgi variable other than a path must not have NUL characters.");
const LINE_END: Refusal = Refusal::new(
    400,
    "The uwsgi variables QUERY_STRING, REMOTE_*, SERVER_NAME, SERVER_PORT and SERVER_PROTOCOL must not have line ends.",
);

macro_rules! twice {
    ($name:literal) => {
        Refusal::new(
            400,
            concat!(
                "The uwsgi variable ",
                $name,
                " must be given once: the proxy may be configured to send it in two \
                                                   places."
            ),
        )
    };
}

/// Variables that identify the client, the requested resource and the length of the request. A proxy sends each once,
/// unless its configuration adds one to a list that already has it; then it is impossible to tell which one counts.
const ONCE: [(&[u8], Refusal); 8] = [
    (b"REQUEST_METHOD", twice!("REQUEST_METHOD")),
    (b"REQUEST_URI", twice!("REQUEST_URI")),
    (b"CONTENT_LENGTH", twice!("CONTENT_LENGTH")),
    (b"CONTENT_TYPE", twice!("CONTENT_TYPE")),
    (b"HTTP_HOST", twice!("HTTP_HOST")),
    (b"REMOTE_ADDR", twice!("REMOTE_ADDR")),
    (b"REMOTE_PORT", twice!("REMOTE_PORT")),
    (b"REMOTE_USER", twice!("REMOTE_USER")),
];

/// Parses one packet. `bytes` starts at its first octet at each call, and holds all that has arrived since; `head` is
/// the same at each call, and empty at the first. The names of the fields of a complete head are still those of the
/// packet: see [`name_fields`].
pub fn parse(bytes: &[u8], limits: &Limits, head: &mut RequestHead) -> HeadStep {
    match packet(bytes, limits) {
        Ok(None) => HeadStep::NeedMore,
        Ok(Some(packet)) => {
            head.clear();
            match read(packet, limits, head) {
                Ok(()) => HeadStep::Complete,
                Err(refusal) => HeadStep::Refused(refusal),
            }
        }
        Err(refusal) => HeadStep::Refused(refusal),
    }
}

/// The first packet; `None`: it is not complete.
fn packet<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Option<&'a [u8]>, Refusal> {
    match bytes {
        [] | [0] | [0, _] | [0, _, _] => Ok(None),
        [0, low, high, 0, ..] => {
            let size = usize::from(u16::from_le_bytes([*low, *high]));
            if size > limits.header_bytes { Err(LONG_FIELDS) } else { Ok(bytes.get(..HEADER + size)) }
        }
        // The first octet of a method, or of the line that is the PROXY header.
        [b'A'..=b'Z', ..] => Err(HTTP),
        _ => Err(MODIFIER),
    }
}

/// Reads a complete packet. After a refusal `head` has what came before the fault.
fn read(packet: &[u8], limits: &Limits, head: &mut RequestHead) -> Result<(), Refusal> {
    let mut seen = [false; ONCE.len()];
    let mut at = HEADER;
    while at < packet.len() {
        let name = text(packet, &mut at)?;
        let value = text(packet, &mut at)?;
        let (name_text, value_text) = (name.of(packet), value.of(packet));
        if name_text.is_empty() || !name_text.iter().all(|&byte| byte.is_ascii_graphic() && byte != b'=') {
            return Err(NAME);
        }
        if let Some(position) = ONCE.iter().position(|(once, _)| *once == name_text)
            && std::mem::replace(&mut seen[position], true)
        {
            return Err(ONCE[position].1);
        }
        match name_text {
            b"REQUEST_METHOD" if value_text.len() > LARGEST_METHOD => return Err(LONG_METHOD),
            b"REQUEST_METHOD" if token_end(value_text, 0) != value_text.len() => return Err(METHOD),
            b"REQUEST_METHOD" => head.method = value,
            b"REQUEST_URI" => match value_text.get(target_end(value_text, 0)) {
                None => head.target = value,
                Some(0x80..) => return Err(NON_ASCII),
                Some(_) => return Err(TARGET),
            },
            // A client that does not know the length has sent none, yet nginx sends both.
            b"CONTENT_LENGTH" | b"CONTENT_TYPE" if value_text.is_empty() => {}
            b"CONTENT_LENGTH" | b"CONTENT_TYPE" => field(packet, name, value, limits, head)?,
            b"SERVER_PROTOCOL" if value_text == b"HTTP/1.0" => {
                head.version = Version::Http10;
                head.variables.push(Field { name, value });
            }
            _ => match name_text.strip_prefix(b"HTTP_") {
                Some(rest) if rest.is_empty() || !rest.iter().all(|&byte| is_token(byte)) => return Err(NAME),
                Some(rest) if is_said_elsewhere(rest) => {}
                Some(rest) => {
                    let name = Span { start: name.end - rest.len() as u32, end: name.end };
                    field(packet, name, value, limits, head)?;
                }
                None => variable(packet, name, value, head)?,
            },
        }
    }
    if head.method.is_empty() {
        return Err(METHOD);
    }
    if head.target.is_empty() {
        return Err(URI);
    }
    // As a request line would have it: with two spaces and the version.
    if head.method.len() + head.target.len() + " ".len() * 2 + "HTTP/1.1".len() > limits.request_line {
        return Err(LONG_LINE);
    }
    target::classify(packet, head)?;
    head.length = packet.len();
    Ok(())
}

/// A name or a value, with its length in front.
fn text(packet: &[u8], at: &mut usize) -> Result<Span, Refusal> {
    let length = packet.get(*at..).and_then(<[u8]>::first_chunk::<2>).ok_or(MALFORMED)?;
    let start = *at + length.len();
    let end = start + usize::from(u16::from_le_bytes(*length));
    if end > packet.len() {
        return Err(MALFORMED);
    }
    *at = end;
    Ok(Span::new(start, end))
}

fn field(packet: &[u8], name: Span, value: Span, limits: &Limits, head: &mut RequestHead) -> Result<(), Refusal> {
    if head.fields.len() >= limits.header_count {
        return Err(MANY_FIELDS);
    }
    let text = value.of(packet);
    if value_end(text, 0) != text.len() {
        return Err(VALUE);
    }
    let start = value.start as usize + blank_end(text, 0);
    head.fields.push(Field { name, value: Span::new(start, start + trim(text).len()) });
    Ok(())
}

/// Proxies decode the paths that they send, so any octet may stand in one. Certificates have several lines, and proxies
/// send them under names of the operator's choice; Apache's `SERVER_SIGNATURE` has the end of one.
fn variable(packet: &[u8], name: Span, value: Span, head: &mut RequestHead) -> Result<(), Refusal> {
    let name_text = name.of(packet);
    let is_path = matches!(name_text, b"PATH_INFO" | b"SCRIPT_NAME");
    let is_line = matches!(name_text, b"QUERY_STRING" | b"SERVER_NAME" | b"SERVER_PORT" | b"SERVER_PROTOCOL")
        || name_text.starts_with(b"REMOTE_");
    let value_text = value.of(packet);
    if !is_path && value_text.contains(&0) {
        return Err(NUL);
    }
    if is_line && value_text.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
        return Err(LINE_END);
    }
    head.variables.push(Field { name, value });
    Ok(())
}

/// True for fields that nginx sends as the client did, in addition to the variable that counts. The transfer coding is
/// the client's: the body after a packet has none.
fn is_said_elsewhere(name: &[u8]) -> bool {
    let is = |known: &[u8]| {
        name.len() == known.len()
            && name
                .iter()
                .zip(known)
                .all(|(byte, known)| byte.eq_ignore_ascii_case(known) || (*byte == b'-' && *known == b'_'))
    };
    is(b"CONTENT_LENGTH") || is(b"CONTENT_TYPE") || is(b"TRANSFER_ENCODING")
}

/// Gives the fields of a complete head the names that HTTP has, where they stand: `ACCEPT_ENCODING` becomes
/// `ACCEPT-ENCODING`. Whether a client wrote a dash or an underscore only the proxy knows.
pub fn name_fields(packet: &mut [u8], head: &RequestHead) {
    for field in &head.fields {
        let name = packet.get_mut(field.name.start as usize..field.name.end as usize).unwrap_or_default();
        name.iter_mut().filter(|byte| **byte == b'_').for_each(|byte| *byte = b'-');
    }
}

/// Undoes [`name_fields`], so that a complete packet can be parsed again.
pub fn restore_names(packet: &mut [u8]) {
    let mut at = HEADER;
    while let Ok(name) = text(packet, &mut at)
        && text(packet, &mut at).is_ok()
    {
        let name = packet.get_mut(name.start as usize..name.end as usize).unwrap_or_default();
        if name.starts_with(b"HTTP_") || matches!(&*name, b"CONTENT-LENGTH" | b"CONTENT-TYPE") {
            name.iter_mut().filter(|byte| **byte == b'-').for_each(|byte| *byte = b'_');
        }
    }
}

/// The value of a variable that is no field; of several, the last one, which is also what uWSGI shows an application.
#[must_use]
pub fn variable_of<'a>(packet: &'a [u8], head: &RequestHead, name: &[u8]) -> Option<&'a [u8]> {
    head.variables.iter().rfind(|variable| variable.name.of(packet) == name).map(|variable| variable.value.of(packet))
}

/// Whether the client used https; `None`: the proxy does not say. nginx and Apache send `HTTPS` only if it is true.
/// `UWSGI_SCHEME` overrides it, as with uWSGI.
#[must_use]
pub fn is_https(packet: &[u8], head: &RequestHead) -> Option<bool> {
    let of = |name| variable_of(packet, head, name).filter(|value| !value.is_empty());
    let says = |value: &[u8]| value.eq_ignore_ascii_case(b"https");
    if let Some(scheme) = of(b"UWSGI_SCHEME") {
        return Some(says(scheme));
    }
    let is_on = |value: &[u8]| [&b"on"[..], b"1", b"true", b"yes"].iter().any(|on| value.eq_ignore_ascii_case(on));
    match (of(b"HTTPS").map(is_on), of(b"REQUEST_SCHEME").map(says)) {
        (Some(true), _) | (_, Some(true)) => Some(true),
        (None, None) => None,
        _ => Some(false),
    }
}

/// The address of the client; `None`: the proxy does not say, or its client has none, as on a UNIX socket. The port is
/// 0 if only the port is missing.
///
/// # Errors
/// A [`Refusal`] for anything else than an address: who is believed next would be decided by it.
pub fn client(packet: &[u8], head: &RequestHead) -> Result<Option<SocketAddr>, Refusal> {
    let text = |name| std::str::from_utf8(variable_of(packet, head, name).unwrap_or_default()).map_err(|_| ADDRESS);
    let address = text(b"REMOTE_ADDR")?;
    if address.is_empty() || address.starts_with("unix:") {
        return Ok(None);
    }
    // Apache shows the zone of a link-local address, which means nothing elsewhere.
    let without_zone = address.split('%').next().unwrap_or_default();
    let address: IpAddr = without_zone.parse().map_err(|_| ADDRESS)?;
    let port = text(b"REMOTE_PORT")?.parse().unwrap_or(0);
    Ok(Some(SocketAddr::new(address.to_canonical(), port)))
}
