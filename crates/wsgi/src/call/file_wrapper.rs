//! Files as responses: `wsgi.file_wrapper`, and a bare file object returned as the iterable.
//!
//! `file_source.rs` says where the bytes come from. A descriptor's bytes leave by `sendfile`; all others are read in
//! large blocks.
//!
//! Runs attached, on the thread that runs the request.

use std::cmp::Ordering;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::Arc;

use pyo3::PyTraverseError;
use pyo3::exceptions::{PyStopIteration, PyTypeError};
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tailrace_os::descriptor::duplicate;
use tailrace_os::file::{read_at, regular_file};
use tailrace_server::representation::{send_file, send_memory};
use tailrace_server::{Position, Sent};

use crate::call::fair_yield::FairYield;
use crate::call::file_source::BytesSource;
use crate::call::response::{ResponseState, as_block};
use crate::call::rest::IterableRest;
use crate::ffi::thread;
use crate::python::calls::call;
use crate::python::names::names;
use crate::python::type_name::type_name;

/// Number of bytes that are read at once from a file whose descriptor cannot be used.
const BLOCK: usize = 256 * 1024;
/// A file whose length is unreliable is read completely up to this length.
const SMALL: u64 = 64 * 1024;

/// `wsgi.file_wrapper`: wraps a file-like object so that the server can deliver the file by itself.
///
/// Iterating it (as middleware does) reads blocks of `block_size` bytes, or larger ones.
#[pyclass(frozen, name = "FileWrapper", module = "tailrace._tailrace")]
pub(crate) struct FileWrapper {
    #[pyo3(get)]
    filelike: Py<PyAny>,
    #[pyo3(get)]
    block_size: usize,
}

impl FileWrapper {
    /// What it wraps.
    pub(crate) fn filelike<'a, 'py>(&'a self, py: Python<'py>) -> &'a Bound<'py, PyAny> {
        self.filelike.bind(py)
    }
}

#[pymethods]
impl FileWrapper {
    #[new]
    #[pyo3(signature = (filelike, blksize=8192))]
    fn new(filelike: Bound<'_, PyAny>, blksize: usize) -> PyResult<Self> {
        let names = names(filelike.py());
        if !filelike.hasattr(&names.read)? {
            return Err(PyTypeError::new_err(format!(
                "wsgi.file_wrapper needs an object with a read() method, not {}",
                type_name(&filelike)
            )));
        }
        Ok(Self { filelike: filelike.unbind(), block_size: blksize })
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let filelike = self.filelike.bind(py);
        let block = as_block(&filelike.call_method1(&names(py).read, (self.block_size.max(BLOCK),))?)?;
        if block.as_bytes().is_empty() { Err(PyStopIteration::new_err(())) } else { Ok(block) }
    }

    /// Closes the file-like object, if it can be closed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match self.filelike.bind(py).getattr_opt(&names(py).close)? {
            Some(close) => close.call0().map(drop),
            None => Ok(()),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.filelike)
    }
}

/// What is left of a regular file behind its position: a descriptor of our own, offset and length.
struct Stretch {
    file: OwnedFd,
    offset: u64,
    length: u64,
    /// The file has no blocks on a disk, so its length may be wrong: files of sysfs give the length of a page, whatever
    /// they hold. Sparse files and some very small ones look the same. (A list of such file systems would never be
    /// complete.)
    is_doubtful: bool,
}

impl Stretch {
    /// The stretch of a file whose descriptor gives what reading the file gives. It begins at `tell()`, which takes
    /// into account what was read ahead, unlike the descriptor's position. `None`: to be read by `read()`, which also
    /// raises what is wrong with the file.
    fn of(file: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let names = names(file.py());
        // What was written and not flushed is part of the file, too.
        file.call_method0(&names.flush)?;
        let descriptor: RawFd = file.call_method0(&names.fileno)?.extract()?;
        let Ok(duplicate) = duplicate(descriptor) else { return Ok(None) };
        let Some(regular) = regular_file(duplicate.as_fd())? else { return Ok(None) };
        let offset: u64 = file.call_method0(&names.tell)?.extract()?;
        let length = regular.length.saturating_sub(offset);
        if length == 0 {
            // Files of /proc have this length, and can be read.
            return Ok(None);
        }
        Ok(Some(Self { file: duplicate, offset, length, is_doubtful: !regular.has_blocks }))
    }

