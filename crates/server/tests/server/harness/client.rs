//! A client that sends any bytes, and accepts only responses that are valid by RFC 9112.
//!
//! A lenient client would hide faults of the server, so this one is strict: line ends are CRLF, lengths are exact, a
//! body where none may be is an error, and after a response only the next one or the end may follow. It blocks, with a
//! long time-out.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

use super::PATIENCE;

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By an orderly close.
    Closed,
    /// By a reset.
    Reset,
}

/// How the end of a body is marked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// There is none.
    #[default]
    None,
    Length,
    Chunked,
    UntilClose,
}

/// One response as it was received.
#[derive(Clone, Debug, Default)]
pub struct Response {
    pub status: u16,
    pub reason: String,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub framing: Framing,
    /// The sizes of the chunks, the last one (0) included.
    pub chunks: Vec<usize>,
    /// The statuses of the interim responses before it.
    pub interim: Vec<u16>,
}

/// The connection ended before the response did.
#[derive(Debug)]
pub struct Broken {
    /// The part of it that was received; `None`: not even the head.
    pub response: Option<Box<Response>>,
    pub end: End,
}

impl Response {
    /// The value of the one field of this name.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut values = self.fields.iter().filter(|(each, _)| each.eq_ignore_ascii_case(name));
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} is there twice: {self:?}");
        value
    }

    /// True when it has `Connection: close`.
    pub fn says_close(&self) -> bool {
        self.field("Connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }

    /// Fails unless the body is `expected`; the message names the first difference.
    #[track_caller]
    pub fn assert_body(&self, expected: &[u8]) {
        if self.body == expected {
            return;
        }
        let differs = self.body.iter().zip(expected).position(|(got, expected)| got != expected);
        let (got, expected) = (self.body.len(), expected.len());
        panic!("a body of {got} bytes instead of {expected}; the first one that differs: {differs:?}");
    }
}

/// What the framing of a response depends on in its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kind {
    pub is_head: bool,
    pub is_old: bool,
}

impl Kind {
    /// The kind of the request at the start of these bytes.
    pub fn of(wire: &[u8]) -> Self {
        let line = wire.split(|&byte| byte == b'\r').find(|line| !line.trim_ascii().is_empty()).unwrap_or(&[]);
        Self { is_head: line.trim_ascii().starts_with(b"HEAD "), is_old: line.ends_with(b"HTTP/1.0") }
    }
}

/// One connection to a server.
pub struct Client {
    stream: Stream,
    buffer: Vec<u8>,
    end: Option<End>,
    pace: Option<Pace>,
}

/// Called before each read of a slow client: it may wait, and returns the most bytes to read.
pub type Pace = Box<dyn FnMut() -> usize + Send>;

/// Bytes of one read.
const READ: usize = 64 * 1024;

impl Client {
    pub fn tcp(address: SocketAddr) -> Self {
        Self::of_tcp(TcpStream::connect(address).unwrap())
    }

