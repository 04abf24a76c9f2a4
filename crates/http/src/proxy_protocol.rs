//! The PROXY protocol, versions 1 and 2: what a proxy states in front of a connection, before the first byte of HTTP.
//!
//! The specification is `doc/proxy-protocol.txt` of HAProxy; "2.1" below is its section 2.1. A client that begins with
//! anything else is refused at the first byte that differs, so it waits for nothing.
//!
//! | what arrives | result | section, reason |
//! |---|---|---|
//! | a line of more than 107 bytes | refused | 2.1: the longest that is possible |
//! | another case, more than one space, leading zeros, a bare LF | refused | 2.1 |
//! | `TCP4` with IPv6 addresses, `TCP6` with IPv4 ones | refused | 2.1; `::ffff:192.0.2.1` is one of IPv6 |
//! | `UNKNOWN`, whatever follows it in the line | the socket's peer | 2.1 |
//! | `LOCAL` | the socket's peer; family and addresses are not read | 2.2: the proxy's own connection |
//! | the family `AF_UNSPEC` with the protocol `UNSPEC` | the socket's peer | 2.2 |
//! | `AF_UNIX` | a client without address | 2.2 |
//! | a datagram protocol | as a stream | a proxy that was asked by HTTP/3 says so |
//! | another version, command, family or protocol, or fewer bytes than the addresses need | refused | 2.2 |
//! | TLVs | skipped, and not checked | 2.2 |
//! | more than 4,096 bytes after the first 16 | refused | 2.2 allows 65,535; what proxies send is shorter by far |
//!
//! Pure functions. Any thread.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The longest header of version 1, with its CRLF.
const LONGEST_LINE: usize = 107;
const LINE_START: &[u8] = b"PROXY ";
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The signature, version and command, family and protocol, and the length of what follows.
const FIXED: usize = 16;
/// Bytes of addresses and TLVs at most.
const LONGEST_REST: usize = 4_096;
/// The longest header: more bytes need not be kept to read one.
pub const LONGEST: usize = FIXED + LONGEST_REST;

/// The versions that are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Versions {
    /// Version 1, a line of text.
    V1,
    /// Version 2, which is binary.
    V2,
    /// Either.
    Any,
}

/// The client of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxySource {
    /// The socket's peer: the connection is the proxy's own, or the proxy does not know the client.
    Peer,
    /// That of a client with this address.
    Client(SocketAddr),
    /// That of a client on a UNIX socket of the proxy.
    Unix,
}

/// What the first bytes of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderStep {
    /// The beginning of a header.
    NeedMore,
    /// A whole header.
    Complete {
        /// Its length in bytes; what follows it is HTTP.
        length: usize,
        /// The client of the connection.
        source: ProxySource,
    },
    /// No header.
    Refused(Fault),
}

/// Why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// They begin with something else.
    Absent,
    /// It is a header of the other version.
    OtherVersion,
    /// It is malformed.
    Malformed,
    /// It is longer than a header may be.
    TooLong,
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Absent => "the connection does not begin with a PROXY header",
            Self::OtherVersion => "the connection begins with a PROXY header of the other version",
            Self::Malformed => "the PROXY header is malformed",
            Self::TooLong => "the PROXY header is too long",
        })
    }
}

/// Reads a header from all bytes of a connection so far. The cost does not depend on how many of them had already been
/// read before. It is small: a line is short, and of version 2 only the first 52 bytes are read.
#[must_use]
pub fn parse(bytes: &[u8], versions: Versions) -> HeaderStep {
    let (is_one, is_two) = (begins(bytes, LINE_START), begins(bytes, SIGNATURE));
    let step = match (is_one, is_two, versions) {
        // Nothing has arrived yet.
        (true, true, _) => Ok(HeaderStep::NeedMore),
        (true, _, Versions::V1 | Versions::Any) => line(bytes),
        (_, true, Versions::V2 | Versions::Any) => binary(bytes),
        // One byte is not enough to tell a header of the other version from HTTP.
        (true, _, Versions::V2) if bytes.len() >= LINE_START.len() => Err(Fault::OtherVersion),
        (_, true, Versions::V1) if bytes.len() >= SIGNATURE.len() => Err(Fault::OtherVersion),
        (true, _, Versions::V2) | (_, true, Versions::V1) => Ok(HeaderStep::NeedMore),
        (false, false, _) => Err(Fault::Absent),
    };
    step.unwrap_or_else(HeaderStep::Refused)
}

fn begins(bytes: &[u8], start: &[u8]) -> bool {
    let common = bytes.len().min(start.len());
    bytes[..common] == start[..common]
}

