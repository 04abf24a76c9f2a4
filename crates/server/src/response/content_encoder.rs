//! The encoder of one compressed response. Any thread but the one that polls, one at a time: 100 KB take up to 2 ms.
//!
//! Decisions:
//! - Levels: zstd 3, gzip 4, Brotli 4. One level more of gzip or Brotli costs 30 to 60 % more time for 1 to 2 % less.
//! - A window of 128 KiB for zstd, 64 KiB for Brotli: an encoder of theirs otherwise has up to 4 MiB, for a response that
//!   may last for hours.

use std::io::{self, Write};

use brotli::CompressorWriter;
use brotli::enc::BrotliEncoderParams;
use flate2::Compression;
use flate2::write::GzEncoder;
use tailrace_http::body_encoder::BodyEncoder;
use tailrace_http::coding::Coding;

use crate::request::memory::{Charge, ClientMemory};
use crate::response::segments;

const GZIP_LEVEL: u32 = 4;
const BROTLI_LEVEL: i32 = 4;
const BROTLI_WINDOW: i32 = 16;
const ZSTD_LEVEL: i32 = 3;
const ZSTD_WINDOW: u32 = 17;
/// Bytes that an encoder writes at once.
const BUFFER: usize = 32 * 1024;

enum Kind {
    Gzip(GzEncoder<Vec<u8>>),
    Brotli(Box<CompressorWriter<Vec<u8>>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

/// See the module.
pub(crate) struct ContentEncoder {
    coding: Coding,
    /// Of the body, if that is known, in bytes.
    length: Option<u64>,
    /// `None` before the first bytes: the thread that compresses makes it, and zeroes its memory.
    kind: Option<Kind>,
    _charge: Charge,
}

/// The memory of an encoder, in bytes, measured over a stream of 400 KB.
fn memory(coding: Coding) -> usize {
    match coding {
        Coding::Identity => 0,
        Coding::Gzip => 400 << 10,
        Coding::Brotli => 2 << 20,
        Coding::Zstd => 1300 << 10,
    }
}

impl ContentEncoder {
    /// `length`: of the body, if that is known. `None`: the responses have used up their memory, or the system has none
    /// for it.
    pub(crate) fn new(coding: Coding, length: Option<u64>, limits: &ClientMemory) -> Option<Self> {
        let memory = memory(coding);
        if !limits.has_room_for_response(memory) {
            return None;
        }
        let mut charge = Charge::new(limits.responses.clone());
        charge.set(memory);
        Some(Self { coding, length, kind: None, _charge: charge })
    }

    /// Makes the encoder, if there is none.
    fn kind(&mut self) -> io::Result<&mut Kind> {
        if self.kind.is_none() {
            // The libraries end the process when they get no memory.
            segments::with_capacity(memory(self.coding)).ok_or(io::ErrorKind::OutOfMemory)?;
            self.kind = Some(Kind::new(self.coding, self.length, Self::buffer()?)?);
        }
        self.kind.as_mut().ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// A buffer with room for the framing of a chunk in front.
    fn buffer() -> io::Result<Vec<u8>> {
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(BodyEncoder::BEFORE + BUFFER)?;
        buffer.resize(BodyEncoder::BEFORE, 0);
        Ok(buffer)
    }

    /// Compresses these bytes. What comes of them may stay in the encoder.
    ///
    /// # Errors
    /// The system has no memory.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let kind = self.kind()?;
        // No coding makes bytes notably longer.
        kind.out().try_reserve(bytes.len() + BUFFER)?;
        match kind {
            Kind::Gzip(encoder) => encoder.write_all(bytes),
            Kind::Brotli(encoder) => encoder.write_all(bytes),
            Kind::Zstd(encoder) => encoder.write_all(bytes),
        }
    }

    /// Leaves nothing in the encoder: the client can decode all that was compressed so far.
    ///
    /// # Errors
    /// The system has no memory.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let kind = self.kind()?;
        kind.out().try_reserve(BUFFER)?;
        match kind {
            Kind::Gzip(encoder) => encoder.flush(),
            Kind::Brotli(encoder) => encoder.flush(),
            Kind::Zstd(encoder) => encoder.flush(),
        }
    }

    /// What was compressed since the last call, behind [`BodyEncoder::BEFORE`] bytes of room.
    ///
    /// # Errors
    /// The system has no memory.
    pub(crate) fn take(&mut self) -> io::Result<Vec<u8>> {
        let next = Self::buffer()?;
        Ok(std::mem::replace(self.kind()?.out(), next))
    }

    /// Ends the content, and gives what [`ContentEncoder::take`] would.
    ///
    /// # Errors
    /// The system has no memory.
    pub(crate) fn finish(mut self) -> io::Result<Vec<u8>> {
        self.kind()?.out().try_reserve(BUFFER)?;
        match self.kind {
            Some(Kind::Gzip(encoder)) => encoder.finish(),
            Some(Kind::Brotli(encoder)) => Ok(encoder.into_inner()),
            Some(Kind::Zstd(encoder)) => encoder.finish(),
            None => Self::buffer(),
        }
    }
}

impl Kind {
    fn new(coding: Coding, length: Option<u64>, out: Vec<u8>) -> io::Result<Self> {
        Ok(match coding {
            Coding::Identity => return Err(io::ErrorKind::Unsupported.into()),
            Coding::Gzip => Self::Gzip(GzEncoder::new(out, Compression::new(GZIP_LEVEL))),
            Coding::Brotli => {
                let size_hint = length.map_or(0, |length| usize::try_from(length).unwrap_or(usize::MAX));
                let (quality, lgwin) = (BROTLI_LEVEL, BROTLI_WINDOW);
                let params = BrotliEncoderParams { quality, lgwin, size_hint, ..Default::default() };
                Self::Brotli(Box::new(CompressorWriter::with_params(out, BUFFER, &params)))
            }
            Coding::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(out, ZSTD_LEVEL)?;
                encoder.window_log(ZSTD_WINDOW)?;
                Self::Zstd(encoder)
            }
        })
    }

