//! Conditional requests (RFC 9110 section 13).

use tailrace_http::conditional::{Precondition, Validators, evaluate, http_date, range, validator_time};
use tailrace_http::head::{HeadParser, HeadStep};
use tailrace_http::limits::Limits;
use tailrace_http::request_head::RequestHead;

use Precondition::{Failed, Holds, NotModified};

/// A second of the year 1994, as RFC 9110 section 5.6.7 has it.
const TIME: u64 = 784_111_777;
const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

const STRONG: Validators<'_> = Validators { etag: Some(b"\"a,b\""), modified: Some(TIME) };
const WEAK: Validators<'_> = Validators { etag: Some(b"W/\"a\""), modified: None };

fn head(method: &str, fields: &[String]) -> (Vec<u8>, RequestHead) {
    let mut text = format!("{method} / HTTP/1.1\r\nHost: a\r\n");
    for field in fields {
        text.push_str(field);
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    let mut head = RequestHead::default();
    let step = HeadParser::default().parse(text.as_bytes(), &Limits::default(), &mut head);
    assert!(matches!(step, HeadStep::Complete), "{step:?}");
    (text.into_bytes(), head)
}

fn evaluated(method: &str, fields: &[String], validators: Validators<'_>) -> Precondition {
    let (bytes, head) = head(method, fields);
    evaluate(&head, &bytes, validators)
}

#[test]
fn entity_tags() {
    let cases: [(&str, &str, Validators<'_>, Precondition); 24] = [
        ("If-None-Match", "\"a,b\"", STRONG, NotModified),
        ("If-None-Match", "W/\"a,b\"", STRONG, NotModified),
        ("if-none-match", "\"x\" , \"a,b\"", STRONG, NotModified),
        ("If-None-Match", ",, \"x\",W/\"y\",\"a,b\",", STRONG, NotModified),
        ("If-None-Match", "*", STRONG, NotModified),
        ("If-None-Match", "\"x\"", STRONG, Holds),
        ("If-None-Match", "\"a\"", STRONG, Holds),
        ("If-None-Match", "a,b", STRONG, Holds),
        ("If-None-Match", "w/\"a,b\"", STRONG, Holds),
        ("If-None-Match", "\"x\" \"a,b\"", STRONG, Holds),
        ("If-None-Match", "\"x, \"a,b\"", STRONG, Holds),
        ("If-None-Match", "", STRONG, Holds),
        ("If-None-Match", "\"a\"", WEAK, NotModified),
        ("If-None-Match", "\"a\"", Validators { etag: None, modified: None }, Holds),
        ("If-Match", "\"a,b\"", STRONG, Holds),
        ("If-Match", "\"x\", \"a,b\"", STRONG, Holds),
        ("If-Match", "*", STRONG, Holds),
        ("If-Match", "*", Validators { etag: None, modified: None }, Holds),
        ("If-Match", "W/\"a,b\"", STRONG, Failed),
        ("If-Match", "\"x\"", STRONG, Failed),
        ("If-Match", "", STRONG, Failed),
        ("If-Match", "\"a\"", WEAK, Failed),
        ("If-Match", "W/\"a\"", WEAK, Failed),
        ("If-Match", "\"a\"", Validators { etag: None, modified: None }, Failed),
    ];
    for (name, value, validators, expected) in cases {
        assert_eq!(evaluated("GET", &[format!("{name}: {value}")], validators), expected, "{name}: {value}");
    }
}

#[test]
fn the_octets_of_an_entity_tag() {
    // RFC 9110 section 8.8.3: visible characters but the quote, and obs-text.
    for octet in (0x20..=0x7e).filter(|octet| *octet != b'"').chain([0x80, 0xff]) {
        let tag = [b"\"a", &[octet][..], b"\""].concat();
        let validators = Validators { etag: Some(&tag), modified: None };
        let field = [b"GET / HTTP/1.1\r\nHost: a\r\nIf-None-Match: ", &tag[..], b"\r\n\r\n"].concat();
        let mut head = RequestHead::default();
        assert_eq!(HeadParser::default().parse(&field, &Limits::default(), &mut head), HeadStep::Complete);
        let expected = if octet == b' ' { Holds } else { NotModified };
        assert_eq!(evaluate(&head, &field, validators), expected, "{octet:#x}");
    }
}

#[test]
fn dates() {
    let unknown = Validators { modified: None, ..STRONG };
    let cases = [
        ("If-Modified-Since", DATE, STRONG, NotModified),
        ("If-Modified-Since", AFTER, STRONG, NotModified),
        ("If-Modified-Since", BEFORE, STRONG, Holds),
        ("If-Modified-Since", "Sunday, 06-Nov-94 08:49:37 GMT", STRONG, NotModified),
        ("If-Modified-Since", "Sun Nov  6 08:49:37 1994", STRONG, NotModified),
        ("If-Modified-Since", "yesterday", STRONG, Holds),
        ("If-Modified-Since", "784111777", STRONG, Holds),
        ("If-Modified-Since", DATE, unknown, Holds),
        ("If-Unmodified-Since", DATE, STRONG, Holds),
        ("If-Unmodified-Since", AFTER, STRONG, Holds),
        ("If-Unmodified-Since", BEFORE, STRONG, Failed),
        ("If-Unmodified-Since", "yesterday", STRONG, Holds),
        ("If-Unmodified-Since", DATE, unknown, Holds),
    ];
    for (name, value, validators, expected) in cases {
        assert_eq!(evaluated("GET", &[format!("{name}: {value}")], validators), expected, "{name}: {value}");
    }
    let twice = [format!("If-Modified-Since: {DATE}"), format!("If-Modified-Since: {AFTER}")];
    assert_eq!(evaluated("GET", &twice, STRONG), Holds, "a field that is not a list is given once");
}

#[test]
fn the_order_of_conditions() {
    let matches = "If-Match: \"a,b\"".to_owned();
    let none_match = "If-None-Match: \"a,b\"".to_owned();
    let other = "If-None-Match: \"x\"".to_owned();
    let since = |name: &str, date: &str| format!("{name}: {date}");
    // If-Match decides before If-Unmodified-Since, and If-None-Match before If-Modified-Since.
    assert_eq!(evaluated("GET", &[since("If-Unmodified-Since", BEFORE), matches.clone()], STRONG), Holds);
    assert_eq!(evaluated("GET", &[since("If-Modified-Since", AFTER), other], STRONG), Holds);
    // Both kinds are asked, and a failure comes first.
    assert_eq!(evaluated("GET", &[matches, none_match.clone()], STRONG), NotModified);
    assert_eq!(evaluated("GET", &["If-Match: \"x\"".to_owned(), none_match.clone()], STRONG), Failed);
    assert_eq!(evaluated("HEAD", std::slice::from_ref(&none_match), STRONG), NotModified);
    assert_eq!(evaluated("PUT", &[none_match], STRONG), Failed);
    assert_eq!(evaluated("PUT", &[since("If-Modified-Since", AFTER)], STRONG), Holds);
    for method in ["OPTIONS", "TRACE"] {
        assert_eq!(evaluated(method, &["If-Match: \"x\"".to_owned()], STRONG), Holds, "{method}");
    }
}

#[test]
fn ranges_of_the_representation_that_the_client_has() {
    let cases: [(&str, &[&str], Validators<'_>, bool); 13] = [
        ("GET", &[], STRONG, true),
        ("HEAD", &[], STRONG, false),
        ("POST", &[], STRONG, false),
        ("GET", &["If-Range: \"a,b\""], STRONG, true),
        ("GET", &["If-Range: \"x\""], STRONG, false),
        ("GET", &["If-Range: W/\"a,b\""], STRONG, false),
        ("GET", &["If-Range: W/\"a\""], WEAK, false),
        ("GET", &["If-Range: Sun, 06 Nov 1994 08:49:37 GMT"], STRONG, true),
        ("GET", &["If-Range: Sun, 06 Nov 1994 08:49:38 GMT"], STRONG, false),
        ("GET", &["If-Range: Sun, 06 Nov 1994 08:49:36 GMT"], STRONG, false),
        ("GET", &["If-Range: nonsense"], STRONG, false),
        ("GET", &["If-Range: \"a,b\"", "If-Range: \"a,b\""], STRONG, false),
        ("GET", &["Range: bytes=5-6"], STRONG, false),
    ];
    for (method, fields, validators, is_applied) in cases {
        let mut all = vec!["Range: bytes=0-1".to_owned()];
        all.extend(fields.iter().map(|field| (*field).to_owned()));
        let (bytes, head) = head(method, &all);
        let expected = is_applied.then_some(b"bytes=0-1".as_slice());
        assert_eq!(range(&head, &bytes, validators), expected, "{method} {fields:?}");
    }
    let (bytes, head) = head("GET", &["If-Range: \"a,b\"".to_owned()]);
    assert_eq!(range(&head, &bytes, STRONG), None);
}

#[test]
fn dates_are_written_as_they_are_read() {
    assert_eq!(http_date(TIME), DATE);
    assert_eq!(http_date(u64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
    assert_eq!(evaluated("GET", &[format!("If-Modified-Since: {}", http_date(TIME))], STRONG), NotModified);
}

#[test]
fn a_time_is_a_validator_once_its_second_is_over() {
    assert_eq!([TIME - 1, TIME, TIME + 1].map(|modified| validator_time(modified, TIME)), [Some(TIME - 1), None, None]);
}
