//! The paper's servers as models, and the runs of admission controllers on them.

use crate::prelude::*;
use crate::sourced::{self, Parameter};
use lull_measure::{Nanos, Percentile};
use lull_policies::ADMISSION_CONTROLLERS;
use lull_policies::admission::Site;
use lull_sim::oversubscribed::{
    ConnectionClass, Contention, Device, GatedTotals, OversubscribedModel, Polling,
};
use lull_sim::stats::Estimate;
use lull_sim::{Replication, RunLength};
use rayon::prelude::*;
use serde::Deserialize;

/// The break-even of C6 (sections 2.1 and 3.2).
pub(super) const BREAK_EVEN: Nanos = Nanos::from_millis(1);
/// Index of C6 among the idle states of the scenario.
pub(super) const C6: usize = 1;

/// The model of MongoDB, and its parameters by source.
pub(super) fn mongo() -> (OversubscribedModel, Vec<Parameter>) {
    sourced::read(include_str!("mongo.toml"))
}

/// The parameters that differ for MySQL.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Differences {
    device: Device,
    contention: Contention,
}

/// The model of MySQL, and the parameters that differ from MongoDB's.
pub(super) fn mysql() -> (OversubscribedModel, Vec<Parameter>) {
    let (other, parameters): (Differences, _) = sourced::read(include_str!("mysql.toml"));
    let Differences { device, contention } = other;
    (OversubscribedModel { device, contention, ..mongo().0 }, parameters)
}

/// The same server with this many connections, all best effort.
pub(super) fn set_connections(
    model: &OversubscribedModel,
    connections: u32,
) -> OversubscribedModel {
    let class = ConnectionClass { connections, ..model.class[0].clone() };
    OversubscribedModel { class: vec![class], ..model.clone() }
}

/// How self-serving threads wait for their turn: section 2.1 has them "continuously poll state",
/// and does not print how often. The period is ours, the shortest sleep of whole milliseconds,
/// and a look is a timer's interrupt and a system call. Nothing is fitted to the gains.
const POLLING: Polling = Polling { every: Nanos::from_millis(1), work: Nanos::from_micros(3) };

/// The same server under a gate whose held threads are self-serving, as under AppleS, PSLO and
/// UTSLO; REEF turns them into on-call threads, which sleep until a signal (section 3.3).
pub(super) fn self_serving(model: &OversubscribedModel) -> OversubscribedModel {
    OversubscribedModel { polling: Some(POLLING), ..model.clone() }
}

/// Runs servers.
pub(super) struct GateBench<'a> {
    setup: &'a Setup<'a>,
    /// The time before counting, long enough for searches.
    warmup: Nanos,
    length: Nanos,
}

/// One admission controller on one server, a run a replication.
pub(super) struct GateCell {
    pub(super) runs: Vec<GatedTotals>,
}

impl<'a> GateBench<'a> {
    /// Short warm-ups: admission controllers that search nothing.
    pub(super) fn settled(setup: &'a Setup<'a>) -> Self {
        let (warmup, length) = setup.either((2_000, 6_000), (500, 1_000));
        Self { setup, warmup: Nanos::from_millis(warmup), length: Nanos::from_millis(length) }
    }

    /// Long ones: admission controllers that search for their cap.
    pub(super) fn searching(setup: &'a Setup<'a>, warmup_s: u64, length_s: u64) -> Self {
        let (warmup, length) = setup.either((warmup_s, length_s), (4, 2));
        Self { setup, warmup: Nanos::from_secs(warmup), length: Nanos::from_secs(length) }
    }

    /// Replications of each cell.
    pub(super) fn replications(&self) -> u64 {
        self.setup.either(5, 2)
    }

    /// Measures an admission controller on a server.
    pub(super) fn cell(
        &self,
        model: &OversubscribedModel,
        name: &str,
        config: &str,
    ) -> Result<GateCell, LabError> {
        let objectives = model.objectives();
        // One core is left to the system (section 3.3: C below the number of cores).
        let site = Site::new(&objectives, model.cores.max(2) - 1);
        let config: toml::Table = config.parse().expect("configs of experiments are TOML");
        self.setup.progress.expect(self.replications());
        let run = |replication| {
            let admission = ADMISSION_CONTROLLERS.build(name, &config, &site)?;
            let streams = Replication { seed: self.setup.seed, number: replication };
            let length = RunLength { warmup: self.warmup, counted: self.length };
            let served = model.measure(admission, streams, length)?;
            self.setup.progress.step();
            Ok(served)
        };
        let runs: Vec<Result<GatedTotals, LabError>> =
            (0..self.replications()).into_par_iter().map(run).collect();
        Ok(GateCell { runs: runs.into_iter().collect::<Result<_, _>>()? })
    }
}

impl GateCell {
    /// The mean of a figure.
    pub(super) fn mean(&self, value: impl Fn(&GatedTotals) -> f64) -> Estimate {
        estimate_of(&self.runs.iter().map(value).collect::<Vec<_>>())
    }

    /// A figure over that of another cell that met the same queries.
    pub(super) fn over(&self, other: &Self, value: impl Fn(&GatedTotals) -> f64) -> Estimate {
        paired_ratio(&self.runs, &other.runs, value)
    }

    /// Its change in percent.
    pub(super) fn change_percent(
        &self,
        other: &Self,
        value: impl Fn(&GatedTotals) -> f64,
    ) -> Estimate {
        change_percent(&self.over(other, value))
    }

