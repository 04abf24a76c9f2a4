//! Bodies on the wire: RFC 9112 sections 6.2 and 7.1.

use crate::wire;
use crate::wire::{Outcome, read_three_ways, refused_after};
use tailrace_http::body::{BodyDecoder, BodyStep};
use tailrace_http::framing::BodyLength;
use tailrace_http::limits::Limits;

const HEAD: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

fn read(body: &[u8], limits: &Limits) -> Outcome {
    read_three_ways(&[HEAD, body].concat(), limits)
}

fn decoded(body: &[u8]) -> Vec<u8> {
    read(body, &Limits::default()).request().body
}

fn check(cases: &[(&str, &[u8], u16)]) {
    for (what, body, code) in cases {
        let outcome = read(body, &Limits::default());
        assert_eq!(outcome.code(), *code, "{what}: {outcome:?}");
    }
}

#[test]
fn bodies_by_length() {
    let limits = Limits::default();
    let known = |length: usize, body: &[u8]| {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n").into_bytes();
        read_three_ways(&[&head[..], body].concat(), &limits)
    };
    assert_eq!(known(0, b"").request().body, b"");
    assert_eq!(known(5, b"hello").request().body, b"hello");
    assert_eq!(known(7, b"\r\n\0\r\n\r\n").request().body, b"\r\n\0\r\n\r\n");
    assert_eq!(known(6, b"hello"), Outcome::Incomplete);
    assert_eq!(known(6, b""), Outcome::Incomplete);
}

#[test]
fn what_is_left_of_a_known_length() {
    let mut decoder = BodyDecoder::new(BodyLength::Known(5), 5);
    assert_eq!(decoder.remaining(), Some(5));
    assert_eq!(decoder.decode(b""), BodyStep::NeedMore { consumed: 0 });
    assert_eq!(decoder.decode(b"he"), BodyStep::Data { consumed: 2, data: 0..2 });
    assert_eq!(decoder.remaining(), Some(3));
    assert_eq!(decoder.decode(b"lloGET"), BodyStep::Data { consumed: 3, data: 0..3 });
    assert_eq!(decoder.remaining(), Some(0));
    assert_eq!(decoder.decode(b"GET"), BodyStep::Done { consumed: 0 });
    assert_eq!(decoder.decode(b""), BodyStep::Done { consumed: 0 });
    assert_eq!(BodyDecoder::new(BodyLength::Chunked, 5).remaining(), None);
    assert_eq!(BodyDecoder::new(BodyLength::None, 5).remaining(), Some(0));
    assert_eq!(BodyDecoder::new(BodyLength::None, 5).decode(b"GET"), BodyStep::Done { consumed: 0 });
    let mut large = BodyDecoder::new(BodyLength::Known(6), 5);
    assert!(matches!(large.decode(b"x"), BodyStep::Refused(refusal) if refusal.status == 413));
}

#[test]
fn how_much_data_comes_next() {
    let mut known = BodyDecoder::new(BodyLength::Known(5), 5);
    assert_eq!(known.data_ahead(), 5);
    assert_eq!(known.decode(b"he"), BodyStep::Data { consumed: 2, data: 0..2 });
    assert_eq!(known.data_ahead(), 3);
    let mut chunked = BodyDecoder::new(BodyLength::Chunked, 100);
    assert_eq!(chunked.data_ahead(), 0);
    assert_eq!(chunked.decode(b"7\r\n"), BodyStep::NeedMore { consumed: 3 });
    assert_eq!(chunked.data_ahead(), 7);
    assert_eq!(chunked.decode(b"abcdefg\r\n0\r"), BodyStep::Data { consumed: 7, data: 0..7 });
    assert_eq!(chunked.data_ahead(), 0);
}

#[test]
fn data_that_is_skipped_is_counted() {
    let input = b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\nGET";
    let mut decoder = BodyDecoder::new(BodyLength::Chunked, 100);
    assert_eq!(decoder.skip(&input[..12]), BodyStep::NeedMore { consumed: 12 });
    assert_eq!(decoder.skip(&input[12..]), BodyStep::Done { consumed: input.len() - 3 - 12 });
    assert_eq!(BodyDecoder::new(BodyLength::Chunked, 100).skip(input), BodyStep::Done { consumed: input.len() - 3 });
    let mut refused = BodyDecoder::new(BodyLength::Chunked, 100);
    assert!(matches!(refused.skip(b"1\r\naX"), BodyStep::Refused(_)));
}

