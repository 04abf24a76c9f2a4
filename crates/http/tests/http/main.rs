//! The tests of the crate, one module for each of its modules: one program, since linking takes longer than testing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "wire/packet.rs"]
mod packet;
mod wire;

mod body;
mod coding;
mod conditional;
mod encode;
mod forwarded;
mod framing;
mod head;
mod identity;
mod limits;
mod named_file;
mod properties;
mod proxy_protocol;
mod range;
mod request_start;
mod selection;
mod static_path;
mod target;
mod trust;
mod uwsgi;
