//! The callables `start_response` and `write` of PEP 3333: C functions bound to the place where the response is.
//!
//! They are made once and serve request after request, as long as no application keeps them. Any thread, attached.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::time::{Duration, Instant};

use penstock_server::exchange::{Position, Sent};
use penstock_server::record::{Record, millis_between};
use pyo3::exceptions::{PyAssertionError, PyRuntimeError, PySystemError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString, PyTuple};

use crate::ClientDisconnected;
use crate::headers::{LastHead, fill, header_list};
use crate::names::names;
use crate::response::{Response, StartResponse, as_block};

/// A `start_response` callable with what it is bound to, used again as long as no application keeps it.
pub(crate) struct Door {
    state: Py<StartResponse>,
    callable: Py<PyAny>,
    /// `environ["penstock.delivery"]`, `environ["penstock.client_gone"]` and `environ["penstock.set_deadline"]`.
    questions: [Py<PyAny>; 3],
}

impl Door {
    pub(crate) fn new(py: Python<'_>) -> PyResult<Self> {
        let state = Py::new(py, StartResponse::new())?;
        let callable = bound_function(py, &START_RESPONSE, &state)?;
        let write = bound_function(py, &WRITE, &state)?;
        state.get().replace_write(py, Some(write));
        let questions = [
            bound_function(py, &DELIVERY, &state)?,
            bound_function(py, &CLIENT_GONE, &state)?,
            bound_function(py, &SET_DEADLINE, &state)?,
        ];
        Ok(Self { state, callable, questions })
    }

    /// Opens it for a request.
    pub(crate) fn open(&self, py: Python<'_>, response: Response) {
        self.state.get().begin(py, response);
    }

    pub(crate) fn state(&self) -> &StartResponse {
        self.state.get()
    }

    pub(crate) fn callable<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.callable.bind(py)
    }

    /// What the application can ask about its request: the record of its delivery, and whether its client has gone.
    pub(crate) fn questions(&self) -> &[Py<PyAny>; 3] {
        &self.questions
    }

    /// True when the application has kept none of the questions: only we and `environ`, which is ours, refer to them.
    pub(crate) fn nobody_asks(&self, environ: &Bound<'_, PyDict>) -> bool {
        let py = environ.py();
        let names = names(py);
        let is_kept = |name: &Py<PyString>, question: &Py<PyAny>| {
            let in_environ = environ.get_item(name).ok().flatten().is_some_and(|found| found.is(question));
            // `found` is gone by now.
            !is_only_ours(question.bind(py), 1 + ffi::Py_ssize_t::from(in_environ))
        };
        let [delivery, client_gone, _] = &self.questions;
        is_only_ours(environ, 1) && !is_kept(&names.delivery, delivery) && !is_kept(&names.client_gone, client_gone)
    }

    /// True when nobody else refers to the callables, so that the next request can use them.
    pub(crate) fn is_ours(&self, py: Python<'_>) -> bool {
        let state = self.state.get();
        let write = state.replace_write(py, None);
        let write_is_ours = write.as_ref().is_some_and(|write| is_only_ours(write.bind(py), 1));
        state.replace_write(py, write);
        // The state is referred to by this door and by the five callables.
        write_is_ours
            && is_only_ours(self.callable.bind(py), 1)
            && self.questions.iter().all(|question| is_only_ours(question.bind(py), 1))
            && is_only_ours(self.state.bind(py).as_any(), 6)
    }

    /// Ends its use for good.
    pub(crate) fn close(self, py: Python<'_>) {
        let state = self.state.get();
        drop(state.end(py));
        drop(state.replace_write(py, None));
    }
}

/// True when all references to an object are the `known` ones of our own.
pub(crate) fn is_only_ours(object: &Bound<'_, PyAny>, known: ffi::Py_ssize_t) -> bool {
    // Free-threaded builds split the count between threads, so that it cannot be asked this.
    // SAFETY: reads the count of a live object.
    !cfg!(Py_GIL_DISABLED) && unsafe { ffi::Py_REFCNT(object.as_ptr()) } == known
}

struct Method(ffi::PyMethodDef);

