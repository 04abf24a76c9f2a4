//! From a path to an entry: finds the file and its compressed siblings, and reads what is kept in memory.
//!
//! What would wait for a disk is not done on the thread that polls: see [`Wait`].

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use tailrace_http::coding::Coding;
use tailrace_http::static_path::RelativePath;
use tailrace_os::clock::{since_wall, sleep};
use tailrace_os::file::{read_at, read_from_memory};
use tailrace_server::FileSource;
use tailrace_server::Share;

use crate::candidates::Candidates;
use crate::compress::is_candidate;
use crate::config::{Mount, StaticConfig};
use crate::entry::{CodedFile, Description, Entry, FileBody, OpenFile};
use crate::resolve::{Found, Metadata, Root, Unresolved};
use crate::slab::Slab;
use crate::types;

/// A file up to this size is kept in memory whole. A larger one is sent from its descriptor.
const MAX_IN_MEMORY: u64 = 64 << 10;
/// Suffixes of compressed siblings, the best first.
const SIBLINGS: [(&str, Coding); 3] = [(".br", Coding::Brotli), (".zst", Coding::Zstd), (".gz", Coding::Gzip)];
/// A file that was changed so recently may be changed again without another time of change, which the system counts in
/// steps of up to 10 ms. Programs set the time when the content was changed, but not that of the status, which every
/// change of the content changes, too.
const UNSETTLED: Duration = Duration::from_millis(20);
/// How long a file is unsettled where the file system seems to count in seconds, of which FAT has only every second one.
const UNSETTLED_SECONDS: Duration = Duration::from_secs(3);
/// How often a file is read that is changed meanwhile. Then it is sent without validators.
const TRIES: usize = 3;

/// Whether a look-up may wait for a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// It may not: what is not in memory makes it give up.
    No,
    /// It may: the thread is one for that.
    Yes,
}

/// The look-up cannot be done without waiting for a disk.
#[derive(Debug)]
pub(super) struct MustWait;

/// What a path leads to.
pub(super) enum Lookup {
    /// A file.
    Entry(Arc<Entry>),
    /// A folder, whose path has no slash at the end.
    Redirect,
    /// Nothing that may be served.
    Missing,
    /// The system could not tell, because of this.
    Fault(String),
}

/// Where files are looked up.
pub(super) struct Place<'a> {
    pub(super) config: &'a StaticConfig,
    pub(super) mount: &'a Mount,
    pub(super) root: &'a Root,
    /// Where larger bodies are kept. `None`: beside the smaller ones.
    pub(super) slab: Option<&'a Arc<Slab>>,
    /// The disk threads that read the files that are sent from their descriptors.
    pub(super) share: &'a Arc<Share>,
    pub(super) wait: Wait,
}

/// What a file is looked up for.
#[derive(Clone, Copy)]
pub(super) struct Purpose<'a> {
    pub(super) status: &'a str,
    /// What is known of the same file: what has not changed of it is used again.
    pub(super) known: Option<&'a Entry>,
}

