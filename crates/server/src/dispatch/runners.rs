//! The runner table: which request each runner of a server runs, for the deadline of the request and for the
//! scoreboard.
//!
//! A runner is a thread or a greenlet that runs the application. It has a slot from its start to its end. It notes
//! there which request it begins and when it is done with it; the I/O side looks through the slots when a deadline
//! has come. A request counts as running until its runner asks for the next one, so also while the application runs
//! `close()`; its connection counts only until the response is finished. Lock order: a slot's, then those of its
//! connection.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tailrace_http::identity::id_text;
use tailrace_http::query::QueryMasking;
use tailrace_observe::scoreboard;
use tailrace_observe::scoreboard::{InFlight, Sending, WorkerSlot, most_threads};
use tailrace_os::clock::{Millis, NEVER};
use tailrace_os::sync::lock;

use crate::connection::driver::Task;
use crate::connection::runner::RunnerId;
use crate::request::Request;
use crate::response::outbox::TimeOut;

/// A request whose deadline has come while its application still works on it.
#[derive(Clone, Debug)]
pub struct Overdue {
    /// The slot of its runner, and the number of the request: they name it as long as it runs.
    pub slot: usize,
    /// See `slot`.
    pub serial: u64,
    /// The application's number for its thread.
    pub thread: u64,
    /// Method and target.
    pub request: String,
    /// Since when the application has had it.
    pub since: Instant,
    /// What became of the response.
    pub time_out: TimeOut,
}

/// A request whose client has left while its application works on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnected {
    /// The slot of its runner, and the number of the request: they name it as long as it runs.
    pub slot: usize,
    /// See `slot`.
    pub serial: u64,
    /// The application's number for its thread.
    pub thread: u64,
    /// The request is to be cancelled.
    pub is_cancelled: bool,
}

/// Why the application of a request was interrupted, or may have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// The deadline of the request has come.
    Overdue,
    /// Its client has left.
    Cancelled,
}

/// A request that has run for long.
#[derive(Clone, Debug)]
pub struct Slow {
    /// The slot of its runner, and the number of the request: they name it as long as it runs.
    pub slot: usize,
    /// See `slot`.
    pub serial: u64,
    /// The application's number for its thread.
    pub thread: u64,
    /// The kernel's number of that.
    pub native: u64,
    /// Method and target, as far as the scoreboard has them.
    pub request: String,
    /// For how long it has run.
    pub time: Duration,
    /// What the application does.
    pub phase: &'static str,
}

impl fmt::Display for Slow {
    /// The line of the log, without the stack.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request, time, phase, native, .. } = self;
        write!(
            formatter,
            "{request}: slow: it has run for {:.3} s and is {phase}, in thread {native}",
            time.as_secs_f64()
        )
    }
}

struct Timed {
    serial: u64,
    due: Millis,
    task: Task,
}

#[derive(Default)]
struct Slot {
    /// The application's number for the thread.
    thread: AtomicU64,
    /// The request that the runner runs; 0: none.
    serial: AtomicU64,
    /// The request has a deadline, so that `timed` is there.
    armed: AtomicBool,
    /// The last request of it that was reported as slow, or that never is.
    slow: AtomicU64,
    /// When its deadline came; see [`Slot::overdue_since`].
    overdue: AtomicU64,
    /// The last request of it that was cancelled.
    cancelled: AtomicU64,
    /// The last request of it whose connection the application has taken over.
    raw: AtomicU64,
    /// The last request of it whose response has ended, so that its connection may serve another one.
    answered: AtomicU64,
    /// The response has ended and the application cleans up, in `close()` for example: it is not interrupted any more.
    leaving: AtomicBool,
    timed: Mutex<Option<Timed>>,
    /// Its slot on the scoreboard.
    shown: Option<scoreboard::RunnerSlot>,
}

impl Slot {
    /// Since when the deadline of the request is over, on the clock that all processes share.
    fn overdue_since(&self) -> Option<u64> {
        self.overdue.load(Ordering::Acquire).checked_sub(1)
    }

    fn set_overdue(&self, since: u64) {
        self.overdue.store(since.saturating_add(1), Ordering::Release);
    }

