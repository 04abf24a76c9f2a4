//! The callables `start_response` and `write` of PEP 3333, and the functions in `environ` that are about the response:
//! C functions bound to the [`ResponseState`].
//!
//! They are made once and used for request after request, as long as no application keeps a reference. Any attached
//! thread.

use std::ffi::CStr;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyAssertionError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString, PyTuple};
use tailrace_observe::record::{FIELDS, Record, Value};
use tailrace_os::clock;
use tailrace_server::{Position, Sent};

use crate::call::headers::{LastHead, early_hints, fill, follow, header_list};
use crate::call::response::{ResponseState, WsgiResponse, as_block};
use crate::call::subscriptions::Subscriptions;
use crate::ffi::bound_function::{
    Arguments, BoundFunction, NamedArguments, NoArguments, OneArgument, bind_named_arguments, bind_no_arguments,
    bind_one_argument,
};
use crate::ffi::references::are_only;
use crate::python::exceptions::client_disconnected;
use crate::python::names::names;

/// A `start_response` callable, with its state and the other functions that are bound to it.
pub(crate) struct StartResponse {
    state: Py<ResponseState>,
    callable: Py<PyAny>,
    /// `environ["tailrace.delivery"]`, `environ["tailrace.client_disconnected"]`, `environ["tailrace.set_deadline"]`,
    /// `environ["tailrace.on_disconnect"]` and `environ["wsgi.early_hints"]`.
    environ_functions: [Py<PyAny>; 5],
}

impl StartResponse {
    pub(crate) fn new(py: Python<'_>, subscriptions: Arc<Subscriptions>) -> PyResult<Self> {
        let state = Py::new(py, ResponseState::new(subscriptions))?;
        let bound = state.bind(py);
        let callable = bind_named_arguments::<StartResponseFunction>(bound)?;
        let write = bind_one_argument::<WriteFunction>(bound)?;
        state.get().replace_write(py, Some(write));
        let environ_functions = [
            bind_no_arguments::<DeliveryFunction>(bound)?,
            bind_no_arguments::<ClientDisconnected>(bound)?,
            bind_one_argument::<SetDeadline>(bound)?,
            bind_one_argument::<OnDisconnect>(bound)?,
            bind_one_argument::<EarlyHints>(bound)?,
        ];
        Ok(Self { state, callable, environ_functions })
    }

    pub(crate) fn state(&self) -> &ResponseState {
        self.state.get()
    }

    /// [`Self::state`], as Python sees it.
    pub(crate) fn bound<'py>(&self, py: Python<'py>) -> &Bound<'py, ResponseState> {
        self.state.bind(py)
    }

    pub(crate) fn callable<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.callable.bind(py)
    }

    /// See the field.
    pub(crate) fn environ_functions(&self) -> &[Py<PyAny>; 5] {
        &self.environ_functions
    }

    /// True when the application has kept neither `environ` nor a function that returns the delivery record: then
    /// nobody can ask for the record once the request is over.
    pub(crate) fn record_is_out_of_reach(&self, environ: &Bound<'_, PyDict>) -> bool {
        let py = environ.py();
        let names = names(py);
        let is_kept = |name: &Py<PyString>, function: &Py<PyAny>| {
            let in_environ = environ.get_item(name).ok().flatten().is_some_and(|found| found.is(function));
            // `found` has been dropped: references are ours and, where it is still there, that of `environ`.
            !are_only(function.bind(py), 1 + isize::from(in_environ))
        };
        let [delivery, client_disconnected, ..] = &self.environ_functions;
        are_only(environ, 1)
            && !is_kept(&names.delivery, delivery)
            && !is_kept(&names.client_disconnected, client_disconnected)
    }

    /// True when nobody else refers to the callables: the next request can use them.
    pub(crate) fn is_ours(&self, py: Python<'_>) -> bool {
        let state = self.state.get();
        let write = state.replace_write(py, None);
        let write_is_ours = write.as_ref().is_some_and(|write| are_only(write.bind(py), 1));
        state.replace_write(py, write);
        // The state is referred to by this struct and by the seven callables.
        write_is_ours
            && are_only(self.callable.bind(py), 1)
            && self.environ_functions.iter().all(|function| are_only(function.bind(py), 1))
            && are_only(self.state.bind(py).as_any(), 8)
    }

    /// Ends its use for good: late calls of the callables raise.
    pub(crate) fn close(self, py: Python<'_>) {
        let state = self.state.get();
        drop(state.end(py));
        drop(state.replace_write(py, None));
    }
}

/// `environ["tailrace.delivery"]`.
struct DeliveryFunction;

impl BoundFunction for DeliveryFunction {
    type State = ResponseState;
    const NAME: &'static CStr = c"delivery";
    const DOC: &'static CStr =
        c"delivery()\n--\n\nHow this request has been delivered so far: a dict of times in milliseconds and counts.";
}

