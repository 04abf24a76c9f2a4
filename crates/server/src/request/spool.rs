//! A request body while it arrives: in memory up to a limit, as long as all bodies together fit; then in an unlinked
//! temporary file, to which the data in memory is moved.
//!
//! Belongs to the owner of the connection. Only a [`Write`] uses the disk. A disk thread runs it: the file and the
//! bytes move into the write, and the file returns to the spool with its result.

use std::io::{self, Seek, SeekFrom, Write as _};
use std::sync::Arc;

use crate::request::RequestBody;
use crate::request::disk::{Disk, Quota, TemporaryFile};
use crate::request::memory::ClientMemory;
use crate::request::segments::Segments;

/// A body up to this size stays in memory whatever the limits are: most bodies are smaller, and a file costs more time.
const SMALL: usize = 16 * 1024;
/// Minimum size of a write. A body in a file uses about this much additional memory.
const WRITE: usize = 1 << 20;

/// The part of a request body that has arrived.
pub(crate) struct Spool {
    /// The length of the whole body, if it is known.
    expected: Option<u64>,
    /// The bytes that are not written to the file yet.
    memory: Segments,
    /// The body is too large for memory.
    in_file: bool,
    /// `None` until the first write, and while one is under way.
    file: Option<TemporaryFile>,
    /// Bytes that have been given to writes.
    written: u64,
}

/// Limits on bytes in memory.
#[derive(Clone, Copy)]
pub(crate) struct SpoolLimits {
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
    bytes: Segments,
    is_last: bool,
}

/// What a [`Write`] returns to the spool.
pub(crate) struct Written {
    file: TemporaryFile,
}

/// Why a [`Write`] has failed.
#[derive(Debug)]
pub(crate) enum NotWritten {
    /// All bodies in files together have reached their limit.
    NoRoom,
    /// The temporary folder cannot be written or has no space.
    Disk(io::Error),
}

impl From<io::Error> for NotWritten {
    fn from(fault: io::Error) -> Self {
        Self::Disk(fault)
    }
}

impl Write {
    /// Writes the bytes. Blocks for as long as the disk takes. `make_room` is called if the files of all bodies have no
    /// room for so many bytes.
    ///
    /// # Errors
    /// There is no room, or the disk has failed.
    pub(crate) fn run(
        self,
        disk: &Arc<Disk>,
        quota: &Arc<Quota>,
        make_room: impl FnOnce(u64),
    ) -> Result<Written, NotWritten> {
        let mut file = match self.file {
            Some(file) => file,
            None => TemporaryFile::create(disk)?,
        };
        let bytes = self.bytes.len() as u64;
        if !file.try_reserve(quota, bytes) {
            make_room(bytes);
            if !file.try_reserve(quota, bytes) {
                return Err(NotWritten::NoRoom);
            }
        }
        for slice in self.bytes.slices() {
            (&*file).write_all(slice)?;
        }
        if self.is_last {
            (&*file).seek(SeekFrom::Start(0))?;
        }
        Ok(Written { file })
    }
}

impl Spool {
    /// A spool for a body of `expected` bytes, if that is known.
    pub(crate) fn new(expected: Option<u64>, memory: &ClientMemory) -> Self {
        Self { expected, memory: Segments::new(memory), in_file: false, file: None, written: 0 }
    }

    /// True when the body stays in memory with so many more bytes, whatever other bodies use.
    pub(crate) fn is_small_with(&self, more: usize) -> bool {
        !self.in_file && self.memory.len() + more <= SMALL
    }

    /// The bytes of memory that are charged for it.
    pub(crate) fn charged(&self) -> usize {
        self.memory.charge().bytes()
    }

    /// Bytes that are in its file, or on the way there.
    pub(crate) fn stored(&self) -> u64 {
        self.written
    }

    /// Bytes that have been received.
    fn arrived(&self) -> u64 {
        self.written + self.memory.len() as u64
    }

    /// Bytes that are still to come, as far as that is known.
    fn left(&self) -> u64 {
        self.expected.map_or(u64::MAX, |expected| expected.saturating_sub(self.arrived()))
    }

    /// Appends bytes.
    pub(crate) fn append(&mut self, bytes: &[u8], limits: SpoolLimits) -> Appended {
        if self.memory.append(bytes, self.arrived(), self.left()).is_err() {
            return Appended::NoMemory;
        }
        self.appended(limits)
    }

    /// Room for the next bytes of a large body. `None`: they have to be appended. Afterwards call [`Spool::filled`] and
    /// [`Spool::appended`].
    pub(crate) fn room(&mut self) -> Option<&mut [u8]> {
        self.memory.room(self.arrived(), self.left())
    }

    /// The first `count` bytes of the room have been filled. Returns them.
    pub(crate) fn filled(&mut self, count: usize) -> &[u8] {
        self.memory.filled(count)
    }

    /// What follows after bytes were appended.
    pub(crate) fn appended(&mut self, limits: SpoolLimits) -> Appended {
        let length = self.memory.len();
        let has_room = self.memory.charge().all() <= limits.all && !self.memory.is_short();
        self.in_file |= length > limits.one || (length > SMALL && !has_room);
        let is_much = self.in_file && length >= if has_room { WRITE } else { SMALL };
        if is_much { Appended::Much } else { Appended::Some }
    }

    /// Called when the client has sent nothing more for now. True: the bytes in memory are to be written to the file.
    pub(crate) fn must_write_now(&mut self) -> bool {
        if !self.in_file {
            return false;
        }
        if self.memory.len() >= SMALL {
            return true;
        }
        self.memory.shrink();
        false
    }

    /// True when the body is in a file, so that its last bytes must be written, too.
    pub(crate) fn is_in_file(&self) -> bool {
        self.in_file
    }

