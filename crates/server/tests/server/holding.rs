//! Complete responses that are held while further requests wait.
//!
//! Which requests one round of the loop finds together is the kernel's and the scheduler's matter. So these tests
//! repeat a round until it had what they are about; none of them depends on a time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{Client, Config, ExecutorKind, PATIENCE, Server, pattern};

/// Requests of one round.
const CLIENTS: usize = 8;
/// Requests of one round in which some responses are to be held: more than the server reads at once, so that it has
/// little time to spare though a busy machine keeps the clients waiting.
const CROWD: usize = 64;

/// How long a test repeats its round before it fails.
const PERSISTENCE: Duration = Duration::from_secs(120);

fn clients(server: &Server) -> Vec<Client> {
    (0..CLIENTS).map(|_| server.connect()).collect()
}

fn crowd(server: &Server) -> Vec<Client> {
    (0..CROWD).map(|_| server.connect()).collect()
}

fn start() -> Server {
    Server::with_interpreter(Config::default())
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

/// Repeats a round, which gets the server, its clients and the number of the round, until a response was held.
fn until_held(mut round: impl FnMut(&Server, &mut Vec<Client>, u64)) {
    let server = start();
    let mut clients = crowd(&server);
    let end = Instant::now() + PERSISTENCE;
    for number in 1.. {
        round(&server, &mut clients, number);
        if server.held() > 0 {
            return;
        }
        assert!(Instant::now() < end, "no response was held");
    }
}

/// Repeats it until it returns true.
fn until_true(mut test: impl FnMut() -> bool) {
    let end = Instant::now() + PERSISTENCE;
    while !test() {
        assert!(Instant::now() < end, "it did not become true");
    }
}

/// The size of the responses that may be held beside those of a test.
const OTHERS: u64 = 7;

/// Many rounds on a server that holds others, which have so many bytes as no response of the round.
fn never_held(server: &Server, mut round: impl FnMut()) {
    let mut others = crowd(server);
    let end = Instant::now() + PERSISTENCE;
    for number in 0.. {
        others.iter_mut().for_each(|client| client.begin("GET", "/list?count=1&size=7&busy=300", ""));
        others.iter_mut().for_each(|client| drop(client.response()));
        round();
        let calls = server.calls();
        assert!(calls.iter().all(|call| call.body_bytes == OTHERS || call.held.is_zero()), "{calls:?}");
        if number >= 20 && calls.iter().any(|call| !call.held.is_zero()) {
            return;
        }
        assert!(Instant::now() < end, "no other response was held");
    }
}

#[test]
fn a_complete_response_is_held_while_requests_wait() {
    until_held(|_, clients, _| round(clients, "GET", "/pong?busy=300"));
}

#[test]
fn what_is_held_is_sent_though_the_application_does_not_come_back() {
    until_held(|server, clients, number| {
        let mut blocked = server.connect();
        for client in clients.iter_mut() {
            client.begin("GET", "/pong?busy=300", "");
        }
        blocked.begin("GET", "/pong?until=here", "");
        server.await_arrivals("here", number);
        // None of them waits for the one that is inside the application.
        for client in clients {
            assert_eq!(client.response().body, b"pong");
        }
        server.let_through("here");
        assert_eq!(blocked.response().body, b"pong");
    });
}

#[test]
fn only_responses_to_safe_methods_are_held() {
    let server = start();
    let mut clients = clients(&server);
    never_held(&server, || round(&mut clients, "POST", "/pong?busy=300"));
}

#[test]
fn a_response_that_comes_in_blocks_is_never_held() {
    let server = start();
    let mut clients = clients(&server);
    never_held(&server, || {
        for client in clients.iter_mut() {
            client.begin("GET", "/blocks?count=2&size=10&busy=300", "");
        }
        for client in &mut clients {
            client.response().assert_body(&pattern(0, 20));
        }
    });
}

#[test]
fn a_response_whose_application_goes_on_is_never_held() {
    let server = start();
    let mut clients = clients(&server);
    let mut blocked = server.connect();
    let mut rounds = 0;
    never_held(&server, || {
        rounds += 1;
        blocked.begin("GET", "/blocks?count=1&size=10&length=10&busy=300&end=here", "");
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
    let server = start();
    let mut clients = clients(&server);
    never_held(&server, || {
        for client in clients.iter_mut() {
            client.begin("GET", "/fail?busy=300", "");
        }
        for client in &mut clients {
            assert_eq!(client.response().status, 500);
        }
    });
}

/// Of a call that took less time than one whose response may be held.
fn assert_no_quick_response_was_held(server: &Server) {
    const QUICK: Duration = Duration::from_micros(15);
    let quick: Vec<_> = server.calls().into_iter().filter(|call| call.took < QUICK).collect();
    assert!(quick.iter().all(|call| call.held.is_zero()), "{quick:?}");
}

#[test]
fn the_response_of_a_call_that_took_little_time_is_never_held() {
    let server = start();
    let mut clients = crowd(&server);
    until_true(|| {
        for (at, client) in clients.iter_mut().enumerate() {
            client.begin("GET", if at % 2 == 0 { "/pong?busy=300" } else { "/pong" }, "");
        }
        for client in &mut clients {
            assert_eq!(client.response().body, b"pong");
        }
        assert_no_quick_response_was_held(&server);
        server.held() > 0
    });
}

/// A generator that computes after each block until the client has received that block. Before and behind it come
/// requests whose responses may be held.
fn generate(server: &Server, clients: &mut [Client], generator: &mut Client, declared: bool) {
    const BLOCKS: usize = 3;
    let (before, behind) = clients.split_at_mut(CROWD / 2);
    for client in before {
        client.begin("GET", "/pong?busy=300", "");
    }
    let length = if declared { format!("&length={}", 10 * BLOCKS) } else { String::new() };
    generator.begin("GET", &format!("/blocks?count={BLOCKS}&size=10&spin=taken{length}"), "");
    for client in behind {
        client.begin("GET", "/pong?busy=300", "");
    }
    let mut response = generator.head().unwrap();
    for block in 0..BLOCKS {
        if declared {
            assert_eq!(generator.read(10), pattern(10 * block, 10));
        } else {
            assert_eq!(generator.chunk(&mut response), Ok(10));
        }
        server.let_through("taken");
    }
    if !declared {
        assert_eq!(generator.chunk(&mut response), Ok(0));
        response.assert_body(&pattern(0, 10 * BLOCKS));
    }
    for client in clients {
        assert_eq!(client.response().body, b"pong");
    }
}

#[test]
fn each_block_is_sent_at_once_whether_other_responses_are_held_or_not() {
    for hold_writes in [Duration::ZERO, Duration::from_nanos(1), Config::default().hold_writes] {
        let server = Server::with_interpreter(Config { hold_writes, ..Config::default() });
        let (mut clients, mut generator) = (crowd(&server), server.connect());
        let mut turns = 0..;
        until_true(|| {
            let turn = turns.next().unwrap();
            generate(&server, &mut clients, &mut generator, turn % 2 == 0);
            turn >= 20 && (hold_writes.is_zero() || server.held() > 0)
        });
        assert!(!hold_writes.is_zero() || server.held() == 0);
    }
}

#[test]
fn a_stop_at_once_leaves_nothing_of_what_was_held() {
    // That the server and its connections are gone is checked at the end of each.
    for _ in 0..20 {
        let server = start();
        let mut clients = clients(&server);
        for client in &mut clients {
            client.begin("GET", "/pong?busy=300", "");
        }
        server.await_seen(CLIENTS / 2);
        server.begin_stop(Duration::ZERO);
        assert!(server.has_ended_within(PATIENCE));
    }
}

#[test]
fn a_large_response_is_never_held() {
    let server = start();
    let mut clients = clients(&server);
    never_held(&server, || {
        for client in clients.iter_mut() {
            client.begin("GET", "/list?count=1&size=20000&busy=300", "");
        }
        for client in &mut clients {
            client.response().assert_body(&pattern(0, 20_000));
        }
    });
}

#[test]
fn nothing_is_held_for_one_request_that_waits() {
    let server = start();
    let mut pair = [server.connect(), server.connect()];
    never_held(&server, || round(&mut pair, "GET", "/pong?busy=300"));
}

#[test]
fn nothing_is_held_while_the_server_has_time_to_spare() {
    let server = start();
    let mut clients = clients(&server);
    // On a busy machine the server may have none for a while.
    until_true(|| {
        let before = server.held();
        for _ in 0..5 {
            round(&mut clients, "GET", "/pong?busy=300");
            std::thread::sleep(Duration::from_millis(50));
        }
        server.held() == before
    });
}

#[test]
fn responses_are_held_again_after_a_request_that_waited_while_requests_keep_waiting() {
    // A server whose only application thread is kept from the processor for a while takes the application for one that
    // waits. On a busy machine another server is asked.
    until_true(|| {
        let server = Server::start(Config { threads: 1, ..Config::default() });
        are_held_again(&server)
    });
}

/// True when a response of the next requests is held.
fn are_held_again(server: &Server) -> bool {
    const REQUESTS: usize = 4_000;
    let mut first = server.connect();
    first.begin("GET", "/pong?until=here", "");
    server.await_arrivals("here", 1);
    // Another thread leads meanwhile.
    std::thread::sleep(Duration::from_millis(50));
    let is_over = AtomicBool::new(false);
    let held = std::thread::scope(|scope| {
        for mut client in clients(server) {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    client.begin("GET", "/pong?busy=300", "");
                    assert_eq!(client.response().body, b"pong");
                }
            });
        }
        server.let_through("here");
        let end = Instant::now() + PATIENCE;
        // From one client or another a request always waits.
        while server.held() == 0 && server.calls().len() < REQUESTS && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        is_over.store(true, Ordering::Relaxed);
        server.held()
    });
    assert_eq!(first.response().body, b"pong");
    held > 0
}

