//! The application runs in the greenlets of one thread: a separate thread does the I/O, and the greenlet thread takes
//! the requests.
//!
//! The I/O thread runs [`Executor::run`], and never touches the application. The greenlet thread calls the public
//! methods, except those that say "any thread". Not in a forked child.

#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod wakeup;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tailrace_observe::stats::ThreadStates;
use tailrace_os::clock;
use tailrace_os::epoll::Events;
use tailrace_os::panics::may_panic;
use tailrace_os::process;

use crate::connection::context::Context;
use crate::connection::driver::Connection;
use crate::connection::thread_state;
use crate::dispatch::dispatcher::Dispatcher;
use crate::executor::Executor;
use crate::executor::event_loop::EventLoop;
use crate::executor::greenlets::wakeup::{Wakeup, Wakeups};
use crate::executor::turn::Turn;
use crate::response::coalescing::TICK;
use crate::response::policy::{Coalesce, Policy, Waiting};

/// All greenlets share a thread, which the response of one of them must not occupy.
pub(crate) const POLICY: Policy = Policy {
    coalesce: Coalesce::Always,
    waiting: Waiting::Ticket,
    // Copying these takes less time than releasing and reacquiring the interpreter.
    most_by_runner: Some(128 * 1024),
    // A greenlet that sends its next block meanwhile blocks, and with it all others of its thread.
    most_by_io: Some(1 << 20),
    most_after_end: 0,
    holds: false,
    reads_by_runner: 1,
};

/// How long requests are taken before other greenlets run: as long as gevent's own hub runs callbacks.
const SLICE: Duration = Duration::from_millis(5);
/// Maximum time between two rounds while the greenlet thread still has requests of earlier ones to take. Under load,
/// one round then handles many requests instead of a wake-up for each, which would take the core from the greenlet
/// thread. Without it, an empty application loses 10 % of its rate (64 connections), as do 1,000 greenlets that sleep
/// for 10 ms each.
const LONGEST_REST: Duration = Duration::from_micros(500);
/// Up to this number of requests, a round that begins as soon as the greenlet thread has taken them serves their
/// clients sooner. Above it, larger rounds serve all of them with less work. Without the first rule, an empty
/// application takes 18 % more processor time on two cores (64 connections); without the second, 1,000 sleeping
/// greenlets lose 3 to 6 %.
const FEW: usize = 8;
/// Events taken at once: thousands of streams that get a block each are one round.
const BATCH: usize = 256;
/// How often the I/O thread checks for requests that have waited too long.
const LATE_CHECK: Duration = Duration::from_millis(10);

/// The executor whose runners are greenlets.
pub struct Greenlets {
    context: Arc<Context>,
    dispatcher: Arc<Dispatcher>,
    wakeup: Wakeup,
    began: Instant,
    /// Until when requests are taken, in nanoseconds since `began`; 0: no slice has begun.
    slice: AtomicU64,
    /// Counts how often the greenlet thread has looked for requests.
    turns: AtomicU64,
    /// Counts requests that greenlets began and ended.
    progress: AtomicU64,
    workers: AtomicUsize,
    workers_made: AtomicU64,
}

impl Greenlets {
    /// No thread is there yet.
    ///
    /// # Errors
    /// No descriptors left.
    pub(crate) fn new(dispatcher: Arc<Dispatcher>) -> io::Result<Self> {
        Ok(Self {
            context: dispatcher.context().clone(),
            dispatcher,
            wakeup: Wakeup::new()?,
            began: clock::now(),
            slice: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            progress: AtomicU64::new(0),
            workers: AtomicUsize::new(0),
            workers_made: AtomicU64::new(0),
        })
    }

    /// How the greenlet thread is woken. Any thread.
    pub fn wakeup(&self) -> &Wakeup {
        &self.wakeup
    }

