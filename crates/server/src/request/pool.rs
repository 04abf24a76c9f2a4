//! Reusable large segments of request bodies: new memory from the kernel costs as much time as receiving the bytes.
//! Segments are kept until none has been used for [`KEEP`].
//!
//! Any thread uses the pool. None waits for its lock, which may be held forever in a child that the application has
//! forked.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tailrace_os::clock::Millis;
use tailrace_os::mapping;
use tailrace_os::mapping::Mapping;

/// Size of a segment.
pub(crate) const SEGMENT: usize = 256 * 1024;
/// How long unused segments are kept.
const KEEP: Millis = 2_000;

/// The unused segments of a server.
pub(crate) struct Pool {
    free: Mutex<Vec<Mapping>>,
    /// Maximum number that are kept.
    most: usize,
    /// How many exist, in use or not.
    existing: AtomicUsize,
    /// One was returned since the last check.
    was_used: AtomicBool,
    /// When the free ones are to be released (milliseconds).
    due: AtomicU64,
}

impl Pool {
    /// A pool that keeps up to this number of bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            free: Mutex::default(),
            most: bytes / SEGMENT,
            existing: AtomicUsize::new(0),
            was_used: AtomicBool::new(false),
            due: AtomicU64::new(0),
        }
    }

    /// A segment of [`SEGMENT`] bytes of any content. `None`: the system has no memory, or little.
    pub(crate) fn take(&self) -> Option<Mapping> {
        if let Some(free) = self.free.try_lock().ok().and_then(|mut free| free.pop()) {
            return Some(free);
        }
        if !mapping::is_possible(SEGMENT + mapping::SPARE) {
            return None;
        }
        let new = Mapping::new(SEGMENT).ok()?;
        self.existing.fetch_add(1, Ordering::Relaxed);
        Some(new)
    }

    /// Keeps a segment for others, or releases it.
    pub(crate) fn give_back(&self, segment: Mapping) {
        if let Ok(mut free) = self.free.try_lock()
            && free.len() < self.most
        {
            free.push(segment);
            self.was_used.store(true, Ordering::Relaxed);
            return;
        }
        self.existing.fetch_sub(1, Ordering::Relaxed);
    }

    /// Releases the free segments if none has been returned for some time. Called after each round of events.
    pub(crate) fn release_unused(&self, now: Millis) {
        if self.existing.load(Ordering::Relaxed) == 0 {
            return;
        }
        let was_used = self.was_used.swap(false, Ordering::Relaxed);
        if !was_used && now < self.due.load(Ordering::Relaxed) {
            return;
        }
        self.due.store(now.saturating_add(KEEP), Ordering::Relaxed);
        if was_used {
            return;
        }
        let unused = self.free.try_lock().map(|mut free| std::mem::take(&mut *free)).unwrap_or_default();
        self.existing.fetch_sub(unused.len(), Ordering::Relaxed);
    }

    /// Maximum time to wait for events so that [`Pool::release_unused`] is called in time. `None`: no limit.
    pub(crate) fn longest_wait(&self, now: Millis) -> Option<Duration> {
        if self.existing.load(Ordering::Relaxed) == 0 {
            return None;
        }
        if self.was_used.load(Ordering::Relaxed) {
            return Some(Duration::from_millis(KEEP));
        }
        Some(Duration::from_millis(self.due.load(Ordering::Relaxed).saturating_sub(now)))
    }

    /// Number of free segments.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        tailrace_os::sync::lock(&self.free).len()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::{KEEP, Pool, SEGMENT};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn segments_are_used_again_and_released_when_nobody_uses_them() {
        let pool = Pool::new(2 * SEGMENT);
        assert_eq!(pool.longest_wait(0), None);
        for _ in 0..3 {
            let segments = [(); 3].map(|()| pool.take().unwrap());
            assert_eq!(pool.free(), 0);
            segments.into_iter().for_each(|segment| pool.give_back(segment));
            assert_eq!(pool.free(), 2, "no more than it keeps");
        }
        assert_eq!(pool.longest_wait(10_000), Some(2 * SECOND));
        pool.release_unused(10_000);
        assert_eq!(pool.longest_wait(11_000), Some(SECOND));
        pool.release_unused(11_000);
        assert_eq!(pool.free(), 2);
        pool.release_unused(10_000 + KEEP);
        assert_eq!(pool.free(), 0);
        assert_eq!(pool.longest_wait(20_000), None);
    }

    #[test]
    fn a_segment_that_stays_in_use_is_no_reason_to_look_all_the_time() {
        let pool = Pool::new(2 * SEGMENT);
        let _segment = pool.take().unwrap();
        pool.release_unused(10_000);
        assert_eq!(pool.longest_wait(10_000), Some(2 * SECOND));
        pool.release_unused(20_000);
        assert_eq!(pool.longest_wait(20_000), Some(2 * SECOND));
    }

    #[test]
    fn nobody_waits_for_the_lock() {
        let pool = Pool::new(2 * SEGMENT);
        let _held = pool.free.lock().unwrap();
        let segment = pool.take().unwrap();
        pool.give_back(segment);
        pool.release_unused(10_000);
    }
}
