//! The send queue: the part of a response that has not been sent, in order. Copies of small blocks, references to large
//! ones, parts of files.
//!
//! Plain data behind the lock of [`crate::response::delivery`]. The thread that writes takes a batch from the front,
//! writes it without the lock, and puts back the bytes that the socket did not accept.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;

use tailrace_os::file::read_at;
use tailrace_os::socket::Io;

use crate::request::memory::Budget;
use crate::response::payload::{FileSource, Payload, Readiness, Shared, UnreadPart};
use crate::response::segments;
use crate::response::spill::{Backlog, SpillFile};
use crate::transport::Transport;

/// At most this many slices are sent by one write (the kernel's limit is 1,024).
const SLICES: usize = 64;
/// Copies are appended to the last copied block up to this size in bytes; then a new one is begun.
const TAIL: usize = 64 * 1024;
/// The rest of a block is copied when it is smaller than the block's memory divided by this.
const MOSTLY_EMPTY: usize = 4;
/// At most this many bytes of a file are sent by one `sendfile`.
const FILE_STEP: u64 = 1 << 20;

enum Block {
    Copied { bytes: Vec<u8>, at: usize },
    Kept { payload: Box<dyn Payload>, at: usize, end: usize },
    File { file: Arc<dyn FileSource>, offset: u64, left: u64 },
    Spilled { file: Arc<SpillFile>, offset: u64, left: u64 },
}

impl Block {
    fn left(&self) -> u64 {
        match self {
            Self::Copied { bytes, at } => (bytes.len() - at) as u64,
            Self::Kept { at, end, .. } => (end - at) as u64,
            Self::File { left, .. } | Self::Spilled { left, .. } => *left,
        }
    }

    fn is_file(&self) -> bool {
        matches!(self, Self::File { .. } | Self::Spilled { .. })
    }

    /// Bytes that are left in memory.
    fn in_memory(&self) -> usize {
        self.bytes().map_or(0, <[u8]>::len)
    }

    /// The bytes of a block that is in memory.
    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Copied { bytes, at } => Some(&bytes[*at..]),
            Self::Kept { payload, at, end } => Some(payload.bytes().get(*at..*end).unwrap_or(&[])),
            Self::File { .. } | Self::Spilled { .. } => None,
        }
    }
}

/// The result of [`Batch::write`].
pub(crate) enum Wrote {
    /// That of the write.
    Io(Io),
    /// Nothing was written: this part of a file has to be read from the disk first.
    Unread(UnreadPart),
}

/// What one write sends: some blocks in memory, or one of a file. It owns their charge: if it is dropped
/// because its response is gone, their memory is released.
pub(crate) struct Batch {
    budget: Arc<Budget>,
    blocks: Vec<Block>,
    /// Another write follows at once, so the kernel need not send a segment that is not full.
    is_followed: bool,
}

impl Batch {
    /// Makes one write call.
    pub(crate) fn write(&self, socket: &dyn Transport) -> Wrote {
        Wrote::Io(match self.blocks.first() {
            Some(Block::File { file, offset, left }) => {
                let step = file_step(*left);
                match file.readiness(*offset, step as u64) {
                    Readiness::Ready => socket.transmit_file(file.descriptor(), *offset, step),
                    Readiness::Changed => Io::End,
                    Readiness::Unread => {
                        return Wrote::Unread(UnreadPart { file: file.clone(), offset: *offset, length: step as u64 });
                    }
                }
            }
            Some(Block::Spilled { file, offset, left }) => {
                socket.transmit_file(file.as_fd(), *offset, file_step(*left))
            }
            _ => {
                let mut slices = [IoSlice::new(&[]); SLICES];
                let mut count = 0;
                for (slice, bytes) in slices.iter_mut().zip(self.blocks.iter().filter_map(Block::bytes)) {
                    *slice = IoSlice::new(bytes);
                    count += 1;
                }
                socket.transmit(&slices[..count], self.is_followed)
            }
        })
    }

