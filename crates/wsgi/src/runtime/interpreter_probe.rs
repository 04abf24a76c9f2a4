//! Whether a thread can get the interpreter: one thread attaches when it is asked to, and then reports to the server.
//!
//! The I/O side asks while there are requests and none of them begins or ends (`executor/application_check.rs` of the
//! server). While some thread holds the interpreter and does not release it, no report comes, and the master sees that.
//! The thread is started with the first question, and sleeps until the next one.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{OnceLock, Weak};
use std::thread;

use pyo3::prelude::*;
use tailrace_server::Server;

/// Hands questions to the thread.
#[derive(Default)]
pub(crate) struct InterpreterProbe {
    sender: OnceLock<Sender<Weak<Server>>>,
}

impl InterpreterProbe {
    /// From any thread; does not wait. False: no report will come.
    pub(crate) fn ask(&self, server: Weak<Server>) -> bool {
        let sender = self.sender.get_or_init(|| {
            let (sender, receiver) = channel();
            // If no thread can be started, the receiver is dropped, and `ask` returns false from now on.
            let _ = thread::Builder::new()
                .name(String::from("tailrace-asks"))
                .stack_size(256 * 1024)
                .spawn(move || attach_for_each(&receiver));
            sender
        });
        sender.send(server).is_ok()
    }
}

fn attach_for_each(questions: &Receiver<Weak<Server>>) {
    while let Ok(server) = questions.recv() {
        if Python::try_attach(|_| ()).is_none() {
            // The interpreter is being finalized.
            return;
        }
        if let Some(server) = server.upgrade() {
            server.application_answers();
        }
    }
}
