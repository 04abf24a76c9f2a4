//! Buffers of one size for gathered blocks, used again and again: growing one large buffer would move its bytes, and
//! memory fresh from the kernel costs a page fault every 4 KiB.
//!
//! Any thread takes and gives; the lock is held for a push or a pop.

use std::sync::Mutex;

use crate::lock;

/// Bytes a segment holds.
pub(crate) const SEGMENT: usize = 64 * 1024;
/// Segments that are kept for reuse.
const SPARE: usize = 64;

static SEGMENTS: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// An empty segment.
pub(crate) fn take() -> Vec<u8> {
    lock(&SEGMENTS).pop().unwrap_or_else(|| Vec::with_capacity(SEGMENT))
}

/// Gives a buffer back, if it is a segment.
pub(crate) fn give(mut buffer: Vec<u8>) {
    if buffer.capacity() == SEGMENT {
        buffer.clear();
        let mut segments = lock(&SEGMENTS);
        if segments.len() < SPARE {
            segments.push(buffer);
        }
    }
}
