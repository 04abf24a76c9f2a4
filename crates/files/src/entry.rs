//! A file as it is sent: its representations, and the heads of their responses.
//!
//! An entry is never changed: when its file changes, another entry takes its place. Any thread.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tailrace_http::coding::{Coding, preferred};
use tailrace_http::conditional::{Validators, http_date, validator_time};
use tailrace_http::encode::ResponseHead;
use tailrace_http::request_head::RequestHead;
use tailrace_os::clock::{Millis, monotonic_millis, wall_seconds};
use tailrace_os::file::{is_in_memory, read_ahead};
use tailrace_os::sync::lock;
use tailrace_server::Share;
use tailrace_server::{FileSource, Readiness, Then};

use crate::candidates::{Candidates, Claim};
use crate::compress::CODINGS;
use crate::resolve::Metadata;
use crate::slab::{Extent, OwnFile, Slab};

/// All codings but that of the file itself.
const BEST_FIRST: [Coding; 3] = [Coding::Brotli, Coding::Zstd, Coding::Gzip];

/// From this size on, copying the bytes into the socket takes longer than one more system call does.
const FROM_EXTENT: usize = 12 * 1024;
/// How far apart the bytes are of which it is asked whether they are in memory: the system reads more at once.
const PROBES: usize = 64 * 1024;
/// A file whose bytes have all been found in memory is not asked again for this long (milliseconds).
const FRESH: Millis = 1_000;
/// Parts of a file that were read for as many responses, at most, and are not sent yet.
const UNSENT: usize = 1_024;

pub(super) struct Entry {
    /// The file itself, and then what there is in other codings.
    representations: Vec<CodedFile>,
    /// Those codings, the best first.
    codings: Vec<Coding>,
    /// The file changes all the time: what is known of it says nothing about what it is later.
    pub(super) is_changing: bool,
    /// `None`: the file is not compressed.
    candidates: Option<Arc<Candidates>>,
}

impl Entry {
    /// An entry of the file itself and of its other representations, the best first.
    pub(super) fn new(identity: CodedFile, others: Vec<CodedFile>, is_changing: bool) -> Self {
        let codings = others.iter().map(|other| other.coding).collect();
        let representations = std::iter::once(identity).chain(others).collect();
        Self { representations, codings, is_changing, candidates: None }
    }

    /// This entry, whose file is compressed in these codings when clients want them.
    pub(super) fn with_candidates(self, candidates: Option<Arc<Candidates>>) -> Self {
        Self { candidates, ..self }
    }

    /// What was made by compressing the file.
    pub(super) fn made(&self) -> impl Iterator<Item = &CodedFile> {
        self.representations.iter().filter(|one| one.is_made)
    }

    /// This entry with another representation.
    pub(super) fn with(&self, made: CodedFile) -> Self {
        let mut others: Vec<_> = self.representations.iter().skip(1).cloned().chain([made]).collect();
        others.sort_by_key(|other| BEST_FIRST.iter().position(|&coding| coding == other.coding));
        let new = Self::new(self.representations[0].clone(), others, self.is_changing);
        new.with_candidates(self.candidates.clone())
    }

    pub(super) fn candidates(&self) -> Option<&Arc<Candidates>> {
        self.candidates.as_ref()
    }

    /// The claim to a coding that the client would rather have than those that there are. The caller has to see to it
    /// that the file is compressed.
    pub(super) fn claim(&self, head: &RequestHead, bytes: &[u8]) -> Option<Claim> {
        let candidates = self.candidates.as_ref()?;
        let is_missing = |coding| self.of(coding).is_none() && candidates.is_possible(coding);
        if !CODINGS.into_iter().any(is_missing) {
            return None;
        }
        let (mut codings, mut count) = (BEST_FIRST, 0);
        for coding in BEST_FIRST {
            if is_missing(coding) || self.of(coding).is_some() {
                codings[count] = coding;
                count += 1;
            }
        }
        let wanted = preferred(head.values(bytes, b"Accept-Encoding"), &codings[..count]);
        if is_missing(wanted) { candidates.claim(wanted) } else { None }
    }

    /// The representation that the client prefers.
    pub(super) fn choose(&self, head: &RequestHead, bytes: &[u8]) -> Option<&CodedFile> {
        let coding = if self.codings.is_empty() {
            Coding::Identity
        } else {
            preferred(head.values(bytes, b"Accept-Encoding"), &self.codings)
        };
        self.of(coding)
    }

