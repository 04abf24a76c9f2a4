//! Threads for file operations, which may block for as long as a disk takes: the I/O thread hands them over and
//! continues.
//!
//! A thread is started when a task is added and no thread is idle, up to [`Disk::THREADS`]; it ends when it has had nothing
//! to do for [`IDLE`]. These threads never hold the interpreter. A task owns what it works on, and no lock is held
//! while it runs. Any thread hands tasks over. A forked child has none of these threads: a task runs in its caller
//! there.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Seek};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, IntoRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use tailrace_os::descriptor::is_among_the_last;
use tailrace_os::file;
use tailrace_os::mapping;
use tailrace_os::process;
use tailrace_os::process::Process;
use tailrace_os::sync::lock;
use tailrace_os::sync::wait_for;

/// How long a thread waits for the next task before it ends.
const IDLE: Duration = Duration::from_secs(5);

/// Maximum number of empty files that are kept for reuse. If many files were deleted in the last minutes, a new file
/// takes two to three times the processor time, because ext4 does not reuse their numbers so soon, and passes over each
/// one.
const SPARE: usize = 32;

type Task = Box<dyn FnOnce() + Send>;

/// Bytes that all temporary files of one kind together may have, and have. Any thread.
pub(crate) struct Quota {
    limit: u64,
    used: AtomicU64,
}

impl Quota {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicU64::new(0) })
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// The number of bytes by which `more` bytes exceed the limit.
    pub(crate) fn excess(&self, more: u64) -> u64 {
        self.used().saturating_add(more).saturating_sub(self.limit)
    }

    /// False: they exceed the limit, and nothing is reserved.
    #[must_use]
    pub(crate) fn reserve(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.limit);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    pub(crate) fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::AcqRel);
    }
}

#[derive(Default)]
struct TaskQueue {
    tasks: VecDeque<Task>,
    threads: usize,
    idle: usize,
    ended: bool,
}

#[derive(Default)]
struct Tasks {
    queue: Mutex<TaskQueue>,
    added: Condvar,
}

/// The threads for file operations of one server.
pub struct Disk {
    shared: Arc<Tasks>,
    /// The process that has the threads.
    process: Process,
    /// Where temporary files are made.
    folder: PathBuf,
    /// Empty temporary files.
    spare: Mutex<Vec<File>>,
}

impl Default for Disk {
    fn default() -> Self {
        Self::new()
    }
}

impl Disk {
    /// Maximum number of threads. The temporary folder is one disk, and waiting for it takes no processor time.
    pub const THREADS: usize = 8;
    /// Bytes of a thread's stack: system calls on files need little, and compressing a file less than 64 KiB.
    pub const STACK: usize = 256 * 1024;

    /// Starts no thread.
    pub fn new() -> Self {
        // Read at startup: reading the environment while the application changes it is not safe.
        Self { shared: Arc::default(), process: Process::here(), folder: std::env::temp_dir(), spare: Mutex::default() }
    }

    /// The folder for temporary files.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// False in a forked child, which has none of the threads.
    pub(crate) fn is_here(&self) -> bool {
        self.process.is_here()
    }

    /// Lets a thread run `task`, after the queued tasks. If no thread can be started, the caller runs it.
    pub fn run(&self, task: impl FnOnce() + Send + 'static) {
        // Before the lock, which another thread may have held while the process was forked.
        if !self.process.is_here() {
            return task();
        }
        let mut queue = lock(&self.shared.queue);
        queue.tasks.push_back(Box::new(task));
        if queue.tasks.len() <= queue.idle {
            drop(queue);
            self.shared.added.notify_one();
            return;
        }
        if queue.threads >= Disk::THREADS {
            return;
        }
        // The lock is held while the thread is started, so that no task is left waiting without a thread. A caller that
        // cannot start one runs its own task, and no task of another caller, which may take locks that this caller
        // holds.
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name(String::from("tailrace-disk")).stack_size(Disk::STACK);
        // A thread that gets no memory for its thread-local variables ends the process.
        if mapping::is_thread_possible(Disk::STACK) && thread.spawn(move || shared.work()).is_ok() {
            queue.threads += 1;
        } else if queue.threads == 0 {
            let own = queue.tasks.pop_back();
            drop(queue);
            if let Some(task) = own {
                task();
            }
        }
    }

