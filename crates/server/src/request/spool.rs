//! A request body while it arrives: in memory up to a limit, then in an unlinked temporary file.
//!
//! Belongs to the owner of the connection. Only a [`Write`] uses the disk. A disk thread runs it: the file and the
//! bytes move into the write, and return to the spool with its result.

use std::io::{self, Seek, SeekFrom, Write as _};
use std::sync::Arc;

use crate::request::RequestBody;
use crate::request::disk::{Disk, TemporaryFile};
use crate::request::memory::Charge;

/// A body up to this size stays in memory whatever the limits are: most bodies are smaller, and a file costs more time.
const SMALL: usize = 16 * 1024;
/// Least bytes of one write. A body in a file uses about this much memory beside.
const WRITE: usize = 1 << 20;

/// The part of a request body that has arrived.
pub(crate) struct Spool {
    /// The length of the whole body, if it is known.
    expected: Option<u64>,
    /// The bytes that are not written to the file yet.
    memory: Vec<u8>,
    charge: Charge,
    /// The body is too large for memory.
    in_file: bool,
    /// `None` until the first write, and while one is under way.
    file: Option<TemporaryFile>,
    /// Bytes that have been given to writes.
    written: u64,
}

/// How many bytes may be kept in memory.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Of one body.
    pub(crate) one: usize,
    /// Of all bodies together.
    pub(crate) all: usize,
}

/// What [`Spool::append`] did with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appended {
    /// They are in memory.
    Some,
    /// They are in memory, and the memory must be written to the file before more is read.
    Much,
    /// The system has no memory for them.
    NoMemory,
}

/// A write of a part of a body to its file, for a disk thread.
pub(crate) struct Write {
    file: Option<TemporaryFile>,
    bytes: Vec<u8>,
    is_last: bool,
}

/// What a [`Write`] returns to the spool.
pub(crate) struct Written {
    file: TemporaryFile,
    /// The emptied buffer, for the next bytes.
    room: Vec<u8>,
}

impl Write {
    /// Writes the bytes. Blocks for as long as the disk takes.
    ///
    /// # Errors
    /// The temporary folder cannot be written or has no space.
    pub(crate) fn run(mut self, disk: &Arc<Disk>) -> io::Result<Written> {
        let file = match self.file {
            Some(file) => file,
            None => TemporaryFile::create(disk)?,
        };
        (&*file).write_all(&self.bytes)?;
        if self.is_last {
            (&*file).seek(SeekFrom::Start(0))?;
        }
        self.bytes.clear();
        Ok(Written { file, room: self.bytes })
    }
}

impl Spool {
    /// A spool for a body of `expected` bytes, if that is known.
    pub(crate) fn new(expected: Option<u64>, charge: Charge) -> Self {
        Self { expected, memory: Vec::new(), charge, in_file: false, file: None, written: 0 }
    }

    /// True when the body stays in memory with so many more bytes, whatever other bodies use.
    pub(crate) fn is_small_with(&self, more: usize) -> bool {
        !self.in_file && self.memory.len() + more <= SMALL
    }

    /// The bytes of memory that are charged for it.
    pub(crate) fn charged(&self) -> usize {
        self.charge.bytes()
    }

    /// Makes room for more bytes. The capacity is doubled, and not set to the length that the head states, because the
    /// client may never send that much. False: the system has no memory.
    fn reserve(&mut self, more: usize) -> bool {
        if self.memory.capacity() - self.memory.len() >= more {
            return true;
        }
        let expected = self.expected.map_or(usize::MAX, |expected| usize::try_from(expected).unwrap_or(usize::MAX));
        let left = expected.saturating_sub(self.memory.len());
        let wanted = more.max(self.memory.len()).min(left.max(more));
        self.memory.try_reserve_exact(wanted).is_ok() || self.memory.try_reserve_exact(more).is_ok()
    }

    /// Appends bytes.
    pub(crate) fn append(&mut self, bytes: &[u8], limits: Limits) -> Appended {
        if !self.reserve(bytes.len()) {
            return Appended::NoMemory;
        }
        self.memory.extend_from_slice(bytes);
        self.charge.set(self.memory.capacity());
        let length = self.memory.len();
        let has_room = self.charge.all() <= limits.all;
        self.in_file |= length > limits.one || (length > SMALL && !has_room);
        let is_much = self.in_file && length >= if has_room { WRITE } else { SMALL };
        if is_much { Appended::Much } else { Appended::Some }
    }

    /// Called when the client has sent nothing more for now. True: the bytes in memory are to be written to the file.
    pub(crate) fn pause(&mut self) -> bool {
        if !self.in_file {
            return false;
        }
        if self.memory.len() >= SMALL {
            return true;
        }
        if self.memory.capacity() > SMALL {
            self.memory = self.memory.as_slice().to_vec();
            self.charge.set(self.memory.capacity());
        }
        false
    }

    /// True when the body is in a file, so that its last bytes must be written, too.
    pub(crate) fn is_in_file(&self) -> bool {
        self.in_file
    }

