//! `tailrace._tailrace`: the server as a Python module. The only crate that knows CPython.
//!
//! Four folders, each of which uses only those before it:
//!
//! - `ffi`: safe functions around calls of CPython's C API, and the only `unsafe` of the crate.
//! - `python`: what all of the crate needs of the interpreter: names, exceptions, the log, calls that survive a fork,
//!   memory that is given back.
//! - `call`: one request, from `environ` to `close()`. It does not know where it runs; what depends on that are two
//!   traits, `exception_policy` and `waiting`.
//! - `runtime`: where requests run (`threads`, `greenlets`, `inline`), what the server calls (`handler`), and the
//!   classes by which Python starts and stops it all.
//!
//! Reading these files in order is reading a request: `runtime/server`, `threads`, `handler`, `call/application`,
//! `environ` (with `python/names`, `string_cache` and `target`), `input`, `start_response` (with `headers`),
//! `response`, `blocks`, `file_source`, `file_wrapper`. With greenlets, `runtime/greenlet_runner` takes the place of
//! `threads`, and `runtime/pausing` is how they wait.

#[allow(unsafe_code)]
mod ffi {
    pub(crate) mod attached_cell;
    pub(crate) mod bound_function;
    pub(crate) mod bytes;
    pub(crate) mod call;
    pub(crate) mod context;
    pub(crate) mod dict;
    pub(crate) mod latin1;
    pub(crate) mod references;
    pub(crate) mod sequences;
    pub(crate) mod thread;
    pub(crate) mod types;
}

mod python {
    pub(crate) mod calls;
    pub(crate) mod collections;
    pub(crate) mod exceptions;
    pub(crate) mod forks;
    pub(crate) mod late_thread;
    pub(crate) mod log;
    pub(crate) mod memory;
    pub(crate) mod names;
    pub(crate) mod stack;
    pub(crate) mod ticket;
    pub(crate) mod type_name;
}

mod call {
    pub(crate) mod application;
    pub(crate) mod blocks;
    pub(crate) mod body;
    pub(crate) mod environ;
    pub(crate) mod error_page;
    pub(crate) mod error_stream;
    pub(crate) mod exception_policy;
    pub(crate) mod fair_yield;
    pub(crate) mod file_source;
    pub(crate) mod file_wrapper;
    pub(crate) mod headers;
    pub(crate) mod input;
    pub(crate) mod kept_block;
    pub(crate) mod logged_variables;
    pub(crate) mod response;
    pub(crate) mod rest;
    pub(crate) mod shared_body;
    pub(crate) mod start_response;
    pub(crate) mod string_cache;
    pub(crate) mod subscriptions;
    pub(crate) mod surplus;
    pub(crate) mod target;
    pub(crate) mod thread_cache;
    pub(crate) mod unserved_static;
    pub(crate) mod waiting;
    pub(crate) mod web_socket;
}

mod runtime {
    pub(crate) mod certificates;
    pub(crate) mod deadlines;
    pub(crate) mod deliveries;
    pub(crate) mod disconnects;
    mod ended;
    pub(crate) mod executor;
    pub(crate) mod greenlet_runner;
    pub(crate) mod greenlets;
    pub(crate) mod handler;
    pub(crate) mod holder;
    pub(crate) mod inline;
    pub(crate) mod interpreter_probe;
    pub(crate) mod interruption;
    pub(crate) mod listeners;
    pub(crate) mod log_stream;
    pub(crate) mod pausing;
    pub(crate) mod scoreboard;
    pub(crate) mod server;
    pub(crate) mod settings;
    pub(crate) mod shared_numbers;
    pub(crate) mod slow;
    pub(crate) mod static_files;
    pub(crate) mod threads;
    pub(crate) mod traces;
}

use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyString, PyTuple};

use call::{error_stream, file_wrapper, input};
use python::exceptions::{ClientDisconnected, RequestBodyError, RequestTimeout, client_disconnected_error};
use runtime::{
    certificates, deliveries, greenlet_runner, holder, listeners, log_stream, scoreboard, server, settings,
    shared_numbers, static_files, traces,
};

