//! Byte ranges (RFC 9110 section 14).

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};
use tailrace_http::range::{ByteRange, Multipart, Ranges, ranges};

fn parts(expected: &[(u64, u64)]) -> Ranges {
    Ranges::Parts(expected.iter().map(|&(first, last)| ByteRange { first, last }).collect())
}

#[test]
fn of_ten_bytes() {
    let cases: [(&str, Ranges); 39] = [
        ("bytes=0-0", parts(&[(0, 0)])),
        ("bytes=0-4", parts(&[(0, 4)])),
        ("bytes=9-9", parts(&[(9, 9)])),
        ("bytes=2-", parts(&[(2, 9)])),
        ("bytes=-3", parts(&[(7, 9)])),
        ("bytes=-10", parts(&[(0, 9)])),
        ("bytes=-11", parts(&[(0, 9)])),
        ("bytes=4-99999999999999999999999999", parts(&[(4, 9)])),
        ("Bytes=4-10", parts(&[(4, 9)])),
        ("bytes=007-8", parts(&[(7, 8)])),
        ("bytes=0-1,3-4", parts(&[(0, 1), (3, 4)])),
        ("bytes=3-4, 0-1", parts(&[(3, 4), (0, 1)])),
        ("bytes= 0-1 ,\t,, -1", parts(&[(0, 1), (9, 9)])),
        ("bytes=0-1,50-", parts(&[(0, 1)])),
        ("bytes=0-1,-0", parts(&[(0, 1)])),
        ("bytes=0-5,3-9", parts(&[(0, 5), (3, 9)])),
        ("bytes=0-,1-,2-", parts(&[(0, 9), (1, 9), (2, 9)])),
        ("bytes=10-", Ranges::Unsatisfiable),
        ("bytes=10-11,20-", Ranges::Unsatisfiable),
        ("bytes=99999999999999999999999999-", Ranges::Unsatisfiable),
        ("bytes=-0", Ranges::Unsatisfiable),
        ("bytes=0-,1-,2-,3-", Ranges::Whole),
        ("bytes=4-3", Ranges::Whole),
        ("bytes=0-1,4-3", Ranges::Whole),
        ("bytes=", Ranges::Whole),
        ("bytes=,", Ranges::Whole),
        ("bytes=-", Ranges::Whole),
        ("bytes=1", Ranges::Whole),
        ("bytes=a-b", Ranges::Whole),
        ("bytes=--1", Ranges::Whole),
        ("bytes=0-1,a", Ranges::Whole),
        ("bytes=1-2;3-4", Ranges::Whole),
        ("bytes=1-2,", parts(&[(1, 2)])),
        ("bytes", Ranges::Whole),
        ("bytes=0x1-2", Ranges::Whole),
        ("bytes=+1-2", Ranges::Whole),
        ("bytes=1 - 2", Ranges::Whole),
        ("bytes 0-1", Ranges::Whole),
        ("items=0-1", Ranges::Whole),
    ];
    for (value, expected) in cases {
        assert_eq!(ranges(value.as_bytes(), 10), expected, "{value}");
    }
}

#[test]
fn of_nothing() {
    assert_eq!(ranges(b"bytes=-1", 0), Ranges::Whole);
    for value in ["bytes=0-", "bytes=-0", "bytes=0-0"] {
        assert_eq!(ranges(value.as_bytes(), 0), Ranges::Unsatisfiable, "{value}");
    }
}

#[test]
fn no_more_than_a_client_needs() {
    let of = |count: u64| {
        let members: Vec<_> = (0..count).map(|number| format!("{0}-{0}", 2 * number)).collect();
        ranges(format!("bytes={}", members.join(",")).as_bytes(), 1_000)
    };
    assert!(matches!(of(64), Ranges::Parts(parts) if parts.len() == 64));
    assert_eq!(of(65), Ranges::Whole);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parts_are_within_the_representation_and_in_order(
        asked in vec((any::<Option<u16>>(), any::<Option<u16>>()), 1..6),
        length in 0..40_000_u64,
    ) {
        let text = |number: &Option<u16>| number.map_or(String::new(), |number| number.to_string());
        let members: Vec<_> = asked.iter().map(|(first, last)| format!("{}-{}", text(first), text(last))).collect();
        // What each member asks for, byte by byte.
        let wanted = |at: u64, member: &(Option<u16>, Option<u16>)| match *member {
            (Some(first), Some(last)) => u64::from(first) <= at && at <= u64::from(last),
            (Some(first), None) => u64::from(first) <= at,
            (None, Some(suffix)) => at + u64::from(suffix) >= length,
            (None, None) => false,
        };
        let result = ranges(format!("bytes={}", members.join(",")).as_bytes(), length);
        if let Ranges::Parts(parts) = result {
            let mut parts = parts.iter();
            for member in &asked {
                let first = (0..length).find(|&at| wanted(at, member));
                let Some(first) = first else { continue };
                let part = parts.next();
                prop_assert_eq!(part.map(|part| part.first), Some(first));
                let last = part.map_or(0, |part| part.last);
                prop_assert!(last < length && wanted(last, member));
                prop_assert!(last + 1 == length || !wanted(last + 1, member));
            }
            prop_assert_eq!(parts.next(), None);
        }
    }

    #[test]
    fn no_octets_cause_a_panic(value in vec(any::<u8>(), 0..60), length in any::<u64>()) {
        let _ = ranges(&value, length);
    }
}

#[test]
fn a_body_of_several_ranges_has_the_length_that_it_says() {
    let parts = [ByteRange { first: 0, last: 1 }, ByteRange { first: 5, last: 9 }];
    for media_type in [Some("text/plain"), None] {
        let multipart = Multipart::new(&parts, 10, media_type);
        let mut body = String::new();
        for (header, part) in multipart.headers.iter().zip(&parts) {
            let (first, last) = (part.first as usize, part.last as usize);
            body += header;
            body += &"0123456789"[first..=last];
        }
        body += &multipart.end;
        assert_eq!(multipart.length, body.len() as u64);
        assert_eq!(body.contains("Content-Type: text/plain\r\n"), media_type.is_some());
        assert!(body.contains("Content-Range: bytes 0-1/10\r\n\r\n01\r\n--"), "{body}");
        assert!(multipart.media_type.starts_with("multipart/byteranges; boundary="));
    }
}
