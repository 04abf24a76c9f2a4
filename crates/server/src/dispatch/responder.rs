//! Who responds to a complete request.
//!
//! A server asks its responders in order, before any application thread is asked for anything; the last one passes no
//! request on.

use crate::connection::driver::Connection;
use crate::connection::exchange::{Exchange, NextStep};
use crate::connection::ownership::Owned;
use crate::connection::state::Next;

/// What a responder makes of a request.
pub enum Disposition {
    /// It has taken the request and responds to it later, or has made another thread the owner of the connection.
    Taken,
    /// It has responded, see [`Exchange::finish_here`].
    Done(NextStep),
    /// It has left the request to the next responder.
    Passed(Exchange),
}

/// One that responds to requests, or to some of them.
///
/// Called by the thread that read the last bytes of the request: mostly the I/O side, at times a runner that read the
/// next request of its connection, which may hold the interpreter. So a responder must not block, must not acquire the
/// interpreter, and has long work done by another thread. A responder that passes a request on has not changed it.
pub trait Responder: Send + Sync + 'static {
    /// Takes the request, or passes it on.
    fn respond(&self, exchange: Exchange) -> Disposition;

    /// The header fields by which the application delegates a response to this responder, which then responds only after
    /// the application. Empty: it responds without the application.
    fn delegation_fields(&self) -> &'static [&'static str] {
        &[]
    }

    /// Responds after the application, which has filled in the head and delegated the response.
    fn respond_after(&self, exchange: Exchange) -> Disposition {
        Disposition::Passed(exchange)
    }
}

/// Asks the responders in order until one takes the request, or the response that the application has delegated. If it
/// has responded immediately, the caller owns the connection again: returns the connection and the next action. A request
/// that all responders pass on is dropped, and so answered 500.
pub(crate) fn respond(responders: &[Box<dyn Responder>], mut exchange: Exchange) -> Option<(Owned<Connection>, Next)> {
    let is_after = exchange.is_delegated();
    // The application may delegate to one of those that have passed the request on.
    let first = if is_after { 0 } else { exchange.passed_on() };
    for (number, responder) in responders.iter().enumerate().skip(first) {
        exchange.set_passed_on(number);
        let disposition = if is_after { responder.respond_after(exchange) } else { responder.respond(exchange) };
        match disposition {
            Disposition::Taken => return None,
            Disposition::Done(NextStep(next)) => return next,
            Disposition::Passed(passed) => exchange = passed,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read;
    use std::net::TcpStream;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::{Disposition, Responder, respond};
    use crate::config::Config;
    use crate::connection::exchange::Exchange;
    use crate::connection::transaction::Delegation;
    use crate::executor::greenlets::testing::Served;

    /// Takes every request and responds with this status, or passes all on.
    struct Scripted {
        status: Option<u16>,
        asked: Arc<AtomicUsize>,
    }

    impl Responder for Scripted {
        fn respond(&self, exchange: Exchange) -> Disposition {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let Some(status) = self.status else { return Disposition::Passed(exchange) };
            exchange.fail(status, None);
            Disposition::Taken
        }
    }

    fn status_of(mut client: TcpStream) -> String {
        let mut response = String::new();
        client.read_to_string(&mut response).unwrap();
        response.split(' ').nth(1).unwrap().to_owned()
    }

    /// The status of the response to a request, and how many responders were asked.
    fn ask(served: &Served, statuses: &[Option<u16>]) -> (String, usize) {
        let asked = Arc::new(AtomicUsize::new(0));
        let scripted = |status: &Option<u16>| -> Box<dyn Responder> {
            Box::new(Scripted { status: *status, asked: asked.clone() })
        };
        let responders: Vec<_> = statuses.iter().map(scripted).collect();
        let (client, mut exchange) = served.exchange();
        // Those of the server have passed it on.
        exchange.set_passed_on(0);
        assert!(respond(&responders, exchange).is_none());
        (status_of(client), asked.load(Ordering::SeqCst))
    }

    #[test]
    fn the_first_responder_that_takes_a_request_responds_to_it() {
        let served = Served::new(Config::default());
        assert_eq!(ask(&served, &[Some(404), Some(403)]), (String::from("404"), 1));
        assert_eq!(ask(&served, &[None, Some(403), Some(404)]), (String::from("403"), 2));
        served.end();
    }

    #[test]
    fn after_the_application_the_responder_that_it_asks_for_responds_and_the_others_are_not_asked() {
        struct After;

        impl Responder for After {
            fn respond(&self, exchange: Exchange) -> Disposition {
                Disposition::Passed(exchange)
            }

            fn respond_after(&self, mut exchange: Exchange) -> Disposition {
                let Some(Delegation { field: "X-Status", value }) = exchange.take_delegation() else {
                    return Disposition::Passed(exchange);
                };
                exchange.fail(value.parse().unwrap(), None);
                Disposition::Taken
            }
        }

        let served = Served::new(Config::default());
        let asked = Arc::new(AtomicUsize::new(0));
        for (field, status) in [("X-Status", "404"), ("X-Other", "500")] {
            let (client, mut exchange) = served.exchange();
            exchange.set_passed_on(2);
            exchange.delegate(Some(Delegation { field, value: String::from("404") }));
            let first = Scripted { status: Some(403), asked: asked.clone() };
            assert!(respond(&[Box::new(first), Box::new(After)], exchange).is_none());
            assert_eq!(status_of(client), status);
        }
        assert_eq!(asked.load(Ordering::SeqCst), 0);
        served.end();
    }

    #[test]
    fn responders_that_have_passed_a_request_on_are_not_asked_again() {
        let served = Served::new(Config::default());
        let asked = Arc::new(AtomicUsize::new(0));
        let scripted =
            |status| -> Box<dyn Responder> { Box::new(Scripted { status: Some(status), asked: asked.clone() }) };
        let (client, mut exchange) = served.exchange();
        exchange.set_passed_on(1);
        assert!(respond(&[scripted(404), scripted(403)], exchange).is_none());
        assert_eq!((status_of(client).as_str(), asked.load(Ordering::SeqCst)), ("403", 1));
        served.end();
    }

    #[test]
    fn a_request_that_no_responder_takes_is_answered_500() {
        let served = Served::new(Config::default());
        assert_eq!(ask(&served, &[None, None]), (String::from("500"), 2));
        served.end();
    }
}
