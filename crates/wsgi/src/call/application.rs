//! The WSGI application: one request from `environ` to `close()`.
//!
//! Runs on the thread that took the request, attached to the interpreter. The interpreter is released only in large
//! sends, while a thread waits for a slow client, and by the application itself.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pyo3::exceptions::PyAssertionError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use tailrace_http::framing::BodyLength;
use tailrace_observe::level::Level;
use tailrace_os::panics::catch;
use tailrace_os::process::Process;
use tailrace_server::{Exchange, Interruption, RequestBody, Turn};

use crate::call::blocks::{Delivered, deliver};
use crate::call::environ::{EnvironMaker, NoEnviron};
use crate::call::error_page::{escape, traceback_page};
use crate::call::exception_policy::ExceptionPolicy;
use crate::call::input::Input;
use crate::call::logged_variables::LoggedVariables;
use crate::call::response::{ResponseState, TakenOver, WsgiResponse};
use crate::call::rest::IterableRest;
use crate::call::start_response::StartResponse;
use crate::call::subscriptions::Subscriptions;
use crate::call::surplus::SurplusWarnings;
use crate::call::thread_cache::ThreadCache;
use crate::call::unserved_static::UnservedStatic;
use crate::call::web_socket::{self, OfferedSocket};
use crate::ffi::context::EnteredContext;
use crate::ffi::references::are_only;
use crate::ffi::thread;
use crate::python::calls::call;
use crate::python::exceptions::{ClientDisconnected, RequestBodyError, RequestTimeout};
use crate::python::forks;
use crate::python::log;
use crate::python::names::names;

/// How long a connection that was taken over stays open after its application has returned. The thread of simple-websocket
/// that reads wakes the application before it answers the client's close: without this, one close in 20 is not answered.
const LAST_FRAMES: Duration = Duration::from_millis(10);

/// A WSGI application and how it is called. Shared by all threads.
pub(crate) struct WsgiApplication {
    callable: Py<PyAny>,
    environs: EnvironMaker,
    logged: LoggedVariables,
    /// Tracebacks are shown to the client.
    debug: bool,
    /// It runs in greenlets.
    is_gevent: bool,
    subscriptions: Arc<Subscriptions>,
    /// It has been logged that the application returned `bytes`.
    warned_of_bare_bytes: AtomicBool,
    surplus: SurplusWarnings,
    unserved_static: UnservedStatic,
}

/// The runner that calls the application for a request, and how it handles exceptions.
pub(crate) struct CallingRunner<'a> {
    pub(crate) policy: &'a dyn ExceptionPolicy,
    pub(crate) turn: &'a Turn<'a>,
    /// The thread, as CPython numbers it.
    pub(crate) thread: u64,
}

impl WsgiApplication {
    pub(crate) fn new(
        callable: Py<PyAny>,
        environs: EnvironMaker,
        logged: LoggedVariables,
        debug: bool,
        is_gevent: bool,
    ) -> Self {
        Self {
            callable,
            environs,
            logged,
            debug,
            is_gevent,
            subscriptions: Arc::default(),
            warned_of_bare_bytes: AtomicBool::new(false),
            surplus: SurplusWarnings::default(),
            unserved_static: UnservedStatic::default(),
        }
    }

    /// What is to be called when the client of a running request leaves.
    pub(crate) fn subscriptions(&self) -> &Arc<Subscriptions> {
        &self.subscriptions
    }

    /// Runs one request. A panic in here costs its connection. `Break`: the runner must end.
    pub(crate) fn run(
        &self,
        py: Python<'_>,
        cache: &mut ThreadCache,
        exchange: Exchange,
        runner: &CallingRunner<'_>,
    ) -> ControlFlow<()> {
        let flow = catch(|| self.respond(py, cache, exchange, runner)).unwrap_or_else(|panic| {
            // The call that panicked may have left an exception behind.
            thread::clear_exception(py);
            if let Some(start_response) = cache.start_response.take() {
                start_response.close(py);
            }
            *cache = ThreadCache::default();
            let message = format!("internal error, the connection was closed: {panic}");
            log::log(py, Level::Error, &message, None);
            ControlFlow::Continue(())
        });
        runner.policy.request_ended(py);
        flow
    }

