//! The loop that every thread runs.
//!
//! The leader polls, lets connections take in what came, then runs the application for the requests that are complete;
//! the watcher takes the helm when that lasts (see `crew`). Every other thread is parked or inside the application.

mod deadlines;
mod ending;
mod greenlets;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use crate::accept::{Accepted, Listener};
use crate::access_log::AccessLog;
use crate::answer::Answer;
use crate::budget::Budget;
use crate::claim;
use crate::config::Config;
use crate::connection::Connection;
use crate::crew::{Crew, Helm, NAP, Role, Scene};
use crate::exchange::Exchange;
use crate::gather::TICK;
use crate::handler::{Application, Level};
use crate::hub::Hub;
use crate::load::Load;
use crate::phase::Phase;
use crate::posts::Posts;
use crate::ready::{Ready, Turn, Verdict};
use crate::request::Endpoints;
use crate::scoreboard::{Counter, Place};
use crate::slots::{SPECIAL, Slots};
use crate::stats::Stats;
use crate::streams::Streams;
use crate::sys::{ALARM, Events, Poller};
use crate::timers::{Clock, Due, Millis, NEVER, SIGNAL_CHECK, Timers};
use crate::wire::Wire;
use crate::{local, lock, read, sys};

/// Events taken at once: what a leader reads before it runs the application.
const BATCH: usize = 32;
/// How long accepting pauses when the process has no descriptors left (milliseconds).
const ACCEPT_PAUSE: u64 = 100;

/// A worker whose threads have waited so long for the interpreter accepts nobody.
const BARRED: Duration = Duration::from_millis(250);
/// How long a worker leaves new clients to the others that has more than its share (milliseconds).
const SHARE_PAUSE: u64 = 2;
/// Between two lots of counters on the scoreboard (milliseconds).
const BOARD_PAUSE: u64 = 20;
/// How often a worker that has nothing to do tells that it lives.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// How often a draining server looks whether it is done.
const DRAIN_CHECK: Duration = Duration::from_millis(50);
/// How often a leader looks at a queue for which there is no thread.
const FULL_NAP: Duration = Duration::from_millis(10);

/// One server: its sockets, connections, queue and threads.
pub struct Reactor {
    config: Config,
    application: Arc<dyn Application>,
    poller: Poller,
    listeners: RwLock<Vec<Listener>>,
    slots: Slots,
    ready: Ready,
    crew: Crew,
    timers: Timers,
    clock: Clock,
    phase: Phase,
    posts: Posts,
    /// The thread whose greenlets run the application, instead of threads of a crew.
    hub: Option<Hub>,
    place: Option<Place>,
    /// A client was left to the other workers a moment ago.
    left_to_others: AtomicBool,
    /// When the scoreboard was last told.
    told_board: AtomicU64,
    access_log: Option<AccessLog>,
    streams: Streams,
    budget: Arc<Budget>,
    bodies: Arc<Budget>,
    accepted: AtomicU64,
    requests: AtomicU64,
    refused: AtomicU64,
}

impl Reactor {
    /// A server on these listening sockets. No thread runs yet. `place`: where it tells what it does.
    ///
    /// # Errors
    /// No descriptors left, or the access log cannot be opened.
    pub fn new(
        config: Config,
        application: Arc<dyn Application>,
        listeners: Vec<OwnedFd>,
        place: Option<Place>,
    ) -> io::Result<Arc<Self>> {
        sys::watch_forks();
        let poller = Poller::new()?;
        for (index, socket) in listeners.iter().enumerate() {
            rustix::io::ioctl_fionbio(socket, true)?;
            poller.watch_listener(socket.as_fd(), SPECIAL | index as u64)?;
        }
        let access_log = config.access_log.clone().map(AccessLog::open).transpose()?;
        if let Some(place) = place {
            place.set(Counter::Pid, u64::from(std::process::id()));
        }
        let threads = if config.single_thread { 1 } else { config.threads };
        Ok(Arc::new(Self {
            posts: Posts::new(threads, place),
            hub: if config.hub { Some(Hub::new()?) } else { None },
            place,
            left_to_others: AtomicBool::new(false),
            told_board: AtomicU64::new(NEVER),
            config,
            application,
            poller,
            listeners: RwLock::new(listeners.into_iter().map(|socket| Listener { socket }).collect()),
            slots: Slots::default(),
            ready: Ready::new(),
            crew: Crew::new(),
            timers: Timers::default(),
            clock: Clock::new(),
            phase: Phase::new(),
            access_log,
            streams: Streams::default(),
            budget: Arc::default(),
            bodies: Arc::default(),
            accepted: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }))
    }