    /// A TCP connection from this address.
    pub fn tcp_from(address: SocketAddr, own: Ipv4Addr) -> Self {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &SocketAddr::from((own, 0))).unwrap();
        connect(&socket, &address).unwrap();
        Self::of_tcp(socket.into())
    }

    fn of_tcp(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream: Stream::Tcp(stream), buffer: Vec::new(), end: None, pace: None }
    }

    pub fn unix(address: &UnixAddress) -> Self {
        let stream = UnixStream::connect_addr(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream: Stream::Unix(stream), buffer: Vec::new(), end: None, pace: None }
    }

    /// The address of the client's end; `None`: a UNIX socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.stream {
            Stream::Tcp(stream) => Some(stream.local_addr().unwrap()),
            Stream::Unix(_) => None,
        }
    }

    fn socket(&self) -> BorrowedFd<'_> {
        match &self.stream {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }

    // Sending

    /// Sends all bytes in one write. False: the server reads no more.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        let sent = match &mut self.stream {
            Stream::Tcp(stream) => stream.write_all(bytes),
            Stream::Unix(stream) => stream.write_all(bytes),
        };
        match sent {
            Ok(()) => true,
            Err(fault) if is_end(&fault) => false,
            Err(fault) => panic!("could not send: {fault}"),
        }
    }

    /// Sends `step` bytes with each write.
    pub fn send_in_pieces(&mut self, bytes: &[u8], step: usize) -> bool {
        bytes.chunks(step).all(|piece| self.send(piece))
    }

    /// Sends each byte in a write of its own.
    pub fn send_by_bytes(&mut self, bytes: &[u8]) -> bool {
        self.send_in_pieces(bytes, 1)
    }

    /// Sends a GET request and reads the response.
    #[track_caller]
    pub fn get(&mut self, target: &str) -> Response {
        self.ask("GET", target, "")
    }

    /// Sends a request without a body, with these field lines besides Host, and reads the response.
    #[track_caller]
    pub fn ask(&mut self, method: &str, target: &str, lines: &str) -> Response {
        self.begin(method, target, lines);
        self.response_to(Kind { is_head: method == "HEAD", is_old: false })
    }

    /// Sends such a request and does not wait for the response.
    pub fn begin(&mut self, method: &str, target: &str, lines: &str) {
        self.send(format!("{method} {target} HTTP/1.1\r\nHost: test\r\n{lines}\r\n").as_bytes());
    }

    /// Closes the direction to the server; responses can still be read.
    pub fn half_close(&mut self) {
        let ended = match &self.stream {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
        // The connection may have ended already.
        drop(ended);
    }

    /// Breaks the connection: the server reads a reset.
    pub fn reset(self) {
        rustix::net::sockopt::set_socket_linger(self.socket(), Some(Duration::ZERO)).unwrap();
    }

    // Receiving

    /// Reads at this pace from now on.
    pub fn set_pace(&mut self, pace: Pace) {
        self.pace = Some(pace);
    }

    fn more(&mut self) -> bool {
        if self.end.is_some() {
            return false;
        }
        let mut block = [0; READ];
        let most = self.pace.as_mut().map_or(READ, |pace| pace().clamp(1, READ));
        let read = match &mut self.stream {
            Stream::Tcp(stream) => stream.read(&mut block[..most]),
            Stream::Unix(stream) => stream.read(&mut block[..most]),
        };
        match read {
            Ok(0) => self.end = Some(End::Closed),
            Ok(count) => self.buffer.extend_from_slice(&block[..count]),
            Err(fault) if fault.kind() == ErrorKind::Interrupted => {}
            Err(fault) if is_end(&fault) => self.end = Some(End::Reset),
            Err(fault) => panic!("nothing was received: {fault}; before that {}", shown(&self.buffer)),
        }
        self.end.is_none()
    }

    /// Reads `count` bytes; fewer only at the end of the stream.
    pub fn read(&mut self, count: usize) -> Vec<u8> {
        while self.buffer.len() < count && self.more() {}
        let rest = self.buffer.split_off(count.min(self.buffer.len()));
        std::mem::replace(&mut self.buffer, rest)
    }

    /// Reads until the end; returns the bytes, and how the connection ended.
    pub fn rest(&mut self) -> (Vec<u8>, End) {
        while self.more() {}
        (std::mem::take(&mut self.buffer), self.end.expect("it has ended"))
    }

    /// Fails unless only an orderly end of the connection follows.
    #[track_caller]
    pub fn at_end(&mut self) {
        let (rest, end) = self.rest();
        assert!(rest.is_empty(), "bytes after the response: {}", shown(&rest));
        assert_eq!(end, End::Closed);
    }

    /// Reads the next response, to a GET request of HTTP/1.1.
    #[track_caller]
    pub fn response(&mut self) -> Response {
        self.response_to(Kind::default())
    }

    #[track_caller]
    pub fn response_to(&mut self, kind: Kind) -> Response {
        match self.try_response(kind) {
            Ok(response) => response,
            Err(broken) => panic!("the connection ended too early: {broken:?}"),
        }
    }

    /// Reads the next response to such a request. The error has what was received of it.
    #[track_caller]
    pub fn try_response(&mut self, kind: Kind) -> Result<Response, Broken> {
        let mut interim = Vec::new();
        let mut response = loop {
            let response = self.head()?;
            if response.status >= 200 {
                break response;
            }
            interim.push(response.status);
        };
        response.interim = interim;
        match self.read_body(&mut response, kind) {
            Ok(()) => Ok(response),
            Err(end) => Err(Broken { response: Some(Box::new(response)), end }),
        }
    }

    fn line(&mut self) -> Result<Vec<u8>, Broken> {
        let mut looked = 0;
        loop {
            if let Some(at) = self.buffer[looked..].iter().position(|&byte| byte == b'\n') {
                let line = self.read(looked + at + 1);
                let text = line.strip_suffix(b"\r\n").unwrap_or_else(|| panic!("no CRLF: {}", shown(&line)));
                return Ok(text.to_vec());
            }
            looked = self.buffer.len();
            if !self.more() {
                return Err(Broken { response: None, end: self.end.expect("the connection has ended") });
            }
        }
    }

    /// A status line and field lines.
    #[track_caller]
    pub fn head(&mut self) -> Result<Response, Broken> {
        let line = self.line()?;
        let mut response = Response::default();
        // RFC 9112 section 4; a server sends its own version, whatever the client's is.
        let [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'1', b' ', code @ ..] = line.as_slice() else {
            panic!("no status line: {}", shown(&line));
        };
        assert!(code.len() >= 4 && code[..3].iter().all(u8::is_ascii_digit) && code[3] == b' ', "{}", shown(&line));
        response.status = std::str::from_utf8(&code[..3]).unwrap().parse().unwrap();
        response.reason = latin(&code[4..]);
        assert!(!response.reason.chars().any(|each| each.is_control() && each != '\t'), "{}", shown(&line));
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let colon = line.iter().position(|&byte| byte == b':').unwrap_or_else(|| panic!("{}", shown(&line)));
            let (name, value) = (latin(&line[..colon]), latin(&line[colon + 1..]));
            assert!(!name.is_empty() && name.bytes().all(is_token), "no field name: {}", shown(&line));
            let value = value.trim_matches([' ', '\t']);
            assert!(!value.chars().any(|each| each.is_ascii_control() && each != '\t'), "{}", shown(&line));
            response.fields.push((name, value.to_owned()));
        }
        let (length, coding) = (response.field("Content-Length"), response.field("Transfer-Encoding"));
        assert!(length.is_none() || coding.is_none(), "RFC 9112 section 6.2: {response:?}");
        assert!(length.is_none_or(|length| length.bytes().all(|byte| byte.is_ascii_digit())), "{response:?}");
        assert!(coding.is_none_or(|coding| coding == "chunked"), "{response:?}");
        if response.status < 200 || response.status == 204 {
            assert!(length.is_none() && coding.is_none(), "RFC 9110 section 8.6: {response:?}");
        }
        if response.status >= 200 {
            assert!(response.field("Date").is_some(), "RFC 9110 section 6.6.1: {response:?}");
        }
        Ok(response)
    }

    fn read_body(&mut self, response: &mut Response, kind: Kind) -> Result<(), End> {
        if kind.is_head || matches!(response.status, 204 | 304) {
            return Ok(());
        }
        if response.field("Transfer-Encoding").is_some() {
            assert!(!kind.is_old, "RFC 9112 section 6.1: chunks for HTTP/1.0");
            response.framing = Framing::Chunked;
            while self.chunk(response)? > 0 {}
            return Ok(());
        }
        if let Some(length) = response.field("Content-Length") {
            let length = length.parse().unwrap();
            response.framing = Framing::Length;
            response.body = self.read(length);
            return self.enough(response.body.len(), length);
        }
        response.framing = Framing::UntilClose;
        let (body, end) = self.rest();
        response.body = body;
        if end == End::Reset { Err(end) } else { Ok(()) }
    }

    fn enough(&self, got: usize, expected: usize) -> Result<(), End> {
        if got == expected { Ok(()) } else { Err(self.end.expect("else there were more")) }
    }

    /// Reads one chunk into the response, and answers its size: 0 for the last one.
    #[track_caller]
    pub fn chunk(&mut self, response: &mut Response) -> Result<usize, End> {
        let line = self.line().map_err(|broken| broken.end)?;
        assert!(!line.is_empty() && line.iter().all(u8::is_ascii_hexdigit), "no chunk size: {}", shown(&line));
        let size = usize::from_str_radix(std::str::from_utf8(&line).unwrap(), 16).unwrap();
        let data = self.read(size);
        response.body.extend_from_slice(&data);
        self.enough(data.len(), size)?;
        response.chunks.push(size);
        let end = self.read(2);
        self.enough(end.len(), 2)?;
        assert_eq!(end, b"\r\n", "after a chunk of {size}");
        Ok(size)
    }
}

fn is_end(fault: &io::Error) -> bool {
    matches!(fault.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn latin(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| byte as char).collect()
}

fn shown(bytes: &[u8]) -> String {
    format!("{} bytes, {}", bytes.len(), bytes[..bytes.len().min(300)].escape_ascii())
}
