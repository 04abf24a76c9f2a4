//! A web server for one application, on Linux: sockets, the loop, connections, timers. No Python.
//!
//! A [`Server`] is made of a [`Config`], an [`Application`] and listening sockets. Its threads call [`Server::run`];
//! the application gets its requests from a [`Turn`], each as an [`Exchange`], to which it gives the response.
//! `examples/echo.rs` is the smallest application.
//!
//! Each folder may use those before it: `os`, `transport`, `request`, `observe`, `response`, `connection`, `dispatch`,
//! `executor`. `server` has the loop and imports all of them.

mod clients;
mod config;
mod connection;
mod dispatch;
mod executor;
#[cfg(all(test, loom))]
mod models;
mod observe;
mod os;
mod request;
mod response;
mod server;
mod static_config;
mod static_files;
mod transport;

// A server, its settings, and the trait that an application implements.
pub use clients::rates::Rate;
pub use config::{Cancellation, Config, ExecutorKind, ListenerConfig, ListenerProtocol, ProxyHeader};
pub use executor::application::{Application, Disconnected, Interruption, Level, Outcome, Overdue, Reports, Slow};
pub use server::{AbortedRequest, Server};
pub use static_config::{CacheRule, Mount, NamedBy, NamedFolder, StaticConfig};
pub use static_files::compress::codings;
pub use static_files::types::media_type;

// Requests and their responses.
pub use connection::exchange::{
    Asked, BodyFault, BodyStream, Client, Exchange, Payload, Position, Request, RequestBody, Room, Segments, Sent,
    Short, TemporaryFile, WaitingCount, next_patience,
};
pub use connection::representation::{send_file, send_memory};
pub use executor::turn::Turn;
pub use request::peer::{Peer, Scheme};
pub use request::{Traced, client_text};

// An application that runs in greenlets.
pub use executor::greenlets::wakeup::{Look, Wakeup, Wakeups};
pub use executor::greenlets::{Greenlets, may_switch};

// Counters, records and logs.
pub use observe::access_log::{AccessLogConfig, Destination, Format};
pub use observe::allowance::Allowance;
pub use observe::deliveries::Deliveries;
pub use observe::ended::Ended;
pub use observe::endpoints::{Endpoint, name_of as endpoint_name};
pub use observe::metrics::{Metric, Row as MetricRow, rows as metric_rows};
pub use observe::record::{Ending, Path, Record, millis_between};
pub use observe::scoreboard::{InFlight, Scoreboard, WorkerSlot, now as shared_now};
pub use observe::server_log::ServerLog;
pub use observe::shared_numbers::{MOST_NUMBERS, NamedNumber, SharedNumber, SharedNumbers};
pub use observe::stats::Stats;
pub use observe::traces::{Batch, TraceCounts, Traces};

// System calls, for the crate above as well.
pub use os::panics::{catch, write_stderr};
pub use os::usage::Usage;
pub use os::{allocator, clock, descriptor, file, process, resolve, socket, usage};
