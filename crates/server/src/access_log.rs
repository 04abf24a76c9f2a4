//! The access log: lines are made and written by a thread of their own, which never holds the interpreter.
//!
//! Request threads hand over what a line needs and go on. If the log cannot be written as fast as requests end, at most
//! [`BACKLOG`] entries wait; further ones are dropped, and the log says how many.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::SystemTime;

use crate::answer::Answer;
use crate::local;
use crate::lock;
use crate::log_format::Entry;
pub use crate::log_format::{ATOMS, Format};
use crate::wait;

/// Entries that may wait for the writer.
const BACKLOG: usize = 65_536;

/// Where the access log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The standard output.
    Stdout,
    /// Appended to this file.
    Path(PathBuf),
}

/// Where the access log goes, and how its lines look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLogConfig {
    /// Where.
    pub destination: Destination,
    /// How.
    pub format: Format,
}

#[derive(Default)]
struct Pending {
    entries: Vec<Entry>,
    dropped: u64,
    reopen: bool,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    pending: Mutex<Pending>,
    came: Condvar,
}

pub(crate) struct AccessLog {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl AccessLog {
    /// Opens the log and starts its thread.
    pub(crate) fn open(config: AccessLogConfig) -> io::Result<Self> {
        let sink = Sink::open(&config.destination)?;
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let writer = std::thread::Builder::new()
            .name("penstock-log".to_owned())
            .spawn(move || write_until_closed(&theirs, &config, sink))?;
        Ok(Self { shared, writer: Mutex::new(Some(writer)) })
    }

    /// Hands a finished request over.
    pub(crate) fn write(&self, mut answer: Box<Answer>) {
        let entry = Entry {
            bytes: std::mem::take(&mut answer.request.bytes),
            head: std::mem::take(&mut answer.request.head),
            endpoints: answer.request.endpoints,
            record: answer.record,
            at: SystemTime::now(),
        };
        local::give_answer(answer);
        let mut pending = lock(&self.shared.pending);
        if pending.entries.len() >= BACKLOG {
            pending.dropped += 1;
            return;
        }
        pending.entries.push(entry);
        let first = pending.entries.len() == 1;
        drop(pending);
        if first {
            self.shared.came.notify_one();
        }
    }

    /// Opens the file anew, after it was renamed.
    pub(crate) fn reopen(&self) {
        lock(&self.shared.pending).reopen = true;
        self.shared.came.notify_one();
    }

    /// Writes what waits and ends the thread.
    pub(crate) fn close(&self) {
        lock(&self.shared.pending).closed = true;
        self.shared.came.notify_one();
        if let Some(writer) = lock(&self.writer).take() {
            // It returns an error only if it panicked, and then there is nothing left to do.
            let _ = writer.join();
        }
    }
}

enum Sink {
    Stdout(io::Stdout),
    File(File),
}

impl Sink {
    fn open(destination: &Destination) -> io::Result<Self> {
        match destination {
            Destination::Stdout => Ok(Self::Stdout(io::stdout())),
            Destination::Path(path) => Ok(Self::File(OpenOptions::new().append(true).create(true).open(path)?)),
        }
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout(stdout) => {
                stdout.write_all(lines)?;
                stdout.flush()
            }
            Self::File(file) => file.write_all(lines),
        }
    }
}

fn write_until_closed(shared: &Shared, config: &AccessLogConfig, mut sink: Sink) {
    let mut lines = Vec::new();
    let mut failed = false;
    loop {
        let Pending { entries, dropped, reopen, closed } = {
            let mut pending = lock(&shared.pending);
            while pending.entries.is_empty() && !pending.reopen && !pending.closed {
                pending = wait(&shared.came, pending);
            }
            let closed = pending.closed;
            let taken = std::mem::take(&mut *pending);
            pending.closed = closed;
            taken
        };
        lines.clear();
        for entry in &entries {
            config.format.render(entry, &mut lines);
        }
        if dropped > 0 {
            lines.extend_from_slice(
                format!("# {dropped} lines dropped: the log could not be written in time\n").as_bytes(),
            );
        }
        if sink.write(&lines).is_err() && !failed {
            failed = true;
            complain("the access log cannot be written; requests are served without it");
        }
        if reopen {
            match Sink::open(&config.destination) {
                Ok(opened) => {
                    sink = opened;
                    failed = false;
                }
                Err(fault) => complain(&format!("the access log cannot be opened anew: {fault}")),
            }
        }
        if closed {
            return;
        }
    }
}

/// The application may be stuck; its log is not for this thread.
fn complain(message: &str) {
    let _ = writeln!(io::stderr(), "penstock: {message}");
}
