//! Packets of the uwsgi protocol as request heads. Each case runs whole, octet by octet, and with a body behind it.

use std::net::SocketAddr;

use crate::packet::{packed, packet, pair};
use crate::properties::with_changes;
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::sample::{Index, select};
use proptest::strategy::Strategy;
use tailrace_http::framing::{BodyLength, RequestFacts, RequestFraming, ResponseFormat, packet_framing};
use tailrace_http::head::{HeadParser, HeadStep};
use tailrace_http::limits::{Limits, Refusal};
use tailrace_http::request_head::{Field, RequestHead, Span, TargetForm, Version};
use tailrace_http::uwsgi::{client, is_https, name_fields, parse, variable_of};

type Variables<'a> = &'a [(&'a str, &'a str)];

/// What the smallest request has.
const GET: Variables<'static> = &[("REQUEST_METHOD", "GET"), ("REQUEST_URI", "/a?b")];

#[derive(Debug, PartialEq)]
struct Request {
    bytes: Vec<u8>,
    head: RequestHead,
    framing: RequestFraming,
}

impl Request {
    fn text(&self, span: Span) -> &str {
        std::str::from_utf8(span.of(&self.bytes)).unwrap()
    }

    fn pairs(&self, list: &[Field]) -> Vec<(&str, &str)> {
        list.iter().map(|field| (self.text(field.name), self.text(field.value))).collect()
    }
}

/// Reads the packet that `bytes` starts with, which arrives cut at `cuts`; `None`: it is not complete. Also returns how
/// many octets had arrived then.
fn read_cut(
    bytes: &[u8],
    cuts: impl IntoIterator<Item = usize>,
    limits: &Limits,
) -> (Option<Result<Request, Refusal>>, usize) {
    let mut head = RequestHead::default();
    for end in cuts.into_iter().chain([bytes.len()]) {
        match parse(&bytes[..end], limits, &mut head) {
            HeadStep::NeedMore => {}
            HeadStep::Refused(refusal) => return (Some(Err(refusal)), end),
            HeadStep::Complete => {
                let mut bytes = bytes[..head.length].to_vec();
                name_fields(&mut bytes, &head);
                let framing = packet_framing(&bytes, &head, limits);
                return (Some(framing.map(|framing| Request { bytes, head, framing })), end);
            }
        }
    }
    (None, bytes.len())
}

fn read(bytes: &[u8], limits: &Limits) -> Option<Result<Request, Refusal>> {
    let (whole, _) = read_cut(bytes, [], limits);
    assert_eq!(whole, read_cut(bytes, 0..bytes.len(), limits).0, "octet by octet");
    if whole.is_some() {
        assert_eq!(whole, read_cut(&[bytes, b"body"].concat(), [], limits).0, "with a body behind it");
    }
    whole
}

fn request(variables: Variables<'_>) -> Request {
    read(&packet(variables), &Limits::default()).unwrap().unwrap()
}

/// The status of the refusal, or 0, of `GET` with these variables behind it.
fn code<N: AsRef<[u8]>, V: AsRef<[u8]>>(more: &[(N, V)]) -> u16 {
    let more = more.iter().map(|(name, value)| (name.as_ref(), value.as_ref()));
    let variables: Vec<_> = GET.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).chain(more).collect();
    match read(&packet(&variables), &Limits::default()) {
        Some(Ok(_)) => 0,
        Some(Err(refusal)) => refusal.status,
        None => panic!("incomplete"),
    }
}

