//! The path of a request as the name of a file below a folder.

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::strategy::{Just, Strategy};
use tailrace_http::static_path::{DotFiles, PathError, RelativePath, below, decode};

fn refused(path: &str) -> Option<PathError> {
    decode(path.as_bytes(), DotFiles::WellKnown).err()
}

fn names(path: &str) -> Option<(String, bool)> {
    let path = decode(path.as_bytes(), DotFiles::WellKnown).ok()?;
    Some((path.as_str().to_owned(), path.is_directory_form()))
}

#[test]
fn a_path_below_a_prefix_begins_after_it_with_a_slash() {
    let cases: [(&str, &str, Option<&str>); 14] = [
        ("/static/site.css", "/static", Some("/site.css")),
        ("/static/site.css", "/static/", Some("/site.css")),
        ("/static/", "/static", Some("/")),
        ("/static", "/static", Some("")),
        ("/static", "/static/", Some("")),
        ("/site.css", "/", Some("/site.css")),
        ("/site.css", "", Some("/site.css")),
        ("//site.css", "/", Some("//site.css")),
        ("/static../site.css", "/static", None),
        ("/static-x/site.css", "/static", None),
        ("/static%2fsite.css", "/static", None),
        ("/%73tatic/site.css", "/static", None),
        ("/Static/site.css", "/static", None),
        ("/", "/static", None),
    ];
    for (path, prefix, rest) in cases {
        assert_eq!(below(path.as_bytes(), prefix), rest.map(str::as_bytes), "{path} below {prefix}");
    }
}

#[test]
fn a_path_is_decoded_once() {
    let cases: [(&str, &str, bool); 26] = [
        ("", "", false),
        ("/", "", true),
        ("/site.css", "site.css", false),
        ("/css/site.css", "css/site.css", false),
        ("/css/", "css", true),
        ("/a/b/c/", "a/b/c", true),
        ("/a%20b", "a b", false),
        ("/%61%62/%63", "ab/c", false),
        ("/%C3%BC", "ü", false),
        ("/%c3%bc/%F0%9F%92%A7", "ü/💧", false),
        ("/%252e%252e/x", "%2e%2e/x", false),
        ("/%252f", "%2f", false),
        ("/%2500", "%00", false),
        ("/%25", "%", false),
        ("/Site.CSS", "Site.CSS", false),
        ("/a..", "a..", false),
        ("/a../b", "a../b", false),
        ("/a.", "a.", false),
        ("/a%20", "a ", false),
        ("/a;b=c", "a;b=c", false),
        ("/a%3Fb%23c", "a?b#c", false),
        ("/C:/windows", "C:/windows", false),
        ("/~root", "~root", false),
        ("/a+b", "a+b", false),
        ("/%EF%BC%8E%EF%BC%8E/x", "．．/x", false),
        ("/%E2%88%95", "∕", false),
    ];
    for (path, text, is_directory_form) in cases {
        assert_eq!(names(path), Some((text.to_owned(), is_directory_form)), "{path}");
    }
}

#[test]
fn what_names_no_file_is_refused() {
    use PathError::{Control, DotFile, DotSegment, EmptySegment, Malformed, NotBelow, NotUtf8, Separator};
    let cases: [(&str, PathError); 56] = [
        ("site.css", NotBelow),
        ("../x", NotBelow),
        ("-x/secret", NotBelow),
        ("/%", Malformed),
        ("/%4", Malformed),
        ("/%zz", Malformed),
        ("/%2", Malformed),
        ("/%2/e", Malformed),
        ("/%%", Malformed),
        ("/%u002e%u002e/x", Malformed),
        ("/%-1", Malformed),
        ("/%+1", Malformed),
        ("/% 2", Malformed),
        ("/a%00", Control),
        ("/a\0", Control),
        ("/..%00", Control),
        ("/.%00.", Control),
        ("/a%0a", Control),
        ("/a%0D", Control),
        ("/a%09b", Control),
        ("/a\tb", Control),
        ("/%1f", Control),
        ("/%7F", Control),
        ("/%c2%80", Control),
        ("/%C2%9f", Control),
        ("/%c0%ae%c0%ae/x", NotUtf8),
        ("/%c0%af", NotUtf8),
        ("/%e0%80%ae", NotUtf8),
        ("/%f0%80%80%ae", NotUtf8),
        ("/%ff", NotUtf8),
        ("/%ed%a0%80", NotUtf8),
        ("/%c3", NotUtf8),
        ("/%c3/%bc", NotUtf8),
        ("/.", DotSegment),
        ("/..", DotSegment),
        ("/./a", DotSegment),
        ("/../a", DotSegment),
        ("/a/..", DotSegment),
        ("/a/../", DotSegment),
        ("/a/.%2e/b", DotSegment),
        ("/%2E%2e", DotSegment),
        ("/%2e", DotSegment),
        ("/a%2fb", Separator),
        ("/..%2Fb", Separator),
        ("/a\\b", Separator),
        ("/..%5c", Separator),
        ("/..\\..", Separator),
        ("//", EmptySegment),
        ("//a", EmptySegment),
        ("/a//b", EmptySegment),
        ("/a//", EmptySegment),
        ("/.env", DotFile),
        ("/.git/config", DotFile),
        ("/a/%2eenv", DotFile),
        ("/...", DotFile),
        ("/a/.well-known/x", DotFile),
    ];
    for (path, error) in cases {
        assert_eq!(refused(path), Some(error), "{path:?}");
    }
}

