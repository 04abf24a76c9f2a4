//! The settings of a server as Python passes them: a mapping from each name in [`SETTINGS`] to a plain value. Names,
//! meanings and defaults are those of `tailrace/cli/options.py`. There are no defaults here, so none can differ.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyMapping;
use tailrace_http::compression::CompressionRules;
use tailrace_http::identity::IdField;
use tailrace_http::limits::Limits;
use tailrace_http::query::QueryMasking;
use tailrace_http::static_path::DotFiles;
use tailrace_http::trust::{ForwardedFields, Trust};
use tailrace_server::Cancellation;
use tailrace_server::resolve::Links;
use tailrace_server::{
    AccessLogConfig, CacheRule, Config, Destination, ExecutorKind, Format, Mount, NamedFolder, Rate, StaticConfig,
};

use crate::call::environ::Underscores;
use crate::call::target::percent_decode;
use crate::python::type_name::type_name;

/// The names of all settings, each of which must be given.
pub(crate) const SETTINGS: &[&str] = &[
    "executor",
    "threads",
    "request_line_limit",
    "header_bytes_limit",
    "header_count_limit",
    "max_body",
    "client_memory",
    "body_memory",
    "body_buffer",
    "stream_body",
    "request_timeout",
    "cancel_on_disconnect",
    "half_close",
    "slow",
    "query_masking",
    "max_queue",
    "queue_timeout",
    "max_connections",
    "client_connections",
    "client_rate",
    "header_timeout",
    "body_timeout",
    "idle_timeout",
    "write_timeout",
    "response_queue",
    "response_buffer",
    "response_spill",
    "min_body_rate",
    "min_response_rate",
    "hold_writes",
    "server_timing",
    "early_hints",
    "compress",
    "compress_types",
    "compress_min_size",
    "server_header",
    "root_path",
    "underscore_headers",
    "url_scheme",
    "strict_transport",
    "trusted_proxies",
    "forwarded_fields",
    "request_id",
    "trace_share",
    "static_mounts",
    "static_named",
    "static_symlinks",
    "static_dotfiles",
    "static_types",
    "static_cache",
    "static_fingerprinted",
    "static_index",
    "static_listing",
    "static_not_found",
    "static_fallback",
    "static_precompressed",
    "static_compress",
    "static_memory_file",
    "static_memory",
    "static_descriptors",
    "access_log",
    "access_log_format",
    "worker",
    "debug",
    "multithread",
    "multiprocess",
];

