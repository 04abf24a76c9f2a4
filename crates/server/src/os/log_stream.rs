//! Standard error as the destination of log lines. No thread that logs ever waits for it.
//!
//! The thread that logs writes the line itself, so that the last line before a crash is written. Bytes that the
//! descriptor does not accept wait in a bounded buffer. They are written with the next line, by [`LogStream::flush`],
//! or by a thread, which exists as long as bytes wait; a process that forks must not have that thread. Lines that do
//! not fit into the buffer are dropped and counted.
//!
//! Other processes share the descriptor, so it is not made non-blocking. A pipe or a terminal is opened once more, and
//! the new open file description is non-blocking; a socket is written to with MSG_DONTWAIT. Where neither is possible,
//! poll(2) is called before each piece, of a size that a pipe which is writable accepts whole (pipe(7), PIPE_BUF).
//!
//! Any thread; the lock is never held across a call that may wait, but for that of a file on a disk.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::os::clock;
use crate::os::file::{self, FileKind};
use crate::os::poll;
use crate::os::socket::{self, Io};
use crate::os::sync::lock;

/// Bytes that wait at most.
const ROOM: usize = 1 << 20;
/// A pipe that is writable accepts so many bytes whole (pipe(7)).
const PIPE_BUF: usize = 4096;
/// Between two attempts to write.
const PAUSE: Duration = Duration::from_millis(1);
/// How long the thread waits for the descriptor before it checks whether a program has replaced the file behind it.
const LOOK: Duration = Duration::from_millis(500);

/// How the descriptor is written to without waiting.
enum Way {
    /// A file: a write accepts all bytes.
    Plain,
    /// A pipe or terminal, opened once more by this process.
    Own(OwnedFd),
    /// A socket.
    Socket,
    /// A pipe or terminal that cannot be opened again.
    Asked,
}

struct State {
    /// How, and the file for which this was determined: a program may replace the file behind a descriptor.
    way: Option<(Way, (u64, u64))>,
    /// Entries that wait, each written by a call of its own: a pipe takes a short one whole (pipe(7), PIPE_BUF), so
    /// that those of several processes do not mix.
    waiting: VecDeque<Vec<u8>>,
    /// Bytes of the first that have been written.
    at: usize,
    /// Bytes of all of them.
    bytes: usize,
    /// Lines dropped after those.
    dropped: u64,
    has_thread: bool,
}

struct Shared {
    descriptor: Box<dyn AsFd + Send + Sync>,
    may_have_thread: AtomicBool,
    state: Mutex<State>,
}

/// See the module.
pub struct LogStream(Arc<Shared>);

impl LogStream {
    /// Lines for standard error.
    #[must_use]
    pub fn stderr() -> Self {
        Self::new(Box::new(io::stderr()))
    }

    fn new(descriptor: Box<dyn AsFd + Send + Sync>) -> Self {
        let state = State { way: None, waiting: VecDeque::new(), at: 0, bytes: 0, dropped: 0, has_thread: false };
        Self(Arc::new(Shared { descriptor, may_have_thread: AtomicBool::new(false), state: Mutex::new(state) }))
    }

    /// From now on a thread may write the bytes that wait.
    pub fn allow_thread(&self) {
        self.0.may_have_thread.store(true, Ordering::Relaxed);
        let mut state = lock(&self.0.state);
        self.0.start_thread(&mut state);
    }

    /// Writes a line, or several that belong together, with the line end. Bytes that are not accepted now wait.
    pub fn write(&self, line: &[u8]) {
        let descriptor = self.0.descriptor.as_fd();
        let mut state = lock(&self.0.state);
        state.find_way(descriptor);
        state.write_waiting(descriptor);
        let written = if state.waiting.is_empty() { state.take(descriptor, line) } else { Ok(0) };
        match written {
            Ok(moved) if moved == line.len() => {}
            // Half a line is not left behind.
            Ok(moved) if moved > 0 || state.bytes + line.len() <= ROOM.max(line.len()) => {
                state.append_gap();
                state.keep(line[moved..].to_vec());
                self.0.start_thread(&mut state);
            }
            // No process will ever read it.
            Err(_) => state.forget(),
            Ok(_) => state.dropped += 1,
        }
    }

