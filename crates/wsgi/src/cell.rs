//! A value that several Python-facing objects share and that only threads attached to the interpreter touch.
//!
//! [`AttachedCell::replace`] moves a value in and another one out and runs no Python code in between;
//! [`AttachedCell::peek`] lends the value to a function that runs none either. With the interpreter lock, holding a [`Python`] token therefore excludes every other thread; without it
//! (free-threaded builds) a mutex does. What was moved out is dropped or used by the caller, outside the cell.

#[cfg(not(Py_GIL_DISABLED))]
use std::cell::UnsafeCell;
#[cfg(Py_GIL_DISABLED)]
use std::sync::{Mutex, PoisonError};

use pyo3::Python;

/// See the module.
pub(crate) struct AttachedCell<T> {
    #[cfg(not(Py_GIL_DISABLED))]
    value: UnsafeCell<T>,
    #[cfg(Py_GIL_DISABLED)]
    value: Mutex<T>,
}

// SAFETY: `replace` and `peek` are the only accesses. Both need an attached thread, and the interpreter lock lets one
// thread at a time be attached; `mem::replace` cannot let go of that lock, and what `peek` runs must not.
#[cfg(not(Py_GIL_DISABLED))]
unsafe impl<T: Send> Sync for AttachedCell<T> {}

impl<T> AttachedCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            #[cfg(not(Py_GIL_DISABLED))]
            value: UnsafeCell::new(value),
            #[cfg(Py_GIL_DISABLED)]
            value: Mutex::new(value),
        }
    }

    /// Puts `value` in and answers what was there.
    #[cfg(not(Py_GIL_DISABLED))]
    pub(crate) fn replace(&self, _attached: Python<'_>, value: T) -> T {
        // SAFETY: no reference into the cell outlives this call, and no other thread is in it (see `Sync` above).
        unsafe { std::mem::replace(&mut *self.value.get(), value) }
    }

    /// Lends the value to `look`, in place.
    ///
    /// # Safety
    /// `look` must run no Python code, must not detach from the interpreter and must not come back to this cell.
    #[cfg(not(Py_GIL_DISABLED))]
    #[inline]
    pub(crate) unsafe fn peek<R>(&self, _attached: Python<'_>, look: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: as `look` keeps to its side, nobody else is in the cell until it returns.
        look(unsafe { &mut *self.value.get() })
    }

    /// Lends the value to `look`, in place.
    ///
    /// # Safety
    /// `look` must run no Python code, must not detach from the interpreter and must not come back to this cell.
    #[cfg(Py_GIL_DISABLED)]
    pub(crate) unsafe fn peek<R>(&self, _attached: Python<'_>, look: impl FnOnce(&mut T) -> R) -> R {
        look(&mut *self.value.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts `value` in and answers what was there.
    #[cfg(Py_GIL_DISABLED)]
    pub(crate) fn replace(&self, _attached: Python<'_>, value: T) -> T {
        std::mem::replace(&mut *self.value.lock().unwrap_or_else(PoisonError::into_inner), value)
    }
}
