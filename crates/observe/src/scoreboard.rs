//! What each worker process is doing, in memory that it shares with the master: counters, and for each thread the
//! request that it runs.
//!
//! The master makes the scoreboard before it forks. It writes nothing in it but the order to drain. Each worker writes
//! its own worker slot: counters, and a runner slot for each thread. A worker may be killed at any moment, so there is
//! no lock: a counter is one word, and the content of a runner slot is valid if its sequence number is even and the
//! same before and after the read. A runner slot is written by the thread that holds it.
//!
//! A worker slot has, in this order: counters and gauges, the counts of finished responses, those of each endpoint, the
//! last slow and broken ones, runner slots. The memory is anonymous and inherited by fork alone, so its processes agree
//! on the layout: after SIGUSR2, the new master, perhaps of another version, makes its own.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tailrace_http::identity::{Traced, id_text};
use tailrace_http::query::QueryMasking;
use tailrace_os::clock::{millis, monotonic_nanos};
use tailrace_os::shared_memory::shared_words;

use crate::deliveries;
use crate::deliveries::DeliveryCounts;
use crate::endpoints;
use crate::endpoints::Endpoints;
use crate::guarded::{Guarded, ID_WORDS, TRACE_WORDS, lengths, lengths_of, peer_of, text_of, trace_of, word_of};
use crate::metrics::Metric;
use crate::recent;
use crate::recent::Recent;
use crate::shown_request::ShownRequest;
use crate::traces::Traces;

/// Words of [`Metric`] and of [`Cell`] at the start of a worker slot.
const METRICS: usize = Metric::ALL.len();
const COUNTERS: usize = METRICS + Cell::LAST as usize + 1;
/// Words of a worker slot before its runner slots.
const HEAD: usize = COUNTERS + deliveries::WORDS + endpoints::WORDS + recent::WORDS;
/// Where the counts of each endpoint and the last responses begin.
const ENDPOINTS: usize = COUNTERS + deliveries::WORDS;
const RECENT: usize = ENDPOINTS + endpoints::WORDS;
/// Words of a slot.
const SLOT: usize = SLOT_TRACE + TRACE_WORDS;
/// Least number of slots beyond `--threads`, for the threads that replace stuck ones.
const SPARE: usize = 16;
/// Words of a slot that hold the start of the target.
const TARGET: usize = 22;

// The words of a slot; the first is its sequence number.
const SLOT_SERIAL: usize = 1;
const SLOT_SINCE: usize = 2;
const SLOT_THREAD: usize = 3;
const SLOT_PEER: usize = 4;
const SLOT_METHOD: usize = 7;
/// The length of the target, that of the id, and [`SENDING`].
const SLOT_LENGTH: usize = 9;
const SLOT_TARGET: usize = 10;
const SLOT_ID: usize = SLOT_TARGET + TARGET;
const SLOT_TRACE: usize = SLOT_ID + ID_WORDS;
/// The bit of [`SLOT_LENGTH`] that is set while the runner waits for its client.
const SENDING: u64 = 1 << 63;

/// What a worker slot says of a worker beside its [`Metric`]s, a word each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Cell {
    /// The process.
    Pid,
    /// When the thread that polls last looked for events, in nanoseconds of the monotonic clock.
    Heartbeat,
    /// See [`WorkerSlot::stuck_since`], which reads it.
    StuckSince,
    /// The master's order to drain: the milliseconds that requests in flight may still take, plus one; 0: no order.
    Drain,
    /// How many slots threads have ever taken; those beyond were never written.
    Slots,
    /// See [`WorkerSlot::asked_at`], which reads it.
    AskedAt,
    /// Threads that wait for events and handle them.
    Leading,
    /// Threads that look whether the leading one comes back from the application.
    Watching,
    /// Threads that wait to be needed.
    Parked,
    /// Threads that wait for the interpreter in order to run a request.
    Entering,
    /// Threads that run the application, without those that wait for a client.
    Working,
    /// Threads that wait for a client that does not accept their response.
    Sending,
    /// Connections between two requests, or before the first.
    Idle,
    /// Connections of which a request is being received.
    Receiving,
    /// Connections of which a request is queued or runs.
    Responding,
    /// Connections to which the rest of a complete response is being sent.
    Flushing,
    /// Connections that close once the client has had time to read the response.
    Closing,
}

