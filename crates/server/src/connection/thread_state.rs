//! Thread-local state: a read buffer, and whether the thread leads the loop.

use std::cell::{Cell, RefCell};

/// Bytes read from a socket at once.
pub(crate) const SCRATCH: usize = 64 * 1024;
thread_local! {
    static READ: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static LEADING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` with the thread's read buffer of [`SCRATCH`] bytes, or with a smaller one if the system is out of
/// memory. Panics if it is nested.
pub(crate) fn with_scratch<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    READ.with_borrow_mut(|buffer| {
        if buffer.is_empty() {
            if buffer.try_reserve_exact(SCRATCH).is_err() {
                return with_stack(work);
            }
            buffer.resize(SCRATCH, 0);
        }
        work(buffer)
    })
}

#[cold]
#[inline(never)]
fn with_stack<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    work(&mut [0; 4096])
}

/// True unless the calling thread is inside [`with_scratch`].
pub(crate) fn is_scratch_free() -> bool {
    READ.with(|buffer| buffer.try_borrow_mut().is_ok())
}

/// Runs `work`, during which the thread counts as the leader.
pub(crate) fn leading<T>(work: impl FnOnce() -> T) -> T {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            LEADING.set(false);
        }
    }
    LEADING.set(true);
    let _reset = Reset;
    work()
}

/// True while the thread is the leader, which looks for work before it waits, so nobody has to wake it.
pub(crate) fn is_leading() -> bool {
    LEADING.get()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]
    use std::panic::catch_unwind;

    use super::{is_leading, is_scratch_free, leading, with_scratch};

    #[test]
    fn a_thread_leads_until_its_work_returns_or_panics() {
        assert!(!is_leading());
        assert!(leading(is_leading));
        assert!(!is_leading());
        assert!(catch_unwind(|| leading(|| panic!("it fails"))).is_err());
        assert!(!is_leading());
    }

    #[test]
    fn the_read_buffer_is_not_free_while_it_is_used() {
        assert!(is_scratch_free());
        assert!(with_scratch(|buffer| buffer.len() == super::SCRATCH && !is_scratch_free()));
        assert!(is_scratch_free());
    }
}
