//! The watcher: how often it checks whether the leader polls, and what it does if not.
//!
//! [`WatcherRule`] is the rule, without lock, clock or thread; [`Calls`] is how the watcher sleeps and is woken. One
//! thread watches at a time; any thread calls it.

use std::time::Duration;

use tailrace_os::sync::atomic::{AtomicBool, Ordering, fence};
use tailrace_os::sync::{Condvar, Mutex, lock, wait_for};

use crate::executor::threads::leadership::Seen;

/// How long the watcher sleeps before it checks whether the leader has come back. With 1 ms, requests that sleep for 1
/// ms each lose 3.5 % of their rate (16 connections).
pub(crate) const POLL_INTERVAL: Duration = Duration::from_micros(200);
/// The poll interval while the leader comes and goes, and how long I/O waits at most for a leader that computes.
const RELIEF: Duration = Duration::from_millis(1);
/// The longest poll interval while the leader comes and goes. With 1 ms throughout, an empty application loses 4.6 % of
/// its rate (64 connections).
const CALM: Duration = Duration::from_millis(4);
/// After this many sleeps without traffic, the watcher sleeps until it is called. loom cannot explore many.
const IDLE_SLEEPS: u32 = if cfg!(loom) { 1 } else { 20 };
/// A sleeping watcher checks this often without being called.
const LONG_SLEEP: Duration = Duration::from_secs(20);

/// What the watcher is called for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Call {
    /// Nothing.
    #[default]
    None,
    /// To check soon.
    Look,
    /// To take the lead if the leader is away, without a second check.
    Take,
}

/// What the watcher does after a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing.
    Nothing,
    /// It takes the lead.
    Take,
    /// It polls and handles events once, for a leader that computes.
    Relieve,
}

/// The watcher's rule, and what it has seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatcherRule {
    seen: Seen,
    moved: u64,
    poll_interval: Duration,
    idle: u32,
}

impl WatcherRule {
    /// Watches from now on; `seen` is the leadership as it is now.
    pub(crate) fn new(seen: Seen) -> Self {
        Self { seen, moved: 0, poll_interval: POLL_INTERVAL, idle: 0 }
    }

    /// How long to sleep before the next check.
    pub(crate) fn poll_interval(&self) -> Duration {
        self.poll_interval
    }

    /// A look after a sleep that ended with `call`. `moved`: counts the requests that the application has taken.
    /// `is_needed`: requests wait that only the watcher may run, or the process was idle during the sleep, so that the
    /// application waits for something; asked only of a leader that has stayed away.
    pub(crate) fn look(&mut self, call: Call, now: Seen, moved: u64, is_needed: impl FnOnce() -> bool) -> Action {
        let is_lent = now.is_lent();
        let has_stayed = is_lent && now == self.seen;
        // A leader that runs one request after the other is soon back: it has read all of them before.
        let is_in_one_call = has_stayed && moved == self.moved;
        // After a call to check, too little time has passed to judge.
        let stays_away = has_stayed && call == Call::None && is_needed();
        let action = if is_lent && (call == Call::Take || stays_away) {
            Action::Take
        } else if has_stayed
            && call == Call::None
            && self.poll_interval > POLL_INTERVAL
            && (is_in_one_call || self.poll_interval == CALM)
        {
            Action::Relieve
        } else {
            Action::Nothing
        };
        // The longer the leader keeps coming and going, or taking requests, the longer the poll interval.
        self.poll_interval = match call {
            Call::Look => POLL_INTERVAL,
            _ if is_in_one_call || self.poll_interval == POLL_INTERVAL => RELIEF,
            _ => (self.poll_interval * 2).min(CALM),
        };
        self.idle = if !is_lent && now == self.seen { self.idle + 1 } else { 0 };
        action
    }

