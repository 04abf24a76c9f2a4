//! Tickets: each names one wait of a runner that lets others of its thread run meanwhile. The server gives the ticket
//! back when what the runner waits for has come. Any thread.

use std::sync::atomic::{AtomicU64, Ordering};

/// A ticket unlike any other in the process; never 0.
pub(crate) fn ticket() -> u64 {
    static TICKETS: AtomicU64 = AtomicU64::new(0);
    TICKETS.fetch_add(1, Ordering::Relaxed) + 1
}
