//! An encrypted connection (TLS 1.2 and 1.3, RFC 8446).
//!
//! rustls keeps no bytes here: what arrives is decrypted in a buffer of the thread, and what leaves is encrypted in
//! one. A connection has memory of its own only for a record that has not arrived whole, for bytes that its reader had
//! no room for, and for encrypted bytes that the socket has not accepted. The last are at most [`RECORDS`] records,
//! whose plain bytes stay with the caller until they have left: see [`Session::owed`].
//!
//! The handshake is a part of the reads. Its time is that of the first request, so it holds no thread.

use std::cell::RefCell;
use std::io::IoSlice;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tailrace_observe::metrics::Metric;
use tailrace_observe::stats::Counts;
use tailrace_os::file;
use tailrace_os::socket;
use tailrace_os::socket::Io;
use tailrace_os::sync::lock;
use tailrace_tls::config::{Certificates, asked_name};
use tailrace_tls::facts::Facts;
use tailrace_tls::rustls::HandshakeKind;
use tailrace_tls::rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use tailrace_tls::rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus, WriteTraffic};

use crate::request::memory::{Charge, ClientMemory};
use crate::transport::plain::Plain;
use crate::transport::{HANDSHAKE, Transport};

/// Bytes of content in a record at most (RFC 8446 section 5.1).
const RECORD: usize = 16 * 1024;
/// More than what a record adds to its content.
const OVERHEAD: usize = 64;
/// So many records are encrypted before they are written together.
const RECORDS: usize = 4;
/// Bytes that are read at once at most.
const READ: usize = 64 * 1024;
/// Fewer are not asked for, so that a short message of the client's is read at once.
const MIN_READ: usize = 4 * 1024;
/// Maximum size of an incomplete record or handshake message; a client that exceeds it is disconnected. Client
/// certificates are shorter, and a record exceeds its content by at most 261 bytes (RFC 8446 section 5.2).
const MAX_INCOMPLETE: usize = RECORD + 512;
/// Maximum size of unsent protocol answers; a client that does not read them is disconnected.
const MAX_UNSENT: usize = 64 * 1024;
/// Maximum number of encrypted bytes without content; a client that sends more is disconnected. Each record costs
/// time, and rustls limits only records of one kind.
const MAX_SILENT: usize = 64 * 1024;
/// Encrypted bytes that one call reads before other connections get their turn. With records of the usual size, the
/// caller's buffer fills first.
const TURN: usize = 96 * 1024;

/// What a client is told that does not speak TLS.
const PLAIN: &str = "This port serves HTTPS. Write https:// instead of http://.";

thread_local! {
    static BUFFERS: RefCell<Buffers> = const { RefCell::new(Buffers::new()) };
}

/// The buffers of a thread, whose bytes mean nothing between two calls.
struct Buffers {
    arriving: Vec<u8>,
    leaving: Vec<u8>,
    /// Small slices for one record, or a part of a file.
    plain: Vec<u8>,
}

impl Buffers {
    const fn new() -> Self {
        Self { arriving: Vec::new(), leaving: Vec::new(), plain: Vec::new() }
    }
}

/// Makes a buffer at least this long.
fn at_least(buffer: &mut Vec<u8>, length: usize) {
    if buffer.len() < length {
        buffer.resize(length, 0);
    }
}

/// What the encrypted connections of a server share.
pub(crate) struct TlsContext {
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) memory: Arc<ClientMemory>,
    pub(crate) counts: Arc<Counts>,
}

pub(crate) struct Tls {
    plain: Plain,
    context: Arc<TlsContext>,
    session: Mutex<Session>,
    facts: OnceLock<Arc<Facts>>,
    /// See [`Transport::has_paused`].
    has_paused: AtomicBool,
    /// The client is to see that the connection has not ended as it should: it gets no `close_notify`.
    is_cut: AtomicBool,
}

