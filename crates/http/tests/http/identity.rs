//! The id of a request, and its trace: RFC 9562 section 5.7, W3C Trace Context section 3.2.

use tailrace_http::head::{HeadParser, HeadStep};
use tailrace_http::identity::{IdField, LONGEST_ID, NEW_ID, Sampling, TraceParent, id_text, trace_id, uuid_v7};
use tailrace_http::limits::Limits;
use tailrace_http::request_head::RequestHead;

/// The id that these lines state, and the names of the fields that remain.
fn taken(lines: &str, is_trusted: bool) -> (Option<String>, Vec<String>) {
    let bytes = format!("GET / HTTP/1.1\r\n{lines}\r\n").into_bytes();
    let mut head = RequestHead::default();
    assert_eq!(HeadParser::default().parse(&bytes, &Limits::default(), &mut head), HeadStep::Complete, "{lines}");
    let field = IdField::named("X-Request-ID").unwrap();
    let id = field.take(&bytes, &mut head.fields, is_trusted);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let names = head.fields.iter().map(|field| text(field.name.of(&bytes))).collect();
    (id.map(|id| text(id.of(&bytes))), names)
}

#[test]
fn a_trusted_peer_states_the_id() {
    let longest = "x".repeat(LONGEST_ID);
    for id in ["1", "a-b_c.d~!#$%&'()*+/:;<=>?@[]^`{|}", "Root=1-67891233-abcdef;Self=1", &longest] {
        let (found, names) = taken(&format!("Host: a\r\nx-request-id:  {id} \r\nA: b\r\n"), true);
        assert_eq!(found.as_deref(), Some(id));
        assert_eq!(names, ["Host", "x-request-id", "A"]);
    }
}

#[test]
fn what_is_no_id_is_removed() {
    let long = "x".repeat(LONGEST_ID + 1);
    for value in ["", "a b", "a\tb", "a\"b", "a\\b", "a,b", "a, b", "\u{e4}", "\u{80}", &long] {
        let (found, names) = taken(&format!("Host: a\r\nX-Request-ID: {value}\r\nA: b\r\n"), true);
        assert_eq!((found, names), (None, vec!["Host".to_owned(), "A".to_owned()]), "{value:?}");
    }
}

#[test]
fn any_other_peer_and_a_repeated_field_state_none() {
    let once = "Host: a\r\nX-Request-ID: b\r\n";
    let twice = "X-Request-ID: b\r\nHost: a\r\nX-REQUEST-ID: b\r\n";
    for (lines, is_trusted) in [(once, false), (twice, true), (twice, false)] {
        assert_eq!(taken(lines, is_trusted), (None, vec!["Host".to_owned()]), "{lines}");
    }
    assert_eq!(taken("Host: a\r\n", true), (None, vec!["Host".to_owned()]));
}

#[test]
fn a_name_with_underscores_neither_states_an_id_nor_hides_one() {
    for name in ["X_Request_ID", "x-request_id"] {
        for is_trusted in [true, false] {
            let (found, names) = taken(&format!("Host: a\r\n{name}: b\r\n"), is_trusted);
            assert_eq!((found, names), (None, vec!["Host".to_owned()]), "{name}");
        }
        let (found, names) = taken(&format!("X-Request-ID: a\r\n{name}: b\r\nHost: a\r\n"), true);
        assert_eq!(
            (found.as_deref(), names),
            (Some("a"), vec!["X-Request-ID".to_owned(), "Host".to_owned()]),
            "{name}"
        );
    }
    // The dash of one and the underscore of another are no letters of a third.
    assert_eq!(taken("X-Request-IE: b\r\nX+Request-ID: c\r\n", true).1.len(), 2);
}

#[test]
fn the_name_of_the_field_is_a_field_name_without_another_meaning() {
    for name in ["X-Request-ID", "x-correlation-id", "X-Amzn-Trace-Id", "Request-Id", "CF-Ray"] {
        assert_eq!(IdField::named(name).unwrap().name(), name.as_bytes());
    }
    for name in [
        "",
        "a b",
        "a:",
        "a\r\n",
        "X_Request_ID",
        "h\u{e4}",
        "Host",
        "content-length",
        "Date",
        "server",
        "Connection",
        "Cookie",
        "Set-Cookie",
        "X-Forwarded-For",
        "forwarded",
        "Transfer-Encoding",
        "content-type",
        "Authorization",
    ] {
        assert_eq!(IdField::named(name), None, "{name:?}");
    }
}

