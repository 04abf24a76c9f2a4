//! The PROXY protocol. The crate `ppp` is the oracle: it must accept what this crate accepts, and read the same.

use std::net::{IpAddr, SocketAddr};

use ppp::{HeaderResult, v1, v2};
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::sample::{Index, select};
use tailrace_http::proxy_protocol::{Fault, HeaderStep, LONGEST, ProxySource, Versions, parse};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    [SIGNATURE, &[command, family], &u16::try_from(rest.len()).unwrap().to_be_bytes(), rest].concat()
}

fn client(address: &str) -> ProxySource {
    ProxySource::Client(address.parse().unwrap())
}

/// Reads a header whole, with a request behind it, and in every beginning of it, which must all be `NeedMore`.
fn read(header: &[u8], versions: Versions) -> HeaderStep {
    let whole = parse(header, versions);
    let request = [header, b"GET / HTTP/1.1\r\n\r\n"].concat();
    match whole {
        HeaderStep::NeedMore => {}
        HeaderStep::Complete { length, .. } => {
            assert_eq!(length, header.len());
            assert_eq!(parse(&request, versions), whole);
            for end in 0..header.len() {
                assert_eq!(parse(&header[..end], versions), HeaderStep::NeedMore, "{end} of {header:?}");
            }
        }
        HeaderStep::Refused(_) => assert_eq!(parse(&request, versions), whole),
    }
    whole
}

fn source(header: &[u8]) -> ProxySource {
    let version = if header.starts_with(b"PROXY") { Versions::V1 } else { Versions::V2 };
    let step = read(header, version);
    assert_eq!(read(header, Versions::Any), step);
    match step {
        HeaderStep::Complete { source, .. } => source,
        _ => panic!("{step:?}: {:?}", String::from_utf8_lossy(header)),
    }
}

#[test]
fn a_line_states_the_client() {
    let longest_four = b"PROXY TCP4 255.255.255.255 255.255.255.254 65535 65534\r\n";
    let six = b"PROXY TCP6 2001:DB8::1 ::1 443 8000\r\n";
    let longest_six =
        b"PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n";
    let mapped = b"PROXY TCP6 ::ffff:192.0.2.1 ::ffff:192.0.2.2 0 80\r\n";
    assert_eq!(source(longest_four), client("255.255.255.255:65535"));
    assert_eq!(source(six), client("[2001:db8::1]:443"));
    assert_eq!(source(longest_six), client("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"));
    assert_eq!(source(mapped), client("192.0.2.1:0"));
}

#[test]
fn a_line_of_an_unknown_protocol_leaves_the_peer() {
    let longest = format!("PROXY UNKNOWN {}\r\n", "f".repeat(107 - 16));
    assert_eq!(longest.len(), 107);
    for line in ["PROXY UNKNOWN\r\n", "PROXY UNKNOWN 192.0.2.1 192.0.2.2 1 2\r\n", "PROXY UNKNOWN \r\n", &longest] {
        assert_eq!(source(line.as_bytes()), ProxySource::Peer, "{line:?}");
    }
}

#[test]
fn a_malformed_line_is_refused() {
    for line in [
        "PROXY \r\n",
        "PROXY\r\n",
        "PROXY  TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY tcp4 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY TCP5 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY UNKNOWNS\r\n",
        "PROXY TCP4\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 \r\n",
        "PROXY TCP4 192.0.2.1  192.0.2.2 1 2\r\n",
        "PROXY TCP4 192.0.2.1\t192.0.2.2 1 2\r\n",
        "PROXY TCP4 192.0.2.01 192.0.2.2 1 2\r\n",
        "PROXY TCP4 192.0.2 192.0.2.2 1 2\r\n",
        "PROXY TCP4 192.0.2.256 192.0.2.2 1 2\r\n",
        "PROXY TCP4 ::1 ::2 1 2\r\n",
        "PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY TCP6 [::1] [::2] 1 2\r\n",
        "PROXY TCP6 ::1 ::2%lo 1 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 65536 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 -1 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 99999\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 \r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1\r2\r\n",
        "PROXY UNKNOWN \n\r\n",
        "PROXY UNKNOWN \u{e9}\n",
    ] {
        let fault = if line.starts_with("PROXY ") { Fault::Malformed } else { Fault::Absent };
        assert_eq!(read(line.as_bytes(), Versions::V1), HeaderStep::Refused(fault), "{line:?}");
    }
}

#[test]
fn a_line_is_read_no_further_than_the_longest_one() {
    for length in 107..=108 {
        let bytes = [b"PROXY UNKNOWN ".as_slice(), &[b'f'; 200]].concat();
        assert_eq!(
            parse(&bytes[..length - 1], Versions::V1),
            if length == 107 { HeaderStep::NeedMore } else { HeaderStep::Refused(Fault::TooLong) }
        );
    }
    let long = format!("PROXY UNKNOWN {}\r\n", "f".repeat(107 - 15));
    assert_eq!(read(long.as_bytes(), Versions::Any), HeaderStep::Refused(Fault::TooLong));
}