#[test]
fn a_packet_of_nginx_is_a_request_head() {
    let request = request(&[
        ("QUERY_STRING", "q"),
        ("REQUEST_METHOD", "POST"),
        ("CONTENT_TYPE", "text/plain"),
        ("CONTENT_LENGTH", "5"),
        ("REQUEST_URI", "/app/x%2Fy?q"),
        ("PATH_INFO", "/app/x/y"),
        ("SERVER_PROTOCOL", "HTTP/1.1"),
        ("REMOTE_ADDR", "192.0.2.1"),
        ("HTTP_HOST", "example.org"),
        ("HTTP_ACCEPT_ENCODING", " gzip\t"),
        ("HTTP_CONTENT_LENGTH", "5"),
        ("HTTP_CONTENT_TYPE", "text/plain"),
        ("HTTP_TRANSFER_ENCODING", "chunked"),
        ("HTTP_X_A", "1"),
        ("HTTP_X_A", "2"),
    ]);
    assert_eq!(request.text(request.head.method), "POST");
    assert_eq!(request.text(request.head.target), "/app/x%2Fy?q");
    assert_eq!(request.text(request.head.path), "/app/x%2Fy");
    assert_eq!(request.head.query.map(|query| request.text(query)), Some("q"));
    assert_eq!(request.head.version, Version::Http11);
    let fields = [
        ("CONTENT-TYPE", "text/plain"),
        ("CONTENT-LENGTH", "5"),
        ("HOST", "example.org"),
        ("ACCEPT-ENCODING", "gzip"),
        ("X-A", "1"),
        ("X-A", "2"),
    ];
    assert_eq!(request.pairs(&request.head.fields), fields);
    let variables = [
        ("QUERY_STRING", "q"),
        ("PATH_INFO", "/app/x/y"),
        ("SERVER_PROTOCOL", "HTTP/1.1"),
        ("REMOTE_ADDR", "192.0.2.1"),
    ];
    assert_eq!(request.pairs(&request.head.variables), variables);
    let RequestFraming { body, keep_alive, expects_continue, host, has_forwarded, has_grip, start, web_socket } =
        request.framing;
    assert_eq!((body, keep_alive, expects_continue), (BodyLength::Known(5), false, false));
    assert!(!has_forwarded && !has_grip && start.is_none() && !web_socket);
    assert_eq!(host.map(|host| request.text(host)), Some("example.org"));
}

#[test]
fn the_host_and_the_fields_of_proxies_are_found_among_fields_of_the_same_length() {
    let forwarded = [GET[0], GET[1], ("HTTP_HOST", "a"), ("HTTP_LINK", "b"), ("HTTP_FORWARDED", "for=_x")];
    let framing = request(&forwarded).framing;
    assert_eq!(framing.host.map(|host| host.of(&packet(&forwarded)).to_vec()), Some(b"a".to_vec()));
    assert!(framing.has_forwarded);
    let charset = request(&[GET[0], GET[1], ("CONTENT_LENGTH", "3"), ("HTTP_ACCEPT_CHARSET", "5")]);
    assert_eq!(charset.framing.body, BodyLength::Known(3));
    let request = request(&[GET[0], GET[1], ("HTTP_X_FORWARDED_FOR", "192.0.2.1")]);
    assert!(request.framing.has_forwarded);
    let facts = RequestFacts::of_packet(&request.bytes, &request.head);
    assert_eq!(facts, RequestFacts { format: ResponseFormat::Packet, is_head: false, keep_alive: false });
}

#[test]
fn empty_lengths_and_types_are_none() {
    let request = request(&[GET[0], GET[1], ("CONTENT_LENGTH", ""), ("CONTENT_TYPE", "")]);
    assert_eq!(request.head.fields, []);
    assert_eq!(request.framing.body, BodyLength::None);
    assert_eq!(request.framing.host, None);
}

#[test]
fn what_is_between_the_proxy_and_its_client_has_no_effect() {
    let mut variables = GET.to_vec();
    variables.extend([
        ("SERVER_PROTOCOL", "HTTP/1.1"),
        ("CONTENT_LENGTH", "3"),
        ("HTTP_CONNECTION", "keep-alive"),
        ("HTTP_EXPECT", "200-ok"),
        ("HTTP_transfer-encoding", "chunked"),
        ("HTTP_Content-Length", "7"),
        ("HTTP_CONTENTXLENGTH", "8"),
    ]);
    let request = request(&variables);
    assert_eq!(request.framing, RequestFraming { body: BodyLength::Known(3), ..RequestFraming::default() });
    assert_eq!(request.head.fields.len(), 4);
}

