//! The description of a machine for policies: cores, domains, controls, capabilities.

use crate::idle::IdleRule;
use crate::machine::{Card, CoreTypes, GateModel, MachineModel, Throttle};
use crate::plant::toolkit;
use lull_control::admission::GateLimits;
use lull_control::dispatcher::Supply;
use lull_control::{
    AppId, AppSpec, BandwidthControl, CacheControl, Capabilities, Capability, Core, CoreId,
    CoreType, FrequencyDomain, GateControl, Machine, Nic, NicId,
};
use lull_measure::{Hertz, Nanos};
use lull_oncall::{BATCH_MAX, CAP_MAX, ISR_DELAY_MAX_NS};

/// Why no gate's numbers can be set.
const NO_GATE: &str = "the model gives the machine no gate";
const GATE_NOT_MANUAL: &str = "the admission controller at the gate chooses its numbers itself: \
                               to leave them to a policy, write a number as the concurrency of a \
                               config, or admission = { name = \"manual\" } in a scenario";
const GATE_UNWATCHED: &str = "no app behind a gate whose numbers can be set is watched: add one to \
                              the apps that the policy manages";

/// The machine of a plant that watches these apps, whose numbers in the model are given. A gate
/// without numbers is not a knob.
pub(super) fn describe(
    model: &MachineModel,
    apps: &[AppSpec],
    numbers: &[usize],
    gates: &[Option<GateLimits>],
) -> Machine {
    let core = |(id, kind): (u16, usize)| Core {
        id: CoreId(id),
        core_type: kind,
        package: 0,
        smt_leader: CoreId(id),
    };
    let cache = model.cache.map(|cache| CacheControl {
        ways: cache.ways,
        contiguous: true,
        size_bytes: u64::from(cache.ways) * cache.way_bytes,
    });
    let bandwidth = throttle_of(model).map(|throttle| BandwidthControl {
        min_percent: throttle.min_percent,
        step_percent: throttle.step_percent,
    });
    let no_gate = why_no_gate(gates);
    let manual = model.gate.iter().zip(gates).filter(|(_, numbers)| numbers.is_some());
    let gates = manual.filter_map(|(gate, _)| gate_of(model, gate, apps, numbers)).collect();
    let cards = model.card.iter();
    let nics = cards.map(|&Card { delay_max, delay_step, .. }| Nic {
        id: NicId(0),
        name: "simulated".to_owned(),
        delay_max,
        delay_step,
    });
    Machine {
        name: format!("simulated {}", model.name),
        cores: (0..).zip(model.kinds()).map(core).collect(),
        core_types: core_types(model),
        domains: domains(model),
        capabilities: capabilities(model, apps, no_gate),
        cache,
        bandwidth,
        nics: nics.collect(),
        idle_latencies: idle_latencies(model),
        ..Machine::default()
    }
    .with_gates(gates, "simulated")
}

/// The core types; one where all cores are alike or can be of any.
fn core_types(model: &MachineModel) -> Vec<CoreType> {
    match &model.core_types {
        Some(CoreTypes { types, supply: Supply::Fixed(_) }) => {
            let slowest = types[0].speed;
            let each = types.iter();
            each.map(|one| CoreType { name: one.name.clone(), speed: one.speed / slowest })
                .collect()
        }
        _ => vec![CoreType { name: "core".to_owned(), speed: 1.0 }],
    }
}

/// The frequency domains; one without steps if the frequency is fixed.
fn domains(model: &MachineModel) -> Vec<FrequencyDomain> {
    let Some(scaling) = &model.scaling else {
        return vec![toolkit::frequency_domain(0, model.cores, Vec::new())];
    };
    let mut steps = scaling.steps.clone();
    if steps.is_empty() {
        let lower = (scaling.lowest.0..model.frequency.0).step_by(scaling.step.0 as usize);
        steps = lower.map(Hertz).chain([model.frequency]).collect();
    }
    let each = scaling.domain;
    let domain = |id| toolkit::frequency_domain(id, each, steps.clone());
    (0..model.cores / each).map(domain).collect()
}

