//! A connection without encryption: a TCP or UNIX stream socket.

use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tailrace_observe::probes;
use tailrace_os::process;
use tailrace_os::process::Unshared;
use tailrace_os::socket;
use tailrace_os::socket::Io;
use tailrace_os::{low_water, poll};

use crate::transport::Transport;

/// A connected stream socket, non-blocking. See [`Transport`] for the threads.
pub(crate) struct Plain {
    key: u64,
    socket: Unshared,
    /// See [`Transport::set_low_water`].
    low_water: AtomicU32,
    /// The application may have a duplicate of the socket.
    is_given_away: AtomicBool,
    /// Another process has the connection.
    is_left_open: AtomicBool,
}

impl Plain {
    /// Takes over the connected, non-blocking socket of the connection with this key.
    pub(crate) fn new(socket: OwnedFd, key: u64) -> Self {
        Self {
            key,
            socket: Unshared::new(socket),
            low_water: AtomicU32::new(1),
            is_given_away: AtomicBool::new(false),
            is_left_open: AtomicBool::new(false),
        }
    }

    fn wrote(&self, moved: Io) -> Io {
        let bytes = if let Io::Moved(bytes) = moved { bytes } else { 0 };
        probes::flush(self.key, bytes);
        moved
    }

    fn with(&self, work: impl FnOnce(BorrowedFd<'_>)) {
        if let Some(socket) = self.socket.here() {
            work(socket);
        }
    }
}

impl Transport for Plain {
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.here()
    }

    fn set_low_water(&self, bytes: u32) {
        if self.low_water.load(Ordering::Relaxed) != bytes {
            self.low_water.store(bytes, Ordering::Relaxed);
            self.with(|descriptor| low_water::set(descriptor, bytes));
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> Io {
        self.socket.here().map_or(Io::Broken, |descriptor| socket::receive(descriptor, buffer))
    }

    fn transmit(&self, slices: &[IoSlice<'_>], more: bool) -> Io {
        let write = |descriptor| self.wrote(socket::transmit(descriptor, slices, more));
        self.socket.here().map_or(Io::Broken, write)
    }

    fn transmit_file(&self, file: BorrowedFd<'_>, offset: u64, count: usize) -> Io {
        let write = |descriptor| self.wrote(socket::transmit_file(descriptor, file, offset, count));
        self.socket.here().map_or(Io::Broken, write)
    }

    fn wait_readable(&self, time: Duration) -> bool {
        // In a child the next read fails.
        self.socket.here().is_none_or(|socket| poll::wait_readable(socket, time))
    }

    fn wait_writable(&self, time: Duration) {
        self.with(|socket| poll::wait_writable(socket, time));
    }

    fn end_sending(&self) {
        self.with(socket::end_sending);
    }

    fn shut_down(&self) {
        self.with(socket::shut_down);
    }

    fn end_receiving(&self) {
        self.with(socket::end_receiving);
    }

    fn duplicate(&self) -> Option<io::Result<OwnedFd>> {
        Some(self.socket.here()?.try_clone_to_owned())
    }

    fn give_away(&self, write_timeout: Duration) {
        self.is_given_away.store(true, Ordering::Relaxed);
        self.with(|descriptor| socket::watch_peer(descriptor, write_timeout));
    }

    fn leave_open(&self) {
        self.is_left_open.store(true, Ordering::Relaxed);
    }

    fn abort(&self) {
        self.with(socket::abort);
    }

    fn reset_on_close(&self) {
        if process::has_forked() {
            self.abort();
        } else {
            self.with(socket::reset_on_close);
        }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        if self.is_left_open.load(Ordering::Relaxed) {
            return;
        }
        if self.is_given_away.load(Ordering::Relaxed) {
            // The application may keep its duplicate, and read from it.
            self.shut_down();
        } else if process::has_forked() {
            // A child that the application forked may hold the socket as well, and the client would wait for its end.
            self.end_sending();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{ErrorKind, IoSlice, Read, Seek, SeekFrom, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use tailrace_os::socket::Io;

    use super::Plain;
    use crate::transport::Transport;

    const LONG: Duration = Duration::from_secs(20);

    fn unix() -> (Box<dyn Transport>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_read_timeout(Some(LONG)).unwrap();
        (Box::new(Plain::new(ours.into(), 0)), theirs)
    }

    fn tcp() -> (Box<dyn Transport>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_read_timeout(Some(LONG)).unwrap();
        (Box::new(Plain::new(ours.into(), 0)), theirs)
    }

    #[test]
    fn bytes_move_both_ways_and_nothing_blocks() {
        let (transport, mut client) = unix();
        let mut buffer = [0; 8];
        assert_eq!(transport.receive(&mut buffer), Io::WouldBlock);
        assert!(!transport.wait_readable(Duration::ZERO));
        client.write_all(b"hello").unwrap();
        assert!(transport.wait_readable(LONG));
        assert_eq!(transport.receive(&mut buffer), Io::Moved(5));
        assert_eq!(&buffer[..5], b"hello");

        assert_eq!(transport.transmit(&[IoSlice::new(b"one")], true), Io::Moved(3));
        assert_eq!(transport.transmit(&[IoSlice::new(b" two"), IoSlice::new(b" three")], false), Io::Moved(10));
        let mut read = [0; 13];
        client.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"one two three");

        let block = [b'x'; 64 * 1024];
        while let Io::Moved(_) = transport.transmit(&[IoSlice::new(&block)], false) {}
        assert_eq!(transport.transmit(&[IoSlice::new(&block)], false), Io::WouldBlock);
        transport.wait_writable(Duration::ZERO);
    }

    #[test]
    fn a_file_is_sent_from_an_offset_until_its_end() {
        let (transport, mut client) = unix();
        let folder = std::env::temp_dir();
        let mut file = tailrace_os::file::temporary_file(&folder).unwrap();
        file.write_all(b"0123456789").unwrap();
        file.seek(SeekFrom::Start(1)).unwrap();
        assert_eq!(transport.transmit_file(file.as_fd(), 4, 100), Io::Moved(6));
        assert_eq!(transport.transmit_file(file.as_fd(), 10, 100), Io::End);
        let mut read = [0; 6];
        client.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"456789");
        // Its own position is left alone.
        assert_eq!(file.stream_position().unwrap(), 1);
    }

    #[test]
    fn the_end_of_one_direction_leaves_the_other_one() {
        let (transport, mut client) = tcp();
        transport.end_sending();
        assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
        client.write_all(b"more").unwrap();
        assert!(transport.wait_readable(LONG));
        assert_eq!(transport.receive(&mut [0; 8]), Io::Moved(4));
        assert_eq!(transport.transmit(&[IoSlice::new(b"late")], false), Io::Broken);
    }

    #[test]
    fn a_shutdown_ends_both_directions() {
        let (transport, mut client) = tcp();
        transport.shut_down();
        assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
        assert_eq!(transport.receive(&mut [0; 8]), Io::End);
    }

    #[test]
    fn the_client_of_a_broken_connection_reads_a_reset() {
        let (transport, mut client) = tcp();
        transport.abort();
        assert_eq!(client.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);

        let (transport, mut client) = tcp();
        transport.reset_on_close();
        assert_eq!(transport.transmit(&[IoSlice::new(b"all")], false), Io::Moved(3));
        let mut read = [0; 3];
        client.read_exact(&mut read).unwrap();
        drop(transport);
        assert_eq!(client.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}
