//! A connection of another process of the server to the holder: one message, and the answer to it.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use tailrace_os::passing;
use tailrace_os::socket::{self, Io};

use crate::message::{Kind, MAX_MESSAGE};

/// Descriptors that may wait for their messages: a read ends with those of one message.
const MAX_WAITING: usize = 8 * passing::MAX_DESCRIPTORS;

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
    /// The channel that the other process listens to. `None`: it is to say something soon.
    pub(crate) channel: Option<String>,
}

impl Control {
    pub(crate) fn new(socket: OwnedFd, since: Instant) -> Self {
        Self { socket, buffer: Vec::new(), descriptors: Vec::new(), since, has_spoken: false, channel: None }
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

    /// Answers, as far as the socket accepts it now: answers are small.
    ///
    /// # Errors
    /// The other process does not read any more.
    pub(crate) fn answer(&self, bytes: &[u8]) -> io::Result<()> {
        match socket::transmit(self.socket.as_fd(), &[io::IoSlice::new(bytes)], false) {
            Io::Moved(_) => Ok(()),
            Io::WouldBlock | Io::End | Io::Broken => Err(ErrorKind::BrokenPipe.into()),
        }
    }
}