    /// The body of a pool thread. Blocks until the server ends or has no use for the thread.
    pub fn run_thread(self: &Arc<Self>) {
        let number = self.crew.join();
        let post = self.posts.take(sys::thread_id());
        local::set_post(post);
        let mut events = Events::new(BATCH);
        loop {
            match self.crew.next_role() {
                Role::Lead(helm) => self.lead_on(helm, number, &mut events),
                Role::Watch => {
                    let role = self.crew.watch(&mut Watch { reactor: self, number, events: &mut events });
                    if let Role::Lead(helm) = role {
                        self.lead_on(helm, number, &mut events);
                    }
                }
                Role::Retire => break,
            }
            if self.has_ended() {
                break;
            }
        }
        self.crew.leave();
        local::set_post(None);
        if let Some(post) = post {
            self.posts.give_back(post);
        }
    }

    /// The whole server on the calling thread, application included. Returns when it has ended, or when the
    /// application says that it was interrupted.
    ///
    /// # Errors
    /// Those of polling, which mean a fault of ours.
    pub fn run_here(self: &Arc<Self>) -> io::Result<()> {
        let mut events = Events::new(BATCH);
        local::set_post(self.posts.take(sys::thread_id()));
        while !self.has_ended() {
            // A signal that comes just before the wait does not interrupt it.
            let timeout = self.next_timeout().map_or(SIGNAL_CHECK, |timeout| timeout.min(SIGNAL_CHECK));
            let interrupted = self.poll(&mut events, Some(timeout))?;
            if interrupted && self.application.interrupted() {
                self.end();
                break;
            }
            self.serve(&events);
            if self.ready.len() > 0 && self.ready.try_enter() {
                self.run();
            }
            if self.application.interrupted() {
                self.end();
            }
        }
        Ok(())
    }

    fn lead_on(self: &Arc<Self>, helm: Helm, number: usize, events: &mut Events) {
        if let Err(fault) = self.lead(helm, number, events) {
            self.log(Level::Error, &format!("the event loop failed: {fault}"));
            self.end();
        }
    }

    /// Leads until the helm is lost or the server ends.
    fn lead(self: &Arc<Self>, mut helm: Helm, number: usize, events: &mut Events) -> io::Result<()> {
        // The count of requests taken, and the load, when those that wait were seen to wait. `None`: none do.
        let mut waiting: Option<(u64, Load)> = None;
        while !self.has_ended() {
            let moved = self.ready.moved();
            let stuck = waiting.as_ref().is_some_and(|(then, load)| *then == moved && load.was_idle());
            match self.ready.verdict(stuck, self.most_runners()) {
                Verdict::Idle => waiting = None,
                Verdict::Watch => waiting = Some((moved, Load::now())),
                Verdict::Run if !self.may_run(number) => {
                    self.crew.offer(&mut helm);
                    return Ok(());
                }
                Verdict::Run => {
                    waiting = None;
                    if self.crew.lend(&mut helm, self.ready.is_eager()) {
                        if self.ready.try_enter() {
                            self.run();
                        }
                        if !self.crew.resume(&mut helm) {
                            return Ok(());
                        }
                    }
                }
            }
            self.poll(events, self.next_timeout())?;
            local::leading(|| self.serve(events));
        }
        Ok(())
    }

    /// Threads that may run the application: those that are stuck are made up for, unless only one may ever be in there.
    pub(crate) fn most_runners(&self) -> usize {
        match self.config.threads {
            1 => 1,
            threads => threads + self.posts.stuck(),
        }
    }

    /// With one application thread it is always the same one: number 0.
    fn may_run(&self, number: usize) -> bool {
        self.config.threads > 1 || number == 0 || self.ready.running() > 0
    }

