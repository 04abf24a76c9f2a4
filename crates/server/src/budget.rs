//! How much memory the responses of one process may hold for clients that have not taken them yet.
//!
//! Every outbox charges what it holds. A block that several responses hold by reference (the same `bytes` object) is
//! one piece of memory and counts once. Any thread charges and gives back.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::lock;

/// The memory of queued responses.
#[derive(Default)]
pub(crate) struct Budget {
    used: AtomicUsize,
    /// How often each block held by reference is queued, by its address.
    shared: Mutex<HashMap<usize, usize>>,
}

impl Budget {
    /// Bytes held now.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn charge(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// A block is held by reference from now on.
    pub(crate) fn charge_shared(&self, block: &[u8]) {
        let mut shared = lock(&self.shared);
        let holders = shared.entry(block.as_ptr() as usize).or_insert(0);
        *holders += 1;
        if *holders == 1 {
            self.charge(block.len());
        }
    }

    /// A block that was charged by [`Budget::charge_shared`] is let go.
    pub(crate) fn give_back_shared(&self, block: &[u8]) {
        let mut shared = lock(&self.shared);
        let address = block.as_ptr() as usize;
        if let Some(holders) = shared.get_mut(&address) {
            *holders -= 1;
            if *holders == 0 {
                shared.remove(&address);
                self.give_back(block.len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Budget;

    #[test]
    fn a_block_that_two_responses_hold_counts_once() {
        let budget = Budget::default();
        let block = [0; 100];
        budget.charge_shared(&block);
        budget.charge_shared(&block);
        budget.charge(7);
        assert_eq!(budget.used(), 107);
        budget.give_back_shared(&block);
        assert_eq!(budget.used(), 107);
        budget.give_back_shared(&block);
        budget.give_back(7);
        assert_eq!(budget.used(), 0);
    }
}