impl Place<'_> {
    /// Looks up what a path leads to.
    pub(super) fn find(&self, path: &RelativePath, purpose: Purpose<'_>) -> Result<Lookup, MustWait> {
        match self.resolve(path)? {
            Ok(Found::File { file, metadata }) => self.entry(path, file, metadata, purpose),
            // An overlay has files alone: what is a folder's belongs to the application.
            Ok(Found::Directory { .. }) if self.mount.is_overlay => Ok(Lookup::Missing),
            Ok(Found::Directory { .. }) if !path.is_directory_form() => Ok(Lookup::Redirect),
            Ok(Found::Directory { .. }) => self.index(path, purpose),
            Err(Unresolved::Fault(errno)) => Ok(Lookup::Fault(errno.to_string())),
            Err(_) => Ok(Lookup::Missing),
        }
    }

    fn index(&self, path: &RelativePath, purpose: Purpose<'_>) -> Result<Lookup, MustWait> {
        for index in self.config.index.iter().filter_map(|name| path.child(name)) {
            if let Ok(Found::File { file, metadata }) = self.resolve(&index)? {
                return self.entry(&index, file, metadata, purpose);
            }
        }
        Ok(Lookup::Missing)
    }

    fn resolve(&self, path: &RelativePath) -> Result<Result<Found, Unresolved>, MustWait> {
        match self.wait {
            Wait::Yes => Ok(self.root.resolve(path)),
            Wait::No => self.root.resolve_from_memory(path).ok_or(MustWait),
        }
    }

    fn entry(
        &self,
        path: &RelativePath,
        file: std::fs::File,
        metadata: Metadata,
        purpose: Purpose<'_>,
    ) -> Result<Lookup, MustWait> {
        let name = path.as_str().rsplit('/').next().unwrap_or_default();
        let media_type = types::media_type(name, &self.config.types);
        let mut siblings = Vec::new();
        if self.config.precompressed {
            for (suffix, coding) in SIBLINGS {
                if let Some(path) = path.with_suffix(suffix)
                    && let Ok(Found::File { file, metadata: of_sibling }) = self.resolve(&path)?
                    && !is_older(&of_sibling, &metadata)
                {
                    siblings.push((coding, file, of_sibling));
                }
            }
        }
        // That of the file, which is not that of the request for an index.
        let url = format!("{}/{}", self.mount.prefix, path.as_str());
        let is_page = purpose.status.starts_with("200");
        let is_compressed = self.config.compress && is_page && is_candidate(&media_type, metadata.size);
        let mut described = Description {
            status: purpose.status,
            media_type: &media_type,
            cache_control: if is_page { self.config.cache_control(&url) } else { "no-store" },
            varies: is_compressed || !siblings.is_empty(),
            validators: is_page,
            is_changing: false,
        };
        let Some(identity) = self.representation(Coding::Identity, file, metadata, &mut described, purpose)? else {
            return Ok(Lookup::Fault(String::from("it cannot be read")));
        };
        let mut others = Vec::new();
        for (coding, file, metadata) in siblings {
            others.extend(self.representation(coding, file, metadata, &mut described, purpose)?);
        }
        let metadata = identity.metadata;
        let mut entry = Entry::new(identity, others, described.is_changing);
        if is_compressed && !described.is_changing {
            // What was made of the same version of the file is used again.
            let known = purpose
                .known
                .filter(|known| known.of(Coding::Identity).is_some_and(|identity| identity.metadata == metadata));
            for made in known.into_iter().flat_map(Entry::made) {
                if entry.of(made.coding).is_none() {
                    entry = entry.with(made.clone());
                }
            }
            let candidates = known.and_then(Entry::candidates).cloned();
            entry =
                entry.with_candidates(candidates.or_else(|| Some(Arc::new(Candidates::new(described.cache_control)))));
        }
        Ok(Lookup::Entry(Arc::new(entry)))
    }

    /// A file in one coding. `None`: it cannot be read.
    fn representation(
        &self,
        coding: Coding,
        file: std::fs::File,
        mut metadata: Metadata,
        described: &mut Description<'_>,
        purpose: Purpose<'_>,
    ) -> Result<Option<CodedFile>, MustWait> {
        if let Some(known) = purpose.known.and_then(|known| known.of(coding))
            && known.metadata == metadata
            && purpose.known.is_some_and(|known| !known.is_changing)
            && known.has_validators() == described.validators
        {
            return Ok(Some(CodedFile::new(coding, known.body.clone(), metadata, described)));
        }
        for _ in 0..TRIES {
            let body = if metadata.size > MAX_IN_MEMORY {
                None
            } else {
                match self.read(&file, metadata.size)? {
                    Some(bytes) => Some(FileBody::in_memory(bytes, self.slab)),
                    None => return Ok(None),
                }
            };
            let Ok(now) = Metadata::of(file.as_fd()) else { return Ok(None) };
            if now == metadata && !is_unsettled(&metadata) {
                let body = body.unwrap_or_else(|| self.open(OpenFile::new(file, metadata)));
                return Ok(Some(CodedFile::new(coding, body, metadata, described)));
            }
            if self.wait == Wait::No {
                return Err(MustWait);
            }
            sleep(UNSETTLED);
            let Ok(now) = Metadata::of(file.as_fd()) else { return Ok(None) };
            metadata = now;
        }
        // Somebody writes to it all the time, as to a log. What is there now is sent, and nobody is told that it stays.
        described.validators = false;
        described.is_changing = true;
        let body = if metadata.size > MAX_IN_MEMORY {
            Some(self.open(OpenFile::changing(file, metadata)))
        } else {
            self.read(&file, metadata.size)?.map(|bytes| FileBody::in_memory(bytes, self.slab))
        };
        Ok(body.map(|body| CodedFile::new(coding, body, metadata, described)))
    }

    fn open(&self, file: OpenFile) -> FileBody {
        let is_remote = self.root.is_remote(file.descriptor());
        FileBody::File(Arc::new(file.within(self.share.clone(), is_remote)))
    }

    /// The first `size` bytes of a file, or all if it is shorter. `None`: it cannot be read.
    fn read(&self, file: &std::fs::File, size: u64) -> Result<Option<Vec<u8>>, MustWait> {
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        let mut length = 0;
        while length < bytes.len() {
            let rest = &mut bytes[length..];
            let count = match self.wait {
                Wait::No => read_from_memory(file.as_fd(), rest, length as u64).ok_or(MustWait)?,
                Wait::Yes => match read_at(file.as_fd(), rest, length as u64) {
                    Ok(count) => count,
                    Err(_) => return Ok(None),
                },
            };
            if count == 0 {
                break;
            }
            length += count;
        }
        bytes.truncate(length);
        Ok(Some(bytes))
    }
}

/// True when a sibling was made for an earlier version of the file. Some compressors set the time of change to that of
/// the file, without its part of a second.
fn is_older(sibling: &Metadata, file: &Metadata) -> bool {
    let is_rounded = sibling.modified == file.modified && sibling.modified_nanoseconds == 0;
    let time = |metadata: &Metadata| (metadata.modified, metadata.modified_nanoseconds);
    time(sibling) < time(file) && !is_rounded
}

/// True when a change that follows might leave the time of change as it is.
fn is_unsettled(metadata: &Metadata) -> bool {
    let least = if metadata.changed_nanoseconds == 0 { UNSETTLED_SECONDS } else { UNSETTLED };
    since_wall(metadata.changed, metadata.changed_nanoseconds).is_some_and(|age| age < least)
}
