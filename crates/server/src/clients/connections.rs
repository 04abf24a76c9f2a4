//! How many connections each client has: a table for each worker, to which only that worker writes. The master clears
//! the table of a worker that has ended, so that a killed worker leaves nothing behind.
//!
//! A table has room for [`CLIENTS`] clients. Connections beyond that are not counted, so many clients make the limits of
//! others wider, never narrower.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use tailrace_os::process::Process;

use crate::clients::key::{ClientKey, Secret};

/// Clients in one set: a client may be in any entry of its set, which is one line of the processor's cache.
const WAYS: usize = 8;
const SETS: usize = 1024;
/// Clients for which the table of a worker has room.
pub(crate) const CLIENTS: usize = SETS * WAYS;
/// The low bits of an entry, which count its connections; the others are the client.
const COUNT: u64 = 0xffff;

/// The tables of all workers. An entry is one word.
#[derive(Clone, Copy)]
pub(crate) struct Connections {
    /// For each worker, whether its table is in use. An unused table has no memory yet.
    in_use: &'static [AtomicU64],
    /// The tables, one after the other.
    tables: &'static [AtomicU64],
}

/// The tables as one worker uses them.
pub(crate) struct ConnectionLimit {
    secret: Secret,
    connections: Connections,
    worker: usize,
    most: usize,
}

/// A connection that is counted, until this is dropped.
pub(crate) struct Connected {
    entry: &'static AtomicU64,
    process: Process,
}

impl ConnectionLimit {
    /// worker: whose table is written. most: connections of a client.
    pub(crate) fn new(secret: Secret, connections: Connections, worker: usize, most: usize) -> Self {
        Self { secret, connections, worker, most }
    }

    /// Counts a new connection of a client. `None`: there is no room to count it.
    ///
    /// # Errors
    /// The client has as many connections as it may have.
    pub(crate) fn connect(&self, client: IpAddr) -> Result<Option<Connected>, TooMany> {
        let key = self.secret.key(client);
        // It is counted first: two workers that accept at the same moment then know of each other.
        let connected = self.connections.add(self.worker, key);
        if self.connections.count(key) > self.most as u64 { Err(TooMany) } else { Ok(connected) }
    }

    /// Counts a connection that was counted before, without a limit. `None`: there is no room to count it.
    pub(crate) fn add(&self, client: IpAddr) -> Option<Connected> {
        self.connections.add(self.worker, self.secret.key(client))
    }
}

/// A client has as many connections as it may have.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

impl Drop for Connected {
    fn drop(&mut self) {
        // In a child that the application has forked, the connection is its parent's.
        if self.process.is_here() {
            // The last connection leaves the entry to others.
            let _ = self.entry.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |entry| {
                Some(if entry & COUNT <= 1 { 0 } else { entry - 1 })
            });
        }
    }
}

impl Connections {
    /// Words of each worker.
    pub(super) const WORDS: usize = CLIENTS + 1;

    /// For as many workers as there are words for.
    pub(super) fn new(words: &'static [AtomicU64]) -> Self {
        let (in_use, tables) = words.split_at(words.len() / Self::WORDS);
        Self { in_use, tables }
    }

    /// Forgets the connections of a worker, which has ended.
    pub(crate) fn forget(self, worker: usize) {
        if let (Some(in_use), Some(table)) = (self.in_use.get(worker), self.table(worker))
            && in_use.swap(0, Ordering::Relaxed) != 0
        {
            table.iter().for_each(|entry| entry.store(0, Ordering::Relaxed));
        }
    }

