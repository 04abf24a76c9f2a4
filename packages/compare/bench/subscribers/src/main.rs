//! Subscribes to a stream of Server-Sent Events many times, and measures how late its events arrive and which are missing.
//!
//!     cargo run --release -- http://127.0.0.1:8000/events --count 20000 [--connect-rate 2000] [--seconds 30] [--first 1]
//!
//! Events have consecutive integer IDs, and their data contains the time of sending as `"t": NANOSECONDS` (CLOCK_REALTIME).
//! With `--first`, the stream has no event before this ID, so a connection that misses it has lost it. A stream that
//! ends is requested again with `Last-Event-ID` after the stream's `retry:`, or after one second. After `--seconds`, SIGTERM
//! or SIGINT, the client prints one line of JSON. Until then, the same line goes to standard error each second:
//!
//! - `open`: streams at the end; `delivered`: events without doubled ones; `lost`: IDs skipped within a stream and over its
//!   reconnections; `doubled`: IDs that did not increase; `behind`: events that some stream had received and others had not;
//! - `closed`: streams that ended; `failed`: requests without a status 200; `rejected`: those with another status;
//!   `reconnects`: attempts after the first; `foreign`: events without a numeric ID or time;
//! - `p50_us`, `p90_us`, `p99_us`, `max_us`: from sending to the return of `recv`; `arriving`: seconds
//!   from the first event to the last one; `cpu_seconds`: this client's own.
//!
//! One thread and one epoll. If `cpu_seconds` nears `seconds`, the times are those of the client.

mod histogram;
mod stream;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Display;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use histogram::Histogram;
use stream::{Step, Stream};

/// Connections from one source address, well below the number of ephemeral ports.
const PER_SOURCE: usize = 4_000;
/// Maximum number of connections without a status, so that the server's accept queue does not overflow.
const MAX_OPENING: usize = 256;
const DEFAULT_RETRY: Duration = Duration::from_secs(1);

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn stop(_signal: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
}

struct Options {
    address: SocketAddrV4,
    path: String,
    count: usize,
    connect_rate: f64,
    seconds: f64,
    first: Option<u64>,
}

#[derive(PartialEq)]
enum Phase {
    Waiting,
    Connecting,
    Requested,
    Streaming,
}

struct Subscriber {
    phase: Phase,
    socket: Option<OwnedFd>,
    stream: Stream,
    last: Option<u64>,
    retry: Duration,
    /// The stream was requested before, so `Last-Event-ID` is sent.
    returning: bool,
}

const _: () = assert!(size_of::<Subscriber>() <= 256);

#[derive(Default)]
struct Tally {
    open: usize,
    opening: usize,
    delivered: u64,
    lost: u64,
    doubled: u64,
    foreign: u64,
    closed: u64,
    failed: u64,
    rejected: u64,
    reconnects: u64,
    /// When the first and the last event arrived.
    first_at: u64,
    last_at: u64,
}

struct Client {
    options: Options,
    epoll: OwnedFd,
    subscribers: Vec<Subscriber>,
    started: usize,
    again: BinaryHeap<Reverse<(Instant, usize)>>,
    tally: Tally,
    times: Histogram,
}

impl Client {
    fn new(options: Options) -> io::Result<Self> {
        let waiting = || Subscriber {
            phase: Phase::Waiting,
            socket: None,
            stream: Stream::default(),
            last: options.first.map(|first| first.saturating_sub(1)),
            retry: DEFAULT_RETRY,
            returning: false,
        };
        Ok(Self {
            subscribers: std::iter::repeat_with(waiting).take(options.count).collect(),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            started: 0,
            again: BinaryHeap::new(),
            tally: Tally::default(),
            times: Histogram::new(),
            options,
        })
    }

