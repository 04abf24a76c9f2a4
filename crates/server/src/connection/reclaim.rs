//! Making room in the memory that is held for clients.
//!
//! Incomplete handshakes are shed first, then incomplete requests, each from the oldest. Clients that send endless
//! headers or bodies thus lose their own requests, and memory remains for complete requests of other clients. A thread
//! that receives bytes asks for room.
//!
//! Bodies in files have a limit too. When it is reached, the oldest incomplete ones are shed in the same way.
//!
//! Responses that wait for slow clients are moved to files, starting with those that hold the most memory. The leader
//! looks for them after each round of events if responses hold more than their limit; disk threads move them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, TryLockError};
use std::time::{Duration, Instant};

use tailrace_http::limits::{Exceeded, Refusal};
use tailrace_observe::level::Level;
use tailrace_observe::metrics::Metric;
use tailrace_os::clock;
use tailrace_os::clock::{Millis, millis};
use tailrace_os::sync::lock;

use crate::connection::context::{Context, Reclaim};
use crate::connection::driver::Connection;
use crate::connection::state::Unfinished;
use crate::response::delivery::Spilled;

/// After a look at all connections that has freed too little, none is made for this many times its duration.
const LOOK_PAUSE: u32 = 10;
/// Minimum number of bytes for which a response is moved to a file: the file costs the kernel as much.
const LEAST_MOVED: usize = 4096;
/// Responses that are moved before others are looked for.
const MOST_MOVED: usize = 1024;
/// How long until responses are looked for again after no memory could be freed.
const FRUITLESS: Duration = Duration::from_secs(1);
/// Freed bytes are reported from this number on, so that the allocator returns them to the system.
const WORTH: usize = 1 << 20;

const GIVEN_UP: Refusal =
    Refusal::beyond(503, "The server needed the memory of requests that are not complete.", Exceeded::ClientMemory);
const GIVEN_UP_FILE: Refusal = Refusal::beyond(
    503,
    "The server needed the disk space of request bodies that are not complete.",
    Exceeded::BodyFiles,
);

impl Context {
    /// Makes sure that there is room for `more` bytes. False: there is none.
    pub(crate) fn make_room(&self, more: usize) -> bool {
        self.memory.has_room(more) || {
            self.shed_oldest(more);
            self.memory.has_room(more)
        }
    }

    /// After a round of events: sheds incomplete requests and has responses moved to files if these have used up their
    /// memory, and reports freed bytes to `freed`.
    pub(crate) fn look_after_memory(self: &Arc<Self>, freed: impl FnOnce(usize)) {
        if !self.memory.has_room(0) {
            self.shed_oldest(0);
        }
        let now = self.clock.recent_millis();
        if self.next_reclaim(now).is_some_and(|wait| wait.is_zero()) {
            self.reclaim_responses(now);
        }
        self.memory.pool.release_unused(self.clock.recent_millis());
        if let Some(bytes) = self.memory.take_freed(WORTH) {
            freed(bytes);
        }
    }

    /// The time until the next search for responses to move to files. `None`: responses keep within their limit, or are
    /// being moved.
    pub(crate) fn next_reclaim(&self, now: Millis) -> Option<Duration> {
        let is_due = self.memory.is_response_limit_exceeded() && !self.reclaim.is_under_way.load(Ordering::Acquire);
        let wait = || self.reclaim.next_look.load(Ordering::Relaxed).saturating_sub(now);
        is_due.then(|| Duration::from_millis(wait()))
    }

    /// Has disk threads free memory of responses that wait for their clients, starting with those that hold the most.
    #[cold]
    fn reclaim_responses(self: &Arc<Self>, now: Millis) {
        let begun = clock::now();
        let round = Arc::new(Round::new(self.clone()));
        let mut waiting = Vec::new();
        self.table.visit(|connection| {
            let held = connection.delivery.outbox().queue.held();
            // Without memory some of them will do.
            if held >= LEAST_MOVED && waiting.try_reserve(1).is_ok() {
                waiting.push((held, connection.clone()));
            }
        });
        waiting.sort_unstable_by_key(|(held, _)| std::cmp::Reverse(*held));
        let pause = millis(clock::since(begun) * LOOK_PAUSE).max(1);
        self.reclaim.next_look.store(now.saturating_add(pause), Ordering::Relaxed);
        for (_, connection) in waiting.into_iter().take(MOST_MOVED) {
            let round = round.clone();
            self.spill.run(move || round.reclaim(&connection));
        }
    }

