//! Conditional requests (RFC 9110 section 13): whether the client already has the current representation, and whether
//! it may have part of it.
//!
//! Pure functions of the request's fields and the validators of the representation. Any thread.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::octets::trim;
use crate::request_head::RequestHead;

/// What identifies the current representation of a resource (RFC 9110 section 8.8).
#[derive(Clone, Copy, Debug, Default)]
pub struct Validators<'a> {
    /// The entity tag as it is sent: quoted, and with `W/` in front if it is weak. `None`: there is none.
    pub etag: Option<&'a [u8]>,
    /// When it was last modified, in whole seconds since 1970. `None`: unknown, or within the last second, so that it
    /// may be modified again at the same time (section 8.8.2.2).
    pub modified: Option<u64>,
}

/// A time of change as a validator; both in seconds since 1970. `None`: the second is not over, so that there may be
/// another change in it (RFC 9110 section 8.8.2.2), or it is to come (section 8.8.2.1).
#[must_use]
pub fn validator_time(modified: u64, now: u64) -> Option<u64> {
    (modified < now).then_some(modified)
}

/// How a conditional request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// As if it had no condition.
    Holds,
    /// 304: the client has the current representation.
    NotModified,
    /// 412.
    Failed,
}

/// The first octets of an entity tag that is weak (RFC 9110 section 8.8.3).
const WEAK: &[u8] = b"W/";

/// Evaluates the conditions of a request for a resource that has a representation, in the order of RFC 9110 section
/// 13.2.2. `bytes`: those of `head`. Ignored are invalid dates, everything after a malformed entity tag, and all
/// conditions for methods that select no representation (section 13.2.1).
#[must_use]
pub fn evaluate(head: &RequestHead, bytes: &[u8], validators: Validators<'_>) -> Precondition {
    let method = head.method.of(bytes);
    if matches!(method, b"CONNECT" | b"OPTIONS" | b"TRACE") {
        return Precondition::Holds;
    }
    let is_read = matches!(method, b"GET" | b"HEAD");
    let has = |name: &[u8]| values(head, bytes, name).next().is_some();
    if has(b"if-match") {
        if !any_tag(head, bytes, b"if-match", |tag| is_same_strongly(tag, validators.etag)) {
            return Precondition::Failed;
        }
    } else if let Some(since) = date(head, bytes, b"if-unmodified-since")
        && validators.modified.is_some_and(|modified| modified > since)
    {
        return Precondition::Failed;
    }
    if has(b"if-none-match") {
        if any_tag(head, bytes, b"if-none-match", |tag| is_same_weakly(tag, validators.etag)) {
            return if is_read { Precondition::NotModified } else { Precondition::Failed };
        }
    } else if is_read
        && let Some(since) = date(head, bytes, b"if-modified-since")
        && validators.modified.is_some_and(|modified| modified <= since)
    {
        return Precondition::NotModified;
    }
    Precondition::Holds
}

/// The value of the Range field if it is to be applied: the method is GET, and `If-Range`, if there is one, names the
/// current representation (RFC 9110 sections 13.1.5 and 14.2). Several Range fields count as none.
#[must_use]
pub fn range<'a>(head: &RequestHead, bytes: &'a [u8], validators: Validators<'_>) -> Option<&'a [u8]> {
    if head.method.of(bytes) != b"GET" {
        return None;
    }
    let range = only(head, bytes, b"range")?;
    let mut conditions = values(head, bytes, b"if-range");
    let Some(condition) = conditions.next() else { return Some(range) };
    let is_current = if condition.ends_with(b"\"") {
        is_same_strongly(ListedTag::Tag(condition), validators.etag)
    } else {
        // Equal, not later: the clock of the client does not matter, and a file may be put back from a copy.
        seconds(condition).is_some_and(|since| validators.modified == Some(since))
    };
    (is_current && conditions.next().is_none()).then_some(range)
}

