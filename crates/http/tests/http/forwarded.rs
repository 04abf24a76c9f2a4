//! What proxies state, and how far it is believed.

use std::net::SocketAddr;

use proptest::collection::vec;
use proptest::prelude::{
    Just, ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, prop_assert_ne, prop_oneof, proptest,
};
use proptest::sample::select;
use tailrace_http::forwarded::{Scheme, Statement, is_forwarded, read, remove_all, remove_others, resembles_forwarded};
use tailrace_http::limits::Refusal;
use tailrace_http::request_head::{Field, Span};
use tailrace_http::trust::{ForwardedField, ForwardedFields, Trust};

/// Field lines as the parser of heads leaves them.
#[derive(Clone, Default)]
struct Fields {
    bytes: Vec<u8>,
    fields: Vec<Field>,
}

impl Fields {
    fn of<V: AsRef<[u8]>>(lines: &[(&str, V)]) -> Self {
        let mut all = Self::default();
        for (name, value) in lines {
            let name = all.add(name.as_bytes());
            let value = all.add(value.as_ref().trim_ascii());
            all.fields.push(Field { name, value });
        }
        all
    }

    fn add(&mut self, text: &[u8]) -> Span {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(text);
        Span { start, end: self.bytes.len() as u32 }
    }

    fn names(&self) -> Vec<&str> {
        self.fields.iter().map(|field| std::str::from_utf8(field.name.of(&self.bytes)).unwrap()).collect()
    }
}

/// A statement in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Said {
    client: Option<SocketAddr>,
    scheme: Option<Scheme>,
    host: Option<String>,
    port: Option<u16>,
    prefix: Option<String>,
}

const NEAREST: &str = "10.0.0.1:40000";

fn trust(fields: ForwardedFields) -> Trust {
    Trust::of(["unix", "10.0.0.0/8", "2001:db8:a::/48"], fields).unwrap()
}

fn said_by<V: AsRef<[u8]>>(lines: &[(&str, V)], trust: &Trust, peer: Option<&str>) -> Result<Said, Refusal> {
    let Fields { bytes, mut fields } = Fields::of(lines);
    remove_others(&bytes, &mut fields, trust);
    let statement = read(&bytes, &fields, trust, peer.map(|peer| peer.parse().unwrap()))?;
    let Statement { client, scheme, host, port, prefix } = statement;
    let text = |span: Option<Span>| span.map(|span| String::from_utf8(span.of(&bytes).to_vec()).unwrap());
    Ok(Said { client, scheme, host: text(host), port, prefix: text(prefix) })
}

fn said<V: AsRef<[u8]>>(lines: &[(&str, V)]) -> Result<Said, Refusal> {
    said_by(lines, &trust(ForwardedFields::ANY), Some(NEAREST))
}

fn client_of(lines: &[(&str, &str)]) -> String {
    let client = said(lines).unwrap_or_else(|refusal| panic!("{lines:?}: {}", refusal.reason)).client;
    client.map_or_else(|| String::from("unix"), |client| client.to_string())
}

#[test]
fn where_everybody_is_a_proxy_the_client_is_the_last_address_whatever_it_has_sent_itself() {
    for (entries, wanted) in [
        (["*"].as_slice(), "10.0.0.9:0"),
        (&["*", "unix"], "10.0.0.9:0"),
        // Of the networks that are listed as well, the addresses are those of proxies.
        (&["*", "10.0.0.0/8"], "192.0.2.7:0"),
    ] {
        let trust = Trust::of(entries.iter().copied(), ForwardedFields::ANY).unwrap();
        let listed = "203.0.113.5, 192.0.2.7, 10.0.0.9";
        let standard = listed.split(", ").map(|address| format!("for={address}")).collect::<Vec<_>>().join(", ");
        for line in [("X-Forwarded-For", listed), ("Forwarded", &standard)] {
            for peer in [Some("198.51.100.1:4000"), None] {
                let client = said_by(&[line], &trust, peer).unwrap().client.unwrap();
                assert_eq!(client.to_string(), wanted, "{entries:?} {line:?} {peer:?}");
            }
        }
    }
}

