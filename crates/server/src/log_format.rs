//! What a line of the access log looks like: a format is parsed once into parts, and rendered per request.
//!
//! Formats: `common`, `combined` (those of Apache httpd), `json` (one object a line), or a text of our own with
//! atoms in braces, for example `{client} {method} {target} {status} {duration_ms}`; `{{` and `}}` stand for braces.

use std::io::Write;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use penstock_http::head::{RequestHead, Version};

use crate::record::{Record, millis_between};
use crate::request::Endpoints;

/// One finished request, as the log sees it.
pub(crate) struct Entry {
    pub(crate) bytes: Vec<u8>,
    pub(crate) head: RequestHead,
    pub(crate) endpoints: Endpoints,
    pub(crate) record: Record,
    /// Wall clock at its end.
    pub(crate) at: SystemTime,
}

/// A parsed format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Json,
    Text(Vec<Part>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Atom(Atom),
}

macro_rules! atoms {
    ($($variant:ident $name:literal $what:literal),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Atom { $($variant),* }

        /// Names and meanings of all atoms, in the order of a JSON line.
        pub const ATOMS: &[(&str, &str)] = &[$(($name, $what)),*];
        const ALL: &[Atom] = &[$(Atom::$variant),*];

        impl Atom {
            fn named(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }

            fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

atoms! {
    Time "time" "end of the response, RFC 3339, UTC",
    Client "client" "address of the client, - on a UNIX socket",
    Method "method" "request method",
    Target "target" "request target as it was sent",
    Path "path" "the target's path, still percent-encoded",
    Query "query" "the target's query without the question mark",
    Protocol "protocol" "HTTP/1.0 or HTTP/1.1",
    Status "status" "status code",
    Bytes "bytes" "body bytes sent",
    DurationMs "duration_ms" "milliseconds from the complete request to the end of the response",
    QueuedMs "queued_ms" "milliseconds until an application thread took it",
    AppMs "app_ms" "milliseconds the application thread spent on it",
    FirstBlockMs "first_block_ms" "milliseconds from the call of the application to its first non-empty block",
    Blocks "blocks" "blocks the application made, empty ones aside",
    Writes "writes" "write system calls",
    WaitedMs "waited_ms" "milliseconds the application thread waited for the client to take what was queued",
    Delivery "delivery" "one-write, direct, gathered, sendfile or none: how the body travelled",
    Ending "ending" "complete, client-gone, broken or timed-out",
    Host "host" "the Host field",
    Referer "referer" "the Referer field",
    UserAgent "user_agent" "the User-Agent field",
}

/// The log line of Apache httpd called "combined"; `common` is its beginning.
const COMMON: &str = "{client} - - [{clf_time}] \"{method} {target} {protocol}\" {status} {bytes}";

impl Format {
    /// Parses a format.
    ///
    /// # Errors
    /// One line that names the unknown atom or the unclosed brace.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "json" => Ok(Self(Kind::Json)),
            "common" | "combined" => Ok(Self(Kind::Text(classic(text == "combined")))),
            _ => Ok(Self(Kind::Text(parse_parts(text)?))),
        }
    }

    /// Appends the line of one request, with its line end.
    pub(crate) fn render(&self, entry: &Entry, out: &mut Vec<u8>) {
        match &self.0 {
            Kind::Json => render_json(entry, out),
            Kind::Text(parts) => {
                for part in parts {
                    match part {
                        Part::Literal(text) if text == CLF_TIME => clf_time(entry.at, out),
                        Part::Literal(text) => out.extend_from_slice(text.as_bytes()),
                        Part::Atom(atom) => render_text(*atom, entry, out),
                    }
                }
            }
        }
        out.push(b'\n');
    }
}

/// Stands for the time in the classic formats, which no atom has.
const CLF_TIME: &str = "{clf_time}";

fn classic(combined: bool) -> Vec<Part> {
    let mut text = COMMON.to_owned();
    if combined {
        text.push_str(" \"{referer}\" \"{user_agent}\"");
    }
    let mut parts = Vec::new();
    for (index, side) in text.split(CLF_TIME).enumerate() {
        if index > 0 {
            parts.push(Part::Literal(CLF_TIME.to_owned()));
        }
        parts.extend(parse_parts(side).unwrap_or_default());
    }
    parts
}

fn parse_parts(text: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = text.chars().peekable();
    while let Some(char) = rest.next() {
        match char {
            '{' | '}' if rest.peek() == Some(&char) => {
                rest.next();
                literal.push(char);
            }
            '{' => {
                let mut name = String::new();
                loop {
                    match rest.next() {
                        Some('}') => break,
                        Some(other) => name.push(other),
                        None => return Err(format!("access log format: '{{{name}' has no closing brace")),
                    }
                }
                let Some(atom) = Atom::named(&name) else {
                    let known: Vec<&str> = ATOMS.iter().map(|(name, _)| *name).collect();
                    return Err(format!("access log format: unknown atom {{{name}}}; known are {}", known.join(", ")));
                };
                if !literal.is_empty() {
                    parts.push(Part::Literal(std::mem::take(&mut literal)));
                }
                parts.push(Part::Atom(atom));
            }
            '}' => return Err("access log format: '}' without '{' (write '}}' for a brace)".to_owned()),
            other => literal.push(other),
        }
    }
    if !literal.is_empty() {
        parts.push(Part::Literal(literal));
    }
    Ok(parts)
}

enum Value<'a> {
    Text(&'a [u8]),
    Owned(String),
    Number(u64),
    Millis(Option<f64>),
}

fn value(atom: Atom, entry: &Entry) -> Value<'_> {
    let Entry { bytes, head, record, .. } = entry;
    match atom {
        Atom::Time => Value::Owned(rfc3339(entry.at)),
        Atom::Client => Value::Owned(entry.endpoints.peer.map_or_else(|| "-".to_owned(), |peer| peer.ip().to_string())),
        Atom::Method => Value::Text(head.method.of(bytes)),
        Atom::Target => Value::Text(head.target.of(bytes)),
        Atom::Path => Value::Text(head.path.of(bytes)),
        Atom::Query => Value::Text(head.query.map_or(&[], |query| query.of(bytes))),
        Atom::Protocol => Value::Text(match head.version {
            Version::Http10 => b"HTTP/1.0",
            Version::Http11 => b"HTTP/1.1",
        }),
        Atom::Status => Value::Number(u64::from(record.status)),
        Atom::Bytes => Value::Number(record.body_bytes),
        Atom::DurationMs => Value::Millis(millis_between(Some(record.queued), Some(entry_end(record)))),
        Atom::QueuedMs => Value::Millis(millis_between(Some(record.queued), record.started)),
        Atom::AppMs => Value::Millis(millis_between(record.started, record.finished)),
        Atom::FirstBlockMs => Value::Millis(millis_between(record.started, record.first_block)),
        Atom::Blocks => Value::Number(record.blocks),
        Atom::Writes => Value::Number(u64::from(record.writes)),
        Atom::Delivery => Value::Text(record.path.name().as_bytes()),
        Atom::WaitedMs => Value::Millis(Some(record.waited.as_secs_f64() * 1e3)),
        Atom::Ending => Value::Text(record.ending.name().as_bytes()),
        Atom::Host => Value::Text(field(entry, b"host")),
        Atom::Referer => Value::Text(field(entry, b"referer")),
        Atom::UserAgent => Value::Text(field(entry, b"user-agent")),
    }
}

