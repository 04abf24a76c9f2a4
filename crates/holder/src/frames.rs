//! The frames of a WebSocket (RFC 6455), read by tungstenite.
//!
//! Its context is made when a frame arrives and dropped when a message is complete, so that an idle connection has none. It
//! is given complete frames only; the bytes of an incomplete message are kept, for the next holder. Of a compressed message,
//! it is given the frames without content, and all of the content with the last one.

use std::io::{self, Cursor, ErrorKind, Read, Write};
use std::ops::Range;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use tungstenite::Message;
use tungstenite::error::{CapacityError, Error};
use tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tungstenite::protocol::frame::{CloseFrame, Frame, FrameHeader};
use tungstenite::protocol::{Role, WebSocketConfig, WebSocketContext};

use crate::deflate::{self, Deflate, Fault, Inflating};
use crate::events::Event;

/// Maximum size of a message, in bytes.
pub(crate) const MAX_MESSAGE: usize = 1 << 20;
/// Maximum size of the frames of an incomplete message: many empty fragments make no message.
const MAX_PENDING: usize = MAX_MESSAGE + 64 * 1024;

/// What is read of one client before others get their turn, in bytes.
const BUDGET: usize = 256 * 1024;
/// What a frame costs besides its bytes.
const FRAME_COST: usize = 2 * 1024;

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
    /// Messages may be compressed.
    pub(crate) inflates: bool,
    context: Option<Box<WebSocketContext>>,
    /// Frames since the last complete message.
    pending: Vec<u8>,
    /// How many of these bytes the context has.
    fed: usize,
    /// The message whose last frame is being read.
    inflating: Option<Box<Inflating>>,
    /// Bytes that may still be read in this turn. A frame counts for more than it has.
    budget: usize,
    /// Not all was read: the budget was used up, or whoever gets the events wanted no more of them for now.
    pub(crate) has_unread: bool,
}

/// A frame of a client, and where its content is.
struct ClientFrame {
    header: FrameHeader,
    content: Range<usize>,
}

impl ClientFrame {
    /// The frame at the beginning of these bytes. `None`: its header is incomplete.
    fn parse(bytes: &[u8]) -> Result<Option<Self>, CloseCode> {
        let mut cursor = Cursor::new(bytes);
        let Some((header, length)) = FrameHeader::parse(&mut cursor).map_err(|_| CloseCode::Protocol)? else {
            return Ok(None);
        };
        let length = usize::try_from(length).ok().filter(|length| *length <= MAX_MESSAGE).ok_or(CloseCode::Size)?;
        let from = usize::try_from(cursor.position()).unwrap_or(usize::MAX);
        Ok(Some(Self { header, content: from..from.saturating_add(length) }))
    }

    fn is_control(&self) -> bool {
        matches!(self.header.opcode, OpCode::Control(_))
    }
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
    /// The bytes of an incomplete message, and of what was not read yet. How many of them belong to the former.
    pub(crate) fn pending(&self) -> (&[u8], usize) {
        (&self.pending, self.fed)
    }

    /// Bytes that it occupies: the context has its own copy of what it was given.
    pub(crate) fn size(&self) -> usize {
        self.pending.capacity() + self.fed + self.inflating.as_ref().map_or(0, |inflating| inflating.size())
    }

    /// Allows it to read as much as others do before their next turn.
    pub(crate) fn begin_turn(&mut self) {
        self.budget = BUDGET;
    }

    /// Goes on with what [`Frames::pending`] was in the former holder.
    pub(crate) fn restore(&mut self, pending: &[u8], fed: usize) {
        let (fed, unread) = pending.split_at_checked(fed).unwrap_or((pending, &[]));
        self.budget = usize::MAX;
        // They were read before, so that nothing of them is to be answered or told.
        self.receive(fed, &mut Vec::new(), |_| true);
        self.pending.extend_from_slice(unread);
        self.has_unread = !unread.is_empty();
    }