    fn run(&mut self) -> io::Result<()> {
        let begin = Instant::now();
        let mut report = begin + Duration::from_secs(1);
        let mut events = Vec::with_capacity(1024);
        let mut buffer = vec![0; 64 << 10];
        while !STOP.load(Ordering::Relaxed) && begin.elapsed().as_secs_f64() < self.options.seconds {
            let timeout = self.open_due(begin)?.min(report.saturating_duration_since(Instant::now()));
            let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                self.ready(event.data.u64() as usize, &mut buffer);
            }
            if Instant::now() >= report {
                report += Duration::from_secs(1);
                eprintln!("{}", self.result(begin.elapsed()));
            }
        }
        println!("{}", self.result(begin.elapsed()));
        Ok(())
    }

    /// Starts the connections whose time has come. Returns how long none is due.
    fn open_due(&mut self, begin: Instant) -> io::Result<Duration> {
        let allowed = (begin.elapsed().as_secs_f64() * self.options.connect_rate) as usize + 1;
        let now = Instant::now();
        while self.tally.opening < MAX_OPENING {
            if let Some(&Reverse((due, index))) = self.again.peek()
                && due <= now
            {
                self.again.pop();
                self.tally.reconnects += 1;
                self.connect(index)?;
            } else if self.started < self.options.count.min(allowed) {
                self.connect(self.started)?;
                self.started += 1;
            } else {
                let again = self.again.peek().map_or(Duration::MAX, |Reverse((due, _))| *due - now);
                let all = self.started == self.options.count;
                return Ok(if all { again } else { again.min(Duration::from_millis(1)) });
            }
        }
        Ok(Duration::MAX)
    }

    fn connect(&mut self, index: usize) -> io::Result<()> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        if self.options.address.ip().is_loopback() {
            let source = Ipv4Addr::from(u32::from(Ipv4Addr::LOCALHOST) + 1 + (index / PER_SOURCE) as u32);
            rustix::net::bind(&socket, &SocketAddrV4::new(source, 0))?;
        }
        let connected = rustix::net::connect(&socket, &self.options.address);
        let data = epoll::EventData::new_u64(index as u64);
        epoll::add(&self.epoll, &socket, data, epoll::EventFlags::OUT)?;
        let subscriber = &mut self.subscribers[index];
        subscriber.phase = Phase::Connecting;
        subscriber.socket = Some(socket);
        subscriber.stream = Stream::default();
        self.tally.opening += 1;
        if let Err(error) = connected
            && error != Errno::INPROGRESS
        {
            self.close(index);
        }
        Ok(())
    }

    fn ready(&mut self, index: usize, buffer: &mut [u8]) {
        let subscriber = &mut self.subscribers[index];
        let Some(socket) = &subscriber.socket else { return };
        if subscriber.phase == Phase::Connecting {
            let data = epoll::EventData::new_u64(index as u64);
            let request = request(&self.options, subscriber.last.filter(|_| subscriber.returning));
            // The send buffer of a new connection has room for the request.
            let sent = matches!(sockopt::socket_error(socket), Ok(Ok(())))
                && rustix::net::send(socket, request.as_bytes(), SendFlags::NOSIGNAL) == Ok(request.len())
                && epoll::modify(&self.epoll, socket, data, epoll::EventFlags::IN).is_ok();
            subscriber.phase = Phase::Requested;
            if !sent {
                self.close(index);
            }
            return;
        }
        let length = match rustix::net::recv(socket, &mut *buffer, RecvFlags::empty()) {
            Ok((length, _)) if length > 0 => length,
            Err(Errno::AGAIN | Errno::INTR) => return,
            _ => return self.close(index),
        };
        let now = nanoseconds(ClockId::Realtime);
        let (tally, times) = (&mut self.tally, &mut self.times);
        let Subscriber { stream, phase, last, retry, .. } = subscriber;
        let mut ended = false;
        let fed = stream.feed(&buffer[..length], &mut |step| match step {
            Step::Status(200) => {
                *phase = Phase::Streaming;
                tally.opening -= 1;
                tally.open += 1;
            }
            Step::Status(_) => {
                tally.rejected += 1;
                ended = true;
            }
            Step::Event { id: Some(id), sent: Some(sent) } => {
                if last.is_some_and(|last| id <= last) {
                    tally.doubled += 1;
                } else {
                    tally.lost += last.map_or(0, |last| id - last - 1);
                    tally.delivered += 1;
                    times.add(now.saturating_sub(sent));
                    (tally.first_at, tally.last_at) = (if tally.first_at == 0 { now } else { tally.first_at }, now);
                    *last = Some(id);
                }
            }
            Step::Event { .. } => tally.foreign += 1,
            Step::Retry(milliseconds) => *retry = Duration::from_millis(milliseconds),
            Step::End => ended = true,
        });
        if ended || fed.is_err() {
            self.close(index);
        }
    }

    /// Ends a connection and schedules the next one.
    fn close(&mut self, index: usize) {
        let subscriber = &mut self.subscribers[index];
        if subscriber.phase == Phase::Streaming {
            self.tally.open -= 1;
            self.tally.closed += 1;
        } else {
            self.tally.opening -= 1;
            self.tally.failed += 1;
        }
        subscriber.phase = Phase::Waiting;
        subscriber.socket = None;
        subscriber.returning = true;
        self.again.push(Reverse((Instant::now() + subscriber.retry, index)));
    }

    /// A line of JSON.
    fn result(&self, elapsed: Duration) -> String {
        let lasts = || self.subscribers.iter().filter_map(|subscriber| subscriber.last);
        let newest = lasts().max().unwrap_or(0);
        let behind: u64 = lasts().map(|last| newest - last).sum();
        let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|share| self.times.percentile(share) / 1_000);
        let (subscribers, max) = (self.options.count, self.times.max / 1_000);
        let (seconds, cpu) = (elapsed.as_secs_f64(), nanoseconds(ClockId::ProcessCPUTime) as f64 / 1e9);
        let Tally { open, delivered, lost, doubled, foreign, closed, failed, rejected, reconnects, .. } = self.tally;
        let arriving = (self.tally.last_at - self.tally.first_at) as f64 / 1e9;
        format!(
            "{{\"subscribers\": {subscribers}, \"open\": {open}, \"delivered\": {delivered}, \"lost\": {lost}, \
             \"doubled\": {doubled}, \"behind\": {behind}, \"foreign\": {foreign}, \"closed\": {closed}, \
             \"failed\": {failed}, \"rejected\": {rejected}, \"reconnects\": {reconnects}, \"p50_us\": {p50}, \
             \"p90_us\": {p90}, \"p99_us\": {p99}, \"max_us\": {max}, \"arriving\": {arriving:.3}, \"seconds\": {seconds:.2}, \
             \"cpu_seconds\": {cpu:.2}}}"
        )
    }
}

