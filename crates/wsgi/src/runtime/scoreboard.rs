//! `Scoreboard` for Python: the master makes it before it forks workers, each worker writes to its place, and the
//! master reads all places. Any thread.

use std::time::Duration;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use tailrace_http::query::QueryMasking;
use tailrace_server::{Ended, InFlight, Metric, MetricRow, Scoreboard as Board, Section, client_text};

use crate::python::exceptions::os_error;
use crate::runtime::settings::query_masking_of;

/// What the workers of a master are doing, in memory that they share.
#[pyclass(frozen, name = "Scoreboard", module = "tailrace._tailrace")]
pub(crate) struct Scoreboard {
    board: Board,
    masking: QueryMasking,
    /// The place of all workers that have ended, behind those of workers.
    ended: usize,
}

impl Scoreboard {
    pub(crate) fn place(&self, number: usize) -> PyResult<Section> {
        self.section((number < self.ended).then_some(number), number)
    }

    /// None: that of all workers that have ended.
    fn place_or_ended(&self, number: Option<usize>) -> PyResult<Section> {
        number.map_or_else(|| self.section(Some(self.ended), self.ended), |number| self.place(number))
    }

    fn section(&self, number: Option<usize>, asked: usize) -> PyResult<Section> {
        let section = number.and_then(|number| self.board.place(number));
        section.ok_or_else(|| PyIndexError::new_err(format!("the scoreboard has no place {asked}")))
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
    let rows = tailrace_server::metric_rows().map(|row| {
        let MetricRow { group, source, key, kind, name, label, help, details } = *row;
        (group, source, kind, key, label, name, help, details)
    });
    PyTuple::new(py, rows.collect::<Vec<_>>())
}

/// A request as Python sees it: id, method, target, client, seconds, phase ("running", or "sending" while it waits for
/// its client).
pub(crate) fn request_dict<'py>(
    py: Python<'py>,
    request: &InFlight,
    masking: QueryMasking,
) -> PyResult<Bound<'py, PyDict>> {
    let now = tailrace_server::shared_now();
    let dict = PyDict::new(py);
    dict.set_item("id", request.serial)?;
    dict.set_item("method", request.method.escape_ascii().to_string())?;
    dict.set_item("target", masking.shown(&request.target).escape_ascii().to_string())?;
    dict.set_item("client", client_text(request.peer))?;
    dict.set_item("phase", if request.is_sending { "sending" } else { "running" })?;
    dict.set_item("seconds", now.saturating_sub(request.since) as f64 / 1e9)?;
    Ok(dict)
}

/// A response that is over as Python sees it. `now`: by the clock of [`Ended::at`].
fn ended_dict<'py>(py: Python<'py>, ended: &Ended, now: u64, masking: QueryMasking) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("method", ended.method.escape_ascii().to_string())?;
    dict.set_item("target", masking.shown(&ended.target).escape_ascii().to_string())?;
    let path = ended.target.split(|byte| *byte == b'?').next().unwrap_or_default();
    dict.set_item("endpoint", tailrace_server::endpoint_name(&ended.method, path).escape_ascii().to_string())?;
    dict.set_item("client", client_text(ended.peer))?;
    dict.set_item("status", ended.status)?;
    dict.set_item("event_stream", ended.is_event_stream)?;
    dict.set_item("ending", ended.ending.name())?;
    dict.set_item("path", ended.path.name())?;
    for (name, size) in ended.sizes {
        dict.set_item(name, size)?;
    }
    for (name, nanos) in ended.times {
        dict.set_item(name, nanos as f64 / 1e9)?;
    }
    for (name, number) in ended.worker {
        dict.set_item(name, number)?;
    }
    dict.set_item("ago", now.saturating_sub(ended.at) as f64 / 1e9)?;
    Ok(dict)
}

#[pymethods]
impl Scoreboard {
    /// places: maximum number of workers. threads: of each. query_masking: the value of the option. Shared with
    /// processes that are forked later. Raises OSError, ValueError.
    #[new]
    fn new(places: usize, threads: usize, query_masking: &str) -> PyResult<Self> {
        let masking = query_masking_of(query_masking)?;
        let board = Board::new(places.saturating_add(1), threads).map_err(os_error)?;
        Ok(Self { board, masking, ended: places })
    }

