//! The writer of a response: a thread that finds another one writing leaves its bytes to that one, and nothing stays
//! unsent.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use tailrace_http::body_encoder::BodyEncoder;
use tailrace_os::clock::{Millis, NEVER};
use tailrace_os::model::Exclusive;
use tailrace_os::socket::Io;
use tailrace_os::sync::atomic::{AtomicBool, Ordering};
use tailrace_os::sync::{Condvar, Mutex, lock, wait};

use super::explore;
use crate::connection::ownership::{GONE, Ownership, WRITE};
use crate::executor::{greenlets, threads};
use crate::request::memory::ClientMemory;
use crate::response::coalescing::{Delay, DelayedOpening};
use crate::response::delivery::{Accepted, After, ClientTime, Delivery, FilePart, Output};
use crate::response::outbox::{DeliveryLimits, Flush, Room, TimeOut};
use crate::response::policy::Policy;
use crate::response::send_state::{Produced, Progress};
use crate::response::write_plan::WritePlan;
use crate::transport::Transport;

/// The work of the thread that polls.
#[derive(Default)]
struct Mail {
    /// The socket has room.
    is_writable: bool,
    /// The connection was handed over: the thread owns it and continues with it.
    left: bool,
    /// The connection was pushed: the thread sends what is queued.
    pushed: bool,
    has_ended: bool,
}

#[derive(Default)]
struct Mailbox {
    mail: Mutex<Mail>,
    came: Condvar,
}

impl Mailbox {
    fn put(&self, note: impl FnOnce(&mut Mail)) {
        note(&mut lock(&self.mail));
        self.came.notify_all();
    }
}

/// The bytes between a socket and its client.
#[derive(Default)]
struct Stream {
    /// Bytes that the socket accepts before it is full.
    room: usize,
    sent: Vec<u8>,
    /// How many of these the client has read.
    taken: usize,
    /// The socket was full: it reports an event when it has room.
    tells: bool,
    /// Nothing more may be sent: the end of our direction has been.
    has_ended: bool,
}

struct Socket {
    stream: Arc<(Mutex<Stream>, Condvar)>,
}

impl Transport for Socket {
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn set_low_water(&self, _: u32) {}

    fn receive(&self, _: &mut [u8]) -> Io {
        Io::WouldBlock
    }

    fn transmit(&self, slices: &[IoSlice<'_>], _: bool) -> Io {
        let (stream, came) = &*self.stream;
        let mut stream = lock(stream);
        assert!(!stream.has_ended, "sent after the end");
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).take(stream.room).collect();
        if bytes.is_empty() {
            stream.tells = true;
            return Io::WouldBlock;
        }
        stream.room -= bytes.len();
        stream.sent.extend(&bytes);
        came.notify_all();
        Io::Moved(bytes.len())
    }

    /// The files of this model contain only the letter `f`.
    fn transmit_file(&self, _: BorrowedFd<'_>, _: u64, count: usize) -> Io {
        self.transmit(&[IoSlice::new(&b"f".repeat(count))], false)
    }

    fn wait_readable(&self, _: Duration) -> bool {
        false
    }

    fn wait_writable(&self, _: Duration) {}

    fn end_sending(&self) {
        lock(&self.stream.0).has_ended = true;
    }

    fn shut_down(&self) {}

    fn abort(&self) {}

    fn reset_on_close(&self) {}
}

/// The state of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Responding,
    Flushing,
    Done,
}

fn progress(is_complete: bool) -> Progress {
    Progress { produced: Produced { status: 200, body_bytes: 0 }, is_complete }
}

/// A connection with a response, as in the driver.
struct Connection {
    ownership: Ownership,
    delivery: Delivery,
    stage: Exclusive<Stage>,
    mailbox: Mailbox,
    stream: Arc<(Mutex<Stream>, Condvar)>,
    /// A greenlet waits for room. `woken`: it has been woken.
    waits: AtomicBool,
    woken: (Mutex<bool>, Condvar),
    /// The client's thread handles the events of the socket, beside the thread that polls.
    has_two_pollers: bool,
    limits: DeliveryLimits,
    /// The deadline of the client. `Exclusive` checks that one thread sets it at a time.
    deadline: Exclusive<Option<Millis>>,
}

