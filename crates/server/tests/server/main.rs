//! Whole servers in the process of a test: requests over sockets, responses by shape, deadlines, and the end of a server.
//!
//! One program, so that the crate is linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod clock;
mod hammer;
mod harness;
mod holding;
mod lifecycle;
#[path = "../../../http/tests/http/wire/packet.rs"]
mod packet;
mod proxies;
mod responses;
mod smoke;
mod uwsgi;
mod wire;
