//! What a connection asks of the server that it belongs to, so that it knows neither loop, executor nor application.
//!
//! `C` is the connection: this file knows nothing of it.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use tailrace_http::framing::RequestFacts;

use crate::connection::runner::Runner;
use crate::connection::transaction::Transaction;
use crate::observe::level::Level;
use crate::observe::record::Record;
use crate::observe::scoreboard::InFlight;
use crate::os::clock::Millis;
use crate::request::Request;
use crate::request::spool::Write;

/// A request with a deadline.
pub(crate) struct Task<C> {
    pub(crate) since: Instant,
    /// Method and target.
    pub(crate) request: String,
    pub(crate) facts: RequestFacts,
    /// Until the response is finished.
    pub(crate) connection: Option<Arc<C>>,
}

/// What a connection asks of the server that it belongs to. Everything here may be called by any thread.
pub(crate) trait Host<C>: Send + Sync + 'static {
    /// The thread that polls is to look around at once, unless it does so anyway before it waits.
    fn wake_io(&self);

    /// A complete request: a responder answers it, or the application does. It owns the connection from now on.
    fn dispatch(&self, transaction: Box<Transaction>, connection: Arc<C>);

    /// The caller owns the connection, which goes on on the thread that polls.
    fn hand_over(&self, connection: Arc<C>);

    /// The thread that polls is to send what waits for this client, whose response goes on.
    fn push(&self, connection: Arc<C>);

    /// A part of a request body is to be written to a file by a thread for disks. It owns the connection until then.
    fn store(&self, connection: Arc<C>, write: Write);

    /// The connection has closed.
    fn forget(&self, connection: &C);

    /// The connection, if it is still open.
    fn find(&self, key: u64) -> Option<Arc<C>>;

    /// Makes room for so many bytes in the memory that is held for clients, at the expense of unfinished requests.
    /// False: there is none.
    fn make_room(&self, more: usize) -> bool;

    /// Responses cannot be written to files.
    fn report_spill_failure(&self, fault: &io::Error);

    /// The response to a request has left, or never will.
    fn account(&self, transaction: Box<Transaction>, writes: u32);

    /// The same for a request whose transaction somebody has who may not come back.
    fn account_abandoned(&self, request: &Request, record: &Record);

    /// A response coalesces its blocks from now on: the I/O side sends them at each tick.
    fn coalesces(&self, connection: &Arc<C>);

    /// The request that a runner carries is to be answered by `due`. `task` describes it, and is asked once.
    fn set_request_deadline(&self, runner: Runner, due: Millis, task: &mut dyn FnMut() -> Task<C>);

    /// The response of the request that a runner carries is finished: its connection may serve another one.
    fn release(&self, runner: Runner);

    /// What the scoreboard shows of the request that a runner carries, by [`Runner::packed`].
    fn in_flight(&self, packed: u64) -> Option<InFlight>;

    /// The runner that waits under this ticket is to go on. False: it will not.
    fn wake_runner(&self, ticket: u64) -> bool;

    /// True on the thread whose runners wait under tickets.
    fn is_on_ticket_thread(&self) -> bool;

    /// True when a loop on a single thread must not wait any longer: a signal asks it to end, or its graceful time is
    /// over.
    fn must_end(&self) -> bool;

    /// A line for the error log.
    fn log(&self, level: Level, message: &str);
}
