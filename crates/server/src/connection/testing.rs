//! For tests: connections that no loop polls.
#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::config::{Config, ExecutorKind};
use crate::connection::driver::Connection;
use crate::connection::ownership::Owned;
use crate::connection::shared::Shared;
use crate::executor::greenlets::POLICY;
use crate::executor::greenlets::testing::Nobody;
use crate::response::testing::socket;
use crate::server::{Provided, Server};
use tailrace_http::peer::Peer;

/// A server that does not run.
pub(crate) fn server() -> Arc<Server> {
    let config = Config { executor: ExecutorKind::Greenlets, ..Config::default() };
    Server::new(config, Arc::new(Nobody::default()), Vec::new(), Provided::default()).unwrap()
}

/// A connection with this key, owned by the caller, and its client.
pub(crate) fn connection(server: &Arc<Server>, key: u64) -> (Owned<Connection>, UnixStream) {
    let (socket, client) = socket();
    let shared = Arc::new(Shared::new(Config::default(), POLICY, Arc::default()));
    let connection = Connection::accepted(shared, server.clone(), Box::new(socket), key, Peer::default());
    (connection, client)
}
