//! An HTTP/1.1 client that measures a server: some connections, each of which asks again when it has its response.
//!
//! Its loop makes the system calls of wrk: one thread and one epoll; a response is read when it arrives, and the next
//! request is written when epoll has reported that the socket can be written. A client that wrote at once would find
//! fewer responses at each look, and another rate. Before Linux 5.11, and where a container forbids epoll_pwait2(2), it
//! makes one poll(2) for all connections instead, which takes longer with many of them.

mod response;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::response::{Ended, Reader};

/// Bytes of one read.
const READ: usize = 64 * 1024;
/// Events of one look.
const EVENTS: usize = 1024;
/// From one look at the time and at `is_over` to the next, at most.
const LOOK: Duration = Duration::from_millis(50);
/// How long a connection that could not be made waits for the next attempt.
const RETRY: Duration = Duration::from_millis(10);

/// Where the server listens.
#[derive(Debug, Clone)]
pub enum Address {
    /// An IP address and a port.
    Tcp(SocketAddr),
    /// A UNIX socket.
    Unix(PathBuf),
}

/// What to do.
#[derive(Debug, Clone)]
pub struct Load {
    /// Where the server listens.
    pub address: Address,
    /// The bytes of one request.
    pub request: Vec<u8>,
    /// Connections at once.
    pub connections: usize,
    /// How long.
    pub time: Duration,
    /// A response that takes longer counts as timed out (and as an answer, when it comes).
    pub patience: Duration,
}

/// What happened until the time was over. Requests without a response by then do not count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Responses of any status.
    pub answers: u64,
    /// Those of them with a status of 400 or more.
    pub refusals: u64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// How long it took.
    pub time: Duration,
    /// Microseconds from the first byte of a request to the last of its response, ascending, one for each answer.
    pub latencies: Vec<u32>,
    /// Connections that could not be made.
    pub connect_errors: u64,
    /// Connections that ended within a response, or whose response was not HTTP/1.
    pub read_errors: u64,
    /// Requests that could not be sent.
    pub write_errors: u64,
    /// Responses that took longer than the patience.
    pub timeouts: u64,
}

struct Client {
    socket: Option<OwnedFd>,
    /// Bytes of the request that are sent.
    sent: usize,
    /// When the request began.
    begun: Instant,
    has_timed_out: bool,
    /// When a connection is to be tried again.
    retry: Option<Instant>,
    reader: Reader,
}

/// Asks until the time is over, or until `is_over` says so, which is called every 50 ms. Blocks.
///
/// # Errors
/// No epoll. What happens to connections is counted and is no error.
pub fn run(load: &Load, mut is_over: impl FnMut() -> bool) -> io::Result<Outcome> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let begun = Instant::now();
    let fresh =
        || Client { socket: None, sent: 0, begun, has_timed_out: false, retry: Some(begun), reader: Reader::new() };
    let mut run = Run {
        load,
        epoll,
        has_pwait2: true,
        events: Vec::with_capacity(EVENTS),
        clients: std::iter::repeat_with(fresh).take(load.connections).collect(),
        outcome: Outcome::default(),
        buffer: vec![0; READ],
    };
    let mut ready = Vec::new();
    let mut looked: Option<Instant> = None;
    loop {
        let now = Instant::now();
        if now - begun >= load.time {
            break;
        }
        if looked.is_none_or(|looked| now - looked >= LOOK) {
            looked = Some(now);
            if is_over() {
                break;
            }
            run.look(now);
        }
        let wait = LOOK.min(load.time.saturating_sub(now - begun));
        let wait = Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as _ };
        match run.wait(&mut ready, &wait) {
            Ok(()) | Err(Errno::INTR) => {}
            Err(fault) => return Err(fault.into()),
        }
        for &(at, is_writable) in &ready {
            if is_writable {
                run.write(at);
            } else {
                run.read(at);
            }
        }
    }
    run.outcome.time = begun.elapsed();
    run.outcome.latencies.sort_unstable();
    Ok(run.outcome)
}

struct Run<'a> {
    load: &'a Load,
    epoll: OwnedFd,
    /// False once epoll_pwait2(2) was missing or forbidden.
    has_pwait2: bool,
    events: Vec<epoll::Event>,
    clients: Vec<Client>,
    outcome: Outcome,
    buffer: Vec<u8>,
}

