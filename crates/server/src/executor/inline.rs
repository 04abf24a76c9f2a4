//! The application runs on the thread of the loop (`--debug`): there is no other thread.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tailrace_observe::stats::ThreadStates;
use tailrace_os::epoll::Events;
use tailrace_os::panics::may_panic;
use tailrace_os::process;

use crate::connection::context::Context;
use crate::connection::driver::Connection;
use crate::connection::steps::READS;
use crate::connection::timers::SIGNAL_CHECK;
use crate::dispatch::dispatcher::Dispatcher;
use crate::executor::Executor;
use crate::executor::application::Application;
use crate::executor::entry::run_application;
use crate::executor::event_loop::EventLoop;
use crate::executor::turn::Turn;
use crate::response::coalescing::TICK;
use crate::response::policy::{Coalesce, Policy, Waiting};

/// Nothing is coalesced, since no other thread would send it.
pub(crate) const POLICY: Policy = Policy {
    coalesce: Coalesce::Never,
    waiting: Waiting::Poll(SIGNAL_CHECK),
    most_by_runner: None,
    most_by_io: None,
    most_after_end: super::threads::HAND_OVER,
    holds: false,
    reads_by_runner: READS,
};

/// Events taken at once.
const BATCH: usize = 32;

pub(crate) struct Inline {
    context: Arc<Context>,
    dispatcher: Arc<Dispatcher>,
    application: Arc<dyn Application>,
}

impl Inline {
    pub(crate) fn new(dispatcher: Arc<Dispatcher>, application: Arc<dyn Application>) -> Self {
        Self { context: dispatcher.context().clone(), dispatcher, application }
    }
}

impl Executor for Inline {
    fn run(&self, events: &dyn EventLoop) -> io::Result<()> {
        let mut batch = Events::new(BATCH);
        let slot = self.dispatcher.runners.take(process::thread_id());
        while !events.has_ended() {
            // A signal that comes just before the wait does not interrupt it.
            let is_interrupted = events.wait(&mut batch, Some(SIGNAL_CHECK))?;
            if is_interrupted && self.application.interrupted() {
                events.end();
                break;
            }
            may_panic("inline");
            events.handle(&batch);
            if self.dispatcher.queue.len() > 0
                && let Some(entry) = self.dispatcher.queue.try_enter(self.context.clock.read())
            {
                run_application(&*self.application, Turn::entering(&self.dispatcher, self, slot, entry));
            }
            if self.application.interrupted() {
                events.end();
            }
        }
        Ok(())
    }

    fn longest_wait(&self) -> Option<Duration> {
        // The application ran and left them in the queue: it runs again soon.
        Some(TICK)
    }

    fn is_blocked(&self, time: Duration) -> bool {
        self.dispatcher.queue.is_blocked(time, self.context.clock.recent())
    }

    /// The only thread checks before each round whether the server has ended.
    fn end(&self) {}

    /// The loop cannot end a request, which may be at the prompt of a debugger; a signal handler can.
    fn interrupt(&self) {
        process::ask_to_end();
    }

    fn count(&self) -> (u64, u64) {
        (0, 0)
    }

    fn free_threads(&self) -> ThreadStates {
        ThreadStates { leading: u64::from(self.dispatcher.queue.running() == 0), ..ThreadStates::default() }
    }

    /// The only thread is the caller, and checks before it waits.
    fn wake_io(&self) {}

    fn add_coalescing(&self, connection: Arc<Connection>) {
        let _ = self.context.coalesce(connection);
    }

    /// The only thread checks the run queue after each round.
    fn wake_runners(&self) {}
}
