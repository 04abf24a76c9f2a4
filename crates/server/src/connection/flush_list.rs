//! The connections for which the I/O side sends: those whose responses coalesce blocks, those handed over with the rest
//! of a finished response, and those of greenlets, which must not write large amounts themselves.
//!
//! Any thread adds connections; the thread that polls sends coalesced blocks once per [`TICK`], and serves the others
//! in its next round.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tailrace_os::clock;
use tailrace_os::sync::lock;

use crate::connection::driver::Connection;
use crate::connection::ownership::{self, Owned};
use crate::response::coalescing::TICK;

#[derive(Default)]
struct Lists {
    coalescing: Vec<Arc<Connection>>,
    handed_over: Vec<Owned<Connection>>,
    queued: Vec<Arc<Connection>>,
    ticked: Option<Instant>,
    /// The server has ended.
    is_cleared: bool,
}

#[derive(Default)]
pub(crate) struct FlushList {
    lists: Mutex<Lists>,
    count: AtomicUsize,
    urgent: AtomicUsize,
}

impl FlushList {
    /// The response of the connection coalesces its blocks from now on.
    pub(crate) fn add_coalescing(&self, connection: Arc<Connection>) {
        self.count.fetch_add(1, Ordering::AcqRel);
        lock(&self.lists).coalescing.push(connection);
    }

    /// As [`FlushList::add_coalescing`], but its bytes are sent a whole tick from now, because more blocks may follow
    /// at once. True when the list was empty: the I/O side may be waiting for longer than a tick, and the caller wakes
    /// it.
    pub(crate) fn add_coalescing_anew(&self, connection: Arc<Connection>) -> bool {
        let is_first = self.count.fetch_add(1, Ordering::AcqRel) == 0;
        let mut lists = lock(&self.lists);
        if lists.coalescing.is_empty() {
            lists.ticked = Some(clock::now());
        }
        lists.coalescing.push(connection);
        is_first
    }

    /// The connection is handed over, in most cases with the rest of a finished response. The thread that takes it from
    /// this list owns it.
    pub(crate) fn add_handed_over(&self, connection: Owned<Connection>) {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.urgent.fetch_add(1, Ordering::AcqRel);
        lock(&self.lists).handed_over.push(connection);
    }

    /// The response of the connection continues; the I/O side sends what is queued.
    pub(crate) fn add_queued(&self, connection: Arc<Connection>) {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.urgent.fetch_add(1, Ordering::AcqRel);
        lock(&self.lists).queued.push(connection);
    }

    /// True when the list has a connection that does not wait for a tick: one that was added by
    /// [`FlushList::add_handed_over`] or [`FlushList::add_queued`].
    pub(crate) fn has_urgent(&self) -> bool {
        self.urgent.load(Ordering::Acquire) > 0
    }

    /// True when the list has any connection.
    pub(crate) fn are_any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Empties the list, when the server ends.
    pub(crate) fn clear(&self) {
        let mut lists = lock(&self.lists);
        let cleared = std::mem::replace(&mut *lists, Lists { is_cleared: true, ..Lists::default() });
        self.count.store(0, Ordering::Release);
        self.urgent.store(0, Ordering::Release);
        drop(lists);
        drop(cleared);
    }

