//! How much a line of the error log matters.

/// How much a line of the error log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Of use when looking for a fault.
    Debug,
    /// Something an operator wants to see once.
    Warning,
    /// A request or a connection was lost through our or the application's fault.
    Error,
}
