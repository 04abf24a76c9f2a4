//! Messages to the holder, over connections to its abstract address.
//!
//! A message is its length (4 bytes, little endian, of what follows), its kind (a byte), and its content. Descriptors
//! come with its first byte. A content that does not fit in the buffer of a socket is in a file in memory, whose
//! descriptor is the last one. Contents are in MessagePack with names, so that two versions of Tailrace understand each other.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tailrace_http::framing::ResponseFormat;
use tailrace_os::passing;

use crate::grip::Instructions;

/// Maximum size of a message, in bytes. That of a WebSocket, for the next holder, has what its client has not read.
pub const MAX_MESSAGE: usize = 16 << 20;
/// Length of the head of a message: its length and its kind.
pub(crate) const HEAD: usize = 5;
/// Messages up to this size fit in the buffer of a socket.
const INLINE: usize = 64 * 1024;

/// The kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A connection is to be held: a [`Hold`], and its descriptor.
    Hold,
    /// A connection of which the holder is to make a WebSocket: an [`Opening`], and its descriptor.
    WebSocket,
    /// A document of publications, in JSON. The answer is `+`, or `-` and what is wrong.
    Publish,
    /// The answer is the figures of the holder, in JSON.
    Figures,
    /// The sender is sent what is published in raw form on the channel with this name, each as a message of this kind, until
    /// it closes its connection or does not read.
    Listen,
    /// The sender sends documents to other servers, and brings theirs: it is told where it is to begin, and is sent
    /// documents after the number in the content. For the next holder: the state of the bus.
    Bus,
    /// A document for, or of, another server: `NAME NUMBER` in its first line. There is no answer.
    Document,
    /// The figures of the bus, in JSON.
    BusFigures,
    /// The sender is the next holder: it gets everything.
    TakeOver,
    /// A publication that is kept, for the next holder.
    Kept,
    /// A held connection, for the next holder.
    Held,
    /// The next holder has everything.
    Complete,
    /// The content is how many descriptors the message has. Its own content is in the file of the last one, with its kind as
    /// the first byte.
    InFile,
}

const KINDS: [(Kind, u8); 13] = [
    (Kind::Hold, b'H'),
    (Kind::WebSocket, b'W'),
    (Kind::Publish, b'P'),
    (Kind::Figures, b'F'),
    (Kind::Listen, b'L'),
    (Kind::Bus, b'B'),
    (Kind::Document, b'D'),
    (Kind::BusFigures, b'S'),
    (Kind::TakeOver, b'T'),
    (Kind::Kept, b'K'),
    (Kind::Held, b'C'),
    (Kind::Complete, b'E'),
    (Kind::InFile, b'M'),
];

impl Kind {
    fn byte(self) -> u8 {
        KINDS.iter().find(|(kind, _)| *kind == self).map_or(0, |(_, byte)| *byte)
    }

    pub(crate) fn of(byte: u8) -> Option<Self> {
        KINDS.iter().find(|(_, known)| *known == byte).map(|(kind, _)| *kind)
    }
}

/// How the response of a connection is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// HTTP/1.1.
    Http11,
    /// HTTP/1.0.
    Http10,
    /// A response to a uwsgi packet.
    Packet,
}

impl From<ResponseFormat> for Format {
    fn from(format: ResponseFormat) -> Self {
        match format {
            ResponseFormat::Http11 => Self::Http11,
            ResponseFormat::Http10 => Self::Http10,
            ResponseFormat::Packet => Self::Packet,
        }
    }
}

impl From<Format> for ResponseFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Http11 => Self::Http11,
            Format::Http10 => Self::Http10,
            Format::Packet => Self::Packet,
        }
    }
}

/// A request as a worker has received it, for requests that the holder makes of the application.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Its target.
    #[serde(with = "serde_bytes")]
    pub target: Vec<u8>,
    /// Its header fields.
    pub fields: Vec<(serde_bytes::ByteBuf, serde_bytes::ByteBuf)>,
    /// Port of the client; 0: none is known.
    pub port: u16,
    /// It was made over HTTPS.
    pub is_https: bool,
}

