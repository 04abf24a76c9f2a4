//! Which certificate a client gets: the first one for the name that it asks for, with a key that it understands.
//!
//! A client that asks for no name, or for one that no certificate has, gets the first certificate.

use std::cell::RefCell;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::certificate::LoadedCertificate;

thread_local! {
    /// The name in the last greeting that this thread has processed. rustls has no other way to it for a connection
    /// without buffers.
    static ASKED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Takes the name that the client asked for whose greeting this thread has just processed.
#[must_use]
pub(crate) fn take_asked() -> Option<String> {
    ASKED.with_borrow_mut(Option::take)
}

#[derive(Debug)]
pub(crate) struct CertificateChoice {
    certificates: Vec<LoadedCertificate>,
}

impl CertificateChoice {
    pub(crate) fn new(certificates: Vec<LoadedCertificate>) -> Self {
        Self { certificates }
    }

    fn choose(&self, name: Option<&str>, fits: impl Fn(&CertifiedKey) -> bool) -> Option<Arc<CertifiedKey>> {
        let of_name =
            |each: &&LoadedCertificate| name.is_some_and(|name| each.facts.names.iter().any(|one| is_for(one, name)));
        let named = self.certificates.iter().find(|each| of_name(each) && fits(&each.key));
        // Otherwise a key that fits, or the first, with which the handshake then fails in the usual way.
        named
            .or_else(|| self.certificates.iter().find(|each| fits(&each.key)))
            .or(self.certificates.first())
            .map(|each| each.key.clone())
    }
}

impl ResolvesServerCert for CertificateChoice {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        ASKED.set(hello.server_name().map(str::to_owned));
        self.choose(hello.server_name(), |key| key.key.choose_scheme(hello.signature_schemes()).is_some())
    }
}

/// Whether a certificate of this name is for a host: its first label may be a wildcard (RFC 6125 section 6.4.3).
fn is_for(name: &str, host: &str) -> bool {
    match name.strip_prefix("*.") {
        None => name.eq_ignore_ascii_case(host),
        Some(parent) => {
            host.split_once('.').is_some_and(|(label, rest)| !label.is_empty() && rest.eq_ignore_ascii_case(parent))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_for;

    #[test]
    fn a_wildcard_stands_for_one_label() {
        assert!(is_for("shop.example", "SHOP.example"));
        assert!(is_for("*.shop.example", "www.shop.example"));
        for host in ["shop.example", "a.b.shop.example", ".shop.example", "www.other.example", "wwwshop.example"] {
            assert!(!is_for("*.shop.example", host), "{host}");
        }
    }
}
