//! The identity of a request across processes: the id in a header field that proxies, this server and the application
//! share, and the trace to which the request belongs (W3C Trace Context).
//!
//! | what arrives | result | reason |
//! |---|---|---|
//! | one field of the name, from a trusted peer, 1 to 128 visible ASCII characters without `"`, `,` and `\` | the id | it is safe in a log, in a list and in a quoted string |
//! | any other value, also from a trusted peer | a new id | a part of an id names no request |
//! | several fields of the name | a new id | a client may have sent one of them |
//! | a name that differs by underscores alone | removed | in `environ`, it has the same key |
//!
//! Pure functions. Any thread.

use crate::encode::is_own_field;
use crate::forwarded::is_forwarded;
use crate::octets::token_end;
use crate::request_head::{Field, Span};

/// Maximum length of an id that is accepted.
pub const LONGEST_ID: usize = 128;
/// Length of an id that this server makes.
pub const NEW_ID: usize = 36;

/// Fields with a meaning of their own, which cannot have the id, beside those that the server writes or reads itself.
const TAKEN: [&str; 9] =
    ["accept", "authorization", "content-type", "cookie", "expect", "host", "location", "set-cookie", "user-agent"];

/// The field that has the id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdField {
    name: String,
}

impl IdField {
    /// A field of this name. `None`: it is no field name, has an underscore, or names a field with another meaning.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let bytes = name.as_bytes();
        let is_name = !bytes.is_empty() && token_end(bytes, 0) == bytes.len() && !bytes.contains(&b'_');
        let is_taken =
            is_own_field(bytes) || is_forwarded(bytes) || TAKEN.iter().any(|taken| taken.eq_ignore_ascii_case(name));
        (is_name && !is_taken).then(|| Self { name: name.to_owned() })
    }

    /// Its name, as the response shows it.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.name.as_bytes()
    }

    /// The id that the fields state, if it is valid and the sender `is_trusted`. Otherwise all fields of the name are
    /// removed. Those that only resemble it are always removed.
    pub fn take(&self, bytes: &[u8], fields: &mut Vec<Field>, is_trusted: bool) -> Option<Span> {
        let mut stated = None;
        let mut count = 0;
        let mut is_imitated = false;
        for field in &*fields {
            match self.likeness(field.name.of(bytes)) {
                Likeness::None => {}
                Likeness::Same => (stated, count) = (Some(field.value), count + 1),
                Likeness::Underscores => is_imitated = true,
            }
        }
        let id = stated.filter(|id| is_trusted && count == 1 && is_id(id.of(bytes)));
        if is_imitated || (count > 0 && id.is_none()) {
            fields.retain(|field| match self.likeness(field.name.of(bytes)) {
                Likeness::None => true,
                Likeness::Same => id.is_some(),
                Likeness::Underscores => false,
            });
        }
        id
    }

    fn likeness(&self, name: &[u8]) -> Likeness {
        if name.len() != self.name.len() {
            return Likeness::None;
        }
        if name.eq_ignore_ascii_case(self.name()) {
            return Likeness::Same;
        }
        let is_alike = |(given, own): (&u8, &u8)| given.eq_ignore_ascii_case(own) || (*given == b'_' && *own == b'-');
        if name.iter().zip(self.name()).all(is_alike) { Likeness::Underscores } else { Likeness::None }
    }
}

/// How much a name is like that of the field.
enum Likeness {
    None,
    /// In any case.
    Same,
    /// But for underscores where it has dashes.
    Underscores,
}

/// Whether a value is accepted as an id.
fn is_id(value: &[u8]) -> bool {
    (1..=LONGEST_ID).contains(&value.len())
        && value.iter().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b'\\'))
}

/// A UUID of version 7 (RFC 9562 section 5.7) as text. `millis`: the time since 1970 in milliseconds; `random`: of its
/// bits, 74 are used.
#[must_use]
pub fn uuid_v7(millis: u64, random: u128) -> [u8; NEW_ID] {
    const VERSION: u128 = 7 << 76;
    const VARIANT: u128 = 0b10 << 62;
    // `rand_a` is 12 bits wide and `rand_b` 62.
    let random = random & (0xfff << 64 | ((1 << 62) - 1));
    let value = u128::from(millis) << 80 | VERSION | VARIANT | random;
    let mut text = [b'-'; NEW_ID];
    let mut at = 0;
    for (position, octet) in value.to_be_bytes().into_iter().enumerate() {
        // The groups have 4, 2, 2, 2 and 6 octets.
        if matches!(position, 4 | 6 | 8 | 10) {
            at += 1;
        }
        text[at] = HEXADECIMAL[usize::from(octet >> 4)];
        text[at + 1] = HEXADECIMAL[usize::from(octet & 15)];
        at += 2;
    }
    text
}

const HEXADECIMAL: &[u8; 16] = b"0123456789abcdef";

