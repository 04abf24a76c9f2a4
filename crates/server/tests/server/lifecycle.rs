//! Expectations, refusals, bodies that the application does not read, clients that are slow or disconnect, deadlines,
//! full queues, and the end of the server.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::harness::cases::ask;
use crate::harness::{Client, Config, Done, End, ExecutorKind, Framing, Kind, PATIENCE, Server, pattern};

/// A time-out that a test can wait for.
const SOON: Duration = Duration::from_millis(100);
/// Longer than any test waits: the test moves the clock.
const LONG: Duration = Duration::from_secs(3_600);

fn post(target: &str, lines: &str) -> Vec<u8> {
    format!("POST {target} HTTP/1.1\r\nHost: test\r\n{lines}\r\n").into_bytes()
}

/// A server that reads bodies before the application is called, and one that does not.
fn both_kinds() -> [Server; 2] {
    [false, true].map(|stream_body| Server::start(Config { stream_body, ..Config::default() }))
}

/// A server with two threads or more, and a server with one.
fn both_executors() -> [Server; 2] {
    [ExecutorKind::Threads, ExecutorKind::Inline]
        .map(|executor| Server::start(Config { executor, ..Config::default() }))
}

fn assert_pong(client: &mut Client) {
    assert_eq!(client.get("/pong").body, b"pong");
}

// Expectations: RFC 9110 section 10.1.1

#[test]
fn a_client_that_waits_for_it_is_told_to_continue() {
    for server in both_kinds() {
        let mut client = server.connect();
        client.send(&post("/echo", "Expect: 100-continue\r\nContent-Length: 5\r\n"));
        let interim = client.head().unwrap();
        assert_eq!((interim.status, interim.fields.len()), (100, 0));
        client.send(b"hello");
        assert_eq!(client.response().body, b"hello");
        assert_pong(&mut client);
    }
}

#[test]
fn continue_is_sent_once() {
    for server in both_kinds() {
        let mut client = server.connect();
        client.send(&post("/echo", "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n"));
        assert_eq!(client.head().unwrap().status, 100);
        for piece in ["5\r\nhe", "llo\r\n", "0\r\n\r\n"] {
            client.send(piece.as_bytes());
        }
        let response = client.response();
        assert_eq!(response.body, b"hello");
        assert!(response.interim.is_empty());
    }
}

#[test]
fn no_continue_is_sent_for_a_body_that_has_arrived() {
    for server in both_kinds() {
        let mut client = server.connect();
        client.send(&[post("/echo", "Expect: 100-continue\r\nContent-Length: 5\r\n"), b"hello".to_vec()].concat());
        let response = client.response();
        assert_eq!(response.body, b"hello");
        assert!(response.interim.is_empty());
    }
}

#[test]
fn a_refusal_is_sent_instead_of_a_continue() {
    for server in both_kinds() {
        for (lines, status) in [("Content-Length: 9999999999\r\n", 413), ("Content-Length: x\r\n", 400)] {
            let mut client = server.connect();
            client.send(&post("/echo", &format!("Expect: 100-continue\r\n{lines}")));
            let response = client.response();
            assert_eq!(response.status, status);
            assert!(response.interim.is_empty());
            client.at_end();
        }
        assert!(server.seen().is_empty());
    }
}

