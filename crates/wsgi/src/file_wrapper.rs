//! Files as responses: `wsgi.file_wrapper`, and a bare file object returned as the iterable.
//!
//! A file leaves by descriptor only when reading the object and reading the descriptor are proven to be the same thing.
//! Many objects have a `fileno()` that is not what their `read()` gives: `gzip.GzipFile` answers the compressed file's,
//! others decrypt or count. The proof asked for is that the object's `read` is the bound method of exactly one of the
//! types that `open()` answers. Everything else is read in large blocks.

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use penstock_server::exchange::{Position, Sent};
use pyo3::PyTraverseError;
use pyo3::exceptions::{PyStopIteration, PyTypeError};
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyString, PyType};

use crate::breath::Breath;
use crate::calls::call;
use crate::names::{Names, names};
use crate::response::{StartResponse, as_block};
use crate::text::type_name;

/// Read at once from a file that has no descriptor we may use.
const BLOCK: usize = 256 * 1024;

/// `wsgi.file_wrapper`: wraps a file-like object so that the server can deliver the file by itself.
///
/// Iterating it (as middleware does) reads blocks of `block_size` bytes, or larger ones.
#[pyclass(frozen, name = "FileWrapper", module = "penstock._penstock")]
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

/// The types that `open()` answers, and others of `io` and `tempfile` that are told apart.
struct FileTypes {
    raw: Py<PyType>,
    readers: [Py<PyType>; 2],
    memory: Py<PyType>,
    text: Py<PyType>,
    base: Py<PyType>,
    temporary: Py<PyType>,
}

static FILE_TYPES: PyOnceLock<FileTypes> = PyOnceLock::new();

fn file_types(py: Python<'_>) -> PyResult<&'static FileTypes> {
    FILE_TYPES.get_or_try_init(py, || {
        let io = py.import("io")?;
        let of = |module: &Bound<'_, PyModule>, name: &str| -> PyResult<Py<PyType>> {
            Ok(module.getattr(name)?.cast_into::<PyType>()?.unbind())
        };
        Ok(FileTypes {
            raw: of(&io, "FileIO")?,
            readers: [of(&io, "BufferedReader")?, of(&io, "BufferedRandom")?],
            memory: of(&io, "BytesIO")?,
            text: of(&io, "TextIOBase")?,
            base: of(&io, "IOBase")?,
            temporary: of(&py.import("tempfile")?, "_TemporaryFileWrapper")?,
        })
    })
}

/// Finds the types before they are needed.
pub(crate) fn prepare(py: Python<'_>) -> PyResult<()> {
    file_types(py).map(drop)
}

impl FileTypes {
    /// `object` reads exactly what its descriptor gives.
    fn is_plain(&self, object: &Bound<'_, PyAny>, names: &Names) -> PyResult<bool> {
        let kind = object.get_type();
        if kind.is(&self.raw) {
            return Ok(true);
        }
        if !self.readers.iter().any(|reader| kind.is(reader)) {
            return Ok(false);
        }
        // A buffered reader may stand in front of anything.
        Ok(object.getattr(&names.raw)?.get_type().is(&self.raw))
    }
}

/// A bare iterable that is a file: `open()`'s objects, whatever else inherits from `io.IOBase`, and `tempfile`'s.
pub(crate) fn is_file(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let types = file_types(object.py())?;
    Ok(object.is_instance(types.base.bind(object.py()))? || object.get_type().is(&types.temporary))
}

/// The file whose reading is the same as reading `filelike`, if there is one.
fn plain_file<'py>(filelike: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = filelike.py();
    let names = names(py);
    let types = file_types(py)?;
    if types.is_plain(filelike, names)? {
        return Ok(Some(filelike.clone()));
    }
    let inner = if filelike.get_type().is(&types.temporary) {
        filelike.getattr_opt(&names.file)?
    } else {
        match filelike.getattr_opt(&names.read)? {
            Some(read) if read.getattr_opt(&names.name)?.is_some_and(|name| name.eq("read").unwrap_or(false)) => {
                read.getattr_opt(&names.self_)?
            }
            _ => None,
        }
    };
    match inner {
        Some(inner) if types.is_plain(&inner, names)? => Ok(Some(inner)),
        _ => Ok(None),
    }
}

