#![allow(clippy::unwrap_used)]
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tailrace_os::socket::{self, Io};
use tailrace_os::{clock, passing};

use super::{Holder, LAST_BYTES, Limits, MAX_WAITING, RETRY_TIMER};
use crate::call::Answer;
use crate::calls::MAX_MADE;
use crate::channels::ReplayLimits;
use crate::grip::Instructions;
use crate::held::Reason;
use crate::message::{self, Format, Hold, Kind, Opening, Origin};
use crate::publication::parse;

static NAMES: AtomicU32 = AtomicU32::new(0);

/// A holder whose steps a test takes, its address, and the lines of its log.
struct Case {
    holder: Holder,
    name: Vec<u8>,
    listener: UnixListener,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Case {
    fn new(limits: Limits) -> Self {
        let number = NAMES.fetch_add(1, Ordering::Relaxed);
        let name = format!("tailrace-holder-test-{}-{number}", std::process::id()).into_bytes();
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        Self::at(listener, name, limits)
    }

    fn at(listener: UnixListener, name: Vec<u8>, limits: Limits) -> Self {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let log = lines.clone();
        let own = OwnedFd::from(listener.try_clone().unwrap());
        let log = Box::new(move |_, line: &str| log.lock().unwrap().push(line.to_owned()));
        let holder = Holder::new(own, b"no-application".to_vec(), limits, log).unwrap();
        Self { holder, name, listener, lines }
    }

    /// A client whose response is held.
    fn client(&mut self, fields: &[(&str, &str)], body: &[u8]) -> UnixStream {
        let (theirs, ours) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let content = message::content_of(&hold(fields, body)).unwrap();
        self.holder.hold(&content, Some(ours.into()), clock::now());
        self.holder.flush();
        theirs
    }

    fn publish(&mut self, content: &str) {
        for publication in items(content) {
            self.holder.publish(publication, clock::now());
        }
        while !self.holder.listed.is_empty() {
            self.holder.flush();
        }
    }

    fn closed(&self, reason: Reason) -> u64 {
        self.holder.closed.get(&reason).copied().unwrap_or(0)
    }
}

const STREAM: [(&str, &str); 2] = [("Grip-Hold", "stream"), ("Grip-Channel", "a")];
const RESPONSE: [(&str, &str); 3] = [("Grip-Hold", "response"), ("Grip-Channel", "a"), ("Grip-Timeout", "1")];

fn hold(fields: &[(&str, &str)], body: &[u8]) -> Hold {
    Hold {
        format: Format::Http11,
        client: String::from("192.0.2.1"),
        request: String::from("GET /held"),
        last_event_id: None,
        status: b"200 OK".to_vec(),
        fields: Vec::new(),
        server: Vec::new(),
        body: body.to_vec(),
        instructions: Instructions::parse(fields.iter().copied()).unwrap(),
        is_relayed: false,
        took_micros: 0,
        origin: None,
    }
}

fn document(content: &str) -> String {
    format!(r#"{{"items": [{{"channel": "a", "http-stream": {{"content": "{content}"}}}}]}}"#)
}

fn items(content: &str) -> Vec<crate::publication::Publication> {
    parse(document(content).as_bytes()).unwrap()
}

/// What a client has been sent so far.
fn received(mut client: &UnixStream) -> String {
    let (mut all, mut bytes) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match client.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => all.extend_from_slice(&bytes[..count]),
            Err(fault) if fault.kind() == ErrorKind::WouldBlock => break,
            Err(fault) => unreachable!("{fault}"),
        }
    }
    String::from_utf8(all).unwrap()
}

fn is_at_end(mut client: &UnixStream) -> bool {
    received(client);
    matches!(client.read(&mut [0; 1]), Ok(0))
}

#[test]
fn all_clients_of_a_channel_are_sent_what_is_published_on_it() {
    let mut case = Case::new(Limits::default());
    // More than are sent something before events are looked at again.
    let clients: Vec<_> = (0..1200).map(|_| case.client(&STREAM, b"begun")).collect();
    let other = case.client(&[("Grip-Hold", "stream"), ("Grip-Channel", "b")], b"begun");
    case.publish("x");
    for client in &clients {
        assert!(received(client).ends_with("5\r\nbegun\r\n1\r\nx\r\n"));
    }
    assert!(received(&other).ends_with("5\r\nbegun\r\n"));
    assert_eq!(case.holder.figures()["delivered"], 1200);
}

