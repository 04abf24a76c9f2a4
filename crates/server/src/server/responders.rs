//! The responders of a server, in the order in which they are asked for the response to a request.

use std::io;
use std::sync::Arc;

use tailrace_http::encode::begin_error;

use crate::clients::Clients;
use crate::clients::rates::Rate;
use crate::connection::context::Context;
use crate::connection::exchange::Exchange;
use crate::connection::representation::send_memory;
use crate::connection::shared::Shared;
use crate::dispatch::dispatcher::Dispatcher;
use crate::dispatch::responder::{Disposition, Responder};
use crate::executor::Turns;
use crate::observe::scoreboard::{WorkerSlot, now};
use crate::os::allocator;
use crate::static_files::StaticFiles;
use crate::static_files::named::NamedFiles;

/// All responders. One that responds without the application must come before [`Full`], since it needs no place in the
/// run queue.
///
/// # Errors
/// A folder of static files cannot be opened.
pub(super) fn in_order(
    context: &Context,
    dispatcher: &Arc<Dispatcher>,
    executor: Arc<dyn Turns>,
    worker_slot: Option<WorkerSlot>,
) -> io::Result<Vec<Box<dyn Responder>>> {
    let config = &context.config.static_files;
    let mut responders: Vec<Box<dyn Responder>> = Vec::new();
    if context.config.listeners.iter().any(|listener| listener.redirect.is_some()) {
        responders.push(Box::new(Redirect { shared: context.shared.clone() }));
    }
    if let (Some(slot), Some(rate)) = (worker_slot, context.config.client_rate) {
        responders.push(Box::new(Limited { shared: context.shared.clone(), clients: slot.clients(), rate }));
    }
    if !config.named.is_empty() {
        context.asking_fields.get_or_init(|| config.naming_fields());
        responders.push(Box::new(NamedFiles::new(config, context.disk.clone())?));
    }
    if !config.mounts.is_empty() {
        let position = responders.len();
        responders.push(Box::new(StaticFiles::new(config.clone(), context.disk.clone(), position)?));
    }
    responders.push(Box::new(Full { dispatcher: dispatcher.clone() }));
    responders.push(Box::new(Queue { dispatcher: dispatcher.clone(), executor }));
    Ok(responders)
}

/// Where an authority checks that a host asks for its certificate (RFC 8555 section 8.3): over plain HTTP.
const CHALLENGES: &[u8] = b"/.well-known/acme-challenge/";

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
        if path.starts_with(CHALLENGES) {
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
                let page = begin_error(exchange.head(), 308, "This service is encrypted.");
                // The parser of requests lets no byte pass that a field may not have.
                let _ = exchange.head().field(b"Location", &location);
                page
            }
            None => {
                begin_error(exchange.head(), 400, "The request names no host, so it cannot be redirected to HTTPS.")
            }
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

/// Responds 429 to requests of clients that have sent too many.
struct Limited {
    shared: Arc<Shared>,
    clients: Clients,
    rate: Rate,
}

impl Responder for Limited {
    fn respond(&self, mut exchange: Exchange) -> Disposition {
        let client = exchange.request().peer.client;
        // A client without an address is behind a UNIX socket, and a trusted one is a proxy: neither is a client's own.
        let Some(address) = client.filter(|_| !self.shared.config.trust.is_trusted(client)) else {
            return Disposition::Passed(exchange);
        };
        let Err(wait) = self.clients.rates.take(self.clients.secret.key(address.ip()), self.rate, now()) else {
            return Disposition::Passed(exchange);
        };
        self.shared.count_limited_request();
        let page = begin_error(exchange.head(), 429, "This client has sent too many requests. Try again later.");
        // Up to whole seconds (RFC 9110 section 10.2.3). A number cannot be refused.
        let seconds = wait.as_nanos().div_ceil(1_000_000_000).to_string();
        let _ = exchange.head().field(b"Retry-After", seconds.as_bytes());
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
        let has_memory = !allocator::is_short() && self.dispatcher.queue.has_memory();
        if has_memory && self.dispatcher.has_room() {
            return Disposition::Passed(exchange);
        }
        exchange.refuse();
        Disposition::Taken
    }
}

/// Puts the request into the run queue, from which a runner takes it and calls the application.
struct Queue {
    dispatcher: Arc<Dispatcher>,
    executor: Arc<dyn Turns>,
}

impl Responder for Queue {
    fn respond(&self, exchange: Exchange) -> Disposition {
        self.dispatcher.queue.push(exchange);
        self.executor.wake_runners();
        Disposition::Taken
    }
}