#[test]
fn the_client_is_the_last_address_that_is_not_trusted() {
    for (list, client) in [
        ("192.0.2.7", "192.0.2.7:0"),
        ("192.0.2.7:4711", "192.0.2.7:4711"),
        ("2001:db8::7", "[2001:db8::7]:0"),
        ("[2001:db8::7]", "[2001:db8::7]:0"),
        ("[2001:db8::7]:4711", "[2001:db8::7]:4711"),
        ("::ffff:192.0.2.7", "192.0.2.7:0"),
        ("192.0.2.7, 10.0.0.2", "192.0.2.7:0"),
        ("192.0.2.7,10.0.0.2:80,\t2001:db8:a::1", "192.0.2.7:0"),
        ("192.0.2.7 ,10.0.0.3\t ,10.0.0.2", "192.0.2.7:0"),
        ("192.0.2.8, 192.0.2.7", "192.0.2.7:0"),
        ("192.0.2.8, 192.0.2.7, 10.0.0.2", "192.0.2.7:0"),
        ("<script>, 192.0.2.7, 10.0.0.2", "192.0.2.7:0"),
        ("10.0.0.3, 192.0.2.7", "192.0.2.7:0"),
        ("10.0.0.3, 10.0.0.2", "10.0.0.3:0"),
        ("192.0.2.7, ::ffff:10.0.0.2", "192.0.2.7:0"),
        (",192.0.2.7, ,", "192.0.2.7:0"),
        ("", NEAREST),
        (" , ", NEAREST),
    ] {
        assert_eq!(client_of(&[("X-Forwarded-For", list)]), client, "{list}");
    }
    for (list, client) in [
        ("for=192.0.2.7", "192.0.2.7:0"),
        ("For=\"192.0.2.7\"", "192.0.2.7:0"),
        ("for=\"192.0.2.7:4711\"", "192.0.2.7:4711"),
        ("for=\"192.0.2.7:_port\"", "192.0.2.7:0"),
        ("for=\"[2001:db8::7]\"", "[2001:db8::7]:0"),
        ("FOR=\"[2001:DB8::7]:4711\"", "[2001:db8::7]:4711"),
        ("for=192.0.2.7;proto=http;by=203.0.113.43", "192.0.2.7:0"),
        ("for=192.0.2.7;by=_x;id=1;host=a;path=\"b\\\"c\";via=1;proxy=1;proto=http", "192.0.2.7:0"),
        ("by=_x; for=192.0.2.7 ; ext=\"a\\\"b;c\";", "192.0.2.7:0"),
        ("exten=1;for=192.0.2.7;proto=http", "192.0.2.7:0"),
        ("for=192.0.2.8, for=192.0.2.7, for=10.0.0.2", "192.0.2.7:0"),
        ("for=\"<script>, for=192.0.2.7, for=10.0.0.2", "192.0.2.7:0"),
        ("for=10.0.0.2;=,for=192.0.2.7", "192.0.2.7:0"),
        (";, ,", NEAREST),
        ("", NEAREST),
    ] {
        assert_eq!(client_of(&[("Forwarded", list)]), client, "{list}");
    }
}

#[test]
fn the_walk_ends_where_a_proxy_does_not_tell_the_address() {
    for (name, list, client) in [
        ("X-Forwarded-For", "unknown", NEAREST),
        ("X-Forwarded-For", "192.0.2.7, unknown", NEAREST),
        ("X-Forwarded-For", "192.0.2.7, UNKNOWN, 10.0.0.2:7", "10.0.0.2:7"),
        ("X-Forwarded-For", "192.0.2.7, _hidden, 10.0.0.2", "10.0.0.2:0"),
        ("Forwarded", "for=192.0.2.7, for=unknown", NEAREST),
        ("Forwarded", "for=192.0.2.7, for=\"unknown:80\", for=10.0.0.2", "10.0.0.2:0"),
        ("Forwarded", "for=192.0.2.7, for=_a.b-C_9, for=10.0.0.2", "10.0.0.2:0"),
        ("Forwarded", "for=192.0.2.7, for=\"_a:_b\", for=10.0.0.2", "10.0.0.2:0"),
        ("Forwarded", "for=192.0.2.7, proto=https, for=10.0.0.2", "10.0.0.2:0"),
    ] {
        assert_eq!(client_of(&[(name, list)]), client, "{list}");
    }
}

