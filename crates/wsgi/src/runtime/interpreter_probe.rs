//! Checks whether a thread can obtain the interpreter: on request one thread attaches, and then reports to the server.
//!
//! The I/O side requests a check while there are requests and none of them begins or ends
//! (`executor/application_check.rs` of the server). While another thread holds the interpreter without releasing it, no
//! report comes, which the master sees on the scoreboard. The thread is started by the first check.

use std::sync::Weak;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use pyo3::prelude::*;
use tailrace_observe::level::Level;
use tailrace_server::Server;

use crate::ffi::thread as thread_state;
use crate::python::late_thread::LateThread;
use crate::python::log::LogQueue;

/// Requests checks of the thread.
#[derive(Default)]
pub(crate) struct InterpreterProbe {
    thread: LateThread<Sender<Weak<Server>>>,
}

impl InterpreterProbe {
    /// From any thread; does not wait. False: no report will come.
    pub(crate) fn try_ask(&self, server: Weak<Server>, lines: &LogQueue) -> bool {
        let start = || {
            let (sender, receiver) = channel();
            thread::Builder::new()
                .name(String::from("tailrace-asks"))
                .stack_size(256 * 1024)
                .spawn(move || attach_for_each(&receiver))?;
            Ok(sender)
        };
        let without = "a worker that hangs is not noticed";
        let refused = |line: &str| lines.send(Level::Error, line);
        self.thread.send(start, |sender| sender.send(server).is_ok(), without, refused).unwrap_or(false)
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.thread.end();
    }
}

fn attach_for_each(questions: &Receiver<Weak<Server>>) {
    while let Ok(server) = questions.recv() {
        // A worker without memory for the state of this thread does not count as one whose interpreter is held.
        if thread_state::has_memory_to_attach() && Python::try_attach(|_| ()).is_none() {
            // The interpreter is being finalized.
            return;
        }
        if let Some(server) = server.upgrade() {
            server.application_answers();
        }
    }
}
