//! The threads of a reactor and who does what: one leads, one watches, the others are parked or run the application.
//!
//! The **leader** polls, reads, parses, and runs the application itself. While it does, the helm is *lent*: the
//! **watcher** looks every [`NAP`]. If the leader has not come back and the process has been idle meanwhile, the
//! application waits for something: the watcher takes the helm. If the process is busy, a second runner would only fight
//! for the interpreter: the watcher *relieves* the leader, that is, it polls and serves I/O once every
//! [`RELIEF`], and goes on watching. So a request costs no hand-off while the application is quick, and I/O never waits
//! for an application that is not. Parked threads are not woken by traffic at all; the most recently parked one is
//! promoted first.
//!
//! The helm is one atomic word. Roles change under the crew's lock, which no request takes on its way.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::load::Load;
use crate::{lock, wait_for};

/// How long the watcher sleeps before it looks whether a lent helm has come back.
pub(crate) const NAP: Duration = Duration::from_micros(200);
/// The same while the leader comes and goes, and how long I/O waits at most for a leader that computes.
pub(crate) const RELIEF: Duration = Duration::from_millis(1);
/// How seldom the watcher looks after a leader that comes and goes.
const CALM: Duration = Duration::from_millis(4);
/// So many long naps without any traffic, and the watcher sleeps until it is called.
const IDLE_NAPS: u32 = 20;
/// A parked thread beyond the spare ones ends after this time.
const RETIRE_AFTER: Duration = Duration::from_secs(20);
/// Parked threads that stay for ever.
const SPARE: usize = 2;

/// What a thread is to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Lead the loop, under this helm.
    Lead(Helm),
    /// Watch the leader.
    Watch,
    /// End.
    Retire,
}

/// A term of leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Helm(u64);

// The word: term << 32 | lends << 1 | lent. `lends` makes two lends of one term differ.
const LENT: u64 = 1;
const LEND: u64 = 2;
const TERM: u64 = 1 << 32;

/// What the watcher sees and does of the server it belongs to.
pub(crate) trait Scene {
    /// Requests wait that only this thread may run.
    fn wants_me(&self) -> bool;
    /// Polls and serves I/O once, for a leader that is busy in the application.
    fn relieve(&mut self);
}

/// What the watcher is called for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    /// Nothing.
    #[default]
    None,
    /// To look soon.
    Look,
    /// To take the helm if it is lent, without looking twice.
    Take,
}

struct Parked {
    role: Mutex<Option<Role>>,
    called: Condvar,
}

#[derive(Default)]
struct Roster {
    leading: bool,
    watching: bool,
    parked: Vec<Arc<Parked>>,
    ended: bool,
}

/// The threads of one reactor.
pub(crate) struct Crew {
    helm: AtomicU64,
    roster: Mutex<Roster>,
    /// Threads that joined and have not retired.
    total: AtomicUsize,
    /// Threads ever joined, for their numbers.
    joined: AtomicUsize,
    /// Threads that neither run the application nor wait for it.
    free: AtomicUsize,
    /// A new thread is on its way.
    hiring: AtomicBool,
    /// The watcher is in its deep sleep.
    asleep: AtomicBool,
    /// What the watcher is called for.
    bell: Mutex<Call>,
    rung: Condvar,
}

impl Crew {
    /// A crew of nobody.
    pub(crate) fn new() -> Self {
        Self {
            helm: AtomicU64::new(0),
            roster: Mutex::new(Roster::default()),
            total: AtomicUsize::new(0),
            joined: AtomicUsize::new(0),
            free: AtomicUsize::new(0),
            hiring: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            bell: Mutex::new(Call::None),
            rung: Condvar::new(),
        }
    }

