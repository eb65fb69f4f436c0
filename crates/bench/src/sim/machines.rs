//! The simulated machines whose speed is measured: cores and run queues alone, and every part.

use super::Outcome;
use anyhow::{Result, bail};
use lull_control::admission::{Admission, Allowance, GateObservation, Pace, RoundLimits};
use lull_control::dispatcher::{Answer, DispatchRequest, Dispatcher};
use lull_measure::{Hertz, Nanos};
use lull_sim::Replication;
use lull_sim::machine::{
    Activity, Controllers, LinuxScheduler, LoadStep, MachineApp, MachineModel, MachineSimulation,
};
use lull_sim::model::Distribution;

/// Cores of the machine of run queues alone, and the load on it.
pub(super) const CORES: u32 = 4;
pub(super) const RATE_PER_S: f64 = 3200.0;
pub(super) const WORK: Nanos = Nanos::from_millis(1);

/// Queries that the gate admits at a time.
const ADMITTED: u32 = 12;
/// The age at which a request moves to a fast core.
const MOVES_AT: Nanos = Nanos::from_millis(1);

/// A machine to be timed.
#[derive(Clone, Copy)]
pub(super) struct MachineBench {
    pub(super) name: &'static str,
    model: fn() -> Result<MachineModel>,
    has_controllers: bool,
    /// Simulated time before the timing starts, and that is timed.
    warmup: Nanos,
    length: Nanos,
}

/// All measured machines.
pub(super) const MACHINES: [MachineBench; 2] = [
    MachineBench {
        name: "machine-cores",
        model: run_queues,
        has_controllers: false,
        warmup: Nanos::from_secs(10),
        length: Nanos::from_secs(1000),
    },
    MachineBench {
        name: "machine-all",
        model: every_part,
        has_controllers: true,
        warmup: Nanos::from_secs(10),
        length: Nanos::from_secs(100),
    },
];

impl MachineBench {
    /// A machine that has run its warm-up.
    pub(super) fn start(&self, seed: u64) -> Result<MachineSimulation> {
        let controllers = match self.has_controllers {
            true => Controllers {
                admission: vec![Box::new(FixedLimit)],
                dispatcher: Some(Box::new(MoveAtAge)),
            },
            false => Controllers::default(),
        };
        let streams = Replication { seed, number: 0 };
        let mut machine = MachineSimulation::behind(&(self.model)()?, controllers, streams)?;
        machine.run_until(self.warmup);
        machine.forget();
        Ok(machine)
    }

    /// Runs the timed part of a started machine.
    pub(super) fn run(&self, machine: &mut MachineSimulation) {
        machine.run_until(self.warmup.saturating_add(self.length));
    }
}

/// Returns a machine's results since its warm-up, after which it had taken `events_before` events.
pub(super) fn outcome(machine: &MachineSimulation, events_before: u64) -> Result<Outcome> {
    let totals = machine.totals();
    let answers = totals.apps.iter().filter_map(|app| {
        let mean = app.latency.mean()?;
        Some((app.latency.count(), mean.as_secs_f64()))
    });
    let (answered, sum_s) = answers.fold((0, 0.0), |(count, sum_s), (each, mean_s)| {
        (count + each, sum_s + each as f64 * mean_s)
    });
    if answered == 0 {
        bail!("the machine answered no request: it is not what is to be measured");
    }
    Ok(Outcome {
        answered,
        events: totals.events - events_before,
        mean_response_s: sum_s / answered as f64,
        ..Outcome::default()
    })
}

/// More threads than cores, which serve requests of exponential work: whatever the order in
/// which they run, the number of requests is that of M/M/4, for no core idles while one waits.
fn run_queues() -> Result<MachineModel> {
    let load = vec![LoadStep { from: Nanos::ZERO, rate_per_s: RATE_PER_S }];
    let requests = Activity::requests(Distribution::exponential(WORK), load);
    let scheduler = LinuxScheduler { switch_cost: Nanos::ZERO, ..LinuxScheduler::default() };
    Ok(MachineModel {
        scheduler,
        app: vec![MachineApp::new("server", 64, requests)],
        ..MachineModel::plain("cores and run queues", CORES as u16, Hertz::from_khz(2_000_000))
    })
}

fn every_part() -> Result<MachineModel> {
    Ok(toml::from_str(include_str!("machines.toml"))?)
}

/// Admits a fixed number of queries at a time.
struct FixedLimit;

impl Admission for FixedLimit {
    fn decide(&mut self, _: &GateObservation<'_>, limits: &mut RoundLimits) {
        limits.allow.fill(Allowance::turns_of(1));
        limits.cap = ADMITTED;
        limits.pace = Pace::Flow { again: Nanos::from_secs(1) };
    }
}

/// Starts requests on the slowest free core and moves them to a fast one at an age.
struct MoveAtAge;

impl Dispatcher for MoveAtAge {
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        let free = request.free.iter().position(|free| *free > 0);
        match (request.on, free) {
            (None, Some(kind)) => Answer::on(kind, Some(MOVES_AT)),
            (Some(0), _) if request.age >= MOVES_AT => Answer::on(1, None),
            (Some(0), _) => Answer::stay(Some(MOVES_AT)),
            _ => Answer::stay(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_sim::theory;

    /// The same machine for a shorter time, for tests are not optimised.
    fn short(bench: MachineBench, length: Nanos) -> (MachineSimulation, Outcome) {
        let bench = MachineBench { warmup: Nanos::from_secs(1), length, ..bench };
        let mut machine = bench.start(1).unwrap();
        let before = machine.events();
        bench.run(&mut machine);
        let outcome = outcome(&machine, before).unwrap();
        (machine, outcome)
    }

    #[test]
    fn the_machine_of_run_queues_alone_has_the_mean_of_theory() {
        let [cores, _] = MACHINES;
        let (_, outcome) = short(cores, Nanos::from_secs(40));
        let exact = theory::mmc(RATE_PER_S, WORK.as_secs_f64(), CORES).unwrap().response_s;
        let ratio = outcome.mean_response_s / exact;
        assert!((0.9..1.1).contains(&ratio), "{outcome:?} {exact}");
        assert!(outcome.events >= 2 * outcome.answered, "an arrival and an end each: {outcome:?}");
    }

    #[test]
    fn every_part_of_the_other_machine_is_at_work() {
        let model = every_part().unwrap();
        assert!(model.core_types.is_some() && model.interference > 0.0);
        assert!(model.scaling.is_some() && model.power.is_some() && !model.idle.is_empty());
        assert!(model.cache.is_some() && model.memory.is_some() && model.card.is_some());
        assert!(!model.gate.is_empty() && model.dispatch.is_some());
        let [_, all] = MACHINES;
        let (mut machine, outcome) = short(all, Nanos::from_secs(2));
        let totals = machine.totals();
        assert!(totals.apps[0].answered > 1000 && totals.apps[1].answered > 500, "{outcome:?}");
        assert!(totals.apps[2].work_per_s > 0.0);
        assert!(machine.take_dispatch_counts().moves > 100);
    }
}
