//! The table of open connections, by descriptor. A key also contains a serial number, by which late events of a closed
//! connection are recognized.
//!
//! Any thread looks up; the leader inserts; the last owner of a connection removes it.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use tailrace_observe::probes;
use tailrace_os::sync::{read, write};

use crate::connection::driver::Connection;

/// A key with this bit does not stand for a connection.
pub(crate) const SPECIAL: u64 = 1 << 63;

/// The open connections.
#[derive(Default)]
pub(crate) struct Table {
    table: RwLock<Vec<Option<Arc<Connection>>>>,
    serial: AtomicU32,
    count: AtomicUsize,
}

impl Table {
    /// A key for a new connection on the socket of this number.
    pub(crate) fn key_for(&self, socket: RawFd) -> u64 {
        let serial = u64::from(self.serial.fetch_add(1, Ordering::Relaxed) & 0x7fff_ffff);
        let descriptor = u64::from(socket.unsigned_abs());
        serial << 32 | descriptor
    }

    /// Adds a connection. False: the system has no memory for it.
    #[must_use]
    pub(crate) fn insert(&self, connection: Arc<Connection>) -> bool {
        let place = place(connection.key);
        let mut table = write(&self.table);
        if table.len() <= place {
            let more = place + 1 - table.len();
            if table.try_reserve(more).is_err() && table.try_reserve_exact(more).is_err() {
                return false;
            }
            table.resize(place + 1, None);
        }
        probes::connection_open(connection.key);
        table[place] = Some(connection);
        self.count.fetch_add(1, Ordering::AcqRel);
        true
    }

    pub(crate) fn get(&self, key: u64) -> Option<Arc<Connection>> {
        let table = read(&self.table);
        table.get(place(key))?.as_ref().filter(|connection| connection.key == key).cloned()
    }

    /// Removes a connection. True when it was in the table.
    pub(crate) fn remove(&self, key: u64) -> bool {
        let mut table = write(&self.table);
        let Some(slot) = table.get_mut(place(key)) else { return false };
        if slot.as_ref().is_none_or(|connection| connection.key != key) {
            return false;
        }
        *slot = None;
        self.count.fetch_sub(1, Ordering::AcqRel);
        probes::connection_close(key);
        true
    }

    /// Empties the table and returns what it contained.
    pub(crate) fn clear(&self) -> Vec<Arc<Connection>> {
        let connections: Vec<_> = write(&self.table).drain(..).flatten().collect();
        self.count.store(0, Ordering::Release);
        connections.iter().for_each(|connection| probes::connection_close(connection.key));
        connections
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Calls `show` with each connection. Holds the lock: none can be added or removed meanwhile.
    pub(crate) fn visit(&self, show: impl FnMut(&Arc<Connection>)) {
        read(&self.table).iter().flatten().for_each(show);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Connection>> {
        read(&self.table).iter().flatten().cloned().collect()
    }
}

fn place(key: u64) -> usize {
    (key & 0xffff_ffff) as usize
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{SPECIAL, Table};
    use crate::connection::testing::{connection, server};

    #[test]
    fn a_late_event_of_a_closed_connection_does_not_find_the_next_one_on_its_descriptor() {
        let (table, server) = (Table::default(), server());
        let (old, new) = (table.key_for(9), table.key_for(9));
        assert!(old != new && (old | new) & SPECIAL == 0);
        assert!(table.insert(connection(&server, old).0.clone()));
        assert!(table.get(old).is_some() && table.get(new).is_none());
        assert!(table.remove(old) && !table.remove(old));
        assert!(table.insert(connection(&server, new).0.clone()));
        assert!(table.get(old).is_none() && !table.remove(old));
        assert_eq!((table.get(new).map(|connection| connection.key), table.len()), (Some(new), 1));
        assert!(table.get(table.key_for(70_000)).is_none() && !table.remove(table.key_for(70_000)));
    }

    #[test]
    fn all_that_are_open_are_shown_and_a_cleared_table_keeps_none() {
        let (table, server) = (Table::default(), server());
        for descriptor in [3, 8, 5] {
            assert!(table.insert(connection(&server, table.key_for(descriptor)).0.clone()));
        }
        let mut shown = Vec::new();
        table.visit(|connection| shown.push(connection.key as u32));
        let all: Vec<_> = table.all().iter().map(|connection| connection.key as u32).collect();
        assert_eq!((shown.as_slice(), all.as_slice(), table.len()), ([3, 5, 8].as_slice(), shown.as_slice(), 3));
        let cleared = table.clear();
        assert_eq!((cleared.len(), table.len(), table.all().len()), (3, 0, 0));
        assert!(cleared.iter().all(|connection| Arc::strong_count(connection) == 1));
    }
}