impl Cell {
    const LAST: Self = Self::Closing;

    /// Threads by their state, with its name.
    pub const THREADS: [(Self, &'static str); 6] = [
        (Self::Leading, "leading"),
        (Self::Watching, "watching"),
        (Self::Parked, "parked"),
        (Self::Entering, "waiting"),
        (Self::Working, "running"),
        (Self::Sending, "sending"),
    ];

    /// Connections by their state, with its name.
    pub(crate) const CONNECTIONS: [(Self, &'static str); 5] = [
        (Self::Idle, "idle"),
        (Self::Receiving, "receiving"),
        (Self::Responding, "responding"),
        (Self::Flushing, "sending"),
        (Self::Closing, "closing"),
    ];
}

/// How many threads a server with these `--threads` may have at once, with those that replace stuck ones.
pub fn most_threads(threads: usize) -> usize {
    threads.saturating_add(1).saturating_add(threads.max(SPARE))
}

/// The time now, by the clock of [`InFlight::since`].
#[must_use]
pub fn now() -> u64 {
    monotonic_nanos()
}

/// A request that a thread runs, as the scoreboard shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// Number of the request in the order of the worker's requests.
    pub serial: u64,
    /// When it began, in nanoseconds of the monotonic clock.
    pub since: u64,
    /// The kernel's number of the thread.
    pub thread: u64,
    /// The client; `None` on a UNIX socket.
    pub peer: Option<SocketAddr>,
    /// The method, cut after 16 bytes.
    pub method: Vec<u8>,
    /// The target, cut after 176 bytes.
    pub target: Vec<u8>,
    /// Its id; empty: it has none.
    pub id: Vec<u8>,
    /// Its place in a trace. `None`: no spans are made of it.
    pub traced: Option<Traced>,
    /// Its runner waits until the client has accepted more of the response.
    pub is_sending: bool,
}

impl InFlight {
    /// Method and target, printable, without the values that `masking` hides; then the id, if the request has one.
    pub fn line(&self, masking: QueryMasking) -> String {
        let target = masking.shown(&self.target);
        format!("{} {}{}", self.method.escape_ascii(), target.escape_ascii(), id_text(&self.id, None))
    }
}

/// The slots of all workers.
#[derive(Clone, Copy)]
pub struct Scoreboard {
    words: &'static [AtomicU64],
    slots: usize,
    traces: Traces,
}

impl Scoreboard {
    /// A scoreboard for `workers` workers of `threads` threads each. Its memory is shared with processes that are forked
    /// later, and is never freed.
    ///
    /// # Errors
    /// No memory.
    pub fn new(workers: usize, threads: usize) -> io::Result<Self> {
        let slots = most_threads(threads);
        let words = slots.saturating_mul(SLOT).saturating_add(HEAD).saturating_mul(workers);
        Ok(Self { words: shared_words(words)?, slots, traces: Traces::new()? })
    }

    /// The traced responses of all workers.
    #[must_use]
    pub fn traces(&self) -> Traces {
        self.traces
    }

    /// The slot of one worker; `None` beyond the last.
    #[must_use]
    pub fn worker_slot(&self, number: usize) -> Option<WorkerSlot> {
        let length = HEAD + self.slots * SLOT;
        let words = self.words.get(number.checked_mul(length)?..)?.get(..length)?;
        Some(WorkerSlot {
            words,
            deliveries: DeliveryCounts::of(&words[COUNTERS..ENDPOINTS])?,
            endpoints: Endpoints::of(&words[ENDPOINTS..RECENT])?,
            recent: Recent::of(&words[RECENT..HEAD])?,
            number,
            board: *self,
        })
    }
}

/// The slot of one worker.
#[derive(Clone, Copy)]
pub struct WorkerSlot {
    words: &'static [AtomicU64],
    deliveries: DeliveryCounts,
    endpoints: Endpoints,
    recent: Recent,
    number: usize,
    board: Scoreboard,
}

impl WorkerSlot {
    /// Sets everything to 0, for the next worker.
    pub fn clear(&self) {
        // Not the slots that no thread has written: they have no memory yet, and those of thousands of greenlets would
        // take much.
        for word in self.words[HEAD..HEAD + self.slots() * SLOT].iter().chain(&self.words[..ENDPOINTS]) {
            word.store(0, Ordering::Relaxed);
        }
        self.endpoints.clear();
        self.recent.clear();
    }

