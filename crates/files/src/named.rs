//! Files that the application names, in `X-Sendfile` or `X-Accel-Redirect`, in place of a body of its own.
//!
//! The application has run and its thread is released, the request is dispatched again, and its
//! exchange has the application's head
//! and its field. It is looked up at once if the system has all that it needs in memory,
//! otherwise by a disk thread. Nothing is kept: whoever may have a file is decided for each request, and a file that
//! was replaced is sent as it is now.
//!
//! Called by the owner of a connection, or by a disk thread.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tailrace_http::conditional::http_date;
use tailrace_http::encode::ResponseHead;
use tailrace_http::named_file::{names, readings};
use tailrace_http::static_path::{DotFiles, PathError, RelativePath, decode, encode};
use tailrace_observe::level::Level;
use tailrace_os::clock::{Millis, monotonic_millis};
use tailrace_os::sync::lock;
use tailrace_server::Delegation;
use tailrace_server::Disk;
use tailrace_server::Exchange;
use tailrace_server::Share;
use tailrace_server::representation::{send, send_error};
use tailrace_server::{Disposition, Responder};

use crate::config::{Mount, NamedBy, NamedFolder, StaticConfig};
use crate::entry::CodedFile;
use crate::folders::REOPEN;
use crate::lookup::{Lookup, MustWait, Place, Purpose, Wait};
use crate::resolve::{Found, Root, Unresolved, real_path};
use crate::slab::Slab;

/// Characters of a name that the log shows.
const SHOWN: usize = 300;
/// What to do about a fault of the system.
const OF_SYSTEM: &str = "look at its disk, and at the limits of this process";
/// What a coded file's name ends with. The application may say the coding of such a file.
const CODED: [(&str, &str); 8] = [
    ("gzip", ".gz"),
    ("gzip", ".tgz"),
    ("gzip", ".svgz"),
    ("br", ".br"),
    ("zstd", ".zst"),
    ("bzip2", ".bz2"),
    ("xz", ".xz"),
    ("compress", ".Z"),
];

/// Any thread.
#[derive(Clone)]
pub(crate) struct NamedFiles(Arc<NamedParts>);

struct NamedParts {
    config: StaticConfig,
    /// The place of all files, for what files of a mount have and these do not.
    mount: Mount,
    folders: Vec<OpenFolder>,
    slab: Option<Arc<Slab>>,
    /// The disk threads that look for the files, and read them.
    share: Arc<Share>,
}

struct OpenFolder {
    named: NamedFolder,
    opened: Mutex<FolderSnapshot>,
}

/// A folder at one moment.
#[derive(Clone)]
struct FolderSnapshot {
    /// `None`: it does not exist.
    root: Option<Arc<Root>>,
    /// What the path of a file in it begins with, each with a slash at its end: the folder's own path as it was given,
    /// and without symbolic links; or the prefix.
    starts: Vec<String>,
    since: Millis,
}

/// A file that the application has named.
struct NamedFile {
    by: NamedBy,
    /// The value of the field, in the characters that the application gave.
    value: String,
}

impl NamedFile {
    /// `None`: another responder is asked.
    fn of(delegation: Delegation) -> Option<Self> {
        let by = [NamedBy::Sendfile, NamedBy::AccelRedirect].into_iter().find(|by| by.field() == delegation.field)?;
        Some(Self { by, value: delegation.value })
    }
}

/// A file that is not sent, and why.
struct Refused {
    reason: String,
    status: u16,
}

impl NamedFiles {
    /// Opens the folders.
    ///
    /// # Errors
    /// One cannot be opened; the error names it.
    pub(crate) fn new(config: &StaticConfig, disk: Arc<Disk>) -> io::Result<Self> {
        // The application has chosen this file, and no other one for it.
        let config = StaticConfig { precompressed: false, compress: false, ..config.clone() };
        let mut folders = Vec::new();
        for named in config.named.clone() {
            let opened = Mutex::new(FolderSnapshot::new(&named, &config)?);
            folders.push(OpenFolder { named, opened });
        }
        let mount = Mount { prefix: String::new(), folder: Path::new("/").to_owned(), is_overlay: false };
        Ok(Self(Arc::new(NamedParts { config, mount, folders, slab: Slab::new().ok(), share: Share::new(disk) })))
    }
}

impl Responder for NamedFiles {
    fn respond(&self, exchange: Exchange) -> Disposition {
        Disposition::Passed(exchange)
    }

    fn delegation_fields(&self) -> &'static [&'static str] {
        self.0.config.naming_fields()
    }

    fn respond_after(&self, mut exchange: Exchange) -> Disposition {
        let Some(named) = exchange.take_delegation().and_then(NamedFile::of) else {
            return Disposition::Passed(exchange);
        };
        let shared = &self.0;
        if let Ok(()) = shared.respond(&mut exchange, &named, Wait::No) {
            return Disposition::Done(exchange.finish_here());
        }
        let again = shared.clone();
        shared.share.run(move || {
            let mut exchange = exchange;
            // It waits for whatever it has to.
            let _ = again.respond(&mut exchange, &named, Wait::Yes);
            exchange.finish_by_io();
        });
        Disposition::Taken
    }
}

