//! The server: its event loop, the stages of one round in their order, and the functions that connections and the owner
//! of the server call.
//!
//! The thread that leads the loop waits for events and handles them. The executor decides which thread leads, and which
//! threads run the application. This file imports all other folders; none of them imports this file.

mod accepting;
mod accounting;
mod adopting;
mod ending;
mod eviction;
mod executors;
mod failing;
mod guard;
mod parts;
mod publications;
mod publishing;
mod responders;
mod web_sockets;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tailrace_http::query::QueryMasking;
use tailrace_observe::level::Level;
use tailrace_observe::metrics::Metric;
use tailrace_observe::scoreboard::{InFlight, Sending};
use tailrace_observe::stats::{ConnectionStates, Stats, ThreadStates};
use tailrace_os::clock::Millis;
use tailrace_os::epoll::{Events, WAKEUP};
use tailrace_os::panics::{catch, may_panic};
use tailrace_os::process;
use tailrace_os::sync::lock;
use tailrace_os::usage;

use self::accepting::BLOCKED;
pub use self::accounting::AbortedRequest;
use self::ending::Drained;
use self::guard::LoopStage;
use self::parts::Parts;
pub use self::parts::Provided;
use self::publishing::Shown;
use crate::config::Config;
use crate::connection::driver::{Connection, ConnectionHost, Task};
use crate::connection::exchange::Exchange;
use crate::connection::hold_rule::Completion;
use crate::connection::host::Host;
use crate::connection::ownership::{self, Owned};
use crate::connection::runner::RunnerId;
use crate::connection::state::Next;
use crate::connection::table::SPECIAL;
use crate::connection::thread_state;
use crate::connection::timers::Due;
use crate::connection::transaction::Transaction;
use crate::dispatch::dispatcher::{DEADLINES, SLOW};
use crate::dispatch::responder;
use crate::executor::application::Application;
use crate::executor::event_loop::EventLoop;
use crate::executor::greenlets::Greenlets;
use crate::request::spool::Write;
use crate::response::coalescing::TICK;

/// How long after a panic the listener or the deadline that it concerned is handled again (milliseconds).
const PAUSE: Millis = 100;

/// One server: its sockets, connections, queue and threads.
pub struct Server {
    parts: Parts,
}

// The loop.

impl EventLoop for Arc<Server> {
    fn has_ended(&self) -> bool {
        self.parts.context.has_ended()
    }

    fn wait(&self, events: &mut Events, most: Option<Duration>) -> io::Result<bool> {
        self.parts.accepting.watch_accepted();
        let timeout = match most {
            Some(most) if most.is_zero() => Some(most),
            Some(most) => Some(self.timeout().map_or(most, |timeout| timeout.min(most))),
            None => self.timeout(),
        };
        let is_interrupted = self.parts.context.poller.wait(events, timeout);
        self.parts.context.clock.read();
        is_interrupted
    }

    fn handle(&self, events: &Events) {
        let guard = &self.parts.guard;
        thread_state::leading(|| {
            for (key, readiness) in events.iter() {
                if key & SPECIAL == 0 {
                    if let Some(connection) = self.parts.context.table.get(key) {
                        guard.report(&connection, ownership::bits(readiness));
                    }
                } else if guard.stage(LoopStage::Events, || self.handle_event(key)).is_none() {
                    self.lose(key);
                }
            }
            guard.stage(LoopStage::Accept, || self.parts.accepting.adopt(&self.host()));
            guard.stage(LoopStage::Flush, || self.flush());
            guard.stage(LoopStage::Dispatches, || self.dispatch_requests());
            guard.stage(LoopStage::Deadlines, || self.expire());
            guard.stage(LoopStage::LateRequests, || self.refuse_late_requests());
            guard.stage(LoopStage::Memory, || self.reclaim_memory());
            guard.stage(LoopStage::Scoreboard, || self.publish());
            if guard.stage(LoopStage::Drain, || self.drain()) == Some(Drained::Over) {
                self.end();
            }
        });
    }

    fn send_coalesced(&self) {
        let Parts { context, guard, .. } = &self.parts;
        guard.stage(LoopStage::Flush, || {
            context.flush_list.tick_coalescing(|connection, work| guard.connection(connection, work));
        });
    }

    fn end(&self) {
        // The master adds the counters of a worker that has ended to those of the others: these are its last ones.
        self.parts.guard.stage(LoopStage::Scoreboard, || self.publish_last());
        failing::end(&self.parts);
    }
}

