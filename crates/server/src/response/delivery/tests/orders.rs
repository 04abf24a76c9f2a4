//! Random orders of what the producer, the I/O side, the client and the deadline of a response do: a small model of a
//! connection, steered by random numbers.
//!
//! Everything runs on one thread. What other threads do during a write is called from inside the transport; the role
//! that writes does nothing else meanwhile.

use std::io::{IoSlice, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, proptest};
use tailrace_http::compression::CompressionRules;
use tailrace_http::framing::RequestFacts;
use tailrace_http::head::{HeadParser, HeadStep};
use tailrace_http::limits::Limits;
use tailrace_http::request_head::Version;
use tailrace_observe::record::Record;
use tailrace_os::clock::{Clock, Millis, NEVER, now};
use tailrace_os::socket::Io;
use tailrace_os::sync::lock;

use crate::request::Request;
use crate::request::disk::{Disk, TemporaryFile};
use crate::request::memory::ClientMemory;
use crate::response::delivery::{After, ClientTime, Delivery, Spilled};
use crate::response::outbox::{DeliveryLimits, Flush, Room, TimeOut};
use crate::response::policy::{Coalesce, Policy, Waiting};
use crate::response::producer::{CompressionContext, Position, Response, SendContext, Sent};
use crate::response::segments::tests::without_memory;
use crate::response::spill::Spill;
use crate::response::testing::{Owned, Tape};
use crate::transport::Transport;

const PAGE: &[u8] = b"HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 4\r\n\r\nlate";
/// Bytes of [`FILE`].
const FILE_BYTES: usize = 100_000;

static RULES: LazyLock<CompressionRules> = LazyLock::new(|| CompressionRules::new(Vec::new(), 90));
static ACCEPTING: LazyLock<Request> = LazyLock::new(|| request(b"GET / HTTP/1.1\r\nAccept-Encoding: gzip\r\n\r\n"));
static OTHER: LazyLock<Request> = LazyLock::new(|| request(b"GET / HTTP/1.1\r\n\r\n"));
static DISK: LazyLock<Arc<Disk>> = LazyLock::new(|| Arc::new(Disk::new()));
static FILE: LazyLock<TemporaryFile> = LazyLock::new(|| {
    let mut file = TemporaryFile::create(&DISK).unwrap();
    file.write_all(&block(FILE_BYTES, 5)).unwrap();
    file
});

fn request(bytes: &[u8]) -> Request {
    let mut request = Request { bytes: bytes.to_vec(), ..Request::default() };
    let step = HeadParser::default().parse(bytes, &Limits::default(), &mut request.head);
    assert_eq!(step, HeadStep::Complete);
    request
}

fn block(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251 + seed) as u8).collect()
}

/// How the application produces a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// With this Content-Length.
    Length(usize),
    /// Without a Content-Length. `true`: the client understands chunks.
    Unknown(bool),
    /// The request is HEAD.
    Head,
}

/// A response, and what the client may receive of it.
struct Producer {
    response: Response,
    record: Record,
    kind: Kind,
    facts: RequestFacts,
    /// The client accepts gzip.
    accepts_gzip: bool,
    /// All body bytes that have been produced.
    body: Vec<u8>,
    /// It waits for room.
    waits: bool,
    /// It produces nothing more, or has failed.
    is_done: bool,
    has_failed: bool,
}

/// The state of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A producer works on a response.
    Responding,
    /// The rest of the response is sent. `keep`: another response follows.
    Flushing { keep: bool },
    /// All was sent, or the connection is broken.
    Closed,
}

/// The socket and its client.
#[derive(Default)]
struct Wire {
    /// Bytes that the socket accepts before it is full.
    room: usize,
    /// Bytes of the current response that were sent.
    got: Vec<u8>,
    /// The socket was full: it makes an event when it has room.
    makes_event: bool,
    is_gone: bool,
    has_ended: bool,
    is_aborted: bool,
}

/// Work for the thread that polls.
#[derive(Default)]
struct Todo {
    /// An event has reported room in the socket.
    writable: bool,
    /// The I/O side was asked to send.
    push: bool,
    /// The response is listed: a tick looks at its coalesced blocks.
    tick: bool,
    /// A disk thread was asked to compress.
    compress: bool,
    /// The owner has to flush.
    flush: bool,
    /// The connection is on the list of batched responses.
    batched: bool,
}

