//! The roles of a server's threads: one leads, one watches, the others are parked or run the application.
//!
//! The **leader** polls, reads, parses, and runs the application itself. While it runs the application, its term is
//! *lent*: the **watcher** checks every 200 µs. If the leader has not come back and the process has been idle
//! meanwhile, the application waits for something: the watcher takes the lead. If the process is busy, a second runner
//! would only compete for the interpreter: the watcher *relieves* the leader, that is, it polls and handles events once
//! every millisecond, or every four while the application takes one request after the other, and continues to watch. So a request costs no hand-off while the application is quick, and I/O
//! never waits for a slow application. Traffic does not wake parked threads; when a thread is needed, the most recently
//! parked one is woken.
//!
//! Roles change under a lock, which no request takes on its way.

use std::sync::Arc;
use std::time::Duration;

use tailrace_observe::stats::ThreadStates;
use tailrace_os::clock::Load;
use tailrace_os::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tailrace_os::sync::{Condvar, Mutex, lock, wait_for};

use crate::executor::threads::leadership::{Leadership, Seen, Term};
use crate::executor::threads::watcher::{Action, Call, Calls, POLL_INTERVAL, WatcherRule};

/// A parked thread beyond the spare ones ends after this time.
const RETIRE_AFTER: Duration = Duration::from_secs(20);
/// Number of parked threads that never end.
const SPARE: usize = 2;

/// The next role of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Lead the loop, for this term.
    Lead(Term),
    /// Watch the leader.
    Watch,
    /// End.
    Retire,
}

/// The server, as its watcher sees it.
pub(crate) trait Watched {
    /// Requests wait that only this thread may run.
    fn wants_this_thread(&self) -> bool;
    /// True when the process was idle since then, so that an application that has not come back waits for something.
    fn was_idle(&self, load: &Load) -> bool {
        load.was_idle()
    }
    /// Maximum poll interval of the watcher; `None`: no limit.
    fn longest_poll_interval(&self) -> Option<Duration> {
        None
    }
    /// Sends the blocks that have been coalesced for the maximum time.
    fn send_coalesced(&self) {}
    /// Counts up whenever the application takes a request.
    fn moved(&self) -> u64 {
        0
    }
    /// The watcher leads from now on, or sleeps until it is called.
    fn leave_watch(&self) {}
    /// Polls and handles events once, for a leader that is busy in the application.
    fn relieve(&mut self);
}

struct Parked {
    role: Mutex<Option<Role>>,
    called: Condvar,
}

#[derive(Default)]
struct Assigned {
    leading: bool,
    watching: bool,
    parked: Vec<Arc<Parked>>,
    ended: bool,
}

/// The threads of one server.
#[derive(Default)]
pub(crate) struct Roles {
    leadership: Leadership,
    assigned: Mutex<Assigned>,
    /// Threads that joined and have not retired.
    total: AtomicUsize,
    /// Threads ever joined, for their numbers.
    joined: AtomicUsize,
    /// Threads that neither run the application nor wait for it.
    free: AtomicUsize,
    /// A new thread was asked for and has not joined yet.
    starting: AtomicBool,
    watcher: Calls,
}

impl Roles {
    /// A thread joins. Returns its number: 0 for the first.
    pub(crate) fn join(&self) -> usize {
        self.total.fetch_add(1, Ordering::AcqRel);
        self.free.fetch_add(1, Ordering::AcqRel);
        self.starting.store(false, Ordering::Release);
        self.joined.fetch_add(1, Ordering::AcqRel)
    }

    /// A thread leaves for good.
    pub(crate) fn leave(&self) {
        self.total.fetch_sub(1, Ordering::AcqRel);
        self.free.fetch_sub(1, Ordering::AcqRel);
    }

    /// Threads that are there.
    pub(crate) fn total(&self) -> usize {
        self.total.load(Ordering::Acquire)
    }

    /// Threads that neither run nor wait to run.
    pub(crate) fn free(&self) -> usize {
        self.free.load(Ordering::Acquire)
    }

    /// Those that neither run the application nor wait for the interpreter.
    pub(crate) fn free_threads(&self) -> ThreadStates {
        let assigned = lock(&self.assigned);
        ThreadStates {
            leading: u64::from(self.is_led()),
            watching: u64::from(assigned.watching),
            parked: assigned.parked.len() as u64,
            ..ThreadStates::default()
        }
    }

