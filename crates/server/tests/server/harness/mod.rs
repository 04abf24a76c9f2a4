//! The whole server in the process of a test: listeners, threads, a scripted application, a strict client.
//!
//! Only this file names what the crate exports, so that a renaming there changes no test. `client` reads responses and
//! knows nothing of the server; `cases` sends each request of a table in several ways.
//!
//! [`Server::stop`], or dropping the server, checks for every test that the server drains in time, that all its threads
//! end, that nothing keeps it in memory, and that it logged no line that the test did not take.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod cases;
pub mod client;

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tailrace_http::forwarded::Scheme;
#[allow(unused_imports, reason = "not every test file needs them")]
pub use tailrace_http::proxy_protocol::Versions;
use tailrace_observe::level::Level;
use tailrace_observe::metrics::Metric;
use tailrace_observe::record::Record;
use tailrace_server::{
    Application, BodyFault, Exchange, Payload, Position, Provided, RequestBody, Sent, Server as Engine, Short, Turn,
};
pub use tailrace_server::{Config, ExecutorKind};
pub use tailrace_server::{ListenerConfig, ListenerProtocol};

#[allow(unused_imports, reason = "not every test file needs all")]
pub use self::client::{Client, End, Framing, Kind, Response};

/// A wait that takes longer than this fails the test.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The time between two looks of an application at a gate where it computes.
const SPIN: Duration = Duration::from_micros(20);

/// The bytes of scripted bodies: `length` of them from offset `at` on. They repeat after 64,256 bytes, so a block that
/// is sent at a wrong offset is seen, unless it is wrong by a multiple of that.
pub fn pattern(at: usize, length: usize) -> Vec<u8> {
    const PERIOD: usize = 251 * 256;
    static ONCE: OnceLock<Vec<u8>> = OnceLock::new();
    let once = ONCE.get_or_init(|| (0..PERIOD).map(|at| (at % 251) as u8 ^ (at / 251) as u8).collect());
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let from = (at + bytes.len()) % PERIOD;
        let until = PERIOD.min(from + length - bytes.len());
        bytes.extend_from_slice(&once[from..until]);
    }
    bytes
}

/// Pseudo-random numbers, the same for the same seed (SplitMix64).
pub struct Chance(u64);

impl Chance {
    pub fn of(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// From 0 to `most - 1`.
    pub fn below(&mut self, most: usize) -> usize {
        (self.next() % most.max(1) as u64) as usize
    }

    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// True once in `times` calls, on average.
    pub fn is_one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Sleeps for up to 3 ms, yields, or, mostly, does neither.
    pub fn pause(&mut self) {
        match self.below(8) {
            0 => thread::sleep(Duration::from_micros(self.below(3_000) as u64)),
            1 => thread::yield_now(),
            _ => {}
        }
    }
}

/// One server, with a TCP and a UNIX listener.
pub struct Server {
    reactor: Option<Arc<Engine>>,
    script: Arc<Script>,
    address: SocketAddr,
    unix: UnixAddress,
}

/// What the application and the records of a server have seen when it has ended.
#[derive(Default)]
pub struct Summary {
    pub seen: Vec<Seen>,
    /// Of the same requests, in the same order.
    pub records: Vec<Delivery>,
    /// How many of the responses were held.
    pub held: usize,
}

/// How one response was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub status: u16,
    pub body_bytes: u64,
    /// How the body was sent, by its name in logs.
    pub path: &'static str,
    /// How it ended, by its name in logs.
    pub ending: &'static str,
}

impl From<Record> for Delivery {
    fn from(record: Record) -> Self {
        let (path, ending) = (record.path.name(), record.ending.name());
        Self { status: record.status, body_bytes: record.body_bytes, path, ending }
    }
}

/// An address of the loopback interface, another one each time.
fn next_ip() -> Ipv4Addr {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let [_, high, middle, low] = GIVEN.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    Ipv4Addr::new(127, high + 1, middle, low)
}

impl Server {
    /// A server that listens, with two threads, or with one if the configuration says so.
    pub fn start(config: Config) -> Self {
        Self::start_busy(config, Duration::ZERO)
    }

