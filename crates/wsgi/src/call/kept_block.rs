//! Blocks of the application that are not sent yet when `send` has returned: not copied, but kept alive by a reference
//! to the Python object.
//!
//! Dropped on any thread. pyo3 puts a reference that is dropped by a thread which is not attached into a queue, and
//! empties it when a thread attaches: before each request (`runtime/handler.rs`), and in `python/memory.rs` when there
//! are none.

use tailrace_server::Payload;

use crate::ffi::bytes::SharedBytes;
use crate::python::memory;

/// The data of a `bytes` object.
pub(crate) struct KeptBlock {
    /// `Some` until it is dropped.
    bytes: Option<SharedBytes>,
}

impl KeptBlock {
    pub(crate) fn boxed(bytes: SharedBytes) -> Box<dyn Payload> {
        Box::new(Self { bytes: Some(bytes) })
    }
}

impl Drop for KeptBlock {
    fn drop(&mut self) {
        if let Some(bytes) = self.bytes.take() {
            let length = bytes.bytes().len();
            // Only when our last reference was dropped may the object be in pyo3's queue.
            if bytes.release() {
                memory::dropped(length);
            }
        }
    }
}

impl Payload for KeptBlock {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self.bytes.as_ref().map_or(&[], SharedBytes::bytes)
    }
}
