//! What a client has sent before the statement of its proxy does not change what that states, and what any proxy states
//! is valid.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailrace_http::forwarded::{Statement, read};
use tailrace_http::framing::request_framing;
use tailrace_http::head::{HeadParser, HeadStep};
use tailrace_http::limits::Limits;
use tailrace_http::request_head::RequestHead;
use tailrace_http::trust::{ForwardedFields, Trust};

/// The head of a request with these field lines, if it is one.
fn parsed(target: &[u8], lines: &[u8]) -> Option<(Vec<u8>, RequestHead)> {
    let bytes = [b"GET ", target, b" HTTP/1.1\r\n", lines, b"\r\n\r\n"].concat();
    let mut head = RequestHead::default();
    let step = HeadParser::default().parse(&bytes, &Limits::default(), &mut head);
    (step == HeadStep::Complete).then_some((bytes, head))
}

fn stated(lines: &[u8], trusted: &str) -> Option<(Statement, Vec<u8>)> {
    let (bytes, head) = parsed(b"/", lines)?;
    let trust = Trust::of([trusted], ForwardedFields::ANY).unwrap();
    let statement = read(&bytes, &head.fields, &trust, Some("10.0.0.1:80".parse().unwrap())).ok()?;
    Some((statement, bytes))
}

fuzz_target!(|input: (bool, bool, &[u8])| {
    let (is_standard, is_same_line, text) = input;
    for trusted in ["*", "10.0.0.0/8"] {
        let Some((Statement { host, prefix, port, .. }, bytes)) = stated(text, trusted) else { continue };
        assert_ne!(port, Some(0));
        let prefix = prefix.map_or(b"/".as_slice(), |prefix| prefix.of(&bytes));
        let host = host.map_or(b"a".as_slice(), |host| host.of(&bytes));
        let (bytes, head) = parsed(prefix, &[b"Host: ", host].concat()).expect("a head");
        assert!(request_framing(&bytes, &head, &Limits::default()).is_ok());
        assert!(head.query.is_none() && !head.path.of(&bytes).starts_with(b"//"));
    }
    // One value of a field, before that of the proxy.
    if text.iter().any(|&byte| byte == b'\r' || byte == b'\n') {
        return;
    }
    let (name, own) = if is_standard {
        (b"Forwarded: ".as_slice(), b"for=\"192.0.2.7:80\";proto=https;host=a, for=10.0.0.9".as_slice())
    } else {
        (b"X-Forwarded-For: ".as_slice(), b"192.0.2.7:80, 10.0.0.9".as_slice())
    };
    let between = if is_same_line { b", ".to_vec() } else { [b"\r\n", name].concat() };
    if let Some((statement, bytes)) = stated(&[name, text, &between, own].concat(), "10.0.0.0/8") {
        assert_eq!(statement.client, Some("192.0.2.7:80".parse().unwrap()));
        assert_eq!(statement.scheme.is_some(), is_standard);
        assert_eq!(statement.host.map(|host| host.of(&bytes)), is_standard.then_some(b"a".as_slice()));
    } else {
        // Then it is no field value at all.
        assert!(parsed(b"/", &[name, text].concat()).is_none());
    }
});
