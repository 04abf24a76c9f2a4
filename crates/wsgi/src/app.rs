//! The application behind the server's door: one request from `environ` to `close()`.
//!
//! Runs on the thread that took the request, attached to the interpreter throughout one turn; the interpreter is let go
//! only in large sends, in waits for a slow client, and by the application itself.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use penstock_http::framing::BodyLength;
use penstock_server::exchange::{Exchange, RequestBody};
use penstock_server::handler::{Application, Level, Overdue};
use penstock_server::ready::Turn;
use pyo3::exceptions::{PyAssertionError, PyKeyboardInterrupt};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::blocks::{Delivered, deliver};
use crate::calls::call;
use crate::environ::{EnvironMaker, NoEnviron};
use crate::errors::{self, Lines, escape, traceback_page};
use crate::file_wrapper;
use crate::input::Input;
use crate::memo::Memo;
use crate::names::names;
use crate::overdue::{self, Overseer};
use crate::pool::Pool;
use crate::response::{Response, StartResponse};
use crate::start_response::{Door, is_only_ours};
use crate::{ClientDisconnected, RequestBodyError, RequestTimeout};

/// A WSGI application and what the server needs to call it.
pub(crate) struct PythonApplication {
    callable: Py<PyAny>,
    maker: EnvironMaker,
    /// Tracebacks go to the browser.
    debug: bool,
    /// Requests run on the main thread of a single-threaded server, where Ctrl-C has to end it.
    single_thread: bool,
    desks: Mutex<Vec<Desk>>,
    lines: Arc<Lines>,
    overseer: Overseer,
    /// Bare bytes have been complained about.
    bare_was_said: AtomicBool,
    /// What has to be raised by `run_here`.
    interruption: Mutex<Option<PyErr>>,
    pool: Pool,
    /// `greenlet.GreenletExit`, where requests run in greenlets.
    exit: OnceLock<Py<PyAny>>,
}

/// What a thread needs while it runs requests, kept for the next thread that does.
#[derive(Default)]
struct Desk {
    memo: Memo,
    door: Option<Door>,
    empty_input: Option<Py<Input>>,
    /// The greenlet was to be ended.
    is_killed: bool,
}

/// Desks that are kept.
const DESKS: usize = 256;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Application for PythonApplication {
    fn enter(&self, turn: &mut Turn<'_>) {
        // An interpreter that is going away takes no more requests; they end with the process.
        let _ = Python::try_attach(|py| self.carry_in_turn(py, turn, || true));
    }

    fn grow(&self) -> io::Result<()> {
        match Python::try_attach(|py| self.pool.start_thread(py)) {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(io::Error::other(error.to_string())),
            None => Err(io::Error::other("the interpreter is going away")),
        }
    }

    fn interrupted(&self) -> bool {
        let interrupted = Python::try_attach(|py| match py.check_signals() {
            Ok(()) => false,
            Err(error) => {
                self.interrupt(error);
                true
            }
        });
        interrupted.unwrap_or(true) || lock(&self.interruption).is_some()
    }

    fn log(&self, level: Level, message: &str) {
        self.lines.send(level, message);
    }

    fn overdue(&self, overdue: Overdue) {
        let Some(reactor) = self.pool.reactor() else { return };
        match reactor.upgrade().as_ref().and_then(|reactor| reactor.hub()) {
            Some(hub) => hub.tell_overdue(overdue),
            None => self.overseer.tell(overdue, reactor),
        }
    }
}

