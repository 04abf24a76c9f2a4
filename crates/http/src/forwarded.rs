//! What proxies state about a request: `Forwarded` (RFC 7239) and `X-Forwarded-For`, `-Proto`, `-Host`, `-Port` and
//! `-Prefix`.
//!
//! Each proxy adds an element at the right end of a list; all lines of a field form one list. The list is read from the
//! right: the first element is the statement of the peer, and each element names the sender of the element to its left.
//! The walk ends at the first address that is not trusted, which is the client. Everything further left came from that
//! client and is not read.
//!
//! | what arrives | result | reason |
//! |---|---|---|
//! | no element for a hop, `unknown`, `_name` | the last address that is known | RFC 7239 section 6 |
//! | `unix:` in `X-Forwarded-For` | a client without address; trusted as those are | so nginx names its peer on a UNIX socket |
//! | an address with a port | both; without one the port is 0 | RFC 7239 section 6; some proxies do it in `X-Forwarded-For` |
//! | a comma within a quoted string | separates elements | an open quote cannot hide what a proxy adds; the parts are malformed |
//! | a quoted pair in `for`, `proto`, `host` | 400 | none of them needs one |
//! | blanks around `;` | skipped | RFC 7239 section 4 has none, but some proxies send them |
//! | an element of `Forwarded` without `proto` or `host` | that of the next proxy which states it | towards this server |
//! | -Proto, -Host, -Port or -Prefix as long as -For | the element at the place where the walk ended | |
//! | one of another length | its last element | that is what the peer has stated |
//! | both `Forwarded` and an `X-Forwarded` field | 400, unless client, scheme and host are the same | the client wrote one of them |
//! | a scheme but http and https, no authority, a port of 0 | 400 | nothing that a trusted proxy states may be guessed |
//! | a prefix with an empty segment, `.`, `..`, `\`, control characters, encoded or not | 400 | `//host` is another site |
//!
//! Pure functions. Any thread.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::limits::Refusal;
use crate::octets::{blank_end, hexadecimal, is_blank, is_value, token_end};
use crate::request_head::{Field, Span};
use crate::target::is_authority;
use crate::trust::{ForwardedField as Name, Trust};

const FORWARDED: Refusal = Refusal::new(400, "Forwarded of a trusted proxy must have the syntax of RFC 7239.");
const FORWARDED_FOR: Refusal = Refusal::new(
    400,
    "Each address in Forwarded of a trusted proxy must be an IP address, \"unknown\" or a name with \"_\".",
);
const FOR: Refusal = Refusal::new(400, "X-Forwarded-For of a trusted proxy must be a list of IP addresses.");
const SCHEME: Refusal = Refusal::new(400, "The scheme stated by a trusted proxy must be http or https.");
const HOST: Refusal =
    Refusal::new(400, "The host stated by a trusted proxy must be a name or an address, optionally with a port.");
const PORT: Refusal = Refusal::new(400, "X-Forwarded-Port of a trusted proxy must be a number from 1 to 65535.");
const PREFIX: Refusal = Refusal::new(
    400,
    "X-Forwarded-Prefix of a trusted proxy must be a path that begins with \"/\", without empty segments or \"..\".",
);
const DISAGREEMENT: Refusal =
    Refusal::new(400, "Forwarded and X-Forwarded-* disagree: the proxy must remove the field that it does not set.");

/// The scheme of the URL that the client requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `http`.
    Http,
    /// `https`.
    Https,
}

/// What trusted proxies state. The spans refer to the bytes of the request's head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statement {
    /// The client's address; its port is 0 when only the address is stated. `None`: it is on a UNIX socket.
    pub client: Option<SocketAddr>,
    /// The scheme.
    pub scheme: Option<Scheme>,
    /// The host, with its port if it has one: a valid authority.
    pub host: Option<Span>,
    /// The port that the client connected to: stated as such, or that of the host.
    pub port: Option<u16>,
    /// The path that a proxy has removed from the start of the target: it begins with a slash and does not end with one,
    /// and is not decoded.
    pub prefix: Option<Span>,
}

