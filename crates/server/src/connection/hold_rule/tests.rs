//! The rule in a simulated server: one thread that reads, calls the application and sends, and clients that ask again or
//! arrive at random.
//!
//! What each step costs is of an AMD EPYC, to the microsecond: a send between two calls evicts the application from the
//! caches, and several sends in a row cost half each.

#![allow(clippy::unwrap_used)]
use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::{Completion, HoldRule, MIN_CALL};
use crate::config::HOLD_WRITES;
use crate::connection::spare_time::SpareTime;

type Micros = u64;

const RECEIVE: Micros = 3;
const SEND: Micros = 8;
const SEND_MORE: Micros = 4;
/// What a call takes longer after a send.
const EVICTED: Micros = 10;
/// What a client does for a response and its next request; on the server's core, a switch to it and back comes first.
const CLIENT: Micros = 6;
const SWITCH: Micros = 3;
/// What the leader reads at once.
const BATCH: usize = 32;
const SECOND: Micros = 1_000_000;

#[derive(Clone, Copy, Debug)]
enum Clients {
    /// So many, each of which asks again so long after it was answered.
    Closed(usize, Micros),
    /// They arrive at random, so many each second.
    Open(u64),
}

#[derive(Clone, Copy, Debug)]
struct Load {
    clients: Clients,
    call: Micros,
    /// One call in a hundred takes so long instead.
    slow: Micros,
    /// The clients have a core of their own.
    cores: usize,
}

#[derive(Default)]
struct Outcome {
    answered: u64,
    /// From the request to its answer.
    times: Vec<Micros>,
    most_held: Micros,
}

impl Outcome {
    fn p99(&mut self) -> Micros {
        self.times.sort_unstable();
        self.times[self.times.len() * 99 / 100]
    }
}

/// Numbers that look random and are the same in each run (splitmix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        number ^ (number >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

struct Simulation {
    rule: HoldRule,
    load: Load,
    chance: Chance,
    now: Micros,
    /// When requests arrive, and which; each is another one.
    arrivals: BTreeSet<(Micros, u64)>,
    asked: u64,
    calls: u64,
    /// When each arrived.
    queue: VecDeque<Micros>,
    /// When each was complete, and when its request had arrived.
    held: Vec<(Micros, Micros)>,
    /// The last thing done was a send.
    is_evicted: bool,
    client_free_at: Micros,
    outcome: Outcome,
}

impl Simulation {
    fn run(rule: HoldRule, load: Load) -> Outcome {
        let mut simulation = Self {
            rule,
            load,
            chance: Chance(7),
            now: 0,
            arrivals: BTreeSet::new(),
            asked: 0,
            calls: 0,
            queue: VecDeque::new(),
            held: Vec::new(),
            is_evicted: false,
            client_free_at: 0,
            outcome: Outcome::default(),
        };
        match load.clients {
            Clients::Closed(count, _) => (0..count as u64).for_each(|number| simulation.ask(number)),
            Clients::Open(rate) => {
                let mut at = 0.0;
                while at < SECOND as f64 {
                    simulation.ask(at as Micros);
                    let chance = (simulation.chance.below(1 << 20) + 1) as f64 / f64::from(1 << 20);
                    at -= chance.ln() * SECOND as f64 / rate as f64;
                }
            }
        }
        simulation.serve();
        simulation.outcome
    }

    fn ask(&mut self, at: Micros) {
        self.asked += 1;
        self.arrivals.insert((at, self.asked));
    }

    fn serve(&mut self) {
        let began = Instant::now();
        let at = |micros| began + Duration::from_micros(micros);
        let (mut spare, mut is_pressed) = (SpareTime::new(began), false);
        while self.now < SECOND {
            let before = self.now;
            let Some((first, _)) = self.arrivals.first().copied() else { break };
            self.now = self.now.max(first);
            if let Some(has_little) = spare.note(at(before), at(self.now)) {
                is_pressed = has_little;
            }
            for _ in 0..BATCH {
                match self.arrivals.first().copied() {
                    Some(arrival) if arrival.0 <= self.now => {
                        self.arrivals.remove(&arrival);
                        self.now += RECEIVE;
                        self.queue.push_back(arrival.0);
                    }
                    _ => break,
                }
            }
            self.take_turn(is_pressed);
        }
    }

    fn take_turn(&mut self, is_pressed: bool) {
        let mut last = Duration::ZERO;
        while let Some(arrived) = self.queue.pop_front() {
            if let Some((since, _)) = self.held.first()
                && self.rule.must_send(Duration::from_micros(self.now - since), last)
            {
                self.send_held();
            }
            let begun = self.now;
            self.calls += 1;
            let is_slow = self.load.slow > 0 && self.calls.is_multiple_of(100);
            let call = if is_slow { self.load.slow } else { self.load.call };
            self.now += call + if std::mem::take(&mut self.is_evicted) { EVICTED } else { 0 };
            // The timekeeper sends while the application runs.
            let overdue = u64::try_from(self.rule.overdue().as_micros()).unwrap();
            if self.held.first().is_some_and(|(since, _)| since + overdue < self.now) {
                let back_at = std::mem::replace(&mut self.now, self.held[0].0 + overdue);
                self.send_held();
                self.now = self.now.max(back_at);
            }
            last = Duration::from_micros(self.now - begun);
            let seen = Completion { waiting: self.queue.len(), has_batch: !self.held.is_empty(), took: last };
            if is_pressed && self.rule.may_hold(seen) {
                self.held.push((self.now, arrived));
            } else {
                self.send(arrived, SEND);
            }
        }
        self.send_held();
    }

