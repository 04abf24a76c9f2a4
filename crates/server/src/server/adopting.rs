//! Connections that other workers pass to this one, because it owns the session of their request ([`crate::sticky`]).
//!
//! A thread takes them from the other workers, which it may have to wait for; the thread that leads the loop adopts them.
//! Once this worker drains and nobody follows it, the kernel refuses what others would pass, and they serve it. What was
//! passed before is adopted.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tailrace_os::panics::catch;
use tailrace_os::process::Unshared;
use tailrace_os::socket::{self, AcceptFault};
use tailrace_os::sync::lock;
use tailrace_os::{clock, passing, poll};

use crate::connection::context::Context;
use crate::request::memory::Charge;
use crate::sticky::message::{self, MAX_READ, PassedConnection};

/// The thread waits this long for the next connection before it waits again.
const WAIT: Duration = Duration::from_secs(600);
/// How long it waits after an error, such as that there are no descriptors left.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of connections that wait to be adopted, and of the bytes that were read of them. Others wait in the
/// kernel (up to 256, of up to 1 MiB each), or are served where they are. These must be rare: a burst of 300 requests is
/// usual when clients connect again, and Socket.IO refuses each that its worker does not get.
const MAX_ARRIVED: usize = 1024;
const MAX_ARRIVED_BYTES: usize = 64 * MAX_READ;
/// How long the thread waits for the loop when it has as many.
const FULL: Duration = Duration::from_millis(1);

/// A connection that waits to be adopted.
pub(super) struct Arrived {
    pub(super) socket: OwnedFd,
    pub(super) passed: PassedConnection,
    /// Of what was read.
    pub(super) charge: Charge,
}

/// What the loop is to know.
#[derive(Default)]
pub(super) struct News {
    pub(super) arrived: Vec<Arrived>,
    /// What was read of these.
    bytes: usize,
    /// Why there is no descriptor for the next one.
    pub(super) exhausted: Option<io::Error>,
    /// Why one that was passed could not be taken. Each is counted.
    pub(super) lost: Option<io::Error>,
}

impl News {
    fn is_full(&self) -> bool {
        self.arrived.len() >= MAX_ARRIVED || self.bytes >= MAX_ARRIVED_BYTES
    }
}

/// Any thread.
pub(super) struct Adopting {
    context: Arc<Context>,
    listener: Unshared,
    news: Mutex<News>,
    has_news: AtomicBool,
    /// No more can be passed.
    is_closed: AtomicBool,
    /// The server has ended.
    is_ended: AtomicBool,
    /// The thread has ended.
    is_over: AtomicBool,
}

impl Adopting {
    /// Takes connections at this abstract name from now on.
    ///
    /// # Errors
    /// The name is taken, or no descriptors or threads are left.
    pub(super) fn start(context: Arc<Context>, address: &[u8]) -> io::Result<Arc<Self>> {
        let adopting = Arc::new(Self {
            context,
            listener: Unshared::new(passing::listen_at(address)?),
            news: Mutex::default(),
            has_news: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_ended: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        });
        let taking = adopting.clone();
        let body = move || {
            // After a panic, too, a draining server must not wait for this thread.
            let _ = catch(|| taking.run());
            taking.close();
            taking.is_over.store(true, Ordering::Release);
            taking.context.poller.wake();
        };
        thread::Builder::new().name(String::from("tailrace-adopts")).stack_size(256 * 1024).spawn(body)?;
        Ok(adopting)
    }

    fn run(&self) {
        while !self.is_ended.load(Ordering::Acquire)
            && let Some(listener) = self.listener.here()
        {
            if lock(&self.news).is_full() {
                clock::sleep(FULL);
                continue;
            }
            // Asked before: nothing can come after that.
            let is_closed = self.is_closed.load(Ordering::Acquire);
            match socket::accept(listener) {
                Ok(Some((from, _))) => self.receive(&from),
                // None is left: of a queue that is closed and empty, the kernel says EINVAL.
                Ok(None) | Err(AcceptFault::Other(_)) if is_closed => return,
                Ok(None) => _ = poll::wait_readable(listener, WAIT),
                Err(AcceptFault::Exhausted(fault)) => {
                    self.report(|news| news.exhausted = Some(fault));
                    clock::sleep(PAUSE);
                }
                Err(AcceptFault::Other(_)) => clock::sleep(PAUSE),
            }
        }
    }