/// The settings, checked.
pub(crate) struct Settings {
    /// The settings of the server crate.
    pub(crate) config: Config,
    /// `SCRIPT_NAME`, decoded.
    pub(crate) root_path: Vec<u8>,
    pub(crate) underscores: Underscores,
    /// The application may send `wsgi.early_hints`.
    pub(crate) early_hints: bool,
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
        check_names(given)?;
        let from = Reader { given };
        Ok(Self {
            config: Config {
                executor: match from.text("executor")?.as_str() {
                    "threads" => ExecutorKind::Threads,
                    "greenlets" => ExecutorKind::Greenlets,
                    "inline" => ExecutorKind::Inline,
                    _ => return Err(unfit("executor", "\"threads\", \"greenlets\" or \"inline\"")),
                },
                threads: from.whole("threads", 1)?,
                listeners: Vec::new(),
                certificates: None,
                strict_transport: from.field_value("strict_transport")?,
                trust: from.trust()?,
                request_id: from.request_id()?,
                trace_share: from.trace_share()?,
                compression: from.compression()?,
                shares_listeners: from.value("multiprocess", "a bool")?,
                limits: Limits {
                    request_line: from.whole("request_line_limit", 1)?,
                    header_bytes: from.whole("header_bytes_limit", 1)?,
                    header_count: from.whole("header_count_limit", 1)?,
                    body: from.value("max_body", "a whole number of bytes")?,
                },
                client_memory: from.whole("client_memory", 1)?,
                body_memory: from.whole("body_memory", 0)?,
                body_buffer: from.whole("body_buffer", 0)?,
                stream_body: from.value("stream_body", "a bool")?,
                request_timeout: from.seconds("request_timeout")?,
                cancel: match from.text("cancel_on_disconnect")?.as_str() {
                    "off" => Cancellation::Never,
                    "safe" => Cancellation::Safe,
                    "all" => Cancellation::All,
                    _ => return Err(unfit("cancel_on_disconnect", "\"off\", \"safe\" or \"all\"")),
                },
                half_close_is_disconnect: match from.text("half_close")?.as_str() {
                    "continue" => false,
                    "disconnect" => true,
                    _ => return Err(unfit("half_close", "\"continue\" or \"disconnect\"")),
                },
                slow: from.seconds("slow")?,
                query_masking: query_masking_of(&from.text("query_masking")?)?,
                max_queue: from.whole("max_queue", 1)?,
                queue_timeout: from.seconds("queue_timeout")?,
                max_connections: from.whole("max_connections", 1)?,
                client_connections: from.whole("client_connections", 0)?,
                client_rate: from.rate()?,
                header_timeout: from.seconds("header_timeout")?,
                body_timeout: from.seconds("body_timeout")?,
                idle_timeout: from.seconds("idle_timeout")?,
                write_timeout: from.seconds("write_timeout")?,
                response_queue: from.whole("response_queue", 1)?,
                response_buffer: from.whole("response_buffer", 1)?,
                response_spill: from.value("response_spill", "a whole number of bytes")?,
                min_body_rate: from.value("min_body_rate", "a whole number of bytes")?,
                min_response_rate: from.value("min_response_rate", "a whole number of bytes")?,
                hold_writes: from.seconds("hold_writes")?,
                server_timing: from.value("server_timing", "a bool")?,
                server_name: from.field_value("server_header")?,
                static_files: from.static_files()?,
                access_log: from.access_log()?,
                worker: from.value("worker", "a whole number")?,
            },
            root_path: from.root_path()?,
            early_hints: from.value("early_hints", "a bool")?,
            underscores: match from.text("underscore_headers")?.as_str() {
                "drop" => Underscores::Drop,
                "keep" => Underscores::Keep,
                "refuse" => Underscores::Refuse,
                _ => return Err(unfit("underscore_headers", "\"drop\", \"keep\" or \"refuse\"")),
            },
            url_scheme: match from.text("url_scheme")? {
                scheme if scheme == "http" || scheme == "https" => scheme,
                _ => return Err(unfit("url_scheme", "\"http\" or \"https\"")),
            },
            debug: from.value("debug", "a bool")?,
            multithread: from.value("multithread", "a bool")?,
            multiprocess: from.value("multiprocess", "a bool")?,
        })
    }
}

/// The settings of static files in a mapping, which may have others.
pub(crate) fn static_config(given: &Bound<'_, PyMapping>) -> PyResult<StaticConfig> {
    Reader { given }.static_files()
}

/// Names all unknown and missing settings in one message.
fn check_names(given: &Bound<'_, PyMapping>) -> PyResult<()> {
    let mut unknown = Vec::new();
    for name in given.keys()? {
        let name = name.str()?.to_string();
        if !SETTINGS.contains(&name.as_str()) {
            unknown.push(name);
        }
    }
    let mut missing = Vec::new();
    for name in SETTINGS {
        if !given.contains(name)? {
            missing.push(*name);
        }
    }
    if unknown.is_empty() && missing.is_empty() {
        return Ok(());
    }
    let mut faults = Vec::new();
    if !unknown.is_empty() {
        faults.push(format!("unknown settings: {}", unknown.join(", ")));
    }
    if !missing.is_empty() {
        faults.push(format!("missing settings: {}", missing.join(", ")));
    }
    Err(PyValueError::new_err(faults.join("; ")))
}