impl Server {
    /// How long to wait for events; `None`: no limit.
    fn timeout(&self) -> Option<Duration> {
        let Parts { context, dispatcher, executor, publishing, .. } = &self.parts;
        if context.flush_list.has_urgent() || context.has_dispatches() {
            return Some(Duration::ZERO);
        }
        let tick = context.flush_list.are_any().then_some(TICK);
        if dispatcher.queue.len() > 0
            && let Some(wait) = executor.longest_wait()
        {
            return Some(tick.map_or(wait, |tick| tick.min(wait)));
        }
        if tick.is_some() {
            return tick;
        }
        let now = context.clock.recent_millis();
        let waits = [
            context.timers.next(now),
            publishing.longest_wait(now),
            ending::longest_wait(context, now),
            context.memory.pool.longest_wait(now),
            context.next_reclaim(now),
        ];
        waits.into_iter().flatten().min()
    }

    /// Handles an event of the wake-up descriptor or of a listener.
    fn handle_event(self: &Arc<Self>, key: u64) {
        let Parts { context, accepting, .. } = &self.parts;
        if key == WAKEUP {
            context.poller.clear_wakeup();
        } else {
            accepting.accept(key, &self.host(), self.is_blocked(BLOCKED));
        }
    }

    /// Sends blocks that were coalesced for a tick, and responses that runners have left to the I/O side.
    fn flush(&self) {
        let Parts { context, guard, .. } = &self.parts;
        context.flush_list.tick(|connection, work| guard.connection(connection, work));
    }

    /// Dispatches the requests that were left to this round.
    fn dispatch_requests(self: &Arc<Self>) {
        let Parts { context, guard, .. } = &self.parts;
        for (transaction, connection) in context.take_dispatches() {
            guard.connection(&connection.clone(), || connection.dispatch(transaction));
        }
    }

    /// Handles all deadlines that have passed: of requests, of listeners that pause, and of connections.
    fn expire(self: &Arc<Self>) {
        let Parts { context, accepting, guard, .. } = &self.parts;
        let now = context.clock.recent_millis();
        while let Some((entry, key)) = context.timers.pop(now) {
            let expired = guard.stage(LoopStage::Deadlines, || {
                may_panic("deadline");
                if key == DEADLINES {
                    self.end_overdue(now);
                } else if key == SLOW {
                    self.report_slow(now);
                } else if key & SPECIAL != 0 {
                    accepting.go_on(key);
                } else if let Some(connection) = context.table.get(key)
                    && context.timers.judge(&connection.deadline, key, entry, now) == Due::Now
                {
                    guard.report(&connection, ownership::EXPIRED);
                }
            });
            if expired.is_none() {
                self.lose(key);
            }
        }
    }

    /// A panic interrupted the handling of an event or a deadline, which is not reported again. A listener, or the
    /// deadlines of requests, are therefore handled again after [`PAUSE`], and a connection is closed.
    fn lose(&self, key: u64) {
        let Parts { context, guard, .. } = &self.parts;
        if key & SPECIAL != 0 {
            context.timers.wake(key, context.clock.recent_millis() + PAUSE);
        } else if let Some(connection) = context.table.get(key) {
            guard.drop_connection(&connection);
        }
    }

    /// Ends the requests whose deadline has passed.
    fn end_overdue(&self, now: Millis) {
        let Parts { dispatcher, application, .. } = &self.parts;
        if let Err(panic) = catch(|| dispatcher.expire(now, |overdue| application.overdue(overdue))) {
            let text =
                format!("a panic in the server while it ended requests past their deadline; it tries again: {panic}");
            application.log(Level::Error, &text);
            dispatcher.expire_again(now);
        }
    }

    /// Reports the requests that have run for as long as `--slow-request-log` says.
    fn report_slow(&self, now: Millis) {
        let Parts { dispatcher, application, .. } = &self.parts;
        dispatcher.report_slow(now, |slow| application.slow(slow));
    }

    /// Answers 503 to requests that have waited too long for a runner.
    fn refuse_late_requests(&self) {
        for exchange in self.parts.dispatcher.take_late() {
            exchange.refuse();
        }
    }

    /// Frees memory that is held for clients if it is above its limit, and returns freed memory to the system.
    fn reclaim_memory(&self) {
        let Parts { context, application, .. } = &self.parts;
        context.look_after_memory(|bytes| application.freed(bytes));
    }

