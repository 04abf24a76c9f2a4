//! Deadlines that pass because the test moves the clock of the server.

use std::time::Duration;

use crate::harness::{Client, Config, Done, ExecutorKind, Server, pattern};

/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(3_600);

#[test]
fn an_idle_connection_is_closed_when_its_time_is_over() {
    // The server has one thread, so a client that has the response to a later request knows that the deadline after an
    // earlier one has been set.
    let server = Server::start(Config { keepalive_timeout: LONG, executor: ExecutorKind::Inline, ..Config::default() });
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
        keepalive_timeout: 3 * LONG,
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
    let (server, mut first, mut clients) = held(Config { keepalive_timeout: LONG, ..Config::default() });
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
    let config = Config { keepalive_timeout: 3 * LONG, header_timeout: LONG, ..Config::default() };
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
    let server =
        Server::start(Config { keepalive_timeout: 3 * LONG, executor: ExecutorKind::Inline, ..Config::default() });
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

// Clients that are slow, or whose application is

/// Bytes of a response of which a UNIX socket holds a small part.
const LARGE: usize = 8_000_000;

/// A server that queues responses of `LARGE` bytes in memory.
fn patient(config: Config) -> Server {
    Server::start(Config { response_queue: 2 * LARGE, min_rate: 0, keepalive_timeout: 9 * LONG, ..config })
}

/// Moves the clock. Until the first of these responses has been sent, the loop handles the events that came before;
/// until the second, the deadlines that have come.
fn pass(server: &Server, time: Duration, other: &mut Client) {
    other.get("/pong");
    server.advance_clock(time);
    for _ in 0..2 {
        other.get("/pong");
    }
}

#[test]
fn the_time_of_a_client_does_not_pass_while_the_application_is_slow() {
    let server = patient(Config { write_timeout: LONG, ..Config::default() });
    let (mut client, mut other) = (server.connect_unix(), server.connect());
    let length = 2 * LARGE;
    client.begin("GET", &format!("/blocks?count=2&size={LARGE}&length={length}&gate=next"), "");
    server.let_through("next");
    // What the socket does not hold is queued, and the client has a deadline.
    server.await_arrivals("next", 2);
    client.head().unwrap();
    let mut body = client.read(LARGE);
    pass(&server, 2 * LONG, &mut other);
    server.let_through("next");
    body.extend(client.read(LARGE));
    assert!(body == pattern(0, length));
    assert_eq!(client.get("/pong").body, b"pong");
}

#[test]
fn a_client_that_always_takes_something_has_as_long_as_it_needs() {
    const TURNS: usize = 5;
    let server = patient(Config { write_timeout: LONG, ..Config::default() });
    let (mut client, mut other) = (server.connect_unix(), server.connect());
    client.begin("GET", &format!("/blocks?count=1&size={LARGE}&length={LARGE}&end=next"), "");
    server.await_arrivals("next", 1);
    client.head().unwrap();
    let mut body = Vec::new();
    for _ in 0..TURNS {
        pass(&server, LONG / 4 * 3, &mut other);
        // More than the socket holds: the server has sent some of it since.
        body.extend(client.read(LARGE / (TURNS + 1)));
    }
    server.let_through("next");
    body.extend(client.read(LARGE - body.len()));
    assert!(body == pattern(0, LARGE));
    assert_eq!(client.get("/pong").body, b"pong");
}

#[test]
fn a_response_lasts_until_its_client_has_it_and_the_application_is_done_before() {
    let server = patient(Config { write_timeout: 9 * LONG, ..Config::default() });
    let (mut client, mut other) = (server.connect_unix(), server.connect());
    client.begin("GET", &format!("/list?count=1&size={LARGE}"), "");
    assert_eq!(server.await_done(0), Done::Finished);
    pass(&server, LONG, &mut other);
    client.response().assert_body(&pattern(0, LARGE));
    // It has read what was left in the socket, too.
    client.get("/pong");
    let call = server.calls().into_iter().find(|call| call.body_bytes == LARGE as u64).unwrap();
    assert!(call.took < LONG && call.lasted >= LONG, "{call:?}");
}

#[test]
fn an_upload_that_becomes_slow_is_read_on_and_the_next_request_is_answered() {
    const SIZE: usize = 8 << 20;
    const PIECE: usize = 20_000;
    const PIECES: usize = 25;
    let server =
        Server::start(Config { body_timeout: LONG, min_rate: 0, keepalive_timeout: 9 * LONG, ..Config::default() });
    let (mut client, mut other) = (server.connect(), server.connect());
    let body = pattern(0, SIZE);
    let (quick, rest) = body.split_at(SIZE / 2);
    let (slow, last) = rest.split_at(PIECES * PIECE);
    client.send(format!("POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: {SIZE}\r\n\r\n").as_bytes());
    // The next event of a client that has sent so much is as much again, or the time to look for less.
    client.send(quick);
    for piece in slow.chunks(PIECE) {
        pass(&server, LONG / 10, &mut other);
        client.send(piece);
    }
    client.send(last);
    client.response().assert_body(&body);
    assert_eq!(client.get("/pong").body, b"pong");
}