struct World {
    delivery: Delivery,
    limits: DeliveryLimits,
    clock: Clock,
    spill: Spill,
    wire: Arc<Mutex<Wire>>,
    tape: Mutex<Tape>,
    /// `None` while the producer is inside a call.
    producer: Mutex<Option<Producer>>,
    stage: Mutex<Stage>,
    todo: Mutex<Todo>,
    deadline: Mutex<Millis>,
    /// The I/O side is inside a call.
    is_io_busy: Mutex<bool>,
    was_timed_out: Mutex<Option<TimeOut>>,
    responses: Mutex<usize>,
    /// A write is partial when its random number is this one. With 0, all writes are partial when the numbers are used
    /// up.
    partial: usize,
}

/// The transport, with a reference to its world.
struct Link {
    wire: Arc<Mutex<Wire>>,
    world: Weak<World>,
}

impl Link {
    fn write(&self, bytes: &[u8]) -> Io {
        let Some(world) = self.world.upgrade() else { return Io::Broken };
        let moved = {
            let mut wire = lock(&self.wire);
            assert!(!wire.has_ended, "bytes are written after the end of the sending direction");
            let most = if world.below(4) == world.partial { [2_000, 300, 1][world.below(3)] } else { usize::MAX };
            let count = bytes.len().min(wire.room).min(most);
            if wire.is_gone || wire.is_aborted {
                Io::Broken
            } else if count == 0 {
                wire.makes_event = true;
                Io::WouldBlock
            } else {
                wire.room -= count;
                wire.got.extend_from_slice(&bytes[..count]);
                Io::Moved(count)
            }
        };
        // Another thread acts before the writer takes the lock again.
        if world.below(4) == 1 {
            world.act();
        }
        moved
    }
}

impl Transport for Link {
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn set_low_water(&self, _: u32) {}

    fn receive(&self, _: &mut [u8]) -> Io {
        Io::WouldBlock
    }

    fn transmit(&self, slices: &[IoSlice<'_>], _: bool) -> Io {
        self.write(&slices.iter().flat_map(|slice| slice.iter().copied()).collect::<Vec<_>>())
    }

    fn transmit_file(&self, file: BorrowedFd<'_>, offset: u64, count: usize) -> Io {
        let file = std::fs::File::from(file.try_clone_to_owned().unwrap());
        let mut bytes = vec![0; count];
        match file.read_at(&mut bytes, offset).unwrap() {
            0 => Io::End,
            read => self.write(&bytes[..read]),
        }
    }

    fn wait_readable(&self, _: Duration) -> bool {
        false
    }

    fn wait_writable(&self, _: Duration) {}

    fn end_sending(&self) {
        lock(&self.wire).has_ended = true;
    }

    fn shut_down(&self) {}

    fn abort(&self) {
        lock(&self.wire).is_aborted = true;
    }

    fn reset_on_close(&self) {}
}

impl ClientTime for World {
    fn now(&self) -> Millis {
        1_000
    }