#[test]
fn each_fault_has_its_sentence() {
    let cases: [(&[u8], &str); 8] = [
        (b"x", "A chunk must start with its size in hexadecimal digits."),
        (b"5\n", "A line of a chunked body must end with a carriage return and a line feed."),
        (b"5;a\n", "A line of a chunked body must end with a carriage return and a line feed."),
        (b"5;a@", "A chunk extension is malformed."),
        (b"0\r\n\n", "A line of a chunked body must end with a carriage return and a line feed."),
        (b"0\r\nX: y\n", "A line of a chunked body must end with a carriage return and a line feed."),
        (b"0\r\nX: y\rX", "A line of a chunked body must end with a carriage return and a line feed."),
        (b"0\r\nX : y", "A trailer field is malformed."),
    ];
    for (body, reason) in cases {
        let shown = body.escape_ascii();
        match read(body, &Limits::default()) {
            Outcome::Refused(refusal) => assert_eq!(refusal.reason, reason, "{shown}"),
            other => panic!("{shown}: {other:?}"),
        }
    }
}

#[test]
fn data_is_pointed_at_where_it_stands() {
    let mut decoder = BodyDecoder::new(BodyLength::Chunked, 100);
    let input = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: u\r\n\r\nGET";
    assert_eq!(decoder.decode(input), BodyStep::Data { consumed: 6, data: 3..6 });
    assert_eq!(decoder.decode(&input[6..]), BodyStep::Data { consumed: 11, data: 9..11 });
    assert_eq!(decoder.decode(&input[17..]), BodyStep::Done { consumed: 13 });
    assert_eq!(&input[30..], b"GET");
    assert_eq!(decoder.decode(b"GET"), BodyStep::Done { consumed: 0 });
}

#[test]
fn chunks() {
    assert_eq!(decoded(b"0\r\n\r\n"), b"");
    assert_eq!(decoded(b"5\r\nhello\r\n0\r\n\r\n"), b"hello");
    assert_eq!(decoded(b"5\r\nhello\r\n1\r\n \r\n5\r\nworld\r\n0\r\n\r\n"), b"hello world");
    assert_eq!(decoded(b"00005\r\nhello\r\n000\r\n\r\n"), b"hello");
    assert_eq!(decoded(b"0000000000000005\r\nhello\r\n0000000000000000\r\n\r\n"), b"hello");
    assert_eq!(decoded(b"a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n").len(), 20);
    assert_eq!(decoded(b"7\r\n\r\n0\r\n\r\n\r\n0\r\n\r\n"), b"\r\n0\r\n\r\n");
    check(&[
        ("no chunk yet", b"", wire::MORE),
        ("half a size", b"5", wire::MORE),
        ("half a chunk", b"5\r\nhel", wire::MORE),
        ("no last chunk", b"5\r\nhello\r\n", wire::MORE),
        ("half a last chunk", b"5\r\nhello\r\n0\r\n", wire::MORE),
        ("no end of the trailer section", b"0\r\nX: y\r\n", wire::MORE),
    ]);
}

