//! The record of a request: when it reached each stage, how its response was sent, how it ended. The access log, the
//! counters and `Server-Timing` are made from it.
//!
//! Three tables say what others see of it: [`FIELDS`], [`PHASES`] and [`SIZES`]. The atoms of the access log and its JSON,
//! `tailrace.on_delivery`, histograms, `/status.json`, `/metrics`, spans, the live page and the tables in docs/ follow
//! from them. To add a field: declare it in [`Record`], measure it, and add a row to each table that is to have it.
//! `make docs` writes the documentation. Links in a help are relative to docs/reference.
//!
//! Belongs to the exchange, and so to the runner of the request.

use std::fmt;
use std::time::{Duration, Instant};

use tailrace_http::coding::Coding;
use tailrace_os::clock;
use tailrace_os::clock::nanos;
use tailrace_os::usage;
use tailrace_os::usage::{Mark, Usage};

/// How the body of a response was sent. If it was sent in several ways, the record has the greatest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// Nothing was sent.
    #[default]
    None,
    /// Head and whole body in one write.
    OneWrite,
    /// Each block at once, by the thread that made it.
    Direct,
    /// Blocks were coalesced in a buffer, which the I/O side sent.
    Coalesced,
    /// `sendfile`.
    Sendfile,
    /// A disk thread compressed it.
    Compressed,
    /// The client was slow: what it had not accepted was written to a file, and sent from there.
    Spilled,
    /// It was passed to the process that holds connections.
    Held,
}

impl Path {
    /// True when the blocks were sent one after the other.
    pub fn is_streamed(self) -> bool {
        matches!(self, Self::Direct | Self::Coalesced | Self::Compressed | Self::Spilled)
    }

    /// Its name in logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::OneWrite => "one-write",
            Self::Direct => "direct",
            Self::Coalesced => "coalesced",
            Self::Sendfile => "sendfile",
            Self::Compressed => "compressed",
            Self::Spilled => "spilled",
            Self::Held => "held",
        }
    }
}

/// What the compression of a response has taken and gained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compressed {
    /// The coding.
    pub coding: Coding,
    /// Body bytes that the application gave.
    pub plain_bytes: u64,
    /// Body bytes that were made of them.
    pub bytes: u64,
    /// Time that it took.
    pub time: Duration,
}

/// How a response ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// Not yet.
    #[default]
    Open,
    /// All of it was given to the kernel.
    Complete,
    /// The client disconnected, or received nothing for too long.
    ClientDisconnected,
    /// The application failed after the head was sent, or gave less than its Content-Length.
    Broken,
    /// The deadline of the request expired: the client was answered 504, or the response that had begun was broken off.
    TimedOut,
    /// The server stopped before the response was complete.
    Cut,
    /// The client disconnected, and the application was interrupted for that reason.
    Cancelled,
}

/// The ways of sending, in their order.
pub(crate) const PATHS: [Path; 8] = [
    Path::None,
    Path::OneWrite,
    Path::Direct,
    Path::Coalesced,
    Path::Sendfile,
    Path::Compressed,
    Path::Spilled,
    Path::Held,
];
/// The endings of responses that are over.
pub(crate) const ENDINGS: [Ending; 6] =
    [Ending::Complete, Ending::ClientDisconnected, Ending::Broken, Ending::TimedOut, Ending::Cut, Ending::Cancelled];

/// What happened to one request.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// When the request was complete and was queued.
    pub queued: Instant,
    /// When an application thread took the request from the queue.
    pub started: Option<Instant>,
    /// When the application gave the first non-empty block.
    pub first_block: Option<Instant>,
    /// How long a trusted proxy had the request before its head was complete here. `None`: no proxy states that.
    pub proxied: Option<Duration>,
    /// When the application had finished with it.
    pub finished: Option<Instant>,
    /// When the last byte was given to the kernel.
    pub drained: Option<Instant>,
    /// The status that was sent; 0 before.
    pub status: u16,
    /// Body bytes that were sent or queued, without chunk headers. Those of a compressed response are the application's
    /// until all of it has been compressed.
    pub body_bytes: u64,
    /// What its compression has taken and gained, once it is over. `None`: it was not compressed.
    pub compressed: Option<Compressed>,
    /// Non-empty blocks that the application gave.
    pub blocks: u64,
    /// Write system calls.
    pub writes: u32,
    /// How the body was sent.
    pub path: Path,
    /// How long the application's thread waited for the client.
    pub waited: Duration,
    /// What its thread had used when it took the request.
    pub mark: Option<Mark>,
    /// What the request has used, once the application had finished with it. `None`: it was not measured.
    pub usage: Option<Usage>,
    /// For how long the complete response was held while further requests waited; zero: it was not.
    pub held: Duration,
    /// Whether it was a stream of server-sent events. Set once it is over, and only if its blocks were sent one by one.
    pub is_event_stream: bool,
    /// The client had disconnected before the response was sent. The response may still be complete.
    pub has_left: bool,
    /// How it ended.
    pub ending: Ending,
}

