//! uwsgi listeners: requests as packets, and responses that end with their connection.

use std::time::Duration;

use crate::harness::client::{Client, End};
use crate::harness::{Config, ExecutorKind, ListenerConfig, ListenerProtocol, Server, Versions, pattern};
use crate::packet::packet;
use tailrace_http::trust::{ForwardedFields, Trust};

/// Longer than any pause of a test.
const LONG: Duration = Duration::from_secs(60);

/// Both listeners speak uwsgi; everybody is trusted.
fn config() -> Config {
    let listener = ListenerConfig { protocol: ListenerProtocol::Uwsgi, ..ListenerConfig::default() };
    Config { listeners: vec![listener; 2], trust: Trust::of(["*"], ForwardedFields::ANY).unwrap(), ..Config::default() }
}

/// A request with a body, and what nginx sends besides.
fn request(method: &str, target: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len().to_string();
    let head = packet(&[
        ("REQUEST_METHOD", method),
        ("REQUEST_URI", target),
        ("CONTENT_LENGTH", if body.is_empty() { "" } else { &length }),
        ("CONTENT_TYPE", ""),
        ("SERVER_PROTOCOL", "HTTP/1.1"),
        ("REMOTE_ADDR", "192.0.2.7"),
        ("REMOTE_PORT", "4711"),
        ("HTTP_HOST", "example.org"),
        ("HTTP_EXPECT", "100-continue"),
        ("HTTP_CONNECTION", "keep-alive"),
        ("HTTP_X_A", "1"),
        ("HTTP_X_A", "2"),
    ]);
    [&head, body].concat()
}

/// Reads a response to its end: the status line and the fields, the body, and how the connection ended.
#[track_caller]
fn answer(client: &mut Client) -> (String, Vec<u8>, End) {
    let (bytes, end) = client.rest();
    let blank = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(bytes[..blank].to_vec()).unwrap();
    for field in ["Transfer-Encoding", "Connection", "Date", "Server"] {
        assert!(!head.contains(&format!("\r\n{field}:")), "{head}");
    }
    (head, bytes[blank + 4..].to_vec(), end)
}

#[track_caller]
fn asked(mut client: Client, bytes: &[u8]) -> (String, Vec<u8>, End) {
    client.send(bytes);
    answer(&mut client)
}

#[test]
fn a_packet_is_served_over_tcp_and_over_a_unix_socket_and_the_connection_ends() {
    for executor in [ExecutorKind::Threads, ExecutorKind::Inline] {
        let server = Server::start(Config { executor, ..config() });
        for client in [server.connect(), server.connect_unix()] {
            let (head, body, end) = asked(client, &request("GET", "/pong?a", b""));
            assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("\r\nContent-Length: 4"), "{head}");
            assert_eq!((body.as_slice(), end), (&b"pong"[..], End::Closed));
        }
        for seen in server.stop().seen {
            assert_eq!((seen.method.as_str(), seen.path.as_str(), seen.query.as_deref()), ("GET", "/pong", Some("a")));
            assert_eq!(seen.host.as_deref(), Some("example.org"));
            assert_eq!(seen.peer, Some("192.0.2.7:4711".parse().unwrap()));
            let fields = [
                ("HOST", "example.org"),
                ("EXPECT", "100-continue"),
                ("CONNECTION", "keep-alive"),
                ("X-A", "1"),
                ("X-A", "2"),
            ];
            let fields = fields.map(|(name, value)| (String::from(name), value.as_bytes().to_vec()));
            assert_eq!(seen.fields, fields);
        }
    }
}

#[test]
fn a_packet_may_arrive_in_any_pieces_and_a_body_by_length_follows() {
    for stream_body in [false, true] {
        for step in [1, 3, 100] {
            let server = Server::start(Config { stream_body, ..config() });
            let mut client = server.connect();
            // What follows the body belongs to nobody.
            let bytes = [request("POST", "/echo", b"hello"), b"rest".to_vec()].concat();
            client.send_in_pieces(&bytes, step);
            let (head, body, _) = answer(&mut client);
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            assert_eq!(body, b"hello");
            drop(client);
            assert_eq!(server.stop().seen.len(), 1);
        }
    }
}

#[test]
fn a_body_of_unknown_length_ends_with_the_connection() {
    let server = Server::start(config());
    let (head, body, end) = asked(server.connect(), &request("GET", "/blocks?count=50&size=1000", b""));
    assert!(head.starts_with("HTTP/1.1 200 ") && !head.contains("Content-Length"), "{head}");
    assert_eq!((body, end), (pattern(0, 50_000), End::Closed));
    let (head, body, end) = asked(server.connect(), &request("GET", "/file?size=300000", b""));
    assert!(head.contains("\r\nContent-Length: 300000"), "{head}");
    assert_eq!((body, end), (pattern(0, 300_000), End::Closed));
    let (head, body, _) = asked(server.connect(), &request("HEAD", "/pong", b""));
    assert!(head.contains("\r\nContent-Length: 4"), "{head}");
    assert_eq!(body, b"");
}

#[test]
fn a_large_body_goes_to_a_file_and_comes_back() {
    let sent = pattern(0, 3_000_000);
    for client in [Server::connect, Server::connect_unix] {
        let server = Server::start(Config { body_memory: 100_000, ..config() });
        let mut client = client(&server);
        client.send(&request("PUT", "/echo", &sent));
        let (_, body, end) = answer(&mut client);
        assert_eq!((body.len(), end), (sent.len(), End::Closed));
        assert!(body == sent);
        drop(client);
    }
}

