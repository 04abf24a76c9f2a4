//! Files, pipes and terminals: what a descriptor is, writing to it, temporary files. A call on a file may take as long
//! as its disk does.

use std::ffi::CStr;
use std::fs::{File, OpenOptions, remove_file};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    FallocateFlags, FileType, MemfdFlags, Mode, OFlags, fallocate, fcntl_getfl, fstat, memfd_create, open,
};
use rustix::io::{Errno, ReadWriteFlags};

use crate::process;
use crate::socket::Io;

/// A new unlinked temporary file in this folder.
///
/// # Errors
/// The folder cannot be written or has no space.
pub fn temporary_file(folder: &Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::TMPFILE.bits()).unwrap_or(0);
    match OpenOptions::new().read(true).write(true).custom_flags(flags).mode(0o600).open(folder) {
        Ok(file) => Ok(file),
        // A file system without O_TMPFILE: make a named one and unlink it.
        Err(fault) if matches!(Errno::from_io_error(&fault), Some(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT)) => {
            named_and_unlinked(folder)
        }
        Err(fault) => Err(fault),
    }
}

fn named_and_unlinked(folder: &Path) -> io::Result<File> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    loop {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("tailrace-{}-{serial}", process::id()));
        match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => {
                remove_file(&path)?;
                return Ok(file);
            }
            Err(fault) if fault.kind() == io::ErrorKind::AlreadyExists => {}
            Err(fault) => return Err(fault),
        }
    }
}

/// What kind of file a descriptor refers to, as far as writing is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A file on a disk, or a device that accepts all bytes at once.
    File,
    /// A pipe or a terminal: a write may block for as long as no process reads.
    Stream,
    /// A socket.
    Socket,
}

/// What kind of file a descriptor refers to, and its identity (device and inode).
///
/// # Errors
/// It is closed.
pub fn file_kind(descriptor: BorrowedFd<'_>) -> io::Result<(FileKind, (u64, u64))> {
    let stat = fstat(descriptor)?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => FileKind::Socket,
        FileType::Fifo => FileKind::Stream,
        FileType::CharacterDevice if rustix::termios::isatty(descriptor) => FileKind::Stream,
        _ => FileKind::File,
    };
    Ok((kind, (stat.st_dev, stat.st_ino)))
}

/// Opens the pipe or terminal behind a descriptor once more, for non-blocking writes. The flag belongs to the new open
/// file description, so writes of other processes, which share the old one, still block.
///
/// # Errors
/// It belongs to another user, or is a named pipe without a reader.
pub(crate) fn open_again(descriptor: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    Ok(open(path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a file for appending, and creates it if there is none. Writes to a named pipe do not block.
///
/// # Errors
/// Those of open(2). A named pipe that no process reads is ENXIO.
pub fn open_to_append(path: &Path) -> io::Result<OwnedFd> {
    let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOCTTY).bits()).unwrap_or(0);
    Ok(OpenOptions::new().append(true).create(true).custom_flags(flags).open(path)?.into())
}

/// Writes to a descriptor of any kind, once. `Io::WouldBlock`: it is non-blocking, and accepts nothing now.
///
/// # Errors
/// Those of write(2).
pub fn write(descriptor: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<Io> {
    loop {
        match rustix::io::write(descriptor, bytes) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(Io::WouldBlock),
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(moved) => return Ok(Io::Moved(moved)),
            Err(fault) => return Err(fault.into()),
        }
    }
}

/// A failed write to a file, as on a full disk: the file may end with an incomplete line, possibly of another process.
#[derive(Clone, Copy)]
pub struct FailedWrite {
    /// Which file, as [`file_kind`] says.
    pub file: (u64, u64),
    /// A part of the line was written.
    pub is_part: bool,
}

impl FailedWrite {
    /// True when a line end must come before the next line, if that goes to `file`, which is behind the descriptor.
    pub fn needs_line_end(self, descriptor: BorrowedFd<'_>, file: (u64, u64)) -> bool {
        self.file == file && ends_with_a_line(descriptor).map_or(self.is_part, |ends| !ends)
    }
}

/// `None`: the file may be written and not read.
fn ends_with_a_line(descriptor: BorrowedFd<'_>) -> Option<bool> {
    let file = File::open(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).ok()?;
    let length = file.metadata().ok()?.len();
    let mut last = [b'\n'];
    if length > 0 {
        read_exact_at(&file, &mut last, length - 1).ok()?;
    }
    Some(last == [b'\n'])
}

/// Fills the buffer from an offset of a file. The file's own position does not change.
///
/// # Errors
/// The file ends before the buffer is full, or the disk fails.
pub fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(buffer, offset)
}

