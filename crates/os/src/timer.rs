//! A timer that any thread sets and one thread waits for (timerfd_create(2)). To set it wakes no thread, so it can be put
//! off as often as one likes.

use std::io;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::process::Unshared;

const NEVER: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// A timer, which is not set at first. In a child that the application forks it does nothing.
pub struct Timer(Unshared);

impl Timer {
    /// A timer that is not set.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Unshared::new(timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?)))
    }

    /// Has the timer expire after this time, and not when it was to expire before.
    pub fn set(&self, time: Duration) {
        // A time of zero would stop it.
        self.set_to(Timespec::try_from(time.max(Duration::from_nanos(1))).unwrap_or(NEVER));
    }

    /// Disarms the timer, and discards an expiration that no thread has read yet.
    pub fn stop(&self) {
        self.set_to(NEVER);
    }

    fn set_to(&self, time: Timespec) {
        if let Some(timer) = self.0.here() {
            let once = Itimerspec { it_interval: NEVER, it_value: time };
            let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &once);
        }
    }

    /// Blocks until the timer has expired since the last call. False: it never will.
    pub fn wait(&self) -> bool {
        let mut expirations = [0_u8; 8];
        self.0
            .here()
            .is_some_and(|timer| rustix::io::retry_on_intr(|| rustix::io::read(timer, &mut expirations)).is_ok())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::Timer;
    use crate::clock::{now, since};
    use crate::poll::wait_readable;

    #[test]
    fn it_expires_once_after_the_time_that_was_set_last() {
        let timer = Timer::new().unwrap();
        let begun = now();
        timer.set(Duration::ZERO);
        assert!(timer.wait());
        timer.set(Duration::ZERO);
        timer.set(Duration::from_millis(20));
        assert!(timer.wait() && since(begun) >= Duration::from_millis(20));
    }

    #[test]
    fn a_timer_that_was_stopped_does_not_expire() {
        let timer = Timer::new().unwrap();
        let expires = |time| wait_readable(timer.0.here().unwrap().as_fd(), time);
        timer.set(Duration::ZERO);
        assert!(expires(Duration::from_secs(20)));
        timer.stop();
        assert!(!expires(Duration::ZERO));
        timer.set(Duration::from_millis(5));
        timer.stop();
        assert!(!expires(Duration::from_millis(50)));
    }
}
