//! The files that were served lately, by the path of the URL. Bounded in bytes and in open files.
//!
//! Any thread. The lock is held for as long as a look-up takes.

use std::sync::{Arc, Mutex};

use lru::LruCache;
use tailrace_os::clock::Millis;
use tailrace_os::sync::lock;

use crate::entry::Entry;

/// How long an entry is used before its file is looked at again (milliseconds).
const FRESH: Millis = 500;
/// The memory of an entry beside its representations: its place in the table, and the path twice.
const OVERHEAD: usize = 256;

/// What is known of a path.
#[derive(Clone)]
pub(super) struct Cached {
    pub(super) entry: Arc<Entry>,
    /// It was looked at less than [`FRESH`] ago.
    pub(super) is_fresh: bool,
}

impl Cached {
    /// It can be sent without another look. A response with a file that has been changed would be broken off.
    pub(super) fn is_usable(&self) -> bool {
        self.is_fresh && self.entry.is_current()
    }
}

struct CacheSlot {
    entry: Arc<Entry>,
    checked: Millis,
    bytes: usize,
    descriptors: usize,
}

struct Slots {
    by_path: LruCache<Box<[u8]>, CacheSlot>,
    bytes: usize,
    descriptors: usize,
}

pub(super) struct Cache {
    slots: Mutex<Slots>,
    most_bytes: usize,
    most_descriptors: usize,
}

impl Cache {
    /// An empty cache for so many bytes and open files.
    pub(super) fn new(most_bytes: usize, most_descriptors: usize) -> Self {
        let slots = Slots { by_path: LruCache::unbounded(), bytes: 0, descriptors: 0 };
        Self { slots: Mutex::new(slots), most_bytes, most_descriptors }
    }

    /// What is known of a path.
    pub(super) fn get(&self, path: &[u8], now: Millis) -> Option<Cached> {
        let mut slots = lock(&self.slots);
        let slot = slots.by_path.get(path)?;
        let is_fresh = now.saturating_sub(slot.checked) < FRESH;
        Some(Cached { entry: slot.entry.clone(), is_fresh })
    }

    /// Keeps an entry that was looked up now. One that is too large is not kept.
    pub(super) fn keep(&self, path: &[u8], entry: &Arc<Entry>, now: Millis) {
        self.put(path, entry, |_| Some(now));
    }

    /// Keeps `new` in the place of `old`, without a look at the file. False: something else is known of the path.
    pub(super) fn replace(&self, path: &[u8], old: &Arc<Entry>, new: &Arc<Entry>) -> bool {
        self.put(path, new, |slot| slot.filter(|slot| Arc::ptr_eq(&slot.entry, old)).map(|slot| slot.checked)).is_some()
    }

    /// An entry is not too large to be kept.
    pub(super) fn has_room_for(&self, path: &[u8], entry: &Entry) -> bool {
        room(path, entry) <= self.most_bytes && entry.descriptors() <= self.most_descriptors
    }

    /// checked: from what is known of the path to when the new entry was looked up; `None`: it is not kept.
    fn put(
        &self,
        path: &[u8],
        entry: &Arc<Entry>,
        checked: impl FnOnce(Option<&CacheSlot>) -> Option<Millis>,
    ) -> Option<()> {
        let (bytes, descriptors) = (room(path, entry), entry.descriptors());
        // Dropped after the lock is released: closing a file may take long.
        let mut dropped = Vec::new();
        let mut slots = lock(&self.slots);
        let checked = checked(slots.by_path.peek(path))?;
        let slot = CacheSlot { entry: entry.clone(), checked, bytes, descriptors };
        dropped.extend(slots.remove(path));
        if bytes > self.most_bytes || descriptors > self.most_descriptors {
            return Some(());
        }
        slots.bytes += bytes;
        slots.descriptors += descriptors;
        slots.by_path.put(path.into(), slot);
        while slots.bytes > self.most_bytes || slots.descriptors > self.most_descriptors {
            let Some((_, oldest)) = slots.by_path.pop_lru() else { break };
            slots.subtract(&oldest);
            dropped.push(oldest);
        }
        drop(slots);
        Some(())
    }

    /// Forgets a path, whose file is gone.
    pub(super) fn forget(&self, path: &[u8]) {
        let dropped = lock(&self.slots).remove(path);
        drop(dropped);
    }
}

fn room(path: &[u8], entry: &Entry) -> usize {
    entry.memory() + 2 * path.len() + OVERHEAD
}

impl Slots {
    fn remove(&mut self, path: &[u8]) -> Option<CacheSlot> {
        let slot = self.by_path.pop(path)?;
        self.subtract(&slot);
        Some(slot)
    }

