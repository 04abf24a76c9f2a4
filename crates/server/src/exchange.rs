//! One request and the response to it, while an application thread carries them.
//!
//! Thread: an exchange belongs to the thread that took it from the ready queue, until it is finished or dropped.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use penstock_http::encode::ResponseHead;
use penstock_http::framing::RequestFraming;
use penstock_http::head::RequestHead;
use std::fs::File;

/// Bytes that the application owns and that must outlive the call that sent them.
pub trait Payload: Send {
    /// The bytes; the same at each call.
    fn bytes(&self) -> &[u8];
}

/// A complete request: its head, where it came from, its body.
pub struct Request {
    /// The bytes of the head; the spans in `head` and `framing` refer to them.
    pub bytes: Vec<u8>,
    /// The parsed head.
    pub head: RequestHead,
    /// Body length and connection rules that the head states.
    pub framing: RequestFraming,
    /// The body, whole.
    pub body: RequestBody,
    /// Who sent it and to which of our addresses.
    pub endpoints: Endpoints,
}

/// The two ends of a connection.
#[derive(Clone, Debug)]
pub struct Endpoints {
    /// The client; `None` on a UNIX socket.
    pub peer: Option<SocketAddr>,
    /// Index of the listener in the list the server was given.
    pub listener: usize,
}

/// The body of a request, read whole before the application is called.
pub enum RequestBody {
    /// No body, or an empty one.
    Empty,
    /// In memory.
    Memory(Vec<u8>),
    /// In an unlinked temporary file, positioned at its start.
    File {
        /// The file.
        file: File,
        /// Its length in bytes.
        length: u64,
    },
}

/// What became of a `send`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Taken: sent or queued. Go on.
    Taken,
    /// Taken, but the queue is full: call [`Exchange::wait`] before the next block, with the interpreter released.
    Full,
    /// All that `Content-Length` promised is there (or the response has no body): further blocks go nowhere.
    Enough,
    /// The client is gone or the response is broken: nothing will be sent any more.
    Gone,
}

/// Whether blocks may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// More blocks may come; the response ends with [`Exchange::finish`].
    More,
    /// These blocks are all there is. If nothing was sent before, their total becomes the `Content-Length`.
    Last,
}

/// One request and the response to it. Dropped before `finish`, it breaks the connection visibly.
pub struct Exchange {
    _todo: (),
}

impl Exchange {
    /// The request.
    pub fn request(&self) -> &Request { unimplemented!() }
    /// Takes the body out of the request, leaving `Empty`.
    pub fn take_body(&mut self) -> RequestBody { unimplemented!() }
    /// The response head, to be filled before the first `send`. `ResponseHead::clear` starts over.
    pub fn head(&mut self) -> &mut ResponseHead { unimplemented!() }
    /// True once the head has been committed (sent or queued): it cannot be changed any more.
    pub fn head_sent(&self) -> bool { unimplemented!() }
    /// Sends blocks, the head before them if it has not gone yet: one `writev` for all where the socket takes it.
    /// What the socket does not take is queued: small rests are copied, of large blocks `keep(index)` is asked to give
    /// an owner. Never blocks. Empty blocks do not commit the head.
    pub fn send(&mut self, _blocks: &[&[u8]], _position: Position, _keep: &mut dyn FnMut(usize) -> Box<dyn Payload>) -> Sent { unimplemented!() }
    /// Sends `length` bytes of a file from `offset` by `sendfile`, off the application's thread.
    /// If nothing was sent before and `position` is `Last`, `length` becomes the `Content-Length`.
    pub fn send_file(&mut self, _file: OwnedFd, _offset: u64, _length: u64, _position: Position) -> Sent { unimplemented!() }
    /// Waits until the queue has room again. Blocks: release the interpreter first.
    pub fn wait(&mut self) -> Sent { unimplemented!() }
    /// True when the peer is known to be gone (reset or closed both ways).
    pub fn client_gone(&self) -> bool { unimplemented!() }
    /// Ends the response: an empty one if nothing was sent, the last chunk of a chunked one. A body shorter than its
    /// `Content-Length` breaks the connection instead and answers `Err` with the missing byte count.
    ///
    /// # Errors
    /// [`Short`] when fewer bytes were sent than the head promised.
    pub fn finish(self) -> Result<(), Short> { unimplemented!() }
    /// Answers a small error page (`status` 500, 502, ...) if nothing was sent, else breaks the connection visibly.
    /// `detail` is HTML for the page's body, already escaped; `None` gives the standard sentence.
    pub fn fail(self, _status: u16, _detail: Option<&str>) { unimplemented!() }
}

/// A body shorter than its `Content-Length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// Bytes promised and not sent.
    pub missing: u64,
}
