//! The responders of a server, in the order in which they are asked for the response to a request.

use std::sync::Arc;

use tailrace_http::encode::begin_error;
use tailrace_observe::level::Level;
use tailrace_observe::once_a_minute::OnceAMinute;
use tailrace_observe::scoreboard::now;

use crate::clients::Clients;
use crate::clients::rates::Rate;
use crate::config::ListenerProtocol;
use crate::connection::context::Context;
use crate::connection::exchange::Exchange;
use crate::connection::representation::send_memory;
use crate::connection::shared::Shared;
use crate::connection::to_worker::Kept;
use crate::dispatch::dispatcher::Dispatcher;
use crate::dispatch::responder::{Disposition, Responder};
use crate::executor::Executor;
use crate::server::publications::Publish;
use crate::server::web_sockets::WebSockets;

/// All responders. One that responds without the application must come before [`Full`], since it needs no place in the
/// run queue. `provided`: those that the server was given.
pub(super) fn in_order(
    context: &Context,
    dispatcher: &Arc<Dispatcher>,
    executor: Arc<dyn Executor>,
    clients: Option<Clients>,
    provided: Vec<Box<dyn Responder>>,
) -> Vec<Box<dyn Responder>> {
    let mut responders: Vec<Box<dyn Responder>> = Vec::new();
    if context.config.listeners.iter().any(|listener| listener.redirect.is_some()) {
        responders.push(Box::new(Redirect { shared: context.shared.clone() }));
    }
    if context.config.listeners.iter().any(|listener| listener.publishes) {
        responders.push(Box::new(Publish { shared: context.shared.clone() }));
    }
    if context.sessions.get().is_some() {
        // The worker that gets a request counts it for its client.
        responders.push(Box::new(PassToOwner { shared: context.shared.clone(), failures: OnceAMinute::default() }));
    }
    if let (Some(clients), Some(rate)) = (clients, context.config.client_rate) {
        responders.push(Box::new(Limited { shared: context.shared.clone(), clients, rate }));
    }
    if !context.config.websocket_events.is_empty() {
        responders.push(Box::new(WebSockets { shared: context.shared.clone() }));
    }
    responders.extend(provided);
    responders.push(Box::new(Full { dispatcher: dispatcher.clone() }));
    responders.push(Box::new(Enqueue { dispatcher: dispatcher.clone(), executor }));
    responders
}

/// Where an authority checks that a host asks for its certificate (RFC 8555 section 8.3): over plain HTTP.
const CHALLENGES: &[u8] = b"/.well-known/acme-challenge/";

