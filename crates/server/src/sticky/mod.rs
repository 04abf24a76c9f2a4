//! Sessions that live in one worker: which worker a session belongs to, and how the others find it (`--sticky`).
//!
//! The worker that issues the key of a session owns it. A request with that key that arrives at another worker is passed
//! to the owner, with its connection. This folder knows keys and owners; `connection/to_worker.rs` passes a connection,
//! and `server/adopting.rs` takes it.

pub(crate) mod key;
pub(crate) mod message;
pub(crate) mod owners;

use std::io;

use crate::request::Request;
use crate::sticky::key::KeyName;
use crate::sticky::owners::{Owners, Place};

/// What a worker knows of the sessions of all workers.
pub(crate) struct Sessions {
    name: KeyName,
    owners: Owners,
    own: Place,
}

impl Sessions {
    /// Of the worker at this place.
    pub(crate) fn new(name: &str, owners: Owners, own: Place) -> Self {
        Self { name: KeyName::new(name), owners, own }
    }

    /// The abstract name of the socket where another worker takes this request; `None`: it is for this one. Notes that its
    /// session is in use.
    pub(crate) fn other_owner(&self, request: &Request, now: impl FnOnce() -> u64) -> Option<Place> {
        let key = self.name.in_request(request)?;
        self.owners.owner(key, now()).filter(|place| *place != self.own)
    }

    /// The abstract name of the socket of the worker at this place.
    pub(crate) fn address(&self, place: Place) -> Vec<u8> {
        self.owners.address(place)
    }

    /// That of this worker.
    pub(crate) fn own_address(&self) -> Vec<u8> {
        self.owners.address(self.own)
    }

    /// The response to this request begins with this block: if a session begins with it, this worker owns that.
    pub(crate) fn note_response(&self, request: &Request, status: u16, block: &[u8], now: impl FnOnce() -> u64) {
        if status == 200
            && self.name.in_request(request).is_none()
            && let Some(key) = self.name.issued_in(block)
        {
            self.owners.own(key, self.own, now());
        }
    }

    /// Nothing listens at the socket of the worker at this place, if the fault shows that.
    pub(crate) fn note_fault(&self, place: Place, fault: &io::Error) {
        if fault.kind() == io::ErrorKind::ConnectionRefused {
            self.owners.leave(place);
        }
    }

    /// This worker takes no more requests of others.
    pub(crate) fn leave(&self) {
        self.owners.leave(self.own);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use tailrace_http::request_head::Span;

    use super::Sessions;
    use crate::request::Request;
    use crate::sticky::owners::Owners;

    #[test]
    fn a_successful_response_to_a_request_without_a_key_issues_one() {
        let owners = Owners::new(2).unwrap();
        let [own, other] = [0, 1].map(|slot| Sessions::new("sid", owners, owners.join(slot).unwrap()));
        let asks = |key: &str| {
            let mut request = Request { bytes: format!("sid={key}").into_bytes(), ..Request::default() };
            request.head.query = Some(Span { start: 0, end: request.bytes.len() as u32 });
            request
        };
        let none = || -> u64 { panic!("no key, no time") };
        own.note_response(&Request::default(), 400, br#"0{"sid":"a"}"#, none);
        own.note_response(&Request::default(), 200, br#"{"sid":"a"}"#, none);
        own.note_response(&asks("b"), 200, br#"0{"sid":"a"}"#, none);
        assert!(other.other_owner(&Request::default(), none).is_none());
        assert!(other.other_owner(&asks("a"), || 0).is_none());
        own.note_response(&Request::default(), 200, br#"0{"sid":"a"}"#, || 0);
        assert_eq!(other.other_owner(&asks("a"), || 0), Some(own.own));
        assert!(own.other_owner(&asks("a"), || 0).is_none());
    }
}
