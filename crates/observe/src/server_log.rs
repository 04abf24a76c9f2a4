//! The server's own log: entries that Python makes, in the form of their destination.
//!
//! Any thread; none waits for the destination (see `os/log_stream.rs`).

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use tailrace_os::clock;
use tailrace_os::log_stream::{Gap, LogStream, dropped_entries, line_about};
use tailrace_os::process;

use crate::destination::{Destination, Opened};
use crate::envelope::{Envelope, WARNING};
use crate::log_format::Calendar;

/// Where the server writes its own log.
pub struct ServerLog {
    destination: Destination,
    envelope: Envelope,
    /// The texts are objects of JSON.
    is_json: bool,
    stream: LogStream,
}

impl ServerLog {
    /// Opens a destination. `is_json`: the texts are objects of JSON.
    ///
    /// # Errors
    /// It cannot be opened: its name, why, and what to do.
    pub fn open(destination: Destination, is_json: bool) -> io::Result<Self> {
        let envelope = Envelope::of(&destination);
        let stream = stream(destination.open()?, gap_of(envelope.clone(), is_json));
        Ok(Self { destination, envelope, is_json, stream })
    }

    /// Writes an entry. `severity`: 0 to 7 (RFC 5424 section 6.2.1). `fields`: for the journal.
    pub fn write(&self, severity: u8, text: &[u8], fields: &[(String, Vec<u8>)]) {
        for entry in self.envelope.entries(severity.min(7), text, fields, &calendar()) {
            self.stream.write(&entry);
        }
    }

    /// Opens a file again by its name, after the old one was renamed. Does nothing elsewhere.
    ///
    /// # Errors
    /// It cannot be opened; the log goes to the old one.
    pub fn reopen(&self) -> io::Result<()> {
        if let Destination::Path(_) = self.destination
            && let Opened::File(file) = self.destination.open()?
        {
            self.stream.replace(Arc::new(file));
        }
        Ok(())
    }

    /// This log in a child of fork(2), without what waits. `None`: it cannot be had there.
    #[must_use]
    pub fn in_child(&self) -> Option<Self> {
        let gap = || gap_of(self.envelope.clone(), self.is_json);
        let opened = || self.destination.open().ok().map(|opened| stream(opened, gap()));
        let stream = self.stream.in_child().or_else(opened)?;
        let (destination, envelope) = (self.destination.clone(), self.envelope.clone());
        Some(Self { destination, envelope, is_json: self.is_json, stream })
    }

    /// From now on a thread may write what waits: this process forks no workers.
    pub fn allow_thread(&self) {
        self.stream.allow_thread();
    }

    /// Writes what waits, for at most `time`. True: nothing is left.
    pub fn flush(&self, time: Duration) -> bool {
        self.stream.flush(time)
    }

    /// The descriptor that becomes writable when what waits can be written; `None`: nothing waits.
    #[must_use]
    pub fn waits_for(&self) -> Option<RawFd> {
        self.stream.waits_for()
    }
}

fn stream(opened: Opened, gap: Gap) -> LogStream {
    match opened {
        Opened::Stdout => LogStream::new(Arc::new(io::stdout()), gap),
        Opened::Stderr => LogStream::new(Arc::new(io::stderr()), gap),
        Opened::File(file) => LogStream::new(Arc::new(file), gap),
        Opened::Socket(socket) => LogStream::datagrams(socket, gap),
    }
}

fn gap_of(envelope: Envelope, is_json: bool) -> Gap {
    Arc::new(move |dropped| {
        let calendar = calendar();
        let text = match &envelope {
            _ if is_json => gap_object(dropped, &calendar),
            Envelope::Line => return line_about(dropped),
            _ => dropped_entries(dropped).into_bytes(),
        };
        envelope.entries(WARNING, &text, &[], &calendar).concat()
    })
}

/// An object with the members that all entries have (`tailrace/logs/log_formats.py`), and the number.
fn gap_object(dropped: u64, calendar: &Calendar) -> Vec<u8> {
    let mut object = b"{\"time\": \"".to_vec();
    calendar.push_rfc3339(&mut object);
    let rest = format!(
        "\", \"level\": \"warning\", \"logger\": \"tailrace\", \"process\": {}, \"message\": \"{}\", \"dropped\": {dropped}}}",
        process::id(),
        dropped_entries(dropped)
    );
    object.extend_from_slice(rest.as_bytes());
    object
}