impl Name {
    /// The field with this name, in any case.
    fn of(name: &[u8]) -> Option<Self> {
        let known = match name.len() {
            9 => Self::Forwarded,
            15 => Self::For,
            16 if name[12] | 0x20 == b'h' => Self::Host,
            16 => Self::Port,
            17 => Self::Proto,
            18 => Self::Prefix,
            _ => return None,
        };
        // Most names of these lengths differ in their first octet.
        (may_be_forwarded(name) && name.eq_ignore_ascii_case(known.name().as_bytes())).then_some(known)
    }
}

/// Whether a field with this name is read here.
#[must_use]
pub fn is_forwarded(name: &[u8]) -> bool {
    Name::of(name).is_some()
}

/// Whether the first octet of a name is that of one of these: false for most of their lengths, which are 9 and 15 to 18.
#[inline]
pub(crate) fn may_be_forwarded(name: &[u8]) -> bool {
    let first = name.first().map_or(0, |octet| octet | 0x20);
    first == if name.len() == 9 { b'f' } else { b'x' }
}

/// Whether an underscore is all that distinguishes a name from one of these: CGI variables have no other character for
/// a dash.
#[must_use]
pub fn resembles_forwarded(name: &[u8]) -> bool {
    // The longest of them has 18 octets.
    let mut dashed = [0; 18];
    let Some(dashed) = dashed.get_mut(..name.len()) else { return false };
    for (to, &from) in dashed.iter_mut().zip(name) {
        *to = if from == b'_' { b'-' } else { from };
    }
    dashed != name && is_forwarded(dashed)
}

/// Removes the forwarding fields of a peer that is not trusted. Returns one that was present.
pub fn remove_all(bytes: &[u8], fields: &mut Vec<Field>) -> Option<Name> {
    remove(bytes, fields, |_| true)
}

/// Removes the fields that the proxies do not write ([`crate::trust::ForwardedFields`]). Returns one that was present.
pub fn remove_others(bytes: &[u8], fields: &mut Vec<Field>, trust: &Trust) -> Option<Name> {
    remove(bytes, fields, |name| !trust.fields().has(name))
}

fn remove(bytes: &[u8], fields: &mut Vec<Field>, is_meant: impl Fn(Name) -> bool) -> Option<Name> {
    let mut removed = None;
    fields.retain(|field| {
        let meant = Name::of(field.name.of(bytes)).filter(|name| is_meant(*name));
        removed = removed.or(meant);
        meant.is_none()
    });
    removed
}

/// What the fields of a request state, if the peer is trusted; otherwise, that the peer is the client. Fields that the
/// proxies do not write must already have been removed ([`remove_others`]).
///
/// # Errors
/// A [`Refusal`] if what a trusted proxy states is malformed, or contradicts itself.
pub fn read(bytes: &[u8], fields: &[Field], trust: &Trust, peer: Option<SocketAddr>) -> Result<Statement, Refusal> {
    let lists = ForwardedLists::find(bytes, fields);
    if !lists.has(Name::Forwarded) {
        return lists.extension(trust, peer);
    }
    let standard = lists.standard(trust, peer)?;
    if ![Name::For, Name::Proto, Name::Host, Name::Port, Name::Prefix].into_iter().any(|name| lists.has(name)) {
        return Ok(standard);
    }
    let extension = lists.extension(trust, peer)?;
    let address = |statement: &Statement| statement.client.map(|client| client.ip());
    let host = |statement: &Statement| statement.host.map(|host| host.of(bytes).to_ascii_lowercase());
    let is_same = address(&standard) == address(&extension)
        && standard.scheme == extension.scheme
        && host(&standard) == host(&extension);
    if is_same { Ok(extension) } else { Err(DISAGREEMENT) }
}

/// The lists of a request.
#[derive(Clone, Copy)]
struct ForwardedLists<'a> {
    bytes: &'a [u8],
    /// Of each [`Name`]: the fields from its first line to its last one.
    lines: [&'a [Field]; 6],
}