    /// A response was moved to a file: the line for the log, at most once a minute.
    fn line_of_moved(&self) -> Option<String> {
        let Reclaim { moved, logged, .. } = &self.reclaim;
        let total = moved.fetch_add(1, Ordering::Relaxed) + 1;
        if !logged.may_log(self.clock.now()) {
            return None;
        }
        moved.store(0, Ordering::Relaxed);
        let (limit, were) = (size(self.memory.response_limit()), if total == 1 { "was" } else { "were" });
        Some(format!(
            "responses that slow clients have not read exceed {limit} (half of --client-memory): {total} {were} moved to \
             temporary files in {}",
            self.disk.folder().display()
        ))
    }

    /// Aborts incomplete handshakes and rejects incomplete requests, oldest first, until there is room for `more` bytes
    /// and a margin, so that all connections are rarely scanned.
    #[cold]
    fn shed_oldest(&self, more: usize) {
        // One thread at a time looks; the room that it makes is for all.
        let mut next_look = match self.next_look.try_lock() {
            Ok(next_look) => next_look,
            // After a panic in a look only the connection that asked for it was closed.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let begun = clock::now();
        if next_look.is_some_and(|next_look| begun < next_look) {
            return;
        }
        let excess = self.memory.excess(more) as u64;
        if !self.shed(&GIVEN_UP, excess, |each| Some(each.memory as u64)) {
            *next_look = Some(pause_after(begun));
        }
    }

    /// Rejects incomplete requests whose bodies are in files, oldest first, until there is room for `more` bytes, and for
    /// 1/64 of the limit, so that all connections are rarely scanned. Those that began after the one that needs the room
    /// stay, so a client that keeps much of a body there loses its own request. `since`: when that one began. Thread: one
    /// of the disk's.
    #[cold]
    pub(crate) fn make_room_on_disk(&self, since: Millis, more: u64) {
        // One thread at a time looks. The others wait for the room that it makes.
        let mut next_look = lock(&self.next_look_at_files);
        let begun = clock::now();
        let quota = &self.body_files;
        // What a fruitless look for an older request has left may still be shed for this one.
        let is_fruitless = |(next_look, looked_for): (Instant, Millis)| begun < next_look && since <= looked_for;
        if quota.excess(more) == 0 || next_look.is_some_and(is_fruitless) {
            return;
        }
        let excess = quota.excess(more.saturating_add(quota.limit() / 64));
        let is_older = |each: &Unfinished| (each.stored > 0 && each.since <= since).then_some(each.stored);
        if !self.shed(&GIVEN_UP_FILE, excess, is_older) {
            *next_look = Some((pause_after(begun), since));
        }
    }

    /// Aborts incomplete handshakes and rejects incomplete requests, oldest first, until so much is free. `held`: what each
    /// of them holds; `None`: it stays. False: they held less.
    fn shed(&self, refusal: &Refusal, mut excess: u64, held: impl Fn(&Unfinished) -> Option<u64>) -> bool {
        let mut unfinished = Vec::new();
        self.table.visit(|connection| {
            // Without memory some of them will do.
            if let Some(each) = connection.unfinished()
                && let Some(held) = held(&each)
                && unfinished.try_reserve(1).is_ok()
            {
                unfinished.push((each, held, connection.clone()));
            }
        });
        unfinished.sort_unstable_by_key(|(each, ..)| *each);
        let mut shed = 0;
        for (each, held, connection) in unfinished {
            if excess == 0 {
                break;
            }
            let is_shed = if each.is_request {
                connection.own(0).is_some_and(|owned| owned.shed(refusal))
            } else {
                connection.socket().shed_handshake()
            };
            if is_shed {
                shed += u64::from(each.is_request);
                excess = excess.saturating_sub(held);
            }
        }
        self.counts.add(Metric::Shed, shed);
        excess == 0
    }
}

/// The tasks of one look. While it exists, no responses are looked for.
struct Round {
    context: Arc<Context>,
    has_freed: AtomicBool,
    /// The disk is full or broken: the rest of the round would write in vain.
    has_failed: AtomicBool,
}

impl Round {
    fn new(context: Arc<Context>) -> Self {
        context.reclaim.is_under_way.store(true, Ordering::Release);
        Self { context, has_freed: AtomicBool::new(false), has_failed: AtomicBool::new(false) }
    }