    /// Ends what was overdue. True: something was.
    fn end_overdue(&self) -> bool {
        self.overdue.swap(0, Ordering::AcqRel) > 0
    }
}

pub(crate) struct RunnerTable {
    slots: Vec<Slot>,
    worker_slot: Option<WorkerSlot>,
    free: Mutex<Vec<usize>>,
    /// Slots that were ever taken: those below.
    used: AtomicUsize,
    serial: AtomicU64,
    /// Runners in requests whose deadline has come.
    stuck: AtomicUsize,
    timed_out: AtomicU64,
    /// When the slots are looked through.
    look_at: AtomicU64,
}

impl RunnerTable {
    /// Slots for so many runners, and some more for those that replace runners which are past their deadlines; what
    /// they run is shown on the scoreboard in `worker_slot`.
    pub(crate) fn new(runners: usize, worker_slot: Option<WorkerSlot>) -> Self {
        let count = most_threads(runners);
        let slots: Vec<_> = (0..count)
            .map(|number| Slot { shown: worker_slot.and_then(|worker| worker.slot(number)), ..Slot::default() })
            .collect();
        Self {
            slots,
            worker_slot,
            free: Mutex::new((0..count).rev().collect()),
            used: AtomicUsize::new(0),
            serial: AtomicU64::new(0),
            stuck: AtomicUsize::new(0),
            timed_out: AtomicU64::new(0),
            look_at: AtomicU64::new(NEVER),
        }
    }

    /// A slot for a thread of this number, or for one of its greenlets; `None` when there is none left.
    pub(crate) fn take(&self, thread: u64) -> Option<usize> {
        let number = lock(&self.free).pop()?;
        self.used.fetch_max(number + 1, Ordering::AcqRel);
        if let Some(worker_slot) = &self.worker_slot {
            worker_slot.take_slot(number, thread);
        }
        Some(number)
    }

    /// The runner ends.
    pub(crate) fn give_back(&self, number: usize) {
        self.end(number);
        lock(&self.free).push(number);
    }

    /// Runners in requests whose deadline has come.
    pub(crate) fn stuck(&self) -> usize {
        self.stuck.load(Ordering::Acquire)
    }

    /// Requests whose deadline has come.
    pub(crate) fn timed_out(&self) -> u64 {
        self.timed_out.load(Ordering::Relaxed)
    }

    /// Slots that there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Since when a runner has been in a request whose deadline is over, on the clock that all processes share. `None`
    /// also while [`RunnerTable::stuck`] still counts one whose application has just returned.
    pub(crate) fn stuck_since(&self) -> Option<u64> {
        if self.stuck() == 0 {
            return None;
        }
        self.slots.iter().filter_map(Slot::overdue_since).min()
    }

    /// True when so many runners are stuck, at least, and one of them for at least `time` nanoseconds.
    pub(crate) fn are_stuck(&self, count: usize, time: u64, now: u64) -> bool {
        self.stuck() >= count.max(1) && self.stuck_since().is_some_and(|since| now.saturating_sub(since) > time)
    }

    /// What the scoreboard shows of a request; `None`: it is over, or there is no scoreboard.
    pub(crate) fn in_flight(&self, runner: RunnerId) -> Option<InFlight> {
        let shown = self.slots.get(runner.slot)?.shown?;
        shown.read().filter(|request| request.serial == runner.serial)
    }

    /// The runner waits for its client until the result is dropped; `None`: the request is over, or there is no
    /// scoreboard.
    pub(crate) fn show_sending(&self, runner: RunnerId) -> Option<Sending> {
        let slot = self.slots.get(runner.slot)?;
        slot.shown.filter(|_| slot.serial.load(Ordering::Acquire) == runner.serial).map(scoreboard::RunnerSlot::sending)
    }

    /// Notes the application's number for the thread of a runner.
    pub(crate) fn identify(&self, number: usize, thread: u64) {
        self.slots[number].thread.store(thread, Ordering::Release);
    }

