//! How the application's code waits for its client and lets other requests run: the trait [`Waits`], and which
//! implementation applies to a thread.
//!
//! [`Blocking`] applies to every thread unless another implementation was set: the thread blocks, with the interpreter
//! released. `runtime/pausing.rs` applies to the thread whose greenlets run requests. The choice is per thread, not per
//! request, because the application may use what belongs to a request on another thread, such as one of gevent's pool.
//!
//! Nothing here is called for a small block: `wait_for_room` when a client's queue is full, `keeps_interpreter` for a
//! large block, `let_others_run` every [`SLICE`].

use std::cell::Cell;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tailrace_server::{Exchange, Sent};

use crate::call::shared_body::{OtherReader, PendingRead};
use crate::ffi::thread;

/// Called attached, with neither a lock nor a borrow held, but for the lock in a [`PendingRead`]: other
/// requests may run on the same thread before a call returns.
pub(crate) trait Waits {
    /// True if a large block of this response is sent with the interpreter held.
    fn keeps_interpreter(&self, exchange: &Exchange) -> bool;

    /// The client's queue is full: waits until it has room (`Sent::Taken`) or the client has disconnected
    /// (`Sent::Gone`).
    ///
    /// # Errors
    /// What was raised in the waiting code.
    fn wait_for_room(&self, py: Python<'_>, exchange: &mut Exchange) -> PyResult<Sent>;

    /// Reads from a body of which the client has yet to send some, and waits for it.
    ///
    /// # Errors
    /// The body cannot be read, or what was raised in the waiting code.
    fn read_body<'py>(&self, py: Python<'py>, reading: PendingRead<'_>) -> PyResult<Bound<'py, PyBytes>>;

    /// Another reader is in the middle of a read of the same body. `Ok`: the caller blocks until that is over.
    ///
    /// # Errors
    /// `RuntimeError`: the other reader might never go on if the caller blocked.
    fn check_other_reader(&self, other: OtherReader) -> PyResult<()>;

    /// Lets other requests go on. `resume` has a ticket given back when the thread next is woken,
    /// and says whether it will be; `None`: there is no request any more that could.
    ///
    /// # Errors
    /// What was raised in the waiting code.
    fn let_others_run(&self, py: Python<'_>, resume: Option<&dyn Fn(u64) -> bool>) -> PyResult<()>;
}

/// How long code that does not wait may run before it calls [`Waits::let_others_run`]. Twice `sys.getswitchinterval()`:
/// only a thread that has waited undisturbed for a whole interval is certain to get the interpreter when it is
/// released.
pub(crate) const SLICE: Duration = Duration::from_millis(10);

thread_local! {
    static HERE: Cell<&'static dyn Waits> = const { Cell::new(&Blocking) };
}

/// How code on the calling thread waits.
pub(crate) fn here() -> &'static dyn Waits {
    HERE.get()
}

/// Sets how code on the calling thread waits from now on.
pub(crate) fn set_here(waits: &'static dyn Waits) {
    HERE.set(waits);
}

/// Blocks until the client's queue has room, or the client has left.
pub(crate) fn block_for_room(py: Python<'_>, exchange: &mut Exchange) -> Sent {
    loop {
        match thread::release(py, || exchange.response_mut().wait()) {
            Sent::Full => {}
            sent => return sent,
        }
    }
}

/// The thread blocks, with the interpreter released.
struct Blocking;

impl Waits for Blocking {
    fn keeps_interpreter(&self, _: &Exchange) -> bool {
        false
    }

    fn wait_for_room(&self, py: Python<'_>, exchange: &mut Exchange) -> PyResult<Sent> {
        Ok(block_for_room(py, exchange))
    }

    fn read_body<'py>(&self, py: Python<'py>, reading: PendingRead<'_>) -> PyResult<Bound<'py, PyBytes>> {
        reading.blocking(py)
    }

    fn check_other_reader(&self, _: OtherReader) -> PyResult<()> {
        Ok(())
    }

    /// The interpreter itself yields to another thread only while it runs bytecode, and not in a generator after a
    /// `yield from`: an iterator written in C would keep all other threads waiting.
    fn let_others_run(&self, py: Python<'_>, _: Option<&dyn Fn(u64) -> bool>) -> PyResult<()> {
        thread::release(py, || ());
        Ok(())
    }
}
