//! What surrounds the text of a log entry, by the destination: nothing but a line end, a header of syslog, or the fields
//! of the journal.
//!
//! A local syslog daemon gets `<PRI>TAG[PID]: TEXT`: the form of RFC 3164 section 4.1 without time and host, which the
//! daemon adds. By UDP, RFC 5424 is used, in which both are well defined. The journal gets fields in its own protocol
//! (systemd.io/JOURNAL_NATIVE_PROTOCOL).
//!
//! An entry of the access log is made in two steps: the thread that accounts for the response renders it into a buffer
//! with others, and the thread of the log cuts them apart ([`Envelope::first`]). Its text has no line ends.

use std::io::Write;

use tailrace_os::process;

use crate::destination::{Daemon, Destination, Syslog};
use crate::log_format::Calendar;

/// The severity of a line of the access log (RFC 5424 section 6.2.1).
pub(crate) const INFO: u8 = 6;
/// The severity of the entry about entries that were dropped.
pub(crate) const WARNING: u8 = 4;
/// Bytes of a text in one datagram of syslog, at most: a daemon may cut longer ones (rsyslog at 8 KiB by default).
const SYSLOG_TEXT: usize = 7 * 1024;
/// Bytes of a text in an entry of the journal, at most. The kernel takes datagrams of up to 208 KiB by default
/// (net.core.wmem_default), and there are further fields.
const JOURNAL_TEXT: usize = 128 * 1024;
/// Bytes of another field of the journal, and of all of an entry.
pub(crate) const FIELD_TEXT: usize = 7 * 1024;
const JOURNAL_ENTRY: usize = 200 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Envelope {
    /// A line.
    Line,
    /// A local syslog daemon. Facility and tag.
    Syslog(u8, String),
    /// A syslog daemon that is reached by UDP. Facility, tag and the name of this machine.
    Udp(u8, String, String),
    /// The journal. The tag.
    Journal(String),
}

impl Envelope {
    pub(crate) fn of(destination: &Destination) -> Self {
        match destination {
            Destination::Syslog(Syslog { daemon: Daemon::Socket(_), facility, tag }) => {
                Self::Syslog(*facility, tag.clone())
            }
            Destination::Syslog(Syslog { daemon: Daemon::Udp(..), facility, tag }) => {
                let host = process::host_name().filter(|name| name.bytes().all(|byte| byte.is_ascii_graphic()));
                Self::Udp(*facility, tag.clone(), host.unwrap_or_else(|| String::from("-")))
            }
            Destination::Journal { tag, .. } => Self::Journal(tag.clone()),
            _ => Self::Line,
        }
    }

    /// True when each entry is sent by itself.
    pub(crate) fn is_datagram(&self) -> bool {
        *self != Self::Line
    }

    /// Bytes of the text of an entry of the access log, at most: one that is longer than a datagram would be lost.
    pub(crate) fn longest_text(&self) -> usize {
        match self {
            Self::Line => usize::MAX,
            Self::Syslog(..) | Self::Udp(..) => SYSLOG_TEXT,
            Self::Journal(_) => JOURNAL_TEXT,
        }
    }

