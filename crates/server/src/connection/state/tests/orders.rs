//! Random orders of events and random requests: a small model of the driver and of the client, steered by random
//! numbers.
//!
//! The numbers come from proptest, which prints those of a failure and reduces them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, proptest};
use tailrace_http::limits::{Limits, Refusal};
use tailrace_observe::record::Ending;
use tailrace_os::clock::{Millis, NEVER};
use tailrace_os::socket::Io;
use tailrace_os::sync::lock;

use super::{World, config, name, next_name};
use crate::config::Config;
use crate::connection::state::{AfterResponse, ConnectionState, Event, LeftOver, Message, Next};
use crate::connection::transaction::Transaction;
use crate::request::RequestBody;
use crate::request::spool::Write;
use crate::request::stream::{BodyFault, BodyStream, MinimumPace, Source};
use crate::response::outbox::Flush;
use crate::response::testing::Tape;

/// The largest body that is accepted, in bytes.
const MOST_BODY: u64 = 50_000;
/// The largest head that is accepted, in bytes.
const MOST_HEAD: usize = 9_000;
/// The content of bodies. It must never be read as a request.
const EVIL: &[u8] = b"GET /evil HTTP/1.1\r\nHost: a\r\n\r\n0\r\n\r\n\r\n";

/// A request that the client sends.
struct Sent {
    bytes: Vec<u8>,
    target: String,
    body: Vec<u8>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Good,
    /// Its head is refused.
    BadHead,
    /// Its body is refused, once it is received.
    BadBody,
}

fn body(tape: &mut Tape) -> Vec<u8> {
    let length = [0, 1, 17, 300, 5_000, 20_000, 40_000][tape.below(7)];
    EVIL.iter().copied().cycle().take(length).collect()
}

