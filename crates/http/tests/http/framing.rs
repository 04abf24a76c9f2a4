//! Body length and connection options: RFC 9112 sections 3.2, 6 and 9, RFC 9110 sections 7.6.1, 8.6 and 10.1.1.

use crate::wire;
use tailrace_http::framing::{BodyLength, RequestFacts, RequestFraming, ResponseFormat, request_framing};
use tailrace_http::head::{HeadParser, HeadStep};
use tailrace_http::limits::{Limits, Refusal};
use tailrace_http::request_head::RequestHead;

fn framing_of(version: &str, lines: &str) -> Result<RequestFraming, Refusal> {
    framing_with("POST", version, lines)
}

/// The framing of a head with these lines after the request line; the Host field is added for 1.1.
fn framing_with(method: &str, version: &str, lines: &str) -> Result<RequestFraming, Refusal> {
    let host = if version == "1.1" { "Host: a\r\n" } else { "" };
    let bytes = format!("{method} / HTTP/{version}\r\n{host}{lines}\r\n");
    let (mut head, limits) = (RequestHead::default(), Limits { body: 1000, ..Limits::default() });
    assert_eq!(HeadParser::default().parse(bytes.as_bytes(), &limits, &mut head), HeadStep::Complete, "{lines}");
    request_framing(bytes.as_bytes(), &head, &limits)
}

fn status(version: &str, lines: &str) -> u16 {
    framing_of(version, lines).map_or_else(|refusal| refusal.status, |_| 0)
}

#[test]
fn content_length() {
    for (value, length) in
        [("0", 0), ("5", 5), ("007", 7), ("1000", 1000), ("0000000000000000000000000005", 5), (" \t5\t ", 5)]
    {
        let framing = framing_of("1.1", &format!("Content-Length: {value}\r\n")).unwrap();
        assert_eq!(framing.body, BodyLength::Known(length), "{value}");
    }
    assert_eq!(framing_of("1.1", "").unwrap().body, BodyLength::None);
    assert_eq!(framing_of("1.0", "cOnTeNt-LeNgTh: 5\r\n").unwrap().body, BodyLength::Known(5));
    for value in [
        "", "+5", "-1", "-0", "5 5", "5,5", "5, 5", "5,", ",5", "0x5", "5a", "a", "5.0", "1e2", "\"5\"", "5;",
        "\u{0665}", "\u{ff15}", "5_0", "\u{b2}",
    ] {
        assert_eq!(status("1.1", &format!("Content-Length: {value}\r\n")), 400, "{value}");
    }
    for value in
        ["1001", "18446744073709551615", "18446744073709551616", "18446744073709551621", "99999999999999999999999"]
    {
        assert_eq!(status("1.1", &format!("Content-Length: {value}\r\n")), 413, "{value}");
    }
    for lines in [
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\r\nX: y\r\ncontent-length: 5\r\n",
        "Content-Length: 5\r\nContent-Length:\r\n",
    ] {
        assert_eq!(status("1.1", lines), 400, "{lines}");
    }
    for name in ["Content_Length", "Content-Length-X", "Content-Lengt", "X-Content-Length"] {
        assert_eq!(framing_of("1.1", &format!("{name}: x\r\n")).unwrap().body, BodyLength::None, "{name}");
    }
}

#[test]
fn fields_of_proxies_are_noticed() {
    for name in ["Forwarded", "X-Forwarded-For", "x-forwarded-host", "X-Forwarded-Prefix"] {
        assert!(framing_of("1.1", &format!("{name}: a\r\nX: y\r\n")).unwrap().has_forwarded, "{name}");
    }
    for name in ["X-Forwarded-User", "Forwarde", "Fordwarded", "X-Forwarded-Fro"] {
        assert!(!framing_of("1.1", &format!("{name}: a\r\n")).unwrap().has_forwarded, "{name}");
    }
}

#[test]
fn the_last_time_at_which_a_proxy_received_the_request_is_found() {
    for fields in [
        "X-Request-Start: 2",
        "x-queue-start: 2",
        "X-Queue-Start: 1\r\nX-REQUEST-START: 2",
        "X-Request-Start: 1\r\nX-Request-Start: 2",
    ] {
        let framing = framing_of("1.1", &format!("{fields}\r\nX-Last: 3\r\n")).unwrap();
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}");
        assert_eq!(framing.start.map(|start| start.of(head.as_bytes())), Some(b"2".as_slice()), "{fields}");
        assert!(!framing.has_forwarded, "{fields}");
    }
    for fields in ["X-Request-Starts: 2", "X_Request_Start: 2", "X-Requester-Is: 2", "Cache-Control: 2"] {
        assert_eq!(framing_of("1.1", &format!("{fields}\r\n")).unwrap().start, None, "{fields}");
    }
}

