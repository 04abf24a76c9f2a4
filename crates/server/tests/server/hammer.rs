//! Many random clients at once: slow and fast ones, pipelined requests, bodies, half-closes, resets, and responses
//! whose blocks have random sizes and times. Every byte of every response is checked.
//!
//! A failure names the seed of its round. `TAILRACE_HAMMER_SEED` sets the seed of the first round,
//! `TAILRACE_HAMMER_SECONDS` how long the test runs.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::client::Kind;
use crate::harness::{Chance, Client, Config, End, ExecutorKind, Server, pattern};

/// How long the test runs by default.
const TIME: Duration = Duration::from_secs(3);
/// How long clients connect in one round, which has a server of its own.
const ROUND: Duration = Duration::from_millis(700);
const CLIENTS: usize = 8;

fn told(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn every_byte_arrives_whatever_clients_and_applications_do() {
    let time = told("TAILRACE_HAMMER_SECONDS").map_or(TIME, Duration::from_secs);
    let mut seed = told("TAILRACE_HAMMER_SEED").unwrap_or(1);
    let begun = Instant::now();
    while begun.elapsed() < time {
        let round = catch_unwind(AssertUnwindSafe(|| round(seed)));
        assert!(round.is_ok(), "TAILRACE_HAMMER_SEED={seed}");
        seed += 1;
    }
}

fn round(seed: u64) {
    let mut chance = Chance::of(seed);
    let config = Config {
        threads: chance.below(8) + 1,
        executor: if chance.is_one_in(6) { ExecutorKind::Inline } else { ExecutorKind::Threads },
        stream_body: chance.is_one_in(2),
        // Small, so that producers wait and responses go to files.
        response_queue: *chance.one_of(&[20_000, 100_000, 4 << 20]),
        response_buffer: *chance.one_of(&[100_000, 1 << 20, 256 << 20]),
        body_memory: *chance.one_of(&[20_000, 1 << 20]),
        ..Config::default()
    };
    let server = Server::start(config);
    let until = Instant::now() + ROUND;
    let mut served = 0;
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS as u64)
            .map(|number| {
                let (server, mut chance) = (&server, Chance::of(seed << 8 | number));
                scope.spawn(move || {
                    let mut served = 0;
                    while Instant::now() < until {
                        served += connection(server, &mut chance);
                    }
                    served
                })
            })
            .collect();
        served = clients.into_iter().map(|client| client.join().unwrap()).sum();
    });
    assert!(served > 0);
    server.stop();
}

/// One request, and the expected response.
struct Asked {
    wire: Vec<u8>,
    body: Vec<u8>,
}

fn ask(chance: &mut Chance) -> Asked {
    let length = *chance.one_of(&[0, 1, 500, 20_000, 300_000, 2_000_000]);
    let length = chance.below(length + 1);
    let seed = chance.next() >> 1;
    let get = |target: String| format!("GET {target} HTTP/1.1\r\nHost: test\r\n\r\n").into_bytes();
    let (wire, length) = match chance.below(8) {
        0 => (get(format!("/list?count=3&size={}", length / 3)), length / 3 * 3),
        1 => (get(format!("/file?size={length}")), length),
        2 => {
            let length = length.min(200_000);
            let head = format!("POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n");
            ([head.into_bytes(), pattern(0, length)].concat(), length)
        }
        3 => (get(format!("/mixed?bytes={length}&seed={seed}&length={length}")), length),
        _ => (get(format!("/mixed?bytes={length}&seed={seed}")), length),
    };
    Asked { wire, body: pattern(0, length) }
}

/// Sends requests on one connection; returns how many responses it has read whole.
fn connection(server: &Server, chance: &mut Chance) -> usize {
    let mut client = if chance.is_one_in(4) { server.connect_unix() } else { server.connect() };
    match chance.below(4) {
        0 => {
            // In small steps, with pauses.
            let mut pace = Chance::of(chance.next());
            client.set_pace(Box::new(move || {
                pace.pause();
                pace.below(16_000)
            }));
        }
        1 => {
            // In large ones, with longer pauses at first.
            let (mut pace, mut left) = (Chance::of(chance.next()), 4);
            client.set_pace(Box::new(move || {
                if left > 0 {
                    left -= 1;
                    thread::sleep(Duration::from_millis(pace.below(150) as u64));
                }
                usize::MAX
            }));
        }
        _ => {}
    }
    let mut waiting = VecDeque::new();
    let mut served = 0;
    for _ in 0..chance.below(12) + 1 {
        // Sends some requests, then reads some of the responses. No request with a body is sent behind others: the
        // client does not read while it sends, so that client and server could wait for each other for ever.
        for _ in 0..chance.below(3) + 1 {
            let asked = ask(chance);
            if waiting.is_empty() || asked.wire.len() < 1_000 {
                client.send(&asked.wire);
                waiting.push_back(asked.body);
            }
        }
        if chance.is_one_in(30) {
            // In the middle of a response, if one is expected.
            client.read(chance.below(waiting.iter().map(Vec::len).sum()));
            client.reset();
            return served;
        }
        if chance.is_one_in(30) {
            client.half_close();
            break;
        }
        let keeps = chance.below(2);
        while waiting.len() > keeps {
            served += read(&mut client, &mut waiting);
        }
    }
    while !waiting.is_empty() {
        served += read(&mut client, &mut waiting);
    }
    if chance.is_one_in(2) {
        client.half_close();
        let (rest, end) = client.rest();
        assert!(rest.is_empty() && end == End::Closed);
    }
    served
}

fn read(client: &mut Client, waiting: &mut VecDeque<Vec<u8>>) -> usize {
    let Some(body) = waiting.pop_front() else { return 0 };
    let response = client.response_to(Kind::default());
    assert_eq!(response.status, 200);
    response.assert_body(&body);
    1
}
