//! A stream or socket as the destination of log entries, such as standard error. No thread that logs ever waits for it.
//!
//! The thread that logs writes the entry itself, so that the last one before a crash is written. Bytes that the
//! descriptor does not accept wait in a bounded buffer. They are written with the next entry, by [`LogStream::flush`],
//! or by a thread, which exists as long as bytes wait; a process that forks must not have that thread. Entries that do
//! not fit into the buffer, or that a file or a log daemon does not accept, are dropped and counted.
//!
//! Other processes share standard error, so it is not made non-blocking. A pipe or a terminal is opened once more, and
//! the new open file description is non-blocking; a socket is written to with MSG_DONTWAIT. Where neither is possible,
//! poll(2) is called before each piece, of a size that a pipe which is writable accepts whole (pipe(7), PIPE_BUF).
//!
//! Any thread. The lock is never held across a call that may wait, except one for a file on a disk.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::clock;
use crate::file;
use crate::file::{FailedWrite, FileKind};
use crate::log_socket::{LogSocket, is_too_long};
use crate::poll;
use crate::socket;
use crate::socket::Io;
use crate::sync::lock;

/// Maximum number of queued bytes.
const ROOM: usize = 1 << 20;
/// A writable pipe accepts this number of bytes whole (pipe(7)).
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
    /// A log daemon: each entry is a datagram.
    Datagrams(Arc<LogSocket>),
}

/// What is written to.
type Descriptor = Arc<dyn AsFd + Send + Sync>;

/// An entry that waits.
struct PendingEntry {
    bytes: Vec<u8>,
    /// How many entries are lost with it: 1, or the number of dropped entries that it states.
    count: u64,
}

struct LogState {
    descriptor: Descriptor,
    /// How, and the file for which this was determined: a program may replace the file behind a descriptor.
    way: Option<(Way, (u64, u64))>,
    /// Entries that wait, each written by a call of its own: a pipe takes a short one whole (pipe(7), PIPE_BUF), so
    /// that those of several processes do not mix.
    waiting: VecDeque<PendingEntry>,
    /// Bytes of the first that have been written.
    at: usize,
    /// Bytes of all of them.
    bytes: usize,
    /// Entries dropped after those.
    dropped: u64,
    /// The last write, if it was to a file on a disk and failed.
    failed: Cell<Option<FailedWrite>>,
    has_thread: bool,
}

/// Builds the entry that states how many entries were dropped.
pub type Gap = Arc<dyn Fn(u64) -> Vec<u8> + Send + Sync>;

struct Stream {
    gap: Gap,
    may_have_thread: AtomicBool,
    state: Mutex<LogState>,
}

/// A destination of log entries that no thread waits for.
pub struct LogStream(Arc<Stream>);

impl LogStream {
    /// Lines for standard error.
    #[must_use]
    pub fn stderr() -> Self {
        Self::new(Arc::new(io::stderr()), Arc::new(line_about))
    }

    /// Entries for a descriptor.
    pub fn new(descriptor: Descriptor, gap: Gap) -> Self {
        Self::made(descriptor, None, gap)
    }

    /// Entries for a log daemon.
    pub fn datagrams(socket: LogSocket, gap: Gap) -> Self {
        let socket = Arc::new(socket);
        Self::made(socket.clone(), Some((Way::Datagrams(socket), (0, 0))), gap)
    }

    fn made(descriptor: Descriptor, way: Option<(Way, (u64, u64))>, gap: Gap) -> Self {
        let waiting = VecDeque::new();
        let failed = Cell::new(None);
        let state = LogState { descriptor, way, waiting, at: 0, bytes: 0, dropped: 0, failed, has_thread: false };
        Self(Arc::new(Stream { gap, may_have_thread: AtomicBool::new(false), state: Mutex::new(state) }))
    }

    /// This destination for a child of fork(2), without queued entries. `None`: a thread of the parent may have
    /// held the lock.
    pub fn in_child(&self) -> Option<Self> {
        let state = self.0.state.try_lock().ok()?;
        let way = match &state.way {
            Some((Way::Datagrams(socket), _)) => Some((Way::Datagrams(socket.clone()), (0, 0))),
            // Opened again, with its own descriptor.
            _ => None,
        };
        Some(Self::made(state.descriptor.clone(), way, self.0.gap.clone()))
    }

