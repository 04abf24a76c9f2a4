//! The settings of TLS, what is served by them now, and its renewal when the files change.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ServerConfig};
use rustls::version::{TLS12, TLS13};

use crate::TlsFault;
use crate::certificate::{CertificateFacts, CertificateFiles, LoadedCertificate};
use crate::client::ClientCertificates;
use crate::files::{Stamp, now, read, stamp_of};
use crate::selection::{CertificateChoice, take_asked};
use crate::tickets::Tickets;

pub use crate::tickets::SECRET;

/// What the operator has set.
#[derive(Clone)]
pub struct TlsSettings {
    /// At least one. The first is for clients that ask for no name.
    pub certificates: Vec<CertificateFiles>,
    /// The file with the password of encrypted keys.
    pub password: Option<PathBuf>,
    /// TLS 1.2 is refused.
    pub only_1_3: bool,
    /// `None`: clients are not asked for a certificate.
    pub clients: Option<ClientCertificates>,
    /// The secret of tickets, which all workers share.
    pub ticket_secret: [u8; SECRET],
}

/// What is served.
struct Current {
    config: Arc<ServerConfig>,
    loaded: LoadedFiles,
    /// What the files were when they were read last.
    stamps: Stamps,
}

/// What the files have said, each of them when it could be used last.
#[derive(Clone)]
struct LoadedFiles {
    certificates: Vec<LoadedCertificate>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

#[derive(PartialEq, Eq)]
struct Stamps {
    /// Of the files of each certificate.
    certificates: Vec<Vec<Option<Stamp>>>,
    clients: Option<Stamp>,
    password: Option<Stamp>,
}

/// The certificates of a server, with what its handshakes need.
pub struct Certificates {
    settings: TlsSettings,
    current: RwLock<Current>,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Certificates")
            .field("certificates", &self.settings.certificates)
            .finish_non_exhaustive()
    }
}

/// What [`Certificates::refresh`] has found.
#[derive(Debug, Default)]
pub struct Refreshed {
    /// New connections get what changed files say, and what these are the facts of. `None`: nothing new is served.
    pub renewed: Option<Vec<CertificateFacts>>,
    /// Files have changed and cannot be used. What was served by them before still is. Found once for each change.
    pub faults: Vec<TlsFault>,
}

impl Certificates {
    /// Reads the files. An expired certificate is served, since otherwise a restart would end the service.
    ///
    /// # Errors
    /// A file cannot be read or used.
    pub fn load(settings: TlsSettings) -> Result<(Self, Vec<CertificateFacts>), TlsFault> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let stamps = Stamps::of(&settings);
        let mut certificates = Vec::new();
        for files in &settings.certificates {
            certificates.push(load(files, &settings, &provider)?);
        }
        let verifier = settings.clients.as_ref().map(|clients| clients.verifier(&provider)).transpose()?;
        let loaded = LoadedFiles { certificates, verifier };
        let (config, facts) = (config_of(&settings, &loaded, provider)?, loaded.facts());
        Ok((Self { settings, current: RwLock::new(Current { config, loaded, stamps }) }, facts))
    }

    /// What a new connection is served by.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).config.clone()
    }

    /// Reads the files again that have changed. One that cannot be used does not keep the others from being renewed.
    #[must_use]
    pub fn refresh(&self) -> Refreshed {
        let settings = &self.settings;
        let stamps = Stamps::of(settings);
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        if current.stamps == stamps {
            return Refreshed::default();
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let (mut loaded, mut has_new, mut faults) = (current.loaded.clone(), false, Vec::new());
        let has_other_password = current.stamps.password != stamps.password;
        for (at, files) in settings.certificates.iter().enumerate() {
            if !has_other_password && current.stamps.certificates[at] == stamps.certificates[at] {
                continue;
            }
            let read = load(files, settings, &provider).and_then(|read| match read.facts.seconds_left(now()) {
                ..=0 => Err(TlsFault(format!("{}: the certificate has expired", read.facts.file.display()))),
                _ => Ok(read),
            });
            match read {
                Ok(read) => (loaded.certificates[at], has_new) = (read, true),
                Err(fault) => faults.push(fault),
            }
        }
        if let Some(clients) = &settings.clients
            && current.stamps.clients != stamps.clients
        {
            match clients.verifier(&provider) {
                Ok(verifier) => (loaded.verifier, has_new) = (Some(verifier), true),
                Err(fault) => faults.push(fault),
            }
        }
        drop(current);
        let config = if has_new { config_of(settings, &loaded, provider).map(Some) } else { Ok(None) };
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        current.stamps = stamps;
        let mut renewed = None;
        match config {
            Ok(None) => {}
            Ok(Some(config)) => {
                renewed = Some(loaded.facts());
                (current.config, current.loaded) = (config, loaded);
            }
            Err(fault) => faults.push(fault),
        }
        Refreshed { renewed, faults }
    }
}

impl LoadedFiles {
    fn facts(&self) -> Vec<CertificateFacts> {
        self.certificates.iter().map(|each| each.facts.clone()).collect()
    }
}

impl Stamps {
    fn of(settings: &TlsSettings) -> Self {
        Self {
            certificates: settings.certificates.iter().map(|files| files.paths().map(stamp_of).collect()).collect(),
            clients: settings.clients.as_ref().and_then(|clients| stamp_of(&clients.authority)),
            password: settings.password.as_deref().and_then(stamp_of),
        }
    }
}

/// The name that the client has asked for whose greeting this thread has just processed.
#[must_use]
pub fn asked_name() -> Option<String> {
    take_asked().map(|name| name.to_ascii_lowercase())
}

fn load(
    files: &CertificateFiles,
    settings: &TlsSettings,
    provider: &CryptoProvider,
) -> Result<LoadedCertificate, TlsFault> {
    let password = settings.password.as_deref().map(read).transpose()?;
    // Editors end the last line.
    files.load(password.as_deref().map(<[u8]>::trim_ascii_end), provider)
}

fn config_of(
    settings: &TlsSettings,
    loaded: &LoadedFiles,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<ServerConfig>, TlsFault> {
    let versions: &[_] = if settings.only_1_3 { &[&TLS13] } else { &[&TLS13, &TLS12] };
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(|fault| TlsFault(format!("TLS cannot be set up: {fault}")))?;
    let builder = match &loaded.verifier {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(verifier.clone()),
    };
    let mut config = builder.with_cert_resolver(Arc::new(CertificateChoice::new(loaded.certificates.clone())));
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"http/1.0".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    if settings.clients.is_none() {
        config.ticketer = Arc::new(Tickets::new(&settings.ticket_secret));
    } else {
        // A resumed session would accept a client's certificate after its expiry or the removal of its authority.
        config.send_tls13_tickets = 0;
    }
    Ok(Arc::new(config))
}
