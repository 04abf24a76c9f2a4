//! A request's body, read by one reader at a time.
//!
//! A reader that blocks holds the lock until its read is complete. A reader that reads in steps holds it during each
//! step but never during a pause, because other requests of its thread run then and may also read. Between two steps, a
//! mark shows that a read is incomplete.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyBytes;
use tailrace_os::clock;
use tailrace_os::process::Process;
use tailrace_server::RequestBody;

use crate::call::body::{Pause, ReadStep, UnreadBody, Until};
use crate::ffi::bytes;
use crate::ffi::thread;
use crate::python::forks::used_in_child;

pub(crate) struct SharedBody {
    source: Mutex<UnreadBody>,
    /// Notified when the mark is removed.
    idle: Condvar,
    /// The process that can read from the client: not a child that the application forks.
    process: Process,
}

/// A reader that is in the middle of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OtherReader {
    /// It blocks, and holds the lock.
    Blocked,
    /// It pauses between two steps.
    Paused,
}

impl SharedBody {
    pub(crate) fn new(body: RequestBody) -> Self {
        Self { source: Mutex::new(UnreadBody::new(body)), idle: Condvar::new(), process: Process::here() }
    }

    /// True when there is nothing to read: another request without a body can use this one.
    pub(crate) fn has_nothing(&self) -> bool {
        self.source.try_lock().is_ok_and(|source| source.has_nothing())
    }

    /// The body, once no other reader is in the middle of a read. `check` is asked about one that is, and lets the
    /// caller block until it is done, with the interpreter released.
    ///
    /// # Errors
    /// That of `check`; `RuntimeError` in a child that the application has forked.
    #[inline]
    pub(crate) fn lock(
        &self,
        py: Python<'_>,
        check: impl Fn(OtherReader) -> PyResult<()>,
    ) -> PyResult<MutexGuard<'_, UnreadBody>> {
        if let Ok(source) = self.source.try_lock()
            && !source.is_marked
            && (self.process.is_here() || !source.is_streamed())
        {
            return Ok(source);
        }
        self.lock_in_use(py, &check)
    }

    #[cold]
    fn lock_in_use(
        &self,
        py: Python<'_>,
        check: &dyn Fn(OtherReader) -> PyResult<()>,
    ) -> PyResult<MutexGuard<'_, UnreadBody>> {
        if !self.process.is_here() {
            // The client sends to the parent. A thread of the parent may have held the lock at the fork: it is never
            // released here.
            return Err(used_in_child("wsgi.input"));
        }
        loop {
            let source = match self.source.try_lock() {
                Ok(source) => source,
                Err(TryLockError::Poisoned(source)) => source.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    check(OtherReader::Blocked)?;
                    self.lock_whatever_the_mark(py)
                }
            };
            if !source.is_marked {
                return Ok(source);
            }
            drop(source);
            check(OtherReader::Paused)?;
            thread::release(py, || self.wait_until_idle());
        }
    }

    /// The body, also between two steps of a read.
    pub(crate) fn lock_whatever_the_mark(&self, py: Python<'_>) -> MutexGuard<'_, UnreadBody> {
        self.source.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the reader that pauses is done. Another reader may come first afterwards.
    fn wait_until_idle(&self) {
        let source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.idle.wait_while(source, |source| source.is_marked));
    }

    /// A read by whoever has the lock, of up to `limit` bytes.
    pub(crate) fn reading<'a>(
        &'a self,
        source: MutexGuard<'a, UnreadBody>,
        limit: usize,
        until: Until,
    ) -> PendingRead<'a> {
        PendingRead { body: self, source, limit, until }
    }
}

/// A read of a body that has not come whole.
pub(crate) struct PendingRead<'a> {
    body: &'a SharedBody,
    source: MutexGuard<'a, UnreadBody>,
    limit: usize,
    until: Until,
}

impl PendingRead<'_> {
    /// Reads at once, and blocks while the client has not sent enough, with the interpreter released.
    ///
    /// # Errors
    /// The body cannot be read, or there is no memory for it.
    pub(crate) fn blocking<'py>(mut self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let (source, limit) = (&mut *self.source, self.limit);
        let at_once = match self.until {
            Until::Line => return Self::gather(py, source, limit, Until::Line, Vec::new()),
            Until::Some => true,
            Until::Limit => false,
        };
        let bytes = thread::release(py, || source.collect(limit, at_once))?;
        bytes::copy_of(py, &bytes).inspect_err(|_| source.lose())
    }

    /// Reads in steps, which do not block. Between them `pause` is called without the lock, also when `slice` has
    /// passed since the last pause. Where no pause would end, it blocks as [`PendingRead::blocking`].
    ///
    /// # Errors
    /// As [`PendingRead::blocking`], and those of `pause`: then the next read begins with what this one has read.
    pub(crate) fn in_steps<'py>(
        mut self,
        py: Python<'py>,
        slice: Duration,
        pause: impl Fn(Pause) -> PyResult<()>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let Self { body, limit, until, .. } = self;
        let mut bytes = Vec::new();
        loop {
            let next = match self.source.step(limit, until, slice, &mut bytes) {
                Ok(ReadStep::Ready(count)) => return given(py, &mut self.source, bytes, count),
                Ok(ReadStep::Pause(next)) => next,
                Ok(ReadStep::Block) => return Self::gather(py, &mut self.source, limit, until, bytes),
                Err(fault) => {
                    drop(self);
                    return Err(fault.into());
                }
            };
            self.source.is_marked = true;
            drop(self);
            let begun = clock::now();
            let paused = pause(next);
            // Others hold the lock for a moment only, since they find the mark.
            self = body.reading(body.lock_whatever_the_mark(py), limit, until);
            self.source.is_marked = false;
            body.idle.notify_all();
            self.source.has_paused(next, clock::since(begun));
            if let Err(thrown) = paused {
                self.source.put_back(bytes);
                return Err(thrown);
            }
        }
    }

    /// Blocks until the read is complete that has gathered `bytes` so far.
    fn gather<'py>(
        py: Python<'py>,
        source: &mut UnreadBody,
        limit: usize,
        until: Until,
        bytes: Vec<u8>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (bytes, count) = thread::release(py, || source.wait_and_gather(limit, until, bytes))?;
        given(py, source, bytes, count)
    }
}

/// Returns what a read has gathered, followed by the next `count` bytes of the buffer.
fn given<'py>(py: Python<'py>, source: &mut UnreadBody, bytes: Vec<u8>, count: usize) -> PyResult<Bound<'py, PyBytes>> {
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
