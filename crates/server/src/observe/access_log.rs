//! The access log. The thread that accounts for a response makes its line; a thread of the log writes it, which never
//! holds the interpreter.
//!
//! Lines wait in a buffer of [`ROOM`] bytes, so that a destination that accepts nothing delays no request and costs no
//! more memory. Lines that do not fit are dropped and counted, and a line states their number where the log continues.
//! When the server ends, the log is abandoned if its destination accepts nothing. Nothing is logged after
//! [`AccessLog::close`]: a request that ends later has been logged as cut.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

pub use crate::observe::log_format::Format;
use crate::observe::log_format::{Calendar, Entry};
use crate::observe::record::Record;
use crate::os::clock;
use crate::os::file::{error_text, open_to_append, write};
use crate::os::panics::{catch, may_panic};
use crate::os::poll::wait_writable;
use crate::os::process::Unshared;
use crate::os::socket::Io;
use crate::os::sync::{lock, wait, wait_for};
use crate::request::Request;

/// An escaped byte has up to this many bytes in a line.
const ESCAPED: usize = 6;
/// Bytes of a line that are neither of the request nor of the response, at most.
const OTHER: usize = 1024;
/// Most bytes of lines that wait for the writer, those included that it is writing.
const ROOM: usize = 4 << 20;
/// Bytes of one write. Small, so that a slow destination can be told from one that accepts nothing.
const PIECE: usize = 64 * 1024;
/// Capacity, in bytes, that the writer's buffer keeps.
const KEPT: usize = 256 * 1024;
/// When the server ends, the log is abandoned if its destination accepts nothing for this time.
const PATIENCE: Duration = Duration::from_secs(1);
/// The log is also abandoned if its destination has not accepted everything in this time.
const PATIENCE_IN_ALL: Duration = Duration::from_secs(3);
/// How often the writer checks whether it was abandoned, if its descriptor does not block: another process that has it
/// may have set that.
const LOOK: Duration = Duration::from_millis(500);

/// Where the access log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The standard output.
    Stdout,
    /// Appended to this file.
    Path(PathBuf),
}

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
    /// Number of lines in both.
    count: u64,
    /// Number of lines that were dropped after those.
    dropped: u64,
    calendar: Calendar,
    reopen: bool,
    closed: bool,
    /// The server has abandoned the writer and does not wait for it.
    abandoned: bool,
    /// The writer has returned.
    ended: bool,
}

#[derive(Default)]
struct Shared {
    pending: Mutex<Pending>,
    /// Lines were added, or the log is to be reopened or closed.
    added: Condvar,
    /// The writer has written something, or has ended.
    written: Condvar,
}