#[test]
fn a_request_asks_for_a_web_socket_by_both_fields_and_without_a_body() {
    let both = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
    for (method, version, lines, asks) in [
        ("GET", "1.1", both, true),
        ("GET", "1.1", "UPGRADE: WebSocket\r\nCONNECTION: keep-alive, upgrade\r\n", true),
        ("GET", "1.1", "Connection: upgrade\r\nUpgrade: h2c , websocket\r\n", true),
        ("GET", "1.1", "Connection: upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n", true),
        ("GET", "1.1", "Connection: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n", true),
        ("GET", "1.1", "Upgrade: websocket\r\n", false),
        ("GET", "1.1", "Connection: upgrade\r\n", false),
        ("GET", "1.1", "Connection: upgrade\r\nUpgrade: websockets\r\n", false),
        ("GET", "1.1", "Connection: upgraded\r\nUpgrade: websocket\r\n", false),
        ("GET", "1.1", "Connection: upgrade\r\nUpgraded: websocket\r\n", false),
        ("GET", "1.0", both, false),
        ("POST", "1.1", both, false),
        ("get", "1.1", both, false),
        ("GET", "1.1", &format!("{both}Content-Length: 1\r\n"), false),
        ("GET", "1.1", &format!("{both}Content-Length: 0\r\n"), false),
        ("GET", "1.1", &format!("{both}Transfer-Encoding: chunked\r\n"), false),
    ] {
        let framing = framing_with(method, version, lines).unwrap();
        assert_eq!(framing.web_socket, asks, "{method} {version} {lines}");
    }
}

#[test]
fn transfer_encoding() {
    for value in ["chunked", "CHUNKED", "cHuNkEd", " \tchunked\t "] {
        let framing = framing_of("1.1", &format!("Transfer-Encoding: {value}\r\n")).unwrap();
        assert_eq!(framing.body, BodyLength::Chunked, "{value}");
    }
    for value in ["gzip, chunked", "gzip,chunked", "deflate , gzip ,chunked", "identity, chunked", "x, chunked"] {
        assert_eq!(status("1.1", &format!("Transfer-Encoding: {value}\r\n")), 501, "{value}");
    }
    for value in [
        "",
        ",",
        "chunked,",
        ",chunked",
        "chunked,,chunked",
        "gzip",
        "identity",
        "xchunked",
        "chunkedx",
        "chunked, gzip",
        "chunked, identity",
        "chunked, chunked",
        "chunked;x",
        "chunked;q=1",
        "chunked; foo=bar",
        "\"chunked\"",
        "'chunked'",
        "chunked (x)",
        "chunked chunked",
        "chunk ed",
        "chunked\u{a0}",
        "\u{a0}chunked",
        // In Unicode, its lower case is k.
        "chun\u{212a}ed",
        "chunked:",
        "[chunked]",
        "gzip;q=1, chunked",
    ] {
        assert_eq!(status("1.1", &format!("Transfer-Encoding: {value}\r\n")), 400, "{value}");
    }
    for (lines, expected) in [
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", 400),
        ("Transfer-Encoding: chunked\r\ntransfer-encoding: x\r\n", 400),
        ("Transfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n", 501),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", 400),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400),
        ("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", 400),
        ("Content-Length: 5\r\nTransfer-Encoding: x\r\n", 400),
    ] {
        assert_eq!(status("1.1", lines), expected, "{lines}");
    }
    assert_eq!(framing_of("1.1", "Transfer_Encoding: chunked\r\n").unwrap().body, BodyLength::None);
    for value in ["chunked", "identity", "gzip, chunked"] {
        assert_eq!(status("1.0", &format!("Transfer-Encoding: {value}\r\n")), 400, "1.0: {value}");
    }
}