    /// Writes the bytes that wait, for at most `time`. True: none are left.
    pub fn flush(&self, time: Duration) -> bool {
        let end = clock::now() + time;
        let descriptor = self.0.descriptor.as_fd();
        loop {
            let watched = {
                let mut state = lock(&self.0.state);
                state.find_way(descriptor);
                state.write_waiting(descriptor);
                if state.waiting.is_empty() {
                    return true;
                }
                state.watched()
            };
            let left = end.saturating_duration_since(clock::now());
            if left.is_zero() {
                return false;
            }
            watched.wait_writable(descriptor, left.min(LOOK));
        }
    }

    /// The descriptor that becomes writable when bytes that wait can be written; `None`: none wait.
    #[must_use]
    pub fn waits_for(&self) -> Option<RawFd> {
        let state = lock(&self.0.state);
        (!state.waiting.is_empty()).then(|| match &state.way {
            Some((Way::Own(own), _)) => own.as_raw_fd(),
            _ => self.0.descriptor.as_fd().as_raw_fd(),
        })
    }
}

impl Shared {
    /// Starts the thread that writes the bytes that wait.
    fn start_thread(self: &Arc<Self>, state: &mut State) {
        if state.waiting.is_empty() || state.has_thread || !self.may_have_thread.load(Ordering::Relaxed) {
            return;
        }
        let theirs = Arc::clone(self);
        let started = thread::Builder::new().name(String::from("tailrace-stderr")).spawn(move || theirs.write_on());
        // Without the thread, they are written with the next line.
        state.has_thread = started.is_ok();
    }

    /// The thread: until nothing waits.
    fn write_on(&self) {
        let descriptor = self.descriptor.as_fd();
        loop {
            let watched = {
                let mut state = lock(&self.state);
                state.find_way(descriptor);
                state.write_waiting(descriptor);
                if state.waiting.is_empty() {
                    state.has_thread = false;
                    return;
                }
                state.watched()
            };
            watched.wait_writable(descriptor, LOOK);
        }
    }
}

/// What to wait on, without the lock.
enum Watched {
    /// A duplicate, since the original may be closed meanwhile.
    Own(OwnedFd),
    Shared,
}

impl Watched {
    fn wait_writable(&self, descriptor: BorrowedFd<'_>, time: Duration) {
        let watched = match self {
            Self::Own(own) => own.as_fd(),
            Self::Shared => descriptor,
        };
        let began = clock::now();
        poll::wait_writable(watched, time);
        // A terminal is writable when there is room for a few bytes, even if a longer write accepts nothing.
        if clock::now() - began < PAUSE {
            thread::sleep(PAUSE);
        }
    }
}

impl State {
    fn find_way(&mut self, descriptor: BorrowedFd<'_>) {
        let Ok((kind, file)) = file::file_kind(descriptor) else { return };
        if self.way.as_ref().is_some_and(|(_, known)| *known == file) {
            return;
        }
        let way = match kind {
            FileKind::Socket => Way::Socket,
            FileKind::Stream => file::open_again(descriptor).map_or(Way::Asked, Way::Own),
            FileKind::File => Way::Plain,
        };
        self.way = Some((way, file));
    }

    fn watched(&self) -> Watched {
        match &self.way {
            Some((Way::Own(own), _)) => own.try_clone().map_or(Watched::Shared, Watched::Own),
            _ => Watched::Shared,
        }
    }

    /// Writes the beginning of `bytes`, as far as it is accepted now. Returns the number of bytes.
    fn take(&self, descriptor: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
        let mut written = 0;
        while written < bytes.len() {
            let rest = &bytes[written..];
            let moved = match &self.way {
                None | Some((Way::Plain, _)) => file::write(descriptor, rest)?,
                Some((Way::Own(own), _)) => file::write(own.as_fd(), rest)?,
                Some((Way::Socket, _)) => socket::send_now(descriptor, rest)?,
                Some((Way::Asked, _)) if !poll::is_writable(descriptor) => Io::WouldBlock,
                Some((Way::Asked, _)) => file::write(descriptor, &rest[..rest.len().min(PIPE_BUF)])?,
            };
            match moved {
                Io::Moved(moved) => written += moved,
                Io::WouldBlock | Io::End | Io::Broken => break,
            }
        }
        Ok(written)
    }

