//! Offered load and service demands of a model, computed without simulating it.

use super::{HardwareModel, Model, Source, Step, Tier};
use std::collections::BTreeMap;

impl Model {
    /// The machine of a tier's servers.
    pub fn machine_of(&self, tier: &Tier) -> HardwareModel {
        let named = tier.machine.as_ref().and_then(|name| self.machine.get(name));
        named.cloned().unwrap_or_else(|| HardwareModel::plain(1))
    }

    /// Load that open apps offer to each tier at its highest frequency, as a
    /// fraction of its capacity, in the order of the tiers.
    ///
    /// At 1 or above the tier cannot keep up, and unless requests are lost the
    /// backlog grows until a limit stops the run.
    pub fn offered_load(&self) -> Vec<f64> {
        let mut work = BTreeMap::new();
        for app in &self.app {
            if let Source::Open(open) = &app.source {
                let rate =
                    open.schedule.as_ref().map_or(open.rate_per_s, super::Schedule::mean_level);
                add_work(&app.steps, None, rate, &mut work);
            }
        }
        let load = |tier: &Tier| {
            let capacity = f64::from(tier.servers) * self.machine_of(tier).capacity();
            work.get(tier.name.as_str()).unwrap_or(&0.0) / capacity
        };
        self.tier.iter().map(load).collect()
    }

    /// Mean work per request of app number `app` at each tier, in seconds on
    /// the reference core: the service demands of queueing theory.
    pub fn demands_s(&self, app: usize) -> Vec<f64> {
        let mut work = BTreeMap::new();
        add_work(&self.app[app].steps, None, 1.0, &mut work);
        let of = |tier: &Tier| work.get(tier.name.as_str()).copied().unwrap_or(0.0);
        self.tier.iter().map(of).collect()
    }
}

/// Adds the work of steps taken `times` times (per second, or per request).
fn add_work<'m>(
    steps: &'m [Step],
    server: Option<&'m str>,
    times: f64,
    work: &mut BTreeMap<&'m str, f64>,
) {
    for step in steps {
        match step {
            Step::Work(amount) => {
                if let Some(tier) = server {
                    *work.entry(tier).or_default() += times * amount.mean.as_secs_f64();
                }
            }
            Step::Call { tier, steps } => add_work(steps, Some(tier), times, work),
            Step::Hold { steps, .. } => add_work(steps, server, times, work),
            Step::Choose(ways) => {
                for way in ways {
                    add_work(&way.steps, server, times * way.probability, work);
                }
            }
            Step::Repeat { probability, steps } => {
                add_work(steps, server, times / (1.0 - probability), work);
            }
        }
    }
}
