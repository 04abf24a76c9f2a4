//! Many quick blocks of one response: the application's thread appends here, an I/O thread takes what has gathered so
//! far and sends it, at most [`TICK`] later.
//!
//! Two threads, one short lock: the producer appends (a copy of a small block), the I/O side swaps the buffer out. The
//! lock is never held across a system call, so the producer does not wait for a send. While a gather is `listed`, the
//! I/O side looks at it at every tick; it unlists a gather that stayed empty, under the same lock, and the producer then
//! sends the next block by itself.

use std::time::Duration;

use penstock_http::encode;

/// How long a gathered block waits at most before it is sent.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// Empty ticks until a gather is unlisted.
const IDLE_TICKS: u8 = 4;
/// Room before the data for the line of a chunk.
const ROOM: usize = 20;
/// What a fresh buffer holds.
const FIRST: usize = 64 * 1024;

/// The gathered bytes of one response.
#[derive(Default)]
pub(crate) struct Gather {
    bytes: Vec<u8>,
    chunked: bool,
    listed: bool,
    idle: u8,
    /// The client is slow: so much waits that the producer must, too.
    full: bool,
    /// The connection is broken.
    broken: bool,
}

/// What became of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appended {
    /// It will be sent at the next tick.
    Taken,
    /// Likewise, and the producer must wait now.
    Full,
    /// The gather is not listed: send it directly.
    Unlisted,
    /// The connection is broken.
    Broken,
}

impl Gather {
    /// Producer: begins to gather. The I/O side must be told.
    pub(crate) fn list(&mut self, chunked: bool) {
        self.chunked = chunked;
        self.listed = true;
        self.idle = 0;
    }

    /// Producer: appends a block; `limit` bytes at most wait here.
    pub(crate) fn append(&mut self, block: &[u8], limit: usize) -> Appended {
        if self.broken {
            return Appended::Broken;
        }
        if !self.listed {
            return Appended::Unlisted;
        }
        if self.bytes.is_empty() {
            self.bytes.reserve(FIRST.max(block.len() + 2 * ROOM));
            self.bytes.resize(ROOM, 0);
        }
        self.bytes.extend_from_slice(block);
        if self.full || self.bytes.len() > limit { Appended::Full } else { Appended::Taken }
    }

    /// Bytes that have gathered.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len().saturating_sub(ROOM)
    }

    /// Takes what has gathered, framed: the buffer, and where in it the bytes begin.
    pub(crate) fn take(&mut self) -> Option<(Vec<u8>, usize)> {
        let length = self.len();
        if length == 0 {
            return None;
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        if !self.chunked {
            return Some((bytes, ROOM));
        }
        let mut line = [0; 20];
        let end = encode::chunk_header(length, &mut line);
        let at = ROOM - end;
        bytes[at..ROOM].copy_from_slice(&line[..end]);
        bytes.extend_from_slice(encode::CHUNK_END);
        Some((bytes, at))
    }

    /// I/O side, at a tick: true while there is reason to look again.
    pub(crate) fn stays_listed(&mut self, moved: bool) -> bool {
        self.idle = if moved { 0 } else { self.idle + 1 };
        if self.idle >= IDLE_TICKS && self.len() == 0 {
            self.listed = false;
        }
        self.listed
    }

    /// I/O side: tells the producer about the client.
    pub(crate) fn tell(&mut self, full: bool, broken: bool) {
        self.full = full;
        self.broken |= broken;
    }

    /// The response is over. True when the gather was listed.
    pub(crate) fn reset(&mut self) -> bool {
        std::mem::take(self).listed
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Appended, Gather};

    #[test]
    fn gathered_blocks_make_one_chunk() {
        let mut gather = Gather::default();
        gather.list(true);
        for _ in 0..5 {
            assert_eq!(gather.append(b"abcd", 100), Appended::Taken);
        }
        let (bytes, at) = gather.take().unwrap();
        assert_eq!(&bytes[at..], b"14\r\nabcdabcdabcdabcdabcd\r\n");
        assert!(gather.take().is_none());
    }

    #[test]
    fn without_chunks_the_bytes_are_as_they_are() {
        let mut gather = Gather::default();
        gather.list(false);
        gather.append(b"ab", 100);
        gather.append(b"cd", 100);
        let (bytes, at) = gather.take().unwrap();
        assert_eq!(&bytes[at..], b"abcd");
    }

    #[test]
    fn a_gather_that_stays_empty_is_unlisted_but_never_with_bytes_in_it() {
        let mut gather = Gather::default();
        gather.list(true);
        gather.append(b"ab", 100);
        for _ in 0..10 {
            assert!(gather.stays_listed(false));
        }
        gather.take().unwrap();
        while gather.stays_listed(false) {}
        assert_eq!(gather.append(b"ab", 100), Appended::Unlisted);
    }

    #[test]
    fn a_full_gather_takes_the_block_and_says_so() {
        let mut gather = Gather::default();
        gather.list(false);
        assert_eq!(gather.append(&[0; 100], 50), Appended::Full);
        gather.tell(false, true);
        assert_eq!(gather.append(b"a", 50), Appended::Broken);
    }
}
