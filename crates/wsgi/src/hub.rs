//! `Hub`: a server whose requests run in the greenlets of one thread, as `penstock/greenlets` drives it.
//!
//! The hub's thread calls everything here, unless a method says "any thread". Nothing blocks but [`Hub::blocked`], and
//! nothing switches to another greenlet but the application's code under [`Hub::carry`].

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use penstock_server::handler::{Application, Level, Overdue};
use penstock_server::hub::{Hub as Bell, Look};
use penstock_server::reactor::Reactor;
use penstock_server::ready::Turn;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::app::{PythonApplication, thread_here};
use crate::overdue;
use crate::scoreboard::told;
use crate::{memory, pause};

/// post, serial, request, seconds, outcome
type Late = (usize, u64, String, f64, &'static str);

/// Tickets, requests past their deadline, the end.
type Told = (Vec<u64>, Vec<Late>, bool);

/// A server whose requests run in greenlets.
#[pyclass(frozen, name = "Hub", module = "penstock._penstock")]
pub(crate) struct Hub {
    reactor: Arc<Reactor>,
    application: Arc<PythonApplication>,
    /// The hub's, as Python numbers it.
    thread: u64,
    started: AtomicBool,
}

impl Hub {
    /// The calling thread is to be the hub's.
    ///
    /// # Errors
    /// `RuntimeError` when the server has a hub or wants none.
    pub(crate) fn new(
        pause: Bound<'_, PyAny>,
        reactor: Arc<Reactor>,
        application: Arc<PythonApplication>,
    ) -> PyResult<Self> {
        let Some(bell) = reactor.hub() else {
            return Err(PyRuntimeError::new_err("the setting hub is off: start() serves with threads"));
        };
        if !bell.settle_here() {
            return Err(PyRuntimeError::new_err("the server has a hub already"));
        }
        application.prepare_for_greenlets(pause.py())?;
        pause::set(pause.unbind());
        Ok(Self { reactor, application, thread: thread_here(), started: AtomicBool::new(false) })
    }

    fn bell(&self) -> PyResult<&Bell> {
        self.reactor.hub().ok_or_else(|| PyRuntimeError::new_err("the setting hub is off"))
    }
}

#[pymethods]
impl Hub {
    /// Starts the I/O thread and returns. Raises OSError.
    fn start(&self) -> PyResult<()> {
        if self.started.swap(true, Ordering::AcqRel) {
            return Err(PyRuntimeError::new_err("the server was started before"));
        }
        memory::start()?;
        let reactor = self.reactor.clone();
        thread::Builder::new().name(String::from("penstock-io")).spawn(move || reactor.run_io())?;
        Ok(())
    }

    /// The bell: a descriptor that is readable when `take` has something to tell.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.bell()?.bell().as_fd().as_raw_fd())
    }

    /// Silences the bell; the next `wants_carrier` begins a slice of time for requests. Answers the tickets that are told,
    /// the requests that are past their deadline, and whether the server has ended, which is told once; None: nothing but
    /// requests.
    fn take(&self) -> PyResult<Option<Told>> {
        let news = self.bell()?.take();
        Ok(news.map(|news| (news.tickets, news.overdue.into_iter().map(late).collect(), news.ended)))
    }

    /// Rings the bell: `take` is called again. Any thread.
    fn ring(&self) -> PyResult<()> {
        self.bell()?.ring();
        Ok(())
    }

    /// Whether a carrier should be switched to: requests wait, one more may be carried, and the slice is not over (then the
    /// bell is rung again).
    fn wants_carrier(&self) -> bool {
        self.reactor.wants_carrier()
    }

    /// A post for a new carrier; None: there are no more.
    fn join(&self) -> Option<usize> {
        self.reactor.take_post()
    }

    /// Carries requests in the calling greenlet, `carrier`, while there are any and it is as good as a new one. False: it is
    /// to end, since somebody wants it dead, or because of an `interruption`. Does not raise.
    #[pyo3(signature = (post, carrier, /))]
    fn carry(&self, py: Python<'_>, post: usize, carrier: &Bound<'_, PyAny>) -> bool {
        let (Ok(bell), references) = (self.bell(), references_to(carrier)) else { return false };
        let Some(mut turn) = Turn::of_hub(&self.reactor, post) else { return true };
        // Once the hub has run, those who switched to the greenlet at first refer to it no longer, so that the references of
        // its entrance say nothing: the hub itself counts those of a carrier that is parked.
        let turns = bell.turns();
        self.application.carry_in_turn(py, &mut turn, || turns == bell.turns() && is_as_new(carrier, references))
    }

    /// The KeyboardInterrupt that has gone through the application, which was answered 500, and made `carry` say False; told
    /// once.
    fn interruption(&self) -> Option<PyErr> {
        self.application.take_interruption()
    }

    /// The carrier of this post has ended.
    #[pyo3(signature = (post, /))]
    fn leave(&self, post: usize) {
        self.reactor.give_post_back(post);
    }

    /// Whether a carrier that is parked can be told from a new one: `references` are known to refer to it, nobody else
    /// does, and nothing is stored on it.
    #[pyo3(signature = (carrier, references, /))]
    fn is_as_new(&self, carrier: &Bound<'_, PyAny>, references: ffi::Py_ssize_t) -> bool {
        is_as_new(carrier, references)
    }

    /// The requests that carriers carry: id, method, target, client, seconds, post. Any thread.
    fn in_flight<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let requests = PyList::empty(py);
        for (post, request) in self.reactor.in_flight() {
            let told: Bound<'py, PyDict> = told(py, &request)?;
            told.set_item("post", post)?;
            requests.append(told)?;
        }
        Ok(requests)
    }

    /// Whether the carrier of a post still carries this request. Any thread.
    #[pyo3(signature = (post, serial, /))]
    fn is_carrying(&self, post: usize, serial: u64) -> bool {
        self.reactor.is_carrying(post, serial)
    }

    /// Whether the application of a request may be interrupted: it is still at it, and not cleaning up. Any thread.
    #[pyo3(signature = (post, serial, /))]
    fn may_interrupt(&self, post: usize, serial: u64) -> bool {
        self.reactor.is_interruptible(post, serial)
    }

    /// Raises RequestTimeout in the hub's thread if what runs there is this request, and it may be interrupted. Any thread.
    #[pyo3(signature = (post, serial, carrier, /))]
    fn interrupt(&self, py: Python<'_>, post: usize, serial: u64, carrier: &Bound<'_, PyAny>) -> PyResult<bool> {
        // In one stretch with the interpreter, so that the hub cannot switch between look and deed. The greenlet that runs
        // is the one without a frame to show.
        let runs = self.reactor.is_interruptible(post, serial) && carrier.getattr("gr_frame")?.is_none();
        if runs {
            overdue::raise(py, self.thread);
        }
        Ok(runs)
    }

    /// The requests past their deadline that `take` has not told yet. Any thread.
    fn overdue(&self) -> PyResult<Vec<Late>> {
        Ok(self.bell()?.overdue().into_iter().map(late).collect())
    }

    /// Waits, with the interpreter released, until a ring of the bell is unanswered for `age` seconds: (ring, seconds).
    /// With `ring`: until that one is, or was answered, (0, seconds that took). (-1, 0): the server has ended. Any thread,
    /// one at a time.
    #[pyo3(signature = (age, ring=0, /))]
    fn blocked(&self, py: Python<'_>, age: f64, ring: u64) -> PyResult<(i64, f64)> {
        if age.is_nan() || age < 0.0 {
            return Err(PyValueError::new_err("age must be a number of seconds"));
        }
        let bell = self.bell()?;
        let age = Duration::try_from_secs_f64(age).unwrap_or(Duration::MAX);
        Ok(match py.detach(|| bell.blocked(age, ring, || self.reactor.is_busy())) {
            // Asked again, since the interpreter may have been long in coming back.
            Look::Unanswered(ring, _) => (i64::try_from(ring).unwrap_or(i64::MAX), bell.age_of(ring).as_secs_f64()),
            Look::Answered(took) => (0, took.as_secs_f64()),
            Look::Ended => (-1, 0.0),
        })
    }

    /// While requests are carried and the bell is silent, `blocked` rings it this often; 0: never. Any thread.
    #[pyo3(signature = (seconds, /))]
    fn ping_every(&self, seconds: f64) -> PyResult<()> {
        let time = Duration::try_from_secs_f64(seconds)
            .map_err(|_| PyValueError::new_err("seconds must be a number that is not negative"))?;
        self.bell()?.ping_every(time);
        Ok(())
    }

    /// Counts the requests that carriers began and ended. Any thread.
    fn progress(&self) -> PyResult<u64> {
        Ok(self.bell()?.progress())
    }

    /// Logs a line, "warning" or "error", without waiting for `logging`. Any thread.
    #[pyo3(signature = (level, text, /))]
    fn log(&self, level: &str, text: &str) -> PyResult<()> {
        let level = match level {
            "warning" => Level::Warning,
            "error" => Level::Error,
            _ => return Err(PyValueError::new_err("level must be \"warning\" or \"error\"")),
        };
        self.application.log(level, text);
        Ok(())
    }

    /// In a forked child: from now on nothing here does anything.
    fn forget(&self) -> PyResult<()> {
        self.bell()?.forget();
        Ok(())
    }
}

