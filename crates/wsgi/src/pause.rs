//! How application code waits: a thread by blocking, with the interpreter released; a greenlet by leaving its hub's thread
//! to others until it is told.
//!
//! A greenlet waits in a Python callable, `pause(ticket, seconds)`, which switches. While it does, any Rust code may run
//! on this very thread, so that no lock, no borrow and no stretch without the interpreter may reach over a call of
//! [`Greenlet::pause`]. What the frames below hold on their stack comes back untouched.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

thread_local! {
    // Never dropped by the end of the thread: the interpreter may be gone by then.
    static PAUSE: RefCell<ManuallyDrop<Option<Py<PyAny>>>> = const { RefCell::new(ManuallyDrop::new(None)) };
}

/// From now on the calling thread is a hub's, whose greenlets wait in this callable.
pub(crate) fn set(pause: Py<PyAny>) {
    let before = PAUSE.replace(ManuallyDrop::new(Some(pause)));
    // Outside the cell: it may run Python code.
    drop(ManuallyDrop::into_inner(before));
}

/// A name for one wait, unlike any other in the process; never 0.
pub(crate) fn ticket() -> u64 {
    static TICKETS: AtomicU64 = AtomicU64::new(0);
    TICKETS.fetch_add(1, Ordering::Relaxed) + 1
}

/// How the calling code waits.
pub(crate) enum Waiting<'py> {
    /// It blocks.
    Thread,
    /// It lets other greenlets run.
    Greenlet(Greenlet<'py>),
}

impl<'py> Waiting<'py> {
    /// Of the code that runs here. Also a hub has real threads, in its thread pool.
    pub(crate) fn here(py: Python<'py>) -> Self {
        let pause = PAUSE.with_borrow(|pause| pause.as_ref().map(|pause| pause.clone_ref(py)));
        pause.map_or(Self::Thread, |pause| Self::Greenlet(Greenlet { pause: pause.into_bound(py) }))
    }
}

/// A greenlet that can wait.
pub(crate) struct Greenlet<'py> {
    pause: Bound<'py, PyAny>,
}

impl Greenlet<'_> {
    /// Waits for the ticket to be told, for `seconds` at most. True: it was told.
    ///
    /// # Errors
    /// What was thrown into the greenlet meanwhile.
    #[inline(never)]
    pub(crate) fn pause(&self, ticket: u64, seconds: Option<f64>) -> PyResult<bool> {
        // SAFETY: asks about the calling thread.
        debug_assert_eq!(unsafe { ffi::PyGILState_Check() }, 1, "left without the interpreter");
        debug_assert!(penstock_server::hub::may_switch(), "left with the thread's read buffer in use");
        self.pause.call1((ticket, seconds))?.extract()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn only_the_hubs_own_thread_waits_in_the_callable() {
        Python::attach(|py| {
            std::thread::scope(|scope| {
                py.detach(|| {
                    let hub = scope.spawn(|| {
                        Python::attach(|py| {
                            set(py
                                .eval(c"lambda ticket, seconds: (ticket, seconds) == (7, 1.5)", None, None)
                                .unwrap()
                                .unbind());
                            let Waiting::Greenlet(greenlet) = Waiting::here(py) else { panic!("it was set") };
                            assert!(greenlet.pause(7, Some(1.5)).unwrap());
                            assert!(!greenlet.pause(7, None).unwrap());
                        });
                    });
                    hub.join().unwrap();
                });
            });
            assert!(matches!(Waiting::here(py), Waiting::Thread));
        });
    }

    #[test]
    fn what_is_thrown_in_goes_through() {
        Python::attach(|py| {
            let fails = Greenlet { pause: py.eval(c"lambda *_: 1 / 0", None, None).unwrap() };
            assert!(fails.pause(ticket(), None).is_err());
        });
    }
}