    /// The traced responses of all workers.
    pub fn traces(&self) -> Traces {
        self.board.traces
    }

    /// The number of this slot on the scoreboard.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Slots that threads have ever taken.
    fn slots(&self) -> usize {
        (self.cell(Cell::Slots) as usize).min(self.board.slots)
    }

    /// True when this is the only worker slot: no master reads it.
    pub fn is_alone(&self) -> bool {
        self.words.len() == self.board.words.len()
    }

    /// The value of a counter or a gauge.
    #[must_use]
    pub fn get(&self, metric: Metric) -> u64 {
        self.words[metric as usize].load(Ordering::Relaxed)
    }

    /// Sets the value of a counter or a gauge.
    pub fn set(&self, metric: Metric, value: u64) {
        self.words[metric as usize].store(value, Ordering::Relaxed);
    }

    /// The value of a cell.
    pub fn cell(&self, cell: Cell) -> u64 {
        self.words[METRICS + cell as usize].load(Ordering::Relaxed)
    }

    /// Sets the value of a cell.
    pub fn set_cell(&self, cell: Cell, value: u64) {
        self.words[METRICS + cell as usize].store(value, Ordering::Relaxed);
    }

    /// The last heartbeat, in nanoseconds of the monotonic clock; 0: there was none.
    #[must_use]
    pub fn heartbeat(&self) -> u64 {
        self.cell(Cell::Heartbeat)
    }

    /// Threads and connections by their state: the group, the name of the state, the number.
    pub fn states(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        let threads = Cell::THREADS.map(|state| ("threads", state));
        let connections = Cell::CONNECTIONS.map(|state| ("connections", state));
        threads.into_iter().chain(connections).map(|(group, (cell, name))| (group, name, self.cell(cell)))
    }

    /// The counts of its finished responses.
    #[must_use]
    pub fn deliveries(&self) -> DeliveryCounts {
        self.deliveries
    }

    /// The counts of its responses by endpoint.
    #[must_use]
    pub fn endpoints(&self) -> Endpoints {
        self.endpoints
    }

    /// Its last slow and its last broken responses.
    #[must_use]
    pub fn recent(&self) -> Recent {
        self.recent
    }

    /// Keeps the last responses of a worker that has ended, and adds what its responses have cost by endpoint, if
    /// `with_endpoints`. This is the worker slot of all that have ended, which no worker has. `number`: of the worker.
    /// Thread: one of the master.
    pub fn keep(&self, worker: &Self, number: u64, with_endpoints: bool) {
        self.recent.keep(worker.recent, number, worker.cell(Cell::Pid));
        if with_endpoints {
            self.endpoints.add(worker.endpoints);
        }
    }

    /// Sets the counts of its responses by endpoint to 0.
    pub fn forget_endpoints(&self) {
        self.endpoints.clear();
    }

    /// Orders the worker to drain, for `graceful` at most. The worker does so even while a request holds its
    /// interpreter.
    pub fn order_drain(&self, graceful: Duration) {
        self.set_cell(Cell::Drain, millis(graceful).saturating_add(1));
    }

    /// The master's order to drain, if there is one.
    pub fn drain_order(&self) -> Option<Duration> {
        self.cell(Cell::Drain).checked_sub(1).map(Duration::from_millis)
    }

    /// True when the worker has clearly more than its share of the connections of all that serve.
    pub fn has_more_than_its_share(&self) -> bool {
        let mine = self.get(Metric::Connections);
        let others = (0..).map_while(|number| self.board.worker_slot(number));
        let (workers, connections) = others
            .filter(|other| other.cell(Cell::Pid) != 0 && other.cell(Cell::Drain) == 0)
            .fold((0, 0), |(workers, sum), other| (workers + 1, sum + other.get(Metric::Connections)));
        workers > 1 && mine * workers > connections + connections / 4 + workers
    }

