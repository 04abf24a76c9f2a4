//! `start_response`, the `write()` it answers, and the response they share with the thread that carries the request.
//!
//! The response lives in one place, [`StartResponse::phase`]. Whoever works with it (the carrying thread, or Python code
//! calling `start_response` or `write`) takes it out and puts it back, so no lock is held while Python code runs or
//! while the interpreter is released; a second taker gets an error instead of a deadlock. Once the request is over
//! the place is empty, and a late call gets an error too.
//!
//! All functions run attached, on any thread.

use std::os::raw::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::Arc;

use penstock_server::exchange::{Exchange, Position, Sent};
use pyo3::exceptions::{PyAssertionError, PyRuntimeError, PySystemError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::ClientDisconnected;
use crate::cell::AttachedCell;
use crate::headers::{LastHead, fill, header_list};
use crate::payload::Borrowed;
use crate::text::type_name;

/// Sends of this size and above are made with the interpreter released.
pub(crate) const LARGE: usize = 64 * 1024;

/// One response while its request is carried.
pub(crate) struct Response {
    pub(crate) exchange: Exchange,
    /// `start_response` has been called.
    pub(crate) started: bool,
    /// The client is gone: nothing that is sent arrives anywhere.
    pub(crate) gone: bool,
}

impl Response {
    /// Sends one block of the application's.
    pub(crate) fn send(&mut self, block: &Bound<'_, PyBytes>, position: Position) -> Sent {
        let py = block.py();
        let bytes = block.as_bytes();
        let exchange = &mut self.exchange;
        let sent = if bytes.len() < LARGE {
            exchange.send(&[bytes], position, &mut |_| {
                let owner = Arc::new(block.clone().into_any().unbind());
                // SAFETY: `bytes` are the data of `owner`.
                Box::new(unsafe { Borrowed::new(owner, bytes) })
            })
        } else {
            let owner = Arc::new(block.clone().into_any().unbind());
            py.detach(|| {
                exchange.send(&[bytes], position, &mut |_| {
                    // SAFETY: `bytes` are the data of `owner`.
                    Box::new(unsafe { Borrowed::new(Arc::clone(&owner), bytes) })
                })
            })
        };
        self.noted(sent)
    }

    /// Waits, with the interpreter released, until a full queue has room again.
    pub(crate) fn settle(&mut self, py: Python<'_>, mut sent: Sent) -> Sent {
        while sent == Sent::Full {
            let exchange = &mut self.exchange;
            sent = py.detach(|| exchange.wait());
        }
        self.noted(sent)
    }

    /// Remembers that the client is gone.
    pub(crate) fn noted(&mut self, sent: Sent) -> Sent {
        self.gone |= sent == Sent::Gone;
        sent
    }
}

/// Where the response is.
enum Phase {
    /// No request, or its response is finished.
    Over,
    /// Here.
    Held(Response),
    /// Somebody works with it.
    Taken,
    /// Somebody works with it, and the request ended meanwhile: it is dropped when it comes back.
    Abandoned,
}

/// What `start_response` and `write` are bound to.
#[pyclass(frozen, name = "StartResponse", module = "penstock._penstock")]
pub(crate) struct StartResponse {
    phase: AttachedCell<Phase>,
    /// The `write` callable. It refers back to this object; [`Door::close`] breaks the circle.
    write: AttachedCell<Option<Py<PyAny>>>,
    last_head: AttachedCell<Option<Box<LastHead>>>,
}

impl StartResponse {
    /// Takes the response out; it must be put back.
    ///
    /// # Errors
    /// `RuntimeError` when the request is over or another thread works with the response.
    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<Response> {
        let fault = match self.phase.replace(py, Phase::Taken) {
            Phase::Held(response) => return Ok(response),
            Phase::Over => {
                self.phase.replace(py, Phase::Over);
                "start_response() or write() was called after the response had ended"
            }
            Phase::Abandoned => {
                self.phase.replace(py, Phase::Abandoned);
                "start_response() or write() was called after the response had ended"
            }
            Phase::Taken => "two threads work on one response at the same time",
        };
        Err(PyRuntimeError::new_err(fault))
    }

    /// Takes the response out in order to send.
    ///
    /// # Errors
    /// As [`Self::take`], and when there is no head to send, since `start_response` has not been called.
    pub(crate) fn take_started(&self, py: Python<'_>) -> PyResult<Response> {
        let response = self.take(py)?;
        if response.started {
            return Ok(response);
        }
        self.put(py, response);
        Err(PyAssertionError::new_err("the application gave a block before it called start_response() (PEP 3333)"))
    }

    /// Sends a block that is not empty; waits while the client's queue is full.
    pub(crate) fn send(&self, block: &Bound<'_, PyBytes>, position: Position) -> PyResult<Sent> {
        let py = block.py();
        let mut response = self.take_started(py)?;
        let mut sent = response.send(block, position);
        if sent == Sent::Full && position == Position::More {
            sent = response.settle(py, sent);
        }
        self.put(py, response);
        Ok(sent)
    }

    /// The `Content-Length` that the application gave to `start_response`.
    pub(crate) fn declared_length(&self, py: Python<'_>) -> Option<u64> {
        let mut response = self.take(py).ok()?;
        let length = response.exchange.head().declared_length();
        self.put(py, response);
        length
    }

    /// Puts the response back.
    pub(crate) fn put(&self, py: Python<'_>, response: Response) {
        if let Phase::Abandoned = self.phase.replace(py, Phase::Held(response)) {
            drop(self.phase.replace(py, Phase::Over));
        }
    }

    /// Ends the request: from now on nobody reaches the response. `None` when another thread has it at this moment.
    pub(crate) fn end(&self, py: Python<'_>) -> Option<Response> {
        match self.phase.replace(py, Phase::Over) {
            Phase::Held(response) => Some(response),
            Phase::Over => None,
            Phase::Taken | Phase::Abandoned => {
                self.phase.replace(py, Phase::Abandoned);
                None
            }
        }
    }

    fn write_callable<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let write = self.write.replace(py, None);
        let answer = write.as_ref().map(|write| write.bind(py).clone());
        self.write.replace(py, write);
        answer.ok_or_else(|| PyRuntimeError::new_err("start_response() was called after the response had ended"))
    }
}

