//! What a request for a representation gets: conditions first (RFC 9110 section 13), then ranges (section 14).
//!
//! A pure function. Any thread.

use crate::conditional::{Precondition, Validators, evaluate, range};
use crate::range::{ByteRange, Ranges, ranges};
use crate::request_head::RequestHead;

/// What is sent of a representation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All of it; 200.
    Whole,
    /// Nothing: the client has it; 304.
    NotModified,
    /// Nothing: the client's precondition failed; 412.
    Failed,
    /// These parts, of which there is at least one; 206.
    Parts(Vec<ByteRange>),
    /// Nothing: the representation has no such part; 416.
    Unsatisfiable,
}

/// Selects what is sent of a representation of `length` bytes. `bytes`: those of `head`. Methods other than GET and
/// HEAD get all of it, because their effect has already taken place. Parts are sent only of a representation that can
/// be identified: a client that gets two parts must know that they belong together.
#[must_use]
pub fn select(head: &RequestHead, bytes: &[u8], validators: Validators<'_>, length: u64) -> Selection {
    if !matches!(head.method.of(bytes), b"GET" | b"HEAD") {
        return Selection::Whole;
    }
    match evaluate(head, bytes, validators) {
        Precondition::Holds => {}
        Precondition::NotModified => return Selection::NotModified,
        Precondition::Failed => return Selection::Failed,
    }
    if validators.etag.is_none() && validators.modified.is_none() {
        return Selection::Whole;
    }
    match range(head, bytes, validators).map(|value| ranges(value, length)) {
        None | Some(Ranges::Whole) => Selection::Whole,
        Some(Ranges::Parts(parts)) => Selection::Parts(parts),
        Some(Ranges::Unsatisfiable) => Selection::Unsatisfiable,
    }
}
