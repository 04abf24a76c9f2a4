//! Sessions that live in one worker: which worker a session belongs to, and how the others find it (`--sticky`).
//!
//! The worker that issues the key of a session owns it. A request with that key that arrives at another worker is passed
//! to the owner, with its connection. This folder knows keys and owners; `connection/to_worker.rs` passes a connection,
//! and `server/adopting.rs` takes it.

pub(crate) mod key;
pub(crate) mod message;
pub(crate) mod owners;
#[cfg(test)]
pub(crate) mod testing;

use std::io;

use tailrace_http::encode::ResponseHead;

use crate::request::Request;
use crate::sticky::key::SessionKey;
use crate::sticky::owners::{Owners, Place};

/// What a worker knows of the sessions of all workers.
pub(crate) struct Sessions {
    key: SessionKey,
    owners: Owners,
    own: Place,
}

impl Sessions {
    /// Of the worker at this place.
    pub(crate) fn new(key: SessionKey, owners: Owners, own: Place) -> Self {
        Self { key, owners, own }
    }

    /// Where another worker takes this request; `None`: it is for this one. Notes that its session is in use. Of several
    /// keys, the first that a worker owns counts.
    pub(crate) fn other_owner(&self, request: &Request, now: impl Fn() -> u64) -> Option<Place> {
        let owner = self.key.in_request(request, |key| self.owners.owner(key, now()));
        owner.filter(|place| *place != self.own)
    }

    /// The abstract name of the socket of the worker at this place.
    pub(crate) fn address(&self, place: Place) -> Vec<u8> {
        self.owners.address(place)
    }

    /// That of this worker.
    pub(crate) fn own_address(&self) -> Vec<u8> {
        self.owners.address(self.own)
    }

    /// The response to this request has this head: this worker owns the sessions that begin with it. A key that the
    /// request has is not new, so that clients cannot make the application issue keys that they have made up.
    pub(crate) fn note_head(&self, request: &Request, head: &ResponseHead, now: impl Fn() -> u64) {
        self.key.issued_in_head(head, |key| {
            if self.key.in_request(request, |other| (other == key).then_some(())).is_none() {
                self.owners.own(key, self.own, now());
            }
        });
    }

    /// The body of the response to this request begins with this block: if a session begins with it, this worker owns
    /// that.
    pub(crate) fn note_block(&self, request: &Request, status: u16, block: &[u8], now: impl FnOnce() -> u64) {
        if status == 200
            && self.key.in_request(request, |_| Some(())).is_none()
            && let Some(key) = self.key.issued_in_block(block)
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
    use tailrace_http::encode::ResponseHead;

    use super::Sessions;
    use crate::request::Request;
    use crate::sticky::key::SessionKey;
    use crate::sticky::owners::Owners;
    use crate::sticky::testing::{query, with_fields};

    fn workers(key: &str) -> [Sessions; 2] {
        let (owners, key) = (Owners::new(2).unwrap(), SessionKey::parse(key).unwrap());
        [0, 1].map(|slot| Sessions::new(key.clone(), owners, owners.join(slot).unwrap()))
    }

    fn with_cookie(value: &str) -> ResponseHead {
        let mut head = ResponseHead::default();
        head.status(b"200 OK").unwrap();
        head.field(b"Set-Cookie", value.as_bytes()).unwrap();
        head
    }

    #[test]
    fn a_successful_response_to_a_request_without_a_key_issues_one() {
        let [own, other] = workers("query:sid");
        let none = || -> u64 { panic!("no key, no time") };
        own.note_block(&Request::default(), 400, br#"0{"sid":"a"}"#, none);
        own.note_block(&Request::default(), 200, br#"{"sid":"a"}"#, none);
        own.note_block(&query("sid=b"), 200, br#"0{"sid":"a"}"#, none);
        own.note_head(&Request::default(), &with_cookie("sid=a"), none);
        assert!(other.other_owner(&Request::default(), none).is_none());
        assert!(other.other_owner(&query("sid=a"), || 0).is_none());
        own.note_block(&Request::default(), 200, br#"0{"sid":"a"}"#, || 0);
        assert_eq!(other.other_owner(&query("sid=a"), || 0), Some(own.own));
        assert!(own.other_owner(&query("sid=a"), || 0).is_none());
    }

    #[test]
    fn a_head_issues_the_keys_that_its_request_does_not_have() {
        let [own, other] = workers("cookie:sid");
        let asks = |cookies: &str| with_fields(&[("Cookie", cookies)]);
        other.note_head(&Request::default(), &with_cookie("sid=a"), || 0);
        // It is renewed: the key before stays where it is.
        own.note_head(&asks("sid=a"), &with_cookie("sid=b"), || 0);
        assert_eq!(own.other_owner(&asks("sid=a"), || 0), Some(other.own));
        assert_eq!(other.other_owner(&asks("sid=b"), || 0), Some(own.own));
        // Of several, the first that a worker owns.
        assert_eq!(own.other_owner(&asks("sid=x; sid=a; sid=b"), || 0), Some(other.own));
        assert_eq!(own.other_owner(&asks("sid=x; sid=b; sid=a"), || 0), None);
        // It is the client's.
        own.note_head(&asks("sid=x; sid=y"), &with_cookie("sid=y"), || panic!("it is not new"));
        assert_eq!(other.other_owner(&asks("sid=y"), || 0), None);
        own.note_block(&Request::default(), 200, br#"0{"sid":"z"}"#, || panic!("that is no cookie"));
    }
}
