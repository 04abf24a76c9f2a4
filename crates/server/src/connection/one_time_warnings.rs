//! One-time warnings, such as those about untrusted forwarding headers: a line for the log, with the remedy.
//!
//! Any thread.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use tailrace_http::proxy_protocol::Fault;
use tailrace_http::trust::ForwardedField;
use tailrace_observe::once_a_minute::OnceAMinute;
use tailrace_os::clock::Millis;

/// What is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Untrusted {
    /// `Forwarded` and `X-Forwarded-*` of a peer that is not trusted. They were removed.
    Fields,
    /// Such fields of a client that a trusted proxy names, by a PROXY header or a uwsgi packet.
    FieldsOfClient,
    /// A PROXY header of such a peer. Its connection was closed.
    Header,
    /// A uwsgi packet of such a peer. It was refused.
    Packet,
    /// Such a field of a trusted peer, where trusted proxies do not write it. It was removed.
    Field(ForwardedField),
}

/// What has been said.
#[derive(Default)]
pub(crate) struct OneTimeWarnings {
    fields: AtomicBool,
    fields_of_client: AtomicBool,
    header: AtomicBool,
    packet: AtomicBool,
    field: AtomicBool,
    header_refused: AtomicBool,
    speaks_tls: AtomicBool,
    too_many_connections: AtomicBool,
    foreign_origin: OnceAMinute,
    too_many_web_sockets: AtomicBool,
    sticky_is_encrypted: AtomicBool,
}

impl OneTimeWarnings {
    /// A connection of this client was closed, since it has `most` already.
    pub(crate) fn too_many_connections(&self, client: IpAddr, most: usize) -> Option<String> {
        first(&self.too_many_connections).then(|| {
            format!(
                "client {} has {most} connections already, so another one was closed (--max-connections-per-client). \
                 This is logged once; tailrace_limited_connections_total in /metrics counts them",
                client.to_canonical()
            )
        })
    }

    /// A request on an encrypted connection belongs to another worker.
    pub(crate) fn sticky_is_encrypted(&self) -> Option<String> {
        first(&self.sticky_is_encrypted).then(|| {
            String::from(
                "--sticky: the session of a request over HTTPS belongs to another worker, but encrypted connections \
                 cannot be passed, so this worker answers it. Terminate TLS in a proxy in front, or use --workers 1. \
                 This is logged once",
            )
        })
    }

    /// This peer has sent what is not believed.
    pub(crate) fn not_trusted(&self, what: Untrusted, peer: Option<SocketAddr>) -> Option<String> {
        let said = match what {
            Untrusted::Fields => &self.fields,
            Untrusted::FieldsOfClient => &self.fields_of_client,
            Untrusted::Header => &self.header,
            Untrusted::Packet => &self.packet,
            Untrusted::Field(_) => &self.field,
        };
        let peer = first(said).then_some(Peer(peer))?;
        let effect = match what {
            Untrusted::Fields => format!(
                "a request from {peer:#} had Forwarded or X-Forwarded headers; they were removed, because that peer is \
                 not trusted"
            ),
            Untrusted::FieldsOfClient => {
                return Some(format!(
                    "a request from {peer:#} had Forwarded or X-Forwarded headers; they were removed, because that \
                     client is not trusted. Have your proxy remove them. Add {peer} to --trusted-proxies only if it is \
                     a proxy itself. This is logged once"
                ));
            }
            Untrusted::Header => format!(
                "a connection from {peer:#} was closed: only trusted proxies may connect to an address with proxy="
            ),
            Untrusted::Packet => {
                format!("a request from {peer:#} got 403: only trusted proxies may send uwsgi packets")
            }
            Untrusted::Field(field) => {
                let (name, word) = (field.name(), field.name().to_ascii_lowercase());
                return Some(format!(
                    "a request from {peer:#} had {name}, which --forwarded-headers does not name; it was removed, \
                     because the client may have sent it. If your proxy sets it in every request, add {word} to \
                     --forwarded-headers. This is logged once"
                ));
            }
        };
        Some(format!("{effect}. If it is your proxy, add {peer} to --trusted-proxies. This is logged once"))
    }

