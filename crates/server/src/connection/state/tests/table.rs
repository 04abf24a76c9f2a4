//! Every event in every state. `table.txt` contains the result of each; a change of the state machine changes that
//! file.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use tailrace_http::body::BodyDecoder;
use tailrace_http::framing::BodyLength;
use tailrace_http::limits::Refusal;
use tailrace_observe::record::Ending;

use super::{World, config, line, name};
use crate::config::Config;
use crate::connection::state::{AfterResponse, ConnectionState, Event, Idleness, Next};
use crate::connection::transaction::Transaction;
use crate::request::spool::{NotWritten, Written};
use crate::request::stream::Rest;
use crate::response::outbox::Flush;

const TABLE: &str = include_str!("table.txt");

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const UPLOAD: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 60\r\n\r\n";
const FLUSHES: [Flush; 6] =
    [Flush::Blocked, Flush::More, Flush::Elsewhere, Flush::Empty, Flush::Broken, Flush::Short(9)];

/// A world in which a body of more than 50 bytes goes to a file.
fn world() -> World {
    World::new(Config { body_memory: 50, ..config() })
}

/// Makes a state, by the steps that lead to it.
type Make = fn(&World) -> ConnectionState;

fn after(world: &World, inputs: &[&[u8]]) -> (ConnectionState, Next) {
    let mut state = ConnectionState::Idle;
    let mut next = Next::Rest;
    for bytes in inputs {
        next = world.receive(&mut state, bytes).next;
    }
    (state, next)
}

fn storing(world: &World, result: fn(&World, Next) -> Result<Written, NotWritten>) -> ConnectionState {
    let (mut state, next) = after(world, &[UPLOAD, &[b'x'; 60]]);
    let result = result(world, next);
    state.set_write_result(result);
    state
}

fn flushing(world: &World, then: AfterResponse, rest: Option<Rest>) -> ConnectionState {
    let (mut state, next) = after(world, &[GET]);
    let Next::Run(transaction) = next else { panic!("it does not run") };
    world.step(&mut state, Event::Responded { then, transaction, rest, is_sent: false });
    state
}

fn decoder() -> BodyDecoder {
    BodyDecoder::new(BodyLength::Known(100), u64::MAX)
}

fn closing(world: &World) -> ConnectionState {
    let mut state = flushing(world, AfterResponse::Close, None);
    world.step(&mut state, Event::Flushed(Flush::Empty));
    state
}

fn lingering(world: &World) -> ConnectionState {
    let mut state = flushing(world, AfterResponse::Linger, None);
    world.step(&mut state, Event::Flushed(Flush::Empty));
    state
}

fn skipping(world: &World) -> ConnectionState {
    let mut state = flushing(world, AfterResponse::Keep, Some(Rest::Unread(decoder(), Vec::new())));
    world.step(&mut state, Event::Flushed(Flush::Empty));
    state
}

