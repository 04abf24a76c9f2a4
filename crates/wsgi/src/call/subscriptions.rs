//! What is to be called when the client of a running request leaves (`environ["tailrace.on_disconnect"]`).
//!
//! A subscription is an object of `tailrace/worker/subscription.py`, which calls its callback at most once. The lock is
//! never held while Python code runs.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tailrace_os::process::Process;
use tailrace_server::Client;

use crate::python::forks::end_child;

/// The slot of the runner and the number of the request.
pub(crate) type RequestKey = (usize, u64);

/// Those of all running requests of a server.
#[derive(Default)]
pub(crate) struct Subscriptions(Mutex<HashMap<RequestKey, Vec<Py<PyAny>>>>);

/// Lets a subscription check whether its client has left.
#[pyclass(frozen, module = "tailrace._tailrace")]
struct HasLeft(Client);

#[pymethods]
impl HasLeft {
    fn __call__(&self) -> bool {
        self.0.has_left()
    }
}

/// From this number on, those that are over are forgotten now and then.
const MANY: usize = 32;

static TYPE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Imports what [`Subscriptions::add`] needs.
///
/// # Errors
/// What importing raises.
pub(crate) fn prepare(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    let found = TYPE.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("tailrace.worker.subscription")?.getattr("Subscription")?.unbind())
    })?;
    Ok(found.bind(py))
}

impl Subscriptions {
    /// Adds one to a request.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn add<'py>(
        &self,
        request: RequestKey,
        callback: &Bound<'py, PyAny>,
        client: Client,
    ) -> PyResult<Bound<'py, PyAny>> {
        let subscription = prepare(callback.py())?.call1((callback, HasLeft(client)))?;
        let count = {
            let mut all = self.lock();
            let those = all.entry(request).or_default();
            those.push(subscription.clone().unbind());
            those.len()
        };
        if count >= MANY && count.is_power_of_two() {
            self.prune(callback.py(), request);
        }
        Ok(subscription)
    }

    /// Forgets those of a request that are over: a stream may make any number, one after the other.
    fn prune(&self, py: Python<'_>, request: RequestKey) {
        let is_over = |each: &Py<PyAny>| each.getattr(py, "is_over").is_ok_and(|is| is.is_truthy(py).unwrap_or(false));
        let over: HashSet<_> = self.of(py, request).iter().filter(|each| is_over(each)).map(Py::as_ptr).collect();
        let mut all = self.lock();
        let (gone, kept) =
            all.remove(&request).unwrap_or_default().into_iter().partition(|each| over.contains(&each.as_ptr()));
        all.insert(request, kept);
        drop(all);
        // Python code may run when the last reference goes.
        drop::<Vec<_>>(gone);
    }

    /// True when no request has any. Any thread, attached or not.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Those of a request.
    pub(crate) fn of(&self, py: Python<'_>, request: RequestKey) -> Vec<Py<PyAny>> {
        let found = self.lock();
        found.get(&request).map(|all| all.iter().map(|each| each.clone_ref(py)).collect()).unwrap_or_default()
    }

    /// Removes the subscriptions of an ended request, and calls their callbacks if the client has left.
    pub(crate) fn end(&self, py: Python<'_>, request: RequestKey, has_left: bool) {
        let method = if has_left { "finish" } else { "end" };
        let (process, ended) = (Process::here(), self.lock().remove(&request));
        for each in ended.into_iter().flatten() {
            // A child that a callback has forked exits here.
            end_child(py, process, &each.call_method0(py, method));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestKey, Vec<Py<PyAny>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
