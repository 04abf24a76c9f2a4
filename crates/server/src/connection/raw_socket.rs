//! A connection that leaves HTTP while its runner keeps the request: the application reads and writes a socket, and the
//! response ends when the application returns.
//!
//! The socket is the connection's own where nothing stands between its bytes and the application. Where something does
//! (encryption, or bytes that were read with the request), it is one end of a pair, and a thread relays what passes.

use std::io;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tailrace_observe::level::Level;
use tailrace_os::mapping;
use tailrace_os::panics::catch;
use tailrace_os::poll::{self, Watched};
use tailrace_os::socket::{self, Io};
use tailrace_os::sync::lock;

use crate::connection::driver::Connection;
use crate::connection::response_stream::{Finish, ResponseStream};

/// Of a thread that relays.
const STACK: usize = 128 * 1024;
/// Bytes that are relayed in one direction before the other one gets its turn.
const RELAYED: usize = 16 * 1024;

/// A socket by which the application can take over the connection of its request.
pub struct RawSocket {
    descriptor: OwnedFd,
    /// If `descriptor` is one end of a pair.
    relayed: Option<Relayed>,
    _count: RawCount,
}

/// Counts a raw socket until it is dropped.
struct RawCount(Arc<AtomicUsize>);

impl Drop for RawCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The other end of a pair.
struct Relayed {
    /// `None`: a thread has it.
    ours: Option<OwnedFd>,
    state: Arc<Mutex<RelayState>>,
}

/// Who ends the response of a relayed connection.
enum RelayState {
    /// The runner, when the application returns.
    Running,
    /// The thread that relays, once it has sent what the application has left.
    Ending(Box<ResponseStream>),
    /// The runner: the thread has returned.
    Over,
}

/// Why a request gets no raw socket.
pub(crate) enum NoRawSocket {
    /// It has a body, or does not use HTTP/1.1.
    Unfit,
    /// As many runners as may have one have one; so many.
    TooMany(usize),
    /// The system has no descriptor for it.
    System(io::Error),
}

impl RawSocket {
    /// The socket, of which the application gets a duplicate.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// For the connection of `response`.
    pub(crate) fn open(response: &ResponseStream) -> Result<Self, NoRawSocket> {
        let connection = &response.connection;
        // One runner is left for requests that do end.
        let most = connection.shared.config.threads.saturating_sub(1).max(1);
        let count = RawCount(connection.shared.raw_sockets.clone());
        if count.0.fetch_add(1, Ordering::SeqCst) >= most {
            return Err(NoRawSocket::TooMany(most));
        }
        if !response.may_upgrade() {
            return Err(NoRawSocket::Unfit);
        }
        let lent = if connection.has_received_more() { None } else { connection.socket().lend() };
        let (descriptor, relayed) = match lent {
            Some(lent) => (lent.map_err(NoRawSocket::System)?, None),
            None => {
                let (theirs, ours) = socket::pair().map_err(NoRawSocket::System)?;
                let state = Arc::new(Mutex::new(RelayState::Running));
                (theirs, Some(Relayed { ours: Some(ours), state }))
            }
        };
        Ok(Self { descriptor, relayed, _count: count })
    }

    /// The connection leaves HTTP: from now on its bytes are those of the socket. False: it cannot, and nothing was done.
    /// If the system has no thread for the relay, both sides read the end.
    pub(crate) fn take(&mut self, response: &mut ResponseStream) -> bool {
        let Some(received) = response.upgrade(b"") else { return false };
        let connection = response.connection.clone();
        connection.set_raw();
        connection.socket().watch_peer(connection.shared.config.write_timeout);
        if let Some(Relayed { ours, state }) = &mut self.relayed
            && let Some(ours) = ours.take()
        {
            let passage = Passage { connection: connection.clone(), ours };
            let theirs = state.clone();
            let thread = std::thread::Builder::new().name(String::from("tailrace-relay")).stack_size(STACK);
            let is_started =
                mapping::is_thread_possible(STACK) && thread.spawn(move || passage.relay(received, &theirs)).is_ok();
            if !is_started {
                *lock(state) = RelayState::Over;
                connection.socket().end_sending();
                let line = "no thread can be started for an encrypted WebSocket, so it was closed";
                connection.host.log(Level::Error, line);
            }
        }
        true
    }