impl NamedParts {
    fn respond(&self, exchange: &mut Exchange, named: &NamedFile, wait: Wait) -> Result<(), MustWait> {
        let mut refused = None;
        for text in readings(&named.value) {
            match self.find(named.by, &text, wait)? {
                Ok((name, lookup)) => {
                    self.send(exchange, &name, &lookup);
                    return Ok(());
                }
                Err(refusal) => {
                    refused.get_or_insert(refusal);
                }
            }
        }
        // The reason may take a look at the disk.
        if wait == Wait::No {
            return Err(MustWait);
        }
        if let Some(Refused { reason, status }) = refused {
            let shown: String = named.value.chars().take(SHOWN).collect();
            let dots = if shown.len() < named.value.len() { "..." } else { "" };
            let (request, field) = (exchange.request_line(), named.by.field());
            let message = format!("{request}: {field} names {shown:?}{dots}, {reason}; answered {status}");
            exchange.log(Level::Error, &message);
            let sentence = if status == 404 { "There is no such file." } else { "The server cannot read the file." };
            let retry: &[(&str, &str)] = if status == 404 { &[] } else { &[("Retry-After", "1")] };
            send_error(exchange, status, sentence, retry);
        }
        Ok(())
    }

    /// The file that a text names, and its path.
    fn find(&self, by: NamedBy, text: &str, wait: Wait) -> Result<Result<(String, Lookup), Refused>, MustWait> {
        let not_found = |reason: String| Ok(Err(Refused { reason, status: 404 }));
        let whole = match path_of(by, text) {
            Ok(whole) => whole,
            Err(reason) => return not_found(reason),
        };
        let folders = self.folders.iter().filter(|folder| folder.named.by() == by);
        let mut found: Option<(&OpenFolder, FolderSnapshot, &str)> = None;
        for folder in folders.clone() {
            let opened = self.opened(folder, wait)?;
            if let Some(rest) = opened.below(&whole)
                && found.as_ref().is_none_or(|(_, _, longer)| rest.len() < longer.len())
            {
                found = Some((folder, opened, rest));
            }
        }
        let Some((folder, opened, rest)) = found else {
            let known: Vec<_> = folders.map(OpenFolder::shown).collect();
            return not_found(format!(
                "which is in no folder of --sendfile-root ({}): add its folder, or correct the path",
                known.join(", ")
            ));
        };
        let path = match decode(format!("/{}", encode(rest)).as_bytes(), DotFiles::Allowed) {
            Ok(path) => path,
            Err(error) => return not_found(unfit(error).to_owned()),
        };
        let Some(root) = opened.root else {
            return not_found(format!(
                "but the folder {} does not exist: create it again",
                folder.named.folder.display()
            ));
        };
        let (config, mount, slab) = (&self.config, &self.mount, self.slab.as_ref());
        let place = Place { config, mount, root: &root, slab, share: &self.share, wait };
        let is_folder = || String::from("which is a folder: name a file");
        match place.find(&path, Purpose { status: "200 OK", known: None })? {
            lookup @ Lookup::Entry(_) if !path.is_directory_form() => Ok(Ok((path.as_str().to_owned(), lookup))),
            Lookup::Entry(_) | Lookup::Redirect => not_found(is_folder()),
            Lookup::Missing if wait == Wait::No => Err(MustWait),
            Lookup::Missing => not_found(why(&root, &path).unwrap_or_else(is_folder)),
            Lookup::Fault(fault) => {
                Ok(Err(Refused { reason: format!("which cannot be read: {fault}; {OF_SYSTEM}"), status: 503 }))
            }
        }
    }

    /// The folder, opened again from time to time.
    fn opened(&self, folder: &OpenFolder, wait: Wait) -> Result<FolderSnapshot, MustWait> {
        let opened = lock(&folder.opened).clone();
        if opened.root.is_some() && monotonic_millis().saturating_sub(opened.since) < REOPEN {
            return Ok(opened);
        }
        if wait == Wait::No {
            return Err(MustWait);
        }
        let again = FolderSnapshot::new(&folder.named, &self.config);
        let opened = again.unwrap_or_else(|_| FolderSnapshot { root: None, since: monotonic_millis(), ..opened });
        *lock(&folder.opened) = opened.clone();
        Ok(opened)
    }

    /// Responds with a file, by the head that the application has given.
    fn send(&self, exchange: &mut Exchange, name: &str, lookup: &Lookup) {
        let Lookup::Entry(entry) = lookup else { return };
        let Some(file) = entry.of(tailrace_http::coding::Coding::Identity) else { return };
        // A field that was accepted before, or is the server's own, is refused for want of memory alone. Then the
        // response is a 500.
        if complete(exchange.response_mut().head(), name, file).is_ok() {
            _ = send(exchange, &file.body, file.length);
        } else {
            exchange.response_mut().head().clear();
        }
    }
}

impl OpenFolder {
    /// As it stands in the option.
    fn shown(&self) -> String {
        let folder = self.named.folder.display();
        match &self.named.prefix {
            Some(prefix) => format!("{}={folder}", if prefix.is_empty() { "/" } else { prefix }),
            None => folder.to_string(),
        }
    }
}

