//! Requests past their deadline: says where their threads are, and raises `RequestTimeout` in them.
//!
//! The I/O side has answered the client by then and must not wait for the interpreter, so this is a thread's work of its
//! own, started with the first such request. It raises again once a second while a request goes on: the exception may
//! have met code that catches everything, or a call that has only now returned. Both it and the thread of the request hold
//! the interpreter when they look at who carries what, so the exception never reaches the next request.

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use penstock_server::handler::{Level, Overdue};
use penstock_server::reactor::Reactor;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::RequestTimeout;
use crate::errors;

/// Between two attempts to end a request.
const AGAIN: Duration = Duration::from_secs(1);

/// Hands requests that are overdue to the thread that ends them.
#[derive(Default)]
pub(crate) struct Overseer {
    sender: OnceLock<Sender<Overdue>>,
}

impl Overseer {
    /// From any thread; does not wait.
    pub(crate) fn tell(&self, overdue: Overdue, reactor: Weak<Reactor>) {
        let sender = self.sender.get_or_init(|| {
            let (sender, receiver) = channel();
            // Without the thread the receiver is gone: the client has been answered, and that must do.
            let _ = thread::Builder::new()
                .name(String::from("penstock-deadline"))
                .spawn(move || oversee(&receiver, &reactor));
            sender
        });
        let _ = sender.send(overdue);
    }
}

fn oversee(receiver: &Receiver<Overdue>, reactor: &Weak<Reactor>) {
    let mut going_on: Vec<Overdue> = Vec::new();
    loop {
        let fresh = if going_on.is_empty() {
            receiver.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            receiver.recv_timeout(AGAIN)
        };
        let Some(reactor) = reactor.upgrade() else { return };
        let attached = match fresh {
            Ok(overdue) => {
                let attached = Python::try_attach(|py| {
                    end(py, &reactor, &overdue, true);
                    reactor.keep_a_spare_thread();
                });
                going_on.push(overdue);
                attached
            }
            Err(RecvTimeoutError::Timeout) => Python::try_attach(|py| {
                going_on.retain(|overdue| reactor.is_carrying(overdue.post, overdue.serial));
                for overdue in &going_on {
                    end(py, &reactor, overdue, false);
                }
            }),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if attached.is_none() {
            return;
        }
    }
}

/// Raises the exception in the thread of a request, if it still is at it; `tell`: and logs where.
fn end(py: Python<'_>, reactor: &Arc<Reactor>, overdue: &Overdue, tell: bool) {
    let goes_on = reactor.is_carrying(overdue.post, overdue.serial);
    if tell {
        let stack = if goes_on {
            stack_of(py, overdue.thread).unwrap_or_else(|error| format!("  (unknown: {error})\n"))
        } else {
            String::from("  its end\n")
        };
        let outcome = if overdue.answered { "the client was answered 504" } else { "its response was broken off" };
        let message = format!(
            "{}: past its deadline after {:.3} s in the application; {outcome}, and RequestTimeout is raised in its thread, \
             which is at\n{}",
            overdue.request,
            overdue.since.elapsed().as_secs_f64(),
            stack.trim_end(),
        );
        errors::log(py, Level::Error, &message, None);
    }
    // Again, since logging may have let the interpreter go.
    if reactor.is_carrying(overdue.post, overdue.serial) {
        set(overdue.thread, py.get_type::<RequestTimeout>().as_ptr());
    }
}

/// Takes back an exception that the calling thread has not met yet.
pub(crate) fn forgive(py: Python<'_>, thread: u64) {
    let _ = py;
    set(thread, std::ptr::null_mut());
}

fn set(thread: u64, exception: *mut ffi::PyObject) {
    // The type of the parameter was signed once; the bits are what counts.
    #[allow(clippy::cast_possible_wrap)]
    let thread = thread as std::os::raw::c_long;
    // SAFETY: attached, as both callers are; takes a reference of its own to the exception, and null takes back.
    unsafe { ffi::PyThreadState_SetAsyncExc(thread, exception) };
}

/// Where a thread is, as a traceback shows it.
fn stack_of(py: Python<'_>, thread: u64) -> PyResult<String> {
    let frames = py.import("sys")?.call_method0("_current_frames")?;
    let frame = frames.call_method1("get", (thread,))?;
    if frame.is_none() {
        return Ok(String::from("  (no Python code)\n"));
    }
    let lines: Vec<String> = py.import("traceback")?.call_method1("format_stack", (frame,))?.extract()?;
    Ok(lines.concat())
}