    /// The server has ended: threads end when nothing is left to do.
    pub(crate) fn end(&self) {
        if self.process.is_here() {
            lock(&self.shared.queue).ended = true;
            self.shared.added.notify_all();
        }
    }

    /// An empty file, closed in forked children.
    fn spare(&self) -> Option<File> {
        if self.process.is_here() { lock(&self.spare).pop() } else { None }
    }

    /// Empties a file that children do not have, and keeps it, or closes it. Blocks on the disk.
    fn give_back(&self, file: File) {
        let is_empty = file.set_len(0).is_ok() && (&file).rewind().is_ok();
        if is_empty && self.process.is_here() && !is_among_the_last(file.as_fd()) {
            let mut spare = lock(&self.spare);
            if spare.len() < SPARE && !lock(&self.shared.queue).ended {
                spare.push(file);
                return;
            }
        }
        close(file);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.end();
        let spare = self.spare.get_mut().unwrap_or_else(PoisonError::into_inner);
        for file in spare.drain(..) {
            if self.process.is_here() {
                close(file);
            } else {
                forget(file);
            }
        }
    }
}

/// Closes a file that children do not have.
fn close(file: File) {
    process::share(file.as_fd());
    drop(file);
}

/// For a child, in which fork(2) closed the file: its number may already be that of another file.
fn forget(file: File) {
    let _ = file.into_raw_fd();
}

impl Tasks {
    /// The body of a thread.
    fn work(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(task) = queue.tasks.pop_front() {
                drop(queue);
                // The code that added the task handles its failure.
                let _ = catch_unwind(AssertUnwindSafe(task));
                queue = lock(&self.queue);
                continue;
            }
            if queue.ended {
                break;
            }
            queue.idle += 1;
            let (guard, timed_out) = wait_for(&self.added, queue, IDLE);
            queue = guard;
            queue.idle -= 1;
            if timed_out && queue.tasks.is_empty() {
                break;
            }
        }
        queue.threads -= 1;
    }
}

/// An unlinked temporary file. Freeing its blocks on the disk can take as long as a write, so a disk thread does this,
/// and keeps the empty file for reuse.
pub struct TemporaryFile {
    /// `Some` until it is dropped.
    file: Option<File>,
    disk: Option<Arc<Disk>>,
    /// The process whose forked children do not get the file; `None`: they get it.
    keeper: Option<Process>,
    /// The bytes reserved for it, which it returns when it is dropped.
    reserved: Option<(Arc<Quota>, u64)>,
}

impl TemporaryFile {
    /// A new, empty file, which children that the application forks do not have. Blocks on the disk.
    ///
    /// # Errors
    /// The temporary folder cannot be written or has no space.
    pub(crate) fn create(disk: &Arc<Disk>) -> io::Result<Self> {
        let file = match disk.spare() {
            Some(file) => file,
            None => {
                let file = file::temporary_file(&disk.folder)?;
                process::unshare(file.as_fd());
                file
            }
        };
        Ok(Self { file: Some(file), disk: Some(disk.clone()), keeper: Some(Process::here()), reserved: None })
    }

    /// Reserves so many more bytes for it. False: they exceed the limit.
    #[must_use]
    pub(crate) fn try_reserve(&mut self, quota: &Arc<Quota>, bytes: u64) -> bool {
        let may = quota.reserve(bytes);
        if may {
            self.reserved.get_or_insert_with(|| (quota.clone(), 0)).1 += bytes;
        }
        may
    }

    /// From now on, children that the application forks have the file, too.
    pub(crate) fn share(&mut self) {
        if let (Some(keeper), Some(file)) = (self.keeper.take(), &self.file)
            && keeper.is_here()
        {
            process::share(file.as_fd());
        }
    }
}

/// A file that is closed by the thread that drops it.
impl From<File> for TemporaryFile {
    fn from(file: File) -> Self {
        Self { file: Some(file), disk: None, keeper: None, reserved: None }
    }
}

impl Deref for TemporaryFile {
    type Target = File;

    fn deref(&self) -> &File {
        match &self.file {
            Some(file) => file,
            None => unreachable!("the file is taken out by drop alone"),
        }
    }
}

