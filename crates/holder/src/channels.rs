//! The channels: what was published on each of them lately, and the connections that have it.
//!
//! Publications are numbered over all channels. A connection has all up to a number, so that nothing is queued for it: what
//! it lacks is in the logs. Memory does not depend on slow clients; one that needs what its channel has dropped is closed.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;

use crate::publication::Publication;

/// How much is kept for clients that are behind or come back.
#[derive(Clone, Copy, Debug)]
pub struct ReplayLimits {
    /// Bytes over all channels.
    pub bytes: usize,
    /// For how long.
    pub time: Duration,
}

impl Default for ReplayLimits {
    fn default() -> Self {
        Self { bytes: 64 << 20, time: Duration::from_secs(300) }
    }
}

/// A publication in the log of its channel.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    pub(crate) at: Instant,
    pub(crate) publication: Arc<Publication>,
}

/// A connection that has a channel: its key, and which of its subscriptions that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) key: usize,
    pub(crate) subscription: usize,
}

#[derive(Default)]
pub(crate) struct Channel {
    name: Arc<str>,
    log: VecDeque<Entry>,
    /// The number of the last publication that was dropped from the log.
    pub(crate) dropped: u64,
    pub(crate) members: Vec<Member>,
}

impl Channel {
    /// What was published after a number. `None`: some of it was dropped.
    pub(crate) fn after(&self, number: u64) -> Option<impl Iterator<Item = &Entry>> {
        let from = self.log.partition_point(|entry| entry.number <= number);
        (number >= self.dropped).then(|| self.log.range(from..))
    }

    /// A publication with this id is kept.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.number_of(id).is_some()
    }

    /// All that is kept was published after this time.
    pub(crate) fn began_after(&self, at: Instant) -> bool {
        self.log.front().is_none_or(|entry| entry.at >= at)
    }

    /// The number of the newest publication with this id.
    fn number_of(&self, id: &str) -> Option<u64> {
        self.log.iter().rev().find(|entry| entry.publication.id.as_deref() == Some(id)).map(|entry| entry.number)
    }
}

/// All channels.
pub(crate) struct Channels {
    limits: ReplayLimits,
    slots: Slab<Channel>,
    by_name: HashMap<Arc<str>, usize>,
    /// The channels of all entries in the order of their numbers.
    order: VecDeque<(u64, usize)>,
    bytes: usize,
    last: u64,
    dropped_count: u64,
}

impl Channels {
    pub(crate) fn new(limits: ReplayLimits) -> Self {
        Self {
            limits,
            slots: Slab::new(),
            by_name: HashMap::new(),
            order: VecDeque::new(),
            bytes: 0,
            last: 0,
            dropped_count: 0,
        }
    }

    /// The number of the last publication.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    /// How many publications were dropped.
    pub(crate) fn dropped_count(&self) -> u64 {
        self.dropped_count
    }

