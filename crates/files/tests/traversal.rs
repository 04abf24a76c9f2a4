//! Attempts to get a file that is not served, from the target of a request to the open file. The table of them,
//! `tests/data/traversal.txt`, says what each must lead to.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashSet;
use std::fs::{create_dir_all, write};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tailrace_files::resolve::{Found, Links, Root, Unresolved};
use tailrace_http::static_path::{DotFiles, below, decode};

const TABLE: &str = include_str!("../../../tests/data/traversal.txt");
const PREFIX: &str = "/static";
const OUTSIDE: &[u8] = b"outside";

struct Attempt<'a> {
    outcome: &'a str,
    target: String,
}

fn lines() -> impl Iterator<Item = Vec<&'static str>> {
    TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(|line| line.split(' ').collect())
}

fn attempts() -> Vec<Attempt<'static>> {
    let is_of_the_tree = |word| matches!(word, "inside" | "outside" | "link");
    let words = lines().filter(|words| !is_of_the_tree(words[0]));
    words.map(|words| Attempt { outcome: words[0], target: expanded(words[1]) }).collect()
}

/// `{3*a}` is `aaa`. What is in the braces of another form stays.
fn expanded(target: &str) -> String {
    let Some(start) = target.rfind("{").filter(|&start| target[start..].contains('*')) else {
        return target.to_owned();
    };
    let end = start + target[start..].find('}').unwrap();
    let (count, text) = target[start + 1..end].split_once('*').unwrap();
    let text = text.repeat(count.parse().unwrap());
    expanded(&format!("{}{text}{}", &target[..start], &target[end + 1..]))
}

/// Not that of the crate, which is tested here.
fn decoded(name: &str) -> Vec<u8> {
    let mut parts = name.split('%');
    let mut octets = parts.next().unwrap().as_bytes().to_vec();
    for part in parts {
        octets.push(u8::from_str_radix(&part[..2], 16).unwrap());
        octets.extend_from_slice(&part.as_bytes()[2..]);
    }
    octets
}

/// The tree of the table, removed at the end.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Self {
        let tree = Self(std::env::temp_dir().join(format!("tailrace-traversal-{name}-{}", std::process::id())));
        create_dir_all(tree.root()).unwrap();
        for words in lines() {
            let (folder, name) = match words[0] {
                "inside" | "link" => (tree.root(), decoded(words[1])),
                "outside" => (tree.0.clone(), decoded(words[1])),
                _ => continue,
            };
            let path = folder.join(std::ffi::OsStr::from_bytes(&name));
            create_dir_all(path.parent().unwrap()).unwrap();
            match words[0] {
                "inside" => write(path, &name).unwrap(),
                "link" => symlink(words[2], path).unwrap(),
                _ => write(path, OUTSIDE).unwrap(),
            }
        }
        tree
    }

    fn root(&self) -> PathBuf {
        self.0.join("st")
    }

    fn roots(&self, links: Links) -> [Root; 2] {
        let open = || Root::open(&self.root(), links).unwrap();
        [open(), open().without_openat2()]
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The outcome in the words of the table, and the content if there is any.
fn outcome(root: &Root, target: &str, dot_files: DotFiles) -> (&'static str, Vec<u8>) {
    let path = target.split('?').next().unwrap().as_bytes();
    let Some(rest) = below(path, PREFIX) else { return ("elsewhere", Vec::new()) };
    let path = match decode(rest, dot_files) {
        Ok(path) => path,
        Err(error) => {
            let word = match error.refusal().status {
                400 => "bad",
                404 => "refused",
                status => panic!("{status} for {target}"),
            };
            return (word, Vec::new());
        }
    };
    let word = match root.resolve(&path) {
        Ok(Found::File { mut file, .. }) => {
            let mut content = Vec::new();
            file.read_to_end(&mut content).unwrap();
            return ("file", content);
        }
        Ok(Found::Directory { .. }) => "folder",
        Err(Unresolved::Missing) => "missing",
        Err(Unresolved::Link) => "leaves",
        Err(other) => panic!("{other:?} for {target}"),
    };
    (word, Vec::new())
}

#[test]
fn each_attempt_has_its_outcome() {
    let tree = Tree::new("outcome");
    let mut faults = Vec::new();
    for root in tree.roots(Links::Beneath) {
        for Attempt { outcome: expected, target } in attempts() {
            let (word, content) = outcome(&root, &target, DotFiles::WellKnown);
            let is_as_expected = match expected.split_once('=') {
                Some((expected, name)) => word == expected && content == decoded(name),
                None => word == expected && content.is_empty(),
            };
            if !is_as_expected {
                let content = String::from_utf8_lossy(&content).into_owned();
                faults.push(format!("{target}: {word} {content}, not {expected}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn no_attempt_gets_a_file_from_outside_by_any_rule() {
    let tree = Tree::new("escape");
    for links in [Links::Beneath, Links::Never, Links::Follow] {
        for dot_files in [DotFiles::WellKnown, DotFiles::Allowed] {
            for root in tree.roots(links) {
                for Attempt { outcome: expected, target } in attempts() {
                    // These links lead there.
                    if links == Links::Follow && expected == "leaves" {
                        continue;
                    }
                    let (word, content) = outcome(&root, &target, dot_files);
                    assert!(!content.starts_with(OUTSIDE), "{target} with {links:?} and {dot_files:?}");
                    if word == "file" {
                        assert!(tree.root().join(std::ffi::OsStr::from_bytes(&content)).is_file(), "{target}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_lies_outside_can_be_reached_by_its_path() {
    // Else the other tests would show nothing.
    let tree = Tree::new("reach");
    for name in ["../secret.txt", "../st-x/secret.txt", "../etc/passwd", "css/../../secret.txt", "out", "css/up"] {
        assert_eq!(std::fs::read(tree.root().join(Path::new(name))).unwrap(), OUTSIDE, "{name}");
    }
    let [kernel, walk] = tree.roots(Links::Follow);
    for root in [kernel, walk] {
        assert_eq!(outcome(&root, "/static/out", DotFiles::WellKnown), ("file", OUTSIDE.to_vec()));
    }
}

#[test]
fn the_table_has_many_attempts_of_every_outcome_and_none_twice() {
    let attempts = attempts();
    assert!(attempts.len() >= 150, "{}", attempts.len());
    let targets: HashSet<&str> = attempts.iter().map(|attempt| attempt.target.as_str()).collect();
    assert_eq!(targets.len(), attempts.len());
    // A request line can hold each of them.
    assert!(targets.iter().all(|target| target.len() < 8000 && target.bytes().all(|byte| byte.is_ascii_graphic())));
    assert!(!targets.iter().any(|target| target.contains('#')));
    for outcome in ["folder", "missing", "refused", "bad", "leaves", "elsewhere"] {
        assert!(attempts.iter().filter(|attempt| attempt.outcome == outcome).count() > 3, "{outcome}");
    }
    // Each file that the tree has for an attempt is got by one.
    let words: Vec<Vec<&str>> = lines().collect();
    assert!(words.iter().all(|words| words.len() == if words[0] == "link" { 3 } else { 2 }), "a space too many");
}