#[test]
fn a_peer_on_a_unix_socket_of_a_proxy_is_trusted_as_one_of_this_server_is() {
    for (list, client) in [("unix:", "unix"), ("192.0.2.7, unix:", "192.0.2.7:0")] {
        assert_eq!(client_of(&[("X-Forwarded-For", list)]), client, "{list}");
    }
    let without_unix = Trust::of(["10.0.0.0/8"], ForwardedFields::ANY).unwrap();
    let said = said_by(&[("X-Forwarded-For", "192.0.2.7, unix:")], &without_unix, Some(NEAREST)).unwrap();
    assert_eq!(said.client, None);
}

#[test]
fn several_lines_are_one_list() {
    assert_eq!(
        client_of(&[
            ("X-Forwarded-For", "192.0.2.8, 192.0.2.7"),
            ("Host", "a"),
            ("x-forwarded-for", "10.0.0.3, 10.0.0.2"),
            ("X-FORWARDED-FOR", ""),
        ]),
        "192.0.2.7:0"
    );
    assert_eq!(client_of(&[("Forwarded", "for=192.0.2.8"), ("Forwarded", "for=192.0.2.7")]), "192.0.2.7:0");
}

#[test]
fn nothing_is_believed_of_a_peer_that_is_not_trusted() {
    let lines = [
        ("Forwarded", "for=192.0.2.8;proto=https;host=evil"),
        ("X-Forwarded-For", "!"),
        ("X-Forwarded-Proto", "gopher"),
        ("X-Forwarded-Prefix", "//evil"),
    ];
    for peer in [Some("192.0.2.7:4711"), None] {
        let said = said_by(&lines, &Trust::nobody(), peer).unwrap();
        assert_eq!(said, Said { client: peer.map(|peer| peer.parse().unwrap()), ..Said::default() });
    }
}

#[test]
fn the_fields_of_a_peer_that_is_not_trusted_are_removed() {
    let lines = [
        ("Host", "a"),
        ("forwarded", ""),
        ("X-Forwarded-For", ""),
        ("X-FORWARDED-PROTO", ""),
        ("X-Forwarded-Host", ""),
        ("x-forwarded-port", ""),
        ("X-Forwarded-Prefix", ""),
        ("X-Forwarded-User", ""),
        ("X-Forwarded-For-", ""),
        ("X_Forwarded_For", ""),
    ];
    let mut all = Fields::of(&lines);
    let removed = remove_all(&all.bytes, &mut all.fields);
    assert_eq!(removed, Some(ForwardedField::Forwarded));
    assert_eq!(all.names(), ["Host", "X-Forwarded-User", "X-Forwarded-For-", "X_Forwarded_For"]);
    assert_eq!(remove_all(&all.bytes, &mut all.fields), None);
}

#[test]
fn a_name_with_an_underscore_for_a_dash_is_not_read_but_recognized() {
    for name in ["X_Forwarded_For", "x-forwarded_for", "X_FORWARDED-PROTO", "X-Forwarded_Prefix"] {
        assert!(!is_forwarded(name.as_bytes()) && resembles_forwarded(name.as_bytes()), "{name}");
    }
    for name in ["X-Forwarded-For", "Forwarded", "x-forwarded-host", "X-FORWARDED-HOST", "x-forwarded-port"] {
        assert!(is_forwarded(name.as_bytes()) && !resembles_forwarded(name.as_bytes()), "{name}");
    }
    for name in ["", "_", "X_Forwarded_User", "Forwarded_", "X__Forwarded_For", "X_Forwarded_Prefix_", &"_".repeat(99)]
    {
        assert!(!is_forwarded(name.as_bytes()) && !resembles_forwarded(name.as_bytes()), "{name}");
    }
}

