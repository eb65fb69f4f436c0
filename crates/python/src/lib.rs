//! The native part of the Python package `lull`: `lull._lull`.
//!
//! The package itself is `python/lull`; its modules hold what can be written in Python, and
//! export what is here. docs/python.md is its guide. Every class and function here has its
//! signature in `python/lull/_lull.pyi`.
//!
//! Long computations run on threads of their own without the interpreter's lock
//! (`background`); results leave as Arrow tables (`table`).
// A test program would have to link libpython, which an extension module must not do: under
// `cargo test` this crate is empty, and its tests are in tests/, in Python.
#![cfg(not(test))]
#![allow(clippy::needless_pass_by_value, reason = "pyo3 passes what it has converted")]

mod agent;
mod background;
mod environment;
mod error;
mod lab;
mod machine;
mod measure;
mod observation;
mod plan;
mod policy;
mod records;
mod replay;
mod results;
mod scenario;
mod search;
mod simulate;
mod statistics;
mod table;
mod values;

/// The native part of the package `lull`.
#[pyo3::pymodule]
mod _lull {
    #[pymodule_export]
    use crate::agent::{AgentObservation, AgentRun, agent_start};
    #[pymodule_export]
    use crate::background::{end_calls, forget_calls};
    #[pymodule_export]
    use crate::environment::Environment;
    #[pymodule_export]
    use crate::lab::{LabReport, lab_claims, lab_experiments, lab_run, lab_run_cells};
    #[pymodule_export]
    use crate::machine::{App, Machine};
    #[pymodule_export]
    use crate::measure::{entropy, equivalence, tlt};
    #[pymodule_export]
    use crate::measure::{mg1, mm1, mmc, mmck, mva};
    #[pymodule_export]
    use crate::observation::{AppObservation, CoreObservation, Observation};
    #[pymodule_export]
    use crate::plan::Plan;
    #[pymodule_export]
    use crate::policy::PolicyRng;
    #[pymodule_export]
    use crate::records::Record;
    #[pymodule_export]
    use crate::replay::{Replay, replay};
    #[pymodule_export]
    use crate::results::Results;
    #[pymodule_export]
    use crate::scenario::Scenario;
    #[pymodule_export]
    use crate::search::Search;
    #[pymodule_export]
    use crate::simulate::{policies, simulate};
    #[pymodule_export]
    use crate::statistics::{
        estimate, holm, paired_difference, paired_ratio, proportion_lower, proportion_upper,
        quantile_lower, quantile_upper, sign_flip_chance, studentised_interval,
    };
    #[pymodule_export]
    use crate::table::Table;

    /// The version of Lull and the commit of its build.
    #[pymodule_export]
    const VERSION: &str = lull_agent::VERSION;
}
