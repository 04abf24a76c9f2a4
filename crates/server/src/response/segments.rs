//! Buffers of one size for gathered blocks, used again and again: growing one large buffer would move its bytes, and
//! memory fresh from the kernel costs a page fault every 4 KiB.
//!
//! Any thread takes and gives; the lock is held for a push or a pop.

use std::sync::Mutex;

use crate::os::sync::lock;

/// Bytes a segment holds.
pub(crate) const SEGMENT: usize = 64 * 1024;
/// Segments that are kept for reuse.
const SPARE: usize = 64;

static SEGMENTS: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// An empty segment. `None`: the system has no memory.
pub(crate) fn take() -> Option<Vec<u8>> {
    if let Some(segment) = lock(&SEGMENTS).pop() {
        return Some(segment);
    }
    let mut segment = Vec::new();
    segment.try_reserve_exact(SEGMENT).ok()?;
    Some(segment)
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
