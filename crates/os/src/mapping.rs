//! Memory outside the allocator: it is returned to the system as soon as it is dropped.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::{io, ptr, slice};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Zeros, until its owner writes to it. Children that the application forks get a copy.
pub struct Mapping {
    address: *mut c_void,
    length: usize,
}

// SAFETY: the mapping is owned by this value alone, like the bytes of a `Box<[u8]>`.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `length` bytes, at least one, all of which the system provides now: one call costs less than a page fault for
    /// each 4 KiB.
    ///
    /// # Errors
    /// No memory, or `length` is 0.
    pub fn new(length: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let address =
            unsafe { mmap_anonymous(ptr::null_mut(), length, protection, MapFlags::PRIVATE | MapFlags::POPULATE)? };
        Ok(Self { address, length })
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is as long as said, initialized (zeros at first), and unmapped by `drop` alone.
        unsafe { slice::from_raw_parts(self.address.cast::<u8>(), self.length) }
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the value is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.address.cast::<u8>(), self.length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this address and length, and nothing refers to it any more.
        let _ = unsafe { munmap(self.address, self.length) };
    }
}

/// Size of the system's pages, in bytes: 4 KiB, or 16 or 64 KiB with some kernels for ARM.
pub fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// Memory that optional allocations leave free (bytes), because most other code fails without memory.
pub const SPARE: usize = 16 << 20;

/// Address space of the arena that glibc's allocator sets up for a thread. For a thread without an arena, glibc maps each
/// block separately, which `ulimit -v` soon forbids.
const ARENA: usize = 64 << 20;

/// Memory that an additional thread must leave free (bytes), for large objects of the application: fewer threads serve
/// more slowly, but an application without memory serves nothing.
const SPARE_OF_THREADS: usize = 64 << 20;

/// True if there is memory for an additional thread with a stack of this size.
pub fn is_thread_possible(stack: usize) -> bool {
    is_possible(stack + ARENA + SPARE_OF_THREADS)
}

/// True if the process may use this number of additional bytes of address space (`ulimit -v`). None of them is used.
pub fn is_possible(length: usize) -> bool {
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
    let probe = unsafe { mmap_anonymous(ptr::null_mut(), length, ProtFlags::empty(), MapFlags::PRIVATE) };
    // SAFETY: the mapping was made with this address and length, and nothing refers to it.
    probe.is_ok_and(|address| unsafe { munmap(address, length) }.is_ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Mapping, is_possible, page_size};

    #[test]
    fn pages_are_powers_of_two() {
        assert!(page_size() >= 4_096 && page_size().is_power_of_two());
    }

    #[test]
    fn a_mapping_is_zero_and_can_be_written() {
        let mut first = Mapping::new(100_000).unwrap();
        let second = Mapping::new(100_000).unwrap();
        assert_eq!(first.len(), 100_000);
        assert!(first.iter().all(|byte| *byte == 0));
        first.fill(7);
        assert!(first.iter().all(|byte| *byte == 7) && second.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn more_than_there_can_be_is_refused() {
        assert!(Mapping::new(usize::MAX / 2).is_err());
        assert!(Mapping::new(0).is_err());
        assert!(!is_possible(usize::MAX / 2));
        assert!(is_possible(100_000));
    }
}
