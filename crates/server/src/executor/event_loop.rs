//! The loop of a server, as seen by the executor, whose threads call it.

use std::io;
use std::time::Duration;

use tailrace_os::epoll::Events;

/// Waiting for events and handling them. One thread at a time waits without a limit; another one may poll, without
/// waiting, meanwhile.
pub(crate) trait EventLoop {
    /// True when nothing is to be done any more.
    fn has_ended(&self) -> bool;

    /// Waits for events until something is due, for `most` at most. True: a signal has interrupted it.
    ///
    /// # Errors
    /// The kernel refuses it; it would again.
    fn wait(&self, events: &mut Events, most: Option<Duration>) -> io::Result<bool>;

    /// Handles what came, and all that is due. Does not panic.
    fn handle(&self, events: &Events);

    /// Sends coalesced blocks that are due. Does not panic.
    fn send_coalesced(&self);

    /// Ends the server now.
    fn end(&self);
}