    /// Frees the memory of one response, if that is still needed: copies what little is left of large blocks, or moves
    /// all to a file.
    fn reclaim(&self, connection: &Arc<Connection>) {
        let context = &self.context;
        let is_over = self.has_failed.load(Ordering::Relaxed) || context.memory.is_enough_of_responses_freed();
        if is_over || context.has_ended() {
            return;
        }
        if connection.delivery.outbox().queue.copy_tails() {
            return self.has_freed.store(true, Ordering::Relaxed);
        }
        match connection.spill_for_another() {
            Spilled::Done => {
                self.has_freed.store(true, Ordering::Relaxed);
                if let Some(line) = context.line_of_moved() {
                    connection.host.log(Level::Warning, &line);
                }
            }
            Spilled::Nothing | Spilled::Busy | Spilled::NoRoom => {}
            Spilled::Failed(_) => self.has_failed.store(true, Ordering::Relaxed),
        }
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        let Reclaim { is_under_way, next_look, .. } = &self.context.reclaim;
        if self.has_failed.load(Ordering::Relaxed) || !self.has_freed.load(Ordering::Relaxed) {
            next_look.fetch_max(self.context.clock.now().saturating_add(millis(FRUITLESS)), Ordering::Relaxed);
        }
        is_under_way.store(false, Ordering::Release);
        if self.context.memory.is_response_limit_exceeded() {
            self.context.poller.wake();
        }
    }
}

/// When connections may be looked at again after a look that has freed too little.
fn pause_after(begun: Instant) -> Instant {
    let now = clock::now();
    now + (now - begun) * LOOK_PAUSE
}

/// A number of bytes, for a log line.
fn size(bytes: usize) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::{self, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use std::thread::{self, JoinHandle};
    use std::time::{Duration, Instant};

    use tailrace_observe::access_log::{AccessLogConfig, Destination, Format};
    use tailrace_observe::level::Level;
    use tailrace_observe::metrics::Metric;
    use tailrace_observe::stats::Stats;
    use tailrace_os::clock;
    use tailrace_os::sync::lock;

    use crate::config::{Config, ExecutorKind};
    use crate::connection::context::Context;
    use crate::executor::application::Application;
    use crate::executor::threads::POLICY;
    use crate::executor::turn::Turn;
    use crate::response::producer::Position;
    use crate::server::{Provided, Server};

    #[derive(Default)]
    struct Pong {
        freed: AtomicUsize,
        lines: Mutex<Vec<String>>,
    }

    impl Application for Pong {
        fn enter(&self, turn: &mut Turn<'_>) {
            while let Some(mut exchange) = turn.next() {
                exchange.response_mut().head().status(b"200 OK").unwrap();
                exchange.response_mut().push(&[b"pong"], Position::Last, &mut |_| Box::new(()));
                exchange.finish().unwrap();
            }
        }

        fn grow(&self) -> io::Result<()> {
            panic!("a thread was started");
        }

        fn freed(&self, bytes: usize) {
            self.freed.fetch_add(bytes, Ordering::SeqCst);
        }

        fn log(&self, _: Level, message: &str) {
            assert!(message.starts_with("rejected a request from "), "{message}");
            lock(&self.lines).push(message.to_owned());
        }
    }

    struct Served {
        server: Arc<Server>,
        application: Arc<Pong>,
        thread: JoinHandle<()>,
        port: u16,
    }

    impl Served {
        fn new(client_memory: usize) -> Self {
            Self::with(Config { client_memory, ..Config::default() })
        }

        fn with(config: Config) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let config = Config { executor: ExecutorKind::Inline, ..config };
            let application = Arc::new(Pong::default());
            let server = Server::new(config, application.clone(), vec![listener.into()], Provided::default()).unwrap();
            let served = server.clone();
            Self { server, application, thread: thread::spawn(move || served.run()), port }
        }

        fn send(&self, bytes: &[u8]) -> TcpStream {
            let mut client = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            client.write_all(bytes).unwrap();
            client
        }

        fn until(&self, what: &str, is_so: impl Fn(&Stats) -> bool) -> Stats {
            let until = Instant::now() + Duration::from_secs(20);
            loop {
                let stats = self.server.stats();
                if is_so(&stats) {
                    return stats;
                }
                assert!(Instant::now() < until, "{what}: {stats:?}");
                // A pause: other tests of this process measure how busy it is.
                thread::sleep(Duration::from_millis(1));
            }
        }

        fn end(self) {
            self.server.stop(Duration::ZERO);
            self.thread.join().unwrap();
        }
    }

    fn status(client: &mut TcpStream) -> u16 {
        let mut head = [0; 12];
        client.read_exact(&mut head).unwrap();
        std::str::from_utf8(&head[9..]).unwrap().parse().unwrap()
    }