#[test]
fn scheme_host_port_and_prefix_are_those_that_the_proxy_states() {
    let full = said(&[
        ("X-Forwarded-For", "192.0.2.7"),
        ("X-Forwarded-Proto", "HTTPS"),
        ("X-Forwarded-Host", "example.org:8443"),
        ("X-Forwarded-Port", "443"),
        ("X-Forwarded-Prefix", "/a/b%20c/"),
    ]);
    let expected = Said {
        client: Some("192.0.2.7:0".parse().unwrap()),
        scheme: Some(Scheme::Https),
        host: Some(String::from("example.org:8443")),
        port: Some(443),
        prefix: Some(String::from("/a/b%20c")),
    };
    assert_eq!(full, Ok(expected.clone()));
    let standard = said(&[("Forwarded", "for=192.0.2.7;Proto=https;host=\"example.org:8443\"")]);
    assert_eq!(standard, Ok(Said { port: Some(8443), prefix: None, ..expected }));
    let bare = said(&[("X-Forwarded-Proto", "http"), ("X-Forwarded-Host", "[2001:db8::1]")]).unwrap();
    assert_eq!((bare.scheme, bare.host.as_deref(), bare.port), (Some(Scheme::Http), Some("[2001:db8::1]"), None));
    assert_eq!(bare.client, Some(NEAREST.parse().unwrap()));
    assert_eq!(said(&[("Forwarded", "host=\"example.org:0\"")]).unwrap().port, None, "no client connects to port 0");
}

#[test]
fn of_several_statements_that_of_the_hop_where_the_walk_ended_counts() {
    let scheme_and_host = |addresses: &str, schemes: &str, hosts: &str| {
        let said = said(&[("X-Forwarded-For", addresses), ("X-Forwarded-Proto", schemes), ("X-Forwarded-Host", hosts)]);
        said.map(|said| (said.scheme, said.host)).unwrap()
    };
    let is = |scheme, host: &str| (Some(scheme), Some(String::from(host)));
    let (three, two) = ("192.0.2.8, 192.0.2.7, 10.0.0.2", "192.0.2.7, 10.0.0.2");
    assert_eq!(scheme_and_host(three, "gopher, https, http", "a/, b, c"), is(Scheme::Https, "b"));
    assert_eq!(scheme_and_host(two, "https, http", "b, c"), is(Scheme::Https, "b"));
    // Lists of another length: what the nearest proxy says.
    assert_eq!(scheme_and_host(two, "https", "c"), is(Scheme::Https, "c"));
    assert_eq!(scheme_and_host(two, "https, https, http", "x, b, c"), is(Scheme::Http, "c"));
    assert_eq!(scheme_and_host("192.0.2.7", "gopher, http", "a/, c"), is(Scheme::Http, "c"));
    assert_eq!(scheme_and_host("", "gopher, http", "a/, c"), is(Scheme::Http, "c"));
}

#[test]
fn an_element_that_does_not_state_the_scheme_or_the_host_leaves_that_of_the_next_proxy() {
    let said = said(&[(
        "Forwarded",
        "for=192.0.2.8;host=x;proto=gopher, for=192.0.2.7;proto=https, for=10.0.0.2;proto=http;host=b, for=10.0.0.3;host=c",
    )])
    .unwrap();
    assert_eq!((said.scheme, said.host.as_deref()), (Some(Scheme::Https), Some("b")));
}

