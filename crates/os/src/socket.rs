//! Stream sockets: accepting, reading, writing and ending connections. No call blocks.
//!
//! Any thread; the kernel orders what happens at one socket.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, SocketType, acceptfrom_with,
    getsockname, recv, send, sendmsg, shutdown, socketpair, sockopt,
};

/// The result of a read or a write on a non-blocking socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// So many bytes were moved; never zero.
    Moved(usize),
    /// Nothing can be moved now.
    WouldBlock,
    /// Reading: the peer has sent its last byte.
    End,
    /// The connection is broken.
    Broken,
}

fn outcome(result: rustix::io::Result<usize>) -> Io {
    match result {
        Ok(0) => Io::End,
        Ok(moved) => Io::Moved(moved),
        Err(Errno::AGAIN) => Io::WouldBlock,
        Err(_) => Io::Broken,
    }
}

/// Reads what the socket has, at most `buffer.len()` bytes. Does not wait, also where the application has made the socket
/// a blocking one.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Io {
    loop {
        match recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Err(Errno::INTR) => {}
            other => return outcome(other.map(|(_, moved)| moved)),
        }
    }
}

/// Writes the slices in order, as far as the socket takes them. `more`: further bytes follow at once (no short
/// segment is sent yet).
pub fn transmit(socket: BorrowedFd<'_>, slices: &[IoSlice<'_>], more: bool) -> Io {
    let mut flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    if more {
        flags |= SendFlags::MORE;
    }
    loop {
        let sent = match slices {
            [only] => rustix::net::send(socket, only, flags),
            _ => sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), flags),
        };
        match sent {
            Err(Errno::INTR) => {}
            other => return outcome(other),
        }
    }
}

/// Sends `count` bytes of `file` from `offset`, as far as the socket takes them. `Io::End`: the file has no more.
pub fn transmit_file(socket: BorrowedFd<'_>, file: BorrowedFd<'_>, offset: u64, count: usize) -> Io {
    let mut at = offset;
    loop {
        match rustix::fs::sendfile(socket, file, Some(&mut at), count) {
            Err(Errno::INTR) => {}
            other => return outcome(other),
        }
    }
}

/// Writes to a socket that may be a blocking one, without waiting.
///
/// # Errors
/// Those of send(2).
pub(crate) fn send_now(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<Io> {
    loop {
        match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(Io::WouldBlock),
            Ok(moved) => return Ok(Io::Moved(moved)),
            Err(fault) => return Err(fault.into()),
        }
    }
}

/// Why no connection can be accepted.
#[derive(Debug)]
pub enum AcceptFault {
    /// There are no descriptors left, or no memory for one more socket: closing something helps.
    Exhausted(io::Error),
    /// Another error, which may persist.
    Other(io::Error),
}

/// In one call, at most so many connections are skipped that were closed before they were accepted.
const LOST_AT_ONCE: usize = 64;

/// True for an error of accept(2) that belongs to the connection which was to be accepted, not to the listener:
/// accept(2), "Error handling", says to try again.
fn is_of_the_connection(fault: Errno) -> bool {
    matches!(
        fault,
        Errno::INTR
            | Errno::CONNABORTED
            | Errno::PROTO
            | Errno::PERM
            | Errno::NETDOWN
            | Errno::NOPROTOOPT
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::HOSTUNREACH
            | Errno::OPNOTSUPP
            | Errno::NETUNREACH
            | Errno::TIMEDOUT
    )
}

fn accept_fault(fault: Errno) -> AcceptFault {
    match fault {
        Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM => AcceptFault::Exhausted(fault.into()),
        other => AcceptFault::Other(other.into()),
    }
}

/// Accepts one connection, non-blocking. `Ok(None)`: none is waiting, or all that waited were closed by their clients.
///
/// # Errors
/// Those of accept(2) that concern this process or the listener.
pub fn accept(listener: BorrowedFd<'_>) -> Result<Option<(OwnedFd, Option<SocketAddr>)>, AcceptFault> {
    for _ in 0..LOST_AT_ONCE {
        match acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok((socket, peer)) => {
                return Ok(Some((socket, peer.and_then(|any| SocketAddr::try_from(any).ok()).map(canonical))));
            }
            Err(Errno::AGAIN) => return Ok(None),
            Err(fault) if is_of_the_connection(fault) => {}
            Err(fault) => return Err(accept_fault(fault)),
        }
    }
    Ok(None)
}

/// The IPv4 address of a client that a socket of both families shows by an IPv6 one (RFC 4291 section 2.5.5.2).
fn canonical(peer: SocketAddr) -> SocketAddr {
    let SocketAddr::V6(six) = peer else { return peer };
    six.ip().to_ipv4_mapped().map_or(peer, |four| SocketAddr::from((four, six.port())))
}

/// Sends these bytes to a client whose connection is then closed, if the kernel takes them at once. What the client has
/// sent already is read first: closing with unread bytes would reset the connection, and the response with it.
pub fn refuse(socket: impl AsFd, bytes: &[u8]) {
    let _ = recv(&socket, &mut [0_u8; 8192], RecvFlags::DONTWAIT);
    let _ = send(&socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    let _ = shutdown(&socket, Shutdown::Write);
}

/// The address that a socket is bound to. `None`: it is no TCP socket.
///
/// # Errors
/// Those of getsockname(2).
pub fn local_address(socket: BorrowedFd<'_>) -> io::Result<Option<SocketAddr>> {
    Ok(SocketAddr::try_from(getsockname(socket)?).ok())
}

/// Makes calls on a socket return at once where they would wait.
///
/// # Errors
/// Those of ioctl(2).
pub fn set_nonblocking(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(socket, true)?)
}

