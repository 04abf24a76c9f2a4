//! One request and the response to it, as the application's thread uses them.
//!
//! Thread: an exchange belongs to the thread that took it from the run queue, until it is finished or dropped.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use tailrace_http::forwarded::Scheme;
use tailrace_http::limits::Refusal;
use tailrace_observe::level::Level;
use tailrace_observe::probes;
use tailrace_observe::record::{Ending, Record};
use tailrace_os::clock::{self, NEVER, millis};
use tailrace_os::poll;
use tailrace_os::usage;

use crate::connection::driver::{Connection, Task};
use crate::connection::ownership::Owned;
use crate::connection::raw_socket::{NoRawSocket, RawSocket};
use crate::connection::response_stream::{Finish, ResponseStream, Short};
use crate::connection::runner::RunnerId;
use crate::connection::send_handle::{RawConnection, SendHandle};
use crate::connection::state::Next;
use crate::connection::transaction::{Delegation, Transaction};
use crate::request::{Request, RequestBody};

/// The client of a response.
pub struct Client(Weak<Connection>);

impl Client {
    /// True when the client is known to have disconnected.
    pub fn is_gone(&self) -> bool {
        self.0.upgrade().is_none_or(|connection| connection.has_disconnected())
    }

    /// Like [`Client::is_gone`], but false in a child that the application has forked, because it has no client.
    pub fn has_left(&self) -> bool {
        self.0.upgrade().is_none_or(|connection| connection.has_disconnected() && !connection.is_forked_child())
    }
}

/// What the owner of a connection does after a response. Only the owner looks into it.
pub struct NextStep(pub(crate) Option<(Owned<Connection>, Next)>);

/// One request and the response to it. If it is dropped before `finish`, it answers 500, or breaks the connection
/// visibly when the response has begun.
pub struct Exchange {
    /// `Some` until `finish`, `fail`, `abort` or `drop`, each of which consumes the exchange.
    response: Option<ResponseStream>,
}

impl Exchange {
    pub(crate) fn new(transaction: Box<Transaction>, connection: Owned<Connection>) -> Self {
        if let Some(incoming) = &transaction.incoming {
            incoming.attach(connection.clone());
        }
        Self { response: Some(ResponseStream { transaction, connection }) }
    }

    /// The response.
    pub fn response(&self) -> &ResponseStream {
        match &self.response {
            Some(response) => response,
            None => unreachable!("an exchange is consumed when it ends"),
        }
    }

    /// The response, to send it.
    pub fn response_mut(&mut self) -> &mut ResponseStream {
        match &mut self.response {
            Some(response) => response,
            None => unreachable!("an exchange is consumed when it ends"),
        }
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.response().connection
    }

    /// A runner has taken the request.
    pub(crate) fn begin(&mut self, now: Instant, runner: Option<RunnerId>) {
        let ResponseStream { transaction, connection } = self.response_mut();
        probes::application_enter(connection.key);
        transaction.record.started = Some(now);
        transaction.record.mark = Some(usage::mark(now));
        transaction.runner = runner;
        if let Some(runner) = runner {
            connection.runner.set(runner);
            if connection.has_disconnected() {
                connection.host.report_disconnect(runner.packed());
            }
        }
        let time = connection.shared.config.request_timeout;
        if !time.is_zero() {
            self.set_deadline_at(now, Some(time));
        }
    }

    /// Sets the deadline of the request to this time from now, in place of `request_timeout`. `None`: no deadline.
    pub fn set_deadline(&mut self, time: Option<Duration>) {
        let now = self.connection().shared.clock.read();
        self.set_deadline_at(now, time);
    }

    fn set_deadline_at(&mut self, now: Instant, time: Option<Duration>) {
        let ResponseStream { transaction, connection } = self.response();
        let Some(runner) = transaction.runner.filter(|_| !connection.is_forked_child()) else { return };
        let due = time.map_or(NEVER, |time| connection.shared.clock.millis_of(now).saturating_add(millis(time)));
        connection.host.set_request_deadline(runner, due, &mut || Task {
            since: transaction.record.started.unwrap_or(now),
            request: transaction.request.name(connection.shared.config.query_masking),
            id: transaction.request.id().to_vec(),
            facts: transaction.facts,
            connection: Some(Arc::clone(connection)),
        });
    }

