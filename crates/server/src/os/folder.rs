//! The names in a folder. Blocks on the disk.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{Dir, Mode, OFlags, openat};

/// The names in a folder, in no order, without `.` and `..`.
pub(crate) struct Names {
    pub(crate) names: Vec<Vec<u8>>,
    /// There are more.
    pub(crate) is_cut: bool,
}

/// Up to this number of names in a folder. folder: may have been opened only to find files in it (`O_PATH`).
///
/// # Errors
/// The process may not list it, or the disk fails.
pub(crate) fn names(folder: BorrowedFd<'_>, most: usize) -> io::Result<Names> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut read = Dir::new(openat(folder, c".", flags, Mode::empty())?)?;
    let mut names = Vec::new();
    while let Some(entry) = read.read() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        if names.len() == most {
            return Ok(Names { names, is_cut: true });
        }
        names.push(name.to_vec());
    }
    Ok(Names { names, is_cut: false })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::{create_dir, remove_dir_all, write};
    use std::os::fd::AsFd;

    use rustix::fs::{Mode, OFlags, open};

    use super::names;

    #[test]
    fn all_names_are_read_up_to_a_number() {
        let folder = std::env::temp_dir().join(format!("tailrace-names-{}", std::process::id()));
        create_dir(&folder).unwrap();
        for name in ["a", ".b", "c d"] {
            write(folder.join(name), "").unwrap();
        }
        let descriptor = open(&folder, OFlags::PATH, Mode::empty()).unwrap();
        let mut read = names(descriptor.as_fd(), 3).unwrap();
        read.names.sort();
        assert_eq!((read.names, read.is_cut), (vec![b".b".to_vec(), b"a".to_vec(), b"c d".to_vec()], false));
        let read = names(descriptor.as_fd(), 2).unwrap();
        assert_eq!((read.names.len(), read.is_cut), (2, true));
        remove_dir_all(&folder).unwrap();
        assert!(names(descriptor.as_fd(), 2).unwrap().names.is_empty());
    }
}
