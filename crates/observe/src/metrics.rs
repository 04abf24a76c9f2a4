//! The table of the metrics that the server counts: name, type, help, and the key in the documents for Python. The
//! cells of the scoreboard, `/metrics`, statsd, `/status.json`, the explanations of the live page and the tables of
//! docs/reference/metrics.md follow from it, together with the metrics of the master in `tailrace/status/table.py`.
//!
//! To add a counter: a row in `figures!` here, and `counts.add(Metric::…, 1)` where it is counted. A gauge is set in
//! `Server::stats` instead. `make docs` writes the documentation.
//!
//! A counter only grows. Python sums both over the workers, and keeps the counters of workers that have ended.

/// A metric as Python, and so Prometheus and statsd, see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The heading in docs/reference/metrics.md: `requests`, `connections` or `memory`.
    pub group: &'static str,
    /// Which function of the scoreboard has its value: `counters`, `states` or `deliveries`; `sizes`: the group of that
    /// name in `deliveries`; `histograms`: several groups.
    pub source: &'static str,
    /// The key of its value there.
    pub key: &'static str,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Its name in Prometheus, without `_total`.
    pub name: &'static str,
    /// The label that tells its values apart; empty: there is one value.
    pub label: &'static str,
    /// The help in Prometheus, a sentence.
    pub help: &'static str,
    /// What the documentation and the live page add, sentences in Markdown; or empty.
    pub details: &'static str,
}

/// Makes [`Metric`] from rows: variant, type, key, group, name, help, details.
macro_rules! figures {
    ($($metric:ident: $kind:ident $key:literal $group:literal $name:literal $help:literal $($details:literal)?;)*) => {
        /// Counters and gauges of a worker, each a word of its slot of the scoreboard.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Metric {
            $(#[doc = $help] $metric,)*
        }

        impl Metric {
            /// All of them, in their order.
            pub const ALL: [Self; [$(Self::$metric),*].len()] = [$(Self::$metric),*];

            const ROWS: [Row; Self::ALL.len()] = [$(Row {
                group: $group,
                source: "counters",
                key: $key,
                kind: stringify!($kind),
                name: $name,
                label: "",
                help: $help,
                details: concat!($($details)?),
            }),*];
        }
    };
}

figures! {
    Accepted: counter "accepted" "connections" "tailrace_connections_accepted"
        "Connections accepted.";
    Requests: counter "requests" "requests" "tailrace_requests"
        "Requests answered by the application.";
    StaticResponses: counter "static" "requests" "tailrace_static_responses"
        "Responses of --static and --overlay, without the application.";
    Refused: counter "refused" "requests" "tailrace_refused"
        "Requests and connections refused by the server itself."
        "For example, malformed or oversized requests.";
    Compressed: counter "compressed" "requests" "tailrace_responses_compressed"
        "Responses compressed by the server."
        "See `--compress`.";
    CompressedFrom: counter "compressed_from" "requests" "tailrace_compression_input_bytes"
        "Bytes of response bodies before compression.";
    CompressedTo: counter "compressed_to" "requests" "tailrace_compression_output_bytes"
        "Bytes of response bodies after compression.";
    LimitedRequests: counter "limited_requests" "requests" "tailrace_limited_requests"
        "Requests answered with 429."
        "See `--max-requests-per-client`.";
    LimitedConnections: counter "limited_connections" "connections" "tailrace_limited_connections"
        "Connections closed, because their clients had too many."
        "See `--max-connections-per-client`.";
    Passed: counter "passed" "requests" "tailrace_passed_requests"
        "Requests passed to the worker that has their session."
        "The worker that answers a request counts it among its requests. See `--sticky`.";
    Handshakes: counter "handshakes" "connections" "tailrace_tls_handshakes"
        "TLS handshakes completed.";
    Resumed: counter "resumed" "connections" "tailrace_tls_handshakes_resumed"
        "TLS handshakes completed that continued an earlier session."
        "They take less processor time, since nothing is signed.";
    FailedHandshakes: counter "failed_handshakes" "connections" "tailrace_tls_handshakes_failed"
        "TLS handshakes that failed."
        "For example, clients without a required certificate, with old versions, or without TLS.";
    TimedOut: counter "timed_out" "requests" "tailrace_requests_timed_out"
        "Requests not answered before their deadline."
        "See `--request-timeout`.";
    Shed: counter "given_up" "requests" "tailrace_requests_given_up"
        "Incomplete requests shed to make room for others."
        "See `--client-memory`.";
    Collections: counter "gc_collections" "requests" "tailrace_gc_collections"
        "Collections of Python's garbage collector."
        "See `--gc`.";
    Connections: gauge "connections" "connections" "tailrace_connections"
        "Open connections.";
    Queued: gauge "queued" "requests" "tailrace_queue_requests"
        "Complete requests waiting for a thread or greenlet."
        "If some wait all the time, add threads or workers.";
    Running: gauge "running" "requests" "tailrace_running_requests"
        "Requests running in the application.";
    WebSockets: gauge "web_sockets" "connections" "tailrace_web_sockets"
        "WebSockets that are open or being opened."
        "Each holds a thread or greenlet of the application, and one of these is left for other requests.";
    Stuck: gauge "stuck" "connections" "tailrace_stuck_threads"
        "Threads still in a request whose deadline has passed.";
    Held: gauge "client_memory" "memory" "tailrace_client_memory_bytes"
        "Memory used for clients."
        "Request heads, request bodies, and responses that clients have not accepted yet. See `--client-memory`.";
    Heads: gauge "heads" "memory" "tailrace_request_head_memory_bytes"
        "Memory of request heads, and of pipelined requests behind them."
        "Included in the memory used for clients.";
    Buffered: gauge "buffered" "memory" "tailrace_response_memory_bytes"
        "Memory of responses that clients have not accepted yet."
        "At most about half of `--client-memory`.";
    Bodies: gauge "bodies" "memory" "tailrace_request_body_memory_bytes"
        "Memory of request bodies."
        "At most about a quarter of `--client-memory`.";
}

