//! Listening sockets, accepting connections from them, and the transports of these.
//!
//! Only the thread that leads the loop accepts.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tailrace_os::poll;
use tailrace_os::process::Unshared;
use tailrace_os::socket;
use tailrace_os::socket::AcceptFault;

use crate::transport::Transport;
use crate::transport::plain::Plain;
use crate::transport::tls::{Tls, TlsContext};

/// Connections accepted from one listener before the next listener is served.
const AT_ONCE: usize = 64;
/// Encrypted connections may begin with a handshake, so fewer are accepted before requests are served.
const HANDSHAKES_AT_ONCE: usize = 8;

/// A listening socket of the server.
pub(crate) struct Listener {
    pub(crate) socket: Unshared,
    is_paused: AtomicBool,
    encryption: Option<Encryption>,
}

/// How the connections of a listener are encrypted.
pub(crate) struct Encryption {
    pub(crate) context: Arc<TlsContext>,
    /// A PROXY header comes first, which is not encrypted.
    pub(crate) is_after_header: bool,
}

/// How a call of [`Listener::accept`] ended.
pub(crate) enum AcceptOutcome {
    /// No connection waits in the kernel's queue any more.
    All,
    /// `most` connections were accepted; more may wait.
    Some,
    /// No connection can be accepted.
    Failed(AcceptFault),
}

impl Listener {
    /// Takes over a socket that listens and does not block. `encryption`: of its connections, if they are encrypted.
    pub(crate) fn new(socket: OwnedFd, encryption: Option<Encryption>) -> Self {
        Self { socket: Unshared::new(socket), is_paused: AtomicBool::new(false), encryption }
    }

    /// Notes that the listener is not polled for some time. False: that was noted before.
    pub(crate) fn try_pause(&self) -> bool {
        !self.is_paused.swap(true, Ordering::Relaxed)
    }

    /// Notes that the listener is polled again.
    pub(crate) fn resume(&self) {
        self.is_paused.store(false, Ordering::Relaxed);
    }

    /// Connections accepted before others are served.
    pub(crate) fn at_once(&self) -> usize {
        if self.encryption.is_some() { HANDSHAKES_AT_ONCE } else { AT_ONCE }
    }

    /// The transport of a connection that was accepted here. `key`: that of the connection.
    pub(crate) fn transport(&self, socket: OwnedFd, key: u64) -> Box<dyn Transport> {
        match &self.encryption {
            None => Box::new(Plain::new(socket, key)),
            Some(Encryption { context, is_after_header }) => {
                Box::new(Tls::new(socket, key, context.clone(), *is_after_header))
            }
        }
    }

    /// Accepts the connections that wait, `most` at most, and gives each to `add` with its client's address. Called
    /// when one waits.
    pub(crate) fn accept(&self, most: usize, mut add: impl FnMut(OwnedFd, Option<SocketAddr>)) -> AcceptOutcome {
        for number in 0..most {
            let Some(listener) = self.socket.here() else { return AcceptOutcome::All };
            // An accept4 that finds none takes 4.5 µs, since it makes a socket first; poll takes 0.3 µs.
            if number > 0 && !poll::wait_readable(listener, Duration::ZERO) {
                return AcceptOutcome::All;
            }
            match socket::accept(listener) {
                Ok(Some((socket, peer))) => add(socket, peer),
                Ok(None) => return AcceptOutcome::All,
                Err(fault) => return AcceptOutcome::Failed(fault),
            }
        }
        AcceptOutcome::Some
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    use super::{AcceptOutcome, Listener};

    fn listener() -> (Listener, std::net::SocketAddr) {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        (Listener::new(socket.into(), None), address)
    }

    #[test]
    fn no_more_than_asked_for_are_accepted_and_the_rest_waits() {
        let (listener, address) = listener();
        let clients: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut peers = Vec::new();
        let mut sockets: Vec<OwnedFd> = Vec::new();
        let mut accept = |most| {
            listener.accept(most, |socket, peer| {
                sockets.push(socket);
                peers.push(peer.unwrap());
            })
        };
        assert!(matches!(accept(2), AcceptOutcome::Some));
        assert!(matches!(accept(2), AcceptOutcome::All));
        let expected: Vec<_> = clients.iter().map(|client| client.local_addr().unwrap()).collect();
        assert_eq!(peers, expected);
        for socket in &sockets {
            assert!(rustix::fs::fcntl_getfl(socket).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
        }
    }

    #[test]
    fn a_pause_begins_once() {
        let (listener, _) = listener();
        assert!(listener.try_pause() && !listener.try_pause());
        listener.resume();
        assert!(listener.try_pause());
    }

    #[test]
    fn a_socket_that_does_not_listen_is_a_fault() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let listener = Listener::new(ours.into(), None);
        assert!(matches!(listener.accept(1, |_, _| ()), AcceptOutcome::Failed(_)));
    }
}
