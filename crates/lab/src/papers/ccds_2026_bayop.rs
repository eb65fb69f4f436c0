//! BayOp: Dong, Arora, Awad, Krieger and Appavoo, Taming and Controlling Performance
//! and Energy Trade-Offs Automatically in Network Applications, CCDS 2026.

pub(crate) mod day;
pub(crate) mod model;
pub(crate) mod netpipe;
pub(crate) mod policy_day;
pub(crate) mod search;
pub(crate) mod silo;
pub(crate) mod sweep;
pub(crate) mod tailbench;

mod hourly;
mod mutilate;
mod system;
mod trials;

/// File name of the paper's text among our sources.
const SEED_FILE: &str = "001_c5da454618c63db3.txt";
