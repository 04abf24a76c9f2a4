//! Keeps an exception that the application raised and that concerns more than its request, such as KeyboardInterrupt,
//! until the owner of the server takes it. Any thread.

use std::sync::{Mutex, PoisonError};

use pyo3::PyErr;

#[derive(Default)]
pub(crate) struct KeptException(Mutex<Option<PyErr>>);

impl KeptException {
    /// Keeps an exception, unless one is kept already.
    pub(crate) fn keep(&self, error: PyErr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    pub(crate) fn is_some(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub(crate) fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
