//! The unread rest of a request's body: in memory, in a file, or still with the client.
//!
//! Knows nothing of threads: whoever has the source reads, blocking where it must, with the interpreter released.

use std::fs::File;
use std::io::{self, Read};

use memchr::memchr;
use penstock_server::exchange::{BodyFault, BodyStream, Charge, RequestBody};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::{ClientDisconnected, RequestBodyError, memory};

/// Read from a file at once.
const FILE_BLOCK: usize = 256 * 1024;
/// A read of this size or more goes from the file straight to where it is wanted.
const DIRECT: usize = 32 * 1024;
/// Read from a client at once, where less is asked for.
const STREAM_BLOCK: usize = 64 * 1024;

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

/// The unread rest of a body.
pub(super) struct Source {
    /// `buffer[at..end]` has been read from the rest and not by the application.
    buffer: Vec<u8>,
    at: usize,
    end: usize,
    rest: Rest,
    /// For the memory of a body that came whole.
    charge: Option<Charge>,
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
        Self { end: buffer.len(), buffer, at: 0, rest, charge }
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

    /// Reads the next block into the empty buffer, which stays empty at the end of the body.
    fn refill(&mut self) -> Result<(), Fault> {
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
                if self.buffer.is_empty() {
                    self.buffer = vec![0; STREAM_BLOCK];
                }
                self.end = stream.read(&mut self.buffer).map_err(Fault::Body)?;
                if self.end == 0 {
                    self.rest = Rest::Nothing;
                    self.let_go();
                }
            }
        }
        Ok(())
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
                _ => self.refill()?,
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

    /// Appends the next line, or as much of it as `limit` allows; nothing at the end of the body.
    pub(super) fn line(&mut self, limit: usize, line: &mut Vec<u8>) -> Result<(), Fault> {
        while line.len() < limit {
            if self.buffered().is_empty() {
                self.refill()?;
                if self.buffered().is_empty() {
                    break;
                }
            }
            let buffered = self.buffered();
            let window = &buffered[..buffered.len().min(limit - line.len())];
            let end = memchr(b'\n', window);
            let count = end.map_or(window.len(), |at| at + 1);
            line.extend_from_slice(&window[..count]);
            self.consume(count);
            if end.is_some() {
                break;
            }
        }
        Ok(())
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
        Source { buffer: bytes.to_vec(), at: 0, end: bytes.len(), rest: Rest::Nothing, charge: None }
    }

    fn lines_of(mut source: Source, limit: usize) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        while source.remaining() != Some(0) {
            let mut line = Vec::new();
            source.line(limit, &mut line).unwrap();
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
