//! The instructions in a response by which an application has its connection held: the header fields of GRIP (Generic
//! Realtime Intermediary Protocol, as documented by Pushpin).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// Maximum number of channels of a connection.
pub const MAX_CHANNELS: usize = 100;
/// Maximum length of the name of a channel, in bytes.
pub const MAX_NAME: usize = 1024;
/// How long a response is held if `Grip-Timeout` is missing, in seconds.
const RESPONSE_TIMEOUT: u32 = 55;
/// How often a connection is kept alive if `Grip-Keep-Alive` has no time, in seconds.
const KEEP_ALIVE: u32 = 55;
/// Times are at most this long, in seconds.
const LONGEST: u32 = 7 * 24 * 3600;

/// How a connection is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// The response has begun; what is published is appended to it.
    Stream,
    /// The response is the first publication, or after a time what the application has returned (long polling).
    Response,
    /// A WebSocket, whose messages the application gets as requests.
    WebSocket,
}

/// A channel of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    /// The name of the channel.
    pub channel: String,
    /// The id of the last publication that the client has, if its publications are to be checked for gaps.
    pub last_id: Option<String>,
    /// What is left out or changed for this connection.
    pub filters: Filters,
}

/// The filters of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filters {
    /// `skip-users`: publications that leave out the user of the connection (`Grip-Set-Meta: user=...`).
    pub skip_users: bool,
    /// `skip-self`: publications of this connection.
    pub skip_self: bool,
    /// `require-sub`: only publications that require a channel which the connection has.
    pub require_subscription: bool,
    /// `build-id`: `%I` is replaced by an id that has the last id of each channel.
    pub build_id: bool,
}

impl Filters {
    pub(crate) fn add(&mut self, name: &str) -> Result<(), String> {
        match name {
            "skip-self" => self.skip_self = true,
            "skip-users" => self.skip_users = true,
            "require-sub" => self.require_subscription = true,
            "build-id" => self.build_id = true,
            _ => return Err(format!("Grip-Channel has the filter {name:?}, which is not supported")),
        }
        Ok(())
    }

    /// None is set.
    pub(crate) fn are_none(self) -> bool {
        self == Self::default()
    }
}

/// What a connection is sent that has been sent nothing for a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepAlive {
    /// The bytes.
    #[serde(with = "serde_bytes")]
    pub content: Vec<u8>,
    /// The time, in seconds.
    pub seconds: u32,
}

/// The instructions of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instructions {
    /// `None`: the connection is not held.
    pub mode: Option<Mode>,
    /// The channels of the connection.
    pub subscriptions: Vec<Subscription>,
    /// Keeps a stream alive.
    pub keep_alive: Option<KeepAlive>,
    /// How long a response is held, in seconds.
    pub timeout: u32,
    /// Values of the connection, for filters.
    pub meta: Vec<(String, String)>,
    /// Where more content for the client is found.
    pub next: Option<String>,
    /// The status in place of that of the response, since frameworks remove fields from a 304.
    pub status: Option<u16>,
}

/// True for the names of header fields that are instructions.
#[must_use]
pub fn is_instruction(name: &[u8]) -> bool {
    name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case(b"grip-"))
}

impl Instructions {
    /// Reads the fields of a response. Other fields are passed over.
    ///
    /// # Errors
    /// A sentence that says which field is wrong, and how.
    pub fn parse<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Self, String> {
        let mut read = Self { timeout: RESPONSE_TIMEOUT, ..Self::default() };
        for (name, value) in fields {
            match name.to_ascii_lowercase().as_str() {
                "grip-hold" => {
                    read.mode = match value.trim() {
                        "stream" => Some(Mode::Stream),
                        "response" => Some(Mode::Response),
                        other => return Err(format!("Grip-Hold is {other:?}, and must be stream or response")),
                    }
                }
                "grip-channel" => read.subscribe(value)?,
                "grip-keep-alive" => read.keep_alive = keep_alive(value)?,
                "grip-timeout" => read.timeout = seconds("Grip-Timeout", value)?,
                "grip-set-meta" => {
                    for part in split(value, ',') {
                        let (name, value) = parameter(part);
                        read.meta.push((name.to_ascii_lowercase(), value));
                    }
                }
                "grip-link" => read.link(value)?,
                "grip-status" => {
                    let status = value.trim().parse().ok().filter(|status| (200..600).contains(status));
                    read.status = Some(status.ok_or_else(|| format!("Grip-Status is not a status code: {value:?}"))?);
                }
                _ => {}
            }
        }
        if read.mode.is_some() && read.subscriptions.is_empty() {
            return Err(String::from("Grip-Hold needs Grip-Channel with the name of a channel"));
        }
        Ok(read)
    }