/// The calling process is killed when its parent ends; `False`: no longer. Raises OSError.
#[pyfunction]
#[pyo3(signature = (ends, /))]
fn end_with_parent(ends: bool) -> PyResult<()> {
    Ok(tailrace_os::process::end_with_parent(ends)?)
}

/// Permits the process with this number and its descendants to read the memory of the calling process, where Yama would
/// refuse it. Raises OSError, OverflowError.
#[pyfunction]
#[pyo3(signature = (by, /))]
fn permit_tracing(by: u32) -> PyResult<()> {
    Ok(tailrace_os::process::permit_tracing(by)?)
}

/// The Rust core of Tailrace.
#[pymodule]
fn _tailrace(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("MAX_OPEN_FILES", tailrace_files::MAX_OPEN)?;
    module.add("ClientDisconnected", py.get_type::<ClientDisconnected>())?;
    module.add("ClientDisconnectedError", client_disconnected_error(py)?)?;
    module.add("RequestTimeout", py.get_type::<RequestTimeout>())?;
    module.add("RequestBodyError", py.get_type::<RequestBodyError>())?;
    module.add("PanicException", py.get_type::<PanicException>())?;
    module.add_function(wrap_pyfunction!(settings::check_access_log_format, module)?)?;
    module.add_function(wrap_pyfunction!(settings::log_destination_kind, module)?)?;
    module.add_function(wrap_pyfunction!(settings::check_origin, module)?)?;
    module.add_function(wrap_pyfunction!(settings::check_trusted_proxy, module)?)?;
    module.add_function(wrap_pyfunction!(settings::check_request_id, module)?)?;
    module.add_function(wrap_pyfunction!(static_files::static_codings, module)?)?;
    module.add_function(wrap_pyfunction!(static_files::static_headers, module)?)?;
    module.add_function(wrap_pyfunction!(static_files::static_refusal, module)?)?;
    module.add_class::<log_stream::PythonLogStream>()?;
    module.add_class::<certificates::PythonCertificates>()?;
    module.add_function(wrap_pyfunction!(certificates::self_signed, module)?)?;
    module.add_class::<listeners::ListeningSocket>()?;
    module.add_class::<server::PythonServer>()?;
    module.add_class::<holder::PythonHolder>()?;
    module.add_class::<greenlet_runner::GreenletRunner>()?;
    // Runner slot, serial, request, seconds, outcome.
    let (number, text) = (py.get_type::<PyInt>(), py.get_type::<PyString>());
    let late = (&number, &number, &text, py.get_type::<PyFloat>(), &text);
    module.add("Overdue", py.get_type::<PyTuple>().get_item(late)?)?;
    module.add("METRICS", scoreboard::metrics(py)?)?;
    module.add("FIELDS", scoreboard::fields(py)?)?;
    module.add("ATOMS", scoreboard::atoms(py)?)?;
    module.add("PHASES", scoreboard::phases(py)?)?;
    module.add("SIZES", scoreboard::sizes(py)?)?;
    module.add_class::<scoreboard::PythonScoreboard>()?;
    module.add_class::<shared_numbers::PythonSharedNumbers>()?;
    module.add_class::<shared_numbers::PythonSharedNumber>()?;
    module.add_class::<traces::PythonTraces>()?;
    module.add_class::<traces::PythonTraceBatch>()?;
    module.add_function(wrap_pyfunction!(end_with_parent, module)?)?;
    module.add_function(wrap_pyfunction!(python::collections::note_collection, module)?)?;
    module.add_function(wrap_pyfunction!(greenlet_runner::note_switch, module)?)?;
    module.add_function(wrap_pyfunction!(deliveries::follow_deliveries, module)?)?;
    module.add_function(wrap_pyfunction!(permit_tracing, module)?)?;
    module.add_class::<file_wrapper::FileWrapper>()?;
    module.add_class::<input::Input>()?;
    module.add_class::<error_stream::ErrorStream>()?;
    // isinstance() says what these are; they cannot inherit, as the classes of `io` have a layout of their own.
    let io = py.import("io")?;
    io.getattr("BufferedIOBase")?.call_method1("register", (py.get_type::<input::Input>(),))?;
    io.getattr("TextIOBase")?.call_method1("register", (py.get_type::<error_stream::ErrorStream>(),))?;
    Ok(())
}
