//! Response heads, chunks and error pages: RFC 9110 sections 6 to 15, RFC 9112 sections 4, 6 and 9, PEP 3333.

use tailrace_http::body_encoder::BodyEncoder;
use tailrace_http::encode::{
    CONTINUE, HeadFault, LENGTH_ROOM, OwnFields, ResponseHead, error_page_length, error_response,
};
use tailrace_http::framing::{RequestFacts, ResponseBody, ResponseFormat, ResponseFraming};

const DATE: &[u8] = b"Sat, 21 Nov 2026 12:00:00 GMT";
const GET: RequestFacts = RequestFacts { format: ResponseFormat::Http11, is_head: false, keep_alive: true };
const HEAD: RequestFacts = RequestFacts { is_head: true, ..GET };
const LAST_GET: RequestFacts = RequestFacts { keep_alive: false, ..GET };
const OLD_GET: RequestFacts = RequestFacts { format: ResponseFormat::Http10, keep_alive: false, ..GET };
const OLD_KEPT: RequestFacts = RequestFacts { format: ResponseFormat::Http10, ..GET };

fn own(server: &[u8]) -> OwnFields<'_> {
    OwnFields { date: DATE, server, id: None }
}

/// The response head without its Date and Server fields, and the framing.
fn made(facts: RequestFacts, status: &str, fields: &[(&str, &str)], total: Option<u64>) -> (String, ResponseFraming) {
    let mut head = ResponseHead::default();
    head.status(status.as_bytes()).unwrap();
    for (name, value) in fields {
        head.field(name.as_bytes(), value.as_bytes()).unwrap();
    }
    let framing = head.finish(facts, total, own(b"tailrace"));
    let text = String::from_utf8(head.bytes().to_vec()).unwrap();
    assert!(text.ends_with("\r\n\r\n"));
    let both = "Date: Sat, 21 Nov 2026 12:00:00 GMT\r\nServer: tailrace\r\n";
    assert_eq!(text.matches(both).count(), 1, "{text}");
    (text.replace(both, ""), framing)
}

fn framing(body: ResponseBody, keep_alive: bool) -> ResponseFraming {
    let encoder = if body == ResponseBody::Delimited { BodyEncoder::CHUNKED } else { BodyEncoder::default() };
    ResponseFraming { body, encoder, keep_alive }
}

