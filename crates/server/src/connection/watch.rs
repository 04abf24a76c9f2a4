//! Whether the watcher wakes within a limit, which it does only while blocks that are coalesced are left to it from time
//! to time.
//!
//! Any thread leaves something to the watcher; one thread watches at a time.

use tailrace_os::sync::atomic::{AtomicBool, Ordering};

/// When the watcher looks at what was left to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watcher {
    /// Within the limit.
    Comes,
    /// Once it is woken.
    Sleeps,
}

#[derive(Default)]
pub(crate) struct Watch {
    /// Something has been left to the watcher since it last looked.
    is_used: AtomicBool,
    /// The watcher wakes within the limit.
    is_awake: AtomicBool,
}

impl Watch {
    /// Notes that something is left to the watcher.
    pub(crate) fn note_use(&self) -> Watcher {
        self.is_used.store(true, Ordering::SeqCst);
        // This thread and the watcher store first and then load, so that at least one of them sees the store of the
        // other.
        if self.is_awake.load(Ordering::SeqCst) { Watcher::Comes } else { Watcher::Sleeps }
    }

    /// Called by the watcher before it sleeps: whether it has to wake within the limit. `is_any`: something is left to it.
    pub(crate) fn is_in_use(&self, is_any: impl Fn() -> bool) -> bool {
        let is_in_use = self.is_used.swap(false, Ordering::SeqCst);
        self.is_awake.store(is_in_use, Ordering::SeqCst);
        if !is_in_use && (is_any() || self.is_used.load(Ordering::SeqCst)) {
            self.is_awake.store(true, Ordering::SeqCst);
            return true;
        }
        is_in_use
    }

    /// Called by the watcher when it ceases to watch, or sleeps until it is called.
    pub(crate) fn leave(&self) {
        self.is_awake.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::{Watch, Watcher};

    #[test]
    fn the_watcher_is_woken_only_if_it_may_sleep_for_longer_than_the_limit() {
        let watch = Watch::default();
        assert_eq!(watch.note_use(), Watcher::Sleeps, "the watcher has not looked yet");
        assert!(watch.is_in_use(|| true));
        assert_eq!(watch.note_use(), Watcher::Comes);
        assert!(watch.is_in_use(|| false), "something was held meanwhile");
        assert!(!watch.is_in_use(|| false), "nothing was held meanwhile");
        assert_eq!(watch.note_use(), Watcher::Sleeps);
    }

    #[test]
    fn a_response_held_while_the_watcher_decides_to_sleep_keeps_it_within_the_limit() {
        let watch = Watch::default();
        assert!(watch.is_in_use(|| {
            watch.note_use();
            true
        }));
        assert_eq!(watch.note_use(), Watcher::Comes);
    }
}