#[test]
fn both_kinds_of_fields_must_say_the_same() {
    let both = |standard: &str, extension: &[(&'static str, &'static str)]| {
        said(&[&[("Forwarded", standard)], extension].concat()).map(|said| said.client.map(|client| client.to_string()))
    };
    let all = [("X-Forwarded-For", "192.0.2.7"), ("X-Forwarded-Proto", "https"), ("X-Forwarded-Host", "Example.org")];
    let same = Ok(Some(String::from("192.0.2.7:0")));
    assert_eq!(both("for=192.0.2.7", &all[..1]), same);
    assert_eq!(both("for=\"192.0.2.7:80\";proto=https;host=example.org", &all), same);
    assert_eq!(both("for=192.0.2.6, for=192.0.2.7", &[("X-Forwarded-For", "192.0.2.5, 192.0.2.7")]), same);
    for (standard, extension) in [
        ("for=192.0.2.8", &all[..1]),
        ("for=192.0.2.7;proto=https", &all[..1]),
        ("for=192.0.2.7", &all[..2]),
        ("for=192.0.2.7;proto=http", &all[..2]),
        ("for=192.0.2.7;proto=https;host=example.com", &all),
        ("for=192.0.2.8", &[("X-Forwarded-Prefix", "/a")]),
        ("for=192.0.2.8", &[("X-Forwarded-Port", "80")]),
        ("for=192.0.2.8", &[("X-Forwarded-For", "")]),
    ] {
        let refusal = both(standard, extension).unwrap_err();
        assert_eq!(refusal.status, 400);
        assert!(refusal.reason.contains("disagree: the proxy"), "{standard} {extension:?}: {}", refusal.reason);
    }
}