// SAFETY: CPython reads a method definition and never writes it; the pointers in it are to constants.
unsafe impl Sync for Method {}

static START_RESPONSE: Method = Method(ffi::PyMethodDef {
    ml_name: c"start_response".as_ptr(),
    ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: start_response_entry },
    ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
    ml_doc: c"start_response(status, headers, exc_info=None)\n--\n\nPEP 3333, \"The start_response() Callable\"."
        .as_ptr(),
});

static WRITE: Method = Method(ffi::PyMethodDef {
    ml_name: c"write".as_ptr(),
    ml_meth: ffi::PyMethodDefPointer { PyCFunction: write_entry },
    ml_flags: ffi::METH_O,
    ml_doc: c"write(body_data)\n--\n\nSends a block at once. PEP 3333, \"The write() Callable\".".as_ptr(),
});

static DELIVERY: Method = Method(ffi::PyMethodDef {
    ml_name: c"delivery".as_ptr(),
    ml_meth: ffi::PyMethodDefPointer { PyCFunction: delivery_entry },
    ml_flags: ffi::METH_NOARGS,
    ml_doc:
        c"delivery()\n--\n\nHow this request has been delivered so far: a dict of times in milliseconds and counts."
            .as_ptr(),
});

static CLIENT_GONE: Method = Method(ffi::PyMethodDef {
    ml_name: c"client_gone".as_ptr(),
    ml_meth: ffi::PyMethodDefPointer { PyCFunction: client_gone_entry },
    ml_flags: ffi::METH_NOARGS,
    ml_doc: c"client_gone()\n--\n\nTrue when the client of this request is known to have left.".as_ptr(),
});

static SET_DEADLINE: Method = Method(ffi::PyMethodDef {
    ml_name: c"set_deadline".as_ptr(),
    ml_meth: ffi::PyMethodDefPointer { PyCFunction: set_deadline_entry },
    ml_flags: ffi::METH_O,
    ml_doc:
        c"set_deadline(seconds)\n--\n\nThis request may take so many seconds from now on; None: any time. Past it the \
              client is answered 504 and RequestTimeout is raised."
            .as_ptr(),
});

unsafe extern "C" fn delivery_entry(state: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: CPython calls this attached, with the `StartResponse` it was bound to, alive until the call returns.
    let (py, state) = unsafe {
        let py = Python::assume_attached();
        (py, Bound::from_borrowed_ptr(py, state))
    };
    guarded(py, || {
        // SAFETY: only `bound_function` binds this entry, and only to a `StartResponse`.
        let state = unsafe { state.cast_unchecked::<StartResponse>() };
        Ok(delivery(py, state.get().record(py).map(|(record, _)| record))?.into_ptr())
    })
}

unsafe extern "C" fn client_gone_entry(state: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: CPython calls this attached, with the `StartResponse` it was bound to, alive until the call returns.
    let (py, state) = unsafe {
        let py = Python::assume_attached();
        (py, Bound::from_borrowed_ptr(py, state))
    };
    guarded(py, || {
        // SAFETY: only `bound_function` binds this entry, and only to a `StartResponse`.
        let state = unsafe { state.cast_unchecked::<StartResponse>() };
        Ok(PyBool::new(py, state.get().record(py).is_some_and(|(_, gone)| gone)).to_owned().into_ptr())
    })
}

unsafe extern "C" fn set_deadline_entry(state: *mut ffi::PyObject, seconds: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: CPython calls this attached, with the `StartResponse` it was bound to and one argument, both alive until
    // the call returns.
    let (py, state, seconds) = unsafe {
        let py = Python::assume_attached();
        (py, Bound::from_borrowed_ptr(py, state), Bound::from_borrowed_ptr(py, seconds))
    };
    guarded(py, || {
        // SAFETY: only `bound_function` binds this entry, and only to a `StartResponse`.
        let state = unsafe { state.cast_unchecked::<StartResponse>() }.get();
        let time = match seconds.extract::<Option<f64>>()? {
            None => None,
            Some(seconds) => Some(Duration::try_from_secs_f64(seconds).map_err(|_| {
                PyValueError::new_err("set_deadline() takes a number of seconds that is not negative, or None")
            })?),
        };
        let mut response = state.take(py)?;
        response.exchange.set_deadline(time);
        state.put(py, response);
        Ok(py.None().into_ptr())
    })
}

