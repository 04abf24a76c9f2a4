//! The queue of complete requests, and the rule that decides who runs the application.
//!
//! - Requests are taken in the order in which they became complete.
//! - A thread that runs the application takes the next one without letting go of the interpreter.
//! - At most one other thread waits for the interpreter in order to start a request.
//! - One more thread joins only when the head of the queue has not moved for a while and the process has been idle:
//!   then those that run wait for something, and the newcomer gets the interpreter at once. A newcomer that had to wait
//!   for the interpreter, or finds that requests have moved on, turns back, unless the head has been stuck for
//!   [`FORCED_ENTRY`]: threads are added when the application waits, not when the interpreter is the bottleneck.
//! - An application that was seen to wait is believed to wait again: the queue is *eager* then, and the next thread
//!   joins at once. Each join that finds nothing to do, or the interpreter busy, lowers that belief.
//!
//! Any thread pushes; threads inside [`crate::handler::Application::enter`] pop. "Is anybody running" is answered
//! under the queue's lock, so a request pushed as the last runner leaves is never left behind.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::exchange::Exchange;
use crate::hub::Hub;
use crate::reactor::Reactor;
use crate::{local, lock};

/// A thread that got the interpreter within this time found it free.
const FREE: Duration = Duration::from_micros(500);
/// A head of the queue that is stuck for this long gets a thread even if the interpreter is busy.
const FORCED_ENTRY: Duration = Duration::from_millis(50);

/// What one good join adds to the eagerness, what one in vain takes, and the most there is.
const GAIN: u32 = 16;
const LOSS: u32 = 8;
const MOST_EAGER: u32 = 64;

struct Queue {
    requests: VecDeque<Exchange>,
    running: usize,
    moved_at: Instant,
}

/// The ready queue.
pub(crate) struct Ready {
    queue: Mutex<Queue>,
    /// Length of the queue, for a look without the lock.
    length: AtomicUsize,
    /// Counts the requests taken.
    moved: AtomicU64,
    /// A thread is between "wants to run" and "runs or turned back".
    entering: AtomicBool,
    /// Since when it is, in nanoseconds since `began`; 0: it is not.
    entering_since: AtomicU64,
    began: Instant,
    /// Above 0: the application has been seen to wait.
    eagerness: AtomicU32,
}

/// What a thread with a look at the queue should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing waits.
    Idle,
    /// Requests wait and somebody runs: look again soon whether the head has moved.
    Watch,
    /// Run: nobody does, or those who do are stuck.
    Run,
}

impl Ready {
    /// An empty queue.
    pub(crate) fn new() -> Self {
        Self {
            queue: Mutex::new(Queue { requests: VecDeque::new(), running: 0, moved_at: Instant::now() }),
            length: AtomicUsize::new(0),
            moved: AtomicU64::new(0),
            entering: AtomicBool::new(false),
            entering_since: AtomicU64::new(0),
            began: Instant::now(),
            eagerness: AtomicU32::new(0),
        }
    }

