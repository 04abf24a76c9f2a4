//! Severity of a line of the error log.

/// Severity of a line of the error log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Details, for finding a fault.
    Debug,
    /// The server goes on, and the operator should know.
    Warning,
    /// A request or a connection was lost by a fault of the server or of the application.
    Error,
}