#[test]
fn places_of_members_stay_true_while_connections_come_and_go() {
    let mut case = Case::new(Limits::default());
    let fields = [("Grip-Hold", "stream"), ("Grip-Channel", "a, b, c, a")];
    let mut clients: Vec<_> = (0..40).map(|_| Some(case.client(&fields, b""))).collect();
    for (turn, at) in (0..40).map(|turn| (turn, turn * 7 % 40)) {
        let key = case.holder.held.iter().nth(turn % case.holder.held.len()).unwrap().0;
        case.holder.close(key, Reason::Left);
        clients[at] = Some(case.client(&fields, b""));
        for (key, held) in &case.holder.held {
            for (at, subscribed) in held.state.subscriptions.iter().enumerate() {
                let member = case.holder.channels.get(subscribed.channel).unwrap().members[subscribed.place];
                assert_eq!((member.key, member.subscription), (key, at));
            }
        }
    }
    let keys: Vec<_> = case.holder.held.iter().map(|(key, _)| key).collect();
    for key in keys {
        case.holder.close(key, Reason::Left);
    }
    assert_eq!((case.holder.channels.count(), case.holder.by_client.len()), (0, 0));
}

#[test]
fn one_client_has_a_limited_number_of_connections_and_is_told() {
    let mut case = Case::new(Limits { connections_per_client: 2, ..Limits::default() });
    let kept = [case.client(&STREAM, b""), case.client(&STREAM, b"")];
    let refused = case.client(&STREAM, b"");
    let response = received(&refused);
    assert!(response.starts_with("HTTP/1.1 503 ") && response.contains("\r\nRetry-After: 10\r\n"), "{response}");
    assert!(is_at_end(&refused));
    assert_eq!((case.holder.held.len(), case.closed(Reason::TooMany)), (2, 1));
    assert!(
        case.lines.lock().unwrap()[0]
            .contains("GET /held: a held connection was closed: the client has reached its limit")
    );
    let (key, _) = case.holder.held.iter().next().unwrap();
    case.holder.close(key, Reason::Left);
    assert!(received(&case.client(&STREAM, b"")).starts_with("HTTP/1.1 200 "));
    drop(kept);
}

#[test]
fn a_client_that_is_receiving_its_response_is_not_cut_off_by_an_earlier_timer() {
    let mut case = Case::new(Limits::default());
    let client = case.client(&RESPONSE, &vec![b'x'; 1 << 20]);
    let since = clock::now() + Duration::from_secs(1);
    case.holder.expire(since);
    while !case.holder.listed.is_empty() {
        case.holder.flush();
    }
    let begun = received(&client).len();
    assert!(begun > 0 && begun < 1 << 20, "the socket took everything, so that nothing is tested");
    // All timers but the last, which is for a client that accepts nothing.
    case.holder.expire(since + RETRY_TIMER * 2);
    assert_eq!(case.holder.held.len(), 1);
    let (key, _) = case.holder.held.iter().next().unwrap();
    case.holder.client_event(super::CLIENTS + key as u64, false, true);
    case.holder.flush();
    assert!(!received(&client).is_empty());
    case.holder.expire(clock::now() + LAST_BYTES * 2);
    assert!(case.holder.held.is_empty() && is_at_end(&client));
}

#[test]
fn a_timer_of_a_connection_that_has_gone_does_not_concern_the_next_one_with_its_key() {
    let mut case = Case::new(Limits::default());
    drop(case.client(&RESPONSE, b""));
    let (key, _) = case.holder.held.iter().next().unwrap();
    case.holder.close(key, Reason::Left);
    let client = case.client(&[("Grip-Hold", "response"), ("Grip-Channel", "a"), ("Grip-Timeout", "60")], b"later");
    assert!(case.holder.held.contains(key), "the key is used again");
    case.holder.expire(clock::now() + Duration::from_secs(2));
    case.holder.flush();
    assert_eq!(received(&client), "");
}