    fn set_deadline(&self, due: Millis) -> bool {
        *lock(&self.deadline) = due;
        false
    }
}

impl World {
    fn new(numbers: &[u16]) -> Arc<Self> {
        let mut tape = Tape::new(numbers);
        let is_bounded = tape.below(2) == 1;
        let policy = Policy {
            coalesce: [Coalesce::Never, Coalesce::Always][tape.below(2)],
            waiting: Waiting::Ticket,
            most_by_runner: is_bounded.then_some(1_000),
            most_by_io: is_bounded.then_some(3_000),
            most_after_end: [0, 2_000][tape.below(2)],
            holds: true,
            reads_by_runner: 1,
        };
        let limits = DeliveryLimits {
            policy,
            queue_limit: [4_000, 100_000][tape.below(2)],
            least_queue: 4_000,
            write_timeout: 30_000,
            min_rate: 0,
            memory: Arc::new(ClientMemory::new(1 << 30, [0, 1 << 20][tape.below(2)])),
        };
        let wire = Arc::new(Mutex::new(Wire { room: [0, 500, 1 << 20][tape.below(3)], ..Wire::default() }));
        let has_disk = tape.below(8) != 7;
        let partial = 3 - tape.below(4);
        Arc::new_cyclic(|world| Self {
            delivery: Delivery::new(Box::new(Link { wire: wire.clone(), world: world.clone() }), &limits),
            limits,
            clock: Clock::new(),
            spill: Spill::new(if has_disk { 1 << 20 } else { 0 }, DISK.clone()),
            wire,
            producer: Mutex::new(Some(Producer::new(&mut tape))),
            tape: Mutex::new(tape),
            stage: Mutex::new(Stage::Responding),
            todo: Mutex::default(),
            deadline: Mutex::new(NEVER),
            is_io_busy: Mutex::default(),
            was_timed_out: Mutex::default(),
            responses: Mutex::default(),
            partial,
        })
    }

    fn below(&self, limit: usize) -> usize {
        lock(&self.tape).below(limit)
    }

    fn stage(&self) -> Stage {
        *lock(&self.stage)
    }

    fn follow_up(&self, after: After) {
        let mut todo = lock(&self.todo);
        todo.push |= after.push;
        todo.tick |= after.list;
        todo.compress |= after.compress;
        todo.flush |= after.asked;
        drop(todo);
        if after.room {
            self.notify_room();
        }
    }

    fn notify_room(&self) {
        if let Some(producer) = lock(&self.producer).as_mut() {
            producer.waits = false;
        }
    }

    /// Does something that another thread could do now.
    fn act(&self) {
        match self.below(16) {
            0..=4 => self.produce(),
            5..=8 => self.serve(),
            9 | 10 => self.take([1, 700, 3_000, 20_000, 200_000][self.below(5)]),
            11 => self.tick(),
            12 if self.below(2) == 1 => self.store(),
            12 => self.compress(),
            14 => self.send_batched(),
            15 => self.reclaim(),
            13 => match self.below(6) {
                0 => self.time_out(),
                1 => self.leave(),
                2 => self.expire(),
                3 => self.abort(),
                _ => self.take(100),
            },
            _ => unreachable!("there are 16 numbers"),
        }
    }

    /// The client reads bytes, which makes room in the socket.
    fn take(&self, count: usize) {
        let mut wire = lock(&self.wire);
        wire.room += count;
        if std::mem::take(&mut wire.makes_event) {
            lock(&self.todo).writable = true;
        }
    }

    /// The client disconnects.
    fn leave(&self) {
        lock(&self.wire).is_gone = true;
        lock(&self.todo).writable = true;
    }

    /// The server breaks the connection.
    fn abort(&self) {
        self.delivery.outbox().break_off();
        self.notify_room();
        lock(&self.wire).is_aborted = true;
        lock(&self.todo).writable = true;
    }

    /// The deadline of the request has passed.
    fn time_out(&self) {
        if self.stage() != Stage::Responding {
            return;
        }
        let (time_out, asked) = self.delivery.time_out(|| {
            // The producer may end while the page is being written.
            *lock(&self.was_timed_out) = Some(TimeOut::Answered);
            (PAGE.to_vec(), 4)
        });
        if time_out != TimeOut::Over {
            *lock(&self.was_timed_out) = Some(time_out);
        }
        self.follow_up(After { asked, room: true, ..After::default() });
    }

    /// The deadline of the connection has passed.
    fn expire(&self) {
        if *lock(&self.deadline) == NEVER {
            return;
        }
        match self.stage() {
            Stage::Responding => self.as_io(|| {
                let after = self.delivery.drain(false, true, &self.limits, self);
                self.follow_up(after);
            }),
            Stage::Flushing { .. } => self.as_io(|| self.close()),
            Stage::Closed => {}
        }
    }

    /// A waiting runner moves the queued bytes to a file.
    fn store(&self) {
        if lock(&self.producer).as_ref().is_some_and(|producer| producer.waits) {
            let (spilled, after) = self.delivery.spill(&self.spill);
            assert!(!matches!(spilled, Spilled::Failed(_)));
            self.follow_up(after);
        }
    }

