//! WebSockets that the holder serves: requests for certain paths, which are passed to it with their connections.

use std::sync::Arc;

use tailrace_http::percent::percent_decode;
use tailrace_observe::level::Level;

use crate::config::ListenerProtocol;
use crate::connection::exchange::Exchange;
use crate::connection::shared::Shared;
use crate::dispatch::responder::{Disposition, Responder};
use crate::request::Request;

/// The type of the requests by which the holder passes what clients have sent.
const EVENTS: &[u8] = b"application/websocket-events";

/// Length of 16 bytes in base64.
const KEY_LENGTH: usize = 24;

/// Passes requests for WebSockets to the holder.
pub(super) struct WebSockets {
    pub(super) shared: Arc<Shared>,
}

impl Responder for WebSockets {
    fn respond(&self, exchange: Exchange) -> Disposition {
        let request = exchange.request();
        let config = &self.shared.config;
        if config.listener(request.peer.listener).protocol == ListenerProtocol::Internal {
            return Disposition::Passed(exchange);
        }
        if !request.framing.web_socket {
            // Only the holder may say what a client has sent, or the proxy that does its work. Other proxies, which are
            // trusted as well, pass on what their clients send.
            let is_of_holder = config.is_behind_holder && config.trust.is_trusted(request.peer.socket);
            if is_of_events(&exchange) && !is_of_holder {
                return refuse(exchange, 403, "Only a proxy that serves WebSockets may send their events.");
            }
            return Disposition::Passed(exchange);
        }
        // As the application sees it.
        let path = percent_decode(request.head.path.of(&request.bytes));
        if !config.websocket_events.iter().any(|known| covers(known, &path)) {
            return Disposition::Passed(exchange);
        }
        if let Some(sentence) = fault_of(request) {
            return refuse(exchange, 400, sentence);
        }
        if let Err(origin) = exchange.check_origin() {
            let warnings = &self.shared.one_time_warnings;
            if let Some(line) = warnings.foreign_origin(&exchange.request_line(), &origin, self.shared.clock.now()) {
                exchange.log(Level::Warning, &line);
            }
            return refuse(exchange, 403, "Pages of this origin may not open a WebSocket here.");
        }
        match exchange.pass_web_socket() {
            Ok(next) => Disposition::Done(next),
            Err((exchange, fault)) => {
                let line = format!(
                    "{}: cannot pass the WebSocket to the process that holds connections: {fault}",
                    exchange.request_line()
                );
                exchange.log(Level::Error, &line);
                refuse(exchange, 503, "The server cannot hold this connection.")
            }
        }
    }
}

/// What a handshake lacks (RFC 6455 section 4.2.1).
fn fault_of(request: &Request) -> Option<&'static str> {
    let only = |name| {
        let mut values = request.head.values(&request.bytes, name);
        values.next().filter(|_| values.next().is_none())
    };
    if only(b"sec-websocket-key").is_none_or(|key| key.len() != KEY_LENGTH) {
        return Some("A WebSocket handshake needs the header Sec-WebSocket-Key with 16 bytes in base64.");
    }
    let is_known = only(b"sec-websocket-version").is_some_and(|version| version == b"13");
    (!is_known).then_some("This server supports only WebSocket version 13 (Sec-WebSocket-Version).")
}

fn refuse(exchange: Exchange, status: u16, sentence: &str) -> Disposition {
    exchange.fail(status, Some(sentence));
    Disposition::Taken
}

/// Whether a path is one of the option, or below one that ends with a slash.
fn covers(known: &[u8], path: &[u8]) -> bool {
    path == known || (known.ends_with(b"/") && path.starts_with(known))
}

fn is_of_events(exchange: &Exchange) -> bool {
    let request = exchange.request();
    request.head.fields.iter().any(|field| {
        field.name.of(&request.bytes).eq_ignore_ascii_case(b"content-type")
            && field.value.of(&request.bytes).to_ascii_lowercase().starts_with(EVENTS)
    })
}

#[cfg(test)]
mod tests {
    use super::covers;

    #[test]
    fn a_path_that_ends_with_a_slash_stands_for_all_below() {
        for (known, path, is) in
            [("/ws", "/ws", true), ("/ws", "/ws/a", false), ("/ws/", "/ws/a", true), ("/ws/", "/ws", false)]
        {
            assert_eq!(covers(known.as_bytes(), path.as_bytes()), is, "{known} {path}");
        }
    }
}