#[test]
fn a_version_and_an_absolute_target_are_read() {
    let request = request(&[
        ("REQUEST_METHOD", "GET"),
        ("REQUEST_URI", "http://outer/x"),
        ("SERVER_PROTOCOL", "HTTP/1.0"),
        ("HTTP_HOST", "inner"),
    ]);
    assert_eq!((request.head.version, request.head.form), (Version::Http10, TargetForm::Absolute));
    assert_eq!(request.framing.host.map(|host| request.text(host)), Some("outer"));
    assert_eq!(request.text(request.head.path), "/x");
}

#[test]
fn ambiguous_and_malformed_variables_are_refused() {
    let cases: [(&str, &str, u16); 39] = [
        ("CONTENT_LENGTH", "5", 0),
        ("CONTENT_LENGTH", "+5", 400),
        ("CONTENT_LENGTH", "5, 5", 400),
        ("CONTENT_LENGTH", "5\0", 400),
        ("CONTENT_LENGTH", "1073741824", 0),
        ("CONTENT_LENGTH", "1073741825", 413),
        ("CONTENT_LENGTH", "99999999999999999999", 413),
        ("HTTP_HOST", "a", 0),
        ("HTTP_HOST", "a,b", 400),
        ("HTTP_HOST", "", 0),
        ("HTTP_", "x", 400),
        ("HTTP_A B", "x", 400),
        ("HTTP_A(", "x", 400),
        ("HTTP_A", "x\r\ny", 400),
        ("HTTP_A", "x\u{1}", 400),
        ("HTTP_A", "\u{e9}", 0),
        ("", "x", 400),
        ("A=B", "x", 400),
        ("A\0", "x", 400),
        ("A\n", "x", 400),
        ("A B", "x", 400),
        ("\u{e9}", "x", 400),
        ("A", "x\0", 400),
        ("SSL_CLIENT_CERT", "-----BEGIN CERTIFICATE-----\n\tMIIB\n\t-----END CERTIFICATE-----\n", 0),
        ("A", "x\r\ny", 0),
        ("QUERY_STRING", "x\ny", 400),
        ("REMOTE_USER", "x\ny", 400),
        ("SERVER_NAME", "x\ry", 400),
        ("SERVER_PROTOCOL", "x\ny", 400),
        ("SERVER_PORT", "x\ny", 400),
        ("SERVER_SIGNATURE", "<address>Apache</address>\n", 0),
        ("A", "x\u{1}", 0),
        ("a.b", "", 0),
        ("PATH_INFO", "/a\r\n\0", 0),
        ("SCRIPT_NAME", "/a\nb", 0),
        ("REQUEST_METHOD", "GET", 400),
        ("REQUEST_URI", "/a?b", 400),
        ("QUERY_STRING", "b", 0),
        ("SERVER_PROTOCOL", "HTTP/3.0", 0),
    ];
    for (name, value, expected) in cases {
        assert_eq!(code(&[(name, value)]), expected, "{name:?}={value:?}");
    }
    for name in ["CONTENT_LENGTH", "CONTENT_TYPE", "HTTP_HOST", "REMOTE_ADDR", "REMOTE_PORT", "REMOTE_USER"] {
        assert_eq!(code(&[(name, "1"), (name, "1")]), 400, "{name}");
        assert_eq!(code(&[(name, ""), (name, "1")]), 400, "{name}");
    }
    assert_eq!(code(&[("HTTP_HOST", "a"), ("HTTP_host", "a")]), 400);
    assert_eq!(code(&[("PATH_INFO", "/1"), ("PATH_INFO", "/2")]), 0);
}