/// How far the connection is.
enum TlsStage {
    /// A PROXY header comes first, in plain text.
    Clear,
    /// Nothing of the client's has arrived.
    Silent,
    /// The handshake, and what follows it.
    Secure(Box<UnbufferedServerConnection>),
    /// Nothing moves any more.
    Failed,
}

/// Why a connection fails.
enum SessionFault {
    /// The client does not speak TLS.
    Plain,
    /// It breaks the protocol, or there is no version or key that both have.
    Tls,
}

struct Session {
    stage: TlsStage,
    /// The name that the client has asked for.
    name: Option<String>,
    /// Encrypted bytes of a record that has not arrived whole.
    arrived: Vec<u8>,
    /// `arrived` has not been looked at since it has grown.
    is_fresh: bool,
    /// Encrypted bytes since the last content.
    silent: usize,
    /// Decrypted bytes that the reader had no room for, from `read` on.
    decrypted: Vec<u8>,
    read: usize,
    /// Encrypted bytes that the socket has not accepted, from `written` on.
    leaving: Vec<u8>,
    written: usize,
    /// Plain bytes of the caller's that are encrypted in `leaving` and that it was not told are accepted. It gives them
    /// again, and is told once they have left.
    owed: usize,
    /// The client sends no more.
    has_ended: bool,
    /// The direction to the client ends once `leaving` has left.
    is_ending: bool,
    charge: Charge,
}

