//! Listeners: taking in new connections.
//!
//! Only the thread that leads the loop accepts.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use crate::sys;

/// Connections taken from a listener before the others' turn.
const AT_ONCE: usize = 64;

/// A listening socket of the server.
pub(crate) struct Listener {
    pub(crate) socket: OwnedFd,
}

/// What a round of accepting came to.
pub(crate) enum Accepted {
    /// Nobody waits any more.
    All,
    /// It is the others' turn; more may wait.
    Some,
    /// This process has no descriptors or memory left: accepting must pause.
    Exhausted(std::io::Error),
}

impl Listener {
    /// Takes in who waits.
    /// `is_shared`: other processes wait for the same clients, and take the next one.
    pub(crate) fn accept(&self, is_shared: bool, mut welcome: impl FnMut(OwnedFd, Option<SocketAddr>)) -> Accepted {
        for _ in 0..if is_shared { 1 } else { AT_ONCE } {
            match sys::accept(self.socket.as_fd()) {
                Ok(Some((socket, peer))) => welcome(socket, peer),
                Ok(None) => return Accepted::All,
                Err(fault) => return Accepted::Exhausted(fault),
            }
        }
        Accepted::Some
    }
}
