//! How much memory a server holds for its clients: request heads and the bytes received with them, request bodies,
//! responses.
//!
//! Memory that is kept for a client while its thread serves another one is charged to the budget of its kind, by
//! capacity, not by length. A small request that arrives complete in one read is not charged: it is in a buffer that
//! its thread reuses, and `--max-queue` limits the number of waiting requests. A block that several responses hold by
//! reference (the same `bytes` object) counts once. Any thread charges and releases.
//!
//! All kinds together have one limit, [`ClientMemory`]. Two threads that check it at the same moment may together
//! exceed it by what each has read. Responses have their own limit. What they hold beyond it is moved to files, and
//! until then does not reduce the memory for requests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tailrace_os::sync::lock;

use crate::request::pool::Pool;

/// Unused segments of request bodies may use 1/16 of the limit. They are not counted: they are released when no body
/// has used one for two seconds.
const POOL: usize = 16;
/// Responses may use all but 1/4 of the limit, even if their own limit is higher: the rest is always for requests.
const FOR_REQUESTS: usize = 4;

/// The memory held for clients, by kind.
pub(crate) struct ClientMemory {
    /// Limit of all kinds together, in bytes.
    limit: usize,
    /// Limit of responses, in bytes.
    response_limit: usize,
    /// Request heads, and bytes received after them that belong to later requests.
    pub(crate) requests: Arc<Budget>,
    pub(crate) bodies: Arc<Budget>,
    pub(crate) responses: Arc<Budget>,
    /// Segments of request bodies that are not in use.
    pub(crate) pool: Arc<Pool>,
    /// The most that was held since [`ClientMemory::take_freed`] last returned a number.
    peak: AtomicUsize,
}

impl ClientMemory {
    /// Nothing is held yet.
    pub(crate) fn new(limit: usize, response_limit: usize) -> Self {
        Self {
            limit,
            response_limit: response_limit.min(limit - limit / FOR_REQUESTS),
            requests: Arc::default(),
            bodies: Arc::default(),
            responses: Arc::default(),
            pool: Arc::new(Pool::new(limit / POOL)),
            peak: AtomicUsize::new(0),
        }
    }

    /// Bytes held now.
    pub(crate) fn used(&self) -> usize {
        // Saturating: the counters change while they are read.
        self.requests.used().saturating_add(self.bodies.used()).saturating_add(self.responses.used())
    }

    /// Bytes held now, without what responses hold beyond their limit: requests are not refused because of that.
    fn counted(&self) -> usize {
        let requests = self.requests.used().saturating_add(self.bodies.used());
        requests.saturating_add(self.responses.used().min(self.response_limit))
    }

    /// True when `more` bytes are within the limit.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        self.counted().saturating_add(more) <= self.limit
    }

    /// True when there is room for bytes that only save work: they may not use the last quarter of the limit.
    pub(crate) fn has_room_to_spare(&self, more: usize) -> bool {
        self.counted().saturating_add(more) <= self.limit - self.limit / 4
    }

    /// How many bytes must be freed for `more` bytes plus an eighth of the limit, so that this does not recur at once.
    pub(crate) fn excess(&self, more: usize) -> usize {
        self.counted().saturating_add(more).saturating_sub(self.limit - self.limit / 8)
    }

    /// True when `more` bytes of responses are within the limit of responses, and of all.
    pub(crate) fn has_room_for_response(&self, more: usize) -> bool {
        self.responses.used().saturating_add(more) <= self.response_limit && self.has_room(more)
    }

    /// Limit of responses, in bytes.
    pub(crate) fn response_limit(&self) -> usize {
        self.response_limit
    }

    /// True when responses hold more than their limit.
    pub(crate) fn is_response_limit_exceeded(&self) -> bool {
        self.responses.used() > self.response_limit
    }

    /// True if an eighth of the limit of responses is free. Once it has been exceeded, that much is freed, so that this
    /// does not recur at once.
    pub(crate) fn is_enough_of_responses_freed(&self) -> bool {
        self.responses.used() <= self.response_limit - self.response_limit / 8
    }

    /// Bytes released since the peak, if they are at least `worth`; the count then restarts.
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
    /// For each block held by reference, by its address: how often it is queued, and its length.
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

    /// Charges a block that is held by reference, unless it is charged already. False: the system has no memory to note
    /// that, and nothing was charged.
    #[must_use]
    pub(crate) fn charge_shared(&self, block: &[u8]) -> bool {
        let mut shared = lock(&self.shared);
        if shared.try_reserve(1).is_err() {
            return false;
        }
        let (holders, length) = shared.entry(block.as_ptr() as usize).or_insert((0, block.len()));
        *holders += 1;
        if *holders == 1 {
            self.charge(*length);
        }
        true
    }

    /// The part of a block that each of its holders accounts for, in bytes: the others keep the block alive.
    pub(crate) fn share_of(&self, block: &[u8]) -> usize {
        lock(&self.shared).get(&(block.as_ptr() as usize)).map_or(0, |(holders, length)| length / holders)
    }

    /// Releases a block that [`Budget::charge_shared`] has charged, once its last holder has called this.
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