    /// From now on, a thread may write queued bytes.
    pub fn allow_thread(&self) {
        self.0.may_have_thread.store(true, Ordering::Relaxed);
        let mut state = lock(&self.0.state);
        self.0.start_thread(&mut state);
    }

    /// From now on, entries, including queued ones, go to this descriptor.
    pub fn replace(&self, descriptor: Descriptor) {
        let mut state = lock(&self.0.state);
        state.descriptor = descriptor;
        state.way = None;
    }

    /// Writes an entry, such as a line with its end, or several lines that belong together. Bytes that are not accepted
    /// now wait.
    pub fn write(&self, entry: &[u8]) {
        let mut state = lock(&self.0.state);
        state.find_way();
        if state.waiting.is_empty() {
            // A file or a daemon did not accept them.
            state.append_gap(&self.0.gap);
        }
        state.write_waiting(&self.0.gap);
        let written = if state.waiting.is_empty() { state.take(entry) } else { Ok(0) };
        match written {
            Ok(moved) if moved == entry.len() => {}
            // No partial entry is left behind.
            Ok(moved) if moved > 0 || state.bytes + entry.len() <= ROOM.max(entry.len()) => {
                state.append_gap(&self.0.gap);
                state.keep(entry[moved..].to_vec(), 1);
                self.0.start_thread(&mut state);
            }
            Err(_) => state.refuse(1),
            Ok(_) => state.dropped += 1,
        }
    }

    /// Writes the bytes that wait, for at most `time`. True: none are left.
    pub fn flush(&self, time: Duration) -> bool {
        let end = clock::now() + time;
        loop {
            let watched = {
                let mut state = lock(&self.0.state);
                state.find_way();
                state.write_waiting(&self.0.gap);
                if state.waiting.is_empty() {
                    return true;
                }
                state.watched()
            };
            let left = end.saturating_duration_since(clock::now());
            if left.is_zero() {
                return false;
            }
            watched.wait_writable(left.min(LOOK));
        }
    }

    /// The descriptor that becomes writable when bytes that wait can be written; `None`: none wait.
    #[must_use]
    pub fn waits_for(&self) -> Option<RawFd> {
        let state = lock(&self.0.state);
        (!state.waiting.is_empty()).then(|| match &state.way {
            Some((Way::Own(own), _)) => own.as_raw_fd(),
            _ => state.descriptor.as_fd().as_raw_fd(),
        })
    }
}

/// The line of a stream about entries that were dropped.
pub fn line_about(dropped: u64) -> Vec<u8> {
    format!("tailrace: {}\n", dropped_entries(dropped)).into_bytes()
}

/// States how many entries were dropped.
pub fn dropped_entries(dropped: u64) -> String {
    format!("{dropped} entries of this log were dropped: they could not be written in time")
}

impl Stream {
    /// Starts the thread that writes the bytes that wait.
    fn start_thread(self: &Arc<Self>, state: &mut LogState) {
        if state.waiting.is_empty() || state.has_thread || !self.may_have_thread.load(Ordering::Relaxed) {
            return;
        }
        let theirs = Arc::clone(self);
        let started = thread::Builder::new().name(String::from("tailrace-stderr")).spawn(move || theirs.write_on());
        // Without the thread, they are written with the next line.
        state.has_thread = started.is_ok();
    }

    /// The thread: runs until nothing is queued.
    fn write_on(&self) {
        loop {
            let watched = {
                let mut state = lock(&self.state);
                state.find_way();
                state.write_waiting(&self.gap);
                if state.waiting.is_empty() {
                    state.has_thread = false;
                    return;
                }
                state.watched()
            };
            watched.wait_writable(LOOK);
        }
    }
}

/// What to wait on, without the lock.
enum Awaited {
    /// A duplicate, since the original may be closed meanwhile.
    Own(OwnedFd),
    Shared(Descriptor),
}

impl Awaited {
    fn wait_writable(&self, time: Duration) {
        let watched = match self {
            Self::Own(own) => own.as_fd(),
            Self::Shared(descriptor) => descriptor.as_fd(),
        };
        let began = clock::now();
        poll::wait_writable(watched, time);
        // A terminal is writable when there is room for a few bytes, even if a longer write accepts nothing.
        if clock::now() - began < PAUSE {
            thread::sleep(PAUSE);
        }
    }
}

