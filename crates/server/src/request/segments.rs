//! Bytes of a request body in memory: a list of segments that grows as data arrives. No byte is moved when the body
//! grows, and the memory of data that has been read is released before the rest.
//!
//! The first segments are small and from the allocator. When [`FROM_POOL`] bytes have arrived, the next ones are from
//! the [`Pool`]. Segments belong to one owner, which changes threads.

use std::collections::{TryReserveError, VecDeque};
use std::sync::Arc;

use tailrace_os::mapping::Mapping;

use crate::request::memory::{Charge, ClientMemory};
use crate::request::pool::{Pool, SEGMENT};

/// A body takes segments from the pool once this number of bytes has arrived and at least as many are missing: a body
/// never uses much more memory than twice what has arrived.
const FROM_POOL: usize = SEGMENT / 2;
/// Size of a segment if there is no memory for a larger one (bytes), unless less is to come. Otherwise, a body in
/// chunks of one byte would take an allocation for each.
const MIN_SEGMENT: usize = 4096;

/// A part of a body.
enum Segment {
    /// Of any size, from the allocator.
    Own(Vec<u8>),
    /// From the pool, with the number of bytes in use.
    Pooled(Mapping, usize),
}

impl Default for Segment {
    fn default() -> Self {
        Self::Own(Vec::new())
    }
}

impl Segment {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Pooled(memory, length) => memory.get(..*length).unwrap_or_default(),
        }
    }

    fn capacity(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.capacity(),
            Self::Pooled(memory, _) => memory.len(),
        }
    }

    fn is_full(&self) -> bool {
        self.bytes().len() == self.capacity()
    }

    /// Appends as many of the bytes as fit, and returns their number.
    fn append(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.capacity() - self.bytes().len());
        match self {
            Self::Own(own) => own.extend_from_slice(&bytes[..count]),
            Self::Pooled(memory, length) => {
                memory[*length..*length + count].copy_from_slice(&bytes[..count]);
                *length += count;
            }
        }
        count
    }
}

/// Bytes in segments of a pool.
pub struct Segments {
    /// All but the last, none of them empty.
    full: VecDeque<Segment>,
    last: Segment,
    /// Bytes of the first segment that have been consumed.
    at: usize,
    /// Bytes that have not.
    length: usize,
    /// The memory of all of them.
    charge: Charge,
    capacity: usize,
    pool: Arc<Pool>,
    /// The pool had no memory for a segment.
    is_short: bool,
}

/// For the owner that reads.
impl Segments {
    /// Number of bytes that have not been consumed.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True when all bytes have been consumed.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The next bytes, all of one segment; empty at the end alone.
    pub fn front(&self) -> &[u8] {
        self.full.front().unwrap_or(&self.last).bytes().get(self.at..).unwrap_or_default()
    }

    /// Consumes this number of bytes, at most those of [`Segments::front`]. The memory of a consumed segment is
    /// released.
    pub fn consume(&mut self, count: usize) {
        let left = self.front().len();
        let count = count.min(left);
        self.at += count;
        self.length -= count;
        if count == left {
            self.at = 0;
            let read = self.full.pop_front().unwrap_or_else(|| std::mem::take(&mut self.last));
            self.release(read);
            self.charge.set(self.capacity);
        }
    }

    /// All bytes that have not been consumed, in one block.
    pub fn into_vec(mut self) -> Vec<u8> {
        if let (true, 0, Segment::Own(bytes)) = (self.full.is_empty(), self.at, &mut self.last) {
            return std::mem::take(bytes);
        }
        let mut all = Vec::with_capacity(self.length);
        while !self.is_empty() {
            all.extend_from_slice(self.front());
            self.consume(self.front().len());
        }
        all
    }
}

/// For the owner that receives.
impl Segments {
    /// No bytes yet.
    pub(crate) fn new(memory: &ClientMemory) -> Self {
        Self::with(Charge::new(memory.bodies.clone()), memory.pool.clone())
    }

    /// No bytes, with the same budget and pool.
    pub(crate) fn another(&self) -> Self {
        Self::with(self.charge.another(), self.pool.clone())
    }

    fn with(charge: Charge, pool: Arc<Pool>) -> Self {
        Self {
            full: VecDeque::new(),
            last: Segment::default(),
            at: 0,
            length: 0,
            charge,
            capacity: 0,
            pool,
            is_short: false,
        }
    }

    /// The memory that is charged.
    pub(crate) fn charge(&self) -> &Charge {
        &self.charge
    }

    /// Appends bytes of a body of which `arrived` bytes have been received before and `left` are still to come, these
    /// included. On failure, some of the bytes may have been appended.
    pub(crate) fn append(&mut self, mut bytes: &[u8], mut arrived: u64, mut left: u64) -> Result<(), TryReserveError> {
        loop {
            let count = self.last.append(bytes);
            self.length += count;
            bytes = &bytes[count..];
            if bytes.is_empty() {
                return Ok(());
            }
            arrived += count as u64;
            left = left.saturating_sub(count as u64);
            self.begin(bytes.len(), arrived, left)?;
        }
    }

