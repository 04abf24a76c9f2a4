//! `wsgi.input`: the request's body as a binary stream with the methods of `io.BufferedIOBase`.
//!
//! By default the body is complete before the application is called, so a read does not wait for the network; a body in
//! a file is read in large blocks with the interpreter released. With `--stream-body` it is read as it comes; how a
//! read waits for the client, and for another reader, is the matter of `waiting.rs`. The end of the stream is the end
//! of the body, and a body that breaks off raises. `seekable()` is false: nothing may rely on a body that can be read
//! twice, since what was read is freed. Yet `seek` works once the body is there, back to the first `tell` or `seek`,
//! because Zope uses both. `close()` leaves the stream open: it belongs to the server, and a `TextIOWrapper`
//! around it closes it when it is collected.

use std::sync::MutexGuard;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use tailrace_server::RequestBody;

use crate::call::body::{UnreadBody, Until};
use crate::call::shared_body::SharedBody;
use crate::call::waiting;
use crate::ffi::bytes;
use crate::ffi::thread;

/// Number of bytes that are copied without releasing the interpreter.
const SHORT: usize = 128 * 1024;

/// The request's body, as a binary stream.
#[pyclass(frozen, name = "Input", module = "tailrace._tailrace")]
pub(crate) struct Input {
    body: SharedBody,
}

impl Input {
    pub(crate) fn new(body: RequestBody) -> Self {
        Self { body: SharedBody::new(body) }
    }

    /// True when there is nothing to read: another request without a body can use this stream.
    pub(crate) fn has_nothing(&self) -> bool {
        self.body.has_nothing()
    }

    #[inline]
    fn source(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, UnreadBody>> {
        self.body.lock(py, |other| waiting::here().check_other_reader(other))
    }

    /// Reads `count` bytes, fewer at the end. `at_once`: also fewer where more would mean to wait.
    fn take<'py>(&self, py: Python<'py>, count: usize, at_once: bool) -> PyResult<Bound<'py, PyBytes>> {
        let mut guard = self.source(py)?;
        let source = &mut *guard;
        source.check()?;
        let known = source.remaining().map(|remaining| count.min(remaining));
        let in_memory = source.buffered().len();
        let count = match known {
            None if at_once && in_memory > 0 => count.min(in_memory),
            _ => known.unwrap_or(count),
        };
        if in_memory >= count {
            let bytes = bytes::copy_of(py, &source.buffered()[..count])?;
            source.consume(count);
            return Ok(bytes);
        }
        if source.is_in_memory() {
            return bytes::filled_by(py, count, |target| {
                let mut fill = || source.copy_to(target);
                // A short copy costs less than reacquiring the interpreter.
                if count <= SHORT { fill() } else { thread::release(py, fill) }
            });
        }
        if known.is_some() {
            return PyBytes::new_with(py, count, |target| {
                thread::release(py, || source.fill(target)).map_err(PyErr::from)
            });
        }
        let until = if at_once { Until::Some } else { Until::Limit };
        waiting::here().read_body(py, self.body.reading(guard, count, until))
    }

    fn line<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Bound<'py, PyBytes>> {
        let mut guard = self.source(py)?;
        let source = &mut *guard;
        source.check()?;
        if let Some(count) = source.line_in_memory(limit) {
            let line = bytes::copy_of(py, &source.buffered()[..count])?;
            source.consume(count);
            return Ok(line);
        }
        if source.remaining().is_some() {
            return self.body.reading(guard, limit, Until::Line).blocking(py);
        }
        waiting::here().read_body(py, self.body.reading(guard, limit, Until::Line))
    }

    /// Puts lines back that were read and cannot be returned, unless every further read fails anyway.
    fn put_back(&self, py: Python<'_>, lines: &Bound<'_, PyList>) {
        let mut source = self.body.lock_whatever_the_mark(py);
        if !source.may_go_on() {
            return;
        }
        let mut bytes = Vec::new();
        for line in lines.iter() {
            let Ok(line) = line.cast::<PyBytes>() else { continue };
            if bytes.try_reserve(line.as_bytes().len()).is_err() {
                return source.lose();
            }
            bytes.extend_from_slice(line.as_bytes());
        }
        source.put_back(bytes);
    }

    fn take_into(&self, py: Python<'_>, buffer: &PyBuffer<u8>, at_once: bool) -> PyResult<usize> {
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("readinto() needs a writable, contiguous buffer"));
        }
        let bytes = self.take(py, buffer.len_bytes(), at_once)?;
        bytes::write_to(buffer, &bytes)?;
        Ok(bytes.as_bytes().len())
    }
}

/// A size argument: `None` and negative numbers mean "all".
fn size(argument: Option<isize>) -> usize {
    argument.and_then(|size| usize::try_from(size).ok()).unwrap_or(usize::MAX)
}