    /// The representation in this coding.
    pub(super) fn of(&self, coding: Coding) -> Option<&CodedFile> {
        self.representations.iter().find(|representation| representation.coding == coding)
    }

    /// None of its open files has been changed. Those in memory are what they were.
    pub(super) fn is_current(&self) -> bool {
        self.representations.iter().all(|one| match &one.body {
            FileBody::File(file) => file.is_unchanged(),
            FileBody::Memory(_) | FileBody::Extent(..) => true,
        })
    }

    /// The memory of it, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.representations.iter().map(CodedFile::memory).sum()
    }

    /// The open files of it.
    pub(super) fn descriptors(&self) -> usize {
        self.representations.iter().filter(|one| matches!(one.body, FileBody::File(_))).count()
    }
}

/// What the fields of a representation's head depend on.
pub(super) struct Description<'a> {
    /// The status line.
    pub(super) status: &'a str,
    pub(super) media_type: &'a str,
    /// Empty: no such field.
    pub(super) cache_control: &'a str,
    /// There are representations in other codings.
    pub(super) varies: bool,
    /// Without it the file changes too quickly to be identified, or the response is an error.
    pub(super) validators: bool,
    /// It changes all the time.
    pub(super) is_changing: bool,
}

/// The bytes of a representation.
#[derive(Clone)]
pub(super) enum FileBody {
    Memory(Arc<Vec<u8>>),
    /// In memory, for `sendfile`; its length.
    Extent(Arc<Extent>, u64),
    File(Arc<OpenFile>),
}

impl FileBody {
    /// These bytes. slab: where larger ones are kept; `None`: beside the smaller ones.
    pub(super) fn in_memory(bytes: Vec<u8>, slab: Option<&Arc<Slab>>) -> Self {
        if bytes.len() >= FROM_EXTENT
            && let Some(slab) = slab
            && let Ok(extent) = slab.keep(&bytes)
        {
            return Self::Extent(Arc::new(extent), bytes.len() as u64);
        }
        Self::Memory(Arc::new(bytes))
    }
}

/// A file in one coding.
#[derive(Clone)]
pub(super) struct CodedFile {
    pub(super) coding: Coding,
    pub(super) body: FileBody,
    /// Of the file that it is.
    pub(super) metadata: Metadata,
    pub(super) length: u64,
    pub(super) media_type: String,
    /// It was compressed here, and has the metadata of the file itself.
    pub(super) is_made: bool,
    etag: Option<String>,
    modified: Option<u64>,
    /// The head of a response with all of it.
    pub(super) whole: ResponseHead,
    /// The head of a 206, without type, length and range.
    pub(super) partial: ResponseHead,
    /// The head of a 304.
    pub(super) unchanged: ResponseHead,
}

impl CodedFile {
    pub(super) fn new(coding: Coding, body: FileBody, metadata: Metadata, described: &Description<'_>) -> Self {
        Self::with_content(coding, body, metadata, described, None)
    }

    /// What the file with these metadata became when it was compressed. content: a hash of the compressed bytes.
    pub(super) fn made(
        coding: Coding,
        body: FileBody,
        metadata: Metadata,
        described: &Description<'_>,
        content: u64,
    ) -> Self {
        Self::with_content(coding, body, metadata, described, Some(content))
    }

    fn with_content(
        coding: Coding,
        body: FileBody,
        metadata: Metadata,
        described: &Description<'_>,
        content: Option<u64>,
    ) -> Self {
        let length = match &body {
            FileBody::Memory(bytes) => bytes.len() as u64,
            FileBody::Extent(_, length) => *length,
            FileBody::File(_) => metadata.size,
        };
        let mut new = Self {
            coding,
            body,
            metadata,
            length,
            media_type: described.media_type.to_owned(),
            is_made: content.is_some(),
            etag: described.validators.then(|| etag(&metadata, coding, content)),
            modified: described.validators.then(|| last_modified(&metadata)).flatten(),
            whole: ResponseHead::default(),
            partial: ResponseHead::default(),
            unchanged: ResponseHead::default(),
        };
        new.whole = new.head(described.status, described);
        new.partial = new.head("206 Partial Content", described);
        new.unchanged = new.head("304 Not Modified", described);
        new
    }