/// A value of the record, as logs and Python see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// A status code; 0: none was sent.
    Status(u16),
    /// A word, if there is one.
    Word(Option<&'static str>),
    /// A number, if it is known.
    Number(Option<u64>),
    /// A time, if it is known; in milliseconds for those who read it.
    Time(Option<Duration>),
}

/// A field of the record, as logs and Python see it.
pub struct RecordField {
    /// Its name; that of a time ends with `_ms`.
    pub name: &'static str,
    /// What it means, in Markdown.
    pub help: &'static str,
    /// Its value.
    pub value: fn(&Record) -> Value,
}

/// The fields: atoms of the access log, and keys of the delivery record.
pub const FIELDS: &[RecordField] = &[
    RecordField { name: "status", help: "status code", value: |record| Value::Status(record.status) },
    RecordField {
        name: "ending",
        help: "`complete`, `client-disconnected`, `broken`, `timed-out` (past its deadline), `cut` (when the server \
               stopped) or `cancelled` (`--cancel-on-disconnect`)",
        value: |record| Value::Word(Some(record.ending.name())),
    },
    RecordField {
        name: "delivery",
        help: "how the body was sent: `one-write`, `direct`, `coalesced`, `sendfile`, `compressed`, `spilled`, `held`, `none`",
        value: |record| Value::Word(Some(record.path.name())),
    },
    RecordField { name: "bytes", help: "body bytes sent", value: |record| Value::Number(Some(record.body_bytes)) },
    RecordField {
        name: "coding",
        help: "coding by which the server [compressed](../guides/compression.md) the body: `gzip`, `zstd` or `br`",
        value: |record| Value::Word(record.compressed.map(|compressed| compressed.coding.name())),
    },
    RecordField {
        name: "plain_bytes",
        help: "body bytes before the server compressed them",
        value: |record| Value::Number(record.compressed.map(|compressed| compressed.plain_bytes)),
    },
    RecordField {
        name: "compress_ms",
        help: "CPU time that the compression took",
        value: |record| Value::Time(record.compressed.map(|compressed| compressed.time)),
    },
    RecordField {
        name: "blocks",
        help: "number of non-empty blocks that the application returned",
        value: |record| Value::Number(Some(record.blocks)),
    },
    RecordField {
        name: "writes",
        help: "number of system calls that wrote the response",
        value: |record| Value::Number(Some(record.writes.into())),
    },
    RecordField {
        name: "duration_ms",
        help: "time from the complete request to the end of the response",
        value: |record| Value::Time(Some(record.lasted())),
    },
    RecordField {
        name: "proxied_ms",
        help: "time that a trusted proxy had the request before, [by its \
               `X-Request-Start`](../guides/request-ids.md#time-in-the-proxy)",
        value: |record| Value::Time(record.proxied),
    },
    RecordField {
        name: "queued_ms",
        help: "time that the complete request waited for a thread or greenlet",
        value: |record| Value::Time(between(Some(record.queued), record.started)),
    },
    RecordField {
        name: "app_ms",
        help: "time from the application call to the end of `close()`",
        value: |record| Value::Time(between(record.started, record.finished)),
    },
    RecordField {
        name: "first_block_ms",
        help: "time from the application call to its first non-empty block",
        value: |record| Value::Time(between(record.started, record.first_block)),
    },
    RecordField {
        name: "drained_ms",
        help: "time from the application call until the kernel had the last byte",
        value: |record| Value::Time(between(record.started, record.drained)),
    },
    RecordField {
        name: "waited_ms",
        help: "time that the application thread waited for the client to accept queued bytes",
        value: |record| Value::Time(Some(record.waited)),
    },
    RecordField {
        name: "held_ms",
        help: "time that the complete response was held to be sent with others (at most 1 ms)",
        value: |record| Value::Time(Some(record.held)),
    },
    RecordField {
        name: "cpu_ms",
        help: "CPU time of the application until its response was complete",
        value: |record| Value::Time(record.usage.map(|usage| usage.cpu)),
    },
    RecordField {
        name: "interpreter_ms",
        help: "time that the server waited for the GIL on behalf of the request",
        value: |record| Value::Time(record.usage.map(|usage| usage.interpreter)),
    },
    RecordField {
        name: "gc_ms",
        help: "part of `cpu_ms` during which the garbage collector ran",
        value: |record| Value::Time(record.usage.map(|usage| usage.gc)),
    },
];

