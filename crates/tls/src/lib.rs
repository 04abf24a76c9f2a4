//! TLS without I/O on sockets: reads certificates and keys, chooses one by the name that the client asks for, protects
//! tickets by a secret that all workers share, and notices when the files change.
//!
//! The records and handshakes are those of rustls with the cryptography of AWS-LC: its default, with post-quantum key
//! exchange, and the quickest for RSA and P-256. `ring` builds faster, but has neither, and is maintained less.

pub mod certificate;
pub mod client;
pub mod config;
pub mod facts;
mod files;
mod selection;
pub mod self_signed;
mod tickets;

pub use rustls;

/// Why TLS cannot be served, as a sentence that names the file and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault(pub String);

impl std::fmt::Display for Fault {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}
