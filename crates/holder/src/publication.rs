//! What is published: the JSON documents of `POST /publish/`, in the form that Pushpin and Fastly accept.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tailrace_http::body_encoder::BodyEncoder;
use tailrace_http::encode::ResponseHead;

use crate::deflate::Deflate;
use crate::frames::{self, MessageFrame};
use crate::grip::channel_name;

/// Maximum size of a document, in bytes.
pub const MAX_DOCUMENT: usize = 1 << 20;

/// One publication on one channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publication {
    /// The name of the channel.
    pub channel: String,
    /// Its id, unique on its channel.
    pub id: Option<Arc<str>>,
    /// The id of the publication before it on its channel.
    pub prev_id: Option<Arc<str>>,
    /// The users that it leaves out, separated by commas.
    pub skip_users: Option<String>,
    /// Only connections that have this channel get it.
    pub requires: Option<String>,
    /// The id of the connection that has sent it.
    pub sender: Option<String>,
    /// For WebSockets.
    pub web_socket: Option<WebSocketForm>,
    /// For held streams.
    pub stream: Option<StreamForm>,
    /// For held responses.
    pub response: Option<ResponseForm>,
    /// For processes that listen. It is not kept for those that come later.
    #[serde(skip)]
    pub raw: Option<Vec<u8>>,
}

/// What is appended to a held stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamForm {
    /// These bytes.
    Content {
        /// As a chunk (RFC 9112 section 7.1).
        chunk: Chunk,
        /// `%I` stands for the id, and `%%` for `%`.
        builds_id: bool,
    },
    /// Nothing: the stream ends.
    Close,
}

/// What WebSockets are sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WebSocketForm {
    /// This message.
    Message(MessageFrame),
    /// This close frame.
    Close(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// Data in the framing of a chunk, so that it can be sent with or without it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    #[serde(with = "serde_bytes")]
    bytes: Vec<u8>,
    from: u8,
}

impl Chunk {
    pub(crate) fn new(data: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(data.len() + BodyEncoder::BEFORE + BodyEncoder::BEHIND);
        BodyEncoder::CHUNKED.begin(data.len(), &mut bytes);
        let from = u8::try_from(bytes.len()).unwrap_or_default();
        bytes.extend_from_slice(data);
        bytes.extend_from_slice(BodyEncoder::CHUNKED.behind(data.len()));
        Self { bytes, from }
    }

    pub(crate) fn data(&self) -> &[u8] {
        let behind = if self.bytes.is_empty() { 0 } else { BodyEncoder::BEHIND };
        &self.bytes[usize::from(self.from)..self.bytes.len() - behind]
    }

    /// The bytes to send.
    pub(crate) fn framed(&self, encoder: BodyEncoder) -> &[u8] {
        if encoder == BodyEncoder::CHUNKED { &self.bytes } else { self.data() }
    }
}

/// A complete response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseForm {
    /// Status and phrase, such as `200 OK`; empty: that of the held response.
    pub status: String,
    /// Its header fields.
    pub fields: Vec<(String, String)>,
    /// Its body.
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
}

impl WebSocketForm {
    /// The bytes for a client that has agreed on this compression.
    pub(crate) fn bytes(&self, deflate: Option<Deflate>) -> &[u8] {
        match self {
            Self::Message(message) => message.bytes(deflate),
            Self::Close(frame) => frame,
        }
    }
}

impl Publication {
    /// True if there is a form of it for connections.
    pub(crate) fn has_form(&self) -> bool {
        self.stream.is_some() || self.response.is_some() || self.web_socket.is_some()
    }

    /// Bytes that it occupies, about.
    pub(crate) fn size(&self) -> usize {
        let stream = match &self.stream {
            Some(StreamForm::Content { chunk, .. }) => chunk.bytes.capacity(),
            Some(StreamForm::Close) | None => 0,
        };
        let response = self.response.as_ref().map_or(0, |form| {
            form.status.len()
                + form.body.capacity()
                + form.fields.iter().map(|(name, value)| name.len() + value.len() + 48).sum::<usize>()
        });
        let ids = [&self.id, &self.prev_id].iter().map(|id| id.as_ref().map_or(0, |id| id.len() + 16)).sum::<usize>();
        let texts = [&self.skip_users, &self.requires, &self.sender]
            .iter()
            .map(|text| text.as_ref().map_or(0, String::len))
            .sum::<usize>();
        let web_socket = match &self.web_socket {
            Some(WebSocketForm::Message(message)) => message.size(),
            Some(WebSocketForm::Close(frame)) => frame.capacity(),
            None => 0,
        };
        size_of::<Self>() + web_socket + self.channel.len() + stream + response + ids + texts
    }
}

/// Reads a document: `{"items": [...]}`. All of it is refused if one of its items is wrong.
///
/// # Errors
/// A sentence that says which item is wrong, and how.
pub fn parse(document: &[u8]) -> Result<Vec<Publication>, String> {
    if document.len() > MAX_DOCUMENT {
        return Err(format!("the document has {} bytes, and may have {MAX_DOCUMENT}", document.len()));
    }
    let value: Value =
        serde_json::from_slice(document).map_err(|fault| format!("the document is not JSON: {fault}"))?;
    let items = value.get("items").and_then(Value::as_array).ok_or("the document must be {\"items\": [...]}")?;
    items.iter().enumerate().map(|(at, item)| read(item).map_err(|fault| format!("item {}: {fault}", at + 1))).collect()
}

