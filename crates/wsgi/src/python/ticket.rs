//! Tickets identify waits. While a greenlet waits, others of its thread run; the server returns the ticket when the
//! event that the greenlet waits for has occurred. Any thread.

use std::sync::atomic::{AtomicU64, Ordering};

/// A ticket that is unique in the process; never 0.
pub(crate) fn ticket() -> u64 {
    static TICKETS: AtomicU64 = AtomicU64::new(0);
    TICKETS.fetch_add(1, Ordering::Relaxed) + 1
}
