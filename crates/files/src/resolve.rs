//! Opening a file below a folder by the path of a request, whatever links the folder contains, and even if it is
//! changed meanwhile.
//!
//! The names of a [`RelativePath`] contain no `..`, so only symbolic links can lead out of the folder. The kernel keeps
//! them in (openat2(2)); where it has no such call, or a filter of system calls forbids it, this file walks from folder
//! to folder by descriptors, with the same results. Names are never joined to the folder's own name, so a folder
//! `/srv/st` has nothing to do with `/srv/st-x`.
//!
//! - The target of the path is examined (`O_PATH`) before it is opened: opening a pipe releases the process that waits
//!   to write to it, and some devices act when they are opened. Then it is opened by the same rules, without blocking,
//!   and examined again, because another file may have got its name: the result is the file that was opened. It could
//!   be opened through `/proc/self/fd`, but a jail may have none, and that takes longer than resolving the names twice.
//! - Other file systems mounted below the folder are served: containers mount volumes there, and mounting takes
//!   privileges that no author of files has.
//! - Opening a folder needs no permission to read it: its files can be served without that.
//! - The walk does not know `fs.protected_symlinks` and mounts with `nosymfollow`; the kernel refuses some links there
//!   that the walk follows, below the folder.
//!
//! Any thread. Each call takes as long as the disk does.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, Statx, StatxFlags, fstat, fstatfs, makedev, open, openat,
    openat2, readlinkat, statx,
};
use rustix::io::{Errno, retry_on_intr};
use tailrace_http::static_path::RelativePath;
use tailrace_os::process::Unshared;

/// Enough to examine a file, and to find others in a folder.
const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
/// Links that one path may follow: those of the kernel (`MAXSYMLINKS`).
const LINKS: usize = 40;
/// Folders that the walk may be inside of, each with a descriptor. Paths have fewer names; links can add to them.
const DEPTH: usize = 256;
/// How often a path is retried while it is being changed.
const TRIES: usize = 4;

/// Which symbolic links are followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// Those that lead from name to name below the folder. One that leaves it, even if it comes back, is refused, and
    /// so is every absolute one.
    #[default]
    Beneath,
    /// None.
    Never,
    /// All, wherever they lead.
    Follow,
}

/// Why a path leads to no file and no folder. All of these but the last are 404 to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// There is nothing with this name, or a file where the path needs a folder.
    Missing,
    /// The process has no permission for it.
    Forbidden,
    /// A symbolic link that [`Links`] does not allow, or too many of them, as in a loop.
    Link,
    /// A pipe, a socket or a device.
    Special,
    /// The system could not tell: no descriptors, no memory, a fault of the disk; or others changed the names all the
    /// time.
    Fault(Errno),
}

impl From<Errno> for Unresolved {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => Self::Missing,
            Errno::ACCESS | Errno::PERM => Self::Forbidden,
            Errno::XDEV | Errno::LOOP => Self::Link,
            Errno::NXIO | Errno::NODEV => Self::Special,
            _ => Self::Fault(errno),
        }
    }
}

/// What identifies a file and this version of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Metadata {
    /// Number of the device of its file system.
    pub device: u64,
    /// Its number in that file system.
    pub inode: u64,
    /// Its length in bytes.
    pub size: u64,
    /// When its content was last changed, in seconds since 1970.
    pub modified: i64,
    /// The nanoseconds after these.
    pub modified_nanoseconds: u32,
    /// When its content or its status was last changed, in seconds since 1970. No program can set this time.
    pub changed: i64,
    /// The nanoseconds after these.
    pub changed_nanoseconds: u32,
    /// Type and permissions, as in stat(2).
    pub mode: u32,
}

impl Metadata {
    /// Of an open file.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub(crate) fn of(descriptor: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        fstat(descriptor).map(|stat| Self::from_stat(&stat))
    }

    /// Of an open file, by what the system has in memory, so that it does not block. Of a file of another machine it may be
    /// out of date.
    ///
    /// # Errors
    /// Those of statx(2).
    pub(crate) fn from_memory(descriptor: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        look(descriptor).map(|(metadata, _)| metadata)
    }

    // The types of these fields differ between architectures.
    #[allow(clippy::unnecessary_cast)]
    fn from_stat(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: stat.st_mtime as i64,
            modified_nanoseconds: stat.st_mtime_nsec as u32,
            changed: stat.st_ctime as i64,
            changed_nanoseconds: stat.st_ctime_nsec as u32,
            mode: stat.st_mode as u32,
        }
    }

    /// It is the same file, and neither its length nor the time when its content was changed is another one.
    pub(crate) fn has_content_of(&self, other: &Self) -> bool {
        let of = |one: &Self| (one.device, one.inode, one.size, one.modified, one.modified_nanoseconds);
        of(self) == of(other)
    }

    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }
}