impl Session {
    /// Moves decrypted bytes to the reader.
    fn take_decrypted(&mut self, buffer: &mut [u8]) -> usize {
        let rest = &self.decrypted[self.read..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.read += count;
        if count > 0 && self.read == self.decrypted.len() {
            (self.decrypted, self.read) = (Vec::new(), 0);
        }
        count
    }

    /// Bytes that have arrived and that the reader does not have.
    fn held(&self) -> usize {
        self.arrived.len() + self.decrypted.len() - self.read
    }

    /// Fills `arriving` with what has arrived of an incomplete record, and with what the socket has, for a reader with
    /// this much room. Returns the bytes in it, and whether the socket may have more.
    fn read(&mut self, socket: BorrowedFd<'_>, room: usize, arriving: &mut Vec<u8>) -> Result<(usize, bool), Io> {
        let kept = self.arrived.len();
        let most = room.saturating_sub(kept).clamp(MIN_READ, READ);
        at_least(arriving, kept + most);
        arriving[..kept].copy_from_slice(&self.arrived);
        if std::mem::take(&mut self.is_fresh) {
            return Ok((kept, true));
        }
        if self.owed == 0 && self.leaving.len() - self.written > MAX_UNSENT {
            return Err(Io::Broken);
        }
        match socket::receive(socket, &mut arriving[kept..kept + most]) {
            Io::Moved(count) => Ok((kept + count, count == most)),
            other => Err(other),
        }
    }

    /// Keeps the bytes of an incomplete record.
    fn keep(&mut self, rest: &[u8], memory: &ClientMemory) {
        if !(rest.is_empty() && self.arrived.is_empty()) {
            self.arrived = rest.to_vec();
        }
        self.charge(memory);
    }

    fn charge(&mut self, memory: &ClientMemory) {
        let held = self.arrived.capacity() + self.decrypted.capacity() + self.leaving.capacity();
        if held != self.charge.bytes() {
            self.charge.set_in(&memory.requests, held);
        }
    }

    /// Processes records. Content goes to `buffer`, and what it has no room for to the session; answers are to leave.
    /// Returns how many bytes of the records and of the buffer are used. After a fault, an alert is to leave.
    fn process(
        &mut self,
        arriving: &mut [u8],
        buffer: &mut [u8],
        certificates: &Certificates,
    ) -> Result<(usize, usize), SessionFault> {
        if let TlsStage::Silent = self.stage {
            match arriving.first() {
                None => return Ok((0, 0)),
                Some(&HANDSHAKE) => {}
                Some(_) => return Err(SessionFault::Plain),
            }
            let made = UnbufferedServerConnection::new(certificates.config());
            self.stage = TlsStage::Secure(Box::new(made.map_err(|_| SessionFault::Tls)?));
        }
        let TlsStage::Secure(connection) = &mut self.stage else { return Err(SessionFault::Tls) };
        let (mut at, mut filled, mut has_failed) = (0, 0, false);
        loop {
            // After a fault, too, which then comes again, behind its alert.
            let UnbufferedStatus { mut discard, state, .. } = connection.process_tls_records(&mut arriving[at..]);
            let is_over = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let Ok(record) = record else {
                            has_failed = true;
                            break;
                        };
                        discard += record.discard;
                        let (now, later) = record.payload.split_at(record.payload.len().min(buffer.len() - filled));
                        buffer[filled..filled + now.len()].copy_from_slice(now);
                        filled += now.len();
                        self.decrypted.extend_from_slice(later);
                    }
                    false
                }
                Ok(ConnectionState::EncodeTlsData(data)) => {
                    has_failed |= encode(data, &mut self.leaving).is_none();
                    false
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    false
                }
                Ok(ConnectionState::PeerClosed) => {
                    self.has_ended = true;
                    false
                }
                Ok(ConnectionState::Closed) => {
                    self.has_ended = true;
                    true
                }
                Ok(_) => true,
                Err(_) => std::mem::replace(&mut has_failed, true),
            };
            at += discard;
            if is_over {
                break;
            }
        }
        if let Some(name) = asked_name() {
            self.name = Some(name);
        }
        if has_failed { Err(SessionFault::Tls) } else { Ok((at, filled)) }
    }

    /// Writes the encrypted bytes that are to leave, and ends the direction if that was asked for.
    fn flush(&mut self, socket: BorrowedFd<'_>) -> Io {
        while self.written < self.leaving.len() {
            match socket::transmit(socket, &[IoSlice::new(&self.leaving[self.written..])], false) {
                Io::Moved(count) => self.written += count,
                other => return other,
            }
        }
        if self.written > 0 {
            (self.leaving, self.written) = (Vec::new(), 0);
        }
        if std::mem::take(&mut self.is_ending) {
            socket::end_sending(socket);
        }
        Io::Moved(0)
    }

    /// Encrypts up to [`RECORDS`] records into `leaving`. Returns the bytes in it, and where each record ends in them.
    /// `None`: the connection cannot send.
    fn encrypt(&mut self, content: &[u8], leaving: &mut Vec<u8>) -> Option<(usize, [usize; RECORDS])> {
        let mut length = 0;
        let mut answer = Vec::new();
        let (mut ends, mut is_whole) = ([0; RECORDS], true);
        self.with_traffic(&mut answer, |traffic, answer| {
            at_least(leaving, answer.len() + RECORDS * (RECORD + OVERHEAD));
            leaving[..answer.len()].copy_from_slice(answer);
            length = answer.len();
            for (record, end) in content.chunks(RECORD).zip(&mut ends) {
                match traffic.encrypt(record, &mut leaving[length..]) {
                    Ok(count) => length += count,
                    Err(_) => is_whole = false,
                }
                *end = length;
            }
        })?;
        is_whole.then_some((length, ends))
    }

    /// Calls `work` when content can be sent, with what is to leave before it, such as the answer to a new key of the
    /// client's. `None`: no content can be sent.
    fn with_traffic(
        &mut self,
        before: &mut Vec<u8>,
        work: impl FnOnce(&mut WriteTraffic<'_, ServerConnectionData>, &[u8]),
    ) -> Option<()> {
        let TlsStage::Secure(connection) = &mut self.stage else { return None };
        loop {
            // rustls refers to the bytes of an incomplete message.
            let UnbufferedStatus { discard, state, .. } = connection.process_tls_records(&mut self.arrived);
            let is_over = match state.ok()? {
                ConnectionState::EncodeTlsData(data) => encode(data, before).is_none(),
                ConnectionState::TransmitTlsData(data) => {
                    data.done();
                    false
                }
                ConnectionState::PeerClosed => {
                    self.has_ended = true;
                    false
                }
                ConnectionState::WriteTraffic(mut traffic) => {
                    work(&mut traffic, before);
                    return Some(());
                }
                _ => true,
            };
            self.arrived.drain(..discard);
            if is_over {
                return None;
            }
        }
    }

    /// Sends the caller's bytes, as far as the socket accepts them. What it does not accept of the encrypted bytes is
    /// kept, and their plain bytes are owed.
    fn send(&mut self, socket: BorrowedFd<'_>, bytes: &[u8], more: bool, leaving: &mut Vec<u8>) -> Io {
        let mut moved = 0;
        while moved < bytes.len() {
            let content = &bytes[moved..bytes.len().min(moved + RECORDS * RECORD)];
            let Some((length, ends)) = self.encrypt(content, leaving) else { return Io::Broken };
            let more = more || moved + content.len() < bytes.len();
            let mut written = 0;
            while written < length {
                match socket::transmit(socket, &[IoSlice::new(&leaving[written..length])], more) {
                    Io::Moved(count) => written += count,
                    Io::WouldBlock => break,
                    other => return other,
                }
            }
            if written < length {
                let whole = ends.iter().filter(|end| (1..=written).contains(*end)).count() * RECORD;
                self.leaving = leaving[written..length].to_vec();
                self.owed = content.len() - whole;
                moved += whole;
                break;
            }
            moved += content.len();
        }
        if moved > 0 { Io::Moved(moved) } else { Io::WouldBlock }
    }

    /// What is left of earlier calls leaves first. `None`: it has, and the caller's bytes follow. `given`: their number.
    fn finish(&mut self, socket: BorrowedFd<'_>, given: usize) -> Option<Io> {
        match self.flush(socket) {
            Io::Moved(_) => {}
            other => return Some(other),
        }
        let accepted = self.owed.min(given);
        self.owed -= accepted;
        (accepted > 0).then_some(Io::Moved(accepted))
    }
}

