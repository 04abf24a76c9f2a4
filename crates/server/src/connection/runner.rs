//! The runner of a connection's request, a thread or a greenlet, and what it waits for.

use std::sync::atomic::{AtomicU64, Ordering};

/// Names a runner (a thread or a greenlet) and the request that it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunnerId {
    /// Its slot in the runner table.
    pub(crate) slot: usize,
    /// The number of the request, unique in this server.
    pub(crate) serial: u64,
}

/// Bits of [`RunnerId::packed`] that contain the slot.
const SLOT_BITS: u32 = 20;

impl RunnerId {
    /// Slot and serial number in one word.
    pub(crate) fn packed(self) -> u64 {
        self.serial << SLOT_BITS | self.slot as u64
    }

    /// From [`RunnerId::packed`].
    pub(crate) fn of_packed(packed: u64) -> Self {
        Self { slot: (packed & ((1 << SLOT_BITS) - 1)) as usize, serial: packed >> SLOT_BITS }
    }
}

/// The runner that runs the request of a connection. Any thread.
#[derive(Default)]
pub(crate) struct RunnerOfConnection {
    /// [`RunnerId::packed`] of the last runner that took a request of this connection.
    packed: AtomicU64,
    /// The ticket under which the runner waits for room in the send queue; 0: it does not wait.
    writer: AtomicU64,
    /// The ticket under which the runner waits for bytes of a streamed body; 0: it does not wait.
    reader: AtomicU64,
}

impl RunnerOfConnection {
    /// A runner has taken the request. Only the owner of the connection calls this, and checks afterwards whether the
    /// client has left; who finds that the client has left notes it before it asks for the runner. So one of them sees
    /// what the other has noted.
    pub(crate) fn set(&self, runner: RunnerId) {
        self.packed.swap(runner.packed(), Ordering::SeqCst);
    }

    /// [`RunnerId::packed`] of the last runner.
    pub(crate) fn get(&self) -> u64 {
        self.packed.load(Ordering::SeqCst)
    }

    /// The runner waits for room from now on.
    pub(crate) fn wait_for_room(&self, ticket: u64) {
        self.writer.store(ticket, Ordering::SeqCst);
    }

    /// The runner waits for bytes of the body from now on.
    pub(crate) fn wait_for_input(&self, ticket: u64) {
        self.reader.store(ticket, Ordering::SeqCst);
    }

    /// Takes the ticket under which the runner waits for room. `None`: it does not wait.
    pub(crate) fn take_writer(&self) -> Option<u64> {
        take(&self.writer)
    }

    /// Takes the ticket under which the runner waits for bytes of the body. `None`: it does not wait.
    pub(crate) fn take_reader(&self) -> Option<u64> {
        take(&self.reader)
    }
}

fn take(waiting: &AtomicU64) -> Option<u64> {
    let ticket = waiting.swap(0, Ordering::SeqCst);
    (ticket != 0).then_some(ticket)
}

#[cfg(test)]
mod tests {
    use super::{RunnerId, RunnerOfConnection};

    #[test]
    fn a_runner_fits_in_a_word() {
        for (slot, serial) in [(0, 0), (7, 1), ((1 << 20) - 1, u64::MAX >> 20)] {
            let again = RunnerId::of_packed(RunnerId { slot, serial }.packed());
            assert_eq!((again.slot, again.serial), (slot, serial));
        }
    }

    #[test]
    fn each_ticket_is_given_out_once_by_the_event_that_its_runner_waits_for() {
        let runner = RunnerOfConnection::default();
        runner.wait_for_room(3);
        runner.wait_for_input(4);
        assert_eq!((runner.take_reader(), runner.take_reader()), (Some(4), None));
        assert_eq!((runner.take_writer(), runner.take_writer()), (Some(3), None));
    }
}