/// Writes all bytes at an offset of a file. The file's own position does not change.
///
/// # Errors
/// The disk is full, or fails.
pub fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(bytes, offset)
}

/// Reads from an offset of a file, once. Returns the number of bytes; 0 at the end of the file.
///
/// # Errors
/// Those of pread(2), but for EINTR.
pub fn read_at(file: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    Ok(rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *buffer, offset))?)
}

/// A new file in memory, without a name.
///
/// # Errors
/// No descriptors left, or a filter of system calls forbids it.
pub fn memory_file(name: &CStr) -> io::Result<File> {
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
}

/// Frees the space of a part of a file; it then reads as zeros. Does nothing if the file system cannot.
pub fn free(file: BorrowedFd<'_>, offset: u64, length: u64) {
    let _ = fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length);
}

/// Reads a part of a file into the system's memory. Blocks on the disk. Errors are left to the later reader.
pub fn read_ahead(file: BorrowedFd<'_>, offset: u64, length: u64) {
    let mut buffer = vec![0; 64 * 1024];
    let mut at = offset;
    let end = offset.saturating_add(length);
    while at < end {
        match read_at(file, &mut buffer, at) {
            Ok(count @ 1..) => at += count as u64,
            Ok(0) | Err(_) => return,
        }
    }
}

/// Whether a byte of a file is in the system's memory, so that reading it does not wait for a disk. Also false if the
/// file system cannot tell, like those that work over a network or in another process.
pub fn is_in_memory(file: BorrowedFd<'_>, offset: u64) -> bool {
    let mut byte = [0; 1];
    let buffers = &mut [io::IoSliceMut::new(&mut byte)];
    let read = rustix::io::retry_on_intr(|| rustix::io::preadv2(file, buffers, offset, ReadWriteFlags::NOWAIT));
    read.is_ok()
}

/// Reads data at an offset of a file that is in the system's memory. `None`: the next bytes are not, or the file system
/// cannot tell.
pub fn read_from_memory(file: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> Option<usize> {
    let buffers = &mut [io::IoSliceMut::new(buffer)];
    rustix::io::retry_on_intr(|| rustix::io::preadv2(file, buffers, offset, ReadWriteFlags::NOWAIT)).ok()
}

/// A regular file that a descriptor can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegularFile {
    /// Its length in bytes, as the file system reports it.
    pub length: u64,
    /// It occupies blocks on a disk.
    pub has_blocks: bool,
}

