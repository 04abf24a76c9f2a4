//! How far a response is, and whether its connection still sends.
//!
//! A plain value, part of the [`crate::response::outbox::Outbox`] of each connection.

/// How much of a response its producer has produced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Produced {
    pub(crate) status: u16,
    pub(crate) body_bytes: u64,
}

/// The progress of a producer, with what it sends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// What it has produced in all, including what it sends now.
    pub(crate) produced: Produced,
    /// The response is complete with it.
    pub(crate) is_complete: bool,
}

/// The state of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendState {
    /// No response has begun.
    Idle,
    /// Some of it has been sent or is queued, and more may come.
    Sending(Produced),
    /// All of it has been sent or is queued.
    Complete(Produced),
    /// The deadline of the request has passed, and the server has answered with a page of this status and size. What
    /// the application produces is discarded.
    TimedOut(Produced),
    /// The connection is broken: nothing is sent any more, of this response or a later one.
    Broken {
        /// What the producer, or the server in its place, had produced before.
        produced: Produced,
        /// Why it is broken.
        by: Cause,
    },
}

/// Why a connection is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The client disconnected, or the server gave the connection up.
    Other,
    /// The deadline of the request passed while its response was being sent.
    Deadline,
    /// As `Other`, after the server had answered in the application's place.
    AfterPage,
    /// A file had fewer bytes than were to be sent of it. More than [`u32::MAX`] missing bytes are noted as so many:
    /// every idle connection has this field.
    ShortFile { missing: u32 },
}

impl SendState {
    /// Notes what the producer has produced so far.
    pub(crate) fn note_produced(&mut self, Progress { produced, is_complete }: Progress) {
        match self {
            Self::Idle | Self::Sending(_) if is_complete => *self = Self::Complete(produced),
            Self::Idle | Self::Sending(_) => *self = Self::Sending(produced),
            Self::TimedOut(_) | Self::Broken { by: Cause::AfterPage, .. } => {}
            Self::Complete(before) | Self::Broken { produced: before, .. } => *before = produced,
        }
    }

    /// Notes that the delayed opening of the response is being queued.
    pub(crate) fn note_opened(&mut self, produced: Produced) {
        match self {
            Self::Idle => *self = Self::Sending(produced),
            // The producer has coalesced all of it.
            Self::Complete(before) if before.status == 0 => *before = produced,
            _ => {}
        }
    }

    /// The connection breaks. What broke it first counts.
    pub(crate) fn break_off(&mut self, cause: Cause) {
        let by = match *self {
            Self::Broken { by, .. } => by,
            Self::TimedOut(_) => Cause::AfterPage,
            Self::Idle | Self::Sending(_) | Self::Complete(_) => cause,
        };
        *self = Self::Broken { produced: self.produced(), by };
    }

    /// True when all of the response has been sent or queued, and the connection is not broken.
    pub(crate) fn is_complete(self) -> bool {
        matches!(self, Self::Complete(_))
    }

    /// True when no more of the response comes: all of it has been sent or queued, and its producer may have ended it.
    pub(crate) fn is_whole(self) -> bool {
        matches!(self, Self::Complete(_) | Self::Idle)
    }

    /// True when what the producer sends is discarded.
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Self::TimedOut(_) | Self::Broken { .. })
    }

    /// True when the server has answered in the application's place.
    pub(crate) fn is_timed_out(self) -> bool {
        matches!(self, Self::TimedOut(_))
    }

    /// True when the connection is broken.
    pub(crate) fn is_broken(self) -> bool {
        matches!(self, Self::Broken { .. })
    }

    /// True when the server has answered in the application's place, or has broken the response off at its deadline.
    pub(crate) fn is_late(self) -> bool {
        self.timed_out().is_some()
    }

    /// `Some`: the deadline passed before the response was complete. The inner value: the body bytes of the page that
    /// was sent in its place; `None`: it was broken off.
    pub(crate) fn timed_out(self) -> Option<Option<u64>> {
        match self {
            Self::TimedOut(page) | Self::Broken { produced: page, by: Cause::AfterPage } => Some(Some(page.body_bytes)),
            Self::Broken { by: Cause::Deadline, .. } => Some(None),
            Self::Idle | Self::Sending(_) | Self::Complete(_) | Self::Broken { .. } => None,
        }
    }

    /// Status and body bytes of the current response. For the log, where the producer cannot be asked.
    pub(crate) fn produced(self) -> Produced {
        match self {
            Self::Idle => Produced::default(),
            Self::Sending(produced)
            | Self::Complete(produced)
            | Self::TimedOut(produced)
            | Self::Broken { produced, .. } => produced,
        }
    }
}
