//! The settings of one server, as one plain struct. Names, meanings and defaults are those of
//! `tailrace/cli/options.py`.

use std::sync::Arc;
use std::time::Duration;

use tailrace_http::compression::CompressionRules;
use tailrace_http::framing::is_safe;
use tailrace_http::identity::IdField;
use tailrace_http::limits::Limits;
use tailrace_http::query::QueryMasking;
use tailrace_http::trust::Trust;
use tailrace_tls::config::Certificates;

use crate::clients::rates::Rate;

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
}

/// Whether the clients of a listener are proxies that state in front of each connection whose it is (the PROXY
/// protocol).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyHeader {
    /// They are not.
    #[default]
    None,
    /// Each connection begins with a header of version 1, a line of text.
    V1,
    /// Each connection begins with a header of version 2, which is binary.
    V2,
    /// Each connection begins with a header of either version.
    Any,
}

/// What differs between the listeners of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerConfig {
    /// The format of the requests.
    pub protocol: ListenerProtocol,
    /// Whether each connection begins with a PROXY header.
    pub proxy: ProxyHeader,
    /// Connections are encrypted, with the certificates of [`Config::certificates`].
    pub is_encrypted: bool,
    /// Requests are redirected to `https://` at this port of the same host. `None`: they are not.
    pub redirect: Option<u16>,
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
    /// The value of `Strict-Transport-Security` in responses over encrypted connections; empty: no such field.
    pub strict_transport: String,
    /// The proxies whose statements about their clients are believed.
    pub trust: Trust,
    /// The field by which requests have an id; `None`: they have none.
    pub request_id: Option<IdField>,
    /// The share of requests, from 0 to 1, that are traced where no trusted sender decides. `None`: none is traced.
    pub trace_share: Option<f64>,
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
    /// A client that ends its sending direction has left; otherwise it only says that it sends no more.
    pub half_close_is_disconnect: bool,
    /// A request that has run for this long is reported; zero: none is.
    pub slow: Duration,
    /// Which values of query strings are hidden wherever requests are shown, except in the access log.
    pub query_masking: QueryMasking,
    /// Most requests that wait for a thread; more are answered 503.
    pub max_queue: usize,
    /// A request that has waited this long for a thread is answered 503; zero: no limit.
    pub queue_timeout: Duration,
    /// Most connections at once; more wait in the kernel's queue.
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
    pub idle_timeout: Duration,
    /// Longest time in which a client accepts no byte of a response that waits for it.
    pub write_timeout: Duration,
    /// How long a complete small response may be held while further requests wait; zero: not at all.
    pub hold_writes: Duration,
    /// Bytes of one response that are queued for a client that does not accept them; past it, the application waits.
    pub response_queue: usize,
    /// Memory for all responses that clients have not accepted; past it, every application thread waits until its own
    /// client has accepted nearly all.
    pub response_buffer: usize,
    /// Past that, responses are written to unlinked temporary files, up to this size together; 0: never.
    pub response_spill: u64,
    /// The `Server` field of responses for which the application sets none; empty: no such field.
    pub server_name: String,
    /// Add the times of each request in a `Server-Timing` field.
    pub server_timing: bool,
    /// Average rate at which a request body must arrive after `body_timeout`, in bytes per second; 0: any.
    pub min_body_rate: u64,
    /// Average rate at which a client must accept a waiting response after `write_timeout`, in bytes per second; 0:
    /// any.
    pub min_response_rate: u64,
    /// Which files are served without the application.
    pub static_files: crate::static_config::StaticConfig,
    /// Where to write the access log, and in which format; `None`: no access log.
    pub access_log: Option<crate::observe::access_log::AccessLogConfig>,
    /// The number of this worker, from 1, for the access log.
    pub worker: u32,
}

impl Config {
    /// What differs at the listener of this number ([`Peer::listener`](crate::Peer)).
    #[must_use]
    pub fn listener(&self, number: usize) -> ListenerConfig {
        self.listeners.get(number).copied().unwrap_or_default()
    }

    /// The value of `Strict-Transport-Security` at the listener of this number; empty: no such field.
    pub(crate) fn strict_transport(&self, number: usize) -> &[u8] {
        if !self.strict_transport.is_empty() && self.listener(number).is_encrypted {
            self.strict_transport.as_bytes()
        } else {
            b""
        }
    }

    /// Name and value of the response field with the id of a request. `None`: it has no id.
    pub(crate) fn id_field<'a>(&'a self, id: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        self.request_id.as_ref().filter(|_| !id.is_empty()).map(|field| (field.name(), id))
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            executor: ExecutorKind::Threads,
            threads: 128,
            listeners: Vec::new(),
            certificates: None,
            strict_transport: String::new(),
            trust: Trust::default(),
            request_id: None,
            trace_share: None,
            compression: None,
            shares_listeners: false,
            limits: Limits::default(),
            client_memory: 512 << 20,
            body_memory: 64 << 20,
            body_buffer: 128 << 20,
            stream_body: false,
            request_timeout: Duration::ZERO,
            cancel: Cancellation::Never,
            half_close_is_disconnect: false,
            slow: Duration::ZERO,
            query_masking: QueryMasking::default(),
            max_queue: 2048,
            queue_timeout: Duration::ZERO,
            max_connections: 100_000,
            client_connections: 0,
            client_rate: None,
            header_timeout: Duration::from_secs(15),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(60),
            hold_writes: Duration::from_millis(1),
            response_queue: 4 << 20,
            response_buffer: 256 << 20,
            response_spill: 4 << 30,
            server_name: String::from("tailrace"),
            server_timing: false,
            min_body_rate: 240,
            min_response_rate: 240,
            static_files: crate::static_config::StaticConfig::default(),
            access_log: None,
            worker: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Config;

    /// A limit of a part that is above the limit of the whole would never take effect.
    #[test]
    fn no_default_is_above_the_limit_that_contains_it() {
        let config = Config::default();
        assert!(config.body_memory <= config.body_buffer && config.body_buffer <= config.client_memory);
        assert!(config.response_queue <= config.response_buffer && config.response_buffer <= config.client_memory);
        assert!(config.limits.header_bytes + config.limits.request_line < config.client_memory);
        assert!(config.response_buffer as u64 <= config.response_spill);
        assert!(config.threads > 0 && config.max_queue > 0);
    }
}