    /// Appends a complete request.
    pub(crate) fn push(&self, exchange: Exchange) {
        let mut queue = lock(&self.queue);
        queue.requests.push_back(exchange);
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

    /// Threads that run the application; with a hub, greenlets that do.
    pub(crate) fn running(&self) -> usize {
        lock(&self.queue).running
    }

    /// True when requests wait, and fewer than `limit` greenlets run.
    pub(crate) fn wants_runner(&self, limit: usize) -> bool {
        self.len() > 0 && {
            let queue = lock(&self.queue);
            !queue.requests.is_empty() && queue.running < limit
        }
    }

    /// What to do now. `stuck`: requests have waited for a while, none was taken and the process was idle.
    /// `limit`: threads that may run.
    pub(crate) fn verdict(&self, stuck: bool, limit: usize) -> Verdict {
        if self.len() == 0 {
            return Verdict::Idle;
        }
        let queue = lock(&self.queue);
        if queue.requests.is_empty() {
            return Verdict::Idle;
        }
        if queue.running >= limit {
            return Verdict::Watch;
        }
        let run = queue.running == 0 || stuck || self.is_eager() || queue.moved_at.elapsed() >= FORCED_ENTRY;
        if run && !self.entering.load(Ordering::Acquire) { Verdict::Run } else { Verdict::Watch }
    }

    /// True when requests are believed to wait in the application, so that another thread joins at once.
    pub(crate) fn is_eager(&self) -> bool {
        self.eagerness.load(Ordering::Relaxed) > 0
    }

    fn learn(&self, join: Join) {
        let eagerness = self.eagerness.load(Ordering::Relaxed);
        let learnt = match join {
            Join::First => eagerness,
            Join::Useful => (eagerness + GAIN).min(MOST_EAGER),
            Join::Forced | Join::Vain => eagerness.saturating_sub(LOSS),
        };
        if learnt != eagerness {
            self.eagerness.store(learnt, Ordering::Relaxed);
        }
    }

    /// Claims the one place of a thread that waits for the application. False: it is taken.
    pub(crate) fn try_enter(&self) -> bool {
        let entered = !self.entering.swap(true, Ordering::AcqRel);
        if entered {
            let now = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.entering_since.store(now.max(1), Ordering::Release);
        }
        entered
    }

    fn has_entered(&self) {
        self.entering_since.store(0, Ordering::Release);
        self.entering.store(false, Ordering::Release);
    }

    /// True when a thread has waited at least so long for the application: a request holds it and does not come back.
    pub(crate) fn is_barred(&self, time: Duration) -> bool {
        let since = self.entering_since.load(Ordering::Acquire);
        since > 0 && self.began.elapsed() >= Duration::from_nanos(since).saturating_add(time)
    }

    /// Takes the requests that have waited since before `since`.
    pub(crate) fn take_late(&self, since: Instant) -> Vec<Exchange> {
        let mut queue = lock(&self.queue);
        let mut late = Vec::new();
        while queue.requests.front().is_some_and(|exchange| exchange.record().queued < since) {
            late.extend(queue.requests.pop_front());
        }
        self.length.store(queue.requests.len(), Ordering::Release);
        late
    }

    /// Takes every request that waits, for a server that stops now.
    pub(crate) fn clear(&self) -> VecDeque<Exchange> {
        let mut queue = lock(&self.queue);
        self.length.store(0, Ordering::Release);
        std::mem::take(&mut queue.requests)
    }
}

/// A thread's turn at running the application, from [`crate::handler::Application::enter`] to its return; or that of one of
/// a hub's greenlets.
pub struct Turn<'a> {
    reactor: &'a Arc<Reactor>,
    /// The post of the thread or greenlet.
    post: Option<usize>,
    /// The hub that the greenlet belongs to.
    hub: Option<&'a Hub>,
    /// A request was given out and not put down.
    carries: bool,
    state: State,
    asked: Instant,
    seen: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Entering,
    Running,
    Left,
}

impl Turn<'_> {
    /// What the application calls the calling thread; it is told again with a request of this thread that is overdue.
    pub fn identify(&self, thread: u64) {
        if let Some(post) = self.post {
            self.reactor.posts().identify(post, thread);
        }
    }

    /// The application is done with the request that [`Turn::next`] gave, but for its cleaning up: nothing is raised in it any
    /// more. True when its deadline had come.
    pub fn leave_application(&self) -> bool {
        self.post.is_some_and(|post| self.reactor.posts().leave(post))
    }

    /// True when the deadline of the request that [`Turn::next`] gave has come.
    pub fn is_overdue(&self) -> bool {
        self.post.is_some_and(|post| self.reactor.posts().is_overdue(post))
    }

    /// This is a child that the application has forked: the parent carries the request, and may have held any lock.
    fn is_forgotten(&self) -> bool {
        self.hub.is_some_and(|hub| hub.is_forgotten())
    }

    /// The thread is done with the request that it carried.
    fn put_down(&mut self) {
        if !std::mem::take(&mut self.carries) || self.is_forgotten() {
            return;
        }
        if let Some(post) = self.post {
            self.reactor.posts().end(post);
        }
        if let Some(hub) = self.hub {
            hub.note_progress();
        }
    }

    /// Runs no more, though requests may wait: the hub is called for those.
    fn leave(&mut self) {
        self.state = State::Left;
        let mut queue = lock(&self.reactor.ready().queue);
        queue.running -= 1;
        let is_called = self.hub.filter(|_| !queue.requests.is_empty());
        drop(queue);
        if let Some(hub) = is_called {
            hub.ring();
        }
    }
}

