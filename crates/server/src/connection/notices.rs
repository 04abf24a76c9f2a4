//! What is said once about peers that are not trusted: a line for the log, with the remedy.
//!
//! Any thread.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use tailrace_http::proxy_protocol::Fault;

/// What a peer that is not trusted has sent: only proxies may state whose requests they pass on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Untrusted {
    /// `Forwarded` and `X-Forwarded-*`. Those of others are removed.
    Fields,
    /// A PROXY header. Connections of others to an address that expects one are closed.
    Header,
    /// A uwsgi packet. Those of others are refused.
    Packet,
}

/// What has been said.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    /// By what the peer has sent.
    not_trusted: [AtomicBool; 3],
    header_refused: AtomicBool,
}

impl Notices {
    /// This peer is not trusted.
    pub(crate) fn not_trusted(&self, what: Untrusted, peer: Option<SocketAddr>) -> Option<String> {
        let peer = first(&self.not_trusted[what as usize]).then_some(Peer(peer))?;
        let effect = match what {
            Untrusted::Fields => format!(
                "a request from {peer:#} had Forwarded or X-Forwarded fields; they were removed, since that peer is not \
                 trusted"
            ),
            Untrusted::Header => format!(
                "a connection from {peer:#} was closed: only trusted proxies may connect to an address with proxy="
            ),
            Untrusted::Packet => {
                format!("a request from {peer:#} was answered 403: only trusted proxies may send uwsgi packets")
            }
        };
        Some(format!("{effect}. If it is your proxy, add {peer} to --trusted-proxies. This is said once"))
    }

    /// A connection of this peer was closed, because it does not begin with a PROXY header.
    pub(crate) fn header_refused(&self, fault: Fault, peer: Option<SocketAddr>) -> Option<String> {
        let peer = first(&self.header_refused).then_some(Peer(peer))?;
        Some(format!(
            "a connection from {peer:#} was closed: {fault}. Have the proxy send one, as send-proxy-v2 of HAProxy does, \
             or remove proxy= from --bind. This is said once"
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
        let notices = Notices::default();
        let peer = Some("[::ffff:192.0.2.7]:4711".parse().unwrap());
        for what in [Untrusted::Fields, Untrusted::Header, Untrusted::Packet] {
            let line = Notices::default().not_trusted(what, None).unwrap();
            assert!(line.contains("from a UNIX socket ") && line.contains("add unix to --trusted-proxies"), "{line}");
            let line = notices.not_trusted(what, peer).unwrap();
            assert!(line.contains("from 192.0.2.7 ") && line.contains("add 192.0.2.7 to --trusted-proxies"), "{line}");
            assert_eq!(notices.not_trusted(what, peer), None);
        }
        let line = notices.header_refused(Fault::Absent, peer).unwrap();
        assert!(line.contains("does not begin with a PROXY header. Have the proxy send one"), "{line}");
        assert_eq!(notices.header_refused(Fault::TooLong, peer), None);
    }
}
