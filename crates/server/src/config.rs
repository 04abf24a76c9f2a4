//! The settings of one server, as one plain struct. Names, meanings and defaults are those of
//! `tailrace/cli/options.py`.

use std::time::Duration;

use tailrace_http::limits::Limits;

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

/// All that an operator can set of the Rust side. Times are durations, sizes are bytes.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the application runs.
    pub executor: ExecutorKind,
    /// Application threads at most; one more thread always does I/O. With greenlets: those in requests at most.
    pub threads: usize,
    /// Other processes accept from the same listening sockets.
    pub shares_listeners: bool,
    /// Limits of a request.
    pub limits: Limits,
    /// All that is held for clients in memory at once.
    pub client_memory: usize,
    /// A request body up to this size stays in memory; a larger one goes to an unlinked temporary file.
    pub body_memory: usize,
    /// All request bodies together stay in memory up to this size; past it, only small ones do.
    pub body_buffer: usize,
    /// The application starts when the head is there, and reads the body as it comes.
    pub stream_body: bool,
    /// The application has this long for a request; zero: as long as it likes.
    pub request_timeout: Duration,
    /// Requests that may wait for a thread; more are answered 503.
    pub max_queue: usize,
    /// A request that has waited for a thread this long is answered 503; zero: it waits as long as it takes.
    pub queue_timeout: Duration,
    /// Connections at once; more wait in the kernel's queue.
    pub max_connections: usize,
    /// From the first byte of a request head to its end.
    pub header_timeout: Duration,
    /// Between two reads of a request body.
    pub body_timeout: Duration,
    /// Between two requests of a connection, and before the first.
    pub idle_timeout: Duration,
    /// Without any byte taken by the client while a response waits for it.
    pub write_timeout: Duration,
    /// A response that its client does not take is queued up to this size; then the application waits.
    pub response_queue: usize,
    /// All responses that clients have not taken are queued up to this size in memory; past it, every application
    /// thread waits until its own client has taken nearly all.
    pub response_buffer: usize,
    /// Past that, what clients have not taken is written to unlinked temporary files of this size together; 0: never.
    pub response_spill: u64,
    /// The `Server` field of responses whose application sends none; empty: no such field.
    pub server_name: String,
    /// Tell times of each request in a `Server-Timing` field.
    pub server_timing: bool,
    /// Bytes a second that a request body must arrive with on average, after `body_timeout`; 0: no such rule.
    pub min_body_rate: u64,
    /// Bytes a second that a client must take a waiting response with on average, after `write_timeout`; 0: no such
    /// rule.
    pub min_response_rate: u64,
    /// Where to write the access log, and how.
    pub access_log: Option<crate::observe::access_log::AccessLogConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            executor: ExecutorKind::Threads,
            threads: 128,
            shares_listeners: false,
            limits: Limits::default(),
            client_memory: 512 << 20,
            body_memory: 1 << 20,
            body_buffer: 128 << 20,
            stream_body: false,
            request_timeout: Duration::ZERO,
            max_queue: 2048,
            queue_timeout: Duration::ZERO,
            max_connections: usize::MAX,
            header_timeout: Duration::from_secs(15),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(60),
            response_queue: 4 << 20,
            response_buffer: 256 << 20,
            response_spill: 4 << 30,
            server_name: String::from("tailrace"),
            server_timing: false,
            min_body_rate: 240,
            min_response_rate: 240,
            access_log: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Config;

    /// Limits that hold together: a default of one that is beyond another would never take effect.
    #[test]
    fn the_defaults_fit_each_other() {
        let config = Config::default();
        assert!(config.body_memory <= config.body_buffer && config.body_buffer <= config.client_memory);
        assert!(config.response_queue <= config.response_buffer && config.response_buffer <= config.client_memory);
        assert!(config.limits.header_bytes + config.limits.request_line < config.client_memory);
        assert!(config.response_buffer as u64 <= config.response_spill);
        assert!(config.threads > 0 && config.max_queue > 0);
    }
}
