//! One held connection: what its client has been sent, and what it is to be sent next.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tailrace_http::body_encoder::BodyEncoder;
use tailrace_http::encode::{OwnFields, ResponseHead};
use tailrace_http::framing::RequestFacts;
use tailrace_os::clock;
use tailrace_os::socket::{self, Io};

use crate::call::{self, Answer};
use crate::channels::{Channels, Member};
use crate::deflate::Deflate;
use crate::events::Event;
use crate::frames::{self, Ending, Frames};
use crate::grip::{Filters, Instructions, Mode, Subscription};
use crate::message::{Format, Hold, Opening, Origin};
use crate::publication::{Publication, ResponseForm, StreamForm, WebSocketForm};
use crate::session::{self, Action, Session, may_subscribe};

/// Publications are gathered for one write until they have this many bytes.
const GATHERED: usize = 64 * 1024;
/// The rest of a publication with this many bytes is not copied for each client that accepts it slowly.
const SHARED: usize = 4 * 1024;
/// Reads of a client before others get their turn.
const AT_ONCE: usize = 16;
/// A client may send this many bytes while its response is held. What it sends is discarded.
const MAX_RECEIVED: u32 = 64 * 1024;
/// A client may send this many bytes behind its violation of the protocol. They are discarded, so that the close frame is
/// not lost in a reset.
const MAX_DISCARDED: u32 = 64 << 20;
/// Bytes that a client may send before its WebSocket is open.
const MAX_EARLY: usize = 64 * 1024;
/// Bytes of answers to control frames, and of messages, that a client may leave unread.
const MAX_ANSWERS: usize = 2 << 20;
/// How often a WebSocket that is sent nothing is sent a ping, in seconds.
const PING_INTERVAL: u32 = 30;
/// Time after which an event source is to reconnect when its stream must end, in milliseconds: between these.
const RETRY: (u64, u64) = (1_000, 10_000);

/// Why a connection is no longer held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    /// Its response is complete.
    Complete,
    /// The client has disconnected.
    Left,
    /// The client did not receive publications before they were dropped.
    Behind,
    /// The client has sent more than it may.
    Sent,
    /// The server stops, or the process that encrypts.
    Stopped,
    /// There were as many connections as there may be.
    TooMany,
    /// No descriptor was left.
    NoDescriptor,
}

impl Reason {
    /// Every reason, with its name.
    pub(crate) const ALL: [(Self, &'static str); 7] = [
        (Self::Complete, "complete"),
        (Self::Left, "left"),
        (Self::Behind, "behind"),
        (Self::Sent, "sent"),
        (Self::Stopped, "stopped"),
        (Self::TooMany, "too_many"),
        (Self::NoDescriptor, "no_descriptor"),
    ];
}

/// A channel of a connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Subscribed {
    #[serde(skip)]
    pub(crate) channel: usize,
    /// Its place among the members of the channel.
    #[serde(skip)]
    pub(crate) place: usize,
    /// For gaps and ids; `None`: they do not matter.
    last_id: Option<Arc<str>>,
    filters: Filters,
    name: String,
    /// Publications up to this number do not count, since they are older than the subscription.
    #[serde(default)]
    from: u64,
    /// Of the channel, for the next holder.
    #[serde(default)]
    dropped: u64,
}

impl Subscribed {
    /// All channels of a response.
    fn all(instructions: &Instructions) -> Vec<Self> {
        let tracks = instructions.tracks_ids();
        instructions.subscriptions.iter().map(|subscription| Self::new(subscription, tracks, 0)).collect()
    }

    fn new(subscription: &Subscription, tracks: bool, from: u64) -> Self {
        Self {
            channel: 0,
            place: 0,
            last_id: subscription.last_id.as_deref().or(tracks.then_some("")).map(Arc::from),
            filters: subscription.filters,
            name: subscription.channel.clone(),
            from,
            dropped: 0,
        }
    }
}

/// What few connections have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Extras {
    /// For [`Mode::Response`].
    held_response: Option<HeldResponse>,
    /// `user` of the metadata.
    user: Option<String>,
    /// `id_format` of the metadata.
    id_format: Option<String>,
    /// Where more content is found, by a request like this one.
    next: Option<(String, Origin)>,
    /// Requests for it that have failed in a row.
    failures: u32,
}

impl Extras {
    /// Does what instructions say. `origin`: the request for which they are.
    fn apply(&mut self, instructions: &Instructions, origin: Option<Origin>) {
        let meta =
            |wanted: &str| instructions.meta.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
        self.user = meta("user").or(self.user.take());
        self.id_format = meta("id_format").or(self.id_format.take());
        self.next = instructions.next.clone().zip(origin);
        self.failures = 0;
    }
}

/// A response that is sent if nothing is published in time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct HeldResponse {
    status: String,
    fields: Vec<(String, String)>,
    server: String,
    #[serde(with = "serde_bytes")]
    body: Vec<u8>,
}

/// A held connection without its socket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) mode: Mode,
    format: Format,
    /// Address of the client.
    pub(crate) client: String,
    pub(crate) request: String,
    is_relayed: bool,
    is_event_stream: bool,
    pub(crate) subscriptions: Vec<Subscribed>,
    /// It has every publication up to this number.
    pub(crate) number: u64,
    #[serde(with = "serde_bytes")]
    unsent: Vec<u8>,
    #[serde(with = "serde_bytes")]
    pub(crate) keep_alive: Vec<u8>,
    pub(crate) keep_alive_seconds: u32,
    /// For [`Mode::Response`].
    pub(crate) timeout: u32,
    extras: Option<Box<Extras>>,
    /// For [`Mode::WebSocket`].
    pub(crate) session: Option<Box<Session>>,
    received: u32,
    /// Its last bytes are in `unsent`, or were sent.
    is_ending: bool,
}

