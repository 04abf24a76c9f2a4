//! A WebSocket that the holder serves: the application gets what the client sends by requests, one at a time, and answers
//! with what the client is to be sent (Pushpin, "WebSocket-over-HTTP").

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tungstenite::handshake::derive_accept_key;

use crate::call::{self, Answer};
use crate::deflate::Deflate;
use crate::events::{self, Event, MEDIA_TYPE};
use crate::frames::{self, MessageFrame};
use crate::grip::{Filters, MAX_CHANNELS, Subscription, channel_name};
use crate::message::{Opening, Origin};

/// Events that wait for the application may have this many bytes, before the client is read no more.
const MAX_QUEUED: usize = 256 * 1024;
/// What begins a message of the application that is an instruction.
const CONTROL: &[u8] = b"c:";
/// What begins a message for the client, unless the application says otherwise.
const MESSAGE: &str = "m:";
/// Maximum number of values that the application keeps in a connection, and of their bytes.
const MAX_META: (usize, usize) = (32, 8 * 1024);

/// The session of a WebSocket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Session {
    origin: Origin,
    id: String,
    meta: Vec<(String, String)>,
    /// What begins a message for the client. `None`: nothing does, and no message is an instruction.
    prefix: Option<String>,
    queue: VecDeque<Event>,
    queued: usize,
    /// The application has accepted it.
    pub(crate) is_open: bool,
    /// It was closed by one of its sides.
    #[serde(default)]
    pub(crate) is_over: bool,
    /// The application wants to know nothing more.
    is_detached: bool,
    /// A request was made and is not answered.
    #[serde(skip)]
    pub(crate) is_calling: bool,
    /// What the client and the server have agreed on for compression.
    #[serde(default)]
    pub(crate) deflate: Option<Deflate>,
    /// The frames of an incomplete message, and those that were not read, for the next holder.
    #[serde(with = "serde_bytes")]
    pub(crate) pending: Vec<u8>,
    /// How many of these bytes belong to the incomplete message.
    #[serde(default)]
    pub(crate) pending_read: usize,
}

/// What follows from an answer of the application.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The WebSocket is open: the head of the response.
    Accept(Vec<u8>),
    /// It is not: the response.
    Reject(Answer),
    /// The application has answered something that means nothing, for this reason: the connection ends.
    Fail(String),
    /// These frames are to be sent.
    Send(Vec<u8>),
    Subscribe(Subscription),
    Unsubscribe(String),
    /// The connection ends, after a close frame.
    Close(Vec<u8>),
}

impl Session {
    pub(crate) fn new(opening: Opening, id: String) -> Self {
        let open = Event::of("OPEN");
        Self {
            origin: opening.origin,
            id,
            meta: Vec::new(),
            prefix: None,
            queued: open.size(),
            queue: VecDeque::from([open]),
            is_open: false,
            is_over: false,
            is_detached: false,
            is_calling: false,
            deflate: None,
            pending: Vec::new(),
            pending_read: 0,
        }
    }

    /// Bytes of what waits for the application.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// What the client has sent waits for the application.
    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// True when the client is not to be read.
    pub(crate) fn is_full(&self) -> bool {
        self.queued > MAX_QUEUED
    }

    pub(crate) fn push(&mut self, event: Event) {
        if !self.is_detached {
            self.queued += event.size();
            self.queue.push_back(event);
        }
    }

