//! The queued part of a response: what the socket has not taken yet.
//!
//! Lives behind the connection's lock: the application's thread appends, and that thread or an I/O thread flushes.
//! Small bytes are copied into the tail, large blocks and files are held by reference.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::budget::Budget;
use crate::segments;
use crate::sys::Io;
use crate::timers::Millis;
use crate::wire::Wire;

/// Slices a write gathers at most (the kernel's limit is 1,024).
const SLICES: usize = 64;
/// A copied block grows up to this size before the next one is begun.
const TAIL: usize = 64 * 1024;
/// Bytes of a file a single `sendfile` is asked for.
const FILE_STEP: u64 = 1 << 20;

/// Bytes that the application owns and that must outlive the call that sent them.
pub trait Payload: Send {
    /// The bytes; the same at each call.
    fn bytes(&self) -> &[u8];
}

/// No bytes at all.
impl Payload for () {
    fn bytes(&self) -> &[u8] {
        &[]
    }
}

/// Bytes a flush writes before it is the other connections' turn.
const TURN: u64 = 4 << 20;

enum Block {
    Copied { bytes: Vec<u8>, at: usize },
    Kept { payload: Box<dyn Payload>, at: usize, end: usize },
    File { file: OwnedFd, offset: u64, left: u64 },
}

/// What a flush came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flush {
    /// Nothing is left.
    Empty,
    /// The socket takes no more for now.
    Blocked,
    /// The socket would take more, but it is the others' turn.
    More,
    /// The connection is broken.
    Broken,
    /// A file ended so many bytes before its promised length: the body cannot be completed.
    Short(u64),
}

/// Bytes and files that wait for the socket, in order.
pub(crate) struct Outbox {
    budget: Arc<Budget>,
    blocks: VecDeque<Block>,
    /// Bytes of memory that wait (files do not count).
    bytes: usize,
    /// Nothing will be sent any more.
    broken: bool,
    /// Something of the response of now has been sent or queued.
    begun: bool,
    /// All of the response of now has been sent or queued.
    complete: bool,
    /// The response of now was answered or broken off in the application's place: nothing more of it is taken.
    sealed: bool,
    /// The socket was full at the last write: it will tell when it takes more.
    blocked: bool,
    /// The I/O side was asked to send what waits, though the socket is not known to be full.
    pushed: bool,
    /// Since when the client has been waited for without a pause, and what had been sent then.
    waiting: Option<(Millis, u64)>,
    /// Write calls made here.
    writes: u32,
    /// Bytes taken by the kernel here.
    sent: u64,
}

