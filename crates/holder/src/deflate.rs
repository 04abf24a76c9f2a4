//! Compression of the messages of WebSockets (RFC 7692, `permessage-deflate`).
//!
//! Neither side keeps its window from one message to the next: an idle connection needs no memory for it, and a publication
//! is compressed once for all its clients.

use std::cell::RefCell;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use crate::grip::{parameter, split};

/// What ends each message, and is not sent (section 7.2.1).
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];
/// A final block without content (RFC 1951 section 3.2.4).
const FINAL: [u8; 5] = [1, 0, 0, 0xff, 0xff];
/// Level 1 is twice as fast, but its messages are 30 to 50% longer; those of level 6 are 15% shorter, and take twice as long.
const LEVEL: u32 = 2;
/// The largest window, which the compressor has.
const MAX_BITS: u8 = 15;
/// Shorter messages are not compressed.
const MIN_LENGTH: usize = 256;
/// What a byte that is read costs, in bytes that are written: blocks without content take the decompressor longest.
const READ_COST: usize = 64;
/// A message grows by at most this many bytes per call of the decompressor, so that few bytes do not occupy much memory.
const STEP: usize = 16 * 1024;

/// What the client and the server have negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Deflate {
    /// The window that the client has for messages of the server, in bits. `None`: it did not limit it.
    window_bits: Option<u8>,
}

/// Why a message cannot be decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is longer than a message may be.
    TooLong,
    Malformed,
}

impl Deflate {
    /// The first acceptable offer in these values of `Sec-WebSocket-Extensions` (section 7.1).
    pub(crate) fn accept<'a>(values: impl Iterator<Item = &'a str>) -> Option<Self> {
        values.flat_map(|value| split(value, ',')).find_map(Self::of_offer)
    }

    fn of_offer(offer: &str) -> Option<Self> {
        let mut parts = split(offer, ';');
        if parts.next() != Some("permessage-deflate") {
            return None;
        }
        let mut accepted = Self { window_bits: None };
        let mut known = Vec::new();
        for part in parts {
            let (name, value) = parameter(part);
            match (name.as_str(), part.contains('=').then_some(value.as_str())) {
                _ if known.contains(&name) => return None,
                ("server_no_context_takeover" | "client_no_context_takeover" | "client_max_window_bits", None) => {}
                ("client_max_window_bits", Some(value)) => _ = bits(value)?,
                ("server_max_window_bits", Some(value)) => accepted.window_bits = Some(bits(value)?),
                _ => return None,
            }
            known.push(name);
        }
        Some(accepted)
    }

    /// The value of `Sec-WebSocket-Extensions` in the response.
    pub(crate) fn answer(self) -> String {
        let window = self.window_bits.map_or_else(String::new, |bits| format!("; server_max_window_bits={bits}"));
        format!("permessage-deflate; server_no_context_takeover; client_no_context_takeover{window}")
    }

    /// A message of this length may be compressed: it refers to no byte that is not in the window of the client.
    pub(crate) fn suits(self, length: usize) -> bool {
        may_compress(length) && self.window_bits.is_none_or(|bits| bits == MAX_BITS || length <= 1 << bits)
    }
}

/// Messages of this length are long enough to be compressed.
pub(crate) fn may_compress(length: usize) -> bool {
    length >= MIN_LENGTH
}

/// The number of bits of a window.
fn bits(value: &str) -> Option<u8> {
    value.parse().ok().filter(|bits: &u8| (8..=MAX_BITS).contains(bits) && value.len() == bits.to_string().len())
}

/// Compresses a message. `None`: that makes it no shorter.
pub(crate) fn compress(data: &[u8]) -> Option<Vec<u8>> {
    thread_local! {
        static COMPRESSOR: RefCell<Compress> = RefCell::new(Compress::new(Compression::new(LEVEL), false));
    }
    COMPRESSOR.with_borrow_mut(|compressor| {
        compressor.reset();
        // What ends it is removed.
        let mut compressed = Vec::with_capacity(data.len() + TAIL.len());
        compressor.compress_vec(data, &mut compressed, FlushCompress::Sync).ok()?;
        let is_complete = compressor.total_in() == data.len() as u64 && compressed.ends_with(&TAIL);
        compressed.truncate(compressed.len().checked_sub(TAIL.len())?);
        compressed.shrink_to_fit();
        (is_complete && compressed.len() < data.len()).then_some(compressed)
    })
}