#[test]
fn of_names_that_begin_with_a_dot_requests_get_well_known_alone() {
    let with = |dot_files, path: &str| decode(path.as_bytes(), dot_files).map(|path| path.as_str().to_owned());
    for path in ["/.well-known/security.txt", "/.well-known", "/%2ewell-known/x"] {
        assert!(with(DotFiles::WellKnown, path).is_ok_and(|text| text.starts_with(".well-known")), "{path}");
        assert!(with(DotFiles::Allowed, path).is_ok(), "{path}");
    }
    for path in ["/.env", "/a/.well-known", "/.well-known/.git/config", "/.Well-Known/x", "/.well-known2", "/..."] {
        assert_eq!(with(DotFiles::WellKnown, path), Err(PathError::DotFile), "{path}");
        assert_eq!(with(DotFiles::Allowed, path), Ok(path[1..].to_owned()), "{path}");
    }
    for path in ["/.", "/..", "/%2e%2e/a", "/.well-known/.."] {
        for dot_files in [DotFiles::WellKnown, DotFiles::Allowed] {
            assert!(with(dot_files, path).is_err(), "{path}");
        }
    }
}

#[test]
fn lengths_are_those_of_the_decoded_names() {
    let name = "n".repeat(255);
    assert_eq!(names(&format!("/{name}")), Some((name.clone(), false)));
    assert_eq!(names(&format!("/{}", "%6e".repeat(255))), Some((name.clone(), false)));
    assert_eq!(refused(&format!("/{name}n")), Some(PathError::TooLong));
    assert_eq!(refused(&format!("/{}", "%6e".repeat(256))), Some(PathError::TooLong));
    assert_eq!(refused(&"/a".repeat(64)), None);
    assert_eq!(refused(&"/a".repeat(65)), Some(PathError::TooLong));
    // 16 names of 255 bytes, and 15 slashes between them, are 4,095.
    let longest = format!("/{name}").repeat(16);
    assert_eq!(names(&longest).map(|(text, _)| text.len()), Some(4095));
    assert_eq!(refused(&format!("{longest}/")), None);
    assert_eq!(refused(&format!("{longest}/a")), Some(PathError::TooLong));
    assert_eq!(refused(&format!("/{}", "a".repeat(1 << 20))), Some(PathError::TooLong));
    let encoded = format!("/{}", "%6e".repeat(255)).repeat(15);
    assert_eq!(names(&encoded).map(|(text, _)| text.len()), Some(15 * 256 - 1));
    // What is longer than any path could be, encoded, is not read.
    assert_eq!(refused(&format!("/%zz{}", "a".repeat(3 * 4095 - 3))), Some(PathError::Malformed));
    assert_eq!(refused(&format!("/%zz{}", "a".repeat(3 * 4095 - 2))), Some(PathError::TooLong));
    assert_eq!(refused(&format!("/%zz{}", "a".repeat(3 * 4095))), Some(PathError::TooLong));
}

#[test]
fn refusals_tell_nothing_of_hidden_files() {
    let status = |path| refused(path).map(|error| error.refusal().status);
    for path in ["/%zz", "/a%00", "/%ff", "/..", "/%2e/a"] {
        assert_eq!(status(path), Some(400), "{path}");
    }
    let text = format!("/{}", "n".repeat(256));
    for path in ["/.git", "/a//b", "/a%2fb", "/a\\b", "a", &text] {
        assert_eq!(status(path), Some(404), "{path}");
        assert_eq!(refused(path).map(PathError::refusal), Some(PathError::DotFile.refusal()), "{path}");
    }
}