    /// True when requests wait that only this thread may run.
    fn is_wanted(&self, number: usize) -> bool {
        self.config.threads == 1 && number == 0 && self.ready.len() > 0
    }

    /// Runs the application until nothing is left to do. A panic in there costs the request it was at.
    fn run(self: &Arc<Self>) {
        let turn = std::panic::AssertUnwindSafe(|| self.application.enter(&mut Turn::new(self)));
        if std::panic::catch_unwind(turn).is_err() {
            self.log(Level::Error, "a request ended in a panic of the server; its connection was closed");
        }
    }

    /// How long to wait for events: not long while requests wait, whose runners may be stuck.
    fn next_timeout(&self) -> Option<Duration> {
        if self.streams.has_left() {
            return Some(Duration::ZERO);
        }
        if self.ready.len() > 0 && self.hub.is_some() {
            // The hub takes them without help; only those that wait in vain are to be turned away in time.
            if !self.config.queue_timeout.is_zero() || self.posts.stuck() > 0 {
                return Some(if self.streams.are_any() { TICK } else { FULL_NAP });
            }
        } else if self.ready.len() > 0 {
            // With every application thread in use there is nothing to hurry for: a runner takes the next request.
            let may_help = self.crew.free() > 1 || self.crew.total() <= self.config.threads + self.posts.stuck();
            return Some(if may_help { NAP } else { FULL_NAP });
        }
        if self.streams.are_any() {
            return Some(TICK);
        }
        let now = self.clock.recent_millis();
        let mut timer = self.timers.next(now);
        if self.place.is_some_and(|place| !place.is_alone()) {
            timer = Some(timer.map_or(HEARTBEAT, |timer| timer.min(HEARTBEAT)));
        }
        if self.phase.is_running() {
            return timer;
        }
        let left = self.phase.left(now).min(DRAIN_CHECK);
        Some(timer.map_or(left, |timer| timer.min(left)))
    }

    fn poll(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<bool> {
        let interrupted = self.poller.wait(events, timeout);
        self.clock.read();
        interrupted
    }

    /// What came: connections, bytes, deadlines, a wish to stop.
    fn serve(self: &Arc<Self>, events: &Events) {
        for (key, readiness) in events.iter() {
            if key == ALARM {
                self.poller.silence();
            } else if key & SPECIAL != 0 {
                // What is left after one round makes the next event: the listener is level-triggered.
                let _ = self.accept((key & !SPECIAL) as usize);
            } else if let Some(connection) = self.slots.get(key) {
                self.tell(&connection, claim::bits(readiness));
            }
        }
        self.streams.tick(|connection, work| {
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
                self.log(Level::Error, "a response ended in a panic of the server");
                connection.cut();
                self.forget(connection);
            }
        });
        self.expire();
        self.turn_late_away();
        self.tell_board();
        if !self.phase.is_running() {
            self.drain();
        }
    }

    /// Reports events to a connection. A panic in there costs that connection and not the leader.
    fn tell(&self, connection: &Arc<Connection>, bits: claim::Bits) {
        let report = std::panic::AssertUnwindSafe(|| connection.report(bits));
        if std::panic::catch_unwind(report).is_err() {
            self.log(Level::Error, "a connection ended in a panic of the server");
            connection.cut();
            self.forget(connection);
        }
    }

