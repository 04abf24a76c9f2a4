//! The framing of response bodies: what stands around the data that is sent.
//!
//! A value without memory: whoever sends data asks it for the bytes before and behind, wherever they are written. Any
//! thread.

/// Behind the data of each chunk.
const CHUNK_END: &[u8] = b"\r\n";
/// The last chunk and an empty trailer section.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Frames the data of a response body as its head says: the counterpart of [`crate::body::BodyDecoder`]. What has no
/// length stands between bytes of the framing, and more of them end the body. The default frames nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodyEncoder {
    is_chunked: bool,
}

impl BodyEncoder {
    /// The chunked transfer coding (RFC 9112 section 7.1).
    pub const CHUNKED: Self = Self { is_chunked: true };
    /// At most so many bytes stand before the data of one send.
    pub const BEFORE: usize = 20;
    /// At most so many bytes stand behind it.
    pub const BEHIND: usize = CHUNK_END.len();

    /// Appends what stands before `length` bytes of data; nothing if there are none.
    #[inline]
    pub fn begin(self, length: usize, out: &mut Vec<u8>) {
        if self.is_chunked && length > 0 {
            let mut line = [0; Self::BEFORE];
            let end = chunk_header(length, &mut line);
            out.extend_from_slice(&line[..end]);
        }
    }

    /// Frames data that begins at `at` in `buffer`, with [`BodyEncoder::BEFORE`] bytes of room before it. Returns
    /// where the framing begins.
    #[inline]
    pub fn begin_in_front(self, length: usize, buffer: &mut [u8], at: usize) -> usize {
        if !self.is_chunked || length == 0 {
            return at;
        }
        let mut line = [0; Self::BEFORE];
        let end = chunk_header(length, &mut line);
        buffer[at - end..at].copy_from_slice(&line[..end]);
        at - end
    }

    /// What stands behind `length` bytes of data; nothing if there are none.
    #[inline]
    #[must_use]
    pub fn behind(self, length: usize) -> &'static [u8] {
        if self.is_chunked && length > 0 { CHUNK_END } else { b"" }
    }

    /// What ends the body.
    #[inline]
    #[must_use]
    pub fn end(self) -> &'static [u8] {
        if self.is_chunked { LAST_CHUNK } else { b"" }
    }
}

/// Writes the line before a chunk of `length` bytes and returns the line's length. `length` must not be 0: that would
/// be the last chunk.
fn chunk_header(length: usize, out: &mut [u8; 20]) -> usize {
    debug_assert!(length > 0, "a chunk without data would end the body");
    let digits = ((usize::BITS - length.leading_zeros()).div_ceil(4) as usize).max(1);
    for (index, place) in out[..digits].iter_mut().enumerate() {
        let digit = (length >> (4 * (digits - 1 - index)) & 0xf) as u8;
        *place = if digit < 10 { b'0' + digit } else { b'a' + digit - 10 };
    }
    out[digits..digits + 2].copy_from_slice(b"\r\n");
    digits + 2
}
