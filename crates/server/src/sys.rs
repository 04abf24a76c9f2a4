//! System calls, as this crate uses them. Thin: a name, the flags we always want, and nothing else.
//!
//! `rustix` makes the calls without a libc in between and is safe to use, but for shared memory and forks: this is the only file
//! of the crate that may hold any `unsafe`.
#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;
use std::{ptr, slice};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, acceptfrom_with, recv, sendmsg, shutdown, sockopt,
};

/// What a read or a write on a non-blocking socket came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Io {
    /// So many bytes were moved; never zero.
    Moved(usize),
    /// Nothing can be moved now.
    WouldBlock,
    /// Reading: the peer has sent its last byte.
    End,
    /// The connection is broken.
    Broken,
}

fn outcome(result: rustix::io::Result<usize>) -> Io {
    match result {
        Ok(0) => Io::End,
        Ok(moved) => Io::Moved(moved),
        Err(Errno::AGAIN) => Io::WouldBlock,
        Err(_) => Io::Broken,
    }
}

/// Reads what the socket has, at most `buffer.len()` bytes.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Io {
    loop {
        match recv(socket, &mut *buffer, RecvFlags::empty()) {
            Err(Errno::INTR) => {}
            other => return outcome(other.map(|(_, moved)| moved)),
        }
    }
}

/// Writes the slices in order, as far as the socket takes them. `more`: further bytes follow at once (no short
/// segment is sent yet).
pub(crate) fn transmit(socket: BorrowedFd<'_>, slices: &[IoSlice<'_>], more: bool) -> Io {
    let mut flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    if more {
        flags |= SendFlags::MORE;
    }
    loop {
        let sent = match slices {
            [only] => rustix::net::send(socket, only, flags),
            _ => sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), flags),
        };
        match sent {
            Err(Errno::INTR) => {}
            other => return outcome(other),
        }
    }
}

/// Sends `count` bytes of `file` from `offset`, as far as the socket takes them. `Io::End`: the file has no more.
pub(crate) fn transmit_file(socket: BorrowedFd<'_>, file: BorrowedFd<'_>, offset: u64, count: usize) -> Io {
    let mut at = offset;
    loop {
        match rustix::fs::sendfile(socket, file, Some(&mut at), count) {
            Err(Errno::INTR) => {}
            other => return outcome(other),
        }
    }
}

/// Accepts one connection, non-blocking. `Ok(None)`: none is waiting.
///
/// # Errors
/// Those of accept(2) that say something of this process (no descriptors, no memory); faults of the one connection
/// that went away are passed over.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<(OwnedFd, Option<SocketAddr>)>> {
    loop {
        match acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok((socket, peer)) => return Ok(Some((socket, peer.and_then(|any| SocketAddr::try_from(any).ok())))),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO | Errno::PERM) => {}
            Err(fault) => return Err(fault.into()),
        }
    }
}

/// Blocks until the socket takes bytes or is broken, for at most `time`; a signal ends the wait.
pub(crate) fn wait_writable(socket: BorrowedFd<'_>, time: Duration) {
    // Whatever it says, the next write tells more.
    wait(socket, PollFlags::OUT, time);
}

/// Blocks until there is something to read, be it the end, for at most `time`; a signal ends the wait. True: there is.
pub(crate) fn wait_readable(socket: BorrowedFd<'_>, time: Duration) -> bool {
    wait(socket, PollFlags::IN, time)
}

fn wait(socket: BorrowedFd<'_>, wanted: PollFlags, time: Duration) -> bool {
    let limit =
        Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: i64::from(time.subsec_nanos()) };
    poll(&mut [PollFd::from_borrowed_fd(socket, wanted)], Some(&limit)).is_ok_and(|ready| ready > 0)
}