pub(crate) struct AccessLog {
    format: Format,
    shared: Arc<Shared>,
    error_log: Arc<ErrorLog>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl AccessLog {
    /// Opens the log and starts its thread.
    pub(crate) fn open(config: AccessLogConfig, error_log: ErrorLog) -> io::Result<Self> {
        let AccessLogConfig { destination, format } = config;
        let sink = Sink::open(&destination)?;
        let (shared, error_log) = (Arc::new(Shared::default()), Arc::new(error_log));
        let writer = Writer {
            shared: shared.clone(),
            destination,
            format: format.clone(),
            sink,
            error_log: error_log.clone(),
            has_failed: false,
        };
        let writer =
            std::thread::Builder::new().name("tailrace-log".to_owned()).spawn(move || writer.write_until_closed())?;
        Ok(Self { format, shared, error_log, writer: Mutex::new(Some(writer)) })
    }

    /// Logs a finished request. `response`: its head as it was sent.
    pub(crate) fn write(&self, request: &Request, response: &[u8], record: &Record) {
        let now = clock::wall();
        let mut pending = lock(&self.shared.pending);
        let Pending { lines, being_written, count, dropped, calendar, closed, .. } = &mut *pending;
        if *closed {
            return;
        }
        let before = lines.len();
        let most = ESCAPED * (request.bytes.len() + response.len()) + OTHER;
        if before + *being_written >= ROOM || lines.try_reserve(most).is_err() {
            *dropped += 1;
            return;
        }
        if *dropped > 0 {
            self.format.render_gap(*dropped, lines);
        }
        calendar.set(now);
        let rendered = catch(|| {
            may_panic("log");
            self.format.render(&Entry { request, response, record }, calendar, lines);
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
        *dropped = 0;
        *count += 1;
        drop(pending);
        if before == 0 {
            self.shared.added.notify_one();
        }
    }

    /// Opens the file again by its name, after the old one was renamed.
    pub(crate) fn reopen(&self) {
        lock(&self.shared.pending).reopen = true;
        self.shared.added.notify_one();
    }

    /// Writes the lines that wait and ends the thread; lines that are not accepted in time are lost.
    pub(crate) fn close(&self) {
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
    File(Unshared),
}

impl Sink {
    fn open(destination: &Destination) -> io::Result<Self> {
        match destination {
            Destination::Stdout => Ok(Self::Stdout(io::stdout())),
            Destination::Path(path) => {
                let opened = open_to_append(path);
                let named = |fault: io::Error| {
                    let why = match (fault.kind(), path.parent().filter(|directory| !directory.as_os_str().is_empty()))
                    {
                        (io::ErrorKind::NotFound, Some(directory)) => {
                            format!("the directory {} does not exist; create it", directory.display())
                        }
                        _ => error_text(&fault),
                    };
                    io::Error::new(fault.kind(), format!("--access-log {}: {why}", path.display()))
                };
                Ok(Self::File(Unshared::new(opened.map_err(named)?)))
            }
        }
    }

    /// `None` in a forked child, which has no writer thread either.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Stdout(stdout) => Some(stdout.as_fd()),
            Self::File(file) => file.here(),
        }
    }
}

/// The state of the log's thread.
struct Writer {
    shared: Arc<Shared>,
    destination: Destination,
    format: Format,
    sink: Sink,
    error_log: Arc<ErrorLog>,
    has_failed: bool,
}

impl Writer {
    fn write_until_closed(mut self) {
        let mut lines = Vec::new();
        loop {
            let (count, reopen, closed) = {
                let mut pending = lock(&self.shared.pending);
                while pending.lines.is_empty() && !pending.reopen && !pending.closed {
                    pending = wait(&self.shared.added, pending);
                }
                let dropped = std::mem::take(&mut pending.dropped);
                if dropped > 0 {
                    self.format.render_gap(dropped, &mut pending.lines);
                }
                std::mem::swap(&mut lines, &mut pending.lines);
                pending.being_written = lines.len();
                (pending.count, std::mem::take(&mut pending.reopen), pending.closed)
            };
            // Reopened first: a line may belong to a request that began after the server logged the reopening.
            if reopen {
                self.reopen();
            }
            let goes_on = self.write(&lines, count);
            if lines.capacity() > KEPT {
                lines = Vec::new();
            }
            lines.clear();
            if closed || !goes_on {
                break;
            }
        }
        lock(&self.shared.pending).ended = true;
        self.shared.written.notify_all();
    }

    /// Writes `count` lines; those that cannot be written are counted as dropped. False: the log was abandoned, or this
    /// is a forked child.
    fn write(&mut self, lines: &[u8], count: u64) -> bool {
        let mut rest = lines;
        while !rest.is_empty() {
            let piece = &rest[..rest.len().min(PIECE)];
            let Some(descriptor) = self.sink.descriptor() else { return false };
            let moved = match write(descriptor, piece) {
                Ok(Io::Moved(moved)) => moved,
                Ok(_) => {
                    wait_writable(descriptor, LOOK);
                    if lock(&self.shared.pending).abandoned {
                        return false;
                    }
                    continue;
                }
                Err(fault) => {
                    if !self.has_failed {
                        self.has_failed = true;
                        (self.error_log)(&format!(
                            "the access log cannot be written: {}; requests are served without it",
                            error_text(&fault)
                        ));
                    }
                    // A line that was written in part counts as dropped, too.
                    lock(&self.shared.pending).dropped += rest.iter().filter(|&&byte| byte == b'\n').count() as u64;
                    break;
                }
            };
            rest = &rest[moved..];
            let mut pending = lock(&self.shared.pending);
            pending.being_written = rest.len();
            if pending.abandoned {
                return false;
            }
            if pending.closed {
                self.shared.written.notify_all();
            }
        }
        let mut pending = lock(&self.shared.pending);
        pending.being_written = 0;
        pending.count -= count;
        true
    }

    fn reopen(&mut self) {
        match Sink::open(&self.destination) {
            Ok(opened) => {
                self.sink = opened;
                self.has_failed = false;
            }
            Err(fault) => (self.error_log)(&format!("the access log cannot be opened again: {fault}")),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::sync::Arc;

    use super::{Destination, Format, Shared, Sink, Writer};
    use crate::os::sync::lock;

    #[test]
    fn a_line_that_waits_when_the_log_is_reopened_is_in_the_new_file() {
        let folder = std::env::temp_dir().join(format!("tailrace-access-log-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (path, old) = (folder.join("log"), folder.join("log.1"));
        let destination = Destination::Path(path.clone());
        let sink = Sink::open(&destination).unwrap();
        fs::rename(&path, &old).unwrap();
        let shared = Arc::new(Shared::default());
        {
            // The writer finds all of this at once, as on a busy machine.
            let mut pending = lock(&shared.pending);
            pending.reopen = true;
            pending.lines.extend(b"second\n");
            pending.count = 1;
            pending.closed = true;
        }
        let format = Format::parse("common").unwrap();
        let error_log = Arc::new(Box::new(|_: &str| ()) as super::ErrorLog);
        Writer { shared, destination, format, sink, error_log, has_failed: false }.write_until_closed();
        let found = (fs::read_to_string(&old).unwrap(), fs::read_to_string(&path).unwrap());
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, (String::new(), String::from("second\n")));
    }
}
