//! How many pages of folders are made at once. One of a large folder takes a disk thread for 75 ms; if all threads did
//! that, every file that has to be looked up would wait.
//!
//! Any thread.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::os::sync::lock;
use crate::request::disk::Disk;

/// At most.
const TURNS: usize = 2;

type Task = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    taken: usize,
    waiting: VecDeque<Task>,
}

/// See the module.
pub(super) struct Turns {
    disk: Arc<Disk>,
    state: Mutex<State>,
}

impl Turns {
    pub(super) fn new(disk: Arc<Disk>) -> Self {
        Self { disk, state: Mutex::default() }
    }

    /// A turn; `None`: all are taken.
    pub(super) fn take(&self) -> Option<Turn<'_>> {
        let mut state = lock(&self.state);
        if state.taken == TURNS {
            return None;
        }
        state.taken += 1;
        Some(Turn(self))
    }

    /// Has a disk thread run a task once there is a turn, which the task has to take. It may find that others were
    /// quicker.
    pub(super) fn wait(&self, task: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.state);
        if state.taken == TURNS {
            state.waiting.push_back(Box::new(task));
            return;
        }
        drop(state);
        self.disk.run(task);
    }
}

/// A turn, until it is dropped.
pub(super) struct Turn<'a>(&'a Turns);

impl Drop for Turn<'_> {
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

    use super::{TURNS, Turns};
    use crate::request::disk::Disk;

    #[test]
    fn tasks_wait_for_a_turn_and_each_turn_lets_one_run() {
        let turns = Turns::new(Arc::new(Disk::new()));
        let (done, is_done) = mpsc::channel();
        let run = |number: usize| {
            let done = done.clone();
            turns.wait(move || done.send(number).unwrap());
        };
        let mut taken: Vec<_> = (0..TURNS).map(|_| turns.take().unwrap()).collect();
        assert!(turns.take().is_none());
        (0..3).for_each(&run);
        assert!(is_done.try_recv().is_err());
        drop(taken.pop());
        assert_eq!(is_done.recv(), Ok(0));
        taken.push(turns.take().unwrap());
        assert!(is_done.try_recv().is_err(), "one task for a turn");
        drop(taken);
        let mut rest = [is_done.recv().unwrap(), is_done.recv().unwrap()];
        rest.sort_unstable();
        assert_eq!(rest, [1, 2]);
        run(3);
        assert_eq!(is_done.recv(), Ok(3));
    }
}