impl<'a> ForwardedLists<'a> {
    fn find(bytes: &'a [u8], fields: &'a [Field]) -> Self {
        let mut first = [None; 6];
        let mut lines = [&fields[..0]; 6];
        for (position, field) in fields.iter().enumerate() {
            if let Some(name) = Name::of(field.name.of(bytes)) {
                let first = *first[name as usize].get_or_insert(position);
                lines[name as usize] = &fields[first..=position];
            }
        }
        Self { bytes, lines }
    }

    fn has(&self, name: Name) -> bool {
        !self.lines[name as usize].is_empty()
    }

    /// The elements of a list, the last one first, without those that are empty.
    fn last_first(self, name: Name) -> impl Iterator<Item = Span> + use<'a> {
        let Self { bytes, lines } = self;
        let lines = lines[name as usize].iter().rev();
        let lines = lines.filter(move |field| Name::of(field.name.of(bytes)) == Some(name));
        lines.flat_map(move |field| Elements { bytes, rest: Some(field.value) })
    }

    fn standard(self, trust: &Trust, peer: Option<SocketAddr>) -> Result<Statement, Refusal> {
        let mut elements = self.last_first(Name::Forwarded);
        let mut statement = Statement { client: peer, ..Statement::default() };
        let mut is_proxy = trust.is_trusted(peer);
        while is_proxy && let Some(span) = elements.next() {
            let Element { node, scheme, host } = Element::read(self.bytes, span)?;
            statement.scheme = scheme.or(statement.scheme);
            statement.host = host.or(statement.host);
            match node {
                Node::Address(address) => statement.client = Some(address),
                Node::Unix => statement.client = None,
                Node::Unknown => break,
            }
            is_proxy = trust.is_listed(statement.client);
        }
        statement.port = statement.host.and_then(|host| port_of(host.of(self.bytes)));
        Ok(statement)
    }

    fn extension(self, trust: &Trust, peer: Option<SocketAddr>) -> Result<Statement, Refusal> {
        let mut client = peer;
        let mut taken = 0;
        if !trust.is_trusted(peer) {
            return Ok(Statement { client, ..Statement::default() });
        }
        let mut elements = self.last_first(Name::For);
        let mut is_proxy = true;
        while is_proxy && let Some(span) = elements.next() {
            taken += 1;
            match Node::extension(span.of(self.bytes)).ok_or(FOR)? {
                Node::Address(address) => client = Some(address),
                Node::Unix => client = None,
                Node::Unknown => break,
            }
            is_proxy = trust.is_listed(client);
        }
        let hop = Hop { before: usize::saturating_sub(taken, 1), after: elements.count() };
        let text = |name| self.of_hop(name, hop).map(|span| (span, span.of(self.bytes)));
        let scheme = text(Name::Proto).map(|(_, text)| scheme(text)).transpose()?;
        let host = text(Name::Host).map(|(span, text)| host(text, span)).transpose()?;
        let port = text(Name::Port).map(|(_, text)| decimal_port(text).filter(|&port| port > 0).ok_or(PORT));
        let prefix = text(Name::Prefix).map(|(span, text)| prefix(text, span)).transpose()?;
        let port = port.transpose()?.or_else(|| port_of(host?.of(self.bytes)));
        Ok(Statement { client, scheme, host, port, prefix: prefix.flatten() })
    }

    /// The element that belongs to a hop.
    fn of_hop(self, name: Name, hop: Hop) -> Option<Span> {
        let mut elements = self.last_first(name);
        let last = elements.next();
        // The last element is at the first hop.
        if hop.before == 0 || last.is_none() {
            return last;
        }
        let own = elements.nth(hop.before - 1);
        if own.is_some() && elements.count() == hop.after { own } else { last }
    }
}

/// Where the walk has ended: how many elements there are on both sides.
#[derive(Clone, Copy)]
struct Hop {
    /// Nearer to this server.
    before: usize,
    /// Nearer to the client.
    after: usize,
}

/// The elements of one field line, the last one first.
struct Elements<'a> {
    bytes: &'a [u8],
    rest: Option<Span>,
}