#[test]
fn a_request_line_has_the_limits_of_http() {
    let of = |method: &str, target: &str| match read(
        &packet(&[("REQUEST_METHOD", method), ("REQUEST_URI", target)]),
        &Limits::default(),
    ) {
        Some(Ok(_)) => 0,
        Some(Err(refusal)) => refusal.status,
        None => panic!("incomplete"),
    };
    let long = |length: usize| format!("/{}", "a".repeat(length - "GET / HTTP/1.1".len()));
    let cases: [(&str, &str, u16); 14] = [
        ("GET", &long(8190), 0),
        ("GET", &long(8191), 414),
        ("get", "/", 0),
        ("", "/", 400),
        ("G T", "/", 400),
        (&"G".repeat(64), "/", 0),
        (&"G".repeat(65), "/", 501),
        ("GET", "", 400),
        ("GET", "a", 400),
        ("GET", "/ b", 400),
        ("GET", "/#b", 400),
        ("GET", "/\u{e9}", 400),
        ("OPTIONS", "*", 0),
        ("CONNECT", "a:80", 501),
    ];
    for (method, target, expected) in cases {
        assert_eq!(of(method, target), expected, "{method} {target:.20}");
    }
}

#[test]
fn a_request_without_a_method_or_a_target_is_refused() {
    for variables in [&GET[..1], &GET[1..], &[]] {
        let refusal = read(&packet(variables), &Limits::default()).unwrap().unwrap_err();
        assert_eq!(refusal.status, 400);
    }
}

#[test]
fn what_is_no_packet_of_a_wsgi_request_is_refused_at_once() {
    let limits = Limits::default();
    for (bytes, word) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "HTTP"),
        (b"PROXY TCP4 192.0.2.1", "HTTP"),
        (&[5, 0, 0, 0], "modifiers"),
        (&[0x16, 3, 1, 0], "modifiers"),
        (b"\r\n\r\n\0\0\x05\0", "modifiers"),
    ] {
        let (outcome, arrived) = read_cut(bytes, 0..bytes.len(), &limits);
        let refusal = outcome.unwrap().unwrap_err();
        assert_eq!((refusal.status, arrived), (400, 1));
        assert!(refusal.reason.contains(word), "{}", refusal.reason);
    }
    assert_eq!(read(&[0, 5, 0, 1], &limits).unwrap().unwrap_err().status, 400);
    assert_eq!(read(&[0, 5, 0], &limits), None);
}

#[test]
fn a_packet_on_a_port_of_http_is_told_so() {
    let step = HeadParser::default().parse(&packet(GET), &Limits::default(), &mut RequestHead::default());
    assert!(matches!(step, HeadStep::Refused(refusal) if refusal.status == 400 && refusal.reason.contains("uwsgi")));
}

#[test]
fn lengths_that_do_not_fill_the_packet_are_refused() {
    let good = packet(GET);
    let block = &good[4..];
    let cut = |length: usize| packed(&block[..length]);
    let more = |rest: &[u8]| packed(&[block, rest].concat());
    for bytes in [
        cut(1),
        cut(10),
        cut(block.len() - 1),
        more(&[1]),
        more(&[0, 0]),
        more(&[1, 0, b'A']),
        more(&[1, 0, b'A', 1, 0]),
    ] {
        assert_eq!(read(&bytes, &Limits::default()).unwrap().unwrap_err().status, 400, "{}", bytes.escape_ascii());
    }
    assert!(read(&more(&pair(b"A", b"")), &Limits::default()).unwrap().is_ok());
    assert_eq!(read(&good[..good.len() - 1], &Limits::default()), None);
}

