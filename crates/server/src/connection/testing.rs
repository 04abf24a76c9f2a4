//! For tests: connections that no loop polls.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::config::{Config, ExecutorKind};
use crate::connection::driver::Connection;
use crate::connection::shared::Shared;
use crate::executor::application::{Application, Level, Reports};
use crate::executor::greenlets::POLICY;
use crate::executor::turn::Turn;
use crate::request::peer::Peer;
use crate::response::testing::socket;
use crate::server::Server;

struct Nobody;

impl Application for Nobody {
    fn enter(&self, _: &mut Turn<'_>) {
        panic!("a request was dispatched");
    }

    fn grow(&self) -> io::Result<()> {
        panic!("a thread was started");
    }
}

impl Reports for Nobody {
    fn log(&self, _: Level, message: &str) {
        panic!("{message}");
    }
}

/// A server that does not run.
pub(crate) fn server() -> Arc<Server> {
    let config = Config { executor: ExecutorKind::Greenlets, ..Config::default() };
    Server::new(config, Arc::new(Nobody), Vec::new(), None).unwrap()
}

/// A connection with this key, owned by the caller, and its client.
pub(crate) fn connection(server: &Arc<Server>, key: u64) -> (Arc<Connection>, UnixStream) {
    let (socket, client) = socket();
    let shared = Arc::new(Shared::new(Config::default(), POLICY));
    let connection = Connection::new(shared, server.clone(), Box::new(socket), key, Peer::default());
    (Arc::new(connection), client)
}