#[test]
fn a_client_that_does_not_keep_up_is_closed_with_a_line_and_others_are_sent_everything() {
    let limits = ReplayLimits { bytes: 1 << 20, time: Duration::from_secs(60) };
    let mut case = Case::new(Limits { replay: limits, ..Limits::default() });
    let (slow, fast) = (case.client(&STREAM, b""), case.client(&STREAM, b""));
    let content = "x".repeat(150_000);
    let mut length = 0;
    for _ in 0..30 {
        case.publish(&content);
        length += received(&fast).len();
        let keys: Vec<_> = case.holder.held.iter().map(|(key, _)| key).collect();
        // The kernel says that the fast one accepts more.
        case.holder.client_event(super::CLIENTS + keys[1] as u64, false, true);
        case.holder.flush();
        length += received(&fast).len();
    }
    assert!(length > 30 * content.len());
    assert!(case.holder.channels.bytes() <= 1 << 20);
    while case.holder.held.len() == 2 {
        assert!(!received(&slow).is_empty());
        case.holder.client_event(super::CLIENTS, false, true);
        case.holder.flush();
    }
    assert_eq!(case.closed(Reason::Behind), 1);
    assert!(case.lines.lock().unwrap()[0].contains("the client was too slow, and events were dropped"));
}

#[test]
fn a_stopping_holder_completes_its_responses_and_then_ends() {
    let mut case = Case::new(Limits::default());
    let (stream, response) = (case.client(&STREAM, b""), case.client(&RESPONSE, b"later"));
    let stop = case.holder.stop_handle();
    let running = thread::spawn(move || case.holder.run());
    stop.stop();
    running.join().unwrap().unwrap();
    assert!(received(&stream).ends_with("\r\n\r\n0\r\n\r\n"));
    assert!(received(&response).ends_with("\r\n\r\nlater"));
    assert!(is_at_end(&stream) && is_at_end(&response));
}

