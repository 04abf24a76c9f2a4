//! Status and headers from `start_response` into the response's head.
//!
//! Applications often repeat the same head, with the very same objects. So the last head is kept with references to the
//! objects from which it was built. If a call has those objects again, their text is not read, checked and copied
//! again. Strings and tuples are immutable, so the same objects mean the same bytes. For an application whose headers
//! are always new objects, only one head in 64 is kept for comparison.
//!
//! Runs attached; nothing in here runs Python code between reading the list and filling the head.

use pyo3::exceptions::{PyMemoryError, PyTypeError, PyUnicodeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use tailrace_holder::grip::{Instructions, is_instruction};
use tailrace_http::encode::{HeadFault, ResponseHead};
use tailrace_server::{Delegation, Exchange};

use crate::ffi::latin1::as_latin1;
use crate::ffi::sequences;
use crate::python::type_name::type_name;

/// After this many new heads in a row, only one in [`SAMPLE`] is kept for comparison.
const PATIENCE: u32 = 4;
const SAMPLE: u32 = 64;
/// A head that is larger than this is not kept.
const LARGEST: usize = 64 * 1024;

/// The last head, and the objects from which it was built.
#[derive(Default)]
pub(crate) struct LastHead {
    status: Option<Py<PyString>>,
    headers: Vec<Py<PyTuple>>,
    head: ResponseHead,
    misses: u32,
}

/// What the header fields of an application ask of the server.
#[derive(Debug, Default)]
pub(crate) struct Directives {
    /// The field that asks for a responder, if it is to be followed: as with mod_xsendfile only with the status 200, and with
    /// 206, which Flask gives if the client asks for a range. An error page of the application's keeps its body.
    pub(crate) delegation: Option<Delegation>,
    /// The fields of GRIP, for a server or a proxy that holds the connection.
    pub(crate) instructions: Vec<(String, String)>,
}

/// Fills `head` from what the application gave, but for the fields that ask something of the server, which are returned.
///
/// # Errors
/// `TypeError` for wrong types, `ValueError` for what must not stand in a head; both name the header.
pub(crate) fn fill(
    head: &mut ResponseHead,
    status: &Bound<'_, PyAny>,
    headers: &Bound<'_, PyAny>,
    last: &mut LastHead,
    delegation_fields: &'static [&'static str],
) -> PyResult<Directives> {
    let status = status.cast::<PyString>().map_err(|_| {
        PyTypeError::new_err(format!("status must be str such as \"200 OK\", not {}", type_name(status)))
    })?;
    if last.is_made_of(status, headers) {
        last.misses = 0;
        return head.copy_from(&last.head).map(|()| Directives::default()).map_err(fault);
    }
    head.clear();
    let Some(line) = as_latin1(status) else {
        return Err(PyUnicodeError::new_err("status has a character beyond latin-1 (PEP 3333)"));
    };
    head.status(line).map_err(fault)?;
    let mut filling = Filling { head, delegation_fields, delegation: None, instructions: Vec::new() };
    if let Ok(headers) = headers.cast::<PyList>() {
        for header in headers {
            filling.add(&header)?;
        }
    } else if let Ok(headers) = headers.cast::<PyTuple>() {
        for header in headers.iter_borrowed() {
            filling.add(&header)?;
        }
    }
    let Filling { delegation, instructions, .. } = filling;
    if delegation.is_none() && instructions.is_empty() {
        last.keep(head, status, headers);
    }
    Ok(Directives { delegation: delegation.filter(|_| matches!(head.status_code(), 200 | 206)), instructions })
}