#[test]
fn a_response_that_breaks_off_is_a_reset() {
    let server = Server::start(config());
    let mut client = server.connect();
    client.send(&request("GET", "/fail?count=2&size=1000", b""));
    let (_, end) = client.rest();
    assert_eq!(end, End::Reset);
    let (_, body, end) = asked(server.connect(), &request("GET", "/blocks?count=1&size=10&length=20", b""));
    assert_eq!((body.len(), end), (10, End::Closed), "the Content-Length shows what is missing");
}

#[test]
fn a_peer_that_is_not_trusted_is_refused() {
    let server = Server::start(Config { trust: Trust::default(), ..config() });
    let (head, page, end) = asked(server.connect(), &request("GET", "/pong", b""));
    assert!(head.starts_with("HTTP/1.1 403 Forbidden"), "{head}");
    assert!(String::from_utf8(page).unwrap().contains("--trusted-proxies"));
    assert_eq!(end, End::Closed);
    server.take_logged("from 127.0.0.1 got 403: only trusted proxies may send uwsgi packets. If it is your");
    let (head, ..) = asked(server.connect_unix(), &request("GET", "/pong", b""));
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(server.stop().seen.len(), 1);
}

#[test]
fn a_packet_may_follow_a_proxy_header_whose_client_must_be_trusted_then() {
    let listener = ListenerConfig {
        protocol: ListenerProtocol::Uwsgi,
        proxy: Some(Versions::Any),
        is_encrypted: false,
        redirect: None,
        publishes: false,
    };
    let trust = Trust::of(["127.0.0.1", "10.0.0.2"], ForwardedFields::ANY).unwrap();
    let server = Server::start(Config { listeners: vec![listener; 2], trust, ..config() });
    let from = |header: &str| [header.as_bytes(), &request("POST", "/echo", b"hello")].concat();
    for header in ["PROXY TCP4 10.0.0.2 10.0.0.1 4711 80\r\n", "PROXY UNKNOWN\r\n"] {
        for step in [1, 1_000] {
            let mut client = server.connect();
            client.send_in_pieces(&from(header), step);
            let (head, body, end) = answer(&mut client);
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            assert_eq!((body.as_slice(), end), (&b"hello"[..], End::Closed));
        }
    }
    let (head, ..) = asked(server.connect(), &from("PROXY TCP4 10.0.0.3 10.0.0.1 4711 80\r\n"));
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    server.take_logged("add 10.0.0.3 to --trusted-proxies");
    let mut client = server.connect();
    client.send(&request("GET", "/pong", b""));
    assert!(client.rest().0.is_empty());
    server.take_logged("the connection does not begin with a PROXY header");
    let seen = server.stop().seen;
    assert_eq!(seen.len(), 4);
    assert!(seen.iter().all(|seen| seen.peer == Some("192.0.2.7:4711".parse().unwrap())), "{seen:?}");
}

#[test]
fn http_and_uwsgi_are_told_apart() {
    let server = Server::start(config());
    let (head, page, end) = asked(server.connect(), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 400 Bad Request"), "{head}");
    assert!(String::from_utf8(page).unwrap().contains("looks like HTTP"));
    assert_eq!(end, End::Closed);
    let server = Server::default();
    let mut client = server.connect();
    client.send(&request("GET", "/pong", b""));
    let response = client.response();
    assert_eq!(response.status, 400);
    assert!(String::from_utf8(response.body).unwrap().contains("looks like the uwsgi protocol"));
}

#[test]
fn malformed_packets_and_large_bodies_are_refused() {
    let mut config = config();
    config.limits.body = 10;
    let server = Server::start(config);
    let twice = [("REQUEST_METHOD", "GET"), ("REQUEST_URI", "/"), ("REMOTE_USER", "a"), ("REMOTE_USER", "b")];
    for (bytes, status) in [
        (packet(&twice), 400),
        (packet(&twice[..1]), 400),
        (vec![5, 0, 0, 0], 400),
        (packet(&[twice[0], twice[1], ("REMOTE_ADDR", "localhost")]), 400),
        (packet(&[twice[0], twice[1], ("CONTENT_LENGTH", "11")]), 413),
        (packet(&[twice[0], twice[1], ("CONTENT_LENGTH", "-1")]), 400),
    ] {
        let (head, ..) = asked(server.connect(), &bytes);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
    }
    assert_eq!(server.refused(), 6);
    assert_eq!(server.stop().seen.len(), 0);
}

#[test]
fn a_packet_or_a_body_that_does_not_arrive_is_refused() {
    let server = Server::start(Config { header_timeout: LONG, body_timeout: LONG, ..config() });
    let whole = request("POST", "/echo", b"hello");
    for length in [1, 4, 50, whole.len() - 1] {
        let mut client = server.connect();
        client.send(&whole[..length]);
        let mut cut = server.connect();
        cut.send(&whole[..length]);
        cut.half_close();
        assert!(answer(&mut cut).0.starts_with("HTTP/1.1 400 "));
        server.advance_clock(2 * LONG);
        assert!(answer(&mut client).0.starts_with("HTTP/1.1 408 "));
    }
    assert_eq!(server.stop().seen.len(), 0);
}
