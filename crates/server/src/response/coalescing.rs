//! The buffer in which many quick blocks of a response are coalesced. The producer appends copies of small blocks; the
//! I/O side sends them, at most [`TICK`] later.
//!
//! Before the first block the buffer may have the head of the response, too: the **opening** of the response is then
//! delayed. If the response ends before the I/O side comes, its length is stated in the head, and all of it is sent
//! together.
//!
//! Plain data behind the lock of [`crate::response::delivery`], which is never held across a system call, so the
//! producer does not wait for a send. While the buffer is listed, the I/O side looks at it at every tick. After some
//! ticks that find it empty, the buffer is unlisted, and the producer sends the next block directly.

use std::sync::Arc;
use std::time::Duration;

use tailrace_http::body_encoder::BodyEncoder;
use tailrace_http::encode::LENGTH_ROOM;

use crate::request::memory::{Budget, Charge};
use crate::response::segments::{self, SEGMENT};
use crate::response::send_queue::NoMemory;

/// The longest time that a coalesced block waits before it is sent. With 200 µs, the rate of blocks of 128 bytes is 13
/// % lower (64 connections).
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// A buffer is unlisted after this many empty ticks in a row.
const IDLE_TICKS: u8 = 4;
/// Capacity of the first buffer; a segment replaces it when it is full. If segments were used from the start, 2,000
/// simultaneous responses of greenlets with one block each would have a peak of 73 MiB resident instead of 67
/// (docs/internals/measurements.md, "Mechanisms").
const SMALL: usize = 2 * 1024;
/// The head of a response whose opening is delayed. It is at the start of the first segment.
#[derive(Clone, Copy)]
struct Head {
    status: u16,
    length: usize,
}

/// How the blocks of one response are coalesced.
#[derive(Default)]
pub(crate) struct Coalescing {
    encoder: BodyEncoder,
    listed: bool,
    /// Number of ticks in a row that found nothing.
    idle: u8,
    /// `Some` from the first coalesced block until the end of the response, so that an idle connection takes little
    /// memory.
    buffer: Option<Box<Buffer>>,
}

/// The coalesced bytes.
#[derive(Default)]
struct Buffer {
    /// The segment being filled. If it is the first, [`Buffer::before`] bytes precede the data; they begin with the
    /// head, if there is one.
    current: Vec<u8>,
    /// Full segments before it.
    full_segments: Vec<Vec<u8>>,
    /// For the capacity of all segments.
    charge: Charge,
    /// Bytes of data in all segments.
    length: usize,
    /// Bytes of the first segment before the data.
    before: usize,
    head: Option<Head>,
}

/// The segments that [`Coalescing::take`] returns, in order, and where the bytes of the first one begin.
pub(crate) struct Coalesced {
    pub(crate) segments: Vec<Vec<u8>>,
    pub(crate) at: usize,
    /// This is the opening of the response.
    pub(crate) opening: Option<QueuedOpening>,
}

/// Status of a response and length of the body in its opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuedOpening {
    pub(crate) status: u16,
    pub(crate) length: usize,
}

/// What became of the opening of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delay {
    /// It will be sent at the next tick, or with the end of the response.
    Delayed,
    /// Nothing was done. The caller sends it directly.
    Declined,
}