#[test]
fn large_packets_are_refused_before_they_arrive() {
    let limits = Limits { header_bytes: 100, header_count: 2, ..Limits::default() };
    let large = packet(&[GET[0], GET[1], ("A", &"a".repeat(100))]);
    let (outcome, arrived) = read_cut(&large, 0..large.len(), &limits);
    assert_eq!((outcome.unwrap().unwrap_err().status, arrived), (431, 4));
    let filling = 100 - (packet(GET).len() - 4) - 5;
    let fitting = packet(&[GET[0], GET[1], ("A", &"a".repeat(filling))]);
    assert_eq!(fitting.len(), 4 + 100);
    assert!(read(&fitting, &limits).unwrap().is_ok());
    let fields = [GET[0], GET[1], ("HTTP_A", ""), ("HTTP_B", ""), ("HTTP_C", "")];
    assert!(read(&packet(&fields[..4]), &limits).unwrap().is_ok());
    assert_eq!(read(&packet(&fields), &limits).unwrap().unwrap_err().status, 431);
    // All that the size of a packet can say is read.
    let filling = 65_535 - (packet(GET).len() - 4) - 5;
    let largest = packet(&[GET[0], GET[1], ("A", &"a".repeat(filling))]);
    assert_eq!(largest.len(), 4 + 65_535);
    assert!(read_cut(&largest, [], &Limits::default()).0.unwrap().is_ok());
}

#[test]
fn the_last_of_several_variables_counts() {
    let request = request(&[GET[0], GET[1], ("PATH_INFO", "/1"), ("PATH_INFO", "/2")]);
    assert_eq!(variable_of(&request.bytes, &request.head, b"PATH_INFO"), Some(&b"/2"[..]));
    assert_eq!(variable_of(&request.bytes, &request.head, b"SCRIPT_NAME"), None);
}

