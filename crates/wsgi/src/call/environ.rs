//! `environ`: one builtin `dict` per request, copied from a template that holds all that never changes.
//!
//! Invariants: every CGI and `HTTP_*` value is exactly a `str` of latin-1 characters (PEP 3333 "Unicode Issues"); the
//! dict is private to its request. Runs attached, on the thread that runs the request.
//!
//! Decisions:
//! - A header sent several times is joined with ", " (RFC 9110 section 5.3), `Cookie` with "; ".
//! - `CONTENT_LENGTH` is the length of the decoded body whenever the request had one, chunked or not: that is what
//!   RFC 9112 section 7.1.3 makes of a chunked message, and applications that know nothing of `wsgi.input_terminated`
//!   can read it. `Transfer-Encoding` is gone with it. Other connection fields are passed as they came.
//! - A UNIX socket has no client address: `REMOTE_ADDR` is empty (RFC 3875 requires the key), `REMOTE_PORT` is absent, as
//!   it is where a proxy states no port of its client.
//! - What a trusted proxy says of the request as it received it ([`Peer`]) replaces what the connection says: the
//!   scheme, `HTTP_HOST`, `SERVER_PORT`. A prefix that it has removed from the path comes first in `SCRIPT_NAME`; the root
//!   path follows it where the path that arrives is under it.
//! - The variables of a uwsgi packet are items under their own names, and `PATH_INFO`, `SCRIPT_NAME` and `QUERY_STRING`
//!   are what the proxy says, as with uWSGI: they need not be what `REQUEST_URI` says. Without a `SCRIPT_NAME` the
//!   root path is taken from the start of its `PATH_INFO`.
//! - An IPv4 client of an IPv6 listener is shown by its IPv4 address.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use tailrace_http::forwarded::{Scheme, resembles_forwarded};
use tailrace_http::framing::BodyLength;
use tailrace_http::peer::Peer;
use tailrace_http::request_head::{Field, TargetForm, Version};
use tailrace_http::uwsgi::variable_of;
use tailrace_server::Request;
use tailrace_tls::facts::Facts;

use crate::call::string_cache::{KnownTarget, StringCache};
use crate::call::target::path_info;
use crate::ffi::dict::{self, set};
use crate::ffi::latin1::latin1;
use crate::python::names::{FieldRole, Names, environ_name, names};
use tailrace_http::percent::percent_decode;

/// How `environ` dicts are made; one per server.
pub(crate) struct EnvironMaker {
    names: &'static Names,
    /// One template for each listener.
    templates: Vec<Py<PyDict>>,
    root_path: Vec<u8>,
    underscores: Underscores,
    /// The key of the field with the id of the request. `None`: requests have no id.
    id_key: Option<Py<PyString>>,
    early_hints: bool,
}

/// What stays the same from request to request.
pub(crate) struct Constants<'py> {
    /// `wsgi.url_scheme`.
    pub(crate) url_scheme: &'py str,
    /// `SCRIPT_NAME`, as latin-1 bytes.
    pub(crate) root_path: Vec<u8>,
    /// What becomes of header names with an underscore.
    pub(crate) underscores: Underscores,
    /// The field with the id of the request, if requests have one.
    pub(crate) id_field: Option<&'py [u8]>,
    /// The application may send `wsgi.early_hints`.
    pub(crate) early_hints: bool,
    /// `HTTP_GRIP_SIG`, which proves to the application that this server follows its instructions.
    pub(crate) holder_proof: Option<&'py str>,
    /// `wsgi.multithread`.
    pub(crate) multithread: bool,
    /// `wsgi.multiprocess`.
    pub(crate) multiprocess: bool,
    /// `wsgi.errors`.
    pub(crate) errors: Bound<'py, PyAny>,
    /// `wsgi.file_wrapper`.
    pub(crate) file_wrapper: Bound<'py, PyAny>,
    /// Name and port of each listener, and whether its clients have addresses.
    pub(crate) listeners: Vec<ShownListener>,
}

/// What becomes of request header names with an underscore, which in `environ` look like those with a dash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Underscores {
    /// The field is ignored.
    Drop,
    /// The field is passed.
    Keep,
    /// The request is answered with 400.
    Refuse,
}

/// A listener as `environ` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShownListener {
    /// `SERVER_NAME`.
    pub(crate) name: String,
    /// `SERVER_PORT`.
    pub(crate) port: String,
    /// A TCP listener, not a UNIX socket.
    pub(crate) has_addresses: bool,
    /// Its connections are encrypted.
    pub(crate) is_encrypted: bool,
}

/// Why there is no `environ`.
pub(crate) enum NoEnviron {
    /// A header name has an underscore, and the server is set to refuse that.
    Underscore,
    /// Python could not make an object.
    Error(PyErr),
}

impl From<PyErr> for NoEnviron {
    fn from(error: PyErr) -> Self {
        Self::Error(error)
    }
}

