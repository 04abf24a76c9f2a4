//! Room in the send queue, for which a runner waits whose client does not take the response: how long, and how it
//! waits where no other thread sends.
//!
//! Thread: the runner's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::response::delivery::{Delivery, WrittenForRoom};
use crate::response::sending::Terms;

/// How long a client may take to make room before what waits for it goes to a file: one that reads at 8 MB a second
/// makes enough of it in half that time.
pub const PATIENCE: Duration = Duration::from_millis(250);
/// How long until that is tried again where it was not possible.
pub const RETRY: Duration = Duration::from_secs(10);

/// A thread or greenlet waits for its client until this is dropped.
pub struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A client that does not take its response, where no other thread sends.
pub(crate) struct SlowClient<'a> {
    pub(crate) delivery: &'a Delivery,
    pub(crate) terms: &'a Terms,
    /// How often the thread looks for signals.
    pub(crate) signal_check: Duration,
}

impl SlowClient<'_> {
    /// Sends by itself until there is room. False: there never will be. The connection is broken when the client takes
    /// nothing for `write_timeout`, or when `must_end` says that the server is to end. `spill` writes what waits to a
    /// file when the client has had time to take it, and answers after what time that may be tried again.
    pub(crate) fn write_for_room(
        &self,
        write_timeout: Duration,
        must_end: impl Fn() -> bool,
        spill: impl Fn() -> Duration,
    ) -> bool {
        let mut idle = Duration::ZERO;
        let mut waited = Duration::ZERO;
        let mut patience = PATIENCE;
        loop {
            match self.delivery.write_for_room(self.terms) {
                WrittenForRoom::Room => return true,
                WrittenForRoom::Never => return false,
                WrittenForRoom::Progress => idle = Duration::ZERO,
                WrittenForRoom::NoProgress => idle += self.signal_check,
            }
            if idle >= write_timeout || must_end() {
                self.delivery.break_off();
                return false;
            }
            if waited >= patience {
                patience = waited + spill();
            }
            waited += self.signal_check;
            self.delivery.socket().wait_writable(self.signal_check);
        }
    }
}