impl Metric {
    /// Its row of the table.
    #[must_use]
    pub const fn row(self) -> &'static Row {
        &Self::ROWS[self as usize]
    }
}

/// Makes rows: key, source, type, group, name, label, help, details.
macro_rules! families {
    ($($key:literal in $source:ident: $kind:ident $group:literal $name:literal $(by $label:literal)?
        $help:literal $($details:literal)?;)*) => {
        [$(Row {
            group: $group,
            source: stringify!($source),
            key: $key,
            kind: stringify!($kind),
            name: $name,
            label: concat!($($label)?),
            help: $help,
            details: concat!($($details)?),
        }),*]
    };
}

/// Metrics of other words of the worker slot: threads and connections by their state, and finished responses.
const FAMILIES: [Row; 10] = families! {
    "threads" in states: gauge "connections" "tailrace_threads" by "state"
        "Threads by state; with `--gevent`, the greenlets that run requests, and the I/O thread."
        "See [threads](status-json.md#threads).";
    "connections" in states: gauge "connections" "tailrace_connections_by_state" by "state"
        "Open connections by state."
        "See [connections](status-json.md#connections).";
    "classes" in deliveries: counter "requests" "tailrace_responses" by "class"
        "Responses by the class of their status."
        "`2xx` and so on; `none` if the client disconnected first.";
    "endings" in deliveries: counter "requests" "tailrace_responses_ended" by "ending"
        "Responses by ending."
        "`complete`, `client-disconnected`, `broken`, `timed-out`, `cut` or `cancelled`.";
    "paths" in deliveries: counter "requests" "tailrace_responses_delivered" by "path"
        "Responses by how their bodies were sent."
        "See [paths](status-json.md#paths).";
    "held" in sizes: counter "requests" "tailrace_responses_held"
        "Responses held, to be sent together with others.";
    "body_bytes" in sizes: counter "requests" "tailrace_response_body_bytes"
        "Bytes of response bodies, sent or queued.";
    "blocks" in sizes: counter "requests" "tailrace_response_blocks"
        "Non-empty blocks returned by the application.";
    "writes" in histograms: histogram "requests" "tailrace_response_writes"
        "Write system calls per response.";
    "phases" in histograms: histogram "requests" "tailrace_request_phase_seconds" by "phase"
        "Time taken by requests to the application, by phase."
        "See [latency](status-json.md#latency).";
};

/// All rows, in the order of `/metrics`.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    Metric::ROWS.iter().chain(&FAMILIES)
}