    /// True when there has been no traffic for a while: the watcher sleeps until it is called, and begins anew.
    pub(crate) fn may_sleep(&mut self) -> bool {
        let may_sleep = self.idle >= IDLE_SLEEPS;
        if may_sleep {
            self.idle = 0;
            self.poll_interval = POLL_INTERVAL;
        }
        may_sleep
    }

    /// The leadership, and the requests taken, as they are before the next sleep.
    pub(crate) fn note(&mut self, seen: Seen, moved: u64) {
        (self.seen, self.moved) = (seen, moved);
    }
}

/// How the watcher sleeps and is called.
#[derive(Default)]
pub(crate) struct Calls {
    call: Mutex<Call>,
    called: Condvar,
    /// The watcher sleeps until it is called.
    is_asleep: AtomicBool,
}

impl Calls {
    /// True if the watcher does not check without being called.
    pub(crate) fn is_asleep(&self) -> bool {
        self.is_asleep.load(Ordering::SeqCst)
    }

    /// Calls the watcher.
    pub(crate) fn call(&self, call: Call) {
        let mut pending = lock(&self.call);
        *pending = call.max(*pending);
        self.is_asleep.store(false, Ordering::SeqCst);
        drop(pending);
        self.called.notify_all();
    }

    /// Watcher: sleeps for a while, or until it is called.
    pub(crate) fn wait(&self, time: Duration) -> Call {
        let mut call = lock(&self.call);
        if *call == Call::None {
            call = wait_for(&self.called, call, time).0;
        }
        std::mem::take(&mut *call)
    }