#[test]
fn by_default_the_host_the_port_and_the_prefix_are_not_believed_as_fields_of_their_own() {
    let lines = [
        ("X-Forwarded-For", "192.0.2.7"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Host", "evil"),
        ("X-Forwarded-Port", "80"),
        ("X-Forwarded-Prefix", "/evil"),
    ];
    let client = Some("192.0.2.7:0".parse().unwrap());
    let expected = Said { client, scheme: Some(Scheme::Https), ..Said::default() };
    for fields in [ForwardedFields::default(), ForwardedFields::of(&[ForwardedField::For, ForwardedField::Proto])] {
        assert_eq!(said_by(&lines, &trust(fields), Some(NEAREST)), Ok(expected.clone()));
    }
    let standard = [("Forwarded", "for=192.0.2.7;proto=https;host=a")];
    let said = said_by(&standard, &trust(ForwardedFields::default()), Some(NEAREST)).unwrap();
    assert_eq!(said, Said { host: Some(String::from("a")), ..expected });
}

#[test]
fn of_the_kinds_of_fields_one_can_be_chosen() {
    let lines = [
        ("Forwarded", "for=192.0.2.8;proto=http"),
        ("X-Forwarded-For", "192.0.2.7"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Prefix", "/a"),
        ("X-Real-IP", "192.0.2.6"),
    ];
    for (which, client, scheme, left) in [
        (ForwardedFields::STANDARD, "192.0.2.8:0", Scheme::Http, &["Forwarded", "X-Real-IP"][..]),
        (
            ForwardedFields::EXTENSION,
            "192.0.2.7:0",
            Scheme::Https,
            &["X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Prefix", "X-Real-IP"],
        ),
    ] {
        let mut all = Fields::of(&lines);
        assert!(remove_others(&all.bytes, &mut all.fields, &trust(which)).is_some());
        let statement = read(&all.bytes, &all.fields, &trust(which), Some(NEAREST.parse().unwrap())).unwrap();
        assert_eq!((statement.client, statement.scheme), (Some(client.parse().unwrap()), Some(scheme)));
        assert_eq!(all.names(), left);
    }
}

#[test]
fn what_a_trusted_proxy_states_in_a_wrong_form_is_refused() {
    for (name, values) in [
        (
            "X-Forwarded-For",
            &[
                "x",
                "192.0.2.7 192.0.2.8",
                "192.0.2",
                "192.0.2.07",
                "192.0.2.7:",
                "192.0.2.7:65536",
                "192.0.2.7:+1",
                "192.0.2.7:1:2",
                "\"192.0.2.7\"",
                "for=192.0.2.7",
                "[192.0.2.7]",
                "[::1",
                "::1]",
                "[::1]80",
                "fe80::1%lo",
                "_",
                "_a b",
                "unix",
                "unix:/x",
                "unknownx",
                "192.0.2.7, x, 10.0.0.2",
            ][..],
        ),
        (
            "Forwarded",
            &[
                "192.0.2.7",
                "for",
                "for=",
                "=192.0.2.7",
                "for =192.0.2.7",
                "for= 192.0.2.7",
                "for=192.0.2.7:80",
                "for=[::1]",
                "for=::1",
                "for=\"::1\"",
                "for=\"192.0.2.7",
                "for=192.0.2.7\"",
                "for=\"192.0.2.7\"x",
                "for=\"192.0.2.7\" x",
                "for=192.0.2.7 proto=http",
                "for=\"192.0\\.2.7\"",
                "for=\"\"",
                "for=192.0.2.7;for=192.0.2.7",
                "for=192.0.2.7;FOR=192.0.2.8",
                "for=192.0.2.7;by=_a;by=_b",
                "for=192.0.2.7;proto=http;proto=http",
                "for=192.0.2.7;host=a;host=a",
                "for=192.0.2.7;x=\"a,b\"",
                "for=192.0.2.7;x=\"a, for=192.0.2.8;y=\";z=\"b\"",
                "for=192.0.2.7;x=\"a\\",
                "for=192.0.2.7;x=\"a\u{1}\"",
                "for=192.0.2.7;x=\"a\\\u{1}\"",
                "for=192.0.2.7;proto=ftp",
                "for=192.0.2.7;proto=\"http \"",
                "for=192.0.2.7;host=\"a/b\"",
                "for=192.0.2.7;host=\"\"",
                "for=\"_a:b\"",
                "for=\"_\"",
            ],
        ),
        ("X-Forwarded-Proto", &["ftp", "https:", "wss", "http s", "https://"]),
        (
            "X-Forwarded-Host",
            &["a/b", "a b", "user@a", "a:65536", "a:x", "[::1", "a?b", "\"a\"", ":80", "a\u{e9}", "http://a"],
        ),
        ("X-Forwarded-Port", &["0", "65536", "-1", "+80", "80a", "8 0", "000080", "x"]),
        (
            "X-Forwarded-Prefix",
            &[
                "a",
                "a/b",
                "http://a",
                "//",
                "//a",
                "/a//b",
                "/a//",
                "/.",
                "/..",
                "/a/../b",
                "/a/..",
                "/%2e%2E/b",
                "/a/.%2e",
                "/a%2fb",
                "/a\\b",
                "/\\a",
                "/a%5cb",
                "/a%00",
                "/a%0d%0aSet-Cookie:x",
                "/a%7f",
                "/%",
                "/%4",
                "/%zz",
                "/%+1",
                "/a?b",
                "/a#b",
                "/a b",
                "/a\tb",
                "/a\u{e9}",
                "/<b>",
                "/\"",
            ],
        ),
    ] {
        for value in values {
            let refusal = said(&[(name, value)]).unwrap_err();
            assert_eq!(refusal.status, 400);
            assert!(refusal.reason.contains("trusted proxy"), "{value}: {}", refusal.reason);
        }
    }
}

#[test]
fn a_prefix_is_a_path_without_a_slash_at_its_end() {
    for (value, prefix) in [
        ("/", None),
        ("", None),
        ("/a", Some("/a")),
        ("/a/", Some("/a")),
        ("/a/b", Some("/a/b")),
        ("/...", Some("/...")),
        ("/.a/..b", Some("/.a/..b")),
        ("/a%2E", Some("/a%2E")),
        ("/%C3%A9;v=1:~", Some("/%C3%A9;v=1:~")),
    ] {
        assert_eq!(said(&[("X-Forwarded-Prefix", value)]).unwrap().prefix.as_deref(), prefix, "{value}");
    }
}

/// A value that a client could send: octets of a field value.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let piece = select(vec![
        "for=",
        "proto=https",
        "host=evil",
        ";",
        ",",
        ", ",
        "\"",
        "\\",
        "=",
        "10.0.0.9",
        "192.0.2.66",
        "\"[::1]:80\"",
        "unknown",
        "_x",
        "unix:",
        "by=",
        " ",
        "\t",
        "\u{e9}",
        "x",
    ]);
    let octet = prop_oneof![Just(b'\t'), 0x20..=0x7e_u8, 0x80..=0xff_u8];
    prop_oneof![
        4 => vec(piece, 0..12).prop_map(|pieces| pieces.concat().into_bytes()),
        1 => vec(octet, 0..40),
    ]
}