    /// The request with all that waits. `None`: its fields are too large.
    pub(crate) fn request(&mut self, client: &str) -> Option<Vec<u8>> {
        let body = events::encode(&std::mem::take(&mut self.queue));
        self.queued = 0;
        let meta: Vec<_> = self.meta.iter().map(|(name, value)| (format!("Meta-{name}"), value)).collect();
        let mut fields = vec![
            ("Content-Type", MEDIA_TYPE),
            ("Accept", MEDIA_TYPE),
            ("Connection-Id", self.id.as_str()),
            ("Sec-WebSocket-Extensions", "grip"),
        ];
        fields.extend(meta.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        call::packet("POST", &self.origin, client, &self.origin.target, &fields, &body)
    }

    /// Reads an answer.
    pub(crate) fn answered(&mut self, mut answer: Answer) -> Vec<Action> {
        if self.is_over {
            return Vec::new();
        }
        if answer.code() != 200 {
            return vec![if self.is_open {
                // 1011: the server has met a condition that it did not expect (RFC 6455 section 7.4.1).
                Action::Close(frames::close_frame(Some(1011), ""))
            } else {
                answer.fields.retain(|(name, _)| !name.to_ascii_lowercase().starts_with("grip-"));
                Action::Reject(answer)
            }];
        }
        let read = match events_of(&answer) {
            Ok(read) => read,
            Err(reason) => return vec![Action::Fail(reason)],
        };
        let mut actions = Vec::new();
        let mut read = read.into_iter();
        if !self.is_open {
            let head = self.handshake(&answer);
            let Some(head) = head.filter(|_| read.next().is_some_and(|event| event.name == "OPEN")) else {
                return vec![Action::Fail(String::from("its response does not begin with the event OPEN"))];
            };
            self.is_open = true;
            actions.push(Action::Accept(head));
            self.prefix = answer.field("sec-websocket-extensions").and_then(message_prefix);
        }
        self.keep_meta(&answer);
        for event in read {
            let content = event.content.unwrap_or_default();
            match event.name.as_str() {
                "TEXT" => actions.extend(self.message(&content, true)),
                "BINARY" => actions.extend(self.message(&content, false)),
                "PING" => actions.push(Action::Send(frames::ping(&content))),
                "PONG" => actions.push(Action::Send(frames::pong(&content))),
                "CLOSE" => {
                    let code = content.first_chunk::<2>().map(|code| u16::from_be_bytes(*code));
                    let reason = content.get(2..).and_then(|reason| std::str::from_utf8(reason).ok()).unwrap_or("");
                    actions.push(Action::Close(frames::close_frame(code, reason)));
                    break;
                }
                "DISCONNECT" => {
                    actions.push(Action::Close(Vec::new()));
                    break;
                }
                _ => {}
            }
        }
        actions
    }

    /// The head of the response that opens the WebSocket (RFC 6455 section 4.2.2).
    fn handshake(&mut self, answer: &Answer) -> Option<Vec<u8>> {
        let of_client = |wanted: &'static [u8]| {
            self.origin.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value)
        };
        let key = of_client(b"sec-websocket-key").next()?;
        let mut head =
            String::from("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n");
        head.push_str(&format!("Sec-WebSocket-Accept: {}\r\n", derive_accept_key(key)));
        let offers = of_client(b"sec-websocket-extensions").filter_map(|value| std::str::from_utf8(value).ok());
        self.deflate = Deflate::accept(offers);
        if let Some(deflate) = self.deflate {
            head.push_str(&format!("Sec-WebSocket-Extensions: {}\r\n", deflate.answer()));
        }
        for (name, value) in &answer.fields {
            let is_protocol = name.eq_ignore_ascii_case("sec-websocket-protocol");
            if is_protocol || name.eq_ignore_ascii_case("set-cookie") {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        head.push_str("\r\n");
        Some(head.chars().map(|char| char as u8).collect())
    }

    fn keep_meta(&mut self, answer: &Answer) {
        for (name, value) in &answer.fields {
            let Some(name) = name.to_ascii_lowercase().strip_prefix("set-meta-").map(str::to_owned) else { continue };
            self.meta.retain(|(known, _)| *known != name);
            let size: usize = self.meta.iter().map(|(name, value)| name.len() + value.len()).sum();
            let has_room = self.meta.len() < MAX_META.0 && size + name.len() + value.len() <= MAX_META.1;
            if !value.is_empty() && has_room {
                self.meta.push((name, value.clone()));
            }
        }
    }

    /// A message of the application: for the client, or an instruction.
    fn message(&mut self, content: &[u8], is_text: bool) -> Option<Action> {
        let send =
            |content: &[u8]| Some(Action::Send(MessageFrame::new(content, is_text).bytes(self.deflate).to_vec()));
        let Some(prefix) = &self.prefix else { return send(content) };
        if is_text && let Some(instruction) = content.strip_prefix(CONTROL) {
            return self.instruction(&serde_json::from_slice(instruction).ok()?);
        }
        content.strip_prefix(prefix.as_bytes()).and_then(send)
    }

    fn instruction(&mut self, instruction: &Value) -> Option<Action> {
        let text = |key: &str| instruction.get(key).and_then(Value::as_str);
        match text("type")? {
            "subscribe" => {
                let names = instruction.get("filters").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                let mut filters = Filters::default();
                for name in names.iter().filter_map(Value::as_str) {
                    // One that is not known must not open a channel to more than was meant.
                    filters.add(name).ok()?;
                }
                let channel = channel_name(text("channel")?).ok()?;
                Some(Action::Subscribe(Subscription { channel, last_id: None, filters }))
            }
            "unsubscribe" => Some(Action::Unsubscribe(text("channel")?.to_owned())),
            "detach" => {
                self.is_detached = true;
                self.queue.clear();
                self.queued = 0;
                None
            }
            _ => None,
        }
    }

    /// Values of the connection, for filters.
    pub(crate) fn user(&self) -> Option<&str> {
        self.meta.iter().find(|(name, _)| name == "user").map(|(_, value)| value.as_str())
    }
}

/// Whether a connection may have one more channel.
pub(crate) fn may_subscribe(count: usize) -> bool {
    count < MAX_CHANNELS
}

/// The `message-prefix` of the extension `grip`. `None`: the application does not use it.
fn message_prefix(value: &str) -> Option<String> {
    value.split(',').find_map(|extension| {
        let mut parts = extension.split(';').map(str::trim);
        if parts.next()? != "grip" {
            return None;
        }
        let prefix = parts.find_map(|part| part.strip_prefix("message-prefix="));
        Some(prefix.map_or(MESSAGE, |prefix| prefix.trim_matches('"')).to_owned())
    })
}

/// The events of an answer. `Err`: what is wrong with it.
fn events_of(answer: &Answer) -> Result<Vec<Event>, String> {
    if answer.body.is_empty() {
        return Ok(Vec::new());
    }
    let found = answer.field("content-type").unwrap_or_default();
    if !found.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(MEDIA_TYPE) {
        return Err(format!("the content type of its response is {found:?}, not {MEDIA_TYPE}"));
    }
    events::decode(&answer.body).ok_or_else(|| String::from("its response is not a list of events"))
}

/// The response to a client if the application has answered something that means nothing.
pub(crate) fn bad_gateway() -> Answer {
    Answer {
        status: String::from("502 Bad Gateway"),
        fields: vec![(String::from("Content-Type"), String::from("text/plain"))],
        body: b"The application did not open the WebSocket.\n".to_vec(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use serde_bytes::ByteBuf;

    use super::{Action, Session, message_prefix};
    use crate::call::Answer;
    use crate::events::{Event, encode};
    use crate::frames::{self, MessageFrame};
    use crate::message::{Opening, Origin};

    fn session() -> Session {
        let field = |name: &str, value: &str| (ByteBuf::from(name.as_bytes()), ByteBuf::from(value.as_bytes()));
        let origin =
            Origin { fields: vec![field("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")], ..Origin::default() };
        let opening = Opening {
            origin,
            client: String::new(),
            request: String::new(),
            server: Vec::new(),
            is_relayed: false,
            received: Vec::new(),
        };
        Session::new(opening, String::from("id"))
    }

    fn answer(status: &str, fields: &[(&str, &str)], body: &[u8]) -> Answer {
        let own = |(name, value): &(&str, &str)| (String::from(*name), String::from(*value));
        Answer { status: String::from(status), fields: fields.iter().map(own).collect(), body: body.to_vec() }
    }

    const EVENTS: (&str, &str) = ("Content-Type", "application/websocket-events");

    #[test]
    fn an_application_opens_subscribes_and_sends_as_django_grip_does() {
        let mut session = session();
        assert!(session.request("192.0.2.1").unwrap().ends_with(b"OPEN\r\n"));
        let text = |content: &str| Event::with("TEXT", content.into());
        let subscribe = text("c:{\"type\": \"subscribe\", \"channel\": \"a\"}");
        let close = Event::with("CLOSE", vec![3, 232]);
        let events = [Event::of("OPEN"), subscribe, text("m:hi"), text("x"), close, text("m:no")];
        let body = encode(&events.into());
        let fields = [EVENTS, ("Sec-WebSocket-Extensions", "grip"), ("Set-Meta-User", "3")];
        let actions = session.answered(answer("200 OK", &fields, &body));
        let [Action::Accept(head), Action::Subscribe(channel), Action::Send(sent), Action::Close(close)] =
            actions.as_slice()
        else {
            panic!("{actions:?}")
        };
        assert!(String::from_utf8_lossy(head).contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
        assert_eq!((channel.channel.as_str(), sent), ("a", &MessageFrame::new(b"hi", true).bytes(None).to_vec()));
        assert_eq!((close, session.user()), (&frames::close_frame(Some(1000), ""), Some("3")));
    }

    #[test]
    fn a_refusal_of_the_application_is_the_response() {
        let refusal = answer("403 Forbidden", &[("Grip-Hold", "x"), ("A", "b")], b"no");
        let expected = answer("403 Forbidden", &[("A", "b")], b"no");
        assert_eq!(session().answered(refusal), [Action::Reject(expected)]);
        let html = ("Content-Type", "text/html");
        for (body, field, reason) in [
            ("TEXT 1\r\nx\r\n", EVENTS, "does not begin with the event OPEN"),
            ("", html, "does not begin with the event OPEN"),
            ("OPEN", EVENTS, "is not a list of events"),
            ("OPEN\r\n", html, "is \"text/html\", not application/websocket-events"),
        ] {
            let actions = session().answered(answer("200 OK", &[field], body.as_bytes()));
            let [Action::Fail(found)] = actions.as_slice() else { panic!("it is open: {body:?}") };
            assert!(found.ends_with(reason), "{found}");
        }
    }

    #[test]
    fn an_application_that_fails_later_closes_the_connection() {
        let mut session = session();
        session.answered(answer("200 OK", &[EVENTS], b"OPEN\r\n"));
        let closed = Action::Close(frames::close_frame(Some(1011), ""));
        assert_eq!(session.answered(answer("500 Internal Server Error", &[], b"")), [closed]);
        assert_eq!(session.answered(answer("200 OK", &[], b"")), []);
        assert_eq!(
            session.answered(answer("200 OK", &[EVENTS], b"TEXT 4\r\nc:{}\r\n")),
            [Action::Send(MessageFrame::new(b"c:{}", true).bytes(None).to_vec())]
        );
    }

    #[test]
    fn the_prefix_of_messages_is_that_of_the_extension() {
        assert_eq!(message_prefix("grip").as_deref(), Some("m:"));
        assert_eq!(message_prefix("x, grip; message-prefix=\"\"").as_deref(), Some(""));
        assert_eq!(message_prefix("permessage-deflate"), None);
    }
}
