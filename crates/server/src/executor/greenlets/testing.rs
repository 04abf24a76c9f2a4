//! A server for tests, whose requests the test's thread takes: it is the greenlet thread.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use tailrace_observe::level::Level;
use tailrace_os::sync::lock;

use super::Greenlets;
use super::wakeup::Wakeups;
use crate::config::{Config, ExecutorKind};
use crate::connection::exchange::Exchange;
use crate::executor::application::{Application, Overdue};
use crate::executor::turn::Turn;
use crate::server::{Provided, Server};

/// Runs nothing: no thread but the test's may take a request.
#[derive(Default)]
pub(crate) struct Nobody {
    overdue: Mutex<Vec<Overdue>>,
}

impl Application for Nobody {
    fn enter(&self, _: &mut Turn<'_>) {
        panic!("a thread took a request");
    }

    fn grow(&self) -> io::Result<()> {
        panic!("a thread was started");
    }

    fn overdue(&self, request: Overdue) {
        lock(&self.overdue).push(request);
    }

    fn log(&self, _: Level, message: &str) {
        panic!("{message}");
    }
}

pub(crate) struct Served {
    pub(crate) server: Arc<Server>,
    pub(crate) greenlets: Arc<Greenlets>,
    pub(crate) io: JoinHandle<()>,
    application: Arc<Nobody>,
    port: u16,
}

impl Served {
    pub(crate) fn new(config: Config) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let config = Config { executor: ExecutorKind::Greenlets, ..config };
        let application = Arc::new(Nobody::default());
        let server = Server::new(config, application.clone(), vec![listener.into()], Provided::default()).unwrap();
        let greenlets = server.greenlets().unwrap().clone();
        assert!(greenlets.wakeup().try_claim());
        let io = server.clone();
        Self { server, greenlets, io: thread::spawn(move || io.run()), application, port }
    }

    /// A client that has sent a request.
    pub(crate) fn ask(&self) -> TcpStream {
        self.ask_with(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    }

    /// A client that has sent this request.
    pub(crate) fn ask_with(&self, request: &[u8]) -> TcpStream {
        let mut client = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client.write_all(request).unwrap();
        client
    }

    /// Waits for a wake-up.
    pub(crate) fn take(&self) -> Wakeups {
        let descriptor = self.greenlets.wakeup().descriptor().unwrap();
        poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None).unwrap();
        self.greenlets.take_wakeups().unwrap_or_default()
    }

    pub(crate) fn await_request(&self) {
        while !self.greenlets.wants_worker() {
            self.take();
        }
    }

    /// A client, and its request, which no runner runs any more.
    pub(crate) fn exchange(&self) -> (TcpStream, Exchange) {
        let client = self.ask();
        (client, self.next())
    }

    /// The next request, which no runner runs any more.
    pub(crate) fn next(&self) -> Exchange {
        self.await_request();
        self.greenlets.turn(0).unwrap().next().unwrap()
    }

    /// Waits until this ticket comes back.
    pub(crate) fn await_ticket(&self, ticket: u64) {
        while !self.take().tickets.contains(&ticket) {}
    }

    /// The requests whose deadline has come.
    pub(crate) fn overdue(&self) -> Vec<Overdue> {
        lock(&self.application.overdue).clone()
    }

    pub(crate) fn end(self) {
        self.server.stop(Duration::ZERO);
        while !self.take().ended {}
        self.io.join().unwrap();
    }
}