    /// Checks that the response can be held so. `is_encoded`: it has `Content-Encoding`.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it.
    pub fn check(&self, status: u16, is_encoded: bool) -> Result<(), String> {
        if !matches!(self.mode, None | Some(Mode::Stream)) {
            return Ok(());
        }
        let status = self.status.unwrap_or(status);
        if matches!(status, 204 | 205 | 304) {
            return Err(format!("cannot hold a stream: a response with status {status} has no body"));
        }
        if is_encoded {
            return Err(String::from(
                "a stream is held whose beginning is compressed (Content-Encoding), and what is published is not; exclude \
                 it from compression",
            ));
        }
        Ok(())
    }

    /// True when the last ids of channels matter to the client.
    pub(crate) fn tracks_ids(&self) -> bool {
        self.subscriptions.iter().any(|subscription| subscription.filters.build_id)
    }

    fn subscribe(&mut self, value: &str) -> Result<(), String> {
        for part in split(value, ',') {
            let mut parts = split(part, ';');
            let channel = channel_name(parts.next().unwrap_or_default())?;
            let mut subscription = Subscription { channel, ..Subscription::default() };
            for (name, value) in parts.map(parameter) {
                match name.as_str() {
                    "prev-id" => subscription.last_id = Some(value),
                    "filter" => subscription.filters.add(&value)?,
                    _ => {}
                }
            }
            if self.subscriptions.len() == MAX_CHANNELS {
                return Err(format!("Grip-Channel contains more than {MAX_CHANNELS} channels"));
            }
            self.subscriptions.push(subscription);
        }
        Ok(())
    }

    fn link(&mut self, value: &str) -> Result<(), String> {
        for part in split(value, ',') {
            let mut parts = split(part, ';');
            let target = parts.next().unwrap_or_default();
            if !parts.map(parameter).any(|(name, value)| name == "rel" && value == "next") {
                continue;
            }
            let target = target.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
            // An absolute URL could lead a request, with the cookies of the client, to another server.
            let target = target.filter(|target| target.starts_with('/') && !target.starts_with("//"));
            let is_plain = |target: &&str| target.bytes().all(|octet| octet.is_ascii_graphic());
            let target = target.filter(is_plain).ok_or("Grip-Link must have a path, such as </events?page=2>")?;
            self.next = Some(target.to_owned());
        }
        Ok(())
    }
}

/// Checks the name of a channel.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn channel_name(name: &str) -> Result<String, String> {
    let name = name.trim();
    if name.is_empty() || name.len() > MAX_NAME || name.bytes().any(|octet| octet.is_ascii_control()) {
        return Err(format!("the name of a channel must have 1 to {MAX_NAME} bytes without control characters"));
    }
    Ok(name.to_owned())
}

/// Splits a value, but not inside quotes.
pub(crate) fn split(value: &str, at: char) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    value
        .split(move |found| {
            let ends = found == at && !is_quoted;
            if found == '"' && !is_escaped {
                is_quoted = !is_quoted;
            }
            is_escaped = found == '\\' && !is_escaped;
            ends
        })
        .map(str::trim)
        .filter(|part| !part.is_empty())
}

/// The name and the value of `name=value` or `name="value"`.
pub(crate) fn parameter(text: &str) -> (String, String) {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    let value = value.trim();
    let quoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let value = quoted.map_or_else(|| value.to_owned(), |inner| inner.replace("\\\"", "\"").replace("\\\\", "\\"));
    (name.trim().to_ascii_lowercase(), value)
}

fn seconds(field: &str, value: &str) -> Result<u32, String> {
    let number = value.trim().parse().ok().filter(|number| (1..=LONGEST).contains(number));
    number.ok_or_else(|| format!("{field} is {value:?}, and must be a number of seconds from 1 to {LONGEST}"))
}

fn keep_alive(value: &str) -> Result<Option<KeepAlive>, String> {
    // The content may have anything but a semicolon. It is not trimmed: a line end may be all of it.
    let (content, rest) = value.split_once(';').unwrap_or((value, ""));
    let (mut format, mut time) = (String::from("raw"), KEEP_ALIVE);
    for (name, value) in split(rest, ';').map(parameter) {
        match name.as_str() {
            "format" => format = value,
            "timeout" => time = seconds("Grip-Keep-Alive", &value)?,
            _ => {}
        }
    }
    let content = match format.as_str() {
        "raw" => content.as_bytes().to_vec(),
        "cstring" => unescaped(content).ok_or("Grip-Keep-Alive contains an escape other than \\n \\r \\t \\0 \\\\")?,
        "base64" => {
            STANDARD.decode(content.trim()).map_err(|fault| format!("Grip-Keep-Alive is not base64: {fault}"))?
        }
        _ => return Err(format!("Grip-Keep-Alive has the format {format:?}, not raw, cstring or base64")),
    };
    Ok(Some(KeepAlive { content, seconds: time }).filter(|made| !made.content.is_empty()))
}

fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut result = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        result.push(match byte {
            b'\\' => match bytes.next()? {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'0' => 0,
                b'\\' => b'\\',
                _ => return None,
            },
            other => other,
        });
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Filters, Instructions, KeepAlive, MAX_CHANNELS, Mode, Subscription, is_instruction};

    fn parse(fields: &[(&str, &str)]) -> Result<Instructions, String> {
        Instructions::parse(fields.iter().copied())
    }

    #[test]
    fn the_fields_that_django_grip_sends_are_read() {
        let read = parse(&[
            ("Content-Type", "text/event-stream"),
            ("Grip-Hold", "stream"),
            ("Grip-Channel", "events-a; prev-id=17; filter=build-id; filter=skip-users, user-3; filter=require-sub"),
            ("grip-keep-alive", "event: keep-alive\\ndata:\\n\\n; format=cstring; timeout=20"),
            ("Grip-Set-Meta", "id_format=\"a:%(events-a)s,b:\\\"x\", user=\"3\""),
            ("Grip-Link", "</events/?link=next&recover=true>; rel=next"),
            ("Grip-Status", "304"),
        ]);
        let filters = Filters { build_id: true, skip_users: true, ..Filters::default() };
        let first = Subscription { channel: "events-a".into(), last_id: Some("17".into()), filters };
        let filters = Filters { require_subscription: true, ..Filters::default() };
        let second = Subscription { channel: "user-3".into(), last_id: None, filters };
        let expected = Instructions {
            mode: Some(Mode::Stream),
            subscriptions: vec![first, second],
            keep_alive: Some(KeepAlive { content: b"event: keep-alive\ndata:\n\n".to_vec(), seconds: 20 }),
            timeout: 55,
            meta: vec![("id_format".into(), "a:%(events-a)s,b:\"x".into()), ("user".into(), "3".into())],
            next: Some("/events/?link=next&recover=true".into()),
            status: Some(304),
        };
        assert_eq!(read.unwrap(), expected);
    }

    #[test]
    fn a_stream_needs_a_body_to_which_something_can_be_appended() {
        let stream = parse(&[("Grip-Hold", "stream"), ("Grip-Channel", "a")]).unwrap();
        assert_eq!(stream.check(200, false), Ok(()));
        assert!(stream.check(204, false).unwrap_err().contains("204"));
        assert!(stream.check(200, true).unwrap_err().contains("Content-Encoding"));
        let response = parse(&[("Grip-Hold", "response"), ("Grip-Channel", "a"), ("Grip-Status", "304")]).unwrap();
        assert_eq!(response.check(200, true), Ok(()));
        let more = parse(&[("Grip-Link", "</more>; rel=next"), ("Grip-Status", "304")]).unwrap();
        assert!(more.check(200, false).unwrap_err().contains("304"));
    }

    #[test]
    fn a_keep_alive_has_one_of_three_formats() {
        let cases: [(&str, &[u8], u32); 4] = [
            ("\\n; format=cstring; timeout=30", b"\n", 30),
            (":\\n\\n; format=cstring", b":\n\n", 55),
            ("CgA=; format=base64; timeout=1", b"\n\0", 1),
            ("ping ", b"ping ", 55),
        ];
        for (value, content, seconds) in cases {
            let read = parse(&[("Grip-Keep-Alive", value)]).unwrap();
            assert_eq!(read.keep_alive, Some(KeepAlive { content: content.to_vec(), seconds }), "{value}");
        }
    }

    #[test]
    fn wrong_instructions_are_refused_with_the_name_of_their_field() {
        let long = "x".repeat(1025);
        let many = vec!["a"; MAX_CHANNELS + 1].join(", ");
        let cases = [
            ("Grip-Hold", "maybe"),
            ("Grip-Channel", "a; filter=x"),
            ("Grip-Channel", &many),
            ("Grip-Timeout", "0"),
            ("Grip-Timeout", "999999999"),
            ("Grip-Keep-Alive", "\\x; format=cstring"),
            ("Grip-Keep-Alive", "!; format=base64"),
            ("Grip-Keep-Alive", "x; format=y"),
            ("Grip-Status", "100"),
            ("Grip-Link", "<https://example.com/>; rel=next"),
            ("Grip-Link", "<//example.com/>; rel=next"),
            ("Grip-Link", "</a b>; rel=next"),
        ];
        for (name, value) in cases {
            assert!(parse(&[(name, value)]).unwrap_err().contains(name), "{name}: {value}");
        }
        assert!(parse(&[("Grip-Channel", &long)]).unwrap_err().contains("channel"));
        assert!(parse(&[("Grip-Hold", "stream")]).unwrap_err().contains("Grip-Channel"));
        assert!(parse(&[("Grip-Link", "<https://example.com/>; rel=prev")]).unwrap().next.is_none());
    }

    #[test]
    fn only_names_that_begin_with_grip_are_instructions() {
        assert!(is_instruction(b"Grip-Hold") && is_instruction(b"gRIP-x"));
        assert!(!is_instruction(b"Grip") && !is_instruction(b"Content-Type"));
    }
}