impl PythonApplication {
    pub(crate) fn new(callable: Py<PyAny>, maker: EnvironMaker, debug: bool, single_thread: bool) -> Self {
        let lines = Arc::new(Lines::default());
        Self {
            callable,
            maker,
            debug,
            single_thread,
            desks: Mutex::default(),
            overseer: Overseer::new(lines.clone()),
            lines,
            bare_was_said: AtomicBool::new(false),
            interruption: Mutex::new(None),
            pool: Pool::default(),
            exit: OnceLock::new(),
        }
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What ended a single-threaded server, to be raised again.
    pub(crate) fn take_interruption(&self) -> Option<PyErr> {
        lock(&self.interruption).take()
    }

    fn interrupt(&self, error: PyErr) {
        lock(&self.interruption).get_or_insert(error);
    }

    /// Runs requests until the turn is over, or `goes_on` says no after one. False: the greenlet that runs them is to end, by a
    /// `GreenletExit` or Ctrl-C that went through the application.
    pub(crate) fn carry_in_turn(&self, py: Python<'_>, turn: &mut Turn<'_>, goes_on: impl Fn() -> bool) -> bool {
        let mut desk = lock(&self.desks).pop().unwrap_or_default();
        let thread = thread_here();
        turn.identify(thread);
        while let Some(exchange) = turn.next() {
            // References that I/O threads gave up are dropped here, while this thread holds the interpreter.
            Python::attach(|_| ());
            self.run(py, &mut desk, exchange, turn, thread);
            if turn.is_overdue() {
                overdue::forgive(py, thread);
            }
            if desk.is_killed || !goes_on() {
                break;
            }
        }
        let is_killed = std::mem::take(&mut desk.is_killed);
        let mut desks = lock(&self.desks);
        if desks.len() < DESKS {
            desks.push(desk);
        }
        !is_killed
    }

    /// Requests will run in greenlets of the calling thread. What is made once in a process is made now: a greenlet that
    /// made it could be left in the middle of it, and the next one would wait for it without end.
    pub(crate) fn prepare_for_greenlets(&self, py: Python<'_>) -> PyResult<()> {
        let exit = py.import("greenlet")?.getattr("GreenletExit")?;
        let _ = self.exit.set(exit.unbind());
        names(py);
        errors::prepare(py)?;
        file_wrapper::prepare(py)?;
        py.get_type::<StartResponse>();
        Ok(())
    }

    /// True for an exception that ends not only the request but also its greenlet. Ctrl-C reaches whatever greenlet of the main
    /// thread runs: it is kept for the program whose thread that is.
    fn ends_greenlet(&self, py: Python<'_>, error: &PyErr) -> bool {
        let Some(exit) = self.exit.get() else { return false };
        let is_ctrl_c = error.is_instance_of::<PyKeyboardInterrupt>(py);
        if is_ctrl_c {
            self.interrupt(error.clone_ref(py));
        }
        is_ctrl_c || error.is_instance(py, exit.bind(py))
    }

    /// Runs one request. A panic in here costs its connection.
    fn run(&self, py: Python<'_>, desk: &mut Desk, exchange: Exchange, turn: &Turn<'_>, thread: u64) {
        let unwound = catch_unwind(AssertUnwindSafe(|| self.carry(py, desk, exchange, turn, thread)));
        if let Err(panic) = unwound {
            // SAFETY: attached; clears what an interrupted call may have left behind.
            unsafe { ffi::PyErr_Clear() };
            if let Some(door) = desk.door.take() {
                door.close(py);
            }
            *desk = Desk::default();
            let message = format!("internal error, the connection was closed: {}", what_panicked(panic.as_ref()));
            errors::log(py, Level::Error, &message, None);
        }
        if self.single_thread {
            self.take_ctrl_c_back(py);
        }
    }

    /// `pdb` installs a handler of its own for Ctrl-C when it continues, and leaves it: between requests Ctrl-C ends the
    /// server again.
    fn take_ctrl_c_back(&self, py: Python<'_>) {
        let taken_back = (|| -> PyResult<()> {
            let signal = py.import("signal")?;
            let ours = signal.getattr("default_int_handler")?;
            let number = signal.getattr("SIGINT")?;
            if !signal.call_method1("getsignal", (&number,))?.is(&ours) {
                signal.call_method1("signal", (number, ours))?;
            }
            Ok(())
        })();
        match taken_back {
            Ok(()) => {}
            Err(error) if error.is_instance_of::<PyKeyboardInterrupt>(py) => self.interrupt(error),
            Err(error) => errors::log(py, Level::Warning, "Ctrl-C may not end the server any more", Some(&error)),
        }
    }

    fn carry(&self, py: Python<'_>, desk: &mut Desk, mut exchange: Exchange, turn: &Turn<'_>, thread: u64) {
        let body = exchange.take_body();
        let (environ, input) = match self.environ(py, desk, &exchange, body) {
            Ok(made) => made,
            Err(NoEnviron::Underscore) => {
                exchange.fail(400, Some("A field name of the request has an underscore."));
                return;
            }
            Err(NoEnviron::Error(error)) => {
                self.fail(py, exchange, &error);
                return;
            }
        };
        let door = match desk.door.take().map_or_else(|| Door::new(py), Ok) {
            Ok(door) => door,
            Err(error) => {
                self.fail(py, exchange, &error);
                return;
            }
        };
        let open = Open { door: Some(door), py };
        let Some(door) = &open.door else { return };
        door.open(py, Response { exchange, started: false, gone: false });
        self.maker.add_questions(&environ, door.questions());

        // Values that the application sets in context variables end with the request.
        let context = Context::enter(py);
        let (iterable, outcome) = match call(self.callable.bind(py), [environ.as_any(), door.callable(py)]) {
            Ok(iterable) => {
                let outcome = deliver(py, door.state(), &iterable);
                (Some(iterable), outcome)
            }
            Err(error) => (None, Err(error)),
        };
        desk.is_killed = outcome.as_ref().is_err_and(|error| self.ends_greenlet(py, error));
        // What follows is our own work, and the application's cleaning up.
        if turn.leave_application() {
            overdue::forgive(py, thread);
        }
        if !door.nobody_asks(&environ) {
            door.state().follow(py);
        }
        self.finish(py, door.state(), outcome);
        if let Some(iterable) = iterable {
            desk.is_killed |= self.close(&iterable).is_err_and(|error| self.ends_greenlet(py, &error));
        }
        drop(context);

        drop(environ);
        open.keep_in(desk);
        // The stream of a request without a body serves the next such request, unless the application kept it.
        if desk.empty_input.is_none() && is_only_ours(input.as_any(), 1) && input.get().has_nothing() {
            desk.empty_input = Some(input.unbind());
        }
    }

    fn environ<'py>(
        &self,
        py: Python<'py>,
        desk: &mut Desk,
        exchange: &Exchange,
        body: RequestBody,
    ) -> Result<(Bound<'py, PyDict>, Bound<'py, Input>), NoEnviron> {
        let length = body_length(&body, exchange.request().framing.body);
        let input = match (&body, desk.empty_input.take()) {
            (RequestBody::Empty, Some(input)) => input.into_bound(py),
            _ => Bound::new(py, Input::new(body))?,
        };
        let environ = self.maker.make(py, &mut desk.memo, exchange.request(), length, input.as_any())?;
        Ok((environ, input))
    }