fn entry_end(record: &Record) -> Instant {
    record.drained.or(record.finished).unwrap_or(record.queued)
}

fn field<'a>(entry: &'a Entry, name: &[u8]) -> &'a [u8] {
    let found = entry.head.fields.iter().find(|field| field.name.of(&entry.bytes).eq_ignore_ascii_case(name));
    found.map_or(&[], |field| field.value.of(&entry.bytes))
}

fn render_text(atom: Atom, entry: &Entry, out: &mut Vec<u8>) {
    match value(atom, entry) {
        Value::Text(b"") => out.push(b'-'),
        Value::Text(bytes) => escape_text(bytes, out),
        Value::Owned(text) => escape_text(text.as_bytes(), out),
        // Writing into memory cannot fail.
        Value::Number(number) => drop(write!(out, "{number}")),
        Value::Millis(Some(time)) => drop(write!(out, "{time:.3}")),
        Value::Millis(None) => out.push(b'-'),
    }
}

/// Quotes, backslashes and everything that is not visible ASCII are escaped: a client cannot forge a line or a field.
fn escape_text(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b' '..=b'~' => out.push(byte),
            _ => drop(write!(out, "\\x{byte:02x}")),
        }
    }
}

fn render_json(entry: &Entry, out: &mut Vec<u8>) {
    out.push(b'{');
    for (index, atom) in ALL.iter().enumerate() {
        if index > 0 {
            out.extend_from_slice(b", ");
        }
        drop(write!(out, "\"{}\": ", atom.name()));
        match value(*atom, entry) {
            Value::Text(bytes) => escape_json(bytes, out),
            Value::Owned(text) => escape_json(text.as_bytes(), out),
            Value::Number(number) => drop(write!(out, "{number}")),
            Value::Millis(Some(time)) => drop(write!(out, "{time:.3}")),
            Value::Millis(None) => out.extend_from_slice(b"null"),
        }
    }
    out.push(b'}');
}

