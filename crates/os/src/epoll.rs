//! The queue of events that the threads of a server share (epoll(7)).
//!
//! One thread waits at a time; any thread wakes it. Connections are registered once, edge-triggered: an event is
//! reported when something changes, and the thread that gets it must read or write until the socket has no more.
//!
//! A wait is one call of epoll_pwait2(2), which takes nanoseconds. Kernels before Linux 5.11 do not have it, and filters
//! of system calls that are older than it forbid it. There, a short wait is one call of ppoll(2) for the epoll instance
//! before epoll_wait(2), which takes milliseconds.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::io::Errno;

use crate::clock;
use crate::eventfd::Eventfd;
use crate::poll::timespec;
use crate::process::Unshared;

/// Without epoll_pwait2(2), shorter waits are exact. Longer ones are rounded up to milliseconds, which saves a call if
/// events come.
const SHORT: Duration = Duration::from_millis(10);

/// An epoll instance, and the descriptor that wakes the thread that waits for it.
pub struct Poller {
    epoll: Unshared,
    wakeup: Eventfd,
    /// False once epoll_pwait2(2) was missing or forbidden.
    has_pwait2: AtomicBool,
}

impl Poller {
    /// A poller with nothing registered except the descriptor that wakes it.
    ///
    /// # Errors
    /// No descriptors or memory left.
    pub fn new() -> io::Result<Self> {
        let epoll = Unshared::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let poller = Self { epoll, wakeup: Eventfd::new()?, has_pwait2: AtomicBool::new(true) };
        poller.watch(poller.wakeup.here(), WAKEUP, epoll::EventFlags::IN)?;
        Ok(poller)
    }

    fn watch(&self, descriptor: Option<BorrowedFd<'_>>, key: u64, flags: epoll::EventFlags) -> io::Result<()> {
        let (Some(epoll), Some(descriptor)) = (self.epoll.here(), descriptor) else { return Err(Errno::BADF.into()) };
        Ok(epoll::add(epoll, descriptor, epoll::EventData::new_u64(key), flags)?)
    }

    /// Registers a connection, both directions, edge-triggered. Closing the socket ends the registration.
    ///
    /// # Errors
    /// No memory or watches left.
    pub fn watch_connection(&self, socket: Option<BorrowedFd<'_>>, key: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        self.watch(socket, key, flags)
    }

    /// From now on, only the end of a connection is an event: another party reads and writes.
    pub fn watch_end(&self, socket: Option<BorrowedFd<'_>>, key: u64) {
        if let (Some(epoll), Some(socket)) = (self.epoll.here(), socket) {
            let flags = epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
            let _ = epoll::modify(epoll, socket, epoll::EventData::new_u64(key), flags);
        }
    }

    /// Registers a listener, level-triggered.
    ///
    /// # Errors
    /// No memory or watches left.
    pub fn watch_listener(&self, socket: Option<BorrowedFd<'_>>, key: u64) -> io::Result<()> {
        // Not EPOLLEXCLUSIVE: of several idle processes, it would wake the same one for every client, and no other if
        // that one does not accept the client.
        self.watch(socket, key, epoll::EventFlags::IN)
    }

    /// Ends the events of a listener.
    pub fn forget(&self, socket: Option<BorrowedFd<'_>>) {
        if let (Some(epoll), Some(socket)) = (self.epoll.here(), socket) {
            let _ = epoll::delete(epoll, socket);
        }
    }

    /// Waits for events, at most `timeout` (`None`: for ever). True when a signal interrupted the wait.
    ///
    /// # Errors
    /// Those of epoll_wait(2), which all mean a fault of this program; and always in a child.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<bool> {
        events.list.clear();
        events.filled.clear();
        let epoll = self.epoll.here().ok_or(Errno::BADF)?;
        match self.fill(epoll, &mut events.list, timeout) {
            Ok(()) => {}
            Err(Errno::INTR) => return Ok(true),
            Err(fault) => return Err(fault.into()),
        }
        events.filled.extend(events.list.iter().map(|event| {
            let flags = event.flags;
            let gone = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
            let read_end = flags.contains(epoll::EventFlags::RDHUP);
            let readiness = SocketReadiness {
                read: flags.contains(epoll::EventFlags::IN) || read_end || gone,
                write: flags.contains(epoll::EventFlags::OUT),
                read_end,
                gone,
            };
            (event.data.u64(), readiness)
        }));
        Ok(false)
    }

    fn fill(
        &self,
        epoll: BorrowedFd<'_>,
        list: &mut Vec<epoll::Event>,
        timeout: Option<Duration>,
    ) -> rustix::io::Result<()> {
        if self.has_pwait2.load(Ordering::Relaxed) {
            match epoll::wait(epoll, spare_capacity(list), timeout.map(timespec).as_ref()) {
                // Most filters return the second, which epoll_pwait2(2) itself never does.
                Err(Errno::NOSYS | Errno::PERM) => self.has_pwait2.store(false, Ordering::Relaxed),
                result => return result.map(drop),
            }
        }
        fill_without_pwait2(epoll, list, timeout)
    }

    /// Wakes the thread that waits, or the next one that does, by an event with the key [`WAKEUP`].
    pub fn wake(&self) {
        self.wakeup.wake();
    }

    /// Called by the thread that was woken: a later [`Poller::wake`] makes a new event.
    pub fn clear_wakeup(&self) {
        self.wakeup.clear();
    }
}

