//! Tests of the states of a connection, without a socket: every event in every state as a table, and properties of
//! random orders of events.

mod orders;
mod table;

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tailrace_http::encode::ResponseHead;
use tailrace_http::framing::RequestFacts;
use tailrace_http::limits::Refusal;

use super::{Effects, Event, Message, Next, Rules, Shutdown, State};
use crate::config::Config;
use crate::os::clock::{Clock, Millis};
use crate::request::Endpoints;
use crate::request::disk::Disk;
use crate::request::memory::ClientMemory;
use crate::request::spool::{Write, Written};

/// Everything on which a step depends.
pub(super) struct World {
    pub(super) config: Config,
    pub(super) memory: ClientMemory,
    pub(super) has_room: Cell<bool>,
    pub(super) is_stopping: Cell<bool>,
    pub(super) first_request_by: Cell<Millis>,
    pub(super) clock: Clock,
    disk: Arc<Disk>,
    folder: PathBuf,
}

impl World {
    pub(super) fn new(config: Config) -> Self {
        Self {
            memory: ClientMemory::new(config.client_memory),
            config,
            has_room: Cell::new(true),
            is_stopping: Cell::new(false),
            first_request_by: Cell::new(0),
            clock: Clock::new(),
            disk: Arc::new(Disk::new()),
            folder: PathBuf::from("/folder"),
        }
    }

    pub(super) fn step(&self, state: &mut State, event: Event<'_>) -> Effects {
        let page =
            |_: &mut ResponseHead, refusal: &Refusal, _: RequestFacts| (refusal.status.to_string().into_bytes(), 3);
        let rules = Rules {
            protocol: &crate::request::protocol::Http1,
            config: &self.config,
            memory: &self.memory,
            make_room: &|more| self.has_room.get() && self.memory.has_room(more),
            page: &page,
            folder: &self.folder,
            endpoints: Endpoints::default(),
            is_stopping: self.is_stopping.get(),
            first_request_by: self.first_request_by.get(),
            time: self.clock.reading(),
        };
        state.step(event, &rules)
    }

    pub(super) fn receive(&self, state: &mut State, bytes: &[u8]) -> Effects {
        self.step(state, Event::Received { bytes, more: false })
    }

    /// Does what a disk thread does.
    pub(super) fn write(&self, write: Write) -> std::io::Result<Written> {
        write.run(&self.disk)
    }
}

/// Timeouts of different lengths, so that a deadline shows from which one it comes.
pub(super) fn config() -> Config {
    Config {
        header_timeout: Duration::from_secs(15),
        body_timeout: Duration::from_secs(30),
        idle_timeout: Duration::from_secs(75),
        write_timeout: Duration::from_secs(60),
        min_body_rate: 0,
        ..Config::default()
    }
}

pub(super) fn name(state: &State) -> &'static str {
    match state {
        State::Idle => "Idle",
        State::Head(_) => "Head",
        State::Body(_) => "Body",
        State::Storing(_) => "Storing",
        State::Responding(_) => "Responding",
        State::Draining(_) => "Draining",
        State::Skipping(_) => "Skipping",
        State::Closing => "Closing",
        State::Lingering(_) => "Lingering",
        State::Closed => "Closed",
    }
}

pub(super) fn next_name(next: &Next) -> &'static str {
    match next {
        Next::Rest => "Rest",
        Next::Read => "Read",
        Next::Flush => "Flush",
        Next::Run(_) => "Run",
        Next::Store(_) => "Store",
        Next::Later => "Later",
        Next::Close => "Close",
    }
}

/// One step in one line: the new state, the deadline, the other effects, and the next action.
pub(super) fn line(state: &State, effects: &Effects, now: Millis) -> String {
    let deadline = match effects.deadline.map(|due| due.wrapping_sub(now)) {
        None => String::new(),
        Some(time) if time == u64::MAX.wrapping_sub(now) => String::from(" never"),
        Some(time) => format!(" in {time}"),
    };
    let mut also = String::new();
    if let Some(transaction) = &effects.account {
        also += &format!(" account({})", transaction.record.ending.name());
    }
    if let Some(rare) = effects.rare.as_deref() {
        if rare.log.is_some() {
            also += " log";
        }
        match rare.shutdown {
            None => {}
            Some(Shutdown::EndSending) => also += " end-sending",
            Some(Shutdown::Reset) => also += " reset",
        }
        if rare.is_refusal {
            also += " refusal";
        }
        match &rare.send {
            None => {}
            Some(Message::Continue) => also += " continue",
            Some(Message::Page(page)) => also += &format!(" page({})", String::from_utf8_lossy(page)),
        }
    }
    format!("{}{deadline}{also} {}", name(state), next_name(&effects.next))
}
