//! The settings of one server, as one plain struct. Names and meanings are those of `tailrace/cli/options.py`, which
//! alone has the defaults that an operator gets.

use std::sync::Arc;
use std::time::Duration;

use tailrace_http::compression::CompressionRules;
use tailrace_http::framing::is_safe;
use tailrace_http::identity::{IdField, Sampling};
use tailrace_http::limits::Limits;
use tailrace_http::origin::Origins;
use tailrace_http::proxy_protocol::Versions;
use tailrace_http::query::QueryMasking;
use tailrace_http::trust::Trust;
use tailrace_tls::config::Certificates;

use crate::clients::rates::Rate;
use crate::sticky::key::SessionKey;

/// Bytes per second that a client must send of a body, or accept of a response, on average. Even a modem is quicker.
pub const MIN_RATE: u64 = 240;
/// Where the application runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutorKind {
    /// In threads, which also do the I/O.
    Threads,
    /// In the greenlets of one thread, see [`crate::Greenlets`]; another thread does the I/O.
    Greenlets,
    /// On the thread that calls [`Server::run`](crate::Server::run), which does the I/O, too.
    Inline,
}

/// The format of the requests that arrive at a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListenerProtocol {
    /// HTTP/1.0 and HTTP/1.1 (RFC 9112).
    #[default]
    Http,
    /// uwsgi packets of WSGI requests, from proxies that are trusted.
    Uwsgi,
    /// uwsgi packets of other processes of this server.
    Internal,
}

/// What differs between the listeners of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerConfig {
    /// The format of the requests.
    pub protocol: ListenerProtocol,
    /// The versions of the PROXY header with which each connection begins. `None`: connections have none.
    pub proxy: Option<Versions>,
    /// Connections are encrypted, with the certificates of [`Config::certificates`].
    pub is_encrypted: bool,
    /// Requests are redirected to `https://` at this port of the same host. `None`: they are not.
    pub redirect: Option<u16>,
    /// Requests publish; none reaches the application.
    pub publishes: bool,
}

/// Which requests are cancelled when their client has left while the application works on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cancellation {
    /// None.
    #[default]
    Never,
    /// Those with a safe method.
    Safe,
    /// All.
    All,
}

impl Cancellation {
    /// True if a request with this method is cancelled.
    pub(crate) fn covers(self, method: &[u8]) -> bool {
        match self {
            Self::Never => false,
            Self::Safe => is_safe(method),
            Self::All => true,
        }
    }
}

/// Complete small responses are held for at most this time; for a quarter longer, a millisecond in all, if a call of the
/// application takes longer than the one before it. They are written together, which takes fewer wake-ups; no client
/// notices a millisecond.
pub const HOLD_WRITES: Duration = Duration::from_micros(800);

/// How [`Config::client_memory`] is divided: half is for responses and a quarter for request bodies, so that a quarter
/// remains for heads and small bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryShares {
    /// See [`Config::body_memory`].
    pub body_memory: usize,
    /// See [`Config::body_buffer`].
    pub body_buffer: usize,
    /// See [`Config::response_queue`].
    pub response_queue: usize,
    /// See [`Config::response_buffer`].
    pub response_buffer: usize,
}

impl MemoryShares {
    /// The shares of so many bytes. No body has more than 64 MiB in memory, and no response more than 4 MiB.
    #[must_use]
    pub const fn of(client_memory: usize) -> Self {
        const fn at_most(most: usize, share: usize) -> usize {
            if share < most { share } else { most }
        }
        Self {
            body_memory: at_most(64 << 20, client_memory / 8),
            body_buffer: client_memory / 4,
            response_queue: at_most(4 << 20, client_memory / 16),
            response_buffer: client_memory / 2,
        }
    }
}