fn read(item: &Value) -> Result<Publication, String> {
    let channel = text(item, "channel")?.ok_or("it has no channel")?;
    // Older clients write the formats beside the channel.
    let formats = item.get("formats").unwrap_or(item);
    let meta = item.get("meta").unwrap_or(&Value::Null);
    let read = Publication {
        channel: channel_name(channel)?,
        id: text(item, "id")?.map(Arc::from),
        prev_id: text(item, "prev-id")?.map(Arc::from),
        skip_users: text(meta, "skip_users")?.map(str::to_owned),
        requires: text(meta, "require_sub")?.map(str::to_owned),
        sender: text(meta, "sender")?.map(str::to_owned),
        web_socket: formats.get("ws-message").map(web_socket).transpose()?.flatten(),
        stream: formats.get("http-stream").map(stream).transpose()?.flatten(),
        response: formats.get("http-response").map(response).transpose()?,
        raw: formats.get("raw").map(raw).transpose()?,
    };
    if ["http-stream", "http-response", "ws-message", "raw"].iter().all(|format| formats.get(format).is_none()) {
        return Err(String::from("it has none of the formats http-stream, http-response, ws-message and raw"));
    }
    Ok(read)
}

fn text<'a>(value: &'a Value, key: &str) -> Result<Option<&'a str>, String> {
    match value.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{key} is not a string")),
    }
}

/// A value that is given as text, or as base64 under a longer key.
fn bytes(value: &Value, key: &str) -> Result<Option<Vec<u8>>, String> {
    let binary = format!("{key}-bin");
    if let Some(encoded) = text(value, &binary)? {
        return STANDARD.decode(encoded).map(Some).map_err(|fault| format!("{binary} is not base64: {fault}"));
    }
    Ok(text(value, key)?.map(|text| text.as_bytes().to_vec()))
}

fn raw(value: &Value) -> Result<Vec<u8>, String> {
    Ok(bytes(value, "content")?.ok_or("raw has no content")?)
}

fn stream(value: &Value) -> Result<Option<StreamForm>, String> {
    match text(value, "action")? {
        None | Some("send") => {}
        Some("close") => return Ok(Some(StreamForm::Close)),
        // A hint that there is more to be fetched.
        Some("hint") => return Ok(None),
        Some(other) => return Err(format!("http-stream has the action {other:?}, not send, close or hint")),
    }
    let content = bytes(value, "content")?.ok_or("http-stream has no content")?;
    let filters = value.get("content-filters").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let builds_id = filters.iter().any(|filter| filter == "build-id");
    Ok(Some(StreamForm::Content { chunk: Chunk::new(&content), builds_id }))
}

fn web_socket(value: &Value) -> Result<Option<WebSocketForm>, String> {
    match text(value, "action")? {
        None | Some("send") => {}
        Some("close") => {
            let code = value.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
            let reason = text(value, "reason")?.unwrap_or_default();
            return Ok(Some(WebSocketForm::Close(frames::close_frame(code, reason))));
        }
        Some("hint" | "refresh") => return Ok(None),
        Some(other) => return Err(format!("ws-message has the action {other:?}, not send, close or hint")),
    }
    let is_text = value.get("content-bin").is_none();
    let content = bytes(value, "content")?.ok_or("ws-message has no content")?;
    Ok(Some(WebSocketForm::Message(MessageFrame::new(&content, is_text))))
}