    /// Reads bytes. Appends what is to be sent to `output`. `take` gets each event, and says whether it wants more for now.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        output: &mut Vec<u8>,
        mut take: impl FnMut(Event) -> bool,
    ) -> Option<Ending> {
        self.pending.extend_from_slice(bytes);
        self.has_unread = false;
        loop {
            let rest = &self.pending[self.fed..];
            let frame = match ClientFrame::parse(rest) {
                Ok(Some(frame)) if frame.content.end <= rest.len() => frame,
                Ok(_) => return self.check_size(output),
                Err(code) => return Some(fail(code, output)),
            };
            if self.budget == 0 {
                self.has_unread = true;
                return None;
            }
            let size = frame.content.end;
            let is_control = frame.is_control();
            let is_compressed = !is_control && self.is_compressed();
            // What a compressed message costs is counted as it is decompressed.
            self.budget = self.budget.saturating_sub(FRAME_COST + if is_compressed { 0 } else { size });
            let is_complete = if is_control { self.context.is_none() } else { frame.header.is_final };
            let inflated = if !is_compressed {
                None
            } else {
                match self.inflated(frame.header) {
                    Ok(Some(frame)) => Some(frame),
                    Ok(None) => {
                        self.has_unread = true;
                        return None;
                    }
                    Err(code) => return Some(fail(code, output)),
                }
            };
            let input = inflated.as_deref().unwrap_or(&self.pending[self.fed..self.fed + size]);
            let mut wants_more = true;
            let context = self.context.get_or_insert_with(new_context);
            if let Some(ending) = feed(context, input, output, |event| wants_more = take(event)) {
                return Some(ending);
            }
            self.fed += size;
            if is_complete {
                self.pending.drain(..self.fed);
                self.fed = 0;
                self.context = None;
                if self.pending.is_empty() {
                    self.pending = Vec::new();
                }
            }
            if !wants_more {
                self.has_unread = self.fed < self.pending.len();
                return None;
            }
        }
    }

    /// The message that has begun, or begins, is compressed: the bit RSV1 of its first frame says that.
    fn is_compressed(&self) -> bool {
        let is_first = |first: &u8| first & 0x40 != 0 && first & 0x0f != 0;
        self.inflates && self.pending.first().is_some_and(is_first)
    }

    /// What the context gets for a frame of a compressed message, which is the next one. `None`: there is more to be done.
    fn inflated(&mut self, mut header: FrameHeader) -> Result<Option<Vec<u8>>, CloseCode> {
        if self.fed == 0 {
            header.rsv1 = false;
        }
        let mut content = Vec::new();
        // The context rejects a frame without a mask.
        if header.is_final && header.mask.is_some() {
            let mut inflating = match self.inflating.take() {
                Some(inflating) => inflating,
                None => Box::new(Inflating::new(self.compressed()?)),
            };
            let is_complete = inflating.step(&mut self.budget, MAX_MESSAGE).map_err(|fault| match fault {
                Fault::TooLong => CloseCode::Size,
                Fault::Malformed => CloseCode::Invalid,
            })?;
            if !is_complete {
                self.inflating = Some(inflating);
                return Ok(None);
            }
            content = inflating.into_message();
        }
        // A mask that changes nothing: the context wants one, unless the client has none.
        header.mask = header.mask.map(|_| [0; 4]);
        let mut bytes = Vec::with_capacity(header.len(content.len() as u64) + content.len());
        // Into memory, which cannot fail.
        let _ = header.format(content.len() as u64, &mut bytes);
        bytes.extend_from_slice(&content);
        Ok(Some(bytes))
    }

    /// The content of all frames of a message, up to the next one.
    fn compressed(&self) -> Result<Vec<u8>, CloseCode> {
        let mut compressed = Vec::new();
        let mut from = 0;
        while from <= self.fed
            && let Some(ClientFrame { header, content }) = ClientFrame::parse(&self.pending[from..])?
        {
            let masked = &self.pending[from..][content.clone()];
            if matches!(header.opcode, OpCode::Data(_)) {
                let mask = header.mask.unwrap_or_default();
                compressed.extend(masked.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]));
            }
            from += content.end;
        }
        Ok(compressed)
    }

    fn check_size(&self, output: &mut Vec<u8>) -> Option<Ending> {
        (self.pending.len() > MAX_PENDING).then(|| fail(CloseCode::Size, output))
    }
}

fn new_context() -> Box<WebSocketContext> {
    let config = WebSocketConfig::default()
        .read_buffer_size(1024)
        .write_buffer_size(0)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    Box::new(WebSocketContext::new(Role::Server, Some(config)))
}

