//! Waiting for one descriptor (poll(2)). Blocks the calling thread; a signal ends a wait early.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Blocks until bytes or the end of the stream can be read, for at most `time`. True: they can.
pub fn wait_readable(socket: BorrowedFd<'_>, time: Duration) -> bool {
    wait(socket, PollFlags::IN, time)
}

/// Blocks until the descriptor accepts bytes or is broken, for at most `time`.
pub fn wait_writable(socket: BorrowedFd<'_>, time: Duration) {
    // The next write shows the outcome.
    wait(socket, PollFlags::OUT, time);
}

/// True when a descriptor accepts bytes now.
pub fn is_writable(descriptor: BorrowedFd<'_>) -> bool {
    wait(descriptor, PollFlags::OUT, Duration::ZERO)
}

/// True when the peer of a stream socket has ended its sending direction, or the connection is broken.
pub fn has_hung_up(socket: BorrowedFd<'_>) -> bool {
    // POLLHUP and POLLERR are reported without being asked for.
    wait(socket, PollFlags::RDHUP, Duration::ZERO)
}

/// Blocks until the last descriptor of a pipe's other end is closed.
pub fn wait_for_end(pipe: BorrowedFd<'_>) {
    // POLLHUP is reported without being asked for.
    while !matches!(poll(&mut [PollFd::from_borrowed_fd(pipe, PollFlags::empty())], None), Ok(1..)) {}
}

fn wait(descriptor: BorrowedFd<'_>, wanted: PollFlags, time: Duration) -> bool {
    poll(&mut [PollFd::from_borrowed_fd(descriptor, wanted)], Some(&timespec(time))).is_ok_and(|ready| ready > 0)
}

/// A duration as the kernel takes it.
pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: i64::from(time.subsec_nanos()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    use super::{has_hung_up, is_writable, wait_for_end, wait_readable, wait_writable};

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_wait_ends_with_bytes_with_the_end_and_with_its_time() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        assert!(!wait_readable(ours.as_fd(), Duration::from_millis(1)));
        theirs.write_all(b"x").unwrap();
        assert!(wait_readable(ours.as_fd(), LONG));
        assert!(is_writable(ours.as_fd()));
        assert!(!has_hung_up(ours.as_fd()));
        drop(theirs);
        assert!(has_hung_up(ours.as_fd()));
        assert!(wait_readable(ours.as_fd(), LONG));
        wait_writable(ours.as_fd(), LONG);
    }

    #[test]
    fn a_full_socket_is_not_writable_until_it_is_read() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        while ours.write(&[0; 64 * 1024]).is_ok() {}
        assert!(!is_writable(ours.as_fd()));
        let reader = thread::spawn(move || std::io::copy(&mut &theirs, &mut std::io::sink()));
        wait_writable(ours.as_fd(), LONG);
        assert!(is_writable(ours.as_fd()));
        drop(ours);
        reader.join().unwrap().unwrap();
    }

    #[test]
    fn the_end_of_a_pipe_is_waited_for_though_nothing_is_read() {
        let (read, write) = std::io::pipe().unwrap();
        rustix::io::write(&write, b"not the end").unwrap();
        let waiter = thread::spawn(move || wait_for_end(read.as_fd()));
        assert!(!waiter.is_finished());
        drop(write);
        waiter.join().unwrap();
    }
}
