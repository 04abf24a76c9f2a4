//! The bell between the I/O thread and a hub: one thread whose greenlets run the application (`--gevent`).
//!
//! Who has news for the hub's thread notes it and rings; that thread waits for the bell in its own event loop, among all
//! else that its greenlets wait for. The bell is rung once until it is answered, so one wake-up takes a batch. No news is
//! lost: the answering thread silences the bell *before* it looks for news, and who brings some notes it before it rings.
//!
//! Threads: any one rings and tells; the hub's own takes; one more watches ([`Hub::blocked`]). A forked child has the
//! same bell and must not touch it, see [`Hub::forget`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex, OnceLock};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crate::posts::Overdue;
use crate::sys::Bell;
use crate::{local, lock, wait, wait_for};

/// How long requests are taken up before the other greenlets have their turn: as long as gevent's own hub runs callbacks.
const SLICE: Duration = Duration::from_millis(5);

/// What the hub's thread is told.
#[derive(Debug, Default)]
pub struct News {
    /// What greenlets waited for under these tickets has come.
    pub tickets: Vec<u64>,
    /// Requests whose deadline has come.
    pub overdue: Vec<Overdue>,
    /// The server has ended; told once, and nothing after it.
    pub ended: bool,
}

/// A look at a hub that may be blocked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Look {
    /// This ring has been unanswered for so long.
    Unanswered(u64, Duration),
    /// The ring that was asked for was answered after so long.
    Answered(Duration),
    /// The server has ended.
    Ended,
}

/// The ring that was told to be unanswered, and how long it took to be answered.
#[derive(Default)]
struct Watch {
    ring: u64,
    took: Duration,
}

/// See the module.
pub struct Hub {
    bell: Bell,
    thread: OnceLock<ThreadId>,
    began: Instant,
    /// The ring that is unanswered: when it was rung, in nanoseconds since `began`; 0: none.
    rung: AtomicU64,
    news: Mutex<News>,
    /// Until when requests are taken up, as `rung`; 0: a slice is yet to begin.
    slice: AtomicU64,
    /// Counts how often the hub has asked for a carrier.
    turns: AtomicU64,
    /// Counts requests that greenlets began and ended.
    progress: AtomicU64,
    carriers: AtomicUsize,
    carriers_made: AtomicU64,
    /// Between two rings for the sake of watching, in nanoseconds; 0: none.
    ping: AtomicU64,
    /// The ring of which the watching thread wants to know how long it took.
    watched: AtomicU64,
    watch: Mutex<Watch>,
    seen: Condvar,
    /// The watching thread sleeps until the next ring.
    asleep: AtomicBool,
    ended: AtomicBool,
    /// This is a forked child, which has no part in it.
    forgotten: AtomicBool,
}