/// A `traceparent` (W3C Trace Context section 3.2): where a request is in its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace; not 0.
    pub trace: u128,
    /// The span of the sender; not 0.
    pub parent: u64,
    /// The sender records its spans.
    pub is_sampled: bool,
}

/// Length of a `traceparent` of version 00.
pub const TRACE_PARENT: usize = 55;

impl TraceParent {
    /// Reads the value of the field. `None`: it is invalid.
    #[must_use]
    pub fn read(value: &[u8]) -> Option<Self> {
        let trace = number(trace_id(value)?)?;
        let parent = number(value.get(36..52)?)? as u64;
        let flags = number(value.get(53..TRACE_PARENT)?)?;
        Some(Self { trace, parent, is_sampled: flags & 1 == 1 })
    }

    /// The value of the field, of version 00.
    #[must_use]
    pub fn write(&self) -> [u8; TRACE_PARENT] {
        let mut value = *b"00-00000000000000000000000000000000-0000000000000000-00";
        digits(&mut value[3..35], self.trace);
        digits(&mut value[36..52], self.parent.into());
        digits(&mut value[53..], self.is_sampled.into());
        value
    }
}

/// The value of hexadecimal digits. `None`: there is another character.
fn number(digits: &[u8]) -> Option<u128> {
    u128::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Writes the last hexadecimal digits of a number, as many as fit.
fn digits(text: &mut [u8], number: u128) {
    for (place, digit) in text.iter_mut().rev().enumerate() {
        *digit = HEXADECIMAL[(number >> (4 * place) & 15) as usize];
    }
}

/// The field that says where a request is in its trace.
pub const TRACEPARENT: &[u8] = b"traceparent";

/// The trace to which a request with these fields belongs, as its only `traceparent` states it.
#[must_use]
pub fn trace_of<'a>(bytes: &'a [u8], fields: &[Field]) -> Option<&'a [u8]> {
    only_field(bytes, fields, TRACEPARENT).and_then(trace_id)
}

/// The value of the only field of this name.
#[must_use]
pub fn only_field<'a>(bytes: &'a [u8], fields: &[Field], name: &[u8]) -> Option<&'a [u8]> {
    let mut found = fields.iter().filter(|field| field.name.of(bytes).eq_ignore_ascii_case(name));
    let field = found.next()?;
    if found.next().is_some() { None } else { Some(field.value.of(bytes)) }
}

/// The trace of a `traceparent` (W3C Trace Context section 3.2), 32 hexadecimal digits. `None`: the value is invalid.
#[must_use]
pub fn trace_id(traceparent: &[u8]) -> Option<&[u8]> {
    // Version, trace, parent and flags; a later version may append more after a dash.
    let (known, more) = traceparent.split_at_checked(55)?;
    let [v, w, b'-', rest @ ..] = known else { return None };
    let (trace, rest) = rest.split_at_checked(32)?;
    let [b'-', rest @ ..] = rest else { return None };
    let (parent, rest) = rest.split_at_checked(16)?;
    let [b'-', flags @ ..] = rest else { return None };
    let version = [*v, *w];
    let is_length = match &version {
        b"00" => more.is_empty(),
        b"ff" => false,
        _ => matches!(more, [] | [b'-', ..]),
    };
    let is_hexadecimal = |text: &[u8]| text.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_set = |text: &[u8]| is_hexadecimal(text) && text.iter().any(|byte| *byte != b'0');
    (is_length && is_hexadecimal(&version) && is_set(trace) && is_set(parent) && is_hexadecimal(flags)).then_some(trace)
}

/// A request of which spans are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    /// The trace; not 0.
    pub trace: u128,
    /// The span of the sender; 0: the trace begins here.
    pub parent: u64,
    /// The span of the request.
    pub span: u64,
    /// The span of the application.
    pub application: u64,
}

/// What follows a request's method and target in the log; empty: nothing.
pub fn id_text(id: &[u8], trace: Option<&[u8]>) -> String {
    match (id, trace) {
        ([], None) => String::new(),
        ([], Some(trace)) => format!(" (trace {})", trace.escape_ascii()),
        (id, None) => format!(" (id {})", id.escape_ascii()),
        (id, Some(trace)) => format!(" (id {}, trace {})", id.escape_ascii(), trace.escape_ascii()),
    }
}

/// Which requests are traced.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// From 0 to 1. Services with the same share trace the same requests: the trace id decides, as in OpenTelemetry.
    pub share: f64,
    /// If a trusted sender states a trace, its sampled flag decides instead.
    pub is_parent_based: bool,
}

impl Sampling {
    /// Whether a trace id, or a random number in its place, is in the share.
    #[must_use]
    pub fn takes(self, trace: u128) -> bool {
        // Of the id's last 64 bits 53, as many as the number has; so a share of 1 has all of them.
        ((trace as u64 >> 11) as f64) < self.share * (1u64 << 53) as f64
    }
}