/// What the system has in memory of a file, and the number of the mount that has it, see [`mount`].
fn look(descriptor: BorrowedFd<'_>) -> rustix::io::Result<(Metadata, u64)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(descriptor, c"", flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
    let metadata = Metadata {
        device: makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        size: found.stx_size,
        modified: found.stx_mtime.tv_sec,
        modified_nanoseconds: found.stx_mtime.tv_nsec,
        changed: found.stx_ctime.tv_sec,
        changed_nanoseconds: found.stx_ctime.tv_nsec,
        mode: u32::from(found.stx_mode),
    };
    Ok((metadata, mount(&found)))
}

/// The number of the mount. Before Linux 5.8 the system does not tell it, and the number of the device tells file systems
/// apart as well.
fn mount(found: &Statx) -> u64 {
    if StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID) {
        found.stx_mnt_id
    } else {
        makedev(found.stx_dev_major, found.stx_dev_minor)
    }
}

/// File systems that ask another process or machine, also to open a file or to tell what it is (`linux/magic.h`):
/// FUSE, NFS, SMB in three versions, 9p, Ceph, AFS in two, Coda, GFS2, OCFS2, Lustre, VirtualBox, autofs.
const REMOTE: [u32; 15] = [
    0x6573_5546,
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x0102_1997,
    0x00c3_6400,
    0x5346_414f,
    0x6b41_4653,
    0x7375_7245,
    0x0116_1970,
    0x7461_636f,
    0x0bd0_0bd0,
    0x786f_4256,
    0x0187,
];

/// What a path leads to.
#[derive(Debug)]
pub enum Found {
    /// A regular file, open for reading.
    File {
        /// Its position is 0.
        file: File,
        /// Of the file that is open, at the time when it was opened.
        metadata: Metadata,
    },
    /// A folder. Its index is resolved as a path of its own ([`RelativePath::child`]), so that links of that name may
    /// lead where all others may.
    Directory {
        /// Of that folder.
        metadata: Metadata,
    },
}

/// The path of something without symbolic links. `None`: it does not exist.
pub(crate) fn real_path(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok()
}

/// A folder below which files are found.
#[derive(Debug)]
pub struct Root {
    /// Children that the application forks do not have it.
    folder: Unshared,
    links: Links,
    /// openat2(2) works. Asked once, when the folder is opened.
    has_openat2: bool,
    /// Its file system is one of [`REMOTE`], or does not tell.
    is_remote: bool,
    /// The number of its mount. `None`: the system does not tell, and nothing is found from memory.
    mount: Option<u64>,
}

impl Root {
    /// Opens a folder. It stays the same one when another folder gets its name later; a link at that name is followed
    /// now and never again.
    ///
    /// # Errors
    /// There is no such folder, or the process has no permission to find files in it.
    pub fn open(path: &Path, links: Links) -> io::Result<Self> {
        let folder = open(path, LOOK | OFlags::DIRECTORY, Mode::empty())?;
        // Finds out whether files in it can be found.
        openat(&folder, c".", LOOK, Mode::empty())?;
        let has_openat2 = openat2(&folder, c".", LOOK, Mode::empty(), ResolveFlags::BENEATH).is_ok();
        // A file system that does not tell is one of another process. The type has another length and sign on each
        // architecture.
        let is_remote = fstatfs(&folder).map_or(true, |found| REMOTE.contains(&(found.f_type as u32)));
        let mount = look(folder.as_fd()).ok().map(|(_, mount)| mount);
        Ok(Self { folder: Unshared::new(folder), links, has_openat2, is_remote, mount })
    }

    /// This folder, without openat2(2), as on a system that does not have it.
    #[must_use]
    pub fn without_openat2(self) -> Self {
        Self { has_openat2: false, ..self }
    }

    /// To ask what a file is, or to close it, may take as long as another process or machine does. Of those in another
    /// mount than the folder nothing is known.
    pub(crate) fn is_remote(&self, file: BorrowedFd<'_>) -> bool {
        self.is_remote || look(file).ok().map(|(_, mount)| mount) != self.mount
    }

    /// Finds what a path leads to, and opens it. A path in directory form never leads to a file.
    ///
    /// # Errors
    /// It leads to nothing that can be served.
    pub fn resolve(&self, path: &RelativePath) -> Result<Found, Unresolved> {
        let is_walked = !self.has_openat2 && self.links != Links::Follow;
        self.retried(
            path,
            || if is_walked { self.walk(path) } else { self.open_by_kernel(path, ResolveFlags::empty()) },
        )
    }