    /// Room for bytes that are received straight into the last segment. `None`: [`Segments::append`] them, because the
    /// body is not large enough, or there is no memory. Afterwards call [`Segments::filled`].
    pub(crate) fn room(&mut self, arrived: u64, left: u64) -> Option<&mut [u8]> {
        if self.last.is_full() {
            let new = self.pooled(arrived, left)?;
            self.push(new).ok()?;
        }
        match &mut self.last {
            Segment::Own(_) => None,
            Segment::Pooled(memory, length) => memory.get_mut(*length..),
        }
    }

    /// The first `count` bytes of the room have been filled. Returns them.
    pub(crate) fn filled(&mut self, count: usize) -> &[u8] {
        match &mut self.last {
            Segment::Own(_) => &[],
            Segment::Pooled(memory, length) => {
                let start = *length;
                *length = memory.len().min(start + count);
                self.length += *length - start;
                &memory[start..*length]
            }
        }
    }

    /// Frees what the capacity exceeds the length by.
    pub(crate) fn shrink(&mut self) {
        if self.capacity == self.length {
            return;
        }
        let mut all = Vec::new();
        // It stays unchanged if there is no memory for a copy.
        if all.try_reserve_exact(self.length).is_err() {
            return;
        }
        for slice in self.slices() {
            all.extend_from_slice(slice);
        }
        self.clear();
        self.length = all.len();
        self.capacity = all.capacity();
        self.last = Segment::Own(all);
        self.charge.set(self.capacity);
    }

    /// The bytes that have not been consumed, in order.
    pub(crate) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let mut skip = self.at;
        self.full.iter().chain(std::iter::once(&self.last)).filter_map(move |segment| {
            let bytes = segment.bytes().get(std::mem::take(&mut skip)..).unwrap_or_default();
            (!bytes.is_empty()).then_some(bytes)
        })
    }

    /// True when the system had no memory for a large segment: the bytes should leave memory soon.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Begins a segment after the last one, which is full.
    fn begin(&mut self, more: usize, arrived: u64, left: u64) -> Result<(), TryReserveError> {
        let new = match self.pooled(arrived, left) {
            Some(new) => new,
            None => self.own(more, left)?,
        };
        self.push(new)
    }

    /// A segment from the pool. `None`: the body is not large enough, or the system has no memory for it.
    fn pooled(&mut self, arrived: u64, left: u64) -> Option<Segment> {
        if !is_for_pool(arrived, left) {
            return None;
        }
        let memory = self.pool.take();
        self.is_short |= memory.is_none();
        Some(Segment::Pooled(memory?, 0))
    }

    /// A segment from the allocator. The size is doubled, and not set to the length that the head states,
    /// because the client may never send that much.
    fn own(&self, more: usize, left: u64) -> Result<Segment, TryReserveError> {
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let at_least = |size: usize| more.max(size).min(left.max(more)).min(SEGMENT);
        let (doubled, fewest) = (at_least(self.length), at_least(MIN_SEGMENT));
        let mut own = Vec::new();
        if self.is_short || own.try_reserve_exact(doubled).is_err() {
            own.try_reserve_exact(fewest)?;
        }
        Ok(Segment::Own(own))
    }

    fn push(&mut self, new: Segment) -> Result<(), TryReserveError> {
        if let Err(fault) = self.full.try_reserve(1) {
            self.release_unused(new);
            return Err(fault);
        }
        self.capacity += new.capacity();
        let before = std::mem::replace(&mut self.last, new);
        if !before.bytes().is_empty() {
            self.full.push_back(before);
        }
        self.charge.set(self.capacity);
        Ok(())
    }

    fn release(&mut self, segment: Segment) {
        self.capacity -= segment.capacity();
        self.release_unused(segment);
    }

    fn release_unused(&self, segment: Segment) {
        if let Segment::Pooled(memory, _) = segment {
            self.pool.give_back(memory);
        }
    }

    fn clear(&mut self) {
        while let Some(segment) = self.full.pop_front() {
            self.release(segment);
        }
        let last = std::mem::take(&mut self.last);
        self.release(last);
        (self.at, self.length) = (0, 0);
    }
}

/// These blocks, charged to nobody.
impl FromIterator<Vec<u8>> for Segments {
    fn from_iter<T: IntoIterator<Item = Vec<u8>>>(blocks: T) -> Self {
        let mut segments = Self::with(Charge::default(), Arc::new(Pool::new(0)));
        for block in blocks.into_iter().filter(|block| !block.is_empty()) {
            segments.length += block.len();
            segments.capacity += block.capacity();
            let before = std::mem::replace(&mut segments.last, Segment::Own(block));
            if !before.bytes().is_empty() {
                segments.full.push_back(before);
            }
        }
        segments
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        self.clear();
    }
}

