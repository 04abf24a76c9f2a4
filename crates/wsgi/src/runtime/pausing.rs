//! How a greenlet that runs a request waits: it lets the other greenlets of its thread run.
//!
//! It calls a Python callable, `pause(ticket, seconds)`, which switches to other greenlets and returns when the ticket
//! is returned. Meanwhile any Rust code may run on the same thread, above the frames of the waiting greenlet. So a
//! caller of `pause` must hold no lock and no borrow, and must not have released the interpreter.

use std::cell::RefCell;
use std::mem::ManuallyDrop;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tailrace_os::clock;
use tailrace_server::{Exchange, Room, Sent, next_patience};

use crate::call::shared_body::{OtherReader, PendingRead};
use crate::call::waiting::{self, SLICE, Waits};
use crate::ffi::thread;
use crate::python::ticket::ticket;

thread_local! {
    // Not dropped at the end of the thread: the interpreter may have been finalized by then.
    static PAUSE: RefCell<ManuallyDrop<Option<Py<PyAny>>>> = const { RefCell::new(ManuallyDrop::new(None)) };
}

/// From now on, requests on the calling thread run in greenlets, which wait by calling this callable.
pub(crate) fn pause_here(pause: Py<PyAny>) {
    let before = PAUSE.replace(ManuallyDrop::new(Some(pause)));
    // Outside the cell, because the drop may run Python code.
    drop(ManuallyDrop::into_inner(before));
    waiting::set_here(&Pausing);
}

/// Waits until the ticket is returned, for at most `seconds`. True: it was returned.
///
/// # Errors
/// The exception that was thrown into the greenlet meanwhile.
#[inline(never)]
fn pause(py: Python<'_>, ticket: u64, seconds: Option<f64>) -> PyResult<bool> {
    debug_assert!(thread::is_attached(), "paused without the interpreter");
    debug_assert!(tailrace_server::may_switch(), "paused with the thread's read buffer in use");
    let pause = PAUSE.with_borrow(|pause| pause.as_ref().map(|pause| pause.clone_ref(py)));
    let pause = pause.ok_or_else(|| PyRuntimeError::new_err("no greenlets of this thread run requests"))?;
    pause.bind(py).call1((ticket, seconds))?.extract()
}

struct Pausing;

impl Waits for Pausing {
    /// The server writes at most 128 KiB on this thread, which takes less time than releasing and obtaining the
    /// interpreter.
    fn keeps_interpreter(&self, exchange: &Exchange) -> bool {
        exchange.response().is_on_ticket_thread()
    }

    fn wait_for_room(&self, py: Python<'_>, exchange: &mut Exchange) -> PyResult<Sent> {
        if !exchange.response().is_on_ticket_thread() {
            // The request belongs to another server, whose requests do not run in greenlets of this thread.
            return Ok(waiting::block_for_room(py, exchange));
        }
        let from = clock::now();
        let sent = wait_for_room(py, exchange);
        exchange.response_mut().add_wait(clock::since(from));
        sent
    }

    fn read_body<'py>(&self, py: Python<'py>, reading: PendingRead<'_>) -> PyResult<Bound<'py, PyBytes>> {
        reading
            .in_steps(py, SLICE, |next| pause(py, next.ticket, next.limit.map(|limit| limit.as_secs_f64())).map(drop))
    }

    /// Fails, since the other reader may be a greenlet of this thread, which could not run while this one waits.
    fn check_other_reader(&self, other: OtherReader) -> PyResult<()> {
        let both = match other {
            OtherReader::Blocked => "a thread and a greenlet",
            OtherReader::Paused => "two greenlets",
        };
        Err(PyRuntimeError::new_err(format!(
            "{both} read wsgi.input of the same request at the same time; let one of them read it"
        )))
    }

    fn let_others_run(&self, py: Python<'_>, resume: Option<&dyn Fn(u64) -> bool>) -> PyResult<()> {
        let ticket = ticket();
        match resume {
            // The ticket comes back through the wakeup descriptor. By then, gevent's loop has completed one round, and
            // every greenlet that was ready has run. `gevent.sleep(0)` may return fifty times before the loop polls for
            // others.
            Some(resume) if resume(ticket) => pause(py, ticket, None).map(drop),
            Some(_) => Ok(()),
            // Nothing returns this ticket; the timer of the pause ends the wait.
            None => pause(py, ticket, Some(0.0)).map(drop),
        }
    }
}

fn wait_for_room(py: Python<'_>, exchange: &mut Exchange) -> PyResult<Sent> {
    let _waiting = exchange.response().count_waiting();
    let mut patience = exchange.response().patience();
    loop {
        let ticket = ticket();
        match exchange.response_mut().ask_for_room(ticket) {
            Room::Now => return Ok(Sent::Taken),
            Room::Never => return Ok(Sent::Gone),
            Room::Later => {}
        }
        if patience.is_zero() || !pause(py, ticket, Some(patience.as_secs_f64()))? {
            exchange.response().spill_elsewhere();
            patience = next_patience(patience);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use pyo3::types::IntoPyDict;

    use super::*;

    #[test]
    fn only_the_thread_that_said_so_pauses_and_in_its_callable() {
        Python::attach(|py| {
            std::thread::scope(|scope| {
                py.detach(|| {
                    let thread = scope.spawn(|| {
                        Python::attach(|py| {
                            let called = c"lambda ticket, seconds: (ticket, seconds) == (7, 1.5)";
                            pause_here(py.eval(called, None, None).unwrap().unbind());
                            assert!(pause(py, 7, Some(1.5)).unwrap());
                            assert!(!pause(py, 7, None).unwrap());
                            assert!(waiting::here().check_other_reader(OtherReader::Paused).is_err());
                        });
                    });
                    thread.join().unwrap();
                });
            });
            assert!(waiting::here().check_other_reader(OtherReader::Paused).is_ok());
            assert!(pause(py, 7, None).is_err());
        });
    }

    #[test]
    fn others_run_until_the_ticket_comes_back_and_not_at_all_when_it_will_not() {
        Python::attach(|py| {
            let calls = py.eval(c"[]", None, None).unwrap();
            let locals = [("calls", &calls)].into_py_dict(py).unwrap();
            let pause = py.eval(c"lambda *call: calls.append(call) or True", Some(&locals), None).unwrap();
            pause_here(pause.unbind());
            waiting::here().let_others_run(py, Some(&|_| true)).unwrap();
            waiting::here().let_others_run(py, Some(&|_| false)).unwrap();
            waiting::here().let_others_run(py, None).unwrap();
            let seconds: Vec<Option<f64>> =
                calls.extract::<Vec<(u64, Option<f64>)>>().unwrap().into_iter().map(|call| call.1).collect();
            assert_eq!(seconds, [None, Some(0.0)]);
        });
    }

    #[test]
    fn what_is_thrown_into_a_pause_goes_through() {
        Python::attach(|py| {
            pause_here(py.eval(c"lambda *_: 1 / 0", None, None).unwrap().unbind());
            assert!(pause(py, ticket(), None).is_err());
            assert!(waiting::here().let_others_run(py, None).is_err());
        });
    }
}
