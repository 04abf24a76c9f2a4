//! Requests and their outcome: a case or two of each rule, whose grammar is that of crates/http/tests, and what only a
//! socket shows. Each case is sent whole, byte by byte, between two other requests, to a server with one thread, and to
//! one whose application reads the body while it arrives. See `harness::cases`. All cases are also sent to one server,
//! several at once, while complete responses are held.

use crate::harness::Config;

const LAST: &[u8] = b"0\r\n\r\n";
const HELLO: &[u8] = b"5\r\nhello\r\n0\r\n\r\n";
const SMUGGLED: &[u8] = b"GET /smuggled HTTP/1.1\r\nHost: evil\r\n\r\n";

/// All parts, one after the other.
fn joined(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// A head with this request line and a valid Host.
fn line(line: impl AsRef<[u8]>) -> Vec<u8> {
    joined(&[line.as_ref(), b"\r\nHost: test\r\n\r\n"])
}

/// A GET request with these field lines, each with its line end.
fn get(lines: impl AsRef<[u8]>) -> Vec<u8> {
    joined(&[b"GET / HTTP/1.1\r\nHost: test\r\n", lines.as_ref(), b"\r\n"])
}

/// A GET request with this one field line.
fn field(line: impl AsRef<[u8]>) -> Vec<u8> {
    get([line.as_ref(), b"\r\n"].concat())
}

/// A GET request with this Host.
fn host(value: impl AsRef<[u8]>) -> Vec<u8> {
    joined(&[b"GET / HTTP/1.1\r\nHost: ", value.as_ref(), b"\r\n\r\n"])
}

/// A POST request with these field lines, each with its line end, and this body.
fn post(lines: impl AsRef<[u8]>, body: impl AsRef<[u8]>) -> Vec<u8> {
    joined(&[b"POST / HTTP/1.1\r\nHost: test\r\n", lines.as_ref(), b"\r\n", body.as_ref()])
}

/// A POST request with this Content-Length.
fn length(value: impl AsRef<[u8]>, body: impl AsRef<[u8]>) -> Vec<u8> {
    post([b"Content-Length: ", value.as_ref(), b"\r\n"].concat(), body)
}

/// A POST request with this body and its Content-Length.
fn sized(body: impl AsRef<[u8]>) -> Vec<u8> {
    length(body.as_ref().len().to_string(), body)
}

/// A POST request with this Transfer-Encoding.
fn coding(value: impl AsRef<[u8]>, body: impl AsRef<[u8]>) -> Vec<u8> {
    post([b"Transfer-Encoding: ", value.as_ref(), b"\r\n"].concat(), body)
}

/// A POST request with these chunks.
fn chunked(body: impl AsRef<[u8]>) -> Vec<u8> {
    coding("chunked", body)
}

/// A chunked body with a valid last chunk.
fn chunks(body: impl AsRef<[u8]>) -> Vec<u8> {
    chunked([body.as_ref(), LAST].concat())
}

/// Low limits: request line 100, fields 1000 bytes and 5, body 1000.
fn limited() -> Config {
    let mut config = Config::default();
    config.limits.request_line = 100;
    config.limits.header_bytes = 1000;
    config.limits.header_count = 5;
    config.limits.body = 1000;
    config
}

/// The request line: RFC 9112 sections 2.2 and 3.
mod request_line {
    use super::line;
    use crate::cases;
    use crate::harness::cases::{refused, served};

    cases! {
        get: served(line("GET / HTTP/1.1")).path("/").host(Some("test"));
        post_without_a_body: served(line("POST / HTTP/1.1"));
        head: served(line("HEAD / HTTP/1.1"));
        trace_is_the_application_s: served(line("TRACE / HTTP/1.1"));
        a_method_of_all_token_characters: served(line("A!#$%&'*+-.^_`|~09z / HTTP/1.1"));
        a_method_of_65_octets: refused(501, line(format!("{} / HTTP/1.1", "M".repeat(65))));
        two_spaces_before_the_target: refused(400, line("GET  / HTTP/1.1"));
        binary: refused(400, b"\x80\x90\xff\r\n\r\n");
        one_empty_line_before: served(b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
        five_empty_lines_before: refused(400, b"\r\n\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
        a_bare_lf_behind: refused(400, b"GET / HTTP/1.1\nHost: a\r\n\r\n");
    }
}

/// The version: RFC 9112 section 2.3, RFC 9110 sections 2.5 and 15.6.6.
mod version {
    use super::line;
    use crate::cases;
    use crate::harness::cases::{refused, served};

    cases! {
        http_1_0: served("GET / HTTP/1.0\r\n\r\n").host(None).ends();
        http_1_2_is_1_1: served(line("GET / HTTP/1.2"));
        http_2_0: refused(505, line("GET / HTTP/2.0"));
        the_preface_of_http_2: refused(505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        another_protocol: refused(400, line("GET / RTSP/1.0"));
    }
}

/// The request target: RFC 9112 section 3.2.
mod target {
    use super::line;
    use crate::cases;
    use crate::harness::cases::{refused, served};

    cases! {
        path_and_query: served(line("GET /a/b?c=d&e HTTP/1.1")).path("/a/b").query("c=d&e");
        two_slashes: served(line("GET //evil.example/x HTTP/1.1")).path("//evil.example/x").host(Some("test"));
        what_browsers_send: served(line("GET /?a[]=|^{}\"<>\\ HTTP/1.1")).query("a[]=|^{}\"<>\\");
        absolute: served(line("GET http://a.example:81/x?y HTTP/1.1")).path("/x").query("y").host(Some("a.example:81"));
        absolute_in_http_1_0: served("GET http://a.example/x HTTP/1.0\r\n\r\n").host(Some("a.example")).ends();
        absolute_with_a_user: refused(400, line("GET http://user:pw@a.example/ HTTP/1.1"));
        options_asterisk: served(line("OPTIONS * HTTP/1.1")).path("*");
        connect: refused(501, line("CONNECT a.example:443 HTTP/1.1"));
        no_slash: refused(400, line("GET index.html HTTP/1.1"));
        nul: refused(400, line("GET /\0 HTTP/1.1"));
    }
}

/// The Host field: RFC 9112 section 3.2, RFC 9110 section 7.2.
mod host_field {
    use super::{field, host};
    use crate::cases;
    use crate::harness::cases::{refused, served};

    cases! {
        missing: refused(400, "GET / HTTP/1.1\r\n\r\n");
        the_same_twice: refused(400, field("host: test"));
        empty: served(host("")).host(Some(""));
        a_name_and_a_port: served(host("Example.ORG:8080")).host(Some("Example.ORG:8080"));
        whitespace_around: served(host(" \t example.org \t")).host(Some("example.org"));
        not_first: served("GET / HTTP/1.1\r\nX-A: b\r\nhOsT: late\r\n\r\n").host(Some("late"));
        a_comma: refused(400, host("a,b"));
    }
}

/// Field lines: RFC 9112 section 5, RFC 9110 section 5.
mod field_line {
    use super::{field, get};
    use crate::cases;
    use crate::harness::cases::{refused, served};

    cases! {
        name_and_value: served(field("X-A: b")).field("X-A", "b");
        obs_text_in_the_value: served(field(b"X-A: caf\xe9")).field("X-A", b"caf\xe9");
        a_name_of_all_token_characters: served(field("!#$%&'*+-.^_`|~aZ0: x")).field("!#$%&'*+-.^_`|~aZ0", "x");
        ninety_fields: served(get((0..90).map(|at| format!("X-{at}: {at}\r\n")).collect::<String>()))
            .field("X-89", "89");
        a_space_before_the_colon: refused(400, field("X-A : b"));
        nul_in_the_value: refused(400, field("X-A: b\0c"));
        a_bare_lf_ends_a_line: refused(400, field("X-A: b\nX-B: c"));
        a_fold_by_a_space: refused(400, field("X-A: b\r\n c"));
        a_bare_cr_ends_the_head: refused(400, "GET / HTTP/1.1\r\nHost: a\r\n\rX");
    }
}

/// Content-Length: RFC 9110 section 8.6, RFC 9112 section 6.3.
mod content_length {
    use super::{joined, length, sized};
    use crate::cases;
    use crate::harness::cases::{refused, served};
    use crate::harness::pattern;

    cases! {
        none: served("POST / HTTP/1.1\r\nHost: a\r\n\r\n");
        whitespace_around: served(length("\t5 ", "hello")).body("hello");
        of_4095: served(sized(pattern(0, 4095))).body(pattern(0, 4095));
        of_65537: served(sized(pattern(0, 65_537))).body(pattern(0, 65_537));
        of_a_megabyte: served(sized(pattern(0, 1 << 20))).body(pattern(0, 1 << 20));
        larger_than_memory: served(sized(pattern(0, 1_500_001))).body(pattern(0, 1_500_001));
        in_a_head: served("HEAD /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc").body("abc");
        in_options_asterisk: served("OPTIONS * HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc").body("abc");
        in_http_1_0: served("POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello").body("hello").ends();
        plus: refused(400, length("+5", "hello"));
        more_than_64_bits: refused(413, length("18446744073709551621", "hello"));
        a_list_of_the_same: refused(400, length("5, 5", "hello"));
        cut_short: refused(400, length("10", "hello")).half_closed();
        cut_before_the_body: refused(400, length("10", "")).half_closed();
        cut_in_the_head: refused(400, joined(&[b"POST / HTTP/1.1\r\nContent-Len"])).half_closed();
    }
}

/// Transfer-Encoding: RFC 9112 sections 6.1 and 7.
mod transfer_encoding {
    use super::{HELLO, LAST, chunked, coding, post};
    use crate::cases;
    use crate::harness::cases::{refused, served};

    cases! {
        chunked_body: served(chunked(HELLO)).body("hello");
        in_capitals: served(coding("cHuNkEd", HELLO)).body("hello");
        an_empty_body: served(chunked(LAST));
        in_a_get: served("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n")
            .body("x");
        gzip_and_chunked: refused(501, coding("gzip, chunked", HELLO));
        chunked_and_gzip: refused(400, coding("chunked, gzip", HELLO));
        in_http_1_0: refused(400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
        an_underscore_is_another_name: served(post("Transfer_Encoding: chunked\r\n", ""));
    }
}

/// Requests that two recipients could read differently: RFC 9112 section 11.2.
mod smuggling {
    use super::{HELLO, LAST, SMUGGLED, get, joined, post, sized};
    use crate::cases;
    use crate::harness::cases::{refused, served};

    cases! {
        cl_te: refused(400, post("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\nG"));
        te_cl: refused(400, post("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", b"5c\r\nx\r\n0\r\n\r\n"));
        cl_te_that_agree: refused(400, post("Content-Length: 15\r\nTransfer-Encoding: chunked\r\n", HELLO));
        cl_zero_te:
            refused(400, post("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", joined(&[LAST, SMUGGLED])));
        te_te: refused(400, post("Transfer-Encoding: chunked\r\nTransfer-encoding: cow\r\n", HELLO));
        cl_cl: refused(400, post("Content-Length: 0\r\nContent-Length: 39\r\n", SMUGGLED));
        a_body_that_is_a_request: served(sized(SMUGGLED)).body(SMUGGLED);
        a_request_behind_a_get: served(get("")).and_served(SMUGGLED);
        garbage_behind_a_body: served(sized("hello")).body("hello").and_refused(400, "XX\0garbage\r\n\r\n");
        a_request_behind_a_refusal: refused(400, get("X : y\r\n")).and(SMUGGLED);
        a_request_behind_a_close: served(get("Connection: close\r\n")).ends().and(SMUGGLED);
    }
}

/// Chunks: RFC 9112 section 7.1.
mod chunk {
    use super::{LAST, SMUGGLED, chunked, chunks, joined};
    use crate::cases;
    use crate::harness::cases::{refused, served};
    use crate::harness::pattern;

    cases! {
        several: served(chunks("1\r\na\r\n2\r\nbc\r\n3\r\nabc\r\n")).body("abcabc");
        line_ends_in_data: served(chunks("7\r\n\r\n0\r\n\r\n\r\n")).body("\r\n0\r\n\r\n");
        large: served(chunks(joined(&[b"11171\r\n", &pattern(0, 70_001), b"\r\n"]))).body(pattern(0, 70_001));
        many: served(chunks("1\r\nz\r\n".repeat(500))).body("z".repeat(500));
        a_request_as_data: served(chunks(joined(&[b"26\r\n", SMUGGLED, b"\r\n"]))).body(SMUGGLED);
        larger_than_memory: served(chunks(joined(&[
            b"100000\r\n", &pattern(0, 1 << 20), b"\r\n80000\r\n", &pattern(1 << 20, 1 << 19), b"\r\n",
        ]))).body(pattern(0, 3 << 19));
        with_0x: refused(400, chunks("0x5\r\nhello\r\n"));
        more_than_64_bits: refused(413, chunks("10000000000000005\r\nhello\r\n"));
        more_data: refused(400, chunks("4\r\nhello\r\n"));
        a_bare_lf_after_the_last_size: refused(400, chunked("0\n\r\n"));
        cut_in_a_size: refused(400, chunked("5")).half_closed();
        cut_in_data: refused(400, chunked("5\r\nhe")).half_closed();
        cut_before_the_last_chunk: refused(400, chunked("5\r\nhello\r\n")).half_closed();
        cut_in_the_last_line: refused(400, chunked(&LAST[..4])).half_closed();
    }
}

/// Chunk extensions and trailers: RFC 9112 sections 7.1.1 and 7.1.2.
mod chunk_rest {
    use super::{chunked, chunks};
    use crate::cases;
    use crate::harness::cases::{refused, served};

    cases! {
        a_quoted_value: served(chunks("5;a=\"b; \\\"c\"\r\nhello\r\n")).body("hello");
        on_the_last_chunk: served(chunked("5\r\nhello\r\n0;a=b\r\n\r\n")).body("hello");
        no_name: refused(400, chunks("5;=b\r\nhello\r\n"));
        an_extension_without_end: refused(400, chunks(format!("5;{}\r\nhello\r\n", "a".repeat(100_000))));
        a_trailer_of_framing: served(chunked("1\r\nx\r\n0\r\nContent-Length: 50\r\n\r\n")).body("x");
        a_trailer_of_host: served(chunked("1\r\nx\r\n0\r\nHost: evil\r\n\r\n")).body("x").host(Some("test"));
        a_trailer_without_a_colon: refused(400, chunked("0\r\nnonsense\r\n\r\n"));
        trailers_without_end: refused(431, chunked(format!("0\r\nX: {}", "y".repeat(100_000))));
    }
}

/// Persistent connections: RFC 9112 section 9.
mod persistence {
    use super::{get, sized};
    use crate::cases;
    use crate::harness::cases::{Case, refused, served, unanswered};

    fn with(version: &str, connection: &str) -> Case {
        served(format!("GET / HTTP/{version}\r\nHost: a\r\nConnection: {connection}\r\n\r\n"))
    }

    fn numbered(count: usize) -> Case {
        let wire = |number: usize| format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n");
        (1..count).fold(served(wire(0)), |case, number| case.and_served(wire(number)))
    }

    fn posts(count: usize) -> Case {
        let wire = |at: usize| format!("POST /{at} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{at:02}");
        let first = served(wire(0)).body("00");
        (1..count).fold(first, |case, at| case.and_served(wire(at)).body(format!("{at:02}")))
    }

    cases! {
        keep_alive: with("1.1", "keep-alive");
        close: with("1.1", "close").ends();
        an_upgrade_is_not_made: with("1.1", "Upgrade\r\nUpgrade: websocket").field("Upgrade", "websocket");
        old_and_keep_alive: with("1.0", "Keep-Alive");
        two: numbered(2);
        ten: numbered(10);
        a_hundred_posts: posts(100);
        twenty_large_heads: (1..20).fold(served(get(format!("X: {}\r\n", "x".repeat(4000)))), |case, _| {
            case.and_served(get(format!("X: {}\r\n", "x".repeat(4000))))
        });
        a_post_and_a_get: served(sized("abc")).body("abc").and_served(get(""));
        a_chunked_post_and_a_get: served(super::chunked("3\r\nabc\r\n0\r\nX: y\r\n\r\n")).body("abc")
            .and_served(get(""));
        a_head_and_a_get: served("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").and_served(get(""));
        an_empty_line_between: served(sized("abc")).body("abc").and_served([b"\r\n", &get("")[..]].concat());
        a_bad_one_behind: served(get("")).and_refused(400, "BAD\r\n\r\n");
        a_close_between: served(get("")).and_served(get("Connection: close\r\n")).ends().and(get(""));
        half_closed: served(get("")).half_closed();
        half_closed_after_three: numbered(3).half_closed();
        half_closed_after_a_body: served(sized("abc")).body("abc").half_closed();
        half_closed_in_a_head: refused(400, "GET / HTTP/1.1\r\nHost: a\r\n").half_closed();
        half_closed_after_empty_lines: unanswered("\r\n\r\n").half_closed();
        half_closed_without_a_request: unanswered("").half_closed();
    }
}

/// Expect: RFC 9110 section 10.1.1. For `100 Continue` itself see lifecycle.rs.
mod expect {
    use super::{HELLO, get, post};
    use crate::cases;
    use crate::harness::cases::{refused, served};

    cases! {
        chunked: served(post("Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n", HELLO)).body("hello");
        without_a_body: served(get("Expect: 100-continue\r\n"));
        with_an_empty_body: served(post("Expect: 100-continue\r\nContent-Length: 0\r\n", ""));
        in_http_1_0: served("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello")
            .body("hello").ends();
        unknown: refused(417, get("Expect: 200-ok\r\n"));
    }
}

/// Limits, by default and as configured.
mod limits {
    use std::time::Duration;

    use super::{chunked, get, joined, length, limited, line, sized};
    use crate::cases;
    use crate::harness::Config;
    use crate::harness::cases::{refused, served};

    /// A time-out that a test can wait for.
    const SOON: Duration = Duration::from_millis(100);

    fn impatient() -> Config {
        Config { header_timeout: SOON, body_timeout: SOON, ..Config::default() }
    }

    cases! {
        a_request_line_of_8000: served(line(format!("GET /{} HTTP/1.1", "a".repeat(7980))));
        a_request_line_of_100000: refused(414, line(format!("GET /{} HTTP/1.1", "a".repeat(100_000))));
        a_target_without_end: refused(414, format!("GET /{}", "a".repeat(300_000)));
        a_field_without_end: refused(431, format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "b".repeat(300_000)));
        a_field_name_without_end: refused(431, format!("GET / HTTP/1.1\r\nHost: a\r\n{}", "b".repeat(300_000)));
        a_hundred_and_twenty_nine_fields: refused(431, get("X: y\r\n".repeat(128)));
        a_hundred_and_twenty_eight_fields: served(get("X: y\r\n".repeat(127)));
        a_request_line_at_the_limit: served(line(format!("GET /{} HTTP/1.1", "a".repeat(86)))).with(limited());
        a_request_line_beyond: refused(414, line(format!("GET /{} HTTP/1.1", "a".repeat(87)))).with(limited());
        five_fields: served(get("X: y\r\n".repeat(4))).with(limited());
        six_fields: refused(431, get("X: y\r\n".repeat(5))).with(limited());
        fields_at_the_limit: served(get(format!("X: {}\r\n", "b".repeat(983)))).with(limited());
        fields_beyond: refused(431, get(format!("X: {}\r\n", "b".repeat(984)))).with(limited());
        a_body_at_the_limit: served(sized("x".repeat(1000))).body("x".repeat(1000)).with(limited());
        a_body_beyond: refused(413, sized("x".repeat(1001))).with(limited());
        a_body_far_beyond: refused(413, length("9999999999", "x")).with(limited());
        chunks_at_the_limit: served(chunked(joined(&[b"3e8\r\n", &[b'x'; 1000], b"\r\n0\r\n\r\n"])))
            .body("x".repeat(1000)).with(limited());
        a_chunk_beyond: refused(413, chunked(joined(&[b"3e9\r\n", &[b'x'; 1001], b"\r\n0\r\n\r\n"]))).with(limited());
        chunks_beyond: refused(413, chunked([b"1\r\nx\r\n".repeat(1001), b"0\r\n\r\n".to_vec()].concat()))
            .with(limited());
    }

    // Only in ways that send no request behind the case.
    mod late {
        use super::{impatient, length};
        use crate::harness::cases::{Way, check, refused};

        #[test]
        fn a_head_that_is_never_complete() {
            check(refused(408, "GET / HTTP/1.1\r\nHost: a\r\nX-").with(impatient()), Way::Whole);
        }

        #[test]
        fn a_head_that_is_never_complete_on_one_thread() {
            let config = super::Config { executor: crate::harness::ExecutorKind::Inline, ..impatient() };
            check(refused(408, "GET / HTTP/1.1\r\nHost: a\r\nX-").with(config), Way::Whole);
        }

        #[test]
        fn a_body_that_is_never_complete() {
            check(refused(408, length("10", "hello")).with(impatient()), Way::Whole);
        }

        #[test]
        fn a_streamed_body_that_is_never_complete() {
            check(refused(408, length("10", "hello")).with(impatient()), Way::Streamed);
        }

        #[test]
        fn a_chunked_body_that_is_never_complete() {
            check(refused(408, super::chunked("5\r\nhello\r\n")).with(impatient()), Way::Whole);
        }
    }
}

/// Complete responses are held or not.
mod held {
    use std::time::Duration;

    use crate::harness::Config;
    use crate::harness::cases::{Case, Way, check_together};

    /// The response of an application that computes for much less than this is not held.
    const BUSY: Duration = Duration::from_micros(200);

    fn all() -> Vec<(&'static str, Case)> {
        let tables = [
            super::request_line::all,
            super::version::all,
            super::target::all,
            super::host_field::all,
            super::field_line::all,
            super::content_length::all,
            super::transfer_encoding::all,
            super::smuggling::all,
            super::chunk::all,
            super::chunk_rest::all,
            super::persistence::all,
            super::expect::all,
            super::limits::all,
        ];
        assert_eq!(tables.len(), include_str!("wire.rs").matches("\n    cases! {\n").count(), "a table is missing");
        tables.into_iter().flat_map(|table| table()).collect()
    }

    /// Returns how many responses were held.
    fn check(hold_writes: Duration) -> usize {
        let ways = [Way::Whole, Way::ByteByByte, Way::Pipelined, Way::Streamed];
        ways.map(|way| check_together(all(), way, Config { hold_writes, ..Config::default() }, BUSY)).iter().sum()
    }

    /// Again on other servers if none was held, as on one that takes its application for one that waits.
    fn check_until_held(hold_writes: Duration) {
        assert!((0..10).any(|_| check(hold_writes) > 0), "no response was held");
    }

    #[test]
    fn as_long_as_they_may_be() {
        check_until_held(Config::default().hold_writes);
        check_until_held(Duration::from_millis(10));
    }

    #[test]
    fn for_so_short_a_time_that_another_thread_sends_them() {
        check_until_held(Duration::from_nanos(1));
    }

    #[test]
    fn not_at_all() {
        assert_eq!(check(Duration::ZERO), 0);
    }
}
