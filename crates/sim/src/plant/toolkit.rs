//! What plants of tiers, machines and network servers are built from: descriptions of their
//! parts, gauges, and results of settings.

use lull_control::{
    Capabilities, Capability, Coalescing, CoreId, DomainId, FrequencyDomain, Got, Machine, Nic,
    NicId, Setting,
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

/// The one network card.
pub(crate) fn network_card(delay_max: Nanos, delay_step: Nanos) -> Nic {
    Nic { id: NicId(0), name: "simulated".to_owned(), delay_max, delay_step }
}

/// A rate over an epoch.
pub(crate) fn rate_per_s(count: u64, epoch: Nanos) -> Gauge<f64> {
    match epoch {
        Nanos::ZERO => Err(no_length()),
        _ => Ok(count as f64 / epoch.as_secs_f64()),
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

/// The setting of a card's delay; `None` where its driver chooses it.
pub(crate) fn coalescing(delay: Option<Nanos>) -> Coalescing {
    delay.map_or(Coalescing::Adaptive, Coalescing::Delay)
}

/// Sets a frequency domain to its step nearest to `wanted`. `set` sets the domain to a step and
/// returns whether that was in force already.
pub(crate) fn set_frequency(
    machine: &Machine,
    id: DomainId,
    wanted: Hertz,
    set: impl FnOnce(&FrequencyDomain, Hertz) -> bool,
) -> Got {
    let Some(domain) = machine.domain(id) else {
        return Got::Refused { why: format!("there is no frequency domain {}", id.0) };
    };
    let Some(to) = domain.nearest(wanted) else {
        return Got::Refused { why: "the model gives these cores no P-states".to_owned() };
    };
    let already = set(domain, to);
    let clamped = (to != wanted).then(|| format!("{wanted} is no P-state"));
    result_of(Setting::Frequency(id, to), clamped, already)
}

/// Sets the delay of a card's interrupts to the step nearest to `wanted`, or returns it to the
/// driver. `set` sets it and returns whether it was in force already.
pub(crate) fn set_coalescing(
    machine: &Machine,
    id: NicId,
    wanted: Coalescing,
    set: impl FnOnce(Option<Nanos>) -> bool,
) -> Got {
    let Some(nic) = machine.nic(id) else {
        return Got::Refused { why: format!("there is no network interface {}", id.0) };
    };
    let to = match wanted {
        Coalescing::Adaptive => None,
        Coalescing::Delay(delay) => Some(nic.nearest(delay)),
    };
    let already = set(to);
    let became = coalescing(to);
    let why = || format!("delays are steps of {} up to {}", nic.delay_step, nic.delay_max);
    result_of(Setting::Coalescing(id, became), (became != wanted).then(why), already)
}

/// The result of a setting that took effect as `to`.
pub(crate) fn result_of(to: Setting, clamped: Option<String>, already: bool) -> Got {
    match clamped {
        Some(why) => Got::Clamped { to, why },
        None if already => Got::Already,
        None => Got::Done,
    }
}