    /// Starts a server whose application computes for this time in each request that does not say for how long.
    pub fn start_busy(config: Config, busy: Duration) -> Self {
        Self::start_script(config, Script { busy, ..Script::default() })
    }

    /// Starts a server whose application has an interpreter: one thread at a time computes, and those
    /// that come find out that it does. Without one, a server whose thread was not on a processor for a while believes
    /// for ever that the application waits.
    pub fn with_interpreter(config: Config) -> Self {
        Self::start_script(config, Script { interpreter: Some(Interpreter::default()), ..Script::default() })
    }

    fn start_script(config: Config, script: Script) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tailrace-test-{}-{number}", std::process::id());
        let unix = UnixAddress::from_abstract_name(name).unwrap();
        let unix_listener = UnixListener::bind_addr(&unix).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::sockopt::set_tcp_nodelay(&listener, true).unwrap();
        let address = listener.local_addr().unwrap();
        let script = Arc::new(script);
        let single = config.executor == ExecutorKind::Inline;
        let listeners = vec![listener.into(), unix_listener.into()];
        let reactor = Engine::new(config, script.clone(), listeners, Provided::default()).unwrap();
        assert!(script.reactor.set(Arc::downgrade(&reactor)).is_ok());
        if single {
            let here = reactor.clone();
            script.spawn(move || here.run());
        } else {
            for _ in 0..2 {
                script.grow().unwrap();
            }
        }
        Self { reactor: Some(reactor), script, address, unix }
    }

    /// As [`Server::start`], with the default configuration.
    pub fn default() -> Self {
        Self::start(Config::default())
    }

    /// A TCP connection.
    pub fn connect(&self) -> Client {
        Client::tcp(self.address)
    }

    /// Connects from an IP address that no other client has: a port may be used again as soon as it is free.
    pub fn connect_alone(&self) -> Client {
        Client::tcp_from(self.address, next_ip())
    }

    /// A connection to the UNIX socket.
    pub fn connect_unix(&self) -> Client {
        Client::unix(&self.unix)
    }

    fn reactor(&self) -> &Arc<Engine> {
        self.reactor.as_ref().unwrap()
    }

    /// The requests that the application has received so far.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.script.state).seen.clone()
    }

    /// Waits until the application has received `count` requests.
    pub fn await_seen(&self, count: usize) {
        self.script.await_state("requests", |state| (state.seen.len() >= count).then_some(()));
    }

    /// Waits until `count` blocks of the response to request `number` were given to the server.
    pub fn await_blocks(&self, number: usize, count: usize) {
        self.script.await_state("blocks", |state| {
            state.seen.get(number).filter(|seen| seen.blocks_given >= count).map(|_| ())
        });
    }

    /// Waits until the application has finished request `number`, and returns how.
    pub fn await_done(&self, number: usize) -> Done {
        self.script.await_state("the end of a request", |state| state.seen.get(number).and_then(|seen| seen.done))
    }

    /// Waits until `count` requests in all have reached the gate.
    pub fn await_arrivals(&self, gate: &str, count: u64) {
        self.script.await_state(gate, |state| state.gates.get(gate).filter(|gate| gate.came >= count).map(|_| ()));
    }

    /// How many responses have been held so far.
    pub fn held(&self) -> usize {
        lock(&self.script.state).held()
    }

    /// The requests so far whose responses have been sent.
    pub fn calls(&self) -> Vec<Call> {
        let state = lock(&self.script.state);
        let records = state.records.iter().map(|record| *lock(record));
        let call = |record: Record| {
            let took = record.finished?.saturating_duration_since(record.started?);
            let lasted = record.drained?.saturating_duration_since(record.queued);
            Some(Call { took, lasted, held: record.held, body_bytes: record.body_bytes })
        };
        records.filter_map(call).collect()
    }

    /// Lets one request pass the gate, now or when it reaches it.
    pub fn let_through(&self, gate: &str) {
        lock(&self.script.state).gates.entry(gate.to_owned()).or_default().permits += 1;
        self.script.changed.notify_all();
    }

    /// Lets all requests pass the gate, from now on.
    pub fn open(&self, gate: &str) {
        lock(&self.script.state).gates.entry(gate.to_owned()).or_default().is_open = true;
        self.script.changed.notify_all();
    }

    /// Threads that come to run the application wait from now on, as if somebody held the interpreter.
    pub fn hold_entry(&self) {
        lock(&self.script.state).is_entry_held = true;
    }

    /// Waits until a thread waits there.
    pub fn await_entry(&self) {
        self.script.await_state("a thread at the entry", |state| (state.at_entry > 0).then_some(()));
    }

    /// Lets them in, and all that come later.
    pub fn release_entry(&self) {
        lock(&self.script.state).is_entry_held = false;
        self.script.changed.notify_all();
    }

    /// Waits for a line of the log that contains this text, takes it out of the log, and returns it.
    pub fn take_logged(&self, text: &str) -> String {
        self.script.await_state(text, |state| {
            let at = state.log.iter().position(|line| line.contains(text))?;
            Some(state.log.remove(at))
        })
    }

    /// Begins a graceful stop and returns at once.
    pub fn begin_stop(&self, graceful: Duration) {
        self.reactor().stop(graceful);
    }

    /// Waits for the end of a stop that was begun. False: it takes longer than `time`.
    pub fn has_ended_within(&self, time: Duration) -> bool {
        self.reactor().join(Some(time))
    }

    /// Moves the clock of the server ahead: deadlines within that time come now.
    pub fn advance_clock(&self, time: Duration) {
        self.reactor().advance_clock(time);
    }

    /// True until a stop is begun.
    pub fn is_running(&self) -> bool {
        !self.reactor().is_stopping()
    }

    /// Connections that it has accepted so far.
    pub fn accepted(&self) -> u64 {
        self.reactor().stats()[Metric::Accepted]
    }

    /// Requests that it has refused so far.
    pub fn refused(&self) -> u64 {
        self.reactor().stats()[Metric::Refused]
    }

    /// Drains the server and checks that nothing of it is left. The clients must be closed before.
    pub fn stop(mut self) -> Summary {
        self.end()
    }

    fn end(&mut self) -> Summary {
        let Some(reactor) = self.reactor.take() else { return Summary::default() };
        {
            let mut state = lock(&self.script.state);
            state.is_over = true;
            self.script.changed.notify_all();
        }
        let has_failed = thread::panicking();
        reactor.stop(if has_failed { Duration::ZERO } else { PATIENCE });
        assert!(reactor.join(Some(2 * PATIENCE)) || has_failed, "the server does not end");
        let connections = reactor.stats()[Metric::Connections];
        let fault = reactor.fault();
        let reactor = {
            let weak = Arc::downgrade(&reactor);
            drop(reactor);
            weak
        };
        // One by one, since others may be started meanwhile.
        loop {
            let Some(thread) = lock(&self.script.threads).pop() else { break };
            assert!(thread.join().is_ok() || has_failed, "a thread of the server panicked");
        }
        let mut state = std::mem::take(&mut *lock(&self.script.state));
        // Any slow client may cause the first message if a test gives responses little memory; many cases cause the
        // second one deliberately.
        state
            .log
            .retain(|line| !line.contains("(half of --client-memory)") && !line.contains("rejected a request from"));
        if !has_failed {
            assert_eq!(fault, None, "the server failed");
            assert_eq!(connections, 0, "connections are left");
            assert!(reactor.upgrade().is_none(), "something keeps the server in memory");
            assert!(state.log.is_empty(), "the server logged {:#?}", state.log);
        }
        let records = state.records.iter().map(|record| Delivery::from(*lock(record))).collect();
        Summary { held: state.held(), seen: state.seen, records }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// One call of the application that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub took: Duration,
    /// From the complete request until the kernel had the last byte.
    pub lasted: Duration,
    /// For how long its response was held.
    pub held: Duration,
    pub body_bytes: u64,
}

