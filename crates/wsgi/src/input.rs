//! `wsgi.input`: the request's body as a binary stream with the methods of `io.BufferedIOBase`.
//!
//! The body is complete before the application is called, so a read never waits for the network, and the end of the
//! stream is the end of the body. A body in a file is read in large blocks with the interpreter released. The stream is
//! not seekable (nothing may rely on a body that can be read twice), and `close()` leaves it open: it belongs to the
//! server, and a `TextIOWrapper` around it closes it when it is collected.

use std::fs::File;
use std::io::{self, Read};

use memchr::memchr;
use penstock_server::exchange::RequestBody;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// Read from a file at once.
const FILE_BLOCK: usize = 256 * 1024;

/// The unread rest of a body.
struct Source {
    buffer: Vec<u8>,
    at: usize,
    file: Option<File>,
    /// Bytes of the file that are not in the buffer.
    unread: u64,
}

impl Source {
    fn new(body: RequestBody) -> Self {
        let (buffer, file, unread) = match body {
            RequestBody::Empty => (Vec::new(), None, 0),
            RequestBody::Memory(bytes) => (bytes, None, 0),
            RequestBody::File { file, length } => (Vec::new(), Some(file), length),
        };
        Self { buffer, at: 0, file, unread }
    }

    fn buffered(&self) -> &[u8] {
        self.buffer.get(self.at..).unwrap_or(&[])
    }

    fn remaining(&self) -> usize {
        self.buffered().len().saturating_add(usize::try_from(self.unread).unwrap_or(usize::MAX))
    }

    fn consume(&mut self, count: usize) {
        self.at += count;
        if self.at >= self.buffer.len() && self.file.is_none() {
            // Read to its end: the memory is free while the application works on its copy.
            self.buffer = Vec::new();
            self.at = 0;
        }
    }

    /// Reads the next block of the file into the empty buffer.
    fn refill(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let size = FILE_BLOCK.min(usize::try_from(self.unread).unwrap_or(FILE_BLOCK));
        self.buffer.clear();
        self.buffer.resize(size, 0);
        self.at = 0;
        if let Err(error) = file.read_exact(&mut self.buffer) {
            self.buffer.clear();
            return Err(error);
        }
        self.unread -= size as u64;
        Ok(())
    }

