//! The application runs in threads. One of them leads the loop at a time: see [`roles`].

pub(crate) mod leadership;
pub(crate) mod roles;
pub(crate) mod watcher;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tailrace_observe::level::Level;
use tailrace_observe::once_a_minute::OnceAMinute;
use tailrace_observe::stats::ThreadStates;
use tailrace_os::clock::Load;
use tailrace_os::epoll::Events;
use tailrace_os::mapping;
use tailrace_os::panics::may_panic;
use tailrace_os::process;
use tailrace_os::sync::atomic::{AtomicBool, Ordering};

use crate::connection::context::Context;
use crate::connection::driver::Connection;
use crate::connection::spare_time::SpareTime;
use crate::connection::steps::READS;
use crate::connection::thread_state;
use crate::connection::watch::Watcher;
use crate::dispatch::admission::Verdict;
use crate::dispatch::dispatcher::Dispatcher;
use crate::executor::Executor;
use crate::executor::application::Application;
use crate::executor::entry::run_application;
use crate::executor::event_loop::EventLoop;
use crate::executor::threads::leadership::Term;
use crate::executor::threads::roles::{Role, Roles, Watched};
use crate::executor::turn::Turn;
use crate::response::coalescing::TICK;
use crate::response::policy::{Coalesce, Policy, Waiting};

/// A finished response of which more bytes than this are unsent is left to the I/O side.
pub(super) const HAND_OVER: usize = 32 * 1024;

/// A thread writes and waits by itself, with the interpreter released.
pub(crate) const POLICY: Policy = Policy {
    coalesce: Coalesce::WhenQuick,
    waiting: Waiting::Block,
    most_by_runner: None,
    most_by_io: None,
    most_after_end: HAND_OVER,
    holds: true,
    reads_by_runner: READS,
};

/// Events taken at once: what a leader reads before it runs the application.
const BATCH: usize = 32;
/// After this time, a runner that computes while requests wait and another thread leads is recalled: the leader then
/// runs the application itself. Otherwise, as long as requests wait, the runner would not leave, each event would wake
/// the leader, and no response would be held: 64 connections on the server's core lose 20 % of the rate of Flask's
/// hello.
const RECALL: Duration = Duration::from_millis(2);
/// How often a leader checks a queue for which there is no thread. With 8 threads that all wait, checks every 200 µs
/// double the processor time of a request, and checks every millisecond cost 1.3 times as much.
const FULL_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Bytes of the stack of an application thread (`ulimit -s`).
const STACK: usize = 8 << 20;

pub(crate) struct Threads {
    context: Arc<Context>,
    dispatcher: Arc<Dispatcher>,
    application: Arc<dyn Application>,
    roles: Roles,
    /// The only runner must leave the application, so that the leader runs it. It was seen to compute.
    is_recalled: AtomicBool,
    /// The leader has little time to spare, see [`SpareTime`].
    is_saturated: AtomicBool,
    /// That no thread could be started.
    logged_start_failure: OnceAMinute,
}

/// One of the threads.
#[derive(Clone, Copy)]
struct Member {
    /// Its number among them, from 0.
    number: usize,
    /// Its slot in the runner table.
    slot: Option<usize>,
}

impl Threads {
    /// No thread runs yet.
    pub(crate) fn new(dispatcher: Arc<Dispatcher>, application: Arc<dyn Application>) -> Self {
        Self {
            context: dispatcher.context().clone(),
            dispatcher,
            application,
            roles: Roles::default(),
            is_recalled: AtomicBool::new(false),
            is_saturated: AtomicBool::new(false),
            logged_start_failure: OnceAMinute::default(),
        }
    }

    /// Takes one role after the other until the thread must end.
    fn take_roles(&self, member: Member, events: &dyn EventLoop) -> io::Result<()> {
        let mut batch = Events::new(BATCH);
        while !events.has_ended() {
            match self.roles.next_role() {
                Role::Lead(term) => self.lead(term, member, events, &mut batch)?,
                Role::Watch => {
                    may_panic("watch");
                    let role = self.roles.watch(&mut Watching { threads: self, member, events, batch: &mut batch });
                    if let Role::Lead(term) = role {
                        self.lead(term, member, events, &mut batch)?;
                    }
                }
                Role::Retire => break,
            }
        }
        Ok(())
    }

