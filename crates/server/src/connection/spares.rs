//! Transactions that a thread keeps for later requests, with the capacity of their buffers.

use std::cell::RefCell;

use crate::connection::transaction::Transaction;

/// The most transactions that a thread keeps, and the most bytes that all of them hold.
const MOST: usize = 64;
const MOST_MEMORY: usize = 512 * 1024;

/// The kept transactions. Their boxes move with the requests, so the boxes are kept too.
#[allow(clippy::vec_box, reason = "the box itself is what is used again")]
struct Spares {
    transactions: Vec<Box<Transaction>>,
    memory: usize,
}

thread_local! {
    static SPARES: RefCell<Spares> = const { RefCell::new(Spares { transactions: Vec::new(), memory: 0 }) };
}

/// An empty transaction.
pub(crate) fn take() -> Box<Transaction> {
    let spare = SPARES.with_borrow_mut(|spares| {
        let spare = spares.transactions.pop()?;
        spares.memory -= spare.held();
        Some(spare)
    });
    spare.unwrap_or_else(|| Box::new(Transaction::new()))
}

/// Keeps a transaction for a later request, unless enough are kept.
pub(crate) fn give(mut transaction: Box<Transaction>) {
    transaction.clear();
    let memory = transaction.held();
    SPARES.with_borrow_mut(|spares| {
        if spares.transactions.len() < MOST && spares.memory + memory <= MOST_MEMORY {
            spares.memory += memory;
            spares.transactions.push(transaction);
        }
    });
}
