//! `Scoreboard` for Python: the master makes it before it forks, each worker writes its place, the master reads.

use std::time::Duration;

use penstock_server::scoreboard::{Counter, InFlight, Place, Scoreboard as Board};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// What the workers of a master are doing, in memory that they share.
#[pyclass(frozen, name = "Scoreboard", module = "penstock._penstock")]
pub(crate) struct Scoreboard {
    board: Board,
}

impl Scoreboard {
    pub(crate) fn place(&self, number: usize) -> PyResult<Place> {
        self.board.place(number).ok_or_else(|| PyIndexError::new_err(format!("the scoreboard has no place {number}")))
    }
}

/// A request as Python sees it: id, method, target, client, seconds.
pub(crate) fn told<'py>(py: Python<'py>, request: &InFlight) -> PyResult<Bound<'py, PyDict>> {
    let now = penstock_server::scoreboard::now();
    let told = PyDict::new(py);
    told.set_item("id", request.serial)?;
    told.set_item("method", request.method.escape_ascii().to_string())?;
    told.set_item("target", request.target.escape_ascii().to_string())?;
    told.set_item("client", request.peer.map_or_else(String::new, |peer| peer.to_string()))?;
    told.set_item("seconds", now.saturating_sub(request.since) as f64 / 1e9)?;
    Ok(told)
}

#[pymethods]
impl Scoreboard {
    /// places: workers at most. threads: of each. Shared with processes that are forked later. Raises OSError.
    #[new]
    fn new(places: usize, threads: usize) -> PyResult<Self> {
        Ok(Self { board: Board::new(places, threads)? })
    }

    /// Counters and gauges of the worker at a place, also after its death.
    #[pyo3(signature = (place, /))]
    fn counters<'py>(&self, py: Python<'py>, place: usize) -> PyResult<Bound<'py, PyDict>> {
        let place = self.place(place)?;
        let counters = PyDict::new(py);
        for (counter, name) in Counter::ALL {
            counters.set_item(name, place.get(counter))?;
        }
        let since = Some(place.get(Counter::StuckSince)).filter(|since| *since > 0);
        let now = penstock_server::scoreboard::now();
        counters.set_item("stuck_ms", since.map_or(0, |since| now.saturating_sub(since) / 1_000_000))?;
        Ok(counters)
    }

    /// The requests that the worker at a place carries, or carried when it died.
    #[pyo3(signature = (place, /))]
    fn in_flight<'py>(&self, py: Python<'py>, place: usize) -> PyResult<Bound<'py, PyList>> {
        let requests = PyList::empty(py);
        for request in self.place(place)?.in_flight() {
            let told = told(py, &request)?;
            told.set_item("thread", request.thread)?;
            requests.append(told)?;
        }
        Ok(requests)
    }

    /// Has the worker at a place drain, with so many seconds for what is in flight, also when its interpreter is held by a
    /// request that does not end.
    #[pyo3(signature = (place, seconds, /))]
    fn drain(&self, place: usize, seconds: f64) -> PyResult<()> {
        let graceful = Duration::try_from_secs_f64(seconds)
            .map_err(|_| PyValueError::new_err("seconds must be a number that is not negative"))?;
        self.place(place)?.order_drain(graceful);
        Ok(())
    }

    /// Forgets the worker at a place, before another one gets it.
    #[pyo3(signature = (place, /))]
    fn clear(&self, place: usize) -> PyResult<()> {
        self.place(place)?.clear();
        Ok(())
    }
}