/// A held connection.
pub(crate) struct Held {
    pub(crate) state: State,
    socket: OwnedFd,
    /// False: the socket accepts nothing until an event says so.
    pub(crate) is_writable: bool,
    /// It is in the list of those that are to be sent something.
    pub(crate) is_listed: bool,
    /// When its client was last sent something, or its end began.
    pub(crate) sent_at: Instant,
    pub(crate) since: Instant,
    /// Of this connection alone.
    pub(crate) serial: u64,
    /// When the application was asked for what the client has.
    asked_at: Instant,
    /// Bytes of [`Held::waiting`] that the holder has accounted for.
    pub(crate) accounted: usize,
    /// It was held by the former holder.
    pub(crate) is_taken_over: bool,
    /// A request for more content was made and is not answered: nothing else is sent meanwhile.
    pub(crate) is_fetching: bool,
    /// It waits until fewer requests of the application are made.
    pub(crate) awaits_call: bool,
    /// The timer of its end is set.
    pub(crate) has_end_timer: bool,
    /// The client has sent more than was read in one go.
    pub(crate) has_more: bool,
    /// The application was last asked for more content when it had published up to this number.
    fetched_to: u64,
    /// The rest of a publication that was sent in part. It precedes `unsent`.
    rest: Option<Rest>,
    frames: Frames,
    /// The client is not read until the application has taken what it has sent.
    is_paused: bool,
    /// Nothing more comes from the client, not even its close frame.
    has_ended_receiving: bool,
    /// The client has violated the protocol, and may read why before the connection ends.
    discards: bool,
    /// What the client has sent before its WebSocket is open.
    pub(crate) early: Vec<u8>,
}

/// What a client has not accepted of a publication. Many clients can have the same.
struct Rest {
    publication: Arc<Publication>,
    encoder: BodyEncoder,
    deflate: Option<Deflate>,
    /// The bytes before this one were sent.
    from: usize,
}

impl Rest {
    fn bytes(&self, mode: Mode) -> &[u8] {
        let all = match (mode, &self.publication.web_socket, &self.publication.stream) {
            (Mode::WebSocket, Some(form), _) => form.bytes(self.deflate),
            (Mode::Stream, _, Some(StreamForm::Content { chunk, .. })) => chunk.framed(self.encoder),
            _ => &[],
        };
        &all[self.from..]
    }
}

/// What a step has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has all.
    Idle,
    /// There is more to be sent now.
    More,
    /// The socket accepts nothing more.
    Blocked,
    /// It lacks publications that the application has.
    Gap,
    /// It is over.
    Ended(Reason),
}

/// What is left to do after an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Nothing,
    /// This subscription is to be left.
    Channel(usize),
    /// The connection is over.
    Over(Reason),
}

/// What was gathered for a client, which others may need as well.
#[derive(Default)]
pub(crate) struct Gathered {
    /// The channel, the number after which, the framing, and the number of the newest publication then. `None`: it is of use
    /// for no other.
    of: Option<(usize, u64, BodyEncoder, u64)>,
    bytes: Vec<u8>,
    /// Where each publication ends, with its number.
    ends: Vec<(usize, u64)>,
    /// The stream ends behind these bytes.
    closes: bool,
    /// What precedes the next publication is missing.
    has_gap: bool,
    /// More is to be gathered after this.
    has_more: bool,
}

impl Gathered {
    fn clear(&mut self) {
        self.of = None;
        self.bytes.clear();
        self.ends.clear();
        self.closes = false;
        self.has_gap = false;
        self.has_more = false;
        if self.bytes.capacity() > 8 * GATHERED {
            self.bytes = Vec::new();
        }
    }
}

impl Held {
    /// A connection that a worker has passed, and the number of the last publication that it has.
    ///
    /// # Errors
    /// What is wrong with its response.
    pub(crate) fn new(hold: Hold, socket: OwnedFd, now: Instant) -> Result<Self, String> {
        let Hold { instructions, .. } = &hold;
        let mode = instructions.mode.unwrap_or(Mode::Stream);
        let mut extras = Extras::default();
        extras.apply(instructions, hold.origin.clone());
        let fields = || hold.fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
        let status =
            instructions.status.map_or_else(|| hold.status.clone(), |status| format!("{status} ").into_bytes());
        let is_event_stream = fields().any(|(name, value)| {
            name.eq_ignore_ascii_case(b"content-type") && value.to_ascii_lowercase().starts_with(b"text/event-stream")
        });
        let mut unsent = Vec::new();
        if mode == Mode::Response {
            let text = |bytes: &[u8]| bytes.iter().map(|byte| char::from(*byte)).collect::<String>();
            extras.held_response = Some(HeldResponse {
                status: text(&status),
                fields: fields().map(|(name, value)| (text(name), text(value))).collect(),
                server: text(&hold.server),
                body: hold.body.clone(),
            });
        } else {
            let mut head = head_of(&status, fields())?;
            let encoder = finish(&mut head, hold.format, None, &hold.server);
            unsent.extend_from_slice(head.bytes());
            encoder.begin(hold.body.len(), &mut unsent);
            unsent.extend_from_slice(&hold.body);
            unsent.extend_from_slice(encoder.behind(hold.body.len()));
        }
        // Without a hold, its content goes on elsewhere, and the channels follow there.
        let subscriptions = if instructions.mode.is_some() { Subscribed::all(instructions) } else { Vec::new() };
        let state = State {
            mode,
            format: hold.format,
            client: hold.client.clone(),
            request: hold.request.clone(),
            is_relayed: hold.is_relayed,
            is_event_stream,
            subscriptions,
            session: None,
            number: 0,
            unsent,
            keep_alive: instructions.keep_alive.as_ref().map_or_else(Vec::new, |keep| keep.content.clone()),
            keep_alive_seconds: instructions.keep_alive.as_ref().map_or(0, |keep| keep.seconds),
            timeout: instructions.timeout,
            extras: (extras != Extras::default()).then(|| Box::new(extras)),
            received: 0,
            is_ending: false,
        };
        let took = Duration::from_micros(hold.took_micros);
        Ok(Self { asked_at: now.checked_sub(took).unwrap_or(now), ..Self::of(state, socket, now) })
    }