impl RecordField {
    /// The Python type of its value, unless that is None.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match (self.value)(&Record::new(clock::now())) {
            Value::Status(_) | Value::Number(_) => "int",
            Value::Word(_) => "str",
            Value::Time(_) => "float",
        }
    }
}

/// A size of a response, which is added up.
pub struct Size {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: fn(&Record) -> u64,
}

/// The sizes.
pub const SIZES: [Size; 3] = [
    Size { name: "body_bytes", value: |record| record.body_bytes },
    Size { name: "blocks", value: |record| record.blocks },
    Size { name: "writes", value: |record| record.writes.into() },
];

/// A phase of a request that the application has had: a time of which there is a histogram.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    /// Its name.
    pub name: &'static str,
    /// The name with `_ns`.
    pub name_ns: &'static str,
    /// What it means, in Markdown.
    pub help: &'static str,
    /// Only requests for which it is not 0 are counted in the histogram.
    pub is_rare: bool,
    /// It is a part of the application's time: it is added up by endpoint, and an attribute of the application's span.
    pub is_part: bool,
}

/// Makes [`PHASES`] and [`Times`] from rows: name, what is true of it, help, and its value.
macro_rules! phases {
    ($($name:ident [$($flag:ident)*] $help:literal $value:expr;)*) => {
        /// The phases, in the order of a request.
        pub const PHASES: [Phase; [$(stringify!($name)),*].len()] = [$(Phase {
            $($flag: true,)*
            ..Phase::of(stringify!($name), concat!(stringify!($name), "_ns"), $help)
        }),*];

        /// The times of a response by phase, in nanoseconds.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Times {
            $(#[doc = $help] pub $name: u64,)*
        }

        impl Times {
            /// Those of a record.
            pub fn of(record: &Record) -> Self {
                $(let $name: fn(&Record) -> Duration = $value;)*
                Self { $($name: nanos($name(record))),* }
            }

            /// All of them, in the order of [`PHASES`].
            pub fn all(&self) -> [u64; PHASES.len()] {
                [$(self.$name),*]
            }
        }
    };
}

phases! {
    proxied [is_rare]
        "from the time in a trusted proxy's `X-Request-Start` until the request head was complete; only with this field"
        |record| record.proxied.unwrap_or_default();
    queued []
        "from the complete request until a thread or greenlet started on it"
        Record::queued_for;
    application []
        "from then until the application returned its first block"
        |record| {
            // A responder that completes the response sends after the application has finished.
            let until = record.first_block.into_iter().chain(record.finished).min();
            between(record.started, until).unwrap_or_default()
        };
    iterating []
        "from the first block until the application had finished"
        |record| between(record.first_block, record.finished).unwrap_or_default();
    blocked [is_part]
        "time that the thread waited for the client to read the response or to send the body"
        |record| record.waited;
    cpu [is_part]
        "CPU time of the application. The rest of its time was spent waiting: for a database, for a lock, for the GIL"
        |record| record.usage.unwrap_or_default().cpu;
    interpreter [is_rare is_part]
        "time that the server waited for the GIL while another thread held it, excluding waits inside the application"
        |record| record.usage.unwrap_or_default().interpreter;
    gc [is_rare is_part]
        "time of garbage collections in the thread of the request; part of `cpu`"
        |record| record.usage.unwrap_or_default().gc;
    total []
        "from the complete request until the kernel had accepted the last byte"
        Record::lasted;
}

impl Phase {
    const fn of(name: &'static str, name_ns: &'static str, help: &'static str) -> Self {
        Self { name, name_ns, help, is_rare: false, is_part: false }
    }
}