/// Follows instructions of the application for the connection. If a proxy in front of the server holds connections, they
/// are sent to it instead.
///
/// # Errors
/// `ValueError` for instructions that cannot be followed.
pub(crate) fn follow(exchange: &mut Exchange, fields: &[(String, String)]) -> PyResult<()> {
    if exchange.is_behind_holder() {
        for (name, value) in fields {
            let value: Vec<u8> = value.chars().map(|char| char as u8).collect();
            exchange.response_mut().head().field(name.as_bytes(), &value).map_err(fault)?;
        }
        return Ok(());
    }
    let fields = fields.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let instructions = Instructions::parse(fields).map_err(PyValueError::new_err)?;
    if instructions.mode.is_some() || instructions.next.is_some() {
        let head = exchange.response_mut().head();
        instructions.check(head.status_code(), head.has(b"Content-Encoding")).map_err(PyValueError::new_err)?;
        let request = exchange.request();
        let is_head = request.head.method.of(&request.bytes) == b"HEAD";
        if !exchange.hold(instructions) && !is_head {
            return Err(PyValueError::new_err(
                "Grip-Hold: the connection cannot be held while the body of its request arrives (--stream-body)",
            ));
        }
    }
    Ok(())
}

/// The whole head of an interim response 103 (RFC 8297) with these fields.
///
/// # Errors
/// As [`fill`].
pub(crate) fn early_hints(headers: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let mut head = ResponseHead::default();
    head.early_hints().map_err(fault)?;
    let mut filling = Filling { head: &mut head, delegation_fields: &[], delegation: None, instructions: Vec::new() };
    // The list is only read while it is complete: no Python code runs meanwhile.
    for header in sequences::list_of(&header_list(headers)?)? {
        filling.add(&header)?;
    }
    Ok(head.finish_interim())
}

/// PEP 3333 requires a list. Any other iterable of pairs is accepted, but not a mapping or a string, which are
/// mistakes.
///
/// # Errors
/// `TypeError`, or what iterating raises.
pub(crate) fn header_list<'py>(headers: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if headers.is_instance_of::<PyList>() || headers.is_instance_of::<PyTuple>() {
        return Ok(headers.clone());
    }
    let wrong = || {
        PyTypeError::new_err(format!(
            "headers must be a list of (name, value) tuples, not {} (PEP 3333)",
            type_name(headers)
        ))
    };
    if headers.is_instance_of::<PyString>() || headers.is_instance_of::<PyBytes>() || headers.is_instance_of::<PyDict>()
    {
        return Err(wrong());
    }
    let list = sequences::list_of(headers).map(Bound::into_any);
    list.map_err(|error| if error.is_instance_of::<PyTypeError>(headers.py()) { wrong() } else { error })
}

fn fault(fault: HeadFault) -> PyErr {
    if fault == HeadFault::NoMemory {
        return PyMemoryError::new_err(fault.to_string());
    }
    PyValueError::new_err(fault.to_string())
}

/// A head that is being filled.
struct Filling<'a> {
    head: &'a mut ResponseHead,
    delegation_fields: &'static [&'static str],
    delegation: Option<Delegation>,
    /// The fields of GRIP.
    instructions: Vec<(String, String)>,
}

