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

use crate::Fault;
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
    pub(crate) fn verifier(&self, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, Fault> {
        let shown = self.authority.display();
        let mut roots = RootCertStore::empty();
        for certificate in certificates_of(&read(&self.authority)?, &self.authority)? {
            roots.add(certificate).map_err(|fault| Fault(format!("{shown}: is not an authority: {fault}")))?;
        }
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let builder = if self.is_required { builder } else { builder.allow_unauthenticated() };
        builder.build().map_err(|fault| Fault(format!("{shown}: is not an authority: {fault}")))
    }
}

impl ClientCertificate {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let parsed = Certificate::from_der(certificate).ok()?.tbs_certificate;
        Some(Self {
            subject: parsed.subject.to_string(),
            issuer: parsed.issuer.to_string(),
            serial: parsed.serial_number.as_bytes().iter().map(|byte| format!("{byte:02X}")).collect(),
            pem: pem_of(certificate)?,
        })
    }
}
