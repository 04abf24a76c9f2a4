//! Blocks of the application that the server still has to send after the call that brought them: sent by reference,
//! kept alive by a reference to the Python object.
//!
//! Dropped on any thread. A thread that is not attached hands the reference to pyo3's queue; `app.rs` empties that
//! queue before each request, so it does not grow while one thread holds the interpreter for long, and `memory.rs` when
//! there are no requests.

use std::sync::Arc;

use penstock_server::exchange::Payload;
use pyo3::prelude::*;

use crate::memory;

/// Bytes inside a Python object.
pub(crate) struct Borrowed {
    /// Some until it is dropped.
    owner: Option<Arc<Py<PyAny>>>,
    bytes: *const [u8],
}

// SAFETY: `bytes` lies in an immutable `bytes` object that `owner` keeps alive; reading it needs no interpreter.
unsafe impl Send for Borrowed {}

impl Borrowed {
    /// `bytes` must be the data of a `bytes` object that lives at least as long as `owner`: `owner` itself, or an
    /// item of the tuple `owner`.
    ///
    /// # Safety
    /// As said above.
    pub(crate) unsafe fn new(owner: Arc<Py<PyAny>>, bytes: *const [u8]) -> Self {
        Self { owner: Some(owner), bytes }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // Only then is it in pyo3's queue.
        if self.owner.take().is_some_and(|owner| Arc::into_inner(owner).is_some()) {
            memory::dropped(self.bytes.len());
        }
    }
}

impl Payload for Borrowed {
    fn bytes(&self) -> &[u8] {
        // SAFETY: see `new` and `Send`.
        unsafe { &*self.bytes }
    }
}
