//! Requests that are slow (`--slow`): logs each while it runs, with the stack of its thread.
//!
//! The I/O side must not wait for the interpreter, so two threads do that, which are started with the first such
//! request: one takes the stack, and the other waits for it for a limited time. If a call that holds the interpreter is
//! what is slow, no stack can be taken, and no line goes through `logging`: the line is written to standard error.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use tailrace_server::{Level, Server, Slow, catch, write_stderr};

use crate::python::log::LogQueue;
use crate::runtime::executor::Executor;

/// How long a stack is waited for.
const PATIENCE: Duration = Duration::from_millis(250);

/// A request, and where its stack is sent; `None`: it has just ended.
type Question = (Slow, Sender<Option<String>>);

/// See the module.
pub(crate) struct SlowRequests {
    lines: Arc<LogQueue>,
    sender: OnceLock<Sender<Slow>>,
}

impl SlowRequests {
    pub(crate) fn new(lines: Arc<LogQueue>) -> Self {
        Self { lines, sender: OnceLock::new() }
    }

    /// From any thread; does not wait.
    pub(crate) fn report(&self, slow: Slow, server: &Weak<Server>, executor: &Arc<dyn Executor>) {
        let sender = self.sender.get_or_init(|| {
            let (sender, requests) = channel();
            let (questions, asked) = channel();
            let (lines, server, executor) = (self.lines.clone(), server.clone(), executor.clone());
            // If a thread cannot be started, its receiver is dropped, and nothing is logged, or no stack.
            let _ = thread::Builder::new()
                .name(String::from("tailrace-stacks"))
                .spawn(move || take_stacks(&asked, &server, &*executor));
            let _ = thread::Builder::new()
                .name(String::from("tailrace-slow"))
                .spawn(move || log_each(&requests, &questions, &lines));
            sender
        });
        let _ = sender.send(slow);
    }
}

fn log_each(requests: &Receiver<Slow>, questions: &Sender<Question>, lines: &LogQueue) {
    while let Ok(slow) = requests.recv() {
        let (reply, stack) = channel();
        let text = slow.to_string();
        let _ = questions.send((slow, reply));
        match stack.recv_timeout(PATIENCE) {
            Ok(Some(stack)) => lines.send(Level::Warning, &format!("{text}, which is at\n{stack}")),
            Ok(None) => lines.send(Level::Warning, &format!("{text}; it has just ended")),
            Err(_) => {
                write_stderr(&format!("{text}; a thread holds the interpreter, so that no stack can be taken"));
            }
        }
    }
}

fn take_stacks(questions: &Receiver<Question>, server: &Weak<Server>, executor: &dyn Executor) {
    while let Ok((slow, reply)) = questions.recv() {
        let take = |py: Python<'_>| {
            let runs = server.upgrade().is_some_and(|server| server.runs(slow.slot, slow.serial));
            runs.then(|| executor.stack_of(py, &slow))
        };
        match catch(|| Python::try_attach(take)) {
            Ok(Some(stack)) => _ = reply.send(stack),
            // The interpreter is being finalized.
            Ok(None) => return,
            Err(panic) => _ = reply.send(Some(format!("  (unknown, because of a panic: {panic})"))),
        }
    }
}
