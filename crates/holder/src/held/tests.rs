#![allow(clippy::unwrap_used)]
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use tailrace_os::clock::now;

use super::{Counts, GATHERED, Gathered, Held, MAX_RECEIVED, Outcome, Reason, with_id};
use crate::channels::{Channels, ReplayLimits};
use crate::grip::Instructions;
use crate::message::{Format, Hold};
use crate::publication::parse;

/// A held connection, its client, and what the holder has of all connections.
struct Case {
    held: Held,
    client: UnixStream,
    channels: Channels,
    gathered: Gathered,
    counts: Counts,
    now: Instant,
}

fn hold(fields: &[(&str, &str)]) -> Hold {
    let text = |text: &str| serde_bytes::ByteBuf::from(text);
    Hold {
        format: Format::Http11,
        client: String::from("192.0.2.1"),
        request: String::from("GET /"),
        last_event_id: None,
        status: b"200 OK".to_vec(),
        fields: vec![(text("Content-Type"), text("text/event-stream")), (text("Content-Length"), text("5"))],
        server: Vec::new(),
        body: b"begun".to_vec(),
        instructions: Instructions::parse(fields.iter().copied()).unwrap(),
        is_relayed: false,
        took_micros: 0,
        origin: None,
    }
}

impl Case {
    fn new(hold: Hold, kept: usize) -> Self {
        let (theirs, ours) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let limits = ReplayLimits { bytes: kept, time: Duration::from_secs(60) };
        let last_event_id = hold.last_event_id.clone();
        let (mut channels, now) = (Channels::new(limits), now());
        let mut held = Held::new(hold, ours.into(), now).unwrap();
        held.join(0, &mut channels, last_event_id.as_deref());
        Self { held, client: theirs, channels, gathered: Gathered::default(), counts: Counts::default(), now }
    }

    fn stream(fields: &[(&str, &str)]) -> Self {
        let basic = [("Grip-Hold", "stream"), ("Grip-Channel", "a")];
        let mut case = Self::new(hold(&[&basic, fields].concat()), 64 << 20);
        assert_eq!(case.flush(), Outcome::Idle);
        assert!(case.received().ends_with("\r\n\r\n5\r\nbegun\r\n"));
        case
    }

    fn response() -> Self {
        let mut case = Self::new(hold(&[("Grip-Hold", "response"), ("Grip-Channel", "a")]), 64 << 20);
        assert_eq!(case.flush(), Outcome::Idle);
        assert_eq!(case.received(), "");
        case
    }

    fn publish(&mut self, item: &str) {
        for publication in parse(format!("{{\"items\": [{item}]}}").as_bytes()).unwrap() {
            self.channels.publish(publication, self.now);
        }
    }