#[test]
fn connections_and_publications_come_over_the_socket() {
    let Case { holder, name, lines, .. } = Case::new(Limits::default());
    let stop = holder.stop_handle();
    let running = thread::spawn(move || holder.run());
    let (client, ours) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    // Larger than what fits in the buffer of a socket.
    let body = vec![b'y'; 300_000];
    message::pass(&name, Kind::Hold, &hold(&STREAM, &body), std::os::fd::AsFd::as_fd(&ours)).unwrap();
    drop(ours);
    let mut begun = vec![0; 300_000];
    (&client).read_exact(&mut begun).unwrap();
    let ask = |kind, content: &[u8]| {
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let mut line = UnixStream::connect_addr(&address).unwrap();
        line.write_all(&message::encode(kind, content)).unwrap();
        let mut answer = vec![0; 4096];
        let length = line.read(&mut answer).unwrap();
        String::from_utf8(answer[..length].to_vec()).unwrap()
    };
    assert_eq!(ask(Kind::Publish, document("x").as_bytes()), "+");
    assert!(ask(Kind::Publish, br#"{"items": [{}]}"#).starts_with("-item 1: "));
    assert!(ask(Kind::Figures, b"").contains("\"connections\":1"));
    stop.stop();
    running.join().unwrap().unwrap();
    let mut rest = String::new();
    (&client).read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("\r\n1\r\nx\r\n0\r\n\r\n"), "{}", &rest[rest.len() - 40..]);
    assert!(lines.lock().unwrap().is_empty());
}

#[test]
fn processes_that_listen_get_what_is_published_in_raw_form_until_they_do_not_read() {
    let mut case = Case::new(Limits::default());
    let address = SocketAddr::from_abstract_name(&case.name).unwrap();
    let listen = |case: &mut Case, channel: &str| {
        let mut process = UnixStream::connect_addr(&address).unwrap();
        process.write_all(&message::encode(Kind::Listen, channel.as_bytes())).unwrap();
        case.holder.accept(clock::now());
        let mut answer = [0; 1];
        process.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"+");
        process.set_nonblocking(true).unwrap();
        process
    };
    let (process, other) = (listen(&mut case, "a"), listen(&mut case, "b"));
    let publish = |case: &mut Case, content: &str| {
        let document =
            format!(r#"{{"items": [{{"channel": "a", "formats": {{"raw": {{"content": "{content}"}}}}}}]}}"#);
        for publication in parse(document.as_bytes()).unwrap() {
            case.holder.publish(publication, clock::now());
        }
    };
    publish(&mut case, "one");
    publish(&mut case, "two");
    assert_eq!(received(&process), "\u{4}\0\0\0Lone\u{4}\0\0\0Ltwo");
    assert_eq!(received(&other), "");
    assert_eq!(case.holder.channels.count(), 0, "it is not kept");
    // It waits for longer than a process that is to say something.
    case.holder.expire(clock::now() + Duration::from_secs(3600));
    publish(&mut case, "late");
    assert!(received(&process).ends_with("Llate"));
    // More than a socket has room for.
    for _ in 0..20_000 {
        publish(&mut case, &"x".repeat(100));
    }
    let mut bytes = 0;
    while bytes < 2_100_000 {
        bytes += received(&process).len();
        let keys: Vec<_> = case.holder.controls.iter().map(|(key, _)| key as u64).collect();
        keys.into_iter().for_each(|key| case.holder.control_event(key, clock::now()));
    }
    assert_eq!((bytes, case.holder.controls.len()), (2_100_000, 2));
    // The bytes of its length are text.
    for _ in 0..40 {
        publish(&mut case, &"x".repeat(0x0007_0707 - 1));
    }
    assert!(is_at_end(&process));
    assert_eq!(case.lines.lock().unwrap().len(), 1);
    assert_eq!(case.holder.controls.len(), 1, "the other one");
}

#[test]
fn the_next_holder_has_the_connections_and_what_was_published() {
    let mut former = Case::new(Limits::default());
    let first = former.client(&STREAM, b"begun");
    former.publish("1");
    let second = former.client(&RESPONSE, b"later");
    // It is in the middle of this one.
    let large = "x".repeat(500_000);
    former.publish(&large);
    let mut next = Case::at(former.listener.try_clone().unwrap(), former.name.clone(), Limits::default());
    let Case { holder, name, .. } = former;
    let running = thread::spawn(move || holder.run());
    assert_eq!(next.holder.take_over(&name).unwrap(), 2);
    running.join().unwrap().unwrap();
    assert_eq!((next.holder.channels.entries().count(), next.holder.channels.last()), (2, 2));
    next.publish("2");
    let mut all = received(&first);
    let (key, _) = next.holder.held.iter().find(|(_, held)| !held.is_writable).unwrap();
    while next.holder.held[key].state.number < 3 || next.holder.held[key].waiting() > 0 {
        next.holder.client_event(super::CLIENTS + key as u64, false, true);
        next.holder.flush();
        all += &received(&first);
    }
    assert!(all.ends_with(&format!("5\r\nbegun\r\n1\r\n1\r\n7a120\r\n{large}\r\n1\r\n2\r\n")));
    // The time of the response has not begun again.
    next.holder.expire(clock::now() + Duration::from_secs(1));
    next.holder.flush();
    assert!(received(&second).ends_with("\r\n\r\nlater"));
}

#[test]
fn the_next_holder_gets_everything_whatever_the_sizes_are() {
    // The socket between them accepts the last of the messages that it has room for in part.
    for size in [10_000, 40_000, 50_000, 60_000] {
        let mut former = Case::new(Limits::default());
        let clients: Vec<_> = (0..30).map(|_| former.client(&STREAM, b"begun")).collect();
        for (_, held) in &mut former.holder.held {
            held.state.keep_alive = vec![b'x'; size];
        }
        for _ in 0..30 {
            former.publish(&"x".repeat(size));
        }
        let mut next = Case::at(former.listener.try_clone().unwrap(), former.name.clone(), Limits::default());
        let Case { holder, name, .. } = former;
        let running = thread::spawn(move || holder.run());
        assert_eq!(next.holder.take_over(&name).unwrap(), clients.len(), "{size}");
        running.join().unwrap().unwrap();
        assert_eq!(next.holder.channels.entries().count(), 30);
    }
}

/// A process that wants to take over.
fn taker(name: &[u8]) -> UnixStream {
    let mut next = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    next.write_all(&message::encode(Kind::TakeOver, b"")).unwrap();
    next
}

#[test]
fn one_that_has_ended_while_it_waited_takes_nothing_over() {
    let mut case = Case::new(Limits::default());
    let client = case.client(&STREAM, b"begun");
    let Case { holder, name, lines, .. } = case;
    drop(taker(&name));
    let stop = holder.stop_handle();
    let running = thread::spawn(move || holder.run());
    let mut line = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    line.write_all(&message::encode(Kind::Publish, document("x").as_bytes())).unwrap();
    assert_eq!(line.read(&mut [0; 1]).unwrap(), 1);
    stop.stop();
    running.join().unwrap().unwrap();
    assert!(received(&client).ends_with("5\r\nbegun\r\n1\r\nx\r\n0\r\n\r\n"));
    assert!(lines.lock().unwrap().is_empty());
}

#[test]
fn a_holder_that_cannot_pass_its_connections_on_ends_their_responses_and_leaves_publications_to_the_next() {
    let mut case = Case::new(Limits::default());
    let client = case.client(&STREAM, b"begun");
    let Case { holder, name, lines, listener } = case;
    let running = thread::spawn(move || holder.run());
    let mut next = taker(&name);
    // It ends before it has everything.
    assert_eq!(next.read(&mut [0; 1]).unwrap(), 1);
    drop(next);
    let _late = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    running.join().unwrap().unwrap();
    assert!(received(&client).ends_with("5\r\nbegun\r\n0\r\n\r\n"));
    assert!(lines.lock().unwrap()[0].contains("the next process could not take over 1 held connections"));
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_ok(), "it is for the next one");
}

