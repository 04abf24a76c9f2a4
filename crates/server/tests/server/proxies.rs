//! What proxies state about their clients, to the whole server: which of it is believed, and what becomes of the rest.

use std::net::SocketAddr;
use std::time::Duration;

use crate::harness::{Client, Config, ExecutorKind, ListenerConfig, Server, Versions};
use tailrace_http::trust::{ForwardedFields, Trust};

const LINE: &[u8] = b"PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n";
const BINARY: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x12\xc0\x00\x02\x07\xc0\x00\x02\x01\x12\x67\x00\x50\x02\x00\x03a.b";
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";
const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: inner\r\n\r\n";
/// More than enough for a deadline of a test.
const SOON: Duration = Duration::from_millis(50);

fn trusting(entries: &[&str]) -> Config {
    Config { trust: Trust::of(entries.iter().copied(), ForwardedFields::ANY).unwrap(), ..Config::default() }
}

/// Both listeners expect a PROXY header.
fn expecting(proxy: Versions, trusted: &[&str]) -> Config {
    let listener = ListenerConfig { proxy: Some(proxy), ..ListenerConfig::default() };
    Config { listeners: vec![listener; 2], ..trusting(trusted) }
}

fn address(text: &str) -> Option<SocketAddr> {
    Some(text.parse().unwrap())
}

#[test]
fn what_a_trusted_proxy_states_is_what_the_application_sees() {
    let server = Server::start(trusting(&["unix", "127.0.0.1"]));
    for (number, mut client) in [server.connect(), server.connect_unix()].into_iter().enumerate() {
        let lines = "X-Forwarded-For: 203.0.113.9, 192.0.2.7:4711\r\nX-Forwarded-Proto: https\r\n\
                     X-Forwarded-Host: outer:8443\r\nX-Forwarded-Prefix: /pre/\r\n";
        assert_eq!(client.ask("GET", "/a", lines).status, 200);
        let seen = &server.seen()[number];
        assert_eq!(seen.peer, address("192.0.2.7:4711"));
        let text = |text: &str| Some(String::from(text));
        assert_eq!(seen.stated, (Some(true), text("outer:8443"), Some(8443), text("/pre")));
        assert!(seen.fields.iter().any(|(name, _)| name == "X-Forwarded-For"));
    }
}

#[test]
fn a_request_without_such_fields_is_that_of_the_peer() {
    let server = Server::start(trusting(&["*"]));
    let mut client = server.connect();
    client.get("/a");
    client.ask("GET", "/b", "X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\n");
    client.get("/c");
    let peers: Vec<_> = server.seen().iter().map(|seen| (seen.peer, seen.stated.0)).collect();
    let own = client.address();
    assert_eq!(peers, [(own, None), (address("192.0.2.7:0"), Some(true)), (own, None)]);
}

#[test]
fn what_anybody_else_states_is_removed_and_said_once() {
    let server = Server::start(trusting(&["unix", "10.0.0.0/8"]));
    let mut client = server.connect();
    for number in 0..3 {
        let lines = "X-Forwarded-For: 192.0.2.7\r\nForwarded: for=\"\r\nx-forwarded-proto: gopher\r\nX-Other: b\r\n";
        assert_eq!(client.ask("POST", "/a", &format!("{lines}Content-Length: 0\r\n")).status, 200);
        let seen = &server.seen()[number];
        assert_eq!(seen.peer, client.address());
        assert_eq!(seen.stated, (None, None, None, None));
        let names: Vec<_> = seen.fields.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
        assert!(names.contains(&String::from("x-other")));
        assert!(!names.iter().any(|name| name.contains("forwarded")), "{names:?}");
    }
    let line = server.take_logged("add 127.0.0.1 to --trusted-proxies");
    assert!(line.contains("a request from 127.0.0.1 had"), "{line}");
}