    /// Gives its first bytes to `take`, at most about `most`. Returns whether these were all. Reads from a disk.
    ///
    /// # Errors
    /// Those of `take` and of reading; the file has become shorter.
    pub(crate) fn read(&self, most: usize, take: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<bool> {
        let mut room = most;
        for block in &self.blocks {
            let left = block.left();
            let length = usize::try_from(left).map_or(room, |left| left.min(room));
            match block {
                Block::File { file, offset, .. } => {
                    let mut buffer = segments::with_capacity(length).ok_or(io::ErrorKind::OutOfMemory)?;
                    buffer.resize(length, 0);
                    let count = read_at(file.descriptor(), &mut buffer, *offset)?;
                    if count == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    take(&buffer[..count])?;
                    return Ok(count as u64 == left);
                }
                Block::Spilled { .. } => return Err(io::ErrorKind::Unsupported.into()),
                Block::Copied { .. } | Block::Kept { .. } => take(&block.bytes().unwrap_or_default()[..length])?,
            }
            room -= length;
            if (length as u64) < left {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Bytes of the file that are not sent; 0 for blocks in memory.
    pub(crate) fn left_of_file(&self) -> u64 {
        self.blocks.first().filter(|block| block.is_file()).map_or(0, Block::left)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        for block in self.blocks.drain(..) {
            release(&self.budget, block);
        }
    }
}

/// There is no memory to queue a block: the response cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoMemory;

/// See the module.
pub(crate) struct SendQueue {
    budget: Arc<Budget>,
    blocks: VecDeque<Block>,
    /// The number of the first block, counted from the beginning of the connection.
    front: u64,
    /// A backlog is being written to a file.
    is_spilling: bool,
    /// The spill file from which the current batch is sent.
    sends_from: Option<Arc<SpillFile>>,
    /// Bytes in memory that are queued or being written; files are not counted.
    bytes: usize,
    /// Number of writes since the last [`SendQueue::take_writes`].
    writes: u32,
}

impl SendQueue {
    /// An empty queue, which charges what it holds to `budget`.
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self { budget, blocks: VecDeque::new(), front: 0, is_spilling: false, sends_from: None, bytes: 0, writes: 0 }
    }

    /// True when nothing is queued. A batch that was taken may still be in a write.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Bytes in memory that are queued or being written.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory that would be free if all blocks were in a file, in bytes. A block kept by reference
    /// counts whole, whatever part of it is left, and in equal parts for all responses that hold it.
    pub(crate) fn held(&self) -> usize {
        let held = |block: &Block| match block {
            Block::Kept { payload, .. } => self.budget.share_of(payload.bytes()),
            other => other.in_memory(),
        };
        self.blocks.iter().map(held).sum()
    }

    /// Copies the rest of blocks kept by reference, if it is small and much smaller than the memory that it pins. True:
    /// memory has been freed.
    pub(crate) fn copy_tails(&mut self) -> bool {
        let mut is_any = false;
        // While a backlog is being written, it refers to the blocks.
        for block in self.blocks.iter_mut().filter(|_| !self.is_spilling) {
            let Block::Kept { payload, at, end } = block else { continue };
            let tail = payload.bytes().get(*at..*end).unwrap_or(&[]);
            if tail.len() > TAIL || tail.len() >= self.budget.share_of(payload.bytes()) / MOSTLY_EMPTY {
                continue;
            }
            let Some(mut bytes) = segments::with_capacity(tail.len()) else { break };
            bytes.extend_from_slice(tail);
            self.budget.charge(bytes.len());
            self.budget.give_back_shared(payload.bytes());
            *block = Block::Copied { bytes, at: 0 };
            is_any = true;
        }
        is_any
    }

    /// True when a part of a file is queued.
    pub(crate) fn has_file(&self) -> bool {
        self.blocks.iter().any(Block::is_file)
    }

    /// True while bytes that were written to a file have not been sent.
    pub(crate) fn is_behind(&self) -> bool {
        self.sends_from.is_some() || self.blocks.iter().any(|block| matches!(block, Block::Spilled { .. }))
    }

    /// The last blocks in memory that follow each other, for the caller to write to a file; it then calls
    /// [`SendQueue::spill`] or [`SendQueue::keep`]. A batch that was put back may leave blocks in memory before a part of
    /// a file: these are a backlog of their own. `None`: there are none, a backlog is being written already, or the
    /// system has no memory.
    pub(crate) fn backlog(&mut self) -> Option<Backlog> {
        if self.is_spilling {
            return None;
        }
        let to = self.blocks.iter().rposition(|block| !block.is_file())? + 1;
        let from = self.blocks.range(..to).rposition(Block::is_file).map_or(0, |last| last + 1);
        let spilled = |place: usize| match self.blocks.get(place) {
            Some(Block::Spilled { file, .. }) => Some(file.clone()),
            _ => None,
        };
        let before = from.checked_sub(1).map_or_else(|| self.sends_from.clone(), spilled);
        let file = before.or_else(|| spilled(to));
        let mut parts = Vec::new();
        parts.try_reserve_exact(to - from).ok()?;
        for block in self.blocks.range_mut(from..to) {
            let (shared, at, end): (Arc<dyn Payload>, usize, usize) = match block {
                Block::Copied { bytes, at } => {
                    if !self.budget.charge_shared(bytes) {
                        return None;
                    }
                    self.budget.give_back(bytes.len() - *at);
                    let shared = Arc::new(Shared::new(std::mem::take(bytes)));
                    let end = shared.bytes().len();
                    (shared, *at, end)
                }
                Block::Kept { payload, at, end } => (Arc::from(std::mem::replace(payload, Box::new(()))), *at, *end),
                Block::File { .. } | Block::Spilled { .. } => continue,
            };
            *block = Block::Kept { payload: Box::new(shared.clone()), at, end };
            parts.push((shared, at, end));
        }
        self.is_spilling = true;
        Some(Backlog { parts, first: self.front + from as u64, file })
    }

    /// Notes that the backlog stays in memory.
    pub(crate) fn keep(&mut self) {
        self.is_spilling = false;
    }

    /// The backlog has been written to this file, from `offset` on: its blocks that are still queued are replaced by a
    /// part of the file. Its first blocks may have been sent, or be in the batch that is being written; these are not
    /// replaced. True: at least one block was replaced.
    pub(crate) fn spill(&mut self, backlog: &Backlog, file: Arc<SpillFile>, offset: u64) -> bool {
        self.is_spilling = false;
        let place = |number: u64| {
            let place = usize::try_from(number.saturating_sub(self.front)).unwrap_or(usize::MAX);
            place.min(self.blocks.len())
        };
        let from = place(backlog.first);
        let to = place(backlog.first + backlog.parts.len() as u64);
        let left: u64 = self.blocks.range(from..to).map(Block::left).sum();
        if left == 0 {
            return false;
        }
        let offset = offset + backlog.len() - left;
        // In place: there may be no memory for another queue.
        for block in self.blocks.drain(from..to) {
            self.bytes -= block.in_memory();
            release(&self.budget, block);
        }
        match from.checked_sub(1).and_then(|last| self.blocks.get_mut(last)) {
            Some(Block::Spilled { file: last, offset: begin, left: more })
                if Arc::ptr_eq(last, &file) && *begin + *more == offset =>
            {
                *more += left;
            }
            _ => self.blocks.insert(from, Block::Spilled { file, offset, left }),
        }
        true
    }

    /// Drops what is queued.
    pub(crate) fn clear(&mut self) {
        for block in std::mem::take(&mut self.blocks) {
            self.bytes -= block.in_memory();
            release(&self.budget, block);
        }
    }

    /// Appends a copy.
    pub(crate) fn push_copy(&mut self, more: &[u8]) -> Result<(), NoMemory> {
        if more.is_empty() {
            return Ok(());
        }
        if let Some(Block::Copied { bytes, .. }) = self.blocks.back_mut()
            && bytes.len() + more.len() <= TAIL.max(bytes.capacity())
            && bytes.try_reserve(more.len()).is_ok()
        {
            bytes.extend_from_slice(more);
        } else {
            let mut bytes = segments::with_capacity(more.len()).ok_or(NoMemory)?;
            self.blocks.try_reserve(1).map_err(|_| NoMemory)?;
            bytes.extend_from_slice(more);
            self.blocks.push_back(Block::Copied { bytes, at: 0 });
        }
        self.bytes += more.len();
        self.budget.charge(more.len());
        Ok(())
    }

    /// Appends the bytes of a buffer from `at` on. Without a copy, unless they cannot be written at once (`waits`) and
    /// most of the buffer is unused.
    pub(crate) fn push_buffer(&mut self, bytes: Vec<u8>, at: usize, waits: bool) -> Result<(), NoMemory> {
        if at >= bytes.len() {
            return Ok(());
        }
        if waits && is_mostly_empty(&bytes, at) {
            let pushed = self.push_copy(&bytes[at..]);
            segments::give(bytes);
            return pushed;
        }
        self.blocks.try_reserve(1).map_err(|_| NoMemory)?;
        self.bytes += bytes.len() - at;
        self.budget.charge(bytes.len() - at);
        self.blocks.push_back(Block::Copied { bytes, at });
        Ok(())
    }

    /// Appends `payload.bytes()[at..end]` by reference.
    pub(crate) fn push_kept(&mut self, payload: Box<dyn Payload>, at: usize, end: usize) -> Result<(), NoMemory> {
        if at >= end {
            return Ok(());
        }
        self.blocks.try_reserve(1).map_err(|_| NoMemory)?;
        if !self.budget.charge_shared(payload.bytes()) {
            return Err(NoMemory);
        }
        self.bytes += end - at;
        self.blocks.push_back(Block::Kept { payload, at, end });
        Ok(())
    }

    /// Appends `left` bytes of a file from `offset`.
    pub(crate) fn push_file(&mut self, file: Arc<dyn FileSource>, offset: u64, left: u64) {
        if left > 0 {
            self.blocks.push_back(Block::File { file, offset, left });
        }
    }

    /// Takes a batch for one write from the front. `None`: nothing is queued.
    pub(crate) fn take(&mut self) -> Option<Batch> {
        let count = match self.blocks.front()? {
            block if block.is_file() => 1,
            _ => self.blocks.iter().take(SLICES).take_while(|block| !block.is_file()).count(),
        };
        // So that the head and the first bytes of a file share a TCP segment.
        let is_followed = self.blocks.get(count).is_some_and(Block::is_file);
        self.front += count as u64;
        self.writes += 1;
        if let Some(Block::Spilled { file, .. }) = self.blocks.front() {
            self.sends_from = Some(file.clone());
        }
        Some(Batch { budget: self.budget.clone(), blocks: self.blocks.drain(..count).collect(), is_followed })
    }

    /// Number of batches taken since the last call of this method.
    pub(crate) fn take_writes(&mut self) -> u32 {
        std::mem::take(&mut self.writes)
    }

    /// The socket has accepted `count` bytes of the batch: puts the rest back to the front of the queue.
    pub(crate) fn put_back(&mut self, mut batch: Batch, mut count: usize) {
        self.sends_from = None;
        let mut blocks = std::mem::take(&mut batch.blocks).into_iter();
        for mut block in blocks.by_ref() {
            let left = match &mut block {
                Block::Copied { bytes, at } => {
                    let step = count.min(bytes.len() - *at);
                    *at += step;
                    self.bytes -= step;
                    self.budget.give_back(step);
                    count -= step;
                    bytes.len() - *at
                }
                Block::Kept { at, end, .. } => {
                    let step = count.min(*end - *at);
                    *at += step;
                    self.bytes -= step;
                    count -= step;
                    *end - *at
                }
                Block::File { offset, left, .. } | Block::Spilled { offset, left, .. } => {
                    let step = (count as u64).min(*left);
                    *offset += step;
                    *left -= step;
                    count = 0;
                    usize::try_from(*left).unwrap_or(usize::MAX)
                }
            };
            if left > 0 {
                self.put_front(block, blocks);
                return;
            }
            release(&self.budget, block);
        }
        if self.blocks.is_empty() {
            self.blocks = VecDeque::new();
        }
    }

    fn put_front(&mut self, block: Block, rest: impl DoubleEndedIterator<Item = Block>) {
        for block in rest.rev() {
            self.front -= 1;
            self.blocks.push_front(block);
        }
        self.front -= 1;
        self.blocks.push_front(block);
    }

    /// Drops a batch: the rest of it will not be sent.
    pub(crate) fn drop_batch(&mut self, batch: Batch) {
        self.sends_from = None;
        self.bytes -= batch.blocks.iter().map(Block::in_memory).sum::<usize>();
    }

    /// Copies the rest of the first block to a buffer of its size, if most of its buffer is unused, because it now
    /// waits for the client.
    pub(crate) fn shrink_front(&mut self) {
        if let Some(Block::Copied { bytes, at }) = self.blocks.front_mut()
            && is_mostly_empty(bytes, *at)
        {
            let mut rest = Vec::new();
            if rest.try_reserve_exact(bytes.len() - *at).is_ok() {
                rest.extend_from_slice(&bytes[*at..]);
                segments::give(std::mem::replace(bytes, rest));
                *at = 0;
            }
        }
    }
}

/// True when `bytes[at..]` is much less than the buffer's capacity.
fn is_mostly_empty(bytes: &Vec<u8>, at: usize) -> bool {
    bytes.len() - at < bytes.capacity() / MOSTLY_EMPTY
}

fn release(budget: &Budget, block: Block) {
    match block {
        Block::Copied { bytes, at } => {
            budget.give_back(bytes.len() - at);
            segments::give(bytes);
        }
        Block::Kept { payload, .. } => budget.give_back_shared(payload.bytes()),
        Block::File { .. } | Block::Spilled { .. } => {}
    }
}

fn file_step(left: u64) -> usize {
    usize::try_from(left.min(FILE_STEP)).unwrap_or(usize::MAX)
}

impl Drop for SendQueue {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read;
    use std::sync::Arc;

    use tailrace_http::body_encoder::BodyEncoder;

    use super::{Block, FILE_STEP, SendQueue, TAIL, file_step, is_mostly_empty};
    use crate::request::memory::Budget;
    use crate::response::outbox::tests::limits;
    use crate::response::outbox::{CoalesceResult, Flush};
    use crate::response::payload::Payload;
    use crate::response::segments::{self, SEGMENT};
    use crate::response::testing::{Queued, socket};

    struct Static(&'static [u8]);

    impl Payload for Static {
        fn bytes(&self) -> &[u8] {
            self.0
        }
    }

    impl SendQueue {
        /// The addresses of the spill files that are queued or being sent from.
        pub(crate) fn spill_files(&self) -> Vec<usize> {
            let waiting = self.blocks.iter().filter_map(|block| match block {
                Block::Spilled { file, .. } => Some(file),
                _ => None,
            });
            self.sends_from.iter().chain(waiting).map(|file| Arc::as_ptr(file) as usize).collect()
        }
    }

    /// The capacity of all copied blocks, in bytes.
    fn room(out: &Queued) -> usize {
        let room = |block: &Block| match block {
            Block::Copied { bytes, .. } => bytes.capacity(),
            _ => 0,
        };
        out.0.queue.blocks.iter().map(room).sum()
    }

    fn segment(bytes: &[u8]) -> Vec<u8> {
        let mut segment = segments::take().unwrap();
        segment.extend_from_slice(bytes);
        segment
    }

    #[test]
    fn a_small_tail_of_a_block_that_only_one_response_holds_is_copied() {
        const SIZE: usize = 1 << 20;
        let budget = Arc::new(Budget::default());
        let block: &'static [u8] = Vec::leak((0..SIZE).map(|at| (at % 251) as u8).collect());
        let queued = |left: usize| {
            let mut out = Queued::new(budget.clone());
            out.0.push(|queue| queue.push_kept(Box::new(Static(block)), SIZE - left, SIZE));
            out
        };
        let (socket, mut client) = socket();
        let mut small = queued(50_000);
        assert_eq!((small.0.queue.held(), budget.used()), (SIZE, SIZE));
        // Too much of this one is left to be copied. A block that many responses hold costs each of them little.
        assert!(!queued(70_000).0.queue.copy_tails());
        assert!(queued(TAIL).0.queue.copy_tails() && !queued(TAIL + 1).0.queue.copy_tails());
        let others: Vec<_> = (0..9).map(|_| queued(50_000)).collect();
        assert_eq!(small.0.queue.held(), SIZE / 10);
        assert!(!small.0.queue.copy_tails());
        drop(others);
        assert!(small.0.queue.copy_tails());
        assert_eq!((small.0.queue.held(), small.0.queue.bytes(), budget.used()), (50_000, 50_000, 50_000));
        assert!(!small.0.queue.copy_tails(), "it is no longer kept by reference");
        assert_eq!(small.flush(&socket), Flush::Empty);
        let mut got = vec![0; 50_000];
        client.read_exact(&mut got).unwrap();
        assert!(got == block[SIZE - 50_000..] && budget.used() == 0);
    }

    #[test]
    fn a_tail_that_is_being_written_to_a_file_is_not_copied() {
        let mut out = Queued::new(Arc::default());
        out.push_kept(vec![1; 1 << 20], (1 << 20) - 1_000);
        let backlog = out.backlog().unwrap();
        assert!(!out.0.queue.copy_tails());
        drop(backlog);
        out.0.queue.keep();
        assert!(out.0.queue.copy_tails());
    }

    #[test]
    fn a_small_rest_of_a_large_buffer_does_not_keep_the_buffer() {
        let (socket, mut client) = socket();
        let budget = Arc::new(Budget::default());
        let mut out = Queued::new(budget.clone());
        let mut all = Vec::new();
        let mut push = |out: &mut Queued, bytes: &[u8]| {
            all.extend_from_slice(bytes);
            out.push_buffer(segment(bytes), 0);
        };
        // Until the socket is full. The rest of the last segment may be small.
        while out.flush(&socket) == Flush::Empty {
            push(&mut out, &[b'x'; 1_000]);
        }
        assert!(room(&out) <= 4 * out.0.queue.bytes(), "{} bytes in {}", out.0.queue.bytes(), room(&out));
        for number in 0..10_000_u32 {
            push(&mut out, &number.to_be_bytes());
        }
        assert!(room(&out) <= 4 * out.0.queue.bytes() + SEGMENT, "{} bytes in {}", out.0.queue.bytes(), room(&out));
        assert_eq!(budget.used(), out.0.queue.bytes());
        let mut got = Vec::new();
        let mut buffer = vec![0; 100_000];
        while got.len() < all.len() {
            assert!(matches!(out.flush(&socket), Flush::Empty | Flush::Blocked));
            let count = client.read(&mut buffer).unwrap();
            got.extend_from_slice(&buffer[..count]);
        }
        assert!(got == all);
        assert_eq!((out.0.queue.bytes(), budget.used()), (0, 0));
    }

    #[test]
    fn a_buffer_is_kept_whole_if_it_can_be_written_at_once_or_is_well_used() {
        let mut out = Queued::new(Arc::default());
        out.push_buffer(segment(b"begin"), 2);
        assert_eq!((room(&out), out.0.queue.bytes(), out.0.queue.held()), (SEGMENT, 3, 3), "it can be written at once");
        out.push_buffer(segment(&[b'x'; SEGMENT]), 1);
        assert_eq!(room(&out), 2 * SEGMENT, "it is well used");
        out.push_buffer(segment(&[b'x'; SEGMENT]), SEGMENT - 5);
        assert!(room(&out) < 2 * SEGMENT + 100, "it has to wait, and little of it is left");
        let bytes = 3 + SEGMENT - 1 + 5;
        assert_eq!((out.0.queue.bytes(), out.0.queue.held()), (bytes, bytes));
        assert_eq!(out.0.queue.take_writes(), 0);
        out.0.queue.clear();
        assert_eq!((out.0.queue.bytes(), out.0.queue.held()), (0, 0));
    }

    #[test]
    fn little_that_was_coalesced_does_not_keep_its_buffer_while_it_waits() {
        for (before, waits) in [(&b""[..], false), (b"before", true)] {
            let mut out = Queued::new(Arc::default());
            out.push_copy(before);
            let kept = room(&out);
            out.0.coalescing.list(BodyEncoder::default());
            assert_eq!(out.0.coalesce(b"little", &limits()), CoalesceResult::Coalesced);
            out.0.flush_coalesced();
            assert_eq!(out.0.queue.bytes(), before.len() + 6);
            assert_eq!(room(&out) - kept < 100, waits, "{}", room(&out) - kept);
        }
    }

    #[test]
    fn a_buffer_is_mostly_empty_below_a_quarter() {
        let buffer = segment(&[b'x'; SEGMENT]);
        assert!(!is_mostly_empty(&buffer, 0) && !is_mostly_empty(&buffer, SEGMENT * 3 / 4));
        assert!(is_mostly_empty(&buffer, SEGMENT * 3 / 4 + 1));
    }

    #[test]
    fn nothing_is_queued_once_the_queue_is_cleared() {
        let mut out = Queued::new(Arc::default());
        out.push_copy(b"a");
        out.push_copy(b"b");
        assert_eq!(out.0.queue.bytes(), 2);
        out.0.queue.clear();
        assert_eq!(out.0.queue.bytes(), 0);
    }

    #[test]
    fn a_file_is_sent_in_steps() {
        assert_eq!([file_step(3), file_step(FILE_STEP), file_step(u64::MAX)], [3, 1 << 20, 1 << 20]);
    }
}
