//! A thread that starts with the first message sent to it. Told to end, it first processes the messages already sent.
//!
//! Any thread.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The sending end of the channel to the thread. The thread ends when its receiver is disconnected.
pub(crate) struct LateThread<S>(Mutex<Option<S>>);

impl<S> Default for LateThread<S> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<S> LateThread<S> {
    /// Calls `work`, which must not wait, with the sender. `start`: starts the thread, if none has been started since the
    /// last end.
    pub(crate) fn send<R>(&self, start: impl FnOnce() -> S, work: impl FnOnce(&S) -> R) -> R {
        work(self.lock().get_or_insert_with(start))
    }

    /// Has the thread end.
    pub(crate) fn end(&self) {
        drop(self.lock().take());
    }

    fn lock(&self) -> MutexGuard<'_, Option<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