    /// Takes the bytes in memory to be written. They stay charged until the write has finished. `is_last`: the body is
    /// complete.
    pub(crate) fn take_write(&mut self, is_last: bool) -> Write {
        self.written = self.arrived();
        let next = self.memory.another();
        Write { file: self.file.take(), bytes: std::mem::replace(&mut self.memory, next), is_last }
    }

    /// Takes back what a finished write returns.
    pub(crate) fn put_back(&mut self, written: Written) {
        self.file = Some(written.file);
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
            None => RequestBody::Memory(self.memory),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::Read;
    use std::sync::Arc;

    use super::{Appended, SMALL, Spool, SpoolLimits, WRITE};
    use crate::request::RequestBody;
    use crate::request::disk::{Disk, Quota};
    use crate::request::memory::ClientMemory;
    use crate::request::pool::SEGMENT;

    fn spool(expected: Option<u64>) -> Spool {
        Spool::new(expected, &memory())
    }

    fn memory() -> ClientMemory {
        ClientMemory::new(1 << 30, 1 << 29)
    }

    const LIMITS: SpoolLimits = SpoolLimits { one: 6, all: usize::MAX };

    fn write(spool: &mut Spool, is_last: bool) {
        let written = spool.take_write(is_last).run(&Arc::new(Disk::new()), &Quota::new(u64::MAX), |_| ()).unwrap();
        spool.put_back(written);
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
        let memory = memory();
        let limits = SpoolLimits { one: 10 * SMALL, all: 5 * SMALL };
        let mut spools: Vec<_> = (0..4).map(|_| Spool::new(None, &memory)).collect();
        for spool in &mut spools[..3] {
            for _ in 0..2 * SMALL / 1024 {
                if spool.append(&[0; 1024], limits) == Appended::Much {
                    write(spool, false);
                }
            }
        }
        spools[3].append(&[0; SMALL], limits);
        assert!(memory.bodies.used() <= 7 * SMALL, "{}", memory.bodies.used());
        let kinds: Vec<_> = spools.into_iter().map(|spool| matches!(finish(spool), RequestBody::Memory(_))).collect();
        assert_eq!(kinds, [true, true, false, true]);
        assert_eq!(memory.bodies.used(), 0);
    }

    #[test]
    fn a_body_within_the_limit_stays_in_memory() {
        let mut spool = spool(Some(6));
        spool.append(b"abc", LIMITS);
        spool.append(b"def", LIMITS);
        match finish(spool) {
            RequestBody::Memory(bytes) => assert_eq!(bytes.into_vec(), b"abcdef"),
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
        let memory = memory();
        let mut spool = Spool::new(None, &memory);
        let mut all = Vec::new();
        let mut writes = 0;
        for number in 0..700_u32 {
            let part = vec![(number % 251) as u8; 10_000];
            if spool.append(&part, LIMITS) == Appended::Much {
                write(&mut spool, false);
                writes += 1;
            }
            all.extend_from_slice(&part);
            assert!(memory.bodies.used() <= 2 * WRITE + 20_000, "{}", memory.bodies.used());
        }
        assert_eq!(writes, all.len() / WRITE);
        assert_eq!(in_file(finish(spool)), all);
        assert_eq!(memory.bodies.used(), 0);
    }

    #[test]
    fn a_large_body_in_memory_goes_to_a_file_when_other_bodies_fill_the_memory() {
        let memory = memory();
        let limits = SpoolLimits { one: 8 * WRITE, all: 10 * WRITE };
        let mut first = Spool::new(None, &memory);
        assert_eq!(first.append(&[1; 7 * WRITE], limits), Appended::Some);
        let mut second = Spool::new(Some(6 * WRITE as u64), &memory);
        let part: Vec<u8> = (0..WRITE).map(|at| (at % 251) as u8).collect();
        let mut all = Vec::new();
        let mut written = Vec::new();
        for number in 0..6 {
            for part in part.chunks(50_000) {
                // What is in the room is the same as what is appended.
                let appended = match second.room() {
                    Some(room) if room.len() >= part.len() => {
                        room[..part.len()].copy_from_slice(part);
                        assert_eq!(second.filled(part.len()), part);
                        second.appended(limits)
                    }
                    _ => second.append(part, limits),
                };
                if appended == Appended::Much {
                    write(&mut second, false);
                    written.push(number);
                }
            }
            all.extend_from_slice(&part);
            assert!(memory.bodies.used() <= limits.all + 2 * SEGMENT, "{}", memory.bodies.used());
        }
        // The first three parts fill the memory. Then there is room for what comes, in parts.
        assert_eq!(written.first(), Some(&2), "{written:?}");
        assert!(written.len() <= 4, "{written:?}");
        assert!(in_file(finish(second)) == all);
        let RequestBody::Memory(bytes) = finish(first) else { panic!("not in memory") };
        assert!(bytes.into_vec() == [1; 7 * WRITE]);
        assert_eq!(memory.bodies.used(), 0);
    }

    #[test]
    fn a_client_that_pauses_leaves_little_in_memory() {
        let memory = memory();
        let mut spool = Spool::new(None, &memory);
        assert_eq!(spool.append(&[1; WRITE], LIMITS), Appended::Much);
        write(&mut spool, false);
        spool.append(b"abc", LIMITS);
        assert!(!spool.must_write_now());
        assert!(memory.bodies.used() <= SMALL, "{}", memory.bodies.used());
        spool.append(&[2; SMALL], LIMITS);
        assert!(spool.must_write_now());
        assert_eq!(in_file(finish(spool)), [vec![1; WRITE], b"abc".to_vec(), vec![2; SMALL]].concat());
    }

    #[test]
    fn an_empty_body_is_no_body() {
        assert!(matches!(finish(spool(Some(0))), RequestBody::Empty));
    }
}