/// True for a challenge token (RFC 8555 section 8.3), which has no dots, slashes or escapes. Other paths must not reach
/// the application unencrypted, however it interprets them.
fn is_token(rest: &[u8]) -> bool {
    !rest.is_empty() && rest.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// Redirects requests to the encrypted address of their host.
struct Redirect {
    shared: Arc<Shared>,
}

impl Responder for Redirect {
    fn respond(&self, mut exchange: Exchange) -> Disposition {
        let request = exchange.request();
        let Some(port) = self.shared.config.listener(request.peer.listener).redirect else {
            return Disposition::Passed(exchange);
        };
        let path = request.head.path.of(&request.bytes);
        if path.strip_prefix(CHALLENGES).is_some_and(is_token) {
            return Disposition::Passed(exchange);
        }
        let host = request.peer.host.or(request.framing.host).map(|host| host.of(&request.bytes));
        let page = match host.and_then(without_port) {
            Some(host) => {
                let mut location = [b"https://", host].concat();
                if port != 443 {
                    location.extend_from_slice(format!(":{port}").as_bytes());
                }
                location.extend_from_slice(if path.starts_with(b"/") { path } else { b"/" });
                if let Some(query) = request.head.query {
                    location.push(b'?');
                    location.extend_from_slice(query.of(&request.bytes));
                }
                // 308: the method and the body stay (RFC 9110 section 15.4.9).
                let page = begin_error(exchange.response_mut().head(), 308, "This service is encrypted.");
                // The parser of requests lets no byte pass that a field may not have.
                let _ = exchange.response_mut().head().field(b"Location", &location);
                page
            }
            None => begin_error(
                exchange.response_mut().head(),
                400,
                "The request names no host, so it cannot be redirected to HTTPS.",
            ),
        };
        send_memory(&mut exchange, &Arc::new(page.into_bytes()));
        Disposition::Done(exchange.finish_here())
    }
}

/// The host of an authority (RFC 3986 section 3.2). `None`: it is empty.
fn without_port(authority: &[u8]) -> Option<&[u8]> {
    let end = match authority.iter().rposition(|byte| *byte == b':') {
        // The colons of an IPv6 address are within brackets.
        Some(at) if !authority[at..].contains(&b']') => at,
        _ => authority.len(),
    };
    (end > 0).then_some(&authority[..end])
}

/// Passes requests to the workers that have their sessions.
struct PassToOwner {
    shared: Arc<Shared>,
    failures: OnceAMinute,
}

impl Responder for PassToOwner {
    fn respond(&self, exchange: Exchange) -> Disposition {
        let Some(sessions) = self.shared.sessions.get() else { return Disposition::Passed(exchange) };
        // A request is passed once, so none goes round in circles.
        if exchange.connection().opening.take_passed() {
            return Disposition::Passed(exchange);
        }
        let Some(owner) = sessions.other_owner(exchange.request(), now) else { return Disposition::Passed(exchange) };
        let (exchange, kept) = match exchange.pass_to_worker(&sessions.address(owner)) {
            Ok(next) => return Disposition::Done(next),
            Err(kept) => kept,
        };
        match kept {
            Kept::Encrypted => {
                if let Some(line) = self.shared.one_time_warnings.sticky_is_encrypted() {
                    exchange.log(Level::Warning, &line);
                }
            }
            Kept::Fault(fault) => {
                sessions.note_fault(owner, &fault);
                if self.failures.may_log(self.shared.clock.now()) {
                    let line = exchange.request_line();
                    let text = format!(
                        "{line}: the request was not passed to the worker that has its session, so this one answers: {fault}"
                    );
                    exchange.log(Level::Warning, &text);
                }
            }
        }
        Disposition::Passed(exchange)
    }
}

/// Responds 429 to requests of clients that have sent too many.
struct Limited {
    shared: Arc<Shared>,
    clients: Clients,
    rate: Rate,
}

impl Responder for Limited {
    fn respond(&self, mut exchange: Exchange) -> Disposition {
        let peer = exchange.request().peer;
        if self.shared.config.listener(peer.listener).protocol == ListenerProtocol::Internal {
            // What a client has sent by a WebSocket, for which the server itself asks.
            return Disposition::Passed(exchange);
        }
        let client = peer.client;
        // A client without an address is behind a UNIX socket, and a trusted one is a proxy: neither is a client's own.
        let Some(address) = client.filter(|_| !self.shared.config.trust.is_trusted(client)) else {
            return Disposition::Passed(exchange);
        };
        let Err(wait) = self.clients.rates.take(self.clients.secret.key(address.ip()), self.rate, now()) else {
            return Disposition::Passed(exchange);
        };
        self.shared.count_limited_request();
        let page = begin_error(
            exchange.response_mut().head(),
            429,
            "This client has sent too many requests. Try again later.",
        );
        // Up to whole seconds (RFC 9110 section 10.2.3). A number cannot be refused.
        let seconds = wait.as_nanos().div_ceil(1_000_000_000).to_string();
        let _ = exchange.response_mut().head().field(b"Retry-After", seconds.as_bytes());
        send_memory(&mut exchange, &Arc::new(page.into_bytes()));
        Disposition::Done(exchange.finish_here())
    }
}

/// Responds 503 to requests for which the run queue has no room or the process has no memory.
struct Full {
    dispatcher: Arc<Dispatcher>,
}

impl Responder for Full {
    fn respond(&self, exchange: Exchange) -> Disposition {
        if self.dispatcher.queue.has_memory() && self.dispatcher.has_room() {
            return Disposition::Passed(exchange);
        }
        exchange.refuse();
        Disposition::Taken
    }
}

/// Puts the request into the run queue, from which a runner takes it and calls the application.
struct Enqueue {
    dispatcher: Arc<Dispatcher>,
    executor: Arc<dyn Executor>,
}

impl Responder for Enqueue {
    fn respond(&self, exchange: Exchange) -> Disposition {
        self.dispatcher.queue.push(exchange);
        self.executor.wake_runners();
        Disposition::Taken
    }
}
