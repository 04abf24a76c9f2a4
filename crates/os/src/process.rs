//! Processes and threads: forks, what a forked child must not have, the end of a process.
//!
//! A child that an application forks has a copy of its parent's memory, but must not use the parent's connections. Its
//! descriptors are closed inside of fork(2), where it has one thread. Any thread calls the functions here.
#![allow(unsafe_code)]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The number of forks between the first process that called [`watch_forks`] and this one.
static DEPTH: AtomicU32 = AtomicU32::new(0);

/// The process in which something was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// The one that runs this.
    #[inline]
    pub fn here() -> Self {
        Self(DEPTH.load(Ordering::Relaxed))
    }

    /// False in a child that was forked since. There, do not take locks that a thread of the parent may have held at
    /// the fork.
    #[inline]
    pub fn is_here(self) -> bool {
        self == Self::here()
    }
}

/// This process has forked since [`watch_forks`], or since it was forked.
static HAS_FORKED: AtomicBool = AtomicBool::new(false);

/// From now on forks are counted, and children have no descriptor that is [`Unshared`].
pub fn watch_forks() {
    unsafe extern "C" {
        fn pthread_atfork(
            prepare: Option<extern "C" fn()>,
            parent: Option<extern "C" fn()>,
            child: Option<extern "C" fn()>,
        ) -> std::ffi::c_int;
    }
    extern "C" fn parent() {
        HAS_FORKED.store(true, Ordering::Relaxed);
    }
    extern "C" fn child() {
        HAS_FORKED.store(false, Ordering::Relaxed);
        DEPTH.fetch_add(1, Ordering::Relaxed);
        UNSHARED.close_all();
    }
    static ONCE: Once = Once::new();
    // SAFETY: the handlers run inside of fork(2), where storing numbers and close(2) are safe (signal-safety(7)). If
    // there is no memory for them, forks are not counted, and a connection ends for its client when the last process
    // has closed it.
    ONCE.call_once(|| unsafe {
        pthread_atfork(None, Some(parent), Some(child));
    });
}

/// True when this process has forked since [`watch_forks`]: closing a socket then need not end its connection.
pub fn has_forked() -> bool {
    HAS_FORKED.load(Ordering::Relaxed)
}

/// A descriptor that the application's forked children do not keep: fork(2) closes it in the child, where its number
/// may soon be that of another file. A fork while it is being created or closed may leave it open in the child.
#[derive(Debug)]
pub struct Unshared {
    descriptor: ManuallyDrop<OwnedFd>,
    process: Process,
}

impl Unshared {
    /// From now on, forked children close it.
    pub fn new(descriptor: OwnedFd) -> Self {
        UNSHARED.add(descriptor.as_fd());
        Self { descriptor: ManuallyDrop::new(descriptor), process: Process::here() }
    }

    /// The descriptor; `None` in a child.
    #[inline]
    pub fn here(&self) -> Option<BorrowedFd<'_>> {
        self.process.is_here().then(|| self.descriptor.as_fd())
    }
}

impl Drop for Unshared {
    fn drop(&mut self) {
        if self.process.is_here() {
            // In this order: once it is closed, the application may open something that gets the same number.
            UNSHARED.remove(self.descriptor.as_fd());
            // SAFETY: dropped here and never used again.
            unsafe { ManuallyDrop::drop(&mut self.descriptor) };
        }
    }
}

/// From now on, the children that the application forks do not have this descriptor: fork(2) closes it in the child,
/// and its owner must not use or close it there. Call [`share`] before closing it.
pub fn unshare(descriptor: BorrowedFd<'_>) {
    UNSHARED.add(descriptor);
}

/// From now on, the children that the application forks have this descriptor again.
pub fn share(descriptor: BorrowedFd<'_>) {
    UNSHARED.remove(descriptor);
}

/// The open descriptors that are [`Unshared`]: one bit each, so that a child can close them without a lock.
static UNSHARED: Descriptors = Descriptors { words: [const { AtomicU64::new(0) }; WORDS], used: AtomicUsize::new(0) };

/// For as many descriptors as the kernel allows a process by default (/proc/sys/fs/nr_open). Those beyond stay open in
/// children.
const WORDS: usize = (1 << 20) / 64;

struct Descriptors {
    words: [AtomicU64; WORDS],
    /// Words that have ever been used.
    used: AtomicUsize,
}

impl Descriptors {
    /// The word and the bit of a descriptor.
    fn position(&self, descriptor: BorrowedFd<'_>) -> Option<(usize, u64)> {
        let number = usize::try_from(descriptor.as_raw_fd()).ok()?;
        (number / 64 < WORDS).then_some((number / 64, 1 << (number % 64)))
    }

    fn add(&self, descriptor: BorrowedFd<'_>) {
        if let Some((word, bit)) = self.position(descriptor) {
            self.words[word].fetch_or(bit, Ordering::Relaxed);
            if self.used.load(Ordering::Relaxed) <= word {
                self.used.fetch_max(word + 1, Ordering::Relaxed);
            }
        }
    }