    fn receive(&self, from: &OwnedFd) {
        match message::receive(from.as_fd(), |fault| self.report(|news| news.exhausted = Some(fault))) {
            Ok(None) => {}
            Ok(Some((socket, passed))) => {
                let mut charge = Charge::new(self.context.memory.requests.clone());
                charge.set(passed.read.capacity());
                self.report(|news| {
                    news.bytes += charge.bytes();
                    news.arrived.push(Arrived { socket, passed, charge });
                });
            }
            Err(fault) => {
                self.context.shared.count_refusal();
                self.report(|news| news.lost = Some(fault));
            }
        }
    }

    fn report(&self, note: impl FnOnce(&mut News)) {
        note(&mut lock(&self.news));
        self.has_news.store(true, Ordering::Release);
        self.context.poller.wake();
    }

    /// What is new since the last call.
    pub(super) fn take(&self) -> News {
        if !self.has_news.swap(false, Ordering::AcqRel) {
            return News::default();
        }
        std::mem::take(&mut lock(&self.news))
    }

    /// From now on, other workers serve what they would have passed.
    pub(super) fn close(&self) {
        if self.is_closed.load(Ordering::Acquire) {
            return;
        }
        if let Some(sessions) = self.context.sessions.get() {
            sessions.leave();
        }
        if let Some(listener) = self.listener.here() {
            socket::end_receiving(listener);
        }
        self.is_closed.store(true, Ordering::Release);
    }

    /// The server has ended: nothing is taken any more.
    pub(super) fn end(&self) {
        self.close();
        self.is_ended.store(true, Ordering::Release);
    }

    /// True when nothing arrives any more. Those that have arrived may not have been taken.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::thread;
    use std::time::{Duration, Instant};

    use tailrace_http::peer::Peer;
    use tailrace_os::sync::lock;

    use super::{Adopting, MAX_ARRIVED, MAX_ARRIVED_BYTES, News};
    use crate::config::Config;
    use crate::connection::context::Context;
    use crate::executor::inline;
    use crate::sticky::message::PassedConnection;

    fn eventually(is_so: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(Instant::now() < until);
            thread::yield_now();
        }
    }

    #[test]
    fn a_limited_number_waits_and_is_charged_and_none_of_the_others_is_lost() {
        let context = Arc::new(Context::new(Config::default(), inline::POLICY, Arc::default()).unwrap());
        let name = format!("tailrace-test-adopting-{}", std::process::id());
        let adopting = Adopting::start(context.clone(), name.as_bytes()).unwrap();
        let waiting = || lock(&adopting.news).arrived.len();
        let (connection, _client) = UnixStream::pair().unwrap();
        let passed =
            PassedConnection { direct_peer: Peer::of_socket(None, 0), header_peer: None, read: vec![b'x'; 100] };
        for sent in 1..=MAX_ARRIVED {
            passed.send(name.as_bytes(), connection.as_fd()).unwrap();
            eventually(|| waiting() == sent);
        }
        // These wait in the kernel, until its queue is full.
        let more = (0..10_000).take_while(|_| passed.send(name.as_bytes(), connection.as_fd()).is_ok()).count();
        assert!((1..10_000).contains(&more), "{more}");
        assert_eq!(waiting(), MAX_ARRIVED);
        assert!(context.memory.requests.used() >= 100 * MAX_ARRIVED);
        adopting.close();
        assert!(passed.send(name.as_bytes(), connection.as_fd()).is_err());
        let mut taken = 0;
        while taken < MAX_ARRIVED + more {
            taken += adopting.take().arrived.len();
            thread::yield_now();
        }
        eventually(|| adopting.is_over());
        assert!(adopting.take().arrived.is_empty());
        assert_eq!(context.memory.requests.used(), 0);
    }

    #[test]
    fn the_bytes_that_wait_are_limited() {
        let full = News { bytes: MAX_ARRIVED_BYTES, ..News::default() };
        assert!(full.is_full() && !News::default().is_full());
    }

    #[test]
    fn the_thread_ends_with_the_server_although_nobody_takes_what_has_arrived() {
        let context = Arc::new(Context::new(Config::default(), inline::POLICY, Arc::default()).unwrap());
        let name = format!("tailrace-test-ended-{}", std::process::id());
        let adopting = Adopting::start(context, name.as_bytes()).unwrap();
        let (connection, _client) = UnixStream::pair().unwrap();
        let passed = PassedConnection { direct_peer: Peer::of_socket(None, 0), header_peer: None, read: vec![] };
        while lock(&adopting.news).arrived.len() < MAX_ARRIVED {
            let _ = passed.send(name.as_bytes(), connection.as_fd());
        }
        adopting.end();
        eventually(|| adopting.is_over());
    }
}
