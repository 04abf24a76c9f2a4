//! Passing descriptors between processes: UNIX sockets with names in the abstract namespace, and SCM_RIGHTS (unix(7)).
//!
//! No call blocks, but [`send`] if it may. Any thread.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, recvmsg, sendmsg,
    socket_with, sockopt,
};

use crate::socket::Io;
use crate::{clock, file, poll};

/// Maximum number of descriptors that one call passes or receives.
pub const MAX_DESCRIPTORS: usize = 2;
/// Connections that wait to be accepted, at most.
const QUEUE: i32 = 256;

/// A socket that listens at this abstract name (without its first byte, which is 0), and does not block.
///
/// # Errors
/// Those of bind(2): another socket has the name.
pub fn listen_at(name: &[u8]) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    listen(&socket, QUEUE)?;
    Ok(socket)
}

/// A connection to the listening socket with this abstract name (without its first byte, which is 0).
///
/// # Errors
/// Those of connect(2): nothing listens there, or its queue is full.
pub fn connect_to(name: &[u8]) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(socket)
}

/// The effective user of the process at the other end, as it was when it connected.
///
/// # Errors
/// It is not a UNIX socket.
pub fn peer_user(socket: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(sockopt::socket_peercred(socket)?.uid.as_raw())
}

/// The effective user of this process.
pub fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Sends all of these bytes, and with the first of them up to [`MAX_DESCRIPTORS`] descriptors. `until`: how long it may wait
/// for the socket to accept them; `None`: it never blocks.
///
/// # Errors
/// Those of sendmsg(2). `WouldBlock`: the socket has not accepted all bytes. If the receiver has got a part of them, it
/// has the descriptors as well, and nothing else can be sent.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    until: Option<Instant>,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL.into());
    }
    let mut rest = bytes;
    loop {
        match sendmsg(socket, &[IoSlice::new(rest)], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) => {
                rest = &rest[sent..];
                if rest.is_empty() {
                    return Ok(());
                }
                ancillary.clear();
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(clock::now()));
                if left.is_zero() {
                    return Err(Errno::AGAIN.into());
                }
                poll::wait_writable(socket, left);
            }
            Err(fault) => return Err(fault.into()),
        }
    }
}

/// Reads what the socket has, and appends the descriptors that came with it. Those for which this process has no room
/// are lost.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Io {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            other => break other,
        }
    };
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    match received {
        Ok(message) if message.bytes == 0 => Io::End,
        Ok(message) => Io::Moved(message.bytes),
        Err(Errno::AGAIN) => Io::WouldBlock,
        Err(_) => Io::Broken,
    }
}

/// The descriptors that come with the next bytes, which stay unread: read them by [`socket::receive`](crate::socket::receive).
///
/// # Errors
/// This process has no room for all of them, and can ask again.
pub fn peek_descriptors(socket: BorrowedFd<'_>) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | RecvFlags::PEEK;
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut [0])], &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            other => break other,
        }
    };
    let mut descriptors = Vec::with_capacity(MAX_DESCRIPTORS);
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    let is_cut = received.is_ok_and(|message| message.flags.contains(ReturnFlags::CTRUNC));
    if is_cut { Err(Errno::MFILE.into()) } else { Ok(descriptors) }
}

/// A file in memory with these bytes.
///
/// # Errors
/// No memory or descriptors left.
pub fn file_with(bytes: &[u8]) -> io::Result<OwnedFd> {
    let made = file::memory_file(c"tailrace-message")?;
    file::write_all_at(&made, bytes, 0)?;
    Ok(made.into())
}