    /// It can be identified.
    pub(super) fn has_validators(&self) -> bool {
        self.etag.is_some()
    }

    /// What identifies it.
    pub(super) fn validators(&self) -> Validators<'_> {
        Validators { etag: self.etag.as_deref().map(str::as_bytes), modified: self.modified }
    }

    fn memory(&self) -> usize {
        let body = match &self.body {
            FileBody::Memory(bytes) => bytes.capacity(),
            FileBody::Extent(extent, _) => usize::try_from(extent.room()).unwrap_or(usize::MAX),
            FileBody::File(_) => 0,
        };
        size_of::<Self>() + body + self.whole.room() + self.partial.room() + self.unchanged.room()
    }

    fn head(&self, status: &str, described: &Description<'_>) -> ResponseHead {
        let mut head = ResponseHead::default();
        // The options have been checked: neither a status nor a field is refused.
        let _ = head.status(status.as_bytes());
        let mut add = |name: &str, value: &str| _ = head.field(name.as_bytes(), value.as_bytes());
        let (is_unchanged, is_partial) = (status.starts_with("304"), status.starts_with("206"));
        if !is_unchanged {
            add("X-Content-Type-Options", "nosniff");
            if self.coding != Coding::Identity {
                add("Content-Encoding", self.coding.name());
            }
        }
        if !is_unchanged && !is_partial {
            add("Content-Type", described.media_type);
            add("Content-Length", &self.length.to_string());
        }
        if described.validators {
            add("Accept-Ranges", "bytes");
        }
        if let Some(etag) = &self.etag {
            add("ETag", etag);
        }
        if let Some(modified) = self.modified {
            add("Last-Modified", &http_date(modified));
        }
        if !described.cache_control.is_empty() {
            add("Cache-Control", described.cache_control);
        }
        if described.varies {
            add("Vary", "Accept-Encoding");
        }
        head
    }
}

/// The time for Last-Modified, in seconds. The entity tag, which has the part of a second, tells versions apart that
/// were made within one.
fn last_modified(metadata: &Metadata) -> Option<u64> {
    u64::try_from(metadata.modified).ok().and_then(|modified| validator_time(modified, wall_seconds()))
}

/// A strong entity tag (RFC 9110 section 8.8.3): another file, length or time of change makes another tag. The time when
/// the status was changed is part of it, because no program can set that one back. content: a hash of the bytes that
/// were made of the file.
fn etag(metadata: &Metadata, coding: Coding, content: Option<u64>) -> String {
    let Metadata { inode, size, modified, modified_nanoseconds, changed, changed_nanoseconds, .. } = metadata;
    let suffix = match coding {
        Coding::Identity => "",
        other => other.name(),
    };
    let dash = if suffix.is_empty() { "" } else { "-" };
    let content = content.map(|hash| format!("-{hash:x}")).unwrap_or_default();
    let times = format!("{modified:x}.{modified_nanoseconds:x}-{changed:x}.{changed_nanoseconds:x}");
    format!("\"{inode:x}-{size:x}-{times}{dash}{suffix}{content}\"")
}

/// A file that is sent from its descriptor.
pub(super) struct OpenFile {
    file: OwnFile,
    metadata: Metadata,
    is_changing: bool,
    /// The disk threads that read it. `None`: all.
    share: Option<Arc<Share>>,
    /// Its file system may ask another process or machine, for as long as that takes, also about what it is.
    is_remote: bool,
    /// Up to here its bytes have been found in memory, from the first on.
    known: AtomicU64,
    /// When its first bytes were (milliseconds).
    began: AtomicU64,
    /// When all of it was last found in memory (milliseconds).
    found: AtomicU64,
    /// The offsets of parts that disk threads have read for responses, which have not sent them yet.
    read: Mutex<Vec<u64>>,
    /// The parts that wait for the thread that reads this file. `None`: none does. A file whose disk does not respond
    /// occupies one thread, however many clients wait for it.
    waiting: Mutex<Option<Vec<Part>>>,
}

/// Offset and length of a part that is to be read, and what follows.
type Part = (u64, u64, Then);

impl OpenFile {
    pub(super) fn new(file: File, metadata: Metadata) -> Self {
        Self {
            file: OwnFile::new(file),
            metadata,
            is_changing: false,
            share: None,
            is_remote: false,
            known: AtomicU64::new(0),
            began: AtomicU64::new(0),
            found: AtomicU64::new(0),
            read: Mutex::default(),
            waiting: Mutex::default(),
        }
    }

