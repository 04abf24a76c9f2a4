//! One client connection: its states, who owns it, its deadline, and the exchange: the application's side of one
//! request.

pub(crate) mod claim;
pub(crate) mod context;
pub(crate) mod driver;
pub(crate) mod exchange;
pub(crate) mod flush_list;
pub(crate) mod host;
pub(crate) mod lifecycle;
pub(crate) mod local;
pub(crate) mod reclaim;
pub(crate) mod room;
pub(crate) mod runner;
pub(crate) mod shared;
mod source;
pub(crate) mod spares;
pub(crate) mod state;
pub(crate) mod table;
pub(crate) mod timers;
pub(crate) mod transaction;
