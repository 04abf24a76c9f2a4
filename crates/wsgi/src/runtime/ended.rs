//! A response that is over, as Python sees it.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tailrace_http::query::QueryMasking;
use tailrace_observe::ended::EndedResponse;
use tailrace_server::client_text;

/// The id of a request, if it has one.
pub(super) fn id_of(id: &[u8]) -> Option<String> {
    (!id.is_empty()).then(|| id.escape_ascii().to_string())
}

/// A response that is over as Python sees it. `now`: by the clock of [`EndedResponse::at`].
pub(super) fn ended_dict<'py>(
    py: Python<'py>,
    ended: &EndedResponse,
    now: u64,
    masking: QueryMasking,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("method", ended.method.escape_ascii().to_string())?;
    dict.set_item("target", masking.shown(&ended.target).escape_ascii().to_string())?;
    let path = origin_form(&ended.target).split(|byte| *byte == b'?').next().unwrap_or_default();
    dict.set_item("endpoint", tailrace_observe::endpoints::name_of(&ended.method, path).escape_ascii().to_string())?;
    dict.set_item("request_id", id_of(&ended.id))?;
    dict.set_item("client", client_text(ended.peer))?;
    dict.set_item("status", ended.status)?;
    dict.set_item("event_stream", ended.is_event_stream)?;
    dict.set_item("ending", ended.ending.name())?;
    dict.set_item("path", ended.path.name())?;
    for (name, size) in ended.sizes {
        dict.set_item(name, size)?;
    }
    for (name, nanos) in ended.times {
        dict.set_item(name, nanos as f64 / 1e9)?;
    }
    for (name, number) in ended.worker {
        dict.set_item(name, number)?;
    }
    dict.set_item("ago", now.saturating_sub(ended.at) as f64 / 1e9)?;
    Ok(dict)
}

/// Path and query of a target, also of one with scheme and host (RFC 9112 section 3.2.2).
pub(super) fn origin_form(target: &[u8]) -> &[u8] {
    let is_absolute =
        |scheme: &&str| target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme.as_bytes()));
    let Some(scheme) = ["http://", "https://"].into_iter().find(is_absolute) else { return target };
    let rest = &target[scheme.len()..];
    rest.iter().position(|byte| matches!(byte, b'/' | b'?')).map_or(b"/".as_slice(), |at| &rest[at..])
}

#[cfg(test)]
mod tests {
    use super::origin_form;

    #[test]
    fn a_target_with_scheme_and_host_has_path_and_query() {
        for (target, wanted) in [
            ("/a?b", "/a?b"),
            ("http://h/a?b=http://i/", "/a?b=http://i/"),
            ("HTTPS://h:8/", "/"),
            ("http://h", "/"),
            ("http://h?b", "?b"),
            ("*", "*"),
            ("/http://h/a", "/http://h/a"),
        ] {
            assert_eq!(origin_form(target.as_bytes()), wanted.as_bytes(), "{target}");
        }
    }
}
