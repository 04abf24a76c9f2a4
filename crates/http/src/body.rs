//! Decoding request bodies: by length, or chunked with its extensions and trailers read and discarded.
//!
//! Invariants: data is never copied: the result is a range of the input. The result does not depend on how the bytes
//! were cut. Leading zeros, extensions and trailers are limited, so that a client cannot send them without end. Thread:
//! whichever owns the connection.

use std::ops::Range;

use crate::framing::BodyLength;
use crate::limits::{Exceeded, Refusal};
use crate::octets::{is_blank, is_token, is_value};

/// Digits of a chunk size, leading zeros included: as many as 64 bits need.
const SIZE_DIGITS: u8 = 16;
/// How many more octets the extensions of a body may have than its data (RFC 9112 section 7.1.1 asks for a limit).
const EXTENSION_BYTES: u64 = 16 * 1024;
/// Octets of all trailer lines.
const TRAILER_BYTES: u32 = 16 * 1024;

const SIZE: Refusal = Refusal::new(400, "A chunk must start with its size in hexadecimal digits.");
const LONG_SIZE: Refusal = Refusal::new(400, "A chunk size has too many digits.");
const EXTENSION: Refusal = Refusal::new(400, "A chunk extension is malformed.");
const LONG_EXTENSION: Refusal = Refusal::new(400, "The chunk extensions are too long.");
const LINE_END: Refusal =
    Refusal::new(400, "A line of a chunked body must end with a carriage return and a line feed.");
const DATA_END: Refusal = Refusal::new(400, "The data of a chunk must be as long as its size says.");
const TRAILER: Refusal = Refusal::new(400, "A trailer field is malformed.");
const LONG_TRAILER: Refusal = Refusal::new(431, "The trailer fields are too large.");
const TOO_LARGE: Refusal = Refusal::beyond(413, "The request body is larger than this server accepts.", Exceeded::Body);

/// Decodes one request body from bytes that arrive in any pieces.
///
/// The caller's loop: `decode(input)`; on [`BodyStep::Data`] use the data and call again with what follows `consumed`,
/// even when nothing does; on [`BodyStep::NeedMore`] read; on [`BodyStep::Done`] stop.
#[derive(Clone, Debug)]
pub struct BodyDecoder {
    state: BodyState,
    /// Decoded bytes that may still come.
    allowance: u64,
    /// Extension octets that may still come.
    extension_allowance: u64,
}

#[derive(Clone, Copy, Debug)]
enum BodyState {
    /// This many bytes of a body with a Content-Length are missing.
    Length(u64),
    Size {
        digits: u8,
        size: u64,
    },
    /// In the extensions of a chunk.
    Extension {
        part: Extension,
        size: u64,
    },
    /// Expects the line feed after the size of a chunk.
    SizeFeed {
        size: u64,
    },
    /// This many bytes of a chunk are missing.
    Data(u64),
    DataReturn,
    DataFeed,
    /// In the trailer section, of which `used` octets were read.
    Trailer {
        part: Trailer,
        used: u32,
    },
    Done,
    Refused(Refusal),
}

/// `chunk-ext = *( BWS ";" BWS chunk-ext-name [ BWS "=" BWS chunk-ext-val ] )`: what was read last.
#[derive(Clone, Copy, Debug)]
enum Extension {
    /// The size, then whitespace, after which only an extension may follow.
    Blank,
    Semicolon,
    Name,
    NameBlank,
    Equals,
    Value,
    Quoted,
    QuotedEscape,
    QuoteEnd,
}

#[derive(Clone, Copy, Debug)]
enum Trailer {
    Line,
    Name,
    Value,
    LineFeed,
    LastFeed,
}