    /// Publishes content for streams.
    fn content(&mut self, content: &str) {
        self.publish(&format!(r#"{{"channel": "a", "formats": {{"http-stream": {{"content": "{content}"}}}}}}"#));
    }

    /// Sends until there is nothing more to be sent now.
    fn flush(&mut self) -> Outcome {
        loop {
            match self.held.flush(&self.channels, &mut self.gathered, &mut self.counts) {
                Outcome::More => {}
                other => return other,
            }
        }
    }

    /// What the client has been sent; it reads at most this much.
    fn take(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; most];
        let mut filled = 0;
        while filled < most {
            match self.client.read(&mut bytes[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(fault) if fault.kind() == ErrorKind::WouldBlock => break,
                Err(fault) => unreachable!("{fault}"),
            }
        }
        bytes.truncate(filled);
        bytes
    }

    fn received(&mut self) -> String {
        String::from_utf8(self.take(1 << 24)).unwrap()
    }

    /// All that is sent until the connection has it, to a client that reads.
    fn drained(&mut self) -> String {
        let mut all = self.received();
        while self.flush() == Outcome::Blocked {
            let more = self.received();
            assert!(!more.is_empty(), "it is blocked though the client reads");
            all += &more;
            // As the event of the poller says.
            self.held.is_writable = true;
        }
        all + &self.received()
    }
}

/// The data of chunks, which must be whole.
fn data(mut chunks: &str) -> String {
    let mut data = String::new();
    while let Some((size, rest)) = chunks.split_once("\r\n") {
        let (content, rest) = rest.split_at(usize::from_str_radix(size, 16).unwrap());
        data += content;
        chunks = rest.strip_prefix("\r\n").unwrap();
    }
    assert_eq!(chunks, "");
    data
}

#[test]
fn a_stream_has_no_length_and_one_chunk_for_each_publication() {
    let mut case = Case::new(hold(&[("Grip-Hold", "stream"), ("Grip-Channel", "a")]), 1 << 20);
    case.flush();
    let head = case.received();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("\r\nTransfer-Encoding: chunked\r\n"), "{head}");
    assert!(!head.contains("Content-Length") && head.contains("\r\nConnection: close\r\n"), "{head}");
    case.content("x");
    case.content("yz");
    assert_eq!(case.flush(), Outcome::Idle);
    assert_eq!(case.received(), "1\r\nx\r\n2\r\nyz\r\n");
    assert_eq!((case.counts.delivered, case.held.state.number), (2, 2));
    assert_eq!(case.flush(), Outcome::Idle);
    assert_eq!(case.received(), "");
}

#[test]
fn a_client_that_reads_in_pieces_gets_every_publication_once() {
    let mut case = Case::stream(&[]);
    let mut expected = String::new();
    for number in 0..300 {
        let content = format!("{number} {}", "x".repeat(number * 97 % 5000));
        case.content(&content);
        expected += &content;
    }
    let mut received = Vec::new();
    let mut blocked = 0;
    while received.len() < expected.len() || case.held.state.number < 300 {
        blocked += usize::from(case.flush() == Outcome::Blocked);
        let piece = case.take(7001);
        received.extend_from_slice(&piece);
        case.held.is_writable = true;
        if piece.is_empty() {
            break;
        }
    }
    received.extend_from_slice(case.drained().as_bytes());
    assert_eq!(data(&String::from_utf8(received).unwrap()), expected);
    assert!(blocked > 3, "the socket took everything, so that nothing was tested");
    assert!(case.held.waiting() == 0 && case.counts.delivered == 300);
}

#[test]
fn the_next_holder_goes_on_in_the_middle_of_a_publication() {
    let mut case = Case::stream(&[]);
    let large = "x".repeat(600_000);
    case.content(&large);
    case.content("behind it");
    assert_eq!(case.flush(), Outcome::Blocked);
    assert!(case.held.waiting() > 0, "it is in the middle");
    let state = case.held.portable(&case.channels);
    let content = crate::message::content_of(&state).unwrap();
    let state = crate::message::value_of(&content).unwrap();
    let socket = case.held.socket().try_clone().unwrap();
    let mut next = Held::of(state, socket, case.now);
    next.is_taken_over = true;
    next.join(0, &mut case.channels, None);
    case.held = next;
    assert_eq!(data(&case.drained()), large + "behind it");
}

#[test]
fn a_client_that_needs_what_was_dropped_is_behind() {
    let mut case = Case::new(hold(&[("Grip-Hold", "stream"), ("Grip-Channel", "a")]), 1 << 20);
    case.flush();
    for _ in 0..8 {
        case.content(&"x".repeat(400_000));
        case.flush();
    }
    assert!(!case.held.is_writable);
    assert!(case.held.waiting() < 900_000, "it has the rest of one publication: {}", case.held.waiting());
    // It reads again, and the rest of the publication that was begun comes first.
    case.received();
    case.held.is_writable = true;
    let mut outcome = case.flush();
    while outcome == Outcome::Blocked {
        case.received();
        case.held.is_writable = true;
        outcome = case.flush();
    }
    assert_eq!(outcome, Outcome::Ended(Reason::Behind));
}

#[test]
fn one_write_is_of_limited_size() {
    let mut case = Case::stream(&[]);
    for _ in 0..10 {
        case.content(&"x".repeat(GATHERED / 4));
    }
    let outcome = case.held.flush(&case.channels, &mut case.gathered, &mut case.counts);
    assert_eq!((outcome, case.held.state.number), (Outcome::More, 4));
}

#[test]
fn what_was_gathered_for_one_client_serves_another_that_is_at_the_same_place_alone() {
    let mut first = Case::stream(&[]);
    let (theirs, ours) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut old = hold(&[("Grip-Hold", "stream"), ("Grip-Channel", "a")]);
    old.format = Format::Http10;
    let mut second = Held::new(old, ours.into(), first.now).unwrap();
    second.join(1, &mut first.channels, None);
    first.content("x");
    first.flush();
    // Without chunks.
    while second.flush(&first.channels, &mut first.gathered, &mut first.counts) == Outcome::More {}
    first.content("y");
    while second.flush(&first.channels, &mut first.gathered, &mut first.counts) == Outcome::More {}
    first.flush();
    assert_eq!(first.received(), "1\r\nx\r\n1\r\ny\r\n");
    let mut bytes = vec![0; 1000];
    let length = (&theirs).read(&mut bytes).unwrap();
    assert!(bytes[..length].ends_with(b"\r\n\r\nbegunxy"));
}

#[test]
fn a_publication_can_end_the_stream_and_what_follows_is_not_sent() {
    let mut case = Case::stream(&[]);
    case.content("x");
    case.publish(r#"{"channel": "a", "formats": {"http-stream": {"action": "close"}}}"#);
    case.content("y");
    assert_eq!(case.flush(), Outcome::Ended(Reason::Complete));
    assert_eq!(case.received(), "1\r\nx\r\n0\r\n\r\n");
}

#[test]
fn a_stream_is_kept_alive_a_time_after_it_was_last_sent_something() {
    let mut case = Case::stream(&[("Grip-Keep-Alive", "ping; timeout=20")]);
    let (sent_at, seconds) = (case.held.sent_at, Duration::from_secs);
    assert_eq!(case.held.expires_at(), Some(sent_at + seconds(20)));
    assert_eq!(case.held.expire(sent_at + seconds(19)), Outcome::Idle);
    assert_eq!(case.held.expire(sent_at + seconds(20)), Outcome::More);
    case.flush();
    assert_eq!(case.received(), "4\r\nping\r\n");
    // The content is there for the next time.
    let sent_at = case.held.sent_at;
    assert_eq!(case.held.expire(sent_at + seconds(20)), Outcome::More);
    case.flush();
    assert_eq!(case.received(), "4\r\nping\r\n");
    // One that is blocked needs none.
    case.held.is_writable = false;
    assert_eq!(case.held.expire(sent_at + seconds(60)), Outcome::Idle);
}

#[test]
fn an_event_source_is_asked_to_wait_before_it_comes_back() {
    let mut case = Case::stream(&[]);
    case.held.stop(8_000);
    assert_eq!(case.flush(), Outcome::Ended(Reason::Complete));
    assert_eq!(case.received(), "d\r\nretry: 9000\n\n\r\n0\r\n\r\n");
    let mut case = Case::stream(&[]);
    case.held.stop(9_000);
    case.flush();
    assert_eq!(case.received(), "d\r\nretry: 1000\n\n\r\n0\r\n\r\n");
}

#[test]
fn the_first_publication_for_responses_is_the_response() {
    let mut case = Case::response();
    case.content("for streams");
    assert_eq!(case.flush(), Outcome::Idle);
    case.publish(r#"{"channel": "a", "http-response": {"code": 202, "headers": {"X-A": "1"}, "body": "one"}}"#);
    case.publish(r#"{"channel": "a", "http-response": {"body": "two"}}"#);
    assert_eq!(case.flush(), Outcome::Ended(Reason::Complete));
    let response = case.received();
    assert!(response.starts_with("HTTP/1.1 202 ") && response.ends_with("\r\n\r\none"), "{response}");
    assert!(response.contains("\r\nX-A: 1\r\n") && response.contains("\r\nContent-Length: 3\r\n"), "{response}");
}

#[test]
fn a_response_that_nothing_has_replaced_is_sent_when_its_time_has_come() {
    let mut case = Case::response();
    let at = case.held.expires_at().unwrap();
    assert_eq!(at, case.held.since + Duration::from_secs(55));
    assert_eq!(case.held.expire(at), Outcome::More);
    assert_eq!(case.flush(), Outcome::Ended(Reason::Complete));
    let response = case.received();
    assert!(response.contains("\r\nContent-Length: 5\r\n") && response.ends_with("\r\n\r\nbegun"), "{response}");
}

#[test]
fn what_a_client_sends_is_discarded_up_to_a_limit_and_its_end_is_noticed() {
    let mut case = Case::stream(&[]);
    let mut buffer = [0; 4096];
    assert_eq!(case.held.receive(&mut buffer), None);
    case.client.write_all(&vec![0; MAX_RECEIVED as usize]).unwrap();
    assert_eq!(case.held.receive(&mut buffer), None);
    case.client.write_all(b"x").unwrap();
    assert_eq!(case.held.receive(&mut buffer), Some(Reason::Sent));
    let mut case = Case::stream(&[]);
    case.client.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(case.held.receive(&mut buffer), Some(Reason::Left));
    case.content("x");
    assert_eq!(case.flush(), Outcome::Ended(Reason::Left));
    // The process that encrypts ends, and the client is still there.
    let mut relayed = hold(&[("Grip-Hold", "stream"), ("Grip-Channel", "a")]);
    relayed.is_relayed = true;
    let mut case = Case::new(relayed, 1 << 20);
    case.client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(case.held.receive(&mut buffer), Some(Reason::Stopped));
}

#[test]
fn each_channel_begins_behind_the_event_that_the_application_names() {
    let event = |channel: &str, id: &str| {
        format!(r#"{{"channel": "{channel}", "id": "{id}", "http-stream": {{"content": "{channel}{id} "}}}}"#)
    };
    let mut case = Case::stream(&[]);
    for (channel, id) in [("b", "1"), ("c", "1"), ("c", "2"), ("b", "2"), ("d", "1")] {
        case.publish(&event(channel, id));
    }
    let (theirs, ours) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    case.client = theirs;
    case.client.set_nonblocking(true).unwrap();
    let fields = [("Grip-Hold", "stream"), ("Grip-Channel", "b; prev-id=1, c; prev-id=2, d, e; prev-id=unknown")];
    case.held = Held::new(hold(&fields), ours.into(), case.now).unwrap();
    case.held.join(1, &mut case.channels, Some("ignored"));
    case.publish(&event("d", "2"));
    case.publish(&event("e", "unknown"));
    case.publish(&event("e", "1"));
    let sent = case.drained();
    let (_, chunks) = sent.split_once("\r\n\r\n").unwrap();
    assert_eq!(data(chunks), "begunb2 d2 e1 ");
}

#[test]
fn a_percent_sign_and_an_i_stand_for_the_id() {
    assert_eq!(with_id(b"id: %I\n%%I 100% %x%", b"7"), b"id: 7\n%I 100% %x%");
}

#[test]
fn of_a_channel_whose_named_event_is_not_kept_the_client_gets_what_came_while_the_application_worked() {
    let mut channels = Channels::new(ReplayLimits::default());
    let now = now();
    let earlier = |seconds| now.checked_sub(Duration::from_secs(seconds)).unwrap();
    for (id, age) in [("3", 8), ("4", 1)] {
        let item = format!(
            r#"{{"items": [{{"channel": "a", "id": "{id}", "formats": {{"http-stream": {{"content": "<{id}>"}}}}}}]}}"#
        );
        channels.publish(parse(item.as_bytes()).unwrap().remove(0), earlier(age));
    }
    let fields = [("Grip-Hold", "stream"), ("Grip-Channel", "a; prev-id=1")];
    let (mut theirs, ours) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut held = Held::new(Hold { took_micros: 10_000_000, ..hold(&fields) }, ours.into(), now).unwrap();
    held.join(0, &mut channels, None);
    let (mut gathered, mut counts) = (Gathered::default(), Counts::default());
    while held.flush(&channels, &mut gathered, &mut counts) == Outcome::More {}
    drop(held);
    let mut sent = String::new();
    theirs.read_to_string(&mut sent).unwrap();
    assert!(sent.ends_with("begun\r\n3\r\n<3>\r\n3\r\n<4>\r\n"), "{sent}");
    // If the channel has an older event, the named one cannot have been dropped: it has not arrived yet.
    let (mut theirs, ours) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut held = Held::new(Hold { took_micros: 5_000_000, ..hold(&fields) }, ours.into(), now).unwrap();
    held.join(1, &mut channels, None);
    while held.flush(&channels, &mut gathered, &mut counts) == Outcome::More {}
    drop(held);
    let mut sent = String::new();
    theirs.read_to_string(&mut sent).unwrap();
    assert!(sent.ends_with("begun\r\n"), "{sent}");
}
