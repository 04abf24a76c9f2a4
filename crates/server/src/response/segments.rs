//! Reused buffers of one size for coalesced blocks: a large buffer would move its bytes when it grows, and new memory
//! from the kernel costs a page fault every 4 KiB.
//!
//! Any thread takes and gives back; the lock is held for one push or pop.

use std::sync::Mutex;

use tailrace_os::sync::lock;

/// Size of a segment in bytes.
pub(crate) const SEGMENT: usize = 64 * 1024;
/// At most this many segments are kept for reuse.
const SPARE: usize = 64;

static SEGMENTS: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// An empty segment. `None`: the system has no memory.
pub(crate) fn take() -> Option<Vec<u8>> {
    #[cfg(test)]
    if tests::IS_MEMORY_USED_UP.get() {
        return None;
    }
    if let Some(segment) = lock(&SEGMENTS).pop() {
        return Some(segment);
    }
    with_capacity(SEGMENT)
}

/// An empty buffer with a capacity of this many bytes. `None`: the system has no memory.
pub(crate) fn with_capacity(bytes: usize) -> Option<Vec<u8>> {
    #[cfg(test)]
    if tests::IS_MEMORY_USED_UP.get() {
        return None;
    }
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes).ok()?;
    Some(buffer)
}

/// Keeps a buffer for reuse if it is a segment, else drops it.
pub(crate) fn give(mut buffer: Vec<u8>) {
    if buffer.capacity() == SEGMENT {
        buffer.clear();
        let mut segments = lock(&SEGMENTS);
        if segments.len() < SPARE {
            segments.push(buffer);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    thread_local! {
        pub(super) static IS_MEMORY_USED_UP: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs `run`, during which the system has no memory for buffers.
    pub(crate) fn without_memory<T>(run: impl FnOnce() -> T) -> T {
        IS_MEMORY_USED_UP.set(true);
        let result = run();
        IS_MEMORY_USED_UP.set(false);
        result
    }

    #[test]
    fn a_segment_is_reused_and_a_buffer_of_another_size_is_not() {
        let mut segment = super::take().into_iter().next().unwrap_or_default();
        segment.extend_from_slice(b"old");
        super::give(segment);
        assert!(super::take().is_some_and(|segment| segment.is_empty() && segment.capacity() == super::SEGMENT));
        super::give(vec![0; super::SEGMENT + 1]);
        assert!(super::take().is_some_and(|segment| segment.capacity() == super::SEGMENT));
    }
}