#[test]
fn how_the_body_ends() {
    use ResponseBody::{Delimited, Known, None as Nothing, UntilClose};
    type Case<'a> = (RequestFacts, &'a str, Option<&'a str>, Option<u64>, &'a str, ResponseFraming);
    let cases: [Case<'_>; 26] = [
        (GET, "200 OK", Some("5"), None, "Content-Length: 5", framing(Known(5), true)),
        (GET, "200 OK", Some("5"), Some(5), "Content-Length: 5", framing(Known(5), true)),
        (GET, "200 OK", Some("5"), Some(4), "Content-Length: 5", framing(Known(5), true)),
        (GET, "200 OK", None, Some(4), "Content-Length: 4", framing(Known(4), true)),
        (GET, "200 OK", None, Some(0), "Content-Length: 0", framing(Known(0), true)),
        (GET, "200 OK", None, None, "Transfer-Encoding: chunked", framing(Delimited, true)),
        (LAST_GET, "200 OK", None, None, "Transfer-Encoding: chunked\r\nConnection: close", framing(Delimited, false)),
        (LAST_GET, "200 OK", Some("5"), None, "Content-Length: 5\r\nConnection: close", framing(Known(5), false)),
        (OLD_GET, "200 OK", Some("5"), None, "Content-Length: 5\r\nConnection: close", framing(Known(5), false)),
        (OLD_GET, "200 OK", None, None, "Connection: close", framing(UntilClose, false)),
        (OLD_KEPT, "200 OK", Some("5"), None, "Content-Length: 5\r\nConnection: keep-alive", framing(Known(5), true)),
        (OLD_KEPT, "200 OK", None, None, "Connection: close", framing(UntilClose, false)),
        (OLD_KEPT, "204 No Content", None, None, "Connection: keep-alive", framing(Nothing, true)),
        // RFC 9110 section 9.3.2: as for GET, but what is not known may be left out.
        (HEAD, "200 OK", Some("5"), None, "Content-Length: 5", framing(Nothing, true)),
        (HEAD, "200 OK", Some("5"), Some(0), "Content-Length: 5", framing(Nothing, true)),
        (HEAD, "200 OK", None, Some(7), "Content-Length: 7", framing(Nothing, true)),
        (HEAD, "200 OK", None, Some(0), "", framing(Nothing, true)),
        (HEAD, "200 OK", None, None, "", framing(Nothing, true)),
        // RFC 9110 section 8.6.
        (GET, "204 No Content", Some("5"), Some(5), "", framing(Nothing, true)),
        (GET, "204 No Content", Some("0"), Some(0), "", framing(Nothing, true)),
        (GET, "304 Not Modified", Some("5"), Some(0), "Content-Length: 5", framing(Nothing, true)),
        (GET, "304 Not Modified", None, Some(0), "", framing(Nothing, true)),
        (GET, "304 Not Modified", None, None, "", framing(Nothing, true)),
        // RFC 9110 section 15.3.6.
        (GET, "205 Reset Content", None, None, "Content-Length: 0", framing(Nothing, true)),
        (GET, "205 Reset Content", Some("5"), Some(5), "Content-Length: 0", framing(Nothing, true)),
        (GET, "404 Not Found", None, Some(9), "Content-Length: 9", framing(Known(9), true)),
    ];
    for (facts, status, declared, total, lines, expected) in cases {
        let fields: Vec<_> = declared.iter().map(|length| ("Content-Length", *length)).collect();
        let end = if lines.is_empty() { "" } else { "\r\n" };
        let (text, framing) = made(facts, status, &fields, total);
        assert_eq!(text, format!("HTTP/1.1 {status}\r\n{lines}{end}\r\n"), "{facts:?} {declared:?} {total:?}");
        assert_eq!(framing, expected, "{facts:?} {status} {declared:?} {total:?}");
    }
}

#[test]
fn the_length_of_an_error_page_is_known_before_it_is_made() {
    for (status, facts) in [(400, GET), (503, GET), (505, HEAD), (599, OLD_GET)] {
        let (mut head, mut out) = (ResponseHead::default(), Vec::new());
        let length = error_response(&mut head, status, "A sentence.", facts, own(b"s"), &mut out);
        assert_eq!(error_page_length(status, "A sentence.", facts), length, "{status}");
        assert_eq!(length == 0, facts.is_head);
    }
}

#[test]
fn a_head_that_is_emptied_or_copied_keeps_its_buffer() {
    let mut head = ResponseHead::default();
    head.status(b"200 OK").unwrap();
    head.field(b"A", &[b'x'; 1_000]).unwrap();
    let room = head.room();
    assert!(room >= 1_000);
    head.clear();
    assert_eq!(head.room(), room);
    assert_eq!(head.bytes(), b"");
    let mut other = ResponseHead::default();
    other.status(b"404 Not Found").unwrap();
    other.field(b"Content-Length", b"7").unwrap();
    head.copy_from(&other).unwrap();
    assert_eq!(head.room(), room);
    let (ours, theirs) = (head.finish(GET, None, own(b"s")), other.finish(GET, None, own(b"s")));
    assert_eq!((ours, head.bytes()), (theirs, other.bytes()));
}

#[test]
fn what_a_fault_shows_is_cut_when_it_is_long() {
    let fault = |name: &[u8]| ResponseHead::default().field(name, b"").unwrap_err();
    let mut head = ResponseHead::default();
    head.status(b"200 OK").unwrap();
    let mut shown = |length: usize| head.field(&vec![b'('; length], b"").unwrap_err().to_string();
    assert!(shown(80).contains(&format!("\"{}\"", "(".repeat(80))));
    assert!(shown(81).contains(&format!("\"{}...\"", "(".repeat(80))));
    assert_eq!(fault(b"A"), HeadFault::NoStatus);
}

