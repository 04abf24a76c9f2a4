//! A socket of a log daemon: each entry is one datagram, to a UNIX socket or by UDP. No call except [`resolve`] blocks.
//!
//! Any thread. Processes that share the socket after fork(2) may all send: a datagram is never mixed with another one.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::socket::{Io, send_now};

/// Who receives the entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// The UNIX socket with this path.
    Path(PathBuf),
    /// By UDP.
    Udp(SocketAddr),
}

enum Socket {
    Unix(UnixDatagram),
    Udp(UdpSocket),
}

/// The socket of a log daemon.
pub struct LogSocket {
    socket: Socket,
    receiver: Receiver,
}

impl LogSocket {
    /// A socket whose entries go to this receiver.
    ///
    /// # Errors
    /// Those of connect(2): there is no such socket, or no process that reads from it.
    pub fn connect(receiver: Receiver) -> io::Result<Self> {
        let socket = match &receiver {
            Receiver::Path(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.connect(path)?;
                Socket::Unix(socket)
            }
            Receiver::Udp(address) => {
                let any: SocketAddr = match address {
                    SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                    SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
                };
                let socket = UdpSocket::bind(any)?;
                socket.connect(address)?;
                Socket::Udp(socket)
            }
        };
        Ok(Self { socket, receiver })
    }

    /// Sends an entry. `Io::WouldBlock`: the queue of the receiver is full. If the receiver has gone, the entry goes to
    /// its successor.
    ///
    /// # Errors
    /// There is no receiver, or the entry is longer than a datagram may be.
    pub fn send(&self, entry: &[u8]) -> io::Result<Io> {
        match send_now(self.as_fd(), entry) {
            Err(fault) if has_gone(&fault) => {
                self.connect_again()?;
                send_now(self.as_fd(), entry)
            }
            sent => sent,
        }
    }

    fn connect_again(&self) -> io::Result<()> {
        match (&self.socket, &self.receiver) {
            (Socket::Unix(socket), Receiver::Path(path)) => socket.connect(path),
            // The error was that of an earlier datagram (ICMP), and has been read.
            _ => Ok(()),
        }
    }
}

impl AsFd for LogSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Unix(socket) => socket.as_fd(),
            Socket::Udp(socket) => socket.as_fd(),
        }
    }
}

fn has_gone(fault: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(fault),
        Some(Errno::CONNREFUSED | Errno::CONNRESET | Errno::NOTCONN | Errno::DESTADDRREQ | Errno::PIPE)
    )
}

/// True when an entry was longer than a datagram may be.
pub fn is_too_long(fault: &io::Error) -> bool {
    Errno::from_io_error(fault) == Some(Errno::MSGSIZE)
}

/// The first address of a host. Blocks while the name is looked up.
///
/// # Errors
/// The name is not known.
pub fn resolve(host: &str, port: u16) -> io::Result<SocketAddr> {
    let fault = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    (host, port).to_socket_addrs()?.next().ok_or_else(fault)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::{create_dir, remove_dir_all, remove_file};
    use std::net::UdpSocket;
    use std::os::unix::net::UnixDatagram;

    use super::{LogSocket, Receiver, resolve};
    use crate::socket::Io;

    fn received(socket: &UnixDatagram) -> Vec<u8> {
        let mut buffer = [0; 64];
        let count = socket.recv(&mut buffer).unwrap();
        buffer[..count].to_vec()
    }

    #[test]
    fn a_receiver_that_was_started_again_gets_the_next_entry() {
        let folder = std::env::temp_dir().join(format!("tailrace-log-socket-{}", std::process::id()));
        create_dir(&folder).unwrap();
        let path = folder.join("log");
        assert!(LogSocket::connect(Receiver::Path(path.clone())).is_err());
        let first = UnixDatagram::bind(&path).unwrap();
        let socket = LogSocket::connect(Receiver::Path(path.clone())).unwrap();
        assert_eq!(socket.send(b"one").unwrap(), Io::Moved(3));
        assert_eq!(received(&first), b"one");
        drop(first);
        assert!(socket.send(b"lost").is_err());
        remove_file(&path).unwrap();
        assert!(socket.send(b"lost").is_err());
        let second = UnixDatagram::bind(&path).unwrap();
        assert_eq!(socket.send(b"two").unwrap(), Io::Moved(3));
        assert_eq!(received(&second), b"two");
        // There is no wait for a receiver that reads nothing.
        while let Io::Moved(_) = socket.send(b"more").unwrap() {}
        remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn an_entry_by_udp_that_nobody_received_does_not_stop_the_next() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = receiver.local_addr().unwrap();
        assert_eq!(resolve("127.0.0.1", address.port()).unwrap(), address);
        let socket = LogSocket::connect(Receiver::Udp(address)).unwrap();
        drop(receiver);
        for _ in 0..3 {
            assert_eq!(socket.send(b"lost").unwrap(), Io::Moved(4));
        }
        let receiver = UdpSocket::bind(address).unwrap();
        assert_eq!(socket.send(b"one").unwrap(), Io::Moved(3));
        let mut buffer = [0; 8];
        assert_eq!(receiver.recv(&mut buffer).unwrap(), 3);
    }
}
