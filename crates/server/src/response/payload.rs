//! Bytes of a response that are kept by reference: their owner, and how they are released.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use tailrace_os::file::read_ahead;

use crate::request::share::Share;
use crate::response::segments;

/// An owner of bytes that are needed after the call that sent them.
pub trait Payload: Send + Sync {
    /// The bytes; the same at each call.
    fn bytes(&self) -> &[u8];
}

/// A file of which parts are sent.
pub trait FileSource: Send + Sync {
    /// The file.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Whether a part of it can be sent now. Called before each write; must not block.
    fn readiness(&self, offset: u64, length: u64) -> Readiness {
        let _ = (offset, length);
        Readiness::Ready
    }

    /// The part of the disk threads that may read it. `None`: all.
    fn share(&self) -> Option<&Arc<Share>> {
        None
    }

    /// Reads a part of it from the disk, and then calls `then`. Called by a disk thread. Another one that reads the
    /// same file may be left to do it.
    fn read(&self, offset: u64, length: u64, then: Then) {
        read_ahead(self.descriptor(), offset, length);
        then();
    }
}

/// What follows once a part of a file has been read.
pub type Then = Box<dyn FnOnce() + Send>;

/// Whether a part of a file can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Yes.
    Ready,
    /// It has to be read from the disk first, which takes time.
    Unread,
    /// The file has been changed since the response began: what was sent and what would follow do not belong together.
    Changed,
}

/// A part of a file that has to be read from the disk before it is sent.
pub(crate) struct UnreadPart {
    pub(crate) file: Arc<dyn FileSource>,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// The application's own file.
impl FileSource for OwnedFd {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

/// No bytes at all.
impl Payload for () {
    fn bytes(&self) -> &[u8] {
        &[]
    }
}

/// Bytes that several responses may send.
impl Payload for Arc<Vec<u8>> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// Shared by several owners, such as a queue and the thread that writes its bytes to a file.
impl Payload for Arc<dyn Payload> {
    fn bytes(&self) -> &[u8] {
        (**self).bytes()
    }
}

/// A buffer of copied bytes that is now shared. A segment is given back when it is dropped.
pub(crate) struct Shared(Vec<u8>);

impl Shared {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl Payload for Shared {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        segments::give(std::mem::take(&mut self.0));
    }
}
