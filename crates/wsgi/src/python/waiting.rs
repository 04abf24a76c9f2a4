//! How application code waits: a thread blocks, with the interpreter released; a greenlet lets others of its thread run
//! until its ticket comes back.
//!
//! A greenlet waits in a Python callable, `pause(ticket, seconds)`, which switches to others. Meanwhile any Rust code
//! may run on this very thread. So whoever calls [`Greenlet::pause`] must hold no lock and no borrow, and must not have
//! released the interpreter. The frames below keep what is on their stack.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;

use crate::ffi::thread;

thread_local! {
    // Never dropped by the end of the thread: the interpreter may be gone by then.
    static PAUSE: RefCell<ManuallyDrop<Option<Py<PyAny>>>> = const { RefCell::new(ManuallyDrop::new(None)) };
}

/// From now on code on the calling thread runs in greenlets, which wait in this callable.
pub(crate) fn set_pause(pause: Py<PyAny>) {
    let before = PAUSE.replace(ManuallyDrop::new(Some(pause)));
    // Outside of the cell, since the drop may run Python code.
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
    /// How the code on this thread waits. A process with greenlets also has threads, those of gevent's thread pool.
    pub(crate) fn here(py: Python<'py>) -> Self {
        let pause = PAUSE.with_borrow(|pause| pause.as_ref().map(|pause| pause.clone_ref(py)));
        pause.map_or(Self::Thread, |pause| Self::Greenlet(Greenlet { pause: pause.into_bound(py) }))
    }
}

/// The greenlet that runs.
pub(crate) struct Greenlet<'py> {
    pause: Bound<'py, PyAny>,
}

impl Greenlet<'_> {
    /// Waits for the ticket to come back, for `seconds` at most. True: it came back.
    ///
    /// # Errors
    /// What was thrown into the greenlet meanwhile.
    #[inline(never)]
    pub(crate) fn pause(&self, ticket: u64, seconds: Option<f64>) -> PyResult<bool> {
        debug_assert!(thread::is_attached(), "left without the interpreter");
        debug_assert!(tailrace_server::may_switch(), "left with the thread's read buffer in use");
        self.pause.call1((ticket, seconds))?.extract()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn only_the_thread_of_the_greenlets_waits_in_the_callable() {
        Python::attach(|py| {
            std::thread::scope(|scope| {
                py.detach(|| {
                    let thread = scope.spawn(|| {
                        Python::attach(|py| {
                            set_pause(
                                py.eval(c"lambda ticket, seconds: (ticket, seconds) == (7, 1.5)", None, None)
                                    .unwrap()
                                    .unbind(),
                            );
                            let Waiting::Greenlet(greenlet) = Waiting::here(py) else { panic!("it was set") };
                            assert!(greenlet.pause(7, Some(1.5)).unwrap());
                            assert!(!greenlet.pause(7, None).unwrap());
                        });
                    });
                    thread.join().unwrap();
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