    /// What follows each entry of the access log in a buffer of such.
    pub(crate) fn separator(&self) -> &'static [u8] {
        match self {
            Self::Journal(_) => b"\n\n",
            _ => b"\n",
        }
    }

    /// The first entry of the access log in a buffer of such, as it is sent, and what follows it.
    pub(crate) fn first<'a>(&self, entries: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        let separator = self.separator();
        let end = entries.windows(separator.len()).position(|bytes| bytes == separator).unwrap_or(entries.len());
        // Each field of the journal ends with a line end, the last one included.
        let kept = separator.len() - 1;
        (&entries[..(end + kept).min(entries.len())], &entries[(end + separator.len()).min(entries.len())..])
    }

    /// The number of entries of the access log in a buffer of such; one that has been written in part counts.
    pub(crate) fn count(&self, entries: &[u8]) -> u64 {
        let separator = self.separator();
        entries.windows(separator.len()).filter(|bytes| *bytes == separator).count() as u64
    }

    /// Appends what comes before a text without a line end.
    pub(crate) fn begin(&self, severity: u8, calendar: &Calendar, out: &mut Vec<u8>) {
        // Writing into memory cannot fail.
        match self {
            Self::Line => {}
            Self::Syslog(facility, tag) => {
                drop(write!(out, "<{}>{tag}[{}]: ", facility * 8 + severity, process::id()));
            }
            Self::Udp(facility, tag, host) => {
                drop(write!(out, "<{}>1 ", facility * 8 + severity));
                calendar.push_rfc3339(out);
                drop(write!(out, " {host} {tag} {} - - ", process::id()));
            }
            Self::Journal(tag) => {
                drop(write!(out, "PRIORITY={severity}\nSYSLOG_IDENTIFIER={tag}\nMESSAGE="));
            }
        }
    }

    /// The entries for a text, which may have several lines, with fields that the journal shows as `TAILRACE_NAME`.
    pub(crate) fn entries(
        &self,
        severity: u8,
        text: &[u8],
        fields: &[(String, Vec<u8>)],
        calendar: &Calendar,
    ) -> Vec<Vec<u8>> {
        match self {
            Self::Line => vec![[text, b"\n"].concat()],
            Self::Syslog(..) | Self::Udp(..) => pieces(text, SYSLOG_TEXT)
                .into_iter()
                .map(|piece| {
                    let mut entry = Vec::with_capacity(piece.len() + 200);
                    self.begin(severity, calendar, &mut entry);
                    entry.extend_from_slice(piece);
                    entry
                })
                .collect(),
            Self::Journal(tag) => {
                let mut entry = format!("PRIORITY={severity}\nSYSLOG_IDENTIFIER={tag}\n").into_bytes();
                push_field("MESSAGE", &text[..text.len().min(JOURNAL_TEXT)], &mut entry);
                for (name, value) in fields {
                    let before = entry.len();
                    if let Some(name) = journal_name(name) {
                        push_field(&name, &value[..value.len().min(FIELD_TEXT)], &mut entry);
                    }
                    if entry.len() > JOURNAL_ENTRY {
                        entry.truncate(before);
                    }
                }
                vec![entry]
            }
        }
    }
}

/// The name of a field in the journal: capitals, digits and underscores, 64 at most. `None`: it cannot be one.
pub(crate) fn journal_name(name: &str) -> Option<String> {
    let name = format!("TAILRACE_{}", name.to_ascii_uppercase());
    let is_fit = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    (name.len() <= 64 && name.bytes().all(is_fit)).then_some(name)
}

/// A field of the journal: as a line, or with its length if it has lines itself.
fn push_field(name: &str, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    if value.contains(&b'\n') {
        out.push(b'\n');
        out.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        out.push(b'=');
    }
    out.extend_from_slice(value);
    out.push(b'\n');
}

/// Cuts a text into pieces of at most this many bytes, at the ends of lines if it has any.
fn pieces(text: &[u8], most: usize) -> Vec<&[u8]> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while rest.len() > most {
        let end = rest[..most].iter().rposition(|&byte| byte == b'\n').filter(|&end| end > 0);
        let (piece, after) = match end {
            Some(end) => (&rest[..end], &rest[end + 1..]),
            None => rest.split_at(char_boundary(rest, most)),
        };
        pieces.push(piece);
        rest = after;
    }
    if !rest.is_empty() || pieces.is_empty() {
        pieces.push(rest);
    }
    pieces
}

