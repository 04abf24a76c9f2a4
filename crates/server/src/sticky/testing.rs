//! Requests for the tests of this folder.

use tailrace_http::request_head::{Field, Span};

use crate::request::Request;

fn add(request: &mut Request, text: &str) -> Span {
    let start = request.bytes.len() as u32;
    request.bytes.extend_from_slice(text.as_bytes());
    Span { start, end: request.bytes.len() as u32 }
}

/// A request with this query string.
pub(crate) fn query(text: &str) -> Request {
    let mut request = Request::default();
    request.head.query = Some(add(&mut request, text));
    request
}

/// A request with these fields.
pub(crate) fn with_fields(fields: &[(&str, &str)]) -> Request {
    let mut request = Request::default();
    for (name, value) in fields {
        let field = Field { name: add(&mut request, name), value: add(&mut request, value) };
        request.head.fields.push(field);
    }
    request
}
