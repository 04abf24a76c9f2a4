//! How a server ends: it waits for requests in flight, then closes the connections that are left.
//!
//! Any thread may call [`stop`]; the thread that leads the loop does the rest.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::connection::context::Context;
use crate::connection::driver::ConnectionHost;
use crate::connection::ownership;
use crate::os::clock::{self, Millis, millis};
use crate::os::panics::may_panic;
use crate::server::accepting::{self, Finished};
use crate::server::parts::Parts;

/// A draining server refuses the requests in its run queue if a request is past its deadline and the application could
/// not be entered for this time.
const BLOCKED: Duration = Duration::from_millis(500);
/// How long the end of a server waits for runners that return as soon as their connections are aborted.
const COMING_BACK: Duration = Duration::from_millis(100);
/// How often a draining server checks whether all requests are done.
const CHECK: Duration = Duration::from_millis(50);

/// Whether a draining server is to end now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drained {
    /// Not yet: requests are in flight, and their time is not over.
    NotYet,
    /// Yes: nothing is in flight, or the time is over.
    Over,
}

/// Makes the server drain, for at most `graceful`. May be called again with a shorter time.
pub(super) fn stop(context: &Context, graceful: Duration) {
    context.lifecycle.stop(context.clock.now().saturating_add(millis(graceful)));
    context.poller.wake();
}

/// How long a draining server may wait for events; `None`: it does not drain.
pub(super) fn longest_wait(context: &Context, now: Millis) -> Option<Duration> {
    (!context.lifecycle.is_running()).then(|| context.lifecycle.left(now).min(CHECK))
}

/// Goes on with draining: closes the listeners and idle connections. Requests in flight may finish until the deadline.
/// `is_blocked`: true when the application could not be entered for that time.
pub(super) fn drain(parts: &Parts, host: &Arc<ConnectionHost>, is_blocked: impl Fn(Duration) -> bool) -> Drained {
    let Parts { context, dispatcher, .. } = parts;
    // They are complete, so they are not to be cut off if this is the end.
    context.batched.send();
    let is_overdue = || context.lifecycle.is_overdue(context.clock.now());
    let finished = parts.accepting.finish(host, is_overdue(), || is_blocked(accepting::BLOCKED));
    if context.lifecycle.is_to_sweep() {
        for connection in context.table.all() {
            parts.guard.report(&connection, ownership::STOP);
        }
        context.lifecycle.set_swept();
    }
    if dispatcher.runners.stuck() > 0 && is_blocked(BLOCKED) {
        // No runner will start these requests.
        for exchange in dispatcher.queue.clear() {
            exchange.refuse();
        }
    }
    let is_quiet = finished == Finished::All && context.table.len() == 0 && !dispatcher.is_busy();
    if is_quiet || is_overdue() { Drained::Over } else { Drained::NotYet }
}

/// Ends the server now: closes all connections, responds 503 to queued requests. Does nothing the second time.
pub(super) fn end(parts: &Parts) {
    let Parts { context, dispatcher, .. } = parts;
    if !context.lifecycle.end() {
        return;
    }
    may_panic("end");
    context.batched.send();
    parts.accepting.close();
    for exchange in dispatcher.queue.clear() {
        exchange.abort(503, Some("The server is stopping."));
    }
    // Connections and server refer to each other: clearing the table breaks the cycle, so that both are dropped.
    let connections = context.table.clear();
    for connection in &connections {
        connection.abort();
    }
    await_runners(parts);
    for connection in &connections {
        connection.account_aborted();
    }
    context.flush_list.clear();
    context.batched.clear();
    drop(context.take_dispatches());
    context.disk.end();
    parts.accounting.close_log();
    announce(parts);
}

/// Ends every wait for the server's end. Must come after the access log is written: with greenlets, the process ends as
/// soon as their thread learns that the server has ended.
pub(super) fn announce(parts: &Parts) {
    parts.context.poller.wake();
    parts.context.lifecycle.finish();
    parts.executor.end();
}

/// Waits up to [`COMING_BACK`] for runners that waited for a client: they return once their connection is closed, and
/// complete the record of their request. Runners that are in the application may not return in this time.
fn await_runners(parts: &Parts) {
    let until = clock::now() + COMING_BACK;
    while parts.dispatcher.queue.running() > 0 && clock::now() < until {
        thread::sleep(COMING_BACK / 50);
    }
}
