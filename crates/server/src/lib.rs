//! A web server for one application, on Linux: sockets, the loop, connections, timers. No Python.
//!
//! A [`Server`] is made of a [`Config`], an [`Application`] and listening sockets. Its threads call [`Server::run`];
//! the application gets its requests from a [`Turn`], each as an [`Exchange`], to which it gives the response.
//! `examples/echo.rs` is the smallest application.
//!
//! Each folder may use those before it: `transport`, `request`, `response`, `connection`, `dispatch`, `executor`. `server`
//! has the loop and imports all of them.

mod clients;
mod config;
mod connection;
mod dispatch;
mod executor;
#[cfg(all(test, loom))]
mod models;
mod request;
mod response;
mod server;
mod sticky;
mod transport;

// A server, its settings, and the trait that an application implements.
pub use clients::Clients;
pub use clients::rates::Rate;
pub use config::{
    Cancellation, Config, ExecutorKind, HOLD_WRITES, ListenerConfig, ListenerProtocol, MIN_RATE, MemoryShares,
};
pub use dispatch::responder::{Disposition, Responder};
pub use executor::application::{Application, Disconnected, Interruption, Overdue, Slow};
pub use request::disk::Disk;
pub use request::share::Share;
pub use server::{AbortedRequest, Provided, Server};
pub use sticky::key::SessionKey;
pub use sticky::owners::Owners;

// Requests and their responses.
pub use connection::backpressure::{WaitingCount, next_patience};
pub use connection::exchange::{Client, Exchange};
pub use connection::raw_socket::RawSocket;
pub use connection::representation;
pub use connection::response_stream::{ResponseStream, Short};
pub use connection::send_handle::{RawConnection, SendHandle};
pub use connection::transaction::Delegation;
pub use executor::turn::Turn;
pub use request::disk::TemporaryFile;
pub use request::segments::Segments;
pub use request::stream::{BodyFault, BodyStream};
pub use request::{Request, RequestBody, client_text};
pub use response::outbox::{Room, TimeOut};
pub use response::payload::{FileSource, Payload, Readiness, Then};
pub use response::producer::{Position, Sent};

// An application that runs in greenlets.
pub use executor::greenlets::wakeup::{Look, Wakeup, Wakeups};
pub use executor::greenlets::{Greenlets, may_switch};
