//! Thread-local state: a read buffer, and whether the thread leads the loop.

use std::cell::{Cell, RefCell};

/// Bytes read from a socket at once.
pub(crate) const SCRATCH: usize = 64 * 1024;
thread_local! {
    static READ: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static LEADING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` with the thread's read buffer of [`SCRATCH`] bytes. Not to be nested.
pub(crate) fn with_scratch<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    READ.with_borrow_mut(|buffer| {
        if buffer.is_empty() {
            buffer.resize(SCRATCH, 0);
        }
        work(buffer)
    })
}

/// True unless the calling thread is inside [`with_scratch`].
pub(crate) fn is_scratch_free() -> bool {
    READ.with(|buffer| buffer.try_borrow_mut().is_ok())
}

/// Runs what the thread does as the leader.
pub(crate) fn leading<T>(work: impl FnOnce() -> T) -> T {
    LEADING.set(true);
    let done = work();
    LEADING.set(false);
    done
}

/// True while the thread leads: it will look around by itself before it waits.
pub(crate) fn is_leading() -> bool {
    LEADING.get()
}
