//! Limits per client, over all workers of a server: how many requests it may send in a time, and how many connections it
//! may have at once.
//!
//! The counts are in memory that the workers share, of a fixed size. A worker may be killed at any moment, so there is no
//! lock. Any thread.

pub(crate) mod connections;
pub(crate) mod key;
pub(crate) mod rates;

use std::io;

use tailrace_os::shared_memory::shared_words;

use crate::clients::connections::Connections;
use crate::clients::key::Secret;
use crate::clients::rates::Rates;

/// The counts of all clients.
#[derive(Clone, Copy)]
pub struct Clients {
    pub(crate) secret: Secret,
    pub(crate) rates: Rates,
    pub(crate) connections: Connections,
}

impl Clients {
    /// The counts of a server with this number of workers. The memory is shared with processes that are forked later.
    ///
    /// # Errors
    /// No memory.
    pub fn new(workers: usize) -> io::Result<Self> {
        let tables = workers.saturating_mul(Connections::WORDS);
        let words = shared_words(tables.saturating_add(Secret::WORDS + Rates::WORDS))?;
        let (secret, words) = words.split_at(Secret::WORDS);
        let (rates, connections) = words.split_at(Rates::WORDS);
        Ok(Self { secret: Secret::new(secret), rates: Rates::new(rates), connections: Connections::new(connections) })
    }

    /// Forgets the connections of a worker that has ended, the one with this slot of the scoreboard.
    pub fn forget(&self, worker: usize) {
        self.connections.forget(worker);
    }
}