    /// Takes connections in. True when more may be waiting.
    fn accept(self: &Arc<Self>, index: usize) -> bool {
        let listeners = read(&self.listeners);
        let Some(listener) = listeners.get(index) else { return false };
        // Who cannot be served is left to the other processes that listen, or to the kernel's queue.
        if self.slots.len() >= self.config.max_connections || self.is_barred(BARRED) {
            self.pause_accepting(listener, index, ACCEPT_PAUSE);
            return false;
        }
        let shares = self.config.shares_listeners && self.phase.is_running();
        // Left to the others once: whoever still waits then is taken, for they may be busy, or stopped.
        let is_left = shares && self.place.is_some_and(|place| place.has_more_than_its_share());
        if is_left && !self.left_to_others.swap(true, Ordering::Relaxed) {
            self.pause_accepting(listener, index, SHARE_PAUSE);
            return false;
        }
        self.left_to_others.store(false, Ordering::Relaxed);
        let accepted = listener.accept(shares, |socket, peer| {
            let key = self.slots.key_for(socket.as_fd());
            let endpoints = Endpoints { peer, listener: index };
            let connection = Arc::new(Connection::new(self.clone(), Wire::new(socket), key, endpoints));
            self.accepted.fetch_add(1, Ordering::Relaxed);
            self.slots.insert(connection.clone());
            if let Err(fault) = self.poller.watch_connection(connection.wire().as_fd(), key) {
                self.log(Level::Error, &format!("a connection could not be watched: {fault}"));
                self.slots.remove(key);
                return;
            }
            connection.welcome();
        });
        if shares && let Some(place) = &self.place {
            place.set(Counter::Connections, self.slots.len() as u64);
        }
        match accepted {
            Accepted::All => false,
            Accepted::Some => true,
            Accepted::Exhausted(fault) => {
                self.log(
                    Level::Warning,
                    &format!("cannot accept connections: {fault}; raise the limit of open files (ulimit -n)"),
                );
                self.pause_accepting(listener, index, ACCEPT_PAUSE);
                false
            }
        }
    }

    /// The listener is level-triggered: while nothing can be accepted, looking at it would be a busy loop.
    fn pause_accepting(&self, listener: &Listener, index: usize, pause: Millis) {
        self.poller.forget(listener.socket.as_fd());
        self.timers.wake(SPECIAL | index as u64, self.clock.now() + pause);
    }

    fn expire(self: &Arc<Self>) {
        let now = self.clock.recent_millis();
        while let Some((entry, key)) = self.timers.pop(now) {
            if key == deadlines::KEY {
                self.end_overdue(now);
            } else if key & SPECIAL != 0 {
                let listeners = read(&self.listeners);
                if let Some(listener) = listeners.get((key & !SPECIAL) as usize) {
                    // It fails only for want of memory; then the next connection error tells.
                    let _ = self.poller.watch_listener(listener.socket.as_fd(), key);
                }
            } else if let Some(connection) = self.slots.get(key)
                && self.timers.judge(connection.deadline(), key, entry, now) == Due::Now
            {
                self.tell(&connection, claim::EXPIRED);
            }
        }
    }

    /// Brings the scoreboard up to date.
    fn tell_board(&self) {
        let now = self.clock.recent_millis();
        if let Some(place) = &self.place
            && now.wrapping_sub(self.told_board.load(Ordering::Relaxed)) >= BOARD_PAUSE
        {
            self.told_board.store(now, Ordering::Relaxed);
            if let Some(graceful) = place.drain_order() {
                self.stop(graceful);
            }
            self.stats().tell(place);
            let now = self.clock.recent();
            place.set(Counter::Heartbeat, self.posts.monotonic(now));
            place.set(Counter::StuckSince, self.posts.stuck_since());
        }
    }

    /// Counters of now.
    pub fn stats(&self) -> Stats {
        Stats {
            connections: self.slots.len() as u64,
            accepted: self.accepted.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            threads: self.hub.as_ref().map_or(self.crew.total() as u64, |hub| hub.carriers().0),
            carriers_made: self.hub.as_ref().map_or(0, |hub| hub.carriers().1),
            running: self.ready.running() as u64,
            queued: self.ready.len() as u64,
            buffered: self.budget.used() as u64,
            bodies: self.bodies.used() as u64,
            stuck: self.posts.stuck() as u64,
            timed_out: self.posts.timed_out(),
        }
    }

    /// Opens the access log anew, after it was rotated.
    pub fn reopen_logs(&self) {
        if let Some(log) = &self.access_log {
            log.reopen();
        }
    }

    /// True once the server is to stop: responses then end their connections.
    pub fn is_stopping(&self) -> bool {
        !self.phase.is_running()
    }

