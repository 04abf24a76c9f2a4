//! A holder gets everything from the one before it, over a connection to that: the next holder asks, the former one sends
//! all it has, and the next one confirms. Until it has confirmed, the former one has everything.

use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tailrace_os::socket::{self, Io};
use tailrace_os::{clock, passing, poll};

use crate::control::{Control, Received};
use crate::held::State;
use crate::message::{self, Kind};
use crate::publication::Publication;

/// How long the former holder may take for the first message: it waits for answers of the application before.
const FIRST_MESSAGE: Duration = Duration::from_secs(8);
/// How long the rest may take.
const REST: Duration = Duration::from_secs(20);

/// A publication that is kept.
#[derive(Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) number: u64,
    pub(crate) age_millis: u64,
    pub(crate) dropped: u64,
    pub(crate) publication: Publication,
}

/// A held connection.
#[derive(Serialize, Deserialize)]
pub(crate) struct Passed {
    pub(crate) state: State,
    pub(crate) since_millis: u64,
    pub(crate) last: u64,
}

/// What the next holder gets in one message.
pub(crate) enum Part {
    Kept(Box<Kept>),
    /// What the bus has: see [`crate::bus::Bus::restore`].
    Bus(Kind, Vec<u8>),
    Held(Box<Passed>, OwnedFd),
}

/// The next holder, as the former one sees it.
pub(crate) struct Next<'a> {
    socket: BorrowedFd<'a>,
    until: Instant,
}

impl<'a> Next<'a> {
    pub(crate) fn new(control: &'a Control) -> Self {
        Self { socket: control.socket(), until: clock::now() + REST }
    }

    /// Sends a message, which waits until the socket accepts it.
    ///
    /// # Errors
    /// The next holder has exited, or does not read.
    pub(crate) fn send(&self, kind: Kind, content: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        message::send(self.socket, kind, content, descriptor, Some(self.until))
    }

    /// Says that this is all, and waits until that is confirmed.
    ///
    /// # Errors
    /// The next holder has exited, or takes too long.
    pub(crate) fn complete(&self) -> io::Result<()> {
        self.send(Kind::Complete, &[], None)?;
        if !poll::wait_readable(self.socket, self.until.saturating_duration_since(clock::now())) {
            return Err(ErrorKind::TimedOut.into());
        }
        match socket::receive(self.socket, &mut [0; 1]) {
            Io::Moved(_) => Ok(()),
            _ => Err(ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// The former holder, as the next one sees it.
pub(crate) struct Former {
    control: Control,
    until: Instant,
    has_answered: bool,
}

impl Former {
    /// Asks the holder at this address for everything.
    ///
    /// # Errors
    /// Nothing listens there.
    pub(crate) fn ask(address: &[u8]) -> io::Result<Self> {
        let control = Control::new(passing::connect_to(address)?, clock::now());
        message::send(control.socket(), Kind::TakeOver, &[], None, None)?;
        // If it has just ended, the request waits in our own queue.
        Ok(Self { control, until: clock::now() + FIRST_MESSAGE, has_answered: false })
    }

    /// Waits for the next part. `None`: that was all.
    ///
    /// # Errors
    /// The former holder has exited, or takes too long.
    pub(crate) fn next(&mut self) -> io::Result<Option<Part>> {
        let Received { kind, content, descriptor } = loop {
            if let Some(received) = self.control.read()? {
                break received;
            }
            let left = self.until.saturating_duration_since(clock::now());
            if left.is_zero() || !poll::wait_readable(self.control.socket(), left) {
                return Err(ErrorKind::TimedOut.into());
            }
        };
        if !std::mem::replace(&mut self.has_answered, true) {
            self.until = clock::now() + REST;
        }
        Ok(Some(match (kind, descriptor) {
            (Kind::Kept, _) => Part::Kept(Box::new(message::value_of(&content)?)),
            (Kind::Held, Some(socket)) => Part::Held(Box::new(message::value_of(&content)?), socket),
            (Kind::Bus | Kind::Document, _) => Part::Bus(kind, content),
            (Kind::Complete, _) => return Ok(None),
            _ => return Err(ErrorKind::InvalidData.into()),
        }))
    }

    /// Says that everything has arrived.
    ///
    /// # Errors
    /// The former holder has stopped waiting, and has kept everything.
    pub(crate) fn confirm(&self) -> io::Result<()> {
        self.control.answer(b"+")
    }
}