#[test]
fn a_field_that_the_proxies_do_not_write_is_removed_and_said_once() {
    let trust = Trust::of(["127.0.0.1"], ForwardedFields::default()).unwrap();
    let server = Server::start(Config { trust, ..Config::default() });
    for number in 0..2 {
        let lines = "X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Prefix: //evil\r\n";
        assert_eq!(server.connect().ask("GET", "/a", lines).status, 200);
        let seen = &server.seen()[number];
        assert_eq!((seen.peer, seen.stated.clone()), (address("192.0.2.7:0"), (None, None, None, None)));
        let names: Vec<_> = seen.fields.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["Host", "X-Forwarded-For"]);
    }
    server.take_logged("a request from 127.0.0.1 had X-Forwarded-Host, which --forwarded-headers does not name");
}

#[test]
fn a_wrong_statement_of_a_trusted_proxy_is_refused_with_the_reason() {
    let server = Server::start(trusting(&["127.0.0.1"]));
    for (line, reason) in [
        ("X-Forwarded-For: x\r\n", "X-Forwarded-For of a trusted proxy"),
        ("X-Forwarded-Proto: gopher\r\n", "must be http or https"),
        ("X-Forwarded-Prefix: //evil\r\n", "X-Forwarded-Prefix of a trusted proxy"),
        ("Forwarded: for=192.0.2.7\r\nX-Forwarded-For: 192.0.2.8\r\n", "disagree: the proxy"),
    ] {
        let response = server.connect().ask("GET", "/a", line);
        assert_eq!(response.status, 400);
        let page = String::from_utf8(response.body.clone()).unwrap();
        assert!(page.contains(reason), "{page}");
    }
    assert!(server.seen().is_empty());
}

#[test]
fn a_proxy_header_in_any_pieces_states_the_client_of_all_requests_of_the_connection() {
    for executor in [ExecutorKind::Threads, ExecutorKind::Inline] {
        for (proxy, header) in
            [(Versions::V1, LINE), (Versions::V2, BINARY), (Versions::Any, LINE), (Versions::Any, BINARY)]
        {
            let config = Config { executor, ..expecting(proxy, &["127.0.0.1", "unix"]) };
            let server = Server::start(config);
            let bytes = [header, GET, GET].concat();
            let send: [fn(&mut Client, &[u8]) -> bool; 3] =
                [Client::send, Client::send_by_bytes, |client, bytes| client.send_in_pieces(bytes, 7)];
            for send in send {
                for mut client in [server.connect(), server.connect_unix()] {
                    assert!(send(&mut client, &bytes));
                    assert_eq!(client.response().status, 200);
                    assert_eq!(client.response().status, 200);
                    assert_eq!(client.get("/b").status, 200);
                }
            }
            let seen = server.seen();
            assert_eq!(seen.len(), 18);
            assert!(seen.iter().all(|seen| seen.peer == address("192.0.2.7:4711")), "{seen:?}");
        }
    }
}

#[test]
fn a_header_of_the_proxys_own_connection_leaves_the_peer() {
    let server = Server::start(expecting(Versions::Any, &["127.0.0.1"]));
    for header in [LOCAL, b"PROXY UNKNOWN\r\n"] {
        let mut client = server.connect();
        client.send(&[header, GET].concat());
        assert_eq!(client.response().status, 200);
        assert_eq!(server.seen().last().unwrap().peer, client.address());
    }
}