    /// Answers a wake-up, ends the slice of time for requests, and takes the reasons for it.
    pub fn take_wakeups(&self) -> Option<Wakeups> {
        self.slice.store(0, Ordering::Relaxed);
        self.wakeup.take()
    }

    /// True if requests wait, another one may run, and the slice of time for requests is not over. If only the slice
    /// prevents it, the greenlet thread is woken again.
    pub fn wants_worker(&self) -> bool {
        self.turns.fetch_add(1, Ordering::Relaxed);
        if !self.dispatcher.queue.wants_runner(self.dispatcher.most_runners()) {
            self.wakeup.note_idle();
            return false;
        }
        let takes = self.has_slice_left();
        if !takes {
            self.wakeup.wake();
        }
        takes
    }

    /// A slot for a new greenlet that runs requests; `None`: there is none left.
    pub fn take_slot(&self) -> Option<usize> {
        let slot = self.dispatcher.runners.take(process::thread_id())?;
        self.workers.fetch_add(1, Ordering::Relaxed);
        self.workers_made.fetch_add(1, Ordering::Relaxed);
        Some(slot)
    }

    /// The greenlet ends.
    pub fn give_slot_back(&self, slot: usize) {
        self.dispatcher.runners.give_back(slot);
        self.workers.fetch_sub(1, Ordering::Relaxed);
    }

    /// A turn of the greenlet that has this slot. `None`: no request waits, or enough run.
    pub fn turn(&self, slot: usize) -> Option<Turn<'_>> {
        Turn::running(&self.dispatcher, self, slot)
    }

    /// Counts how often the greenlet thread has looked for requests. While a greenlet runs, the number changes only if
    /// the greenlet has switched to others.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Counts requests that greenlets began and ended. Any thread.
    pub fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// True while requests run or wait. Any thread.
    pub fn is_busy(&self) -> bool {
        self.dispatcher.is_busy()
    }

    fn nanos(&self) -> u64 {
        u64::try_from(clock::now().saturating_duration_since(self.began).as_nanos()).unwrap_or(u64::MAX)
    }

    /// As the opposite of [`Executor::is_turn_over`], but the first time after [`Greenlets::take_wakeups`] begins a slice.
    /// So greenlets whose tickets are given out, and which run first, cannot keep requests waiting for ever.
    fn has_slice_left(&self) -> bool {
        if self.slice.load(Ordering::Relaxed) == 0 {
            self.slice.store(self.nanos().saturating_add(SLICE.as_nanos() as u64).max(1), Ordering::Relaxed);
            return true;
        }
        !self.is_turn_over()
    }
}

/// True where the calling thread may switch to another greenlet: nothing that belongs to the thread is in use.
pub fn may_switch() -> bool {
    thread_state::is_scratch_free()
}

impl Executor for Greenlets {
    fn run(&self, events: &dyn EventLoop) -> io::Result<()> {
        let mut batch = Events::new(BATCH);
        while !events.has_ended() {
            events.wait(&mut batch, None)?;
            may_panic("greenlets");
            events.handle(&batch);
            // Once for all requests that this round has made complete.
            let queue = &self.dispatcher.queue;
            if queue.wants_runner(self.dispatcher.most_runners()) {
                // A greenlet thread that has nothing else to do takes them at once, and their clients may send the next
                // ones just as soon: there is no reason to wait.
                let was_at_work = self.wakeup.is_at_work();
                self.wakeup.wake();
                if was_at_work && !self.context.flush_list.has_urgent() {
                    // It has earlier requests to take first; everything that arrives meanwhile is handled in one round.
                    if queue.len() > FEW {
                        thread::sleep(LONGEST_REST);
                    } else {
                        self.wakeup.rest(LONGEST_REST);
                    }
                }
            }
        }
        Ok(())
    }

    /// The greenlet thread takes requests without help; the I/O thread only has to refuse those that wait too long.
    fn longest_wait(&self) -> Option<Duration> {
        let wait = if self.context.flush_list.are_any() { TICK } else { LATE_CHECK };
        self.dispatcher.may_be_late().then_some(wait)
    }

