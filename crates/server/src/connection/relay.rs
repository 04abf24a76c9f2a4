//! Relays: connections whose bytes another party reads and writes at one end of a pair of sockets, because something stands
//! between its bytes and those of the client: encryption, or bytes that were read with the request.
//!
//! Thread: one of a process passes all that arrives, and has no buffer for an idle relay. It starts with the first relay, and
//! returns after the last one.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use slab::Slab;
use tailrace_observe::level::Level;
use tailrace_os::clock;
use tailrace_os::epoll::{Events, Poller};
use tailrace_os::mapping;
use tailrace_os::panics::catch;
use tailrace_os::socket::{self, Io};
use tailrace_os::sync::lock;

use crate::connection::driver::Connection;
use crate::connection::response_stream::{Finish, ResponseStream};

/// Of the thread.
const STACK: usize = 256 * 1024;
/// Bytes that are relayed in one direction before the other one gets its turn.
const RELAYED: usize = 16 * 1024;
/// Turns of a relay before others get theirs.
const TURNS: usize = 16;

/// Counts a raw socket until it is dropped.
pub(crate) struct RawCount(pub(crate) Arc<AtomicUsize>);

impl Drop for RawCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Who ends the response of a relayed connection.
pub(crate) enum RelayState {
    /// The runner, when the application returns.
    Running,
    /// The relay, once it has sent what the other party has left. It counts until then: clients that accept nothing must
    /// not pile up.
    Ending(Box<ResponseStream>, Option<RawCount>),
    /// The runner: the relay has ended.
    Over,
}

/// A relay.
pub(crate) struct Relay {
    connection: Arc<Connection>,
    /// Our end of the pair.
    ours: Arc<OwnedFd>,
    state: Arc<Mutex<RelayState>>,
    inward: Way,
    outward: Way,
    has_told_end: bool,
    /// When the client last accepted something, or had nothing to accept.
    accepted: Instant,
}

/// The relays of this process; `None`: there are none. A child that the application has forked serves no connection, so it
/// does not use them.
static RELAYS: Mutex<Option<Arc<Mailbox>>> = Mutex::new(None);

/// What the thread is given.
struct Mailbox {
    poller: Poller,
    added: Mutex<Vec<Relay>>,
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
}

/// What is left to do for a relay.
enum Left {
    /// It waits for events; if its client is behind, until then.
    Waiting(Option<Instant>),
    /// More can be passed now.
    More,
    Over,
}

impl Relay {
    /// `received`: what the client has sent already.
    pub(crate) fn new(
        connection: Arc<Connection>,
        ours: Arc<OwnedFd>,
        state: Arc<Mutex<RelayState>>,
        received: Vec<u8>,
    ) -> Self {
        Self {
            connection,
            ours,
            state,
            inward: Way { bytes: received, has_ended: false },
            outward: Way { bytes: Vec::new(), has_ended: false },
            has_told_end: false,
            accepted: clock::now(),
        }
    }

    /// Passes what can be passed. It is over when the other party has closed its end and all of its bytes have been sent, when
    /// the connection is broken, or when its client accepts nothing for the write timeout.
    fn pass(&mut self) -> Left {
        let client = self.connection.socket();
        let ours = self.ours.as_fd();
        for _ in 0..TURNS {
            if self.outward.has_ended && self.outward.bytes.is_empty() {
                return Left::Over;
            }
            let read = self
                .inward
                .step(|buffer| client.receive(buffer), |bytes| socket::transmit(ours, &[IoSlice::new(bytes)], false));
            // The other party reads no more, or is to end. A client that goes on sending must not delay that.
            if read == Step::Broken || self.connection.shared.is_stopping() {
                self.inward = Way { bytes: Vec::new(), has_ended: true };
            }
            if self.inward.has_ended && self.inward.bytes.is_empty() && !self.has_told_end {
                self.has_told_end = true;
                socket::end_sending(ours);
            }
            client.notify_writable();
            let written = self
                .outward
                .step(|buffer| socket::receive(ours, buffer), |bytes| client.transmit(&[IoSlice::new(bytes)], false));
            if written == Step::Broken || self.connection.is_gone() {
                return Left::Over;
            }
            let is_behind = !self.outward.bytes.is_empty();
            if written == Step::Moved || !is_behind {
                self.accepted = clock::now();
            }
            if read == Step::Moved || written == Step::Moved {
                continue;
            }
            let until = self.accepted + self.connection.shared.config.write_timeout;
            if is_behind && until <= clock::now() {
                return Left::Over;
            }
            return Left::Waiting(is_behind.then_some(until));
        }
        Left::More
    }

