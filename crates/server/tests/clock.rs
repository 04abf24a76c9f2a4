//! Deadlines that pass because the test moves the clock of the server.
#![allow(clippy::unwrap_used)]

mod harness;

use std::time::Duration;

use harness::{Client, Config, ExecutorKind, Server};

/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(3_600);

#[test]
fn an_idle_connection_is_closed_when_its_time_is_over() {
    // The server has one thread, so a client that has the response to a later request knows that the deadline after an
    // earlier one has been set.
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
fn an_incomplete_head_is_refused_when_its_time_is_over() {
    let server = Server::start(Config {
        header_timeout: LONG,
        idle_timeout: 3 * LONG,
        executor: ExecutorKind::Inline,
        ..Config::default()
    });
    let mut client = server.connect();
    client.get("/pong");
    client.send(b"GET / HTTP/1.1\r\nHo");
    // The server has one thread, so it has read the head before it answers this request.
    let other = &mut server.connect();
    other.get("/pong");
    server.advance_clock(LONG + Duration::from_secs(1));
    assert_eq!(client.response().status, 408);
    client.at_end();
    other.get("/pong");
}

/// More connections than there are events in one round of the loop.
const MANY: usize = 40;

/// A server whose one thread is with the application, for a request to `/pong?until=gate`, and clients that have each
/// sent one request before.
fn held(config: Config) -> (Server, Client, Vec<Client>) {
    let server = Server::start(Config { executor: ExecutorKind::Inline, ..config });
    let mut clients: Vec<_> = (0..MANY).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.get("/pong");
    }
    let mut first = server.connect();
    first.begin("GET", "/pong?until=gate", "");
    server.await_arrivals("gate", 1);
    (server, first, clients)
}

#[test]
fn a_request_that_has_come_when_the_idle_time_is_over_is_answered() {
    let (server, mut first, mut clients) = held(Config { idle_timeout: LONG, ..Config::default() });
    for client in &mut clients {
        client.begin("GET", "/pong", "");
    }
    server.advance_clock(LONG + Duration::from_secs(1));
    server.open("gate");
    assert_eq!(first.response().body, b"pong");
    for client in &mut clients {
        assert_eq!(client.response().body, b"pong");
    }
}

#[test]
fn a_request_head_that_has_come_whole_when_its_time_is_over_is_answered() {
    let config = Config { idle_timeout: 3 * LONG, header_timeout: LONG, ..Config::default() };
    let server = Server::start(Config { executor: ExecutorKind::Inline, ..config });
    let mut clients: Vec<_> = (0..MANY).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send(b"GET /pong HTTP/1.1\r\nHo");
    }
    let mut first = server.connect();
    first.begin("GET", "/pong?until=gate", "");
    server.await_arrivals("gate", 1);
    // All heads have begun: the server has taken each up before the request of a client that connected later, or it
    // reads each whole, in time.
    for client in &mut clients {
        client.send(b"st: test\r\n\r\n");
    }
    server.advance_clock(LONG + Duration::from_secs(1));
    server.open("gate");
    assert_eq!(first.response().body, b"pong");
    for client in &mut clients {
        assert_eq!(client.response().body, b"pong");
    }
}

#[test]
fn a_stop_waits_for_the_first_request_of_a_client_that_has_just_connected() {
    for executor in [ExecutorKind::Threads, ExecutorKind::Inline] {
        let server = Server::start(Config { executor, ..Config::default() });
        let mut used = server.connect();
        used.get("/pong");
        let mut fresh = server.connect();
        server.begin_stop(LONG);
        // Longer than a connection is kept that has carried a request.
        server.advance_clock(Duration::from_millis(300));
        used.at_end();
        let response = fresh.get("/pong");
        assert_eq!(response.body, b"pong");
        assert!(response.says_close());
        fresh.at_end();
    }
}

#[test]
fn clients_that_send_nothing_do_not_hold_a_stop_up_for_long() {
    for executor in [ExecutorKind::Threads, ExecutorKind::Inline] {
        let server = Server::start(Config { executor, ..Config::default() });
        let mut silent = server.connect();
        // It was accepted when a later one is answered.
        server.connect().get("/pong");
        server.begin_stop(LONG);
        server.advance_clock(Duration::from_secs(6));
        silent.at_end();
    }
}

#[test]
fn a_client_that_connected_long_ago_and_sent_nothing_is_not_waited_for() {
    let server = Server::start(Config { idle_timeout: 3 * LONG, executor: ExecutorKind::Inline, ..Config::default() });
    let mut silent = server.connect();
    server.connect().get("/pong");
    server.advance_clock(LONG);
    // One thread does one thing after the other: the clock has moved when this is answered.
    let mut fresh = server.connect();
    fresh.get("/pong");
    let mut connecting = server.connect();
    server.begin_stop(LONG);
    server.advance_clock(Duration::from_millis(300));
    silent.at_end();
    connecting.get("/pong");
}

#[test]
fn clients_that_connect_while_the_application_is_held_are_answered_at_a_stop() {
    let server = Server::start(Config { threads: 1, ..Config::default() });
    let mut used = server.connect();
    used.get("/pong");
    server.hold_entry();
    let mut held = server.connect();
    held.begin("GET", "/pong", "");
    server.await_entry();
    // Nobody is accepted from now on.
    server.advance_clock(Duration::from_secs(1));
    let mut waits = server.connect();
    waits.begin("GET", "/pong", "");
    server.begin_stop(LONG);
    used.at_end();
    server.release_entry();
    for client in [&mut held, &mut waits] {
        let response = client.response();
        assert_eq!(response.body, b"pong");
        assert!(response.says_close());
        client.at_end();
    }
}

#[test]
fn clients_that_wait_for_room_are_answered_at_a_stop() {
    let config = Config { max_connections: 2, body_timeout: Duration::from_secs(30), ..Config::default() };
    let server = Server::start(config);
    let mut late = server.connect();
    late.send(b"POST /pong HTTP/1.1\r\nHost: test\r\nContent-Length: 9\r\n\r\n");
    let mut first = server.connect();
    first.begin("GET", "/pong?until=gate", "");
    server.await_arrivals("gate", 1);
    let mut waits = server.connect();
    waits.begin("GET", "/pong", "");
    server.take_logged("and none is idle: new clients wait");
    server.begin_stop(LONG);
    // Its answer shows that the server is at the stop. The line in the log would be said again after a minute.
    server.advance_clock(Duration::from_secs(31));
    assert_eq!(late.response().status, 408);
    server.open("gate");
    for client in [&mut first, &mut waits] {
        assert_eq!(client.response().body, b"pong");
        client.at_end();
    }
}
