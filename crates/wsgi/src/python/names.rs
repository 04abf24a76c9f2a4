//! The names of `environ`: interned `str` objects, created once per process, and the table that maps a header name as
//! received to its key.
//!
//! Rules for header names (PEP 3333 "environ Variables", RFC 3875 section 4.1.18):
//! - `Content-Type` becomes `CONTENT_TYPE`; `CONTENT_LENGTH` is set from the body itself; neither appears as `HTTP_*`.
//! - `Proxy` has no key: HTTP clients in the application would take `HTTP_PROXY` for their proxy (httpoxy).
//! - `Transfer-Encoding` has no key: the body has been decoded when the application reads it (RFC 9112 section 7.1.3).
//! - `Host` has no key here: `HTTP_HOST` is set from the head, because an absolute-form target overrides the field.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;

/// What a header field does to `environ`.
pub(crate) enum FieldRole<'a> {
    /// It is the value of this key.
    Key(&'a Py<PyString>),
    /// Its name is not in the table: the key has to be made by [`environ_name`].
    Unknown,
    /// It has no key: `environ` does not contain it, or another source sets its key.
    Nothing,
}

/// Header names that are frequent enough to have a key ready.
const HEADERS: &str = "\
    accept accept-charset accept-encoding accept-language accept-ranges access-control-request-headers \
    access-control-request-method alt-used authorization cache-control cdn-loop cf-connecting-ip cf-ipcountry \
    cf-ray cf-visitor connection content-disposition content-encoding content-language content-location \
    content-md5 content-range content-type cookie date depth destination device-memory dnt dpr early-data expect \
    forwarded from http2-settings idempotency-key if if-match if-modified-since if-none-match if-range \
    if-unmodified-since keep-alive last-event-id link lock-token max-forwards origin overwrite pragma prefer \
    priority proxy-authorization proxy-connection purpose range referer save-data sec-ch-ua sec-ch-ua-arch \
    sec-ch-ua-mobile sec-ch-ua-model sec-ch-ua-platform sec-ch-ua-platform-version sec-fetch-dest sec-fetch-mode \
    sec-fetch-site sec-fetch-user sec-gpc sec-purpose sec-websocket-extensions sec-websocket-key \
    sec-websocket-protocol sec-websocket-version service-worker soapaction te timeout traceparent tracestate \
    trailer true-client-ip upgrade upgrade-insecure-requests user-agent via viewport-width want-digest warning \
    width x-amzn-trace-id x-api-key x-b3-parentspanid x-b3-sampled x-b3-spanid x-b3-traceid x-client-ip \
    x-cloud-trace-context x-correlation-id x-csrf-token x-csrftoken x-forwarded-by x-forwarded-for \
    x-forwarded-host x-forwarded-path x-forwarded-port x-forwarded-prefix x-forwarded-proto x-forwarded-protocol \
    x-forwarded-scheme x-forwarded-server x-forwarded-ssl x-github-event x-http-method-override x-hub-signature \
    x-hub-signature-256 x-original-host x-original-uri x-original-url x-real-ip x-request-id x-request-start \
    x-requested-with x-scheme x-script-name x-ssl-client-cert x-ssl-client-s-dn x-ssl-client-verify";

/// Slots of the open-addressed table: a power of two, several times the number of names.
const SLOTS: usize = 1024;

