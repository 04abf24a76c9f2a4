//! A response that is over, with its record, in a cell of shared memory: what is kept of slow and of broken responses,
//! and what spans are made of.
//!
//! The first word of a cell is a sequence number, see `guarded.rs`.

use std::net::SocketAddr;

use crate::observe::deliveries::{PHASES, Times};
use crate::observe::guarded::{Guarded, ID_WORDS, PEER, lengths, lengths_of, peer_of, text_of, word_of};
use crate::observe::record::{ENDINGS, Ending, PATHS, Path, Record};
use crate::os::clock::nanos;
use crate::request::peer::Scheme;
use crate::request::{Request, Traced};

// The words of a cell.
pub(super) const SERIAL: usize = 1;
pub(super) const AT: usize = 2;
/// The status, and the bits below.
const STATUS: usize = 3;
const ENDING: usize = 4;
const PATH: usize = 5;
const BYTES: usize = 6;
const BLOCKS: usize = 7;
const WRITES: usize = 8;
const TIMES: usize = 9;
const PROXIED: usize = TIMES + PHASES.len();
const CLIENT: usize = PROXIED + 1;
const METHOD: usize = CLIENT + PEER;
const LENGTH: usize = METHOD + 2;
const TARGET: usize = LENGTH + 1;
const TARGET_WORDS: usize = 20;
const ID: usize = TARGET + TARGET_WORDS;
/// The trace, two words, then the spans.
const TRACE: usize = ID + ID_WORDS;
pub(super) const WORKER: usize = TRACE + 5;
pub(super) const PROCESS: usize = WORKER + 1;
pub(super) const CELL: usize = PROCESS + 1;

// The bits of [`STATUS`].
const EVENT_STREAM: u64 = 1 << 16;
const HTTPS: u64 = 1 << 17;
const STARTED: u64 = 1 << 18;

/// A response that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Number in the order of those that are kept with it.
    pub serial: u64,
    /// When it was over, in nanoseconds of the monotonic clock.
    pub at: u64,
    /// The method, cut after 16 bytes.
    pub method: Vec<u8>,
    /// The target, cut after 160 bytes.
    pub target: Vec<u8>,
    /// The id; empty: it had none.
    pub id: Vec<u8>,
    /// Its place in a trace. `None`: no spans are made of it.
    pub traced: Option<Traced>,
    /// The client has sent it over `https`, as far as this server knows.
    pub is_https: bool,
    /// The application has had it.
    pub is_started: bool,
    /// For how long a trusted proxy has had it, in nanoseconds; 0: none states that.
    pub proxied: u64,
    /// The client; `None` on a UNIX socket.
    pub peer: Option<SocketAddr>,
    /// The status that was sent; 0: none was.
    pub status: u16,
    /// Whether it was a stream of server-sent events, which pauses between events.
    pub is_event_stream: bool,
    /// How it ended.
    pub ending: Ending,
    /// How its body was sent.
    pub path: Path,
    /// Body bytes, blocks of the application, and write calls, with their names.
    pub sizes: [(&'static str, u64); 3],
    /// Times in nanoseconds, by the names of the phases.
    pub times: [(&'static str, u64); PHASES.len()],
    /// Number and process of the worker, if they are kept with it; else 0.
    pub worker: [(&'static str, u64); 2],
}

/// That of a cell that was read.
pub(super) fn ended(words: &[u64; CELL]) -> Ended {
    let place = |word: usize| usize::try_from(words[word]).unwrap_or(usize::MAX);
    let (length, id_length) = lengths_of(words[LENGTH]);
    Ended {
        serial: words[SERIAL],
        at: words[AT],
        method: word_of(&words[METHOD..LENGTH]),
        target: text_of(&words[TARGET..ID], length),
        id: text_of(&words[ID..TRACE], id_length),
        traced: traced(&words[TRACE..WORKER]),
        is_https: words[STATUS] & HTTPS != 0,
        is_started: words[STATUS] & STARTED != 0,
        proxied: words[PROXIED],
        peer: peer_of(&words[CLIENT..METHOD]),
        status: words[STATUS] as u16,
        is_event_stream: words[STATUS] & EVENT_STREAM != 0,
        ending: ENDINGS.get(place(ENDING)).copied().unwrap_or_default(),
        path: PATHS.get(place(PATH)).copied().unwrap_or_default(),
        sizes: [("body_bytes", words[BYTES]), ("blocks", words[BLOCKS]), ("writes", words[WRITES])],
        times: std::array::from_fn(|phase| (PHASES[phase], words[TIMES + phase])),
        worker: [("worker", words[WORKER]), ("pid", words[PROCESS])],
    }
}

/// The place in a trace in words that were read.
fn traced(words: &[u64]) -> Option<Traced> {
    let trace = u128::from(words[0]) << 64 | u128::from(words[1]);
    (trace != 0).then(|| Traced { trace, parent: words[2], span: words[3], application: words[4] })
}

/// Stores one in a cell, without a worker. `at`: when it was over.
pub(super) fn store(cell: Guarded, serial: u64, at: u64, request: &Request, record: &Record, times: &Times) {
    let ending = ENDINGS.iter().position(|ending| *ending == record.ending).unwrap_or(ENDINGS.len());
    let (method, target) = (request.head.method.of(&request.bytes), request.head.target.of(&request.bytes));
    let is_https = request.peer.scheme.map_or(request.tls.is_some(), |scheme| scheme == Scheme::Https);
    let bits = [(record.is_event_stream, EVENT_STREAM), (is_https, HTTPS), (record.started.is_some(), STARTED)];
    let bits: u64 = bits.into_iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum();
    cell.change(|| {
        cell.store(SERIAL, serial);
        cell.store(AT, at);
        cell.store(STATUS, u64::from(record.status) | bits);
        cell.store(ENDING, ending as u64);
        cell.store(PATH, record.path as u64);
        cell.store(BYTES, record.body_bytes);
        cell.store(BLOCKS, record.blocks);
        cell.store(WRITES, u64::from(record.writes));
        for (phase, time) in times.all().into_iter().enumerate() {
            cell.store(TIMES + phase, time);
        }
        cell.store(PROXIED, record.proxied.map_or(0, nanos));
        cell.store_peer(CLIENT, request.peer.client);
        cell.store_text(METHOD, LENGTH - METHOD, method);
        cell.store(LENGTH, lengths(target, request.id()));
        cell.store_text(TARGET, TARGET_WORDS, target);
        cell.store_text(ID, ID_WORDS, request.id());
        let traced = request.traced.map_or([0; 5], |traced| {
            [(traced.trace >> 64) as u64, traced.trace as u64, traced.parent, traced.span, traced.application]
        });
        for (word, value) in traced.into_iter().enumerate() {
            cell.store(TRACE + word, value);
        }
    });
}