/// The exit latencies to which idle states can be limited; none if the cores have no choice.
fn idle_latencies(model: &MachineModel) -> Vec<Nanos> {
    let exits = model.idle.iter().map(|state| state.exit);
    let mut all: Vec<_> = exits.filter(|exit| *exit > Nanos::ZERO).collect();
    all.dedup();
    match model.idle_rule {
        IdleRule::Menu | IdleRule::Teo if all.len() > 1 => all,
        _ => Vec::new(),
    }
}

fn throttle_of(model: &MachineModel) -> Option<Throttle> {
    model.memory.and_then(|memory| memory.throttle)
}

/// Returns a gate; `None` if no app behind it is watched. It is listed under the first of these
/// apps with a latency objective, because a search uses that objective.
fn gate_of(
    model: &MachineModel,
    gate: &GateModel,
    apps: &[AppSpec],
    numbers: &[usize],
) -> Option<GateControl> {
    let connected: Vec<usize> = model.behind(gate).map(|(number, _)| number).collect();
    let is_behind = |at: &usize| connected.contains(&numbers[*at]);
    let mut behind = (0..apps.len()).filter(is_behind);
    let first = behind.clone().find(|at| apps[*at].is_latency_critical());
    let app = first.or_else(|| behind.next())?;
    let connections = model.behind(gate).map(|(_, app)| app.threads).sum();
    Some(GateControl {
        app: AppId(app as u16),
        workers: Some(connections),
        cap_max: connections.max(CAP_MAX),
        batch_max: BATCH_MAX,
        delay_max: Nanos(ISR_DELAY_MAX_NS),
    })
}

/// Why no gate is a knob, where none is.
fn why_no_gate(gates: &[Option<GateLimits>]) -> &'static str {
    match gates {
        [] => NO_GATE,
        _ if gates.iter().all(Option::is_none) => GATE_NOT_MANUAL,
        _ => GATE_UNWATCHED,
    }
}

fn capabilities(model: &MachineModel, apps: &[AppSpec], no_gate: &'static str) -> Capabilities {
    let critical = |wanted: bool| apps.iter().any(|app| app.is_latency_critical() == wanted);
    let sleeps = !model.idle.is_empty();
    let shares_cores = model.event_loops().is_none();
    let is_linux = model.run_queues.is_none() && shares_cores;
    let alike = match shares_cores {
        true => "threads under `run-queues` are all alike",
        false => "a machine of event loops runs one app",
    };
    let found = [
        (Capability::Cores, shares_cores, "threads of event loops are pinned, one a core"),
        (Capability::Scheduling, is_linux, alike),
        (Capability::CpuTime, true, ""),
        (Capability::Utilisation, true, ""),
        (Capability::Instructions, shares_cores, "event loops count cycles only"),
        (Capability::CacheWays, model.cache.is_some(), "the model gives the machine no cache"),
        (
            Capability::MemoryBandwidth,
            throttle_of(model).is_some(),
            "the model gives memory no throttle",
        ),
        (Capability::TailLatency, critical(true), "no latency-critical app is watched"),
        (Capability::Progress, critical(false), "no best-effort app is watched"),
        (Capability::RealTimeThrottle, false, "the simulated scheduler never throttles"),
        (Capability::Frequency, model.scaling.is_some(), "the model gives one frequency"),
        (Capability::Coalescing, model.card.is_some(), "the model gives no network card"),
        (Capability::GateCap, false, no_gate),
        (Capability::GateBatch, false, no_gate),
        (Capability::GateDelay, false, no_gate),
        (
            Capability::IdleLatency,
            !idle_latencies(model).is_empty(),
            "the model gives the cores no choice of idle states",
        ),
        (Capability::EnergyPreference, false, "simulated governors have no energy preference"),
        (Capability::IdleResidency, sleeps, "the model gives the cores no idle states"),
        (Capability::SchedulerEvents, false, "the simulated machine counts waits in sums only"),
        (Capability::Energy, model.power.is_some(), "the model gives no power"),
    ];
    toolkit::capabilities(found, "simulated")
}
