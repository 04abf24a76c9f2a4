//! Files that are served without the application.

pub(crate) mod types;
