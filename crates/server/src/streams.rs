//! The responses that the I/O side sends for the application's threads: those that gather blocks, finished ones that
//! were left to it, and, for a hub's greenlets, what they must not write by themselves.
//!
//! Application threads list and leave; the thread that leads the loop ticks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::claim;
use crate::connection::Connection;
use crate::gather::TICK;
use crate::lock;

#[derive(Default)]
struct Lists {
    gathering: Vec<Arc<Connection>>,
    left: Vec<Arc<Connection>>,
    pushed: Vec<Arc<Connection>>,
    ticked: Option<Instant>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Streams {
    lists: Mutex<Lists>,
    count: AtomicUsize,
    left: AtomicUsize,
}

impl Streams {
    /// The connection gathers blocks from now on.
    pub(crate) fn list(&self, connection: Arc<Connection>) {
        self.count.fetch_add(1, Ordering::AcqRel);
        lock(&self.lists).gathering.push(connection);
    }

    /// Likewise, and what it has is due a whole tick from now: more may come at once. True when it is the only one, so that
    /// nobody may look that soon.
    pub(crate) fn list_for_later(&self, connection: Arc<Connection>) -> bool {
        let is_first = self.count.fetch_add(1, Ordering::AcqRel) == 0;
        let mut lists = lock(&self.lists);
        if lists.gathering.is_empty() {
            lists.ticked = Some(Instant::now());
        }
        lists.gathering.push(connection);
        is_first
    }

    /// The response of the connection is finished; its owner is now whoever takes it from here.
    pub(crate) fn leave(&self, connection: Arc<Connection>) {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.left.fetch_add(1, Ordering::AcqRel);
        lock(&self.lists).left.push(connection);
    }

    /// The response of the connection goes on; the I/O side sends what waits of it.
    pub(crate) fn push(&self, connection: Arc<Connection>) {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.left.fetch_add(1, Ordering::AcqRel);
        lock(&self.lists).pushed.push(connection);
    }

    /// True when a response waits that was left or pushed.
    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire) > 0
    }

    /// True when a tick has something to look at.
    pub(crate) fn are_any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Forgets everything, when the server ends.
    pub(crate) fn clear(&self) {
        let lists = std::mem::take(&mut *lock(&self.lists));
        self.count.store(0, Ordering::Release);
        self.left.store(0, Ordering::Release);
        drop(lists);
    }

    /// Sends what has gathered, if a tick has passed, and what was pushed or left. `guard` runs the work at each connection.
    pub(crate) fn tick(&self, guard: impl Fn(&Arc<Connection>, &mut dyn FnMut())) {
        if !self.are_any() {
            return;
        }
        let now = Instant::now();
        let (left, pushed, gathering) = {
            let mut lists = lock(&self.lists);
            let due = lists.ticked.is_none_or(|ticked| now.duration_since(ticked) >= TICK);
            let gathering = if due {
                lists.ticked = Some(now);
                std::mem::take(&mut lists.gathering)
            } else {
                Vec::new()
            };
            (std::mem::take(&mut lists.left), std::mem::take(&mut lists.pushed), gathering)
        };
        self.count.fetch_sub(left.len() + pushed.len(), Ordering::AcqRel);
        self.left.fetch_sub(left.len() + pushed.len(), Ordering::AcqRel);
        for connection in pushed {
            guard(&connection, &mut || connection.drain_for_the_owner(claim::WRITE));
        }
        for connection in left {
            guard(&connection, &mut || connection.take_over());
        }
        let before = gathering.len();
        let mut listed: Vec<_> = gathering
            .into_iter()
            .filter(|connection| {
                let mut stays = false;
                guard(connection, &mut || stays = connection.tick());
                stays
            })
            .collect();
        self.count.fetch_sub(before - listed.len(), Ordering::AcqRel);
        if !listed.is_empty() {
            lock(&self.lists).gathering.append(&mut listed);
        }
    }
}