/// What [`BodyDecoder::decode`] found at the start of its input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyStep {
    /// `input[data]` is body. Call again with `input[consumed..]`, even when that is empty.
    Data {
        /// Bytes of the input that are dealt with; equal to `data.end`.
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
        let state = match length {
            BodyLength::None => BodyState::Done,
            BodyLength::Known(length) if length > max => BodyState::Refused(TOO_LARGE),
            BodyLength::Known(0) => BodyState::Done,
            BodyLength::Known(length) => BodyState::Length(length),
            BodyLength::Chunked => BodyState::Size { digits: 0, size: 0 },
        };
        Self { state, allowance: max, extension_allowance: EXTENSION_BYTES }
    }

    /// Decodes from the start of `input`, which begins where the last call's `consumed` ended.
    pub fn decode(&mut self, input: &[u8]) -> BodyStep {
        let mut at = 0;
        loop {
            match self.state {
                BodyState::Done => return BodyStep::Done { consumed: at },
                BodyState::Refused(refusal) => return BodyStep::Refused(refusal),
                BodyState::Length(missing) | BodyState::Data(missing) if at < input.len() => {
                    let room = input.len() - at;
                    let length = usize::try_from(missing).map_or(room, |missing| missing.min(room));
                    let missing = missing - length as u64;
                    self.state = match self.state {
                        BodyState::Length(_) if missing == 0 => BodyState::Done,
                        BodyState::Length(_) => BodyState::Length(missing),
                        _ if missing == 0 => BodyState::DataReturn,
                        _ => BodyState::Data(missing),
                    };
                    return BodyStep::Data { consumed: at + length, data: at..at + length };
                }
                _ => {}
            }
            let Some(&byte) = input.get(at) else {
                return BodyStep::NeedMore { consumed: at };
            };
            self.state = self.framing(byte).unwrap_or_else(BodyState::Refused);
            at += 1;
        }
    }

    /// Decodes all of `input` and discards the data: never returns [`BodyStep::Data`].
    pub fn skip(&mut self, input: &[u8]) -> BodyStep {
        let mut at = 0;
        loop {
            match self.decode(&input[at..]) {
                BodyStep::Data { consumed, .. } => at += consumed,
                BodyStep::NeedMore { .. } => return BodyStep::NeedMore { consumed: input.len() },
                BodyStep::Done { consumed } => return BodyStep::Done { consumed: at + consumed },
                BodyStep::Refused(refusal) => return BodyStep::Refused(refusal),
            }
        }
    }

    /// Bytes still to come, if there is a Content-Length.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        match self.state {
            BodyState::Length(missing) => Some(missing),
            BodyState::Done => Some(0),
            _ => None,
        }
    }

    /// How many of the next bytes are data. Their values do not matter: [`BodyDecoder::decode`] only counts them.
    #[must_use]
    pub fn data_ahead(&self) -> u64 {
        match self.state {
            BodyState::Length(missing) | BodyState::Data(missing) => missing,
            _ => 0,
        }
    }

    /// The state after one octet that is not data.
    fn framing(&mut self, byte: u8) -> Result<BodyState, Refusal> {
        match self.state {
            BodyState::Size { digits, size } => self.size(digits, size, byte),
            BodyState::Extension { part, size } => {
                if self.extension_allowance == 0 {
                    return Err(LONG_EXTENSION);
                }
                self.extension_allowance -= 1;
                extension(part, size, byte)
            }
            BodyState::SizeFeed { size } => match (byte, size) {
                (b'\n', 0) => Ok(BodyState::Trailer { part: Trailer::Line, used: 0 }),
                (b'\n', _) => {
                    self.allowance -= size;
                    self.extension_allowance = self.extension_allowance.saturating_add(size);
                    Ok(BodyState::Data(size))
                }
                _ => Err(LINE_END),
            },
            BodyState::DataReturn if byte == b'\r' => Ok(BodyState::DataFeed),
            BodyState::DataFeed if byte == b'\n' => Ok(BodyState::Size { digits: 0, size: 0 }),
            BodyState::DataReturn | BodyState::DataFeed => Err(DATA_END),
            BodyState::Trailer { part, used } => trailer(part, used, byte),
            // `decode` handles these states before it comes here.
            BodyState::Length(_) | BodyState::Data(_) | BodyState::Done | BodyState::Refused(_) => Ok(self.state),
        }
    }

    fn size(&self, digits: u8, size: u64, byte: u8) -> Result<BodyState, Refusal> {
        if let Some(digit) = (byte as char).to_digit(16) {
            if digits == SIZE_DIGITS {
                return Err(LONG_SIZE);
            }
            let size = size << 4 | u64::from(digit);
            if size > self.allowance {
                return Err(TOO_LARGE);
            }
            return Ok(BodyState::Size { digits: digits + 1, size });
        }
        match byte {
            _ if digits == 0 => Err(SIZE),
            b'\r' => Ok(BodyState::SizeFeed { size }),
            b';' => Ok(BodyState::Extension { part: Extension::Semicolon, size }),
            b' ' | b'\t' => Ok(BodyState::Extension { part: Extension::Blank, size }),
            b'\n' => Err(LINE_END),
            _ => Err(SIZE),
        }
    }
}

/// The state after one octet of the extensions. Only after a complete one may the line end.
fn extension(part: Extension, size: u64, byte: u8) -> Result<BodyState, Refusal> {
    use Extension::{Blank, Equals, Name, NameBlank, QuoteEnd, Quoted, QuotedEscape, Semicolon, Value};
    let part = match (part, byte) {
        (Name | Value | QuoteEnd, b'\r') => return Ok(BodyState::SizeFeed { size }),
        (_, b'\n') => return Err(LINE_END),
        (Quoted, b'"') => QuoteEnd,
        (Quoted, b'\\') => QuotedEscape,
        (Quoted | QuotedEscape, _) if is_value(byte) => Quoted,
        (Blank | Name | NameBlank | Value | QuoteEnd, b';') => Semicolon,
        (Name | NameBlank, b'=') => Equals,
        (Equals, b'"') => Quoted,
        (Semicolon | Name, _) if is_token(byte) => Name,
        (Equals | Value, _) if is_token(byte) => Value,
        (Blank | Value | QuoteEnd, _) if is_blank(byte) => Blank,
        (Name | NameBlank, _) if is_blank(byte) => NameBlank,
        (Semicolon | Equals, _) if is_blank(byte) => part,
        _ => return Err(EXTENSION),
    };
    Ok(BodyState::Extension { part, size })
}

/// The state after one octet of the trailer section (RFC 9112 section 7.1.2), whose fields are checked like those of a
/// head and then discarded: they cannot change the framing, nor the head that the application has.
fn trailer(part: Trailer, used: u32, byte: u8) -> Result<BodyState, Refusal> {
    let part = match (part, byte) {
        (Trailer::LastFeed, b'\n') => return Ok(BodyState::Done),
        (Trailer::Line, b'\r') => Trailer::LastFeed,
        (Trailer::LineFeed, b'\n') => Trailer::Line,
        (Trailer::Value, b'\r') => Trailer::LineFeed,
        (Trailer::Name, b':') => Trailer::Value,
        (Trailer::Line | Trailer::Name, _) if is_token(byte) => Trailer::Name,
        (Trailer::Value, _) if is_value(byte) => Trailer::Value,
        (Trailer::Line | Trailer::Value, b'\n') => return Err(LINE_END),
        (Trailer::LineFeed | Trailer::LastFeed, _) => return Err(LINE_END),
        _ => return Err(TRAILER),
    };
    if used == TRAILER_BYTES && !matches!(part, Trailer::LastFeed) {
        return Err(LONG_TRAILER);
    }
    Ok(BodyState::Trailer { part, used: used + 1 })
}