    /// The application has returned: ends the response, after what it has left in the socket.
    pub(crate) fn end(self, mut response: ResponseStream) {
        if let Some(Relayed { state, .. }) = &self.relayed {
            let mut state = lock(state);
            if let RelayState::Running = *state {
                response.leave_runner();
                *state = RelayState::Ending(Box::new(response));
                drop(state);
                // The thread reads what the application has written, and then the end.
                return socket::shut_down(self.descriptor.as_fd());
            }
        }
        let _ = response.finish_as(Finish::Done);
    }
}

/// What passes between a connection and the server's end of a pair. Its thread blocks in it.
struct Passage {
    connection: Arc<Connection>,
    ours: OwnedFd,
}

/// Bytes on their way in one direction.
struct Way {
    bytes: Vec<u8>,
    /// Its sender has sent its last byte.
    has_ended: bool,
}

/// What a step has done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Moved,
    Blocked,
    /// The receiver takes no more.
    Broken,
}

impl Way {
    fn step(&mut self, receive: impl FnOnce(&mut [u8]) -> Io, send: impl FnOnce(&[u8]) -> Io) -> Step {
        let mut has_moved = false;
        if self.bytes.is_empty() && !self.has_ended {
            self.bytes.resize(RELAYED, 0);
            let moved = receive(&mut self.bytes);
            self.bytes.truncate(if let Io::Moved(count) = moved { count } else { 0 });
            self.has_ended = matches!(moved, Io::End | Io::Broken);
            has_moved = moved != Io::WouldBlock;
        }
        if !self.bytes.is_empty() {
            match send(&self.bytes) {
                Io::Moved(count) => {
                    self.bytes.drain(..count);
                    has_moved = true;
                }
                Io::WouldBlock => {}
                Io::End | Io::Broken => return Step::Broken,
            }
        }
        if self.bytes.is_empty() {
            // An idle connection has no buffer.
            self.bytes = Vec::new();
        }
        if has_moved { Step::Moved } else { Step::Blocked }
    }

    fn wants_to_read(&self) -> bool {
        self.bytes.is_empty() && !self.has_ended
    }
}

impl Passage {
    /// The main function of the thread: relays, and then ends the response if the application has returned.
    fn relay(self, received: Vec<u8>, state: &Mutex<RelayState>) {
        let passed = catch(|| self.run(received));
        let socket = self.connection.socket();
        socket.end_sending();
        if let RelayState::Ending(response) = std::mem::replace(&mut *lock(state), RelayState::Over) {
            // A response that has left HTTP has no length to fall short of.
            let _ = response.finish_as(Finish::ByIo);
        }
        if let Err(panic) = passed {
            let line = format!("a relayed connection ended in a panic of the server: {panic}");
            self.connection.host.log(Level::Error, &line);
        }
    }

    /// Until the application has closed its end and all of its bytes have been sent, or the connection is broken, or its
    /// client accepts nothing for the write timeout.
    fn run(&self, received: Vec<u8>) {
        let write_timeout = self.connection.shared.config.write_timeout;
        let ours = self.ours.as_fd();
        let mut inward = Way { bytes: received, has_ended: false };
        let mut outward = Way { bytes: Vec::new(), has_ended: false };
        let mut told_end = false;
        let client = self.connection.socket();
        while !(outward.has_ended && outward.bytes.is_empty()) {
            let read = inward
                .step(|buffer| client.receive(buffer), |bytes| socket::transmit(ours, &[IoSlice::new(bytes)], false));
            if read == Step::Broken {
                // The application reads no more.
                inward = Way { bytes: Vec::new(), has_ended: true };
            }
            if inward.has_ended && inward.bytes.is_empty() && !std::mem::replace(&mut told_end, true) {
                socket::end_sending(ours);
            }
            client.notify_writable();
            let written = outward
                .step(|buffer| socket::receive(ours, buffer), |bytes| client.transmit(&[IoSlice::new(bytes)], false));
            if written == Step::Broken || self.connection.is_gone() {
                return;
            }
            if read == Step::Moved || written == Step::Moved {
                continue;
            }
            let Some(socket) = client.socket() else { return };
            let is_behind = !outward.bytes.is_empty();
            let watched = [
                Watched { descriptor: socket, read: inward.wants_to_read(), write: is_behind },
                Watched { descriptor: ours, read: outward.wants_to_read(), write: !inward.bytes.is_empty() },
            ];
            if !poll::wait_any(&watched, is_behind.then_some(write_timeout)) && is_behind {
                return;
            }
        }
    }
}