fn response(value: &Value) -> Result<ResponseForm, String> {
    let code = match value.get("code") {
        None | Some(Value::Null) => None,
        Some(code) => Some(code.as_u64().filter(|code| (200..600).contains(code)).ok_or("code is not a status")?),
    };
    let reason = text(value, "reason")?.unwrap_or_default();
    let status = code.map_or_else(String::new, |code| format!("{code} {reason}"));
    let pair = |name: &str, value: &Value| match value {
        Value::String(value) => Ok((name.to_owned(), value.clone())),
        _ => Err(format!("the value of the header {name:?} is not a string")),
    };
    let fields = match value.get("headers") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Object(headers)) => {
            headers.iter().map(|(name, value)| pair(name, value)).collect::<Result<_, _>>()?
        }
        Some(Value::Array(headers)) => headers
            .iter()
            .map(|header| match header.as_array().map(Vec::as_slice) {
                Some([Value::String(name), value]) => pair(name, value),
                _ => Err(String::from("headers must be an object, or a list of pairs")),
            })
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(String::from("headers must be an object, or a list of pairs")),
    };
    let form = ResponseForm { status, fields, body: bytes(value, "body")?.unwrap_or_default() };
    // Fields that cannot be sent are found here, where the publisher sees it.
    let mut head = ResponseHead::default();
    let status = if form.status.is_empty() { b"200 OK" } else { form.status.as_bytes() };
    head.status(status).map_err(|fault| fault.to_string())?;
    for (name, value) in &form.fields {
        head.field(name.as_bytes(), value.as_bytes()).map_err(|fault| fault.to_string())?;
    }
    Ok(form)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use tailrace_http::body_encoder::BodyEncoder;

    use super::{Chunk, MAX_DOCUMENT, StreamForm, parse};

    #[test]
    fn a_document_of_pubcontrol_is_read() {
        let document =
            br#"{"items": [{"channel": "events-a", "id": "17", "prev-id": "16", "meta": {"skip_users": "3,4"},
            "formats": {"http-stream": {"content-filters": ["build-id"], "content": "id: %I\ndata: x\n\n"},
                        "http-response": {"code": 200, "reason": "OK", "headers": {"Content-Type": "text/plain"},
                                          "body-bin": "AAE="}}},
            {"channel": "b", "formats": {"http-stream": {"action": "close"}, "ws-message": {"content": "x"}}},
            {"channel": "c", "http-stream": {"content": ""}}]}"#;
        let [first, second, third] = <[_; 3]>::try_from(parse(document).unwrap()).unwrap();
        assert_eq!(
            (first.channel.as_str(), first.id.as_deref(), first.prev_id.as_deref()),
            ("events-a", Some("17"), Some("16"))
        );
        assert_eq!(first.skip_users.as_deref(), Some("3,4"));
        let Some(StreamForm::Content { chunk, builds_id: true }) = first.stream else { panic!("no content") };
        assert_eq!(chunk.data(), b"id: %I\ndata: x\n\n");
        let response = first.response.unwrap();
        assert_eq!((response.status.as_str(), response.body.as_slice()), ("200 OK", b"\0\x01".as_slice()));
        assert_eq!(response.fields, [(String::from("Content-Type"), String::from("text/plain"))]);
        assert_eq!(second.stream, Some(StreamForm::Close));
        assert!(matches!(third.stream, Some(StreamForm::Content { .. })));
    }

    #[test]
    fn wrong_documents_are_refused_with_the_number_of_their_item() {
        let cases = [
            (r"", "not JSON"),
            (r"[]", "items"),
            (r#"{"items": [{}]}"#, "item 1: it has no channel"),
            (r#"{"items": [{"channel": 1}]}"#, "item 1: channel is not a string"),
            (r#"{"items": [{"channel": ""}]}"#, "item 1: the name of a channel"),
            (r#"{"items": [{"channel": "a"}]}"#, "item 1: it has none of the formats"),
            (r#"{"items": [{"channel": "a", "http-stream": {}}]}"#, "item 1: http-stream has no content"),
            (r#"{"items": [{"channel": "a", "raw": {}}]}"#, "item 1: raw has no content"),
            (r#"{"items": [{"channel": "a", "http-stream": {"content-bin": "!"}}]}"#, "item 1: content-bin"),
            (r#"{"items": [{"channel": "a", "http-stream": {"action": "x"}}]}"#, "item 1: http-stream has the action"),
            (r#"{"items": [{"channel": "a", "http-response": {"code": 99}}]}"#, "item 1: code"),
            (r#"{"items": [{"channel": "a", "http-response": {"headers": {"A": "b\r\nC: d"}}}]}"#, "item 1: header"),
            (r#"{"items": [{"channel": "a", "http-response": {"headers": {"A": 1}}}]}"#, "item 1: the value"),
            (r#"{"items": [{"channel": "a", "http-response": {"headers": [1]}}]}"#, "item 1: headers must"),
        ];
        for (document, fault) in cases {
            let found = parse(document.as_bytes()).unwrap_err();
            assert!(found.contains(fault), "{document}: {found}");
        }
        assert!(parse(&vec![b' '; MAX_DOCUMENT + 1]).unwrap_err().contains("may have"));
    }

    #[test]
    fn whatever_makes_a_publication_large_counts() {
        let long = "x".repeat(100_000);
        let parts = [
            format!(r#""meta": {{"sender": "{long}"}}, "http-stream": {{"content": ""}}"#),
            format!(r#""meta": {{"require_sub": "{long}"}}, "http-stream": {{"content": ""}}"#),
            format!(r#""http-response": {{"code": 200, "reason": "{long}"}}"#),
            format!(r#""prev-id": "{long}", "http-stream": {{"content": ""}}"#),
            format!(r#""ws-message": {{"content": "{long}"}}"#),
        ];
        for part in parts {
            let made = parse(format!(r#"{{"items": [{{"channel": "a", {part}}}]}}"#).as_bytes()).unwrap();
            assert!(made[0].size() > 100_000, "{}", &part[..40]);
        }
    }

    #[test]
    fn a_chunk_can_be_sent_with_and_without_its_framing() {
        let chunk = Chunk::new(b"0123456789abcdef!");
        assert_eq!(chunk.framed(BodyEncoder::CHUNKED), b"11\r\n0123456789abcdef!\r\n");
        assert_eq!(chunk.framed(BodyEncoder::default()), b"0123456789abcdef!");
        assert_eq!(Chunk::new(b"").framed(BodyEncoder::CHUNKED), b"");
    }
}
