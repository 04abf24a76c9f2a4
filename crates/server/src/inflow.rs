//! A request body that the application reads while it arrives (`--stream-body`).
//!
//! Whoever reads runs the socket: it receives, and where there is nothing it waits outside the lock: a thread with `poll`,
//! a greenlet until the I/O side sees an event and has it told. So nothing is taken from the kernel that the application
//! does not want, and a fast client is held back by its own window. The thread that carries the connection makes the
//! inflow with what came behind the head, and takes back what is left of it when the response is over; from then on
//! readers, also one that waits, get an error. Any thread may read, one at a time.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use penstock_http::body::{BodyDecoder, BodyStep};
use penstock_http::limits::Refusal;

use crate::connection::Connection;
use crate::lock;
use crate::request::Part;
use crate::sys::Io;
use crate::timers::SIGNAL_CHECK;

/// Bytes received at once where they have to be decoded.
const BUFFER: usize = 64 * 1024;
/// A body that is left unread is dropped up to this size, so that the connection lives on.
const DROPPED: u64 = 64 * 1024;
/// A timer may be so early.
const EARLY: Duration = Duration::from_millis(5);
/// How often a reader that waits looks whether its request is still there.
const LOOK: Duration = Duration::from_millis(500);

/// Why a body cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFault {
    /// The client has left, or ended its direction, before the end of the body.
    Gone,
    /// The body is malformed, too large or too slow.
    Refused(Refusal),
    /// The response to the request is finished.
    Over,
}

/// A body that arrives while it is read.
pub struct BodyStream(pub(crate) Arc<Inflow>);

impl BodyStream {
    /// Reads at least a byte; 0 at the end of the body. Blocks: release the interpreter first.
    ///
    /// # Errors
    /// [`BodyFault`], and the same one again at each further call.
    pub fn read(&mut self, target: &mut [u8]) -> Result<usize, BodyFault> {
        self.0.read(target)
    }

    /// Reads what has come, without waiting; 0 at the end of the body. `None`: nothing has.
    ///
    /// # Errors
    /// [`BodyFault`], and the same one again at each further call.
    pub fn try_read(&mut self, target: &mut [u8]) -> Result<Option<usize>, BodyFault> {
        self.0.try_read(target)
    }

    /// Has the hub told this ticket when the client sends something from now on, or never will; who asks looks once more
    /// before it waits. Answers how long to wait at most. `None`: it would not be told to this thread, which has to block.
    pub fn ask(&mut self, ticket: u64) -> Option<Duration> {
        self.0.ask(ticket)
    }

    /// Has the hub told this ticket at its next look for news. False: not to this thread, or not any more.
    pub fn come_back(&self, ticket: u64) -> bool {
        let flow = lock(&self.0.0);
        let hub = flow.connection.as_ref().and_then(|connection| connection.reactor().hub());
        hub.is_some_and(|hub| hub.is_here() && hub.wake(ticket))
    }

    /// The reader has waited for so long after it had asked.
    pub fn has_waited(&mut self, time: Duration) {
        lock(&self.0.0).has_waited(time);
    }

    /// Gives memory back that holds no bytes.
    pub fn shrink(&mut self) {
        let mut flow = lock(&self.0.0);
        if flow.at == flow.end {
            flow.raw = Vec::new();
            (flow.at, flow.end) = (0, 0);
        }
    }

    /// True when every further read fails.
    pub fn has_failed(&self) -> bool {
        matches!(lock(&self.0.0).state, State::Failed(_))
    }
}

/// See the module.
pub(crate) struct Inflow(Mutex<Flow>);

#[derive(Clone, Copy)]
enum State {
    Open,
    Done,
    Failed(BodyFault),
}

struct Flow {
    state: State,
    /// From the start of the request until its response is over.
    connection: Option<Arc<Connection>>,
    decoder: BodyDecoder,
    /// `raw[at..end]` is received and not decoded.
    raw: Vec<u8>,
    at: usize,
    end: usize,
    /// The client waits for `100 Continue`.
    continue_due: bool,
    /// The client has been waited for as long as may be: it is too late if it has sent nothing by now.
    is_late: bool,
    /// So long readers have waited since the last byte.
    silent: Duration,
    received: u64,
    waited: Duration,
}

/// What is left of a body when the response is over.
pub(crate) enum Rest {
    /// Nothing; these bytes follow it.
    Complete(Vec<u8>),
    /// The rest is still to come, or to be decoded from these bytes.
    Unread(BodyDecoder, Vec<u8>),
}

