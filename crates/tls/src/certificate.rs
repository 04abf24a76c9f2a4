//! A certificate chain with its private key, as files have them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use pkcs8::EncryptedPrivateKeyInfo;
use pkcs8::der::pem::PemLabel;
use pkcs8::der::{Decode, Encode};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject, SectionKind};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_cert::Certificate;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use crate::TlsFault;
use crate::files::read;

/// The files of one certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The chain in PEM, the server's certificate first.
    pub chain: PathBuf,
    /// The private key in PEM: PKCS#8, PKCS#1 or SEC 1. `None`: in the file of the chain.
    pub key: Option<PathBuf>,
}

/// What a certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// The file of the chain.
    pub file: PathBuf,
    /// The DNS names and addresses that it is for; those of one without are taken from its subject.
    pub names: Vec<String>,
    /// When it begins to be valid.
    pub not_before: SystemTime,
    /// When it expires.
    pub not_after: SystemTime,
}

impl CertificateFacts {
    /// Seconds until it expires; negative when it has expired.
    #[must_use]
    pub fn seconds_left(&self, now: SystemTime) -> i64 {
        match self.not_after.duration_since(now) {
            Ok(left) => i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            Err(past) => -i64::try_from(past.duration().as_secs()).unwrap_or(i64::MAX),
        }
    }
}

/// A certificate that can be served.
#[derive(Clone, Debug)]
pub(crate) struct LoadedCertificate {
    pub(crate) key: Arc<CertifiedKey>,
    pub(crate) facts: CertificateFacts,
}

impl CertificateFiles {
    /// The files that it consists of.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(&self.chain).chain(&self.key).map(PathBuf::as_path)
    }

    /// Reads the files. `password`: of an encrypted key.
    ///
    /// # Errors
    /// A file cannot be read, has no certificate or no key, or the key is not that of the certificate.
    pub(crate) fn load(
        &self,
        password: Option<&[u8]>,
        provider: &CryptoProvider,
    ) -> Result<LoadedCertificate, TlsFault> {
        let chain = read(&self.chain)?;
        let certificates = certificates_of(&chain, &self.chain)?;
        let key_file = self.key.as_ref().unwrap_or(&self.chain);
        let key = private_key(&read(key_file)?, key_file, password)?;
        let facts = facts_of(&certificates[0], &self.chain)?;
        let unfit = |what: &str| TlsFault(format!("{}: the private key {what}", key_file.display()));
        let signer = provider
            .key_provider
            .load_private_key(key)
            .map_err(|fault| unfit(&format!("is of a kind that is not supported ({fault}); use RSA or ECDSA P-256")))?;
        let certified = CertifiedKey::new(certificates, signer);
        if matches!(certified.keys_match(), Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)))
        {
            let chain = self.chain.display();
            return Err(unfit(&format!(
                "is not that of the certificate in {chain}; the certificate of the server must be the first in the file"
            )));
        }
        Ok(LoadedCertificate { key: Arc::new(certified), facts })
    }
}

/// What is wrong with a PEM file.
fn invalid(path: &Path, fault: &pem::Error) -> TlsFault {
    let unfinished = "the file may be incomplete; write it under another name, then rename it";
    let what = match fault {
        pem::Error::MissingSectionEnd { end_marker } => {
            format!("-----END {}----- is missing; {unfinished}", end_marker.escape_ascii())
        }
        pem::Error::IllegalSectionStart { line } => {
            format!("the line \"{}\" is malformed; {unfinished}", line.escape_ascii())
        }
        other => other.to_string(),
    };
    TlsFault(format!("{}: is not valid PEM: {what}", path.display()))
}

