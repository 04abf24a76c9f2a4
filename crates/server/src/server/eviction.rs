//! Makes room for new clients: when the limit of connections or of descriptors is reached, the connections that have
//! been idle for longest are closed.
//!
//! One search goes through all connections and lists the idle ones. As new clients come, connections of the list are
//! closed one by one, the longest idle first; one that has been used since the search is skipped. So many clients are
//! accepted for each search. After a search that found few, the next one waits for [`LOOK_PAUSE`].
//!
//! Runs on the thread that leads the loop.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tailrace_observe::level::Level;
use tailrace_observe::once_a_minute::OnceAMinute;
use tailrace_os::clock::Millis;
use tailrace_os::sync::lock;

use crate::connection::context::Context;
use crate::connection::ownership;
use crate::connection::state::Idleness;
use crate::executor::application::Application;
use crate::server::guard::Guard;

/// Least time between two searches, if the last one found few idle connections (milliseconds).
const LOOK_PAUSE: Millis = 100;
/// A search may be repeated at once if it found at least one idle connection in this many: then each client that is
/// accepted costs little.
const WORTH: usize = 8;
/// Number of idle connections that a search finds when there is no memory for all.
const SOME: usize = 256;

/// Why there is no room.
#[derive(Clone, Copy, Debug)]
pub(super) enum Want<'a> {
    /// As many as are allowed are open ([`Config::max_connections`](crate::Config::max_connections)).
    Connections,
    /// The process can open no more descriptors, or the kernel has no memory for them.
    Descriptors(&'a std::io::Error),
}

/// What is left of the last search, and when the log had its lines.
#[derive(Default)]
struct Looks {
    /// Idle connections: since when, and the key.
    idle: VecDeque<(Idleness, Millis, u64)>,
    looked: Option<Millis>,
    /// How many the search found.
    found: usize,
    /// They were enough to search again at once.
    was_worth_it: bool,
    /// Connections closed since that was last logged.
    closed: u64,
    logged_closed: OnceAMinute,
    logged_full: OnceAMinute,
}

impl Looks {
    fn is_worth_a_look(&self, now: Millis) -> bool {
        self.was_worth_it || self.looked.is_none_or(|looked| now.saturating_sub(looked) >= LOOK_PAUSE)
    }
}

pub(super) struct Eviction {
    context: Arc<Context>,
    application: Arc<dyn Application>,
    guard: Arc<Guard>,
    looks: Mutex<Looks>,
    logged_failed: OnceAMinute,
}

impl Eviction {
    pub(super) fn new(context: Arc<Context>, application: Arc<dyn Application>, guard: Arc<Guard>) -> Self {
        Self { context, application, guard, looks: Mutex::default(), logged_failed: OnceAMinute::default() }
    }

    /// Closes up to `count` idle connections, and returns how many.
    pub(super) fn close_longest_idle(&self, count: usize, want: Want<'_>) -> usize {
        let mut looks = lock(&self.looks);
        let now = self.context.clock.now();
        let (mut closed, mut tries) = (0, 0);
        while closed < count {
            if let Some((idleness, since, key)) = looks.idle.pop_front() {
                closed += usize::from(self.close_idle(key, idleness, since));
            } else if tries < 2 && looks.is_worth_a_look(now) {
                tries += 1;
                self.look_for_idle(&mut looks, now);
            } else {
                break;
            }
        }
        looks.closed += closed as u64;
        if closed > 0 && looks.logged_closed.may_log(now) {
            let total = std::mem::take(&mut looks.closed);
            let were = if total == 1 { "connection was" } else { "connections were" };
            self.application.log(
                Level::Warning,
                &format!("{}: {total} idle {were} closed for new clients; {}", self.reason(want), remedy(want)),
            );
        }
        if closed == 0 && looks.found == 0 && looks.logged_full.may_log(now) {
            self.application.log(
                Level::Warning,
                &format!("{}, and none is idle: new clients wait; {}", self.reason(want), remedy(want)),
            );
        }
        closed
    }

    fn look_for_idle(&self, looks: &mut Looks, now: Millis) {
        let open = self.context.table.len();
        let mut idle = Vec::new();
        // Without memory for all, some of them will do.
        if idle.try_reserve_exact(open).is_err() && idle.try_reserve_exact(SOME).is_err() {
            return;
        }
        self.context.table.visit(|connection| {
            if idle.len() < idle.capacity()
                && let Some((idleness, since)) = connection.idle_since()
            {
                idle.push((idleness, since, connection.key));
            }
        });
        idle.sort_unstable();
        looks.looked = Some(now);
        looks.found = idle.len();
        looks.was_worth_it = idle.len() * WORTH >= open && !idle.is_empty();
        looks.idle = idle.into();
    }

    /// Closes the connection if it has been idle since that time. True: it is closed.
    fn close_idle(&self, key: u64, idleness: Idleness, since: Millis) -> bool {
        let Some(connection) = self.context.table.get(key) else { return false };
        if connection.idle_since() != Some((idleness, since)) {
            return false;
        }
        self.guard.report(&connection, ownership::EVICT_IDLE);
        drop(connection);
        self.context.table.get(key).is_none()
    }

    /// Logs that accepting failed, for a reason that closing idle connections does not remedy.
    pub(super) fn log_accept_failure(&self, fault: &std::io::Error) {
        if self.logged_failed.may_log(self.context.clock.recent_millis()) {
            self.application.log(Level::Warning, &format!("cannot accept connections: {fault}; trying again"));
        }
    }

    fn reason(&self, want: Want<'_>) -> String {
        match want {
            Want::Connections => {
                format!("{} connections are open, which is the limit", self.context.config.max_connections)
            }
            Want::Descriptors(fault) => format!("no more connections can be opened ({fault})"),
        }
    }
}

fn remedy(want: Want<'_>) -> &'static str {
    match want {
        Want::Connections => {
            "if this is not an attack, raise the limit of open files (ulimit -n, LimitNOFILE= of systemd), or start more \
             workers: each keeps up to 100,000 connections"
        }
        Want::Descriptors(_) => "raise the limit of open files (ulimit -n, LimitNOFILE= of systemd)",
    }
}
