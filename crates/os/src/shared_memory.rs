//! Memory that a process shares with those it forks later.
#![allow(unsafe_code)]

use std::sync::atomic::AtomicU64;
use std::{io, ptr, slice};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// `count` words, each 0, in memory that this process shares with those it forks. They are never freed.
///
/// # Errors
/// No memory.
pub fn shared_words(count: usize) -> io::Result<&'static [AtomicU64]> {
    let bytes = count.checked_mul(size_of::<AtomicU64>()).ok_or(Errno::NOMEM)?.max(1);
    // NORESERVE: most of it is never written.
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
    let address = unsafe {
        mmap_anonymous(
            ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::NORESERVE,
        )?
    };
    // SAFETY: the mapping is as long as said, aligned to a page, zero (a valid value of every word), and never
    // unmapped; the processes that share it change it through atomics alone.
    Ok(unsafe { slice::from_raw_parts(address.cast::<AtomicU64>(), count) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::Ordering;

    use super::shared_words;

    #[test]
    fn words_are_zero_and_each_is_its_own() {
        let words = shared_words(1_000).unwrap();
        assert_eq!(words.len(), 1_000);
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        words[999].store(7, Ordering::Relaxed);
        assert_eq!(words[998].load(Ordering::Relaxed), 0);
        assert_eq!(shared_words(1).unwrap()[0].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn more_than_there_can_be_is_refused() {
        assert!(shared_words(usize::MAX).is_err());
        assert!(shared_words(usize::MAX / 8).is_err());
        assert!(shared_words(0).unwrap().is_empty());
    }
}
