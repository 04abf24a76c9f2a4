//! The unread rest of a request body: in memory, in a file, or not yet sent by the client.
//!
//! The holder of the lock in `shared_body.rs` reads: either at once, with the interpreter released, so that the read
//! may block on a file or a client; or in steps that do not block, with pauses between them.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use memchr::memchr;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use tailrace_os::clock;
use tailrace_os::file::read_exact_at;
use tailrace_server::{BodyFault, BodyStream, RequestBody, Segments, TemporaryFile};

use crate::ffi::bytes::Unfilled;
use crate::python::exceptions::{RequestBodyError, client_disconnected};
use crate::python::memory;
use crate::python::ticket::ticket;

/// Number of bytes that are read from a file at once.
const FILE_BLOCK: usize = 256 * 1024;
/// A read of at least this size goes from the file straight to its target, not through the buffer.
const DIRECT: usize = 32 * 1024;
/// Number of bytes that are read from a client at once if fewer are requested.
const STREAM_BLOCK: usize = 64 * 1024;
/// Maximum number of blocks in one step of a read.
const BLOCKS: usize = 16;

/// The part of a body that is not in the buffer.
enum Unbuffered {
    Nothing,
    /// It has arrived completely and is in memory. Never empty.
    Memory(Segments),
    /// As `Memory`, from the first `tell` or `seek` on: the bytes that were unread then, and how many of them have been
    /// read since.
    Kept(Vec<u8>, usize),
    /// A range of a file. It is read by offset, because children that the application forks share the file's position.
    File(TemporaryFile, Range<u64>),
    /// Data that the client has yet to send.
    Stream(BodyStream),
}

/// Why a body cannot be read.
#[derive(Debug)]
pub(crate) enum ReadFault {
    File(io::Error),
    Body(BodyFault),
    /// There is no memory for it.
    Memory,
}

impl From<io::Error> for ReadFault {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

impl From<ReadFault> for PyErr {
    fn from(fault: ReadFault) -> Self {
        match fault {
            ReadFault::File(error) => error.into(),
            ReadFault::Memory => PyMemoryError::new_err("not enough memory for the data read from wsgi.input"),
            ReadFault::Body(BodyFault::Gone) => {
                Python::attach(|py| client_disconnected(py, "the client disconnected before its request was complete"))
            }
            ReadFault::Body(BodyFault::Refused(refusal)) => Python::attach(|py| {
                let error = RequestBodyError::new_err(refusal.reason);
                match error.value(py).setattr("status", refusal.status) {
                    Ok(()) => error,
                    Err(fault) => fault,
                }
            }),
            ReadFault::Body(BodyFault::Over) => {
                PyValueError::new_err("wsgi.input was read after the response to its request had ended")
            }
        }
    }
}

/// When a read is complete.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// When it has the maximum number of bytes.
    Limit,
    /// When it has any bytes: those available, or else the next ones to arrive.
    Some,
    /// At the end of a line.
    Line,
}

/// What a read does if the client has not sent enough.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// It waits.
    Wait,
    /// It returns, and the caller continues later.
    Return,
}

/// How a step of gathering ended.
#[derive(Debug, PartialEq, Eq)]
enum Gathered {
    /// There is enough, including this number of buffered bytes.
    Enough(usize),
    /// The step has read as much as a step may; there may be more.
    MayBeMore,
    /// The client has sent no more so far.
    Nothing,
}

/// What a reader does after a step.
pub(crate) enum ReadStep {
    /// It has enough, including this number of buffered bytes.
    Ready(usize),
    /// It continues after a pause, during which it must not hold the lock.
    Pause(Pause),
    /// It has to block: no pause would end.
    Block,
}

/// What a reader waits for between two steps: the return of its ticket.
#[derive(Clone, Copy)]
pub(crate) struct Pause {
    pub(crate) ticket: u64,
    /// How long to wait for the client at most; `None`: the pause is a fair yield.
    pub(crate) limit: Option<Duration>,
}

/// How refilling the empty buffer ended.
enum Refill {
    Bytes,
    End,
    Nothing,
}

/// The unread rest of a body.
pub(crate) struct UnreadBody {
    /// `buffer[at..end]` has been read from the rest and not by the application.
    buffer: Vec<u8>,
    at: usize,
    end: usize,
    rest: Unbuffered,
    /// The length of the whole body; `None`: only the client knows.
    total: Option<usize>,
    /// A reader pauses between two steps.
    pub(crate) is_marked: bool,
    /// Since when steps were made without a pause.
    reads_since: Option<Instant>,
    /// There was no memory for bytes that had been read: the bytes after them must not be mistaken for them.
    is_lost: bool,
}

