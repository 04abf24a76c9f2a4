//! The queue of events that the threads of a server share (epoll(7)).
//!
//! One thread waits at a time; any thread wakes it. Connections are registered once, edge-triggered: an event is
//! reported when something changes, and the thread that gets it must read or write until the socket has no more.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::os::eventfd::Eventfd;
use crate::os::process::Unshared;

/// An epoll instance, and the descriptor that wakes the thread that waits for it.
pub(crate) struct Poller {
    epoll: Unshared,
    wakeup: Eventfd,
}

impl Poller {
    /// A poller with nothing registered but the descriptor that wakes it.
    ///
    /// # Errors
    /// No descriptors or memory left.
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = Unshared::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let poller = Self { epoll, wakeup: Eventfd::new()? };
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
    pub(crate) fn watch_connection(&self, socket: Option<BorrowedFd<'_>>, key: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        self.watch(socket, key, flags)
    }

    /// Registers a listener, level-triggered.
    ///
    /// # Errors
    /// No memory or watches left.
    pub(crate) fn watch_listener(&self, socket: Option<BorrowedFd<'_>>, key: u64) -> io::Result<()> {
        // Not EPOLLEXCLUSIVE: of several idle processes it would wake the same one for every client, and no other one
        // when that process does not accept the client.
        self.watch(socket, key, epoll::EventFlags::IN)
    }

    /// Ends the events of a listener.
    pub(crate) fn forget(&self, socket: Option<BorrowedFd<'_>>) {
        if let (Some(epoll), Some(socket)) = (self.epoll.here(), socket) {
            let _ = epoll::delete(epoll, socket);
        }
    }

    /// Waits for events, at most `timeout` (`None`: for ever). True when a signal interrupted the wait.
    ///
    /// # Errors
    /// Those of epoll_wait(2), which all mean a fault of this program; and always in a child.
    pub(crate) fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<bool> {
        let limit = timeout.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        events.filled.clear();
        let epoll = self.epoll.here().ok_or(Errno::BADF)?;
        let found = match epoll::wait(epoll, events.list.as_mut_slice(), limit.as_ref()) {
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

    /// Wakes the thread that waits, or the next one that does, by an event with the key [`WAKEUP`].
    pub(crate) fn wake(&self) {
        self.wakeup.wake();
    }

    /// Called by the thread that was woken: a later [`Poller::wake`] makes a new event.
    pub(crate) fn clear_wakeup(&self) {
        self.wakeup.clear();
    }
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

    /// What the last wait found: the key given at registration, and what can be done.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Readiness)> + '_ {
        self.filled.iter().copied()
    }
}

/// What can be done with a socket.
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

/// The key of the event that [`Poller::wake`] makes.
pub(crate) const WAKEUP: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use super::{Events, Poller, Readiness, WAKEUP};

    const LONG: Option<Duration> = Some(Duration::from_secs(20));
    const NONE: Option<Duration> = Some(Duration::ZERO);

    fn wait(poller: &Poller, timeout: Option<Duration>) -> Vec<(u64, Readiness)> {
        let mut events = Events::new(8);
        while poller.wait(&mut events, timeout).unwrap() {}
        events.iter().collect()
    }

    #[test]
    fn a_wakeup_is_one_event_until_it_is_cleared_and_reaches_a_thread_that_waits() {
        let poller = Arc::new(Poller::new().unwrap());
        assert!(wait(&poller, NONE).is_empty());
        poller.wake();
        poller.wake();
        let keys: Vec<_> = wait(&poller, LONG).iter().map(|event| event.0).collect();
        assert_eq!(keys, [WAKEUP]);
        poller.clear_wakeup();
        assert!(wait(&poller, NONE).is_empty());
        let waiter = thread::spawn({
            let poller = poller.clone();
            move || wait(&poller, LONG).len()
        });
        poller.wake();
        assert_eq!(waiter.join().unwrap(), 1);
    }

    #[test]
    fn each_change_of_a_connection_is_one_event() {
        let poller = Poller::new().unwrap();
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        poller.watch_connection(Some(ours.as_fd()), 7).unwrap();
        let writable = Readiness { read: false, write: true, read_end: false, gone: false };
        assert_eq!(wait(&poller, LONG), [(7, writable)]);
        assert!(wait(&poller, NONE).is_empty(), "nothing has changed");
        theirs.write_all(b"abc").unwrap();
        assert_eq!(wait(&poller, LONG), [(7, Readiness { read: true, ..writable })]);
        assert!(wait(&poller, NONE).is_empty(), "it is edge-triggered");
        ours.read_exact(&mut [0; 3]).unwrap();
        theirs.shutdown(Shutdown::Write).unwrap();
        assert_eq!(wait(&poller, LONG), [(7, Readiness { read: true, read_end: true, ..writable })]);
        drop(theirs);
        assert_eq!(wait(&poller, LONG), [(7, Readiness { read: true, read_end: true, gone: true, ..writable })]);
        drop(ours);
        assert!(wait(&poller, NONE).is_empty());
    }

    #[test]
    fn a_listener_is_an_event_at_each_wait_until_it_is_forgotten() {
        let poller = Poller::new().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        poller.watch_listener(Some(listener.as_fd()), 3).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        for _ in 0..2 {
            assert_eq!(wait(&poller, LONG).iter().map(|event| event.0).collect::<Vec<_>>(), [3]);
        }
        poller.forget(Some(listener.as_fd()));
        assert!(wait(&poller, NONE).is_empty());
    }

    #[test]
    fn what_is_no_descriptor_of_this_process_is_not_watched() {
        let poller = Poller::new().unwrap();
        assert!(poller.watch_connection(None, 1).is_err());
        assert!(poller.watch_listener(None, 1).is_err());
        poller.forget(None);
    }
}
