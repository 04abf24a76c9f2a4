//! A certificate for development, which no browser trusts.

use crate::TlsFault;

/// A certificate for these names and its key, in PEM.
///
/// # Errors
/// A name cannot be in a certificate.
pub fn self_signed(names: Vec<String>) -> Result<(String, String), TlsFault> {
    let made = rcgen::generate_simple_self_signed(names)
        .map_err(|fault| TlsFault(format!("a self-signed certificate cannot be made: {fault}")))?;
    Ok((made.cert.pem(), made.signing_key.serialize_pem()))
}