fn fill_without_pwait2(
    epoll: BorrowedFd<'_>,
    list: &mut Vec<epoll::Event>,
    timeout: Option<Duration>,
) -> rustix::io::Result<()> {
    let Some(time) = timeout else { return fill_by_millis(epoll, list, -1) };
    if time.is_zero() || time >= SHORT {
        return fill_by_millis(epoll, list, c_int::try_from(clock::millis(time)).unwrap_or(c_int::MAX));
    }
    // An epoll instance is readable while it has events.
    match poll(&mut [PollFd::from_borrowed_fd(epoll, PollFlags::IN)], Some(&timespec(time)))? {
        0 => Ok(()),
        _ => fill_by_millis(epoll, list, 0),
    }
}

/// epoll_wait(2). rustix would have it only instead of epoll_pwait2(2). time: -1 means no limit.
fn fill_by_millis(epoll: BorrowedFd<'_>, list: &mut Vec<epoll::Event>, time: c_int) -> rustix::io::Result<()> {
    unsafe extern "C" {
        fn epoll_wait(epoll: c_int, events: *mut c_void, most: c_int, time: c_int) -> c_int;
    }
    let room = list.spare_capacity_mut();
    let most = c_int::try_from(room.len()).unwrap_or(c_int::MAX);
    // SAFETY: the call writes at most so many events at this address, where there is room for them. rustix's type has
    // the layout of `struct epoll_event`.
    let found = unsafe { epoll_wait(epoll.as_raw_fd(), room.as_mut_ptr().cast(), most, time) };
    let Ok(found) = usize::try_from(found) else {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    };
    // SAFETY: the call has written so many events, for which there was room after those of the list.
    unsafe { list.set_len(list.len() + found) };
    Ok(())
}

/// The events of one wait.
pub struct Events {
    list: Vec<epoll::Event>,
    filled: Vec<(u64, SocketReadiness)>,
}

impl Events {
    /// Room for `capacity` events a wait.
    pub fn new(capacity: usize) -> Self {
        Self { list: Vec::with_capacity(capacity), filled: Vec::with_capacity(capacity) }
    }

    /// What the last wait found: the key given at registration, and what can be done.
    pub fn iter(&self) -> impl Iterator<Item = (u64, SocketReadiness)> + '_ {
        self.filled.iter().copied()
    }
}

/// What can be done with a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketReadiness {
    /// Bytes or an end-of-file can be read.
    pub read: bool,
    /// Bytes can be written again.
    pub write: bool,
    /// The peer has closed its sending direction: a read will reach the end.
    pub read_end: bool,
    /// Both directions are closed, or the connection is broken.
    pub gone: bool,
}

