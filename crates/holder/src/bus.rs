//! A server that publishes to others as well: what was published here lately, numbered, and how far the others were heard.
//!
//! A process beside the holder sends documents over Redis or PostgreSQL, and brings those of other servers
//! (tailrace/bus). It keeps nothing: it may end, and the next one goes on from here. A server that lacks a number asks
//! for it, and everything from there is sent again; whoever has that already discards it.
//!
//! Plain data.

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tailrace_os::random;

use crate::channels::ReplayLimits;
use crate::message::{self, Kind};

/// Length of the names of servers, at most.
const MAX_NAME: usize = 64;

/// What a server has to send to others, and has heard of them.
pub(crate) struct Bus {
    limits: ReplayLimits,
    /// The name of this server: random, so that no two have the same.
    name: String,
    /// The number of the last document.
    last: u64,
    /// Those that are kept, as messages, and since when.
    documents: VecDeque<(Instant, Arc<[u8]>)>,
    bytes: usize,
    /// The number of the last one that was given to the process that sends them.
    given: u64,
    /// The number of the last document of each other server.
    heard: HashMap<String, u64>,
    received: u64,
    /// Of documents of others, how many are lost.
    lost: u64,
    /// What that process said last.
    report: Report,
}

/// What the process that sends documents says of itself.
#[derive(Default, Deserialize)]
struct Report {
    connected: bool,
    /// Other servers that are connected.
    servers: u64,
    /// Documents of others that are lost, since it last said so.
    lost: u64,
    /// The number of the last document that it has sent.
    sent: u64,
    /// The numbers that are done for each other server, because they were heard or are lost.
    heard: HashMap<String, u64>,
}

/// The same, but for the documents, for the next holder.
#[derive(Serialize, Deserialize)]
struct Portable {
    name: String,
    /// The number of the document in front of the first one.
    before: u64,
    given: u64,
    heard: HashMap<String, u64>,
}

impl Bus {
    pub(crate) fn new(limits: ReplayLimits) -> Self {
        Self {
            limits,
            name: format!("{:032x}", random::draw()),
            last: 0,
            documents: VecDeque::new(),
            bytes: 0,
            given: 0,
            heard: HashMap::new(),
            received: 0,
            lost: 0,
            report: Report::default(),
        }
    }

    /// The number of the first document that is kept, or would be.
    fn first(&self) -> u64 {
        self.last + 1 - self.documents.len() as u64
    }

    /// Notes a document that was published here.
    pub(crate) fn add(&mut self, document: &[u8], now: Instant) {
        let head = format!("{} {}\n", self.name, self.last + 1);
        self.push(message::encode(Kind::Document, &[head.as_bytes(), document].concat()), now);
    }

    fn push(&mut self, message: Vec<u8>, now: Instant) {
        self.last += 1;
        self.bytes += message.len();
        self.documents.push_back((now, message.into()));
        self.expire(now);
    }

