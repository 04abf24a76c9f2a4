//! The requests of a server from the moment they are complete until their runners have put them down: the run queue,
//! the runner table, and the rules of `admission` applied to both.
//!
//! Any thread uses it. The thread that leads the loop refuses the requests that wait too long.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tailrace_observe::endpoints::EndpointTable;
use tailrace_observe::growth::Growth;
use tailrace_observe::scoreboard::WorkerSlot;
use tailrace_os::clock::{Millis, nanos};
use tailrace_os::sync::lock;

use crate::connection::context::Context;
use crate::connection::driver::Task;
use crate::connection::exchange::Exchange;
use crate::connection::runner::RunnerId;
use crate::connection::table::SPECIAL;
use crate::dispatch::admission::{self, STALLED, Stall};
use crate::dispatch::run_queue::RunQueue;
use crate::dispatch::runners::{Overdue, RunnerTable, Slow};

/// The key of the timer for requests that take too long.
pub(crate) const DEADLINES: u64 = SPECIAL | 1 << 32;
/// The key of the timer for requests that are slow.
pub(crate) const SLOW: u64 = SPECIAL | 2 << 32;
/// A runner whose request is past its deadline mostly ends it within this time (nanoseconds).
const STUCK_AFTER: u64 = 1_000_000_000;

pub(crate) struct Dispatcher {
    context: Arc<Context>,
    pub(crate) queue: RunQueue<Exchange>,
    pub(crate) runners: RunnerTable,
    stall: Mutex<Stall>,
    /// `None`: no master reads it.
    growth: Option<Growth>,
}