#[test]
fn persistence() {
    for (version, lines, keep_alive) in [
        ("1.1", "", true),
        ("1.1", "Connection: keep-alive\r\n", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: CLOSE\r\n", false),
        ("1.1", "Connection: keep-alive, close\r\n", false),
        ("1.1", "Connection: close, keep-alive\r\n", false),
        ("1.1", "Connection: ,, \t close ,\r\n", false),
        ("1.1", "Connection: keep-alive\r\nConnection: close\r\n", false),
        ("1.1", "Connection: close\r\nConnection: keep-alive\r\n", false),
        ("1.1", "Connection: closed\r\n", true),
        ("1.1", "Connection: not-close\r\n", true),
        ("1.1", "Connection: upgrade\r\nUpgrade: websocket\r\n", true),
        ("1.1", "Proxy-Connection: close\r\n", true),
        ("1.1", "User-Agent: close\r\n", true),
        ("1.1", "Connection:\r\n", true),
        ("1.0", "", false),
        ("1.0", "Connection: keep-alive\r\n", true),
        ("1.0", "Connection: Keep-Alive\r\n", true),
        ("1.0", "Connection: x, keep-alive\r\n", true),
        ("1.0", "Connection: keep-alive, close\r\n", false),
        ("1.0", "Connection: close\r\n", false),
        ("1.0", "Connection: x\r\n", false),
        ("1.0", "Keep-Alive: timeout=5\r\n", false),
    ] {
        assert_eq!(framing_of(version, lines).unwrap().keep_alive, keep_alive, "{version} {lines}");
    }
}

#[test]
fn expectations() {
    for (version, lines, expected) in [
        ("1.1", "Content-Length: 5\r\nExpect: 100-continue\r\n", Ok(true)),
        ("1.1", "Expect: 100-CONTINUE\r\nTransfer-Encoding: chunked\r\n", Ok(true)),
        ("1.1", "Expect: 100-continue\r\nExpect: 100-continue\r\nContent-Length: 5\r\n", Ok(true)),
        ("1.1", "Expect: 100-continue\r\n", Ok(false)),
        ("1.1", "Content-Length: 0\r\nExpect: 100-continue\r\n", Ok(false)),
        ("1.1", "Content-Length: 5\r\n", Ok(false)),
        ("1.1", "Content-Length: 5\r\nExpect:\r\n", Ok(false)),
        ("1.1", "Content-Length: 5\r\nExpect: 200-ok\r\n", Err(417)),
        ("1.1", "Content-Length: 5\r\nExpect: 100-continue, x\r\n", Err(417)),
        ("1.1", "Content-Length: 5\r\nExpect: x, 100-continue\r\n", Err(417)),
        ("1.1", "Content-Length: 5\r\nExpect: x\r\nExpect: 100-continue\r\n", Err(417)),
        ("1.1", "Content-Length: 5\r\nExpect: 100-continue;x\r\n", Err(417)),
        ("1.1", "Content-Length: 1001\r\nExpect: 100-continue\r\n", Err(413)),
        ("1.0", "Content-Length: 5\r\nExpect: 100-continue\r\n", Ok(false)),
        ("1.0", "Content-Length: 5\r\nExpect: x\r\n", Ok(false)),
    ] {
        let found =
            framing_of(version, lines).map(|framing| framing.expects_continue).map_err(|refusal| refusal.status);
        assert_eq!(found, expected, "{version} {lines}");
    }
}

#[test]
fn host_is_given_once() {
    wire::check(&[
        ("9112 3.2: no Host", b"GET / HTTP/1.1\r\n\r\n", 400),
        ("9112 3.2: two", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        ("9112 3.2: the same twice", b"GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", 400),
        ("9112 3.2: one of two empty", b"GET / HTTP/1.1\r\nHost:\r\nHost: a\r\n\r\n", 400),
        ("9112 3.2: two in 1.0", b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        ("9112 3.2: a malformed one in 1.0", b"GET / HTTP/1.0\r\nHost: a b\r\n\r\n", 400),
        ("9112 3.2: none in 1.0", b"GET / HTTP/1.0\r\n\r\n", wire::OK),
        ("9112 3.2: an empty one", b"GET / HTTP/1.1\r\nHost:\r\n\r\n", wire::OK),
        ("9112 3.2.2: absolute-form without Host", b"GET http://a/ HTTP/1.1\r\n\r\n", 400),
        ("9112 3.2.2: absolute-form, a malformed Host", b"GET http://a/ HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        ("9112 3.2.2: absolute-form in 1.0", b"GET http://a/ HTTP/1.0\r\n\r\n", wire::OK),
        ("9112 3.2: obs-text", b"GET / HTTP/1.1\r\nHost: \xe9\r\n\r\n", 400),
        ("X-Host is another field", b"GET / HTTP/1.1\r\nX-Host: a\r\n\r\n", 400),
    ]);
    let limits = Limits::default();
    let absolute = wire::read_three_ways(b"GET http://a/ HTTP/1.0\r\n\r\n", &limits).request();
    assert_eq!(absolute.host(), Some("a"));
    let none = wire::read_three_ways(b"GET / HTTP/1.0\r\n\r\n", &limits).request();
    assert_eq!(none.host(), None);
    let empty = wire::read_three_ways(b"GET / HTTP/1.1\r\nHost:\r\n\r\n", &limits).request();
    assert_eq!(empty.host(), Some(""));
}

#[test]
fn any_method_may_have_a_body() {
    for method in ["GET", "HEAD", "DELETE", "OPTIONS", "TRACE", "BREW"] {
        let bytes = format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
        let request = wire::read_three_ways(bytes.as_bytes(), &Limits::default()).request();
        assert_eq!(request.body, b"hello", "{method}");
    }
}

#[test]
fn the_facts_of_a_request() {
    let bytes = b"HEAD / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    let request = wire::read_three_ways(bytes, &Limits::default()).request();
    let facts = RequestFacts::of(&request.bytes, &request.head, &request.framing);
    assert_eq!(facts, RequestFacts { format: ResponseFormat::Http10, is_head: true, keep_alive: true });
    let refused = RequestFacts::of_refused(&request.bytes, &request.head);
    assert_eq!(refused, RequestFacts { keep_alive: false, ..facts });
    let nothing = RequestFacts::of_refused(b"", &RequestHead::default());
    assert_eq!(nothing, RequestFacts { format: ResponseFormat::Http11, is_head: false, keep_alive: false });
}
