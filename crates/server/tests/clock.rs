//! Deadlines that come because a test moves the clock of the server: nobody waits for them.
#![allow(clippy::unwrap_used)]

mod harness;

use std::time::Duration;

use harness::{Config, ExecutorKind, Server};

/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(3_600);

#[test]
fn an_idle_connection_is_closed_when_its_time_is_over() {
    // One thread does one thing after the other: who has a response to a later request knows that the deadline after an
    // earlier one is set.
    let server = Server::start(Config { idle_timeout: LONG, executor: ExecutorKind::Inline, ..Config::default() });
    let mut client = server.connect();
    let mut other = server.connect();
    for _ in 0..3 {
        // Less than the idle timeout after the last request.
        server.advance_clock(LONG / 4 * 3);
        client.get("/pong");
        other.get("/pong");
    }
    server.advance_clock(LONG + Duration::from_secs(1));
    client.at_end();
}

#[test]
fn a_head_that_does_not_come_is_refused_when_its_time_is_over() {
    let server = Server::start(Config {
        header_timeout: LONG,
        idle_timeout: 3 * LONG,
        executor: ExecutorKind::Inline,
        ..Config::default()
    });
    let mut client = server.connect();
    client.get("/pong");
    client.send(b"GET / HTTP/1.1\r\nHo");
    // The server has read it before the clock moves: one thread reads one after the other.
    let other = &mut server.connect();
    other.get("/pong");
    server.advance_clock(LONG + Duration::from_secs(1));
    assert_eq!(client.response().status, 408);
    client.at_end();
    other.get("/pong");
}
