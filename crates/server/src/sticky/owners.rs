//! Which worker owns a session: a table of fixed size in memory that the workers share. A worker may be killed at any
//! moment, so there is no lock: an entry is one word. Any thread.
//!
//! A full set loses its entry that was not used for the longest time, so the session of that is unknown to other workers.
//! Nothing is stored for keys that no worker has issued, so that clients cannot fill the table with them. They can fill
//! it by opening sessions.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use tailrace_os::random::draw;
use tailrace_os::shared_memory::shared_words;

/// Entries in one set, which is one line of the processor's cache.
const WAYS: usize = 8;
const SETS: usize = 8 * 1024;
const SECRET_WORDS: usize = 3;

/// The parts of an entry, from its lowest bit: when it was used, the generation of the owner, its slot, the key.
const TIME_BITS: u32 = 12;
const GENERATION_BITS: u32 = 12;
const SLOT_BITS: u32 = 12;
const SLOT_AT: u32 = TIME_BITS + GENERATION_BITS;
const TAG_AT: u32 = SLOT_AT + SLOT_BITS;
/// The time of an entry is in units of 2^35 nanoseconds, 34 s.
const TIME_UNIT: u32 = 35;
/// In the word of a worker, below its generation.
const IS_HERE: u64 = 1;

/// A worker that takes requests of its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    slot: usize,
    /// Tells the worker from those that had its slot before.
    generation: u64,
}

/// The owners of sessions, shared with processes that are forked later.
#[derive(Clone, Copy)]
pub struct Owners {
    secret: &'static [AtomicU64],
    /// For each slot, the generation of its worker, and whether that is there.
    workers: &'static [AtomicU64],
    entries: &'static [AtomicU64],
}

impl Owners {
    /// Of a server with this number of workers. Memory is used for what is stored, up to 512 KiB.
    ///
    /// # Errors
    /// No memory.
    pub fn new(workers: usize) -> io::Result<Self> {
        let words = shared_words(workers.saturating_add(SECRET_WORDS + SETS * WAYS))?;
        let (secret, words) = words.split_at(SECRET_WORDS);
        let (entries, workers) = words.split_at(SETS * WAYS);
        let (hash, name) = (draw(), draw());
        for (word, value) in secret.iter().zip([hash as u64, (hash >> 64) as u64, name as u64]) {
            word.store(value, Ordering::Relaxed);
        }
        Ok(Self { secret, workers, entries })
    }

    /// The calling process is the worker of this slot. `None`: the table has no room for so many workers.
    pub(crate) fn join(self, slot: usize) -> Option<Place> {
        let word = self.workers.get(slot).filter(|_| slot < 1 << SLOT_BITS)?;
        let generation = ((word.load(Ordering::Relaxed) >> 1) + 1) & bits(GENERATION_BITS);
        word.store(generation << 1 | IS_HERE, Ordering::Release);
        Some(Place { slot, generation })
    }