    /// An incomplete head of `size` bytes.
    fn head(size: usize) -> Vec<u8> {
        let mut head = b"GET / HTTP/1.1\r\nHost: a\r\nX: ".to_vec();
        head.resize(size, b'x');
        head
    }

    #[test]
    fn an_incomplete_request_is_charged_until_its_client_disconnects() {
        const SIZE: usize = 3 << 20;
        let served = Served::new(1 << 30);
        let short = served.send(&head(100));
        served.until("a short head", |stats| (100..20_000).contains(&stats[Metric::Heads]));
        let long: Vec<_> = (0..SIZE / 60_000).map(|_| served.send(&head(60_000))).collect();
        let most = served.until("long heads", |stats| stats[Metric::Heads] as usize >= SIZE - 60_000);
        assert!(most[Metric::Heads] < 2 * SIZE as u64, "{most:?}");
        let body = served.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9000\r\n\r\nhalf");
        let with_body = served.until("a body", |stats| stats[Metric::Bodies] > 0);
        // Charged is what has come, not the Content-Length.
        assert!(with_body[Metric::Bodies] < 4096, "{with_body:?}");
        assert_eq!(
            with_body[Metric::Held],
            with_body[Metric::Heads] + with_body[Metric::Bodies] + with_body[Metric::Buffered]
        );
        drop((short, long, body));
        let none = served.until("nothing held", |stats| stats[Metric::Held] == 0);
        assert_eq!((none[Metric::Heads], none[Metric::Bodies], none[Metric::Shed]), (0, 0, 0));
        served.until("the application is told of freed memory", |_| {
            served.application.freed.load(Ordering::SeqCst) >= SIZE / 2
        });
        served.end();
    }

    #[test]
    fn a_small_request_that_arrives_complete_is_not_charged_and_an_idle_connection_holds_nothing() {
        let served = Served::new(1 << 30);
        let mut client = served.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(status(&mut client), 200);
        // The charge for a head that came in pieces ends with the response.
        let mut pieces = served.send(b"GET / HTTP/1.1\r\n");
        served.until("a piece", |stats| stats[Metric::Heads] > 0);
        pieces.write_all(b"Host: a\r\n\r\n").unwrap();
        assert_eq!(status(&mut pieces), 200);
        let idle = served.until("two idle connections", |stats| stats[Metric::Held] == 0);
        assert_eq!(idle[Metric::Connections], 2);
        served.end();
    }

