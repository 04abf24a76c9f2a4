//! The connection as the source of a request body that the application reads while it arrives.
//!
//! Thread: the runner's; any thread calls `wake_reader`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tailrace_http::encode;
use tailrace_os::socket::Io;

use crate::connection::driver::Connection;
use crate::request::stream::{MinimumPace, Source};

impl Source for Connection {
    fn receive(&self, buffer: &mut [u8]) -> Io {
        let received = self.socket().receive(buffer);
        if matches!(received, Io::End | Io::Broken) {
            self.note_left();
        }
        received
    }

    fn send_continue(self: Arc<Self>) {
        // The next read reports an error.
        if self.delivery.send(encode::CONTINUE, &self.shared.delivery_limits).asked {
            self.look_again();
        }
    }

    fn is_timed_out(&self) -> bool {
        self.delivery.outbox().state.is_late()
    }

    fn has_memory(&self, bytes: usize) -> bool {
        self.shared.memory.has_room(bytes)
    }

    fn pace(&self) -> MinimumPace {
        MinimumPace { pause: self.shared.config.body_timeout, rate: self.shared.config.min_rate }
    }

    fn now(&self) -> Instant {
        self.shared.clock.read()
    }

    fn wait_readable(&self, time: Duration) -> bool {
        self.socket().wait_readable(time)
    }

    fn interruptions(&self) -> Option<Duration> {
        self.shared.policy.waiting.signal_check()
    }

    fn must_end(&self) -> bool {
        self.host.must_end()
    }

    fn is_on_ticket_thread(&self) -> bool {
        self.host.is_on_ticket_thread()
    }

    fn wake_at_input(&self, ticket: u64) {
        self.runner.wait_for_input(ticket);
    }

    fn wake(&self, ticket: u64) -> bool {
        self.host.wake_runner(ticket)
    }

    fn wake_reader(&self) {
        self.notify_reader();
    }
}
