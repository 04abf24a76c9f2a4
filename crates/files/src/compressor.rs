//! Compresses files that clients have asked for, one at a time, and puts the results into the cache.
//!
//! The client that asks first gets the file as it is, at once; the compressed form is for those that ask later. A disk
//! thread makes it, never one that polls. Whatever clients ask for:
//! - One file is compressed at a time in a process. Then the thread sleeps for as long as that took, so that this uses
//!   at most half of one core, even if the cache is too small for all files and they are compressed again and again.
//! - [`WAITING`] files wait. One that finds no place is compressed when it is asked for again.
//! - A file that hardly became smaller, or fills the cache, is not tried again before it changes.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;

use tailrace_http::coding::Coding;
use tailrace_os::clock::{monotonic_millis, now, since, sleep};
use tailrace_os::file::read_at;
use tailrace_os::sync::lock;
use tailrace_server::Disk;
use tailrace_server::FileSource;

use crate::cache::Cache;
use crate::candidates::Claim;
use crate::compress::compressed;
use crate::entry::{CodedFile, Description, Entry, FileBody};
use crate::slab::Slab;

/// Files that wait to be compressed, at most.
const WAITING: usize = 64;
/// How often the result is put into the cache while the entry there is replaced by others.
const TRIES: usize = 4;

/// A file by the path under which the cache has it, and the claim to the coding that it is compressed in.
struct Job {
    path: Box<[u8]>,
    claim: Claim,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    /// A task of a disk thread takes them.
    is_taken: bool,
}

pub(super) struct Compressor {
    disk: Arc<Disk>,
    cache: Arc<Cache>,
    slab: Option<Arc<Slab>>,
    jobs: Mutex<Jobs>,
}

impl Compressor {
    /// One that keeps its results in this cache.
    pub(super) fn new(disk: Arc<Disk>, cache: Arc<Cache>, slab: Option<Arc<Slab>>) -> Self {
        Self { disk, cache, slab, jobs: Mutex::default() }
    }

    /// Has a file compressed in a coding that was claimed. path: under which the cache has it.
    pub(super) fn add(self: &Arc<Self>, path: &[u8], claim: Claim) {
        let mut jobs = lock(&self.jobs);
        if jobs.waiting.len() >= WAITING {
            return;
        }
        jobs.waiting.push_back(Job { path: path.into(), claim });
        if jobs.is_taken {
            return;
        }
        jobs.is_taken = true;
        drop(jobs);
        // Without a thread, and in a forked child, the caller runs the task itself, which may be the one that polls.
        let (caller, is_inside) = (thread::current().id(), Arc::new(AtomicBool::new(true)));
        let (compressor, was_inside) = (Arc::downgrade(self), is_inside.clone());
        self.disk.run(move || {
            let taking = Taking(compressor);
            if thread::current().id() == caller && was_inside.load(Ordering::Relaxed) {
                taking.end();
            } else {
                taking.take_all();
            }
        });
        is_inside.store(false, Ordering::Relaxed);
    }

    /// The next job; without one, the task that asks has to end.
    fn next(&self) -> Option<Job> {
        let mut jobs = lock(&self.jobs);
        let next = jobs.waiting.pop_front();
        jobs.is_taken = next.is_some();
        next
    }

    fn compress(&self, job: &Job) {
        let Some(known) = self.cache.get(&job.path, monotonic_millis()) else { return };
        let (entry, coding) = (known.entry, job.claim.coding());
        if entry.of(coding).is_none() {
            match self.made(&entry, coding) {
                CompressionResult::Representation(made) => self.keep(job, &entry, &made),
                CompressionResult::Useless => job.claim.give_up(),
                CompressionResult::Unread => {}
            }
        }
    }

