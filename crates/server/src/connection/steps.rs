//! The steps of a connection: its owner reads, flushes, and carries out what each step of the [`ConnectionState`] decides.

use std::sync::{Arc, MutexGuard};

use tailrace_http::encode::ResponseHead;
use tailrace_observe::level::Level;
use tailrace_observe::probes;
use tailrace_os::socket::Io;

use crate::connection::driver::Connection;
use crate::connection::ownership::{self, Bits, READABLE};
use crate::connection::proxy_header::{AwaitedHeader, Taken};
use crate::connection::state::{
    ConnectionState, Effects, Event, Idleness, Message, Next, RareEffects, Rules, Shutdown,
};
use crate::connection::thread_state;
use crate::connection::transaction::Transaction;
use crate::connection::transaction_pool::with_pool;
use crate::request::stream::Source;
use crate::response::delivery::TURN;
use crate::transport::HANDSHAKE;

/// Maximum number of full reads of one connection, and of scratch buffers they fill, before others are served.
pub(crate) const READS: usize = 16;
/// Bytes of memory that must be free before a step that receives bytes. Few steps keep any of them; some keep more.
const ROOM: usize = 16 * 1024;
/// Size in bytes of one read where request bodies are streamed.
const FIRST_OF_STREAM: usize = 16 * 1024;

/// A connection whose owner has locked its state.
pub(crate) struct Steps<'c> {
    pub(crate) connection: &'c Arc<Connection>,
    pub(crate) state: MutexGuard<'c, ConnectionState>,
}

