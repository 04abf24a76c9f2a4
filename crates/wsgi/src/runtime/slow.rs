//! Slow requests (`--slow-request-log`): logs each while it runs, with the stack of its thread.
//!
//! The I/O side must not wait for the interpreter, so two threads do this work, which are started with the first such
//! request: one takes the stack, and the other waits for it for a limited time. If the slow call holds the interpreter,
//! no stack can be taken and `logging` cannot be used: the line is written to standard error.
//!
//! At most [`LINES`] requests per second are logged. A line counts the others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use tailrace_observe::allowance::Allowance;
use tailrace_observe::level::Level;
use tailrace_os::clock;
use tailrace_os::panics::{catch, write_stderr};
use tailrace_server::{Server, Slow};

use crate::python::late_thread::LateThread;
use crate::python::log::LogQueue;
use crate::python::memory;
use crate::runtime::executor::PythonExecutor;

/// How long to wait for a stack.
const PATIENCE: Duration = Duration::from_millis(250);
/// Maximum number of requests that are logged per second.
const LINES: u32 = 10;

/// A request whose stack is wanted.
struct Question {
    slow: Slow,
    /// Where the stack is sent; `None`: the request has just ended.
    reply: Sender<Option<String>>,
    /// Set once the thread that takes stacks has the interpreter.
    has_interpreter: Arc<AtomicBool>,
}

pub(crate) struct SlowRequests {
    lines: Arc<LogQueue>,
    thread: LateThread<Sender<Slow>>,
}

impl SlowRequests {
    pub(crate) fn new(lines: Arc<LogQueue>) -> Self {
        Self { lines, thread: LateThread::default() }
    }

    /// From any thread; does not wait.
    pub(crate) fn report(&self, slow: Slow, server: &Weak<Server>, executor: &Arc<dyn PythonExecutor>) {
        let start = || {
            let (sender, requests) = channel();
            let (questions, asked) = channel();
            let (lines, server, executor) = (self.lines.clone(), server.clone(), executor.clone());
            // If the second thread cannot be started, the first one exits.
            thread::Builder::new()
                .name(String::from("tailrace-stacks"))
                .spawn(move || take_stacks(&asked, &server, &*executor))?;
            thread::Builder::new()
                .name(String::from("tailrace-slow"))
                .spawn(move || log_each(&requests, &questions, &lines))?;
            Ok(sender)
        };
        let without = "slow requests are not logged (--slow-request-log)";
        let refused = |line: &str| self.lines.send(Level::Error, line);
        let _ = self.thread.send(start, |sender| sender.send(slow), without, refused);
    }

    /// Ends the threads.
    pub(crate) fn end(&self) {
        self.thread.end();
    }
}

fn log_each(requests: &Receiver<Slow>, questions: &Sender<Question>, lines: &LogQueue) {
    let mut allowance = Allowance::new(LINES);
    loop {
        let received = match allowance.wait(clock::now()) {
            Some(wait) => requests.recv_timeout(wait),
            None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let now = clock::now();
        let left_out = allowance.left_out(now);
        if left_out > 0 {
            let text =
                format!("slow: {left_out} further requests have become slow; at most {LINES} a second are logged");
            lines.send(Level::Warning, &text);
        }
        match received {
            Ok(slow) if allowance.may_log(now) => log_one(slow, questions, lines),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn log_one(slow: Slow, questions: &Sender<Question>, lines: &LogQueue) {
    let (reply, stack) = channel();
    let text = slow.to_string();
    let has_interpreter = Arc::new(AtomicBool::new(false));
    let _ = questions.send(Question { slow, reply, has_interpreter: has_interpreter.clone() });
    match stack.recv_timeout(PATIENCE) {
        Ok(Some(stack)) => lines.send(Level::Warning, &format!("{text}, which is at\n{stack}")),
        Ok(None) => lines.send(Level::Warning, &format!("{text}; it has just ended")),
        Err(RecvTimeoutError::Timeout) if !has_interpreter.load(Ordering::Acquire) => {
            write_stderr(&format!("{text}; a thread holds the interpreter, so that no stack can be taken"));
        }
        Err(RecvTimeoutError::Timeout) => {
            lines.send(Level::Warning, &format!("{text}; its stack was not taken within {} ms", PATIENCE.as_millis()));
        }
        // The interpreter is being finalized.
        Err(RecvTimeoutError::Disconnected) => lines.send(Level::Warning, &format!("{text}; its stack is not known")),
    }
}

fn take_stacks(questions: &Receiver<Question>, server: &Weak<Server>, executor: &dyn PythonExecutor) {
    while let Ok(Question { slow, reply, has_interpreter }) = questions.recv() {
        let take = |py: Python<'_>| {
            has_interpreter.store(true, Ordering::Release);
            let runs = server.upgrade().is_some_and(|server| server.runs(slow.slot, slow.serial));
            runs.then(|| executor.stack_of(py, &slow))
        };
        memory::await_attaching();
        match catch(|| Python::try_attach(take)) {
            Ok(Some(stack)) => _ = reply.send(stack),
            // The interpreter is being finalized.
            Ok(None) => return,
            Err(panic) => _ = reply.send(Some(format!("  (unknown, because of a panic: {panic})"))),
        }
    }
}