/// A JSON string; bytes from 0x80 on are taken as latin-1.
fn escape_json(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b' '..=b'~' => out.push(byte),
            _ => drop(write!(out, "\\u{byte:04x}")),
        }
    }
    out.push(b'"');
}

/// Year, month, day, hour, minute, second, millisecond in UTC.
fn civil(at: SystemTime) -> (i64, u32, u32, u32, u32, u32, u32) {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, rest) = ((since.as_secs() / 86_400) as i64, (since.as_secs() % 86_400) as u32);
    // Days since 1 March of year 0 of the proleptic Gregorian calendar, in eras of 400 years.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = (day_of_year - (153 * shifted_month + 2) / 5 + 1) as u32;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 } as u32;
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day, rest / 3_600, rest / 60 % 60, rest % 60, since.subsec_millis())
}

fn rfc3339(at: SystemTime) -> String {
    let (year, month, day, hour, minute, second, milli) = civil(at);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

fn clf_time(at: SystemTime, out: &mut Vec<u8>) {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (year, month, day, hour, minute, second, _) = civil(at);
    let month = MONTHS[(month as usize - 1) % 12];
    drop(write!(out, "{day:02}/{month}/{year}:{hour:02}:{minute:02}:{second:02} +0000"));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Entry, Format, civil, rfc3339};
    use crate::record::Record;
    use crate::request::Endpoints;
    use penstock_http::head::{HeadParser, HeadStep, RequestHead};
    use penstock_http::limits::Limits;
    use std::time::{Duration, Instant, UNIX_EPOCH};

    fn entry(bytes: &[u8]) -> Entry {
        let mut head = RequestHead::default();
        assert!(matches!(HeadParser::default().parse(bytes, &Limits::default(), &mut head), HeadStep::Complete));
        let queued = Instant::now();
        let mut record = Record::new(queued);
        record.started = Some(queued + Duration::from_millis(1));
        record.finished = Some(queued + Duration::from_millis(3));
        record.status = 200;
        record.body_bytes = 4;
        Entry {
            bytes: bytes.to_vec(),
            head,
            endpoints: Endpoints { peer: Some("192.0.2.7:99".parse().unwrap()), listener: 0 },
            record,
            at: UNIX_EPOCH + Duration::from_secs(1_000_000_000),
        }
    }

    fn line(format: &str, bytes: &[u8]) -> String {
        let mut out = Vec::new();
        Format::parse(format).unwrap().render(&entry(bytes), &mut out);
        String::from_utf8(out).unwrap()
    }

    const GET: &[u8] = b"GET /a?b=\"c HTTP/1.1\r\nHost: x\r\nUser-Agent: u\xe4\"\r\n\r\n";

    #[test]
    fn combined_is_that_of_apache() {
        assert_eq!(
            line("combined", GET),
            "192.0.2.7 - - [09/Sep/2001:01:46:40 +0000] \"GET /a?b=\\\"c HTTP/1.1\" 200 4 \"-\" \"u\\xe4\\\"\"\n"
        );
    }

    #[test]
    fn json_is_json_whatever_the_client_sent() {
        let line = line("json", GET);
        assert!(line.starts_with("{\"time\": \"2001-09-09T01:46:40.000Z\", \"client\": \"192.0.2.7\""));
        assert!(line.contains("\"user_agent\": \"u\\u00e4\\\"\""), "{line}");
        assert!(line.contains("\"duration_ms\": 3.000"), "{line}");
        assert!(line.ends_with("}\n"));
    }

    #[test]
    fn a_format_of_ones_own() {
        assert_eq!(line("{{{method}}} {path} {query} {app_ms}", GET), "{GET} /a b=\\\"c 2.000\n");
    }

    #[test]
    fn a_wrong_format_says_what_is_wrong() {
        assert!(Format::parse("{metod}").unwrap_err().contains("{metod}"));
        assert!(Format::parse("{method").unwrap_err().contains("closing"));
        assert!(Format::parse("method}").unwrap_err().contains("without"));
    }

    #[test]
    fn dates_of_the_calendar() {
        let at = |secs| UNIX_EPOCH + Duration::from_secs(secs);
        assert_eq!(civil(at(951_782_400)).2, 29); // 29 February 2000
        assert_eq!(rfc3339(at(4_107_542_399)), "2100-02-28T23:59:59.000Z");
        assert_eq!(rfc3339(at(4_107_542_400)), "2100-03-01T00:00:00.000Z");
    }
}
