//! Requests with the expected outcome, each sent in several ways.
//!
//! After the responses a further request, the canary, shows whether the connection persists. If it was sent in the same
//! write as a case that is refused, it must not be answered: that would be request smuggling. The requests that the
//! application received are compared with those expected, so a refused one must not have reached it.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::client::Kind;
use super::{Client, Config, ExecutorKind, Seen, Server};

const BEFORE: &[u8] = b"GET /before HTTP/1.1\r\nHost: before\r\n\r\n";
const CANARY: &[u8] = b"GET /canary HTTP/1.1\r\nHost: canary\r\nConnection: close\r\n\r\n";
/// A case of more bytes is sent in this many pieces instead of byte by byte.
const PIECES: usize = 1000;
/// So many cases are sent at once where they share a server.
const TOGETHER: usize = 8;

/// How a case is sent, and to which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In one write.
    Whole,
    /// Each byte in a write of its own.
    ByteByByte,
    /// In one write, with a request before and one behind.
    Pipelined,
    /// Pipelined over a UNIX socket to a server with one thread.
    OneThread,
    /// Byte by byte, to a server whose application reads the body while it arrives.
    Streamed,
}

impl Way {
    fn is_pipelined(self) -> bool {
        matches!(self, Self::Pipelined | Self::OneThread)
    }

    fn config(self, mut config: Config) -> Config {
        if self == Self::OneThread {
            config.executor = ExecutorKind::Inline;
        }
        config.stream_body |= self == Self::Streamed;
        config
    }
}

/// What happens to the connection after the case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Lives,
    Ends,
}

#[derive(Clone, Debug)]
struct Expected {
    kind: Kind,
    status: u16,
    /// What the application receives: method, target and body; `None` if the request is refused.
    seen: Option<(String, String, Vec<u8>)>,
    path: Option<String>,
    query: Option<String>,
    host: Option<Option<String>>,
    field: Option<(String, Vec<u8>)>,
}

/// Bytes that a client sends, and the expected outcome.
#[derive(Clone, Debug)]
pub struct Case {
    wire: Vec<u8>,
    answers: Vec<Expected>,
    then: Then,
    half_close: bool,
    has_more: bool,
    config: Config,
    has_own_config: bool,
}

/// A request that the application receives, without a body unless [`Case::body`] sets one. The connection persists.
pub fn served(wire: impl AsRef<[u8]>) -> Case {
    Case {
        wire: Vec::new(),
        answers: Vec::new(),
        then: Then::Lives,
        half_close: false,
        has_more: false,
        config: Config::default(),
        has_own_config: false,
    }
    .and_served(wire)
}

/// A request that is refused with this status; then the connection ends.
pub fn refused(status: u16, wire: impl AsRef<[u8]>) -> Case {
    Case { answers: Vec::new(), wire: Vec::new(), ..served("GET / HTTP/1.1\r\n\r\n") }.and_refused(status, wire)
}

/// Bytes to which the server responds only by ending the connection.
pub fn unanswered(wire: impl AsRef<[u8]>) -> Case {
    Case { answers: Vec::new(), wire: wire.as_ref().to_vec(), then: Then::Ends, ..served("GET / HTTP/1.1\r\n\r\n") }
}

impl Case {
    /// One more request, which the application receives.
    pub fn and_served(mut self, wire: impl AsRef<[u8]>) -> Self {
        let wire = wire.as_ref();
        let line = wire.split(|&byte| byte == b'\r').map(<[u8]>::trim_ascii).find(|line| !line.is_empty());
        let line = String::from_utf8(line.expect("a request line").to_vec()).expect("ASCII");
        let words: Vec<_> = line.split(' ').collect();
        self.answers.push(Expected {
            kind: Kind::of(wire),
            status: 200,
            seen: Some((words[0].to_owned(), words[1].to_owned(), Vec::new())),
            path: None,
            query: None,
            host: None,
            field: None,
        });
        self.wire.extend_from_slice(wire);
        self
    }

    /// One more request, which is refused.
    pub fn and_refused(mut self, status: u16, wire: impl AsRef<[u8]>) -> Self {
        let (kind, seen) = (Kind::of(wire.as_ref()), None);
        self.answers.push(Expected { kind, status, seen, path: None, query: None, host: None, field: None });
        self.wire.extend_from_slice(wire.as_ref());
        self.then = Then::Ends;
        self
    }

