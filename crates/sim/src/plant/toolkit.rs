//! The parts of plants of tiers and machines: descriptions of their parts, gauges, and results of
//! settings.

use lull_control::{
    ApplyOutcome, Capabilities, Capability, CoreId, DomainId, FrequencyDomain, Machine, Setting,
};
use lull_measure::{Gauge, Hertz, Missing, Nanos};

/// Capabilities that are there by `means`, or not and why.
pub(crate) fn capabilities(
    found: impl IntoIterator<Item = (Capability, bool, &'static str)>,
    means: &str,
) -> Capabilities {
    found.into_iter().fold(Capabilities::default(), |all, (what, is_there, why)| match is_there {
        true => all.with_capability(what, means),
        false => all.without(what, Missing::because(why)),
    })
}

/// A frequency domain of this many consecutive cores, the `id`-th of equal ones.
pub(crate) fn frequency_domain(id: u16, cores: u16, steps: Vec<Hertz>) -> FrequencyDomain {
    FrequencyDomain {
        id: DomainId(id),
        cores: (id * cores..(id + 1) * cores).map(CoreId).collect(),
        steps,
        continuous: false,
    }
}

/// A part of an epoch, in [0, 1].
pub(crate) fn share(part_ns: u128, epoch: Nanos) -> Gauge<f64> {
    match epoch {
        Nanos::ZERO => Err(no_length()),
        _ => Ok((part_ns as f64 / epoch.0 as f64).min(1.0)),
    }
}

/// Why an epoch of no length has no rates.
pub(crate) fn no_length() -> Missing {
    Missing::because("an epoch of no length")
}

/// Sets a frequency domain to its step nearest to `wanted`. `set` sets the domain to a step and
/// returns whether that was in force already.
pub(crate) fn set_frequency(
    machine: &Machine,
    id: DomainId,
    wanted: Hertz,
    set: impl FnOnce(&FrequencyDomain, Hertz) -> bool,
) -> ApplyOutcome {
    let Some(domain) = machine.domain(id) else {
        return ApplyOutcome::Refused { why: format!("there is no frequency domain {}", id.0) };
    };
    let Some(to) = domain.nearest(wanted) else {
        return ApplyOutcome::Refused { why: "the model gives these cores no P-states".to_owned() };
    };
    let already = set(domain, to);
    let clamped = (to != wanted).then(|| format!("{wanted} is no P-state"));
    result_of(Setting::Frequency(id, to), clamped, already)
}

/// The result of a setting that took effect as `to`.
pub(crate) fn result_of(to: Setting, clamped: Option<String>, already: bool) -> ApplyOutcome {
    match clamped {
        Some(why) => ApplyOutcome::Clamped { to, why },
        None if already => ApplyOutcome::Already,
        None => ApplyOutcome::Done,
    }
}
