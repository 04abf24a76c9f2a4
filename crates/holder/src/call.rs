//! Requests of the holder to the application: uwsgi packets to the internal address, which all workers listen on.

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use tailrace_os::socket::{self, Io};

use crate::message::Origin;

/// Maximum size of a response, in bytes.
const MAX_ANSWER: usize = 4 << 20;
/// Fields of the original request that are about its connection or its body.
const LEFT_OUT: [&str; 16] = [
    "connection",
    "upgrade",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "content-type",
    "expect",
    "te",
    "trailer",
    "accept-encoding",
    "last-event-id",
    "sec-websocket-key",
    "sec-websocket-version",
    "sec-websocket-extensions",
    "range",
    // It is for the holder alone to say.
    "connection-id",
];
/// Fields whose names begin so are for the holder alone to send: a client could pretend to be another user.
const OF_HOLDER: [&str; 2] = ["meta-", "grip-"];

/// A response of the application.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Status and phrase.
    pub(crate) status: String,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn code(&self) -> u16 {
        self.status.get(..3).and_then(|code| code.parse().ok()).unwrap_or(0)
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// Whom a response is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recipient {
    /// The connection with this key and serial number.
    Connection(usize, u64),
    /// The client has left, so the answer is discarded.
    Gone,
}

/// The request that tells the application that a client has left.
pub(crate) struct Farewell {
    pub(crate) packet: Vec<u8>,
    /// The WebSocket was open. If it was not, the application knows of it only if it accepts it.
    pub(crate) is_of_open: bool,
}

/// A request that was sent, or is being sent.
pub(crate) struct Call {
    socket: OwnedFd,
    packet: Vec<u8>,
    sent: usize,
    /// Bytes of the packet.
    pub(crate) size: usize,
    received: Vec<u8>,
    pub(crate) recipient: Recipient,
    pub(crate) since: Instant,
    /// The request that follows when this one is answered.
    pub(crate) next: Option<Farewell>,
}

impl Call {
    pub(crate) fn new(socket: OwnedFd, packet: Vec<u8>, recipient: Recipient, since: Instant) -> Self {
        Self { socket, sent: 0, size: packet.len(), packet, received: Vec::new(), recipient, since, next: None }
    }

    /// Sends and receives, as far as the socket allows. `Ok(None)`: the response is not complete.
    ///
    /// # Errors
    /// The connection broke, or the response is too large or malformed.
    pub(crate) fn step(&mut self) -> io::Result<Option<Answer>> {
        while self.sent < self.size {
            match socket::transmit(self.socket.as_fd(), &[IoSlice::new(&self.packet[self.sent..])], false) {
                Io::Moved(sent) => self.sent += sent,
                Io::WouldBlock => return Ok(None),
                Io::End | Io::Broken => return Err(ErrorKind::BrokenPipe.into()),
            }
        }
        // The worker has it.
        self.packet = Vec::new();
        let mut buffer = [0; 16 * 1024];
        loop {
            match socket::receive(self.socket.as_fd(), &mut buffer) {
                Io::Moved(count) => self.received.extend_from_slice(&buffer[..count]),
                Io::WouldBlock => return Ok(None),
                Io::End => return parse(&self.received).map(Some).ok_or_else(|| ErrorKind::InvalidData.into()),
                Io::Broken => return Err(ErrorKind::ConnectionReset.into()),
            }
            if self.received.len() > MAX_ANSWER {
                return Err(ErrorKind::FileTooLarge.into());
            }
        }
    }
}

/// A response to a uwsgi packet: it ends with the connection.
fn parse(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let latin1 = |bytes: &[u8]| bytes.iter().map(|byte| char::from(*byte)).collect::<String>();
    let mut lines = bytes[..end].split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let status = latin1(lines.next()?.strip_prefix(b"HTTP/1.1 ")?);
    let fields: Vec<_> = lines
        .map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            Some((latin1(&line[..colon]), latin1(line[colon + 1..].trim_ascii())))
        })
        .collect::<Option<_>>()?;
    let body = bytes[end + 4..].to_vec();
    let answer = Answer { status, fields, body };
    let stated = answer.field("content-length").and_then(|length| length.parse::<usize>().ok());
    // A worker that has ended in the middle.
    stated.is_none_or(|length| length == answer.body.len()).then_some(answer)
}

