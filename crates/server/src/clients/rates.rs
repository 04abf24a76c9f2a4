//! How many requests each client may send: a token bucket for each, of which one word is kept, the time at which the
//! bucket is full again (GCRA: the generic cell rate algorithm of ITU-T I.371).
//!
//! The table has room for [`CLIENTS`] clients. A client whose bucket is full needs no entry. If more clients than that
//! send requests at the same time, the one that has used least of its bucket is evicted: many clients make the limits of
//! others wider, never narrower. Two threads that write at the same moment may lose a count.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clients::key::ClientKey;

/// Clients in one set: a client may be in any entry of its set.
const WAYS: usize = 8;
const SETS: usize = 8192;
/// Clients for which there is room.
pub(crate) const CLIENTS: usize = SETS * WAYS;
/// An entry has two words: the client, and the time at which its bucket is full, in nanoseconds.
const ENTRY: usize = 2;

/// The table.
#[derive(Clone, Copy)]
pub(crate) struct Rates(&'static [AtomicU64]);

/// A number of requests per period, which is also the largest burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Requests.
    pub requests: NonZeroU32,
    /// In this time, an hour at most.
    pub period: Duration,
}

impl Rates {
    pub(super) const WORDS: usize = CLIENTS * ENTRY;

    pub(super) fn new(words: &'static [AtomicU64]) -> Self {
        Self(words)
    }

    /// Takes one token out of the bucket of a client. `now`: by a clock that all workers share, in nanoseconds.
    ///
    /// # Errors
    /// The bucket is empty; the time until it has a token.
    pub(crate) fn take(self, client: ClientKey, rate: Rate, now: u64) -> Result<(), Duration> {
        let capacity = rate.period.as_nanos() as u64;
        let each = (capacity / u64::from(rate.requests.get())).max(1);
        let full_at = self.full_at(client, now);
        let mut before = full_at.load(Ordering::Relaxed);
        loop {
            let after = before.max(now) + each;
            if let Some(wait @ 1..) = after.checked_sub(now + capacity) {
                return Err(Duration::from_nanos(wait));
            }
            match full_at.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(changed) => before = changed,
            }
        }
    }

    /// The entry of a client, which becomes its own if it has none.
    fn full_at(self, ClientKey(key): ClientKey, now: u64) -> &'static AtomicU64 {
        // 0 marks a free entry.
        let tag = key | 1;
        let start = (key >> 32) as usize % SETS * WAYS * ENTRY;
        let set = &self.0[start..start + WAYS * ENTRY];
        let mut least = (u64::MAX, 0, 0);
        for at in (0..set.len()).step_by(ENTRY) {
            let found = set[at].load(Ordering::Relaxed);
            if found == tag {
                return &set[at + 1];
            }
            let full_at = if found == 0 { 0 } else { set[at + 1].load(Ordering::Relaxed) };
            if full_at < least.0 {
                least = (full_at, at, found);
            }
        }
        let (_, at, found) = least;
        // If another client takes it at the same moment, both have one bucket until one of them is forgotten.
        if set[at].compare_exchange(found, tag, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            set[at + 1].store(now, Ordering::Relaxed);
        }
        &set[at + 1]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{IpAddr, Ipv4Addr};
    use std::num::NonZeroU32;
    use std::time::Duration;

    use super::{CLIENTS, Rate};
    use crate::clients::Clients;

    const SECOND: u64 = 1_000_000_000;

    fn rate(requests: u32, seconds: u64) -> Rate {
        Rate { requests: NonZeroU32::new(requests).unwrap(), period: Duration::from_secs(seconds) }
    }

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from(number))
    }

    /// How many requests of a client are admitted at once.
    fn at_once(clients: &Clients, client: u32, rate: Rate, now: u64) -> usize {
        let key = clients.secret.key(address(client));
        (0..100_000).take_while(|_| clients.rates.take(key, rate, now).is_ok()).count()
    }

    #[test]
    fn a_bucket_has_as_many_tokens_as_the_period_and_is_filled_evenly() {
        let clients = Clients::new(1).unwrap();
        for (client, limit, between) in [(1, rate(10, 1), SECOND / 10), (2, rate(30, 60), 2 * SECOND)] {
            let (key, now) = (clients.secret.key(address(client)), 100 * SECOND);
            assert_eq!(at_once(&clients, client, limit, now), limit.requests.get() as usize);
            assert_eq!(clients.rates.take(key, limit, now), Err(Duration::from_nanos(between)));
            assert_eq!(clients.rates.take(key, limit, now + between - 1), Err(Duration::from_nanos(1)));
            assert_eq!(clients.rates.take(key, limit, now + between), Ok(()));
            assert_eq!(at_once(&clients, client, limit, now + 4 * between), 3);
            // A bucket holds no more than that, however long the client is away.
            assert_eq!(at_once(&clients, client, limit, now + 4000 * SECOND), limit.requests.get() as usize);
        }
    }

    #[test]
    fn a_client_that_keeps_to_its_rate_is_never_refused() {
        let clients = Clients::new(1).unwrap();
        let key = clients.secret.key(address(1));
        for number in 0..10_000 {
            assert_eq!(clients.rates.take(key, rate(3, 1), number * SECOND.div_ceil(3)), Ok(()));
        }
    }

    #[test]
    fn what_one_client_uses_is_not_missed_by_another() {
        let clients = Clients::new(1).unwrap();
        for client in 0..1000 {
            assert_eq!(at_once(&clients, client, rate(5, 3600), SECOND), 5);
        }
    }

    #[test]
    fn a_crowd_of_clients_makes_no_limit_narrower() {
        let clients = Clients::new(1).unwrap();
        let limit = rate(4, 3600);
        assert_eq!(at_once(&clients, 1, limit, SECOND), 4);
        for client in 0..3 * CLIENTS as u32 {
            assert_eq!(clients.rates.take(clients.secret.key(address(client + 10)), limit, SECOND), Ok(()));
        }
        // It has used more than each of those in its set, so it is the last to be forgotten.
        assert!(clients.rates.take(clients.secret.key(address(1)), limit, SECOND).is_err());
    }

    #[test]
    fn threads_share_a_bucket() {
        let clients = Clients::new(1).unwrap();
        let threads = [(); 4].map(|()| std::thread::spawn(move || at_once(&clients, 1, rate(1000, 3600), SECOND)));
        // Two of them may have made the entry at the same moment.
        let admitted: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert!((1000..1010).contains(&admitted), "{admitted}");
    }
}