    fn folder(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        self.folder.here().ok_or(Errno::BADF)
    }

    fn retried(
        &self,
        path: &RelativePath,
        mut once: impl FnMut() -> Result<Found, Unresolved>,
    ) -> Result<Found, Unresolved> {
        for _ in 0..TRIES {
            match once() {
                // A file was replaced between two looks, or openat2(2) met `..` in a link while something was renamed.
                Err(Unresolved::Fault(Errno::AGAIN)) => {}
                // A filter of system calls was installed since the folder was opened.
                Err(Unresolved::Fault(Errno::NOSYS)) => break,
                result => return result,
            }
        }
        // The walk does not care what is renamed elsewhere.
        if self.links == Links::Follow { Err(Unresolved::Fault(Errno::AGAIN)) } else { self.walk(path) }
    }

    /// As [`Root::resolve`], from what the system has in memory. `None`: it has not, or cannot tell, or the file is in
    /// another mount below the folder, of which nothing is known.
    pub(crate) fn resolve_from_memory(&self, path: &RelativePath) -> Option<Result<Found, Unresolved>> {
        if !self.has_openat2 || self.links == Links::Follow || self.is_remote || self.mount.is_none() {
            return None;
        }
        match self.open_by_kernel(path, ResolveFlags::CACHED) {
            // The second is a kernel without that flag.
            Err(Unresolved::Fault(Errno::AGAIN | Errno::INVAL | Errno::NOSYS)) => None,
            result => Some(result),
        }
    }

    fn open_by_kernel(&self, path: &RelativePath, also: ResolveFlags) -> Result<Found, Unresolved> {
        let names = if path.as_str().is_empty() { "." } else { path.as_str() };
        let descriptor = self.call(names, LOOK, also)?;
        let metadata = if also.contains(ResolveFlags::CACHED) {
            let (metadata, mount) = look(descriptor.as_fd()).map_err(|_| Unresolved::Fault(Errno::AGAIN))?;
            if Some(mount) != self.mount {
                return Err(Unresolved::Fault(Errno::AGAIN));
            }
            metadata
        } else {
            Metadata::of(descriptor.as_fd())?
        };
        match metadata.kind() {
            FileType::Directory => Ok(Found::Directory { metadata }),
            _ if path.is_directory_form() => Err(Unresolved::Missing),
            FileType::RegularFile => opened(self.call(names, READ, also)?),
            _ => Err(Unresolved::Special),
        }
    }

    /// `also`: rules beside those of the links.
    fn call(&self, names: &str, flags: OFlags, also: ResolveFlags) -> Result<OwnedFd, Unresolved> {
        let folder = self.folder()?;
        let by_rule = |rule| match openat2(folder, names, flags, Mode::empty(), rule) {
            // Most filters of system calls answer with EPERM. openat2(2) itself has no reason to, so the walk tells.
            Err(Errno::PERM) => Err(Errno::NOSYS),
            result => result,
        };
        // BENEATH includes NO_MAGICLINKS, but openat2(2) says that this may change.
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | also;
        Ok(retry_on_intr(|| match self.links {
            Links::Beneath => by_rule(beneath),
            Links::Never => by_rule(beneath | ResolveFlags::NO_SYMLINKS),
            Links::Follow => openat(folder, names, flags, Mode::empty()),
        })?)
    }

    /// What openat2(2) does, from folder to folder. A `..` of a link returns to the folder that the walk came from, by
    /// its descriptor: where that folder has been moved meanwhile does not matter, and above the first there is none.
    fn walk(&self, path: &RelativePath) -> Result<Found, Unresolved> {
        let mut folders: Vec<OwnedFd> = Vec::new();
        let mut links = 0;
        let mut rest = path.as_str().as_bytes().to_vec();
        if path.is_directory_form() {
            rest.push(b'/');
        }
        loop {
            let here = folders.last().map_or(self.folder()?, AsFd::as_fd);
            let (name, after) = split_first(&rest);
            match name {
                b"" => {
                    let descriptor = match folders.pop() {
                        Some(descriptor) => descriptor,
                        None => step(self.folder()?, b".", LOOK)?,
                    };
                    let metadata = Metadata::of(descriptor.as_fd())?;
                    return Ok(Found::Directory { metadata });
                }
                b"." | b".." => {
                    // The folder must be one that files can be found in, as for any other name.
                    step(here, b".", LOOK)?;
                    if name == b".." && folders.pop().is_none() {
                        return Err(Unresolved::Link);
                    }
                    rest = after.to_vec();
                    continue;
                }
                _ => {}
            }
            let descriptor = step(here, name, LOOK | OFlags::NOFOLLOW)?;
            match Metadata::of(descriptor.as_fd())?.kind() {
                FileType::Symlink => {
                    links += 1;
                    if self.links == Links::Never || links > LINKS {
                        return Err(Unresolved::Link);
                    }
                    let target = readlinkat(&descriptor, c"", Vec::new())?.into_bytes();
                    if target.first() == Some(&b'/') {
                        return Err(Unresolved::Link);
                    }
                    // What follows the name begins with a slash, or is nothing.
                    rest = [target.as_slice(), after].concat();
                }
                FileType::Directory if folders.len() == DEPTH => return Err(Unresolved::Missing),
                FileType::Directory => {
                    rest = after.to_vec();
                    folders.push(descriptor);
                }
                _ if !after.is_empty() => return Err(Unresolved::Missing),
                FileType::RegularFile => {
                    return match step(here, name, READ | OFlags::NOFOLLOW) {
                        // Now it is a link.
                        Err(Errno::LOOP) => Err(Unresolved::Fault(Errno::AGAIN)),
                        file => opened(file?),
                    };
                }
                _ => return Err(Unresolved::Special),
            }
        }
    }
}

