//! The codings in which a file can be compressed that was not, and what has become of each. All entries of one version
//! of a file share this.
//!
//! Any thread.

use std::sync::atomic::{AtomicU8, Ordering};

use tailrace_http::coding::Coding;

use crate::static_files::compress::CODINGS;

const POSSIBLE: u8 = 0;
/// It waits to be compressed, or is.
const QUEUED: u8 = 1;
/// It would hardly become smaller.
const USELESS: u8 = 2;

/// See the module.
pub(super) struct Candidates {
    /// The Cache-Control field of the file.
    pub(super) cache_control: String,
    /// Of each of `CODINGS`.
    states: [AtomicU8; CODINGS.len()],
}

impl Candidates {
    /// All codings are possible.
    pub(super) fn new(cache_control: &str) -> Self {
        Self { cache_control: cache_control.to_owned(), states: Default::default() }
    }

    /// The file can be compressed in this coding, or is just now.
    pub(super) fn is_possible(&self, coding: Coding) -> bool {
        self.state(coding).is_some_and(|state| state.load(Ordering::Relaxed) != USELESS)
    }

    /// True for one caller, who has to see to it that the file is compressed in this coding.
    pub(super) fn claim(&self, coding: Coding) -> bool {
        let claimed =
            |state: &AtomicU8| state.compare_exchange(POSSIBLE, QUEUED, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        self.state(coding).is_some_and(claimed)
    }

    /// It is no longer queued: it has been compressed, or another request shall ask again.
    pub(super) fn release(&self, coding: Coding) {
        self.set(coding, POSSIBLE);
    }

    /// It hardly becomes smaller.
    pub(super) fn give_up(&self, coding: Coding) {
        self.set(coding, USELESS);
    }

    fn set(&self, coding: Coding, value: u8) {
        if let Some(state) = self.state(coding) {
            state.store(value, Ordering::Relaxed);
        }
    }

    fn state(&self, coding: Coding) -> Option<&AtomicU8> {
        CODINGS.iter().position(|&one| one == coding).map(|place| &self.states[place])
    }
}

#[cfg(test)]
mod tests {
    use tailrace_http::coding::Coding;

    use super::Candidates;

    #[test]
    fn one_caller_claims_a_coding_until_it_is_released() {
        let candidates = Candidates::new("");
        assert!(candidates.claim(Coding::Gzip) && !candidates.claim(Coding::Gzip) && candidates.claim(Coding::Brotli));
        candidates.release(Coding::Gzip);
        assert!(candidates.claim(Coding::Gzip) && candidates.is_possible(Coding::Gzip));
        candidates.give_up(Coding::Gzip);
        assert!(!candidates.claim(Coding::Gzip) && !candidates.is_possible(Coding::Gzip));
        assert!(!candidates.claim(Coding::Zstd) && !candidates.is_possible(Coding::Identity));
    }
}
