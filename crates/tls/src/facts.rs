//! What is known of an encrypted connection once its handshake is complete. Plain values: they are also there in a build
//! without the feature `rustls`.

use std::borrow::Cow;

/// The words are those of OpenSSL and mod_ssl.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// `TLSv1.2` or `TLSv1.3`.
    pub protocol: &'static str,
    /// The cipher suite.
    pub cipher: Cow<'static, str>,
    /// The name that the client has asked for, in lower case.
    pub server_name: Option<String>,
    /// What the client proves about itself. `None`: it has sent no certificate.
    pub client: Option<ClientCertificate>,
}

/// A certificate that a client has proved to own, and that an authority has signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Its subject (RFC 4514).
    pub subject: String,
    /// Its issuer (RFC 4514).
    pub issuer: String,
    /// Its serial number in hexadecimal digits.
    pub serial: String,
    /// The certificate in PEM.
    pub pem: String,
}