impl Hub {
    /// A bell that nobody has rung.
    ///
    /// # Errors
    /// No descriptors left.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            bell: Bell::new()?,
            thread: OnceLock::new(),
            began: Instant::now(),
            rung: AtomicU64::new(0),
            news: Mutex::default(),
            slice: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            progress: AtomicU64::new(0),
            carriers: AtomicUsize::new(0),
            carriers_made: AtomicU64::new(0),
            ping: AtomicU64::new(0),
            watched: AtomicU64::new(0),
            watch: Mutex::default(),
            seen: Condvar::new(),
            asleep: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            forgotten: AtomicBool::new(false),
        })
    }

    /// The calling thread is the hub's. False: another one is, or this one was before.
    pub fn settle_here(&self) -> bool {
        self.thread.set(thread::current().id()).is_ok()
    }

    /// True on the hub's thread.
    pub fn is_here(&self) -> bool {
        self.thread.get().is_some_and(|thread| *thread == thread::current().id())
    }

    /// What becomes readable when there is news.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    /// Has the hub look for news and requests, which the caller has noted before. One write for a whole batch.
    pub fn ring(&self) {
        // What was noted before comes before the look at `rung`, as the hub's look at it comes after its zero.
        fence(Ordering::SeqCst);
        if self.rung.load(Ordering::SeqCst) != 0 || self.is_forgotten() {
            return;
        }
        if self.rung.compare_exchange(0, self.nanos(), Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.bell.ring();
            if self.asleep.load(Ordering::SeqCst) {
                self.call_watcher();
            }
        }
    }

    #[cold]
    fn call_watcher(&self) {
        // With the lock, so that it either has yet to look or waits already.
        drop(lock(&self.watch));
        self.seen.notify_all();
    }

    /// What the greenlet waits for that took this ticket has come. False: nothing is told any more.
    pub(crate) fn wake(&self, ticket: u64) -> bool {
        if self.is_forgotten() {
            return false;
        }
        let mut news = lock(&self.news);
        if self.ended.load(Ordering::SeqCst) {
            return false;
        }
        news.tickets.push(ticket);
        drop(news);
        self.ring();
        true
    }

    /// The deadline of a request has come, whose greenlet still works on it.
    pub fn tell_overdue(&self, overdue: Overdue) {
        if self.is_forgotten() {
            return;
        }
        lock(&self.news).overdue.push(overdue);
        self.ring();
    }

    /// The server has ended.
    pub(crate) fn tell_ended(&self) {
        let mut news = lock(&self.news);
        if self.ended.swap(true, Ordering::SeqCst) {
            return;
        }
        news.ended = true;
        drop(news);
        self.ring();
        self.call_watcher();
    }

    /// The hub's thread: silences the bell, ends the slice of time for requests, and takes the news.
    pub fn take(&self) -> Option<News> {
        if self.is_forgotten() {
            return None;
        }
        self.bell.silence();
        let ring = self.rung.swap(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let now = self.nanos();
        self.slice.store(0, Ordering::Relaxed);
        if ring != 0 && ring == self.watched.load(Ordering::SeqCst) {
            *lock(&self.watch) = Watch { ring, took: Duration::from_nanos(now.saturating_sub(ring)) };
            self.seen.notify_all();
        }
        let mut news = lock(&self.news);
        let is_any = news.ended || !news.tickets.is_empty() || !news.overdue.is_empty();
        is_any.then(|| std::mem::take(&mut *news))
    }

    /// The requests past their deadline that the hub has not taken notice of yet.
    pub fn overdue(&self) -> Vec<Overdue> {
        if self.is_forgotten() {
            return Vec::new();
        }
        lock(&self.news).overdue.clone()
    }

    /// The hub's thread: as [`Hub::is_slice_over`], but the first time after [`Hub::take`] begins a slice. So those who are
    /// told something, and come first, cannot keep requests waiting for ever.
    pub(crate) fn begins_slice(&self) -> bool {
        if self.slice.load(Ordering::Relaxed) == 0 {
            self.slice.store(self.nanos().saturating_add(SLICE.as_nanos() as u64), Ordering::Relaxed);
            return true;
        }
        !self.is_slice_over()
    }

    /// The hub's thread: true when requests have been taken up long enough, and others have their turn.
    pub(crate) fn is_slice_over(&self) -> bool {
        self.nanos() >= self.slice.load(Ordering::Relaxed)
    }

    /// How long the bell has been unanswered.
    pub(crate) fn unanswered(&self) -> Duration {
        match self.rung.load(Ordering::SeqCst) {
            0 => Duration::ZERO,
            ring => self.age_of(ring),
        }
    }

    /// How long ago a ring was, be it answered or not.
    pub fn age_of(&self, ring: u64) -> Duration {
        Duration::from_nanos(self.nanos().saturating_sub(ring))
    }

    /// The hub's thread: the hub itself runs, and asks for a carrier.
    pub(crate) fn note_turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Another number than before when the hub has run meanwhile: whoever was switched to by it has been left since.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// A greenlet has begun or ended a request.
    pub(crate) fn note_progress(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts requests that greenlets began and ended.
    pub fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// One more greenlet carries requests, or (`false`) one less.
    pub(crate) fn count_carrier(&self, more: bool) {
        if more {
            self.carriers.fetch_add(1, Ordering::Relaxed);
            self.carriers_made.fetch_add(1, Ordering::Relaxed);
        } else {
            self.carriers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Greenlets that carry requests or wait to, and how many have ever been made.
    pub(crate) fn carriers(&self) -> (u64, u64) {
        (self.carriers.load(Ordering::Relaxed) as u64, self.carriers_made.load(Ordering::Relaxed))
    }

    /// While requests are carried and the bell is silent, the watching thread rings it this often.
    pub fn ping_every(&self, time: Duration) {
        self.ping.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.call_watcher();
    }

    /// The watching thread: blocks until a ring is unanswered for `age`, and says which. `ring` above 0: until that one
    /// is, or was answered. `is_busy` says whether requests are carried: while none is, the thread sleeps until the
    /// next ring.
    pub fn blocked(&self, age: Duration, ring: u64, is_busy: impl Fn() -> bool) -> Look {
        loop {
            if self.ended.load(Ordering::SeqCst) || self.is_forgotten() {
                return Look::Ended;
            }
            let rung = self.rung.load(Ordering::SeqCst);
            if ring != 0 && rung != ring {
                return self.answered(ring);
            }
            if rung == 0 {
                self.wait_for_a_ring(age, &is_busy);
                continue;
            }
            let left = age.saturating_sub(self.age_of(rung));
            if left.is_zero() {
                self.watched.store(rung, Ordering::SeqCst);
                // Answered before the hub could know that somebody wants to know: it was not blocked.
                if ring == 0 && self.rung.load(Ordering::SeqCst) != rung {
                    continue;
                }
                return Look::Unanswered(rung, self.age_of(rung));
            }
            // The hub may block right after it has answered: then it is only rung for again at the end of this.
            let nap = if ring == 0 { self.nap(left) } else { left };
            let watch = lock(&self.watch);
            if ring == 0 || self.rung.load(Ordering::SeqCst) == ring {
                drop(wait_for(&self.seen, watch, nap));
            }
        }
    }

    /// A watched ring is not the one of now: the hub says how long it took as soon as it has silenced the bell.
    fn answered(&self, ring: u64) -> Look {
        let mut watch = lock(&self.watch);
        while watch.ring != ring {
            if self.ended.load(Ordering::SeqCst) {
                return Look::Ended;
            }
            watch = wait(&self.seen, watch);
        }
        Look::Answered(watch.took)
    }

    /// How long the watching thread sleeps at once.
    fn nap(&self, most: Duration) -> Duration {
        match self.ping.load(Ordering::Relaxed) {
            0 => most,
            ping => most.min(Duration::from_nanos(ping)),
        }
    }

    /// The bell is silent: gives a ring where requests are carried, else waits for one.
    fn wait_for_a_ring(&self, age: Duration, is_busy: &impl Fn() -> bool) {
        if self.ping.load(Ordering::Relaxed) > 0 && is_busy() {
            self.ring();
            let watch = lock(&self.watch);
            if !self.ended.load(Ordering::SeqCst) {
                drop(wait_for(&self.seen, watch, self.nap(age)));
            }
            return;
        }
        let watch = lock(&self.watch);
        self.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.rung.load(Ordering::SeqCst) == 0 && !self.ended.load(Ordering::SeqCst) {
            drop(wait(&self.seen, watch));
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// In a forked child: the parent's bell is left alone from now on.
    pub fn forget(&self) {
        self.forgotten.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_forgotten(&self) -> bool {
        self.forgotten.load(Ordering::Relaxed)
    }
}

/// True where a greenlet may be left for another one: nothing that belongs to the thread is in use.
pub fn may_switch() -> bool {
    local::is_scratch_free()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::{Hub, Look};

    fn wait_for_bell(hub: &Hub) {
        use rustix::event::{PollFd, PollFlags, poll};
        let bell = hub.bell();
        poll(&mut [PollFd::new(&bell, PollFlags::IN)], None).unwrap();
    }

    #[test]
    fn no_news_is_lost_between_many_threads() {
        const EACH: u64 = 50_000;
        let hub = Arc::new(Hub::new().unwrap());
        let tellers: Vec<_> = (0..3_u64)
            .map(|teller| {
                let hub = hub.clone();
                thread::spawn(move || (1..=EACH).for_each(|number| assert!(hub.wake(teller * EACH + number))))
            })
            .collect();
        let mut tickets = Vec::new();
        // A lost ring would leave this waiting for ever.
        while tickets.len() < 3 * EACH as usize {
            wait_for_bell(&hub);
            tickets.extend(hub.take().unwrap_or_default().tickets);
        }
        tellers.into_iter().for_each(|teller| teller.join().unwrap());
        tickets.sort_unstable();
        assert!(tickets.into_iter().eq(1..=3 * EACH));
    }

    #[test]
    fn what_is_noted_before_a_ring_is_found_after_it() {
        // As requests are: noted in a place of its own, looked at after `take`.
        const LAST: u64 = 100_000;
        let hub = Arc::new(Hub::new().unwrap());
        let noted = Arc::new(AtomicU64::new(0));
        let teller = {
            let (hub, noted) = (hub.clone(), noted.clone());
            thread::spawn(move || {
                for number in 1..=LAST {
                    noted.store(number, Ordering::Release);
                    hub.ring();
                }
            })
        };
        while noted.load(Ordering::Acquire) < LAST {
            wait_for_bell(&hub);
            hub.take();
        }
        teller.join().unwrap();
    }

    #[test]
    fn a_batch_is_one_ring() {
        let hub = Hub::new().unwrap();
        hub.wake(1);
        hub.wake(2);
        assert_eq!(hub.take().unwrap().tickets, [1, 2]);
        assert!(hub.take().is_none());
        hub.tell_ended();
        assert!(hub.take().unwrap().ended);
        assert!(!hub.wake(3));
        assert!(hub.take().is_none());
    }

    #[test]
    fn a_ring_that_stays_unanswered_is_told_and_then_how_long_it_took() {
        let hub = Arc::new(Hub::new().unwrap());
        hub.ring();
        let Look::Unanswered(ring, age) = hub.blocked(Duration::from_millis(1), 0, || true) else { unreachable!() };
        assert!(ring > 0 && age >= Duration::from_millis(1));
        let watcher = {
            let hub = hub.clone();
            thread::spawn(move || hub.blocked(Duration::MAX, ring, || true))
        };
        hub.take();
        let Look::Answered(took) = watcher.join().unwrap() else { unreachable!() };
        assert!(took >= age);
    }

    #[test]
    fn a_silent_bell_is_rung_while_requests_are_carried_and_left_alone_else() {
        let hub = Arc::new(Hub::new().unwrap());
        let busy = Arc::new(AtomicBool::new(false));
        hub.ping_every(Duration::from_millis(1));
        let watcher = {
            let (hub, busy) = (hub.clone(), busy.clone());
            let age = Duration::from_millis(5);
            thread::spawn(move || while hub.blocked(age, 0, || busy.load(Ordering::SeqCst)) != Look::Ended {})
        };
        while !hub.asleep.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        assert_eq!(hub.rung.load(Ordering::SeqCst), 0);
        busy.store(true, Ordering::SeqCst);
        hub.ring();
        hub.take();
        // This one is the watcher's own.
        wait_for_bell(&hub);
        hub.take();
        hub.tell_ended();
        watcher.join().unwrap();
    }

    #[test]
    fn a_child_leaves_the_bell_alone() {
        let hub = Hub::new().unwrap();
        hub.wake(1);
        hub.forget();
        assert!(hub.take().is_none());
        assert!(!hub.wake(2));
        assert_eq!(hub.blocked(Duration::ZERO, 0, || true), Look::Ended);
        // What was rung before is still there for the parent.
        wait_for_bell(&hub);
    }
}
