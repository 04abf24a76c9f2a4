//! Random numbers that are no secrets: quick, without a system call each.
//!
//! Each thread has a generator of its own (xoshiro256++, Blackman and Vigna 2018), which the kernel seeds. Any thread.

use std::cell::Cell;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::process::Process;

/// The state of a generator, and the process in which it was seeded: a forked child has a copy of its parent's.
type State = Option<([u64; 4], Process)>;

thread_local! {
    static STATE: Cell<State> = const { Cell::new(None) };
}

/// The next 128 bits.
pub fn draw() -> u128 {
    let mut words = match STATE.get() {
        Some((words, process)) if process.is_here() => words,
        _ => seed(),
    };
    let (high, low) = (next(&mut words), next(&mut words));
    STATE.set(Some((words, Process::here())));
    u128::from(high) << 64 | u128::from(low)
}

fn next(words: &mut [u64; 4]) -> u64 {
    let [a, b, c, d] = *words;
    let drawn = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
    *words = [a ^ d ^ b, b ^ c ^ a, c ^ a ^ (b << 17), (d ^ b).rotate_left(45)];
    drawn
}

#[cold]
fn seed() -> [u64; 4] {
    let mut octets = [0; 32];
    let mut filled = 0;
    while filled < octets.len() {
        match getrandom(&mut octets[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            // A sandbox forbids it.
            Err(_) => return fallback(),
        }
    }
    let mut words = [0; 4];
    for (word, octets) in words.iter_mut().zip(octets.chunks_exact(8)) {
        *word = octets.iter().fold(0, |word, octet| word << 8 | u64::from(*octet));
    }
    // The one state from which the generator never leaves.
    if words == [0; 4] { fallback() } else { words }
}

/// A seed that is this thread's alone on this machine, for as long as its clock runs.
fn fallback() -> [u64; 4] {
    use crate::clock::{monotonic_nanos, wall_seconds};
    [monotonic_nanos(), wall_seconds(), u64::from(crate::process::id()), crate::process::thread_id() | 1]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::thread;

    use super::{draw, next, seed};

    #[test]
    fn the_generator_is_the_published_one() {
        // The first outputs of the reference implementation from the state 1, 2, 3, 4.
        let mut words = [1, 2, 3, 4];
        let drawn = [(); 4].map(|()| next(&mut words));
        assert_eq!(drawn, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
    }

    #[test]
    fn no_number_is_drawn_twice_on_any_thread() {
        let draws = || (0..1000).map(|_| draw()).collect::<Vec<_>>();
        let threads = [(); 4].map(|()| thread::spawn(draws));
        let drawn: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect();
        assert_eq!(drawn.iter().collect::<HashSet<_>>().len(), 4000);
        assert_ne!(seed(), seed());
    }
}