    /// Drops what is too old, or too much.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some((at, message)) = self.documents.front() {
            if self.bytes <= self.limits.bytes && *at + self.limits.time > now {
                break;
            }
            self.bytes -= message.len();
            self.documents.pop_front();
        }
    }

    /// When [`Bus::expire`] has something to do.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        self.documents.front().map(|(at, _)| *at + self.limits.time)
    }

    /// The first document after a number, as a message, and its number. `None`: there is none yet.
    pub(crate) fn next(&mut self, after: u64) -> Option<(u64, Arc<[u8]>)> {
        let at = (after + 1).saturating_sub(self.first());
        let (_, message) = self.documents.get(usize::try_from(at).ok()?)?;
        let number = self.first() + at;
        self.given = self.given.max(number);
        Some((number, message.clone()))
    }

    /// What the process that sends documents is told at the start: a message. `asked`: the number after which it wants to
    /// have documents, of those that one has had; without, those that the one before it was not given. Returns the number as well.
    pub(crate) fn greeting(&self, asked: &[u8]) -> (u64, Arc<[u8]>) {
        let after = str::from_utf8(asked).ok().and_then(|text| text.parse().ok()).unwrap_or(self.given).min(self.given);
        let told = json!({"name": self.name, "first": self.first(), "after": after, "heard": self.heard});
        (after, message::encode(Kind::Bus, told.to_string().as_bytes()).into())
    }

    /// A document of another server: its content, unless it was heard before.
    ///
    /// # Errors
    /// It is no such message.
    pub(crate) fn hear<'a>(&mut self, content: &'a [u8]) -> io::Result<Option<&'a [u8]>> {
        let invalid = || io::Error::from(ErrorKind::InvalidData);
        let end = content.iter().take(MAX_NAME + 24).position(|byte| *byte == b'\n').ok_or_else(invalid)?;
        let head = str::from_utf8(&content[..end]).map_err(|_| invalid())?;
        let (name, number) = head.split_once(' ').ok_or_else(invalid)?;
        let number: u64 = number.parse().map_err(|_| invalid())?;
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(invalid());
        }
        if name == self.name || self.heard.get(name).is_some_and(|last| *last >= number) {
            return Ok(None);
        }
        self.heard.insert(name.to_owned(), number);
        self.received += 1;
        Ok(Some(&content[end + 1..]))
    }

    /// Takes what the process that sends documents says of itself; `None`: it has ended.
    pub(crate) fn report(&mut self, content: Option<&[u8]>) {
        let Some(content) = content else {
            self.report.connected = false;
            return;
        };
        let Ok(report) = serde_json::from_slice::<Report>(content) else { return };
        self.lost = self.lost.saturating_add(report.lost);
        self.heard.retain(|name, _| report.heard.contains_key(name));
        for (name, number) in &report.heard {
            let known = self.heard.entry(name.clone()).or_default();
            *known = (*known).max(*number);
        }
        self.report = report;
    }

    pub(crate) fn figures(&self) -> Value {
        let done = self.report.sent.max(self.first() - 1);
        json!({
            "connected": self.report.connected,
            "servers": self.report.servers,
            "published": self.last,
            "waiting": self.last.saturating_sub(done),
            "received": self.received,
            "lost": self.lost,
        })
    }

    /// The messages for the next holder, without their heads, in order.
    ///
    /// # Errors
    /// It is too large.
    pub(crate) fn portable(&self) -> io::Result<impl Iterator<Item = (Kind, Vec<u8>)> + '_> {
        let (name, heard) = (self.name.clone(), self.heard.clone());
        let portable = Portable { name, before: self.first() - 1, given: self.given, heard };
        let documents = self.documents.iter().map(|(_, message)| (Kind::Document, message[message::HEAD..].to_vec()));
        Ok([(Kind::Bus, message::content_of(&portable)?)].into_iter().chain(documents))
    }

    /// Takes what the former holder has: a message of [`Bus::portable`].
    ///
    /// # Errors
    /// It is no such message.
    pub(crate) fn restore(&mut self, kind: Kind, content: &[u8], now: Instant) -> io::Result<()> {
        if kind == Kind::Document {
            self.push(message::encode(Kind::Document, content), now);
            return Ok(());
        }
        let Portable { name, before, given, heard } = message::value_of(content)?;
        let report = Report { sent: given, ..Report::default() };
        *self = Self { name, last: before, given, heard, report, ..Self::new(self.limits) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use tailrace_os::clock;

    use super::Bus;
    use crate::channels::ReplayLimits;
    use crate::message::HEAD;

    const LIMITS: ReplayLimits = ReplayLimits { bytes: 1_000, time: Duration::from_secs(60) };

    fn texts(bus: &mut Bus, mut after: u64) -> Vec<String> {
        std::iter::from_fn(|| {
            let (number, message) = bus.next(after)?;
            after = number;
            let text = String::from_utf8(message[HEAD..].to_vec()).unwrap();
            Some(text.strip_prefix(&bus.name).unwrap().to_owned())
        })
        .collect()
    }

    #[test]
    fn documents_are_numbered_and_kept_for_a_time_and_up_to_a_size() {
        let now = clock::now();
        let mut bus = Bus::new(LIMITS);
        assert_eq!(bus.next(0), None);
        bus.add(b"a", now);
        bus.add(b"b\n", now);
        assert_eq!(texts(&mut bus, 0), [" 1\na", " 2\nb\n"]);
        assert_eq!(texts(&mut bus, 1), [" 2\nb\n"]);
        assert_eq!(texts(&mut bus, 2), <[&str; 0]>::default());
        bus.expire(now + LIMITS.time);
        assert_eq!((bus.first(), bus.bytes, bus.expires_at()), (3, 0, None));
        bus.add(b"c", now);
        assert_eq!(texts(&mut bus, 0), [" 3\nc"], "what was dropped is skipped");
        bus.add(&[b'x'; 2_000], now);
        assert_eq!((bus.first(), bus.bytes), (5, 0));
    }

    #[test]
    fn a_process_that_sends_documents_goes_on_where_the_one_before_it_ended() {
        let mut bus = Bus::new(LIMITS);
        let now = clock::now();
        bus.add(b"a", now);
        bus.add(b"b", now);
        assert_eq!(bus.greeting(b"").0, 0);
        let _ = bus.next(0);
        assert_eq!(bus.greeting(b"").0, 1);
        assert_eq!(bus.greeting(b"0").0, 0);
        assert_eq!(bus.greeting(b"-6").0, 1);
        for asked in [2, 3, u64::MAX] {
            assert_eq!(bus.greeting(asked.to_string().as_bytes()).0, 1, "nothing is left out");
        }
        let told = bus.greeting(b"").1;
        let told: serde_json::Value = serde_json::from_slice(&told[HEAD..]).unwrap();
        assert_eq!((&told["name"], told["first"].as_u64()), (&serde_json::json!(bus.name), Some(1)));
    }

    #[test]
    fn what_another_server_has_published_is_heard_once() {
        let mut bus = Bus::new(LIMITS);
        assert_eq!(bus.hear(b"x 7\n{}").unwrap(), Some(b"{}".as_slice()));
        assert_eq!(bus.hear(b"x 7\n{}").unwrap(), None);
        assert_eq!(bus.hear(b"x 6\n{}").unwrap(), None);
        assert_eq!(bus.hear(b"y 6\na\nb").unwrap(), Some(b"a\nb".as_slice()));
        let own = format!("{} 99\n{{}}", bus.name);
        assert_eq!(bus.hear(own.as_bytes()).unwrap(), None);
        for invalid in ["", "x", "x 8", "x\n", " 8\n", "x -8\n", &format!("{} 8\n", "x".repeat(65))] {
            assert!(bus.hear(invalid.as_bytes()).is_err(), "{invalid}");
        }
        assert_eq!(bus.figures()["received"], 2);
    }

    #[test]
    fn the_process_that_sends_documents_says_what_it_has_done() {
        let (mut bus, now) = (Bus::new(LIMITS), clock::now());
        for _ in 0..3 {
            bus.add(b"a", now);
        }
        bus.hear(b"x 7\n{}").unwrap();
        bus.hear(b"ended 7\n{}").unwrap();
        assert_eq!((&bus.figures()["waiting"], &bus.figures()["connected"]), (&3.into(), &false.into()));
        let report = |lost| {
            format!(r#"{{"connected": true, "servers": 2, "lost": {lost}, "sent": 2, "heard": {{"x": 6, "y": 9}}}}"#)
        };
        bus.report(Some(report(4).as_bytes()));
        bus.report(Some(report(1).as_bytes()));
        let figures = bus.figures();
        assert_eq!(["waiting", "servers", "lost", "received"].map(|key| figures[key].as_u64().unwrap()), [1, 2, 5, 2]);
        assert_eq!(figures["connected"], true);
        // Of x, it has not taken note yet; of y, it knows that what was before is not missing.
        assert_eq!(bus.hear(b"x 7\n{}").unwrap(), None);
        assert_eq!(bus.hear(b"y 9\n{}").unwrap(), None);
        assert!(!bus.heard.contains_key("ended"));
        bus.report(Some(b"nonsense"));
        assert_eq!(bus.figures()["connected"], true);
        bus.report(None);
        assert_eq!((&bus.figures()["connected"], &bus.figures()["lost"]), (&false.into(), &5.into()));
        // What was dropped does not wait.
        bus.expire(now + LIMITS.time);
        assert_eq!(bus.figures()["waiting"], 0);
    }

    #[test]
    fn the_next_holder_goes_on_under_the_same_name() {
        let (mut bus, now) = (Bus::new(LIMITS), clock::now());
        bus.add(b"dropped", now);
        bus.expire(now + LIMITS.time);
        bus.add(b"a", now);
        bus.add(b"b", now);
        bus.hear(b"x 7\n{}").unwrap();
        let _ = bus.next(0);
        let mut next = Bus::new(LIMITS);
        for (kind, content) in bus.portable().unwrap() {
            next.restore(kind, &content, now).unwrap();
        }
        assert_eq!((&next.name, next.last, next.given), (&bus.name, 3, 2));
        assert_eq!(texts(&mut next, 0), [" 2\na", " 3\nb"]);
        assert_eq!(next.hear(b"x 7\n{}").unwrap(), None);
    }
}
