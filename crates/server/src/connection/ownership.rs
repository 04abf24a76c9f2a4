//! Ownership of a connection, as one atomic word.
//!
//! Any thread may report an event; the thread that finds the word unowned becomes the owner and works on the connection
//! until it releases it. An event that is reported meanwhile sets its bit in the word, and the release fails while a
//! bit is set, so no event of the edge-triggered poller is lost.

use std::ops::Deref;
use std::sync::Arc;

use tailrace_os::epoll::SocketReadiness;
use tailrace_os::sync::atomic::{AtomicU32, Ordering};

/// A set of event bits.
pub(crate) type Bits = u32;

const OWNED: Bits = 1;
/// Bytes, or the end of the input, can be read.
pub(crate) const READ: Bits = 1 << 1;
/// The socket has room for bytes again.
pub(crate) const WRITE: Bits = 1 << 2;
/// The client has ended its sending direction.
pub(crate) const READ_END: Bits = 1 << 3;
/// The connection is broken or closed in both directions. Never cleared.
pub(crate) const GONE: Bits = 1 << 4;
/// The deadline of the connection has passed.
pub(crate) const EXPIRED: Bits = 1 << 5;
/// The server has begun to drain: a connection without a request closes.
pub(crate) const STOP: Bits = 1 << 6;
/// A connection without a request has to close, so that a new client can be accepted.
pub(crate) const EVICT_IDLE: Bits = 1 << 7;

/// Events after which a read returns bytes, the end of the input or an error.
pub(crate) const READABLE: Bits = READ | READ_END | GONE;

/// Bits that the owner does not clear when it takes the events.
const STICKY: Bits = OWNED | GONE;

/// What the poller reports, as bits.
pub(crate) fn bits(readiness: SocketReadiness) -> Bits {
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

/// A connection that the caller owns, until it passes this value on or releases the connection. If the value is dropped
/// instead, the connection stays owned, and nothing serves it any more.
#[must_use]
pub(crate) struct Owned<C>(pub(crate) Arc<C>);

impl<C> Deref for Owned<C> {
    type Target = Arc<C>;

    fn deref(&self) -> &Arc<C> {
        &self.0
    }
}

/// The ownership word of one connection.
pub(crate) struct Ownership(AtomicU32);

impl Ownership {
    /// The word of a new connection, owned by the thread that makes it.
    pub(crate) fn owned() -> Self {
        Self(AtomicU32::new(OWNED))
    }

    /// Reports events. True: the connection had no owner, and the caller owns it now. Sequentially consistent, as
    /// [`Ownership::is_gone`] is: of the I/O side, which then asks for the runner, and the runner, which has said that it
    /// has the request, one sees what the other did.
    pub(crate) fn raise(&self, bits: Bits) -> bool {
        self.0.fetch_or(bits | OWNED, Ordering::SeqCst) & OWNED == 0
    }

    /// Owner only: the events that were reported since the last call.
    pub(crate) fn take(&self) -> Bits {
        self.0.fetch_and(STICKY, Ordering::AcqRel) & !OWNED
    }

    /// Owner only: releases the connection, unless events were reported. False: still the owner, call
    /// [`Ownership::take`] again.
    pub(crate) fn release(&self) -> bool {
        let word = self.0.load(Ordering::Acquire);
        if word & !STICKY != 0 {
            return false;
        }
        self.0.compare_exchange(word, word & !OWNED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// True when the connection is known to be broken.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.load(Ordering::SeqCst) & GONE != 0
    }
}

#[cfg(test)]
mod tests {
    use super::{GONE, Ownership, READ, WRITE};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_release_fails_after_an_event() {
        let ownership = Ownership::owned();
        assert!(!ownership.raise(READ));
        assert!(!ownership.release());
        assert_eq!(ownership.take(), READ);
        assert!(ownership.release());
        assert!(ownership.raise(WRITE));
    }

    #[test]
    fn gone_is_never_cleared_and_does_not_prevent_a_release() {
        let ownership = Ownership::owned();
        ownership.raise(GONE);
        assert_eq!(ownership.take(), GONE);
        assert!(ownership.release());
        assert!(ownership.is_gone());
    }

    #[test]
    fn no_event_is_lost_between_many_threads() {
        // Each thread counts its reports before it sets the bit. An owner copies the count after it has taken the bits,
        // so after the last report some owner must have copied all of it.
        let ownership = Arc::new(Ownership::owned());
        assert!(ownership.release());
        let reported = Arc::new(AtomicU64::new(0));
        let carried = Arc::new(AtomicU64::new(0));
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let (ownership, reported, carried) = (ownership.clone(), reported.clone(), carried.clone());
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        reported.fetch_add(1, Ordering::SeqCst);
                        if ownership.raise(READ) {
                            loop {
                                ownership.take();
                                carried.store(reported.load(Ordering::SeqCst), Ordering::SeqCst);
                                if ownership.release() {
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
