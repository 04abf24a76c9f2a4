//! The unread rest of a request's body: in memory, in a file, or still with the client.
//!
//! Whoever has the source reads it. A thread waits in here for a file or a client, with the interpreter released; a
//! greenlet takes steps, which do not wait, and pauses between them, without the source.

use std::fs::File;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use memchr::memchr;
use penstock_server::exchange::{BodyFault, BodyStream, Charge, RequestBody};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::{ClientDisconnected, RequestBodyError, memory, pause};

/// Read from a file at once.
const FILE_BLOCK: usize = 256 * 1024;
/// A read of this size or more goes from the file straight to where it is wanted.
const DIRECT: usize = 32 * 1024;
/// Read from a client at once, where less is asked for.
const STREAM_BLOCK: usize = 64 * 1024;
/// Blocks that one step of a read goes through.
const BLOCKS: usize = 16;
/// So long a greenlet reads what is there before the others of its thread have a turn.
const BREATH_AFTER: Duration = Duration::from_millis(10);

/// What of a body is not in memory.
enum Rest {
    Nothing,
    /// So many bytes of a file.
    File(File, u64),
    /// What the client still sends.
    Stream(BodyStream),
}

/// Why a body cannot be read.
#[derive(Debug)]
pub(super) enum Fault {
    File(io::Error),
    Body(BodyFault),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

impl From<Fault> for PyErr {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::File(error) => error.into(),
            Fault::Body(BodyFault::Gone) => {
                ClientDisconnected::new_err("the client left before its request was complete")
            }
            Fault::Body(BodyFault::Refused(refusal)) => Python::attach(|py| {
                let error = RequestBodyError::new_err(refusal.reason);
                match error.value(py).setattr("status", refusal.status) {
                    Ok(()) => error,
                    Err(fault) => fault,
                }
            }),
            Fault::Body(BodyFault::Over) => {
                PyValueError::new_err("wsgi.input was read after the response to its request had ended")
            }
        }
    }
}

/// When a read has enough.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// With all that it may have.
    Limit,
    /// With what comes at once, or next.
    Some,
    /// With the end of a line.
    Line,
}

/// What a read does where the client has not sent enough.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// It waits.
    Wait,
    /// It goes on another time.
    Leave,
}

/// What a look for more came to.
#[derive(Debug, PartialEq, Eq)]
enum Gathered {
    /// There is enough, with so many of the buffered bytes.
    Enough(usize),
    /// There may be more, but this was much.
    Much,
    /// The client has sent no more so far.
    Nothing,
}

/// What becomes of the read of a greenlet.
pub(super) enum Step {
    /// It has enough, with so many of the buffered bytes.
    Ready(usize),
    /// It goes on after a pause; before, the greenlet lets go of the source.
    Pause(Pause),
    /// It has to wait as a thread does.
    Block,
}

/// What a greenlet waits for: a ticket to be told.
#[derive(Clone, Copy)]
pub(super) struct Pause {
    pub(super) ticket: u64,
    /// For the client, who may take so long; else for nothing but the other greenlets' turn.
    pub(super) limit: Option<Duration>,
}

/// What became of the empty buffer.
enum Refill {
    Bytes,
    End,
    Nothing,
}

/// The unread rest of a body.
pub(super) struct Source {
    /// `buffer[at..end]` has been read from the rest and not by the application.
    buffer: Vec<u8>,
    at: usize,
    end: usize,
    rest: Rest,
    /// For the memory of a body that came whole.
    charge: Option<Charge>,
    /// A greenlet is in the middle of a read, and lets others run meanwhile.
    pub(super) is_marked: bool,
    /// Since when a greenlet has read without letting others run.
    reads_since: Option<Instant>,
}

impl Source {
    pub(super) fn new(body: RequestBody) -> Self {
        let mut charge = None;
        let (buffer, rest) = match body {
            RequestBody::Empty => (Vec::new(), Rest::Nothing),
            RequestBody::Memory { bytes, charge: held } => {
                charge = Some(held);
                (bytes, Rest::Nothing)
            }
            RequestBody::File { file, length } => (Vec::new(), Rest::File(file, length)),
            RequestBody::Stream(stream) => (Vec::new(), Rest::Stream(stream)),
        };
        Self { end: buffer.len(), buffer, at: 0, rest, charge, is_marked: false, reads_since: None }
    }

    pub(super) fn buffered(&self) -> &[u8] {
        self.buffer.get(self.at..self.end).unwrap_or(&[])
    }

    /// How many bytes are left; `None`: the client knows.
    pub(super) fn remaining(&self) -> Option<usize> {
        let unread = match &self.rest {
            Rest::Nothing => 0,
            Rest::File(_, unread) => usize::try_from(*unread).unwrap_or(usize::MAX),
            Rest::Stream(_) => return None,
        };
        Some(self.buffered().len().saturating_add(unread))
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.at += count;
        if self.at >= self.end && matches!(self.rest, Rest::Nothing) {
            // Read to its end: the memory is free while the application works on its copy.
            self.let_go();
        }
    }