/// True for a path of names, none of which is empty, `.` or `..`.
fn is_below(path: &str) -> bool {
    !path.contains('\0') && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
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

struct Reader<'a, 'py> {
    given: &'a Bound<'py, PyMapping>,
}

impl<'py> Reader<'_, 'py> {
    fn value<T>(&self, name: &str, wanted: &str) -> PyResult<T>
    where
        T: for<'a> FromPyObject<'a, 'py>,
    {
        let value = self.given.get_item(name)?;
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

    /// A value that may stand in a response field.
    fn field_value(&self, name: &str) -> PyResult<String> {
        fit_for_field(name, self.text(name)?)
    }

    /// Pairs of a text and a value that may stand in a response field.
    fn field_values(&self, name: &str) -> PyResult<Vec<(String, String)>> {
        let pairs: Vec<(String, String)> = self.value(name, "a list of pairs of str")?;
        pairs.into_iter().map(|(key, text)| Ok((key, fit_for_field(name, text)?))).collect()
    }

    /// The name of a file below a folder.
    fn file_below(&self, name: &str) -> PyResult<Option<String>> {
        let below: Option<String> = self.value(name, "None or a str")?;
        match below {
            Some(path) if !is_below(&path) => Err(unfit(name, "a path below a folder")),
            other => Ok(other),
        }
    }

    fn static_files(&self) -> PyResult<StaticConfig> {
        Ok(StaticConfig {
            mounts: self.mounts()?,
            named: self.named()?,
            symlinks: match self.text("static_symlinks")?.as_str() {
                "beneath" => Links::Beneath,
                "never" => Links::Never,
                "follow" => Links::Follow,
                _ => return Err(unfit("static_symlinks", "\"beneath\", \"never\" or \"follow\"")),
            },
            dot_files: match self.text("static_dotfiles")?.as_str() {
                "well-known" => DotFiles::WellKnown,
                "never" => DotFiles::Refused,
                "all" => DotFiles::Allowed,
                _ => return Err(unfit("static_dotfiles", "\"well-known\", \"never\" or \"all\"")),
            },
            types: self.field_values("static_types")?,
            cache_control: (self.field_values("static_cache")?.into_iter())
                .map(|(pattern, value)| CacheRule { pattern, value })
                .collect(),
            fingerprinted: self.field_value("static_fingerprinted")?,
            index: match self.value::<Vec<String>>("static_index", "a list of str")? {
                names if names.iter().all(|name| is_below(name) && !name.contains('/')) => names,
                _ => return Err(unfit("static_index", "a list of names of files")),
            },
            listing: self.value("static_listing", "a bool")?,
            not_found: self.file_below("static_not_found")?,
            fallback: self.file_below("static_fallback")?,
            precompressed: self.value("static_precompressed", "a bool")?,
            compress: self.value("static_compress", "a bool")?,
            memory_file: self.whole("static_memory_file", 0)?,
            memory: self.whole("static_memory", 0)?,
            descriptors: self.whole("static_descriptors", 0)?,
        })
    }

    fn mounts(&self) -> PyResult<Vec<Mount>> {
        const NAME: &str = "static_mounts";
        let mounts: Vec<(String, PathBuf, bool)> = self.value(NAME, "a list of (str, path, bool)")?;
        let mut read: Vec<Mount> = Vec::with_capacity(mounts.len());
        for (prefix, folder, is_overlay) in mounts {
            if !(prefix.is_empty() || prefix.strip_prefix('/').is_some_and(is_below)) {
                return Err(unfit(
                    NAME,
                    "made of prefixes that begin with a slash, do not end with one, and have no `..`",
                ));
            }
            if read.iter().any(|other| other.prefix == prefix) {
                return Err(unfit(NAME, "made of different prefixes"));
            }
            read.push(Mount { prefix, folder, is_overlay });
        }
        Ok(read)
    }

    /// The folders of files that the application names.
    fn named(&self) -> PyResult<Vec<NamedFolder>> {
        const NAME: &str = "static_named";
        let folders: Vec<(Option<String>, PathBuf)> = self.value(NAME, "a list of (None or str, path)")?;
        let is_prefix = |prefix: &str| prefix.is_empty() || prefix.strip_prefix('/').is_some_and(is_below);
        if folders.iter().any(|(prefix, folder)| !prefix.as_deref().is_none_or(is_prefix) || !folder.is_absolute()) {
            return Err(unfit(NAME, "made of absolute folders, and prefixes that begin with a slash and have no `..`"));
        }
        Ok(folders.into_iter().map(|(prefix, folder)| NamedFolder { prefix, folder }).collect())
    }

    /// `SCRIPT_NAME`: decoded once, as paths are, and without a slash at its end.
    fn root_path(&self) -> PyResult<Vec<u8>> {
        let text = self.text("root_path")?;
        let path = text.trim_end_matches('/');
        if !path.is_empty() && !path.starts_with('/') {
            return Err(unfit("root_path", "empty or begin with a slash"));
        }
        Ok(percent_decode(path.as_bytes()).into_owned())
    }

    /// The number of requests per client, and the period in seconds; `None`: no limit.
    fn rate(&self) -> PyResult<Option<Rate>> {
        let Some((requests, seconds)) = self.value::<Option<(u32, u32)>>("client_rate", "a pair of numbers or None")?
        else {
            return Ok(None);
        };
        match NonZeroU32::new(requests) {
            Some(requests) if (1..=3600).contains(&seconds) => {
                Ok(Some(Rate { requests, period: Duration::from_secs(u64::from(seconds)) }))
            }
            _ => Err(unfit("client_rate", "at least 1 request in 1 to 3600 seconds")),
        }
    }

    /// The field with the id of a request; empty: requests have none.
    fn request_id(&self) -> PyResult<Option<IdField>> {
        let name = self.text("request_id")?;
        if name.is_empty() {
            return Ok(None);
        }
        IdField::named(&name).map(Some).ok_or_else(|| unfit("request_id", "a field name without another meaning"))
    }

    /// The share of requests that are traced; None: none is.
    fn trace_share(&self) -> PyResult<Option<f64>> {
        let share: Option<f64> = self.value("trace_share", "a number or None")?;
        match share {
            Some(share) if !(0.0..=1.0).contains(&share) => Err(unfit("trace_share", "a number from 0 to 1")),
            _ => Ok(share),
        }
    }

    /// The responses that are compressed.
    fn compression(&self) -> PyResult<Option<CompressionRules>> {
        let types: Vec<String> = self.value("compress_types", "a list of str")?;
        let min_size = self.value("compress_min_size", "a whole number of bytes")?;
        let is_on: bool = self.value("compress", "a bool")?;
        Ok(is_on.then(|| CompressionRules::new(types, min_size)))
    }

    fn trust(&self) -> PyResult<Trust> {
        let peers: Vec<String> = self.value("trusted_proxies", "a list of str")?;
        let words: Vec<String> = self.value("forwarded_fields", "a list of str")?;
        let fields = words
            .iter()
            .try_fold(ForwardedFields::NONE, |fields, word| Some(fields.and(ForwardedFields::named(word)?)));
        let fields = fields.ok_or_else(|| unfit("forwarded_fields", "names such as \"x-forwarded-for\""))?;
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

/// Settings as the core has read them, a line for each field; without settings, the core's own defaults. For the test
/// that compares both.
///
/// # Errors
/// `ValueError` that names what is unknown, missing or unfit.
#[pyfunction]
#[pyo3(signature = (settings=None, /))]
pub(crate) fn settings_as_read(settings: Option<&Bound<'_, PyMapping>>) -> PyResult<String> {
    let config = settings.map_or_else(|| Ok(Config::default()), |given| Ok(Settings::read(given)?.config));
    config.map(|config: Config| format!("{config:#?}"))
}

/// Raises ValueError, with one line that says what is wrong with an entry of the trusted proxies.
#[pyfunction]
#[pyo3(signature = (entry, /))]
pub(crate) fn check_trusted_proxy(entry: &str) -> PyResult<()> {
    Trust::of([entry], ForwardedFields::NONE).map(drop).map_err(|fault| PyValueError::new_err(fault.to_string()))
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
            header_count_limit=128, max_body=1 << 30, client_memory=1 << 29, body_memory=1 << 20, body_buffer=1 << 27, stream_body=False,
            request_timeout=0, cancel_on_disconnect='off', half_close='continue', slow=0, query_masking='secrets', max_queue=2048, queue_timeout=0.0, max_connections=100000, client_connections=0, client_rate=None,
            header_timeout=15.0, body_timeout=30,
            idle_timeout=75.0, write_timeout=60.0, response_queue=1 << 20, response_buffer=1 << 28, response_spill=0,
            min_body_rate=240, min_response_rate=0, hold_writes=0.001, server_timing=False, early_hints=False, compress=True, compress_types=['text/*'], compress_min_size=5, server_header='tailrace',
            root_path='/a%20b/',
            static_mounts=[('/a b', '/srv/a', False), ('', '/srv/b', True)], static_symlinks='never',
            static_named=[(None, '/srv/a=b'), ('/in', '/srv/b')],
            static_dotfiles='all', static_types=[('data', 'text/plain')], static_cache=[('/a b', 'no-cache')],
            static_fingerprinted='immutable', static_index=['index.htm'], static_listing=True, static_not_found=None,
            static_fallback='app/index.html', static_precompressed=False, static_compress=True,
            static_memory_file=1, static_memory=2, static_descriptors=3,
            underscore_headers='drop', url_scheme='http', strict_transport='', trusted_proxies=['unix', '10.0.0.0/8'], forwarded_fields=['any'], request_id='X-Request-ID', trace_share=0.5, access_log=None, access_log_format='combined', worker=1, debug=False,
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
            let rules = CompressionRules::new(vec![String::from("text/*")], 5);
            assert_eq!(settings.config.compression, Some(rules));
            assert!(settings.config.trust.is_trusted(None));
            assert!(settings.config.trust.is_trusted(Some("10.0.0.1:80".parse().unwrap())));
            assert!(!settings.config.trust.is_trusted(Some("127.0.0.1:80".parse().unwrap())));
        });
    }

    #[test]
    fn the_settings_of_static_files_are_read() {
        Python::attach(|py| {
            let config = Settings::read(complete(py).as_mapping()).unwrap().config.static_files;
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
                dot_files: DotFiles::Allowed,
                types: vec![(String::from("data"), String::from("text/plain"))],
                cache_control: vec![CacheRule { pattern: String::from("/a b"), value: String::from("no-cache") }],
                fingerprinted: String::from("immutable"),
                index: vec![String::from("index.htm")],
                listing: true,
                not_found: None,
                fallback: Some(String::from("app/index.html")),
                precompressed: false,
                compress: true,
                memory_file: 1,
                memory: 2,
                descriptors: 3,
            };
            assert_eq!(config, wanted);
        });
    }

    #[test]
    fn unknown_and_missing_names_are_told_together() {
        Python::attach(|py| {
            let settings = complete(py);
            settings.del_item("debug").unwrap();
            settings.set_item("debugg", true).unwrap();
            let fault = fault(&settings);
            assert!(fault.contains("unknown settings: debugg") && fault.contains("missing settings: debug"), "{fault}");
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
                ("idle_timeout", c"float('nan')"),
                ("url_scheme", c"'gopher'"),
                ("server_header", c"'a\\r\\nb: c'"),
                ("root_path", c"'app'"),
                ("static_mounts", c"[('a', '/srv', False)]"),
                ("static_mounts", c"[('/a/', '/srv', False)]"),
                ("static_mounts", c"[('/a/../b', '/srv', False)]"),
                ("static_mounts", c"[('/a', '/srv', False), ('/a', '/srv', False)]"),
                ("static_mounts", c"[('/a', '/srv')]"),
                ("static_named", c"[('in', '/srv')]"),
                ("static_named", c"[('/in/', '/srv')]"),
                ("static_named", c"[(None, 'srv')]"),
                ("static_symlinks", c"'sometimes'"),
                ("static_dotfiles", c"True"),
                ("static_types", c"[('a', 'text/plain\\r\\nX: y')]"),
                ("static_cache", c"{'/': 'no-cache'}"),
                ("static_fingerprinted", c"None"),
                ("static_index", c"['a/b']"),
                ("static_index", c"'index.html'"),
                ("static_not_found", c"'../404.html'"),
                ("static_fallback", c"'/index.html'"),
                ("static_memory", c"-1"),
                ("access_log", c"7"),
                ("access_log", c"'syslog:relative'"),
                ("worker", c"-1"),
                ("underscore_headers", c"'maybe'"),
                ("trusted_proxies", c"['localhost']"),
                ("request_id", c"'Host'"),
                ("trace_share", c"1.5"),
                ("trusted_proxies", c"'10.0.0.0/8'"),
                ("forwarded_fields", c"'any'"),
                ("forwarded_fields", c"['both']"),
            ] {
                let settings = complete(py);
                settings.set_item(name, py.eval(value, None, None).unwrap()).unwrap();
                let fault = fault(&settings);
                assert!(fault.contains(name), "{fault}");
            }
        });
    }
}