/// A delivery record as a dict; empty before the first request of the place.
fn delivery(py: Python<'_>, record: Option<Record>) -> PyResult<Bound<'_, PyDict>> {
    let told = PyDict::new(py);
    if let Some(record) = record {
        let until = record.finished.or_else(|| Some(Instant::now()));
        told.set_item("queued_ms", millis_between(Some(record.queued), record.started))?;
        told.set_item("app_ms", millis_between(record.started, until))?;
        told.set_item("first_block_ms", millis_between(record.started, record.first_block))?;
        told.set_item("drained_ms", millis_between(record.started, record.drained))?;
        told.set_item("waited_ms", record.waited.as_secs_f64() * 1e3)?;
        told.set_item("blocks", record.blocks)?;
        told.set_item("bytes", record.body_bytes)?;
        told.set_item("writes", record.writes)?;
        told.set_item("delivery", record.path.name())?;
        told.set_item("status", record.status)?;
        told.set_item("ending", record.ending.name())?;
    }
    Ok(told)
}

fn bound_function(py: Python<'_>, method: &'static Method, state: &Py<StartResponse>) -> PyResult<Py<PyAny>> {
    // SAFETY: the definition is static and never written; the function takes its own reference to `state`.
    unsafe {
        let function = ffi::PyCFunction_NewEx((&raw const method.0).cast_mut(), state.as_ptr(), std::ptr::null_mut());
        Ok(Bound::from_owned_ptr_or_err(py, function)?.unbind())
    }
}

/// Runs a call from CPython: errors become exceptions, and so do panics, which must not cross into C.
fn guarded(py: Python<'_>, call: impl FnOnce() -> PyResult<*mut ffi::PyObject>) -> *mut ffi::PyObject {
    let error = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(answer)) => return answer,
        Ok(Err(error)) => error,
        Err(_panic) => PySystemError::new_err("penstock: internal error while the response was written"),
    };
    error.restore(py);
    std::ptr::null_mut()
}

unsafe extern "C" fn start_response_entry(
    state: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: CPython calls this attached, with the `StartResponse` it was bound to, `count` positional arguments and
    // after them one for each name in the tuple `keywords`; all of them live until the call returns.
    let (py, state, arguments, keywords) = unsafe {
        let py = Python::assume_attached();
        let names = if keywords.is_null() { None } else { Some(Bound::from_borrowed_ptr(py, keywords)) };
        let named = names.as_ref().map_or(0, |names| ffi::PyTuple_GET_SIZE(names.as_ptr()));
        let total = usize::try_from(count + named).unwrap_or(0);
        let arguments = if total == 0 { &[] } else { slice::from_raw_parts(arguments, total) };
        (py, Bound::from_borrowed_ptr(py, state), arguments, names)
    };
    guarded(py, || {
        let arguments = Arguments::parse(py, arguments, usize::try_from(count).unwrap_or(0), keywords)?;
        // SAFETY: only `bound_function` binds this entry, and only to a `StartResponse`.
        let state = unsafe { state.cast_unchecked::<StartResponse>() };
        start_response(py, state.get(), &arguments).map(Bound::into_ptr)
    })
}

unsafe extern "C" fn write_entry(state: *mut ffi::PyObject, data: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: CPython calls this attached, with the `StartResponse` it was bound to and one argument, both alive until
    // the call returns.
    let (py, state, data) = unsafe {
        let py = Python::assume_attached();
        (py, Bound::from_borrowed_ptr(py, state), Bound::from_borrowed_ptr(py, data))
    };
    guarded(py, || {
        // SAFETY: only `bound_function` binds this entry, and only to a `StartResponse`.
        let state = unsafe { state.cast_unchecked::<StartResponse>() };
        write(state.get(), &data)?;
        Ok(py.None().into_ptr())
    })
}

struct Arguments<'py> {
    status: Bound<'py, PyAny>,
    headers: Bound<'py, PyAny>,
    exc_info: Option<Bound<'py, PyAny>>,
}