    pub(super) fn let_go(&mut self) {
        self.charge = None;
        (self.at, self.end) = (0, 0);
        if self.buffer.capacity() > 0 {
            memory::freed(self.buffer.capacity());
            self.buffer = Vec::new();
        }
    }

    /// Reads the next block into the empty buffer.
    fn refill(&mut self, manner: Manner) -> Result<Refill, Fault> {
        (self.at, self.end) = (0, 0);
        match &mut self.rest {
            Rest::Nothing => {}
            Rest::File(file, unread) => {
                let size = FILE_BLOCK.min(usize::try_from(*unread).unwrap_or(FILE_BLOCK));
                if self.buffer.len() < size {
                    self.buffer = vec![0; size];
                }
                file.read_exact(&mut self.buffer[..size])?;
                *unread -= size as u64;
                self.end = size;
            }
            Rest::Stream(stream) => {
                // It may be what a read has put back.
                if self.buffer.len() != STREAM_BLOCK {
                    self.buffer = vec![0; STREAM_BLOCK];
                }
                let read = match manner {
                    Manner::Wait => stream.read(&mut self.buffer).map(Some),
                    Manner::Leave => stream.try_read(&mut self.buffer),
                };
                match read.map_err(Fault::Body)? {
                    None => return Ok(Refill::Nothing),
                    Some(0) => {
                        self.rest = Rest::Nothing;
                        self.let_go();
                    }
                    Some(count) => self.end = count,
                }
            }
        }
        Ok(if self.end == 0 { Refill::End } else { Refill::Bytes })
    }

