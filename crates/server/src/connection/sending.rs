//! What any thread may do for the response of a connection: send what is queued, compress it, move it to a file, and end
//! it when its deadline has passed. The runner's thread only moves it to a file, and follows up on its own sends.

use std::sync::Arc;

use tailrace_http::encode::{ResponseHead, error_page_length};
use tailrace_http::framing::RequestFacts;
use tailrace_http::limits::Refusal;
use tailrace_observe::level::Level;
use tailrace_os::clock::Millis;

use crate::connection::driver::Connection;
use crate::connection::ownership::{self, Bits};
use crate::response::delivery::{After, ClientTime, Spilled};
use crate::response::outbox::TimeOut;

/// The error page for a request whose deadline has passed.
const TOO_LATE: Refusal = Refusal::new(504, "The application took too long.");

impl Connection {
    /// Does what a call of [`Delivery`](crate::response::delivery::Delivery) has left to its caller.
    #[inline]
    pub(crate) fn follow_up(self: &Arc<Self>, after: After) {
        if after.is_any() {
            self.follow_up_now(after);
        }
    }

    fn follow_up_now(self: &Arc<Self>, after: After) {
        let After { wake, push, room, list, read, compress, asked } = after;
        if wake {
            self.host.wake_io();
        }
        if list {
            self.host.add_coalescing(self);
        }
        if push {
            self.host.push(self.clone());
        }
        if room {
            self.notify_room();
        }
        let unread = if read { self.delivery.outbox().socket.take_unread() } else { None };
        if let Some(part) = unread {
            let connection = self.clone();
            let share = part.file.share().cloned();
            let read = move || part.file.read(part.offset, part.length, Box::new(move || connection.look_again()));
            match share {
                Some(share) => share.run(read),
                None => self.shared.disk.run(read),
            }
        }
        if compress {
            let connection = self.clone();
            self.shared.compression.run(move || connection.compress());
        }
        if asked {
            // The thread that found this one writing may have been the owner, which may have released the connection
            // since. So another flush is made.
            self.look_again();
        }
    }

    /// Compresses what the response has produced. For a disk thread; other responses have their turn after each step.
    pub(crate) fn compress(self: &Arc<Self>) {
        let after = self.delivery.compress(&self.shared.delivery_limits, &**self);
        self.follow_up(after);
    }

    pub(crate) fn look_again(self: &Arc<Self>) {
        if let Some(owned) = self.own(ownership::WRITE) {
            owned.hand_over();
        }
    }

    /// Sends what the application has produced: coalesced blocks and the send queue.
    pub(crate) fn drain_for_the_owner(self: &Arc<Self>, bits: Bits) {
        let expired = bits & ownership::EXPIRED != 0 && self.deadline.has_come(self.shared.clock.now());
        let after = self.delivery.drain(bits & ownership::WRITE != 0, expired, &self.shared.delivery_limits, &**self);
        self.follow_up(after);
    }

    /// Sends what the response has coalesced since the last tick. False: the response is over, or its blocks no longer
    /// come quickly.
    pub(crate) fn tick(self: &Arc<Self>) -> bool {
        let (stays, after) = self.delivery.tick(&self.shared.delivery_limits, &**self);
        self.follow_up(after);
        stays
    }

    /// The deadline of the request has passed while the application runs. Sends 504 if the response has not begun, else
    /// breaks it off. The caller notifies a runner that waits for room or for bytes. `id`: of the request.
    pub(crate) fn time_out(self: &Arc<Self>, facts: RequestFacts, id: &[u8]) -> TimeOut {
        let facts = RequestFacts { keep_alive: false, ..facts };
        let page = || {
            let length = error_page_length(TOO_LATE.status, TOO_LATE.reason, facts);
            (self.shared.error_page(&mut ResponseHead::default(), &TOO_LATE, facts, id), length)
        };
        let (time_out, asked) = self.delivery.time_out(page);
        if asked {
            self.look_again();
        }
        time_out
    }

    /// Moves the queued bytes from memory to a file.
    pub(crate) fn spill(self: &Arc<Self>) -> Spilled {
        if self.is_forked_child() {
            return Spilled::NoRoom;
        }
        let (spilled, after) = self.delivery.spill(&self.shared.spill);
        if after.push || after.compress {
            self.follow_up(after);
        }
        if let Spilled::Failed(fault) = &spilled
            && let Some(line) = self.shared.line_of_spill_failure(fault)
        {
            self.host.log(Level::Warning, &line);
        }
        spilled
    }

    /// Moves the queued bytes to a file for a thread that does not run the request. A runner that waits for room checks
    /// again.
    pub(crate) fn spill_for_another(self: &Arc<Self>) -> Spilled {
        let spilled = self.spill();
        // A greenlet may have looked for room and not noted its ticket yet: wait until it has.
        drop(self.delivery.outbox());
        self.notify_room();
        spilled
    }
}

impl ClientTime for Connection {
    fn now(&self) -> Millis {
        self.shared.clock.now()
    }

    fn set_deadline(&self, due: Millis) -> bool {
        self.shared.timers.set(&self.deadline, self.key, due)
    }
}
