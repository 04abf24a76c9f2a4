//! A response that continues after the thread of its request has returned, and a connection that has left HTTP.

use std::io::{self, ErrorKind, Read};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tailrace_http::framing::ResponseFormat;
use tailrace_observe::record::Path;
use tailrace_os::socket::Io;
use tailrace_os::sync::lock;

use crate::connection::response_stream::{Finish, ResponseStream};
use crate::request::RequestBody;
use crate::response::outbox::Room;
use crate::response::producer::{Position, Sent};
use crate::response::send_state::{Produced, Progress};

/// The response to a request, for any thread. It ends with [`SendHandle::end`]; if all handles are dropped before, it is
/// broken off visibly.
#[derive(Clone)]
pub struct SendHandle(Arc<Mutex<Detached>>);

/// `None`: it has ended.
struct Detached(Option<ResponseStream>);

impl Drop for Detached {
    fn drop(&mut self) {
        let Some(response) = self.0.take() else { return };
        if response.connection.is_forked_child() {
            // It belongs to the parent.
            std::mem::forget(response);
        } else {
            response.fail(500, None, Finish::ByIo);
        }
    }
}

impl SendHandle {
    pub(crate) fn new(response: ResponseStream) -> Self {
        Self(Arc::new(Mutex::new(Detached(Some(response)))))
    }

    /// Sends a block, preceded by the head if that has not been sent. Never blocks. [`Room::Later`]: nothing was sent,
    /// because the client has not accepted what was sent before. [`Room::Never`]: the response has ended, or its client
    /// has left.
    pub fn push(&self, block: &Arc<Vec<u8>>) -> Room {
        let mut detached = lock(&self.0);
        let Some(response) = &mut detached.0 else { return Room::Never };
        if response.connection.is_forked_child() {
            return Room::Never;
        }
        let room = response.connection.delivery.outbox().room(&response.connection.shared.delivery_limits);
        if room != Room::Now {
            return room;
        }
        match response.push(&[block], Position::More, &mut |_| Box::new(block.clone())) {
            Sent::Taken | Sent::Full | Sent::BodyComplete => Room::Now,
            Sent::NoMemory => Room::Later,
            Sent::Gone => Room::Never,
        }
    }

    /// True when no client can receive the response: it has ended, or the connection is broken. False if the client has
    /// ended only its sending side.
    pub fn is_gone(&self) -> bool {
        lock(&self.0).0.as_ref().is_none_or(ResponseStream::is_gone)
    }

    /// Ends the response for all handles. Returns how many bytes its `Content-Length` promised and were not sent: the
    /// response is broken off then.
    pub fn end(&self) -> u64 {
        let Some(response) = lock(&self.0).0.take() else { return 0 };
        if response.connection.is_forked_child() {
            std::mem::forget(response);
            return 0;
        }
        response.finish_as(Finish::ByIo).map_or_else(|short| short.missing, |()| 0)
    }
}

/// A connection that has left HTTP: both sides send bytes of another protocol.
pub struct RawConnection {
    sender: SendHandle,
    /// What the client has sent behind its request, as far as it has not been taken.
    received: Vec<u8>,
}

impl RawConnection {
    pub(crate) fn new(response: ResponseStream, received: Vec<u8>) -> Self {
        Self { sender: SendHandle::new(response), received }
    }

    /// For what is sent, and for the end of the connection.
    pub fn sender(&self) -> &SendHandle {
        &self.sender
    }

    /// Waits up to this long for bytes of the client, or for the end of the connection. False: there are none.
    pub fn wait(&self, time: Duration) -> bool {
        let connection = match &lock(&self.sender.0).0 {
            Some(response) => response.connection.clone(),
            None => return true,
        };
        !self.received.is_empty() || connection.socket().wait_readable(time)
    }
}

/// Never blocks: [`ErrorKind::WouldBlock`] if the client has sent nothing more.
impl Read for RawConnection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.received.is_empty() {
            let count = self.received.len().min(buffer.len());
            buffer[..count].copy_from_slice(&self.received[..count]);
            self.received.drain(..count);
            return Ok(count);
        }
        let detached = lock(&self.sender.0);
        let received = match &detached.0 {
            Some(response) if !response.is_gone() => response.connection.socket().receive(buffer),
            _ => Io::Broken,
        };
        match received {
            Io::Moved(count) => Ok(count),
            Io::WouldBlock => Err(ErrorKind::WouldBlock.into()),
            Io::End => Ok(0),
            Io::Broken => Err(ErrorKind::ConnectionReset.into()),
        }
    }
}