    /// A file that changes all the time: what is there when it is sent is.
    pub(super) fn changing(file: File, metadata: Metadata) -> Self {
        let mut new = Self::new(file, metadata);
        new.is_changing = true;
        new
    }

    /// This file, of a file system that has this part of the disk threads.
    pub(super) fn within(mut self, share: Arc<Share>, is_remote: bool) -> Self {
        (self.share, self.is_remote) = (Some(share), is_remote);
        self
    }

    /// The file is still the one that was opened, unchanged.
    pub(super) fn is_unchanged(&self) -> bool {
        // Not by the time of change of its status, which is another one also when the file gets another name.
        let now = || {
            // A look by a disk thread, at most half a second ago, is as good as one that might not return.
            if self.is_remote { Metadata::from_memory(self.file.as_fd()) } else { Metadata::of(self.file.as_fd()) }
        };
        self.is_changing || now().is_ok_and(|now| now.has_content_of(&self.metadata))
    }
}

impl FileSource for OpenFile {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn readiness(&self, offset: u64, length: u64) -> Readiness {
        // The client knows by the bytes that are missing that the others do not belong together.
        if !self.is_unchanged() {
            return Readiness::Changed;
        }
        let now = monotonic_millis();
        if now.saturating_sub(self.found.load(Ordering::Relaxed)) < FRESH {
            return Readiness::Ready;
        }
        // Once it has been read, it is sent, even if the system has dropped it again or cannot tell.
        let was_read = {
            let mut read = lock(&self.read);
            let place = read.iter().position(|&other| other == offset);
            place.map(|place| read.swap_remove(place)).is_some()
        };
        let end = offset.saturating_add(length).min(self.metadata.size);
        if was_read {
            return Readiness::Ready;
        }
        if !(offset..end).step_by(PROBES).all(|at| is_in_memory(self.file.as_fd(), at)) {
            return Readiness::Unread;
        }
        if offset == 0 {
            self.began.store(now, Ordering::Relaxed);
        }
        if offset <= self.known.load(Ordering::Relaxed) {
            self.known.store(if end == self.metadata.size { 0 } else { end }, Ordering::Relaxed);
            // What was found long ago may have left memory since.
            let began = self.began.load(Ordering::Relaxed);
            if end == self.metadata.size && now.saturating_sub(began) < FRESH {
                self.found.store(began, Ordering::Relaxed);
            }
        }
        Readiness::Ready
    }

    fn share(&self) -> Option<&Arc<Share>> {
        self.share.as_ref()
    }

    fn read(&self, offset: u64, length: u64, then: Then) {
        let mut waiting = lock(&self.waiting);
        if let Some(parts) = &mut *waiting {
            parts.push((offset, length, then));
            return;
        }
        *waiting = Some(Vec::new());
        drop(waiting);
        let _end = EndOfReading(self);
        let mut parts = vec![(offset, length, then)];
        while !parts.is_empty() {
            for (offset, length, then) in parts {
                if self.is_remote {
                    // Brings what is in memory about the file up to date.
                    let _ = Metadata::of(self.file.as_fd());
                }
                read_ahead(self.file.as_fd(), offset, length);
                let mut read = lock(&self.read);
                if read.len() == UNSENT {
                    // Of a response that was given up, or it is read once more.
                    read.remove(0);
                }
                read.push(offset);
                drop(read);
                then();
            }
            let mut waiting = lock(&self.waiting);
            parts = waiting.as_mut().map(std::mem::take).unwrap_or_default();
            if parts.is_empty() {
                *waiting = None;
                return;
            }
        }
    }
}

/// To close a file may take as long as to read it.
impl Drop for OpenFile {
    fn drop(&mut self) {
        if let (true, Some(share)) = (self.is_remote, self.share.take()) {
            let file = self.file.take();
            share.run(move || drop(file));
        }
    }
}

/// Lets another thread read the file if this one panics, and those go on that wait for it.
struct EndOfReading<'a>(&'a OpenFile);

impl Drop for EndOfReading<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let left = lock(&self.0.waiting).take().unwrap_or_default();
            left.into_iter().for_each(|(_, _, then)| then());
        }
    }
}
