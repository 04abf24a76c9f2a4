//! Tests of the harness: a server starts, answers on every listener, and ends.

use crate::harness::{Config, Done, ExecutorKind, Server, pattern};

#[test]
fn a_server_answers_and_ends() {
    let server = Server::default();
    assert_eq!(server.connect().get("/pong").body, b"pong");
    let told = server.stop();
    assert_eq!(told.seen.len(), 1);
    assert!(told.seen[0].peer.is_some());
    assert_eq!((told.seen[0].done, told.records[0].status), (Some(Done::Finished), 200));
}

#[test]
fn a_unix_socket_is_served() {
    let server = Server::default();
    assert_eq!(server.connect_unix().get("/pong").body, b"pong");
    assert!(server.stop().seen[0].peer.is_none());
}

#[test]
fn a_server_with_one_thread_answers() {
    let server = Server::start(Config { executor: ExecutorKind::Inline, ..Config::default() });
    let mut client = server.connect();
    for _ in 0..3 {
        client.get("/blocks?count=3&size=1000").assert_body(&pattern(0, 3000));
    }
    drop(client);
    assert_eq!(server.stop().records.len(), 3);
}

#[test]
fn a_gate_holds_a_response_back() {
    let server = Server::default();
    let mut held = server.connect();
    held.begin("GET", "/pong?until=here", "");
    server.await_arrivals("here", 1);
    assert_eq!(server.connect().get("/pong").status, 200, "others are served meanwhile");
    server.let_through("here");
    assert_eq!(held.response().body, b"pong");
}

#[test]
fn threads_are_added_when_the_application_waits() {
    let server = Server::default();
    let mut clients: Vec<_> = (0..5).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.begin("GET", "/pong?until=here", "");
    }
    server.await_arrivals("here", 5);
    server.open("here");
    for client in &mut clients {
        assert_eq!(client.response().body, b"pong");
    }
    drop(clients);
}

#[test]
fn a_panic_is_logged_and_ends_one_connection() {
    let server = Server::default();
    let mut other = server.connect();
    other.get("/pong");
    server.connect().begin("GET", "/panic", "");
    server.take_logged("asked to panic");
    assert_eq!(other.get("/pong").status, 200);
}

#[test]
#[should_panic(expected = "the server logged")]
fn a_line_in_the_log_that_the_test_does_not_take_fails_it() {
    let server = Server::default();
    server.connect().begin("GET", "/panic", "");
    server.await_seen(1);
    server.await_done(0);
    server.stop();
}
