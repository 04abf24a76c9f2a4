//! What each thread of a server carries: for the deadline of its request, and for the scoreboard.
//!
//! A thread holds a post as long as it lives; with a hub, a greenlet does. It notes there which request it takes up and
//! when it has put it down; the I/O side looks through the posts when a deadline has come. A request is carried until its
//! thread asks for the next one, so also while the application closes what it has; its connection is carried until the
//! response is finished.
//! Lock order: a post's, then those of its connection.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use penstock_http::framing::RequestFacts;

use crate::connection::Connection;
use crate::lock;
use crate::request::Request;
use crate::scoreboard::{Place, Slot};
use crate::sys;
use crate::timers::{Millis, NEVER};

/// Posts beyond the threads, at least: for those that take the place of threads which are stuck.
const SPARE: usize = 16;

/// A request whose deadline has come while its application still works on it.
#[derive(Clone, Debug)]
pub struct Overdue {
    /// The post of its thread, and the number of the request: for [`crate::reactor::Reactor::is_carrying`].
    pub post: usize,
    /// See `post`.
    pub serial: u64,
    /// What the application called its thread, see [`crate::ready::Turn::identify`].
    pub thread: u64,
    /// Method and target.
    pub request: String,
    /// Since when the application has had it.
    pub since: Instant,
    /// What became of the response.
    pub outcome: Outcome,
}

/// What becomes of the response to a request whose deadline has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The client was answered 504 in the application's place.
    Answered,
    /// It had begun, and was broken off.
    BrokenOff,
    /// It was finished, or its client had gone.
    Over,
}

/// The request that a thread carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carrying {
    post: usize,
    serial: u64,
}

/// A request with a deadline.
pub(crate) struct Task {
    pub(crate) since: Instant,
    /// Method and target.
    pub(crate) request: String,
    pub(crate) facts: RequestFacts,
    /// Until the response is finished.
    pub(crate) connection: Option<Arc<Connection>>,
}

struct Carried {
    serial: u64,
    due: Millis,
    task: Task,
}

#[derive(Default)]
struct Post {
    /// What the application calls the thread.
    thread: AtomicU64,
    /// The request that the thread carries; 0: none.
    serial: AtomicU64,
    /// The request has a deadline, so that `carried` is there.
    armed: AtomicBool,
    /// Its deadline has come, on the clock that all processes share; 0: it has not.
    overdue: AtomicU64,
    /// The application is cleaning up.
    leaving: AtomicBool,
    carried: Mutex<Option<Carried>>,
    slot: Option<Slot>,
}

/// The posts of a server.
pub(crate) struct Posts {
    posts: Vec<Post>,
    free: Mutex<Vec<usize>>,
    serial: AtomicU64,
    /// Threads in requests whose deadline has come.
    stuck: AtomicUsize,
    timed_out: AtomicU64,
    /// When the posts are looked through.
    look_at: AtomicU64,
    /// The same moment on the clock of this process and on the one that all processes share.
    began: (Instant, u64),
}

impl Posts {
    /// Posts for so many threads; their slots of the scoreboard are those of `place`.
    pub(crate) fn new(threads: usize, place: Option<Place>) -> Self {
        let count = threads + 1 + threads.max(SPARE);
        let posts: Vec<_> = (0..count)
            .map(|number| Post { slot: place.and_then(|place| place.slot(number)), ..Post::default() })
            .collect();
        Self {
            posts,
            free: Mutex::new((0..count).rev().collect()),
            serial: AtomicU64::new(0),
            stuck: AtomicUsize::new(0),
            timed_out: AtomicU64::new(0),
            look_at: AtomicU64::new(NEVER),
            began: (Instant::now(), sys::monotonic_nanos()),
        }
    }

    /// A post for a thread of this number, or for one of its greenlets; `None` when there is none left.
    pub(crate) fn take(&self, thread: u64) -> Option<usize> {
        let number = lock(&self.free).pop()?;
        if let Some(slot) = &self.posts[number].slot {
            slot.belongs_to(thread);
        }
        Some(number)
    }

    /// The thread ends.
    pub(crate) fn give_back(&self, number: usize) {
        self.end(number);
        lock(&self.free).push(number);
    }

    /// Threads in requests whose deadline has come.
    pub(crate) fn stuck(&self) -> usize {
        self.stuck.load(Ordering::Acquire)
    }

    /// Requests whose deadline has come.
    pub(crate) fn timed_out(&self) -> u64 {
        self.timed_out.load(Ordering::Relaxed)
    }

    /// Posts that there are.
    pub(crate) fn len(&self) -> usize {
        self.posts.len()
    }

    /// Since when a thread has been in a request whose deadline is over, on the clock that all processes share; 0: none is.
    pub(crate) fn stuck_since(&self) -> u64 {
        if self.stuck() == 0 {
            return 0;
        }
        let times = self.posts.iter().map(|post| post.overdue.load(Ordering::Acquire));
        times.filter(|time| *time > 0).min().unwrap_or(0)
    }