macro_rules! names {
    ($($field:ident = $text:literal,)*) => {
        /// Interned names. One instance per process.
        pub(crate) struct Names {
            $(pub(crate) $field: Py<PyString>,)*
            methods: Vec<(&'static [u8], Py<PyString>)>,
            headers: Box<[Option<HeaderName>; SLOTS]>,
        }

        impl Names {
            fn new(py: Python<'_>) -> Self {
                Self {
                    $($field: PyString::intern(py, $text).unbind(),)*
                    methods: METHODS
                        .iter()
                        .map(|method| (method.as_bytes(), PyString::intern(py, method).unbind()))
                        .collect(),
                    headers: table(py),
                }
            }
        }
    };
}

const METHODS: &[&str] = &["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"];

names! {
    request_method = "REQUEST_METHOD",
    script_name = "SCRIPT_NAME",
    path_info = "PATH_INFO",
    query_string = "QUERY_STRING",
    raw_uri = "RAW_URI",
    request_uri = "REQUEST_URI",
    server_name = "SERVER_NAME",
    server_port = "SERVER_PORT",
    server_protocol = "SERVER_PROTOCOL",
    server_software = "SERVER_SOFTWARE",
    remote_addr = "REMOTE_ADDR",
    remote_port = "REMOTE_PORT",
    content_length = "CONTENT_LENGTH",
    http_host = "HTTP_HOST",
    http_cookie = "HTTP_COOKIE",
    http_1_0 = "HTTP/1.0",
    http_1_1 = "HTTP/1.1",
    http = "http",
    https = "https",
    ssl_protocol = "SSL_PROTOCOL",
    ssl_cipher = "SSL_CIPHER",
    ssl_server_name = "SSL_TLS_SNI",
    ssl_client_verify = "SSL_CLIENT_VERIFY",
    ssl_client_subject = "SSL_CLIENT_S_DN",
    ssl_client_issuer = "SSL_CLIENT_I_DN",
    ssl_client_serial = "SSL_CLIENT_M_SERIAL",
    ssl_client_certificate = "SSL_CLIENT_CERT",
    wsgi_version = "wsgi.version",
    wsgi_url_scheme = "wsgi.url_scheme",
    wsgi_input = "wsgi.input",
    delivery = "tailrace.delivery",
    client_disconnected = "tailrace.client_disconnected",
    set_deadline = "tailrace.set_deadline",
    on_disconnect = "tailrace.on_disconnect",
    early_hints = "wsgi.early_hints",
    wsgi_errors = "wsgi.errors",
    wsgi_multithread = "wsgi.multithread",
    wsgi_multiprocess = "wsgi.multiprocess",
    wsgi_run_once = "wsgi.run_once",
    wsgi_file_wrapper = "wsgi.file_wrapper",
    wsgi_input_terminated = "wsgi.input_terminated",
    empty = "",
    close = "close",
    read = "read",
    read1 = "read1",
    tell = "tell",
    fileno = "fileno",
    flush = "flush",
    raw = "raw",
    file = "file",
    readline = "readline",
    iter = "__iter__",
    next = "__next__",
    dict = "__dict__",
    file_name = "name",
    self_ = "__self__",
    wrapped = "__wrapped__",
    code = "__code__",
}

struct HeaderName {
    name: &'static [u8],
    key: Option<Py<PyString>>,
}

static NAMES: PyOnceLock<Names> = PyOnceLock::new();

/// The names of this process.
pub(crate) fn names(py: Python<'_>) -> &'static Names {
    NAMES.get_or_init(py, || Names::new(py))
}

impl Names {
    /// The interned name of a common request method.
    pub(crate) fn method(&self, method: &[u8]) -> Option<&Py<PyString>> {
        self.methods.iter().find(|(name, _)| *name == method).map(|(_, object)| object)
    }

    /// What a header field of this name does.
    pub(crate) fn header(&self, name: &[u8]) -> FieldRole<'_> {
        let mut slot = slot_of(name);
        while let Some(entry) = &self.headers[slot] {
            if entry.name.eq_ignore_ascii_case(name) {
                return match &entry.key {
                    Some(key) => FieldRole::Key(key),
                    None => FieldRole::Nothing,
                };
            }
            slot = (slot + 1) % SLOTS;
        }
        FieldRole::Unknown
    }
}

/// The key of a header that is not in the table, or `None` when its name would shadow one of CGI's own.
pub(crate) fn environ_name(name: &[u8]) -> Option<Vec<u8>> {
    let mut key = Vec::with_capacity(name.len() + 5);
    key.extend_from_slice(b"HTTP_");
    key.extend(name.iter().map(|byte| if *byte == b'-' { b'_' } else { byte.to_ascii_uppercase() }));
    match key.as_slice() {
        b"HTTP_CONTENT_TYPE" | b"HTTP_CONTENT_LENGTH" | b"HTTP_PROXY" | b"HTTP_HOST" | b"HTTP_TRANSFER_ENCODING" => {
            None
        }
        _ => Some(key),
    }
}

/// The first slot to check, computed from a few octets of a name, ignoring case.
fn slot_of(name: &[u8]) -> usize {
    let at = |index: usize| name.get(index).map_or(0, |byte| usize::from(byte | 0x20));
    let length = name.len();
    let mixed = length * 7
        + at(0) * 31
        + at(length / 2) * 113
        + at(length.wrapping_sub(2)) * 211
        + at(length.wrapping_sub(1)) * 17;
    mixed % SLOTS
}

fn table(py: Python<'_>) -> Box<[Option<HeaderName>; SLOTS]> {
    let mut table = Box::new([const { None }; SLOTS]);
    let mut enter = |entry: HeaderName| {
        let mut slot = slot_of(entry.name);
        while table[slot].is_some() {
            slot = (slot + 1) % SLOTS;
        }
        table[slot] = Some(entry);
    };
    for name in HEADERS.split_ascii_whitespace() {
        let mut key = name.to_ascii_uppercase().replace('-', "_");
        if key != "CONTENT_TYPE" {
            key.insert_str(0, "HTTP_");
        }
        enter(HeaderName { name: name.as_bytes(), key: Some(PyString::intern(py, &key).unbind()) });
    }
    for name in [&b"content-length"[..], b"transfer-encoding", b"host", b"proxy"] {
        enter(HeaderName { name, key: None });
    }
    table
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn key(py: Python<'_>, name: &str) -> Option<String> {
        match names(py).header(name.as_bytes()) {
            FieldRole::Key(key) => Some(key.to_string()),
            _ => None,
        }
    }

    #[test]
    fn every_listed_header_has_its_key_in_any_case() {
        Python::attach(|py| {
            for name in HEADERS.split_ascii_whitespace() {
                let expected = match name {
                    "content-type" => String::from("CONTENT_TYPE"),
                    other => String::from_utf8(environ_name(other.as_bytes()).unwrap()).unwrap(),
                };
                assert_eq!(key(py, name).as_deref(), Some(expected.as_str()));
                assert_eq!(key(py, &name.to_ascii_uppercase()).as_deref(), Some(expected.as_str()));
            }
        });
    }

    #[test]
    fn some_headers_make_no_key() {
        Python::attach(|py| {
            for name in ["PROXY", "Host", "Content-Length", "transfer-encoding"] {
                assert!(matches!(names(py).header(name.as_bytes()), FieldRole::Nothing), "{name}");
            }
            assert!(matches!(names(py).header(b"X-Unheard-Of"), FieldRole::Unknown));
            assert!(matches!(names(py).header(b""), FieldRole::Unknown));
        });
    }

    #[test]
    fn a_made_name_never_shadows_cgi() {
        assert_eq!(environ_name(b"X-Mine").unwrap(), b"HTTP_X_MINE");
        for name in ["Content_Length", "content_type", "pRoXy", "Transfer_Encoding"] {
            assert!(environ_name(name.as_bytes()).is_none(), "{name}");
        }
    }
}