    fn send_held(&mut self) {
        for (number, (since, arrived)) in std::mem::take(&mut self.held).into_iter().enumerate() {
            // The first of them was held for longest; the others wait for the sends before them.
            let held = if number == 0 { self.now - since } else { 0 };
            self.outcome.most_held = self.outcome.most_held.max(held);
            self.send(arrived, if number == 0 { SEND } else { SEND_MORE });
        }
    }

    fn send(&mut self, arrived: Micros, cost: Micros) {
        self.now += cost;
        self.is_evicted = true;
        self.outcome.answered += 1;
        self.outcome.times.push(self.now - arrived);
        let done = if self.load.cores > 1 {
            self.client_free_at = self.client_free_at.max(self.now) + CLIENT;
            self.client_free_at
        } else {
            // It preempts the server after a send alone, and runs once for several.
            self.now += CLIENT + if cost == SEND { SWITCH } else { 0 };
            self.now
        };
        if let Clients::Closed(_, think) = self.load.clients {
            self.ask(done + think);
        }
    }
}

fn with_the_rule(load: Load) -> Outcome {
    Simulation::run(HoldRule::new(HOLD_WRITES), load)
}

fn without(load: Load) -> Outcome {
    Simulation::run(HoldRule::new(Duration::ZERO), load)
}

/// A call that overstays delays a response by a quarter of the limit, and one that is slower than the last by a little.
fn assert_held_briefly(outcome: &Outcome, load: Load) {
    let limit = if load.slow > 0 { HoldRule::new(HOLD_WRITES).overdue() } else { HOLD_WRITES };
    assert!(
        u128::from(outcome.most_held) <= limit.as_micros() + u128::from(EVICTED),
        "{load:?}: held for {} us",
        outcome.most_held
    );
}

#[test]
fn in_a_closed_loop_crowds_gain_and_nobody_loses() {
    for cores in [1, 2] {
        for connections in [1, 2, 4, 8, 16, 64, 256] {
            for think in [0, 100, 2_000] {
                for call in [5, 14, 16, 40, 100, 300, 1_000, 5_000] {
                    for slow in [0, 5_000] {
                        let load = Load { clients: Clients::Closed(connections, think), call, slow, cores };
                        let (held, sent) = (with_the_rule(load), without(load));
                        assert_held_briefly(&held, load);
                        let ratio = held.answered as f64 / sent.answered as f64;
                        // Clients that are a network away come together behind a slow call.
                        let least = if think > 1_000 && slow > 0 { 0.92 } else { 0.98 };
                        assert!(ratio > least, "{load:?}: {ratio:.3}");
                        if connections >= 16 && think == 0 && call == 40 {
                            assert!(ratio > 1.1, "{load:?}: {ratio:.3}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn in_an_open_loop_answers_hardly_take_longer() {
    for cores in [1, 2] {
        for call in [5, 40, 100, 300] {
            for slow in [0, 5_000] {
                let busy = Load { clients: Clients::Closed(16, 0), call, slow, cores };
                let capacity = without(busy).answered;
                for share in [30, 60, 90] {
                    let load = Load { clients: Clients::Open(capacity * share / 100), ..busy };
                    let (mut held, mut sent) = (with_the_rule(load), without(load));
                    assert_held_briefly(&held, load);
                    let (ours, theirs) = (held.p99(), sent.p99());
                    // Those behind a slow call come late, and are held as well.
                    let most = if slow > 0 { theirs * 112 / 100 } else { theirs * 102 / 100 };
                    assert!(ours <= most, "{load:?}: {ours} us, without {theirs}");
                }
            }
        }
    }
}

#[test]
fn a_response_is_held_only_if_others_follow_and_its_call_was_neither_short_nor_long() {
    let rule = HoldRule::new(HOLD_WRITES);
    let (call, moment) = (Duration::from_micros(40), Duration::from_nanos(1));
    // waiting, has_batch, took
    let cases = [
        ((0, false, call), false, "nothing follows"),
        ((1, false, call), false, "one follows, whose client is asked for the next one meanwhile"),
        ((2, false, call), true, "two follow"),
        ((0, true, call), true, "nothing follows, but it is sent behind the others"),
        ((1, true, call), true, "it is sent with the others"),
        ((9, true, MIN_CALL - moment), false, "a short call"),
        ((9, true, MIN_CALL), true, "a call that is just long enough"),
        ((9, true, HOLD_WRITES - moment), true, "a call that is just short enough"),
        ((9, true, HOLD_WRITES), false, "a long call"),
    ];
    for ((waiting, has_batch, took), expected, why) in cases {
        assert_eq!(rule.may_hold(Completion { waiting, has_batch, took }), expected, "{why}");
    }
}

#[test]
fn what_is_held_is_sent_before_the_call_that_would_delay_it() {
    let rule = HoldRule::new(HOLD_WRITES);
    let call = Duration::from_micros(40);
    // held, last
    let cases = [
        ((Duration::ZERO, call), false, "there is time"),
        ((HOLD_WRITES - call * 2, call), false, "there is time for one more"),
        ((HOLD_WRITES - call, call), true, "the next one would end too late"),
        ((HOLD_WRITES * 2, Duration::ZERO), true, "it is late"),
        ((Duration::ZERO, HOLD_WRITES), true, "the last call took so long"),
    ];
    for ((held, last), expected, why) in cases {
        assert_eq!(rule.must_send(held, last), expected, "{why}");
    }
    assert!(rule.is_on() && rule.overdue() == Duration::from_millis(1));
    assert!(!HoldRule::new(Duration::ZERO).is_on());
}
