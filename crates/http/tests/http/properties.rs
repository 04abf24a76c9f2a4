//! Properties of any head, body and cut. httparse is the oracle: it must accept what this crate accepts, and read the
//! same.

use crate::wire::{Outcome, read};
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::sample::{Index, select};
use tailrace_http::body_encoder::BodyEncoder;
use tailrace_http::encode::{OwnFields, ResponseHead};
use tailrace_http::framing::{BodyLength, RequestFacts, ResponseBody};
use tailrace_http::head::{HeadParser, HeadStep};
use tailrace_http::limits::Limits;
use tailrace_http::request_head::{RequestHead, Version};

fn token() -> impl Strategy<Value = String> {
    "[!#$%&'*+.^_`|~0-9A-Za-z-]{1,20}"
}

/// A name that means nothing to the framing.
fn name() -> impl Strategy<Value = String> {
    token().prop_map(|token| format!("X-{token}"))
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let octet = prop_oneof![4 => 0x21..=0x7e_u8, 1 => 0x80..=0xff_u8];
    let inner = prop_oneof![8 => octet.clone(), 1 => Just(b' '), 1 => Just(b'\t')];
    prop_oneof![
        Just(Vec::new()),
        octet.clone().prop_map(|octet| vec![octet]),
        (octet.clone(), vec(inner, 0..60), octet)
            .prop_map(|(first, middle, last)| [&[first], &middle[..], &[last]].concat()),
    ]
}

fn blank() -> impl Strategy<Value = String> {
    "[ \t]{0,3}"
}

fn cuts(length: usize, indices: &[Index]) -> Vec<usize> {
    let mut cuts: Vec<usize> = indices.iter().map(|index| index.index(length + 1)).collect();
    cuts.sort_unstable();
    cuts
}

/// Requests that are valid or nearly so: valid lines of all kinds in any combination, then up to two small changes.
fn nearly_valid() -> impl Strategy<Value = Vec<u8>> {
    let line = select(vec![
        "GET / HTTP/1.1\r\n",
        "POST /a?b HTTP/1.1\r\n",
        "POST / HTTP/1.0\r\n",
        "GET http://a/b HTTP/1.3\r\n",
        "\r\nOPTIONS * HTTP/1.1\r\n",
    ]);
    let field = select(vec![
        "Host: a\r\n",
        "Host:[::1]:80 \r\n",
        "Content-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close\r\n",
        "Expect: 100-continue\r\n",
        "X: y\tz\t \r\n",
        "Y:\r\n",
    ]);
    let body = select(vec![
        "",
        "hello",
        "0\r\n\r\n",
        "5\r\nhello\r\n0\r\nT: u\r\n\r\n",
        "3;a=b;c=\"d\"\r\nhel\r\n00\r\n\r\nGET",
    ]);
    let change = prop_oneof![
        select(vec![
            "\r", "\n", "\r\n", "\r\n\r\n", " ", "\t", ":", ",", ";", "0", "5", "f", "#", "@", "\0", "\x7f", "\u{e9}",
            "HTTP/2.0"
        ])
        .prop_map(|piece| piece.as_bytes().to_vec()),
        vec(any::<u8>(), 0..3),
    ];
    let changes = vec((any::<Index>(), 0..3_usize, change), 0..3);
    (line, vec(field, 0..5), body, changes).prop_map(|(line, fields, body, changes)| {
        with_changes([line, &fields.concat(), "\r\n", body].concat().into_bytes(), changes)
    })
}

/// The bytes, with each piece in place of so many at its index.
pub(crate) fn with_changes(mut bytes: Vec<u8>, changes: Vec<(Index, usize, Vec<u8>)>) -> Vec<u8> {
    for (index, removed, piece) in changes {
        let start = index.index(bytes.len());
        let end = bytes.len().min(start + removed);
        bytes.splice(start..end, piece);
    }
    bytes
}

