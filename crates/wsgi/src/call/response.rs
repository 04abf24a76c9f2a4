//! The response of a request that is running, and the state that holds it.
//!
//! [`ResponseState`] holds the response. Whoever works with it (the thread that runs the request, or Python code that
//! calls `start_response` or `write`) takes it out and puts it back. So no lock is held while Python code runs or while
//! the interpreter is released, and a second taker gets an error instead of a deadlock. When the request is over the
//! state is empty, and a late call gets an error, too.
//!
//! All functions run attached, on any thread.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyAssertionError, PyMemoryError, PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use tailrace_observe::record::{Ending, Record};
use tailrace_os::process::Process;
use tailrace_server::{Client, Exchange, Position, RawSocket, Sent};

use crate::call::headers::LastHead;
use crate::call::kept_block::KeptBlock;
use crate::call::subscriptions::{RequestKey, Subscriptions};
use crate::call::waiting;
use crate::ffi::attached_cell::AttachedCell;
use crate::ffi::bytes::{self, SharedBytes};
use crate::ffi::thread;
use crate::python::exceptions::client_disconnected;
use crate::python::forks::used_in_child;
use crate::python::type_name::type_name;

/// The interpreter is released for a send of at least this size, where that is of use.
const LARGE: usize = 64 * 1024;

/// The response of a request that is running.
pub(crate) struct WsgiResponse {
    pub(crate) exchange: Exchange,
    /// `start_response` has been called.
    pub(crate) started: bool,
    /// The client has left: what is sent from now on is dropped.
    pub(crate) gone: bool,
    /// By which the application can take over the connection.
    pub(crate) socket: Option<RawSocket>,
}

impl WsgiResponse {
    /// Sends one block of the application's.
    pub(crate) fn send(&mut self, block: &Bound<'_, PyBytes>, position: Position) -> Sent {
        let py = block.py();
        let bytes = block.as_bytes();
        let exchange = &mut self.exchange;
        let sent = if keeps_interpreter(exchange, bytes.len()) {
            exchange.response_mut().push(&[bytes], position, &mut |_| KeptBlock::boxed(SharedBytes::of(block)))
        } else {
            let shared = SharedBytes::of(block);
            thread::release(py, || {
                exchange.response_mut().push(&[bytes], position, &mut |_| KeptBlock::boxed(shared.clone()))
            })
        };
        self.noted(sent)
    }

    /// After a send: where the client's queue is full, waits until it has room. `state` is where the response will be
    /// put back.
    ///
    /// # Errors
    /// What was raised in the waiting code, or `MemoryError` for a block that was not sent. The response must be put
    /// back in either case.
    pub(crate) fn await_room(&mut self, py: Python<'_>, state: &ResponseState, sent: Sent) -> PyResult<Sent> {
        if sent == Sent::NoMemory {
            return Err(PyMemoryError::new_err("not enough memory for a block of the response"));
        }
        let sent = if sent == Sent::Full { self.wait(py, state)? } else { sent };
        Ok(self.noted(sent))
    }

    #[cold]
    #[inline(never)]
    fn wait(&mut self, py: Python<'_>, state: &ResponseState) -> PyResult<Sent> {
        state.remember(py, self);
        waiting::here().wait_for_room(py, &mut self.exchange)
    }

    /// True when what the application does has no effect any more, because its client has left.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.gone || self.exchange.is_noted_cancelled()
    }

    /// Notes when the client has left.
    pub(crate) fn noted(&mut self, sent: Sent) -> Sent {
        if sent == Sent::Gone && !self.gone {
            self.gone = true;
            self.exchange.response().note_left();
        }
        sent
    }
}

/// True when a send of so many bytes is made with the interpreter held.
pub(crate) fn keeps_interpreter(exchange: &Exchange, length: usize) -> bool {
    length < LARGE || waiting::here().keeps_interpreter(exchange)
}

/// What is left of a request whose application has taken over the connection.
pub(crate) struct TakenOver {
    pub(crate) exchange: Exchange,
    pub(crate) socket: RawSocket,
}

/// Where the response is.
enum ResponsePhase {
    /// There is none: no request runs, or its response is finished.
    Over,
    /// In here.
    Held(WsgiResponse),
    /// Taken out by a thread that works with it.
    Taken,
    /// Taken out, and the request has ended meanwhile: the response is dropped when it is put back.
    Abandoned,
    /// There is none: the application has taken over the connection.
    TakenOver(TakenOver),
}

