//! Tests of the states of a connection, without a socket: every event in every state as a table, and properties of
//! random orders of events; here, large bodies.

mod orders;
mod table;

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tailrace_http::peer::Peer;
use tailrace_http::trust::{ForwardedFields, Trust};
use tailrace_os::clock::{Clock, Millis};

use super::{ConnectionState, Effects, Event, LONG_REST, LOW_WATER, Message, Next, Rules, Shutdown, Untrusted};
use crate::config::Config;
use crate::connection::transaction_pool::TransactionPool;
use crate::request::RequestBody;
use crate::request::disk::{Disk, Quota};
use crate::request::memory::{Charge, ClientMemory};
use crate::request::protocol::{Http1, Protocol, Uwsgi};
use crate::request::spool::{NotWritten, Write, Written};

const ROOM: usize = 4096;

/// Everything on which a step depends.
pub(super) struct World {
    pub(super) config: Config,
    pub(super) memory: ClientMemory,
    /// False: others hold all the memory, and keep it.
    pub(super) has_room: Cell<bool>,
    pool: TransactionPool,
    protocol: &'static dyn Protocol,
    peer: Peer,
    pub(super) is_stopping: Cell<bool>,
    pub(super) first_request_by: Cell<Millis>,
    pub(super) clock: Clock,
    disk: Arc<Disk>,
    folder: PathBuf,
}

impl World {
    pub(super) fn new(config: Config) -> Self {
        Self {
            memory: ClientMemory::new(config.client_memory, config.response_buffer),
            config,
            has_room: Cell::new(true),
            pool: TransactionPool::default(),
            protocol: &Http1,
            peer: Peer::default(),
            is_stopping: Cell::new(false),
            first_request_by: Cell::new(0),
            clock: Clock::new(),
            disk: Arc::new(Disk::new()),
            folder: PathBuf::from("/folder"),
        }
    }

    /// Takes a step, as the driver does while no other request can be refused to make room.
    pub(super) fn step(&self, state: &mut ConnectionState, event: Event<'_>) -> Effects {
        let mut others = Charge::default();
        if !self.has_room.get() {
            others.set_in(&self.memory.requests, self.config.client_memory);
        }
        let rules = Rules {
            protocol: self.protocol,
            config: &self.config,
            memory: &self.memory,
            has_room: self.memory.has_room(ROOM),
            pool: &self.pool,
            folder: &self.folder,
            peer: &self.peer,
            is_stopping: self.is_stopping.get(),
            first_request_by: self.first_request_by.get(),
            time: self.clock.reading(),
        };
        state.step(event, &rules)
    }

    pub(super) fn receive(&self, state: &mut ConnectionState, bytes: &[u8]) -> Effects {
        self.step(state, Event::Received { bytes, more: false })
    }

    /// Does what a disk thread does.
    pub(super) fn write(&self, write: Write) -> Result<Written, NotWritten> {
        write.run(&self.disk, &Quota::new(u64::MAX), |_| ())
    }
}

/// Timeouts of different lengths, so that a deadline shows from which one it comes.
pub(super) fn config() -> Config {
    Config {
        header_timeout: Duration::from_secs(15),
        body_timeout: Duration::from_secs(30),
        keepalive_timeout: Duration::from_secs(75),
        write_timeout: Duration::from_secs(60),
        min_rate: 0,
        ..Config::default()
    }
}

pub(super) fn name(state: &ConnectionState) -> &'static str {
    match state {
        ConnectionState::Idle => "Idle",
        ConnectionState::Head(_) => "Head",
        ConnectionState::Body(_) => "Body",
        ConnectionState::Storing(_) => "Storing",
        ConnectionState::Responding(_) => "Responding",
        ConnectionState::Flushing(_) => "Flushing",
        ConnectionState::Skipping(_) => "Skipping",
        ConnectionState::Closing => "Closing",
        ConnectionState::Lingering(_) => "Lingering",
        ConnectionState::Closed => "Closed",
    }
}

pub(super) fn next_name(next: &Next) -> &'static str {
    match next {
        Next::Rest => "Rest",
        Next::Read => "Read",
        Next::Flush => "Flush",
        Next::Run(_) => "Run",
        Next::Store(_) => "Store",
        Next::Later => "Later",
        Next::Close => "Close",
    }
}

/// One step in one line: the new state, the deadline, the other effects, and the next action.
pub(super) fn line(state: &ConnectionState, effects: &Effects, now: Millis) -> String {
    let deadline = match effects.deadline.map(|due| due.wrapping_sub(now)) {
        None => String::new(),
        Some(time) if time == u64::MAX.wrapping_sub(now) => String::from(" never"),
        Some(time) => format!(" in {time}"),
    };
    let mut also = String::new();
    if let Some(transaction) = &effects.account {
        also += &format!(" account({})", transaction.record.ending.name());
    }
    if let Some(rare) = effects.rare.as_deref() {
        if rare.log.is_some() {
            also += " log";
        }
        match rare.shutdown {
            None => {}
            Some(Shutdown::EndSending) => also += " end-sending",
            Some(Shutdown::Reset) => also += " reset",
        }
        if rare.is_refusal {
            also += " refusal";
        }
        match &rare.send {
            None => {}
            Some(Message::Continue) => also += " continue",
            Some(Message::Page(refusal, _)) => also += &format!(" page({})", refusal.status),
        }
    }
    format!("{}{deadline}{also} {}", name(state), next_name(&effects.next))
}