/// The certificates of a PEM file, at least one.
///
/// # Errors
/// There is none, or the PEM is malformed.
pub(crate) fn certificates_of(pem: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFault> {
    let shown = path.display();
    let mut found = Vec::new();
    for each in CertificateDer::pem_slice_iter(pem) {
        found.push(each.map_err(|fault| invalid(path, &fault))?);
    }
    if found.is_empty() {
        return Err(TlsFault(format!("{shown}: has no certificate; it must be PEM, with -----BEGIN CERTIFICATE-----")));
    }
    Ok(found)
}

/// The first private key of a PEM file.
///
/// # Errors
/// There is none, or it is encrypted and the password does not fit.
fn private_key(pem: &[u8], path: &Path, password: Option<&[u8]>) -> Result<PrivateKeyDer<'static>, TlsFault> {
    let shown = path.display();
    let has = |text: &[u8]| pem.windows(text.len()).any(|window| window == text);
    if has(b"Proc-Type: 4,ENCRYPTED") {
        return Err(TlsFault(format!(
            "{shown}: the private key is encrypted in an old format; convert it with `openssl pkcs8 -topk8 -in KEY -out \
             NEW_KEY`"
        )));
    }
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem) {
        let (kind, der) = section.map_err(|fault| invalid(path, &fault))?;
        match kind {
            SectionKind::PrivateKey => return Ok(PrivateKeyDer::Pkcs8(der.into())),
            SectionKind::RsaPrivateKey => return Ok(PrivateKeyDer::Pkcs1(der.into())),
            SectionKind::EcPrivateKey => return Ok(PrivateKeyDer::Sec1(der.into())),
            _ => {}
        }
    }
    if has(format!("-----BEGIN {}-----", EncryptedPrivateKeyInfo::PEM_LABEL).as_bytes()) {
        return decrypted(pem, path, password);
    }
    Err(TlsFault(format!("{shown}: has no private key; it must be PEM, with -----BEGIN PRIVATE KEY-----")))
}

fn decrypted(pem: &[u8], path: &Path, password: Option<&[u8]>) -> Result<PrivateKeyDer<'static>, TlsFault> {
    let shown = path.display();
    let Some(password) = password else {
        return Err(TlsFault(format!(
            "{shown}: the private key is encrypted; name a file with its password with --keyfile-password-file"
        )));
    };
    let malformed = |_| TlsFault(format!("{shown}: the encrypted private key is malformed"));
    let text = std::str::from_utf8(pem).map_err(|_| TlsFault(format!("{shown}: is not valid PEM")))?;
    // The file may have other sections.
    let begin = text.find("-----BEGIN ENCRYPTED").unwrap_or(0);
    let (_, document) = pkcs8::SecretDocument::from_pem(text[begin..].trim_end()).map_err(malformed)?;
    let encrypted = EncryptedPrivateKeyInfo::from_der(document.as_bytes()).map_err(malformed)?;
    let key = encrypted.decrypt(password).map_err(|_| {
        TlsFault(format!("{shown}: the private key cannot be decrypted; check --keyfile-password-file"))
    })?;
    Ok(PrivateKeyDer::Pkcs8(key.as_bytes().to_vec().into()))
}

fn facts_of(certificate: &CertificateDer<'_>, path: &Path) -> Result<CertificateFacts, TlsFault> {
    let malformed = |fault| TlsFault(format!("{}: the certificate is malformed: {fault}", path.display()));
    let parsed = Certificate::from_der(certificate).map_err(malformed)?.tbs_certificate;
    let mut names = Vec::new();
    if let Some((_, alternatives)) = parsed.get::<SubjectAltName>().map_err(malformed)? {
        for name in &alternatives.0 {
            match name {
                GeneralName::DnsName(name) => names.push(name.as_str().to_ascii_lowercase()),
                GeneralName::IpAddress(octets) => names.extend(address(octets.as_bytes())),
                _ => {}
            }
        }
    }
    if names.is_empty() {
        names.push(parsed.subject.to_string());
    }
    Ok(CertificateFacts {
        file: path.to_owned(),
        names,
        not_before: parsed.validity.not_before.to_system_time(),
        not_after: parsed.validity.not_after.to_system_time(),
    })
}

fn address(octets: &[u8]) -> Option<String> {
    let four = <[u8; 4]>::try_from(octets).map(|octets| std::net::Ipv4Addr::from(octets).to_string());
    four.ok().or_else(|| <[u8; 16]>::try_from(octets).ok().map(|octets| std::net::Ipv6Addr::from(octets).to_string()))
}

/// The PEM form of a certificate.
pub(crate) fn pem_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let parsed = Certificate::from_der(certificate).ok()?;
    let der = parsed.to_der().ok()?;
    pkcs8::der::pem::encode_string("CERTIFICATE", pkcs8::LineEnding::LF, &der).ok()
}