/// The state that `start_response`, `write` and the functions in `environ` are bound to.
#[pyclass(frozen, name = "ResponseState", module = "tailrace._tailrace")]
pub(crate) struct ResponseState {
    phase: AttachedCell<ResponsePhase>,
    /// The `write` callable. It refers back to this object; `StartResponse::close` breaks the cycle.
    write: AttachedCell<Option<Py<PyAny>>>,
    /// The head of the last `start_response`, for comparison with the next.
    last_head: AttachedCell<Option<Box<LastHead>>>,
    /// The record of the last response, if the application can still ask for it.
    followed: AttachedCell<Option<Arc<Mutex<Record>>>>,
    /// The record of the response when it was taken out, and its client.
    seen: AttachedCell<Option<(Record, Client)>>,
    /// The process that responds to the request: not a child that its application forks.
    process: AttachedCell<Process>,
    /// Those of all requests of the server.
    subscriptions: Arc<Subscriptions>,
    /// The request, if it has subscriptions.
    subscribed: AttachedCell<Option<RequestKey>>,
}

impl ResponseState {
    pub(crate) fn new(subscriptions: Arc<Subscriptions>) -> Self {
        Self {
            subscriptions,
            subscribed: AttachedCell::new(None),
            phase: AttachedCell::new(ResponsePhase::Over),
            write: AttachedCell::new(None),
            last_head: AttachedCell::new(None),
            followed: AttachedCell::new(None),
            seen: AttachedCell::new(None),
            process: AttachedCell::new(Process::here()),
        }
    }

    /// Begins a request.
    pub(crate) fn begin(&self, py: Python<'_>, response: WsgiResponse) {
        // Those of a request that ended by a panic.
        self.unsubscribe(py);
        drop(self.phase.replace(py, ResponsePhase::Held(response)));
        self.process.replace(py, Process::here());
        self.followed.replace(py, None);
        self.seen.replace(py, None);
    }