/// A message that is decompressed in steps, so that a client cannot have the holder work for it for long.
pub(crate) struct Inflating {
    decompressor: Decompress,
    /// What the client has sent, and the end of the last block.
    data: Vec<u8>,
    read: usize,
    message: Vec<u8>,
}

impl Inflating {
    pub(crate) fn new(mut data: Vec<u8>) -> Self {
        data.extend_from_slice(&TAIL);
        // A final block, so that the end of what is incomplete is not the end of the data.
        data.extend_from_slice(&FINAL);
        Self { decompressor: Decompress::new(false), data, read: 0, message: Vec::new() }
    }

    /// Bytes that it occupies, but for the decompressor.
    pub(crate) fn size(&self) -> usize {
        self.data.capacity() + self.message.capacity()
    }

    /// Goes on until the budget, in bytes, is used up. True: the message is complete. It may have `max` bytes.
    pub(crate) fn step(&mut self, budget: &mut usize, max: usize) -> Result<bool, Fault> {
        while *budget > 0 {
            let end = self.data.len().min(self.read + (*budget / READ_COST).max(1));
            let (before, length) = (self.decompressor.total_in(), self.message.len());
            self.message.resize(length + STEP, 0);
            let (input, output) = (&self.data[self.read..end], &mut self.message[length..]);
            let status = self.decompressor.decompress(input, output, FlushDecompress::None);
            let written = usize::try_from(self.decompressor.total_out()).unwrap_or(usize::MAX) - length;
            self.message.truncate(length + written);
            let read = usize::try_from(self.decompressor.total_in() - before).unwrap_or(usize::MAX);
            self.read += read;
            *budget = budget.saturating_sub(read * READ_COST + written);
            if self.message.len() > max {
                return Err(Fault::TooLong);
            }
            match status {
                Ok(Status::StreamEnd) => {
                    let rest = &self.data[self.read..];
                    // The last block of a message may be a final one, with an empty one behind it (section 7.2.3.4).
                    let ends =
                        rest.is_empty() || rest.strip_prefix(&[0]).unwrap_or(rest) == [&TAIL[..], &FINAL].concat();
                    return if ends { Ok(true) } else { Err(Fault::Malformed) };
                }
                Ok(Status::Ok | Status::BufError) if read + written > 0 => {}
                _ => return Err(Fault::Malformed),
            }
        }
        Ok(false)
    }

    pub(crate) fn into_message(self) -> Vec<u8> {
        self.message
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Deflate, Fault, Inflating, MIN_LENGTH, READ_COST, compress};

    /// Decompresses in small steps.
    fn decompress(data: Vec<u8>, max: usize) -> Result<Vec<u8>, Fault> {
        let mut inflating = Inflating::new(data);
        while !inflating.step(&mut 100, max)? {}
        Ok(inflating.into_message())
    }

    fn answer(offers: &str) -> Option<String> {
        Deflate::accept([offers].into_iter()).map(Deflate::answer)
    }

    #[test]
    fn the_first_acceptable_offer_is_answered() {
        let plain = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
        // Chromium, Firefox, and Autobahn.
        for offers in [
            "permessage-deflate",
            "permessage-deflate; client_max_window_bits",
            "x-webkit-deflate-frame, permessage-deflate ; client_max_window_bits=\"9\"",
            "permessage-deflate; server_max_window_bits=7, permessage-deflate; server_no_context_takeover",
        ] {
            assert_eq!(answer(offers).as_deref(), Some(plain), "{offers}");
        }
        let offers = "permessage-deflate; client_no_context_takeover; server_max_window_bits = 10";
        assert_eq!(answer(offers), Some(format!("{plain}; server_max_window_bits=10")));
        for offers in [
            "",
            "grip",
            "permessage-deflat",
            "permessage-deflate; x",
            "permessage-deflate; server_max_window_bits",
            "permessage-deflate; server_max_window_bits=16",
            "permessage-deflate; server_max_window_bits=08",
            "permessage-deflate; server_max_window_bits=+9",
            "permessage-deflate; server_no_context_takeover=1",
            "permessage-deflate; client_max_window_bits; client_max_window_bits=9",
            "permessage-deflate; server_max_window_bits=\"10",
            "permessage-deflate; server_max_window_bits=\"\"10\"\"",
            "permessage-deflate; server_no_context_takeover=",
            "x; a=\", permessage-deflate, \"",
        ] {
            assert_eq!(answer(offers), None, "{offers}");
        }
    }

