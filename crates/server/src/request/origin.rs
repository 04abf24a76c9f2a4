//! How the client sent a request, where a proxy stands between; and whether what a proxy states about it is believed.
//!
//! Plain data. Each part is `None` when nobody who is trusted says otherwise than the connection itself.

use std::net::SocketAddr;

pub use tailrace_http::forwarded::Scheme;
use tailrace_http::forwarded::{Statement, read, remove_all, remove_others};
use tailrace_http::limits::Refusal;
use tailrace_http::request_head::{Field, Span};
use tailrace_http::trust::{ForwardedField, Trust};

/// What a proxy that is trusted says of the request as it received it. Its client's address is
/// [`Endpoints::peer`](crate::Endpoints). The spans refer to the bytes of the request's head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
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
pub(crate) enum Fields {
    /// They were read.
    Believed,
    /// They were read but for those that the trusted proxies do not write, which were removed: this one for instance.
    OthersRemoved(ForwardedField),
    /// They were removed, since whoever sent them is not trusted.
    Removed,
}

impl Origin {
    /// Applies such fields of a request. The peer was found before by the socket, by a PROXY header or by a uwsgi packet,
    /// in this order; afterwards it is the client.
    ///
    /// # Errors
    /// What a trusted proxy states is malformed, or contradicts itself.
    pub(crate) fn apply(
        &mut self,
        bytes: &[u8],
        fields: &mut Vec<Field>,
        peer: &mut Option<SocketAddr>,
        trust: &Trust,
    ) -> Result<Fields, Refusal> {
        if !trust.is_trusted(*peer) {
            remove_all(bytes, fields);
            return Ok(Fields::Removed);
        }
        let removed = remove_others(bytes, fields, trust);
        let Statement { client, scheme, host, port, prefix } = read(bytes, fields, trust, *peer)?;
        *peer = client;
        *self = Self {
            scheme: scheme.or(self.scheme),
            host: host.or(self.host),
            port: port.or(self.port),
            prefix: prefix.or(self.prefix),
        };
        Ok(removed.map_or(Fields::Believed, Fields::OthersRemoved))
    }
}