    /// Reads into `target`, not more than what is there without another wait; 0 at the end of the body.
    fn read_some(&mut self, target: &mut [u8]) -> Result<usize, Fault> {
        if self.buffered().is_empty() {
            match &mut self.rest {
                Rest::File(file, unread) if target.len() >= DIRECT => {
                    let size = target.len().min(usize::try_from(*unread).unwrap_or(usize::MAX));
                    file.read_exact(&mut target[..size])?;
                    *unread -= size as u64;
                    return Ok(size);
                }
                Rest::Stream(stream) if target.len() >= STREAM_BLOCK => {
                    let count = stream.read(target).map_err(Fault::Body)?;
                    if count == 0 {
                        self.rest = Rest::Nothing;
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
    pub(super) fn fill(&mut self, mut target: &mut [u8]) -> Result<(), Fault> {
        while !target.is_empty() {
            match self.read_some(target)? {
                0 => return Err(Fault::File(io::ErrorKind::UnexpectedEof.into())),
                count => target = &mut target[count..],
            }
        }
        Ok(())
    }

    /// Reads up to `count` bytes of a body whose length is not known: fewer only at its end, or when `at_once` is enough.
    pub(super) fn collect(&mut self, count: usize, at_once: bool) -> Result<Vec<u8>, Fault> {
        let mut bytes = Vec::new();
        let mut filled = 0;
        while filled < count {
            if filled == bytes.len() {
                // Twice as much room each time, and not all at once: what was promised need not come.
                bytes.resize(filled + (count - filled).min(STREAM_BLOCK.max(filled)), 0);
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

    /// Moves bytes behind `bytes`, up to `limit` in all, while they are not enough. At the end of the body, what there is
    /// is enough.
    fn gather(&mut self, limit: usize, until: Until, manner: Manner, bytes: &mut Vec<u8>) -> Result<Gathered, Fault> {
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
            bytes.extend_from_slice(window);
            self.consume(count);
            match self.refill(manner)? {
                Refill::Bytes => {}
                Refill::End => return Ok(Gathered::Enough(0)),
                Refill::Nothing => return Ok(Gathered::Nothing),
            }
        }
        Ok(Gathered::Much)
    }

    /// Gathers until there is enough behind `bytes`: with so many of the buffered bytes.
    pub(super) fn wait_and_gather(
        &mut self,
        limit: usize,
        until: Until,
        mut bytes: Vec<u8>,
    ) -> Result<(Vec<u8>, usize), Fault> {
        loop {
            if let Gathered::Enough(count) = self.gather(limit, until, Manner::Wait, &mut bytes)? {
                return Ok((bytes, count));
            }
        }
    }

    /// Gathers what there is behind `bytes`, for a greenlet.
    pub(super) fn step(&mut self, limit: usize, until: Until, bytes: &mut Vec<u8>) -> Result<Step, Fault> {
        // Whoever has asked for a ticket gives nobody else a turn before it waits: the ticket would be told to no one.
        let mut asked = None;
        loop {
            if asked.is_none()
                && let Some(breath) = self.breath()
            {
                return Ok(Step::Pause(breath));
            }
            match (self.gather(limit, until, Manner::Leave, bytes)?, asked) {
                (Gathered::Enough(count), _) => return Ok(Step::Ready(count)),
                (Gathered::Much, _) => asked = None,
                (Gathered::Nothing, Some(pause)) => {
                    self.shrink();
                    return Ok(Step::Pause(pause));
                }
                // What comes from now on is told, what has come till now shows at another look.
                (Gathered::Nothing, None) => match self.ask() {
                    None => return Ok(Step::Block),
                    pause => asked = pause,
                },
            }
        }
    }

    /// What lets the others of the hub run, if they are due.
    fn breath(&mut self) -> Option<Pause> {
        if self.reads_since.get_or_insert_with(Instant::now).elapsed() < BREATH_AFTER {
            return None;
        }
        let Rest::Stream(stream) = &self.rest else { return None };
        let ticket = pause::ticket();
        stream.come_back(ticket).then_some(Pause { ticket, limit: None })
    }

    /// Thousands may wait for their clients, each with an empty buffer.
    fn shrink(&mut self) {
        self.buffer = Vec::new();
        if let Rest::Stream(stream) = &mut self.rest {
            stream.shrink();
        }
    }

    /// Has a ticket told when the client has sent more. `None`: it would not be told to this thread.
    fn ask(&mut self) -> Option<Pause> {
        let Rest::Stream(stream) = &mut self.rest else { return None };
        let ticket = pause::ticket();
        stream.ask(ticket).map(|limit| Pause { ticket, limit: Some(limit) })
    }

    /// A greenlet has paused for so long. Whether it was told or its time was over does not matter: if others have kept it
    /// waiting, both may be, and a timer that is started in a timer's callback counts from when that began.
    pub(super) fn has_paused(&mut self, pause: Pause, time: Duration) {
        self.reads_since = None;
        if let (Rest::Stream(stream), Some(limit)) = (&mut self.rest, pause.limit) {
            stream.has_waited(time.min(limit));
        }
    }

    /// True while the client may send more.
    pub(super) fn may_go_on(&self) -> bool {
        matches!(&self.rest, Rest::Stream(stream) if !stream.has_failed())
    }

    /// Takes back what a read has gathered and cannot return: the next one begins with it.
    pub(super) fn put_back(&mut self, mut bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        bytes.extend_from_slice(self.buffered());
        (self.at, self.end) = (0, bytes.len());
        self.buffer = bytes;
    }

    /// A body that ends at once.
    pub(super) fn has_nothing(&self) -> bool {
        self.buffer.capacity() == 0 && matches!(self.rest, Rest::Nothing)
    }

    /// How long the next line is, if all of it is in memory.
    pub(super) fn line_in_memory(&self, limit: usize) -> Option<usize> {
        let buffered = self.buffered();
        let window = &buffered[..buffered.len().min(limit)];
        match memchr(b'\n', window) {
            Some(at) => Some(at + 1),
            None if window.len() == limit || self.remaining() == Some(window.len()) => Some(window.len()),
            None => None,
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.let_go();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::io::{Seek, Write};

    use super::*;

    fn in_file(bytes: &[u8]) -> Source {
        let path = std::env::temp_dir().join(format!("penstock-input-{}-{:p}", std::process::id(), bytes));
        let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        Source::new(RequestBody::File { file, length: bytes.len() as u64 })
    }

    fn in_memory(bytes: &[u8]) -> Source {
        let mut source = Source::new(RequestBody::Empty);
        source.put_back(bytes.to_vec());
        source
    }

    fn lines_of(mut source: Source, limit: usize) -> Vec<Vec<u8>> {
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
        let short = lines_of(in_file(&body), 7);
        assert!(short.iter().all(|line| line.len() <= 7));
        assert_eq!(short.concat(), body);
    }

    #[test]
    fn reads_of_any_size_give_the_file_in_order() {
        let body: Vec<u8> = (0..FILE_BLOCK * 2 + 12_345).map(|at| (at * 31 % 251) as u8).collect();
        let mut source = in_file(&body);
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

    #[test]
    fn a_file_shorter_than_promised_is_an_error_not_an_end() {
        let mut source = in_file(b"abc");
        let Rest::File(_, unread) = &mut source.rest else { panic!("not a file") };
        *unread = 10;
        assert!(source.fill(&mut [0; 10]).is_err());
    }

    #[test]
    fn a_read_body_gives_its_memory_back() {
        let mut source = in_memory(b"abc");
        source.consume(3);
        assert_eq!(source.buffer.capacity(), 0);
        assert_eq!(source.remaining(), Some(0));
    }
}