    fn out(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Gzip(encoder) => encoder.get_mut(),
            Self::Brotli(encoder) => encoder.get_mut(),
            Self::Zstd(encoder) => encoder.get_mut(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read;

    use tailrace_http::body_encoder::BodyEncoder;
    use tailrace_http::coding::Coding;

    use super::{ContentEncoder, memory};
    use crate::request::memory::ClientMemory;
    use crate::response::segments::tests::without_memory;

    const CODINGS: [Coding; 3] = [Coding::Gzip, Coding::Brotli, Coding::Zstd];

    fn decoded(coding: Coding, bytes: &[u8], plain: &mut [u8]) {
        match coding {
            Coding::Brotli => brotli::Decompressor::new(bytes, 4096).read_exact(plain).unwrap(),
            Coding::Zstd => zstd::stream::read::Decoder::new(bytes).unwrap().read_exact(plain).unwrap(),
            _ => flate2::read::GzDecoder::new(bytes).read_exact(plain).unwrap(),
        }
    }

    #[test]
    fn what_was_flushed_can_be_decoded_before_the_end() {
        let limits = ClientMemory::new(1 << 30, 1 << 29);
        for coding in CODINGS {
            let mut encoder = ContentEncoder::new(coding, None, &limits).unwrap();
            assert_eq!(limits.responses.used(), memory(coding));
            let (mut given, mut got) = (Vec::new(), Vec::new());
            for length in [1, 50, 200_000, 7] {
                let block: Vec<u8> = (0..length).map(|at: usize| (at % 1009 * at / 7) as u8).collect();
                encoder.write(&block).unwrap();
                encoder.flush().unwrap();
                given.extend(block);
                let bytes = encoder.take().unwrap();
                got.extend_from_slice(&bytes[BodyEncoder::BEFORE..]);
                let mut plain = vec![0; given.len()];
                decoded(coding, &got, &mut plain);
                assert_eq!(plain, given, "{coding:?}");
            }
            got.extend_from_slice(&encoder.finish().unwrap()[BodyEncoder::BEFORE..]);
            let mut plain = vec![0; given.len()];
            decoded(coding, &got, &mut plain);
            assert_eq!(limits.responses.used(), 0);
        }
    }

    #[test]
    fn without_memory_there_is_no_encoder() {
        let limits = ClientMemory::new(1 << 20, 1 << 19);
        assert!(ContentEncoder::new(Coding::Brotli, None, &limits).is_none(), "more than the budget");
        assert_eq!(limits.responses.used(), 0);
        let mut encoder = ContentEncoder::new(Coding::Gzip, None, &limits).unwrap();
        assert!(without_memory(|| encoder.write(b"plain")).is_err());
        drop(encoder);
        assert_eq!(limits.responses.used(), 0);
    }
}
