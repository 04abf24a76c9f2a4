//! A server whose process gets no memory: whatever allocation fails, it continues to serve.
//!
//! The allocator of this program can be made to fail. Each kind of request is made once for each of its allocations,
//! which fails alone, and once more with all further ones. Tests of this file run one after the other, since they share
//! the allocator, and the threads of clients and of the application get memory all the time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "server/harness/mod.rs"]
mod harness;
#[path = "../../http/tests/http/wire/packet.rs"]
mod packet;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use harness::client::{Client, End, Kind};
use harness::{Config, ExecutorKind, ListenerConfig, ListenerProtocol, PATIENCE};
use rustix::event::{PollFd, PollFlags, poll};
use tailrace_http::limits::Limits;
use tailrace_http::trust::{ForwardedFields, Trust};
use tailrace_server::allocator::{self, WithReserve};
use tailrace_server::{
    Application, Exchange, Level, Mount, Payload, Position, Reports, RequestBody, Room, Sent, Server, StaticConfig,
    Turn,
};

#[global_allocator]
static ALLOCATOR: WithReserve<Failing> = WithReserve(Failing);

/// Allocations of the server so far.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Those from this one on fail...
static FIRST: AtomicUsize = AtomicUsize::new(usize::MAX);
/// ... so many of them.
static FAILING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// What the thread allocates is none of the server's.
    static IS_OTHERS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, whose allocations do not fail.
fn with_memory<T>(work: impl FnOnce() -> T) -> T {
    let before = IS_OTHERS.replace(true);
    let result = work();
    IS_OTHERS.set(before);
    result
}

/// Allocations fail from the one of this number on, the next one being 0.
fn fail_from(number: usize, count: usize) {
    FAILING.store(count, Ordering::SeqCst);
    FIRST.store(COUNT.load(Ordering::SeqCst).saturating_add(number), Ordering::SeqCst);
}

fn fail_no_more() {
    FIRST.store(usize::MAX, Ordering::SeqCst);
}

/// What the server finds.
fn is_short() -> bool {
    let before = IS_OTHERS.replace(false);
    let is_short = allocator::is_short();
    IS_OTHERS.set(before);
    is_short
}

struct Failing;

impl Failing {
    fn fails() -> bool {
        if IS_OTHERS.get() {
            return false;
        }
        let number = COUNT.fetch_add(1, Ordering::SeqCst);
        number.checked_sub(FIRST.load(Ordering::SeqCst)).is_some_and(|past| past < FAILING.load(Ordering::SeqCst))
    }
}

// SAFETY: null, or what the allocator of the system does.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as required of the caller.
        if Self::fails() { ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as required of the caller.
        if Self::fails() { ptr::null_mut() } else { unsafe { System.alloc_zeroed(layout) } }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as required of the caller.
        if Self::fails() { ptr::null_mut() } else { unsafe { System.realloc(block, layout, size) } }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as required of the caller.
        unsafe { System.dealloc(block, layout) }
    }
}

const PONG: &[u8] = b"pong";
const BLOCK: usize = 1 << 20;
static BYTES: [u8; BLOCK] = [b'x'; BLOCK];
/// Of a response of which the sockets take a part at once.
const LARGE: usize = 16;
/// Blocks of 100 bytes, of a response whose blocks come quickly.
const SMALL: usize = 300;
const EXECUTORS: [ExecutorKind; 3] = [ExecutorKind::Threads, ExecutorKind::Inline, ExecutorKind::Greenlets];
/// That of the only greenlet.
const TICKET: u64 = 1;
/// Clients whose connections need more than the reserve.
const CROWD: usize = 5_000;

