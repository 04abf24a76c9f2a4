//! A runner's turn at running the application: the source of its requests.
//!
//! Thread: a turn is its runner's alone.

use std::time::{Duration, Instant};

use tailrace_os::usage;

use crate::connection::exchange::Exchange;
use crate::dispatch::dispatcher::Dispatcher;
use crate::dispatch::run_queue::{EntryAttempt, TakeResult};
use crate::dispatch::runners::Interruption;
use crate::executor::Executor;

/// A thread's turn at running the application, from [`crate::executor::application::Application::enter`] to its return;
/// or that of a greenlet.
pub struct Turn<'a> {
    dispatcher: &'a Dispatcher,
    executor: &'a dyn Executor,
    /// The runner's slot in the runner table.
    slot: Option<usize>,
    /// The runner has taken a request and not finished it.
    has_request: bool,
    /// When it was given the last one.
    began: Option<Instant>,
    /// For how long it waited for the interpreter, until its first request has it.
    waited: Duration,
    state: TurnState,
}

#[derive(Clone, Copy)]
enum TurnState {
    /// The runner does not have the interpreter yet.
    Entering(EntryAttempt, Instant),
    Running,
    Left,
}

impl<'a> Turn<'a> {
    /// The turn of a thread that is about to wait for the interpreter.
    pub(crate) fn entering(
        dispatcher: &'a Dispatcher,
        executor: &'a dyn Executor,
        slot: Option<usize>,
        entry: EntryAttempt,
    ) -> Self {
        let state = TurnState::Entering(entry, dispatcher.context().clock.peek());
        Self { dispatcher, executor, slot, has_request: false, began: None, waited: Duration::ZERO, state }
    }

    /// The turn of a runner that has the interpreter. `None`: no request waits, or the maximum number are running.
    pub(crate) fn running(dispatcher: &'a Dispatcher, executor: &'a dyn Executor, slot: usize) -> Option<Self> {
        let joins = dispatcher.queue.join(dispatcher.most_runners());
        let slot = Some(slot);
        let (began, waited, state) = (None, Duration::ZERO, TurnState::Running);
        joins.then(|| Self { dispatcher, executor, slot, has_request: false, began, waited, state })
    }
}

impl Turn<'_> {
    /// The next request, or `None` when the runner must leave. Call it with the application held.
    #[allow(clippy::should_implement_trait, reason = "a turn has side effects at its ends and is no iterator")]
    pub fn next(&mut self) -> Option<Exchange> {
        self.put_down();
        if self.is_forked_child() {
            self.state = TurnState::Left;
            return None;
        }
        match self.state {
            TurnState::Left => return None,
            TurnState::Running => {}
            TurnState::Entering(entry, since) => {
                let now = self.now();
                self.waited = now.saturating_duration_since(since);
                let join = self.dispatcher.queue.enter(entry, self.dispatcher.most_runners(), || now);
                if !join.runs() {
                    self.state = TurnState::Left;
                    return None;
                }
                self.state = TurnState::Running;
                self.executor.keep_a_spare_thread();
            }
        }
        self.send_batched();
        loop {
            let limit = self.dispatcher.most_runners();
            match self.dispatcher.queue.take(limit, self.executor.is_turn_over(), || self.now()) {
                // The client has left: the application is not called.
                TakeResult::Request(exchange, _) if exchange.response().is_gone() => drop(exchange),
                TakeResult::Request(mut exchange, _) if exchange.is_cancelled() => exchange.note_cancelled(),
                TakeResult::Request(exchange, now) => return Some(self.take_up(exchange, now)),
                TakeResult::Left { requests_wait } => {
                    self.state = TurnState::Left;
                    if requests_wait {
                        self.executor.wake_runners();
                    }
                    self.dispatcher.context().batched.send();
                    return None;
                }
            }
        }
    }

    /// The application's number for the calling thread. [`Overdue`](crate::Overdue) has it, when a request that this
    /// thread runs is past its deadline.
    pub fn identify(&self, thread: u64) {
        if let Some(slot) = self.slot {
            self.dispatcher.runners.identify(slot, thread);
        }
    }

    /// The application has finished the request that [`Turn::next`] returned, except for its cleanup: no exception is
    /// raised in it any more. Returns why one was raised, or may have been.
    pub fn leave_application(&self) -> Option<Interruption> {
        self.slot.and_then(|slot| self.dispatcher.runners.leave(slot))
    }

    /// Why the request that [`Turn::next`] returned was interrupted, or may have been.
    pub fn interruption(&self) -> Option<Interruption> {
        self.slot.and_then(|slot| self.dispatcher.runners.interruption(slot))
    }

    /// True in a child that the application has forked: the parent runs the request, and may have held any lock at the
    /// fork.
    pub fn is_forked_child(&self) -> bool {
        self.dispatcher.context().is_forked_child()
    }

    fn now(&self) -> Instant {
        self.dispatcher.context().clock.peek()
    }

    /// Before the next call of the application: sends batched responses if that call would delay them for too long. After
    /// the last call, the runner sends them anyway.
    fn send_batched(&self) {
        let batched = &self.dispatcher.context().batched;
        if batched.is_empty() {
            return;
        }
        let now = self.now();
        let last = self.began.map_or(Duration::ZERO, |began| now.saturating_duration_since(began));
        if batched.held_for(now).is_some_and(|held| batched.rule.must_send(held, last)) {
            batched.send();
        }
    }

    fn take_up(&mut self, mut exchange: Exchange, now: Instant) -> Exchange {
        self.has_request = true;
        self.began = Some(now);
        let runner = self.slot.map(|slot| {
            let since = self.dispatcher.context().clock.monotonic_of(now);
            self.dispatcher.runners.begin(slot, exchange.request(), since)
        });
        exchange.begin(now, runner);
        let waited = std::mem::take(&mut self.waited);
        if !waited.is_zero() {
            usage::add_interpreter(waited.min(exchange.record().queued_for()));
        }
        self.executor.note_progress();
        exchange
    }

    /// The runner has finished its request.
    fn put_down(&mut self) {
        if !std::mem::take(&mut self.has_request) || self.is_forked_child() {
            return;
        }
        if let Some(slot) = self.slot {
            self.dispatcher.runners.end(slot);
        }
        self.dispatcher.note_request_ended();
        self.executor.note_progress();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.put_down();
        if self.is_forked_child() {
            return;
        }
        match self.state {
            TurnState::Left => {}
            // The application does not want a request.
            TurnState::Entering(..) => self.dispatcher.queue.turn_back(),
            // The application unwound out of its turn, or the greenlet must not take another request.
            TurnState::Running => {
                if self.dispatcher.queue.leave() {
                    self.executor.wake_runners();
                }
                self.dispatcher.context().batched.send();
            }
        }
    }
}
