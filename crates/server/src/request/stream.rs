//! A request body that the application reads while it arrives (`--stream-body`).
//!
//! The thread that reads the body reads the socket. If nothing has arrived, the reader waits without the lock: a thread
//! in `poll`, a greenlet until the I/O thread has seen an event of the socket. So the server reads no more from the
//! kernel than the application asks for, and the TCP window slows down a client that sends faster.
//!
//! The thread that owns the connection creates the body with the bytes that arrived after the head, and takes the rest
//! of it when the response has ended. From then on, every read fails, and a waiting reader is woken. Any thread may
//! read, one at a time.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tailrace_http::body::{BodyDecoder, BodyStep};
use tailrace_http::limits::Refusal;
use tailrace_os::socket::Io;
use tailrace_os::sync::lock;

use crate::request::memory::{Charge, ClientMemory};
use crate::request::part::Part;

/// Size of one read of a body that has to be decoded.
const BUFFER: usize = 64 * 1024;
/// Size of such a read if there is no memory for [`BUFFER`] bytes.
const SMALL_BUFFER: usize = 4 * 1024;
/// If the application leaves up to this number of bytes unread, they are read and discarded, so that the connection can
/// serve another request.
const DROPPED: u64 = 64 * 1024;
/// A reader with less than this time left has waited long enough: timers are not exact.
const EARLY: Duration = Duration::from_millis(5);
/// How often a thread that waits for bytes checks whether the response is over, or was sent by the server itself.
const LOOK: Duration = Duration::from_millis(500);

/// Why a body cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFault {
    /// The client closed the connection, or its sending direction, before the end of the body.
    Gone,
    /// The body is malformed, too large or too slow.
    Refused(Refusal),
    /// The response to the request is finished.
    Over,
}

/// The minimum speed of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MinimumPace {
    /// The longest time between two bytes.
    pub(crate) pause: Duration,
    /// Bytes per second that must arrive on average, after a first `pause`; 0: any number.
    pub(crate) rate: u64,
}

/// What a body needs of the connection on which it arrives. Any thread may call these, and no call but
/// [`Source::wait_readable`] blocks.
pub(crate) trait Source: Send + Sync {
    /// Reads what the client has sent.
    fn receive(&self, buffer: &mut [u8]) -> Io;

    /// Sends `100 Continue`.
    fn send_continue(self: Arc<Self>);

    /// True when the deadline of the request has passed and the server has sent the response itself.
    fn is_timed_out(&self) -> bool;

    /// True when more bytes may be held in memory for clients.
    fn has_memory(&self, bytes: usize) -> bool;

    /// The minimum speed of the body.
    fn pace(&self) -> MinimumPace;

    /// The time, by the clock of the server.
    fn now(&self) -> Instant;

    // How the reader of the body waits for its client, and is woken.

    /// Blocks until bytes or the end of the stream can be read, for at most `time`. False: they cannot.
    fn wait_readable(&self, time: Duration) -> bool;

    /// How often a waiting thread must call [`Source::must_end`], because its server has no other thread that
    /// would see a signal. `None`: never.
    fn interruptions(&self) -> Option<Duration>;

    /// True when the thread must stop waiting: a signal asks the server to end, or its graceful time is over.
    fn must_end(&self) -> bool;

    /// True on the thread whose runners wait under tickets: elsewhere, no tickets are issued.
    fn is_on_ticket_thread(&self) -> bool;

    /// Wakes the greenlet with this ticket at the next event of the socket, or when [`Source::wake_reader`] is
    /// called.
    fn wake_at_input(&self, ticket: u64);

    /// Wakes the greenlet with this ticket now. False: it cannot be woken any more.
    fn wake(&self, ticket: u64) -> bool;

    /// Wakes the greenlet that waits for input, if there is one.
    fn wake_reader(&self);
}

/// A request body that the application reads while it arrives.
pub struct BodyStream(pub(crate) Arc<Incoming>);

impl BodyStream {
    /// Reads at least a byte; 0 at the end of the body. Blocks: release the interpreter first.
    ///
    /// # Errors
    /// [`BodyFault`], and the same one again at each further call.
    pub fn read(&mut self, target: &mut [u8]) -> Result<usize, BodyFault> {
        self.0.read(target)
    }

