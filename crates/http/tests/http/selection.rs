//! What a request for a representation gets (RFC 9110 sections 13 and 14).

use tailrace_http::conditional::Validators;
use tailrace_http::head::{HeadParser, HeadStep};
use tailrace_http::limits::Limits;
use tailrace_http::range::ByteRange;
use tailrace_http::request_head::RequestHead;
use tailrace_http::selection::{Selection, select};

use Selection::{Failed, NotModified, Parts, Unsatisfiable, Whole};

const TAGGED: Validators<'_> = Validators { etag: Some(b"\"a\""), modified: None };
const DATED: Validators<'_> = Validators { etag: None, modified: Some(784_111_777) };
const UNKNOWN: Validators<'_> = Validators { etag: None, modified: None };

/// For a representation of 10 bytes.
fn selected(method: &str, fields: &str, validators: Validators<'_>) -> Selection {
    let text = format!("{method} / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let mut head = RequestHead::default();
    let step = HeadParser::default().parse(text.as_bytes(), &Limits::default(), &mut head);
    assert!(matches!(step, HeadStep::Complete), "{step:?}");
    select(&head, text.as_bytes(), validators, 10)
}

#[test]
fn conditions_come_before_ranges() {
    let part = || Parts(vec![ByteRange { first: 1, last: 2 }]);
    for (fields, wanted) in [
        ("", Whole),
        ("Range: bytes=1-2\r\n", part()),
        ("Range: bytes=10-\r\n", Unsatisfiable),
        ("Range: bytes=2-1\r\n", Whole),
        ("Range: bytes=1-2\r\nIf-None-Match: \"a\"\r\n", NotModified),
        ("Range: bytes=10-\r\nIf-Match: \"b\"\r\n", Failed),
        ("Range: bytes=1-2\r\nIf-Match: \"a\"\r\n", part()),
        ("Range: bytes=1-2\r\nIf-Range: \"b\"\r\n", Whole),
        ("Range: bytes=10-\r\nIf-Range: \"b\"\r\n", Whole),
    ] {
        assert_eq!(selected("GET", fields, TAGGED), wanted, "{fields}");
    }
    assert_eq!(selected("GET", "Range: bytes=1-2\r\n", DATED), part());
}

#[test]
fn parts_are_sent_only_of_what_can_be_identified() {
    assert_eq!(selected("GET", "Range: bytes=1-2\r\n", UNKNOWN), Whole);
    assert_eq!(selected("GET", "Range: bytes=10-\r\n", UNKNOWN), Whole);
    assert_eq!(selected("GET", "If-None-Match: *\r\n", UNKNOWN), NotModified);
}

#[test]
fn methods_but_get_have_no_ranges_and_those_that_act_no_conditions() {
    let fields = "Range: bytes=10-\r\nIf-None-Match: \"a\"\r\nIf-Match: \"b\"\r\n";
    assert_eq!(selected("POST", fields, TAGGED), Whole);
    assert_eq!(selected("HEAD", fields, TAGGED), Failed);
    assert_eq!(selected("HEAD", "Range: bytes=10-\r\n", TAGGED), Whole);
}