    /// Updates the scoreboard if it is due, and obeys the master's order to drain.
    fn publish(&self) {
        let Parts { context, dispatcher, application, publishing, .. } = &self.parts;
        let Some(worker_slot) = publishing.is_due(context.clock.recent_millis()) else { return };
        if let Some(graceful) = worker_slot.drain_order() {
            ending::stop(context, graceful);
        }
        let now = context.clock.recent_millis();
        if publishing.are_connections_due(now, context.table.len()) {
            let mut states = ConnectionStates::default();
            context.table.visit(|connection| states.add(connection.activity()));
            states.publish(&worker_slot);
        }
        self.thread_states().publish(&worker_slot);
        let stats = self.stats();
        let shown = Shown {
            moves: dispatcher.queue.moved().wrapping_add(stats[Metric::Requests]),
            stuck_since: dispatcher.runners.stuck_since(),
            now: self.shared_now(),
            stats,
        };
        publishing.publish(worker_slot, &shown, || application.ask());
    }

    fn thread_states(&self) -> ThreadStates {
        let Parts { context, dispatcher, executor, .. } = &self.parts;
        let sending = context.waiting.load(Ordering::Relaxed).min(dispatcher.queue.running());
        ThreadStates {
            entering: u64::from(dispatcher.queue.is_entering()),
            running: (dispatcher.queue.running().saturating_sub(sending)) as u64,
            sending: sending as u64,
            ..executor.free_threads()
        }
    }

    /// Updates the counters on the scoreboard, though an update may not be due.
    fn publish_last(&self) {
        if let Some(worker_slot) = self.parts.worker_slot {
            self.stats().publish(&worker_slot);
        }
    }

    /// If the server is to stop: accepts clients that have connected already, and checks whether all requests are done.
    fn drain(self: &Arc<Self>) -> Drained {
        if self.parts.context.lifecycle.is_running() {
            return Drained::NotYet;
        }
        ending::drain(&self.parts, &self.host(), |time| self.is_blocked(time))
    }

    /// True when no runner has been able to enter the application for at least this time.
    fn is_blocked(&self, time: Duration) -> bool {
        self.parts.publishing.is_application_lost(time, self.shared_now()) || self.parts.executor.is_blocked(time)
    }

    /// The latest reading of the server's clock, in nanoseconds of the monotonic clock that all processes share.
    fn shared_now(&self) -> u64 {
        let clock = &self.parts.context.clock;
        clock.monotonic_of(clock.recent())
    }

    fn host(self: &Arc<Self>) -> Arc<ConnectionHost> {
        self.clone()
    }
}

// What connections call.

impl Host<Connection> for Server {
    fn dispatch(
        &self,
        transaction: Box<Transaction>,
        connection: Owned<Connection>,
    ) -> Option<(Owned<Connection>, Next)> {
        responder::respond(&self.parts.responders, Exchange::new(transaction, connection))
    }

    fn dispatch_later(&self, transaction: Box<Transaction>, connection: Owned<Connection>) {
        self.parts.context.dispatch_later(transaction, connection, || self.wake_io());
    }

    fn hand_over(&self, connection: Owned<Connection>) {
        self.parts.context.hand_over(connection, || self.wake_io());
    }

    fn store(&self, connection: Owned<Connection>, write: Write) {
        self.parts.context.store(connection, write);
    }

    fn hold(&self, connection: Owned<Connection>) {
        self.parts.context.hold(connection);
    }

    fn may_hold(&self, started: Instant) -> bool {
        let Parts { context, dispatcher, executor, .. } = &self.parts;
        let batched = &context.batched;
        let (waiting, has_batch) = (dispatcher.queue.len(), !batched.is_empty());
        let is_worth_a_look = (waiting > 0 || has_batch) && batched.is_on();
        is_worth_a_look && executor.may_hold() && context.lifecycle.is_running() && {
            let took = context.clock.peek().saturating_duration_since(started);
            batched.rule.may_hold(Completion { waiting, has_batch, took })
        }
    }

    fn may_delay(&self) -> bool {
        let Parts { context, dispatcher, executor, .. } = &self.parts;
        dispatcher.queue.len() > 0 && context.batched.is_on() && executor.may_delay() && context.lifecycle.is_running()
    }

    fn push(&self, connection: Arc<Connection>) {
        self.parts.context.push(connection, || self.wake_io());
    }

    fn add_coalescing(&self, connection: &Arc<Connection>) {
        self.parts.executor.add_coalescing(connection.clone());
    }

    fn remove(&self, connection: &Connection) {
        self.parts.context.remove(connection);
    }

    fn make_room(&self, more: usize) -> bool {
        self.parts.context.make_room(more)
    }

    fn set_request_deadline(&self, runner: RunnerId, due: Millis, task: &mut dyn FnMut() -> Task) {
        if self.parts.dispatcher.set_deadline(runner, due, task) {
            self.parts.executor.wake_io();
        }
    }