/// A uwsgi packet. `further`: fields besides those of the original request. `None`: the fields are larger than a packet.
pub(crate) fn packet(
    method: &str,
    origin: &Origin,
    client: &str,
    target: &[u8],
    further: &[(&str, &str)],
    body: &[u8],
) -> Option<Vec<u8>> {
    let mut variables = Vec::new();
    let mut add = |name: &[u8], value: &[u8]| -> Option<()> {
        for part in [name, value] {
            variables.extend_from_slice(&u16::try_from(part.len()).ok()?.to_le_bytes());
            variables.extend_from_slice(part);
        }
        Some(())
    };
    add(b"REQUEST_METHOD", method.as_bytes())?;
    add(b"REQUEST_URI", target)?;
    add(b"SERVER_PROTOCOL", b"HTTP/1.1")?;
    add(b"REMOTE_ADDR", client.as_bytes())?;
    if origin.port != 0 {
        add(b"REMOTE_PORT", origin.port.to_string().as_bytes())?;
    }
    add(b"HTTPS", if origin.is_https { b"on" } else { b"off" })?;
    add(b"CONTENT_LENGTH", body.len().to_string().as_bytes())?;
    for (name, value) in &origin.fields {
        let begins_as =
            |start: &&str| name.get(..start.len()).is_some_and(|found| found.eq_ignore_ascii_case(start.as_bytes()));
        let is_plain = !name.contains(&b'_')
            && !LEFT_OUT.iter().any(|other| name.eq_ignore_ascii_case(other.as_bytes()))
            && !OF_HOLDER.iter().any(begins_as);
        if is_plain {
            add(&variable(name), value)?;
        }
    }
    for (name, value) in further {
        let name = if *name == "Content-Type" { b"CONTENT_TYPE".to_vec() } else { variable(name.as_bytes()) };
        add(&name, value.as_bytes())?;
    }
    let mut packet = vec![0];
    packet.extend_from_slice(&u16::try_from(variables.len()).ok()?.to_le_bytes());
    packet.push(0);
    packet.extend_from_slice(&variables);
    packet.extend_from_slice(body);
    Some(packet)
}

/// The name of the variable of a field.
fn variable(name: &[u8]) -> Vec<u8> {
    let upper = name.iter().map(|byte| if *byte == b'-' { b'_' } else { byte.to_ascii_uppercase() });
    b"HTTP_".iter().copied().chain(upper).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_bytes::ByteBuf;

    use super::{packet, parse};
    use crate::message::Origin;

    #[test]
    fn a_response_ends_with_its_connection() {
        let answer = parse(b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 2\r\n\r\nxy").unwrap();
        assert_eq!((answer.code(), answer.field("a"), answer.body.as_slice()), (200, Some("b"), b"xy".as_slice()));
        for wrong in ["", "HTTP/1.1 200 OK\r\n", "x\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nxy"] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_client_cannot_pretend_to_be_what_the_application_keeps_in_its_connection() {
        let names = ["Meta-User", "meta-x", "Connection-ID", "Grip-Sig", "Metadata"];
        let fields = names.map(|name| (ByteBuf::from(name.as_bytes()), ByteBuf::from(b"forged")));
        let origin = Origin { fields: fields.into(), ..Origin::default() };
        let made = packet("POST", &origin, "", b"/ws", &[("Connection-Id", "i"), ("Meta-user", "3")], b"").unwrap();
        let text = String::from_utf8_lossy(&made);
        assert_eq!(text.matches("forged").count(), 1, "{text:?}");
        assert!(text.contains("HTTP_METADATA\x06\0forged") && text.contains("HTTP_META_USER\x01\x003"), "{text:?}");
    }

    #[test]
    fn a_packet_has_the_fields_of_the_original_request_but_for_its_connection() {
        let field = |name: &str, value: &str| (ByteBuf::from(name.as_bytes()), ByteBuf::from(value.as_bytes()));
        let fields = vec![field("Host", "a"), field("Upgrade", "websocket"), field("X_Y", "b"), field("X-Y", "c")];
        let origin = Origin { target: b"/ws".to_vec(), fields, port: 0, is_https: true };
        let made =
            packet("POST", &origin, "192.0.2.1", b"/ws", &[("Content-Type", "x"), ("Connection-Id", "i")], b"body");
        let text = String::from_utf8_lossy(&made.unwrap()).into_owned();
        for part in
            ["HTTP_HOST\x01\0a", "HTTP_X_Y\x01\0c", "CONTENT_TYPE\x01\0x", "HTTP_CONNECTION_ID\x01\0i", "HTTPS\x02\0on"]
        {
            assert!(text.contains(part), "{part:?} {text:?}");
        }
        assert!(!text.contains("UPGRADE") && text.ends_with("body"), "{text:?}");
        let large = Origin { fields: vec![field("A", &"x".repeat(66_000))], ..Origin::default() };
        assert_eq!(packet("GET", &large, "", b"/", &[], b""), None);
    }
}
