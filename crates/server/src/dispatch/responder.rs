//! Who responds to a complete request.
//!
//! A server asks its responders in order, before any application thread is asked for anything; the last one passes no
//! request on.

use crate::connection::exchange::Exchange;

/// What a responder makes of a request.
pub(crate) enum Response {
    /// It has taken the request and responds to it, now or later.
    Taken,
    /// It has left the request to the next responder.
    Passed(Exchange),
}

/// One that responds to requests, or to some of them.
///
/// Called by the thread that read the last bytes of the request: mostly the I/O side, at times a runner that read the
/// next request of its connection, which may hold the interpreter. So a responder must not block, must not acquire the
/// interpreter, and has long work done by another thread. A responder that passes a request on has not changed it.
pub(crate) trait Responder: Send + Sync + 'static {
    /// Takes the request, or passes it on.
    fn respond(&self, exchange: Exchange) -> Response;
}

/// Asks the responders in order until one takes the request. A request that all of them pass on is dropped, and so
/// answered 500.
pub(crate) fn respond(responders: &[Box<dyn Responder>], mut exchange: Exchange) {
    for responder in responders {
        match responder.respond(exchange) {
            Response::Taken => return,
            Response::Passed(passed) => exchange = passed,
        }
    }
}
