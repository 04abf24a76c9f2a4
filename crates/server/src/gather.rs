//! Many quick blocks of one response: the application's thread appends here, an I/O thread takes what has gathered so
//! far and sends it, at most [`TICK`] later.
//!
//! Two threads, one short lock: the producer appends (a copy of a small block), the I/O side swaps the buffer out. The
//! lock is never held across a system call, so the producer does not wait for a send. While a gather is `listed`, the
//! I/O side looks at it at every tick; it unlists a gather that stayed empty, under the same lock, and the producer then
//! sends the next block by itself.

use std::time::Duration;

use penstock_http::encode;

use crate::segments::{self, SEGMENT};

/// How long a gathered block waits at most before it is sent.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// Empty ticks until a gather is unlisted.
const IDLE_TICKS: u8 = 4;
/// What thousands of responses with a block each have until they need more.
const LEAN: usize = 2 * 1024;
/// Room before the data for the line of a chunk.
const ROOM: usize = 20;

/// The gathered bytes of one response.
#[derive(Default)]
pub(crate) struct Gather {
    /// The segment being filled; empty, or with [`ROOM`] bytes before the data if it is the first.
    current: Vec<u8>,
    /// Full segments before it.
    full_segments: Vec<Vec<u8>>,
    /// Bytes of data in all.
    length: usize,
    chunked: bool,
    listed: bool,
    /// A small buffer does, so far.
    lean: bool,
    idle: u8,
    /// The client is slow: so much waits that the producer must, too.
    full: bool,
    /// The connection is broken.
    broken: bool,
}

/// What [`Gather::take`] took: segments in order, and where the bytes of the first begin.
pub(crate) struct Gathered {
    pub(crate) segments: Vec<Vec<u8>>,
    pub(crate) at: usize,
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

    /// Producer: as [`Self::list`], for a block that may well be alone.
    pub(crate) fn list_lean(&mut self, chunked: bool) {
        self.list(chunked);
        self.lean = true;
    }

    /// Producer: appends a block; `limit` bytes at most wait here.
    pub(crate) fn append(&mut self, block: &[u8], limit: usize) -> Appended {
        if self.broken {
            return Appended::Broken;
        }
        if !self.listed {
            return Appended::Unlisted;
        }
        if self.current.len() + block.len() > SEGMENT - ROOM {
            self.next_segment();
        }
        if self.length == 0 {
            self.begin(block.len());
        } else if self.lean && self.current.len() + block.len() > LEAN {
            self.outgrow();
        }
        self.current.extend_from_slice(block);
        self.length += block.len();
        if self.full || self.length > limit { Appended::Full } else { Appended::Taken }
    }

    #[cold]
    fn next_segment(&mut self) {
        if self.length > 0 {
            let full = std::mem::replace(&mut self.current, segments::take());
            self.full_segments.push(full);
        }
    }

    #[cold]
    fn outgrow(&mut self) {
        self.lean = false;
        let mut larger = segments::take();
        larger.extend_from_slice(&self.current);
        self.current = larger;
    }

    #[cold]
    fn begin(&mut self, length: usize) {
        self.lean &= ROOM + length <= LEAN;
        if self.lean && self.current.capacity() < LEAN {
            self.current = Vec::with_capacity(LEAN);
        } else if !self.lean && self.current.capacity() < SEGMENT {
            self.current = segments::take();
        }
        self.current.clear();
        self.current.resize(ROOM, 0);
    }

    /// Bytes that have gathered.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Takes what has gathered, framed.
    pub(crate) fn take(&mut self) -> Option<Gathered> {
        if self.length == 0 {
            return None;
        }
        let length = std::mem::take(&mut self.length);
        let mut segments = std::mem::take(&mut self.full_segments);
        segments.push(std::mem::take(&mut self.current));
        let mut at = ROOM;
        if self.chunked {
            let mut line = [0; 20];
            let end = encode::chunk_header(length, &mut line);
            at = ROOM - end;
            if let Some(first) = segments.first_mut() {
                first[at..ROOM].copy_from_slice(&line[..end]);
            }
            if let Some(last) = segments.last_mut() {
                last.extend_from_slice(encode::CHUNK_END);
            }
        }
        Some(Gathered { segments, at })
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
    use super::{Appended, Gather, SEGMENT};

    #[test]
    fn gathered_blocks_make_one_chunk() {
        let mut gather = Gather::default();
        gather.list(true);
        for _ in 0..5 {
            assert_eq!(gather.append(b"abcd", 100), Appended::Taken);
        }
        let taken = gather.take().unwrap();
        assert_eq!(&taken.segments.concat()[taken.at..], b"14\r\nabcdabcdabcdabcdabcd\r\n");
        assert!(gather.take().is_none());
    }

    #[test]
    fn blocks_beyond_a_segment_are_still_one_chunk() {
        let mut gather = Gather::default();
        gather.list(true);
        let mut all = Vec::new();
        for number in 0..20_u8 {
            let block = [number; 15_000];
            gather.append(&block, usize::MAX);
            all.extend_from_slice(&block);
        }
        let taken = gather.take().unwrap();
        assert!(taken.segments.len() > 1);
        let bytes = taken.segments.concat();
        assert_eq!(&bytes[taken.at..taken.at + 7], b"493e0\r\n");
        assert_eq!(&bytes[taken.at + 7..bytes.len() - 2], all);
        assert_eq!(gather.len(), 0);
    }

    #[test]
    fn a_lean_gather_grows_into_a_segment_and_loses_nothing() {
        let mut gather = Gather::default();
        gather.list_lean(true);
        gather.append(b"alone", 1 << 20);
        let taken = gather.take().unwrap();
        assert_eq!(&taken.segments.concat()[taken.at..], b"5\r\nalone\r\n");
        assert!(taken.segments[0].capacity() < SEGMENT);
        let mut all = Vec::new();
        for number in 0..200_u8 {
            let block = [number; 1000];
            gather.append(&block, 1 << 20);
            all.extend_from_slice(&block);
        }
        let taken = gather.take().unwrap();
        let bytes = taken.segments.concat();
        assert_eq!(&bytes[taken.at..taken.at + 7], b"30d40\r\n");
        assert_eq!(&bytes[taken.at + 7..bytes.len() - 2], all);
    }

    #[test]
    fn without_chunks_the_bytes_are_as_they_are() {
        let mut gather = Gather::default();
        gather.list(false);
        gather.append(b"ab", 100);
        gather.append(b"cd", 100);
        let taken = gather.take().unwrap();
        assert_eq!(&taken.segments.concat()[taken.at..], b"abcd");
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