/// Appends what rustls has to send. `None`: it has nothing.
fn encode<D>(mut data: EncodeTlsData<'_, D>, to: &mut Vec<u8>) -> Option<()> {
    let from = to.len();
    let Err(EncodeError::InsufficientSize(needed)) = data.encode(&mut []) else { return None };
    to.resize(from + needed.required_size, 0);
    data.encode(&mut to[from..]).ok().map(drop)
}

impl Tls {
    /// Takes over the connected, non-blocking socket of the connection with this key. `is_clear`: until
    /// [`Transport::secure`], bytes are not encrypted.
    pub(crate) fn new(socket: OwnedFd, key: u64, context: Arc<TlsContext>, is_clear: bool) -> Self {
        let session = Session {
            stage: if is_clear { TlsStage::Clear } else { TlsStage::Silent },
            name: None,
            arrived: Vec::new(),
            is_fresh: false,
            silent: 0,
            decrypted: Vec::new(),
            read: 0,
            leaving: Vec::new(),
            written: 0,
            owed: 0,
            has_ended: false,
            is_ending: false,
            charge: Charge::default(),
        };
        Self {
            plain: Plain::new(socket, key),
            context,
            session: Mutex::new(session),
            facts: OnceLock::new(),
            has_paused: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
        }
    }