impl Connection {
    fn new(policy: Policy, queue_limit: usize, room: usize) -> Self {
        let limits = DeliveryLimits {
            policy,
            queue_limit,
            least_queue: queue_limit,
            write_timeout: 1_000,
            min_rate: 0,
            memory: Arc::new(ClientMemory::new(1 << 20, 1 << 19)),
        };
        let stream = Arc::new((Mutex::new(Stream { room, ..Stream::default() }), Condvar::new()));
        Self {
            ownership: Ownership::owned(),
            delivery: Delivery::new(Box::new(Socket { stream: stream.clone() }), &limits),
            stage: Exclusive::default(),
            mailbox: Mailbox::default(),
            stream,
            waits: AtomicBool::new(false),
            woken: Default::default(),
            has_two_pollers: false,
            limits,
            deadline: Exclusive::default(),
        }
    }

    fn follow_up(&self, after: After) {
        if after.push {
            self.mailbox.put(|mail| mail.pushed = true);
        }
        if after.room {
            self.delivery.notify_room();
            if self.waits.swap(false, Ordering::SeqCst) {
                *lock(&self.woken.0) = true;
                self.woken.1.notify_all();
            }
        }
        if after.asked && self.ownership.raise(WRITE) {
            self.mailbox.put(|mail| mail.left = true);
        }
    }

    /// The runner: sends a block. False: it has to wait for room.
    fn send(&self, block: &[u8], is_last: bool) -> bool {
        let accepted = self.give(block, is_last);
        assert_ne!(accepted, Accepted::Gone);
        accepted == Accepted::Taken
    }

    fn give(&self, block: &[u8], is_last: bool) -> Accepted {
        let mut plan = WritePlan::default();
        plan.staging().extend_from_slice(block);
        let output = Output {
            plan: &mut plan,
            blocks: &[],
            keep: &mut |_| Box::new(()),
            progress: progress(is_last),
            may_hold: false,
            is_end: false,
        };
        let (accepted, after) = self.delivery.transmit(output, &mut 0, &self.limits, self);
        self.follow_up(after);
        accepted
    }

    /// The runner: sends all of a response, with `length` bytes of a file.
    fn send_file(&self, before: &[u8], length: u64, behind: &[u8]) {
        let file = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
        let part = FilePart { before, file: Arc::new(file), offset: 0, length, behind, progress: progress(true) };
        let (_, after) = self.delivery.transmit_file(part, &self.limits, self);
        self.follow_up(after);
    }

    fn wait_for_room(&self) {
        if self.limits.policy.waiting.is_by_ticket() {
            return self.wait_as_a_greenlet();
        }
        assert!(self.delivery.wait_for_room(&self.limits, Duration::MAX, || Duration::MAX));
    }

    fn ask_for_room(&self) -> Room {
        let outbox = self.delivery.outbox();
        let room = outbox.room(&self.limits);
        if room == Room::Later {
            self.waits.store(true, Ordering::SeqCst);
        }
        room
    }

    fn wait_as_a_greenlet(&self) {
        loop {
            match self.ask_for_room() {
                Room::Never => unreachable!(),
                Room::Now => return,
                Room::Later => {}
            }
            let mut woken = lock(&self.woken.0);
            while !std::mem::take(&mut *woken) {
                woken = wait(&self.woken.1, woken);
            }
        }
    }

    /// The runner: ends the response, and the connection continues.
    fn finish(&self) {
        let end = self.delivery.outbox().end(&self.limits);
        self.stage.with(|stage| *stage = Stage::Flushing);
        if end.is_left {
            self.mailbox.put(|mail| mail.left = true);
        } else {
            self.advance();
        }
    }

    /// The owner's loop.
    fn advance(&self) {
        loop {
            let bits = self.ownership.take();
            let stage = self.stage.with(|stage| *stage);
            if stage == Stage::Flushing {
                let (flush, after) = self.delivery.flush(bits & WRITE != 0, 2, &self.limits, Some(self));
                self.follow_up(after);
                match flush {
                    Flush::Empty => self.stage.with(|stage| *stage = Stage::Done),
                    Flush::More => return self.mailbox.put(|mail| mail.left = true),
                    Flush::Blocked | Flush::Elsewhere => {}
                    Flush::Broken | Flush::Short(_) => unreachable!(),
                }
            }
            if self.ownership.release() {
                return;
            }
        }
    }

