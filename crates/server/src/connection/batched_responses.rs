//! Batched responses: while the application is busy, a small complete response is held instead of sent immediately, and
//! several batched responses are sent one after the other. [`HoldRule`] is the rule.
//!
//! Each send wakes a client. On the server's core the client preempts the next call of the application; on another core
//! the wake-up costs an interrupt. Sends after several calls make fewer of both.
//!
//! PEP 3333, "Buffering and Streaming": servers "must either fully transmit the block to the client, or guarantee that
//! they will continue transmission even while the application is producing its next block". A complete response has no
//! next block, and a block of one that is not complete is never held here ([`crate::response::coalescing`] delays
//! some). The guarantee is given nevertheless: another thread, the timekeeper, sends what has been held for longer than
//! the limit, even while the application runs. It sleeps until a timer expires, which the first response of a batch sets,
//! and which is stopped when the batch is sent. So it wakes only if a call of the application takes too long; while calls
//! are short, it costs two system calls for each batch. A thread that looked twice a millisecond made four times as many
//! context switches.
//!
//! A process that dies loses the responses that it holds. So only responses to safe methods are held (RFC 9110 section
//! 9.2.1): a client may send such a request again.
//!
//! Threads: runners hold and send responses; the timekeeper sends what they have left for too long. The list owns its
//! connections.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tailrace_observe::level::Level;
use tailrace_os::mapping;
use tailrace_os::panics::{catch, may_panic};
use tailrace_os::sync::atomic::{AtomicUsize, Ordering};
use tailrace_os::sync::{Mutex, lock};
use tailrace_os::timer::Timer;

use crate::connection::driver::Connection;
use crate::connection::hold_rule::HoldRule;
use crate::connection::ownership::Owned;

/// Bytes of the stack of the timekeeper.
const STACK: usize = 256 << 10;

#[derive(Default)]
struct List {
    connections: Vec<Owned<Connection>>,
    /// When the first connection was added.
    since: Option<Instant>,
}

pub(crate) struct BatchedResponses {
    list: Mutex<List>,
    count: AtomicUsize,
    pub(crate) rule: HoldRule,
    /// When the timekeeper comes. `None`: no response is held.
    timer: Option<Arc<Timer>>,
    /// Whether the timekeeper could be started, once a response was to be held.
    has_timekeeper: OnceLock<bool>,
}

impl Drop for BatchedResponses {
    fn drop(&mut self) {
        self.dismiss_timekeeper();
    }
}

impl BatchedResponses {
    /// An empty list.
    ///
    /// # Errors
    /// No descriptors left.
    pub(crate) fn new(rule: HoldRule) -> io::Result<Self> {
        let timer = if rule.is_on() { Some(Arc::new(Timer::new()?)) } else { None };
        let (list, count, has_timekeeper) = (Mutex::default(), AtomicUsize::new(0), OnceLock::new());
        Ok(Self { list, count, rule, timer, has_timekeeper })
    }

    /// True when responses may be held at all.
    pub(crate) fn is_on(&self) -> bool {
        self.timer.is_some() && self.has_timekeeper.get() != Some(&false)
    }

    /// Holds the complete response of a connection that the caller owns. `keep_time`, called once, gives what the
    /// timekeeper does until that returns false.
    pub(crate) fn hold<F: FnMut() -> bool + Send + 'static>(
        &self,
        connection: Owned<Connection>,
        now: Instant,
        keep_time: impl FnOnce() -> F,
    ) {
        let timer = self.timer.as_ref();
        let has_timekeeper =
            timer.is_some_and(|timer| *self.has_timekeeper.get_or_init(|| start(timer.clone(), keep_time())));
        {
            let mut list = lock(&self.list);
            list.connections.push(connection);
            self.count.store(list.connections.len(), Ordering::SeqCst);
            if list.since.is_none() {
                list.since = Some(now);
                // Under the lock, so that the end of the batch before cannot stop it.
                if let Some(timer) = timer {
                    timer.set(self.rule.overdue());
                }
            }
        }
        if !has_timekeeper {
            self.send();
        }
    }

    /// True when nothing is held.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// How long the oldest response has been held by `now`. `None`: nothing is held.
    pub(crate) fn held_for(&self, now: Instant) -> Option<Duration> {
        let since = lock(&self.list).since?;
        Some(now.saturating_duration_since(since))
    }

    /// Sends all batched responses, one after the other. A panic in one breaks its connection only.
    pub(crate) fn send(&self) {
        if self.is_empty() {
            return;
        }
        for owned in self.take() {
            let connection = owned.clone();
            let send = || {
                may_panic("held");
                owned.end_hold();
            };
            if let Err(panic) = catch(send) {
                let message = format!("a connection ended in a panic of the server: {panic}");
                connection.host.log(Level::Error, &message);
                // The panic has dropped the connection's owner.
                let _ = catch(|| connection.abort());
                let _ = catch(|| connection.host.remove(&connection));
            }
        }
    }

    /// Empties the list and has the timekeeper end, when the server ends.
    pub(crate) fn end(&self) {
        drop(self.take());
        self.dismiss_timekeeper();
    }

    /// Has the timekeeper find out that the server has ended.
    fn dismiss_timekeeper(&self) {
        if let Some(timer) = &self.timer {
            timer.set(Duration::ZERO);
        }
    }

    fn take(&self) -> Vec<Owned<Connection>> {
        let mut list = lock(&self.list);
        if let (Some(_), Some(timer)) = (list.since.take(), &self.timer) {
            // The next batch may begin shortly before it expires.
            timer.stop();
        }
        self.count.store(0, Ordering::SeqCst);
        std::mem::take(&mut list.connections)
    }
}

/// Starts the thread that calls `keep_time` whenever the timer expires, until that returns false. False: the system has
/// no thread for it.
fn start(timer: Arc<Timer>, mut keep_time: impl FnMut() -> bool + Send + 'static) -> bool {
    let thread = std::thread::Builder::new().name(String::from("tailrace-timer")).stack_size(STACK);
    mapping::is_thread_possible(STACK) && thread.spawn(move || while timer.wait() && keep_time() {}).is_ok()
}