    /// Reads what has arrived, without waiting; 0 at the end of the body. `None`: nothing has.
    ///
    /// # Errors
    /// [`BodyFault`], and the same one again at each further call.
    pub fn try_read(&mut self, target: &mut [u8]) -> Result<Option<usize>, BodyFault> {
        self.0.try_read(target)
    }

    /// Asks that the greenlet with this ticket be woken at the next event of the socket. The caller must read once more
    /// before it waits, since bytes may have arrived before this call. Returns how long it may wait. `None`: this is
    /// not the thread of the greenlets, so it has to block.
    pub fn ask(&mut self, ticket: u64) -> Option<Duration> {
        self.0.ask(ticket)
    }

    /// Asks that the greenlet with this ticket be woken as soon as the other greenlets have run. False: this is not the
    /// thread of the greenlets, or the response is over.
    pub fn come_back(&self, ticket: u64) -> bool {
        let body = lock(&self.0.0);
        body.source.as_ref().is_some_and(|source| source.is_on_ticket_thread() && source.wake(ticket))
    }

    /// The reader has waited for so long after [`BodyStream::ask`].
    pub fn has_waited(&mut self, time: Duration) {
        lock(&self.0.0).has_waited(time);
    }

    /// Frees the buffer, if it holds no bytes.
    pub fn shrink(&mut self) {
        let mut body = lock(&self.0.0);
        if body.at == body.end {
            body.free_buffer();
            (body.at, body.end) = (0, 0);
        }
    }

    /// True when every further read fails.
    pub fn has_failed(&self) -> bool {
        matches!(lock(&self.0.0).state, Reception::Failed(_))
    }
}

/// The state of a [`BodyStream`], shared by its reader and the thread that owns the connection.
pub(crate) struct Incoming(Mutex<IncomingBody>);

#[derive(Clone, Copy)]
enum Reception {
    Open,
    Done,
    Failed(BodyFault),
}

/// Whether the client waits for `100 Continue` before it sends the body.
#[derive(Clone, Copy, PartialEq)]
enum Expectation {
    /// It does not, or `100 Continue` has been sent.
    Met,
    Due,
    /// The head of a response came first. It may be withdrawn and followed by that of an error, to which the same
    /// applies.
    Unanswered,
}

struct IncomingBody {
    state: Reception,
    /// From the start of the request until its response is over.
    source: Option<Arc<dyn Source>>,
    decoder: BodyDecoder,
    /// `raw[at..end]` is received and not decoded.
    raw: Vec<u8>,
    at: usize,
    end: usize,
    /// Charged for the memory of `raw`.
    charge: Charge,
    expectation: Expectation,
    /// Readers have waited as long as they may: the next read refuses the body if nothing has arrived.
    is_late: bool,
    /// How long readers have waited since the last byte.
    silent: Duration,
    /// Bytes of the body, without its framing, that readers have received.
    received: u64,
    /// How long readers have waited in all.
    waited: Duration,
}

/// What is left of a body when the response is over.
pub(crate) enum Rest {
    /// Nothing; these bytes behind the body have been received as well.
    Complete(Vec<u8>),
    /// A part that this decoder would read from these bytes and from those that have not arrived.
    Unread(BodyDecoder, Vec<u8>),
}

impl Incoming {
    /// A body of which `received` has arrived already. `None`: there is no memory to copy that.
    pub(crate) fn new(
        decoder: BodyDecoder,
        received: &[u8],
        continue_due: bool,
        memory: &ClientMemory,
    ) -> Option<Self> {
        let mut raw = Vec::new();
        raw.try_reserve_exact(received.len()).ok()?;
        raw.extend_from_slice(received);
        let mut charge = Charge::new(memory.bodies.clone());
        charge.set(raw.capacity());
        Some(Self(Mutex::new(IncomingBody {
            state: Reception::Open,
            source: None,
            decoder,
            at: 0,
            end: raw.len(),
            raw,
            charge,
            expectation: if continue_due { Expectation::Due } else { Expectation::Met },
            is_late: false,
            silent: Duration::ZERO,
            received: 0,
            waited: Duration::ZERO,
        })))
    }

