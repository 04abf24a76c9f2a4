//! The record of a finished response, in a cell of shared memory. Slow and broken responses are kept in this form, and
//! the spans of traced responses are built from it.
//!
//! The first word of a cell is a sequence number, see `guarded.rs`.

use std::net::SocketAddr;

use tailrace_http::forwarded::Scheme;
use tailrace_http::identity::Traced;

use crate::guarded::{Guarded, ID_WORDS, PEER, TRACE_WORDS, lengths, lengths_of, peer_of, text_of, trace_of, word_of};
use crate::record::{ENDINGS, Ending, PATHS, PHASES, Path, Record, SIZES, Times};
use crate::shown_request::ShownRequest;

// The words of a cell.
pub(super) const SERIAL: usize = 1;
pub(super) const AT: usize = 2;
/// The status, and the bits below.
const STATUS: usize = 3;
const ENDING: usize = 4;
const PATH: usize = 5;
const SIZE: usize = 6;
const TIME: usize = SIZE + SIZES.len();
const CLIENT: usize = TIME + PHASES.len();
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
pub struct EndedResponse {
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
    /// Sizes by their names.
    pub sizes: [(&'static str, u64); SIZES.len()],
    /// Times in nanoseconds, by the names of the phases; 0: unknown.
    pub times: [(&'static str, u64); PHASES.len()],
    /// Number and process of the worker, if they are kept with it; else 0.
    pub worker: [(&'static str, u64); 2],
}

/// That of a cell that was read.
pub(super) fn ended(words: &[u64; CELL]) -> EndedResponse {
    let place = |word: usize| usize::try_from(words[word]).unwrap_or(usize::MAX);
    let (length, id_length) = lengths_of(words[LENGTH]);
    EndedResponse {
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
        peer: peer_of(&words[CLIENT..METHOD]),
        status: words[STATUS] as u16,
        is_event_stream: words[STATUS] & EVENT_STREAM != 0,
        ending: ENDINGS.get(place(ENDING)).copied().unwrap_or_default(),
        path: PATHS.get(place(PATH)).copied().unwrap_or_default(),
        sizes: std::array::from_fn(|size| (SIZES[size].name, words[SIZE + size])),
        times: std::array::from_fn(|phase| (PHASES[phase].name, words[TIME + phase])),
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
pub(super) fn store(cell: Guarded, key: &Key, request: &ShownRequest<'_>, record: &Record, times: &Times) {
    let ending = ENDINGS.iter().position(|ending| *ending == record.ending).unwrap_or(ENDINGS.len());
    let (method, target) = (request.method(), request.target());
    let scheme = request.scheme();
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
        for (place, size) in SIZES.iter().enumerate() {
            cell.store(SIZE + place, (size.value)(record));
        }
        for (place, time) in times.all().into_iter().enumerate() {
            cell.store(TIME + place, time);
        }
        cell.store_peer(CLIENT, request.peer.client);
        cell.store_text(METHOD, LENGTH - METHOD, method);
        cell.store(LENGTH, lengths(target, request.id));
        cell.store_text(TARGET, TARGET_WORDS, target);
        cell.store_text(ID, ID_WORDS, request.id);
        cell.store_trace(TRACE, request.traced);
    });
}
