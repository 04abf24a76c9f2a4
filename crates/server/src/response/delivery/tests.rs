//! Tests of a delivery on a socket with scripted results; the script also does what other threads do during a write.

mod orders;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tailrace_http::body_encoder::BodyEncoder;
use tailrace_os::clock::{Millis, NEVER};
use tailrace_os::socket::Io;
use tailrace_os::sync::lock;

use super::{Accepted, After, ClientTime, Delivery, Output, Spilled};
use crate::connection::backpressure::SlowClient;
use crate::request::disk::Disk;
use crate::request::memory::ClientMemory;
use crate::response::coalescing::{Delay, DelayedOpening};
use crate::response::outbox::{CoalesceResult, DeliveryLimits, Flush, Room, TimeOut};
use crate::response::policy::{Coalesce, Policy, Waiting};
use crate::response::send_state::{Produced, Progress};
use crate::response::spill::Spill;
use crate::response::testing::Owned;
use crate::response::write_plan::WritePlan;
use crate::transport::Transport;

/// What other threads do during a write, and the result of the write.
type Step = Box<dyn FnOnce() -> Io + Send>;

impl Delivery {
    /// The addresses of the spill files that are queued or being sent from.
    fn spill_files(&self) -> Vec<usize> {
        lock(&self.outbox).queue.spill_files()
    }
}

/// A socket whose writes have scripted results. After the end of the script it accepts everything.
#[derive(Default)]
struct Socket {
    script: Mutex<VecDeque<Step>>,
    got: Mutex<Vec<u8>>,
    ends: AtomicUsize,
}

impl Transport for Arc<Socket> {
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn set_low_water(&self, _: u32) {}

    fn receive(&self, _: &mut [u8]) -> Io {
        Io::WouldBlock
    }

    fn transmit(&self, slices: &[IoSlice<'_>], _: bool) -> Io {
        let step = lock(&self.script).pop_front();
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        let moved = step.map_or(Io::Moved(bytes.len()), |step| step());
        if let Io::Moved(count) = moved {
            lock(&self.got).extend_from_slice(&bytes[..count.min(bytes.len())]);
            return Io::Moved(count.min(bytes.len()));
        }
        moved
    }

    fn transmit_file(&self, file: BorrowedFd<'_>, offset: u64, count: usize) -> Io {
        let step = lock(&self.script).pop_front();
        let Io::Moved(most) = step.map_or(Io::Moved(count), |step| step()) else { return Io::WouldBlock };
        let mut bytes = vec![0; count.min(most)];
        let file = std::fs::File::from(file.try_clone_to_owned().unwrap());
        file.read_exact_at(&mut bytes, offset).unwrap();
        lock(&self.got).extend_from_slice(&bytes);
        Io::Moved(bytes.len())
    }

    fn wait_readable(&self, _: Duration) -> bool {
        false
    }

    fn wait_writable(&self, _: Duration) {}

    fn end_sending(&self) {
        self.ends.fetch_add(1, Ordering::SeqCst);
    }

    fn shut_down(&self) {}

    fn abort(&self) {}

    fn reset_on_close(&self) {}
}

const TIMEOUT: Millis = 30_000;
const NOW: Millis = 1_000;

struct Case {
    socket: Arc<Socket>,
    delivery: Delivery,
    limits: DeliveryLimits,
    deadlines: Mutex<Vec<Millis>>,
}

impl ClientTime for Case {
    fn now(&self) -> Millis {
        NOW
    }

    fn set_deadline(&self, due: Millis) -> bool {
        assert!(self.delivery.outbox.try_lock().is_err(), "the deadline is set with the lock held");
        lock(&self.deadlines).push(due);
        false
    }
}

impl Case {
    /// 10,000 bytes may be queued before the producer waits, and the memory for finished responses is used up.
    fn new(policy: Policy) -> Arc<Self> {
        let limits = DeliveryLimits {
            policy,
            queue_limit: 10_000,
            least_queue: 10_000,
            write_timeout: TIMEOUT,
            min_rate: 0,
            memory: Arc::new(ClientMemory::new(1 << 30, 0)),
        };
        let socket = Arc::new(Socket::default());
        let delivery = Delivery::new(Box::new(socket.clone()), &limits);
        Arc::new(Self { socket, delivery, limits, deadlines: Mutex::default() })
    }