    pub(crate) fn of(state: State, socket: OwnedFd, now: Instant) -> Self {
        Self {
            state,
            socket,
            is_writable: true,
            is_listed: false,
            sent_at: now,
            since: now,
            serial: 0,
            asked_at: now,
            accounted: 0,
            is_taken_over: false,
            is_fetching: false,
            awaits_call: false,
            has_end_timer: false,
            has_more: false,
            fetched_to: 0,
            rest: None,
            frames: Frames::default(),
            is_paused: false,
            has_ended_receiving: false,
            discards: false,
            early: Vec::new(),
        }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    fn encoder(&self) -> BodyEncoder {
        let is_chunked = self.state.format == Format::Http11 && self.state.mode == Mode::Stream;
        if is_chunked { BodyEncoder::CHUNKED } else { BodyEncoder::default() }
    }

    fn deflate(&self) -> Option<Deflate> {
        self.state.session.as_ref()?.deflate
    }

    /// A WebSocket that a worker has passed, which the application has not accepted yet.
    pub(crate) fn web_socket(opening: Opening, socket: OwnedFd, id: String, now: Instant) -> Self {
        let state = State {
            mode: Mode::WebSocket,
            format: Format::Http11,
            client: opening.client.clone(),
            request: opening.request.clone(),
            is_relayed: opening.is_relayed,
            is_event_stream: false,
            subscriptions: Vec::new(),
            number: 0,
            unsent: Vec::new(),
            keep_alive: frames::ping(b""),
            keep_alive_seconds: PING_INTERVAL,
            timeout: 0,
            extras: None,
            received: 0,
            is_ending: false,
            session: Some(Box::new(Session::new(opening, id))),
        };
        Self::of(state, socket, now)
    }

    /// The names of its channels.
    pub(crate) fn channels(&self) -> impl Iterator<Item = &str> {
        self.state.subscriptions.iter().map(|subscribed| subscribed.name.as_str())
    }

    /// Bytes that wait for its client here, and not in the logs.
    pub(crate) fn waiting(&self) -> usize {
        let queued = self.state.session.as_ref().map_or(0, |session| session.queued());
        // The kept publications count elsewhere. One that was dropped occupies memory for the clients that still have it.
        let rest = self.rest.as_ref().map_or(0, |rest| rest.publication.size() / Arc::strong_count(&rest.publication));
        self.state.unsent.capacity() + self.frames.size() + self.early.capacity() + queued + rest
    }

    /// Joins its channels under this key. `last_event_id`: the id of the last publication that the client has, as it says.
    pub(crate) fn join(&mut self, key: usize, channels: &mut Channels, last_event_id: Option<&str>) {
        for (subscription, subscribed) in self.state.subscriptions.iter_mut().enumerate() {
            if self.is_taken_over {
                channels.restore(&subscribed.name, subscribed.dropped);
            }
            (subscribed.channel, subscribed.place) = channels.join(&subscribed.name, Member { key, subscription });
        }
        if self.is_taken_over {
            return;
        }
        self.locate(channels, last_event_id);
    }

    /// Finds out up to which publication the client has everything.
    fn locate(&mut self, channels: &Channels, last_event_id: Option<&str>) {
        let subscriptions = self.state.subscriptions.iter();
        // An application that says what the client has knows it better than the client.
        let has_ids = subscriptions.clone().any(|subscribed| subscribed.last_id.is_some());
        if let Some(id) = last_event_id.filter(|id| !id.is_empty() && !has_ids) {
            self.state.number = channels.number_after(subscriptions.map(|subscribed| subscribed.channel), id);
            return;
        }
        let last = channels.last();
        for subscribed in &mut self.state.subscriptions {
            let Some(channel) = channels.get(subscribed.channel) else { continue };
            subscribed.from = match subscribed.last_id.as_deref().filter(|id| !id.is_empty()) {
                Some(id) if channel.has(id) => channels.number_after([subscribed.channel].into_iter(), id),
                // It was dropped, like all before it: what is kept was published while the application made the response.
                Some(_) if channel.began_after(self.asked_at) => channel.dropped,
                // It is newer than what is kept, and on its way.
                Some(_) => last,
                None => last,
            };
        }
        self.state.number = self.state.subscriptions.iter().map(|subscribed| subscribed.from).min().unwrap_or(last);
    }

    /// Its state for the next holder.
    pub(crate) fn portable(&self, channels: &Channels) -> State {
        let mut state = self.state.clone();
        if let Some(rest) = &self.rest {
            state.unsent.splice(..0, rest.bytes(state.mode).iter().copied());
        }
        if let Some(session) = &mut state.session {
            let (pending, read) = if session.is_open { self.frames.pending() } else { (&*self.early, 0) };
            (session.pending, session.pending_read) = (pending.to_vec(), read);
        }
        for subscribed in &mut state.subscriptions {
            subscribed.dropped = channels.get(subscribed.channel).map_or(0, |channel| channel.dropped);
        }
        state
    }

    /// Sends what it lacks, as far as the socket accepts it.
    pub(crate) fn flush(&mut self, channels: &Channels, gathered: &mut Gathered, counts: &mut Counts) -> Outcome {
        if !self.is_writable {
            return Outcome::Blocked;
        }
        if let Some(rest) = &mut self.rest {
            let bytes = rest.bytes(self.state.mode);
            match socket::transmit(self.socket.as_fd(), &[IoSlice::new(bytes)], false) {
                Io::Moved(sent) => {
                    self.sent_at = clock::now();
                    counts.bytes += sent as u64;
                    if sent < bytes.len() {
                        rest.from += sent;
                        self.is_writable = false;
                        return Outcome::Blocked;
                    }
                    self.rest = None;
                }
                Io::WouldBlock => {
                    self.is_writable = false;
                    return Outcome::Blocked;
                }
                Io::End | Io::Broken => return Outcome::Ended(Reason::Left),
            }
        }
        if !self.state.unsent.is_empty() {
            match socket::transmit(self.socket.as_fd(), &[IoSlice::new(&self.state.unsent)], false) {
                Io::Moved(sent) => {
                    self.sent_at = clock::now();
                    counts.bytes += sent as u64;
                    if sent < self.state.unsent.len() {
                        self.state.unsent.drain(..sent);
                        self.is_writable = false;
                        return Outcome::Blocked;
                    }
                    self.state.unsent = Vec::new();
                }
                Io::WouldBlock => {
                    self.is_writable = false;
                    return Outcome::Blocked;
                }
                Io::End | Io::Broken => return Outcome::Ended(Reason::Left),
            }
        }
        if self.state.is_ending {
            // A WebSocket waits for the client's close frame.
            let waits = self.state.session.as_ref().is_some_and(|session| session.is_open && !session.is_over)
                && !self.has_ended_receiving;
            let is_over = !waits && !self.discards;
            if self.discards {
                socket::end_sending(self.socket.as_fd());
            }
            return if is_over { Outcome::Ended(Reason::Complete) } else { Outcome::Blocked };
        }
        if self.is_fetching {
            return Outcome::Idle;
        }
        match self.state.mode {
            Mode::Stream if self.state.subscriptions.is_empty() => self.fetch_or_end(),
            Mode::Stream | Mode::WebSocket => self.flush_stream(channels, gathered, counts),
            Mode::Response => self.answer(channels, counts),
        }
    }

    fn flush_stream(&mut self, channels: &Channels, gathered: &mut Gathered, counts: &mut Counts) -> Outcome {
        if self.gather(channels, gathered).is_none() {
            return Outcome::Ended(Reason::Behind);
        }
        let newest = channels.last();
        if gathered.has_gap && gathered.bytes.is_empty() {
            return Outcome::Gap;
        }
        if gathered.ends.is_empty() && !gathered.closes {
            self.state.number = newest;
            return Outcome::Idle;
        }
        let sent = if gathered.bytes.is_empty() {
            0
        } else {
            match socket::transmit(self.socket.as_fd(), &[IoSlice::new(&gathered.bytes)], false) {
                Io::Moved(sent) => {
                    self.sent_at = clock::now();
                    sent
                }
                Io::WouldBlock => {
                    self.is_writable = false;
                    return Outcome::Blocked;
                }
                Io::End | Io::Broken => return Outcome::Ended(Reason::Left),
            }
        };
        counts.bytes += sent as u64;
        // The publications that were sent, the last of them maybe in part.
        let complete = gathered.ends.partition_point(|(end, _)| *end <= sent);
        let begun =
            complete + usize::from(gathered.ends.get(complete.wrapping_sub(1)).map_or(0, |(end, _)| *end) < sent);
        if sent > 0 {
            counts.delivered += begun as u64;
        }
        if let Some((end, number)) = begun.checked_sub(1).and_then(|last| gathered.ends.get(last)) {
            self.state.number = *number;
            self.keep_rest(channels, *number, &gathered.bytes[sent..*end]);
        }
        self.note_ids(channels, gathered, begun);
        if begun < gathered.ends.len() || self.rest.is_some() || !self.state.unsent.is_empty() {
            self.is_writable = false;
            return Outcome::Blocked;
        }
        if gathered.closes {
            return self.end();
        }
        if gathered.has_more {
            return Outcome::More;
        }
        self.state.number = newest;
        Outcome::Idle
    }

    /// Keeps the rest of the publication with this number, without a copy if it is long.
    fn keep_rest(&mut self, channels: &Channels, number: u64, bytes: &[u8]) {
        if bytes.len() >= SHARED {
            let logs = self.state.subscriptions.iter().filter_map(|subscribed| channels.get(subscribed.channel));
            let entry = logs
                .filter_map(|channel| channel.after(number - 1)?.next())
                .find(|entry| entry.number == number)
                .map(|entry| &entry.publication);
            self.rest = entry
                .and_then(|publication| self.rest_of(publication, bytes.len()))
                .filter(|rest| rest.bytes(self.state.mode) == bytes);
        }
        if self.rest.is_none() {
            self.state.unsent.extend_from_slice(bytes);
        }
    }

    /// The rest of a publication with this many bytes. `None`: the client is not sent the same bytes as others.
    fn rest_of(&self, publication: &Arc<Publication>, length: usize) -> Option<Rest> {
        let mode = self.state.mode;
        let is_shared = match mode {
            Mode::WebSocket => true,
            Mode::Stream => matches!(publication.stream, Some(StreamForm::Content { builds_id: false, .. })),
            Mode::Response => false,
        };
        let mut rest =
            Rest { publication: publication.clone(), encoder: self.encoder(), deflate: self.deflate(), from: 0 };
        rest.from = rest.bytes(mode).len().checked_sub(length).filter(|_| is_shared)?;
        Some(rest)
    }

    /// Gathers what comes next for the client. `None`: some of it was dropped.
    fn gather(&self, channels: &Channels, gathered: &mut Gathered) -> Option<()> {
        let encoder = self.encoder();
        let newest = channels.last();
        if let [only] = self.state.subscriptions.as_slice() {
            let is_plain = only.filters.are_none()
                && only.last_id.is_none()
                && only.from <= self.state.number
                && self.state.extras.is_none()
                && self.state.mode == Mode::Stream;
            let of = is_plain.then_some((only.channel, self.state.number, encoder, newest));
            if of.is_some() && gathered.of == of {
                return Some(());
            }
            gathered.clear();
            gathered.of = of;
            for entry in channels.get(only.channel)?.after(self.state.number.max(only.from))? {
                if !self.gather_one(0, &entry.publication, entry.number, encoder, gathered) {
                    break;
                }
            }
            return Some(());
        }
        gathered.clear();
        let mut logs = Vec::with_capacity(self.state.subscriptions.len());
        for subscribed in &self.state.subscriptions {
            logs.push(channels.get(subscribed.channel)?.after(self.state.number.max(subscribed.from))?.peekable());
        }
        // A connection that has a channel twice gets what is published there once.
        let mut last = 0;
        // They are merged as far as needed: a client may be behind by very many.
        while let Some((_, at)) =
            logs.iter_mut().enumerate().filter_map(|(at, log)| Some((log.peek()?.number, at))).min()
        {
            let Some(entry) = logs[at].next() else { break };
            if entry.number == last {
                continue;
            }
            last = entry.number;
            if !self.gather_one(at, &entry.publication, entry.number, encoder, gathered) {
                break;
            }
        }
        Some(())
    }

    /// Appends a publication if it is for this client. False: that is enough for one write.
    fn gather_one(
        &self,
        at: usize,
        publication: &Publication,
        number: u64,
        encoder: BodyEncoder,
        gathered: &mut Gathered,
    ) -> bool {
        let subscribed = &self.state.subscriptions[at];
        if self.is_missing_before(subscribed, publication) {
            // What is out of order although the application was asked since, the client has from the application.
            gathered.has_gap = number > self.fetched_to;
            return !gathered.has_gap;
        }
        if self.is_left_out(subscribed, publication) {
            if !self.tracks_ids() {
                return true;
            }
            // The next publication follows this one.
            gathered.ends.push((gathered.bytes.len(), number));
            gathered.has_more = true;
            return false;
        }
        if self.state.mode == Mode::WebSocket {
            let Some(form) = &publication.web_socket else { return true };
            gathered.bytes.extend_from_slice(form.bytes(self.deflate()));
            gathered.ends.push((gathered.bytes.len(), number));
            gathered.closes = matches!(form, WebSocketForm::Close(_));
            gathered.has_more = !gathered.closes && gathered.bytes.len() >= GATHERED;
            return !gathered.closes && !gathered.has_more;
        }
        match &publication.stream {
            None => return true,
            Some(StreamForm::Close) => {
                gathered.closes = true;
                return false;
            }
            Some(StreamForm::Content { chunk, builds_id: false }) => {
                gathered.bytes.extend_from_slice(chunk.framed(encoder));
            }
            Some(StreamForm::Content { chunk, builds_id: true }) => {
                let id = self.built_id(at, publication);
                let data = with_id(chunk.data(), id.as_bytes());
                encoder.begin(data.len(), &mut gathered.bytes);
                gathered.bytes.extend_from_slice(&data);
                gathered.bytes.extend_from_slice(encoder.behind(data.len()));
            }
        }
        gathered.ends.push((gathered.bytes.len(), number));
        // Ids of several channels depend on what was sent before: one at a time.
        gathered.has_more = gathered.bytes.len() >= GATHERED || self.tracks_ids();
        !gathered.has_more
    }

    /// The client lacks what precedes a publication, and the application can tell what that is.
    fn is_missing_before(&self, subscribed: &Subscribed, publication: &Publication) -> bool {
        let fetches = self.state.extras.as_ref().is_some_and(|extras| extras.next.is_some());
        fetches
            && publication.id != subscribed.last_id
            && publication
                .prev_id
                .as_ref()
                .zip(subscribed.last_id.as_ref())
                .is_some_and(|(before, last)| !last.is_empty() && before != last)
    }

    fn tracks_ids(&self) -> bool {
        self.state.subscriptions.iter().any(|subscribed| subscribed.last_id.is_some())
    }

    fn is_left_out(&self, subscribed: &Subscribed, publication: &Publication) -> bool {
        let extras = self.state.extras.as_deref();
        let session = self.state.session.as_deref();
        let user = extras.and_then(|extras| extras.user.as_deref()).or(session.and_then(Session::user));
        if subscribed.filters.skip_self
            && publication.sender.is_some()
            && publication.sender.as_deref() == session.map(Session::id)
        {
            return true;
        }
        if subscribed.filters.skip_users
            && let (Some(skipped), Some(user)) = (&publication.skip_users, user)
            && skipped.split(',').any(|each| each.trim() == user)
        {
            return true;
        }
        if subscribed.filters.require_subscription
            && let Some(required) = &publication.requires
            && !self.channels().any(|channel| channel == required)
        {
            return true;
        }
        // The client had it before it was published here: from the application, which has read its own storage.
        publication.id.is_some() && publication.id == subscribed.last_id
    }

    /// The id that the client is to come back with.
    fn built_id(&self, at: usize, publication: &Publication) -> String {
        let own = publication.id.as_deref().unwrap_or_default();
        let format = self.state.extras.as_deref().and_then(|extras| extras.id_format.as_deref());
        let Some(format) = format.filter(|_| self.state.subscriptions[at].filters.build_id) else {
            return own.to_owned();
        };
        let mut built = String::with_capacity(format.len());
        let mut rest = format;
        while let Some((before, behind)) = rest.split_once('%') {
            built.push_str(before);
            if let Some(behind) = behind.strip_prefix('%') {
                built.push('%');
                rest = behind;
            } else if let Some((name, behind)) = behind.strip_prefix('(').and_then(|inner| inner.split_once(")s")) {
                let of = self.state.subscriptions.iter().enumerate().find(|(_, subscribed)| subscribed.name == name);
                match of {
                    Some((found, _)) if found == at => built.push_str(own),
                    Some((_, subscribed)) => built.push_str(subscribed.last_id.as_deref().unwrap_or_default()),
                    None => {}
                }
                rest = behind;
            } else {
                built.push('%');
                rest = behind;
            }
        }
        built + rest
    }

    /// Notes the ids of what was sent.
    fn note_ids(&mut self, channels: &Channels, gathered: &Gathered, begun: usize) {
        if !self.tracks_ids() {
            return;
        }
        for (_, number) in &gathered.ends[..begun] {
            for subscribed in &mut self.state.subscriptions {
                let Some(channel) = channels.get(subscribed.channel) else { continue };
                let entry = channel.after(number - 1).and_then(|mut entries| entries.next());
                if let Some(entry) = entry.filter(|entry| entry.number == *number)
                    && entry.publication.id.is_some()
                    && subscribed.last_id.is_some()
                {
                    subscribed.last_id.clone_from(&entry.publication.id);
                }
            }
        }
    }

    /// Answers a held response, if something was published for it.
    fn answer(&mut self, channels: &Channels, counts: &mut Counts) -> Outcome {
        let mut first: Option<(u64, Arc<Publication>)> = None;
        for subscribed in &self.state.subscriptions {
            // What was dropped before the subscription is not missed.
            let number = self.state.number.max(subscribed.from);
            let Some(mut entries) = channels.get(subscribed.channel).and_then(|channel| channel.after(number)) else {
                return Outcome::Ended(Reason::Behind);
            };
            let found = entries.find(|entry| {
                entry.publication.response.is_some() && !self.is_left_out(subscribed, &entry.publication)
            });
            if let Some(entry) = found.filter(|entry| first.as_ref().is_none_or(|(number, _)| entry.number < *number)) {
                first = Some((entry.number, entry.publication.clone()));
            }
        }
        let Some((_, publication)) = first else {
            self.state.number = channels.last();
            return Outcome::Idle;
        };
        counts.delivered += 1;
        self.respond(publication.response.as_ref())
    }

    /// Sends the held response, or this one in its place.
    pub(crate) fn respond(&mut self, form: Option<&ResponseForm>) -> Outcome {
        let held = self.state.extras.as_mut().and_then(|extras| extras.held_response.take()).unwrap_or_default();
        let latin1 = |text: &str| text.chars().map(|char| char as u8).collect::<Vec<u8>>();
        let (status, fields, body) = match form {
            Some(form) => {
                let status =
                    if form.status.is_empty() { latin1(&held.status) } else { form.status.clone().into_bytes() };
                let fields: Vec<_> = form
                    .fields
                    .iter()
                    .map(|(name, value)| (name.clone().into_bytes(), value.clone().into_bytes()))
                    .collect();
                (status, fields, form.body.clone())
            }
            None => (
                latin1(&held.status),
                held.fields.iter().map(|(name, value)| (latin1(name), latin1(value))).collect(),
                held.body,
            ),
        };
        let fields = fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
        let Ok(mut head) = head_of(&status, fields) else { return Outcome::Ended(Reason::Complete) };
        finish(&mut head, self.state.format, Some(body.len() as u64), &latin1(&held.server));
        self.state.unsent.extend_from_slice(head.bytes());
        if head.status_code() != 304 && head.status_code() != 204 {
            self.state.unsent.extend_from_slice(&body);
        }
        self.begin_end()
    }

    /// Its last bytes are in `unsent`.
    fn begin_end(&mut self) -> Outcome {
        self.state.is_ending = true;
        self.sent_at = clock::now();
        Outcome::More
    }

    /// Ends the stream, after what was sent.
    fn end(&mut self) -> Outcome {
        // What ends a WebSocket is a close frame, which the caller has appended.
        self.state.unsent.extend_from_slice(self.encoder().end());
        self.begin_end()
    }

    /// The server stops, or the process that encrypts: ends the response. Event sources get a time to wait before they
    /// reconnect, so that they do not all come at once. `spread`: a number that differs from client to client.
    pub(crate) fn stop(&mut self, spread: u64) -> Outcome {
        if self.state.is_ending {
            return Outcome::More;
        }
        if self.state.mode == Mode::Response {
            return self.respond(None);
        }
        if let Some(session) = &self.state.session {
            if !session.is_open {
                self.refuse();
                return Outcome::More;
            }
            // 1012: the server restarts.
            self.append(&frames::close_frame(Some(1012), ""));
            return self.end();
        }
        if self.state.is_event_stream {
            let retry = format!("retry: {}\n\n", RETRY.0 + spread % (RETRY.1 - RETRY.0));
            self.append(retry.as_bytes());
        }
        self.end()
    }

    /// Appends bytes to the stream, outside the channels.
    fn append(&mut self, data: &[u8]) {
        let encoder = self.encoder();
        encoder.begin(data.len(), &mut self.state.unsent);
        self.state.unsent.extend_from_slice(data);
        self.state.unsent.extend_from_slice(encoder.behind(data.len()));
    }

    /// Its time has come: keeps a stream alive, or sends a held response.
    pub(crate) fn expire(&mut self, now: Instant) -> Outcome {
        match self.state.mode {
            Mode::Response if !self.state.is_ending => self.respond(None),
            Mode::Stream | Mode::WebSocket
                if !self.state.is_ending
                    && self.state.session.as_ref().is_none_or(|session| session.is_open)
                    && self.keeps_alive_at().is_some_and(|at| at <= now)
                    && self.state.unsent.is_empty()
                    && self.is_writable =>
            {
                let content = std::mem::take(&mut self.state.keep_alive);
                self.append(&content);
                self.state.keep_alive = content;
                Outcome::More
            }
            Mode::Stream | Mode::Response | Mode::WebSocket => Outcome::Idle,
        }
    }

    /// When it has been sent nothing for so long that it is kept alive.
    fn keeps_alive_at(&self) -> Option<Instant> {
        (self.state.keep_alive_seconds > 0)
            .then(|| self.sent_at + Duration::from_secs(u64::from(self.state.keep_alive_seconds)))
    }

    /// When [`Held::expire`] is to be called.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        match self.state.mode {
            Mode::Response => Some(self.since + Duration::from_secs(u64::from(self.state.timeout))),
            Mode::Stream | Mode::WebSocket => self.keeps_alive_at(),
        }
    }

    /// Frames have arrived that were not read.
    pub(crate) fn has_unread(&self) -> bool {
        self.frames.has_unread
    }

    /// Reads what the client has sent, and discards it unless it is for the application. `Some`: the connection is over.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Option<Reason> {
        self.has_more = false;
        self.frames.begin_turn();
        if self.frames.has_unread
            && !self.is_paused
            && let Some(reason) = self.receive_frames(&[])
        {
            return Some(reason);
        }
        for _ in 0..AT_ONCE {
            if self.is_paused {
                return None;
            }
            if self.frames.has_unread {
                break;
            }
            match socket::receive(self.socket.as_fd(), buffer) {
                Io::Moved(count) if self.state.session.is_some() => {
                    if let Some(reason) = self.receive_frames(&buffer[..count]) {
                        return Some(reason);
                    }
                }
                Io::Moved(count) => {
                    self.state.received = self.state.received.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
                    if self.state.received > MAX_RECEIVED {
                        return Some(Reason::Sent);
                    }
                }
                Io::WouldBlock => return None,
                Io::End if self.state.is_relayed => {
                    self.has_ended_receiving = true;
                    // The process that encrypts still sends the rest. If it has ended, that cannot be written.
                    return (!self.state.is_ending).then_some(Reason::Stopped);
                }
                Io::End | Io::Broken => return Some(Reason::Left),
            }
        }
        self.has_more = true;
        None
    }

    /// Reads frames. `Some`: the client has closed the WebSocket, or must be disconnected.
    pub(crate) fn receive_frames(&mut self, bytes: &[u8]) -> Option<Reason> {
        let session = self.state.session.as_deref_mut()?;
        if self.discards {
            self.state.received = self.state.received.saturating_add(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
            return (self.state.received > MAX_DISCARDED).then_some(Reason::Left);
        }
        if !session.is_open {
            // Before the WebSocket is open, a client may send nothing (RFC 6455 section 4.1); few bytes do no harm.
            self.early.extend_from_slice(bytes);
            return (self.early.len() > MAX_EARLY).then_some(Reason::Sent);
        }
        if self.state.is_ending {
            // Nothing may follow the close frame that was sent. That of the client is waited for.
            let ending = self.frames.receive(bytes, &mut Vec::new(), |_| true);
            return ending.map(|_| Reason::Complete);
        }
        let ending = self.frames.receive(bytes, &mut self.state.unsent, |event| {
            session.push(event);
            !session.is_full()
        });
        if self.state.unsent.len() > MAX_ANSWERS {
            // A client that sends pings and does not read the pongs.
            return Some(Reason::Sent);
        }
        self.is_paused = session.is_full();
        match ending {
            None => None,
            Some(Ending::Closed(content)) => {
                session.push(Event::with("CLOSE", content));
                session.is_over = true;
                self.state.is_ending = true;
                None
            }
            Some(Ending::Failed) => {
                session.push(Event::of("DISCONNECT"));
                session.is_over = true;
                self.state.is_ending = true;
                self.discards = true;
                self.is_paused = false;
                None
            }
        }
    }

    /// The application has taken what the client has sent.
    pub(crate) fn resume(&mut self) {
        self.is_paused = false;
    }

    /// True when the application is to be told what the client has sent.
    pub(crate) fn calls(&self) -> bool {
        let session = self.state.session.as_ref();
        session.is_some_and(|session| {
            session.has_queued() && !session.is_calling && (session.is_over || !self.state.is_ending)
        })
    }

    /// Does what an answer of the application asks for.
    pub(crate) fn act(&mut self, key: usize, action: Action, channels: &mut Channels) -> Left {
        match action {
            // Its response has been sent already, since the server stops.
            Action::Accept(_) | Action::Reject(_) | Action::Fail(_) if self.state.is_ending => {}
            Action::Fail(_) if self.state.session.as_ref().is_some_and(|session| session.is_open) => {
                self.append(&frames::close_frame(Some(1011), ""));
                self.end();
            }
            Action::Fail(_) => return self.act(key, Action::Reject(session::bad_gateway()), channels),
            Action::Accept(head) => {
                self.state.unsent.extend_from_slice(&head);
                self.frames.inflates = self.deflate().is_some();
                let early = std::mem::take(&mut self.early);
                if let Some(reason) = self.receive_frames(&early) {
                    return Left::Over(reason);
                }
            }
            Action::Reject(answer) => {
                let form = ResponseForm { status: answer.status, fields: answer.fields, body: answer.body };
                self.respond(Some(&form));
            }
            Action::Send(frame) if !self.state.is_ending => self.append(&frame),
            Action::Send(_) => {}
            Action::Subscribe(subscription) => {
                if may_subscribe(self.state.subscriptions.len())
                    && !self.channels().any(|channel| channel == subscription.channel)
                {
                    let mut added = Subscribed::new(&subscription, false, channels.last());
                    let member = Member { key, subscription: self.state.subscriptions.len() };
                    (added.channel, added.place) = channels.join(&added.name, member);
                    self.state.subscriptions.push(added);
                }
            }
            Action::Unsubscribe(channel) => {
                if let Some(at) = self.state.subscriptions.iter().position(|known| known.name == channel) {
                    return Left::Channel(at);
                }
            }
            Action::Close(frame) if !self.state.is_ending => {
                self.append(&frame);
                self.end();
            }
            Action::Close(_) => {}
        }
        Left::Nothing
    }

    /// Goes on with the frames of the former holder.
    pub(crate) fn take_pending(&mut self) {
        let Some(session) = &mut self.state.session else { return };
        let pending = std::mem::take(&mut session.pending);
        if session.is_open {
            self.frames.inflates = session.deflate.is_some();
            self.frames.restore(&pending, session.pending_read);
        } else {
            self.early = pending;
        }
    }

    // More content

    /// A stream without channels: its content is fetched until there is none.
    fn fetch_or_end(&mut self) -> Outcome {
        let has_next = self.state.extras.as_ref().is_some_and(|extras| extras.next.is_some());
        if has_next { Outcome::Gap } else { self.end() }
    }

    /// The request for more content. `None`: there is none, or its fields are too large.
    /// `newest`: the number of the newest publication.
    pub(crate) fn fetch(&mut self, newest: u64) -> Option<Vec<u8>> {
        let (target, origin) = self.state.extras.as_ref()?.next.as_ref()?;
        let ids = self.state.subscriptions.iter().filter_map(|subscribed| {
            let id = subscribed.last_id.as_deref().filter(|id| !id.is_empty())?;
            Some(format!("{}; last-id={id}", subscribed.name))
        });
        let last = ids.collect::<Vec<_>>().join(", ");
        let fields: &[(&str, &str)] = if last.is_empty() { &[] } else { &[("Grip-Last", &last)] };
        let packet = call::packet("GET", origin, &self.state.client, target.as_bytes(), fields, b"")?;
        self.asked_at = clock::now();
        self.is_fetching = true;
        self.fetched_to = newest;
        Some(packet)
    }

    /// The answer to a request for more content will not come.
    pub(crate) fn abandon_fetch(&mut self) {
        self.is_fetching = false;
        self.fetched_to = 0;
    }

    /// More content has arrived, with new instructions; the channels were left. `Err`: it is to be fetched again.
    pub(crate) fn fetched(&mut self, key: usize, answer: Option<Answer>, channels: &mut Channels) -> Result<(), ()> {
        self.is_fetching = false;
        let extras = self.state.extras.get_or_insert_default();
        let Some(answer) = answer.filter(|answer| answer.code() == 200) else {
            extras.failures += 1;
            return Err(());
        };
        let fields = answer.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let Ok(instructions) = Instructions::parse(fields) else {
            extras.failures += 1;
            return Err(());
        };
        let origin = extras.next.take().map(|(_, origin)| origin);
        extras.apply(&instructions, origin);
        self.append(&answer.body);
        if instructions.mode == Some(Mode::Stream) {
            self.state.subscriptions = Subscribed::all(&instructions);
        }
        for (subscription, subscribed) in self.state.subscriptions.iter_mut().enumerate() {
            (subscribed.channel, subscribed.place) = channels.join(&subscribed.name, Member { key, subscription });
        }
        self.locate(channels, None);
        Ok(())
    }

    /// How often more content could not be fetched, in a row.
    pub(crate) fn failures(&self) -> u32 {
        self.state.extras.as_ref().map_or(0, |extras| extras.failures)
    }

    /// Reads what has arrived and is of no use.
    pub(crate) fn drain(&self) -> Io {
        socket::receive(self.socket.as_fd(), &mut [0; 16 * 1024])
    }

    /// Answers that the server cannot hold the connection.
    pub(crate) fn refuse(&mut self) {
        let form = ResponseForm {
            status: String::from("503 Service Unavailable"),
            fields: vec![
                (String::from("Content-Type"), String::from("text/plain")),
                (String::from("Retry-After"), String::from("10")),
            ],
            body: b"The server cannot hold this connection.\n".to_vec(),
        };
        self.state.unsent.clear();
        self.state.subscriptions.clear();
        self.respond(Some(&form));
    }

    /// A publication was sent in part.
    pub(crate) fn has_rest(&self) -> bool {
        self.rest.is_some()
    }

    /// A request to the application was made and is not answered.
    pub(crate) fn is_asking(&self) -> bool {
        self.is_fetching || self.state.session.as_ref().is_some_and(|session| session.is_calling)
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.state.is_ending
    }
}

