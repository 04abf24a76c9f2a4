//! The atoms of a format, by the names that operators write: facts about the request, and the fields of its record.
//!
//! To add one: a row in [`OF_REQUEST`], or a field of the record, see `record.rs`.

use std::net::IpAddr;

use tailrace_http::request_head::Version;

use crate::record::{FIELDS, Record, Value};
use crate::shown_request::ShownRequest;

/// The facts of a finished request from which its line is made.
pub struct LineFacts<'a> {
    /// The request.
    pub request: ShownRequest<'a>,
    /// The head of the response as it was sent; empty when none was.
    pub response: &'a [u8],
    /// Its record.
    pub record: &'a Record,
    /// The values of [`Format::variables`](super::Format::variables) in `environ`. Empty where the application was not
    /// called.
    pub variables: &'a [Option<Vec<u8>>],
    /// The number of the worker.
    pub worker: u32,
}

/// The value of an atom.
pub(super) enum Fact<'a> {
    /// The end of the response, RFC 3339.
    Time,
    /// The end of the response in seconds since 1970.
    Seconds,
    Client(Option<IpAddr>),
    Text(&'a [u8]),
    Of(Value),
}

struct OfRequest {
    name: &'static str,
    /// In Markdown; links are relative to docs/reference.
    help: &'static str,
    fact: for<'a> fn(&LineFacts<'a>) -> Fact<'a>,
}

/// The atoms that the record does not have.
const OF_REQUEST: &[OfRequest] = &[
    OfRequest { name: "time", help: "time when the response ended (RFC 3339, UTC)", fact: |_| Fact::Time },
    OfRequest {
        name: "client",
        help: "client address; `-` on a UNIX socket",
        fact: |entry| Fact::Client(entry.request.peer.client.map(|peer| peer.ip())),
    },
    OfRequest { name: "method", help: "request method", fact: |entry| Fact::Text(entry.request.method()) },
    OfRequest { name: "target", help: "request target as sent", fact: |entry| Fact::Text(entry.request.target()) },
    OfRequest {
        name: "path",
        help: "the target's path, still percent-encoded",
        fact: |entry| Fact::Text(entry.request.head.path.of(entry.request.bytes)),
    },
    OfRequest {
        name: "query",
        help: "the target's query, without the question mark",
        fact: |entry| Fact::Text(entry.request.query()),
    },
    OfRequest {
        name: "protocol",
        help: "`HTTP/1.1` or `HTTP/1.0`",
        fact: |entry| Fact::Text(protocol(&entry.request)),
    },
    OfRequest {
        name: "host",
        help: "`Host` header",
        fact: |entry| {
            Fact::Text(match entry.request.peer.host {
                Some(host) => host.of(entry.request.bytes),
                None => entry.request.field(b"host"),
            })
        },
    },
    OfRequest { name: "referer", help: "`Referer` header", fact: |entry| Fact::Text(entry.request.field(b"referer")) },
    OfRequest {
        name: "user_agent",
        help: "`User-Agent` header",
        fact: |entry| Fact::Text(entry.request.field(b"user-agent")),
    },
    OfRequest {
        name: "worker",
        help: "worker number, from 1",
        fact: |entry| Fact::Of(Value::Number(Some(entry.worker.into()).filter(|worker| *worker > 0))),
    },
    OfRequest { name: "ended", help: "time when the response ended, in seconds since 1970", fact: |_| Fact::Seconds },
    OfRequest {
        name: "id",
        help: "[ID of the request](../guides/request-ids.md) (`--request-id`)",
        fact: |entry| Fact::Text(entry.request.id),
    },
    OfRequest {
        name: "trace",
        help: "trace ID of the request's `traceparent` header, if the header is valid",
        fact: |entry| Fact::Text(entry.request.trace().unwrap_or_default()),
    },
];

/// What `{name}` stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atom(usize);

impl Atom {
    /// All of them, in the order of a JSON line.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..OF_REQUEST.len() + FIELDS.len()).map(Self)
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::all().find(|atom| atom.name() == name)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        OF_REQUEST.get(self.0).map_or_else(|| FIELDS[self.0 - OF_REQUEST.len()].name, |row| row.name)
    }

    /// What it means, in Markdown.
    #[must_use]
    pub fn help(self) -> &'static str {
        OF_REQUEST.get(self.0).map_or_else(|| FIELDS[self.0 - OF_REQUEST.len()].help, |row| row.help)
    }

    #[inline]
    pub(super) fn of<'a>(self, entry: &LineFacts<'a>) -> Fact<'a> {
        match OF_REQUEST.get(self.0) {
            Some(row) => (row.fact)(entry),
            None => Fact::Of((FIELDS[self.0 - OF_REQUEST.len()].value)(entry.record)),
        }
    }
}

pub(super) fn protocol(request: &ShownRequest<'_>) -> &'static [u8] {
    match request.head.version {
        Version::Http10 => b"HTTP/1.0",
        Version::Http11 => b"HTTP/1.1",
    }
}
