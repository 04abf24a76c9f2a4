//! The parts of a request that may be on their way, and why a request is refused in each.

use tailrace_http::limits::Refusal;

/// The part of a request that is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Head,
    Body,
}

impl Part {
    /// Why a request is refused whose client ended in this part.
    pub(crate) fn cut_short(self) -> Refusal {
        match self {
            Self::Head => Refusal::new(400, "The request ended before its head was complete."),
            Self::Body => Refusal::new(400, "The request ended before its body was complete."),
        }
    }

    /// Why a request is refused of which this part was too slow.
    pub(crate) fn late(self) -> Refusal {
        match self {
            Self::Head => Refusal::new(408, "The request head did not arrive in time."),
            Self::Body => Refusal::new(408, "The request body did not arrive in time."),
        }
    }
}