/// Sends `input` to a connection as a socket would, in reads of up to 64 KiB where there is no room in the body.
/// Returns the body of the request, how many bytes were received straight into it, and how many bytes of the input were
/// read.
fn upload(world: &World, input: &[u8]) -> (RequestBody, usize, usize) {
    let (mut state, mut next) = (ConnectionState::Idle, Next::Read);
    let (mut at, mut straight) = (0, 0);
    loop {
        next = match next {
            Next::Read => {
                let rest = &input[at..];
                let (count, event) = match state.body_room() {
                    Some(room) => {
                        let count = room.len().min(rest.len());
                        room[..count].copy_from_slice(&rest[..count]);
                        straight += count;
                        (count, Event::Filled { count, more: true })
                    }
                    None => {
                        let count = rest.len().min(65_536);
                        (count, Event::Received { bytes: &rest[..count], more: true })
                    }
                };
                assert!(count > 0, "{}: all was sent", name(&state));
                at += count;
                world.step(&mut state, event).next
            }
            Next::Store(write) => {
                state.set_write_result(world.write(*write));
                world.step(&mut state, Event::Written).next
            }
            Next::Run(mut transaction) => return (std::mem::take(&mut transaction.request.body), straight, at),
            other => panic!("{}: {}", name(&state), next_name(&other)),
        }
    }
}

/// A world without memory, until the charge is dropped.
fn crowded(config: Config) -> (World, Charge) {
    let world = World::new(config);
    let mut others = Charge::default();
    others.set_in(&world.memory.requests, world.config.client_memory);
    (world, others)
}

const SMALL: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