/// Extends `bytes` by this length.
fn extend(bytes: &mut Vec<u8>, more: &[u8]) -> Result<(), ReadFault> {
    bytes.try_reserve(more.len()).map_err(|_| ReadFault::Memory)?;
    bytes.extend_from_slice(more);
    Ok(())
}

/// A buffer of this size.
fn buffer_of(size: usize) -> Result<Vec<u8>, ReadFault> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(size).map_err(|_| ReadFault::Memory)?;
    buffer.resize(size, 0);
    Ok(buffer)
}

impl UnreadBody {
    pub(crate) fn new(body: RequestBody) -> Self {
        let rest = match body {
            RequestBody::Empty => Unbuffered::Nothing,
            RequestBody::Memory(bytes) if bytes.is_empty() => Unbuffered::Nothing,
            RequestBody::Memory(bytes) => Unbuffered::Memory(bytes),
            RequestBody::File { file, length } => Unbuffered::File(file, 0..length),
            RequestBody::Stream(stream) => Unbuffered::Stream(stream),
        };
        let mut source = Self {
            buffer: Vec::new(),
            at: 0,
            end: 0,
            rest,
            total: None,
            is_marked: false,
            reads_since: None,
            is_lost: false,
        };
        source.total = source.remaining();
        source
    }

    /// How many bytes the application has read; `None`: the client has yet to send some.
    pub(crate) fn position(&self) -> Option<usize> {
        Some(self.total?.saturating_sub(self.remaining()?))
    }

    /// The length of the whole body; `None`: only the client knows.
    pub(crate) fn total(&self) -> Option<usize> {
        self.total
    }

