//! The table of open connections, by descriptor. A key also contains a serial number, by which late events of a closed
//! connection are recognized.
//!
//! Any thread looks up; the leader inserts; the last owner of a connection removes it.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use crate::connection::driver::Connection;
use crate::os::sync::{read, write};

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

    pub(crate) fn insert(&self, connection: Arc<Connection>) {
        let place = place(connection.key());
        let mut table = write(&self.table);
        if table.len() <= place {
            table.resize(place + 1, None);
        }
        table[place] = Some(connection);
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn get(&self, key: u64) -> Option<Arc<Connection>> {
        let table = read(&self.table);
        table.get(place(key))?.as_ref().filter(|connection| connection.key() == key).cloned()
    }

    /// Removes a connection. True when it was in the table.
    pub(crate) fn remove(&self, key: u64) -> bool {
        let mut table = write(&self.table);
        let Some(slot) = table.get_mut(place(key)) else { return false };
        if slot.as_ref().is_none_or(|connection| connection.key() != key) {
            return false;
        }
        *slot = None;
        self.count.fetch_sub(1, Ordering::AcqRel);
        true
    }

    /// Empties the table and returns what it contained.
    pub(crate) fn clear(&self) -> Vec<Arc<Connection>> {
        let connections: Vec<_> = write(&self.table).drain(..).flatten().collect();
        self.count.store(0, Ordering::Release);
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
