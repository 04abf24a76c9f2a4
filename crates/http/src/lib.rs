//! HTTP/1 without I/O: bytes to events, events to bytes. No socket, clock, thread or Python.

pub mod body;
pub mod encode;
pub mod framing;
pub mod head;
pub mod limits;
mod octets;
mod target;
