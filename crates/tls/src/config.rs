//! The settings of TLS, what is served by them now, and its renewal when the files change.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::crypto::aws_lc_rs;
use rustls::server::{NoServerSessionStorage, ServerConfig};
use rustls::version::{TLS12, TLS13};

use crate::Fault;
use crate::certificate::{CertificateFacts, CertificateFiles};
use crate::client::ClientCertificates;
use crate::files::{Stamp, now, read, stamp_of};
use crate::selection::{Selection, take_asked};
use crate::tickets::Tickets;

pub use crate::tickets::SECRET;

/// What the operator has set.
#[derive(Clone)]
pub struct Settings {
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

/// What is served, read from the files at one moment.
struct Current {
    config: Arc<ServerConfig>,
    /// What the files were then.
    stamps: Vec<Option<Stamp>>,
}

/// See the module.
pub struct Certificates {
    settings: Settings,
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
#[derive(Debug)]
pub enum Refreshed {
    /// The files are as they were.
    Unchanged,
    /// They have changed, and new connections get what they say.
    Renewed(Vec<CertificateFacts>),
    /// They have changed and cannot be used. What was served before still is. Found once for each change.
    Kept(Fault),
}

impl Certificates {
    /// Reads the files. An expired certificate is served, since otherwise a restart would end the service.
    ///
    /// # Errors
    /// A file cannot be read or used.
    pub fn load(settings: Settings) -> Result<(Self, Vec<CertificateFacts>), Fault> {
        let stamps = stamps_of(&settings);
        let (config, facts) = config_of(&settings)?;
        Ok((Self { settings, current: RwLock::new(Current { config, stamps }) }, facts))
    }

    /// What a new connection is served by.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).config.clone()
    }

    /// Reads the files again if they have changed.
    #[must_use]
    pub fn refresh(&self) -> Refreshed {
        let stamps = stamps_of(&self.settings);
        if self.current.read().unwrap_or_else(PoisonError::into_inner).stamps == stamps {
            return Refreshed::Unchanged;
        }
        let loaded = config_of(&self.settings).and_then(|(config, facts)| {
            let now = now();
            match facts.iter().find(|each| each.seconds_left(now) <= 0) {
                Some(expired) => Err(Fault(format!("{}: the certificate has expired", expired.file.display()))),
                None => Ok((config, facts)),
            }
        });
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        current.stamps = stamps;
        match loaded {
            Ok((config, facts)) => {
                current.config = config;
                Refreshed::Renewed(facts)
            }
            Err(fault) => Refreshed::Kept(fault),
        }
    }
}

/// The name that the client has asked for whose greeting this thread has just processed.
#[must_use]
pub fn asked_name() -> Option<String> {
    take_asked().map(|name| name.to_ascii_lowercase())
}

fn config_of(settings: &Settings) -> Result<(Arc<ServerConfig>, Vec<CertificateFacts>), Fault> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let password = settings.password.as_deref().map(read).transpose()?;
    // Editors end the last line.
    let password = password.as_deref().map(<[u8]>::trim_ascii_end);
    let mut certificates = Vec::new();
    for files in &settings.certificates {
        certificates.push(files.load(password, &provider)?);
    }
    let facts = certificates.iter().map(|each| each.facts.clone()).collect();
    let versions: &[_] = if settings.only_1_3 { &[&TLS13] } else { &[&TLS13, &TLS12] };
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(|fault| Fault(format!("TLS cannot be set up: {fault}")))?;
    let builder = match &settings.clients {
        None => builder.with_no_client_auth(),
        Some(clients) => builder.with_client_cert_verifier(clients.verifier(&provider)?),
    };
    let mut config = builder.with_cert_resolver(Arc::new(Selection::new(certificates)));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = Arc::new(Tickets::new(&settings.ticket_secret));
    Ok((Arc::new(config), facts))
}

fn stamps_of(settings: &Settings) -> Vec<Option<Stamp>> {
    let clients = settings.clients.iter().map(|clients| clients.authority.as_path());
    let password = settings.password.iter().map(PathBuf::as_path);
    let certificates = settings.certificates.iter().flat_map(CertificateFiles::paths);
    certificates.chain(clients).chain(password).map(stamp_of).collect()
}