    /// Watcher: sleeps until it is called, or does not sleep when `is_up` says that there is something to do. Who makes
    /// `is_up` true then looks whether the watcher [is asleep](Calls::is_asleep), and calls it if so.
    pub(crate) fn sleep(&self, is_up: impl Fn() -> bool) {
        let mut call = lock(&self.call);
        self.is_asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        while self.is_asleep.load(Ordering::SeqCst) && !is_up() {
            call = wait_for(&self.called, call, LONG_SLEEP).0;
        }
        self.is_asleep.store(false, Ordering::SeqCst);
        if *call == Call::Look {
            *call = Call::None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::{Action, CALM, Call, Calls, IDLE_SLEEPS, POLL_INTERVAL, RELIEF, WatcherRule};
    use crate::executor::threads::leadership::{Leadership, Term};

    const LONG: Duration = Duration::from_secs(1 << 20);

    /// A leader that is away, and a watcher that has seen it go.
    fn away() -> (Leadership, Term, WatcherRule) {
        let leadership = Leadership::default();
        let mut term = leadership.begin();
        leadership.lend(&mut term);
        let watch = WatcherRule::new(leadership.look());
        (leadership, term, watch)
    }

    #[test]
    fn the_lead_is_taken_from_a_leader_that_stays_away_while_the_process_is_idle() {
        let (leadership, ..) = away();
        let lent = leadership.look();
        let cases = [
            (Call::None, true, Action::Take, "it waits for something"),
            (Call::None, false, Action::Nothing, "it computes"),
            (Call::Look, true, Action::Nothing, "that was no time to judge by"),
            (Call::Take, false, Action::Take, "it is known to wait"),
        ];
        for (call, is_needed, action, why) in cases {
            assert_eq!(WatcherRule::new(lent).look(call, lent, 0, || is_needed), action, "{why}");
        }
    }

    #[test]
    fn a_leader_that_is_there_or_was_there_is_left_alone() {
        let (leadership, mut term, mut watch) = away();
        assert!(leadership.try_resume(&mut term));
        assert_eq!(watch.look(Call::Take, leadership.look(), 0, || unreachable!()), Action::Nothing);
        leadership.lend(&mut term);
        assert_eq!(watch.look(Call::None, leadership.look(), 0, || unreachable!()), Action::Nothing, "another time");
        assert_eq!(
            watch.look(Call::Take, leadership.look(), 0, || unreachable!()),
            Action::Take,
            "whatever time it is"
        );
    }

    #[test]
    fn a_leader_that_computes_is_relieved_after_a_longer_nap() {
        let (leadership, _, mut watch) = away();
        let lent = leadership.look();
        assert_eq!((watch.look(Call::None, lent, 0, || false), watch.poll_interval()), (Action::Nothing, RELIEF));
        assert_eq!((watch.look(Call::None, lent, 0, || false), watch.poll_interval()), (Action::Relieve, RELIEF));
        assert_eq!(
            (watch.look(Call::Look, lent, 0, || false), watch.poll_interval()),
            (Action::Nothing, POLL_INTERVAL)
        );
        assert_eq!(watch.look(Call::None, lent, 0, || false), Action::Nothing);
        assert_eq!(watch.look(Call::None, lent, 0, || true), Action::Take);
    }

    #[test]
    fn poll_intervals_grow_while_the_leader_comes_and_goes() {
        let (leadership, mut term, mut watch) = away();
        let mut intervals = Vec::new();
        for _ in 0..5 {
            leadership.try_resume(&mut term);
            leadership.lend(&mut term);
            watch.look(Call::None, leadership.look(), 0, || unreachable!());
            watch.note(leadership.look(), 0);
            intervals.push(watch.poll_interval());
        }
        assert_eq!(intervals, [RELIEF, 2 * RELIEF, CALM, CALM, CALM]);
        assert!(!watch.may_sleep());
    }

    #[test]
    fn a_leader_that_takes_one_request_after_the_other_is_relieved_as_rarely_as_may_be() {
        let (leadership, _, mut watch) = away();
        let lent = leadership.look();
        let mut looks = Vec::new();
        for moved in 1..7 {
            looks.push((watch.look(Call::None, lent, moved, || false), watch.poll_interval()));
            watch.note(lent, moved);
        }
        let relieved = (Action::Relieve, CALM);
        let first = [RELIEF, 2 * RELIEF, CALM].map(|interval| (Action::Nothing, interval));
        assert_eq!(looks, [first.as_slice(), &[relieved; 3]].concat());
        assert_eq!(watch.look(Call::None, lent, 6, || false), Action::Relieve, "the last one has stayed");
        assert_eq!(watch.poll_interval(), RELIEF);
    }

    #[test]
    fn without_traffic_the_watcher_may_sleep() {
        let leadership = Leadership::default();
        let mut watch = WatcherRule::new(leadership.look());
        for _ in 0..IDLE_SLEEPS {
            assert!(!watch.may_sleep());
            assert_eq!(watch.look(Call::None, leadership.look(), 0, || unreachable!()), Action::Nothing);
        }
        assert!(watch.may_sleep());
        assert_eq!(watch.poll_interval(), POLL_INTERVAL);
        assert!(!watch.may_sleep());
    }

    #[test]
    fn a_call_ends_a_nap_and_the_most_urgent_one_counts() {
        let calls = Calls::default();
        calls.call(Call::Take);
        calls.call(Call::Look);
        assert_eq!(calls.wait(LONG), Call::Take);
        assert_eq!(calls.wait(Duration::ZERO), Call::None);
        thread::scope(|scope| {
            let watcher = scope.spawn(|| calls.wait(LONG));
            calls.call(Call::Look);
            assert!(matches!(watcher.join(), Ok(Call::Look)));
        });
    }

    #[test]
    fn a_sleeping_watcher_wakes_when_it_is_called() {
        let calls = Calls::default();
        calls.sleep(|| true);
        assert!(!calls.is_asleep());
        for (call, left) in [(Call::Look, Call::None), (Call::Take, Call::Take)] {
            thread::scope(|scope| {
                let watcher = scope.spawn(|| calls.sleep(|| false));
                while !calls.is_asleep() {
                    thread::yield_now();
                }
                calls.call(call);
                assert!(watcher.join().is_ok());
            });
            assert_eq!(calls.wait(Duration::ZERO), left, "a call to look has been followed, one to take has not");
        }
    }
}
