//! The operating system: every system call and reading of the time of the whole server, `crates/wsgi` included, and
//! every `unsafe` block but those that call CPython (`crates/wsgi/src/ffi/`).
//!
//! Each function is thin: a name, the flags that this server always uses, and errors named after their meaning here.
//! `rustix` makes the calls. Nothing here knows the other folders.

pub mod allocator;
pub mod clock;
pub mod descriptor;
pub(crate) mod epoll;
pub(crate) mod eventfd;
pub mod file;
pub(crate) mod folder;
pub(crate) mod log_socket;
pub(crate) mod log_stream;
pub(crate) mod low_water;
pub(crate) mod mapping;
#[cfg(loom)]
pub(crate) mod model;
pub(crate) mod panics;
pub(crate) mod poll;
pub mod process;
pub(crate) mod random;
pub mod resolve;
pub(crate) mod shared_memory;
pub mod socket;
pub(crate) mod sync;
pub mod usage;
