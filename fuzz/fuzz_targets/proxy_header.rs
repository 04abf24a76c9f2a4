//! A PROXY header gives the same result whole and in any beginning of it, and the crate `ppp` reads the same.
#![no_main]

use std::net::{IpAddr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use ppp::{HeaderResult, v1, v2};
use tailrace_http::proxy_protocol::{HeaderStep, LONGEST, ProxySource, Versions, parse};

fn client(address: impl Into<IpAddr>, port: u16) -> ProxySource {
    ProxySource::Client(SocketAddr::new(address.into().to_canonical(), port))
}

fuzz_target!(|bytes: &[u8]| {
    let step = parse(bytes, Versions::Any);
    let mut before = HeaderStep::NeedMore;
    for end in 0..=bytes.len() {
        let now = parse(&bytes[..end], Versions::Any);
        assert!(before == HeaderStep::NeedMore || before == now);
        before = now;
    }
    let HeaderStep::Complete { length, source } = step else {
        assert!(step != HeaderStep::NeedMore || bytes.len() < LONGEST);
        return;
    };
    assert!(length <= bytes.len() && length <= LONGEST);
    let is_one = bytes.starts_with(b"PROXY ");
    assert_eq!(parse(bytes, Versions::V1) == step, is_one);
    assert_eq!(parse(bytes, Versions::V2) == step, !is_one);
    match HeaderResult::parse(&bytes[..length]) {
        HeaderResult::V1(Ok(header)) => {
            assert_eq!(header.header.len(), length);
            let expected = match header.addresses {
                v1::Addresses::Unknown => ProxySource::Peer,
                v1::Addresses::Tcp4(four) => client(four.source_address, four.source_port),
                v1::Addresses::Tcp6(six) => client(six.source_address, six.source_port),
            };
            assert_eq!(source, expected);
        }
        HeaderResult::V2(Ok(header)) => {
            assert_eq!(header.len(), length);
            let expected = match (header.command, header.addresses) {
                (v2::Command::Local, _) | (_, v2::Addresses::Unspecified) => ProxySource::Peer,
                (_, v2::Addresses::IPv4(four)) => client(four.source_address, four.source_port),
                (_, v2::Addresses::IPv6(six)) => client(six.source_address, six.source_port),
                (_, v2::Addresses::Unix(_)) => ProxySource::Unix,
            };
            assert_eq!(source, expected);
        }
        // ppp allows few words after UNKNOWN, and reads the family of LOCAL.
        HeaderResult::V1(Err(_)) | HeaderResult::V2(Err(_)) => {
            assert!(bytes.starts_with(b"PROXY UNKNOWN ") || (!is_one && bytes[12] == 0x20));
        }
    }
});
