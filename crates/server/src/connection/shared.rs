//! What the connections of a server share: settings, memory, timers, counters.
//!
//! Any thread uses these.

use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use crate::clients::connections::{Connected, ConnectionLimit, TooMany};
use crate::config::{Config, ListenerProtocol};
use crate::connection::lifecycle::Lifecycle;
use crate::connection::one_time_warnings::OneTimeWarnings;
use crate::connection::timers::Timers;
use crate::observe::metrics::Metric;
use crate::observe::stats::Counts;
use crate::os::clock::{Clock, millis};
use crate::os::process::Process;
use crate::request::disk::Disk;
use crate::request::memory::ClientMemory;
use crate::request::protocol::{Http1, Protocol, Uwsgi};
use crate::request::share::Share;
use crate::response::policy::Policy;
use crate::response::sending::DeliveryLimits;
use crate::response::spill::Spill;

/// See the module.
pub(crate) struct Shared {
    /// The process that serves, as opposed to a child that its application forks.
    pub(crate) process: Process,
    pub(crate) config: Config,
    pub(crate) policy: Policy,
    pub(crate) delivery_limits: DeliveryLimits,
    pub(crate) timers: Timers,
    pub(crate) clock: Clock,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) memory: Arc<ClientMemory>,
    pub(crate) disk: Arc<Disk>,
    pub(crate) spill: Spill,
    /// The part of the disk threads that compresses responses.
    pub(crate) compression: Arc<Share>,
    /// Number of threads and greenlets that wait for slow clients.
    pub(crate) waiting: Arc<AtomicUsize>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) one_time_warnings: OneTimeWarnings,
    /// How many connections each client may have, if that is limited.
    pub(crate) connection_limit: OnceLock<ConnectionLimit>,
    /// The fields of heads by which the application asks for a responder.
    pub(crate) asking_fields: OnceLock<&'static [&'static str]>,
}

impl Shared {
    pub(crate) fn new(config: Config, policy: Policy) -> Self {
        let disk = Arc::new(Disk::new());
        let memory = Arc::new(ClientMemory::new(config.client_memory, config.response_buffer));
        Self {
            process: Process::here(),
            policy,
            delivery_limits: DeliveryLimits {
                policy,
                queue_limit: config.response_queue,
                least_queue: DeliveryLimits::least_queue(config.response_queue, config.response_spill > 0),
                write_timeout: millis(config.write_timeout),
                min_rate: config.min_response_rate,
                memory: memory.clone(),
            },
            timers: Timers::default(),
            clock: Clock::new(),
            lifecycle: Lifecycle::new(),
            connection_limit: OnceLock::new(),
            asking_fields: OnceLock::new(),
            memory,
            spill: Spill::new(config.response_spill, disk.clone()),
            compression: Share::new(disk.clone()),
            disk,
            waiting: Arc::default(),
            counts: Arc::default(),
            one_time_warnings: OneTimeWarnings::default(),
            config,
        }
    }

    /// True in a child that the application has forked. All of this belongs to the parent, and a lock may stay held for
    /// ever, because the thread that held it does not exist in the child.
    #[inline]
    pub(crate) fn is_forked_child(&self) -> bool {
        !self.process.is_here()
    }

    /// True when the server is stopping: connections end after their responses.
    pub(crate) fn is_stopping(&self) -> bool {
        !self.lifecycle.is_running()
    }

    /// The format of the requests that arrive at a listener.
    #[inline]
    pub(crate) fn protocol(&self, listener: usize) -> &'static dyn Protocol {
        match self.config.listener(listener).protocol {
            ListenerProtocol::Http => &Http1,
            ListenerProtocol::Uwsgi => &Uwsgi,
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lifecycle.has_ended()
    }

    /// Counts a request or a connection that the server itself has refused.
    pub(crate) fn count_refusal(&self) {
        self.counts.add(Metric::Refused, 1);
    }

    /// Counts a new connection of this client, which is a proxy if it is trusted, or has no address. `None`: it need not
    /// be counted.
    ///
    /// # Errors
    /// The client has too many; the line for the log, if it is to be logged.
    pub(crate) fn count_client(&self, client: Option<SocketAddr>) -> Result<Option<Connected>, Option<String>> {
        let (Some(limit), Some(address)) = (self.connection_limit.get(), client) else { return Ok(None) };
        if self.config.trust.is_trusted(client) {
            return Ok(None);
        }
        limit.connect(address.ip()).map_err(|TooMany| {
            self.counts.add(Metric::LimitedConnections, 1);
            self.one_time_warnings.too_many_connections(address.ip(), self.config.client_connections)
        })
    }

    /// Counts a request of a client that has sent too many.
    pub(crate) fn count_limited_request(&self) {
        self.counts.add(Metric::LimitedRequests, 1);
    }

    /// Counts a response of static files.
    pub(crate) fn count_static(&self) {
        self.counts.add(Metric::StaticResponses, 1);
    }
}