    /// Takes the bytes in memory, to be written. They stay charged until [`Spool::put_back`]. `is_last`: the body is
    /// complete.
    pub(crate) fn take_write(&mut self, is_last: bool) -> Write {
        self.written += self.memory.len() as u64;
        Write { file: self.file.take(), bytes: std::mem::take(&mut self.memory), is_last }
    }

    /// Takes back what a finished write returns.
    pub(crate) fn put_back(&mut self, written: Written, limits: Limits) {
        self.file = Some(written.file);
        if self.charge.all() <= limits.all {
            self.memory = written.room;
        }
        self.charge.set(self.memory.capacity());
    }

    /// The whole body, for the application to read from its start. If it is in a file, the last write must be done.
    pub(crate) fn finish(self) -> RequestBody {
        match self.file {
            Some(mut file) => {
                // The application's children may read it, too.
                file.share();
                RequestBody::File { file, length: self.written }
            }
            None if self.memory.is_empty() => RequestBody::Empty,
            None => RequestBody::Memory { bytes: self.memory, charge: self.charge },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::Read;
    use std::sync::Arc;

    use super::{Appended, Limits, SMALL, Spool, WRITE};
    use crate::request::RequestBody;
    use crate::request::disk::Disk;
    use crate::request::memory::{Budget, Charge};

    fn spool(expected: Option<u64>) -> Spool {
        Spool::new(expected, Charge::new(Arc::default()))
    }

    const LIMITS: Limits = Limits { one: 6, all: usize::MAX };

    fn write(spool: &mut Spool, is_last: bool) {
        let written = spool.take_write(is_last).run(&Arc::new(Disk::new())).unwrap();
        spool.put_back(written, LIMITS);
    }

    fn finish(mut spool: Spool) -> RequestBody {
        if spool.is_in_file() {
            write(&mut spool, true);
        }
        spool.finish()
    }

    fn in_file(body: RequestBody) -> Vec<u8> {
        let RequestBody::File { file, length } = body else { panic!("not in a file") };
        let mut all = Vec::new();
        (&*file).read_to_end(&mut all).unwrap();
        assert_eq!(all.len() as u64, length);
        all
    }

    #[test]
    fn past_the_limit_of_all_bodies_only_small_ones_stay_in_memory() {
        let budget = Arc::new(Budget::default());
        let limits = Limits { one: 10 * SMALL, all: 5 * SMALL };
        let mut spools: Vec<_> = (0..4).map(|_| Spool::new(None, Charge::new(budget.clone()))).collect();
        for spool in &mut spools[..3] {
            for _ in 0..2 * SMALL / 1024 {
                if spool.append(&[0; 1024], limits) == Appended::Much {
                    write(spool, false);
                }
            }
        }
        spools[3].append(&[0; SMALL], limits);
        assert!(budget.used() <= 7 * SMALL, "{}", budget.used());
        let kinds: Vec<_> =
            spools.into_iter().map(|spool| matches!(finish(spool), RequestBody::Memory { .. })).collect();
        assert_eq!(kinds, [true, true, false, true]);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_body_within_the_limit_stays_in_memory() {
        let mut spool = spool(Some(6));
        spool.append(b"abc", LIMITS);
        spool.append(b"def", LIMITS);
        match finish(spool) {
            RequestBody::Memory { bytes, .. } => assert_eq!(bytes, b"abcdef"),
            _ => panic!("not in memory"),
        }
    }

    #[test]
    fn a_larger_body_is_in_a_file_from_its_start() {
        let mut spool = spool(None);
        for _ in 0..3 {
            assert_eq!(spool.append(b"abc", LIMITS), Appended::Some);
        }
        assert_eq!(in_file(finish(spool)), b"abcabcabc");
    }

    #[test]
    fn a_large_body_is_written_in_parts_and_needs_the_memory_of_one_part() {
        let budget = Arc::new(Budget::default());
        let mut spool = Spool::new(None, Charge::new(budget.clone()));
        let mut all = Vec::new();
        let mut writes = 0;
        for number in 0..700_u32 {
            let part = vec![(number % 251) as u8; 10_000];
            if spool.append(&part, LIMITS) == Appended::Much {
                write(&mut spool, false);
                writes += 1;
            }
            all.extend_from_slice(&part);
            assert!(budget.used() <= 2 * WRITE + 20_000, "{}", budget.used());
        }
        assert_eq!(writes, all.len() / WRITE);
        assert_eq!(in_file(finish(spool)), all);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_client_that_pauses_leaves_little_in_memory() {
        let budget = Arc::new(Budget::default());
        let mut spool = Spool::new(None, Charge::new(budget.clone()));
        assert_eq!(spool.append(&[1; WRITE], LIMITS), Appended::Much);
        write(&mut spool, false);
        spool.append(b"abc", LIMITS);
        assert!(!spool.pause());
        assert!(budget.used() <= SMALL, "{}", budget.used());
        spool.append(&[2; SMALL], LIMITS);
        assert!(spool.pause());
        assert_eq!(in_file(finish(spool)), [vec![1; WRITE], b"abc".to_vec(), vec![2; SMALL]].concat());
    }

    #[test]
    fn an_empty_body_is_no_body() {
        assert!(matches!(finish(spool(Some(0))), RequestBody::Empty));
    }
}
