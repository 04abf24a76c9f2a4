//! `GreenletRunner`: a server whose requests run in the greenlets of one thread, as `tailrace/greenlets` drives it.
//!
//! The thread of gevent's hub, called the greenlet thread, calls everything here, unless a method says "any thread".
//! Nothing blocks but [`GreenletRunner::blocked`], and nothing switches to another greenlet but the application's code
//! under [`GreenletRunner::run_requests`].

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use tailrace_observe::level::Level;
use tailrace_os::{clock, usage};
use tailrace_server::{Application, Greenlets, Look, Overdue, Server};

use crate::ffi::{references, thread};
use crate::python::exceptions::os_error;
use crate::python::forks::{self, used_in_child};
use crate::python::memory;
use crate::runtime::deadlines;
use crate::runtime::handler::PythonHandler;
use crate::runtime::pausing;
use crate::runtime::scoreboard::request_dict;

/// A request past its deadline: runner slot, serial, request, seconds, outcome.
type Late = (usize, u64, String, f64, &'static str);

/// A request whose client has left: runner slot, serial, whether it is to be cancelled.
type Leaving = (usize, u64, bool);

/// Tickets that come back, requests past their deadline, those whose client has left, whether the server has ended.
type Wakeups = (Vec<u64>, Vec<Late>, Vec<Leaving>, bool);

/// A server whose requests run in greenlets.
#[pyclass(frozen, name = "GreenletRunner", module = "tailrace._tailrace")]
pub(crate) struct GreenletRunner {
    server: Arc<Server>,
    greenlets: Arc<Greenlets>,
    handler: Arc<PythonHandler>,
    /// The greenlet thread, as Python numbers it.
    thread: u64,
    started: AtomicBool,
}

impl GreenletRunner {
    /// The calling thread becomes the greenlet thread.
    ///
    /// # Errors
    /// `RuntimeError` when another thread is, or requests do not run in greenlets.
    pub(crate) fn new(pause: Bound<'_, PyAny>, server: Arc<Server>, handler: Arc<PythonHandler>) -> PyResult<Self> {
        let Some(greenlets) = server.greenlets().cloned() else {
            return Err(PyRuntimeError::new_err("the executor is not \"greenlets\": start() or run_here() serves"));
        };
        if !greenlets.wakeup().try_claim() {
            return Err(PyRuntimeError::new_err("the server has a greenlet runner already"));
        }
        handler.executor().prepare(pause.py())?;
        pausing::pause_here(pause.unbind());
        Ok(Self { server, greenlets, handler, thread: thread::ident(), started: AtomicBool::new(false) })
    }

    /// `None` in a child that the application has forked: its only thread is the one that forked, and a thread of the
    /// parent may have held any lock of the core at that moment. Python reaches the core's greenlets through here alone,
    /// and a child has no thread of the core. So the core itself looks for forks only where a request's own calls end,
    /// in the wake-ups.
    fn greenlets(&self) -> Option<&Arc<Greenlets>> {
        (!self.server.is_forked_child()).then_some(&self.greenlets)
    }
}

#[pymethods]
impl GreenletRunner {
    /// explain: answers where the worker greenlet of a runner slot is, as lines for the log of slow requests. Called on
    /// another thread.
    #[pyo3(signature = (explain, /))]
    fn explain_by(&self, explain: Bound<'_, PyAny>) {
        self.handler.executor().explain_by(explain.unbind());
    }

    /// Starts the I/O thread and returns. Raises OSError.
    fn start(&self) -> PyResult<()> {
        if self.server.is_forked_child() {
            return Err(used_in_child("the server"));
        }
        if self.started.swap(true, Ordering::AcqRel) {
            return Err(PyRuntimeError::new_err("the server has already been started"));
        }
        memory::start().map_err(os_error)?;
        let server = self.server.clone();
        std::thread::Builder::new().name(String::from("tailrace-io")).spawn(move || server.run()).map_err(os_error)?;
        Ok(())
    }

    /// The wakeup: a descriptor that is readable when there are requests or `take` has something to return.
    fn fileno(&self) -> PyResult<i32> {
        let descriptor = self.greenlets().and_then(|greenlets| greenlets.wakeup().descriptor());
        Ok(descriptor.ok_or_else(|| used_in_child("the server's greenlet runner"))?.as_raw_fd())
    }

    /// Answers the wake-up; the next `wants_greenlet` begins a slice of time for requests. Returns the tickets whose
    /// greenlets may continue, the requests past their deadline, those whose client has left, and whether the server has
    /// ended, which is returned once and last; None: there are only requests.
    fn take(&self) -> Option<Wakeups> {
        let wakeups = self.greenlets()?.take_wakeups()?;
        let late = wakeups.overdue.into_iter().map(late).collect();
        let leaving = wakeups.disconnected.into_iter().map(|each| (each.slot, each.serial, each.is_cancelled));
        Some((wakeups.tickets, late, leaving.collect(), wakeups.ended))
    }

    /// What is to be called because the client of this request has left.
    #[pyo3(signature = (slot, serial, /))]
    fn subscriptions(&self, py: Python<'_>, slot: usize, serial: u64) -> Vec<Py<PyAny>> {
        self.handler.subscriptions().of(py, (slot, serial))
    }

    /// Makes that descriptor readable: `take` is called again. Any thread.
    fn wake(&self) {
        if let Some(greenlets) = self.greenlets() {
            greenlets.wakeup().wake();
        }
    }

    /// Whether to switch to a worker greenlet: requests wait, another one may run, and the slice is not over (if it is,
    /// the greenlet thread is woken again).
    fn wants_greenlet(&self) -> bool {
        self.greenlets().is_some_and(|greenlets| greenlets.wants_worker())
    }

    /// A runner slot for a new worker greenlet; None: there are no more.
    fn take_slot(&self) -> Option<usize> {
        self.greenlets()?.take_slot()
    }

    /// Runs requests in the calling greenlet, `runner`, while there are any and `is_as_new` holds for it. False: the
    /// greenlet must end, because GreenletExit went through the application, or because of an `interruption`. Does not
    /// raise. With a new greenlet for each request, an empty application would reach 0.45 of its rate, and a Flask
    /// application 0.76.
    #[pyo3(signature = (slot, runner, /))]
    fn run_requests(&self, py: Python<'_>, slot: usize, runner: &Bound<'_, PyAny>) -> bool {
        let (Some(greenlets), references) = (self.greenlets(), references::count(runner)) else { return true };
        let Some(mut turn) = greenlets.turn(slot) else { return true };
        // `references` includes those of the code that has switched to this greenlet. Once the hub has run meanwhile,
        // that code may hold them no longer, and the number cannot be compared: the greenlet parks after its request,
        // and the hub counts the references of the parked one.
        let turns = greenlets.turns();
        let address = runner.as_ptr().addr();
        usage::begin_greenlet(address, clock::now());
        let flow =
            self.handler.run_requests(py, &mut turn, || turns == greenlets.turns() && is_as_new(runner, references));
        usage::end_greenlet(address);
        flow.is_continue()
    }

    /// The KeyboardInterrupt that went through the application and made `run_requests` return False; returned once. The
    /// client of its request got 500.
    fn interruption(&self) -> Option<PyErr> {
        self.handler.executor().take_interruption()
    }

    /// The worker greenlet of this runner slot has ended.
    #[pyo3(signature = (slot, /))]
    fn give_slot_back(&self, slot: usize) {
        if let Some(greenlets) = self.greenlets() {
            greenlets.give_slot_back(slot);
        }
    }

    /// Whether a parked worker greenlet is indistinguishable from a new one: there are at most `references` references
    /// to it, no weak ones, and it has no attributes.
    #[pyo3(signature = (runner, references, /))]
    fn is_as_new(&self, runner: &Bound<'_, PyAny>, references: isize) -> bool {
        is_as_new(runner, references)
    }

    /// The requests that worker greenlets run: id, request_id, method, target, client, seconds, slot. Any thread.
    fn in_flight<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let requests = PyList::empty(py);
        for (slot, request) in self.server.in_flight() {
            let dict: Bound<'py, PyDict> = request_dict(py, &request, self.server.query_masking())?;
            dict.set_item("slot", slot)?;
            requests.append(dict)?;
        }
        Ok(requests)
    }

    /// Whether the worker greenlet of a runner slot still runs this request. Any thread.
    #[pyo3(signature = (slot, serial, /))]
    fn is_running(&self, slot: usize, serial: u64) -> bool {
        self.server.runs(slot, serial)
    }

    /// Whether the application may be interrupted in a request: it runs it, and has not entered `close()`. Any thread.
    #[pyo3(signature = (slot, serial, /))]
    fn may_interrupt(&self, slot: usize, serial: u64) -> bool {
        self.server.is_interruptible(slot, serial)
    }

    /// Whether a request may be cancelled because its client has left: `may_interrupt`, and its response has not ended.
    #[pyo3(signature = (slot, serial, /))]
    fn may_cancel(&self, slot: usize, serial: u64) -> bool {
        self.server.is_cancellable(slot, serial)
    }

    /// Raises RequestTimeout in the greenlet thread if it runs this request, which may be interrupted. Any thread.
    #[pyo3(signature = (slot, serial, runner, /))]
    fn interrupt(&self, py: Python<'_>, slot: usize, serial: u64, runner: &Bound<'_, PyAny>) -> PyResult<bool> {
        // The interpreter is not released between the check and the exception, so the greenlet thread cannot switch
        // meanwhile. The greenlet that runs is the one whose `gr_frame` is None.
        let runs = self.server.is_interruptible(slot, serial) && runner.getattr("gr_frame")?.is_none();
        if runs {
            deadlines::raise(py, self.thread);
        }
        Ok(runs)
    }

    /// The requests past their deadline that `take` has not returned yet. Any thread.
    fn overdue(&self) -> Vec<Late> {
        self.greenlets()
            .map(|greenlets| greenlets.wakeup().overdue().into_iter().map(late).collect())
            .unwrap_or_default()
    }

    /// Waits, with the interpreter released, until a wake-up is unanswered for `age` seconds: (wake-up, seconds).
    /// With `wakeup`: until that one is, or was answered, (0, seconds that took). (-1, 0): the server has ended. Any
    /// thread, one at a time.
    #[pyo3(signature = (age, wakeup=0, /))]
    fn blocked(&self, py: Python<'_>, age: f64, wakeup: u64) -> PyResult<(i64, f64)> {
        if age.is_nan() || age < 0.0 {
            return Err(PyValueError::new_err("age must be a number of seconds"));
        }
        let Some(greenlets) = self.greenlets() else { return Ok((-1, 0.0)) };
        let age = Duration::try_from_secs_f64(age).unwrap_or(Duration::MAX);
        Ok(match py.detach(|| greenlets.wakeup().watch(age, wakeup, || greenlets.is_busy())) {
            // Measured again, because obtaining the interpreter may have taken long.
            Look::Unanswered(sent, _) => {
                (i64::try_from(sent).unwrap_or(i64::MAX), greenlets.wakeup().age_of(sent).as_secs_f64())
            }
            Look::Answered(took) => (0, took.as_secs_f64()),
            Look::Ended => (-1, 0.0),
        })
    }

    /// While requests run and no wake-up is unanswered, `blocked` sends one this often; 0: never. Any thread.
    #[pyo3(signature = (seconds, /))]
    fn ping_every(&self, seconds: f64) -> PyResult<()> {
        let time = Duration::try_from_secs_f64(seconds)
            .map_err(|_| PyValueError::new_err("seconds must be a number that is not negative"))?;
        if let Some(greenlets) = self.greenlets() {
            greenlets.wakeup().ping_every(time);
        }
        Ok(())
    }

    /// Counts the requests that worker greenlets began and ended. Any thread.
    fn progress(&self) -> u64 {
        self.greenlets.progress()
    }

    /// Logs a line, "warning" or "error", without waiting for `logging`. Any thread.
    #[pyo3(signature = (level, text, /))]
    fn log(&self, level: &str, text: &str) -> PyResult<()> {
        let level = match level {
            "warning" => Level::Warning,
            "error" => Level::Error,
            _ => return Err(PyValueError::new_err("level must be \"warning\" or \"error\"")),
        };
        self.handler.log(level, text);
        Ok(())
    }

    /// Call it first in a forked child, with the greenlet that forked. When the application returns in that greenlet,
    /// the child ends. All other methods do nothing in the child.
    #[staticmethod]
    #[pyo3(signature = (greenlet, /))]
    fn forked_in(greenlet: Py<PyAny>) {
        forks::forked_in(greenlet);
    }
}

