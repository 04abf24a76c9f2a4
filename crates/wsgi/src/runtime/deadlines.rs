//! Requests past their deadline: raises `RequestTimeout` in their threads, and logs the stacks of these threads.
//!
//! The I/O side sends 504 to the client first. It must not wait for the interpreter, so another thread, which is
//! started with the first such request, does the rest. While the request continues, that thread raises the exception
//! again, with growing pauses: code that catches every exception may have caught it, or a call that blocked may have
//! returned only now. Both that thread and the thread of the request hold the interpreter when they check which request
//! is running, so the exception never reaches the next request. The thread never waits for `logging`, whose locks a
//! request may hold.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tailrace_observe::level::Level;
use tailrace_os::clock;
use tailrace_os::panics::catch;
use tailrace_server::{Overdue, Server, TimeOut};

use crate::ffi;
use crate::python::exceptions::RequestTimeout;
use crate::python::late_thread::LateThread;
use crate::python::log::LogQueue;
use crate::python::memory;
use crate::python::stack;

/// The time between the first two attempts to end a request; each further one is twice as long.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(32);

/// Hands overdue requests to the thread that ends them.
pub(crate) struct DeadlineThread {
    lines: Arc<LogQueue>,
    thread: LateThread<Sender<Overdue>>,
}

impl DeadlineThread {
    pub(crate) fn new(lines: Arc<LogQueue>) -> Self {
        Self { lines, thread: LateThread::default() }
    }

    /// From any thread; does not wait.
    pub(crate) fn send(&self, overdue: Overdue, server: Weak<Server>) {
        let start = || {
            let (sender, receiver) = channel();
            let lines = self.lines.clone();
            thread::Builder::new()
                .name(String::from("tailrace-deadline"))
                .spawn(move || end_requests(&receiver, &server, &lines))?;
            Ok(sender)
        };
        let without = "requests past their deadline get their 504 and continue to run";
        let refused = |line: &str| self.lines.send(Level::Error, line);
        let _ = self.thread.send(start, |sender| sender.send(overdue), without, refused);
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.thread.end();
    }
}

/// A request that is still running, and the time of the next attempt.
struct GoingOn {
    overdue: Overdue,
    at: Instant,
    pause: Duration,
}

fn end_requests(receiver: &Receiver<Overdue>, server: &Weak<Server>, lines: &LogQueue) {
    let mut going_on: Vec<GoingOn> = Vec::new();
    loop {
        let fresh = match going_on.iter().map(|each| each.at).min() {
            None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => receiver.recv_timeout(at.saturating_duration_since(clock::now())),
        };
        let Some(server) = server.upgrade() else { return };
        let fresh = match fresh {
            Ok(overdue) => Some(overdue),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let act = |py: Python<'_>| {
            // The thread of this request may never leave the application: requests that wait need another one.
            server.keep_a_spare_thread();
            let now = clock::now();
            if let Some(overdue) = fresh {
                begin(py, &server, &overdue, lines);
                going_on.push(GoingOn { overdue, at: now + AGAIN, pause: AGAIN });
            }
            going_on.retain(|each| server.runs(each.overdue.slot, each.overdue.serial));
            for each in going_on.iter_mut().filter(|each| each.at <= now) {
                interrupt(py, &server, &each.overdue);
                each.pause = (each.pause * 2).min(LONGEST);
                each.at = now + each.pause;
            }
        };
        memory::await_attaching();
        match catch(|| Python::try_attach(act)) {
            Ok(Some(())) => {}
            Ok(None) => return,
            Err(panic) => {
                let text = format!("a panic while requests past their deadline were ended; it is tried again: {panic}");
                lines.send(Level::Error, &text);
                // Each is tried again. One that causes the panic is tried at growing intervals.
                for each in &mut going_on {
                    each.pause = (each.pause * 2).min(LONGEST);
                    each.at = clock::now() + each.pause;
                }
            }
        }
    }
}

/// Logs the stack of a request's thread, and raises the exception in it.
fn begin(py: Python<'_>, server: &Server, overdue: &Overdue, lines: &LogQueue) {
    let outcome = outcome_text(overdue.time_out);
    let seconds = clock::since(overdue.since).as_secs_f64();
    let mut message =
        format!("{}: past its deadline after {seconds:.3} s in the application; {outcome}", overdue.request);
    if server.runs(overdue.slot, overdue.serial) {
        // The stack is taken before the exception is raised; the source lines are read afterwards.
        let stack = stack::of_thread(py, overdue.thread);
        interrupt(py, server, overdue);
        message.push_str("; RequestTimeout is raised in its thread, which is at\n");
        message.push_str(&stack::shown(stack));
    } else {
        message.push_str("; it has just ended");
    }
    lines.send(Level::Error, &message);
}

/// The outcome of the response, for a log line.
pub(crate) fn outcome_text(outcome: TimeOut) -> &'static str {
    match outcome {
        TimeOut::Answered => "the response is 504",
        TimeOut::BrokenOff => "the response was aborted",
        TimeOut::Over => "the response has ended, but the application still runs",
    }
}

/// Raises the exception in the thread of a request, if the application still runs it.
fn interrupt(py: Python<'_>, server: &Server, overdue: &Overdue) {
    if server.is_interruptible(overdue.slot, overdue.serial) {
        raise(py, overdue.thread);
    }
}

/// Raises the exception in a thread, at the next place where it can.
pub(crate) fn raise(py: Python<'_>, thread: u64) {
    ffi::thread::raise_in(thread, &py.get_type::<RequestTimeout>());
}
