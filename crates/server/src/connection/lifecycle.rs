//! Whether a server runs, drains or has ended.
//!
//! Any thread reads the state and may begin a stop; the leader drains and ends the server. Code of the application that
//! has something to finish follows the server by a pair of sockets: one end is shut down when the server drains, and the
//! server then waits until the other end is closed, or the time for draining has passed.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use tailrace_os::clock;
use tailrace_os::clock::{Millis, NEVER};
use tailrace_os::process::Unshared;
use tailrace_os::socket::{self, Io};
use tailrace_os::sync::{lock, wait_for};

const RUNNING: u8 = 0;
const DRAINING: u8 = 1;
const ENDED: u8 = 2;

pub(crate) struct Lifecycle {
    state: AtomicU8,
    stop_by: AtomicU64,
    swept: AtomicBool,
    followers: Mutex<Vec<Unshared>>,
    over: Mutex<bool>,
    news: Condvar,
}

impl Lifecycle {
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU8::new(RUNNING),
            stop_by: AtomicU64::new(NEVER),
            swept: AtomicBool::new(false),
            followers: Mutex::default(),
            over: Mutex::new(false),
            news: Condvar::new(),
        }
    }

    /// Begins to drain, until `by` at most. May be called again with an earlier time.
    pub(crate) fn stop(&self, by: Millis) {
        self.stop_by.fetch_min(by, Ordering::AcqRel);
        // A server that has ended does not drain again.
        let _ = self.state.compare_exchange(RUNNING, DRAINING, Ordering::AcqRel, Ordering::Acquire);
        self.announce();
    }

    /// Ends what arrives at the other end of this socket when the server drains, or now if it does already.
    pub(crate) fn add_follower(&self, follower: OwnedFd) {
        let mut followers = lock(&self.followers);
        followers.retain(is_open);
        followers.push(Unshared::new(follower));
        drop(followers);
        self.announce();
    }

    fn announce(&self) {
        if !self.is_running() {
            lock(&self.followers).iter().filter_map(Unshared::here).for_each(socket::end_sending);
        }
    }

    /// True while the other end of such a socket is open.
    pub(crate) fn is_followed(&self) -> bool {
        let mut followers = lock(&self.followers);
        followers.retain(is_open);
        !followers.is_empty()
    }

    /// True until [`Lifecycle::stop`].
    pub(crate) fn is_running(&self) -> bool {
        self.state.load(Ordering::Acquire) == RUNNING
    }

    /// True after [`Lifecycle::end`].
    pub(crate) fn has_ended(&self) -> bool {
        self.state.load(Ordering::Acquire) == ENDED
    }

    /// True when the time for draining has passed.
    pub(crate) fn is_overdue(&self, now: Millis) -> bool {
        now >= self.stop_by.load(Ordering::Acquire)
    }

    /// The time that is left for draining.
    pub(crate) fn left(&self, now: Millis) -> Duration {
        Duration::from_millis(self.stop_by.load(Ordering::Acquire).saturating_sub(now))
    }

    /// True until [`Lifecycle::set_swept`]: idle connections have to be told to close.
    pub(crate) fn is_to_sweep(&self) -> bool {
        !self.swept.load(Ordering::Acquire)
    }

    /// Notes that the idle connections of a draining server have been told to close. Called after that, so that it is
    /// repeated if it panics.
    pub(crate) fn set_swept(&self) {
        self.swept.store(true, Ordering::Release);
    }

    /// Ends the server. True for the first caller only, which cleans up and then calls [`Lifecycle::finish`].
    pub(crate) fn end(&self) -> bool {
        self.state.swap(ENDED, Ordering::AcqRel) != ENDED
    }

    /// Notes that everything is cleaned up, and wakes the threads in [`Lifecycle::join`].
    pub(crate) fn finish(&self) {
        *lock(&self.over) = true;
        self.news.notify_all();
    }

    /// Waits until everything is cleaned up. False: `timeout` has passed before. `None`: no limit.
    pub(crate) fn join(&self, timeout: Option<Duration>) -> bool {
        let mut over = lock(&self.over);
        let until = timeout.and_then(|time| clock::now().checked_add(time));
        while !*over {
            let left = match until {
                None => Duration::from_secs(3600),
                Some(until) => until.saturating_duration_since(clock::now()),
            };
            if left.is_zero() {
                return false;
            }
            over = wait_for(&self.news, over, left).0;
        }
        true
    }
}

/// True while the other end of this socket is open.
fn is_open(follower: &Unshared) -> bool {
    let found = follower.here().map(|socket| socket::receive(socket, &mut [0]));
    matches!(found, Some(Io::WouldBlock | Io::Moved(_)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::fd::AsFd;
    use std::time::Duration;

    use tailrace_os::socket::{Io, pair, receive};
    use tailrace_os::sync::lock;

    use super::Lifecycle;

    #[test]
    fn a_stop_may_be_moved_earlier_but_not_later() {
        let lifecycle = Lifecycle::new();
        assert!(lifecycle.is_running() && !lifecycle.is_overdue(1_000));
        for (by, left) in [(300, 200), (500, 200), (200, 100)] {
            lifecycle.stop(by);
            assert!(!lifecycle.is_running());
            assert_eq!(lifecycle.left(100), Duration::from_millis(left));
        }
        assert!(!lifecycle.is_overdue(199) && lifecycle.is_overdue(200));
        assert_eq!(lifecycle.left(300), Duration::ZERO);
    }

    #[test]
    fn followers_learn_that_it_drains_and_are_waited_for() {
        let lifecycle = Lifecycle::new();
        assert!(!lifecycle.is_followed());
        let (ours, theirs) = pair().unwrap();
        lifecycle.add_follower(ours);
        assert_eq!(receive(theirs.as_fd(), &mut [0]), Io::WouldBlock);
        lifecycle.stop(0);
        assert_eq!(receive(theirs.as_fd(), &mut [0]), Io::End);
        let (late, other) = pair().unwrap();
        lifecycle.add_follower(late);
        assert_eq!(receive(other.as_fd(), &mut [0]), Io::End);
        drop(theirs);
        assert!(lifecycle.is_followed());
        drop(other);
        assert!(!lifecycle.is_followed());
    }

    #[test]
    fn followers_that_have_gone_are_not_kept() {
        let lifecycle = Lifecycle::new();
        let (open, _other) = pair().unwrap();
        lifecycle.add_follower(open);
        for _ in 0..3 {
            lifecycle.add_follower(pair().unwrap().0);
        }
        assert_eq!(lock(&lifecycle.followers).len(), 2, "the open one, and the last");
        assert!(lifecycle.is_running());
    }

    #[test]
    fn idle_connections_are_closed_once() {
        let lifecycle = Lifecycle::new();
        assert!(lifecycle.is_to_sweep() && lifecycle.is_to_sweep(), "until set_swept is called");
        lifecycle.set_swept();
        lifecycle.stop(0);
        assert!(!lifecycle.is_to_sweep());
    }

    #[test]
    fn a_server_ends_once_and_does_not_drain_again() {
        let lifecycle = Lifecycle::new();
        lifecycle.stop(0);
        assert!(!lifecycle.has_ended() && lifecycle.end());
        assert!(!lifecycle.end());
        lifecycle.stop(0);
        assert!(lifecycle.has_ended() && !lifecycle.is_running());
        assert!(!lifecycle.join(Some(Duration::ZERO)), "it is not cleaned up yet");
        lifecycle.finish();
        assert!(lifecycle.join(Some(Duration::ZERO)) && lifecycle.join(None));
    }
}
