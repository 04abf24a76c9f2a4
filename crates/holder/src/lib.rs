//! Connections that are held without threads: the process without Python that has them, and what other processes send it.
//!
//! The order of the files: what an application asks for ([`grip`]) travels with its connection in a [`message`], through
//! `control`, to the `holder`. What is published ([`publication`]) is kept in `channels`, and sent to each `held`
//! connection; the `bus` has what other servers are to get. The next holder gets everything by `take_over`.

mod bus;
mod call;
mod calls;
mod channels;
mod control;
mod deflate;
mod events;
mod frames;
pub mod grip;
mod held;
mod holder;
pub mod message;
pub mod publication;
mod session;
mod take_over;

pub use channels::ReplayLimits;
pub use holder::{Holder, Limits, Log, Stop};
