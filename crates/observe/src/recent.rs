//! The last slow and the last broken responses of a worker, with their records, in a worker's slot of the scoreboard.
//!
//! Slow: from the complete request until the application had finished it took as long as `--slow-request-log` says, or
//! `SLOW`. Broken: it ended so, timed out or was cut by the end of the server, or its status is 500 or more; a client
//! that has gone is none.
//!
//! Each kind has a ring of cells, which are written under their sequence numbers, see `guarded.rs`. Any thread writes,
//! behind a lock of this process; that happens seldom.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tailrace_os::clock::nanos;
use tailrace_os::sync::lock;

use crate::ended::{AT, CELL, EndedResponse, Key, PROCESS, SERIAL, WORKER, ended, store};
use crate::guarded::Guarded;
use crate::record::{Ending, Record, Times};
use crate::shown_request::ShownRequest;

/// What is slow without `--slow-request-log`.
const SLOW: Duration = Duration::from_secs(1);
/// Responses of a kind that are kept.
const KEPT: usize = 16;
/// The kinds, with their names.
const KINDS: [&str; 2] = ["slow", "broken"];

/// A word before the cells: 1 once one was written.
const USED: usize = 0;
const FIRST: usize = 1;
/// Words of all.
pub const WORDS: usize = FIRST + KINDS.len() * KEPT * CELL;

/// The last responses of a worker, or of all that have ended, for those who read.
#[derive(Clone, Copy)]
pub struct Recent {
    words: &'static [AtomicU64; WORDS],
}

impl Recent {
    /// In these words; `None`: they are not as many as [`WORDS`].
    pub fn of(words: &'static [AtomicU64]) -> Option<Self> {
        Some(Self { words: words.try_into().ok()? })
    }

    /// Forgets them. Cells that were never written have no memory yet, and get none.
    pub fn clear(&self) {
        if self.words[USED].load(Ordering::Relaxed) > 0 {
            self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }

    fn cell(&self, kind: usize, number: usize) -> Guarded {
        Guarded::of(&self.words[FIRST + (kind * KEPT + number) * CELL..][..CELL])
    }

    /// Keeps the responses of a worker that has ended, with its number and process, in place of those that were over
    /// before them. One process does that, on one thread.
    pub fn keep(&self, of_worker: Self, worker: u64, process: u64) {
        if of_worker.words[USED].load(Ordering::Relaxed) == 0 {
            return;
        }
        self.words[USED].store(1, Ordering::Relaxed);
        for (kind, number) in (0..KINDS.len()).flat_map(|kind| (0..KEPT).map(move |number| (kind, number))) {
            let Some(words) = of_worker.cell(kind, number).read::<CELL>().filter(|words| words[SERIAL] > 0) else {
                continue;
            };
            let cells = (0..KEPT).map(|number| self.cell(kind, number));
            let Some(oldest) = cells.min_by_key(|cell| cell.load(AT)).filter(|cell| cell.load(AT) < words[AT]) else {
                continue;
            };
            oldest.change(|| {
                words.iter().enumerate().skip(SERIAL).for_each(|(word, value)| oldest.store(word, *value));
                oldest.store(WORKER, worker);
                oldest.store(PROCESS, process);
            });
        }
    }

    /// Those of each kind, with its name, the last one first.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, Vec<EndedResponse>)> + '_ {
        KINDS.into_iter().enumerate().map(|(kind, name)| {
            let kept = if self.words[USED].load(Ordering::Relaxed) > 0 { KEPT } else { 0 };
            let cells = (0..kept).filter_map(|number| self.cell(kind, number).read::<CELL>());
            let mut found: Vec<_> = cells.filter(|words| words[SERIAL] > 0).map(|words| ended(&words)).collect();
            found.sort_by_key(|ended| std::cmp::Reverse((ended.at, ended.serial)));
            (name, found)
        })
    }
}

/// Keeps the last responses.
pub struct RecentResponses {
    recent: Recent,
    /// Nanoseconds after which a response is slow.
    slow: u64,
    /// How many of each kind there were.
    counts: Mutex<[u64; KINDS.len()]>,
}

