//! The response while its request is carried, and the one place where it is.
//!
//! The response lives in one place, [`StartResponse::phase`]. Whoever works with it (the carrying thread, or Python code
//! calling `start_response` or `write`) takes it out and puts it back, so no lock is held while Python code runs or
//! while the interpreter is released; a second taker gets an error instead of a deadlock. Once the request is over
//! the place is empty, and a late call gets an error too.
//!
//! All functions run attached, on any thread.

use std::os::raw::c_int;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use penstock_server::exchange::{Client, Exchange, Position, Room, Sent};
use penstock_server::record::{Ending, Record};
use pyo3::exceptions::{PyAssertionError, PyRuntimeError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::cell::AttachedCell;
use crate::headers::LastHead;
use crate::pause::{self, Greenlet, Waiting};
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
        // A greenlet writes little by itself, which takes less time than to let go of the interpreter.
        let sent = if bytes.len() < LARGE || exchange.is_on_its_hub() {
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

    /// Waits until a full queue has room again: a thread with the interpreter released, a greenlet while others run. `state`
    /// is where the response belongs.
    ///
    /// # Errors
    /// What was thrown into a greenlet; the response must be put back all the same.
    pub(crate) fn settle(&mut self, py: Python<'_>, state: &StartResponse, sent: Sent) -> PyResult<Sent> {
        let settled = if sent == Sent::Full { self.wait(py, state)? } else { sent };
        Ok(self.noted(settled))
    }

    #[cold]
    #[inline(never)]
    fn wait(&mut self, py: Python<'_>, state: &StartResponse) -> PyResult<Sent> {
        state.remember(py, self);
        let exchange = &mut self.exchange;
        if exchange.is_on_its_hub()
            && let Waiting::Greenlet(greenlet) = Waiting::here(py)
        {
            let from = Instant::now();
            let settled = wait_in(&greenlet, exchange);
            exchange.add_wait(from.elapsed());
            return settled;
        }
        let mut sent = Sent::Full;
        while sent == Sent::Full {
            sent = py.detach(|| exchange.wait());
        }
        Ok(sent)
    }

    /// Remembers that the client is gone.
    pub(crate) fn noted(&mut self, sent: Sent) -> Sent {
        self.gone |= sent == Sent::Gone;
        sent
    }
}

/// Waits in a greenlet for room.
fn wait_in(greenlet: &Greenlet<'_>, exchange: &mut Exchange) -> PyResult<Sent> {
    loop {
        let ticket = pause::ticket();
        match exchange.ask_for_room(ticket) {
            Room::Now => return Ok(Sent::Taken),
            Room::Never => return Ok(Sent::Gone),
            Room::Told => greenlet.pause(ticket, None)?,
        };
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
    /// The `write` callable. It refers back to this object; `Door::close` breaks the circle.
    write: AttachedCell<Option<Py<PyAny>>>,
    /// What the last `start_response` gave.
    last_head: AttachedCell<Option<Box<LastHead>>>,
    /// The record of the last response whose application may still ask for it.
    followed: AttachedCell<Option<Arc<Mutex<Record>>>>,
    /// How far the response had come when somebody took it out.
    seen: AttachedCell<Option<(Record, Client)>>,
}

impl StartResponse {
    pub(crate) fn new() -> Self {
        Self {
            phase: AttachedCell::new(Phase::Over),
            write: AttachedCell::new(None),
            last_head: AttachedCell::new(None),
            followed: AttachedCell::new(None),
            seen: AttachedCell::new(None),
        }
    }

    /// Begins a request.
    pub(crate) fn begin(&self, py: Python<'_>, response: Response) {
        drop(self.phase.replace(py, Phase::Held(response)));
        self.followed.replace(py, None);
        self.seen.replace(py, None);
    }

    /// Takes the response out; it must be put back.
    ///
    /// # Errors
    /// `RuntimeError` when the request is over or another thread works with the response.
    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<Response> {
        let fault = match self.phase.replace(py, Phase::Taken) {
            Phase::Held(response) => {
                // Before the head nobody waits with it.
                if response.exchange.head_sent() {
                    self.remember(py, &response);
                }
                return Ok(response);
            }
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

    /// The short way of [`StartResponse::send`], for the many small blocks of a response whose blocks come quickly. What is
    /// more than "taken" or "enough" is for [`Self::settle`].
    #[inline]
    pub(crate) fn gather(&self, py: Python<'_>, block: &[u8]) -> Option<Sent> {
        // SAFETY: gathering copies the block; it calls nothing of Python.
        unsafe {
            self.phase.peek(py, |phase| match phase {
                Phase::Held(response) if response.started => response.exchange.gather(block),
                _ => None,
            })
        }
    }

    /// After [`Self::gather`]: waits if need be.
    #[cold]
    pub(crate) fn settle(&self, py: Python<'_>, sent: Sent) -> PyResult<Sent> {
        let mut response = self.take(py)?;
        let settled = response.settle(py, self, sent);
        self.put(py, response);
        settled
    }

    /// Sends a block that is not empty; waits while the client's queue is full.
    pub(crate) fn send(&self, block: &Bound<'_, PyBytes>, position: Position) -> PyResult<Sent> {
        let py = block.py();
        let mut response = self.take_started(py)?;
        let sent = response.send(block, position);
        let settled = response.settle(py, self, sent);
        self.put(py, response);
        settled
    }

    /// The `Content-Length` that the application gave to `start_response`.
    pub(crate) fn declared_length(&self, py: Python<'_>) -> Option<u64> {
        let mut response = self.take(py).ok()?;
        let length = response.exchange.head().declared_length();
        self.put(py, response);
        length
    }

    /// True on the thread of the hub whose greenlets carry such requests.
    pub(crate) fn is_on_its_hub(&self, py: Python<'_>) -> bool {
        // SAFETY: a look at a number calls nothing of Python.
        unsafe { self.phase.peek(py, |phase| matches!(phase, Phase::Held(held) if held.exchange.is_on_its_hub())) }
    }

    /// Has the greenlet that takes this ticket told when its hub next looks for news. False: it will not be.
    pub(crate) fn come_back(&self, py: Python<'_>, ticket: u64) -> bool {
        // SAFETY: telling calls nothing of Python.
        unsafe {
            self.phase.peek(py, |phase| match phase {
                Phase::Held(response) => response.exchange.come_back(ticket),
                _ => false,
            })
        }
    }

    /// Puts the response back.
    pub(crate) fn put(&self, py: Python<'_>, response: Response) {
        if let Phase::Abandoned = self.phase.replace(py, Phase::Held(response)) {
            drop(self.phase.replace(py, Phase::Over));
        }
    }

    /// Ends the request: from now on nobody reaches the response. `None` when another thread has it at this moment.
    pub(crate) fn end(&self, py: Python<'_>) -> Option<Response> {
        self.seen.replace(py, None);
        match self.phase.replace(py, Phase::Over) {
            Phase::Held(response) => Some(response),
            Phase::Over => None,
            Phase::Taken | Phase::Abandoned => {
                self.phase.replace(py, Phase::Abandoned);
                None
            }
        }
    }

    /// For questions of other threads while the response is taken.
    fn remember(&self, py: Python<'_>, response: &Response) {
        self.seen.replace(py, Some((response.exchange.record(), response.exchange.client())));
    }

    /// Before the end: whoever asks for the record later gets it.
    pub(crate) fn follow(&self, py: Python<'_>) {
        // SAFETY: this calls nothing of Python.
        let followed = unsafe {
            self.phase.peek(py, |phase| match phase {
                Phase::Held(response) => Some(response.exchange.follow()),
                _ => None,
            })
        };
        self.followed.replace(py, followed);
    }

    /// The record of the response as far as it has come, or of the last one that is over; and whether its client has
    /// gone.
    pub(crate) fn record(&self, py: Python<'_>) -> Option<(Record, bool)> {
        // SAFETY: reading a record and a flag calls nothing of Python.
        let now = unsafe {
            self.phase.peek(py, |phase| match phase {
                Phase::Held(response) => Some((response.exchange.record(), response.exchange.client_gone())),
                _ => None,
            })
        };
        now.or_else(|| {
            // SAFETY: as above.
            unsafe { self.seen.peek(py, |seen| seen.as_ref().map(|(record, client)| (*record, client.is_gone()))) }
        })
        .or_else(|| {
            // SAFETY: as above.
            let followed = unsafe { self.followed.peek(py, |followed| followed.clone()) }?;
            let record = *followed.lock().unwrap_or_else(PoisonError::into_inner);
            Some((record, record.ending == Ending::ClientGone))
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