#[test]
fn a_new_id_is_a_uuid_of_version_7() {
    // RFC 9562, appendix A.6.
    let random = 0xcc3 << 64 | 0x18c4_dc0c_0c07_398f;
    assert_eq!(&uuid_v7(0x017f_22e2_79b0, random), b"017f22e2-79b0-7cc3-98c4-dc0c0c07398f");
    assert_eq!(&uuid_v7((1 << 48) - 1, u128::MAX), b"ffffffff-ffff-7fff-bfff-ffffffffffff");
    assert_eq!(&uuid_v7(0, 0), b"00000000-0000-7000-8000-000000000000");
    // A time that does not fit loses its highest bits, and the text keeps its form.
    assert_eq!(uuid_v7(u64::MAX, 0).len(), NEW_ID);
}

#[test]
fn the_trace_of_a_valid_traceparent() {
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    for valid in [
        format!("00-{trace}-{parent}-01"),
        format!("00-{trace}-{parent}-ff"),
        format!("01-{trace}-{parent}-00"),
        format!("cc-{trace}-{parent}-01-what.the-future-will-be-like"),
        format!("fe-{trace}-{parent}-01-"),
    ] {
        assert_eq!(trace_id(valid.as_bytes()), Some(trace.as_bytes()), "{valid}");
    }
    let zeros = "0".repeat(32);
    for invalid in [
        String::new(),
        format!("00-{trace}-{parent}"),
        format!("00-{trace}-{parent}-"),
        format!("00-{trace}-{parent}-1"),
        format!("00-{trace}-{parent}-01-"),
        format!("00-{trace}-{parent}-01x"),
        format!("cc-{trace}-{parent}-01x"),
        format!("ff-{trace}-{parent}-01"),
        format!("0-{trace}-{parent}-011"),
        format!("0g-{trace}-{parent}-01"),
        format!("00-{trace}-{parent}-0g"),
        format!("00-{}-{parent}-01", trace.to_uppercase()),
        format!("00-{trace}-{}-01", parent.to_uppercase()),
        format!("00-{}-{parent}-01", trace.replace('f', "g")),
        format!("00-{zeros}-{parent}-01"),
        format!("00-{trace}-{}-01", &zeros[..16]),
        format!("00-{}-0{parent}-01", &trace[1..]),
        format!("00_{trace}-{parent}-01"),
        format!("00-{trace}_{parent}-01"),
        format!("00-{trace}-{parent}_01"),
        format!(" 00-{trace}-{parent}-01"),
        format!("00-{trace}-{parent}-01, 00-{trace}-{parent}-01"),
    ] {
        assert_eq!(trace_id(invalid.as_bytes()), None, "{invalid}");
    }
}

#[test]
fn a_traceparent_is_written_as_it_was_read() {
    let value = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let read = TraceParent::read(value).unwrap();
    let wanted = (0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, 0x00f0_67aa_0ba9_02b7, true);
    assert_eq!((read.trace, read.parent, read.is_sampled), wanted);
    assert_eq!(&read.write(), value);
    // Other flags are none of ours, and a later version is answered with this one.
    let later = TraceParent::read(b"cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-02-more").unwrap();
    assert!(!later.is_sampled);
    assert_eq!(&later.write()[..3], b"00-");
    assert_eq!(&later.write()[52..], b"-00");
    assert_eq!(TraceParent::read(b"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"), None);
    let most = TraceParent { trace: u128::MAX, parent: u64::MAX, is_sampled: true };
    assert_eq!(TraceParent::read(&most.write()), Some(most));
}

#[test]
fn a_share_of_all_traces_is_taken() {
    let takes = |share, trace| Sampling { share, is_parent_based: true }.takes(trace);
    assert!(takes(1.0, u128::MAX) && takes(0.5, 0) && takes(0.5, (1 << 63) - 1));
    assert!(!takes(0.0, 0) && !takes(0.5, 1 << 63));
}

#[test]
fn an_id_and_a_trace_are_shown_if_there_are_any() {
    let texts = [id_text(b"", None), id_text(b"a\xff", None), id_text(b"", Some(b"b")), id_text(b"a", Some(b"b"))];
    assert_eq!(texts, ["", " (id a\\xff)", " (trace b)", " (id a, trace b)"]);
}
