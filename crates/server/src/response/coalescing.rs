//! The buffer in which many quick blocks of a response are coalesced. The producer appends copies of small blocks; the
//! I/O side sends them, at most [`TICK`] later.
//!
//! Plain data behind the lock of [`crate::response::delivery`], which is never held across a system call, so the
//! producer does not wait for a send. While the buffer is listed, the I/O side looks at it at every tick. After some
//! ticks that find it empty, the buffer is unlisted, and the producer sends the next block directly.

use std::time::Duration;

use tailrace_http::encode;

use crate::request::memory::Budget;
use crate::response::segments::{self, SEGMENT};

/// The longest time that a coalesced block waits before it is sent. With 200 µs, the rate of blocks of 128 bytes is 13
/// % lower (64 connections).
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// A buffer is unlisted after this many empty ticks in a row.
const IDLE_TICKS: u8 = 4;
/// Capacity of the first buffer; a segment replaces it when it is full. If segments were used from the start, 2,000
/// simultaneous responses of greenlets with one block each would have a peak of 73 MiB resident instead of 67
/// (docs/internals/measurements.md, "Mechanisms").
const SMALL: usize = 2 * 1024;
/// Bytes reserved before the data for the size line of a chunk.
const ROOM: usize = 20;

/// The coalesced bytes of one response.
#[derive(Default)]
pub(crate) struct Coalescing {
    /// The segment being filled. If it is the first, [`ROOM`] bytes precede the data.
    current: Vec<u8>,
    /// Full segments before it.
    full_segments: Vec<Vec<u8>>,
    /// Bytes of data in all segments.
    length: usize,
    chunked: bool,
    listed: bool,
    /// Number of ticks in a row that found nothing.
    idle: u8,
}

/// The segments that [`Coalescing::take`] returns, in order, and where the bytes of the first one begin.
pub(crate) struct Coalesced {
    pub(crate) segments: Vec<Vec<u8>>,
    pub(crate) at: usize,
}

/// The result of [`Coalescing::append`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appended {
    /// The block will be sent at the next tick.
    Taken,
    /// Not taken: the buffer is not listed. The caller sends the block directly.
    Unlisted,
    /// Not taken: the system has no memory for it.
    NoMemory,
}

impl Coalescing {
    /// Called by the producer: lists the buffer, so that the next blocks are coalesced. The caller lists the response
    /// with the I/O side.
    pub(crate) fn list(&mut self, chunked: bool) {
        self.chunked = chunked;
        self.listed = true;
        self.idle = 0;
    }

    /// Called by the producer: appends a block. Its memory is charged to `budget` until [`Coalescing::take`].
    pub(crate) fn append(&mut self, block: &[u8], budget: &Budget) -> Appended {
        if !self.listed {
            return Appended::Unlisted;
        }
        let needed = self.current.len() + block.len() + encode::CHUNK_END.len();
        let has_room = if self.length == 0 {
            self.begin(block.len(), budget)
        } else if needed > self.current.capacity() {
            self.grow(needed, budget)
        } else {
            true
        };
        if !has_room {
            return Appended::NoMemory;
        }
        self.current.extend_from_slice(block);
        self.length += block.len();
        Appended::Taken
    }

    /// The buffer cannot hold `needed` bytes: a segment replaces it, or follows it if it is one. False: the system has
    /// no memory.
    #[cold]
    fn grow(&mut self, needed: usize, budget: &Budget) -> bool {
        let Some(mut segment) = segments::take() else { return false };
        budget.charge(segment.capacity());
        if needed > SEGMENT {
            self.full_segments.push(std::mem::replace(&mut self.current, segment));
        } else {
            budget.give_back(self.current.capacity());
            segment.extend_from_slice(&self.current);
            self.current = segment;
        }
        true
    }

    #[cold]
    fn begin(&mut self, length: usize, budget: &Budget) -> bool {
        let before = self.current.capacity();
        let needed = ROOM + length + encode::CHUNK_END.len();
        if needed > before {
            let buffer = if needed <= SMALL { segments::with_capacity(SMALL) } else { segments::take() };
            let Some(buffer) = buffer else { return false };
            self.current = buffer;
        }
        budget.give_back(before);
        budget.charge(self.current.capacity());
        self.current.clear();
        self.current.resize(ROOM, 0);
        true
    }

    /// The capacity of all segments, in bytes.
    fn room(&self) -> usize {
        self.current.capacity() + self.full_segments.iter().map(Vec::capacity).sum::<usize>()
    }

    /// Number of coalesced bytes.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Takes the coalesced bytes, as one chunk if the body is chunked. They are no longer charged. `None`: there are
    /// none.
    pub(crate) fn take(&mut self, budget: &Budget) -> Option<Coalesced> {
        if self.length == 0 {
            return None;
        }
        budget.give_back(self.room());
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
        Some(Coalesced { segments, at })
    }

    /// Called by the I/O side at a tick. `moved`: it found coalesced bytes. True: it is to look again at the next tick.
    pub(crate) fn stays_listed(&mut self, moved: bool) -> bool {
        self.idle = if moved { 0 } else { self.idle + 1 };
        if self.idle >= IDLE_TICKS && self.len() == 0 {
            self.listed = false;
        }
        self.listed
    }