    /// The time until coalesced blocks are to be sent, at most a tick. `None`: there are none.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        // A thread that ticks has taken the list, and may put connections back.
        self.are_any().then(|| {
            let lists = lock(&self.lists);
            let ticked = lists.ticked.filter(|_| !lists.coalescing.is_empty());
            ticked.map_or(TICK, |ticked| TICK.saturating_sub(clock::now().saturating_duration_since(ticked)))
        })
    }

    /// Sends coalesced blocks, if a tick has passed, and serves the connections that do not wait for a tick. `guard`
    /// runs the work for each connection.
    pub(crate) fn tick(&self, guard: impl Fn(&Arc<Connection>, &mut dyn FnMut())) {
        if !self.are_any() {
            return;
        }
        let (handed_over, queued) = {
            let mut lists = lock(&self.lists);
            (std::mem::take(&mut lists.handed_over), std::mem::take(&mut lists.queued))
        };
        self.count.fetch_sub(handed_over.len() + queued.len(), Ordering::AcqRel);
        self.urgent.fetch_sub(handed_over.len() + queued.len(), Ordering::AcqRel);
        for connection in queued {
            guard(&connection, &mut || connection.drain_for_the_owner(ownership::WRITE));
        }
        for owned in handed_over {
            let (connection, mut owned) = (owned.clone(), Some(owned));
            guard(&connection, &mut || _ = owned.take().map(Owned::run));
        }
        self.tick_coalescing(guard);
    }

    /// Sends coalesced blocks, if a tick has passed.
    pub(crate) fn tick_coalescing(&self, guard: impl Fn(&Arc<Connection>, &mut dyn FnMut())) {
        if !self.are_any() {
            return;
        }
        let now = clock::now();
        let coalescing = {
            let mut lists = lock(&self.lists);
            if lists.ticked.is_some_and(|ticked| now.saturating_duration_since(ticked) < TICK) {
                return;
            }
            lists.ticked = Some(now);
            std::mem::take(&mut lists.coalescing)
        };
        let before = coalescing.len();
        let mut listed: Vec<_> = coalescing
            .into_iter()
            .filter(|connection| {
                let mut stays = false;
                guard(connection, &mut || stays = connection.tick());
                stays
            })
            .collect();
        let mut lists = lock(&self.lists);
        // If the server has ended meanwhile, the connections are dropped, and no longer counted.
        if !lists.is_cleared {
            self.count.fetch_sub(before - listed.len(), Ordering::AcqRel);
            lists.coalescing.append(&mut listed);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::RefCell;
    use std::io::Read;
    use std::sync::Arc;

    use tailrace_http::body_encoder::BodyEncoder;
    use tailrace_os::clock;

    use super::FlushList;
    use crate::config::Config;
    use crate::connection::driver::Connection;
    use crate::connection::ownership::Owned;
    use crate::connection::testing::{connection, server};
    use crate::executor::greenlets::testing::Served;
    use crate::response::coalescing::TICK;
    use crate::response::producer::Position;

    fn connections() -> [Owned<Connection>; 3] {
        let server = server();
        [1, 2, 3].map(|key| connection(&server, key).0)
    }

    /// The keys of the connections that a tick comes to, without the work at them: so none stays listed.
    fn tick(list: &FlushList) -> Vec<u64> {
        let keys = RefCell::new(Vec::new());
        list.tick(|connection, _| keys.borrow_mut().push(connection.key));
        keys.into_inner()
    }

    #[test]
    fn what_was_handed_over_or_queued_is_handled_once_at_the_next_round() {
        let list = FlushList::default();
        let [first, second, third] = connections();
        assert!(!list.are_any() && !list.has_urgent());
        list.add_handed_over(first);
        list.add_queued(second.clone());
        list.add_queued(third.clone());
        assert!(list.are_any() && list.has_urgent());
        assert_eq!(tick(&list), [2, 3, 1], "what goes on before what is finished");
        assert!(!list.are_any() && !list.has_urgent());
        assert_eq!(tick(&list), [0_u64; 0]);
    }

    #[test]
    fn coalesced_blocks_wait_for_a_whole_tick_after_the_first() {
        let list = FlushList::default();
        let [first, second, third] = connections();
        let listed = clock::now();
        assert!(list.add_coalescing_anew(first.clone()), "the I/O side may wait for longer");
        assert!(!list.add_coalescing_anew(second.clone()), "it comes for the first already");
        list.add_coalescing(third.clone());
        assert!(list.time_left().is_some_and(|left| left <= TICK));
        assert!(list.are_any() && !list.has_urgent());
        let keys = loop {
            let keys = tick(&list);
            if !keys.is_empty() {
                break keys;
            }
        };
        assert!(listed.elapsed() >= TICK);
        assert_eq!((keys, list.are_any()), (vec![1, 2, 3], false));
    }

    #[test]
    fn a_list_that_is_cleared_keeps_no_connection() {
        let list = FlushList::default();
        let [first, second, third] = connections();
        let weak = [&first, &second, &third].map(|each| Arc::downgrade(each));
        list.add_coalescing(first.0);
        list.add_handed_over(second);
        list.add_queued(third.0);
        list.clear();
        assert!(weak.iter().all(|connection| connection.upgrade().is_none()));
        assert!(!list.are_any() && !list.has_urgent() && tick(&list).is_empty());
    }

    #[test]
    fn a_list_that_is_cleared_during_a_tick_keeps_no_connection() {
        let list = FlushList::default();
        let [first, ..] = connections();
        let weak = Arc::downgrade(&first);
        first.delivery.outbox().coalescing.list(BodyEncoder::CHUNKED);
        list.add_coalescing(first.0);
        list.tick(|_, work| {
            work();
            list.clear();
        });
        assert!(weak.upgrade().is_none() && !list.are_any());
    }

    #[test]
    fn blocks_of_a_response_that_goes_on_are_sent_without_its_runner() {
        let served = Served::new(Config::default());
        let (mut client, mut exchange) = served.exchange();
        exchange.response_mut().head().status(b"200 OK").unwrap();
        for block in [b"first", b"again", b"third"] {
            exchange.response_mut().push(&[block], Position::More, &mut |_| Box::new(()));
        }
        let mut response = Vec::new();
        while !response.ends_with(b"third\r\n") {
            let mut octet = [0];
            client.read_exact(&mut octet).unwrap();
            response.push(octet[0]);
        }
        exchange.finish().unwrap();
        let mut end = String::new();
        client.read_to_string(&mut end).unwrap();
        assert_eq!(end, "0\r\n\r\n");
        served.end();
    }
}
