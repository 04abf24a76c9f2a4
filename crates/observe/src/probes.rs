//! USDT probes of the provider `tailrace`: points at which bpftrace, perf or gdb can attach to a running server. One
//! function for each probe; docs/doctor.md has the list, for those who attach.
//!
//! A probe that nobody has attached to is a `nop`. Its arguments are values that the caller has at hand: no probe makes
//! a system call or reads a clock. Where they have to be computed, a counter in memory is looked at instead, which the
//! kernel increments while somebody is attached (`probe_lazy!`). Each probe is written once: those who attach expect one
//! such counter for a name. A probe has six arguments at most, as bpftrace reads no more.
//!
//! `key` is that of the connection. It serves one request after the other, so the events of a request are those with
//! its key from its `request_start` to its `response_end`.
//!
//! Any thread.

use probe::{probe, probe_lazy};
use tailrace_http::request_head::RequestHead;
use tailrace_os::clock::nanos;

use crate::record::Record;

/// A client has connected.
#[inline]
pub fn connection_open(key: u64) {
    probe!(tailrace, connection_open, key);
}

/// The connection is closed.
#[inline]
pub fn connection_close(key: u64) {
    probe!(tailrace, connection_close, key);
}

/// A request with this head is complete. Its method and its target are given as the address and the number of their bytes each.
#[inline]
pub fn request_start(key: u64, bytes: &[u8], head: &RequestHead) {
    let method = || head.method.of(bytes);
    let target = || head.target.of(bytes);
    probe_lazy!(tailrace, request_start, key, method().as_ptr(), method().len(), target().as_ptr(), target().len());
}

/// A runner calls the application with the request.
#[inline]
pub fn application_enter(key: u64) {
    probe!(tailrace, application_enter, key);
}

/// The application has given all of its response, or has failed. What remains of the call is its `close()`.
#[inline]
pub fn application_leave(key: u64) {
    probe!(tailrace, application_leave, key);
}

/// The application has given so many bytes of its body: a block, blocks that it gave together, or a file.
#[inline]
pub fn block(key: u64, bytes: impl FnOnce() -> u64) {
    probe_lazy!(tailrace, block, key, bytes());
}

/// A write call; the kernel has accepted so many bytes.
#[inline]
pub fn flush(key: u64, bytes: usize) {
    probe!(tailrace, flush, key, bytes);
}

/// A response is over, complete or not: [`Record`] says how. Times are in nanoseconds.
#[inline]
pub fn response_end(key: u64, record: &Record) {
    probe_lazy!(
        tailrace,
        response_end,
        key,
        record.status,
        record.body_bytes,
        record.ending as u8,
        nanos(record.queued_for()),
        nanos(record.ran_for())
    );
}
