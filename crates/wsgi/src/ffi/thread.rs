//! Threads as CPython knows them, exceptions that are raised in one from another, and the exception that is set.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;
use tailrace_os::{clock, usage};

/// The calling thread, as CPython numbers it. Not `threading.get_ident`, which gevent replaces.
#[inline]
pub(crate) fn ident() -> u64 {
    // SAFETY: may be called by any thread.
    unsafe { ffi::PyThread_get_thread_ident() }
}

/// True when the calling thread is attached to the interpreter. May be asked by any thread.
pub(crate) fn is_attached() -> bool {
    // SAFETY: may be called by any thread.
    unsafe { ffi::PyGILState_Check() != 0 }
}

/// Calls `work` without the interpreter. The time until it is had again counts as used by the request that runs on the
/// calling thread.
#[inline]
pub(crate) fn release<R: Send>(py: Python<'_>, work: impl Send + FnOnce() -> R) -> R {
    let (result, done) = py.detach(|| (work(), clock::now()));
    usage::add_interpreter(clock::since(done));
    result
}

/// At least the size of what CPython allocates when a thread attaches that CPython did not start.
const STATE: usize = 8 * 1024;

/// True when a thread that CPython did not start can attach: without memory for its state, CPython ends the process.
/// Any thread may call this.
pub(crate) fn has_memory_to_attach() -> bool {
    // SAFETY: any thread may call these functions; the block is freed at once, and freeing null does nothing.
    unsafe {
        let block = ffi::PyMem_RawMalloc(STATE);
        ffi::PyMem_RawFree(block);
        !block.is_null()
    }
}

/// Raises an exception in another thread, as soon as that runs Python code.
pub(crate) fn raise_in(thread: u64, exception: &Bound<'_, PyType>) {
    set_exception(exception.py(), thread, exception.as_ptr());
}

/// Cancels an exception of [`raise_in`] that has not been raised in the thread yet.
pub(crate) fn take_back(py: Python<'_>, thread: u64) {
    set_exception(py, thread, std::ptr::null_mut());
}

fn set_exception(_attached: Python<'_>, thread: u64, exception: *mut ffi::PyObject) {
    // The type of the parameter was signed once; the bits are what counts.
    #[allow(clippy::cast_possible_wrap)]
    let thread = thread as std::os::raw::c_long;
    // SAFETY: attached; takes a reference of its own to the exception, a live object; null takes back.
    unsafe { ffi::PyThreadState_SetAsyncExc(thread, exception) };
}

/// Has the main thread run the handler of SIGINT, as if the signal had come again.
pub(crate) fn interrupt_main() {
    // SAFETY: sets flags and nothing else.
    unsafe { ffi::PyErr_SetInterrupt() };
}

/// Clears the exception that is set in the calling thread. `PyErr::take` would go on with a panic that it finds there.
pub(crate) fn clear_exception(_attached: Python<'_>) {
    // SAFETY: attached.
    unsafe { ffi::PyErr_Clear() };
}