struct Borrowed(&'static [u8]);

impl Payload for Borrowed {
    fn bytes(&self) -> &[u8] {
        self.0
    }
}

/// Responds with as many bytes as the body of the request has, and with `pong` where it has none; to `/large` with
/// large blocks at once, to `/blocks` with small ones.
#[derive(Default)]
struct Reader {
    server: OnceLock<Arc<Server>>,
}

/// The length of the body. `None`: it could not be read.
fn length_of(body: RequestBody) -> Option<usize> {
    let count = |source: &mut dyn FnMut(&mut [u8]) -> Option<usize>| {
        let (mut length, mut block) = (0, [0; 4096]);
        loop {
            match source(&mut block)? {
                0 => return Some(length),
                read => length += read,
            }
        }
    };
    match body {
        RequestBody::Empty => Some(0),
        RequestBody::Memory(bytes) => Some(bytes.len()),
        RequestBody::File { mut file, .. } => count(&mut |block| file.read(block).ok()),
        RequestBody::Stream(mut stream) => count(&mut |block| stream.read(block).ok()),
    }
}

/// wait_for_room: called where the send queue is full; returns when there is room, or none will come.
fn answer(mut exchange: Exchange, wait_for_room: &mut dyn FnMut(&mut Exchange)) {
    let line = with_memory(|| exchange.request_line());
    let length = length_of(exchange.take_body());
    let (Some(length), Ok(())) = (length, exchange.head().status(b"200 OK")) else {
        return exchange.fail(500, None);
    };
    let keep = &mut |_| -> Box<dyn Payload> { Box::new(Borrowed(&BYTES)) };
    if line.contains("/blocks") {
        for _ in 0..SMALL {
            if exchange.send(&[&BYTES[..100]], Position::More, keep) == Sent::Full {
                wait_for_room(&mut exchange);
            }
        }
    } else if line.contains("/large") {
        if exchange.send(&[&BYTES[..]; LARGE], Position::Last, keep) == Sent::Full {
            wait_for_room(&mut exchange);
        }
    } else if length > 0 {
        exchange.send(&[&BYTES[..length]], Position::Last, &mut |_| Box::new(Borrowed(&BYTES[..length])));
    } else {
        exchange.send(&[PONG], Position::Last, &mut |_| Box::new(Borrowed(PONG)));
    }
    with_memory(|| drop(line));
    let _ = exchange.finish();
}

impl Application for Reader {
    fn enter(&self, turn: &mut Turn<'_>) {
        while let Some(exchange) = turn.next() {
            answer(exchange, &mut |_| panic!("a thread waits where it sends"));
        }
    }

    fn grow(&self) -> io::Result<()> {
        let server = self.server.get().unwrap().clone();
        with_memory(|| thread::Builder::new().spawn(move || server.run()).map(drop))
    }
}

impl Reports for Reader {
    fn log(&self, _: Level, _: &str) {}
}

/// The thread of the greenlets, which runs one request after the other.
fn run_greenlets(server: &Server) {
    let greenlets = server.greenlets().unwrap();
    assert!(greenlets.wakeup().settle_here());
    let next_wakeups = || {
        let descriptor = greenlets.wakeup().descriptor().unwrap();
        poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None).unwrap();
        greenlets.take_wakeups().unwrap_or_default()
    };
    let mut ended = false;
    while !ended {
        while greenlets.wants_worker() {
            let Some(slot) = greenlets.take_slot() else { break };
            if let Some(mut turn) = greenlets.turn(slot) {
                while let Some(exchange) = turn.next() {
                    answer(exchange, &mut |exchange| {
                        while exchange.ask_for_room(TICKET) == Room::Later {
                            while !ended {
                                let wakeups = next_wakeups();
                                ended |= wakeups.ended;
                                if wakeups.tickets.contains(&TICKET) {
                                    break;
                                }
                            }
                        }
                    });
                }
            }
            greenlets.give_slot_back(slot);
        }
        ended |= next_wakeups().ended;
    }
}

struct Served {
    server: Arc<Server>,
    http: SocketAddr,
    uwsgi: SocketAddr,
}

