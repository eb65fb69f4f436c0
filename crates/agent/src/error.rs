//! The error for a request that cannot be carried out as it was made.

/// A value that the caller handed in cannot be used; the program exits with status 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);
