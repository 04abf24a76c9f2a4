//! How many pages of folders are made at once. One of a large folder takes a disk thread for 75 ms; if all threads did
//! that, every file that has to be looked up would wait.
//!
//! Any thread.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::os::sync::lock;
use crate::request::disk::Disk;

/// At most.
const MOST: usize = 2;

type Task = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    taken: usize,
    waiting: VecDeque<Task>,
}

/// See the module.
pub(super) struct ConcurrencyLimit {
    disk: Arc<Disk>,
    state: Mutex<State>,
}

impl ConcurrencyLimit {
    pub(super) fn new(disk: Arc<Disk>) -> Self {
        Self { disk, state: Mutex::default() }
    }

    /// A permit; `None`: all are taken.
    pub(super) fn take(&self) -> Option<Permit<'_>> {
        let mut state = lock(&self.state);
        if state.taken == MOST {
            return None;
        }
        state.taken += 1;
        Some(Permit(self))
    }

    /// Has a disk thread run a task once there is a permit, which the task has to take. It may find that others were
    /// quicker.
    pub(super) fn wait(&self, task: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.state);
        if state.taken == MOST {
            state.waiting.push_back(Box::new(task));
            return;
        }
        drop(state);
        self.disk.run(task);
    }
}

/// A permit, until it is dropped.
pub(super) struct Permit<'a>(&'a ConcurrencyLimit);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.taken -= 1;
        let next = state.waiting.pop_front();
        drop(state);
        if let Some(task) = next {
            self.0.disk.run(task);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;
    use std::sync::mpsc;

    use super::{ConcurrencyLimit, MOST};
    use crate::request::disk::Disk;

    #[test]
    fn tasks_wait_for_a_permit_and_each_permit_lets_one_run() {
        let limit = ConcurrencyLimit::new(Arc::new(Disk::new()));
        let (done, is_done) = mpsc::channel();
        let run = |number: usize| {
            let done = done.clone();
            limit.wait(move || done.send(number).unwrap());
        };
        let mut taken: Vec<_> = (0..MOST).map(|_| limit.take().unwrap()).collect();
        assert!(limit.take().is_none());
        (0..3).for_each(&run);
        assert!(is_done.try_recv().is_err());
        drop(taken.pop());
        assert_eq!(is_done.recv(), Ok(0));
        taken.push(limit.take().unwrap());
        assert!(is_done.try_recv().is_err(), "one task for a permit");
        drop(taken);
        let mut rest = [is_done.recv().unwrap(), is_done.recv().unwrap()];
        rest.sort_unstable();
        assert_eq!(rest, [1, 2]);
        run(3);
        assert_eq!(is_done.recv(), Ok(3));
    }
}
