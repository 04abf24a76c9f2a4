//! `penstock._penstock`: the Python door of Penstock, and the only crate that knows CPython.
//!
//! Reading the files in this order is reading a request: `server`, `pool`, `app`, `environ` (with `names` and
//! `target`), `input`, `start_response` (with `headers`), `response`, `blocks`, `file_wrapper`, `errors`. With
//! greenlets `hub` stands in the place of `pool`, and `pause` is how they wait.

mod app;
mod blocks;
mod breath;
mod calls;
mod cell;
mod environ;
mod error_stream;
mod errors;
mod file_wrapper;
mod headers;
mod hub;
mod input;
mod listeners;
mod memo;
mod memory;
mod names;
mod overdue;
mod pause;
mod payload;
mod pool;
mod response;
mod scoreboard;
mod server;
mod settings;
mod start_response;
mod target;
mod text;

use pyo3::exceptions::{PyBaseException, PyOSError};
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyString, PyTuple};

pyo3::create_exception!(
    penstock,
    ClientDisconnected,
    PyOSError,
    "The client has gone: nothing more can be read from it or written to it."
);

pyo3::create_exception!(
    penstock,
    RequestBodyError,
    PyOSError,
    "The request body is malformed, too large or too slow; `status` is the status of the answer to it."
);

pyo3::create_exception!(
    penstock,
    RequestTimeout,
    PyBaseException,
    "The request has taken longer than its deadline: its client was answered 504. Like SystemExit it is no Exception, so that \
     the request ends and is not tried again."
);

/// The Rust core of Penstock.
#[pymodule]
fn _penstock(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("SETTINGS", PyTuple::new(py, settings::SETTINGS)?)?;
    module.add("ClientDisconnected", py.get_type::<ClientDisconnected>())?;
    module.add("RequestTimeout", py.get_type::<RequestTimeout>())?;
    module.add("RequestBodyError", py.get_type::<RequestBodyError>())?;
    module.add_class::<server::Server>()?;
    module.add_class::<hub::Hub>()?;
    // post, serial, request, seconds, outcome
    let (number, text) = (py.get_type::<PyInt>(), py.get_type::<PyString>());
    let late = (&number, &number, &text, py.get_type::<PyFloat>(), &text);
    module.add("Overdue", py.get_type::<PyTuple>().get_item(late)?)?;
    module.add_class::<scoreboard::Scoreboard>()?;
    module.add_class::<file_wrapper::FileWrapper>()?;
    module.add_class::<input::Input>()?;
    module.add_class::<error_stream::ErrorStream>()?;
    // isinstance() says what these are; they cannot inherit, as the classes of `io` have a layout of their own.
    let io = py.import("io")?;
    io.getattr("BufferedIOBase")?.call_method1("register", (py.get_type::<input::Input>(),))?;
    io.getattr("TextIOBase")?.call_method1("register", (py.get_type::<error_stream::ErrorStream>(),))?;
    Ok(())
}