#[test]
fn chunk_sizes() {
    check(&[
        ("9112 7.1: no size", b"\r\nhello\r\n0\r\n\r\n", 400),
        ("9112 7.1: no size, and all that a last chunk has", b"\r\n\r\n", 400),
        ("9112 7.1: no size, but an extension", b";a\r\n\r\n", 400),
        ("9112 7.1: not hexadecimal", b"g\r\nhello\r\n0\r\n\r\n", 400),
        ("9112 7.1: a letter behind", b"5g\r\nhello\r\n0\r\n\r\n", 400),
        ("9112 7.1: 0x", b"0x5\r\nhello\r\n0\r\n\r\n", 400),
        ("9112 7.1: minus", b"-5\r\nhello\r\n0\r\n\r\n", 400),
        ("9112 7.1: plus", b"+5\r\nhello\r\n0\r\n\r\n", 400),
        ("9112 7.1: minus zero", b"-0\r\n\r\n", 400),
        ("9112 7.1: a decimal point", b"5.0\r\nhello\r\n0\r\n\r\n", 400),
        ("9112 7.1: underscore", b"1_0\r\n0123456789abcdef\r\n0\r\n\r\n", 400),
        ("9112 7.1: leading space", b" 5\r\nhello\r\n0\r\n\r\n", 400),
        ("9112 7.1: leading tab", b"\t5\r\nhello\r\n0\r\n\r\n", 400),
        ("9112 7.1: trailing space", b"5 \r\nhello\r\n0\r\n\r\n", 400),
        ("9112 7.1: trailing tab", b"5\t\r\nhello\r\n0\r\n\r\n", 400),
        ("9112 7.1: a space inside", b"1 0\r\n0123456789abcdef\r\n0\r\n\r\n", 400),
        ("9112 7.1: a comma", b"5,\r\nhello\r\n0\r\n\r\n", 400),
        ("9112 7.1: quotes", b"\"5\"\r\nhello\r\n0\r\n\r\n", 400),
        ("9112 7.1: NUL behind", b"5\0\r\nhello\r\n0\r\n\r\n", 400),
        ("9112 7.1: an Arabic digit", "\u{0665}\r\nhello\r\n0\r\n\r\n".as_bytes(), 400),
        ("9112 7.1: 17 digits", b"00000000000000005\r\nhello\r\n0\r\n\r\n", 400),
        ("9112 7.1: more than 64 bits", b"10000000000000005\r\nhello\r\n0\r\n\r\n", 413),
        ("9112 7.1: all of 64 bits", b"ffffffffffffffff\r\nhello\r\n0\r\n\r\n", 413),
        ("9112 2.2: bare LF after the size", b"5\nhello\r\n0\r\n\r\n", 400),
        ("9112 2.2: bare CR after the size", b"5\rhello\r\n0\r\n\r\n", 400),
        ("9112 2.2: CR CR LF after the size", b"5\r\r\nhello\r\n0\r\n\r\n", 400),
        ("9112 7.1: more data than the size", b"4\r\nhello\r\n0\r\n\r\n", 400),
        ("9112 7.1: less data than the size", b"6\r\nhello\r\n0\r\n\r\n", 400),
        ("9112 7.1: no line end after the data", b"5\r\nhello0\r\n\r\n", 400),
        ("9112 7.1: another octet for the CR after the data", b"5\r\nhelloX\n0\r\n\r\n", 400),
        ("9112 7.1: another octet for the LF after the data", b"5\r\nhello\rX0\r\n\r\n", 400),
        ("9112 2.2: bare LF after the data", b"5\r\nhello\n0\r\n\r\n", 400),
        ("9112 2.2: bare CR after the data", b"5\r\nhello\r0\r\n\r\n", 400),
        ("9112 2.2: two line ends after the data", b"5\r\nhello\r\n\r\n0\r\n\r\n", 400),
        ("9112 2.2: bare LF after the last chunk", b"0\n\r\n", 400),
        ("9112 2.2: bare LF at the end", b"0\r\n\n", 400),
        ("9112 2.2: bare CR at the end", b"0\r\n\rX", 400),
    ]);
}

