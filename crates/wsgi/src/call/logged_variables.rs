//! The keys of `environ` that the access log shows, with the values that the application leaves in them.
//!
//! Attached, on the thread of the request. Only values whose text costs no call of the application's code are shown:
//! `str`, `bytes`, `bool`, `int` and `float`.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyString};

use crate::ffi::latin1::as_latin1;

/// A longer value is cut to this many bytes.
const LONGEST: usize = 4096;

pub(crate) struct LoggedVariables(Vec<VariableKey>);

struct VariableKey {
    name: Py<PyString>,
    /// The name in capitals, if it differs: variables of CGI may be written in small letters, as in gunicorn.
    capitals: Option<Py<PyString>>,
}

impl LoggedVariables {
    pub(crate) fn new(py: Python<'_>, names: &[String]) -> Self {
        let key = |name: &String| {
            let capitals = name.to_ascii_uppercase();
            VariableKey {
                name: PyString::intern(py, name).unbind(),
                capitals: (capitals != *name).then(|| PyString::intern(py, &capitals).unbind()),
            }
        };
        Self(names.iter().map(key).collect())
    }

    /// True when the access log shows none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of each key; `None` where there is none that can be shown.
    pub(crate) fn read(&self, environ: &Bound<'_, PyDict>) -> Vec<Option<Vec<u8>>> {
        self.0.iter().map(|key| key.value(environ).and_then(|value| text_of(&value))).collect()
    }
}

impl VariableKey {
    fn value<'py>(&self, environ: &Bound<'py, PyDict>) -> Option<Bound<'py, PyAny>> {
        let py = environ.py();
        let found = environ.get_item(self.name.bind(py)).ok().flatten();
        found.or_else(|| environ.get_item(self.capitals.as_ref()?.bind(py)).ok().flatten())
    }
}

fn text_of(value: &Bound<'_, PyAny>) -> Option<Vec<u8>> {
    let cut = |bytes: &[u8]| bytes[..bytes.len().min(LONGEST)].to_vec();
    if let Ok(text) = value.cast::<PyString>() {
        // A native string stands for bytes (PEP 3333); another one is shown in UTF-8.
        return Some(as_latin1(text).map_or_else(|| cut(up_to_a_character(&text.to_string_lossy())), cut));
    }
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Some(cut(bytes.as_bytes()));
    }
    let is_number = value.is_exact_instance_of::<PyBool>()
        || value.is_exact_instance_of::<PyInt>()
        || value.is_exact_instance_of::<PyFloat>();
    is_number.then(|| value.str().ok()).flatten().map(|text| cut(text.to_string_lossy().as_bytes()))
}

/// The beginning of a text, without a part of a character at its end.
fn up_to_a_character(text: &str) -> &[u8] {
    let end = (0..=text.len().min(LONGEST)).rev().find(|&end| text.is_char_boundary(end));
    &text.as_bytes()[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn values_are_shown_whose_text_costs_no_call() {
        Python::attach(|py| {
            let text = c"{'a.user': 'jos\\xe9', 'wide': '\\u20ac', 'b': b'\\xff', 'n': 7, 't': True, 'f': 0.5,
                'none': None, 'o': object(), 'REMOTE_USER': 'joe', 'long': 'x' * 5000,
                'wide long': '\\u20ac' * 5000, 'huge': 10 ** 5000}";
            let environ: Bound<'_, PyDict> = py.eval(text, None, None).unwrap().cast_into().unwrap();
            let read = |name: &str| {
                LoggedVariables::new(py, &[name.to_owned()])
                    .read(&environ)
                    .pop()
                    .unwrap()
                    .map(|value| String::from_utf8_lossy(&value).into_owned())
            };
            let shown = |name: &str| read(name).unwrap();
            assert_eq!(LoggedVariables::new(py, &["a.user".to_owned()]).read(&environ), [Some(b"jos\xe9".to_vec())]);
            assert_eq!((shown("wide"), shown("n"), shown("t"), shown("f")), {
                ("\u{20ac}".to_owned(), "7".to_owned(), "True".to_owned(), "0.5".to_owned())
            });
            assert_eq!(LoggedVariables::new(py, &["b".to_owned()]).read(&environ), [Some(b"\xff".to_vec())]);
            assert_eq!((read("none"), read("o"), read("missing"), read("huge")), (None, None, None, None));
            assert_eq!((shown("remote_user"), shown("long").len()), ("joe".to_owned(), LONGEST));
            assert_eq!(shown("wide long"), "\u{20ac}".repeat(LONGEST / 3));
        });
    }
}