    /// Leads until the lead is lost or the server ends.
    fn lead(&self, mut term: Term, member: Member, events: &dyn EventLoop, batch: &mut Events) -> io::Result<()> {
        // The count of requests taken, and the load of the process, when requests were last seen to wait. `None`: none
        // waited.
        let mut waiting: Option<(u64, Load)> = None;
        // The load when requests were first seen to wait for a runner that was not stuck.
        let mut busy: Option<Load> = None;
        let clock = &self.context.clock;
        let mut spare = SpareTime::new(clock.recent());
        self.is_saturated.store(false, Ordering::Relaxed);
        let queue = &self.dispatcher.queue;
        may_panic("lead");
        while !events.has_ended() {
            let moved = queue.moved();
            let is_stuck = waiting.as_ref().is_some_and(|(then, load)| *then == moved && load.was_idle());
            match queue.verdict(is_stuck, self.dispatcher.most_runners(), self.context.clock.recent()) {
                Verdict::Idle => (waiting, busy) = (None, None),
                Verdict::Watch => {
                    waiting = Some((moved, Load::now()));
                    match &busy {
                        Some(load) if load.is_older_than(RECALL) => {
                            let computes = !load.was_idle() && !queue.is_eager() && queue.running() == 1;
                            self.is_recalled.store(computes, Ordering::Release);
                            busy = None;
                        }
                        Some(_) => {}
                        None => busy = Some(Load::now()),
                    }
                }
                Verdict::Run if !self.may_run(member) => {
                    self.roles.offer(term);
                    return Ok(());
                }
                Verdict::Run => {
                    (waiting, busy) = (None, None);
                    self.is_recalled.store(false, Ordering::Release);
                    if self.roles.try_lend(&mut term, queue.is_eager()) {
                        self.run_application(member);
                        if !self.roles.try_resume(&mut term) {
                            return Ok(());
                        }
                    }
                }
            }
            let before = clock.read();
            events.wait(batch, None)?;
            if let Some(is_saturated) = spare.note(before, clock.recent()) {
                self.is_saturated.store(is_saturated, Ordering::Relaxed);
            }
            events.handle(batch);
        }
        Ok(())
    }

    /// Runs the application, unless another thread is about to.
    fn run_application(&self, member: Member) {
        if let Some(entry) = self.dispatcher.queue.try_enter(self.context.clock.peek()) {
            run_application(&*self.application, Turn::entering(&self.dispatcher, self, member.slot, entry));
        }
    }

    /// With one application thread it is always the same one: number 0.
    fn may_run(&self, member: Member) -> bool {
        self.context.config.threads > 1 || member.number == 0 || self.dispatcher.queue.running() > 0
    }

    /// Logs at most once a minute that no thread could be started: each request that waits causes an attempt.
    #[cold]
    fn log_start_failure(&self, fault: &io::Error) {
        if self.logged_start_failure.may_log(self.context.clock.recent_millis()) {
            self.application.log(Level::Warning, &format!("cannot start another thread: {fault}"));
        }
    }
}

impl Executor for Threads {
    fn run(&self, events: &dyn EventLoop) -> io::Result<()> {
        may_panic("thread");
        let number = self.roles.join();
        let slot = self.dispatcher.runners.take(process::thread_id());
        let outcome = self.take_roles(Member { number, slot }, events);
        self.roles.leave();
        if let Some(slot) = slot {
            self.dispatcher.runners.give_back(slot);
        }
        outcome
    }

    fn longest_wait(&self) -> Option<Duration> {
        // With every application thread in use the leader cannot help: a runner takes the next request.
        let most = self.context.config.threads + self.dispatcher.runners.stuck();
        let may_help = self.roles.free() > 1 || self.roles.total() <= most;
        Some(if may_help { TICK } else { FULL_POLL_INTERVAL })
    }