impl NoArguments for DeliveryFunction {
    fn call<'py>(py: Python<'py>, state: &ResponseState) -> PyResult<Bound<'py, PyAny>> {
        state.check_process(py, "tailrace.delivery")?;
        Ok(delivery(py, state.record(py).map(|(record, _)| record))?.into_any())
    }
}

/// `environ["tailrace.client_disconnected"]`.
struct ClientDisconnected;

impl BoundFunction for ClientDisconnected {
    type State = ResponseState;
    const NAME: &'static CStr = c"client_disconnected";
    const DOC: &'static CStr = c"client_disconnected()\n--\n\nTrue when the client is known to have disconnected.";
}

impl NoArguments for ClientDisconnected {
    fn call<'py>(py: Python<'py>, state: &ResponseState) -> PyResult<Bound<'py, PyAny>> {
        state.check_process(py, "tailrace.client_disconnected")?;
        Ok(PyBool::new(py, state.record(py).is_some_and(|(_, gone)| gone)).to_owned().into_any())
    }
}

/// `environ["tailrace.set_deadline"]`.
struct SetDeadline;

impl BoundFunction for SetDeadline {
    type State = ResponseState;
    const NAME: &'static CStr = c"set_deadline";
    const DOC: &'static CStr =
        c"set_deadline(seconds)\n--\n\nSets how many seconds this request may take from now. None: no limit; 0: it has \
          expired. Past the deadline, the client gets 504 and RequestTimeout is raised. Raises ValueError.";
}

impl OneArgument for SetDeadline {
    fn call<'py>(state: &ResponseState, seconds: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = seconds.py();
        state.check_process(py, "tailrace.set_deadline")?;
        let time = match seconds.extract::<Option<f64>>()? {
            None => None,
            Some(seconds) => Some(Duration::try_from_secs_f64(seconds).map_err(|_| {
                PyValueError::new_err("set_deadline() takes a number of seconds that is not negative, or None")
            })?),
        };
        // A connection that was taken over has no deadline.
        if !state.is_taken_over(py) {
            let mut response = state.take(py)?;
            response.exchange.set_deadline(time);
            state.put(py, response);
        }
        Ok(py.None().into_bound(py))
    }
}

/// `environ["tailrace.on_disconnect"]`.
struct OnDisconnect;

impl BoundFunction for OnDisconnect {
    type State = ResponseState;
    const NAME: &'static CStr = c"on_disconnect";
    const DOC: &'static CStr =
        c"on_disconnect(callback)\n--\n\nCalls `callback()` once, on another thread, if the client disconnects before \
          the response ends. Returns a subscription: its `remove()`, or the end of a `with` block, ends that.";
}

impl OneArgument for OnDisconnect {
    fn call<'py>(state: &ResponseState, callback: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = callback.py();
        state.check_process(py, "tailrace.on_disconnect")?;
        if !callback.is_callable() {
            return Err(PyTypeError::new_err("on_disconnect() takes a callable"));
        }
        state.subscribe(callback)
    }
}

/// `environ["wsgi.early_hints"]`.
struct EarlyHints;

impl BoundFunction for EarlyHints {
    type State = ResponseState;
    const NAME: &'static CStr = c"early_hints";
    const DOC: &'static CStr =
        c"early_hints(headers)\n--\n\nSends 103 Early Hints with these (name, value) tuples at once (RFC 8297). Nothing is \
          sent to a client of HTTP/1.0, or once the response has begun. Raises TypeError and ValueError.";
}

impl OneArgument for EarlyHints {
    fn call<'py>(state: &ResponseState, headers: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = headers.py();
        state.check_process(py, "wsgi.early_hints")?;
        let head = early_hints(headers)?;
        let mut response = state.take(py)?;
        let _ = response.exchange.response_mut().push_interim(&head);
        state.put(py, response);
        Ok(py.None().into_bound(py))
    }
}

/// A delivery record as a dict; empty when there is none.
pub(crate) fn delivery(py: Python<'_>, record: Option<Record>) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    if let Some(mut record) = record {
        if record.drained.is_none() {
            // As if the application had finished now.
            record.finished.get_or_insert_with(clock::now);
        }
        for field in FIELDS {
            match (field.value)(&record) {
                Value::Status(status) => dict.set_item(field.name, status)?,
                Value::Word(word) => dict.set_item(field.name, word)?,
                Value::Number(number) => dict.set_item(field.name, number)?,
                Value::Time(time) => dict.set_item(field.name, time.map(|time| time.as_secs_f64() * 1e3))?,
            }
        }
    }
    Ok(dict)
}

/// `start_response`, as the application gets it.
struct StartResponseFunction;

