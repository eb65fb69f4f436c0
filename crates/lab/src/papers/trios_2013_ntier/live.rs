//! Two tiers on a real machine: the paper's phenomena in a block of epochs.
//!
//! The front tier is Tomcat, the back tier MariaDB, a core each. The paper's terms (sections 3
//! and 4) become figures of a block as follows:
//!
//! - *Rapidly alternating bottlenecks*: the tiers change sides when one is at its highest P-state
//!   and the other at its lowest, and later it is the other way round. States between do not
//!   count. The correlation of the utilisations is the one of Fig. 7(a).
//! - *Push-back*: all database connections are in use and threads of the front tier wait for one.
//!   It is due to P-states where the back tier is below its highest state more often during
//!   push-back than otherwise.
//! - *Anti-synchrony*: the load is high while a tier is still below its highest state.

use super::error::correlation;
use lull_measure::{Latency, Nanos, Percentile};

/// The front tier and the back tier.
pub const TIERS: usize = 2;
/// Index of the back tier.
const BACK: usize = 1;

/// One epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TierEpoch {
    /// Its length.
    pub length: Nanos,
    /// Index of each tier's P-state, the slowest first.
    pub states: [usize; TIERS],
    /// Utilisation of each tier's core, in [0, 1].
    pub busy: [Option<f64>; TIERS],
    /// Requests per second that were due.
    pub offered_per_s: Option<f64>,
}

/// The pool of connections at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolSample {
    /// Index of the back tier's P-state.
    pub back_state: usize,
    /// Threads of the front tier that wait for a connection.
    pub waiting: u32,
    /// Connections that a thread has.
    pub in_use: u32,
}

/// The epochs of a policy's block that count.
#[derive(Debug, Clone, Default)]
pub struct TierBlock {
    /// The epochs in order.
    pub epochs: Vec<TierEpoch>,
    /// Samples of the pool, in their order.
    pub pool: Vec<PoolSample>,
    /// Response times of all requests.
    pub latency: Latency,
}

/// The parameters of the system, by which its blocks are judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TierSystem {
    /// P-states of a core.
    pub states: usize,
    /// Connections in the pool.
    pub connections: u32,
    /// Requests per second from which the load is high.
    pub high_per_s: f64,
}

/// A figure of a block.
#[derive(Debug, Clone, Copy)]
pub struct TierFigure {
    /// The name with its unit.
    pub name: &'static str,
    compute: fn(&TierBlock, &TierSystem) -> Option<f64>,
}

impl TierFigure {
    /// Its value; `None` where the block does not define it.
    pub fn value(&self, block: &TierBlock, system: &TierSystem) -> Option<f64> {
        (self.compute)(block, system).filter(|value| value.is_finite())
    }
}