impl RecentResponses {
    /// `slow`: after which time a response is slow; zero: after `SLOW`.
    pub fn new(recent: Recent, slow: Duration) -> Self {
        recent.clear();
        let slow = nanos(if slow.is_zero() { SLOW } else { slow });
        Self { recent, slow, counts: Mutex::default() }
    }

    /// Keeps a response that the application has made, if it is slow or broken. `at`: when it was over.
    ///
    /// Returns whether it is slow.
    #[inline]
    pub fn note(&self, request: &ShownRequest<'_>, record: &Record, times: &Times, at: impl FnOnce() -> u64) -> bool {
        let is_slow = times.queued + times.application + times.iterating >= self.slow;
        let is_broken = is_broken(record);
        if is_slow || is_broken {
            self.keep(request, record, times, [is_slow, is_broken], at());
        }
        is_slow
    }

    #[cold]
    fn keep(&self, request: &ShownRequest<'_>, record: &Record, times: &Times, kinds: [bool; KINDS.len()], at: u64) {
        let mut counts = lock(&self.counts);
        self.recent.words[USED].store(1, Ordering::Relaxed);
        for (kind, count) in counts.iter_mut().enumerate().filter(|(kind, _)| kinds[*kind]) {
            let cell = self.recent.cell(kind, (*count % KEPT as u64) as usize);
            *count += 1;
            store(cell, &Key { serial: *count, at, worker: [0; 2] }, request, record, times);
        }
    }
}

