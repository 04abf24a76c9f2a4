//! Responses by shape and framing: what a client receives, and that the next request of the connection is served.
//!
//! Each shape is requested in several ways. A client can see that a broken response is incomplete: its last chunk or
//! its last bytes are missing, or, if only the end of the connection marks the end of the body, the connection is
//! reset.

use crate::harness::client::Kind;
use crate::harness::{Client, Config, End, ExecutorKind, Framing, Response, Server, pattern};

/// How a shape is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Http11,
    Close,
    Http10,
    Http10KeepAlive,
    Head,
    /// Twice, followed by another request, all in one write.
    Pipelined,
    /// By a client that reads nothing until the application has finished.
    Slow,
    /// Over a UNIX socket, from a server with one thread.
    OneThread,
    /// From a server that streams request bodies, with a body that the application does not read.
    UnreadBody,
}

impl Way {
    fn kind(self) -> Kind {
        Kind { is_head: self == Self::Head, is_old: matches!(self, Self::Http10 | Self::Http10KeepAlive) }
    }

    fn keeps(self) -> bool {
        !matches!(self, Self::Close | Self::Http10)
    }

    fn request(self, target: &str) -> Vec<u8> {
        let method = if self == Self::Head { "HEAD" } else { "GET" };
        let version = if self.kind().is_old { "1.0" } else { "1.1" };
        let lines = match self {
            Self::Close => "Connection: close\r\n",
            Self::Http10KeepAlive => "Connection: keep-alive\r\n",
            Self::UnreadBody => "Content-Length: 5\r\n",
            _ => "",
        };
        let target = match self {
            Self::UnreadBody if target.contains('?') => format!("{target}&read=none"),
            Self::UnreadBody => format!("{target}?read=none"),
            _ => target.to_owned(),
        };
        let body = if self == Self::UnreadBody { "hello" } else { "" };
        format!("{method} {target} HTTP/{version}\r\nHost: test\r\n{lines}\r\n{body}").into_bytes()
    }

    fn server(self, config: Config) -> Server {
        let executor = if self == Self::OneThread { ExecutorKind::Inline } else { ExecutorKind::Threads };
        Server::start(Config { executor, stream_body: self == Self::UnreadBody, ..config })
    }

    fn connect(self, server: &Server) -> Client {
        if self == Self::OneThread { server.connect_unix() } else { server.connect() }
    }
}

/// A complete response.
struct Shape {
    target: &'static str,
    status: u16,
    /// `None`: an error page.
    body: Option<Vec<u8>>,
    framing: Framing,
    /// The Content-Length of a response to HEAD.
    head_length: Option<usize>,
    closes: bool,
    logs: Option<&'static str>,
}

/// A response with this body, whose length is known before the head is sent.
fn known(target: &'static str, body: Vec<u8>) -> Shape {
    let head_length = Some(body.len()).filter(|&length| length > 0);
    let framing = Framing::Length;
    Shape { target, status: 200, body: Some(body), framing, head_length, closes: false, logs: None }
}

/// A response with this body, whose length is not known.
fn open(target: &'static str, body: Vec<u8>) -> Shape {
    Shape { framing: Framing::Chunked, head_length: None, ..known(target, body) }
}

/// A response without a body, whatever the application gives.
fn bare(target: &'static str, status: u16) -> Shape {
    Shape { status, framing: Framing::None, head_length: None, ..known(target, Vec::new()) }
}

/// An error page.
fn page(target: &'static str, status: u16) -> Shape {
    Shape { status, body: None, ..known(target, Vec::new()) }
}

impl Shape {
    fn closing(self) -> Self {
        Self { closes: true, ..self }
    }

    fn declared(self, length: usize) -> Self {
        Self { head_length: Some(length), ..self }
    }

    fn logging(self, text: &'static str) -> Self {
        Self { logs: Some(text), ..self }
    }

    fn compare(&self, response: &Response, way: Way) {
        assert_eq!(response.status, self.status, "{:?}", response.fields);
        let framing = match self.framing {
            _ if way == Way::Head => Framing::None,
            Framing::Chunked if way.kind().is_old => Framing::UntilClose,
            framing => framing,
        };
        assert_eq!(response.framing, framing);
        match &self.body {
            _ if way == Way::Head => {
                let length = response.field("Content-Length").map(|length| length.parse().unwrap());
                match &self.body {
                    Some(_) => assert_eq!(length, self.head_length),
                    None => assert!(length.is_some_and(|length: usize| length > 100)),
                }
                assert_eq!(response.field("Transfer-Encoding"), None);
            }
            Some(body) => response.assert_body(body),
            None => {
                let text = String::from_utf8(response.body.clone()).unwrap();
                assert!(text.contains(&format!("<h1>{} ", self.status)), "{text}");
                assert_eq!(response.field("Content-Type"), Some("text/html; charset=utf-8"));
            }
        }
        assert!(response.interim.is_empty());
    }
}