    /// Drops everything at the end of the response.
    pub(crate) fn reset(&mut self, budget: &Budget) {
        // Most responses coalesce nothing.
        if self.current.capacity() > 0 || self.listed || !self.full_segments.is_empty() {
            budget.give_back(self.room());
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Appended, Coalescing, SEGMENT};
    use crate::request::memory::Budget;
    use crate::response::segments::tests::without_memory;

    #[test]
    fn coalesced_blocks_make_one_chunk() {
        let budget = Budget::default();
        let mut buffer = Coalescing::default();
        buffer.list(true);
        for _ in 0..5 {
            assert_eq!(buffer.append(b"abcd", &budget), Appended::Taken);
        }
        let taken = buffer.take(&budget).unwrap();
        assert_eq!(&taken.segments.concat()[taken.at..], b"14\r\nabcdabcdabcdabcdabcd\r\n");
        assert!(buffer.take(&budget).is_none());
    }

    #[test]
    fn blocks_beyond_a_segment_are_still_one_chunk() {
        let budget = Budget::default();
        let mut buffer = Coalescing::default();
        buffer.list(true);
        let mut all = Vec::new();
        for number in 0..20_u8 {
            let block = [number; 15_000];
            buffer.append(&block, &budget);
            all.extend_from_slice(&block);
        }
        let taken = buffer.take(&budget).unwrap();
        assert!(taken.segments.len() > 1);
        let bytes = taken.segments.concat();
        assert_eq!(&bytes[taken.at..taken.at + 7], b"493e0\r\n");
        assert_eq!(&bytes[taken.at + 7..bytes.len() - 2], all);
        assert_eq!(buffer.len(), 0);
    }

    #[test]
    fn a_small_buffer_grows_into_a_segment_and_loses_nothing() {
        let budget = Budget::default();
        let mut buffer = Coalescing::default();
        buffer.list(true);
        buffer.append(b"alone", &budget);
        let taken = buffer.take(&budget).unwrap();
        assert_eq!(&taken.segments.concat()[taken.at..], b"5\r\nalone\r\n");
        assert!(taken.segments[0].capacity() < SEGMENT);
        let mut all = Vec::new();
        for number in 0..200_u8 {
            let block = [number; 1000];
            buffer.append(&block, &budget);
            all.extend_from_slice(&block);
        }
        let taken = buffer.take(&budget).unwrap();
        let bytes = taken.segments.concat();
        assert_eq!(&bytes[taken.at..taken.at + 7], b"30d40\r\n");
        assert_eq!(&bytes[taken.at + 7..bytes.len() - 2], all);
    }

    #[test]
    fn without_chunks_the_bytes_are_not_framed() {
        let budget = Budget::default();
        let mut buffer = Coalescing::default();
        buffer.list(false);
        buffer.append(b"ab", &budget);
        buffer.append(b"cd", &budget);
        let taken = buffer.take(&budget).unwrap();
        assert_eq!(&taken.segments.concat()[taken.at..], b"abcd");
    }

    #[test]
    fn a_buffer_is_unlisted_only_while_it_is_empty() {
        let budget = Budget::default();
        let mut buffer = Coalescing::default();
        buffer.list(true);
        buffer.append(b"ab", &budget);
        for _ in 0..10 {
            assert!(buffer.stays_listed(false));
        }
        buffer.take(&budget).unwrap();
        while buffer.stays_listed(false) {}
        assert_eq!(buffer.append(b"ab", &budget), Appended::Unlisted);
    }

    #[test]
    fn what_is_coalesced_is_charged_until_it_is_taken() {
        let budget = Budget::default();
        let mut buffer = Coalescing::default();
        buffer.list(true);
        buffer.append(b"alone", &budget);
        assert!((1..SEGMENT).contains(&budget.used()));
        for _ in 0..20 {
            buffer.append(&[0; 10_000], &budget);
        }
        assert!((3 * SEGMENT..5 * SEGMENT).contains(&budget.used()), "{}", budget.used());
        buffer.take(&budget).unwrap();
        assert_eq!(budget.used(), 0);
        buffer.append(b"left", &budget);
        buffer.reset(&budget);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_block_for_which_there_is_no_memory_is_not_taken_and_earlier_ones_are_kept() {
        let budget = Budget::default();
        let mut buffer = Coalescing::default();
        buffer.list(false);
        // A small buffer, a segment that replaces it, and one that follows.
        for length in [10, 20_000, 50_000] {
            let block = vec![b'x'; length];
            let before = (buffer.len(), budget.used());
            assert_eq!(without_memory(|| buffer.append(&block, &budget)), Appended::NoMemory);
            assert_eq!((buffer.len(), budget.used()), before);
            assert_eq!(buffer.append(&block, &budget), Appended::Taken);
        }
        let taken = buffer.take(&budget).unwrap();
        assert_eq!(taken.segments.concat()[taken.at..], [b'x'; 70_010]);
        assert_eq!(budget.used(), 0);
    }
}
