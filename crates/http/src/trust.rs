//! Whose statements about a client are believed: the addresses of the proxies in front of this server.
//!
//! An IPv4 address that is written as an IPv6 one (`::ffff:192.0.2.1`, RFC 4291 section 2.5.5.2) is that IPv4 address.
//! Plain data; any thread.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

/// The peers that are believed. The default: those on a UNIX socket, which have no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    networks: Vec<IpNet>,
    unix: bool,
    fields: ForwardedFields,
}

/// Which fields the proxies write. Those that they do not write may be the client's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedFields {
    /// Whichever arrive. Where `Forwarded` and `X-Forwarded-*` both do, they must say the same.
    #[default]
    Any,
    /// `Forwarded` (RFC 7239).
    Standard,
    /// `X-Forwarded-For`, `-Proto`, `-Host`, `-Port` and `-Prefix`.
    Extension,
}

/// An entry of the list that is neither a network, nor an address, nor one of the two words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAPeer(String);

impl fmt::Display for NotAPeer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} is not an address, a network such as 10.0.0.0/8, \"unix\" or \"*\"", self.0)
    }
}

impl std::error::Error for NotAPeer {}

impl Default for Trust {
    fn default() -> Self {
        Self { networks: Vec::new(), unix: true, fields: ForwardedFields::Any }
    }
}

impl Trust {
    /// Nobody is believed.
    #[must_use]
    pub const fn nobody() -> Self {
        Self { networks: Vec::new(), unix: false, fields: ForwardedFields::Any }
    }

    /// Those that the entries name: an address, a network, `unix` for the peers on UNIX sockets, `*` for everybody.
    ///
    /// # Errors
    /// An entry is none of these, or a network whose address has bits outside its prefix.
    pub fn of<'a>(entries: impl IntoIterator<Item = &'a str>, fields: ForwardedFields) -> Result<Self, NotAPeer> {
        let mut trust = Self { fields, ..Self::nobody() };
        for entry in entries {
            match entry {
                "unix" => trust.unix = true,
                "*" => {
                    trust.unix = true;
                    trust.networks.extend([IpNet::V4(ipnet::Ipv4Net::default()), IpNet::V6(ipnet::Ipv6Net::default())]);
                }
                _ => trust.networks.push(network(entry).ok_or_else(|| NotAPeer(String::from(entry)))?),
            }
        }
        Ok(trust)
    }

    /// Whether a peer is believed. `None`: it has no address, as on a UNIX socket.
    #[must_use]
    pub fn is_trusted(&self, peer: Option<SocketAddr>) -> bool {
        let Some(peer) = peer else { return self.unix };
        let address = peer.ip().to_canonical();
        self.networks.iter().any(|network| network.contains(&address))
    }

    /// Which fields are read.
    #[must_use]
    pub fn fields(&self) -> ForwardedFields {
        self.fields
    }
}

/// `None` too for IPv4 addresses in the form of IPv6 ones: no peer has such an address.
fn network(entry: &str) -> Option<IpNet> {
    let network = match entry.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address.to_canonical()),
        Err(_) => entry.parse().ok()?,
    };
    let is_mapped =
        matches!(network, IpNet::V6(six) if six.prefix_len() >= 96 && six.addr().to_ipv4_mapped().is_some());
    (network == network.trunc() && !is_mapped).then_some(network)
}
