//! Locks and conditions that go on after a panic; what threads share of them, atomics and parking.
//!
//! A thread that panics while it holds a lock loses its own connection and nothing else (see `server`). What a lock
//! guards is changed in steps that each leave it valid, so the other threads go on with it.
//!
//! A file whose threads a model tries out (`make loom`) takes its locks, conditions, atomics and threads from here: in
//! a model they are those of `os/model.rs`, else those of `std`.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(loom))]
use std::time::Duration;
#[cfg(not(loom))]
pub use std::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread,
};

#[cfg(loom)]
pub use crate::model::{Condvar, Mutex, MutexGuard, atomic, lock, thread, wait, wait_for};

/// Locks the mutex, also after a panic of its holder, as all of these do.
#[cfg(not(loom))]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks to read.
pub fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks to write.
pub fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until it is notified.
#[cfg(not(loom))]
pub fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// The guard, and whether the time ran out.
#[cfg(not(loom))]
pub fn wait_for<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>, time: Duration) -> (MutexGuard<'a, T>, bool) {
    let (guard, result) = condition.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner);
    (guard, result.timed_out())
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::time::Duration;

    use super::{Condvar, Mutex, lock, wait_for};

    #[test]
    fn a_lock_is_taken_again_after_its_holder_panicked() {
        let mutex = Mutex::new(1);
        let result = std::panic::catch_unwind(|| {
            *lock(&mutex) = 2;
            let _held = lock(&mutex);
            panic!("with the lock");
        });
        assert!(result.is_err());
        assert_eq!(*lock(&mutex), 2);
    }

    #[test]
    fn a_wait_reports_whether_its_time_ran_out() {
        let (mutex, condition) = (Mutex::new(false), Condvar::new());
        assert!(wait_for(&condition, lock(&mutex), Duration::ZERO).1);
        std::thread::scope(|scope| {
            let mut guard = lock(&mutex);
            scope.spawn(|| {
                *lock(&mutex) = true;
                condition.notify_one();
            });
            while !*guard {
                let (next, timed_out) = wait_for(&condition, guard, Duration::from_secs(20));
                assert!(!timed_out || *next, "no thread has notified");
                guard = next;
            }
        });
    }
}