    /// All of it. `None`: there is more than its stated length, or it cannot be read.
    fn read(&self) -> Option<Vec<u8>> {
        // One byte larger, to detect whether the file continues.
        let mut bytes = vec![0; usize::try_from(self.length).ok()?.checked_add(1)?];
        let mut filled = 0;
        loop {
            match read_at(self.file.as_fd(), &mut bytes[filled..], self.offset + filled as u64).ok()? {
                0 => break,
                count => filled += count,
            }
            match (filled as u64).cmp(&self.length) {
                Ordering::Less => {}
                Ordering::Equal => break,
                Ordering::Greater => return None,
            }
        }
        bytes.truncate(filled);
        Some(bytes)
    }
}

/// How the application returned a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// In `wsgi.file_wrapper`: the server may send it as it sends files, so also in parts.
    Wrapped,
    /// As its iterable.
    Bare,
}

/// Sends what is left of a file-like object.
///
/// Returns the rest of the application's iterable if the response was complete before its end.
pub(crate) fn deliver_file<'py>(
    py: Python<'py>,
    state: &ResponseState,
    source: &BytesSource<'py>,
    shape: Shape,
) -> PyResult<Option<IterableRest<'py>>> {
    match source {
        BytesSource::Descriptor(file) => deliver_descriptor(py, state, file, shape).map(|()| None),
        // All is in memory: one block, so that its length is known.
        BytesSource::Memory(file) => {
            let block = as_block(&file.call_method0(&names(py).read)?)?;
            if !block.as_bytes().is_empty() {
                state.send(&block, Position::Last)?;
            }
            Ok(None)
        }
        BytesSource::Calls(read) => {
            let is_complete = deliver_calls(py, state, read)?;
            Ok(is_complete.then(|| IterableRest::Calls(read.clone(), BLOCK)))
        }
    }
}

fn deliver_descriptor(py: Python<'_>, state: &ResponseState, file: &Bound<'_, PyAny>, shape: Shape) -> PyResult<()> {
    match Stretch::of(file)? {
        Some(stretch) if stretch.is_doubtful && stretch.length <= SMALL => {
            if let Some(bytes) = thread::release(py, || stretch.read()) {
                return deliver_bytes(py, state, bytes, shape);
            }
        }
        Some(Stretch { file, offset, length, .. }) => {
            let mut response = state.take_started(py)?;
            let exchange = &mut response.exchange;
            let sent = match shape {
                Shape::Wrapped => send_file(exchange, file, offset, length),
                Shape::Bare => exchange.response_mut().push_file(file, offset, length, Position::Last),
            };
            response.noted(sent);
            state.put(py, response);
            return Ok(());
        }
        None => {}
    }
    // read1() returns what a pipe or a socket has now; read() would wait for the whole block.
    let names = names(py);
    let read = match file.getattr_opt(&names.read1)? {
        Some(read1) => read1,
        None => file.getattr(&names.read)?,
    };
    // `read` is a method of `io`, so no application code is left to run when the response is complete.
    deliver_calls(py, state, &read).map(drop)
}

fn deliver_bytes(py: Python<'_>, state: &ResponseState, bytes: Vec<u8>, shape: Shape) -> PyResult<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let bytes = Arc::new(bytes);
    let mut response = state.take_started(py)?;
    let exchange = &mut response.exchange;
    let sent = match shape {
        Shape::Wrapped => send_memory(exchange, &bytes),
        Shape::Bare => exchange.response_mut().push(&[&bytes], Position::Last, &mut |_| Box::new(Arc::clone(&bytes))),
    };
    let sent = response.await_room(py, state, sent);
    state.put(py, response);
    sent.map(drop)
}

/// True when the response was complete before the end of what can be read.
fn deliver_calls(py: Python<'_>, state: &ResponseState, read: &Bound<'_, PyAny>) -> PyResult<bool> {
    let size = BLOCK.into_pyobject(py)?.into_any();
    let mut fair_yield = FairYield::new();
    loop {
        fair_yield.before_work(py, state)?;
        let block = as_block(&call(read, [&size])?)?;
        if block.as_bytes().is_empty() {
            return Ok(false);
        }
        match state.send(&block, Position::More)? {
            Sent::Taken | Sent::Full => {}
            Sent::BodyComplete => return Ok(true),
            Sent::Gone | Sent::NoMemory => return Ok(false),
        }
    }
}