    /// Ends the response, well or badly.
    fn finish(&self, py: Python<'_>, state: &StartResponse, outcome: PyResult<Delivered>) {
        let Some(mut response) = state.end(py) else {
            return errors::log(py, Level::Error, "the response was lost: another thread was still writing it", None);
        };
        let error = match outcome {
            Ok(Delivered::Bare) if response.started => {
                self.say_bare(py, &response.exchange);
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
                let may_be_short = exchange.head().declared_length().unwrap_or(0) > exchange.record().body_bytes;
                let request = (may_be_short && !response.gone).then(|| exchange.request().line());
                if let (Err(short), Some(request)) = (response.exchange.finish(), request) {
                    let message = format!(
                        "{request}: the body is {} bytes shorter than its Content-Length; the connection was broken",
                        short.missing
                    );
                    errors::log(py, Level::Error, &message, None);
                }
            }
            // Told so by write(), the application gave up: nothing went wrong.
            Some(error) if response.gone && error.is_instance_of::<ClientDisconnected>(py) => {
                let _ = response.exchange.finish();
            }
            Some(error) => self.fail(py, response.exchange, &error),
        }
    }

    /// Logs an exception and answers with an error, or breaks the connection if the head has left.
    fn fail(&self, py: Python<'_>, exchange: Exchange, error: &PyErr) {
        if self.single_thread && error.is_instance_of::<PyKeyboardInterrupt>(py) {
            exchange.fail(503, None);
            self.interrupt(error.clone_ref(py));
            self.pool.stop(Duration::ZERO);
            return;
        }
        // Whoever raised it has told where, and the client has its answer.
        if error.is_instance_of::<RequestTimeout>(py) {
            return exchange.fail(504, None);
        }
        if let Some((status, sentence)) = fault_of_the_client(py, error) {
            return exchange.fail(status, Some(&sentence));
        }
        let request = exchange.request().line();
        let (message, page) = if exchange.head_sent() {
            (format!("{request}: exception after the head was sent; the connection was broken"), None)
        } else {
            (format!("{request}: exception in the application"), self.debug.then(|| traceback_page(py, error)))
        };
        exchange.fail(500, page.as_deref());
        errors::log(py, Level::Error, &message, Some(error));
    }

