//! Where a response ends (RFC 9112, section 6), read as it arrives. The body is counted and not kept.

use std::str;

/// A head that is longer is refused.
const MOST_HEAD: usize = 64 * 1024;
/// Fields of a head.
const MOST_FIELDS: usize = 128;
/// A line of a chunked body that is longer is refused.
const MOST_LINE: usize = 8 * 1024;

/// A response that is not HTTP/1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// A response that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) status: u16,
    /// The connection can take another request.
    pub(crate) is_kept: bool,
}

#[derive(Debug, Clone, Copy)]
enum Body {
    /// The head is not complete.
    None,
    /// This many bytes are left.
    Length(u64),
    /// A line with the size of a chunk.
    Size,
    /// This many bytes of a chunk, and of the line end after it, are left.
    Chunk(u64),
    /// The lines after the last chunk.
    Trailer,
    /// The end of the connection is that of the body.
    UntilClose,
}

/// Reads the responses of one connection.
#[derive(Debug)]
pub(crate) struct Reader {
    /// The head, or a line of a chunked body, as far as it has arrived.
    begun: Vec<u8>,
    body: Body,
    status: u16,
    is_kept: bool,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self { begun: Vec::new(), body: Body::None, status: 0, is_kept: true }
    }

    /// Begins with a new connection.
    pub(crate) fn reset(&mut self) {
        self.begun.clear();
        self.body = Body::None;
    }

    /// Takes bytes that have arrived; `Some` when they end a response. Bytes behind a response, to which no request was
    /// sent, are an error.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) -> Result<Option<Ended>, Malformed> {
        while !bytes.is_empty() {
            match self.body {
                Body::None => {
                    let before = self.begun.len();
                    self.begun.extend_from_slice(bytes);
                    let Some(length) = self.head()? else {
                        return if self.begun.len() > MOST_HEAD { Err(Malformed) } else { Ok(None) };
                    };
                    bytes = bytes.get(length - before..).unwrap_or(&[]);
                    self.begun.clear();
                }
                Body::Length(left) => {
                    let here = left.min(bytes.len() as u64);
                    self.body = Body::Length(left - here);
                    bytes = bytes.get(here as usize..).unwrap_or(&[]);
                }
                Body::Chunk(left) => {
                    let here = left.min(bytes.len() as u64);
                    self.body = if left == here { Body::Size } else { Body::Chunk(left - here) };
                    bytes = bytes.get(here as usize..).unwrap_or(&[]);
                }
                Body::Size | Body::Trailer => {
                    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
                        self.begun.extend_from_slice(bytes);
                        return if self.begun.len() > MOST_LINE { Err(Malformed) } else { Ok(None) };
                    };
                    self.begun.extend_from_slice(bytes.get(..end).unwrap_or(&[]));
                    bytes = bytes.get(end + 1..).unwrap_or(&[]);
                    let is_end = self.line()?;
                    self.begun.clear();
                    if is_end {
                        self.body = Body::Length(0);
                    }
                }
                Body::UntilClose => return Ok(None),
            }
            if let Body::Length(0) = self.body {
                self.body = Body::None;
                if !bytes.is_empty() {
                    return Err(Malformed);
                }
                return Ok(Some(Ended { status: self.status, is_kept: self.is_kept }));
            }
        }
        Ok(None)
    }

    /// The server has closed the connection; `Some` when that ends a response.
    pub(crate) fn close(&mut self) -> Option<Ended> {
        let is_end = matches!(self.body, Body::UntilClose);
        self.reset();
        is_end.then_some(Ended { status: self.status, is_kept: false })
    }

    /// Reads the head, and says where it ends. `None`: it is not complete.
    fn head(&mut self) -> Result<Option<usize>, Malformed> {
        let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
        let mut response = httparse::Response::new(&mut fields);
        let length = match response.parse(&self.begun) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(Malformed),
        };
        let (status, version) = (response.code.unwrap_or(0), response.version.unwrap_or(0));
        let (mut content_length, mut is_chunked, mut is_kept) = (None, false, version == 1);
        for field in response.headers.iter() {
            let value = field.value.trim_ascii();
            if field.name.eq_ignore_ascii_case("content-length") {
                let value = str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok()).ok_or(Malformed)?;
                if content_length.is_some_and(|before| before != value) {
                    return Err(Malformed);
                }
                content_length = Some(value);
            } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
                is_chunked = value.eq_ignore_ascii_case(b"chunked");
                if !is_chunked {
                    return Err(Malformed);
                }
            } else if field.name.eq_ignore_ascii_case("connection") {
                for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                    if option.eq_ignore_ascii_case(b"close") {
                        is_kept = false;
                    } else if option.eq_ignore_ascii_case(b"keep-alive") && version == 0 {
                        is_kept = true;
                    }
                }
            }
        }
        self.status = status;
        self.body = if status < 200 && status != 101 {
            // Another head follows.
            self.begun.drain(..length);
            return self.head().map(|rest| rest.map(|rest| rest + length));
        } else if status == 204 || status == 304 {
            Body::Length(0)
        } else if is_chunked {
            Body::Size
        } else if let Some(length) = content_length {
            Body::Length(length)
        } else {
            is_kept = false;
            Body::UntilClose
        };
        self.is_kept = is_kept;
        Ok(Some(length))
    }

    /// Reads a line of a chunked body. True: it is the last one.
    fn line(&mut self) -> Result<bool, Malformed> {
        let line = self.begun.trim_ascii();
        if matches!(self.body, Body::Trailer) {
            return Ok(line.is_empty());
        }
        let digits = line.split(|byte| *byte == b';').next().unwrap_or(&[]).trim_ascii_end();
        let size = str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'));
        let size = size.and_then(|text| u64::from_str_radix(text, 16).ok()).ok_or(Malformed)?;
        self.body = if size == 0 { Body::Trailer } else { Body::Chunk(size.checked_add(2).ok_or(Malformed)?) };
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Ended, Malformed, Reader};

    /// The outcome of a response that arrives in pieces of this many bytes.
    fn read(response: &[u8], piece: usize) -> Result<Option<Ended>, Malformed> {
        let mut reader = Reader::new();
        let mut outcome = None;
        for piece in response.chunks(piece) {
            assert_eq!(outcome, None, "it has ended before its last byte");
            outcome = reader.take(piece)?;
        }
        Ok(outcome.or_else(|| reader.close()))
    }

    #[test]
    fn a_response_ends_where_its_framing_says_however_it_arrives() {
        let kept = |status| Ok(Some(Ended { status, is_kept: true }));
        let closed = |status| Ok(Some(Ended { status, is_kept: false }));
        for (response, expected) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npong", kept(200)),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", kept(200)),
            ("HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n", kept(304)),
            ("HTTP/1.1 500 X\r\nConnection: close\r\ncontent-length: 1\r\n\r\nx", closed(500)),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npong\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n",
                kept(200),
            ),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\nZ: 0\r\n\r\n", kept(200)),
            ("HTTP/1.1 200 OK\r\n\r\nuntil the end", closed(200)),
            ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", closed(200)),
            ("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nok", kept(200)),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok", kept(201)),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\npong", Ok(None)),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npong\r\n0\r\n", Ok(None)),
            ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\npong", Err(Malformed)),
            ("HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\npong", Err(Malformed)),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", Err(Malformed)),
            ("ICY 200 OK\r\n\r\n", Err(Malformed)),
        ] {
            for piece in [1, 2, 3, 7, 10_000] {
                assert_eq!(read(response.as_bytes(), piece), expected, "{response:?} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn bytes_behind_a_response_are_an_error() {
        assert_eq!(read(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npong!", 10_000), Err(Malformed));
    }

    #[test]
    fn a_head_or_a_line_without_end_is_refused() {
        let mut reader = Reader::new();
        let endless = vec![b'x'; 100_000];
        assert_eq!(reader.take(b"HTTP/1.1 200 OK\r\nX: "), Ok(None));
        assert_eq!(reader.take(&endless), Err(Malformed));
        reader.reset();
        assert_eq!(reader.take(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;"), Ok(None));
        assert_eq!(reader.take(&endless), Err(Malformed));
    }
}
