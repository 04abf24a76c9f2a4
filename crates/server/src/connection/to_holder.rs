//! A connection that is passed to the holder, with the response to its request: the application has asked for that by
//! header fields ([`tailrace_holder::grip`]).
//!
//! Nothing of the response is sent here. It is collected, and the holder sends it, so that one process alone writes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use serde_bytes::ByteBuf;
use tailrace_holder::grip::Instructions;
use tailrace_holder::message::{self, Hold, Kind, Opening, Origin};
use tailrace_http::forwarded::Scheme;
use tailrace_observe::level::Level;
use tailrace_observe::record::{Ending, Path};
use tailrace_observe::scoreboard;
use tailrace_os::clock;
use tailrace_os::file;

use crate::config::ListenerProtocol;
use crate::connection::driver::Connection;
use crate::connection::exchange::{Exchange, NextStep};
use crate::connection::owned::Ended;
use crate::connection::ownership::Owned;
use crate::connection::raw_socket::HeldRelay;
use crate::connection::response_stream::{Finish, ResponseStream};
use crate::connection::state::AfterResponse;
use crate::connection::transaction::PendingHold;
use crate::request::Request;
use crate::response::payload::FileSource;
use crate::response::producer::Sent;

/// Maximum size of a response that is held, in bytes.
const MAX_BODY: usize = 1 << 20;
/// The fields of a request for a WebSocket that are about this connection alone.
const OF_HANDSHAKE: [&[u8]; 2] = [b"connection", b"upgrade"];
/// The field by which a client says which event it has received last (HTML, "Server-sent events").
const LAST_EVENT_ID: &[u8] = b"Last-Event-ID";

impl Exchange {
    /// Has the response, once it is complete, passed to the holder with its connection. What is sent from now on is
    /// collected. False: it cannot be held, because the request is a HEAD request or reads its body as it arrives.
    #[must_use]
    pub fn hold(&mut self, instructions: Instructions) -> bool {
        let transaction = &mut self.response_mut().transaction;
        let may = transaction.incoming.is_none() && !transaction.facts.is_head && transaction.delegation.is_none();
        if may {
            transaction.hold = Some(Box::new(PendingHold { instructions, body: Vec::new(), is_too_large: false }));
        }
        may
    }

    /// Sends the response here after all.
    pub fn release_hold(&mut self) {
        self.response_mut().transaction.hold = None;
    }

    /// True if a proxy in front of the server holds connections: its instructions are not for this server.
    pub fn is_behind_holder(&self) -> bool {
        let request = self.request();
        if self.connection().shared.config.listener(request.peer.listener).protocol == ListenerProtocol::Internal {
            return true;
        }
        // Otherwise, these fields were removed.
        request.framing.has_grip
    }
}

/// A request, for further requests of the holder.
fn origin(request: &Request) -> Origin {
    let fields = request.head.fields.iter();
    let own = |bytes: &[u8]| ByteBuf::from(bytes);
    Origin {
        target: request.head.target.of(&request.bytes).to_vec(),
        fields: fields.map(|field| (own(field.name.of(&request.bytes)), own(field.value.of(&request.bytes)))).collect(),
        port: request.peer.client.map_or(0, |client| client.port()),
        is_https: request.peer.scheme.map_or(request.tls.is_some(), |scheme| scheme == Scheme::Https),
    }
}

impl Exchange {
    /// Passes the connection of a request for a WebSocket to the holder. Returns what the owner does next.
    ///
    /// # Errors
    /// Why it cannot; the response is to be sent here.
    pub(crate) fn pass_web_socket(mut self) -> Result<NextStep, (Self, io::Error)> {
        let response = self.response_mut();
        let (descriptor, relay) = match response.descriptor() {
            Ok(found) => found,
            Err(fault) => return Err((self, fault)),
        };
        let request = &response.transaction.request;
        let mut origin = origin(request);
        origin.fields.retain(|(name, _)| !OF_HANDSHAKE.iter().any(|other| name.eq_ignore_ascii_case(other)));
        let config = &response.connection.shared.config;
        let opening = Opening {
            origin,
            client: request.peer.client.map_or_else(String::new, |client| client.ip().to_string()),
            request: request.line(config.query_masking),
            server: config.server_name.clone().into_bytes(),
            is_relayed: relay.is_some(),
            received: response.connection.take_received(),
        };
        let address = config.holder.as_deref().unwrap_or_default();
        if let Err(fault) = message::pass(address, Kind::WebSocket, &opening, descriptor.as_fd()) {
            // What the client has sent behind its request is lost.
            self.response_mut().transaction.facts.keep_alive = false;
            return Err((self, fault));
        }
        let Some(mut response) = self.take() else { return Ok(NextStep(None)) };
        (response.transaction.record.status, response.transaction.record.path) = (101, Path::Held);
        response.transaction.response.body.become_raw();
        Ok(match relay {
            Some(relay) => {
                relay.start(response);
                NextStep(None)
            }
            None => {
                let (connection, ended) = response.leave_to_holder();
                NextStep(Some(connection.end_response_here(ended)))
            }
        })
    }
}

impl ResponseStream {
    /// Another process has the connection. The caller closes it here.
    fn leave_to_holder(self) -> (Owned<Connection>, Ended) {
        self.connection.host.forget_socket(&self.connection);
        self.connection.socket().leave_open();
        let (connection, mut ended) = self.end(Ending::Complete, Finish::Done);
        ended.then = AfterResponse::Moved;
        (connection, ended)
    }