impl Inflow {
    /// The body of which `raw` has come already.
    pub(crate) fn new(decoder: BodyDecoder, raw: Vec<u8>, continue_due: bool) -> Self {
        Self(Mutex::new(Flow {
            state: State::Open,
            connection: None,
            decoder,
            at: 0,
            end: raw.len(),
            raw,
            continue_due,
            is_late: false,
            silent: Duration::ZERO,
            received: 0,
            waited: Duration::ZERO,
        }))
    }

    pub(crate) fn attach(&self, connection: Arc<Connection>) {
        lock(&self.0).connection = Some(connection);
    }

    fn read(&self, target: &mut [u8]) -> Result<usize, BodyFault> {
        loop {
            if let Some(count) = self.try_read(target)? {
                return Ok(count);
            }
            self.wait();
        }
    }

    fn try_read(&self, target: &mut [u8]) -> Result<Option<usize>, BodyFault> {
        if target.is_empty() {
            return Ok(Some(0));
        }
        let mut flow = lock(&self.0);
        loop {
            if let Some(read) = flow.read_received(target)? {
                return Ok(Some(read));
            }
            let Some(connection) = flow.connection.clone() else { return Err(BodyFault::Over) };
            // Its deadline has come, and nobody waits for what the application would make of it.
            if connection.is_overruled() {
                return Err(flow.failed(BodyFault::Gone));
            }
            flow.say_continue(&connection);
            match flow.receive(&connection, target) {
                Received::Data(count) => return Ok(Some(count)),
                Received::Raw => {}
                Received::Nothing if flow.is_late => return Err(flow.failed(BodyFault::Refused(Part::Body.late()))),
                Received::Nothing => return Ok(None),
                Received::End => return Err(flow.failed(BodyFault::Gone)),
            }
        }
    }

    fn ask(&self, ticket: u64) -> Option<Duration> {
        let flow = lock(&self.0);
        // Of one that is over, the next look tells so.
        let Some(connection) = &flow.connection else { return Some(Duration::ZERO) };
        connection.reactor().hub().filter(|hub| hub.is_here())?;
        connection.reader().store(ticket, Ordering::SeqCst);
        Some(flow.patience(connection))
    }

    /// Waits for bytes of the client, without the lock. What came of it shows at the next look.
    fn wait(&self) {
        let flow = lock(&self.0);
        let Some(connection) = flow.connection.clone() else { return };
        let limit = flow.patience(&connection);
        drop(flow);
        let single = connection.reactor().config().single_thread;
        let begun = Instant::now();
        let mut waited = Duration::ZERO;
        let mut came = false;
        while !came && waited < limit {
            let look = if single { SIGNAL_CHECK } else { LOOK };
            came = connection.wire().wait_readable(look.min(limit - waited));
            waited = begun.elapsed();
            if single && connection.reactor().must_end() {
                lock(&self.0).failed(BodyFault::Gone);
                return;
            }
            if lock(&self.0).connection.is_none() || connection.is_overruled() {
                return;
            }
        }
        lock(&self.0).has_waited(waited);
    }

    /// How long readers have waited.
    pub(crate) fn waited(&self) -> Duration {
        lock(&self.0).waited
    }

    /// The head of the response leaves. True if the connection can serve another request after a response that leaves
    /// the rest of this body unread.
    pub(crate) fn answered(&self) -> bool {
        let mut flow = lock(&self.0);
        // RFC 9110 section 10.1.1: without `100 Continue` the client may send the body or not.
        let is_asked_for = !std::mem::take(&mut flow.continue_due);
        match flow.state {
            State::Done => true,
            State::Failed(_) => false,
            State::Open => match flow.decoder.remaining() {
                Some(left) => is_asked_for && left <= DROPPED,
                None => is_asked_for && matches!(flow.decoder.clone().skip(flow.raw_bytes()), BodyStep::Done { .. }),
            },
        }
    }

    /// The response is over: what is left, and how long the application's threads have waited for the client.
    pub(crate) fn end(&self) -> (Rest, Duration) {
        let mut flow = lock(&self.0);
        if let Some(connection) = flow.connection.take() {
            connection.tell_reader();
        }
        let raw = flow.raw_bytes().to_vec();
        flow.raw = Vec::new();
        let rest = match flow.state {
            State::Done => Rest::Complete(raw),
            State::Open | State::Failed(_) => Rest::Unread(flow.decoder.clone(), raw),
        };
        flow.state = State::Failed(BodyFault::Over);
        (rest, flow.waited)
    }
}