/// The values of all fields of this name (in lower case), without the whitespace around them.
fn values<'a>(head: &'a RequestHead, bytes: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let fields = head.fields.iter().filter(move |field| field.name.of(bytes).eq_ignore_ascii_case(name));
    fields.map(move |field| trim(field.value.of(bytes)))
}

/// The value of the only field of this name.
fn only<'a>(head: &RequestHead, bytes: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut fields = head.fields.iter().filter(|field| field.name.of(bytes).eq_ignore_ascii_case(name));
    let value = fields.next()?.value;
    fields.next().is_none().then(|| trim(value.of(bytes)))
}

/// The time in the only field of this name, in seconds since 1970.
fn date(head: &RequestHead, bytes: &[u8], name: &[u8]) -> Option<u64> {
    only(head, bytes, name).and_then(seconds)
}

/// An HTTP-date (RFC 9110 section 5.6.7) in seconds since 1970. `None`: it is not a valid date.
#[must_use]
pub fn seconds(value: &[u8]) -> Option<u64> {
    let time = httpdate::parse_http_date(std::str::from_utf8(value).ok()?).ok()?;
    time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// An HTTP-date for seconds since 1970, in the form that Last-Modified uses. Times after the year 9999 become its last
/// second.
#[must_use]
pub fn http_date(seconds: u64) -> String {
    const LAST: u64 = 253_402_300_799;
    let time: SystemTime = UNIX_EPOCH + Duration::from_secs(seconds.min(LAST));
    httpdate::fmt_http_date(time)
}

/// A member of a list of entity tags.
#[derive(Clone, Copy)]
enum ListedTag<'a> {
    /// `*`: any representation.
    Any,
    Tag(&'a [u8]),
}

/// True if a member of these fields satisfies `is_same`.
fn any_tag(head: &RequestHead, bytes: &[u8], name: &[u8], is_same: impl Fn(ListedTag<'_>) -> bool) -> bool {
    values(head, bytes, name).any(|value| {
        if value == b"*" {
            return is_same(ListedTag::Any);
        }
        let mut rest = value;
        while let Some((tag, after)) = next_tag(rest) {
            if is_same(ListedTag::Tag(tag)) {
                return true;
            }
            rest = after;
        }
        false
    })
}

/// The next entity tag of a list (RFC 9110 sections 5.6.1 and 8.8.3), and what follows it. A tag may contain commas.
fn next_tag(list: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = list.iter().position(|&byte| !matches!(byte, b',' | b' ' | b'\t'))?;
    let list = &list[start..];
    let quoted = list.strip_prefix(WEAK).unwrap_or(list).strip_prefix(b"\"")?;
    let length = quoted.iter().position(|&byte| byte == b'"' || !is_etagc(byte)).filter(|&end| quoted[end] == b'"')?;
    let end = list.len() - quoted.len() + length + 1;
    let (tag, after) = list.split_at(end);
    let after = trim(after);
    (after.is_empty() || after.starts_with(b",")).then_some((tag, after))
}

/// `etagc` of RFC 9110 section 8.8.3, without the quote.
fn is_etagc(byte: u8) -> bool {
    byte == 0x21 || (0x23..=0x7e).contains(&byte) || byte >= 0x80
}

/// Strong comparison (RFC 9110 section 8.8.3.2): equal, and neither is weak.
fn is_same_strongly(member: ListedTag<'_>, current: Option<&[u8]>) -> bool {
    match member {
        ListedTag::Any => true,
        ListedTag::Tag(tag) => !tag.starts_with(WEAK) && current == Some(tag),
    }
}

/// Weak comparison (RFC 9110 section 8.8.3.2): equal, ignoring `W/`.
fn is_same_weakly(member: ListedTag<'_>, current: Option<&[u8]>) -> bool {
    match member {
        ListedTag::Any => true,
        ListedTag::Tag(tag) => current.is_some_and(|current| opaque(current) == opaque(tag)),
    }
}

fn opaque(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(WEAK).unwrap_or(tag)
}
