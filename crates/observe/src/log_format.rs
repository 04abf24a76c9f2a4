//! The format of a line of the access log. It is parsed once into parts, and rendered for each request.
//!
//! Formats: `common`, `combined` (those of Apache httpd), `json` (one object per line, with all atoms), `json` followed by
//! the atoms that the object has, such as `json {time} {status} {request:x-id}`, a text with atoms in braces, for example
//! `{client} {method} {target} {status} {duration_ms}` (`{{` and `}}` stand for braces), or a text with the atoms of
//! gunicorn, for example `%(h)s "%(r)s" %(s)s` (`%%` stands for a percent sign; see `percent`).
//!
//! A line is rendered by the thread that accounts for the response, so rendering reads no clock and allocates nothing
//! but the user of `Authorization: Basic`.

mod atoms;
mod fields;
mod parts;
mod percent;
mod spelling;
mod write;

use tailrace_os::process;

pub use self::atoms::Atom;
pub use self::atoms::LineFacts;
use self::atoms::{Fact, protocol};
use self::parts::{FormatPart, Variables, end_literal};
use self::spelling::nearest;
pub(crate) use self::write::Calendar;
use self::write::{push_client, push_decimal, push_escaped, push_json, push_millis, push_number};
use crate::record::Value;

/// A parsed format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    kind: FormatKind,
    variables: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum FormatKind {
    Json,
    /// An object with these members: what comes before the value, and the value.
    JsonOf(Vec<(String, FormatPart)>),
    Text(Vec<FormatPart>),
}

/// The names of formats.
const NAMES: &[&str] = &["combined", "common", "json"];
/// Apache httpd's format "common", in the atoms of `percent`; "combined" is this and [`REST`].
const COMMON: &str = "%(h)s - - %(t)s \"%(r)s\" %(s)s %(B)s";
const REST: &str = " \"%(f)s\" \"%(a)s\"";

impl Format {
    /// Parses a format.
    ///
    /// # Errors
    /// One line that names what is wrong, and the most similar known word.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut variables = Variables::default();
        let kind = match (text, text.strip_prefix("json ")) {
            ("json", _) => FormatKind::Json,
            (_, Some(members)) => FormatKind::JsonOf(parse_members(members, &mut variables)?),
            _ => {
                let parts = match text {
                    "common" => percent::parse(COMMON, &mut variables)?,
                    "combined" => percent::parse(&[COMMON, REST].concat(), &mut variables)?,
                    _ if text.contains("%(") => percent::parse(text, &mut variables)?,
                    _ => parse_braces(text, &mut variables)?.into_iter().map(|(_, part)| part).collect(),
                };
                if parts.iter().all(|part| matches!(part, FormatPart::Literal(_))) {
                    return Err(nothing_in(text));
                }
                FormatKind::Text(parts)
            }
        };
        if text.contains(['\n', '\r']) {
            return Err("a format must not have a line end: a line ends with one without it".to_owned());
        }
        Ok(Self { kind, variables: variables.0 })
    }

    /// The keys of `environ` whose values a line needs, in the order in which it takes them.
    #[must_use]
    pub fn variables(&self) -> &[String] {
        &self.variables
    }

    /// Appends the line of one request, without a line end. `calendar` is set to the end of the response.
    pub(crate) fn render(&self, entry: &LineFacts<'_>, calendar: &Calendar, out: &mut Vec<u8>) {
        match &self.kind {
            FormatKind::Json => render_json(entry, calendar, out),
            FormatKind::JsonOf(members) => {
                out.push(b'{');
                for (before, part) in members {
                    out.extend_from_slice(before.as_bytes());
                    render_member(part, entry, calendar, out);
                }
                out.push(b'}');
            }
            FormatKind::Text(parts) => parts.iter().for_each(|part| render_part(part, entry, calendar, out)),
        }
    }

    /// Appends a line, without a line end, which says that `missing` lines were dropped here.
    pub(crate) fn render_gap(&self, missing: u64, out: &mut Vec<u8>) {
        let (before, after): (&str, &str) = match &self.kind {
            FormatKind::Json | FormatKind::JsonOf(_) => ("{\"dropped\": ", "}"),
            FormatKind::Text(_) => ("# ", " lines dropped: the log could not be written in time"),
        };
        out.extend_from_slice(before.as_bytes());
        push_number(missing, out);
        out.extend_from_slice(after.as_bytes());
    }
}