impl EnvironMaker {
    pub(crate) fn new(py: Python<'_>, constants: Constants<'_>) -> PyResult<Self> {
        let names = names(py);
        let mut templates = Vec::with_capacity(constants.listeners.len());
        for listener in &constants.listeners {
            let template = PyDict::new(py);
            // The keys that every request sets are here as well: a copy then has room for all of them and for a good
            // number of headers without growing its table.
            template.set_item(&names.request_method, &names.empty)?;
            template.set_item(&names.script_name, latin1(py, &constants.root_path)?)?;
            for key in [&names.path_info, &names.query_string, &names.raw_uri, &names.request_uri, &names.remote_addr] {
                template.set_item(key, &names.empty)?;
            }
            if listener.has_addresses {
                template.set_item(&names.remote_port, &names.empty)?;
            }
            template.set_item(&names.server_name, &listener.name)?;
            template.set_item(&names.server_port, &listener.port)?;
            template.set_item(&names.server_protocol, &names.http_1_1)?;
            template.set_item(&names.server_software, concat!("tailrace/", env!("CARGO_PKG_VERSION")))?;
            template.set_item(&names.wsgi_version, (1, 0))?;
            if listener.is_encrypted {
                template.set_item(&names.wsgi_url_scheme, &names.https)?;
                // What the handshake shows is set for each request.
                for (key, value) in
                    [("HTTPS", "on"), ("SSL_PROTOCOL", ""), ("SSL_CIPHER", ""), ("SSL_CLIENT_VERIFY", "NONE")]
                {
                    template.set_item(PyString::intern(py, key), value)?;
                }
            } else {
                template.set_item(&names.wsgi_url_scheme, constants.url_scheme)?;
            }
            template.set_item(&names.wsgi_input, py.None())?;
            template.set_item(&names.delivery, py.None())?;
            template.set_item(&names.client_disconnected, py.None())?;
            template.set_item(&names.set_deadline, py.None())?;
            if let Some(proof) = constants.holder_proof {
                template.set_item("HTTP_GRIP_SIG", proof)?;
            }
            if constants.early_hints {
                template.set_item(&names.early_hints, py.None())?;
            }
            template.set_item(&names.wsgi_errors, &constants.errors)?;
            template.set_item(&names.wsgi_multithread, constants.multithread)?;
            template.set_item(&names.wsgi_multiprocess, constants.multiprocess)?;
            template.set_item(&names.wsgi_run_once, false)?;
            template.set_item(&names.wsgi_file_wrapper, &constants.file_wrapper)?;
            template.set_item(&names.wsgi_input_terminated, true)?;
            make_room(&template)?;
            templates.push(template.unbind());
        }
        let id_key = constants.id_field.and_then(environ_name);
        // The name of a field is ASCII.
        let id_key = id_key.map(|key| PyString::intern(py, &String::from_utf8_lossy(&key)).unbind());
        let Constants { root_path, underscores, early_hints, .. } = constants;
        Ok(Self { names, templates, root_path, underscores, id_key, early_hints })
    }

