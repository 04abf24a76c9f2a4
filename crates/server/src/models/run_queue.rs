//! The run queue: no request stays in it or is taken twice, and at most one thread waits for the interpreter.

use std::sync::Arc;
use std::time::Instant;

use loom::thread;
use tailrace_os::clock;
use tailrace_os::model::Exclusive;

use super::explore;
use crate::dispatch::admission::Verdict;
use crate::dispatch::run_queue::{RunQueue, TakeResult};

struct Server {
    queue: RunQueue<usize>,
    limit: usize,
    now: Instant,
    /// Data that only the thread that waits for the interpreter touches.
    entering: Exclusive<()>,
    taken: [Exclusive<bool>; 3],
}

impl Server {
    fn new(limit: usize) -> Arc<Self> {
        let now = clock::now();
        let (entering, taken) = Default::default();
        Arc::new(Self { queue: RunQueue::new(now), limit, now, entering, taken })
    }

    /// A thread that polls has a complete request: it queues the request, and runs the application if the verdict says
    /// so. Where two may run, the queue counts as stuck, so that a second thread joins.
    fn dispatch(&self, request: usize) {
        self.queue.push(request);
        if self.queue.verdict(self.limit > 1, self.limit, self.now) != Verdict::Run {
            return;
        }
        let Some(entry) = self.queue.try_enter(self.now) else { return };
        self.entering.with(|()| ());
        if self.queue.enter(entry, self.limit, || self.now).runs() {
            self.run();
        }
    }

    fn run(&self) {
        while let TakeResult::Request(request, _) = self.queue.take(self.limit, false, || self.now) {
            self.taken[request].with(|is_taken| assert!(!std::mem::replace(is_taken, true), "taken twice"));
        }
    }

    fn check(&self, requests: usize) {
        assert_eq!((self.queue.len(), self.queue.running()), (0, 0));
        assert!(self.taken[..requests].iter().all(|taken| taken.with(|is_taken| *is_taken)));
        assert!(self.queue.try_enter(self.now).is_some());
    }
}

#[test]
fn no_request_stays_in_the_queue() {
    for limit in [1, 2] {
        explore(&format!("run queue: three threads, {limit} may run"), 3, move || {
            let server = Server::new(limit);
            let others = [0, 1].map(|request| {
                let server = server.clone();
                thread::spawn(move || server.dispatch(request))
            });
            server.dispatch(2);
            others.into_iter().for_each(|other| other.join().unwrap());
            server.check(3);
        });
    }
}