/// A `start_response` callable with what it is bound to, used again as long as no application keeps it.
pub(crate) struct Door {
    state: Py<StartResponse>,
    callable: Py<PyAny>,
}

impl Door {
    pub(crate) fn new(py: Python<'_>) -> PyResult<Self> {
        let state = Py::new(
            py,
            StartResponse {
                phase: AttachedCell::new(Phase::Over),
                write: AttachedCell::new(None),
                last_head: AttachedCell::new(None),
            },
        )?;
        let callable = bound_function(py, &START_RESPONSE, &state)?;
        let write = bound_function(py, &WRITE, &state)?;
        state.get().write.replace(py, Some(write));
        Ok(Self { state, callable })
    }

    /// Opens it for a request.
    pub(crate) fn open(&self, py: Python<'_>, response: Response) {
        drop(self.state.get().phase.replace(py, Phase::Held(response)));
    }

    pub(crate) fn state(&self) -> &StartResponse {
        self.state.get()
    }

    pub(crate) fn callable<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.callable.bind(py)
    }

    /// True when nobody else refers to the callables, so that the next request can use them.
    pub(crate) fn is_ours(&self, py: Python<'_>) -> bool {
        let state = self.state.get();
        let write = state.write.replace(py, None);
        let write_is_ours = write.as_ref().is_some_and(|write| is_only_ours(write.bind(py), 1));
        state.write.replace(py, write);
        // The state is referred to by this door and by the two callables.
        write_is_ours && is_only_ours(self.callable.bind(py), 1) && is_only_ours(self.state.bind(py).as_any(), 3)
    }

    /// Ends its use for good.
    pub(crate) fn close(self, py: Python<'_>) {
        let state = self.state.get();
        drop(state.end(py));
        drop(state.write.replace(py, None));
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
    let mut last = state.last_head.replace(py, None).unwrap_or_default();
    let result = begin(&mut response, arguments, &headers, &mut last);
    state.last_head.replace(py, Some(last));
    state.put(py, response);
    result?;
    state.write_callable(py)
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

/// A block as `bytes`: itself, or a copy of another buffer. Text and the rest are errors.
pub(crate) fn as_block<'py>(block: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    if let Ok(bytes) = block.cast::<PyBytes>() {
        return Ok(bytes.clone());
    }
    // SAFETY: a check of a live object's type.
    let has_buffer: c_int = unsafe { ffi::PyObject_CheckBuffer(block.as_ptr()) };
    if has_buffer != 0 {
        // SAFETY: the argument is a live object; the result is a new `bytes` object or null with an exception set.
        let copy = unsafe { Bound::from_owned_ptr_or_err(block.py(), ffi::PyBytes_FromObject(block.as_ptr()))? };
        return Ok(copy.cast_into::<PyBytes>()?);
    }
    let hint =
        if block.is_instance_of::<PyString>() { "; encode it first, for example with .encode(\"utf-8\")" } else { "" };
    Err(PyTypeError::new_err(format!(
        "a block of the response must be bytes, not {}{hint} (PEP 3333)",
        type_name(block)
    )))
}