    /// True when a new thread is to be started: fewer than two are free, there are fewer than `most`, and none is being
    /// started.
    pub(crate) fn should_start_thread(&self, most: usize) -> bool {
        if self.free() >= 2 || self.total() >= most || self.starting.swap(true, Ordering::AcqRel) {
            return false;
        }
        // A thread may have joined since the total was read; it is counted before it clears `starting`.
        let is_wanted = self.total() < most;
        if !is_wanted {
            self.start_failed();
        }
        is_wanted
    }

    /// The thread that [`Roles::should_start_thread`] asked for could not be started, or is not needed.
    pub(crate) fn start_failed(&self) {
        self.starting.store(false, Ordering::Release);
    }

    /// Assigns a thread without a role its next one; parks it while there is none.
    pub(crate) fn next_role(&self) -> Role {
        let parked = {
            let mut assigned = lock(&self.assigned);
            if assigned.ended {
                return Role::Retire;
            }
            if !assigned.leading {
                assigned.leading = true;
                return Role::Lead(self.leadership.begin());
            }
            if !assigned.watching {
                assigned.watching = true;
                return Role::Watch;
            }
            let parked = Arc::new(Parked { role: Mutex::new(None), called: Condvar::new() });
            assigned.parked.push(parked.clone());
            parked
        };
        self.wait_parked(&parked, RETIRE_AFTER)
    }

    fn wait_parked(&self, parked: &Arc<Parked>, retire_after: Duration) -> Role {
        let mut role = lock(&parked.role);
        loop {
            if let Some(role) = *role {
                return role;
            }
            let (guard, timed_out) = wait_for(&parked.called, role, retire_after);
            role = guard;
            if timed_out && role.is_none() {
                drop(role);
                let mut assigned = lock(&self.assigned);
                let place = assigned.parked.iter().position(|other| Arc::ptr_eq(other, parked));
                if let (Some(place), true) = (place, assigned.parked.len() > SPARE) {
                    assigned.parked.remove(place);
                    return Role::Retire;
                }
                drop(assigned);
                role = lock(&parked.role);
            }
        }
    }

    /// Leader: about to run the application. False: no other thread could take the lead, so it must not. `at_once`: the
    /// application is expected to wait, so the watcher takes the lead now.
    pub(crate) fn try_lend(&self, term: &mut Term, at_once: bool) -> bool {
        if self.free() < 2 {
            return false;
        }
        self.free.fetch_sub(1, Ordering::AcqRel);
        self.leadership.lend(term);
        if at_once || self.watcher.is_asleep() {
            self.watcher.call(if at_once { Call::Take } else { Call::Look });
        }
        true
    }

    /// The thread that has lent the lead is back from the application. False: another thread leads now.
    pub(crate) fn try_resume(&self, term: &mut Term) -> bool {
        self.free.fetch_add(1, Ordering::AcqRel);
        self.leadership.try_resume(term)
    }

    /// Leader: leaves the lead to another thread, without running anything.
    pub(crate) fn offer(&self, term: Term) {
        self.leadership.offer(term);
        self.watcher.call(Call::Take);
    }

    /// True when the leader polls or is about to; false while it is inside of the application.
    pub(crate) fn is_led(&self) -> bool {
        self.leadership.is_led()
    }

    /// There is I/O to do while the leader is away: the watcher checks soon.
    pub(crate) fn alert(&self) {
        self.watcher.call(Call::Look);
    }