    fn is_blocked(&self, time: Duration) -> bool {
        self.dispatcher.queue.is_blocked(time, self.context.clock.recent())
    }

    fn end(&self) {
        self.roles.end();
    }

    fn count(&self) -> (u64, u64) {
        (self.roles.total() as u64, 0)
    }

    fn free_threads(&self) -> ThreadStates {
        self.roles.free_threads()
    }

    /// A leader inside the application is not woken: it polls when the application returns, or the watcher polls before
    /// that.
    fn wake_io(&self) {
        if self.roles.is_led() && !thread_state::is_leading() {
            self.context.poller.wake();
        }
    }

    fn add_coalescing(&self, connection: Arc<Connection>) {
        let watcher = self.context.coalesce(connection);
        if self.roles.is_led() {
            self.wake_io();
        } else if watcher == Watcher::Sleeps {
            self.roles.alert();
        }
    }

    /// Only while the server has little time to spare: clients that are answered together send their next requests
    /// together, and until then the server would be idle. Only the leader, which runs the application itself: it runs
    /// next, so it soon sends what it holds. An application that is known to wait occupies it for longer than a
    /// response may be held.
    fn may_hold(&self) -> bool {
        self.is_saturated.load(Ordering::Relaxed) && !self.roles.is_led() && !self.dispatcher.queue.is_eager()
    }

    /// Only while the leader runs the application: a watcher then comes at each tick, and need not be woken. With an
    /// application that is known to wait, blocks would wait for a tick in vain.
    fn may_delay(&self) -> bool {
        !self.roles.is_led() && !self.dispatcher.queue.is_eager()
    }

    /// The leader runs the application itself, or has it run. It is also woken by an application thread that has read
    /// the next request of its connection, since that thread may be busy for long before it takes a request.
    fn wake_runners(&self) {
        self.wake_io();
    }

    /// A runner needs a thread that can take the lead while it runs, and threads that are stuck need replacements.
    fn keep_a_spare_thread(&self) {
        // Each has a slot.
        let most = (self.dispatcher.most_runners() + 1).min(self.dispatcher.runners.len());
        if !self.roles.should_start_thread(most) {
            return;
        }
        let started = if mapping::is_thread_possible(STACK) {
            self.application.grow()
        } else {
            Err(io::ErrorKind::OutOfMemory.into())
        };
        if let Err(fault) = started {
            self.roles.start_failed();
            self.log_start_failure(&fault);
        }
    }

    /// The runner is recalled.
    fn is_turn_over(&self) -> bool {
        self.is_recalled.load(Ordering::Relaxed) && self.is_recalled.swap(false, Ordering::AcqRel)
    }
}

/// What a watching thread needs.
struct Watching<'a> {
    threads: &'a Threads,
    member: Member,
    events: &'a dyn EventLoop,
    batch: &'a mut Events,
}

impl Watched for Watching<'_> {
    fn wants_this_thread(&self) -> bool {
        let Self { threads, member, .. } = self;
        threads.context.config.threads == 1 && member.number == 0 && threads.dispatcher.queue.len() > 0
    }

    fn longest_poll_interval(&self) -> Option<Duration> {
        self.threads.context.longest_watch()
    }

    fn send_coalesced(&self) {
        self.events.send_coalesced();
    }

    fn moved(&self) -> u64 {
        self.threads.dispatcher.queue.moved()
    }

    fn leave_watch(&self) {
        self.threads.context.leave_watch();
    }

    fn relieve(&mut self) {
        // A leader that has to be relieved has no time to spare, and does not look how much it has.
        self.threads.is_saturated.store(true, Ordering::Relaxed);
        // An error here is an error of the leader's next wait, too, which reports it.
        if self.events.wait(self.batch, Some(Duration::ZERO)).is_ok() {
            self.events.handle(self.batch);
        }
        // The leader may have come back meanwhile and wait already: it has to look at the requests that were read here,
        // and at the wake-up that was cleared here.
        self.threads.wake_io();
    }
}