impl Iterator for Elements<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        while let Some(rest) = self.rest {
            let text = rest.of(self.bytes);
            let comma = text.iter().rposition(|&byte| byte == b',');
            self.rest = comma.map(|comma| Span { end: rest.start + comma as u32, ..rest });
            let start = blank_end(text, comma.map_or(0, |comma| comma + 1));
            if start < text.len() {
                let blanks = text.iter().rev().take_while(|&&byte| is_blank(byte)).count() as u32;
                return Some(Span { start: rest.start + start as u32, end: rest.end - blanks });
            }
        }
        None
    }
}

/// The sender of a request, as stated by a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Address(SocketAddr),
    /// A peer on a UNIX socket of the proxy.
    Unix,
    /// The proxy does not say.
    Unknown,
}

impl Node {
    /// An element of `X-Forwarded-For`: as in `Forwarded`, or an IPv6 address without brackets, or nginx's notation for
    /// a UNIX socket.
    fn extension(text: &[u8]) -> Option<Self> {
        if text == b"unix:" {
            return Some(Self::Unix);
        }
        match ip::<Ipv6Addr>(text) {
            Some(address) => Some(Self::address(IpAddr::V6(address), 0)),
            None => Self::standard(text),
        }
    }

    /// `node` of RFC 7239 section 6.
    fn standard(text: &[u8]) -> Option<Self> {
        let name_end = match text {
            [b'[', ..] => memchr::memchr(b']', text)? + 1,
            _ => memchr::memchr(b':', text).unwrap_or(text.len()),
        };
        let (name, port) = text.split_at(name_end);
        let port = match port {
            [] => 0,
            [b':', port @ ..] if is_obfuscated(port) => 0,
            [b':', port @ ..] => decimal_port(port)?,
            _ => return None,
        };
        match name {
            [b'[', six @ .., b']'] => Some(Self::address(IpAddr::V6(ip(six)?), port)),
            _ if name.eq_ignore_ascii_case(b"unknown") || is_obfuscated(name) => Some(Self::Unknown),
            four => Some(Self::address(IpAddr::V4(ip::<Ipv4Addr>(four)?), port)),
        }
    }

    fn address(address: IpAddr, port: u16) -> Self {
        Self::Address(SocketAddr::new(address.to_canonical(), port))
    }
}

