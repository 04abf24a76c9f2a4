//! Transactions that a thread keeps for later requests, with the capacity of their buffers.

use std::cell::RefCell;

use crate::connection::transaction::Transaction;

/// The most transactions that a thread keeps, and the most bytes that all of them hold.
const MOST: usize = 64;
const MOST_MEMORY: usize = 512 * 1024;

thread_local! {
    static POOL: TransactionPool = const { TransactionPool::new() };
}

/// Runs `work` with the pool of the calling thread.
pub(crate) fn with_pool<T>(work: impl FnOnce(&TransactionPool) -> T) -> T {
    POOL.with(work)
}

/// A pool, for one thread.
#[derive(Default)]
pub(crate) struct TransactionPool {
    kept: RefCell<Kept>,
}

/// The boxes move with the requests, so the boxes are kept too.
#[allow(clippy::vec_box, reason = "the box itself is what is used again")]
#[derive(Default)]
struct Kept {
    transactions: Vec<Box<Transaction>>,
    memory: usize,
}

impl TransactionPool {
    const fn new() -> Self {
        Self { kept: RefCell::new(Kept { transactions: Vec::new(), memory: 0 }) }
    }

    /// An empty transaction.
    pub(crate) fn take(&self) -> Box<Transaction> {
        let mut kept = self.kept.borrow_mut();
        match kept.transactions.pop() {
            Some(transaction) => {
                kept.memory -= transaction.held();
                transaction
            }
            None => Box::new(Transaction::new()),
        }
    }

    /// Keeps a transaction for a later request, unless enough are kept.
    pub(crate) fn give(&self, mut transaction: Box<Transaction>) {
        transaction.clear();
        let memory = transaction.held();
        let mut kept = self.kept.borrow_mut();
        if kept.transactions.len() < MOST && kept.memory + memory <= MOST_MEMORY {
            kept.memory += memory;
            kept.transactions.push(transaction);
        }
    }
}
