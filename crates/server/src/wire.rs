//! One socket: read, write an outbox, close well. Says nothing of what the bytes mean.
//!
//! Any thread that holds the connection may read; whoever holds the outbox's lock may write.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::sys::{self, Io};

/// A connected stream socket, non-blocking. Closed when dropped.
pub(crate) struct Wire {
    socket: OwnedFd,
}

impl Wire {
    /// Takes over a connected, non-blocking socket.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Reads into `buffer`.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Io {
        sys::receive(self.socket.as_fd(), buffer)
    }

    /// Writes slices in order. `more`: further bytes follow at once.
    pub(crate) fn transmit(&self, slices: &[IoSlice<'_>], more: bool) -> Io {
        sys::transmit(self.socket.as_fd(), slices, more)
    }

    /// Sends part of a file.
    pub(crate) fn transmit_file(&self, file: BorrowedFd<'_>, offset: u64, count: usize) -> Io {
        sys::transmit_file(self.socket.as_fd(), file, offset, count)
    }

    /// Blocks until the socket takes bytes or is broken, for at most `time`.
    pub(crate) fn wait_writable(&self, time: Duration) {
        sys::wait_writable(self.socket.as_fd(), time);
    }

    /// Blocks until there is something to read, be it the end, for at most `time`. False: there is not.
    pub(crate) fn wait_readable(&self, time: Duration) -> bool {
        sys::wait_readable(self.socket.as_fd(), time)
    }

    /// Ends our direction; the client reads end-of-file after the last byte.
    pub(crate) fn end_sending(&self) {
        sys::end_sending(self.socket.as_fd());
    }

    /// Ends both directions at once.
    pub(crate) fn cut(&self) {
        sys::cut(self.socket.as_fd());
    }

    /// Breaks the connection at once, visibly.
    pub(crate) fn abort(&self) {
        sys::abort(self.socket.as_fd());
    }

    /// The close will be a reset, so that a body which ends with the connection is seen to be broken.
    pub(crate) fn reset_on_close(&self) {
        if sys::has_forked() {
            self.abort();
        } else {
            sys::reset_on_close(self.socket.as_fd());
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if sys::has_forked() {
            // A child of the application's may hold the socket as well, and the client would wait for it.
            self.end_sending();
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