/// Version 1.
fn line(bytes: &[u8]) -> Result<HeaderStep, Fault> {
    let bytes = &bytes[..bytes.len().min(LONGEST_LINE)];
    let Some(end) = bytes.iter().position(|&byte| byte == b'\r' || byte == b'\n') else {
        return if bytes.len() < LONGEST_LINE { Ok(HeaderStep::NeedMore) } else { Err(Fault::TooLong) };
    };
    match bytes[end..] {
        [b'\r', b'\n', ..] => {}
        [b'\r'] if bytes.len() < LONGEST_LINE => return Ok(HeaderStep::NeedMore),
        [b'\r'] => return Err(Fault::TooLong),
        _ => return Err(Fault::Malformed),
    }
    let source = bytes.get(LINE_START.len()..end).and_then(line_source).ok_or(Fault::Malformed)?;
    Ok(HeaderStep::Complete { length: end + 2, source })
}

/// The text between `PROXY ` and the end of the line.
fn line_source(text: &[u8]) -> Option<ProxySource> {
    let text = std::str::from_utf8(text).ok()?;
    if text == "UNKNOWN" || text.starts_with("UNKNOWN ") {
        return Some(ProxySource::Peer);
    }
    let mut words = text.split(' ');
    let is_four = match words.next()? {
        "TCP4" => true,
        "TCP6" => false,
        _ => return None,
    };
    let mut address = || {
        let word = words.next()?;
        if is_four { word.parse().ok().map(IpAddr::V4) } else { word.parse().ok().map(IpAddr::V6) }
    };
    let (source, _) = (address()?, address()?);
    let mut port = || line_port(words.next()?);
    let (source_port, _) = (port()?, port()?);
    words.next().is_none().then_some(client(source, source_port))
}

/// A decimal number without leading zeros.
fn line_port(word: &str) -> Option<u16> {
    let is_plain = word.bytes().all(|byte| byte.is_ascii_digit()) && (word == "0" || !word.starts_with('0'));
    if is_plain { word.parse().ok() } else { None }
}

fn client(address: IpAddr, port: u16) -> ProxySource {
    ProxySource::Client(SocketAddr::new(address.to_canonical(), port))
}

/// The addresses of a header of version 2.
#[derive(Clone, Copy)]
enum Addresses {
    None,
    Four,
    Six,
    Unix,
}

impl Addresses {
    /// How many bytes they take.
    const fn length(self) -> usize {
        match self {
            Self::None => 0,
            Self::Four => 12,
            Self::Six => 36,
            Self::Unix => 216,
        }
    }

    /// The client of the connection.
    fn source(self, bytes: &[u8]) -> Option<ProxySource> {
        let port = |at: usize| Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        Some(match self {
            Self::None => ProxySource::Peer,
            Self::Four => client(IpAddr::V4(Ipv4Addr::from(*bytes.first_chunk::<4>()?)), port(8)?),
            Self::Six => client(IpAddr::V6(Ipv6Addr::from(*bytes.first_chunk::<16>()?)), port(32)?),
            Self::Unix => ProxySource::Unix,
        })
    }
}

/// Version 2.
fn binary(bytes: &[u8]) -> Result<HeaderStep, Fault> {
    // Version and command.
    let is_local = match bytes.get(12) {
        None => return Ok(HeaderStep::NeedMore),
        Some(0x20) => true,
        Some(0x21) => false,
        Some(_) => return Err(Fault::Malformed),
    };
    // Family and protocol.
    let addresses = match bytes.get(13) {
        None => return Ok(HeaderStep::NeedMore),
        Some(_) if is_local => Addresses::None,
        Some(0x00) => Addresses::None,
        Some(0x11 | 0x12) => Addresses::Four,
        Some(0x21 | 0x22) => Addresses::Six,
        Some(0x31 | 0x32) => Addresses::Unix,
        Some(_) => return Err(Fault::Malformed),
    };
    let Some(&[high, low]) = bytes.get(14..FIXED).and_then(<[u8]>::first_chunk) else {
        return Ok(HeaderStep::NeedMore);
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length < addresses.length() {
        return Err(Fault::Malformed);
    }
    if length > LONGEST_REST {
        return Err(Fault::TooLong);
    }
    let Some(rest) = bytes.get(FIXED..FIXED + length) else { return Ok(HeaderStep::NeedMore) };
    let source = addresses.source(rest).ok_or(Fault::Malformed)?;
    Ok(HeaderStep::Complete { length: FIXED + length, source })
}
