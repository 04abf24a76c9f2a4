//! What is done when a response is complete or has been given up: it is counted, its record is copied to those who
//! follow it, the access log gets a line, and a request that the end of the server interrupted is kept for the server's
//! own log.
//!
//! Any thread.

use std::io;
use std::sync::{Arc, Mutex};

use tailrace_http::identity::id_text;
use tailrace_observe::access_log::{AccessLog, Destination, Lines};
use tailrace_observe::allowance::Allowance;
use tailrace_observe::deliveries::DeliveryCounts;
use tailrace_observe::endpoints::EndpointTable;
use tailrace_observe::level::Level;
use tailrace_observe::log_format::LineFacts;
use tailrace_observe::probes;
use tailrace_observe::recent::RecentResponses;
use tailrace_observe::record::{Ending, Record, Times};
use tailrace_observe::scoreboard::WorkerSlot;
use tailrace_observe::traces::Traces;
use tailrace_os::clock::Clock;
use tailrace_os::panics::{catch, write_stderr};
use tailrace_os::sync::lock;

use crate::config::Config;
use crate::connection::context::Context;
use crate::connection::transaction::Transaction;
use crate::connection::transaction_pool::with_pool;
use crate::executor::application::Application;
use crate::request::Request;

/// Lines a second about slow requests that are done.
const SLOW_LINES: u32 = 10;
/// Most characters of a request's method and target in [`AbortedRequest`].
const NAME: usize = 200;

/// A request that the end of the server interrupted.
#[derive(Clone, Debug)]
pub struct AbortedRequest {
    /// Method and target, in printable ASCII, cut after 200 characters; then id and trace, if the request has them.
    pub request: String,
    /// How long it had run, in seconds; if it had not been started, how long it had been queued.
    pub seconds: f64,
}

/// The counts of finished responses.
struct ResponseCounts {
    deliveries: DeliveryCounts,
    /// `None`: no master reads them.
    shown: Option<(Arc<EndpointTable>, RecentResponses)>,
    /// Where traced responses go.
    traces: Traces,
    /// The number of this worker.
    worker: u32,
}

impl ResponseCounts {
    fn new(worker_slot: WorkerSlot, endpoints: Option<Arc<EndpointTable>>, config: &Config) -> Self {
        let shown =
            endpoints.map(|endpoints| (endpoints, RecentResponses::new(worker_slot.recent(), config.slow_request_log)));
        Self { deliveries: worker_slot.deliveries(), shown, traces: worker_slot.traces(), worker: config.worker }
    }

    fn count(&self, request: &Request, record: &Record, is_chunked: bool, clock: &Clock) {
        // A WebSocket is no response: its hours would hide the milliseconds of others.
        let times = if record.has_left_http() { None } else { self.deliveries.count(record) };
        if let (Some(times), Some((endpoints, recent))) = (times, &self.shown) {
            let (method, path) = (request.head.method.of(&request.bytes), request.head.path.of(&request.bytes));
            let is_slow = recent.note(&request.shown(), record, &times, || clock.monotonic_of(clock.peek()));
            endpoints.count((method, path), record, &times, is_chunked, is_slow);
        }
        if request.traced.is_some() {
            self.traces.add(
                &request.shown(),
                record,
                &Times::of(record),
                clock.monotonic_of(record.over()),
                self.worker,
            );
        }
    }
}

pub(super) struct Accounting {
    context: Arc<Context>,
    access_log: Option<AccessLog>,
    /// Makes the lines of an access log that goes to the application.
    lines: Option<Lines>,
    /// Where finished responses are counted; `None`: there is no scoreboard.
    counts: Option<ResponseCounts>,
    /// Requests that the end of the server interrupted and that `take_aborted` has not returned.
    aborted: Mutex<Vec<AbortedRequest>>,
    /// The limit of the lines about slow requests that are done.
    slow_lines: Mutex<Allowance>,
    application: Arc<dyn Application>,
}

impl Accounting {
    /// Opens the access log, if there is to be one. `worker_slot`, `endpoints`: where responses are counted.
    ///
    /// # Errors
    /// The access log cannot be opened.
    pub(super) fn new(
        context: Arc<Context>,
        application: Arc<dyn Application>,
        worker_slot: Option<WorkerSlot>,
        endpoints: Option<Arc<EndpointTable>>,
    ) -> io::Result<Self> {
        let (mut access_log, mut lines) = (None, None);
        match context.config.access_log.clone() {
            Some(config) if config.destination == Destination::Application => lines = Some(Lines::new(config.format)),
            Some(config) => {
                let application = application.clone();
                let error_log = Box::new(move |message: &str| application.log(Level::Warning, message));
                access_log = Some(AccessLog::open(config, error_log)?);
            }
            None => {}
        }
        let counts = worker_slot.map(|slot| ResponseCounts::new(slot, endpoints, &context.config));
        let slow_lines = Mutex::new(Allowance::new(SLOW_LINES));
        Ok(Self { context, access_log, lines, counts, aborted: Mutex::default(), slow_lines, application })
    }