/// True when the application or the server has failed.
#[inline]
pub fn is_broken(record: &Record) -> bool {
    record.status >= 500 || matches!(record.ending, Ending::Broken | Ending::TimedOut | Ending::Cut)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;
    use std::time::Duration;

    use tailrace_http::request_head::Span;
    use tailrace_os::clock::now;
    use tailrace_os::shared_memory::shared_words;

    use super::{KEPT, Recent, RecentResponses, WORDS};
    use crate::ended::EndedResponse;
    use crate::record::{ENDINGS, Ending, Path, Record, Times};
    use crate::shown_request::testing::Request;

    const SECOND: u64 = 1_000_000_000;

    fn none(slow: Duration) -> (Recent, RecentResponses) {
        let recent = Recent::of(shared_words(WORDS).unwrap()).unwrap();
        (recent, RecentResponses::new(recent, slow))
    }

    fn request(target: &str) -> Request {
        let mut request = Request { bytes: format!("GET {target}").into_bytes(), ..Request::default() };
        request.head.method = Span { start: 0, end: 3 };
        request.head.target = Span { start: 4, end: request.bytes.len() as u32 };
        request.peer.client = Some("192.0.2.7:4711".parse().unwrap());
        request
    }

    fn record(ending: Ending) -> Record {
        Record { status: 200, ending, ..Record::new(now()) }
    }

    fn shown(recent: Recent) -> BTreeMap<&'static str, Vec<EndedResponse>> {
        recent.all().collect()
    }

    #[test]
    fn a_slow_response_is_kept_with_its_record() {
        let (recent, responses) = none(Duration::ZERO);
        let slow = Record {
            status: 200,
            body_bytes: 70,
            blocks: 3,
            writes: 2,
            path: Path::Direct,
            is_event_stream: true,
            ending: Ending::ClientDisconnected,
            ..Record::new(now())
        };
        let times = Times {
            proxied: 3,
            queued: SECOND / 2,
            application: SECOND / 4,
            iterating: SECOND / 4,
            blocked: 9,
            cpu: 5,
            interpreter: 6,
            gc: 7,
            total: 2 * SECOND,
        };
        let mut asked = request("/report?a=1");
        let start = asked.bytes.len() as u32;
        asked.bytes.extend_from_slice(b"abc");
        asked.id = Span { start, end: start + 3 };
        responses.note(&asked.shown(), &slow, &times, || 77);
        responses.note(&request("/quick").shown(), &slow, &Times { queued: 0, ..times }, || 78);
        let expected = EndedResponse {
            serial: 1,
            at: 77,
            method: b"GET".to_vec(),
            target: b"/report?a=1".to_vec(),
            id: b"abc".to_vec(),
            peer: Some("192.0.2.7:4711".parse().unwrap()),
            status: 200,
            is_event_stream: true,
            ending: Ending::ClientDisconnected,
            path: Path::Direct,
            traced: None,
            scheme: None,
            is_started: false,
            sizes: [("body_bytes", 70), ("blocks", 3), ("writes", 2)],
            times: [
                ("proxied", 3),
                ("queued", SECOND / 2),
                ("application", SECOND / 4),
                ("iterating", SECOND / 4),
                ("blocked", 9),
                ("cpu", 5),
                ("interpreter", 6),
                ("gc", 7),
                ("total", 2 * SECOND),
            ],
            worker: [("worker", 0), ("pid", 0)],
        };
        assert_eq!(shown(recent), BTreeMap::from([("slow", vec![expected]), ("broken", vec![])]));
        recent.clear();
        assert_eq!(shown(recent), BTreeMap::from([("slow", vec![]), ("broken", vec![])]));
    }

    #[test]
    fn of_the_workers_that_have_ended_the_last_ones_are_kept_with_their_worker() {
        let (ended, _) = none(Duration::ZERO);
        let times = Times { application: SECOND, ..Times::default() };
        // The last one that is kept began first.
        for (worker, first) in [(1, 1_000), (2, 10), (3, 1_005)] {
            let (recent, responses) = none(Duration::ZERO);
            for at in first..first + 10 {
                responses.note(&request(&format!("/{worker}")).shown(), &record(Ending::Complete), &times, || at);
            }
            ended.keep(recent, worker, 100 + worker);
        }
        let slow = shown(ended).remove("slow").unwrap();
        let ats: Vec<_> = slow.iter().map(|ended| ended.at).collect();
        // Those of two workers that were over at the same time are in no order.
        let expected: Vec<_> = (1_010..1_015).rev().chain((1_005..1_010).rev().flat_map(|at| [at, at])).collect();
        assert_eq!(ats[..15], expected);
        assert_eq!((ats[15], ats.len()), (1_004, KEPT));
        assert_eq!(slow[0].worker, [("worker", 3), ("pid", 103)]);
        assert_eq!((&slow[0].target[..], slow[15].worker), (&b"/3"[..], [("worker", 1), ("pid", 101)]));
        assert_eq!(shown(ended)["broken"], []);
    }

    #[test]
    fn what_failed_is_broken_and_a_client_that_has_gone_is_not() {
        let (recent, responses) = none(Duration::from_secs(9));
        for ending in ENDINGS {
            responses.note(&request("/").shown(), &record(ending), &Times::default(), || 0);
        }
        responses.note(
            &request("/").shown(),
            &Record { status: 503, ..record(Ending::Complete) },
            &Times::default(),
            || 0,
        );
        let shown = shown(recent);
        let endings: Vec<_> = shown["broken"].iter().map(|ended| (ended.status, ended.ending)).collect();
        let expected = [(503, Ending::Complete), (200, Ending::Cut), (200, Ending::TimedOut), (200, Ending::Broken)];
        assert_eq!(endings, expected);
        assert_eq!(shown["slow"], []);
    }

    #[test]
    fn the_last_ones_are_kept_and_long_targets_are_cut() {
        let (recent, responses) = none(Duration::from_millis(1));
        let times = Times { application: 1_000_000, ..Times::default() };
        for number in 0..100 {
            let target = format!("/{number}/{}", "x".repeat(if number % 2 == 0 { 300 } else { 0 }));
            responses.note(&request(&target).shown(), &record(Ending::Complete), &times, || number);
        }
        let slow = shown(recent).remove("slow").unwrap();
        let expected: Vec<_> = (0..KEPT as u64).map(|back| 99 - back).collect();
        assert_eq!(slow.iter().map(|ended| ended.at).collect::<Vec<_>>(), expected);
        assert_eq!(slow[0].target, b"/99/");
        assert_eq!(slow[1].target.len(), 160);
    }
}