    fn release(&self, runner: RunnerId) {
        self.parts.dispatcher.runners.release(runner);
    }

    fn leave_socket(&self, connection: &Connection) {
        self.parts.context.poller.watch_end(connection.socket().socket(), connection.key);
    }

    fn forget_socket(&self, connection: &Connection) {
        self.parts.context.poller.forget(connection.socket().socket());
    }

    fn note_raw(&self, runner: RunnerId) {
        self.parts.dispatcher.runners.note_raw(runner);
    }

    fn show_sending(&self, packed: u64) -> Option<Sending> {
        self.parts.dispatcher.runners.show_sending(RunnerId::of_packed(packed))
    }

    fn wake_io(&self) {
        self.parts.executor.wake_io();
    }

    fn wake_runner(&self, ticket: u64) -> bool {
        self.parts.executor.wake_runner(ticket)
    }

    fn is_on_ticket_thread(&self) -> bool {
        self.parts.executor.is_on_ticket_thread()
    }

    fn must_end(&self) -> bool {
        let Parts { context, application, .. } = &self.parts;
        let is_interrupted = application.interrupted();
        is_interrupted || (context.is_stopping() && context.lifecycle.is_overdue(context.clock.now()))
    }

    fn account(&self, key: u64, transaction: Box<Transaction>, writes: u32) {
        self.parts.accounting.account(key, transaction, writes);
    }

    fn report_disconnect(&self, packed: u64) {
        let Parts { context, dispatcher, application, .. } = &self.parts;
        let cancels = |method: &[u8]| context.config.cancel.covers(method);
        if let Some(disconnected) = dispatcher.runners.disconnect(RunnerId::of_packed(packed), cancels) {
            application.disconnected(disconnected);
        }
    }

    fn log(&self, level: Level, message: &str) {
        self.parts.application.log(level, message);
    }
}

// What the owner of the server calls.

impl Server {
    /// A server on these listening sockets. It starts no thread.
    ///
    /// # Errors
    /// No descriptors left, or the access log cannot be opened.
    pub fn new(
        config: Config,
        application: Arc<dyn Application>,
        listeners: Vec<OwnedFd>,
        provided: Provided,
    ) -> io::Result<Arc<Self>> {
        process::watch_forks();
        let server = Arc::new(Self { parts: Parts::new(config, application, listeners, provided)? });
        server.report_slow(server.parts.context.clock.now());
        Ok(server)
    }

    /// The main function of a thread of the server. With [`ExecutorKind::Threads`](crate::config::ExecutorKind) every
    /// thread runs it, with `Greenlets` the I/O thread, with `Inline` the only thread. Returns when the server has
    /// ended, when this thread is no longer needed, or, with `Inline`, when the application reports an interruption.
    ///
    /// An error or a panic of the loop itself ends the server; [`Server::fault`] has the reason.
    pub fn run(self: &Arc<Self>) {
        match catch(|| self.parts.executor.run(self)) {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => failing::fail(&self.parts, &format!("the event loop failed: {fault}")),
            Err(panic) => failing::fail(&self.parts, &format!("a server thread panicked: {panic}")),
        }
    }

    /// The executor of greenlets; `None` with another executor.
    pub fn greenlets(&self) -> Option<&Arc<Greenlets>> {
        self.parts.greenlets.as_ref()
    }

    /// Starts another thread if threads that do not return from the application leave too few for other requests.
    pub fn keep_a_spare_thread(&self) {
        self.parts.executor.keep_a_spare_thread();
    }

    /// True when the runner of a slot still runs this request; see [`crate::executor::application::Overdue`].
    pub fn runs(&self, slot: usize, serial: u64) -> bool {
        self.parts.dispatcher.runners.runs(slot, serial)
    }

    /// True when the application may be interrupted in this request: it runs it, and has not yet entered `close()`.
    pub fn is_interruptible(&self, slot: usize, serial: u64) -> bool {
        self.parts.dispatcher.runners.is_interruptible(slot, serial)
    }

    /// True when a request may be cancelled because its client has left: the application runs it, and its response has
    /// not ended.
    pub fn is_cancellable(&self, slot: usize, serial: u64) -> bool {
        self.parts.dispatcher.runners.is_cancellable(slot, serial)
    }

    /// Which values of query strings are hidden wherever requests are shown.
    pub fn query_masking(&self) -> QueryMasking {
        self.parts.context.config.query_masking
    }