impl<'py> Arguments<'py> {
    fn parse(
        py: Python<'py>,
        given: &[*mut ffi::PyObject],
        positional: usize,
        keywords: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let mut places: [Option<Bound<'py, PyAny>>; 3] = [None, None, None];
        if positional > places.len() {
            return Err(PyTypeError::new_err(format!(
                "start_response() takes status, headers and exc_info, but {positional} arguments were given"
            )));
        }
        for (place, argument) in places.iter_mut().zip(&given[..positional]) {
            // SAFETY: an argument lives until the call returns.
            *place = Some(unsafe { Bound::from_borrowed_ptr(py, *argument) });
        }
        if let Some(keywords) = keywords {
            for (name, argument) in keywords.try_iter()?.zip(&given[positional..]) {
                let name = name?;
                let place = match name.cast::<PyString>()?.to_str()? {
                    "status" => 0,
                    "headers" | "response_headers" => 1,
                    "exc_info" => 2,
                    other => {
                        return Err(PyTypeError::new_err(format!("start_response() has no argument named {other:?}")));
                    }
                };
                if places[place].is_some() {
                    return Err(PyTypeError::new_err("start_response() got one argument twice"));
                }
                // SAFETY: an argument lives until the call returns.
                places[place] = Some(unsafe { Bound::from_borrowed_ptr(py, *argument) });
            }
        }
        match places {
            [Some(status), Some(headers), exc_info] => {
                Ok(Self { status, headers, exc_info: exc_info.filter(|object| !object.is_none()) })
            }
            _ => Err(PyTypeError::new_err("start_response() needs a status and a list of headers")),
        }
    }
}

/// PEP 3333 "The start_response() Callable".
fn start_response<'py>(
    py: Python<'py>,
    state: &StartResponse,
    arguments: &Arguments<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let headers = header_list(&arguments.headers)?;
    let mut response = state.take(py)?;
    let mut last = state.replace_last_head(py, None).unwrap_or_default();
    let result = begin(&mut response, arguments, &headers, &mut last);
    state.replace_last_head(py, Some(last));
    state.put(py, response);
    result?;
    let write = state.replace_write(py, None);
    let answer = write.as_ref().map(|write| write.bind(py).clone());
    state.replace_write(py, write);
    answer.ok_or_else(|| PyRuntimeError::new_err("start_response() was called after the response had ended"))
}

/// Fills the response's head. No Python code runs in here.
fn begin(
    response: &mut Response,
    arguments: &Arguments<'_>,
    headers: &Bound<'_, PyAny>,
    last: &mut LastHead,
) -> PyResult<()> {
    if let Some(exc_info) = &arguments.exc_info {
        if response.exchange.head_sent() {
            return Err(raised_again(exc_info));
        }
    } else if response.started {
        return Err(PyAssertionError::new_err("start_response() was called a second time without exc_info (PEP 3333)"));
    }
    response.started = false;
    fill(response.exchange.head(), &arguments.status, headers, last)?;
    response.started = true;
    Ok(())
}

/// The exception that an application passed as `exc_info` although its head had already left.
fn raised_again(exc_info: &Bound<'_, PyAny>) -> PyErr {
    let parts = exc_info.cast::<PyTuple>().ok().filter(|parts| parts.len() == 3);
    let Some(parts) = parts else {
        return PyAssertionError::new_err("exc_info must be what sys.exc_info() answers");
    };
    match parts.get_item(1) {
        Ok(value) if value.is_instance_of::<pyo3::exceptions::PyBaseException>() => PyErr::from_value(value),
        _ => PyAssertionError::new_err("exc_info must be what sys.exc_info() answers"),
    }
}

/// PEP 3333 "The write() Callable".
fn write(state: &StartResponse, data: &Bound<'_, PyAny>) -> PyResult<()> {
    let block = as_block(data)?;
    if !block.as_bytes().is_empty() && state.send(&block, Position::More)? == Sent::Gone {
        return Err(ClientDisconnected::new_err("the client is gone"));
    }
    Ok(())
}
