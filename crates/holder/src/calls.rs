//! All requests of the holder to the application: a bounded number is made at once, and the others wait.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use slab::Slab;
use tailrace_os::epoll::Poller;
use tailrace_os::{clock, passing};

use crate::call::{Answer, Call, Farewell, Recipient};

/// The keys of their connections begin here.
pub(crate) const FIRST_KEY: u64 = 1 << 33;
/// Maximum number of requests in flight.
pub(crate) const MAX_MADE: usize = 256;
/// Those that are made may have this many bytes, besides the last one.
const MAX_BYTES: usize = 32 << 20;
/// How long the application may take for one.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Requests that tell the application of clients that have left may occupy this much memory while they wait.
const MAX_FAREWELLS: usize = 32 << 20;

/// What waits until fewer are made.
enum Waiting {
    /// The connection with this key and serial number has something to ask.
    Connection(usize, u64),
    /// A request whose turn has come, but for which there was no descriptor.
    Request(Vec<u8>, Recipient),
    /// The application is to be told that a client has left.
    Farewell(Vec<u8>),
}

/// The requests to the application.
pub(crate) struct Calls {
    /// The abstract address where they are made.
    pub(crate) application: Vec<u8>,
    made: Slab<Call>,
    /// Bytes of those that are made.
    bytes: usize,
    /// Those that could not be made. They are answered in the next round of the loop.
    failed: Vec<(Recipient, io::Error)>,
    waiting: VecDeque<Waiting>,
    /// Bytes of the farewells among them.
    farewells: usize,
}

impl Calls {
    pub(crate) fn new(application: Vec<u8>) -> Self {
        Self { application, made: Slab::new(), bytes: 0, failed: Vec::new(), waiting: VecDeque::new(), farewells: 0 }
    }

    /// No more can be made now: there are too many of them, or they are too large.
    pub(crate) fn is_full(&self) -> bool {
        self.made.len() >= MAX_MADE || self.bytes >= MAX_BYTES
    }

    /// None is made, and none waits.
    pub(crate) fn is_quiet(&self) -> bool {
        self.made.is_empty() && self.waiting.is_empty()
    }

    /// How many are made, and how many wait.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.made.len(), self.waiting.len())
    }

    /// Makes a request. `None`: its fields are too large.
    pub(crate) fn make(&mut self, poller: &Poller, packet: Option<Vec<u8>>, recipient: Recipient) {
        let Some(packet) = packet else {
            let fault = io::Error::other("the headers of the WebSocket request are too large");
            return self.failed.push((recipient, fault));
        };
        let socket = match passing::connect_to(&self.application) {
            Ok(socket) => socket,
            // No descriptor is left, or the queue is full. When another request has been answered, there may be room.
            Err(_) if !self.made.is_empty() => return self.waiting.push_front(Waiting::Request(packet, recipient)),
            Err(fault) => return self.failed.push((recipient, fault)),
        };
        let slot = self.made.vacant_entry();
        match poller.watch_connection(Some(socket.as_fd()), FIRST_KEY + slot.key() as u64) {
            // Its first event comes immediately: it is writable.
            Ok(()) => {
                self.bytes += packet.len();
                slot.insert(Call::new(socket, packet, recipient, clock::now()));
            }
            Err(fault) => self.failed.push((recipient, fault)),
        }
    }

    /// Has a connection wait for its turn.
    pub(crate) fn wait(&mut self, key: usize, serial: u64) {
        self.waiting.push_back(Waiting::Connection(key, serial));
    }

    /// Tells the application that a client has left. False: too many of these requests wait, so it was dropped.
    pub(crate) fn bid_farewell(&mut self, poller: &Poller, packet: Vec<u8>) -> bool {
        if !self.is_full() {
            self.make(poller, Some(packet), Recipient::Gone);
        } else if self.farewells + packet.len() <= MAX_FAREWELLS {
            self.farewells += packet.len();
            self.waiting.push_back(Waiting::Farewell(packet));
        } else {
            return false;
        }
        true
    }

    /// Has a farewell follow the request that was made for a connection. Gives it back if there is none.
    pub(crate) fn chain(&mut self, key: usize, serial: u64, farewell: Farewell) -> Option<Farewell> {
        let mut made = self.made.iter_mut().map(|(_, call)| call);
        let Some(call) = made.find(|call| call.recipient == Recipient::Connection(key, serial)) else {
            return Some(farewell);
        };
        call.next = Some(farewell);
        None
    }

    /// Makes requests that have waited, up to the next connection whose turn it is: its key and serial number.
    pub(crate) fn next_connection(&mut self, poller: &Poller) -> Option<(usize, u64)> {
        while !self.is_full() {
            match self.waiting.pop_front()? {
                Waiting::Connection(key, serial) => return Some((key, serial)),
                Waiting::Request(packet, recipient) => self.make(poller, Some(packet), recipient),
                Waiting::Farewell(packet) => {
                    self.farewells -= packet.len();
                    self.make(poller, Some(packet), Recipient::Gone);
                }
            }
            if let Some(Waiting::Request(..)) = self.waiting.front() {
                break;
            }
        }
        None
    }

    /// A socket is ready. `Some`: its request is over.
    pub(crate) fn event(&mut self, key: u64) -> Option<(usize, io::Result<Answer>)> {
        let key = usize::try_from(key - FIRST_KEY).ok()?;
        let result = self.made.get_mut(key)?.step().transpose()?;
        Some((key, result))
    }

    /// Forgets a request that is over, and tells the application of a client that has left meanwhile, if it knows it.
    pub(crate) fn end(&mut self, poller: &Poller, key: usize, result: &io::Result<Answer>) -> Recipient {
        let call = self.made.remove(key);
        self.bytes -= call.size;
        let is_accepted = result.as_ref().is_ok_and(|answer| answer.code() == 200);
        if let Some(farewell) = call.next.filter(|farewell| farewell.is_of_open || is_accepted) {
            self.make(poller, Some(farewell.packet), Recipient::Gone);
        }
        call.recipient
    }

    /// Those that could not be made since this was last called.
    pub(crate) fn take_failed(&mut self) -> Vec<(Recipient, io::Error)> {
        std::mem::take(&mut self.failed)
    }

    pub(crate) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// When the first of those that are made has taken too long.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        self.made.iter().map(|(_, call)| call.since + TIMEOUT).min()
    }

    /// The keys of those that have taken too long.
    pub(crate) fn expired(&self, now: Instant) -> Vec<usize> {
        self.made.iter().filter(|(_, call)| call.since + TIMEOUT <= now).map(|(key, _)| key).collect()
    }
}