fn unsupported(what: &str) -> PyErr {
    Python::attach(|py| match py.import("io").and_then(|io| io.getattr("UnsupportedOperation")?.call1((what,))) {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    })
}

#[pymethods]
impl Input {
    /// Reads up to `size` bytes; all that is left if it is negative or None.
    #[pyo3(signature = (size=None, /))]
    fn read<'py>(&self, py: Python<'py>, size: Option<isize>) -> PyResult<Bound<'py, PyBytes>> {
        self.take(py, self::size(size), false)
    }

    /// Reads up to `size` bytes, fewer where more would mean to wait for the client.
    #[pyo3(signature = (size=None, /))]
    fn read1<'py>(&self, py: Python<'py>, size: Option<isize>) -> PyResult<Bound<'py, PyBytes>> {
        self.take(py, self::size(size), true)
    }

    /// Reads into a writable buffer; the number of bytes read.
    #[pyo3(signature = (buffer, /))]
    fn readinto(&self, py: Python<'_>, buffer: PyBuffer<u8>) -> PyResult<usize> {
        self.take_into(py, &buffer, false)
    }

    /// As `readinto`, fewer where more would mean to wait for the client.
    #[pyo3(signature = (buffer, /))]
    fn readinto1(&self, py: Python<'_>, buffer: PyBuffer<u8>) -> PyResult<usize> {
        self.take_into(py, &buffer, true)
    }

    /// Reads one line with its line end, but at most `size` bytes of it.
    #[pyo3(signature = (size=None, /))]
    fn readline<'py>(&self, py: Python<'py>, size: Option<isize>) -> PyResult<Bound<'py, PyBytes>> {
        self.line(py, self::size(size))
    }

    /// The lines that are left; no more lines once `hint` bytes have been read.
    #[pyo3(signature = (hint=None, /))]
    fn readlines<'py>(&self, py: Python<'py>, hint: Option<isize>) -> PyResult<Bound<'py, PyList>> {
        // For io.IOBase a hint of 0 means "all", too.
        let enough = hint.and_then(|hint| usize::try_from(hint).ok()).filter(|hint| *hint > 0);
        let lines = PyList::empty(py);
        let mut total = 0;
        loop {
            let line = match self.line(py, usize::MAX) {
                Ok(line) => line,
                Err(error) => {
                    self.put_back(py, &lines);
                    return Err(error);
                }
            };
            if line.as_bytes().is_empty() {
                break;
            }
            total += line.as_bytes().len();
            lines.append(line)?;
            if enough.is_some_and(|enough| total >= enough) {
                break;
            }
        }
        Ok(lines)
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let line = self.line(py, usize::MAX)?;
        Ok(Some(line).filter(|line| !line.as_bytes().is_empty()))
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, pyo3::types::PyTuple>) {}

    #[getter]
    fn closed(&self) -> bool {
        false
    }

    /// Leaves the stream open; it belongs to the server.
    fn close(&self) {}

    fn flush(&self) {}

    fn readable(&self) -> bool {
        true
    }

    fn writable(&self) -> bool {
        false
    }

    fn seekable(&self) -> bool {
        false
    }

    fn isatty(&self) -> bool {
        false
    }

    fn fileno(&self) -> PyResult<i32> {
        Err(unsupported("fileno"))
    }

    /// How many bytes have been read: a position to which `seek` can return. Raises UnsupportedOperation while the client
    /// has yet to send some.
    fn tell(&self, py: Python<'_>) -> PyResult<usize> {
        let mut source = self.source(py)?;
        source.keep()?;
        source.position().ok_or_else(|| unsupported("tell"))
    }

    /// Goes on at another position, as `io.IOBase.seek`, at most at the end. Raises UnsupportedOperation while the client
    /// has yet to send some, and for bytes that were read before the first `tell` or `seek`.
    #[pyo3(signature = (offset, whence=0, /))]
    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<usize> {
        let mut source = self.source(py)?;
        let (Some(total), Some(now)) = (source.total(), source.position()) else { return Err(unsupported("seek")) };
        let relative = |from: usize| (from as i64).saturating_add(offset).max(0);
        let position = match whence {
            0 => offset,
            1 => relative(now),
            2 => relative(total),
            _ => return Err(PyValueError::new_err("seek() takes a whence of 0, 1 or 2")),
        };
        let position = usize::try_from(position).map_err(|_| PyValueError::new_err("seek() to before the body"))?;
        if !source.seek(position)? {
            return Err(unsupported("seek to what was read before the first tell or seek"));
        }
        Ok(source.position().unwrap_or(position))
    }

    #[pyo3(signature = (_size=None, /))]
    fn truncate(&self, _size: Option<i64>) -> PyResult<u64> {
        Err(unsupported("truncate"))
    }

    #[pyo3(signature = (_data, /))]
    fn write(&self, _data: &Bound<'_, PyAny>) -> PyResult<usize> {
        Err(unsupported("write"))
    }
}
