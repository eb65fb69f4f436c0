//! Liu and others, Suppressing the Interference Within a Datacenter: Theorems,
//! Metric and Strategy (Ah-Q), TPDS 2024.

pub(crate) mod cores;
pub(crate) mod dip;
pub(crate) mod fluctuating;
pub(crate) mod knee;
pub(crate) mod load;
pub(crate) mod scalability;
pub(crate) mod space_time;
pub(crate) mod table2;
pub(crate) mod tlt;
pub(crate) mod ways;

mod paper;
mod platform;
mod play;

use crate::sourced;

/// File name of the paper's text among our sources.
const SEED_FILE: &str = "004_7573a9922eeb22d9.txt";

/// The two readings of ARQ, and which rows hold which of them to the paper.
const READINGS: &str = "\"ARQ\" treats all apps alike in the shared region, as Algorithm 1 reads \
                        by itself; \"ARQ, LC first\" lets latency-critical apps go first there, \
                        as Fig. 9 and section IX-A say. Entropy over cores and the progress of \
                        best-effort apps are held for the latter, because the former, once it has \
                        isolated cores because of noise, returns them only every 60 s";

/// Returns a remark on strategies whose policies this build lacks.
fn absent(strategies: &[play::Strategy]) -> Option<String> {
    let missing: Vec<&str> =
        strategies.iter().filter(|it| !play::is_here(it)).map(|it| it.name).collect();
    (!missing.is_empty())
        .then(|| format!("reported: policy not in this build: {}", missing.join(", ")))
}