/// `last`: the ID of the newest event, for a stream that is requested again.
fn request(options: &Options, last: Option<u64>) -> String {
    let last = last.map_or(String::new(), |id| format!("Last-Event-ID: {id}\r\n"));
    let (path, address) = (&options.path, options.address);
    format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\nCache-Control: no-store\r\n{last}\r\n"
    )
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn value<T: FromStr<Err: Display>>(name: &str, text: Option<String>) -> Result<T, String> {
    let text = text.ok_or_else(|| format!("{name} needs a value"))?;
    text.parse().map_err(|error| format!("{name} {text}: {error}"))
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 80);
    let (path, seconds) = (String::new(), f64::INFINITY);
    let mut options = Options { address, path, count: 1, connect_rate: 2_000.0, seconds, first: None };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--count" => options.count = value(&argument, arguments.next())?,
            "--connect-rate" => options.connect_rate = value(&argument, arguments.next())?,
            "--seconds" => options.seconds = value(&argument, arguments.next())?,
            "--first" => options.first = Some(value(&argument, arguments.next())?),
            url => {
                let rest = url.strip_prefix("http://").ok_or_else(|| format!("unknown argument {url}"))?;
                let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                options.address = value("the URL's IPv4 address and port:", Some(host.to_owned()))?;
                options.path = if path.is_empty() { "/".to_owned() } else { path.to_owned() };
            }
        }
    }
    if options.path.is_empty() { Err("the URL is missing".to_owned()) } else { Ok(options) }
}

fn main() {
    let options = options(std::env::args().skip(1)).unwrap_or_else(|error| {
        eprintln!("subscribers: {error}");
        std::process::exit(2);
    });
    let limit = getrlimit(Resource::Nofile);
    // One that fails leaves the limit that the next lines compare.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if options.count as u64 + 8 > files {
        eprintln!("subscribers: {} connections need a higher limit of open files than {files}", options.count);
        std::process::exit(2);
    }
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the handler only stores into an atomic, which is async-signal-safe.
        unsafe { libc::signal(signal, stop as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
    if let Err(error) = Client::new(options).and_then(|mut client| client.run()) {
        eprintln!("subscribers: {error}");
        std::process::exit(1);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// The stream ends, the next request is rejected, and the one after it gets the rest.
    const RESPONSES: [&str; 3] = [
        "HTTP/1.1 200 OK\r\n\r\nretry: 10\nid: 1\ndata: \"t\": 1\n\nid: 2\ndata: \"t\": 1\n\nid: 4\ndata: \"t\": 1\n\n\
         id: 4\ndata: \"t\": 1\n\n",
        "HTTP/1.1 503 Busy\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n14\r\nid: 5\ndata: \"t\": 1\n\n\r\n0\r\n\r\n",
    ];

    #[test]
    fn a_stream_that_ends_is_requested_again_and_missing_events_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/events", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let asked = RESPONSES.map(|response| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 1024];
                let length = stream.read(&mut request).unwrap();
                stream.write_all(response.as_bytes()).unwrap();
                String::from_utf8_lossy(&request[..length]).into_owned()
            });
            // The request after the last response: the client has read that one.
            let last = listener.accept().unwrap();
            STOP.store(true, Ordering::Relaxed);
            (asked, last)
        });
        let mut client = Client::new(options([url].into_iter()).unwrap()).unwrap();
        client.run().unwrap();
        let (asked, _last) = server.join().unwrap();
        assert!(asked[0].starts_with("GET /events HTTP/1.1\r\n") && !asked[0].contains("Last-Event-ID"));
        assert!(asked[1..].iter().all(|request| request.contains("\r\nLast-Event-ID: 4\r\n")));
        let Tally { delivered, lost, doubled, closed, failed, rejected, reconnects, .. } = client.tally;
        assert_eq!((delivered, lost, doubled), (4, 1, 1));
        assert_eq!((closed, failed, rejected, reconnects), (2, 1, 1, 3));
    }
}
