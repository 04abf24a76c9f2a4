//! How a server ends: it drains what is in flight, then cuts what is left.
//!
//! Any thread asks for it; the thread that leads the loop does it.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::connection::claim;
use crate::connection::context::Context;
use crate::connection::driver::ConnectionHost;
use crate::os::clock::{self, Millis, millis};
use crate::os::panics::may_panic;
use crate::server::accepting::{self, Finished};
use crate::server::parts::Parts;

/// A draining server that waits so long for an interpreter which a request past its deadline holds starts no more
/// requests.
const BLOCKED: Duration = Duration::from_millis(500);
/// How long the end of a server waits for runners that return as soon as their connections are cut.
const COMING_BACK: Duration = Duration::from_millis(100);
/// How often a draining server looks whether it is done.
const CHECK: Duration = Duration::from_millis(50);

/// How far a server is that drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drained {
    /// Requests are in flight, and have time left.
    NotYet,
    /// Nothing is left, or no time is: it is to end now.
    Over,
}

/// The server drains from now on, for so long at most. May be called again with a shorter time.
pub(super) fn stop(context: &Context, graceful: Duration) {
    context.lifecycle.stop(context.clock.now().saturating_add(millis(graceful)));
    context.poller.wake();
}

/// How long a draining server may wait for events.
pub(super) fn longest_wait(context: &Context, now: Millis) -> Option<Duration> {
    (!context.lifecycle.is_running()).then(|| context.lifecycle.left(now).min(CHECK))
}

/// The server is to stop: no new connections, idle ones close, the rest finishes until the deadline.
pub(super) fn drain(parts: &Parts, host: &Arc<ConnectionHost>, is_blocked: impl Fn(Duration) -> bool) -> Drained {
    let Parts { context, dispatcher, .. } = parts;
    let is_overdue = || context.lifecycle.is_overdue(context.clock.now());
    let finished = parts.accepting.finish(host, is_overdue(), || is_blocked(accepting::BLOCKED));
    if context.lifecycle.is_to_sweep() {
        for connection in context.table.all() {
            parts.guard.report(&connection, claim::STOP);
        }
        context.lifecycle.has_swept();
    }
    if dispatcher.runners.stuck() > 0 && is_blocked(BLOCKED) {
        // No runner will start these any more.
        for exchange in dispatcher.queue.clear() {
            exchange.refuse();
        }
    }
    let is_quiet = finished == Finished::All && context.table.len() == 0 && !dispatcher.is_busy();
    if is_quiet || is_overdue() { Drained::Over } else { Drained::NotYet }
}

/// Ends now: whatever is still open is cut. Does nothing the second time.
pub(super) fn end(parts: &Parts) {
    let Parts { context, dispatcher, .. } = parts;
    if !context.lifecycle.end() {
        return;
    }
    may_panic("end");
    parts.accepting.close();
    for exchange in dispatcher.queue.clear() {
        exchange.cut(503, Some("The server is stopping."));
    }
    // Connections and server refer to each other: this lets both go.
    let connections = context.table.clear();
    for connection in &connections {
        connection.cut();
    }
    await_runners(parts);
    for connection in &connections {
        connection.account_cut();
    }
    context.flush_list.clear();
    context.disk.end();
    parts.accounting.close_log();
    announce(parts);
}

/// Ends every wait for the server's end. Only now that the access log is written: a process whose application runs
/// in greenlets ends when these are told.
pub(super) fn announce(parts: &Parts) {
    parts.context.poller.wake();
    parts.context.lifecycle.is_over();
    parts.executor.end();
}

/// Waits for runners that waited for a client whose connection is cut now: they return, with the whole record of their
/// request. Those that are in the application do not return in this time.
fn await_runners(parts: &Parts) {
    let until = clock::now() + COMING_BACK;
    while parts.dispatcher.queue.running() > 0 && clock::now() < until {
        thread::sleep(COMING_BACK / 50);
    }
}