/// So many words, zero, in memory that this process shares with those it forks. They are never given back.
///
/// # Errors
/// No memory.
pub(crate) fn shared_words(count: usize) -> io::Result<&'static [AtomicU64]> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let bytes = count.checked_mul(size_of::<AtomicU64>()).ok_or(Errno::NOMEM)?.max(1);
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
    let address =
        unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)? };
    // SAFETY: the mapping is as long as said, aligned to a page, zero (a valid value of every word), and never unmapped;
    // the processes that share it change it through atomics alone.
    Ok(unsafe { slice::from_raw_parts(address.cast::<AtomicU64>(), count) })
}

/// The clock that all processes share, in nanoseconds.
pub(crate) fn monotonic_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// The number that the kernel gives the calling thread.
pub(crate) fn thread_id() -> u64 {
    u64::from(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs())
}

/// What has become of this process since [`watch_forks`].
static FORKS: AtomicU8 = AtomicU8::new(UNFORKED);
const UNFORKED: u8 = 0;
const PARENT: u8 = 1;
const CHILD: u8 = 2;

/// From now on [`has_forked`] knows.
pub(crate) fn watch_forks() {
    unsafe extern "C" {
        fn pthread_atfork(
            prepare: Option<extern "C" fn()>,
            parent: Option<extern "C" fn()>,
            child: Option<extern "C" fn()>,
        ) -> std::ffi::c_int;
    }
    extern "C" fn parent() {
        // A child has no say in its parent's connections, whatever it forks.
        let _ = FORKS.compare_exchange(UNFORKED, PARENT, Ordering::Relaxed, Ordering::Relaxed);
    }
    extern "C" fn child() {
        FORKS.store(CHILD, Ordering::Relaxed);
    }
    static ONCE: Once = Once::new();
    // SAFETY: the handlers run inside of fork(2), where storing a number is safe. Without memory for them nothing is noted,
    // and a connection ends for its client when the last process has closed it.
    ONCE.call_once(|| unsafe {
        pthread_atfork(None, Some(parent), Some(child));
    });
}

/// True when this process has forked since [`watch_forks`]: closing a socket then need not end its connection.
pub(crate) fn has_forked() -> bool {
    FORKS.load(Ordering::Relaxed) == PARENT
}

/// Breaks a connection so that the peer sees it at once: by a reset where the protocol has one.
pub(crate) fn abort(socket: BorrowedFd<'_>) {
    if rustix::net::connect_unspec(socket).is_err() {
        cut(socket);
    }
}

/// Ends our direction of the connection; the peer reads end-of-file after what was sent.
pub(crate) fn end_sending(socket: BorrowedFd<'_>) {
    // An error means that the peer is gone, which is what we want.
    let _ = shutdown(socket, Shutdown::Write);
}

/// Ends both directions at once: readers and writers of either side see it.
pub(crate) fn cut(socket: BorrowedFd<'_>) {
    let _ = shutdown(socket, Shutdown::Both);
}