/// Whether the opening of a response was still delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DelayedOpening {
    /// It was: nothing of the response has been queued.
    Here,
    /// It has been queued, or was never delayed.
    Gone,
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
    pub(crate) fn list(&mut self, encoder: BodyEncoder) {
        self.encoder = encoder;
        self.listed = true;
        self.idle = 0;
    }

    /// Called by the producer: lists the buffer, and delays the opening of the response: its head and its first block,
    /// which is not empty. Declined if they are too large, something is coalesced already, or the system has no memory.
    pub(crate) fn open(
        &mut self,
        head: &[u8],
        status: u16,
        encoder: BodyEncoder,
        block: &[u8],
        budget: &Arc<Budget>,
    ) -> Delay {
        // The head may be replaced by one that states a length.
        let room = head.len() + LENGTH_ROOM + BodyEncoder::BEFORE;
        if self.len() > 0 || room + block.len() + BodyEncoder::BEHIND > SEGMENT {
            return Delay::Declined;
        }
        let buffer = self.buffer.get_or_insert_default();
        if buffer.begin(room, block.len(), budget).is_err() {
            return Delay::Declined;
        }
        buffer.current[..head.len()].copy_from_slice(head);
        buffer.add(block);
        buffer.head = Some(Head { status, length: head.len() });
        self.list(encoder);
        Delay::Delayed
    }

    /// Called by the producer at the end of its response. Only if its opening is still here, `head` is called, which may
    /// give another head, at most [`LENGTH_ROOM`] longer, that states the length of the body: the body is then not
    /// framed.
    pub(crate) fn close<'h>(&mut self, head: impl FnOnce() -> Option<&'h [u8]>) -> DelayedOpening {
        let Some(buffer) = &mut self.buffer else { return DelayedOpening::Gone };
        let Some(delayed) = &mut buffer.head else { return DelayedOpening::Gone };
        if let Some(head) = head() {
            buffer.full_segments.first_mut().unwrap_or(&mut buffer.current)[..head.len()].copy_from_slice(head);
            delayed.length = head.len();
            self.encoder = BodyEncoder::default();
        }
        DelayedOpening::Here
    }

    /// Called by the producer: drops the opening of its response if it is still here, and what follows it.
    pub(crate) fn drop_opening(&mut self) -> DelayedOpening {
        if self.buffer.as_ref().is_none_or(|buffer| buffer.head.is_none()) {
            return DelayedOpening::Gone;
        }
        *self = Self::default();
        DelayedOpening::Here
    }

    /// Called by the producer: appends a block. Its memory is charged to `budget` until [`Coalescing::take`].
    pub(crate) fn append(&mut self, block: &[u8], budget: &Arc<Budget>) -> Appended {
        if !self.listed {
            return Appended::Unlisted;
        }
        let buffer = self.buffer.get_or_insert_default();
        let needed = buffer.current.len() + block.len() + BodyEncoder::BEHIND;
        let made = if buffer.length == 0 {
            buffer.begin(BodyEncoder::BEFORE, block.len(), budget)
        } else if needed > buffer.current.capacity() {
            buffer.grow(needed, budget)
        } else {
            Ok(())
        };
        if made.is_err() {
            return Appended::NoMemory;
        }
        buffer.add(block);
        Appended::Taken
    }

    /// Number of coalesced bytes.
    pub(crate) fn len(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.length)
    }

    /// Takes the coalesced bytes as one frame and releases their charge. `None`: there are none.
    pub(crate) fn take(&mut self) -> Option<Coalesced> {
        let buffer = self.buffer.as_mut().filter(|buffer| buffer.length > 0)?;
        buffer.charge.set(0);
        let length = std::mem::take(&mut buffer.length);
        let mut segments = std::mem::take(&mut buffer.full_segments);
        segments.push(std::mem::take(&mut buffer.current));
        let mut at = buffer.before;
        if let Some(first) = segments.first_mut() {
            at = self.encoder.begin_in_front(length, first, at);
        }
        if let Some(last) = segments.last_mut() {
            last.extend_from_slice(self.encoder.behind(length));
        }
        let head = buffer.head.take();
        if let (Some(head), Some(first)) = (&head, segments.first_mut()) {
            first.copy_within(..head.length, at - head.length);
            at -= head.length;
        }
        let opening = head.map(|head| QueuedOpening { status: head.status, length });
        Some(Coalesced { segments, at, opening })
    }

    /// Called by the I/O side at a tick. `moved`: it found coalesced bytes. True: it is to look again at the next tick.
    pub(crate) fn must_stay_listed(&mut self, moved: bool) -> bool {
        self.idle = if moved { 0 } else { self.idle.saturating_add(1) };
        if self.idle >= IDLE_TICKS && self.len() == 0 {
            self.listed = false;
        }
        self.listed
    }
}

impl Buffer {
    /// Adds a block, for which there is room.
    fn add(&mut self, block: &[u8]) {
        self.current.extend_from_slice(block);
        self.length += block.len();
    }

    /// The buffer cannot hold `needed` bytes: a segment replaces it, or follows it if it is one.
    #[cold]
    fn grow(&mut self, needed: usize, budget: &Arc<Budget>) -> Result<(), NoMemory> {
        let mut segment = segments::take().ok_or(NoMemory)?;
        if needed > SEGMENT {
            self.full_segments.push(std::mem::replace(&mut self.current, segment));
        } else {
            segment.extend_from_slice(&self.current);
            self.current = segment;
        }
        self.charge.set_in(budget, self.room());
        Ok(())
    }

    #[cold]
    fn begin(&mut self, room: usize, length: usize, budget: &Arc<Budget>) -> Result<(), NoMemory> {
        let needed = room + length + BodyEncoder::BEHIND;
        if needed > self.current.capacity() {
            let buffer = if needed <= SMALL { segments::with_capacity(SMALL) } else { segments::take() };
            self.current = buffer.ok_or(NoMemory)?;
        }
        self.charge.set_in(budget, self.room());
        self.current.clear();
        self.current.resize(room, 0);
        self.before = room;
        Ok(())
    }

