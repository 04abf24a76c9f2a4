//! The operating system: every system call and reading of the time of the whole server, and every `unsafe` block but
//! those that call CPython (`crates/wsgi/src/ffi/`). Files below a folder are opened by `crates/files/src/resolve.rs`.
//!
//! Each function is thin: a name, the flags that this server always uses, and errors named after their meaning here.
//! `rustix` makes the calls. Nothing here knows the other crates.

pub mod allocator;
pub mod clock;
pub mod descriptor;
pub mod epoll;
pub mod eventfd;
pub mod file;
pub mod log_socket;
pub mod log_stream;
pub mod low_water;
pub mod mapping;
#[cfg(loom)]
pub mod model;
pub mod panics;
pub mod passing;
pub mod poll;
pub mod process;
pub mod random;
pub mod shared_memory;
pub mod socket;
pub mod sync;
pub mod timer;
pub mod usage;
