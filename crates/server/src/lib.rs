//! Linux I/O for Penstock: sockets, the loop, connections, timers. No Python.
//!
//! Reading the files in this order is reading a request: `accept`, `wire`, `connection`, `spool`, `ready`, `handler`,
//! `exchange`, `outbox`, `wire`. `reactor` is the loop that every thread runs, `crew` says which thread does what.

mod accept;
pub mod access_log;
mod answer;
mod backlog;
mod budget;
mod claim;
pub mod config;
mod connection;
mod crew;
pub mod exchange;
mod gather;
pub mod handler;
pub mod hub;
mod inflow;
mod layout;
mod load;
mod local;
mod log_format;
mod outbox;
mod phase;
mod posts;
pub mod reactor;
pub mod ready;
pub mod record;
mod request;
pub mod scoreboard;
mod segments;
mod slots;
mod spool;
mod stage;
pub mod stats;
mod streams;
mod sys;
mod timers;
mod wire;

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

// A thread that panicked while it held a lock has cost its own connection (see `reactor`); what the lock guards is
// changed in steps that each leave it whole, so the others go on with it.

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// The guard, and whether the time ran out.
fn wait_for<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>, time: Duration) -> (MutexGuard<'a, T>, bool) {
    let (guard, result) = condition.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner);
    (guard, result.timed_out())
}