    /// Accounts for a response of the connection with this key that is complete or has been given up. `writes`: write
    /// system calls that the record does not include yet.
    pub(super) fn account(&self, key: u64, mut transaction: Box<Transaction>, writes: u32) {
        if transaction.record.is_answered_elsewhere() {
            return with_pool(|pool| pool.give(transaction));
        }
        if transaction.record.ending != Ending::Complete {
            self.note_aborted(&mut transaction);
        }
        let is_followed = self.application.follows_deliveries();
        let is_read = is_followed
            || self.access_log.is_some()
            || transaction.follower.is_some()
            || transaction.request.traced.is_some();
        let clock = &self.context.clock;
        transaction.record.writes += writes;
        // A histogram does without a reading of the clock, unless the response was held: its client waited meanwhile.
        let is_exact = is_read || !transaction.record.held.is_zero();
        transaction.record.drained = Some(if is_exact { clock.read() } else { clock.recent() });
        probes::response_end(key, &transaction.record);
        if let Some(counts) = &self.counts {
            if transaction.record.path.is_streamed() {
                transaction.record.is_event_stream = transaction.response.head.is_event_stream();
            }
            counts.count(&transaction.request, &transaction.record, transaction.response.body.is_delimited(), clock);
        }
        let entry = LineFacts {
            request: transaction.request.shown(),
            response: transaction.response.head.bytes(),
            record: &transaction.record,
            variables: &transaction.variables,
            worker: self.context.config.worker,
        };
        if is_followed {
            self.deliver(&transaction.request, &entry);
        }
        let slow = self.context.config.slow_request_log;
        if !slow.is_zero() && !transaction.record.has_left_http() && transaction.record.ran_for() >= slow {
            self.log_slow(&transaction.request, &transaction.record);
        }
        if let Some(follower) = &transaction.follower {
            *lock(follower) = transaction.record;
        }
        if let Some(log) = &self.access_log {
            log.write(&entry);
        }
        with_pool(|pool| pool.give(transaction));
    }

    /// Gives the record of a response to the application, with its line of the access log if that goes there.
    fn deliver(&self, request: &Request, entry: &LineFacts<'_>) {
        let line = self.lines.as_ref().and_then(|lines| lines.line(entry));
        self.application.delivered(request, entry.record, line);
    }

    /// As [`Self::account`], for a request whose transaction belongs to a runner that may never return.
    pub(super) fn account_abandoned(&self, key: u64, request: &Request, record: &Record) {
        probes::response_end(key, record);
        self.name_aborted(request, record);
        if let Some(counts) = &self.counts {
            counts.count(request, record, false, &self.context.clock);
        }
        let worker = self.context.config.worker;
        let entry = LineFacts { request: request.shown(), response: &[], record, variables: &[], worker };
        if self.application.follows_deliveries() {
            self.deliver(request, &entry);
        }
        if let Some(log) = &self.access_log {
            log.write(&entry);
        }
    }

    /// A request that was reported while it ran is done.
    fn log_slow(&self, request: &Request, record: &Record) {
        let now = self.context.clock.peek();
        let (left_out, takes) = {
            let mut lines = lock(&self.slow_lines);
            (lines.left_out(now), lines.may_log(now))
        };
        if left_out > 0 {
            let text = format!("slow: {left_out} further requests are done; at most {SLOW_LINES} a second are logged");
            self.application.log(Level::Warning, &text);
        }
        if !takes {
            return;
        }
        let (name, id) = (request.name(self.context.config.query_masking), id_text(request.id(), request.trace()));
        let text = format!("{name}{id}: slow: done, {record}");
        self.application.log(Level::Warning, &text);
    }

    /// Notes an incomplete response as cut if the server has ended, unless its deadline was the cause.
    fn note_aborted(&self, transaction: &mut Transaction) {
        let ending = &mut transaction.record.ending;
        if self.context.has_ended() && *ending != Ending::TimedOut {
            *ending = Ending::Cut;
        }
        if *ending == Ending::Cut {
            self.name_aborted(&transaction.request, &transaction.record);
        }
    }

    fn name_aborted(&self, request: &Request, record: &Record) {
        let mut name = request.name(self.context.config.query_masking);
        if name.len() > NAME {
            // Any index is the end of a character: the text is escaped, so it is ASCII.
            name.truncate(NAME);
            name.push_str("...");
        }
        name.push_str(&id_text(request.id(), request.trace()));
        let seconds = self.context.clock.since(record.started.unwrap_or(record.queued)).as_secs_f64();
        lock(&self.aborted).push(AbortedRequest { request: name, seconds });
    }

    /// The requests that the end of the server interrupted, each returned once.
    pub(super) fn take_aborted(&self) -> Vec<AbortedRequest> {
        std::mem::take(&mut lock(&self.aborted))
    }

    /// Opens the access log again by its name, after a rotation.
    pub(super) fn reopen_log(&self) -> io::Result<()> {
        self.access_log.as_ref().map_or(Ok(()), AccessLog::reopen)
    }

    /// Writes the lines that wait, and closes the access log.
    pub(super) fn close_log(&self) {
        if let Some(log) = &self.access_log {
            log.close();
        }
    }

    /// As [`Self::close_log`], before the process is ended by force: a panic is reported and caught.
    pub(super) fn save_log(&self) {
        if let Err(panic) = catch(|| self.close_log()) {
            write_stderr(&format!("the last lines of the access log were lost: {panic}"));
        }
    }
}
