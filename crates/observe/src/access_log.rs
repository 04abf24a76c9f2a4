//! The access log. The thread that accounts for a response makes its line; a thread of the log writes it, which never
//! holds the interpreter.
//!
//! Lines wait in a buffer of `ROOM` bytes, so that a destination that accepts nothing delays no request and costs no
//! more memory. Lines that do not fit are dropped and counted, and a line states their number where the log continues.
//! When the server ends, the log is abandoned if its destination accepts nothing. Nothing is logged after
//! [`AccessLog::close`]: a request that ends later has been logged as cut.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tailrace_os::clock;
use tailrace_os::file::{FailedWrite, FileKind, error_text, file_kind, write};
use tailrace_os::log_socket::{LogSocket, is_too_long};
use tailrace_os::panics::{catch, may_panic};
use tailrace_os::poll::wait_writable;
use tailrace_os::process::Unshared;
use tailrace_os::socket::Io;
use tailrace_os::sync::{lock, wait, wait_for};

pub use crate::destination::Destination;
use crate::destination::Opened;
use crate::envelope::{Envelope, FIELD_TEXT, INFO, WARNING, journal_name};
pub use crate::log_format::Format;
use crate::log_format::{Calendar, JournalFields, LineFacts};

/// An escaped byte has up to this many bytes in a line.
const ESCAPED: usize = 6;
/// Bytes of a line that are neither of the request nor of the response, at most.
const OTHER: usize = 2048;
/// Most bytes of lines that wait for the writer, those included that it is writing.
const ROOM: usize = 4 << 20;
/// Bytes of one write to a file. Small, so that a slow destination can be told from one that accepts nothing.
const PIECE: usize = 64 * 1024;
/// A pipe accepts so many bytes whole, without those of other processes in between (pipe(7)); so does a socket.
const PIPE_BUF: usize = 4096;
/// Capacity, in bytes, that the writer's buffer keeps.
const KEPT: usize = 256 * 1024;
/// When the server ends, the log is abandoned if its destination accepts nothing for this time.
const PATIENCE: Duration = Duration::from_secs(1);
/// The log is also abandoned if its destination has not accepted everything in this time.
const PATIENCE_IN_ALL: Duration = Duration::from_secs(3);
/// How often the writer checks whether it was abandoned, if its descriptor does not block: another process that has it
/// may have set that.
const LOOK: Duration = Duration::from_millis(500);

/// Where the access log goes, and the format of its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLogConfig {
    /// Where the lines are written.
    pub destination: Destination,
    /// The format of a line.
    pub format: Format,
}

/// Writes a line to the server's own log; does not wait.
pub(crate) type ErrorLog = Box<dyn Fn(&str) + Send + Sync>;

#[derive(Default)]
struct Pending {
    /// Lines that the writer has not taken yet.
    lines: Vec<u8>,
    /// Bytes that the writer has taken and not written yet.
    being_written: usize,
    /// Number of lines in both, and of dropped lines that these state.
    count: u64,
    /// The lines in `lines` that state how many were dropped.
    gaps: Vec<Gap>,
    /// Number of lines that were dropped after those.
    dropped: u64,
    calendar: Calendar,
    reopen: Option<Reopen>,
    closed: bool,
    /// The server has abandoned the writer and does not wait for it.
    abandoned: bool,
    /// The writer has returned.
    ended: bool,
}

/// A line that states how many were dropped.
struct Gap {
    /// Where it ends, among the lines that wait.
    end: usize,
    missing: u64,
}

/// What the writer does before it writes on.
enum Reopen {
    /// It takes the file that has been opened.
    Taking(Sink),
    /// It opens the destination again: to look up a host may take a while.
    Opening,
}

#[derive(Default)]
struct LineQueue {
    pending: Mutex<Pending>,
    /// Lines were added, or the log is to be reopened or closed.
    added: Condvar,
    /// The writer has written something, or has ended.
    written: Condvar,
}

/// How an entry is made.
#[derive(Clone)]
struct Form {
    format: Format,
    envelope: Envelope,
    /// Further fields, for the journal.
    fields: Option<Arc<JournalFields>>,
}