#[test]
fn fields_are_sent_as_they_were_given() {
    let fields =
        [("content-TYPE", "text/plain"), ("Set-Cookie", "a=b"), ("Set-Cookie", "c=d"), ("X_y", ""), ("Z", " \tz ")];
    let (text, _) = made(GET, "200 OK", &fields, Some(1));
    let lines =
        "content-TYPE: text/plain\r\nSet-Cookie: a=b\r\nSet-Cookie: c=d\r\nX_y: \r\nZ:  \tz \r\nContent-Length: 1\r\n";
    assert_eq!(text, format!("HTTP/1.1 200 OK\r\n{lines}\r\n"));
    let mut head = ResponseHead::default();
    head.status(b"200 Tr\xe8s bien").unwrap();
    head.field(b"X", b"\xe9").unwrap();
    head.finish(GET, Some(0), own(b""));
    assert!(head.bytes().starts_with(b"HTTP/1.1 200 Tr\xe8s bien\r\nX: \xe9\r\nDate: "));
}

#[test]
fn date_and_server_are_the_applications_if_it_gives_them() {
    let mut head = ResponseHead::default();
    head.status(b"200 OK").unwrap();
    head.field(b"date", b"Thu, 01 Jan 1970 00:00:00 GMT").unwrap();
    head.field(b"SERVER", b"mine").unwrap();
    head.finish(GET, Some(0), own(b"tailrace"));
    let expected =
        "HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\nSERVER: mine\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(head.bytes(), expected.as_bytes());
    head.clear();
    head.status(b"200 OK").unwrap();
    head.field(b"Vary", b"Cookie").unwrap();
    head.finish(GET, Some(0), own(b""));
    let expected =
        "HTTP/1.1 200 OK\r\nVary: Cookie\r\nDate: Sat, 21 Nov 2026 12:00:00 GMT\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(head.bytes(), expected.as_bytes(), "no Server field when the server has no name");
    head.clear();
    head.status(b"200 OK").unwrap();
    head.field(b"Pragma", b"x").unwrap();
    head.finish(GET, Some(0), own(b"tailrace"));
    assert!(String::from_utf8_lossy(head.bytes()).contains("\r\nServer: tailrace\r\n"), "another name of six letters");
}

#[test]
fn statuses() {
    for good in ["200 OK", "299 ", "404 Not  Found", "500 \u{e9}", "999 Whatever", "200 a\tb"] {
        let mut head = ResponseHead::default();
        assert_eq!(head.status(good.as_bytes()), Ok(()), "{good}");
        assert_eq!(head.status_code().to_string(), good[..3]);
        assert!(head.is_set());
        assert_eq!(head.bytes(), format!("HTTP/1.1 {good}\r\n").as_bytes());
    }
    let mut head = ResponseHead::default();
    head.status(b"200").unwrap();
    assert_eq!(head.bytes(), b"HTTP/1.1 200 \r\n", "RFC 9112 section 4: the space stays");
    for bad in [
        "",
        "20 OK",
        "2",
        "OK",
        "2000 OK",
        "200OK",
        "200\tOK",
        " 200 OK",
        "+200 OK",
        "2x0 OK",
        "-20 OK",
        "000 Zero",
        "099 Low",
        "100 Continue",
        "101 Switching Protocols",
        "103 Early Hints",
        "\u{0662}00 OK",
        "200 OK\r\nX: y",
        "200 OK\n",
        "200 \r",
        "200 \0",
        "200 \x7f",
        "200 \x1b[31m",
        "2e2 OK",
        "0x1 OK",
    ] {
        let mut head = ResponseHead::default();
        assert!(matches!(head.status(bad.as_bytes()), Err(HeadFault::Status { .. })), "{bad:?}");
        assert!(!head.is_set() && head.bytes().is_empty(), "{bad:?} is not in the head");
    }
}

