//! The built-in apps: a latency-critical server and best-effort burners.

pub mod burner;
pub mod options;
