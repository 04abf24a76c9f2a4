//! Which peers are trusted to describe their clients, and by which fields: the addresses of the proxies in front of
//! this server, and the fields that they write.
//!
//! An IPv4 address that is written as an IPv6 one (`::ffff:192.0.2.1`, RFC 4291 section 2.5.5.2) is that IPv4 address.
//! Plain data; any thread.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

/// The trusted peers. By default, those on a UNIX socket, which have no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    networks: Vec<IpNet>,
    unix: bool,
    /// Whoever connects is a proxy, whatever its address.
    everybody: bool,
    fields: ForwardedFields,
}

/// A field by which a proxy states something about its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedField {
    /// `Forwarded` (RFC 7239).
    Forwarded,
    /// `X-Forwarded-For`.
    For,
    /// `X-Forwarded-Proto`.
    Proto,
    /// `X-Forwarded-Host`.
    Host,
    /// `X-Forwarded-Port`.
    Port,
    /// `X-Forwarded-Prefix`.
    Prefix,
}

impl ForwardedField {
    const ALL: [Self; 6] = [Self::Forwarded, Self::For, Self::Proto, Self::Host, Self::Port, Self::Prefix];

    /// The name of the field.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forwarded => "Forwarded",
            Self::For => "X-Forwarded-For",
            Self::Proto => "X-Forwarded-Proto",
            Self::Host => "X-Forwarded-Host",
            Self::Port => "X-Forwarded-Port",
            Self::Prefix => "X-Forwarded-Prefix",
        }
    }
}

/// Which fields the proxies write; any other one may come from the client. The default: `Forwarded`, `X-Forwarded-For`
/// and `-Proto`, which proxies usually write. If a proxy passed the others on unchanged, its client could choose the
/// host that appears in links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardedFields {
    /// A bit for each [`ForwardedField`].
    bits: u8,
}

impl Default for ForwardedFields {
    fn default() -> Self {
        Self::of(&[ForwardedField::Forwarded, ForwardedField::For, ForwardedField::Proto])
    }
}

impl ForwardedFields {
    /// No field.
    pub const NONE: Self = Self { bits: 0 };
    /// All fields.
    pub const ANY: Self = Self::of(&ForwardedField::ALL);
    /// `Forwarded` alone.
    pub const STANDARD: Self = Self::of(&[ForwardedField::Forwarded]);
    /// All but `Forwarded`.
    pub const EXTENSION: Self = Self { bits: Self::ANY.bits & !Self::STANDARD.bits };

    /// These fields.
    #[must_use]
    pub const fn of(mut fields: &[ForwardedField]) -> Self {
        let mut bits = 0;
        while let [field, rest @ ..] = fields {
            bits |= 1 << *field as u8;
            fields = rest;
        }
        Self { bits }
    }

    /// The fields that a word names: a field's name in lower case, `x-forwarded` for [`Self::EXTENSION`], `any`.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        match word {
            "any" => Some(Self::ANY),
            "x-forwarded" => Some(Self::EXTENSION),
            _ => {
                let field = ForwardedField::ALL.into_iter().find(|field| field.name().eq_ignore_ascii_case(word))?;
                Some(Self::of(&[field]))
            }
        }
    }

    /// The fields of both sets.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self { bits: self.bits | others.bits }
    }

    /// Whether a field is one of these.
    #[must_use]
    pub const fn has(self, field: ForwardedField) -> bool {
        self.bits & 1 << field as u8 != 0
    }
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
        Self { networks: Vec::new(), unix: true, everybody: false, fields: ForwardedFields::default() }
    }
}

impl Trust {
    /// No peer is trusted.
    #[must_use]
    pub const fn nobody() -> Self {
        Self { networks: Vec::new(), unix: false, everybody: false, fields: ForwardedFields::NONE }
    }

    /// The peers that the entries name: an address, a network, `unix` for peers on UNIX sockets, `*` for all peers.
    ///
    /// # Errors
    /// An entry is none of these, or a network whose address has bits outside its prefix.
    pub fn of<'a>(entries: impl IntoIterator<Item = &'a str>, fields: ForwardedFields) -> Result<Self, NotAPeer> {
        let mut trust = Self { fields, ..Self::nobody() };
        for entry in entries {
            match entry {
                "unix" => trust.unix = true,
                "*" => trust.everybody = true,
                _ => trust.networks.push(network(entry).ok_or_else(|| NotAPeer(String::from(entry)))?),
            }
        }
        Ok(trust)
    }

    /// Whether a peer is trusted. `None`: it has no address, as on a UNIX socket.
    #[must_use]
    pub fn is_trusted(&self, peer: Option<SocketAddr>) -> bool {
        self.everybody || self.is_listed(peer)
    }

    /// Whether a peer is trusted for its address. That everybody who connects is a proxy says nothing of the addresses that
    /// the proxy states: those are its clients.
    pub(crate) fn is_listed(&self, peer: Option<SocketAddr>) -> bool {
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
