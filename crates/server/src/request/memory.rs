//! How much memory a server holds for its clients: request heads and what comes with them, request bodies, responses.
//!
//! Memory that is kept for a client while its thread serves another one is charged to the budget of its kind, by its
//! capacity and not by its length. A small request that comes whole in one read is not charged: it is in a buffer that
//! its thread uses again, and `--max-queue` limits how many wait. A block that several responses hold by reference (the
//! same `bytes` object) is one piece of memory and counts once. Any thread charges and gives back.
//!
//! The kinds have one limit together, [`ClientMemory`]. Two threads that look at it at the same moment may go past it
//! by what each of them has read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::os::sync::lock;

/// All that is held for clients, by its kind.
pub(crate) struct ClientMemory {
    /// Bytes that all kinds may have together.
    limit: usize,
    /// Request heads, and what came behind them before its time.
    pub(crate) requests: Arc<Budget>,
    pub(crate) bodies: Arc<Budget>,
    pub(crate) responses: Arc<Budget>,
    /// The most that was held since the last call of [`ClientMemory::take_freed`] that told of any.
    peak: AtomicUsize,
}

impl ClientMemory {
    /// Nothing is held yet.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            requests: Arc::default(),
            bodies: Arc::default(),
            responses: Arc::default(),
            peak: AtomicUsize::new(0),
        }
    }

    /// Bytes held now.
    pub(crate) fn used(&self) -> usize {
        // Charges of one thread may be given back by another one meanwhile.
        self.requests.used().saturating_add(self.bodies.used()).saturating_add(self.responses.used())
    }

    /// True when `more` bytes are within the limit.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        self.used().saturating_add(more) <= self.limit
    }

    /// The same for bytes that are kept only to spare a client some work: they may not take the last quarter.
    pub(crate) fn has_room_to_spare(&self, more: usize) -> bool {
        self.used().saturating_add(more) <= self.limit - self.limit / 4
    }

    /// How much has to be given up so that there is room for `more` bytes and a while passes before there is none
    /// again.
    pub(crate) fn excess(&self, more: usize) -> usize {
        self.used().saturating_add(more).saturating_sub(self.limit - self.limit / 8)
    }

    /// Bytes that were given back since the most was held, if they are at least `worth`; told once.
    pub(crate) fn take_freed(&self, worth: usize) -> Option<usize> {
        let used = self.used();
        let peak = self.peak.fetch_max(used, Ordering::Relaxed).max(used);
        if peak - used < worth {
            return None;
        }
        self.peak.store(used, Ordering::Relaxed);
        Some(peak - used)
    }
}

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

/// What one owner has charged, given back when it is dropped. By default it is of no budget.
#[derive(Default)]
pub struct Charge {
    budget: Option<Arc<Budget>>,
    bytes: usize,
}

impl Charge {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self { budget: Some(budget), bytes: 0 }
    }

    /// The owner holds so many bytes now.
    pub(crate) fn set(&mut self, bytes: usize) {
        let Some(budget) = &self.budget else { return };
        if bytes >= self.bytes {
            budget.charge(bytes - self.bytes);
        } else {
            budget.give_back(self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// The owner holds so many bytes now, of this budget.
    pub(crate) fn set_in(&mut self, budget: &Arc<Budget>, bytes: usize) {
        self.budget.get_or_insert_with(|| budget.clone());
        self.set(bytes);
    }

    /// What is charged.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// All that is charged to the same budget.
    pub(crate) fn all(&self) -> usize {
        self.budget.as_ref().map_or(0, |budget| budget.used())
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

    use super::{Budget, Charge, ClientMemory};

    #[test]
    fn all_kinds_together_have_one_limit() {
        let memory = ClientMemory::new(1_000);
        memory.requests.charge(200);
        memory.bodies.charge(300);
        memory.responses.charge(200);
        assert!(memory.has_room(300) && !memory.has_room(301));
        assert!(memory.has_room_to_spare(50) && !memory.has_room_to_spare(51));
        assert_eq!((memory.excess(0), memory.excess(301)), (0, 126));
    }

    #[test]
    fn what_was_given_back_since_the_peak_is_told_once() {
        let memory = ClientMemory::new(1_000);
        memory.requests.charge(500);
        assert_eq!(memory.take_freed(100), None);
        memory.requests.give_back(99);
        assert_eq!(memory.take_freed(100), None);
        memory.requests.give_back(1);
        assert_eq!(memory.take_freed(100), Some(100));
        assert_eq!(memory.take_freed(100), None);
        memory.requests.give_back(400);
        assert_eq!(memory.take_freed(100), Some(400));
    }

    #[test]
    fn a_charge_of_no_budget_is_none() {
        let budget = Arc::new(Budget::default());
        let mut charge = Charge::default();
        charge.set(100);
        assert_eq!(charge.bytes(), 0);
        charge.set_in(&budget, 100);
        assert_eq!((charge.bytes(), budget.used()), (100, 100));
        drop(charge);
        assert_eq!(budget.used(), 0);
    }

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