#[test]
fn an_http_1_0_client_is_not_told_to_continue() {
    for server in both_kinds() {
        let mut client = server.connect();
        client.send(b"POST /echo HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
        client.send(b"hello");
        let response = client.response_to(Kind { is_head: false, is_old: true });
        assert!(response.interim.is_empty());
        assert_eq!(response.body, b"hello");
        client.at_end();
    }
}

#[test]
fn an_application_that_does_not_read_asks_for_no_body() {
    let server = Server::start(Config { stream_body: true, ..Config::default() });
    let mut client = server.connect();
    client.send(&post("/pong?read=none", "Expect: 100-continue\r\nContent-Length: 5\r\n"));
    let response = client.response();
    assert!(response.interim.is_empty());
    // The client may send the body or not, so the server cannot know where a next request would start.
    assert!(response.says_close());
    client.at_end();
}

// Refusals

#[test]
fn the_page_of_a_refusal_is_complete_and_repeats_nothing() {
    for provocation in [
        "GET <script> HTTP/1.1\r\nHost: a\r\n\r\n",
        "<script> / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / <script>\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: <script>\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n<script>: x\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: <script>\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: <script>\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nExpect: <script>\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n<script>\r\n",
    ] {
        let server = Server::default();
        let mut client = server.connect();
        let page = ask(&mut client, provocation.as_bytes());
        assert!((400..500).contains(&page.status), "{provocation}");
        assert_eq!(page.framing, Framing::Length);
        assert_eq!(page.field("Content-Type"), Some("text/html; charset=utf-8"));
        assert_eq!(page.field("Server"), Some("tailrace"));
        assert!(page.says_close());
        let text = String::from_utf8(page.body).unwrap();
        assert!(text.contains("<h1>") && !text.contains("script"), "{text}");
        client.at_end();
        assert_eq!(server.refused(), 1);
    }
}

#[test]
fn a_refusal_of_head_has_no_body() {
    let server = Server::default();
    let mut client = server.connect();
    assert_eq!(ask(&mut client, b"HEAD / HTTP/1.1\r\nHost: a b\r\n\r\n").status, 400);
    client.at_end();
}

#[test]
fn a_client_that_sends_on_can_read_its_refusal() {
    for server in both_executors() {
        let mut client = server.connect();
        client.send(&post("/echo", "Content-Length: 9999999999\r\n"));
        for _ in 0..50 {
            assert!(client.send(&[b'x'; 100_000]), "the server reads it over");
        }
        assert_eq!(client.response().status, 413);
        client.at_end();
    }
}

#[test]
fn a_client_that_sends_more_than_its_request_can_read_its_response() {
    // With one thread nobody sees what arrives while the application runs. The kernel takes all of the response at
    // once, but the client has not read it when the connection closes.
    let server = Server::start(Config { executor: ExecutorKind::Inline, ..Config::default() });
    for (at, (says_close, more)) in [("", "GET / HT"), ("Connection: close\r\n", "\r\n")].into_iter().enumerate() {
        let mut client = server.connect();
        client.begin("GET", "/list?count=1&size=200000&until=gate&close=yes", says_close);
        server.await_arrivals("gate", at as u64 + 1);
        assert!(client.send(more.as_bytes()));
        server.let_through("gate");
        server.await_done(2 * at);
        // The server has gone on from the response.
        assert_pong(&mut server.connect());
        client.response().assert_body(&pattern(0, 200_000));
        client.at_end();
    }
}

// Bodies that the application does not read

#[test]
fn what_is_left_of_a_body_is_not_the_next_request() {
    for server in both_kinds() {
        for read in ["none", "5"] {
            for size in [10, 60_000, 3_000_000] {
                let body = [b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n".as_slice(), &pattern(0, size)].concat();
                let mut client = server.connect();
                let head = post(&format!("/pong?read={read}"), &format!("Content-Length: {}\r\n", body.len()));
                client.send(&[head, body].concat());
                let response = client.response();
                assert_eq!(response.body, b"pong");
                if response.says_close() {
                    client.at_end();
                } else {
                    assert_pong(&mut client);
                }
            }
        }
        assert!(server.seen().iter().all(|seen| seen.path == "/pong"));
    }
}

#[test]
fn a_streamed_body_is_read_while_it_arrives() {
    let server = Server::start(Config { stream_body: true, ..Config::default() });
    let mut client = server.connect();
    let body = pattern(0, 1_000_000);
    client.send(&post("/echo", "Content-Length: 1000000\r\n"));
    for piece in body.chunks(70_001) {
        client.send(piece);
    }
    client.response().assert_body(&body);
    assert_pong(&mut client);
}

// Clients that are slow or disconnect

#[test]
fn an_application_does_not_wait_for_long_for_a_slow_client() {
    let server = Server::start(Config { response_queue: 100_000, ..Config::default() });
    let mut client = server.connect();
    client.begin("GET", "/blocks?count=100&size=100001", "");
    assert_eq!(server.await_done(0), Done::Finished, "though nothing was read");
    assert_pong(&mut server.connect());
    client.response().assert_body(&pattern(0, 10_000_100));
    assert_pong(&mut client);
    drop(client);
    let told = server.stop();
    assert_eq!((told.records[0].path, told.records[0].ending), ("spilled", "complete"));
    assert_eq!(told.records[0].body_bytes, 10_000_100);
}

#[test]
fn without_files_an_application_waits_for_its_client() {
    let server = Server::start(Config { response_queue: 100_000, response_spill: 0, ..Config::default() });
    let mut client = server.connect();
    client.begin("GET", "/blocks?count=100&size=100001", "");
    server.await_blocks(0, 1);
    assert_eq!(server.seen()[0].done, None);
    client.response().assert_body(&pattern(0, 10_000_100));
    assert_eq!(server.await_done(0), Done::Finished);
    assert_pong(&mut client);
}

#[test]
fn a_client_that_accepts_nothing_for_too_long_is_disconnected() {
    let config = Config { response_queue: 100_000, response_spill: 0, write_timeout: SOON, ..Config::default() };
    let server = Server::start(config);
    let mut client = server.connect();
    client.begin("GET", "/blocks?count=100&size=100001", "");
    assert_eq!(server.await_done(0), Done::Gone);
    let broken = client.try_response(Kind::default()).expect_err("it was given up");
    assert!(pattern(0, 10_000_100).starts_with(&broken.response.unwrap().body));
    drop(client);
    assert_eq!(server.stop().records[0].ending, "client-disconnected");
}

#[test]
fn an_application_learns_that_its_client_has_disconnected() {
    for server in both_executors() {
        let mut client = server.connect();
        client.begin("GET", "/blocks?count=10000&size=100001", "");
        client.head().unwrap();
        client.reset();
        assert_eq!(server.await_done(0), Done::Gone);
        assert_pong(&mut server.connect());
        assert_eq!(server.stop().records[0].ending, "client-disconnected");
    }
}

#[test]
fn clients_that_disconnect_affect_no_other_client() {
    for server in both_executors() {
        for wire in [
            b"".to_vec(),
            b"G".to_vec(),
            b"GET / HTTP/1.1\r\nHo".to_vec(),
            post("/echo", "Content-Length: 10\r\n"),
            [post("/echo", "Content-Length: 10\r\n"), b"x".to_vec()].concat(),
            [post("/echo", ""), b"GET".to_vec()].concat(),
            post("/list?count=3&size=1000003", ""),
        ] {
            for _ in 0..5 {
                let mut client = server.connect();
                client.send(&wire);
                client.reset();
                let mut client = server.connect();
                client.send(&wire);
                drop(client);
            }
        }
        assert_pong(&mut server.connect());
        server.stop();
    }
}

#[test]
fn incomplete_requests_delay_no_other_client() {
    for server in both_executors() {
        let mut clients: Vec<_> = (0..60).map(|_| server.connect()).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            client.send(format!("POST /echo?{number} HTTP/1.1\r\nHost: a\r\nContent-Len").as_bytes());
        }
        assert_pong(&mut server.connect());
        for client in &mut clients {
            client.send(b"gth: 10\r\n\r\n01234");
        }
        assert_pong(&mut server.connect());
        for client in &mut clients {
            client.send(b"56789");
            assert_eq!(client.response().body, b"0123456789");
        }
        drop(clients);
        server.stop();
    }
}

// How a response is sent

#[test]
fn the_shape_of_a_response_determines_how_it_is_sent() {
    for (target, path) in [
        ("/list?count=3&size=100001", "one-write"),
        ("/pong", "one-write"),
        ("/blocks?count=1&size=10&length=10", "one-write"),
        ("/blocks?count=2&size=10", "direct"),
        ("/blocks?count=3&size=100001", "direct"),
        ("/file?size=100000", "sendfile"),
        ("/status?status=204", "one-write"),
    ] {
        let server = Server::default();
        server.connect().get(target);
        let told = server.stop();
        assert_eq!((told.records[0].path, told.records[0].ending), (path, "complete"), "{target}");
    }
}

#[test]
fn one_thread_coalesces_nothing() {
    let server = Server::start(Config { executor: ExecutorKind::Inline, ..Config::default() });
    server.connect().get("/blocks?count=1000&size=10").assert_body(&pattern(0, 10_000));
    assert_eq!(server.stop().records[0].path, "direct");
}

// Overload

#[test]
fn a_request_is_refused_when_too_many_wait() {
    let server = Server::start(Config { threads: 1, max_queue: 1, ..Config::default() });
    let mut held = server.connect();
    held.begin("GET", "/pong?until=here", "");
    server.await_arrivals("here", 1);
    let mut clients: Vec<_> = (0..4).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.begin("GET", "/pong", "");
    }
    let (told, responses) = mpsc::channel();
    thread::scope(|scope| {
        for client in &mut clients {
            let told = told.clone();
            scope.spawn(move || told.send(client.response()).unwrap());
        }
        // One may wait for the only thread, which is held.
        for _ in 0..3 {
            let response = responses.recv_timeout(PATIENCE).unwrap();
            assert_eq!((response.status, response.field("Retry-After")), (503, Some("1")));
        }
        server.open("here");
        assert_eq!(responses.recv_timeout(PATIENCE).unwrap().body, b"pong");
    });
    assert_eq!(held.response().body, b"pong");
    for client in &mut clients {
        assert_pong(client);
    }
}

