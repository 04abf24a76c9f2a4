//! A connection that leaves HTTP while its runner keeps the request: the application reads and writes a socket, and the
//! response ends when the application returns.
//!
//! The socket is the connection's own where nothing stands between its bytes and the application. Where something does
//! (encryption, or bytes that were read with the request), it is one end of a pair: see [`relay`](crate::connection::relay).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use tailrace_observe::level::Level;
use tailrace_os::socket;
use tailrace_os::sync::lock;

use crate::config::ExecutorKind;
use crate::connection::driver::Connection;
use crate::connection::relay::{RawCount, Relay, RelayState};
use crate::connection::response_stream::{Finish, ResponseStream};

/// A socket by which the application can take over the connection of its request.
pub struct RawSocket {
    /// If the application has one end of a pair.
    relayed: Option<Relayed>,
    count: RawCount,
}

/// The other end of a pair.
struct Relayed {
    ours: Arc<OwnedFd>,
    state: Arc<Mutex<RelayState>>,
}

/// The end of a pair, whose other end the holder gets in place of the connection.
pub(crate) struct HeldRelay {
    ours: OwnedFd,
}

impl HeldRelay {
    /// Makes a pair. Returns the end for the holder.
    ///
    /// # Errors
    /// No descriptors left.
    pub(crate) fn open() -> io::Result<(OwnedFd, Self)> {
        let (ours, theirs) = socket::pair()?;
        socket::set_nonblocking(ours.as_fd())?;
        Ok((theirs, Self { ours }))
    }

    /// The holder has its end: relays until one side ends.
    pub(crate) fn start(self, response: ResponseStream) {
        let connection = response.connection.clone();
        leave(&connection);
        let state = Arc::new(Mutex::new(RelayState::Ending(Box::new(response), None)));
        relay(&connection, Arc::new(self.ours), state, Vec::new());
    }
}

/// The connection leaves HTTP.
fn leave(connection: &Arc<Connection>) {
    connection.set_raw();
    connection.socket().give_away(connection.shared.config.write_timeout);
    connection.host.leave_socket(connection);
}

/// Relays what passes between a connection and our end of a pair. If that is impossible, both sides read the end.
fn relay(connection: &Arc<Connection>, ours: Arc<OwnedFd>, state: Arc<Mutex<RelayState>>, received: Vec<u8>) {
    let made = Relay::new(connection.clone(), ours, state, received);
    if !made.start() {
        let line = "cannot start a thread that relays an encrypted connection, so the connection was closed";
        connection.host.log(Level::Error, line);
    }
}

/// Why a request gets no raw socket.
pub(crate) enum NoRawSocket {
    /// As many runners as may have one have one; so many.
    TooMany(usize),
    /// The system has no descriptor for it.
    System(io::Error),
}

impl RawSocket {
    /// For the connection of `response`, with the descriptor for the application.
    pub(crate) fn open(response: &ResponseStream) -> Result<(Self, OwnedFd), NoRawSocket> {
        let connection = &response.connection;
        let config = &connection.shared.config;
        // One runner is left for requests that do end, but where only one request runs at a time anyway.
        let most = if config.executor == ExecutorKind::Inline { 1 } else { config.threads.saturating_sub(1) };
        let count = RawCount(connection.shared.raw_sockets.clone());
        if count.0.fetch_add(1, Ordering::SeqCst) >= most {
            return Err(NoRawSocket::TooMany(most));
        }
        let duplicate = if connection.has_received_more() { None } else { connection.socket().duplicate() };
        let (descriptor, relayed) = match duplicate {
            Some(duplicate) => (duplicate.map_err(NoRawSocket::System)?, None),
            None => {
                let (theirs, ours) = socket::pair().map_err(NoRawSocket::System)?;
                let state = Arc::new(Mutex::new(RelayState::Running));
                (theirs, Some(Relayed { ours: Arc::new(ours), state }))
            }
        };
        Ok((Self { relayed, count }, descriptor))
    }

    /// The connection leaves HTTP: from now on its bytes are those of the socket. False: it cannot, and nothing was done.
    /// If the system has no thread for the relay, both sides read the end.
    pub(crate) fn take(&self, response: &mut ResponseStream) -> bool {
        let Some(received) = response.upgrade(b"") else { return false };
        let connection = response.connection.clone();
        leave(&connection);
        if let Some(Relayed { ours, state }) = &self.relayed {
            relay(&connection, ours.clone(), state.clone(), received);
        }
        true
    }

    /// The application has returned: ends the response, after what it has left in the socket.
    pub(crate) fn end(self, mut response: ResponseStream) {
        let Self { relayed, count } = self;
        if let Some(Relayed { ours, state }) = relayed {
            let mut state = lock(&state);
            if let RelayState::Running = *state {
                response.leave_runner();
                *state = RelayState::Ending(Box::new(response), Some(count));
                drop(state);
                // The thread reads what the application has written, and then the end.
                return socket::end_receiving(ours.as_fd());
            }
        }
        // As in the relay.
        drop(count);
        let _ = response.finish_as(Finish::Done);
    }
}