#[test]
fn the_scheme_is_said_in_three_ways() {
    let cases: [(Variables<'_>, Option<bool>); 11] = [
        (&[], None),
        (&[("HTTPS", "on")], Some(true)),
        (&[("HTTPS", "1")], Some(true)),
        (&[("HTTPS", "")], None),
        (&[("HTTPS", "off")], Some(false)),
        (&[("REQUEST_SCHEME", "https")], Some(true)),
        (&[("REQUEST_SCHEME", "http")], Some(false)),
        (&[("HTTPS", ""), ("REQUEST_SCHEME", "http")], Some(false)),
        (&[("HTTPS", "on"), ("REQUEST_SCHEME", "https")], Some(true)),
        (&[("UWSGI_SCHEME", "https"), ("REQUEST_SCHEME", "http")], Some(true)),
        (&[("UWSGI_SCHEME", "http"), ("HTTPS", "on")], Some(false)),
    ];
    for (more, expected) in cases {
        let request = request(&[GET, more].concat());
        assert_eq!(is_https(&request.bytes, &request.head), expected, "{more:?}");
    }
}

#[test]
fn the_client_has_an_address_if_the_proxy_says_one() {
    let cases: [(Variables<'_>, Option<&str>); 8] = [
        (&[("REMOTE_ADDR", "192.0.2.1"), ("REMOTE_PORT", "4711")], Some("192.0.2.1:4711")),
        (&[("REMOTE_ADDR", "2001:db8::1"), ("REMOTE_PORT", "4711")], Some("[2001:db8::1]:4711")),
        (&[("REMOTE_ADDR", "fe80::1%eth0"), ("REMOTE_PORT", "4711")], Some("[fe80::1]:4711")),
        (&[("REMOTE_ADDR", "::ffff:192.0.2.1"), ("REMOTE_PORT", "4711")], Some("192.0.2.1:4711")),
        (&[("REMOTE_ADDR", "192.0.2.1"), ("REMOTE_PORT", "")], Some("192.0.2.1:0")),
        (&[("REMOTE_ADDR", "unix:"), ("REMOTE_PORT", "")], None),
        (&[("REMOTE_ADDR", "")], None),
        (&[("REMOTE_PORT", "4711")], None),
    ];
    for (more, expected) in cases {
        let request = request(&[GET, more].concat());
        let expected: Option<SocketAddr> = expected.map(|address| address.parse().unwrap());
        assert_eq!(client(&request.bytes, &request.head), Ok(expected), "{more:?}");
    }
    for wrong in ["localhost", "192.0.2.1, 192.0.2.2", "192.0.2", "\u{e9}", "%eth0", "192.0.2.1:80"] {
        let request = request(&[GET, &[("REMOTE_ADDR", wrong)]].concat());
        assert_eq!(client(&request.bytes, &request.head).unwrap_err().status, 400, "{wrong}");
    }
}

/// Packets that are valid or nearly so: variables in any combination, then up to two small changes.
fn nearly_valid() -> impl Strategy<Value = Vec<u8>> {
    let variable = select(vec![
        ("REQUEST_METHOD", "GET"),
        ("REQUEST_METHOD", "HEAD"),
        ("REQUEST_URI", "/a?b"),
        ("REQUEST_URI", "*"),
        ("CONTENT_LENGTH", "5"),
        ("CONTENT_LENGTH", ""),
        ("HTTP_HOST", "a"),
        ("HTTP_CONTENT_LENGTH", "6"),
        ("HTTP_TRANSFER_ENCODING", "chunked"),
        ("HTTP_X_A", " y\tz\t "),
        ("PATH_INFO", "/a\n"),
        ("REMOTE_ADDR", "192.0.2.1"),
        ("A", ""),
    ]);
    let change = prop_oneof![
        select(vec!["\0", "\u{1}", "\r\n", "=", "_", "-", "\u{e9}"]).prop_map(|piece| piece.as_bytes().to_vec()),
        vec(any::<u8>(), 0..3),
    ];
    let changes = vec((any::<Index>(), 0..3_usize, change), 0..3);
    (vec(variable, 0..8), any::<bool>(), changes).prop_map(|(variables, complete, changes)| {
        let all = if complete { [GET, &variables[..]].concat() } else { variables };
        with_changes(packet(&all), changes)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_result_does_not_depend_on_the_cuts(bytes in nearly_valid(), indices in vec(any::<Index>(), 0..6)) {
        let limits = Limits { request_line: 40, header_bytes: 300, header_count: 4, body: 5 };
        let mut cuts: Vec<usize> = indices.iter().map(|index| index.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let (whole, _) = read_cut(&bytes, [], &limits);
        prop_assert_eq!(&whole, &read_cut(&bytes, cuts, &limits).0);
        prop_assert_eq!(&whole, &read_cut(&bytes, 0..bytes.len(), &limits).0);
        if let Some(Ok(request)) = whole {
            let fields = request.head.fields.iter().map(|field| field.value.of(&request.bytes));
            prop_assert!(fields.flatten().all(|byte| !matches!(byte, b'\r' | b'\n' | 0)));
            prop_assert!(matches!(request.framing.body, BodyLength::None | BodyLength::Known(0..=5)));
        }
    }

    #[test]
    fn no_octets_cause_a_panic(mut bytes in vec(any::<u8>(), 0..200), is_packet in any::<bool>()) {
        if is_packet {
            bytes = packed(&bytes);
        }
        let limits = Limits { header_count: 3, ..Limits::default() };
        prop_assert_eq!(read_cut(&bytes, [], &limits).0, read_cut(&bytes, 0..bytes.len(), &limits).0);
    }

    #[test]
    fn variables_are_read_as_they_were_written(
        variables in vec(("[A-Z_a-z][A-Za-z.0-9]{0,20}", "[ -~]{0,40}"), 0..12),
        body in vec(any::<u8>(), 0..20),
    ) {
        let own: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let packet = packet(&[GET, &own[..]].concat());
        let request = read_cut(&[&packet[..], &body].concat(), [], &Limits::default()).0.unwrap().unwrap();
        prop_assert_eq!(request.head.length, packet.len());
        prop_assert_eq!(request.pairs(&request.head.variables), own);
    }
}
