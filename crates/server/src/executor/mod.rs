//! Where the application runs.
//!
//! The loop, the connections and the dispatch of requests know only the trait [`Executor`]. It has three
//! implementations: [`threads`], [`greenlets`] and [`inline`]. What differs and never changes is data, the
//! [`Policy`](crate::response::policy::Policy) that each of them states; what depends on the moment is a method here.

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

use crate::connection::driver::Connection;
use crate::executor::event_loop::EventLoop;
use crate::observe::stats::ThreadStates;

/// Where the application runs, how those who run it wait, and how they are woken. Code that needs one part of it takes
/// the trait of that part.
///
/// A *runner* is a thread or a greenlet that runs the application. The *I/O side* is the thread that waits for events
/// and handles them; it may be a runner at other times. Only [`Executor::run`] may block.
pub(crate) trait Executor: Wakes + Flushes + Turns {
    // Called by the threads of the server.

    /// The body of a thread of the server: it has events handled, and has the application run by this thread or by
    /// others. Returns when the server has ended, or has no use for the thread.
    ///
    /// # Errors
    /// The wait for events failed: the server cannot go on.
    fn run(&self, events: &dyn EventLoop) -> io::Result<()>;

    // Called by the I/O side.

    /// Requests wait in the run queue: how long the I/O side may wait for events. `None`: as long as for any other
    /// reason.
    fn longest_wait(&self) -> Option<Duration>;

    /// True when a runner has waited for the application for at least so long: another request holds it.
    fn is_blocked(&self, time: Duration) -> bool;

    /// The server has ended: whoever waits in [`Executor::run`], or for a ticket, is woken. May be called more than
    /// once.
    fn end(&self);

    // Called by any thread.

    /// Runners are to come to an end though they may be inside a request, whose end nobody waits for.
    fn interrupt(&self) {}

    /// For the statistics: runners that there are, and greenlets that were ever made.
    fn count(&self) -> (u64, u64);

    /// For the statistics: threads that lead, watch and are parked (or greenlets that are); the others are 0.
    fn free_threads(&self) -> ThreadStates;
}

/// How those who wait are woken. Called by any thread.
pub(crate) trait Wakes: Send + Sync + 'static {
    /// The I/O side is to look at once for what was left to it, unless it does so anyway before it next waits.
    fn wake_io(&self);

    /// What the runner waits for under this ticket has come: it is to go on. False: it will not.
    fn wake_runner(&self, _ticket: u64) -> bool {
        false
    }

    /// True on the thread of runners that wait under a ticket.
    fn is_on_ticket_thread(&self) -> bool {
        false
    }
}

/// What the executor does for responses that are not sent at once.
pub(crate) trait Flushes: Send + Sync + 'static {
    /// A response coalesces its blocks from now on: its connection is put on the flush list, which the I/O side looks
    /// through at each tick. Called by any thread.
    fn add_coalescing(&self, connection: Arc<Connection>);

    /// Something is held, and nobody looks after it in time.
    fn watch_held(&self) {}

    /// Requests wait: whether the calling runner may hold a complete response until it has run more of them.
    fn may_hold(&self) -> bool {
        false
    }

    /// Whether the opening of a response may be delayed: another thread looks through the flush list at the next tick,
    /// whatever the calling runner does.
    fn may_delay(&self) -> bool {
        false
    }
}

/// Who runs requests next.
pub(crate) trait Turns: Send + Sync + 'static {
    /// Requests wait in the run queue: one was added, or a runner has left some behind. Called by any thread.
    fn wake_runners(&self);

    /// The calling runner has entered the application, or another one may never return from it: starts a thread where
    /// too few are free to lead and to watch.
    fn keep_a_spare_thread(&self) {}

    /// A runner has begun or ended a request.
    fn note_progress(&self) {}

    /// True when the calling runner is to leave the application though requests wait, so that others of its thread can
    /// run.
    fn is_turn_over(&self) -> bool {
        false
    }
}
