//! The certificates of encrypted listeners, which Python makes before it forks, so that all workers have the last ones
//! that could be read.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tailrace_tls::TlsFault;
use tailrace_tls::certificate::{CertificateFacts, CertificateFiles};
use tailrace_tls::client::ClientCertificates;
use tailrace_tls::config::{Certificates, Refreshed, SECRET, TlsSettings};

/// File, names, and when it begins and ceases to be valid.
type Facts = (String, Vec<String>, f64, f64);

#[pyclass(frozen, name = "Certificates", module = "tailrace._tailrace")]
pub(crate) struct PythonCertificates {
    pub(crate) served: Arc<Certificates>,
    facts: std::sync::Mutex<Vec<CertificateFacts>>,
}

#[pymethods]
impl PythonCertificates {
    /// Reads certificates. files: chain and key of each; a key that is None is in the file of the chain.
    /// password: the file with the password of encrypted keys. client_ca: the file with the authorities of clients;
    /// None: clients are not asked for a certificate. ticket_secret: 32 bytes that all workers share. Raises ValueError
    /// with a sentence that names the file.
    #[new]
    #[pyo3(signature = (files, ticket_secret, *, password=None, only_1_3=false, client_ca=None, client_is_required=false))]
    fn new(
        py: Python<'_>,
        files: Vec<(PathBuf, Option<PathBuf>)>,
        ticket_secret: [u8; SECRET],
        password: Option<PathBuf>,
        only_1_3: bool,
        client_ca: Option<PathBuf>,
        client_is_required: bool,
    ) -> PyResult<Self> {
        let certificates: Vec<_> = files.into_iter().map(|(chain, key)| CertificateFiles { chain, key }).collect();
        if certificates.is_empty() {
            return Err(PyValueError::new_err("there must be a certificate"));
        }
        let clients = client_ca.map(|authority| ClientCertificates { authority, is_required: client_is_required });
        let settings = TlsSettings { certificates, password, only_1_3, clients, ticket_secret };
        let (served, facts) =
            py.detach(|| Certificates::load(settings)).map_err(|TlsFault(text)| PyValueError::new_err(text))?;
        Ok(Self { served: Arc::new(served), facts: facts.into() })
    }

    /// For each certificate that is served: its file, its names, and when it begins and ceases to be valid (Unix time).
    fn facts(&self) -> Vec<Facts> {
        let facts = self.facts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        facts
            .iter()
            .map(|each| {
                (each.file.display().to_string(), each.names.clone(), unix(each.not_before), unix(each.not_after))
            })
            .collect()
    }

    /// Reads the files again that have changed. Returns whether new connections get what they say, and a sentence for
    /// each that cannot be used, once for each change; what was served by it before still is.
    fn refresh(&self, py: Python<'_>) -> (bool, Vec<String>) {
        let Refreshed { renewed, faults } = py.detach(|| self.served.refresh());
        let is_renewed = renewed.is_some();
        if let Some(facts) = renewed {
            *self.facts.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = facts;
        }
        (is_renewed, faults.into_iter().map(|TlsFault(text)| text).collect())
    }
}

fn unix(time: SystemTime) -> f64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_secs_f64(),
        Err(before) => -before.duration().as_secs_f64(),
    }
}

/// A certificate for development and its key, in PEM, for these names. Raises ValueError.
#[pyfunction]
pub(crate) fn self_signed(names: Vec<String>) -> PyResult<(String, String)> {
    tailrace_tls::self_signed::self_signed(names).map_err(|TlsFault(text)| PyValueError::new_err(text))
}