#[test]
fn nothing_is_held_where_that_is_off_or_where_one_thread_does_all() {
    for config in [
        Config { hold_writes: Duration::ZERO, ..Config::default() },
        Config { executor: ExecutorKind::Inline, ..Config::default() },
    ] {
        let server = Server::with_interpreter(config);
        let mut clients = clients(&server);
        for _ in 0..50 {
            round(&mut clients, "GET", "/pong?busy=300");
        }
        assert_eq!(server.held(), 0);
    }
}

#[test]
fn pipelined_requests_and_clients_that_leave_are_served_as_ever() {
    until_held(|server, clients, _| {
        *clients = crowd(server);
        for (at, client) in clients.iter_mut().enumerate() {
            client.begin("GET", "/pong?busy=300", "");
            client.begin("GET", &format!("/list?count=1&size={at}&busy=50"), "");
        }
        let left = clients.split_off(CROWD / 2);
        drop(left);
        for (at, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.response().body, b"pong");
            client.response().assert_body(&pattern(0, at));
        }
    });
}

#[test]
fn the_response_to_a_client_that_has_sent_further_requests_is_never_held() {
    const BEHIND: usize = 2;
    let get = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: test\r\n\r\n");
    let requests = [get("/list?count=1&size=1&busy=300").repeat(BEHIND), get("/pong?busy=300")].concat();
    until_held(|server, clients, _| {
        for client in clients.iter_mut() {
            client.send(requests.as_bytes());
        }
        for client in clients {
            for _ in 0..BEHIND {
                client.response().assert_body(&pattern(0, 1));
            }
            assert_eq!(client.response().body, b"pong");
        }
        let calls = server.calls();
        assert!(calls.iter().all(|call| call.body_bytes != 1 || call.held.is_zero()), "{calls:?}");
    });
}

#[test]
fn a_connection_that_is_to_close_closes_after_its_held_response() {
    until_held(|server, clients, _| {
        *clients = crowd(server);
        for client in clients.iter_mut() {
            client.begin("GET", "/pong?busy=300", "Connection: close\r\n");
        }
        for client in clients {
            assert_eq!(client.response().body, b"pong");
            client.at_end();
        }
    });
}