#[test]
fn chunk_extensions() {
    check(&[
        ("9112 7.1.1: a name", b"1;a\r\nx\r\n0\r\n\r\n", wire::OK),
        ("9112 7.1.1: a value", b"1;a=b\r\nx\r\n0;c=d\r\n\r\n", wire::OK),
        ("9112 7.1.1: a quoted value", b"1;a=\"b;\\\"\r\\\\\"\r\nx\r\n0\r\n\r\n", 400),
        ("9112 7.1.1: a quoted value", b"1;a=\"b; \t\\\"\\\\\xe9\"\r\nx\r\n0\r\n\r\n", wire::OK),
        ("9112 7.1.1: an empty quoted value", b"1;a=\"\"\r\nx\r\n0\r\n\r\n", wire::OK),
        ("9112 7.1.1: several", b"1;a;b=c;d=\"e\";f\r\nx\r\n0\r\n\r\n", wire::OK),
        ("9112 7.1.1: bad whitespace", b"1 \t; a \t=\tb ;c ; d = \"e\" ;f\r\nx\r\n0\r\n\r\n", wire::OK),
        ("9112 7.1.1: nothing after the semicolon", b"1;\r\nx\r\n0\r\n\r\n", 400),
        ("9112 7.1.1: whitespace after the semicolon", b"1; \r\nx\r\n0\r\n\r\n", 400),
        ("9112 7.1.1: no name", b"1;=b\r\nx\r\n0\r\n\r\n", 400),
        ("9112 7.1.1: no value", b"1;a=\r\nx\r\n0\r\n\r\n", 400),
        ("9112 7.1.1: two semicolons", b"1;;a\r\nx\r\n0\r\n\r\n", 400),
        ("9112 7.1.1: two equals signs", b"1;a=b=c\r\nx\r\n0\r\n\r\n", 400),
        ("9112 7.1.1: two words", b"1;a b\r\nx\r\n0\r\n\r\n", 400),
        ("9112 7.1.1: two values", b"1;a=b c\r\nx\r\n0\r\n\r\n", 400),
        ("9112 7.1.1: whitespace at the end", b"1;a \r\nx\r\n0\r\n\r\n", 400),
        ("9112 7.1.1: whitespace after the value", b"1;a=b \r\nx\r\n0\r\n\r\n", 400),
        ("9112 7.1.1: words after the size", b"1 a\r\nx\r\n0\r\n\r\n", 400),
        ("9112 7.1.1: a separator in the name", b"1;a@b\r\nx\r\n0\r\n\r\n", 400),
        ("9112 7.1.1: a separator after the name", b"1;a@;b\r\nx\r\n0\r\n\r\n", 400),
        ("9112 7.1.1: a separator after the value", b"1;a=b@;c\r\nx\r\n0\r\n\r\n", 400),
        ("9112 7.1.1: text after a quoted value", b"1;a=\"b\"c\r\nx\r\n0\r\n\r\n", 400),
        ("9112 2.2: bare LF in an extension", b"1;a\nx\r\n0\r\n\r\n", 400),
        ("9112 2.2: bare LF in a quoted value", b"1;a=\"\n\"\r\nx\r\n0\r\n\r\n", 400),
        ("9112 2.2: an escaped bare LF", b"1;a=\"\\\n\"\r\nx\r\n0\r\n\r\n", 400),
        ("9112 2.2: bare CR in an extension", b"1;a\rb\r\nx\r\n0\r\n\r\n", 400),
        ("9112 7.1.1: NUL in an extension", b"1;a\0\r\nx\r\n0\r\n\r\n", 400),
        ("9112 7.1.1: a control octet", b"1;a\x01\r\nx\r\n0\r\n\r\n", 400),
        ("9112 7.1.1: an open quote", b"1;a=\"b\r\nx\r\n0\r\n\r\n", 400),
        ("9112 7.1.1: NUL in a quoted value", b"1;a=\"\0\"\r\nx\r\n0\r\n\r\n", 400),
        ("9112 7.1.1: obs-text outside of quotes", b"1;a=\xe9\r\nx\r\n0\r\n\r\n", 400),
    ]);
}

#[test]
fn extensions_without_end_are_refused() {
    let limits = Limits::default();
    let endless = [HEAD, b"1;", &[b'a'; 100_000]].concat();
    let (status, arrived) = refused_after(&endless, &limits);
    assert_eq!(status, 400);
    assert!(arrived < 20_000, "{arrived}");
    let line = |length: usize| [b"1;", "a".repeat(length - 3).as_bytes(), b"\r\nx\r\n0\r\n\r\n"].concat();
    assert_eq!(read(&line(16 * 1024 + 2), &limits).code(), 0);
    assert_eq!(read(&line(16 * 1024 + 3), &limits).code(), 400);
    // The same in many small extensions, with too little data to raise the limit.
    let flood = b"1;abcdefghi\r\nx\r\n".repeat(10_000);
    assert_eq!(read(&flood, &limits).code(), 400);
    // As many octets of extensions as of data are allowed to go on.
    let signed =
        [b"64;sign=\"0123456789abcdef\"\r\n".to_vec(), vec![b'x'; 100], b"\r\n".to_vec()].concat().repeat(5_000);
    let signed = [&signed[..], b"0\r\n\r\n"].concat();
    assert_eq!(decoded(&signed).len(), 500_000);
}