    /// From now on, what is read of a body in memory is not freed: the application may come back to it.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn keep(&mut self) -> Result<(), ReadFault> {
        let Unbuffered::Memory(segments) = &mut self.rest else { return Ok(()) };
        let mut kept = Vec::new();
        extend(&mut kept, self.buffer.get(self.at..self.end).unwrap_or(&[]))?;
        kept.try_reserve_exact(segments.len()).map_err(|_| ReadFault::Memory)?;
        while !segments.is_empty() {
            let front = segments.front();
            let count = front.len();
            kept.extend_from_slice(front);
            segments.consume(count);
        }
        self.rest = Unbuffered::Kept(kept, 0);
        self.free_buffer();
        Ok(())
    }

    /// Goes on at this position, at most at the end. False: it was read before [`Self::keep`], or the client has yet to
    /// send the body.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn seek(&mut self, position: usize) -> Result<bool, ReadFault> {
        self.keep()?;
        let (Some(total), Some(now)) = (self.total, self.position()) else { return Ok(false) };
        let position = position.min(total);
        if position == now {
            return Ok(true);
        }
        match &mut self.rest {
            Unbuffered::File(_, unread) => unread.start = position as u64,
            Unbuffered::Kept(kept, read) => match position.checked_sub(total - kept.len()) {
                Some(at) => *read = at,
                None => return Ok(false),
            },
            _ => return Ok(false),
        }
        self.free_buffer();
        Ok(true)
    }

    /// Fails when an earlier read has lost bytes.
    pub(crate) fn check(&self) -> Result<(), ReadFault> {
        if self.is_lost { Err(ReadFault::Memory) } else { Ok(()) }
    }

    /// Bytes were read that can neither be returned nor put back: every further read fails.
    pub(crate) fn lose(&mut self) {
        self.is_lost = true;
    }

    /// The next bytes that can be examined: the buffered ones, or else the next segment of a body in memory.
    pub(crate) fn buffered(&self) -> &[u8] {
        match &self.rest {
            Unbuffered::Memory(bytes) if self.at == self.end => bytes.front(),
            Unbuffered::Kept(bytes, read) if self.at == self.end => bytes.get(*read..).unwrap_or(&[]),
            _ => self.in_buffer(),
        }
    }

    fn in_buffer(&self) -> &[u8] {
        self.buffer.get(self.at..self.end).unwrap_or(&[])
    }

    /// True for a body in memory, all of it.
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.rest, Unbuffered::Nothing | Unbuffered::Memory(_) | Unbuffered::Kept(..))
    }

    /// True while the client may send more.
    pub(crate) fn is_streamed(&self) -> bool {
        matches!(self.rest, Unbuffered::Stream(_))
    }

    /// How many bytes are left; `None`: only the client knows.
    pub(crate) fn remaining(&self) -> Option<usize> {
        let unread = match &self.rest {
            Unbuffered::Nothing => 0,
            Unbuffered::Memory(bytes) => bytes.len(),
            Unbuffered::Kept(bytes, read) => bytes.len() - read,
            Unbuffered::File(_, unread) => usize::try_from(unread.end - unread.start).unwrap_or(usize::MAX),
            Unbuffered::Stream(_) => return None,
        };
        Some(self.in_buffer().len().saturating_add(unread))
    }

    /// Consumes this number of buffered bytes. What was read is freed while the application works on its copy.
    pub(crate) fn consume(&mut self, count: usize) {
        match &mut self.rest {
            Unbuffered::Memory(bytes) if self.at == self.end => {
                bytes.consume(count);
                if bytes.is_empty() {
                    self.rest = Unbuffered::Nothing;
                }
                return;
            }
            Unbuffered::Kept(_, read) if self.at == self.end => {
                *read += count;
                return;
            }
            _ => self.at += count,
        }
        if self.at >= self.end && self.is_in_memory() {
            self.free_buffer();
        }
    }

    fn free_buffer(&mut self) {
        memory::freed(self.buffer.capacity());
        (self.at, self.end) = (0, 0);
        self.buffer = Vec::new();
    }

    /// Reads the next block into the empty buffer.
    fn refill(&mut self, manner: Manner) -> Result<Refill, ReadFault> {
        (self.at, self.end) = (0, 0);
        match &mut self.rest {
            Unbuffered::Nothing => {}
            Unbuffered::Memory(_) => return Ok(Refill::Bytes),
            Unbuffered::Kept(bytes, read) if *read < bytes.len() => return Ok(Refill::Bytes),
            Unbuffered::Kept(..) => {}
            Unbuffered::File(file, unread) => {
                let size = FILE_BLOCK.min(usize::try_from(unread.end - unread.start).unwrap_or(FILE_BLOCK));
                if self.buffer.len() < size {
                    self.buffer = buffer_of(size)?;
                }
                read_exact_at(file, &mut self.buffer[..size], unread.start)?;
                unread.start += size as u64;
                self.end = size;
            }
            Unbuffered::Stream(stream) => {
                // The buffer may be of another size: that of what a read has put back.
                if self.buffer.len() != STREAM_BLOCK {
                    self.buffer = buffer_of(STREAM_BLOCK)?;
                }
                let read = match manner {
                    Manner::Wait => stream.read(&mut self.buffer).map(Some),
                    Manner::Return => stream.try_read(&mut self.buffer),
                };
                match read.map_err(ReadFault::Body)? {
                    None => return Ok(Refill::Nothing),
                    Some(0) => {
                        self.rest = Unbuffered::Nothing;
                        self.free_buffer();
                    }
                    Some(count) => self.end = count,
                }
            }
        }
        Ok(if self.end == 0 { Refill::End } else { Refill::Bytes })
    }

    /// Reads into `target`, but no more than is available without another wait; 0 at the end of the body.
    fn read_some(&mut self, target: &mut [u8]) -> Result<usize, ReadFault> {
        if self.buffered().is_empty() {
            match &mut self.rest {
                Unbuffered::File(file, unread) if target.len() >= DIRECT => {
                    let size = target.len().min(usize::try_from(unread.end - unread.start).unwrap_or(usize::MAX));
                    read_exact_at(file, &mut target[..size], unread.start)?;
                    unread.start += size as u64;
                    return Ok(size);
                }
                Unbuffered::Stream(stream) if target.len() >= STREAM_BLOCK => {
                    let count = stream.read(target).map_err(ReadFault::Body)?;
                    if count == 0 {
                        self.rest = Unbuffered::Nothing;
                    }
                    return Ok(count);
                }
                _ => {
                    self.refill(Manner::Wait)?;
                }
            }
        }
        let buffered = self.buffered();
        let count = buffered.len().min(target.len());
        target[..count].copy_from_slice(&buffered[..count]);
        self.consume(count);
        Ok(count)
    }

    /// Fills `target`, which is not longer than what remains.
    pub(crate) fn fill(&mut self, mut target: &mut [u8]) -> Result<(), ReadFault> {
        while !target.is_empty() {
            match self.read_some(target)? {
                0 => return Err(ReadFault::File(io::ErrorKind::UnexpectedEof.into())),
                count => target = &mut target[count..],
            }
        }
        Ok(())
    }

    /// Fills `target` from a body in memory, as far as it goes.
    pub(crate) fn copy_to(&mut self, target: &mut Unfilled<'_>) {
        while target.left() > 0 && !self.buffered().is_empty() {
            let count = target.append(self.buffered());
            self.consume(count);
        }
    }

    /// Reads up to `count` bytes of a body whose length is not known: fewer only at its end, or when `at_once` is
    /// enough.
    pub(crate) fn collect(&mut self, count: usize, at_once: bool) -> Result<Vec<u8>, ReadFault> {
        let mut bytes = Vec::new();
        let mut filled = 0;
        while filled < count {
            if filled == bytes.len() {
                // The capacity is doubled instead of allocated at once: the body may be shorter than the requested
                // size.
                let more = (count - filled).min(STREAM_BLOCK.max(filled));
                if bytes.try_reserve_exact(more).is_err() {
                    self.is_lost |= filled > 0;
                    return Err(ReadFault::Memory);
                }
                bytes.resize(filled + more, 0);
            }
            match self.read_some(&mut bytes[filled..])? {
                0 => break,
                read => filled += read,
            }
            if at_once {
                break;
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    /// Appends buffered bytes to `bytes`, up to `limit` in all, until the read is complete. It is complete at the end
    /// of the body.
    fn gather(
        &mut self,
        limit: usize,
        until: Until,
        manner: Manner,
        bytes: &mut Vec<u8>,
    ) -> Result<Gathered, ReadFault> {
        for _ in 0..BLOCKS {
            let buffered = self.buffered();
            let window = &buffered[..buffered.len().min(limit - bytes.len())];
            let enough = match until {
                Until::Limit => None,
                Until::Some => Some(window.len()).filter(|length| *length > 0),
                Until::Line => memchr(b'\n', window).map(|at| at + 1),
            };
            if let Some(count) = enough {
                return Ok(Gathered::Enough(count));
            }
            let count = window.len();
            if bytes.len() + count == limit {
                return Ok(Gathered::Enough(count));
            }
            if let Err(fault) = extend(bytes, window) {
                self.is_lost |= !bytes.is_empty();
                return Err(fault);
            }
            self.consume(count);
            match self.refill(manner)? {
                Refill::Bytes => {}
                Refill::End => return Ok(Gathered::Enough(0)),
                Refill::Nothing => return Ok(Gathered::Nothing),
            }
        }
        Ok(Gathered::MayBeMore)
    }

    /// Gathers until the read is complete: returns what was gathered, and how many buffered bytes follow it.
    pub(crate) fn wait_and_gather(
        &mut self,
        limit: usize,
        until: Until,
        mut bytes: Vec<u8>,
    ) -> Result<(Vec<u8>, usize), ReadFault> {
        loop {
            if let Gathered::Enough(count) = self.gather(limit, until, Manner::Wait, &mut bytes)? {
                return Ok((bytes, count));
            }
        }
    }

    /// One step of a read: appends the available data to `bytes`. Once steps have run for the time of `slice`, a pause
    /// is due.
    pub(crate) fn step(
        &mut self,
        limit: usize,
        until: Until,
        slice: Duration,
        bytes: &mut Vec<u8>,
    ) -> Result<ReadStep, ReadFault> {
        // Nothing else on this thread may run between asking for a ticket and waiting with it: the ticket could come
        // back before anything waits for it.
        let mut asked = None;
        loop {
            if asked.is_none()
                && let Some(pause) = self.fair_yield(slice)
            {
                return Ok(ReadStep::Pause(pause));
            }
            match (self.gather(limit, until, Manner::Return, bytes)?, asked) {
                (Gathered::Enough(count), _) => return Ok(ReadStep::Ready(count)),
                (Gathered::MayBeMore, _) => asked = None,
                (Gathered::Nothing, Some(pause)) => {
                    self.shrink();
                    return Ok(ReadStep::Pause(pause));
                }
                // Data that arrives from now on returns the ticket. Another check finds data that arrived before.
                (Gathered::Nothing, None) => match self.ask() {
                    None => return Ok(ReadStep::Block),
                    pause => asked = pause,
                },
            }
        }
    }

    /// A pause for other requests of the thread, if one is due.
    fn fair_yield(&mut self, slice: Duration) -> Option<Pause> {
        if clock::since(*self.reads_since.get_or_insert_with(clock::now)) < slice {
            return None;
        }
        let Unbuffered::Stream(stream) = &self.rest else { return None };
        let ticket = ticket();
        stream.come_back(ticket).then_some(Pause { ticket, limit: None })
    }

    /// Frees empty buffers before a pause: thousands of readers may wait for their clients.
    fn shrink(&mut self) {
        self.buffer = Vec::new();
        if let Unbuffered::Stream(stream) = &mut self.rest {
            stream.shrink();
        }
    }

    /// A pause until the client has sent more. `None`: the ticket would not come back on this thread.
    fn ask(&mut self) -> Option<Pause> {
        let Unbuffered::Stream(stream) = &mut self.rest else { return None };
        let ticket = ticket();
        stream.ask(ticket).map(|limit| Pause { ticket, limit: Some(limit) })
    }

    /// The pause is over. Whether the ticket came back or the time elapsed makes no difference: if other requests of
    /// the thread ran for a long time, both may be true, and a timer started in a timer's callback counts from the
    /// beginning of that callback.
    pub(crate) fn has_paused(&mut self, pause: Pause, time: Duration) {
        self.reads_since = None;
        if let (Unbuffered::Stream(stream), Some(limit)) = (&mut self.rest, pause.limit) {
            stream.has_waited(time.min(limit));
        }
    }

    /// True while the client may send more.
    pub(crate) fn may_go_on(&self) -> bool {
        matches!(&self.rest, Unbuffered::Stream(stream) if !stream.has_failed())
    }

    /// Takes back what a read has gathered and cannot return: the next read begins with it.
    pub(crate) fn put_back(&mut self, mut bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        if extend(&mut bytes, self.in_buffer()).is_err() {
            return self.lose();
        }
        (self.at, self.end) = (0, bytes.len());
        self.buffer = bytes;
    }

    /// True for a body that ends at once.
    pub(crate) fn has_nothing(&self) -> bool {
        self.buffer.capacity() == 0 && matches!(self.rest, Unbuffered::Nothing)
    }

    /// How long the next line is, if all of it is in memory.
    pub(crate) fn line_in_memory(&self, limit: usize) -> Option<usize> {
        let buffered = self.buffered();
        let window = &buffered[..buffered.len().min(limit)];
        match memchr(b'\n', window) {
            Some(at) => Some(at + 1),
            None if window.len() == limit || self.remaining() == Some(window.len()) => Some(window.len()),
            None => None,
        }
    }
}

impl Drop for UnreadBody {
    fn drop(&mut self) {
        self.free_buffer();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::fs::File;
    use std::io::{Seek, Write};

    use super::*;

    fn in_file(bytes: &[u8]) -> UnreadBody {
        let path = std::env::temp_dir().join(format!("tailrace-input-{}-{:p}", std::process::id(), bytes));
        let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        UnreadBody::new(RequestBody::File { file: file.into(), length: bytes.len() as u64 })
    }

    fn in_memory(bytes: &[u8]) -> UnreadBody {
        in_segments(bytes, bytes.len())
    }

    fn in_segments(bytes: &[u8], size: usize) -> UnreadBody {
        UnreadBody::new(RequestBody::Memory(bytes.chunks(size).map(<[u8]>::to_vec).collect()))
    }

    #[test]
    fn a_body_that_has_arrived_can_be_sought_and_is_the_same_everywhere() {
        let body: Vec<u8> = (0..=255).cycle().take(700_000).collect();
        for mut source in [in_memory(&body), in_segments(&body, 4096), in_file(&body)] {
            assert_eq!((source.position(), source.total()), (Some(0), Some(body.len())));
            // As Zope does, which reads from the end.
            assert!(source.seek(usize::MAX).unwrap());
            assert_eq!((source.position(), source.remaining()), (Some(body.len()), Some(0)));
            let mut end = body.len();
            while end > 0 {
                let start = end.saturating_sub(65_536);
                assert!(source.seek(start).unwrap());
                let mut part = vec![0; end - start];
                source.fill(&mut part).unwrap();
                assert!(part == body[start..end] && source.position() == Some(end));
                end = start;
            }
            assert!(source.seek(3).unwrap());
            assert_eq!(source.collect(5, false).unwrap(), body[3..8]);
            assert_eq!(source.collect(usize::MAX, false).unwrap(), body[8..]);
            assert!(source.seek(0).unwrap());
            assert_eq!(source.collect(usize::MAX, false).unwrap(), body);
        }
    }

    #[test]
    fn what_was_read_before_it_was_kept_has_been_freed_unless_it_is_in_a_file() {
        for (mut source, is_there) in [(in_segments(b"abcdef", 2), false), (in_file(b"abcdef"), true)] {
            assert_eq!(source.collect(3, false).unwrap(), b"abc");
            assert_eq!((source.position(), source.seek(3).unwrap()), (Some(3), true), "it is there already");
            assert_eq!(source.seek(2).unwrap(), is_there);
            assert!(source.seek(4).unwrap() && source.seek(3).unwrap());
            assert_eq!(source.collect(9, false).unwrap(), b"def");
        }
        let mut empty = UnreadBody::new(RequestBody::Empty);
        assert!(empty.seek(0).unwrap() && empty.seek(9).unwrap() && empty.has_nothing());
    }

    fn lines_of(mut source: UnreadBody, limit: usize) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        while source.remaining() != Some(0) {
            let (mut line, count) = source.wait_and_gather(limit, Until::Line, Vec::new()).unwrap();
            line.extend_from_slice(&source.buffered()[..count]);
            source.consume(count);
            lines.push(line);
        }
        lines
    }

    #[test]
    fn memory_and_file_give_the_same_lines() {
        let mut body = Vec::new();
        for number in 0..50_000u32 {
            body.extend_from_slice(format!("line {number}").as_bytes());
            body.extend(std::iter::repeat_n(b'.', number as usize % 40));
            body.push(b'\n');
        }
        body.extend_from_slice(b"no end");
        assert!(body.len() > 3 * FILE_BLOCK);
        let expected: Vec<Vec<u8>> = body.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        assert_eq!(lines_of(in_memory(&body), usize::MAX), expected);
        assert_eq!(lines_of(in_file(&body), usize::MAX), expected);
        for size in [1, 2, 7, 1_000, 65_536] {
            assert_eq!(lines_of(in_segments(&body, size), usize::MAX), expected, "segments of {size}");
        }
        for source in [in_file(&body), in_segments(&body, 10)] {
            let short = lines_of(source, 7);
            assert!(short.iter().all(|line| line.len() <= 7));
            assert_eq!(short.concat(), body);
        }
    }

    #[test]
    fn reads_of_any_size_give_the_body_in_order() {
        let body: Vec<u8> = (0..FILE_BLOCK * 2 + 12_345).map(|at| (at * 31 % 251) as u8).collect();
        for mut source in [in_file(&body), in_memory(&body), in_segments(&body, 1_000), in_segments(&body, 100_000)] {
            let mut got = Vec::new();
            for size in [1, 10, FILE_BLOCK + 3, 5, FILE_BLOCK].iter().cycle() {
                let size = (*size).min(source.remaining().unwrap());
                if size == 0 {
                    break;
                }
                let mut part = vec![0; size];
                source.fill(&mut part).unwrap();
                got.extend_from_slice(&part);
            }
            assert_eq!(got, body);
        }
    }

    #[test]
    fn a_file_shorter_than_promised_is_an_error_not_an_end() {
        let mut source = in_file(b"abc");
        let Unbuffered::File(_, unread) = &mut source.rest else { panic!("not a file") };
        unread.end = 10;
        assert!(source.fill(&mut [0; 10]).is_err());
    }

    #[test]
    fn a_read_body_gives_its_memory_back() {
        let mut source = in_segments(b"abcdef", 3);
        source.consume(3);
        let Unbuffered::Memory(rest) = &source.rest else { panic!("not in memory") };
        assert_eq!((rest.front(), source.remaining()), (&b"def"[..], Some(3)));
        // What is put back is read before the rest.
        source.put_back(b"bc".to_vec());
        assert_eq!((source.buffered(), source.remaining()), (&b"bc"[..], Some(5)));
        source.consume(2);
        assert_eq!((source.buffered(), source.buffer.capacity()), (&b"def"[..], 0));
        source.consume(3);
        assert!(matches!(source.rest, Unbuffered::Nothing));
        assert_eq!(source.remaining(), Some(0));
    }
}
