//! What the responses of each endpoint have cost, in a worker's slot of the scoreboard: how many there were, for how
//! long they held the application's threads, their blocks, write calls and bytes, how they were sent, and a histogram of
//! the times that they took.
//!
//! An endpoint is a method and a path, in which the parts that vary are folded: `GET /products/*`. A worker has
//! `ROWS` of them at most, and one more row for all others together. Each row has a credit: what its responses have
//! cost. A response without a row is counted with the others and takes its own cost from the least credit among the
//! rows where it could stand; once that is used up, it has the row. So a client that asks for ever new paths displaces
//! other paths that were asked once, and no endpoint that costs more than those.
//!
//! A count is one word. A row gets another endpoint under its sequence number, see `guarded.rs`. Any thread counts; what
//! is not shared is behind a lock of this process, which is held for some ten additions.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tailrace_os::sync::lock;

use crate::attribution::Attribution;
use crate::deliveries::{TIMES, time_bound, time_bucket};
use crate::guarded::{Guarded, text_of};
use crate::recent::is_broken;
use crate::record::{Ending, PATHS, PHASES, Record, Times};

/// Endpoints of a worker. A power of two.
const ROWS: usize = 128;
/// Rows where an endpoint may stand: so many from the one that its key says.
const REACH: usize = 16;
/// Requests whose keys are remembered. A power of two.
const KNOWN: usize = 256;
/// Makes [`Count`] from rows: variant, name, meaning.
macro_rules! counts {
    ($($count:ident $name:literal $meaning:literal;)*) => {
        /// What is counted of an endpoint, beside the parts of its time, the ways of sending and the histogram.
        #[derive(Clone, Copy)]
        enum Count {
            $(#[doc = $meaning] $count,)*
        }

        /// The names of the counts, in their order.
        const COUNTS: [&str; [$(Count::$count),*].len()] = [$($name),*];
    };
}

counts! {
    Responses "responses" "Responses.";
    Application "application_ns" "Time that the application spent on them.";
    Delivery "delivery_ns" "The part of it after the first block, without event streams.";
    Blocks "blocks" "Blocks of the application.";
    Writes "writes" "Write system calls.";
    BodyBytes "body_bytes" "Bytes of bodies.";
    Chunked "chunked" "Responses in chunks.";
    Failed "failed" "Broken responses, see `recent.rs`.";
    Disconnected "client_disconnected" "Responses whose clients had gone.";
    EventStreams "event_streams" "Streams of server-sent events.";
    EventStream "event_stream_ns" "Time that the application spent on those.";
    Total "total_ns" "Time of all other responses.";
    Slow "slow" "Slow responses, see `recent.rs`.";
    Grown "grown_bytes" "By how much they made the process grow, a signed number.";
    GrownResponses "grown_responses" "How many responses that covers.";
    GrownVariance "grown_variance" "The variance of its error, in KiB².";
}

// The words of a row; the first is its sequence number.
const LENGTH: usize = 1;
const NAME: usize = 2;
const NAME_WORDS: usize = 14;
const COUNT: usize = NAME + NAME_WORDS;
/// The sums of those [`PHASES`] that are parts of the application's time.
const PART: usize = COUNT + COUNTS.len();
const PARTS: usize = {
    let (mut parts, mut phase) = (0, 0);
    while phase < PHASES.len() {
        parts += PHASES[phase].is_part as usize;
        phase += 1;
    }
    parts
};
const PATH: usize = PART + PARTS;
const TIME: usize = PATH + PATHS.len();
const ROW: usize = TIME + BUCKETS;
/// Buckets of [`deliveries`](crate::deliveries) that are one bucket here. So the upper bound of a bucket exceeds
/// the times in it by at most 12.5 %.
const MERGED: usize = 4;
const BUCKETS: usize = (TIMES - 1).div_ceil(MERGED) + 1;
/// A word before the rows: 1 once a response was counted.
const USED: usize = 0;
const FIRST: usize = 1;
/// Words of all.
pub const WORDS: usize = FIRST + (ROWS + 1) * ROW;

/// Bytes of a path that are looked at.
const LOOKED_AT: usize = 256;
/// A part with a digit and no letters but those of hexadecimal numbers varies if it is as long as this.
const LONG_NUMBER: u32 = 8;
/// Any part that is longer varies.
const LONG: u32 = 32;

/// An endpoint, as far as responses of it were counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Method and folded path, cut after 112 bytes; empty: all others together.
    pub name: Vec<u8>,
    /// Counts by their names.
    pub counts: Vec<(&'static str, u64)>,
    /// Responses by how their bodies were sent.
    pub paths: Vec<(&'static str, u64)>,
    /// Responses by the time that they took, excluding event streams: the upper bound of each bucket that is not empty,
    /// in seconds, ascending. A bucket does not include the responses of lower buckets.
    pub times: Vec<(String, u64)>,
}

/// The endpoints of one worker, or of all that have ended, for those who read.
#[derive(Clone, Copy)]
pub struct Endpoints {
    words: &'static [AtomicU64; WORDS],
}

impl Endpoints {
    /// In these words; `None`: they are not as many as [`WORDS`].
    pub fn of(words: &'static [AtomicU64]) -> Option<Self> {
        Some(Self { words: words.try_into().ok()? })
    }

    /// Sets everything to 0. Rows that were never written have no memory yet, and get none.
    pub fn clear(&self) {
        if self.words[USED].load(Ordering::Relaxed) > 0 {
            self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }

    /// The words of a row; those of the last one beyond it.
    #[inline]
    fn row(&self, row: usize) -> &'static [AtomicU64; ROW] {
        let (rows, _) = self.words[FIRST..].as_chunks();
        &rows[row.min(ROWS)]
    }

    /// Adds the counts of a worker that has ended. One process does that, on one thread. Where there are too many
    /// endpoints, those that have cost least are added to the others.
    pub fn add(&self, worker: Self) {
        if worker.words[USED].load(Ordering::Relaxed) == 0 {
            return;
        }
        self.words[USED].store(1, Ordering::Relaxed);
        for number in 0..=ROWS {
            let Some(row) = Guarded::of(worker.row(number)).read::<ROW>().filter(|row| row[COUNT] > 0) else {
                continue;
            };
            let into = if number == ROWS { ROWS } else { self.row_for(&row) };
            for (count, value) in self.row(into)[COUNT..].iter().zip(&row[COUNT..]) {
                count.fetch_add(*value, Ordering::Relaxed);
            }
        }
    }

    /// The row for the counts of a row that was read.
    fn row_for(&self, read: &[u64; ROW]) -> usize {
        let name = name_in(read);
        let mut least = (u64::MAX, ROWS);
        for number in 0..ROWS {
            let Some(row) = Guarded::of(self.row(number)).read::<ROW>() else { continue };
            if row[COUNT] > 0 && name_in(&row) == name {
                return number;
            }
            least = least.min((cost_in(&row), number));
        }
        let (cost, number) = least;
        if cost >= cost_in(read) {
            return ROWS;
        }
        self.give(number, &name);
        number
    }

    /// Gives a row to another endpoint. What it has counted is added to the others.
    fn give(&self, row: usize, name: &[u8]) {
        let (others, words) = (self.row(ROWS), self.row(row));
        let guarded = Guarded::of(words);
        guarded.change(|| {
            for (count, others) in words[COUNT..].iter().zip(&others[COUNT..]) {
                others.fetch_add(count.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            }
            guarded.store(LENGTH, name.len().min(8 * NAME_WORDS) as u64);
            guarded.store_text(NAME, NAME_WORDS, name);
        });
    }

    /// Those of which responses were counted.
    #[must_use]
    pub fn all(&self) -> Vec<Endpoint> {
        if self.words[USED].load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let rows = (0..=ROWS).filter_map(|row| Guarded::of(self.row(row)).read::<ROW>());
        rows.filter(|words| words[COUNT] > 0)
            .map(|words| Endpoint {
                name: name_in(&words),
                counts: COUNTS
                    .into_iter()
                    .chain(parts_of(PHASES.map(|phase| phase.name_ns)))
                    .zip(words[COUNT..PATH].iter().copied())
                    .collect(),
                paths: PATHS.iter().map(|path| path.name()).zip(words[PATH..TIME].iter().copied()).collect(),
                times: times_in(&words),
            })
            .collect()
    }
}

/// What belongs to the phases that are parts.
fn parts_of<T>(of_phases: [T; PHASES.len()]) -> impl Iterator<Item = T> {
    PHASES.iter().zip(of_phases).filter(|(phase, _)| phase.is_part).map(|(_, value)| value)
}

fn name_in(row: &[u64; ROW]) -> Vec<u8> {
    text_of(&row[NAME..COUNT], usize::try_from(row[LENGTH]).unwrap_or(usize::MAX))
}

fn times_in(row: &[u64; ROW]) -> Vec<(String, u64)> {
    let buckets = row[TIME..].iter().enumerate().filter(|(_, count)| **count > 0);
    buckets.map(|(bucket, count)| (time_bound((bucket * MERGED).min(TIMES - 1)), *count)).collect()
}

/// What the responses in a row have cost, in the unit of credits; 0: there are none.
fn cost_in(row: &[u64; ROW]) -> u64 {
    let [responses, application, streaming, writes] =
        [Count::Responses, Count::Application, Count::EventStream, Count::Writes]
            .map(|count| row[COUNT + count as usize]);
    responses.saturating_add(application.saturating_sub(streaming) >> 16).saturating_add(writes)
}

/// Counts responses by endpoint.
pub struct EndpointTable {
    endpoints: Endpoints,
    rows: Mutex<Box<Rows>>,
}

struct Rows {
    /// The key of the endpoint in each row; 0: none yet.
    keys: [u64; ROWS],
    credits: [u64; ROWS],
    /// Whose responses have made the process grow.
    attribution: Attribution,
    /// Keys of requests that were asked last: the hash of method and path, and the key. A hash says where it may stand.
    known: [(u64, u64); KNOWN],
}

impl EndpointTable {
    /// A table that counts in this memory.
    pub fn new(endpoints: Endpoints) -> Self {
        endpoints.clear();
        Self {
            endpoints,
            rows: Mutex::new(Box::new(Rows {
                keys: [0; ROWS],
                credits: [0; ROWS],
                attribution: Attribution::new(ROWS + 1),
                known: [(0, 0); KNOWN],
            })),
        }
    }

    /// Counts a response that the application has made. `is_slow`: see `recent.rs`.
    pub fn count(
        &self,
        (method, path): (&[u8], &[u8]),
        record: &Record,
        times: &Times,
        is_chunked: bool,
        is_slow: bool,
    ) {
        let path = &path[..path.len().min(LOOKED_AT)];
        let hash = hash_of(method, path);
        // Nanoseconds in units of 65 µs.
        let held = times.application + times.iterating;
        // An event stream pauses between events, as it should.
        let (delivery, streaming) = if record.is_event_stream { (0, held) } else { (times.iterating, 0) };
        let cost = 1 + ((held - streaming) >> 16) + u64::from(record.writes);
        let mut rows = lock(&self.rows);
        let key = rows.key(hash, method, path);
        let row = rows.find(key).unwrap_or_else(|| self.take(&mut rows, key, cost, || name_of(method, path)));
        if let Some(credit) = rows.credits.get_mut(row) {
            *credit = credit.saturating_add(cost);
        }
        rows.attribution.note(row);
        let words = self.endpoints.row(row);
        let add_to = |word: usize, value: u64| {
            let word = &words[word];
            word.store(word.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
        };
        let add = |count: Count, value: u64| add_to(COUNT + count as usize, value);
        add(Count::Responses, 1);
        add(Count::Application, held);
        add(Count::Delivery, delivery);
        add(Count::Blocks, record.blocks);
        add(Count::Writes, u64::from(record.writes));
        add(Count::BodyBytes, record.body_bytes);
        let is_well = record.status < 500 && record.ending == Ending::Complete && !record.has_left;
        if is_chunked || !is_well {
            add(Count::Chunked, u64::from(is_chunked));
            add(Count::Failed, u64::from(is_broken(record)));
            let has_gone = record.ending == Ending::ClientDisconnected || record.has_left;
            add(Count::Disconnected, u64::from(has_gone));
        }
        if record.is_event_stream {
            add(Count::EventStreams, 1);
            add(Count::EventStream, streaming);
        } else {
            add(Count::Total, times.total);
            add_to(TIME + time_bucket(times.total).div_ceil(MERGED), 1);
        }
        if is_slow {
            add(Count::Slow, 1);
        }
        for (part, nanos) in parts_of(times.all()).enumerate() {
            if nanos > 0 {
                add_to(PART + part, nanos);
            }
        }
        add_to(PATH + record.path as usize, 1);
    }

    /// Divides the growth of the process among the endpoints whose responses have ended since the last call. `bytes`:
    /// negative if it has shrunk.
    pub(crate) fn note_growth(&self, bytes: i64) {
        for (row, share) in lock(&self.rows).attribution.divide(bytes as f64) {
            let words = self.endpoints.row(row);
            for (count, change) in [
                (Count::Grown, share.bytes.cast_unsigned()),
                (Count::GrownResponses, share.responses),
                (Count::GrownVariance, share.variance.cast_unsigned()),
            ] {
                words[COUNT + count as usize].fetch_add(change, Ordering::Relaxed);
            }
        }
    }

    /// The row of an endpoint that had none; that of the others, as long as it has cost too little for one.
    #[cold]
    fn take(&self, rows: &mut Rows, key: u64, cost: u64, name: impl FnOnce() -> Vec<u8>) -> usize {
        self.endpoints.words[USED].store(1, Ordering::Relaxed);
        let Some(row) = rows.reach(key).min_by_key(|row| (rows.keys[*row] != 0, rows.credits[*row])) else {
            return ROWS;
        };
        if rows.credits[row] >= cost {
            rows.credits[row] -= cost;
            return ROWS;
        }
        self.endpoints.give(row, &name());
        (rows.keys[row], rows.credits[row]) = (key, 0);
        rows.attribution.forget(row);
        row
    }
}

impl Rows {
    fn reach(&self, key: u64) -> impl Iterator<Item = usize> + use<> {
        (0..REACH).map(move |step| (key as usize).wrapping_add(step) % ROWS)
    }

    /// The key of a request with this hash.
    #[inline]
    fn key(&mut self, hash: u64, method: &[u8], path: &[u8]) -> u64 {
        let known = &mut self.known[hash as usize % KNOWN];
        if known.0 != hash {
            *known = (hash, key_of(method, path));
        }
        known.1
    }

    #[inline]
    fn find(&self, key: u64) -> Option<usize> {
        self.reach(key).find(|row| self.keys[*row] == key)
    }
}

// Folding. A part ends before a slash and before a point.

const DELIMITER: u8 = 1;
const DIGIT: u8 = 2;
/// A letter of a hexadecimal number.
const HEX: u8 = 4;
/// What stands between digits.
const MARK: u8 = 8;
const OTHER: u8 = 16;

const KINDS: [u8; 256] = {
    let mut kinds = [OTHER; 256];
    let mut byte = 0;
    while byte < 256 {
        kinds[byte] = match byte as u8 {
            b'/' | b'.' => DELIMITER,
            b'0'..=b'9' => DIGIT,
            b'a'..=b'f' | b'A'..=b'F' => HEX,
            b'-' | b'_' | b':' | b',' => MARK,
            _ => OTHER,
        };
        byte += 1;
    }
    kinds
};

/// What is known of a part of a path.
#[derive(Clone, Copy, Default)]
struct PathPart {
    kinds: u8,
    length: u32,
    hash: u64,
}

impl PathPart {
    #[inline]
    fn add(&mut self, byte: u8, kind: u8) {
        self.kinds |= kind;
        self.length += 1;
        self.hash = mix(self.hash, u64::from(byte));
    }

    /// True for numbers, dates, UUIDs and other long hexadecimal numbers, and for what is very long.
    #[inline]
    fn varies(self) -> bool {
        let is_number = self.kinds & (OTHER | DIGIT) == DIGIT && (self.kinds & HEX == 0 || self.length >= LONG_NUMBER);
        is_number || self.length > LONG
    }

    #[inline]
    fn key(self) -> u64 {
        if self.varies() { 1 } else { self.hash }
    }
}

#[inline]
fn mix(hash: u64, value: u64) -> u64 {
    (hash.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The hash of a request, which is not 0: of all its bytes, unlike the key of its endpoint.
#[inline]
fn hash_of(method: &[u8], path: &[u8]) -> u64 {
    let hash = mix(words_of(1, method), path.len() as u64);
    let hash = words_of(hash, path);
    (hash ^ hash >> 32).max(1)
}

#[inline]
fn words_of(hash: u64, text: &[u8]) -> u64 {
    let (words, rest) = text.as_chunks::<8>();
    let hash = words.iter().fold(hash, |hash, word| mix(hash, u64::from_ne_bytes(*word)));
    let last = match (rest.first_chunk::<4>(), rest.last_chunk::<4>(), rest) {
        // These overlap, and have every byte.
        (Some(first), Some(last), _) => {
            u64::from(u32::from_ne_bytes(*first)) << 32 | u64::from(u32::from_ne_bytes(*last))
        }
        (_, _, [first, .., last]) => u64::from(*first) << 16 | u64::from(rest[rest.len() / 2]) << 8 | u64::from(*last),
        (_, _, [only]) => u64::from(*only),
        _ => return hash,
    };
    mix(hash, last)
}

/// The key of an endpoint, which is not 0: endpoints whose names differ differ in it.
#[inline(never)]
fn key_of(method: &[u8], path: &[u8]) -> u64 {
    let mut key = method.iter().fold(1, |key, byte| mix(key, u64::from(*byte)));
    let mut part = PathPart::default();
    for byte in path {
        let kind = KINDS[usize::from(*byte)];
        if kind == DELIMITER {
            key = mix(mix(key, part.key()), u64::from(*byte));
            part = PathPart::default();
        } else {
            part.add(*byte, kind);
        }
    }
    key = mix(key, part.key());
    (key ^ key >> 32).max(1)
}

/// The name of an endpoint: the method, and the path with `*` for parts that vary.
#[must_use]
pub fn name_of(method: &[u8], path: &[u8]) -> Vec<u8> {
    let mut name = method.to_vec();
    name.push(b' ');
    for piece in path.split_inclusive(|byte| KINDS[usize::from(*byte)] == DELIMITER) {
        let (bytes, delimiter) = match piece.split_last() {
            Some((last, before)) if KINDS[usize::from(*last)] == DELIMITER => (before, Some(*last)),
            _ => (piece, None),
        };
        let mut part = PathPart::default();
        bytes.iter().for_each(|byte| part.add(*byte, KINDS[usize::from(*byte)]));
        name.extend_from_slice(if part.varies() { b"*" } else { bytes });
        name.extend(delimiter);
    }
    name
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;
    use std::time::Duration;

    use tailrace_os::clock::now;
    use tailrace_os::shared_memory::shared_words;

    use super::{EndpointTable, Endpoints, ROWS, WORDS, hash_of, key_of, name_of};
    use crate::record::{Ending, Path, Record, Times};

    fn none() -> (Endpoints, EndpointTable) {
        let endpoints = Endpoints::of(shared_words(WORDS).unwrap()).unwrap();
        (endpoints, EndpointTable::new(endpoints))
    }

    fn record() -> Record {
        Record { status: 200, writes: 1, path: Path::OneWrite, ending: Ending::Complete, ..Record::new(now()) }
    }

    fn times(iterating: Duration) -> Times {
        Times { iterating: u64::try_from(iterating.as_nanos()).unwrap(), ..Times::default() }
    }

    fn ask(table: &EndpointTable, path: &str, iterating: Duration) {
        table.count((b"GET", path.as_bytes()), &record(), &times(iterating), false, false);
    }

    /// Responses by endpoint.
    fn shown(endpoints: Endpoints) -> BTreeMap<String, u64> {
        let named = |name: Vec<u8>| String::from_utf8(name).unwrap();
        endpoints.all().into_iter().map(|endpoint| (named(endpoint.name), endpoint.counts[0].1)).collect()
    }

    #[test]
    fn parts_that_vary_are_folded() {
        let uuid = "0d6f2c3e-8a4b-4c1d-9e2f-1a2b3c4d5e6f";
        let cases = [
            ("/".to_owned(), "/"),
            ("*".to_owned(), "*"),
            ("/products/1483".to_owned(), "/products/*"),
            ("/products/1483/reviews/7".to_owned(), "/products/*/reviews/*"),
            (format!("/orders/{uuid}"), "/orders/*"),
            ("/invoices/2026-11-22.pdf".to_owned(), "/invoices/*.pdf"),
            ("/app.3f9ac1d2.js".to_owned(), "/app.*.js"),
            ("/commit/deadbeef".to_owned(), "/commit/deadbeef"),
            ("/commit/deadbee1".to_owned(), "/commit/*"),
            ("/api/v2/feed".to_owned(), "/api/v2/feed"),
            ("/a/a1/cafe/b52".to_owned(), "/a/a1/cafe/b52"),
            (format!("/t/{}", "x".repeat(33)), "/t/*"),
            (format!("/t/{}", "x".repeat(32)), "/t/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"),
            ("//".to_owned(), "//"),
        ];
        for (path, folded) in cases {
            assert_eq!(name_of(b"GET", path.as_bytes()), [b"GET ", folded.as_bytes()].concat(), "{path}");
        }
    }

    #[test]
    fn endpoints_have_one_key_if_their_names_are_equal_and_else_two() {
        let paths =
            ["/", "", "*", "/a", "/a/", "/1", "/22", "/1/", "/a.1", "/a.2", "/a/1", "/a/b", "/b/a", "//a", "/*"];
        for method in ["GET", "POST"] {
            for one in paths {
                for other in paths {
                    let names = name_of(method.as_bytes(), one.as_bytes()) == name_of(b"GET", other.as_bytes());
                    let keys = key_of(method.as_bytes(), one.as_bytes()) == key_of(b"GET", other.as_bytes());
                    // A folded part is another one than a star.
                    if one != "/*" && other != "/*" {
                        assert_eq!(names, keys, "{method} {one}, GET {other}");
                    }
                }
            }
        }
    }

    #[test]
    fn requests_that_differ_in_a_byte_have_hashes_of_their_own() {
        let text = b"/abcdefghijklmnopqrstuvwxyz";
        let mut hashes = std::collections::HashSet::new();
        let mut count = 0;
        for length in 0..text.len() {
            for change in 0..=length {
                let mut path = text[..length].to_vec();
                if let Some(byte) = path.get_mut(change) {
                    *byte = b'!';
                }
                hashes.extend([hash_of(b"GET", &path), hash_of(b"PUT", &path)]);
                count += 2;
            }
        }
        assert_eq!(hashes.len(), count);
        assert!(!hashes.contains(&0));
    }

    #[test]
    fn the_counts_of_workers_that_have_ended_are_added() {
        let (ended, _) = none();
        for (paths, longer) in [(["/a/longer/name", "/b"], 0), (["/b", "/c"], 1)] {
            let (endpoints, table) = none();
            for path in paths {
                ask(&table, path, Duration::from_millis(longer));
            }
            ended.add(endpoints);
        }
        let expected = [("GET /a/longer/name", 1), ("GET /b", 2), ("GET /c", 1)];
        assert_eq!(shown(ended), expected.map(|(name, count)| (name.to_owned(), count)).into());
        let b = ended.all().into_iter().find(|endpoint| endpoint.name == b"GET /b").unwrap();
        let wanted = [("application_ns", 1_000_000), ("delivery_ns", 1_000_000), ("blocks", 0), ("writes", 2)];
        assert_eq!(b.counts[1..5], wanted);
        assert_eq!(b.paths.iter().map(|(_, count)| count).sum::<u64>(), 2);
        assert_eq!(b.times.iter().map(|(_, count)| count).sum::<u64>(), 2);
    }

    #[test]
    fn of_more_endpoints_of_ended_workers_than_rows_those_that_cost_most_keep_their_names() {
        let (ended, _) = none();
        for (worker, cost) in [("cheap", Duration::ZERO), ("dear", Duration::from_millis(1)), ("late", Duration::ZERO)]
        {
            let (endpoints, table) = none();
            // Names that have rows of their own in their worker, and names that are counted with the others there.
            for number in 0..ROWS {
                ask(&table, &format!("/{worker}/x{number}"), cost);
            }
            ended.add(endpoints);
        }
        let shown = shown(ended);
        let named = |worker: &str| shown.keys().filter(|name| name.contains(worker)).count();
        assert_eq!(shown.values().sum::<u64>(), 3 * ROWS as u64);
        assert_eq!((shown.len(), named("late")), (ROWS + 1, 0));
        assert!(named("dear") > named("cheap"), "{shown:?}");
    }

    #[test]
    fn a_response_is_counted_by_what_its_record_says() {
        let (endpoints, table) = none();
        let times = Times {
            proxied: 1,
            queued: 5,
            application: 30,
            iterating: 12,
            blocked: 4,
            cpu: 20,
            interpreter: 3,
            gc: 2,
            total: 60,
        };
        let failed = Record {
            status: 200,
            body_bytes: 700,
            blocks: 90,
            writes: 3,
            path: Path::Coalesced,
            ending: Ending::Broken,
            ..Record::new(now())
        };
        table.count((b"GET", b"/export/7"), &failed, &times, true, true);
        let gone = Record { ending: Ending::ClientDisconnected, path: Path::Direct, is_event_stream: true, ..failed };
        table.count((b"GET", b"/export/8"), &gone, &times, true, true);
        table.count((b"GET", b"/export/9"), &Record { status: 503, ..record() }, &Times::default(), false, false);
        // The response was sent to a client that had closed its connection.
        table.count((b"GET", b"/left"), &Record { has_left: true, ..record() }, &Times::default(), false, false);
        let (left, all): (Vec<_>, Vec<_>) = endpoints.all().into_iter().partition(|found| found.name == b"GET /left");
        assert_eq!(left[0].counts[8], ("client_disconnected", 1));
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].name, b"GET /export/*");
        let counts = [
            ("responses", 3),
            ("application_ns", 84),
            ("delivery_ns", 12),
            ("blocks", 180),
            ("writes", 7),
            ("body_bytes", 1400),
            ("chunked", 2),
            ("failed", 2),
            ("client_disconnected", 1),
            ("event_streams", 1),
            ("event_stream_ns", 42),
            ("total_ns", 60),
            ("slow", 2),
            ("grown_bytes", 0),
            ("grown_responses", 0),
            ("grown_variance", 0),
            ("blocked_ns", 8),
            ("cpu_ns", 40),
            ("interpreter_ns", 6),
            ("gc_ns", 4),
        ];
        assert_eq!(all[0].counts, counts);
        assert_eq!(all[0].times, [("7.62939453125e-6".to_owned(), 2)]);
        let used: Vec<_> = all[0].paths.iter().filter(|(_, count)| *count != 0).copied().collect();
        assert_eq!(used, [("one-write", 1), ("direct", 1), ("coalesced", 1)]);
        endpoints.clear();
        assert_eq!(endpoints.all(), []);
    }

    #[test]
    fn times_are_in_buckets_whose_bound_is_at_most_an_eighth_above_them() {
        for nanos in [8_000, 61_000, 1_000_000, 1_234_567, 99_000_000, 127_000_000_000] {
            let (endpoints, table) = none();
            table.count((b"GET", b"/"), &record(), &Times { total: nanos, ..Times::default() }, false, false);
            let times = endpoints.all()[0].times.clone();
            let (bound, seconds) = (times[0].0.parse::<f64>().unwrap(), nanos as f64 / 1e9);
            assert!((seconds..=seconds * 1.125).contains(&bound), "{seconds} s is in the bucket to {bound} s");
            assert_eq!((times.len(), times[0].1), (1, 1));
        }
        let (endpoints, table) = none();
        let long = Times { total: 200_000_000_000, ..Times::default() };
        table.count((b"GET", b"/"), &record(), &long, false, false);
        assert_eq!(endpoints.all()[0].times, [("+Inf".to_owned(), 1)]);
    }

    #[test]
    fn ever_new_paths_are_counted_together_and_displace_no_endpoint_that_costs_more() {
        let (endpoints, table) = none();
        let heavy = ["/report", "/export", "/search"];
        for path in heavy {
            ask(&table, path, Duration::from_secs(5));
        }
        for number in 0..20_000 {
            ask(&table, &format!("/scan-x{number:x}x"), Duration::ZERO);
        }
        let shown = shown(endpoints);
        for path in heavy {
            assert_eq!(shown.get(&format!("GET {path}")), Some(&1));
        }
        assert!(shown.len() <= ROWS + 1);
        assert_eq!(shown.values().sum::<u64>(), 20_003);
        assert!(shown[""] > 19_000);
    }

    #[test]
    fn an_endpoint_that_comes_late_and_costs_much_gets_a_row() {
        let (endpoints, table) = none();
        for number in 0..5_000 {
            ask(&table, &format!("/early-x{number:x}x"), Duration::ZERO);
        }
        ask(&table, "/late", Duration::from_secs(1));
        assert_eq!(shown(endpoints).get("GET /late"), Some(&1));
    }

    #[test]
    fn growth_without_responses_belongs_to_nobody() {
        let (endpoints, table) = none();
        table.note_growth(1 << 30);
        ask(&table, "/a", Duration::ZERO);
        table.note_growth(-5);
        table.note_growth(7);
        let counts = &endpoints.all()[0].counts;
        assert!(counts.contains(&("grown_bytes", 0)) && counts.contains(&("grown_responses", 1)));
    }

    #[test]
    fn a_long_name_is_cut() {
        let (endpoints, table) = none();
        ask(&table, &"/ab".repeat(100), Duration::ZERO);
        assert_eq!(endpoints.all()[0].name.len(), 112);
    }
}