    /// A disk thread frees memory of the response, whoever owns the connection.
    fn reclaim(&self) {
        if !self.delivery.outbox().queue.copy_tails() {
            let (spilled, after) = self.delivery.spill(&self.spill);
            assert!(!matches!(spilled, Spilled::Failed(_)));
            self.follow_up(after);
            self.notify_room();
        }
    }

    /// A disk thread compresses, if it was asked to.
    fn compress(&self) {
        if !std::mem::take(&mut lock(&self.todo).compress) {
            return;
        }
        let Some(step) = self.delivery.outbox().begin_compressing() else { return };
        let made = step.run();
        // Other threads act meanwhile.
        for _ in 0..self.below(4) {
            self.act();
        }
        let after = self.delivery.end_compressing(made, &self.limits, self);
        self.follow_up(after);
    }

    /// Runs `work` as the I/O side, unless that is inside a call.
    fn as_io(&self, work: impl FnOnce()) {
        if !std::mem::replace(&mut *lock(&self.is_io_busy), true) {
            work();
            *lock(&self.is_io_busy) = false;
        }
    }

    fn tick(&self) {
        // Inside: a tick that comes while the I/O side is inside a call is not lost.
        self.as_io(|| {
            if std::mem::take(&mut lock(&self.todo).tick) {
                let (stays, after) = self.delivery.tick(&self.limits, self);
                self.follow_up(after);
                lock(&self.todo).tick |= stays;
            }
        });
    }

    /// The thread that polls handles events, and does what it was asked for.
    fn serve(&self) {
        self.as_io(|| {
            let Todo { writable, push, flush, .. } = {
                let mut todo = lock(&self.todo);
                let Todo { tick, compress, batched, .. } = *todo;
                std::mem::replace(&mut *todo, Todo { tick, compress, batched, ..Todo::default() })
            };
            // While the response is held, the list of batched responses owns the connection.
            let batched = lock(&self.todo).batched;
            // The flush list drains a connection that was pushed, even if its owner has changed since.
            if push || (writable && (batched || self.stage() == Stage::Responding)) {
                let after = self.delivery.drain(true, false, &self.limits, self);
                self.follow_up(after);
            }
            match self.stage() {
                // The drain above may have sent the rest of the response.
                Stage::Flushing { keep } if !batched && (writable || push || flush) => self.flush(writable, keep),
                Stage::Responding | Stage::Flushing { .. } | Stage::Closed => {}
            }
        });
    }

    /// The owner flushes, when the response is complete.
    fn flush(&self, writable: bool, keep: bool) {
        let (flush, after) = self.delivery.flush(writable, 5_000, &self.limits, Some(self));
        self.follow_up(after);
        match flush {
            Flush::Empty if keep => self.next(),
            Flush::Empty => {
                self.check_whole();
                self.close();
            }
            Flush::More => lock(&self.todo).flush = true,
            Flush::Blocked | Flush::Elsewhere => {}
            Flush::Broken | Flush::Short(_) => {
                assert!(self.delivery.outbox().state.is_broken());
                self.close();
            }
        }
    }

    fn close(&self) {
        *lock(&self.stage) = Stage::Closed;
        self.delivery.outbox().break_off();
        self.notify_room();
        // As the owner does, which accounts for the request. A disk thread may be compressing.
        self.delivery.outbox().compressing.take_result();
    }

    /// All of a response was sent, and the next one begins.
    fn next(&self) {
        self.check_whole();
        assert_eq!(*lock(&self.deadline), NEVER, "a client has no deadline when all is sent");
        let mut responses = lock(&self.responses);
        *responses += 1;
        lock(&self.wire).got.clear();
        *lock(&self.producer) = Some(Producer::new(&mut lock(&self.tape)));
        *lock(&self.stage) = Stage::Responding;
    }