    /// Calls `callback` if the client leaves before the response ends. Returns what `remove()` is called of.
    ///
    /// # Errors
    /// `RuntimeError` when the request is over; no memory.
    pub(crate) fn subscribe<'py>(&self, callback: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = callback.py();
        let response = self.take(py)?;
        let made = match response.exchange.runner() {
            Some(request) => {
                self.subscribed.replace(py, Some(request));
                self.subscriptions.add(request, callback, response.exchange.client())
            }
            None => Err(PyRuntimeError::new_err("tailrace.on_disconnect: too many requests are past their deadlines")),
        };
        if made.is_ok() {
            // It may have left before.
            response.exchange.report_disconnect();
        }
        self.put(py, response);
        made
    }

    /// Calls the pending callbacks if the client has left, because the request itself may have noticed first. No
    /// callback is called after that.
    pub(crate) fn unsubscribe(&self, py: Python<'_>) {
        if let Some(request) = self.subscribed.replace(py, None) {
            let has_left = self.phase.peek(py, |phase| match phase {
                ResponsePhase::Held(response) => response.exchange.response().has_left(),
                ResponsePhase::TakenOver(taken_over) => taken_over.exchange.has_client_left(),
                _ => false,
            });
            self.subscriptions.end(py, request, has_left);
        }
    }

    /// The application was interrupted because the client has left.
    pub(crate) fn note_cancelled(&self, py: Python<'_>) {
        self.phase.peek(py, |phase| {
            if let ResponsePhase::Held(response) = phase {
                response.exchange.note_cancelled();
            }
        });
    }

    /// False in a child that the application has forked since the request began.
    pub(crate) fn is_here(&self, py: Python<'_>) -> bool {
        self.process.peek(py, |process| process.is_here())
    }

    /// To be called before work on the connection.
    ///
    /// # Errors
    /// `RuntimeError` in a child that the application has forked; `what` names what was called.
    pub(crate) fn check_process(&self, py: Python<'_>, what: &str) -> PyResult<()> {
        if self.is_here(py) { Ok(()) } else { Err(used_in_child(what)) }
    }

    /// Takes the response out; it must be put back.
    ///
    /// # Errors
    /// `RuntimeError` when the request is over or another thread works with the response.
    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<WsgiResponse> {
        let fault = match self.phase.replace(py, ResponsePhase::Taken) {
            ResponsePhase::Held(response) => {
                // Before the head nobody takes the response out and waits with it, so nobody looks for `seen`.
                if response.exchange.response().head_sent() && self.is_here(py) {
                    self.remember(py, &response);
                }
                return Ok(response);
            }
            ResponsePhase::Over => {
                self.phase.replace(py, ResponsePhase::Over);
                "start_response(), write() or wsgi.early_hints was called after the response had ended"
            }
            ResponsePhase::Abandoned => {
                self.phase.replace(py, ResponsePhase::Abandoned);
                "start_response(), write() or wsgi.early_hints was called after the response had ended"
            }
            ResponsePhase::Taken => "two threads work on one response at the same time",
            taken_over @ ResponsePhase::TakenOver(_) => {
                self.phase.replace(py, taken_over);
                "the application has taken over the connection, so there is no response"
            }
        };
        Err(PyRuntimeError::new_err(fault))
    }

    /// Takes the response out in order to send.
    ///
    /// # Errors
    /// As [`Self::take`], and when there is no head to send, since `start_response` has not been called.
    pub(crate) fn take_started(&self, py: Python<'_>) -> PyResult<WsgiResponse> {
        self.check_process(py, "write()")?;
        let response = self.take(py)?;
        if response.started {
            return Ok(response);
        }
        self.put(py, response);
        Err(PyAssertionError::new_err("the application gave a block before it called start_response() (PEP 3333)"))
    }

    /// A fast path of [`ResponseState::send`] for small blocks that come quickly. `None`: it does not apply, and
    /// nothing was done. Results other than `Taken` and `Enough` must be passed to [`Self::await_room`].
    #[inline]
    pub(crate) fn coalesce(&self, py: Python<'_>, block: &[u8]) -> Option<Sent> {
        self.phase.peek(py, |phase| match phase {
            ResponsePhase::Held(response) if response.started => response.exchange.response_mut().coalesce(block),
            _ => None,
        })
    }

    /// After [`Self::coalesce`]: waits where the client's queue is full.
    #[cold]
    pub(crate) fn await_room(&self, py: Python<'_>, sent: Sent) -> PyResult<Sent> {
        let mut response = self.take(py)?;
        let sent = response.await_room(py, self, sent);
        self.put(py, response);
        sent
    }

    /// Sends a block that is not empty; waits while the client's queue is full.
    pub(crate) fn send(&self, block: &Bound<'_, PyBytes>, position: Position) -> PyResult<Sent> {
        let py = block.py();
        let mut response = self.take_started(py)?;
        let sent = response.send(block, position);
        let sent = response.await_room(py, self, sent);
        self.put(py, response);
        sent
    }

    /// The `Content-Length` that the application gave to `start_response`.
    pub(crate) fn declared_length(&self, py: Python<'_>) -> Option<u64> {
        let mut response = self.take(py).ok()?;
        let length = response.exchange.response_mut().head().declared_length();
        self.put(py, response);
        length
    }

    /// True when a responder completes the response in place of the application's body.
    pub(crate) fn is_delegated(&self, py: Python<'_>) -> bool {
        self.phase.peek(py, |phase| matches!(phase, ResponsePhase::Held(response) if response.exchange.is_delegated()))
    }

    /// The ticket comes back after others of the thread that are ready have run. False: it will not.
    pub(crate) fn resume_soon(&self, py: Python<'_>, ticket: u64) -> bool {
        self.phase.peek(py, |phase| match phase {
            ResponsePhase::Held(response) => response.exchange.response().come_back(ticket),
            _ => false,
        })
    }

    /// Puts the response back.
    pub(crate) fn put(&self, py: Python<'_>, response: WsgiResponse) {
        self.put_phase(py, ResponsePhase::Held(response));
    }

    fn put_phase(&self, py: Python<'_>, phase: ResponsePhase) {
        if let ResponsePhase::Abandoned = self.phase.replace(py, phase) {
            drop(self.phase.replace(py, ResponsePhase::Over));
        }
    }

    /// The application takes over the connection. False: it cannot.
    ///
    /// # Errors
    /// As [`Self::take`]; the client has left.
    pub(crate) fn take_over(&self, py: Python<'_>) -> PyResult<bool> {
        let mut response = self.take(py)?;
        if let Some(socket) = response.socket.take()
            && response.exchange.take_over(&socket)
        {
            let taken_over = TakenOver { exchange: response.exchange, socket };
            self.put_phase(py, ResponsePhase::TakenOver(taken_over));
            return Ok(true);
        }
        let has_left = response.exchange.response().is_gone();
        response.gone |= has_left;
        self.put(py, response);
        if has_left { Err(client_disconnected(py, "the client has disconnected")) } else { Ok(false) }
    }

    /// True when the application has taken over the connection.
    pub(crate) fn is_taken_over(&self, py: Python<'_>) -> bool {
        self.phase.peek(py, |phase| matches!(phase, ResponsePhase::TakenOver(_)))
    }

    /// Ends a request whose connection the application has taken over. `None`: it has not.
    pub(crate) fn end_taken_over(&self, py: Python<'_>) -> Option<TakenOver> {
        match self.phase.replace(py, ResponsePhase::Over) {
            ResponsePhase::TakenOver(taken_over) => Some(taken_over),
            other => {
                self.phase.replace(py, other);
                None
            }
        }
    }

    /// Ends the request: from now on nobody reaches the response. `None` when another thread has it at this moment.
    pub(crate) fn end(&self, py: Python<'_>) -> Option<WsgiResponse> {
        self.seen.replace(py, None);
        match self.phase.replace(py, ResponsePhase::Over) {
            ResponsePhase::Held(response) => Some(response),
            ResponsePhase::Over | ResponsePhase::TakenOver(_) => None,
            ResponsePhase::Taken | ResponsePhase::Abandoned => {
                self.phase.replace(py, ResponsePhase::Abandoned);
                None
            }
        }
    }

    /// Keeps the record for other threads that ask while the response is taken out.
    fn remember(&self, py: Python<'_>, response: &WsgiResponse) {
        self.seen.replace(py, Some((response.exchange.record(), response.exchange.client())));
    }

    /// Before the response ends: keeps its record for later questions of the application.
    pub(crate) fn follow(&self, py: Python<'_>) {
        let followed = self.phase.peek(py, |phase| match phase {
            ResponsePhase::Held(response) => Some(response.exchange.follow()),
            _ => None,
        });
        self.followed.replace(py, followed);
    }

    /// Before the response ends: the values that the access log shows of `environ`.
    pub(crate) fn set_variables(&self, py: Python<'_>, values: Vec<Option<Vec<u8>>>) {
        self.phase.peek(py, |phase| {
            if let ResponsePhase::Held(response) = phase {
                response.exchange.set_variables(values);
            }
        });
    }

    /// The record of the response as far as it has come, or of the last one that is over; and whether its client has
    /// gone.
    pub(crate) fn record(&self, py: Python<'_>) -> Option<(Record, bool)> {
        let now = self.phase.peek(py, |phase| match phase {
            ResponsePhase::Held(WsgiResponse { exchange, .. }) => {
                Some((exchange.record(), exchange.response().is_gone() || exchange.client().is_gone()))
            }
            ResponsePhase::TakenOver(TakenOver { exchange, .. }) => {
                Some((exchange.record(), exchange.client().is_gone()))
            }
            _ => None,
        });
        now.or_else(|| self.seen.peek(py, |seen| seen.as_ref().map(|(record, client)| (*record, client.is_gone()))))
            .or_else(|| {
                let followed = self.followed.peek(py, |followed| followed.clone())?;
                let record = *followed.lock().unwrap_or_else(PoisonError::into_inner);
                Some((record, matches!(record.ending, Ending::ClientDisconnected | Ending::Cancelled)))
            })
    }

    /// Exchanges the `write` callable.
    pub(crate) fn replace_write(&self, py: Python<'_>, write: Option<Py<PyAny>>) -> Option<Py<PyAny>> {
        self.write.replace(py, write)
    }

    /// Exchanges the last head.
    pub(crate) fn replace_last_head(&self, py: Python<'_>, last: Option<Box<LastHead>>) -> Option<Box<LastHead>> {
        self.last_head.replace(py, last)
    }
}

/// A block as `bytes`: itself, or a copy of another object's buffer.
///
/// # Errors
/// `TypeError` for text and all else.
pub(crate) fn as_block<'py>(block: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    if let Ok(bytes) = block.cast::<PyBytes>() {
        return Ok(bytes.clone());
    }
    if let Some(copy) = bytes::of_buffer(block)? {
        return Ok(copy);
    }
    let hint =
        if block.is_instance_of::<PyString>() { "; encode it first, for example with .encode(\"utf-8\")" } else { "" };
    Err(PyTypeError::new_err(format!(
        "a block of the response must be bytes, not {}{hint} (PEP 3333)",
        type_name(block)
    )))
}