#[test]
fn trailers() {
    check(&[
        ("9112 7.1.2: discarded", b"0\r\nX: y\r\nEmpty:\r\nZ:\t\xe9 \r\n\r\n", wire::OK),
        ("9112 7.1.2: even these change nothing", b"0\r\nContent-Length: 5\r\nTransfer-Encoding: x\r\n\r\n", wire::OK),
        ("9112 5.1: a space before the colon", b"0\r\nX : y\r\n\r\n", 400),
        ("9112 5: no colon", b"0\r\nX\r\n\r\n", 400),
        ("9112 5: no name", b"0\r\n: y\r\n\r\n", 400),
        ("9112 5: a separator in the name", b"0\r\nX(: y\r\n\r\n", 400),
        ("9112 5.2: obs-fold", b"0\r\nX: y\r\n z\r\n\r\n", 400),
        ("9112 5.2: whitespace at once", b"0\r\n X: y\r\n\r\n", 400),
        ("9112 2.2: bare LF", b"0\r\nX: y\n\r\n", 400),
        ("9112 2.2: bare CR", b"0\r\nX: y\rz\r\n\r\n", 400),
        ("9110 5.5: NUL", b"0\r\nX: \0\r\n\r\n", 400),
        ("9110 5.5: DEL", b"0\r\nX: \x7f\r\n\r\n", 400),
        ("a request where the trailer section should end", b"0\r\nGET / HTTP/1.1\r\n\r\n", 400),
    ]);
}

#[test]
fn trailers_without_end_are_refused() {
    let limits = Limits::default();
    for start in ["0\r\n", "0\r\nX", "0\r\nX: "] {
        let endless = [HEAD, start.as_bytes(), &[b'x'; 100_000]].concat();
        let (status, arrived) = refused_after(&endless, &limits);
        assert_eq!(status, 431);
        assert!(arrived < 20_000, "{arrived}");
    }
    let flood = [&b"0\r\n"[..], &b"X: y\r\n".repeat(10_000)].concat();
    assert_eq!(read(&flood, &limits).code(), 431);
    let line = |length: usize| format!("0\r\nX: {}\r\n\r\n", "y".repeat(length - 5)).into_bytes();
    assert_eq!(read(&line(16 * 1024), &limits).code(), 0);
    assert_eq!(read(&line(16 * 1024 + 1), &limits).code(), 431);
}

#[test]
fn a_chunked_body_has_the_limit_of_all_bodies() {
    let limits = Limits { body: 10, ..Limits::default() };
    assert_eq!(read(b"a\r\n0123456789\r\n0\r\n\r\n", &limits).code(), 0);
    assert_eq!(read(b"5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n", &limits).code(), 0);
    assert_eq!(read(b"b\r\n", &limits).code(), 413);
    assert_eq!(read(b"5\r\n01234\r\n6\r\n", &limits).code(), 413);
    assert_eq!(read(b"a\r\n0123456789\r\n1\r\n", &limits).code(), 413);
    let none = Limits { body: 0, ..Limits::default() };
    assert_eq!(read(b"0\r\n\r\n", &none).code(), 0);
    assert_eq!(read(b"1\r\n", &none).code(), 413);
    let all = Limits { body: u64::MAX, ..Limits::default() };
    assert_eq!(read(b"ffffffffffffffff\r\n", &all).code(), wire::MORE);
    assert_eq!(read(b"1\r\nx\r\nffffffffffffffff\r\n", &all).code(), 413);
}

#[test]
fn a_refusal_stays() {
    let mut decoder = BodyDecoder::new(BodyLength::Chunked, 10);
    let first = decoder.decode(b"x");
    assert!(matches!(first, BodyStep::Refused(_)));
    assert_eq!(decoder.decode(b"0\r\n\r\n"), first);
}