/// One request as the application received it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    pub method: String,
    /// The whole request target.
    pub target: String,
    pub path: String,
    pub query: Option<String>,
    /// The value to use as the Host field.
    pub host: Option<String>,
    pub fields: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
    /// Why the body could not be read to its end.
    pub fault: Option<BodyFault>,
    /// The client's address; `None`: it came over a UNIX socket.
    pub peer: Option<SocketAddr>,
    /// What a trusted proxy states: the scheme is https, the host, the port, the prefix.
    pub stated: (Option<bool>, Option<String>, Option<u16>, Option<String>),
    pub blocks_given: usize,
    pub done: Option<Done>,
}

/// How the application ended a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The server accepted the whole response.
    Finished,
    /// This many bytes were missing.
    Short(u64),
    /// By an error.
    Failed,
    /// It stopped before the end, because the client had left.
    Gone,
}

#[derive(Default)]
struct Gate {
    came: u64,
    permits: u64,
    is_open: bool,
}

impl Gate {
    /// True when a request may pass; uses up its permit. `is_over`: the test has ended.
    fn lets_pass(&mut self, is_over: bool) -> bool {
        if self.is_open || is_over {
            return true;
        }
        let has_permit = self.permits > 0;
        self.permits -= u64::from(has_permit);
        has_permit
    }
}

