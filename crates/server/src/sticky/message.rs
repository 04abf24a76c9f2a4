//! A connection that is passed from worker to worker: its socket, and in a message its peer and the bytes that were read.
//!
//! Both workers are of one master, so they have the same version. No call blocks, but [`receive`].

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use tailrace_http::peer::Peer;
use tailrace_os::socket::{self, Io};
use tailrace_os::{clock, passing, poll};

/// Maximum size of what was read, in bytes: a larger request stays where it is. Socket.IO sends up to 1 MB at once.
pub(crate) const MAX_READ: usize = 1 << 20;
/// Messages up to this size fit in the buffer of a socket; others are in a file in memory.
const INLINE: usize = 64 * 1024;
/// How long the sender may take from connecting to sending: it does one after the other.
const ARRIVAL: Duration = Duration::from_secs(1);
/// How long the receiver waits for descriptors of its own, and how often it looks.
const ROOM: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);
/// Length of the message, without these bytes; 0: it is in a file.
const PREFIX: usize = 4;

/// A connection on its way.
pub(crate) struct PassedConnection {
    /// Its peer without a PROXY header.
    pub(crate) direct_peer: Peer,
    /// Its peer according to that header. `None`: it had none.
    pub(crate) header_peer: Option<Peer>,
    /// What was read of the current request and of those behind it.
    pub(crate) read: Vec<u8>,
}

impl PassedConnection {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; PREFIX];
        bytes.extend_from_slice(&(self.direct_peer.listener as u32).to_le_bytes());
        bytes.push(u8::from(self.header_peer.is_some()));
        for address in [self.direct_peer.socket, self.header_peer.and_then(|peer| peer.client)] {
            let text = address.map_or_else(String::new, |address| address.to_string());
            bytes.push(text.len() as u8);
            bytes.extend_from_slice(text.as_bytes());
        }
        bytes.extend_from_slice(&self.read);
        bytes
    }

    /// `None`: it is no such message.
    fn decode(mut bytes: Vec<u8>) -> Option<Self> {
        let mut rest = bytes.get(PREFIX..)?;
        let listener = u32::from_le_bytes(*rest.split_off(..4)?.first_chunk()?) as usize;
        let has_header = *rest.split_off_first()? == 1;
        let mut address = || -> Option<Option<SocketAddr>> {
            let length = *rest.split_off_first()?;
            let text = std::str::from_utf8(rest.split_off(..usize::from(length))?).ok()?;
            if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) }
        };
        let (socket, client) = (address()?, address()?);
        let direct_peer = Peer::of_socket(socket, listener);
        let header_peer = has_header.then_some(Peer { client, ..direct_peer });
        let length = rest.len();
        Some(Self { direct_peer, header_peer, read: bytes.split_off(bytes.len() - length) })
    }

    /// Passes the connection with this socket to the worker that listens at this abstract name. Never blocks.
    ///
    /// # Errors
    /// That worker has not got it: the caller serves it.
    pub(crate) fn send(&self, address: &[u8], connection: BorrowedFd<'_>) -> io::Result<()> {
        let to = passing::connect_to(address)?;
        // The name of a worker that has ended is free for others.
        if passing::peer_user(to.as_fd())? != passing::own_user() {
            return Err(ErrorKind::PermissionDenied.into());
        }
        let mut bytes = self.encode();
        let file = if bytes.len() <= INLINE { None } else { Some(passing::file_with(&bytes)?) };
        match file {
            None => {
                let length = (bytes.len() - PREFIX) as u32;
                bytes[..PREFIX].copy_from_slice(&length.to_le_bytes());
            }
            Some(_) => bytes = vec![0; PREFIX],
        }
        let descriptors: Vec<_> = [connection].into_iter().chain(file.as_ref().map(AsFd::as_fd)).collect();
        // The receiver drops what is not whole.
        passing::send(to.as_fd(), &bytes, &descriptors, None)
    }
}