impl Served {
    fn new(config: Config, folder: &Path) -> Self {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [http, uwsgi] = [0, 1].map(|number| listeners[number].local_addr().unwrap());
        let executor = config.executor;
        let mount = Mount { prefix: "/files".to_owned(), folder: folder.to_owned(), is_overlay: false };
        let packets = ListenerConfig { protocol: ListenerProtocol::Uwsgi, ..ListenerConfig::default() };
        let config = Config {
            threads: 4,
            listeners: vec![ListenerConfig::default(), packets],
            trust: Trust::of(["*"], ForwardedFields::ANY).unwrap(),
            limits: Limits { body: 2 << 20, header_bytes: 256 << 10, ..Limits::default() },
            static_files: StaticConfig { mounts: vec![mount], ..StaticConfig::default() },
            ..config
        };
        let application = Arc::new(Reader::default());
        let server = Server::new(config, application.clone(), listeners.map(Into::into).into(), None).unwrap();
        assert!(application.server.set(server.clone()).is_ok());
        for _ in 0..if executor == ExecutorKind::Threads { 2 } else { 1 } {
            application.grow().unwrap();
        }
        if executor == ExecutorKind::Greenlets {
            let server = server.clone();
            thread::spawn(move || run_greenlets(&server));
        }
        Self { server, http, uwsgi }
    }

    /// The status and the body of the response. `None`: there was none, or it was broken off visibly.
    fn ask(&self, wire: &[u8]) -> Option<(u16, Vec<u8>)> {
        let mut client = Client::tcp(self.http);
        client.send(wire);
        client.try_response(Kind::default()).ok().map(|response| (response.status, response.body))
    }

    /// The same for a uwsgi packet, whose response ends with the connection.
    fn ask_by_packet(&self, wire: &[u8]) -> Option<(u16, Vec<u8>)> {
        let mut client = Client::tcp(self.uwsgi);
        client.send(wire);
        let (response, end) = client.rest();
        let blank = response.windows(4).position(|four| four == b"\r\n\r\n")?;
        let status = std::str::from_utf8(&response[9..12]).unwrap().parse().unwrap();
        (end == End::Closed).then(|| (status, response[blank + 4..].to_vec()))
    }

    fn end(self) {
        self.server.stop(PATIENCE);
        assert!(self.server.join(Some(2 * PATIENCE)), "the server does not end");
    }
}

/// One request.
struct Case {
    name: &'static str,
    wire: Vec<u8>,
    is_packet: bool,
    /// The status and the length of the body; of error pages it is not looked at.
    expected: (u16, Option<usize>),
}

fn case(name: &'static str, wire: impl Into<Vec<u8>>, status: u16, length: Option<usize>) -> Case {
    Case { name, wire: wire.into(), is_packet: false, expected: (status, length) }
}

fn request(line: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    [format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes(), body].concat()
}

fn post(length: usize) -> Vec<u8> {
    request("POST /", &format!("Content-Length: {length}\r\n"), &BYTES[..length])
}

fn cases() -> Vec<Case> {
    let piece = [b"2000\r\n", &BYTES[..0x2000], b"\r\n"].concat();
    let chunked = [request("POST /", "Transfer-Encoding: chunked\r\n", &piece.repeat(20)), b"0\r\n\r\n".to_vec()];
    let long = format!("X-Long: {}\r\n", "x".repeat(100_000));
    let packet = packet::packet(&[
        ("REQUEST_METHOD", "GET"),
        ("REQUEST_URI", "/"),
        ("SERVER_PROTOCOL", "HTTP/1.1"),
        ("HTTP_HOST", "a"),
    ]);
    vec![
        case("a GET", request("GET /", "", b""), 200, Some(4)),
        case("a head of 100 KB", request("GET /", &long, b""), 200, Some(4)),
        case("a small body", post(1_000), 200, Some(1_000)),
        case("a large body", post(600_000), 200, Some(600_000)),
        case("a chunked body", chunked.concat(), 200, Some(20 * 0x2000)),
        case("a body in a file", post(BLOCK), 200, Some(BLOCK)),
        case("400", request("GET nowhere", "", b""), 400, None),
        case("413", request("POST /", "Content-Length: 9999999\r\n", b""), 413, None),
        case("404", request("GET /files/none", "", b""), 404, None),
        case("a file", request("GET /files/small", "", b""), 200, Some(1_000)),
        case("a large file", request("GET /files/large", "", b""), 200, Some(BLOCK)),
        case("a response that has to wait", request("GET /large", "", b""), 200, Some(LARGE * BLOCK)),
        case("quick blocks", request("GET /blocks", "", b""), 200, Some(SMALL * 100)),
        Case { is_packet: true, ..case("a uwsgi packet", packet, 200, Some(4)) },
    ]
}