impl DerefMut for TemporaryFile {
    fn deref_mut(&mut self) -> &mut File {
        match &mut self.file {
            Some(file) => file,
            None => unreachable!("the file is taken out by drop alone"),
        }
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if let Some((quota, bytes)) = self.reserved.take() {
            quota.give_back(bytes);
        }
        let (Some(file), Some(disk)) = (self.file.take(), &self.disk) else { return };
        match self.keeper {
            Some(keeper) if !keeper.is_here() => forget(file),
            Some(_) => {
                let keeper = disk.clone();
                disk.run(move || keeper.give_back(file));
            }
            None => disk.run(move || drop(file)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::sync::mpsc;
    use std::sync::{Arc, Barrier};
    use std::thread;
    use std::time::{Duration, Instant};

    use tailrace_os::sync::lock;

    use super::{Disk, SPARE, TemporaryFile};

    #[test]
    fn a_task_waits_for_another_one_only_if_all_threads_are_busy() {
        let disk = Disk::new();
        assert_eq!(lock(&disk.shared.queue).threads, 0);
        let gate = Arc::new(Barrier::new(Disk::THREADS + 1));
        for _ in 0..Disk::THREADS {
            let gate = gate.clone();
            disk.run(move || {
                gate.wait();
            });
        }
        let (done, is_done) = mpsc::channel();
        disk.run(move || done.send(()).unwrap());
        assert_eq!(lock(&disk.shared.queue).threads, Disk::THREADS);
        assert!(is_done.try_recv().is_err());
        gate.wait();
        is_done.recv().unwrap();
    }

    #[test]
    fn after_the_end_every_task_runs_and_then_all_threads_end() {
        let disk = Disk::new();
        let (done, is_done) = mpsc::channel();
        for number in 0..100 {
            let done = done.clone();
            disk.run(move || done.send(number).unwrap());
        }
        disk.end();
        drop(done);
        assert_eq!(is_done.iter().count(), 100);
        while lock(&disk.shared.queue).threads > 0 {
            thread::yield_now();
        }
    }

    #[test]
    fn a_file_is_used_again_without_what_was_in_it() {
        let disk = Arc::new(Disk::new());
        let file = TemporaryFile::create(&disk).unwrap();
        let number = file.as_raw_fd();
        (&*file).write_all(b"of another client").unwrap();
        drop(file);
        let until = Instant::now() + Duration::from_secs(20);
        while lock(&disk.spare).is_empty() {
            assert!(Instant::now() < until, "no file was kept");
            thread::sleep(Duration::from_millis(1));
        }
        let again = TemporaryFile::create(&disk).unwrap();
        assert_eq!((again.as_raw_fd(), again.metadata().unwrap().len()), (number, 0));
        let another = TemporaryFile::create(&disk).unwrap();
        assert_ne!(another.as_raw_fd(), number);
        (&*again).write_all(b"mine").unwrap();
        let mut bytes = [0; 100];
        assert_eq!(again.read_at(&mut bytes, 0).unwrap(), 4);
        assert_eq!(&bytes[..4], b"mine");
        // One that children may have is closed.
        let mut shared = another;
        shared.share();
        drop(shared);
        let (done, is_done) = mpsc::channel();
        for _ in 0..2 * Disk::THREADS {
            let done = done.clone();
            disk.run(move || done.send(()).unwrap());
        }
        drop(done);
        assert_eq!(is_done.iter().count(), 2 * Disk::THREADS);
        assert!(lock(&disk.spare).is_empty());
    }

    #[test]
    fn few_files_are_kept_and_none_after_the_end() {
        let disk = Arc::new(Disk::new());
        for _ in 0..2 * SPARE {
            disk.give_back(TemporaryFile::create(&disk).unwrap().file.take().unwrap());
        }
        assert_eq!(lock(&disk.spare).len(), 1, "each was the one before");
        let files: Vec<_> = (0..2 * SPARE).map(|_| TemporaryFile::create(&disk).unwrap()).collect();
        for mut file in files {
            disk.give_back(file.file.take().unwrap());
        }
        assert_eq!(lock(&disk.spare).len(), SPARE);
        let last = disk.spare().unwrap();
        disk.end();
        disk.give_back(last);
        assert_eq!(lock(&disk.spare).len(), SPARE - 1);
    }

    #[test]
    fn a_task_that_panics_does_not_end_its_thread() {
        let disk = Disk::new();
        let (done, is_done) = mpsc::channel();
        for _ in 0..Disk::THREADS {
            disk.run(|| std::panic::resume_unwind(Box::new(())));
        }
        disk.run(move || done.send(()).unwrap());
        is_done.recv().unwrap();
    }
}