    /// A thread's slot; `None` beyond the last.
    pub fn slot(&self, number: usize) -> Option<RunnerSlot> {
        let words = self.words.get(HEAD..)?.get(number.checked_mul(SLOT)?..)?.get(..SLOT)?;
        Some(RunnerSlot { words })
    }

    /// Gives a slot to a thread; `thread` is the kernel's number of it.
    pub fn take_slot(&self, number: usize, thread: u64) {
        if let Some(slot) = self.slot(number) {
            slot.words().store(SLOT_THREAD, thread);
            self.words[METRICS + Cell::Slots as usize].fetch_max(number as u64 + 1, Ordering::Relaxed);
        }
    }

    /// Since when a thread has been in a request whose deadline has passed, on the clock that all processes share.
    #[must_use]
    pub fn stuck_since(&self) -> Option<u64> {
        self.cell(Cell::StuckSince).checked_sub(1)
    }

    /// See [`Self::stuck_since`].
    pub fn set_stuck_since(&self, since: Option<u64>) {
        self.set_cell(Cell::StuckSince, since.map_or(0, |since| since.saturating_add(1)));
    }

    /// Since when the server has waited for an answer of the interpreter, on the clock that all processes share: a
    /// thread holds it. `None`: it does not wait.
    #[must_use]
    pub fn asked_at(&self) -> Option<u64> {
        self.cell(Cell::AskedAt).checked_sub(1)
    }

    /// See [`Self::asked_at`].
    pub fn set_asked_at(&self, at: Option<u64>) {
        self.set_cell(Cell::AskedAt, at.map_or(0, |at| at.saturating_add(1)));
    }

    /// The requests that threads run, or ran when the worker died.
    #[must_use]
    pub fn in_flight(&self) -> Vec<InFlight> {
        self.in_flight_by_slot().map(|(_, request)| request).collect()
    }

    /// The requests that run, each with the number of its slot.
    pub fn in_flight_by_slot(&self) -> impl Iterator<Item = (usize, InFlight)> + '_ {
        let slots = (0..self.slots()).map_while(|number| Some((number, self.slot(number)?)));
        slots.filter_map(|(number, slot)| Some((number, slot.read()?)))
    }
}

/// What one thread runs.
#[derive(Clone, Copy)]
pub struct RunnerSlot {
    words: &'static [AtomicU64],
}

impl RunnerSlot {
    fn words(&self) -> Guarded {
        Guarded::of(self.words)
    }

    /// The thread begins a request.
    pub fn begin(&self, serial: u64, since: u64, request: &ShownRequest<'_>) {
        let (words, target, id) = (self.words(), request.target(), request.id);
        words.change(|| {
            words.store(SLOT_SERIAL, serial);
            words.store(SLOT_SINCE, since);
            words.store_peer(SLOT_PEER, request.peer.client);
            words.store_text(SLOT_METHOD, SLOT_LENGTH - SLOT_METHOD, request.method());
            words.store(SLOT_LENGTH, lengths(target, id));
            words.store_text(SLOT_TARGET, TARGET, target);
            if !id.is_empty() {
                words.store_text(SLOT_ID, ID_WORDS, id);
            }
            words.store_trace(SLOT_TRACE, request.traced);
        });
    }

    /// The runner waits for its client, until the result is dropped. One word, so it needs no sequence number.
    pub fn sending(self) -> Sending {
        self.words().store(SLOT_LENGTH, self.words().load(SLOT_LENGTH) | SENDING);
        Sending(self)
    }

    /// The thread has ended its request.
    pub fn end(&self) {
        self.words().change(|| self.words().store(SLOT_SERIAL, 0));
    }

    /// The request that it runs.
    pub fn read(&self) -> Option<InFlight> {
        request_of(&self.words().read()?)
    }
}

/// Shows that a runner waits for its client, until this is dropped. Thread: the runner's.
pub struct Sending(RunnerSlot);

impl Drop for Sending {
    fn drop(&mut self) {
        let words = self.0.words();
        words.store(SLOT_LENGTH, words.load(SLOT_LENGTH) & !SENDING);
    }
}

