//! Nanoseconds for parsing a request head and for building a response head: `cargo run --release -p tailrace-http
//! --example speed`. The best of several rounds: other load on the machine can only add time.
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant;

use tailrace_http::encode::{OwnFields, ResponseHead};
use tailrace_http::framing::{RequestFacts, ResponseFormat, request_framing};
use tailrace_http::head::{HeadParser, HeadStep};
use tailrace_http::limits::Limits;
use tailrace_http::request_head::RequestHead;

const TOOL: &[u8] = b"GET /pong HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: wrk/4.2.0\r\nAccept: */*\r\n\r\n";
const BROWSER: &[u8] = b"GET /articles/2026/11/a-long-day?utm_source=feed&page=2 HTTP/1.1\r\n\
    Host: www.example.org\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n\
    Accept-Language: en-GB,en;q=0.8,de;q=0.5\r\n\
    Accept-Encoding: gzip, deflate, br, zstd\r\n\
    Referer: https://www.example.org/articles/2026/11/\r\n\
    Connection: keep-alive\r\n\
    Cookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\n\
    Upgrade-Insecure-Requests: 1\r\n\
    Sec-Fetch-Dest: document\r\n\
    Sec-Fetch-Mode: navigate\r\n\
    Sec-Fetch-Site: same-origin\r\n\r\n";
const FIELDS: [(&[u8], &[u8]); 6] = [
    (b"Content-Type", b"text/html; charset=utf-8"),
    (b"Content-Length", b"4"),
    (b"Cache-Control", b"private, max-age=0"),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"Referrer-Policy", b"same-origin"),
    (b"Vary", b"Accept-Language, Cookie"),
];

fn best(name: &str, bytes: usize, mut work: impl FnMut()) {
    const TURNS: u32 = 500;
    let mut best = f64::MAX;
    for _ in 0..3_000 {
        let start = Instant::now();
        for _ in 0..TURNS {
            work();
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(TURNS));
    }
    println!("{name:<32} {bytes:>5} bytes {best:>8.1} ns");
}

fn main() {
    let limits = Limits::default();
    let mut parser = HeadParser::default();
    let mut head = RequestHead::default();
    for (name, bytes) in [("tool", TOOL), ("browser", BROWSER)] {
        best(&format!("{name}: head"), bytes.len(), || {
            parser.reset();
            head.clear();
            let step = parser.parse(black_box(bytes), &limits, &mut head);
            assert!(step == HeadStep::Complete);
        });
        best(&format!("{name}: head by httparse"), bytes.len(), || {
            let mut storage = [httparse::EMPTY_HEADER; 32];
            let mut request = httparse::Request::new(&mut storage);
            assert!(request.parse(black_box(bytes)).is_ok_and(|status| status.is_complete()));
        });
        best(&format!("{name}: head and framing"), bytes.len(), || {
            parser.reset();
            head.clear();
            let step = parser.parse(black_box(bytes), &limits, &mut head);
            assert!(step == HeadStep::Complete && request_framing(bytes, &head, &limits).is_ok());
        });
    }
    let facts = RequestFacts { format: ResponseFormat::Http11, is_head: false, keep_alive: true };
    let mut response = ResponseHead::default();
    let own = OwnFields { date: b"Sat, 21 Nov 2026 12:00:00 GMT", server: b"tailrace", id: None };
    best("response head of 6 fields", 0, || {
        response.clear();
        let mut good = response.status(black_box(b"200 OK")).is_ok();
        for (name, value) in FIELDS {
            good &= response.field(black_box(name), black_box(value)).is_ok();
        }
        black_box(response.finish(facts, Some(4), own));
        assert!(good);
    });
}
