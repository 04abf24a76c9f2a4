//! A chunked body gives the same result whole and cut in two, and the bytes that it consumes end with an empty line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailrace_http::limits::Limits;

#[path = "../../crates/http/tests/http/wire/mod.rs"]
mod wire;

fuzz_target!(|input: (u16, &[u8])| {
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let bytes = [head, input.1].concat();
    let limits = Limits { body: 10_000, ..Limits::default() };
    let (whole, _) = wire::read(&bytes, [], &limits);
    let (cut, _) = wire::read(&bytes, [usize::from(input.0) % (bytes.len() + 1)], &limits);
    assert_eq!(whole, cut);
    if let wire::Outcome::Request(request) = whole {
        assert!(bytes.starts_with(&request.bytes) && request.bytes.ends_with(b"\r\n\r\n"));
    }
});