    fn respond(
        &self,
        py: Python<'_>,
        cache: &mut ThreadCache,
        mut exchange: Exchange,
        runner: &CallingRunner<'_>,
    ) -> ControlFlow<()> {
        let process = Process::here();
        let policy = runner.policy;
        let socket = match exchange.web_socket().transpose() {
            Ok(socket) => socket,
            Err(refusal) => {
                exchange.fail(refusal.status, Some(refusal.reason));
                return ControlFlow::Continue(());
            }
        };
        let body = exchange.take_body();
        let (environ, input) = match self.environ(py, cache, &exchange, body) {
            Ok(made) => made,
            Err(NoEnviron::Underscore) => {
                exchange.fail(400, Some("A field name of the request has an underscore."));
                return ControlFlow::Continue(());
            }
            Err(NoEnviron::Error(error)) => {
                self.fail(py, exchange, &error, policy);
                return ControlFlow::Continue(());
            }
        };
        let made = || StartResponse::new(py, self.subscriptions.clone());
        let start_response = match cache.start_response.take().map_or_else(made, Ok) {
            Ok(start_response) => start_response,
            Err(error) => {
                self.fail(py, exchange, &error, policy);
                return ControlFlow::Continue(());
            }
        };
        let in_use = InUse { start_response: Some(start_response), py };
        let Some(start_response) = &in_use.start_response else { return ControlFlow::Continue(()) };
        let state = start_response.state();
        let (socket, descriptor) = socket.unzip();
        state.begin(py, WsgiResponse { exchange, started: false, gone: false, socket });
        let offer = |descriptor| OfferedSocket::offer(&environ, start_response.bound(py), descriptor, self.is_gevent);
        let offered = match descriptor.map(offer).transpose() {
            Ok(offered) => offered,
            Err(error) => {
                self.finish(py, state, Err(error), policy);
                return ControlFlow::Continue(());
            }
        };
        self.environs.add_functions(&environ, start_response.environ_functions());

        // Values that the application sets in context variables end with the request.
        let context = enter_context(py);
        let (iterable, outcome) = match call(self.callable.bind(py), [environ.as_any(), start_response.callable(py)]) {
            // There is no response: the application has used the connection itself.
            Ok(iterable) if offered.is_some() && state.is_taken_over(py) => (Some(iterable), Ok(Delivered::Well)),
            Ok(iterable) => {
                let outcome = deliver(py, state, &iterable);
                // The application may also have forked where its objects were asked for something, such as an iterator.
                forks::end_child(py, process, &outcome);
                (Some(iterable), outcome)
            }
            Err(error) => (None, Err(error)),
        };
        let mut ends_runner = outcome.as_ref().is_err_and(|error| policy.ends_runner(py, error));
        let outcome = match outcome {
            Ok(Delivered::Early(rest)) => {
                ends_runner = self
                    .finish_early(py, start_response, &environ, &rest, policy)
                    .is_err_and(|error| policy.ends_runner(py, &error));
                None
            }
            other => Some(other),
        };
        // What follows is our own work, and `close()`: nothing interrupts it.
        let interruption = runner.turn.leave_application();
        if interruption.is_some() {
            thread::take_back(py, runner.thread);
        }
        if interruption == Some(Interruption::Cancelled) {
            state.note_cancelled(py);
        }
        state.unsubscribe(py);
        if let Some(offered) = offered
            && let Err(error) = offered.withdraw()
        {
            log::log(py, Level::Error, "the socket of a request could not be closed", Some(&error));
        }
        if let Some(taken_over) = state.end_taken_over(py) {
            self.end_taken_over(py, taken_over, &environ, outcome.and_then(Result::err), policy);
        } else if let Some(outcome) = outcome {
            self.end(py, start_response, &environ, outcome, policy);
        }
        if let Some(iterable) = iterable {
            ends_runner |= self.close(&iterable, policy).is_err_and(|error| policy.ends_runner(py, &error));
        }
        leave_context(py, context);

        drop(environ);
        in_use.keep_in(cache);
        // The stream of a request without a body serves the next such request, unless the application kept it.
        if cache.empty_input.is_none() && are_only(input.as_any(), 1) && input.get().has_nothing() {
            cache.empty_input = Some(input.unbind());
        }
        if ends_runner { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn environ<'py>(
        &self,
        py: Python<'py>,
        cache: &mut ThreadCache,
        exchange: &Exchange,
        body: RequestBody,
    ) -> Result<(Bound<'py, PyDict>, Bound<'py, Input>), NoEnviron> {
        let length = body_length(&body, exchange.request().framing.body);
        let input = match (&body, cache.empty_input.take()) {
            (RequestBody::Empty, Some(input)) => input.into_bound(py),
            _ => Bound::new(py, Input::new(body))?,
        };
        let environ = self.environs.make(py, &mut cache.strings, exchange.request(), length, input.as_any())?;
        Ok((environ, input))
    }

    /// The response is complete, the iterable is not at its end. Finishes the response first, so that its client has it
    /// and the connection goes on. Then runs the rest of the iterable, while the deadline of the request still counts.
    fn finish_early(
        &self,
        py: Python<'_>,
        start_response: &StartResponse,
        environ: &Bound<'_, PyDict>,
        rest: &IterableRest<'_>,
        policy: &dyn ExceptionPolicy,
    ) -> PyResult<()> {
        start_response.state().unsubscribe(py);
        self.end(py, start_response, environ, Ok(Delivered::Well), policy);
        match rest.run(py) {
            Ok(dropped) => {
                self.surplus.warn_of_rest(environ, dropped);
                Ok(())
            }
            Err(error) => {
                let place = "in the application's iterable after its response was complete";
                self.failed_afterwards(py, place, &error, policy);
                Err(error)
            }
        }
    }

    /// Finishes the response, after what is asked of it later has been kept: its record for the application, and the
    /// values that the access log shows of `environ`.
    fn end(
        &self,
        py: Python<'_>,
        start_response: &StartResponse,
        environ: &Bound<'_, PyDict>,
        outcome: PyResult<Delivered<'_>>,
        policy: &dyn ExceptionPolicy,
    ) {
        let state = start_response.state();
        if !start_response.record_is_out_of_reach(environ) {
            state.follow(py);
        }
        if !self.logged.is_empty() {
            state.set_variables(py, self.logged.read(environ));
        }
        self.finish(py, state, outcome, policy);
    }

    /// Ends the connection that the application has taken over. `error`: what it has raised.
    fn end_taken_over(
        &self,
        py: Python<'_>,
        taken_over: TakenOver,
        environ: &Bound<'_, PyDict>,
        error: Option<PyErr>,
        policy: &dyn ExceptionPolicy,
    ) {
        let TakenOver { mut exchange, socket } = taken_over;
        if !self.logged.is_empty() {
            exchange.set_variables(self.logged.read(environ));
        }
        let error = error.filter(|error| !web_socket::is_expected(py, error, &exchange));
        let request = error.as_ref().map(|_| exchange.request_line());
        if !self.is_gevent {
            thread::release(py, || exchange.await_leaving(LAST_FRAMES));
        }
        exchange.end_taken_over(socket);
        if let (Some(error), Some(request)) = (error, request) {
            if policy.ends_server(py, &error) {
                policy.end_server(py, &error);
            } else {
                let message = format!("{request}: exception in the application, which had taken over the connection");
                log::log(py, Level::Error, &message, Some(&error));
            }
        }
    }

    /// Finishes the response. Where the application has failed, responds with an error or breaks the connection.
    fn finish(
        &self,
        py: Python<'_>,
        state: &ResponseState,
        outcome: PyResult<Delivered<'_>>,
        policy: &dyn ExceptionPolicy,
    ) {
        let Some(mut response) = state.end(py) else {
            return log::log(py, Level::Error, "the response was lost: another thread was still writing it", None);
        };
        let error = match outcome {
            Ok(Delivered::Bare) if response.started => {
                self.warn_of_bare_bytes(py, &response.exchange);
                None
            }
            Ok(_) if response.started => None,
            Ok(_) => {
                Some(PyAssertionError::new_err("the application returned without calling start_response() (PEP 3333)"))
            }
            Err(error) => Some(error),
        };
        match error {
            None => {
                let exchange = &mut response.exchange;
                // Naming the request costs something, so it is done only where it may be needed.
                if exchange.response().bytes_beyond_content_length() > 0
                    || exchange.response_mut().head().dropped().is_some()
                {
                    self.surplus.warn_of_response(py, exchange);
                }
                let body_bytes = exchange.record().body_bytes;
                match exchange.response_mut().head().status_code() {
                    200 if body_bytes == 0 && !exchange.is_delegated() => {
                        self.surplus.warn_of_unsent_file(py, exchange)
                    }
                    404 => self.unserved_static.note_missing(py, exchange),
                    _ => {}
                }
                let may_be_short = exchange.response_mut().head().declared_length().unwrap_or(0) > body_bytes;
                let request = (may_be_short && !response.gone).then(|| exchange.request_line());
                if let (Err(short), Some(request)) = (response.exchange.finish(), request) {
                    let message = format!(
                        "{request}: the body is {} bytes shorter than its Content-Length; the connection was broken",
                        short.missing
                    );
                    log::log(py, Level::Error, &message, None);
                }
            }
            // This was raised because the client has left, by `write()` or to cancel the request, and it went through
            // the application: no error of its own.
            Some(error) if response.is_abandoned() && error.is_instance_of::<ClientDisconnected>(py) => {
                response.exchange.fail(500, None);
            }
            Some(error) => self.fail(py, response.exchange, &error, policy),
        }
    }

    /// Logs an exception and responds with an error, or breaks the connection if the head has left.
    fn fail(&self, py: Python<'_>, mut exchange: Exchange, error: &PyErr, policy: &dyn ExceptionPolicy) {
        if exchange.is_forked_child() {
            // This is a child: another greenlet has forked, and the parent has this request.
            return;
        }
        if policy.ends_server(py, error) {
            exchange.abort(503, None);
            policy.end_server(py, error);
            return;
        }
        // The deadline's thread has logged where it was raised, and the client has its response.
        if error.is_instance_of::<RequestTimeout>(py) {
            return exchange.fail(504, None);
        }
        if let Some((status, sentence)) = fault_of_the_client(py, error) {
            return exchange.fail(status, Some(&sentence));
        }
        let request = exchange.request_line();
        exchange.response_mut().withdraw();
        let (message, page) = if exchange.response().head_sent() {
            (format!("{request}: exception after the head was sent; the connection was broken"), None)
        } else {
            (format!("{request}: exception in the application"), self.debug.then(|| traceback_page(py, error)))
        };
        exchange.fail(500, page.as_deref());
        log::log(py, Level::Error, &message, Some(error));
    }

    /// PEP 3333: "If the iterable returned by the application has a close() method, the server or gateway must call
    /// that method". The exception that it raised has been logged.
    fn close(&self, iterable: &Bound<'_, PyAny>, policy: &dyn ExceptionPolicy) -> PyResult<()> {
        let py = iterable.py();
        if iterable.is_exact_instance_of::<PyList>()
            || iterable.is_exact_instance_of::<PyTuple>()
            || iterable.is_exact_instance_of::<PyBytes>()
        {
            return Ok(());
        }
        let closed = match iterable.getattr_opt(&names(py).close) {
            Ok(Some(close)) => call(&close, []).map(drop),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = &closed {
            self.failed_afterwards(py, "in close() of the application's iterable", error, policy);
        }
        closed
    }

    /// Logs an exception that was raised after the response had ended.
    fn failed_afterwards(&self, py: Python<'_>, place: &str, error: &PyErr, policy: &dyn ExceptionPolicy) {
        if policy.ends_server(py, error) {
            policy.end_server(py, error);
        } else if !error.is_instance_of::<RequestTimeout>(py) && !error.is_instance_of::<ClientDisconnected>(py) {
            log::log(py, Level::Error, &format!("exception {place}"), Some(error));
        }
    }

    /// Logs once that the application returned `bytes`: other servers send those one integer at a time, or fail.
    fn warn_of_bare_bytes(&self, py: Python<'_>, exchange: &Exchange) {
        if self.warned_of_bare_bytes.swap(true, Ordering::Relaxed) {
            return;
        }
        let message = format!(
            "{}: the application {} returned bytes, which PEP 3333 iterates to integers; it was sent as one block. \
             Return [body] instead of body. This is logged once.",
            exchange.request_line(),
            place_of(self.callable.bind(py)),
        );
        log::log(py, Level::Warning, &message, None);
    }
}

/// Status and sentence of the response, where an exception of `wsgi.input` has gone through the application: the client
/// is at fault.
fn fault_of_the_client(py: Python<'_>, error: &PyErr) -> Option<(u16, String)> {
    if error.is_instance_of::<RequestBodyError>(py) {
        let value = error.value(py);
        // An error that the application made itself may have any status, or none.
        let status = value.getattr("status").and_then(|status| status.extract::<u16>()).ok();
        return status.filter(|status| (400..500).contains(status)).map(|status| (status, escape(&value.to_string())));
    }
    let gone = error.is_instance_of::<ClientDisconnected>(py);
    gone.then(|| (400, String::from("The request ended before its body was complete.")))
}

/// How long a body is; `None`: that will be known at its end.
fn body_length(body: &RequestBody, framing: BodyLength) -> Option<u64> {
    match (body, framing) {
        (RequestBody::Empty, _) => Some(0),
        (RequestBody::Memory(bytes), _) => Some(bytes.len() as u64),
        (RequestBody::File { length, .. }, _) => Some(*length),
        (RequestBody::Stream(_), BodyLength::Known(length)) => Some(length),
        (RequestBody::Stream(_), _) => None,
    }
}

/// Name and code location of an application, as far as it has them.
fn place_of(callable: &Bound<'_, PyAny>) -> String {
    let name = callable
        .getattr("__qualname__")
        .or_else(|_| callable.get_type().getattr("__qualname__"))
        .map_or_else(|_| String::from("callable"), |name| name.to_string());
    let code = callable
        .getattr("__code__")
        .or_else(|_| callable.getattr("__call__").and_then(|call| call.getattr("__code__")));
    match code.and_then(|code| Ok((code.getattr("co_filename")?, code.getattr("co_firstlineno")?))) {
        Ok((file, line)) => format!("{name} ({file}:{line})"),
        Err(_) => name,
    }
}

/// A `start_response` in use. A thread that unwinds drops it: then it is closed for good. Else it goes back to the
/// cache.
struct InUse<'py> {
    start_response: Option<StartResponse>,
    py: Python<'py>,
}

impl InUse<'_> {
    fn keep_in(mut self, cache: &mut ThreadCache) {
        if let Some(start_response) = self.start_response.take_if(|start_response| start_response.is_ours(self.py)) {
            cache.start_response = Some(start_response);
        }
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        if let Some(start_response) = self.start_response.take() {
            start_response.close(self.py);
        }
    }
}

/// A context of its own for one request; none where there is no memory for it.
fn enter_context(py: Python<'_>) -> Option<EnteredContext<'_>> {
    let context = EnteredContext::enter(py);
    context.map_err(|error| log::log(py, Level::Error, "no context for a request", Some(&error))).ok()
}

fn leave_context(py: Python<'_>, context: Option<EnteredContext<'_>>) {
    if let Some(Err(error)) = context.map(EnteredContext::leave) {
        log::log(py, Level::Error, "the application left the request's context", Some(&error));
    }
}
