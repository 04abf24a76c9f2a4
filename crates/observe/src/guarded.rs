//! Some words of shared memory that are written together and read by another process, without a lock.
//!
//! The first word is a sequence number: what was read is valid if it is even, and the same before and after the read. A
//! writer may be killed at any moment; it leaves the number odd, and readers ignore the words until the next write.
//! There is one writer at a time.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use tailrace_http::identity::{LONGEST_ID, Traced};

const SEQUENCE: usize = 0;
/// Words of an address.
pub(super) const PEER: usize = 3;
/// Words of a place in a trace.
pub(super) const TRACE_WORDS: usize = 5;
/// Words of the id of a request.
pub(super) const ID_WORDS: usize = LONGEST_ID.div_ceil(8);
/// The length of an id begins at this bit of a word with two lengths.
const ID_LENGTH: u32 = 48;

#[derive(Clone, Copy)]
pub(super) struct Guarded {
    words: &'static [AtomicU64],
}

impl Guarded {
    /// These words; the first one is the sequence number.
    pub(super) fn of(words: &'static [AtomicU64]) -> Self {
        Self { words }
    }

    pub(super) fn store(self, word: usize, value: u64) {
        self.words[word].store(value, Ordering::Relaxed);
    }

    pub(super) fn load(self, word: usize) -> u64 {
        self.words[word].load(Ordering::Relaxed)
    }

    /// Changes words; the sequence number is odd meanwhile.
    pub(super) fn change(self, write: impl FnOnce()) {
        let sequence = self.load(SEQUENCE) | 1;
        self.store(SEQUENCE, sequence);
        fence(Ordering::Release);
        write();
        self.words[SEQUENCE].store(sequence.wrapping_add(1), Ordering::Release);
    }

    /// Stores a text from the word `at` on, cut after so many words.
    pub(super) fn store_text(self, at: usize, words: usize, text: &[u8]) {
        let text = &text[..text.len().min(8 * words)];
        for (word, bytes) in text.chunks(8).enumerate() {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            self.store(at + word, u64::from_ne_bytes(whole));
        }
        if text.len() < 8 * words && text.len().is_multiple_of(8) {
            self.store(at + text.len() / 8, 0);
        }
    }

    /// Stores an address in [`PEER`] words.
    pub(super) fn store_peer(self, at: usize, peer: Option<SocketAddr>) {
        let (port, address) = match peer {
            None => (0, 0),
            Some(SocketAddr::V4(peer)) => (u64::from(peer.port()) | 4 << 32, u128::from(u32::from(*peer.ip()))),
            Some(SocketAddr::V6(peer)) => (u64::from(peer.port()) | 6 << 32, u128::from(*peer.ip())),
        };
        self.store(at, port);
        self.store(at + 1, (address >> 64) as u64);
        self.store(at + 2, address as u64);
    }

    /// Stores a place in a trace in [`TRACE_WORDS`] words.
    pub(super) fn store_trace(self, at: usize, traced: Option<Traced>) {
        let words = traced.map_or([0; TRACE_WORDS], |Traced { trace, parent, span, application }| {
            [(trace >> 64) as u64, trace as u64, parent, span, application]
        });
        for (word, value) in words.into_iter().enumerate() {
            self.store(at + word, value);
        }
    }

    /// A copy of the words; `None`: the writer was killed while it wrote, or writes all the time.
    pub(super) fn read<const N: usize>(self) -> Option<[u64; N]> {
        // A living writer needs a few nanoseconds; a dead one never ends, so the attempts are limited.
        for attempt in 0..1_000 {
            if attempt >= 100 {
                // The writer may have lost its processor.
                std::thread::yield_now();
            }
            let before = self.words[SEQUENCE].load(Ordering::Acquire);
            let mut copy = [0; N];
            for (word, value) in copy.iter_mut().enumerate() {
                *value = self.load(word);
            }
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.load(SEQUENCE) == before {
                return Some(copy);
            }
        }
        None
    }
}

/// One word with the lengths of a target and of an id.
#[inline]
pub(super) fn lengths(target: &[u8], id: &[u8]) -> u64 {
    target.len() as u64 | (id.len() as u64) << ID_LENGTH
}

/// The two lengths in such a word.
pub(super) fn lengths_of(word: u64) -> (usize, usize) {
    let target = word & ((1 << ID_LENGTH) - 1);
    (usize::try_from(target).unwrap_or(usize::MAX), usize::try_from(word >> ID_LENGTH).unwrap_or(usize::MAX))
}

/// The text in words that were read, of this length in bytes or as long as they are.
pub(super) fn text_of(words: &[u64], length: usize) -> Vec<u8> {
    let mut text: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    text.truncate(length);
    text
}

/// The text in these words, up to the first NUL.
pub(super) fn word_of(words: &[u64]) -> Vec<u8> {
    let text = text_of(words, usize::MAX);
    let length = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    text[..length].to_vec()
}

/// The place in a trace in words that were read, if there is one.
pub(super) fn trace_of(words: &[u64]) -> Option<Traced> {
    let trace = u128::from(words[0]) << 64 | u128::from(words[1]);
    (trace != 0).then(|| Traced { trace, parent: words[2], span: words[3], application: words[4] })
}

/// The address in words that were read.
pub(super) fn peer_of(words: &[u64]) -> Option<SocketAddr> {
    let port = words[0] as u16;
    let address = u128::from(words[1]) << 64 | u128::from(words[2]);
    let ip = match words[0] >> 32 {
        4 => IpAddr::V4(Ipv4Addr::from(address as u32)),
        6 => IpAddr::V6(Ipv6Addr::from(address)),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tailrace_os::shared_memory::shared_words;

    use super::{Guarded, PEER, peer_of, text_of, word_of};

    #[test]
    fn a_writer_that_was_killed_while_it_wrote_leaves_nothing_to_read_until_the_next_write() {
        let words = shared_words(4).unwrap();
        let guarded = Guarded::of(words);
        let copy: [u64; 4] = guarded.read().unwrap();
        assert_eq!(copy, [0; 4]);
        guarded.store(0, 7);
        assert!(guarded.read::<4>().is_none());
        guarded.change(|| guarded.store(1, 5));
        assert_eq!(guarded.read::<4>().unwrap()[1], 5);
    }

    #[test]
    fn texts_and_addresses_are_read_as_they_were_stored() {
        let guarded = Guarded::of(shared_words(8).unwrap());
        for text in [&b""[..], b"GET", b"OPTIONSS", b"0123456789abcdef"] {
            guarded.store_text(1, 2, b"ABCDEFGHIJKLMNOP");
            guarded.store_text(1, 2, text);
            let copy: [u64; 8] = guarded.read().unwrap();
            assert_eq!(word_of(&copy[1..3]), text);
            assert_eq!(text_of(&copy[1..3], text.len()), text);
        }
        for peer in [None, Some("192.0.2.7:80".parse().unwrap()), Some("[2001:db8::1]:8080".parse().unwrap())] {
            guarded.store_peer(2, peer);
            assert_eq!(peer_of(&guarded.read::<8>().unwrap()[2..2 + PEER]), peer);
        }
    }
}