/// One name in a folder.
fn step(folder: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    retry_on_intr(|| openat(folder, name, flags, Mode::empty()))
}

/// The first name of a path, without the slashes before it, and what follows it, with the slash.
fn split_first(path: &[u8]) -> (&[u8], &[u8]) {
    let start = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
    let path = &path[start..];
    path.split_at(path.iter().position(|&byte| byte == b'/').unwrap_or(path.len()))
}

/// A regular file that was opened. Another kind has come to that name since it was looked at.
fn opened(descriptor: OwnedFd) -> Result<Found, Unresolved> {
    let metadata = Metadata::of(descriptor.as_fd())?;
    match metadata.kind() {
        FileType::RegularFile => Ok(Found::File { file: File::from(descriptor), metadata }),
        _ => Err(Unresolved::Fault(Errno::AGAIN)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::fs::{create_dir, create_dir_all, hard_link, rename, set_permissions, write};
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use proptest::collection::vec;
    use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, prop_oneof, proptest};
    use proptest::strategy::{Just, Strategy};
    use rustix::fs::{CWD, FileType, Mode, RenameFlags, inotify, mknodat, renameat_with};
    use tailrace_http::static_path::{DotFiles, RelativePath, decode};

    use super::{AtFlags, Errno, Found, Links, Root, StatxFlags, Unresolved, mount, split_first, statx};

    const ALL: [Links; 3] = [Links::Beneath, Links::Never, Links::Follow];

    /// A new folder, removed at the end. The root is `root` in it.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            static SERIAL: AtomicU64 = AtomicU64::new(0);
            let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("tailrace-resolve-{}-{serial}", std::process::id()));
            create_dir_all(path.join("root")).unwrap();
            Self(path)
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.join("root").join(name)
        }

        /// A file that contains its own name.
        fn file(&self, name: &str) {
            create_dir_all(self.path(name).parent().unwrap()).unwrap();
            write(self.path(name), name).unwrap();
        }

        fn link(&self, name: &str, target: &str) {
            create_dir_all(self.path(name).parent().unwrap()).unwrap();
            symlink(target, self.path(name)).unwrap();
        }

        /// By the kernel, and by the walk.
        fn roots(&self, links: Links) -> [Root; 2] {
            let open = || Root::open(&self.path(""), links).unwrap();
            [open(), open().without_openat2()]
        }

        /// What both say that a path leads to.
        fn resolve(&self, links: Links, path: &str) -> Seen {
            let [kernel, walk] = self.roots(links).map(|root| seen(root.resolve(&relative(path))));
            assert_eq!(kernel, walk, "{path} with {links:?}");
            kernel
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn relative(path: &str) -> RelativePath {
        decode(format!("/{path}").as_bytes(), DotFiles::Allowed).unwrap()
    }

    #[derive(Debug, PartialEq, Eq)]
    enum Seen {
        File(String),
        /// By its inode.
        Directory(u64),
        Nothing(Unresolved),
    }

    fn seen(found: Result<Found, Unresolved>) -> Seen {
        match found {
            Ok(Found::File { mut file, metadata }) => {
                // Links may lead to files of others in the folder for temporary files.
                let mut content = Vec::new();
                file.read_to_end(&mut content).unwrap();
                assert_eq!(metadata.size, content.len() as u64);
                Seen::File(String::from_utf8_lossy(&content).into_owned())
            }
            Ok(Found::Directory { metadata }) => Seen::Directory(metadata.inode),
            Err(unresolved) => Seen::Nothing(unresolved),
        }
    }

    fn file(text: &str) -> Seen {
        Seen::File(text.to_owned())
    }

    const MISSING: Seen = Seen::Nothing(Unresolved::Missing);
    const LINK: Seen = Seen::Nothing(Unresolved::Link);
    const SPECIAL: Seen = Seen::Nothing(Unresolved::Special);

    #[test]
    fn files_and_folders_are_found_and_nothing_else() {
        let folder = Folder::new();
        folder.file("css/site.css");
        for links in ALL {
            let resolve = |path| folder.resolve(links, path);
            assert_eq!(resolve("css/site.css"), file("css/site.css"));
            assert!(matches!(resolve(""), Seen::Directory(_)));
            assert!(matches!(resolve("css"), Seen::Directory(_)));
            assert_eq!(resolve("css"), resolve("css/"));
            for path in ["no", "css/no", "no/site.css", "css/site.css/", "css/site.css/no", "CSS/site.css"] {
                assert_eq!(resolve(path), MISSING, "{path}");
            }
            assert_eq!(resolve(&format!("css/{}", "n".repeat(255))), MISSING);
        }
    }

    #[test]
    fn a_file_has_what_identifies_this_version_of_it() {
        let folder = Folder::new();
        folder.file("a");
        hard_link(folder.path("a"), folder.path("b")).unwrap();
        folder.file("c");
        for root in folder.roots(Links::Beneath) {
            let metadata = |name| match root.resolve(&relative(name)) {
                Ok(Found::File { metadata, .. } | Found::Directory { metadata }) => metadata,
                Err(unresolved) => panic!("{name}: {unresolved:?}"),
            };
            let about = std::fs::metadata(folder.path("a")).unwrap();
            let since = about.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
            let found = metadata("a");
            assert_eq!((found.modified as u64, found.modified_nanoseconds), (since.as_secs(), since.subsec_nanos()));
            assert_eq!((found.size, found.mode), (1, about.permissions().mode()));
            assert_eq!(found, metadata("b"));
            assert_eq!(found.device, metadata("").device);
            assert_ne!(found.inode, metadata("c").inode);
        }
    }

    #[test]
    fn links_are_followed_by_the_rule() {
        let folder = Folder::new();
        write(folder.0.join("secret"), "secret").unwrap();
        create_dir(folder.0.join("root-x")).unwrap();
        write(folder.0.join("root-x/secret"), "secret").unwrap();
        folder.file("a/b/file");
        folder.link("near", "a/b/file");
        folder.link("a/up", "../a/b/../b/file");
        folder.link("a/dir", "b");
        folder.link("dots", "./././a/./b//file");
        folder.link("folder", "a/b/");
        folder.link("no-folder", "a/b/file/");
        folder.link("no-folder-dot", "a/b/file/.");
        folder.link("dangling", "a/no");
        folder.link("loop", "loop");
        folder.link("out", "../secret");
        folder.link("beside", "../root-x/secret");
        folder.link("back", "../root/a/b/file");
        folder.link("a/b/out", "../../..");
        folder.link("absolute", folder.path("a/b/file").to_str().unwrap());
        folder.link("absolute-out", folder.0.join("secret").to_str().unwrap());
        folder.link("magic", "/proc/self/root/etc/passwd");
        let kept = |links, path| folder.resolve(links, path);

        for path in ["near", "a/up", "a/dir/file", "dots", "folder/file"] {
            assert_eq!(kept(Links::Beneath, path), file("a/b/file"), "{path}");
            assert_eq!(kept(Links::Follow, path), file("a/b/file"), "{path}");
            assert_eq!(kept(Links::Never, path), LINK, "{path}");
        }
        assert_eq!(kept(Links::Beneath, "folder"), kept(Links::Beneath, "a/b"));
        for path in ["no-folder", "no-folder-dot", "dangling", "near/", "near/file"] {
            assert_eq!(kept(Links::Beneath, path), MISSING, "{path}");
            assert_eq!(kept(Links::Follow, path), MISSING, "{path}");
            assert_eq!(kept(Links::Never, path), LINK, "{path}");
        }
        for path in ["out", "beside", "absolute-out", "a/b/out/secret", "a/b/out/root-x/secret"] {
            assert_eq!(kept(Links::Beneath, path), LINK, "{path}");
            assert_eq!(kept(Links::Never, path), LINK, "{path}");
            assert_eq!(kept(Links::Follow, path), file("secret"), "{path}");
        }
        for path in ["back", "absolute", "a/b/out/root/a/b/file"] {
            assert_eq!(kept(Links::Beneath, path), LINK, "{path}");
            assert_eq!(kept(Links::Follow, path), file("a/b/file"), "{path}");
        }
        for path in ["loop", "loop/x", "a/b/out", "magic"] {
            assert_eq!(kept(Links::Beneath, path), LINK, "{path}");
            assert_eq!(kept(Links::Never, path), LINK, "{path}");
        }
        assert_eq!(kept(Links::Follow, "loop"), LINK);
    }

    #[test]
    fn forty_links_are_followed_and_no_more() {
        let folder = Folder::new();
        folder.file("file");
        folder.link("1", "file");
        for number in 2..=41 {
            folder.link(&number.to_string(), &(number - 1).to_string());
        }
        for links in [Links::Beneath, Links::Follow] {
            assert_eq!(folder.resolve(links, "40"), file("file"));
            assert_eq!(folder.resolve(links, "41"), LINK);
        }
    }

    #[test]
    fn a_walk_has_a_limited_depth() {
        let folder = Folder::new();
        // Each link adds 32 names.
        let deep = "d/".repeat(32);
        for number in 0..=8 {
            let here = deep.repeat(number);
            create_dir_all(folder.path(&here)).unwrap();
            folder.link(&format!("{here}next"), &deep);
        }
        create_dir_all(folder.path(&deep.repeat(9))).unwrap();
        let [_, walk] = folder.roots(Links::Beneath);
        assert!(matches!(walk.resolve(&relative(&["next"; 8].join("/"))), Ok(Found::Directory { .. })));
        assert_eq!(walk.resolve(&relative(&["next"; 9].join("/"))).err(), Some(Unresolved::Missing));
    }

    #[test]
    fn special_files_are_not_opened() {
        let folder = Folder::new();
        mknodat(CWD, folder.path("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let _socket = UnixListener::bind(folder.path("socket")).unwrap();
        folder.link("link", "pipe");
        folder.link("device", "/dev/null");
        for links in ALL {
            assert_eq!(folder.resolve(links, "pipe"), SPECIAL);
            assert_eq!(folder.resolve(links, "socket"), SPECIAL);
            assert_eq!(folder.resolve(links, "pipe/"), MISSING);
        }
        assert_eq!(folder.resolve(Links::Beneath, "link"), SPECIAL);
        assert_eq!(folder.resolve(Links::Follow, "device"), SPECIAL);
        assert_eq!(folder.resolve(Links::Beneath, "device"), LINK);
    }

    #[test]
    fn to_look_at_a_pipe_does_not_open_it() {
        let folder = Folder::new();
        let pipe = folder.path("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let events = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&events, &pipe, inotify::WatchFlags::OPEN).unwrap();
        let was_opened = || rustix::io::read(&events, &mut [0; 256]).is_ok();
        for links in ALL {
            assert_eq!(folder.resolve(links, "pipe"), SPECIAL);
        }
        assert!(!was_opened());
        rustix::fs::open(&pipe, super::READ, Mode::empty()).unwrap();
        assert!(was_opened());
    }

    #[test]
    fn permissions_are_those_of_the_process() {
        let folder = Folder::new();
        folder.file("closed/file");
        folder.file("file");
        folder.file("hidden/file");
        folder.link("hidden/self", ".");
        set_permissions(folder.path("closed"), PermissionsExt::from_mode(0o000)).unwrap();
        set_permissions(folder.path("file"), PermissionsExt::from_mode(0o200)).unwrap();
        set_permissions(folder.path("hidden"), PermissionsExt::from_mode(0o111)).unwrap();
        // Without permission to read the folder: its files are found, and it is too.
        for path in ["hidden/file", "hidden/self/file"] {
            assert_eq!(folder.resolve(Links::Beneath, path), file("hidden/file"));
        }
        assert!(matches!(folder.resolve(Links::Beneath, "hidden"), Seen::Directory(_)));
        assert!(matches!(folder.resolve(Links::Beneath, "closed"), Seen::Directory(_)));
        // The superuser may do all of this.
        if !rustix::process::geteuid().is_root() {
            for path in ["closed/file", "file"] {
                assert_eq!(folder.resolve(Links::Beneath, path), Seen::Nothing(Unresolved::Forbidden));
            }
        }
        // So that they can be removed.
        for name in ["closed", "hidden"] {
            set_permissions(folder.path(name), PermissionsExt::from_mode(0o700)).unwrap();
        }
    }

    #[test]
    fn a_root_is_a_folder_and_stays_the_same_one() {
        let folder = Folder::new();
        folder.file("file");
        assert!(Root::open(&folder.path("file"), Links::Beneath).is_err());
        assert!(Root::open(&folder.path("no"), Links::Beneath).is_err());
        let roots = folder.roots(Links::Beneath);
        rename(folder.path(""), folder.0.join("old")).unwrap();
        folder.file("other");
        for root in roots {
            assert_eq!(seen(root.resolve(&relative("file"))), file("file"));
            assert_eq!(seen(root.resolve(&relative("other"))), MISSING);
        }
    }

    #[test]
    fn the_walk_answers_when_the_kernel_does_not() {
        let folder = Folder::new();
        folder.file("file");
        let path = relative("file");
        let open = |links| Root::open(&folder.path(""), links).unwrap();
        let answers = |root: &Root, errno, times| {
            let mut count = 0;
            let found = root.retried(&path, || {
                count += 1;
                if count > times {
                    root.open_by_kernel(&path, rustix::fs::ResolveFlags::empty())
                } else {
                    Err(Unresolved::Fault(errno))
                }
            });
            (seen(found), count)
        };
        let root = open(Links::Beneath);
        assert_eq!(answers(&root, Errno::AGAIN, 2), (file("file"), 3));
        assert_eq!(answers(&root, Errno::AGAIN, 100), (file("file"), 4));
        assert_eq!(answers(&root, Errno::NOSYS, 100), (file("file"), 1));
        assert_eq!(answers(&root, Errno::IO, 100), (Seen::Nothing(Unresolved::Fault(Errno::IO)), 1));
        let never = Seen::Nothing(Unresolved::Fault(Errno::AGAIN));
        assert_eq!(answers(&open(Links::Follow), Errno::AGAIN, 100), (never, 4));
    }

    #[test]
    fn a_mount_of_another_file_system_is_another_one_also_before_the_system_tells() {
        let folder = Folder::new();
        folder.file("a/file");
        let look = |path: &std::path::Path| {
            statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::MNT_ID).unwrap()
        };
        let tells = [look(&folder.path("")), look(&folder.path("a")), look(std::path::Path::new("/proc/self"))];
        let older = tells.map(|mut found| {
            found.stx_mask &= !StatxFlags::MNT_ID.bits();
            found.stx_mnt_id = 0;
            found
        });
        for [root, below, other] in [tells, older] {
            assert_eq!(mount(&root), mount(&below));
            assert_ne!(mount(&root), mount(&other));
        }
    }

    #[test]
    fn files_do_not_pass_to_children() {
        let folder = Folder::new();
        folder.file("a/file");
        for root in ALL.into_iter().flat_map(|links| folder.roots(links)) {
            let Found::File { file, .. } = root.resolve(&relative("a/file")).unwrap() else { panic!("it is a file") };
            assert!(rustix::io::fcntl_getfd(file).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        }
    }

    #[test]
    fn names_are_split_at_slashes() {
        let cases: [(&str, &str, &str); 7] = [
            ("", "", ""),
            ("/", "", ""),
            ("a", "a", ""),
            ("a/", "a", "/"),
            ("//a//b", "a", "//b"),
            ("/../b/", "..", "/b/"),
            ("///", "", ""),
        ];
        for (path, name, after) in cases {
            assert_eq!(split_first(path.as_bytes()), (name.as_bytes(), after.as_bytes()), "{path}");
        }
    }

    #[test]
    fn errors_are_told_by_what_they_mean() {
        assert_eq!(Unresolved::from(Errno::MFILE), Unresolved::Fault(Errno::MFILE));
        assert_eq!(Unresolved::from(Errno::NXIO), Unresolved::Special);
        assert_eq!(Unresolved::from(Errno::NAMETOOLONG), Unresolved::Missing);
    }

    /// Others exchange a folder and a link that leads out of the root, and a file and such a link, all the time.
    #[test]
    fn content_from_outside_is_never_returned_whoever_changes_the_folder() {
        let folder = Folder::new();
        create_dir_all(folder.0.join("outside/inner")).unwrap();
        for name in ["outside/file", "outside/inner/file", "file"] {
            write(folder.0.join(name), "secret").unwrap();
        }
        folder.file("a/inner/file");
        folder.file("file");
        folder.link("a/inner/up", "../inner/file");
        folder.link("a-out", "../outside");
        folder.link("file-out", "../file");
        folder.file("plain");
        mknodat(CWD, folder.path("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let stop = AtomicBool::new(false);
        let exchange = |one: &str, other: &str| {
            renameat_with(CWD, folder.path(one), CWD, folder.path(other), RenameFlags::EXCHANGE).unwrap();
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    exchange("a", "a-out");
                    exchange("file", "file-out");
                    exchange("plain", "pipe");
                    // Out of the root, and back: a walk that is in it must not come out by its `..`.
                    let inner = ["a/inner", "a-out/inner"].map(|name| folder.path(name));
                    if let Some(inner) = inner.iter().find(|path| path.join("up").is_symlink()) {
                        rename(inner, folder.0.join("outside/moved")).unwrap();
                        rename(folder.0.join("outside/moved"), inner).unwrap();
                    }
                }
            });
            let outcomes = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let mut found = [0; 2];
                for links in [Links::Beneath, Links::Never] {
                    for (index, root) in folder.roots(links).into_iter().enumerate() {
                        let before = found[index];
                        // Until enough files are found: how often, is up to the thread that renames.
                        for round in 0..200_000 {
                            if round >= 1000 && found[index] - before > 50 {
                                break;
                            }
                            for path in ["a/inner/file", "file", "a/inner/up", "a/file", "plain"] {
                                match seen(root.resolve(&relative(path))) {
                                    Seen::File(text) => {
                                        assert_ne!(text, "secret", "{path} with {links:?}");
                                        found[index] += 1;
                                    }
                                    Seen::Directory(_) => panic!("{path} is no folder"),
                                    Seen::Nothing(Unresolved::Missing | Unresolved::Link) => {}
                                    Seen::Nothing(Unresolved::Special) if path == "plain" => {}
                                    // One who renames all the time can keep others from an answer.
                                    Seen::Nothing(Unresolved::Fault(Errno::AGAIN)) => {}
                                    Seen::Nothing(other) => panic!("{path}: {other:?}"),
                                }
                            }
                        }
                    }
                }
                found
            }));
            stop.store(true, Ordering::Relaxed);
            let found = outcomes.unwrap();
            assert!(found.iter().all(|&count| count > 50), "{found:?}");
        });
        // The same paths give the secret where links are followed.
        if folder.path("file").is_symlink() {
            exchange("file", "file-out");
        }
        assert_eq!(folder.resolve(Links::Follow, "file-out"), file("secret"));
    }

    /// What a random tree consists of.
    #[derive(Clone, Debug)]
    enum Entry {
        File,
        Directory,
        Link(String),
        Absolute(String),
    }

    fn name() -> impl Strategy<Value = String> {
        prop_oneof![Just("a"), Just("b"), Just("c"), Just("d")].prop_map(str::to_owned)
    }

    fn names(most: usize) -> impl Strategy<Value = String> {
        vec(name(), 1..=most).prop_map(|names| names.join("/"))
    }

    fn target() -> impl Strategy<Value = String> {
        let part = prop_oneof![6 => name(), 3 => Just("..".to_owned()), 1 => Just(".".to_owned())];
        let end = prop_oneof![5 => Just(""), 1 => Just("/")];
        (vec(part, 1..6), end).prop_map(|(parts, end)| format!("{}{end}", parts.join("/")))
    }

    fn entry() -> impl Strategy<Value = (String, Entry)> {
        let kind = prop_oneof![
            2 => Just(Entry::File),
            2 => Just(Entry::Directory),
            5 => target().prop_map(Entry::Link),
            1 => names(3).prop_map(Entry::Absolute),
        ];
        (names(3), kind)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn the_walk_and_the_kernel_agree(
            entries in vec(entry(), 1..14),
            paths in vec((names(4), prop_oneof![4 => Just(""), 1 => Just("/")]), 1..24),
        ) {
            let folder = Folder::new();
            // What links can lead to if they leave the root.
            for outside in ["a", "b/a", "c"] {
                create_dir_all(folder.0.join(outside).parent().unwrap()).unwrap();
                write(folder.0.join(outside), "outside").unwrap();
            }
            for (name, entry) in &entries {
                // Names may be taken, or go through a link.
                let _ = create_dir_all(folder.path(name).parent().unwrap());
                let path = folder.path(name);
                let inside = path.parent().unwrap().canonicalize();
                if !inside.is_ok_and(|inside| inside.starts_with(folder.path("").canonicalize().unwrap())) {
                    continue;
                }
                let _ = match entry {
                    Entry::File => if path.symlink_metadata().is_err() { write(&path, name) } else { Ok(()) },
                    Entry::Directory => create_dir(&path),
                    Entry::Link(target) => symlink(target, &path),
                    Entry::Absolute(target) => symlink(folder.path(target), &path),
                };
            }
            let made = entries.iter().map(|(name, _)| (name, &""));
            for (name, end) in made.chain(paths.iter().map(|(name, end)| (name, end))) {
                let path = relative(&format!("{name}{end}"));
                for links in ALL {
                    let [kernel, walk] = folder.roots(links).map(|root| seen(root.resolve(&path)));
                    prop_assert_eq!(&kernel, &walk, "{}{} with {:?}", name, end, links);
                    if links != Links::Follow {
                        prop_assert!(kernel != file("outside"));
                    }
                }
            }
        }
    }
}
