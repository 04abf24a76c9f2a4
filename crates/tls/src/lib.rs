//! TLS without I/O on sockets: reads certificates and keys, chooses one by the name that the client asks for, protects
//! tickets by a secret that all workers share, and notices when the files change.
//!
//! The records and handshakes are those of rustls with the cryptography of AWS-LC: its default, with post-quantum key
//! exchange, and the quickest for RSA and P-256. `ring` builds faster, but has neither, and is maintained less.

#[cfg(feature = "rustls")]
pub mod certificate;
#[cfg(feature = "rustls")]
pub mod client;
#[cfg(feature = "rustls")]
pub mod config;
pub mod facts;
#[cfg(feature = "rustls")]
mod files;
#[cfg(feature = "rustls")]
mod handshake;
#[cfg(feature = "rustls")]
mod selection;
#[cfg(feature = "rustls")]
pub mod self_signed;
#[cfg(feature = "rustls")]
mod tickets;

#[cfg(feature = "rustls")]
pub use rustls;

/// There are no certificates in a build without the feature `rustls`.
#[cfg(not(feature = "rustls"))]
pub mod config {
    /// No value of this type exists.
    #[derive(Debug)]
    pub enum Certificates {}
}

/// Why TLS cannot be served, as a sentence that names the file and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFault(pub String);

impl std::fmt::Display for TlsFault {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for TlsFault {}