/// The key of the event that [`Poller::wake`] makes.
pub const WAKEUP: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{Events, Poller, SHORT, SocketReadiness, WAKEUP};

    const LONG: Option<Duration> = Some(Duration::from_secs(20));
    const NONE: Option<Duration> = Some(Duration::ZERO);

    /// One as the kernel allows, and one as on a kernel without epoll_pwait2(2).
    fn pollers() -> [Poller; 2] {
        let older = Poller::new().unwrap();
        older.has_pwait2.store(false, Ordering::Relaxed);
        [Poller::new().unwrap(), older]
    }

    fn wait(poller: &Poller, timeout: Option<Duration>) -> Vec<(u64, SocketReadiness)> {
        let mut events = Events::new(8);
        while poller.wait(&mut events, timeout).unwrap() {}
        events.iter().collect()
    }

    fn keys(poller: &Poller, timeout: Option<Duration>) -> Vec<u64> {
        wait(poller, timeout).iter().map(|event| event.0).collect()
    }

    #[test]
    fn a_wakeup_is_one_event_until_it_is_cleared_and_reaches_a_thread_that_waits() {
        for poller in pollers().map(Arc::new) {
            assert!(wait(&poller, NONE).is_empty());
            poller.wake();
            poller.wake();
            assert_eq!(keys(&poller, LONG), [WAKEUP]);
            poller.clear_wakeup();
            assert!(wait(&poller, NONE).is_empty());
            for time in [None, LONG] {
                let waiter = thread::spawn({
                    let poller = poller.clone();
                    move || keys(&poller, time)
                });
                poller.wake();
                assert_eq!(waiter.join().unwrap(), [WAKEUP]);
                poller.clear_wakeup();
            }
        }
    }

    #[test]
    fn a_wait_ends_with_its_time_or_with_an_event_however_short_it_is() {
        let micros = Duration::from_micros;
        for poller in pollers() {
            for time in
                [micros(1), micros(300), micros(999), micros(1_500), SHORT - micros(1), SHORT, SHORT + micros(1)]
            {
                let began = Instant::now();
                let mut events = Events::new(8);
                // A signal ends a wait early.
                let is_interrupted = poller.wait(&mut events, Some(time)).unwrap();
                assert!(is_interrupted || began.elapsed() >= time, "{time:?}");
                assert_eq!(events.iter().count(), 0);
                poller.wake();
                assert_eq!(keys(&poller, Some(time)), [WAKEUP], "{time:?}");
                poller.clear_wakeup();
            }
        }
    }

    #[test]
    fn more_events_than_there_is_room_for_are_those_of_the_next_wait() {
        for poller in pollers() {
            let pairs: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
            for (key, (ours, _)) in (0..).zip(&pairs) {
                poller.watch_connection(Some(ours.as_fd()), key).unwrap();
            }
            for time in [NONE, Some(Duration::from_micros(500))] {
                let mut found = Vec::new();
                let mut events = Events::new(2);
                for count in [2, 1] {
                    while poller.wait(&mut events, time).unwrap() {}
                    assert_eq!(events.iter().count(), count);
                    found.extend(events.iter().map(|event| event.0));
                }
                found.sort_unstable();
                assert_eq!(found, [0, 1, 2]);
                for (_, theirs) in &pairs {
                    rustix::io::write(theirs, b"x").unwrap();
                }
            }
        }
    }

    #[test]
    fn each_change_of_a_connection_is_one_event() {
        for poller in pollers() {
            let (mut ours, mut theirs) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            poller.watch_connection(Some(ours.as_fd()), 7).unwrap();
            let writable = SocketReadiness { read: false, write: true, read_end: false, gone: false };
            assert_eq!(wait(&poller, LONG), [(7, writable)]);
            assert!(wait(&poller, NONE).is_empty(), "nothing has changed");
            theirs.write_all(b"abc").unwrap();
            assert_eq!(wait(&poller, LONG), [(7, SocketReadiness { read: true, ..writable })]);
            assert!(wait(&poller, NONE).is_empty(), "it is edge-triggered");
            ours.read_exact(&mut [0; 3]).unwrap();
            theirs.shutdown(Shutdown::Write).unwrap();
            assert_eq!(wait(&poller, LONG), [(7, SocketReadiness { read: true, read_end: true, ..writable })]);
            drop(theirs);
            assert_eq!(
                wait(&poller, LONG),
                [(7, SocketReadiness { read: true, read_end: true, gone: true, ..writable })]
            );
            drop(ours);
            assert!(wait(&poller, NONE).is_empty());
        }
    }

    #[test]
    fn a_listener_is_an_event_at_each_wait_until_it_is_forgotten() {
        for poller in pollers() {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            poller.watch_listener(Some(listener.as_fd()), 3).unwrap();
            let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            for _ in 0..2 {
                assert_eq!(keys(&poller, LONG), [3]);
            }
            poller.forget(Some(listener.as_fd()));
            assert!(wait(&poller, NONE).is_empty());
        }
    }

    #[test]
    fn what_is_no_descriptor_of_this_process_is_not_watched() {
        let poller = Poller::new().unwrap();
        assert!(poller.watch_connection(None, 1).is_err());
        assert!(poller.watch_listener(None, 1).is_err());
        poller.forget(None);
    }
}
