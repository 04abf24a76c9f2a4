//! `tailrace.on_delivery`: gives the record of each response that is over to Python, on a thread of its own.
//!
//! The thread that accounts for a response copies its record into a channel and does not wait. With `--access-log
//! logging`, the line of the access log is with it. The channel is bounded in records and in bytes, as a target may be
//! long; records that do not fit are dropped and counted. The channel and its thread are made with the first record, so
//! that each worker has its own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use tailrace_observe::level::Level;
use tailrace_observe::record::Record;
use tailrace_os::clock;
use tailrace_os::panics::{catch, write_stderr};
use tailrace_server::{Request, client_text};

use crate::call::start_response::delivery;
use crate::python::late_thread::LateThread;
use crate::python::{log, memory};

/// Records that wait for the interpreter.
const WAITING: usize = 10_000;
/// Bytes of their texts.
const WAITING_BYTES: usize = 8 << 20;
/// Records that are given to Python before other threads may take the interpreter.
const BATCH: usize = 100;
/// What does not happen without the thread.
const WITHOUT: &str = "tailrace.on_delivery and --access-log logging get no records";

static FOLLOWER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static IS_FOLLOWED: AtomicBool = AtomicBool::new(false);

/// From now on `function` is called for each response that is over, on a thread of its own: with a dict, and the line of
/// an access log that goes to the application, or None. It must not raise. Later calls do nothing.
#[pyfunction]
#[pyo3(signature = (function, /))]
pub(crate) fn follow_deliveries(function: Bound<'_, PyAny>) {
    let py = function.py();
    FOLLOWER.get_or_init(py, || function.unbind());
    IS_FOLLOWED.store(true, Ordering::Release);
}

/// True when a function is to be called.
pub(crate) fn are_followed() -> bool {
    IS_FOLLOWED.load(Ordering::Acquire)
}

/// One response that is over.
struct FinishedResponse {
    method: String,
    target: String,
    client: String,
    id: String,
    trace: String,
    ended: SystemTime,
    record: Record,
    line: Option<String>,
}

impl FinishedResponse {
    /// The bytes of its texts.
    fn bytes(&self) -> usize {
        let line = self.line.as_ref().map_or(0, String::capacity);
        let texts = [&self.method, &self.target, &self.client, &self.id, &self.trace];
        texts.map(String::capacity).iter().sum::<usize>() + line
    }
}

/// Records that were sent and that Python does not have yet.
#[derive(Default)]
struct Untaken {
    records: usize,
    bytes: usize,
}

/// What the thread shares with those that send.
#[derive(Default)]
struct DeliveryQueue {
    waiting: Mutex<Untaken>,
    taken: Condvar,
    dropped: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Deliveries {
    thread: LateThread<SyncSender<FinishedResponse>>,
    shared: Arc<DeliveryQueue>,
}

impl Deliveries {
    /// From any thread; does not wait.
    pub(crate) fn send(&self, request: &Request, record: &Record, line: Option<String>) {
        let start = || {
            let (sender, receiver) = sync_channel(WAITING);
            let shared = self.shared.clone();
            thread::Builder::new()
                .name(String::from("tailrace-records"))
                .spawn(move || give_each(&receiver, &shared))?;
            Ok(sender)
        };
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        let delivery = FinishedResponse {
            method: text(request.head.method.of(&request.bytes)),
            target: text(request.head.target.of(&request.bytes)),
            client: client_text(request.peer.client),
            id: text(request.id()),
            trace: text(request.trace().unwrap_or_default()),
            ended: clock::wall(),
            record: *record,
            line,
        };
        let mut waiting = lock(&self.shared);
        let bytes = waiting.bytes + delivery.bytes();
        let has_room = bytes <= WAITING_BYTES;
        let send = || self.thread.send(start, |sender| sender.try_send(delivery).is_ok(), WITHOUT, write_stderr);
        if has_room && send() == Some(true) {
            waiting.records += 1;
            waiting.bytes = bytes;
        } else {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.thread.end();
    }

    /// Waits until Python has what was sent, for at most `time`. Not with the interpreter held.
    pub(crate) fn flush(&self, time: Duration) {
        drop(self.shared.taken.wait_timeout_while(lock(&self.shared), time, |waiting| waiting.records > 0));
    }
}

fn lock(shared: &DeliveryQueue) -> MutexGuard<'_, Untaken> {
    shared.waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

fn give_each(deliveries: &Receiver<FinishedResponse>, shared: &DeliveryQueue) {
    let mut has_said = false;
    while let Ok(first) = deliveries.recv() {
        let batch: Vec<_> = std::iter::once(first).chain(deliveries.try_iter().take(BATCH - 1)).collect();
        let dropped = shared.dropped.load(Ordering::Relaxed);
        let give = |py: Python<'_>| {
            if dropped > 0 && !has_said {
                has_said = true;
                let text = "the functions of tailrace.on_delivery, or the handlers of the logger tailrace.access, are \
                            slower than the responses; records are dropped";
                log::log(py, Level::Warning, text, None);
            }
            for delivery in &batch {
                if let Err(error) = give_one(py, delivery) {
                    error.write_unraisable(py, None);
                }
            }
        };
        memory::await_attaching();
        match catch(|| Python::try_attach(give)) {
            Ok(Some(())) => {}
            // The interpreter is being finalized.
            Ok(None) => return,
            Err(panic) => write_stderr(&format!("a panic while records were given to tailrace.on_delivery: {panic}")),
        }
        let mut waiting = lock(shared);
        waiting.records -= batch.len();
        waiting.bytes -= batch.iter().map(FinishedResponse::bytes).sum::<usize>();
        drop(waiting);
        shared.taken.notify_all();
    }
}

fn give_one(py: Python<'_>, given: &FinishedResponse) -> PyResult<()> {
    let Some(follower) = FOLLOWER.get(py) else { return Ok(()) };
    let dict = PyDict::new(py);
    dict.set_item("method", &given.method)?;
    dict.set_item("target", &given.target)?;
    dict.set_item("client", &given.client)?;
    dict.set_item("id", Some(&given.id).filter(|id| !id.is_empty()))?;
    dict.set_item("trace", Some(&given.trace).filter(|trace| !trace.is_empty()))?;
    let ended = given.ended.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    dict.set_item("ended", ended.as_secs_f64())?;
    dict.update(delivery(py, Some(given.record))?.as_mapping())?;
    follower.call1(py, (dict, given.line.as_deref())).map(drop)
}
