//! The plan of a comparison of dispatchers: cores, demand, load, target.

use super::super::UsageError;
use crate::cli::PlaceArgs;
use lull_control::CoreId;
use lull_control::dispatcher::{CoreSpeed, Dispatcher, Ladder, Supply};
use lull_host::dispatch::Floor;
use lull_host::sys::sched::set_affinity;
use lull_measure::{Nanos, Percentile};
use lull_policies::DISPATCHERS;
use lull_policies::dispatch::Site;
use lull_workload::Generator;
use lull_workload::apps::options::{Demand, calibrate};
use rand::SeedableRng;
use std::thread;

/// Requests in the profile that dispatchers are built from (EETL section 4.3).
const PROFILE: usize = 8000;
/// Steps of a path: trading days of a year.
const STEPS: u32 = 252;
/// Lucene's p99 on a fast core over its target, at which EETL was evaluated.
const TAIL_OVER_TARGET: f64 = 0.69;
/// The default load, as a share of what the fast core alone can serve.
const LOAD: f64 = 0.35;
/// A request this many targets old loses its core.
const ABANDON_TARGETS: u64 = 50;

/// Cores, demand, load and target, from arguments and measurements on this machine.
pub(super) struct Plan {
    pub(super) slowdown: f64,
    pub(super) demand: Demand,
    pub(super) rate_per_s: f64,
    pub(super) percentile: Percentile,
    pub(super) target: Nanos,
    /// Work of requests as time on the slow core.
    profile: Vec<Nanos>,
    ladder: Ladder,
    cores: [CoreId; 2],
}

/// Refuses arguments with which no comparison is possible.
pub(super) fn check(args: &PlaceArgs) -> anyhow::Result<()> {
    let wrong = |what: String| Err(UsageError(what).into());
    if args.slow == args.fast {
        return wrong(format!("--slow and --fast are both core {}: name two", args.slow));
    }
    if !(args.slowdown > 1.0 && args.slowdown.is_finite()) {
        return wrong(format!("--slowdown {}: write more than 1", args.slowdown));
    }
    if args.rate.is_some_and(|rate| !(rate > 0.0 && rate.is_finite())) {
        return wrong("--rate: write requests per second above 0".to_owned());
    }
    if args.block < Nanos::from_secs(1) {
        return wrong(format!("--block {}: write 1s or more", args.block));
    }
    if args.dispatchers.is_empty() {
        return wrong("--dispatchers: name at least one; `lull policies` lists them".to_owned());
    }
    Ok(())
}

impl Plan {
    /// Measures the service time of requests on the fast core, and plans with it.
    pub(super) fn new(args: &PlaceArgs, slowdown: f64) -> anyhow::Result<Self> {
        let fast = CoreId(args.fast);
        let mut rng = Generator::seed_from_u64(args.seed);
        let measure = || {
            let me = rustix::thread::gettid().as_raw_nonzero().get();
            set_affinity(me, &[fast].into_iter().collect())?;
            Ok::<_, std::io::Error>(calibrate(args.median, STEPS, &mut rng))
        };
        // The calibration has a thread of its own: the affinity ends with it.
        let calibration = thread::scope(|scope| {
            scope.spawn(measure).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let calibration = calibration.map_err(|error| {
            UsageError(format!("--fast {fast}: this process cannot run there: {error}"))
        })?;
        let demand = calibration.demand;
        let on_fast = |paths: u32| f64::from(paths) * calibration.path_ns;
        let fast_ns: Vec<f64> =
            (0..PROFILE).map(|_| on_fast(demand.draw(&mut rng).paths)).collect();
        let mean_s = fast_ns.iter().sum::<f64>() / fast_ns.len() as f64 / 1e9;
        let types = vec![
            CoreSpeed::new("slow", 1.0, 1.0),
            CoreSpeed::new("fast", slowdown, args.fast_watts),
        ];
        let ladder = Ladder::new(types, Supply::Fixed(vec![1, 1]))
            .map_err(|error| UsageError(error.to_string()))?;
        Ok(Self {
            slowdown,
            demand,
            rate_per_s: args.rate.unwrap_or(LOAD / mean_s),
            percentile: args.percentile,
            target: args.target.unwrap_or_else(|| target(&fast_ns, args.percentile)),
            profile: fast_ns.iter().map(|fast| Nanos((fast * slowdown) as u64)).collect(),
            ladder,
            cores: [CoreId(args.slow), fast],
        })
    }

    /// The two cores.
    pub(super) fn floor(&self) -> Floor {
        let cores = self.cores.map(|core| [core].into_iter().collect()).to_vec();
        let abandon = self.target * ABANDON_TARGETS;
        Floor { ladder: self.ladder.clone(), cores, abandon }
    }

    /// A dispatcher for them, with the defaults of its config.
    pub(super) fn dispatcher(&self, name: &str) -> anyhow::Result<Box<dyn Dispatcher>> {
        let (percentile, target) = (self.percentile, self.target);
        let site = Site { ladder: &self.ladder, percentile, target, profile: &self.profile };
        let wrong = |error| UsageError(format!("--dispatchers {name}: {error}"));
        Ok(DISPATCHERS.build(name, &toml::Table::new(), &site).map_err(wrong)?)
    }

    /// Power of busy cores by type, in units of the slow one's.
    pub(super) fn watts(&self) -> impl Iterator<Item = f64> + '_ {
        self.ladder.types().iter().map(|one| one.watts.0)
    }
}

/// The target at which EETL was evaluated, for this demand.
fn target(fast_ns: &[f64], percentile: Percentile) -> Nanos {
    let mut sorted = fast_ns.to_vec();
    let place = (percentile.fraction() * sorted.len() as f64).ceil().max(1.0) as usize;
    let tail_ns = *sorted.select_nth_unstable_by(place - 1, f64::total_cmp).1;
    Nanos((tail_ns / TAIL_OVER_TARGET) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_leaves_the_tail_the_room_that_lucene_has() {
        let times: Vec<f64> = (1..=1000).map(|ms| f64::from(ms) * 1e6).collect();
        let target = target(&times, Percentile::P99);
        assert!((target.as_millis_f64() - 990.0 / 0.69).abs() < 1e-3, "{target}");
    }
}