impl Filling<'_> {
    fn add(&mut self, header: &Bound<'_, PyAny>) -> PyResult<()> {
        let pair = match header.cast::<PyTuple>() {
            Ok(pair) => pair,
            Err(_) => return self.add(&as_pair(header)?),
        };
        let Some((name, value)) = sequences::pair(pair) else {
            return Err(PyTypeError::new_err(format!(
                "a header must be a tuple of name and value, but one has {} items",
                pair.len()
            )));
        };
        let name = name
            .cast::<PyString>()
            .map_err(|_| PyTypeError::new_err(format!("the name of a header must be str, not {}", type_name(&name))))?;
        let value = value.cast::<PyString>().map_err(|_| {
            PyTypeError::new_err(format!(
                "the value of header {:?} must be str, not {}",
                name.to_string_lossy(),
                type_name(&value)
            ))
        })?;
        let octets = as_latin1(&name);
        if let Some(name) = octets
            && let Some(field) = self.delegation_fields.iter().find(|field| name.eq_ignore_ascii_case(field.as_bytes()))
        {
            return self.delegate(field, &value);
        }
        match (octets, as_latin1(&value)) {
            (Some(octets), Some(_)) if is_instruction(octets) => {
                self.instructions.push((name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
                Ok(())
            }
            (Some(name), Some(value)) => self.head.field(name, value).map_err(fault),
            _ => Err(PyUnicodeError::new_err(format!(
                "header {:?} has a character beyond latin-1 (PEP 3333)",
                name.to_string_lossy()
            ))),
        }
    }

    /// A file is named. Its name may have any characters: the field is not sent, and Flask gives it as it is.
    fn delegate(&mut self, field: &'static str, value: &Bound<'_, PyString>) -> PyResult<()> {
        if let Some(Delegation { field: first, .. }) = &self.delegation {
            return Err(PyValueError::new_err(if *first == field {
                format!("header \"{first}\" is given twice: a response has one file")
            } else {
                format!("headers \"{first}\" and \"{field}\" name a file each: a response has one")
            }));
        }
        let value = value.to_string_lossy().into_owned();
        if value.bytes().any(|octet| octet.is_ascii_control()) {
            let fault = HeadFault::FieldValue {
                name: field.to_owned(),
                value: value.chars().take(80).collect::<String>().escape_debug().to_string(),
            };
            return Err(PyValueError::new_err(fault.to_string()));
        }
        self.delegation = Some(Delegation { field, value });
        Ok(())
    }
}

/// A pair as a tuple; a list of two is accepted, too.
fn as_pair<'py>(header: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match header.cast::<PyList>() {
        Ok(pair) => Ok(pair.to_tuple().into_any()),
        Err(_) => {
            Err(PyTypeError::new_err(format!("a header must be a tuple of name and value, not {}", type_name(header))))
        }
    }
}

impl LastHead {
    /// True when these are the objects that the kept head was made of.
    fn is_made_of(&self, status: &Bound<'_, PyString>, headers: &Bound<'_, PyAny>) -> bool {
        let Some(last_status) = &self.status else { return false };
        status.is(last_status) && sequences::has_the_pairs(headers, &self.headers)
    }

    fn keep(&mut self, head: &ResponseHead, status: &Bound<'_, PyString>, headers: &Bound<'_, PyAny>) {
        self.misses = self.misses.saturating_add(1);
        let is_new = self.misses > PATIENCE && !self.misses.is_multiple_of(SAMPLE);
        if is_new || head.bytes().len() > LARGEST {
            return;
        }
        self.status = None;
        self.headers.clear();
        let kept = if let Ok(headers) = headers.cast::<PyList>() {
            headers.iter().try_for_each(|header| self.keep_pair(header))
        } else if let Ok(headers) = headers.cast::<PyTuple>() {
            headers.iter().try_for_each(|header| self.keep_pair(header))
        } else {
            None
        };
        if kept.is_some() && self.head.copy_from(head).is_ok() {
            self.status = Some(status.clone().unbind());
        }
    }

    /// `None` for a pair that is no tuple: it can change and still be the same object.
    fn keep_pair(&mut self, header: Bound<'_, PyAny>) -> Option<()> {
        self.headers.push(header.cast_into_exact::<PyTuple>().ok()?.unbind());
        Some(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn list<'py>(py: Python<'py>, text: &str) -> Bound<'py, PyAny> {
        let text = std::ffi::CString::new(text).unwrap();
        py.eval(&text, None, None).unwrap()
    }

    fn filled(status: &Bound<'_, PyAny>, headers: &Bound<'_, PyAny>, last: &mut LastHead) -> Vec<u8> {
        let mut head = ResponseHead::default();
        // The result of an earlier call must not show.
        head.status(b"404 Not Found").unwrap();
        head.field(b"X-Old", b"old").unwrap();
        fill(&mut head, status, headers, last, &[]).unwrap();
        head.bytes().to_vec()
    }