    /// The runner begins a request; `now` is on the clock that all processes share.
    pub(crate) fn begin(&self, number: usize, request: &Request, now: u64) -> RunnerId {
        let slot = &self.slots[number];
        let serial = self.serial.fetch_add(1, Ordering::Relaxed) + 1;
        slot.serial.store(serial, Ordering::Release);
        if let Some(shown) = &slot.shown {
            shown.begin(serial, now, &request.shown());
        }
        RunnerId { slot: number, serial }
    }

    /// The runner is done with its request.
    pub(crate) fn end(&self, number: usize) {
        let slot = &self.slots[number];
        if slot.serial.swap(0, Ordering::AcqRel) == 0 {
            return;
        }
        slot.leaving.store(false, Ordering::Release);
        if let Some(shown) = &slot.shown {
            shown.end();
        }
        if slot.armed.swap(false, Ordering::AcqRel) {
            let timed = lock(&slot.timed).take();
            if slot.end_overdue() {
                self.stuck.fetch_sub(1, Ordering::AcqRel);
            }
            drop(timed);
        }
    }

    /// The request that the runner runs has until `due`; `task` describes it, asked once. Returns when the slots
    /// must be looked through, if that is sooner than before.
    pub(crate) fn arm(&self, runner: RunnerId, due: Millis, task: impl FnOnce() -> Task) -> Option<Millis> {
        let slot = &self.slots[runner.slot];
        let mut timed = lock(&slot.timed);
        if slot.serial.load(Ordering::Acquire) != runner.serial {
            return None;
        }
        match &mut *timed {
            Some(timed) => timed.due = due,
            None => *timed = Some(Timed { serial: runner.serial, due, task: task() }),
        }
        slot.armed.store(true, Ordering::Release);
        drop(timed);
        (self.look_at.fetch_min(due, Ordering::AcqRel) > due).then_some(due)
    }

    /// The response of the request is finished: its connection may serve another one.
    pub(crate) fn release(&self, runner: RunnerId) {
        let slot = &self.slots[runner.slot];
        slot.answered.store(runner.serial, Ordering::Release);
        if slot.armed.load(Ordering::Acquire)
            && let Some(timed) = &mut *lock(&slot.timed)
            && timed.serial == runner.serial
        {
            timed.task.connection = None;
        }
    }

    /// The application has taken over the connection of the request: it is not reported as slow, nor interrupted because
    /// its client has left, which it reads itself.
    pub(crate) fn note_raw(&self, runner: RunnerId) {
        let slot = &self.slots[runner.slot];
        slot.slow.store(runner.serial, Ordering::Relaxed);
        slot.raw.store(runner.serial, Ordering::Release);
    }

    /// Why the request that the runner runs was interrupted, or may have been.
    pub(crate) fn interruption(&self, number: usize) -> Option<Interruption> {
        let slot = &self.slots[number];
        if slot.overdue_since().is_some() {
            return Some(Interruption::Overdue);
        }
        let cancelled = slot.cancelled.load(Ordering::Acquire);
        let is_cancelled = cancelled != 0 && cancelled == slot.serial.load(Ordering::Acquire);
        is_cancelled.then_some(Interruption::Cancelled)
    }

    /// The application cleans up. Returns why it was interrupted.
    pub(crate) fn leave(&self, number: usize) -> Option<Interruption> {
        self.slots[number].leaving.store(true, Ordering::Release);
        self.interruption(number)
    }

    /// The client of a request has left. `None`: the request is over. `cancels`: whether to cancel a request with this
    /// method.
    pub(crate) fn disconnect(&self, runner: RunnerId, cancels: impl FnOnce(&[u8]) -> bool) -> Option<Disconnected> {
        let RunnerId { slot: number, serial } = runner;
        // 0: no runner has ever taken a request of the connection.
        if serial == 0 || !self.is_cancellable(number, serial) {
            return None;
        }
        let slot = &self.slots[number];
        let is_raw = slot.raw.load(Ordering::Acquire) == serial;
        let is_cancelled = !is_raw && self.in_flight(runner).is_some_and(|request| cancels(&request.method));
        if is_cancelled {
            // A later request of the slot may have been cancelled meanwhile.
            slot.cancelled.fetch_max(serial, Ordering::AcqRel);
        }
        let thread = slot.thread.load(Ordering::Acquire);
        Some(Disconnected { slot: number, serial, thread, is_cancelled })
    }

