//! Requests whose client has left: raises `ClientDisconnected` in their threads, if they are to be cancelled, and calls
//! what they have subscribed to it.
//!
//! The I/O side must not wait for the interpreter, so other threads, which start with the first such request, do this: one
//! raises exceptions, and then hands the request to one that calls back, because a callback may block. The first and the
//! thread of a request hold the interpreter when they check which request is running, so the exception never reaches the
//! next request.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;

use pyo3::prelude::*;
use tailrace_observe::level::Level;
use tailrace_os::panics::catch;
use tailrace_os::process::Process;
use tailrace_server::{Disconnected, Server};

use crate::call::subscriptions::Subscriptions;
use crate::ffi;
use crate::python::exceptions::ClientDisconnected;
use crate::python::forks::end_child;
use crate::python::late_thread::LateThread;
use crate::python::log::LogQueue;
use crate::python::memory;

/// Hands requests whose client has left to the thread that ends them.
pub(crate) struct DisconnectThread {
    subscriptions: Arc<Subscriptions>,
    lines: Arc<LogQueue>,
    thread: LateThread<Sender<Disconnected>>,
}

impl DisconnectThread {
    pub(crate) fn new(subscriptions: Arc<Subscriptions>, lines: Arc<LogQueue>) -> Self {
        Self { subscriptions, lines, thread: LateThread::default() }
    }

    /// From any thread; does not wait.
    pub(crate) fn send(&self, disconnected: Disconnected, server: Weak<Server>) {
        let start = || {
            let (subscriptions, lines) = (self.subscriptions.clone(), self.lines.clone());
            let (other_server, other_lines) = (server.clone(), self.lines.clone());
            let callers = start("tailrace-calling", move |receiver| {
                let call_each = |py: Python<'_>, all: &[Disconnected], _: &Server| {
                    all.iter().for_each(|each| call_back(py, *each, &subscriptions));
                };
                handle(receiver, &other_server, &other_lines, call_each);
            })?;
            start("tailrace-leaving", move |receiver| {
                handle(receiver, &server, &lines, |py, all, server| {
                    all.iter().for_each(|each| cancel(py, *each, server));
                    all.iter().for_each(|each| _ = callers.send(*each));
                });
            })
        };
        let without = "requests whose clients have disconnected are not cancelled, and their callbacks are not called";
        let refused = |line: &str| self.lines.send(Level::Error, line);
        let _ = self.thread.send(start, |sender| sender.send(disconnected), without, refused);
    }

    /// Ends the threads.
    pub(crate) fn end(&self) {
        self.thread.end();
    }
}

/// Starts a thread, and returns the sender of its requests.
fn start(name: &str, work: impl FnOnce(&Receiver<Disconnected>) + Send + 'static) -> io::Result<Sender<Disconnected>> {
    let (sender, receiver) = channel();
    thread::Builder::new().name(name.to_owned()).spawn(move || work(&receiver))?;
    Ok(sender)
}

/// Has `work` done for requests that still run, with the interpreter, until their sender is gone.
fn handle(
    receiver: &Receiver<Disconnected>,
    server: &Weak<Server>,
    lines: &LogQueue,
    work: impl Fn(Python<'_>, &[Disconnected], &Server),
) {
    while let Ok(first) = receiver.recv() {
        let Some(server) = server.upgrade() else { return };
        // Those that have come meanwhile, without those that are over: attaching may take long.
        let all = std::iter::once(first).chain(receiver.try_iter());
        let running: Vec<_> = all.filter(|each| server.runs(each.slot, each.serial)).collect();
        if running.is_empty() {
            continue;
        }
        memory::await_attaching();
        match catch(|| Python::try_attach(|py| work(py, &running, &server))) {
            Ok(Some(())) => {}
            Ok(None) => return,
            Err(panic) => {
                lines.send(Level::Error, &format!("a panic while requests without their clients were ended: {panic}"));
            }
        }
    }
}

fn cancel(py: Python<'_>, disconnected: Disconnected, server: &Server) {
    let Disconnected { slot, serial, thread, is_cancelled } = disconnected;
    if is_cancelled && server.is_cancellable(slot, serial) {
        ffi::thread::raise_in(thread, &py.get_type::<ClientDisconnected>());
    }
}

fn call_back(py: Python<'_>, disconnected: Disconnected, subscriptions: &Subscriptions) {
    let process = Process::here();
    for each in subscriptions.of(py, (disconnected.slot, disconnected.serial)) {
        // It logs what the callback raises. A child that the callback has forked ends here.
        end_child(py, process, &each.call_method0(py, "run"));
    }
}