#[test]
fn a_path_can_be_extended_by_a_name_or_by_the_end_of_one() {
    let path = |text: &str| decode(text.as_bytes(), DotFiles::Allowed).unwrap();
    let text = |path: Option<RelativePath>| path.map(|path| path.as_str().to_owned());
    assert_eq!(text(path("").child("index.html")).as_deref(), Some("index.html"));
    assert_eq!(text(path("/a/").child("index.html")).as_deref(), Some("a/index.html"));
    assert_eq!(path("/a/").child("b").map(|path| path.is_directory_form()), Some(false));
    for name in ["", ".", "..", "a/b", "/", "a\\b", "a\0", "a\n", &"n".repeat(256)] {
        assert_eq!(path("/a").child(name), None, "{name:?}");
    }
    assert_eq!(text(path("/a/b.css").with_suffix(".br")).as_deref(), Some("a/b.css.br"));
    assert_eq!(text(path("/b.css").with_suffix(".gz")).as_deref(), Some("b.css.gz"));
    assert_eq!(path("/").with_suffix(".gz"), None);
    assert_eq!(path("/a").with_suffix("/../b"), None);
    assert_eq!(path(&format!("/{}", "n".repeat(253))).with_suffix(".gz"), None);
    assert_eq!(path(&"/a".repeat(64)).child("b"), None);
    assert_eq!(path(&format!("/{}", "n".repeat(255)).repeat(16)).child("b"), None);
}

/// Pieces that attacks are made of, and any octets.
fn attack() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop_oneof![
        Just(b"/".to_vec()),
        Just(b".".to_vec()),
        Just(b"..".to_vec()),
        Just(b"%2e".to_vec()),
        Just(b"%2F".to_vec()),
        Just(b"%5c".to_vec()),
        Just(b"%25".to_vec()),
        Just(b"%c0%ae".to_vec()),
        Just(b"%00".to_vec()),
        Just(b"%c3%bc".to_vec()),
        Just(b"name".to_vec()),
        vec(any::<u8>(), 0..4),
    ];
    vec(pieces, 0..12).prop_map(|pieces| [b"/".to_vec(), pieces.concat()].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn whatever_arrives_the_names_are_names(path in attack()) {
        for dot_files in [DotFiles::WellKnown, DotFiles::Allowed] {
            let Ok(found) = decode(&path, dot_files) else { continue };
            let text = found.as_str();
            prop_assert!(text.len() <= path.len());
            prop_assert!(!text.contains(['\\', '\0']) && !text.chars().any(char::is_control));
            prop_assert_eq!(found.is_directory_form(), path.ends_with(b"/"));
            let names: Vec<&str> = text.split('/').collect();
            prop_assert!(text.is_empty() || names.iter().all(|name| !matches!(*name, "" | "." | "..")));
            if dot_files == DotFiles::WellKnown {
                let below = if names[0] == ".well-known" { &names[1..] } else { &names[..] };
                prop_assert!(below.iter().all(|name| !name.starts_with('.')));
            }
        }
    }

    #[test]
    fn names_that_are_encoded_arrive(names in vec("[^./\\\\\\p{Cc}][^/\\\\\\p{Cc}]{0,20}", 1..8)) {
        let encoded: String = names.iter().map(|name| {
            let octets: String = name.bytes().map(|octet| format!("%{octet:02X}")).collect();
            format!("/{octets}")
        }).collect();
        let path = decode(encoded.as_bytes(), DotFiles::WellKnown);
        prop_assert_eq!(path.map(|path| path.as_str().to_owned()), Ok(names.join("/")));
    }
}

#[test]
fn an_encoded_path_decodes_to_itself() {
    for path in ["a b", "ä/ö.txt", "100%", "a?b#c", "x;y:z@w", "\"<>[]^`{|}"] {
        let encoded = tailrace_http::static_path::encode(path);
        assert!(
            encoded.bytes().all(|octet| octet.is_ascii_graphic() && !b"\"<>?#[]^`{|}".contains(&octet)),
            "{encoded}"
        );
        let decoded = tailrace_http::static_path::decode(format!("/{encoded}").as_bytes(), DotFiles::Allowed);
        assert_eq!(decoded.unwrap().as_str(), path);
    }
}