fn ip<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// `obfnode` and `obfport` of RFC 7239 section 6.
fn is_obfuscated(text: &[u8]) -> bool {
    matches!(text, [b'_', name @ ..] if !name.is_empty()
        && name.iter().all(|&byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')))
}

/// `1*5DIGIT`, as a number of 16 bits.
fn decimal_port(text: &[u8]) -> Option<u16> {
    let is_port = (1..=5).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    if is_port { std::str::from_utf8(text).ok()?.parse().ok() } else { None }
}

/// The port of an authority.
fn port_of(authority: &[u8]) -> Option<u16> {
    let colon = memchr::memrchr(b':', authority)?;
    decimal_port(&authority[colon + 1..]).filter(|&port| port > 0)
}

/// `forwarded-element` of RFC 7239 section 4.
struct Element {
    node: Node,
    scheme: Option<Scheme>,
    host: Option<Span>,
}

impl Element {
    fn read(bytes: &[u8], span: Span) -> Result<Self, Refusal> {
        let text = span.of(bytes);
        // `by` has no effect, but must not be repeated either.
        let (mut node, mut proto, mut host_span, mut by) = (None, None, None, None);
        let mut at = blank_end(text, 0);
        while at < text.len() {
            if text[at] == b';' {
                at = blank_end(text, at + 1);
                continue;
            }
            let pair = Pair::read(text, at)?;
            let name = &text[at..pair.equals];
            let slot = match name.len() {
                2 if name.eq_ignore_ascii_case(b"by") => Some(&mut by),
                3 if name.eq_ignore_ascii_case(b"for") => Some(&mut node),
                4 if name.eq_ignore_ascii_case(b"host") => Some(&mut host_span),
                5 if name.eq_ignore_ascii_case(b"proto") => Some(&mut proto),
                _ => None,
            };
            if let Some(slot) = slot {
                let is_repeated = slot.replace(pair.value).is_some();
                if is_repeated || pair.has_quoted_pair {
                    return Err(FORWARDED);
                }
            }
            at = blank_end(text, pair.end);
            if !matches!(text.get(at), None | Some(b';')) {
                return Err(FORWARDED);
            }
        }
        let of = |value: Span| value.of(text);
        let outer = |value: Span| Span { start: span.start + value.start, end: span.start + value.end };
        Ok(Self {
            node: node.map_or(Ok(Node::Unknown), |value| Node::standard(of(value)).ok_or(FORWARDED_FOR))?,
            scheme: proto.map(|value| scheme(of(value))).transpose()?,
            host: host_span.map(|value| host(of(value), outer(value))).transpose()?,
        })
    }
}

/// `forwarded-pair` of RFC 7239 section 4. Offsets are those in the element.
struct Pair {
    /// Of the `=`.
    equals: usize,
    /// The value, without quotes.
    value: Span,
    has_quoted_pair: bool,
    /// After the pair.
    end: usize,
}

impl Pair {
    fn read(text: &[u8], at: usize) -> Result<Self, Refusal> {
        let equals = token_end(text, at);
        if equals == at || text.get(equals) != Some(&b'=') {
            return Err(FORWARDED);
        }
        let start = equals + 1;
        if text.get(start) != Some(&b'"') {
            let end = token_end(text, start);
            let value = Span::new(start, end);
            return if value.is_empty() {
                Err(FORWARDED)
            } else {
                Ok(Self { equals, value, has_quoted_pair: false, end })
            };
        }
        let start = start + 1;
        let mut has_quoted_pair = false;
        let mut end = start;
        loop {
            match text.get(end..) {
                Some([b'"', ..]) => break,
                Some([b'\\', escaped, ..]) if is_value(*escaped) => {
                    has_quoted_pair = true;
                    end += 2;
                }
                Some([byte, ..]) if is_value(*byte) && *byte != b'\\' => end += 1,
                _ => return Err(FORWARDED),
            }
        }
        Ok(Self { equals, value: Span::new(start, end), has_quoted_pair, end: end + 1 })
    }
}

fn scheme(text: &[u8]) -> Result<Scheme, Refusal> {
    if text.eq_ignore_ascii_case(b"https") {
        Ok(Scheme::Https)
    } else if text.eq_ignore_ascii_case(b"http") {
        Ok(Scheme::Http)
    } else {
        Err(SCHEME)
    }
}

fn host(text: &[u8], span: Span) -> Result<Span, Refusal> {
    if is_authority(text) { Ok(span) } else { Err(HOST) }
}

/// A prefix without the slash at its end. `None`: nothing was removed from the path.
fn prefix(text: &[u8], span: Span) -> Result<Option<Span>, Refusal> {
    let [b'/', inner @ ..] = text else { return Err(PREFIX) };
    let inner = inner.strip_suffix(b"/").unwrap_or(inner);
    if inner.is_empty() {
        // `//` is the start of another site's address.
        return if text.len() == 1 { Ok(None) } else { Err(PREFIX) };
    }
    if inner.split(|&byte| byte == b'/').all(is_segment) {
        Ok(Some(Span { end: span.start + 1 + inner.len() as u32, ..span }))
    } else {
        Err(PREFIX)
    }
}

/// A segment of a path, percent-encoded, that a client and an application cannot read differently.
fn is_segment(segment: &[u8]) -> bool {
    let mut rest = segment;
    // The number of dots, if the segment has nothing else.
    let mut dots = Some(0);
    while let [octet, tail @ ..] = rest {
        let octet = match (octet, tail) {
            (b'%', [high, low, tail @ ..]) => {
                let (Some(high), Some(low)) = (hexadecimal(*high), hexadecimal(*low)) else { return false };
                rest = tail;
                high << 4 | low
            }
            (b'%' | b'?' | b'#' | b'"' | b'<' | b'>', _) => return false,
            (0x21..=0x7e, tail) => {
                rest = tail;
                *octet
            }
            _ => return false,
        };
        match octet {
            0..=0x1f | 0x7f | b'/' | b'\\' => return false,
            b'.' => dots = dots.map(|dots| dots + 1),
            _ => dots = None,
        }
    }
    !matches!(dots, Some(0..=2))
}