/// Files that are served, in a folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("tailrace-memory-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("small"), &BYTES[..1_000]).unwrap();
        std::fs::write(folder.join("large"), BYTES).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// One test at a time; its own thread has memory.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    IS_OTHERS.set(true);
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn config(executor: ExecutorKind) -> Config {
    Config { executor, body_memory: 800_000, ..Config::default() }
}

/// Makes the request while the allocations of this server fail from the one of this number on. Returns how many there
/// were.
fn check(served: &Served, case: &Case, number: usize, count: usize) -> usize {
    let ask = || if case.is_packet { served.ask_by_packet(&case.wire) } else { served.ask(&case.wire) };
    let before = COUNT.load(Ordering::SeqCst);
    fail_from(number, count);
    let outcome = ask();
    fail_no_more();
    let allocations = COUNT.load(Ordering::SeqCst) - before;
    let what = format!("{}, {count} allocations from {number} of {allocations}", case.name);
    if let Some((status, body)) = outcome {
        let (expected, length) = case.expected;
        assert!(status == expected || (count > 0 && [500, 503].contains(&status)), "{what}: {status}");
        if status == expected
            && let Some(length) = length
        {
            let pattern = if length == PONG.len() { PONG } else { &BYTES };
            assert!(body.len() == length && body.chunks(BLOCK).all(|part| pattern.starts_with(part)), "{what}");
        }
    } else {
        assert!(count > 0, "{what}: no response");
    }
    assert_eq!(served.ask(&request("GET /", "", b"")), Some((200, PONG.to_vec())), "after {what}");
    allocations
}

#[test]
fn whatever_allocation_of_a_request_fails_the_next_request_is_served() {
    let _alone = alone();
    let folder = Folder::new();
    for executor in EXECUTORS {
        let served = Served::new(config(executor), &folder.0);
        for case in cases() {
            check(&served, &case, usize::MAX, 0);
            let allocations = check(&served, &case, usize::MAX, 0);
            for number in 0..allocations {
                check(&served, &case, number, 1);
                check(&served, &case, number, usize::MAX);
            }
            assert!(!is_short());
        }
        served.end();
    }
}

#[test]
fn while_there_is_no_memory_at_all_requests_are_refused_and_afterwards_served() {
    let _alone = alone();
    let folder = Folder::new();
    for executor in EXECUTORS {
        let served = Served::new(config(executor), &folder.0);
        assert!(served.ask(&request("GET /", "", b"")).is_some());
        fail_from(0, usize::MAX);
        // Each of them takes memory for as long as it is connected, until there is room for no more of them.
        let mut clients = Vec::new();
        while clients.len() < CROWD && !is_short() {
            let mut client = Client::tcp(served.http);
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX: half of a head");
            clients.push(client);
        }
        assert!(clients.len() < CROWD, "there was memory for all");
        // From now on some of them lose their places to others.
        for _ in 0..100 {
            let mut client = Client::tcp(served.http);
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX: half of a head");
            clients.push(client);
        }
        if let Some((status, _)) = served.ask(&request("GET /", "", b"")) {
            assert!([200, 503].contains(&status), "{status}");
        }
        // Blocks of the reserve are still in use: those of the clients that are connected.
        fail_no_more();
        assert_eq!(served.ask(&request("GET /", "", b"")), Some((200, PONG.to_vec())));
        drop(clients);
        served.end();
    }
}
