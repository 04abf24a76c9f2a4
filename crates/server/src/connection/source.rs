//! The connection as the source of a request body that the application reads while it arrives.
//!
//! Thread: the runner's; any thread calls `wake_reader`.

use std::time::{Duration, Instant};

use crate::connection::driver::Connection;
use crate::os::socket::Io;
use crate::request::stream::{Pace, ReaderWaits, Source};

impl Source for Connection {
    fn receive(&self, buffer: &mut [u8]) -> Io {
        self.socket().receive(buffer)
    }

    fn send_continue(&self) {
        // The next read reports an error.
        if self.delivery().send(self.protocol().interim_continue(), self.delivery_limits()).asked {
            self.look_again();
        }
    }

    fn is_timed_out(&self) -> bool {
        self.delivery().is_timed_out()
    }

    fn has_memory(&self, bytes: usize) -> bool {
        self.shared().memory.has_room(bytes)
    }

    fn pace(&self) -> Pace {
        Pace { pause: self.shared().config.body_timeout, rate: self.shared().config.min_body_rate }
    }

    fn now(&self) -> Instant {
        self.shared().clock.read()
    }
}

impl ReaderWaits for Connection {
    fn wait_readable(&self, time: Duration) -> bool {
        self.socket().wait_readable(time)
    }

    fn interruptions(&self) -> Option<Duration> {
        self.shared().policy.waiting.signal_check()
    }

    fn must_end(&self) -> bool {
        self.host().must_end()
    }

    fn is_on_ticket_thread(&self) -> bool {
        self.host().is_on_ticket_thread()
    }

    fn wake_at_input(&self, ticket: u64) {
        self.runner().wait_for_input(ticket);
    }

    fn wake(&self, ticket: u64) -> bool {
        self.host().wake_runner(ticket)
    }

    fn wake_reader(&self) {
        self.notify_reader();
    }
}
