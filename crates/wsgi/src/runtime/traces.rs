//! `Traces` and `TraceBatch` for Python: the traced responses of all workers, for the process that exports their spans.
//! Any thread.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use tailrace_http::forwarded::Scheme;
use tailrace_http::identity::Traced;
use tailrace_http::query::QueryMasking;
use tailrace_observe::ended::EndedResponse;
use tailrace_observe::scoreboard::now as shared_now;
use tailrace_observe::traces::{TraceBatch, TraceCounts, Traces};

use crate::runtime::ended::{ended_dict, origin_form};

/// Traced responses that wait to be exported.
#[pyclass(frozen, name = "Traces", module = "tailrace._tailrace")]
pub(crate) struct PythonTraces {
    queue: Traces,
    masking: QueryMasking,
}

/// Some of them.
#[pyclass(frozen, name = "TraceBatch", module = "tailrace._tailrace")]
pub(crate) struct PythonTraceBatch {
    batch: TraceBatch,
    masking: QueryMasking,
}

impl PythonTraces {
    pub(crate) fn new(queue: Traces, masking: QueryMasking) -> Self {
        Self { queue, masking }
    }
}

#[pymethods]
impl PythonTraces {
    /// The oldest responses, `most` at most. They stay until they are freed.
    #[pyo3(signature = (most, /))]
    fn read(&self, py: Python<'_>, most: usize) -> PythonTraceBatch {
        PythonTraceBatch { batch: py.detach(|| self.queue.read(most)), masking: self.masking }
    }

    /// Frees the places of a batch, which was exported, or not.
    #[pyo3(signature = (batch, is_exported, /))]
    fn free(&self, batch: &PythonTraceBatch, is_exported: bool) {
        self.queue.free(&batch.batch, is_exported);
    }

    /// How many responses wait.
    fn waiting(&self) -> u64 {
        self.queue.waiting()
    }

    /// How many responses were exported, failed to be exported, were dropped.
    fn counts(&self) -> (u64, u64, u64) {
        let TraceCounts { exported, failed, dropped } = self.queue.counts();
        (exported, failed, dropped)
    }
}

#[pymethods]
impl PythonTraceBatch {
    /// How many responses it has.
    fn __len__(&self) -> usize {
        self.batch.responses.len()
    }

    /// Its responses, as in `Scoreboard.recent`, and of each what its spans need.
    fn responses<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (now, list) = (shared_now(), PyList::empty(py));
        for ended in &self.batch.responses {
            if let Some(traced) = ended.traced {
                let dict = ended_dict(py, ended, now, self.masking)?;
                add_trace(&dict, ended, traced, self.masking)?;
                list.append(dict)?;
            }
        }
        Ok(list)
    }
}

fn add_trace(dict: &Bound<'_, PyDict>, ended: &EndedResponse, traced: Traced, masking: QueryMasking) -> PyResult<()> {
    let Traced { trace, parent, span, application } = traced;
    dict.set_item("trace_id", trace)?;
    dict.set_item("parent_id", (parent != 0).then_some(parent))?;
    dict.set_item("span_id", span)?;
    dict.set_item("application_id", application)?;
    dict.set_item("scheme", ended.scheme.map(|scheme| if scheme == Scheme::Https { "https" } else { "http" }))?;
    let target = masking.shown(&ended.target);
    let mut parts = origin_form(&target).splitn(2, |byte| *byte == b'?');
    dict.set_item("url_path", parts.next().map(String::from_utf8_lossy))?;
    dict.set_item("url_query", parts.next().map(String::from_utf8_lossy))?;
    dict.set_item("started", ended.is_started)?;
    dict.set_item("at_ns", ended.at)?;
    Ok(())
}