    /// More bytes, which must not be read as a request.
    pub fn and(mut self, wire: impl AsRef<[u8]>) -> Self {
        self.has_more = true;
        self.wire.extend_from_slice(wire.as_ref());
        self
    }

    fn last(&mut self) -> &mut Expected {
        self.answers.last_mut().expect("a case begins with an answer")
    }

    /// The body that the application receives with the last request.
    pub fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.last().seen.as_mut().expect("it is served").2 = body.as_ref().to_vec();
        self
    }

    /// The path that the application receives.
    pub fn path(mut self, path: &str) -> Self {
        self.last().path = Some(path.to_owned());
        self
    }

    /// The query that the application receives.
    pub fn query(mut self, query: &str) -> Self {
        self.last().query = Some(query.to_owned());
        self
    }

    /// The host that the application receives.
    pub fn host(mut self, host: Option<&str>) -> Self {
        self.last().host = Some(host.map(str::to_owned));
        self
    }

    /// A field that the application receives.
    pub fn field(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.last().field = Some((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    /// The connection ends after the responses.
    pub fn ends(mut self) -> Self {
        self.then = Then::Ends;
        self
    }

    /// The client closes its direction after the case.
    pub fn half_closed(mut self) -> Self {
        self.half_close = true;
        self.ends()
    }

    /// The configuration of the server.
    pub fn with(mut self, config: Config) -> Self {
        self.config = config;
        self.has_own_config = true;
        self
    }
}

/// Sends the case in this way and checks the outcome.
#[track_caller]
pub fn check(case: Case, way: Way) {
    let server = Server::start(way.config(case.config.clone()));
    let played = play(&server, case, way);
    played.check_seen(&server.stop().seen);
}

/// Sends all of the cases that have no configuration of their own to one server, several at once, and checks each
/// outcome. The application computes for `busy` in each request. Returns how many responses were held.
#[track_caller]
pub fn check_together(cases: Vec<(&'static str, Case)>, way: Way, config: Config, busy: Duration) -> usize {
    let server = Server::start_busy(way.config(config), busy);
    let left = Mutex::new(cases.into_iter().filter(|(_, case)| !case.has_own_config).collect::<Vec<_>>());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let client = || {
        let mut all = Vec::new();
        while let Some((name, case)) = next() {
            all.push((name, catch_unwind(AssertUnwindSafe(|| play(&server, case, way))).ok()));
        }
        all
    };
    let played: Vec<_> = thread::scope(|scope| {
        let clients: Vec<_> = (0..TOGETHER).map(|_| scope.spawn(client)).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let failed: Vec<_> = played.iter().filter(|(_, played)| played.is_none()).map(|(name, _)| name).collect();
    assert!(failed.is_empty(), "{way:?}: {failed:?}");
    let told = server.stop();
    for (name, played) in played {
        let played = played.unwrap();
        let seen: Vec<_> = told.seen.iter().filter(|seen| seen.peer == played.peer).cloned().collect();
        let checked = catch_unwind(AssertUnwindSafe(|| played.check_seen(&seen)));
        assert!(checked.is_ok(), "{name}, {way:?}");
    }
    told.held
}

/// A case that has been sent, and whose responses were right.
struct Played {
    answers: Vec<Expected>,
    then: Then,
    way: Way,
    /// The client's address; `None`: over a UNIX socket.
    peer: Option<SocketAddr>,
}

/// Sends the case in this way to this server, and checks the responses.
#[track_caller]
fn play(server: &Server, case: Case, way: Way) -> Played {
    let Case { wire, answers, then, half_close, has_more, .. } = case;
    let is_pipelined = way.is_pipelined();
    let mut client = if way == Way::OneThread { server.connect_unix() } else { server.connect_alone() };
    let peer = client.address();
    let mut got = Vec::new();
    match way {
        Way::Whole => _ = client.send(&wire),
        Way::ByteByByte | Way::Streamed => _ = client.send_in_pieces(&wire, wire.len().div_ceil(PIECES).max(1)),
        Way::Pipelined | Way::OneThread => {
            let behind = if half_close { &[] } else { CANARY };
            client.send(&[BEFORE, &wire, behind].concat());
        }
    }
    if half_close {
        client.half_close();
    }
    if is_pipelined {
        assert_eq!(client.response().status, 200, "the request before");
    }
    for expected in &answers {
        let response = client.response_to(expected.kind);
        assert_eq!(response.status, expected.status, "{response:?}");
        got.push(response);
    }
    match then {
        Then::Lives => {
            if !is_pipelined {
                client.send(CANARY);
            }
            let canary = client.response();
            assert_eq!(canary.status, 200);
            assert!(canary.says_close());
        }
        Then::Ends if half_close => {}
        // RFC 9112 section 9.6.
        Then::Ends => assert!(
            got.last().is_none_or(super::Response::says_close),
            "the last response before a close must have Connection: close: {got:?}"
        ),
    }
    if has_more && matches!(way, Way::ByteByByte | Way::Streamed) && answers.iter().all(|each| each.seen.is_some()) {
        // The server had read everything when it closed, so bytes that arrive later cause a reset.
        assert!(client.rest().0.is_empty(), "bytes after the last response");
    } else {
        client.at_end();
    }
    Played { answers, then, way, peer }
}

impl Played {
    /// Checks the requests that the application received from this client.
    #[track_caller]
    fn check_seen(&self, seen: &[Seen]) {
        let Self { answers, then, way, .. } = self;
        let is_pipelined = way.is_pipelined();
        // A fault in a streamed body is found when the application is running already.
        let seen: Vec<_> = seen.iter().filter(|seen| *way != Way::Streamed || seen.fault.is_none()).cloned().collect();
        let names: Vec<_> = seen.iter().map(|each| format!("{} {}", each.method, each.target)).collect();
        let expected = answers.iter().filter_map(|expected| expected.seen.as_ref());
        let mut all: Vec<_> = expected.map(|(method, target, _)| format!("{method} {target}")).collect();
        if is_pipelined {
            all.insert(0, String::from("GET /before"));
        }
        if *then == Then::Lives {
            all.push(String::from("GET /canary"));
        }
        assert_eq!(names, all, "the requests that the application received");
        let seen = &seen[usize::from(is_pipelined)..];
        for (expected, seen) in answers.iter().filter(|expected| expected.seen.is_some()).zip(seen) {
            compare(expected, seen);
        }
    }
}

fn compare(expected: &Expected, seen: &Seen) {
    let (_, _, body) = expected.seen.as_ref().expect("it is served");
    assert!(*body == seen.body, "the body is {} instead of {}", seen.body.escape_ascii(), body.escape_ascii());
    if let Some(path) = &expected.path {
        assert_eq!(seen.path, *path);
    }
    if let Some(query) = &expected.query {
        assert_eq!(seen.query.as_ref(), Some(query));
    }
    if let Some(host) = &expected.host {
        assert_eq!(seen.host, *host);
    }
    if let Some((name, value)) = &expected.field {
        let values: Vec<_> = seen.fields.iter().filter(|(each, _)| each == name).map(|(_, value)| value).collect();
        assert_eq!(values, [value], "{name}");
    }
}

/// Sends all bytes and reads one response, for tests without a case.
#[track_caller]
pub fn ask(client: &mut Client, wire: &[u8]) -> super::Response {
    client.send(wire);
    client.response_to(Kind::of(wire))
}

/// Makes a test of each case and each way: `name: case;` gives `name::whole` and so on. `all()` returns the cases.
#[macro_export]
macro_rules! cases {
    ($($name:ident: $case:expr;)*) => {
        pub(super) fn all() -> Vec<(&'static str, $crate::harness::cases::Case)> {
            vec![$((stringify!($name), $name()),)*]
        }

        $(
        fn $name() -> $crate::harness::cases::Case {
            $case
        }

        mod $name {
            use $crate::harness::cases::{Way, check};

            #[test]
            fn whole() {
                check(super::$name(), Way::Whole);
            }

            #[test]
            fn byte_by_byte() {
                check(super::$name(), Way::ByteByByte);
            }

            #[test]
            fn pipelined() {
                check(super::$name(), Way::Pipelined);
            }

            #[test]
            fn on_one_thread() {
                check(super::$name(), Way::OneThread);
            }

            #[test]
            fn streamed() {
                check(super::$name(), Way::Streamed);
            }
        }
        )*
    };
}