#[derive(Default)]
struct State {
    seen: Vec<Seen>,
    records: Vec<Arc<Mutex<Record>>>,
    gates: HashMap<String, Gate>,
    log: Vec<String>,
    /// Threads that come to run the application have to wait.
    is_entry_held: bool,
    /// So many do.
    at_entry: usize,
    is_over: bool,
}

/// The application: the request target determines the response.
///
/// | path | response |
/// |---|---|
/// | `/pong` | `pong` |
/// | `/echo` | the body of the request |
/// | `/list?count=&size=` | `count` blocks of `size` bytes, given at once |
/// | `/blocks?count=&size=` | the same, given one after the other |
/// | `/mixed?bytes=&seed=` | `bytes` bytes, in blocks and with pauses that the seed determines |
/// | `/file?size=&offset=&bytes=` | that part of a file of that size |
/// | `/fail`, `/drop`, `/panic` | an error, an exchange that is dropped, a panic; after `count` blocks, if given |
/// | any other | the request as the application saw it |
///
/// For each of them, `length` declares a Content-Length, `status` sets the status, `close=yes` ends the connection,
/// `busy` computes for so many microseconds, `until` names a gate to wait at before the response, `read=none` leaves
/// the body unread, `read=5` reads 5 bytes of it. For blocks that are given one after the other, `gate` names a gate to
/// wait at before each, `end` one after the last, and `spin` one to compute at after each, until it lets pass. With
/// `position=more` the file is not declared to be the last part, and blocks follow it if `count` is given.
#[derive(Default)]
struct Script {
    busy: Duration,
    interpreter: Option<Interpreter>,
    reactor: OnceLock<Weak<Engine>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    state: Mutex<State>,
    changed: Condvar,
}

/// As Python has one: held by a thread that runs the application, except while it waits at a gate.
#[derive(Default)]
struct Interpreter {
    is_held: Mutex<bool>,
    released: Condvar,
}

impl Interpreter {
    fn take(&self) {
        let mut is_held = lock(&self.is_held);
        while *is_held {
            is_held = self.released.wait(is_held).unwrap_or_else(PoisonError::into_inner);
        }
        *is_held = true;
    }

    fn release(&self) {
        *lock(&self.is_held) = false;
        self.released.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn held(&self) -> usize {
        self.records.iter().filter(|record| !lock(record).held.is_zero()).count()
    }
}

impl Application for Script {
    fn enter(&self, turn: &mut Turn<'_>) {
        self.pass_entry();
        if let Some(interpreter) = &self.interpreter {
            interpreter.take();
        }
        while let Some(exchange) = turn.next() {
            self.answer(exchange);
        }
        if let Some(interpreter) = &self.interpreter {
            interpreter.release();
        }
    }