/// The regular file behind a descriptor. `None`: it is no regular file, or the descriptor cannot read it.
///
/// # Errors
/// Those of fstat(2).
pub fn regular_file(descriptor: BorrowedFd<'_>) -> io::Result<Option<RegularFile>> {
    let may_read = fcntl_getfl(descriptor)
        .is_ok_and(|flags| !flags.contains(OFlags::PATH) && flags & OFlags::ACCMODE != OFlags::WRONLY);
    let stat = fstat(descriptor)?;
    Ok((may_read && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
        .then(|| RegularFile { length: u64::try_from(stat.st_size).unwrap_or(0), has_blocks: stat.st_blocks != 0 }))
}

/// The system's text for an error, without its number.
pub fn error_text(fault: &io::Error) -> String {
    let text = fault.to_string();
    text.split_once(" (os error").map_or_else(|| text.clone(), |(text, _)| text.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::{File, read_dir};
    use std::io::{self, Read, Seek, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;

    use super::{
        FileKind, Mode, OFlags, error_text, file_kind, named_and_unlinked, open_again, open_to_append, read_at,
        read_exact_at, regular_file, temporary_file, write, write_all_at,
    };
    use crate::socket::Io;

    /// A new folder, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tailrace-file-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_temporary_file_has_no_name() {
        let folder = Folder::new("temporary");
        for make in [temporary_file, named_and_unlinked] {
            let mut file = make(&folder.0).unwrap();
            assert_eq!(read_dir(&folder.0).unwrap().count(), 0);
            file.write_all(b"kept").unwrap();
            file.rewind().unwrap();
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, "kept");
            assert!(make(&folder.0.join("nothing")).is_err());
        }
    }

    #[test]
    fn kinds_are_told_apart() {
        let kind = |descriptor: &dyn AsFd| file_kind(descriptor.as_fd()).unwrap();
        let (read, written) = io::pipe().unwrap();
        assert_eq!((kind(&read).0, kind(&written).0), (FileKind::Stream, FileKind::Stream));
        assert_eq!(kind(&UnixStream::pair().unwrap().0).0, FileKind::Socket);
        let null = File::open("/dev/null").unwrap();
        assert_eq!(kind(&null).0, FileKind::File);
        assert_eq!(kind(&null).1, kind(&File::open("/dev/null").unwrap()).1);
        assert_ne!(kind(&read).1, kind(&null).1);
    }

    #[test]
    fn reads_and_writes_at_an_offset_leave_the_position_alone() {
        let mut file = temporary_file(&std::env::temp_dir()).unwrap();
        write_all_at(&file, b"0123456789", 0).unwrap();
        write_all_at(&file, b"xy", 4).unwrap();
        assert_eq!(file.stream_position().unwrap(), 0);
        let mut buffer = [0; 4];
        read_exact_at(&file, &mut buffer, 3).unwrap();
        assert_eq!(&buffer, b"3xy6");
        assert!(read_exact_at(&file, &mut buffer, 7).is_err());
        assert_eq!(read_at(file.as_fd(), &mut buffer, 7).unwrap(), 3);
        assert_eq!(&buffer[..3], b"789");
        assert_eq!(read_at(file.as_fd(), &mut buffer, 10).unwrap(), 0);
        assert_eq!(file.stream_position().unwrap(), 0);
    }

    #[test]
    fn a_regular_file_is_known_by_a_descriptor_that_can_read_it() {
        let folder = Folder::new("regular");
        let path = folder.0.join("file");
        std::fs::write(&path, b"twelve bytes").unwrap();
        let read = File::open(&path).unwrap();
        assert_eq!(regular_file(read.as_fd()).unwrap().unwrap().length, 12);
        let append = open_to_append(&path).unwrap();
        assert_eq!(regular_file(append.as_fd()).unwrap(), None);
        let path_only = rustix::fs::open(&path, OFlags::PATH, Mode::empty()).unwrap();
        assert_eq!(regular_file(path_only.as_fd()).unwrap(), None);
        let (pipe, _) = io::pipe().unwrap();
        assert_eq!(regular_file(pipe.as_fd()).unwrap(), None);
        let empty = File::open("/proc/self/status").unwrap();
        assert_eq!(regular_file(empty.as_fd()).unwrap().unwrap().length, 0);
    }

    #[test]
    fn a_pipe_that_was_opened_again_does_not_block_and_the_first_one_does() {
        let (read, first) = io::pipe().unwrap();
        let again = open_again(first.as_fd()).unwrap();
        while let Io::Moved(_) = write(again.as_fd(), &[0; 4096]).unwrap() {}
        assert_eq!(write(again.as_fd(), b"x").unwrap(), Io::WouldBlock);
        assert!(!rustix::fs::fcntl_getfl(&first).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
        drop(read);
        assert!(write(again.as_fd(), b"x").is_err());
    }

    #[test]
    fn lines_are_appended_to_what_is_there() {
        let folder = Folder::new("append");
        let path = folder.0.join("log");
        for line in [b"one\n", b"two\n"] {
            let file = open_to_append(&path).unwrap();
            assert_eq!(write(file.as_fd(), line).unwrap(), Io::Moved(4));
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"one\ntwo\n");
    }

    #[test]
    fn an_error_is_told_without_its_number() {
        assert_eq!(error_text(&io::Error::from_raw_os_error(28)), "No space left on device");
        assert_eq!(error_text(&io::Error::other("own words")), "own words");
    }
}
