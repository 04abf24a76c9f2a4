//! Tickets by which a client resumes its session at any worker (RFC 5077, RFC 8446 section 4.6.1), without state here.
//!
//! A ticket is `epoch (8) | nonce (12) | AES-256-GCM of the session`. The key of an epoch is derived from a secret that
//! all workers have. A ticket is accepted in its epoch and in the next one.

use std::fmt;
use std::time::UNIX_EPOCH;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hmac;
use aws_lc_rs::rand;
use rustls::server::ProducesTickets;

use crate::files;

/// The length of the secret in bytes.
pub const SECRET: usize = 32;
/// The length of an epoch in seconds.
const EPOCH: u64 = 6 * 60 * 60;
/// Longer tickets are not made: a client with a long chain of certificates does without.
const LARGEST: usize = 16 * 1024;
const BEFORE: usize = 8 + NONCE_LEN;

pub(crate) struct Tickets {
    secret: hmac::Key,
    now: fn() -> u64,
}

impl fmt::Debug for Tickets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Tickets")
    }
}

fn seconds() -> u64 {
    files::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl Tickets {
    pub(crate) fn new(secret: &[u8; SECRET]) -> Self {
        Self { secret: hmac::Key::new(hmac::HMAC_SHA256, secret), now: seconds }
    }

    fn key(&self, epoch: [u8; 8]) -> Option<LessSafeKey> {
        let tag = hmac::sign(&self.secret, &[b"tailrace ticket", epoch.as_slice()].concat());
        Some(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, tag.as_ref()).ok()?))
    }

    fn epoch(&self) -> u64 {
        (self.now)() / EPOCH
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        EPOCH as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        if plain.len() > LARGEST {
            return None;
        }
        let epoch = self.epoch().to_be_bytes();
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let mut sealed = plain.to_vec();
        let unique = Nonce::assume_unique_for_key(nonce);
        self.key(epoch)?.seal_in_place_append_tag(unique, Aad::from(epoch), &mut sealed).ok()?;
        Some([epoch.as_slice(), &nonce, &sealed].concat())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let epoch: [u8; 8] = ticket.get(..8)?.try_into().ok()?;
        let nonce: [u8; NONCE_LEN] = ticket.get(8..BEFORE)?.try_into().ok()?;
        let age = self.epoch().checked_sub(u64::from_be_bytes(epoch))?;
        if age > 1 || ticket.len() > 2 * LARGEST {
            return None;
        }
        let mut sealed = ticket[BEFORE..].to_vec();
        let key = self.key(epoch)?;
        let plain = key.open_in_place(Nonce::assume_unique_for_key(nonce), Aad::from(epoch), &mut sealed).ok()?.len();
        sealed.truncate(plain);
        Some(sealed)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rustls::server::ProducesTickets;

    use super::{EPOCH, LARGEST, Tickets};

    fn at(secret: u8, now: fn() -> u64) -> Tickets {
        Tickets { now, ..Tickets::new(&[secret; 32]) }
    }

    #[test]
    fn another_worker_with_the_secret_reads_a_ticket_and_others_do_not() {
        let ticket = at(1, || EPOCH).encrypt(b"session").unwrap();
        assert_eq!(at(1, || EPOCH).decrypt(&ticket).unwrap(), b"session");
        assert_eq!(at(2, || EPOCH).decrypt(&ticket), None);
        assert_ne!(at(1, || EPOCH).encrypt(b"session").unwrap(), ticket, "two tickets of a session differ");
    }

    #[test]
    fn a_ticket_lives_in_its_epoch_and_the_next_one() {
        let ticket = at(1, || 2 * EPOCH - 1).encrypt(b"session").unwrap();
        assert!(at(1, || 3 * EPOCH - 1).decrypt(&ticket).is_some());
        assert!(at(1, || 3 * EPOCH).decrypt(&ticket).is_none());
        assert!(at(1, || 0).decrypt(&ticket).is_none(), "from a time to come");
    }

    #[test]
    fn what_is_no_ticket_is_refused() {
        let tickets = at(1, || EPOCH);
        let ticket = tickets.encrypt(b"session").unwrap();
        for length in 0..ticket.len() {
            assert_eq!(tickets.decrypt(&ticket[..length]), None);
        }
        for at in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[at] ^= 1;
            assert_eq!(tickets.decrypt(&changed), None, "byte {at}");
        }
        assert_eq!(tickets.encrypt(&vec![0; LARGEST + 1]), None);
    }
}
