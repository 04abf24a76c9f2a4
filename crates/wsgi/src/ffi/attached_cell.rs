//! A value that several Python objects share and that only threads attached to the interpreter touch.
//!
//! With the interpreter lock, a thread that holds a [`Python`] token excludes all others; without it (free-threaded
//! builds), a mutex does. While [`AttachedCell::peek`] lends the value to a function, a second access panics or waits
//! for the mutex. So that function must be short and run no Python code.

#[cfg(not(Py_GIL_DISABLED))]
use std::cell::RefCell;
#[cfg(Py_GIL_DISABLED)]
use std::sync::{Mutex, PoisonError};

use pyo3::Python;

pub(crate) struct AttachedCell<T> {
    #[cfg(not(Py_GIL_DISABLED))]
    value: RefCell<T>,
    #[cfg(Py_GIL_DISABLED)]
    value: Mutex<T>,
}

// SAFETY: `replace` and `peek` are the only accesses, and both need an attached thread. The interpreter lock lets one
// thread at a time be attached, so the `RefCell` is used by one thread at a time. Where `peek` releases the lock all
// the same, the `RefCell` is marked as borrowed, and whoever comes meanwhile panics instead of getting a second
// reference.
#[cfg(not(Py_GIL_DISABLED))]
unsafe impl<T: Send> Sync for AttachedCell<T> {}

impl<T> AttachedCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            #[cfg(not(Py_GIL_DISABLED))]
            value: RefCell::new(value),
            #[cfg(Py_GIL_DISABLED)]
            value: Mutex::new(value),
        }
    }

    /// Puts `value` in and returns what was there. The caller drops that, or uses it, outside of the cell.
    #[cfg(not(Py_GIL_DISABLED))]
    #[inline]
    pub(crate) fn replace(&self, _attached: Python<'_>, value: T) -> T {
        self.value.replace(value)
    }

    /// Puts `value` in and returns what was there. The caller drops that, or uses it, outside of the cell.
    #[cfg(Py_GIL_DISABLED)]
    pub(crate) fn replace(&self, _attached: Python<'_>, value: T) -> T {
        std::mem::replace(&mut *self.value.lock().unwrap_or_else(PoisonError::into_inner), value)
    }

    /// Lends the value to `look`, in place. `look` must run no Python code and must not come back to this cell.
    #[cfg(not(Py_GIL_DISABLED))]
    #[inline]
    pub(crate) fn peek<R>(&self, _attached: Python<'_>, look: impl FnOnce(&mut T) -> R) -> R {
        look(&mut self.value.borrow_mut())
    }

    /// Lends the value to `look`, in place. `look` must run no Python code and must not come back to this cell.
    #[cfg(Py_GIL_DISABLED)]
    pub(crate) fn peek<R>(&self, _attached: Python<'_>, look: impl FnOnce(&mut T) -> R) -> R {
        look(&mut *self.value.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_lent_value_cannot_be_reached_a_second_time() {
        Python::attach(|py| {
            let cell = AttachedCell::new(1);
            assert_eq!(cell.replace(py, 2), 1);
            let second = cell.peek(py, |value| {
                *value += 1;
                catch_unwind(AssertUnwindSafe(|| cell.replace(py, 0))).is_err()
            });
            assert!(second);
            assert_eq!(cell.replace(py, 0), 3);
        });
    }
}
