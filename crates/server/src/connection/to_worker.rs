//! A connection that is passed to the worker that owns the session of its request ([`crate::sticky`]). The request is
//! complete, and nothing of it has been answered. The other worker reads it again, as if it had accepted the connection.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;

use tailrace_http::framing::{BodyLength, ResponseFormat};
use tailrace_http::uwsgi;
use tailrace_observe::metrics::Metric;
use tailrace_os::sync::lock;

use crate::connection::exchange::{Exchange, NextStep};
use crate::connection::response_stream::ResponseStream;
use crate::connection::state::Next;
use crate::connection::transaction_pool::with_pool;
use crate::request::RequestBody;
use crate::sticky::message::{MAX_READ, PassedConnection};

/// Why a request stays here.
pub(crate) enum Kept {
    /// What its client has sent does not end with this worker: the connection is encrypted.
    Encrypted,
    /// The other worker cannot be reached, or does not keep up; or the request is too large or in a file.
    Fault(io::Error),
}

impl Exchange {
    /// Passes the connection to the worker that listens at this abstract name. Never blocks.
    ///
    /// # Errors
    /// The exchange, unchanged.
    pub(crate) fn pass_to_worker(mut self, address: &[u8]) -> Result<NextStep, (Self, Kept)> {
        if let Err(kept) = self.response().pass_copy(address) {
            return Err((self, kept));
        }
        let Some(ResponseStream { transaction, connection }) = self.take() else { return Ok(NextStep(None)) };
        connection.shared.counts.add(Metric::Passed, 1);
        connection.host.forget_socket(&connection);
        connection.socket().leave_open();
        with_pool(|pool| pool.give(transaction));
        Ok(NextStep(Some((connection, Next::Close))))
    }
}

impl ResponseStream {
    fn pass_copy(&self, address: &[u8]) -> Result<(), Kept> {
        let connection = &self.connection;
        let descriptor = connection.socket().duplicate().ok_or(Kept::Encrypted)?.map_err(Kept::Fault)?;
        let opening = &connection.opening;
        let header_peer = opening.header.as_ref().and_then(|header| header.peer().copied());
        let read = self.all_read().map_err(Kept::Fault)?;
        let passed = PassedConnection { direct_peer: opening.direct_peer, header_peer, read };
        // In this order: its client must not have two connections for a moment.
        opening.forget_counted();
        passed.send(address, descriptor.as_fd()).map_err(|fault| {
            opening.set_counted(connection.shared.count_again(opening.peer().client));
            Kept::Fault(fault)
        })
    }

    /// All that was read since the last request, as the client has sent it but for the bounds of chunks.
    fn all_read(&self) -> io::Result<Vec<u8>> {
        if !self.connection.delivery.outbox().queue.is_empty() {
            return Err(io::Error::other("its client has not accepted what it was sent before"));
        }
        let request = &self.transaction.request;
        let length = match &request.body {
            RequestBody::Empty => 0,
            RequestBody::Memory(segments) => segments.len(),
            // Reading it would hold up other connections.
            RequestBody::File { .. } => return Err(io::Error::other("its body is in a file")),
            RequestBody::Stream(_) => return Err(io::Error::other("its body is read while it arrives")),
        };
        let mut state = lock(&self.connection.state);
        let behind = match state.pipelined() {
            Some(pipelined) if !pipelined.is_lost => pipelined.bytes(),
            _ => return Err(ErrorKind::OutOfMemory.into()),
        };
        let head = request.bytes.get(..request.head.length).unwrap_or_default();
        let all = head.len().saturating_add(length).saturating_add(behind.len());
        if all > MAX_READ {
            return Err(io::Error::other(format!("it has {all} bytes, more than {MAX_READ}")));
        }
        let mut read = Vec::new();
        read.try_reserve_exact(all + 32).map_err(|_| ErrorKind::OutOfMemory)?;
        read.extend_from_slice(head);
        if self.transaction.facts.format == ResponseFormat::Packet {
            uwsgi::restore_names(&mut read);
        }
        let is_chunked = request.framing.body == BodyLength::Chunked;
        if is_chunked && length > 0 {
            read.extend_from_slice(format!("{length:x}\r\n").as_bytes());
        }
        match &request.body {
            RequestBody::Memory(segments) => segments.slices().for_each(|slice| read.extend_from_slice(slice)),
            RequestBody::Empty | RequestBody::File { .. } | RequestBody::Stream(_) => {}
        }
        if is_chunked {
            read.extend_from_slice(if length > 0 { b"\r\n0\r\n\r\n" } else { b"0\r\n\r\n" });
        }
        read.extend_from_slice(behind);
        Ok(read)
    }
}