fn calendar() -> Calendar {
    let mut calendar = Calendar::default();
    calendar.set(clock::wall());
    calendar
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::{create_dir, read_to_string, remove_dir_all, rename};
    use std::os::unix::net::UnixDatagram;

    use super::{ServerLog, dropped_entries, gap_of};
    use crate::destination::Destination;
    use crate::envelope::Envelope;

    #[test]
    fn a_file_is_reopened_by_its_name_and_kept_where_that_fails() {
        let folder = std::env::temp_dir().join(format!("tailrace-server-log-{}", std::process::id()));
        create_dir(&folder).unwrap();
        let (path, old, moved) = (folder.join("log"), folder.join("log.1"), folder.with_extension("moved"));
        let log = ServerLog::open(Destination::Path(path.clone()), false).unwrap();
        log.write(6, b"one", &[]);
        rename(&path, &old).unwrap();
        log.write(6, b"two", &[]);
        log.reopen().unwrap();
        log.write(6, b"three", &[]);
        assert_eq!(
            (read_to_string(&old).unwrap(), read_to_string(&path).unwrap()),
            ("one\ntwo\n".into(), "three\n".into())
        );
        rename(&folder, &moved).unwrap();
        assert!(log.reopen().unwrap_err().to_string().contains("does not exist; create it"));
        log.write(6, b"four", &[]);
        assert_eq!(read_to_string(moved.join("log")).unwrap(), "three\nfour\n");
        remove_dir_all(&moved).unwrap();
    }

    #[test]
    fn a_gap_has_the_form_of_the_entries() {
        let gap = |destination: &str, is_json| {
            let destination = Destination::parse(destination.as_ref()).unwrap();
            let gap = gap_of(Envelope::of(&destination), is_json)(7);
            String::from_utf8(gap).unwrap()
        };
        let (said, process) = (dropped_entries(7), std::process::id());
        assert_eq!(gap("stderr", false), format!("tailrace: {said}\n"));
        assert_eq!(gap("syslog", false), format!("<28>tailrace[{process}]: {said}"));
        assert_eq!(gap("journal", false), format!("PRIORITY=4\nSYSLOG_IDENTIFIER=tailrace\nMESSAGE={said}\n"));
        let members = format!(
            "Z\", \"level\": \"warning\", \"logger\": \"tailrace\", \"process\": {process}, \"message\": \"{said}\", \
             \"dropped\": 7}}"
        );
        for (destination, before) in [("stderr", ""), ("syslog", &*format!("<28>tailrace[{process}]: "))] {
            let entry = gap(destination, true);
            assert!(entry.starts_with(&format!("{before}{{\"time\": \"")), "{entry}");
            assert!(entry.trim_end().ends_with(&members), "{entry}");
        }
    }

    #[test]
    fn a_journal_gets_level_text_and_fields() {
        let folder = std::env::temp_dir().join(format!("tailrace-server-journal-{}", std::process::id()));
        create_dir(&folder).unwrap();
        let path = folder.join("socket");
        let journal = UnixDatagram::bind(&path).unwrap();
        let destination = Destination::parse(format!("journal:{}", path.display()).as_ref()).unwrap();
        let log = ServerLog::open(destination, false).unwrap();
        log.write(4, b"text", &[("logger".to_owned(), b"tailrace.error".to_vec())]);
        log.in_child().unwrap().write(3, b"of a child", &[]);
        log.reopen().unwrap();
        let mut buffer = [0; 200];
        let mut next = || {
            let length = journal.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..length].to_vec()).unwrap()
        };
        assert_eq!(next(), "PRIORITY=4\nSYSLOG_IDENTIFIER=tailrace\nMESSAGE=text\nTAILRACE_LOGGER=tailrace.error\n");
        assert_eq!(next(), "PRIORITY=3\nSYSLOG_IDENTIFIER=tailrace\nMESSAGE=of a child\n");
        remove_dir_all(&folder).unwrap();
    }
}
