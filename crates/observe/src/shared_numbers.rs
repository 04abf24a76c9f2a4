//! Numbers that the processes of a server share by name: the metrics of the application.
//!
//! The master makes the memory before it forks. A number has a fixed place once it has been asked for, so that adding to
//! it is one atomic operation, and it stays when the process that used it ends. A number with an owner, a process, is
//! that process's own, and its place is free again when the owner has ended.
//!
//! There is no lock, because a process may be killed at any moment: a place is claimed, filled, and published. Shared
//! numbers are claimed in ascending order, and whoever looks for one waits for the places below it that others are
//! filling. So of two places with one name, which two processes publish at the same time, everyone takes the lower one. A
//! place that is not filled in time is given up. Only numbers with an owner get places that are free again: nobody else
//! looks for them. Any thread.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::thread;
use std::time::Duration;

use tailrace_os::shared_memory::shared_words;

use crate::guarded::text_of;

/// How many numbers there may be.
pub const MAX_NUMBERS: usize = 4096;
/// The longest name, in bytes.
const LONGEST_NAME: usize = 8 * (PLACE - TEXT);

/// Words of a place.
const PLACE: usize = 64;
// The words of a place.
const STATE: usize = 0;
const VALUE: usize = 1;
const OWNER: usize = 2;
const LENGTH: usize = 3;
const TEXT: usize = 4;

// The states of a place.
/// The process to which it was given has not filled it yet.
const CLAIMED: u64 = 0;
const PUBLISHED: u64 = 1;
/// Free again.
const FREE: u64 = 2;
/// That process did not fill it in time, and may still do so.
const ABANDONED: u64 = 3;

// The words before the places: how many places were ever given, and how many numbers found no place.
const USED: usize = 0;
const REFUSED: usize = 1;
const FIRST: usize = PLACE;

/// How often, and how long each time, to wait for a place that another process fills. It may have been killed.
const TRIES: u32 = 100;
const TRY: Duration = Duration::from_micros(200);

/// Named numbers that several processes add up.
#[derive(Clone, Copy)]
pub struct SharedNumbers {
    words: &'static [AtomicU64],
}

/// One of them.
#[derive(Clone, Copy)]
pub struct SharedNumber {
    place: &'static [AtomicU64],
}

/// A number as [`SharedNumbers::all`] finds it.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedNumber {
    /// Its name.
    pub name: Vec<u8>,
    /// The process whose own it is; 0: it is shared by all.
    pub owner: u64,
    /// Its value.
    pub value: f64,
}

impl SharedNumbers {
    /// None yet, in memory that this process shares with those it forks.
    ///
    /// # Errors
    /// No memory.
    pub fn new() -> io::Result<Self> {
        Ok(Self { words: shared_words(FIRST + MAX_NUMBERS * PLACE)? })
    }

    /// The number of this name and owner, 0 at first. `None`: there is no place for it, or its name is too long.
    #[must_use]
    pub fn number(&self, name: &[u8], owner: u64) -> Option<SharedNumber> {
        loop {
            if let Some(found) = self.find(name, owner, MAX_NUMBERS) {
                return Some(found);
            }
            let claimed = (name.len() <= LONGEST_NAME).then(|| self.claim(owner))??;
            let place = self.place(claimed);
            place[VALUE].store(0, Ordering::Relaxed);
            place[OWNER].store(owner, Ordering::Relaxed);
            place[LENGTH].store(name.len() as u64, Ordering::Relaxed);
            for (word, bytes) in place[TEXT..].iter().zip(name.chunks(8)) {
                word.store(padded(bytes), Ordering::Relaxed);
            }
            if place[STATE].compare_exchange(CLAIMED, PUBLISHED, Ordering::SeqCst, Ordering::Relaxed).is_err() {
                // Others have waited for too long.
                continue;
            }
            let earlier = self.find(name, owner, claimed);
            if earlier.is_some() {
                place[STATE].store(FREE, Ordering::SeqCst);
            }
            return Some(earlier.unwrap_or(SharedNumber { place }));
        }
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> Vec<NamedNumber> {
        self.places().filter_map(named_number).collect()
    }

    /// Counts a number that found no place.
    pub fn refuse(&self) {
        self.words[REFUSED].fetch_add(1, Ordering::Relaxed);
    }

    /// How many numbers found no place.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.words[REFUSED].load(Ordering::Relaxed)
    }

