//! Bytes of a response that are held by reference: who owns them, and how they are let go.

use std::sync::Arc;

use crate::response::segments;

/// Bytes that the application owns and that must outlive the call that sent them.
pub trait Payload: Send + Sync {
    /// The bytes; the same at each call.
    fn bytes(&self) -> &[u8];
}

/// No bytes at all.
impl Payload for () {
    fn bytes(&self) -> &[u8] {
        &[]
    }
}

/// Held by several, such as a queue and the thread that writes its bytes to a file.
impl Payload for Arc<dyn Payload> {
    fn bytes(&self) -> &[u8] {
        (**self).bytes()
    }
}

/// A buffer that was copied into, shared from now on.
pub(crate) struct Shared(Vec<u8>);

impl Shared {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl Payload for Shared {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        segments::give(std::mem::take(&mut self.0));
    }
}
