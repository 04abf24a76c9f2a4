//! A connection that leaves HTTP while its runner keeps the request: the application reads and writes a socket, and the
//! response ends when the application returns.
//!
//! The socket is the connection's own where nothing stands between its bytes and the application. Where something does
//! (encryption, or bytes that were read with the request), it is one end of a pair, and a thread relays what passes.

use std::io;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tailrace_observe::level::Level;
use tailrace_os::clock;
use tailrace_os::mapping;
use tailrace_os::panics::catch;
use tailrace_os::poll::{self, Watched};
use tailrace_os::socket::{self, Io};
use tailrace_os::sync::lock;

use crate::config::ExecutorKind;
use crate::connection::driver::Connection;
use crate::connection::response_stream::{Finish, ResponseStream};

/// Of a thread that relays.
const STACK: usize = 128 * 1024;
/// Bytes that are relayed in one direction before the other one gets its turn.
const RELAYED: usize = 16 * 1024;

/// A socket by which the application can take over the connection of its request.
pub struct RawSocket {
    /// If the application has one end of a pair.
    relayed: Option<Relayed>,
    count: RawCount,
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
    ours: Arc<OwnedFd>,
    state: Arc<Mutex<RelayState>>,
}

/// Who ends the response of a relayed connection.
enum RelayState {
    /// The runner, when the application returns.
    Running,
    /// The thread that relays, once it has sent what the application has left. It counts until then: clients that accept
    /// nothing must not pile up threads.
    Ending(Box<ResponseStream>, RawCount),
    /// The runner: the thread has returned.
    Over,
}

/// Maximum number of held connections between which and the holder a thread relays, since they are encrypted.
const MAX_HELD_RELAYS: usize = 1000;

/// The end of a pair, whose other end the holder gets in place of the connection.
pub(crate) struct HeldRelay {
    ours: OwnedFd,
    count: RawCount,
}

impl HeldRelay {
    /// Makes a pair for the connection of `response`. Returns the end for the holder.
    pub(crate) fn open(response: &ResponseStream) -> io::Result<(OwnedFd, Self)> {
        let count = RawCount(response.connection.shared.held_relays.clone());
        if count.0.fetch_add(1, Ordering::SeqCst) >= MAX_HELD_RELAYS {
            return Err(io::Error::other(format!("this process encrypts {MAX_HELD_RELAYS} held connections already")));
        }
        let (ours, theirs) = socket::pair()?;
        socket::set_nonblocking(ours.as_fd())?;
        Ok((theirs, Self { ours, count }))
    }

    /// The holder has its end: relays until one side ends.
    pub(crate) fn start(self, response: ResponseStream) {
        let Self { ours, count } = self;
        let connection = response.connection.clone();
        leave(&connection);
        let relayed = Relayed {
            ours: Arc::new(ours),
            state: Arc::new(Mutex::new(RelayState::Ending(Box::new(response), count))),
        };
        if relayed.start(&connection, Vec::new()) {
            return;
        }
        let ended = std::mem::replace(&mut *lock(&relayed.state), RelayState::Over);
        if let RelayState::Ending(response, _count) = ended {
            let _ = response.finish_as(Finish::ByIo);
        }
    }
}

/// The connection leaves HTTP.
fn leave(connection: &Arc<Connection>) {
    connection.set_raw();
    connection.socket().give_away(connection.shared.config.write_timeout);
    connection.host.leave_socket(connection);
}

