//! The minimum number of bytes whose arrival is an event of a socket (`SO_RCVLOWAT`, socket(7)).
//!
//! Any thread.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};

const SOL_SOCKET: c_int = 1;
const SO_RCVLOWAT: c_int = 18;

/// From now on, fewer bytes are no event. The end of the input and a full receive buffer still are. If this many bytes
/// are already there, that is an event. UNIX sockets report every byte as before.
pub fn set(socket: BorrowedFd<'_>, bytes: u32) {
    unsafe extern "C" {
        fn setsockopt(socket: c_int, level: c_int, name: c_int, value: *const c_void, length: c_uint) -> c_int;
    }
    let value = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    // SAFETY: the call reads an `int` at this address. It fails only for sockets without this option, which report
    // every byte.
    unsafe {
        setsockopt(socket.as_raw_fd(), SOL_SOCKET, SO_RCVLOWAT, (&raw const value).cast(), size_of::<c_int>() as c_uint)
    };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::set;
    use crate::poll::wait_readable;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn fewer_bytes_are_no_event_until_they_are_enough_or_the_last_ones() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        let is_readable = || wait_readable(ours.as_fd(), Duration::ZERO);
        set(ours.as_fd(), 3);
        client.write_all(b"ab").unwrap();
        while rustix::io::ioctl_fionread(&ours).unwrap() < 2 {}
        assert!(!is_readable());
        set(ours.as_fd(), 1);
        assert!(is_readable());
        set(ours.as_fd(), 3);
        assert!(!is_readable());
        client.write_all(b"c").unwrap();
        assert!(wait_readable(ours.as_fd(), LONG));
        set(ours.as_fd(), 4);
        assert!(!is_readable());
        client.shutdown(Shutdown::Write).unwrap();
        assert!(wait_readable(ours.as_fd(), LONG));
    }
}