impl Outbox {
    /// An empty outbox, which charges what it holds to `budget`.
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self {
            budget,
            blocks: VecDeque::new(),
            bytes: 0,
            broken: false,
            begun: false,
            complete: false,
            sealed: false,
            blocked: false,
            pushed: false,
            waiting: None,
            writes: 0,
            sent: 0,
        }
    }

    /// True when nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Bytes of memory that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// True when nothing waits and the socket may take something: a write may go past the outbox.
    pub(crate) fn takes_writes(&self) -> bool {
        self.blocks.is_empty() && !self.is_broken() && !self.blocked
    }

    /// True when a file waits.
    pub(crate) fn has_file(&self) -> bool {
        self.blocks.iter().any(|block| matches!(block, Block::File { .. }))
    }

    /// True when the connection is broken, or the response sealed: what is appended goes nowhere.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken || self.sealed
    }

    /// The application's response is about to be written.
    pub(crate) fn begin(&mut self) {
        self.begun |= !self.sealed;
    }

    /// True when some of the response may have left.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun
    }

    /// All of the response is here or has left.
    pub(crate) fn complete(&mut self) {
        self.complete = true;
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Takes nothing more of this response; what waits is still sent.
    pub(crate) fn seal(&mut self) {
        self.sealed = true;
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// The response is over: what follows belongs to the next one.
    pub(crate) fn end_response(&mut self) {
        self.begun = false;
        self.complete = false;
        self.sealed = false;
    }

    /// Gives up: forgets what waits and takes nothing more.
    pub(crate) fn break_off(&mut self) {
        self.broken = true;
        self.bytes = 0;
        for block in std::mem::take(&mut self.blocks) {
            self.let_go(block);
        }
    }

    /// A block that is not sent any further, or is sent.
    fn let_go(&self, block: Block) {
        match block {
            Block::Copied { bytes, at } => {
                self.budget.give_back(bytes.len() - at);
                segments::give(bytes);
            }
            Block::Kept { payload, .. } => self.budget.give_back_shared(payload.bytes()),
            Block::File { .. } => {}
        }
    }

    /// Bytes the kernel has taken from here.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Write calls since the last call.
    pub(crate) fn take_writes(&mut self) -> u32 {
        std::mem::take(&mut self.writes)
    }

    /// Appends a copy.
    pub(crate) fn push_copy(&mut self, more: &[u8]) {
        if self.is_broken() || more.is_empty() {
            return;
        }
        self.bytes += more.len();
        self.budget.charge(more.len());
        if let Some(Block::Copied { bytes, .. }) = self.blocks.back_mut()
            && bytes.len() + more.len() <= TAIL.max(bytes.capacity())
        {
            bytes.extend_from_slice(more);
            return;
        }
        self.blocks.push_back(Block::Copied { bytes: more.to_vec(), at: 0 });
    }

    /// Appends a buffer from `at` on, without a copy.
    pub(crate) fn push_buffer(&mut self, bytes: Vec<u8>, at: usize) {
        if self.is_broken() || at >= bytes.len() {
            return;
        }
        self.bytes += bytes.len() - at;
        self.budget.charge(bytes.len() - at);
        self.blocks.push_back(Block::Copied { bytes, at });
    }

    /// True when the last write found the socket full and no event has come since.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// The socket was found full, or has told that it takes more.
    pub(crate) fn set_blocked(&mut self, blocked: bool) {
        self.blocked = blocked;
    }

    /// The I/O side is asked to send what waits, or (`false`) does it. True when that changes something.
    pub(crate) fn set_pushed(&mut self, pushed: bool) -> bool {
        std::mem::replace(&mut self.pushed, pushed) != pushed
    }

    /// The client has to take something before more can be sent. Since when it has been waited for, and the bytes it has
    /// taken since; `true`: the wait begins now.
    pub(crate) fn wait_since(&mut self, now: Millis) -> (Millis, u64, bool) {
        let begins = self.waiting.is_none();
        let (since, sent) = *self.waiting.get_or_insert((now, self.sent));
        (since, self.sent - sent, begins)
    }

    /// The client has taken everything. True when it was waited for.
    pub(crate) fn end_wait(&mut self) -> bool {
        self.waiting.take().is_some()
    }

    /// Appends `payload.bytes()[at..end]` by reference.
    pub(crate) fn push_kept(&mut self, payload: Box<dyn Payload>, at: usize, end: usize) {
        if self.is_broken() || at >= end {
            return;
        }
        self.bytes += end - at;
        self.budget.charge_shared(payload.bytes());
        self.blocks.push_back(Block::Kept { payload, at, end });
    }

    /// Appends `left` bytes of a file from `offset`.
    pub(crate) fn push_file(&mut self, file: OwnedFd, offset: u64, left: u64) {
        if self.is_broken() || left == 0 {
            return;
        }
        self.blocks.push_back(Block::File { file, offset, left });
    }

    /// Writes as much as the socket takes, but no more than a turn's worth: one fast client must not keep the others
    /// waiting.
    pub(crate) fn flush(&mut self, wire: &Wire) -> Flush {
        self.flush_most(wire, TURN)
    }

    /// Writes as much as the socket takes, but little more than `most` bytes.
    pub(crate) fn flush_most(&mut self, wire: &Wire, most: u64) -> Flush {
        let until = self.sent + most;
        loop {
            if self.sent >= until && !self.blocks.is_empty() {
                return Flush::More;
            }
            if self.broken {
                return Flush::Broken;
            }
            let moved = match self.blocks.front() {
                None => return Flush::Empty,
                Some(Block::File { file, offset, left }) => {
                    let step = usize::try_from((*left).min(FILE_STEP)).unwrap_or(usize::MAX);
                    self.writes += 1;
                    wire.transmit_file(file.as_fd(), *offset, step)
                }
                Some(_) => {
                    self.writes += 1;
                    self.transmit_memory(wire)
                }
            };
            match moved {
                Io::Moved(count) => {
                    self.blocked = false;
                    self.advance(count);
                }
                Io::WouldBlock => {
                    self.blocked = true;
                    return Flush::Blocked;
                }
                Io::End => {
                    let left = match self.blocks.front() {
                        Some(Block::File { left, .. }) => *left,
                        _ => 0,
                    };
                    self.break_off();
                    return Flush::Short(left);
                }
                Io::Broken => {
                    self.break_off();
                    return Flush::Broken;
                }
            }
        }
    }

    /// Writes as much as the socket takes. For an outbox whose producer is still at it, which limits what it holds.
    pub(crate) fn flush_all(&mut self, wire: &Wire) {
        while self.flush(wire) == Flush::More {}
    }

    fn transmit_memory(&self, wire: &Wire) -> Io {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let mut count = 0;
        let mut more = false;
        for block in &self.blocks {
            let bytes = match block {
                Block::Copied { bytes, at } => &bytes[*at..],
                Block::Kept { payload, at, end } => payload.bytes().get(*at..*end).unwrap_or(&[]),
                // The head and the first bytes of a file share a segment.
                Block::File { .. } => {
                    more = true;
                    break;
                }
            };
            if count == SLICES {
                break;
            }
            slices[count] = IoSlice::new(bytes);
            count += 1;
        }
        wire.transmit(&slices[..count], more)
    }

    fn advance(&mut self, mut count: usize) {
        self.sent += count as u64;
        while count > 0 {
            let Some(front) = self.blocks.front_mut() else { return };
            let left = match front {
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
                Block::File { offset, left, .. } => {
                    let step = (count as u64).min(*left);
                    *offset += step;
                    *left -= step;
                    count = 0;
                    usize::try_from(*left).unwrap_or(usize::MAX)
                }
            };
            if left > 0 {
                return;
            }
            if let Some(block) = self.blocks.pop_front() {
                self.let_go(block);
            }
        }
        if self.blocks.is_empty() {
            self.blocks = VecDeque::new();
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.break_off();
    }
}
