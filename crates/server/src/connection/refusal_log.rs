//! Log messages about requests that the server itself has rejected: one a minute for each status and reason, with the
//! option that the operator can raise.
//!
//! Any thread.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;

use tailrace_http::limits::{Exceeded, Refusal, reason_phrase};
use tailrace_observe::level::Level;
use tailrace_observe::once_a_minute::OnceAMinute;
use tailrace_os::clock::Millis;
use tailrace_os::sync::lock;

use crate::request::client_text;

/// Rejected requests of one kind.
#[derive(Default)]
struct Kind {
    logged: OnceAMinute,
    /// Number of rejected requests since then.
    left_out: u64,
}

/// Reasons are constants of the server, so there are few kinds.
#[derive(Default)]
pub(crate) struct RefusalLog(Mutex<HashMap<Refusal, Kind>>);

impl RefusalLog {
    /// A request from this client was rejected. `None`: a message of this kind was logged in the last minute.
    pub(crate) fn refused(&self, refusal: Refusal, client: Option<SocketAddr>, now: Millis) -> Option<(Level, String)> {
        let Refusal { status, reason, exceeded } = refusal;
        let left_out = {
            let mut kinds = lock(&self.0);
            let kind = kinds.entry(refusal).or_default();
            if !kind.logged.may_log(now) {
                kind.left_out += 1;
                return None;
            }
            std::mem::take(&mut kind.left_out)
        };
        let client = client.map_or_else(|| "a client without an address".to_owned(), |_| client_text(client));
        let mut line = format!("rejected a request from {client}: {status} {}: {reason}", reason_phrase(status));
        if let Some(exceeded) = exceeded {
            line += &format!(" To allow such requests, raise {}.", option(exceeded));
        }
        if left_out > 0 {
            line += &format!(" {left_out} more were rejected since the last such message.");
        }
        line += " This is logged once a minute for each reason";
        // Malformed requests are the client's fault, and scanners send many of them.
        Some((if exceeded.is_none() { Level::Debug } else { Level::Warning }, line))
    }
}

/// The option whose limit the request has exceeded.
fn option(exceeded: Exceeded) -> &'static str {
    match exceeded {
        Exceeded::RequestLine => "--request-line-limit",
        Exceeded::HeaderBytes => "--header-bytes-limit",
        Exceeded::Body => "--max-body",
        Exceeded::HeaderTime => "--header-timeout",
        Exceeded::BodyTime => "--body-timeout",
        Exceeded::ClientMemory => "--client-memory",
        // All bodies in files may have a multiple of the limit of one.
        Exceeded::BodyFiles => "--max-body",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tailrace_http::limits::{Exceeded, Refusal};
    use tailrace_observe::level::Level;
    use tailrace_observe::once_a_minute::PAUSE;

    use super::RefusalLog;
    use crate::request::part::Part;

    #[test]
    fn each_kind_of_refusal_is_logged_once_a_minute_with_its_option() {
        let log = RefusalLog::default();
        let client = Some("192.0.2.7:4711".parse().unwrap());
        let large = Refusal::beyond(413, "The request body is too large.", Exceeded::Body);
        let (level, line) = log.refused(large, client, 5).unwrap();
        assert_eq!(level, Level::Warning);
        assert_eq!(
            line,
            "rejected a request from 192.0.2.7:4711: 413 Content Too Large: The request body is too large. To allow \
             such requests, raise --max-body. This is logged once a minute for each reason"
        );
        assert!(log.refused(large, client, 6).is_none() && log.refused(large, None, 4 + PAUSE).is_none());
        let (level, line) = log.refused(Refusal::new(400, "A field name must be a token."), None, 6).unwrap();
        assert!(level == Level::Debug && line.contains("without an address: 400 Bad Request: A field name"), "{line}");
        assert!(!line.contains("--"), "{line}");
        assert!(log.refused(Refusal::new(400, "Host must be given once."), None, 6).is_some());
        let (_, line) = log.refused(large, client, 5 + PAUSE).unwrap();
        assert!(line.contains(" 2 more were rejected since the last such message. "), "{line}");
        assert!(log.refused(large, client, 6 + PAUSE).is_none());
        // A body that comes steadily, and too slowly, is as late as one that does not come.
        let (_, line) = log.refused(Part::Body.late(), client, 5).unwrap();
        assert!(line.contains("raise --body-timeout."), "{line}");
    }
}