    /// Answers 503 to a request that no runner will take. Called by the I/O side, which continues with the connection
    /// in its next round, because the caller may be in the middle of a read.
    pub(crate) fn refuse(mut self) {
        if let Some(response) = self.take() {
            response.connection.shared.count_refusal();
            response.fail(503, Some("The server has more requests than it can answer."), Finish::ByIo);
        }
    }

    /// Has the I/O side ask the next responders, in its next round. Called by a thread to which one of them has left the
    /// request.
    pub fn pass_on_later(mut self) {
        let responders = self.passed_on() + 1;
        self.set_passed_on(responders);
        if let Some(ResponseStream { transaction, connection }) = self.take() {
            connection.clone().host.dispatch_later(transaction, connection);
        }
    }

    /// So many responders, the first ones, have passed the request on: they are not asked again.
    pub(crate) fn set_passed_on(&mut self, responders: usize) {
        self.response_mut().transaction.passed_on = responders;
    }

    /// How many responders have passed the request on.
    pub(crate) fn passed_on(&self) -> usize {
        self.response().transaction.passed_on
    }

    /// The header fields by which the application delegates its response to a responder. Their case does not matter.
    #[inline]
    pub fn delegation_fields(&self) -> &'static [&'static str] {
        self.connection().shared.delegation_fields.get().copied().unwrap_or_default()
    }

    /// Delegates the response, whose head the application has filled in, to a responder: what is sent from now on is
    /// discarded, and [`Exchange::finish`] leaves the response to the I/O side. `None`: the body is sent after all.
    pub fn delegate(&mut self, delegation: Option<Delegation>) {
        self.response_mut().transaction.delegation = delegation;
    }

    /// True when a responder completes the response instead of the application's body.
    pub fn is_delegated(&self) -> bool {
        self.response().transaction.delegation.is_some()
    }

    /// Takes what the application has delegated. The caller completes the response.
    pub fn take_delegation(&mut self) -> Option<Delegation> {
        self.response_mut().transaction.delegation.take()
    }

    /// Counts the response as one of static files.
    pub fn count_static(&self) {
        self.connection().shared.count_static();
    }

    /// Writes a line to the error log.
    pub fn log(&self, level: Level, message: &str) {
        self.connection().host.log(level, message);
    }

    /// The request.
    pub fn request(&self) -> &Request {
        &self.response().transaction.request
    }

    /// Method and target of the request, for the log.
    pub fn request_line(&self) -> String {
        let ResponseStream { transaction, connection } = self.response();
        transaction.request.line(connection.shared.config.query_masking)
    }

    /// Takes the body out of the request, leaving `Empty`.
    pub fn take_body(&mut self) -> RequestBody {
        std::mem::take(&mut self.response_mut().transaction.request.body)
    }

    /// The record so far.
    pub fn record(&self) -> Record {
        self.response().transaction.record_so_far()
    }

    /// The client of the response, for other threads to ask whether it has disconnected.
    pub fn client(&self) -> Client {
        Client(Arc::downgrade(self.connection()))
    }

    /// The values that the access log shows of `environ`, in the order of
    /// [`Format::variables`](tailrace_observe::log_format::Format::variables).
    pub fn set_variables(&mut self, values: Vec<Option<Vec<u8>>>) {
        self.response_mut().transaction.variables = values;
    }

    /// Where the final record will be stored. The exchange may end before all of the response has been sent.
    pub fn follow(&mut self) -> Arc<Mutex<Record>> {
        let transaction = &mut self.response_mut().transaction;
        let record = transaction.record;
        transaction.follower.get_or_insert_with(|| Arc::new(Mutex::new(record))).clone()
    }

    /// True when the client has left before a runner took the request, which is to be cancelled then.
    pub(crate) fn is_cancelled(&self) -> bool {
        let ResponseStream { transaction, connection } = self.response();
        let request = &transaction.request;
        connection.has_disconnected() && connection.shared.config.cancel.covers(request.head.method.of(&request.bytes))
    }

    /// The runner of the request, as [`crate::Disconnected`] names it: its slot, and the number of the request. `None`:
    /// no runner table knows it.
    pub fn runner(&self) -> Option<(usize, u64)> {
        self.response().transaction.runner.map(|runner| (runner.slot, runner.serial))
    }

    /// Reports again that the client has left, if it has.
    pub fn report_disconnect(&self) {
        let ResponseStream { transaction, connection } = self.response();
        if let Some(runner) = transaction.runner.filter(|_| connection.has_disconnected()) {
            connection.host.report_disconnect(runner.packed());
        }
    }

    /// The application was interrupted because the client has left.
    pub fn note_cancelled(&mut self) {
        self.response_mut().transaction.is_cancelled = true;
    }

    /// True after [`Exchange::note_cancelled`].
    pub fn is_noted_cancelled(&self) -> bool {
        self.response().transaction.is_cancelled
    }

    /// Ends the response: sends an empty one if nothing was sent, and the end of its body. A body shorter
    /// than its `Content-Length` breaks the connection instead.
    ///
    /// # Errors
    /// [`Short`], with the missing byte count, when fewer bytes were sent than the head promised.
    pub fn finish(mut self) -> Result<(), Short> {
        if self.is_delegated() {
            self.leave_to_responders();
            return Ok(());
        }
        if self.response().transaction.hold.is_some() {
            if let Some(response) = self.take() {
                response.pass_to_holder();
            }
            return Ok(());
        }
        self.finish_as(Finish::Done)
    }

    /// The application is done, and a responder completes the response: leaves it to the I/O side.
    fn leave_to_responders(mut self) {
        let Some(mut response) = self.take() else { return };
        response.leave_runner();
        let ResponseStream { transaction, connection } = response;
        connection.clone().host.dispatch_later(transaction, connection);
    }

    /// Lets the response continue after this thread has returned. It is not compressed, unless its head has been sent
    /// before. `None`: in a child that the application has forked.
    pub fn detach(mut self) -> Option<SendHandle> {
        let mut response = self.take()?;
        response.leave_runner();
        Some(SendHandle::new(response))
    }

    /// The connection leaves HTTP (RFC 9110 section 7.8): sends this head, which is complete, and gives the connection
    /// to the caller, for bytes of another protocol. Never blocks.
    ///
    /// # Errors
    /// The exchange, unchanged: the request does not use HTTP/1.1 or has a body, or its response has begun; the client has
    /// left; or there was no memory for what it has sent behind the request.
    pub fn upgrade(mut self, head: &[u8]) -> Result<RawConnection, Self> {
        if self.is_forked_child() {
            return Err(self);
        }
        let Some(received) = self.response_mut().upgrade(head) else { return Err(self) };
        let Some(mut response) = self.response.take() else { return Err(self) };
        response.leave_runner();
        Ok(RawConnection::new(response, received))
    }

    /// As [`Exchange::finish`], for a thread that is no runner: the I/O side continues with the connection.
    pub fn finish_by_io(self) {
        // What is missing is seen by the client, too.
        let _ = self.finish_as(Finish::ByIo);
    }

    /// As [`Exchange::finish`], for a responder that the owner of the connection has called. Returns what the owner
    /// does next.
    pub fn finish_here(mut self) -> NextStep {
        let Some(mut response) = self.take() else { return NextStep(None) };
        let ending = if response.complete() { response.transaction.response.body.ending() } else { Ending::Broken };
        let (connection, ended) = response.end(ending, Finish::Done);
        NextStep(Some(connection.end_response_here(ended)))
    }

    fn finish_as(mut self, finish: Finish) -> Result<(), Short> {
        match self.take() {
            Some(response) => response.finish_as(finish),
            None => Ok(()),
        }
    }

    /// For a request that asks for a WebSocket: a socket by which the application can take over the connection, as long
    /// as the response has not begun, and its descriptor. `None`: it does not ask, or cannot have one.
    ///
    /// # Errors
    /// What the request is to be refused with. The log has the reason.
    pub fn web_socket(&self) -> Option<Result<(RawSocket, OwnedFd), Refusal>> {
        let request = self.request();
        if !request.framing.web_socket {
            return None;
        }
        let connection = self.connection();
        let warnings = &connection.shared.one_time_warnings;
        let (refusal, line) = match self.check_origin() {
            Err(origin) => (
                Refusal::new(403, "Pages of this origin may not open a WebSocket here."),
                warnings.foreign_origin(&self.request_line(), &origin, connection.shared.clock.now()),
            ),
            Ok(()) => match RawSocket::open(self.response()) {
                Ok(socket) => return Some(Ok(socket)),
                Err(NoRawSocket::TooMany(most)) => (
                    Refusal::new(503, "The server has as many WebSockets as it can serve."),
                    warnings.too_many_web_sockets(&self.request_line(), most),
                ),
                Err(NoRawSocket::System(fault)) => (
                    Refusal::new(503, "The server has no descriptor for a WebSocket."),
                    Some(format!("{}: no socket for a WebSocket: {fault}", self.request_line())),
                ),
            },
        };
        if let Some(line) = line {
            connection.host.log(Level::Warning, &line);
        }
        Some(Err(refusal))
    }

    /// Whether the page that asks for a WebSocket may have one.
    ///
    /// # Errors
    /// Its origin.
    pub(crate) fn check_origin(&self) -> Result<(), String> {
        let request = self.request();
        let host = request.peer.host.or(request.framing.host).map_or(&[][..], |host| host.of(&request.bytes));
        let origins = &self.connection().shared.config.origins;
        let is_encrypted = request.peer.scheme.map_or(request.tls.is_some(), |scheme| scheme == Scheme::Https);
        let fields = request.head.fields.iter();
        let stated = fields.filter(|field| field.name.of(&request.bytes).eq_ignore_ascii_case(b"origin"));
        for field in stated {
            let origin = field.value.of(&request.bytes);
            if !origins.permit(origin, host, is_encrypted) {
                return Err(origin.escape_ascii().to_string());
            }
        }
        Ok(())
    }

    /// The application takes over the connection: it has no deadline from now on, is not cancelled when its client
    /// leaves, and no response can be sent. False: it cannot be taken over, and nothing was done.
    pub fn take_over(&mut self, socket: &RawSocket) -> bool {
        if self.is_forked_child() || !socket.take(self.response_mut()) {
            return false;
        }
        self.set_deadline(None);
        let ResponseStream { transaction, connection } = self.response();
        if let Some(runner) = transaction.runner {
            connection.host.note_raw(runner);
        }
        true
    }

    /// True when the client has left a connection that was taken over. The application may have read that before the
    /// thread that polls.
    pub fn has_client_left(&self) -> bool {
        let connection = self.connection();
        connection.has_disconnected() || connection.socket().socket().is_some_and(poll::has_hung_up)
    }

    /// Waits up to this long for the client of a connection that was taken over to leave.
    pub fn await_leaving(&self, time: Duration) {
        let until = clock::now() + time;
        while !self.has_client_left() && clock::now() < until {
            thread::sleep(time / 10);
        }
    }

    /// The application has returned, and with it ends the connection that it has taken over.
    pub fn end_taken_over(mut self, socket: RawSocket) {
        if let Some(response) = self.take() {
            socket.end(response);
        }
    }

    /// Sends a small error page (`status` 500, 502, ...) if the head was not sent, else breaks the connection visibly.
    /// `detail` is HTML for the page's body, already escaped; `None` gives the standard sentence.
    pub fn fail(mut self, status: u16, detail: Option<&str>) {
        if let Some(response) = self.take() {
            response.fail(status, detail, Finish::Done);
        }
    }

    /// True in a child that the application has forked.
    pub fn is_forked_child(&self) -> bool {
        self.connection().is_forked_child()
    }

    /// As [`Exchange::fail`], because the server stops before the application has finished; the record says so
    /// ([`Ending::Cut`]).
    pub fn abort(mut self, status: u16, detail: Option<&str>) {
        if let Some(response) = self.take() {
            response.fail(status, detail, Finish::Abort);
        }
    }

    /// The response, which the caller ends. `None` in a forked child, where they are leaked: they belong to the parent.
    pub(crate) fn take(&mut self) -> Option<ResponseStream> {
        let response = self.response.take()?;
        if response.connection.is_forked_child() {
            std::mem::forget(response);
            return None;
        }
        Some(response)
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Some(response) = self.take() {
            response.fail(500, None, Finish::Done);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::atomic::Ordering;
    use std::thread;
    use std::time::Duration;

    use tailrace_observe::metrics::Metric;
    use tailrace_observe::record::{Ending, Path};
    use tailrace_os::sync::lock;

    use super::{Exchange, RequestBody};
    use crate::config::Config;
    use crate::connection::backpressure::PATIENCE;
    use crate::executor::greenlets::testing::Served;
    use crate::request::stream::BodyFault;
    use crate::response::outbox::Room;
    use crate::response::payload::Payload;
    use crate::response::producer::{Position, Sent};

    /// In no head.
    const OCTET: u8 = 0xff;
    static BLOCK: [u8; 1 << 20] = [OCTET; 1 << 20];

    struct Here(&'static [u8]);

    impl Payload for Here {
        fn bytes(&self) -> &[u8] {
            self.0
        }
    }

    fn send(exchange: &mut Exchange, block: &'static [u8]) -> Sent {
        exchange.response_mut().push(&[block], Position::More, &mut |_| Box::new(Here(block)))
    }

    fn all(client: &mut TcpStream) -> String {
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap();
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn the_head_goes_with_the_first_bytes_and_what_is_beyond_its_length_is_counted() {
        let served = Served::new(Config::default());
        let (mut client, mut exchange) = served.exchange();
        exchange.response_mut().head().status(b"200 OK").unwrap();
        exchange.response_mut().head().field(b"Content-Length", b"2").unwrap();
        assert_eq!((send(&mut exchange, b""), exchange.response().head_sent()), (Sent::Taken, false));
        assert_eq!((send(&mut exchange, b"abc"), exchange.response().head_sent()), (Sent::BodyComplete, true));
        assert_eq!(exchange.response().bytes_beyond_content_length(), 1);
        exchange.finish().unwrap();
        assert!(all(&mut client).ends_with("\r\n\r\nab"));
        served.end();
    }

    #[test]
    fn a_client_has_gone_when_it_has_reset_its_connection_and_when_that_is_closed() {
        let served = Served::new(Config::default());
        let (client, mut exchange) = served.exchange();
        let (asked, record) = (exchange.client(), exchange.follow());
        assert!(!asked.is_gone() && !exchange.response().is_gone());
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        while !exchange.response().is_gone() {
            thread::yield_now();
        }
        assert!(asked.is_gone());
        // There is nobody to read the page.
        exchange.fail(500, None);
        assert!(asked.is_gone());
        served.end();
        let record = *lock(&record);
        assert_eq!((record.ending, record.status), (Ending::ClientDisconnected, 0));
    }

    #[test]
    fn a_request_that_is_not_finished_ends_visibly_and_its_record_says_why() {
        type End = fn(Exchange);
        let cases: [(&str, bool, End, &str, Ending); 7] = [
            ("fails", false, |exchange| exchange.fail(502, Some("No luck.")), "502 Bad Gateway", Ending::Complete),
            ("is dropped", false, drop, "500 Internal Server Error", Ending::Complete),
            ("is refused", false, Exchange::refuse, "503 Service Unavailable", Ending::Complete),
            ("is aborted", false, |exchange| exchange.abort(503, None), "503 Service Unavailable", Ending::Cut),
            ("fails late", true, |exchange| exchange.fail(502, None), "200 OK", Ending::Broken),
            ("is dropped late", true, drop, "200 OK", Ending::Broken),
            ("is aborted late", true, |exchange| exchange.abort(503, None), "200 OK", Ending::Cut),
        ];
        for (what, has_begun, end, status, ending) in cases {
            let served = Served::new(Config::default());
            let (mut client, mut exchange) = served.exchange();
            let record = exchange.follow();
            exchange.response_mut().head().status(b"200 OK").unwrap();
            if has_begun {
                send(&mut exchange, b"part");
            }
            end(exchange);
            let response = all(&mut client);
            assert!(response.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{what}: {response}");
            assert_eq!(response.ends_with("4\r\npart\r\n"), has_begun, "{what}, without the last chunk: {response}");
            assert_eq!(served.server.stats()[Metric::Refused], u64::from(what == "is refused"), "{what}");
            served.end();
            assert_eq!(lock(&record).ending, ending, "{what}");
        }
    }

    #[test]
    fn a_ticket_comes_back_to_the_thread_of_the_greenlets_alone() {
        let served = Served::new(Config::default());
        let (_client, exchange) = served.exchange();
        assert!(exchange.response().is_on_ticket_thread() && exchange.response().come_back(5));
        served.await_ticket(5);
        let elsewhere = thread::spawn(move || {
            assert!(!exchange.response().is_on_ticket_thread() && !exchange.response().come_back(6));
            exchange
        });
        elsewhere.join().unwrap().finish().unwrap();
        served.end();
    }

    #[test]
    fn a_runner_that_waits_for_its_client_is_counted_and_its_time_is_in_the_record() {
        let served = Served::new(Config::default());
        let (_client, mut exchange) = served.exchange();
        let count = exchange.connection().shared.waiting.clone();
        let waiting = exchange.response().count_waiting();
        assert_eq!(count.load(Ordering::SeqCst), 1);
        drop(waiting);
        assert_eq!(count.load(Ordering::SeqCst), 0);
        exchange.response_mut().add_wait(Duration::from_secs(2));
        exchange.response_mut().add_wait(Duration::from_secs(3));
        assert_eq!(exchange.record().waited, Duration::from_secs(5));
        exchange.finish().unwrap();
        served.end();
    }

    #[test]
    fn a_runner_does_not_wait_for_its_client_when_responses_have_used_up_their_memory() {
        let served = Served::new(Config { response_buffer: 1 << 20, ..Config::default() });
        let (_client, exchange) = served.exchange();
        let memory = exchange.connection().shared.memory.clone();
        assert_eq!(exchange.response().patience(), PATIENCE);
        memory.responses.charge(2 << 20);
        assert_eq!(exchange.response().patience(), Duration::ZERO);
        memory.responses.give_back(2 << 20);
        exchange.finish().unwrap();
        served.end();
    }

    #[test]
    fn what_a_slow_client_has_not_taken_goes_to_a_file_while_other_greenlets_run() {
        let served = Served::new(Config { response_queue: 64 * 1024, ..Config::default() });
        let (mut client, mut exchange) = served.exchange();
        let record = exchange.follow();
        exchange.response_mut().head().status(b"200 OK").unwrap();
        let mut given = 0;
        let mut tickets = 1..;
        // The kernel takes the first blocks.
        while !exchange.connection().delivery.outbox().queue.is_behind() {
            assert_ne!(send(&mut exchange, &BLOCK), Sent::Gone);
            given += BLOCK.len();
            for ticket in tickets.by_ref() {
                if exchange.response_mut().ask_for_room(ticket) != Room::Later {
                    break;
                }
                exchange.response().spill_elsewhere();
                // Be it that there was room before, or that all of it was being sent at that moment.
                served.await_ticket(ticket);
            }
        }
        let reader = thread::spawn(move || {
            let mut all = Vec::new();
            client.read_to_end(&mut all).unwrap();
            all.into_iter().filter(|octet| *octet == OCTET).count()
        });
        exchange.finish().unwrap();
        assert_eq!(reader.join().unwrap(), given);
        served.end();
        assert_eq!(lock(&record).path, Path::Spilled);
    }

    #[test]
    fn no_room_comes_for_a_client_that_has_gone() {
        let served = Served::new(Config { response_queue: 64 * 1024, ..Config::default() });
        let (client, mut exchange) = served.exchange();
        exchange.response_mut().head().status(b"200 OK").unwrap();
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        let mut client = Some(client);
        for ticket in 1.. {
            send(&mut exchange, &BLOCK);
            match exchange.response_mut().ask_for_room(ticket) {
                Room::Now => {}
                Room::Never => break,
                Room::Later => {
                    client.take();
                    served.await_ticket(ticket);
                }
            }
        }
        assert!(exchange.response().is_gone());
        assert_eq!(send(&mut exchange, b"more"), Sent::Gone);
        exchange.finish().unwrap();
        served.end();
    }

    #[test]
    fn a_greenlet_reads_a_body_as_it_arrives_and_none_of_it_after_its_response() {
        let served = Served::new(Config { stream_body: true, ..Config::default() });
        let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n";
        let mut client = served.ask_with(head);
        let mut exchange = served.next();
        let RequestBody::Stream(mut body) = exchange.take_body() else { panic!("the body is not streamed") };
        // No head is sent, which would tell the client that its body is not awaited.
        assert_eq!(send(&mut exchange, b""), Sent::Taken);
        assert!(matches!(exchange.take_body(), RequestBody::Empty), "it is given once");
        let mut target = [0; 16];
        assert_eq!(body.try_read(&mut target), Ok(None));
        let mut line = [0; 25];
        client.read_exact(&mut line).unwrap();
        assert_eq!(&line, b"HTTP/1.1 100 Continue\r\n\r\n");
        for (ticket, part) in [(1, b"abc"), (2, b"def")] {
            assert!(body.ask(ticket).is_some());
            assert_eq!(body.try_read(&mut target), Ok(None));
            client.write_all(part).unwrap();
            served.await_ticket(ticket);
            assert_eq!((body.try_read(&mut target), &target[..3]), (Ok(Some(3)), part.as_slice()));
        }
        assert!(body.come_back(3));
        served.await_ticket(3);
        exchange.finish().unwrap();
        assert_eq!(body.try_read(&mut target), Err(BodyFault::Over));
        assert!(!body.come_back(4));
        served.end();
    }
}
