//! Liu and others, Suppressing the Interference Within a Datacenter: Theorems,
//! Metric and Strategy (Ah-Q), TPDS 2024 (seed 004).

pub(crate) mod cores;
pub(crate) mod dip;
pub(crate) mod fluctuating;
pub(crate) mod knee;
pub(crate) mod load;
pub(crate) mod table2;
pub(crate) mod tlt;

mod equivalence;
mod paper;
mod platform;
mod play;
mod sourced;

/// The seed document.
const SEED_FILE: &str = "004_7573a9922eeb22d9.txt";

/// What a report says of strategies whose policies this build lacks.
fn absent(strategies: &[play::Strategy]) -> Option<String> {
    let missing: Vec<&str> =
        strategies.iter().filter(|it| !play::is_here(it)).map(|it| it.name).collect();
    (!missing.is_empty())
        .then(|| format!("reported: policy not in this build: {}", missing.join(", ")))
}