#[track_caller]
fn check(shape: &Shape, way: Way) {
    let server = way.server(Config::default());
    let mut client = way.connect(&server);
    let request = way.request(shape.target);
    let ends = !way.keeps() || shape.closes || (way.kind().is_old && shape.framing == Framing::Chunked);
    let rounds = if ends { 1 } else { 2 };
    if way == Way::Pipelined {
        let last: &[u8] = b"GET /pong HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
        client.send(&[&request, &request, last].concat());
    }
    for round in 0..rounds {
        if way != Way::Pipelined {
            client.send(&request);
        }
        if way == Way::Slow {
            server.await_seen(round + 1);
            server.await_done(round);
        }
        let response = client.response_to(way.kind());
        shape.compare(&response, way);
        assert_eq!(response.says_close(), ends);
        if let Some(text) = shape.logs {
            server.take_logged(text);
        }
    }
    if !ends {
        if way != Way::Pipelined {
            client.send(b"GET /pong HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        }
        assert_eq!(client.response().body, b"pong", "the next request");
    }
    client.at_end();
    drop(client);
    let told = server.stop();
    assert_eq!(told.seen.len(), rounds + usize::from(!ends));
    assert!(told.records.iter().all(|record| record.ending == "complete"));
}

macro_rules! shapes {
    ($($name:ident: $shape:expr;)*) => {$(
        fn $name() -> super::Shape {
            $shape
        }

        mod $name {
            use crate::responses::{Way, check};

            #[test]
            fn http_1_1() {
                check(&super::$name(), Way::Http11);
            }

            #[test]
            fn close() {
                check(&super::$name(), Way::Close);
            }

            #[test]
            fn http_1_0() {
                check(&super::$name(), Way::Http10);
            }

            #[test]
            fn http_1_0_keep_alive() {
                check(&super::$name(), Way::Http10KeepAlive);
            }

            #[test]
            fn head() {
                check(&super::$name(), Way::Head);
            }

            #[test]
            fn pipelined() {
                check(&super::$name(), Way::Pipelined);
            }

            #[test]
            fn to_a_slow_client() {
                check(&super::$name(), Way::Slow);
            }

            #[test]
            fn on_one_thread() {
                check(&super::$name(), Way::OneThread);
            }

            #[test]
            fn with_an_unread_body() {
                check(&super::$name(), Way::UnreadBody);
            }
        }
    )*};
}

/// Complete responses.
mod whole {
    use super::{bare, known, open, page};
    use crate::harness::pattern;

    shapes! {
        pong: known("/pong", b"pong".to_vec());
        an_empty_list: known("/list?count=0", Vec::new());
        a_list_of_empty_blocks: known("/list?count=3&size=0", Vec::new());
        a_list_of_one: known("/list?count=1&size=1", pattern(0, 1));
        a_list_of_small_blocks: known("/list?count=1000&size=11", pattern(0, 11_000));
        a_list_of_large_blocks: known("/list?count=3&size=100001", pattern(0, 300_003));
        a_very_large_list: known("/list?count=5&size=1000003", pattern(0, 5_000_015));
        a_list_of_very_many_blocks: known("/list?count=20000&size=100", pattern(0, 2_000_000));
        no_blocks: known("/blocks?count=0", Vec::new());
        empty_blocks: known("/blocks?count=3&size=0", Vec::new());
        one_block: open("/blocks?count=1&size=100", pattern(0, 100));
        few_blocks: open("/blocks?count=3&size=100", pattern(0, 300));
        many_small_blocks: open("/blocks?count=5000&size=17", pattern(0, 85_000));
        many_middling_blocks: open("/blocks?count=300&size=5000", pattern(0, 1_500_000));
        large_blocks: open("/blocks?count=5&size=1000003", pattern(0, 5_000_015));
        known_length: known("/blocks?count=10&size=100&length=1000", pattern(0, 1000));
        known_length_of_one_block: known("/blocks?count=1&size=1000&length=1000", pattern(0, 1000));
        known_length_of_many: known("/blocks?count=5000&size=17&length=85000", pattern(0, 85_000));
        known_length_of_large_blocks: known("/blocks?count=5&size=1000003&length=5000015", pattern(0, 5_000_015));
        known_length_of_nothing: known("/blocks?count=0&length=0", Vec::new()).declared(0);
        a_surplus_block: known("/blocks?count=10&size=100&length=900", pattern(0, 900));
        surplus_bytes: known("/blocks?count=10&size=100&length=950", pattern(0, 950));
        surplus_of_many: known("/blocks?count=5000&size=17&length=80001", pattern(0, 80_001));
        surplus_in_a_list: known("/list?count=3&size=10&length=25", pattern(0, 25));
        surplus_over_nothing: known("/list?count=3&size=10&length=0", Vec::new()).declared(0);
        a_file: known("/file?size=100000", pattern(0, 100_000));
        a_large_file: known("/file?size=5000001", pattern(0, 5_000_001));
        an_empty_file: known("/file?size=0", Vec::new());
        a_range_of_a_file: known("/file?size=100000&offset=1001&bytes=5003", pattern(1001, 5003));
        the_rest_of_a_file: known("/file?size=100000&offset=99999", pattern(99_999, 1));
        a_file_beyond_its_length: known("/file?size=1000&length=500", pattern(0, 500));
        a_file_of_known_length: known("/file?size=1000&length=1000&position=more", pattern(0, 1000));
        a_file_of_unknown_length: open("/file?size=70001&position=more", pattern(0, 70_001));
        a_file_and_blocks: open(
            "/file?bytes=70001&position=more&count=2&size=100001",
            [pattern(0, 70_001), pattern(0, 200_002)].concat()
        );
        no_content: bare("/list?count=1&status=204", 204);
        no_content_of_blocks: bare("/blocks?count=3&status=204", 204);
        no_content_with_a_length: bare("/list?count=1&size=10&status=204&length=10", 204);
        not_modified: bare("/list?count=1&status=304", 304);
        not_modified_with_a_length: bare("/list?count=1&size=10&status=304&length=10", 304).declared(10);
        reset_content: super::Shape {
            status: 205, framing: crate::harness::Framing::Length, ..known("/list?count=1&status=205", Vec::new()).declared(0)
        };
        not_found: super::Shape { status: 404, ..known("/list?count=1&size=10&status=404+Not+Here", pattern(0, 10)) };
        a_status_without_a_phrase:
            super::Shape { status: 299, ..open("/blocks?count=1&size=10&status=299", pattern(0, 10)) };
        a_close_of_the_application: known("/list?count=1&size=10&close=yes", pattern(0, 10)).closing();
        a_close_of_blocks: open("/blocks?count=3&size=10&close=yes", pattern(0, 30)).closing();
        an_error: page("/fail", 500);
        an_error_with_a_length: page("/fail?length=100", 500);
        another_error: page("/fail?error=502", 502);
        an_exchange_that_is_dropped: page("/drop", 500);
        a_panic: page("/panic", 500).logging("asked to panic");
    }
}

/// An incomplete response, and the part of it that the client receives.
struct Wreck {
    target: &'static str,
    body: Vec<u8>,
    /// The body ends with the connection, so only a reset shows that it is incomplete.
    is_open: bool,
    logs: Option<&'static str>,
}

fn wreck(target: &'static str, body: Vec<u8>) -> Wreck {
    Wreck { target, body, is_open: false, logs: None }
}

impl Wreck {
    fn open(self) -> Self {
        Self { is_open: true, ..self }
    }

    fn logging(self, text: &'static str) -> Self {
        Self { logs: Some(text), ..self }
    }
}

#[track_caller]
fn check_wreck(wreck: &Wreck, way: Way) {
    let server = way.server(Config::default());
    let mut client = way.connect(&server);
    let behind: &[u8] = if way == Way::Pipelined { b"GET /behind HTTP/1.1\r\nHost: test\r\n\r\n" } else { b"" };
    client.send(&[&way.request(wreck.target), behind].concat());
    let is_reset = wreck.is_open && way.kind().is_old;
    let broken = client.try_response(way.kind()).expect_err("it must not look complete");
    assert_eq!(broken.end, if is_reset { End::Reset } else { End::Closed });
    let response = *broken.response.expect("its head came");
    assert_eq!(response.status, 200);
    assert!(!response.chunks.contains(&0), "a last chunk would make it look complete");
    if !is_reset {
        // After a reset the client may not receive bytes that were sent before it.
        response.assert_body(&wreck.body);
    }
    assert!(wreck.body.starts_with(&response.body));
    if let Some(text) = wreck.logs {
        server.take_logged(text);
    }
    let mut other = way.connect(&server);
    assert_eq!(other.get("/pong").body, b"pong", "others are served");
    drop((client, other));
    let told = server.stop();
    assert_eq!(told.seen.len(), 2, "nothing behind it is");
    assert_eq!(told.records[0].ending, "broken");
}

macro_rules! wrecks {
    ($($name:ident: $wreck:expr;)*) => {$(
        fn $name() -> super::Wreck {
            $wreck
        }

        mod $name {
            use crate::responses::{Way, check_wreck};

            #[test]
            fn http_1_1() {
                check_wreck(&super::$name(), Way::Http11);
            }

            #[test]
            fn http_1_0() {
                check_wreck(&super::$name(), Way::Http10);
            }

            #[test]
            fn http_1_0_keep_alive() {
                check_wreck(&super::$name(), Way::Http10KeepAlive);
            }

            #[test]
            fn pipelined() {
                check_wreck(&super::$name(), Way::Pipelined);
            }

            #[test]
            fn with_an_unread_body() {
                check_wreck(&super::$name(), Way::UnreadBody);
            }
        }
    )*};
}

/// Incomplete responses.
mod broken {
    use super::wreck;
    use crate::harness::pattern;

    wrecks! {
        short_blocks: wreck("/blocks?count=2&size=10&length=30", pattern(0, 20));
        short_by_a_byte: wreck("/blocks?count=2&size=10&length=21", pattern(0, 20));
        a_short_list: wreck("/list?count=2&size=10&length=30", pattern(0, 20));
        nothing_of_a_length: wreck("/blocks?count=0&length=30", Vec::new());
        short_many: wreck("/blocks?count=5000&size=17&length=85001", pattern(0, 85_000));
        a_short_file: wreck("/file?size=100&length=200", pattern(0, 100));
        a_file_that_shrank: wreck("/file?size=100&bytes=200", pattern(0, 100)).logging("a file shrank");
        an_error_after_a_block: wreck("/fail?count=1&size=10", pattern(0, 10)).open();
        an_error_after_three_blocks: wreck("/fail?count=3&size=10", pattern(0, 30)).open();
        an_error_after_many_blocks: wreck("/fail?count=5000&size=17", pattern(0, 85_000)).open();
        an_error_after_large_blocks: wreck("/fail?count=3&size=1000003", pattern(0, 3_000_009)).open();
        an_error_within_a_length: wreck("/fail?count=1&size=10&length=20", pattern(0, 10));
        a_drop_after_three_blocks: wreck("/drop?count=3&size=10", pattern(0, 30)).open();
        a_drop_within_a_length: wreck("/drop?count=3&size=10&length=31", pattern(0, 30));
        a_panic_after_three_blocks: wreck("/panic?count=3&size=10", pattern(0, 30)).open().logging("asked to panic");
        a_panic_within_a_length: wreck("/panic?count=3&size=10&length=31", pattern(0, 30)).logging("asked to panic");
    }
}

/// An error after all bytes of the Content-Length does not break the response.
#[test]
fn an_error_after_the_last_byte_leaves_the_response_whole() {
    let server = Server::default();
    let mut client = server.connect();
    client.get("/fail?count=3&size=10&length=30").assert_body(&pattern(0, 30));
    client.at_end();
}

#[test]
fn each_block_is_received_before_the_next_is_made() {
    for executor in [ExecutorKind::Threads, ExecutorKind::Inline] {
        let server = Server::start(Config { executor, ..Config::default() });
        let mut client = server.connect();
        client.begin("GET", "/blocks?count=5&size=10&gate=next&end=last", "");
        let mut response = None;
        for at in 0..5 {
            server.let_through("next");
            let response = response.get_or_insert_with(|| client.head().unwrap());
            assert_eq!(client.chunk(response), Ok(10), "each leaves at once");
            response.assert_body(&pattern(0, 10 * (at + 1)));
        }
        server.let_through("last");
        assert_eq!(client.chunk(&mut response.unwrap()), Ok(0));
        assert_eq!(client.get("/pong").body, b"pong");
    }
}

#[test]
fn the_next_request_waits_for_the_response_before() {
    let server = Server::default();
    let mut client = server.connect();
    client
        .send(b"GET /pong?until=here HTTP/1.1\r\nHost: a\r\n\r\nGET /list?count=1&size=5 HTTP/1.1\r\nHost: a\r\n\r\n");
    server.await_arrivals("here", 1);
    assert_eq!(server.connect().get("/pong").body, b"pong");
    assert_eq!(server.seen().len(), 2, "the one behind is not begun");
    server.open("here");
    assert_eq!(client.response().body, b"pong");
    client.response().assert_body(&pattern(0, 5));
}
