//! How the I/O thread and others wake the greenlet thread: the one thread whose greenlets run the application
//! (`--gevent`).
//!
//! A thread with a reason to wake the greenlet thread records it and wakes that thread, which waits for a descriptor in
//! its own event loop, along with everything that its greenlets wait for. Until the greenlet thread has answered, it is
//! not woken again, so one wake-up takes a batch. No reason is lost: the answering thread makes the descriptor
//! unreadable
//! *before* it checks for reasons, and the sender records a reason before the wake-up.
//!
//! Threads: any thread wakes and reports; the greenlet thread takes; one more watches ([`Wakeup::watch`]). In a forked
//! child, nothing here does anything.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tailrace_os::clock;
#[cfg(not(loom))]
use tailrace_os::eventfd::Eventfd;
#[cfg(loom)]
use tailrace_os::model::Eventfd;
use tailrace_os::process::Process;
use tailrace_os::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use tailrace_os::sync::thread;
use tailrace_os::sync::thread::{Thread, ThreadId};
use tailrace_os::sync::{Condvar, Mutex, lock, wait, wait_for};

use crate::dispatch::runners::{Disconnected, Overdue};

/// What the greenlet thread takes when it answers a wake-up.
#[derive(Debug, Default)]
pub struct Wakeups {
    /// The events that greenlets await under these tickets have occurred.
    pub tickets: Vec<u64>,
    /// Requests whose deadline has come.
    pub overdue: Vec<Overdue>,
    /// Requests whose client has left.
    pub disconnected: Vec<Disconnected>,
    /// The server has ended. This comes once, and nothing after it.
    pub ended: bool,
}

/// What the watching thread finds: whether the greenlet thread is blocked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Look {
    /// This wake-up has been unanswered for this long.
    Unanswered(u64, Duration),
    /// The requested wake-up was answered after this long.
    Answered(Duration),
    /// The server has ended.
    Ended,
}

/// The wake-up that was reported as unanswered, and how long it took to be answered.
#[derive(Default)]
struct WakeupWatch {
    wakeup: u64,
    took: Duration,
}

/// Wakes the greenlet thread.
pub struct Wakeup {
    eventfd: Eventfd,
    thread: OnceLock<ThreadId>,
    began: Instant,
    /// The wake-up that is unanswered: when it was sent, in nanoseconds since `began`; 0: none.
    sent: AtomicU64,
    wakeups: Mutex<Wakeups>,
    /// Between two wake-ups for the sake of watching, in nanoseconds; 0: none.
    ping: AtomicU64,
    /// The wake-up for which the watching thread waits to be answered.
    watched: AtomicU64,
    watch: Mutex<WakeupWatch>,
    seen: Condvar,
    /// The watching thread sleeps until the next wake-up.
    asleep: AtomicBool,
    /// The greenlet thread has answered, and not yet found that no request waits.
    is_at_work: AtomicBool,
    /// The I/O thread rests until it has.
    resting: AtomicBool,
    resting_thread: OnceLock<Thread>,
    ended: AtomicBool,
    /// The process whose thread is woken: not a child that the application forks.
    process: Process,
}