/// A stretch of a regular file: a descriptor of our own, offset and length.
struct Stretch {
    file: OwnedFd,
    offset: u64,
    length: u64,
}

/// What is left of a plain file behind its position: `tell()`, which knows what was read ahead, not the descriptor's.
fn stretch(file: &Bound<'_, PyAny>) -> PyResult<Option<Stretch>> {
    let names = names(file.py());
    // What was written and not flushed is part of the file, too.
    file.call_method0(&names.flush)?;
    let descriptor: RawFd = file.call_method0(&names.fileno)?.extract()?;
    // SAFETY: the file object has just answered its open descriptor, and nothing closes it before it is duplicated.
    let duplicate = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned()?;
    let duplicate = File::from(duplicate);
    let metadata = duplicate.metadata()?;
    if !metadata.is_file() {
        return Ok(None);
    }
    let offset: u64 = file.call_method0(&names.tell)?.extract()?;
    let length = metadata.len().saturating_sub(offset);
    if length == 0 {
        // Files of /proc and the like say 0 and can be read all the same.
        return Ok(None);
    }
    Ok(Some(Stretch { file: duplicate.into(), offset, length }))
}

/// Sends what is left of a file-like object.
pub(crate) fn deliver_file(py: Python<'_>, state: &StartResponse, filelike: &Bound<'_, PyAny>) -> PyResult<()> {
    refuse_text(filelike)?;
    if let Some(file) = plain_file(filelike)?
        && let Some(Stretch { file, offset, length }) = stretch(&file)?
    {
        let mut response = state.take_started(py)?;
        let sent = response.exchange.send_file(file, offset, length, Position::Last);
        response.noted(sent);
        state.put(py, response);
        return Ok(());
    }
    if filelike.get_type().is(&file_types(py)?.memory) {
        // Everything is in memory already: one block, whose length can be told.
        let block = as_block(&filelike.call_method0(&names(py).read)?)?;
        if !block.as_bytes().is_empty() {
            state.send(&block, Position::Last)?;
        }
        return Ok(());
    }
    deliver_by_reading(py, state, filelike)
}

fn deliver_by_reading(py: Python<'_>, state: &StartResponse, filelike: &Bound<'_, PyAny>) -> PyResult<()> {
    let names = names(py);
    // read1() answers what a pipe or a socket has now; read() would wait for the whole block.
    let read = match filelike.getattr_opt(&names.read1)? {
        Some(read1) => read1,
        None => filelike.getattr(&names.read)?,
    };
    let size = BLOCK.into_pyobject(py)?.into_any();
    let mut breath = Breath::new(py, state);
    loop {
        breath.before_work(py, state)?;
        let block = as_block(&call(&read, [&size])?)?;
        if block.as_bytes().is_empty() {
            return Ok(());
        }
        match state.send(&block, Position::More)? {
            Sent::Taken | Sent::Full => {}
            Sent::Enough | Sent::Gone => return Ok(()),
        }
    }
}

fn refuse_text(filelike: &Bound<'_, PyAny>) -> PyResult<()> {
    let types = file_types(filelike.py())?;
    let is_text = filelike.is_instance(types.text.bind(filelike.py()))?
        || (filelike.get_type().is(&types.temporary)
            && filelike.getattr("file")?.is_instance(types.text.bind(filelike.py()))?);
    if !is_text {
        return Ok(());
    }
    let name = filelike.getattr("name").map_or_else(
        |_| type_name(filelike),
        |name| name.cast::<PyString>().map_or_else(|_| type_name(filelike), |name| name.to_string_lossy().into_owned()),
    );
    Err(PyTypeError::new_err(format!(
        "the response is a file in text mode ({name}); open it in binary mode, open(path, \"rb\")"
    )))
}