/// The connection that a worker passes on this socket, which was accepted. Waits for it. `None`: the sender has kept it,
/// or is no worker. `no_room`: called while this process has no descriptors for it.
///
/// # Errors
/// The sender has passed it, but it cannot be taken.
pub(crate) fn receive(
    from: BorrowedFd<'_>,
    no_room: impl Fn(io::Error),
) -> io::Result<Option<(OwnedFd, PassedConnection)>> {
    if passing::peer_user(from)? != passing::own_user() {
        return Ok(None);
    }
    if !poll::wait_readable(from, ARRIVAL) {
        // What the sender has not sent until now it cannot send any more, and keeps.
        socket::end_receiving(from);
    }
    // The sender has left: what is read without its descriptors would be lost.
    let until = clock::now() + ROOM;
    let mut descriptors = loop {
        match passing::peek_descriptors(from) {
            Ok(descriptors) => break descriptors,
            Err(fault) if clock::now() >= until => return Err(fault),
            Err(fault) => {
                no_room(fault);
                clock::sleep(LOOK);
            }
        }
    };
    let mut bytes = vec![0; PREFIX + INLINE];
    let mut filled = 0;
    loop {
        let length =
            bytes.first_chunk().filter(|_| filled >= PREFIX).map(|length| u32::from_le_bytes(*length) as usize);
        match length {
            Some(0) => {
                let file = descriptors.pop().ok_or(ErrorKind::InvalidData)?;
                bytes = passing::bytes_of(file, MAX_READ + INLINE)?;
                break;
            }
            Some(length) if filled == PREFIX + length => {
                bytes.truncate(filled);
                break;
            }
            _ => {}
        }
        match socket::receive(from, bytes.get_mut(filled..).unwrap_or_default()) {
            Io::Moved(count) => filled += count,
            // The kernel hands over what is larger than about 48 KiB in parts. After this, the rest is here, or the sender
            // cannot send it any more.
            Io::WouldBlock if poll::wait_readable(from, ARRIVAL) => {}
            Io::WouldBlock => socket::end_receiving(from),
            // The sender keeps what it could not send whole.
            Io::End => return Ok(None),
            Io::Broken => return Err(ErrorKind::ConnectionReset.into()),
        }
    }
    let [connection] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| ErrorKind::InvalidData)?;
    Ok(Some((connection, PassedConnection::decode(bytes).ok_or(ErrorKind::InvalidData)?)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use tailrace_http::peer::Peer;
    use tailrace_os::passing;
    use tailrace_os::socket;

    use super::{INLINE, MAX_READ, PassedConnection, receive};

    fn passed(read: Vec<u8>) -> PassedConnection {
        let direct_peer = Peer::of_socket(Some("[2001:db8::1]:80".parse().unwrap()), 3);
        let header_peer = Some(Peer { client: Some("192.0.2.1:5".parse().unwrap()), ..direct_peer });
        PassedConnection { direct_peer, header_peer, read }
    }

    #[test]
    fn a_connection_arrives_with_its_peer_and_what_was_read_in_a_message_or_a_file() {
        let name = format!("tailrace-test-sticky-{}", std::process::id());
        let listener = passing::listen_at(name.as_bytes()).unwrap();
        for length in [0, 1, INLINE, INLINE + 1, MAX_READ] {
            let (ours, mut client) = UnixStream::pair().unwrap();
            let sent = passed(vec![b'x'; length]);
            sent.send(name.as_bytes(), ours.as_fd()).unwrap();
            drop(ours);
            let accepted = socket::accept(listener.as_fd()).unwrap().unwrap().0;
            let (connection, got) = receive(accepted.as_fd(), |_| {}).unwrap().unwrap();
            assert_eq!((got.direct_peer, got.header_peer), (sent.direct_peer, sent.header_peer));
            assert_eq!(got.read, sent.read);
            UnixStream::from(connection).write_all(b"there").unwrap();
            let mut all = String::new();
            client.read_to_string(&mut all).unwrap();
            assert_eq!(all, "there");
        }
        let unix = PassedConnection { direct_peer: Peer::of_socket(None, 0), header_peer: None, read: b"GET".to_vec() };
        let got = PassedConnection::decode(unix.encode()).unwrap();
        assert_eq!((got.direct_peer, got.header_peer, got.read), (unix.direct_peer, None, unix.read));
    }

    #[test]
    fn a_sender_keeps_what_a_worker_that_has_left_would_not_take() {
        let name = format!("tailrace-test-left-{}", std::process::id());
        let listener = passing::listen_at(name.as_bytes()).unwrap();
        let (ours, _client) = UnixStream::pair().unwrap();
        passed(vec![]).send(name.as_bytes(), ours.as_fd()).unwrap();
        let early = passing::connect_to(name.as_bytes()).unwrap();
        socket::end_receiving(listener.as_fd());
        let fault = passed(vec![]).send(name.as_bytes(), ours.as_fd()).unwrap_err();
        assert_eq!(fault.kind(), std::io::ErrorKind::ConnectionRefused);
        // What waits already is taken.
        let accepted = socket::accept(listener.as_fd()).unwrap().unwrap().0;
        assert!(receive(accepted.as_fd(), |_| {}).unwrap().is_some());
        let accepted = socket::accept(listener.as_fd()).unwrap().unwrap().0;
        assert!(receive(accepted.as_fd(), |_| {}).unwrap().is_none());
        assert!(passing::send(early.as_fd(), b"late", &[], None).is_err());
        assert!(!matches!(socket::accept(listener.as_fd()), Ok(Some(_))));
    }

    #[test]
    fn a_message_that_comes_in_two_parts_is_taken() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (connection, _client) = UnixStream::pair().unwrap();
        let mut bytes = passed(vec![b'x'; 60_000]).encode();
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        passing::send(ours.as_fd(), &bytes[..48_000], &[connection.as_fd()], None).unwrap();
        let rest = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            passing::send(ours.as_fd(), &bytes[48_000..], &[], None).unwrap();
        });
        assert_eq!(receive(theirs.as_fd(), |_| {}).unwrap().unwrap().1.read.len(), 60_000);
        rest.join().unwrap();
        // The rest never comes.
        let (ours, theirs) = UnixStream::pair().unwrap();
        passing::send(ours.as_fd(), &[1; 5], &[connection.as_fd()], None).unwrap();
        assert!(receive(theirs.as_fd(), |_| {}).unwrap().is_none());
        assert!(passing::send(ours.as_fd(), b"late", &[], None).is_err());
    }

    #[test]
    fn what_is_not_whole_or_no_message_is_dropped() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (connection, _client) = UnixStream::pair().unwrap();
        let mut bytes = passed(b"GET / HTTP/1.1\r\n".to_vec()).encode();
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        let half = &bytes[..bytes.len() / 2];
        passing::send(ours.as_fd(), half, &[connection.as_fd()], None).unwrap();
        drop(ours);
        assert!(receive(theirs.as_fd(), |_| {}).unwrap().is_none());
        // Whole, but its file is too large: that is lost, not kept.
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = passing::file_with(&vec![0; MAX_READ + INLINE + 1]).unwrap();
        passing::send(ours.as_fd(), &[0; 4], &[connection.as_fd(), file.as_fd()], None).unwrap();
        assert!(receive(theirs.as_fd(), |_| {}).is_err());
        for length in 4..bytes.len() - 16 {
            assert!(PassedConnection::decode(bytes[..length].to_vec()).is_none(), "{length}");
        }
    }
}
