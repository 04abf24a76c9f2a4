//! For tests: a response on a real socket and one thread, and random numbers that steer a property test.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use tailrace_os::socket::Io;

use crate::request::memory::Budget;
use crate::response::outbox::{Flush, FullSocket, Outbox, Writing, WritingEnd};
use crate::response::payload::Payload;
use crate::response::send_queue::Wrote;
use crate::response::spill::Backlog;
use crate::response::spill::SpillFile;
use crate::response::write_plan::WritePlan;
use crate::transport::plain::Plain;

/// A non-blocking socket, and its client.
pub(crate) fn socket() -> (Plain, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (Plain::new(ours.into(), 0), theirs)
}

/// Bytes that are kept by reference.
pub(crate) struct Owned(pub(crate) Vec<u8>);

impl Payload for Owned {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

pub(crate) struct Queued(pub(crate) Outbox);

impl Queued {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self(Outbox::new(budget))
    }

    pub(crate) fn push_copy(&mut self, bytes: &[u8]) {
        self.0.push(|queue| queue.push_copy(bytes));
    }

    pub(crate) fn push_buffer(&mut self, bytes: Vec<u8>, at: usize) {
        let waits = !self.0.takes_writes();
        self.0.push(|queue| queue.push_buffer(bytes, at, waits));
    }

    pub(crate) fn push_kept(&mut self, bytes: Vec<u8>, at: usize) {
        let end = bytes.len();
        self.0.push(|queue| queue.push_kept(Box::new(Owned(bytes)), at, end));
    }

    pub(crate) fn backlog(&mut self) -> Option<Backlog> {
        self.0.queue.backlog()
    }

    pub(crate) fn spill(&mut self, backlog: &Backlog, file: Arc<SpillFile>, offset: u64) -> bool {
        self.0.queue.spill(backlog, file, offset)
    }

    /// Writes what the socket accepts.
    pub(crate) fn flush(&mut self, socket: &Plain) -> Flush {
        assert_eq!(self.0.socket.begin_writing(), Writing::Mine);
        let flush = loop {
            let Some(batch) = self.0.queue.take() else { break Flush::Empty };
            let moved = match batch.write(socket) {
                Wrote::Io(moved) => moved,
                Wrote::Unread(part) => break self.0.found_unread(batch, part),
            };
            if let Some(flush) = self.0.wrote(batch, moved) {
                break flush;
            }
        };
        assert_eq!(self.0.socket.end_writing(), WritingEnd::Alone);
        flush
    }

    /// As a producer does: writes a plan unless something is queued, and queues the rest. Returns the number of write
    /// calls.
    pub(crate) fn transmit(
        &mut self,
        plan: &mut WritePlan,
        socket: &Plain,
        blocks: &[&[u8]],
        most: Option<usize>,
        keep: &mut dyn FnMut(usize) -> Box<dyn Payload>,
    ) -> u32 {
        let mut writes = 0;
        if self.0.takes_writes() && self.0.socket.begin_writing() == Writing::Mine {
            let (count, last) = plan.write(socket, blocks, most, false);
            writes = count;
            if last == Some(Io::WouldBlock) {
                assert_eq!(self.0.socket.found_full(), FullSocket::Still);
            }
            self.0.socket.end_writing();
        }
        plan.queue_rest(&mut self.0, blocks, most, keep);
        writes
    }
}

/// Random numbers from proptest that steer a test. With fewer numbers the test does fewer things, so a failure can be
/// reduced.
pub(crate) struct Tape(VecDeque<u16>);

impl Tape {
    pub(crate) fn new(numbers: &[u16]) -> Self {
        Self(numbers.iter().copied().collect())
    }

    /// The next number, below `limit`; 0 when all numbers are used.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0.pop_front().map_or(0, |number| usize::from(number) % limit)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}