/// Notes that the calling thread has switched to another greenlet, the second of `greenlets`. For `greenlet.settrace`.
#[pyfunction]
#[pyo3(signature = (_event, greenlets, /))]
pub(crate) fn note_switch(_event: &Bound<'_, PyAny>, greenlets: &Bound<'_, PyTuple>) {
    if let Ok(target) = greenlets.get_borrowed_item(1) {
        usage::switch_greenlet(target.as_ptr().addr(), clock::now());
    }
}

fn late(overdue: Overdue) -> Late {
    let outcome = deadlines::outcome_text(overdue.time_out);
    (overdue.slot, overdue.serial, overdue.request, clock::since(overdue.since).as_secs_f64(), outcome)
}

/// True if a greenlet is indistinguishable from a new one: there are at most `references` references to it (code that
/// keeps it, waits for it, or has a timer for it adds one), no weak ones (`gevent.local` creates one), and it has no
/// attributes.
fn is_as_new(greenlet: &Bound<'_, PyAny>, references: isize) -> bool {
    references::count(greenlet) <= references
        && !references::has_weak(greenlet)
        && !references::has_attributes(greenlet)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// Objects of a type with the fields of a greenlet: those of a function are at fixed offsets, too.
    fn object(py: Python<'_>) -> Bound<'_, PyAny> {
        py.eval(c"lambda: 1", None, None).unwrap()
    }

    #[test]
    fn what_is_kept_or_stored_shows() {
        Python::attach(|py| {
            let object = object(py);
            let references = references::count(&object);
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