impl Ending {
    /// Its name in logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Complete => "complete",
            Self::ClientDisconnected => "client-disconnected",
            Self::Broken => "broken",
            Self::TimedOut => "timed-out",
            Self::Cut => "cut",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Record {
    /// The record of a request that is complete now.
    pub fn new(now: Instant) -> Self {
        Self {
            queued: now,
            started: None,
            first_block: None,
            proxied: None,
            finished: None,
            drained: None,
            status: 0,
            body_bytes: 0,
            compressed: None,
            blocks: 0,
            writes: 0,
            path: Path::None,
            waited: Duration::ZERO,
            mark: None,
            usage: None,
            held: Duration::ZERO,
            is_event_stream: false,
            has_left: false,
            ending: Ending::Open,
        }
    }

    /// The response cannot be completed, for this reason. An earlier reason stands: a deadline or the server's end
    /// breaks the connection, too. A client that has gone is none where the server broke the connection itself.
    pub fn set_broken(&mut self, reason: Ending) {
        match self.ending {
            Ending::Complete | Ending::Open => self.ending = reason,
            Ending::ClientDisconnected if reason == Ending::Broken => self.ending = reason,
            _ => {}
        }
    }

    /// The response has been compressed.
    pub fn note_compressed(&mut self, compressed: Compressed) {
        self.body_bytes = compressed.bytes;
        self.compressed = Some(compressed);
    }

    /// For how long the request has waited for a runner; zero: none has taken it.
    #[must_use]
    pub fn queued_for(&self) -> Duration {
        self.started.map_or(Duration::ZERO, |started| started.saturating_duration_since(self.queued))
    }

    /// When the response was over. If it never was, the latest moment that was recorded.
    pub fn over(&self) -> Instant {
        self.drained.max(self.finished).or(self.started).unwrap_or(self.queued)
    }

    /// The time from the complete request until the response was over.
    pub fn lasted(&self) -> Duration {
        self.over().saturating_duration_since(self.queued)
    }

    /// True when the connection has left HTTP, as a WebSocket does (RFC 9110 section 15.2.2).
    #[must_use]
    pub fn has_left_http(&self) -> bool {
        self.status == 101
    }

    /// True for a request for a WebSocket that is held: the application answers another request, which is accounted for.
    #[must_use]
    pub fn is_answered_elsewhere(&self) -> bool {
        self.has_left_http() && self.path == Path::Held
    }

    /// For how long the application has had the request.
    #[must_use]
    pub fn ran_for(&self) -> Duration {
        match (self.started, self.finished) {
            (Some(started), Some(finished)) => finished.saturating_duration_since(started),
            _ => Duration::ZERO,
        }
    }

    /// The value of the `Server-Timing` field; the head is sent `now`.
    pub fn server_timing(&self, now: Instant) -> String {
        let queue = millis_between(Some(self.queued), self.started).unwrap_or(0.0);
        let app = millis_between(self.started, self.first_block.or(Some(now))).unwrap_or(0.0);
        let cpu = match (self.mark.as_ref(), self.started) {
            (Some(mark), Some(started)) => usage::since(mark, started, now),
            _ => None,
        };
        let cpu = cpu.map_or(String::new(), |usage| format!(", cpu;dur={:.3}", usage.cpu.as_secs_f64() * 1e3));
        format!("queue;dur={queue:.3}, app;dur={app:.3};desc=\"until the first block\"{cpu}")
    }
}

impl fmt::Display for Record {
    /// The line of a slow request, once it is done.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |from, to| millis_between(from, to).unwrap_or(0.0) / 1e3;
        let first = self.first_block.or(self.finished);
        write!(
            formatter,
            "status {}, {}: {:.3} s queued, {:.3} s in the application, {:.3} s iterating, {:.3} s of that blocked on \
             the client, {}{:.3} s in all; {}, {}{}, {} in {}",
            self.status,
            self.ending.name(),
            seconds(Some(self.queued), self.started),
            seconds(self.started, first),
            seconds(first, self.finished),
            self.waited.as_secs_f64(),
            self.usage.map(|usage| usage.to_string()).unwrap_or_default(),
            seconds(Some(self.queued), self.drained.or(self.finished)),
            counted(self.blocks, "block"),
            counted(self.body_bytes, "byte"),
            self.compressed.map(|compressed| compressed.to_string()).unwrap_or_default(),
            self.path.name(),
            counted(self.writes.into(), "write"),
        )
    }
}

impl fmt::Display for Compressed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (coding, seconds) = (self.coding.name(), self.time.as_secs_f64());
        write!(formatter, " of {coding} from {} in {seconds:.3} s", counted(self.plain_bytes, "byte"))
    }
}

fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// The time between two moments, if both are known; 0 if the second is the earlier one.
fn between(from: Option<Instant>, to: Option<Instant>) -> Option<Duration> {
    Some(to?.saturating_duration_since(from?))
}