impl BoundFunction for StartResponseFunction {
    type State = ResponseState;
    const NAME: &'static CStr = c"start_response";
    const DOC: &'static CStr =
        c"start_response(status, headers, exc_info=None)\n--\n\nPEP 3333, \"The start_response() Callable\".";
}

impl NamedArguments for StartResponseFunction {
    #[inline]
    fn call<'py>(
        py: Python<'py>,
        state: &ResponseState,
        arguments: &Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        start_response(py, state, &HeadArguments::parse(arguments)?)
    }
}

/// `write`, which `start_response` returns.
struct WriteFunction;

impl BoundFunction for WriteFunction {
    type State = ResponseState;
    const NAME: &'static CStr = c"write";
    const DOC: &'static CStr = c"write(body_data)\n--\n\nSends a block at once. PEP 3333, \"The write() Callable\".";
}

impl OneArgument for WriteFunction {
    #[inline]
    fn call<'py>(state: &ResponseState, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        write(state, data)?;
        Ok(data.py().None().into_bound(data.py()))
    }
}

/// What `start_response` is called with.
struct HeadArguments<'py> {
    status: Bound<'py, PyAny>,
    headers: Bound<'py, PyAny>,
    exc_info: Option<Bound<'py, PyAny>>,
}

impl<'py> HeadArguments<'py> {
    fn parse(given: &Arguments<'_, 'py>) -> PyResult<Self> {
        let mut places: [Option<Bound<'py, PyAny>>; 3] = [None, None, None];
        let positional = given.positional();
        if positional > places.len() {
            return Err(PyTypeError::new_err(format!(
                "start_response() takes status, headers and exc_info, but {positional} arguments were given"
            )));
        }
        for (index, place) in places.iter_mut().take(positional).enumerate() {
            *place = given.get(index);
        }
        if let Some(names) = given.names() {
            for (index, name) in names.iter().enumerate() {
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
                places[place] = given.get(positional + index);
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
    state: &ResponseState,
    arguments: &HeadArguments<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let headers = header_list(&arguments.headers)?;
    // What an application returns that has taken over the connection is discarded.
    if !state.is_taken_over(py) {
        let mut response = state.take(py)?;
        let mut last = state.replace_last_head(py, None).unwrap_or_default();
        let result = begin(&mut response, arguments, &headers, &mut last);
        state.replace_last_head(py, Some(last));
        state.put(py, response);
        result?;
    }
    let write = state.replace_write(py, None);
    let returned = write.as_ref().map(|write| write.bind(py).clone());
    state.replace_write(py, write);
    returned.ok_or_else(|| PyRuntimeError::new_err("start_response() was called after the response had ended"))
}

/// Fills the response's head. No Python code runs in here.
fn begin(
    response: &mut WsgiResponse,
    arguments: &HeadArguments<'_>,
    headers: &Bound<'_, PyAny>,
    last: &mut LastHead,
) -> PyResult<()> {
    if let Some(exc_info) = &arguments.exc_info {
        if response.exchange.response().head_sent() {
            return Err(raised_again(exc_info));
        }
    } else if response.started {
        return Err(PyAssertionError::new_err("start_response() was called a second time without exc_info (PEP 3333)"));
    }
    response.started = false;
    let exchange = &mut response.exchange;
    let delegation_fields = exchange.delegation_fields();
    if exchange.is_delegated() {
        exchange.delegate(None);
    }
    exchange.release_hold();
    let directives = fill(exchange.response_mut().head(), &arguments.status, headers, last, delegation_fields)?;
    if let Some(delegation) = directives.delegation {
        exchange.delegate(Some(delegation));
    }
    if !directives.instructions.is_empty() {
        follow(exchange, &directives.instructions)?;
    }
    response.started = true;
    Ok(())
}

/// The exception that an application passed as `exc_info` although its head had already left.
fn raised_again(exc_info: &Bound<'_, PyAny>) -> PyErr {
    let parts = exc_info.cast::<PyTuple>().ok().filter(|parts| parts.len() == 3);
    let Some(parts) = parts else {
        return PyAssertionError::new_err("exc_info must be what sys.exc_info() returns");
    };
    match parts.get_item(1) {
        Ok(value) if value.is_instance_of::<pyo3::exceptions::PyBaseException>() => PyErr::from_value(value),
        _ => PyAssertionError::new_err("exc_info must be what sys.exc_info() returns"),
    }
}

/// PEP 3333 "The write() Callable".
fn write(state: &ResponseState, data: &Bound<'_, PyAny>) -> PyResult<()> {
    let block = as_block(data)?;
    if state.is_taken_over(data.py()) {
        return Ok(());
    }
    if !block.as_bytes().is_empty() && state.send(&block, Position::More)? == Sent::Gone {
        return Err(client_disconnected(data.py(), "the client has disconnected"));
    }
    Ok(())
}