impl ResponseStream {
    /// The application is done, and the response continues without it.
    pub(crate) fn leave_runner(&mut self) {
        self.finished(self.connection.shared.clock.read());
        let transaction = &mut *self.transaction;
        if let Some(incoming) = transaction.incoming.take() {
            transaction.facts.keep_alive &= incoming.answered();
            let (rest, waited) = incoming.end();
            transaction.record.waited += waited;
            transaction.rest = Some(rest);
        }
        if let Some(runner) = transaction.runner.take() {
            // Before another thread can own the connection.
            self.connection.host.release(runner);
        }
    }

    /// True for a request after which a connection can leave HTTP.
    pub(crate) fn may_upgrade(&self) -> bool {
        let transaction = &self.transaction;
        transaction.facts.format == ResponseFormat::Http11
            && transaction.incoming.is_none()
            && matches!(transaction.request.body, RequestBody::Empty)
    }

    /// The connection leaves HTTP with this head, which is complete. Returns what the client has sent behind its
    /// request. `None`: it cannot, and nothing was done.
    pub(crate) fn upgrade(&mut self, head: &[u8]) -> Option<Vec<u8>> {
        // What is queued would come in between the bytes of the other protocol.
        let is_all_sent = self.connection.delivery.outbox().queue.is_empty();
        let may = self.may_upgrade() && self.transaction.delegation.is_none() && self.connection.has_all_received();
        if !may || !is_all_sent || !self.push_interim(head) {
            return None;
        }
        // No page of a deadline may follow.
        let produced = Produced { status: 101, body_bytes: 0 };
        self.connection.delivery.outbox().note_produced(Progress { produced, is_complete: false });
        let record = &mut self.transaction.record;
        (record.status, record.path) = (101, Path::Direct);
        self.transaction.response.body.become_raw();
        Some(self.connection.take_received())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::{ErrorKind, Read, Write};
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use tailrace_observe::record::Ending;
    use tailrace_os::clock::now;
    use tailrace_os::sync::lock;

    use super::{RawConnection, SendHandle};
    use crate::config::Config;
    use crate::executor::greenlets::testing::Served;
    use crate::response::outbox::Room;

    const SWITCHING: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
    const ASKING: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";

    fn block(bytes: &[u8]) -> Arc<Vec<u8>> {
        Arc::new(bytes.to_vec())
    }

    /// Until the client has accepted what was sent before.
    fn push(handle: &SendHandle, bytes: &[u8]) {
        let block = block(bytes);
        while handle.push(&block) != Room::Now {
            thread::yield_now();
        }
    }

    #[test]
    fn a_response_is_continued_by_other_threads_after_its_own_has_gone_home() {
        let served = Served::new(Config::default());
        let mut client = served.ask_with(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut exchange = served.next();
        let record = exchange.follow();
        exchange.response_mut().head().status(b"200 OK").unwrap();
        let handle = exchange.detach().unwrap();
        let detached = now();
        // The thread takes the next request, which is answered first.
        let mut second = served.ask();
        served.next().fail(502, None);
        let mut answer = String::new();
        second.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        for part in [b"one", b"two"] {
            let handle = handle.clone();
            thread::spawn(move || push(&handle, part)).join().unwrap();
        }
        assert_eq!(thread::spawn(move || handle.end()).join().unwrap(), 0);
        // The connection serves another request.
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        served.next().fail(502, None);
        let mut answers = String::new();
        client.read_to_string(&mut answers).unwrap();
        let (first, next) = answers.split_once("\r\n0\r\n\r\n").unwrap();
        assert!(first.starts_with("HTTP/1.1 200 OK\r\n") && first.ends_with("\r\n3\r\none\r\n3\r\ntwo"), "{first}");
        assert!(next.starts_with("HTTP/1.1 502 "), "{next}");
        served.end();
        let record = *lock(&record);
        assert_eq!((record.ending, record.status, record.body_bytes), (Ending::Complete, 200, 6));
        assert!(record.finished.is_some_and(|finished| finished <= detached), "the application had finished before");
    }

    #[test]
    fn a_response_whose_handles_are_dropped_is_broken_off_and_one_that_has_ended_takes_nothing() {
        let served = Served::new(Config::default());
        for ends in [false, true] {
            let (mut client, mut exchange) = served.exchange();
            exchange.response_mut().head().status(b"200 OK").unwrap();
            let handle = exchange.detach().unwrap();
            push(&handle, b"part");
            if ends {
                handle.end();
                assert_eq!((handle.push(&block(b"more")), handle.is_gone(), handle.end()), (Room::Never, true, 0));
            }
            drop(handle);
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert_eq!(answer.ends_with("4\r\npart\r\n0\r\n\r\n"), ends, "{answer}");
            assert!(answer.contains("4\r\npart\r\n"), "{answer}");
        }
        served.end();
    }

    #[test]
    fn a_client_that_reads_nothing_is_sent_no_more_than_its_queue_and_one_that_leaves_is_noticed() {
        let served = Served::new(Config { response_queue: 64 * 1024, ..Config::default() });
        let (client, mut exchange) = served.exchange();
        exchange.response_mut().head().status(b"200 OK").unwrap();
        let memory = exchange.connection().shared.memory.clone();
        let handle = exchange.detach().unwrap();
        let large = block(&[b'x'; 1 << 20]);
        // The client's kernel may take some after the first that has no room.
        let mut refused = 0;
        while refused < 2 {
            refused = if handle.push(&large) == Room::Later { refused + 1 } else { 0 };
        }
        assert!(memory.responses.used() <= 3 << 20, "{}", memory.responses.used());
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        while !handle.is_gone() {
            thread::yield_now();
        }
        assert_eq!(handle.push(&large), Room::Never);
        handle.end();
        served.end();
    }

    /// Sends back what comes, until the client ends.
    fn echo(mut connection: RawConnection) {
        let mut buffer = [0; 500];
        loop {
            match connection.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => push(connection.sender(), &buffer[..count]),
                Err(fault) => {
                    assert_eq!(fault.kind(), ErrorKind::WouldBlock);
                    connection.wait(Duration::from_secs(20));
                }
            }
        }
        connection.sender().end();
    }

    #[test]
    fn a_connection_leaves_http_with_the_bytes_that_were_read_already() {
        let served = Served::new(Config::default());
        let mut client = served.ask_with(&[ASKING, b"with the request"].concat());
        let mut exchange = served.next();
        let record = exchange.follow();
        let connection = exchange.connection().clone();
        let raw = exchange.upgrade(SWITCHING).unwrap_or_else(|_| panic!("it cannot"));
        assert_eq!(connection.delivery.outbox().state.produced().status, 101, "no page of a deadline may follow");
        let echoing = thread::spawn(move || echo(raw));
        client.write_all(b", and behind it: \r\n\r\n").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap();
        assert_eq!(all, [SWITCHING, b"with the request, and behind it: \r\n\r\n"].concat());
        echoing.join().unwrap();
        served.end();
        let record = *lock(&record);
        assert_eq!((record.ending, record.status, record.body_bytes), (Ending::Complete, 101, 37));
    }

    #[cfg(feature = "tls")]
    #[test]
    fn an_encrypted_connection_leaves_http_with_the_bytes_that_were_read_already() {
        use tailrace_tls::rustls::Stream;

        use crate::config::ListenerConfig;
        use crate::transport::tls::tests::certificates;

        let (certificates, mut encrypted) = certificates("raw");
        let listeners = vec![ListenerConfig { is_encrypted: true, ..ListenerConfig::default() }];
        let served = Served::new(Config { certificates: Some(certificates), listeners, ..Config::default() });
        let mut client = served.ask_with(b"");
        let mut stream = Stream::new(&mut encrypted, &mut client);
        stream.write_all(&[ASKING, b"with the request"].concat()).unwrap();
        let exchange = served.next();
        let raw = exchange.upgrade(SWITCHING).unwrap_or_else(|_| panic!("it cannot"));
        let echoing = thread::spawn(move || echo(raw));
        // More than a record, so that some of it waits in the transport.
        let long = vec![b'x'; 100_000];
        stream.write_all(&long).unwrap();
        let mut all = vec![0; SWITCHING.len() + 16 + long.len()];
        stream.read_exact(&mut all).unwrap();
        assert!(all == [SWITCHING, b"with the request", &long].concat());
        encrypted.send_close_notify();
        encrypted.write_tls(&mut client).unwrap();
        echoing.join().unwrap();
        served.end();
    }

    #[test]
    fn a_connection_cannot_leave_http_in_the_middle_of_a_message() {
        let served = Served::new(Config::default());
        let with_body = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\nab";
        let old = b"GET / HTTP/1.0\r\n\r\n";
        for (request, begins) in [(with_body.as_slice(), false), (old.as_slice(), false), (ASKING, true)] {
            let mut client = served.ask_with(request);
            let mut exchange = served.next();
            if begins {
                exchange.response_mut().head().status(b"200 OK").unwrap();
                exchange.response_mut().push(&[b"part"], crate::Position::More, &mut |_| unreachable!());
            }
            let Err(exchange) = exchange.upgrade(SWITCHING) else { panic!("it has left HTTP") };
            exchange.fail(502, None);
            let mut all = Vec::new();
            client.read_to_end(&mut all).unwrap();
            let status: &[u8] = if begins { b"HTTP/1.1 200 " } else { b"HTTP/1.1 502 " };
            assert!(all.starts_with(status), "{}", String::from_utf8_lossy(&all));
        }
        served.end();
    }
}
