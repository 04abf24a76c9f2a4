//! Observing a server: the record of each request, and what is made of it: counters, histograms, the scoreboard, logs and
//! traces. No socket of a client, no connection, no Python.
//!
//! The server fills in a [`record::Record`], and gives it to those who read it with a
//! [`shown_request::ShownRequest`], which borrows from the request.

pub mod access_log;
pub mod allowance;
mod attribution;
pub mod deliveries;
pub mod destination;
pub mod ended;
pub mod endpoints;
mod envelope;
pub mod growth;
mod guarded;
pub mod level;
pub mod log_format;
pub mod metrics;
pub mod once_a_minute;
pub mod probes;
pub mod recent;
pub mod record;
pub mod scoreboard;
pub mod server_log;
pub mod shared_numbers;
pub mod shown_request;
pub mod stats;
pub mod traces;
