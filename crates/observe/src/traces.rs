//! The traced responses of all workers, on their way to the process that exports their spans: a bounded queue in memory
//! that the processes share.
//!
//! A worker claims a place, fills its cell, and never waits: if the queue is full, the response is dropped and counted.
//! One process reads. It frees places only after exporting their responses, so that a process that replaces it exports
//! them again instead of losing them. If a worker is killed while filling a cell, the cell stays incomplete; the reader
//! skips it once the next complete response has been over for `PATIENCE`. A worker that was only stopped at that moment
//! may then write into a place that is another's, which costs one record.
//!
//! Any thread writes; one thread reads.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tailrace_os::clock::{monotonic_nanos, nanos};
use tailrace_os::process;
use tailrace_os::shared_memory::shared_words;

use crate::ended::{AT, CELL, EndedResponse, Key, PROCESS, SERIAL, WORKER, ended, store};
use crate::guarded::Guarded;
use crate::record::{Record, Times};
use crate::shown_request::ShownRequest;

/// Responses that may wait.
const CELLS: u64 = 4096;
/// How long the reader waits for a cell that is being filled.
const PATIENCE: Duration = Duration::from_secs(1);

// The words before the cells, on cache lines of their own: how many places were ever claimed, how many are free again.
const CLAIMED: usize = 0;
const FREED: usize = 8;
// And those of `TraceCounts`.
const EXPORTED: usize = 16;
const FAILED: usize = 17;
const DROPPED: usize = 18;
const FIRST: usize = 24;

/// A queue of traced responses.
#[derive(Clone, Copy)]
pub struct Traces {
    words: &'static [AtomicU64],
}

/// What became of traced responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceCounts {
    /// The receiver has accepted their spans.
    pub exported: u64,
    /// The receiver has not accepted them.
    pub failed: u64,
    /// The queue was full, or their worker was killed.
    pub dropped: u64,
}

/// Responses that were read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TraceBatch {
    /// In the order in which they were over.
    pub responses: Vec<EndedResponse>,
    /// How many incomplete cells were skipped.
    pub lost: u64,
}

impl Traces {
    /// A queue in memory that this process shares with those that it forks; never freed.
    ///
    /// # Errors
    /// No memory.
    pub fn new() -> io::Result<Self> {
        Ok(Self { words: shared_words(FIRST + CELLS as usize * CELL)? })
    }

    fn cell(&self, place: u64) -> Guarded {
        Guarded::of(&self.words[FIRST + (place % CELLS) as usize * CELL..][..CELL])
    }

    /// Adds a response of a worker. `at`: when it was over, in nanoseconds of the clock that all processes share.
    pub fn add(&self, request: &ShownRequest<'_>, record: &Record, times: &Times, at: u64, worker: u32) {
        let Some(place) = self.claim() else {
            self.words[DROPPED].fetch_add(1, Ordering::Relaxed);
            return;
        };
        let key = Key { serial: place + 1, at, worker: [worker.into(), process::id().into()] };
        store(self.cell(place), &key, request, record, times);
    }

    /// The next place; `None`: there is none.
    fn claim(&self) -> Option<u64> {
        let claimed = &self.words[CLAIMED];
        let mut place = claimed.load(Ordering::Relaxed);
        loop {
            if place.saturating_sub(self.words[FREED].load(Ordering::Acquire)) >= CELLS {
                return None;
            }
            match claimed.compare_exchange_weak(place, place + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(place),
                Err(now) => place = now,
            }
        }
    }

    /// The oldest responses, `most` at most.
    #[must_use]
    pub fn read(&self, most: usize) -> TraceBatch {
        let (freed, claimed) = (self.words[FREED].load(Ordering::Relaxed), self.words[CLAIMED].load(Ordering::Relaxed));
        let mut batch = TraceBatch::default();
        // Incomplete cells at the end of the batch.
        let mut pending = 0;
        for place in freed..claimed {
            if batch.responses.len() >= most {
                break;
            }
            match self.cell(place).read::<CELL>().filter(|words| words[SERIAL] == place + 1) {
                None => pending += 1,
                Some(words) if pending == 0 || monotonic_nanos().saturating_sub(words[AT]) > nanos(PATIENCE) => {
                    batch.lost += std::mem::take(&mut pending);
                    let worker = [("worker", words[WORKER]), ("pid", words[PROCESS])];
                    batch.responses.push(EndedResponse { worker, ..ended(&words) });
                }
                Some(_) => break,
            }
        }
        batch
    }

    /// Frees the places of a batch, which was exported, or not.
    pub fn free(&self, batch: &TraceBatch, is_exported: bool) {
        let read = batch.responses.len() as u64;
        self.words[if is_exported { EXPORTED } else { FAILED }].fetch_add(read, Ordering::Relaxed);
        self.words[DROPPED].fetch_add(batch.lost, Ordering::Relaxed);
        self.words[FREED].fetch_add(read + batch.lost, Ordering::Release);
    }

