//! The PROXY header in front of a connection, where a listener expects one: it names the client of the connection.
//!
//! The states of a connection do not know of it: the driver passes them what follows it, and until then they are idle.
//! Its time is that of a request head. The owner of the connection takes it; any thread asks for the peer.

use std::sync::{Mutex, OnceLock};

use tailrace_http::peer::Peer;
use tailrace_http::proxy_protocol::{Fault, HeaderStep, Versions, parse};
use tailrace_os::sync::lock;

use crate::request::memory::{Charge, ClientMemory};

pub(crate) struct AwaitedHeader {
    versions: Versions,
    /// The bytes of it that have arrived; their memory is charged as that of a request head is.
    arrived: Mutex<(Vec<u8>, Charge)>,
    /// The peer of the connection, once the header is complete.
    peer: OnceLock<Peer>,
}

/// What bytes at the start of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// All are of the header, and more is to come.
    All,
    /// The header has ended with these bytes, or before them: what follows from this offset on is a request.
    Until(usize),
    /// They are no header.
    Refused(Fault),
    /// There is no memory for the part of a header that has arrived.
    NoMemory,
}

impl AwaitedHeader {
    pub(crate) fn of(versions: Versions) -> Self {
        Self { versions, arrived: Mutex::default(), peer: OnceLock::new() }
    }

    /// One that another worker has taken, with the peer of the connection according to it.
    pub(crate) fn taken(versions: Versions, peer: Peer) -> Self {
        Self { versions, arrived: Mutex::default(), peer: OnceLock::from(peer) }
    }

    /// Takes the bytes that have been received next. `socket`: the peer of the connection without the header.
    /// `make_room` makes sure that there is memory for so many bytes.
    pub(crate) fn take(
        &self,
        bytes: &[u8],
        socket: &Peer,
        memory: &ClientMemory,
        make_room: impl Fn(usize) -> bool,
    ) -> Taken {
        if !self.is_awaited() {
            return Taken::Until(0);
        }
        let mut arrived = lock(&self.arrived);
        let (before, charge) = &mut *arrived;
        let length_before = before.len();
        // Mostly it arrives whole.
        let step = if length_before == 0 {
            parse(bytes, self.versions)
        } else {
            before.extend_from_slice(bytes);
            parse(before, self.versions)
        };
        match step {
            HeaderStep::NeedMore => {
                if length_before == 0 {
                    before.extend_from_slice(bytes);
                }
                if !make_room(before.capacity().saturating_sub(charge.bytes())) {
                    return Taken::NoMemory;
                }
                charge.set_in(&memory.requests, before.capacity());
                Taken::All
            }
            HeaderStep::Complete { length, source } => {
                *arrived = Default::default();
                self.peer.get_or_init(|| {
                    let mut peer = *socket;
                    peer.take_header(source);
                    peer
                });
                Taken::Until(length - length_before)
            }
            HeaderStep::Refused(fault) => Taken::Refused(fault),
        }
    }

    /// Whether the header has not arrived yet.
    pub(crate) fn is_awaited(&self) -> bool {
        self.peer.get().is_none()
    }

    /// The peer of the connection. `None`: the header has not arrived yet.
    pub(crate) fn peer(&self) -> Option<&Peer> {
        self.peer.get()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn socket() -> Peer {
        Peer::of_socket(Some("10.0.0.1:80".parse().unwrap()), 3)
    }

    fn take(header: &AwaitedHeader, bytes: &[u8]) -> Taken {
        header.take(bytes, &socket(), &ClientMemory::new(usize::MAX, usize::MAX), |_| true)
    }

    #[test]
    fn a_part_of_a_header_is_charged_until_it_is_whole_and_refused_without_memory() {
        let memory = ClientMemory::new(100, 50);
        let take =
            |header: &AwaitedHeader, bytes: &[u8]| header.take(bytes, &socket(), &memory, |more| memory.has_room(more));
        let header = AwaitedHeader::of(Versions::V1);
        assert_eq!(take(&header, b"PROXY TCP4 192.0.2.7"), Taken::All);
        let held = memory.used();
        assert!(held >= 20);
        let refused = AwaitedHeader::of(Versions::V1);
        assert_eq!(take(&refused, &[b"PROXY UNKNOWN ".as_slice(), &[b'x'; 81]].concat()), Taken::NoMemory);
        drop(refused);
        assert_eq!(memory.used(), held);
        assert_eq!(take(&header, b" 192.0.2.1 1 2\r\n"), Taken::Until(16));
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn a_header_in_any_pieces_is_taken_and_what_follows_it_is_not() {
        let header = b"PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n";
        let all = [header.as_slice(), b"GET / HTTP/1.1\r\n"].concat();
        let named = Peer { client: Some("192.0.2.7:4711".parse().unwrap()), ..socket() };
        for first in 0..=all.len() {
            let awaited = AwaitedHeader::of(Versions::Any);
            assert!(awaited.is_awaited());
            assert_eq!(awaited.peer(), None);
            let taken = take(&awaited, &all[..first]);
            let after = take(&awaited, &all[first..]);
            if first < header.len() {
                assert_eq!((taken, after), (Taken::All, Taken::Until(header.len() - first)));
            } else {
                assert_eq!((taken, after), (Taken::Until(header.len()), Taken::Until(0)));
            }
            assert!(!awaited.is_awaited());
            assert_eq!(awaited.peer(), Some(&named));
        }
    }

    #[test]
    fn a_header_may_leave_the_peer_as_it_is_or_without_address() {
        let peer = socket().socket;
        let signature = b"\r\n\r\n\0\r\nQUIT\n".as_slice();
        for (rest, length, expected) in [(b"\x20\x00\x00\x00", 0, peer), (b"\x21\x31\x00\xd8", 216, None)] {
            let awaited = AwaitedHeader::of(Versions::V2);
            let header = [signature, rest, &vec![b'/'; length]].concat();
            assert_eq!(take(&awaited, &header), Taken::Until(header.len()));
            assert_eq!(awaited.peer(), Some(&Peer { client: expected, ..socket() }));
        }
    }

    #[test]
    fn what_is_no_header_is_refused_at_once() {
        let header = AwaitedHeader::of(Versions::V1);
        assert_eq!(take(&header, b"P"), Taken::All);
        assert_eq!(take(&header, b"UT /"), Taken::Refused(Fault::Absent));
    }
}