    fn is_blocked(&self, time: Duration) -> bool {
        self.wakeup.unanswered() >= time
    }

    fn end(&self) {
        self.wakeup.report_end();
    }

    fn count(&self) -> (u64, u64) {
        (self.workers.load(Ordering::Relaxed) as u64, self.workers_made.load(Ordering::Relaxed))
    }

    fn free_threads(&self) -> ThreadStates {
        let parked = self.workers.load(Ordering::Relaxed).saturating_sub(self.dispatcher.queue.running());
        ThreadStates { leading: 1, parked: parked as u64, ..ThreadStates::default() }
    }

    fn wake_io(&self) {
        if !thread_state::is_leading() {
            self.context.poller.wake();
        }
    }

    fn wake_runner(&self, ticket: u64) -> bool {
        self.wakeup.try_report_ticket(ticket)
    }

    fn is_on_ticket_thread(&self) -> bool {
        self.wakeup.is_here()
    }

    fn add_coalescing(&self, connection: Arc<Connection>) {
        // The I/O thread comes at every tick while any are listed.
        if self.context.flush_list.add_coalescing_anew(connection) {
            self.wake_io();
        }
    }

    /// The I/O thread itself does so at the end of its round, once for all requests.
    fn wake_runners(&self) {
        if !thread_state::is_leading() {
            self.wakeup.wake();
        }
    }