/// The error for a text without an atom.
fn nothing_in(text: &str) -> String {
    let forms = "common, combined, json, or a text with atoms such as {client} or %(h)s";
    match nearest(text, NAMES.iter().copied()) {
        Some(name) => format!("unknown format; did you mean {name}? Choose from {forms}"),
        None => format!("it has no atom, so all lines would be the same; choose from {forms}"),
    }
}

/// The atoms of a line: what `json` is followed by.
fn parse_members(text: &str, variables: &mut Variables) -> Result<Vec<(String, FormatPart)>, String> {
    let mut members: Vec<(String, FormatPart)> = Vec::new();
    for (name, part) in parse_braces(text, variables)? {
        match part {
            FormatPart::Literal(text) if text.bytes().all(|byte| byte == b' ' || byte == b',') => {}
            FormatPart::Literal(text) => {
                return Err(format!(
                    "only atoms such as {{status}} may follow json, and {:?} is not an atom",
                    text.trim()
                ));
            }
            part => {
                let mut before = if members.is_empty() { Vec::new() } else { b", ".to_vec() };
                push_json(name.as_bytes(), &mut before);
                before.extend_from_slice(b": ");
                members.push((String::from_utf8_lossy(&before).into_owned(), part));
            }
        }
    }
    if members.is_empty() { Err(nothing_in(text)) } else { Ok(members) }
}

/// The parts of a text, each atom with what stands in its braces.
fn parse_braces(text: &str, variables: &mut Variables) -> Result<Vec<(String, FormatPart)>, String> {
    let mut found = Vec::new();
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
                        None => return Err(format!("'{{{name}' has no closing brace")),
                    }
                }
                let part = match name.split_once(':') {
                    Some(("environ", key)) if !key.is_empty() => Some(variables.part(key, percent::variable(key))),
                    Some((message, field)) => field_of(message, field),
                    None => Atom::named(&name).map(FormatPart::Atom),
                };
                let part = part.ok_or_else(|| unknown_atom(&name))?;
                found.extend(end_literal(&mut literal).map(|part| (String::new(), part)));
                found.push((name, part));
            }
            '}' => return Err("'}' without '{' (write '}}' for a brace)".to_owned()),
            other => literal.push(other),
        }
    }
    found.extend(end_literal(&mut literal).map(|part| (String::new(), part)));
    Ok(found)
}

/// A field of a message: `request:x-request-id`, `response:content-type`.
fn field_of(message: &str, field: &str) -> Option<FormatPart> {
    let field = field.to_ascii_lowercase();
    match message {
        _ if !percent::is_field_name(&field) => None,
        "request" => Some(FormatPart::RequestField(field)),
        "response" => Some(FormatPart::ResponseField(field)),
        _ => None,
    }
}

fn unknown_atom(name: &str) -> String {
    let known = || Atom::all().map(Atom::name);
    let hint = nearest(name, known()).map(|name| format!("; did you mean {{{name}}}?")).unwrap_or_default();
    let fields = "write fields as {request:NAME} and {response:NAME}, and keys of environ as {environ:NAME}";
    format!("unknown atom {{{name}}}{hint}; {fields}; or choose from {}", known().collect::<Vec<_>>().join(", "))
}

