//! Parses the response of one subscription as it arrives: the head, the chunks, and the events in them. No socket and no
//! clock. Lines of events end in LF or CRLF; a lone CR, which the standard also allows, is part of the line.

/// Maximum size of a response head, and of a line of an event that arrives in parts.
const MAX_BUFFERED: usize = 16 << 10;

/// What a piece of the response contains.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// The status of the response. Nothing follows unless it is 200.
    Status(u16),
    /// An event, with its numeric ID and the number after `"t":` in its data.
    Event { id: Option<u64>, sent: Option<u64> },
    /// The reconnection time in milliseconds.
    Retry(u64),
    /// The last chunk has arrived.
    End,
}

/// The response is not HTTP/1.1, or a line or the head is too long.
#[derive(Debug, PartialEq)]
pub struct Malformed;

#[derive(Clone, Copy, Default)]
enum Place {
    #[default]
    Head,
    /// The body ends with the connection.
    UntilClose,
    /// Of a chunk: its size, in hexadecimal digits until another character.
    Size(u64),
    /// The rest of the line with the size.
    Extension(u64),
    Chunk(u64),
    AfterChunk,
    Ended,
}

#[derive(Default)]
pub struct Stream {
    place: Place,
    /// The head, then the line that has not arrived completely. Usually empty and without memory.
    partial: Vec<u8>,
    id: Option<u64>,
    sent: Option<u64>,
    has_data: bool,
}

impl Stream {
    pub fn feed(&mut self, mut bytes: &[u8], sink: &mut impl FnMut(Step)) -> Result<(), Malformed> {
        while !bytes.is_empty() {
            match self.place {
                Place::Head => bytes = self.head(bytes, sink)?,
                Place::UntilClose => return self.body(bytes, sink),
                Place::Size(size) => match char::from(bytes[0]).to_digit(16) {
                    Some(digit) => {
                        self.place = Place::Size(size.checked_mul(16).ok_or(Malformed)? + u64::from(digit));
                        bytes = &bytes[1..];
                    }
                    None => self.place = Place::Extension(size),
                },
                Place::Extension(size) => {
                    let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else { return Ok(()) };
                    bytes = &bytes[end + 1..];
                    self.place = if size == 0 { Place::Ended } else { Place::Chunk(size) };
                    if size == 0 {
                        sink(Step::End);
                    }
                }
                Place::Chunk(left) => {
                    let (now, rest) = bytes.split_at(bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
                    self.body(now, sink)?;
                    bytes = rest;
                    let left = left - now.len() as u64;
                    self.place = if left == 0 { Place::AfterChunk } else { Place::Chunk(left) };
                }
                Place::AfterChunk => {
                    if bytes[0] == b'\n' {
                        self.place = Place::Size(0);
                    }
                    bytes = &bytes[1..];
                }
                Place::Ended => return Ok(()),
            }
        }
        Ok(())
    }

    /// Returns what follows the head.
    fn head<'a>(&mut self, bytes: &'a [u8], sink: &mut impl FnMut(Step)) -> Result<&'a [u8], Malformed> {
        let before = self.partial.len();
        self.partial.extend_from_slice(bytes);
        let Some(end) = self.partial.windows(4).position(|four| four == b"\r\n\r\n") else {
            return if self.partial.len() > MAX_BUFFERED { Err(Malformed) } else { Ok(&[]) };
        };
        let head = String::from_utf8_lossy(&self.partial[..end]).to_ascii_lowercase();
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.strip_prefix("http/1.")?.get(2..5)?.parse().ok());
        let status = status.ok_or(Malformed)?;
        let chunked = lines.any(|line| line.starts_with("transfer-encoding:") && line.contains("chunked"));
        self.partial = Vec::new();
        self.place = match (status, chunked) {
            (200, true) => Place::Size(0),
            (200, false) => Place::UntilClose,
            _ => Place::Ended,
        };
        sink(Step::Status(status));
        Ok(&bytes[end + 4 - before..])
    }

    fn body(&mut self, mut bytes: &[u8], sink: &mut impl FnMut(Step)) -> Result<(), Malformed> {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            if self.partial.is_empty() {
                self.line(&bytes[..end], sink);
            } else {
                // The memory is released with the line, so that 20,000 streams do not keep it.
                let mut line = std::mem::take(&mut self.partial);
                line.extend_from_slice(&bytes[..end]);
                self.line(&line, sink);
            }
            bytes = &bytes[end + 1..];
        }
        self.partial.extend_from_slice(bytes);
        if self.partial.len() > MAX_BUFFERED { Err(Malformed) } else { Ok(()) }
    }

    fn line(&mut self, line: &[u8], sink: &mut impl FnMut(Step)) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            let (id, sent) = (self.id.take(), self.sent.take());
            if std::mem::take(&mut self.has_data) {
                sink(Step::Event { id, sent });
            }
        } else if let Some(value) = line.strip_prefix(b"data:") {
            self.has_data = true;
            if let Some(at) = value.windows(4).position(|four| four == b"\"t\":") {
                self.sent = number(&value[at + 4..]);
            }
        } else if let Some(value) = line.strip_prefix(b"id:") {
            self.id = number(value);
        } else if let Some(value) = line.strip_prefix(b"retry:") {
            number(value).into_iter().for_each(|milliseconds| sink(Step::Retry(milliseconds)));
        }
    }
}

/// The digits at the start, after spaces.
fn number(bytes: &[u8]) -> Option<u64> {
    let digits = bytes.trim_ascii_start();
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole and byte by byte, which have to give the same.
    fn steps(response: &str) -> Vec<Step> {
        let (mut whole, mut parts) = (Vec::new(), Vec::new());
        Stream::default().feed(response.as_bytes(), &mut |step| whole.push(step)).unwrap();
        let mut stream = Stream::default();
        for byte in response.as_bytes() {
            stream.feed(&[*byte], &mut |step| parts.push(step)).unwrap();
        }
        assert_eq!(whole, parts);
        whole
    }

    const EVENT: Step = Step::Event { id: Some(17), sent: Some(123) };

    #[test]
    fn chunks_divide_events_anywhere() {
        let response = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
            B;a=b\r\n: hello\n\nid\r\n5\r\n: 17\n\r\n15\r\ndata: {\"n\": 1, \"t\": 1\r\n5\r\n23}\n\n\r\n0\r\n\r\n";
        assert_eq!(steps(response), [Step::Status(200), EVENT, Step::End]);
    }

    #[test]
    fn a_body_without_length_ends_with_the_connection() {
        let response =
            "HTTP/1.0 200 OK\r\n\r\nretry: 250\r\nid: 17\r\ndata: {\"t\":123}\r\n\r\ndata: other\n\nid: 18\n";
        let other = Step::Event { id: None, sent: None };
        assert_eq!(steps(response), [Step::Status(200), Step::Retry(250), EVENT, other]);
    }

    #[test]
    fn other_statuses_have_no_events() {
        let response = "HTTP/1.1 503 Busy\r\nContent-Length: 16\r\n\r\nid: 17\ndata: 1\n\n";
        assert_eq!(steps(response), [Step::Status(503)]);
    }

    #[test]
    fn what_is_not_http_is_malformed() {
        assert_eq!(Stream::default().feed(b"SSH-2.0\r\n\r\n", &mut |_| ()), Err(Malformed));
    }
}