#[test]
fn a_holder_that_takes_over_in_part_has_nothing_and_touches_no_connection() {
    let mut former = Case::new(Limits::default());
    let client = former.client(&STREAM, b"begun");
    former.publish("1");
    let (key, held) = former.holder.held.iter().next().unwrap();
    let passed = super::Passed { state: held.portable(&former.holder.channels), since_millis: 0, last: 1 };
    let content = message::content_of(&passed).unwrap();
    let socket = former.holder.held[key].socket().try_clone().unwrap();
    let listener = former.listener.try_clone().unwrap();
    let other = thread::spawn(move || {
        let line = listener.accept().unwrap().0;
        message::send(line.as_fd(), Kind::Held, &content, Some(socket.as_fd()), None).unwrap();
        message::send(line.as_fd(), Kind::Held, b"of another version", Some(socket.as_fd()), None).unwrap();
        line
    });
    let mut next = Case::at(former.listener.try_clone().unwrap(), former.name.clone(), Limits::default());
    assert!(next.holder.take_over(&former.name).is_err());
    drop(other.join().unwrap());
    assert!(next.holder.held.is_empty() && next.holder.by_client.is_empty());
    assert_eq!((next.holder.channels.count(), next.holder.channels.last()), (0, 0));
    let stop = next.holder.stop_handle();
    stop.stop();
    next.holder.run().unwrap();
    former.publish("2");
    assert!(received(&client).ends_with("1\r\n1\r\n1\r\n2\r\n"));
}

#[test]
fn clients_of_one_network_are_one_client_as_in_the_workers() {
    let mut case = Case::new(Limits { connections_per_client: 1, ..Limits::default() });
    let mut of = |client: &str| {
        let (theirs, ours) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let hold = Hold { client: client.to_owned(), ..hold(&STREAM, b"") };
        case.holder.hold(&message::content_of(&hold).unwrap(), Some(ours.into()), clock::now());
        case.holder.flush();
        let mut begun = [0; 12];
        (&theirs).read_exact(&mut begun).unwrap();
        (String::from_utf8(begun.to_vec()).unwrap(), theirs)
    };
    let answers =
        ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "::ffff:192.0.2.1", "192.0.2.1", "", ""].map(&mut of);
    let codes = answers.each_ref().map(|(begun, _)| &begun[9..]);
    assert_eq!(codes, ["200", "503", "200", "200", "503", "200", "200"]);
}

