//! The client of `tailrace compare`, where `wrk` is not installed.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tailrace_load::{Address, Load, run};

/// An IP address with a port, or the path of a UNIX socket.
#[derive(FromPyObject)]
pub(crate) enum ServerAddress {
    Tcp(String, u16),
    Unix(PathBuf),
}

/// Sends the same request on each connection again and again, and counts the responses.
#[pyfunction]
#[pyo3(signature = (address, request, /, *, connections, seconds, patience))]
pub(crate) fn load<'py>(
    py: Python<'py>,
    address: ServerAddress,
    request: Vec<u8>,
    connections: usize,
    seconds: f64,
    patience: f64,
) -> PyResult<Bound<'py, PyDict>> {
    let address = match address {
        ServerAddress::Tcp(host, port) => {
            let host: IpAddr =
                host.parse().map_err(|_| PyValueError::new_err(format!("{host:?} is not an IP address")))?;
            Address::Tcp(SocketAddr::new(host, port))
        }
        ServerAddress::Unix(path) => Address::Unix(path),
    };
    let time = |name: &str, seconds: f64| {
        Duration::try_from_secs_f64(seconds).map_err(|_| PyValueError::new_err(format!("{name}: {seconds} seconds")))
    };
    let (time, patience) = (time("seconds", seconds)?, time("patience", patience)?);
    let load = Load { address, request, connections, time, patience };
    let mut interruption = Ok(());
    let outcome = py.detach(|| {
        run(&load, || {
            interruption = Python::attach(|py| py.check_signals());
            interruption.is_err()
        })
    });
    interruption?;
    let outcome = outcome?;
    let result = PyDict::new(py);
    for (name, count) in [
        ("answers", outcome.answers),
        ("refusals", outcome.refusals),
        ("bytes", outcome.bytes),
        ("connect_errors", outcome.connect_errors),
        ("read_errors", outcome.read_errors),
        ("write_errors", outcome.write_errors),
        ("timeouts", outcome.timeouts),
    ] {
        result.set_item(name, count)?;
    }
    result.set_item("seconds", outcome.time.as_secs_f64())?;
    result.set_item("latencies", outcome.latencies)?;
    Ok(result)
}
