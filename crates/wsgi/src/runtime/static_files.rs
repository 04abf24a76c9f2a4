//! What the server would do with a static file, found without serving, by the same functions; for `tailrace static`.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};
use tailrace_files::compress::codings;
use tailrace_files::resolve::{Root, Unresolved};
use tailrace_files::types::media_type;
use tailrace_http::static_path::{DotFiles, PathError, decode};

use crate::runtime::settings::static_config;

/// The fields of the response that follow from a file's name. path: of the URL, decoded, with the name of the file that
/// is sent for a folder.
#[pyfunction]
#[pyo3(signature = (settings, path, /))]
pub(crate) fn static_headers<'py>(settings: &Bound<'py, PyMapping>, path: &str) -> PyResult<Bound<'py, PyDict>> {
    let config = static_config(settings)?;
    let headers = PyDict::new(settings.py());
    headers.set_item("Content-Type", media_type(path, &config.types).as_ref())?;
    let cache_control = config.cache_control(path);
    if !cache_control.is_empty() {
        headers.set_item("Cache-Control", cache_control)?;
    }
    headers.set_item("X-Content-Type-Options", "nosniff")?;
    Ok(headers)
}

/// The codings in which a file of this name and length would be compressed, if it becomes smaller.
#[pyfunction]
#[pyo3(signature = (settings, name, length, /))]
pub(crate) fn static_codings(settings: &Bound<'_, PyMapping>, name: &str, length: u64) -> PyResult<Vec<&'static str>> {
    let config = static_config(settings)?;
    let found = if config.compress { codings(&media_type(name, &config.types), length) } else { &[] };
    Ok(found.iter().map(|coding| coding.name()).collect())
}

/// Why the target of a path below a folder would not be served; `None`: it would. path: percent-encoded, with a leading
/// slash.
#[pyfunction]
#[pyo3(signature = (settings, folder, path, /))]
pub(crate) fn static_refusal(settings: &Bound<'_, PyMapping>, folder: PathBuf, path: &str) -> PyResult<Option<String>> {
    let config = static_config(settings)?;
    let path = match decode(path.as_bytes(), DotFiles::WellKnown) {
        Ok(path) => path,
        Err(error) => return Ok(Some(unfit(error).to_owned())),
    };
    Ok(match Root::open(&folder, config.symlinks)?.resolve(&path) {
        Ok(_) => None,
        Err(Unresolved::Missing) => Some("missing".to_owned()),
        Err(Unresolved::Forbidden) => Some("permission".to_owned()),
        Err(Unresolved::Link) => Some("link".to_owned()),
        Err(Unresolved::Special) => Some("special".to_owned()),
        Err(Unresolved::Fault(errno)) => Some(errno.to_string()),
    })
}

fn unfit(error: PathError) -> &'static str {
    match error {
        PathError::Control => "control",
        PathError::DotFile => "dot",
        PathError::NotUtf8 => "octets",
        PathError::Separator => "separator",
        PathError::TooLong => "long",
        PathError::Malformed | PathError::DotSegment | PathError::EmptySegment | PathError::NotBelow => "unfit",
    }
}
