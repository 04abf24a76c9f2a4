//! A thread that starts with the first message sent to it. Told to end, it first processes the messages already sent.
//! If the system refuses to start the thread, the message is not sent, and the next message tries again.
//!
//! Any thread.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

struct ThreadState<S> {
    /// The sending end of the channel to the thread. The thread ends when its receiver is disconnected.
    sender: Option<S>,
    /// The last attempt to start the thread failed.
    was_refused: bool,
}

pub(crate) struct LateThread<S>(Mutex<ThreadState<S>>);

impl<S> Default for LateThread<S> {
    fn default() -> Self {
        Self(Mutex::new(ThreadState { sender: None, was_refused: false }))
    }
}

impl<S> LateThread<S> {
    /// Calls `work`, which must not wait, with the sender. `start`: starts the thread, if none has been started since the
    /// last end. `None`: the thread cannot be started. `refused` is then called with a message for the log, unless the
    /// previous attempt also failed. `without`: what does not happen without the thread.
    pub(crate) fn send<R>(
        &self,
        start: impl FnOnce() -> io::Result<S>,
        work: impl FnOnce(&S) -> R,
        without: &str,
        refused: impl FnOnce(&str),
    ) -> Option<R> {
        let mut state = self.lock();
        if state.sender.is_none() {
            match start() {
                Ok(sender) => (state.sender, state.was_refused) = (Some(sender), false),
                Err(fault) => {
                    let is_first = !std::mem::replace(&mut state.was_refused, true);
                    drop(state);
                    if is_first {
                        refused(&format!("cannot start a thread ({fault}): {without}, until a later attempt succeeds"));
                    }
                    return None;
                }
            }
        }
        state.sender.as_ref().map(work)
    }

    /// Has the thread end.
    pub(crate) fn end(&self) {
        drop(self.lock().sender.take());
    }

    fn lock(&self) -> MutexGuard<'_, ThreadState<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc::{Sender, channel};

    use super::LateThread;

    #[test]
    fn a_thread_that_was_refused_is_started_by_a_later_message() {
        let thread = LateThread::<Sender<u32>>::default();
        let (sender, receiver) = channel();
        let mut lines = Vec::new();
        for (number, is_refused) in [(0, true), (1, true), (2, false), (3, true)] {
            let start = || if is_refused { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(sender.clone()) };
            let sent = thread.send(
                start,
                |sender| sender.send(number).is_ok(),
                "nothing is counted",
                |line| lines.push(line.to_owned()),
            );
            assert_eq!(sent, (number >= 2).then_some(true));
        }
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [2, 3]);
        thread.end();
        let start = || Err(io::ErrorKind::WouldBlock.into());
        assert_eq!(thread.send(start, |_| (), "nothing is counted", |line| lines.push(line.to_owned())), None);
        let line = "cannot start a thread (operation would block): nothing is counted, until a later attempt succeeds";
        assert_eq!(lines, [line, line], "once for each time that it was refused in a row");
    }
}