    fn grow(&self) -> io::Result<()> {
        if let Some(reactor) = self.reactor.get().and_then(Weak::upgrade) {
            self.spawn(move || reactor.run());
        }
        Ok(())
    }

    fn log(&self, level: Level, message: &str) {
        lock(&self.state).log.push(format!("{level:?}: {message}"));
        self.changed.notify_all();
    }
}

impl Script {
    fn spawn(&self, body: impl FnOnce() + Send + 'static) {
        let thread = thread::Builder::new().spawn(body).unwrap();
        lock(&self.threads).push(thread);
    }

    fn await_state<T>(&self, what: &str, found: impl Fn(&mut State) -> Option<T>) -> T {
        let mut state = lock(&self.state);
        loop {
            if let Some(found) = found(&mut state) {
                return found;
            }
            let (next, time) = self.changed.wait_timeout(state, PATIENCE).unwrap_or_else(PoisonError::into_inner);
            state = next;
            assert!(!time.timed_out(), "{what}: waited too long; the log has {:?}", state.log);
        }
    }

    fn change(&self, number: usize, change: impl FnOnce(&mut Seen)) {
        change(&mut lock(&self.state).seen[number]);
        self.changed.notify_all();
    }

    /// Computes until the gate lets it pass, in place of waiting.
    fn spin(&self, name: &str) {
        lock(&self.state).gates.entry(name.to_owned()).or_default().came += 1;
        self.changed.notify_all();
        loop {
            {
                let mut state = lock(&self.state);
                let is_over = state.is_over;
                if state.gates.get_mut(name).expect("it was made above").lets_pass(is_over) {
                    return;
                }
            }
            let until = Instant::now() + SPIN;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        }
    }

    /// Waits at a gate. The end of the test opens all gates.
    fn pass(&self, name: &str) {
        if let Some(interpreter) = &self.interpreter {
            interpreter.release();
        }
        self.wait_at(name);
        if let Some(interpreter) = &self.interpreter {
            interpreter.take();
        }
    }