/// A request for a WebSocket (RFC 6455 section 4.2.1), which was checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opening {
    /// The request.
    pub origin: Origin,
    /// Address of the client, for limits and the log; empty if it has none.
    pub client: String,
    /// Method and target, as the log shows them.
    pub request: String,
    /// The value of the field `Server`; empty: none.
    #[serde(with = "serde_bytes")]
    pub server: Vec<u8>,
    /// See [`Hold::is_relayed`].
    pub is_relayed: bool,
    /// What the client has sent behind the request.
    #[serde(with = "serde_bytes")]
    pub received: Vec<u8>,
}

/// A connection that is to be held, and the response to its request, of which nothing has been sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// How the response is framed.
    pub format: Format,
    /// Address of the client, for limits and the log; empty if it has none.
    pub client: String,
    /// Method and target, as the log shows them.
    pub request: String,
    /// The value of `Last-Event-ID` of the request.
    pub last_event_id: Option<String>,
    /// Status and phrase.
    #[serde(with = "serde_bytes")]
    pub status: Vec<u8>,
    /// The header fields, without instructions.
    pub fields: Vec<(serde_bytes::ByteBuf, serde_bytes::ByteBuf)>,
    /// The value of the field `Server`; empty: none.
    #[serde(with = "serde_bytes")]
    pub server: Vec<u8>,
    /// The body.
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
    /// What the application has asked for.
    pub instructions: Instructions,
    /// The socket ends at a process of the server, which encrypts: it is not the client's.
    pub is_relayed: bool,
    /// For how long the application has worked on the response, in microseconds.
    #[serde(default)]
    pub took_micros: u64,
    /// The request, if more content is to be fetched.
    pub origin: Option<Origin>,
}

/// The bytes of a message.
#[must_use]
pub fn encode(kind: Kind, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(content.len() + HEAD);
    bytes.extend_from_slice(&u32::try_from(content.len() + 1).unwrap_or(u32::MAX).to_le_bytes());
    bytes.push(kind.byte());
    bytes.extend_from_slice(content);
    bytes
}

/// A value as the content of a message.
///
/// # Errors
/// It is larger than a message may be.
pub fn content_of(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let content = rmp_serde::to_vec_named(value).map_err(|fault| io::Error::new(ErrorKind::InvalidData, fault))?;
    if content.len() >= MAX_MESSAGE {
        return Err(io::Error::new(ErrorKind::FileTooLarge, "the message is too large"));
    }
    Ok(content)
}

/// The value of a content.
///
/// # Errors
/// It is another value, or none.
pub(crate) fn value_of<'a, T: Deserialize<'a>>(content: &'a [u8]) -> io::Result<T> {
    rmp_serde::from_slice(content).map_err(|fault| io::Error::new(ErrorKind::InvalidData, fault))
}

/// Sends a message: through a file if the buffer of a socket could not take it. `until`: see [`passing::send`].
///
/// # Errors
/// The other process does not read, or has exited: nothing else can be sent.
pub fn send(
    socket: BorrowedFd<'_>,
    kind: Kind,
    content: &[u8],
    connection: Option<BorrowedFd<'_>>,
    until: Option<Instant>,
) -> io::Result<()> {
    let file =
        if content.len() < INLINE { None } else { Some(passing::file_with(&[&[kind.byte()], content].concat())?) };
    let descriptors: Vec<_> = connection.into_iter().chain(file.as_ref().map(AsFd::as_fd)).collect();
    let count = u8::try_from(descriptors.len()).unwrap_or_default();
    let bytes = if file.is_some() { encode(Kind::InFile, &[count]) } else { encode(kind, content) };
    passing::send(socket, &bytes, &descriptors, until)
}

/// Passes a connection to the holder at this address: a [`Hold`] or an [`Opening`], by its kind. Never blocks.
///
/// # Errors
/// The holder cannot be reached, or does not keep up. The connection is the caller's, as before.
pub fn pass(address: &[u8], kind: Kind, value: &impl Serialize, connection: BorrowedFd<'_>) -> io::Result<()> {
    let socket = passing::connect_to(address)?;
    send(socket.as_fd(), kind, &content_of(value)?, Some(connection), None)
}

/// Passes a document of publications to the holder at this address, without waiting for its answer. Never blocks.
///
/// # Errors
/// The holder cannot be reached, or does not keep up.
pub fn publish(address: &[u8], document: &[u8]) -> io::Result<()> {
    let socket = passing::connect_to(address)?;
    send(socket.as_fd(), Kind::Publish, document, None, None)
}
