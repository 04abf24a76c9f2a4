//! A descriptor by which any thread wakes the thread that waits for it (eventfd(2)).

use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::{EventfdFlags, eventfd};

use crate::process::Unshared;

/// A descriptor that is readable from [`Eventfd::wake`] until [`Eventfd::clear`]. Any thread calls both; in a child
/// that the application forks they do nothing.
pub struct Eventfd(Unshared);

impl Eventfd {
    /// A descriptor that is not readable.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Unshared::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Wakes the thread that waits for it, now or at its next wait.
    pub fn wake(&self) {
        if let Some(eventfd) = self.0.here() {
            let _ = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
        }
    }

    /// Makes it unreadable, however often it was woken.
    pub fn clear(&self) {
        let mut count = [0_u8; 8];
        if let Some(eventfd) = self.0.here() {
            let _ = rustix::io::read(eventfd, &mut count);
        }
    }

    /// The descriptor to wait for; `None` in a child.
    pub fn here(&self) -> Option<BorrowedFd<'_>> {
        self.0.here()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::Eventfd;
    use crate::poll::wait_readable;

    #[test]
    fn it_is_readable_from_a_wake_until_it_is_cleared() {
        let eventfd = Eventfd::new().unwrap();
        let is_readable = || wait_readable(eventfd.here().unwrap(), Duration::ZERO);
        assert!(!is_readable());
        eventfd.wake();
        eventfd.wake();
        assert!(is_readable());
        eventfd.clear();
        assert!(!is_readable());
        // There is nothing to clear, and it does not block.
        eventfd.clear();
    }
}
