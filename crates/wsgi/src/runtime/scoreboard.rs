//! `Scoreboard` for Python: the master makes it before it forks workers, each worker writes to its slot, and the
//! master reads all slots. Any thread.

use std::time::Duration;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use tailrace_http::query::QueryMasking;
use tailrace_observe::log_format::Atom;
use tailrace_observe::metrics::{Metric, Row as MetricRow};
use tailrace_observe::record::{FIELDS, PHASES, SIZES};
use tailrace_observe::scoreboard::{InFlight, Scoreboard, WorkerSlot};
use tailrace_server::{Clients, Owners, client_text};

use crate::python::exceptions::os_error;
use crate::runtime::ended::{ended_dict, id_of};
use crate::runtime::settings::query_masking_of;
use crate::runtime::shared_numbers::PythonSharedNumbers;
use crate::runtime::traces::PythonTraces;

/// What the workers of a master are doing, in memory that they share.
#[pyclass(frozen, name = "Scoreboard", module = "tailrace._tailrace")]
pub(crate) struct PythonScoreboard {
    board: Scoreboard,
    /// The counts of clients over all workers.
    clients: Clients,
    /// The workers that have sessions.
    owners: Owners,
    masking: QueryMasking,
    /// The metrics of the application.
    numbers: Py<PythonSharedNumbers>,
    /// The traced responses of all workers.
    traces: Py<PythonTraces>,
    /// The slot of all workers that have ended, behind those of workers.
    ended: usize,
}

impl PythonScoreboard {
    pub(crate) fn slot(&self, number: usize) -> PyResult<WorkerSlot> {
        self.checked((number < self.ended).then_some(number), number)
    }

    pub(crate) fn clients(&self) -> Clients {
        self.clients
    }

    pub(crate) fn owners(&self) -> Owners {
        self.owners
    }

    /// None: that of all workers that have ended.
    fn slot_or_ended(&self, number: Option<usize>) -> PyResult<WorkerSlot> {
        number.map_or_else(|| self.checked(Some(self.ended), self.ended), |number| self.slot(number))
    }

    fn checked(&self, number: Option<usize>, asked: usize) -> PyResult<WorkerSlot> {
        let slot = number.and_then(|number| self.board.worker_slot(number));
        slot.ok_or_else(|| PyIndexError::new_err(format!("the scoreboard has no worker slot {asked}")))
    }
}

/// Sets a count in the dict of its group.
fn set_in_group(groups: &Bound<'_, PyDict>, group: &str, name: &str, count: u64) -> PyResult<()> {
    let counts = match groups.get_item(group)? {
        Some(counts) => counts,
        None => {
            groups.set_item(group, PyDict::new(groups.py()))?;
            groups.as_any().get_item(group)?
        }
    };
    counts.set_item(name, count)
}

/// The table of metrics for Python: of each group, source, type, key, label, name, help and details.
pub(crate) fn metrics(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    let rows = tailrace_observe::metrics::rows().map(|row| {
        let MetricRow { group, source, key, kind, name, label, help, details } = *row;
        (group, source, kind, key, label, name, help, details)
    });
    PyTuple::new(py, rows.collect::<Vec<_>>())
}

/// The fields of the delivery record for Python: of each, name, type and help.
pub(crate) fn fields(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    PyTuple::new(py, FIELDS.iter().map(|field| (field.name, field.kind(), field.help)))
}

/// The atoms of the access log for Python: of each, name and help.
pub(crate) fn atoms(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    PyTuple::new(py, Atom::all().map(|atom| (atom.name(), atom.help())).collect::<Vec<_>>())
}

/// The phases of a request for Python: of each, its name, whether it is a part of the application's time, and help.
pub(crate) fn phases(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    PyTuple::new(py, PHASES.map(|phase| (phase.name, phase.is_part, phase.help)))
}

/// The sizes of a response for Python, by their names.
pub(crate) fn sizes(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    PyTuple::new(py, SIZES.map(|size| size.name))
}