    /// The `environ` of a request, with `input` as `wsgi.input`, which will give `body_length` bytes; `None`: how many
    /// is not known yet.
    pub(crate) fn make<'py>(
        &self,
        py: Python<'py>,
        cache: &mut StringCache,
        request: &Request,
        body_length: Option<u64>,
        input: &Bound<'py, PyAny>,
    ) -> Result<Bound<'py, PyDict>, NoEnviron> {
        let names = self.names;
        let bytes = request.bytes.as_slice();
        let head = &request.head;
        let environ = self.copy_of_template(py, request.peer.listener)?;

        let method = head.method.of(bytes);
        match names.method(method) {
            Some(known) => set(&environ, &names.request_method, known)?,
            None => set(&environ, &names.request_method, latin1(py, method)?.as_unbound())?,
        }
        if head.version == Version::Http10 {
            set(&environ, &names.server_protocol, &names.http_1_0)?;
        }
        self.set_target(py, &environ, cache, request)?;
        let client = request.peer.client;
        if let Some(address) = client {
            let peer = cache.peer(py, address)?;
            set(&environ, &names.remote_addr, &peer.host)?;
            set(&environ, &names.remote_port, &peer.port)?;
        }
        if client.is_none_or(|address| address.port() == 0) && environ.contains(&names.remote_port)? {
            environ.del_item(&names.remote_port)?;
        }
        set(&environ, &names.wsgi_input, input.as_unbound())?;

        if let Some(facts) = &request.tls {
            self.set_tls(py, &environ, facts)?;
        }
        if request.peer.describes_request() {
            self.set_described(py, &environ, request)?;
        }
        if let Some(host) = request.peer.host.or(request.framing.host) {
            set(&environ, &names.http_host, cache.host(py, host.of(bytes))?)?;
        }
        if request.framing.body != BodyLength::None
            && let Some(length) = body_length
        {
            set(&environ, &names.content_length, latin1(py, length.to_string().as_bytes())?.as_unbound())?;
        }
        self.set_fields(py, &environ, cache, request)?;
        if !head.variables.is_empty() {
            self.set_variables(py, &environ, cache, request)?;
        }
        Ok(environ)
    }

    /// Adds the functions `tailrace.delivery`, `tailrace.client_disconnected`, `tailrace.set_deadline` and
    /// `tailrace.on_disconnect`, and `wsgi.early_hints` if the application may use it.
    pub(crate) fn add_functions(&self, environ: &Bound<'_, PyDict>, functions: &[Py<PyAny>; 5]) {
        let [delivery, client_disconnected, set_deadline, on_disconnect, early_hints] = functions;
        // The dict has room for them, and their keys are strings: setting fails only when memory is out, and then the
        // application's own code is the better place to find that out.
        let _ = set(environ, &self.names.delivery, delivery);
        let _ = set(environ, &self.names.client_disconnected, client_disconnected);
        let _ = set(environ, &self.names.set_deadline, set_deadline);
        let _ = set(environ, &self.names.on_disconnect, on_disconnect);
        if self.early_hints {
            let _ = set(environ, &self.names.early_hints, early_hints);
        }
    }

    fn copy_of_template<'py>(&self, py: Python<'py>, listener: usize) -> PyResult<Bound<'py, PyDict>> {
        // Each listener has a template. Should one be missing, the first names this server as well.
        let template = self.templates.get(listener).or(self.templates.first());
        match template {
            Some(template) => template.bind(py).copy(),
            None => Ok(PyDict::new(py)),
        }
    }

    fn set_target(
        &self,
        py: Python<'_>,
        environ: &Bound<'_, PyDict>,
        cache: &mut StringCache,
        request: &Request,
    ) -> PyResult<()> {
        let names = self.names;
        let head = &request.head;
        let target = head.target.of(&request.bytes);
        let repeated = matches!(&cache.target, Some(known) if known.target == target && known.form == head.form);
        if !repeated {
            let raw = latin1(py, target)?.unbind();
            let path = match head.form {
                TargetForm::Asterisk => names.empty.clone_ref(py),
                _ => {
                    let decoded = percent_decode(head.path.of(&request.bytes));
                    latin1(py, path_info(&decoded, &self.root_path))?.unbind()
                }
            };
            let query = match head.query {
                Some(query) => latin1(py, query.of(&request.bytes))?.unbind(),
                None => names.empty.clone_ref(py),
            };
            let mut kept = cache.target.take().map(|known| known.target).unwrap_or_default();
            kept.clear();
            kept.extend_from_slice(target);
            cache.target = Some(KnownTarget { target: kept, form: head.form, raw, path, query });
        }
        if let Some(known) = &cache.target {
            set(environ, &names.raw_uri, &known.raw)?;
            set(environ, &names.request_uri, &known.raw)?;
            set(environ, &names.path_info, &known.path)?;
            set(environ, &names.query_string, &known.query)?;
        }
        Ok(())
    }

    /// Sets what the handshake has shown, by the names of mod_ssl.
    fn set_tls(&self, py: Python<'_>, environ: &Bound<'_, PyDict>, facts: &Facts) -> PyResult<()> {
        let names = self.names;
        set(environ, &names.ssl_protocol, PyString::intern(py, facts.protocol).as_any().as_unbound())?;
        set(environ, &names.ssl_cipher, PyString::intern(py, &facts.cipher).as_any().as_unbound())?;
        if let Some(name) = &facts.server_name {
            environ.set_item(&names.ssl_server_name, name)?;
        }
        if let Some(client) = &facts.client {
            environ.set_item(&names.ssl_client_verify, "SUCCESS")?;
            // Like a value of a header (PEP 3333): bytes as latin-1.
            environ.set_item(&names.ssl_client_subject, latin1(py, client.subject.as_bytes())?)?;
            environ.set_item(&names.ssl_client_issuer, latin1(py, client.issuer.as_bytes())?)?;
            environ.set_item(&names.ssl_client_serial, &client.serial)?;
            environ.set_item(&names.ssl_client_certificate, &client.pem)?;
        }
        Ok(())
    }

    /// Sets what a trusted proxy says of the request, but for the host.
    fn set_described(&self, py: Python<'_>, environ: &Bound<'_, PyDict>, request: &Request) -> PyResult<()> {
        let names = self.names;
        let Peer { scheme, port, prefix, .. } = request.peer;
        match scheme {
            Some(Scheme::Http) => set(environ, &names.wsgi_url_scheme, &names.http)?,
            Some(Scheme::Https) => set(environ, &names.wsgi_url_scheme, &names.https)?,
            None => {}
        }
        if let Some(port) = port {
            set(environ, &names.server_port, latin1(py, port.to_string().as_bytes())?.as_unbound())?;
        }
        if let Some(prefix) = prefix {
            let mut script_name = percent_decode(prefix.of(&request.bytes)).into_owned();
            // A path that is not under the root has lost it at the proxy, which states that.
            let path = percent_decode(request.head.path.of(&request.bytes));
            if path_info(&path, &self.root_path).len() < path.len() {
                script_name.extend_from_slice(&self.root_path);
            }
            set(environ, &names.script_name, latin1(py, &script_name)?.as_unbound())?;
        }
        Ok(())
    }

    fn set_fields(
        &self,
        py: Python<'_>,
        environ: &Bound<'_, PyDict>,
        cache: &mut StringCache,
        request: &Request,
    ) -> Result<(), NoEnviron> {
        for (position, field) in request.head.fields.iter().enumerate() {
            let name = field.name.of(&request.bytes);
            let value = field.value.of(&request.bytes);
            if let Some(known) = cache.fields.get(position, name, value) {
                if let Some((key, text)) = &known.item {
                    self.set_or_join(py, environ, key, text)?;
                }
                continue;
            }
            self.set_new(py, environ, cache, request, (position, field))?;
        }
        Ok(())
    }

    /// Sets a field that is not in the cache.
    #[inline(never)]
    fn set_new(
        &self,
        py: Python<'_>,
        environ: &Bound<'_, PyDict>,
        cache: &mut StringCache,
        request: &Request,
        (position, field): (usize, &Field),
    ) -> Result<(), NoEnviron> {
        let name = field.name.of(&request.bytes);
        let value = field.value.of(&request.bytes);
        // An id is not seen again, so it is not remembered. No other field has its key.
        if let Some(key) = &self.id_key
            && field.value == request.id
        {
            let text = latin1(py, value)?.unbind();
            set(environ, key, &text)?;
            return Ok(());
        }
        let item = match self.key(py, name)? {
            Some(key) => {
                let text = latin1(py, value)?.unbind();
                self.set_or_join(py, environ, &key, &text)?;
                Some((key, text))
            }
            None => None,
        };
        cache.fields.remember(position, name, value, item);
        Ok(())
    }

    /// Sets the variables of a uwsgi packet, each under its own name. Those replace what was set before, of which they
    /// are the proxy's own view.
    fn set_variables(
        &self,
        py: Python<'_>,
        environ: &Bound<'_, PyDict>,
        cache: &mut StringCache,
        request: &Request,
    ) -> PyResult<()> {
        let bytes = request.bytes.as_slice();
        for (position, variable) in request.head.variables.iter().enumerate() {
            let (name, value) = (variable.name.of(bytes), variable.value.of(bytes));
            if name == b"SERVER_PORT" && request.peer.port.is_some() {
                continue;
            }
            if let Some(known) = cache.variables.get(position, name, value) {
                if let Some((key, text)) = &known.item {
                    set(environ, key, text)?;
                }
                continue;
            }
            let item = if is_shown(name, value) {
                let (key, text) = (latin1(py, name)?.unbind(), latin1(py, value)?.unbind());
                set(environ, &key, &text)?;
                Some((key, text))
            } else {
                None
            };
            cache.variables.remember(position, name, value, item);
        }
        if !self.root_path.is_empty()
            && variable_of(bytes, &request.head, b"SCRIPT_NAME").is_none_or(<[u8]>::is_empty)
            && let Some(path) = variable_of(bytes, &request.head, b"PATH_INFO")
        {
            set(environ, &self.names.path_info, latin1(py, path_info(path, &self.root_path))?.as_unbound())?;
        }
        Ok(())
    }

    /// The key of a header, if `environ` shows it.
    fn key(&self, py: Python<'_>, name: &[u8]) -> Result<Option<Py<PyString>>, NoEnviron> {
        match self.names.header(name) {
            FieldRole::Key(key) => return Ok(Some(key.clone_ref(py))),
            FieldRole::Nothing => return Ok(None),
            FieldRole::Unknown => {}
        }
        if name.contains(&b'_') {
            match self.underscores {
                // What a proxy states has no other spelling, so it cannot be claimed with one.
                Underscores::Keep if resembles_forwarded(name) => return Ok(None),
                Underscores::Keep => {}
                Underscores::Drop => return Ok(None),
                Underscores::Refuse => return Err(NoEnviron::Underscore),
            }
        }
        match environ_name(name) {
            Some(key) => Ok(Some(latin1(py, &key)?.unbind())),
            None => Ok(None),
        }
    }

    /// Sets a header's value, or joins it to the value that an earlier field of the same name has left.
    #[inline]
    fn set_or_join(
        &self,
        py: Python<'_>,
        environ: &Bound<'_, PyDict>,
        key: &Py<PyString>,
        text: &Py<PyString>,
    ) -> PyResult<()> {
        let before = environ.len();
        let earlier = dict::set_default(environ, key, text)?;
        // The dict grew: the key is new. (The returned object does not show it: equal short strings are one object.)
        if environ.len() != before {
            return Ok(());
        }
        let is_cookie = key.is(&self.names.http_cookie);
        let joined = format!(
            "{}{}{}",
            earlier.cast::<PyString>()?.to_str()?,
            if is_cookie { "; " } else { ", " },
            text.bind(py).to_str()?
        );
        environ.set_item(key, joined)
    }
}