const STATES: [(&str, Make); 18] = [
    ("idle", |_| ConnectionState::Idle),
    ("empty line", |world| after(world, &[b"\r\n"]).0),
    ("half a head", |world| after(world, &[b"GET / HT"]).0),
    ("half a body", |world| after(world, &[UPLOAD, b"half"]).0),
    ("a chunked body", |world| after(world, &[b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"]).0),
    ("half a body, no room for more in memory", |world| after(world, &[UPLOAD, &[b'x'; 55]]).0),
    ("a write under way", |world| after(world, &[UPLOAD, &[b'x'; 60]]).0),
    ("a write done", |world| {
        storing(world, |world, next| match next {
            Next::Store(write) => world.write(*write),
            _ => panic!("it does not store"),
        })
    }),
    ("a write failed", |world| storing(world, |_, _| Err(io::Error::other("full").into()))),
    ("responding", |world| after(world, &[GET]).0),
    ("flushing, to keep", |world| flushing(world, AfterResponse::Keep, None)),
    ("flushing, to close", |world| flushing(world, AfterResponse::Close, None)),
    ("flushing, to reset", |world| flushing(world, AfterResponse::Reset, None)),
    ("flushing, body unread", |world| flushing(world, AfterResponse::Keep, Some(Rest::Unread(decoder(), Vec::new())))),
    ("skipping", skipping),
    ("closing", closing),
    ("lingering", lingering),
    ("closed", |_| ConnectionState::Closed),
];

/// The events, each with its name and a function that makes it.
fn events() -> Vec<(String, Box<dyn Fn() -> Event<'static>>)> {
    let mut events: Vec<(String, Box<dyn Fn() -> Event<'static>>)> = Vec::new();
    let received: [(&str, &'static [u8]); 3] =
        [("a request", GET), ("100 bytes", &[b'x'; 100]), ("a malformed octet", b"\0")];
    for (what, bytes) in received {
        events.push((format!("Received {what}"), Box::new(move || Event::Received { bytes, more: false })));
    }
    events.push((String::from("ReadAll"), Box::new(|| Event::ReadAll)));
    events.push((String::from("EndOfInput"), Box::new(|| Event::EndOfInput)));
    events.push((String::from("Lost"), Box::new(|| Event::Lost)));
    events.push((String::from("Readable"), Box::new(|| Event::Readable)));
    events.push((String::from("Expired"), Box::new(|| Event::Expired)));
    events.push((String::from("EvictIdle"), Box::new(|| Event::EvictIdle)));
    events.push((String::from("Shed"), Box::new(|| Event::Shed(Refusal::new(503, "")))));
    events.push((String::from("Written"), Box::new(|| Event::Written)));
    for (what, is_sent) in [("Responded", false), ("Responded, and sent", true)] {
        let responded = move || {
            let transaction = Box::new(Transaction::new());
            Event::Responded { then: AfterResponse::Keep, transaction, rest: None, is_sent }
        };
        events.push((String::from(what), Box::new(responded)));
    }
    for flush in FLUSHES {
        events.push((format!("Flushed {flush:?}"), Box::new(move || Event::Flushed(flush))));
    }
    events
}

#[test]
fn a_draining_server_waits_longer_for_the_first_request_of_a_connection_than_for_the_next() {
    let world = world();
    world.is_stopping.set(true);
    let now = world.clock.reading().millis();
    for (first_request_by, wait) in [(0, 1_000), (now + 4_000, 4_000), (now + 100, 1_000)] {
        world.first_request_by.set(first_request_by);
        let mut state = ConnectionState::Idle;
        assert_eq!(world.step(&mut state, Event::ReadAll).deadline, Some(now + wait));
        let mut begun = after(&world, &[b"GET / HT"]).0;
        assert_eq!(
            world.step(&mut begun, Event::ReadAll).deadline,
            None,
            "a request that has begun keeps its deadline"
        );
    }
}

#[test]
fn every_event_in_every_state() {
    let mut table = String::new();
    for (what, make) in STATES {
        let world = world();
        writeln!(table, "{what} ({})", name(&make(&world))).unwrap();
        for (event, make_event) in events() {
            let mut state = make(&world);
            let effects = world.step(&mut state, make_event());
            writeln!(table, "    {event}: {}", line(&state, &effects, world.clock.reading().millis())).unwrap();
        }
        assert_eq!(world.memory.used(), 0, "{what}: a state that is dropped gives back its charge");
    }
    let differences: Vec<_> = table.lines().zip(TABLE.lines()).filter(|(is, should)| is != should).collect();
    assert!(table == TABLE, "{differences:#?}\nIf the change is intended, the new table.txt is:\n{table}");
}

#[test]
fn a_connection_that_breaks_later_does_not_change_the_ending_of_a_response_that_failed() {
    for (before, ending) in [
        (Ending::TimedOut, Ending::TimedOut),
        (Ending::Cut, Ending::Cut),
        (Ending::Broken, Ending::Broken),
        (Ending::Complete, Ending::ClientDisconnected),
    ] {
        for event in [Event::Expired, Event::Flushed(Flush::Broken)] {
            let world = world();
            let (mut state, next) = after(&world, &[GET]);
            let Next::Run(mut transaction) = next else { panic!("it does not run") };
            transaction.record.ending = before;
            let then = AfterResponse::Close;
            world.step(&mut state, Event::Responded { then, transaction, rest: None, is_sent: false });
            let account = world.step(&mut state, event).account.unwrap();
            assert_eq!(account.record.ending, ending);
        }
    }
}

#[test]
fn a_socket_is_read_after_a_refusal_because_it_may_contain_more() {
    let world = world();
    let (mut state, _) = after(&world, &[b"\xff"]);
    assert_eq!((name(&state), state.has_unread(), state.has_more_requests()), ("Flushing", true, true));
    world.step(&mut state, Event::ReadAll);
    assert_eq!((state.has_unread(), state.has_more_requests()), (false, false));
    let state = flushing(&world, AfterResponse::Keep, None);
    assert_eq!((state.has_unread(), state.has_more_requests()), (false, false));
}

#[test]
fn the_record_of_a_response_says_for_how_long_it_was_held() {
    let world = world();
    let (mut state, next) = after(&world, &[GET]);
    let Next::Run(mut transaction) = next else { panic!("it does not run") };
    let finished = world.clock.peek();
    transaction.record.finished = Some(finished);
    world.step(&mut state, Event::Responded { then: AfterResponse::Keep, transaction, rest: None, is_sent: false });
    state.note_held(finished + Duration::from_millis(3));
    let account = world.step(&mut state, Event::Flushed(Flush::Empty)).account.unwrap();
    assert_eq!(account.record.held, Duration::from_millis(3));
}

#[test]
fn a_connection_is_idle_before_a_request_and_while_its_head_is_incomplete() {
    for (what, make) in STATES {
        let expected = match what {
            "idle" => Some(Idleness::Silent),
            "empty line" | "half a head" => Some(Idleness::HalfHead),
            _ => None,
        };
        assert_eq!(make(&world()).idleness(), expected, "{what}");
    }
}