#[test]
fn a_complete_request_needs_no_room() {
    let (world, _others) = crowded(config());
    let mut state = ConnectionState::Idle;
    assert!(matches!(world.receive(&mut state, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").next, Next::Run(_)));
}

#[test]
fn the_connection_of_a_client_closes_if_there_is_no_room_for_what_it_sent_ahead() {
    const TWO: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let (world, mut others) = crowded(config());
    for (has_room, keep_alive) in [(false, false), (true, true)] {
        if has_room {
            others.set_in(&world.memory.requests, 0);
        }
        let Next::Run(transaction) = world.receive(&mut ConnectionState::Idle, TWO).next else { panic!("it runs") };
        assert_eq!(transaction.facts.keep_alive, keep_alive, "{has_room}");
    }
}

#[test]
fn forwarding_fields_that_are_not_believed_are_reported_with_who_sent_them() {
    let mut world = World::new(config());
    let socket = Some("192.0.2.1:1".parse().unwrap());
    for (client, expected) in [("192.0.2.1:1", Untrusted::Fields), ("192.0.2.2:2", Untrusted::FieldsOfClient)] {
        world.peer = Peer { socket, client: client.parse().ok(), ..Peer::default() };
        let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.3\r\n\r\n";
        let effects = world.receive(&mut ConnectionState::Idle, bytes);
        let (what, from) = effects.rare.unwrap().not_trusted.unwrap();
        assert_eq!((what, from), (expected, client.parse().ok()));
    }
}

#[test]
fn what_needs_room_is_refused_when_there_is_none() {
    let large = [&b"GET /"[..], &[b'x'; 7_000], b" HTTP/1.1\r\nHost: a\r\nX: ", &[b'y'; 30_000], b"\r\n\r\n"].concat();
    let small = [SMALL, b"3\r\nabc\r\n"].concat();
    for (stream_body, input) in [(false, &b"GET / HT"[..]), (false, &small), (true, &small), (false, &large)] {
        let (world, _others) = crowded(Config { stream_body, ..config() });
        let mut state = ConnectionState::Idle;
        let effects = world.receive(&mut state, input);
        let shown = input[..8].escape_ascii();
        let page = effects.rare.and_then(|rare| rare.send);
        assert!(matches!(page, Some(Message::Page(refusal, _)) if refusal.status == 503), "{shown}: {page:?}");
        assert_eq!(name(&state), "Flushing");
    }
}

#[test]
fn a_client_is_told_to_continue_only_when_there_is_room_for_its_request() {
    let input = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    for has_room in [true, false] {
        let (world, mut others) = crowded(config());
        let mut state = ConnectionState::Idle;
        if has_room {
            others.set_in(&world.memory.requests, 0);
        }
        match world.receive(&mut state, input).rare.and_then(|rare| rare.send) {
            Some(Message::Continue) => assert!(has_room),
            Some(Message::Page(refusal, _)) => assert!(!has_room && refusal.status == 503),
            None => panic!("the client waits"),
        }
    }
}

#[test]
fn the_first_bytes_of_a_streamed_body_in_a_packet_need_room_too() {
    let variables = [("REQUEST_METHOD", "POST"), ("REQUEST_URI", "/"), ("CONTENT_LENGTH", "8"), ("HTTP_HOST", "a")];
    let mut packet = Vec::new();
    for text in variables.iter().flat_map(|(name, value)| [name, value]) {
        packet.extend_from_slice(&u16::try_from(text.len()).unwrap().to_le_bytes());
        packet.extend_from_slice(text.as_bytes());
    }
    let length = u16::try_from(packet.len()).unwrap().to_le_bytes();
    let input = [&[0, length[0], length[1], 0], &packet[..], b"abc"].concat();
    for has_room in [true, false] {
        let trust = Trust::of(["*"], ForwardedFields::ANY).unwrap();
        let (world, mut others) = crowded(Config { stream_body: true, trust, ..config() });
        let world = World { protocol: &Uwsgi { is_internal: false }, ..world };
        let mut state = ConnectionState::Idle;
        if has_room {
            others.set_in(&world.memory.requests, 0);
        }
        match world.receive(&mut state, &input).next {
            Next::Run(mut transaction) => {
                let RequestBody::Stream(body) = &mut transaction.request.body else { panic!("a stream") };
                let mut came = [0; 10];
                assert_eq!((has_room, body.read(&mut came).unwrap(), &came[..3]), (true, 3, &b"abc"[..]));
            }
            Next::Flush => assert!(!has_room),
            other => panic!("{}", next_name(&other)),
        }
    }
}

#[test]
fn a_large_body_is_received_straight_into_its_memory_and_nothing_behind_it() {
    let body: Vec<u8> = (0..1_500_000).map(|at| (at * 31 % 251) as u8).collect();
    let known = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    let known = [&known[..], &body, b"GET / HTTP/1.1\r\n"].concat();
    let mut chunked = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for chunk in body.chunks(400_000) {
        chunked.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        chunked.extend_from_slice(chunk);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\nGET / HTTP/1.1\r\n");
    for input in [known, chunked] {
        for body_memory in [64 << 20, 100_000, 0] {
            let world = World::new(Config { body_memory, ..config() });
            let (got, straight, read) = upload(&world, &input);
            let mut all = Vec::new();
            match got {
                RequestBody::Memory(bytes) => {
                    assert!(body_memory > body.len());
                    all = bytes.into_vec();
                }
                RequestBody::File { file, .. } => {
                    assert!(body_memory < body.len());
                    std::io::Read::read_to_end(&mut &*file, &mut all).unwrap();
                }
                _ => panic!("not whole"),
            }
            assert!(all == body);
            assert!(straight > 1_000_000, "{straight}");
            assert!(read <= input.len());
            assert_eq!(world.memory.bodies.used(), 0);
        }
    }
}

#[test]
fn a_client_that_announces_a_large_body_and_sends_little_takes_little() {
    let world = World::new(config());
    let mut state = ConnectionState::Idle;
    world.receive(&mut state, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 900000000\r\n\r\n");
    assert!(state.body_room().is_none());
    assert_eq!(world.memory.bodies.used(), 0);
    world.receive(&mut state, &[b'x'; 100_000]);
    assert!(state.body_room().is_none());
    assert!(world.memory.bodies.used() <= 200_000, "{}", world.memory.bodies.used());
}

#[test]
fn many_bytes_of_a_quick_client_are_one_event_while_it_has_many_more_to_send() {
    let world = World::new(config());
    let mut state = ConnectionState::Idle;
    let step = |state: &mut ConnectionState, event: Event<'_>| {
        let effects = world.step(state, event);
        (line(state, &effects, world.clock.recent_millis()), state.low_water())
    };
    let length = 300_000 + LONG_REST;
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    let receive = |state: &mut ConnectionState, count: usize| {
        world.receive(state, &vec![b'x'; count]);
        step(state, Event::ReadAll)
    };
    world.receive(&mut state, head.as_bytes());
    assert_eq!(receive(&mut state, 10_000), ("Body Rest".to_owned(), 1), "it is not quick");
    assert_eq!(receive(&mut state, 100_000), ("Body in 100 Rest".to_owned(), LOW_WATER));
    assert_eq!(receive(&mut state, 10_000), ("Body Rest".to_owned(), 1), "it is no longer quick");
    assert_eq!(receive(&mut state, 100_000), ("Body in 100 Rest".to_owned(), LOW_WATER));
    // After that time fewer bytes are read. Only the next deadline is the client's.
    assert_eq!(step(&mut state, Event::Expired), ("Body in 30000 Read".to_owned(), 1));
    assert_eq!(step(&mut state, Event::ReadAll), ("Body Rest".to_owned(), 1));
    assert_eq!(receive(&mut state, 80_000), ("Body in 100 Rest".to_owned(), LOW_WATER));
    assert_eq!(receive(&mut state, 80_000), ("Body Rest".to_owned(), 1), "the rest is not long");
    assert_eq!(step(&mut state, Event::Expired), ("Flushing refusal page(408) Flush".to_owned(), 1));
}