    fn made(&self, entry: &Entry, coding: Coding) -> CompressionResult {
        let (Some(identity), Some(candidates)) = (entry.of(Coding::Identity), entry.candidates()) else {
            return CompressionResult::Unread;
        };
        let made = match &identity.body {
            FileBody::Memory(bytes) => compressed(coding, bytes),
            FileBody::Extent(extent, length) => match read(extent.descriptor(), extent.offset(), *length) {
                Some(bytes) => compressed(coding, &bytes),
                None => return CompressionResult::Unread,
            },
            FileBody::File(file) => match read(file.descriptor(), 0, identity.length) {
                Some(bytes) if file.is_unchanged() => compressed(coding, &bytes),
                _ => return CompressionResult::Unread,
            },
        };
        let Some(made) = made else { return CompressionResult::Useless };
        // Another version of the encoder may give other bytes, which need another entity tag.
        let mut hasher = DefaultHasher::new();
        hasher.write(&made);
        let described = Description {
            status: "200 OK",
            media_type: &identity.media_type,
            cache_control: &candidates.cache_control,
            varies: true,
            validators: true,
            is_changing: false,
        };
        let body = FileBody::in_memory(made, self.slab.as_ref());
        let made = CodedFile::made(coding, body, identity.metadata, &described, hasher.finish());
        CompressionResult::Representation(Box::new(made))
    }

    fn keep(&self, job: &Job, entry: &Arc<Entry>, made: &CodedFile) {
        let mut old = entry.clone();
        for _ in 0..TRIES {
            let new = Arc::new(old.with(made.clone()));
            if !self.cache.has_room_for(&job.path, &new) {
                return job.claim.give_up();
            }
            if self.cache.replace(&job.path, &old, &new) {
                return;
            }
            // It was looked at again meanwhile.
            let Some(known) = self.cache.get(&job.path, monotonic_millis()) else { return };
            let is_same = known.entry.of(Coding::Identity).is_some_and(|identity| identity.metadata == made.metadata);
            if !is_same || known.entry.of(job.claim.coding()).is_some() {
                return;
            }
            old = known.entry;
        }
    }
}

/// The result of compressing a file.
enum CompressionResult {
    Representation(Box<CodedFile>),
    /// It hardly becomes smaller.
    Useless,
    /// It cannot be read, or has changed.
    Unread,
}

/// The task that takes the jobs. If it panics, the next job that is added starts another one.
struct Taking(Weak<Compressor>);

impl Taking {
    /// Ends when there is no job left, or no server.
    fn take_all(&self) {
        while let Some(compressor) = self.0.upgrade() {
            let Some(job) = compressor.next() else { return };
            let began = now();
            compressor.compress(&job);
            drop((compressor, job));
            sleep(since(began));
        }
    }

    /// Leaves the jobs to the next task.
    fn end(&self) {
        if let Some(compressor) = self.0.upgrade() {
            lock(&compressor.jobs).is_taken = false;
        }
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        // Otherwise the task has ended already, and another one may have begun since.
        if thread::panicking() {
            self.end();
        }
    }
}

/// So many bytes of a file. `None`: it has fewer, or cannot be read.
fn read(file: BorrowedFd<'_>, offset: u64, length: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    let mut at = 0;
    while at < bytes.len() {
        match read_at(file.as_fd(), &mut bytes[at..], offset + at as u64) {
            Ok(0) | Err(_) => return None,
            Ok(count) => at += count,
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;
    use std::thread;

    use tailrace_http::coding::Coding;
    use tailrace_os::sync::lock;
    use tailrace_server::Disk;

    use super::{Compressor, Job};
    use crate::cache::Cache;
    use crate::candidates::Candidates;

    fn compressor() -> Arc<Compressor> {
        let disk = Arc::new(Disk::new());
        Arc::new(Compressor::new(disk, Arc::new(Cache::new(1 << 20, 10)), None))
    }

    #[test]
    fn a_file_that_the_cache_has_dropped_meanwhile_can_be_claimed_again() {
        let (compressor, candidates) = (compressor(), Arc::new(Candidates::new("")));
        compressor.add(b"/dropped", candidates.claim(Coding::Gzip).unwrap());
        // Until a disk thread has done the job, and looked for another one.
        while lock(&compressor.jobs).is_taken {
            thread::yield_now();
        }
        assert!(candidates.claim(Coding::Gzip).is_some());
    }

    #[test]
    fn a_job_that_panics_leaves_its_file_to_the_next_one() {
        let candidates = Arc::new(Candidates::new(""));
        let job = Job { path: Box::from(*b"/a"), claim: candidates.claim(Coding::Gzip).unwrap() };
        let panics = thread::spawn(move || {
            let _job = job;
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(panics.join().is_err());
        assert!(candidates.claim(Coding::Gzip).is_some());
    }
}