impl FolderSnapshot {
    fn new(named: &NamedFolder, config: &StaticConfig) -> io::Result<Self> {
        let folder = &named.folder;
        let root = Root::open(folder, config.symlinks)
            .map_err(|fault| io::Error::new(fault.kind(), format!("{}: {fault}", folder.display())))?;
        let start = |path: &str| format!("{}/", path.trim_end_matches('/'));
        let starts = match &named.prefix {
            Some(prefix) => vec![start(prefix)],
            // A folder whose own name is not UTF-8 has no files for names that are.
            None => [Some(folder.clone()), real_path(folder)]
                .iter()
                .flatten()
                .filter_map(|path| path.to_str())
                .map(start)
                .collect(),
        };
        Ok(Self { root: Some(Arc::new(root)), starts, since: monotonic_millis() })
    }

    /// The rest of a path in this folder.
    fn below<'a>(&self, whole: &'a str) -> Option<&'a str> {
        self.starts.iter().find_map(|start| whole.strip_prefix(start.as_str()))
    }
}

/// Adds to the application's head what the file says of itself and the application does not.
fn complete(head: &mut ResponseHead, name: &str, file: &CodedFile) -> Result<(), tailrace_http::encode::HeadFault> {
    // With 206 the application has read the Range field itself, and so does the server now.
    let status = (head.status_code() != 200).then_some(b"200 OK".as_slice());
    let coding = head.only(b"Content-Encoding").map(<[u8]>::to_vec).unwrap_or_default();
    let is_coded =
        CODED.iter().any(|(one, ending)| name.ends_with(ending) && coding.eq_ignore_ascii_case(one.as_bytes()));
    head.rewrite(status, |field| {
        !field.eq_ignore_ascii_case(b"Content-Range") && (is_coded || !field.eq_ignore_ascii_case(b"Content-Encoding"))
    })?;
    let validators = file.validators();
    let modified = validators.modified.map(http_date);
    let own = [
        ("Content-Type", Some(file.media_type.as_bytes())),
        ("ETag", validators.etag),
        ("Last-Modified", modified.as_deref().map(str::as_bytes)),
    ];
    for (field, value) in own {
        if let Some(value) = value
            && !head.has(field.as_bytes())
        {
            head.field(field.as_bytes(), value)?;
        }
    }
    Ok(())
}

/// The path that a text names, decoded, from the slash on.
fn path_of(by: NamedBy, text: &str) -> Result<String, String> {
    match by {
        NamedBy::Sendfile => match names(text) {
            Some(names) => Ok(format!("/{}", names.join("/"))),
            None if !text.starts_with('/') => Err(String::from("which is not an absolute path: begin at the root")),
            None if text.split('/').any(|name| name == "..") => {
                Err(String::from("which has \"..\": name the file itself"))
            }
            None => Err(String::from("which is a folder: name a file")),
        },
        NamedBy::AccelRedirect => {
            let path = text.split('?').next().unwrap_or_default();
            if !path.starts_with('/') {
                return Err(String::from("which is not a URL path: begin it with a slash"));
            }
            match decode(path.as_bytes(), DotFiles::Allowed) {
                Ok(path) if path.is_directory_form() => Err(String::from("which is a folder: name a file")),
                Ok(path) => Ok(format!("/{}", path.as_str())),
                Err(error) => Err(unfit(error).to_owned()),
            }
        }
    }
}

/// Why a path leads to no file. `None`: it leads to a folder.
fn why(root: &Root, path: &RelativePath) -> Option<String> {
    let reason = match root.resolve(path) {
        Ok(Found::Directory { .. }) => return None,
        Ok(Found::File { .. }) => {
            "which was not there when it was looked up, and is now: create it before a response names it"
        }
        Err(Unresolved::Missing) => {
            "which does not exist: correct the name, or create the file before a response names it"
        }
        Err(Unresolved::Forbidden) => "which this user cannot read: grant access",
        Err(Unresolved::Link) => {
            "which is or passes a symbolic link that leaves the folder or begins with a slash: name the file itself, or \
             see --static-symlinks"
        }
        Err(Unresolved::Special) => "which is not a regular file: name one",
        Err(Unresolved::Fault(errno)) => return Some(format!("which cannot be read: {errno}; {OF_SYSTEM}")),
    };
    Some(reason.to_owned())
}

fn unfit(error: PathError) -> &'static str {
    match error {
        PathError::Malformed => "which has a % without two hexadecimal digits: percent-encode the path once",
        PathError::Control => "which has a control character: remove it from the file's name",
        PathError::NotUtf8 => "which is not UTF-8: encode the path as UTF-8, then percent-encode it",
        PathError::DotSegment => "which has \".\" or \"..\": name the file itself",
        PathError::Separator => "which has an encoded slash or a backslash: write a plain slash",
        PathError::EmptySegment => "which has two slashes in a row: write one",
        PathError::TooLong => "which is longer than the path of any file: shorten it",
        PathError::DotFile | PathError::NotBelow => "which names no file: name one",
    }
}