fn render_part(part: &FormatPart, entry: &LineFacts<'_>, calendar: &Calendar, out: &mut Vec<u8>) {
    let LineFacts { request, response, record, variables, .. } = entry;
    match part {
        FormatPart::Literal(text) => out.extend_from_slice(text.as_bytes()),
        FormatPart::Atom(atom) => render_text(*atom, entry, calendar, out),
        FormatPart::ClfTime => out.extend_from_slice(calendar.clf()),
        FormatPart::RequestLine => {
            push_or_dash(request.method(), out);
            out.push(b' ');
            push_or_dash(request.target(), out);
            out.push(b' ');
            out.extend_from_slice(protocol(request));
        }
        FormatPart::User => fields::push_user(request, out),
        FormatPart::Query => push_escaped(request.query(), out),
        FormatPart::Duration(unit) => {
            let units = record.lasted().as_nanos() / u128::from(*unit);
            push_number(u64::try_from(units).unwrap_or(u64::MAX), out);
        }
        FormatPart::Seconds => {
            let taken = record.lasted();
            push_number(taken.as_secs(), out);
            out.push(b'.');
            push_decimal(taken.subsec_micros(), 6, out);
        }
        FormatPart::Process => {
            out.push(b'<');
            push_number(u64::from(process::id()), out);
            out.push(b'>');
        }
        FormatPart::Port => match request.peer.client {
            Some(peer) if peer.port() > 0 => push_number(u64::from(peer.port()), out),
            _ => out.push(b'-'),
        },
        FormatPart::RequestField(name) => push_or_dash(request.field(name.as_bytes()), out),
        FormatPart::ResponseField(name) => push_or_dash(fields::of_response(response, name.as_bytes()), out),
        FormatPart::Variable(number, otherwise) => match (variables.get(*number), otherwise) {
            (Some(value), _) => push_or_dash(value.as_deref().unwrap_or_default(), out),
            (None, Some(part)) => render_part(part, entry, calendar, out),
            (None, None) => out.push(b'-'),
        },
    }
}

/// The value of a member of an object.
fn render_member(part: &FormatPart, entry: &LineFacts<'_>, calendar: &Calendar, out: &mut Vec<u8>) {
    match part {
        FormatPart::Atom(atom) => push_fact(atom.of(entry), calendar, out),
        FormatPart::RequestField(name) => push_json(entry.request.field(name.as_bytes()), out),
        FormatPart::ResponseField(name) => push_json(fields::of_response(entry.response, name.as_bytes()), out),
        FormatPart::Variable(number, otherwise) => match (entry.variables.get(*number), otherwise) {
            (Some(Some(value)), _) => push_json(value, out),
            (None, Some(part)) => render_member(part, entry, calendar, out),
            _ => out.extend_from_slice(b"null"),
        },
        FormatPart::Query => push_json(entry.request.query(), out),
        // What only gunicorn's notation has, without text of a client.
        _ => {
            out.push(b'"');
            render_part(part, entry, calendar, out);
            out.push(b'"');
        }
    }
}

fn push_or_dash(bytes: &[u8], out: &mut Vec<u8>) {
    if bytes.is_empty() {
        out.push(b'-');
    } else {
        push_escaped(bytes, out);
    }
}

fn render_text(atom: Atom, entry: &LineFacts<'_>, calendar: &Calendar, out: &mut Vec<u8>) {
    match atom.of(entry) {
        Fact::Time => calendar.push_rfc3339(out),
        Fact::Seconds => calendar.push_seconds(out),
        Fact::Client(Some(client)) => push_client(client, out),
        Fact::Text(bytes) => push_or_dash(bytes, out),
        Fact::Of(Value::Word(Some(word))) => out.extend_from_slice(word.as_bytes()),
        Fact::Of(Value::Status(status @ 1..)) => push_number(status.into(), out),
        Fact::Of(Value::Number(Some(number))) => push_number(number, out),
        Fact::Of(Value::Time(Some(time))) => push_millis(time, out),
        Fact::Client(None) | Fact::Of(_) => out.push(b'-'),
    }
}

fn render_json(entry: &LineFacts<'_>, calendar: &Calendar, out: &mut Vec<u8>) {
    let mut before: &[u8] = b"{\"";
    for atom in Atom::all() {
        out.extend_from_slice(before);
        before = b", \"";
        out.extend_from_slice(atom.name().as_bytes());
        out.extend_from_slice(b"\": ");
        push_fact(atom.of(entry), calendar, out);
    }
    out.push(b'}');
}