    /// Collects a block of a response that is to be held. `None`: it is sent here.
    pub(crate) fn collect(&mut self, blocks: &[&[u8]]) -> Option<Sent> {
        let hold = self.transaction.hold.as_deref_mut()?;
        let length = blocks.iter().map(|block| block.len()).sum::<usize>();
        let has_room = hold.body.len() + length <= MAX_BODY && hold.body.try_reserve(length).is_ok();
        if !has_room {
            hold.body = Vec::new();
            hold.is_too_large = true;
            return Some(Sent::BodyComplete);
        }
        hold.body.extend(blocks.iter().flat_map(|block| block.iter()));
        Some(Sent::Taken)
    }

    /// Collects bytes of a file, which are read here: held responses are small.
    pub(crate) fn collect_file(&mut self, file: &dyn FileSource, offset: u64, length: u64) -> Sent {
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(MAX_BODY + 1);
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match file::read_at(file.descriptor(), &mut bytes[filled..], offset + filled as u64) {
                Ok(0) | Err(_) => break,
                Ok(count) => filled += count,
            }
        }
        self.collect(&[&bytes[..filled]]).unwrap_or(Sent::Gone)
    }

    /// The application is done: passes its response and the connection on.
    pub(crate) fn pass_to_holder(mut self) {
        self.leave_runner();
        let Some(hold) = self.transaction.hold.take() else { return self.close(Ending::Broken, Finish::Done) };
        if self.is_gone() {
            return self.close(Ending::ClientDisconnected, Finish::Done);
        }
        if hold.is_too_large {
            let line = format!("{}: the response is larger than the {MAX_BODY} bytes that can be held", self.line());
            self.connection.host.log(Level::Error, &line);
            return self.fail(500, None, Finish::Done);
        }
        if let Err((this, fault)) = self.pass(*hold) {
            let line = format!("{}: the connection cannot be held: {fault}", this.line());
            this.connection.host.log(Level::Error, &line);
            this.fail(503, Some("The server cannot hold this connection."), Finish::Done);
        }
    }

    fn line(&self) -> String {
        self.transaction.request.line(self.connection.shared.config.query_masking)
    }

    fn pass(mut self, hold: PendingHold) -> Result<(), (Self, io::Error)> {
        let body_bytes = hold.body.len() as u64;
        let status = hold.instructions.status.unwrap_or(self.transaction.response.head.status_code());
        let (descriptor, relay) = match self.descriptor() {
            Ok(found) => found,
            Err(fault) => return Err((self, fault)),
        };
        if let Some(sessions) = self.connection.shared.sessions.get() {
            sessions.note_head(&self.transaction.request, &self.transaction.response.head, scoreboard::now);
        }
        let message = self.message(hold, relay.is_some());
        let address = self.connection.shared.config.holder.clone().unwrap_or_default();
        if let Err(fault) = message::pass(&address, Kind::Hold, &message, descriptor.as_fd()) {
            return Err((self, fault));
        }
        let record = &mut self.transaction.record;
        (record.status, record.body_bytes, record.path) = (status, body_bytes, Path::Held);
        self.transaction.response.body.become_raw();
        match relay {
            Some(relay) => relay.start(self),
            None => {
                let (connection, ended) = self.leave_to_holder();
                connection.end_response(ended);
            }
        }
        Ok(())
    }

    /// The descriptor for the holder: that of the connection, or where its bytes are not those of the client, the end of a
    /// pair between which and the client a thread relays.
    fn descriptor(&self) -> io::Result<(OwnedFd, Option<HeldRelay>)> {
        if !self.connection.delivery.outbox().queue.is_empty() {
            return Err(io::Error::other("the client has not yet received its previous response"));
        }
        match self.connection.socket().duplicate() {
            Some(duplicate) => Ok((duplicate?, None)),
            None => HeldRelay::open().map(|(theirs, relay)| (theirs, Some(relay))),
        }
    }

    fn message(&mut self, hold: PendingHold, is_relayed: bool) -> Hold {
        let transaction = &mut *self.transaction;
        let request = &transaction.request;
        let last = request
            .head
            .fields
            .iter()
            .find(|field| field.name.of(&request.bytes).eq_ignore_ascii_case(LAST_EVENT_ID))
            .and_then(|field| std::str::from_utf8(field.value.of(&request.bytes)).ok());
        let config = &self.connection.shared.config;
        let head = &transaction.response.head;
        let own = |bytes: &[u8]| ByteBuf::from(bytes);
        Hold {
            format: transaction.facts.format.into(),
            client: request.peer.client.map_or_else(String::new, |client| client.ip().to_string()),
            request: request.line(config.query_masking),
            last_event_id: last.map(str::to_owned),
            status: head.status_line().to_vec(),
            fields: head.fields().map(|(name, value)| (own(name), own(value))).collect(),
            server: config.server_name.clone().into_bytes(),
            body: hold.body,
            origin: hold.instructions.next.is_some().then(|| origin(request)),
            instructions: hold.instructions,
            is_relayed,
            took_micros: u64::try_from(clock::since(transaction.record.queued).as_micros()).unwrap_or(u64::MAX),
        }
    }
}