impl Form {
    fn new(config: &AccessLogConfig) -> Self {
        let envelope = Envelope::of(&config.destination);
        let fields = matches!(envelope, Envelope::Journal(_)).then(|| Arc::new(JournalFields::new(journal_name)));
        Self { format: config.format.clone(), envelope, fields }
    }

    /// Appends an entry.
    fn render(&self, entry: &LineFacts<'_>, calendar: &Calendar, out: &mut Vec<u8>) {
        self.envelope.begin(INFO, calendar, out);
        let text = out.len();
        self.format.render(entry, calendar, out);
        // Else a client with a long field could keep its requests out of the log.
        out.truncate(text.saturating_add(self.envelope.longest_text()));
        if let Some(fields) = &self.fields {
            fields.render(entry, calendar, FIELD_TEXT, out);
        }
        out.extend_from_slice(self.envelope.separator());
    }

    /// Appends an entry which says that `missing` entries were dropped here.
    fn render_gap(&self, missing: u64, calendar: &Calendar, out: &mut Vec<u8>) {
        self.envelope.begin(WARNING, calendar, out);
        self.format.render_gap(missing, out);
        out.extend_from_slice(self.envelope.separator());
    }

    /// How much is reserved for an entry of this request and response, in bytes.
    fn most(&self, entry: &LineFacts<'_>) -> usize {
        // The journal has most of it twice.
        most(entry) * (1 + usize::from(self.fields.is_some()))
    }
}

/// How much is reserved for the line of this request and response, in bytes.
fn most(entry: &LineFacts<'_>) -> usize {
    let variables: usize = entry.variables.iter().flatten().map(Vec::len).sum();
    ESCAPED * (entry.request.bytes.len() + entry.response.len() + variables) + OTHER
}

/// Makes the lines of an access log that goes to the application.
pub struct Lines {
    format: Format,
    calendar: Mutex<Calendar>,
}

impl Lines {
    /// Lines of this format.
    pub fn new(format: Format) -> Self {
        Self { format, calendar: Mutex::default() }
    }

    /// The line of a finished request. ASCII, since all else is escaped. `None`: there is no memory for it, or making it
    /// panicked.
    pub fn line(&self, entry: &LineFacts<'_>) -> Option<String> {
        let mut line = Vec::new();
        line.try_reserve(most(entry)).ok()?;
        let mut calendar = lock(&self.calendar);
        calendar.set(clock::wall());
        catch(|| self.format.render(entry, &calendar, &mut line)).ok()?;
        line.shrink_to_fit();
        String::from_utf8(line).ok()
    }
}

