//! The record of a finished response, in a cell of shared memory. Slow and broken responses are kept in this form, and
//! the spans of traced responses are built from it.
//!
//! The first word of a cell is a sequence number, see `guarded.rs`.

use std::net::SocketAddr;

use crate::observe::deliveries::{PHASES, Times};
use crate::observe::guarded::{
    Guarded, ID_WORDS, PEER, TRACE_WORDS, lengths, lengths_of, peer_of, text_of, trace_of, word_of,
};
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
const TRACE: usize = ID + ID_WORDS;
pub(super) const WORKER: usize = TRACE + TRACE_WORDS;
pub(super) const PROCESS: usize = WORKER + 1;
pub(super) const CELL: usize = PROCESS + 1;

// The bits of [`STATUS`].
const EVENT_STREAM: u64 = 1 << 16;
const HTTPS: u64 = 1 << 17;
const HTTP: u64 = 1 << 18;
const STARTED: u64 = 1 << 19;

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
    /// The scheme of the client's URL. `None`: neither a proxy nor an encrypted connection says.
    pub scheme: Option<Scheme>,
    /// The application has had it.
    pub is_started: bool,
    /// How long a trusted proxy had the request, in nanoseconds; 0: no proxy states it.
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
        traced: trace_of(&words[TRACE..WORKER]),
        scheme: match words[STATUS] & (HTTP | HTTPS) {
            0 => None,
            HTTP => Some(Scheme::Http),
            _ => Some(Scheme::Https),
        },
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

/// What is stored of a response beside its record. `at`: when it was over; `worker`: number and process.
pub(super) struct Key {
    pub(super) serial: u64,
    pub(super) at: u64,
    pub(super) worker: [u64; 2],
}

/// Stores one in a cell.
pub(super) fn store(cell: Guarded, key: &Key, request: &Request, record: &Record, times: &Times) {
    let ending = ENDINGS.iter().position(|ending| *ending == record.ending).unwrap_or(ENDINGS.len());
    let (method, target) = (request.head.method.of(&request.bytes), request.head.target.of(&request.bytes));
    let scheme = request.peer.scheme.or(request.tls.as_ref().map(|_| Scheme::Https));
    let bits = [
        (record.is_event_stream, EVENT_STREAM),
        (scheme == Some(Scheme::Https), HTTPS),
        (scheme == Some(Scheme::Http), HTTP),
        (record.started.is_some(), STARTED),
    ];
    let bits: u64 = bits.into_iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum();
    cell.change(|| {
        cell.store(SERIAL, key.serial);
        cell.store(AT, key.at);
        cell.store(WORKER, key.worker[0]);
        cell.store(PROCESS, key.worker[1]);
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
        cell.store_trace(TRACE, request.traced);
    });
}
