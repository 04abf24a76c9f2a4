//! Where the application runs.
//!
//! The loop, the connections and the dispatch of requests know only the trait [`Executor`]. It has three
//! implementations: [`threads`], [`greenlets`] and [`inline`]. Fixed differences are data: each states its
//! [`Policy`](crate::response::policy::Policy). What depends on the moment is a method here.

pub(crate) mod application;
pub(crate) mod application_check;
mod entry;
pub(crate) mod event_loop;
pub(crate) mod greenlets;
pub(crate) mod inline;
pub(crate) mod threads;
pub(crate) mod turn;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tailrace_observe::stats::ThreadStates;

use crate::connection::driver::Connection;
use crate::executor::event_loop::EventLoop;

/// Where the application runs, how its runners wait, and how they are woken.
///
/// A *runner* is a thread or a greenlet that runs the application. The *I/O side* is the thread that waits for events
/// and handles them; it may be a runner at other times. Only [`Executor::run`] may block.
pub(crate) trait Executor: Send + Sync + 'static {
    // Called by the threads of the server.

    /// The body of a server thread: it handles events, and lets the application run on this thread or on others.
    /// Returns when the server has ended, or does not need the thread.
    ///
    /// # Errors
    /// The wait for events failed: the server cannot go on.
    fn run(&self, events: &dyn EventLoop) -> io::Result<()>;

    // Called by the I/O side.

    /// Requests wait in the run queue: how long the I/O side may wait for events. `None`: as long as for any other
    /// reason.
    fn longest_wait(&self) -> Option<Duration>;

    /// True if a runner has waited for the application for at least this long: another request holds it.
    fn is_blocked(&self, time: Duration) -> bool;

    /// The server has ended: every thread that waits in [`Executor::run`] or for a ticket is woken. May be called more
    /// than once.
    fn end(&self);

    // Called by any thread.

    /// Runners must end even if they are inside a request, whose end nothing waits for.
    fn interrupt(&self) {}

    /// For the statistics: number of runners, and of greenlets ever created.
    fn count(&self) -> (u64, u64);

    /// For the statistics: threads that lead, watch and are parked (or greenlets that are); the others are 0.
    fn free_threads(&self) -> ThreadStates;

    // How waiting threads and greenlets are woken. Called by any thread.

    /// The I/O side must check at once for work that was left to it, unless it does so anyway before its next wait.
    fn wake_io(&self);

    /// The event that the runner awaits under this ticket has occurred: it may continue. False: it will not.
    fn wake_runner(&self, _ticket: u64) -> bool {
        false
    }

    /// True on the thread of runners that wait under a ticket.
    fn is_on_ticket_thread(&self) -> bool {
        false
    }

    // For responses that are not sent immediately.

    /// A response coalesces its blocks from now on: its connection is put on the flush list, which the I/O side looks
    /// through at each tick. Called by any thread.
    fn add_coalescing(&self, connection: Arc<Connection>);

    /// Requests wait: whether the calling runner may hold a complete response until it has run more of them.
    fn may_hold(&self) -> bool {
        false
    }

    /// Whether the opening of a response may be delayed: another thread then processes the flush list at the next tick,
    /// whatever the calling runner does.
    fn may_delay(&self) -> bool {
        false
    }

    // Which runner takes requests next.

    /// Requests wait in the run queue: one was added, or a runner has left some behind. Called by any thread.
    fn wake_runners(&self);

    /// The calling runner has entered the application, or another one may never return from it: starts a thread if too
    /// few are free to lead and to watch.
    fn keep_a_spare_thread(&self) {}

    /// A runner has begun or ended a request.
    fn note_progress(&self) {}

    /// True if the calling runner should leave the application although requests wait, so that others of its thread can
    /// run.
    fn is_turn_over(&self) -> bool {
        false
    }
}
