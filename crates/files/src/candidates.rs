//! The codings in which a file can be compressed that was not, and what has become of each. All entries of one version
//! of a file share this.
//!
//! Any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tailrace_http::coding::Coding;

use crate::compress::CODINGS;

const POSSIBLE: u8 = 0;
/// It waits to be compressed, or is.
const QUEUED: u8 = 1;
/// It would hardly become smaller.
const USELESS: u8 = 2;

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

    /// The claim to this coding, for one caller, who has to see to it that the file is compressed. `None`: another one
    /// has it, or the file is not compressed in this coding.
    pub(super) fn claim(self: &Arc<Self>, coding: Coding) -> Option<Claim> {
        let claimed =
            |state: &AtomicU8| state.compare_exchange(POSSIBLE, QUEUED, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        self.state(coding).is_some_and(claimed).then(|| Claim { candidates: self.clone(), coding })
    }

    fn state(&self, coding: Coding) -> Option<&AtomicU8> {
        CODINGS.iter().position(|&one| one == coding).map(|place| &self.states[place])
    }
}

/// That nobody else has a file compressed in a coding. However it ends, by a panic, too, another request may claim the
/// coding then, unless it was given up.
pub(super) struct Claim {
    candidates: Arc<Candidates>,
    coding: Coding,
}

impl Claim {
    pub(super) fn coding(&self) -> Coding {
        self.coding
    }

    /// The file hardly becomes smaller: nobody claims it again.
    pub(super) fn give_up(&self) {
        self.change(USELESS);
    }

    fn change(&self, to: u8) {
        if let Some(state) = self.candidates.state(self.coding) {
            _ = state.compare_exchange(QUEUED, to, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.change(POSSIBLE);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use tailrace_http::coding::Coding;

    use super::Candidates;

    #[test]
    fn one_caller_claims_a_coding_until_its_claim_ends() {
        let candidates = Arc::new(Candidates::new(""));
        let claim = candidates.claim(Coding::Gzip);
        assert!(claim.is_some() && candidates.claim(Coding::Gzip).is_none());
        assert!(candidates.claim(Coding::Brotli).is_some(), "each coding has its own");
        drop(claim);
        let claim = candidates.claim(Coding::Gzip).unwrap();
        assert!(candidates.is_possible(Coding::Gzip));
        claim.give_up();
        drop(claim);
        assert!(candidates.claim(Coding::Gzip).is_none() && !candidates.is_possible(Coding::Gzip));
        assert!(candidates.claim(Coding::Zstd).is_none() && !candidates.is_possible(Coding::Identity));
    }
}