impl Run<'_> {
    /// Waits until there are connections that can be written (true) or read, at most for this time.
    fn wait(&mut self, ready: &mut Vec<(usize, bool)>, time: &Timespec) -> rustix::io::Result<()> {
        ready.clear();
        if self.has_pwait2 {
            self.events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(time)) {
                Err(Errno::NOSYS | Errno::PERM) => self.has_pwait2 = false,
                Err(fault) => return Err(fault),
                Ok(_) => {
                    ready.extend(self.events.iter().map(|event| {
                        let flags = event.flags;
                        (event.data.u64() as usize, flags.contains(epoll::EventFlags::OUT))
                    }));
                    return Ok(());
                }
            }
        }
        self.poll(ready, time)
    }

    fn poll(&self, ready: &mut Vec<(usize, bool)>, time: &Timespec) -> rustix::io::Result<()> {
        let watched = self.clients.iter().enumerate().filter_map(|(at, client)| {
            let wanted = if client.sent < self.load.request.len() { PollFlags::OUT } else { PollFlags::IN };
            client.socket.as_ref().map(|socket| (at, PollFd::new(socket, wanted)))
        });
        let (places, mut watched): (Vec<_>, Vec<_>) = watched.unzip();
        poll(&mut watched, Some(time))?;
        let found = places.into_iter().zip(watched.iter().map(PollFd::revents));
        let found = found.filter(|(_, events)| !events.is_empty());
        ready.extend(found.map(|(at, events)| (at, events.contains(PollFlags::OUT))));
        Ok(())
    }

    /// Connects what is to be connected, and counts responses that take too long.
    fn look(&mut self, now: Instant) {
        for at in 0..self.clients.len() {
            let Some(client) = self.clients.get_mut(at) else { break };
            if client.retry.is_some_and(|retry| now >= retry) {
                self.connect(at);
            } else if client.sent > 0 && !client.has_timed_out && now - client.begun > self.load.patience {
                client.has_timed_out = true;
                self.outcome.timeouts += 1;
            }
        }
    }

    /// Begins a connection that replaces the one before.
    fn connect(&mut self, at: usize) {
        let Some(client) = self.clients.get_mut(at) else { return };
        client.socket = None;
        client.reader.reset();
        client.sent = 0;
        client.retry = None;
        let begun = begin(&self.load.address).and_then(|socket| {
            let key = epoll::EventData::new_u64(at as u64);
            epoll::add(&self.epoll, &socket, key, epoll::EventFlags::OUT)?;
            Ok(socket)
        });
        match begun {
            Ok(socket) => client.socket = Some(socket),
            Err(_) => {
                self.outcome.connect_errors += 1;
                client.retry = Some(Instant::now() + RETRY);
            }
        }
    }

    fn watch(&self, socket: BorrowedFd<'_>, at: usize, flags: epoll::EventFlags) {
        // A socket that is in the epoll can be changed there.
        let _ = epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(at as u64), flags);
    }

    /// Sends what is left of the request.
    fn write(&mut self, at: usize) {
        let Some(client) = self.clients.get_mut(at) else { return };
        let Some(socket) = &client.socket else { return };
        if client.sent == 0 {
            client.begun = Instant::now();
            client.has_timed_out = false;
        }
        let rest = self.load.request.get(client.sent..).unwrap_or(&[]);
        match net::send(socket, rest, SendFlags::NOSIGNAL) {
            Ok(sent) => client.sent += sent,
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) if client.sent == 0 && is_refused(socket.as_fd()) => {
                self.outcome.connect_errors += 1;
                client.socket = None;
                client.retry = Some(Instant::now() + RETRY);
                return;
            }
            Err(_) => {
                // A server may answer and close before it has read all. That is read first.
                self.outcome.write_errors += 1;
                self.connect(at);
                return;
            }
        }
        if client.sent >= self.load.request.len() {
            let Some(socket) = self.clients.get(at).and_then(|client| client.socket.as_ref()) else { return };
            self.watch(socket.as_fd(), at, epoll::EventFlags::IN);
        }
    }

    /// Reads what has arrived.
    fn read(&mut self, at: usize) {
        loop {
            let Some(client) = self.clients.get_mut(at) else { return };
            let Some(socket) = &client.socket else { return };
            let read = match net::recv(socket, &mut *self.buffer, RecvFlags::empty()) {
                Ok((_, read)) => read,
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(_) => {
                    self.outcome.read_errors += 1;
                    return self.connect(at);
                }
            };
            self.outcome.bytes += read as u64;
            let ended = if read == 0 {
                Ok(client.reader.close())
            } else {
                client.reader.take(self.buffer.get(..read).unwrap_or(&[]))
            };
            match ended {
                Ok(Some(ended)) => return self.answered(at, ended),
                Ok(None) if read == READ => {}
                Ok(None) if read > 0 => return,
                Ok(None) | Err(_) => {
                    self.outcome.read_errors += 1;
                    return self.connect(at);
                }
            }
        }
    }

    fn answered(&mut self, at: usize, ended: Ended) {
        let Some(client) = self.clients.get_mut(at) else { return };
        let taken = client.begun.elapsed();
        self.outcome.answers += 1;
        self.outcome.refusals += u64::from(ended.status >= 400);
        self.outcome.latencies.push(u32::try_from(taken.as_micros()).unwrap_or(u32::MAX));
        if taken > self.load.patience && !client.has_timed_out {
            self.outcome.timeouts += 1;
        }
        client.sent = 0;
        if !ended.is_kept {
            return self.connect(at);
        }
        let Some(socket) = self.clients.get(at).and_then(|client| client.socket.as_ref()) else { return };
        self.watch(socket.as_fd(), at, epoll::EventFlags::OUT);
    }
}

/// A socket that connects.
fn begin(address: &Address) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connected = |done: rustix::io::Result<()>| match done {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
        Err(fault) => Err(fault),
    };
    match address {
        Address::Tcp(address) => {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
            sockopt::set_tcp_nodelay(&socket, true)?;
            connected(net::connect(&socket, address))?;
            Ok(socket)
        }
        Address::Unix(path) => {
            let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            connected(net::connect(&socket, &SocketAddrUnix::new(path)?))?;
            Ok(socket)
        }
    }
}

/// Whether the connection was never made.
fn is_refused(socket: BorrowedFd<'_>) -> bool {
    net::getpeername(socket).is_err()
}
