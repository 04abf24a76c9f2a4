//! What the connections of a server share: settings, memory, timers, counters.
//!
//! Any thread uses these.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use tailrace_http::encode::{OwnFields, ResponseHead, error_response};
use tailrace_http::framing::RequestFacts;
use tailrace_http::limits::Refusal;
use tailrace_observe::metrics::Metric;
use tailrace_observe::once_a_minute::OnceAMinute;
use tailrace_observe::stats::Counts;
use tailrace_os::clock::{Clock, millis, with_date};
use tailrace_os::process::Process;

use crate::clients::connections::{Connected, ConnectionLimit, TooMany};
use crate::config::{Config, ListenerProtocol};
use crate::connection::lifecycle::Lifecycle;
use crate::connection::one_time_warnings::OneTimeWarnings;
use crate::connection::refusal_log::RefusalLog;
use crate::connection::timers::Timers;
use crate::request::disk::{Disk, Quota};
use crate::request::memory::ClientMemory;
use crate::request::protocol::{Http1, Protocol, Uwsgi};
use crate::request::share::Share;
use crate::response::outbox::DeliveryLimits;
use crate::response::policy::Policy;
use crate::response::spill::Spill;
use crate::sticky::Sessions;

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
    /// Of request bodies in files.
    pub(crate) body_files: Arc<Quota>,
    pub(crate) spill: Spill,
    /// The part of the disk threads that compresses responses.
    pub(crate) compression: Arc<Share>,
    /// Number of threads and greenlets that wait for slow clients.
    pub(crate) waiting: Arc<AtomicUsize>,
    /// Number of sockets by which the application has taken over connections, or can.
    pub(crate) raw_sockets: Arc<AtomicUsize>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) one_time_warnings: OneTimeWarnings,
    pub(crate) refusal_log: RefusalLog,
    /// That responses cannot be stored.
    logged_spill_failure: OnceAMinute,
    /// How many connections each client may have, if that is limited.
    pub(crate) connection_limit: OnceLock<ConnectionLimit>,
    /// Which worker each session belongs to, if requests are passed to it.
    pub(crate) sessions: OnceLock<Sessions>,
    /// The fields of heads by which the application asks for a responder.
    pub(crate) delegation_fields: OnceLock<&'static [&'static str]>,
}

impl Shared {
    pub(crate) fn new(config: Config, policy: Policy, disk: Arc<Disk>) -> Self {
        let memory = Arc::new(ClientMemory::new(config.client_memory, config.response_buffer));
        Self {
            process: Process::here(),
            policy,
            delivery_limits: DeliveryLimits {
                policy,
                queue_limit: config.response_queue,
                least_queue: DeliveryLimits::least_queue(config.response_queue, config.response_spill > 0),
                write_timeout: millis(config.write_timeout),
                min_rate: config.min_rate,
                memory: memory.clone(),
            },
            timers: Timers::default(),
            clock: Clock::new(),
            lifecycle: Lifecycle::new(),
            connection_limit: OnceLock::new(),
            sessions: OnceLock::new(),
            delegation_fields: OnceLock::new(),
            memory,
            spill: Spill::new(config.response_spill, disk.clone()),
            body_files: Quota::new(config.body_spill),
            compression: Share::new(disk.clone()),
            disk,
            waiting: Arc::default(),
            raw_sockets: Arc::default(),
            counts: Arc::default(),
            one_time_warnings: OneTimeWarnings::default(),
            refusal_log: RefusalLog::default(),
            logged_spill_failure: OnceAMinute::default(),
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
            ListenerProtocol::Uwsgi => &Uwsgi { is_internal: false },
            ListenerProtocol::Internal => &Uwsgi { is_internal: true },
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lifecycle.has_ended()
    }

    /// Makes an error page, head included. `head`: where its head is built. `id`: of the request; empty: it has none.
    pub(crate) fn error_page(
        &self,
        head: &mut ResponseHead,
        refusal: &Refusal,
        facts: RequestFacts,
        id: &[u8],
    ) -> Vec<u8> {
        let mut page = Vec::with_capacity(512);
        let server = self.config.server_name.as_bytes();
        with_date(self.clock.recent(), |date| {
            let own = OwnFields { date, server, id: self.config.id_field(id) };
            error_response(head, refusal.status, refusal.reason, facts, own, &mut page)
        });
        page
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

    /// Counts a connection of this client again, which could not be passed, though the client may have too many now.
    pub(crate) fn count_again(&self, client: Option<SocketAddr>) -> Option<Connected> {
        let (limit, address) = (self.connection_limit.get()?, client?);
        if self.config.trust.is_trusted(client) { None } else { limit.add(address.ip()) }
    }

    /// Counts a request of a client that has sent too many.
    pub(crate) fn count_limited_request(&self) {
        self.counts.add(Metric::LimitedRequests, 1);
    }

    /// Counts a response of static files.
    pub(crate) fn count_static(&self) {
        self.counts.add(Metric::StaticResponses, 1);
    }

    /// Responses cannot be written to files: the line for the log, once a minute.
    pub(crate) fn line_of_spill_failure(&self, fault: &io::Error) -> Option<String> {
        self.logged_spill_failure.may_log(self.clock.now()).then(|| {
            let folder = self.disk.folder().display();
            format!(
                "cannot store responses to slow clients in {folder}: {fault}; application threads wait for these clients \
                 instead"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io;
    use std::sync::Arc;
    use std::time::Duration;

    use super::Shared;
    use crate::config::Config;
    use crate::executor::threads::POLICY;

    #[test]
    fn that_responses_cannot_be_stored_is_logged_once_a_minute() {
        let shared = Shared::new(Config::default(), POLICY, Arc::default());
        let line_after = |seconds| {
            shared.clock.advance(Duration::from_secs(seconds));
            shared.line_of_spill_failure(&io::Error::other("no room is left"))
        };
        assert!(line_after(0).unwrap().contains("no room is left"));
        assert_eq!(line_after(0), None);
        assert_eq!(line_after(40), None);
        assert!(line_after(20).is_some(), "a minute after the first");
        assert_eq!(line_after(40), None);
    }
}
