//! Whose statements are believed.

use std::net::SocketAddr;

use tailrace_http::trust::{ForwardedField, ForwardedFields, Trust};

fn trust(entries: &[&str]) -> Trust {
    Trust::of(entries.iter().copied(), ForwardedFields::ANY).unwrap()
}

fn peer(address: &str) -> Option<SocketAddr> {
    Some(SocketAddr::new(address.parse().unwrap(), 4711))
}

#[test]
fn by_default_the_peers_on_unix_sockets_are_trusted_and_nobody_else_is() {
    for trust in [Trust::default(), trust(&["unix"])] {
        assert!(trust.is_trusted(None));
        for address in ["127.0.0.1", "::1", "10.0.0.1", "0.0.0.0", "::"] {
            assert!(!trust.is_trusted(peer(address)), "{address}");
        }
    }
    for trust in [Trust::nobody(), trust(&[])] {
        assert!(!trust.is_trusted(None) && !trust.is_trusted(peer("127.0.0.1")));
    }
}

#[test]
fn a_peer_is_trusted_whose_address_is_named_or_within_a_network() {
    let trust = trust(&["192.0.2.1", "10.0.0.0/8", "2001:db8::/32", "fe80::1", "::ffff:198.51.100.1"]);
    for address in [
        "192.0.2.1",
        "10.0.0.0",
        "10.255.255.255",
        "2001:db8::",
        "2001:db8:ffff::1",
        "fe80::1",
        "::ffff:10.1.2.3",
        "::ffff:192.0.2.1",
        "198.51.100.1",
    ] {
        assert!(trust.is_trusted(peer(address)), "{address}");
    }
    for address in ["192.0.2.2", "11.0.0.0", "9.255.255.255", "2001:db9::", "fe80::2", "::10.0.0.1", "::ffff:11.0.0.1"]
    {
        assert!(!trust.is_trusted(peer(address)), "{address}");
    }
    assert!(!trust.is_trusted(None));
}

#[test]
fn an_asterisk_is_everybody() {
    let trust = trust(&["*"]);
    for address in ["127.0.0.1", "255.255.255.255", "::", "2001:db8::1", "::ffff:192.0.2.1"] {
        assert!(trust.is_trusted(peer(address)), "{address}");
    }
    assert!(trust.is_trusted(None));
}

#[test]
fn an_entry_that_is_no_peer_is_named_in_the_error() {
    for entry in [
        "",
        " ",
        "localhost",
        "10.0.0.1/8",
        "10.0.0.0/33",
        "10.0.0.0/-1",
        "10.0.0.0/",
        "10.0.0",
        "010.0.0.1",
        "2001:db8::1/32",
        "::/129",
        "[::1]",
        "fe80::1%eth0",
        "::ffff:10.0.0.0/104",
        "127.0.0.1:80",
        "UNIX",
        "10.0.0.1,10.0.0.2",
    ] {
        let error = Trust::of(["unix", entry], ForwardedFields::ANY).unwrap_err();
        assert!(error.to_string().starts_with(&format!("{entry:?} is not")), "{error}");
    }
}

#[test]
fn fields_are_named_as_they_are_sent_or_by_their_kind() {
    let all = ["forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port"];
    let union = |words: &[&str]| {
        words.iter().fold(ForwardedFields::NONE, |fields, word| fields.and(ForwardedFields::named(word).unwrap()))
    };
    assert_eq!(union(&["any"]), ForwardedFields::ANY);
    assert_eq!(union(&["forwarded", "x-forwarded"]), ForwardedFields::ANY);
    assert_eq!(union(&["forwarded"]), ForwardedFields::STANDARD);
    assert_eq!(union(&all).and(union(&["x-forwarded-prefix"])), ForwardedFields::ANY);
    assert!(!union(&all).has(ForwardedField::Prefix) && union(&all).has(ForwardedField::Port));
    assert_eq!(union(&all[..3]), ForwardedFields::default());
    assert_eq!(union(&["any", "any"]), ForwardedFields::ANY);
    for word in ["", "x-forwarded-", "host", "x_forwarded_for", "x-forwarded-user"] {
        assert_eq!(ForwardedFields::named(word), None, "{word}");
    }
}
