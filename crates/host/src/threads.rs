//! One thread of an app, distinct from a later one with its number.

/// A thread that was alive at the last check of its app.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LiveThread {
    /// Its process.
    pub pid: i32,
    /// Its own number; that of its process for the first thread.
    pub tid: i32,
    /// When it began, in clock ticks since boot (field 22 of its `stat`).
    pub start_ticks: u64,
}