/// The open log, with the thread that writes it.
pub struct AccessLog {
    destination: Destination,
    form: Form,
    shared: Arc<LineQueue>,
    error_log: Arc<ErrorLog>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl AccessLog {
    /// Opens the log and starts its thread.
    pub fn open(config: AccessLogConfig, error_log: ErrorLog) -> io::Result<Self> {
        let form = Form::new(&config);
        let destination = config.destination;
        let named = |fault: io::Error| io::Error::new(fault.kind(), format!("--access-log {fault}"));
        let sink = Sink::open(&destination).map_err(named)?;
        let (shared, error_log) = (Arc::new(LineQueue::default()), Arc::new(error_log));
        let writer = LogThread {
            shared: shared.clone(),
            destination: destination.clone(),
            form: form.clone(),
            sink,
            error_log: error_log.clone(),
            has_failed: false,
            failed: None,
        };
        let writer =
            std::thread::Builder::new().name("tailrace-log".to_owned()).spawn(move || writer.write_until_closed())?;
        Ok(Self { destination, form, shared, error_log, writer: Mutex::new(Some(writer)) })
    }

    /// Logs a finished request.
    pub fn write(&self, entry: &LineFacts<'_>) {
        let now = clock::wall();
        let mut pending = lock(&self.shared.pending);
        let Pending { lines, being_written, count, gaps, dropped, calendar, closed, .. } = &mut *pending;
        if *closed {
            return;
        }
        let before = lines.len();
        if before + *being_written >= ROOM || lines.try_reserve(self.form.most(entry)).is_err() {
            *dropped += 1;
            return;
        }
        calendar.set(now);
        if *dropped > 0 {
            self.form.render_gap(*dropped, calendar, lines);
        }
        let end = lines.len();
        let rendered = catch(|| {
            may_panic("log");
            self.form.render(entry, calendar, lines);
        });
        if let Err(panic) = rendered {
            lines.truncate(before);
            drop(pending);
            return (self.error_log)(&format!("a line of the access log was lost, as rendering it panicked: {panic}"));
        }
        if lines.len() + *being_written > ROOM {
            lines.truncate(before);
            *dropped += 1;
            return;
        }
        let missing = std::mem::take(dropped);
        if missing > 0 {
            gaps.push(Gap { end, missing });
        }
        *count += missing + 1;
        drop(pending);
        if before == 0 {
            self.shared.added.notify_one();
        }
    }

    /// Opens the file again by its name, after the old one was renamed.
    ///
    /// # Errors
    /// It cannot be opened; the log goes to the old one.
    pub fn reopen(&self) -> io::Result<()> {
        let reopen = match &self.destination {
            Destination::Path(_) => Reopen::Taking(Sink::open(&self.destination)?),
            _ => Reopen::Opening,
        };
        lock(&self.shared.pending).reopen = Some(reopen);
        self.shared.added.notify_one();
        Ok(())
    }

    /// Writes the lines that wait and ends the thread; lines that are not accepted in time are lost.
    pub fn close(&self) {
        let mut pending = lock(&self.shared.pending);
        pending.closed = true;
        self.shared.added.notify_one();
        let end = clock::now() + PATIENCE_IN_ALL;
        while !pending.ended {
            let before = pending.lines.len() + pending.being_written;
            let time = end.saturating_duration_since(clock::now()).min(PATIENCE);
            let timed_out;
            (pending, timed_out) = wait_for(&self.shared.written, pending, time);
            let has_moved = pending.lines.len() + pending.being_written < before;
            if timed_out && !pending.ended && (!has_moved || clock::now() >= end) {
                pending.abandoned = true;
                break;
            }
        }
        let (missing, abandoned) = (pending.count + pending.dropped, pending.abandoned);
        drop(pending);
        let writer = lock(&self.writer).take();
        if abandoned {
            (self.error_log)(&format!(
                "the destination of the access log accepts nothing, or is too slow: {missing} lines were lost at the end"
            ));
        } else if let Some(writer) = writer {
            // An error means that the writer panicked; then nothing is left to do.
            let _ = writer.join();
        }
    }
}

enum Sink {
    Stdout(io::Stdout),
    Stderr(io::Stderr),
    File(Unshared),
    Socket(LogSocket),
}

impl Sink {
    fn open(destination: &Destination) -> io::Result<Self> {
        Ok(match destination.open()? {
            Opened::Stdout => Self::Stdout(io::stdout()),
            Opened::Stderr => Self::Stderr(io::stderr()),
            Opened::File(file) => Self::File(Unshared::new(file)),
            Opened::Socket(socket) => Self::Socket(socket),
        })
    }

    /// `None` in a forked child, which has no writer thread either.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Stdout(stdout) => Some(stdout.as_fd()),
            Self::Stderr(stderr) => Some(stderr.as_fd()),
            Self::File(file) => file.here(),
            Self::Socket(socket) => Some(socket.as_fd()),
        }
    }

    /// Writes the beginning of entries.
    fn write(&self, descriptor: BorrowedFd<'_>, entries: &[u8], envelope: &Envelope) -> io::Result<WriteResult> {
        let Self::Socket(socket) = self else {
            let most = match file_kind(descriptor) {
                Ok((FileKind::File, _)) => PIECE,
                _ => PIPE_BUF,
            };
            return Ok(match write(descriptor, piece(entries, most))? {
                Io::Moved(moved) => WriteResult::Moved(moved),
                _ => WriteResult::Nothing,
            });
        };
        let (entry, rest) = envelope.first(entries);
        let done = entries.len() - rest.len();
        match socket.send(entry) {
            Ok(Io::Moved(_)) => Ok(WriteResult::Moved(done)),
            Ok(_) => Ok(WriteResult::Nothing),
            Err(fault) if is_too_long(&fault) => Ok(WriteResult::Lost(done)),
            Err(fault) => Err(fault),
        }
    }
}