impl LogState {
    fn find_way(&mut self) {
        if let Some((Way::Datagrams(_), _)) = self.way {
            return;
        }
        let descriptor = self.descriptor.as_fd();
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

    fn watched(&self) -> Awaited {
        let shared = || Awaited::Shared(self.descriptor.clone());
        match &self.way {
            Some((Way::Own(own), _)) => own.try_clone().map_or_else(|_| shared(), Awaited::Own),
            _ => shared(),
        }
    }

    /// Writes as much of the beginning of `bytes` as is accepted now. Returns the number of bytes.
    fn take(&self, bytes: &[u8]) -> io::Result<usize> {
        let descriptor = self.descriptor.as_fd();
        let mut written = 0;
        while written < bytes.len() {
            let rest = &bytes[written..];
            let moved = match &self.way {
                None => file::write(descriptor, rest)?,
                Some((Way::Plain, file)) => self.append(descriptor, *file, rest, written > 0)?,
                Some((Way::Own(own), _)) => file::write(own.as_fd(), rest)?,
                Some((Way::Socket, _)) => socket::send_now(descriptor, rest)?,
                Some((Way::Asked, _)) if !poll::is_writable(descriptor) => Io::WouldBlock,
                Some((Way::Asked, _)) => file::write(descriptor, &rest[..rest.len().min(PIPE_BUF)])?,
                Some((Way::Datagrams(socket), _)) => socket.send(rest)?,
            };
            match moved {
                Io::Moved(moved) => written += moved,
                Io::WouldBlock | Io::End | Io::Broken => break,
            }
        }
        Ok(written)
    }

    /// Writes to a file on a disk. `has_begun`: a part of the entry has been written.
    fn append(&self, descriptor: BorrowedFd<'_>, file: (u64, u64), rest: &[u8], has_begun: bool) -> io::Result<Io> {
        if self.failed.get().is_some_and(|failed| failed.needs_line_end(descriptor, file)) {
            file::write(descriptor, b"\n")?;
        }
        self.failed.set(None);
        let failed = FailedWrite { file, is_part: has_begun };
        file::write(descriptor, rest).inspect_err(|_| self.failed.set(Some(failed)))
    }

    fn write_waiting(&mut self, gap: &Gap) {
        while let Some(entry) = self.waiting.front() {
            match self.take(&entry.bytes[self.at..]) {
                Ok(moved) => self.at += moved,
                // Later entries may be shorter.
                Err(fault) if is_too_long(&fault) => {
                    self.dropped += entry.count;
                    self.at = entry.bytes.len();
                }
                Err(_) => return self.refuse(0),
            }
            if self.at < entry.bytes.len() {
                return;
            }
            self.bytes -= entry.bytes.len();
            self.at = 0;
            self.waiting.pop_front();
            if self.waiting.is_empty() {
                self.append_gap(gap);
            }
        }
    }

    fn keep(&mut self, bytes: Vec<u8>, count: u64) {
        self.bytes += bytes.len();
        self.waiting.push_back(PendingEntry { bytes, count });
    }

    /// Appends an entry that states how many were dropped here.
    fn append_gap(&mut self, gap: &Gap) {
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            self.keep(gap(dropped), dropped);
        }
    }

    /// Queued entries cannot be written, nor this number of `further` ones. If no process reads any more, all are
    /// discarded. A disk that is full may have room again, and a log daemon may be restarted.
    fn refuse(&mut self, further: u64) {
        let lost = further + self.waiting.iter().map(|entry| entry.count).sum::<u64>();
        self.waiting = VecDeque::new();
        self.at = 0;
        self.bytes = 0;
        let may_go_on = matches!(&self.way, Some((Way::Plain | Way::Datagrams(_), _)));
        self.dropped = if may_go_on { self.dropped + lost } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, pipe};
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use super::{Descriptor, FailedWrite, LogStream, ROOM, line_about};
    use crate::log_socket::{LogSocket, Receiver};

    fn stream(descriptor: Descriptor) -> LogStream {
        LogStream::new(descriptor, Arc::new(line_about))
    }