    fn remove(&self, descriptor: BorrowedFd<'_>) {
        if let Some((word, bit)) = self.position(descriptor) {
            self.words[word].fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// In a child, inside of fork(2).
    fn close_all(&self) {
        for (word, bits) in self.words[..self.used.load(Ordering::Relaxed)].iter().enumerate() {
            let mut bits = bits.swap(0, Ordering::Relaxed);
            while bits != 0 {
                let number = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                // SAFETY: the number is that of a descriptor which its owner has added and not removed, and in this
                // process the owner will not use or close it (see `Unshared`). fork(2) copies the table of files before
                // the memory: of one that another thread has added in between, the child has the bit alone, and the
                // call fails.
                let _ = unsafe { rustix::io::try_close(number as RawFd) };
            }
        }
    }
}

/// Ends the process at once, whatever its threads do: no atexit(3) handler runs, no buffer is flushed, and the
/// interpreter is not finalized, which could take forever.
pub fn end_process(status: i32) -> ! {
    unsafe extern "C" {
        fn _exit(status: std::ffi::c_int) -> !;
    }
    // SAFETY: any thread may call it at any time.
    unsafe { _exit(status) }
}

/// Sends SIGTERM to this process. Its handler has the main thread stop the server.
pub fn ask_to_end() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
}

/// Makes the kernel kill the calling process when its parent ends, or undoes this.
///
/// # Errors
/// Those of prctl(2).
pub fn end_with_parent(ends: bool) -> io::Result<()> {
    let signal = ends.then_some(rustix::process::Signal::KILL);
    Ok(rustix::process::set_parent_process_death_signal(signal)?)
}

/// Permits a process and its descendants to read the memory of this one, where Yama (`ptrace_scope` 1) would refuse it.
/// Without Yama it does nothing.
///
/// # Errors
/// Those of prctl(2), and a number that no process has.
pub fn permit_tracing(by: u32) -> io::Result<()> {
    let tracer = i32::try_from(by).ok().and_then(rustix::process::Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    match rustix::process::set_ptracer(rustix::process::PTracer::ProcessID(tracer)) {
        // The kernel has no Yama.
        Err(rustix::io::Errno::INVAL) => Ok(()),
        result => Ok(result?),
    }
}

/// The number that the kernel gives this process.
pub fn id() -> u32 {
    std::process::id()
}

/// The name of this machine in its network. `None`: it has none, or it is not UTF-8.
pub fn host_name() -> Option<String> {
    let system = rustix::system::uname();
    system.nodename().to_str().ok().filter(|name| !name.is_empty()).map(String::from)
}

/// The number that the kernel gives the calling thread.
pub fn thread_id() -> u64 {
    u64::from(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::net::UnixStream;

    use super::{Descriptors, Process, Unshared, WORDS, end_process, has_forked, thread_id, watch_forks};
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    static SET: Descriptors = Descriptors { words: [const { AtomicU64::new(0) }; WORDS], used: AtomicUsize::new(0) };

    #[test]
    fn what_was_added_and_not_removed_is_closed() {
        let (first, second) = UnixStream::pair().unwrap();
        SET.add(first.as_fd());
        SET.add(second.as_fd());
        SET.remove(first.as_fd());
        // Closed through its number, so it is not closed once more.
        let number = std::mem::ManuallyDrop::new(second).as_raw_fd();
        SET.close_all();
        assert_eq!(std::io::Read::read(&mut &first, &mut [0; 1]).unwrap(), 0, "the other end of {number} is open");
        assert!(SET.words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn an_unshared_descriptor_is_closed_when_it_is_dropped() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let number = ours.as_raw_fd();
        let unshared = Unshared::new(ours.into());
        assert_eq!(unshared.here().unwrap().as_raw_fd(), number);
        drop(unshared);
        assert_eq!(std::io::Read::read(&mut &theirs, &mut [0; 1]).unwrap(), 0);
    }

    #[test]
    fn a_process_is_here_and_its_threads_have_numbers() {
        assert!(Process::here().is_here());
        let other = std::thread::spawn(thread_id).join().unwrap();
        assert_ne!(thread_id(), other);
    }

    /// In a child: status 0 if the descriptor of this number is closed and `unshared` has none; the first fault
    /// otherwise.
    fn status_in_child(unshared: &Unshared, number: std::os::fd::RawFd) -> i32 {
        // SAFETY: `fcntl` reads no memory; a number that is no open descriptor is an error of the call.
        let is_closed = unsafe { rustix::io::fcntl_getfd(std::os::fd::BorrowedFd::borrow_raw(number)) }.is_err();
        match (is_closed, unshared.here().is_none(), has_forked()) {
            (false, ..) => 1,
            (_, false, _) => 2,
            (.., true) => 3,
            _ => 0,
        }
    }

    #[test]
    fn a_forked_child_does_not_have_what_is_unshared_and_its_end_leaves_the_parent_alone() {
        // In a separate process: other tests in this one close sockets like a process that has not forked.
        const INNER: &str = "TAILRACE_TEST_FORK";
        if std::env::var_os(INNER).is_none() {
            let name = "a_forked_child_does_not_have_what_is_unshared_and_its_end_leaves_the_parent_alone";
            let inner = std::process::Command::new(std::env::current_exe().unwrap())
                .args([&format!("process::tests::{name}"), "--exact"])
                .env(INNER, "1")
                .output()
                .unwrap();
            let output = String::from_utf8_lossy(&inner.stdout);
            assert!(inner.status.success() && output.contains("1 passed"), "{output}");
            return;
        }
        unsafe extern "C" {
            fn fork() -> std::ffi::c_int;
        }
        watch_forks();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let number = ours.as_raw_fd();
        let unshared = Unshared::new(ours.into());
        // SAFETY: the child has one thread, takes no lock and allocates nothing before it ends.
        let child = unsafe { fork() };
        if child == 0 {
            end_process(status_in_child(&unshared, number));
        }
        assert!(child > 0);
        let (_, status) =
            rustix::process::waitpid(rustix::process::Pid::from_raw(child), rustix::process::WaitOptions::empty())
                .unwrap()
                .unwrap();
        assert_eq!(status.exit_status(), Some(0));
        assert!(has_forked());
        // The parent still has it, and the connection works.
        assert_eq!(rustix::io::write(unshared.here().unwrap(), b"x").unwrap(), 1);
        assert_eq!(std::io::Read::read(&mut &theirs, &mut [0; 1]).unwrap(), 1);
    }
}
