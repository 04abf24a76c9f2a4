//! Whatever path is asked for, nothing outside the folder is found, and the kernel and the walk find the same.
#![no_main]

use std::collections::HashSet;
use std::fs::{create_dir_all, read_dir, symlink_metadata, write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tailrace_http::static_path::{DotFiles, decode};
use tailrace_files::resolve::{Found, Links, Metadata, Root, Unresolved};

const FILES: [&str; 8] = ["a/b/c", "a/c", "c", "%2e%2e/c", ".git/c", ".well-known/c", "x ./c", "ü/c"];
const OUTSIDE: [&str; 5] = ["c", "a/b/c", "b/c", "root-x/c", ".git/c"];
const LINKS: [(&str, &str); 12] = [
    ("l", "a"),
    ("a/l", "b/../../a"),
    ("a/b/l", "../../l/./b//"),
    ("u", ".."),
    ("a/u", "../.."),
    ("a/b/u", "../l/u/b"),
    ("s", "../root-x"),
    ("o", "../root/a"),
    ("r", "/"),
    ("m", "/proc/self/root"),
    ("e", "e"),
    ("d", "a/no"),
];

struct Tree {
    roots: [[Root; 2]; 3],
    /// Device and inode of the root and all that is below it.
    inside: HashSet<(u64, u64)>,
}

static TREE: LazyLock<Tree> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tree");
    let root = folder.join("root");
    // Several processes may do this at once, and all of them the same.
    let files = FILES.map(|name| root.join(name)).into_iter().chain(OUTSIDE.map(|name| folder.join(name)));
    for file in files {
        create_dir_all(file.parent().unwrap()).unwrap();
        write(file, "content").unwrap();
    }
    for (name, target) in LINKS {
        let _ = symlink(target, root.join(name));
    }
    let open = |links| Root::open(&root, links).unwrap();
    let roots = [Links::Beneath, Links::Never, Links::Follow].map(|links| [open(links), open(links).without_openat2()]);
    let mut inside = HashSet::new();
    collect(root, &mut inside);
    Tree { roots, inside }
});

fn collect(path: PathBuf, inside: &mut HashSet<(u64, u64)>) {
    let metadata = symlink_metadata(&path).unwrap();
    inside.insert((metadata.dev(), metadata.ino()));
    if metadata.is_dir() {
        read_dir(path).unwrap().for_each(|entry| collect(entry.unwrap().path(), inside));
    }
}

fn identity(found: Result<Found, Unresolved>) -> Result<Metadata, Unresolved> {
    found.map(|found| match found {
        Found::File { metadata, .. } | Found::Directory { metadata, .. } => metadata,
    })
}

fuzz_target!(|path: &[u8]| {
    let path = [b"/", path].concat();
    let Ok(relative) = decode(&path, DotFiles::Allowed) else {
        assert!(decode(&path, DotFiles::WellKnown).is_err());
        return;
    };
    let names = || relative.as_str().split('/');
    assert!(relative.as_str().is_empty() || names().all(|name| !matches!(name, "" | "." | "..")));
    let is_hidden = |(index, name): (usize, &str)| name.starts_with('.') && (index > 0 || name != ".well-known");
    assert_eq!(decode(&path, DotFiles::WellKnown).is_err(), names().enumerate().any(is_hidden));
    let [beneath, never, follow] =
        TREE.roots.each_ref().map(|roots| roots.each_ref().map(|root| identity(root.resolve(&relative))));
    assert_eq!(beneath[0], beneath[1]);
    assert_eq!(never[0], never[1]);
    assert_eq!(follow[0].is_ok(), follow[1].is_ok());
    for metadata in beneath.iter().chain(&never).flatten() {
        assert!(TREE.inside.contains(&(metadata.device, metadata.inode)));
    }
    // A rule that allows fewer links finds nothing else.
    if let Ok(metadata) = never[0] {
        assert_eq!(beneath[0], Ok(metadata));
    }
    if let Ok(metadata) = beneath[0] {
        assert_eq!(identity(TREE.roots[2][0].resolve(&relative)), Ok(metadata));
    }
});