    /// A reader that has not begun to read, and the stream whose lines come to it.
    fn streams() -> Vec<(Box<dyn Read + Send>, LogStream)> {
        let (reader, writer) = pipe().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        vec![(Box::new(reader), stream(Arc::new(writer))), (Box::new(theirs), stream(Arc::new(ours)))]
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
    #[test]
    fn what_a_log_daemon_does_not_accept_waits_and_what_it_missed_is_counted() {
        let folder = std::env::temp_dir().join(format!("tailrace-log-stream-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("log");
        let daemon = UnixDatagram::bind(&path).unwrap();
        let socket = LogSocket::connect(Receiver::Path(path.clone())).unwrap();
        let stream = LogStream::datagrams(socket, Arc::new(line_about));
        let mut count = 0;
        // Its queue fills up, and further entries wait.
        while stream.waits_for().is_none() {
            stream.write(format!("{count}").as_bytes());
            count += 1;
        }
        let next = |daemon: &UnixDatagram| {
            let mut buffer = [0; 200];
            let length = daemon.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..length].to_vec()).unwrap()
        };
        let first = next(&daemon);
        stream.flush(Duration::ZERO);
        let mut rest = vec![first];
        while rest.len() < count {
            rest.push(next(&daemon));
        }
        assert_eq!(rest, (0..count).map(|number| number.to_string()).collect::<Vec<_>>());
        assert_eq!(stream.waits_for(), None);
        drop(daemon);
        std::fs::remove_file(&path).unwrap();
        for _ in 0..3 {
            stream.write(b"missed");
        }
        let daemon = UnixDatagram::bind(&path).unwrap();
        stream.write(b"after");
        assert!(next(&daemon).contains("3 entries of this log were dropped"));
        assert_eq!(next(&daemon), "after");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn an_entry_longer_than_a_datagram_costs_none_of_those_behind_it() {
        let folder = std::env::temp_dir().join(format!("tailrace-log-stream-long-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("log");
        let daemon = UnixDatagram::bind(&path).unwrap();
        let stream = LogStream::datagrams(LogSocket::connect(Receiver::Path(path)).unwrap(), Arc::new(line_about));
        while stream.waits_for().is_none() {
            stream.write(b"first");
        }
        stream.write(&vec![b'x'; ROOM / 2]);
        stream.write(b"behind");
        let mut buffer = [0; 200];
        let mut next = || {
            stream.flush(Duration::ZERO);
            let length = daemon.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..length].to_vec()).unwrap()
        };
        let found = std::iter::repeat_with(&mut next).find(|entry| entry != "first").unwrap();
        assert_eq!(found, "behind");
        assert!(next().contains("1 entries of this log were dropped"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn an_entry_that_a_full_disk_has_cut_does_not_run_into_the_next_one() {
        let path = std::env::temp_dir().join(format!("tailrace-log-stream-torn-{}", std::process::id()));
        std::fs::write(&path, "one\ntwo, of which").unwrap();
        let file = Arc::new(std::fs::OpenOptions::new().append(true).open(&path).unwrap());
        let stream = stream(file.clone());
        {
            let mut state = crate::sync::lock(&stream.0.state);
            state.find_way();
            // The part may be that of another process.
            state.failed.set(state.way.as_ref().map(|(_, file)| FailedWrite { file: *file, is_part: false }));
        }
        // A rotation that has not renamed the file.
        stream.replace(file);
        stream.write(b"three\n");
        stream.write(b"four\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo, of which\nthree\nfour\n");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_a_full_disk_does_not_accept_is_counted_once_there_is_room() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let stream = stream(Arc::new(full));
        stream.write(b"one\n");
        stream.write(b"two\n");
        let (mut reader, writer) = pipe().unwrap();
        stream.replace(Arc::new(writer));
        stream.write(b"three\n");
        drop(stream);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert!(text.contains("2 entries of this log were dropped"), "{text}");
        assert!(text.ends_with("\nthree\n"), "{text}");
    }

    #[test]
    fn a_child_writes_to_the_same_place_and_not_what_its_parent_keeps() {
        for (reader, stream) in streams() {
            let mut count = 0;
            while stream.waits_for().is_none() {
                stream.write(format!("{:0999}\n", 0).as_bytes());
                count += 1;
            }
            let child = stream.in_child().unwrap();
            assert_eq!(child.waits_for(), None);
            let reading = lines(reader);
            assert!(stream.flush(Duration::from_secs(30)));
            drop(stream);
            child.write(b"of the child\n");
            drop(child);
            let found = reading.join().unwrap();
            assert_eq!((found.len(), found.last().unwrap().as_str()), (count + 1, "of the child"));
        }
    }
}