#[test]
fn a_binary_header_states_the_client() {
    let four = [192, 0, 2, 1, 192, 0, 2, 2, 0x12, 0x67, 0, 80];
    let mut six = [0; 36];
    six[..16].copy_from_slice(&"2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    six[32..].copy_from_slice(&[0x01, 0xbb, 0, 80]);
    for protocol in 1..=2 {
        assert_eq!(source(&binary(0x21, 0x10 | protocol, &four)), client("192.0.2.1:4711"));
        assert_eq!(source(&binary(0x21, 0x20 | protocol, &six)), client("[2001:db8::1]:443"));
        assert_eq!(source(&binary(0x21, 0x30 | protocol, &[b'/'; 216])), ProxySource::Unix);
    }
    let mut mapped = six;
    mapped[..16].copy_from_slice(&"::ffff:192.0.2.1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    assert_eq!(source(&binary(0x21, 0x21, &mapped)), client("192.0.2.1:443"));
}

#[test]
fn what_follows_the_addresses_is_skipped() {
    let four = [192, 0, 2, 1, 192, 0, 2, 2, 0x12, 0x67, 0, 80];
    let authority = [&four[..], &[2, 0, 3], b"a.b"].concat();
    let malformed = [&four[..], &[0x20, 0xff, 0xff, 1]].concat();
    let longest = [&four[..], &vec![0; LONGEST - 16 - four.len()]].concat();
    for rest in [authority, malformed, longest] {
        assert_eq!(source(&binary(0x21, 0x11, &rest)), client("192.0.2.1:4711"));
    }
    let mut too_long = binary(0x21, 0x11, &[0; LONGEST - 16 + 1]);
    assert_eq!(read(&too_long, Versions::V2), HeaderStep::Refused(Fault::TooLong));
    too_long.truncate(16);
    assert_eq!(parse(&too_long, Versions::V2), HeaderStep::Refused(Fault::TooLong));
}

#[test]
fn a_local_connection_and_an_unspecified_family_leave_the_peer() {
    for rest in [&[][..], &[1, 2, 3], &[0; 216]] {
        for family in [0x00, 0x11, 0x21, 0x31, 0x44, 0xff] {
            assert_eq!(source(&binary(0x20, family, rest)), ProxySource::Peer);
        }
        assert_eq!(source(&binary(0x21, 0x00, rest)), ProxySource::Peer);
    }
}

#[test]
fn a_malformed_binary_header_is_refused() {
    for (command, family, length) in [
        (0x11, 0x11, 12),
        (0x31, 0x11, 12),
        (0x22, 0x11, 12),
        (0x2f, 0x11, 12),
        (0x21, 0x01, 12),
        (0x21, 0x10, 12),
        (0x21, 0x13, 12),
        (0x21, 0x41, 216),
        (0x21, 0xff, 216),
        (0x21, 0x11, 11),
        (0x21, 0x21, 35),
        (0x21, 0x31, 215),
        (0x21, 0x11, 0),
    ] {
        let header = binary(command, family, &vec![0; length]);
        assert_eq!(read(&header, Versions::V2), HeaderStep::Refused(Fault::Malformed), "{header:?}");
    }
}

#[test]
fn another_beginning_is_refused_at_its_first_byte_that_differs() {
    for (bytes, length) in [
        (b"GET / HTTP/1.1\r\n".as_slice(), 1),
        (b"POST / HTTP/1.1\r\n", 2),
        (b"PROXYTCP4 ", 6),
        (b"proxy TCP4 ", 1),
        (b"\x16\x03\x01\x02\x00", 1),
        (b"\r\nGET / HTTP/1.1\r\n", 3),
        (b"\r\n\r\n\0\r\nQUIT\r\n", 12),
        (b"\0", 1),
    ] {
        for versions in [Versions::V1, Versions::V2, Versions::Any] {
            for end in 0..=bytes.len() {
                let step = parse(&bytes[..end], versions);
                // A listener of one version refuses the other one as early.
                if end >= length {
                    assert_eq!(step, HeaderStep::Refused(Fault::Absent), "{bytes:?} {end}");
                } else {
                    assert_eq!(step, HeaderStep::NeedMore, "{bytes:?} {end}");
                }
            }
        }
    }
}

#[test]
fn each_fault_says_what_is_wrong() {
    for (fault, word) in [
        (Fault::Absent, "does not begin"),
        (Fault::OtherVersion, "other version"),
        (Fault::Malformed, "malformed"),
        (Fault::TooLong, "too long"),
    ] {
        assert!(fault.to_string().contains(word), "{fault}");
    }
}

#[test]
fn a_header_of_the_other_version_is_refused_as_such() {
    let line = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n";
    assert_eq!(parse(line, Versions::V2), HeaderStep::Refused(Fault::OtherVersion));
    assert_eq!(parse(&binary(0x20, 0, &[]), Versions::V1), HeaderStep::Refused(Fault::OtherVersion));
}

/// Headers that are valid or nearly so.
fn nearly_valid() -> impl Strategy<Value = Vec<u8>> {
    let word = || {
        select(vec![
            "192.0.2.1",
            "255.255.255.255",
            "::1",
            "2001:db8::7",
            "::ffff:10.0.0.1",
            "0",
            "80",
            "65535",
            "65536",
            "007",
            "x",
        ])
    };
    let protocol = select(vec!["TCP4", "TCP6", "UNKNOWN", "UDP4", ""]);
    let line = (protocol, vec(word(), 0..6)).prop_map(|(protocol, words)| {
        let mut line = format!("PROXY {protocol}");
        words.iter().for_each(|word| line += &format!(" {word}"));
        (line + "\r\n").into_bytes()
    });
    let good = any::<(SocketAddr, SocketAddr)>().prop_filter_map("one family", |(from, to)| {
        let protocol = if from.is_ipv4() { "TCP4" } else { "TCP6" };
        let line = format!("PROXY {protocol} {} {} {} {}\r\n", from.ip(), to.ip(), from.port(), to.port());
        (from.is_ipv4() == to.is_ipv4()).then(|| line.into_bytes())
    });
    let command = prop_oneof![8 => Just(0x21), 2 => Just(0x20), 1 => any::<u8>()];
    let family = prop_oneof![8 => select(vec![0x11, 0x21, 0x31, 0x12, 0x22, 0x32, 0x00]), 1 => any::<u8>()];
    let rest = prop_oneof![vec(any::<u8>(), 0..60), vec(any::<u8>(), 200..260)];
    let two = (command, family, rest).prop_map(|(command, family, rest)| binary(command, family, &rest));
    (
        prop_oneof![1 => line, 2 => good, 3 => two],
        proptest::option::of((any::<Index>(), any::<u8>())),
        vec(any::<u8>(), 0..4),
    )
        .prop_map(|(mut bytes, change, behind)| {
            if let Some((index, value)) = change {
                let at = index.index(bytes.len());
                bytes[at] = value;
            }
            bytes.extend(behind);
            bytes
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ppp_reads_the_same(bytes in nearly_valid()) {
        let step = parse(&bytes, Versions::Any);
        let HeaderStep::Complete { length, source } = step else { return Ok(()) };
        for end in 0..length {
            prop_assert_eq!(parse(&bytes[..end], Versions::Any), HeaderStep::NeedMore);
        }
        match HeaderResult::parse(&bytes[..length]) {
            HeaderResult::V1(Ok(header)) => {
                prop_assert_eq!(header.header.len(), length);
                prop_assert_eq!(source, match header.addresses {
                    v1::Addresses::Unknown => ProxySource::Peer,
                    v1::Addresses::Tcp4(four) => ProxySource::Client((four.source_address, four.source_port).into()),
                    v1::Addresses::Tcp6(six) => {
                        ProxySource::Client((IpAddr::from(six.source_address).to_canonical(), six.source_port).into())
                    }
                });
            }
            // ppp allows few words after UNKNOWN, and reads the family of LOCAL.
            HeaderResult::V1(Err(_)) | HeaderResult::V2(Err(_)) => {
                prop_assert!(bytes.starts_with(b"PROXY UNKNOWN ") || bytes.get(12) == Some(&0x20));
            }
            HeaderResult::V2(Ok(header)) => {
                prop_assert_eq!(header.len(), length);
                prop_assert_eq!(source, match (header.command, header.addresses) {
                    (v2::Command::Local, _) | (_, v2::Addresses::Unspecified) => ProxySource::Peer,
                    (_, v2::Addresses::IPv4(four)) => {
                        ProxySource::Client((four.source_address, four.source_port).into())
                    }
                    (_, v2::Addresses::IPv6(six)) => {
                        ProxySource::Client((IpAddr::from(six.source_address).to_canonical(), six.source_port).into())
                    }
                    (_, v2::Addresses::Unix(_)) => ProxySource::Unix,
                });
            }
        }
    }

    #[test]
    fn what_ppp_writes_is_read(from in any::<SocketAddr>(), port in any::<u16>(), tlv in vec(any::<u8>(), 0..80)) {
        let to = SocketAddr::new(from.ip(), port);
        let header = v2::Builder::with_addresses(v2::Version::Two | v2::Command::Proxy, v2::Protocol::Stream, (from, to))
            .write_tlv(v2::Type::Authority, &tlv).unwrap().build().unwrap();
        let source = ProxySource::Client((from.ip().to_canonical(), from.port()).into());
        prop_assert_eq!(parse(&header, Versions::V2), HeaderStep::Complete { length: header.len(), source });
        let line = v1::Addresses::from((from, to)).to_string();
        prop_assert_eq!(parse(line.as_bytes(), Versions::V1), HeaderStep::Complete { length: line.len(), source });
    }

    #[test]
    fn no_octets_cause_a_panic(bytes in vec(any::<u8>(), 0..64), kind in 0..3_usize) {
        let start = [&b""[..], b"PROXY ", SIGNATURE][kind];
        let bytes = [start, &bytes[..]].concat();
        let mut before = HeaderStep::NeedMore;
        for end in 0..=bytes.len() {
            let step = parse(&bytes[..end], Versions::Any);
            // Once there is a result, more bytes do not change it.
            prop_assert!(before == HeaderStep::NeedMore || before == step);
            before = step;
        }
    }
}