    fn write_waiting(&mut self, descriptor: BorrowedFd<'_>) {
        while let Some(entry) = self.waiting.front() {
            match self.take(descriptor, &entry[self.at..]) {
                Ok(moved) => self.at += moved,
                Err(_) => return self.forget(),
            }
            if self.at < entry.len() {
                return;
            }
            self.bytes -= entry.len();
            self.at = 0;
            self.waiting.pop_front();
            if self.waiting.is_empty() {
                self.append_gap();
            }
        }
    }

    fn keep(&mut self, entry: Vec<u8>) {
        self.bytes += entry.len();
        self.waiting.push_back(entry);
    }

    /// Appends a line that states how many lines were dropped here.
    fn append_gap(&mut self) {
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            let said = format!("tailrace: {dropped} entries of this log were dropped: nobody read it in time\n");
            self.keep(said.into_bytes());
        }
    }

    /// No process reads any more: the bytes that wait are discarded.
    fn forget(&mut self) {
        self.waiting = VecDeque::new();
        self.at = 0;
        self.bytes = 0;
        self.dropped = 0;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, pipe};
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    use super::{LogStream, ROOM};

    /// A reader that has not begun to read, and the stream whose lines come to it.
    fn streams() -> Vec<(Box<dyn Read + Send>, LogStream)> {
        let (reader, writer) = pipe().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        vec![(Box::new(reader), LogStream::new(Box::new(writer))), (Box::new(theirs), LogStream::new(Box::new(ours)))]
    }

    fn lines(mut reader: Box<dyn Read + Send>) -> thread::JoinHandle<Vec<String>> {
        thread::spawn(move || {
            let mut all = String::new();
            reader.read_to_string(&mut all).unwrap();
            all.lines().map(str::to_owned).collect()
        })
    }

    #[test]
    fn a_line_is_there_at_once() {
        for (mut reader, stream) in streams() {
            stream.write(b"one\n");
            let mut found = [0; 4];
            reader.read_exact(&mut found).unwrap();
            assert_eq!(&found, b"one\n");
            assert_eq!(stream.waits_for(), None);
        }
    }

    #[test]
    fn what_is_not_read_waits_in_order_and_beyond_its_room_is_counted() {
        for (reader, stream) in streams() {
            let count = 3 * ROOM / 1000;
            for number in 0..count {
                stream.write(format!("{number:0999}\n").as_bytes());
            }
            assert!(stream.waits_for().is_some());
            assert!(!stream.flush(Duration::ZERO));
            let reading = lines(reader);
            assert!(stream.flush(Duration::from_secs(30)));
            stream.write(b"last\n");
            drop(stream);
            let lines = reading.join().unwrap();
            assert_eq!(lines.last().unwrap(), "last");
            let gap = lines.iter().position(|line| line.contains("were dropped")).unwrap();
            let dropped: usize = lines[gap].split(' ').nth(1).unwrap().parse().unwrap();
            assert_eq!(dropped + gap, count);
            for (number, line) in lines[..gap].iter().enumerate() {
                assert_eq!(line.parse::<usize>().unwrap(), number);
            }
        }
    }

    #[test]
    fn a_thread_writes_what_waits_where_there_may_be_one() {
        for (reader, stream) in streams() {
            stream.allow_thread();
            for number in 0..ROOM / 2000 {
                stream.write(format!("{number:0999}\n").as_bytes());
            }
            assert!(stream.waits_for().is_some());
            let reading = lines(reader);
            while stream.waits_for().is_some() {
                thread::sleep(Duration::from_millis(1));
            }
            drop(stream);
            assert_eq!(reading.join().unwrap().len(), ROOM / 2000);
        }
    }

    #[test]
    fn a_line_longer_than_a_pipe_arrives_whole() {
        for (reader, stream) in streams() {
            stream.allow_thread();
            let long = "x".repeat(300_000);
            stream.write(format!("{long}\n").as_bytes());
            stream.write(b"last\n");
            let reading = lines(reader);
            assert!(stream.flush(Duration::from_secs(30)));
            drop(stream);
            assert!(reading.join().unwrap() == [long.as_str(), "last"]);
        }
    }

    #[test]
    fn a_reader_that_is_gone_costs_nothing() {
        for (reader, stream) in streams() {
            drop(reader);
            stream.write(b"one\n");
            stream.write(b"two\n");
            assert_eq!(stream.waits_for(), None);
        }
    }
}