/// A request as Python sees it: id (its number), request_id (None: it has none), method, target, client, seconds, phase
/// ("running", or "sending" while it waits for its client).
pub(crate) fn request_dict<'py>(
    py: Python<'py>,
    request: &InFlight,
    masking: QueryMasking,
) -> PyResult<Bound<'py, PyDict>> {
    let now = tailrace_observe::scoreboard::now();
    let dict = PyDict::new(py);
    dict.set_item("id", request.serial)?;
    dict.set_item("request_id", id_of(&request.id))?;
    dict.set_item("method", request.method.escape_ascii().to_string())?;
    dict.set_item("target", masking.shown(&request.target).escape_ascii().to_string())?;
    dict.set_item("client", client_text(request.peer))?;
    dict.set_item("phase", if request.is_sending { "sending" } else { "running" })?;
    dict.set_item("seconds", now.saturating_sub(request.since) as f64 / 1e9)?;
    Ok(dict)
}

#[pymethods]
impl PythonScoreboard {
    /// slots: maximum number of workers. threads: of each. query_masking: the value of the option. Shared with
    /// processes that are forked later. Raises OSError, ValueError.
    #[new]
    fn new(py: Python<'_>, slots: usize, threads: usize, query_masking: &str) -> PyResult<Self> {
        let masking = query_masking_of(query_masking)?;
        let board = Scoreboard::new(slots.saturating_add(1), threads).map_err(os_error)?;
        let clients = Clients::new(slots).map_err(os_error)?;
        let owners = Owners::new(slots).map_err(os_error)?;
        let numbers = Py::new(py, PythonSharedNumbers::new()?)?;
        let traces = Py::new(py, PythonTraces::new(board.traces(), masking))?;
        Ok(Self { board, clients, owners, masking, numbers, traces, ended: slots })
    }

    /// The metrics of the application.
    #[getter]
    fn numbers(&self, py: Python<'_>) -> Py<PythonSharedNumbers> {
        self.numbers.clone_ref(py)
    }

    /// The traced responses of all workers.
    #[getter]
    fn traces(&self, py: Python<'_>) -> Py<PythonTraces> {
        self.traces.clone_ref(py)
    }