    #[test]
    fn messages_longer_than_the_window_of_the_client_are_not_compressed() {
        let small = Deflate { window_bits: Some(9) };
        assert!(small.suits(512) && !small.suits(513) && !small.suits(MIN_LENGTH - 1));
        assert!([None, Some(15)].into_iter().all(|window_bits| Deflate { window_bits }.suits(1 << 20)));
    }

    #[test]
    fn what_is_compressed_is_decompressed() {
        let texts = [vec![b'x'; 1 << 20], b"{\"id\": 7, \"name\": \"value\"}, ".repeat(40)];
        for text in texts {
            let compressed = compress(&text).unwrap();
            assert!(compressed.len() < text.len() / 5, "{}", compressed.len());
            assert_eq!(decompress(compressed, text.len()).unwrap(), text);
        }
        let mut state = 1_u32;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        assert_eq!(compress(&noise.take(10_000).collect::<Vec<_>>()), None);
    }

    #[test]
    fn examples_of_the_rfc_are_read() {
        let examples: [&[u8]; 4] = [
            // Section 7.2.3.1 to 7.2.3.5: a block, one without compression, one that is final, and two.
            &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00],
            &[0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00],
            &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00],
            &[0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00],
        ];
        for example in examples {
            assert_eq!(decompress(example.to_vec(), 5).as_deref(), Ok(b"Hello".as_slice()), "{example:x?}");
            assert_eq!(decompress(example.to_vec(), 4), Err(Fault::TooLong), "{example:x?}");
        }
        assert_eq!(decompress(vec![0], 0).as_deref(), Ok(b"".as_slice()));
    }

    #[test]
    fn what_is_no_compressed_data_is_refused() {
        let final_and_more = [0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0xf2, 0x48, 0x05, 0x00];
        for data in [&[0xff; 9][..], b"Hello", &final_and_more, b""] {
            assert_eq!(decompress(data.to_vec(), 1000), Err(Fault::Malformed), "{data:x?}");
        }
        // One that is cut off is not taken for a shorter one.
        let whole = compress(&b"{\"id\": 7, \"name\": \"value\"}, ".repeat(40)).unwrap();
        for length in 0..whole.len() {
            assert_eq!(decompress(whole[..length].to_vec(), 10_000), Err(Fault::Malformed), "{length}");
        }
    }

    #[test]
    fn a_step_does_no_more_than_its_budget() {
        let empty_blocks = vec![0b010; 100_000];
        let mut inflating = Inflating::new(empty_blocks);
        let mut steps = 1;
        while !inflating.step(&mut 8_000, 1_000).unwrap_or(true) {
            assert!(inflating.read <= steps * 8_000 / READ_COST);
            steps += 1;
        }
        let zeros = compress(&vec![0; 1 << 20]).unwrap();
        let mut inflating = Inflating::new(zeros);
        let mut steps = 1;
        while !inflating.step(&mut 1_000, 1 << 20).unwrap() {
            assert!(inflating.message.len() <= steps * 20_000);
            steps += 1;
        }
        assert!(steps > 50, "{steps}");
    }

    #[test]
    fn a_message_that_grows_without_end_is_given_up_early() {
        let bomb = compress(&vec![0; 64 << 20]).unwrap();
        assert!(bomb.len() < 1 << 20, "{}", bomb.len());
        assert_eq!(decompress(bomb, 1 << 20), Err(Fault::TooLong));
    }
}