#[test]
fn a_request_that_has_waited_too_long_is_refused() {
    let server = Server::start(Config { threads: 1, queue_timeout: LONG, ..Config::default() });
    let mut held = server.connect();
    held.begin("GET", "/pong?until=here", "");
    server.await_arrivals("here", 1);
    let mut client = server.connect();
    client.begin("GET", "/pong", "");
    // It has been read when what comes later, and needs no thread, is answered.
    let mut other = server.connect();
    other.send(b"\0\r\n\r\n");
    assert_eq!(other.response().status, 400);
    server.advance_clock(LONG + Duration::from_secs(1));
    assert_eq!(client.response().status, 503);
    server.open("here");
    assert_eq!(held.response().body, b"pong");
    drop((held, client));
    assert_eq!(server.stop().seen.len(), 1);
}

#[test]
fn an_idle_connection_is_closed_for_a_new_client() {
    // One thread is done with a request before it begins the next one.
    let server = Server::start(Config { max_connections: 2, executor: ExecutorKind::Inline, ..Config::default() });
    let (mut first, mut second) = (server.connect(), server.connect());
    assert_pong(&mut first);
    server.advance_clock(Duration::from_millis(1));
    assert_pong(&mut second);
    assert_pong(&mut server.connect());
    first.at_end();
    assert_pong(&mut second);
    server.take_logged("1 idle connection was closed for new clients");
}