/// Makes the close of this socket a reset: a peer that reads until end-of-file sees an error instead.
pub(crate) fn reset_on_close(socket: BorrowedFd<'_>) {
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// A descriptor that is readable from a ring until it is silenced.
pub(crate) struct Bell(OwnedFd);

impl Bell {
    /// A silent one.
    ///
    /// # Errors
    /// No descriptors left.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Wakes who waits for it, now or at the next wait.
    pub(crate) fn ring(&self) {
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Takes all rings back.
    pub(crate) fn silence(&self) {
        let mut count = [0_u8; 8];
        let _ = rustix::io::read(&self.0, &mut count);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The readiness queue that the threads of a reactor share.
pub(crate) struct Poller {
    epoll: OwnedFd,
    alarm: Bell,
}

/// The events of one wait.
pub(crate) struct Events {
    list: Vec<MaybeUninit<epoll::Event>>,
    filled: Vec<(u64, Readiness)>,
}

impl Events {
    /// Room for `capacity` events a wait.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { list: vec![MaybeUninit::uninit(); capacity], filled: Vec::with_capacity(capacity) }
    }

    /// What the last wait found: the key given at registration, and what happened.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Readiness)> + '_ {
        self.filled.iter().copied()
    }
}

/// What happened at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Readiness {
    /// Bytes or an end-of-file can be read.
    pub read: bool,
    /// Bytes can be written again.
    pub write: bool,
    /// The peer has ended its direction: a read will come to the end.
    pub read_end: bool,
    /// Both directions are closed, or the connection is broken.
    pub gone: bool,
}

/// The key under which the poller reports its own alarm.
pub(crate) const ALARM: u64 = u64::MAX;

impl Poller {
    /// A poller with nothing registered but its alarm.
    ///
    /// # Errors
    /// No descriptors or memory left.
    pub(crate) fn new() -> io::Result<Self> {
        let poller = Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, alarm: Bell::new()? };
        epoll::add(&poller.epoll, &poller.alarm, epoll::EventData::new_u64(ALARM), epoll::EventFlags::IN)?;
        Ok(poller)
    }

    /// Registers a connection once and for all: both directions, edge-triggered.
    ///
    /// # Errors
    /// No memory or watches left.
    pub(crate) fn watch_connection(&self, socket: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(key), flags)?)
    }

    /// Registers a listener, level-triggered.
    ///
    /// # Errors
    /// No memory or watches left.
    pub(crate) fn watch_listener(&self, socket: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        // Not EPOLLEXCLUSIVE: it would wake the same one of several idle processes for every client, and none for a
        // client that the one it woke leaves alone.
        let flags = epoll::EventFlags::IN;
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(key), flags)?)
    }

    /// Forgets a listener.
    pub(crate) fn forget(&self, socket: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, socket);
    }

    /// Waits for events, at most `timeout` (`None`: for ever). True when a signal interrupted the wait.
    ///
    /// # Errors
    /// Those of epoll_wait(2), which all mean a fault of ours.
    pub(crate) fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<bool> {
        let limit = timeout.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        events.filled.clear();
        let found = match epoll::wait(&self.epoll, events.list.as_mut_slice(), limit.as_ref()) {
            Ok((found, _)) => found,
            Err(Errno::INTR) => return Ok(true),
            Err(fault) => return Err(fault.into()),
        };
        events.filled.extend(found.iter().map(|event| {
            let flags = event.flags;
            let gone = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
            let read_end = flags.contains(epoll::EventFlags::RDHUP);
            let readiness = Readiness {
                read: flags.contains(epoll::EventFlags::IN) || read_end || gone,
                write: flags.contains(epoll::EventFlags::OUT),
                read_end,
                gone,
            };
            (event.data.u64(), readiness)
        }));
        Ok(false)
    }

    /// Wakes the thread that waits, now or at its next wait.
    pub(crate) fn ring(&self) {
        self.alarm.ring();
    }

    /// Takes the alarm back.
    pub(crate) fn silence(&self) {
        self.alarm.silence();
    }
}

/// A new unlinked temporary file in the system's temporary folder.
///
/// # Errors
/// The folder cannot be written or has no space.
pub(crate) fn temporary_file() -> io::Result<std::fs::File> {
    use rustix::fs::{Mode, OFlags, open};
    let folder = std::env::temp_dir();
    match open(&folder, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(file.into()),
        // A file system without O_TMPFILE: make a named one and unlink it.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => named_and_unlinked(&folder),
        Err(fault) => Err(fault.into()),
    }
}

fn named_and_unlinked(folder: &std::path::Path) -> io::Result<std::fs::File> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    loop {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("penstock-{}-{serial}", std::process::id()));
        match std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => {
                std::fs::remove_file(&path)?;
                return Ok(file);
            }
            Err(fault) if fault.kind() == io::ErrorKind::AlreadyExists => {}
            Err(fault) => return Err(fault),
        }
    }
}