fn after(junk: &[u8], separator: &str, own: &str) -> Vec<u8> {
    [junk, separator.as_bytes(), own.as_bytes()].concat()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The proxy adds its statement to whatever its client has sent, in the same line or in another one.
    #[test]
    fn what_a_client_has_sent_before_its_proxys_statement_has_no_effect(
        junk in vec(value(), 1..3),
        is_same_line in any::<bool>(),
        hops in 0..3_usize,
        quoted in any::<bool>(),
    ) {
        let node = if quoted { "for=\"[2001:db8::7]:4711\"" } else { "for=192.0.2.7" };
        let standard = format!("{node};proto=https;host=a{}", ", for=10.0.0.9".repeat(hops));
        let extension = format!("{}{}", if quoted { "[2001:db8::7]:4711" } else { "192.0.2.7" }, ",10.0.0.9".repeat(hops));
        for (name, own) in [("Forwarded", &standard), ("X-Forwarded-For", &extension)] {
            let mut lines: Vec<(&str, Vec<u8>)> = junk.iter().map(|junk| (name, junk.clone())).collect();
            match lines.last_mut() {
                Some((_, last)) if is_same_line => *last = after(last, ", ", own),
                _ => lines.push((name, own.clone().into_bytes())),
            }
            prop_assert_eq!(said(&lines), said(&[(name, own)]));
        }
    }

    #[test]
    fn fields_that_the_proxy_does_not_write_cannot_change_what_it_states(
        junk in vec((select(vec!["Forwarded", "Forwarded", "X-Forwarded-Proto", "X-Forwarded-Host"]), value()), 1..4),
        standard in any::<bool>(),
    ) {
        let own = if standard { ("Forwarded", "for=192.0.2.7;proto=http") } else { ("X-Forwarded-For", "192.0.2.7") };
        let (own_kind, client) = (own.0 == "Forwarded", "192.0.2.7:0".parse().unwrap());
        let mut lines: Vec<(&str, Vec<u8>)> = junk.into_iter().filter(|(name, _)| (*name == "Forwarded") != own_kind).collect();
        lines.push((own.0, own.1.as_bytes().to_vec()));
        if let Ok(said) = said(&lines) {
            prop_assert_eq!(said.client, Some(client));
            if standard {
                prop_assert_eq!((said.scheme, said.host), (Some(Scheme::Http), None));
            }
        }
    }

    #[test]
    fn what_is_stated_is_valid_whatever_arrives(
        lines in vec((select(vec![
            "Forwarded", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Port", "X-Forwarded-Prefix",
        ]), prop_oneof![value(), "(/|[a-z.%0-9:\\[\\]]){0,12}".prop_map(String::into_bytes)]), 0..6),
        everybody in any::<bool>(),
    ) {
        let trust = if everybody { Trust::of(["*"], ForwardedFields::ANY).unwrap() } else { trust(ForwardedFields::ANY) };
        match said_by(&lines, &trust, Some(NEAREST)) {
            Err(refusal) => prop_assert_eq!(refusal.status, 400),
            Ok(Said { host, port, prefix, .. }) => {
                prop_assert_ne!(port, Some(0));
                let head = |target: &str, host: &str| format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
                let bytes = head(prefix.as_deref().unwrap_or("/"), host.as_deref().unwrap_or("a")).into_bytes();
                let mut request = tailrace_http::request_head::RequestHead::default();
                let limits = tailrace_http::limits::Limits::default();
                let step = tailrace_http::head::HeadParser::default().parse(&bytes, &limits, &mut request);
                prop_assert_eq!(step, tailrace_http::head::HeadStep::Complete);
                prop_assert!(tailrace_http::framing::request_framing(&bytes, &request, &limits).is_ok());
                prop_assert!(request.query.is_none() && !request.path.of(&bytes).starts_with(b"//"));
            }
        }
    }
}
