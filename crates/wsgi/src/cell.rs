//! A value that several Python-facing objects share and that only threads attached to the interpreter touch.
//!
//! The one access is [`AttachedCell::replace`], which moves a value in and another one out and runs no Python code in
//! between. With the interpreter lock, holding a [`Python`] token therefore excludes every other thread; without it
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

// SAFETY: `replace` is the only access. It needs an attached thread, and the interpreter lock lets one thread at a time
// be attached; `mem::replace` cannot let go of that lock.
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

    /// Puts `value` in and answers what was there.
    #[cfg(Py_GIL_DISABLED)]
    pub(crate) fn replace(&self, _attached: Python<'_>, value: T) -> T {
        std::mem::replace(&mut *self.value.lock().unwrap_or_else(PoisonError::into_inner), value)
    }
}
