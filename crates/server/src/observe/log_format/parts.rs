//! The parts of a format, and the atoms with the names that operators write.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Literal(String),
    Atom(Atom),
    /// The time of the common log format, without its brackets.
    ClfTime,
    /// Method, target and version, as the client sent them.
    RequestLine,
    /// The user of `Authorization: Basic`.
    User,
    /// The query, nothing where there is none.
    Query,
    /// The time that the response took, in whole units of this many nanoseconds.
    Duration(u32),
    /// The time that the response took: seconds, a point and microseconds.
    Seconds,
    /// The number of the process.
    Process,
    /// The client's port.
    Port,
    /// A field of the request, by its name in lower case.
    RequestField(String),
    /// A field of the response, by its name in lower case.
    ResponseField(String),
    /// A key of `environ`, by its number among those of the format. Where the application was not called, the part
    /// that says the same, if there is one.
    Variable(usize, Option<Box<Part>>),
}

macro_rules! atoms {
    ($($variant:ident $name:literal $what:literal),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(in crate::observe::log_format) enum Atom { $($variant),* }

        /// Names and meanings of all atoms, in the order of a JSON line.
        pub(crate) const ATOMS: &[(&str, &str)] = &[$(($name, $what)),*];
        /// Each atom with the text before its value in a JSON line.
        pub(super) const IN_JSON: &[(Atom, &str)] = &[$((Atom::$variant, concat!("\"", $name, "\": "))),*];

        impl Atom {
            pub(super) fn named(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

atoms! {
    Time "time" "end of the response, RFC 3339, UTC",
    Client "client" "address of the client, - on a UNIX socket",
    Method "method" "request method",
    Target "target" "request target as it was sent",
    Path "path" "the target's path, still percent-encoded",
    Query "query" "the target's query without the question mark",
    Protocol "protocol" "HTTP/1.0 or HTTP/1.1",
    Status "status" "status code",
    Bytes "bytes" "body bytes sent",
    DurationMs "duration_ms" "milliseconds from the complete request to the end of the response",
    ProxiedMs "proxied_ms" "milliseconds a trusted proxy had it before",
    QueuedMs "queued_ms" "milliseconds until an application thread took it",
    AppMs "app_ms" "milliseconds the application thread spent on it",
    FirstBlockMs "first_block_ms" "milliseconds from the call of the application to its first non-empty block",
    Blocks "blocks" "blocks the application made, empty ones aside",
    Writes "writes" "write system calls",
    DrainedMs "drained_ms" "milliseconds from the call of the application until the kernel had the last byte",
    WaitedMs "waited_ms" "milliseconds the application thread waited for the client to take what was queued",
    HeldMs "held_ms" "milliseconds that the complete response was held while further requests waited",
    Delivery "delivery" "one-write, direct, coalesced, sendfile, spilled or none: how the body travelled",
    Ending "ending" "complete, client-gone, broken, timed-out or cut",
    Host "host" "the Host field",
    Referer "referer" "the Referer field",
    UserAgent "user_agent" "the User-Agent field",
    Worker "worker" "the number of the worker, from 1",
    Ended "ended" "end of the response, seconds since 1970",
    Id "id" "id of the request",
    Trace "trace" "trace of the request's traceparent",
    Coding "coding" "coding by which the body was compressed",
    PlainBytes "plain_bytes" "body bytes before their compression",
    CpuMs "cpu_ms" "milliseconds of processor time in the application",
    InterpreterMs "interpreter_ms" "milliseconds that the server waited for the interpreter",
    GcMs "gc_ms" "milliseconds that the garbage collector took meanwhile",
    CompressMs "compress_ms" "milliseconds of processor time that the compression took",
}

/// The keys of `environ` that a format names, each once.
#[derive(Default)]
pub(super) struct Variables(pub(super) Vec<String>);

impl Variables {
    /// The part for a key.
    pub(super) fn part(&mut self, name: &str, otherwise: Option<Part>) -> Part {
        let known = self.0.iter().position(|known| known == name);
        let number = known.unwrap_or_else(|| {
            self.0.push(name.to_owned());
            self.0.len() - 1
        });
        Part::Variable(number, otherwise.map(Box::new))
    }
}

/// The literal that has been read, unless it is empty, as a part.
pub(super) fn end_literal(literal: &mut String) -> Option<Part> {
    (!literal.is_empty()).then(|| Part::Literal(std::mem::take(literal)))
}