/// A WebSocket that the application has not accepted.
fn web_socket(case: &mut Case) -> UnixStream {
    let (theirs, ours) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    let key = |text: &str| serde_bytes::ByteBuf::from(text.as_bytes());
    let opening = Opening {
        origin: Origin { fields: vec![(key("Sec-WebSocket-Key"), key("eA=="))], ..Origin::default() },
        client: String::from("192.0.2.1"),
        request: String::from("GET /ws"),
        server: Vec::new(),
        is_relayed: false,
        received: Vec::new(),
    };
    case.holder.open(&message::content_of(&opening).unwrap(), Some(ours.into()), clock::now());
    theirs
}

/// The answer of an application that accepts a WebSocket.
fn opened() -> Answer {
    let fields = vec![(String::from("Content-Type"), String::from("application/websocket-events"))];
    Answer { status: String::from("200 OK"), fields, body: b"OPEN\r\n".to_vec() }
}

/// An application that answers nothing, at an address of its own.
fn silent_application(case: &mut Case) -> UnixListener {
    let name = [case.name.as_slice(), b"-application"].concat();
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    case.holder.calls.application = name;
    listener
}

#[test]
fn connections_that_wait_for_the_application_wait_once_and_get_their_turn_though_others_have_left() {
    let mut case = Case::new(Limits::default());
    let _application = silent_application(&mut case);
    let mut clients: Vec<_> = (0..MAX_MADE + 8).map(|_| web_socket(&mut case)).collect();
    assert_eq!(case.holder.calls.counts(), (MAX_MADE, 8));
    for key in MAX_MADE..MAX_MADE + 8 {
        case.holder.call(key);
    }
    assert_eq!(case.holder.calls.counts().1, 8, "each waits once");
    // All but the last of those that wait.
    for key in MAX_MADE..MAX_MADE + 7 {
        case.holder.close(key, Reason::Left);
    }
    clients.drain(MAX_MADE..MAX_MADE + 7);
    case.holder.end_call(0, Ok(Answer::default()));
    assert!(case.holder.held[MAX_MADE + 7].is_asking(), "no turn is lost");
    assert_eq!(case.holder.calls.counts().1, 0, "the application does not know of those that have left");
}

#[test]
fn large_requests_wait_though_few_are_made() {
    let mut case = Case::new(Limits::default());
    let _application = silent_application(&mut case);
    let clients: Vec<_> = (0..100).map(|_| web_socket(&mut case)).collect();
    for key in 0..100 {
        case.holder.end_call(key, Ok(opened()));
        let session = case.holder.held[key].state.session.as_mut().unwrap();
        session.push(crate::events::Event::with("TEXT", vec![b'x'; 1 << 20]));
        case.holder.call(key);
    }
    assert_eq!(case.holder.calls.counts(), (32, 68));
    case.holder.end_call(0, Ok(Answer { status: String::from("200 OK"), ..Answer::default() }));
    assert_eq!(case.holder.calls.counts(), (32, 67));
    drop(clients);
}

#[test]
fn an_application_that_accepts_a_client_that_has_left_is_told_and_one_that_refuses_it_is_not() {
    for (status, told) in [("200 OK", 1), ("403 Forbidden", 0)] {
        let mut case = Case::new(Limits::default());
        let _application = silent_application(&mut case);
        let client = web_socket(&mut case);
        case.holder.close(0, Reason::Left);
        assert_eq!(case.holder.calls.counts().0, 1);
        let answer = Answer { status: String::from(status), ..Answer::default() };
        case.holder.end_call(0, Ok(answer));
        assert_eq!(case.holder.calls.counts().0, told, "{status}");
        drop(client);
    }
}

#[test]
fn a_refused_web_socket_does_not_reach_the_application() {
    let mut case = Case::new(Limits { connections_per_client: 1, ..Limits::default() });
    let _application = silent_application(&mut case);
    let first = web_socket(&mut case);
    let second = web_socket(&mut case);
    assert_eq!(case.holder.calls.counts().0, 1);
    case.holder.flush();
    assert!(received(&second).starts_with("HTTP/1.1 503 "));
    drop(first);
}

