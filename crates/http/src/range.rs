//! Byte ranges (RFC 9110 section 14): which parts of a representation a request asks for.
//!
//! A pure function. Any thread.

use crate::octets::trim;

/// Maximum number of ranges. A request for more gets the whole representation (RFC 9110 section 14.2).
const MAX_RANGES: usize = 64;
/// Maximum number of ranges that overlap another one: no client needs more, and each one is sent again (RFC 9110
/// section 17.15).
const OVERLAPS: usize = 2;

/// A part of a representation: offsets of its first and last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub first: u64,
    /// Offset of the last byte, which is not below `first`.
    pub last: u64,
}

impl ByteRange {
    /// Its length in bytes, 1 at least.
    #[must_use]
    pub fn length(self) -> u64 {
        self.last - self.first + 1
    }
}

/// The result of reading a Range field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ranges {
    /// The whole representation: the field is malformed or uses another unit, or it asks for more ranges, or more
    /// overlapping ranges, than a server needs to allow. It is then ignored, as RFC 9110 section 14.2 permits.
    Whole,
    /// These parts, in the order of the request; 206.
    Parts(Vec<ByteRange>),
    /// No part of the representation; 416.
    Unsatisfiable,
}

/// The boundary between the parts of a response with several ranges. Clients find the end of a part by its length, so
/// it does not matter whether a file contains the boundary.
const BOUNDARY: &str = "tailrace-part-6b1f0d52c7e94a38";

/// The body of a response with several ranges (RFC 9110 section 14.6), without the bytes of the representation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Multipart {
    /// The Content-Type of the response.
    pub media_type: String,
    /// What precedes each part.
    pub headers: Vec<String>,
    /// What follows the last one.
    pub end: String,
    /// The Content-Length of the response.
    pub length: u64,
}

impl Multipart {
    /// The body for these parts of a representation of this length and media type; `None`: the type is unknown.
    #[must_use]
    pub fn new(parts: &[ByteRange], length: u64, media_type: Option<&str>) -> Self {
        let media_type = media_type.map(|media_type| format!("Content-Type: {media_type}\r\n")).unwrap_or_default();
        let header = |part: &ByteRange| {
            format!("\r\n--{BOUNDARY}\r\n{media_type}Content-Range: {}\r\n\r\n", content_range(*part, length))
        };
        let headers: Vec<_> = parts.iter().map(header).collect();
        let end = format!("\r\n--{BOUNDARY}--\r\n");
        let lengths = parts.iter().map(|part| part.length()).chain(headers.iter().map(|header| header.len() as u64));
        let length = lengths.sum::<u64>() + end.len() as u64;
        Self { media_type: format!("multipart/byteranges; boundary={BOUNDARY}"), headers, end, length }
    }
}

/// The Content-Range field for a part of a representation of this length (RFC 9110 section 14.4).
#[must_use]
pub fn content_range(part: ByteRange, length: u64) -> String {
    format!("bytes {}-{}/{length}", part.first, part.last)
}

/// Reads the value of a Range field for a representation of `length` bytes.
#[must_use]
pub fn ranges(value: &[u8], length: u64) -> Ranges {
    let Some(equals) = value.iter().position(|&byte| byte == b'=') else { return Ranges::Whole };
    if !value[..equals].eq_ignore_ascii_case(b"bytes") {
        return Ranges::Whole;
    }
    let mut parts = Vec::new();
    let mut count = 0;
    for member in value[equals + 1..].split(|&byte| byte == b',').map(trim).filter(|member| !member.is_empty()) {
        count += 1;
        if count > MAX_RANGES {
            return Ranges::Whole;
        }
        match one(member, length) {
            None => return Ranges::Whole,
            Some(None) => {}
            Some(Some(part)) => parts.push(part),
        }
    }
    if count == 0 || overlaps(&parts) > OVERLAPS {
        return Ranges::Whole;
    }
    if parts.is_empty() { Ranges::Unsatisfiable } else { Ranges::Parts(parts) }
}

/// One member of the list. `None`: malformed. `Some(None)`: not satisfiable.
fn one(member: &[u8], length: u64) -> Option<Option<ByteRange>> {
    let dash = member.iter().position(|&byte| byte == b'-')?;
    let (first, last) = (&member[..dash], &member[dash + 1..]);
    if first.is_empty() {
        let suffix = number(last)?;
        if length == 0 && suffix > 0 {
            // The whole of an empty representation, which no range can name.
            return None;
        }
        let suffix = suffix.min(length);
        return Some((suffix > 0).then(|| ByteRange { first: length - suffix, last: length - 1 }));
    }
    let first = number(first)?;
    let last = if last.is_empty() { u64::MAX } else { number(last)? };
    if last < first {
        return None;
    }
    Some((first < length).then(|| ByteRange { first, last: last.min(length - 1) }))
}

/// A decimal number of any length; one that does not fit becomes the maximum.
fn number(digits: &[u8]) -> Option<u64> {
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    let add = |number: u64, byte: &u8| Some(number.saturating_mul(10).saturating_add(digit(byte)?));
    if digits.is_empty() { None } else { digits.iter().try_fold(0, add) }
}

/// How many of the ranges share a byte with one that begins before them.
fn overlaps(parts: &[ByteRange]) -> usize {
    let mut sorted = parts.to_vec();
    sorted.sort_unstable_by_key(|part| part.first);
    let mut end = None;
    let mut count = 0;
    for part in sorted {
        count += usize::from(end.is_some_and(|end| part.first <= end));
        end = end.max(Some(part.last));
    }
    count
}
