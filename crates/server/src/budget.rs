//! How much memory the responses of one process hold for clients that have not taken them yet, and how much its request
//! bodies.
//!
//! Every outbox and every body in memory charges what it holds. A block that several responses hold by reference (the
//! same `bytes` object) is one piece of memory and counts once. Any thread charges and gives back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::lock;

/// Memory of one kind.
#[derive(Default)]
pub(crate) struct Budget {
    used: AtomicUsize,
    /// How often each block held by reference is queued, and its length, by its address.
    shared: Mutex<HashMap<usize, (usize, usize)>>,
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
        let (holders, length) = shared.entry(block.as_ptr() as usize).or_insert((0, block.len()));
        *holders += 1;
        if *holders == 1 {
            self.charge(*length);
        }
    }

    /// A block that was charged by [`Budget::charge_shared`] is let go.
    pub(crate) fn give_back_shared(&self, block: &[u8]) {
        let mut shared = lock(&self.shared);
        let address = block.as_ptr() as usize;
        if let Some((holders, length)) = shared.get_mut(&address) {
            *holders -= 1;
            if *holders == 0 {
                self.give_back(*length);
                shared.remove(&address);
            }
        }
    }
}

/// What one owner has charged, given back when it is dropped.
pub struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Charge {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self { budget, bytes: 0 }
    }

    /// The owner holds so many bytes now.
    pub(crate) fn set(&mut self, bytes: usize) {
        if bytes >= self.bytes {
            self.budget.charge(bytes - self.bytes);
        } else {
            self.budget.give_back(self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// All that is charged to the same budget.
    pub(crate) fn all(&self) -> usize {
        self.budget.used()
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Budget, Charge};

    #[test]
    fn a_charge_is_given_back_when_its_owner_goes() {
        let budget = Arc::new(Budget::default());
        let mut first = Charge::new(budget.clone());
        let mut second = Charge::new(budget.clone());
        first.set(100);
        second.set(50);
        first.set(20);
        assert_eq!(second.all(), 70);
        drop(first);
        assert_eq!(budget.used(), 50);
    }

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
