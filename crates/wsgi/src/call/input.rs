//! `wsgi.input`: the request's body as a binary stream with the methods of `io.BufferedIOBase`.
//!
//! By default the body is complete before the application is called, so a read does not wait for the network; a body in
//! a file is read in large blocks with the interpreter released. With `--stream-body` it is read as it comes: a thread
//! waits for the client with the interpreter released, a greenlet lets the others of its thread run meanwhile. The end
//! of the stream is the end of the body, and a body that breaks off raises. The stream is not seekable (nothing may
//! rely on a body that can be read twice), and `close()` leaves it open: it belongs to the server, and a
//! `TextIOWrapper` around it closes it when it is collected.
//!
//! One thread or greenlet reads at a time. A thread holds the lock for the whole of a read. A greenlet holds it for one
//! step, never while others of its thread run; between steps the mark says that it reads, and it keeps what it has
//! gathered.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyList};
use tailrace_server::process::Process;
use tailrace_server::{RequestBody, clock};

use crate::call::body::{Source, Step, Until};
use crate::ffi::bytes;
use crate::python::forks::used_in_child;
use crate::python::waiting::{Greenlet, Waiting};

/// The request's body, as a binary stream.
#[pyclass(frozen, name = "Input", module = "tailrace._tailrace")]
pub(crate) struct Input {
    source: Mutex<Source>,
    /// Notified when the mark is removed.
    idle: Condvar,
    /// The process that can read from the client: not a child that the application forks.
    process: Process,
}

impl Input {
    pub(crate) fn new(body: RequestBody) -> Self {
        Self { source: Mutex::new(Source::new(body)), idle: Condvar::new(), process: Process::here() }
    }

    /// True when there is nothing to read: another request without a body can use this stream.
    pub(crate) fn has_nothing(&self) -> bool {
        self.source.try_lock().is_ok_and(|source| source.has_nothing())
    }

    /// The body, for one reader at a time. Another thread waits, with the interpreter released; another greenlet gets
    /// an error, since the reader may be one of the same thread, which would never go on.
    #[inline]
    fn source(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Source>> {
        if let Ok(source) = self.source.try_lock()
            && !source.is_marked
            && (self.process.is_here() || !source.is_streamed())
        {
            return Ok(source);
        }
        self.source_in_use(py)
    }

    #[cold]
    fn source_in_use(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Source>> {
        if !self.process.is_here() {
            // The client sends to the parent. A thread of the parent may have held the lock at the fork: it is never
            // released here.
            return Err(used_in_child("wsgi.input"));
        }
        loop {
            let source = match self.source.try_lock() {
                Ok(source) => source,
                Err(TryLockError::Poisoned(source)) => source.into_inner(),
                Err(TryLockError::WouldBlock) if is_greenlet(py) => {
                    return Err(PyRuntimeError::new_err("a thread and a greenlet read wsgi.input at the same time"));
                }
                Err(TryLockError::WouldBlock) => self.lock(py),
            };
            if !source.is_marked {
                return Ok(source);
            }
            drop(source);
            if is_greenlet(py) {
                return Err(PyRuntimeError::new_err("two greenlets read wsgi.input at the same time"));
            }
            py.detach(|| self.wait_until_idle());
        }
    }

    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, Source> {
        self.source.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the greenlet that reads is done. Another reader may come first afterwards.
    fn wait_until_idle(&self) {
        let source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.idle.wait_while(source, |source| source.is_marked));
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
        if known.is_some() {
            return PyBytes::new_with(py, count, |target| py.detach(|| source.fill(target)).map_err(PyErr::from));
        }
        if let Waiting::Greenlet(greenlet) = Waiting::here(py) {
            let until = if at_once { Until::Some } else { Until::Limit };
            return self.take_in_steps(guard, py, &greenlet, count, until);
        }
        let bytes = py.detach(|| source.collect(count, at_once))?;
        bytes::copy_of(py, &bytes).inspect_err(|_| source.lose())
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
        if source.remaining().is_none()
            && let Waiting::Greenlet(greenlet) = Waiting::here(py)
        {
            return self.take_in_steps(guard, py, &greenlet, limit, Until::Line);
        }
        let (line, count) = py.detach(|| source.wait_and_gather(limit, Until::Line, Vec::new()))?;
        given(py, source, line, count)
    }

    /// A read in a greenlet, of a body that has not come whole.
    fn take_in_steps<'a, 'py>(
        &'a self,
        mut source: MutexGuard<'a, Source>,
        py: Python<'py>,
        greenlet: &Greenlet<'py>,
        limit: usize,
        until: Until,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut bytes = Vec::new();
        loop {
            let step = source.step(limit, until, &mut bytes);
            let pause = match step {
                Ok(Step::Ready(count)) => return given(py, &mut source, bytes, count),
                Ok(Step::Pause(pause)) => pause,
                Ok(Step::Block) => {
                    let source = &mut *source;
                    let (bytes, count) = py.detach(|| source.wait_and_gather(limit, until, bytes))?;
                    return given(py, source, bytes, count);
                }
                Err(fault) => {
                    drop(source);
                    return Err(fault.into());
                }
            };
            source.is_marked = true;
            drop(source);
            let begun = clock::now();
            let paused = greenlet.pause(pause.ticket, pause.limit.map(|limit| limit.as_secs_f64()));
            // Others hold the lock for a moment only, since they find the mark.
            source = self.lock(py);
            source.is_marked = false;
            self.idle.notify_all();
            source.has_paused(pause, clock::since(begun));
            if let Err(thrown) = paused {
                source.put_back(bytes);
                return Err(thrown);
            }
        }
    }

    /// Takes lines back that cannot be returned, unless what has stopped them stops every further read.
    fn put_back(&self, py: Python<'_>, lines: &Bound<'_, PyList>) {
        let mut source = self.lock(py);
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

fn is_greenlet(py: Python<'_>) -> bool {
    matches!(Waiting::here(py), Waiting::Greenlet(_))
}

/// Returns what a read has gathered, followed by the next `count` bytes of the buffer.
fn given<'py>(py: Python<'py>, source: &mut Source, bytes: Vec<u8>, count: usize) -> PyResult<Bound<'py, PyBytes>> {
    let buffered = &source.buffered()[..count];
    let given = if bytes.is_empty() {
        bytes::copy_of(py, buffered)
    } else {
        PyBytes::new_with(py, bytes.len() + count, |target| {
            let (first, last) = target.split_at_mut(bytes.len());
            first.copy_from_slice(&bytes);
            last.copy_from_slice(buffered);
            Ok(())
        })
    };
    match given {
        Ok(given) => {
            source.consume(count);
            Ok(given)
        }
        Err(error) => {
            if !bytes.is_empty() {
                source.lose();
            }
            Err(error)
        }
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

    fn tell(&self) -> PyResult<u64> {
        Err(unsupported("tell"))
    }

    #[pyo3(signature = (_offset, _whence=0, /))]
    fn seek(&self, _offset: i64, _whence: i32) -> PyResult<u64> {
        Err(unsupported("seek"))
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
