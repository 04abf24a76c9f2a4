//! What the holder and the application tell each other about a WebSocket: bodies of the type
//! `application/websocket-events` (Pushpin, "WebSocket-over-HTTP").
//!
//! An event is a line with its name, or with its name and the size of its content in hexadecimal digits, which follows with
//! a line end.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// The type of the bodies.
pub(crate) const MEDIA_TYPE: &str = "application/websocket-events";
/// Maximum number of events in a body.
const MAX_EVENTS: usize = 10_000;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Event {
    pub(crate) name: String,
    #[serde(with = "serde_bytes")]
    pub(crate) content: Option<Vec<u8>>,
}

impl Event {
    pub(crate) fn of(name: &str) -> Self {
        Self { name: name.to_owned(), content: None }
    }

    pub(crate) fn with(name: &str, content: Vec<u8>) -> Self {
        Self { name: name.to_owned(), content: Some(content) }
    }

    /// Bytes that it occupies, about.
    pub(crate) fn size(&self) -> usize {
        size_of::<Self>() + self.content.as_ref().map_or(0, Vec::capacity)
    }
}

pub(crate) fn encode(events: &VecDeque<Event>) -> Vec<u8> {
    let mut body = Vec::new();
    for Event { name, content } in events {
        body.extend_from_slice(name.as_bytes());
        if let Some(content) = content {
            body.extend_from_slice(format!(" {:x}\r\n", content.len()).as_bytes());
            body.extend_from_slice(content);
        }
        body.extend_from_slice(b"\r\n");
    }
    body
}

/// `None`: it is malformed.
pub(crate) fn decode(body: &[u8]) -> Option<Vec<Event>> {
    let mut events = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let line = std::str::from_utf8(&rest[..end]).ok()?;
        rest = &rest[end + 2..];
        let event = match line.split_once(' ') {
            None => Event::of(line),
            Some((name, size)) => {
                let size = usize::from_str_radix(size, 16).ok()?;
                let content = rest.get(..size)?.to_vec();
                rest = rest[size..].strip_prefix(b"\r\n")?;
                Event::with(name, content)
            }
        };
        events.push(event);
        if events.len() > MAX_EVENTS {
            return None;
        }
    }
    Some(events)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Event, decode, encode};

    #[test]
    fn events_are_encoded_as_pushpin_does_and_decoded() {
        let events =
            [Event::of("OPEN"), Event::with("TEXT", b"hello\r\n".to_vec()), Event::with("CLOSE", vec![3, 232])];
        let body = encode(&events.clone().into());
        assert_eq!(body, b"OPEN\r\nTEXT 7\r\nhello\r\n\r\nCLOSE 2\r\n\x03\xe8\r\n");
        assert_eq!(decode(&body).unwrap(), events);
    }

    #[test]
    fn malformed_bodies_are_no_events() {
        for body in ["OPEN", "TEXT x\r\n", "TEXT 5\r\nab\r\n", "TEXT 2\r\nabc\r\n", "TEXT ffffffffffffffffff\r\n"] {
            assert_eq!(decode(body.as_bytes()), None, "{body:?}");
        }
    }
}
