//! Decoding request bodies.

use std::ops::Range;

use crate::framing::BodyLength;
use crate::limits::Refusal;

/// Decodes one request body from bytes that arrive in any pieces.
#[derive(Clone, Debug)]
pub struct BodyDecoder {
    length: BodyLength,
    max: u64,
}

/// What [`BodyDecoder::decode`] found at the start of its input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyStep {
    /// `input[data]` is body. Call again with `input[consumed..]`, even when that is empty.
    Data {
        /// Bytes of the input that are dealt with; `data.end <= consumed`.
        consumed: usize,
        /// Where the body bytes stand in the input; never empty.
        data: Range<usize>,
    },
    /// All of the input is dealt with, and the body goes on: call again with new bytes.
    NeedMore {
        /// Always the length of the input.
        consumed: usize,
    },
    /// The body is complete. What follows `consumed` belongs to the next request.
    Done {
        /// Bytes of the input that belonged to this body.
        consumed: usize,
    },
    /// The body is malformed or too large. The connection must be closed.
    Refused(Refusal),
}

impl BodyDecoder {
    /// A decoder for a body framed like `length`, of at most `max` decoded bytes.
    #[must_use]
    pub fn new(length: BodyLength, max: u64) -> Self {
        Self { length, max }
    }

    /// Decodes from the start of `input`, which begins where the last call's `consumed` ended.
    pub fn decode(&mut self, input: &[u8]) -> BodyStep {
        let _ = (self.length, self.max);
        BodyStep::NeedMore {
            consumed: input.len(),
        }
    }

    /// Bytes still to come, where Content-Length tells.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        None
    }
}
