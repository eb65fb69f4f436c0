//! Builds, checks and measures Lull.
fn main() {}
