//! Descriptors that another part of the process knows by their number, as Python does.
//!
//! Any thread.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Duplicates a descriptor. Its owner must not close it during the call.
///
/// # Errors
/// It is not open, or the process has no descriptors left.
pub fn duplicate(descriptor: RawFd) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(rustix::io::Errno::BADF.into());
    }
    // SAFETY: the number is used for this one call. If it is not an open descriptor, the call fails. No memory of this
    // process is read or written, so the call is sound even if its owner meanwhile closes the descriptor and the number
    // is reused.
    unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned()
}

/// True when the descriptor is in the last eighth of the numbers that the process may use: those are for connections
/// and the application.
pub fn is_among_the_last(descriptor: BorrowedFd<'_>) -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.is_some_and(|limit| descriptor.as_raw_fd() as u64 >= limit - limit / 8)
}

/// True when the process may use only a few higher numbers.
pub fn is_near_the_limit(descriptor: BorrowedFd<'_>) -> bool {
    const FEW: u64 = 32;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.is_some_and(|limit| descriptor.as_raw_fd() as u64 + FEW >= limit)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{duplicate, is_among_the_last};
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, AsRawFd};

    #[test]
    fn an_eighth_of_the_descriptors_are_the_last() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(!is_among_the_last(file.as_fd()));
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap();
        let from = i32::try_from(limit - limit / 8).unwrap();
        let last = rustix::io::fcntl_dupfd_cloexec(&file, from).unwrap();
        assert!(is_among_the_last(last.as_fd()));
    }

    #[test]
    fn a_duplicate_stays_open_when_the_descriptor_is_closed() {
        let (mut read, write) = std::io::pipe().unwrap();
        let copy = duplicate(write.as_raw_fd()).unwrap();
        assert_ne!(copy.as_raw_fd(), write.as_raw_fd());
        drop(write);
        std::fs::File::from(copy).write_all(b"x").unwrap();
        let mut bytes = Vec::new();
        read.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"x");
    }

    #[test]
    fn a_number_that_is_no_open_descriptor_is_an_error() {
        assert!(duplicate(-1).is_err());
        assert!(duplicate(1_000_000).is_err());
    }
}