    /// The request begins: from now on the body can be read.
    pub(crate) fn attach(&self, source: Arc<dyn Source>) {
        lock(&self.0).source = Some(source);
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
        let mut body = lock(&self.0);
        loop {
            if let Some(read) = body.read_received(target)? {
                return Ok(Some(read));
            }
            let Some(source) = body.source.clone() else { return Err(BodyFault::Over) };
            // The client already has a response; the read fails so that the application ends.
            if source.is_timed_out() {
                return Err(body.failed(BodyFault::Gone));
            }
            if body.expectation == Expectation::Due {
                body.expectation = Expectation::Met;
                source.clone().send_continue();
            }
            match body.receive(&*source, target) {
                Received::Data(count) => return Ok(Some(count)),
                Received::Raw => {}
                Received::Nothing if body.is_late => return Err(body.failed(BodyFault::Refused(Part::Body.late()))),
                Received::Nothing => return Ok(None),
                Received::End => return Err(body.failed(BodyFault::Gone)),
            }
        }
    }

    fn ask(&self, ticket: u64) -> Option<Duration> {
        let body = lock(&self.0);
        // When the response is over, the next read fails: there is nothing to wait for.
        let Some(source) = &body.source else { return Some(Duration::ZERO) };
        if !source.is_on_ticket_thread() {
            return None;
        }
        source.wake_at_input(ticket);
        Some(body.patience(source.pace()))
    }

    /// Waits for bytes of the client, without the lock. The next read shows the outcome.
    fn wait(&self) {
        let body = lock(&self.0);
        let Some(source) = body.source.clone() else { return };
        let limit = body.patience(source.pace());
        drop(body);
        let interruptions = source.interruptions();
        let look = interruptions.unwrap_or(LOOK);
        let begun = source.now();
        let mut waited = Duration::ZERO;
        let mut is_readable = false;
        while !is_readable && waited < limit {
            is_readable = source.wait_readable(look.min(limit - waited));
            waited = source.now().saturating_duration_since(begun);
            if interruptions.is_some() && source.must_end() {
                lock(&self.0).failed(BodyFault::Gone);
                return;
            }
            if lock(&self.0).source.is_none() || source.is_timed_out() {
                return;
            }
        }
        lock(&self.0).has_waited(waited);
    }

    /// How long readers have waited in all.
    pub(crate) fn waited(&self) -> Duration {
        lock(&self.0).waited
    }

    /// Called for each head of a response: that of an error may replace one that was not sent. True if the connection
    /// can serve another request even if the rest of this body is never read.
    pub(crate) fn answered(&self) -> bool {
        let mut body = lock(&self.0);
        // RFC 9110 section 10.1.1: without `100 Continue` the client may send the body or not.
        if body.expectation == Expectation::Due {
            body.expectation = Expectation::Unanswered;
        }
        let is_asked_for = body.expectation == Expectation::Met;
        match body.state {
            Reception::Done => true,
            Reception::Failed(_) => false,
            Reception::Open => match body.decoder.remaining() {
                Some(left) => is_asked_for && left <= DROPPED,
                None => is_asked_for && matches!(body.decoder.clone().skip(body.raw_bytes()), BodyStep::Done { .. }),
            },
        }
    }

    /// Called when the response is over. Returns what is left, and how long readers have waited for the client.
    pub(crate) fn end(&self) -> (Rest, Duration) {
        let mut body = lock(&self.0);
        if let Some(source) = body.source.take() {
            source.wake_reader();
        }
        let raw = body.take_raw();
        let rest = match body.state {
            Reception::Done => Rest::Complete(raw),
            Reception::Open | Reception::Failed(_) => Rest::Unread(body.decoder.clone(), raw),
        };
        body.state = Reception::Failed(BodyFault::Over);
        (rest, body.waited)
    }
}

/// The result of one read of the socket.
enum Received {
    /// This many bytes of the body are in the reader's buffer.
    Data(usize),
    /// Bytes were received into `raw`, and are to be decoded.
    Raw,
    /// Nothing has arrived.
    Nothing,
    /// The client has closed the connection or its sending direction.
    End,
}

