//! The request line and the field lines on the wire: RFC 9112 sections 2, 3 and 5.

use crate::wire;
use crate::wire::{MORE, OK, check, read_three_ways, refused_after};
use tailrace_http::head::{HeadParser, HeadStep};
use tailrace_http::limits::Limits;
use tailrace_http::request_head::{RequestHead, Version};

fn request(bytes: &[u8]) -> wire::Request {
    read_three_ways(bytes, &Limits::default()).request()
}

#[test]
fn request_lines() {
    check(&[
        ("9112 3: a request line", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", OK),
        ("9110 9.1: methods are case-sensitive tokens", b"get / HTTP/1.1\r\nHost: a\r\n\r\n", OK),
        ("9110 9.1: an unknown method is the application's", b"BREW /pot HTTP/1.1\r\nHost: a\r\n\r\n", OK),
        ("9110 5.6.2: all tchars", b"!#$%&'*+-.^_`|~09azAZ / HTTP/1.1\r\nHost: a\r\n\r\n", OK),
        ("9110 5.6.2: a method with a separator", b"GE(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9110 5.6.2: a method with obs-text", b"GET\xc3\xa9 / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 3: a method with a colon", b"GET: / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9110 5.6.2: a method in quotes", b"\"GET\" / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9110 5.6.2: a method with NUL", b"GE\0T / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 3: no method", b" / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 3: a method alone", b"GET\r\n\r\n", 400),
        ("9112 3: method and space", b"GET \r\n\r\n", 400),
        ("9112 3: two spaces before the target", b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 3: two spaces after the target", b"GET /  HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 3: a tab before the target", b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 3: a tab after the target", b"GET /\tHTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 3: vertical tab", b"GET\x0b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 3: form feed", b"GET /\x0cHTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 3: a space after the version", b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400),
        ("9112 3: a word after the version", b"GET / HTTP/1.1 x\r\nHost: a\r\n\r\n", 400),
        ("9112 3: no target", b"GET HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 3: another protocol", b"EHLO example.org\r\n\r\n", 400),
        ("9112 3: a space in the target", b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 3: leading tab", b"\tGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 3: leading space", b" GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 2.2: one empty line before", b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", OK),
        ("9112 2.2: four empty lines before", b"\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", OK),
        ("9112 2.2: five empty lines before", b"\r\n\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 2.2: a bare LF before", b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 2.2: a bare CR before", b"\rGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 2.2: two CRs before", b"\r\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 2.2: bare LF after the request line", b"GET / HTTP/1.1\nHost: a\r\n\r\n", 400),
        ("9112 2.2: bare CR after the request line", b"GET / HTTP/1.1\rHost: a\r\n\r\n", 400),
        ("9112 2.2: CR CR LF after the request line", b"GET / HTTP/1.1\r\r\nHost: a\r\n\r\n", 400),
        ("9112 2.2: bare CR in the target", b"GET /a\rb HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 2.2: bare LF in the target", b"GET /a\nb HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 3.2: NUL in the target", b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 3.2: DEL in the target", b"GET /\x7f HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 3.2: escape in the target", b"GET /\x1b[0m HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("3986 2: UTF-8 in the target", b"GET /caf\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 3.2: a fragment", b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("nothing yet", b"", MORE),
        ("half a request line", b"GET / HT", MORE),
        ("half an empty line", b"\r", MORE),
        ("only empty lines", b"\r\n\r\n", MORE),
        ("no end", b"GET / HTTP/1.1\r\nHost: a\r\n\r", MORE),
    ]);
}

#[test]
fn versions() {
    check(&[
        ("9112 2.3: 1.0", b"GET / HTTP/1.0\r\n\r\n", OK),
        ("9110 2.5: a higher minor version is 1.1", b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", OK),
        ("9110 2.5: a higher minor version needs a Host too", b"GET / HTTP/1.9\r\n\r\n", 400),
        ("9110 15.6.6: 2.0", b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        ("9110 15.6.6: 3.0", b"GET / HTTP/3.0\r\nHost: a\r\n\r\n", 505),
        ("9110 15.6.6: 0.9 by name", b"GET / HTTP/0.9\r\n\r\n", 505),
        ("9110 15.6.6: 9.9", b"GET / HTTP/9.9\r\n\r\n", 505),
        ("9113 3.4: the HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        ("9112 2.3: lower case", b"GET / http/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 2.3: mixed case", b"GET / Http/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 2.3: no minor version", b"GET / HTTP/1\r\nHost: a\r\n\r\n", 400),
        ("9112 2.3: no minor digit", b"GET / HTTP/1.\r\nHost: a\r\n\r\n", 400),
        ("9112 2.3: no dot", b"GET / HTTP/11\r\nHost: a\r\n\r\n", 400),
        ("9112 2.3: two digits", b"GET / HTTP/1.10\r\nHost: a\r\n\r\n", 400),
        ("9112 2.3: leading zero", b"GET / HTTP/01.1\r\nHost: a\r\n\r\n", 400),
        ("9112 2.3: three parts", b"GET / HTTP/1.1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 2.3: two major digits", b"GET / HTTP/11.1\r\nHost: a\r\n\r\n", 400),
        ("9112 2.3: a letter", b"GET / HTTP/1.x\r\nHost: a\r\n\r\n", 400),
        ("9112 2.3: a fullwidth digit", b"GET / HTTP/1.\xef\xbc\x91\r\nHost: a\r\n\r\n", 400),
        ("9112 2.3: a space inside", b"GET / HTTP /1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 2.3: a prefix", b"GET / XHTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 2.3: a sign", b"GET / HTTP/+1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 2.3: a comma", b"GET / HTTP/1,1\r\nHost: a\r\n\r\n", 400),
        ("9112 2.3: another protocol", b"GET / HTTPS/1.1\r\nHost: a\r\n\r\n", 400),
        ("9112 2.3: another protocol", b"OPTIONS / RTSP/1.0\r\nHost: a\r\n\r\n", 400),
        ("9112 2.3: HTTP/0.9 simple request", b"GET /\r\n", 400),
        ("9112 2.3: simple request, bare LF", b"GET /\n", 400),
        ("9112 2.3: simple request with a space", b"GET / \r\n", 400),
    ]);
    let minor = request(b"GET / HTTP/1.7\r\nHost: a\r\n\r\n");
    assert_eq!(minor.head.version, Version::Http11);
    assert_eq!(request(b"GET / HTTP/1.0\r\n\r\n").head.version, Version::Http10);
}

#[test]
fn field_lines() {
    check(&[
        ("9112 5: no fields", b"GET / HTTP/1.0\r\n\r\n", OK),
        ("9112 5.1: no whitespace after the colon", b"GET / HTTP/1.1\r\nHost:a\r\n\r\n", OK),
        ("9112 5.1: much whitespace after the colon", b"GET / HTTP/1.1\r\nHost: \t \ta \t\r\n\r\n", OK),
        ("9110 5.5: an empty value", b"GET / HTTP/1.1\r\nHost: a\r\nX:\r\n\r\n", OK),
        ("9110 5.5: a value of whitespace", b"GET / HTTP/1.1\r\nHost: a\r\nX: \t \r\n\r\n", OK),
        ("9110 5.5: obs-text", b"GET / HTTP/1.1\r\nHost: a\r\nX: caf\xe9\r\n\r\n", OK),
        ("9110 5.5: a tab in a value", b"GET / HTTP/1.1\r\nHost: a\r\nX: a\tb\r\n\r\n", OK),
        ("9110 5.1: an underscore in a name", b"GET / HTTP/1.1\r\nHost: a\r\nX_Y: a\r\n\r\n", OK),
        ("9112 5.1: a space before the colon", b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        ("9112 5.1: a tab before the colon", b"GET / HTTP/1.1\r\nHost\t: a\r\n\r\n", 400),
        ("9112 5: a space in a name", b"GET / HTTP/1.1\r\nHost: a\r\nX Y: a\r\n\r\n", 400),
        ("9112 5: no name", b"GET / HTTP/1.1\r\nHost: a\r\n: a\r\n\r\n", 400),
        ("9112 5: no colon", b"GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n", 400),
        ("9112 5: no colon, bare LF", b"GET / HTTP/1.1\r\nHost: a\r\nX\n\r\n", 400),
        ("9110 5.1: a separator in a name", b"GET / HTTP/1.1\r\nHost: a\r\nX@Y: a\r\n\r\n", 400),
        ("9110 5.1: quotes in a name", b"GET / HTTP/1.1\r\nHost: a\r\n\"X\": a\r\n\r\n", 400),
        ("9110 5.1: NUL in a name", b"GET / HTTP/1.1\r\nHost: a\r\nX\0: a\r\n\r\n", 400),
        ("9110 5.1: obs-text in a name", b"GET / HTTP/1.1\r\nHost: a\r\nX\xe9: a\r\n\r\n", 400),
        ("9112 5.2: obs-fold with a space", b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", 400),
        ("9112 5.2: obs-fold with a tab", b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n\tb\r\n\r\n", 400),
        ("9112 5.2: obs-fold of nothing", b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n \r\n\r\n", 400),
        ("9112 2.2: whitespace before the first field", b"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400),
        ("9112 2.2: a line of whitespace", b"GET / HTTP/1.1\r\n \r\nHost: a\r\n\r\n", 400),
        ("9112 2.2: bare LF after a field", b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", 400),
        ("9112 2.2: bare LF as the empty line", b"GET / HTTP/1.1\r\nHost: a\r\n\n", 400),
        ("9112 2.2: bare LFs at the end", b"GET / HTTP/1.1\r\nHost: a\n\n", 400),
        ("9112 2.2: bare CR in a value", b"GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n", 400),
        ("9112 2.2: CR CR LF after a field", b"GET / HTTP/1.1\r\nHost: a\r\r\n\r\n", 400),
        ("9112 2.2: bare CR as the empty line", b"GET / HTTP/1.1\r\nHost: a\r\n\rX", 400),
        ("9112 2.2: bare CR in a name", b"GET / HTTP/1.1\r\nHost: a\r\nX\rY: b\r\n\r\n", 400),
        ("9110 5.5: NUL in a value", b"GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", 400),
        ("9110 5.5: DEL in a value", b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x7fb\r\n\r\n", 400),
        ("9110 5.5: escape in a value", b"GET / HTTP/1.1\r\nHost: a\r\nX: \x1b[31m\r\n\r\n", 400),
        ("9110 5.5: vertical tab in a value", b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x0bb\r\n\r\n", 400),
        ("9110 5.5: form feed in a value", b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x0cb\r\n\r\n", 400),
    ]);
}

/// RFC 9110 sections 5.5 and 5.6.2.
#[test]
fn no_separator_is_part_of_a_name_and_no_control_octet_of_a_value() {
    let code = |line: &[u8]| {
        let bytes = [b"GET / HTTP/1.1\r\nHost: a\r\n", line, b"\r\n\r\n"].concat();
        read_three_ways(&bytes, &Limits::default()).code()
    };
    for octet in *b"\"(),/;<=>?@[\\]{} \t\0\x7f" {
        assert_eq!(code(&[b'X', octet, b'Y', b':', b'a']), 400, "a name with {octet:#04x}");
    }
    for octet in (0..b' ').chain([0x7f]).filter(|octet| *octet != b'\t') {
        assert_eq!(code(&[b'X', b':', b'a', octet, b'b']), 400, "a value with {octet:#04x}");
        assert_eq!(code(&[b'X', b':', b'a', octet]), 400, "a value that ends with {octet:#04x}");
    }
}

#[test]
fn fields_keep_their_order_their_case_and_their_repeats() {
    let request = request(b"GET / HTTP/1.1\r\nhOsT:  a \r\nX-a: 1\r\nx_A: 2\r\nX-a:\t\r\nX-a: 1\t2 \t\r\n\r\n");
    let expected: [(&[u8], &[u8]); 5] =
        [(b"hOsT", b"a"), (b"X-a", b"1"), (b"x_A", b"2"), (b"X-a", b""), (b"X-a", b"1\t2")];
    assert_eq!(request.field_lines(), expected);
}

#[test]
fn an_invalid_request_is_refused_at_its_first_wrong_octet() {
    let limits = Limits::default();
    let cases: [(&[u8], u16, usize); 9] = [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", 400, 1),
        (b"\0\0\0\0", 400, 1),
        (b"GET\t/", 400, 4),
        (b"GET  /", 400, 5),
        (b"GET / HTTQ", 400, 10),
        (b"GET / HTTP/2.0\r\n", 505, 14),
        (b"GET / HTTP/1.1\n", 400, 15),
        (b"GET / HTTP/1.1\r\nHost : a", 400, 21),
        (b"GET / HTTP/1.1\r\nHost: a\r\n b", 400, 26),
    ];
    for (bytes, status, arrived) in cases {
        assert_eq!(refused_after(bytes, &limits), (status, arrived), "{}", bytes.escape_ascii());
    }
}

#[test]
fn a_tls_client_is_told_that_this_is_plain_http() {
    let mut head = RequestHead::default();
    let step = HeadParser::default().parse(b"\x16\x03\x01", &Limits::default(), &mut head);
    assert!(matches!(step, HeadStep::Refused(refusal) if refusal.reason.contains("TLS")));
    let step = HeadParser::default().parse(b"GET\x16 ", &Limits::default(), &mut head);
    assert!(matches!(step, HeadStep::Refused(refusal) if !refusal.reason.contains("TLS")));
}

#[test]
fn the_refusal_of_a_bare_line_feed_names_it() {
    for bytes in ["GET / HTTP/1.1\n", "GET / HTTP/1.1\r\n\n", "GET / HTTP/1.1\r\nHost: a\n"] {
        let step = HeadParser::default().parse(bytes.as_bytes(), &Limits::default(), &mut RequestHead::default());
        assert!(
            matches!(step, HeadStep::Refused(refusal) if refusal.reason.contains("line feed")),
            "{bytes:?}: {step:?}"
        );
    }
}

#[test]
fn the_refusal_of_a_second_space_names_it() {
    let reason =
        |bytes: &[u8]| match HeadParser::default().parse(bytes, &Limits::default(), &mut RequestHead::default()) {
            HeadStep::Refused(refusal) => refusal.reason,
            step => panic!("{step:?}"),
        };
    assert_eq!(reason(b"GET /  HTTP/1.1\r\n"), reason(b"GET  / HTTP/1.1\r\n"));
    assert_ne!(reason(b"GET /  HTTP/1.1\r\n"), reason(b"GET / HTTP!1.1\r\n"));
    // A NUL is the beginning of a uwsgi packet, and anywhere else an octet that no method has.
    assert_ne!(reason(b"\0\x10\0\0"), reason(b"GE\0T / HTTP/1.1\r\n"));
    assert_eq!(reason(b"GE(T / HTTP/1.1\r\n"), reason(b"GE\0T / HTTP/1.1\r\n"));
}

#[test]
fn the_refusal_of_a_folded_line_names_the_space_or_tab() {
    for fold in [" ", "\t"] {
        let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{fold}b\r\n\r\n");
        let step = HeadParser::default().parse(bytes.as_bytes(), &Limits::default(), &mut RequestHead::default());
        assert!(matches!(step, HeadStep::Refused(refusal) if refusal.reason.contains("space or a tab")), "{step:?}");
    }
}

#[test]
fn a_request_line_may_be_as_long_as_the_limit() {
    let limits = Limits { request_line: 100, ..Limits::default() };
    let line = |length: usize| {
        let target = "/".repeat(length - "GET  HTTP/1.1".len());
        format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes()
    };
    assert_eq!(read_three_ways(&line(100), &limits).code(), 0);
    for length in [101, 102, 108, 109, 110, 111, 200, 100_000] {
        assert_eq!(read_three_ways(&line(length), &limits).code(), 414, "{length}");
    }
    let endless = [b"GET /".to_vec(), vec![b'a'; 1000]].concat();
    assert_eq!(refused_after(&endless, &limits), (414, 101), "without waiting for an end");
    let before = [b"\r\n\r\n".to_vec(), line(100)].concat();
    assert_eq!(read_three_ways(&before, &limits).code(), 0, "empty lines do not count");
}

#[test]
fn a_method_without_end_is_not_implemented() {
    let limits = Limits::default();
    let long = [vec![b'M'; 64], b" / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()].concat();
    assert_eq!(read_three_ways(&long, &limits).code(), 0);
    assert_eq!(
        read_three_ways(&[b"\r\n\r\n", long.as_slice()].concat(), &limits).code(),
        0,
        "empty lines do not count"
    );
    assert_eq!(refused_after(&[b'M'; 10_000], &limits), (501, 65));
    assert_eq!(read_three_ways(&[b'M'; 10_000], &limits).code(), 501);
}

#[test]
fn all_field_lines_together_may_be_as_long_as_the_limit() {
    let limits = Limits { header_bytes: 100, ..Limits::default() };
    let head = |length: usize| {
        let value = "v".repeat(length - "Host: a\r\nX: \r\n".len());
        format!("GET / HTTP/1.1\r\nHost: a\r\nX: {value}\r\n\r\n").into_bytes()
    };
    assert_eq!(read_three_ways(&head(100), &limits).code(), 0);
    for length in [101, 102, 103, 200, 10_000] {
        assert_eq!(read_three_ways(&head(length), &limits).code(), 431, "{length}");
    }
    // One more line after a section that is full.
    let full = head(100);
    let more = [&full[..full.len() - 2], b"Y: 1\r\n\r\n"].concat();
    assert_eq!(read_three_ways(&more, &limits).code(), 431);
    let start = b"GET / HTTP/1.1\r\n".len();
    for endless in ["n", "n: ", "n: v"] {
        let mut bytes = format!("GET / HTTP/1.1\r\n{endless}").into_bytes();
        let last = bytes[bytes.len() - 1];
        bytes.resize(start + 1000, last);
        assert_eq!(refused_after(&bytes, &limits), (431, start + 100), "{endless}: without waiting for an end");
    }
}

#[test]
fn there_may_be_as_many_field_lines_as_the_limit() {
    let limits = Limits { header_count: 5, ..Limits::default() };
    let head = |count: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: 1\r\n".repeat(count - 1)).into_bytes();
    assert_eq!(read_three_ways(&head(5), &limits).code(), 0);
    assert_eq!(read_three_ways(&head(6), &limits).code(), 431);
    assert_eq!(read_three_ways(&head(129), &Limits::default()).code(), 431);
    assert_eq!(read_three_ways(&head(128), &Limits::default()).code(), 0);
}

#[test]
fn the_largest_and_the_smallest_limits() {
    let limits =
        Limits { request_line: usize::MAX, header_bytes: usize::MAX, header_count: usize::MAX, body: u64::MAX };
    assert_eq!(read_three_ways(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na", &limits).code(), 0);
    let none = Limits { request_line: 0, header_bytes: 0, header_count: 0, body: 0 };
    assert_eq!(read_three_ways(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", &none).code(), 414);
}

#[test]
fn empty_lines_do_not_start_a_request() {
    let mut parser = HeadParser::default();
    let mut head = RequestHead::default();
    let limits = Limits::default();
    assert!(!parser.started());
    assert_eq!(parser.parse(b"\r\n\r", &limits, &mut head), HeadStep::NeedMore);
    assert!(!parser.started());
    assert_eq!(parser.parse(b"\r\n\r\nG", &limits, &mut head), HeadStep::NeedMore);
    assert!(parser.started());
    parser.reset();
    assert!(!parser.started());
}

#[test]
fn a_parser_and_a_head_are_used_again() {
    let mut parser = HeadParser::default();
    let mut head = RequestHead::default();
    let limits = Limits::default();
    let first = b"GET http://h/a?b HTTP/1.0\r\nX: 1\r\nY: 2\r\n\r\n";
    assert_eq!(parser.parse(first, &limits, &mut head), HeadStep::Complete);
    assert_eq!(head.length, first.len());
    parser.reset();
    head.clear();
    assert_eq!(head, RequestHead::default());
    assert!(head.fields.capacity() >= 2);
    assert_eq!(parser.parse(wire::NEXT, &limits, &mut head), HeadStep::Complete);
    assert_eq!(head.target.of(wire::NEXT), b"/next");
    assert_eq!((head.authority, head.scheme, head.query), (None, None, None));
}
