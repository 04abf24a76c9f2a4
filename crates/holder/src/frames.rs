//! The frames of a WebSocket (RFC 6455), read by tungstenite.
//!
//! Its context is made when a frame arrives and dropped when a message is complete, so that an idle connection has none. It
//! is given complete frames only; the bytes of an incomplete message are kept, for the next holder.

use std::io::{self, Cursor, ErrorKind, Read, Write};

use tungstenite::Message;
use tungstenite::error::{CapacityError, Error};
use tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tungstenite::protocol::frame::{CloseFrame, Frame, FrameHeader};
use tungstenite::protocol::{Role, WebSocketConfig, WebSocketContext};

use crate::events::Event;

/// Maximum size of a message, in bytes.
pub(crate) const MAX_MESSAGE: usize = 1 << 20;
/// Maximum size of the frames of an incomplete message: many empty fragments make no message.
const MAX_PENDING: usize = MAX_MESSAGE + 64 * 1024;

/// The connection cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The client has sent its close frame, with this content. The answer was appended.
    Closed(Vec<u8>),
    /// The client has violated the protocol. A close frame was appended.
    Failed,
}

/// Reads the frames of one connection.
#[derive(Default)]
pub(crate) struct Frames {
    context: Option<Box<WebSocketContext>>,
    /// Frames since the last complete message.
    pending: Vec<u8>,
    /// How many of these bytes the context has.
    fed: usize,
}

/// What the context reads, and what it writes.
struct Wire<'a> {
    input: &'a [u8],
    output: &'a mut Vec<u8>,
}

impl Read for Wire<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.input.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.input.read(buffer)
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Frames {
    /// The bytes of an incomplete message.
    pub(crate) fn pending(&self) -> &[u8] {
        &self.pending
    }

    /// Bytes that it occupies: the context has its own copy of what it was given.
    pub(crate) fn size(&self) -> usize {
        self.pending.capacity() + self.fed
    }

    /// Goes on with the bytes of an incomplete message.
    pub(crate) fn restore(&mut self, pending: &[u8]) {
        // They were read before, so that nothing of them is to be answered or told.
        self.receive(pending, &mut Vec::new(), &mut Vec::new());
    }

    /// Reads bytes. Appends what is to be sent to `output`, and messages to `events`.
    pub(crate) fn receive(&mut self, bytes: &[u8], output: &mut Vec<u8>, events: &mut Vec<Event>) -> Option<Ending> {
        self.pending.extend_from_slice(bytes);
        loop {
            let rest = &self.pending[self.fed..];
            let mut cursor = Cursor::new(rest);
            let (header, length) = match FrameHeader::parse(&mut cursor) {
                Ok(Some(parsed)) => parsed,
                Ok(None) => return self.check_size(output),
                Err(_) => return Some(fail(CloseCode::Protocol, output)),
            };
            let Some(length) = usize::try_from(length).ok().filter(|length| *length <= MAX_MESSAGE) else {
                return Some(fail(CloseCode::Size, output));
            };
            let end = usize::try_from(cursor.position()).unwrap_or(usize::MAX).saturating_add(length);
            if rest.len() < end {
                return self.check_size(output);
            }
            let is_control = matches!(header.opcode, OpCode::Control(_));
            let ends_message = header.is_final && !is_control;
            let begins = self.context.is_none();
            if let Some(ending) = self.feed(self.fed..self.fed + end, output, events) {
                return Some(ending);
            }
            self.fed += end;
            if ends_message || (is_control && begins) {
                self.pending.drain(..self.fed);
                self.fed = 0;
                self.context = None;
                if self.pending.is_empty() {
                    self.pending = Vec::new();
                }
            }
        }
    }

    fn check_size(&self, output: &mut Vec<u8>) -> Option<Ending> {
        (self.pending.len() > MAX_PENDING).then(|| fail(CloseCode::Size, output))
    }

    /// Gives the context a frame.
    fn feed(&mut self, frame: std::ops::Range<usize>, output: &mut Vec<u8>, events: &mut Vec<Event>) -> Option<Ending> {
        let config = WebSocketConfig::default()
            .read_buffer_size(1024)
            .write_buffer_size(0)
            .max_message_size(Some(MAX_MESSAGE))
            .max_frame_size(Some(MAX_MESSAGE));
        let context = self.context.get_or_insert_with(|| Box::new(WebSocketContext::new(Role::Server, Some(config))));
        let mut wire = Wire { input: &self.pending[frame], output };
        loop {
            let read = context.read(&mut wire);
            let event = match read {
                Ok(Message::Text(text)) => Event::with("TEXT", text.as_bytes().to_vec()),
                Ok(Message::Binary(data)) => Event::with("BINARY", data.to_vec()),
                Ok(Message::Ping(data)) => {
                    // Writes the pong.
                    let _ = context.flush(&mut wire);
                    Event::with("PING", data.to_vec())
                }
                Ok(Message::Pong(data)) => Event::with("PONG", data.to_vec()),
                Ok(Message::Close(close)) => {
                    let _ = context.flush(&mut wire);
                    let content = close.map_or_else(Vec::new, |close| {
                        [&u16::from(close.code).to_be_bytes()[..], close.reason.as_bytes()].concat()
                    });
                    return Some(Ending::Closed(content));
                }
                Ok(Message::Frame(_)) => continue,
                Err(Error::Io(fault)) if fault.kind() == ErrorKind::WouldBlock => return None,
                Err(Error::Utf8(_)) => return Some(fail(CloseCode::Invalid, wire.output)),
                Err(Error::Capacity(CapacityError::MessageTooLong { .. })) => {
                    return Some(fail(CloseCode::Size, wire.output));
                }
                Err(_) => return Some(fail(CloseCode::Protocol, wire.output)),
            };
            events.push(event);
        }
    }
}

fn fail(code: CloseCode, output: &mut Vec<u8>) -> Ending {
    output.extend_from_slice(&close_frame(Some(u16::from(code)), ""));
    Ending::Failed
}

fn bytes_of(frame: Frame) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(frame.len());
    // Into memory, which cannot fail.
    let _ = frame.format(&mut bytes);
    bytes
}

/// A message in one frame.
pub(crate) fn message(data: &[u8], is_text: bool) -> Vec<u8> {
    let opcode = OpCode::Data(if is_text { Data::Text } else { Data::Binary });
    bytes_of(Frame::message(data.to_vec(), opcode, true))
}

/// A ping. Its content may have 125 bytes.
pub(crate) fn ping(data: &[u8]) -> Vec<u8> {
    bytes_of(Frame::ping(data[..data.len().min(125)].to_vec()))
}

/// A pong.
pub(crate) fn pong(data: &[u8]) -> Vec<u8> {
    bytes_of(Frame::pong(data[..data.len().min(125)].to_vec()))
}

/// A close frame.
pub(crate) fn close_frame(code: Option<u16>, reason: &str) -> Vec<u8> {
    let reason = reason.char_indices().take_while(|(at, char)| at + char.len_utf8() <= 123).map(|(_, char)| char);
    let reason: String = reason.collect();
    let code = code.map(CloseCode::from).filter(|code| code.is_allowed());
    bytes_of(Frame::close(code.map(|code| CloseFrame { code, reason: reason.into() })))
}