    /// Fills `target`, which is not longer than what remains.
    fn fill(&mut self, mut target: &mut [u8]) -> io::Result<()> {
        while !target.is_empty() {
            let buffered = self.buffered();
            if !buffered.is_empty() {
                let count = buffered.len().min(target.len());
                let (now, later) = target.split_at_mut(count);
                now.copy_from_slice(&buffered[..count]);
                self.consume(count);
                target = later;
            } else if target.len() >= FILE_BLOCK
                && let Some(file) = &mut self.file
            {
                file.read_exact(target)?;
                self.unread -= target.len() as u64;
                return Ok(());
            } else if self.unread > 0 {
                self.refill()?;
            } else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Appends the next line, or as much of it as `limit` allows.
    fn line(&mut self, limit: usize, line: &mut Vec<u8>) -> io::Result<()> {
        while line.len() < limit {
            if self.buffered().is_empty() {
                if self.unread == 0 {
                    break;
                }
                self.refill()?;
            }
            let buffered = self.buffered();
            let window = &buffered[..buffered.len().min(limit - line.len())];
            let end = memchr(b'\n', window);
            let count = end.map_or(window.len(), |at| at + 1);
            line.extend_from_slice(&window[..count]);
            self.consume(count);
            if end.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// How long the next line is, if all of it is in memory.
    fn line_in_memory(&self, limit: usize) -> Option<usize> {
        let buffered = self.buffered();
        let window = &buffered[..buffered.len().min(limit)];
        match memchr(b'\n', window) {
            Some(at) => Some(at + 1),
            None if self.unread == 0 || window.len() == limit => Some(window.len()),
            None => None,
        }
    }
}

/// The request's body, as a binary stream.
#[pyclass(name = "Input", module = "penstock._penstock")]
pub(crate) struct Input {
    source: Source,
}

impl Input {
    pub(crate) fn new(body: RequestBody) -> Self {
        Self { source: Source::new(body) }
    }

    /// There is nothing to read, so that another request without a body can have it.
    pub(crate) fn has_nothing(&self) -> bool {
        self.source.buffer.capacity() == 0 && self.source.file.is_none()
    }

    fn take<'py>(&mut self, py: Python<'py>, count: usize) -> PyResult<Bound<'py, PyBytes>> {
        let source = &mut self.source;
        let count = count.min(source.remaining());
        if source.buffered().len() >= count {
            let bytes = PyBytes::new(py, &source.buffered()[..count]);
            source.consume(count);
            return Ok(bytes);
        }
        PyBytes::new_with(py, count, |target| py.detach(|| source.fill(target)).map_err(PyErr::from))
    }

    fn line<'py>(&mut self, py: Python<'py>, limit: usize) -> PyResult<Bound<'py, PyBytes>> {
        let source = &mut self.source;
        if let Some(count) = source.line_in_memory(limit) {
            let line = PyBytes::new(py, &source.buffered()[..count]);
            source.consume(count);
            return Ok(line);
        }
        let line = py.detach(|| {
            let mut line = Vec::new();
            source.line(limit, &mut line).map(|()| line)
        })?;
        Ok(PyBytes::new(py, &line))
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
    fn read<'py>(&mut self, py: Python<'py>, size: Option<isize>) -> PyResult<Bound<'py, PyBytes>> {
        self.take(py, self::size(size))
    }

    /// As `read`.
    #[pyo3(signature = (size=None, /))]
    fn read1<'py>(&mut self, py: Python<'py>, size: Option<isize>) -> PyResult<Bound<'py, PyBytes>> {
        self.take(py, self::size(size))
    }

    /// Reads into a writable buffer; the number of bytes read.
    #[pyo3(signature = (buffer, /))]
    fn readinto(&mut self, py: Python<'_>, buffer: PyBuffer<u8>) -> PyResult<usize> {
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("readinto() needs a writable, contiguous buffer"));
        }
        let bytes = self.take(py, buffer.len_bytes())?;
        let data = bytes.as_bytes();
        // SAFETY: the buffer is writable, contiguous and at least as long as `data`, which is a new object of its own.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), buffer.buf_ptr().cast::<u8>(), data.len()) };
        Ok(data.len())
    }

    /// As `readinto`.
    #[pyo3(signature = (buffer, /))]
    fn readinto1(&mut self, py: Python<'_>, buffer: PyBuffer<u8>) -> PyResult<usize> {
        self.readinto(py, buffer)
    }

    /// Reads one line with its line end, but at most `size` bytes of it.
    #[pyo3(signature = (size=None, /))]
    fn readline<'py>(&mut self, py: Python<'py>, size: Option<isize>) -> PyResult<Bound<'py, PyBytes>> {
        self.line(py, self::size(size))
    }

    /// The lines that are left; no more lines once `hint` bytes have been read.
    #[pyo3(signature = (hint=None, /))]
    fn readlines<'py>(&mut self, py: Python<'py>, hint: Option<isize>) -> PyResult<Bound<'py, PyList>> {
        // For io.IOBase a hint of 0 means "all", too.
        let enough = hint.and_then(|hint| usize::try_from(hint).ok()).filter(|hint| *hint > 0);
        let lines = PyList::empty(py);
        let mut total = 0;
        while self.source.remaining() > 0 {
            let line = self.line(py, usize::MAX)?;
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

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        if self.source.remaining() == 0 {
            return Ok(None);
        }
        self.line(py, usize::MAX).map(Some)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::io::{Seek, Write};

    use super::*;

    fn in_file(bytes: &[u8]) -> Source {
        let path = std::env::temp_dir().join(format!("penstock-input-{}-{:p}", std::process::id(), bytes));
        let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        Source::new(RequestBody::File { file, length: bytes.len() as u64 })
    }

    fn lines_of(mut source: Source, limit: usize) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        while source.remaining() > 0 {
            let mut line = Vec::new();
            source.line(limit, &mut line).unwrap();
            lines.push(line);
        }
        lines
    }

    #[test]
    fn memory_and_file_give_the_same_lines() {
        let mut body = Vec::new();
        for number in 0..50_000u32 {
            body.extend_from_slice(format!("line {number}").as_bytes());
            body.extend(std::iter::repeat_n(b'.', number as usize % 40));
            body.push(b'\n');
        }
        body.extend_from_slice(b"no end");
        assert!(body.len() > 3 * FILE_BLOCK);
        let expected: Vec<Vec<u8>> = body.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        assert_eq!(lines_of(Source::new(RequestBody::Memory(body.clone())), usize::MAX), expected);
        assert_eq!(lines_of(in_file(&body), usize::MAX), expected);
        let short = lines_of(in_file(&body), 7);
        assert!(short.iter().all(|line| line.len() <= 7));
        assert_eq!(short.concat(), body);
    }

    #[test]
    fn reads_of_any_size_give_the_file_in_order() {
        let body: Vec<u8> = (0..FILE_BLOCK * 2 + 12_345).map(|at| (at * 31 % 251) as u8).collect();
        let mut source = in_file(&body);
        let mut got = Vec::new();
        for size in [1, 10, FILE_BLOCK + 3, 5, FILE_BLOCK].iter().cycle() {
            let size = (*size).min(source.remaining());
            if size == 0 {
                break;
            }
            let mut part = vec![0; size];
            source.fill(&mut part).unwrap();
            got.extend_from_slice(&part);
        }
        assert_eq!(got, body);
    }

    #[test]
    fn a_file_shorter_than_promised_is_an_error_not_an_end() {
        let mut source = in_file(b"abc");
        source.unread = 10;
        assert!(source.fill(&mut [0; 10]).is_err());
    }

    #[test]
    fn a_read_body_gives_its_memory_back() {
        let mut source = Source::new(RequestBody::Memory(b"abc".to_vec()));
        source.consume(3);
        assert_eq!(source.buffer.capacity(), 0);
        assert_eq!(source.remaining(), 0);
    }
}