    /// A moment on the clock that all processes share, in nanoseconds.
    pub(crate) fn monotonic(&self, moment: Instant) -> u64 {
        self.began.1 + moment.saturating_duration_since(self.began.0).as_nanos() as u64
    }

    /// What the application calls the thread of a post.
    pub(crate) fn identify(&self, number: usize, thread: u64) {
        self.posts[number].thread.store(thread, Ordering::Release);
    }

    /// The thread takes a request up.
    pub(crate) fn begin(&self, number: usize, request: &Request, now: Instant) -> Carrying {
        let post = &self.posts[number];
        let serial = self.serial.fetch_add(1, Ordering::Relaxed) + 1;
        post.serial.store(serial, Ordering::Release);
        if let Some(slot) = &post.slot {
            let since = self.monotonic(now);
            let method = request.head.method.of(&request.bytes);
            let target = request.head.target.of(&request.bytes);
            slot.begin(serial, since, request.endpoints.peer, method, target);
        }
        Carrying { post: number, serial }
    }

    /// The thread has put its request down.
    pub(crate) fn end(&self, number: usize) {
        let post = &self.posts[number];
        if post.serial.swap(0, Ordering::AcqRel) == 0 {
            return;
        }
        post.leaving.store(false, Ordering::Release);
        if let Some(slot) = &post.slot {
            slot.end();
        }
        if post.armed.swap(false, Ordering::AcqRel) {
            let carried = lock(&post.carried).take();
            if post.overdue.swap(0, Ordering::AcqRel) > 0 {
                self.stuck.fetch_sub(1, Ordering::AcqRel);
            }
            drop(carried);
        }
    }

    /// The request that the thread carries has until `due`; `task` describes it, asked once. True: the posts must be looked
    /// through at `due`.
    pub(crate) fn arm(&self, carrying: Carrying, due: Millis, task: impl FnOnce() -> Task) -> bool {
        let post = &self.posts[carrying.post];
        let mut carried = lock(&post.carried);
        if post.serial.load(Ordering::Acquire) != carrying.serial {
            return false;
        }
        match &mut *carried {
            Some(carried) => carried.due = due,
            None => *carried = Some(Carried { serial: carrying.serial, due, task: task() }),
        }
        post.armed.store(true, Ordering::Release);
        drop(carried);
        self.look_at.fetch_min(due, Ordering::AcqRel) > due
    }

    /// The response of the request is finished: its connection may serve another one.
    pub(crate) fn release(&self, carrying: Carrying) {
        let post = &self.posts[carrying.post];
        if post.armed.load(Ordering::Acquire)
            && let Some(carried) = &mut *lock(&post.carried)
            && carried.serial == carrying.serial
        {
            carried.task.connection = None;
        }
    }

    /// True when the deadline of the request that the thread carries has come.
    pub(crate) fn is_overdue(&self, number: usize) -> bool {
        self.posts[number].overdue.load(Ordering::Acquire) > 0
    }

    /// The application cleans up. True when the deadline of its request has come.
    pub(crate) fn leave(&self, number: usize) -> bool {
        self.posts[number].leaving.store(true, Ordering::Release);
        self.is_overdue(number)
    }

    /// True when the application of a request may be interrupted: it is still at it, and not cleaning up.
    pub(crate) fn is_interruptible(&self, number: usize, serial: u64) -> bool {
        self.is_carrying(number, serial) && !self.posts[number].leaving.load(Ordering::Acquire)
    }

    /// True when the thread of a post still carries this request.
    pub(crate) fn is_carrying(&self, number: usize, serial: u64) -> bool {
        self.posts.get(number).is_some_and(|post| post.serial.load(Ordering::Acquire) == serial)
    }

    /// I/O side: ends what is due, and tells it. Answers when to look again.
    pub(crate) fn look(&self, now: Millis, mut tell: impl FnMut(Overdue)) -> Option<Millis> {
        self.look_at.store(NEVER, Ordering::Release);
        let mut next = NEVER;
        for (number, post) in self.posts.iter().enumerate() {
            if !post.armed.load(Ordering::Acquire) || post.overdue.load(Ordering::Acquire) > 0 {
                continue;
            }
            let mut carried = lock(&post.carried);
            let Some(carried) = &mut *carried else { continue };
            if carried.due > now {
                next = next.min(carried.due);
                continue;
            }
            post.overdue.store(sys::monotonic_nanos().max(1), Ordering::Release);
            self.stuck.fetch_add(1, Ordering::AcqRel);
            self.timed_out.fetch_add(1, Ordering::Relaxed);
            let task = &mut carried.task;
            let connection = task.connection.take();
            let outcome = connection.as_ref().map_or(Outcome::Over, |connection| connection.overrule(task.facts));
            tell(Overdue {
                post: number,
                serial: carried.serial,
                thread: post.thread.load(Ordering::Acquire),
                request: task.request.clone(),
                since: task.since,
                outcome,
            });
            // After that, so that the deadline is what its application hears of first.
            if let Some(connection) = connection {
                connection.tell_room();
                connection.tell_reader();
            }
        }
        let known = self.look_at.fetch_min(next, Ordering::AcqRel);
        (next != NEVER && known >= next).then_some(next)
    }
}
