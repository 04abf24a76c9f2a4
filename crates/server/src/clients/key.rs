//! A client as a key of the tables: a keyed hash, so that clients cannot choose addresses whose entries collide.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use tailrace_os::random::draw;

/// What the hash is keyed with; all workers have the same.
#[derive(Clone, Copy)]
pub(crate) struct Secret(&'static [AtomicU64]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientKey(pub(super) u64);

impl Secret {
    pub(super) const WORDS: usize = 2;

    /// A new one in these words.
    pub(super) fn new(words: &'static [AtomicU64]) -> Self {
        let secret = draw();
        words[0].store(secret as u64, Ordering::Relaxed);
        words[1].store((secret >> 64) as u64 | 1, Ordering::Relaxed);
        Self(words)
    }

    /// One client is an IPv4 address, or the /64 of an IPv6 address, which a single subscriber usually has.
    pub(crate) fn key(self, client: IpAddr) -> ClientKey {
        let (address, kind) = match client.to_canonical() {
            IpAddr::V4(address) => (u64::from(u32::from(address)), 4),
            IpAddr::V6(address) => ((u128::from(address) >> 64) as u64, 6),
        };
        let [first, second] = [&self.0[0], &self.0[1]].map(|word| word.load(Ordering::Relaxed));
        let mixed = mix(address ^ first, kind ^ second);
        ClientKey(mix(mixed ^ second.rotate_left(32), first | 1))
    }
}

/// Folds the product of two words, so that each bit of both counts.
fn mix(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashSet;
    use std::net::{IpAddr, Ipv4Addr};

    use tailrace_os::shared_memory::shared_words;

    use super::Secret;

    fn secret() -> Secret {
        Secret::new(shared_words(Secret::WORDS).unwrap())
    }

    #[test]
    fn a_client_is_an_ipv4_address_or_the_network_of_an_ipv6_address() {
        let secret = secret();
        let key = |text: &str| secret.key(text.parse().unwrap());
        assert_eq!(key("192.0.2.1"), key("::ffff:192.0.2.1"));
        assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
        assert_eq!(key("2001:db8:0:1::1"), key("2001:db8:0:1:ffff::"));
        assert_ne!(key("2001:db8:0:1::1"), key("2001:db8:0:2::1"));
        assert_ne!(key("0.0.0.1"), key("0:0:0:1::"));
    }

    #[test]
    fn keys_differ_between_servers_and_those_of_one_network_are_spread() {
        let [one, other] = [(); 2].map(|()| secret());
        let address = |number: u32| IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + number));
        assert_ne!(one.key(address(1)), other.key(address(1)));
        let keys: HashSet<_> = (0..100_000).map(|number| one.key(address(number)).0).collect();
        assert_eq!(keys.len(), 100_000);
        let low: HashSet<_> = keys.iter().map(|key| key % 4096).collect();
        let high: HashSet<_> = keys.iter().map(|key| key >> 52).collect();
        assert!(low.len() > 4000 && high.len() > 4000, "{} {}", low.len(), high.len());
    }
}