    #[test]
    fn the_oldest_incomplete_requests_are_refused_for_newer_ones() {
        let served = Served::new(1 << 20);
        let mut clients = Vec::new();
        for number in 0..60 {
            clients.push(served.send(&head(60_000)));
            if number == 0 {
                served.until("the first", |stats| stats[Metric::Heads] > 0);
                // Long enough that the clock of the server, which counts milliseconds, shows that it is older.
                thread::sleep(Duration::from_millis(3));
            }
            // A complete request is served, however much memory incomplete ones hold.
            assert_eq!(status(&mut served.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")), 200);
            assert!(served.server.stats()[Metric::Held] <= 1 << 20);
        }
        let stats = served.until("some shed", |stats| stats[Metric::Shed] >= 40);
        assert_eq!(stats[Metric::Shed], stats[Metric::Refused]);
        assert_eq!(status(&mut clients[0]), 503);
        let mut last = clients.pop().unwrap();
        last.write_all(b"\r\n\r\n").unwrap();
        assert_eq!(status(&mut last), 200);
        served.end();
    }

    #[test]
    fn incomplete_bodies_in_memory_are_refused_and_one_in_a_file_is_not() {
        let body = |length: usize, came: usize| {
            let mut request = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n").into_bytes();
            request.resize(request.len() + came, b'x');
            request
        };
        // The body that goes to a file fits into the memory, so room is only looked for when the others come.
        let served = Served::with(Config { client_memory: 4 << 20, body_memory: 1 << 20, ..Config::default() });
        let mut in_file = served.send(&body(3_000_000, 2_900_000));
        served.until("a body in a file", |stats| stats[Metric::Heads] > 0 && stats[Metric::Bodies] < 20_000);
        let mut clients: Vec<_> = (0..400).map(|_| served.send(&body(16_000, 15_000))).collect();
        served.until("some shed", |stats| stats[Metric::Shed] >= 20);
        assert_eq!(status(&mut clients[0]), 503);
        let mut last = clients.pop().unwrap();
        for (client, missing) in [(&mut last, 1_000), (&mut in_file, 100_000)] {
            client.write_all(&vec![b'x'; missing]).unwrap();
            assert_eq!(status(client), 200);
        }
        served.end();
    }

    /// A request whose body is longer than what follows, so that its part of 600,000 bytes is in a file.
    fn upload() -> Vec<u8> {
        let mut request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n".to_vec();
        request.resize(request.len() + 600_000, b'x');
        request
    }

    #[test]
    fn the_oldest_incomplete_bodies_in_files_are_refused_for_newer_ones() {
        let served = Served::with(Config { body_memory: 1_000, body_spill: 4 << 20, ..Config::default() });
        let mut clients = Vec::new();
        for _ in 0..30 {
            clients.push(served.send(&upload()));
            thread::sleep(Duration::from_millis(5));
            assert!(served.server.body_files() <= 4 << 20);
        }
        served.until("the oldest are shed", |stats| stats[Metric::Shed] >= 20);
        assert_eq!(status(&mut clients[0]), 503);
        let mut last = clients.pop().unwrap();
        last.write_all(&[b'x'; 400_000]).unwrap();
        assert_eq!(status(&mut last), 200);
        // A body that needs no file is served meanwhile.
        assert_eq!(status(&mut served.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab")), 200);
        drop((clients, last));
        let until = Instant::now() + Duration::from_secs(20);
        while served.server.body_files() > 0 {
            assert!(Instant::now() < until, "{} bytes are still counted", served.server.body_files());
            thread::sleep(Duration::from_millis(1));
        }
        served.end();
    }

    #[test]
    fn a_greedy_body_is_refused_and_newer_ones_stay() {
        let served = Served::with(Config { body_memory: 1_000, body_spill: 4 << 20, ..Config::default() });
        let mut greedy = served.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n");
        served.until("its head", |stats| stats[Metric::Heads] > 0);
        thread::sleep(Duration::from_millis(5));
        let mut newer = served.send(&upload());
        let until = Instant::now() + Duration::from_secs(20);
        while served.server.body_files() < 500_000 {
            assert!(Instant::now() < until);
            thread::sleep(Duration::from_millis(1));
        }
        // The server may close before it has read all.
        let _ = greedy.write_all(&vec![b'x'; 8 << 20]);
        assert_eq!(status(&mut greedy), 503);
        newer.write_all(&[b'x'; 400_000]).unwrap();
        assert_eq!(status(&mut newer), 200);
        assert_eq!(served.server.stats()[Metric::Shed], 0);
        let line = lock(&served.application.lines).concat();
        assert!(
            line.contains("no room left for the request body. To allow such requests, raise --max-body."),
            "{line}"
        );
        served.end();
    }

    #[test]
    fn a_fruitless_look_for_an_old_body_does_not_put_off_that_for_a_newer_one() {
        let context = Context::new(Config { body_spill: 100, ..Config::default() }, POLICY, Arc::default()).unwrap();
        assert!(context.body_files.reserve(100));
        let fruitless = Some((clock::now() + Duration::from_secs(3600), 5));
        *lock(&context.next_look_at_files) = fruitless;
        context.make_room_on_disk(5, 1);
        assert_eq!(*lock(&context.next_look_at_files), fruitless);
        context.make_room_on_disk(6, 1);
        assert_eq!(lock(&context.next_look_at_files).unwrap().1, 6, "it has looked");
    }

    #[test]
    fn a_request_larger_than_all_memory_is_refused() {
        let served = Served::new(20_000);
        assert_eq!(status(&mut served.send(&head(60_000))), 503);
        assert_eq!(status(&mut served.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")), 200);
        served.until("nothing is held", |stats| stats[Metric::Held] == 0);
        served.end();
    }

    #[test]
    fn the_record_of_a_refused_incomplete_request_counts_the_write_of_its_error_page() {
        let file = std::env::temp_dir().join(format!("tailrace-given-up-{}", std::process::id()));
        let destination = Destination::Path(file.clone());
        let format = Format::parse("{status} {writes} {ending}").unwrap();
        let access_log = Some(AccessLogConfig { destination, format });
        let served = Served::with(Config { access_log, client_memory: 100_000, ..Config::default() });
        let clients: Vec<_> = (0..4).map(|_| served.send(&head(40_000))).collect();
        served.until("some shed", |stats| stats[Metric::Shed] >= 1);
        drop(clients);
        served.end();
        let log = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let refused: Vec<_> = log.lines().filter(|line| line.starts_with("503")).collect();
        assert!(!refused.is_empty() && refused.iter().all(|line| *line == "503 1 complete"), "{log}");
    }
}
