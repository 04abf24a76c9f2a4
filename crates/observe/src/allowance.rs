//! A limit of the lines of one kind in the log: so many a second; the others are counted.
//!
//! Belongs to the thread that logs, or is behind its lock.

use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

/// A limit of lines per second.
#[derive(Debug)]
pub struct Allowance {
    each_second: u32,
    /// When the second began whose lines are counted.
    began: Option<Instant>,
    logged: u32,
    left_out: u64,
}

impl Allowance {
    /// So many lines a second.
    #[must_use]
    pub fn new(each_second: u32) -> Self {
        Self { each_second, began: None, logged: 0, left_out: 0 }
    }

    /// True when a line may be logged; else it is counted as left out.
    pub fn may_log(&mut self, now: Instant) -> bool {
        if self.began.is_none_or(|began| now.saturating_duration_since(began) >= SECOND) {
            (self.began, self.logged) = (Some(now), 0);
        }
        let may_log = self.logged < self.each_second;
        if may_log {
            self.logged += 1;
        } else {
            self.left_out += 1;
        }
        may_log
    }

    /// How many lines were left out, each told once. 0 as long as the second lasts in which they were.
    pub fn left_out(&mut self, now: Instant) -> u64 {
        if self.wait(now).is_some_and(|wait| wait.is_zero()) { std::mem::take(&mut self.left_out) } else { 0 }
    }

    /// After which time lines that were left out are to be told; `None`: none were.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        let began = self.began.filter(|_| self.left_out > 0)?;
        Some(SECOND.saturating_sub(now.saturating_duration_since(began)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tailrace_os::clock::now;

    use super::Allowance;

    #[test]
    fn so_many_lines_a_second_are_logged_and_the_others_told_once() {
        let began = now();
        let after = |millis| began + Duration::from_millis(millis);
        let mut allowance = Allowance::new(2);
        assert_eq!(allowance.wait(began), None);
        let taken: Vec<_> = [0, 10, 20, 999].map(|millis| allowance.may_log(after(millis))).to_vec();
        assert_eq!(taken, [true, true, false, false]);
        assert_eq!((allowance.wait(after(999)), allowance.left_out(after(999))), (Some(Duration::from_millis(1)), 0));
        assert_eq!((allowance.left_out(after(1_000)), allowance.left_out(after(1_000))), (2, 0));
        assert!(allowance.may_log(after(1_000)) && allowance.may_log(after(1_500)) && !allowance.may_log(after(1_999)));
        assert!(allowance.may_log(after(2_000)));
        assert_eq!(allowance.wait(after(2_500)), Some(Duration::from_millis(500)));
        assert_eq!(allowance.left_out(after(3_000)), 1);
    }
}