    /// True when the application of a request may be interrupted: it still runs, and does not clean up yet.
    pub(crate) fn is_interruptible(&self, number: usize, serial: u64) -> bool {
        self.runs(number, serial) && !self.slots[number].leaving.load(Ordering::Acquire)
    }

    /// True when a request may be cancelled: its application may be interrupted, and its response has not ended.
    pub(crate) fn is_cancellable(&self, number: usize, serial: u64) -> bool {
        self.is_interruptible(number, serial) && self.slots[number].answered.load(Ordering::Acquire) != serial
    }

    /// True when no runner runs a request.
    pub(crate) fn are_idle(&self) -> bool {
        let used = self.used.load(Ordering::Acquire);
        self.slots[..used].iter().all(|slot| slot.serial.load(Ordering::Acquire) == 0)
    }

    /// True when the runner still runs this request.
    pub(crate) fn runs(&self, number: usize, serial: u64) -> bool {
        self.slots.get(number).is_some_and(|slot| slot.serial.load(Ordering::Acquire) == serial)
    }

    /// I/O side: reports each request that has run for `limit` nanoseconds, once. `now` is on the clock that all
    /// processes share. `is_iterating`: whether the head of its response was sent. Returns after how many nanoseconds
    /// to look again: no request that begins meanwhile runs for longer by then.
    pub(crate) fn find_slow(
        &self,
        limit: u64,
        now: u64,
        masking: QueryMasking,
        is_iterating: impl Fn(RunnerId) -> bool,
        mut report: impl FnMut(Slow),
    ) -> u64 {
        let mut next = limit;
        for (number, slot) in self.slots.iter().enumerate() {
            let serial = slot.serial.load(Ordering::Acquire);
            if serial == 0 || slot.slow.load(Ordering::Relaxed) == serial {
                continue;
            }
            let runner = RunnerId { slot: number, serial };
            let Some(shown) = self.in_flight(runner) else { continue };
            let time = now.saturating_sub(shown.since);
            if time < limit {
                next = next.min(limit - time);
                continue;
            }
            slot.slow.store(serial, Ordering::Relaxed);
            let phase = if shown.is_sending {
                "waiting for its client"
            } else if slot.leaving.load(Ordering::Acquire) {
                "in close()"
            } else if is_iterating(runner) {
                "iterating its response"
            } else {
                "in the application"
            };
            report(Slow {
                slot: number,
                serial,
                thread: slot.thread.load(Ordering::Acquire),
                native: shown.thread,
                request: shown.line(masking),
                time: Duration::from_nanos(time),
                phase,
            });
        }
        next
    }

    /// I/O side: ends what is due at `now`, and reports it. Returns when to look again. `shared_now` is the same moment
    /// on the clock that all processes share.
    pub(crate) fn expire(&self, now: Millis, shared_now: u64, mut report: impl FnMut(Overdue)) -> Option<Millis> {
        self.look_at.store(NEVER, Ordering::Release);
        let mut next = NEVER;
        for (number, slot) in self.slots.iter().enumerate() {
            if !slot.armed.load(Ordering::Acquire) || slot.overdue_since().is_some() {
                continue;
            }
            let mut timed = lock(&slot.timed);
            let Some(timed) = &mut *timed else { continue };
            if timed.due > now {
                next = next.min(timed.due);
                continue;
            }
            slot.set_overdue(shared_now);
            self.stuck.fetch_add(1, Ordering::AcqRel);
            self.timed_out.fetch_add(1, Ordering::Relaxed);
            let task = &mut timed.task;
            let connection = task.connection.take();
            let time_out =
                connection.as_ref().map_or(TimeOut::Over, |connection| connection.time_out(task.facts, &task.id));
            report(Overdue {
                slot: number,
                serial: timed.serial,
                thread: slot.thread.load(Ordering::Acquire),
                request: format!("{}{}", task.request, id_text(&task.id, None)),
                since: task.since,
                time_out,
            });
            // After the report, so that the application is interrupted by the deadline before it finds that the
            // response is over.
            if let Some(connection) = connection {
                connection.notify_room();
                connection.notify_reader();
            }
        }
        let known = self.look_at.fetch_min(next, Ordering::AcqRel);
        (next != NEVER && known >= next).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read;
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};