    /// Bytes of all logs.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn get(&self, at: usize) -> Option<&Channel> {
        self.slots.get(at)
    }

    /// Publications up to this number exist, as the former holder says.
    pub(crate) fn set_last(&mut self, number: u64) {
        self.last = self.last.max(number);
    }

    /// The number of the last publication that was dropped from the log of a channel.
    pub(crate) fn dropped(&self, name: &str) -> u64 {
        self.by_name.get(name).and_then(|at| self.slots.get(*at)).map_or(self.last, |channel| channel.dropped)
    }

    /// Names and connections of the channels that have the most connections.
    pub(crate) fn largest(&self, most: usize) -> Vec<(&str, usize)> {
        let mut all: Vec<_> = self.slots.iter().map(|(_, channel)| (&*channel.name, channel.members.len())).collect();
        if all.len() > most {
            all.select_nth_unstable_by_key(most, |(_, members)| Reverse(*members));
            all.truncate(most);
        }
        all.sort_by_key(|(_, members)| Reverse(*members));
        all
    }

    /// Every publication that is kept, the oldest first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.order.iter().filter_map(|(number, at)| {
            let log = &self.slots.get(*at)?.log;
            log.get(log.partition_point(|entry| entry.number < *number))
        })
    }

    fn at(&mut self, name: &str) -> usize {
        // What its name had before it was removed is older than all that is kept. A client whose last publication was on
        // another of its channels lacks none of this one.
        let dropped = self.order.front().map_or(self.last, |(oldest, _)| oldest - 1);
        self.restore(name, dropped)
    }

    /// The channel with this name. A new one has no publication up to `dropped`.
    pub(crate) fn restore(&mut self, name: &str, dropped: u64) -> usize {
        if let Some(at) = self.by_name.get(name) {
            return *at;
        }
        let name: Arc<str> = Arc::from(name);
        let at = self.slots.insert(Channel { name: name.clone(), dropped, ..Channel::default() });
        self.by_name.insert(name, at);
        at
    }

    /// Adds a publication. Returns its channel, if a connection has it.
    pub(crate) fn publish(&mut self, publication: Publication, now: Instant) -> Option<usize> {
        let number = self.last + 1;
        self.add(Entry { number, at: now, publication: Arc::new(publication) })
    }

    /// Adds a publication with its number, which must be higher than all before.
    pub(crate) fn add(&mut self, entry: Entry) -> Option<usize> {
        let now = entry.at;
        let at = self.at(&entry.publication.channel);
        self.last = self.last.max(entry.number);
        self.order.push_back((entry.number, at));
        self.bytes += entry.publication.size();
        let channel = &mut self.slots[at];
        channel.log.push_back(entry);
        let has_members = !channel.members.is_empty();
        while self.bytes > self.limits.bytes && self.order.len() > 1 {
            self.drop_oldest();
        }
        self.expire(now);
        has_members.then_some(at)
    }

    /// Drops what is older than it may be.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some((_, at)) = self.order.front() {
            let entry = self.slots.get(*at).and_then(|channel| channel.log.front());
            if entry.is_some_and(|entry| now.saturating_duration_since(entry.at) < self.limits.time) {
                break;
            }
            self.drop_oldest();
        }
    }

    /// When [`Channels::expire`] has something to do.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        let (_, at) = self.order.front()?;
        Some(self.slots.get(*at)?.log.front()?.at + self.limits.time)
    }

    fn drop_oldest(&mut self) {
        let Some((number, at)) = self.order.pop_front() else { return };
        self.dropped_count += 1;
        let Some(channel) = self.slots.get_mut(at) else { return };
        if let Some(entry) = channel.log.pop_front() {
            self.bytes -= entry.publication.size();
        }
        channel.dropped = number;
        self.remove_if_unused(at);
    }

    fn remove_if_unused(&mut self, at: usize) {
        if self.slots.get(at).is_some_and(|channel| channel.log.is_empty() && channel.members.is_empty()) {
            let channel = self.slots.remove(at);
            self.by_name.remove(&channel.name);
        }
    }

    /// A connection has the channel from now on. Returns the channel, and the place of the member in it.
    pub(crate) fn join(&mut self, name: &str, member: Member) -> (usize, usize) {
        let at = self.at(name);
        let members = &mut self.slots[at].members;
        members.push(member);
        (at, members.len() - 1)
    }

    /// A connection leaves a channel. Returns the member that has moved to its place.
    pub(crate) fn leave(&mut self, at: usize, place: usize) -> Option<Member> {
        let channel = self.slots.get_mut(at)?;
        channel.members.swap_remove(place);
        let moved = channel.members.get(place).copied();
        if channel.members.capacity() > 64 && channel.members.len() < channel.members.capacity() / 4 {
            channel.members.shrink_to_fit();
        }
        self.remove_if_unused(at);
        moved
    }

    /// The member at a place of a channel is another subscription of its connection from now on.
    pub(crate) fn renumber(&mut self, at: usize, place: usize, member: Member) {
        if let Some(known) = self.slots.get_mut(at).and_then(|channel| channel.members.get_mut(place)) {
            *known = member;
        }
    }

    /// The number up to which a client has everything whose last id is `id`: that of the publication with this id, on one
    /// of its channels. If it was dropped, all that is kept is newer.
    pub(crate) fn number_after(&self, channels: impl Iterator<Item = usize> + Clone, id: &str) -> u64 {
        let found = channels.clone().filter_map(|at| self.slots.get(at)?.number_of(id)).max();
        let oldest = || channels.filter_map(|at| self.slots.get(at)).map(|channel| channel.dropped).max();
        found.or_else(oldest).unwrap_or(self.last)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::{Duration, Instant};

    use tailrace_os::clock::now;

    use super::{Channels, Member, ReplayLimits};
    use crate::publication::{Publication, parse};

    fn publication(channel: &str, id: &str) -> Publication {
        let document = format!(
            r#"{{"items": [{{"channel": "{channel}", "id": "{id}", "formats": {{"http-stream": {{"content": "{id}"}}}}}}]}}"#
        );
        parse(document.as_bytes()).unwrap().pop().unwrap()
    }

    fn channels(bytes: usize, time: u64) -> (Channels, Instant) {
        (Channels::new(ReplayLimits { bytes, time: Duration::from_secs(time) }), now())
    }

    fn ids(channels: &Channels, at: usize, number: u64) -> Option<Vec<String>> {
        let entries = channels.get(at).unwrap().after(number)?;
        Some(entries.map(|entry| entry.publication.id.as_deref().unwrap().to_owned()).collect())
    }

    #[test]
    fn a_connection_finds_what_was_published_after_what_it_has() {
        let (mut channels, now) = channels(1 << 20, 60);
        assert_eq!(channels.publish(publication("a", "1"), now), None, "no connection has the channel");
        let (at, _) = channels.join("a", Member { key: 5, subscription: 0 });
        assert_eq!(channels.publish(publication("a", "2"), now), Some(at));
        channels.publish(publication("b", "3"), now);
        channels.publish(publication("a", "4"), now);
        assert_eq!(ids(&channels, at, 1).unwrap(), ["2", "4"]);
        assert_eq!(ids(&channels, at, channels.last()).unwrap(), [""; 0]);
        assert_eq!(channels.number_after([at].into_iter(), "2"), 2);
        assert_eq!(channels.entries().count(), 4);
    }

    #[test]
    fn what_was_dropped_is_missed_and_a_channel_that_nothing_needs_is_removed() {
        let size = publication("a", "1").size();
        let (mut channels, now) = channels(size * 2, 60);
        let (at, place) = channels.join("a", Member { key: 1, subscription: 0 });
        for id in ["1", "2", "3"] {
            channels.publish(publication("a", id), now);
        }
        assert_eq!((ids(&channels, at, 0), ids(&channels, at, 1).unwrap().len()), (None, 2));
        assert_eq!(channels.number_after([at].into_iter(), "1"), 1, "all that is kept is newer");
        assert_eq!(channels.leave(at, place), None);
        assert_eq!(channels.count(), 1);
        channels.expire(now + Duration::from_secs(61));
        assert_eq!((channels.count(), channels.bytes(), channels.expires_at()), (0, 0, None));
    }

    #[test]
    fn a_client_that_comes_back_to_a_new_channel_and_a_known_one_has_missed_nothing_that_was_dropped() {
        let size = publication("a", "1").size();
        let (mut channels, now) = channels(size * 2, 60);
        for id in ["1", "2", "3"] {
            channels.publish(publication("a", id), now);
        }
        let known = channels.join("a", Member { key: 1, subscription: 0 }).0;
        let new = channels.join("b", Member { key: 1, subscription: 1 }).0;
        let number = channels.number_after([known, new].into_iter(), "2");
        assert_eq!((ids(&channels, known, number).unwrap().len(), ids(&channels, new, number).unwrap().len()), (1, 0));
        let number = channels.number_after([known, new].into_iter(), "unknown");
        assert_eq!(ids(&channels, known, number).unwrap(), ["2", "3"]);
        assert_eq!(ids(&channels, new, 0), None, "what its name had before may have been dropped");
    }

    #[test]
    fn the_last_member_takes_the_place_of_one_that_leaves() {
        let (mut channels, _) = channels(1, 1);
        let members = [1, 2, 3].map(|key| Member { key, subscription: 0 });
        let at = members.map(|member| channels.join("a", member).0)[0];
        assert_eq!(channels.leave(at, 0), Some(members[2]));
        assert_eq!(channels.leave(at, 1), None);
        assert_eq!(channels.get(at).unwrap().members, [members[2]]);
    }
}