    fn receive_encrypted(&self, session: &mut Session, socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Io {
        let mut filled = session.take_decrypted(buffer);
        let (mut turn, mut broken) = (0, false);
        BUFFERS.with_borrow_mut(|Buffers { arriving, .. }| {
            while filled < buffer.len() && !session.has_ended {
                let kept = session.arrived.len();
                let (length, may_have_more) = match session.read(socket, buffer.len() - filled, arriving) {
                    Ok(read) => read,
                    Err(Io::WouldBlock) => break,
                    Err(Io::End) => {
                        session.has_ended = true;
                        break;
                    }
                    Err(_) => {
                        broken = true;
                        break;
                    }
                };
                match session.process(&mut arriving[..length], &mut buffer[filled..], &self.context.certificates) {
                    Ok((used, made)) => {
                        filled += made;
                        session.keep(&arriving[used..length], &self.context.memory);
                        turn += length - kept;
                        session.silent = if made > 0 { 0 } else { session.silent + length - kept };
                    }
                    Err(fault) => {
                        if self.facts.get().is_none() {
                            self.context.counts.add(Metric::FailedHandshakes, 1);
                        }
                        // The alert says why.
                        let _ = session.flush(socket);
                        if let SessionFault::Plain = fault {
                            let length = PLAIN.len();
                            let page = format!(
                                "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\
                                 Connection: close\r\n\r\n{PLAIN}"
                            );
                            socket::refuse(socket, page.as_bytes());
                        }
                        session.stage = TlsStage::Failed;
                        broken = true;
                        break;
                    }
                }
                // Before it says that there is nothing, it looks: the end may have come with what had no content.
                if !may_have_more && filled > 0 {
                    break;
                }
                if session.silent > MAX_SILENT || session.arrived.len() > MAX_INCOMPLETE {
                    if self.facts.get().is_none() {
                        self.context.counts.add(Metric::FailedHandshakes, 1);
                    }
                    session.stage = TlsStage::Failed;
                    broken = true;
                    break;
                }
                if turn >= TURN {
                    break;
                }
            }
        });
        self.note_facts(session);
        // What the handshake answers, which the write event otherwise sends.
        broken |= matches!(session.flush(socket), Io::Broken | Io::End);
        session.charge(&self.context.memory);
        // A close_notify, too, has no event of its own.
        let has_paused = filled > 0 && (broken || session.has_ended || turn >= TURN);
        self.has_paused.store(has_paused, Ordering::Relaxed);
        match filled {
            0 if broken => Io::Broken,
            0 if session.has_ended => Io::End,
            0 => Io::WouldBlock,
            _ => Io::Moved(filled),
        }
    }

    fn note_facts(&self, session: &mut Session) {
        if self.facts.get().is_none()
            && let TlsStage::Secure(connection) = &session.stage
            && !connection.is_handshaking()
        {
            let counts = &self.context.counts;
            counts.add(Metric::Handshakes, 1);
            counts.add(Metric::Resumed, u64::from(connection.handshake_kind() == Some(HandshakeKind::Resumed)));
            let _ = self.facts.set(Arc::new(Facts::of(connection, session.name.take())));
        }
    }

    /// Says that no more comes, if the socket accepts it at once or later.
    fn close_notify(session: &mut Session) {
        let mut leaving = std::mem::take(&mut session.leaving);
        let mut alert = [0; OVERHEAD];
        let mut length = 0;
        session.with_traffic(&mut leaving, |traffic, _| length = traffic.queue_close_notify(&mut alert).unwrap_or(0));
        leaving.extend_from_slice(&alert[..length]);
        session.leaving = leaving;
    }
}

impl Transport for Tls {
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.plain.socket()
    }

    fn set_low_water(&self, bytes: u32) {
        if self.plain.socket().is_none() {
            return;
        }
        // A part of them may have arrived here already.
        let arrived = if bytes > 1 { lock(&self.session).held() } else { 0 };
        self.plain.set_low_water(bytes.saturating_sub(u32::try_from(arrived).unwrap_or(bytes)).max(1));
    }

    fn receive(&self, buffer: &mut [u8]) -> Io {
        let Some(socket) = self.plain.socket() else { return Io::Broken };
        let mut session = lock(&self.session);
        match session.stage {
            TlsStage::Clear => self.plain.receive(buffer),
            TlsStage::Failed => Io::Broken,
            TlsStage::Silent | TlsStage::Secure(_) => self.receive_encrypted(&mut session, socket, buffer),
        }
    }