// Deadlines

#[test]
fn an_idle_connection_is_closed_without_a_response() {
    for executor in [ExecutorKind::Threads, ExecutorKind::Inline] {
        let server = Server::start(Config { keepalive_timeout: SOON, executor, ..Config::default() });
        server.connect().at_end();
        drop(server);
        let server = Server::start(Config { keepalive_timeout: LONG, executor, ..Config::default() });
        let mut used = server.connect();
        assert_pong(&mut used);
        thread::scope(|scope| {
            let reader = scope.spawn(|| used.at_end());
            // Its deadline may be set a moment after its response has been sent.
            while !reader.is_finished() {
                server.advance_clock(LONG + Duration::from_secs(1));
                thread::sleep(Duration::from_millis(1));
            }
        });
    }
}

#[test]
fn a_request_past_its_deadline_is_answered_504() {
    let server = Server::start(Config { request_timeout: SOON, ..Config::default() });
    let mut client = server.connect();
    client.begin("GET", "/pong?until=here", "");
    server.await_arrivals("here", 1);
    assert_eq!(client.response().status, 504);
    server.take_logged("still in the application");
    assert_pong(&mut server.connect());
    server.open("here");
    client.at_end();
    drop(client);
    let told = server.stop();
    assert_eq!((told.records[0].status, told.records[0].ending), (504, "timed-out"));
}