impl Steps<'_> {
    /// Takes the steps that the reported events cause. Returns what the owner does next, which is never [`Next::Read`]
    /// or [`Next::Flush`]: both are done here.
    pub(crate) fn advance(&mut self) -> Next {
        let bits = self.connection.ownership.take();
        let next = self.next_of_events(bits);
        self.serve(next, bits)
    }

    /// Reads and flushes until the next action is a different one. `bits` are the events that led to `next`.
    pub(crate) fn serve(&mut self, mut next: Next, bits: Bits) -> Next {
        let mut readable = bits;
        loop {
            next = match next {
                Next::Read => self.read(readable),
                Next::Flush => self.flush(bits),
                other => {
                    self.connection.socket().set_low_water(self.state.low_water());
                    return other;
                }
            };
            // The next read may find bytes whose event was reported earlier.
            readable |= READABLE;
        }
    }

    fn next_of_events(&mut self, bits: Bits) -> Next {
        let connection = self.connection;
        let shared = &connection.shared;
        if bits & ownership::WRITE != 0 {
            connection.socket().notify_writable();
        }
        let mut next = Next::Read;
        if self.state.is_storing() {
            next = self.step(Event::Written);
            if !matches!(next, Next::Read) {
                return next;
            }
        }
        if bits & ownership::EXPIRED != 0 && connection.deadline.has_come(shared.clock.now()) {
            let is_silent = self.state.idleness() == Some(Idleness::Silent);
            // A stop has set a new deadline.
            let has_new_handshake = || connection.opening.awaits_handshake() && connection.socket().facts().is_some();
            if is_silent && !shared.is_stopping() && has_new_handshake() {
                // Until now the time was that of the handshake.
                connection.opening.note_handshake();
                connection.set_idle_deadline();
                return Next::Rest;
            }
            return self.end_idle(Event::Expired);
        }
        if bits & ownership::EVICT_IDLE != 0 && self.state.idleness().is_some() {
            return self.end_idle(Event::EvictIdle);
        }
        if self.state.is_flushing() {
            if bits & READABLE != 0 {
                self.step(Event::Readable);
            }
            return Next::Flush;
        }
        if bits & ownership::WRITE != 0 {
            // In the other states only `100 Continue` can be queued.
            let (_, after) = connection.delivery.flush(true, u64::MAX, &shared.delivery_limits, None);
            connection.follow_up(after);
        }
        if bits & (READABLE | ownership::STOP) == 0 { Next::Rest } else { next }
    }

    /// Takes one step of the state and carries out its effects. Returns the next action.
    pub(crate) fn step(&mut self, event: Event<'_>) -> Next {
        let (next, account) = self.step_unaccounted(event);
        if let Some(transaction) = account {
            self.connection.account(transaction);
        }
        next
    }

    /// As [`Steps::step`], but leaves the account to the caller: returns the request, if there is one.
    pub(crate) fn step_unaccounted(&mut self, event: Event<'_>) -> (Next, Option<Box<Transaction>>) {
        let connection = self.connection;
        let shared = &connection.shared;
        let has_room = event.takes_bytes() && connection.make_room(ROOM);
        let effects = with_pool(|pool| {
            let rules = Rules {
                protocol: shared.protocol(connection.opening.direct_peer.listener),
                config: &shared.config,
                memory: &shared.memory,
                has_room,
                pool,
                folder: shared.disk.folder(),
                peer: connection.opening.peer(),
                is_stopping: shared.is_stopping(),
                first_request_by: connection.opening.first_request_by(),
                time: shared.clock.reading(),
            };
            self.state.step(event, &rules)
        });
        let Effects { rare, mut account, deadline, mut next } = effects;
        if let Some(rare) = rare {
            self.apply_rare(*rare, account.as_deref_mut());
        }
        if let Some(due) = deadline {
            connection.set_deadline(due);
        }
        if let Next::Run(transaction) = &mut next {
            transaction.request.tls = connection.socket().facts();
            if transaction.request.tls.is_some() {
                connection.opening.note_handshake();
            }
            probes::request_start(connection.key, &transaction.request.bytes, &transaction.request.head);
        }
        (next, account)
    }

    /// `account`: an abandoned request, which is accounted for next.
    #[cold]
    fn apply_rare(&mut self, rare: RareEffects, account: Option<&mut Transaction>) {
        let connection = self.connection;
        let Connection { shared, host, .. } = &**connection;
        let RareEffects { log, shutdown, is_refusal, not_trusted, send } = rare;
        if let Some(message) = log {
            host.log(Level::Error, &message);
        }
        match shutdown {
            None => {}
            Some(Shutdown::EndSending) => connection.socket().end_sending(),
            Some(Shutdown::Reset) => connection.socket().reset_on_close(),
        }
        if is_refusal {
            shared.count_refusal();
        }
        let peer = connection.opening.peer();
        match send {
            None => {}
            Some(Message::Page(refusal, facts)) => {
                let page = match self.state.refused().or(account) {
                    Some(Transaction { request, response, .. }) => {
                        shared.error_page(&mut response.head, &refusal, facts, request.id())
                    }
                    None => shared.error_page(&mut ResponseHead::default(), &refusal, facts, b""),
                };
                connection.delivery.outbox().queue_own(&page);
                let now = shared.clock.recent_millis();
                if let Some((level, line)) = shared.refusal_log.refused(refusal, peer.client, now) {
                    host.log(level, &line);
                }
            }
            Some(Message::Continue) => Source::send_continue(connection.clone()),
        }
        if let Some((what, peer)) = not_trusted
            && let Some(message) = shared.one_time_warnings.not_trusted(what, peer)
        {
            host.log(Level::Warning, &message);
        }
    }

    /// Reads what the client has sent and passes it to the state.
    fn read(&mut self, bits: Bits) -> Next {
        let connection = self.connection;
        let shared = &connection.shared;
        if let Some(bytes) = connection.opening.take_read() {
            // Another worker has read these. The socket may have more.
            let next = self.step(Event::Received { bytes: &bytes, more: true });
            if !matches!(next, Next::Read) {
                return next;
            }
        }
        thread_state::with_scratch(|scratch| {
            // The part of a streamed body that arrives with the head stays in memory until a thread is free, so it is
            // kept small.
            let most = if shared.config.stream_body { FIRST_OF_STREAM.min(scratch.len()) } else { scratch.len() };
            let scratch = &mut scratch[..most];
            // A runner whose thread is shared with other requests reads less, and leaves the rest to the I/O side.
            let reads = if thread_state::is_leading() { READS } else { shared.policy.reads_by_runner };
            let mut left = reads * most;
            while left > 0 {
                let (room, is_body) = match self.state.body_room() {
                    Some(room) => (room, true),
                    None => (&mut *scratch, false),
                };
                let most = room.len();
                left = left.saturating_sub(most);
                let event = match connection.socket().receive(room) {
                    Io::Moved(count) => {
                        // A short read has emptied the socket, and the next byte makes a new event. Only the end of the
                        // input, if it came with this event, still has to be read.
                        let mut more = count == most || bits & (ownership::READ_END | ownership::GONE) != 0;
                        if connection.socket().has_paused() {
                            (more, left) = (true, 0);
                        }
                        let at = if is_body { Some(0) } else { self.skip_header(&scratch[..count], &mut more) };
                        let next = match at {
                            None => return Next::Close,
                            Some(_) if is_body => self.step(Event::Filled { count, more }),
                            // Nothing follows the header yet.
                            Some(at) if at == count => Next::Read,
                            Some(at) => {
                                self.note_tls(&scratch[at..count]);
                                self.step(Event::Received { bytes: &scratch[at..count], more })
                            }
                        };
                        if !matches!(next, Next::Read) {
                            return next;
                        }
                        if more {
                            continue;
                        }
                        Event::ReadAll
                    }
                    Io::WouldBlock => Event::ReadAll,
                    Io::End => Event::EndOfInput,
                    Io::Broken => Event::Lost,
                };
                return self.step(event);
            }
            // There may be more to read; other connections are served first.
            connection.ownership.raise(ownership::READ | bits & ownership::READ_END);
            Next::Later
        })
    }

    /// Logs once that a client uses TLS on a listener without it.
    #[inline]
    fn note_tls(&self, bytes: &[u8]) {
        let Connection { shared, host, opening, .. } = &**self.connection;
        if let [HANDSHAKE, 3, ..] = bytes
            && self.state.idleness() == Some(Idleness::Silent)
            && let Some(message) = shared.one_time_warnings.speaks_tls(opening.direct_peer.socket)
        {
            host.log(Level::Warning, &message);
        }
    }

    /// Takes the PROXY header off these bytes. Returns where the rest begins. `None`: they are not such a header, there is
    /// no memory for it, or its client has too many connections. `more`: set if there is more to read now.
    #[inline]
    fn skip_header(&self, bytes: &[u8], more: &mut bool) -> Option<usize> {
        match &self.connection.opening.header {
            None => Some(0),
            Some(header) => self.take_header(header, bytes, more),
        }
    }

    #[cold]
    fn take_header(&self, header: &AwaitedHeader, bytes: &[u8], more: &mut bool) -> Option<usize> {
        let connection = self.connection;
        let Connection { shared, host, opening, .. } = &**connection;
        let was_awaited = header.is_awaited();
        let (is_refusal, message) = match header
            .take(bytes, &opening.direct_peer, &shared.memory, |more| connection.make_room(more))
        {
            Taken::All => return Some(bytes.len()),
            Taken::Until(at) if !was_awaited => return Some(at),
            Taken::Until(mut at) => {
                if connection.socket().secure(&bytes[at..]) {
                    at = bytes.len();
                    *more = true;
                }
                match shared.count_client(opening.peer().client) {
                    Ok(counted) => {
                        opening.set_counted(counted);
                        if at == bytes.len() {
                            // Until now the time was that of the header. A handshake may follow.
                            connection.set_idle_deadline();
                        }
                        return Some(at);
                    }
                    Err(message) => (false, message),
                }
            }
            Taken::Refused(fault) => (true, shared.one_time_warnings.header_refused(fault, opening.direct_peer.socket)),
            Taken::NoMemory => (true, None),
        };
        if is_refusal {
            shared.count_refusal();
        }
        if let Some(message) = message {
            host.log(Level::Warning, &message);
        }
        None
    }

    /// Sends as much of the response as the socket accepts.
    fn flush(&mut self, bits: Bits) -> Next {
        let connection = self.connection;
        let writable = bits & ownership::WRITE != 0;
        let limits = &connection.shared.delivery_limits;
        let (flush, after) = connection.delivery.flush(writable, TURN, limits, Some(&**connection));
        connection.follow_up(after);
        self.step(Event::Flushed(flush))
    }

    /// Takes a step with an event that ends an idle connection. Bytes that the client has already sent are read and
    /// served first, because their event may be reported only in a later round of the poller.
    fn end_idle(&mut self, event: Event<'_>) -> Next {
        let Some(before) = self.state.idleness() else { return self.step(event) };
        match self.read(READABLE) {
            Next::Rest if self.state.idleness() == Some(before) => self.step(event),
            other => other,
        }
    }
}