    fn table(self, worker: usize) -> Option<&'static [AtomicU64]> {
        self.tables.get(worker.checked_mul(CLIENTS)?..)?.get(..CLIENTS)
    }

    fn add(self, worker: usize, key: ClientKey) -> Option<Connected> {
        let table = self.table(worker)?;
        self.in_use.get(worker)?.store(1, Ordering::Relaxed);
        let set = set_of(table, key);
        loop {
            let own = set.iter().find(|entry| is_of(entry.load(Ordering::Relaxed), key));
            let entry = own.or_else(|| set.iter().find(|entry| entry.load(Ordering::Relaxed) == 0))?;
            let counted = entry.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |entry| match entry {
                0 => Some(tag_of(key) | 1),
                _ if is_of(entry, key) && entry & COUNT < COUNT => Some(entry + 1),
                _ => None,
            });
            match counted {
                Ok(_) => return Some(Connected { entry, process: Process::here() }),
                Err(full) if is_of(full, key) => return None,
                // Another client has taken it meanwhile.
                Err(_) => {}
            }
        }
    }

    /// The connections that a client has to all workers.
    fn count(self, key: ClientKey) -> u64 {
        let workers = self.in_use.iter().zip(self.tables.chunks_exact(CLIENTS));
        let entries =
            workers.filter(|(in_use, _)| in_use.load(Ordering::Relaxed) != 0).flat_map(|(_, table)| set_of(table, key));
        let counts = entries.map(|entry| entry.load(Ordering::Relaxed)).filter(|entry| is_of(*entry, key));
        counts.map(|entry| entry & COUNT).sum()
    }
}

/// The client of an entry, whose count is 0.
fn tag_of(ClientKey(key): ClientKey) -> u64 {
    // The lowest bit of the tag is set, because 0 marks a free entry.
    (key & !COUNT) | (COUNT + 1)
}

fn is_of(entry: u64, key: ClientKey) -> bool {
    entry & !COUNT == tag_of(key)
}

fn set_of(table: &'static [AtomicU64], ClientKey(key): ClientKey) -> &'static [AtomicU64] {
    let start = key as usize % SETS * WAYS;
    &table[start..start + WAYS]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{IpAddr, Ipv4Addr};

    use std::sync::atomic::Ordering;

    use super::{CLIENTS, ConnectionLimit, TooMany};
    use crate::clients::Clients;

    fn limits<const N: usize>(most: usize) -> (Clients, [ConnectionLimit; N]) {
        let clients = Clients::new(N).unwrap();
        (clients, std::array::from_fn(|worker| ConnectionLimit::new(clients.secret, clients.connections, worker, most)))
    }

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from(number))
    }

    #[test]
    fn the_connections_to_all_workers_count_until_they_end() {
        let (_, [first, second]) = limits(3);
        let one = first.connect(address(1)).unwrap();
        let two = second.connect(address(1)).unwrap();
        let three = first.connect(address(1)).unwrap();
        assert!(one.is_some() && two.is_some() && three.is_some());
        assert_eq!(first.connect(address(1)).err(), Some(TooMany));
        assert_eq!(second.connect(address(1)).err(), Some(TooMany));
        assert!(second.connect(address(2)).is_ok());
        drop(two);
        let four = first.connect(address(1)).unwrap();
        assert_eq!(second.connect(address(1)).err(), Some(TooMany));
        drop((one, three, four));
        let again: Vec<_> = (0..3).map(|_| second.connect(address(1)).unwrap()).collect();
        assert_eq!(first.connect(address(1)).err(), Some(TooMany));
        drop(again);
    }

    #[test]
    fn connections_of_a_killed_worker_are_forgotten() {
        let (clients, [first, second]) = limits(1);
        std::mem::forget(first.connect(address(1)).unwrap());
        assert_eq!(second.connect(address(1)).err(), Some(TooMany));
        clients.connections.forget(0);
        assert!(second.connect(address(1)).is_ok());
    }

    #[test]
    fn beyond_the_room_of_the_table_nobody_is_refused() {
        let (clients, [limit]) = limits(1);
        let many: Vec<_> = (0..4 * CLIENTS as u32).map(|client| limit.connect(address(client)).unwrap()).collect();
        let counted = many.iter().flatten().count();
        assert!((CLIENTS / 2..=CLIENTS).contains(&counted), "{counted}");
        drop(many);
        assert!(clients.connections.tables.iter().all(|entry| entry.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn threads_count_and_forget_without_loss() {
        let (clients, [limit]) = limits(usize::MAX);
        let limit = std::sync::Arc::new(limit);
        let threads = [(); 4].map(|()| {
            let limit = limit.clone();
            std::thread::spawn(move || {
                for number in 0..20_000 {
                    drop(limit.connect(address(number % 3)).unwrap());
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((0..3).map(|client| clients.connections.count(clients.secret.key(address(client)))).sum::<u64>(), 0);
    }
}