    /// The capacity of all segments, in bytes.
    fn room(&self) -> usize {
        self.current.capacity() + self.full_segments.iter().map(Vec::capacity).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use super::{Appended, BodyEncoder, Coalescing, Delay, DelayedOpening, LENGTH_ROOM, QueuedOpening, SEGMENT};
    use crate::request::memory::Budget;
    use crate::response::segments::tests::without_memory;

    #[test]
    fn coalesced_blocks_make_one_chunk() {
        let budget = Arc::<Budget>::default();
        let mut buffer = Coalescing::default();
        buffer.list(BodyEncoder::CHUNKED);
        for _ in 0..5 {
            assert_eq!(buffer.append(b"abcd", &budget), Appended::Taken);
        }
        let taken = buffer.take().unwrap();
        assert_eq!(&taken.segments.concat()[taken.at..], b"14\r\nabcdabcdabcdabcdabcd\r\n");
        assert!(buffer.take().is_none());
    }

    #[test]
    fn blocks_beyond_a_segment_are_still_one_chunk() {
        let budget = Arc::<Budget>::default();
        let mut buffer = Coalescing::default();
        buffer.list(BodyEncoder::CHUNKED);
        let mut all = Vec::new();
        for number in 0..20_u8 {
            let block = [number; 15_000];
            buffer.append(&block, &budget);
            all.extend_from_slice(&block);
        }
        let taken = buffer.take().unwrap();
        assert!(taken.segments.len() > 1);
        let bytes = taken.segments.concat();
        assert_eq!(&bytes[taken.at..taken.at + 7], b"493e0\r\n");
        assert_eq!(&bytes[taken.at + 7..bytes.len() - 2], all);
        assert_eq!(buffer.len(), 0);
    }

    #[test]
    fn a_small_buffer_grows_into_a_segment_and_loses_nothing() {
        let budget = Arc::<Budget>::default();
        let mut buffer = Coalescing::default();
        buffer.list(BodyEncoder::CHUNKED);
        buffer.append(b"alone", &budget);
        let taken = buffer.take().unwrap();
        assert_eq!(&taken.segments.concat()[taken.at..], b"5\r\nalone\r\n");
        assert!(taken.segments[0].capacity() < SEGMENT);
        let mut all = Vec::new();
        for number in 0..200_u8 {
            let block = [number; 1000];
            buffer.append(&block, &budget);
            all.extend_from_slice(&block);
        }
        let taken = buffer.take().unwrap();
        let bytes = taken.segments.concat();
        assert_eq!(&bytes[taken.at..taken.at + 7], b"30d40\r\n");
        assert_eq!(&bytes[taken.at + 7..bytes.len() - 2], all);
    }

    #[test]
    fn without_chunks_the_bytes_are_not_framed() {
        let budget = Arc::<Budget>::default();
        let mut buffer = Coalescing::default();
        buffer.list(BodyEncoder::default());
        buffer.append(b"ab", &budget);
        buffer.append(b"cd", &budget);
        let taken = buffer.take().unwrap();
        assert_eq!(&taken.segments.concat()[taken.at..], b"abcd");
    }

    #[test]
    fn a_buffer_is_unlisted_only_while_it_is_empty() {
        let budget = Arc::<Budget>::default();
        let mut buffer = Coalescing::default();
        buffer.list(BodyEncoder::CHUNKED);
        buffer.append(b"ab", &budget);
        for _ in 0..10 {
            assert!(buffer.must_stay_listed(false));
        }
        buffer.take().unwrap();
        while buffer.must_stay_listed(false) {}
        assert_eq!(buffer.append(b"ab", &budget), Appended::Unlisted);
    }

    #[test]
    fn what_is_coalesced_is_charged_until_it_is_taken() {
        let budget = Arc::<Budget>::default();
        let mut buffer = Coalescing::default();
        buffer.list(BodyEncoder::CHUNKED);
        buffer.append(b"alone", &budget);
        assert!((1..SEGMENT).contains(&budget.used()));
        for _ in 0..20 {
            buffer.append(&[0; 10_000], &budget);
        }
        assert!((3 * SEGMENT..5 * SEGMENT).contains(&budget.used()), "{}", budget.used());
        buffer.take().unwrap();
        assert_eq!(budget.used(), 0);
        buffer.append(b"left", &budget);
        drop(buffer);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_block_for_which_there_is_no_memory_is_not_taken_and_earlier_ones_are_kept() {
        let budget = Arc::<Budget>::default();
        let mut buffer = Coalescing::default();
        buffer.list(BodyEncoder::default());
        // A small buffer, a segment that replaces it, and one that follows.
        for length in [10, 20_000, 50_000] {
            let block = vec![b'x'; length];
            let before = (buffer.len(), budget.used());
            assert_eq!(without_memory(|| buffer.append(&block, &budget)), Appended::NoMemory);
            assert_eq!((buffer.len(), budget.used()), before);
            assert_eq!(buffer.append(&block, &budget), Appended::Taken);
        }
        let taken = buffer.take().unwrap();
        assert_eq!(taken.segments.concat()[taken.at..], [b'x'; 70_010]);
        assert_eq!(budget.used(), 0);
    }

    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

    #[test]
    fn an_opening_that_is_taken_before_the_end_is_the_head_and_a_chunk() {
        let budget = Arc::<Budget>::default();
        let mut buffer = Coalescing::default();
        assert_eq!(buffer.open(HEAD, 200, BodyEncoder::CHUNKED, b"abcd", &budget), Delay::Delayed);
        assert_eq!(buffer.append(b"efgh", &budget), Appended::Taken);
        assert!(budget.used() > 0);
        let taken = buffer.take().unwrap();
        assert_eq!(taken.opening, Some(QueuedOpening { status: 200, length: 8 }));
        assert_eq!(taken.segments.concat()[taken.at..], [HEAD, b"8\r\nabcdefgh\r\n"].concat());
        // The head is sent once.
        assert_eq!(
            (buffer.close(|| unreachable!()), buffer.drop_opening()),
            (DelayedOpening::Gone, DelayedOpening::Gone)
        );
        assert_eq!(buffer.append(b"ij", &budget), Appended::Taken);
        let taken = buffer.take().unwrap();
        assert_eq!((&taken.segments.concat()[taken.at..], taken.opening), (b"2\r\nij\r\n".as_slice(), None));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn an_opening_that_is_closed_has_the_new_head_and_no_chunks() {
        // The new head is longer or shorter; the blocks fit in a small buffer, or take several segments.
        for head in [[HEAD, &[b'x'; LENGTH_ROOM]].concat(), b"HTTP/1.1 200 OK\r\n\r\n".to_vec()] {
            for count in [1, 2, 20] {
                let budget = Arc::<Budget>::default();
                let mut buffer = Coalescing::default();
                let block = vec![b'b'; if count == 1 { 100 } else { 15_000 }];
                assert_eq!(buffer.open(HEAD, 200, BodyEncoder::CHUNKED, &block, &budget), Delay::Delayed);
                for _ in 1..count {
                    assert_eq!(buffer.append(&block, &budget), Appended::Taken);
                }
                assert_eq!(buffer.close(|| Some(&head)), DelayedOpening::Here);
                let taken = buffer.take().unwrap();
                assert!(taken.segments.concat()[taken.at..] == [head.clone(), block.repeat(count)].concat());
                assert_eq!(budget.used(), 0);
            }
        }
    }

    #[test]
    fn an_opening_that_is_dropped_leaves_nothing() {
        let budget = Arc::<Budget>::default();
        let mut buffer = Coalescing::default();
        assert_eq!(buffer.drop_opening(), DelayedOpening::Gone);
        assert_eq!(buffer.open(HEAD, 200, BodyEncoder::default(), b"abcd", &budget), Delay::Delayed);
        assert_eq!(buffer.drop_opening(), DelayedOpening::Here);
        assert!(buffer.take().is_none());
        assert_eq!((buffer.append(b"ab", &budget), budget.used()), (Appended::Unlisted, 0));
    }

    #[test]
    fn an_opening_is_not_delayed_behind_other_blocks_without_memory_or_if_it_is_large() {
        let budget = Arc::<Budget>::default();
        let mut buffer = Coalescing::default();
        assert_eq!(without_memory(|| buffer.open(HEAD, 200, BodyEncoder::CHUNKED, b"ab", &budget)), Delay::Declined);
        assert_eq!(buffer.open(&[b'h'; SEGMENT], 200, BodyEncoder::CHUNKED, b"ab", &budget), Delay::Declined);
        assert_eq!((buffer.append(b"ab", &budget), budget.used()), (Appended::Unlisted, 0));
        buffer.list(BodyEncoder::CHUNKED);
        buffer.append(b"ab", &budget);
        assert_eq!(buffer.open(HEAD, 200, BodyEncoder::CHUNKED, b"cd", &budget), Delay::Declined);
        let taken = buffer.take().unwrap();
        assert_eq!(&taken.segments.concat()[taken.at..], b"2\r\nab\r\n");
    }
}
