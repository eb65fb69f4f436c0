//! Wang and others, Impact of DVFS on n-Tier Application Performance, TRIOS 2013
//! (seed 003).

pub(crate) mod adaptive;
pub(crate) mod burst;
pub(crate) mod error;
pub(crate) mod goodput;
pub(crate) mod period;
pub(crate) mod table2;
pub(crate) mod table3;

mod adaptive_trace;
mod paper;
mod system;

/// The seed document.
const SEED_FILE: &str = "003_c9e6482762f8ab94.txt";
