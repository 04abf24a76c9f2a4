//! A request gives the same result whole and octet by octet, and no octets cause a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailrace_http::limits::Limits;

#[path = "../../crates/http/tests/http/wire/mod.rs"]
mod wire;

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits { request_line: 200, header_bytes: 400, header_count: 10, body: 300 };
    let (whole, _) = wire::read(bytes, [], &limits);
    let (cut, _) = wire::read(bytes, 1..bytes.len().max(1), &limits);
    assert_eq!(whole, cut);
    if let wire::Outcome::Request(request) = whole {
        assert!(bytes.starts_with(&request.bytes) && request.body.len() as u64 <= limits.body);
    }
});
