//! Connections that other workers pass to this one, because it owns the session of their request ([`crate::sticky`]).
//!
//! A thread takes them from the other workers, which it may have to wait for; the thread that leads the loop adopts them.
//! Once this worker drains, the kernel refuses what others would pass, and they serve it. What was passed before is adopted.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tailrace_os::panics::catch;
use tailrace_os::process::Unshared;
use tailrace_os::sync::lock;
use tailrace_os::{clock, passing, poll, socket};

use crate::connection::context::Context;
use crate::sticky::message::{self, Passed};

/// The thread waits this long for the next connection before it waits again.
const WAIT: Duration = Duration::from_secs(600);
/// How long it waits after an error, such as that there are no descriptors left.
const PAUSE: Duration = Duration::from_millis(50);

/// Any thread.
pub(super) struct Adopting {
    context: Arc<Context>,
    listener: Unshared,
    arrived: Mutex<Vec<(OwnedFd, Passed)>>,
    has_arrived: AtomicBool,
    /// No more can be passed.
    is_closed: AtomicBool,
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
            arrived: Mutex::default(),
            has_arrived: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
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
        while let Some(listener) = self.listener.here() {
            // Asked before: nothing can come after that.
            let is_closed = self.is_closed.load(Ordering::Acquire);
            match socket::accept(listener) {
                Ok(Some((from, _))) => {
                    if let Some(passed) = message::receive(from.as_fd()) {
                        lock(&self.arrived).push(passed);
                        self.has_arrived.store(true, Ordering::Release);
                        self.context.poller.wake();
                    }
                }
                Ok(None) | Err(_) if is_closed => return,
                Ok(None) => _ = poll::wait_readable(listener, WAIT),
                Err(_) => clock::sleep(PAUSE),
            }
        }
    }

    /// Those that have arrived since the last call.
    pub(super) fn take(&self) -> Vec<(OwnedFd, Passed)> {
        if !self.has_arrived.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut lock(&self.arrived))
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

    /// True when nothing arrives any more. Those that have arrived may not have been taken.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}