    /// The thread that polls.
    fn poll(&self) {
        loop {
            let mut mail = lock(&self.mailbox.mail);
            while !(mail.is_writable || mail.left || mail.pushed || mail.has_ended) {
                mail = wait(&self.mailbox.came, mail);
            }
            let Mail { is_writable, left, pushed, has_ended } = *mail;
            *mail = Mail { has_ended, ..Mail::default() };
            drop(mail);
            if is_writable {
                self.report();
            }
            if pushed {
                self.drain();
            }
            if left {
                self.advance();
            }
            if has_ended && !(is_writable || left || pushed) {
                return;
            }
        }
    }

    /// An event reports room in the socket.
    fn report(&self) {
        if self.ownership.raise(WRITE) {
            self.advance();
        } else {
            self.drain();
        }
    }

    fn drain(&self) {
        self.follow_up(self.delivery.drain(true, false, &self.limits, self));
    }

    /// The client: reads `count` bytes.
    fn receive(&self, count: usize) {
        let (stream, came) = &*self.stream;
        let mut stream = lock(stream);
        while stream.taken < count {
            while stream.taken == stream.sent.len() {
                stream = wait(came, stream);
            }
            stream.room += stream.sent.len() - stream.taken;
            stream.taken = stream.sent.len();
            if std::mem::take(&mut stream.tells) {
                if self.has_two_pollers {
                    drop(stream);
                    self.report();
                    stream = lock(&self.stream.0);
                } else {
                    self.mailbox.put(|mail| mail.is_writable = true);
                }
            }
        }
    }

    /// Checks that all of the response has been received and that no work is left.
    fn check(&self, response: &[u8]) {
        assert_eq!(lock(&self.stream.0).sent, response);
        assert_eq!(self.stage.with(|stage| *stage), Stage::Done);
        assert_eq!(
            self.deadline.with(|deadline| deadline.unwrap_or(NEVER)),
            NEVER,
            "the deadline stays after all is sent"
        );
        assert!(self.ownership.raise(GONE), "the connection still has an owner");
    }
}

impl ClientTime for Connection {
    fn now(&self) -> Millis {
        1
    }

    fn set_deadline(&self, due: Millis) -> bool {
        self.deadline.with(|deadline| *deadline = Some(due));
        false
    }
}

/// A runner sends two blocks, which are larger than the room in the socket.
fn respond(connection: Connection) {
    let connection = Arc::new(connection);
    let poller = connection.clone();
    let poller = thread::spawn(move || poller.poll());
    let client = connection.clone();
    let client = thread::spawn(move || client.receive(4));
    if !connection.send(b"ab", false) {
        connection.wait_for_room();
    }
    connection.send(b"cd", true);
    connection.finish();
    client.join().unwrap();
    connection.mailbox.put(|mail| mail.has_ended = true);
    poller.join().unwrap();
    connection.check(b"abcd");
}

/// The policy of greenlets, with smaller writes by them and by the I/O side.
const GREENLETS: Policy = Policy { most_by_runner: Some(1), most_by_io: Some(1), ..greenlets::POLICY };

#[test]
fn nothing_stays_unsent_of_a_response_by_a_thread() {
    explore("delivery: threads", 3, || respond(Connection::new(threads::POLICY, 100, 1)));
}

#[test]
fn nothing_stays_unsent_where_two_threads_poll_beside_the_one_that_responds() {
    explore("delivery: threads, two poll", 3, || {
        respond(Connection { has_two_pollers: true, ..Connection::new(threads::POLICY, 0, 1) });
    });
}

#[test]
fn a_thread_that_waits_for_room_is_woken() {
    explore("delivery: threads, little room", 3, || respond(Connection::new(threads::POLICY, 0, 1)));
}

#[test]
fn nothing_stays_unsent_of_a_response_by_a_greenlet() {
    explore("delivery: greenlets", 3, || respond(Connection::new(GREENLETS, 100, 1)));
}