/// Every figure, in the order in which they are shown.
pub const FIGURES: &[TierFigure] = &[
    TierFigure { name: "answered, requests/s", compute: |block, _| block.answered_per_s() },
    TierFigure {
        name: "response time p50, ms",
        compute: |block, _| block.tail_ms(Percentile::P50),
    },
    TierFigure {
        name: "response time p95, ms",
        compute: |block, _| block.tail_ms(Percentile::P95),
    },
    TierFigure {
        name: "response time p99, ms",
        compute: |block, _| block.tail_ms(Percentile::P99),
    },
    TierFigure {
        name: "Tomcat at P8, % of time",
        compute: |block, _| block.percent_at(0, |at| at == 0),
    },
    TierFigure {
        name: "Tomcat at P0, % of time",
        compute: |block, system| block.percent_at(0, |at| at == system.highest()),
    },
    TierFigure {
        name: "MariaDB at P8, % of time",
        compute: |block, _| block.percent_at(BACK, |at| at == 0),
    },
    TierFigure {
        name: "MariaDB at P0, % of time",
        compute: |block, system| block.percent_at(BACK, |at| at == system.highest()),
    },
    TierFigure {
        name: "Tomcat below P0, % of the time with high load",
        compute: |block, system| block.late_percent(0, system),
    },
    TierFigure {
        name: "MariaDB below P0, % of the time with high load",
        compute: |block, system| block.late_percent(BACK, system),
    },
    TierFigure {
        name: "correlation of the P-states",
        compute: |block, _| block.state_correlation(),
    },
    TierFigure {
        name: "correlation of the utilisations",
        compute: |block, _| block.busy_correlation(),
    },
    TierFigure {
        name: "one tier at P8 and the other at P0, % of time",
        compute: |block, system| block.opposite_percent(system),
    },
    TierFigure {
        name: "changes of sides, per minute",
        compute: |block, system| block.side_changes_per_min(system),
    },
    TierFigure {
        name: "push-back, % of time",
        compute: |block, system| percent(&block.pool, |sample| system.is_pushed_back(sample)),
    },
    TierFigure {
        name: "MariaDB below P0, % of push-back",
        compute: |block, system| block.slow_percent(system, true),
    },
    TierFigure {
        name: "MariaDB below P0, % of the rest",
        compute: |block, system| block.slow_percent(system, false),
    },
    TierFigure {
        name: "most threads that wait for a connection",
        compute: |block, _| {
            block.pool.iter().map(|sample| f64::from(sample.waiting)).reduce(f64::max)
        },
    },
];

impl TierSystem {
    fn highest(&self) -> usize {
        self.states - 1
    }

    fn is_pushed_back(&self, sample: &PoolSample) -> bool {
        sample.waiting > 0 && sample.in_use >= self.connections
    }

    /// The tier that is at its highest state while the other one is at its lowest.
    fn fast_side(&self, epoch: &TierEpoch) -> Option<usize> {
        let is_fast = |tier: usize| {
            epoch.states[tier] == self.highest() && epoch.states[TIERS - 1 - tier] == 0
        };
        (0..TIERS).find(|tier| is_fast(*tier))
    }
}

impl TierBlock {
    fn seconds(&self) -> f64 {
        self.epochs.iter().map(|epoch| epoch.length.as_secs_f64()).sum()
    }

    fn answered_per_s(&self) -> Option<f64> {
        (!self.epochs.is_empty()).then(|| self.latency.count() as f64 / self.seconds())
    }

    fn tail_ms(&self, percentile: Percentile) -> Option<f64> {
        Some(self.latency.quantile(percentile)?.as_millis_f64())
    }

    /// Share of the time in which a tier's state is one of these.
    fn percent_at(&self, tier: usize, is_one: impl Fn(usize) -> bool) -> Option<f64> {
        self.percent_of_time(|_| true, |epoch| is_one(epoch.states[tier]))
    }

    fn late_percent(&self, tier: usize, system: &TierSystem) -> Option<f64> {
        let is_high =
            |epoch: &TierEpoch| epoch.offered_per_s.is_some_and(|rate| rate >= system.high_per_s);
        self.percent_of_time(is_high, |epoch| epoch.states[tier] < system.highest())
    }

    fn opposite_percent(&self, system: &TierSystem) -> Option<f64> {
        self.percent_of_time(|_| true, |epoch| system.fast_side(epoch).is_some())
    }

    /// Share of the time of some epochs that those have which fulfil a condition.
    fn percent_of_time(
        &self,
        counts: impl Fn(&TierEpoch) -> bool,
        is_met: impl Fn(&TierEpoch) -> bool,
    ) -> Option<f64> {
        let (mut all_s, mut met_s) = (0.0, 0.0);
        for epoch in self.epochs.iter().filter(|epoch| counts(epoch)) {
            let length_s = epoch.length.as_secs_f64();
            all_s += length_s;
            met_s += if is_met(epoch) { length_s } else { 0.0 };
        }
        (all_s > 0.0).then(|| 100.0 * met_s / all_s)
    }

