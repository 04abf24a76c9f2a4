//! Requests past their deadline: raises `RequestTimeout` in their threads, and says where those are.
//!
//! The I/O side has answered the client by then and must not wait for the interpreter, so this is a thread's work of its
//! own, started with the first such request. It raises again, less and less often, while a request goes on: the exception
//! may have met code that catches everything, or a call that has only now returned. Both it and the thread of the request
//! hold the interpreter when they look at who carries what, so the exception never reaches the next request. It never
//! waits for `logging`, whose locks a request may hold.

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use penstock_server::handler::{Level, Outcome, Overdue};
use penstock_server::reactor::Reactor;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::RequestTimeout;
use crate::errors::Lines;

/// Between the first two attempts to end a request; each further pause is twice as long.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(32);

/// Hands requests that are overdue to the thread that ends them.
pub(crate) struct Overseer {
    lines: Arc<Lines>,
    sender: OnceLock<Sender<Overdue>>,
}

impl Overseer {
    pub(crate) fn new(lines: Arc<Lines>) -> Self {
        Self { lines, sender: OnceLock::new() }
    }

    /// From any thread; does not wait.
    pub(crate) fn tell(&self, overdue: Overdue, reactor: Weak<Reactor>) {
        let sender = self.sender.get_or_init(|| {
            let (sender, receiver) = channel();
            let lines = self.lines.clone();
            // Without the thread the receiver is gone: the client has been answered, and that must do.
            let _ = thread::Builder::new()
                .name(String::from("penstock-deadline"))
                .spawn(move || oversee(&receiver, &reactor, &lines));
            sender
        });
        let _ = sender.send(overdue);
    }
}

/// A request that goes on, and when it is tried again to end it.
struct GoingOn {
    overdue: Overdue,
    at: Instant,
    pause: Duration,
}

fn oversee(receiver: &Receiver<Overdue>, reactor: &Weak<Reactor>, lines: &Lines) {
    let mut going_on: Vec<GoingOn> = Vec::new();
    loop {
        let fresh = match going_on.iter().map(|each| each.at).min() {
            None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => receiver.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        let Some(reactor) = reactor.upgrade() else { return };
        let fresh = match fresh {
            Ok(overdue) => Some(overdue),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let attached = Python::try_attach(|py| {
            // Others wait for the place of the thread.
            reactor.keep_a_spare_thread();
            let now = Instant::now();
            if let Some(overdue) = fresh {
                begin(py, &reactor, &overdue, lines);
                going_on.push(GoingOn { overdue, at: now + AGAIN, pause: AGAIN });
            }
            going_on.retain(|each| reactor.is_carrying(each.overdue.post, each.overdue.serial));
            for each in going_on.iter_mut().filter(|each| each.at <= now) {
                interrupt(py, &reactor, &each.overdue);
                each.pause = (each.pause * 2).min(LONGEST);
                each.at = now + each.pause;
            }
        });
        if attached.is_none() {
            return;
        }
    }
}

/// Says where the thread of a request is, and raises the exception in it.
fn begin(py: Python<'_>, reactor: &Reactor, overdue: &Overdue, lines: &Lines) {
    let outcome = told(overdue.outcome);
    let seconds = overdue.since.elapsed().as_secs_f64();
    let mut message =
        format!("{}: past its deadline after {seconds:.3} s in the application; {outcome}", overdue.request);
    if reactor.is_carrying(overdue.post, overdue.serial) {
        // Where it is, before it is told to leave; the lines of the sources are read afterwards.
        let stack = stack_of(py, overdue.thread);
        interrupt(py, reactor, overdue);
        let stack = stack.and_then(|stack| shown(&stack)).unwrap_or_else(|error| format!("  (unknown: {error})\n"));
        message.push_str("; RequestTimeout is raised in its thread, which is at\n");
        message.push_str(stack.trim_end());
    } else {
        message.push_str("; it has just ended");
    }
    lines.send(Level::Error, &message);
}

/// What became of the response, in words.
pub(crate) fn told(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Answered => "the client was answered 504",
        Outcome::BrokenOff => "its response was broken off",
        Outcome::Over => "its response is over, the application is not",
    }
}

/// Raises the exception in the thread of a request, if the application still is at it.
fn interrupt(py: Python<'_>, reactor: &Reactor, overdue: &Overdue) {
    if reactor.is_interruptible(overdue.post, overdue.serial) {
        raise(py, overdue.thread);
    }
}

/// Raises the exception in a thread, at the next place where it can.
pub(crate) fn raise(py: Python<'_>, thread: u64) {
    set(thread, py.get_type::<RequestTimeout>().as_ptr());
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

/// Where a thread is; `None` where it runs no Python code.
fn stack_of(py: Python<'_>, thread: u64) -> PyResult<Option<Bound<'_, PyAny>>> {
    let frame = py.import("sys")?.call_method0("_current_frames")?.call_method1("get", (thread,))?;
    if frame.is_none() {
        return Ok(None);
    }
    let traceback = py.import("traceback")?;
    let options = PyDict::new(py);
    options.set_item("lookup_lines", false)?;
    let frames = traceback.call_method1("walk_stack", (frame,))?;
    let summary = traceback.getattr("StackSummary")?.call_method("extract", (frames,), Some(&options))?;
    // From the outermost frame, as tracebacks are.
    summary.call_method0("reverse")?;
    Ok(Some(summary))
}

fn shown(stack: &Option<Bound<'_, PyAny>>) -> PyResult<String> {
    let Some(stack) = stack else { return Ok(String::from("  (no Python code)\n")) };
    let lines: Vec<String> = stack.call_method0("format")?.extract()?;
    Ok(lines.concat())
}