    use tailrace_http::framing::{RequestFacts, ResponseFormat};
    use tailrace_http::query::QueryMasking;
    use tailrace_observe::metrics::Metric;
    use tailrace_observe::scoreboard::Scoreboard;
    use tailrace_os::clock::{Millis, NEVER};

    use super::{Interruption, Overdue, RunnerId, RunnerTable, Task, TimeOut};
    use crate::config::Config;
    use crate::executor::greenlets::testing::Served;
    use crate::request::Request;

    const SECOND: u64 = 1_000_000_000;

    fn task() -> Task {
        Task {
            since: Instant::now(),
            request: String::from("GET /"),
            id: b"abc".to_vec(),
            facts: RequestFacts { format: ResponseFormat::Http11, is_head: false, keep_alive: true },
            connection: None,
        }
    }

    /// A table, and a runner of it that runs a request.
    fn running() -> (RunnerTable, RunnerId) {
        let table = RunnerTable::new(2, None);
        let slot = table.take(1).unwrap();
        let runner = table.begin(slot, &Request::default(), 5);
        (table, runner)
    }

    fn expire(table: &RunnerTable, now: Millis) -> (Vec<Overdue>, Option<Millis>) {
        let mut late = Vec::new();
        let next = table.expire(now, now.saturating_mul(1_000_000), |overdue| late.push(overdue));
        (late, next)
    }

    #[test]
    fn a_runner_that_has_just_ended_its_request_does_not_count_as_stuck_for_long() {
        let table = RunnerTable::new(4, None);
        let number = table.take(1).unwrap();
        assert!(!table.are_stuck(1, SECOND, 100 * SECOND));
        table.slots[number].set_overdue(98 * SECOND);
        table.stuck.fetch_add(1, Ordering::AcqRel);
        assert_eq!(table.stuck_since(), Some(98 * SECOND));
        assert!(table.are_stuck(1, SECOND, 100 * SECOND));
        assert!(!table.are_stuck(2, SECOND, 100 * SECOND));
        assert!(!table.are_stuck(1, 3 * SECOND, 100 * SECOND));
        // The moment within `end` in which the runner is counted and has no time any more.
        table.slots[number].end_overdue();
        assert_eq!((table.stuck(), table.stuck_since()), (1, None));
        assert!(!table.are_stuck(1, SECOND, 100 * SECOND));
    }