    /// Its difference, times a factor.
    pub(super) fn minus(
        &self,
        other: &Self,
        factor: f64,
        value: impl Fn(&GatedTotals) -> f64,
    ) -> Estimate {
        let pairs = self.runs.iter().zip(&other.runs);
        let differences = pairs.map(|(ours, theirs)| factor * (value(ours) - value(theirs)));
        estimate_of(&differences.collect::<Vec<_>>())
    }
}

/// The choices where the paper states nothing.
pub(super) fn choices(parameters: &[Parameter]) -> Vec<String> {
    let mut choices = sourced::choices(parameters);
    choices.push(
        "threads that AppleS, PSLO and UTSLO hold are self-serving: each wakes up every 1 ms for \
         3 us to see whether its turn has come (ours; section 2.1 has such threads \"continuously \
         poll state\"); those that REEF holds are on call. CPU frequency is cycles over wall \
         time, as turbostat's Avg_MHz: P-states of 1.2 to 2.9 GHz cannot differ by the printed \
         73.65 %"
            .to_owned(),
    );
    choices.push(
        "a round is a turn for each connection that waits, C at a time (section 4), a connection \
         keeps its turn over its round trips, and latency counts from a query's arrival to its \
         answer at the server; energy is of CPU, memory and storage, as in Table 2"
            .to_owned(),
    );
    choices
}

/// Queries per second.
pub(super) fn throughput(served: &GatedTotals) -> f64 {
    served.throughput_per_s()
}

/// Mean power, in watts.
pub(super) fn watts(served: &GatedTotals) -> f64 {
    served.power().0
}

/// EE(TPP).
pub(super) fn tpp(served: &GatedTotals) -> f64 {
    served.efficiency().unwrap_or(f64::NAN)
}

/// EE(P99).
pub(super) fn ee_p99(served: &GatedTotals) -> f64 {
    served.tail_efficiency(Percentile::P99).unwrap_or(f64::NAN)
}

/// EE(P99.9).
pub(super) fn ee_p999(served: &GatedTotals) -> f64 {
    served.tail_efficiency(Percentile::P999).unwrap_or(f64::NAN)
}

/// The p99 over the mean latency.
pub(super) fn p99_over_mean(served: &GatedTotals) -> f64 {
    served.tail_over_mean(Percentile::P99).unwrap_or(f64::NAN)
}

/// The p99.9 over the mean latency.
pub(super) fn p999_over_mean(served: &GatedTotals) -> f64 {
    served.tail_over_mean(Percentile::P999).unwrap_or(f64::NAN)
}

/// Standard deviation of the latency over its mean, from the buckets of its histogram.
pub(super) fn variation(served: &GatedTotals) -> f64 {
    let (mut count, mut sum_s, mut squares_s2) = (0.0, 0.0, 0.0);
    for (value, times) in served.latency().buckets() {
        let (seconds, times) = (value.as_secs_f64(), times as f64);
        count += times;
        sum_s += times * seconds;
        squares_s2 += times * seconds * seconds;
    }
    let mean_s = sum_s / count;
    (squares_s2 / count - mean_s * mean_s).max(0.0).sqrt() / mean_s
}

/// Share of core time in C6.
pub(super) fn in_c6(served: &GatedTotals) -> f64 {
    served.residency_share(C6)
}

/// Cycles of a core over wall time, in which an idle core has none.
pub(super) fn hertz(served: &GatedTotals) -> f64 {
    let all: Nanos = served.residency.iter().copied().sum::<Nanos>() + served.busy;
    served.busy_hertz * served.busy.0 as f64 / all.0 as f64
}

/// The p99, in ms.
pub(super) fn p99_ms(served: &GatedTotals) -> f64 {
    tail_ms(served, Percentile::P99)
}

/// The p99.9, in ms.
pub(super) fn p999_ms(served: &GatedTotals) -> f64 {
    tail_ms(served, Percentile::P999)
}

/// A latency percentile, in ms.
pub(super) fn tail_ms(served: &GatedTotals, at: Percentile) -> f64 {
    served.latency().quantile(at).map_or(f64::NAN, Nanos::as_millis_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_servers_are_sound_and_every_number_has_a_source() {
        for (model, parameters) in [mongo(), mysql()] {
            assert_eq!(model.check(), Ok(()));
            assert!(!parameters.is_empty());
        }
        let (model, parameters) = mongo();
        assert_eq!(model.connections(), 512);
        assert_eq!(model.idle[C6].name, "C6");
        let has = |key: &str| parameters.iter().any(|parameter| parameter.key == key);
        assert!(has("device.rate_per_s") && has("C6.entry") && has("query.io"));
    }

    #[test]
    fn the_laws_of_contention_meet_the_points_of_figure_3() {
        let at = |model: &OversubscribedModel, threads| model.contention.instructions(threads);
        let (mongo, mysql) = (mongo().0, mysql().0);
        assert!((at(&mongo, 128) - 1.27).abs() < 0.01 && (at(&mongo, 512) - 1.27).abs() < 0.01);
        assert!((at(&mysql, 64) - 1.11).abs() < 0.01 && (at(&mysql, 512) - 6.14).abs() < 0.02);
    }

    #[test]
    fn cores_at_full_speed_draw_the_cpus_thermal_design_power() {
        let power = mongo().0.power;
        let all = 24.0 * (power.active_base.0 + power.active_dynamic.0);
        assert!((100.0..=110.0).contains(&all), "{all}");
    }
}