/// Every owner keeps the budget alive until it has released its charge, so nothing stays charged after the last.
#[cfg(debug_assertions)]
impl Drop for Budget {
    fn drop(&mut self) {
        let left = self.used();
        assert!(left == 0 || std::thread::panicking(), "{left} bytes of client memory are still charged");
    }
}

/// What one owner has charged; released when it is dropped. The default belongs to no budget and charges nothing.
#[derive(Default)]
pub(crate) struct Charge {
    budget: Option<Arc<Budget>>,
    bytes: usize,
}

impl Charge {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self { budget: Some(budget), bytes: 0 }
    }

    /// A charge to the same budget, of nothing.
    pub(crate) fn another(&self) -> Self {
        Self { budget: self.budget.clone(), bytes: 0 }
    }

    /// Sets the number of bytes that the owner holds now.
    pub(crate) fn set(&mut self, bytes: usize) {
        let Some(budget) = &self.budget else { return };
        if bytes >= self.bytes {
            budget.charge(bytes - self.bytes);
        } else {
            budget.give_back(self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// Sets the number of bytes. The charge belongs to this budget from now on if it belonged to none.
    pub(crate) fn set_in(&mut self, budget: &Arc<Budget>, bytes: usize) {
        self.budget.get_or_insert_with(|| budget.clone());
        self.set(bytes);
    }

    /// Bytes charged for this owner.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes charged to the same budget by all owners.
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

    fn charged(budget: &Arc<Budget>, bytes: usize) -> Charge {
        let mut charge = Charge::new(budget.clone());
        charge.set(bytes);
        charge
    }

    #[test]
    fn all_kinds_together_have_one_limit() {
        let memory = ClientMemory::new(1_000, 500);
        let budgets = [(&memory.requests, 200), (&memory.bodies, 300), (&memory.responses, 200)];
        let _charges = budgets.map(|(budget, bytes)| charged(budget, bytes));
        assert!(memory.has_room(300) && !memory.has_room(301));
        assert!(memory.has_room_to_spare(50) && !memory.has_room_to_spare(51));
        assert_eq!((memory.excess(0), memory.excess(301)), (0, 126));
        assert!(memory.has_room_for_response(300) && !memory.has_room_for_response(301));
    }

    #[test]
    fn responses_beyond_their_limit_take_no_memory_from_requests() {
        let memory = ClientMemory::new(1_000, 400);
        let mut charge = charged(&memory.responses, 400);
        assert!(!memory.is_response_limit_exceeded() && !memory.is_enough_of_responses_freed());
        assert_eq!(memory.excess(0), 0);
        charge.set(5_400);
        assert!(memory.is_response_limit_exceeded());
        assert!(memory.has_room(600) && !memory.has_room(601) && !memory.has_room_for_response(0));
        assert_eq!((memory.used(), memory.excess(600)), (5_400, 125));
        charge.set(351);
        assert!(!memory.is_enough_of_responses_freed());
        charge.set(350);
        assert!(memory.is_enough_of_responses_freed());
    }

    #[test]
    fn a_quarter_of_the_limit_is_for_requests_whatever_responses_may_use() {
        let memory = ClientMemory::new(1_000, 2_000);
        let _charge = charged(&memory.responses, 2_000);
        assert!(memory.has_room(250) && !memory.has_room(251));
    }

    #[test]
    fn what_was_given_back_since_the_peak_is_returned_once() {
        let memory = ClientMemory::new(1_000, 500);
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
    fn a_charge_without_a_budget_counts_nothing() {
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
    fn a_charge_is_given_back_when_it_is_dropped() {
        let budget = Arc::new(Budget::default());
        let mut first = charged(&budget, 100);
        let second = charged(&budget, 50);
        first.set(20);
        assert_eq!(second.all(), 70);
        drop(first);
        assert_eq!(budget.used(), 50);
    }

    #[test]
    fn a_block_that_two_responses_hold_counts_once() {
        let budget = Budget::default();
        let block = [0; 100];
        assert!(budget.charge_shared(&block));
        assert_eq!(budget.share_of(&block), 100);
        assert!(budget.charge_shared(&block));
        budget.charge(7);
        assert_eq!((budget.used(), budget.share_of(&block)), (107, 50));
        budget.give_back_shared(&block);
        assert_eq!(budget.used(), 107);
        budget.give_back_shared(&block);
        budget.give_back(7);
        assert_eq!(budget.used(), 0);
    }
}