    /// Both sides read the end, and the response ends if the application has returned.
    fn end(self) {
        // The other party reads and writes no more, even if a child that the application has forked holds an end.
        socket::shut_down(self.ours.as_fd());
        let ended = std::mem::replace(&mut *lock(&self.state), RelayState::Over);
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
    }
}

impl Relay {
    /// Begins to relay. False: the system has no thread or no memory for that; both sides read the end.
    pub(crate) fn start(self) -> bool {
        let mut current = lock(&RELAYS);
        let mailbox = match &*current {
            Some(mailbox) => mailbox.clone(),
            None => {
                let Ok(poller) = Poller::new() else {
                    drop(current);
                    self.end();
                    return false;
                };
                let mailbox = Arc::new(Mailbox { poller, added: Mutex::default() });
                let own = mailbox.clone();
                let thread = std::thread::Builder::new().name(String::from("tailrace-relay")).stack_size(STACK);
                if !mapping::is_thread_possible(STACK) || thread.spawn(move || own.run()).is_err() {
                    drop(current);
                    self.end();
                    return false;
                }
                *current = Some(mailbox.clone());
                mailbox
            }
        };
        lock(&mailbox.added).push(self);
        mailbox.poller.wake();
        true
    }
}

impl Mailbox {
    /// The main function of the thread.
    fn run(&self) {
        let mut relays: Slab<Relay> = Slab::new();
        let mut due: Slab<Option<Instant>> = Slab::new();
        let mut ready: Vec<usize> = Vec::new();
        let mut events = Events::new(256);
        loop {
            let first = due.iter().filter_map(|(_, until)| *until).min();
            let pause = first.map(|until| until.saturating_duration_since(clock::now()) + Duration::from_millis(1));
            let pause = if ready.is_empty() { pause } else { Some(Duration::ZERO) };
            if self.poller.wait(&mut events, pause).is_err() {
                return;
            }
            for (key, _) in events.iter() {
                if key == tailrace_os::epoll::WAKEUP {
                    self.poller.clear_wakeup();
                } else if let Ok(key) = usize::try_from(key / 2) {
                    ready.push(key);
                }
            }
            for relay in std::mem::take(&mut *lock(&self.added)) {
                let key = relays.insert(relay);
                due.insert(None);
                ready.push(key);
                let relay = &relays[key];
                // A relay whose sockets cannot be watched ends below, because nothing would wake it.
                let is_watched =
                    self.poller.watch_connection(relay.connection.socket().socket(), key as u64 * 2).is_ok()
                        && self.poller.watch_connection(Some(relay.ours.as_fd()), key as u64 * 2 + 1).is_ok();
                if !is_watched {
                    relays[key].outward.has_ended = true;
                }
            }
            let now = clock::now();
            ready.extend(due.iter().filter(|(_, until)| until.is_some_and(|until| until <= now)).map(|(key, _)| key));
            ready.sort_unstable();
            ready.dedup();
            for key in std::mem::take(&mut ready) {
                let Some(relay) = relays.get_mut(key) else { continue };
                let passed = catch(|| relay.pass()).unwrap_or_else(|panic| {
                    let line = format!("internal error while relaying a connection, which was closed: {panic}");
                    relay.connection.host.log(Level::Error, &line);
                    Left::Over
                });
                match passed {
                    Left::More => ready.push(key),
                    Left::Waiting(until) => due[key] = until,
                    Left::Over => {
                        let relay = relays.remove(key);
                        due.remove(key);
                        self.poller.forget(relay.connection.socket().socket());
                        self.poller.forget(Some(relay.ours.as_fd()));
                        let host = relay.connection.clone();
                        if let Err(panic) = catch(|| relay.end()) {
                            host.host.log(
                                Level::Error,
                                &format!("internal error while closing a relayed connection: {panic}"),
                            );
                        }
                    }
                }
            }
            if relays.is_empty() {
                let mut current = lock(&RELAYS);
                if lock(&self.added).is_empty() {
                    *current = None;
                    return;
                }
            }
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
        assert_eq!(step(&mut way, Io::Broken, Io::WouldBlock), (Step::Blocked, vec![]));
        assert_eq!(step(&mut way, Io::Broken, Io::Moved(9)), (Step::Moved, b" it".to_vec()));
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
            assert!(way.has_ended);
            assert_eq!(
                step(&mut way, Io::Moved(1), Io::Moved(9)),
                (Step::Blocked, vec![]),
                "nothing is read behind it"
            );
        }
    }
}
