//! The id of a request: the one that a trusted proxy states, or a new one. And its place in a trace, if requests are
//! traced. From then on each is a field of the request like any other, so that the application finds it in `environ`.
//!
//! Pure but for the random numbers. Thread: the owner of the connection.

use std::time::Duration;

use tailrace_http::identity::{IdField, TraceParent, trace_id, uuid_v7};
use tailrace_http::query::QueryMasking;
use tailrace_http::request_head::{Field, Span};

use crate::os::random::draw;
use crate::request::{Request, Traced};

/// The field that says where a request is in its trace.
const TRACEPARENT: &[u8] = b"traceparent";

impl Request {
    /// Notes the id of the request. `is_trusted`: the sender of the fields may state it. `now`: time since 1970, for a
    /// new id. False: the system has no memory for a new id.
    #[inline(never)]
    pub(crate) fn identify(&mut self, field: &IdField, is_trusted: bool, now: Duration) -> bool {
        if let Some(id) = field.take(&self.bytes, &mut self.head.fields, is_trusted) {
            self.id = id;
            return true;
        }
        let millis = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let Some(id) = self.add_field(field.name(), &uuid_v7(millis, draw())) else { return false };
        self.id = id;
        true
    }

    /// Decides whether the request is traced, and tells the application by `traceparent`: its parent is the span that the
    /// server makes of the application.
    ///
    /// `is_trusted`: the sender of the fields decides, if it states a trace; otherwise this `share` of requests is traced,
    /// whatever it asks for. False: the system has no memory for the field.
    #[inline(never)]
    pub(crate) fn join_trace(&mut self, share: f64, is_trusted: bool) -> bool {
        let stated = self.only(TRACEPARENT).and_then(TraceParent::read);
        let is_sampled = match stated {
            // The application is to see what a sender that does not record has stated.
            Some(TraceParent { is_sampled: false, .. }) if is_trusted => return true,
            Some(_) if is_trusted => true,
            _ => is_drawn(share, draw()),
        };
        // An id of zeros is none.
        let drawn = draw();
        let (span, application) = ((drawn as u64).max(1), ((drawn >> 64) as u64).max(1));
        let (trace, parent) = match stated {
            Some(stated) => (stated.trace, stated.parent),
            None => (draw().max(1), 0),
        };
        if is_sampled {
            self.traced = Some(Traced { trace, parent, span, application });
        }
        let bytes = &self.bytes;
        self.head.fields.retain(|field| {
            let name = field.name.of(bytes);
            // Without a valid traceparent it belongs to no trace (section 4.3).
            let is_state = stated.is_none() && name.eq_ignore_ascii_case(b"tracestate");
            !is_state && !name.eq_ignore_ascii_case(TRACEPARENT)
        });
        self.add_field(TRACEPARENT, &TraceParent { trace, parent: application, is_sampled }.write()).is_some()
    }

    /// Adds a field. Returns its value; `None`: the system has no memory for it.
    fn add_field(&mut self, name: &[u8], value: &[u8]) -> Option<Span> {
        self.bytes.try_reserve(name.len() + value.len()).ok()?;
        self.head.fields.try_reserve(1).ok()?;
        let [start, middle, end] = [0, name.len(), name.len() + value.len()].map(|at| (self.bytes.len() + at) as u32);
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        let value = Span { start: middle, end };
        self.head.fields.push(Field { name: Span { start, end: middle }, value });
        Some(value)
    }

    /// The value of the only field of this name.
    fn only(&self, name: &[u8]) -> Option<&[u8]> {
        let is_one = |field: &&Field| field.name.of(&self.bytes).eq_ignore_ascii_case(name);
        let mut fields = self.head.fields.iter().filter(is_one);
        let field = fields.next()?;
        if fields.next().is_some() { None } else { Some(field.value.of(&self.bytes)) }
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
        self.only(TRACEPARENT).and_then(trace_id)
    }
}

/// Whether a random number is in this share of all.
fn is_drawn(share: f64, random: u128) -> bool {
    // 53 bits, as many as the number has; so a share of 1 has all of them.
    ((random as u64 >> 11) as f64) < share * (1u64 << 53) as f64
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
    use tailrace_http::identity::{IdField, TraceParent};
    use tailrace_http::limits::Limits;
    use tailrace_http::query::QueryMasking;

    use super::{Request, TRACEPARENT, id_text, is_drawn};

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

    fn traced(lines: &str, share: f64, is_trusted: bool) -> Request {
        let mut request = request(lines);
        assert!(request.join_trace(share, is_trusted));
        request
    }

    fn told(request: &Request) -> TraceParent {
        TraceParent::read(request.only(TRACEPARENT).unwrap()).unwrap()
    }

    #[test]
    fn a_trusted_sender_decides_what_is_traced() {
        let lines =
            "A: b\r\nTraceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\ntracestate: a=b\r\n";
        let request = traced(lines, 0.0, true);
        let found = request.traced.unwrap();
        assert_eq!((found.trace, found.parent), (0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, 0x00f0_67aa_0ba9_02b7));
        let wanted = TraceParent { trace: found.trace, parent: found.application, is_sampled: true };
        assert_eq!(told(&request), wanted);
        assert_ne!(found.application, found.span);
        assert!(request.only(b"tracestate").is_some());
        let off = lines.replace("-01\r", "-00\r");
        let request = traced(&off, 1.0, true);
        assert_eq!(request.traced, None);
        assert_eq!((told(&request).parent, told(&request).is_sampled), (0x00f0_67aa_0ba9_02b7, false));
        // Another one does not.
        assert_eq!(traced(lines, 0.0, false).traced, None);
        assert!(!told(&traced(lines, 0.0, false)).is_sampled);
        assert_eq!(traced(&off, 1.0, false).traced.unwrap().trace, found.trace);
    }

    #[test]
    fn a_request_without_a_valid_trace_begins_one() {
        let valid = "TraceParent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";
        for lines in [String::new(), valid.repeat(2), valid.replace("01\r", "1\r")] {
            let (one, other) = (traced(&(lines.clone() + "Tracestate: a=b\r\n"), 1.0, true), traced(&lines, 1.0, true));
            let found = one.traced.unwrap();
            assert_eq!(found.parent, 0);
            assert_eq!((told(&one).trace, told(&one).parent), (found.trace, found.application));
            assert_ne!(found.trace, other.traced.unwrap().trace);
            assert_eq!(one.only(b"tracestate"), None);
            // What was parsed before is still where it was.
            assert_eq!(one.head.target.of(&one.bytes), b"/a");
        }
    }

    #[test]
    fn a_share_of_the_others_is_traced() {
        assert!(is_drawn(1.0, u128::MAX) && is_drawn(0.5, 0) && is_drawn(0.5, (1 << 63) - 1));
        assert!(!is_drawn(0.0, 0) && !is_drawn(0.5, 1 << 63));
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
