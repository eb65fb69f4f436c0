//! The machine of a plant: cores, capabilities and knobs.

use super::{PlantSpec, toolkit};
use crate::engine::Engine;
use crate::model::HardwareModel;
use lull_control::{
    ApplyOutcome, Capabilities, Capability, Core, CoreId, CoreSet, CoreType, DomainId,
    FrequencyDomain, Machine, Setting,
};
use lull_measure::{Hertz, Missing};

/// The machine of a plant.
pub(super) fn machine_of(model: &HardwareModel, spec: &PlantSpec) -> Machine {
    let core_types = core_types(model);
    let (mut cores, mut domains) = (Vec::new(), Vec::new());
    for group in &model.cores {
        let core_type = core_types.iter().position(|kind| kind.name == group.name).unwrap_or(0);
        let steps: Vec<Hertz> = group.pstates.iter().rev().map(|state| state.frequency).collect();
        let each = if group.domain == 0 { group.count } else { group.domain };
        for number in 0..group.domains() {
            let count = each.min(group.count - number * each);
            let first = cores.len() as u16;
            let ids = (first..first + count as u16).map(CoreId);
            cores.extend(ids.clone().map(|id| Core { id, core_type, package: 0, smt_leader: id }));
            domains.push(FrequencyDomain {
                id: DomainId(domains.len() as u16),
                cores: ids.collect::<CoreSet>(),
                steps: steps.clone(),
                continuous: false,
            });
        }
    }
    Machine {
        name: format!("simulated {} {}", spec.tier, spec.server),
        capabilities: capabilities(model, spec),
        cores,
        core_types,
        domains,
        ..Machine::default()
    }
}

/// Core types, slowest first, with speeds relative to the slowest.
fn core_types(model: &HardwareModel) -> Vec<CoreType> {
    let mut groups: Vec<_> = model.cores.iter().collect();
    groups.sort_by(|a, b| a.speed.total_cmp(&b.speed).then_with(|| a.name.cmp(&b.name)));
    groups.dedup_by(|a, b| a.name == b.name);
    let slowest = groups[0].speed;
    let kind = |name: &str, speed: f64| CoreType { name: name.to_owned(), speed: speed / slowest };
    groups.into_iter().map(|group| kind(&group.name, group.speed)).collect()
}

fn capabilities(model: &HardwareModel, spec: &PlantSpec) -> Capabilities {
    let absent = [
        Capability::Cores,
        Capability::Scheduling,
        Capability::RealTimeThrottle,
        Capability::CacheWays,
        Capability::MemoryBandwidth,
        Capability::CpuTime,
        Capability::Coalescing,
        Capability::GateCap,
        Capability::GateBatch,
        Capability::GateDelay,
        Capability::IdleResidency,
        Capability::SchedulerEvents,
        Capability::Instructions,
    ];
    let critical = |wanted: bool| spec.apps.iter().any(|app| app.is_latency_critical() == wanted);
    let scales = model.cores.iter().any(|group| !group.pstates.is_empty());
    let (fixed, unwatched) =
        ("the model gives the cores no P-states", "this plant watches no such app");
    let found = [
        (Capability::Utilisation, true, "simulated busy time", ""),
        (Capability::Energy, false, "", "simulated energy is modelled, not metered"),
        (Capability::Frequency, scales, "simulated P-states", fixed),
        (Capability::TailLatency, critical(true), "simulated calls", unwatched),
        (Capability::Progress, critical(false), "simulated calls", unwatched),
    ];
    let all = absent.into_iter().fold(Capabilities::default(), |all, what| {
        let why = format!("a tier's server has no {what} in the simulator");
        all.without(what, Missing::because(why))
    });
    found.into_iter().fold(all, |all, (what, is_there, means, why)| match is_there {
        true => all.with_capability(what, means),
        false => all.without(what, Missing::because(why)),
    })
}

/// Sets one knob of a server.
pub(super) fn set(
    engine: &mut Engine,
    server: usize,
    machine: &Machine,
    wanted: &Setting,
) -> ApplyOutcome {
    let Setting::Frequency(id, hertz) = wanted else {
        let why = machine.capabilities.get(wanted.knob().capability());
        return ApplyOutcome::Refused {
            why: why.map_or_else(|why| why.to_string(), ToOwned::to_owned),
        };
    };
    toolkit::set_frequency(machine, *id, *hertz, |domain, to| {
        let step = domain.steps.iter().rposition(|step| *step == to);
        let step = step.expect("the nearest step is one of the steps");
        !engine.set_pstate(server, id.0 as usize, domain.steps.len() - 1 - step)
    })
}
