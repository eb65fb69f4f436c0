//! The keys of a config and a machine that the simulation leaves out or makes an assumption for.

use super::Simulated;
use super::gated::{self, GatedApp};
use super::machine::Described;
use crate::config::{AppSection, LatencySource, PowerSection, ProgressSource};
use crate::located::Located;
use lull_control::Capability;
use lull_measure::Nanos;
use lull_policies::POLICIES;
use lull_sim::machine::MachineModel;
use std::collections::BTreeSet;

/// Notes about keys of one text.
struct Notes<'a> {
    text: &'a Located,
    all: Vec<String>,
}

impl Notes<'_> {
    fn add(&mut self, key: &str, message: impl Into<String>) {
        self.all.push(self.text.error(key, message).to_string());
    }
}

/// Everything that is left out or assumed, each with file, line and key. `gated` are the apps
/// whose gates are simulated.
pub(super) fn left_out(
    simulated: &Simulated,
    machine: &Described,
    gated: &[GatedApp<'_>],
) -> Vec<String> {
    let mut of_config = Notes { text: &simulated.config.source, all: Vec::new() };
    of_agent(simulated, &mut of_config);
    for (at, app) in simulated.config.apps.iter().enumerate() {
        of_app(app, &app.entry(at), &mut of_config);
        let of_gate = match gated.iter().find(|gated| gated.number == at) {
            Some(gated) => gated.notes(),
            None => gated::left_out(app),
        };
        for (key, why) in of_gate {
            of_config.add(&format!("{}.{key}", app.entry(at)), why);
        }
    }
    for (at, load) in simulated.config.loads.iter().enumerate() {
        let key = format!("load[{at}]");
        of_config.add(&key, "its client is simulated on another machine and takes no core");
        if !load.extra.is_empty() {
            of_config.add(&format!("{key}.extra"), "further arguments of the client are left out");
        }
    }
    of_policy(simulated, &machine.model, gated, &mut of_config);
    let mut of_machine = Notes { text: &simulated.machine_text, all: Vec::new() };
    for (key, why) in &machine.notes {
        of_machine.add(&format!("machine.{key}"), why);
    }
    of_config.all.extend(of_machine.all);
    of_config.all
}

fn of_agent(simulated: &Simulated, notes: &mut Notes<'_>) {
    let agent = &simulated.config.agent;
    if agent.shadow.is_some() {
        notes.add("agent.shadow", "no policy decides beside the acting one: name it by --policy");
    }
    if agent.profile.is_some() {
        notes.add("agent.profile", "is left out: write the profile among the policy's keys");
    }
    if agent.spots.is_some() {
        notes.add("agent.spots", "is left out: the search begins without known settings");
    }
    if agent.discover.is_some() {
        notes.add("agent.discover", "is left out: no pods are discovered here");
    }
    if simulated.config.power != PowerSection::default() {
        notes.add("power", "is left out: the simulated power is that of [machine.power]");
    }
    if agent.override_foreign {
        notes.add("agent.override_foreign", "has no effect: no other program sets knobs here");
    }
}

fn of_app(app: &AppSection, entry: &str, notes: &mut Notes<'_>) {
    if app.latency != LatencySource::Push {
        let why = "is left out: the simulator sees the latency of each request";
        notes.add(&format!("{entry}.latency"), why);
    }
    if !app.area.is_empty() {
        let why = "is left out: the threads of a simulated app may run on all of its cores";
        notes.add(&format!("{entry}.area"), why);
    }
    if app.progress != ProgressSource::Auto {
        let why = "is left out: the simulator counts seconds of work";
        notes.add(&format!("{entry}.progress"), why);
    }
    if app.solo.is_some_and(|solo| solo.known().is_some()) {
        let why = "is left out: the simulator counts seconds of work, and measures that alone";
        notes.add(&format!("{entry}.solo"), why);
    }
}

/// Knobs that the policy would use on a host and does not find here.
fn of_policy(
    simulated: &Simulated,
    model: &MachineModel,
    gated: &[GatedApp<'_>],
    notes: &mut Notes<'_>,
) {
    let Ok(entry) = POLICIES.find(&simulated.config.policy) else { return };
    let throttles = model.memory.is_some_and(|memory| memory.throttle.is_some());
    let is_missing = |capability: &&Capability| match capability {
        Capability::CacheWays => model.cache.is_none(),
        Capability::MemoryBandwidth => !throttles,
        Capability::Frequency => model.scaling.is_none(),
        Capability::IdleResidency => model.idle.is_empty(),
        Capability::Energy => model.power.is_none(),
        Capability::Coalescing => model.card.is_none(),
        Capability::IdleLatency => exits(model) < 2,
        Capability::Cores
        | Capability::Scheduling
        | Capability::CpuTime
        | Capability::Utilisation
        | Capability::Instructions
        | Capability::TailLatency
        | Capability::Progress => false,
        knob => !gated.iter().any(|gated| gated.has_knob(**knob)),
    };
    let missing: Vec<&str> =
        entry.kind.uses.iter().filter(is_missing).map(|capability| capability.name()).collect();
    if !missing.is_empty() {
        let why = format!(
            "`{}` uses {} where a machine has it, and the simulated one has not",
            entry.name,
            missing.join(", ")
        );
        notes.add("policy.name", why);
    }
}

/// Exit latencies to which the idle states of a machine can be limited.
fn exits(model: &MachineModel) -> usize {
    let exits = model.idle.iter().map(|state| state.exit).filter(|exit| *exit > Nanos::ZERO);
    exits.collect::<BTreeSet<_>>().len()
}
