//! The registries: every policy, dispatcher and admission controller, one line each.
//!
//! `lull policies`, its JSON, docs/policies.md, the pictures of the lab, the benchmark of
//! decisions and the checks of configs derive from these lists.

use crate::admission::{
    AdmissionKind, apples, auto, cinnamon, envoy_gradient, gate_fifo, gradient2, manual, open,
    pslo, reef, throughput_probing, utslo, vegas,
};
use crate::colocation::{
    arq, clite, even, heracles, lc_first, parties, qos_wc, rr, satori, tide, unmanaged,
};
use crate::dispatch::{
    DispatcherKind, clairvoyant, ee, eetl, just_in_time, level, octopus_man, pegasus, rubik, s2f,
    tl,
};
use crate::entry::{PolicyKind, Registry};
use crate::frequency::{
    adaptive_dvfs, conservative, constant, demeter, ondemand, schedutil, step_dvfs,
};
use crate::tuning::{bayop, co_pi, linux_default, static_setting};

#[cfg(test)]
mod tests;

/// Every policy.
pub static POLICIES: Registry<PolicyKind> = Registry(&[
    &unmanaged::ENTRY,
    &even::ENTRY,
    &lc_first::ENTRY,
    &rr::ENTRY,
    &heracles::ENTRY,
    &parties::ENTRY,
    &clite::ENTRY,
    &satori::ENTRY,
    &arq::ENTRY,
    &tide::ENTRY,
    &qos_wc::ENTRY,
    &constant::FULL_SPEED,
    &step_dvfs::ENTRY,
    &adaptive_dvfs::ENTRY,
    &constant::PERFORMANCE,
    &constant::POWERSAVE,
    &ondemand::ENTRY,
    &conservative::ENTRY,
    &schedutil::ENTRY,
    &demeter::ENTRY,
    &linux_default::ENTRY,
    &static_setting::ENTRY,
    &bayop::ENTRY,
    &co_pi::ENTRY,
]);

/// Every dispatcher.
pub static DISPATCHERS: Registry<DispatcherKind> = Registry(&[
    &eetl::ENTRY,
    &just_in_time::ENTRY,
    &s2f::ENTRY,
    &tl::ENTRY,
    &ee::ENTRY,
    &level::ENTRY,
    &pegasus::ENTRY,
    &rubik::ENTRY,
    &octopus_man::ENTRY,
    &clairvoyant::ENTRY,
]);

/// Every admission controller.
pub static ADMISSION_CONTROLLERS: Registry<AdmissionKind> = Registry(&[
    &open::ENTRY,
    &manual::ENTRY,
    &gate_fifo::ENTRY,
    &apples::ENTRY,
    &pslo::ENTRY,
    &utslo::ENTRY,
    &reef::ENTRY,
    &auto::ENTRY,
    &gradient2::ENTRY,
    &vegas::ENTRY,
    &envoy_gradient::ENTRY,
    &throughput_probing::ENTRY,
    &cinnamon::ENTRY,
]);