/// Counts what was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) delivered: u64,
    pub(crate) bytes: u64,
}

/// A head with these fields, but for those that the framing determines.
fn head_of<'a>(status: &[u8], fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Result<ResponseHead, String> {
    let mut head = ResponseHead::default();
    head.status(status).map_err(|fault| fault.to_string())?;
    for (name, value) in fields {
        if !name.eq_ignore_ascii_case(b"content-length") {
            head.field(name, value).map_err(|fault| fault.to_string())?;
        }
    }
    Ok(head)
}

fn finish(head: &mut ResponseHead, format: Format, total: Option<u64>, server: &[u8]) -> BodyEncoder {
    let facts = RequestFacts { format: format.into(), is_head: false, keep_alive: false };
    clock::with_date(clock::now(), |date| head.finish(facts, total, OwnFields { date, server, id: None })).encoder
}

/// `%I` becomes the id, and `%%` becomes `%`.
fn with_id(data: &[u8], id: &[u8]) -> Vec<u8> {
    let mut result = Vec::with_capacity(data.len() + id.len());
    let mut bytes = data.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match (byte, bytes.peek()) {
            (b'%', Some(b'I')) => {
                bytes.next();
                result.extend_from_slice(id);
            }
            (b'%', Some(b'%')) => {
                bytes.next();
                result.push(b'%');
            }
            _ => result.push(byte),
        }
    }
    result
}

#[cfg(test)]
mod tests;
