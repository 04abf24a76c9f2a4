//! Confines panics: a panic ends a connection or a request, and not the thread that leads the loop. [`Guard`] runs each
//! stage of the loop, and within a stage the work at each connection; it catches a panic, logs it, and returns.
//!
//! A lock can be taken again after a panic of its holder (see `os::sync`). So the data behind a lock must be valid
//! after each step that could panic: it is changed in such steps, or moved out under the lock and used without it. If a
//! stage panics, what it has moved out and not handled yet is put back or closed.
//!
//! A panic of the wait for events, or while threads change their roles, is not caught here, since no thread would lead
//! the loop afterwards. It ends the process, see `failing`.
//!
//! Runs on the thread that leads the loop, and on those that end the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tailrace_observe::level::Level;
use tailrace_os::clock::{Millis, NEVER};
use tailrace_os::panics::{catch, may_panic};

use crate::connection::context::Context;
use crate::connection::driver::Connection;
use crate::connection::ownership::Bits;
use crate::executor::application::Application;

/// Least time between two log lines about panics of the same stage (milliseconds).
const LOG_PAUSE: Millis = 1_000;

/// A stage of the loop, in the order of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoopStage {
    /// Events that the kernel reported, one at a time.
    Events,
    /// New clients.
    Accept,
    /// Responses that the I/O side sends.
    Flush,
    /// Requests that were left to this round.
    Dispatches,
    /// Deadlines of connections and of requests, and the ends of listeners' pauses.
    Deadlines,
    /// Requests that have waited too long for a runner.
    LateRequests,
    /// The limit of memory that is held for clients.
    Memory,
    /// The update of the scoreboard.
    Scoreboard,
    /// The progress of a server that is to stop.
    Drain,
}

/// Number of stages.
const STAGES: usize = 9;

impl LoopStage {
    /// The name in the log, and in tests that make the stage panic.
    fn name(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Accept => "accept",
            Self::Flush => "flush",
            Self::Dispatches => "dispatches",
            Self::Deadlines => "deadlines",
            Self::LateRequests => "late requests",
            Self::Memory => "memory",
            Self::Scoreboard => "scoreboard",
            Self::Drain => "drain",
        }
    }
}

pub(super) struct Guard {
    context: Arc<Context>,
    application: Arc<dyn Application>,
    /// When a panic of each stage was last logged.
    logged: [AtomicU64; STAGES],
}

impl Guard {
    pub(super) fn new(context: Arc<Context>, application: Arc<dyn Application>) -> Self {
        Self { context, application, logged: [const { AtomicU64::new(NEVER) }; STAGES] }
    }

    /// Runs a stage of the loop. `None`: the stage panicked.
    pub(super) fn stage<T>(&self, stage: LoopStage, work: impl FnOnce() -> T) -> Option<T> {
        let guarded = || {
            may_panic(stage.name());
            work()
        };
        catch(guarded).map_err(|panic| self.log(stage, &panic)).ok()
    }

    fn log(&self, stage: LoopStage, panic: &str) {
        let (now, logged) = (self.context.clock.recent_millis(), &self.logged[stage as usize]);
        let before = logged.load(Ordering::Relaxed);
        if before == NEVER || now.saturating_sub(before) >= LOG_PAUSE {
            logged.store(now, Ordering::Relaxed);
            let text = format!("a panic in the server's loop ({}); the server continues: {panic}", stage.name());
            self.application.log(Level::Error, &text);
        }
    }

    /// Runs work at a connection, and closes the connection if the work panics.
    pub(super) fn connection(&self, connection: &Arc<Connection>, work: impl FnOnce()) {
        if let Err(panic) = catch(work) {
            let text = format!("a connection was closed after a panic in the server: {panic}");
            self.application.log(Level::Error, &text);
            self.drop_connection(connection);
        }
    }

    /// Closes a connection whose state is unknown after a panic.
    pub(super) fn drop_connection(&self, connection: &Arc<Connection>) {
        let close = || {
            connection.abort();
            self.context.remove(connection);
        };
        if catch(close).is_err() {
            // The descriptor is closed when the last reference to the connection is dropped.
            self.context.table.remove(connection.key);
        }
    }

    /// Reports events to a connection.
    pub(super) fn report(&self, connection: &Arc<Connection>, bits: Bits) {
        self.connection(connection, || {
            may_panic("connection");
            connection.report(bits);
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use tailrace_observe::level::Level;

    use super::{Guard, LoopStage};
    use crate::config::Config;
    use crate::connection::context::Context;
    use crate::executor::application::Application;
    use crate::executor::inline;
    use crate::executor::turn::Turn;

    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);

    impl Application for Log {
        fn enter(&self, _: &mut Turn<'_>) {}

        fn grow(&self) -> io::Result<()> {
            Ok(())
        }

        fn log(&self, _: Level, message: &str) {
            self.0.lock().unwrap().push(message.to_owned());
        }
    }

    #[test]
    fn each_stage_goes_on_after_a_panic_which_is_logged_once_a_second() {
        let context = Arc::new(Context::new(Config::default(), inline::POLICY, Arc::default()).unwrap());
        let log = Arc::new(Log::default());
        let guard = Guard::new(context.clone(), log.clone());
        assert_eq!(guard.stage(LoopStage::Flush, || 7), Some(7));
        let lines = || log.0.lock().unwrap().len();
        for stage in [LoopStage::Flush, LoopStage::Drain] {
            let before = lines();
            for _ in 0..3 {
                assert_eq!(guard.stage(stage, || panic!("no")), None::<()>);
            }
            assert_eq!(lines(), before + 1);
        }
        context.clock.advance(Duration::from_secs(1));
        context.clock.read();
        assert_eq!(guard.stage(LoopStage::Drain, || panic!("no again")), None::<()>);
        assert_eq!(lines(), 3);
        assert!(
            log.0.lock().unwrap()[2]
                .starts_with("a panic in the server's loop (drain); the server continues: no again")
        );
    }
}