/// The bytes of a file, from its beginning.
///
/// # Errors
/// It has more than `most`, or cannot be read.
pub fn bytes_of(descriptor: OwnedFd, most: usize) -> io::Result<Vec<u8>> {
    let file = File::from(descriptor);
    let length = file.metadata()?.len();
    let length = usize::try_from(length).ok().filter(|length| *length <= most).ok_or(Errno::FBIG)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| Errno::NOMEM)?;
    bytes.resize(length, 0);
    let mut filled = 0;
    while filled < length {
        match file::read_at(file.as_fd(), &mut bytes[filled..], filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    use std::time::Duration;

    use super::{bytes_of, connect_to, file_with, own_user, peek_descriptors, peer_user, receive, send};
    use crate::socket::{self, Io};
    use crate::{clock, poll};

    #[test]
    fn a_descriptor_arrives_with_the_first_byte_and_can_be_used() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (passed, mut other) = UnixStream::pair().unwrap();
        let content = file_with(b"in a file").unwrap();
        send(ours.as_fd(), b"abc", &[passed.as_fd(), content.as_fd()], None).unwrap();
        drop((passed, content));
        let (mut buffer, mut received) = ([0; 8], Vec::new());
        assert_eq!(receive(theirs.as_fd(), &mut buffer, &mut received), Io::Moved(3));
        assert_eq!((&buffer[..3], received.len()), (b"abc".as_slice(), 2));
        assert_eq!(bytes_of(received.pop().unwrap(), 9).unwrap(), b"in a file");
        let mut passed = UnixStream::from(received.pop().unwrap());
        passed.write_all(b"through").unwrap();
        drop(passed);
        let mut all = String::new();
        other.read_to_string(&mut all).unwrap();
        assert_eq!(all, "through");
        assert_eq!(receive(theirs.as_fd(), &mut buffer, &mut received), Io::WouldBlock);
        drop(ours);
        assert_eq!(receive(theirs.as_fd(), &mut buffer, &mut received), Io::End);
    }

    #[test]
    fn descriptors_are_seen_before_their_bytes_are_read() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (passed, mut other) = UnixStream::pair().unwrap();
        send(ours.as_fd(), b"abc", &[passed.as_fd()], None).unwrap();
        drop(passed);
        for _ in 0..2 {
            assert_eq!(peek_descriptors(theirs.as_fd()).unwrap().len(), 1);
        }
        let mut received = peek_descriptors(theirs.as_fd()).unwrap();
        let mut buffer = [0; 8];
        assert_eq!(socket::receive(theirs.as_fd(), &mut buffer), Io::Moved(3));
        assert_eq!(&buffer[..3], b"abc");
        assert_eq!(peek_descriptors(theirs.as_fd()).unwrap().len(), 0);
        // What was peeked at is the only one left.
        UnixStream::from(received.pop().unwrap()).write_all(b"through").unwrap();
        let mut all = String::new();
        other.read_to_string(&mut all).unwrap();
        assert_eq!(all, "through");
    }

    #[test]
    fn what_the_socket_does_not_accept_at_once_follows_without_the_descriptors() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (passed, _other) = UnixStream::pair().unwrap();
        let bytes: Vec<_> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(
            send(ours.as_fd(), &bytes, &[passed.as_fd()], None).unwrap_err().kind(),
            std::io::ErrorKind::WouldBlock
        );
        drop((ours, theirs));
        let (ours, theirs) = UnixStream::pair().unwrap();
        let expected = bytes.clone();
        let reads = std::thread::spawn(move || {
            let (mut buffer, mut received, mut all) = ([0; 65_536], Vec::new(), Vec::new());
            while all.len() < expected.len() {
                match receive(theirs.as_fd(), &mut buffer, &mut received) {
                    Io::Moved(count) => all.extend_from_slice(&buffer[..count]),
                    Io::WouldBlock => assert!(poll::wait_readable(theirs.as_fd(), Duration::from_secs(20))),
                    other => panic!("{other:?}"),
                }
            }
            assert!(all == expected);
            received.len()
        });
        send(ours.as_fd(), &bytes, &[passed.as_fd()], Some(clock::now() + Duration::from_secs(20))).unwrap();
        assert_eq!(reads.join().unwrap(), 1);
    }

    #[test]
    fn a_file_that_is_too_large_is_not_read() {
        assert!(bytes_of(file_with(&[0; 10]).unwrap(), 9).is_err());
    }

    #[test]
    fn an_abstract_name_is_connected_to_and_shows_its_user() {
        let name = format!("tailrace-test-{}", std::process::id());
        assert!(connect_to(name.as_bytes()).is_err());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let socket = connect_to(name.as_bytes()).unwrap();
        let accepted = listener.accept().unwrap().0;
        assert_eq!(peer_user(accepted.as_fd()).unwrap(), own_user());
        drop(socket);
    }
}