    /// Watcher: watches until the lead must be taken (the new role leads) or the server ends.
    pub(crate) fn watch(&self, watched: &mut impl Watched) -> Role {
        let mut watch = WatcherRule::new(self.leadership.look());
        // The load is read only while the leader is away: nothing else depends on it.
        let mut load = (!self.is_led()).then(Load::now);
        loop {
            let interval =
                watched.longest_poll_interval().map_or(watch.poll_interval(), |most| most.min(watch.poll_interval()));
            let call = self.watcher.wait(interval);
            if self.has_ended() {
                return Role::Retire;
            }
            watched.send_coalesced();
            if call == Call::None && interval < POLL_INTERVAL {
                // The time was too short to judge a leader.
                continue;
            }
            let seen = self.leadership.look();
            match watch.look(call, seen, watched.moved(), || {
                watched.wants_this_thread() || load.as_ref().is_some_and(|load| watched.was_idle(load))
            }) {
                Action::Take => {
                    if let Some(term) = self.take_over(seen) {
                        watched.leave_watch();
                        return Role::Lead(term);
                    }
                }
                Action::Relieve => watched.relieve(),
                Action::Nothing => {}
            }
            if watch.may_sleep() {
                watched.leave_watch();
                self.watcher.sleep(|| !self.is_led() || self.has_ended());
            }
            let seen = self.leadership.look();
            watch.note(seen, watched.moved());
            load = seen.is_lent().then(Load::now);
        }
    }

    /// Watcher: takes the lead, and a parked thread watches in its place.
    fn take_over(&self, lent: Seen) -> Option<Term> {
        let mut assigned = lock(&self.assigned);
        let term = self.leadership.take(lent)?;
        assigned.watching = false;
        if let Some(next) = assigned.parked.pop() {
            assigned.watching = true;
            promote(&next, Role::Watch);
        }
        Some(term)
    }

    fn has_ended(&self) -> bool {
        lock(&self.assigned).ended
    }

    /// All threads are to end.
    pub(crate) fn end(&self) {
        {
            let mut assigned = lock(&self.assigned);
            assigned.ended = true;
            for parked in assigned.parked.drain(..) {
                promote(&parked, Role::Retire);
            }
        }
        self.watcher.call(Call::Look);
    }
}