/// The beginning of lines, for one write: as many whole lines as fit, since other processes write to the same file or
/// pipe, or else the first one.
fn piece(lines: &[u8], most: usize) -> &[u8] {
    let end_of_line = |&byte: &u8| byte == b'\n';
    let fitting = lines[..lines.len().min(most)].iter().rposition(end_of_line);
    let end = fitting.or_else(|| lines.iter().position(end_of_line)).map_or(lines.len(), |end| end + 1);
    &lines[..end.min(PIECE)]
}

/// What became of the beginning of entries.
enum WriteResult {
    /// So many bytes were written.
    Moved(usize),
    /// An entry of so many bytes is longer than a datagram may be.
    Lost(usize),
    /// The destination accepts nothing now.
    Nothing,
}

/// The state of the log's thread.
struct LogThread {
    shared: Arc<LineQueue>,
    destination: Destination,
    form: Form,
    sink: Sink,
    error_log: Arc<ErrorLog>,
    has_failed: bool,
    /// The last write, if it was to a file on a disk and failed.
    failed: Option<FailedWrite>,
}

impl LogThread {
    fn write_until_closed(mut self) {
        let mut lines = Vec::new();
        loop {
            let (count, gaps, reopen, closed) = {
                let mut pending = lock(&self.shared.pending);
                while pending.lines.is_empty() && pending.reopen.is_none() && !pending.closed {
                    pending = wait(&self.shared.added, pending);
                }
                let dropped = std::mem::take(&mut pending.dropped);
                if dropped > 0 {
                    let Pending { lines, count, gaps, calendar, .. } = &mut *pending;
                    self.form.render_gap(dropped, calendar, lines);
                    gaps.push(Gap { end: lines.len(), missing: dropped });
                    *count += dropped;
                }
                std::mem::swap(&mut lines, &mut pending.lines);
                pending.being_written = lines.len();
                (pending.count, std::mem::take(&mut pending.gaps), pending.reopen.take(), pending.closed)
            };
            // Reopened first: a line may belong to a request that began after the server logged the reopening.
            if let Some(reopen) = reopen {
                self.reopen(reopen);
            }
            let written = self.write(&lines, count, &gaps);
            if lines.capacity() > KEPT {
                lines = Vec::new();
            }
            lines.clear();
            if closed || written.is_none() {
                break;
            }
        }
        lock(&self.shared.pending).ended = true;
        self.shared.written.notify_all();
    }

    /// Writes lines, which stand for `count` of them; those that cannot be written are counted as dropped. `None`: the
    /// log was abandoned, or this is a forked child.
    fn write(&mut self, lines: &[u8], count: u64, gaps: &[Gap]) -> Option<()> {
        let mut rest = lines;
        while !rest.is_empty() {
            let descriptor = self.sink.descriptor()?;
            if let Some(failed) = self.failed {
                if let Some(file) = identity(descriptor)
                    && failed.needs_line_end(descriptor, file)
                    && write(descriptor, b"\n").is_err()
                {
                    self.lose(lines, rest, gaps);
                    break;
                }
                self.failed = None;
            }
            let moved = match self.sink.write(descriptor, rest, &self.form.envelope) {
                Ok(WriteResult::Moved(moved)) => {
                    if self.form.envelope.is_datagram() {
                        self.has_failed = false;
                    }
                    moved
                }
                Ok(WriteResult::Lost(moved)) => {
                    lock(&self.shared.pending).dropped += 1;
                    moved
                }
                Ok(WriteResult::Nothing) => {
                    wait_writable(descriptor, LOOK);
                    if lock(&self.shared.pending).abandoned {
                        return None;
                    }
                    continue;
                }
                Err(fault) => {
                    if !self.has_failed {
                        self.has_failed = true;
                        (self.error_log)(&format!(
                            "cannot write the access log: {}; requests are served without it",
                            error_text(&fault)
                        ));
                    }
                    let written = &lines[..lines.len() - rest.len()];
                    let is_part = written.last().is_some_and(|&byte| byte != b'\n');
                    self.failed = identity(descriptor).map(|file| FailedWrite { file, is_part });
                    // A line that was written in part counts as dropped, too.
                    self.lose(lines, rest, gaps);
                    break;
                }
            };
            rest = &rest[moved..];
            let mut pending = lock(&self.shared.pending);
            pending.being_written = rest.len();
            if pending.abandoned {
                return None;
            }
            if pending.closed {
                self.shared.written.notify_all();
            }
        }
        let mut pending = lock(&self.shared.pending);
        pending.being_written = 0;
        pending.count -= count;
        Some(())
    }