    /// PEP 3333: "If the iterable returned by the application has a close() method, the server or gateway must call
    /// that method". What it raised has been dealt with.
    fn close(&self, iterable: &Bound<'_, PyAny>) -> PyResult<()> {
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
            if self.single_thread && error.is_instance_of::<PyKeyboardInterrupt>(py) {
                self.interrupt(error.clone_ref(py));
                self.pool.stop(Duration::ZERO);
            } else if !error.is_instance_of::<RequestTimeout>(py) {
                errors::log(py, Level::Error, "exception in close() of the application's iterable", Some(error));
            }
        }
        closed
    }

    /// Bare bytes work, but not on other servers: says so once.
    fn say_bare(&self, py: Python<'_>, exchange: &Exchange) {
        if self.bare_was_said.swap(true, Ordering::Relaxed) {
            return;
        }
        let message = format!(
            "{}: the application {} answered bytes, which PEP 3333 iterates to integers; it was sent as one block. \
             Return [body] instead of body. This is said once.",
            exchange.request().line(),
            place_of(self.callable.bind(py)),
        );
        errors::log(py, Level::Warning, &message, None);
    }
}

/// Status and sentence of the answer, where an exception of `wsgi.input` has gone through the application: what the client
/// sent is to blame, and nobody else.
fn fault_of_the_client(py: Python<'_>, error: &PyErr) -> Option<(u16, String)> {
    if error.is_instance_of::<RequestBodyError>(py) {
        let value = error.value(py);
        // One that the application made may have any, or none.
        let status = value.getattr("status").and_then(|status| status.extract::<u16>()).ok();
        return status.filter(|status| (400..500).contains(status)).map(|status| (status, escape(&value.to_string())));
    }
    let gone = error.is_instance_of::<ClientDisconnected>(py);
    gone.then(|| (400, String::from("The request ended before its body was complete.")))
}

/// How long a body is; `None`: it will be known at its end.
fn body_length(body: &RequestBody, framing: BodyLength) -> Option<u64> {
    match (body, framing) {
        (RequestBody::Empty, _) => Some(0),
        (RequestBody::Memory { bytes, .. }, _) => Some(bytes.len() as u64),
        (RequestBody::File { length, .. }, _) => Some(*length),
        (RequestBody::Stream(_), BodyLength::Known(length)) => Some(length),
        (RequestBody::Stream(_), _) => None,
    }
}

/// The calling thread, as CPython numbers it. Not `threading.get_ident`, which gevent replaces.
pub(crate) fn thread_here() -> u64 {
    // SAFETY: may be called by any thread.
    unsafe { ffi::PyThread_get_thread_ident() }
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

fn what_panicked(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("unknown")
}

/// A door in use. Dropped by an unwinding thread, it is closed for good; else it goes back to the desk.
struct Open<'py> {
    door: Option<Door>,
    py: Python<'py>,
}

impl Open<'_> {
    fn keep_in(mut self, desk: &mut Desk) {
        if let Some(door) = self.door.take_if(|door| door.is_ours(self.py)) {
            desk.door = Some(door);
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Some(door) = self.door.take() {
            door.close(self.py);
        }
    }
}

/// A context of its own for one request.
struct Context<'py>(Option<Bound<'py, PyAny>>);

impl<'py> Context<'py> {
    fn enter(py: Python<'py>) -> Self {
        // SAFETY: attached; the result is a new reference or null with an exception set.
        let context = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyContext_CopyCurrent()) };
        let entered = context.and_then(|context| {
            // SAFETY: `context` is a context object, as made above.
            if unsafe { ffi::PyContext_Enter(context.as_ptr()) } == 0 { Ok(context) } else { Err(PyErr::fetch(py)) }
        });
        match entered {
            Ok(context) => Self(Some(context)),
            Err(error) => {
                errors::log(py, Level::Error, "no context for a request", Some(&error));
                Self(None)
            }
        }
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        if let Some(context) = self.0.take() {
            // SAFETY: `context` was entered by this thread.
            if unsafe { ffi::PyContext_Exit(context.as_ptr()) } != 0 {
                let error = PyErr::fetch(context.py());
                errors::log(context.py(), Level::Error, "the application left the request's context", Some(&error));
            }
        }
    }
}