impl<'a> Turn<'a> {
    /// A turn of a thread that [`Ready::try_enter`] let in.
    pub(crate) fn new(reactor: &'a Arc<Reactor>) -> Self {
        Self {
            reactor,
            post: local::post(),
            hub: None,
            carries: false,
            state: State::Entering,
            asked: Instant::now(),
            seen: reactor.ready().moved(),
        }
    }

    /// A turn of a hub's greenlet, for the holder of this post. `None`: no request waits, or enough are carried.
    pub fn of_hub(reactor: &'a Arc<Reactor>, post: usize) -> Option<Self> {
        let hub = reactor.hub().filter(|hub| !hub.is_forgotten())?;
        let ready = reactor.ready();
        let limit = reactor.most_runners();
        let mut queue = lock(&ready.queue);
        if queue.requests.is_empty() || queue.running >= limit {
            return None;
        }
        queue.running += 1;
        drop(queue);
        let (state, seen) = (State::Running, ready.moved());
        Some(Self { reactor, post: Some(post), hub: Some(hub), carries: false, state, asked: Instant::now(), seen })
    }

    /// The next request, or `None` when the thread must leave. Call it with the application held.
    #[allow(clippy::should_implement_trait, reason = "a turn has side effects at its ends and is no iterator")]
    pub fn next(&mut self) -> Option<Exchange> {
        self.put_down();
        if self.is_forgotten() {
            self.state = State::Left;
            return None;
        }
        let ready = self.reactor.ready();
        let limit = self.reactor.most_runners();
        let mut queue = lock(&ready.queue);
        match self.state {
            State::Left => return None,
            // While this thread was stuck another one took its place.
            State::Running if queue.running > limit => {
                queue.running -= 1;
                self.state = State::Left;
                return None;
            }
            // Others have their turn; called again, the hub takes up what is left.
            State::Running if self.hub.is_some_and(|hub| hub.is_slice_over()) => {
                drop(queue);
                self.leave();
                return None;
            }
            State::Running => {}
            State::Entering => {
                ready.has_entered();
                if queue.running >= limit {
                    self.state = State::Left;
                    return None;
                }
                let moved = ready.moved() != self.seen;
                let now = Instant::now();
                let join = judge(&queue, now, now.duration_since(self.asked), moved, ready.is_eager());
                ready.learn(join);
                if join == Join::Vain {
                    self.state = State::Left;
                    return None;
                }
                self.state = State::Running;
                queue.running += 1;
                drop(queue);
                self.reactor.keep_a_spare_thread();
                queue = lock(&ready.queue);
            }
        }
        while let Some(mut exchange) = queue.requests.pop_front() {
            ready.length.store(queue.requests.len(), Ordering::Release);
            ready.moved.fetch_add(1, Ordering::Release);
            let now = Instant::now();
            queue.moved_at = now;
            drop(queue);
            // Nobody is there to answer: the application is not called.
            if !exchange.client_gone() {
                self.carries = true;
                exchange.begin(now, self.post);
                if let Some(hub) = self.hub {
                    hub.note_progress();
                }
                return Some(exchange);
            }
            drop(exchange);
            queue = lock(&ready.queue);
        }
        queue.running -= 1;
        self.state = State::Left;
        None
    }
}

/// What a thread finds that has just got the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Join {
    /// Nobody else runs.
    First,
    /// Those who run are waiting for something: one more is of use.
    Useful,
    /// Those who run compute, but the head of the queue has been stuck for so long that one more must.
    Forced,
    /// There is nothing to do, or those who run get on with it.
    Vain,
}

fn judge(queue: &Queue, now: Instant, waited: Duration, moved: bool, eager: bool) -> Join {
    if queue.requests.is_empty() {
        Join::Vain
    } else if queue.running == 0 {
        Join::First
    } else if waited < FREE && (eager || !moved) {
        Join::Useful
    } else if !moved && now.duration_since(queue.moved_at) >= FORCED_ENTRY {
        Join::Forced
    } else {
        Join::Vain
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.put_down();
        if self.is_forgotten() {
            return;
        }
        let ready = self.reactor.ready();
        match self.state {
            State::Left => {}
            State::Entering => ready.has_entered(),
            // The application unwound out of its turn, or the greenlet is not to take another request.
            State::Running => self.leave(),
        }
    }
}
