//! Tickets: numbers of waits. A greenlet that waits lets others of its thread run; the server returns the ticket when
//! what the greenlet waits for has come. Any thread.

use std::sync::atomic::{AtomicU64, Ordering};

/// A ticket unlike any other in the process; never 0.
pub(crate) fn ticket() -> u64 {
    static TICKETS: AtomicU64 = AtomicU64::new(0);
    TICKETS.fetch_add(1, Ordering::Relaxed) + 1
}