#[test]
fn fields_are_believed_if_the_client_of_the_proxy_header_is_trusted() {
    let server = Server::start(expecting(Versions::V1, &["127.0.0.1", "10.0.0.0/8"]));
    let request = b"GET /a HTTP/1.1\r\nHost: inner\r\nX-Forwarded-For: 203.0.113.9\r\n\r\n".as_slice();
    for (header, client) in [
        (b"PROXY TCP4 10.0.0.2 10.0.0.1 4711 80\r\n".as_slice(), "203.0.113.9:0"),
        (b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 80\r\n", "192.0.2.7:4711"),
    ] {
        let mut connection = server.connect();
        connection.send(&[header, request].concat());
        assert_eq!(connection.response().status, 200);
        assert_eq!(server.seen().last().unwrap().peer, address(client));
    }
    let line = server.take_logged("a request from 192.0.2.7 had");
    assert!(line.contains("Have your proxy remove them. Add 192.0.2.7 to --trusted-proxies only"), "{line}");
}

#[test]
fn a_connection_that_does_not_begin_with_a_proxy_header_is_closed() {
    let server = Server::start(expecting(Versions::V1, &["127.0.0.1"]));
    for bytes in [GET, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", BINARY, b"PROXY TCP4 x\r\n", b"PROXY\r\n\r\n"] {
        let mut client = server.connect();
        client.send(bytes);
        assert!(client.rest().0.is_empty());
    }
    server.take_logged("a connection from 127.0.0.1 was closed: the connection does not begin with a PROXY header.");
    assert!(server.seen().is_empty());
    assert_eq!(server.refused(), 5);
}

#[test]
fn a_proxy_header_of_anybody_else_is_not_read() {
    let server = Server::start(expecting(Versions::Any, &["unix"]));
    for _ in 0..2 {
        let mut client = server.connect();
        client.send(&[LINE, GET].concat());
        assert!(client.rest().0.is_empty());
    }
    server.take_logged("add 127.0.0.1 to --trusted-proxies");
    assert_eq!(server.refused(), 2);
    let mut client = server.connect_unix();
    client.send(&[LINE, GET].concat());
    assert_eq!(client.response().status, 200);
}

#[test]
fn a_proxy_header_to_a_listener_that_expects_none_is_a_malformed_request() {
    let server = Server::start(trusting(&["127.0.0.1"]));
    for header in [LINE, BINARY] {
        let mut client = server.connect();
        client.send(&[header, GET].concat());
        assert_eq!(client.response().status, 400);
    }
}

#[test]
fn a_client_that_does_not_send_the_header_in_time_is_disconnected() {
    for sent in [b"".as_slice(), b"PROXY TCP4 ", &BINARY[..20]] {
        let config = Config { header_timeout: SOON, ..expecting(Versions::Any, &["127.0.0.1"]) };
        let server = Server::start(config);
        let mut client = server.connect();
        client.send(sent);
        client.at_end();
    }
}

#[test]
fn a_connection_without_its_header_yet_is_closed_for_a_new_client_after_those_that_are_idle_for_longer() {
    let config = expecting(Versions::Any, &["127.0.0.1"]);
    let server = Server::start(Config { max_connections: 2, executor: ExecutorKind::Inline, ..config });
    // The times are those of the deadlines, which must not be before the start of the clock.
    server.advance_clock(Duration::from_secs(100));
    let ask = |client: &mut Client| {
        client.send(&[LINE, GET].concat());
        client.response().status
    };
    let mut idle = server.connect();
    assert_eq!(ask(&mut idle), 200);
    server.advance_clock(Duration::from_secs(5));
    let mut late = server.connect();
    assert_eq!(ask(&mut server.connect()), 200);
    idle.at_end();
    assert_eq!(ask(&mut late), 200);
    server.take_logged("1 idle connection was closed for new clients");
}

#[test]
fn after_the_header_a_connection_may_be_idle() {
    let (late, keepalive_timeout) = (Duration::from_secs(1_000), Duration::from_secs(5_000));
    let config = Config { header_timeout: late, keepalive_timeout, ..expecting(Versions::Any, &["127.0.0.1"]) };
    let server = Server::start(Config { executor: ExecutorKind::Inline, ..config });
    let (mut whole, mut pieces) = (server.connect(), server.connect());
    whole.send(LINE);
    pieces.send_by_bytes(LINE);
    // They have been read when what comes later is answered.
    let mut other = server.connect();
    other.send(&[LINE, GET].concat());
    assert_eq!(other.response().status, 200);
    server.advance_clock(2 * late);
    for client in [&mut whole, &mut pieces] {
        assert_eq!(client.get("/a").status, 200);
    }
}

#[test]
fn a_stop_ends_connections_that_have_sent_a_part_of_the_header_or_all_of_it() {
    let server = Server::start(expecting(Versions::Any, &["127.0.0.1"]));
    let mut client = server.connect();
    client.send(&[LINE, GET].concat());
    assert_eq!(client.response().status, 200);
    let mut half = server.connect();
    half.send(b"PROXY ");
    half.half_close();
    half.at_end();
    server.begin_stop(Duration::from_secs(10));
    client.at_end();
}
