//! The run queue: complete requests, in the order in which they became complete, and how many runners run.
//!
//! Any thread adds; runners take while they run the application; who may run is the rule of `admission`. "Is anybody
//! running" is decided under the queue's lock, so a request that is added as the last runner leaves is never left
//! without a runner.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tailrace_os::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use tailrace_os::sync::{Mutex, lock};

use crate::dispatch::admission::{Eagerness, Join, Situation, Verdict, judge, verdict};

struct QueueState<T> {
    requests: VecDeque<T>,
    running: usize,
    moved_at: Instant,
}

/// Up to this length, the queue is so small that it need not ask for memory.
const LONG: usize = 512;

/// `T`: a request.
pub(crate) struct RunQueue<T> {
    queue: Mutex<QueueState<T>>,
    /// Length of the queue, for a look without the lock.
    length: AtomicUsize,
    /// Counts the requests taken.
    moved: AtomicU64,
    /// A thread waits for the interpreter in order to run: from [`RunQueue::try_enter`] to [`RunQueue::enter`] or
    /// [`RunQueue::turn_back`].
    entering: AtomicBool,
    /// Since when it waits, in nanoseconds since `began`; 0: no thread does.
    entering_since: AtomicU64,
    began: Instant,
    eagerness: AtomicU32,
}

/// A thread that waits for the interpreter in order to run. One at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryAttempt {
    asked: Instant,
    moved: u64,
}

/// What a runner gets that asks for a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TakeResult<T> {
    /// This one, at this moment.
    Request(T, Instant),
    /// None: it does not run any more. `requests_wait`: requests are left, for which others have to be woken.
    Left { requests_wait: bool },
}

