//! The parts of a request that may be incomplete, and the refusals for each.

use tailrace_http::limits::{Exceeded, Refusal};

/// The part of a request that is being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Head,
    Body,
}

impl Part {
    /// The refusal of a request whose client closed its sending direction in this part.
    pub(crate) fn cut_short(self) -> Refusal {
        match self {
            Self::Head => Refusal::new(400, "The request ended before its head was complete."),
            Self::Body => Refusal::new(400, "The request ended before its body was complete."),
        }
    }

    /// The refusal of a request in which this part was too slow.
    pub(crate) fn late(self) -> Refusal {
        match self {
            Self::Head => Refusal::beyond(408, "The request head did not arrive in time.", Exceeded::HeaderTime),
            Self::Body => Refusal::beyond(408, "The request body did not arrive in time.", Exceeded::BodyTime),
        }
    }
}