#[test]
fn the_client_that_occupies_the_most_memory_is_closed_and_not_the_one_that_came_last() {
    let mut case = Case::new(Limits::default());
    let _application = silent_application(&mut case);
    let clients: Vec<_> = (0..3).map(|_| web_socket(&mut case)).collect();
    case.holder.held[1].early = vec![0; MAX_WAITING - 1000];
    case.holder.account(1);
    assert_eq!(case.closed(Reason::Behind), 0);
    case.holder.held[2].early = vec![0; 100_000];
    case.holder.account(2);
    assert!(case.holder.held.contains(0) && !case.holder.held.contains(1) && case.holder.held.contains(2));
    drop(clients);
}

#[test]
fn clients_that_accept_a_large_publication_slowly_have_no_copy_of_it_and_receive_all_of_it() {
    let mut case = Case::new(Limits::default());
    let clients: Vec<_> = (0..200).map(|_| case.client(&STREAM, b"")).collect();
    let content = "x".repeat(1_000_000);
    case.publish(&content);
    assert!(case.holder.waiting_bytes < 10_000_000, "{}", case.holder.waiting_bytes);
    case.publish("behind it");
    assert_eq!(case.closed(Reason::Behind), 0);
    for (key, client) in clients.iter().enumerate() {
        let mut all = received(client);
        while !all.contains("behind it") {
            case.holder.client_event(super::CLIENTS + key as u64, false, true);
            case.holder.flush();
            all.push_str(&received(client));
        }
        let body = all.split_once("\r\n\r\n").unwrap().1;
        assert!(body.starts_with("f4240\r\nxxx"), "{}", &body[..20]);
        assert_eq!((body.matches('x').count(), body.ends_with("\r\n9\r\nbehind it\r\n")), (1_000_000, true));
    }
}

#[test]
fn a_web_socket_that_is_not_open_when_the_holder_stops_is_answered() {
    let mut case = Case::new(Limits::default());
    let application = silent_application(&mut case);
    let client = web_socket(&mut case);
    case.holder.end_responses(clock::now());
    case.holder.flush();
    drop(application);
    assert!(received(&client).starts_with("HTTP/1.1 503 "));
    assert!(is_at_end(&client));
}

#[test]
fn a_connection_that_waits_in_the_queue_when_the_holder_stops_gets_its_response() {
    let Case { holder, name, .. } = Case::new(Limits::default());
    let (client, ours) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    message::pass(&name, Kind::Hold, &hold(&RESPONSE, b"later"), ours.as_fd()).unwrap();
    drop(ours);
    holder.stop_handle().stop();
    let mut holder = holder;
    while !holder.end(clock::now()) {
        holder.flush();
    }
    drop(holder);
    assert!(received(&client).ends_with("\r\n\r\nlater"));
}