    /// How many responses wait.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        let freed = self.words[FREED].load(Ordering::Relaxed);
        self.words[CLAIMED].load(Ordering::Relaxed).saturating_sub(freed)
    }

    /// The counts since the start.
    #[must_use]
    pub fn counts(&self) -> TraceCounts {
        let [exported, failed, dropped] =
            [EXPORTED, FAILED, DROPPED].map(|word| self.words[word].load(Ordering::Relaxed));
        TraceCounts { exported, failed, dropped }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::thread;
    use std::time::Duration;

    use tailrace_http::forwarded::Scheme;
    use tailrace_http::identity::Traced;
    use tailrace_os::clock::{monotonic_nanos, now};

    use super::{CELLS, Traces};
    use crate::record::{Record, Times};
    use crate::shown_request::testing::Request;

    fn add(traces: &Traces, span: u64, at: u64) {
        let mut request = Request {
            traced: Some(Traced { trace: 7 << 64 | 8, parent: 9, span, application: 10 }),
            ..Request::default()
        };
        request.peer.scheme = Some(Scheme::Https);
        let record = Record { started: Some(now()), proxied: Some(Duration::from_nanos(5)), ..Record::new(now()) };
        traces.add(&request.shown(), &record, &Times::of(&record), at, 3);
    }

    fn spans(traces: &Traces, most: usize) -> Vec<u64> {
        traces.read(most).responses.iter().filter_map(|each| Some(each.traced?.span)).collect()
    }

    #[test]
    fn what_is_read_stays_until_it_is_freed() {
        let traces = Traces::new().unwrap();
        (1..=5).for_each(|span| add(&traces, span, 0));
        assert_eq!((spans(&traces, 3), spans(&traces, 3)), (vec![1, 2, 3], vec![1, 2, 3]));
        let batch = traces.read(3);
        let first = &batch.responses[0];
        assert_eq!(first.traced, Some(Traced { trace: 7 << 64 | 8, parent: 9, span: 1, application: 10 }));
        assert_eq!((first.worker[0].1, first.worker[1].1), (3, std::process::id().into()));
        assert!(first.scheme == Some(Scheme::Https) && first.is_started && first.times[0] == ("proxied", 5));
        traces.free(&batch, true);
        let batch = traces.read(9);
        assert_eq!(spans(&traces, 9), [4, 5]);
        traces.free(&batch, false);
        assert_eq!(spans(&traces, 9), []);
        let counts = traces.counts();
        assert_eq!((counts.exported, counts.failed, counts.dropped), (3, 2, 0));
    }

    #[test]
    fn a_full_queue_drops_what_comes_and_counts_it() {
        let traces = Traces::new().unwrap();
        (0..CELLS + 10).for_each(|span| add(&traces, span, 0));
        assert_eq!(traces.counts().dropped, 10);
        let batch = traces.read(usize::MAX);
        assert_eq!(batch.responses.len() as u64, CELLS);
        traces.free(&batch, true);
        add(&traces, 77, 0);
        assert_eq!(spans(&traces, 9), [77]);
    }

    #[test]
    fn a_cell_that_nobody_completes_is_passed_after_a_time() {
        let traces = Traces::new().unwrap();
        // The worker was killed.
        assert_eq!(traces.claim(), Some(0));
        assert_eq!(spans(&traces, 9), []);
        add(&traces, 1, monotonic_nanos());
        assert_eq!(spans(&traces, 9), []);
        add(&traces, 2, monotonic_nanos().saturating_sub(2_000_000_000));
        // The first of those behind it decides.
        assert_eq!(spans(&traces, 9), []);
        let traces = Traces::new().unwrap();
        assert_eq!(traces.claim(), Some(0));
        add(&traces, 1, monotonic_nanos().saturating_sub(2_000_000_000));
        let batch = traces.read(9);
        assert_eq!((batch.lost, batch.responses.len()), (1, 1));
        traces.free(&batch, true);
        assert_eq!((traces.counts().dropped, traces.read(9).responses.len()), (1, 0));
    }

    #[test]
    fn no_response_of_many_threads_is_lost_or_mixed() {
        let traces = Traces::new().unwrap();
        let (threads, each) = (4, 20_000);
        let writers: Vec<_> = (0..threads)
            .map(|writer| {
                thread::spawn(move || {
                    for number in 0..each {
                        let span = writer * each + number + 1;
                        while traces.words[super::CLAIMED].load(super::Ordering::Relaxed)
                            - traces.words[super::FREED].load(super::Ordering::Relaxed)
                            > CELLS - 8
                        {
                            thread::yield_now();
                        }
                        add(&traces, span, monotonic_nanos());
                    }
                })
            })
            .collect();
        let mut seen = vec![false; (threads * each) as usize];
        let mut count = 0;
        while count < threads * each {
            let batch = traces.read(100);
            for response in &batch.responses {
                let place = (response.traced.unwrap().span - 1) as usize;
                assert!(!std::mem::replace(&mut seen[place], true));
            }
            count += batch.responses.len() as u64;
            assert_eq!(batch.lost, 0);
            traces.free(&batch, true);
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!(traces.counts().dropped, 0);
    }
}