/// True when the next segment of a body comes from the pool.
fn is_for_pool(arrived: u64, left: u64) -> bool {
    arrived >= FROM_POOL as u64 && left >= FROM_POOL as u64
}

#[cfg(test)]
mod tests {
    use super::{FROM_POOL, Segments};
    use crate::request::memory::ClientMemory;
    use crate::request::pool::SEGMENT;

    const UNKNOWN: u64 = u64::MAX;
    /// Segments that the pool keeps.
    const KEPT: usize = 4;

    fn memory() -> ClientMemory {
        ClientMemory::new(16 * KEPT * SEGMENT, 0)
    }

    fn body(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 31 % 251) as u8).collect()
    }

    /// Receives a body of this length in blocks, straight into segments where there is room. At no time it has more
    /// than about twice the memory of what has arrived.
    fn receive(segments: &mut Segments, memory: &ClientMemory, body: &[u8], block: usize, is_known: bool) {
        let mut arrived = 0;
        while arrived < body.len() {
            let rest = &body[arrived..];
            let left = if is_known { rest.len() as u64 } else { UNKNOWN };
            let mut count = block.min(rest.len());
            if let Some(room) = segments.room(arrived as u64, left) {
                count = count.min(room.len());
                room[..count].copy_from_slice(&rest[..count]);
                assert_eq!(segments.filled(count), &rest[..count]);
            } else {
                assert!(segments.append(&rest[..count], arrived as u64, left).is_ok());
            }
            arrived += count;
            assert_eq!(segments.len(), arrived);
            let most = 2 * arrived + FROM_POOL;
            let used = memory.bodies.used();
            assert!(used >= arrived && used <= most, "{arrived}: {used}");
        }
    }

    #[test]
    fn what_was_appended_is_read_in_order_and_its_memory_is_given_back_on_the_way() {
        let body = body(5 * SEGMENT + 12_345);
        for block in [7_777, 65_536, SEGMENT, body.len()] {
            for is_known in [true, false] {
                let memory = memory();
                let mut segments = Segments::new(&memory);
                receive(&mut segments, &memory, &body, block, is_known);
                assert_eq!(segments.slices().collect::<Vec<_>>().concat(), body);
                let mut got = Vec::new();
                while !segments.is_empty() {
                    let part = segments.front();
                    let part = part[..part.len().min(50_000)].to_vec();
                    segments.consume(part.len());
                    got.extend_from_slice(&part);
                    let used = memory.bodies.used();
                    assert!(used >= segments.len() && used <= segments.len() + 2 * SEGMENT, "{used}");
                }
                assert!(got == body);
                assert_eq!((segments.front(), memory.bodies.used()), (&[][..], 0));
                drop(segments);
                assert!(memory.pool.free() <= KEPT);
            }
        }
    }

    #[test]
    fn a_small_body_is_one_block_of_its_length() {
        let memory = memory();
        let mut segments = Segments::new(&memory);
        assert!(segments.append(b"abc", 0, 6).is_ok());
        assert!(segments.room(3, 3).is_none());
        assert!(segments.append(b"def", 3, 3).is_ok());
        assert_eq!((segments.len(), memory.bodies.used()), (6, 6));
        segments.consume(1);
        assert_eq!(segments.into_vec(), b"bcdef");
        assert_eq!(memory.bodies.used(), 0);
    }

    #[test]
    fn one_byte_at_a_time_takes_no_more_than_twice_the_memory() {
        let memory = memory();
        let mut segments = Segments::new(&memory);
        for arrived in 0..10_000 {
            assert!(segments.append(b"x", arrived, UNKNOWN).is_ok());
            assert!(memory.bodies.used() <= 2 * segments.len());
        }
        segments.shrink();
        assert_eq!((segments.len(), memory.bodies.used()), (10_000, 10_000));
        assert_eq!(segments.into_vec(), [b'x'; 10_000]);
    }

    #[test]
    fn one_byte_at_a_time_takes_few_segments_also_without_memory_for_large_ones() {
        let memory = memory();
        let mut segments = Segments::new(&memory);
        segments.is_short = true;
        for arrived in 0..10_000 {
            assert!(segments.append(b"x", arrived, UNKNOWN).is_ok());
        }
        assert_eq!((segments.full.len(), memory.bodies.used()), (2, 3 * super::MIN_SEGMENT));
        let mut known = Segments::new(&memory);
        known.is_short = true;
        assert!(known.append(b"x", 0, 2).is_ok());
        assert!(known.append(b"y", 1, 1).is_ok());
        assert_eq!(known.capacity, 2);
    }

    #[test]
    fn pooled_segments_are_given_back_by_whoever_drops_the_body() {
        let memory = memory();
        let body = body(10 * SEGMENT);
        for _ in 0..3 {
            let mut segments = Segments::new(&memory);
            receive(&mut segments, &memory, &body, 65_536, true);
            drop(segments);
            assert_eq!(memory.bodies.used(), 0);
        }
        assert_eq!(memory.pool.free(), KEPT);
    }
}
