//! Request targets and authorities: RFC 9112 section 3.2, RFC 3986 section 3.2.

use crate::wire::read_three_ways;
use tailrace_http::head::{HeadParser, HeadStep};
use tailrace_http::limits::Limits;
use tailrace_http::request_head::{RequestHead, TargetForm};

fn code(method: &str, target: &str) -> u16 {
    let bytes = format!("{method} {target} HTTP/1.1\r\nHost: ignored\r\n\r\n");
    read_three_ways(bytes.as_bytes(), &Limits::default()).code()
}

struct Parts<'a> {
    form: TargetForm,
    path: &'a str,
    query: Option<&'a str>,
    host: &'a str,
}

fn parts(method: &str, target: &str, expected: &Parts<'_>) {
    let bytes = format!("{method} {target} HTTP/1.1\r\nHost: field\r\n\r\n");
    let request = read_three_ways(bytes.as_bytes(), &Limits::default()).request();
    let head = &request.head;
    assert_eq!(request.text(head.method), method);
    assert_eq!(request.text(head.target), target);
    assert_eq!(head.form, expected.form, "{target}");
    assert_eq!(request.text(head.path), expected.path, "{target}");
    assert_eq!(head.query.map(|query| request.text(query)), expected.query, "{target}");
    assert_eq!(request.host(), Some(expected.host), "{target}");
    assert_eq!(head.authority.is_some(), expected.form == TargetForm::Absolute);
    assert_eq!(head.scheme.is_some(), expected.form == TargetForm::Absolute);
}

#[test]
fn origin_form() {
    use TargetForm::Origin;
    for (target, path, query) in [
        ("/", "/", None),
        ("/?", "/", Some("")),
        ("/a/b;c=d", "/a/b;c=d", None),
        ("/a?b=c&d", "/a", Some("b=c&d")),
        ("/a?b?c", "/a", Some("b?c")),
        ("//a//b", "//a//b", None),
        ("/../etc/passwd", "/../etc/passwd", None),
        ("/a\\b", "/a\\b", None),
        ("/%41%00%zz%", "/%41%00%zz%", None),
        ("/http://x/y", "/http://x/y", None),
        ("/\"<>^`{|}", "/\"<>^`{|}", None),
        ("/*", "/*", None),
    ] {
        parts("GET", target, &Parts { form: Origin, path, query, host: "field" });
    }
}

#[test]
fn absolute_form_replaces_the_host() {
    use TargetForm::Absolute;
    for (target, path, query, host) in [
        ("http://h/p?q", "/p", Some("q"), "h"),
        ("http://h", "/", None, "h"),
        ("http://h?q", "/", Some("q"), "h"),
        ("http://h/", "/", None, "h"),
        ("HtTpS://h.example:8443/p", "/p", None, "h.example:8443"),
        ("http://h:/p", "/p", None, "h:"),
        ("http://[::1]:80/p", "/p", None, "[::1]:80"),
        ("http://h//p", "//p", None, "h"),
        ("http://h/p/a@b:c", "/p/a@b:c", None, "h"),
    ] {
        parts("GET", target, &Parts { form: Absolute, path, query, host });
    }
}

#[test]
fn asterisk_form() {
    parts("OPTIONS", "*", &Parts { form: TargetForm::Asterisk, path: "*", query: None, host: "field" });
    assert_eq!(code("GET", "*"), 400);
    assert_eq!(code("options", "*"), 400);
    assert_eq!(code("OPTIONS", "**"), 400);
    assert_eq!(code("OPTIONS", "*/x"), 400);
    assert_eq!(code("OPTIONS", "*?q"), 400);
    let reason = |target: &str| {
        let bytes = format!("GET {target} HTTP/1.1\r\n\r\n");
        let step = HeadParser::default().parse(bytes.as_bytes(), &Limits::default(), &mut RequestHead::default());
        if let HeadStep::Refused(refusal) = step { refusal.reason } else { panic!("{step:?}") }
    };
    assert!(reason("*").contains("OPTIONS") && reason("*") != reason("x"), "{}", reason("*"));
}

#[test]
fn connect_is_refused() {
    assert_eq!(code("CONNECT", "h:443"), 501);
    assert_eq!(code("CONNECT", "[::1]:443"), 501);
    for target in ["h", "h:", "/", "*", "http://h:443/", ":443", "h:443/"] {
        assert_eq!(code("CONNECT", target), 400, "{target}");
    }
}

#[test]
fn malformed_targets() {
    for target in [
        "a",
        "a/b",
        "?q",
        "h:80",
        "h.example",
        "http:/h/p",
        "http:h",
        "http//h/p",
        "http://",
        "http:///p",
        "http://:80/p",
        "http://?q",
        "http://u@h/p",
        "http://u:p@h/p",
        "http://@h/p",
        "ftp://h/p",
        "file:///etc/passwd",
        "httpx://h/p",
        "ws://h/p",
        "://h/p",
        "http ://h/p",
        "http://h:80:80/p",
        "http://h:port/p",
        "http://h:65536/p",
        "http://[::1/p",
        "http://::1/p",
        "http://h,g/p",
        "http://h\\g/p",
        "http://%zz/p",
        ".",
        "..",
        "\\a",
        "javascript:1",
    ] {
        assert_eq!(code("GET", target), 400, "{target}");
    }
}

#[test]
fn hosts() {
    let host = |value: &str| {
        let bytes = format!("GET / HTTP/1.1\r\nHost: {value}\r\n\r\n");
        read_three_ways(bytes.as_bytes(), &Limits::default()).code()
    };
    for good in [
        "",
        "a",
        "example.org",
        "EXAMPLE.org.",
        "a-b_c~d",
        "127.0.0.1",
        "127.0.0.1:8000",
        "a:0",
        "a:65535",
        "a:00080",
        "a:",
        "[::1]",
        "[::1]:8000",
        "[2001:db8::7]",
        "[::ffff:127.0.0.1]",
        "[v1.a:b]",
        "%41.example",
        "xn--bcher-kva.example",
        "a!$&'()*+;=",
    ] {
        assert_eq!(host(good), 0, "{good}");
    }
    for bad in [
        "a b",
        "a,b",
        "a, b",
        "a/b",
        "a/",
        "http://a",
        "u@a",
        "a:b",
        "a:80:80",
        ":80",
        ":",
        "a:-1",
        "a:+1",
        "a:65536",
        "a:99999",
        "a:000080",
        "a:80 ,",
        "a: 80",
        "a :80",
        "::1",
        "[::1",
        "::1]",
        "[]",
        "[:]",
        "[::1]80",
        "[::1]:x",
        "[::1%25eth0]",
        "[127.0.0.1]",
        "[g::1]",
        "[1:2:3:4:5:6:7:8:9]",
        "[v.a]",
        "[v1.]",
        "[vx.a]",
        "a?b",
        "a#b",
        "a\\b",
        "\"a\"",
        "<a>",
        "a|b",
        "a%",
        "a%4",
        "a%zz",
        "{a}",
        "a\tb",
        "a^b",
        "a`b",
        "a[b]",
    ] {
        assert_eq!(host(bad), 400, "{bad}");
    }
}
