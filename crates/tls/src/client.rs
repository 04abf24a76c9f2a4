//! What a client proves about itself by a certificate.

use std::path::PathBuf;
use std::sync::Arc;

use pkcs8::der::Decode;
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use x509_cert::Certificate;

use crate::TlsFault;
use crate::certificate::{certificates_of, pem_of};
use crate::facts::ClientCertificate;
use crate::files::read;

/// Which certificates of clients are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificates {
    /// The authorities in PEM that sign them.
    pub authority: PathBuf,
    /// A client without one is refused.
    pub is_required: bool,
}

impl ClientCertificates {
    /// What checks them.
    ///
    /// # Errors
    /// The file of the authority cannot be read or has no certificate.
    pub(crate) fn verifier(&self, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, TlsFault> {
        let shown = self.authority.display();
        let mut roots = RootCertStore::empty();
        for certificate in certificates_of(&read(&self.authority)?, &self.authority)? {
            roots.add(certificate).map_err(|fault| TlsFault(format!("{shown}: is not an authority: {fault}")))?;
        }
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let builder = if self.is_required { builder } else { builder.allow_unauthenticated() };
        builder.build().map_err(|fault| TlsFault(format!("{shown}: is not an authority: {fault}")))
    }
}

impl ClientCertificate {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let parsed = Certificate::from_der(certificate).ok()?.tbs_certificate;
        Some(Self {
            subject: parsed.subject.to_string(),
            issuer: parsed.issuer.to_string(),
            serial: serial_of(parsed.serial_number.as_bytes()),
            pem: pem_of(certificate)?,
        })
    }
}

/// A serial number as OpenSSL and mod_ssl show it, without the zero byte that DER adds if the first bit is set.
fn serial_of(bytes: &[u8]) -> String {
    let bytes = if let [0, rest @ ..] = bytes
        && !rest.is_empty()
    {
        rest
    } else {
        bytes
    };
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rcgen::{CertificateParams, KeyPair, SerialNumber};

    use crate::facts::ClientCertificate;

    #[test]
    fn a_serial_number_is_shown_as_openssl_does() {
        for (serial, shown) in [
            ([0x80, 0x01].as_slice(), "8001"),
            (&[0xff; 20], &"FF".repeat(20)),
            (&[0x7f, 0x00], "7F00"),
            (&[0x0a], "0A"),
            (&[0x00], "00"),
        ] {
            let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.serial_number = Some(SerialNumber::from_slice(serial));
            let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            assert_eq!(ClientCertificate::of(made.der()).unwrap().serial, shown);
        }
    }
}