fn promote(parked: &Parked, role: Role) {
    *lock(&parked.role) = Some(role);
    parked.called.notify_one();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]
    use std::sync::Arc;
    use std::sync::mpsc::{Sender, channel};
    use std::thread;
    use std::time::Duration;

    use super::{Condvar, Load, Mutex, Parked, Role, Roles, SPARE, Term, Watched};

    struct Nothing;

    impl Watched for Nothing {
        fn wants_this_thread(&self) -> bool {
            false
        }
        fn relieve(&mut self) {}
    }

    /// So many threads, the first leads for this term, the second watches.
    fn roles(threads: usize) -> (Roles, Term) {
        let roles = Roles::default();
        for number in 0..threads {
            assert_eq!(roles.join(), number);
        }
        let Role::Lead(term) = roles.next_role() else { panic!("nobody leads") };
        if threads > 1 {
            assert_eq!(roles.next_role(), Role::Watch);
        }
        (roles, term)
    }

    fn led(role: Role) -> Term {
        match role {
            Role::Lead(term) => term,
            other => panic!("{other:?} instead of the lead"),
        }
    }

    #[test]
    fn a_leader_without_anybody_to_take_over_does_not_run() {
        let (roles, mut term) = roles(1);
        assert!(!roles.try_lend(&mut term, false));
        assert!(roles.is_led());
    }

    #[test]
    fn a_leader_that_comes_back_in_time_keeps_the_lead() {
        let (roles, mut term) = roles(2);
        for _ in 0..3 {
            assert!(roles.try_lend(&mut term, false));
            assert!(!roles.is_led());
            assert!(roles.try_resume(&mut term));
        }
        assert_eq!((roles.total(), roles.free()), (2, 2));
    }

    #[test]
    fn the_watcher_takes_the_lead_from_a_leader_that_does_not_come_back() {
        let (roles, mut first) = roles(2);
        assert!(roles.try_lend(&mut first, false));
        let mut second = led(roles.watch(&mut Nothing));
        assert!(!roles.try_resume(&mut first));
        assert_eq!(roles.next_role(), Role::Watch);
        assert!(roles.try_lend(&mut second, false));
        assert!(roles.try_resume(&mut second));
    }

    #[test]
    fn the_watcher_takes_the_lead_that_is_offered_or_lent_for_long() {
        let (roles, first) = roles(2);
        roles.offer(first);
        let mut second = led(roles.watch(&mut Nothing));
        assert_eq!(roles.next_role(), Role::Watch);
        assert!(roles.try_lend(&mut second, true));
        led(roles.watch(&mut Nothing));
        assert!(!roles.try_resume(&mut second));
    }

    #[test]
    fn a_sleeping_watcher_is_called_when_the_leader_goes_away() {
        let (roles, mut first) = roles(2);
        thread::scope(|scope| {
            let watcher = scope.spawn(|| roles.watch(&mut Nothing));
            while !roles.watcher.is_asleep() {
                thread::yield_now();
            }
            assert!(roles.try_lend(&mut first, false));
            assert!(matches!(watcher.join(), Ok(Role::Lead(_))));
        });
        assert!(!roles.try_resume(&mut first));
    }

    /// The watcher is not wanted, and the process computes.
    struct Busy(Sender<()>);

    impl Watched for Busy {
        fn wants_this_thread(&self) -> bool {
            false
        }
        fn was_idle(&self, _: &Load) -> bool {
            false
        }
        fn relieve(&mut self) {
            let _ = self.0.send(());
        }
    }

    #[test]
    fn a_leader_that_computes_is_relieved_and_the_end_reaches_the_watcher() {
        let (roles, mut term) = roles(2);
        let (sender, relieved) = channel();
        thread::scope(|scope| {
            let watcher = scope.spawn(|| roles.watch(&mut Busy(sender)));
            assert!(roles.try_lend(&mut term, false));
            roles.alert();
            assert!(relieved.recv().is_ok() && relieved.recv().is_ok());
            roles.end();
            assert!(matches!(watcher.join(), Ok(Role::Retire)));
        });
        assert!(roles.try_resume(&mut term));
    }

    #[test]
    fn the_thread_that_was_parked_last_watches_in_place_of_the_watcher_that_leads() {
        let (roles, mut term) = roles(3);
        thread::scope(|scope| {
            let parked = scope.spawn(|| roles.next_role());
            while super::lock(&roles.assigned).parked.is_empty() {
                thread::yield_now();
            }
            assert!(roles.try_lend(&mut term, true));
            let states = |leading, watching, parked| super::ThreadStates {
                leading,
                watching,
                parked,
                ..super::ThreadStates::default()
            };
            assert_eq!(roles.free_threads(), states(0, 1, 1));
            led(roles.watch(&mut Nothing));
            assert!(matches!(parked.join(), Ok(Role::Watch)));
            assert_eq!(roles.free_threads(), states(1, 1, 0));
        });
    }

    #[test]
    fn the_end_reaches_parked_threads() {
        let (roles, _) = roles(3);
        thread::scope(|scope| {
            let parked = scope.spawn(|| roles.next_role());
            roles.end();
            assert!(matches!(parked.join(), Ok(Role::Retire)));
        });
        assert_eq!(roles.next_role(), Role::Retire);
    }

    #[test]
    fn threads_beyond_the_spare_ones_retire() {
        let (roles, _) = roles(2);
        let park = || {
            let parked = Arc::new(Parked { role: Mutex::new(None), called: Condvar::new() });
            super::lock(&roles.assigned).parked.push(parked.clone());
            parked
        };
        let parked: Vec<_> = (0..=SPARE).map(|_| park()).collect();
        let soon = Duration::from_millis(1);
        assert_eq!(roles.wait_parked(&parked[0], soon), Role::Retire);
        assert_eq!(super::lock(&roles.assigned).parked.len(), SPARE);
        // The others stay until they are called.
        thread::scope(|scope| {
            let stays = scope.spawn(|| roles.wait_parked(&parked[1], soon));
            roles.end();
            assert!(matches!(stays.join(), Ok(Role::Retire)));
        });
        roles.leave();
        assert_eq!((roles.total(), roles.free()), (1, 1));
    }

    #[test]
    fn a_thread_is_started_when_fewer_than_two_are_free_and_one_at_a_time() {
        let (roles, mut term) = roles(2);
        assert!(!roles.should_start_thread(9), "two are free");
        assert!(roles.try_lend(&mut term, false));
        assert!(!roles.should_start_thread(2), "there are as many as there may be");
        assert!(roles.should_start_thread(3));
        assert!(!roles.should_start_thread(3), "one is being started");
        roles.start_failed();
        assert!(roles.should_start_thread(3));
        roles.join();
        assert!(!roles.should_start_thread(9));
    }
}
