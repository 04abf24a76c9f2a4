//! Replaces `tls.rs` in a build without the feature `tls`, where no value of [`Certificates`] exists.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tailrace_observe::stats::Counts;
use tailrace_tls::config::Certificates;

use crate::request::memory::ClientMemory;
use crate::transport::plain::Plain;

/// What the encrypted connections of a server share.
#[allow(dead_code, reason = "there are none; the fields are those of `tls.rs`")]
pub(crate) struct TlsContext {
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) memory: Arc<ClientMemory>,
    pub(crate) counts: Arc<Counts>,
}

/// No encrypted connection can be made.
pub(crate) enum Tls {}

impl Tls {
    pub(crate) fn new(_socket: OwnedFd, _key: u64, context: Arc<TlsContext>, _is_clear: bool) -> Plain {
        match *context.certificates {}
    }
}