    fn wait_at(&self, name: &str) {
        let mut state = lock(&self.state);
        state.gates.entry(name.to_owned()).or_default().came += 1;
        self.changed.notify_all();
        loop {
            let is_over = state.is_over;
            if state.gates.get_mut(name).expect("it was made above").lets_pass(is_over) {
                return;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What waits for the interpreter is where there is one.
    fn pass_entry(&self) {
        let mut state = lock(&self.state);
        state.at_entry += 1;
        self.changed.notify_all();
        while state.is_entry_held && !state.is_over {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.at_entry -= 1;
    }

    fn answer(&self, mut exchange: Exchange) {
        let mut seen = seen_of(&exchange);
        let asked = Asked::of(&seen);
        read_body(&mut exchange, &mut seen, &asked);
        let fault = seen.fault;
        let report = report(&seen).into_bytes();
        let body = seen.body.clone();
        let number = {
            let mut state = lock(&self.state);
            state.seen.push(seen);
            state.records.push(exchange.follow());
            state.seen.len() - 1
        };
        self.changed.notify_all();
        let busy = asked.number("busy").map_or(self.busy, |micros| Duration::from_micros(micros as u64));
        let until = Instant::now() + busy;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        if let Some(gate) = asked.text("until") {
            self.pass(gate);
        }
        if let Some(fault) = fault {
            self.done(number, Done::Failed);
            return match fault {
                BodyFault::Refused(refusal) => exchange.fail(refusal.status, Some(refusal.reason)),
                BodyFault::Gone | BodyFault::Over => exchange.fail(400, None),
            };
        }
        let head = exchange.response_mut().head();
        let status = asked.text("status").unwrap_or("200");
        head.status(status.replace('+', " ").as_bytes()).unwrap();
        head.field(b"Content-Type", b"application/octet-stream").unwrap();
        head.field(b"X-Number", number.to_string().as_bytes()).unwrap();
        if let Some(length) = asked.text("length") {
            head.field(b"Content-Length", length.as_bytes()).unwrap();
        }
        if asked.text("close").is_some() {
            head.field(b"Connection", b"close").unwrap();
        }
        match asked.path.as_str() {
            "/pong" => self.answer_list(exchange, number, vec![b"pong".to_vec()]),
            "/echo" => self.answer_list(exchange, number, vec![body]),
            "/list" => {
                let size = asked.number("size").unwrap_or(10);
                let count = asked.number("count").unwrap_or(0);
                self.answer_list(exchange, number, (0..count).map(|at| pattern(at * size, size)).collect());
            }
            "/blocks" | "/fail" | "/drop" | "/panic" => self.answer_blocks(exchange, number, &asked),
            "/mixed" => self.answer_mixed(exchange, number, &asked),
            "/file" => self.answer_file(exchange, number, &asked),
            _ => self.answer_list(exchange, number, vec![report]),
        }
    }

    fn done(&self, number: usize, done: Done) {
        self.change(number, |seen| seen.done = Some(done));
    }

    fn finish(&self, exchange: Exchange, number: usize, sent: Sent) {
        let finished = exchange.finish();
        self.done(
            number,
            match finished {
                Err(Short { missing }) => Done::Short(missing),
                Ok(()) if sent == Sent::Gone => Done::Gone,
                Ok(()) => Done::Finished,
            },
        );
    }

    fn answer_list(&self, mut exchange: Exchange, number: usize, blocks: Vec<Vec<u8>>) {
        let sent = send(&mut exchange, blocks, Position::Last);
        self.finish(exchange, number, sent);
    }

    fn answer_blocks(&self, mut exchange: Exchange, number: usize, asked: &Asked) {
        let size = asked.number("size").unwrap_or(10);
        let mut sent = Sent::Taken;
        for at in 0..asked.number("count").unwrap_or(0) {
            if let Some(gate) = asked.text("gate") {
                self.pass(gate);
            }
            sent = send(&mut exchange, vec![pattern(at * size, size)], Position::More);
            self.change(number, |seen| seen.blocks_given += 1);
            if sent == Sent::Gone {
                break;
            }
            if let Some(gate) = asked.text("spin") {
                self.spin(gate);
            }
        }
        if let Some(gate) = asked.text("end") {
            self.pass(gate);
        }
        match asked.path.as_str() {
            "/fail" => {
                exchange.fail(asked.number("error").unwrap_or(500) as u16, None);
                self.done(number, Done::Failed);
            }
            "/drop" => {
                drop(exchange);
                self.done(number, Done::Failed);
            }
            "/panic" => {
                self.done(number, Done::Failed);
                panic!("asked to panic");
            }
            _ => self.finish(exchange, number, sent),
        }
    }

    fn answer_mixed(&self, mut exchange: Exchange, number: usize, asked: &Asked) {
        let mut chance = Chance::of(asked.number("seed").unwrap_or(0) as u64);
        let bytes = asked.number("bytes").unwrap_or(0);
        let (mut at, mut sent) = (0, Sent::Taken);
        while at < bytes && sent != Sent::Gone {
            // Blocks of similar size without a pause between them, so that some are quick enough to be coalesced.
            let most = *chance.one_of(&[100, 1_000, 3_000, 10_000, 70_000, 500_000]);
            for _ in 0..chance.below(40) {
                let blocks = (0..chance.below(3) + 1).map_while(|_| {
                    let size = (chance.below(most) + 1).min(bytes - at);
                    at += size;
                    (size > 0).then(|| pattern(at - size, size))
                });
                let blocks: Vec<_> = blocks.collect();
                if blocks.is_empty() || sent == Sent::Gone {
                    break;
                }
                sent = send(&mut exchange, blocks, Position::More);
            }
            chance.pause();
        }
        self.finish(exchange, number, sent);
    }

    fn answer_file(&self, mut exchange: Exchange, number: usize, asked: &Asked) {
        let size = asked.number("size").unwrap_or(0);
        let offset = asked.number("offset").unwrap_or(0);
        let length = asked.number("bytes").unwrap_or_else(|| size.saturating_sub(offset));
        let file = rustix::fs::memfd_create("tailrace-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(file);
        file.write_all(&pattern(0, size)).unwrap();
        let position = if asked.text("position") == Some("more") { Position::More } else { Position::Last };
        let mut sent = exchange.response_mut().push_file(file.into(), offset as u64, length as u64, position);
        while sent == Sent::Full {
            sent = exchange.response_mut().wait();
        }
        if asked.number("count").is_some() && sent != Sent::Gone {
            return self.answer_blocks(exchange, number, asked);
        }
        self.finish(exchange, number, sent);
    }
}

/// A block that the server may keep after the call that sends it.
struct Block(Arc<Vec<u8>>);

impl Payload for Block {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Sends blocks, and waits when the server has no room.
fn send(exchange: &mut Exchange, blocks: Vec<Vec<u8>>, position: Position) -> Sent {
    let blocks: Vec<_> = blocks.into_iter().map(Arc::new).collect();
    let slices: Vec<&[u8]> = blocks.iter().map(|block| block.as_slice()).collect();
    let mut sent = exchange.response_mut().push(&slices, position, &mut |index| Box::new(Block(blocks[index].clone())));
    while sent == Sent::Full {
        sent = exchange.response_mut().wait();
    }
    assert_ne!(sent, Sent::NoMemory);
    sent
}

fn seen_of(exchange: &Exchange) -> Seen {
    let request = exchange.request();
    let (bytes, head) = (&request.bytes, &request.head);
    let text = |span: &[u8]| String::from_utf8(span.to_vec()).expect("a request line is ASCII");
    let field = |name: &[u8], value: &[u8]| (text(name), value.to_vec());
    Seen {
        method: text(head.method.of(bytes)),
        target: text(head.target.of(bytes)),
        path: text(head.path.of(bytes)),
        query: head.query.map(|query| text(query.of(bytes))),
        host: request.framing.host.map(|host| text(host.of(bytes))),
        fields: head.fields.iter().map(|each| field(each.name.of(bytes), each.value.of(bytes))).collect(),
        peer: request.peer.client,
        stated: (
            request.peer.scheme.map(|scheme| scheme == Scheme::Https),
            request.peer.host.map(|host| text(host.of(bytes))),
            request.peer.port,
            request.peer.prefix.map(|prefix| text(prefix.of(bytes))),
        ),
        ..Seen::default()
    }
}

fn read_body(exchange: &mut Exchange, seen: &mut Seen, asked: &Asked) {
    let most = match asked.text("read") {
        None => usize::MAX,
        Some("none") => return,
        Some(count) => count.parse().expect("a number of bytes"),
    };
    match exchange.take_body() {
        RequestBody::Empty => {}
        RequestBody::Memory(bytes) => seen.body = bytes.into_vec(),
        RequestBody::File { mut file, length } => {
            file.read_to_end(&mut seen.body).unwrap();
            assert_eq!(seen.body.len() as u64, length);
        }
        RequestBody::Stream(mut stream) => {
            let mut block = vec![0; 16 * 1024];
            while seen.body.len() < most {
                let room = block.len().min(most - seen.body.len());
                match stream.read(&mut block[..room]) {
                    Ok(0) => break,
                    Ok(count) => seen.body.extend_from_slice(&block[..count]),
                    Err(fault) => {
                        seen.fault = Some(fault);
                        break;
                    }
                }
            }
        }
    }
    seen.body.truncate(most);
}

fn report(seen: &Seen) -> String {
    let mut report = format!("{} {}\n", seen.method, seen.target);
    for (name, value) in &seen.fields {
        report += &format!("{name}: {}\n", value.escape_ascii());
    }
    report + &format!("{} bytes\n", seen.body.len())
}

/// The path and the parameters of a request target.
struct Asked {
    path: String,
    values: HashMap<String, String>,
}

impl Asked {
    fn of(seen: &Seen) -> Self {
        let pairs = seen.query.iter().flat_map(|query| query.split('&')).filter_map(|pair| pair.split_once('='));
        let values = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self { path: seen.path.clone(), values }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    fn number(&self, name: &str) -> Option<usize> {
        self.text(name).map(|text| text.parse().expect("a number"))
    }
}