fn push_fact(fact: Fact<'_>, calendar: &Calendar, out: &mut Vec<u8>) {
    match fact {
        Fact::Time => {
            out.push(b'"');
            calendar.push_rfc3339(out);
            out.push(b'"');
        }
        Fact::Seconds => calendar.push_seconds(out),
        Fact::Client(Some(client)) => {
            out.push(b'"');
            push_client(client, out);
            out.push(b'"');
        }
        Fact::Client(None) => out.extend_from_slice(b"\"-\""),
        Fact::Text(bytes) => push_json(bytes, out),
        Fact::Of(Value::Word(word)) => push_json(word.unwrap_or_default().as_bytes(), out),
        Fact::Of(Value::Status(status @ 1..)) => push_number(status.into(), out),
        Fact::Of(Value::Number(Some(number))) => push_number(number, out),
        Fact::Of(Value::Time(Some(time))) => push_millis(time, out),
        Fact::Of(_) => out.extend_from_slice(b"null"),
    }
}

/// The atoms as fields of the journal, with their names there. Time and process are fields of its own.
pub(crate) struct JournalFields(Vec<(Atom, String)>);

impl JournalFields {
    /// `name_of`: from the name of an atom to that of the field.
    pub(crate) fn new(name_of: impl Fn(&str) -> Option<String>) -> Self {
        let named = Atom::all().filter(|atom| !matches!(atom.name(), "time" | "ended"));
        Self(named.filter_map(|atom| Some((atom, name_of(atom.name())?))).collect())
    }