    /// Counters and gauges of the worker at a place, also after its death.
    #[pyo3(signature = (place, /))]
    fn counters<'py>(&self, py: Python<'py>, place: usize) -> PyResult<Bound<'py, PyDict>> {
        let place = self.place(place)?;
        let counters = PyDict::new(py);
        for metric in Metric::ALL {
            counters.set_item(metric.row().key, place.get(metric))?;
        }
        let now = tailrace_server::shared_now();
        counters.set_item("stuck_ms", place.stuck_since().map_or(0, |since| now.saturating_sub(since) / 1_000_000))?;
        Ok(counters)
    }

    /// Threads and connections of the worker at a place, each by state.
    #[pyo3(signature = (place, /))]
    fn states<'py>(&self, py: Python<'py>, place: usize) -> PyResult<Bound<'py, PyDict>> {
        let states = PyDict::new(py);
        for (group, name, count) in self.place(place)?.states() {
            set_in_group(&states, group, name, count)?;
        }
        Ok(states)
    }

    /// The counts of finished responses of the worker at a place, by group and name.
    #[pyo3(signature = (place, /))]
    fn deliveries<'py>(&self, py: Python<'py>, place: usize) -> PyResult<Bound<'py, PyDict>> {
        let groups = PyDict::new(py);
        self.place(place)?.deliveries().visit(|group, name, count| set_in_group(&groups, group, name, count))?;
        Ok(groups)
    }

    /// What the responses of each endpoint of the worker at a place have cost; None: of all workers that have ended.
    #[pyo3(signature = (place, /))]
    fn endpoints<'py>(&self, py: Python<'py>, place: Option<usize>) -> PyResult<Bound<'py, PyList>> {
        let endpoints = PyList::empty(py);
        for endpoint in self.place_or_ended(place)?.endpoints().all() {
            let dict = PyDict::new(py);
            dict.set_item("endpoint", endpoint.name.escape_ascii().to_string())?;
            for (name, count) in endpoint.counts {
                dict.set_item(name, count)?;
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

    /// The last slow and the last broken responses of the worker at a place; None: of all workers that have ended.
    #[pyo3(signature = (place, /))]
    fn recent<'py>(&self, py: Python<'py>, place: Option<usize>) -> PyResult<Bound<'py, PyDict>> {
        let now = tailrace_server::shared_now();
        let kinds = PyDict::new(py);
        for (name, responses) in self.place_or_ended(place)?.recent().all() {
            let list = PyList::empty(py);
            for ended in &responses {
                list.append(ended_dict(py, ended, now, self.masking)?)?;
            }
            kinds.set_item(name, list)?;
        }
        Ok(kinds)
    }

    /// When the I/O side of the worker at a place last polled, and since when a check has waited for its interpreter
    /// (None: no check waits), both in nanoseconds of the monotonic clock.
    #[pyo3(signature = (place, /))]
    fn signs_of_life(&self, place: usize) -> PyResult<(u64, Option<u64>)> {
        let place = self.place(place)?;
        Ok((place.heartbeat(), place.asked_at()))
    }

    /// The requests that the worker at a place runs, or ran when it died.
    #[pyo3(signature = (place, /))]
    fn in_flight<'py>(&self, py: Python<'py>, place: usize) -> PyResult<Bound<'py, PyList>> {
        let requests = PyList::empty(py);
        for request in self.place(place)?.in_flight() {
            let dict = request_dict(py, &request, self.masking)?;
            dict.set_item("thread", request.thread)?;
            requests.append(dict)?;
        }
        Ok(requests)
    }

    /// Orders the worker at a place to drain, with so many seconds for requests in flight. It does so even while a
    /// request holds its interpreter and does not end.
    #[pyo3(signature = (place, seconds, /))]
    fn drain(&self, place: usize, seconds: f64) -> PyResult<()> {
        let graceful = Duration::try_from_secs_f64(seconds)
            .map_err(|_| PyValueError::new_err("seconds must be a number that is not negative"))?;
        self.place(place)?.order_drain(graceful);
        Ok(())
    }

    /// Adds `recent` of the worker at a place, which has ended, to those of all that have ended; its `endpoints`, too, if
    /// `with_endpoints`. number: of the worker.
    #[pyo3(signature = (place, number, with_endpoints, /))]
    fn keep(&self, place: usize, number: u64, with_endpoints: bool) -> PyResult<()> {
        self.place_or_ended(None)?.keep(&self.place(place)?, number, with_endpoints);
        Ok(())
    }

    /// Forgets the endpoints of all workers that have ended.
    fn forget_endpoints(&self) -> PyResult<()> {
        self.place_or_ended(None)?.forget_endpoints();
        Ok(())
    }

    /// Clears a place, before another worker gets it.
    #[pyo3(signature = (place, /))]
    fn clear(&self, place: usize) -> PyResult<()> {
        self.place(place)?.clear();
        Ok(())
    }
}
