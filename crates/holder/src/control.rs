//! A connection of another process of the server to the holder: one message, and the answer to it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailrace_os::passing;
use tailrace_os::socket::{self, Io};

use crate::bus::Bus;
use crate::message::{Kind, MAX_MESSAGE};

/// Descriptors that may wait for their messages: a read ends with those of one message.
const MAX_WAITING: usize = 8 * passing::MAX_DESCRIPTORS;

/// How long another process may take for a message.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes that a process may leave unread that listens to a channel.
const MAX_UNREAD: usize = 16 << 20;

/// A message as it was received.
pub(crate) struct Received {
    pub(crate) kind: Kind,
    pub(crate) content: Vec<u8>,
    pub(crate) descriptor: Option<OwnedFd>,
}

/// Reads messages from a socket.
pub(crate) struct Control {
    socket: OwnedFd,
    buffer: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    pub(crate) since: Instant,
    /// A complete message has come.
    pub(crate) has_spoken: bool,
    pub(crate) role: Role,
    /// What it has not been sent yet.
    unread: Unread,
}

/// What the other process is to do.
#[derive(PartialEq, Eq)]
pub(crate) enum Role {
    /// It is to say something soon.
    Speaker,
    /// It is sent what is published in raw form on this channel.
    Listener(String),
    /// It is sent the documents after this number.
    Bus(u64),
}

/// Messages that a socket has not accepted.
#[derive(Default)]
struct Unread {
    messages: VecDeque<Arc<[u8]>>,
    /// Bytes of the first one that it has accepted.
    sent: usize,
    bytes: usize,
}

impl Unread {
    fn push(&mut self, message: &Arc<[u8]>) {
        self.bytes += message.len();
        self.messages.push_back(message.clone());
    }
}

impl Control {
    pub(crate) fn new(socket: OwnedFd, since: Instant) -> Self {
        Self {
            socket,
            buffer: Vec::new(),
            descriptors: Vec::new(),
            since,
            has_spoken: false,
            role: Role::Speaker,
            unread: Unread::default(),
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Reads what has arrived. `Ok(None)`: the message is not complete yet.
    ///
    /// # Errors
    /// [`ErrorKind::UnexpectedEof`]: the other process is done; or it has sent something else.
    pub(crate) fn read(&mut self) -> io::Result<Option<Received>> {
        let mut bytes = [0; 16 * 1024];
        loop {
            if let Some(message) = self.take()? {
                self.has_spoken = true;
                return Ok(Some(message));
            }
            match passing::receive(self.socket.as_fd(), &mut bytes, &mut self.descriptors) {
                Io::Moved(count) => self.buffer.extend_from_slice(&bytes[..count]),
                Io::WouldBlock => return Ok(None),
                Io::End | Io::Broken => return Err(ErrorKind::UnexpectedEof.into()),
            }
            if self.descriptors.len() > MAX_WAITING {
                return Err(ErrorKind::InvalidData.into());
            }
        }
    }

    fn take(&mut self) -> io::Result<Option<Received>> {
        let Some((length, rest)) = self.buffer.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > MAX_MESSAGE {
            return Err(ErrorKind::InvalidData.into());
        }
        let Some(message) = rest.get(..length) else { return Ok(None) };
        let (mut kind, mut content) = (Kind::of(message[0]), message[1..].to_vec());
        self.buffer.drain(..4 + length);
        // Those of the next messages may have arrived as well.
        let count = match kind {
            Some(Kind::InFile) => usize::from(content.first().copied().unwrap_or(0)),
            Some(Kind::Hold | Kind::WebSocket | Kind::Held) => 1,
            _ => 0,
        };
        let mut descriptors: Vec<_> = self.descriptors.drain(..count.min(self.descriptors.len())).collect();
        if kind == Some(Kind::InFile) {
            let file = descriptors.pop().ok_or(ErrorKind::InvalidData)?;
            content = passing::bytes_of(file, MAX_MESSAGE)?;
            kind = content.first().copied().and_then(Kind::of);
            content.drain(..content.len().min(1));
        }
        let kind = kind.ok_or(ErrorKind::InvalidData)?;
        Ok(Some(Received { kind, content, descriptor: descriptors.pop() }))
    }

    /// When it has been silent for too long. `None`: it may be.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        (self.role == Role::Speaker).then_some(self.since + PATIENCE)
    }

    /// Sends documents of the bus, if that is for this process, as many as the socket accepts.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn feed(&mut self, bus: &mut Bus) -> io::Result<()> {
        self.flush()?;
        while let Role::Bus(has) = &mut self.role
            && self.unread.messages.is_empty()
            && let Some((number, document)) = bus.next(*has)
        {
            *has = number;
            self.unread.push(&document);
            self.flush()?;
        }
        Ok(())
    }

    /// Sends a message to a process that listens, now or as soon as it has read what was sent before.
    ///
    /// # Errors
    /// It is gone, or has not read for too long.
    pub(crate) fn send(&mut self, message: &Arc<[u8]>) -> io::Result<()> {
        self.unread.push(message);
        if self.unread.bytes > MAX_UNREAD {
            return Err(io::Error::other(format!("it has not read {MAX_UNREAD} bytes")));
        }
        self.flush()
    }

    /// Sends what the socket accepts.
    ///
    /// # Errors
    /// The other process is gone.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let Unread { messages, sent, bytes } = &mut self.unread;
        while let Some(message) = messages.front() {
            match socket::transmit(self.socket.as_fd(), &[IoSlice::new(&message[*sent..])], false) {
                Io::Moved(count) => *sent += count,
                Io::WouldBlock => return Ok(()),
                Io::End | Io::Broken => return Err(ErrorKind::BrokenPipe.into()),
            }
            if *sent == message.len() {
                *bytes -= message.len();
                *sent = 0;
                messages.pop_front();
            }
        }
        Ok(())
    }

    /// Answers, as far as the socket accepts it now: answers are small.
    ///
    /// # Errors
    /// The other process does not read any more.
    pub(crate) fn answer(&self, bytes: &[u8]) -> io::Result<()> {
        match socket::transmit(self.socket.as_fd(), &[IoSlice::new(bytes)], false) {
            Io::Moved(_) => Ok(()),
            Io::WouldBlock | Io::End | Io::Broken => Err(ErrorKind::BrokenPipe.into()),
        }
    }
}
