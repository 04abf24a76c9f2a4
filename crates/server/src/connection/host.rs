//! What a connection asks of its server, which stands above it: the loop, the dispatcher, the executors and the
//! application import connections. Any thread may call the methods.
//!
//! `C` is the type of the connection, which this file does not know.

use std::sync::Arc;
use std::time::Instant;

use tailrace_http::framing::RequestFacts;
use tailrace_observe::level::Level;
use tailrace_observe::scoreboard::Sending;
use tailrace_os::clock::Millis;

use crate::connection::ownership::Owned;
use crate::connection::runner::RunnerId;
use crate::connection::state::Next;
use crate::connection::transaction::Transaction;
use crate::request::spool::Write;

/// A running request that has a deadline.
pub(crate) struct Task<C> {
    pub(crate) since: Instant,
    /// Method and target.
    pub(crate) request: String,
    /// Its id; empty: it has none.
    pub(crate) id: Vec<u8>,
    pub(crate) facts: RequestFacts,
    /// `None` when the response is finished.
    pub(crate) connection: Option<Arc<C>>,
}

/// The server of a connection. Without this trait the two would import each other.
pub(crate) trait Host<C>: Send + Sync + 'static {
    // Who owns a connection next.

    /// Has a complete request answered by a responder or by the application. The request owns the connection from now
    /// on. If a responder has responded at once, the caller is the owner again: returns what it does next.
    fn dispatch(&self, transaction: Box<Transaction>, connection: Owned<C>) -> Option<(Owned<C>, Next)>;

    /// Has the thread that polls dispatch the request, in its next round.
    fn dispatch_later(&self, transaction: Box<Transaction>, connection: Owned<C>);

    /// Moves the ownership of the connection from the caller to the thread that polls, which continues with it.
    fn hand_over(&self, connection: Owned<C>);

    /// Has a disk thread write a part of a request body to its file. The write owns the connection.
    fn store(&self, connection: Owned<C>, write: Write);

    /// Holds the complete response of a connection that the caller owns, until it is sent with others.
    fn hold(&self, connection: Owned<C>);

    // Who sends a response, and when.

    /// True when a complete response may be held, of a call of the application that began at `started`: further requests
    /// wait or others are held, and the calling runner takes the next request, or sends what is held.
    fn may_hold(&self, started: Instant) -> bool;

    /// True when the opening of a response may be delayed: further requests wait, and while the calling runner makes the
    /// next block, another thread is certain to send what is coalesced at its next tick.
    fn may_delay(&self) -> bool;

    /// Has the thread that polls send what is queued for the client. The response continues, and ownership does not
    /// move.
    fn push(&self, connection: Arc<C>);

    /// The response coalesces its blocks from now on: has the I/O side send them at each tick.
    fn add_coalescing(&self, connection: &Arc<C>);

    // The connections that are open.

    /// The connection has closed: removes it from the table.
    fn remove(&self, connection: &C);

    /// Makes room for `more` bytes in the memory that is held for clients, by refusing incomplete requests. False:
    /// there is none.
    fn make_room(&self, more: usize) -> bool;

    // The runners of requests, and what the scoreboard shows of them.

    /// Sets the deadline of the request that a runner runs; [`tailrace_os::clock::NEVER`]: none. `task` describes the
    /// request and is called at most once.
    fn set_request_deadline(&self, runner: RunnerId, due: Millis, task: &mut dyn FnMut() -> Task<C>);

    /// The response of the request that a runner runs is finished, and its connection may serve another request: the
    /// deadline must not touch the connection any more.
    fn release(&self, runner: RunnerId);

    /// The application has taken over the connection of the request that a runner runs: the request is neither slow nor
    /// cancelled from now on.
    fn note_raw(&self, runner: RunnerId);

    /// The connection's bytes are read and written by another party: only its end is an event from now on.
    fn leave_socket(&self, connection: &C);

    /// Another process has the connection: nothing that happens there is an event here.
    fn forget_socket(&self, connection: &C);

    /// The runner waits for its client until the result is dropped; `None`: no scoreboard shows it. `packed`:
    /// [`RunnerId::packed`].
    fn show_sending(&self, packed: u64) -> Option<Sending>;

    // Which thread waits, and for how long.

    /// Wakes the thread that polls, unless it looks for work anyway before it waits.
    fn wake_io(&self);

    /// Wakes the runner that waits under this ticket. False: it cannot be woken.
    fn wake_runner(&self, ticket: u64) -> bool;

    /// True on the thread whose runners wait under tickets.
    fn is_on_ticket_thread(&self) -> bool;

    /// True when a server on a single thread must not wait any longer: a signal asks it to end, or its time for
    /// draining is over.
    fn must_end(&self) -> bool;

    // What operators learn.

    /// Accounts for a request of the connection with this key whose response has been sent, or never will be. `writes`:
    /// write calls that the record does not count yet.
    fn account(&self, key: u64, transaction: Box<Transaction>, writes: u32);

    /// The client has left while the application runs its request. `packed`: [`RunnerId::packed`] of the runner.
    fn report_disconnect(&self, packed: u64);

    /// Writes a line to the error log.
    fn log(&self, level: Level, message: &str);
}
