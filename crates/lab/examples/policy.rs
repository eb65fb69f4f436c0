//! A policy in 60 lines: one app lends its cores while it has slack.

use lull_control::conformance::{MemoryApp, MemoryPlant};
use lull_control::*;
use lull_measure::{Nanos, Percentile, catalogue::TAIL_LATENCY};
use rand::SeedableRng;
use std::io::Write;

/// App 0 has the first `own` cores to itself, app 1 the others.
struct Lend {
    own: u16,
    cores: u16,
    bound: Nanos,
}

impl Policy for Lend {
    fn decide(&mut self, seen: &Observation, _: &mut Rng) -> Plan {
        let latency = seen.apps[0].latency.as_ref().ok();
        let tail = latency.and_then(|latency| latency.tail(Percentile::P95));
        let mut reason = Reason::Start;
        // No answer in this epoch says nothing: the plan stays.
        if let Some(tail) = tail {
            let (value, bound) = (tail.as_secs_f64(), self.bound.as_secs_f64());
            let (high, low) = (0.8 * bound, 0.4 * bound);
            if value > high {
                self.own = (self.own + 1).min(self.cores - 1);
            } else if value < low {
                self.own = (self.own - 1).max(1);
            }
            let threshold = if value > high { high } else { low };
            reason =
                Reason::Threshold { metric: TAIL_LATENCY, app: Some(AppId(0)), value, threshold };
        }
        let (mine, all) = (CoreSet::first(self.own), CoreSet::first(self.cores));
        let mut plan = Plan::keep();
        plan.set(Setting::Cores(AppId(1), all.difference(&mine)), reason.clone());
        plan.set(Setting::Cores(AppId(0), mine), reason);
        plan
    }
}

fn app(spec: AppSpec, demand_cores: f64) -> MemoryApp {
    MemoryApp { spec, demand_cores, service: Nanos::from_millis(1), threads: 8 }
}

/// The last of 40 epochs under the policy.
pub(crate) fn run(cores: u16, demand_cores: f64, bound: Nanos) -> Result<Epoch, PlantError> {
    let server = AppSpec::latency_critical("server", Percentile::P95, bound);
    let apps = vec![app(server, demand_cores), app(AppSpec::best_effort("batch"), 0.0)];
    let plant = MemoryPlant::new(cores, apps);
    let policy = Box::new(Lend { own: cores - 1, cores, bound });
    let control = Controller::new(policy, Rules::default(), &plant).expect("no limits are set");
    let mut turns = ControlLoop::new(plant, control, Nanos::from_secs(1), Rng::seed_from_u64(1));
    (0..40).map(|_| turns.turn()).last().expect("there are 40")
}

fn main() -> std::io::Result<()> {
    let end = run(8, 2.0, Nanos::from_millis(10)).expect("memory does not fail");
    writeln!(std::io::stdout(), "{:#?}", end.assessment)
}