proptest! {
    // A failure is printed whole and becomes a wire case, so no file of seeds is kept.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_head_is_read_as_it_was_written(
        method in token(),
        path in "/[!-\"$->@-~]{0,40}",
        query in proptest::option::of("[!-\"$-~]{0,40}"),
        minor in 0..=9_u8,
        fields in vec((name(), blank(), value(), blank()), 0..12),
        empty_lines in 0..=4_usize,
        indices in vec(any::<Index>(), 0..6),
    ) {
        let target = query.as_ref().map_or(path.clone(), |query| format!("{path}?{query}"));
        let mut bytes = "\r\n".repeat(empty_lines).into_bytes();
        bytes.extend_from_slice(format!("{method} {target} HTTP/1.{minor}\r\nHost: a\r\n").as_bytes());
        for (name, before, value, after) in &fields {
            bytes.extend_from_slice(format!("{name}:{before}").as_bytes());
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(format!("{after}\r\n").as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        let limits = Limits::default();
        let (outcome, _) = read(&bytes, cuts(bytes.len(), &indices), &limits);
        if method == "CONNECT" {
            prop_assert_eq!(outcome.code(), 400);
        } else {
            let request = outcome.request();
            prop_assert_eq!(request.head.length, bytes.len());
            prop_assert_eq!(request.text(request.head.method), method);
            prop_assert_eq!(request.text(request.head.target), target);
            prop_assert_eq!(request.text(request.head.path), path);
            prop_assert_eq!(request.head.query.map(|span| request.text(span)), query.as_deref());
            let expected: Vec<(&[u8], &[u8])> =
                fields.iter().map(|(name, _, value, _)| (name.as_bytes(), &value[..])).collect();
            prop_assert_eq!(&request.field_lines()[1..], &expected[..]);
            let version = if minor == 0 { Version::Http10 } else { Version::Http11 };
            prop_assert_eq!(request.head.version, version);
            prop_assert_eq!(request.framing.body, BodyLength::None);
        }
    }

    #[test]
    fn the_result_does_not_depend_on_the_cuts(bytes in nearly_valid(), indices in vec(any::<Index>(), 0..8)) {
        let limits = Limits { request_line: 60, header_bytes: 80, header_count: 4, body: 12 };
        let (whole, _) = read(&bytes, [], &limits);
        prop_assert_eq!(&whole, &read(&bytes, cuts(bytes.len(), &indices), &limits).0);
        prop_assert_eq!(&whole, &read(&bytes, 1..bytes.len().max(1), &limits).0);
        if let Outcome::Request(request) = whole {
            prop_assert!(bytes.starts_with(&request.bytes));
            prop_assert!(request.body.len() as u64 <= limits.body);
        }
    }

    #[test]
    fn no_octets_cause_a_panic(bytes in vec(any::<u8>(), 0..200), small in any::<bool>()) {
        let limits = if small {
            Limits { request_line: 3, header_bytes: 3, header_count: 1, body: 3 }
        } else {
            Limits::default()
        };
        prop_assert_eq!(read(&bytes, [], &limits).0, read(&bytes, 1..bytes.len().max(1), &limits).0);
        let chunked = [b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", &bytes[..]].concat();
        prop_assert_eq!(read(&chunked, [], &limits).0, read(&chunked, 1..chunked.len(), &limits).0);
    }

    #[test]
    fn chunks_are_decoded_as_they_were_encoded(
        blocks in vec(vec(any::<u8>(), 1..300), 0..8),
        indices in vec(any::<Index>(), 0..10),
    ) {
        let mut bytes = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        let encoder = BodyEncoder::CHUNKED;
        for block in &blocks {
            encoder.begin(block.len(), &mut bytes);
            bytes.extend_from_slice(block);
            bytes.extend_from_slice(encoder.behind(block.len()));
        }
        bytes.extend_from_slice(encoder.end());
        let request = read(&bytes, cuts(bytes.len(), &indices), &Limits::default()).0.request();
        prop_assert_eq!(request.body, blocks.concat());
        prop_assert_eq!(request.bytes, bytes);
    }

    /// Where httparse is laxer: bare LF as a line end, UTF-8 and fragments in the target, any target form, any number
    /// of empty lines. Where it is stricter: it accepts only the minor versions 0 and 1, so the version is replaced.
    #[test]
    fn httparse_accepts_what_is_accepted(bytes in nearly_valid()) {
        let limits = Limits::default();
        let mut head = RequestHead::default();
        if HeadParser::default().parse(&bytes, &limits, &mut head) == HeadStep::Complete {
            let mut bytes = bytes;
            let minor = head.target.end as usize + " HTTP/1.".len();
            prop_assert!(bytes[minor].is_ascii_digit());
            bytes[minor] = bytes[minor].min(b'1');
            let mut storage = [httparse::EMPTY_HEADER; 64];
            let mut other = httparse::Request::new(&mut storage);
            prop_assert_eq!(other.parse(&bytes), Ok(httparse::Status::Complete(head.length)));
            prop_assert_eq!(other.method.unwrap().as_bytes(), head.method.of(&bytes));
            prop_assert_eq!(other.path.unwrap().as_bytes(), head.target.of(&bytes));
            prop_assert_eq!(other.version == Some(1), head.version == Version::Http11);
            let ours: Vec<_> = head.fields.iter().map(|field| (field.name.of(&bytes), field.value.of(&bytes))).collect();
            let theirs: Vec<_> = other.headers.iter().map(|field| (field.name.as_bytes(), field.value)).collect();
            prop_assert_eq!(ours, theirs);
        }
    }

    /// A client finds the end of the body by the head; the server sends the body by the framing.
    #[test]
    fn the_fields_of_a_response_head_agree_with_its_framing(
        status in 200..=599_u16,
        phrase in value(),
        fields in vec((prop_oneof![name(), select(vec!["Connection", "Transfer-Encoding", "Date", "Trailer"]).prop_map(String::from)], value()), 0..8),
        declared in proptest::option::of(any::<u64>()),
        total in proptest::option::of(any::<u64>()),
        old in any::<bool>(),
        is_head in any::<bool>(),
        keep_alive in any::<bool>(),
    ) {
        let mut head = ResponseHead::default();
        head.status(&[status.to_string().as_bytes(), b" ", &phrase[..]].concat()).unwrap();
        for (name, value) in &fields {
            head.field(name.as_bytes(), value).unwrap();
        }
        if let Some(length) = declared {
            head.field(b"content-length", length.to_string().as_bytes()).unwrap();
        }
        let version = if old { Version::Http10 } else { Version::Http11 };
        let own = OwnFields { date: b"today", server: b"tailrace", id: None };
        let framing = head.finish(RequestFacts { format: version.into(), is_head, keep_alive }, total, own);
        let mut storage = [httparse::EMPTY_HEADER; 64];
        let mut parsed = httparse::Response::new(&mut storage);
        prop_assert_eq!(parsed.parse(head.bytes()), Ok(httparse::Status::Complete(head.bytes().len())));
        prop_assert_eq!(parsed.code, Some(status));
        let all = |name: &str| -> Vec<&[u8]> {
            let found = parsed.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
            found.map(|field| field.value).collect()
        };
        let lengths = all("content-length");
        let codings = all("transfer-encoding");
        prop_assert!(lengths.len() + codings.len() <= 1);
        prop_assert!(codings.is_empty() || (codings == [b"chunked"] && !old));
        let no_content = is_head || matches!(status, 204 | 205 | 304);
        prop_assert_eq!(framing.body == ResponseBody::None, no_content);
        match framing.body {
            ResponseBody::Known(length) => prop_assert_eq!(lengths, [length.to_string().into_bytes()]),
            ResponseBody::Delimited => prop_assert_eq!(codings.len(), 1),
            ResponseBody::UntilClose => prop_assert!(lengths.is_empty() && codings.is_empty() && !framing.keep_alive),
            ResponseBody::None => prop_assert!(codings.is_empty() && (status != 204 || lengths.is_empty())),
        }
        prop_assert!(keep_alive || !framing.keep_alive);
        let expected: &[&[u8]] = match (framing.keep_alive, old) {
            (false, _) => &[b"close"],
            (true, true) => &[b"keep-alive"],
            (true, false) => &[],
        };
        prop_assert_eq!(all("connection"), expected);
    }
}