/// Gives the context a frame. `take` gets what it makes of that.
fn feed(
    context: &mut WebSocketContext,
    frame: &[u8],
    output: &mut Vec<u8>,
    mut take: impl FnMut(Event),
) -> Option<Ending> {
    let mut wire = Wire { input: frame, output };
    loop {
        let read = context.read(&mut wire);
        take(match read {
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
        });
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageFrame {
    #[serde(with = "serde_bytes")]
    plain: Vec<u8>,
    /// The same message compressed, if that makes it shorter. Made when a client first wants it.
    #[serde(skip)]
    compressed: OnceLock<Option<Vec<u8>>>,
}

impl MessageFrame {
    pub(crate) fn new(data: &[u8], is_text: bool) -> Self {
        let opcode = OpCode::Data(if is_text { Data::Text } else { Data::Binary });
        Self { plain: bytes_of(Frame::message(data.to_vec(), opcode, true)), compressed: OnceLock::new() }
    }

    /// The bytes for a client that has agreed on this compression.
    pub(crate) fn bytes(&self, deflate: Option<Deflate>) -> &[u8] {
        let content = &self.plain[self.content_from()..];
        if !deflate.is_some_and(|deflate| deflate.suits(content.len())) {
            return &self.plain;
        }
        self.compressed.get_or_init(|| self.compress(content)).as_deref().unwrap_or(&self.plain)
    }

    fn compress(&self, content: &[u8]) -> Option<Vec<u8>> {
        let compressed = deflate::compress(content)?;
        let mut header = FrameHeader::parse(&mut Cursor::new(&self.plain)).ok()??.0;
        header.rsv1 = true;
        let mut bytes = Vec::with_capacity(header.len(compressed.len() as u64) + compressed.len());
        header.format(compressed.len() as u64, &mut bytes).ok()?;
        bytes.extend_from_slice(&compressed);
        Some(bytes)
    }

    /// Where its content begins.
    fn content_from(&self) -> usize {
        match self.plain[1] {
            126 => 4,
            127 => 10,
            _ => 2,
        }
    }

    /// Bytes that it may occupy.
    pub(crate) fn size(&self) -> usize {
        let content = self.plain.len() - self.content_from();
        self.plain.capacity() + if deflate::may_compress(content) { content } else { 0 }
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::{CloseCode, Ending, Frames, MAX_MESSAGE, MessageFrame, close_frame};
    use crate::deflate::{self, Deflate};
    use crate::events::Event;

    const TEXT: u8 = 1;
    const BINARY: u8 = 2;
    const PING: u8 = 9;
    const FINAL: u8 = 0x80;
    const COMPRESSED: u8 = 0x40;

    /// A frame of a client.
    fn frame(first: u8, content: &[u8]) -> Vec<u8> {
        let mask = [1, 2, 3, 4];
        let mut frame = vec![first];
        match content.len() {
            length @ 0..126 => frame.push(0x80 | length as u8),
            length => {
                frame.push(0xff);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend(mask);
        frame.extend(content.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]));
        frame
    }

    fn frames() -> Frames {
        Frames { inflates: true, budget: usize::MAX, ..Frames::default() }
    }

    /// What follows from these bytes: events, answers, and the end.
    fn read(frames: &mut Frames, bytes: &[u8]) -> (Vec<Event>, Vec<u8>, Option<Ending>) {
        let (mut events, mut output) = (Vec::new(), Vec::new());
        let ending = frames.receive(bytes, &mut output, |event| {
            events.push(event);
            true
        });
        (events, output, ending)
    }

    fn fragments(message: &[u8]) -> [Vec<u8>; 4] {
        let compressed = deflate::compress(message).unwrap();
        let (first, rest) = compressed.split_at(5);
        let (second, third) = rest.split_at(3);
        [frame(COMPRESSED | TEXT, first), frame(FINAL | PING, b"between"), frame(0, second), frame(FINAL, third)]
    }

    #[test]
    fn compressed_messages_are_read_in_one_frame_or_in_fragments_by_any_holder() {
        let message = b"a message, a message, a message".repeat(20);
        let mut one = frames();
        let whole = frame(FINAL | COMPRESSED | BINARY, &deflate::compress(&message).unwrap());
        assert_eq!(read(&mut one, &whole), (vec![Event::with("BINARY", message.clone())], Vec::new(), None));
        assert_eq!(one.size(), 0);
        // The client may still send messages without compression.
        assert_eq!(read(&mut one, &frame(FINAL | TEXT, b"plain")).0, [Event::with("TEXT", b"plain".to_vec())]);

        let fragments = fragments(&message);
        let bytes = fragments.concat();
        for split in 0..bytes.len() {
            let mut former = frames();
            let (mut events, mut answers, _) = read(&mut former, &bytes[..split]);
            let mut next = frames();
            let (pending, fed) = former.pending();
            next.restore(pending, fed);
            let (later, output, ending) = read(&mut next, &bytes[split..]);
            events.extend(later);
            answers.extend(output);
            let expected = [Event::with("PING", b"between".to_vec()), Event::with("TEXT", message.clone())];
            assert_eq!((events.as_slice(), ending), (expected.as_slice(), None), "{split}");
            assert_eq!(answers, super::pong(b"between"), "{split}");
        }
    }

    #[test]
    fn violations_of_the_extension_close_the_connection() {
        let [first, _, middle, _] = fragments(&b"a message".repeat(20));
        let mut middle_with_bit = middle;
        middle_with_bit[0] |= COMPRESSED;
        let bomb = deflate::compress(&vec![0; MAX_MESSAGE + 1]).unwrap();
        let invalid_text = deflate::compress(&[0xff; 300]).unwrap();
        let mut unmasked = frame(FINAL | COMPRESSED | TEXT, b"");
        unmasked[1] = 0;
        let cases = [
            (frame(FINAL | COMPRESSED | PING, b""), CloseCode::Protocol),
            ([first, middle_with_bit].concat(), CloseCode::Protocol),
            (frame(COMPRESSED, b""), CloseCode::Protocol),
            (frame(FINAL | COMPRESSED, b""), CloseCode::Protocol),
            (unmasked, CloseCode::Protocol),
            (frame(FINAL | COMPRESSED | 0x20 | TEXT, &[0]), CloseCode::Protocol),
            (frame(FINAL | COMPRESSED | TEXT, b"Hello"), CloseCode::Invalid),
            (frame(FINAL | COMPRESSED | TEXT, &invalid_text), CloseCode::Invalid),
            (frame(FINAL | COMPRESSED | TEXT, &bomb), CloseCode::Size),
        ];
        for (bytes, code) in cases {
            let (events, output, ending) = read(&mut frames(), &bytes);
            assert_eq!((events, ending), (Vec::new(), Some(Ending::Failed)), "{:x?}", &bytes[..2]);
            assert_eq!(output, close_frame(Some(u16::from(code)), ""), "{:x?}", &bytes[..2]);
        }
        // Without the extension, the bit means nothing.
        let plain = frame(FINAL | COMPRESSED | TEXT, &deflate::compress(&[b'a'; 300]).unwrap());
        assert_eq!(read(&mut Frames { inflates: false, ..frames() }, &plain).2, Some(Ending::Failed));
    }

    #[test]
    fn whoever_wants_no_more_gets_the_rest_later_even_from_the_next_holder() {
        let bytes = [frame(FINAL | TEXT, b"1"), frame(FINAL | TEXT, b"2"), frame(TEXT, b"3")].concat();
        let mut frames = frames();
        let mut events = Vec::new();
        let mut take_one = |frames: &mut Frames, bytes: &[u8]| {
            frames.receive(bytes, &mut Vec::new(), |event| {
                events.push(event.content.unwrap());
                false
            })
        };
        assert_eq!(take_one(&mut frames, &bytes), None);
        assert!(frames.has_unread);
        let mut next = Frames::default();
        let (pending, fed) = frames.pending();
        next.restore(pending, fed);
        assert!(next.has_unread);
        assert_eq!(take_one(&mut next, &[]), None);
        assert_eq!(take_one(&mut next, &frame(FINAL, b"4")), None);
        assert!(!next.has_unread && next.size() == 0);
        assert_eq!(events, [b"1".to_vec(), b"2".to_vec(), b"34".to_vec()]);
    }

    #[test]
    fn a_turn_ends_when_its_budget_is_used_up_and_the_next_one_goes_on() {
        let empty = [frame(TEXT, b""), frame(0, b"").repeat(1_000), frame(FINAL, b"end")].concat();
        let blocks = frame(FINAL | COMPRESSED | TEXT, &deflate::compress(&[b'x'; 1 << 20]).unwrap());
        let mut first_message = [frame(FINAL | TEXT, b"1"), empty, blocks].concat();
        let (mut events, mut turns) = (Vec::new(), 0);
        let mut frames = Frames { inflates: true, ..Frames::default() };
        while events.len() < 3 {
            frames.begin_turn();
            let (read, output, ending) = read(&mut frames, &std::mem::take(&mut first_message));
            assert_eq!((output, ending), (Vec::new(), None));
            events.extend(read.into_iter().map(|event| event.content.unwrap().len()));
            turns += 1;
            assert_eq!(frames.has_unread, events.len() < 3);
        }
        assert_eq!(events, [1, 3, 1 << 20]);
        assert!((10..20).contains(&turns), "{turns}");
        assert_eq!(frames.size(), 0);
    }

    #[test]
    fn a_message_is_compressed_for_clients_that_want_it_if_it_becomes_shorter() {
        let deflate = Deflate::accept(["permessage-deflate"].into_iter());
        let long = MessageFrame::new(&[b'x'; 70_000], true);
        let compressed = deflate::compress(&[b'x'; 70_000]).unwrap();
        assert_eq!(long.bytes(None)[..4], [FINAL | TEXT, 127, 0, 0]);
        let head = [FINAL | COMPRESSED | TEXT, compressed.len() as u8];
        assert_eq!(long.bytes(deflate), [&head[..], &compressed].concat());
        assert!(long.size() >= long.bytes(None).len() + long.bytes(deflate).len());
        let short = MessageFrame::new(b"short", false);
        assert_eq!(short.bytes(deflate), short.bytes(None));
    }
}
