//! Compressing the content of files: which, in which codings, at which level. Pure functions. Any thread but the one
//! that polls: 100 KB take about 3 ms.
//!
//! Decisions, measured over 33 scripts, style sheets and drawings, 2.3 MB (share that is left, time for 100 KB on one
//! core):
//! - Brotli 5: 24.4 %, 2.8 ms. Level 6: 24.1 %, 3.3 ms; level 9: 23.6 %, 18 ms; level 4: 26.2 %, 1.8 ms.
//! - gzip 6 by zlib-rs: 26.7 %, 1.5 ms; by miniz_oxide: 26.4 %, 3.7 ms. Level 9 leaves 26.3 %.
//! - No zstd. Its C library (level 6: 25.4 %, 1.1 ms) would need a C compiler, and ruzstd leaves 37.7 %. Browsers that
//!   accept zstd accept Brotli, too. Siblings of files in zstd are sent as before.
//! - Both encoders need less than 64 KiB of stack.

use std::io::{self, Write};
use std::ops::RangeInclusive;

use brotli::enc::BrotliEncoderParams;
use flate2::Compression;
use flate2::write::GzEncoder;
use tailrace_http::coding::Coding;

use tailrace_http::compression::is_compressible;

/// The codings, the best first.
pub(super) const CODINGS: [Coding; 2] = [Coding::Brotli, Coding::Gzip];
/// Smaller files fit into one packet anyway; larger ones take long, and memory.
const SIZES: RangeInclusive<u64> = 256..=8 << 20;
/// What is left must be at most this, in hundredths of the file, or it is not worth the client's time.
const MAX_LEFT: usize = 90;
const BROTLI_LEVEL: i32 = 5;
const GZIP_LEVEL: u32 = 6;

/// Whether a file of this type and size is compressed.
pub(super) fn is_candidate(media_type: &str, size: u64) -> bool {
    SIZES.contains(&size) && is_compressible(media_type)
}

/// The codings in which a file of this type and size is compressed, if it becomes smaller.
#[must_use]
pub fn codings(media_type: &str, size: u64) -> &'static [Coding] {
    if is_candidate(media_type, size) { &CODINGS } else { &[] }
}

/// The bytes in this coding, always the same for the same bytes. `None`: too little is gained.
pub(super) fn compressed(coding: Coding, bytes: &[u8]) -> Option<Vec<u8>> {
    let made = match coding {
        Coding::Brotli => brotli(bytes).ok()?,
        Coding::Gzip => gzip(bytes).ok()?,
        Coding::Identity | Coding::Zstd => return None,
    };
    (made.len() * 100 <= bytes.len() * MAX_LEFT).then_some(made)
}

fn brotli(mut bytes: &[u8]) -> io::Result<Vec<u8>> {
    let params = BrotliEncoderParams { quality: BROTLI_LEVEL, size_hint: bytes.len(), ..Default::default() };
    let mut made = Vec::new();
    brotli::BrotliCompress(&mut bytes, &mut made, &params)?;
    made.shrink_to_fit();
    Ok(made)
}

fn gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(GZIP_LEVEL));
    encoder.write_all(bytes)?;
    let mut made = encoder.finish()?;
    made.shrink_to_fit();
    Ok(made)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read;
    use std::thread;

    use tailrace_http::coding::Coding;
    use tailrace_server::Disk;

    use super::{CODINGS, compressed, is_candidate};

    fn decompressed(coding: Coding, bytes: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        match coding {
            Coding::Brotli => _ = brotli::Decompressor::new(bytes, 4096).read_to_end(&mut plain).unwrap(),
            _ => _ = flate2::read::GzDecoder::new(bytes).read_to_end(&mut plain).unwrap(),
        }
        plain
    }

    /// Bytes without any pattern.
    fn noise(length: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_be_bytes()[0]
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn what_was_compressed_reads_the_same_and_is_smaller() {
        let text = "The server sends what the file has. ".repeat(100).into_bytes();
        for coding in CODINGS {
            let made = compressed(coding, &text).unwrap();
            assert!(made.len() < text.len() / 5, "{coding:?}: {}", made.len());
            assert_eq!(decompressed(coding, &made), text);
            assert_eq!(compressed(coding, &text).unwrap(), made, "a strong entity tag needs the same bytes");
        }
        assert_eq!(compressed(Coding::Zstd, &text), None);
    }

    #[test]
    fn what_hardly_becomes_smaller_is_left_as_it_is() {
        // One eighth of it is zeros.
        let mixed: Vec<_> = noise(70_000).into_iter().chain([0; 10_000]).collect();
        let little: Vec<_> = noise(95_000).into_iter().chain([0; 5_000]).collect();
        for coding in CODINGS {
            assert!(compressed(coding, &mixed).is_some());
            assert_eq!(compressed(coding, &little), None);
            assert_eq!(compressed(coding, &noise(1_000)), None);
        }
    }

    #[test]
    fn the_stack_of_a_disk_thread_is_enough() {
        let mut bytes = noise(4 << 20);
        bytes.extend("The largest file that is compressed. ".repeat(1 << 17).as_bytes());
        bytes.truncate(8 << 20);
        for coding in CODINGS {
            let bytes = bytes.clone();
            let small = thread::Builder::new().stack_size(Disk::STACK / 2);
            assert!(small.spawn(move || compressed(coding, &bytes).is_some()).unwrap().join().unwrap());
        }
    }

    #[test]
    fn files_of_middle_size_with_text_are_compressed() {
        assert!(is_candidate("text/css; charset=utf-8", 256) && is_candidate("image/svg+xml", 8 << 20));
        assert!(!is_candidate("text/css", 255) && !is_candidate("text/css", (8 << 20) + 1));
        assert!(!is_candidate("image/png", 10_000));
    }
}
