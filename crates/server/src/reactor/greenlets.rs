//! A reactor whose application runs in the greenlets of one thread: a thread of its own does the I/O, the hub's thread
//! takes the requests.
//!
//! [`Reactor::run_io`] is the I/O thread's, and never touches the application; the rest belongs to the hub's thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::Reactor;
use crate::connection::Connection;
use crate::handler::Level;
use crate::hub::Hub;
use crate::local;
use crate::scoreboard::InFlight;
use crate::sys::{self, Events};

/// Between two rounds while the hub has yet to hear of the last one's requests: under load, one round for many requests
/// in place of a wake-up for each, which would take the core from the hub.
const NAP: Duration = Duration::from_micros(500);
/// Events taken at once: thousands of streams that get a block each are one round.
const BATCH: usize = 256;

impl Reactor {
    /// The hub whose greenlets run the application, if any.
    pub fn hub(&self) -> Option<&Hub> {
        self.hub.as_ref()
    }

    /// The body of the I/O thread. Returns when the server has ended.
    pub fn run_io(self: &Arc<Self>) {
        let Some(hub) = self.hub() else { return };
        let mut events = Events::new(BATCH);
        while !self.has_ended() {
            if let Err(fault) = self.poll(&mut events, self.next_timeout()) {
                self.log(Level::Error, &format!("the event loop failed: {fault}"));
                self.end();
                break;
            }
            let serve = AssertUnwindSafe(|| local::leading(|| self.serve(&events)));
            if catch_unwind(serve).is_err() {
                self.log(Level::Error, "the event loop panicked, and goes on");
            }
            // Once for all requests that this round has made complete.
            if self.ready.wants_runner(self.most_runners()) {
                hub.ring();
                if !hub.unanswered().is_zero() && !self.streams.has_left() {
                    // The hub has others to serve first; what comes meanwhile is one round with the next.
                    thread::sleep(NAP);
                }
            }
        }
    }

    /// True when requests wait, one more may be carried, and the hub's other greenlets are not due yet. Those who are told
    /// no because of these are called again.
    pub fn wants_carrier(&self) -> bool {
        let Some(hub) = self.hub().filter(|hub| !hub.is_forgotten()) else { return false };
        hub.note_turn();
        if !self.ready.wants_runner(self.most_runners()) {
            return false;
        }
        let takes = hub.begins_slice();
        if !takes {
            hub.ring();
        }
        takes
    }

    /// A post for a new greenlet that carries requests; `None`: there is none left.
    pub fn take_post(&self) -> Option<usize> {
        let hub = self.hub().filter(|hub| !hub.is_forgotten())?;
        let post = self.posts.take(sys::thread_id())?;
        hub.count_carrier(true);
        Some(post)
    }

    /// The greenlet ends.
    pub fn give_post_back(&self, post: usize) {
        if let Some(hub) = self.hub().filter(|hub| !hub.is_forgotten()) {
            self.posts.give_back(post);
            hub.count_carrier(false);
        }
    }

    /// The requests that greenlets carry, each with the post of its greenlet.
    pub fn in_flight(&self) -> Vec<(usize, InFlight)> {
        self.place.map(|place| place.in_flight_by_slot().collect()).unwrap_or_default()
    }

    /// True when those who would run the application have been kept from it for at least so long.
    pub(super) fn is_barred(&self, time: Duration) -> bool {
        match &self.hub {
            Some(hub) => hub.unanswered() >= time,
            None => self.ready.is_barred(time),
        }
    }

    /// A response of a hub's greenlet, which goes on: whoever leads sends what waits of it.
    pub(crate) fn push(&self, connection: Arc<Connection>) {
        self.streams.push(connection);
        self.wake_for_streams();
    }

    /// A greenlet's response that gathers from now on.
    pub(super) fn stream_later(&self, connection: Arc<Connection>) {
        // The I/O thread comes at every tick while any are listed.
        if self.streams.list_for_later(connection) {
            self.wake_leader();
        }
    }

