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
    // The registry's codes; 306, 418 and 510 are unused, reserved or obsolete.
    let registered = [
        &[100..=101, 200..=208, 226..=226, 300..=305, 307..=308, 400..=417, 421..=426][..],
        &[428..=429, 431..=431, 451..=451, 500..=508, 511..=511],
    ];
    for status in 0..=u16::MAX {
        let is_registered = registered.concat().iter().any(|codes| codes.contains(&status));
        assert_eq!(!reason_phrase(status).is_empty(), is_registered, "{status}");
        assert!(reason_phrase(status).bytes().all(|byte| byte == b' ' || byte == b'-' || byte.is_ascii_alphabetic()));
    }
}