impl Wakeup {
    /// Nobody has been woken.
    ///
    /// # Errors
    /// No descriptors left.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            eventfd: Eventfd::new()?,
            thread: OnceLock::new(),
            began: clock::now(),
            sent: AtomicU64::new(0),
            wakeups: Mutex::default(),
            ping: AtomicU64::new(0),
            watched: AtomicU64::new(0),
            watch: Mutex::default(),
            seen: Condvar::new(),
            asleep: AtomicBool::new(false),
            is_at_work: AtomicBool::new(false),
            resting: AtomicBool::new(false),
            resting_thread: OnceLock::new(),
            ended: AtomicBool::new(false),
            process: Process::here(),
        })
    }

    /// Makes the calling thread the greenlet thread. False: another one is, or this one was before.
    pub fn try_claim(&self) -> bool {
        self.thread.set(thread::current().id()).is_ok()
    }

    /// True on the greenlet thread.
    pub fn is_here(&self) -> bool {
        self.thread.get().is_some_and(|thread| *thread == thread::current().id())
    }

    /// What becomes readable when something is recorded; `None` in a child.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.eventfd.here()
    }

    /// A model's greenlet thread: waits for the descriptor.
    #[cfg(loom)]
    pub(crate) fn wait(&self) {
        self.eventfd.wait_readable();
    }

    fn nanos(&self) -> u64 {
        u64::try_from(clock::now().saturating_duration_since(self.began).as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    /// Makes the greenlet thread check for requests and for what the caller has recorded before. One write for a
    /// whole batch.
    pub fn wake(&self) {
        // The earlier record is ordered before the check of `sent`, just as the greenlet thread's check for reasons
        // comes after it sets `sent` to zero.
        fence(Ordering::SeqCst);
        if self.sent.load(Ordering::SeqCst) != 0 || self.is_forked_child() {
            return;
        }
        if self.sent.compare_exchange(0, self.nanos(), Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.eventfd.wake();
            if self.asleep.load(Ordering::SeqCst) {
                self.wake_watcher();
            }
        }
    }

    #[cold]
    fn wake_watcher(&self) {
        // With the lock held, so that it either has not checked yet or is already waiting.
        drop(lock(&self.watch));
        self.seen.notify_all();
    }

    /// The event that a greenlet awaits under this ticket has occurred. False: the server has ended, and the ticket
    /// will not come back.
    pub(crate) fn try_report_ticket(&self, ticket: u64) -> bool {
        if self.is_forked_child() {
            return false;
        }
        let mut wakeups = lock(&self.wakeups);
        if self.ended.load(Ordering::SeqCst) {
            return false;
        }
        wakeups.tickets.push(ticket);
        drop(wakeups);
        self.wake();
        true
    }

    /// The deadline of a request has come, whose greenlet still works on it.
    pub fn report_overdue(&self, overdue: Overdue) {
        if self.is_forked_child() {
            return;
        }
        lock(&self.wakeups).overdue.push(overdue);
        self.wake();
    }

    /// The client of a request has left, whose greenlet still works on it.
    pub fn report_disconnected(&self, disconnected: Disconnected) {
        if self.is_forked_child() {
            return;
        }
        lock(&self.wakeups).disconnected.push(disconnected);
        self.wake();
    }

    /// The server has ended.
    pub(crate) fn report_end(&self) {
        let mut wakeups = lock(&self.wakeups);
        if self.ended.swap(true, Ordering::SeqCst) {
            return;
        }
        wakeups.ended = true;
        drop(wakeups);
        self.wake();
        self.wake_watcher();
    }

    /// Greenlet thread: answers, and takes the reasons for it.
    pub fn take(&self) -> Option<Wakeups> {
        self.eventfd.clear();
        self.is_at_work.store(true, Ordering::SeqCst);
        let wakeup = self.sent.swap(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let now = self.nanos();
        if wakeup != 0 && wakeup == self.watched.load(Ordering::SeqCst) {
            *lock(&self.watch) = WakeupWatch { wakeup, took: Duration::from_nanos(now.saturating_sub(wakeup)) };
            self.seen.notify_all();
        }
        let mut wakeups = lock(&self.wakeups);
        let Wakeups { tickets, overdue, disconnected, ended } = &*wakeups;
        let is_any = *ended || !tickets.is_empty() || !overdue.is_empty() || !disconnected.is_empty();
        is_any.then(|| std::mem::take(&mut *wakeups))
    }

    /// The requests past their deadline that the greenlet thread has not taken notice of yet.
    pub fn overdue(&self) -> Vec<Overdue> {
        lock(&self.wakeups).overdue.clone()
    }

    /// Greenlet thread: no request waits.
    pub(crate) fn note_idle(&self) {
        if !self.is_at_work.load(Ordering::Relaxed) {
            return;
        }
        self.is_at_work.store(false, Ordering::SeqCst);
        if self.resting.load(Ordering::SeqCst)
            && let Some(thread) = self.resting_thread.get()
        {
            thread.unpark();
        }
    }

    /// True if the greenlet thread has requests to take: a wake-up now only adds to them.
    pub(crate) fn is_at_work(&self) -> bool {
        self.is_at_work.load(Ordering::SeqCst) || self.sent.load(Ordering::SeqCst) != 0
    }

    /// I/O thread: sleeps while the greenlet thread has requests to take, for `most` at most.
    pub(crate) fn rest(&self, most: Duration) {
        self.resting_thread.get_or_init(thread::current);
        // Each side records its own state before it checks the other's, so that neither misses the end of the work.
        self.resting.store(true, Ordering::SeqCst);
        if self.is_at_work() {
            thread::park_timeout(most);
        }
        self.resting.store(false, Ordering::SeqCst);
    }

    /// How long a wake-up has been unanswered.
    pub(crate) fn unanswered(&self) -> Duration {
        match self.sent.load(Ordering::SeqCst) {
            0 => Duration::ZERO,
            wakeup => self.age_of(wakeup),
        }
    }

    /// How long ago a wake-up was, be it answered or not.
    pub fn age_of(&self, wakeup: u64) -> Duration {
        Duration::from_nanos(self.nanos().saturating_sub(wakeup))
    }

    /// While requests run and no wake-up is unanswered, the watching thread sends one this often.
    pub fn ping_every(&self, time: Duration) {
        self.ping.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.wake_watcher();
    }

    /// Watching thread: blocks until a wake-up is unanswered for `age`, and says which. `wakeup` above 0: until that
    /// one is, or was answered. `is_busy` says whether requests run: while none does, the thread sleeps until the
    /// next wake-up.
    pub fn watch(&self, age: Duration, wakeup: u64, is_busy: impl Fn() -> bool) -> Look {
        loop {
            if self.ended.load(Ordering::SeqCst) {
                return Look::Ended;
            }
            let sent = self.sent.load(Ordering::SeqCst);
            if wakeup != 0 && sent != wakeup {
                return self.answered(wakeup);
            }
            if sent == 0 {
                self.wait_for_a_wakeup(age, &is_busy);
                continue;
            }
            let left = age.saturating_sub(self.age_of(sent));
            if left.is_zero() {
                self.watched.store(sent, Ordering::SeqCst);
                // Answered before the greenlet thread could see that this one is watched: it was not blocked.
                if wakeup == 0 && self.sent.load(Ordering::SeqCst) != sent {
                    continue;
                }
                return Look::Unanswered(sent, self.age_of(sent));
            }
            // The greenlet thread may block right after it has answered. This thread wakes it again only when this
            // sleep is over.
            let interval = if wakeup == 0 { self.poll_interval(left) } else { left };
            let watch = lock(&self.watch);
            if wakeup == 0 || self.sent.load(Ordering::SeqCst) == wakeup {
                drop(wait_for(&self.seen, watch, interval));
            }
        }
    }

    /// A watched wake-up is not the latest one: the greenlet thread notes how long it took as soon as it has answered.
    fn answered(&self, wakeup: u64) -> Look {
        let mut watch = lock(&self.watch);
        while watch.wakeup != wakeup {
            if self.ended.load(Ordering::SeqCst) {
                return Look::Ended;
            }
            watch = wait(&self.seen, watch);
        }
        Look::Answered(watch.took)
    }

    /// How long the watching thread sleeps at once.
    fn poll_interval(&self, most: Duration) -> Duration {
        match self.ping.load(Ordering::Relaxed) {
            0 => most,
            ping => most.min(Duration::from_nanos(ping)),
        }
    }

    /// No wake-up is unanswered: sends one where requests run, else waits for one.
    fn wait_for_a_wakeup(&self, age: Duration, is_busy: &impl Fn() -> bool) {
        if self.ping.load(Ordering::Relaxed) > 0 && is_busy() {
            self.wake();
            let watch = lock(&self.watch);
            if !self.ended.load(Ordering::SeqCst) {
                drop(wait_for(&self.seen, watch, self.poll_interval(age)));
            }
            return;
        }
        let watch = lock(&self.watch);
        self.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.sent.load(Ordering::SeqCst) == 0 && !self.ended.load(Ordering::SeqCst) {
            drop(wait(&self.seen, watch));
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// In a forked child there is no greenlet thread.
    pub(crate) fn is_forked_child(&self) -> bool {
        !self.process.is_here()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::{Look, Wakeup};

    fn wait_until_woken(wakeup: &Wakeup) {
        use rustix::event::{PollFd, PollFlags, poll};
        let descriptor = wakeup.descriptor().unwrap();
        poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None).unwrap();
    }

    #[test]
    fn no_news_is_lost_between_many_threads() {
        const EACH: u64 = 50_000;
        let wakeup = Arc::new(Wakeup::new().unwrap());
        let tellers: Vec<_> = (0..3_u64)
            .map(|teller| {
                let wakeup = wakeup.clone();
                thread::spawn(move || {
                    (1..=EACH).for_each(|number| assert!(wakeup.try_report_ticket(teller * EACH + number)))
                })
            })
            .collect();
        let mut tickets = Vec::new();
        // A lost wake-up would leave this waiting for ever.
        while tickets.len() < 3 * EACH as usize {
            wait_until_woken(&wakeup);
            tickets.extend(wakeup.take().unwrap_or_default().tickets);
        }
        tellers.into_iter().for_each(|teller| teller.join().unwrap());
        tickets.sort_unstable();
        assert!(tickets.into_iter().eq(1..=3 * EACH));
    }

    #[test]
    fn what_is_noted_before_a_wakeup_is_found_after_it() {
        // As requests are: noted in a place of its own, looked at after `take`.
        const LAST: u64 = 100_000;
        let wakeup = Arc::new(Wakeup::new().unwrap());
        let noted = Arc::new(AtomicU64::new(0));
        let teller = {
            let (wakeup, noted) = (wakeup.clone(), noted.clone());
            thread::spawn(move || {
                for number in 1..=LAST {
                    noted.store(number, Ordering::Release);
                    wakeup.wake();
                }
            })
        };
        while noted.load(Ordering::Acquire) < LAST {
            wait_until_woken(&wakeup);
            wakeup.take();
        }
        teller.join().unwrap();
    }

    #[test]
    fn a_batch_is_one_wakeup() {
        let wakeup = Wakeup::new().unwrap();
        wakeup.try_report_ticket(1);
        wakeup.try_report_ticket(2);
        assert_eq!(wakeup.take().unwrap().tickets, [1, 2]);
        assert!(wakeup.take().is_none());
        wakeup.report_end();
        assert!(wakeup.take().unwrap().ended);
        assert!(!wakeup.try_report_ticket(3));
        assert!(wakeup.take().is_none());
    }

    #[test]
    fn a_wakeup_that_stays_unanswered_is_reported_and_then_how_long_it_took() {
        let wakeup = Arc::new(Wakeup::new().unwrap());
        wakeup.wake();
        let Look::Unanswered(sent, age) = wakeup.watch(Duration::from_millis(1), 0, || true) else { unreachable!() };
        assert!(sent > 0 && age >= Duration::from_millis(1));
        let watcher = {
            let wakeup = wakeup.clone();
            thread::spawn(move || wakeup.watch(Duration::MAX, sent, || true))
        };
        wakeup.take();
        let Look::Answered(took) = watcher.join().unwrap() else { unreachable!() };
        assert!(took >= age);
    }

    #[test]
    fn the_watching_thread_wakes_while_requests_run_and_not_else() {
        let wakeup = Arc::new(Wakeup::new().unwrap());
        let busy = Arc::new(AtomicBool::new(false));
        wakeup.ping_every(Duration::from_millis(1));
        let watcher = {
            let (wakeup, busy) = (wakeup.clone(), busy.clone());
            let age = Duration::from_millis(5);
            thread::spawn(move || while wakeup.watch(age, 0, || busy.load(Ordering::SeqCst)) != Look::Ended {})
        };
        while !wakeup.asleep.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        assert_eq!(wakeup.sent.load(Ordering::SeqCst), 0);
        busy.store(true, Ordering::SeqCst);
        wakeup.wake();
        wakeup.take();
        // This one is the watcher's own.
        wait_until_woken(&wakeup);
        wakeup.take();
        wakeup.report_end();
        watcher.join().unwrap();
    }

    #[test]
    fn the_io_thread_rests_while_the_greenlet_thread_is_at_work_and_no_longer() {
        const ROUNDS: usize = 50_000;
        let wakeup = Arc::new(Wakeup::new().unwrap());
        let io = {
            let wakeup = wakeup.clone();
            thread::spawn(move || {
                // Fails, as all of this would, by waiting for ever.
                wakeup.rest(Duration::MAX);
                for _ in 0..ROUNDS {
                    wakeup.wake();
                    wakeup.rest(Duration::from_secs(1 << 30));
                }
                wakeup.report_end();
            })
        };
        while !wakeup.take().is_some_and(|wakeups| wakeups.ended) {
            wakeup.note_idle();
        }
        io.join().unwrap();
        // The last wake-up may have come after its reason was taken.
        wakeup.take();
        assert!(wakeup.is_at_work(), "it has yet to look for requests");
        wakeup.note_idle();
        assert!(!wakeup.is_at_work());
        wakeup.wake();
        assert!(wakeup.is_at_work());
    }
}