fn late(overdue: Overdue) -> Late {
    let outcome = overdue::told(overdue.outcome);
    (overdue.post, overdue.serial, overdue.request, overdue.since.elapsed().as_secs_f64(), outcome)
}

fn references_to(object: &Bound<'_, PyAny>) -> ffi::Py_ssize_t {
    // SAFETY: reads the count of a live object.
    unsafe { ffi::Py_REFCNT(object.as_ptr()) }
}

/// True when nobody can tell a greenlet from a new one: no more than `references` refer to it (who keeps it, waits for it,
/// or has a timer on it is one more), none weakly (`gevent.local` does), and it has no attributes.
fn is_as_new(greenlet: &Bound<'_, PyAny>, references: ffi::Py_ssize_t) -> bool {
    references_to(greenlet) <= references
        && !has_place(greenlet, Place::Weak)
        && !has_place(greenlet, Place::Attributes)
}

#[derive(Clone, Copy)]
enum Place {
    /// The list of weak references to an object.
    Weak,
    /// Its `__dict__`.
    Attributes,
}

/// True when something is in a place of an object that most do without. The type says where the place is.
fn has_place(object: &Bound<'_, PyAny>, place: Place) -> bool {
    // SAFETY: a live object has a type, whose fields may be read. An offset above 0 is that of a pointer inside the object,
    // null or to the first weak reference, or to a dict.
    unsafe {
        let pointer = object.as_ptr();
        let kind = ffi::Py_TYPE(pointer);
        let offset = match place {
            Place::Weak => (*kind).tp_weaklistoffset,
            Place::Attributes => (*kind).tp_dictoffset,
        };
        if offset <= 0 {
            // Managed in another way, or not at all; greenlets have both.
            return true;
        }
        let found = *pointer.cast::<u8>().offset(offset).cast::<*mut ffi::PyObject>();
        match place {
            Place::Weak => !found.is_null(),
            Place::Attributes => !found.is_null() && ffi::PyDict_Size(found) != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// Objects of a type with the places that a greenlet has: a function's are at fixed offsets, too.
    fn object(py: Python<'_>) -> Bound<'_, PyAny> {
        py.eval(c"lambda: 1", None, None).unwrap()
    }

    #[test]
    fn what_is_kept_or_stored_shows() {
        Python::attach(|py| {
            let object = object(py);
            let references = references_to(&object);
            assert!(is_as_new(&object, references));

            let kept = object.clone();
            assert!(!is_as_new(&object, references));
            drop(kept);

            let weak = py.import("weakref").unwrap().call_method1("ref", (&object,)).unwrap();
            assert!(!is_as_new(&object, references));
            drop(weak);

            object.setattr("name", 1).unwrap();
            assert!(!is_as_new(&object, references));
            object.delattr("name").unwrap();
            assert!(is_as_new(&object, references));
        });
    }
}