    /// True while requests are carried or wait.
    pub fn is_busy(&self) -> bool {
        self.ready.len() > 0 || self.ready.running() > 0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::{self, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::thread::{self, JoinHandle};
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::Reactor;
    use crate::config::Config;
    use crate::exchange::{Exchange, Payload, Position, Room, Sent};
    use crate::handler::{Application, Level};
    use crate::hub::News;
    use crate::ready::Turn;

    /// The test's thread is the hub: nobody else may run the application.
    struct Nobody;

    impl Application for Nobody {
        fn enter(&self, _: &mut Turn<'_>) {
            panic!("a thread took a request");
        }

        fn grow(&self) -> io::Result<()> {
            panic!("a thread was started");
        }

        fn log(&self, _: Level, message: &str) {
            panic!("{message}");
        }
    }

    struct Served {
        reactor: Arc<Reactor>,
        io: JoinHandle<()>,
        port: u16,
    }

    impl Served {
        fn new(config: Config) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let config = Config { hub: true, ..config };
            let reactor = Reactor::new(config, Arc::new(Nobody), vec![listener.into()], None).unwrap();
            assert!(reactor.hub().unwrap().settle_here());
            let io = reactor.clone();
            Self { reactor, io: thread::spawn(move || io.run_io()), port }
        }

        fn ask(&self) -> TcpStream {
            let mut client = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
            client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            client
        }

        /// Waits for the bell.
        fn take(&self) -> News {
            let hub = self.reactor.hub().unwrap();
            let bell = hub.bell();
            poll(&mut [PollFd::new(&bell, PollFlags::IN)], None).unwrap();
            hub.take().unwrap_or_default()
        }

        fn await_carrier(&self) {
            while !self.reactor.wants_carrier() {
                self.take();
            }
        }

        fn end(self) {
            self.reactor.stop(Duration::ZERO);
            while !self.take().ended {}
            self.io.join().unwrap();
        }
    }

    struct Here(&'static [u8]);

    impl Payload for Here {
        fn bytes(&self) -> &[u8] {
            self.0
        }
    }

    fn send(exchange: &mut Exchange, block: &'static [u8]) -> Sent {
        exchange.send(&[block], Position::More, &mut |_| Box::new(Here(block)))
    }

    #[test]
    fn no_more_requests_are_carried_than_there_may_be_and_the_next_one_is_called() {
        let served = Served::new(Config { threads: 2, ..Config::default() });
        let _clients: Vec<_> = (0..3).map(|_| served.ask()).collect();
        let mut carried = Vec::new();
        for post in 0..2 {
            served.await_carrier();
            let mut turn = Turn::of_hub(&served.reactor, post).unwrap();
            let exchange = turn.next().unwrap();
            carried.push((turn, exchange));
        }
        while served.reactor.stats().queued < 1 {
            thread::yield_now();
        }
        assert!(!served.reactor.wants_carrier());
        assert!(Turn::of_hub(&served.reactor, 2).is_none());
        // Whoever ends a request at the limit calls the hub for those that wait.
        let (turn, exchange) = carried.pop().unwrap();
        exchange.finish().unwrap();
        drop(turn);
        served.await_carrier();
        let mut turn = Turn::of_hub(&served.reactor, 1).unwrap();
        turn.next().unwrap().finish().unwrap();
        assert!(turn.next().is_none());
        drop((turn, carried));
        assert_eq!(served.reactor.stats().running, 0);
        served.end();
    }

    #[test]
    fn a_turn_ends_with_its_slice_and_calls_again() {
        let served = Served::new(Config::default());
        let _clients: Vec<_> = (0..2).map(|_| served.ask()).collect();
        while served.reactor.stats().queued < 2 {
            thread::yield_now();
        }
        served.await_carrier();
        let mut turn = Turn::of_hub(&served.reactor, 0).unwrap();
        turn.next().unwrap().finish().unwrap();
        while !served.reactor.hub().unwrap().is_slice_over() {
            thread::yield_now();
        }
        assert!(turn.next().is_none());
        drop(turn);
        served.take();
        served.await_carrier();
        assert!(Turn::of_hub(&served.reactor, 0).unwrap().next().is_some());
        served.end();
    }

    #[test]
    fn who_asks_for_room_is_told_of_it_however_the_client_reads() {
        const ROUNDS: usize = 400;
        static BLOCK: [u8; 128 * 1024] = [b'x'; 128 * 1024];
        let served = Served::new(Config { outbox_limit: 64 * 1024, ..Config::default() });
        let mut client = served.ask();
        let reader = thread::spawn(move || {
            // Pieces of changing size, with and without a pause for the others: the two sides meet at every place.
            let mut total = 0_usize;
            let mut buffer = vec![0; 300_000];
            for round in 0.. {
                let wanted = 1 + (round * 7919) % buffer.len();
                match client.read(&mut buffer[..wanted]).unwrap() {
                    0 => break,
                    count => total += count,
                }
                if round % 3 == 0 {
                    thread::yield_now();
                }
            }
            total
        });
        served.await_carrier();
        let mut turn = Turn::of_hub(&served.reactor, 0).unwrap();
        let mut exchange = turn.next().unwrap();
        let mut told = 0;
        for ticket in 1..=ROUNDS {
            let mut sent = send(&mut exchange, &BLOCK);
            while sent == Sent::Full {
                match exchange.ask_for_room(ticket as u64) {
                    Room::Now => sent = Sent::Taken,
                    Room::Never => panic!("the client is there"),
                    // A lost one would leave this waiting for ever.
                    Room::Told => {
                        while !served.take().tickets.contains(&(ticket as u64)) {}
                        told += 1;
                    }
                }
            }
        }
        exchange.finish().unwrap();
        drop(turn);
        assert!(told > 0);
        served.end();
        assert!(reader.join().unwrap() > 0);
    }

    #[test]
    fn a_finished_response_without_memory_to_wait_in_is_sent() {
        // What the greenlet may write by itself fits into the socket, so no event would ever come for the rest.
        static BODY: [u8; 300 * 1024] = [b'x'; 300 * 1024];
        let served = Served::new(Config { response_buffer: 1, ..Config::default() });
        let mut client = served.ask();
        served.await_carrier();
        let mut turn = Turn::of_hub(&served.reactor, 0).unwrap();
        let mut exchange = turn.next().unwrap();
        let reader = thread::spawn(move || {
            let mut all = vec![0; BODY.len()];
            client.read_exact(&mut all).unwrap();
        });
        let mut sent = exchange.send(&[&BODY], Position::Last, &mut |_| Box::new(Here(&BODY)));
        for ticket in 1.. {
            if sent != Sent::Full {
                break;
            }
            match exchange.ask_for_room(ticket) {
                Room::Now => sent = Sent::Taken,
                Room::Never => panic!("the client is there"),
                Room::Told => while !served.take().tickets.contains(&ticket) {},
            }
        }
        exchange.finish().unwrap();
        reader.join().unwrap();
        drop(turn);
        served.end();
    }

    #[test]
    fn who_waits_for_room_is_told_of_the_end() {
        static BLOCK: [u8; 1 << 20] = [b'x'; 1 << 20];
        let served = Served::new(Config { outbox_limit: 64 * 1024, ..Config::default() });
        let _client = served.ask();
        served.await_carrier();
        let mut turn = Turn::of_hub(&served.reactor, 0).unwrap();
        let mut exchange = turn.next().unwrap();
        // Until the kernel takes no more, and nobody reads. False: it never will.
        let waits = |exchange: &mut Exchange| {
            loop {
                match (send(exchange, &BLOCK), exchange.ask_for_room(7)) {
                    (_, Room::Told) => return true,
                    (_, Room::Never) => return false,
                    (_, Room::Now) => {}
                }
            }
        };
        assert!(waits(&mut exchange));
        served.reactor.stop(Duration::ZERO);
        let mut has_ended = false;
        // It may be told of room before, for the kernel takes more at times.
        while {
            let news = served.take();
            has_ended |= news.ended;
            !news.tickets.contains(&7) || waits(&mut exchange)
        } {
            assert!(!has_ended, "nothing is told after the end");
        }
        while !has_ended {
            has_ended = served.take().ended;
        }
        drop((exchange, turn));
        served.io.join().unwrap();
    }
}