#[test]
fn what_was_dropped_before_a_web_socket_subscribes_is_not_missed() {
    let limits = ReplayLimits { bytes: 2_000, time: Duration::from_secs(60) };
    let mut case = Case::new(Limits { replay: limits, ..Limits::default() });
    let _application = silent_application(&mut case);
    let client = web_socket(&mut case);
    for _ in 0..20 {
        case.publish("x");
    }
    case.holder.held[0].state.number = 0;
    let subscribe = crate::events::Event::with("TEXT", br#"c:{"type": "subscribe", "channel": "b"}"#.to_vec());
    let body = crate::events::encode(&[crate::events::Event::of("OPEN"), subscribe].into());
    let fields = [("Content-Type", "application/websocket-events"), ("Sec-WebSocket-Extensions", "grip")];
    let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    case.holder.end_call(0, Ok(Answer { status: String::from("200 OK"), fields, body }));
    case.holder.flush();
    assert!(received(&client).starts_with("HTTP/1.1 101 "));
    assert_eq!((case.holder.held.len(), case.closed(Reason::Behind)), (1, 0));
}

#[test]
fn a_response_is_sent_to_its_end_through_a_process_that_encrypts_and_is_about_to_end() {
    let mut case = Case::new(Limits::default());
    let (theirs, ours) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    let body = vec![b'x'; 1 << 20];
    let hold = Hold { is_relayed: true, ..hold(&RESPONSE, &body) };
    case.holder.hold(&message::content_of(&hold).unwrap(), Some(ours.into()), clock::now());
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    let mut all = String::new();
    while case.holder.held.contains(0) {
        case.holder.client_event(super::CLIENTS, true, true);
        case.holder.flush();
        all += &received(&theirs);
    }
    assert!(all.len() > 1 << 20 && all.ends_with('x'), "{} bytes", all.len());
}

#[test]
fn a_process_that_has_connected_before_is_heard_before_the_next_one() {
    let mut case = Case::new(Limits::default());
    let name = case.name.clone();
    let client = case.client(&STREAM, b"");
    let first = passing::connect_to(&name).unwrap();
    case.holder.accept(clock::now());
    // It sends only now, and no event says so before the second one is accepted.
    message::send(first.as_fd(), Kind::Publish, document("1").as_bytes(), None, None).unwrap();
    let second = passing::connect_to(&name).unwrap();
    message::send(second.as_fd(), Kind::Publish, document("2").as_bytes(), None, None).unwrap();
    case.holder.accept(clock::now());
    case.holder.flush();
    assert!(received(&client).ends_with("1\r\n1\r\n1\r\n2\r\n"));
}

#[test]
fn the_process_of_the_bus_is_sent_what_is_published_here_and_brings_what_others_publish() {
    let mut case = Case::new(Limits { has_bus: true, ..Limits::default() });
    let client = case.client(&STREAM, b"");
    let bus = passing::connect_to(&case.name).unwrap();
    let say = |case: &mut Case, kind, content: &[u8]| {
        message::send(bus.as_fd(), kind, content, None, None).unwrap();
        case.holder.accept(clock::now());
        let keys: Vec<_> = case.holder.controls.iter().map(|(key, _)| key as u64).collect();
        keys.into_iter().for_each(|key| case.holder.control_event(key, clock::now()));
    };
    let told = || {
        let mut bytes = [0; 8192];
        let Io::Moved(count) = socket::receive(bus.as_fd(), &mut bytes) else { return String::new() };
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let publish = |case: &mut Case, text: &str| {
        let other = passing::connect_to(&case.name).unwrap();
        message::send(other.as_fd(), Kind::Publish, document(text).as_bytes(), None, None).unwrap();
        case.holder.accept(clock::now());
        case.holder.flush();
    };
    publish(&mut case, "early");
    say(&mut case, Kind::Bus, b"");
    let greeted = told();
    assert!(greeted.contains(r#""after":0"#) && greeted.contains(" 1\n") && greeted.contains("early"), "{greeted}");
    // It may be silent for longer than one that publishes.
    case.holder.expire(clock::now() + Duration::from_secs(60));
    publish(&mut case, "ours");
    assert!(told().contains(" 2\n"));
    say(&mut case, Kind::Document, format!("x 1\n{}", document("theirs")).as_bytes());
    say(&mut case, Kind::Document, format!("x 1\n{}", document("theirs")).as_bytes());
    say(&mut case, Kind::Document, b"x 2\nnonsense");
    say(&mut case, Kind::BusFigures, br#"{"connected": true, "servers": 1, "lost": 0, "sent": 2, "heard": {"x": 2}}"#);
    case.holder.flush();
    let all = received(&client);
    assert_eq!((all.matches("ours").count(), all.matches("theirs").count()), (1, 1), "{all}");
    assert_eq!(told(), "", "what others publish is not sent back");
    assert_eq!(case.lines.lock().unwrap().len(), 1);
    let figures = case.holder.figures();
    assert_eq!((&figures["bus"]["connected"], &figures["bus"]["received"]), (&true.into(), &2.into()));
    // It asks for the first one again.
    say(&mut case, Kind::Bus, b"0");
    let again = told();
    assert!(again.contains("early") && again.contains("ours"), "{again}");
}