    /// Appends those that have a value, each after a line end, and cut to this many bytes.
    pub(crate) fn render(&self, entry: &LineFacts<'_>, calendar: &Calendar, most: usize, out: &mut Vec<u8>) {
        for (atom, name) in &self.0 {
            let start = out.len();
            out.push(b'\n');
            out.extend_from_slice(name.as_bytes());
            out.push(b'=');
            let value = out.len();
            render_text(*atom, entry, calendar, out);
            out.truncate(value + most);
            if &out[value..] == b"-" {
                out.truncate(start);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Calendar, Format, LineFacts};
    use crate::record::{Ending, Record};
    use crate::shown_request::testing::Request;
    use std::time::{Duration, Instant, UNIX_EPOCH};
    use tailrace_http::head::{HeadParser, HeadStep};
    use tailrace_http::limits::Limits;
    use tailrace_http::peer::Peer;
    use tailrace_http::request_head::RequestHead;

    fn request(bytes: &[u8]) -> Request {
        let mut head = RequestHead::default();
        assert!(matches!(HeadParser::default().parse(bytes, &Limits::default(), &mut head), HeadStep::Complete));
        let peer = Peer::of_socket(Some("192.0.2.7:99".parse().unwrap()), 0);
        Request { bytes: bytes.to_vec(), head, peer, ..Request::default() }
    }

    fn record() -> Record {
        let queued = Instant::now();
        let mut record = Record::new(queued);
        record.started = Some(queued + Duration::from_millis(1));
        record.finished = Some(queued + Duration::from_millis(3));
        record.drained = Some(queued + Duration::from_micros(2_003_004));
        record.status = 200;
        record.body_bytes = 4;
        record
    }

    fn line_of(format: &str, bytes: &[u8], record: &Record) -> String {
        let mut out = Vec::new();
        let mut calendar = Calendar::default();
        calendar.set(UNIX_EPOCH + Duration::from_secs(1_000_000_000));
        let response = b"HTTP/1.1 200 OK\r\nX-Id: a\"b\r\nContent-Length: 4\r\n\r\n";
        let request = request(bytes);
        let entry = LineFacts { request: request.shown(), response, record, variables: &[], worker: 3 };
        Format::parse(format).unwrap().render(&entry, &calendar, &mut out);
        String::from_utf8(out).unwrap()
    }

    /// The line of a request for which the application has set these values of the format's variables.
    fn line_with(format: &str, variables: &[Option<Vec<u8>>]) -> String {
        let mut out = Vec::new();
        let (request, record) = (request(GET), record());
        let entry = LineFacts { request: request.shown(), response: b"", record: &record, variables, worker: 3 };
        Format::parse(format).unwrap().render(&entry, &Calendar::default(), &mut out);
        String::from_utf8(out).unwrap()
    }

    fn line(format: &str, bytes: &[u8]) -> String {
        line_of(format, bytes, &record())
    }

    const GET: &[u8] = b"GET /a?b=\"c HTTP/1.1\r\nHost: x\r\nUser-Agent: u\xe4\"\r\n\r\n";

    #[test]
    fn combined_is_the_format_of_apache() {
        assert_eq!(
            line("combined", GET),
            "192.0.2.7 - - [09/Sep/2001:01:46:40 +0000] \"GET /a?b=\\\"c HTTP/1.1\" 200 4 \"-\" \"u\\xe4\\\"\""
        );
    }

    #[test]
    fn json_is_valid_whatever_the_client_sent() {
        let line = line("json", GET);
        assert!(line.starts_with("{\"time\": \"2001-09-09T01:46:40.000Z\", \"client\": \"192.0.2.7\""));
        assert!(line.contains("\"user_agent\": \"u\\u00e4\\\"\""), "{line}");
        assert!(line.contains("\"duration_ms\": 2003.004"), "{line}");
        assert!(line.ends_with("}"));
    }

    #[test]
    fn a_query_of_a_proxy_that_the_application_did_not_see_is_valid_json() {
        // HTTP refuses such a target, but a packet of uwsgi may have it.
        let mut request = request(GET);
        let place = request.bytes.iter().position(|&byte| byte == b'c').unwrap();
        request.bytes[place] = 0x1b;
        let record = record();
        let entry = LineFacts { request: request.shown(), response: b"", record: &record, variables: &[], worker: 3 };
        let mut out = Vec::new();
        Format::parse("json {environ:QUERY_STRING}").unwrap().render(&entry, &Calendar::default(), &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), r#"{"environ:QUERY_STRING": "b=\"\u001b"}"#);
    }

    #[test]
    fn a_line_end_in_a_format_is_refused() {
        for format in ["{client}\n{status}", "%(h)s\r"] {
            assert!(Format::parse(format).unwrap_err().contains("line end"), "{format}");
        }
    }

    #[test]
    fn what_is_not_known_is_a_dash_or_null() {
        let record = Record { status: 0, started: None, ending: Ending::Cut, ..record() };
        assert_eq!(line_of("{status} {queued_ms} {ending} {referer}", GET, &record), "- - cut -");
        let json = line_of("json", GET, &record);
        assert!(json.contains("\"status\": null, ") && json.contains("\"queued_ms\": null, "), "{json}");
    }

    #[test]
    fn a_format_with_braces() {
        assert_eq!(line("{{{method}}} {path} {query} {app_ms}", GET), "{GET} /a b=\\\"c 2.000");
        assert_eq!(line("{{clf_time}} {status}", GET), "{clf_time} 200");
        assert_eq!(line("{request:User-Agent} {request:x} {response:x-id}", GET), "u\\xe4\\\" - a\\\"b");
    }

    #[test]
    fn a_wrong_format_says_what_is_wrong() {
        for (format, said) in [
            ("{metod}", "unknown atom {metod}; did you mean {method}?"),
            ("{method", "closing"),
            ("{request:}", "write fields as {request:NAME}"),
            ("{request:a b}", "write fields as {request:NAME}"),
            ("{environ:}", "keys of environ as {environ:NAME}"),
            ("method}", "without"),
            ("jsn", "did you mean json?"),
            ("Combined", "did you mean combined?"),
            ("", "no atom"),
            ("%h %l %u", "no atom"),
            ("%(z)s", "unknown atom %(z)s"),
            ("%(duration)s", "unknown atom %(duration)s"),
            ("%(h", "%(h"),
            ("%(h)", "%(h)s"),
            ("%(h)s %", "%%"),
            ("%(h)d", "%(h)s"),
            ("%({x}z)s", "unknown atom %({x}z)s"),
            ("%({x)s", "closing"),
            ("%({a b}i)s", "a b"),
            ("%({}e)s", "is not a field name"),
            ("json {metod}", "did you mean {method}?"),
            ("json status={status}", "\"status=\" is not an atom"),
            ("json ", "no atom"),
            ("%(s)s {client}", "{client}"),
        ] {
            let fault = Format::parse(format).unwrap_err();
            assert!(fault.contains(said), "{format}: {fault}");
        }
    }

    #[test]
    fn the_atoms_of_gunicorn() {
        const POST: &[u8] = b"POST /a%20b?c=d HTTP/1.0\r\nHost: x\r\nReferer: r\r\nUser-Agent: u\r\n\
            Authorization: Basic YWxpY2U6c2VjcmV0\r\nX-One: 1\r\nContent-Type: t/u\r\n\r\n";
        for (format, text) in [
            ("%(h)s %(l)s %(u)s %(t)s \"%(r)s\" %(s)s %(b)s \"%(f)s\" \"%(a)s\"", {
                "192.0.2.7 - alice [09/Sep/2001:01:46:40 +0000] \"POST /a%20b?c=d HTTP/1.0\" 200 4 \"r\" \"u\""
            }),
            ("%(m)s %(U)s %(q)s %(H)s %(B)s", "POST /a%20b c=d HTTP/1.0 4"),
            ("%(T)s %(M)s %(D)s %(L)s", "2 2003 2003004 2.003004"),
            ("%(T)d %(M)d %(D)d", "2 2003 2003004"),
            ("%({X-One}i)s %({x-two}i)s %({x-id}o)s %({content-length}o)s %({x}o)s", "1 - a\\\"b 4 -"),
            ("%({REMOTE_ADDR}e)s %({REMOTE_PORT}e)s %({http_x_one}e)s %({CONTENT_TYPE}e)s", "192.0.2.7 99 1 t/u"),
            ("100%% {%(s)s}", "100% {200}"),
        ] {
            assert_eq!(line(format, POST), text);
        }
        assert_eq!(line("%(U)s?%(q)s %(u)s", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "/? -");
        assert_eq!(line("%(p)s", GET), format!("<{}>", std::process::id()));
    }

    #[test]
    fn an_object_has_the_members_that_the_format_names() {
        assert_eq!(
            line(
                "json {status} {duration_ms}, {request:User-Agent} {response:x-id} {ended} {environ:REMOTE_ADDR}",
                GET
            ),
            "{\"status\": 200, \"duration_ms\": 2003.004, \"request:User-Agent\": \"u\\u00e4\\\"\", \
             \"response:x-id\": \"a\\\"b\", \"ended\": 1000000000.000, \"environ:REMOTE_ADDR\": \"192.0.2.7\"}"
        );
    }

    #[test]
    fn the_worker_and_every_time_of_a_record_have_an_atom() {
        assert_eq!(line("{worker} {ended} {drained_ms}", GET), "3 1000000000.000 2002.004");
    }

    #[test]
    fn keys_of_environ_are_what_the_application_made_of_them() {
        let format = "{environ:app.user} {environ:REMOTE_ADDR} {environ:app.user} {environ:other}";
        assert_eq!(Format::parse(format).unwrap().variables(), ["app.user", "REMOTE_ADDR", "other"]);
        let set = [Some(b"j\no\xe9".to_vec()), Some(b"10.0.0.1".to_vec()), None];
        assert_eq!(line_with(format, &set), "j\\x0ao\\xe9 10.0.0.1 j\\x0ao\\xe9 -");
        // The application was not called.
        assert_eq!(line_with(format, &[]), "- 192.0.2.7 - -");
        assert_eq!(line_with("%({app.user}e)s", &[Some(b"joe".to_vec())]), "joe");
        assert_eq!(
            line_with("json {environ:app.user} {environ:other}", &[Some(b"\xe9".to_vec()), None]),
            "{\"environ:app.user\": \"\\u00e9\", \"environ:other\": null}"
        );
        assert_eq!(line_with("json {environ:app.user}", &[]), "{\"environ:app.user\": null}");
    }

    #[test]
    fn no_user_breaks_a_line() {
        // A line end and quotes, bytes that are not UTF-8, an empty user, and what is not base64.
        for (given, user) in [("CmEgIjpi", "\\x0aa \\\""), ("/w==", "\\xff"), ("Og==", "-"), ("!!!!", "-"), ("", "-")] {
            let head = format!("GET / HTTP/1.1\r\nHost: x\r\nAuthorization: basic {given}\r\n\r\n");
            assert_eq!(line("%(u)s", head.as_bytes()), user);
        }
    }
}
