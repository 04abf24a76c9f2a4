//! Who answers a complete request.
//!
//! A server asks its responders in order, before any application thread is asked for anything; the last one passes no
//! request on.

use crate::connection::exchange::Exchange;

/// What a responder makes of a request.
pub(crate) enum Response {
    /// It has taken the request: it answers it, now or later.
    Taken,
    /// Somebody else is to answer the request.
    Passed(Exchange),
}

/// One that answers requests, or some of them.
///
/// Called by the thread that read the last bytes of the request: mostly the I/O side, at times a runner that read the
/// next request of its connection, which may hold the interpreter. So a responder must not block, must not take the
/// interpreter, and gives what takes long to another thread. A responder that passes a request on leaves it as it was.
pub(crate) trait Responder: Send + Sync + 'static {
    /// Takes the request, or passes it on.
    fn respond(&self, exchange: Exchange) -> Response;
}

/// Has the first of the responders answer that takes the request. A request that all of them pass on is answered 500 as
/// it is dropped.
pub(crate) fn respond(responders: &[Box<dyn Responder>], mut exchange: Exchange) {
    for responder in responders {
        match responder.respond(exchange) {
            Response::Taken => return,
            Response::Passed(passed) => exchange = passed,
        }
    }
}
