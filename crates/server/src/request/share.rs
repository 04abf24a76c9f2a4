//! A share of the disk threads: the tasks of one file system, which may not respond, occupy at most half of the
//! threads, so that the others are left to request bodies and to files on other file systems.
//!
//! Any thread. No lock is held while a task runs.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tailrace_os::sync::lock;

use crate::request::disk::Disk;

/// Maximum number of tasks that run at once.
pub(crate) const MAX_RUNNING: usize = Disk::THREADS / 2;

type Task = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct ShareState {
    running: usize,
    waiting: VecDeque<Task>,
}

/// A part of the disk threads, for tasks of one kind.
pub struct Share {
    disk: Arc<Disk>,
    state: Mutex<ShareState>,
}

impl Share {
    /// A part of these threads.
    pub fn new(disk: Arc<Disk>) -> Arc<Self> {
        Arc::new(Self { disk, state: Mutex::default() })
    }

    /// Has a disk thread run `task`, after the tasks of this share that wait already. As [`Disk::run`], the caller may
    /// run it itself.
    pub fn run(self: &Arc<Self>, task: impl FnOnce() + Send + 'static) {
        // Before the lock, which another thread may have held while the process was forked.
        if !self.disk.is_here() {
            return task();
        }
        let mut state = lock(&self.state);
        if state.running == MAX_RUNNING {
            state.waiting.push_back(Box::new(task));
            return;
        }
        state.running += 1;
        drop(state);
        self.start(Box::new(task));
    }

    fn start(self: &Arc<Self>, task: Task) {
        let turn = RunningTask(self.clone());
        self.disk.run(move || {
            let _turn = turn;
            task();
        });
    }
}

/// The place of a running task. When the task ends, even by a panic, the next one starts.
struct RunningTask(Arc<Share>);

impl Drop for RunningTask {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        if let Some(task) = state.waiting.pop_front() {
            drop(state);
            return self.0.start(task);
        }
        state.running -= 1;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::mpsc::{Receiver, channel};
    use std::sync::{Arc, Mutex};

    use tailrace_os::sync::lock;

    use super::{MAX_RUNNING, Share};
    use crate::request::disk::Disk;

    /// As many tasks as may run at once wait for the other end of this.
    fn occupied(share: &Arc<Share>) -> std::sync::mpsc::Sender<()> {
        let (hold, held) = channel::<()>();
        let held: Arc<Mutex<Receiver<()>>> = Arc::new(Mutex::new(held));
        for _ in 0..MAX_RUNNING {
            let held = held.clone();
            share.run(move || _ = lock(&held).recv());
        }
        hold
    }

    #[test]
    fn tasks_of_one_share_leave_threads_to_others() {
        let disk = Arc::new(Disk::new());
        let (hanging, other) = (Share::new(disk.clone()), Share::new(disk.clone()));
        let hold = occupied(&hanging);
        let (done, is_done) = channel();
        for number in 0..3 {
            let done = done.clone();
            hanging.run(move || done.send(number).unwrap());
        }
        let of_other = done.clone();
        other.run(move || of_other.send(10).unwrap());
        assert_eq!(is_done.recv(), Ok(10));
        disk.run(move || done.send(11).unwrap());
        assert_eq!(is_done.recv(), Ok(11));
        assert!(is_done.try_recv().is_err());
        drop(hold);
        let mut rest: Vec<_> = is_done.iter().collect();
        rest.sort_unstable();
        assert_eq!(rest, [0, 1, 2]);
    }

    #[test]
    fn a_task_that_panics_lets_the_next_one_run() {
        let share = Share::new(Arc::new(Disk::new()));
        for _ in 0..MAX_RUNNING {
            share.run(|| std::panic::resume_unwind(Box::new(())));
        }
        let (done, is_done) = channel();
        share.run(move || done.send(()).unwrap());
        is_done.recv().unwrap();
    }
}
