//! Which thread owns a connection: one atomic word.
//!
//! Any thread may report an event; the thread that finds the word unowned becomes the owner and works on the connection
//! until it releases it. An event that arrives meanwhile sets its bit in the word, and the release fails while a bit is
//! set: no edge of the edge-triggered poller is ever lost.

use crate::os::epoll::Readiness;
use crate::os::sync::atomic::{AtomicU32, Ordering};

/// A set of event bits.
pub(crate) type Bits = u32;

const OWNED: Bits = 1;
/// Bytes (or the end) can be read.
pub(crate) const READ: Bits = 1 << 1;
/// The socket takes bytes again.
pub(crate) const WRITE: Bits = 1 << 2;
/// The client has ended its direction of the connection.
pub(crate) const READ_END: Bits = 1 << 3;
/// Broken or closed both ways. Stays set for ever.
pub(crate) const GONE: Bits = 1 << 4;
/// The connection's deadline has come.
pub(crate) const EXPIRED: Bits = 1 << 5;
/// The server is draining: a connection without a request closes.
pub(crate) const STOP: Bits = 1 << 6;
/// A connection without a request is to be closed, so that a new client can be accepted.
pub(crate) const UNWANTED: Bits = 1 << 7;

/// Bits that stay when the owner takes the events.
const STICKY: Bits = OWNED | GONE;

/// What the poller saw, as bits.
pub(crate) fn bits(readiness: Readiness) -> Bits {
    let mut bits = 0;
    for (is_set, bit) in
        [(readiness.read, READ), (readiness.write, WRITE), (readiness.read_end, READ_END), (readiness.gone, GONE)]
    {
        if is_set {
            bits |= bit;
        }
    }
    bits
}

/// The ownership word of one connection.
pub(crate) struct Claim(AtomicU32);

impl Claim {
    /// A new connection, owned by the thread that makes it.
    pub(crate) fn owned() -> Self {
        Self(AtomicU32::new(OWNED))
    }

    /// Reports events. True: the caller is the owner now.
    pub(crate) fn raise(&self, bits: Bits) -> bool {
        self.0.fetch_or(bits | OWNED, Ordering::AcqRel) & OWNED == 0
    }

    /// Owner only: the events that were reported since the last call.
    pub(crate) fn take(&self) -> Bits {
        self.0.fetch_and(STICKY, Ordering::AcqRel) & !OWNED
    }

    /// Owner only: releases the connection, unless events were reported. False: still the owner, call [`Claim::take`]
    /// again.
    pub(crate) fn release(&self) -> bool {
        let word = self.0.load(Ordering::Acquire);
        if word & !STICKY != 0 {
            return false;
        }
        self.0.compare_exchange(word, word & !OWNED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// True when the connection is known to be broken.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.load(Ordering::Acquire) & GONE != 0
    }
}

#[cfg(test)]
mod tests {
    use super::{Claim, GONE, READ, WRITE};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn an_event_during_ownership_keeps_the_owner_from_letting_go() {
        let claim = Claim::owned();
        assert!(!claim.raise(READ));
        assert!(!claim.release());
        assert_eq!(claim.take(), READ);
        assert!(claim.release());
        assert!(claim.raise(WRITE));
    }

    #[test]
    fn gone_is_remembered_and_does_not_keep_the_owner() {
        let claim = Claim::owned();
        claim.raise(GONE);
        assert_eq!(claim.take(), GONE);
        assert!(claim.release());
        assert!(claim.is_gone());
    }

    #[test]
    fn no_event_is_lost_between_many_threads() {
        // Each thread reports events; whoever owns counts what it carries. A counter of reports, raised before the
        // bit, must be seen whole by some owner after the last report.
        let claim = Arc::new(Claim::owned());
        assert!(claim.release());
        let reported = Arc::new(AtomicU64::new(0));
        let carried = Arc::new(AtomicU64::new(0));
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let (claim, reported, carried) = (claim.clone(), reported.clone(), carried.clone());
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        reported.fetch_add(1, Ordering::SeqCst);
                        if claim.raise(READ) {
                            loop {
                                claim.take();
                                carried.store(reported.load(Ordering::SeqCst), Ordering::SeqCst);
                                if claim.release() {
                                    break;
                                }
                            }
                        }
                    }
                })
            })
            .collect();
        for worker in workers {
            assert!(worker.join().is_ok());
        }
        assert_eq!(carried.load(Ordering::SeqCst), 80_000);
    }
}
