//! One client connection: its states, its owner, its deadline, and the exchange, which is the application's handle of
//! one request.
//!
//! Terms: the **owner** of a connection is the thread that holds its ownership word; only the owner uses the state. A
//! queued or running request holds the word too, and so does a write of its body to a file. A **runner** is a thread or
//! a greenlet that runs the application for one request. A greenlet waits under a **ticket**, a number; giving the
//! ticket out wakes the greenlet. The **I/O side** is the thread that polls; a watcher may do its work while it runs
//! the application. A connection is *flushing* while the rest of a finished response is sent; a server is *draining*
//! from the request to stop until its end.

pub(crate) mod backpressure;
pub(crate) mod batched_responses;
pub(crate) mod context;
pub(crate) mod driver;
pub(crate) mod exchange;
pub(crate) mod flush_list;
pub(crate) mod hold_rule;
pub(crate) mod host;
pub(crate) mod lifecycle;
pub(crate) mod one_time_warnings;
pub(crate) mod opening;
pub(crate) mod owned;
pub(crate) mod ownership;
mod proxy_header;
pub(crate) mod raw_socket;
pub(crate) mod reclaim;
pub(crate) mod refusal_log;
pub(crate) mod relay;
pub mod representation;
pub(crate) mod response_stream;
pub(crate) mod runner;
pub(crate) mod send_handle;
pub(crate) mod sending;
pub(crate) mod shared;
mod source;
pub(crate) mod spare_time;
pub(crate) mod state;
pub(crate) mod steps;
pub(crate) mod table;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod thread_state;
pub(crate) mod timers;
mod to_holder;
pub(crate) mod to_worker;
pub(crate) mod transaction;
pub(crate) mod transaction_pool;
pub(crate) mod watch;
