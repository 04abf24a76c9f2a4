//! Limits, refusals and reason phrases.

use tailrace_http::limits::{Limits, reason_phrase};

#[test]
fn the_defaults() {
    let limits = Limits::default();
    assert_eq!((limits.request_line, limits.header_bytes, limits.header_count), (8190, 65_536, 128));
    assert_eq!(limits.body, 1 << 30);
}

#[test]
fn phrases_are_those_of_the_registry() {
    assert_eq!(reason_phrase(200), "OK");
    assert_eq!(reason_phrase(413), "Content Too Large");
    assert_eq!(reason_phrase(422), "Unprocessable Content");
    assert_eq!(reason_phrase(299), "");
    for status in [400, 408, 413, 414, 417, 431, 500, 501, 502, 503, 505] {
        assert!(!reason_phrase(status).is_empty(), "{status} is a status that this server sends");
    }
    for status in 0..=u16::MAX {
        assert!(reason_phrase(status).bytes().all(|byte| byte == b' ' || byte == b'-' || byte.is_ascii_alphabetic()));
    }
}
