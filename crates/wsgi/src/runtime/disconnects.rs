//! Requests whose client has left: raises `ClientDisconnected` in their threads, if they are to be cancelled, and calls
//! what they have subscribed to it.
//!
//! The I/O side must not wait for the interpreter, so another thread, which is started with the first such request, does
//! this. It and the thread of a request hold the interpreter when they check which request is running, so the exception
//! never reaches the next request.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;

use pyo3::prelude::*;
use tailrace_server::{Disconnected, Level, Server, catch};

use crate::call::subscriptions::Subscriptions;
use crate::ffi;
use crate::python::exceptions::ClientDisconnected;
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
            let (sender, receiver) = channel();
            let (subscriptions, lines) = (self.subscriptions.clone(), self.lines.clone());
            // If no thread can be started, the receiver is dropped, and the requests continue.
            let _ = thread::Builder::new()
                .name(String::from("tailrace-leaving"))
                .spawn(move || end_requests(&receiver, &server, &subscriptions, &lines));
            sender
        };
        let _ = self.thread.send(start, |sender| sender.send(disconnected));
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.thread.end();
    }
}

fn end_requests(
    receiver: &Receiver<Disconnected>,
    server: &Weak<Server>,
    subscriptions: &Subscriptions,
    lines: &LogQueue,
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
        // First the exceptions, so that none waits for a slow callback of another request.
        let end_all = |py: Python<'_>| {
            running.iter().for_each(|each| cancel(py, *each, &server));
            running.iter().for_each(|each| call_back(py, *each, subscriptions));
        };
        match catch(|| Python::try_attach(end_all)) {
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
    for each in subscriptions.of(py, (disconnected.slot, disconnected.serial)) {
        // It logs what the callback raises.
        let _ = each.call_method0(py, "run");
    }
}