    fn note_progress(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    fn is_turn_over(&self) -> bool {
        self.nanos() >= self.slice.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::Read;
    use std::thread;
    use std::time::Duration;

    use tailrace_observe::metrics::Metric;

    use super::testing::Served;
    use crate::config::Config;
    use crate::connection::exchange::Exchange;
    use crate::executor::Executor;
    use crate::response::outbox::Room;
    use crate::response::payload::Payload;
    use crate::response::producer::{Position, Sent};

    struct Here(&'static [u8]);

    impl Payload for Here {
        fn bytes(&self) -> &[u8] {
            self.0
        }
    }

    fn send(exchange: &mut Exchange, block: &'static [u8]) -> Sent {
        exchange.response_mut().push(&[block], Position::More, &mut |_| Box::new(Here(block)))
    }

    #[test]
    fn no_more_requests_run_than_there_may_be_and_the_next_one_is_announced() {
        let served = Served::new(Config { threads: 2, ..Config::default() });
        let _clients: Vec<_> = (0..3).map(|_| served.ask()).collect();
        let mut carried = Vec::new();
        for slot in 0..2 {
            served.await_request();
            let mut turn = served.greenlets.turn(slot).unwrap();
            let exchange = turn.next().unwrap();
            carried.push((turn, exchange));
        }
        while served.server.stats()[Metric::Queued] < 1 {
            thread::yield_now();
        }
        assert!(!served.greenlets.wants_worker());
        assert!(served.greenlets.turn(2).is_none());
        // The runner that ends a request at the limit wakes the greenlet thread for those that wait.
        let (turn, exchange) = carried.pop().unwrap();
        exchange.finish().unwrap();
        drop(turn);
        served.await_request();
        let mut turn = served.greenlets.turn(1).unwrap();
        turn.next().unwrap().finish().unwrap();
        assert!(turn.next().is_none());
        drop((turn, carried));
        assert_eq!(served.server.stats()[Metric::Running], 0);
        served.end();
    }

    #[test]
    fn a_turn_ends_with_its_slice_and_the_thread_is_woken_again() {
        let served = Served::new(Config::default());
        let _clients: Vec<_> = (0..2).map(|_| served.ask()).collect();
        while served.server.stats()[Metric::Queued] < 2 {
            thread::yield_now();
        }
        served.await_request();
        let mut turn = served.greenlets.turn(0).unwrap();
        turn.next().unwrap().finish().unwrap();
        while !served.greenlets.is_turn_over() {
            thread::yield_now();
        }
        assert!(turn.next().is_none());
        drop(turn);
        served.take();
        served.await_request();
        assert!(served.greenlets.turn(0).unwrap().next().is_some());
        served.end();
    }

    #[test]
    fn the_ticket_of_a_runner_that_waits_for_room_comes_back_however_the_client_reads() {
        const ROUNDS: usize = 400;
        static BLOCK: [u8; 128 * 1024] = [b'x'; 128 * 1024];
        let served = Served::new(Config { response_queue: 64 * 1024, ..Config::default() });
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
        served.await_request();
        let mut turn = served.greenlets.turn(0).unwrap();
        let mut exchange = turn.next().unwrap();
        let mut woken = 0;
        for ticket in 1..=ROUNDS {
            let mut sent = send(&mut exchange, &BLOCK);
            while sent == Sent::Full {
                match exchange.response_mut().ask_for_room(ticket as u64) {
                    Room::Now => sent = Sent::Taken,
                    Room::Never => panic!("the client is there"),
                    // A lost one would leave this waiting for ever.
                    Room::Later => {
                        while !served.take().tickets.contains(&(ticket as u64)) {}
                        woken += 1;
                    }
                }
            }
        }
        exchange.finish().unwrap();
        drop(turn);
        assert!(woken > 0);
        served.end();
        assert!(reader.join().unwrap() > 0);
    }

    #[test]
    fn a_finished_response_without_memory_to_wait_in_is_sent() {
        // What the greenlet may write by itself fits into the socket, so no event would ever come for the rest.
        static BODY: [u8; 300 * 1024] = [b'x'; 300 * 1024];
        let served = Served::new(Config { response_buffer: 1, ..Config::default() });
        let mut client = served.ask();
        served.await_request();
        let mut turn = served.greenlets.turn(0).unwrap();
        let mut exchange = turn.next().unwrap();
        let reader = thread::spawn(move || {
            let mut all = vec![0; BODY.len()];
            client.read_exact(&mut all).unwrap();
        });
        let mut sent = exchange.response_mut().push(&[&BODY], Position::Last, &mut |_| Box::new(Here(&BODY)));
        for ticket in 1.. {
            if sent != Sent::Full {
                break;
            }
            match exchange.response_mut().ask_for_room(ticket) {
                Room::Now => sent = Sent::Taken,
                Room::Never => panic!("the client is there"),
                Room::Later => while !served.take().tickets.contains(&ticket) {},
            }
        }
        exchange.finish().unwrap();
        reader.join().unwrap();
        drop(turn);
        served.end();
    }

    #[test]
    fn a_runner_that_waits_for_room_is_woken_by_the_end() {
        static BLOCK: [u8; 1 << 20] = [b'x'; 1 << 20];
        let served = Served::new(Config { response_queue: 64 * 1024, ..Config::default() });
        let _client = served.ask();
        served.await_request();
        let mut turn = served.greenlets.turn(0).unwrap();
        let mut exchange = turn.next().unwrap();
        // Until the kernel takes no more, and nobody reads. False: it never will.
        let waits = |exchange: &mut Exchange| {
            loop {
                match (send(exchange, &BLOCK), exchange.response_mut().ask_for_room(7)) {
                    (_, Room::Later) => return true,
                    (_, Room::Never) => return false,
                    (_, Room::Now) => {}
                }
            }
        };
        assert!(waits(&mut exchange));
        served.server.stop(Duration::ZERO);
        let mut has_ended = false;
        // The ticket may come back before, since the kernel takes more at times.
        while {
            let wakeups = served.take();
            has_ended |= wakeups.ended;
            !wakeups.tickets.contains(&7) || waits(&mut exchange)
        } {
            assert!(!has_ended, "no ticket comes back after the end");
        }
        while !has_ended {
            has_ended = served.take().ended;
        }
        drop((exchange, turn));
        served.io.join().unwrap();
    }
}