impl IncomingBody {
    /// Copies what has been received into `target`, as much as fits. `None`: there is nothing.
    fn read_received(&mut self, target: &mut [u8]) -> Result<Option<usize>, BodyFault> {
        let mut filled = 0;
        loop {
            match self.state {
                Reception::Failed(fault) if filled == 0 => return Err(fault),
                Reception::Open if filled < target.len() => {}
                _ => return Ok(Some(filled)),
            }
            // No more than fits: the decoder counts all data of its input as read.
            let window = &self.raw[self.at..self.end.min(self.at + target.len() - filled)];
            match self.decoder.decode(window) {
                BodyStep::Data { consumed, data } => {
                    let data = &window[data];
                    target[filled..filled + data.len()].copy_from_slice(data);
                    filled += data.len();
                    let count = data.len();
                    self.at += consumed;
                    self.count_received(count);
                }
                BodyStep::Done { consumed } => {
                    self.at += consumed;
                    self.state = Reception::Done;
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

    /// Counts body bytes; the last one of a known length ends the body.
    fn count_received(&mut self, count: usize) {
        self.received += count as u64;
        if self.decoder.remaining() == Some(0) {
            self.state = Reception::Done;
        }
    }

    /// Reads the socket once: directly into the reader's buffer if every byte is data.
    fn receive(&mut self, source: &dyn Source, target: &mut [u8]) -> Received {
        (self.at, self.end) = (0, 0);
        let io = if let Some(left) = self.decoder.remaining() {
            self.free_buffer();
            let room = usize::try_from(left).unwrap_or(usize::MAX).min(target.len());
            source.receive(&mut target[..room])
        } else {
            self.make_buffer(source);
            source.receive(&mut self.raw)
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
        self.count_received(count);
        Received::Data(count)
    }

    /// Makes `raw` a buffer to receive into; a small one if there is no memory for a large one.
    fn make_buffer(&mut self, source: &dyn Source) {
        if self.raw.len() >= BUFFER {
            return;
        }
        let has_room = source.has_memory(BUFFER);
        if !has_room && self.raw.len() >= SMALL_BUFFER {
            return;
        }
        let mut buffer = Vec::new();
        let size = if has_room && buffer.try_reserve_exact(BUFFER).is_ok() { BUFFER } else { SMALL_BUFFER };
        buffer.resize(size, 0);
        self.raw = buffer;
        self.charge.set(self.raw.capacity());
    }

    fn free_buffer(&mut self) {
        self.raw = Vec::new();
        self.charge.set(0);
    }

    /// Removes and returns the received but undecoded bytes.
    fn take_raw(&mut self) -> Vec<u8> {
        let mut raw = std::mem::take(&mut self.raw);
        self.charge.set(0);
        raw.truncate(self.end);
        raw.drain(..self.at.min(raw.len()));
        raw.shrink_to_fit();
        raw
    }

    /// Notes that a reader has waited for this time. Its next read looks for bytes.
    fn has_waited(&mut self, time: Duration) {
        self.waited += time;
        self.silent += time;
        self.is_late = self.source.as_ref().is_some_and(|source| self.patience(source.pace()) < EARLY);
    }

    /// The received but undecoded bytes.
    fn raw_bytes(&self) -> &[u8] {
        self.raw.get(self.at..self.end).unwrap_or(&[])
    }

    /// How long a reader waits for the next byte: for `pause` at most, and less if the body has been slower than `rate`
    /// on average. Only the time in which readers wait counts.
    fn patience(&self, MinimumPace { pause, rate }: MinimumPace) -> Duration {
        let left = pause.saturating_sub(self.silent);
        match (self.received * 1_000).checked_div(rate) {
            Some(time) => left.min(pause.saturating_add(Duration::from_millis(time)).saturating_sub(self.waited)),
            None => left,
        }
    }

    fn failed(&mut self, fault: BodyFault) -> BodyFault {
        if matches!(self.state, Reception::Open) {
            self.state = Reception::Failed(fault);
        }
        fault
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, Instant};

    use tailrace_http::body::BodyDecoder;
    use tailrace_http::framing::BodyLength;
    use tailrace_os::clock::Clock;
    use tailrace_os::socket::Io;
    use tailrace_os::sync::lock;

    use super::{BUFFER, BodyFault, BodyStream, Incoming, LOOK, MinimumPace, Rest, SMALL_BUFFER, Source};
    use crate::request::memory::ClientMemory;
    use crate::request::part::Part;

    const PAUSE: Duration = Duration::from_secs(30);

    #[derive(Default)]
    struct Wire {
        /// What each read returns; `None`: nothing until a wait of [`LOOK`].
        input: VecDeque<Option<Vec<u8>>>,
        has_ended: bool,
        continues: usize,
        is_timed_out: bool,
        must_end: bool,
        waits: Vec<Duration>,
        tickets: Vec<u64>,
        woken: Vec<u64>,
        readers_woken: usize,
    }

    /// A client without a socket. Each wait lasts its whole time, by moving the clock.
    struct Scripted {
        wire: Mutex<Wire>,
        clock: Clock,
        rate: u64,
        memory: usize,
        interruptions: Option<Duration>,
        is_on_ticket_thread: bool,
    }

    impl Source for Scripted {
        fn receive(&self, buffer: &mut [u8]) -> Io {
            let mut wire = lock(&self.wire);
            match wire.input.pop_front() {
                None if wire.has_ended => Io::End,
                None => Io::WouldBlock,
                Some(None) => {
                    wire.input.push_front(None);
                    Io::WouldBlock
                }
                Some(Some(mut bytes)) => {
                    let count = bytes.len().min(buffer.len());
                    buffer[..count].copy_from_slice(&bytes[..count]);
                    bytes.drain(..count);
                    if !bytes.is_empty() {
                        wire.input.push_front(Some(bytes));
                    }
                    Io::Moved(count)
                }
            }
        }

        fn send_continue(self: Arc<Self>) {
            lock(&self.wire).continues += 1;
        }

        fn is_timed_out(&self) -> bool {
            lock(&self.wire).is_timed_out
        }

        fn has_memory(&self, bytes: usize) -> bool {
            bytes <= self.memory
        }

        fn pace(&self) -> MinimumPace {
            MinimumPace { pause: PAUSE, rate: self.rate }
        }

        fn now(&self) -> Instant {
            self.clock.read()
        }

        fn wait_readable(&self, time: Duration) -> bool {
            let mut wire = lock(&self.wire);
            wire.waits.push(time);
            self.clock.advance(time);
            wire.input.pop_front_if(|bytes| bytes.is_none() && time >= LOOK);
            !wire.input.is_empty()
        }

        fn interruptions(&self) -> Option<Duration> {
            self.interruptions
        }

        fn must_end(&self) -> bool {
            lock(&self.wire).must_end
        }

        fn is_on_ticket_thread(&self) -> bool {
            self.is_on_ticket_thread
        }

        fn wake_at_input(&self, ticket: u64) {
            lock(&self.wire).tickets.push(ticket);
        }

        fn wake(&self, ticket: u64) -> bool {
            lock(&self.wire).woken.push(ticket);
            true
        }

        fn wake_reader(&self) {
            lock(&self.wire).readers_woken += 1;
        }
    }

    fn source(input: &[Option<&[u8]>]) -> Scripted {
        let input = input.iter().map(|bytes| bytes.map(<[u8]>::to_vec)).collect();
        Scripted {
            wire: Mutex::new(Wire { input, ..Wire::default() }),
            clock: Clock::new(),
            rate: 0,
            memory: usize::MAX,
            interruptions: None,
            is_on_ticket_thread: false,
        }
    }

    fn known(length: u64) -> BodyDecoder {
        BodyDecoder::new(BodyLength::Known(length), u64::MAX)
    }

    fn chunked() -> BodyDecoder {
        BodyDecoder::new(BodyLength::Chunked, u64::MAX)
    }

    /// A body on this connection, its state, and the memory that is charged for it.
    fn body(
        decoder: BodyDecoder,
        received: &[u8],
        source: &Arc<Scripted>,
    ) -> (BodyStream, Arc<Incoming>, ClientMemory) {
        let memory = ClientMemory::new(usize::MAX, usize::MAX);
        let incoming = Arc::new(Incoming::new(decoder, received, false, &memory).unwrap());
        incoming.attach(source.clone());
        (BodyStream(incoming.clone()), incoming, memory)
    }

    fn read_all(stream: &mut BodyStream) -> Result<Vec<u8>, BodyFault> {
        let (mut all, mut block) = (Vec::new(), [0; 7]);
        loop {
            match stream.read(&mut block)? {
                0 => return Ok(all),
                count => all.extend_from_slice(&block[..count]),
            }
        }
    }

    #[test]
    fn a_body_is_read_as_it_comes() {
        let source = Arc::new(source(&[Some(b"56789"), None, Some(b"abcdef")]));
        let (mut stream, incoming, memory) = body(known(16), b"01234", &source);
        assert_eq!(memory.bodies.used(), 5);
        assert_eq!(read_all(&mut stream).unwrap(), b"0123456789abcdef");
        assert_eq!(stream.read(&mut [0; 4]), Ok(0));
        assert!(matches!(incoming.end().0, Rest::Complete(rest) if rest.is_empty()));
        assert_eq!(memory.bodies.used(), 0);
    }

    #[test]
    fn what_follows_the_last_chunk_is_given_back() {
        let source = Arc::new(source(&[Some(b"3\r\nabc\r\n2\r"), Some(b"\nde\r\n0\r\n\r\nGET /"), Some(b" next")]));
        let (mut stream, incoming, memory) = body(chunked(), b"", &source);
        assert_eq!(read_all(&mut stream).unwrap(), b"abcde");
        assert_eq!(memory.bodies.used(), BUFFER);
        let (rest, waited) = incoming.end();
        assert!(matches!(rest, Rest::Complete(rest) if rest == b"GET /"));
        assert_eq!((waited, memory.bodies.used()), (Duration::ZERO, 0));
        assert_eq!(lock(&source.wire).readers_woken, 1);
    }

    #[test]
    fn the_buffer_is_small_where_memory_is_short_and_freed_where_it_is_empty() {
        let source = Arc::new(Scripted { memory: 10_000, ..source(&[Some(b"3\r\nabc\r\n")]) });
        let (mut stream, _, memory) = body(chunked(), b"", &source);
        assert_eq!(stream.try_read(&mut [0; 2]), Ok(Some(2)));
        assert_eq!(memory.bodies.used(), SMALL_BUFFER);
        stream.shrink();
        assert_eq!(memory.bodies.used(), SMALL_BUFFER, "it holds a byte");
        assert_eq!(stream.try_read(&mut [0; 2]), Ok(Some(1)));
        assert_eq!(stream.try_read(&mut [0; 2]), Ok(None));
        stream.shrink();
        assert_eq!(memory.bodies.used(), 0);
    }

    #[test]
    fn every_read_after_the_end_of_the_response_fails() {
        let source = Arc::new(source(&[Some(b"more")]));
        let (mut stream, incoming, _) = body(known(9), b"", &source);
        assert_eq!(stream.try_read(&mut [0; 2]), Ok(Some(2)));
        let Rest::Unread(decoder, raw) = incoming.end().0 else { panic!("it is complete") };
        assert_eq!((decoder.remaining(), raw.as_slice()), (Some(7), b"".as_slice()));
        assert_eq!(stream.read(&mut [0; 2]), Err(BodyFault::Over));
        assert_eq!(stream.try_read(&mut [0; 2]), Err(BodyFault::Over));
        assert_eq!(stream.ask(1), Some(Duration::ZERO));
        assert!(stream.has_failed() && !stream.come_back(1));
    }

    #[test]
    fn a_client_that_leaves_fails_every_read() {
        let source = Arc::new(source(&[Some(b"abc")]));
        lock(&source.wire).has_ended = true;
        let (mut stream, incoming, _) = body(known(9), b"", &source);
        assert_eq!(stream.read(&mut [0; 8]), Ok(3));
        assert!(!stream.has_failed());
        assert_eq!(stream.read(&mut [0; 8]), Err(BodyFault::Gone));
        assert!(stream.has_failed());
        lock(&source.wire).has_ended = false;
        assert_eq!(stream.read(&mut [0; 8]), Err(BodyFault::Gone));
        assert!(!incoming.answered());
    }

    #[test]
    fn a_malformed_body_is_refused_after_what_came_before() {
        let source = Arc::new(source(&[]));
        let (mut stream, _, _) = body(chunked(), b"3\r\nabc\r\nx\r\n", &source);
        let mut block = [0; 8];
        assert_eq!(stream.read(&mut block), Ok(3));
        assert!(matches!(stream.read(&mut block), Err(BodyFault::Refused(refusal)) if refusal.status == 400));
        assert!(matches!(stream.read(&mut block), Err(BodyFault::Refused(refusal)) if refusal.status == 400));
    }

    #[test]
    fn a_client_that_pauses_too_long_is_refused() {
        let source = Arc::new(source(&[]));
        let (mut stream, incoming, _) = body(known(9), b"", &source);
        assert_eq!(stream.read(&mut [0; 8]), Err(BodyFault::Refused(Part::Body.late())));
        assert!((PAUSE..PAUSE * 2).contains(&incoming.waited()), "{:?}", incoming.waited());
        // Between these waits it checks whether the response is over.
        assert!(lock(&source.wire).waits.len() > 10);
    }

    #[test]
    fn a_body_that_is_slower_than_the_rate_is_refused_though_it_never_pauses_long() {
        let bytes: Vec<Option<&[u8]>> = (0..1_000).flat_map(|_| [None, Some(b"x".as_slice())]).collect();
        // Each byte takes half a second.
        let slow = Arc::new(Scripted { rate: 100, ..source(&bytes) });
        let (mut stream, incoming, _) = body(known(1_000), b"", &slow);
        assert_eq!(read_all(&mut stream), Err(BodyFault::Refused(Part::Body.late())));
        assert!(incoming.waited() < PAUSE * 2, "{:?}", incoming.waited());
        let fast_enough = Arc::new(Scripted { rate: 1, ..source(&bytes) });
        let (mut stream, incoming, _) = body(known(1_000), b"", &fast_enough);
        assert_eq!(read_all(&mut stream).unwrap().len(), 1_000);
        assert!(incoming.waited() > PAUSE * 10, "{:?}", incoming.waited());
    }

    #[test]
    fn the_first_read_sends_100_continue_unless_the_response_came_before() {
        let memory = ClientMemory::new(usize::MAX, usize::MAX);
        let source = Arc::new(source(&[Some(b"abc")]));
        let incoming = Arc::new(Incoming::new(known(3), b"", true, &memory).unwrap());
        incoming.attach(source.clone());
        let mut stream = BodyStream(incoming.clone());
        assert_eq!(lock(&source.wire).continues, 0);
        assert_eq!(read_all(&mut stream).unwrap(), b"abc");
        assert_eq!(lock(&source.wire).continues, 1);
        assert!(incoming.answered());

        let unread = Incoming::new(known(3), b"", true, &memory).unwrap();
        unread.attach(source.clone());
        for _ in 0..2 {
            assert!(!unread.answered(), "the client may send the body or not");
        }
        assert_eq!(BodyStream(Arc::new(unread)).try_read(&mut [0; 4]), Ok(None));
        assert_eq!(lock(&source.wire).continues, 1);
    }

    #[test]
    fn a_short_rest_of_a_body_leaves_the_connection_usable() {
        let source = Arc::new(source(&[]));
        assert!(body(known(64 * 1024), b"", &source).1.answered());
        assert!(!body(known(64 * 1024 + 1), b"", &source).1.answered());
        assert!(body(chunked(), b"3\r\nabc\r\n0\r\n\r\n", &source).1.answered());
        assert!(!body(chunked(), b"3\r\nabc\r\n", &source).1.answered());
    }

    #[test]
    fn reads_fail_after_the_server_has_sent_the_response_itself() {
        let source = Arc::new(source(&[Some(b"abc")]));
        lock(&source.wire).is_timed_out = true;
        let (mut stream, _, _) = body(known(9), b"x", &source);
        // What had arrived can still be read.
        assert_eq!(stream.read(&mut [0; 8]), Ok(1));
        assert_eq!(stream.read(&mut [0; 8]), Err(BodyFault::Gone));
    }

    #[test]
    fn a_thread_that_must_look_for_signals_stops_waiting_at_one() {
        let often = Duration::from_millis(100);
        let source = Arc::new(Scripted { interruptions: Some(often), ..source(&[]) });
        lock(&source.wire).must_end = true;
        let (mut stream, _, _) = body(known(9), b"", &source);
        assert_eq!(stream.read(&mut [0; 8]), Err(BodyFault::Gone));
        assert_eq!(lock(&source.wire).waits, [often]);
    }

    #[test]
    fn a_greenlet_is_woken_by_its_ticket_and_a_thread_has_to_block() {
        let greenlet = Arc::new(Scripted { is_on_ticket_thread: true, ..source(&[]) });
        let (mut stream, _, _) = body(known(9), b"", &greenlet);
        assert_eq!(stream.ask(7), Some(PAUSE));
        assert!(stream.come_back(8));
        assert_eq!(lock(&greenlet.wire).tickets, [7]);
        assert_eq!(lock(&greenlet.wire).woken, [8]);
        stream.has_waited(PAUSE / 2);
        assert_eq!(stream.ask(7), Some(PAUSE / 2));
        stream.has_waited(PAUSE / 2);
        assert_eq!(stream.try_read(&mut [0; 8]), Err(BodyFault::Refused(Part::Body.late())));

        let thread = Arc::new(source(&[]));
        let (mut stream, _, _) = body(known(9), b"", &thread);
        assert_eq!((stream.ask(7), stream.come_back(8)), (None, false));
        assert!(lock(&thread.wire).tickets.is_empty());
    }
}