    fn threads() -> Arc<Self> {
        Self::new(Policy {
            coalesce: Coalesce::WhenQuick,
            waiting: Waiting::Block,
            most_by_runner: None,
            most_by_io: None,
            most_after_end: 32 * 1024,
            holds: true,
            reads_by_runner: 1,
        })
    }

    fn greenlets() -> Arc<Self> {
        Self::new(Policy {
            coalesce: Coalesce::Always,
            waiting: Waiting::Ticket,
            most_by_runner: Some(128 * 1024),
            most_by_io: Some(1 << 20),
            most_after_end: 0,
            holds: false,
            reads_by_runner: 1,
        })
    }

    /// Scripts the next write: its result, and what another thread does during it.
    fn write(self: &Arc<Self>, comes_to: Io, meanwhile: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let case = self.clone();
        lock(&self.socket.script).push_back(Box::new(move || {
            meanwhile(&case);
            comes_to
        }));
    }

    fn full(self: &Arc<Self>) {
        self.write(Io::WouldBlock, |_| {});
    }

    /// Sends, as the producer does.
    fn send(&self, bytes: &[u8], is_complete: bool) -> (Accepted, After) {
        let mut plan = WritePlan::default();
        plan.add_blocks(&[bytes], bytes.len(), BodyEncoder::default());
        let produced = Produced { status: 200, body_bytes: bytes.len() as u64 };
        let output = Output {
            plan: &mut plan,
            blocks: &[bytes],
            keep: &mut |_| Box::new(Owned(bytes.to_vec())),
            progress: Progress { produced, is_complete },
            may_hold: false,
            is_end: false,
        };
        self.delivery.transmit(output, &mut 0, &self.limits, self)
    }

    /// Sends, as the I/O side does while the producer works.
    fn drain(&self, writable: bool) -> After {
        self.delivery.drain(writable, false, &self.limits, self)
    }

    /// Flushes, as the owner does.
    fn flush(&self, writable: bool) -> (Flush, After) {
        self.delivery.flush(writable, u64::MAX, &self.limits, Some(self))
    }

    fn time_out(&self) -> TimeOut {
        self.delivery.time_out(|| (b"page".to_vec(), 4)).0
    }

    fn got(&self) -> Vec<u8> {
        lock(&self.socket.got).clone()
    }

    fn deadlines(&self) -> Vec<Millis> {
        lock(&self.deadlines).clone()
    }