fn millis_between(from: Option<Instant>, to: Option<Instant>) -> Option<f64> {
    Some(between(from, to)?.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tailrace_http::coding::Coding;
    use tailrace_os::clock::now;
    use tailrace_os::usage::Usage;

    use super::{Compressed, Ending, Path, Record, Times, millis_between};

    #[test]
    fn the_first_reason_of_a_broken_response_stands_but_for_a_client_that_the_server_itself_has_disconnected() {
        let cases = [
            (Ending::Open, Ending::ClientDisconnected, Ending::ClientDisconnected),
            (Ending::Complete, Ending::Broken, Ending::Broken),
            (Ending::TimedOut, Ending::Broken, Ending::TimedOut),
            (Ending::Broken, Ending::ClientDisconnected, Ending::Broken),
            (Ending::ClientDisconnected, Ending::Broken, Ending::Broken),
        ];
        for (before, reason, after) in cases {
            let mut record = Record { ending: before, ..Record::new(now()) };
            record.set_broken(reason);
            assert_eq!(record.ending, after, "{before:?}, then {reason:?}");
        }
    }

    #[test]
    fn server_timing_has_the_queue_and_the_time_until_the_first_block() {
        let queued = now();
        let after = |millis| queued + Duration::from_millis(millis);
        let mut record = Record::new(queued);
        let timing =
            |queue: &str, app: &str| format!("queue;dur={queue}, app;dur={app};desc=\"until the first block\"");
        // No thread has taken it.
        assert_eq!(record.server_timing(after(5)), timing("0.000", "0.000"));
        record.started = Some(after(2));
        assert_eq!(record.server_timing(after(5)), timing("2.000", "3.000"));
        record.first_block = Some(after(4));
        assert_eq!(record.server_timing(after(50)), timing("2.000", "2.000"));
    }

    #[test]
    fn a_record_says_in_a_line_where_the_time_went() {
        let queued = now();
        let after = |millis| Some(queued + Duration::from_millis(millis));
        let usage = Usage { cpu: Duration::from_millis(40), ..Usage::default() };
        let record = Record {
            started: after(1),
            usage: Some(usage),
            first_block: after(1501),
            finished: after(1701),
            drained: after(1801),
            status: 200,
            body_bytes: 7,
            blocks: 1,
            writes: 3,
            path: Path::Direct,
            waited: Duration::from_millis(20),
            ending: Ending::Complete,
            ..Record::new(queued)
        };
        assert_eq!(record.ran_for(), Duration::from_millis(1700));
        assert_eq!(
            record.to_string(),
            "status 200, complete: 0.001 s queued, 1.500 s in the application, 0.200 s iterating, 0.020 s of that blocked \
             on the client, 0.040 s of CPU time, 1.801 s in all; 1 block, 7 bytes, direct in 3 writes"
        );
        let both = Usage { interpreter: Duration::from_millis(3), gc: Duration::from_millis(9), ..usage };
        let text = "0.040 s of CPU time, 0.003 s waiting for the GIL, 0.009 s collecting garbage, ";
        assert_eq!(both.to_string(), text);
        let time = Duration::from_millis(2);
        let compressed = Compressed { coding: Coding::Gzip, plain_bytes: 900, bytes: 7, time };
        let end = "; 1 block, 7 bytes of gzip from 900 bytes in 0.002 s, direct in 3 writes";
        assert!(Record { compressed: Some(compressed), ..record }.to_string().ends_with(end));
        assert_eq!(Record::new(queued).ran_for(), Duration::ZERO);
    }

    #[test]
    fn what_a_responder_sends_after_the_application_is_no_time_of_the_application() {
        let queued = now();
        let after = |millis| Some(queued + Duration::from_millis(millis));
        let record = Record { started: after(0), finished: after(10), first_block: after(50), ..Record::new(queued) };
        let phases = Times::of(&record);
        assert_eq!((phases.application, phases.iterating), (10_000_000, 0));
    }

    #[test]
    fn a_time_needs_both_moments_and_is_not_negative() {
        let (from, to) = (now(), now() + Duration::from_secs(2));
        assert_eq!(millis_between(Some(to), Some(from)), Some(0.0));
        assert_eq!((millis_between(None, Some(to)), millis_between(Some(from), None)), (None, None));
        assert!(millis_between(Some(from), Some(to)).is_some_and(|time| time >= 2_000.0));
    }

    #[test]
    fn the_later_way_of_sending_is_the_greater_one() {
        assert!(Path::None < Path::OneWrite && Path::OneWrite < Path::Direct && Path::Coalesced < Path::Spilled);
    }
}