    fn state_correlation(&self) -> Option<f64> {
        let pair = |epoch: &TierEpoch| (epoch.states[0] as f64, epoch.states[BACK] as f64);
        known(correlation(&self.epochs.iter().map(pair).collect::<Vec<_>>()))
    }

    fn busy_correlation(&self) -> Option<f64> {
        let pair = |epoch: &TierEpoch| epoch.busy[0].zip(epoch.busy[BACK]);
        known(correlation(&self.epochs.iter().filter_map(pair).collect::<Vec<_>>()))
    }

    fn side_changes_per_min(&self, system: &TierSystem) -> Option<f64> {
        let sides: Vec<usize> =
            self.epochs.iter().filter_map(|epoch| system.fast_side(epoch)).collect();
        let changes = sides.windows(2).filter(|pair| pair[0] != pair[1]).count();
        (!self.epochs.is_empty()).then(|| 60.0 * changes as f64 / self.seconds())
    }

    /// Share of the samples with or without push-back in which the back tier is below its
    /// highest state.
    fn slow_percent(&self, system: &TierSystem, is_pushed_back: bool) -> Option<f64> {
        let samples = self.pool.iter().copied();
        let chosen: Vec<_> =
            samples.filter(|it| system.is_pushed_back(it) == is_pushed_back).collect();
        percent(&chosen, |sample| sample.back_state < system.highest())
    }
}

fn percent(samples: &[PoolSample], is_met: impl Fn(&PoolSample) -> bool) -> Option<f64> {
    let met = samples.iter().filter(|sample| is_met(sample)).count();
    (!samples.is_empty()).then(|| 100.0 * met as f64 / samples.len() as f64)
}