#[test]
fn a_response_past_its_deadline_is_broken_off() {
    let server = Server::start(Config { request_timeout: SOON, ..Config::default() });
    let mut client = server.connect();
    client.begin("GET", "/blocks?count=2&size=10&gate=next", "");
    server.let_through("next");
    let broken = client.try_response(Kind::default()).expect_err("its last chunk must not come");
    broken.response.unwrap().assert_body(&pattern(0, 10));
    server.take_logged("still in the application");
    server.let_through("next");
    assert_eq!(server.await_done(0), Done::Gone);
    drop(client);
    let told = server.stop();
    assert_eq!(told.records[0].status, 200);
    assert_ne!(told.records[0].ending, "complete");
}

// The end of the server

#[test]
fn a_request_in_flight_is_answered_before_the_end() {
    for server in both_executors() {
        let (mut held, mut idle) = (server.connect(), server.connect());
        assert_pong(&mut idle);
        held.begin("GET", "/pong?until=here", "");
        server.await_arrivals("here", 1);
        server.begin_stop(PATIENCE);
        assert!(!server.is_running());
        server.let_through("here");
        let response = held.response();
        assert_eq!(response.body, b"pong");
        assert!(response.says_close());
        held.at_end();
        idle.at_end();
        assert!(server.has_ended_within(PATIENCE));
        assert_eq!(server.stop().records[1].ending, "complete");
    }
}

#[test]
fn a_stop_waits_for_a_body_that_is_still_arriving() {
    for server in both_executors() {
        let mut client = server.connect();
        client.send(&[post("/echo", "Content-Length: 10\r\n"), b"01234".to_vec()].concat());
        // A response to a later client shows that this connection has been accepted.
        assert_pong(&mut server.connect());
        server.begin_stop(PATIENCE);
        client.send(b"56789");
        let response = client.response();
        assert_eq!(response.body, b"0123456789");
        assert!(response.says_close());
        client.at_end();
        assert!(server.has_ended_within(PATIENCE));
    }
}

#[test]
fn requests_in_flight_are_cut_off_when_the_graceful_time_is_over() {
    let server = Server::default();
    let mut client = server.connect();
    client.begin("GET", "/blocks?count=2&size=10&gate=next", "");
    server.let_through("next");
    let mut response = client.head().unwrap();
    assert_eq!(client.chunk(&mut response), Ok(10));
    server.await_arrivals("next", 2);
    server.begin_stop(Duration::ZERO);
    let end = client.chunk(&mut response).expect_err("it was cut");
    assert!(matches!(end, End::Closed | End::Reset));
    assert!(server.has_ended_within(PATIENCE));
    server.stop();
}

#[test]
fn what_a_client_has_sent_ahead_is_counted_once() {
    // Three quarters of it are for such bytes: there is room for them, and none to count them twice.
    let server = Server::start(Config { client_memory: 100_000, ..Config::default() });
    let mut client = server.connect();
    let room = "x".repeat(50_000);
    let [first, second, third] = [("/pong?until=gate", ""), ("/pong", ""), ("/pong", room.as_str())]
        .map(|(target, room)| format!("GET {target} HTTP/1.1\r\nHost: test\r\nX-Room: {room}\r\n\r\n"));
    client.send([first, second, third].concat().as_bytes());
    server.await_seen(1);
    server.open("gate");
    for _ in 0..3 {
        assert_eq!(client.response().body, b"pong");
    }
}

#[test]
fn the_end_behind_more_requests_than_one_read_takes_is_seen() {
    let server = Server::default();
    let mut client = server.connect();
    client.begin("GET", "/pong?until=gate", "");
    server.await_seen(1);
    // All of it causes one event, though it is read in several pieces.
    let room = "x".repeat(5_000);
    let request = format!("GET /pong HTTP/1.1\r\nHost: test\r\nX-Room: {room}\r\n\r\n");
    client.send(request.repeat(16).as_bytes());
    client.half_close();
    server.open("gate");
    for _ in 0..17 {
        assert_eq!(client.response().body, b"pong");
    }
    client.at_end();
}
