//! Bytes of files that are kept in memory and sent by `sendfile`, which copies nothing: all in one file without a name
//! (memfd_create(2)), each at an offset of its own, which is never used again.
//!
//! The pages of a dropped extent are given back at once. Those that the network still sends stay as they are: the
//! system gives other pages to what is written later.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tailrace_os::file::{free, memory_file, write_all_at};
use tailrace_os::mapping::page_size;
use tailrace_os::process;
use tailrace_os::process::Process;
use tailrace_server::FileSource;

/// A file that children which the application forks do not have: it is closed there, inside of fork(2), so that they
/// neither keep its memory nor free what the server uses.
pub(super) struct OwnFile {
    /// Some until it is dropped.
    file: Option<File>,
    process: Process,
}

impl OwnFile {
    pub(super) fn new(file: File) -> Self {
        process::unshare(file.as_fd());
        Self { file: Some(file), process: Process::here() }
    }

    fn file(&self) -> &File {
        match &self.file {
            Some(file) => file,
            None => unreachable!("the file is taken out by drop alone"),
        }
    }

    /// Moves the file out, before this is dropped.
    pub(super) fn take(&mut self) -> Self {
        Self { file: self.file.take(), process: self.process }
    }

    /// False in a forked child, where its number may be that of another file.
    fn is_here(&self) -> bool {
        self.process.is_here()
    }
}

impl AsFd for OwnFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file().as_fd()
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        if self.process.is_here() {
            process::share(file.as_fd());
        } else {
            let _ = file.into_raw_fd();
        }
    }
}

/// Any thread.
pub(super) struct Slab {
    file: OwnFile,
    /// Extents begin and end at borders of pages of this size, so that no two share one.
    page: u64,
    /// Where the next extent begins.
    next: AtomicU64,
}

impl Slab {
    /// An empty one.
    ///
    /// # Errors
    /// No descriptors left, or a filter of system calls forbids it.
    pub(super) fn new() -> io::Result<Arc<Self>> {
        Self::with_pages(page_size())
    }

    fn with_pages(page: u64) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { file: OwnFile::new(memory_file(c"tailrace-files")?), page, next: AtomicU64::new(0) }))
    }

    /// Keeps these bytes.
    ///
    /// # Errors
    /// The system has no memory.
    pub(super) fn keep(self: &Arc<Self>, bytes: &[u8]) -> io::Result<Extent> {
        let room = (bytes.len() as u64).next_multiple_of(self.page);
        let extent = Extent { slab: self.clone(), offset: self.next.fetch_add(room, Ordering::Relaxed), room };
        write_all_at(self.file.file(), bytes, extent.offset)?;
        Ok(extent)
    }
}

/// Bytes in a [`Slab`].
pub(super) struct Extent {
    slab: Arc<Slab>,
    offset: u64,
    room: u64,
}

impl Extent {
    /// Where it begins in the file.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of its pages.
    pub(super) fn room(&self) -> u64 {
        self.room
    }
}

impl FileSource for Extent {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.slab.file.as_fd()
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        if self.slab.file.is_here() {
            free(self.slab.file.as_fd(), self.offset, self.room);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::fd::AsFd;

    use tailrace_os::file::{read_at, regular_file};
    use tailrace_os::mapping::page_size;

    use super::{FileSource, Slab};

    #[test]
    fn extents_begin_with_a_page_whatever_its_size() {
        for page in [4 << 10, 16 << 10, 64 << 10] {
            let slab = Slab::with_pages(page).unwrap();
            let kept = [10, 5_000, 70_000, 0, 1].map(|size| slab.keep(&vec![1; size]).unwrap());
            assert!(kept.iter().all(|extent| extent.offset().is_multiple_of(page)));
            for pair in kept.windows(2) {
                assert_eq!(pair[0].offset() + pair[0].room(), pair[1].offset());
            }
        }
    }

    #[test]
    fn extents_do_not_touch_and_their_pages_are_given_back() {
        let slab = Slab::new().unwrap();
        let size = usize::try_from(page_size()).unwrap() + 1_000;
        let first = slab.keep(&vec![1; size]).unwrap();
        let second = slab.keep(&[2; 10]).unwrap();
        assert_eq!((first.offset(), second.offset()), (0, 2 * page_size()));
        let read = |offset| {
            let mut bytes = [9; 10];
            let count = read_at(second.descriptor(), &mut bytes, offset).unwrap();
            bytes[..count].to_vec()
        };
        let (last, after) = (size as u64 - 10, 2 * page_size());
        assert_eq!((read(last), read(after)), (vec![1; 10], vec![2; 10]));
        drop(first);
        assert_eq!((read(last), read(after)), (vec![0; 10], vec![2; 10]));
        let has_blocks = || regular_file(slab.file.as_fd()).unwrap().unwrap().has_blocks;
        assert!(has_blocks());
        drop(second);
        assert!(!has_blocks(), "nothing of it uses memory");
    }
}
