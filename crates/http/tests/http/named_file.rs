//! What an application means by the file that it names.

use tailrace_http::named_file::{names, readings};

#[test]
fn a_value_is_read_as_each_framework_writes_it() {
    let cases: [(&str, &[&str]); 15] = [
        ("/srv/a b.txt", &["/srv/a b.txt"]),
        ("/srv/50%25.txt", &["/srv/50%25.txt"]),
        ("/srv/日.txt", &["/srv/日.txt"]),
        ("/srv/é.txt", &["/srv/é.txt"]),
        ("/srv/\u{c3}\u{a9}.txt", &["/srv/\u{c3}\u{a9}.txt", "/srv/é.txt"]),
        ("/srv/\u{c3}\u{a9}日.txt", &["/srv/\u{c3}\u{a9}日.txt"]),
        ("=?utf-8?b?L3Nydi/ml6UudHh0?=", &["/srv/日.txt"]),
        ("=?UTF-8?B?L2E=?=", &["/a"]),
        ("=?utf-8?b?Lw==?=", &["/"]),
        ("=?utf-8?b?L2EvYg==?=", &["/a/b"]),
        ("=?utf-8?b?L3Nydi/wn6++Lz4+?=", &["/srv/\u{1fbfe}/>>"]),
        ("=?utf-8?q?/srv/a_b_=E6=97=A5=2Etxt?=", &["/srv/a b 日.txt"]),
        ("=?utf-8?b?/w==?=", &["=?utf-8?b?/w==?="]),
        ("=?utf-8?b?L2E?=", &["=?utf-8?b?L2E?="]),
        ("", &[""]),
    ];
    for (value, wanted) in cases {
        assert_eq!(readings(value), wanted, "{value}");
    }
    for malformed in [
        "=?utf-8?b?L?=",
        "=?utf-8?b?L===?=",
        "=?utf-8?b?L2==L2E=?=",
        "=?utf-8?q?=E?=",
        "=?latin-1?q?a?=",
        "=?a?b?c?d?=",
    ] {
        assert_eq!(readings(malformed), [malformed]);
    }
}

#[test]
fn a_path_is_absolute_and_has_no_dot_dot() {
    assert_eq!(names("/srv//a/./b c.txt").unwrap(), ["srv", "a", "b c.txt"]);
    for path in ["", "a", "a/b", "./a", "/", "//", "/.", "/a/", "/a/.", "/a/..", "/../a", "/a/../b", "=?x"] {
        assert_eq!(names(path), None, "{path}");
    }
    assert_eq!(names("/a/..b/c..").unwrap(), ["a", "..b", "c.."]);
}
