//! Complete responses that are held while further requests wait.
//!
//! Which requests one round of the loop finds together is the kernel's and the scheduler's matter. So these tests
//! repeat a round until it had what they are about; none of them depends on a time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod harness;

use std::time::{Duration, Instant};

use harness::{Client, Config, ExecutorKind, PATIENCE, Server, pattern};

/// Requests of one round.
const CLIENTS: usize = 8;

fn clients(server: &Server) -> Vec<Client> {
    (0..CLIENTS).map(|_| server.connect()).collect()
}

/// All clients send a request before any of them reads.
fn round(clients: &mut [Client], method: &str, target: &str) {
    for client in clients.iter_mut() {
        client.begin(method, target, if method == "POST" { "Content-Length: 0\r\n" } else { "" });
    }
    for client in clients {
        assert_eq!(client.response().body, b"pong");
    }
}

/// Repeats it until a response was held.
fn until_held(server: &Server, mut round: impl FnMut()) {
    let end = Instant::now() + PATIENCE;
    while server.held() == 0 {
        assert!(Instant::now() < end, "no response was held");
        round();
    }
}

/// So many rounds, in which others are held.
fn never_held(server: &Server, mut round: impl FnMut()) {
    for _ in 0..50 {
        round();
    }
    assert_eq!(server.held(), 0);
}

#[test]
fn a_complete_response_is_held_while_requests_wait() {
    let server = Server::default();
    let mut clients = clients(&server);
    until_held(&server, || round(&mut clients, "GET", "/pong?busy=100"));
}

#[test]
fn what_is_held_is_sent_though_the_application_does_not_come_back() {
    let server = Server::default();
    let mut clients = clients(&server);
    let mut blocked = server.connect();
    let mut rounds = 0;
    until_held(&server, || {
        rounds += 1;
        for client in clients.iter_mut() {
            client.begin("GET", "/pong?busy=100", "");
        }
        blocked.begin("GET", "/pong?until=here", "");
        server.await_arrivals("here", rounds);
        // None of them waits for the one that is inside the application.
        for client in &mut clients {
            assert_eq!(client.response().body, b"pong");
        }
        server.let_through("here");
        assert_eq!(blocked.response().body, b"pong");
    });
}

#[test]
fn only_responses_to_safe_methods_are_held() {
    let server = Server::default();
    let mut clients = clients(&server);
    never_held(&server, || round(&mut clients, "POST", "/pong?busy=100"));
    until_held(&server, || round(&mut clients, "GET", "/pong?busy=100"));
}

#[test]
fn a_response_that_comes_in_blocks_is_never_held() {
    let server = Server::default();
    let mut clients = clients(&server);
    never_held(&server, || {
        for client in clients.iter_mut() {
            client.begin("GET", "/blocks?count=2&size=10&busy=100", "");
        }
        for client in &mut clients {
            client.response().assert_body(&pattern(0, 20));
        }
    });
}

#[test]
fn a_response_whose_application_goes_on_is_never_held() {
    let server = Server::default();
    let mut clients = clients(&server);
    let mut blocked = server.connect();
    let mut rounds = 0;
    never_held(&server, || {
        rounds += 1;
        blocked.begin("GET", "/blocks?count=1&size=10&length=10&busy=100&end=here", "");
        for client in clients.iter_mut() {
            client.begin("POST", "/pong", "Content-Length: 0\r\n");
        }
        // It is complete, but the application is inside the call.
        blocked.response().assert_body(&pattern(0, 10));
        server.await_arrivals("here", rounds);
        server.let_through("here");
        for client in &mut clients {
            assert_eq!(client.response().body, b"pong");
        }
    });
}

#[test]
fn an_error_page_is_never_held() {
    let server = Server::default();
    let mut clients = clients(&server);
    never_held(&server, || {
        for client in clients.iter_mut() {
            client.begin("GET", "/fail?busy=100", "");
        }
        for client in &mut clients {
            assert_eq!(client.response().status, 500);
        }
    });
}

#[test]
fn a_stop_at_once_leaves_nothing_of_what_was_held() {
    // That the server and its connections are gone is checked at the end of each.
    for _ in 0..20 {
        let server = Server::default();
        let mut clients = clients(&server);
        for client in &mut clients {
            client.begin("GET", "/pong?busy=100", "");
        }
        server.await_seen(CLIENTS / 2);
        server.begin_stop(Duration::ZERO);
        assert!(server.has_ended_within(PATIENCE));
    }
}

#[test]
fn a_large_response_is_never_held() {
    let server = Server::default();
    let mut clients = clients(&server);
    never_held(&server, || {
        for client in clients.iter_mut() {
            client.begin("GET", "/list?count=1&size=20000&busy=100", "");
        }
        for client in &mut clients {
            client.response().assert_body(&pattern(0, 20_000));
        }
    });
}

#[test]
fn nothing_is_held_where_that_is_off_or_where_one_thread_does_all() {
    for config in [
        Config { hold_writes: Duration::ZERO, ..Config::default() },
        Config { executor: ExecutorKind::Inline, ..Config::default() },
    ] {
        let server = Server::start(config);
        let mut clients = clients(&server);
        never_held(&server, || round(&mut clients, "GET", "/pong?busy=100"));
    }
}

#[test]
fn pipelined_requests_and_clients_that_leave_are_served_as_ever() {
    let server = Server::default();
    until_held(&server, || {
        let mut clients = clients(&server);
        for (at, client) in clients.iter_mut().enumerate() {
            client.begin("GET", "/pong?busy=100", "");
            client.begin("GET", &format!("/list?count=1&size={at}&busy=50"), "");
        }
        let left = clients.split_off(CLIENTS / 2);
        drop(left);
        for (at, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.response().body, b"pong");
            client.response().assert_body(&pattern(0, at));
        }
    });
}

#[test]
fn a_connection_that_is_to_close_closes_after_its_held_response() {
    let server = Server::default();
    until_held(&server, || {
        let mut clients = clients(&server);
        for client in clients.iter_mut() {
            client.begin("GET", "/pong?busy=100", "Connection: close\r\n");
        }
        for client in &mut clients {
            assert_eq!(client.response().body, b"pong");
            client.at_end();
        }
    });
}
