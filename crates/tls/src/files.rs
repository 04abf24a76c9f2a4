//! The files of certificates and keys, and the time.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use crate::TlsFault;

/// Larger files are refused: a path that names the wrong file must not fill the memory.
const LARGEST: u64 = 1 << 20;

/// What identifies the content of a file, without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

/// `None`: there is no such file now. A link is followed: tools replace links.
pub(crate) fn stamp_of(path: &Path) -> Option<Stamp> {
    let found = fs::metadata(path).ok()?;
    let changed = (found.ctime(), found.ctime_nsec());
    Some(Stamp { device: found.dev(), inode: found.ino(), size: found.size(), changed })
}

/// The content of a file.
///
/// # Errors
/// It cannot be read, or is too large.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, TlsFault> {
    let described = |fault: io::Error| TlsFault(format!("{}: cannot be read: {}", path.display(), reason(&fault)));
    let size = fs::metadata(path).map_err(described)?.len();
    if size > LARGEST {
        return Err(TlsFault(format!("{}: too large for a certificate or a key ({size} bytes)", path.display())));
    }
    fs::read(path).map_err(described)
}

/// What the system says, without the number.
fn reason(fault: &io::Error) -> String {
    let text = fault.to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_lowercase(),
        None => text,
    }
}

/// The time of the clock on the wall, which a certificate is valid by.
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}