    fn charged(&self) -> usize {
        self.limits.memory.responses.used()
    }
}

fn bytes(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(|at| (at % 251) as u8).collect()
}

#[test]
fn coalesced_bytes_that_are_spilled_before_their_tick_are_pushed() {
    let case = Case::threads();
    // The producer has waited so long that it spills, and the I/O side has not had a tick yet.
    case.delivery.outbox().coalescing.list(BodyEncoder::default());
    assert_eq!(case.delivery.outbox().coalesce(b"12345", &case.limits), CoalesceResult::Coalesced);
    let full = Spill::new(1, Arc::new(Disk::new()));
    let (spilled, after) = case.delivery.spill(&full);
    assert!(matches!(spilled, Spilled::NoRoom) && after.push, "the next tick would not find these bytes");
    let spill = Spill::new(1 << 20, Arc::new(Disk::new()));
    let (spilled, after) = case.delivery.spill(&spill);
    assert!(matches!(spilled, Spilled::Done) && !after.push, "it has been pushed already");
    assert!(case.drain(true).room);
    assert_eq!(case.got(), b"12345");
}

#[test]
fn the_page_of_a_deadline_takes_the_place_of_a_delayed_opening() {
    let case = Case::threads();
    assert_eq!(
        case.delivery.outbox().open(b"head ", 200, BodyEncoder::CHUNKED, b"block", &case.limits),
        Delay::Delayed
    );
    assert_eq!(case.delivery.outbox().state.produced().status, 0, "it has not begun");
    assert_eq!(case.delivery.time_out(|| (b"page".to_vec(), 4)).0, TimeOut::Answered);
    assert_eq!(case.delivery.outbox().coalesce(b"more", &case.limits), CoalesceResult::Gone);
    let _ = case.delivery.tick(&case.limits, &*case);
    assert_eq!(case.delivery.outbox().end(&case.limits).timed_out, Some(Some(4)));
    assert_eq!(*lock(&case.socket.got), b"page");
    assert_eq!(case.limits.memory.responses.used(), 0);
}

#[test]
fn an_opening_in_whose_place_a_page_was_sent_or_whose_client_has_left_does_not_end_as_a_whole() {
    for breaks in [false, true] {
        let case = Case::threads();
        assert_eq!(
            case.delivery.outbox().open(b"head ", 200, BodyEncoder::CHUNKED, b"block", &case.limits),
            Delay::Delayed
        );
        if breaks {
            case.delivery.outbox().break_off();
        } else {
            assert_eq!(case.delivery.time_out(|| (b"page".to_vec(), 4)).0, TimeOut::Answered);
        }
        assert_eq!(case.delivery.outbox().close(|| unreachable!()), DelayedOpening::Gone);
    }
}

#[test]
fn a_delayed_opening_has_begun_when_a_tick_has_sent_it() {
    let case = Case::threads();
    assert_eq!(
        case.delivery.outbox().open(b"head ", 200, BodyEncoder::CHUNKED, b"block", &case.limits),
        Delay::Delayed
    );
    let (stays, _) = case.delivery.tick(&case.limits, &*case);
    assert!(stays);
    assert_eq!(case.delivery.outbox().close(|| unreachable!()), DelayedOpening::Gone);
    assert_eq!(case.delivery.outbox().coalescing.drop_opening(), DelayedOpening::Gone);
    assert_eq!(*lock(&case.socket.got), b"head 5\r\nblock\r\n");
    assert_eq!(case.delivery.outbox().state.produced(), Produced { status: 200, body_bytes: 5 });
    assert_eq!(case.delivery.time_out(|| unreachable!()).0, TimeOut::BrokenOff);
}

#[test]
fn a_write_that_finds_the_socket_full_is_repeated_if_an_event_came_meanwhile() {
    let case = Case::threads();
    case.write(Io::WouldBlock, |case| assert_eq!(case.drain(true), After::default()));
    case.write(Io::Moved(30_000), |_| {});
    case.full();
    // The socket is full at the end, so the producer has to wait.
    assert_eq!(case.send(&bytes(0, 100_000), true).0, Accepted::Full);
    assert_eq!(case.got().len(), 30_000);
    assert_eq!(case.flush(true).0, Flush::Empty);
    assert_eq!(case.got(), bytes(0, 100_000));
}

#[test]
fn a_producer_waits_for_another_writer_as_for_a_full_socket() {
    let case = Case::threads();
    case.full();
    assert_eq!(case.send(&bytes(0, 20_000), false).0, Accepted::Full);
    case.write(Io::Moved(15_000), |case| {
        let (accepted, after) = case.send(&bytes(20_000, 20_000), false);
        assert_eq!((accepted, after), (Accepted::Full, After::default()));
        assert_eq!(case.delivery.outbox().room(&case.limits), Room::Later);
    });
    let after = case.drain(true);
    assert!(after.room && after.asked, "{after:?}");
    assert_eq!(case.got(), bytes(0, 40_000));
    assert_eq!(case.charged(), 0);
}

#[test]
fn a_response_that_ends_while_another_thread_writes_is_sent_by_that_thread() {
    let case = Case::threads();
    case.full();
    assert_eq!(case.send(&bytes(0, 20_000), true).0, Accepted::Full);
    case.write(Io::Moved(20_000), |case| {
        let end = case.delivery.outbox().end(&case.limits);
        assert!(!end.is_sent);
        assert_eq!(case.flush(false).0, Flush::Elsewhere);
        // Only the writer sets the deadline.
        assert_eq!(case.deadlines(), [NOW + TIMEOUT]);
    });
    let after = case.drain(true);
    assert!(after.asked, "the owner has to flush again");
    assert_eq!(case.deadlines(), [NOW + TIMEOUT, NEVER]);
    assert_eq!((case.flush(false), case.got()), ((Flush::Empty, After::default()), bytes(0, 20_000)));
    assert_eq!((case.delivery.outbox().queue.take_writes(), case.charged()), (1, 0));
}

#[test]
fn bytes_being_written_when_the_connection_breaks_are_given_back_once() {
    for comes_to in [Io::Moved(7_000), Io::WouldBlock, Io::Broken] {
        let case = Case::threads();
        case.full();
        assert_eq!(case.send(&bytes(0, 20_000), false).0, Accepted::Full);
        case.write(comes_to, |case| {
            assert_eq!(case.send(&bytes(20_000, 3_000), false).0, Accepted::Full);
            case.delivery.outbox().break_off();
            assert!(case.charged() > 0, "the batch is still charged");
            assert_eq!(case.send(b"more", false).0, Accepted::Gone);
        });
        assert!(case.drain(true).room, "a waiting producer is woken");
        assert_eq!(case.charged(), 0);
        assert_eq!(case.flush(false).0, Flush::Broken);
    }
}

#[test]
fn that_a_file_is_too_short_is_reported_to_the_owner_whoever_found_it() {
    let case = Case::threads();
    case.full();
    assert_eq!(case.send(&bytes(0, 20_000), false).0, Accepted::Full);
    // As for a file that has no more bytes.
    case.write(Io::End, |_| {});
    assert!(case.drain(true).room, "the I/O side has found it, and wakes the producer");
    assert_eq!(case.send(b"more", false).0, Accepted::Gone);
    for _ in 0..2 {
        assert_eq!(case.flush(false).0, Flush::Short(0));
    }
}

#[test]
fn a_panic_of_the_transport_leaves_no_writer_and_no_charge() {
    let case = Case::threads();
    case.full();
    assert_eq!(case.send(&bytes(0, 20_000), false).0, Accepted::Full);
    case.write(Io::WouldBlock, |_| panic!("asked to panic"));
    assert!(catch_unwind(AssertUnwindSafe(|| case.drain(true))).is_err());
    assert_eq!((case.flush(false).0, case.charged()), (Flush::Broken, 0));

    let case = Case::threads();
    case.write(Io::WouldBlock, |_| panic!("asked to panic"));
    assert!(catch_unwind(AssertUnwindSafe(|| case.send(b"bytes", false))).is_err());
    assert_eq!(case.flush(false).0, Flush::Broken);
}

#[test]
fn a_page_after_100_continue_ends_the_connection_when_the_writer_of_continue_sends_it() {
    let case = Case::threads();
    case.write(Io::Moved(8), |case| assert_eq!(case.time_out(), TimeOut::Answered));
    assert!(case.delivery.send(b"continue", &case.limits).asked);
    assert_eq!(case.got(), b"continuepage");
    assert_eq!(case.socket.ends.load(Ordering::SeqCst), 1);
    assert_eq!(case.send(b"late", true).0, Accepted::Gone);
    assert_eq!(case.delivery.outbox().end(&case.limits).timed_out, Some(Some(4)));
}

#[test]
fn a_runner_does_not_wait_for_ever_for_a_thread_that_hangs_in_a_write() {
    let case = Case::threads();
    case.full();
    assert_eq!(case.send(&bytes(0, 20_000), true).0, Accepted::Full);
    case.write(Io::Moved(1), |case| {
        let client = SlowClient {
            delivery: &case.delivery,
            limits: &case.limits,
            signal_check: Duration::from_millis(1),
            patience: Duration::from_secs(60),
        };
        let until = Instant::now() + Duration::from_secs(20);
        let has_room = client.write_for_room(Duration::from_millis(20), || Instant::now() > until, || ());
        assert!(!has_room && Instant::now() < until, "it waited until the server had to end");
    });
}

#[test]
fn a_time_out_reports_a_thread_that_tried_to_write_meanwhile() {
    let case = Case::threads();
    case.write(Io::Moved(4), |case| assert_eq!(case.flush(false).0, Flush::Elsewhere));
    let time_out = case.delivery.time_out(|| (b"page".to_vec(), 4));
    assert_eq!(time_out, (TimeOut::Answered, true));
}

#[test]
fn a_flush_wakes_a_producer_that_found_it_writing() {
    let case = Case::threads();
    case.delivery.outbox().queue_own(b"continue");
    case.write(Io::Moved(8), |case| assert_eq!(case.send(&bytes(0, 20_000), false).0, Accepted::Full));
    let (flush, after) = case.flush(false);
    assert_eq!((flush, after.asked, after.room), (Flush::Empty, true, true));
    assert_eq!(case.got().len(), 20_008);
}

#[test]
fn a_deadline_is_set_for_a_response_and_not_for_100_continue() {
    let case = Case::threads();
    case.full();
    assert_eq!(case.delivery.send(b"continue", &case.limits), After::default());
    assert!(case.deadlines().is_empty());
    assert_eq!(case.send(&bytes(0, 5_000), true).0, Accepted::Taken);
    assert_eq!(case.deadlines(), [NOW + TIMEOUT]);
    assert_eq!(case.flush(true).0, Flush::Empty);
    assert_eq!(case.deadlines(), [NOW + TIMEOUT, NEVER]);
}

#[test]
fn a_deadline_that_was_set_between_two_turns_is_removed_when_all_is_sent() {
    const LENGTH: usize = 3 << 20;
    let case = Case::greenlets();
    // The runner sends 128 KiB, the I/O side the rest in turns of 1 MiB.
    let (_, after) = case.send(&bytes(0, LENGTH), false);
    assert!(after.push);
    case.write(Io::Moved(3 << 19), |_| {});
    assert!(case.drain(false).push);
    assert_eq!(case.deadlines(), [NOW + TIMEOUT]);
    assert!(!case.drain(false).push);
    // If it stayed, it would pass while the application continues, and break the connection.
    assert_eq!(case.deadlines(), [NOW + TIMEOUT, NEVER]);
    assert!(case.got() == bytes(0, LENGTH));
}

#[test]
fn bytes_after_a_spill_file_that_is_being_sent_are_appended_to_it() {
    let case = Case::threads();
    let spill = Arc::new(Spill::new(1 << 30, Arc::new(Disk::new())));
    case.full();
    assert_eq!(case.send(&bytes(0, 20_000), false).0, Accepted::Full);
    assert!(matches!(case.delivery.spill(&spill).0, Spilled::Done));
    let files = Arc::new(Mutex::new(Vec::new()));
    let (meanwhile, seen) = (spill.clone(), files.clone());
    case.write(Io::Moved(12_000), move |case| {
        assert!(case.delivery.outbox().queue.is_behind(), "the bytes in the file are not all sent");
        assert_eq!(case.send(&bytes(20_000, 20_000), false).0, Accepted::Full);
        assert!(matches!(case.delivery.spill(&meanwhile).0, Spilled::Done));
        lock(&seen).extend(case.delivery.spill_files());
    });
    assert!(case.drain(true).asked);
    assert_eq!(case.got(), bytes(0, 40_000));
    let files = lock(&files);
    assert!(files.len() == 2 && files[0] == files[1], "a response has one file, whose size is limited: {files:?}");
    assert!(!case.delivery.outbox().queue.is_behind());
}