impl Relayed {
    /// Starts the thread. False: the system has none; both sides read the end.
    fn start(&self, connection: &Arc<Connection>, received: Vec<u8>) -> bool {
        let passage = Passage { connection: connection.clone(), ours: self.ours.clone() };
        let state = self.state.clone();
        let thread = std::thread::Builder::new().name(String::from("tailrace-relay")).stack_size(STACK);
        let is_started =
            mapping::is_thread_possible(STACK) && thread.spawn(move || passage.relay(received, &state)).is_ok();
        if !is_started {
            socket::shut_down(self.ours.as_fd());
            connection.socket().end_sending();
            let line =
                "no thread can be started for an encrypted connection that was taken over or is held, so it was closed";
            connection.host.log(Level::Error, line);
        }
        is_started
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
        if let Some(relayed) = &self.relayed
            && !relayed.start(&connection, received)
        {
            *lock(&relayed.state) = RelayState::Over;
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
                *state = RelayState::Ending(Box::new(response), count);
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

/// What passes between a connection and the server's end of a pair. Its thread blocks in it.
struct Passage {
    connection: Arc<Connection>,
    ours: Arc<OwnedFd>,
}

/// Bytes on their way in one direction.
struct Way {
    bytes: Vec<u8>,
    /// Its sender has sent its last byte.
    has_ended: bool,
}

/// What a step has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        // The application reads and writes no more, even if a child that it has forked holds an end of the pair.
        socket::shut_down(self.ours.as_fd());
        let ended = std::mem::replace(&mut *lock(state), RelayState::Over);
        let response = match ended {
            RelayState::Ending(response, count) => {
                // A client that sees the end may come back immediately: it must not find its own place taken.
                drop(count);
                Some(response)
            }
            RelayState::Running | RelayState::Over => None,
        };
        self.connection.socket().end_sending();
        if let Some(response) = response {
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
        let mut accepted = clock::now();
        let client = self.connection.socket();
        while !(outward.has_ended && outward.bytes.is_empty()) {
            let read = inward
                .step(|buffer| client.receive(buffer), |bytes| socket::transmit(ours, &[IoSlice::new(bytes)], false));
            // The application reads no more, or is to end. A client that goes on sending must not delay that.
            if read == Step::Broken || self.connection.shared.is_stopping() {
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
            let is_behind = !outward.bytes.is_empty();
            if written == Step::Moved || !is_behind {
                accepted = clock::now();
            }
            if read == Step::Moved || written == Step::Moved {
                continue;
            }
            let left = write_timeout.saturating_sub(clock::now().saturating_duration_since(accepted));
            if is_behind && left.is_zero() {
                return;
            }
            let Some(socket) = client.socket() else { return };
            let watched = [
                Watched { descriptor: socket, read: inward.wants_to_read(), write: is_behind },
                Watched { descriptor: ours, read: outward.wants_to_read(), write: !inward.bytes.is_empty() },
            ];
            poll::wait_any(&watched, is_behind.then_some(left));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::RefCell;

    use tailrace_os::socket::Io;

    use super::{RELAYED, Step, Way};

    /// Takes a step in which the sender has `arrived` and the receiver accepts at most `room` bytes.
    fn step(way: &mut Way, arrived: Io, room: Io) -> (Step, Vec<u8>) {
        let taken = RefCell::new(Vec::new());
        let receive = |buffer: &mut [u8]| {
            assert_eq!(buffer.len(), RELAYED);
            if let Io::Moved(count) = arrived {
                buffer[..count].fill(b'x');
            }
            arrived
        };
        let send = |bytes: &[u8]| {
            if let Io::Moved(count) = room {
                taken.borrow_mut().extend_from_slice(&bytes[..count.min(bytes.len())]);
                return Io::Moved(count.min(bytes.len()));
            }
            room
        };
        (way.step(receive, send), taken.into_inner())
    }

    #[test]
    fn bytes_are_passed_in_order_and_read_only_when_those_before_them_have_left() {
        let mut way = Way { bytes: b"with it".to_vec(), has_ended: false };
        // What came with the request is sent first, and nothing is read before that has left.
        assert_eq!(step(&mut way, Io::Broken, Io::Moved(4)), (Step::Moved, b"with".to_vec()));
        assert!(!way.wants_to_read());
        assert_eq!(step(&mut way, Io::Broken, Io::WouldBlock), (Step::Blocked, vec![]));
        assert_eq!(step(&mut way, Io::Broken, Io::Moved(9)), (Step::Moved, b" it".to_vec()));
        assert!(way.wants_to_read());
        assert_eq!(step(&mut way, Io::WouldBlock, Io::Moved(9)), (Step::Blocked, vec![]));
        assert_eq!(way.bytes.capacity(), 0, "an idle connection has no buffer");
        assert_eq!(step(&mut way, Io::Moved(2), Io::Moved(9)), (Step::Moved, b"xx".to_vec()));
        assert_eq!(step(&mut way, Io::Moved(3), Io::Moved(1)), (Step::Moved, b"x".to_vec()));
        assert_eq!(way.bytes, b"xx");
        assert_eq!(step(&mut way, Io::Moved(9), Io::Broken), (Step::Broken, vec![]));
    }

    #[test]
    fn the_end_and_a_break_of_the_sender_are_noted_once() {
        for end in [Io::End, Io::Broken] {
            let mut way = Way { bytes: Vec::new(), has_ended: false };
            assert_eq!(step(&mut way, end, Io::Moved(9)), (Step::Moved, vec![]));
            assert!(way.has_ended && !way.wants_to_read());
            assert_eq!(
                step(&mut way, Io::Moved(1), Io::Moved(9)),
                (Step::Blocked, vec![]),
                "nothing is read behind it"
            );
        }
    }
}
