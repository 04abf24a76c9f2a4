//! What precedes the first request of a connection: the PROXY header, if its listener expects one, and the handshake, if
//! its listener uses TLS. The state machine knows neither: it is idle until both are complete.
//!
//! Threads: only the owner of the connection changes it; any thread may read the peer and the idle times.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tailrace_http::peer::Peer;
use tailrace_os::clock::{Millis, millis};
use tailrace_os::sync::lock;

use crate::clients::connections::Connected;
use crate::connection::proxy_header::AwaitedHeader;
use crate::connection::shared::Shared;
use crate::connection::state::{FIRST_REQUEST, Idleness};
use crate::request::memory::Charge;
use crate::sticky::message::PassedConnection;

pub(crate) struct Opening {
    /// The peer of the socket itself: behind a proxy, the proxy.
    pub(crate) direct_peer: Peer,
    /// `None`: the listener expects no PROXY header.
    pub(crate) header: Option<Box<AwaitedHeader>>,
    /// The owner has seen that the handshake is complete, or there is none.
    handshake_done: AtomicBool,
    /// See [`Rules::first_request_by`](crate::connection::state::Rules::first_request_by).
    first_request_by: AtomicU64,
    /// The connection's place in the limit of connections per client.
    counted: Mutex<Option<Connected>>,
    /// What another worker has read, which has passed the connection. `None`: this worker has accepted it.
    adopted: Option<Box<Adopted>>,
}

/// A connection that another worker has passed.
struct Adopted {
    /// What that worker has read, and the charge for it; `None`: it has been taken.
    read: Mutex<Option<(Vec<u8>, Charge)>>,
    /// The request for which it was passed has not been dispatched yet.
    is_first: AtomicBool,
}

impl Opening {
    /// A connection from this peer has just been accepted.
    pub(crate) fn new(direct_peer: Peer, shared: &Shared) -> Self {
        let listener = shared.config.listener(direct_peer.listener);
        let first_request = FIRST_REQUEST.min(millis(shared.config.keepalive_timeout));
        Self {
            direct_peer,
            header: listener.proxy.map(|versions| Box::new(AwaitedHeader::of(versions))),
            handshake_done: AtomicBool::new(!listener.is_encrypted),
            first_request_by: AtomicU64::new(shared.clock.recent_millis().saturating_add(first_request)),
            counted: Mutex::default(),
            adopted: None,
        }
    }

    /// Another worker has passed the connection. `charge`: of what that has read.
    pub(crate) fn of_passed(passed: PassedConnection, charge: Charge, shared: &Shared) -> Self {
        let PassedConnection { direct_peer, header_peer, read } = passed;
        let versions = shared.config.listener(direct_peer.listener).proxy;
        let header = header_peer.zip(versions).map(|(peer, versions)| Box::new(AwaitedHeader::taken(versions, peer)));
        let adopted = Adopted { read: Mutex::new(Some((read, charge))), is_first: AtomicBool::new(true) };
        Self { header, adopted: Some(Box::new(adopted)), ..Self::new(direct_peer, shared) }
    }

    /// True if another worker has passed the connection.
    pub(crate) fn is_passed(&self) -> bool {
        self.adopted.is_some()
    }

    /// Owner only: takes what the worker has read that has passed the connection. It is not charged any more, as other
    /// bytes that were just received.
    #[inline]
    pub(crate) fn take_read(&self) -> Option<Vec<u8>> {
        self.adopted.as_ref().and_then(|adopted| lock(&adopted.read).take()).map(|(read, _)| read)
    }

    /// True for the first request of a connection that another worker has passed, and once.
    pub(crate) fn take_passed(&self) -> bool {
        self.adopted.as_ref().is_some_and(|adopted| adopted.is_first.swap(false, Ordering::Relaxed))
    }

    /// The peer according to the PROXY header, or else to the socket; forwarding headers of requests are not considered.
    #[inline]
    pub(crate) fn peer(&self) -> &Peer {
        self.header.as_ref().and_then(|header| header.peer()).unwrap_or(&self.direct_peer)
    }

    /// Counts the connection against the limit of its client until it is dropped.
    pub(crate) fn set_counted(&self, counted: Option<Connected>) {
        if counted.is_some() {
            *lock(&self.counted) = counted;
        }
    }

    /// The connection does not count here any more.
    pub(crate) fn forget_counted(&self) {
        *lock(&self.counted) = None;
    }

    /// Owner only: notes that the handshake is complete.
    pub(crate) fn note_handshake(&self) {
        self.handshake_done.store(true, Ordering::Relaxed);
    }

    /// True until the owner has noted that the handshake is complete.
    pub(crate) fn awaits_handshake(&self) -> bool {
        !self.handshake_done.load(Ordering::Relaxed)
    }

    /// When the first request must have begun; 0: it has.
    pub(crate) fn first_request_by(&self) -> Millis {
        self.first_request_by.load(Ordering::Relaxed)
    }

    /// The first request has arrived.
    pub(crate) fn end(&self) {
        self.first_request_by.store(0, Ordering::Relaxed);
    }

    /// How long the connection may stay idle in this way.
    pub(crate) fn time_of(&self, idleness: Idleness, shared: &Shared) -> Millis {
        let is_header_awaited = || self.header.as_ref().is_some_and(|header| header.is_awaited());
        millis(match idleness {
            Idleness::Silent if !self.awaits_handshake() && !is_header_awaited() => shared.config.keepalive_timeout,
            Idleness::Silent | Idleness::HalfHead => shared.config.header_timeout,
        })
    }
}
