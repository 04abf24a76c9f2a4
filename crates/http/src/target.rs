//! The request target and the authority grammar that it shares with the Host field (RFC 9112 section 3.2, RFC 3986
//! section 3.2). The caller has checked the octets of the target. No state; any thread.

use std::net::Ipv6Addr;

use crate::limits::Refusal;
use crate::octets::is_reg_name;
use crate::request_head::{RequestHead, Span, TargetForm};

const FORM: Refusal =
    Refusal::new(400, "The request target must be a path that starts with \"/\", or a complete http or https address.");
const ASTERISK: Refusal = Refusal::new(400, "The request target \"*\" is only for the method OPTIONS.");
const CONNECT_TARGET: Refusal = Refusal::new(400, "The request target of CONNECT must be a host and a port.");
const CONNECT: Refusal = Refusal::new(501, "This server is not a proxy: it opens no tunnels.");
const AUTHORITY: Refusal = Refusal::new(
    400,
    "The host of the request target must be a name or an address, optionally with a port, and without a user name.",
);

/// The head of a request of which only method and target are known. If the target has no valid form, only those are set.
#[must_use]
pub fn head_of(bytes: &[u8], method: Span, target: Span) -> RequestHead {
    let mut head = RequestHead { method, target, ..RequestHead::default() };
    let _ = classify(bytes, &mut head);
    head
}

/// Sets form, path, query, scheme and authority from `head.target` and `head.method`.
pub(crate) fn classify(bytes: &[u8], head: &mut RequestHead) -> Result<(), Refusal> {
    let target = head.target.of(bytes);
    if head.method.of(bytes) == b"CONNECT" {
        return Err(if is_connect_target(target) { CONNECT } else { CONNECT_TARGET });
    }
    match target {
        [b'/', ..] => {
            head.form = TargetForm::Origin;
            split_query(bytes, head.target, head);
            Ok(())
        }
        b"*" if head.method.of(bytes) == b"OPTIONS" => {
            head.form = TargetForm::Asterisk;
            head.path = head.target;
            head.query = None;
            Ok(())
        }
        b"*" => Err(ASTERISK),
        _ => absolute(bytes, target, head),
    }
}

fn split_query(bytes: &[u8], span: Span, head: &mut RequestHead) {
    match span.of(bytes).iter().position(|&byte| byte == b'?') {
        Some(mark) => {
            let mark = span.start + mark as u32;
            head.path = Span { start: span.start, end: mark };
            head.query = Some(Span { start: mark + 1, end: span.end });
        }
        None => {
            head.path = span;
            head.query = None;
        }
    }
}

fn absolute(bytes: &[u8], target: &[u8], head: &mut RequestHead) -> Result<(), Refusal> {
    let scheme = memchr::memchr(b':', target).ok_or(FORM)?;
    let known = target[..scheme].eq_ignore_ascii_case(b"http") || target[..scheme].eq_ignore_ascii_case(b"https");
    if !known || !target[scheme..].starts_with(b"://") {
        return Err(FORM);
    }
    let start = scheme + 3;
    let end = memchr::memchr2(b'/', b'?', &target[start..]).map_or(target.len(), |length| start + length);
    // An empty host must be rejected (RFC 9110 section 4.2.1); user information is an error (section 4.2.4).
    if !is_authority(&target[start..end]) {
        return Err(AUTHORITY);
    }
    let base = head.target.start;
    let span = |from: usize, to: usize| Span { start: base + from as u32, end: base + to as u32 };
    head.form = TargetForm::Absolute;
    head.scheme = Some(span(0, scheme));
    head.authority = Some(span(start, end));
    split_query(bytes, span(end, target.len()), head);
    if head.path.is_empty() {
        // An empty path means "/" (RFC 9110 section 4.2.3). The span is that of the second slash of "://".
        head.path = span(start - 1, start);
    }
    Ok(())
}

/// `uri-host ":" port`, both present (RFC 9112 section 3.2.3).
fn is_connect_target(target: &[u8]) -> bool {
    is_authority(target)
        && target
            .iter()
            .rposition(|&byte| byte == b':')
            .is_some_and(|colon| colon + 1 < target.len() && target[colon + 1..].iter().all(u8::is_ascii_digit))
}

/// `uri-host [ ":" port ]` with a host that is not empty, without userinfo.
pub(crate) fn is_authority(authority: &[u8]) -> bool {
    let (host_is_good, rest) = if let [b'[', literal @ ..] = authority {
        let Some(end) = memchr::memchr(b']', literal) else {
            return false;
        };
        (is_ip_literal(&literal[..end]), &literal[end + 1..])
    } else {
        let end = memchr::memchr(b':', authority).unwrap_or(authority.len());
        (end > 0 && is_reg_name_text(&authority[..end]), &authority[end..])
    };
    host_is_good
        && match rest {
            [] => true,
            [b':', port @ ..] => is_port(port),
            _ => false,
        }
}

/// `*DIGIT`: an empty port is the scheme's own (RFC 3986 section 3.2.3).
fn is_port(port: &[u8]) -> bool {
    port.len() <= 5
        && port.iter().all(u8::is_ascii_digit)
        && port.iter().fold(0, |value, digit| value * 10 + u32::from(digit - b'0')) <= 65_535
}

/// `reg-name`, and so every IPv4 address: its octets are allowed in one.
fn is_reg_name_text(name: &[u8]) -> bool {
    let mut rest = name;
    while let [byte, tail @ ..] = rest {
        rest = match tail {
            _ if is_reg_name(*byte) => tail,
            [high, low, tail @ ..] if *byte == b'%' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => tail,
            _ => return false,
        };
    }
    true
}

/// The text between the brackets: `IPv6address` or `IPvFuture`. A zone is refused: it means nothing on another host.
fn is_ip_literal(literal: &[u8]) -> bool {
    if let [b'v' | b'V', future @ ..] = literal {
        let Some(dot) = memchr::memchr(b'.', future) else {
            return false;
        };
        let (version, address) = (&future[..dot], &future[dot + 1..]);
        return !version.is_empty()
            && version.iter().all(u8::is_ascii_hexdigit)
            && !address.is_empty()
            && address.iter().all(|&byte| is_reg_name(byte) || byte == b':');
    }
    std::str::from_utf8(literal).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok())
}