    /// Counters and gauges of the worker in a slot, also after its death.
    #[pyo3(signature = (slot, /))]
    fn counters<'py>(&self, py: Python<'py>, slot: usize) -> PyResult<Bound<'py, PyDict>> {
        let slot = self.slot(slot)?;
        let counters = PyDict::new(py);
        for metric in Metric::ALL {
            counters.set_item(metric.row().key, slot.get(metric))?;
        }
        let now = tailrace_observe::scoreboard::now();
        counters.set_item("stuck_ms", slot.stuck_since().map_or(0, |since| now.saturating_sub(since) / 1_000_000))?;
        Ok(counters)
    }

    /// Threads and connections of the worker in a slot, each by state.
    #[pyo3(signature = (slot, /))]
    fn states<'py>(&self, py: Python<'py>, slot: usize) -> PyResult<Bound<'py, PyDict>> {
        let states = PyDict::new(py);
        for (group, name, count) in self.slot(slot)?.states() {
            set_in_group(&states, group, name, count)?;
        }
        Ok(states)
    }

    /// The counts of finished responses of the worker in a slot, by group and name.
    #[pyo3(signature = (slot, /))]
    fn deliveries<'py>(&self, py: Python<'py>, slot: usize) -> PyResult<Bound<'py, PyDict>> {
        let groups = PyDict::new(py);
        self.slot(slot)?.deliveries().visit(|group, name, count| set_in_group(&groups, group, name, count))?;
        Ok(groups)
    }

    /// What the responses of each endpoint of the worker in a slot have cost; None: of all workers that have ended.
    #[pyo3(signature = (slot, /))]
    fn endpoints<'py>(&self, py: Python<'py>, slot: Option<usize>) -> PyResult<Bound<'py, PyList>> {
        let endpoints = PyList::empty(py);
        for endpoint in self.slot_or_ended(slot)?.endpoints().all() {
            let dict = PyDict::new(py);
            dict.set_item("endpoint", endpoint.name.escape_ascii().to_string())?;
            for (name, count) in endpoint.counts {
                match name {
                    // It may have shrunk.
                    "grown_bytes" => dict.set_item(name, count.cast_signed())?,
                    _ => dict.set_item(name, count)?,
                }
            }
            let paths = PyDict::new(py);
            for (name, count) in endpoint.paths {
                paths.set_item(name, count)?;
            }
            dict.set_item("paths", paths)?;
            let times = PyDict::new(py);
            for (bound, count) in endpoint.times {
                times.set_item(bound, count)?;
            }
            dict.set_item("times", times)?;
            endpoints.append(dict)?;
        }
        Ok(endpoints)
    }

    /// The last slow and the last broken responses of the worker in a slot; None: of all workers that have ended.
    #[pyo3(signature = (slot, /))]
    fn recent<'py>(&self, py: Python<'py>, slot: Option<usize>) -> PyResult<Bound<'py, PyDict>> {
        let now = tailrace_observe::scoreboard::now();
        let kinds = PyDict::new(py);
        for (name, responses) in self.slot_or_ended(slot)?.recent().all() {
            let list = PyList::empty(py);
            for ended in &responses {
                list.append(ended_dict(py, ended, now, self.masking)?)?;
            }
            kinds.set_item(name, list)?;
        }
        Ok(kinds)
    }

    /// When the I/O side of the worker in a slot last polled, and since when a check has waited for its interpreter
    /// (None: no check waits), both in nanoseconds of the monotonic clock.
    #[pyo3(signature = (slot, /))]
    fn signs_of_life(&self, slot: usize) -> PyResult<(u64, Option<u64>)> {
        let slot = self.slot(slot)?;
        Ok((slot.heartbeat(), slot.asked_at()))
    }

    /// The requests that the worker in a slot runs, or ran when it died.
    #[pyo3(signature = (slot, /))]
    fn in_flight<'py>(&self, py: Python<'py>, slot: usize) -> PyResult<Bound<'py, PyList>> {
        let requests = PyList::empty(py);
        for request in self.slot(slot)?.in_flight() {
            let dict = request_dict(py, &request, self.masking)?;
            dict.set_item("thread", request.thread)?;
            requests.append(dict)?;
        }
        Ok(requests)
    }

    /// Orders the worker in a slot to drain, with so many seconds for requests in flight. It does so even while a
    /// request holds its interpreter and does not end.
    #[pyo3(signature = (slot, seconds, /))]
    fn drain(&self, slot: usize, seconds: f64) -> PyResult<()> {
        let graceful = Duration::try_from_secs_f64(seconds)
            .map_err(|_| PyValueError::new_err("seconds must be a number that is not negative"))?;
        self.slot(slot)?.order_drain(graceful);
        Ok(())
    }

    /// Adds `recent` of the worker in a slot, which has ended, to those of all that have ended; its `endpoints`, too, if
    /// `with_endpoints`. number: of the worker.
    #[pyo3(signature = (slot, number, with_endpoints, /))]
    fn keep(&self, slot: usize, number: u64, with_endpoints: bool) -> PyResult<()> {
        self.slot_or_ended(None)?.keep(&self.slot(slot)?, number, with_endpoints);
        Ok(())
    }

    /// Forgets the endpoints of all workers that have ended.
    fn forget_endpoints(&self) -> PyResult<()> {
        self.slot_or_ended(None)?.forget_endpoints();
        Ok(())
    }

    /// Clears a slot, before another worker gets it.
    #[pyo3(signature = (slot, /))]
    fn clear(&self, slot: usize) -> PyResult<()> {
        self.slot(slot)?.clear();
        self.clients.forget(slot);
        self.owners.forget(slot);
        Ok(())
    }
}