    /// The worker at this place takes no more requests.
    pub(crate) fn leave(self, place: Place) {
        if let Some(word) = self.workers.get(place.slot) {
            let generation = place.generation << 1;
            let _ = word.compare_exchange(generation | IS_HERE, generation, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// The worker of this slot has ended.
    pub fn forget(self, slot: usize) {
        if let Some(word) = self.workers.get(slot) {
            word.fetch_and(!IS_HERE, Ordering::AcqRel);
        }
    }

    /// The abstract name of the socket where the worker at this place takes requests. All users see the names of sockets
    /// (in `/proc/net/unix`), but cannot guess the next ones, so they cannot take them before.
    pub(crate) fn address(self, Place { slot, generation }: Place) -> Vec<u8> {
        let secret = self.secret[2].load(Ordering::Relaxed);
        let name = self.hash(format!("{secret} {slot} {generation}").as_bytes());
        format!("tailrace-sticky-{name:016x}").into_bytes()
    }

    /// The worker that owns a key, and notes that the key is in use. `now`: nanoseconds of the monotonic clock.
    pub(crate) fn owner(self, key: &[u8], now: u64) -> Option<Place> {
        let hash = self.hash(key);
        let (place, entry, word) = self.find(hash)?;
        let used = entry_of(hash, place, now);
        if entry != used {
            // If another worker changes it meanwhile, that is as good.
            let _ = word.compare_exchange(entry, used, Ordering::AcqRel, Ordering::Relaxed);
        }
        Some(place)
    }

    /// The worker at this place has issued a key. If another worker owns it already, that keeps it. Nothing is stored if
    /// the worker takes no more requests.
    pub(crate) fn own(self, key: &[u8], place: Place, now: u64) {
        let hash = self.hash(key);
        let new = entry_of(hash, place, now);
        if self.worker_of(new).is_none() {
            return;
        }
        // Each round that fails is one in which another worker has stored a key in this set.
        for _ in 0..WAYS {
            if self.find(hash).is_some() {
                return;
            }
            let age = |entry: u64| time_of(now).wrapping_sub(entry) & bits(TIME_BITS);
            let rank = |entry: u64| match entry {
                _ if tag_of(entry) == tag_of(new) => u64::MAX,
                0 => u64::MAX - 1,
                _ if self.worker_of(entry).is_none() => u64::MAX - 2,
                _ => age(entry),
            };
            let words = self.set(hash).iter().map(|word| (word.load(Ordering::Acquire), word));
            let Some((entry, word)) = words.max_by_key(|(entry, _)| rank(*entry)) else { return };
            if word.compare_exchange(entry, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }

    /// The entry of a key whose owner is there.
    fn find(self, hash: u64) -> Option<(Place, u64, &'static AtomicU64)> {
        let tag = tag_of(hash | 1 << TAG_AT);
        self.set(hash).iter().find_map(|word| {
            let entry = word.load(Ordering::Acquire);
            let place = (tag_of(entry) == tag).then(|| self.worker_of(entry))??;
            Some((place, entry, word))
        })
    }

    /// The worker of an entry, if it is there.
    fn worker_of(self, entry: u64) -> Option<Place> {
        let slot = (entry >> SLOT_AT & bits(SLOT_BITS)) as usize;
        let generation = entry >> TIME_BITS & bits(GENERATION_BITS);
        let word = self.workers.get(slot)?.load(Ordering::Acquire);
        (word == generation << 1 | IS_HERE).then_some(Place { slot, generation })
    }

    fn set(self, hash: u64) -> &'static [AtomicU64] {
        let start = hash as usize % SETS * WAYS;
        &self.entries[start..start + WAYS]
    }

    /// A hash that clients cannot choose keys for.
    fn hash(self, key: &[u8]) -> u64 {
        let mut hasher = DefaultHasher::new();
        for word in &self.secret[..2] {
            hasher.write_u64(word.load(Ordering::Relaxed));
        }
        hasher.write(key);
        hasher.finish()
    }
}

fn bits(count: u32) -> u64 {
    (1 << count) - 1
}

fn time_of(now: u64) -> u64 {
    now >> TIME_UNIT & bits(TIME_BITS)
}

fn tag_of(entry: u64) -> u64 {
    entry >> TAG_AT
}

/// The lowest bit of the key is set, since 0 marks a free entry.
fn entry_of(hash: u64, Place { slot, generation }: Place, now: u64) -> u64 {
    let tag = (hash | 1 << TAG_AT) >> TAG_AT << TAG_AT;
    tag | (slot as u64) << SLOT_AT | generation << TIME_BITS | time_of(now)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::Ordering;

    use super::{Owners, SETS, SLOT_BITS, TIME_UNIT, WAYS};

    fn stored(owners: Owners) -> usize {
        owners.entries.iter().filter(|word| word.load(Ordering::Relaxed) != 0).count()
    }

    #[test]
    fn the_worker_that_has_issued_a_key_owns_it_until_it_leaves() {
        let owners = Owners::new(2).unwrap();
        let [first, second] = [0, 1].map(|slot| owners.join(slot).unwrap());
        assert_eq!(owners.owner(b"a", 0), None);
        owners.own(b"a", first, 0);
        owners.own(b"b", second, 0);
        assert_eq!([b"a", b"b", b"c"].map(|key| owners.owner(key, 0)), [Some(first), Some(second), None]);
        owners.own(b"a", second, 0);
        assert_eq!(owners.owner(b"a", 0), Some(first), "the owner keeps it");
        owners.leave(first);
        assert_eq!(owners.owner(b"a", 0), None);
        owners.own(b"c", first, 0);
        assert_eq!(stored(owners), 2, "it has left");
        owners.own(b"a", second, 0);
        assert_eq!((owners.owner(b"a", 0), stored(owners)), (Some(second), 2));
    }

    #[test]
    fn a_worker_does_not_own_what_one_before_it_in_its_slot_has_issued() {
        let owners = Owners::new(1).unwrap();
        let first = owners.join(0).unwrap();
        owners.own(b"a", first, 0);
        owners.forget(0);
        assert_eq!(owners.owner(b"a", 0), None, "it was killed");
        let second = owners.join(0).unwrap();
        assert_eq!(owners.owner(b"a", 0), None);
        assert_ne!(owners.address(first), owners.address(second));
        // Late news of the first one is none of the second one.
        owners.leave(first);
        owners.own(b"b", second, 0);
        assert_eq!(owners.owner(b"b", 0), Some(second));
        assert_eq!(owners.join(1), None);
        assert_eq!(Owners::new(9_999).unwrap().join(1 << SLOT_BITS), None);
    }

    #[test]
    fn a_full_table_loses_the_keys_that_were_not_used_for_the_longest_time() {
        let owners = Owners::new(1).unwrap();
        let place = owners.join(0).unwrap();
        // 512 keys in a unit of time, and so less than one in a set.
        let now = |number: usize| (number as u64 / 512) << TIME_UNIT;
        let key = |number: usize| format!("session-{number}").into_bytes();
        owners.own(b"in use", place, 0);
        let most = SETS * WAYS;
        for number in 0..4 * most {
            owners.own(&key(number), place, now(number));
            if number % 1_000 == 0 {
                assert_eq!(owners.owner(b"in use", now(number)), Some(place), "{number}");
            }
        }
        assert!(stored(owners) > most * 9 / 10);
        let now = now(4 * most);
        let known = |from: usize| (from..from + 1_000).filter(|n| owners.owner(&key(*n), now).is_some()).count();
        assert_eq!(known(0), 0);
        assert!(known(4 * most - 1_000) > 990);
    }

    #[test]
    fn keys_that_nobody_has_issued_are_not_stored() {
        let owners = Owners::new(1).unwrap();
        owners.join(0).unwrap();
        assert!((0..100_000).all(|number: u32| owners.owner(&number.to_le_bytes(), 0).is_none()));
        assert_eq!(stored(owners), 0);
    }

    #[test]
    fn workers_that_store_at_the_same_time_lose_nothing() {
        let owners = Owners::new(4).unwrap();
        let threads = [0, 1, 2, 3].map(|slot| {
            std::thread::spawn(move || {
                let place = owners.join(slot).unwrap();
                for number in 0..2_000_u32 {
                    owners.own(format!("{slot}-{number}").as_bytes(), place, 0);
                }
                place
            })
        });
        for (slot, thread) in threads.into_iter().enumerate() {
            let place = thread.join().unwrap();
            let kept =
                (0..2_000_u32).filter(|n| owners.owner(format!("{slot}-{n}").as_bytes(), 0) == Some(place)).count();
            // 8,000 keys in 8,192 sets of 8: a set with more than 8 of them is rare.
            assert!(kept >= 1_998, "{kept}");
        }
    }
}
