//! The settings of a server as Python passes them: a mapping from each name to a plain value. Names, meanings and defaults
//! are those of `tailrace/cli/options.py`. There are no defaults here, so none can differ. What that
//! table checks is checked here again only if it could break a response.

use std::cell::RefCell;
use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyMapping;
use tailrace_files::config::{CacheRule, Mount, NamedFolder, StaticConfig};
use tailrace_files::resolve::Links;
use tailrace_http::compression::{CompressionRules, MIN_COMPRESSED};
use tailrace_http::identity::{IdField, Sampling};
use tailrace_http::limits::{Limits, MAX_FIELDS};
use tailrace_http::origin::Origins;
use tailrace_http::query::QueryMasking;
use tailrace_http::trust::{ForwardedFields, Trust};
use tailrace_observe::access_log::{AccessLogConfig, Destination, Format};
use tailrace_server::Cancellation;
use tailrace_server::{Config, ExecutorKind, HOLD_WRITES, MIN_RATE, MemoryShares, Rate, SessionKey};

use crate::call::environ::Underscores;
use crate::python::type_name::type_name;
use tailrace_http::percent::percent_decode;

/// The settings, checked.
pub(crate) struct Settings {
    /// The settings of the server crate.
    pub(crate) config: Config,
    /// Which files are served without the application, or where it names them.
    pub(crate) static_files: StaticConfig,
    /// `SCRIPT_NAME`, decoded.
    pub(crate) root_path: Vec<u8>,
    pub(crate) underscores: Underscores,
    /// The application may send `wsgi.early_hints`.
    pub(crate) early_hints: bool,
    /// The value of `Grip-Sig` that the application gets with each request.
    pub(crate) holder_proof: Option<String>,
    pub(crate) url_scheme: String,
    pub(crate) debug: bool,
    pub(crate) multithread: bool,
    pub(crate) multiprocess: bool,
}

impl Settings {
    /// Reads a mapping.
    ///
    /// # Errors
    /// `ValueError` that names what is unknown, missing or unfit.
    pub(crate) fn read(given: &Bound<'_, PyMapping>) -> PyResult<Self> {
        let from = Reader::of(given);
        let client_memory = from.whole("client_memory", 1)?;
        let shares = MemoryShares::of(client_memory);
        let settings = Self {
            config: Config {
                executor: from.choice(
                    "executor",
                    [
                        ("threads", ExecutorKind::Threads),
                        ("greenlets", ExecutorKind::Greenlets),
                        ("inline", ExecutorKind::Inline),
                    ],
                )?,
                threads: from.whole("threads", 1)?,
                listeners: Vec::new(),
                certificates: None,
                trust: from.trust()?,
                request_id: from.request_id()?,
                sampling: from.sampling()?,
                compression: from.compression()?,
                shares_listeners: from.value("multiprocess", "a bool")?,
                limits: Limits {
                    request_line: from.whole("request_line_limit", 1)?,
                    header_bytes: from.whole("header_bytes_limit", 1)?,
                    header_count: MAX_FIELDS,
                    body: from.value("max_body", "a whole number of bytes")?,
                },
                client_memory,
                body_memory: shares.body_memory,
                body_buffer: shares.body_buffer,
                stream_body: from.value("stream_body", "a bool")?,
                request_timeout: from.seconds("request_timeout")?,
                cancel: from.choice(
                    "cancel_on_disconnect",
                    [("off", Cancellation::Never), ("safe", Cancellation::Safe), ("all", Cancellation::All)],
                )?,
                origins: from.origins()?,
                websocket_events: from
                    .value::<Vec<String>>("websocket_events", "a list of str")?
                    .into_iter()
                    .map(String::into_bytes)
                    .collect(),
                is_behind_holder: from.value("is_behind_holder", "a bool")?,
                holder: from.value("holder", "bytes or None")?,
                sticky: from.sticky()?,
                slow_request_log: from.seconds("slow_request_log")?,
                query_masking: query_masking_of(&from.text("query_masking")?)?,
                max_queue: from.whole("max_queue", 1)?,
                queue_timeout: from.seconds("queue_timeout")?,
                max_connections: from.whole("max_connections", 1)?,
                client_connections: from.whole("client_connections", 0)?,
                client_rate: from.rate()?,
                header_timeout: from.seconds("header_timeout")?,
                body_timeout: from.seconds("body_timeout")?,
                keepalive_timeout: from.seconds("keepalive_timeout")?,
                write_timeout: from.seconds("write_timeout")?,
                response_queue: shares.response_queue,
                response_buffer: shares.response_buffer,
                body_spill: body_spill(from.value("max_body", "a whole number of bytes")?),
                response_spill: from.value("response_spill", "a whole number of bytes")?,
                min_rate: MIN_RATE,
                hold_writes: HOLD_WRITES,
                server_timing: from.value("server_timing", "a bool")?,
                server_name: from.field_value("server_header")?,
                access_log: from.access_log()?,
                worker: from.value("worker", "a whole number")?,
            },
            static_files: from.static_files()?,
            root_path: from.root_path()?,
            early_hints: from.value("early_hints", "a bool")?,
            underscores: from.choice(
                "underscore_headers",
                [("drop", Underscores::Drop), ("keep", Underscores::Keep), ("refuse", Underscores::Refuse)],
            )?,
            url_scheme: from.choice("url_scheme", [("http", "http"), ("https", "https")])?.to_owned(),
            holder_proof: from.value("holder_proof", "a str or None")?,
            debug: from.value("debug", "a bool")?,
            multithread: from.value("multithread", "a bool")?,
            multiprocess: from.value("multiprocess", "a bool")?,
        };
        from.check_names()?;
        Ok(settings)
    }
}