/// All settings of the Rust side that an operator can change. Sizes are in bytes.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the application runs.
    pub executor: ExecutorKind,
    /// Application threads at most; one more thread always does I/O. With greenlets: those in requests at most.
    pub threads: usize,
    /// What differs between the listeners, in the order of the sockets that the server is given. Those that are missing
    /// have the defaults.
    pub listeners: Vec<ListenerConfig>,
    /// The certificates of encrypted listeners. `None`: there is no such listener.
    pub certificates: Option<Arc<Certificates>>,
    /// The proxies whose statements about their clients are believed.
    pub trust: Trust,
    /// The field by which requests have an id; `None`: they have none.
    pub request_id: Option<IdField>,
    /// Which requests are traced. `None`: none is.
    pub sampling: Option<Sampling>,
    /// The responses of the application that are compressed; `None`: none.
    pub compression: Option<CompressionRules>,
    /// Other processes accept from the same listening sockets.
    pub shares_listeners: bool,
    /// Limits of a request.
    pub limits: Limits,
    /// Memory that may be held for all clients together.
    pub client_memory: usize,
    /// A request body up to this size stays in memory while all bodies have room there (`body_buffer`); another goes to
    /// an unlinked temporary file.
    pub body_memory: usize,
    /// Memory for all request bodies together; past it, all but small bodies go to files.
    pub body_buffer: usize,
    /// The application is called when the head is complete, and reads the body while it arrives.
    pub stream_body: bool,
    /// How long the application may take for a request; zero: no limit.
    pub request_timeout: Duration,
    /// Which requests are cancelled when their client has left.
    pub cancel: Cancellation,
    /// The pages that may open a WebSocket.
    pub origins: Origins,
    /// Paths whose WebSockets the holder serves. One that ends with a slash stands for all below it.
    pub websocket_events: Vec<Vec<u8>>,
    /// A proxy in front of the server holds connections.
    pub is_behind_holder: bool,
    /// Where the keys of sessions are that live in one worker: requests with a key are passed to that worker. `None`:
    /// there are none.
    pub sticky: Option<SessionKey>,
    /// The abstract address of the process that holds connections. `None`: none are held.
    pub holder: Option<Vec<u8>>,
    /// A request that has run for this long is reported; zero: none is.
    pub slow_request_log: Duration,
    /// Which values of query strings are hidden wherever requests are shown, except in the access log.
    pub query_masking: QueryMasking,
    /// Most requests that wait for a thread; more are answered 503.
    pub max_queue: usize,
    /// A request that has waited this long for a thread is answered 503; zero: no limit.
    pub queue_timeout: Duration,
    /// Most connections at once, as the limit of open files allows; more wait in the kernel's queue.
    pub max_connections: usize,
    /// Most connections of a client at once, to all workers; 0: any number.
    pub client_connections: usize,
    /// How many requests a client may send; `None`: any number.
    pub client_rate: Option<Rate>,
    /// Longest time from the first byte of a request head to its last.
    pub header_timeout: Duration,
    /// Longest time between two reads of a request body.
    pub body_timeout: Duration,
    /// Longest time between two requests of a connection, and before the first.
    pub keepalive_timeout: Duration,
    /// Longest time in which a client accepts no byte of a response that waits for it.
    pub write_timeout: Duration,
    /// How long a complete small response may be held while further requests wait: [`HOLD_WRITES`], but for tests.
    pub hold_writes: Duration,
    /// Bytes of one response that are queued for a client that does not accept them; past it, the application waits.
    pub response_queue: usize,
    /// Memory for all responses that clients have not accepted; past it, every application thread waits until its own
    /// client has accepted nearly all.
    pub response_buffer: usize,
    /// Past that, responses are written to unlinked temporary files, up to this size together; 0: never.
    pub response_spill: u64,
    /// Bytes that all request bodies in temporary files may have together.
    pub body_spill: u64,
    /// The `Server` field of responses for which the application sets none; empty: no such field.
    pub server_name: String,
    /// Add the times of each request in a `Server-Timing` field.
    pub server_timing: bool,
    /// Average rate at which a request body must arrive after `body_timeout`, and at which a client must accept a waiting
    /// response after `write_timeout`, in bytes per second: [`MIN_RATE`], except in tests; 0: any.
    pub min_rate: u64,
    /// Where to write the access log, and in which format; `None`: no access log.
    pub access_log: Option<tailrace_observe::access_log::AccessLogConfig>,
    /// The number of this worker, from 1, for the access log.
    pub worker: u32,
}

impl Config {
    /// What differs at the listener of this number ([`Peer::listener`](tailrace_http::peer::Peer::listener)).
    #[must_use]
    pub fn listener(&self, number: usize) -> ListenerConfig {
        self.listeners.get(number).copied().unwrap_or_default()
    }

    /// Name and value of the response field with the id of a request. `None`: it has no id.
    pub(crate) fn id_field<'a>(&'a self, id: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        self.request_id.as_ref().filter(|_| !id.is_empty()).map(|field| (field.name(), id))
    }
}

impl Default for Config {
    /// A server for tests and examples.
    fn default() -> Self {
        const CLIENT_MEMORY: usize = 512 << 20;
        const SHARES: MemoryShares = MemoryShares::of(CLIENT_MEMORY);
        Self {
            executor: ExecutorKind::Threads,
            threads: 128,
            listeners: Vec::new(),
            certificates: None,
            trust: Trust::default(),
            request_id: None,
            sampling: None,
            compression: None,
            shares_listeners: false,
            limits: Limits::default(),
            client_memory: CLIENT_MEMORY,
            body_memory: SHARES.body_memory,
            body_buffer: SHARES.body_buffer,
            stream_body: false,
            request_timeout: Duration::ZERO,
            cancel: Cancellation::Never,
            origins: Origins::default(),
            websocket_events: Vec::new(),
            is_behind_holder: false,
            sticky: None,
            holder: None,
            slow_request_log: Duration::ZERO,
            query_masking: QueryMasking::default(),
            max_queue: 2048,
            queue_timeout: Duration::ZERO,
            max_connections: 100_000,
            client_connections: 0,
            client_rate: None,
            header_timeout: Duration::from_secs(15),
            body_timeout: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(60),
            hold_writes: HOLD_WRITES,
            response_queue: SHARES.response_queue,
            response_buffer: SHARES.response_buffer,
            response_spill: 4 << 30,
            body_spill: 4 << 30,
            server_name: String::from("tailrace"),
            server_timing: false,
            min_rate: MIN_RATE,
            access_log: None,
            worker: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryShares;

    #[test]
    fn the_memory_for_clients_is_divided_between_responses_bodies_and_the_rest() {
        for (all, [body_memory, body_buffer, response_queue, response_buffer]) in [
            (1 << 20, [128 << 10, 256 << 10, 64 << 10, 512 << 10]),
            (16 << 20, [2 << 20, 4 << 20, 1 << 20, 8 << 20]),
            (512 << 20, [64 << 20, 128 << 20, 4 << 20, 256 << 20]),
            (8 << 30, [64 << 20, 2 << 30, 4 << 20, 4 << 30]),
        ] {
            let shares = MemoryShares { body_memory, body_buffer, response_queue, response_buffer };
            assert_eq!(MemoryShares::of(all), shares);
        }
    }
}