#[test]
fn no_field_breaks_the_head() {
    let mut head = ResponseHead::default();
    assert_eq!(head.field(b"X", b"y"), Err(HeadFault::NoStatus));
    head.status(b"200 OK").unwrap();
    head.field(b"First", b"1").unwrap();
    let before = head.bytes().to_vec();
    for name in ["", "X Y", "X:", ":", "X\r\nY", "X\n", "\0", "X\x7f", "\u{e9}", "X(", "X ", " X"] {
        assert!(matches!(head.field(name.as_bytes(), b"y"), Err(HeadFault::FieldName { .. })), "{name:?}");
    }
    for value in
        ["a\r\nSet-Cookie: b", "a\rb", "a\nb", "a\r\n b", "\0", "a\x7f", "\x1b", "a\x0bb", "a\x0cb", "\u{1}", "\n"]
    {
        assert!(matches!(head.field(b"X", value.as_bytes()), Err(HeadFault::FieldValue { .. })), "{value:?}");
        assert!(matches!(head.field(b"Connection", value.as_bytes()), Err(HeadFault::FieldValue { .. })), "{value:?}");
    }
    assert_eq!(head.bytes(), before);
}

#[test]
fn lengths() {
    for bad in ["", "a", "-1", "+1", "1.0", "0x1", "1 2", "1,1", "1, 1", "18446744073709551616", "None", "\u{b2}"] {
        let mut head = ResponseHead::default();
        head.status(b"200 OK").unwrap();
        assert!(matches!(head.field(b"Content-Length", bad.as_bytes()), Err(HeadFault::Length { .. })), "{bad}");
        assert_eq!(head.declared_length(), None);
    }
    let mut head = ResponseHead::default();
    head.status(b"200 OK").unwrap();
    assert_eq!(head.declared_length(), None);
    head.field(b"Content-Length", b" 18446744073709551615 ").unwrap();
    head.field(b"content-length", b"018446744073709551615").unwrap();
    assert_eq!(head.declared_length(), Some(u64::MAX));
    let conflict = HeadFault::LengthConflict { first: u64::MAX, second: 5 };
    assert_eq!(head.field(b"Content-Length", b"5"), Err(conflict));
    assert_eq!(head.finish(GET, None, own(b"")).body, ResponseBody::Known(u64::MAX));
    let text = String::from_utf8(head.bytes().to_vec()).unwrap();
    assert_eq!(text.matches("ength").count(), 1);
    assert!(text.contains("\r\nContent-Length: 18446744073709551615\r\n"));
}