    /// A page of another site has asked for a WebSocket. Said once a minute, since others than the operator ask as well.
    pub(crate) fn foreign_origin(&self, request: &str, origin: &str, now: Millis) -> Option<String> {
        self.foreign_origin.may_log(now).then(|| {
            format!(
                "{request} got 403: pages of {origin} may not open a WebSocket here. If the site is yours, have the \
                 proxy pass on the browser's Host header, or add {origin} to --websocket-origins"
            )
        })
    }

    /// All but one of the runners have a WebSocket.
    pub(crate) fn too_many_web_sockets(&self, request: &str, most: usize) -> Option<String> {
        first(&self.too_many_web_sockets).then(|| {
            format!(
                "{request}: {most} WebSockets are open in this worker, and one thread is kept for other requests, so \
                 the request got 503. Each WebSocket occupies a thread: raise --threads, or --max-greenlets with \
                 --gevent. This is logged once"
            )
        })
    }

    /// This peer speaks TLS where it is not understood.
    pub(crate) fn speaks_tls(&self, peer: Option<SocketAddr>) -> Option<String> {
        let peer = first(&self.speaks_tls).then_some(Peer(peer))?;
        Some(format!(
            "a connection from {peer:#} was rejected, because it speaks TLS to an address that is not encrypted. Bind \
             an https:// address, or use http:// in the client. This is logged once"
        ))
    }

    /// A connection of this peer was closed, because it does not begin with a PROXY header.
    pub(crate) fn header_refused(&self, fault: Fault, peer: Option<SocketAddr>) -> Option<String> {
        let peer = first(&self.header_refused).then_some(Peer(peer))?;
        Some(format!(
            "a connection from {peer:#} was closed: {fault}. Have the proxy send one, as HAProxy does with \
             send-proxy-v2, or remove proxy= from --bind. This is logged once"
        ))
    }
}

fn first(said: &AtomicBool) -> bool {
    !said.load(Ordering::Relaxed) && !said.swap(true, Ordering::Relaxed)
}

/// A peer as `--trusted-proxies` names it; in the alternate form as a sentence does.
struct Peer(Option<SocketAddr>);

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(peer) => write!(formatter, "{}", peer.ip().to_canonical()),
            None if formatter.alternate() => formatter.write_str("a UNIX socket"),
            None => formatter.write_str("unix"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_is_said_once_and_names_the_peer() {
        let warnings = OneTimeWarnings::default();
        let peer = Some("[::ffff:192.0.2.7]:4711".parse().unwrap());
        for what in [Untrusted::Fields, Untrusted::Header, Untrusted::Packet] {
            let line = OneTimeWarnings::default().not_trusted(what, None).unwrap();
            assert!(line.contains("from a UNIX socket ") && line.contains("add unix to --trusted-proxies"), "{line}");
            let line = warnings.not_trusted(what, peer).unwrap();
            assert!(line.contains("from 192.0.2.7 ") && line.contains("add 192.0.2.7 to --trusted-proxies"), "{line}");
            assert_eq!(warnings.not_trusted(what, peer), None);
        }
        let line = warnings.not_trusted(Untrusted::FieldsOfClient, peer).unwrap();
        assert!(
            line.contains("from 192.0.2.7 ") && line.contains("Add 192.0.2.7 to --trusted-proxies only if it is a"),
            "{line}"
        );
        assert_eq!(warnings.not_trusted(Untrusted::FieldsOfClient, peer), None);
        let line = warnings.not_trusted(Untrusted::Field(ForwardedField::Host), peer).unwrap();
        assert!(line.contains("had X-Forwarded-Host, ") && line.contains("add x-forwarded-host to --forw"), "{line}");
        assert_eq!(warnings.not_trusted(Untrusted::Field(ForwardedField::Port), peer), None);
        let line = warnings.header_refused(Fault::Absent, peer).unwrap();
        assert!(line.contains("does not begin with a PROXY header. Have the proxy send one"), "{line}");
        assert_eq!(warnings.header_refused(Fault::TooLong, peer), None);
    }
}
