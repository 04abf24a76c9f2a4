//! `POST /publish/` on the addresses that are for it: documents of publications, which are passed to the holder.

use std::sync::Arc;

use tailrace_holder::{message, publication};
use tailrace_http::encode::ResponseHead;
use tailrace_os::file;

use crate::connection::exchange::Exchange;
use crate::connection::representation::send_memory;
use crate::connection::shared::Shared;
use crate::dispatch::responder::{Disposition, Responder};
use crate::request::RequestBody;

/// Fields that only browsers send. A page of another site can have a browser send a POST request to an address that only
/// this machine reaches.
const OF_BROWSERS: [&[u8]; 2] = [b"origin", b"sec-fetch-site"];

/// Answers the requests of these addresses; none reaches the application.
pub(super) struct Publish {
    pub(super) shared: Arc<Shared>,
}

impl Responder for Publish {
    fn respond(&self, mut exchange: Exchange) -> Disposition {
        if !self.shared.config.listener(exchange.request().peer.listener).publishes {
            return Disposition::Passed(exchange);
        }
        let (status, text) = match self.publish(&mut exchange) {
            Ok(()) => ("200 OK", String::from("Published\n")),
            Err((status, text)) => (status, text + "\n"),
        };
        fill(exchange.response_mut().head(), status);
        send_memory(&mut exchange, &Arc::new(text.into_bytes()));
        Disposition::Done(exchange.finish_here())
    }
}

fn fill(head: &mut ResponseHead, status: &str) {
    // Constants, which cannot be refused.
    let _ = head.status(status.as_bytes());
    let _ = head.field(b"Content-Type", b"text/plain; charset=utf-8");
    if status.starts_with("405") {
        let _ = head.field(b"Allow", b"POST");
    }
}

impl Publish {
    fn publish(&self, exchange: &mut Exchange) -> Result<(), (&'static str, String)> {
        let request = exchange.request();
        let bytes = &request.bytes;
        if !matches!(request.head.path.of(bytes), b"/publish/" | b"/publish") {
            return Err(("404 Not Found", String::from("This address has only /publish/.")));
        }
        if request.head.method.of(bytes) != b"POST" {
            return Err(("405 Method Not Allowed", String::from("Send a POST request with a JSON document.")));
        }
        let is_of_browser = |name: &[u8]| OF_BROWSERS.iter().any(|each| name.eq_ignore_ascii_case(each));
        if request.head.fields.iter().any(|field| is_of_browser(field.name.of(bytes))) {
            return Err(("403 Forbidden", String::from("Pages in browsers may not publish here.")));
        }
        let document = document(exchange.take_body()).ok_or_else(|| {
            ("413 Content Too Large", format!("A document may have {} bytes.", publication::MAX_DOCUMENT))
        })?;
        publication::parse(&document).map_err(|fault| ("400 Bad Request", fault))?;
        let address = self.shared.config.holder.as_deref().unwrap_or_default();
        message::publish(address, &document).map_err(|fault| {
            ("503 Service Unavailable", format!("The process that holds connections cannot be reached: {fault}"))
        })
    }
}

/// The body of a request; `None`: it is too large.
fn document(body: RequestBody) -> Option<Vec<u8>> {
    match body {
        RequestBody::Empty => Some(Vec::new()),
        RequestBody::Memory(segments) => (segments.len() <= publication::MAX_DOCUMENT).then(|| segments.into_vec()),
        RequestBody::File { file, length } => {
            let length = usize::try_from(length).ok().filter(|length| *length <= publication::MAX_DOCUMENT)?;
            let mut bytes = vec![0; length];
            file::read_exact_at(&file, &mut bytes, 0).ok()?;
            Some(bytes)
        }
        // Bodies of these addresses are read whole.
        RequestBody::Stream(_) => None,
    }
}