    fn has_paused(&self) -> bool {
        self.has_paused.load(Ordering::Relaxed)
    }

    fn transmit(&self, slices: &[IoSlice<'_>], more: bool) -> Io {
        let Some(socket) = self.plain.socket() else { return Io::Broken };
        let mut session = lock(&self.session);
        if let Some(finished) = session.finish(socket, slices.iter().map(|slice| slice.len()).sum()) {
            return finished;
        }
        let moved = BUFFERS.with_borrow_mut(|Buffers { leaving, plain, .. }| {
            if let [only] = slices {
                return session.send(socket, only, more, leaving);
            }
            let mut moved = 0;
            let mut slices = slices.iter().peekable();
            let mut at = 0;
            loop {
                plain.clear();
                while let Some(slice) = slices.peek()
                    && plain.len() < RECORDS * RECORD
                {
                    let part = &slice[at..slice.len().min(at + RECORDS * RECORD - plain.len())];
                    plain.extend_from_slice(part);
                    at += part.len();
                    if at == slice.len() {
                        slices.next();
                        at = 0;
                    }
                }
                match session.send(socket, plain, more || slices.peek().is_some(), leaving) {
                    Io::Moved(count) => moved += count,
                    Io::WouldBlock => {}
                    other => return other,
                }
                if session.owed > 0 || slices.peek().is_none() {
                    return if moved > 0 { Io::Moved(moved) } else { Io::WouldBlock };
                }
            }
        });
        session.charge(&self.context.memory);
        moved
    }

    fn transmit_file(&self, file: BorrowedFd<'_>, offset: u64, count: usize) -> Io {
        let Some(socket) = self.plain.socket() else { return Io::Broken };
        let mut session = lock(&self.session);
        if let Some(finished) = session.finish(socket, count) {
            return finished;
        }
        let mut moved = 0;
        let sent = BUFFERS.with_borrow_mut(|Buffers { leaving, plain, .. }| {
            while moved < count {
                let most = (count - moved).min(RECORDS * RECORD);
                plain.resize(most, 0);
                let read = match file::read_at(file, plain, offset + moved as u64) {
                    Ok(0) => return Io::End,
                    Ok(read) => read,
                    Err(_) => return Io::Broken,
                };
                match session.send(socket, &plain[..read], moved + read < count, leaving) {
                    Io::Moved(count) => moved += count,
                    other => return other,
                }
                if session.owed > 0 {
                    break;
                }
            }
            Io::WouldBlock
        });
        session.charge(&self.context.memory);
        if moved > 0 { Io::Moved(moved) } else { sent }
    }

    fn notify_writable(&self) {
        if let Some(socket) = self.plain.socket() {
            let mut session = lock(&self.session);
            let _ = session.flush(socket);
            session.charge(&self.context.memory);
        }
    }

    fn secure(&self, rest: &[u8]) -> bool {
        let mut session = lock(&self.session);
        session.stage = TlsStage::Silent;
        session.arrived = rest.to_vec();
        session.is_fresh = !rest.is_empty();
        true
    }

    fn held_of_handshake(&self) -> usize {
        if self.facts.get().is_some() {
            return 0;
        }
        self.session.try_lock().map_or(0, |session| session.arrived.capacity())
    }

    fn shed_handshake(&self) -> bool {
        let mut session = lock(&self.session);
        if self.facts.get().is_some() {
            return false;
        }
        self.context.counts.add(Metric::FailedHandshakes, 1);
        session.stage = TlsStage::Failed;
        (session.arrived, session.leaving, session.written) = (Vec::new(), Vec::new(), 0);
        session.charge(&self.context.memory);
        drop(session);
        // The event makes the owner close the connection.
        self.shut_down();
        true
    }

    fn facts(&self) -> Option<Arc<Facts>> {
        self.facts.get().cloned()
    }

    fn wait_readable(&self, time: Duration) -> bool {
        if self.plain.socket().is_some() && !lock(&self.session).decrypted.is_empty() {
            return true;
        }
        self.plain.wait_readable(time)
    }

    fn wait_writable(&self, time: Duration) {
        self.plain.wait_writable(time);
    }

    fn end_sending(&self) {
        let Some(socket) = self.plain.socket() else { return };
        let mut session = lock(&self.session);
        Self::close_notify(&mut session);
        session.is_ending = true;
        // If the socket does not accept it now, the write event continues.
        let _ = session.flush(socket);
    }

    fn end_receiving(&self) {
        self.plain.end_receiving();
    }

    fn give_away(&self, write_timeout: Duration) {
        self.plain.give_away(write_timeout);
    }

    fn shut_down(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
        self.plain.shut_down();
    }

    fn abort(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
        self.plain.abort();
    }

    fn reset_on_close(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
        self.plain.reset_on_close();
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        // A connection that has ended while it was idle.
        if !self.is_cut.load(Ordering::Relaxed)
            && let Some(socket) = self.plain.socket()
            && let Ok(session) = self.session.get_mut()
            && session.owed == 0
        {
            Self::close_notify(session);
            let _ = session.flush(socket);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::{fs, process};

    use tailrace_os::socket::Io;
    use tailrace_tls::certificate::CertificateFiles;
    use tailrace_tls::config::{Certificates, SECRET, TlsSettings};
    use tailrace_tls::rustls::pki_types::pem::PemObject;
    use tailrace_tls::rustls::pki_types::{CertificateDer, ServerName};
    use tailrace_tls::rustls::{ClientConfig, ClientConnection, RootCertStore};
    use tailrace_tls::self_signed::self_signed;

    use super::{READ, Tls, TlsContext};
    use crate::request::memory::ClientMemory;
    use crate::transport::Transport;

    /// Certificates, and a client that trusts them.
    pub(crate) fn certificates(name: &str) -> (Arc<Certificates>, ClientConnection) {
        let path = std::env::temp_dir().join(format!("tailrace-tls-{name}-{}", process::id()));
        let (certificate, key) = self_signed(vec!["localhost".to_owned()]).unwrap();
        fs::write(&path, format!("{certificate}{key}")).unwrap();
        let settings = TlsSettings {
            certificates: vec![CertificateFiles { chain: path.clone(), key: None }],
            password: None,
            only_1_3: false,
            clients: None,
            ticket_secret: [1; SECRET],
        };
        let (certificates, _) = Certificates::load(settings).unwrap();
        fs::remove_file(path).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        (Arc::new(certificates), ClientConnection::new(Arc::new(config), name).unwrap())
    }

    #[test]
    fn a_turn_ends_among_many_small_records_and_none_is_lost() {
        // Of 23 bytes each: more than two reads, which are a turn.
        const RECORDS: usize = 2 * READ / 23 + 1000;
        let (certificates, mut client) = certificates("small");
        let memory = Arc::new(ClientMemory::new(usize::MAX, usize::MAX));
        let context = Arc::new(TlsContext { certificates, memory, counts: Arc::default() });
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let tls = Tls::new(ours.into(), 1, context, false);
        let mut buffer = vec![0; READ];
        while client.is_handshaking() {
            client.write_tls(&mut theirs).unwrap();
            assert_eq!(tls.receive(&mut buffer), Io::WouldBlock);
            client.read_tls(&mut theirs).unwrap();
            client.process_new_packets().unwrap();
        }
        let mut records = Vec::new();
        for _ in 0..RECORDS {
            client.writer().write_all(b"x").unwrap();
            client.write_tls(&mut records).unwrap();
        }
        theirs.write_all(&records).unwrap();
        let Io::Moved(first) = tls.receive(&mut buffer) else { panic!("nothing") };
        assert!(first < RECORDS && tls.has_paused());
        assert_eq!(tls.receive(&mut buffer), Io::Moved(RECORDS - first));
        assert!(!tls.has_paused());
        assert_eq!(tls.receive(&mut buffer), Io::WouldBlock);
    }
}