    #[test]
    fn the_same_objects_give_the_same_head_and_other_objects_their_own() {
        Python::attach(|py| {
            let mut last = LastHead::default();
            let status = list(py, "'200 OK'");
            let headers = list(py, "[('Content-Type', 'text/plain'), ('X-A', 'one')]");
            let first = filled(&status, &headers, &mut last);
            assert!(last.is_made_of(status.cast().unwrap(), &headers));
            assert_eq!(filled(&status, &headers, &mut last), first);
            // The same list, changed.
            headers.cast::<PyList>().unwrap().set_item(1, ("X-A", "two")).unwrap();
            let changed = filled(&status, &headers, &mut last);
            assert_ne!(changed, first);
            assert!(String::from_utf8_lossy(&changed).contains("X-A: two"));
            headers.cast::<PyList>().unwrap().append(("X-B", "b")).unwrap();
            assert!(String::from_utf8_lossy(&filled(&status, &headers, &mut last)).contains("X-B: b"));
            let other = list(py, "'201 Created'");
            assert!(filled(&other, &headers, &mut last).windows(11).any(|bytes| bytes == b"201 Created"));
        });
    }

    #[test]
    fn a_head_that_is_made_of_the_same_objects_keeps_its_buffer() {
        Python::attach(|py| {
            let (status, headers) = (list(py, "'200 OK'"), list(py, "[('X-A', 'one')]"));
            let (mut head, mut last) = (ResponseHead::default(), LastHead::default());
            head.status(b"200 OK").unwrap();
            head.field(b"X-Long", &[b'x'; 5_000]).unwrap();
            let buffer = (head.bytes().as_ptr(), head.room());
            for _ in 0..2 {
                fill(&mut head, &status, &headers, &mut last, &[]).unwrap();
                assert_eq!((head.bytes().as_ptr(), head.room()), buffer);
            }
            assert!(last.is_made_of(status.cast().unwrap(), &headers));
        });
    }

    #[test]
    fn pairs_that_can_change_are_never_taken_for_the_same() {
        Python::attach(|py| {
            let mut last = LastHead::default();
            let status = list(py, "'200 OK'");
            let headers = list(py, "[['X-A', 'one']]");
            filled(&status, &headers, &mut last);
            headers.get_item(0).unwrap().set_item(1, "two").unwrap();
            assert!(String::from_utf8_lossy(&filled(&status, &headers, &mut last)).contains("X-A: two"));
        });
    }

    #[test]
    fn heads_that_are_always_new_are_soon_not_kept() {
        Python::attach(|py| {
            let mut last = LastHead::default();
            let status = list(py, "'200 OK'");
            for number in 0..SAMPLE - 1 {
                filled(&status, &list(py, &format!("[('X-N', '{number}!')]")), &mut last);
            }
            let kept = last.headers[0].bind(py).get_item(1).unwrap().to_string();
            assert_eq!(kept, format!("{}!", PATIENCE - 1));
            // An application that returns to constant headers is noticed again.
            let constant = list(py, "[('X-N', 'constant')]");
            for _ in 0..SAMPLE {
                filled(&status, &constant, &mut last);
            }
            assert!(last.is_made_of(status.cast().unwrap(), &constant));
        });
    }

    #[test]
    fn faults_name_the_header() {
        Python::attach(|py| {
            let status = list(py, "'200 OK'");
            for (headers, part) in [
                ("[('X-A', 5)]", "\"X-A\" must be str, not int"),
                ("[('X-A', 'a\\r\\nb')]", "X-A"),
                ("[('X-A', 'a\\x00b')]", "X-A"),
                ("[('X-A', '\\u20ac')]", "\"X-A\" has a character beyond latin-1"),
                ("[('X A', 'a')]", "X A"),
                ("[('X-A',)]", "1 items"),
                ("['ab']", "not str"),
                ("[(b'X-A', 'a')]", "not bytes"),
            ] {
                let mut head = ResponseHead::default();
                let error = fill(&mut head, &status, &list(py, headers), &mut LastHead::default(), &[]).unwrap_err();
                assert!(error.to_string().contains(part), "{headers}: {error}");
            }
            for headers in ["{'a': 'b'}", "'ab'", "b'ab'", "5", "None"] {
                let error = header_list(&list(py, headers)).unwrap_err();
                assert!(error.to_string().contains("must be a list"), "{headers}: {error}");
            }
            assert_eq!(header_list(&list(py, "(h for h in [('a', 'b')])")).unwrap().len().unwrap(), 1);
        });
    }
}