    fn has_ended(&self) -> bool {
        self.phase.has_ended()
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    pub(crate) fn bodies(&self) -> &Arc<Budget> {
        &self.bodies
    }

    pub(crate) fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Sets the deadline of a connection, from any thread.
    pub(crate) fn set_deadline(&self, connection: &Connection, due: Millis) {
        if self.timers.set(connection.deadline(), connection.key(), due) {
            self.wake_leader();
        }
    }

    /// A thread that waits for events looks around at once. One that leads from inside the application needs no call:
    /// it polls when it comes back, or the watcher does.
    fn wake_leader(&self) {
        if !self.config.single_thread && self.crew.is_led() && !local::is_leading() {
            self.poller.ring();
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// True when a single-threaded loop must not wait any longer: a signal asks it to end, or its graceful time is over.
    pub(crate) fn must_end(&self) -> bool {
        let interrupted = self.application.interrupted();
        interrupted || (self.is_stopping() && self.phase.is_overdue(self.clock.now()))
    }

    pub(crate) fn log(&self, level: Level, message: &str) {
        self.application.log(level, message);
    }

    /// Puts a complete request into the queue.
    pub(crate) fn queue(&self, exchange: Exchange) {
        self.ready.push(exchange);
        if let Some(hub) = &self.hub {
            // The I/O thread rings once for all that it queues.
            if !local::is_leading() {
                hub.ring();
            }
            return;
        }
        // An application thread that read the next request of its connection may be long in taking it.
        self.wake_leader();
    }

    /// A response that gathers its blocks: the I/O side sends them from now on.
    pub(crate) fn stream(&self, connection: Arc<Connection>) {
        if self.hub.is_some() {
            return self.stream_later(connection);
        }
        self.streams.list(connection);
        self.wake_leader();
        if !self.crew.is_led() {
            self.crew.alert();
        }
    }

    /// A finished response of which much is left: whoever leads sends it, without the interpreter. That may be this
    /// very thread, when it comes back from the application.
    pub(crate) fn hand_over(&self, connection: Arc<Connection>) {
        self.streams.leave(connection);
        self.wake_for_streams();
    }

    /// A runner makes sure that somebody can take the helm while it runs; and whoever holds the application, that others
    /// take the places of threads that are stuck.
    pub fn keep_a_spare_thread(&self) {
        // Each has a post.
        let most = (self.most_runners() + 1).min(self.posts.len());
        if self.config.single_thread || self.hub.is_some() || !self.crew.should_hire(most) {
            return;
        }
        if let Err(fault) = self.application.grow() {
            self.crew.hiring_failed();
            self.log(Level::Warning, &format!("no further thread could be started: {fault}"));
        }
    }

    /// The application has answered a request.
    pub(crate) fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// A response has left, or never will: tells those who want to know, keeps its room.
    pub(crate) fn account(&self, mut answer: Box<Answer>, connection: &Connection) {
        if self.access_log.is_some() || answer.follower.is_some() {
            answer.record.writes += lock(connection.outbox()).take_writes();
            answer.record.drained = Some(std::time::Instant::now());
        }
        if let Some(follower) = &answer.follower {
            *lock(follower) = answer.record;
        }
        match &self.access_log {
            Some(log) => log.write(answer),
            None => local::give_answer(answer),
        }
    }

    pub(crate) fn count_refusal(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection has closed.
    pub(crate) fn forget(&self, connection: &Connection) {
        if self.slots.remove(connection.key()) && self.is_stopping() && self.slots.len() == 0 {
            self.poller.ring();
        }
    }
}

/// What a watching thread needs of the reactor.
struct Watch<'a> {
    reactor: &'a Arc<Reactor>,
    number: usize,
    events: &'a mut Events,
}

impl Scene for Watch<'_> {
    fn wants_me(&self) -> bool {
        self.reactor.is_wanted(self.number)
    }

    fn relieve(&mut self) {
        // An error here is an error of the leader's next poll, too, which reports it.
        if self.reactor.poll(self.events, Some(Duration::ZERO)).is_ok() {
            local::leading(|| self.reactor.serve(self.events));
        }
        // The leader may have come back meanwhile and wait already: what was taken in here, and an alarm that was
        // silenced here, is news for it.
        self.reactor.wake_leader();
    }
}
