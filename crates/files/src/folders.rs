//! The mounts and their folders: which of them a path is below, and opening a folder again.
//!
//! Any thread.

use std::borrow::Cow;
use std::io;
use std::sync::{Arc, Mutex};

use tailrace_http::static_path::{RelativePath, below, encode};
use tailrace_os::clock::{Millis, monotonic_millis};
use tailrace_os::sync::lock;
use tailrace_server::Disk;
use tailrace_server::Share;

use crate::config::{Mount, StaticConfig};
use crate::lookup::{MustWait, Wait};
use crate::resolve::{Links, Root};

/// A folder is opened again after this long, in case another one has got its name (milliseconds).
pub(super) const REOPEN: Millis = 500;

/// A mount and its folder.
pub(super) struct Folder {
    pub(super) mount: Mount,
    /// The prefix as it stands in requests.
    prefix: String,
    /// Its place among the folders.
    number: usize,
    /// The disk threads that look for its files, and read them.
    pub(super) share: Arc<Share>,
    /// The folder, and when it was opened. `None`: it does not exist at this moment.
    root: Mutex<(Option<Arc<Root>>, Millis)>,
}

impl Folder {
    /// The folder, opened again from time to time by a disk thread. `None`: it does not exist.
    pub(super) fn root(&self, links: Links, wait: Wait, now: Millis) -> Result<Option<Arc<Root>>, MustWait> {
        let (root, opened) = lock(&self.root).clone();
        if now.saturating_sub(opened) < REOPEN {
            return Ok(root);
        }
        if wait == Wait::No {
            return Err(MustWait);
        }
        let root = Root::open(&self.mount.folder, links).ok().map(Arc::new);
        *lock(&self.root) = (root.clone(), now);
        Ok(root)
    }
}

/// All of them, those with the longest prefix first.
pub(super) struct Folders(Vec<Folder>);

impl Folders {
    /// Opens the folders.
    ///
    /// # Errors
    /// One cannot be opened; the error names it.
    pub(super) fn open(config: &StaticConfig, disk: &Arc<Disk>) -> io::Result<Self> {
        let mut mounts = config.mounts.clone();
        // Stable: of two equal ones the first wins.
        mounts.sort_by_key(|mount| std::cmp::Reverse(mount.prefix.len()));
        let mut folders = Vec::new();
        for mount in mounts {
            let root = Root::open(&mount.folder, config.symlinks)
                .map_err(|fault| io::Error::new(fault.kind(), format!("{}: {fault}", mount.folder.display())))?;
            let prefix = encode(&mount.prefix);
            let root = Mutex::new((Some(Arc::new(root)), monotonic_millis()));
            folders.push(Folder { mount, prefix, number: folders.len(), share: Share::new(disk.clone()), root });
        }
        Ok(Self(folders))
    }

    /// Those that a path, as it arrived, is below, the nearest first, each with the rest of the path.
    pub(super) fn of<'a>(&'a self, path: &'a [u8]) -> impl Iterator<Item = (&'a Folder, &'a [u8])> {
        self.0.iter().filter_map(move |folder| Some((folder, below(path, &folder.prefix)?)))
    }

    /// Under which key the cache has what a path leads to: the path, decoded, so that each file has one. The path of a
    /// request that is not encoded is that already. A path that is encoded in part may be below another mount than the
    /// decoded one (`/%61/x` is not below `/a`); then the key is one that no path begins like.
    pub(super) fn key<'a>(&self, path: &'a [u8], folder: &Folder, names: &RelativePath) -> Cow<'a, [u8]> {
        if !is_encoded(path) {
            return Cow::Borrowed(path);
        }
        let before = if names.as_str().is_empty() { "" } else { "/" };
        let after = if names.is_directory_form() { "/" } else { "" };
        let decoded = format!("{}{before}{}{after}", folder.prefix, names.as_str()).into_bytes();
        if self.of(&decoded).next().is_some_and(|(nearest, _)| nearest.number == folder.number) {
            return Cow::Owned(decoded);
        }
        Cow::Owned([format!("{} ", folder.number).as_bytes(), &decoded].concat())
    }
}

/// True for a path whose key in the cache is another one than itself.
pub(super) fn is_encoded(path: &[u8]) -> bool {
    path.contains(&b'%')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use tailrace_http::static_path::{DotFiles, decode};
    use tailrace_server::Disk;

    use super::Folders;
    use crate::config::{Mount, StaticConfig};

    fn mount(prefix: &str) -> Mount {
        Mount { prefix: prefix.to_owned(), folder: std::env::temp_dir(), is_overlay: false }
    }

    #[test]
    fn a_file_has_one_key_however_its_path_is_encoded() {
        let config = StaticConfig { mounts: ["", "/a", "/é"].map(mount).to_vec(), ..StaticConfig::default() };
        let folders = Folders::open(&config, &Arc::new(Disk::new())).unwrap();
        let key_of = |path: &str| {
            let path = path.as_bytes();
            let (folder, rest) = folders.of(path).next().unwrap();
            let names = decode(rest, DotFiles::Allowed).unwrap();
            String::from_utf8(folders.key(path, folder, &names).into_owned()).unwrap()
        };
        for path in ["/a/xy", "/a/x%79", "/a/%78%79"] {
            assert_eq!(key_of(path), "/a/xy");
        }
        assert_eq!((key_of("/a/%78/"), key_of("/a/")), ("/a/x/".to_owned(), "/a/".to_owned()));
        assert_eq!(key_of("/%C3%A9/x"), "/%C3%A9/x", "as its mount");
        // Another file than that of `/a/x`.
        assert_eq!(key_of("/%61/x"), "2 /a/x");
        assert_eq!(key_of("/50%25"), "/50%");
    }
}