/// What one look at the socket came to.
enum Received {
    /// So many bytes of the body are in the reader's buffer.
    Data(usize),
    /// Bytes came that are still to be decoded.
    Raw,
    /// Nothing, for now.
    Nothing,
    /// The client has ended its direction, or is gone.
    End,
}

impl Flow {
    /// Gives out what has come already, as much as there is room for. `None`: there is nothing.
    fn read_received(&mut self, target: &mut [u8]) -> Result<Option<usize>, BodyFault> {
        let mut filled = 0;
        loop {
            match self.state {
                State::Failed(fault) if filled == 0 => return Err(fault),
                State::Open if filled < target.len() => {}
                _ => return Ok(Some(filled)),
            }
            // No more than fits: the decoder counts what it gives out.
            let window = &self.raw[self.at..self.end.min(self.at + target.len() - filled)];
            match self.decoder.decode(window) {
                BodyStep::Data { consumed, data } => {
                    let data = &window[data];
                    target[filled..filled + data.len()].copy_from_slice(data);
                    filled += data.len();
                    let count = data.len();
                    self.at += consumed;
                    self.note(count);
                }
                BodyStep::Done { consumed } => {
                    self.at += consumed;
                    self.state = State::Done;
                }
                BodyStep::NeedMore { consumed } => {
                    self.at += consumed;
                    if self.at == self.end {
                        return Ok(Some(filled).filter(|filled| *filled > 0));
                    }
                }
                BodyStep::Refused(refusal) => {
                    self.failed(BodyFault::Refused(refusal));
                }
            }
        }
    }

    /// Counts body bytes; with the last one of a known length the body is over.
    fn note(&mut self, count: usize) {
        self.received += count as u64;
        if self.decoder.remaining() == Some(0) {
            self.state = State::Done;
        }
    }

    /// Takes what the socket has: straight into the reader's buffer where every byte is data.
    fn receive(&mut self, connection: &Connection, target: &mut [u8]) -> Received {
        (self.at, self.end) = (0, 0);
        let io = if let Some(left) = self.decoder.remaining() {
            self.raw = Vec::new();
            let room = usize::try_from(left).unwrap_or(usize::MAX).min(target.len());
            connection.wire().receive(&mut target[..room])
        } else {
            if self.raw.len() < BUFFER {
                self.raw = vec![0; BUFFER];
            }
            connection.wire().receive(&mut self.raw)
        };
        let count = match io {
            Io::Moved(count) => count,
            Io::WouldBlock => return Received::Nothing,
            Io::End | Io::Broken => return Received::End,
        };
        (self.is_late, self.silent) = (false, Duration::ZERO);
        if self.decoder.remaining().is_none() {
            self.end = count;
            return Received::Raw;
        }
        self.decoder.decode(&target[..count]);
        self.note(count);
        Received::Data(count)
    }

    /// A reader has waited for bytes, and looks for them next.
    fn has_waited(&mut self, time: Duration) {
        self.waited += time;
        self.silent += time;
        self.is_late = self.connection.as_ref().is_some_and(|connection| self.patience(connection) < EARLY);
    }

    /// What has come and is not decoded.
    fn raw_bytes(&self) -> &[u8] {
        self.raw.get(self.at..self.end).unwrap_or(&[])
    }

    fn say_continue(&mut self, connection: &Connection) {
        if std::mem::take(&mut self.continue_due) {
            connection.say_continue();
        }
    }

    /// How long a reader waits for the next byte: the pause that any client may make, less where the body has been
    /// slower than it may be on average. Only the time that readers wait counts.
    fn patience(&self, connection: &Connection) -> Duration {
        let config = connection.reactor().config();
        let pause = config.body_timeout;
        let left = pause.saturating_sub(self.silent);
        match (self.received * 1_000).checked_div(config.min_body_rate) {
            Some(time) => left.min((pause + Duration::from_millis(time)).saturating_sub(self.waited)),
            None => left,
        }
    }

    fn failed(&mut self, fault: BodyFault) -> BodyFault {
        if matches!(self.state, State::Open) {
            self.state = State::Failed(fault);
        }
        fault
    }
}