    /// Counts the `rest` of these lines as dropped: of a line about dropped ones, those that it states.
    fn lose(&self, lines: &[u8], rest: &[u8], gaps: &[Gap]) {
        let written = lines.len() - rest.len();
        let stated: u64 = gaps.iter().filter(|gap| gap.end > written).map(|gap| gap.missing - 1).sum();
        lock(&self.shared.pending).dropped += self.form.envelope.count(rest) + stated;
    }

    fn reopen(&mut self, reopen: Reopen) {
        let opened = match reopen {
            Reopen::Taking(sink) => Ok(sink),
            Reopen::Opening => Sink::open(&self.destination),
        };
        match opened {
            Ok(opened) => {
                self.sink = opened;
                self.has_failed = false;
            }
            Err(fault) => {
                (self.error_log)(&format!("cannot reopen the access log, which continues in the old file: {fault}"));
            }
        }
    }
}

/// Which file it is. `None`: it is closed, or none of a disk.
fn identity(descriptor: BorrowedFd<'_>) -> Option<(u64, u64)> {
    match file_kind(descriptor) {
        Ok((FileKind::File, file)) => Some(file),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::os::unix::net::UnixDatagram;
    use std::path::PathBuf;
    use std::sync::Arc;

    use tailrace_os::sync::lock;

    use super::{
        AccessLogConfig, Destination, FailedWrite, Form, Format, LineQueue, LogThread, PIECE, Reopen, Sink, identity,
        piece,
    };

    /// A new folder, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tailrace-access-log-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn writer(destination: &Destination, shared: &Arc<LineQueue>) -> LogThread {
        let config = AccessLogConfig { destination: destination.clone(), format: Format::parse("common").unwrap() };
        LogThread {
            shared: shared.clone(),
            destination: destination.clone(),
            form: Form::new(&config),
            sink: Sink::open(destination).unwrap(),
            error_log: Arc::new(Box::new(|_: &str| ()) as super::ErrorLog),
            has_failed: false,
            failed: None,
        }
    }

    #[test]
    fn a_line_that_waits_when_the_log_is_reopened_is_in_the_new_file() {
        let folder = Folder::new("reopened");
        let (path, old) = (folder.0.join("log"), folder.0.join("log.1"));
        let shared = Arc::new(LineQueue::default());
        let writer = writer(&Destination::Path(path.clone()), &shared);
        fs::rename(&path, &old).unwrap();
        {
            // The writer finds all of this at once, as on a busy machine.
            let mut pending = lock(&shared.pending);
            pending.reopen = Some(Reopen::Opening);
            pending.lines.extend(b"second\n");
            pending.count = 1;
            pending.closed = true;
        }
        writer.write_until_closed();
        let found = (fs::read_to_string(&old).unwrap(), fs::read_to_string(&path).unwrap());
        assert_eq!(found, (String::new(), String::from("second\n")));
    }

    #[test]
    fn a_write_has_whole_lines() {
        assert_eq!(piece(b"one\ntwo\nthree\n", 9), b"one\ntwo\n");
        assert_eq!(piece(b"one\ntwo\n", 8), b"one\ntwo\n");
        assert_eq!(piece(b"a long line\nnext\n", 5), b"a long line\n");
        // After a part of it has been written.
        assert_eq!(piece(b" line\nnext\n", 8), b" line\n");
        let long = [vec![b'x'; 2 * PIECE], b"\n".to_vec()].concat();
        assert_eq!(piece(&long, 5).len(), PIECE);
    }

    #[test]
    fn a_line_that_a_full_disk_has_cut_does_not_run_into_the_next_one() {
        let folder = Folder::new("torn");
        let path = folder.0.join("log");
        fs::write(&path, "one\ntwo, of which").unwrap();
        let shared = Arc::new(LineQueue::default());
        let mut writer = writer(&Destination::Path(path.clone()), &shared);
        // The part may be that of another process.
        let failed = |writer: &LogThread| {
            identity(writer.sink.descriptor().unwrap()).map(|file| FailedWrite { file, is_part: false })
        };
        writer.failed = failed(&writer);
        lock(&shared.pending).count = 3;
        writer.write(b"three\n", 1, &[]).unwrap();
        writer.write(b"four\n", 1, &[]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo, of which\nthree\nfour\n");
        // The new file after a rotation is whole.
        writer.failed = failed(&writer);
        fs::rename(&path, folder.0.join("log.1")).unwrap();
        writer.reopen(Reopen::Opening);
        writer.write(b"five\n", 1, &[]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "five\n");
    }

    #[test]
    fn a_daemon_gets_each_entry_in_a_datagram_and_one_that_has_gone_costs_its_lines() {
        let folder = Folder::new("daemon");
        let path = folder.0.join("log");
        let daemon = UnixDatagram::bind(&path).unwrap();
        let text = format!("syslog:{}", path.display());
        let shared = Arc::new(LineQueue::default());
        let mut writer = writer(&Destination::parse(text.as_ref()).unwrap(), &shared);
        let count = |lines: &[u8]| lines.iter().filter(|&&byte| byte == b'\n').count() as u64;
        let mut write = |lines: &[u8]| {
            lock(&shared.pending).count += count(lines);
            writer.write(lines, count(lines), &[]).unwrap();
            let mut pending = lock(&shared.pending);
            (pending.count, std::mem::take(&mut pending.dropped))
        };
        assert_eq!(write(b"one\ntwo\n"), (0, 0));
        let mut buffer = [0; 64];
        for wanted in ["one", "two"] {
            let length = daemon.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], wanted.as_bytes());
        }
        drop(daemon);
        fs::remove_file(&path).unwrap();
        assert_eq!(write(b"three\nfour\n"), (0, 2));
        let daemon = UnixDatagram::bind(&path).unwrap();
        assert_eq!(write(b"five\n"), (0, 0));
        let length = daemon.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"five");
    }

    #[test]
    fn a_line_about_dropped_ones_that_is_dropped_itself_costs_none_of_their_number() {
        let folder = Folder::new("gaps");
        let path = folder.0.join("log");
        let daemon = UnixDatagram::bind(&path).unwrap();
        let destination = Destination::parse(format!("syslog:{}", path.display()).as_ref()).unwrap();
        let shared = Arc::new(LineQueue::default());
        let write = |writer: LogThread| {
            {
                let mut pending = lock(&shared.pending);
                pending.lines.extend(b"one\n");
                pending.count += 1;
                pending.closed = true;
            }
            writer.write_until_closed();
            let pending = lock(&shared.pending);
            (pending.count, pending.dropped)
        };
        let connected = writer(&destination, &shared);
        drop(daemon);
        fs::remove_file(&path).unwrap();
        lock(&shared.pending).dropped = 5;
        assert_eq!(write(connected), (0, 6));
        let daemon = UnixDatagram::bind(&path).unwrap();
        assert_eq!(write(writer(&destination, &shared)), (0, 0));
        let mut buffer = [0; 128];
        let mut received = || {
            let length = daemon.recv(&mut buffer).unwrap();
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        };
        assert_eq!(received(), "one");
        let said = received();
        assert!(said.ends_with("6 lines dropped: the log could not be written in time"), "{said}");
    }
}