    /// The producer continues: sends more, or ends its response.
    fn produce(&self) {
        if self.stage() != Stage::Responding {
            return;
        }
        let Some(mut producer) = lock(&self.producer).take() else { return };
        if producer.waits {
            *lock(&self.producer) = Some(producer);
            return;
        }
        if producer.is_done {
            return self.finish(producer);
        }
        let sent = self.give(&mut producer);
        match sent {
            Sent::Taken => {}
            Sent::BodyComplete | Sent::Gone => producer.is_done = true,
            Sent::NoMemory => (producer.is_done, producer.has_failed) = (true, true),
            Sent::Full => {
                // A greenlet asks like this; a thread looks under the same lock.
                let outbox = self.delivery.outbox();
                match outbox.room(&self.limits) {
                    Room::Never => {
                        producer.response.body.set_gone();
                        producer.is_done = true;
                    }
                    Room::Now => {}
                    Room::Later => producer.waits = true,
                }
            }
        }
        *lock(&self.producer) = Some(producer);
    }

    fn give(&self, producer: &mut Producer) -> Sent {
        let Producer { response, record, body, facts, accepts_gzip, .. } = producer;
        let context = self.context(*facts, *accepts_gzip);
        let length = [0, 1, 90, 3_000, 5_000, 20_000, 70_000][self.below(7)];
        let position = if self.below(8) == 7 { Position::Last } else { Position::More };
        let (sent, after) = match self.below(12) {
            0 => {
                // The part may extend beyond the end of the file.
                let offset = FILE_BYTES - [100_000, 2_500, 10][self.below(3)];
                let file = FILE.as_fd().try_clone_to_owned().unwrap();
                body.extend(block(FILE_BYTES, 5).iter().skip(offset).take(length));
                body.resize(body.len() + length.saturating_sub(FILE_BYTES - offset), b'?');
                response.send_file(&context, record, Arc::new(file), offset as u64, length as u64, position)
            }
            how => {
                let first = block(length, how);
                let second = block(self.below(2) * 2_100, how + 1);
                let one: &[&[u8]] = &[&first];
                let both: &[&[u8]] = &[&first, &second];
                let blocks = if second.is_empty() { one } else { both };
                blocks.iter().for_each(|block| body.extend_from_slice(block));
                let coalesced = match (position, blocks) {
                    (Position::More, [block]) => {
                        let mut run = || response.coalesce(&self.delivery, &self.limits, record, block);
                        if self.below(16) == 15 { without_memory(run) } else { run() }
                    }
                    _ => None,
                };
                match coalesced {
                    Some((sent, list)) => (sent, After { list, ..After::default() }),
                    None => {
                        let keep = &mut |index: usize| -> Box<dyn crate::response::payload::Payload> {
                            Box::new(Owned(blocks[index].to_vec()))
                        };
                        response.send(&context, record, blocks, position, keep)
                    }
                }
            }
        };
        self.follow_up(after);
        if position == Position::Last {
            producer.is_done = true;
        }
        // The application may also fail.
        if self.below(24) == 23 {
            (producer.is_done, producer.has_failed) = (true, true);
        }
        sent
    }

    fn context(&self, facts: RequestFacts, accepts_gzip: bool) -> SendContext<'_> {
        SendContext {
            delivery: &self.delivery,
            limits: &self.limits,
            clock: &self.clock,
            time: self,
            server_name: "",
            server_timing: false,
            is_gone: lock(&self.wire).is_gone,
            may_hold: self.below(3) == 2,
            may_delay: self.below(3) == 1,
            facts,
            incoming: None,
            id: None,
            compression: Some(CompressionContext {
                rules: &RULES,
                request: if accepts_gzip { &ACCEPTING } else { &OTHER },
            }),
            sessions: None,
        }
    }

    /// The producer ends its response, and the connection continues.
    fn finish(&self, mut producer: Producer) {
        let Producer { response, record, facts, accepts_gzip, has_failed, .. } = &mut producer;
        let context = self.context(*facts, *accepts_gzip);
        if !*has_failed {
            let after = response.finish(&context, record, now());
            self.follow_up(after.unwrap());
        } else {
            response.withdraw(&self.delivery, record);
        }
        if *has_failed && !response.body.is_committed() && !response.body.is_gone() {
            let after = response.send_error(&context, record, 500, "Failed.", now());
            self.follow_up(after);
        }
        let is_whole = !*has_failed && response.body.missing() == 0 && !response.body.is_gone();
        let end = self.delivery.outbox().end(&self.limits);
        let keep = is_whole && response.body.keeps_alive() && end.timed_out.is_none();
        assert_eq!(end.timed_out.is_some(), lock(&self.was_timed_out).is_some());
        *lock(&self.producer) = Some(producer);
        *lock(&self.stage) = Stage::Flushing { keep };
        self.follow_up(After { compress: end.compress, ..After::default() });
        lock(&self.todo).batched = end.is_batched;
        lock(&self.todo).flush = !end.is_batched;
    }

