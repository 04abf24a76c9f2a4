//! Observing the server: the record of each request, counters, histograms, the scoreboard, the access log.

pub(crate) mod access_log;
pub(crate) mod allowance;
pub(crate) mod attribution;
pub(crate) mod deliveries;
pub(crate) mod destination;
pub(crate) mod ended;
pub(crate) mod endpoints;
pub(crate) mod envelope;
pub(crate) mod growth;
mod guarded;
pub(crate) mod level;
pub(crate) mod log_format;
pub(crate) mod metrics;
pub(crate) mod probes;
pub(crate) mod recent;
pub(crate) mod record;
pub(crate) mod scoreboard;
pub(crate) mod server_log;
pub(crate) mod shared_numbers;
pub(crate) mod stats;
pub(crate) mod traces;