/// The last place up to `at` that is not within a character of UTF-8; `at` itself in other text.
fn char_boundary(text: &[u8], at: usize) -> usize {
    (at.saturating_sub(3)..=at).rev().find(|&place| text[place] & 0xc0 != 0x80).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::ffi::OsStr;
    use std::time::{Duration, UNIX_EPOCH};

    use super::{Envelope, INFO, journal_name, pieces};
    use crate::destination::Destination;
    use crate::log_format::Calendar;

    fn envelope(destination: &str) -> Envelope {
        Envelope::of(&Destination::parse(OsStr::new(destination)).unwrap())
    }

    fn entries(envelope: &Envelope, text: &str, fields: &[(String, Vec<u8>)]) -> Vec<String> {
        let mut calendar = Calendar::default();
        calendar.set(UNIX_EPOCH + Duration::from_millis(1_000_000_000_007));
        let made = envelope.entries(INFO, text.as_bytes(), fields, &calendar);
        made.into_iter().map(|entry| String::from_utf8_lossy(&entry).into_owned()).collect()
    }

    #[test]
    fn each_destination_has_its_own_form() {
        let process = std::process::id();
        assert_eq!(entries(&envelope("stderr"), "a\nb", &[]), ["a\nb\n"]);
        let local = envelope("syslog?facility=local0&tag=shop");
        assert_eq!(entries(&local, "a\nb", &[]), [format!("<134>shop[{process}]: a\nb")]);
        let udp = Envelope::Udp(23, "shop".to_owned(), "host".to_owned());
        assert_eq!(
            entries(&udp, "text", &[]),
            [format!("<190>1 2001-09-09T01:46:40.007Z host shop {process} - - text")]
        );
        let fields = [("worker".to_owned(), b"3".to_vec()), ("no name".to_owned(), b"x".to_vec())];
        assert_eq!(
            entries(&envelope("journal?tag=shop"), "text", &fields),
            ["PRIORITY=6\nSYSLOG_IDENTIFIER=shop\nMESSAGE=text\nTAILRACE_WORKER=3\n"]
        );
        assert_eq!(
            entries(&envelope("journal"), "a\nb", &[]),
            ["PRIORITY=6\nSYSLOG_IDENTIFIER=tailrace\nMESSAGE\n\u{3}\0\0\0\0\0\0\0a\nb\n"]
        );
    }

    #[test]
    fn a_long_text_is_complete_in_several_entries_of_syslog() {
        let lines: Vec<String> = (0..900).map(|number| format!("line {number} é")).collect();
        let text = lines.join("\n");
        let found = entries(&envelope("syslog"), &text, &[]);
        assert!(found.len() > 1);
        let header = format!("<30>tailrace[{}]: ", std::process::id());
        let texts: Vec<&str> = found.iter().map(|entry| entry.strip_prefix(&header).unwrap()).collect();
        assert!(texts.iter().all(|text| text.len() <= super::SYSLOG_TEXT));
        assert_eq!(texts.join("\n"), text);
        // Without lines it is cut between characters.
        let text = "é".repeat(5000);
        let cut = pieces(text.as_bytes(), 101);
        assert!(cut.iter().all(|piece| std::str::from_utf8(piece).is_ok() && piece.len() <= 101));
        assert_eq!(cut.concat(), text.as_bytes());
        assert_eq!(pieces(b"", 10), [b""]);
    }

    #[test]
    fn an_entry_of_the_journal_fits_into_a_datagram() {
        let fields: Vec<_> = (0..50).map(|number| (format!("field{number}"), vec![b'x'; 10_000])).collect();
        let made = entries(&envelope("journal"), &"x".repeat(300_000), &fields);
        assert!(made.len() == 1 && made[0].len() <= super::JOURNAL_ENTRY);
        assert!(made[0].contains("\nTAILRACE_FIELD1=xxx") && made[0].ends_with("xxx\n"));
    }

    #[test]
    fn entries_of_the_access_log_are_cut_apart() {
        let (local, journal) = (envelope("syslog"), envelope("journal"));
        assert_eq!(local.first(b"one\ntwo\n"), (b"one".as_slice(), b"two\n".as_slice()));
        assert_eq!(local.first(b"two\n"), (b"two".as_slice(), b"".as_slice()));
        assert_eq!(journal.first(b"A=1\nB=2\n\nA=3\n\n"), (b"A=1\nB=2\n".as_slice(), b"A=3\n\n".as_slice()));
        assert_eq!(journal.first(b"A=3\n\n"), (b"A=3\n".as_slice(), b"".as_slice()));
        assert_eq!((local.count(b"one\ntwo\n"), journal.count(b"A=1\nB=2\n\nA=3\n\n")), (2, 2));
    }

    #[test]
    fn names_that_the_journal_would_drop_are_left_out() {
        assert_eq!(journal_name("queued_ms").as_deref(), Some("TAILRACE_QUEUED_MS"));
        assert_eq!(journal_name("x-id"), None);
        assert_eq!(journal_name(&"a".repeat(60)), None);
    }
}