    /// Sends the held response.
    fn send_batched(&self) {
        if std::mem::take(&mut lock(&self.todo).batched)
            && let Stage::Flushing { keep } = self.stage()
        {
            self.flush(false, keep);
        }
    }

    /// Checks that the client has received a prefix of what it has to receive. True: it has received all.
    fn check(&self) -> bool {
        let got = lock(&self.wire).got.clone();
        if *lock(&self.was_timed_out) == Some(TimeOut::Answered) {
            assert!(PAGE.starts_with(&got), "other bytes than those of the page: {}", got.escape_ascii());
            return got == PAGE;
        }
        let producer = lock(&self.producer);
        let Some(producer) = producer.as_ref() else { return false };
        let Some(head_end) = got.windows(4).position(|window| window == b"\r\n\r\n") else {
            assert!(b"HTTP/1.1 ".starts_with(&got[..got.len().min(9)]));
            return false;
        };
        let (head, body) = got.split_at(head_end + 4);
        let head = std::str::from_utf8(head).unwrap();
        if head.starts_with("HTTP/1.1 500") {
            return producer.has_failed;
        }
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        // The access log has fields of it.
        assert_eq!(head.as_bytes(), producer.response.head.bytes(), "the head has changed since it was sent");
        let given = &producer.body;
        if producer.kind == Kind::Head {
            assert!(body.is_empty());
            return true;
        }
        if head.contains("\r\nContent-Encoding: gzip\r\n") {
            let is_chunked = head.contains("\r\nTransfer-Encoding: chunked\r\n");
            assert_eq!(is_chunked, producer.kind != Kind::Unknown(false));
            let (data, is_over) = if is_chunked { dechunked(body) } else { (body.to_vec(), true) };
            let (data, has_end) = gunzipped(&data);
            let promised = if let Kind::Length(length) = producer.kind { length } else { 0 };
            let given = if promised > 0 { &given[..given.len().min(promised)] } else { given };
            assert!(given.starts_with(&data), "{} bytes differ from those that were produced", data.len());
            if producer.is_done && given.len() < promised {
                assert!(!(has_end || is_chunked && is_over), "the client cannot see that the body is too short");
                return data == *given;
            }
            assert!(has_end || !(is_chunked && is_over), "the body has its end, and its content has not");
            return is_over && has_end && data == *given;
        }
        if head.contains("\r\nTransfer-Encoding: chunked\r\n") {
            assert_eq!(producer.kind, Kind::Unknown(true));
            let (data, is_over) = dechunked(body);
            assert!(given.starts_with(&data), "{} bytes differ from those that were produced", data.len());
            return is_over && data == *given;
        }
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let length = length.map_or(usize::MAX, |length| length.parse().unwrap());
        if let Kind::Length(promised) = producer.kind {
            assert_eq!(length, promised);
        }
        let given = &given[..given.len().min(length)];
        assert!(given.starts_with(body), "{} bytes differ from those that were produced", body.len());
        body == given
    }

    fn check_whole(&self) {
        let (is_excused, kind) = lock(&self.producer).as_ref().map_or((false, None), |producer| {
            // A response may be incomplete if its application has failed, or if its client is known to have
            // disconnected.
            (producer.has_failed || producer.response.body.is_gone(), Some(producer.kind))
        });
        let got = lock(&self.wire).got.clone();
        let beginning = got[..got.len().min(300)].escape_ascii().to_string();
        assert!(self.check() || is_excused, "{kind:?}: the client has {} bytes: {beginning}", got.len());
    }