fn request(number: usize, tape: &mut Tape) -> Sent {
    let target = format!("/{number}");
    let mut sent = Sent { bytes: Vec::new(), target, body: Vec::new(), kind: Kind::Good };
    let target = &sent.target;
    match tape.below(12) {
        0..=3 => {
            let lines = "\r\n".repeat(tape.below(4));
            let field = "x".repeat([0, 10, 5_000][tape.below(3)]);
            sent.bytes = format!("{lines}GET {target} HTTP/1.1\r\nHost: a\r\nX: {field}\r\n\r\n").into_bytes();
        }
        4 | 5 => {
            sent.body = body(tape);
            let length = sent.body.len();
            let expect = if tape.below(3) == 0 { "Expect: 100-continue\r\n" } else { "" };
            sent.bytes =
                format!("POST {target} HTTP/1.1\r\nHost: a\r\n{expect}Content-Length: {length}\r\n\r\n").into_bytes();
            sent.bytes.extend_from_slice(&sent.body);
        }
        kind @ 6..=8 => {
            sent.body = body(tape);
            sent.bytes = format!("PUT {target} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").into_bytes();
            let mut rest = &sent.body[..];
            while !rest.is_empty() {
                let (chunk, behind) = rest.split_at(rest.len().min(1 + tape.below(20_000)));
                sent.bytes.extend_from_slice(format!("{:x};a=\"b\"\r\n", chunk.len()).as_bytes());
                sent.bytes.extend_from_slice(chunk);
                sent.bytes.extend_from_slice(b"\r\n");
                rest = behind;
            }
            if kind == 8 && tape.below(2) == 0 {
                sent.bytes.extend_from_slice(b"xyz\r\n");
                sent.kind = Kind::BadBody;
            } else {
                sent.bytes.extend_from_slice(b"0\r\nTrailer: GET\r\n\r\n");
            }
        }
        9 => {
            sent.bytes = format!("GET {target} HTTP/1.1\r\n\r\n").into_bytes();
            sent.kind = Kind::BadHead;
        }
        10 => {
            let length = MOST_BODY + 1;
            sent.bytes = format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n").into_bytes();
            sent.kind = Kind::BadHead;
        }
        _ => {
            sent.bytes = format!("GET {target} HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(2 * MOST_HEAD)).into_bytes();
            sent.kind = Kind::BadHead;
        }
    }
    sent
}

/// The socket.
#[derive(Default)]
struct Wire {
    input: Vec<u8>,
    /// How many bytes of the input have arrived, and how many have been read.
    came: usize,
    read: usize,
    has_ended: bool,
    is_lost: bool,
    continues: usize,
}

struct Socket(Mutex<Wire>);

impl Source for Socket {
    fn receive(&self, buffer: &mut [u8]) -> Io {
        let mut wire = lock(&self.0);
        let count = (wire.came - wire.read).min(buffer.len());
        if wire.is_lost {
            Io::Broken
        } else if count > 0 {
            buffer[..count].copy_from_slice(&wire.input[wire.read..wire.read + count]);
            wire.read += count;
            Io::Moved(count)
        } else if wire.has_ended {
            Io::End
        } else {
            Io::WouldBlock
        }
    }

    fn send_continue(self: Arc<Self>) {
        lock(&self.0).continues += 1;
    }

    fn is_timed_out(&self) -> bool {
        false
    }

    fn has_memory(&self, _: usize) -> bool {
        true
    }

    fn pace(&self) -> MinimumPace {
        MinimumPace { pause: Duration::from_secs(30), rate: 0 }
    }

    fn now(&self) -> Instant {
        tailrace_os::clock::now()
    }

    fn wait_readable(&self, _: Duration) -> bool {
        panic!("the model never waits for a body")
    }

    fn interruptions(&self) -> Option<Duration> {
        None
    }

    fn must_end(&self) -> bool {
        false
    }

    fn is_on_ticket_thread(&self) -> bool {
        false
    }

    fn wake_at_input(&self, _: u64) {}

    fn wake(&self, _: u64) -> bool {
        true
    }

    fn wake_reader(&self) {}
}

/// The owner of the connection.
enum Owner {
    /// No owner: the connection waits for events.
    Nobody,
    Application(Box<Transaction>),
    /// A write of the body.
    Write(Write),
}

/// Events that no owner has taken yet.
#[derive(Default)]
struct Bits {
    read: bool,
    end: bool,
    write: bool,
    expired: bool,
}

struct Run {
    tape: Tape,
    world: World,
    state: ConnectionState,
    socket: Arc<Socket>,
    sent: VecDeque<Sent>,
    owner: Owner,
    bits: Bits,
    scratch: usize,
    deadline: Millis,
    runs: usize,
    refusals: usize,
    accounted: usize,
    abandoned: usize,
    responded: VecDeque<String>,
    /// No further request may run.
    is_over: bool,
    is_closed: bool,
    has_ended: bool,
    steps: usize,
}

impl Run {
    fn new(numbers: &[u16]) -> Self {
        let mut tape = Tape::new(numbers);
        let limits = Limits { request_line: 1_000, header_bytes: MOST_HEAD, header_count: 20, body: MOST_BODY };
        let config = Config {
            limits,
            body_memory: [100, 100_000][tape.below(2)],
            body_buffer: [100, usize::MAX][tape.below(2)],
            stream_body: tape.below(3) == 0,
            client_memory: [10_000, 60_000, 1 << 30, 1 << 30][tape.below(4)],
            ..config()
        };
        let count = 1 + tape.below(6);
        let sent: VecDeque<_> = (0..count).map(|number| request(number, &mut tape)).collect();
        let input = sent.iter().flat_map(|sent| sent.bytes.iter().copied()).collect();
        let scratch = [1, 7, 100, 3_000, 16_384, 65_536][tape.below(6)];
        Self {
            scratch,
            world: World::new(config),
            state: ConnectionState::Idle,
            socket: Arc::new(Socket(Mutex::new(Wire { input, ..Wire::default() }))),
            sent,
            owner: Owner::Nobody,
            bits: Bits::default(),
            deadline: 75_000,
            runs: 0,
            refusals: 0,
            accounted: 0,
            abandoned: 0,
            responded: VecDeque::new(),
            is_over: false,
            is_closed: false,
            has_ended: false,
            steps: 0,
            tape,
        }
    }

    fn step(&mut self, event: Event<'_>) -> Next {
        self.steps += 1;
        let is_end = matches!(event, Event::ReadAll | Event::Lost);
        let effects = self.world.step(&mut self.state, event);
        let rare = effects.rare.unwrap_or_default();
        if rare.is_refusal {
            assert!(!self.is_over, "a request is refused after the end");
            assert!(matches!(rare.send, Some(Message::Page(..))));
            self.refusals += 1;
            self.is_over = true;
        }
        if let Some(transaction) = effects.account {
            self.accounted += 1;
            assert_ne!(transaction.record.ending, Ending::Open);
            assert!(self.runs + self.refusals >= self.accounted, "accounted twice");
            // Requests that ran are accounted for in their order.
            if let Some(target) = self.responded.pop_front() {
                assert_eq!(transaction.request.head.target.of(&transaction.request.bytes), target.as_bytes());
            }
        }
        if let Some(due) = effects.deadline {
            self.deadline = due;
        }
        let next = effects.next;
        assert!(!is_end || !matches!(next, Next::Read), "{}: reading again finds nothing", name(&self.state));
        next
    }

    /// The owner's loop, as `Owned::run`.
    fn carry(&mut self) {
        self.go_on(Next::Rest);
    }

    /// Goes on when the first action is known.
    fn go_on(&mut self, first: Next) {
        let mut first = Some(first).filter(|first| !matches!(first, Next::Rest));
        loop {
            let (bits, mut next) = match first.take() {
                Some(first) => (Bits { read: true, end: true, ..Bits::default() }, first),
                None => {
                    let bits = std::mem::take(&mut self.bits);
                    let next = self.first(&bits);
                    (bits, next)
                }
            };
            let mut end = bits.end;
            let before = self.steps;
            let (left, rest) = {
                let wire = lock(&self.socket.0);
                (wire.came - wire.read, self.sent.len())
            };
            loop {
                // At most one step for each byte, and a few more for each request.
                assert!(
                    self.steps - before <= left + 10 * (rest + 1),
                    "{} loops: {}",
                    name(&self.state),
                    next_name(&next)
                );
                next = match next {
                    Next::Read => self.read(end),
                    Next::Flush => self.flush(),
                    other => break next = other,
                };
                end = true;
            }
            match next {
                Next::Run(transaction) => return self.run(transaction),
                Next::Store(write) => {
                    assert_eq!(name(&self.state), "Storing");
                    self.owner = Owner::Write(*write);
                    return;
                }
                Next::Later => self.bits.read = true,
                Next::Close => return self.close(),
                Next::Rest => {}
                Next::Read | Next::Flush => unreachable!("they were done"),
            }
            let Bits { read, end, write, expired } = self.bits;
            if !(read || end || write || expired) {
                return self.rest();
            }
        }
    }

    /// As `Steps::next_of_events`.
    fn first(&mut self, bits: &Bits) -> Next {
        let mut next = Next::Read;
        if self.state.is_storing() {
            next = self.step(Event::Written);
            if !matches!(next, Next::Read) {
                return next;
            }
        }
        if bits.expired {
            return self.step(Event::Expired);
        }
        if self.state.is_flushing() {
            if bits.read || bits.end {
                self.step(Event::Readable);
            }
            return Next::Flush;
        }
        if bits.read || bits.end { next } else { Next::Rest }
    }

    /// As `Steps::read`.
    fn read(&mut self, end: bool) -> Next {
        let mut buffer = vec![0; self.scratch];
        for _ in 0..16 {
            let (room, is_body) = match self.state.body_room() {
                Some(room) => (room, true),
                None => (&mut buffer[..], false),
            };
            let most = room.len();
            let event = match self.socket.receive(room) {
                Io::Moved(count) => {
                    let more = count == most || end;
                    let next = self.step(if is_body {
                        Event::Filled { count, more }
                    } else {
                        Event::Received { bytes: &buffer[..count], more }
                    });
                    if !matches!(next, Next::Read) {
                        return next;
                    }
                    if more {
                        continue;
                    }
                    Event::ReadAll
                }
                Io::WouldBlock => Event::ReadAll,
                Io::End => Event::EndOfInput,
                Io::Broken => Event::Lost,
            };
            return self.step(event);
        }
        self.bits.end |= end;
        Next::Later
    }

    fn flush(&mut self) -> Next {
        assert!(self.state.is_flushing(), "there is a response to be sent");
        let flush = match self.tape.below(8) {
            // The end of the server has broken the connection.
            _ if self.has_ended => Flush::Broken,
            0..=3 => Flush::Empty,
            4 => Flush::Blocked,
            5 => Flush::Elsewhere,
            6 => Flush::More,
            _ => [Flush::Broken, Flush::Short(9)][self.tape.below(2)],
        };
        self.step(Event::Flushed(flush))
    }

    /// The application takes the request.
    fn run(&mut self, mut transaction: Box<Transaction>) {
        assert!(!self.is_over, "it runs after the end");
        assert!(matches!(self.owner, Owner::Nobody), "two runners have the connection");
        assert_eq!(name(&self.state), "Responding");
        assert_eq!(self.deadline, NEVER, "the client has a deadline while the application runs");
        self.runs += 1;
        let sent = self.sent.pop_front().expect("no more than were sent");
        let request = &mut transaction.request;
        assert_eq!(request.head.target.of(&request.bytes), sent.target.as_bytes());
        match sent.kind {
            Kind::Good => {}
            Kind::BadHead => panic!("a bad head runs"),
            Kind::BadBody => assert!(self.world.config.stream_body, "a bad body runs"),
        }
        let mut got = Vec::new();
        match std::mem::take(&mut request.body) {
            RequestBody::Empty => assert!(sent.body.is_empty()),
            RequestBody::Memory(bytes) => assert!(bytes.into_vec() == sent.body),
            RequestBody::File { file, length } => {
                std::io::Read::read_to_end(&mut &*file, &mut got).unwrap();
                assert!(length == got.len() as u64 && got == sent.body);
            }
            RequestBody::Stream(mut stream) => {
                transaction.incoming.as_ref().unwrap().attach(self.socket.clone());
                let is_whole = self.read_stream(&mut stream, &mut got);
                assert!(if is_whole { got == sent.body } else { sent.body.starts_with(&got) });
                assert!(!(is_whole && sent.kind == Kind::BadBody));
            }
        }
        self.owner = Owner::Application(transaction);
    }

    /// Reads some of a body. True: its end was read.
    fn read_stream(&mut self, stream: &mut BodyStream, got: &mut Vec<u8>) -> bool {
        for _ in 0..self.tape.below(20) {
            self.arrive();
            let mut block = vec![0; 1 + self.tape.below(9_000)];
            match stream.try_read(&mut block) {
                Ok(Some(0)) => return true,
                Ok(Some(count)) => got.extend_from_slice(&block[..count]),
                Ok(None) => {}
                Err(BodyFault::Gone | BodyFault::Refused(_)) => return false,
                Err(BodyFault::Over) => panic!("it is not over"),
            }
        }
        false
    }

    /// The application has finished its response.
    fn respond(&mut self) {
        let Owner::Application(mut transaction) = std::mem::replace(&mut self.owner, Owner::Nobody) else {
            panic!("no application has the request")
        };
        let is_readable = transaction.incoming.as_ref().is_none_or(|incoming| incoming.answered());
        let keeps = transaction.facts.keep_alive && is_readable && !self.world.is_stopping.get();
        let rest = transaction.incoming.take().map(|incoming| incoming.end().0);
        let then = match self.tape.below(5) {
            0..=3 if keeps => AfterResponse::Keep,
            4 => AfterResponse::Reset,
            _ => AfterResponse::Close,
        };
        self.is_over |= then != AfterResponse::Keep;
        if !self.has_ended {
            let request = &transaction.request;
            let target = String::from_utf8(request.head.target.of(&request.bytes).to_vec()).unwrap();
            self.responded.push_back(target);
        }
        transaction.record.ending = Ending::Complete;
        let is_sent = !self.has_ended && self.tape.below(3) == 2;
        let mut next = self.step(Event::Responded { then, transaction, rest, is_sent });
        if !is_sent {
            assert!(matches!(next, Next::Flush));
            next = Next::Rest;
        }
        self.go_on(next);
    }

    fn written(&mut self) {
        let Owner::Write(write) = std::mem::replace(&mut self.owner, Owner::Nobody) else { panic!("no write runs") };
        let result =
            if self.tape.below(10) == 9 { Err(std::io::Error::other("full").into()) } else { self.world.write(write) };
        self.state.set_write_result(result);
        self.bits.read = true;
        self.bits.end = true;
        self.carry();
    }

    fn close(&mut self) {
        // An incomplete request is not accounted for when the connection closes.
        let left = self.state.take_left_over();
        assert!(matches!(left, LeftOver::Nothing | LeftOver::Here { is_complete: false, .. }), "closed, not accounted");
        self.state = ConnectionState::Closed;
        self.is_closed = true;
        self.is_over = true;
    }

    /// The connection has been released: no event may be left unhandled.
    fn rest(&mut self) {
        let wire = lock(&self.socket.0);
        let name = name(&self.state);
        if ["Idle", "Head", "Body", "Skipping", "Lingering"].contains(&name) {
            assert_eq!(wire.read, wire.came, "{name}: bytes were left in the socket");
            assert!(!(wire.has_ended || wire.is_lost), "{name}: the end was not seen");
            assert_ne!(self.deadline, NEVER, "{name} has no deadline");
        } else {
            assert!(name == "Flushing" || name == "Closed", "{name} rests without an owner");
        }
        // Besides the request, at most one read of what follows is kept.
        let most = 4 * self.scratch + 4 * MOST_HEAD + MOST_BODY as usize * 2 + 100_000;
        assert!(self.world.memory.used() < most, "{} bytes are held", self.world.memory.used());
    }

    /// More bytes of the client arrive, or the end of its input.
    fn arrive(&mut self) {
        let more = [0, 1, 2, 50, 1_000, 10_000, 70_000][self.tape.below(7)];
        let ends = self.tape.below(40);
        let mut wire = lock(&self.socket.0);
        let before = wire.came;
        wire.came = wire.input.len().min(before + more);
        self.bits.read |= wire.came > before;
        if ends == 38 && !wire.is_lost {
            wire.has_ended = true;
            let came = wire.came;
            wire.input.truncate(came);
            self.bits.end = true;
        }
        if ends == 39 {
            wire.is_lost = true;
            self.bits.end = true;
        }
    }

    fn play(&mut self) {
        while !self.tape.is_over() && !self.is_closed {
            self.world.clock.advance(Duration::from_millis(self.tape.below(2_000) as u64));
            self.world.clock.read();
            match self.tape.below(24) {
                0..=9 => self.arrive(),
                10 => self.world.is_stopping.set(true),
                11 => {
                    let room = self.tape.below(3) > 0;
                    self.world.has_room.set(room);
                }
                12 => self.bits.write = true,
                13 if matches!(self.owner, Owner::Nobody) => self.bits.expired = true,
                14 if matches!(self.owner, Owner::Nobody) => {
                    let unfinished = self.state.unfinished();
                    let next = self.step(Event::Shed(Refusal::new(503, "")));
                    assert_eq!(unfinished.is_some(), matches!(next, Next::Later));
                    if unfinished.is_some() {
                        assert!(matches!(self.state.take_left_over(), LeftOver::Nothing), "it is accounted at once");
                    }
                }
                15 if matches!(self.owner, Owner::Nobody) => {
                    let is_idle = self.state.idleness().is_some();
                    if is_idle && matches!(self.step(Event::EvictIdle), Next::Close) {
                        self.close();
                    }
                }
                16 if self.tape.below(8) == 7 => self.end_server(),
                _ => match &self.owner {
                    Owner::Nobody => {}
                    Owner::Application(_) => self.respond(),
                    Owner::Write(_) => self.written(),
                },
            }
            let Bits { read, end, write, expired } = self.bits;
            if matches!(self.owner, Owner::Nobody) && (read || end || write || expired) && !self.is_closed {
                self.carry();
            }
            self.check_accounts();
        }
    }

    /// The server ends, and accounts for the request in progress.
    fn end_server(&mut self) {
        // As `Connection::abort`.
        lock(&self.socket.0).is_lost = true;
        self.bits.end = true;
        match self.state.take_left_over() {
            LeftOver::Nothing => {}
            LeftOver::Here { is_complete, .. } => {
                self.accounted += usize::from(is_complete);
                self.responded.clear();
            }
            LeftOver::WithRunner => self.abandoned += 1,
        }
        assert!(matches!(self.state.take_left_over(), LeftOver::Nothing), "accounted once");
        self.is_over = true;
        self.has_ended = true;
        self.deadline = 0;
    }

    /// Every request that ran or was refused is accounted for, or the application or the state still has it.
    fn check_accounts(&self) {
        let with_application = usize::from(matches!(self.owner, Owner::Application(_)) && !self.has_ended);
        let with_state = matches!(&self.state, ConnectionState::Flushing(flushing) if flushing.transaction.is_some());
        let held = with_application + usize::from(with_state);
        let all = self.runs + self.refusals;
        assert_eq!(all, self.accounted + self.abandoned + held, "{}", name(&self.state));
    }

    /// From any state, the end of the input, a broken connection or the deadline closes the connection in few steps.
    fn end(&mut self) {
        let how = self.tape.below(3);
        for _ in 0..2 * self.sent.len() + 8 {
            if self.is_closed || self.has_ended {
                break;
            }
            match &self.owner {
                Owner::Application(_) => self.respond(),
                Owner::Write(_) => self.written(),
                Owner::Nobody => {
                    match how {
                        0 => lock(&self.socket.0).has_ended = true,
                        1 => lock(&self.socket.0).is_lost = true,
                        _ => self.bits.expired = true,
                    }
                    self.bits.end = how != 2;
                    self.bits.write = true;
                    self.carry();
                }
            }
            self.check_accounts();
        }
        assert!(self.is_closed || self.has_ended, "{} never ends", name(&self.state));
    }
}

fn check(numbers: &[u16]) {
    let mut run = Run::new(numbers);
    run.play();
    // When the numbers are used up, every choice is the first one, so what is left to send is sent.
    run.end();
    let Run { world, state, owner, .. } = run;
    drop((state, owner));
    assert_eq!(world.memory.used(), 0, "all that was charged is given back");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_events_loses_a_request_or_keeps_a_connection(numbers in vec(any::<u16>(), 0..250)) {
        check(&numbers);
    }
}