/// A correlation, which is not a number where one side does not vary.
fn known(correlation: f64) -> Option<f64> {
    (!correlation.is_nan()).then_some(correlation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::Rng;
    use rand::{RngExt, SeedableRng};

    const SYSTEM: TierSystem = TierSystem { states: 3, connections: 50, high_per_s: 100.0 };

    fn epoch(states: [usize; TIERS]) -> TierEpoch {
        let length = Nanos::from_millis(50);
        let busy = states.map(|state| Some(state as f64 / 2.0));
        TierEpoch { length, states, busy, offered_per_s: Some(50.0) }
    }

    fn block(states: &[[usize; TIERS]]) -> TierBlock {
        TierBlock { epochs: states.iter().copied().map(epoch).collect(), ..TierBlock::default() }
    }

    fn value(name: &str, block: &TierBlock) -> Option<f64> {
        let figure = FIGURES.iter().find(|figure| figure.name == name);
        figure.unwrap_or_else(|| panic!("no figure {name}")).value(block, &SYSTEM)
    }

    #[test]
    fn tiers_that_alternate_are_opposite_and_change_sides() {
        // Ten epochs a side with one in the middle state between: two seconds and a bit.
        let side = |states| vec![states; 10];
        let wave = [side([2, 0]), vec![[1, 1]], side([0, 2]), vec![[1, 1]], side([2, 0])].concat();
        let block = block(&wave);
        assert!((value("correlation of the P-states", &block).unwrap() + 1.0).abs() < 1e-9);
        assert!((value("correlation of the utilisations", &block).unwrap() + 1.0).abs() < 1e-9);
        let opposite = value("one tier at P8 and the other at P0, % of time", &block).unwrap();
        assert!((opposite - 100.0 * 30.0 / 32.0).abs() < 1e-9, "{opposite}");
        let changes = value("changes of sides, per minute", &block).unwrap();
        assert!((changes - 2.0 * 60.0 / 1.6).abs() < 1e-9, "{changes}");
    }

    #[test]
    fn tiers_that_follow_the_same_load_do_not() {
        let wave = [vec![[0, 0]; 10], vec![[1, 1]; 10], vec![[2, 2]; 20]].concat();
        let block = block(&wave);
        assert!((value("correlation of the P-states", &block).unwrap() - 1.0).abs() < 1e-9);
        assert_eq!(value("one tier at P8 and the other at P0, % of time", &block), Some(0.0));
        assert_eq!(value("changes of sides, per minute", &block), Some(0.0));
        for (name, expected) in
            [("Tomcat at P8, % of time", 25.0), ("MariaDB at P0, % of time", 50.0)]
        {
            let found = value(name, &block).unwrap();
            assert!((found - expected).abs() < 1e-9, "{name}: {found}");
        }
    }

    #[test]
    fn at_full_speed_there_is_no_correlation_of_p_states() {
        let block = block(&[[2, 2]; 4]);
        assert_eq!(value("correlation of the P-states", &block), None);
        assert_eq!(value("Tomcat below P0, % of the time with high load", &block), None);
        assert_eq!(value("push-back, % of time", &block), None, "nothing was sampled");
    }

    #[test]
    fn a_tier_that_climbs_too_late_shows_in_the_time_with_high_load() {
        let mut block = block(&[[0, 2], [0, 2], [0, 0], [2, 2], [2, 2], [0, 0]]);
        for epoch in &mut block.epochs[1..5] {
            epoch.offered_per_s = Some(200.0);
        }
        assert_eq!(value("Tomcat below P0, % of the time with high load", &block), Some(50.0));
        assert_eq!(value("MariaDB below P0, % of the time with high load", &block), Some(25.0));
    }

    #[test]
    fn push_back_needs_a_full_pool_and_threads_that_wait() {
        let sample = |back_state, waiting, in_use| PoolSample { back_state, waiting, in_use };
        let pool = vec![
            sample(0, 7, 50),
            sample(2, 3, 50),
            // A thread between two connections is not pushed back.
            sample(0, 1, 49),
            sample(2, 0, 50),
            sample(2, 0, 0),
        ];
        let block = TierBlock { pool, ..TierBlock::default() };
        assert_eq!(value("push-back, % of time", &block), Some(40.0));
        assert_eq!(value("MariaDB below P0, % of push-back", &block), Some(50.0));
        let rest = value("MariaDB below P0, % of the rest", &block).unwrap();
        assert!((rest - 100.0 / 3.0).abs() < 1e-9, "{rest}");
        assert_eq!(value("most threads that wait for a connection", &block), Some(7.0));
    }

    #[test]
    fn response_times_are_those_of_all_requests_of_the_block() {
        let mut block = block(&[[2, 2]; 20]);
        (1..=100).for_each(|ms| block.latency.record(Nanos::from_millis(ms)));
        let near = |name: &str, expected: f64| {
            let found = value(name, &block).unwrap();
            assert!((found / expected - 1.0).abs() < 0.01, "{name}: {found}");
        };
        near("answered, requests/s", 100.0);
        near("response time p50, ms", 50.0);
        near("response time p99, ms", 99.0);
    }

    /// The choice of the front tier changes no figure of both together.
    #[test]
    fn figures_of_both_tiers_are_symmetric() {
        let mut rng = Rng::seed_from_u64(1);
        for length in 2..60 {
            let mut draw = || rng.random_range(0..3);
            let states: Vec<_> = (0..length).map(|_| [draw(), draw()]).collect();
            let swapped: Vec<_> = states.iter().map(|[front, back]| [*back, *front]).collect();
            let (there, back) = (block(&states), block(&swapped));
            for name in [
                "correlation of the P-states",
                "one tier at P8 and the other at P0, % of time",
                "changes of sides, per minute",
            ] {
                let (one, other) = (value(name, &there), value(name, &back));
                let is_near = one.zip(other).is_some_and(|(a, b)| (a - b).abs() < 1e-9);
                assert!(one == other || is_near, "{name}: {one:?} {other:?} of {states:?}");
            }
            let of_front = value("Tomcat at P8, % of time", &there);
            assert_eq!(of_front, value("MariaDB at P8, % of time", &back));
        }
    }
}
