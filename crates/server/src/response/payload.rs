//! Bytes of a response that are kept by reference: their owner, and how they are released.

use std::sync::Arc;

use crate::response::segments;

/// An owner of bytes that are needed after the call that sent them.
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

/// Shared by several owners, such as a queue and the thread that writes its bytes to a file.
impl Payload for Arc<dyn Payload> {
    fn bytes(&self) -> &[u8] {
        (**self).bytes()
    }
}

/// A buffer of copied bytes that is now shared. A segment is given back when it is dropped.
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