/// The settings of static files in a mapping, which may have others.
pub(crate) fn static_config(given: &Bound<'_, PyMapping>) -> PyResult<StaticConfig> {
    Reader::of(given).static_files()
}

fn fit_for_field(name: &str, text: String) -> PyResult<String> {
    if text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
        Ok(text)
    } else {
        Err(unfit(name, "printable ASCII"))
    }
}

fn unfit(name: &str, wanted: &str) -> PyErr {
    PyValueError::new_err(format!("setting {name} must be {wanted}"))
}

/// Bytes that all request bodies of a worker in temporary files may have: four of the largest ones, and at least 4 GiB.
fn body_spill(max_body: u64) -> u64 {
    max_body.saturating_mul(4).max(4 << 30)
}

struct Reader<'a, 'py> {
    given: &'a Bound<'py, PyMapping>,
    /// The names that were asked for.
    asked: RefCell<Vec<String>>,
}

impl<'a, 'py> Reader<'a, 'py> {
    fn of(given: &'a Bound<'py, PyMapping>) -> Self {
        Self { given, asked: RefCell::default() }
    }

    /// Refuses settings that were not asked for.
    fn check_names(&self) -> PyResult<()> {
        let names = self.given.keys()?.iter().map(|name| Ok(name.str()?.to_string())).collect::<PyResult<Vec<_>>>()?;
        let asked = self.asked.borrow();
        let unknown: Vec<_> = names.into_iter().filter(|name| !asked.contains(name)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        Err(PyValueError::new_err(format!("unknown settings: {}", unknown.join(", "))))
    }

    fn value<T>(&self, name: &str, wanted: &str) -> PyResult<T>
    where
        T: for<'b> FromPyObject<'b, 'py>,
    {
        self.asked.borrow_mut().push(name.to_owned());
        let value = self.given.get_item(name).map_err(|_| PyValueError::new_err(format!("missing setting: {name}")))?;
        value.extract().map_err(|_| unfit(name, &format!("{wanted}, not {}", type_name(&value))))
    }

    fn whole(&self, name: &str, least: usize) -> PyResult<usize> {
        let value: usize = self.value(name, "a whole number")?;
        if value < least { Err(unfit(name, &format!("at least {least}"))) } else { Ok(value) }
    }

    fn seconds(&self, name: &str) -> PyResult<Duration> {
        let seconds: f64 = self.value(name, "a number of seconds")?;
        Duration::try_from_secs_f64(seconds).map_err(|_| unfit(name, "a number of seconds"))
    }

    fn text(&self, name: &str) -> PyResult<String> {
        self.value(name, "a str")
    }

    /// What the setting chooses, by its name.
    fn choice<T>(&self, name: &str, choices: impl IntoIterator<Item = (&'static str, T)>) -> PyResult<T> {
        let text = self.text(name)?;
        let chosen = choices.into_iter().find(|(choice, _)| *choice == text);
        chosen.map(|(_, value)| value).ok_or_else(|| unfit(name, "one of its choices"))
    }

    fn origins(&self) -> PyResult<Origins> {
        let entries: Vec<String> = self.value("websocket_origins", "a list of str")?;
        let entries = entries.iter().map(String::as_str);
        Origins::of(entries).map_err(|_| unfit("websocket_origins", "same, any or origins"))
    }

    /// A value that may stand in a response field.
    fn field_value(&self, name: &str) -> PyResult<String> {
        fit_for_field(name, self.text(name)?)
    }

    /// Pairs of a text and a value that may stand in a response field.
    fn field_values(&self, name: &str) -> PyResult<Vec<(String, String)>> {
        let pairs: Vec<(String, String)> = self.value(name, "a list of pairs of str")?;
        pairs.into_iter().map(|(key, text)| Ok((key, fit_for_field(name, text)?))).collect()
    }

    fn static_files(&self) -> PyResult<StaticConfig> {
        Ok(StaticConfig {
            mounts: self.mounts()?,
            named: self.named()?,
            symlinks: self.choice(
                "static_symlinks",
                [("beneath", Links::Beneath), ("never", Links::Never), ("follow", Links::Follow)],
            )?,
            types: self.field_values("static_types")?,
            cache_control: (self.field_values("static_cache")?.into_iter())
                .map(|(pattern, value)| CacheRule { pattern, value })
                .collect(),
            fingerprinted: self.field_value("static_fingerprinted")?,
            index: self.value("static_index", "a list of str")?,
            not_found: self.value("static_not_found", "None or a str")?,
            fallback: self.value("static_fallback", "None or a str")?,
            precompressed: true,
            compress: self.value("compress", "a bool")?,
            memory: self.whole("static_memory", 0)?,
        })
    }

    fn mounts(&self) -> PyResult<Vec<Mount>> {
        let mounts: Vec<(String, PathBuf, bool)> = self.value("static_mounts", "a list of (str, path, bool)")?;
        Ok(mounts.into_iter().map(|(prefix, folder, is_overlay)| Mount { prefix, folder, is_overlay }).collect())
    }

    /// The folders of files that the application names.
    fn named(&self) -> PyResult<Vec<NamedFolder>> {
        let folders: Vec<(Option<String>, PathBuf)> = self.value("static_named", "a list of (None or str, path)")?;
        Ok(folders.into_iter().map(|(prefix, folder)| NamedFolder { prefix, folder }).collect())
    }

    /// `SCRIPT_NAME`: decoded once, as paths are, and without a slash at its end.
    fn root_path(&self) -> PyResult<Vec<u8>> {
        Ok(percent_decode(self.text("root_path")?.trim_end_matches('/').as_bytes()).into_owned())
    }

    /// The number of requests per client, and the period in seconds; `None`: no limit.
    fn rate(&self) -> PyResult<Option<Rate>> {
        let rate: Option<(NonZeroU32, NonZeroU32)> = self.value("client_rate", "a pair of positive numbers or None")?;
        Ok(rate.map(|(requests, seconds)| Rate { requests, period: Duration::from_secs(seconds.get().into()) }))
    }

    /// Where the keys of sessions are, of which each belongs to one worker.
    fn sticky(&self) -> PyResult<Option<SessionKey>> {
        let Some(text) = self.value::<Option<String>>("sticky", "None or a str")? else { return Ok(None) };
        SessionKey::parse(&text).map(Some).ok_or_else(|| unfit("sticky", "query:, cookie: or header: and a name"))
    }

    /// The field with the id of a request; empty: requests have none.
    fn request_id(&self) -> PyResult<Option<IdField>> {
        let name = self.text("request_id")?;
        if name.is_empty() {
            return Ok(None);
        }
        IdField::named(&name).map(Some).ok_or_else(|| unfit("request_id", "a field name without another meaning"))
    }

    /// Which requests are traced; None: none is.
    fn sampling(&self) -> PyResult<Option<Sampling>> {
        let wanted = "a number from 0 to 1 with a bool, or None";
        match self.value("sampling", wanted)? {
            Some((share, _)) if !(0.0..=1.0).contains(&share) => Err(unfit("sampling", wanted)),
            found => Ok(found.map(|(share, is_parent_based)| Sampling { share, is_parent_based })),
        }
    }

    /// The responses that are compressed.
    fn compression(&self) -> PyResult<Option<CompressionRules>> {
        let types: Vec<String> = self.value("compress_types", "a list of str")?;
        let is_on: bool = self.value("compress", "a bool")?;
        Ok(is_on.then(|| CompressionRules::new(types, MIN_COMPRESSED)))
    }

    fn trust(&self) -> PyResult<Trust> {
        let peers: Vec<String> = self.value("trusted_proxies", "a list of str")?;
        let words: Vec<String> = self.value("forwarded_headers", "a list of str")?;
        let fields = words
            .iter()
            .try_fold(ForwardedFields::NONE, |fields, word| Some(fields.and(ForwardedFields::named(word)?)));
        let fields = fields.ok_or_else(|| unfit("forwarded_headers", "names such as \"x-forwarded-for\""))?;
        Trust::of(peers.iter().map(String::as_str), fields)
            .map_err(|fault| PyValueError::new_err(format!("setting trusted_proxies: {fault}")))
    }

    fn access_log(&self) -> PyResult<Option<AccessLogConfig>> {
        let format = Format::parse(&self.text("access_log_format")?)
            .map_err(|fault| PyValueError::new_err(format!("setting access_log_format: {fault}")))?;
        let Some(given) = self.value::<Option<OsString>>("access_log", "None or a str")? else { return Ok(None) };
        let destination = Destination::parse(&given)
            .map_err(|fault| PyValueError::new_err(format!("setting access_log: {fault}")))?;
        Ok(Some(AccessLogConfig { destination, format }))
    }
}

/// The kind of the destination of a log. Raises ValueError, with one line that says what is wrong with it.
#[pyfunction]
#[pyo3(signature = (text, /))]
pub(crate) fn log_destination_kind(text: OsString) -> PyResult<&'static str> {
    Ok(match Destination::parse(&text).map_err(PyValueError::new_err)? {
        Destination::Stdout => "stdout",
        Destination::Stderr => "stderr",
        Destination::Path(_) => "file",
        Destination::Syslog(_) => "syslog",
        Destination::Journal { .. } => "journal",
        Destination::Application => "logging",
    })
}

/// Raises ValueError, with one line that says what is wrong with a format of the access log.
#[pyfunction]
#[pyo3(signature = (text, /))]
pub(crate) fn check_access_log_format(text: &str) -> PyResult<()> {
    Format::parse(text).map(drop).map_err(PyValueError::new_err)
}

/// The value of the option with this name.
pub(crate) fn query_masking_of(name: &str) -> PyResult<QueryMasking> {
    match name {
        "secrets" => Ok(QueryMasking::Secrets),
        "all" => Ok(QueryMasking::All),
        "none" => Ok(QueryMasking::None),
        _ => Err(unfit("query_masking", "\"secrets\", \"all\" or \"none\"")),
    }
}

/// Raises ValueError, with one line that says what is wrong with an entry of the trusted proxies.
#[pyfunction]
#[pyo3(signature = (entry, /))]
pub(crate) fn check_trusted_proxy(entry: &str) -> PyResult<()> {
    Trust::of([entry], ForwardedFields::NONE).map(drop).map_err(|fault| PyValueError::new_err(fault.to_string()))
}

/// Raises ValueError unless a WebSocket may be limited to this origin.
#[pyfunction]
#[pyo3(signature = (entry, /))]
pub(crate) fn check_origin(entry: &str) -> PyResult<()> {
    let fault = "must be same, any, or an origin such as https://shop.example";
    Origins::of([entry]).map(drop).map_err(|_| PyValueError::new_err(fault))
}

/// Raises ValueError unless requests may have their id in a field of this name.
#[pyfunction]
#[pyo3(signature = (name, /))]
pub(crate) fn check_request_id(name: &str) -> PyResult<()> {
    let fault =
        "must be the name of a header field without underscores and without another meaning, such as X-Request-ID";
    IdField::named(name).map(drop).ok_or_else(|| PyValueError::new_err(fault))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use pyo3::types::PyDict;

    use super::*;

    fn complete(py: Python<'_>) -> Bound<'_, PyDict> {
        let text = c"dict(executor='greenlets', threads=4, request_line_limit=8190, header_bytes_limit=65536,
            max_body=1 << 30, client_memory=1 << 29, stream_body=False,
            request_timeout=0, cancel_on_disconnect='off', websocket_origins=['same'], websocket_events=[], is_behind_holder=False, holder=None, holder_proof=None, slow_request_log=0, query_masking='secrets', sticky=None, max_queue=2048, queue_timeout=0.0, max_connections=100000, client_connections=0, client_rate=None,
            header_timeout=15.0, body_timeout=30,
            keepalive_timeout=75.0, write_timeout=60.0, response_spill=0,
            server_timing=False, early_hints=False, compress=True, compress_types=['text/*'], server_header='tailrace',
            root_path='/a%20b/',
            static_mounts=[('/a b', '/srv/a', False), ('', '/srv/b', True)], static_symlinks='never',
            static_named=[(None, '/srv/a=b'), ('/in', '/srv/b')],
            static_types=[('data', 'text/plain')], static_cache=[('/a b', 'no-cache')],
            static_fingerprinted='immutable', static_index=['index.htm'], static_not_found=None,
            static_fallback='app/index.html', static_memory=2,
            underscore_headers='drop', url_scheme='http', trusted_proxies=['unix', '10.0.0.0/8'], forwarded_headers=['any'], request_id='X-Request-ID', sampling=(0.5, True), access_log=None, access_log_format='combined', worker=1, debug=False,
            multithread=True, multiprocess=False)";
        py.eval(text, None, None).unwrap().cast_into().unwrap()
    }

    fn fault(settings: &Bound<'_, PyDict>) -> String {
        let error = Settings::read(settings.as_mapping()).err().unwrap();
        assert!(error.is_instance_of::<PyValueError>(settings.py()), "{error}");
        error.to_string()
    }

    #[test]
    fn a_complete_mapping_is_read() {
        Python::attach(|py| {
            let settings = Settings::read(complete(py).as_mapping()).unwrap();
            assert_eq!((settings.config.executor, settings.config.threads), (ExecutorKind::Greenlets, 4));
            assert_eq!(settings.config.body_timeout, Duration::from_secs(30));
            assert_eq!(settings.root_path, b"/a b");
            assert_eq!(settings.underscores, Underscores::Drop);
            let rules = CompressionRules::new(vec![String::from("text/*")], MIN_COMPRESSED);
            assert_eq!(settings.config.compression, Some(rules));
            assert!(settings.config.trust.is_trusted(None));
            assert!(settings.config.trust.is_trusted(Some("10.0.0.1:80".parse().unwrap())));
            assert!(!settings.config.trust.is_trusted(Some("127.0.0.1:80".parse().unwrap())));
        });
    }

    #[test]
    fn the_settings_of_static_files_are_read() {
        Python::attach(|py| {
            let config = Settings::read(complete(py).as_mapping()).unwrap().static_files;
            let mount = |prefix: &str, folder: &str, is_overlay| Mount {
                prefix: prefix.to_owned(),
                folder: folder.into(),
                is_overlay,
            };
            let wanted = StaticConfig {
                mounts: vec![mount("/a b", "/srv/a", false), mount("", "/srv/b", true)],
                named: vec![
                    NamedFolder { prefix: None, folder: PathBuf::from("/srv/a=b") },
                    NamedFolder { prefix: Some(String::from("/in")), folder: PathBuf::from("/srv/b") },
                ],
                symlinks: Links::Never,
                types: vec![(String::from("data"), String::from("text/plain"))],
                cache_control: vec![CacheRule { pattern: String::from("/a b"), value: String::from("no-cache") }],
                fingerprinted: String::from("immutable"),
                index: vec![String::from("index.htm")],
                not_found: None,
                fallback: Some(String::from("app/index.html")),
                precompressed: true,
                compress: true,
                memory: 2,
            };
            assert_eq!(config, wanted);
        });
    }

    #[test]
    fn unknown_and_missing_names_are_refused() {
        Python::attach(|py| {
            let settings = complete(py);
            settings.set_item("debugg", true).unwrap();
            assert!(fault(&settings).contains("unknown settings: debugg"));
            settings.del_item("debug").unwrap();
            assert!(fault(&settings).contains("missing setting: debug"));
        });
    }

    #[test]
    fn unfit_values_are_refused_by_name() {
        Python::attach(|py| {
            for (name, value) in [
                ("executor", c"'processes'"),
                ("threads", c"0"),
                ("threads", c"'4'"),
                ("max_body", c"-1"),
                ("keepalive_timeout", c"float('nan')"),
                ("url_scheme", c"'gopher'"),
                ("server_header", c"'a\\r\\nb: c'"),
                ("static_mounts", c"[('/a', '/srv')]"),
                ("static_symlinks", c"'sometimes'"),
                ("static_types", c"[('a', 'text/plain\\r\\nX: y')]"),
                ("static_cache", c"{'/': 'no-cache'}"),
                ("static_fingerprinted", c"None"),
                ("static_index", c"'index.html'"),
                ("static_memory", c"-1"),
                ("access_log", c"7"),
                ("access_log", c"'syslog:relative'"),
                ("worker", c"-1"),
                ("underscore_headers", c"'maybe'"),
                ("trusted_proxies", c"['localhost']"),
                ("request_id", c"'Host'"),
                ("websocket_origins", c"['shop.example']"),
                ("sampling", c"(1.5, True)"),
                ("trusted_proxies", c"'10.0.0.0/8'"),
                ("forwarded_headers", c"'any'"),
                ("forwarded_headers", c"['both']"),
            ] {
                let settings = complete(py);
                settings.set_item(name, py.eval(value, None, None).unwrap()).unwrap();
                let fault = fault(&settings);
                assert!(fault.contains(name), "{fault}");
            }
        });
    }
}