    /// A process has ended: its own numbers are gone.
    pub fn forget(&self, owner: u64) {
        for place in self.places() {
            if owner != 0 && place[OWNER].load(Ordering::Relaxed) == owner {
                let _ = place[STATE].compare_exchange(PUBLISHED, FREE, Ordering::SeqCst, Ordering::Relaxed);
            }
        }
    }

    fn place(&self, number: usize) -> &'static [AtomicU64] {
        &self.words[FIRST + number * PLACE..][..PLACE]
    }

    /// Those that were ever given.
    fn places(&self) -> impl Iterator<Item = &'static [AtomicU64]> + use<> {
        let used = (self.words[USED].load(Ordering::SeqCst) as usize).min(MAX_NUMBERS);
        self.words[FIRST..].chunks_exact(PLACE).take(used)
    }

    /// The lowest place of a name among the first `places`.
    fn find(&self, name: &[u8], owner: u64, places: usize) -> Option<SharedNumber> {
        let is_it = |place: &&[AtomicU64]| {
            let is_published =
                if owner == 0 { filled_state(place) } else { place[STATE].load(Ordering::SeqCst) } == PUBLISHED;
            is_published && place[OWNER].load(Ordering::Relaxed) == owner && is_named(place, name)
        };
        self.places().take(places).find(is_it).map(|place| SharedNumber { place })
    }

    /// Reserves a place for the caller, and returns its number.
    fn claim(&self, owner: u64) -> Option<usize> {
        let claim = |place: &[AtomicU64]| {
            place[STATE].compare_exchange(FREE, CLAIMED, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        if owner != 0
            && let Some(number) = self.places().position(claim)
        {
            return Some(number);
        }
        let next = |used| (used < MAX_NUMBERS as u64).then_some(used + 1);
        let used = self.words[USED].fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        used.ok().map(|used| used as usize)
    }
}

/// The state of a place once it is filled, or abandoned after a time.
fn filled_state(place: &[AtomicU64]) -> u64 {
    for _ in 0..TRIES {
        match place[STATE].load(Ordering::SeqCst) {
            CLAIMED => thread::sleep(TRY),
            state => return state,
        }
    }
    match place[STATE].compare_exchange(CLAIMED, ABANDONED, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => ABANDONED,
        Err(state) => state,
    }
}

/// The number in a place; `None`: there is none, or it has changed meanwhile.
fn named_number(place: &'static [AtomicU64]) -> Option<NamedNumber> {
    let state = || {
        let [state, owner, length] = [STATE, OWNER, LENGTH].map(|word| place[word].load(Ordering::Acquire));
        (state, owner, length)
    };
    let before = state();
    let found = NamedNumber { name: name_in(place), owner: before.1, value: SharedNumber { place }.get() };
    fence(Ordering::Acquire);
    (before.0 == PUBLISHED && before == state()).then_some(found)
}

impl SharedNumber {
    /// Adds to it.
    #[inline]
    pub fn add(&self, amount: f64) {
        let value = &self.place[VALUE];
        let mut bits = value.load(Ordering::Relaxed);
        loop {
            let sum = (f64::from_bits(bits) + amount).to_bits();
            match value.compare_exchange_weak(bits, sum, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => bits = now,
            }
        }
    }

    /// Sets it.
    pub fn set(&self, value: f64) {
        self.place[VALUE].store(value.to_bits(), Ordering::Relaxed);
    }

    /// Its value.
    #[must_use]
    pub fn get(&self) -> f64 {
        f64::from_bits(self.place[VALUE].load(Ordering::Relaxed))
    }
}

fn is_named(place: &[AtomicU64], name: &[u8]) -> bool {
    let mut words = place[TEXT..].iter().zip(name.chunks(8));
    place[LENGTH].load(Ordering::Relaxed) == name.len() as u64
        && words.all(|(word, bytes)| word.load(Ordering::Relaxed) == padded(bytes))
}

/// Up to eight bytes of a name, as a place has them.
fn padded(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}

fn name_in(place: &[AtomicU64]) -> Vec<u8> {
    let length = usize::try_from(place[LENGTH].load(Ordering::Relaxed)).unwrap_or(0).min(LONGEST_NAME);
    let words: Vec<u64> = place[TEXT..][..length.div_ceil(8)].iter().map(|word| word.load(Ordering::Relaxed)).collect();
    text_of(&words, length)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::Ordering;
    use std::sync::{Arc, Barrier};
    use std::thread;

    use super::{CLAIMED, LONGEST_NAME, MAX_NUMBERS, STATE, SharedNumbers, USED};

    fn values(numbers: &SharedNumbers) -> Vec<(String, u64, f64)> {
        let all = numbers.all().into_iter();
        all.map(|number| (String::from_utf8(number.name).unwrap(), number.owner, number.value)).collect()
    }

    #[test]
    fn a_number_is_found_by_its_name_and_owner() {
        let numbers = SharedNumbers::new().unwrap();
        for (name, owner, amount) in [("one", 0, 1.5), ("two", 0, 2.0), ("one", 7, 4.0), ("one", 0, 1.0), ("", 0, 0.0)]
        {
            numbers.number(name.as_bytes(), owner).unwrap().add(amount);
        }
        let expected = [("one", 0, 2.5), ("two", 0, 2.0), ("one", 7, 4.0), ("", 0, 0.0)];
        assert_eq!(values(&numbers), expected.map(|(name, owner, value)| (String::from(name), owner, value)));
        let one = numbers.number(b"one", 0).unwrap();
        one.set(-8.0);
        assert_eq!(numbers.number(b"one", 0).unwrap().get(), -8.0);
    }

    #[test]
    fn numbers_of_a_process_that_has_ended_make_room() {
        let numbers = SharedNumbers::new().unwrap();
        numbers.number(b"shared", 0).unwrap().add(1.0);
        for owner in 1..=2 * MAX_NUMBERS as u64 {
            numbers.number(b"own", owner).unwrap().add(1.0);
            numbers.forget(owner);
        }
        numbers.forget(0);
        assert_eq!(values(&numbers), [(String::from("shared"), 0, 1.0)]);
        // The next one in that place begins anew.
        assert_eq!(numbers.number(b"next", 9).unwrap().get(), 0.0);
        assert_eq!(numbers.refused(), 0);
    }

    #[test]
    fn what_has_no_place_is_refused_and_counted() {
        let numbers = SharedNumbers::new().unwrap();
        assert!(numbers.number(&vec![b'a'; LONGEST_NAME + 1], 0).is_none());
        for number in 0..MAX_NUMBERS {
            assert!(numbers.number(format!("{number:x<LONGEST_NAME$}").as_bytes(), 0).is_some());
        }
        assert!(numbers.number(b"one more", 0).is_none());
        numbers.refuse();
        assert_eq!((numbers.refused(), numbers.all().len()), (1, MAX_NUMBERS));
        assert!(numbers.number(format!("{:x<LONGEST_NAME$}", 17).as_bytes(), 0).is_some());
    }

    #[test]
    fn threads_that_ask_for_one_name_at_once_add_to_one_number() {
        for _ in 0..500 {
            let numbers = SharedNumbers::new().unwrap();
            let barrier = Arc::new(Barrier::new(4));
            let threads: Vec<_> = (0..4)
                .map(|owner| {
                    let barrier = barrier.clone();
                    thread::spawn(move || {
                        barrier.wait();
                        for name in [b"one".as_slice(), b"two", b"three"] {
                            let number = numbers.number(name, 0).unwrap();
                            (0..10).for_each(|_| number.add(1.0));
                            // Others have places of their own, which become free.
                            numbers.number(name, owner + 1).unwrap().add(0.5);
                            numbers.forget(owner + 1);
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let mut values = values(&numbers);
            values.sort_by(|one, other| one.0.cmp(&other.0));
            assert_eq!(values, ["one", "three", "two"].map(|name| (String::from(name), 0, 40.0)));
        }
    }

    #[test]
    fn a_place_that_was_given_up_is_not_published_later() {
        let numbers = SharedNumbers::new().unwrap();
        let slow = numbers.claim(0).unwrap();
        numbers.number(b"one", 0).unwrap().add(1.0);
        assert_eq!(numbers.place(slow)[STATE].load(Ordering::SeqCst), super::ABANDONED);
        // It goes on, and takes the one that others have.
        numbers.number(b"one", 0).unwrap().add(1.0);
        assert_eq!(values(&numbers), [(String::from("one"), 0, 2.0)]);
    }

    #[test]
    fn a_process_that_was_killed_while_it_filled_a_place_holds_nobody_up() {
        let numbers = SharedNumbers::new().unwrap();
        numbers.words[USED].store(1, Ordering::SeqCst);
        numbers.place(0)[STATE].store(CLAIMED, Ordering::SeqCst);
        numbers.number(b"one", 0).unwrap().add(1.0);
        assert_eq!(values(&numbers), [(String::from("one"), 0, 1.0)]);
    }
}
