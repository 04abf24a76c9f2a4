//! What [`super::sync`] gives in a model (`crates/server/src/models`): locks, conditions, atomics, threads and a
//! descriptor of `loom`, which tries out every order of the steps that threads take with them, and every value that
//! memory may show.
//!
//! Only the files that a model covers use these; the others keep those of `std`, which `loom` does not see. So [`lock`]
//! and similar functions accept both.
#![allow(unsafe_code)]
#![allow(missing_docs, reason = "names and meanings are those of std")]

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, PoisonError, TryLockError, TryLockResult};
use std::time::Duration;

/// In a model, a wait of this length ends only when it is ended. A shorter one may always be too short.
pub(crate) const ENDLESS: Duration = Duration::from_secs(1);

pub struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub fn new(data: T) -> Self {
        Self(loom::sync::Mutex::new(data))
    }

    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Ok(MutexGuard { mutex: self, guard }),
            Err(_) => Err(TryLockError::WouldBlock),
        }
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    guard: loom::sync::MutexGuard<'a, T>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[derive(Default)]
pub struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A lock of either kind.
pub trait Lock {
    type Guard<'a>
    where
        Self: 'a;

    fn lock(&self) -> Self::Guard<'_>;
}

impl<T> Lock for Mutex<T> {
    type Guard<'a>
        = MutexGuard<'a, T>
    where
        Self: 'a;

    fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, guard: self.0.lock().unwrap_or_else(PoisonError::into_inner) }
    }
}

impl<T> Lock for std::sync::Mutex<T> {
    type Guard<'a>
        = std::sync::MutexGuard<'a, T>
    where
        Self: 'a;

    fn lock(&self) -> std::sync::MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<L: Lock> Lock for Arc<L> {
    type Guard<'a>
        = L::Guard<'a>
    where
        Self: 'a;

    fn lock(&self) -> L::Guard<'_> {
        (**self).lock()
    }
}

pub fn lock<L: Lock>(mutex: &L) -> L::Guard<'_> {
    mutex.lock()
}

/// A condition of either kind, and a guard that it takes.
pub trait Condition<G> {
    fn wait(&self, guard: G) -> G;

    fn wait_for(&self, guard: G, time: Duration) -> (G, bool);
}

impl<'a, T> Condition<MutexGuard<'a, T>> for Condvar {
    fn wait(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let MutexGuard { mutex, guard } = guard;
        MutexGuard { mutex, guard: self.0.wait(guard).unwrap_or_else(PoisonError::into_inner) }
    }

    fn wait_for(&self, guard: MutexGuard<'a, T>, time: Duration) -> (MutexGuard<'a, T>, bool) {
        if time >= ENDLESS {
            return (self.wait(guard), false);
        }
        let mutex = guard.mutex;
        drop(guard);
        thread::pass_time();
        (lock(mutex), true)
    }
}

impl<'a, T> Condition<std::sync::MutexGuard<'a, T>> for std::sync::Condvar {
    fn wait(&self, guard: std::sync::MutexGuard<'a, T>) -> std::sync::MutexGuard<'a, T> {
        self.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(&self, guard: std::sync::MutexGuard<'a, T>, time: Duration) -> (std::sync::MutexGuard<'a, T>, bool) {
        let (guard, result) = self.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner);
        (guard, result.timed_out())
    }
}

pub fn wait<G>(condition: &impl Condition<G>, guard: G) -> G {
    condition.wait(guard)
}

pub fn wait_for<G>(condition: &impl Condition<G>, guard: G, time: Duration) -> (G, bool) {
    condition.wait_for(guard, time)
}

/// Threads.
pub mod thread {
    use std::cell::Cell;
    use std::time::Duration;

    pub use loom::thread::{Thread, ThreadId, current, yield_now};

    use super::ENDLESS;

    /// How many times a thread continues at once when its short wait ends. After that, the others go first, or a thread
    /// that checks repeatedly would do so forever.
    const EARLY: u32 = 2;

    loom::thread_local! {
        static WAITS: Cell<u32> = Cell::new(0);
    }

    pub fn park_timeout(time: Duration) {
        if time >= ENDLESS {
            loom::thread::park();
        } else {
            pass_time();
        }
    }

    /// A short wait ends.
    pub(super) fn pass_time() {
        let waits = WAITS.with(|waits| waits.replace(waits.get() + 1));
        if waits >= EARLY {
            yield_now();
        }
    }
}

/// Atomics. `loom` knows the order of [`Ordering::SeqCst`] among stores alone, so the first value has to be stored,
/// too.
pub mod atomic {
    use std::ops::Deref;

    pub use loom::sync::atomic::{Ordering, fence};

    macro_rules! atomics {
        ($($name:ident: $value:ty),*) => {
            $(
                pub struct $name(loom::sync::atomic::$name);

                impl $name {
                    pub fn new(value: $value) -> Self {
                        let atomic = loom::sync::atomic::$name::new(value);
                        atomic.store(value, Ordering::SeqCst);
                        Self(atomic)
                    }
                }

                impl Default for $name {
                    fn default() -> Self {
                        Self::new(<$value>::default())
                    }
                }

                impl Deref for $name {
                    type Target = loom::sync::atomic::$name;

                    fn deref(&self) -> &Self::Target {
                        &self.0
                    }
                }
            )*
        };
    }

    atomics!(AtomicBool: bool, AtomicU32: u32, AtomicU64: u64, AtomicUsize: usize);
}

/// Memory that one thread at a time touches. `loom` checks this, and that the previous thread is known to have left it.
#[derive(Default)]
pub struct Exclusive<T>(loom::cell::UnsafeCell<T>);

// SAFETY: `loom` runs one thread at a time, and ends a model in which two touch it without an order between them.
unsafe impl<T: Send> Sync for Exclusive<T> {}

impl<T> Exclusive<T> {
    pub fn with<R>(&self, touch: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: as above; the reference ends with `touch`.
        self.0.with_mut(|data| touch(unsafe { &mut *data }))
    }
}

/// Replaces [`crate::eventfd::Eventfd`].
#[derive(Default)]
pub struct Eventfd {
    is_readable: Mutex<bool>,
    woken: Condvar,
}

impl Eventfd {
    pub fn new() -> io::Result<Self> {
        Ok(Self::default())
    }

    pub fn wake(&self) {
        *lock(&self.is_readable) = true;
        self.woken.notify_all();
    }

    pub fn clear(&self) {
        *lock(&self.is_readable) = false;
    }

    pub fn here(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Blocks until it is readable.
    pub fn wait_readable(&self) {
        let mut is_readable = lock(&self.is_readable);
        while !*is_readable {
            is_readable = wait(&self.woken, is_readable);
        }
    }
}