impl Dispatcher {
    /// Without a request. `runners`: how many may run one; `worker_slot`: where on the scoreboard that is shown;
    /// `endpoints`: what has made the process grow.
    pub(crate) fn new(
        context: Arc<Context>,
        runners: usize,
        worker_slot: Option<WorkerSlot>,
        endpoints: Option<Arc<EndpointTable>>,
    ) -> Self {
        Self {
            growth: endpoints.map(Growth::new),
            queue: RunQueue::new(context.clock.read()),
            runners: RunnerTable::new(runners, worker_slot),
            stall: Mutex::default(),
            context,
        }
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// A runner has ended its request, and what that has allocated is free.
    #[inline]
    pub(crate) fn note_request_ended(&self) {
        if let Some(growth) = &self.growth {
            growth.request_ended(self.context.clock.recent_millis(), || self.runners.are_idle());
        }
    }

    /// Runners that may run the application.
    pub(crate) fn most_runners(&self) -> usize {
        admission::most_runners(self.context.config.threads, self.runners.stuck())
    }

    /// True when one more request may wait for a runner.
    pub(crate) fn has_room(&self) -> bool {
        let config = &self.context.config;
        admission::has_room(self.queue.len(), self.queue.running(), config.threads, config.max_queue)
    }

    /// True while requests run or wait.
    pub(crate) fn is_busy(&self) -> bool {
        self.queue.len() > 0 || self.queue.running() > 0
    }

    /// True when requests that wait may have to be refused for waiting too long.
    pub(crate) fn may_be_late(&self) -> bool {
        !self.context.config.queue_timeout.is_zero()
            || self.runners.stuck() > 0
            || self.context.waiting.load(Ordering::Acquire) > 0
    }

    /// The requests that are to be refused now: they have waited too long for a runner, or no runner will take them.
    pub(crate) fn take_late(&self) -> Vec<Exchange> {
        if self.queue.len() == 0 {
            return Vec::new();
        }
        let now = self.context.clock.recent();
        if self.has_no_runner_left(now) {
            return self.queue.clear().into();
        }
        let limit = self.context.config.queue_timeout;
        let by_timeout = (!limit.is_zero()).then_some(limit);
        let by_stall = self.is_stalled(now).then_some(STALLED);
        let longest = match (by_timeout, by_stall) {
            (Some(timeout), Some(stall)) => timeout.min(stall),
            (longest, other) => match longest.or(other) {
                Some(longest) => longest,
                None => return Vec::new(),
            },
        };
        match now.checked_sub(longest) {
            Some(since) => self.queue.take_late(|exchange| exchange.record().queued < since),
            None => Vec::new(),
        }
    }

    /// True when every runner that there may be has waited for slow clients for a while.
    fn is_stalled(&self, now: Instant) -> bool {
        let waiting = self.context.waiting.load(Ordering::Acquire);
        waiting > 0 && {
            let absent = waiting + self.runners.stuck();
            lock(&self.stall).is_stalled(absent, self.most_runners(), self.queue.moved(), now)
        }
    }

    /// True when every runner that there may be is stuck, and one of them for longer than [`STUCK_AFTER`].
    fn has_no_runner_left(&self, now: Instant) -> bool {
        self.runners.stuck() > 0 && {
            let all = self.most_runners().min(self.runners.len() - 1);
            self.runners.are_stuck(all, STUCK_AFTER, self.context.clock.monotonic_of(now))
        }
    }

    /// The request that a runner runs is to be answered by `due`. True: the thread that polls may have to wake
    /// sooner than it meant to.
    pub(crate) fn set_deadline(&self, runner: RunnerId, due: Millis, task: &mut dyn FnMut() -> Task) -> bool {
        let look_at = self.runners.arm(runner, due, task);
        if let Some(due) = look_at {
            self.context.timers.wake(DEADLINES, due);
        }
        look_at.is_some()
    }

    /// Ends the requests whose deadline has come by `now`, and reports each.
    pub(crate) fn expire(&self, now: Millis, report: impl FnMut(Overdue)) {
        let shared_now = self.context.clock.monotonic_of(self.context.clock.recent());
        if let Some(next) = self.runners.expire(now, shared_now, report) {
            self.context.timers.wake(DEADLINES, next);
        }
    }

    /// Reports the requests that have run for so long as `--slow-request-log` says, each once. Called when the
    /// server begins, and when the timer of [`SLOW`] has come.
    pub(crate) fn report_slow(&self, now: Millis, report: impl FnMut(Slow)) {
        let limit = nanos(self.context.config.slow_request_log);
        if limit == 0 {
            return;
        }
        // The runners whose responses have begun: found once, and only if a request is slow.
        let begun = OnceCell::new();
        let is_iterating = |runner: RunnerId| {
            let find = || {
                let mut runners = HashSet::new();
                self.context.table.visit(|connection| {
                    if connection.delivery.outbox().state.produced().status != 0 {
                        runners.insert(connection.runner.get());
                    }
                });
                runners
            };
            begun.get_or_init(find).contains(&runner.packed())
        };
        let shared_now = self.context.clock.monotonic_of(self.context.clock.recent());
        let masking = self.context.config.query_masking;
        let next = self.runners.find_slow(limit, shared_now, masking, is_iterating, report);
        self.context.timers.wake(SLOW, now + next / 1_000_000 + 1);
    }

    /// [`Dispatcher::expire`] has panicked at a request, which counts as expired: the others are looked at again soon.
    pub(crate) fn expire_again(&self, now: Millis) {
        self.context.timers.wake(DEADLINES, now + 1);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use tailrace_http::framing::{RequestFacts, ResponseFormat};
    use tailrace_os::clock;

    use super::{DEADLINES, Dispatcher, STALLED};
    use crate::config::Config;
    use crate::connection::context::Context;
    use crate::connection::driver::Task;
    use crate::connection::runner::RunnerId;
    use crate::executor::greenlets::testing::Served;
    use crate::executor::threads;
    use crate::request::Request;

    fn dispatcher(config: Config) -> Dispatcher {
        let threads = config.threads;
        let context = Arc::new(Context::new(config, threads::POLICY, Arc::default()).unwrap());
        Dispatcher::new(context, threads, None, None)
    }

    fn task() -> Task {
        Task {
            since: clock::now(),
            request: String::from("GET /"),
            id: b"abc".to_vec(),
            facts: RequestFacts { format: ResponseFormat::Http11, is_head: false, keep_alive: true },
            connection: None,
        }
    }

    fn carry(dispatcher: &Dispatcher) -> RunnerId {
        dispatcher.runners.begin(dispatcher.runners.take(1).unwrap(), &Request::default(), 1)
    }

    #[test]
    fn a_request_past_its_deadline_makes_place_for_another_runner() {
        let dispatcher = dispatcher(Config { threads: 2, ..Config::default() });
        assert!(!dispatcher.may_be_late() && !dispatcher.is_busy() && dispatcher.has_room());
        assert_eq!(dispatcher.most_runners(), 2);
        let timers = &dispatcher.context.timers;
        let now = dispatcher.context.clock.now();
        let runner = carry(&dispatcher);
        assert!(dispatcher.set_deadline(runner, now + 5, &mut task));
        assert!(!dispatcher.set_deadline(runner, now + 9, &mut task));
        assert_eq!(timers.pop(now + 5), Some((now + 5, DEADLINES)));
        let mut late = Vec::new();
        // It was put off: it is looked at again when it comes.
        dispatcher.expire(now + 5, |overdue| late.push(overdue.serial));
        assert_eq!((late.len(), timers.pop(now + 9)), (0, Some((now + 9, DEADLINES))));
        dispatcher.expire(now + 9, |overdue| late.push(overdue.serial));
        assert_eq!((late.as_slice(), timers.pop(now + 9)), ([runner.serial].as_slice(), None));
        dispatcher.expire_again(now + 9);
        assert_eq!(timers.pop(now + 10), Some((now + 10, DEADLINES)));
        assert!(dispatcher.may_be_late());
        assert_eq!(dispatcher.most_runners(), 3);
    }

    #[test]
    fn requests_may_be_late_where_they_may_wait_no_longer_or_clients_are_slow() {
        assert!(dispatcher(Config { queue_timeout: Duration::from_secs(1), ..Config::default() }).may_be_late());
        let slow = dispatcher(Config::default());
        slow.context.waiting.fetch_add(1, Ordering::SeqCst);
        assert!(slow.may_be_late() && slow.take_late().is_empty());
        assert!(!slow.is_stalled(slow.context.clock.recent()));
    }

    #[test]
    fn when_all_runners_are_stuck_for_a_while_none_is_left() {
        let dispatcher = dispatcher(Config { threads: 1, ..Config::default() });
        let now = dispatcher.context.clock.read();
        let second = Duration::from_secs(1);
        assert!(!dispatcher.has_no_runner_left(now + 9 * second));
        let runner = carry(&dispatcher);
        dispatcher.set_deadline(runner, 0, &mut task);
        dispatcher.expire(0, |_| ());
        assert_eq!(dispatcher.most_runners(), 1, "there is never a second one");
        assert!(!dispatcher.has_no_runner_left(now + second));
        assert!(dispatcher.has_no_runner_left(now + second + Duration::from_nanos(1)));
        dispatcher.runners.end(runner.slot);
        assert!(!dispatcher.has_no_runner_left(now + 9 * second));
    }

    /// How many requests are late, of one that is in the queue: at once, or when `time` has passed.
    fn late_after(served: &Served, dispatcher: &Dispatcher, time: Duration) -> usize {
        let (_client, exchange) = served.exchange();
        dispatcher.queue.push(exchange);
        assert!(dispatcher.is_busy());
        dispatcher.context.clock.read();
        let mut late = dispatcher.take_late().len();
        if !time.is_zero() {
            dispatcher.context.clock.advance(time);
            dispatcher.context.clock.read();
        }
        late += dispatcher.take_late().len();
        assert_eq!(dispatcher.queue.clear().len(), 1 - late);
        late
    }

    #[test]
    fn a_request_is_late_when_it_has_waited_for_its_time_or_when_all_runners_wait_for_slow_clients() {
        const LONG: Duration = Duration::from_secs(1_000);
        const SHORT: Duration = Duration::from_millis(1);
        let served = Served::new(Config::default());
        // queue_timeout, runners that wait of two, time
        let cases = [
            ((Duration::ZERO, 0), 9 * LONG, 0, "it may wait as long as it takes"),
            ((LONG, 0), LONG / 2, 0, "it may wait longer"),
            ((LONG, 0), 2 * LONG, 1, "it has waited too long"),
            ((Duration::ZERO, 1), 9 * LONG, 0, "a runner is left that may take it"),
            ((Duration::ZERO, 2), Duration::ZERO, 0, "the runners may come back soon"),
            ((Duration::ZERO, 2), 2 * STALLED, 1, "no runner comes back soon"),
            ((LONG, 2), 2 * STALLED, 1, "that is known before its own time is over"),
            ((SHORT, 2), 2 * SHORT, 1, "its own time is over before that is known"),
        ];
        for ((queue_timeout, waiting), time, expected, why) in cases {
            let dispatcher = dispatcher(Config { threads: 2, queue_timeout, ..Config::default() });
            dispatcher.context.waiting.store(waiting, Ordering::SeqCst);
            assert_eq!(late_after(&served, &dispatcher, time), expected, "{why}");
        }
        served.end();
    }

    #[test]
    fn all_requests_are_late_when_no_runner_is_left() {
        let served = Served::new(Config::default());
        let dispatcher = dispatcher(Config { threads: 1, ..Config::default() });
        let runner = carry(&dispatcher);
        dispatcher.set_deadline(runner, 0, &mut task);
        dispatcher.expire(0, |_| ());
        assert_eq!(late_after(&served, &dispatcher, Duration::from_secs(2)), 1);
        assert!(!dispatcher.is_busy());
        served.end();
    }
}