    #[test]
    fn slots_are_given_out_once_and_again_when_they_are_given_back() {
        let table = RunnerTable::new(2, None);
        let mut slots: Vec<_> = (0..table.len()).map(|_| table.take(1).unwrap()).collect();
        assert!(table.take(1).is_none());
        table.give_back(slots[1]);
        assert_eq!(table.take(1), Some(slots[1]));
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), table.len());
    }

    #[test]
    fn a_request_runs_from_its_begin_to_its_end() {
        let (table, runner) = running();
        assert!(table.runs(runner.slot, runner.serial) && table.is_interruptible(runner.slot, runner.serial));
        assert!(!table.runs(runner.slot, runner.serial + 1) && !table.runs(usize::MAX, runner.serial));
        assert_eq!(table.leave(runner.slot), None);
        assert!(table.runs(runner.slot, runner.serial) && !table.is_interruptible(runner.slot, runner.serial));
        table.end(runner.slot);
        assert!(!table.runs(runner.slot, runner.serial));
        // The next one may be interrupted again.
        let next = table.begin(runner.slot, &Request::default(), 6);
        assert!(next.serial > runner.serial && table.is_interruptible(next.slot, next.serial));
        // Without a scoreboard there is nothing to see.
        assert!(table.in_flight(next).is_none());
    }

    #[test]
    fn a_request_is_cancelled_while_its_application_runs_and_its_response_has_not_ended() {
        let board = Scoreboard::new(1, 2).unwrap();
        let table = RunnerTable::new(2, Some(board.worker_slot(0).unwrap()));
        let slot = table.take(1).unwrap();
        table.identify(slot, 77);
        let begin = || table.begin(slot, &Request::default(), 5);

        let none = RunnerId { slot, serial: 0 };
        assert_eq!(table.disconnect(none, |_| true), None);
        let runner = begin();
        // One that is not to be cancelled is reported all the same.
        let reported = table.disconnect(runner, |_| false).unwrap();
        assert_eq!((reported.serial, reported.thread, reported.is_cancelled), (runner.serial, 77, false));
        assert_eq!(table.interruption(slot), None);
        assert!(table.disconnect(runner, |_| true).unwrap().is_cancelled);
        assert_eq!(table.leave(slot), Some(Interruption::Cancelled));
        assert_eq!(table.disconnect(runner, |_| true), None);
        table.end(slot);

        let answered = begin();
        assert_eq!(table.interruption(slot), None);
        // An earlier request of the slot is over.
        assert_eq!(table.disconnect(runner, |_| true), None);
        table.release(answered);
        assert!(!table.is_cancellable(slot, answered.serial) && table.is_interruptible(slot, answered.serial));
        assert_eq!(table.disconnect(answered, |_| true), None);
        assert!(!table.are_idle());
        table.end(slot);
        assert_eq!(table.disconnect(answered, |_| true), None);
        assert_eq!(table.disconnect(none, |_| true), None);
        assert!(table.are_idle());
    }

    #[test]
    fn the_scoreboard_shows_what_runs() {
        let board = Scoreboard::new(1, 2).unwrap();
        let table = RunnerTable::new(2, Some(board.worker_slot(0).unwrap()));
        let slot = table.take(1).unwrap();
        let runner = table.begin(slot, &Request::default(), 5);
        assert_eq!(table.in_flight(runner).unwrap().serial, runner.serial);
        assert!(table.in_flight(RunnerId { serial: runner.serial + 1, ..runner }).is_none());
        table.give_back(slot);
        assert!(table.in_flight(runner).is_none());
    }

    #[test]
    fn a_request_past_its_deadline_is_reported_once() {
        let (table, runner) = running();
        table.identify(runner.slot, 77);
        assert!(table.arm(runner, 100, task).is_some());
        assert_eq!(expire(&table, 99).1, Some(100));
        assert_eq!(table.interruption(runner.slot), None);
        let (late, next) = expire(&table, 100);
        assert_eq!((late.len(), next), (1, None));
        assert_eq!((late[0].slot, late[0].serial, late[0].thread), (runner.slot, runner.serial, 77));
        // Whose connection is not there any more.
        assert_eq!((late[0].time_out, late[0].request.as_str()), (TimeOut::Over, "GET / (id abc)"));
        assert_eq!(table.interruption(runner.slot), Some(Interruption::Overdue));
        assert_eq!(table.leave(runner.slot), Some(Interruption::Overdue));
        assert_eq!((table.stuck(), table.timed_out(), table.stuck_since()), (1, 1, Some(100_000_000)));
        assert!(expire(&table, 200).0.is_empty());
        table.end(runner.slot);
        table.end(runner.slot);
        assert_eq!((table.stuck(), table.timed_out()), (0, 1));
        assert_eq!(table.interruption(runner.slot), None);
    }

    #[test]
    fn a_deadline_may_be_moved_and_is_the_request_s_alone() {
        let (table, runner) = running();
        assert!(table.arm(runner, 100, task).is_some());
        // Later: the look at 100 finds the next one.
        assert!(table.arm(runner, 300, || unreachable!()).is_none());
        let (late, next) = expire(&table, 100);
        assert_eq!((late.len(), next), (0, Some(300)));
        // Sooner.
        assert!(table.arm(runner, 200, || unreachable!()).is_some());
        table.release(runner);
        table.release(RunnerId { serial: 99, ..runner });
        table.end(runner.slot);
        assert!(expire(&table, 1_000).0.is_empty());
        // One that is not timed any more has no deadline.
        assert!(table.arm(runner, 100, || unreachable!()).is_none());
        assert_eq!(expire(&table, NEVER - 1).1, None);
    }

    #[test]
    fn the_earliest_of_many_deadlines_is_the_next_one() {
        let (table, first) = running();
        let second = table.begin(table.take(1).unwrap(), &Request::default(), 5);
        assert!(table.arm(first, 300, task).is_some());
        assert!(table.arm(second, 200, task).is_some());
        let (late, next) = expire(&table, 250);
        assert_eq!((late.len(), late[0].serial, next), (1, second.serial, Some(300)));
    }

    #[test]
    fn the_client_of_a_request_past_its_deadline_is_answered_and_its_application_interrupted_until_it_cleans_up() {
        let served = Served::new(Config::default());
        let mut client = served.ask();
        served.await_request();
        let mut turn = served.greenlets.turn(0).unwrap();
        turn.identify(77);
        let mut exchange = turn.next().unwrap();
        exchange.set_deadline(Some(Duration::from_secs(5)));
        assert_eq!(turn.interruption(), None);
        served.server.advance_clock(Duration::from_secs(6));
        let mut status = [0; 12];
        client.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 504");
        // The response leaves before the report.
        while served.overdue().is_empty() {
            std::thread::yield_now();
        }
        let overdue = served.overdue().remove(0);
        assert_eq!((overdue.thread, overdue.time_out, overdue.request.as_str()), (77, TimeOut::Answered, "GET /"));
        assert_eq!(turn.interruption(), Some(Interruption::Overdue));
        assert!(served.server.is_interruptible(overdue.slot, overdue.serial));
        assert_eq!(turn.leave_application(), Some(Interruption::Overdue));
        assert!(!served.server.is_interruptible(overdue.slot, overdue.serial));
        assert!(served.server.runs(overdue.slot, overdue.serial));
        assert_eq!((served.server.stats()[Metric::Stuck], served.server.stats()[Metric::TimedOut]), (1, 1));
        drop(exchange);
        assert!(turn.next().is_none());
        assert!(!served.server.runs(overdue.slot, overdue.serial));
        assert_eq!((served.server.stats()[Metric::Stuck], served.server.stats()[Metric::TimedOut]), (0, 1));
        drop(turn);
        served.end();
    }

    #[test]
    fn a_request_that_runs_for_long_is_reported_once_with_what_it_does() {
        let board = Scoreboard::new(1, 2).unwrap();
        let table = RunnerTable::new(2, board.worker_slot(0));
        let [first, second] = [7, 8].map(|thread| table.take(thread).unwrap());
        let look = |now, iterates: bool| {
            let mut found = Vec::new();
            let report = |slow: super::Slow| found.push((slow.slot, slow.native, slow.phase, slow.time.as_nanos()));
            let next = table.find_slow(100, now, QueryMasking::Secrets, |_| iterates, report);
            (found, next)
        };
        assert_eq!(look(0, false), (vec![], 100));
        table.begin(first, &super::Request::default(), 1_000);
        assert_eq!(look(1_060, false), (vec![], 40));
        assert_eq!(look(1_100, true), (vec![(first, 7, "iterating its response", 100)], 100));
        table.begin(second, &super::Request::default(), 1_150);
        table.leave(second);
        assert_eq!(look(1_200, true), (vec![], 50));
        assert_eq!(look(1_260, true), (vec![(second, 8, "in close()", 110)], 100));
        table.end(first);
        assert_eq!(look(1_270, false), (vec![], 100));
        // The next request of the runner.
        table.begin(first, &super::Request::default(), 1_280);
        assert_eq!(look(9_000, false).0, vec![(first, 7, "in the application", 7_720)]);
        table.end(first);
        let runner = table.begin(first, &super::Request::default(), 9_100);
        let sending = table.show_sending(runner);
        assert_eq!(look(9_300, true).0, vec![(first, 7, "waiting for its client", 200)]);
        drop(sending);
    }
}