/// Breaks a connection so that the peer sees it at once: by a reset where the protocol has one.
pub fn abort(socket: BorrowedFd<'_>) {
    if rustix::net::connect_unspec(socket).is_err() {
        shut_down(socket);
    }
}

/// Ends our direction of the connection; the peer reads end-of-file after what was sent.
pub fn end_sending(socket: BorrowedFd<'_>) {
    // An error means that the connection is closed already.
    let _ = shutdown(socket, Shutdown::Write);
}

/// Ends both directions at once: readers and writers of either side see it.
pub fn shut_down(socket: BorrowedFd<'_>) {
    let _ = shutdown(socket, Shutdown::Both);
}

/// Ends the other direction; readers get what the peer has sent until now, and then end-of-file.
pub fn end_receiving(socket: BorrowedFd<'_>) {
    let _ = shutdown(socket, Shutdown::Read);
}

/// Has the system break the connection if the peer has vanished (after two minutes of silence), or if it accepts nothing
/// for `time`. Does nothing for a UNIX socket, whose peer cannot vanish.
pub fn watch_peer(socket: BorrowedFd<'_>, time: Duration) {
    let millis = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    let _ = sockopt::set_socket_keepalive(socket, true)
        .and_then(|()| sockopt::set_tcp_keepidle(socket, Duration::from_secs(60)))
        .and_then(|()| sockopt::set_tcp_keepintvl(socket, Duration::from_secs(15)))
        .and_then(|()| sockopt::set_tcp_keepcnt(socket, 4))
        .and_then(|()| sockopt::set_tcp_user_timeout(socket, millis));
}

/// Two connected stream sockets: the first one blocks, the second one does not.
///
/// # Errors
/// No descriptors left.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (first, second) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&second, true)?;
    Ok((first, second))
}

/// Makes the close of this socket a reset: a peer that reads until end-of-file sees an error instead.
pub fn reset_on_close(socket: BorrowedFd<'_>) {
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{IoSlice, Read};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use rustix::io::Errno;

    use super::{
        AcceptFault, Io, accept, accept_fault, canonical, is_of_the_connection, local_address, receive, send_now,
        set_nonblocking, transmit,
    };

    #[test]
    fn a_tcp_socket_has_a_local_address_and_a_unix_socket_has_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(local_address(listener.as_fd()).unwrap(), Some(listener.local_addr().unwrap()));
        let (unix, _) = UnixStream::pair().unwrap();
        assert_eq!(local_address(unix.as_fd()).unwrap(), None);
    }

    #[test]
    fn one_waiting_connection_after_the_other_is_accepted_and_does_not_block() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_nonblocking(listener.as_fd()).unwrap();
        assert!(matches!(accept(listener.as_fd()), Ok(None)));
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, peer) = accept(listener.as_fd()).unwrap().unwrap();
        assert_eq!(peer, client.local_addr().ok());
        assert_eq!(receive(socket.as_fd(), &mut [0; 8]), Io::WouldBlock);
        assert!(matches!(accept(listener.as_fd()), Ok(None)));
        let pipe = std::io::pipe().unwrap().0;
        assert!(matches!(accept(pipe.as_fd()), Err(AcceptFault::Other(_))));
    }

    #[test]
    fn a_client_of_a_socket_of_both_families_is_shown_by_its_own_address() {
        for (peer, shown) in [
            ("[::ffff:192.0.2.7]:4711", "192.0.2.7:4711"),
            ("[2001:db8::1]:4711", "[2001:db8::1]:4711"),
            ("[fe80::1%3]:4711", "[fe80::1%3]:4711"),
            ("192.0.2.7:4711", "192.0.2.7:4711"),
        ] {
            assert_eq!(canonical(peer.parse().unwrap()).to_string(), shown);
        }
    }

    #[test]
    fn a_blocking_socket_is_written_to_without_waiting() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let block = [b'x'; 64 * 1024];
        let mut sent = 0;
        while let Io::Moved(count) = send_now(ours.as_fd(), &block).unwrap() {
            sent += count;
        }
        assert_eq!(send_now(ours.as_fd(), &block).unwrap(), Io::WouldBlock);
        assert_eq!(transmit(ours.as_fd(), &[IoSlice::new(&block)], false), Io::WouldBlock);
        theirs.read_exact(&mut vec![0; sent]).unwrap();
        drop(theirs);
        // An error and no signal, which would end the process.
        assert!(send_now(ours.as_fd(), &block).is_err());
        assert_eq!(transmit(ours.as_fd(), &[IoSlice::new(&block)], false), Io::Broken);
        assert_eq!(receive(ours.as_fd(), &mut [0; 8]), Io::End);
    }

    #[test]
    fn only_a_want_of_descriptors_or_memory_is_exhaustion() {
        for fault in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            assert!(!is_of_the_connection(fault));
            assert!(matches!(accept_fault(fault), AcceptFault::Exhausted(_)));
        }
        // Of accept(2), "Error handling".
        for fault in [
            Errno::NETDOWN,
            Errno::PROTO,
            Errno::NOPROTOOPT,
            Errno::HOSTDOWN,
            Errno::NONET,
            Errno::HOSTUNREACH,
            Errno::OPNOTSUPP,
            Errno::NETUNREACH,
        ] {
            assert!(is_of_the_connection(fault));
        }
        assert!(matches!(accept_fault(Errno::INVAL), AcceptFault::Other(_)));
    }
}