#[test]
fn fields_of_the_connection_are_the_servers() {
    let (text, closing) = made(GET, "200 OK", &[("connection", "Close")], Some(1));
    assert_eq!(text, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\n");
    assert!(!closing.keep_alive);
    let (text, closing) = made(OLD_KEPT, "200 OK", &[("Connection", "x, close")], Some(1));
    assert_eq!(text, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\n");
    assert!(!closing.keep_alive);
    for (name, value, known) in [
        ("connection", "keep-alive", "Connection"),
        ("Connection", "upgrade", "Connection"),
        ("keep-alive", "timeout=5", "Keep-Alive"),
        ("TRANSFER-ENCODING", "chunked", "Transfer-Encoding"),
        ("Transfer-Encoding", "gzip", "Transfer-Encoding"),
        ("Upgrade", "h2c", "Upgrade"),
        ("te", "trailers", "TE"),
        ("Trailer", "X", "Trailer"),
        ("Proxy-Connection", "close", "Proxy-Connection"),
        ("Proxy-Authenticate", "Basic", "Proxy-Authenticate"),
        ("Proxy-Authorization", "x", "Proxy-Authorization"),
    ] {
        let mut head = ResponseHead::default();
        head.status(b"200 OK").unwrap();
        assert_eq!(head.dropped(), None);
        head.field(name.as_bytes(), value.as_bytes()).unwrap();
        assert_eq!(head.dropped(), Some(known));
        assert_eq!(head.bytes(), b"HTTP/1.1 200 OK\r\n", "{name}");
        assert!(head.finish(GET, Some(1), own(b"")).keep_alive, "{name}");
        head.clear();
        assert_eq!(head.dropped(), None);
    }
}

#[test]
fn a_head_is_used_again() {
    let mut head = ResponseHead::default();
    head.status(b"500 Oops").unwrap();
    head.field(b"Content-Length", b"5").unwrap();
    head.field(b"Connection", b"close").unwrap();
    head.field(b"Date", b"x").unwrap();
    head.field(b"Server", b"x").unwrap();
    head.status(b"200 OK").unwrap();
    assert_eq!(head.bytes(), b"HTTP/1.1 200 OK\r\n", "a new status starts over");
    assert!(head.status(b"20 OK").is_err());
    assert_eq!(head.bytes(), b"HTTP/1.1 200 OK\r\n", "a bad one does not");
    assert_eq!(head.finish(GET, None, own(b"s")), framing(ResponseBody::Delimited, true));
    let text = String::from_utf8(head.bytes().to_vec()).unwrap();
    assert_eq!(text.lines().count(), 5, "{text}");
    head.clear();
    assert!(!head.is_set() && head.bytes().is_empty());
    assert_eq!(head.finish(GET, Some(0), own(b"")), framing(ResponseBody::Known(0), true));
    assert!(head.bytes().starts_with(b"HTTP/1.1 500 Internal Server Error\r\n"), "there is always a status line");
    assert_eq!(head.status_code(), 500);
}

#[test]
fn faults_name_the_field_on_one_line() {
    let mut head = ResponseHead::default();
    let status = head.status(b"20 OK\n").unwrap_err();
    head.status(b"200 OK").unwrap();
    let long = [b'\n'; 1000];
    for (fault, named) in [
        (status, "\"20 OK\\n\""),
        (head.field(b"X\r\nY", b"").unwrap_err(), "\"X\\r\\nY\""),
        (head.field(b"X-Y", b"a\r\n\"b").unwrap_err(), "\"X-Y\""),
        (head.field(b"X-Y", &long).unwrap_err(), "..."),
        (head.field(b"content-length", b"x\xe9").unwrap_err(), "\"Content-Length\""),
        (HeadFault::LengthConflict { first: 1, second: 2 }, "as 1 and as 2"),
        (HeadFault::NoStatus, "status"),
    ] {
        let line = fault.to_string();
        assert!(line.contains(named), "{line}");
        assert!(line.is_ascii() && line.lines().count() == 1 && line.len() < 400, "{line}");
    }
}

/// `length` bytes of data, framed: what stands before them, and behind.
fn framed(encoder: BodyEncoder, length: usize) -> (String, &'static [u8]) {
    let mut before = b"head".to_vec();
    encoder.begin(length, &mut before);
    let mut room = vec![b'.'; BodyEncoder::BEFORE + 1];
    let at = encoder.begin_in_front(length, &mut room, BodyEncoder::BEFORE);
    assert_eq!(&before[4..], &room[at..BodyEncoder::BEFORE], "both write the same");
    assert!(room[..at].iter().all(|&byte| byte == b'.') && room[BodyEncoder::BEFORE] == b'.');
    let behind = encoder.behind(length);
    assert!(behind.len() <= BodyEncoder::BEHIND);
    (String::from_utf8(before[4..].to_vec()).unwrap(), behind)
}

#[test]
fn chunk_lines() {
    let chunked = BodyEncoder::CHUNKED;
    for (length, line) in
        [(1, "1"), (9, "9"), (10, "a"), (15, "f"), (16, "10"), (0xabcdef, "abcdef"), (usize::MAX, "ffffffffffffffff")]
    {
        assert_eq!(framed(chunked, length), (format!("{line}\r\n"), &b"\r\n"[..]));
    }
    for shift in 0..usize::BITS {
        let length = 1_usize << shift;
        assert_eq!(framed(chunked, length).0, format!("{length:x}\r\n"));
    }
    assert_eq!(framed(chunked, 0), (String::new(), &b""[..]), "a chunk without data would end the body");
    assert_eq!(chunked.end(), b"0\r\n\r\n");
    assert_eq!(CONTINUE, b"HTTP/1.1 100 Continue\r\n\r\n");
}

#[test]
fn other_bodies_are_not_framed() {
    let plain = BodyEncoder::default();
    for length in [0, 1, usize::MAX] {
        assert_eq!(framed(plain, length), (String::new(), &b""[..]));
    }
    assert_eq!(plain.end(), b"");
}

#[test]
fn error_pages() {
    let page = |facts: RequestFacts, status: u16| {
        let mut out = b"before".to_vec();
        let mut kept = ResponseHead::default();
        kept.status(b"200 OK").unwrap();
        let length = error_response(&mut kept, status, "No &lt;such&gt; thing.", facts, own(b"tailrace"), &mut out);
        let page = String::from_utf8(out).unwrap().strip_prefix("before").unwrap().to_owned();
        let (head, body) = page.split_once("\r\n\r\n").unwrap();
        assert_eq!((length, kept.bytes()), (body.len() as u64, format!("{head}\r\n\r\n").as_bytes()));
        page
    };
    let text = page(LAST_GET, 404);
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 404 Not Found\r\nContent-Type: text/html; charset=utf-8\r\n"), "{head}");
    assert!(head.contains(&format!("\r\nContent-Length: {}", body.len())), "{head}");
    assert!(head.ends_with("\r\nConnection: close"), "{head}");
    assert!(body.contains("<h1>404 Not Found</h1>") && body.contains("No &lt;such&gt; thing."), "{body}");
    // It is sent under attack, in one packet, and a browser needs nothing else for it.
    assert!(body.len() < 500 && !body.contains("href") && !body.contains("src"), "{body}");
    assert!(!page(GET, 404).contains("Connection:"));
    assert!(!page(GET, 404).contains("Retry-After:") && page(GET, 503).contains("\r\nRetry-After: 1\r\n"));
    assert!(page(OLD_KEPT, 404).contains("\r\nConnection: keep-alive\r\n"));
    let without_body = page(RequestFacts { is_head: true, ..LAST_GET }, 404);
    assert_eq!(without_body, format!("{head}\r\n\r\n"));
    assert!(page(LAST_GET, 299).starts_with("HTTP/1.1 299 \r\n"));
    assert!(page(LAST_GET, 7).starts_with("HTTP/1.1 500 Internal Server Error\r\n"));
}

#[test]
fn a_head_is_rewritten_with_another_status_and_the_fields_that_are_kept() {
    let mut head = ResponseHead::default();
    head.status(b"200 Fine").unwrap();
    let given: [(&[u8], &[u8]); 6] = [
        (b"Content-Type", b"text/plain"),
        (b"Set-Cookie", b"a=b: c"),
        (b"set-cookie", b""),
        (b"Content-Length", b"12"),
        (b"Connection", b"close"),
        (b"Date", b"now"),
    ];
    for (name, value) in given {
        head.field(name, value).unwrap();
    }
    let fields: Vec<_> = head.fields().collect();
    let wanted: [(&[u8], &[u8]); 4] = [given[0], given[1], given[2], given[5]];
    assert_eq!(fields, wanted);
    assert_eq!(
        (head.only(b"content-type"), head.only(b"Set-Cookie"), head.only(b"A")),
        (Some(&b"text/plain"[..]), None, None)
    );
    assert!(head.has(b"SET-COOKIE") && !head.has(b"Set"));
    assert!(!head.is_event_stream());
    for (kind, is) in [
        ("text/event-stream", true),
        ("Text/Event-Stream; charset=utf-8", true),
        ("text/event-streams", false),
        ("text/event", false),
        ("", false),
    ] {
        let mut head = ResponseHead::default();
        head.status(b"200 OK").unwrap();
        head.field(b"Content-Type", kind.as_bytes()).unwrap();
        assert_eq!(head.is_event_stream(), is, "{kind}");
    }

    let before = head.bytes().to_vec();
    head.rewrite(None, |_| true).unwrap();
    assert_eq!((head.bytes(), head.declared_length()), (&before[..], None));
    assert!(head.rewrite(Some(b"20"), |_| true).is_err());
    assert_eq!(head.bytes(), before);
    head.rewrite(Some(b"206 Partial Content"), |name| !name.eq_ignore_ascii_case(b"set-cookie")).unwrap();
    head.field(b"Content-Length", b"3").unwrap();
    let facts = RequestFacts { format: ResponseFormat::Http11, is_head: false, keep_alive: true };
    let framing = head.finish(facts, None, own(b""));
    assert!(!framing.keep_alive, "the application closes the connection");
    let text = String::from_utf8(head.bytes().to_vec()).unwrap();
    let wanted = "HTTP/1.1 206 Partial Content\r\nContent-Type: text/plain\r\nDate: now\r\nContent-Length: 3\r\n\
                  Connection: close\r\n\r\n";
    assert_eq!(text, wanted);
}

#[test]
fn a_chunked_body_whose_length_becomes_known_has_the_same_head_with_its_length() {
    for (facts, fields) in [(GET, ""), (LAST_GET, "Connection: close\r\n")] {
        for length in [0, 5, u64::MAX] {
            let mut heads = [(); 2].map(|()| ResponseHead::default());
            for head in &mut heads {
                head.status(b"200 OK").unwrap();
                head.field(b"X-Field", b"value").unwrap();
            }
            let [known, chunked] = &mut heads;
            known.finish(facts, Some(length), own(b"tailrace"));
            let framing = chunked.finish(facts, None, own(b"tailrace"));
            assert_eq!(framing.body, ResponseBody::Delimited);
            let before = chunked.bytes().len();
            chunked.state_length(length);
            assert_eq!(chunked.bytes(), known.bytes());
            assert!(chunked.bytes().ends_with(format!("\r\nContent-Length: {length}\r\n{fields}\r\n").as_bytes()));
            assert!(chunked.bytes().len() <= before + LENGTH_ROOM);
            assert_eq!(
                chunked.bytes().len() == before + LENGTH_ROOM,
                length == u64::MAX,
                "no more room than is needed"
            );
            chunked.state_length(7);
            assert_eq!(chunked.bytes(), known.bytes(), "it has a length already");
        }
    }
}

#[test]
fn the_id_of_a_request_is_in_its_response_unless_the_application_sets_the_field() {
    let own = OwnFields { id: Some((b"X-Request-ID", b"abc")), ..own(b"") };
    for (fields, id) in [
        (&[("X-Request-IDs", "1"), ("X-Request-I", "2"), ("X", "X-Request-ID: 3")][..], "abc"),
        (&[("x-request-id", "of the application")][..], "of the application"),
    ] {
        let mut head = ResponseHead::default();
        head.status(b"200 OK").unwrap();
        for (name, value) in fields {
            head.field(name.as_bytes(), value.as_bytes()).unwrap();
        }
        head.finish(GET, Some(0), own);
        assert_eq!(head.only(b"X-Request-ID"), Some(id.as_bytes()), "{fields:?}");
    }
    let (mut head, mut out) = (ResponseHead::default(), Vec::new());
    error_response(&mut head, 503, "A sentence.", RequestFacts::of_refused(b"", &Default::default()), own, &mut out);
    assert_eq!(head.only(b"x-request-id"), Some(b"abc".as_slice()));
}