/// True for a variable of a uwsgi packet that is an item of `environ`: not for what WSGI or this server says itself, or
/// has read already, nor where a proxy says nothing that PEP 3333 requires, or no more than `--root-path` does.
fn is_shown(name: &[u8], value: &[u8]) -> bool {
    match name {
        b"REMOTE_ADDR" | b"REMOTE_PORT" | b"RAW_URI" | b"SERVER_SOFTWARE" => false,
        b"SCRIPT_NAME" | b"SERVER_NAME" | b"SERVER_PORT" | b"SERVER_PROTOCOL" => !value.is_empty(),
        _ => !name.starts_with(b"wsgi.") && !name.starts_with(b"tailrace."),
    }
}

/// Grows the dict's table once, so that a handful of headers does not make each copy grow.
fn make_room(template: &Bound<'_, PyDict>) -> PyResult<()> {
    // A table of 32 slots holds 21 entries; the next larger one holds 42.
    const HELD_BY_32: usize = 21;
    let mut spare = 0;
    while template.len() <= HELD_BY_32 {
        template.set_item(spare, spare)?;
        spare += 1;
    }
    for key in 0..spare {
        template.del_item(key)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use tailrace_http::framing::request_framing;
    use tailrace_http::head::{HeadParser, HeadStep};
    use tailrace_http::limits::Limits;
    use tailrace_http::request_head::Span;

    use super::*;

    fn maker(py: Python<'_>, root_path: &[u8], underscores: Underscores) -> EnvironMaker {
        let constants = Constants {
            url_scheme: "http",
            root_path: root_path.to_vec(),
            underscores,
            id_field: Some(b"X-Trace"),
            early_hints: false,
            holder_proof: None,
            multithread: true,
            multiprocess: false,
            errors: py.None().into_bound(py),
            file_wrapper: py.None().into_bound(py),
            listeners: vec![
                ShownListener {
                    name: String::from("127.0.0.1"),
                    port: String::from("8000"),
                    has_addresses: true,
                    is_encrypted: false,
                },
                ShownListener {
                    name: String::from("localhost"),
                    port: String::from("80"),
                    has_addresses: false,
                    is_encrypted: false,
                },
            ],
        };
        EnvironMaker::new(py, constants).unwrap()
    }

    fn request(bytes: &[u8], peer: Option<&str>) -> Request {
        let limits = Limits::default();
        let mut request = Request { bytes: bytes.to_vec(), ..Request::default() };
        let step = HeadParser::default().parse(bytes, &limits, &mut request.head);
        assert_eq!(step, HeadStep::Complete);
        request.framing = request_framing(bytes, &request.head, &limits).unwrap();
        request.peer.client = peer.map(|peer| peer.parse().unwrap());
        request.peer.listener = usize::from(peer.is_none());
        request
    }

    fn made<'py>(
        py: Python<'py>,
        maker: &EnvironMaker,
        cache: &mut StringCache,
        request: &Request,
    ) -> Bound<'py, PyDict> {
        match maker.make(py, cache, request, Some(3), &py.None().into_bound(py)) {
            Ok(environ) => environ,
            Err(_) => panic!("no environ"),
        }
    }

    fn get(environ: &Bound<'_, PyDict>, key: &str) -> Option<String> {
        environ.get_item(key).unwrap().map(|value| value.extract().unwrap())
    }

    const HEADERS: &[u8] = b"GET /app/%C3%A9?a=%20 HTTP/1.1\r\nHost: h:1\r\nX-A: 1\r\nx-a: 1\r\nCookie: a=1\r\n\
        cookie: b=2\r\nX_A: shadow\r\nProxy: p\r\nContent-Type: t/x\r\nContent_Length: 7\r\nX-\x21: \xe9\r\n\r\n";

    #[test]
    fn a_head_becomes_an_environ_with_an_empty_and_with_a_full_cache() {
        Python::attach(|py| {
            let maker = maker(py, b"/app", Underscores::Drop);
            let mut cache = StringCache::default();
            let request = request(HEADERS, Some("[::ffff:192.0.2.7]:4711"));
            for _ in 0..3 {
                let environ = made(py, &maker, &mut cache, &request);
                for (key, value) in [
                    ("REQUEST_METHOD", "GET"),
                    ("SCRIPT_NAME", "/app"),
                    ("PATH_INFO", "/\u{c3}\u{a9}"),
                    ("QUERY_STRING", "a=%20"),
                    ("RAW_URI", "/app/%C3%A9?a=%20"),
                    ("REMOTE_ADDR", "192.0.2.7"),
                    ("REMOTE_PORT", "4711"),
                    ("HTTP_HOST", "h:1"),
                    ("HTTP_X_A", "1, 1"),
                    ("HTTP_COOKIE", "a=1; b=2"),
                    ("CONTENT_TYPE", "t/x"),
                    ("HTTP_X_!", "\u{e9}"),
                    ("SERVER_PROTOCOL", "HTTP/1.1"),
                ] {
                    assert_eq!(get(&environ, key).as_deref(), Some(value), "{key}");
                }
                for key in ["HTTP_PROXY", "CONTENT_LENGTH", "HTTP_CONTENT_LENGTH", "HTTP_CONTENT_TYPE"] {
                    assert_eq!(get(&environ, key), None, "{key}");
                }
                // An application may change its environ; the next one must not show it.
                environ.clear();
            }
        });
    }

    #[test]
    fn a_cache_never_gives_strings_of_another_request() {
        Python::attach(|py| {
            let maker = maker(py, b"", Underscores::Drop);
            let mut cache = StringCache::default();
            let heads: [(&[u8], &str, &str, &str); 4] = [
                (b"GET /a HTTP/1.1\r\nHost: a\r\nX-A: 1\r\n\r\n", "/a", "a", "1"),
                (b"GET /b HTTP/1.1\r\nHost: b\r\nX-A: 2\r\n\r\n", "/b", "b", "2"),
                (b"GET http://c/b HTTP/1.1\r\nHost: b\r\nX-A: 2\r\n\r\n", "/b", "c", "2"),
                (b"GET /b HTTP/1.1\r\nX-A: 1\r\nHost: b\r\n\r\n", "/b", "b", "1"),
            ];
            for (at, (head, path, host, value)) in heads.iter().chain(&heads).enumerate() {
                let peer = format!("127.0.0.{}:{}", at % 3, 1000 + at);
                let environ = made(py, &maker, &mut cache, &request(head, Some(&peer)));
                assert_eq!(get(&environ, "PATH_INFO").as_deref(), Some(*path));
                assert_eq!(get(&environ, "HTTP_HOST").as_deref(), Some(*host));
                assert_eq!(get(&environ, "HTTP_X_A").as_deref(), Some(*value));
                let address =
                    format!("{}:{}", get(&environ, "REMOTE_ADDR").unwrap(), get(&environ, "REMOTE_PORT").unwrap());
                assert_eq!(address, peer);
            }
        });
    }

    #[test]
    fn underscores_are_kept_or_refused_when_asked() {
        Python::attach(|py| {
            let request = request(HEADERS, None);
            let environ = made(py, &maker(py, b"", Underscores::Keep), &mut StringCache::default(), &request);
            assert_eq!(get(&environ, "HTTP_X_A").as_deref(), Some("1, 1, shadow"));
            assert_eq!(get(&environ, "HTTP_CONTENT_LENGTH"), None);
            let refused = maker(py, b"", Underscores::Refuse).make(
                py,
                &mut StringCache::default(),
                &request,
                Some(0),
                &py.None().into_bound(py),
            );
            assert!(matches!(refused, Err(NoEnviron::Underscore)));
        });
    }

    #[test]
    fn a_body_has_its_decoded_length_and_a_unix_client_no_address() {
        Python::attach(|py| {
            let maker = maker(py, b"", Underscores::Drop);
            let head = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
            let environ = made(py, &maker, &mut StringCache::default(), &request(head, None));
            assert_eq!(get(&environ, "CONTENT_LENGTH").as_deref(), Some("3"));
            assert_eq!(get(&environ, "HTTP_TRANSFER_ENCODING"), None);
            assert_eq!(get(&environ, "REMOTE_ADDR").as_deref(), Some(""));
            assert_eq!(get(&environ, "REMOTE_PORT"), None);
            assert_eq!(get(&environ, "SERVER_NAME").as_deref(), Some("localhost"));
            let head = b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n";
            let environ = made(py, &maker, &mut StringCache::default(), &request(head, None));
            assert_eq!(get(&environ, "PATH_INFO").as_deref(), Some(""));
            assert_eq!(get(&environ, "RAW_URI").as_deref(), Some("*"));
        });
    }

    #[test]
    fn what_a_trusted_proxy_says_replaces_what_the_connection_says() {
        Python::attach(|py| {
            let maker = maker(py, b"/app", Underscores::Drop);
            let mut cache = StringCache::default();
            let head = b"GET /app/a HTTP/1.1\r\nHost: inner\r\nX-O: outer:81 /pre%C3%A9\r\n\r\n";
            let mut request = request(head, Some("192.0.2.7:4711"));
            let at = |text: &[u8]| {
                let start = head.windows(text.len()).position(|window| window == text).unwrap() as u32;
                Some(Span { start, end: start + text.len() as u32 })
            };
            let peer = request.peer;
            for (stated, scheme, host, port, script_name) in [
                (
                    Peer {
                        scheme: Some(Scheme::Https),
                        host: at(b"outer:81"),
                        port: Some(81),
                        prefix: at(b"/pre%C3%A9"),
                        ..peer
                    },
                    "https",
                    "outer:81",
                    "81",
                    "/pre\u{c3}\u{a9}/app",
                ),
                (Peer { scheme: Some(Scheme::Http), ..peer }, "http", "inner", "8000", "/app"),
                (peer, "http", "inner", "8000", "/app"),
            ] {
                request.peer = stated;
                let environ = made(py, &maker, &mut cache, &request);
                for (key, value) in [
                    ("wsgi.url_scheme", scheme),
                    ("HTTP_HOST", host),
                    ("SERVER_PORT", port),
                    ("SCRIPT_NAME", script_name),
                    ("PATH_INFO", "/a"),
                    ("REMOTE_ADDR", "192.0.2.7"),
                ] {
                    assert_eq!(get(&environ, key).as_deref(), Some(value), "{key} {stated:?}");
                }
            }
        });
    }

    /// A request of HTTP to which a proxy has added these variables.
    fn with_variables(head: &[u8], variables: &[(&str, &str)]) -> Request {
        let mut request = request(head, Some("192.0.2.7:4711"));
        let mut add = |text: &str| {
            let start = request.bytes.len() as u32;
            request.bytes.extend_from_slice(text.as_bytes());
            Span { start, end: request.bytes.len() as u32 }
        };
        let fields = variables.iter().map(|(name, value)| Field { name: add(name), value: add(value) }).collect();
        request.head.variables = fields;
        request
    }

    #[test]
    fn variables_of_a_packet_are_items_under_their_own_names() {
        Python::attach(|py| {
            let maker = maker(py, b"", Underscores::Drop);
            let mut cache = StringCache::default();
            let head = b"GET /app/a%20b?q HTTP/1.1\r\nHost: h\r\nX-A: 1\r\n\r\n";
            let request = with_variables(
                head,
                &[
                    ("QUERY_STRING", "rewritten"),
                    ("PATH_INFO", "/first"),
                    ("PATH_INFO", "/a b"),
                    ("SCRIPT_NAME", "/app"),
                    ("SERVER_PROTOCOL", "HTTP/2.0"),
                    ("SERVER_NAME", ""),
                    ("SERVER_PORT", "443"),
                    ("REMOTE_ADDR", "203.0.113.1"),
                    ("REMOTE_PORT", "1"),
                    ("REMOTE_USER", "me"),
                    ("DOCUMENT_ROOT", "/srv"),
                    ("X_A", "variable"),
                    ("EMPTY", ""),
                    ("SERVER_SOFTWARE", "proxy"),
                    ("RAW_URI", "/forged"),
                    ("wsgi.input", "forged"),
                    ("wsgi.url_scheme", "forged"),
                    ("tailrace.delivery", "forged"),
                ],
            );
            // The second time from the cache.
            for _ in 0..2 {
                let environ = made(py, &maker, &mut cache, &request);
                for (key, value) in [
                    ("QUERY_STRING", "rewritten"),
                    ("PATH_INFO", "/a b"),
                    ("SCRIPT_NAME", "/app"),
                    ("SERVER_PROTOCOL", "HTTP/2.0"),
                    ("SERVER_NAME", "127.0.0.1"),
                    ("SERVER_PORT", "443"),
                    ("REMOTE_ADDR", "192.0.2.7"),
                    ("REMOTE_PORT", "4711"),
                    ("REMOTE_USER", "me"),
                    ("DOCUMENT_ROOT", "/srv"),
                    ("X_A", "variable"),
                    ("HTTP_X_A", "1"),
                    ("EMPTY", ""),
                    ("RAW_URI", "/app/a%20b?q"),
                    ("REQUEST_URI", "/app/a%20b?q"),
                    ("wsgi.url_scheme", "http"),
                    ("SERVER_SOFTWARE", concat!("tailrace/", env!("CARGO_PKG_VERSION"))),
                ] {
                    assert_eq!(get(&environ, key).as_deref(), Some(value), "{key}");
                }
                assert!(environ.get_item("wsgi.input").unwrap().unwrap().is_none());
                assert!(environ.get_item("tailrace.delivery").unwrap().unwrap().is_none());
            }
            let next = with_variables(head, &[("QUERY_STRING", "rewritten"), ("PATH_INFO", "/b")]);
            let environ = made(py, &maker, &mut cache, &next);
            assert_eq!(get(&environ, "PATH_INFO").as_deref(), Some("/b"));
            assert_eq!(get(&environ, "SCRIPT_NAME").as_deref(), Some(""));
        });
    }

    #[test]
    fn a_proxy_that_names_no_script_leaves_that_to_the_root_path() {
        Python::attach(|py| {
            let maker = maker(py, b"/app", Underscores::Drop);
            let mut cache = StringCache::default();
            for (variables, script_name, path_info) in [
                (&[("PATH_INFO", "/app/a")][..], "/app", "/a"),
                (&[("PATH_INFO", "/app/a"), ("SCRIPT_NAME", "")], "/app", "/a"),
                (&[("PATH_INFO", "/app/a"), ("SCRIPT_NAME", "/other")], "/other", "/app/a"),
                (&[("PATH_INFO", "/apple")], "/app", "/apple"),
                (&[("SCRIPT_NAME", "")], "/app", "/x"),
            ] {
                let environ = made(py, &maker, &mut cache, &with_variables(b"GET /app/x HTTP/1.0\r\n\r\n", variables));
                assert_eq!(get(&environ, "SCRIPT_NAME").as_deref(), Some(script_name), "{variables:?}");
                assert_eq!(get(&environ, "PATH_INFO").as_deref(), Some(path_info), "{variables:?}");
            }
        });
    }

    #[test]
    fn a_prefix_that_a_proxy_has_removed_is_not_named_twice() {
        Python::attach(|py| {
            let maker = maker(py, b"/app", Underscores::Drop);
            for (path, script_name) in [("/app/a", "/app/app"), ("/a", "/app"), ("/apple", "/app")] {
                let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\nX: /app\r\n\r\n").into_bytes();
                let mut request = request(&head, None);
                request.peer.prefix = Some(request.head.fields[1].value);
                let environ = made(py, &maker, &mut StringCache::default(), &request);
                assert_eq!(get(&environ, "SCRIPT_NAME").as_deref(), Some(script_name), "{path}");
            }
        });
    }

    #[test]
    fn a_client_without_address_or_port_has_no_remote_port() {
        Python::attach(|py| {
            let maker = maker(py, b"", Underscores::Drop);
            let mut cache = StringCache::default();
            let head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
            let mut request = request(head, Some("192.0.2.7:0"));
            let environ = made(py, &maker, &mut cache, &request);
            assert_eq!(get(&environ, "REMOTE_ADDR").as_deref(), Some("192.0.2.7"));
            assert_eq!(get(&environ, "REMOTE_PORT"), None);
            request.peer.client = None;
            let environ = made(py, &maker, &mut cache, &request);
            assert_eq!(get(&environ, "REMOTE_ADDR").as_deref(), Some(""));
            assert_eq!(get(&environ, "REMOTE_PORT"), None);
        });
    }

    #[test]
    fn an_id_is_neither_remembered_nor_expected() {
        Python::attach(|py| {
            let maker = maker(py, b"", Underscores::Drop);
            let mut cache = StringCache::default();
            for id in ["one", "two", "two"] {
                let head = format!("GET / HTTP/1.1\r\nHost: a\r\nx-trace: {id}\r\nX-A: two\r\n\r\n");
                let mut request = request(head.as_bytes(), None);
                request.id = request.head.fields[1].value;
                let environ = made(py, &maker, &mut cache, &request);
                for (key, value) in [("HTTP_X_TRACE", id), ("HTTP_X_A", "two")] {
                    assert_eq!(get(&environ, key).as_deref(), Some(value), "{key}");
                }
            }
            // A field of another name is none, also at the place of an id.
            let environ =
                made(py, &maker, &mut cache, &request(b"GET / HTTP/1.1\r\nHost: a\r\nX-B: two\r\n\r\n", None));
            assert_eq!(get(&environ, "HTTP_X_B").as_deref(), Some("two"));
            assert_eq!(get(&environ, "HTTP_X_TRACE"), None);
        });
    }

    #[test]
    fn a_forwarded_field_with_an_underscore_is_never_passed() {
        Python::attach(|py| {
            let maker = maker(py, b"", Underscores::Keep);
            let head = b"GET / HTTP/1.1\r\nHost: a\r\nX_Forwarded_For: x\r\nx-forwarded_proto: https\r\n\
                X_Forwarded_User: u\r\n\r\n";
            let environ = made(py, &maker, &mut StringCache::default(), &request(head, None));
            assert_eq!(get(&environ, "HTTP_X_FORWARDED_FOR"), None);
            assert_eq!(get(&environ, "HTTP_X_FORWARDED_PROTO"), None);
            assert_eq!(get(&environ, "HTTP_X_FORWARDED_USER").as_deref(), Some("u"));
        });
    }

    #[test]
    fn a_handful_of_headers_does_not_make_the_dict_grow() {
        Python::attach(|py| {
            let maker = maker(py, b"", Underscores::Drop);
            let size =
                |object: &Bound<'_, PyDict>| -> usize { object.call_method0("__sizeof__").unwrap().extract().unwrap() };
            for template in &maker.templates {
                let copy = template.bind(py).copy().unwrap();
                let before = size(&copy);
                for number in 0..12 {
                    copy.set_item(format!("HTTP_X_{number}"), "").unwrap();
                }
                assert_eq!(size(&copy), before);
            }
        });
    }
}