/// The request in the words of a slot.
fn request_of(words: &[u64; SLOT]) -> Option<InFlight> {
    let serial = Some(words[SLOT_SERIAL]).filter(|serial| *serial != 0)?;
    let (length, id_length) = lengths_of(words[SLOT_LENGTH] & !SENDING);
    Some(InFlight {
        serial,
        since: words[SLOT_SINCE],
        thread: words[SLOT_THREAD],
        peer: peer_of(&words[SLOT_PEER..SLOT_METHOD]),
        // No method has a NUL.
        method: word_of(&words[SLOT_METHOD..SLOT_LENGTH]),
        target: text_of(&words[SLOT_TARGET..SLOT_ID], length),
        id: text_of(&words[SLOT_ID..SLOT_TRACE], id_length),
        traced: trace_of(&words[SLOT_TRACE..]),
        is_sending: words[SLOT_LENGTH] & SENDING != 0,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::convert::Infallible;

    use tailrace_http::identity::Traced;
    use tailrace_http::query::QueryMasking;
    use tailrace_http::request_head::Span;
    use tailrace_os::clock;

    use super::{Cell, InFlight, Scoreboard, WorkerSlot, most_threads};
    use crate::metrics::Metric;
    use crate::record::Record;
    use crate::shown_request::testing::Request;

    fn request(method: &[u8], target: &[u8], id: &[u8]) -> Request {
        let mut request = Request { bytes: [method, target, id].concat(), ..Request::default() };
        let [start, end] = [method.len() as u32, (method.len() + target.len()) as u32];
        request.head.method = Span { start: 0, end: start };
        request.head.target = Span { start, end };
        request.id = Span { start: end, end: request.bytes.len() as u32 };
        request
    }

    #[test]
    fn a_request_is_shown_until_it_ends() {
        let board = Scoreboard::new(2, 4).unwrap();
        let worker_slot = board.worker_slot(1).unwrap();
        let slot = worker_slot.slot(3).unwrap();
        worker_slot.take_slot(3, 77);
        let peer = "[2001:db8::1]:8080".parse().unwrap();
        let mut shown = request(b"GET", b"/a?b", b"abc");
        shown.peer.client = Some(peer);
        shown.traced = Some(Traced { trace: 1 << 64, parent: 0, span: 2, application: 3 });
        slot.begin(5, 1_000, &shown.shown());
        let expected = InFlight {
            serial: 5,
            since: 1_000,
            thread: 77,
            peer: Some(peer),
            method: b"GET".to_vec(),
            target: b"/a?b".to_vec(),
            id: b"abc".to_vec(),
            traced: shown.traced,
            is_sending: false,
        };
        assert_eq!(worker_slot.in_flight(), std::slice::from_ref(&expected));
        assert_eq!(expected.line(QueryMasking::default()), "GET /a?b (id abc)");
        let sending = slot.sending();
        assert_eq!(worker_slot.in_flight(), [InFlight { is_sending: true, ..expected.clone() }]);
        drop(sending);
        assert_eq!(worker_slot.in_flight(), [expected]);
        assert_eq!(board.worker_slot(0).unwrap().in_flight(), []);
        slot.end();
        assert_eq!(worker_slot.in_flight(), []);
    }

    #[test]
    fn a_long_method_or_target_is_cut_and_leaves_no_bytes_in_the_next_request() {
        let worker_slot = Scoreboard::new(1, 1).unwrap().worker_slot(0).unwrap();
        worker_slot.take_slot(0, 1);
        let slot = worker_slot.slot(0).unwrap();
        let mut shown = request(b"A-VERY-LONG-METHOD-NAME", &[b'x'; 1000], &[b'y'; 128]);
        shown.traced = Some(Traced { trace: 1, parent: 2, span: 3, application: 4 });
        slot.begin(1, 0, &shown.shown());
        let long = worker_slot.in_flight().remove(0);
        assert_eq!((long.method.as_slice(), long.target.len()), (b"A-VERY-LONG-METH".as_slice(), 176));
        assert_eq!(long.id, [b'y'; 128]);
        slot.begin(2, 0, &request(b"GET", b"/", b"").shown());
        let short = worker_slot.in_flight().remove(0);
        assert_eq!((short.method.as_slice(), short.target.as_slice()), (b"GET".as_slice(), b"/".as_slice()));
        assert!(short.id.is_empty() && short.traced.is_none());
        slot.begin(3, 0, &request(b"OPTIONSS", b"*", b"").shown());
        assert_eq!(worker_slot.in_flight().remove(0).method, b"OPTIONSS");
    }

    #[test]
    fn a_read_during_a_write_never_mixes_two_requests() {
        let worker_slot = Scoreboard::new(1, 1).unwrap().worker_slot(0).unwrap();
        worker_slot.take_slot(0, 1);
        let slot = worker_slot.slot(0).unwrap();
        let writer = std::thread::spawn(move || {
            for serial in 1..50_000_u64 {
                let text = [b'a' + (serial % 26) as u8; 100];
                slot.begin(serial, serial, &request(&text[..3], &text, &text[..50]).shown());
            }
        });
        while !writer.is_finished() {
            for request in worker_slot.in_flight() {
                let letter = b'a' + (request.serial % 26) as u8;
                assert_eq!(request.since, request.serial);
                assert!(request.target.iter().chain(&request.method).chain(&request.id).all(|byte| *byte == letter));
            }
        }
        writer.join().unwrap();
    }

    #[test]
    fn a_worker_knows_when_it_has_more_than_its_share() {
        let board = Scoreboard::new(4, 1).unwrap();
        let [first, second, draining] = [0, 1, 3].map(|number| board.worker_slot(number).unwrap());
        first.set_cell(Cell::Pid, 100);
        first.set(Metric::Connections, 50);
        assert!(!first.has_more_than_its_share());
        draining.set_cell(Cell::Pid, 103);
        draining.order_drain(std::time::Duration::ZERO);
        assert!(!first.has_more_than_its_share());
        second.set_cell(Cell::Pid, 101);
        assert!(first.has_more_than_its_share());
        assert!(!second.has_more_than_its_share());
        second.set(Metric::Connections, 40);
        assert!(!first.has_more_than_its_share());
    }

    #[test]
    fn every_thread_has_a_slot_also_those_that_replace_stuck_ones() {
        for threads in [1, 32, 1000] {
            let worker_slot = Scoreboard::new(2, threads).unwrap().worker_slot(1).unwrap();
            for number in 0..most_threads(threads) {
                worker_slot.take_slot(number, 1);
                worker_slot.slot(number).unwrap().begin(number as u64 + 1, 0, &request(b"GET", b"/", b"").shown());
            }
            assert_eq!(worker_slot.in_flight().len(), most_threads(threads));
            worker_slot.clear();
            assert_eq!(worker_slot.in_flight(), []);
            assert!(worker_slot.slot(most_threads(threads)).is_none());
        }
    }

    #[test]
    fn the_moment_zero_is_not_the_same_as_no_moment() {
        let worker_slot = Scoreboard::new(1, 1).unwrap().worker_slot(0).unwrap();
        for since in [None, Some(0), Some(7), None] {
            worker_slot.set_stuck_since(since);
            assert_eq!(worker_slot.stuck_since(), since);
        }
    }

    #[test]
    fn each_section_has_its_own_counters() {
        let board = Scoreboard::new(2, 1).unwrap();
        let [first, second] = [0, 1].map(|number| board.worker_slot(number).unwrap());
        let responses = |worker_slot: &WorkerSlot| {
            let mut sum = 0;
            let Ok(()) = worker_slot.deliveries().visit(|_, _, count| {
                sum += count;
                Ok::<_, Infallible>(())
            });
            sum
        };
        first.set(Metric::Requests, 7);
        first.deliveries().count(&Record::new(clock::now()));
        first.take_slot(0, 1);
        first.slot(0).unwrap().begin(1, 0, &request(b"GET", b"/", b"").shown());
        assert_eq!((first.get(Metric::Requests), second.get(Metric::Requests)), (7, 0));
        assert!(responses(&first) > 0 && responses(&second) == 0);
        first.clear();
        assert_eq!((first.get(Metric::Requests), responses(&first)), (0, 0));
        assert!(board.worker_slot(2).is_none());
    }
}