impl<T> RunQueue<T> {
    /// An empty queue.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            queue: Mutex::new(QueueState { requests: VecDeque::new(), running: 0, moved_at: now }),
            length: AtomicUsize::new(0),
            moved: AtomicU64::new(0),
            entering: AtomicBool::new(false),
            entering_since: AtomicU64::new(0),
            began: now,
            eagerness: AtomicU32::new(0),
        }
    }

    /// True when there is memory for one more request. A short queue needs little.
    pub(crate) fn has_memory(&self) -> bool {
        self.len() < LONG || lock(&self.queue).requests.try_reserve(1).is_ok()
    }

    /// Appends a complete request.
    pub(crate) fn push(&self, request: T) {
        let mut queue = lock(&self.queue);
        queue.requests.push_back(request);
        self.length.store(queue.requests.len(), Ordering::Release);
    }

    /// Requests that wait.
    pub(crate) fn len(&self) -> usize {
        self.length.load(Ordering::Acquire)
    }

    /// Counts up whenever a request is taken.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Acquire)
    }

    /// True while a thread waits for the interpreter in order to run.
    pub(crate) fn is_entering(&self) -> bool {
        self.entering.load(Ordering::Acquire)
    }

    /// Runners that run the application.
    pub(crate) fn running(&self) -> usize {
        lock(&self.queue).running
    }

    /// True when requests wait, and fewer than `limit` runners run.
    pub(crate) fn wants_runner(&self, limit: usize) -> bool {
        self.len() > 0 && {
            let queue = lock(&self.queue);
            !queue.requests.is_empty() && queue.running < limit
        }
    }

    /// True when the application is believed to wait, so that another thread joins at once.
    pub(crate) fn is_eager(&self) -> bool {
        self.eagerness().is_any()
    }

    fn eagerness(&self) -> Eagerness {
        Eagerness(self.eagerness.load(Ordering::Relaxed))
    }

    fn situation(&self, queue: &QueueState<T>, limit: usize) -> Situation {
        Situation {
            waiting: queue.requests.len(),
            running: queue.running,
            limit,
            moved_at: queue.moved_at,
            eagerness: self.eagerness(),
        }
    }

    /// What a thread that looks at the queue should do, see [`verdict`].
    pub(crate) fn verdict(&self, is_stuck: bool, limit: usize, now: Instant) -> Verdict {
        if self.len() == 0 {
            return Verdict::Idle;
        }
        let seen = self.situation(&lock(&self.queue), limit);
        verdict(seen, is_stuck, self.entering.load(Ordering::Acquire), now)
    }

    /// Claims the one place of a thread that waits for the interpreter, from now on. `None`: it is taken. Whoever has
    /// it calls [`RunQueue::enter`] or [`RunQueue::turn_back`].
    pub(crate) fn try_enter(&self, now: Instant) -> Option<EntryAttempt> {
        self.entering.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        let since = u64::try_from(now.saturating_duration_since(self.began).as_nanos()).unwrap_or(u64::MAX);
        self.entering_since.store(since.max(1), Ordering::Release);
        Some(EntryAttempt { asked: now, moved: self.moved() })
    }

    /// The thread has the interpreter, or does not want it any more.
    pub(crate) fn turn_back(&self) {
        self.entering_since.store(0, Ordering::Release);
        self.entering.store(false, Ordering::Release);
    }

    /// The thread has the interpreter, of at most `limit`. When the join [runs](Join::runs), it counts as a runner.
    pub(crate) fn enter(&self, entry: EntryAttempt, limit: usize, now: impl FnOnce() -> Instant) -> Join {
        let mut queue = lock(&self.queue);
        self.turn_back();
        let now = now();
        let waited = now.saturating_duration_since(entry.asked);
        let join = judge(self.situation(&queue, limit), waited, self.moved() != entry.moved, now);
        let (before, after) = (self.eagerness(), self.eagerness().after(join));
        if after != before {
            self.eagerness.store(after.0, Ordering::Relaxed);
        }
        queue.running += usize::from(join.runs());
        join
    }

    /// One more runner runs, of at most `limit`, if requests wait. False: it does not.
    pub(crate) fn join(&self, limit: usize) -> bool {
        let mut queue = lock(&self.queue);
        let joins = !queue.requests.is_empty() && queue.running < limit;
        queue.running += usize::from(joins);
        joins
    }

    /// A runner asks for the next request. It leaves when there is none, when more than `limit` run, or when `is_over`.
    pub(crate) fn take(&self, limit: usize, is_over: bool, now: impl FnOnce() -> Instant) -> TakeResult<T> {
        let mut queue = lock(&self.queue);
        if queue.running > limit {
            // While this one was stuck, another one took its place.
            queue.running -= 1;
            return TakeResult::Left { requests_wait: false };
        }
        if is_over {
            queue.running -= 1;
            return TakeResult::Left { requests_wait: !queue.requests.is_empty() };
        }
        let Some(request) = queue.requests.pop_front() else {
            queue.running -= 1;
            return TakeResult::Left { requests_wait: false };
        };
        self.length.store(queue.requests.len(), Ordering::Release);
        self.moved.fetch_add(1, Ordering::Release);
        queue.moved_at = now();
        TakeResult::Request(request, queue.moved_at)
    }

    /// A runner leaves without asking. True when requests wait.
    pub(crate) fn leave(&self) -> bool {
        let mut queue = lock(&self.queue);
        queue.running -= 1;
        !queue.requests.is_empty()
    }

    /// True when a thread has waited at least so long for the interpreter: the application of a request holds it and
    /// has not returned.
    pub(crate) fn is_blocked(&self, time: Duration, now: Instant) -> bool {
        let since = self.entering_since.load(Ordering::Acquire);
        since > 0 && now.saturating_duration_since(self.began) >= Duration::from_nanos(since).saturating_add(time)
    }

    /// Takes the requests at the head of the queue that are late.
    pub(crate) fn take_late(&self, is_late: impl Fn(&T) -> bool) -> Vec<T> {
        let mut queue = lock(&self.queue);
        let mut late = Vec::new();
        while queue.requests.front().is_some_and(&is_late) {
            late.extend(queue.requests.pop_front());
        }
        self.length.store(queue.requests.len(), Ordering::Release);
        late
    }

    /// Takes every request that waits.
    pub(crate) fn clear(&self) -> VecDeque<T> {
        let mut queue = lock(&self.queue);
        self.length.store(0, Ordering::Release);
        std::mem::take(&mut queue.requests)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{RunQueue, TakeResult};
    use crate::dispatch::admission::{FORCED_ENTRY, Join, Verdict};

    const SECOND: Duration = Duration::from_secs(1);

    fn queue(requests: impl IntoIterator<Item = u32>) -> (RunQueue<u32>, Instant) {
        let now = Instant::now();
        let queue = RunQueue::new(now);
        requests.into_iter().for_each(|request| queue.push(request));
        (queue, now)
    }

    #[test]
    fn requests_are_taken_in_their_order() {
        let (queue, now) = queue(1..=3);
        assert_eq!((queue.len(), queue.moved(), queue.running()), (3, 0, 0));
        assert_eq!(queue.enter(queue.try_enter(now).unwrap(), 4, || now), Join::First);
        for request in 1..=3 {
            assert_eq!(queue.take(4, false, || now), TakeResult::Request(request, now));
        }
        assert_eq!((queue.len(), queue.moved(), queue.running()), (0, 3, 1));
        assert_eq!(queue.take(4, false, || now), TakeResult::Left { requests_wait: false });
        assert_eq!(queue.running(), 0);
    }

    #[test]
    fn one_thread_at_a_time_waits_for_the_interpreter() {
        let (queue, now) = queue([1]);
        assert_eq!(queue.verdict(false, 4, now), Verdict::Run);
        let entry = queue.try_enter(now).unwrap();
        assert!(queue.try_enter(now).is_none());
        assert_eq!(queue.verdict(false, 4, now), Verdict::Watch);
        queue.turn_back();
        assert_eq!(queue.verdict(false, 4, now), Verdict::Run);
        let again = queue.try_enter(now).unwrap();
        assert_eq!(queue.enter(again, 0, || now), Join::Full);
        assert_eq!(queue.running(), 0);
        assert_eq!(queue.enter(entry, 1, || now), Join::First);
        assert_eq!(queue.running(), 1);
    }

    #[test]
    fn who_waits_for_the_interpreter_is_blocked_after_a_while() {
        let (queue, now) = queue([1]);
        assert!(!queue.is_blocked(Duration::ZERO, now + SECOND));
        let _ = queue.try_enter(now);
        assert!(!queue.is_blocked(SECOND, now + SECOND));
        assert!(queue.is_blocked(SECOND, now + 2 * SECOND));
        queue.turn_back();
        assert!(!queue.is_blocked(SECOND, now + 2 * SECOND));
    }

    #[test]
    fn a_join_of_use_makes_the_queue_eager_and_one_in_vain_does_not() {
        let (queue, now) = queue(1..=2);
        queue.enter(queue.try_enter(now).unwrap(), 4, || now);
        assert!(!queue.is_eager());
        assert_eq!(queue.verdict(false, 4, now), Verdict::Watch);
        assert_eq!(queue.verdict(true, 4, now), Verdict::Run);
        assert_eq!(queue.verdict(false, 4, now + FORCED_ENTRY), Verdict::Run);
        assert_eq!(queue.enter(queue.try_enter(now).unwrap(), 4, || now), Join::Useful);
        assert!(queue.is_eager());
        assert_eq!(queue.verdict(false, 4, now), Verdict::Run);
        for _ in 0..2 {
            let entry = queue.try_enter(now).unwrap();
            assert_eq!(queue.enter(entry, 4, || now + SECOND / 1_000), Join::NotNeeded);
        }
        assert!(!queue.is_eager());
        assert_eq!(queue.running(), 2);
        queue.clear();
        assert_eq!(queue.verdict(true, 4, now), Verdict::Idle);
    }

    #[test]
    fn requests_that_move_while_a_thread_waits_make_its_join_vain() {
        let (queue, now) = queue(1..=3);
        assert!(queue.join(4));
        let entry = queue.try_enter(now).unwrap();
        assert_eq!(queue.take(4, false, || now), TakeResult::Request(1, now));
        assert_eq!(queue.enter(entry, 4, || now), Join::NotNeeded);
    }

    #[test]
    fn no_more_join_than_may_and_none_for_nothing() {
        let (queue, now) = queue(1..=9);
        assert!(queue.wants_runner(2));
        assert!(queue.join(2) && queue.join(2) && !queue.join(2));
        assert!(!queue.wants_runner(2) && queue.wants_runner(3));
        assert!(queue.leave());
        assert_eq!(queue.clear().len(), 9);
        assert!(!queue.join(2) && !queue.wants_runner(2));
        assert_eq!(queue.take(2, false, || now), TakeResult::Left { requests_wait: false });
        assert_eq!(queue.running(), 0);
    }

    #[test]
    fn a_runner_whose_place_was_taken_leaves_and_so_does_one_whose_time_is_over() {
        let (queue, now) = queue(1..=2);
        assert!(queue.join(2) && queue.join(2));
        assert_eq!(queue.take(1, false, || now), TakeResult::Left { requests_wait: false });
        assert_eq!(queue.take(1, true, || now), TakeResult::Left { requests_wait: true });
        assert_eq!(queue.running(), 0);
        assert!(queue.join(1));
        queue.clear();
        assert_eq!(queue.take(1, true, || now), TakeResult::Left { requests_wait: false });
    }

    #[test]
    fn only_what_is_late_at_the_head_is_taken() {
        let (queue, _) = queue([1, 2, 5, 1]);
        assert_eq!(queue.take_late(|request| *request < 3), [1, 2]);
        assert_eq!(queue.len(), 2);
        assert_eq!(queue.take_late(|request| *request < 3), [0_u32; 0]);
    }

    #[test]
    fn no_request_is_lost_or_taken_twice_by_many_threads() {
        const EACH: u32 = 20_000;
        const THREADS: u32 = 3;
        let (queue, now) = queue([]);
        let (queue, taken) = (Arc::new(queue), Arc::new(AtomicUsize::new(0)));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| (0..EACH).for_each(|request| queue.push(request)));
                scope.spawn(|| {
                    let all = (EACH * THREADS) as usize;
                    while taken.load(Ordering::SeqCst) < all {
                        // A request that is added as the last runner leaves would leave all of them here for ever.
                        while queue.join(2) {
                            while let TakeResult::Request(..) = queue.take(2, false, || now) {
                                taken.fetch_add(1, Ordering::SeqCst);
                            }
                        }
                        thread::yield_now();
                    }
                });
            }
        });
        assert_eq!(taken.load(Ordering::SeqCst), (EACH * THREADS) as usize);
        assert_eq!((queue.len(), queue.running()), (0, 0));
    }
}