    fn subtract(&mut self, slot: &CacheSlot) {
        self.bytes -= slot.bytes;
        self.descriptors -= slot.descriptors;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use tailrace_http::coding::Coding;

    use super::{Cache, FRESH};
    use crate::entry::{CodedFile, Description, Entry, FileBody, OpenFile};
    use crate::resolve::Metadata;

    fn entry(body: FileBody) -> Arc<Entry> {
        let file = File::open("/dev/null").unwrap();
        let metadata = Metadata::of(file.as_fd()).unwrap();
        let described = Description {
            status: "200 OK",
            media_type: "text/plain",
            cache_control: "",
            varies: false,
            validators: true,
            is_changing: false,
        };
        Arc::new(Entry::new(CodedFile::new(Coding::Identity, body, metadata, &described), Vec::new(), false))
    }

    fn in_memory(bytes: usize) -> Arc<Entry> {
        entry(FileBody::Memory(Arc::new(vec![0; bytes])))
    }

    fn open() -> Arc<Entry> {
        let file = File::open("/dev/null").unwrap();
        let metadata = Metadata::of(file.as_fd()).unwrap();
        entry(FileBody::File(Arc::new(OpenFile::new(file, metadata))))
    }

    #[test]
    fn entries_are_fresh_for_half_a_second() {
        let cache = Cache::new(1 << 20, 10);
        cache.keep(b"/a", &in_memory(1), 5_000);
        assert!(cache.get(b"/a", 5_000).unwrap().is_fresh);
        assert!(cache.get(b"/a", 5_000 + FRESH - 1).unwrap().is_fresh);
        assert!(!cache.get(b"/a", 5_000 + FRESH).unwrap().is_fresh);
        assert!(cache.get(b"/b", 5_000).is_none());
        cache.forget(b"/a");
        assert!(cache.get(b"/a", 5_000).is_none());
    }

    #[test]
    fn the_entries_that_were_not_used_for_longest_make_room() {
        let cache = Cache::new(400_000, 10);
        for path in [b"/a", b"/b", b"/c"] {
            cache.keep(path, &in_memory(100_000), 0);
        }
        assert!(cache.get(b"/a", 0).is_some());
        cache.keep(b"/d", &in_memory(100_000), 0);
        assert!(cache.get(b"/b", 0).is_none(), "not used since it was kept");
        assert!([b"/a", b"/c", b"/d"].iter().all(|path| cache.get(*path, 0).is_some()));
        cache.keep(b"/e", &in_memory(500_000), 0);
        assert!(cache.get(b"/e", 0).is_none(), "too large for the cache");
        assert!(cache.get(b"/a", 0).is_some(), "and no reason to drop others");
        // The same path again is one entry.
        for _ in 0..10 {
            cache.keep(b"/a", &in_memory(100_000), 0);
        }
        assert!([b"/a", b"/c", b"/d"].iter().all(|path| cache.get(*path, 0).is_some()));
    }

    #[test]
    fn an_entry_takes_the_place_of_that_which_it_was_made_from_alone() {
        let cache = Cache::new(1 << 20, 10);
        let (old, other, new) = (in_memory(1), in_memory(1), in_memory(2));
        assert!(!cache.replace(b"/a", &old, &new) && cache.get(b"/a", 0).is_none());
        cache.keep(b"/a", &old, 5_000);
        assert!(!cache.replace(b"/a", &other, &new));
        assert!(Arc::ptr_eq(&cache.get(b"/a", 5_000).unwrap().entry, &old));
        assert!(cache.replace(b"/a", &old, &new));
        let known = cache.get(b"/a", 5_000 + FRESH).unwrap();
        assert!(Arc::ptr_eq(&known.entry, &new) && !known.is_fresh, "it was not looked at again");
        assert!(cache.has_room_for(b"/a", &in_memory(1_000)) && !cache.has_room_for(b"/a", &in_memory(1 << 20)));
    }

    #[test]
    fn open_files_are_bounded() {
        let cache = Cache::new(1 << 20, 3);
        for path in [b"/a", b"/b", b"/c", b"/d", b"/e"] {
            cache.keep(path, &open(), 0);
        }
        let kept: Vec<_> =
            [b"/a", b"/b", b"/c", b"/d", b"/e"].iter().map(|path| cache.get(*path, 0).is_some()).collect();
        assert_eq!(kept, [false, false, true, true, true]);
    }

    #[test]
    fn many_small_entries_are_bounded_too() {
        let cache = Cache::new(100_000, 10);
        for index in 0..10_000 {
            cache.keep(format!("/{index}").as_bytes(), &in_memory(1), 0);
        }
        let kept = (0..10_000).filter(|index| cache.get(format!("/{index}").as_bytes(), 0).is_some()).count();
        assert!((1..200).contains(&kept), "{kept}");
    }
}