    /// Lets every role work until the connection is closed or has served many responses.
    fn settle(&self) {
        for _ in 0..1_000 {
            if self.stage() == Stage::Closed {
                return;
            }
            if let Some(producer) = lock(&self.producer).as_mut() {
                producer.is_done = true;
            }
            self.produce();
            self.take(1 << 20);
            self.serve();
            self.tick();
            self.compress();
            self.send_batched();
            if *lock(&self.responses) > 50 {
                return;
            }
        }
        let waits = lock(&self.producer).as_ref().is_some_and(|producer| producer.waits);
        panic!("no progress in {:?}; the producer waits: {waits}", self.stage());
    }
}

impl Producer {
    fn new(tape: &mut Tape) -> Self {
        let kind = match tape.below(6) {
            0 => Kind::Unknown(true),
            1 => Kind::Unknown(false),
            2 => Kind::Head,
            _ => Kind::Length([0, 1, 91, 20_000, 100_000][tape.below(5)]),
        };
        let version = if kind == Kind::Unknown(false) { Version::Http10 } else { Version::Http11 };
        let facts = RequestFacts {
            format: version.into(),
            is_head: kind == Kind::Head,
            keep_alive: version == Version::Http11,
        };
        let mut response = Response::default();
        response.head.status(b"200 OK").unwrap();
        response.head.field(b"Content-Type", b"text/plain").unwrap();
        if let Kind::Length(length) = kind {
            response.head.field(b"Content-Length", length.to_string().as_bytes()).unwrap();
        }
        let record = Record::new(now());
        let accepts_gzip = tape.below(2) == 1;
        Self {
            response,
            record,
            kind,
            facts,
            accepts_gzip,
            body: Vec::new(),
            waits: false,
            is_done: false,
            has_failed: false,
        }
    }
}

/// What the beginning of a stream of gzip has, and whether it has its end.
fn gunzipped(bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut decoder = flate2::write::GzDecoder::new(Vec::new());
    decoder.write_all(bytes).unwrap();
    let has_end = decoder.try_finish().is_ok();
    // Nothing follows the end.
    (std::mem::take(decoder.get_mut()), has_end)
}

/// The data of a chunked body, which may be incomplete, and whether it has its end.
fn dechunked(mut body: &[u8]) -> (Vec<u8>, bool) {
    let mut data = Vec::new();
    loop {
        let Some(end) = body.windows(2).position(|window| window == b"\r\n") else {
            assert!(body.len() < 20 && body.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'\r'));
            return (data, false);
        };
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        body = &body[end + 2..];
        if size == 0 {
            assert!(b"\r\n".starts_with(body), "nothing follows the last chunk");
            return (data, body == b"\r\n");
        }
        data.extend_from_slice(&body[..size.min(body.len())]);
        if body.len() < size + 2 {
            assert!(b"\r\n".starts_with(&body[size.min(body.len())..]));
            return (data, false);
        }
        assert_eq!(&body[size..size + 2], b"\r\n");
        body = &body[size + 2..];
    }
}

fn check(numbers: &[u16]) {
    let world = World::new(numbers);
    while !lock(&world.tape).is_over() && world.stage() != Stage::Closed {
        world.act();
        world.check();
    }
    world.settle();
    world.check();
    assert!(!lock(&world.producer).as_ref().is_some_and(|producer| producer.waits), "a waiting producer was not woken");
    world.close();
    let is_broken = world.delivery.outbox().state.is_broken();
    assert!(is_broken, "the connection can still send after its end");
    assert_eq!(world.limits.memory.used(), 0, "some memory is still charged");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn no_order_loses_bytes_or_wakeups(numbers in vec(any::<u16>(), 0..200)) {
        check(&numbers);
    }
}

/// A disk thread that looked between the last coalesced block and the end of its response ended the content without it.
#[test]
fn the_last_coalesced_block_is_compressed() {
    check(&[
        0, 45241, 0, 0, 9617, 0, 0, 0, 58737, 23662, 2129, 35600, 0, 0, 48407, 24, 1, 27252, 0, 840, 19056, 0, 0, 7246,
        0, 1, 34268, 0, 0, 885, 50012,
    ]);
}
