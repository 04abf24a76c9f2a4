//! How a server ends: it waits for requests in flight, then closes the connections that are left.
//!
//! Any thread may call [`stop`]; the thread that leads the loop does the rest.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tailrace_http::request_head::Span;
use tailrace_http::target::head_of;
use tailrace_observe::record::{Ending, Record};
use tailrace_os::clock::{self, Millis, millis};
use tailrace_os::panics::may_panic;

use crate::connection::context::Context;
use crate::connection::driver::{Connection, ConnectionHost};
use crate::connection::ownership;
use crate::connection::runner::RunnerId;
use crate::connection::state::LeftOver;
use crate::request::Request;
use crate::server::accepting::{self, Finished};
use crate::server::parts::Parts;

/// A draining server refuses the requests in its run queue if a request is past its deadline and the application could
/// not be entered for this time.
const BLOCKED: Duration = Duration::from_millis(500);
/// How long the end of a server waits for runners that return as soon as their connections are aborted.
const RETURN_TIME: Duration = Duration::from_millis(100);
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
    // Here, because a server on a single thread is inside of such an application.
    for connection in context.table.all() {
        connection.end_raw_input();
    }
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
        account_aborted(parts, connection);
    }
    context.flush_list.clear();
    context.batched.end();
    drop(context.take_dispatches());
    context.disk.end();
    parts.accounting.close_log();
    #[cfg(debug_assertions)]
    check_memory(parts);
    announce(parts);
}

/// Ends every wait for the server's end. Must come after the access log is written: with greenlets, the process ends as
/// soon as their thread learns that the server has ended.
pub(super) fn announce(parts: &Parts) {
    parts.context.poller.wake();
    parts.context.lifecycle.finish();
    parts.executor.end();
}

/// Waits up to [`RETURN_TIME`] for runners that waited for a client: they return once their connection is closed, and
/// complete the record of their request. Runners that are in the application may not return in this time.
fn await_runners(parts: &Parts) {
    let until = clock::now() + RETURN_TIME;
    while parts.dispatcher.queue.running() > 0 && clock::now() < until {
        thread::sleep(RETURN_TIME / 50);
    }
}

/// Accounts for the request that was in progress when the connection was aborted.
fn account_aborted(parts: &Parts, connection: &Connection) {
    match connection.take_left_over() {
        LeftOver::Nothing => {}
        LeftOver::WithRunner => {
            let (request, record) = request_of_runner(parts, connection);
            parts.accounting.account_abandoned(connection.key, &request, &record);
        }
        LeftOver::Here { mut transaction, is_complete } => {
            if !is_complete {
                transaction.record = Record::new(parts.context.clock.read());
            }
            transaction.record.ending = Ending::Cut;
            connection.account(transaction);
        }
    }
}

/// The request that a runner runs, and its record, as far as the scoreboard and the shared half of the response show
/// them.
fn request_of_runner(parts: &Parts, connection: &Connection) -> (Request, Record) {
    let clock = &parts.context.clock;
    let now = clock.read();
    let mut request = Request { peer: *connection.opening.peer(), ..Request::default() };
    let mut record = Record { finished: Some(now), drained: Some(now), ..Record::new(now) };
    let runner = RunnerId::of_packed(connection.runner.get());
    if let Some(shown) = parts.dispatcher.runners.in_flight(runner) {
        record.queued = clock.moment_of(shown.since);
        record.started = Some(record.queued);
        let [method, target, id] = [&shown.method, &shown.target, &shown.id].map(|part| {
            let start = request.bytes.len() as u32;
            request.bytes.extend_from_slice(part);
            Span { start, end: request.bytes.len() as u32 }
        });
        request.head = head_of(&request.bytes, method, target);
        request.id = id;
        request.traced = shown.traced;
    }
    let outbox = connection.delivery.outbox();
    let produced = outbox.state.produced();
    (record.status, record.body_bytes) = (produced.status, produced.body_bytes);
    record.ending = if outbox.state.is_late() { Ending::TimedOut } else { Ending::Cut };
    (request, record)
}

/// All connections are closed, so no memory may remain charged for responses. A disk thread may still hold part of one.
#[cfg(debug_assertions)]
fn check_memory(parts: &Parts) {
    let responses = &parts.context.memory.responses;
    let until = clock::now() + Duration::from_secs(10);
    while responses.used() > 0 && parts.dispatcher.queue.running() == 0 {
        assert!(clock::now() < until, "{} bytes are still charged after the last response", responses.used());
        thread::sleep(CHECK / 50);
    }
}
