//! The id of a request: the one that a trusted proxy states, or a new one. And its place in a trace, if requests are
//! traced. From then on each is a field of the request like any other, so that the application finds it in `environ`.
//!
//! Pure but for the random numbers. Thread: the owner of the connection.

use std::time::Duration;

use tailrace_http::identity::{
    IdField, Sampling, TRACEPARENT, TraceParent, Traced, id_text, only_field, trace_of, uuid_v7,
};
use tailrace_http::query::QueryMasking;
use tailrace_http::request_head::{Field, Span};
use tailrace_os::random::draw;

use crate::request::Request;

impl Request {
    /// Notes the id of the request. `is_trusted`: the sender of the fields may state it. `now`: time since 1970, for a
    /// new id. `None`: the system has no memory for a new id.
    #[inline(never)]
    pub(crate) fn identify(&mut self, field: &IdField, is_trusted: bool, now: Duration) -> Option<()> {
        if let Some(id) = field.take(&self.bytes, &mut self.head.fields, is_trusted) {
            self.id = id;
            return Some(());
        }
        let millis = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.id = self.add_field(field.name(), &uuid_v7(millis, draw()))?;
        Some(())
    }

    /// Decides whether the request is traced, and tells the application by `traceparent`: its parent is the span that the
    /// server makes of the application.
    ///
    /// `is_trusted`: the sender of the fields may decide, if it states a trace. `None`: the system has no memory for
    /// the field.
    #[inline(never)]
    pub(crate) fn join_trace(&mut self, sampling: Sampling, is_trusted: bool) -> Option<()> {
        let stated = only_field(&self.bytes, &self.head.fields, TRACEPARENT).and_then(TraceParent::read);
        let (trace, parent) = match stated {
            Some(stated) => (stated.trace, stated.parent),
            None => (draw().max(1), 0),
        };
        let is_sampled = match stated {
            Some(stated) if is_trusted && sampling.is_parent_based => {
                // The application is to see what a sender that does not record has stated.
                if !stated.is_sampled {
                    return Some(());
                }
                true
            }
            // A client that chooses the id must not choose to be traced.
            Some(_) if !is_trusted => sampling.takes(draw()),
            _ => sampling.takes(trace),
        };
        // An id of zeros is none.
        let drawn = draw();
        let (span, application) = ((drawn as u64).max(1), ((drawn >> 64) as u64).max(1));
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
        self.add_field(TRACEPARENT, &TraceParent { trace, parent: application, is_sampled }.write()).map(drop)
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
        trace_of(&self.bytes, &self.head.fields)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use tailrace_http::head::{HeadParser, HeadStep};
    use tailrace_http::identity::{IdField, Sampling, TRACEPARENT, TraceParent, only_field};
    use tailrace_http::limits::Limits;
    use tailrace_http::query::QueryMasking;

    use super::Request;

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
        request.identify(&field, is_trusted, Duration::from_millis(0x017f_22e2_79b0)).unwrap();
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
        request.join_trace(Sampling { share, is_parent_based: true }, is_trusted).unwrap();
        request
    }

    fn only<'a>(request: &'a Request, name: &[u8]) -> Option<&'a [u8]> {
        only_field(&request.bytes, &request.head.fields, name)
    }

    fn told(request: &Request) -> TraceParent {
        TraceParent::read(only(request, TRACEPARENT).unwrap()).unwrap()
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
        assert!(only(&request, b"tracestate").is_some());
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
    fn the_flag_of_a_trusted_sender_can_be_ignored() {
        for flag in ["00", "01"] {
            let line = format!("Traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flag}\r\n");
            // The last half of the id is 0.64 of all.
            for (share, wanted) in [(0.0, false), (0.63, false), (0.65, true), (1.0, true)] {
                let mut request = request(&line);
                request.join_trace(Sampling { share, is_parent_based: false }, true).unwrap();
                assert_eq!(request.traced.is_some(), wanted, "{flag} {share}");
                assert_eq!(told(&request).is_sampled, wanted);
                assert_ne!(told(&request).parent, 0x00f0_67aa_0ba9_02b7);
            }
        }
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
            assert_eq!(only(&one, b"tracestate"), None);
            // What was parsed before is still where it was.
            assert_eq!(one.head.target.of(&one.bytes), b"/a");
        }
    }

    #[test]
    fn id_and_trace_follow_the_target_if_there_are_any() {
        assert_eq!(request("Host: a\r\n").line(QueryMasking::Secrets), "GET /a");
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
