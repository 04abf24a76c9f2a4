//! The PROXY header in front of a connection, where a listener expects one: it tells whose connection it is.
//!
//! The states of a connection do not know of it: the driver passes them what follows it, and until then they are idle.
//! Its time is that of a request head. Only the owner of the connection uses it.

use std::mem::replace;
use std::net::SocketAddr;
use std::sync::Mutex;

use tailrace_http::proxy_protocol::{Fault, HeaderStep, Source, Versions, parse};

use crate::config::ProxyHeader;
use crate::os::sync::lock;
use crate::request::memory::{Charge, ClientMemory};

/// See the module.
pub(crate) struct Preface {
    versions: Versions,
    phase: Mutex<Phase>,
}

enum Phase {
    /// These bytes of it have arrived; their memory is charged as that of a request head is.
    Arriving(Vec<u8>, Charge),
    /// It has been read.
    Complete(Source),
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

impl Preface {
    /// `None`: the connections of such a listener have none.
    pub(crate) fn of(header: ProxyHeader) -> Option<Box<Self>> {
        let versions = match header {
            ProxyHeader::None => return None,
            ProxyHeader::V1 => Versions::V1,
            ProxyHeader::V2 => Versions::V2,
            ProxyHeader::Any => Versions::Any,
        };
        Some(Box::new(Self { versions, phase: Mutex::new(Phase::Arriving(Vec::new(), Charge::default())) }))
    }

    /// Takes the bytes that have been received next. `make_room` makes sure that there is memory for so many bytes.
    pub(crate) fn take(&self, bytes: &[u8], memory: &ClientMemory, make_room: impl Fn(usize) -> bool) -> Taken {
        let mut phase = lock(&self.phase);
        let Phase::Arriving(before, charge) = &mut *phase else { return Taken::Until(0) };
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
                drop(replace(&mut *phase, Phase::Complete(source)));
                Taken::Until(length - length_before)
            }
            HeaderStep::Refused(fault) => Taken::Refused(fault),
        }
    }

    /// Whether the header has not arrived yet.
    pub(crate) fn is_awaited(&self) -> bool {
        matches!(&*lock(&self.phase), Phase::Arriving(..))
    }

    /// Whose connection it is. `peer`: that of the socket.
    pub(crate) fn client(&self, peer: Option<SocketAddr>) -> Option<SocketAddr> {
        match &*lock(&self.phase) {
            Phase::Arriving(..) | Phase::Complete(Source::Peer) => peer,
            Phase::Complete(Source::Client(client)) => Some(*client),
            Phase::Complete(Source::Unix) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn take(preface: &Preface, bytes: &[u8]) -> Taken {
        preface.take(bytes, &ClientMemory::new(usize::MAX, usize::MAX), |_| true)
    }

    #[test]
    fn a_part_of_a_header_is_charged_until_it_is_whole_and_refused_without_memory() {
        let memory = ClientMemory::new(100, 50);
        let take = |preface: &Preface, bytes: &[u8]| preface.take(bytes, &memory, |more| memory.has_room(more));
        let preface = Preface::of(ProxyHeader::V1).unwrap();
        assert_eq!(take(&preface, b"PROXY TCP4 192.0.2.7"), Taken::All);
        let held = memory.used();
        assert!(held >= 20);
        let refused = Preface::of(ProxyHeader::V1).unwrap();
        assert_eq!(take(&refused, &[b"PROXY UNKNOWN ".as_slice(), &[b'x'; 81]].concat()), Taken::NoMemory);
        drop(refused);
        assert_eq!(memory.used(), held);
        assert_eq!(take(&preface, b" 192.0.2.1 1 2\r\n"), Taken::Until(16));
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn a_header_in_any_pieces_is_taken_and_what_follows_it_is_not() {
        let header = b"PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n";
        let all = [header.as_slice(), b"GET / HTTP/1.1\r\n"].concat();
        let peer = Some("10.0.0.1:80".parse().unwrap());
        for first in 0..=all.len() {
            let preface = Preface::of(ProxyHeader::Any).unwrap();
            assert!(preface.is_awaited());
            assert_eq!(preface.client(peer), peer);
            let taken = take(&preface, &all[..first]);
            let after = take(&preface, &all[first..]);
            if first < header.len() {
                assert_eq!((taken, after), (Taken::All, Taken::Until(header.len() - first)));
            } else {
                assert_eq!((taken, after), (Taken::Until(header.len()), Taken::Until(0)));
            }
            assert!(!preface.is_awaited());
            assert_eq!(preface.client(peer), Some("192.0.2.7:4711".parse().unwrap()));
        }
    }

    #[test]
    fn a_header_may_leave_the_peer_as_it_is_or_without_address() {
        let peer = Some("10.0.0.1:80".parse().unwrap());
        let signature = b"\r\n\r\n\0\r\nQUIT\n".as_slice();
        for (rest, length, expected) in [(b"\x20\x00\x00\x00", 0, peer), (b"\x21\x31\x00\xd8", 216, None)] {
            let preface = Preface::of(ProxyHeader::V2).unwrap();
            let header = [signature, rest, &vec![b'/'; length]].concat();
            assert_eq!(take(&preface, &header), Taken::Until(header.len()));
            assert_eq!(preface.client(peer), expected);
        }
    }

    #[test]
    fn what_is_no_header_is_refused_at_once() {
        let preface = Preface::of(ProxyHeader::V1).unwrap();
        assert_eq!(take(&preface, b"P"), Taken::All);
        assert_eq!(take(&preface, b"UT /"), Taken::Refused(Fault::Absent));
        assert!(Preface::of(ProxyHeader::None).is_none());
    }
}