    /// A thread joins. Returns its number: 0 for the first.
    pub(crate) fn join(&self) -> usize {
        self.total.fetch_add(1, Ordering::AcqRel);
        self.free.fetch_add(1, Ordering::AcqRel);
        self.hiring.store(false, Ordering::Release);
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

    /// True once, when a new thread should be started: fewer than two are free and `most` are not reached.
    pub(crate) fn should_hire(&self, most: usize) -> bool {
        if self.free() >= 2 || self.total() >= most || self.hiring.swap(true, Ordering::AcqRel) {
            return false;
        }
        // One that was on its way may have joined since the look at the total; it does so before it lets go of `hiring`.
        let is_wanted = self.total() < most;
        if !is_wanted {
            self.hiring_failed();
        }
        is_wanted
    }

    /// The thread that [`Crew::should_hire`] asked for could not be started, or is not needed.
    pub(crate) fn hiring_failed(&self) {
        self.hiring.store(false, Ordering::Release);
    }

    /// Gives a thread without a role its next one; parks it while there is none.
    pub(crate) fn next_role(&self) -> Role {
        let parked = {
            let mut roster = lock(&self.roster);
            if roster.ended {
                return Role::Retire;
            }
            if !roster.leading {
                roster.leading = true;
                return Role::Lead(Helm(self.helm.load(Ordering::Acquire)));
            }
            if !roster.watching {
                roster.watching = true;
                return Role::Watch;
            }
            let parked = Arc::new(Parked { role: Mutex::new(None), called: Condvar::new() });
            roster.parked.push(parked.clone());
            parked
        };
        self.wait_parked(&parked)
    }

    fn wait_parked(&self, parked: &Arc<Parked>) -> Role {
        let mut role = lock(&parked.role);
        loop {
            if let Some(role) = *role {
                return role;
            }
            let (guard, timed_out) = wait_for(&parked.called, role, RETIRE_AFTER);
            role = guard;
            if timed_out && role.is_none() {
                drop(role);
                let mut roster = lock(&self.roster);
                let place = roster.parked.iter().position(|other| Arc::ptr_eq(other, parked));
                if let (Some(place), true) = (place, roster.parked.len() > SPARE) {
                    roster.parked.remove(place);
                    return Role::Retire;
                }
                drop(roster);
                role = lock(&parked.role);
            }
        }
    }

    /// Leader: about to run the application. False: there is nobody to take over, so it must not. `at_once`: the
    /// application is expected to wait, so the watcher takes the helm now.
    pub(crate) fn lend(&self, helm: &mut Helm, at_once: bool) -> bool {
        if self.free() < 2 {
            return false;
        }
        self.free.fetch_sub(1, Ordering::AcqRel);
        helm.0 = (helm.0 & !(TERM - 1)) | ((helm.0 + LEND) & (TERM - 1)) | LENT;
        self.helm.store(helm.0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if at_once || self.asleep.load(Ordering::SeqCst) {
            self.call_watcher(if at_once { Call::Take } else { Call::Look });
        }
        true
    }

    /// Former leader: back from the application. False: somebody else leads now.
    pub(crate) fn resume(&self, helm: &mut Helm) -> bool {
        self.free.fetch_add(1, Ordering::AcqRel);
        let back = helm.0 & !LENT;
        let kept = self.helm.compare_exchange(helm.0, back, Ordering::AcqRel, Ordering::Acquire).is_ok();
        helm.0 = back;
        kept
    }

    /// Leader: gives the helm up for another thread to take, without running anything.
    pub(crate) fn offer(&self, helm: &mut Helm) {
        helm.0 |= LENT;
        self.helm.store(helm.0, Ordering::SeqCst);
        self.call_watcher(Call::Take);
    }

    /// True when a thread is polling, or about to: nobody who leads is inside the application.
    pub(crate) fn is_led(&self) -> bool {
        self.helm.load(Ordering::SeqCst) & LENT == 0
    }

    /// A response gathers blocks while the leader is away: the watcher looks more often.
    pub(crate) fn alert(&self) {
        self.call_watcher(Call::Look);
    }

    fn call_watcher(&self, call: Call) {
        let mut bell = lock(&self.bell);
        *bell = call.max(*bell);
        self.asleep.store(false, Ordering::SeqCst);
        drop(bell);
        self.rung.notify_all();
    }

    /// Watcher: sleeps for a while, or until it is called.
    fn nap(&self, time: Duration) -> Call {
        let mut bell = lock(&self.bell);
        if *bell == Call::None {
            bell = wait_for(&self.rung, bell, time).0;
        }
        std::mem::take(&mut *bell)
    }

    /// Watcher: watches until the helm must be taken (the new role leads) or the crew ends.
    pub(crate) fn watch(&self, scene: &mut impl Scene) -> Role {
        let mut seen = self.helm.load(Ordering::SeqCst);
        // Only a lent helm is a reason to ask for the load.
        let mut load = is_lent(seen).then(Load::now);
        let mut nap = NAP;
        let mut idle = 0;
        loop {
            let call = self.nap(nap);
            if self.has_ended() {
                return Role::Retire;
            }
            let helm = self.helm.load(Ordering::SeqCst);
            let lent = is_lent(helm);
            let stayed = lent && helm == seen;
            // After a call to look, hardly any time has passed to judge by.
            let stays_away =
                stayed && call == Call::None && (scene.wants_me() || load.is_some_and(|load| load.was_idle()));
            let take = call == Call::Take || stays_away;
            if lent && take {
                if let Some(helm) = self.take_helm(helm) {
                    return Role::Lead(helm);
                }
            } else if stayed && call == Call::None && nap > NAP {
                scene.relieve();
            }
            // The longer the leader is seen to come and go, the less it is disturbed.
            nap = match call {
                Call::Look => NAP,
                _ if stayed || nap == NAP => RELIEF,
                _ => (nap * 2).min(CALM),
            };
            idle = if !lent && helm == seen { idle + 1 } else { 0 };
            if idle >= IDLE_NAPS {
                self.sleep_until_called();
                idle = 0;
                nap = NAP;
            }
            seen = self.helm.load(Ordering::SeqCst);
            load = is_lent(seen).then(Load::now);
        }
    }

    fn take_helm(&self, lent: u64) -> Option<Helm> {
        let mut roster = lock(&self.roster);
        let helm = (lent & !(TERM - 1)).wrapping_add(TERM);
        self.helm.compare_exchange(lent, helm, Ordering::AcqRel, Ordering::Acquire).ok()?;
        roster.watching = false;
        if let Some(next) = roster.parked.pop() {
            roster.watching = true;
            call(&next, Role::Watch);
        }
        Some(Helm(helm))
    }

    fn sleep_until_called(&self) {
        let mut guard = lock(&self.bell);
        self.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        while self.asleep.load(Ordering::SeqCst) && self.helm.load(Ordering::SeqCst) & LENT == 0 && !self.has_ended() {
            guard = wait_for(&self.rung, guard, RETIRE_AFTER).0;
        }
        self.asleep.store(false, Ordering::SeqCst);
        if *guard == Call::Look {
            *guard = Call::None;
        }
    }

    fn has_ended(&self) -> bool {
        lock(&self.roster).ended
    }

    /// Sends everybody home.
    pub(crate) fn end(&self) {
        {
            let mut roster = lock(&self.roster);
            roster.ended = true;
            for parked in roster.parked.drain(..) {
                call(&parked, Role::Retire);
            }
        }
        self.call_watcher(Call::Look);
    }
}

fn is_lent(helm: u64) -> bool {
    helm & LENT == LENT
}

fn call(parked: &Parked, role: Role) {
    *lock(&parked.role) = Some(role);
    parked.called.notify_one();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]
    use super::{Crew, Role, Scene};

    struct Nothing;

    impl Scene for Nothing {
        fn wants_me(&self) -> bool {
            false
        }
        fn relieve(&mut self) {}
    }

    fn led(role: Role) -> super::Helm {
        match role {
            Role::Lead(helm) => helm,
            other => panic!("{other:?} instead of the lead"),
        }
    }

    #[test]
    fn a_leader_without_anybody_to_take_over_does_not_run() {
        let crew = Crew::new();
        crew.join();
        let mut helm = led(crew.next_role());
        assert!(!crew.lend(&mut helm, false));
    }

    #[test]
    fn a_leader_that_comes_back_in_time_keeps_the_helm() {
        let crew = Crew::new();
        crew.join();
        crew.join();
        let mut helm = led(crew.next_role());
        assert_eq!(crew.next_role(), Role::Watch);
        for _ in 0..3 {
            assert!(crew.lend(&mut helm, false));
            assert!(crew.resume(&mut helm));
        }
    }

    #[test]
    fn the_watcher_takes_a_helm_that_does_not_come_back() {
        let crew = Crew::new();
        crew.join();
        crew.join();
        let mut first = led(crew.next_role());
        assert_eq!(crew.next_role(), Role::Watch);
        assert!(crew.lend(&mut first, false));
        let mut second = led(crew.watch(&mut Nothing));
        assert!(!crew.resume(&mut first));
        assert_eq!(crew.next_role(), Role::Watch);
        assert!(crew.lend(&mut second, false));
        assert!(crew.resume(&mut second));
    }

    #[test]
    fn a_sleeping_watcher_is_called_when_the_helm_is_lent() {
        let crew = Crew::new();
        crew.join();
        crew.join();
        let mut first = led(crew.next_role());
        assert_eq!(crew.next_role(), Role::Watch);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| crew.watch(&mut Nothing));
            while !crew.asleep.load(std::sync::atomic::Ordering::SeqCst) {
                std::thread::yield_now();
            }
            assert!(crew.lend(&mut first, false));
            assert!(matches!(watcher.join(), Ok(Role::Lead(_))));
        });
        assert!(!crew.resume(&mut first));
    }

    #[test]
    fn the_end_reaches_parked_threads() {
        let crew = Crew::new();
        for _ in 0..3 {
            crew.join();
        }
        led(crew.next_role());
        assert_eq!(crew.next_role(), Role::Watch);
        std::thread::scope(|scope| {
            let parked = scope.spawn(|| crew.next_role());
            crew.end();
            assert!(matches!(parked.join(), Ok(Role::Retire)));
        });
    }
}
