//! Reads what a complete handshake has shown.

use std::borrow::Cow;

use rustls::{CipherSuite, CommonState, ProtocolVersion};

use crate::facts::{ClientCertificate, Facts};

impl Facts {
    /// The facts of a connection whose handshake is complete.
    #[must_use]
    pub fn of(connection: &CommonState, server_name: Option<String>) -> Self {
        Self {
            protocol: match connection.protocol_version() {
                Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
                _ => "TLSv1.3",
            },
            cipher: connection.negotiated_cipher_suite().map_or(Cow::Borrowed(""), |suite| name_of(suite.suite())),
            server_name,
            client: connection.peer_certificates().and_then(|chain| ClientCertificate::of(chain.first()?)),
        }
    }
}

/// The name that OpenSSL has for a cipher suite.
fn name_of(suite: CipherSuite) -> Cow<'static, str> {
    Cow::Borrowed(match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
        CipherSuite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 => "ECDHE-ECDSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 => "ECDHE-ECDSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 => "ECDHE-ECDSA-CHACHA20-POLY1305",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => "ECDHE-RSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => "ECDHE-RSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => "ECDHE-RSA-CHACHA20-POLY1305",
        other => return Cow::Owned(format!("{other:?}")),
    })
}
