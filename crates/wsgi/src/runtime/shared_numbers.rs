//! `SharedNumbers` and `SharedNumber` for Python: numbers that processes share by name. Any thread.

use pyo3::prelude::*;
use tailrace_observe::shared_numbers::{MAX_NUMBERS, NamedNumber, SharedNumber, SharedNumbers};

use crate::python::exceptions::os_error;

/// Numbers that this process shares with those it forks.
#[pyclass(frozen, name = "SharedNumbers", module = "tailrace._tailrace")]
pub(crate) struct PythonSharedNumbers(SharedNumbers);

/// One of them.
#[pyclass(frozen, name = "SharedNumber", module = "tailrace._tailrace")]
pub(crate) struct PythonSharedNumber(SharedNumber);

#[pymethods]
impl PythonSharedNumbers {
    /// How many there may be.
    #[classattr]
    const MAX: usize = MAX_NUMBERS;

    /// Raises OSError.
    #[new]
    pub(crate) fn new() -> PyResult<Self> {
        SharedNumbers::new().map(Self).map_err(os_error)
    }

    /// The number of this name, 0 at first. owner: the process whose own it is; 0: all share it. None: there is no place
    /// for it, or its name is too long.
    #[pyo3(signature = (name, owner=0, /))]
    fn number(&self, py: Python<'_>, name: &str, owner: u64) -> Option<PythonSharedNumber> {
        // It may wait for another process.
        py.detach(|| self.0.number(name.as_bytes(), owner)).map(PythonSharedNumber)
    }

    /// All of them: name, owner, value.
    fn all(&self) -> Vec<(String, u64, f64)> {
        let all = self.0.all().into_iter();
        all.map(|NamedNumber { name, owner, value }| (String::from_utf8_lossy(&name).into_owned(), owner, value))
            .collect()
    }

    /// Counts a number that found no place.
    fn refuse(&self) {
        self.0.refuse();
    }

    /// How many numbers found no place.
    fn refused(&self) -> u64 {
        self.0.refused()
    }

    /// A process has ended: its own numbers are gone.
    #[pyo3(signature = (owner, /))]
    fn forget(&self, owner: u64) {
        self.0.forget(owner);
    }
}

#[pymethods]
impl PythonSharedNumber {
    /// Adds to it.
    #[pyo3(signature = (amount, /))]
    fn add(&self, amount: f64) {
        self.0.add(amount);
    }

    /// Sets it.
    #[pyo3(signature = (value, /))]
    fn set(&self, value: f64) {
        self.0.set(value);
    }

    /// Its value.
    fn get(&self) -> f64 {
        self.0.get()
    }
}
