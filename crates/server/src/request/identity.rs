//! The id of a request: the one that a trusted proxy states, or a new one. From then on it is a field of the request
//! like any other, so that the application finds it in `environ`.
//!
//! Pure but for the random numbers. Thread: the owner of the connection.

use std::time::Duration;

use tailrace_http::identity::{IdField, NEW_ID, trace_id, uuid_v7};
use tailrace_http::query::QueryMasking;
use tailrace_http::request_head::{Field, Span};

use crate::os::random::draw;
use crate::request::Request;

impl Request {
    /// Notes the id of the request. `is_trusted`: the sender of the fields may state it. `now`: time since 1970, for a
    /// new id. False: the system has no memory for a new id.
    #[inline(never)]
    pub(crate) fn identify(&mut self, field: &IdField, is_trusted: bool, now: Duration) -> bool {
        if let Some(id) = field.take(&self.bytes, &mut self.head.fields, is_trusted) {
            self.id = id;
            return true;
        }
        let name = field.name();
        if self.bytes.try_reserve(name.len() + NEW_ID).is_err() || self.head.fields.try_reserve(1).is_err() {
            return false;
        }
        let millis = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let [start, middle, end] = [0, name.len(), name.len() + NEW_ID].map(|at| (self.bytes.len() + at) as u32);
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(&uuid_v7(millis, draw()));
        self.id = Span { start: middle, end };
        self.head.fields.push(Field { name: Span { start, end: middle }, value: self.id });
        true
    }

    /// Method and target, printable, without the values that `masking` hides; then the id and the trace, if it has them.
    pub(crate) fn line(&self, masking: QueryMasking) -> String {
        format!("{}{}", self.name(masking), id_text(self.id(), self.trace()))
    }

    /// The id; empty: ids are off, or the head was never complete.
    #[must_use]
    pub fn id(&self) -> &[u8] {
        self.id.of(&self.bytes)
    }

    /// The trace to which the request belongs, as its only `traceparent` states it.
    #[must_use]
    pub fn trace(&self) -> Option<&[u8]> {
        let is_one = |field: &&Field| field.name.of(&self.bytes).eq_ignore_ascii_case(b"traceparent");
        let mut fields = self.head.fields.iter().filter(is_one);
        let field = fields.next()?;
        if fields.next().is_some() { None } else { trace_id(field.value.of(&self.bytes)) }
    }
}

/// What follows a request's method and target in the log; empty: nothing.
pub(crate) fn id_text(id: &[u8], trace: Option<&[u8]>) -> String {
    match (id, trace) {
        ([], None) => String::new(),
        ([], Some(trace)) => format!(" (trace {})", trace.escape_ascii()),
        (id, None) => format!(" (id {})", id.escape_ascii()),
        (id, Some(trace)) => format!(" (id {}, trace {})", id.escape_ascii(), trace.escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use tailrace_http::head::{HeadParser, HeadStep};
    use tailrace_http::identity::IdField;
    use tailrace_http::limits::Limits;
    use tailrace_http::query::QueryMasking;

    use super::{Request, id_text};

    fn request(lines: &str) -> Request {
        let mut request =
            Request { bytes: format!("GET /a HTTP/1.1\r\n{lines}\r\n").into_bytes(), ..Request::default() };
        let step = HeadParser::default().parse(&request.bytes, &Limits::default(), &mut request.head);
        assert_eq!(step, HeadStep::Complete);
        request
    }

    fn identified(lines: &str, is_trusted: bool) -> Request {
        let mut request = request(lines);
        let field = IdField::named("X-Request-ID").unwrap();
        assert!(request.identify(&field, is_trusted, Duration::from_millis(0x017f_22e2_79b0)));
        request
    }

    #[test]
    fn the_id_of_a_trusted_peer_is_kept() {
        let request = identified("x-request-id: abc\r\nHost: a\r\n", true);
        assert_eq!((request.id(), request.head.fields.len()), (b"abc".as_slice(), 2));
        assert_eq!(request.line(QueryMasking::Secrets), "GET /a (id abc)");
    }

    #[test]
    fn a_new_id_is_a_field_and_differs_from_each_other_one() {
        let lines = "Host: a\r\nX-Request-ID: forged\r\nA: b\r\n";
        let (one, other) = (identified(lines, false), identified(lines, false));
        assert_eq!(one.id().get(..15), Some(b"017f22e2-79b0-7".as_slice()));
        assert_ne!(one.id(), other.id());
        let fields: Vec<_> =
            one.head.fields.iter().map(|field| (field.name.of(&one.bytes), field.value.of(&one.bytes))).collect();
        let wanted: [(&[u8], &[u8]); 3] = [(b"Host", b"a"), (b"A", b"b"), (b"X-Request-ID", one.id())];
        assert_eq!(fields, wanted);
        // What was parsed before is still where it was.
        assert_eq!(one.head.target.of(&one.bytes), b"/a");
    }

    #[test]
    fn id_and_trace_follow_the_target_if_there_are_any() {
        assert_eq!(request("Host: a\r\n").line(QueryMasking::Secrets), "GET /a");
        let texts = [id_text(b"", None), id_text(b"a\xff", None), id_text(b"", Some(b"b")), id_text(b"a", Some(b"b"))];
        assert_eq!(texts, ["", " (id a\\xff)", " (trace b)", " (id a, trace b)"]);
    }

    #[test]
    fn the_trace_is_that_of_the_only_traceparent() {
        let valid = "TraceParent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";
        assert_eq!(request(valid).trace(), Some(b"4bf92f3577b34da6a3ce929d0e0e4736".as_slice()));
        for lines in [String::new(), valid.repeat(2), valid.replace("01\r", "1\r"), valid.replace("Trace", "Trade")] {
            assert_eq!(request(&lines).trace(), None, "{lines}");
        }
    }
}