    /// The requests that runners run, each with the slot of its runner.
    pub fn in_flight(&self) -> Vec<(usize, InFlight)> {
        self.parts.worker_slot.map(|slot| slot.in_flight_by_slot().collect()).unwrap_or_default()
    }

    /// The application's reply to [`Application::ask`]: a thread has obtained the interpreter.
    pub fn application_answers(&self) {
        self.parts.publishing.application_answers();
    }

    /// True in a child that the application has forked. The child must take no lock of the server: a thread that exists
    /// only in the parent may have held it at the fork.
    #[inline]
    pub fn is_forked_child(&self) -> bool {
        self.parts.context.is_forked_child()
    }

    /// Bytes of request bodies in files.
    #[cfg(test)]
    pub(crate) fn body_files(&self) -> u64 {
        self.parts.context.body_files.used()
    }

    /// The current counters; all 0 in a forked child.
    pub fn stats(&self) -> Stats {
        if self.is_forked_child() {
            return Stats::default();
        }
        let Parts { context, dispatcher, executor, .. } = &self.parts;
        let (memory, queue, runners) = (&context.memory, &dispatcher.queue, &dispatcher.runners);
        let mut stats = context.counts.stats();
        (stats.threads, stats.greenlets_made) = executor.count();
        stats[Metric::Connections] = context.table.len() as u64;
        stats[Metric::WebSockets] = context.raw_sockets.load(Ordering::SeqCst) as u64;
        stats[Metric::Running] = queue.running() as u64;
        stats[Metric::Queued] = queue.len() as u64;
        stats[Metric::Held] = memory.used() as u64;
        stats[Metric::Heads] = memory.requests.used() as u64;
        stats[Metric::Buffered] = memory.responses.used() as u64;
        stats[Metric::Bodies] = memory.bodies.used() as u64;
        stats[Metric::Stuck] = runners.stuck() as u64;
        stats[Metric::TimedOut] = runners.timed_out();
        stats[Metric::Collections] = usage::collections();
        stats
    }

    /// Opens the access log again by its name, after a rotation.
    ///
    /// # Errors
    /// It cannot be opened; the log goes to the old file.
    pub fn reopen_logs(&self) -> io::Result<()> {
        if self.is_forked_child() {
            return Ok(());
        }
        self.parts.accounting.reopen_log()
    }

    /// Begins a graceful stop: requests in flight have `graceful` to finish; connections that are open then are closed.
    /// May be called again with a shorter time.
    pub fn stop(&self, graceful: Duration) {
        if !self.is_forked_child() {
            ending::stop(&self.parts.context, graceful);
        }
    }

    /// Shuts down the sending direction of this socket when the server drains. The server then serves the sessions of this
    /// worker until the other end is closed, but no longer than the requests in flight have.
    pub fn add_follower(&self, follower: OwnedFd) {
        if !self.is_forked_child() {
            self.parts.context.lifecycle.add_follower(follower);
        }
    }

    /// True once a stop was requested: each connection is closed after its response.
    pub fn is_stopping(&self) -> bool {
        self.parts.context.is_stopping()
    }

    /// Waits until the server has ended. False: it had not ended after `timeout`.
    pub fn join(&self, timeout: Option<Duration>) -> bool {
        self.is_forked_child() || self.parts.context.lifecycle.join(timeout)
    }

    /// The requests that the end of the server interrupted, each returned once; none in a forked child.
    pub fn take_aborted(&self) -> Vec<AbortedRequest> {
        if self.is_forked_child() { Vec::new() } else { self.parts.accounting.take_aborted() }
    }

    /// The reason if the server ended without a request to stop; `None` in a forked child.
    pub fn fault(&self) -> Option<String> {
        if self.is_forked_child() { None } else { lock(&self.parts.fault).clone() }
    }

    /// Says that this process is a worker of a master, and watches the master: its process holds the other end of the
    /// pipe `lives`. When that is closed, the listeners are closed and requests in flight have `graceful` to finish;
    /// if the process has not ended `leaving` later, it is ended by force.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn watch_master(self: &Arc<Self>, lives: OwnedFd, graceful: Duration, leaving: Duration) -> io::Result<()> {
        self.parts.has_master.store(true, Ordering::Release);
        let server = self.clone();
        failing::watch_master(lives, move || failing::end_without_master(&server.parts, graceful, leaving))
    }

    /// For tests: moves the clock of this server ahead of the real time, so that deadlines within that time pass now.
    pub fn advance_clock(&self, time: Duration) {
        self.parts.context.clock.advance(time);
        self.parts.context.poller.wake();
    }
}
