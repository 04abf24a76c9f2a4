//! Where a request comes from: one record, which the socket begins and each trusted statement of a proxy extends. These
//! are the PROXY header, the uwsgi packet and the forwarding fields, in this order.
//!
//! Plain data.

use std::net::SocketAddr;

use crate::forwarded::{Scheme, Statement, read, remove_all, remove_others};
use crate::limits::Refusal;
use crate::proxy_protocol::ProxySource;
use crate::request_head::{Field, Span};
use crate::trust::{ForwardedField, Trust};

/// The peer of a connection, as the requests on it show it. `scheme`, `host`, `port` and `prefix` describe the request as the proxy received it; each is `None` if
/// no trusted proxy states it. The spans refer to the bytes of the request's head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Index of the listener that accepted the connection, in the list the server was given.
    pub listener: usize,
    /// The other end of the connection. `None`: it is on a UNIX socket.
    pub socket: Option<SocketAddr>,
    /// The client, also behind trusted proxies; its port is 0 if the proxy states none. `None`: it is on a UNIX socket.
    pub client: Option<SocketAddr>,
    /// The scheme.
    pub scheme: Option<Scheme>,
    /// The host, with its port if it was sent with one: a valid authority.
    pub host: Option<Span>,
    /// The port that the client connected to.
    pub port: Option<u16>,
    /// The path that the proxy has removed from the start of the target: it begins with a slash and does not end with
    /// one, and is not decoded.
    pub prefix: Option<Span>,
}

/// What became of the fields by which proxies state something about their clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fields {
    /// They were read.
    Believed,
    /// They were read but for those that the trusted proxies do not write, which were removed: this one for instance.
    OthersRemoved(ForwardedField),
    /// They were removed, since whoever sent them is not trusted.
    Removed,
}

impl Peer {
    /// The other end of a connection that this listener has accepted.
    pub fn of_socket(socket: Option<SocketAddr>, listener: usize) -> Self {
        Self { listener, socket, client: socket, ..Self::default() }
    }

    /// True when a PROXY header, a uwsgi packet or a forwarding field names another client than the socket.
    pub fn is_named(&self) -> bool {
        self.client != self.socket
    }

    /// True when a trusted proxy states a scheme, host, port or prefix.
    #[must_use]
    pub fn describes_request(&self) -> bool {
        self.scheme.is_some() || self.host.is_some() || self.port.is_some() || self.prefix.is_some()
    }

    /// Extends the record by what a PROXY header states.
    pub fn take_header(&mut self, source: ProxySource) {
        match source {
            ProxySource::Peer => {}
            ProxySource::Client(client) => self.client = Some(client),
            ProxySource::Unix => self.client = None,
        }
    }

    /// Extends the record by the forwarding fields of a request, if its peer is trusted; else removes them.
    ///
    /// # Errors
    /// What a trusted proxy states is malformed, or contradicts itself.
    pub fn take_fields(&mut self, bytes: &[u8], fields: &mut Vec<Field>, trust: &Trust) -> Result<Fields, Refusal> {
        if !trust.is_trusted(self.client) {
            remove_all(bytes, fields);
            return Ok(Fields::Removed);
        }
        let removed = remove_others(bytes, fields, trust);
        let Statement { client, scheme, host, port, prefix } = read(bytes, fields, trust, self.client)?;
        self.client = client;
        self.scheme = scheme.or(self.scheme);
        self.host = host.or(self.host);
        self.port = port.or(self.port);
        self.prefix = prefix.or(self.prefix);
        Ok(removed.map_or(Fields::Believed, Fields::OthersRemoved))
    }
}