#[test]
fn a_greenlet_that_waits_for_room_is_woken() {
    explore("delivery: greenlets, little room", 3, || respond(Connection::new(GREENLETS, 0, 1)));
}

#[test]
fn nothing_stays_unsent_of_a_response_in_several_writes() {
    explore("delivery: a file between two blocks, two poll", 3, || {
        let connection = Arc::new(Connection { has_two_pollers: true, ..Connection::new(threads::POLICY, 100, 1) });
        let client = connection.clone();
        let client = thread::spawn(move || client.receive(3));
        let poller = connection.clone();
        let poller = thread::spawn(move || poller.poll());
        connection.send_file(b"a", 1, b"b");
        connection.finish();
        client.join().unwrap();
        connection.mailbox.put(|mail| mail.has_ended = true);
        poller.join().unwrap();
        connection.check(b"afb");
    });
}

/// The deadline of a request comes while its runner sends `100 Continue` and a response of two blocks. Without `room`
/// the runner has to wait for its client, which takes nothing.
fn time_out(policy: Policy, room: usize) {
    let connection = Arc::new(Connection::new(policy, 0, room));
    let deadline = connection.clone();
    let deadline = thread::spawn(move || {
        let (time_out, asked) = deadline.delivery.time_out(|| (b"page".to_vec(), 4));
        deadline.follow_up(After { asked, room: true, ..After::default() });
        time_out
    });
    connection.follow_up(connection.delivery.send(b"1", &connection.limits));
    let mut accepted = connection.give(b"ab", false);
    if accepted == Accepted::Full {
        let has_room = connection.delivery.wait_for_room(&connection.limits, Duration::MAX, || Duration::MAX);
        assert!(!has_room, "the client has taken nothing");
    } else if accepted == Accepted::Taken {
        accepted = connection.give(b"cd", true);
    }
    let time_out = deadline.join().unwrap();
    let end = connection.delivery.outbox().end(&connection.limits);
    let stream = lock(&connection.stream.0);
    let sent = stream.sent.strip_prefix(b"1").unwrap_or(&stream.sent);
    match time_out {
        TimeOut::Answered => {
            assert_eq!(end.timed_out, Some(Some(4)));
            assert!(b"page".starts_with(sent), "{}", sent.escape_ascii());
            assert!(room == 0 || (sent == b"page" && stream.has_ended), "{}", sent.escape_ascii());
        }
        TimeOut::BrokenOff => {
            assert_eq!(end.timed_out, Some(None));
            assert!(b"abcd".starts_with(sent) && end.is_broken, "{}", sent.escape_ascii());
        }
        TimeOut::Over => assert_eq!((sent, accepted, end.timed_out), (&b"abcd"[..], Accepted::Taken, None)),
    }
}

#[test]
fn a_deadline_answers_in_place_of_a_response_or_breaks_it_off_or_comes_too_late() {
    explore("delivery: a deadline", 3, || time_out(threads::POLICY, 100));
}

#[test]
fn a_runner_that_waits_for_room_is_woken_by_the_deadline() {
    explore("delivery: a deadline, no room", 3, || time_out(threads::POLICY, 0));
}

#[test]
fn a_delayed_opening_is_sent_once_by_its_producer_or_by_a_tick() {
    explore("delivery: a delayed opening", 3, || {
        let connection = Arc::new(Connection { has_two_pollers: true, ..Connection::new(threads::POLICY, 100, 100) });
        assert_eq!(
            connection.delivery.outbox().open(b"chunked ", 200, BodyEncoder::CHUNKED, b"ab", &connection.limits),
            Delay::Delayed
        );
        let ticker = connection.clone();
        let ticker = thread::spawn(move || {
            let (_, after) = ticker.delivery.tick(&ticker.limits, &*ticker);
            ticker.follow_up(after);
            ticker.poll();
        });
        let is_whole = connection.delivery.outbox().close(|| Some(b"length ")) == DelayedOpening::Here;
        connection.send(if is_whole { b"" } else { b"end" }, true);
        connection.finish();
        connection.mailbox.put(|mail| mail.has_ended = true);
        ticker.join().unwrap();
        connection.check(if is_whole { b"length ab" } else { b"chunked 2\r\nab\r\nend" });
    });
}
